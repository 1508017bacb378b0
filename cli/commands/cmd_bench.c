/* cmd_bench.c -- pith bench: how fast a model runs here, and how near that is to what the machine
 * allows.
 *
 *     limit of prefill   integer (for float weights: fma) peak / operations per token, the output
 *                        matrix counted once per prompt
 *     limit of decode    tokens of a step * read bandwidth / (weight bytes + cache bytes of all its
 *                        sequences); with many sequences the limit of prefill where that is lower
 *
 * Bandwidth and peaks are measured in the same run, with the same number of threads. Where all
 * products are one GPU's, its own copies are the bandwidth; its arithmetic is not measured, so
 * prefill has no limit, and neither has anything where several devices share the products. The
 * limit of a test of both is their time added up. With --ops the limit of an op is what its bytes
 * or its operations take on its device, whichever is more (on a GPU its bytes); only products and
 * attention have one, since what the others touch is mostly in the processor's caches.
 *
 * Joules per token are those of the whole processor packages during the measured runs, where the
 * system shows them (energy.c); else there is no such column.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <strings.h>

#include "cli/cli.h"
#include "cli/commands/energy.h"

struct opts {
    struct model_opts model;
    struct arg_ints prompt, predict, depth, threads, seqs;
    int64_t reps, n_batch;
    const char *format;
    int json, csv, md, ops, total;
};

/* dflt, or otherwise and a value that depends on the model */
#define LIST(flag, short_flag, member, low, high, by, standard, what)                              \
    {                                                                                              \
        .name = flag, .alias = short_flag, .meta = "N,...",                                        \
        ARG_FIELD(struct opts, member, ARG_INTS), .lo = low, .hi = high, .by = standard,           \
        .help = what                                                                               \
    }
/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    LIST("--prompt", "-p", prompt, 0, 1 << 24, otherwise,
         "512; of short encoders less", "tokens of a prefill test (pp); 0: none"),
    LIST("--predict", "-n", predict, 0, 1 << 24, otherwise,
         "128; of encoders none", "steps of a decode test (tg); 0: none"),
    LIST("--depth", "-d", depth, 0, 1 << 24, dflt, "0",
         "tokens that are in the context before a test"),
    LIST("--sequences", "-np", seqs, 1, 4096, dflt, "1", "sequences side by side"),
    {.name = "--threads", .alias = "-t", .meta = "N,...", ARG_FIELD(struct opts, threads, ARG_INTS),
     .lo = 1, .hi = 1024, .word = "auto", .otherwise = "the fast cores it may use",
     .help = "threads; auto: see pith run"},
    ARGS_MODEL_PLACES(struct opts, model),
    {.name = "--repeat", .alias = "-r", ARG_FIELD(struct opts, reps, ARG_INT), .lo = 1, .hi = 10000,
     .dflt = "5", .help = "measured runs of each test, after one that is not"},
    {.name = "--batch", .alias = "-b", ARG_FIELD(struct opts, n_batch, ARG_SIZE), .lo = 1,
     .hi = 1 << 16, .dflt = "512", .help = "most tokens in one step"},
    {.name = "--output", .alias = "-o", ARG_FIELD(struct opts, format, ARG_CHOICE),
     .choices = "text|md|json|csv", .dflt = "text",
     .help = "form of the results; json and csv also have the settings, the machine, the commit "
             "and cpu_tps, tokens per second of processor time of all threads"},
    {.name = "--json", ARG_FIELD(struct opts, json, ARG_SWITCH), .help = "as -o json"},
    {.name = "--csv", ARG_FIELD(struct opts, csv, ARG_SWITCH), .help = "as -o csv"},
    {.name = "--md", ARG_FIELD(struct opts, md, ARG_SWITCH), .help = "as -o md"},
    {.name = "--total", ARG_FIELD(struct opts, total, ARG_SWITCH),
     .help = "also prefill and decode in one run; always with several sequences"},
    {.name = "--ops", ARG_FIELD(struct opts, ops, ARG_SWITCH),
     .help = "where the time of each test goes, by kind of op and type of matrix"},
    ARGS_MODEL_CACHE(struct opts, model),
    {0},
};
/* clang-format on */

