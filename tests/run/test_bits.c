/* test_bits.c -- the law of numerics: a token's logits are the same bits whatever happens around
 * it. Through the public API, by memcmp.
 *
 * A *subject* is a model, a cache type and a row of tokens. Its logits are recorded once: one
 * thread, one device, packed weights, everything in one step. Then it is opened in every *way*
 * (threads, logical devices, levels of the processor, plain C reference, mapped weights, unfused
 * plan, small steps), and in each way driven by some of the *drivers*:
 *
 *     chunks of 1, 7, 64, all       a random choice of outputs       the last output of each feed
 *     in a batch of other sequences, rows in scrambled order, with a twin of its own
 *     after reuse of a prefix, after truncation, after copies that diverge (pages are shared, then
 *     copied), after calls that were refused or cancelled
 *
 * Every driver feeds a session that the one before left dirty. Each way takes a driver, at
 * TEST_SCALE=100 three, others with each subject, so that together they see every pair. TEST_SEED
 * chooses other random numbers, TEST_ONLY one test. When a way differs, the first op whose result
 * differs is named.
 *
 * What all ways do alike is not seen here: test_models.c compares with recorded values. */
#include <unistd.h>
#include "encoder.h"
#include "golden.h"
#include "graph/kv_page.h"
#include "random.h"

/* Work at each TEST_SCALE: 1, 10, 100. */
static int scaled(int quick, int test, int all)
{
    return test_scale() >= 100 ? all : test_scale() >= 10 ? test : quick;
}

/* ---------------------------------------------------------------- subjects, ways, sessions */

enum { N_SEQ = 6 };

struct subject {
    char name[160], path[1024];
    const char *cache, *cache_v; /* cache_v NULL: the same */
    const char *const *overrides;
    int32_t n, n_ctx, n_vocab, n_seq;
    int32_t *token;  /* [n] */
    int32_t *row_of; /* [n] row of expected with the logits after this token, -1: not recorded */
    float *expected;
    int windowed;  /* some positions cannot be resumed at: pages were given back */
    int recurrent; /* only checkpoints can be: every 64 positions, ends of prompts */
    int crowded;   /* the others of a batch are as long as the subject itself */
};

struct way {
    const char *name, *cpu, *devices;
    const char *group; /* threads of one (base/machine/pool.h) */
    const char *far, *layers; /* devices whose memory the host cannot touch; who gets which layer */
    int32_t gpu_layers;
    int32_t n_threads, reference, observe, n_batch;
    pith_weights weights;
    pith_split split;
};

