/* test_drawn.c -- rows whose tokens are drawn from outputs of the step before (pith_batch.drawn):
 * in one call and with a step under way they have the bits and draws of tokens that are fed by
 * hand; what is refused; and that a step that fails takes the one behind it along, and nothing
 * else. On a GPU: gpu_test.h. */
#include <math.h>

#include "backend/far/far.h"
#include "model_file.h"
#include "random.h"

enum { V = 48, E = 32, N_CTX = 256, N_BATCH = 32, N_SEQ = 3, CHAIN = 64, PROMPT = 4 };

static char path[MODEL_PATH];

static void make_model(const char *arch)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_layer = 4;
    p.n_embd = E;
    model_file(path, p);
}

/* layers NULL: the CPU alone. */
static pith_session *open_on(const char *layers, pith_pooling pooling, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    mp.n_threads = 1;
    mp.n_batch = N_BATCH;
    sp.n_ctx = N_CTX;
    sp.n_seq = N_SEQ;
    sp.n_lanes = 2;
    sp.pooling = pooling;
    if (layers) {
        setenv("PITH_FAR_DEVICES", "2", 1);
        setenv("PITH_LAYER_DEVICES", layers, 1);
    }
    pith_model *m = pith_model_open(path, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    pith_model_close(m); /* the session keeps it */
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    return s;
}

static void empty(pith_session *s)
{
    struct pith_error err;
    for (int32_t q = 0; q < N_SEQ; q++)
        CHECK_MSG(pith_truncate(s, q, 0, &err) == PITH_OK, "%s", err.msg);
}

/* ---------------------------------------------------------------- chains */

/* Rows of a step of all sequences: their prompts, or one token of each. */
struct rows {
    struct pith_batch b;
    int32_t token[N_SEQ * PROMPT], seq[N_SEQ * PROMPT], drawn[N_SEQ];
    uint8_t want[N_SEQ * PROMPT];
    pith_sampler *sampler[N_SEQ];
};

static void make_prompts(struct rows *r, uint8_t want)
{
    *r = (struct rows){.b = PITH_BATCH_INIT};
    r->b.n = N_SEQ * PROMPT;
    for (int32_t i = 0; i < r->b.n; i++) {
        r->token[i] = (i * 5 + 3) % V;
        r->seq[i] = i % N_SEQ;
        r->want[i] = (uint8_t)(i >= r->b.n - N_SEQ ? want : 0);
    }
    r->b.token = r->token;
    r->b.seq = r->seq;
    r->b.want = r->want;
}

/* In every other step outputs are of sequences from the last one down. */
static int32_t output_of(int k, int32_t seq)
{
    return k % 2 ? N_SEQ - 1 - seq : seq;
}

/* Step k > 0: one token of each sequence. */
static void make_drawn(struct rows *r, int k, uint8_t want, pith_sampler *const *sampler)
{
    *r = (struct rows){.b = PITH_BATCH_INIT};
    r->b.n = N_SEQ;
    for (int32_t i = 0; i < N_SEQ; i++) {
        r->seq[i] = output_of(k, i);
        r->drawn[i] = output_of(k - 1, r->seq[i]);
        r->want[i] = want;
        r->sampler[i] = sampler ? sampler[r->seq[i]] : NULL;
    }
    r->b.drawn = r->drawn;
    r->b.seq = r->seq;
    r->b.want = r->want;
    r->b.sampler = sampler ? r->sampler : NULL;
}

struct chain {
    int32_t token[CHAIN][N_SEQ];
    float logits[CHAIN][N_SEQ][V];
};

static void open_samplers(pith_sampler *sampler[N_SEQ])
{
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err;
    p.temperature = 1.5f;
    p.top_k = 20;
    p.repeat_penalty = 1.2f; /* what was accepted counts */
    for (int32_t q = 0; q < N_SEQ; q++) {
        p.seed = 5 + (uint64_t)q;
        sampler[q] = pith_sampler_open(V, &p, &err);
        REQUIRE(sampler[q], "%s", err.msg);
    }
}

static void close_samplers(pith_sampler *sampler[N_SEQ])
{
    for (int32_t q = 0; q < N_SEQ; q++)
        pith_sampler_close(sampler[q]);
}

static void keep_logits(pith_session *s, struct chain *c, int k)
{
    CHECK_MSG(pith_n_outputs(s) == N_SEQ, "step %d has %d outputs", k, pith_n_outputs(s));
    for (int32_t q = 0; q < N_SEQ; q++) {
        const float *x = pith_logits(s, output_of(k, q));
        if (x)
            memcpy(c->logits[k][q], x, sizeof c->logits[k][q]);
    }
}

static void make_step(struct rows *r, int k, uint8_t want, pith_sampler *const *sampler)
{
    if (k)
        make_drawn(r, k, want, sampler);
    else
        make_prompts(r, want);
}

static void chain_by_hand(pith_session *s, int samples, struct chain *c)
{
    struct pith_error err;
    struct pith_sampler_params greedy = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *sampler[N_SEQ], *best = pith_sampler_open(V, &greedy, &err);
    struct rows r;
    open_samplers(sampler);
    empty(s);
    for (int k = 0; k < CHAIN; k++) {
        make_step(&r, k, 1, NULL);
        for (int32_t i = 0; k && i < N_SEQ; i++)
            r.token[i] = c->token[k - 1][r.seq[i]];
        r.b.drawn = NULL;
        r.b.token = r.token;
        REQUIRE(pith_step(s, &r.b, &err) == PITH_OK, "%s", err.msg);
        keep_logits(s, c, k);
        for (int32_t q = 0; q < N_SEQ; q++) {
            pith_sampler *by = samples ? sampler[q] : best;
            c->token[k][q] = pith_sample(by, c->logits[k][q]);
            pith_sampler_accept(by, c->token[k][q]);
        }
    }
    close_samplers(sampler);
    pith_sampler_close(best);
}

static void keep_tokens(pith_session *s, struct chain *c, int k)
{
    for (int32_t q = 0; q < N_SEQ; q++)
        c->token[k][q] = pith_drawn(s, output_of(k, q));
    CHECK(pith_drawn(s, N_SEQ) == -1 && pith_drawn(s, -1) == -1);
}

static void chain_by_step(pith_session *s, int samples, uint8_t want, struct chain *c)
{
    struct pith_error err;
    pith_sampler *sampler[N_SEQ];
    struct rows r;
    open_samplers(sampler);
    empty(s);
    for (int k = 0; k < CHAIN; k++) {
        make_step(&r, k, want, samples ? sampler : NULL);
        REQUIRE(pith_step(s, &r.b, &err) == PITH_OK, "step %d: %s", k, err.msg);
        if (k)
            keep_tokens(s, c, k - 1);
        keep_logits(s, c, k);
    }
    close_samplers(sampler);
}

/* Each step is given before the one before it has ended. */
static void chain_by_submit(pith_session *s, int samples, uint8_t want, struct chain *c)
{
    struct pith_error err;
    pith_sampler *sampler[N_SEQ];
    struct rows r;
    open_samplers(sampler);
    empty(s);
    for (int k = 0; k <= CHAIN; k++) {
        make_step(&r, k, want, samples ? sampler : NULL);
        if (k < CHAIN)
            REQUIRE(pith_submit(s, &r.b, &err) == PITH_OK, "step %d: %s", k, err.msg);
        memset(&r, 0xA5, sizeof r); /* it is the caller's again */
        if (!k)
            continue;
        REQUIRE(pith_wait(s, &err) == PITH_OK, "step %d: %s", k - 1, err.msg);
        keep_logits(s, c, k - 1);
        if (k < CHAIN)
            keep_tokens(s, c, k - 1);
    }
    close_samplers(sampler);
}

static void compare(const struct chain *want, const struct chain *got, int logits, const char *what)
{
    for (int k = 0; k < CHAIN; k++) {
        int last = k == CHAIN - 1; /* nobody has drawn from it */
        CHECK_MSG(last || !memcmp(want->token[k], got->token[k], sizeof want->token[k]),
                  "%s: step %d has drawn %d, wanted %d", what, k, got->token[k][0],
                  want->token[k][0]);
        CHECK_MSG(!logits || !memcmp(want->logits[k], got->logits[k], sizeof want->logits[k]),
                  "%s: step %d has other logits", what, k);
        if (memcmp(want->token[k], got->token[k], sizeof want->token[k]) != 0)
            return;
    }
}

static void chains_are_the_same(void)
{
    static const char *const layers[] = {NULL, "1", "1,2", "0,1"};
    static const char *const archs[] = {"gemma3", "mamba2"};
    static struct chain want, got;
    struct pith_error err;
    char what[64];
    for (int i = 0; i < 8; i++) {
        if (test_scale() < 10 && i % 2 != i / 2 % 2) /* each device with one of the two */
            continue;
        make_model(archs[i % 2]);
        far_plan(&(struct far_plan){.seed = (uint64_t)i});
        pith_session *s = open_on(layers[i / 2], PITH_POOL_NONE, &err);
        REQUIRE(s, "%s", err.msg);
        for (int samples = 0; samples < 2; samples++) {
            chain_by_hand(s, samples, &want);
            for (int way = 0; way < 4; way++) {
                uint8_t asks = way < 2 ? 1 : PITH_WANT_DRAWN;
                memset(&got, 0, sizeof got);
                snprintf(what, sizeof what, "%s on %s, way %d, %s", archs[i % 2],
                         layers[i / 2] ? layers[i / 2] : "the CPU", way,
                         samples ? "sampled" : "greedy");
                if (way % 2)
                    chain_by_submit(s, samples, asks, &got);
                else
                    chain_by_step(s, samples, asks, &got);
                compare(&want, &got, way < 2, what);
            }
        }
        pith_session_close(s);
        unlink(path);
    }
    check_nothing_held("chains");
    CHECK(far_live() == 0);
}

/* ---------------------------------------------------------------- beside other rows */

/* Tokens of a sequence are those that were drawn, so prefixes and snapshots know them. */
static void tokens_are_known(pith_session *s)
{
    int32_t held[PROMPT + 3], id = 7, zero[2] = {0, 0}, seq[2] = {0, 1};
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    size_t n_kept = 0;
    empty(s);
    REQUIRE(pith_feed(s, 0, &id, 1, &err) == PITH_OK, "%s", err.msg);
    b.n = 2; /* one output, two sequences */
    b.drawn = zero;
    b.seq = seq;
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    id = pith_drawn(s, 0);
    CHECK(pith_tokens(s, 0, held, 7) == 2 && held[0] == 7 && held[1] == id);
    CHECK(pith_tokens(s, 1, held + 2, 5) == 1 && held[2] == id && pith_n_outputs(s) == 2);
    CHECK(pith_prefix(s, 0, held, 2, &n_kept, &err) == PITH_OK && n_kept == 1);
    CHECK(pith_drawn(s, 0) == -1);
}

/* A drawn token, one that is given, an embedding row, and a drawn token with such a row. */
static void beside_other_rows(void)
{
    static const char *const layers[] = {NULL, "1,2"};
    static float want[4 * V];
    float embd[4 * E];
    struct pith_error err;
    make_model("llama");
    for (int i = 0; i < 4 * E; i++)
        embd[i] = (float)below(100) / 50 - 1;
    for (int l = 0; l < 2; l++) {
        pith_session *s = open_on(layers[l], PITH_POOL_NONE, &err);
        REQUIRE(s, "%s", err.msg);
        for (int by_hand = 1; by_hand >= 0; by_hand--) {
            int32_t token[4] = {9, 11, -1, -5}, drawn[4] = {0, -1, -1, 0}, seq[4] = {0, 1, 1, 2};
            uint8_t both[4] = {0, 0, 0, 1}, asks[4] = {1, 1, 1, 1};
            int32_t id = 7;
            struct pith_batch b = PITH_BATCH_INIT;
            empty(s);
            REQUIRE(pith_feed(s, 0, &id, 1, &err) == PITH_OK, "%s", err.msg);
            if (by_hand) {
                struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
                pith_sampler *best = pith_sampler_open(V, &p, &err);
                token[0] = token[3] = pith_sample(best, pith_logits(s, 0));
                pith_sampler_close(best);
            }
            b.n = 4;
            b.token = token;
            b.embd = embd;
            b.seq = seq;
            b.want = asks;
            b.both = both;
            b.drawn = by_hand ? NULL : drawn;
            REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
            for (int i = 0; i < 4 && by_hand; i++)
                memcpy(want + i * V, pith_logits(s, i), V * sizeof *want);
            for (int i = 0; i < 4; i++)
                CHECK_MSG(!memcmp(want + i * V, pith_logits(s, i), V * sizeof *want),
                          "row %d has other logits", i);
            CHECK(pith_length(s, 1) == 2 && pith_length(s, 0) == 2);
        }
        tokens_are_known(s);
        pith_session_close(s);
    }
    unlink(path);
    check_nothing_held("other rows");
}

/* ---------------------------------------------------------------- what is refused */

#define REFUSED(status, words)                                                                     \
    CHECK_MSG(pith_step(s, &b, &err) == (status) && strstr(err.msg, words), "wanted \"%s\": %s",   \
              words, err.msg)

static void what_is_refused(void)
{
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_logit_bias never[V];
    int32_t drawn[2] = {0, -1}, id = 3, ids[2] = {3, 4}, seq[2] = {0, 1};
    uint8_t both[2] = {1, 1}, asks[2] = {1, 1};
    make_model("llama");
    pith_session *s = open_on(NULL, PITH_POOL_NONE, &err);
    REQUIRE(s, "%s", err.msg);
    b.n = 1;
    b.drawn = drawn;
    REFUSED(PITH_STATE, "there is none"); /* no step before */
    REQUIRE(pith_feed(s, 0, ids, 2, &err) == PITH_OK, "%s", err.msg);
    drawn[0] = 1;
    REFUSED(PITH_RANGE, "has 0..0");
    drawn[0] = -2;
    REFUSED(PITH_RANGE, "-1 is none");
    drawn[0] = -1;
    REFUSED(PITH_RANGE, "has no token");
    drawn[0] = 0;
    b.both = both;
    REFUSED(PITH_RANGE, "has no embedding row");
    b.both = NULL;
    pith_sampler *by[2] = {pith_sampler_open(V + 1, &p, &err), NULL};
    b.sampler = by;
    REFUSED(PITH_SHAPE, "49 tokens");
    pith_sampler_close(by[0]);
    by[0] = pith_sampler_open(V, &p, &err);
    drawn[1] = 0;
    b.n = 2;
    b.seq = seq;
    REFUSED(PITH_RANGE, "unlike samplers");
    pith_sampler_close(by[0]);
    for (int32_t i = 0; i < V; i++)
        never[i] = (struct pith_logit_bias){i, -INFINITY};
    p.logit_bias = never;
    p.n_logit_bias = V;
    by[0] = by[1] = pith_sampler_open(V, &p, &err);
    REFUSED(PITH_STATE, "output 0");
    CHECK(pith_length(s, 0) == 2 && pith_n_outputs(s) == 1 && pith_logits(s, 0));
    /* The same of a step under way: it is told when the second one is waited for. */
    struct pith_batch first = PITH_BATCH_INIT;
    first.n = 2;
    first.token = ids;
    first.seq = seq;
    first.want = asks;
    CHECK_MSG(pith_submit(s, &first, &err) == PITH_OK, "%s", err.msg);
    float embd[2 * E] = {0};
    b.embd = embd;
    CHECK(pith_submit(s, &b, &err) == PITH_UNSUPPORTED && strstr(err.msg, "embedding rows"));
    b.embd = NULL;
    CHECK_MSG(pith_submit(s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_submit(s, &b, &err) == PITH_STATE && strstr(err.msg, "2 steps"));
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_STATE);
    CHECK(pith_wait(s, &err) == PITH_OK && pith_n_outputs(s) == 2 && pith_drawn(s, 0) == -1);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_STATE);
    CHECK(pith_wait(s, &err) == PITH_STATE && strstr(err.msg, "output 0"));
    CHECK(pith_length(s, 0) == 3 && pith_length(s, 1) == 1 && !pith_n_outputs(s));
    REFUSED(PITH_STATE, "has failed"); /* there are no outputs behind it */
    CHECK(pith_feed(s, 0, &id, 1, &err) == PITH_OK);
    CHECK_MSG(pith_submit(s, &first, &err) == PITH_OK && pith_submit(s, &b, &err) == PITH_OK, "%s",
              err.msg);
    pith_session_close(s); /* gives both up */
    pith_sampler_close(by[0]);
    s = open_on(NULL, PITH_POOL_MEAN, &err);
    REQUIRE(s && pith_feed(s, 0, ids, 2, &err) == PITH_OK, "%s", err.msg);
    b.sampler = NULL;
    b.seq = NULL;
    b.n = 1;
    REFUSED(PITH_STATE, "no logits");
    pith_session_close(s);
    unlink(path);
    check_nothing_held("refusals");
}

