/* test_lab.c -- a laboratory that looks for small inputs of great cost.
 *
 * For each kind of input that a request can hold (grammars, schemas, templates, chains of samplers,
 * texts, answers, stop strings) it mutates the costliest inputs it knows and keeps the costliest of
 * all. Cost is counted, not timed: steps and peak bytes of pith_work. A fault is an input whose
 * cost is above its kind's bound, base + slope x bytes of input; it is written to build/lab, to be
 * looked at. The worst that were ever found are tests/lab/KIND/n, where each run begins, with
 * fuzz/corpus.
 *
 * TEST_SCALE 1: 4 inputs a kind beside its worst, 10: 120, 100: for TEST_LAB_SECONDS (300) each,
 * where also the time of an input has a bound: work that nobody counts shows there.
 * TEST_SEED: another search. TEST_LAB_KEEP=1: the worst are written to tests/lab. */
#include <dirent.h>
#include <errno.h>
#include <pith.h>
#include <stdint.h>
#include <sys/stat.h>

#include "random.h"
#include "small_model.h"

enum {
    MOST_INPUT = 4096,
    N_POPULATION = 64,
    N_KEPT = 6,
    N_TOKENS = 24, /* masks that are made of a grammar, tokens that are sampled */
    N_VOCAB = 4000,
    MASK_STEPS = 1 << 27, /* most of one mask and the token after it */
};

struct cost {
    uint64_t steps, bytes;
    double seconds;
};

struct input {
    char *p;
    size_t n;
    double score;
    struct cost cost;
};

struct kind {
    const char *name, *corpus; /* folders: tests/lab/NAME, fuzz/corpus/CORPUS */
    void (*run)(const char *text, size_t n);
    const char *const *seeds; /* NULL-terminated */
    struct cost base, slope;  /* most steps and bytes: of any input, and for each byte of it */
};

static pith_model *model;
static pith_template *template;
static float logits[N_VOCAB];

static uint32_t pick(uint32_t n) /* 0 .. n-1 */
{
    return (uint32_t)below((int32_t)n);
}

/* ---------------------------------------------------------------- what is done with an input */

static struct pith_work work;
static uint64_t mask_steps; /* of the costliest mask */

/* What comes now is a mask: it has a bound of its own, and what was before it is counted apart. */
static void walk_one(pith_grammar *g, int32_t i, int *goes_on)
{
    uint64_t before = work.steps;
    memset(logits, 0, sizeof logits);
    *goes_on = pith_grammar_mask(g, logits, N_VOCAB, NULL) == PITH_OK;
    int32_t at = (int32_t)((unsigned)i * 2654435761u % N_VOCAB), n = 0;
    while (*goes_on && n < N_VOCAB && logits[at] != 0)
        at = (at + 1) % N_VOCAB, n++;
    *goes_on = *goes_on && n < N_VOCAB && pith_grammar_accept(g, at, NULL) == PITH_OK;
    uint64_t took = work.steps - before;
    mask_steps = took > mask_steps ? took : mask_steps;
    work.steps = before;
}

/* The masks of the first tokens, each time with a token that is allowed. */
static void walk(pith_grammar *g)
{
    int goes_on = g != NULL;
    for (int i = 0; i < N_TOKENS && goes_on; i++)
        walk_one(g, i, &goes_on);
    pith_grammar_close(g);
}

static void run_gbnf(const char *text, size_t n)
{
    walk(pith_grammar_open(model, PITH_GRAMMAR_GBNF, text, n, NULL, NULL));
}

static void run_schema(const char *text, size_t n)
{
    walk(pith_grammar_open(model, PITH_GRAMMAR_SCHEMA, text, n, NULL, NULL));
}

static void run_regex(const char *text, size_t n)
{
    static char schema[2 * MOST_INPUT + 64];
    size_t at = (size_t)snprintf(schema, sizeof schema, "{\"type\": \"string\", \"pattern\": \"");
    for (size_t i = 0; i < n && at + 8 < sizeof schema; i++) {
        if (text[i] == '"' || text[i] == '\\')
            schema[at++] = '\\';
        schema[at++] = (unsigned char)text[i] < 0x20 ? ' ' : text[i];
    }
    memcpy(schema + at, "\"}", 2);
    run_schema(schema, at + 2);
}