struct result {
    char test[64];
    int32_t n_threads, n_threads_prefill, n_seqs, n_prompt, n_gen;
    int64_t depth;
    double tps, tps_std, limit_tps;
    double cpu_tps; /* tokens per second of processor time, of all threads together */
    double joules;  /* per token; below 0: not known */
    json_t *ops; /* with --ops; see ops_between */
    struct pith_read_ahead ahead; /* of the measured runs; layers 0: there was nothing to ask for */
};

/* What is the same for all tests of a run. */
struct bench {
    const struct opts *o;
    pith_model *m;
    struct pith_model_info info;
    struct pith_machine machine;
    struct pith_machine roof; /* of what the products run on; 0: not known */
    char device[32];          /* its name; "": several */
    int32_t *tokens; /* [most rows of a step], random */
    int32_t *seq;
    int n_shown;
    int has_energy; /* the counters could be read at the start */
    struct energy energy;
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

static void puts_with(const char *text, const char *more)
{
    printf("%s%s\n", text, more);
}

/* A header, then rows, with the same columns; after a table of ops the header comes again. */
static void show_row(struct bench *b, const struct result *r, int md)
{
    const char *head = md ? "| model | type | threads | test | tokens/s | +- | limit | share |"
                          : "model                    type   threads  test                 tokens/s"
                            "       +-      limit   share";
    char joules[32] = "-";
    if (b->n_shown == 0 || b->o->ops || r->ahead.layers) {
        puts_with(head, b->has_energy ? md ? " J/token |" : "    J/token" : "");
        if (md)
            puts_with("|---|---|---:|---|---:|---:|---:|---:|", b->has_energy ? "---:|" : "");
    }
    printf(md ? "| %s | %s | %d | %s | %.2f | %.2f |" : "%-24.24s %-6s %7d  %-18s %10.2f %8.2f",
           model_name(b), b->info.type, r->n_gen ? r->n_threads : r->n_threads_prefill, r->test,
           r->tps, r->tps_std);
    if (r->limit_tps > 0)
        printf(md ? " %.1f | %.1f %% |" : " %10.1f %5.1f %%", r->limit_tps, 100 * share(r));
    else
        fputs(md ? " - | - |" : "          -       -", stdout);
    if (r->joules >= 0)
        snprintf(joules, sizeof joules, "%.4g", r->joules);
    if (b->has_energy)
        printf(md ? " %s |" : " %10s", joules);
    putchar('\n');
}

/* What the disk was asked for, where experts are in the file. */
static void show_ahead(const struct result *r)
{
    const struct pith_read_ahead *a = &r->ahead;
    if (!a->layers)
        return;
    printf("\n  experts in the file: %lld layers; matrices looked for %llu, not in memory %llu "
           "(%.1f MiB); experts guessed %llu, right %llu; layers too late for it %llu; "
           "ms of steps %.1f, beside them %.1f\n\n",
           (long long)a->layers, (unsigned long long)a->looked, (unsigned long long)a->asked,
           (double)a->asked_bytes / 1048576, (unsigned long long)a->guessed,
           (unsigned long long)a->right, (unsigned long long)a->late, 1e-6 * (double)a->step_ns,
           1e-6 * (double)a->thread_ns);
}

/* "-" where there is no figure. */
static void show_figure(const json_t *row, const char *key, double scale, const char *end)
{
    const json_t *v = json_object_get(row, key);
    if (json_is_number(v))
        printf("%8.1f%s", scale * json_number_value(v), end);
    else
        printf("%8s%s", "-", end);
}

static void show_ops(const json_t *ops, int md)
{
    size_t i;
    json_t *row;
    const char *bar = md ? " | " : "  ";
    puts(
        md ? "\n| op | weight | runs | ms | time % | GB/s | Gop/s | % of the limit | kernel |\n"
             "|---|---|---:|---:|---:|---:|---:|---:|---|"
           : "\n  op            weight     runs        ms    time %      GB/s     Gop/s   limit %  "
             "kernel");
    json_array_foreach(ops, i, row)
    {
        printf(md ? "| %s | %s | %lld | " : "  %-12s  %-6s %8lld  ",
               json_string_value(json_object_get(row, "op")),
               json_string_value(json_object_get(row, "weight")),
               (long long)json_integer_value(json_object_get(row, "runs")));
        show_figure(row, "ns", 1e-6, bar);
        show_figure(row, "time_share", 100, bar);
        show_figure(row, "gbs", 1, bar);
        show_figure(row, "gops", 1, bar);
        show_figure(row, "share", 100, bar);
        printf("%s%s%s\n", json_string_value(json_object_get(row, "kernel")),
               json_is_true(json_object_get(row, "fallback")) ? " FALLBACK" : "", md ? " |" : "");
    }
    putchar('\n');
}

static json_t *known(double x) /* null: it is not */
{
    return x > 0 ? json_real(x) : json_null();
}

/* What the flags say, or what stands where they say nothing. */
static const char *said(const char *flag, const char *otherwise)
{
    return flag ? flag : otherwise;
}

/* What was asked for, so that rows of several runs can be told apart. */
static void put_settings(json_t *row, const struct bench *b, const struct result *r)
{
    const struct model_opts *o = &b->o->model;
    char now[32];
    time_t t = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    json_object_set_new(row, "n_prompt", json_integer(r->n_prompt));
    json_object_set_new(row, "n_gen", json_integer(r->n_gen));
    json_object_set_new(row, "n_depth", json_integer((json_int_t)r->depth));
    json_object_set_new(row, "n_batch", json_integer((json_int_t)b->o->n_batch));
    json_object_set_new(row, "type_k", json_string(said(o->cache_k, "f16")));
    json_object_set_new(row, "type_v", json_string(said(o->cache_v, "f16")));
    json_object_set_new(row, "weights", json_string(said(o->weights, "auto")));
    json_object_set_new(row, "affinity", cli_json_text(said(o->threads.affinity, "none"),
                                                       strlen(said(o->threads.affinity, "none"))));
    json_object_set_new(row, "numa", json_string(said(o->threads.numa, "off")));
    json_object_set_new(row, "test_time", json_string(now));
}

static json_t *to_json(const struct bench *b, const struct result *r)
{
    char commit[64];
    commit_of(commit, sizeof commit);
    const struct pith_machine *h = &b->roof;
    const char *backend = *h->isa ? "cpu" : b->device; /* "vulkan0" is of "vulkan" */
    int n_backend = (int)strcspn(backend, "0123456789");
    /* clang-format off */
    json_t *row = json_pack("{s:s, s:s#, s:o, s:s, s:o, s:s, s:s, s:i, s:i, s:i, s:i,"
                     " s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:I, s:s}",
                     "test", r->test,
                     "backend", backend, n_backend,
                     "device", cli_json_text(h->cpu, strlen(h->cpu)),
                     "isa", h->isa,
                     "model", cli_json_text(model_name(b), strlen(model_name(b))),
                     "arch", b->info.arch,
                     "type", b->info.type,
                     "n_threads", r->n_threads,
                     "n_threads_prefill", r->n_threads_prefill,
                     "n_seqs", r->n_seqs,
                     "reps", (int)b->o->reps,
                     "tps", r->tps,
                     "tps_std", r->tps_std,
                     "cpu_tps", r->cpu_tps,
                     "limit_tps", known(r->limit_tps),
                     "share", known(share(r)),
                     "read_gbs", known(h->read_gbs),
                     "int8_gops", known(h->int8_gops),
                     "f32_gops", known(h->f32_gops),
                     "weight_bytes", (json_int_t)b->info.weight_bytes,
                     "commit", commit);
    /* clang-format on */
    put_settings(row, b, r);
    const struct {
        const char *key;
        uint64_t n;
    } ahead[] = {{"ahead_looked", r->ahead.looked},   {"ahead_asked", r->ahead.asked},
                 {"ahead_bytes", r->ahead.asked_bytes}, {"ahead_guessed", r->ahead.guessed},
                 {"ahead_right", r->ahead.right},     {"ahead_late", r->ahead.late}};
    for (size_t i = 0; r->ahead.layers && i < sizeof ahead / sizeof *ahead; i++)
        json_object_set_new(row, ahead[i].key, json_integer((json_int_t)ahead[i].n));
    if (b->has_energy)
        json_object_set_new(row, "joules_per_token",
                            r->joules >= 0 ? json_real(r->joules) : json_null());
    if (r->ops)
        json_object_set(row, "ops", r->ops);
    return row;
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
        show_row(b, r, b->o->format[0] == 'm');
        show_ahead(r);
        if (r->ops)
            show_ops(r->ops, b->o->format[0] == 'm');
    }
    fflush(stdout);
    b->n_shown++;
}