static const struct way alone = {.name = "alone", .n_threads = 1};
static const struct way ways[] = {
    {.name = "2 threads", .n_threads = 2},
    {.name = "level base", .n_threads = 1, .cpu = "base"},
    {.name = "18 threads", .n_threads = 18},
    {.name = "2 devices", .n_threads = 1, .devices = "2"},
    {.name = "rows over 2 devices", .n_threads = 1, .devices = "2", .split = PITH_SPLIT_ROW},
    {.name = "the last layer on a far device", .n_threads = 1, .far = "1", .gpu_layers = 1},
    {.name = "level avx2", .n_threads = 1, .cpu = "avx2"},
    {.name = "level avxvnni", .n_threads = 1, .cpu = "avxvnni"},
    {.name = "5 threads in groups of 2", .n_threads = 5, .group = "2"},
    {.name = "mapped", .n_threads = 1, .weights = PITH_WEIGHTS_MAPPED},
    {.name = "on a far device", .n_threads = 1, .far = "1", .layers = "1"},
    {.name = "level avx512", .n_threads = 1, .cpu = "avx512"},
    {.name = "unfused", .n_threads = 1, .observe = 1},
    {.name = "level avx512vnni", .n_threads = 1, .cpu = "avx512vnni"},
    {.name = "layers by turns on two far devices and the CPU, steps of 7 rows",
     .n_threads = 2,
     .far = "2",
     .layers = "2,0,1",
     .n_batch = 7},
    {.name = "halves on two far devices, steps of 7 rows beside each other",
     .n_threads = 1,
     .far = "2",
     .layers = "1,1,2,2",
     .n_batch = 7},
    {.name = "rows over two far devices, steps of 7 rows beside each other",
     .n_threads = 1,
     .far = "2",
     .gpu_layers = PITH_GPU_LAYERS_ALL,
     .split = PITH_SPLIT_ROW,
     .n_batch = 7},
    {.name = "steps of 7 rows", .n_threads = 1, .n_batch = 7},
    {.name = "level avx512bf16", .n_threads = 1, .cpu = "avx512bf16"},
    {.name = "level amx", .n_threads = 1, .cpu = "amx"},
    {.name = "3 threads, 3 devices", .n_threads = 3, .devices = "3"},
    {.name = "mapped at avx2, 2 threads, steps of 33 rows",
     .n_threads = 2,
     .cpu = "avx2",
     .weights = PITH_WEIGHTS_MAPPED,
     .n_batch = 33},
    {.name = "mapped at base, unfused",
     .n_threads = 1,
     .cpu = "base",
     .weights = PITH_WEIGHTS_MAPPED,
     .observe = 1},
    {.name = "reference", .n_threads = 1, .reference = 1},
    {.name = "level ref, 2 threads", .n_threads = 2, .cpu = "ref"},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* 1: the processor has what the way asks for. */
static int possible(const struct way *w)
{
    set_env("PITH_CPU", w->cpu);
    int yes = !w->cpu || !strcmp(pith_isa(), w->cpu);
    set_env("PITH_CPU", NULL);
    return yes;
}

static pith_model *open_model(const struct subject *s, const struct way *w, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = w->n_threads;
    mp.n_batch = w->n_batch;
    mp.observe = w->observe;
    mp.reference = w->reference;
    mp.weights = w->weights;
    mp.overrides = s->overrides;
    mp.gpu_layers = w->gpu_layers;
    mp.split = w->split;
    set_env("PITH_CPU", w->cpu);
    set_env("PITH_CPU_DEVICES", w->devices);
    set_env("PITH_POOL_GROUP", w->group);
    set_env("PITH_FAR_DEVICES", w->far);
    set_env("PITH_LAYER_DEVICES", w->layers);
    pith_model *m = pith_model_open(s->path, &mp, err);
    set_env("PITH_CPU", NULL);
    set_env("PITH_FAR_DEVICES", NULL);
    set_env("PITH_LAYER_DEVICES", NULL);
    set_env("PITH_CPU_DEVICES", NULL);
    set_env("PITH_POOL_GROUP", NULL);
    return m;
}

static pith_session *open_session(const struct subject *s, pith_model *m, pith_pooling pooling,
                                  struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = s->n_ctx;
    sp.n_seq = s->n_seq;
    sp.cache_type_k = s->cache;
    sp.cache_type_v = s->cache_v ? s->cache_v : s->cache;
    sp.pooling = pooling;
    return pith_session_open(m, &sp, err);
}

/* ----------------------------------------------------- feeding rows and checking what comes out */

struct feed {
    const struct subject *s;
    const struct way *way;
    const char *driver;
    pith_session *ss;
    int32_t cap, n, n_want, max_want;
    int32_t *token, *seq;
    int32_t *at; /* position whose expected logits the row must give; -1: anything */
    uint8_t *want;
    int record; /* fill expected instead of comparing */
    int bad;    /* one difference says enough */
};

static void differs(struct feed *f, int32_t at, const float *got, const float *want)
{
    int32_t v = 0;
    f->bad = 1;
    if (!got) {
        CHECK_MSG(0, "%s, %s, %s: no logits at position %d", f->s->name, f->way->name, f->driver,
                  at);
        return;
    }
    while (v < f->s->n_vocab - 1 && !memcmp(&got[v], &want[v], sizeof *got))
        v++;
    CHECK_MSG(0, "%s, %s, %s: position %d, logit %d is %.9g, wanted %.9g", f->s->name, f->way->name,
              f->driver, at, v, (double)got[v], (double)want[v]);
}

static void check_logits(struct feed *f, int32_t at, const float *got)
{
    int32_t row = at < 0 ? -1 : f->s->row_of[at];
    size_t bytes = (size_t)f->s->n_vocab * sizeof *got;
    if (row < 0 || f->bad)
        return;
    float *want = f->s->expected + (int64_t)row * f->s->n_vocab;
    if (f->record && got)
        memcpy(want, got, bytes);
    else if (!got || memcmp(got, want, bytes))
        differs(f, at, got, want);
}

static void failed(struct feed *f, const struct pith_error *err)
{
    if (!f->bad)
        CHECK_MSG(0, "%s, %s, %s: %s", f->s->name, f->way->name, f->driver, err->msg);
    f->bad = 1;
}

static void flush(struct feed *f)
{
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = f->n;
    b.token = f->token;
    b.seq = f->seq;
    b.want = f->want;
    if (f->n && !f->bad) {
        if (pith_step(f->ss, &b, &err) != PITH_OK)
            failed(f, &err);
        for (int32_t i = 0, out = 0; i < f->n && !f->bad; i++)
            if (f->want[i])
                check_logits(f, f->at[i], pith_logits(f->ss, out++));
    }
    f->n = f->n_want = 0;
}

/* Sequences of the drivers are 0..5; a session with fewer uses those it has. */
static int32_t slot(const struct feed *f, int32_t seq)
{
    return seq % f->s->n_seq;
}

/* One more row: a token of the subject at a position (at >= 0: its logits are asked for and checked
 * where they were recorded). */
static void put(struct feed *f, int32_t seq, int32_t token, int32_t at, int want)
{
    if (f->n == f->cap || (want && f->n_want == f->max_want))
        flush(f);
    f->token[f->n] = token;
    f->seq[f->n] = slot(f, seq);
    f->at[f->n] = want ? at : -1;
    f->want[f->n++] = (uint8_t)want;
    f->n_want += want;
}

static void put_position(struct feed *f, int32_t seq, int32_t at)
{
    put(f, seq, f->s->token[at], at, f->s->row_of[at] >= 0);
}

static int32_t junk(const struct feed *f)
{
    return below(f->s->n_vocab);
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* What the decoder's rows look at, where there is an encoder: gone with the rest. */
static void read_again(struct feed *f, int32_t seq)
{
    struct pith_error err;
    if (!f->bad && encoder_reads(f->ss, slot(f, seq), &err) != PITH_OK)
        failed(f, &err);
}

static void truncate_to(struct feed *f, int32_t seq, int32_t n)
{
    struct pith_error err;
    if (!f->bad && pith_truncate(f->ss, slot(f, seq), n, &err) != PITH_OK)
        failed(f, &err);
    read_again(f, seq);
}

/* Positions [from, to) of the subject in steps of `chunk` rows. */
static void put_chunks(struct feed *f, int32_t seq, int32_t from, int32_t to, int32_t chunk)
{
    for (int32_t i = from; i < to; i++) {
        put_position(f, seq, i);
        if ((i - from + 1) % chunk == 0)
            flush(f);
    }
    flush(f);
}

/* ---------------------------------------------------------------- drivers */

static void drive_all(struct feed *f)
{
    put_chunks(f, 0, 0, f->s->n, f->s->n);
}

static void drive_ones(struct feed *f)
{
    int32_t from =
        f->s->n > 300 ? f->s->n - 100 : 0; /* of long contexts the end, over more than one page */
    put_chunks(f, 1, 0, from, 64);
    put_chunks(f, 1, from, f->s->n, 1);
}

static void drive_sevens(struct feed *f)
{
    put_chunks(f, 2, 0, f->s->n, 7);
}

static void drive_pages(struct feed *f)
{
    put_chunks(f, 3, 0, f->s->n, 64);
}

/* Chunks of random sizes, a random choice of the outputs. */
static void drive_choice(struct feed *f)
{
    for (int32_t i = 0, left = 1; i < f->s->n; i++) {
        int want = below(3) == 0;
        put(f, 4, f->s->token[i], i, want);
        if (--left == 0) {
            flush(f);
            left = 1 + below(40);
        }
    }
    flush(f);
}

/* pith_feed: the last row alone has logits. */
static void drive_feed(struct feed *f)
{
    struct pith_error err;
    for (int32_t i = 0, n; i < f->s->n && !f->bad; i += n) {
        n = 1 + below(smaller(f->s->n - i, 50));
        if (pith_feed(f->ss, slot(f, 5), f->s->token + i, (size_t)n, &err) != PITH_OK)
            failed(f, &err);
        else
            check_logits(f, i + n - 1, pith_logits(f->ss, 0));
    }
}

/* A sequence with rows to come: the subject's own from position `at`, or junk. */
struct lane {
    int32_t seq, at, end;
    int own;
};

/* Rows of all lanes in scrambled order, steps of random sizes. */
static void run_lanes(struct feed *f, struct lane *lane, int n)
{
    for (int32_t left = 1 + below(60); n > 0 && !f->bad;) {
        int i = below(n);
        struct lane *l = &lane[i];
        if (l->at == l->end) {
            *l = lane[--n];
            continue;
        }
        if (l->own)
            put_position(f, l->seq, l->at++);
        else {
            put(f, l->seq, junk(f), -1, below(4) == 0);
            l->at++;
        }
        if (--left == 0) {
            flush(f);
            left = 1 + below(60);
        }
    }
    flush(f);
}

/* Among others and a twin. */
static void drive_batch(struct feed *f)
{
    struct lane lane[N_SEQ];
    int32_t own = below(N_SEQ), twin = (own + 1 + below(N_SEQ - 1)) % N_SEQ;
    int32_t others = f->s->crowded ? f->s->n : smaller(f->s->n, 150);
    for (int32_t i = 0; i < N_SEQ; i++) {
        int mine = i == own || i == twin;
        lane[i] = (struct lane){i, 0, mine ? f->s->n : 1 + below(others), mine};
    }
    run_lanes(f, lane, N_SEQ);
}

static size_t prefix(struct feed *f, int32_t seq, const int32_t *token, int32_t n)
{
    struct pith_error err;
    size_t kept = 0;
    if (!f->bad && pith_prefix(f->ss, slot(f, seq), token, (size_t)n, &kept, &err) != PITH_OK)
        failed(f, &err);
    return kept;
}

static void check_kept(struct feed *f, size_t kept, int32_t wanted)
{
    size_t least = f->s->recurrent ? (size_t)wanted / 64 * 64 : (size_t)wanted;
    if (!f->bad && (kept > (size_t)wanted || kept < least) && !(f->s->windowed && kept == 0)) {
        f->bad = 1;
        CHECK_MSG(0, "%s, %s, %s: %zu positions kept, wanted %d", f->s->name, f->way->name,
                  f->driver, kept, wanted);
    }
}

/* After another prompt with a common beginning; then the same once more. */
static void drive_prefix(struct feed *f)
{
    const struct subject *s = f->s;
    int32_t common = 1 + below(s->n - 1), more = 1 + below(smaller(40, s->n_ctx - common));
    int32_t to = common + 1 + below(s->n - common),
            *other = malloc((size_t)s->n_ctx * sizeof *other);
    memcpy(other, s->token, (size_t)common * sizeof *other);
    for (int32_t i = 0; i < more; i++)
        other[common + i] = junk(f);
    if (other[common] == s->token[common])
        other[common] = (other[common] + 1) % s->n_vocab;
    check_kept(f, prefix(f, 2, other, common + more), 0);
    check_kept(f, prefix(f, 2, s->token, to), common);
    check_logits(f, to - 1, pith_logits(f->ss, 0));
    put_chunks(f, 2, to, s->n, 1 + below(70));
    check_kept(f, prefix(f, 2, s->token, s->n), s->n - 1);
    check_logits(f, s->n - 1, pith_logits(f->ss, 0));
    free(other);
}

static long
    n_released; /* cuts refused because a window had moved on and its pages were given back */

/* Cut to n and check that it could be: a window may have moved on, then the beginning is computed
 * again. Returns where to go on. */
static int32_t cut(struct feed *f, int32_t seq, int32_t n)
{
    struct pith_error err;
    pith_status st = f->bad ? PITH_OK : pith_truncate(f->ss, slot(f, seq), n, &err);
    if (st == PITH_STATE && (f->s->windowed || f->s->recurrent)) {
        n_released++;
        truncate_to(f, seq, 0);
        return 0;
    }
    if (st != PITH_OK)
        failed(f, &err);
    read_again(f, seq);
    return n;
}

static void drive_truncate(struct feed *f)
{
    int32_t n = f->s->windowed ? 1 + below(smaller(40, f->s->n)) : below(f->s->n),
            at; /* far behind a window */
    put_chunks(f, 3, 0, f->s->n, 1 + below(100));
    at = cut(f, 3, n);
    put_chunks(f, 3, at, f->s->n, 1 + below(50));
    for (int32_t i = 0; i < 3; i++) { /* to and fro near the end */
        n = f->s->n - 1 - below(smaller(f->s->n - 1, 20));
        at = cut(f, 3, n);
        put_chunks(f, 3, at, f->s->n, 5);
    }
}

static void copy(struct feed *f, int32_t dst, int32_t src, int32_t n)
{
    struct pith_error err;
    if (!f->bad && pith_copy(f->ss, dst, src, 0, n, &err) != PITH_OK)
        failed(f, &err);
}

/* Copies that share pages and go apart; one copied onto a sequence that holds something else. */
static void drive_copy(struct feed *f)
{
    const struct subject *s = f->s;
    int32_t p = 1 + below(s->n - 1), less = s->windowed || s->recurrent ? p : 1 + below(p);
    for (int32_t i = 0, n = 1 + below(70); i < n && i < s->n_ctx; i++)
        put(f, 3, junk(f), -1, 0);
    put_chunks(f, 0, 0, p, 1 + below(90));
    copy(f, 1, 0, p);
    copy(f, 2, 0, p);
    copy(f, 3, 0, less);
    struct lane lane[] = {{0, p, s->n, 1},
                          {1, p, smaller(p + 1 + below(80), s->n_ctx), 0},
                          {2, p, s->n, 1},
                          {3, less, s->n, 1},
                          {4, 0, 1 + below(30), 0}};
    run_lanes(f, lane, 5);
    int32_t at = cut(f, 1, p);
    put_chunks(f, 1, at, s->n, 1 + below(90));
    copy(f, 4, 2, s->n);
    at = cut(f, 4, s->n - 1);
    put_chunks(f, 4, at, s->n, 64);
    put_chunks(f, 4, s->n, s->n, 1);
    at = cut(f, 2, s->n - 1); /* what 4 did to the shared page is not seen here */
    put_chunks(f, 2, at, s->n, 64);
}

/* Steps that fail change nothing. */
static void drive_refused(struct feed *f)
{
    struct pith_error err;
    const struct subject *s = f->s;
    int32_t half = 1 + below(s->n - 1), bad_token[2] = {s->token[half], s->n_vocab};
    put_chunks(f, 5, 0, half, 1 + below(90));
    CHECK(f->bad || pith_feed(f->ss, slot(f, 5), bad_token, 2, &err) == PITH_RANGE);
    pith_cancel(f->ss);
    CHECK(f->bad || pith_feed(f->ss, slot(f, 5), s->token + half, (size_t)(s->n - half), &err) ==
                        PITH_CANCELLED);
    pith_cancel_reset(f->ss);
    CHECK(f->bad || pith_length(f->ss, slot(f, 5)) == half);
    put_chunks(f, 5, half, s->n, 1 + below(90));
}

static const struct {
    const char *name;
    void (*fn)(struct feed *f);
    int many; /* needs all six sequences */
} drivers[] = {{"in one step", drive_all, 0},       {"in a batch", drive_batch, 1},
               {"chunks of 7", drive_sevens, 0},    {"after copies", drive_copy, 1},
               {"chunks of 1", drive_ones, 0},      {"prefix reused", drive_prefix, 0},
               {"some outputs", drive_choice, 0},   {"truncated", drive_truncate, 0},
               {"chunks of 64", drive_pages, 0},    {"fed", drive_feed, 0},
               {"after refusals", drive_refused, 0}};
enum { N_DRIVERS = sizeof drivers / sizeof *drivers };

/* ---------------------------------------------------------------- where do two ways part? */

struct trace {
    int n;
    struct {
        char name[48];
        uint64_t hash;
    } op[4096];
};

static void trace_op(void *ctx, const char *name, int64_t rows, int64_t cols, const float *data)
{
    struct trace *t = ctx;
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < rows * cols * 4; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    if (t->n == 4096)
        return;
    snprintf(t->op[t->n].name, sizeof t->op[0].name, "%s", name);
    t->op[t->n++].hash = h;
}

static void trace(const struct subject *s, const struct way *w, struct trace *t)
{
    struct way unfused = *w;
    struct pith_error err;
    unfused.observe = 1;
    pith_model *m = open_model(s, &unfused, &err);
    pith_session *ss = m ? open_session(s, m, PITH_POOL_NONE, &err) : NULL;
    if (ss && pith_session_observe(ss, trace_op, t, &err) == PITH_OK &&
        encoder_reads(ss, 0, &err) == PITH_OK)
        pith_feed(ss, 0, s->token, (size_t)smaller(s->n, w->n_batch ? w->n_batch : s->n), &err);
    pith_session_close(ss);
    pith_model_close(m);
}

/* Names the first op whose result differs between the way and the plain one, for whoever has to
 * find out why. */
static void explain(const struct subject *s, const struct way *w)
{
    struct trace *a = calloc(2, sizeof *a), *b = a + 1;
    struct way plain = alone;
    plain.n_batch = w->n_batch;
    trace(s, &plain, a);
    trace(s, w, b);
    int i = 0;
    while (i < a->n && i < b->n && a->op[i].hash == b->op[i].hash)
        i++;
    if (i < a->n && i < b->n)
        printf("# %s, %s: the first op that differs is %d, %s\n", s->name, w->name, i,
               b->op[i].name);
    else
        printf("# %s, %s: no op differs in one step (%d and %d ops)\n", s->name, w->name, a->n,
               b->n);
    free(a);
}

/* ---------------------------------------------------------------- running a subject */

static int feed_open(struct feed *f, const struct subject *s, const struct way *w, pith_session *ss)
{
    size_t n = (size_t)s->n_ctx * N_SEQ;
    *f = (struct feed){
        .s = s, .way = w, .ss = ss, .cap = (int32_t)n, .max_want = pith_max_outputs(ss)};
    f->token = calloc(n, sizeof *f->token);
    f->seq = calloc(n, sizeof *f->seq);
    f->at = calloc(n, sizeof *f->at);
    f->want = calloc(n, 1);
    return f->token && f->seq && f->at && f->want;
}

static void feed_close(struct feed *f)
{
    free(f->token);
    free(f->seq);
    free(f->at);
    free(f->want);
}

static long n_comparisons; /* pairs of way and driver */

/* Opens the subject in a way and runs n drivers, from the given one on. */
static void run_way(const struct subject *s, const struct way *w, int first, int n, int record)
{
    struct pith_error err;
    struct feed f;
    pith_model *m = open_model(s, w, &err);
    pith_session *ss = m ? open_session(s, m, PITH_POOL_FILE, &err) : NULL;
    if (!ss) {
        CHECK_MSG(0, "%s, %s: %s", s->name, w->name, err.msg);
    } else if (feed_open(&f, s, w, ss)) {
        f.record = record;
        for (int32_t q = 0; q < s->n_seq; q++)
            read_again(&f, q);
        for (int i = 0; i < n && !f.bad; i++) {
            int d = (first + i) % N_DRIVERS;
            if (drivers[d].many && s->n_seq < N_SEQ)
                continue;
            f.driver = drivers[d].name;
            drivers[d].fn(&f);
            n_comparisons++;
            for (int32_t q = 0; q < s->n_seq; q++)
                truncate_to(&f, q, 0);
        }
        if (f.bad)
            explain(s, w);
        feed_close(&f);
    }
    pith_session_close(ss);
    pith_model_close(m);
}

static int finite_logits(const struct subject *s, int32_t rows)
{
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)rows * s->n_vocab; i++)
        sum += (double)s->expected[i] * 0;
    return sum == 0; /* not a number otherwise */
}

