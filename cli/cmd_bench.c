/* cmd_bench.c -- pith bench: how fast a model runs here, and how near that is to what the machine
 * allows.
 *
 *     limit of prefill   integer (for float weights: fma) peak / operations per token, the output
 *                        matrix counted once per prompt
 *     limit of decode    tokens of a step * read bandwidth / (weight bytes + cache bytes of all its
 *                        sequences); with many sequences the limit of prefill where that is lower
 *
 * Bandwidth and peaks are measured in the same run, with the same number of threads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct opts {
    struct model_opts model;
    struct arg_ints prompt, predict, depth, threads, seqs;
    int64_t reps, n_batch;
    const char *format;
};

#define LIST(flag, short_flag, member, low, high, standard, what)                                  \
    {                                                                                              \
        .name = flag, .alias = short_flag, .meta = "N,...",                                        \
        ARG_FIELD(struct opts, member, ARG_INTS), .lo = low, .hi = high, .dflt = standard,         \
        .help = what                                                                               \
    }
/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    LIST("--prompt", "-p", prompt, 0, 1 << 24, "512", "tokens of a prefill test (pp); 0: none"),
    LIST("--predict", "-n", predict, 0, 1 << 24, "128", "steps of a decode test (tg); 0: none"),
    LIST("--depth", "-d", depth, 0, 1 << 24, "0", "tokens that are in the context before a test"),
    LIST("--sequences", "-np", seqs, 1, 4096, "1", "sequences side by side"),
    {.name = "--threads", .alias = "-t", .meta = "N,...", ARG_FIELD(struct opts, threads, ARG_INTS),
     .lo = 1, .hi = 256, .word = "auto", .env = "PITH_THREADS",
     .otherwise = "the fast cores it may use", .help = "threads; auto: see pith run"},
    ARGS_MODEL_PLACES(struct opts, model),
    {.name = "--reps", .alias = "-r", ARG_FIELD(struct opts, reps, ARG_INT), .lo = 1, .hi = 10000,
     .dflt = "5", .help = "measured runs of each test, after one that is not"},
    {.name = "--batch", .alias = "-b", ARG_FIELD(struct opts, n_batch, ARG_SIZE), .lo = 1,
     .hi = 1 << 20, .dflt = "512", .help = "most tokens in one step"},
    {.name = "--output", .alias = "-o", ARG_FIELD(struct opts, format, ARG_CHOICE),
     .choices = "md|json|csv", .dflt = "md", .help = "form of the results"},
    ARGS_MODEL_CACHE(struct opts, model),
    {0},
};
/* clang-format on */

struct result {
    char test[64];
    int32_t n_threads, n_seqs;
    double tps, tps_std, limit_tps;
};

/* What is the same for all tests of a run. */
struct bench {
    const struct opts *o;
    pith_model *m;
    struct pith_model_info info;
    struct pith_machine machine;
    int32_t *tokens; /* [most rows of a step], random */
    int32_t *seq;
    int n_shown;
};

/* ---------------------------------------------------------------- output */

static const char *model_name(const struct bench *b)
{
    const char *slash = strrchr(b->o->model.path, '/');
    return b->info.name && *b->info.name ? b->info.name : slash ? slash + 1 : b->o->model.path;
}

/* The text in parentheses of "0.1.0 (commit)". */
static void commit_of(char *to, size_t cap)
{
    const char *from = strchr(pith_version(), '(');
    int n = from ? (int)strcspn(from + 1, ")") : 0;
    snprintf(to, cap, "%.*s", n, from ? from + 1 : "");
}

static double share(const struct result *r)
{
    return r->limit_tps > 0 ? r->tps / r->limit_tps : 0;
}

static void show_md(struct bench *b, const struct result *r)
{
    if (b->n_shown == 0)
        printf("| model | type | threads | test | tokens/s | +- | limit | share |\n"
               "|---|---|---:|---|---:|---:|---:|---:|\n");
    printf("| %s | %s | %d | %s | %.2f | %.2f | %.1f | %.1f %% |\n", model_name(b), b->info.type,
           r->n_threads, r->test, r->tps, r->tps_std, r->limit_tps, 100 * share(r));
}