/* ---------------------------------------------------------------- ops */

/* The ops of the execution report; NULL: no memory. */
static json_t *report_ops(const pith_session *s)
{
    int64_t n = pith_report(s, 1, NULL, 0);
    char *text = n > 0 ? malloc((size_t)n + 1) : NULL;
    json_t *report = NULL, *ops = NULL;
    if (text && pith_report(s, 1, text, (size_t)n + 1) == n)
        report = json_loads(text, 0, NULL);
    if (report)
        ops = json_incref(json_object_get(report, "ops"));
    json_decref(report);
    free(text);
    return ops;
}

static double grown(const json_t *before, const json_t *after, const char *key)
{
    return json_number_value(json_object_get(after, key)) -
           json_number_value(json_object_get(before, key));
}

/* Share of a product or attention in what h allows, of the bandwidth or of the arithmetic,
 * whichever is more; of a GPU, whose arithmetic is not measured, of the bandwidth. *of: which;
 * NULL: h does not say, and the share is null. */
static json_t *share_of(double ns, double bytes, double ops, int is_float,
                        const struct pith_machine *h, const char **of)
{
    double gops = is_float ? h->f32_gops : h->int8_gops;
    double by_bytes = h->read_gbs > 0 ? bytes / h->read_gbs : 0, by_ops = gops > 0 ? ops / gops : 0;
    *of = by_ops > by_bytes ? "arithmetic" : by_bytes > 0 ? "bandwidth" : NULL;
    return *of ? json_real((by_bytes > by_ops ? by_bytes : by_ops) / ns) : json_null();
}