static void run_jinja(const char *text, size_t n)
{
    static const char vars[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello, how are you? \"}, {\"role\": "
        "\"assistant\", \"content\": \"<b>fine</b> & well\"}], \"tools\": [{\"a\": [1, 2.5, "
        "null]}],"
        " \"add_generation_prompt\": true}";
    static char out[1 << 16];
    pith_template *t = pith_template_open(text, n, NULL);
    if (t)
        pith_template_render(t, vars, sizeof vars - 1, out, sizeof out, NULL);
    pith_template_close(t);
}

static void run_variables(const char *text, size_t n)
{
    static char out[1 << 16];
    pith_template_render(template, text, n, out, sizeof out, NULL);
}

static void run_answer(const char *text, size_t n)
{
#define FORMAT(name, ...) name,
    static const char *const families[] = {
#include "text/chat/chat_formats.def"
    };
#undef FORMAT
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        params.family = families[f];
        params.partial = (f + n) & 1;
        params.tools = "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": "
                       "{\"type\": \"string\"}}}}}]";
        pith_chat_parser *p = pith_chat_open(NULL, &params, NULL);
        for (size_t i = 0; p && i < n; i += 7)
            pith_chat_feed(p, text + i, n - i < 7 ? n - i : 7, NULL);
        if (p)
            pith_chat_finish(p, NULL);
        pith_chat_close(p);
    }
}

static void run_samplers(const char *text, size_t n)
{
    static char chain[MOST_INPUT + 1];
    struct pith_sampler_params params = PITH_SAMPLER_PARAMS_INIT;
    memcpy(chain, text, n);
    chain[n] = 0;
    params.samplers = chain;
    pith_sampler *s = pith_sampler_open(N_VOCAB, &params, NULL);
    for (int i = 0; s && i < N_TOKENS; i++) {
        for (int k = 0; k < N_VOCAB; k++)
            logits[k] = (float)(k * 7919 % 1009) * 0.01f;
        int32_t id = pith_sample(s, logits);
        if (id < 0)
            break;
        pith_sampler_accept(s, id % 5);
    }
    pith_sampler_close(s);
}

static void run_text(const char *text, size_t n)
{
    static int32_t ids[MOST_INPUT + 16];
    pith_tokenize(model, text, n, 0, ids, sizeof ids / sizeof *ids, NULL);
}

/* Lines are the strings; the input itself is the text. */
static void run_stop(const char *text, size_t n)
{
    static char copy[MOST_INPUT + 1];
    const char *strings[65];
    struct pith_shown shown = {0};
    int k = 0;
    memcpy(copy, text, n);
    copy[n] = 0;
    for (char *at = strtok(copy, "\n"); at && k < 64; at = strtok(NULL, "\n"))
        strings[k++] = at;
    strings[k] = NULL;
    pith_stopper *s = pith_stopper_open(strings, NULL);
    for (size_t i = 0; s && i < n; i += 3)
        if (pith_stopper_put(s, text + i, n - i < 3 ? n - i : 3, &shown))
            break;
    pith_stopper_close(s);
}

/* ---------------------------------------------------------------- kinds */

static const char *const gbnf_seeds[] = {
    "root ::= s\ns ::= [a-z ] s s | [a-z ] s | [a-z ]",
    "root ::= (\"abcdefgh\"){900}",
    "root ::= \"a\"{1000000}",
    "root ::= ((\"a\"{100}){100}){100}",
    "root ::= (\"a\"* \"a\"*)* \"b\"",
    "root ::= (a | b)*\na ::= \"x\" a \"y\" | \"\"\nb ::= \"x\" b \"z\" | \"\"",
    "root ::= [ab]* \"a\" [ab]{20}",
    "root ::= .{0,10000} .{0,10000}",
    "root ::= (\"a\" | \"aa\"){300}",
    NULL};
static const char *const schema_seeds[] = {
    "{\"oneOf\":[{\"const\":0},{\"const\":1},{\"const\":2},{\"const\":3}]}",
    "{\"allOf\":[{\"anyOf\":[{\"minimum\":1},{\"maximum\":2}]},{\"anyOf\":[{\"type\":\"string\"},"
    "{\"type\":\"integer\"}]}]}",
    "{\"$defs\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/a\"}}},\"$ref\":\"#/$defs/"
    "a\"}",
    "{\"type\":\"array\",\"minItems\":1000,\"maxItems\":100000,\"items\":{\"type\":\"integer\"}}",
    "{\"type\":\"string\",\"minLength\":5000,\"maxLength\":100000}",
    "{\"type\":\"integer\",\"minimum\":-123456789,\"maximum\":987654321,\"multipleOf\":7}",
    "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\"f\":{}},"
    "\"additionalProperties\":false}",
    "{\"type\":\"object\",\"patternProperties\":{\"^(a|b)*a(a|b){8}$\":{\"type\":\"null\"}}}",
    NULL};
