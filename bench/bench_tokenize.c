/* bench_tokenize.c -- speed of text to ids and back.
 *
 *     bench_tokenize TEXT MODEL...
 *
 * One line for each model file (its vocabulary alone is read): ids, then megabytes (10^6 bytes of
 * text) a second of the thread's own time, the best of three rounds: of the whole text at once, of
 * the same text in pieces of 4 KB, and of the ids turned back into text. */
#include "bench.h"
#include "pith.h"

enum { ROUNDS = 3, PIECE = 4096 };

static void bench(const char *path, const char *text, size_t n, int32_t *ids, char *back)
{
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    double whole = 1e9, pieces = 1e9, detok = 1e9;
    int64_t n_ids = 0;
    params.vocab_only = 1;
    pith_model *m = pith_model_open(path, &params, &err);
    if (!m) {
        fprintf(stderr, "%s: %s\n", path, err.msg);
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        double t = now();
        n_ids = pith_tokenize(m, text, n, 0, ids, n + 16, &err);
        double spent = now() - t;
        whole = spent < whole ? spent : whole;
        if (n_ids < 0) {
            fprintf(stderr, "%s: %s\n", path, err.msg);
            break;
        }
        t = now();
        pith_detokenize(m, ids, (size_t)n_ids, 0, back, 2 * n, NULL);
        spent = now() - t;
        detok = spent < detok ? spent : detok;
        t = now();
        for (size_t at = 0; at < n; at += PIECE)
            pith_tokenize(m, text + at, n - at < PIECE ? n - at : PIECE, 0, ids, n + 16, NULL);
        spent = now() - t;
        pieces = spent < pieces ? spent : pieces;
    }
    double mb = (double)n * 1e-6;
    printf("%9lld ids  %7.1f MB/s  %7.1f in pieces  %7.1f back  %s\n", (long long)n_ids, mb / whole,
           mb / pieces, mb / detok, path);
    fflush(stdout);
    pith_model_close(m);
}

int main(int argc, char **argv)
{
    size_t n = 0;
    char *text = argc > 2 ? read_all(argv[1], &n) : NULL;
    int32_t *ids = malloc((n + 16) * sizeof *ids);
    char *back = malloc(2 * n + 16);
    if (!text || !ids || !back) {
        fprintf(stderr, "bench_tokenize TEXT MODEL...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        bench(argv[i], text, n, ids, back);
    free(text);
    free(ids);
    free(back);
    return 0;
}
