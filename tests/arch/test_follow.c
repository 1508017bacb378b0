/* test_follow.c -- sessions that follow the edits of another one (pith_session_params.follows).
 *
 *   scripts     random edits of a decoder: a draft head that follows has the bits, lengths and
 *               positions of one in which the same edits were made by hand
 *   positions   equal ones, and those that a context shift closes up
 *   fails       edits that the head alone cannot make, memory that runs out at any call, a step
 *               under way: nothing has changed in either
 *   trees       a path is accepted in both, or in neither
 *   otherwise   prefixes and loads cut what follows; sessions close in any order */
#include <math.h>

#include "base/rng.h"
#include "model_file.h"
#include "robust.h"
#include "run/session/session.h"

enum { V = 60, E = 32, N_SEQ = 3, N_CTX = 128 };

static char path[MODEL_PATH];
static struct rng r;

static int32_t below(int32_t n)
{
    return (int32_t)(rng_u32(&r) % (uint32_t)n);
}

struct trio {
    pith_model *m;
    pith_session *s, *head, *by_hand; /* head follows s */
};

static pith_session *session_of(pith_model *m, int32_t role, pith_session *follows,
                                struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = N_SEQ;
    sp.n_lanes = 2;
    sp.n_tree_rows = 5;
    sp.role = role;
    sp.follows = follows;
    sp.cache_type_k = sp.cache_type_v = "f32";
    return pith_session_open(m, &sp, err);
}

static void close_trio(struct trio *t)
{
    pith_session_close(t->s);
    pith_session_close(t->head);
    pith_session_close(t->by_hand);
    pith_model_close(t->m);
}

static void open_roles(struct trio *t, const char *arch, int32_t role)
{
    static const char *const keys[] = {"nextn_predict_layers=1", NULL};
    struct pith_synth_params p = small_params(arch, V);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    p.n_embd = E;
    p.n_layer = 3;
    p.keys = role == PITH_ROLE_DRAFT ? keys : NULL;
    model_file(path, p);
    mp.n_threads = 1;
    mp.n_batch = 16;
    mp.draft_heads = role == PITH_ROLE_DRAFT;
    *t = (struct trio){.m = pith_model_open(path, &mp, &err)};
    t->s = t->m ? session_of(t->m, PITH_ROLE_DECODER, NULL, &err) : NULL;
    t->head = t->s ? session_of(t->m, role, t->s, &err) : NULL;
    t->by_hand = t->s ? session_of(t->m, role, NULL, &err) : NULL;
    REQUIRE(t->by_hand && t->head, "%s", err.msg);
}

static void open_trio(struct trio *t, const char *arch)
{
    open_roles(t, arch, PITH_ROLE_DRAFT);
}

/* Rows of a sequence, of tokens with vectors for heads; parent NULL: appended. */
static pith_status feed(pith_session *s, int32_t seq, int32_t first, int32_t n,
                        const int32_t *parent, struct pith_error *err)
{
    static float vector[16][E];
    int32_t token[16], of[16];
    uint8_t all[16];
    struct pith_batch b = PITH_BATCH_INIT;
    for (int32_t i = 0; i < n; i++) {
        token[i] = 3 + (first + i) * 17 % (V - 3);
        of[i] = seq;
        all[i] = 1;
        for (int k = 0; k < E; k++)
            vector[i][k] = sinf((float)((first + i) * E + k));
    }
    b.n = n;
    b.token = token;
    b.seq = of;
    b.want = all;
    b.parent = parent;
    if (s->arch->runs == ROLE_DRAFT) {
        b.embd = vector[0];
        b.both = all;
    }
    return pith_step(s, &b, err);
}