static json_t *to_json(const struct bench *b, const struct result *r)
{
    char commit[64];
    commit_of(commit, sizeof commit);
    const struct pith_machine *h = &b->machine;
    /* clang-format off */
    return json_pack("{s:s, s:s, s:o, s:s, s:o, s:s, s:s, s:i, s:i, s:i,"
                     " s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:s}",
                     "test", r->test,
                     "backend", "cpu",
                     "device", cli_json_text(h->cpu, strlen(h->cpu)),
                     "isa", h->isa,
                     "model", cli_json_text(model_name(b), strlen(model_name(b))),
                     "arch", b->info.arch,
                     "type", b->info.type,
                     "n_threads", r->n_threads,
                     "n_seqs", r->n_seqs,
                     "reps", (int)b->o->reps,
                     "tps", r->tps,
                     "tps_std", r->tps_std,
                     "limit_tps", r->limit_tps,
                     "share", share(r),
                     "read_gbs", h->read_gbs,
                     "int8_gops", h->int8_gops,
                     "f32_gops", h->f32_gops,
                     "weight_bytes", (json_int_t)b->info.weight_bytes,
                     "commit", commit);
    /* clang-format on */
}

static void show_json(struct bench *b, const struct result *r)
{
    json_t *row = to_json(b, r);
    fputs(b->n_shown ? ",\n" : "[\n", stdout);
    json_dumpf(row, stdout, JSON_REAL_PRECISION(9));
    json_decref(row);
}

static void show_csv(struct bench *b, const struct result *r)
{
    json_t *row = to_json(b, r), *value;
    const char *key;
    if (b->n_shown == 0) {
        int n = 0;
        json_object_foreach(row, key, value)
        {
            printf("%s%s", n++ ? "," : "", key);
        }
        putchar('\n');
    }
    int n = 0;
    json_object_foreach(row, key, value)
    {
        fputs(n++ ? "," : "", stdout);
        json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    }
    putchar('\n');
    json_decref(row);
}

static void show(struct bench *b, const struct result *r)
{
    switch (b->o->format[0]) {
    case 'j':
        show_json(b, r);
        break;
    case 'c':
        show_csv(b, r);
        break;
    default:
        show_md(b, r);
    }
    fflush(stdout);
    b->n_shown++;
}

/* ---------------------------------------------------------------- one test */

/* Tokens per second that the machine allows: see the top. */
static double limit_of(const struct bench *b, const pith_session *s, int is_prefill, int32_t n_seqs,
                       int32_t n, int64_t depth)
{
    const char *type = b->info.type;
    int is_float = !strcmp(type, "f32") || !strcmp(type, "f16") || !strcmp(type, "bf16");
    double gops = is_float ? b->machine.f32_gops : b->machine.int8_gops;
    double ops = (double)b->info.token_ops;
    if (is_prefill) /* one row in n goes through the output matrix */
        ops -= (double)b->info.output_ops * (1 - 1.0 / n);
    double by_ops = ops > 0 ? 1e9 * gops / ops : 0;
    if (is_prefill)
        return by_ops;
    double bytes = (double)b->info.token_bytes + n_seqs * (double)pith_cache_bytes(s, depth);
    double by_bytes = bytes > 0 ? n_seqs * 1e9 * b->machine.read_gbs / bytes : 0;
    return by_ops > 0 && by_ops < by_bytes ? by_ops : by_bytes;
}

/* Appends n tokens to each of n_seqs sequences in one call. */
static pith_status feed(struct bench *b, pith_session *s, int32_t n_seqs, int32_t n,
                        struct pith_error *err)
{
    struct pith_batch batch = PITH_BATCH_INIT;
    batch.n = n_seqs * n;
    batch.token = b->tokens;
    batch.seq = b->seq;
    for (int32_t i = 0; i < batch.n; i++)
        b->seq[i] = i / n;
    return pith_step(s, &batch, err);
}

static pith_status rewind_to(pith_session *s, int32_t n_seqs, int64_t depth, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < n_seqs && st == PITH_OK; i++)
        st = pith_truncate(s, i, depth, err);
    return st;
}

/* One run: n tokens at once, or n steps of one, for each sequence. */
static pith_status run_once(struct bench *b, pith_session *s, int is_prefill, int32_t n_seqs,
                            int32_t n, struct pith_error *err)
{
    if (is_prefill)
        return feed(b, s, n_seqs, n, err);
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < n && st == PITH_OK; i++)
        st = feed(b, s, n_seqs, 1, err);
    return st;
}

