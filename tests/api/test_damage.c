/* test_damage.c -- model files damaged in every way we can think of, through the public API: each
 * is opened and, if it loads, run for a few tokens. Wanted is an error that says why, or a load;
 * never a crash, memory that stays held, more than 256 MiB or more than 2 s.
 *
 * A batch of cases runs in a child process, so that a crash costs one case, names it, and leaves
 * its file behind; the child then starts again behind it. A case is a number: the damage is
 * computed from it, so TEST_ONLY and the number in a message bring it back. */
#include "findings.h"
#include "robust.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "base/rng.h"

#define MEMORY_MAX  ((uint64_t)256 << 20)
#define SECONDS_MAX 2.0
#define HANG_MAX    60 /* s of wall time, on a machine that does other things too */

/* Small enough that the file stays below 40 KB; K-quants need rows of 256. */
static const struct tiny tinies[] = {
    {"llama", "f32", 16, 2, 8, 16, 24, 0, 0, 2, 1},
    {"llama", "q8_0", 32, 2, 16, 32, 300, 0, 0, 1, 1},
    {"llama", "q4_0", 32, 2, 16, 32, 24, 0, 0, 2, 1},
    {"llama", "q6_K", 256, 1, 8, 16, 16, 0, 1, 1, 1},
    {"llama", "f16", 32, 2, 16, 32, 24, 4, 0, 1, 1},
    {"llama-embed", "q5_1", 32, 2, 16, 32, 24, 0, 0, 1, 1},
    {"qwen2", "f16", 32, 2, 16, 32, 24, 0, 0, 1, 1},
    {"qwen3", "q4_1", 32, 2, 16, 32, 24, 0, 1, 1, 1},
    {"qwen3moe", "q8_0", 32, 2, 16, 32, 24, 4, 0, 1, 1},
    {"gemma2", "bf16", 32, 2, 16, 32, 24, 0, 0, 2, 1},
    {"gemma3", "q4_K", 256, 1, 8, 16, 16, 0, 1, 1, 1},
    {"qwen3", "q5_K", 256, 1, 8, 16, 16, 0, 1, 1, 1},
    {"mamba", "f32", 16, 2, 8, 16, 24, 0, 0, 2, 1},
    {"mamba2", "q8_0", 32, 2, 16, 32, 24, 0, 1, 1, 1},
    {"jamba", "f16", 16, 2, 8, 16, 24, 2, 0, 2, 1},
    {"granitehybrid", "q4_0", 32, 2, 16, 32, 24, 2, 0, 2, 1},
    {"rwkv7", "bf16", 16, 2, 8, 16, 24, 0, 0, 2, 1},
};
enum { N_TINIES = sizeof tinies / sizeof tinies[0] };

/* The undamaged model that the cases of this moment start from. */
static struct {
    char name[64], path[256], damaged[256];
    uint8_t *p;
    size_t n, head; /* bytes before the first tensor's data */
    uint64_t *edge; /* begins and ends of tensors */
    long n_edges;
    char (*keys)[128];
    long n_keys;
} good;

struct damage {
    uint8_t *p; /* room for 2 * good.n + 64 */
    size_t n;
    char spec[256]; /* an override, "" for none */
    char label[160];
};

/* ---------------------------------------------------------------- one case */

static struct report { /* shared with the children */
    long at, n_cases, n_loaded, n_ran;
    double worst_s;
    uint64_t worst_bytes;
    long worst_rss; /* KiB, of a child */
} * report;

static void use_text(const pith_model *m)
{
    static const char text[] = "a \xe2\x96\x81w7 b\xff<s>";
    struct pith_error err;
    int32_t ids[64];
    char buf[256];
    int64_t n = pith_tokenize(m, text, sizeof text - 1, PITH_ADD_SPECIAL | PITH_PARSE_SPECIAL, ids,
                              64, &err);
    if (n < 0)
        check_message("tokenize", PITH_OK, &err);
    else if (pith_detokenize(m, ids, (size_t)(n < 64 ? n : 64), PITH_RENDER_SPECIAL, buf,
                             sizeof buf, &err) < 0)
        check_message("detokenize", PITH_OK, &err);
    pith_model_meta(m, "general.name", buf, sizeof buf);
}