static const char *const regex_seeds[] = {"^(a|b)*a(a|b){12}$",
                                          "(a?){50}a{50}",
                                          "((a{1,20}){1,20}){1,20}",
                                          ".*.*.*.*=.*",
                                          "(x+x+)+y",
                                          "[^\\d\\s]{1,64}@[a-z.]+",
                                          NULL};
static const char *const jinja_seeds[] = {
    "{% for i in range(99999) %}{{ i }}{% endfor %}",
    "{{ 'a' * 1000000 }}",
    "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor "
    "%}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(30) }}",
    "{{ messages | tojson | replace('e', messages | tojson) | replace('o', 'xxxxxxxx') | length }}",
    "{{ range(100000) | list | sort | join(',') | upper | length }}",
    "{{ ('a' * 10000).split('a') | map('upper') | join('bbbb') }}",
    NULL};
static const char *const variable_seeds[] = {
    "{\"messages\": [{\"role\": \"user\", \"content\": \"aaaa\"}]}",
    "{\"messages\": [[[[[[[[[[[[]]]]]]]]]]]], \"tools\": {\"a\": 1e308}}", NULL};
static const char *const answer_seeds[] = {
    "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}</tool_call>",
    "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": [[[[[[]]]]]]}}]",
    "<think><think><think></think>{\"name\": \"f\", \"parameters\": {}}",
    "<function=f><parameter=s>a</parameter></function>",
    "```json\n{\"name\": \"f\"",
    "<|tool_call_start|>[f(), g        ",
    "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>        ",
    NULL};
static const char *const sampler_seeds[] = {
    "penalties:last_n=100000,repeat=1.1;dry:penalty_last_n=16777216,multiplier=1;top_k:k=40",
    "typical:p=0.9;top_p:p=0.9;min_p:p=0.1;xtc:p=0.5;temp:t=1", "mirostat:tau=5;temp_ext:t=1",
    NULL};
static const char *const text_seeds[] = {"11111111111111111111111111111111",
                                         "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11",
                                         "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80  \t\n\n", NULL};
static const char *const stop_seeds[] = {"aaaaaaaaab\naaaaaaab\naaaaab\naaaaaaaaaaaaaaaaaaaaaaaaa",
                                         NULL};

/* Bounds: far more than an honest input needs, and what a server can give to anybody. Steps of
 * automata are short: 2^28 of them are under a second of one core. */
#define BOUND(s, b)                                                                                \
    {                                                                                              \
        (uint64_t)1 << (s), (uint64_t)1 << (b), 2                                                  \
    }
static const struct kind kinds[] = {
    {"gbnf", "grammar", run_gbnf, gbnf_seeds, BOUND(28, 28), {1 << 14, 1 << 14, 0}},
    {"schema", "schema", run_schema, schema_seeds, BOUND(28, 28), {1 << 14, 1 << 14, 0}},
    {"regex", "regex", run_regex, regex_seeds, BOUND(28, 28), {1 << 14, 1 << 14, 0}},
    {"jinja", "jinja", run_jinja, jinja_seeds, BOUND(25, 28), {1 << 12, 1 << 13, 0}},
    /* A byte may be a turn of a loop, which keeps a kilobyte. */
    {"variables", NULL, run_variables, variable_seeds, BOUND(16, 18), {1 << 8, 1 << 11, 0}},
    {"answer", "chat", run_answer, answer_seeds, BOUND(16, 20), {1 << 7, 1 << 9, 0}},
    {"samplers", NULL, run_samplers, sampler_seeds, BOUND(22, 22), {1 << 12, 1 << 10, 0}},
    {"text", "text", run_text, text_seeds, BOUND(14, 18), {1 << 6, 1 << 8, 0}},
    {"stop", NULL, run_stop, stop_seeds, BOUND(14, 18), {1 << 9, 1 << 8, 0}},
};