static unsigned turn; /* goes over drivers and ways as subjects go by */

/* The subject's logits, alone in one step; NULL when that failed. */
static float *record(struct subject *s)
{
    int32_t rows = 0;
    int bad = test_bad;
    for (int32_t i = 0; i < s->n; i++)
        rows += s->row_of[i] >= 0;
    s->expected = calloc((size_t)rows * (size_t)s->n_vocab, sizeof *s->expected);
    run_way(s, &alone, 0, 1, 1);
    CHECK_MSG(finite_logits(s, rows), "%s: a logit is not finite", s->name);
    if (test_bad > bad) {
        free(s->expected);
        s->expected = NULL;
    }
    return s->expected;
}

/* Records the subject and compares `n_ways` of the ways (all: N_WAYS), each with n_drivers. */
static void check_subject(struct subject *s, int n_ways, int n_drivers)
{
    int bad = test_bad;
    if (!record(s))
        return;
    run_way(s, &alone, 1 + (int)turn % (N_DRIVERS - 1), scaled(1, 2 * n_drivers, N_DRIVERS), 0);
    for (int i = 0; i < n_ways && test_bad == bad; i++) {
        const struct way *w = &ways[(turn + (unsigned)i) % N_WAYS];
        if (possible(w))
            run_way(s, w, (int)((turn + 7 * (unsigned)i) % N_DRIVERS), n_drivers, 0);
    }
    turn += (unsigned)n_ways;
    free(s->expected);
    s->expected = NULL;
}