/* The next row of each has the same bits, and the sequences the same positions. */
static void check_alike(struct trio *t, int32_t seq, const char *what)
{
    struct pith_error err = {PITH_OK, ""};
    pith_session *a = t->head, *b = t->by_hand;
    for (int32_t q = 0; q < N_SEQ; q++)
        CHECK_MSG(pith_length(a, q) == pith_length(b, q) &&
                      pith_position_min(a, q) == pith_position_min(b, q) &&
                      pith_position_max(a, q) == pith_position_max(b, q),
                  "%s: sequence %d has %lld rows to %lld, by hand %lld to %lld", what, q,
                  (long long)pith_length(a, q), (long long)pith_position_max(a, q),
                  (long long)pith_length(b, q), (long long)pith_position_max(b, q));
    if (test_bad || pith_length(a, seq) >= N_CTX - 2 || pith_length(t->s, seq) >= N_CTX - 2)
        return;
    int32_t token = below(1000);
    pith_status st[] = {feed(t->s, seq, token, 1, NULL, &err), feed(a, seq, token, 1, NULL, &err),
                        feed(b, seq, token, 1, NULL, &err)};
    CHECK_MSG(st[0] == PITH_OK && st[1] == st[0] && st[2] == st[0], "%s: %s", what, err.msg);
    if (st[1] == PITH_OK && st[2] == PITH_OK)
        CHECK_MSG(!memcmp(pith_logits(a, 0), pith_logits(b, 0), V * sizeof(float)),
                  "%s: other bits", what);
}

/* ---------------------------------------------------------------- scripts */

struct edit_asked {
    int what;
    int32_t seq, to;
    int64_t p0, p1, by;
};
enum { TRUNCATE, REMOVE, COPY, KEEP, SHIFT, DIVIDE, N_EDITS };

static pith_status make_edit(pith_session *s, const struct edit_asked *e, struct pith_error *err)
{
    switch (e->what) {
    case TRUNCATE:
        return pith_truncate(s, e->seq, e->p0, err);
    case REMOVE:
        return pith_remove(s, e->seq, e->p0, e->p1, err);
    case COPY:
        return pith_copy(s, e->to, e->seq, e->p0, e->p1, err);
    case KEEP:
        return pith_keep(s, e->seq, err);
    case SHIFT:
        return pith_shift(s, e->seq, e->p0, e->p1, e->by, err);
    default:
        return pith_divide(s, e->seq, e->p0, e->p1, e->by, err);
    }
}

static struct edit_asked random_edit(const pith_session *s)
{
    struct edit_asked e = {.what = below(12), .seq = below(N_SEQ), .to = below(N_SEQ)};
    int64_t n = pith_length(s, e.seq), last = pith_position_max(s, e.seq);
    e.what = e.what < N_EDITS ? e.what : e.what % 2 ? REMOVE : SHIFT;
    e.what = e.what == KEEP && below(4) ? COPY : e.what;
    e.p0 = e.what == TRUNCATE ? n - below((int32_t)(n / 4 + 1)) : below((int32_t)last + 2);
    e.p1 = below(3) ? e.p0 + below(8) : -1;
    e.by = e.what == DIVIDE ? 1 + below(3) : below(12) - 5;
    return e;
}

static void script(const char *arch, int times)
{
    struct trio t;
    struct pith_error err;
    int n_made = 0, n_refused = 0;
    open_trio(&t, arch);
    for (int32_t q = 0; q < N_SEQ; q++)
        for (int32_t i = 0; i < 10 + q; i++)
            check_alike(&t, q, "at first");
    for (int i = 0; i < times && !test_bad; i++) {
        struct edit_asked e = random_edit(t.s);
        pith_status st = make_edit(t.s, &e, &err);
        if (st == PITH_OK)
            CHECK_MSG(make_edit(t.by_hand, &e, &err) == PITH_OK, "%s, edit %d: %s", arch, e.what,
                      err.msg);
        n_made += st == PITH_OK;
        n_refused += st != PITH_OK;
        for (int k = below(5); k >= 0; k--)
            check_alike(&t, below(2) ? e.seq : e.to, arch);
        for (int32_t q = 0; q < N_SEQ; q++)
            CHECK(pith_length(t.head, q) == pith_length(t.s, q) &&
                  pith_position_max(t.head, q) == pith_position_max(t.s, q));
    }
    CHECK_MSG(n_made > times / 3 && n_refused > 0, "%s: %d made, %d refused", arch, n_made,
              n_refused);
    close_trio(&t);
}