/* What a device allows that a row of the report names. */
static const struct pith_machine *roof_of(const struct bench *b, const char *device)
{
    static const struct pith_machine unknown;
    return !strcmp(device, b->device)    ? &b->roof
           : !strncmp(device, "CPU", 3) ? &b->machine
                                        : &unknown;
}

static void show_roof(const struct bench *b)
{
    if (b->o->format[0] != 'm' && b->o->format[0] != 't')
        return;
    if (b->roof.read_gbs > 0)
        printf("%s, %s: copies %.1f GB/s (read and written), the limit of decode; its arithmetic "
               "is not measured\n\n",
               b->device, b->roof.cpu, b->roof.read_gbs);
    else
        printf("%s: no limit is measured\n\n", *b->device ? b->device : b->roof.cpu);
}

/* What the session's products run on, and its roof. */
static pith_status find_roof(struct bench *b, const pith_session *s, struct pith_error *err)
{
    enum { MEASURE_MS = 250 };
    json_t *ops = report_ops(s), *row;
    char name[sizeof b->device] = "";
    size_t i;
    int n = 0;
    json_array_foreach(ops, i, row)
    {
        const char *device = json_string_value(json_object_get(row, "device"));
        if (!strstr(json_string_value(json_object_get(row, "op")), "matmul") ||
            !strcmp(device, name))
            continue;
        snprintf(name, sizeof name, "%s", device);
        n++;
    }
    json_decref(ops);
    if (n != 1)
        *name = 0;
    int is_new = !b->roof.size || strcmp(name, b->device) != 0;
    snprintf(b->device, sizeof b->device, "%s", name);
    if (!strncmp(name, "CPU", 3))
        b->roof = b->machine;
    if (!strncmp(name, "CPU", 3) || !is_new)
        return PITH_OK;
    b->roof = (struct pith_machine){.size = sizeof b->roof, .cpu = "several devices"};
    for (int32_t d = 0; *name && d < pith_n_devices(); d++) {
        struct pith_device_info info = PITH_DEVICE_INFO_INIT;
        if (pith_device_get(d, &info, NULL) != PITH_OK || strcmp(info.name, name))
            continue;
        pith_status st = pith_device_measure(d, MEASURE_MS, &b->roof, err);
        snprintf(b->roof.cpu, sizeof b->roof.cpu, "%.63s", *info.about ? info.about : name);
        if (st != PITH_OK && st != PITH_UNSUPPORTED)
            return st;
    }
    show_roof(b);
    return PITH_OK;
}