/* ---------------------------------------------------------------- the search */

/* How much of its kind's bound an input takes: 1 is all. The work ends at twice that. */
static double weigh(const struct kind *k, struct input *in)
{
    double most_steps = (double)k->base.steps + (double)k->slope.steps * (double)in->n;
    double most_bytes = (double)k->base.bytes + (double)k->slope.bytes * (double)in->n;
    work = (struct pith_work)PITH_WORK_INIT;
    work.max_steps = (uint64_t)(2 * most_steps);
    work.max_bytes = (uint64_t)(2 * most_bytes);
    mask_steps = 0;
    double began = test_cpu_seconds();
    if (pith_work_begin(&work, NULL) != PITH_OK)
        return 0;
    k->run(in->p, in->n);
    pith_work_end(&work);
    in->cost = (struct cost){work.steps, (uint64_t)(work.peak_bytes > 0 ? work.peak_bytes : 0),
                             test_cpu_seconds() - began};
    double steps = (double)work.steps / most_steps, bytes = (double)in->cost.bytes / most_bytes;
    double mask = (double)mask_steps / (double)MASK_STEPS;
    in->score = steps > bytes ? steps : bytes;
    return in->score = mask > in->score ? mask : in->score;
}

/* A number in the text made larger, or other; else a byte. */
static void bump(char *p, size_t n)
{
    size_t at = pick((uint32_t)n);
    for (size_t i = 0; i < n; i++, at = (at + 1) % n)
        if (p[at] >= '0' && p[at] <= '9') {
            p[at] = (char)('0' + pick(10));
            return;
        }
    p[at] = (char)(32 + pick(95));
}

static struct input mutate(const struct input *a, const struct input *b)
{
    struct input out = {.p = malloc(MOST_INPUT)};
    if (!out.p)
        return out;
    memcpy(out.p, a->p, out.n = a->n);
    for (uint32_t turns = 1 + pick(4); turns; turns--) {
        uint32_t from = pick((uint32_t)out.n), n = 1 + pick((uint32_t)(out.n - from));
        uint32_t at = pick((uint32_t)out.n + 1);
        const char *piece = out.p + from;
        static char copy[MOST_INPUT];
        if (pick(3) == 0 && b->n) { /* a piece of the other one */
            from = pick((uint32_t)b->n);
            n = 1 + pick((uint32_t)(b->n - from));
            piece = b->p + from;
        }
        memcpy(copy, piece, n);
        switch (pick(4)) {
        case 0:
            bump(out.p, out.n);
            break;
        case 1: /* less */
            if (out.n > n + 1 && n < out.n / 2) {
                from = pick((uint32_t)(out.n - n));
                memmove(out.p + from, out.p + from + n, out.n - from - n);
                out.n -= n;
            }
            break;
        default: /* more: once, or as often as it fits */
            for (uint32_t times = pick(4) ? 1 : 1 + pick(40); times && out.n + n <= MOST_INPUT;
                 times--) {
                memmove(out.p + at + n, out.p + at, out.n - at);
                memcpy(out.p + at, copy, n);
                out.n += n;
            }
        }
    }
    return out;
}

struct population {
    struct input in[N_POPULATION];
    int n;
};

/* Takes `in` over. The least costly one leaves when there is no place. */
static void keep(struct population *p, struct input in)
{
    int worst = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->in[i].n == in.n && !memcmp(p->in[i].p, in.p, in.n)) {
            free(in.p);
            return;
        }
        if (p->in[i].score < p->in[worst].score)
            worst = i;
    }
    if (p->n < N_POPULATION) {
        p->in[p->n++] = in;
    } else if (p->in[worst].score < in.score) {
        free(p->in[worst].p);
        p->in[worst] = in;
    } else {
        free(in.p);
    }
}

static void save(const char *dir, const char *kind, int i, const struct input *in)
{
    char path[256];
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/%s", dir, kind);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%d", dir, kind, i);
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(in->p, 1, in->n, f);
        fclose(f);
    }
}

static int is_over(const struct kind *k, const struct input *in)
{
    double most =
        k->base.seconds + 4 * in->score; /* a build with sanitizers may be several times slower */
    return in->score > 1 || (test_scale() >= 100 && in->cost.seconds > most);
}

