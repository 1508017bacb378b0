/* test_seq.c -- sequences between steps: edits, and that they give the bits of the naive cache
 * (naive_cache.h), whatever was shared, given back, gathered or rotated on the way. A script is a
 * row of random calls over a few sequences; every logit that comes out is compared. TEST_SEED
 * chooses other scripts. */
#include "check_pages.h"
#include "naive_cache.h"
#include "random.h"
#include "small_model.h"

#include <math.h>

enum { NAIVE_CTX = 512 }; /* more than N_CTX, so that a window as long as N_CTX is one */
static const char *const wide[] = {"gemma3.attention.sliding_window=int:320", NULL};
enum { N_SEQ = 5, N_CTX = 320, N_VOCAB = 64, N_BATCH = 24, MANY = 90 };

static const struct kind {
    const char *name, *arch, *type;
    int32_t n_tokens; /* of the session: with few, window layers give pages back */
    int32_t store;    /* bytes of the prefix store */
    const char *const *overrides;
    int axes; /* positions that rows are given: of so many axes */
} kinds[] = {
    {"full f16", "llama", "f16", 0, 0, NULL, 0},
    {"full f32, store", "qwen2", "f32", 0, 300000, NULL, 0},
    {"window", "gemma3", "f16", 0, 0, NULL, 0},
    {"window, short of pages", "gemma3", "f16", 150, 0, NULL, 0},
    {"window, store", "gemma3", "f16", 150, 40000, NULL, 0},
    {"mixed q8_0", "gemma2", "q8_0", 0, 0, NULL, 0},
    {"mixed, short of pages", "gemma2", "f32", 400, 0, NULL, 0},
    {"mixed, short of pages, store", "gemma2", "f16", 300, 100000, NULL, 0},
    {"full q4_0, short of pages", "llama", "q4_0", 400, 0, NULL, 0},
    {"a window of the context", "gemma3", "f16", 0, 0, wide, 0},
    {"four positions", "qwen2vl", "f16", 0, 0, NULL, 4},
    {"four positions, short of pages, store", "qwen3vl", "f32", 400, 100000, NULL, 4},
    {"four positions q8_0", "qwen2vl", "q8_0", 0, 0, NULL, 4},
    {"positions given, a window, store", "gemma2", "f16", 400, 100000, NULL, 1},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static pith_model *synth(const struct kind *k, int32_t n_layer)
{
    struct pith_synth_params p = small_params(k->arch, N_VOCAB);
    p.n_layer = n_layer;
    p.head_dim = 32; /* whole blocks of quantised caches */
    p.seed = 7;
    return small_model(&p, N_BATCH, k->overrides);
}

static pith_session *open_session(pith_model *m, const struct kind *k, int32_t n_seq)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = n_seq;
    sp.n_tokens = k->n_tokens;
    sp.store_bytes = k->store;
    sp.cache_type_k = sp.cache_type_v = k->type;
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s, "%s: %s", k->name, err.msg);
    return s;
}

/* ---------------------------------------------------------------- scripts */

struct script {
    const struct kind *kind;
    pith_session *s;
    struct naive m;
    int64_t compared, refused;
};

static void compare(struct script *x, int32_t seq, const float *got, const float *want)
{
    x->compared++;
    CHECK_MSG(got && !memcmp(got, want, N_VOCAB * sizeof *got),
              "%s: logits of sequence %d differ:%s", x->kind->name, seq, test_calls);
}

static int has_windows(const struct script *x)
{
    int some = 0;
    for (int g = 0; g < x->s->cache.n_own; g++)
        some |= x->s->cache.group[g].span > 0;
    return some;
}

/* What the engine may refuse for want of pages or of slid windows; anything else has to agree. */
static int refused(struct script *x, pith_status st, const struct pith_error *err)
{
    if (st == PITH_OK)
        return 0;
    CHECK_MSG((st == PITH_NOMEM && x->kind->n_tokens) ||
                  (st == PITH_STATE && has_windows(x)),
              "%s: %s:%s", x->kind->name, err->msg, test_calls);
    x->refused++;
    return 1;
}