/* ---------------------------------------------------------------- failures */

/* Call n of the devices fails while a step and the one that is drawn from it are under way. */
static void what_fails_goes_alone(void)
{
    static float want[2][V], got[2][V];
    struct pith_error err;
    int32_t ids[3] = {3, 4, 5}, zero = 0, id = -1;
    make_model("gemma3");
    pith_session *s = open_on("1,2,1,2", PITH_POOL_NONE, &err);
    REQUIRE(s, "%s", err.msg);
    struct pith_batch first = PITH_BATCH_INIT, then = PITH_BATCH_INIT;
    first.n = 3;
    first.token = ids;
    then.n = 1;
    then.drawn = &zero;
    uint64_t calls = 1;
    int n_failed[2] = {0, 0};
    for (uint64_t n = 0; n <= calls; n++) { /* the first time nothing fails */
        far_plan(&(struct far_plan){.seed = n, .fail_at = n});
        pith_status begun[2], st[2] = {PITH_OK, PITH_OK};
        begun[0] = pith_submit(s, &first, &err);
        begun[1] = begun[0] == PITH_OK ? pith_submit(s, &then, &err) : begun[0];
        CHECK_MSG(begun[0] != PITH_OK || begun[1] == PITH_OK, "it is kept: %s", err.msg);
        for (int i = 0; i < 2; i++) {
            st[i] = begun[i] == PITH_OK ? pith_wait(s, &err) : begun[i];
            if (st[i] == PITH_OK)
                memcpy(n ? got[i] : want[i], pith_logits(s, 0), sizeof *want);
            if (!i && st[0] == PITH_OK)
                id = st[0] == PITH_OK && pith_drawn(s, 0) >= 0 ? pith_drawn(s, 0) : id;
            n_failed[i] += st[i] != PITH_OK;
        }
        if (!n)
            calls = far_calls();
        far_plan(&(struct far_plan){.seed = n});
        CHECK_MSG(st[0] == PITH_OK || st[1] == st[0], "call %d: %d, then %d", (int)n, (int)st[0],
                  (int)st[1]);
        CHECK_MSG(pith_length(s, 0) == (st[0] != PITH_OK ? 0 : st[1] != PITH_OK ? 3 : 4),
                  "call %d: %d and %d, and the sequence holds %d", (int)n, (int)st[0], (int)st[1],
                  (int)pith_length(s, 0));
        if (st[0] != PITH_OK) {
            CHECK_MSG(pith_step(s, &first, &err) == PITH_OK, "%s", err.msg);
            memcpy(got[0], pith_logits(s, 0), sizeof *got);
        }
        if (st[1] != PITH_OK) {
            CHECK_MSG(pith_feed(s, 0, &id, 1, &err) == PITH_OK, "%s", err.msg);
            memcpy(got[1], pith_logits(s, 0), sizeof *got);
        }
        CHECK_MSG(!n || !memcmp(want, got, sizeof want), "call %d: other bits", (int)n);
        empty(s);
    }
    CHECK_MSG(n_failed[0] > 5 && n_failed[1] > n_failed[0] + 5, "%d and %d steps failed",
              n_failed[0], n_failed[1]);
    pith_session_close(s);
    check_nothing_held("failures");
    CHECK(far_live() == 0);
}

int main(void)
{
    test_seed();
    hook_install();
    tmp_make();
    TEST(chains_are_the_same);
    TEST(beside_other_rows);
    TEST(what_is_refused);
    TEST(what_fails_goes_alone);
    return test_end();
}