static void use_session(const pith_model *m, pith_session *s)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    pith_model_get_info(m, &info, NULL);
    int32_t v = info.n_vocab, ids[3] = {1 % v, v - 1, v / 2};
    pith_status st = pith_feed(s, 0, ids, 3, &err);
    if (st != PITH_OK) {
        check_message("feed", st, &err);
        return;
    }
    report->n_ran++;
    const float *out = info.causal ? pith_logits(s, 0) : pith_embedding(s, 0);
    if (pith_n_outputs(s) != 1 || (!out && !pith_embedding(s, 0)))
        bad("no output after a step that went well");
    char text[64];
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    p.tokens = ids;
    p.n_tokens = 2;
    p.n_max = 2;
    p.ignore_eog = 1;
    p.text = text;
    p.text_cap = sizeof text;
    st = pith_generate(s, &p, &r, &err);
    if (st != PITH_OK)
        check_message("generate", st, &err);
}

/* Case i also takes its turn with every way to open a model. */
static void run_case(long i, const struct damage *d)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    const char *overrides[2] = {d->spec, NULL};
    double cpu = test_cpu_seconds();
    mp.n_threads = i % 8 == 7 ? 2 : 1;
    mp.weights = (pith_weights)(i % 3);
    mp.check_tensors = i % 5 == 0;
    mp.reference = i % 7 == 0;
    mp.vocab_only = i % 23 == 0;
    mp.overrides = d->spec[0] ? overrides : NULL;
    if (!file_put(good.damaged, d->p, d->n)) {
        bad("cannot write the file");
        return;
    }
    pith_model *m = pith_model_open(good.damaged, &mp, &err);
    if (!m) {
        check_message("open", PITH_OK, &err);
        if (err.code == PITH_INTERNAL)
            bad("open: internal error: %s", err.msg);
    } else {
        report->n_loaded++;
        use_text(m);
        pith_session *s = pith_session_open(m, NULL, &err);
        if (s)
            use_session(m, s);
        else
            check_message("session", PITH_OK, &err);
        if (memory_held() > report->worst_bytes)
            report->worst_bytes = memory_held();
        pith_session_close(s);
        pith_model_close(m);
    }
    cpu = test_cpu_seconds() - cpu;
    report->worst_s = cpu > report->worst_s ? cpu : report->worst_s;
    if (cpu > SECONDS_MAX)
        bad("took %.1f s", cpu);
    if (atomic_load(&hook.blocks) || memory_held())
        bad("%ld blocks, %" PRIu64 " bytes are still held", atomic_load(&hook.blocks),
            memory_held());
    if (atomic_exchange(&hook.over, 0))
        bad("asked for more than 256 MiB");
}

/* ---------------------------------------------------------------- batches */

