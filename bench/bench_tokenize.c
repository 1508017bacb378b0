/* bench_tokenize.c -- speed of text to ids and back.
 *
 *     bench_tokenize TEXT MODEL...
 *     bench_tokenize --hard MODEL...
 *
 * One line for each model file (its vocabulary alone is read): ids, then megabytes (10^6 bytes of
 * text) a second of the thread's own time, the best of three rounds: of the whole text at once, of
 * the same text in pieces of 4 KB, and of the ids turned back into text. --hard: texts that no
 * cache of words helps, of 1 and of 4 MB: seconds for the longer one, and how many times those of
 * the shorter one that is (4: linear). */
#include "bench.h"
#include "base/rng.h"
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

static void fill_letter(char *p, size_t n)
{
    memset(p, 'a', n);
}

static void fill_letters(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)('a' + (int)(26 * rng_uniform(1, i, 0)));
}

static void fill_bytes(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(int)(256 * rng_uniform(2, i, 0));
}

/* Letters under long heaps of accents, which normalisation has to put in order. */
static void fill_accents(char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 2) {
        p[i] = (char)(i % 4096 ? 0xCC : 'a');
        p[i + 1] = (char)(i % 4096 ? 0x80 + (int)(64 * rng_uniform(3, i, 0)) : 'a');
    }
}

static const struct {
    const char *name;
    void (*fill)(char *p, size_t n);
} hard[] = {{"one letter", fill_letter},
            {"random letters", fill_letters},
            {"random bytes", fill_bytes},
            {"heaps of accents", fill_accents}};

static void bench_hard(const char *path, char *text, int32_t *ids, size_t n)
{
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    params.vocab_only = 1;
    pith_model *m = pith_model_open(path, &params, &err);
    if (!m) {
        fprintf(stderr, "%s: %s\n", path, err.msg);
        return;
    }
    for (size_t k = 0; k < sizeof hard / sizeof hard[0]; k++) {
        double took[2] = {0};
        for (int whole = 0; whole < 2; whole++) {
            size_t some = whole ? n : n / 4;
            hard[k].fill(text, some);
            double t = now();
            if (pith_tokenize(m, text, some, 0, ids, some + 16, &err) < 0)
                fprintf(stderr, "%s: %s\n", path, err.msg);
            took[whole] = now() - t;
        }
        printf("%6.2f s %5.1f times  %-17s %s\n", took[1], took[1] / took[0], hard[k].name, path);
        fflush(stdout);
    }
    pith_model_close(m);
}

int main(int argc, char **argv)
{
    enum { HARD_BYTES = 4000000 };
    int is_hard = argc > 2 && !strcmp(argv[1], "--hard");
    size_t n = HARD_BYTES;
    char *text = is_hard ? malloc(n) : argc > 2 ? read_all(argv[1], &n) : NULL;
    int32_t *ids = malloc((n + 16) * sizeof *ids);
    char *back = malloc(2 * n + 16);
    if (!text || !ids || !back) {
        fprintf(stderr, "bench_tokenize TEXT|--hard MODEL...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (is_hard)
            bench_hard(argv[i], text, ids, n);
        else
            bench(argv[i], text, n, ids, back);
    }
    free(text);
    free(ids);
    free(back);
    return 0;
}