/* Rows of what was done between two reports of a session: op, weight, kernel, device, runs, ns,
 * time_share, bytes, operations, gbs, gops, share (of the limit; null where it means nothing),
 * share_of (which limit), fallback. Takes both. */
static json_t *ops_between(json_t *before, json_t *after, const struct bench *b)
{
    json_t *rows = json_array(), *a;
    double all = 0;
    size_t i;
    json_array_foreach(after, i, a) all += grown(json_array_get(before, i), a, "ns");
    json_array_foreach(after, i, a)
    {
        const json_t *was = json_array_get(before, i);
        const char *op = json_string_value(json_object_get(a, "op"));
        const char *weight = json_string_value(json_object_get(a, "weight"));
        double ns = grown(was, a, "ns"), bytes = grown(was, a, "bytes"), ops = grown(was, a, "ops");
        double runs = grown(was, a, "runs");
        if (runs <= 0 || ns <= 0)
            continue;
        int is_product = strstr(op, "matmul") != NULL, is_attn = !strcmp(op, "attn");
        int is_float = !is_product || !strcmp(weight, "f32") || !strcmp(weight, "f16") ||
                       !strcmp(weight, "bf16");
        const char *device = json_string_value(json_object_get(a, "device")), *of = NULL;
        json_t *part = is_product || is_attn
                           ? share_of(ns, bytes, ops, is_float, roof_of(b, device), &of)
                           : json_null();
        json_t *row = json_pack(
            "{s:s, s:s, s:O, s:s, s:I, s:f, s:f, s:I, s:I, s:f, s:f, s:o, s:s?, s:O}", "op", op,
            "weight", weight, "kernel", json_object_get(a, "kernel"), "device", device, "runs",
            (json_int_t)runs, "ns", ns, "time_share", ns / all, "bytes", (json_int_t)bytes,
            "operations", (json_int_t)ops, "gbs", bytes / ns, "gops", ops / ns, "share", part,
            "share_of", of, "fallback", json_object_get(a, "fallback"));
        json_array_append_new(rows, row);
    }
    json_decref(before);
    json_decref(after);
    return rows;
}

/* ---------------------------------------------------------------- one test */

