/* bench_template.c -- speed of chat templates.
 *
 *     bench_template VARIABLES.json TEMPLATE...
 *
 * One line for each template: what one compilation takes, renderings a second of the thread's own
 * time (the best of five rounds), bytes of the text. */
#include "bench.h"
#include "pith.h"

enum { ROUNDS = 5, MOST_BYTES = 1 << 20 };

static void bench(const char *path, const char *json, size_t n_json, char *out)
{
    struct pith_error err;
    size_t n = 0;
    char *text = read_all(path, &n);
    double t = now(), best = 0;
    pith_template *tpl = text ? pith_template_open(text, n, &err) : NULL;
    double compiled = now() - t;
    int64_t len = tpl ? pith_template_render(tpl, json, n_json, out, MOST_BYTES, &err) : -1;
    if (len < 0 || len > MOST_BYTES) {
        fprintf(stderr, "%s: %s\n", path, text ? err.msg : "cannot be read");
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            int k = 0;
            for (t = now(); now() - t < 0.2; k++)
                pith_template_render(tpl, json, n_json, out, MOST_BYTES, NULL);
            double rate = k / (now() - t);
            best = rate > best ? rate : best;
        }
        printf("compiled in %5.2f ms  %8.0f/s  %7lld bytes  %s\n", compiled * 1e3, best,
               (long long)len, path);
    }
    pith_template_close(tpl);
    free(text);
}

int main(int argc, char **argv)
{
    size_t n = 0;
    char *json = argc > 2 ? read_all(argv[1], &n) : NULL, *out = malloc(MOST_BYTES);
    if (!json || !out) {
        fprintf(stderr, "bench_template VARIABLES.json TEMPLATE...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        bench(argv[i], json, n, out);
    free(json);
    free(out);
    return 0;
}
