/* bench_grammar.c -- what constrained output costs, on one thread.
 *
 *     bench_grammar [VOCABULARY.gguf [texts [SCHEMA.json TEXT.json]]]
 *
 * Compiles JSON Schemas of about 10 KB, each heavy in one thing: ms, the best of five. With a
 * vocabulary also makes texts under the one of nested objects with a random model (uniform over
 * what is allowed, closing quotes favoured so that strings end): us per token for the mask alone,
 * with the masks made on the way and once they are there. With a schema and a text that a model has
 * written under it: what that text cost, compiling and masks, for a request that brings the schema
 * first and for one that finds it kept. */
#include "bench.h"
#include "base/rng.h"
#include "base/str.h"
#include "format/gguf.h"
#include "text/grammar/grammar.h"

enum { SCHEMA_BYTES = 10000 };

static void put_mixed(struct str *s, int i)
{
    static const char *const values[] = {
        "{\"type\":\"string\",\"description\":\"any text at all\"}",
        "{\"type\":\"integer\",\"minimum\":-15,\"maximum\":4000}",
        "{\"enum\":[\"red\",\"green\",\"blue\",null,17]}",
        "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4}",
        "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}-\\\\d+$\"}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":40},\"b\":{"
        "\"type\":\"boolean\"}},\"required\":[\"a\"]}",
    };
    str_printf(s, "%s\"field_%d\":%s", i ? "," : "", i, values[i % 6]);
}

/* An array of objects of objects of 12 members. */
static void put_nested(struct str *s, int i)
{
    if (i % 12 == 0)
        str_printf(s, "%s\"group_%d\":{\"type\":\"object\",\"properties\":{", i ? "}}," : "",
                   i / 12);
    put_mixed(s, i % 12);
}

static void put_any(struct str *s, int i)
{
    str_printf(s, "%s\"%x\":{}", i ? "," : "", i);
}

static void put_word(struct str *s, int i)
{
    str_putz(s, i ? ",\"" : "\"");
    for (uint32_t k = 0, n = 4 + (uint32_t)(10 * rng_uniform(1, (uint64_t)i, 0)); k < n; k++)
        str_putc(s, (char)('a' + (int)(26 * rng_uniform(1, (uint64_t)i, k + 1))));
    str_putc(s, '"');
}

static void put_string(struct str *s, int i)
{
    put_word(s, i);
    str_putz(s, ":{\"type\":\"string\"}");
}

static void put_pattern(struct str *s, int i)
{
    str_printf(
        s,
        "%s\"p%d\":{\"type\":\"string\",\"pattern\":\"^[a-z]{2,%d}-\\\\d+(\\\\.[A-F0-9]{%d})?$\"}",
        i ? "," : "", i, i % 30 + 3, i % 12 + 1);
}

static void put_format(struct str *s, int i)
{
    static const char *const names[] = {"date-time", "email",    "uri",     "ipv6",
                                        "uuid",      "hostname", "duration"};
    str_printf(s, "%s\"p%d\":{\"type\":\"string\",\"format\":\"%s\"}", i ? "," : "", i,
               names[i % 7]);
}

static void put_bounds(struct str *s, int i)
{
    str_printf(s, "%s\"p%d\":{\"type\":\"number\",\"minimum\":%d.%d,\"maximum\":%d}", i ? "," : "",
               i, -i * 7919, i, i * 104729);
}

/* Every definition asks for two others. */
static void put_reference(struct str *s, int i)
{
    str_printf(s,
               "%s\"d%d\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"l\":{"
               "\"$ref\":\"#/$defs/d%d\"},"
               "\"r\":{\"$ref\":\"#/$defs/d%d\"}}}",
               i ? "," : "", i, (i * 7 + 1) % 80, (i * 3 + 2) % 80);
}

static void put_kind(struct str *s, int i)
{
    str_printf(s,
               "%s{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"},\"x%d\":{"
               "\"type\":\"number\"}},"
               "\"required\":[\"kind\"]}",
               i ? "," : "", i, i);
}

static const struct schema_kind {
    const char *name, *begin, *end;
    void (*put)(struct str *s, int i);
} kinds[] = {
    {"nested objects",
     "{\"type\":\"array\",\"minItems\":3,\"maxItems\":6,\"items\":{\"type\":\"object\","
     "\"properties\":{",
     "}}},\"required\":[\"group_0\"]}}", put_nested},
    {"one object of optional members", "{\"type\":\"object\",\"properties\":{", "}}", put_mixed},
    {"... and extra ones", "{\"type\":\"object\",\"properties\":{",
     "},\"additionalProperties\":true}", put_mixed},
    {"members of any value", "{\"type\":\"object\",\"properties\":{", "}}", put_any},
    {"... and extra ones", "{\"type\":\"object\",\"properties\":{",
     "},\"additionalProperties\":true}", put_any},
    {"members named by words, and extra ones", "{\"type\":\"object\",\"properties\":{",
     "},\"additionalProperties\":true}", put_string},
    {"one enum of words", "{\"enum\":[", "]}", put_word},
    {"patterns", "{\"type\":\"object\",\"properties\":{", "}}", put_pattern},
    {"formats", "{\"type\":\"object\",\"properties\":{", "}}", put_format},
    {"bounds of numbers", "{\"type\":\"object\",\"properties\":{", "}}", put_bounds},
    {"$ref", "{\"$defs\":{", "},\"$ref\":\"#/$defs/d0\"}", put_reference},
    {"oneOf", "{\"oneOf\":[", "]}", put_kind},
};