/* Room for n tokens of a context of n_ctx: the given ones, then random ones; logits recorded at
 * about n_rows of them, the ends of pages and spans among them. */
static void fill_subject(struct subject *s, const int32_t *token, int32_t n_token, int32_t n,
                         int32_t n_rows)
{
    s->n = n;
    s->token = calloc((size_t)n, sizeof *s->token);
    s->row_of = calloc((size_t)n, sizeof *s->row_of);
    for (int32_t i = 0, row = 0; i < n; i++) {
        int edge = i % 64 == 0 || i % 64 == 63 || i == n - 1;
        s->token[i] = i < n_token ? token[i] : below(s->n_vocab);
        s->row_of[i] = n <= n_rows || (edge && n_rows * 64 > n) || below(n) < n_rows ? row++ : -1;
    }
}

static void free_subject(struct subject *s)
{
    free(s->token);
    free(s->row_of);
    s->token = s->row_of = NULL;
}

/* causal: may be NULL. */
static int32_t vocab_of(const char *path, int *causal)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    mp.vocab_only = !causal; /* which is of the whole model */
    pith_model *m = pith_model_open(path, &mp, &err);
    if (!m || pith_model_get_info(m, &info, &err) != PITH_OK)
        CHECK_MSG(0, "%s: %s", path, err.msg);
    pith_model_close(m);
    if (causal)
        *causal = info.causal;
    return info.n_vocab;
}