/* Tokens per second that the machine allows: see the top. 0: it is not known. */
static double limit_of(const struct bench *b, const pith_session *s, int is_prefill, int32_t n_seqs,
                       int32_t n, int64_t depth)
{
    const char *type = b->info.type;
    int is_float =
        !strcasecmp(type, "f32") || !strcasecmp(type, "f16") || !strcasecmp(type, "bf16");
    double gops = is_float ? b->roof.f32_gops : b->roof.int8_gops;
    double ops = (double)b->info.token_ops;
    if (is_prefill) /* one row in n goes through the output matrix */
        ops -= (double)b->info.output_ops * (1 - 1.0 / n);
    double by_ops = ops > 0 ? 1e9 * gops / ops : 0;
    if (is_prefill)
        return by_ops;
    double bytes = (double)b->info.token_bytes + n_seqs * (double)pith_cache_bytes(s, depth);
    double by_bytes = bytes > 0 ? n_seqs * 1e9 * b->roof.read_gbs / bytes : 0;
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

/* What a test does for each sequence: p tokens at once, then n steps of one. */
struct work {
    int32_t p, n;
    int64_t depth;
};

static pith_status run_once(struct bench *b, pith_session *s, int32_t n_seqs, struct work w,
                            struct pith_error *err)
{
    pith_status st = w.p ? feed(b, s, n_seqs, w.p, err) : PITH_OK;
    for (int32_t i = 0; i < w.n && st == PITH_OK; i++)
        st = feed(b, s, n_seqs, 1, err);
    return st;
}

/* Seconds that processors have worked for the process. */
static double processor_seconds(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What grew in *now since *before. */
static struct pith_read_ahead ahead_between(const struct pith_read_ahead *before,
                                            const struct pith_read_ahead *now)
{
    struct pith_read_ahead d = *now;
    d.looked -= before->looked;
    d.asked -= before->asked;
    d.asked_bytes -= before->asked_bytes;
    d.guessed -= before->guessed;
    d.right -= before->right;
    d.late -= before->late;
    d.step_ns -= before->step_ns;
    d.thread_ns -= before->thread_ns;
    return d;
}

static pith_status measure(struct bench *b, pith_session *s, struct work w, struct result *r,
                           struct pith_error *err)
{
    enum { WARM_PREFILL = 512, WARM_DECODE = 8 };
    struct work warm = {w.p < WARM_PREFILL ? w.p : WARM_PREFILL,
                        w.n < WARM_DECODE ? w.n : WARM_DECODE, w.depth};
    double sum = 0, squares = 0, cpu = 0, all = (double)(w.p + w.n) * r->n_seqs;
    pith_status st = run_once(b, s, r->n_seqs, warm, err);
    json_t *before = b->o->ops ? report_ops(s) : NULL;
    struct pith_read_ahead was = PITH_READ_AHEAD_INIT, now = PITH_READ_AHEAD_INIT;
    if (st == PITH_OK)
        st = pith_session_read_ahead(s, &was, err);
    b->energy.joules = 0;
    for (int64_t i = 0; i < b->o->reps && st == PITH_OK; i++) {
        st = rewind_to(s, r->n_seqs, w.depth, err);
        energy_begin(&b->energy);
        double began = cli_seconds(), worked = processor_seconds();
        if (st == PITH_OK)
            st = run_once(b, s, r->n_seqs, w, err);
        double tps = all / (cli_seconds() - began);
        cpu += processor_seconds() - worked;
        energy_end(&b->energy);
        sum += tps;
        squares += tps * tps;
    }
    if (before)
        r->ops = ops_between(before, report_ops(s), b);
    if (st == PITH_OK && (st = pith_session_read_ahead(s, &now, err)) == PITH_OK)
        r->ahead = ahead_between(&was, &now);
    if (st == PITH_OK)
        st = rewind_to(s, r->n_seqs, w.depth, err);
    double reps = (double)b->o->reps, spread = squares - sum * sum / reps;
    r->tps = sum / reps;
    r->cpu_tps = cpu > 0 ? all * reps / cpu : 0;
    r->joules = b->energy.n ? b->energy.joules / (all * reps) : -1;
    r->tps_std = reps > 1 && spread > 0 ? sqrt(spread / (reps - 1)) : 0;
    double limit = w.p ? limit_of(b, s, 1, r->n_seqs, w.p, w.depth) : 0;
    double seconds = limit > 0 ? w.p * r->n_seqs / limit : 0;
    int is_known = !w.p || limit > 0;
    /* A decode test of n steps is behind depth + p + n / 2 positions on average. */
    limit = w.n ? limit_of(b, s, 0, r->n_seqs, w.n, w.depth + w.p + w.n / 2) : 0;
    seconds += limit > 0 ? w.n * r->n_seqs / limit : 0;
    is_known &= !w.n || limit > 0;
    r->limit_tps = is_known && seconds > 0 ? all / seconds : 0;
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

/* The most tokens of a sequence that one step takes: a whole prompt, or a piece of the depth. */
static int64_t most_rows(const struct opts *o)
{
    enum { PIECE = 512 };
    int64_t p = largest(&o->prompt), depth = largest(&o->depth);
    int64_t piece = depth < PIECE ? depth : PIECE;
    return p > piece ? p : piece > 1 ? piece : 1;
}

/* "pp512", "tg128@d8192x32", "pp512+tg128x4": what, how much, behind what, of how many sequences.
 */
static void name_test(struct result *r, struct work w)
{
    char pp[16] = "", tg[16] = "", at[16] = "", times[16] = "";
    if (w.p)
        snprintf(pp, sizeof pp, "pp%d", w.p);
    if (w.n)
        snprintf(tg, sizeof tg, "%stg%d", w.p ? "+" : "", w.n);
    if (w.depth)
        snprintf(at, sizeof at, "@d%d", (int)w.depth);
    if (r->n_seqs > 1)
        snprintf(times, sizeof times, "x%d", r->n_seqs);
    snprintf(r->test, sizeof r->test, "%s%s%s%s", pp, tg, at, times);
}

static pith_status run_test(struct bench *b, pith_session *s, struct result r, struct work w,
                            struct pith_error *err)
{
    name_test(&r, w);
    r.n_prompt = w.p;
    r.n_gen = w.n;
    r.depth = w.depth;
    pith_status st = measure(b, s, w, &r, err);
    if (st == PITH_OK)
        show(b, &r);
    json_decref(r.ops);
    return st;
}

/* All prefill tests, all decode tests, all pairs of them. */
static pith_status run_tests(struct bench *b, pith_session *s, const struct result *r,
                             int64_t depth, struct pith_error *err)
{
    const struct arg_ints *p = &b->o->prompt, *n = &b->o->predict;
    pith_status st = PITH_OK;
    for (int i = 0; i < p->n && st == PITH_OK; i++)
        if (p->v[i])
            st = run_test(b, s, *r, (struct work){(int32_t)p->v[i], 0, depth}, err);
    for (int i = 0; i < n->n && st == PITH_OK; i++)
        if (n->v[i])
            st = run_test(b, s, *r, (struct work){0, (int32_t)n->v[i], depth}, err);
    for (int i = 0; i < p->n * n->n && st == PITH_OK && (b->o->total || r->n_seqs > 1); i++) {
        struct work w = {(int32_t)p->v[i / n->n], (int32_t)n->v[i % n->n], depth};
        if (w.p && w.n)
            st = run_test(b, s, *r, w, err);
    }
    return st;
}

/* All tests with one number of threads, sequences and depth. */
static int bench_session(struct bench *b, int32_t n_threads, int32_t n_seqs, int64_t depth)
{
    int code = CLI_OK;
    struct pith_error err = {0};
    struct pith_session_params params = PITH_SESSION_PARAMS_INIT;
    int64_t p = largest(&b->o->prompt), n = largest(&b->o->predict);
    params.n_seq = n_seqs;
    params.n_threads = n_threads;
    params.n_threads_prefill = (int32_t)b->o->model.threads.n_prefill;
    if (b->info.causal) /* one that pools would take sequences whole */
        params.pooling = PITH_POOL_NONE;
    pith_session *s =
        cli_session_open(b->m, &b->o->model, (int32_t)(depth + p + n), &params, &code);
    if (!s && depth + p + n > b->info.n_ctx_train)
        cli_say(CLI_OK, "-d, -p and -n ask for %lld positions of each sequence",
                (long long)(depth + p + n));
    if (!s)
        return code;
    interrupt_watch(s);
    pith_profile(s, b->o->ops);
    pith_status st = find_roof(b, s, &err);
    /* The depth is filled in pieces that b->tokens has room for. */
    int64_t piece = most_rows(b->o);
    for (int64_t at = 0; at < depth && st == PITH_OK; at += piece)
        st = feed(b, s, n_seqs, (int32_t)(depth - at < piece ? depth - at : piece), &err);
    struct result r = {.n_threads = n_threads,
                       .n_threads_prefill =
                           params.n_threads_prefill ? params.n_threads_prefill : n_threads,
                       .n_seqs = n_seqs};
    if (st == PITH_OK)
        st = run_tests(b, s, &r, depth, &err);
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
        int64_t n = o->threads.v[t], n_prefill = o->model.threads.n_prefill;
        if (pith_machine_measure((int32_t)(n > n_prefill ? n : n_prefill), MEASURE_MS, &b->machine,
                                 &err) != PITH_OK)
            return cli_fail(&err);
        if (o->format[0] == 'm' || o->format[0] == 't')
            printf("%s%s, %s, %d threads: reads %.1f GB/s, int8 %.0f Gop/s, f32 %.0f Gop/s\n\n",
                   b->n_shown ? "\n" : "", b->machine.cpu, b->machine.isa, b->machine.n_threads,
                   b->machine.read_gbs, b->machine.int8_gops, b->machine.f32_gops);
        for (int s = 0; s < o->seqs.n && !code; s++) {
            for (int d = 0; d < o->depth.n && !code; d++)
                code = bench_session(b, (int32_t)n, (int32_t)o->seqs.v[s], o->depth.v[d]);
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

/* Can the tests be run of this model? Of one that takes its text whole, prefill alone; pp, tg:
 * prefill and decode tests were asked for. */
static int check_model(const struct bench *b, struct opts *o, int pp, int tg, int32_t n_batch)
{
    const char *path = o->model.path;
    int32_t most = b->info.n_ctx_train;
    if (!pp && !b->info.causal && most > 0 && most < o->prompt.v[0])
        o->prompt.v[0] = most;
    int64_t rows = largest(&o->prompt) * largest(&o->seqs);
    if (b->info.encoder)
        return cli_say(CLI_INPUT,
                       "%s has an encoder beside its decoder; wanted a model without one",
                       path);
    if (b->info.causal)
        return CLI_OK;
    int deep = largest(&o->depth) > 0;
    if (deep || (tg && largest(&o->predict)) || !rows)
        return cli_say(CLI_INPUT, "-%c: %s takes a text whole; -p alone measures it",
                       deep ? 'd' : 'n', path);
    if (rows > n_batch)
        return cli_say(CLI_INPUT, "-b is %d: %s takes a text whole; wanted %lld (-p times -np)",
                       n_batch, path, (long long)rows);
    if (largest(&o->predict))
        cli_say(CLI_OK, "%s takes a text whole: decode tests (tg) are left out", path);
    o->predict.n = 0;
    return CLI_OK;
}

static int run(void *opts)
{
    struct opts *o = opts;
    struct bench b = {.o = o, .info = {.size = sizeof b.info}};
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {0};
    int code, pp = o->prompt.n, tg = o->predict.n;
    if (!pp)
        o->prompt.v[o->prompt.n++] = 512;
    if (!tg)
        o->predict.v[o->predict.n++] = 128;
    int64_t p = largest(&o->prompt), n = largest(&o->predict), n_seqs = largest(&o->seqs);
    int64_t n_rows = n_seqs * most_rows(o);
    if (p == 0 && n == 0)
        return cli_say(CLI_USE, "-p 0 and -n 0 leave nothing to measure");
    if (o->json + o->csv + o->md > 1)
        return cli_say(CLI_USE, "--json, --csv and --md: one of them");
    const char *short_form = o->json ? "json" : o->csv ? "csv" : o->md ? "md" : o->format;
    if (strcmp(o->format, "text") != 0 && strcmp(o->format, short_form) != 0)
        return cli_say(CLI_USE, "found -o %s and --%s; wanted one of them", o->format, short_form);
    o->format = short_form;
    if (o->ops && o->format[0] == 'c')
        return cli_say(CLI_USE, "--ops does not fit into csv; use --json or --md");
    if (n_rows > INT32_MAX || largest(&o->depth) + p + n > INT32_MAX)
        return cli_say(CLI_USE, "-p, -d and -np ask for more tokens than 2^31");
    params.n_batch = (int32_t)(o->n_batch > n_seqs ? o->n_batch : n_seqs);
    params.n_outputs = n_seqs > 64 ? (int32_t)n_seqs : 0;
    params.weights = PITH_WEIGHTS_PACKED; /* not while we measure */
    o->model.ctx_of_tests = 1;
    code = resolve_threads(o);
    if (code)
        return code;
    energy_open(&b.energy);
    b.has_energy = b.energy.n > 0;
    b.m = cli_model_open(&o->model, &params, &code);
    if (!b.m)
        return code;
    code = pith_model_get_info(b.m, &b.info, &err) == PITH_OK ? make_tokens(&b, n_rows)
                                                              : cli_fail(&err);
    if (!code)
        code = check_model(&b, o, pp, tg, params.n_batch);
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
                     "and arithmetic peaks are measured in the same run. Joules per token (of the "
                     "whole processors) are shown where the system lets the program read them.",
            .example =
                "  pith bench model.gguf -p 512 -n 128 -d 0,8K\n"
                "  pith bench model.gguf -p 0 -n 64 -np 1,8,32 -t 1,2 -o json > bench.json\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