/* How many of what it is heavy in. */
static int make_schema(struct str *s, const struct schema_kind *k)
{
    int i = 0;
    str_clear(s);
    str_putz(s, k->begin);
    for (; s->n < SCHEMA_BYTES || (k->put == put_reference && i < 80); i++)
        k->put(s, i);
    str_putz(s, k->end);
    return i;
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

static void time_compiling(void)
{
    struct str schema;
    str_init(&schema, PITH_MEM_SCRATCH);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct pith_error err = {.code = PITH_OK};
        double best = 1e9;
        int n = make_schema(&schema, &kinds[i]);
        for (int k = 0; k < 5; k++) {
            struct grammar_spec spec = {
                .kind = PITH_GRAMMAR_SCHEMA, .text = {schema.p, schema.n}, .trigger_token = -1};
            double t0 = now();
            struct pith_grammar *g = grammar_new(&spec, &err);
            double took = now() - t0;
            best = took < best ? took : best;
            grammar_free(g);
        }
        printf("%-40s %5d in %zu bytes: %5.1f ms %s\n", kinds[i].name, n, schema.n, 1e3 * best,
               err.msg);
    }
    str_deinit(&schema);
}

static int time_masks(const char *path, int n_texts)
{
    struct pith_error err = {.code = PITH_OK};
    struct str schema;
    struct gguf *file = gguf_open(path, &err);
    struct vocab *v = file ? vocab_new(file, &err) : NULL;
    double t0 = now();
    struct trie *t = v ? trie_new(v, &err) : NULL;
    struct pith_grammar *g = NULL;
    str_init(&schema, PITH_MEM_SCRATCH);
    if (t) {
        printf("token tree: %d tokens, %u nodes, %.1f ms\n", t->n_vocab, t->n, 1e3 * (now() - t0));
        make_schema(&schema, &kinds[0]);
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                    .text = {schema.p, schema.n},
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = -1,
                                    .cache_bytes = 64 << 20};
        g = grammar_new(&spec, &err);
    }
    float *logits = g ? malloc((size_t)vocab_n(v) * sizeof *logits) : NULL;
    for (int i = 0; logits && i < n_texts; i++)
        make_text(g, v, i, logits);
    if (!g)
        fprintf(stderr, "bench_grammar: %s\n", err.msg);
    free(logits);
    int ok = g != NULL;
    grammar_free(g);
    trie_free(t);
    vocab_free(v);
    gguf_close(file);
    str_deinit(&schema);
    return ok;
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    *n = f && text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (f)
        fclose(f);
    return text;
}

/* Masks of all tokens of a text: us per token, and the slowest. */
static void time_text(struct pith_grammar *g, const char *name, double compiled, const int32_t *id,
                      int64_t n, float *logits, int32_t n_vocab)
{
    double mask = 0, worst = 0;
    int64_t i = 0;
    grammar_reset(g);
    for (; i < n; i++) {
        memset(logits, 0, (size_t)n_vocab * sizeof *logits);
        double t0 = now();
        if (grammar_apply(g, logits, n_vocab, NULL) != PITH_OK ||
            grammar_accept(g, id[i], NULL) != PITH_OK)
            break;
        double took = now() - t0;
        mask += took;
        worst = took > worst ? took : worst;
    }
    printf("%s: %d of %d tokens, compiled in %.1f ms, masks %.1f ms: %.0f us per token (worst %.1f "
           "ms)\n",
           name, (int)i, (int)n, 1e3 * compiled, 1e3 * mask, 1e6 * mask / (double)(i ? i : 1),
           1e3 * worst);
}

static int time_kept(const char *path, const char *schema_path, const char *text_path)
{
    struct pith_error err = {.code = PITH_OK};
    struct gguf *file = gguf_open(path, &err);
    struct vocab *v = file ? vocab_new(file, &err) : NULL;
    struct trie *t = v ? trie_new(v, &err) : NULL;
    size_t n_schema, n_text;
    char *schema = read_file(schema_path, &n_schema), *text = read_file(text_path, &n_text);
    int32_t *id = malloc((n_text + 8) * sizeof *id);
    int64_t n = t && id ? vocab_tokenize(v, text, n_text, 0, id, n_text + 8, &err) : -1;
    float *logits = t ? malloc((size_t)vocab_n(v) * sizeof *logits) : NULL;
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                .text = {schema, n_schema},
                                .vocab = v,
                                .trie = t,
                                .trigger_token = -1,
                                .cache_bytes = 64 << 20};
    double t0 = now();
    struct pith_grammar *g = n > 0 && logits ? grammar_new(&spec, &err) : NULL;
    double compiled = now() - t0;
    if (g) {
        time_text(g, "brought first", compiled, id, n, logits, vocab_n(v));
        time_text(g, "kept", 0, id, n, logits, vocab_n(v));
    } else {
        fprintf(stderr, "bench_grammar: %s\n", err.msg);
    }
    int ok = g != NULL;
    grammar_free(g);
    free(logits);
    free(id);
    free(schema);
    free(text);
    trie_free(t);
    vocab_free(v);
    gguf_close(file);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc > 4)
        return !time_kept(argv[1], argv[3], argv[4]);
    time_compiling();
    return argc > 1 && !time_masks(argv[1], argc > 2 ? atoi(argv[2]) : 3);
}
