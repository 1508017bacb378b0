/* bench_grammar.c -- what constrained output costs, on one thread.
 *
 *     bench_grammar VOCABULARY.gguf [texts]
 *
 * Compiles a JSON Schema of about 10 KB and makes texts under it with a random model (uniform over what is allowed, closing quotes
 * favoured so that strings end): ms to compile, us per token for the mask alone, with the masks made on the way and once they are there. */
#include "bench.h"
#include "base/rng.h"
#include "base/str.h"
#include "format/gguf.h"
#include "text/grammar.h"

/* An array of objects of objects of `width` members, two of three optional. All in one object (a large width) is the hard case: at each
 * member any later one may come. */
static void make_schema(struct str *s, int width)
{
    str_putz(s, "{\"type\":\"array\",\"minItems\":3,\"maxItems\":6,\"items\":{\"type\":\"object\","
                "\"properties\":{");
    for (int i = 0; s->n < 10000; i++) {
        if (i % width == 0)
            str_printf(s, "%s\"group_%d\":{\"type\":\"object\",\"properties\":{",
                       i ? "},\"required\":[]}," : "", i / width);
        str_printf(s, "%s\"field_%d\":", i % width ? "," : "", i);
        switch (i % 6) {
        case 0:
            str_putz(s, "{\"type\":\"string\",\"description\":\"any text at all\"}");
            break;
        case 1:
            str_putz(s, "{\"type\":\"integer\",\"minimum\":-15,\"maximum\":4000}");
            break;
        case 2:
            str_putz(s, "{\"enum\":[\"red\",\"green\",\"blue\",null,17]}");
            break;
        case 3:
            str_putz(s, "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4}");
            break;
        case 4:
            str_putz(s, "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}-\\\\d+$\"}");
            break;
        default:
            str_putz(s, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                        "\"maxLength\":40},\"b\":{\"type\":\"boolean\"}},"
                        "\"required\":[\"a\"]}");
        }
    }
    str_putz(s, "}}},\"required\":[\"group_0\"]}}");
}

/* One random text. */
static void make_text(struct pith_grammar *g, const struct vocab *v, int text, float *logits)
{
    double mask = 0, worst = 0, accept = 0;
    int n = 0;
    size_t n_bytes = 0, n_vocab = (size_t)vocab_n(v);
    grammar_reset(g);
    for (; n < 2000; n++) {
        char piece[64];
        int32_t chosen = -1;
        double best = -1, t0;
        memset(logits, 0, n_vocab * sizeof *logits);
        t0 = now();
        if (grammar_apply(g, logits, (int32_t)n_vocab, NULL) != PITH_OK)
            break;
        double took = now() - t0;
        mask += took;
        worst = took > worst ? took : worst;
        for (size_t id = 0; id < n_vocab; id++) {
            if (logits[id] != 0)
                continue;
            double u = rng_uniform(7, (uint64_t)(2000 * text + n), id);
            if (u > 0.5 && vocab_piece(v, (int32_t)id, 0, piece, sizeof piece) && piece[0] == '"')
                u += 1;
            if (u > best) {
                best = u;
                chosen = (int32_t)id;
            }
        }
        if (chosen < 0 || vocab_is_eog(v, chosen))
            break;
        t0 = now();
        if (grammar_accept(g, chosen, NULL) != PITH_OK)
            break;
        accept += now() - t0;
        n_bytes += vocab_piece(v, chosen, 0, piece, sizeof piece);
    }
    printf(
        "text %d: %d tokens, %zu bytes: mask %.0f us per token (worst %.1f ms), accept %.1f us\n",
        text, n, n_bytes, 1e6 * mask / (n ? n : 1), 1e3 * worst, 1e6 * accept / (n ? n : 1));
}

int main(int argc, char **argv)
{
    struct pith_error err = {.code = PITH_OK};
    struct str schema;
    struct gguf *file = argc > 1 ? gguf_open(argv[1], &err) : NULL;
    struct vocab *v = file ? vocab_new(file, &err) : NULL;
    double t0 = now();
    struct trie *t = v ? trie_new(v, &err) : NULL;
    if (!t) {
        fprintf(stderr, "usage: bench_grammar VOCABULARY.gguf [texts]; %s\n", err.msg);
        return 1;
    }
    printf("token tree: %d tokens, %u nodes, %.1f ms\n", t->n_vocab, t->n, 1e3 * (now() - t0));
    str_init(&schema, PITH_MEM_SCRATCH);
    struct pith_grammar *g = NULL;
    static const int widths[] = {1000, 12};
    for (int i = 0; i < 2; i++) {
        int width = widths[i];
        grammar_free(g);
        str_clear(&schema);
        make_schema(&schema, width);
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                    .text = {schema.p, schema.n},
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = -1,
                                    .cache_bytes = 64 << 20};
        t0 = now();
        g = grammar_new(&spec, &err);
        printf("schema of %zu bytes, objects of %d members: %.1f ms %s\n", schema.n, width,
               1e3 * (now() - t0), g ? "" : err.msg);
    }
    float *logits = malloc((size_t)vocab_n(v) * sizeof *logits);
    for (int i = 0; g && logits && i < (argc > 2 ? atoi(argv[2]) : 3); i++)
        make_text(g, v, i, logits);
    free(logits);
    grammar_free(g);
    trie_free(t);
    vocab_free(v);
    gguf_close(file);
    str_deinit(&schema);
    return 0;
}