/* ---------------------------------------------------------------- recorded models */

/* The causal models of a folder whose logits are recorded and whose names begin so, every so many
 * of them. */
static void golden_folder(const char *folder, const char *begin, int every, int32_t n, int n_ways,
                          int n_drivers)
{
    struct golden *list;
    int n_list = golden_list(folder, &list), n_run = 0;
    for (int i = 0; i < n_list; i++) {
        const struct golden *g = &list[i];
        struct subject s = {.n_ctx = n + 40, .n_seq = N_SEQ};
        if (!golden_known(g) || strncmp(g->name, begin, strlen(begin)) || i % every ||
            access(golden_path(g, ".logits.bin"), R_OK))
            continue;
        snprintf(s.path, sizeof s.path, "%s", golden_path(g, ".gguf"));
        int causal = 0;
        s.n_vocab = vocab_of(s.path, &causal);
        if (!causal) /* one that fills in masks: all its rows come in one step */
            continue;
        /* Positions that are learned end where training did: test_each stays within them. */
        if (!strcmp(g->arch, "gpt2") || !strcmp(g->arch, "starcoder"))
            continue;
        s.windowed = !strncmp(g->arch, "gemma", 5);
        const json_t *flags = json_object_get(g->json, "flags");
        s.recurrent = json_is_true(json_object_get(flags, "recurrent")) ||
                      json_is_true(json_object_get(flags, "hybrid"));
        s.cache = (n_run + (int)turn) % 2 ? "f32" : "f16";
        snprintf(s.name, sizeof s.name, "%s, %s cache", g->name, s.cache);
        fill_subject(&s, g->token, g->n, n, n);
        check_subject(&s, n_ways, n_drivers);
        free_subject(&s);
        n_run++;
    }
    golden_free(list, n_list);
    if (!n_list)
        SKIP("no %s under %s", folder, test_shared());
    CHECK_MSG(n_run >= 18 / every, "only %d models were in scope", n_run);
}

static void golden_arch(void)
{
    golden_folder("golden/arch", "", scaled(3, 1, 1), scaled(40, 70, 200), scaled(1, 3, N_WAYS),
                  scaled(1, 1, 3));
}

static void golden_quant(void)
{
    golden_folder("golden/quant", test_scale() < 10 ? "llama" : "", scaled(2, 2, 1),
                  scaled(17, 33, 66), scaled(1, 3, N_WAYS), scaled(1, 1, 3));
}

/* ---------------------------------------------------------------- made models */

static char folder[] = "/tmp/pith-bits-XXXXXX";

/* A subject from a model written to the test's own folder. */
static int synth_subject(struct subject *s, const struct pith_synth_params *p, const char *cache,
                         int32_t n, int32_t n_rows)
{
    struct pith_error err;
    memset(s, 0, sizeof *s);
    snprintf(s->path, sizeof s->path, "%s/model.gguf", folder);
    snprintf(s->name, sizeof s->name, "%s %s E %d F %d L %d H %d/%d of %d X %d, %s cache", p->arch,
             p->type, p->n_embd, p->n_ff, p->n_layer, p->n_head, p->n_head_kv, p->head_dim,
             p->n_expert, cache);
    pith_status st = pith_synth(s->path, p, &err);
    CHECK_MSG(st == PITH_OK, "%s: %s", s->name, err.msg);
    if (st != PITH_OK)
        return 0;
    s->cache = cache;
    s->n_vocab = p->n_vocab;
    s->n_ctx = n + 40;
    s->n_seq = N_SEQ;
    s->windowed = !strncmp(p->arch, "gemma", 5);
    fill_subject(s, NULL, 0, n, n_rows);
    return 1;
}

/* Types of weights; how many. Those that are slow to quantise, by a search, are left out unless
 * `slow`. */
static int weight_types(enum dtype out[DT_COUNT], int slow)
{
    int n = 0;
    for (int t = 0; t < DT_COUNT; t++) {
        const char *name = dtypes[t].name;
        int by_search = !strncmp(name, "iq", 2) && name[2] >= '1' && name[2] <= '3';
        if (dtypes[t].act != ACT_NONE && (slow || !by_search))
            out[n++] = (enum dtype)t;
    }
    return n;
}

/* Every type, in sizes that fit no tile: E a multiple of 32 but not of 64 (longer blocks: 256),
 * heads of 40, a vocabulary of 333. */
static void every_type(void)
{
    enum dtype types[DT_COUNT];
    int n = weight_types(types, test_scale() >= 10);
    for (int t = 0; t < n; t++) {
        int block = dtypes[types[t]].block;
        for (int wide = block > 32; wide < (block == 32 ? 1 : 2); wide++) {
            struct subject s;
            if (test_scale() < 10 && block == 1 && wide != t % 2)
                continue;
            struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
            p.arch = wide ? "qwen3" : "llama";
            p.type = dtypes[types[t]].name;
            p.n_layer = scaled(1, 2, 2);
            p.n_embd = wide ? 256 : 96;
            p.n_ff = wide ? 256 : 160;
            p.n_head = 3;
            p.n_head_kv = wide ? 1 : 3;
            p.head_dim = 40;
            p.n_vocab = wide ? 77 : 333;
            p.seed = rng_u32(&test_rng);
            if (!synth_subject(&s, &p, t % 2 ? "f16" : "f32", scaled(35, 66, 150), 64))
                continue;
            check_subject(&s, scaled(1, 3, N_WAYS), scaled(1, 1, 3));
            free_subject(&s);
        }
    }
}

/* Every type of K, every type of V, some of each in a model with a window. */
static void every_cache_type(void)
{
    for (int k = 0; k < KV_N_TYPES; k++) {
        struct subject s;
        struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
        char types_of[64];
        const char *key = dtypes[kv_types[k]].name;
        const char *v = dtypes[kv_types[(k + (int)turn) % KV_N_TYPES]].name;
        p.arch = k % 2 ? "gemma3" : "llama";
        p.type = "f32";
        p.n_layer = 2;
        p.n_embd = 64;
        p.n_ff = 64;
        p.n_head = 4;
        p.n_head_kv = 2;
        p.head_dim = k % 3 ? 32 : 64;
        p.n_vocab = 99;
        p.seed = rng_u32(&test_rng);
        snprintf(types_of, sizeof types_of, "K %s and V %s", key, v);
        if (!synth_subject(&s, &p, types_of, scaled(140, 200, 700), 64))
            continue;
        s.cache = key;
        s.cache_v = v;
        check_subject(&s, scaled(1, N_WAYS, N_WAYS), scaled(1, 1, 3));
        free_subject(&s);
    }
}