static long count_lines(const char *path)
{
    FILE *f = fopen(path, "r");
    long n = 0;
    for (int c; f && (c = fgetc(f)) != EOF;)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

static long count_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    long n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* The child: cases [from, n), one after the other. */
static void run_cases(long from, long n, void (*make)(long, struct damage *))
{
    struct damage d = {.p = malloc(2 * good.n + 64)};
    long maps = 0, files = 0;
    for (long i = from; i < n && d.p; i++) {
        memcpy(d.p, good.p, good.n);
        d.n = good.n;
        d.spec[0] = 0;
        make(i, &d);
        report->at = i;
        snprintf(findings->label, sizeof findings->label, "%.48s: %.100s", good.name, d.label);
        alarm(HANG_MAX);
        run_case(i, &d);
        report->n_cases++;
        if (i == from + 8) { /* warm: what stays from here on is a leak */
            maps = count_lines("/proc/self/maps");
            files = count_files();
        }
    }
    alarm(0);
    snprintf(findings->label, sizeof findings->label, "%.48s", good.name);
    if (n - from > 16 && !UNDER_SANITIZER && count_lines("/proc/self/maps") > maps + 16)
        bad("%ld mappings after the last case, %ld before", count_lines("/proc/self/maps"), maps);
    if (n - from > 16 && count_files() > files)
        bad("%ld open files after the last case, %ld before", count_files(), files);
    free(d.p);
}

/* Runs cases 0..n-1, in as many children as it takes. */
static void batch(long n, void (*make)(long, struct damage *))
{
    memset(report, 0, sizeof *report);
    for (long from = 0; from < n;) {
        struct rusage use;
        int status;
        report->at = from;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            run_cases(from, n, make);
            exit(0); /* through the leak checker of a sanitizer */
        }
        REQUIRE(pid > 0 && wait4(pid, &status, 0, &use) == pid, "no child process");
        report->worst_rss = use.ru_maxrss > report->worst_rss ? use.ru_maxrss : report->worst_rss;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
        tmp_keep = 1;
        const char *how =
            WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hangs" : "ends the program";
        test_fail(__FILE__, __LINE__, "case %ld, %s, %s (%s %d); the file is %s", report->at,
                  findings->label, how, WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), good.damaged);
        if (test_bad > 3)
            break;
        from = report->at + 1;
    }
    findings_tell();
    CHECK_MSG(UNDER_SANITIZER || (uint64_t)report->worst_rss << 10 <= MEMORY_MAX,
              "%ld KiB resident", report->worst_rss);
    if (getenv("TEST_VERBOSE"))
        printf("  %-18s %6ld cases, %6ld loaded, %6ld ran; worst %.3f s, %" PRIu64
               " KiB held, %ld KiB resident\n",
               good.name, report->n_cases, report->n_loaded, report->n_ran, report->worst_s,
               report->worst_bytes >> 10, report->worst_rss);
}

/* ---------------------------------------------------------------- the good file */

static int good_open(const struct tiny *t)
{
    struct pith_error err;
    const char *path = tiny_write(t, 1);
    if (!path)
        return 0;
    snprintf(good.name, sizeof good.name, "%s", tiny_name(t));
    snprintf(good.path, sizeof good.path, "%s", path);
    snprintf(good.damaged, sizeof good.damaged, "%s/damaged.gguf", tmp_dir);
    good.p = file_bytes(path, &good.n);
    pith_file *f = pith_file_open(path, &err);
    if (!good.p || !f) {
        test_fail(__FILE__, __LINE__, "%s cannot be read back", path);
        pith_file_close(f);
        return 0;
    }
    CHECK_MSG(good.n <= 40000, "%s has %zu bytes, wanted at most 40000", good.name, good.n);
    int64_t n = pith_file_n_tensors(f);
    good.head = good.n;
    good.edge = malloc((size_t)n * 2 * sizeof *good.edge);
    good.n_edges = 0;
    for (int64_t i = 0; i < n; i++) {
        struct pith_tensor_info info = PITH_TENSOR_INFO_INIT;
        pith_file_tensor(f, i, &info);
        good.edge[good.n_edges++] = info.offset;
        good.edge[good.n_edges++] = info.offset + info.bytes;
        good.head = info.offset < good.head ? info.offset : good.head;
    }
    good.n_keys = 0;
    good.keys = malloc((size_t)pith_file_n_keys(f) * sizeof *good.keys);
    for (int64_t i = 0; i < pith_file_n_keys(f); i++)
        snprintf(good.keys[good.n_keys++], sizeof good.keys[0], "%s", pith_file_key(f, i));
    pith_file_close(f);
    return 1;
}

static void good_close(void)
{
    free(good.p);
    free(good.edge);
    free(good.keys);
    memset(&good, 0, sizeof good);
}

/* fn for every model, or for one in `every` of them when the run is a quick one. */
static void each_model(void (*fn)(void), int every)
{
    for (int i = 0; i < N_TINIES; i++) {
        if (test_scale() < 10 && i % every)
            continue;
        if (good_open(&tinies[i]))
            fn();
        good_close();
    }
}

static long scaled(long quick, long full, long soak)
{
    return test_scale() >= 100 ? soak : test_scale() >= 10 ? full : quick;
}

/* ---------------------------------------------------------------- truncation */

static long head_stride;

static void cut_head(long i, struct damage *d)
{
    d->n = (size_t)(i * head_stride);
    snprintf(d->label, sizeof d->label, "cut to %zu bytes of header and tables", d->n);
}