/* Positions of n rows that follow what a sequence holds: of text, or an image's. */
static void random_places(const struct script *x, int32_t q, int32_t n, int32_t *pos)
{
    const struct naive_seq *m = &x->m.seq[q];
    int32_t last = m->n ? m->e[m->n - 1].pos : 0, next = naive_next(m);
    for (int32_t i = 0; i < n; i++, pos += 4) {
        if (!below(4)) {
            pos[0] = -1;
            last = next++;
            continue;
        }
        last = pos[0] = below(4) ? last : last + below(3) + (i == 0) * below(9);
        for (int k = 1; k < 4; k++) /* of others what is behind the first does not matter */
            pos[k] = k < 3 ? last + below(6) : below(3);
        next = x->kind->axes == 4 ? naive_after(last, pos + 1) : last + 1;
    }
}

/* What a model that goes by one position has of those that were given. */
static void narrow(const struct script *x, int32_t *pos, int32_t n)
{
    for (int32_t i = 0; i < n && x->kind->axes < 4; i++, pos += 4) {
        pos[1] = pos[2] = pos[0];
        pos[3] = 0;
    }
}

/* Rows of one or more sequences in one call. */
static void add(struct script *x)
{
    static int32_t pos[N_SEQ * MANY * 4];
    int given = x->kind->axes && below(3);
    int32_t token[N_SEQ * MANY], seq[N_SEQ * MANY], n_of[N_SEQ] = {0}, n = 0, out = 0, extra = 0;
    uint8_t want[N_SEQ * MANY];
    struct pith_error err;
    for (int32_t q = 0; q < N_SEQ; q++) {
        int32_t room = N_CTX - x->m.seq[q].n;
        n_of[q] = below(3) ? 0 : 1 + below(below(3) ? 6 : MANY);
        n_of[q] = n_of[q] < room ? n_of[q] : room;
        for (int32_t i = 0; i < n_of[q]; i++, n++) {
            token[n] = below(N_VOCAB);
            seq[n] = q;
            want[n] = i == n_of[q] - 1 || (!below(16) && extra++ < N_BATCH - N_SEQ);
        }
        if (given)
            random_places(x, q, n_of[q], pos + 4 * (n - n_of[q]));
    }
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = n;
    b.token = token;
    b.seq = seq;
    b.want = want;
    b.pos = given ? pos : NULL;
    if (!n)
        return;
    note(" add %d %d %d %d %d;", n_of[0], n_of[1], n_of[2], n_of[3], n_of[4]);
    if (!below(8)) { /* first in vain: it changes nothing */
        note(" (cancelled)");
        pith_cancel(x->s);
        pith_status st = pith_step(x->s, &b, &err);
        CHECK_MSG(st == PITH_CANCELLED || st == PITH_NOMEM, "%s: %s", x->kind->name, err.msg);
        pith_cancel_reset(x->s);
        return;
    }
    pith_status st = pith_step(x->s, &b, &err);
    if (refused(x, st, &err))
        return;
    if (given)
        narrow(x, pos, n);
    for (int32_t at = 0, end; at < n; at = end) {
        for (end = at; end < n && end < at + N_BATCH && seq[end] == seq[at]; end++)
            ;
        REQUIRE(naive_feed(&x->m, seq[at], token + at, given ? pos + 4 * at : NULL, end - at),
                "the naive cache failed");
        for (int32_t i = at; i < end; i++)
            if (want[i])
                compare(x, seq[at], pith_logits(x->s, out++), naive_logits(&x->m, i - at));
    }
}

static void random_range(const struct script *x, int32_t seq, int64_t *p0, int64_t *p1)
{
    const struct naive_seq *q = &x->m.seq[seq];
    int32_t last = q->n ? q->e[q->n - 1].pos : 0;
    *p0 = below(last + 2);
    *p1 = below(10) ? *p0 + below(below(2) ? 100 : 20) : -1;
}