struct shape {
    const char *arch, *type;
    int32_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_expert, n_expert_used,
        tied;
};

/* Sizes at the edges of tiles, panels and vectors. */
static const struct shape shapes[] = {
    {"llama", "f32", 1, 32, 32, 1, 1, 2, 17, 0, 0, 0},
    {"llama", "q4_0", 3, 96, 160, 4, 2, 40, 333, 0, 0, 1},
    {"llama", "f16", 2, 72, 100, 3, 1, 24, 129, 0, 0, 1},
    {"llama", "bf16", 2, 75, 101, 5, 1, 6, 65, 0, 0, 0},
    {"llama", "q8_0", 24, 32, 64, 2, 1, 16, 64, 0, 0, 1},
    {"llama", "f32", 2, 96, 160, 4, 2, 24, 100, 7, 3, 0},
    {"llama", "q4_0", 2, 64, 96, 2, 1, 32, 100, 8, 1, 1},
    {"llama", "q4_K", 1, 256, 256, 4, 2, 64, 100, 5, 5, 0},
    {"qwen2", "q5_0", 2, 96, 96, 6, 2, 16, 320, 0, 0, 0},
    {"qwen2", "q6_K", 1, 256, 256, 8, 8, 32, 48, 0, 0, 1},
    {"qwen3", "q5_K", 1, 256, 256, 8, 1, 128, 70, 0, 0, 1},
    {"qwen3", "bf16", 2, 130, 70, 2, 2, 66, 90, 0, 0, 0},
    {"qwen3moe", "q4_1", 3, 64, 32, 4, 1, 40, 80, 16, 4, 0},
    {"qwen3moe", "f16", 2, 48, 52, 2, 2, 12, 80, 3, 2, 1},
    {"gemma2", "q8_0", 4, 96, 160, 4, 2, 40, 150, 0, 0, 1},
    {"gemma3", "q4_0", 7, 64, 96, 4, 1, 72, 150, 0, 0, 1},
};

static struct pith_synth_params of_shape(const struct shape *h)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = h->arch;
    p.type = h->type;
    p.n_layer = h->n_layer;
    p.n_embd = h->n_embd;
    p.n_ff = h->n_ff;
    p.n_head = h->n_head;
    p.n_head_kv = h->n_head_kv;
    p.head_dim = h->head_dim;
    p.n_vocab = h->n_vocab;
    p.n_expert = h->n_expert;
    p.n_expert_used = h->n_expert_used;
    p.tied = h->tied;
    p.seed = rng_u32(&test_rng);
    return p;
}

static void every_shape(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct subject s;
            struct pith_synth_params p = of_shape(&shapes[i]);
            if (test_scale() < 10 && (i + (size_t)f32) % 2)
                continue;
            if (!synth_subject(&s, &p, f32 ? "f32" : "f16", scaled(75, 100, 200), 64))
                continue;
            check_subject(&s, scaled(1, 4, N_WAYS), scaled(1, 1, 3));
            free_subject(&s);
        }
}

/* Sizes drawn at random, for long runs. */
static void random_shapes(void)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "qwen3moe"};
    enum dtype types[DT_COUNT];
    int n_types = weight_types(types, 0);
    for (long i = 0; i < scaled(1, 8, 200); i++) {
        struct subject s;
        struct shape h = {.arch = archs[below(6)], .type = dtypes[types[below(n_types)]].name};
        int moe = !strcmp(h.arch, "qwen3moe") || (!strcmp(h.arch, "llama") && below(2));
        h.n_layer = 1 + below(4);
        h.n_embd = 2 * (1 + below(200));
        h.n_ff = 1 + below(400);
        h.n_head_kv = 1 + below(4);
        h.n_head = h.n_head_kv * (1 + below(5));
        h.head_dim = 2 * (1 + below(50));
        h.n_vocab = 8 + below(400);
        h.n_expert = moe ? 1 + below(9) : 0;
        h.n_expert_used = moe ? 1 + below(h.n_expert) : 0;
        h.tied = below(2);
        struct pith_synth_params p = of_shape(&h);
        if (!synth_subject(&s, &p, below(2) ? "f32" : "f16", 2 + below(150), 48))
            continue;
        check_subject(&s, scaled(3, 5, N_WAYS), scaled(1, 1, 3));
        free_subject(&s);
    }
}

/* Contexts of many pages, windows that are no multiple of a page, spans of 1,024 positions. */
static void long_contexts(void)
{
    static const char *const narrow[] = {"gemma3.attention.sliding_window=int:100",
                                         "gemma3.attention.sliding_window_pattern=int:2", NULL};
    static const char *const page[] = {"gemma2.attention.sliding_window=int:64", NULL};
    static const struct {
        struct shape shape;
        const char *const *overrides;
        int32_t n, quick;
    } cases[] = {
        {{"gemma3", "q8_0", 4, 64, 96, 4, 1, 40, 90, 0, 0, 1}, narrow, 700, 420},
        {{"llama", "q4_0", 2, 64, 96, 2, 1, 40, 90, 0, 0, 1}, NULL, 1300, 1100},
        {{"gemma2", "f16", 2, 40, 64, 2, 2, 24, 90, 0, 0, 1}, page, 500, 300},
        {{"qwen3", "bf16", 1, 48, 64, 6, 2, 24, 90, 0, 0, 1}, NULL, 1100, 1060},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct subject s;
            struct pith_synth_params p = of_shape(&cases[i].shape);
            if (test_scale() < 10 && (i % 3 || (int)i / 3 != f32))
                continue;
            p.n_ctx = 4096;
            if (!synth_subject(&s, &p, f32 ? "f32" : "f16",
                               scaled(cases[i].quick, cases[i].n, 2 * cases[i].n), 64))
                continue;
            s.overrides = cases[i].overrides;
            check_subject(&s, scaled(1, 3, N_WAYS), scaled(1, 1, 3));
            free_subject(&s);
        }
}

/* Windows whose pages are given back while a sequence goes on: small steps, a session that has room
 * for little more than the window, alone and with five others as long. */