static void cut_edge(long i, struct damage *d)
{
    uint64_t at = good.edge[i / 3] + (uint64_t)(i % 3) - 1;
    d->n = at < good.n ? (size_t)at : good.n;
    snprintf(d->label, sizeof d->label, "cut to %zu bytes, at a tensor's edge", d->n);
}

static void cut_anywhere(long i, struct damage *d)
{
    struct rng r;
    rng_init(&r, (uint64_t)i * 2 + 1);
    d->n = rng_below(&r, (uint32_t)good.n);
    snprintf(d->label, sizeof d->label, "cut to %zu bytes", d->n);
}

static void cut_batches(void)
{
    head_stride = scaled(40, 1, 1);
    batch((long)good.head / head_stride + 1, cut_head);
    batch(good.n_edges * 3, cut_edge);
    batch(scaled(40, 300, 1000), cut_anywhere);
}

static void truncated(void)
{
    each_model(cut_batches, 2);
}

/* ---------------------------------------------------------------- mutation */

static uint64_t odd_number(struct rng *r)
{
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   3,
                                   31,
                                   32,
                                   33,
                                   255,
                                   256,
                                   65535,
                                   65536,
                                   INT32_MAX,
                                   1ull << 31,
                                   UINT32_MAX,
                                   1ull << 32,
                                   INT64_MAX,
                                   1ull << 63,
                                   UINT64_MAX,
                                   UINT64_MAX - 31,
                                   0x7fc00000,
                                   0x7f800000,
                                   0xff800000,
                                   0x7f7fffff};
    enum { N = sizeof odd / sizeof odd[0] };
    uint32_t n = rng_below(r, N + 4);
    return n < N ? odd[n] : ((uint64_t)rng_u32(r) << 32 | rng_u32(r)) >> rng_below(r, 64);
}

/* One random change; most of them in front of the data, where there is structure. */
static void mutate(struct damage *d, struct rng *r)
{
    if (d->n < 64)
        return;
    size_t range = rng_below(r, 10) < 7 && good.head < d->n ? good.head : d->n;
    size_t at = rng_below(r, (uint32_t)range), left = d->n - at;
    size_t n = 1 + rng_below(r, 16), from = rng_below(r, (uint32_t)d->n);
    uint64_t v = odd_number(r);
    n = n < left ? n : left;
    switch (rng_below(r, 8)) {
    case 0:
        d->p[at] ^= (uint8_t)(1u << rng_below(r, 8));
        break;
    case 1:
        d->p[at] = (uint8_t)v;
        break;
    case 2:
        memcpy(d->p + at, &v, left < 4 ? left : 4);
        break;
    case 3:
        memcpy(d->p + at, &v, left < 8 ? left : 8);
        break;
    case 4: /* copy */
        n = n < d->n - from ? n : d->n - from;
        memmove(d->p + at, d->p + from, n);
        break;
    case 5: /* cut out */
        memmove(d->p + at, d->p + at + n, left - n);
        d->n -= n;
        break;
    case 6: /* put in */
        if (d->n + n > 2 * good.n)
            break;
        memmove(d->p + at + n, d->p + at, left);
        d->n += n;
        break;
    default: /* a small step up or down */
        d->p[at] = (uint8_t)(d->p[at] + (rng_below(r, 2) ? 1 : -1));
    }
}

static void mutation(long i, struct damage *d)
{
    struct rng r;
    rng_init(&r, 0x9e3779b9u + (uint64_t)i * 1000003u);
    int n = 1 + (int)rng_below(&r, 4);
    for (int k = 0; k < n; k++)
        mutate(d, &r);
    snprintf(d->label, sizeof d->label, "mutation %ld", i);
}

/* Only the weights: everything loads, and the kernels meet any number. */
static void wild_weights(long i, struct damage *d)
{
    struct rng r;
    rng_init(&r, 77 + (uint64_t)i);
    for (int k = 0; k < 40; k++) {
        size_t at = good.head + rng_below(&r, (uint32_t)(good.n - good.head));
        uint64_t v = odd_number(&r);
        memcpy(d->p + at, &v, good.n - at < 4 ? good.n - at : 4);
    }
    if (i % 4 == 0)
        memset(d->p + good.head, i % 8 ? 0xff : 0x7f, good.n - good.head);
    snprintf(d->label, sizeof d->label, "wild weights %ld", i);
}