/* The whole sequence anew, with a prefix of what it holds: as a fresh one. */
static void prefix(struct script *x, int32_t seq)
{
    int32_t token[N_CTX], n = 0, held = x->m.seq[seq].n, more = 1 + below(20);
    int32_t keep = below(4) ? held - below(held / 4 + 1) : below(held + 1);
    struct pith_error err;
    size_t kept = 0;
    for (; n < keep; n++)
        token[n] = x->m.seq[seq].e[n].token;
    for (; n < keep + more && n < N_CTX; n++)
        token[n] = below(N_VOCAB);
    note(" prefix %d: %d of %d;", seq, n, keep);
    pith_status st = pith_prefix(x->s, seq, token, (size_t)n, &kept, &err);
    if (refused(x, st, &err)) { /* it holds the common prefix then; forget it */
        CHECK(pith_truncate(x->s, seq, 0, &err) == PITH_OK);
        n = 0;
    }
    naive_remove(&x->m, seq, 0, -1);
    for (int32_t at = 0; at < n; at += N_BATCH)
        REQUIRE(naive_feed(&x->m, seq, token + at, NULL, n - at < N_BATCH ? n - at : N_BATCH),
                "the naive cache failed");
    if (n)
        compare(x, seq, pith_logits(x->s, 0), naive_logits(&x->m, (n - 1) % N_BATCH));
}

static void shift(struct script *x, int32_t seq, int64_t p0, int64_t p1)
{
    struct pith_error err;
    const struct naive_seq *q = &x->m.seq[seq];
    int64_t delta = (below(60) - 30) * (x->kind->overrides == wide ? 15 : 1), lowest = INT64_MAX;
    for (int32_t i = q->n - 1; i >= 0; i--)
        if (q->e[i].pos >= p0 && (p1 < 0 || q->e[i].pos < p1))
            for (int k = 0; k < STEP_AXES; k++) {
                int32_t pos = k ? q->e[i].axes[k - 1] : q->e[i].pos;
                lowest = pos < lowest ? pos : lowest;
            }
    note(" shift %d [%d, %d) by %d;", seq, (int)p0, (int)p1, (int)delta);
    pith_status st = pith_shift(x->s, seq, p0, p1, delta, &err);
    if (lowest < -delta)
        CHECK_MSG(st == PITH_RANGE, "a shift below 0:%s", test_calls);
    else if (!refused(x, st, &err))
        naive_move(&x->m, seq, p0, p1, delta, 1);
}

/* A sequence through memory into another one, or the whole session through it and back. */
static void save_and_load(struct script *x, int32_t from, int32_t to)
{
    struct pith_error err;
    size_t n = 0;
    int whole = !below(4);
    note(whole ? " save and load all;" : " save %d, load as %d;", from, to);
    CHECK(pith_save_memory(x->s, whole ? -1 : from, NULL, 0, &n, &err) == PITH_OK);
    uint8_t *p = malloc(n);
    CHECK(pith_save_memory(x->s, whole ? -1 : from, p, n, &n, &err) == PITH_OK);
    pith_status st = pith_load_memory(x->s, whole ? -1 : to, p, n, &err);
    free(p);
    if (refused(x, st, &err) || whole)
        return;
    naive_copy(&x->m, to, from, 0, -1);
}