static void try_one(const struct kind *k, struct population *p, struct input in)
{
    if (!in.p || !in.n) {
        free(in.p);
        return;
    }
    weigh(k, &in);
    if (is_over(k, &in)) {
        static int n_found;
        char dir[256];
        snprintf(dir, sizeof dir, "%s/lab", getenv("B") ? getenv("B") : "build");
        save(dir, k->name, n_found++, &in);
        CHECK_MSG(0,
                  "%s/%s/%d: %zu bytes cost %llu steps, %llu bytes, %.1f s; %.1f times the bound",
                  dir, k->name, n_found - 1, in.n, (unsigned long long)in.cost.steps,
                  (unsigned long long)in.cost.bytes, in.cost.seconds, in.score);
    }
    keep(p, in);
}

static void try_folder(const struct kind *k, struct population *p, const char *dir,
                       const char *prefix)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        struct input in = {0};
        if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, strlen(prefix)))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        in.p = test_read(path, &in.n);
        in.n = in.n > MOST_INPUT ? MOST_INPUT : in.n;
        try_one(k, p, in);
    }
    if (d)
        closedir(d);
}

static int by_score(const void *a, const void *b)
{
    double x = ((const struct input *)a)->score, y = ((const struct input *)b)->score;
    return (x < y) - (x > y);
}

static void search(const struct kind *k)
{
    struct population p = {.n = 0};
    char folder[128];
    const char *limit = getenv("TEST_LAB_SECONDS");
    double until = test_cpu_seconds() + (limit ? atof(limit) : 300);
    test_seed();
    for (int i = 0; k->seeds[i]; i++)
        try_one(k, &p, (struct input){.p = strdup(k->seeds[i]), .n = strlen(k->seeds[i])});
    snprintf(folder, sizeof folder, "tests/lab/%s", k->name);
    try_folder(k, &p, folder, test_scale() >= 10 ? "" : "0");
    snprintf(folder, sizeof folder, "fuzz/corpus/%s", k->corpus ? k->corpus : "");
    if (test_scale() >= 10 && k->corpus)
        try_folder(k, &p, folder, "");
    long n = test_scale() >= 100 ? 100000000 : test_scale() >= 10 ? 120 : 4;
    for (long i = 0; i < n && test_bad < 5 && (test_scale() < 100 || test_cpu_seconds() < until);
         i++) {
        qsort(p.in, (size_t)p.n, sizeof *p.in, by_score);
        uint32_t best = p.n < 12 ? (uint32_t)p.n : 12;
        const struct input *a = &p.in[pick(2) ? pick(best) : pick((uint32_t)p.n)];
        try_one(k, &p, mutate(a, &p.in[pick((uint32_t)p.n)]));
    }
    qsort(p.in, (size_t)p.n, sizeof *p.in, by_score);
    printf("# %s: the costliest takes %.0f %% of the bound: %zu bytes, %llu steps, %llu bytes\n",
           k->name, 100 * p.in[0].score, p.in[0].n, (unsigned long long)p.in[0].cost.steps,
           (unsigned long long)p.in[0].cost.bytes);
    for (int i = 0; i < p.n; i++) {
        if (i < N_KEPT && getenv("TEST_LAB_KEEP"))
            save("tests/lab", k->name, i, &p.in[i]);
        free(p.in[i].p);
    }
}

/* ---------------------------------------------------------------- tests */

#define LAB(i)                                                                                     \
    static void lab_##i(void)                                                                      \
    {                                                                                              \
        search(&kinds[i]);                                                                         \
    }
LAB(0)
LAB(1) LAB(2) LAB(3) LAB(4) LAB(5) LAB(6) LAB(7) LAB(8)

    int main(void)
{
    static void (*const labs[])(void) = {lab_0, lab_1, lab_2, lab_3, lab_4,
                                         lab_5, lab_6, lab_7, lab_8};
    static const char loop[] =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}"
        "{{ tools | tojson }}";
    struct pith_synth_params sp = small_params("llama", N_VOCAB);
    test_name = "lab";
    model = small_model(&sp, 0, NULL);
    template = pith_template_open(loop, sizeof loop - 1, NULL);
    for (size_t i = 0; model && template && i < sizeof kinds / sizeof *kinds; i++)
        test_run(kinds[i].name, labs[i]);
    pith_template_close(template);
    pith_model_close(model);
    if (!model || !template)
        test_failed++;
    return test_end();
}
