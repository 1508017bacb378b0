/* test_snapshot.c -- save and load: what is loaded goes on with the same bits; anything else than
 * what was saved for this session is refused by name and leaves the session as it was: every
 * truncation, every single-bit flip, other models, types and sizes. */
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "run/cache/cache_impl.h"
#include "run/sample/sample.h"
#include "run/session/session.h"
#include "small_model.h"

enum { N_VOCAB = 64 };

static char dir[] = "/tmp/pith-snapshot-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[2][128];
    static int i;
    snprintf(path[i ^= 1], sizeof path[0], "%s/%s", dir, name);
    return path[i];
}

static pith_model *synth(const char *arch, uint64_t seed, const char *const *overrides)
{
    struct pith_synth_params p = small_params(arch, N_VOCAB);
    p.head_dim = 32;
    p.n_layer = 2;
    p.seed = seed;
    return small_model(&p, 0, overrides);
}

static pith_session *open_lanes(pith_model *m, int32_t n_seq, int32_t n_ctx, const char *type,
                                int32_t n_lanes)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx;
    sp.n_seq = n_seq;
    sp.n_lanes = n_lanes;
    sp.cache_type_k = sp.cache_type_v = type;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

static pith_session *open_session(pith_model *m, int32_t n_seq, int32_t n_ctx, const char *type)
{
    return open_lanes(m, n_seq, n_ctx, type, 0);
}

static void feed(pith_session *s, int32_t seq, int32_t n, int32_t salt)
{
    int32_t ids[300];
    struct pith_error err;
    for (int32_t i = 0; i < n; i++)
        ids[i] = (i * 7 + salt * 13 + i * i) % (s->model->arch.hp.n_vocab - 1) + 1;
    CHECK_MSG(pith_feed(s, seq, ids, (size_t)n, &err) == PITH_OK, "%s", err.msg);
}

/* Both sessions go on alike. */
static void same_future(const char *what, pith_session *a, int32_t qa, pith_session *b, int32_t qb)
{
    size_t row = (size_t)a->n_cols * sizeof(float);
    CHECK_MSG(pith_length(a, qa) == pith_length(b, qb) &&
                  pith_position_max(a, qa) == pith_position_max(b, qb),
              "%s: %d and %d tokens", what, (int)pith_length(a, qa), (int)pith_length(b, qb));
    for (int i = 0; i < 3; i++) {
        feed(a, qa, 1, i);
        feed(b, qb, 1, i);
        CHECK_MSG(!memcmp(pith_logits(a, 0), pith_logits(b, 0), row), "%s: token %d differs", what,
                  i);
    }
}

static uint8_t *snapshot(pith_session *s, int32_t seq, size_t *n)
{
    struct pith_error err;
    CHECK_MSG(pith_save_memory(s, seq, NULL, 0, n, &err) == PITH_OK, "%s", err.msg);
    uint8_t *p = malloc(*n + 1);
    size_t again = 0;
    p[*n] = 0xa5;
    CHECK(pith_save_memory(s, seq, p, *n - 1, &again, &err) == PITH_RANGE && again == *n);
    CHECK_MSG(pith_save_memory(s, seq, p, *n, &again, &err) == PITH_OK && again == *n, "%s",
              err.msg);
    CHECK(p[*n] == 0xa5);
    return p;
}

/* ---------------------------------------------------------------- round trips */

/* Rows that were given positions, which are the next, in models with pages and without, in some
 * that want nothing else, and in one that is not causal. */
static void test_given_positions(void)
{
    static const char *const archs[] = {"llama", "mamba", "jamba", "deepseek4", "dream"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct pith_error err = {PITH_OK, ""};
        struct pith_batch b = PITH_BATCH_INIT;
        const int32_t ids[3] = {5, 6, 7}, pos[3][4] = {{0}, {1, 1, 1, 0}, {2, 2, 2, 0}};
        pith_model *m = synth(archs[i], 3, NULL);
        pith_session *a = open_session(m, 2, 250, "f32"), *c = open_session(m, 2, 250, "f32");
        REQUIRE(a && c, "no session of %s", archs[i]);
        b.n = 3;
        b.token = ids;
        b.pos = pos[0];
        CHECK_MSG(pith_step(a, &b, &err) == PITH_OK, "%s: %s", archs[i], err.msg);
        size_t n;
        uint8_t *one = snapshot(a, 0, &n);
        CHECK_MSG(pith_load_memory(c, 1, one, n, &err) == PITH_OK, "%s: %s", archs[i], err.msg);
        CHECK(pith_length(c, 1) == 3);
        if (m->arch.hp.causal)
            same_future(archs[i], a, 0, c, 1);
        free(one);
        pith_session_close(a);
        pith_session_close(c);
        pith_model_close(m);
    }
}