static void given_back_pages(void)
{
    static const char *const window[] = {"gemma3.attention.sliding_window=int:70",
                                         "gemma3.attention.sliding_window_pattern=int:2", NULL};
    static const struct way small[] = {
        {.name = "steps of 32 rows", .n_threads = 1, .n_batch = 32},
        {.name = "steps of 5 rows, 2 devices", .n_threads = 2, .devices = "2", .n_batch = 5},
        {.name = "steps of 64 rows", .n_threads = 1, .cpu = "base", .observe = 1, .n_batch = 64},
        {.name = "reference", .n_threads = 1, .reference = 1, .n_batch = 16}};
    long before = n_released;
    for (int crowded = 0; crowded < 2; crowded++) {
        struct subject s;
        struct shape h = {"gemma3", "q8_0", 4, 32, 64, 2, 1, 24, 70, 0, 0, 1};
        struct pith_synth_params p = of_shape(&h);
        p.n_ctx = 4096;
        if (!synth_subject(&s, &p, crowded ? "f32" : "f16", scaled(420, 700, 1200), 64))
            continue;
        s.overrides = window;
        s.n_seq = crowded ? N_SEQ : 1;
        s.crowded = crowded;
        s.expected = record(&s);
        for (int i = 0; i < scaled(1, 3, 4) && s.expected; i++)
            run_way(&s, &small[i], 0, N_DRIVERS, 0);
        free(s.expected);
        free_subject(&s);
    }
    CHECK_MSG(n_released > before, "no window gave pages back");
}

/* ---------------------------------------------------------------- calls that fail half way */

/* Two sequences in a cache with room for four pages: what does not fit is refused, even after some
 * steps of the call have run, and the sequences stay as they were. */
static void full_cache_way(const struct subject *s, const struct way *w)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    struct feed f;
    sp.n_ctx = s->n_ctx;
    sp.n_seq = 2;
    sp.n_tokens = 100;
    pith_model *m = open_model(s, w, &err);
    pith_session *ss = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(ss, "%s", err.msg);
    if (ss && feed_open(&f, s, w, ss)) {
        f.driver = "beside a sequence that does not fit";
        put_chunks(&f, 0, 0, 100, 30);
        CHECK(pith_feed(ss, 1, s->token, 180, &err) == PITH_NOMEM && pith_length(ss, 1) == 0);
        put_chunks(&f, 0, 100, 110, 3);
        for (int32_t i = 0; i < 180; i++) { /* rows of both */
            f.token[i] = s->token[i];
            f.seq[i] = i < 10 ? 0 : 1;
        }
        b.n = 180;
        b.token = f.token;
        b.seq = f.seq;
        CHECK(pith_step(ss, &b, &err) == PITH_NOMEM);
        CHECK(pith_length(ss, 0) == 110 && pith_length(ss, 1) == 0 && pith_n_outputs(ss) == 0);
        put_chunks(&f, 0, 110, 180, 9);
        truncate_to(&f, 0, 60);
        put_chunks(&f, 1, 0, 60, 60);
        put_chunks(&f, 0, 60, 180, 17);
        feed_close(&f);
    }
    pith_session_close(ss);
    pith_model_close(m);
}

static void full_cache(void)
{
    struct subject s;
    struct shape h = {"llama", "q4_0", 2, 64, 96, 2, 1, 32, 70, 0, 0, 1};
    struct pith_synth_params p = of_shape(&h);
    if (!synth_subject(&s, &p, "f16", 180, 180))
        return;
    s.n_seq = 2;
    if (record(&s)) {
        full_cache_way(&s, &alone);
        full_cache_way(&s,
                       &(struct way){.name = "steps of 16 rows", .n_threads = 2, .n_batch = 16});
    }
    free(s.expected);
    free_subject(&s);
}

struct countdown {
    pith_session *ss;
    int left;
};

static void cancel_later(void *ctx, const char *name, int64_t rows, int64_t cols, const float *data)
{
    struct countdown *c = ctx;
    (void)name, (void)rows, (void)cols, (void)data;
    if (--c->left == 0)
        pith_cancel(c->ss);
}

/* Cancelled at some op of some step of a call. */
static void cancelled_half_way(void)
{
    static const struct way way = {
        .name = "unfused, steps of 16 rows", .n_threads = 2, .observe = 1, .n_batch = 16};
    struct subject s;
    struct shape h = {"gemma3", "q8_0", 3, 64, 96, 2, 1, 32, 70, 0, 0, 1};
    struct pith_synth_params p = of_shape(&h);
    struct pith_error err;
    struct feed f;
    if (!synth_subject(&s, &p, "f32", 150, 150))
        return;
    pith_model *m = record(&s) ? open_model(&s, &way, &err) : NULL;
    pith_session *ss = m ? open_session(&s, m, PITH_POOL_FILE, &err) : NULL;
    CHECK(ss);
    if (ss && feed_open(&f, &s, &way, ss)) {
        f.driver = "after a call that was cancelled";
        for (int32_t i = 0, at = 0; i < 20 && at < s.n; i++) {
            struct countdown c = {ss, 1 + below(50)};
            pith_session_observe(ss, cancel_later, &c, &err);
            pith_status st = pith_feed(ss, 0, s.token + at, (size_t)(s.n - at), &err);
            CHECK(st == PITH_CANCELLED && pith_length(ss, 0) == at && pith_n_outputs(ss) == 0);
            pith_session_observe(ss, NULL, NULL, &err);
            pith_cancel_reset(ss);
            put_chunks(&f, 0, at, smaller(s.n, at + 7), 7);
            at += 7;
        }
        feed_close(&f);
    }
    pith_session_close(ss);
    pith_model_close(m);
    free(s.expected);
    free_subject(&s);
}

/* ---------------------------------------------------------------- embeddings */

/* Rows of the token embedding given as such are as good as the tokens. */
static void embedding_rows(void)
{
    struct subject s = {.n_ctx = 100, .n_seq = N_SEQ, .cache = "f16"};
    struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    snprintf(s.path, sizeof s.path, "%s/golden/arch/llama.gguf", test_shared());
    snprintf(s.name, sizeof s.name, "llama");
    pith_file *file = pith_file_open(s.path, &err);
    if (!file)
        SKIP("no golden/arch under %s", test_shared());
    for (int64_t i = 0; pith_file_tensor(file, i, &t) == PITH_OK; i++)
        if (!strcmp(t.name, "token_embd.weight"))
            break;
    int64_t n_embd = t.dims[1], n = 70;
    uint64_t at = t.offset;
    pith_file_close(file);
    s.n_vocab = vocab_of(s.path, NULL);
    fill_subject(&s, NULL, 0, (int32_t)n, (int32_t)n);
    float *rows = calloc((size_t)(n * n_embd), sizeof *rows), *end = rows;
    FILE *f = fopen(s.path, "rb");
    for (int64_t i = 0; i < n; i++, end += n_embd)
        CHECK(!fseek(f, (long)(at + (uint64_t)(s.token[i] * n_embd) * 4), SEEK_SET) &&
              fread(end, 4, (size_t)n_embd, f) == (size_t)n_embd);
    fclose(f);
    s.expected = record(&s);
    for (int w = 0; w < 6; w++) { /* rows alone, then tokens among them */
        const struct way way = {.name = "rows",
                                .n_threads = 1,
                                .reference = w / 2 == 1,
                                .far = w / 2 == 2 ? "1" : NULL,
                                .layers = w / 2 == 2 ? "1" : NULL};
        int32_t mixed[70];
        pith_model *m = open_model(&s, &way, &err);
        pith_session *ss = m ? open_session(&s, m, PITH_POOL_NONE, &err) : NULL;
        CHECK_MSG(ss, "%s", err.msg);
        for (int32_t i = 0; i < n; i++)
            mixed[i] = w % 2 == 0 || below(3) ? -1 : s.token[i];
        for (int32_t i = 0; ss && s.expected && i < n; i += b.n) {
            b.n = smaller(1 + below(20), (int32_t)n - i);
            b.embd = rows + i * n_embd;
            b.token = w % 2 ? mixed + i : NULL;
            CHECK_MSG(pith_step(ss, &b, &err) == PITH_OK, "%s", err.msg);
            const float *got = pith_logits(ss, 0),
                        *want = s.expected + (int64_t)(i + b.n - 1) * s.n_vocab;
            CHECK_MSG(got && !memcmp(got, want, (size_t)s.n_vocab * sizeof *got),
                      "%d: row %d by embedding%s differs from the row by token", w / 2,
                      i + b.n - 1, w % 2 ? ", with tokens," : "");
        }
        int32_t held[70] = {0};
        CHECK(!ss || (pith_tokens(ss, 0, held, 70) == n && !memcmp(held, mixed, sizeof held)));
        pith_session_close(ss);
        pith_model_close(m);
    }
    free(rows);
    free(s.expected);
    free_subject(&s);
}