static void mutation_batches(void)
{
    batch(scaled(40, 400, 10000), mutation);
    batch(scaled(25, 100, 2500), wild_weights);
}

static void mutated(void)
{
    each_model(mutation_batches, 2);
}

/* ---------------------------------------------------------------- keys that lie */

static const char *const lies[] = {"int:0",
                                   "int:1",
                                   "int:2",
                                   "int:3",
                                   "int:7",
                                   "int:64",
                                   "int:1000",
                                   "int:4096",
                                   "int:65536",
                                   "int:1048576",
                                   "int:2147483647",
                                   "int:4294967295",
                                   "int:-1",
                                   "int:9223372036854775807",
                                   "int:-9223372036854775808",
                                   "float:0",
                                   "float:-1",
                                   "float:0.5",
                                   "float:1e-30",
                                   "float:1e30",
                                   "float:1e308",
                                   "float:nan",
                                   "float:inf",
                                   "bool:true",
                                   "bool:false",
                                   "str:",
                                   "str:x",
                                   "str:llama",
                                   "str:yarn",
                                   "str:gpt2",
                                   "str:bert"};
/* Keys a synthetic file does not have, behind the architecture's name or whole. */
static const char *const more_keys[] = {"rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.yarn_beta_fast",
                                        "rope.scaling.yarn_beta_slow",
                                        "rope.scaling.yarn_ext_factor",
                                        "rope.scaling.yarn_attn_factor",
                                        "rope.scaling.attn_factor",
                                        "rope.freq_base_swa",
                                        "attention.sliding_window",
                                        "attention.sliding_window_pattern",
                                        "attn_logit_softcapping",
                                        "final_logit_softcapping",
                                        "attention.causal",
                                        "pooling_type",
                                        "expert_count",
                                        "expert_used_count",
                                        "expert_feed_forward_length",
                                        "attention.key_length",
                                        "attention.value_length"};
static const char *const token_keys[] = {"tokenizer.ggml.pre",
                                         "tokenizer.ggml.add_bos_token",
                                         "tokenizer.ggml.add_eos_token",
                                         "tokenizer.ggml.unknown_token_id",
                                         "tokenizer.ggml.eot_token_id",
                                         "tokenizer.ggml.add_space_prefix",
                                         "tokenizer.ggml.precompiled_charsmap",
                                         "tokenizer.ggml.token_type_count",
                                         "general.alignment"};
enum {
    N_LIES = sizeof lies / sizeof lies[0], /* 31 */
    N_MORE = sizeof more_keys / sizeof more_keys[0],
    N_TOKEN = sizeof token_keys / sizeof token_keys[0]
};

static long lie_stride;

static void lie(long i, struct damage *d)
{
    char arch[32];
    i *= lie_stride;
    long k = i / N_LIES;
    snprintf(arch, sizeof arch, "%.*s", (int)(strrchr(good.name, '-') - good.name), good.name);
    if (k < good.n_keys)
        snprintf(d->spec, sizeof d->spec, "%s=%s", good.keys[k], lies[i % N_LIES]);
    else if (k < good.n_keys + N_MORE)
        snprintf(d->spec, sizeof d->spec, "%s.%s=%s", arch, more_keys[k - good.n_keys],
                 lies[i % N_LIES]);
    else
        snprintf(d->spec, sizeof d->spec, "%s=%s", token_keys[k - good.n_keys - N_MORE],
                 lies[i % N_LIES]);
    snprintf(d->label, sizeof d->label, "%.150s", d->spec);
}

static void lie_batches(void)
{
    lie_stride = scaled(7, 1, 1); /* no divisor of N_LIES: every key and every lie is met */
    batch((good.n_keys + N_MORE + N_TOKEN) * N_LIES / lie_stride, lie);
}

static void lying_keys(void)
{
    each_model(lie_batches, 3);
}

int main(void)
{
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED || !findings_make())
        return 1;
    hook_install();
    atomic_store(&hook.limit, MEMORY_MAX);
    tmp_make();
    TEST(truncated);
    TEST(mutated);
    TEST(lying_keys);
    return test_end();
}