static pith_status measure(struct bench *b, pith_session *s, int is_prefill, int32_t n,
                           int64_t depth, struct result *r, struct pith_error *err)
{
    enum { WARM_PREFILL = 512, WARM_DECODE = 8 };
    int32_t warm = is_prefill ? WARM_PREFILL : WARM_DECODE;
    double sum = 0, squares = 0;
    pith_status st = run_once(b, s, is_prefill, r->n_seqs, n < warm ? n : warm, err);
    for (int64_t i = 0; i < b->o->reps && st == PITH_OK; i++) {
        st = rewind_to(s, r->n_seqs, depth, err);
        double began = cli_seconds();
        if (st == PITH_OK)
            st = run_once(b, s, is_prefill, r->n_seqs, n, err);
        double tps = (double)n * r->n_seqs / (cli_seconds() - began);
        sum += tps;
        squares += tps * tps;
    }
    if (st == PITH_OK)
        st = rewind_to(s, r->n_seqs, depth, err);
    double reps = (double)b->o->reps, spread = squares - sum * sum / reps;
    r->tps = sum / reps;
    r->tps_std = reps > 1 && spread > 0 ? sqrt(spread / (reps - 1)) : 0;
    /* A decode test of n steps is behind depth + n / 2 positions on average. */
    r->limit_tps =
        limit_of(b, s, is_prefill, r->n_seqs, n, is_prefill ? depth : depth + n / 2);
    return st;
}

/* ---------------------------------------------------------------- all tests */

static int64_t largest(const struct arg_ints *list)
{
    int64_t most = 0;
    for (int i = 0; i < list->n; i++)
        most = list->v[i] > most ? list->v[i] : most;
    return most;
}

/* "pp512", "tg128@d8192x32": what, how much, behind what, of how many sequences. */
static void name_test(struct result *r, int is_prefill, int32_t n, int64_t depth)
{
    char at[16] = "", times[16] = "";
    if (depth)
        snprintf(at, sizeof at, "@d%d", (int)depth);
    if (r->n_seqs > 1)
        snprintf(times, sizeof times, "x%d", r->n_seqs);
    snprintf(r->test, sizeof r->test, "%s%d%s%s", is_prefill ? "pp" : "tg", n, at, times);
}

/* All prefill, then all decode tests with one number of threads, sequences and depth. */
static int bench_session(struct bench *b, int32_t n_threads, int32_t n_seqs, int64_t depth)
{
    int code = CLI_OK;
    struct pith_error err = {0};
    struct pith_session_params params = PITH_SESSION_PARAMS_INIT;
    int64_t p = largest(&b->o->prompt), n = largest(&b->o->predict);
    params.n_seq = n_seqs;
    params.n_threads = n_threads;
    params.n_threads_prefill = (int32_t)b->o->model.threads.n_prefill;
    pith_session *s =
        cli_session_open(b->m, &b->o->model, (int32_t)(depth + (p > n ? p : n)), &params, &code);
    if (!s)
        return code;
    interrupt_watch(s);
    pith_status st = PITH_OK;
    /* The depth is filled in pieces that b->tokens has room for. */
    int64_t piece = p > 1 ? p : 1;
    for (int64_t at = 0; at < depth && st == PITH_OK; at += piece)
        st = feed(b, s, n_seqs, (int32_t)(depth - at < piece ? depth - at : piece), &err);
    for (int is_prefill = 1; is_prefill >= 0; is_prefill--) {
        const struct arg_ints *sizes = is_prefill ? &b->o->prompt : &b->o->predict;
        for (int i = 0; i < sizes->n && st == PITH_OK; i++) {
            struct result r = {.n_threads = n_threads, .n_seqs = n_seqs};
            if (sizes->v[i] == 0)
                continue;
            name_test(&r, is_prefill, (int32_t)sizes->v[i], depth);
            st = measure(b, s, is_prefill, (int32_t)sizes->v[i], depth, &r, &err);
            if (st == PITH_OK)
                show(b, &r);
        }
    }
    if (st != PITH_OK)
        code = cli_fail(&err);
    else if (b->o->model.verbose)
        cli_report(s);
    interrupt_watch(NULL);
    pith_session_close(s);
    return code;
}

