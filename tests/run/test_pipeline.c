/* test_pipeline.c -- steps of one call beside each other on several devices (run/session/
 * pipeline.c): that they are, by the order of events in a trace; that bits are those of one after
 * the other, whatever the sequences hold and however full the pools are; and that a failure or a
 * cancelled call leaves the session as it was. test_bits.c and test_far.c run theirs that way,
 * too. */
/* In make test alone: make check has test_far.c. */
#include "traced.h"
#include "backend/far/far.h"
#include "model_file.h"
#include "random.h"
#include "run/session/session.h"

enum { V = 40, N_CTX = 512, N_BATCH = 32, N_SEQ = 3, MOST = 300, SCRIPT = 8 };

static char path[MODEL_PATH], out[256];

static void make_model(const char *arch, int32_t n_layer)
{
    struct pith_synth_params p = small_params(arch, V);
    snprintf(out, sizeof out, "%s/trace.json", tmp_dir);
    p.n_layer = n_layer;
    p.n_embd = 32;
    p.n_ctx = N_CTX;
    model_file(path, p);
}

static const char *const env_names[] = {"PITH_FAR_DEVICES", "PITH_LAYER_DEVICES", "PITH_PIPELINE"};

/* layers NULL: the CPU alone. */
static pith_session *open_on(const char *layers, const char *lanes, int64_t n_tokens,
                             struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    const char *const value[] = {layers ? "3" : "0", layers, lanes};
    mp.n_threads = 1;
    mp.n_batch = N_BATCH;
    sp.n_ctx = N_CTX;
    sp.n_seq = N_SEQ;
    sp.n_tokens = n_tokens;
    for (int i = 0; i < 3; i++)
        if (value[i])
            setenv(env_names[i], value[i], 1);
    pith_model *m = pith_model_open(path, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    pith_model_close(m); /* the session keeps it */
    for (int i = 0; i < 3; i++)
        unsetenv(env_names[i]);
    return s;
}

static pith_status feed(pith_session *s, int32_t seq, int32_t n, struct pith_error *err)
{
    int32_t token[MOST];
    for (int32_t i = 0; i < n; i++)
        token[i] = (i * 7 + seq) % V;
    return pith_feed(s, seq, token, (size_t)n, err);
}

/* ---------------------------------------------------------------- they are beside each other */

static int overlaps(const char *layers, const char *lanes, const char *a, const char *b)
{
    struct pith_error err;
    pith_session *s = open_on(layers, lanes, 0, &err);
    for (int d = 0; s && d < s->model->n_devices; d++) /* copies do not cut what a device does */
        CHECK_MSG(s->stretches[d] <= 1 + (d == 0), "%s: device %d is asked %d times", layers, d,
                  s->stretches[d]);
    CHECK_MSG(s && pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(s && feed(s, 0, 5 * N_BATCH, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
    pith_session_close(s);
    traced_read(out, layers);
    return traced_overlaps(a, b);
}

static void devices_overlap(void)
{
    make_model("llama", 6);
    far_plan(&(struct far_plan){.seed = 1});
    struct {
        const char *layers, *lanes, *a, *b;
        int least, most;
    } t[] = {
        {"1,2", NULL, "FAR0", "FAR1", 4, 4},   {"1,2", "1", "FAR0", "FAR1", 0, 0},
        {"1,2", "4", "FAR0", "FAR1", 4, 4},    {"1,0", NULL, "FAR0", "CPU", 4, 4},
        {"0,1", NULL, "CPU", "FAR0", 4, 4},    {"1,2,3", NULL, "FAR0", "FAR1", 4, 4},
        {"1,2,3", NULL, "FAR1", "FAR2", 4, 4}, {"0,0", NULL, "CPU", "CPU", 0, 0},
        {"1,1", NULL, "FAR0", "FAR0", 0, 0},
    };
    /* Layers are dealt by turns: so that each device has one stretch there are as many as names. */
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        make_model("llama", (int32_t)(strlen(t[i].layers) + 1) / 2);
        int n = overlaps(t[i].layers, t[i].lanes, t[i].a, t[i].b);
        CHECK_MSG(n >= t[i].least && n <= t[i].most, "%s, lanes %s: %s and %s overlap %d times",
                  t[i].layers, t[i].lanes ? t[i].lanes : "auto", t[i].a, t[i].b, n);
    }
}

/* Pages that were used before are zeroed first, which keeps no step waiting that has others: they
 * overlap as often as when all pages are new, also where devices have several stretches. */
static void used_pages_are_no_hindrance(void)
{
    static const char *const layers[] = {"1,1,2,2", "1,2,1,2", "1,0,1,0"};
    make_model("llama", 4);
    far_plan(&(struct far_plan){.seed = 1});
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        const char *other = layers[l][2] == '0' ? "CPU" : "FAR1";
        struct pith_error err;
        int n[2] = {0};
        pith_session *s = open_on(layers[l], NULL, 5 * N_BATCH, &err);
        REQUIRE(s, "%s", err.msg);
        for (int i = 0; i < 2; i++) {
            CHECK_MSG(pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(feed(s, 0, 5 * N_BATCH, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
            traced_read(out, layers[l]);
            n[i] = traced_overlaps("FAR0", other) + traced_overlaps(other, "FAR0");
            CHECK_MSG(pith_truncate(s, 0, 0, &err) == PITH_OK, "%s", err.msg);
        }
        CHECK_MSG(n[0] > 0 && n[1] == n[0], "%s: %d overlaps with new pages, %d with used ones",
                  layers[l], n[0], n[1]);
        pith_session_close(s);
    }
}

/* Pages of steps under way are found once for all changes that the next step is made with, however
 * many those are; and not at all where no device has several stretches. */
static void pages_are_found_once(void)
{
    static const char *const layers[] = {"1,2,1,2", "1,1,2,2"};
    make_model("llama", 4);
    far_plan(&(struct far_plan){.seed = 1});
    for (int l = 0; l < 2; l++) {
        struct pith_error err;
        struct pith_batch b = PITH_BATCH_INIT;
        int32_t token[N_BATCH + 4] = {0}, seq[N_BATCH + 4] = {0};
        pith_session *s = open_on(layers[l], NULL, 0, &err);
        REQUIRE(s && s->n_lanes > 1, "%s", s ? "one lane" : err.msg);
        CHECK_MSG(feed(s, 1, MOST, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_remove(s, 1, 3, 5, &err) == PITH_OK); /* every page is another, of two */
        for (int i = 0; i < 4; i++)
            seq[N_BATCH + i] = 1;
        b.n = N_BATCH + 4;
        b.token = token;
        b.seq = seq;
        uint64_t before = s->looked, looked;
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        looked = s->looked - before;
        int most = l ? 0 : s->cache.n_groups;
        CHECK_MSG((looked > 0) == !l && looked <= (uint64_t)most,
                  "%s: pages of %llu segments were looked for, wanted %d at most", layers[l],
                  (unsigned long long)looked, most);
        pith_session_close(s);
    }
}

/* ---------------------------------------------------------------- the same bits */

/* One call of a script: rows of some sequences, edits before it, which rows want outputs. */
struct rows_call {
    int32_t n, seq[MOST], token[MOST];
    uint8_t want[MOST];
    int32_t copy_to, cut; /* -1: no */
};

static void make_script(struct rows_call *c, int n, int edits)
{
    for (int k = 0; k < n; k++) {
        int32_t seqs = 1 + below(N_SEQ), first = below(N_SEQ);
        c[k].n = 1 + below(k % 3 == 0 ? MOST / 2 : 20);
        c[k].copy_to = edits && k % 3 == 1 ? below(N_SEQ) : -1;
        c[k].cut = edits && k % 4 == 3 ? below(N_SEQ) : -1;
        for (int32_t i = 0, wants = 1; i < c[k].n; i++) {
            c[k].seq[i] = (first + (seqs > 1 ? below(seqs) : 0)) % N_SEQ;
            c[k].token[i] = below(V);
            c[k].want[i] = (uint8_t)(i == c[k].n - 1 || (wants < N_BATCH && below(9) == 0));
            wants += c[k].want[i];
        }
    }
}

/* Plays a call; its logits follow those before. What does not fit is begun anew. */
static void play(pith_session *s, const struct rows_call *c, float *logits, size_t *n)
{
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    if (c->copy_to >= 0 && c->copy_to != c->seq[0])
        CHECK_MSG(pith_copy(s, c->copy_to, c->seq[0], 0, -1, &err) == PITH_OK, "%s", err.msg);
    if (c->cut >= 0)
        CHECK_MSG(pith_truncate(s, c->cut, 0, &err) == PITH_OK, "%s", err.msg);
    for (int32_t q = 0; q < N_SEQ; q++)
        if (s->cache.seq[q].n + c->n > MOST / 2 + 40)
            CHECK_MSG(pith_truncate(s, q, 0, &err) == PITH_OK, "%s", err.msg);
    b.n = c->n;
    b.token = c->token;
    b.seq = c->seq;
    b.want = c->want;
    pith_status st = pith_step(s, &b, &err);
    CHECK_MSG(st == PITH_OK, "%d rows: %s", c->n, err.msg);
    for (int32_t i = 0; st == PITH_OK && i < pith_n_outputs(s); i++, *n += V)
        memcpy(logits + *n, pith_logits(s, i), V * sizeof *logits);
}

static void same_bits(const char *arch, int32_t n_layer, int64_t n_tokens)
{
    static const char *const layers[] = {"1,2", "1,2,3", "0,1", "2,0,1", "1,2,1,2", "1,0,1,0"};
    static unsigned turn;
    static struct rows_call script[SCRIPT];
    static float want[SCRIPT * MOST * V], got[SCRIPT * MOST * V];
    struct pith_error err;
    size_t n_want = 0;
    make_model(arch, n_layer);
    make_script(script, SCRIPT, 1);
    pith_session *s = open_on(NULL, "1", n_tokens, &err);
    REQUIRE(s, "%s", err.msg);
    for (int k = 0; k < SCRIPT; k++)
        play(s, &script[k], want, &n_want);
    pith_session_close(s);
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        size_t n = 0;
        if (test_scale() < 10 && l % 3 != turn % 3) /* others of the next model */
            continue;
        far_plan(&(struct far_plan){.seed = l});
        s = open_on(layers[l], NULL, n_tokens, &err);
        REQUIRE(s, "%s on %s: %s", arch, layers[l], err.msg);
        CHECK_MSG(s->n_lanes > 1, "%s on %s: there is one lane", arch, layers[l]);
        for (int k = 0; k < SCRIPT; k++)
            play(s, &script[k], got, &n);
        pith_session_close(s);
        size_t k = 0;
        while (k < n && k < n_want && !memcmp(&got[k], &want[k], sizeof *got))
            k++;
        CHECK_MSG(k == n_want && n == n_want, "%s on %s: number %zu of output %zu differs", arch,
                  layers[l], k % V, k / V);
    }
    turn++;
    unlink(path);
}

static void bits_are_the_same(void)
{
    static const char *const archs[] = {"llama", "gemma3", "mamba2", "qwen3next", "deepseek2"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        same_bits(archs[i], 4, 0);
}

/* Pools so small that pages which a window has given up are used again within a call. */
static void pages_are_used_again(void)
{
    same_bits("gemma3", 4, 600);
    same_bits("llama", 4, 600);
}

/* ---------------------------------------------------------------- failures */

static pith_session *cancels;
static uint64_t cancel_at;

static void on_call(uint64_t n)
{
    if (n == cancel_at)
        pith_cancel(cancels);
}

/* A call that fails, or is cancelled, at call n of the devices: the session is as before it. */
static void interrupt_at(pith_session *s, uint64_t n, int cancel, const float *want, int *failed)
{
    struct pith_error err;
    int32_t before = s->cache.seq[0].n;
    cancels = s;
    cancel_at = cancel ? n : 0;
    far_plan(&(struct far_plan){.seed = n, .fail_at = cancel ? 0 : n, .on_call = on_call});
    pith_status st = feed(s, 0, 4 * N_BATCH + 3, &err);
    pith_cancel_reset(s);
    far_plan(&(struct far_plan){.seed = n});
    if (st != PITH_OK) {
        ++*failed;
        CHECK_MSG(st == (cancel ? PITH_CANCELLED : PITH_DEVICE), "call %d: %d, %s", (int)n,
                  (int)st, err.msg);
        CHECK_MSG(s->cache.seq[0].n == before && !pith_n_outputs(s),
                  "call %d: the sequence has grown to %d", (int)n, s->cache.seq[0].n);
        CHECK_MSG(feed(s, 0, 4 * N_BATCH + 3, &err) == PITH_OK, "call %d: %s", (int)n, err.msg);
    }
    CHECK_MSG(!memcmp(pith_logits(s, 0), want, V * sizeof *want), "call %d: other logits", (int)n);
    CHECK_MSG(pith_truncate(s, 0, before, &err) == PITH_OK, "%s", err.msg);
}

static void failures_change_nothing(void)
{
    static float want[V];
    struct pith_error err;
    make_model("llama", 4);
    static const char *const layers[] = {"1,2", "1,0,2,1"};
    for (int l = 0; l < 2; l++) {
        pith_session *s = open_on(layers[l], NULL, 0, &err);
        REQUIRE(s && feed(s, 0, 10, &err) == PITH_OK, "%s", err.msg);
        far_plan(&(struct far_plan){.seed = 1});
        REQUIRE(feed(s, 0, 4 * N_BATCH + 3, &err) == PITH_OK, "%s", err.msg);
        uint64_t n = far_calls();
        memcpy(want, pith_logits(s, 0), sizeof want);
        REQUIRE(pith_truncate(s, 0, 10, &err) == PITH_OK, "%s", err.msg);
        for (int cancel = 0; cancel < 2; cancel++) {
            int failed = 0;
            for (uint64_t i = 1; i <= n; i += test_scale() >= 100 ? 1 : test_scale() >= 10 ? 3 : 19)
                interrupt_at(s, i, cancel, want, &failed);
            CHECK_MSG(failed > (test_scale() >= 10 ? 5 : 1), "%s: %d calls of %d failed",
                      layers[l], failed, (int)n);
        }
        pith_session_close(s);
    }
    check_nothing_held("failures");
    CHECK(far_live() == 0);
}

/* ---------------------------------------------------------------- two steps of the caller's */

enum { ROUNDS = 10 };

static pith_session *open_lanes(const char *layers, int32_t n_lanes, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    pith_session *s = open_on(layers, "1", 0, err), *two;
    if (!s)
        return NULL;
    sp.n_ctx = N_CTX;
    sp.n_seq = N_SEQ;
    sp.n_batch = N_BATCH;
    sp.n_lanes = n_lanes;
    two = pith_session_open(s->model, &sp, err);
    pith_session_close(s);
    return two;
}

/* Rows of round k of a half: a prompt, then a token of each of its sequences. */
static struct pith_batch rows_of(int half, int k, int32_t token[20], int32_t seq[20])
{
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = k ? 2 - half : 20;
    for (int32_t i = 0; i < b.n; i++) {
        token[i] = (i * 7 + 11 * k + half) % V;
        seq[i] = half ? 2 : i % 2;
    }
    b.token = token;
    b.seq = seq;
    return b;
}

static void take(pith_session *s, float *to, int32_t n)
{
    CHECK_MSG(pith_n_outputs(s) == n, "%d outputs, wanted %d", pith_n_outputs(s), n);
    for (int32_t i = 0; i < n && pith_logits(s, i); i++)
        memcpy(to + i * V, pith_logits(s, i), V * sizeof *to);
}

static void two_have_the_same_bits(void)
{
    static const char *const layers[] = {NULL, "1", "1,2", "0,1", "1,0,1,0"};
    static const char *const archs[] = {"gemma3", "mamba2"};
    static float want[ROUNDS][2][2 * V], got[ROUNDS][2][2 * V];
    struct pith_error err;
    int32_t token[20], seq[20];
    for (int i = 0; i < 10; i++) {
        make_model(archs[i % 2], 4);
        far_plan(&(struct far_plan){.seed = (uint64_t)i});
        pith_session *s = open_lanes(layers[i / 2], 2, &err);
        REQUIRE(s, "%s", err.msg);
        for (int k = 0; k < 2 * ROUNDS; k++) {
            struct pith_batch b = rows_of(k % 2, k / 2, token, seq);
            REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
            take(s, want[k / 2][k % 2], 2 - k % 2);
        }
        for (int32_t q = 0; q < N_SEQ; q++)
            CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
        for (int k = 0; k <= 2 * ROUNDS; k++) { /* one more is under way than was waited for */
            struct pith_batch b = rows_of(k % 2, k / 2, token, seq);
            if (k < 2 * ROUNDS)
                REQUIRE(pith_submit(s, &b, &err) == PITH_OK, "%s", err.msg);
            if (!k)
                continue;
            REQUIRE(pith_wait(s, &err) == PITH_OK, "%s", err.msg);
            take(s, got[(k - 1) / 2][(k - 1) % 2], 2 - (k - 1) % 2);
        }
        CHECK_MSG(!memcmp(want, got, sizeof want), "%s on %s: other bits", archs[i % 2],
                  layers[i / 2] ? layers[i / 2] : "the CPU");
        CHECK_MSG(s->cache.log->n < 4096, "the list of changes has grown to %u", s->cache.log->n);
        pith_session_close(s);
        unlink(path);
    }
    check_nothing_held("two steps");
}

static void what_is_refused_meanwhile(void)
{
    struct pith_error err;
    int32_t token[20], seq[20], bad = V;
    size_t n;
    make_model("llama", 4);
    far_plan(&(struct far_plan){.seed = 1});
    CHECK(!open_lanes(NULL, 5, &err) && strstr(err.msg, "n_lanes"));
    struct pith_batch b = rows_of(0, 0, token, seq), one = PITH_BATCH_INIT;
    pith_session *s = open_lanes(NULL, 1, &err);
    REQUIRE(s, "%s", err.msg);
    CHECK(pith_submit(s, &b, &err) == PITH_STATE && strstr(err.msg, "n_lanes"));
    CHECK(pith_wait(s, &err) == PITH_STATE && strstr(err.msg, "no step"));
    pith_session_close(s);
    s = open_lanes("1,2", 2, &err);
    REQUIRE(s && pith_submit(s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_submit(s, &b, &err) == PITH_STATE && strstr(err.msg, "sequence 0"));
    one.n = 1;
    one.token = &bad;
    int32_t third = 2;
    one.seq = &third;
    CHECK(pith_submit(s, &one, &err) == PITH_RANGE && s->cache.seq[2].n == 0);
    CHECK(pith_step(s, &one, &err) == PITH_STATE && strstr(err.msg, "pith_wait"));
    CHECK(pith_truncate(s, 2, 0, &err) == PITH_STATE && strstr(err.msg, "pith_wait"));
    CHECK(pith_copy(s, 2, 0, 0, -1, &err) == PITH_STATE);
    CHECK(pith_save_memory(s, 0, NULL, 0, &n, &err) == PITH_STATE);
    bad = 3;
    CHECK_MSG(pith_submit(s, &one, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_submit(s, &one, &err) == PITH_STATE && strstr(err.msg, "2 steps"));
    CHECK(pith_wait(s, &err) == PITH_OK && pith_n_outputs(s) == 2);
    CHECK(pith_wait(s, &err) == PITH_OK && pith_n_outputs(s) == 1);
    CHECK(pith_wait(s, &err) == PITH_STATE && pith_truncate(s, 2, 0, &err) == PITH_OK);
    CHECK(pith_submit(s, &one, &err) == PITH_OK);
    pith_session_close(s); /* gives it up */
    check_nothing_held("refusals");
    CHECK(far_live() == 0);
}

/* Call n of the devices fails, or is cancelled: the step that it was of is taken back, the other
 * one is not. */
static void one_of_two_fails(void)
{
    struct pith_error err;
    int32_t token[20], seq[20];
    static float want[2][2 * V], got[2][2 * V];
    make_model("gemma3", 4);
    far_plan(&(struct far_plan){.seed = 1});
    pith_session *s = open_lanes("1,2,1,2", 2, &err);
    REQUIRE(s, "%s", err.msg);
    uint64_t calls = 1;
    int failed = 0;
    for (uint64_t n = 0; n <= calls; n++) { /* the first time nothing fails */
        cancels = s;
        cancel_at = n % 5 == 4 ? n : 0;
        far_plan(&(struct far_plan){
            .seed = n, .fail_at = cancel_at ? 0 : n, .on_call = on_call});
        pith_status st[2], begun[2];
        for (int half = 0; half < 2; half++) {
            struct pith_batch b = rows_of(half, 0, token, seq);
            begun[half] = pith_submit(s, &b, &err);
        }
        for (int half = 0; half < 2; half++) {
            st[half] = begun[half] == PITH_OK ? pith_wait(s, &err) : begun[half];
            int32_t q = 2 * half, len = half ? 20 : 10;
            CHECK_MSG(s->cache.seq[q].n == (st[half] == PITH_OK ? len : 0),
                      "call %d: status %d, and the sequence holds %d", (int)n, (int)st[half],
                      s->cache.seq[q].n);
            if (st[half] == PITH_OK)
                take(s, n ? got[half] : want[half], 2 - half);
        }
        if (!n)
            calls = far_calls();
        pith_cancel_reset(s);
        far_plan(&(struct far_plan){.seed = n});
        for (int half = 0; half < 2; half++) {
            struct pith_batch b = rows_of(half, 0, token, seq);
            failed += st[half] != PITH_OK;
            if (st[half] == PITH_OK)
                continue;
            CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
            take(s, got[half], 2 - half);
        }
        CHECK_MSG(!n || !memcmp(want, got, sizeof want), "call %d: other bits", (int)n);
        for (int32_t q = 0; q < N_SEQ; q++)
            CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
    }
    CHECK_MSG(failed > (int)calls / 2, "%d steps failed in %d calls", failed, (int)calls);
    pith_session_close(s);
    check_nothing_held("one of two");
    CHECK(far_live() == 0);
}

static void bad_numbers(void)
{
    struct pith_error err;
    make_model("llama", 2);
    CHECK(!open_on("1,2", "5", 0, &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "PITH_PIPELINE"));
    CHECK(!open_on("1,2", "-1", 0, &err) && err.code == PITH_RANGE);
    check_nothing_held("bad numbers");
}

int main(void)
{
    test_seed();
    hook_install();
    tmp_make();
    TEST(devices_overlap);
    TEST(used_pages_are_no_hindrance);
    TEST(pages_are_found_once);
    TEST(bits_are_the_same);
    TEST(pages_are_used_again);
    TEST(failures_change_nothing);
    TEST(two_have_the_same_bits);
    TEST(what_is_refused_meanwhile);
    TEST(one_of_two_fails);
    TEST(bad_numbers);
    return test_end();
}