static void call(struct script *x)
{
    int32_t seq = below(N_SEQ), other = below(N_SEQ), by = 1 + below(4);
    int64_t p0, p1;
    struct pith_error err;
    random_range(x, seq, &p0, &p1);
    switch (below(20)) {
    case 0:
    case 1:
        note(" remove %d [%d, %d);", seq, (int)p0, (int)p1);
        if (!refused(x, pith_remove(x->s, seq, p0, p1, &err), &err))
            naive_remove(&x->m, seq, p0, p1);
        break;
    case 2:
    case 3:
        p0 = below(2) ? p0 : 0;
        note(" copy %d to %d [%d, %d);", seq, other, (int)p0, (int)p1);
        if (!refused(x, pith_copy(x->s, other, seq, p0, p1, &err), &err))
            naive_copy(&x->m, other, seq, p0, p1);
        break;
    case 4:
    case 5:
        shift(x, seq, p0, p1);
        break;
    case 6:
        note(" divide %d [%d, %d) by %d;", seq, (int)p0, (int)p1, by);
        if (!refused(x, pith_divide(x->s, seq, p0, p1, by, &err), &err))
            naive_move(&x->m, seq, p0, p1, 0, by);
        break;
    case 7:
        note(" truncate %d;", seq);
        p0 = x->m.seq[seq].n - below(x->m.seq[seq].n / 3 + 1);
        if (!refused(x, pith_truncate(x->s, seq, p0, &err), &err))
            while (x->m.seq[seq].n > p0)
                free(x->m.seq[seq].e[--x->m.seq[seq].n].kv);
        break;
    case 8:
        prefix(x, seq);
        break;
    case 9:
        pith_trim(x->s);
        if (below(8))
            break;
        note(" keep %d;", seq);
        CHECK(pith_keep(x->s, seq, &err) == PITH_OK);
        for (int32_t q = 0; q < N_SEQ; q++)
            if (q != seq)
                naive_remove(&x->m, q, 0, -1);
        break;
    case 10:
        save_and_load(x, seq, other);
        break;
    default:
        add(x);
    }
}

static void check_held(const struct script *x)
{
    for (int32_t q = 0; q < N_SEQ; q++) {
        const struct naive_seq *m = &x->m.seq[q];
        CHECK_MSG(pith_length(x->s, q) == m->n &&
                      pith_position_min(x->s, q) == (m->n ? m->e[0].pos : -1) &&
                      pith_position_max(x->s, q) == (m->n ? m->e[m->n - 1].pos : -1),
                  "%s: sequence %d holds %d tokens at %d..%d, wanted %d:%s", x->kind->name, q,
                  (int)pith_length(x->s, q), (int)pith_position_min(x->s, q),
                  (int)pith_position_max(x->s, q), m->n, test_calls);
    }
}

static void run_scripts(const struct kind *k, int n_scripts)
{
    struct script x = {.kind = k};
    struct pith_error err;
    pith_model *m = synth(k, 2);
    REQUIRE(m, "no model");
    x.s = open_session(m, k, N_SEQ);
    REQUIRE(x.s && naive_open(&x.m, m, N_SEQ, NAIVE_CTX, k->type, &err), "no session");
    for (int i = 0; i < n_scripts && !test_bad; i++) {
        for (int n = 20 + below(60); n && !test_bad; n--) {
            call(&x);
            check_held(&x);
            check_pages(x.s, k->name, test_calls);
        }
        for (int32_t q = 0; q < N_SEQ; q++) {
            CHECK(pith_remove(x.s, q, 0, -1, &err) == PITH_OK);
            naive_remove(&x.m, q, 0, -1);
        }
        check_pages(x.s, k->name, test_calls);
        test_calls[0] = 0; /* the next script meets the store as this one left it */
    }
    printf("# %s: %d scripts, %lld rows compared, %lld calls refused\n", k->name, n_scripts,
           (long long)x.compared, (long long)x.refused);
    CHECK(x.compared > n_scripts);
    naive_close(&x.m);
    pith_session_close(x.s);
    pith_model_close(m);
}

static void test_scripts(void)
{
    int n = test_scale() >= 100 ? 10000 : test_scale() >= 10 ? 3000 : 250;
    for (int i = 0; i < N_KINDS; i++)
        run_scripts(&kinds[i], (n + N_KINDS - 1) / N_KINDS);
}

/* A step that fails has not carried out the edits before it: a later shift is added to them, and K
 * is rotated, and rounded, once. */