static int bench_all(struct bench *b)
{
    enum { MEASURE_MS = 250 };
    const struct opts *o = b->o;
    int code = CLI_OK;
    for (int t = 0; t < o->threads.n && !code; t++) {
        struct pith_error err = {0};
        b->machine = (struct pith_machine){.size = sizeof b->machine};
        if (pith_machine_measure((int32_t)o->threads.v[t], MEASURE_MS, &b->machine, &err) != PITH_OK)
            return cli_fail(&err);
        if (o->format[0] == 'm')
            printf("%s%s, %s, %d threads: reads %.1f GB/s, int8 %.0f Gop/s, f32 %.0f Gop/s\n\n",
                   b->n_shown ? "\n" : "", b->machine.cpu, b->machine.isa, b->machine.n_threads,
                   b->machine.read_gbs, b->machine.int8_gops, b->machine.f32_gops);
        for (int s = 0; s < o->seqs.n && !code; s++) {
            for (int d = 0; d < o->depth.n && !code; d++)
                code = bench_session(b, b->machine.n_threads, (int32_t)o->seqs.v[s], o->depth.v[d]);
        }
    }
    return code;
}

/* Random tokens: a step of Knuth's 64-bit generator each, top bits. */
static int make_tokens(struct bench *b, int64_t n)
{
    uint64_t state = 42;
    b->tokens = malloc((size_t)n * sizeof *b->tokens);
    b->seq = malloc((size_t)n * sizeof *b->seq);
    if (!b->tokens || !b->seq)
        return cli_no_memory();
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((state >> 33) % (uint64_t)b->info.n_vocab);
    }
    return CLI_OK;
}

/* Puts counts where auto or nothing was given, so that the tests can say them. */
static int resolve_threads(struct opts *o)
{
    struct thread_opts *t = &o->model.threads;
    struct pith_threads found = {.size = sizeof found};
    struct pith_error err = {0};
    int measured = t->n_prefill < 0;
    for (int i = 0; i < o->threads.n; i++)
        measured |= o->threads.v[i] < 0;
    if (pith_measure_threads(0, &found, &err) != PITH_OK)
        return cli_fail(&err);
    int code = measured ? cli_auto_threads(&found, cli_chatty(&o->model)) : CLI_OK;
    if (o->threads.n == 0) {
        o->threads.v[o->threads.n++] = found.n_decode;
        t->n_prefill = t->n_prefill ? t->n_prefill : found.n_prefill;
    }
    for (int i = 0; i < o->threads.n; i++) {
        if (o->threads.v[i] < 0)
            o->threads.v[i] = found.n_decode;
    }
    if (t->n_prefill < 0)
        t->n_prefill = found.n_prefill;
    t->n_decode = largest(&o->threads);
    return code;
}

static int run(void *opts)
{
    struct opts *o = opts;
    struct bench b = {.o = o, .info = {.size = sizeof b.info}};
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {0};
    int code;
    int64_t p = largest(&o->prompt), n = largest(&o->predict), n_seqs = largest(&o->seqs);
    int64_t n_rows = n_seqs * (p > 1 ? p : 1);
    if (p == 0 && n == 0)
        return cli_say(CLI_USE, "-p 0 and -n 0 leave nothing to measure");
    if (n_rows > INT32_MAX || largest(&o->depth) + (p > n ? p : n) > INT32_MAX)
        return cli_say(CLI_USE, "-p, -d and -np ask for more tokens than 2^31");
    params.n_batch = (int32_t)(o->n_batch > n_seqs ? o->n_batch : n_seqs);
    params.n_outputs = n_seqs > 64 ? (int32_t)n_seqs : 0;
    code = resolve_threads(o);
    if (code)
        return code;
    b.m = cli_model_open(&o->model, &params, &code);
    if (!b.m)
        return code;
    code = pith_model_get_info(b.m, &b.info, &err) == PITH_OK ? make_tokens(&b, n_rows)
                                                              : cli_fail(&err);
    if (!code)
        code = bench_all(&b);
    if (o->format[0] == 'j')
        puts(b.n_shown ? "\n]" : "[]");
    free(b.tokens);
    free(b.seq);
    pith_model_close(b.m);
    return code;
}

const struct command cmd_bench = {
    .name = "bench",
    .summary = "measure prefill and decode speed against the machine's limits",
    .args =
        {
            .command = "pith bench",
            .about = "Measures tokens per second of prefill (pp) and decode (tg), mean and "
                     "deviation, for "
                     "every combination of the lists, beside what the machine allows: its read "
                     "bandwidth "
                     "and arithmetic peaks are measured in the same run.",
            .example =
                "  pith bench model.gguf -p 512 -n 128 -d 0,8K\n"
                "  pith bench model.gguf -p 0 -n 64 -np 1,8,32 -t 1,2 -o json > bench.json\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