/* Embeddings of the subject's tokens in a way: alone, then whole among other sequences. Recorded
 * when *expected is NULL. */
static void embed_way(const struct subject *s, const struct way *w, pith_pooling pooling,
                      float **expected)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    pith_model *m = open_model(s, w, &err);
    pith_session *ss = m ? open_session(s, m, pooling, &err) : NULL;
    struct feed f = {0};
    if (!ss || !feed_open(&f, s, w, ss) || pith_model_get_info(m, &info, &err) != PITH_OK)
        CHECK_MSG(0, "%s, %s: %s", s->name, w->name, err.msg);
    for (int crowd = 0; crowd < 2 && ss; crowd++) {
        struct pith_batch b = PITH_BATCH_INIT;
        int32_t rows = pooling == PITH_POOL_NONE ? s->n : 1, out = 0, sent = 0;
        size_t bytes = (size_t)info.n_embd * sizeof(float);
        int32_t left[N_SEQ], all = 0;
        for (int32_t q = 0; q < N_SEQ; q++)
            all += left[q] = q == 3 ? s->n : crowd ? 1 + below(20) : 0;
        for (; all; all--) {
            int32_t q = below(N_SEQ);
            while (!left[q])
                q = (q + 1) % N_SEQ;
            left[q]--;
            f.token[b.n] = q == 3 ? s->token[sent++] : below(s->n_vocab);
            f.seq[b.n] = q;
            f.want[b.n++] = (uint8_t)(pooling != PITH_POOL_NONE || q == 3);
        }
        b.token = f.token;
        b.seq = f.seq;
        b.want = f.want;
        if (pith_step(ss, &b, &err) != PITH_OK) {
            CHECK_MSG(0, "%s, %s: %s", s->name, w->name, err.msg);
            break;
        }
        if (!*expected)
            *expected = calloc((size_t)rows, bytes);
        if (pooling != PITH_POOL_NONE && crowd)
            out = 3; /* one output per sequence, in order of sequences */
        for (int32_t i = 0; i < rows; i++) {
            const float *got = pith_embedding(ss, out + i);
            float *want = *expected + (int64_t)i * info.n_embd;
            if (w == &alone && !crowd && got)
                memcpy(want, got, bytes);
            CHECK_MSG(got && !memcmp(got, want, bytes), "%s, %s, %s: row %d differs", s->name,
                      w->name, crowd ? "in a batch" : "alone", i);
        }
        n_comparisons++;
        for (int32_t q = 0; q < N_SEQ; q++)
            pith_truncate(ss, q, 0, NULL);
    }
    feed_close(&f);
    pith_session_close(ss);
    pith_model_close(m);
}

static void embeddings(void)
{
    static const pith_pooling kinds[] = {PITH_POOL_NONE, PITH_POOL_MEAN, PITH_POOL_CLS,
                                         PITH_POOL_LAST};
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0, n_seen = 0;
    for (int i = 0; i < n; i++) {
        if (!golden_known(&list[i]) || access(golden_path(&list[i], ".embd_none.bin"), R_OK))
            continue;
        n_seen++;
        for (int k = 0; k < 4; k++) {
            if (test_scale() < 10 && k != n_seen % 4)
                continue;
            /* positions that are learned end with the table */
            int32_t n_ctx = !strcmp(list[i].arch, "bert") ? 64 : 200;
            struct subject s = {.n_ctx = n_ctx, .n_seq = N_SEQ, .cache = k % 2 ? "f32" : "f16"};
            float *expected = NULL;
            snprintf(s.path, sizeof s.path, "%s", golden_path(&list[i], ".gguf"));
            snprintf(s.name, sizeof s.name, "%s, pooling %d", list[i].name, (int)kinds[k]);
            s.n_vocab = vocab_of(s.path, NULL);
            fill_subject(&s, list[i].token, list[i].n, n_ctx < 100 ? n_ctx : 100, 0);
            embed_way(&s, &alone, kinds[k], &expected);
            int step = scaled(4, 1, 1);
            for (int w = n_run % step; w < N_WAYS && expected; w += step)
                if (possible(&ways[w]) && (!ways[w].n_batch || ways[w].n_batch >= 200))
                    embed_way(&s, &ways[w], kinds[k], &expected);
            free(expected);
            free_subject(&s);
            n_run++;
        }
    }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    CHECK(n_run >= scaled(2, 8, 8));
}

int main(void)
{
    test_seed();
    if (!mkdtemp(folder)) {
        printf("FAIL folder: cannot make %s\n0 passed, 1 failed, 0 skipped\n", folder);
        return 1;
    }
    for (int i = 0; i < N_WAYS; i++)
        if (!possible(&ways[i]))
            printf("# this processor has no %s\n", ways[i].name);
    TEST(golden_arch);
    TEST(golden_quant);
    TEST(every_type);
    TEST(every_cache_type);
    TEST(every_shape);
    TEST(random_shapes);
    TEST(long_contexts);
    TEST(given_back_pages);
    TEST(full_cache);
    TEST(cancelled_half_way);
    TEST(embedding_rows);
    TEST(embeddings);
    printf("# %ld comparisons\n", n_comparisons);
    char path[64];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    unlink(path);
    rmdir(folder);
    return test_end();
}