/* Logits of a sequence whose positions have changed since are not its own. */
static void test_turned_since(void)
{
    struct pith_error err = {PITH_OK, ""};
    pith_model *m = synth("llama", 3, NULL);
    pith_session *s = open_session(m, 1, 250, "f32");
    REQUIRE(s, "no session");
    for (int how = 0; how < 3; how++) {
        size_t n;
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        feed(s, 0, 40, 1);
        if (how == 1)
            CHECK_MSG(pith_shift(s, 0, 20, -1, 3, &err) == PITH_OK, "%s", err.msg);
        if (how == 2)
            CHECK_MSG(pith_divide(s, 0, 10, -1, 2, &err) == PITH_OK, "%s", err.msg);
        uint8_t *p = snapshot(s, 0, &n);
        CHECK_MSG(pith_load_memory(s, 0, p, n, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG(pith_n_outputs(s) == !how, "edit %d: %d outputs", how, pith_n_outputs(s));
        free(p);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static void round_trip(const char *what, pith_model *m, const char *type, int can_edit)
{
    struct pith_error err;
    size_t n, n_one;
    pith_session *a = open_session(m, 3, 250, type), *b = open_session(m, 4, 250, type);
    REQUIRE(a && b, "no session");
    feed(a, 0, 150, 1);
    CHECK(pith_copy(a, 1, 0, 0, -1, &err) == PITH_OK); /* shares pages */
    feed(a, 1, 20, 2);
    feed(b, 0, 30, 3); /* goes away */
    feed(b, 3, 90, 4);
    if (can_edit) {
        CHECK(pith_remove(a, 0, 3, 20, &err) == PITH_OK);
        CHECK(pith_shift(a, 0, 20, -1, -17, &err) == PITH_OK); /* still to be carried out */
        CHECK(pith_copy(a, 2, 0, 0, -1, &err) == PITH_OK);
        feed(a, 2, 2, 5); /* carried out */
    } else {
        feed(a, 2, 70, 5);
    }
    float last[512];
    REQUIRE(a->n_cols <= 512, "a larger vocabulary");
    memcpy(last, pith_logits(a, 0), (size_t)a->n_cols * sizeof *last);
    uint8_t *all = snapshot(a, -1, &n), *one = snapshot(a, 1, &n_one);
    CHECK(pith_save(a, -1, in_dir("all"), &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(b, -1, all, n, &err) == PITH_OK, "%s: %s", what, err.msg);
    CHECK_MSG(pith_n_outputs(b) == 1 &&
                  !memcmp(last, pith_logits(b, 0), (size_t)b->n_cols * sizeof *last),
              "%s: the last logits are others", what);
    CHECK(pith_length(b, 3) == 0);
    CHECK_MSG(pith_load_memory(b, 3, one, n_one, &err) == PITH_OK, "%s: %s", what, err.msg);
    CHECK(pith_load_memory(b, -1, one, n_one, &err) == PITH_STATE &&
          strstr(err.msg, "one sequence"));
    CHECK(pith_load_memory(b, 0, all, n, &err) == PITH_STATE && strstr(err.msg, "whole session"));
    same_future(what, a, 1, b, 3);
    CHECK_MSG(pith_load(a, -1, in_dir("all"), &err) == PITH_OK, "%s: %s", what,
              err.msg); /* onto itself */
    for (int32_t q = 0; q < 3; q++)
        same_future(what, a, q, b, q);
    /* What was loaded is as good a prefix as what was computed. */
    int32_t ids[100];
    size_t kept = 0;
    CHECK(pith_tokens(b, 1, ids, 100) >= 100 && pith_tokens(b, 9, NULL, 0) == -1);
    CHECK(pith_prefix(b, 1, ids, 100, &kept, &err) == PITH_OK);
    CHECK(pith_truncate(a, 0, 0, &err) == PITH_OK && pith_feed(a, 0, ids, 100, &err) == PITH_OK);
    same_future(what, a, 0, b, 1);
    CHECK_MSG(kept >= 36, "%s: %zu of 100 tokens were kept", what, kept);
    free(all);
    free(one);
    pith_session_close(a);
    pith_session_close(b);
}

/* All that a saver tells, in pieces of at most so many bytes; the session goes on meanwhile. */
static uint8_t *in_pieces(pith_session *s, int32_t seq, size_t cap, size_t *n_all, int *n_pieces)
{
    struct pith_error err;
    size_t n = 0, at = 0;
    pith_saver *w = pith_saver_open(s, seq, n_all, &err);
    CHECK_MSG(w, "%s", err.msg);
    uint8_t *p = malloc(*n_all + cap + 1);
    pith_status st = PITH_OK;
    for (*n_pieces = 0; w && at < *n_all && st == PITH_OK; at += n, (*n_pieces)++) {
        p[at + cap] = 0xa5;
        st = pith_saver_next(w, p + at, cap, &n, &err);
        CHECK_MSG(st == PITH_OK && n && n <= cap && p[at + cap] == 0xa5, "piece %d of %zu: %s",
                  *n_pieces, n, err.msg);
        feed(s, 2, 1, *n_pieces);
        if (*n_pieces % 8 == 7)
            CHECK(pith_truncate(s, 2, 0, &err) == PITH_OK);
    }
    CHECK(w && pith_saver_next(w, p, cap, &n, &err) == PITH_OK && n == 0);
    pith_saver_close(w);
    return p;
}

/* What is saved in pieces is what is saved at once, whatever the size of the pieces and whatever
 * other sequences do meanwhile. One that changes is told. */
static void pieces(const char *what, pith_model *m, const char *type, int can_edit)
{
    struct pith_error err;
    size_t n_whole = 0, n = 0, least = 0;
    int many = 0, few = 0;
    pith_session *s = open_session(m, 4, 250, type), *b = open_session(m, 1, 250, type);
    REQUIRE(s && b, "no session");
    feed(s, 0, 200, 1);
    CHECK(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK);
    if (can_edit)
        CHECK(pith_shift(s, 1, 20, -1, 3, &err) == PITH_OK); /* still to be carried out */
    feed(s, 2, 1, 9);                                        /* the last logits are none of it */
    uint8_t *whole = snapshot(s, 1, &n_whole), *one = in_pieces(s, 1, n_whole, &n, &few);
    CHECK_MSG(n == n_whole && few == 1 && !memcmp(one, whole, n), "%s: %zu bytes, %zu at once",
              what, n, n_whole);
    for (size_t cap = n_whole; cap > 64; cap = cap * 2 / 3) {
        pith_saver *w = pith_saver_open(s, 1, &n, &err);
        uint8_t *p = malloc(cap);
        pith_status st = PITH_OK;
        for (size_t at = 0, k = 0; at < n && st == PITH_OK; at += k)
            st = pith_saver_next(w, p, cap, &k, &err);
        CHECK_MSG(st == PITH_OK || (st == PITH_RANGE && strstr(err.msg, "a piece of at most")),
                  "%s: %s", what, err.msg);
        pith_saver_close(w);
        free(p);
        if (st != PITH_OK)
            break;
        least = cap;
    }
    uint8_t *parts = in_pieces(s, 1, least, &n, &many);
    CHECK_MSG(n == n_whole && many > 2 && !memcmp(parts, whole, n), "%s: %d pieces of %zu bytes",
              what, many, least);
    CHECK_MSG(pith_load_memory(b, 0, parts, n, &err) == PITH_OK, "%s: %s", what, err.msg);
    same_future(what, s, 1, b, 0);
    pith_saver *w = pith_saver_open(s, 0, &n, &err);
    CHECK(w && pith_saver_next(w, whole, least, &n, &err) == PITH_OK);
    feed(s, 0, 1, 1);
    CHECK(pith_saver_next(w, whole, least, &n, &err) == PITH_STATE && strstr(err.msg, "changed"));
    pith_saver_close(w);
    CHECK(!pith_saver_open(s, -1, &n, &err) && err.code == PITH_RANGE);
    CHECK(!pith_saver_open(s, 4, &n, &err) && err.code == PITH_RANGE);
    CHECK(!pith_saver_open(NULL, 0, &n, NULL) && !pith_saver_open(s, 0, NULL, NULL));
    CHECK(pith_saver_next(NULL, whole, 1, &n, NULL) == PITH_RANGE);
    pith_saver_close(NULL);
    free(whole);
    free(one);
    free(parts);
    pith_session_close(b);
    pith_session_close(s);
}

/* What is loaded in pieces, whatever their size and whatever other sequences do meanwhile, is what
 * was saved; before its end, and when it fails, the sequence is as it was, and no page is lost. */
static void loaded_in_pieces(const char *what, pith_model *m, const char *type, int can_edit)
{
    struct pith_error err;
    size_t n = 0;
    int done = 0, n_pieces = 0;
    pith_session *s = open_session(m, 4, 250, type), *b = open_session(m, 4, 250, type);
    REQUIRE(s && b, "no session");
    feed(s, 0, 200, 1);
    if (can_edit)
        CHECK(pith_shift(s, 0, 20, -1, 3, &err) == PITH_OK);
    feed(s, 2, 1, 9);
    uint8_t *p = snapshot(s, 0, &n);
    for (size_t most = 1; most <= 2 * n; most = most * 40 + 1) {
        pith_loader *w = pith_loader_open(b, 1, p, n, &err);
        REQUIRE(w, "%s: %s", what, err.msg);
        for (n_pieces = done = 0; !done; n_pieces++) {
            CHECK(pith_length(b, 1) == 0);
            pith_status st = pith_loader_next(w, most, &done, &err);
            REQUIRE(st == PITH_OK, "%s, pieces of %zu: %s", what, most, err.msg);
            feed(b, 2, 1, n_pieces);
            if (n_pieces % 8 == 7)
                CHECK(pith_truncate(b, 2, 0, &err) == PITH_OK);
        }
        CHECK_MSG(most > 1 || n_pieces > 3 || !b->cache.n_groups, "%s: %d pieces", what, n_pieces);
        CHECK(pith_loader_next(w, most, &done, &err) == PITH_STATE && !done);
        pith_loader_close(w);
        CHECK(pith_load_memory(b, 3, p, n, &err) == PITH_OK);
        same_future(what, b, 3, b, 1);
        CHECK(pith_truncate(b, 1, 0, &err) == PITH_OK && pith_truncate(b, 3, 0, &err) == PITH_OK);
    }
    /* Closed in between, of a sequence that changes, cancelled, damaged. */
    CHECK(pith_truncate(b, 2, 0, &err) == PITH_OK);
    int64_t used = b->cache.group[0].n_made - b->cache.group[0].n_free;
    for (int i = 0; i < 4 && b->cache.n_groups; i++) {
        pith_status st = PITH_OK;
        p[n / 2] ^= i == 3; /* in a page */
        pith_loader *w = pith_loader_open(b, 1, p, n, &err);
        CHECK_MSG(w && pith_loader_next(w, 1, &done, &err) == PITH_OK && !done, "%s", err.msg);
        if (i == 1)
            feed(b, 1, 1, 1);
        if (i == 2)
            pith_cancel(b);
        while (w && i && st == PITH_OK && !done)
            st = pith_loader_next(w, n / 3, &done, &err);
        CHECK_MSG(st == (i == 0   ? PITH_OK
                         : i == 1 ? PITH_STATE
                         : i == 2 ? PITH_CANCELLED
                                  : PITH_FORMAT) &&
                      pith_length(b, 1) == (i == 1),
                  "%s, case %d: status %d, %s", what, i, (int)st, i ? err.msg : "");
        pith_loader_close(w);
        pith_cancel_reset(b);
        CHECK(pith_truncate(b, 1, 0, &err) == PITH_OK);
        CHECK_MSG(b->cache.group[0].n_made - b->cache.group[0].n_free == used,
                  "%s, case %d: pages are lost", what, i);
        p[n / 2] ^= i == 3;
    }
    CHECK(!pith_loader_open(b, -1, p, n, &err) && err.code == PITH_RANGE);
    CHECK(!pith_loader_open(b, 4, p, n, &err) && err.code == PITH_RANGE);
    CHECK(!pith_loader_open(b, 1, p, n - 1, &err) && err.code == PITH_FORMAT);
    CHECK(!pith_loader_open(NULL, 0, p, n, NULL) && !pith_loader_open(b, 0, NULL, n, NULL));
    CHECK(pith_loader_next(NULL, 1, &done, NULL) == PITH_RANGE);
    pith_loader_close(NULL);
    free(p);
    pith_session_close(b);
    pith_session_close(s);
}

static void test_pieces(void)
{
    static const struct {
        const char *arch, *type;
        int can_edit;
    } kinds[] = {
        {"llama", "f16", 1}, {"gemma3", "f32", 1}, {"gemma2", "q8_0", 1}, {"mamba", "f16", 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        pith_model *m = synth(kinds[i].arch, 1, NULL);
        REQUIRE(m, "no model");
        pieces(kinds[i].arch, m, kinds[i].type, kinds[i].can_edit);
        loaded_in_pieces(kinds[i].arch, m, kinds[i].type, kinds[i].can_edit);
        pith_model_close(m);
    }
}

static void check_lent(const pith_session *s)
{
    for (int g = 0; g < s->cache.n_groups; g++)
        CHECK(s->cache.group[g].n_lent == 0 &&
              s->cache.group[g].n_made - s->cache.group[g].n_free <= s->cache.group[g].n_pages);
}

static void test_round_trip(void)
{
    static const char *const kinds[][2] = {
        {"llama", "f16"}, {"gemma3", "f32"}, {"gemma2", "q8_0"}, {"qwen3", "q4_0"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        pith_model *m = synth(kinds[i][0], 1, NULL);
        REQUIRE(m, "no model");
        round_trip(kinds[i][0], m, kinds[i][1], 1);
        pith_model_close(m);
    }
}

/* Layers of two kinds on five devices: ten groups, more than have a place in a sequence's head. */
static void test_many_groups(void)
{
    struct pith_error err;
    struct pith_synth_params p = small_params("gemma2", N_VOCAB);
    size_t n;
    p.head_dim = 32;
    p.n_layer = 10;
    setenv("PITH_CPU_DEVICES", "5", 1);
    setenv("PITH_LAYER_DEVICES", "0,1,2,3,4", 1);
    pith_model *m = small_model(&p, 16, NULL);
    unsetenv("PITH_CPU_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    pith_model *one = small_model(&p, 16, NULL);
    REQUIRE(m && one, "no model");
    pith_session *a = open_session(m, 1, 700, "f16"), *b = open_session(m, 1, 700, "f16"),
                 *c = open_session(one, 1, 700, "f16");
    REQUIRE(a && b && c, "no session");
    CHECK_MSG(a->cache.n_own == 10, "%d groups", (int)a->cache.n_own);
    for (int i = 0; i < 2; i++) {
        pith_session *s = i ? c : a;
        feed(s, 0, 300, 1);
        feed(s, 0, 300, 2);
        CHECK(pith_remove(s, 0, 3, 20, &err) == PITH_OK); /* windows have given these back */
    }
    uint8_t *bytes = snapshot(a, 0, &n);
    CHECK_MSG(pith_load_memory(b, 0, bytes, n, &err) == PITH_OK, "%s", err.msg);
    const int32_t *torn = a->cache.seq[0].torn;
    CHECK_MSG(!memcmp(b->cache.seq[0].torn, torn, 10 * sizeof *torn) &&
                  (torn[8] > 0 || torn[9] > 0),
              "slots that are gone: %d, %d", (int)torn[8], (int)torn[9]);
    same_future("many groups", a, 0, c, 0);
    CHECK_MSG(pith_load_memory(a, 0, bytes, n, &err) == PITH_OK, "%s", err.msg); /* back again */
    same_future("many groups", a, 0, b, 0);
    free(bytes);
    pith_session_close(a);
    pith_session_close(b);
    pith_session_close(c);
    round_trip("many groups", m, "q8_0", 1);
    pith_model_close(m);
    pith_model_close(one);
}

static void test_recurrent(void)
{
    static const char *const names[] = {"mamba", "rwkv7", "jamba"};
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        struct pith_error err;
        snprintf(path, sizeof path, "%s/golden/arch/%s.gguf", test_shared(), names[i]);
        pith_model *m = access(path, R_OK) ? NULL : pith_model_open(path, NULL, &err);
        if (!m)
            continue;
        round_trip(names[i], m, "f16", 0);
        pith_model_close(m);
        n++;
    }
    if (!n)
        SKIP("golden/arch has no recurrent model");
}

/* ---------------------------------------------------------------- last logits */

enum { LAST_SEQS = 4, LAST_ROWS = 40, LAST_CTX = 64 };

/* One step of four sequences, of 7 to 13 tokens, whose rows lie among each other. Who asks for its
 * last row: bits of `ask`; all ask for their third. */
static void step_of_four(pith_session *s, unsigned ask, int by_default, int submitted)
{
    static const int32_t length[LAST_SEQS] = {7, 13, 9, 11};
    int32_t token[LAST_ROWS], seq[LAST_ROWS], at[LAST_SEQS] = {0};
    uint8_t want[LAST_ROWS];
    struct pith_error err = {0};
    struct pith_batch b = PITH_BATCH_INIT;
    for (int32_t i = 0; b.n < LAST_ROWS; i++) {
        int32_t q = i * 3 % LAST_SEQS;
        if (at[q] == length[q])
            continue;
        token[b.n] = 1 + (i * 11 + q * 5) % (N_VOCAB - 1);
        seq[b.n] = q;
        at[q]++;
        want[b.n++] = (uint8_t)(at[q] == 3 || (at[q] == length[q] && ask >> q & 1));
    }
    b.token = token;
    b.seq = seq;
    b.want = by_default ? NULL : want;
    pith_status st = submitted ? pith_submit(s, &b, &err) : pith_step(s, &b, &err);
    if (submitted && st == PITH_OK)
        st = pith_wait(s, &err);
    REQUIRE(st == PITH_OK, "%s", err.msg);
}

/* What a snapshot of the sequence brings to session b: `want`, or no logits (NULL). */
static void brings(const char *what, pith_session *s, int32_t seq, pith_session *b,
                   const float *want)
{
    struct pith_error err;
    size_t n = 0;
    uint8_t *p = snapshot(s, seq, &n);
    CHECK_MSG(pith_load_memory(b, 0, p, n, &err) == PITH_OK, "%s: %s", what, err.msg);
    const float *got = pith_logits(b, 0);
    CHECK_MSG(pith_n_outputs(b) == (want != NULL) && !got == !want &&
                  (!want || !memcmp(got, want, N_VOCAB * sizeof *got)),
              "%s: sequence %d brings %s", what, seq, got ? "other logits" : "no logits");
    free(p);
}

/* Each sequence is saved with the output of its own last token, wherever that lies among those of
 * its step, and with no other. */
static void last_logits(const char *what, pith_model *m)
{
    static float want[LAST_SEQS][N_VOCAB];
    struct pith_error err;
    pith_session *s = open_lanes(m, LAST_SEQS, LAST_CTX, "f32", 2),
                 *b = open_session(m, 1, LAST_CTX, "f32"),
                 *alone = open_session(m, 1, LAST_CTX, "f32");
    REQUIRE(s && b && alone, "%s: no session", what);
    step_of_four(s, 0, 1, 0);
    for (int32_t q = 0; q < LAST_SEQS; q++) {
        int32_t ids[LAST_ROWS], n = (int32_t)pith_tokens(s, q, ids, LAST_ROWS);
        CHECK(pith_truncate(alone, 0, 0, &err) == PITH_OK &&
              pith_feed(alone, 0, ids, (size_t)n, &err) == PITH_OK);
        memcpy(want[q], pith_logits(alone, 0), sizeof want[q]);
    }
    for (int32_t q = 0; q < LAST_SEQS; q++)
        brings(what, s, q, b, want[q]);
    for (unsigned ask = 0; ask < 1u << LAST_SEQS; ask += 3)
        for (int submitted = 0; submitted < 2; submitted++) {
            if (submitted && s->n_batch < LAST_ROWS)
                continue;
            for (int32_t q = 0; q < LAST_SEQS; q++)
                CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
            step_of_four(s, ask, 0, submitted);
            for (int32_t q = 0; q < LAST_SEQS; q++)
                brings(what, s, q, b, ask >> q & 1 ? want[q] : NULL);
        }
    /* What has changed since has none: cut, or another's tokens, as many as it had. */
    feed(s, 2, 1, 1);
    for (int32_t q = 0; q < LAST_SEQS; q++)
        CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
    step_of_four(s, 15, 0, 0);
    CHECK(pith_truncate(s, 3, 10, &err) == PITH_OK && pith_copy(s, 2, 1, 0, 9, &err) == PITH_OK);
    brings(what, s, 3, b, NULL);
    brings(what, s, 2, b, NULL);
    brings(what, s, 1, b, want[1]);
    /* A load ends the outputs of the step, in its place stands what it brings. */
    size_t n = 0;
    uint8_t *p = snapshot(s, 1, &n);
    CHECK(pith_load_memory(s, 3, p, n, &err) == PITH_OK && pith_n_outputs(s) == 1 &&
          !memcmp(pith_logits(s, 0), want[1], sizeof want[1]) && !pith_logits(s, 1));
    brings(what, s, 0, b, NULL);
    brings(what, s, 3, b, want[1]);
    free(p);
    pith_session_close(s);
    pith_session_close(b);
    pith_session_close(alone);
}

static void test_last_logits(void)
{
    static const struct {
        const char *what;
        int32_t n_batch;
        const char *far;
    } ways[] = {{"one step", 64, NULL}, {"parts of 16 rows", 16, NULL}, {"far", 64, "1"},
                {"far, parts", 16, "1"}, {"half far, parts", 16, "0,1"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct pith_synth_params p = small_params("llama", N_VOCAB);
        if (ways[i].far) {
            setenv("PITH_FAR_DEVICES", "1", 1);
            setenv("PITH_LAYER_DEVICES", ways[i].far, 1);
        }
        pith_model *m = small_model(&p, ways[i].n_batch, NULL);
        unsetenv("PITH_FAR_DEVICES");
        unsetenv("PITH_LAYER_DEVICES");
        REQUIRE(m, "%s: no model", ways[i].what);
        last_logits(ways[i].what, m);
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- damage */

static void test_damage(void)
{
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 64, "q4_0");
    struct pith_error err;
    size_t n, n_now;
    REQUIRE(s, "no session");
    feed(s, 0, 5, 1);
    CHECK(pith_shift(s, 0, 2, -1, 3, &err) == PITH_OK);
    uint8_t *p = snapshot(s, -1, &n), *now = NULL;
    uint8_t *copy = malloc(n + 8);
    for (size_t cut = 0; cut < n && !test_bad; cut++) {
        memcpy(copy, p, cut); /* so that a checker of memory sees reads behind it */
        CHECK_MSG(pith_load_memory(s, -1, copy, cut, &err) != PITH_OK && err.msg[0],
                  "cut to %zu bytes: loaded", cut);
    }
    memcpy(copy, p, n);
    for (size_t bit = 0; bit < 8 * n && !test_bad; bit++) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(pith_load_memory(s, -1, copy, n, &err) != PITH_OK, "bit %zu of %zu: loaded", bit,
                  8 * n);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memcpy(copy + n, "more", 4);
    CHECK(pith_load_memory(s, -1, copy, n + 4, &err) == PITH_FORMAT && strstr(err.msg, "follow"));
    CHECK(pith_load_memory(s, -1, "GGUF", 4, &err) == PITH_FORMAT && strstr(err.msg, "no saved"));
    printf("# %zu bytes, %zu truncations and %zu flips\n", n, n, 8 * n);
    now = snapshot(s, -1, &n_now); /* nothing of it has shown */
    CHECK(n_now == n && !memcmp(now, p, n));
    CHECK(pith_load_memory(s, -1, p, n, &err) == PITH_OK);
    free(p);
    free(now);
    free(copy);
    pith_session_close(s);
    pith_model_close(m);
}

static void put_file(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

/* The same in a file, which is read in pieces: damage found at its very end has changed nothing,
 * and no page is lost. */
static void test_damaged_file(void)
{
    pith_model *m = synth("gemma2", 1, NULL);
    pith_session *s = open_session(m, 2, 200, "f16");
    struct pith_error err;
    size_t n, n_now;
    int64_t used, then, total;
    REQUIRE(s, "no session");
    feed(s, 0, 150, 1);
    uint8_t *p = snapshot(s, -1, &n), *now = NULL;
    uint8_t *copy = malloc(n + 8);
    CHECK(pith_cache_use(s, &used, &total, &err) == PITH_OK);
    memcpy(copy, p, n);
    int tried = 0, step = test_scale() >= 10 ? 101 : 4001;
    for (size_t bit = 0; bit < 8 * n && !test_bad; bit += (size_t)step, tried++) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        put_file(in_dir("all"), copy, n);
        CHECK_MSG(pith_load(s, -1, in_dir("all"), &err) != PITH_OK, "bit %zu of %zu: loaded", bit,
                  8 * n);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t cut = 0; cut < n + 8 && !test_bad;
         cut += cut % 64 ? 1 : (size_t)step / 8, tried++) {
        put_file(in_dir("all"), copy, cut);
        CHECK_MSG((pith_load(s, -1, in_dir("all"), &err) == PITH_OK) == (cut == n),
                  "%zu of %zu bytes: %s", cut, n, err.msg);
    }
    CHECK(pith_cache_use(s, &then, &total, &err) == PITH_OK && then == used);
    now = snapshot(s, -1, &n_now);
    CHECK(n_now == n && !memcmp(now, p, n));
    printf("# %zu bytes, %d damages\n", n, tried);
    pith_cancel(s);
    put_file(in_dir("all"), p, n);
    CHECK(pith_load(s, -1, in_dir("all"), &err) == PITH_CANCELLED && pith_length(s, 0) == 150);
    pith_cancel_reset(s);
    CHECK_MSG(pith_load(s, -1, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
    free(p);
    free(now);
    free(copy);
    pith_session_close(s);
    pith_model_close(m);
}

/* Loading a file takes its pages and little more: not the file beside them. Without room for old
 * and new pages at once it works, too. */
static void test_streamed(void)
{
    enum { N = 6000 };
    pith_model *m = synth("llama", 4, NULL);
    struct pith_error err;
    struct pith_memory_report is = PITH_MEMORY_REPORT_INIT;
    struct stat sb;
    pith_session *a = open_session(m, 1, N + 100, "f32"), *b = open_session(m, 1, N + 100, "f32");
    REQUIRE(a && b, "no session");
    for (int i = 0; i < N / 300; i++)
        feed(a, 0, 300, i);
    CHECK(pith_save(a, 0, in_dir("all"), &err) == PITH_OK && stat(in_dir("all"), &sb) == 0);
    CHECK_MSG((sb.st_mode & 0777) == 0600, "others may read it: %o", (unsigned)sb.st_mode);
    feed(b, 0, 1, 1); /* what logits take is taken once */
    CHECK(pith_save(b, 0, in_dir("one"), &err) == PITH_OK &&
          pith_load(b, 0, in_dir("one"), &err) == PITH_OK && unlink(in_dir("one")) == 0);
    pith_memory(&is);
    uint64_t scratch = is.used[PITH_MEM_SCRATCH];
    CHECK_MSG(pith_load(b, 0, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
    pith_memory(&is);
    uint64_t more = is.peak[PITH_MEM_SCRATCH] - scratch;
    CHECK_MSG(more < (uint64_t)sb.st_size / 8, "%llu bytes beside the pages for a file of %lld",
              (unsigned long long)more, (long long)sb.st_size);
    same_future("streamed", a, 0, b, 0);
    feed(b, 0, 1, 3);
    CHECK(pith_load(b, 0, in_dir("all"), &err) == PITH_OK); /* onto itself: the pool is full */
    check_lent(b);
    CHECK(pith_load(a, 0, in_dir("all"), &err) == PITH_OK);
    same_future("onto itself", a, 0, b, 0);
    pith_session_close(a);
    pith_session_close(b);
    /* Two sequences that fill the pool: all of the session at once has nothing to lend from. */
    a = open_session(m, 3, 640, "f32");
    REQUIRE(a, "no session");
    for (int32_t q = 0; q < 3; q++)
        for (int i = 0; i < 3; i++)
            feed(a, q, 210, q + i);
    CHECK(pith_save(a, -1, in_dir("all"), &err) == PITH_OK);
    feed(a, 1, 3, 9);
    CHECK_MSG(pith_load(a, -1, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
    for (int32_t q = 0; q < 3; q++)
        CHECK(pith_length(a, q) == 630);
    check_lent(a);
    CHECK(pith_load(a, -1, in_dir("all"), &err) == PITH_OK);
    pith_session_close(a);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- of something else */

static void refused(const char *what, pith_session *s, int32_t seq, const uint8_t *p, size_t n,
                    pith_status want, const char *say)
{
    struct pith_error err = {0};
    pith_status st = pith_load_memory(s, seq, p, n, &err);
    CHECK_MSG(st == want && strstr(err.msg, say), "%s: status %d, %s", what, (int)st, err.msg);
}

/* Where section `id` begins, 0: there is none. */
static size_t section(const uint8_t *p, size_t n, uint32_t id)
{
    uint64_t length;
    for (size_t at = 24; at + 24 <= n; at += 24 + (size_t)length) {
        memcpy(&length, p + at + 8, sizeof length);
        if (p[at] == id)
            return at;
    }
    return 0;
}

static void seal(uint8_t *p, size_t at)
{
    uint64_t length, sum;
    memcpy(&length, p + at + 8, sizeof length);
    sum = XXH3_64bits(p + at, 16 + length);
    memcpy(p + at + 16 + length, &sum, sizeof sum);
}

/* Checksums can be forged: values that no session has are refused with right ones. */
static void test_forged(void)
{
    static const char *const overrides[] = {"gemma2.attention.sliding_window=int:70", NULL};
    enum { N = 200, HEAD = 72, N_TAB = 4 };
    static const struct {
        const char *what;
        int at; /* bytes into the head */
        int32_t value;
    } heads[] = {{"n below 0", 0, -1},        {"pure beyond n", 4, N + 1},
                 {"edited twice", 8, 2},      {"pending unedited", 12, 1},
                 {"a table too long", 16, 5}, {"torn beyond n", 20, N + 1}};
    pith_model *m = synth("gemma2", 1, overrides);
    pith_session *s = open_session(m, 1, 250, "f32");
    size_t n;
    REQUIRE(s && s->cache.n_groups == 2, "no session with a window");
    feed(s, 0, N, 1);
    uint8_t *p = snapshot(s, -1, &n), *copy = malloc(n);
    size_t at = section(p, n, 2), table = at + 16 + HEAD + N * 4;
    REQUIRE(at && table + 2 * N_TAB * 4 <= n, "no sequences");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        memcpy(copy, p, n);
        memcpy(copy + at + 16 + heads[i].at, &heads[i].value, 4);
        seal(copy, at);
        refused(heads[i].what, s, -1, copy, n, PITH_FORMAT, "impossible");
    }
    for (int g = 0; g < 2; g++)
        for (int32_t k = 0; k < N_TAB; k++) {
            int32_t page, none = -1;
            memcpy(copy, p, n);
            memcpy(&page, p + table + 4 * (g * N_TAB + k), sizeof page);
            memcpy(copy + table + 4 * (g * N_TAB + k), &none, sizeof none);
            seal(copy, at);
            int seen = !s->cache.group[g].span || k >= (N + 1 - 70) / STEP_PAGE;
            CHECK_MSG(!seen || page >= 0, "group %d has no page %d", g, k);
            if (seen)
                refused("a page that the next row sees", s, -1, copy, n, PITH_FORMAT, "impossible");
        }
    CHECK(pith_load_memory(s, -1, p, n, NULL) == PITH_OK);
    free(p);
    free(copy);
    pith_session_close(s);
    pith_model_close(m);
}

/* Loads what has one number poked to each of three values, every way that there is. */
static void poke(const char *what, pith_session *s, uint8_t *p, size_t n, size_t sec, size_t at,
                 int bytes, const uint32_t value[3])
{
    uint8_t was[4];
    memcpy(was, p + at, (size_t)bytes);
    for (int i = 0; i < 3; i++) { /* infinity, no number, the largest that is one */
        struct pith_error err = {0};
        int done = 0;
        memcpy(p + at, &value[i], (size_t)bytes);
        seal(p, sec);
        pith_status st = pith_load_memory(s, 0, p, n, &err);
        CHECK_MSG(i == 2 ? st == PITH_OK
                         : st == PITH_FORMAT && (strstr(err.msg, "not finite") ||
                                                 strstr(err.msg, "no number")),
                  "%s, value %d: status %d, %s", what, i, (int)st, err.msg);
        put_file(in_dir("one"), p, n);
        CHECK_MSG(pith_load(s, 0, in_dir("one"), NULL) == st, "%s, value %d: of a file", what, i);
        pith_loader *w = pith_loader_open(s, 1, p, n, &err);
        pith_status pieces = w ? PITH_OK : err.code;
        while (w && pieces == PITH_OK && !done)
            pieces = pith_loader_next(w, 1, &done, &err);
        pith_loader_close(w);
        CHECK_MSG(pieces == st, "%s, value %d: in pieces %d, %s", what, i, (int)pieces, err.msg);
        CHECK(pith_truncate(s, 1, 0, &err) == PITH_OK);
    }
    memcpy(p + at, was, (size_t)bytes);
    seal(p, sec);
}

/* A number that is none, or infinite, under the right checksum, in each type of cache. */
static void test_forged_numbers(void)
{
    static const struct {
        const char *type;
        int bytes, block; /* bytes of a number, or of a scale and from one to the next */
        int second;       /* a block's other scale, 0: none */
        uint32_t value[3];
    } kinds[] = {{"f32", 4, 4, 0, {0x7f800000, 0xffc00001, 0x7f7fffff}},
                 {"f16", 2, 2, 0, {0xfc00, 0x7e00, 0x7bff}},
                 {"bf16", 2, 2, 0, {0x7f80, 0xffc1, 0x7f7f}},
                 {"q8_0", 2, 34, 0, {0x7c00, 0xfe00, 0xfbff}},
                 {"q5_1", 2, 24, 2, {0xfc00, 0x7e00, 0x7bff}},
                 {"q5_0", 2, 22, 0, {0xfc00, 0x7e00, 0x7bff}},
                 {"q4_1", 2, 20, 2, {0xfc00, 0x7c01, 0x7bff}},
                 {"q4_0", 2, 18, 0, {0x7c00, 0x7e00, 0x7bff}},
                 {"iq4_nl", 2, 18, 0, {0x7c00, 0x7e00, 0x7bff}}};
    static const uint32_t logit[3] = {0x7f800000, 0x7fc00000, 0xff800000};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        pith_model *m = synth("gemma2", 1, NULL);
        pith_session *s = open_session(m, 2, 250, kinds[i].type);
        size_t n, n_now, sec, last;
        uint64_t length;
        REQUIRE(s, "no session");
        feed(s, 0, 100, 1);
        uint8_t *p = snapshot(s, 0, &n), *now;
        sec = section(p, n, 3);
        memcpy(&length, p + sec + 8, sizeof length);
        last = sec + 16 + length - (size_t)kinds[i].block;
        poke(kinds[i].type, s, p, n, sec, sec + 16 + 4, kinds[i].bytes, kinds[i].value);
        poke(kinds[i].type, s, p, n, sec, sec + 16 + 4 + 37 * (size_t)kinds[i].block,
             kinds[i].bytes, kinds[i].value);
        poke(kinds[i].type, s, p, n, sec, last + (size_t)kinds[i].second, kinds[i].bytes,
             kinds[i].value);
        sec = section(p, n, 5);
        poke("logits", s, p, n, sec, sec + 16 + 8 + 4 * 7, 4, logit);
        CHECK(pith_load_memory(s, 0, p, n, NULL) == PITH_OK);
        now = snapshot(s, 0, &n_now);
        CHECK(n_now == n && !memcmp(now, p, n));
        free(p);
        free(now);
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* The same of recurrent state. */
static void test_forged_state(void)
{
    static const char *const names[] = {"mamba", "rwkv7", "jamba"};
    static const uint32_t value[3] = {0xff800000, 0x7fc00000, 0x7f7fffff};
    int n_done = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        size_t n;
        snprintf(path, sizeof path, "%s/golden/arch/%s.gguf", test_shared(), names[i]);
        pith_model *m = access(path, R_OK) ? NULL : pith_model_open(path, NULL, NULL);
        pith_session *s = m ? open_session(m, 2, 250, "f16") : NULL;
        if (!s)
            continue;
        feed(s, 0, 100, 1);
        uint8_t *p = snapshot(s, 0, &n);
        size_t sec = section(p, n, 4);
        poke(names[i], s, p, n, sec, sec + 16 + 4 + 8, 4, value);
        free(p);
        pith_session_close(s);
        pith_model_close(m);
        n_done++;
    }
    if (!n_done)
        SKIP("golden/arch has no recurrent model");
}

/* A page more than the tables name, in the last group. */
static void test_page_of_nobody(void)
{
    pith_model *m = synth("gemma2", 1, NULL);
    pith_session *s = open_session(m, 1, 250, "f32");
    REQUIRE(s, "no session");
    feed(s, 0, 100, 1);
    size_t n, at, count;
    uint8_t *p = snapshot(s, -1, &n);
    uint64_t length, one = page_canonical(&s->cache, s->cache.n_groups - 1);
    uint32_t pages = 0;
    REQUIRE((at = section(p, n, 3)), "no pages");
    memcpy(&length, p + at + 8, sizeof length);
    count = at + 16;
    for (int g = 0; g < s->cache.n_groups; g++) {
        memcpy(&pages, p + count, sizeof pages);
        if (g + 1 < s->cache.n_groups)
            count += 4 + pages * page_canonical(&s->cache, g);
    }
    size_t end = at + 16 + (size_t)length;
    uint8_t *longer = calloc(1, n + one);
    memcpy(longer, p, end);
    memcpy(longer + end + one, p + end, n - end);
    pages++;
    length += one;
    memcpy(longer + count, &pages, sizeof pages);
    memcpy(longer + at + 8, &length, sizeof length);
    seal(longer, at);
    refused("a page of nobody", s, -1, longer, n + one, PITH_FORMAT, "a page of no sequence");
    CHECK(pith_length(s, 0) == 100 && pith_load_memory(s, -1, p, n, NULL) == PITH_OK);
    free(longer);
    free(p);
    pith_session_close(s);
    pith_model_close(m);
}

/* A sequence of n tokens as if it had been edited: positions from `first` on, in steps. */
static uint8_t *as_edited(const uint8_t *p, size_t n, int32_t first, int32_t by, size_t *n_out)
{
    enum { HEAD = 72 };
    size_t at = section(p, n, 2), heads = at + 16;
    int32_t tokens, one = 1;
    uint64_t length;
    memcpy(&tokens, p + heads, sizeof tokens);
    memcpy(&length, p + at + 8, sizeof length);
    size_t slots = heads + HEAD + 4 * (size_t)tokens, more = 12 * (size_t)tokens;
    uint8_t *q = calloc(1, n + more);
    memcpy(q, p, slots);
    memcpy(q + slots + more, p + slots, n - slots);
    memcpy(q + heads + 8, &one, sizeof one);
    for (int32_t i = 0; i < tokens; i++)
        memcpy(q + slots + 12 * (size_t)i, (int32_t[3]){first + by * i, i, 0}, 12);
    length += more;
    memcpy(q + at + 8, &length, sizeof length);
    seal(q, at);
    *n_out = n + more;
    return q;
}

/* Positions that sequences of the model cannot have: with gaps, where scores go by distance; any
 * but the usual ones, where rows are kept for several tokens. */
static void test_forged_positions(void)
{
    static const struct {
        const char *arch;
        int32_t first, by;
        int good;
    } cases[] = {{"mpt", 0, 2, 0},       {"mpt", 5, 1, 1},       {"mpt", 0, 0, 0},
                 {"deepseek4", 0, 2, 0}, {"deepseek4", 7, 1, 0}, {"llama", 3, 5, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pith_model *m = synth(cases[i].arch, 1, NULL);
        pith_session *s = open_session(m, 1, 250, "f32");
        REQUIRE(s, "no session");
        feed(s, 0, 100, 1);
        size_t n, n_edited;
        uint8_t *p = snapshot(s, -1, &n), *q;
        q = as_edited(p, n, cases[i].first, cases[i].by, &n_edited);
        if (cases[i].good)
            CHECK_MSG(pith_load_memory(s, -1, q, n_edited, NULL) == PITH_OK, "%s: refused",
                      cases[i].arch);
        else
            refused(cases[i].arch, s, -1, q, n_edited, PITH_FORMAT, "impossible");
        feed(s, 0, 3, 1);
        free(p);
        free(q);
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* What a file claims is not asked for: sections longer than any of this session's, pipes that do
 * not end. */
static void test_too_long(void)
{
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 250, "f16");
    struct pith_error err;
    REQUIRE(s, "no session");
    feed(s, 0, 100, 1);
    size_t n;
    uint8_t *p = snapshot(s, -1, &n);
    for (uint32_t id = 1; id <= 6; id++) {
        size_t at = section(p, n, id);
        const uint64_t length = UINT64_C(3) << 30;
        const char *path = in_dir("long");
        FILE *f = fopen(path, "wb"); /* holes behind the head of the section */
        REQUIRE(f && at, "no file");
        CHECK(fwrite(p, 1, at, f) == at && fwrite(p + at, 1, 8, f) == 8 &&
              fwrite(&length, sizeof length, 1, f) == 1 && !fflush(f) &&
              !ftruncate(fileno(f), (off_t)(at + length + 24 + 24 * (6 - id))));
        fclose(f);
        pith_status st = pith_load(s, 0, path, &err);
        CHECK_MSG(st == (id == 3 ? PITH_FORMAT : PITH_RANGE) &&
                      strstr(err.msg, id == 3 ? "section" : "wanted at most"),
                  "section %u: status %d, %s", id, (int)st, err.msg);
        unlink(path);
    }
    CHECK(pith_load(s, 0, "/dev/zero", &err) == PITH_RANGE && strstr(err.msg, "holds more than"));
    /* A pipe that nobody writes to is not waited for; one that somebody may is, until cancelled. */
    const char *fifo = in_dir("fifo");
    CHECK(mkfifo(fifo, 0600) == 0 && pith_load(s, 0, fifo, &err) == PITH_IO &&
          strstr(err.msg, "nobody writes to"));
    int writer = open(fifo, O_RDWR);
    pith_cancel(s);
    CHECK_MSG(writer >= 0 && pith_load(s, 0, fifo, &err) == PITH_CANCELLED, "%s", err.msg);
    pith_cancel_reset(s);
    CHECK(write(writer, "no session", 10) == 10);
    fcntl(writer, F_SETFL, O_NONBLOCK);
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    close(writer); /* with what it has written still in the pipe, which the reader keeps open */
    CHECK_MSG(pith_load(s, 0, fifo, &err) == PITH_FORMAT, "%s", err.msg);
    close(reader);
    unlink(fifo);
    CHECK(pith_length(s, 0) == 100);
    free(p);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_mismatch(void)
{
    static const char *const overrides[] = {"llama.rope.freq_base=float:5000", NULL};
    struct pith_error err;
    size_t n;
    pith_model *m = synth("llama", 1, NULL), *other = synth("llama", 2, NULL),
               *over = synth("llama", 1, overrides);
    pith_session *s = open_session(m, 2, 200, "f16"), *t = open_session(other, 2, 200, "f16"),
                 *o = open_session(over, 2, 200, "f16"), *f32 = open_session(m, 2, 200, "f32"),
                 *small = open_session(m, 2, 100, "f16"), *fewer = open_session(m, 1, 200, "f16");
    REQUIRE(s && t && o && f32 && small && fewer, "no session");
    feed(s, 0, 150, 1);
    feed(s, 1, 10, 1);
    feed(t, 1, 9, 1);
    uint8_t *p = snapshot(s, -1, &n);
    refused("another model", t, -1, p, n, PITH_STATE, "model");
    refused("other overrides", o, -1, p, n, PITH_STATE, "overrides");
    refused("another type", f32, -1, p, n, PITH_STATE, "cache type of K");
    refused("a smaller context", small, -1, p, n, PITH_RANGE, "n_ctx = 100");
    refused("fewer sequences", fewer, -1, p, n, PITH_RANGE, "2 sequences");
    CHECK(pith_length(t, 1) == 9 && pith_length(t, 0) == 0);
    for (int32_t q = -3; q <= 2; q += 5) {
        CHECK(pith_load_memory(s, q, p, n, &err) == PITH_RANGE);
        CHECK(pith_save(s, q, in_dir("none"), &err) == PITH_RANGE && access(in_dir("none"), F_OK));
    }
    uint32_t numerics; /* the last but one of the layout */
    size_t at = section(p, n, 1) + 16 + 56;
    memcpy(&numerics, p + at, sizeof numerics);
    CHECK_MSG(numerics == NUMERICS_VERSION, "numerics version %u", numerics);
    numerics += 41;
    memcpy(p + at, &numerics, sizeof numerics);
    seal(p, at - 56 - 16);
    char told[100];
    snprintf(told, sizeof told, "numerics version %u, this one has %d", numerics, NUMERICS_VERSION);
    refused("other numerics", s, -1, p, n, PITH_UNSUPPORTED, told);
    free(p);
    /* what was kept before K and V of such types were turned */
    pith_session *blocks = open_session(m, 2, 200, "q8_0");
    REQUIRE(blocks, "no session");
    refused("blocks", blocks, -1, (p = snapshot(s, -1, &n)), n, PITH_STATE, "cache type of K");
    free(p);
    feed(blocks, 0, 20, 1);
    p = snapshot(blocks, -1, &n);
    memcpy(&numerics, p + at, sizeof numerics);
    CHECK_MSG(numerics == NUMERICS_TURNED, "numerics version %u of blocks", numerics);
    numerics = NUMERICS_VERSION;
    memcpy(p + at, &numerics, sizeof numerics);
    seal(p, at - 56 - 16);
    snprintf(told, sizeof told, "numerics version %d, this one has %d", NUMERICS_VERSION,
             NUMERICS_TURNED);
    refused("as they were", blocks, -1, p, n, PITH_UNSUPPORTED, told);
    CHECK(pith_length(blocks, 0) == 20);
    pith_session_close(blocks);
    free(p);
    p = snapshot(s, -1, &n);
    CHECK(pith_length(s, 0) == 150);
    p[8] = 9;
    refused("another version", s, -1, p, n, PITH_UNSUPPORTED, "version 9");
    free(p);
    /* files */
    CHECK(pith_load(s, 0, in_dir("absent"), &err) != PITH_OK && strstr(err.msg, "absent"));
    CHECK(pith_load(s, 0, dir, &err) != PITH_OK && pith_save(s, 0, dir, &err) != PITH_OK);
    CHECK(pith_save(s, 0, in_dir("no/folder"), &err) != PITH_OK && strstr(err.msg, "no/folder"));
    if (!access("/dev/full", W_OK))
        CHECK(pith_save(s, 0, "/dev/full", &err) != PITH_OK);
    CHECK(pith_save(NULL, 0, "x", NULL) == PITH_RANGE && pith_load(s, 0, NULL, NULL) == PITH_RANGE);
    CHECK(pith_length(s, 0) == 150);
    pith_session *all[] = {s, t, o, f32, small, fewer};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pith_session_close(all[i]);
    pith_model_close(m);
    pith_model_close(other);
    pith_model_close(over);
}

/* ---------------------------------------------------------------- with a sampler */

static pith_sampler *open_sampler(const char *chain, uint64_t seed, int resumable)
{
    struct pith_error err;
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.samplers = chain;
    p.seed = seed;
    p.resumable = resumable;
    pith_sampler *s = pith_sampler_open(N_VOCAB, &p, &err);
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

static pith_grammar *open_grammar(pith_model *m, const char *text)
{
    struct pith_error err;
    pith_grammar *g = pith_grammar_open(m, PITH_GRAMMAR_GBNF, text, strlen(text), NULL, &err);
    CHECK_MSG(g, "%s", err.msg);
    return g;
}

static void draw(pith_session *s, pith_sampler *p, int n, int32_t *ids)
{
    struct pith_error err;
    for (int i = 0; i < n; i++) {
        ids[i] = pith_sample(p, pith_logits(s, 0));
        pith_sampler_accept(p, ids[i]);
        CHECK_MSG(ids[i] >= 0 && pith_feed(s, 0, ids + i, 1, &err) == PITH_OK, "draw %d", i);
    }
}

enum { N_DRAWS = 40 };
#define CHAIN "penalties:last_n=-1,repeat=1.3,freq=0.2;dry:multiplier=0.8;"
static const char *const chains[] = {CHAIN "temp:t=1",
                                     "penalties:last_n=8,repeat=1.5;xtc:p=0.5,t=0.01;temp:t=1.3",
                                     "temp:t=1;mirostat:tau=3", CHAIN "temp:t=1;mirostat_v2:tau=3",
                                     "temp:t=1;adaptive_p:target=0.3"};
enum { N_CHAINS = sizeof chains / sizeof *chains };
static const char turns[] = "root ::= ([0-4] [5-9]){40}";

/* Any split of a text in two, the second half in another session and with another sampler: the same
 * tokens. */
static void test_resumed(void)
{
    static const int splits[] = {0, 1, 6, 7, N_DRAWS};
    pith_model *m = synth("llama", 1, NULL);
    pith_session *a = open_session(m, 1, 250, "f16"), *b = open_session(m, 2, 250, "f16");
    struct pith_error err;
    REQUIRE(a && b, "no session");
    for (int i = 0; i < 2 * N_CHAINS; i++) {
        int32_t whole[N_DRAWS], parts[N_DRAWS];
        pith_sampler *p = open_sampler(chains[i / 2], (uint64_t)i, 1);
        pith_sampler *q = open_sampler(chains[i / 2], 77, i % 3 > 0);
        pith_grammar *g = open_grammar(m, turns), *h = open_grammar(m, turns);
        REQUIRE(p && q && g && h, "no sampler");
        if (i % 2)
            CHECK(!pith_sampler_grammar(p, g, &err) && !pith_sampler_grammar(q, h, &err));
        CHECK(pith_truncate(a, 0, 0, &err) == PITH_OK);
        feed(a, 0, 20, i);
        CHECK(pith_save(a, 0, in_dir("start"), &err) == PITH_OK);
        draw(a, p, N_DRAWS, whole);
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            int at = splits[k];
            pith_sampler_reset(p);
            CHECK(pith_load_with(a, 0, p, in_dir("start"), &err) == PITH_OK); /* has no sampler */
            draw(a, p, at, parts);
            CHECK_MSG(pith_save_with(a, 0, p, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(pith_load_with(b, 0, q, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
            draw(b, q, N_DRAWS - at, parts + at);
            CHECK_MSG(!memcmp(whole, parts, sizeof whole), "%s%s, split at %d: other tokens",
                      chains[i / 2], i % 2 ? ", with a grammar" : "", at);
        }
        pith_sampler_close(p);
        pith_sampler_close(q);
        pith_grammar_close(g);
        pith_grammar_close(h);
    }
    pith_session_close(a);
    pith_session_close(b);
    pith_model_close(m);
    unlink(in_dir("start"));
}

/* What a grammar has refused or never seen is history all the same, and no hindrance to load. */
static void test_resumed_beside(void)
{
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 250, "f16");
    pith_sampler *p = open_sampler(chains[0], 1, 1), *q = open_sampler(chains[0], 2, 1);
    pith_grammar *g = open_grammar(m, turns), *h = open_grammar(m, turns);
    struct pith_error err;
    int32_t whole[8], parts[8];
    REQUIRE(s && p && q && g && h, "no session");
    feed(s, 0, 5, 1);
    pith_sampler_accept(p, 7); /* before there was a grammar */
    CHECK(pith_sampler_grammar(p, g, &err) == PITH_OK);
    CHECK(pith_sampler_grammar(q, h, &err) == PITH_OK);
    pith_sampler_accept(p, 9); /* no digit: refused */
    pith_sampler_accept(p, -1);
    pith_sampler_accept(p, N_VOCAB); /* no token */
    draw(s, p, 3, whole);
    CHECK(pith_save_with(s, 0, p, in_dir("all"), &err) == PITH_OK);
    draw(s, p, 8, whole);
    CHECK_MSG(pith_load_with(s, 0, q, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
    CHECK(q->n_accepted == 5 && q->history.n == p->history.n - 8);
    draw(s, q, 8, parts);
    CHECK(!memcmp(whole, parts, sizeof whole));
    /* Another grammar from here on: the tokens so far are not its. */
    pith_grammar *other = open_grammar(m, "root ::= [!-/]{9}");
    CHECK(pith_sampler_grammar(p, other, &err) == PITH_OK);
    CHECK(pith_save_with(s, 0, p, in_dir("all"), &err) == PITH_OK);
    CHECK_MSG(pith_load_with(s, 0, p, in_dir("all"), &err) == PITH_OK, "%s", err.msg);
    CHECK(p->n_accepted == 13);
    pith_sampler_close(p);
    pith_sampler_close(q);
    pith_grammar_close(g);
    pith_grammar_close(h);
    pith_grammar_close(other);
    pith_session_close(s);
    pith_model_close(m);
}

static uint8_t *read_file(const char *path, size_t *n)
{
    struct stat sb;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &sb))
        return NULL;
    uint8_t *p = malloc((size_t)sb.st_size + 16);
    *n = fread(p, 1, (size_t)sb.st_size, f);
    fclose(f);
    return p;
}

/* Refused, the session as it was, and the sampler as it was or as after a reset. */
static void refused_with(const char *what, pith_session *s, pith_sampler *q, const uint8_t *p,
                         size_t n, pith_status want, const char *say, int reset)
{
    struct pith_error err = {0};
    struct pith_sampler then = *q;
    int64_t length = pith_length(s, 0);
    put_file(in_dir("one"), p, n);
    pith_status st = pith_load_with(s, 0, q, in_dir("one"), &err);
    CHECK_MSG(st == want && strstr(err.msg, say), "%s: status %d, %s", what, (int)st, err.msg);
    CHECK_MSG(pith_length(s, 0) == length, "%s: the session has changed", what);
    CHECK_MSG(q->index == (reset ? 0 : then.index) && q->seed == then.seed &&
                  q->n_accepted == (reset ? 0 : then.n_accepted) &&
                  q->history.n == (reset ? 0 : then.history.n),
              "%s: the sampler has changed", what);
    check_lent(s);
}

static void forged_sampler(pith_session *s, pith_sampler *q, const uint8_t *p, size_t n)
{
    const double nan = NAN, far = -INFINITY;
    const int32_t over = N_VOCAB, under = ~N_VOCAB, most = INT32_MAX, least = INT32_MIN;
    const uint32_t steps = SAMPLE_MAX_STEPS + 1, one_more = 6, one_less = 4, many = UINT32_MAX;
    size_t at = section(p, n, 6), tokens = sizeof(struct sampler_state);
    const struct {
        const char *what;
        size_t at;
        const void *value;
        size_t bytes;
        const char *say;
    } cases[] = {
        {"steps", offsetof(struct sampler_state, n_steps), &steps, 4, "length"},
        {"a token more", offsetof(struct sampler_state, n_accepted), &one_more, 4, "length"},
        {"a token less", offsetof(struct sampler_state, n_accepted), &one_less, 4, "length"},
        {"2^32 tokens", offsetof(struct sampler_state, n_accepted), &many, 4, "length"},
        {"NaN", offsetof(struct sampler_state, steps), &nan, 8, "finite"},
        {"infinity", tokens - 8, &far, 8, "finite"},
        {"token V", tokens, &over, 4, "vocabulary"},
        {"token ~V", tokens + 16, &under, 4, "vocabulary"},
        {"the highest token", tokens + 4, &most, 4, "vocabulary"},
        {"the lowest token", tokens + 4, &least, 4, "vocabulary"},
    };
    uint8_t *copy = malloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(copy, p, n);
        memcpy(copy + at + 16 + cases[i].at, cases[i].value, cases[i].bytes);
        seal(copy, at);
        refused_with(cases[i].what, s, q, copy, n, PITH_FORMAT, cases[i].say, 0);
    }
    free(copy);
}

static void note_is(const char *path, pith_status want, const char *say)
{
    struct pith_error err = {0};
    char got[64];
    size_t n = 77;
    pith_status st = pith_saved_note(path, got, sizeof got, &n, &err);
    CHECK_MSG(st == want, "status %d, %s", (int)st, err.msg);
    if (st == PITH_OK)
        CHECK_MSG(n == strlen(say) && !memcmp(got, say, n), "a note of %zu bytes", n);
    else
        CHECK_MSG(strstr(err.msg, say), "%s", err.msg);
}

/* A note comes back before anything is loaded; files without one are those of before. */
static void test_note(void)
{
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 64, "f16");
    struct pith_error err;
    size_t n = 0, n_all = 0;
    char got[4];
    REQUIRE(s, "no session");
    feed(s, 0, 3, 1);
    CHECK(pith_save(s, 0, in_dir("one"), &err) == PITH_OK);
    note_is(in_dir("one"), PITH_OK, "");
    uint8_t *plain = read_file(in_dir("one"), &n);
    CHECK(plain && plain[8] == 5);
    CHECK(pith_save_noted(s, 0, NULL, "a note", 6, in_dir("all"), &err) == PITH_OK);
    note_is(in_dir("all"), PITH_OK, "a note");
    uint8_t *file = read_file(in_dir("all"), &n_all);
    REQUIRE(plain && file, "no files");
    CHECK(n_all == n + 16 + 6 + 8 && file[8] == 6 && !memcmp(file + 24, plain + 24, n - 24));
    CHECK(pith_saved_note(in_dir("all"), NULL, 0, &n, &err) == PITH_OK && n == 6);
    CHECK(pith_saved_note(in_dir("all"), got, sizeof got, &n, &err) == PITH_RANGE);
    CHECK(pith_load(s, 0, in_dir("all"), &err) == PITH_OK && pith_length(s, 0) == 3);
    note_is(in_dir("absent"), PITH_IO, "absent: cannot open");
    note_is(dir, PITH_IO, "no regular file");
    for (size_t cut = n_all - 30; cut < n_all; cut++) {
        put_file(in_dir("one"), file, cut);
        note_is(in_dir("one"), PITH_FORMAT, "damaged or was cut off");
        CHECK(pith_load(s, 0, in_dir("one"), &err) == PITH_FORMAT);
    }
    for (size_t bit = 8 * (n_all - 30); bit < 8 * n_all; bit++) {
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        put_file(in_dir("one"), file, n_all);
        note_is(in_dir("one"), PITH_FORMAT, "\"note\"");
        CHECK(pith_load(s, 0, in_dir("one"), &err) == PITH_FORMAT);
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    put_file(in_dir("one"), (const uint8_t *)"GGUF", 4);
    note_is(in_dir("one"), PITH_FORMAT, "no saved session");
    file[8] = 7;
    put_file(in_dir("one"), file, n_all);
    note_is(in_dir("one"), PITH_UNSUPPORTED, "version 7, wanted 4 to 6");
    free(plain);
    free(file);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_damaged_sampler(void)
{
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 64, "q4_0");
    pith_sampler *p = open_sampler(chains[4], 1, 1), *q = open_sampler(chains[4], 9, 1);
    pith_grammar *g = open_grammar(m, turns), *other = open_grammar(m, "root ::= [0-9] [!-/]{9}");
    struct pith_error err;
    int32_t ids[5];
    size_t n = 0;
    REQUIRE(s && p && q && g && other, "no session");
    CHECK(pith_sampler_grammar(p, g, &err) == PITH_OK);
    feed(s, 0, 3, 1);
    draw(s, p, 5, ids);
    CHECK(pith_save_with(s, 0, p, in_dir("all"), &err) == PITH_OK);
    draw(s, q, 2, ids); /* what is to stay */
    uint8_t *file = read_file(in_dir("all"), &n), *copy = malloc(n);
    size_t at = file ? section(file, n, 6) : 0;
    REQUIRE(at && n == at + 16 + sizeof(struct sampler_state) + 5 * 4 + 8,
            "no sampler in %zu bytes", n);
    for (size_t cut = at; cut < n && !test_bad; cut++)
        refused_with("cut", s, q, file, cut, PITH_FORMAT, "sampler", 0);
    memcpy(copy, file, n);
    for (size_t bit = 8 * at; bit < 8 * n && !test_bad; bit += bit % 8 == 7 ? 1 : 3) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refused_with("flipped", s, q, copy, n, PITH_FORMAT, "sampler", 0);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    forged_sampler(s, q, file, n);
    copy[8] = 2; /* files without the section */
    refused_with("an older version", s, q, copy, n, PITH_UNSUPPORTED, "version 2, wanted 4 to 6",
                 0);
    CHECK(pith_sampler_grammar(q, other, &err) == PITH_OK);
    refused_with("another grammar", s, q, file, n, PITH_STATE, "token 1 of those", 1);
    CHECK(pith_sampler_grammar(q, NULL, &err) == PITH_OK);
    put_file(in_dir("one"), file, n);
    CHECK_MSG(pith_load_with(s, 0, q, in_dir("one"), &err) == PITH_OK, "%s", err.msg);
    CHECK(q->index == 5 && q->seed == 1 && q->n_accepted == 5 && pith_length(s, 0) == 8);
    CHECK(pith_load(s, 0, in_dir("one"), &err) == PITH_OK); /* not asked for */
    unlink(in_dir("one"));
    free(file);
    free(copy);
    pith_sampler_close(p);
    pith_sampler_close(q);
    pith_grammar_close(g);
    pith_grammar_close(other);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_sampler_refused(void)
{
    struct pith_sampler_params params = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err;
    const char *path = in_dir("one");
    pith_model *m = synth("llama", 1, NULL);
    pith_session *s = open_session(m, 1, 64, "f16");
    params.resumable = 1;
    pith_sampler *p = open_sampler(chains[0], 1, 1), *forgets = open_sampler(chains[0], 1, 0),
                 *large = pith_sampler_open(N_VOCAB + 1, &params, &err);
    REQUIRE(s && p && forgets && large, "no session");
    feed(s, 0, 3, 1);
    CHECK(pith_save_with(s, 0, forgets, path, &err) == PITH_STATE && strstr(err.msg, "resumable"));
    CHECK(pith_save_with(s, 0, large, path, &err) == PITH_RANGE &&
          strstr(err.msg, "65 tokens, the model has 64"));
    CHECK(pith_save_with(s, 1, p, path, &err) == PITH_RANGE && strstr(err.msg, "sequence 1"));
    CHECK(pith_save_with(s, 0, p, in_dir("no/folder"), &err) != PITH_OK &&
          strstr(err.msg, "no/folder"));
    CHECK(pith_save_with(NULL, 0, p, path, NULL) == PITH_RANGE &&
          pith_save_with(s, 0, NULL, path, NULL) == PITH_RANGE &&
          pith_save_with(s, 0, p, NULL, NULL) == PITH_RANGE);
    path = in_dir("one");
    CHECK(access(path, F_OK) != 0);
    CHECK(pith_save_with(s, 0, p, path, &err) == PITH_OK);
    CHECK(pith_load_with(s, 0, large, path, &err) == PITH_RANGE &&
          strstr(err.msg, "65 tokens, the model has 64"));
    CHECK(pith_load_with(s, 0, forgets, path, &err) == PITH_OK);
    CHECK(pith_load_with(s, 0, p, in_dir("absent"), &err) != PITH_OK && strstr(err.msg, "absent"));
    path = in_dir("one");
    CHECK(pith_load_with(NULL, 0, p, path, NULL) == PITH_RANGE &&
          pith_load_with(s, 0, NULL, path, NULL) == PITH_RANGE &&
          pith_load_with(s, 0, p, NULL, NULL) == PITH_RANGE);
    CHECK(pith_length(s, 0) == 3);
    unlink(path);
    pith_sampler_close(p);
    pith_sampler_close(forgets);
    pith_sampler_close(large);
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    TEST(test_streamed); /* first: it looks at the most memory that was taken so far */
    TEST(test_round_trip);
    TEST(test_many_groups);
    TEST(test_given_positions);
    TEST(test_turned_since);
    TEST(test_pieces);
    TEST(test_recurrent);
    TEST(test_last_logits);
    TEST(test_damage);
    TEST(test_damaged_file);
    TEST(test_mismatch);
    TEST(test_forged);
    TEST(test_forged_numbers);
    TEST(test_forged_state);
    TEST(test_page_of_nobody);
    TEST(test_forged_positions);
    TEST(test_too_long);
    TEST(test_resumed);
    TEST(test_resumed_beside);
    TEST(test_note);
    TEST(test_damaged_sampler);
    TEST(test_sampler_refused);
    unlink(in_dir("all"));
    rmdir(dir);
    return test_end();
}