static void test_failed_step(void)
{
    for (int i = 0; i < N_KINDS && !test_bad; i++) {
        struct pith_error err;
        struct kind k = kinds[i];
        k.n_tokens = 0;
        pith_model *m = synth(&k, 2);
        pith_session *fails = m ? open_session(m, &k, 2) : NULL,
                     *not = m ? open_session(m, &k, 2) : NULL;
        int32_t token[150];
        REQUIRE(fails && not, "no session");
        for (int n = 0; n < 150; n++)
            token[n] = below(N_VOCAB);
        for (int s = 0; s < 2; s++) {
            CHECK(pith_feed(s ? fails : not, 0, token, 140, &err) == PITH_OK);
            CHECK(pith_remove(s ? fails : not, 0, 100, 110, &err) == PITH_OK);
            CHECK(pith_shift(s ? fails : not, 0, 50, -1, 11, &err) == PITH_OK);
        }
        pith_cancel(fails);
        CHECK(pith_feed(fails, 0, token + 140, 10, &err) == PITH_CANCELLED);
        pith_cancel_reset(fails);
        for (int s = 0; s < 2; s++) {
            CHECK(pith_shift(s ? fails : not, 0, 70, -1, -5, &err) == PITH_OK);
            CHECK(pith_feed(s ? fails : not, 0, token + 140, 10, &err) == PITH_OK);
        }
        CHECK_MSG(!memcmp(pith_logits(fails, 0), pith_logits(not, 0), N_VOCAB * sizeof(float)),
                  "%s: logits differ", k.name);
        pith_session_close(fails);
        pith_session_close(not );
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- what edits mean */

/* In a model of one layer K and V depend on a token and its position alone: what is left after a
 * removal and a shift is what feeding it anew gives, but for the rounding of a rotation. */
static void test_meaning(void)
{
    for (int i = 0; i < N_KINDS && !test_bad; i++) {
        struct kind k = kinds[i];
        struct pith_error err;
        int32_t token[150];
        k.type = "f32";
        k.n_tokens = 0;
        pith_model *m = synth(&k, 1);
        pith_session *s = m ? open_session(m, &k, 2) : NULL;
        REQUIRE(s, "no session");
        for (int n = 0; n < 150; n++)
            token[n] = below(N_VOCAB);
        CHECK(pith_feed(s, 0, token, 149, &err) == PITH_OK);
        CHECK(pith_remove(s, 0, 0, 70, &err) == PITH_OK && pith_position_min(s, 0) == 70);
        CHECK(pith_shift(s, 0, 0, -1, -30, &err) == PITH_OK);
        CHECK(pith_shift(s, 0, 40, -1, -40, &err) == PITH_OK && pith_position_max(s, 0) == 78);
        CHECK(pith_feed(s, 0, token + 149, 1, &err) == PITH_OK);
        float got[N_VOCAB];
        memcpy(got, pith_logits(s, 0), sizeof got);
        CHECK(pith_feed(s, 1, token + 70, 80, &err) == PITH_OK);
        for (int v = 0; v < N_VOCAB; v++)
            CHECK_MSG(fabsf(got[v] - pith_logits(s, 0)[v]) < 1e-4f, "%s: logit %d is %g, wanted %g",
                      k.name, v, (double)got[v], (double)pith_logits(s, 0)[v]);
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* A window that is no shorter than the context still is one: what a shift has moved out of it is
 * not seen. */
static void test_wide_window(void)
{
    struct kind k = {"wide", "gemma3", "f32", 0, 0, wide, 0};
    struct pith_error err;
    int32_t token[60];
    float far[N_VOCAB], near[N_VOCAB];
    pith_model *m = synth(&k, 1);
    pith_session *s = m ? open_session(m, &k, 3) : NULL;
    REQUIRE(s, "no session");
    for (int n = 0; n < 60; n++)
        token[n] = below(N_VOCAB);
    CHECK(pith_feed(s, 0, token, 50, &err) == PITH_OK);
    CHECK(pith_shift(s, 0, 20, -1, 1000, &err) == PITH_OK);
    CHECK(pith_feed(s, 0, token + 50, 10, &err) == PITH_OK);
    memcpy(far, pith_logits(s, 0), sizeof far);
    CHECK(pith_feed(s, 1, token, 50, &err) == PITH_OK); /* and without them at all */
    CHECK(pith_shift(s, 1, 20, -1, 1000, &err) == PITH_OK);
    CHECK(pith_remove(s, 1, 0, 20, &err) == PITH_OK);
    CHECK(pith_feed(s, 1, token + 50, 10, &err) == PITH_OK);
    CHECK_MSG(!memcmp(far, pith_logits(s, 0), sizeof far), "positions beyond the window are seen");
    CHECK(pith_feed(s, 2, token, 60, &err) == PITH_OK);
    memcpy(near, pith_logits(s, 0), sizeof near);
    CHECK_MSG(memcmp(far, near, sizeof near), "the first 20 tokens change nothing");
    pith_session_close(s);
    pith_model_close(m);
}

/* A window's pages that an edit would move, though no row to come sees them, go where pages are
 * short: the sequence goes on, and others do while its edit is pending. As where there are enough.
 */
static void test_edit_of_a_long_window(void)
{
    enum { LONG = 1400, CTX = 1600 };
    static const char *const over[] = {"gemma3.attention.sliding_window=int:64", NULL};
    static int32_t token[LONG];
    const struct kind k = {"a long window", "gemma3", "f16", 0, 0, over, 0};
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    pith_session *s[2];
    pith_model *m = synth(&k, 2);
    for (int i = 0; i < LONG; i++)
        token[i] = below(N_VOCAB);
    for (int few = 0; few < 2; few++) { /* there are pages for so many sequences */
        sp.n_ctx = CTX;
        sp.n_seq = few ? 4 : 40;
        s[few] = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s[few] && s[few]->cache.n_own == 1, "no session");
        CHECK(pith_feed(s[few], 0, token, LONG, &err) == PITH_OK);
        CHECK(pith_remove(s[few], 0, 10, 20, &err) == PITH_OK);
        CHECK(pith_shift(s[few], 0, 20, -1, -10, &err) == PITH_OK);
        if (few) /* as when the others want pages before it goes on */
            CHECK_MSG(pith_feed(s[1], 1, token, 300, &err) == PITH_OK, "%s", err.msg);
        check_pages(s[few], k.name, "others");
        pith_cancel(s[few]); /* in vain: it stays edited */
        CHECK(pith_feed(s[few], 0, token, 30, &err) == PITH_CANCELLED);
        pith_cancel_reset(s[few]);
        CHECK_MSG(pith_feed(s[few], 0, token, 30, &err) == PITH_OK, "%s", err.msg);
        check_pages(s[few], k.name, "on");
    }
    for (int back = 0; back < 2; back++) { /* what a row behind sees is there after the edit, too */
        CHECK_MSG(!test_bad &&
                      !memcmp(pith_logits(s[0], 0), pith_logits(s[1], 0), N_VOCAB * sizeof(float)),
                  "logits differ");
        for (int i = 0; i < 2 && !back; i++)
            CHECK(pith_truncate(s[i], 0, LONG - 10, &err) == PITH_OK &&
                  pith_feed(s[i], 0, token + 40, 3, &err) == PITH_OK);
    }
    CHECK(pith_truncate(s[0], 0, 600, &err) == PITH_OK);
    CHECK(pith_truncate(s[1], 0, 600, &err) == PITH_STATE && strstr(err.msg, "no longer hold"));
    pith_session_close(s[0]);
    pith_session_close(s[1]);
    pith_model_close(m);
}

/* What is fed after an edit has the pages that the edit gives back, as soon as it wants them. */
static void test_fed_to_the_end(void)
{
    enum { CTX = 256 };
    const struct kind k = {"to the end", "llama", "f16", 0, 0, NULL, 0};
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t token[CTX];
    pith_session *s[2];
    pith_model *m = synth(&k, 2);
    for (int i = 0; i < CTX; i++)
        token[i] = below(N_VOCAB);
    for (int few = 0; few < 2; few++) {
        sp.n_ctx = CTX;
        sp.n_seq = few ? 1 : 4;
        s[few] = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s[few], "no session");
        CHECK(pith_feed(s[few], 0, token, 250, &err) == PITH_OK);
        CHECK(pith_remove(s[few], 0, 60, 188, &err) == PITH_OK);
        pith_cancel(s[few]);
        CHECK(pith_feed(s[few], 0, token, 128, &err) == PITH_CANCELLED);
        pith_cancel_reset(s[few]);
        check_pages(s[few], k.name, "in vain");
        CHECK_MSG(pith_feed(s[few], 0, token, 128, &err) == PITH_OK, "%s", err.msg);
        check_pages(s[few], k.name, "on");
    }
    CHECK_MSG(!test_bad &&
                  !memcmp(pith_logits(s[0], 0), pith_logits(s[1], 0), N_VOCAB * sizeof(float)),
              "logits differ");
    pith_session_close(s[0]);
    pith_session_close(s[1]);
    pith_model_close(m);
}

/* Slots that no row to come sees may have lain behind all that are seen: their pages are gone, and
 * a snapshot of the edited sequence has them on its table all the same. */
static void test_saved_without_pages(void)
{
    enum { LONG = 1400 };
    static const char *const over[] = {"gemma3.attention.sliding_window=int:64", NULL};
    static int32_t token[LONG];
    const struct kind k = {"pages given back", "gemma3", "f16", 0, 0, over, 0};
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    float want[N_VOCAB];
    size_t n = 0;
    pith_model *m = synth(&k, 2);
    sp.n_ctx = 1600;
    sp.n_seq = 4;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "no session");
    for (int i = 0; i < LONG; i++)
        token[i] = below(N_VOCAB);
    CHECK(pith_feed(s, 0, token, LONG, &err) == PITH_OK);
    CHECK(pith_shift(s, 0, 1300, -1, -1300, &err) == PITH_OK); /* the last are the first now */
    CHECK_MSG(pith_feed(s, 1, token, 300, &err) == PITH_OK, "%s", err.msg);
    CHECK(s->cache.seq[0].pages[0][LONG / STEP_PAGE] < 0 && s->cache.seq[0].pending);
    CHECK(pith_save_memory(s, 0, NULL, 0, &n, &err) == PITH_OK);
    void *p = malloc(n);
    CHECK(pith_save_memory(s, 0, p, n, &n, &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(s, 2, p, n, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_feed(s, 0, token, 30, &err) == PITH_OK, "%s", err.msg);
    memcpy(want, pith_logits(s, 0), sizeof want);
    CHECK_MSG(pith_feed(s, 2, token, 30, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "logits differ");
    check_pages(s, k.name, "loaded");
    free(p);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_refusals(void)
{
    static const int64_t bad[][2] = {{-1, 5},        {5, 4},         {0, -2},
                                     {INT64_MIN, 0}, {3, INT64_MIN}, {INT64_MAX, INT64_MAX - 1}};
    static const int64_t deltas[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 30,
                                     -((int64_t)1 << 32)};
    static const int64_t divisors[] = {0, -1, INT64_MIN, INT64_MAX};
    static const struct kind kind = {"full f16", "llama", "f16", 0, 0, NULL, 0};
    struct pith_error err;
    pith_model *m = synth(&kind, 2);
    pith_session *s = m ? open_session(m, &kind, 2) : NULL;
    int32_t token[90] = {0};
    REQUIRE(s && pith_feed(s, 0, token, 90, &err) == PITH_OK, "no session");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t p0 = bad[i][0], p1 = bad[i][1];
        CHECK(pith_remove(s, 0, p0, p1, &err) == PITH_RANGE && strstr(err.msg, "0 <= p0 <= p1"));
        CHECK(pith_copy(s, 1, 0, p0, p1, NULL) == PITH_RANGE);
        CHECK(pith_shift(s, 0, p0, p1, 1, NULL) == PITH_RANGE);
        CHECK(pith_divide(s, 0, p0, p1, 2, NULL) == PITH_RANGE);
    }
    for (int32_t q = -1; q <= 2; q += 3) {
        CHECK(pith_remove(s, q, 0, -1, NULL) == PITH_RANGE && pith_keep(s, q, NULL) == PITH_RANGE);
        CHECK(pith_copy(s, q, 0, 0, -1, NULL) == PITH_RANGE);
        CHECK(pith_copy(s, 0, q, 0, -1, NULL) == PITH_RANGE);
        CHECK(pith_shift(s, q, 0, -1, 1, NULL) == PITH_RANGE);
        CHECK(pith_divide(s, q, 0, -1, 2, NULL) == PITH_RANGE);
        CHECK(pith_position_min(s, q) == -1 && pith_position_max(s, q) == -1);
    }
    for (size_t i = 0; i < sizeof deltas / sizeof *deltas; i++)
        CHECK(pith_shift(s, 0, 0, -1, deltas[i], &err) == PITH_RANGE && strstr(err.msg, "stay"));
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++)
        CHECK(pith_divide(s, 0, 0, -1, divisors[i], NULL) == PITH_RANGE);
    CHECK(pith_length(s, 0) == 90 && pith_position_max(s, 0) == 89 && pith_length(s, 1) == 0);
    CHECK(!s->cache.seq[0].edited);
    /* far ends that are allowed: nothing there */
    CHECK(pith_remove(s, 0, INT64_MAX, -1, NULL) == PITH_OK && pith_length(s, 0) == 90);
    CHECK(pith_remove(s, 0, 90, INT64_MAX, NULL) == PITH_OK && pith_length(s, 0) == 90);
    /* the last position */
    CHECK(pith_shift(s, 0, 89, -1, (1 << 30) - 1 - 89, NULL) == PITH_OK);
    CHECK(pith_feed(s, 0, token, 1, &err) == PITH_RANGE && strstr(err.msg, "shift it back"));
    CHECK(pith_remove(s, 0, 89, -1, NULL) == PITH_OK && pith_feed(s, 0, token, 1, NULL) == PITH_OK);
    CHECK(pith_edits(s) & PITH_EDIT_SHIFT && !pith_edits(NULL) && pith_remove(NULL, 0, 0, 0, NULL));
    CHECK(pith_position_min(NULL, 0) == -1 && pith_keep(NULL, 0, NULL) == PITH_RANGE);
    pith_trim(NULL);
    pith_session_close(s);
    pith_model_close(m);
}

/* After a session has emptied its sequences, trim gives everything back. */
static void test_trim(void)
{
    struct pith_error err;
    static const struct kind kind = {"mixed, short of pages", "gemma2", "f32", 400, 0, NULL, 0};
    pith_model *m = synth(&kind, 2);
    pith_session *s = m ? open_session(m, &kind, 2) : NULL;
    int32_t token[200] = {0};
    REQUIRE(s && pith_feed(s, 0, token, 200, &err) == PITH_OK, "no session");
    CHECK(cache_bytes(&s->cache) > 0);
    CHECK(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK && pith_keep(s, 1, &err) == PITH_OK);
    pith_trim(s);
    CHECK(cache_bytes(&s->cache) > 0 && pith_length(s, 0) == 0 && pith_length(s, 1) == 200);
    CHECK(pith_truncate(s, 1, 0, &err) == PITH_OK);
    pith_trim(s);
    CHECK(cache_bytes(&s->cache) == 0);
    CHECK(pith_feed(s, 0, token, 200, &err) == PITH_OK);
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    test_seed();
    TEST(test_meaning);
    TEST(test_wide_window);
    TEST(test_refusals);
    TEST(test_fed_to_the_end);
    TEST(test_edit_of_a_long_window);
    TEST(test_saved_without_pages);
    TEST(test_failed_step);
    TEST(test_trim);
    TEST(test_scripts);
    return test_end();
}