static void scripts(void)
{
    int times = test_scale() >= 10 ? 3000 : 300;
    rng_init(&r, 5);
    script("llama", times);
    script("exaone4", times); /* its windows give pages up */
}

static void fill(struct trio *t)
{
    struct pith_error err = {PITH_OK, ""};
    for (int i = 0; i < 12; i++)
        CHECK_MSG(feed(t->s, 0, i, 1, NULL, &err) == PITH_OK &&
                      feed(t->head, 0, i, 1, NULL, &err) == PITH_OK &&
                      feed(t->by_hand, 0, i, 1, NULL, &err) == PITH_OK,
                  "%s", err.msg);
}

/* Of equal positions as many stay; what a context shift drops is closed up in both. */
static void equal_positions(void)
{
    struct trio t;
    struct pith_error err = {PITH_OK, ""};
    open_trio(&t, "llama");
    fill(&t);
    CHECK(pith_divide(t.s, 0, 0, -1, 4, &err) == PITH_OK);
    CHECK(pith_divide(t.by_hand, 0, 0, -1, 4, &err) == PITH_OK);
    CHECK(pith_truncate(t.s, 0, 6, &err) == PITH_OK && pith_length(t.head, 0) == 6);
    CHECK(pith_truncate(t.by_hand, 0, 6, &err) == PITH_OK);
    check_alike(&t, 0, "in the middle of equal positions");
    CHECK(pith_truncate(t.s, 0, 0, &err) == PITH_OK);
    CHECK(pith_truncate(t.by_hand, 0, 0, &err) == PITH_OK);
    fill(&t);
    CHECK(session_close_up(t.s, 0, 2, 5, &err) == PITH_OK);
    CHECK(session_close_up(t.by_hand, 0, 2, 5, &err) == PITH_OK);
    CHECK(pith_length(t.head, 0) == 9 && pith_position_max(t.head, 0) == 8);
    check_alike(&t, 0, "after a context shift");
    close_trio(&t);
}

/* ---------------------------------------------------------------- fails */

/* The decoder's rows begin at position 4, those of the head at 0. */
static void refused_by_the_head(void)
{
    struct trio t;
    struct pith_error err = {PITH_OK, ""};
    open_trio(&t, "llama");
    fill(&t);
    CHECK(pith_truncate(t.s, 0, 0, &err) == PITH_OK && pith_length(t.head, 0) == 0);
    CHECK(pith_truncate(t.by_hand, 0, 0, &err) == PITH_OK);
    fill(&t);
    CHECK(pith_remove(t.s, 0, 0, 4, &err) == PITH_OK && pith_position_min(t.head, 0) == 4);
    CHECK(feed(t.head, 1, 0, 5, NULL, &err) == PITH_OK);
    CHECK(feed(t.s, 1, 0, 9, NULL, &err) == PITH_OK);
    follow_unlink(t.head); /* so they differ: */
    CHECK(pith_remove(t.s, 1, 0, 4, &err) == PITH_OK);
    follow_link(t.head, t.s);
    CHECK(pith_shift(t.s, 1, 0, -1, -4, &err) == PITH_RANGE &&
          strstr(err.msg, "a session that follows") && strstr(err.msg, "shift by -4"));
    CHECK(pith_position_min(t.s, 1) == 4 && pith_position_max(t.s, 1) == 8);
    CHECK(pith_position_min(t.head, 1) == 0 && pith_position_max(t.head, 1) == 4);
    struct pith_batch b = PITH_BATCH_INIT;
    static const float vector[E] = {1};
    b.n = 1;
    b.token = (const int32_t[]){5};
    b.embd = vector;
    b.both = (const uint8_t[]){1};
    CHECK_MSG(pith_submit(t.head, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_truncate(t.s, 0, 2, &err) == PITH_STATE && strstr(err.msg, "1 steps are under way"));
    static uint8_t image[1 << 20];
    size_t n, kept;
    const int32_t other[] = {1, 2, 3};
    CHECK_MSG(pith_save_memory(t.s, 1, image, sizeof image, &n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_load_memory(t.s, 0, image, n, &err) == PITH_STATE &&
          strstr(err.msg, "1 steps are under way"));
    CHECK(pith_prefix(t.s, 0, other, 3, &kept, &err) == PITH_STATE &&
          strstr(err.msg, "1 steps are under way"));
    CHECK(pith_length(t.s, 0) == 8);
    CHECK(pith_wait(t.head, &err) == PITH_OK && pith_truncate(t.s, 0, 2, &err) == PITH_OK);
    CHECK(pith_length(t.head, 0) == 2);
    close_trio(&t);
}

static void memory_runs_out(void)
{
    static const struct edit_asked edits[] = {
        {.what = REMOVE, .p0 = 2, .p1 = 4},
        {.what = SHIFT, .p0 = 4, .p1 = -1, .by = -2},
        {.what = DIVIDE, .p0 = 3, .p1 = -1, .by = 2},
        {.what = COPY, .to = 1, .p0 = 1, .p1 = -1},
        {.what = KEEP, .seq = 1},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        int done = 0, n_failed = 0;
        for (long k = 0; !done && k < 40 && !test_bad; k++) {
            struct trio t;
            struct pith_error err = {PITH_OK, ""};
            rng_init(&r, 3);
            open_trio(&t, "llama");
            fill(&t);
            hook_refuse(k, 0);
            pith_status st = make_edit(t.s, &edits[i], &err);
            hook_refuse(-1, 0);
            CHECK(st == PITH_OK || st == PITH_NOMEM);
            done = st == PITH_OK;
            n_failed += !done;
            if (done)
                make_edit(t.by_hand, &edits[i], &err);
            for (int32_t q = 0; q < 2; q++)
                CHECK(pith_length(t.s, q) == pith_length(t.by_hand, q) &&
                      pith_position_max(t.s, q) == pith_position_max(t.by_hand, q));
            check_alike(&t, 0, "memory ran out");
            close_trio(&t);
        }
        CHECK_MSG(done && (n_failed >= 2 || edits[i].what == KEEP), "edit %d failed %d times",
                  edits[i].what, n_failed);
    }
}

/* ---------------------------------------------------------------- trees */

static const int32_t parent[] = {PITH_ROOT, 0, 0, 2, PITH_ROOT},
                     other[] = {PITH_ROOT, 0, 1, 1, PITH_ROOT};

/* A head behind its decoder, and recurrent layers in each. */
static const struct {
    const char *arch;
    int32_t role;
} with_trees[] = {{"llama", PITH_ROLE_DRAFT}, {"granitehybrid", PITH_ROLE_DECODER}};

static void try_trees(struct trio *t, const int32_t *of_head)
{
    struct pith_error err = {PITH_OK, ""};
    CHECK_MSG(feed(t->s, 0, 30, 5, parent, &err) == PITH_OK &&
                  feed(t->head, 0, 30, 5, of_head, &err) == PITH_OK &&
                  feed(t->by_hand, 0, 30, 5, parent, &err) == PITH_OK,
              "%s", err.msg);
}

static void trees_of(const char *arch, int32_t role)
{
    struct trio t;
    struct pith_error err = {PITH_OK, ""};
    open_roles(&t, arch, role);
    fill(&t);
    for (int32_t row = 4; row >= PITH_ROOT; row--) {
        try_trees(&t, parent);
        CHECK_MSG(pith_accept(t.s, 0, row, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_accept(t.by_hand, 0, row, &err) == PITH_OK);
        CHECK(pith_length(t.s, 0) == pith_length(t.head, 0));
        check_alike(&t, 0, "after a path");
    }
    int64_t n = pith_length(t.s, 0);
    try_trees(&t, other); /* row 3 stands behind another one there */
    CHECK(pith_accept(t.s, 0, 3, &err) == PITH_STATE && strstr(err.msg, "another path"));
    CHECK(pith_length(t.s, 0) == n && pith_length(t.head, 0) == n);
    CHECK(feed(t.head, 0, 60, 1, NULL, &err) == PITH_OK); /* it has no tree now */
    CHECK_MSG(pith_accept(t.s, 0, 3, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_length(t.s, 0) == n + 3 && pith_length(t.head, 0) == n + 1);
    close_trio(&t);
}

static void trees(void)
{
    for (int i = 0; i < 2; i++)
        trees_of(with_trees[i].arch, with_trees[i].role);
}

static void paths_without_memory(const char *arch, int32_t role)
{
    int done = 0, n_failed = 0;
    for (long k = 0; !done && k < 40 && !test_bad; k++) {
        struct trio t;
        struct pith_error err = {PITH_OK, ""};
        open_roles(&t, arch, role);
        fill(&t);
        try_trees(&t, parent);
        hook_refuse(k, 0);
        done = pith_accept(t.s, 0, 3, &err) == PITH_OK;
        hook_refuse(-1, 0);
        n_failed += !done;
        CHECK(done ? pith_accept(t.by_hand, 0, 3, &err) == PITH_OK : err.code == PITH_NOMEM);
        CHECK(pith_length(t.s, 0) == pith_length(t.head, 0));
        check_alike(&t, 0, "a path without memory");
        close_trio(&t);
    }
    CHECK_MSG(done && n_failed >= 3, "failed %d times", n_failed);
}

static void trees_without_memory(void)
{
    for (int i = 0; i < 2; i++)
        paths_without_memory(with_trees[i].arch, with_trees[i].role);
}

/* ---------------------------------------------------------------- otherwise */

static void prefixes_and_loads(void)
{
    static uint8_t image[1 << 20];
    struct trio t;
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[12];
    size_t n = 0;
    open_trio(&t, "llama");
    fill(&t);
    CHECK(pith_tokens(t.s, 0, ids, 12) == 12);
    CHECK(pith_save_memory(t.s, 0, image, sizeof image, &n, &err) == PITH_OK);
    size_t kept;
    ids[7] ^= 1;
    CHECK(pith_reuse(t.s, 0, ids, 12, &kept, &err) == PITH_OK && kept == 7);
    CHECK(pith_length(t.head, 0) == 7 && pith_truncate(t.by_hand, 0, 7, &err) == PITH_OK);
    check_alike(&t, 0, "after a prefix");
    CHECK(pith_load_memory(t.s, 0, image, n, &err) == PITH_OK && pith_length(t.s, 0) == 12);
    CHECK(pith_length(t.head, 0) == 0);
    CHECK(feed(t.head, 1, 0, 4, NULL, &err) == PITH_OK);
    image[n / 2] ^= 1; /* one that fails has changed nothing */
    CHECK(pith_load_memory(t.s, 1, image, n, &err) != PITH_OK && pith_length(t.head, 1) == 4);
    pith_session *s = session_of(t.m, PITH_ROLE_DRAFT, t.head, &err);
    CHECK(!s && err.code == PITH_UNSUPPORTED && strstr(err.msg, "follows another one"));
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.follows = t.s;
    s = pith_session_open(t.m, &sp, &err);
    CHECK(!s && err.code == PITH_RANGE && strstr(err.msg, "n_seq is 2"));
    sp.n_seq = 0;
    s = pith_session_open(t.m, &sp, &err); /* a second one */
    REQUIRE(s, "%s", err.msg);
    CHECK(feed(s, 0, 0, 9, NULL, &err) == PITH_OK && pith_truncate(t.s, 0, 5, &err) == PITH_OK);
    CHECK(pith_length(s, 0) == 5);
    pith_session_close(t.head);
    t.head = NULL;
    CHECK(pith_truncate(t.s, 0, 4, &err) == PITH_OK && pith_length(s, 0) == 4);
    pith_session_close(t.s);
    t.s = NULL;
    CHECK(pith_truncate(s, 0, 3, &err) == PITH_OK && pith_length(s, 0) == 3);
    pith_session_close(s);
    close_trio(&t);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(scripts);
    TEST(equal_positions);
    TEST(refused_by_the_head);
    TEST(memory_runs_out);
    TEST(trees);
    TEST(trees_without_memory);
    TEST(prefixes_and_loads);
    return test_end();
}
