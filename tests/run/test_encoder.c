/* test_encoder.c -- models whose encoder reads a text before the decoder writes (random T5s): the
 * memory of a sequence through steps, copies, edits, snapshots, the prefix store, failures, and
 * what is refused. That their logits are right test_models.c shows. */
#include <math.h>
#include <unistd.h>

#include "model_file.h"
#include "robust.h"

enum { V = 80, N_CTX = 256, TEXT = 100, ROWS = 12 };

struct open {
    pith_model *m;
    pith_session *s;
};

static char path[MODEL_PATH];

static void make_model(const char *arch)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_embd = 32;
    model_file(path, p);
}

static struct open open_with(const struct pith_session_params *sp)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    struct open o;
    mp.n_threads = 1;
    o.m = pith_model_open(path, &mp, &err);
    o.s = o.m ? pith_session_open(o.m, sp, &err) : NULL;
    CHECK_MSG(o.s, "%s", err.msg);
    return o;
}

static struct open open_seqs(int32_t n_seq)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = n_seq;
    return open_with(&sp);
}

static void close_it(struct open *o)
{
    pith_session_close(o->s);
    pith_model_close(o->m);
}

/* The texts of the tests: token i of text `which`. */
static int32_t text_at(int which, int i)
{
    return 3 + (i * 7 + i * i * which + which * 11) % (V - 3);
}

static pith_status reads(pith_session *s, int32_t seq, int which, int32_t n, struct pith_error *err)
{
    int32_t ids[512];
    for (int i = 0; i < n && i < 512; i++)
        ids[i] = text_at(which, i);
    return pith_encode(s, seq, ids, (size_t)n, err);
}

static void must_read(pith_session *s, int32_t seq, int which, int32_t n)
{
    struct pith_error err = {PITH_OK, ""};
    CHECK_MSG(reads(s, seq, which, n, &err) == PITH_OK && pith_encoded(s, seq) == n,
              "text %d of %d tokens: %s", which, n, err.msg);
}

/* Rows [at, at + n) of the decoder; the last one's logits. */
static void writes(pith_session *s, int32_t seq, int at, int n, float out[V])
{
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[N_CTX];
    for (int i = 0; i < n; i++)
        ids[i] = at + i ? 3 + (at + i) * 13 % (V - 3) : 0;
    int ok = pith_feed(s, seq, ids, (size_t)n, &err) == PITH_OK;
    CHECK_MSG(ok, "rows %d .. %d: %s", at, at + n, err.msg);
    memset(out, 0, V * sizeof *out);
    if (ok)
        memcpy(out, pith_logits(s, pith_n_outputs(s) - 1), V * sizeof *out);
}

/* The logits after so many rows, from a session of their own. */
static void alone(int which, int32_t n_text, int n, float out[V])
{
    struct open o = open_seqs(1);
    if (o.s) {
        must_read(o.s, 0, which, n_text);
        writes(o.s, 0, 0, n, out);
    }
    close_it(&o);
}

static void check_same(const float *a, const float *b, const char *what)
{
    CHECK_MSG(!memcmp(a, b, V * sizeof *a), "%s: other logits", what);
}

/* ---------------------------------------------------------------- what it computes */

/* Each length of text gives other logits, those of its own alone, whatever stands beside it. */
static void every_length(void)
{
    static const int32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 128, 200, 256};
    enum { N = sizeof lengths / sizeof *lengths };
    static float want[N][V], got[V];
    struct open o = open_seqs(N);
    for (int i = 0; i < N; i++) {
        alone(i, lengths[i], 3, want[i]);
        for (int v = 0; v < V; v++)
            CHECK(isfinite(want[i][v]));
        for (int k = 0; k < i; k++)
            CHECK_MSG(memcmp(want[i], want[k], sizeof want[i]), "texts %d and %d", i, k);
    }
    REQUIRE(o.s, "no session");
    for (int i = 0; i < N; i++)
        must_read(o.s, i, i, lengths[i]);
    for (int i = N - 1; i >= 0; i--) {
        writes(o.s, i, 0, 2, got);
        writes(o.s, i, 2, 1, got);
        check_same(got, want[i], "among others");
    }
    for (int i = 0; i < N; i++) { /* all pages are in use: each text goes in beside the old one */
        struct pith_error err;
        CHECK(pith_truncate(o.s, i, 0, &err) == PITH_OK && pith_encoded(o.s, i) == 0);
        must_read(o.s, i, 40, 256);
        must_read(o.s, i, (i + 1) % N, lengths[(i + 1) % N]);
    }
    for (int i = 0; i < N; i++) {
        writes(o.s, i, 0, 3, got);
        check_same(got, want[(i + 1) % N], "read anew");
    }
    uint64_t now, most;
    pith_session_memory(o.s, &now, &most);
    CHECK_MSG(now <= most, "%llu bytes, at most %llu were promised", (unsigned long long)now,
              (unsigned long long)most);
    close_it(&o);
}

static void information(void)
{
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 128;
    sp.n_batch = 40;
    struct open o = open_with(&sp);
    REQUIRE(o.s, "no session");
    CHECK(pith_model_get_info(o.m, &info, NULL) == PITH_OK && info.encoder == 1 &&
          info.decoder_start == 0 && info.causal == 1 && info.logits == 1);
    CHECK(pith_encoder_most(o.s) == 40 && pith_encoded(o.s, 0) == 0 && pith_encoded(o.s, 1) == -1);
    close_it(&o);
    sp.n_batch = 400;
    o = open_with(&sp);
    CHECK(o.s && pith_encoder_most(o.s) == 128);
    close_it(&o);
}

/* ---------------------------------------------------------------- copies and edits */

static void copies_share(void)
{
    static float want[V], got[V];
    struct pith_error err;
    struct open o = open_seqs(3);
    REQUIRE(o.s, "no session");
    alone(1, TEXT, ROWS, want);
    must_read(o.s, 0, 1, TEXT);
    must_read(o.s, 2, 2, 30);
    CHECK(pith_copy(o.s, 1, 0, 0, -1, &err) == PITH_OK); /* of an empty one: its memory */
    CHECK(pith_encoded(o.s, 1) == TEXT && pith_length(o.s, 1) == 0);
    writes(o.s, 0, 0, 5, got);
    CHECK(pith_copy(o.s, 2, 0, 0, -1, &err) == PITH_OK && pith_encoded(o.s, 2) == TEXT);
    CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK && pith_encoded(o.s, 0) == 0);
    must_read(o.s, 0, 3, TEXT); /* into the pages it gave back, if anybody's were */
    writes(o.s, 1, 0, ROWS, got);
    check_same(got, want, "a copy of the memory");
    writes(o.s, 2, 5, ROWS - 5, got);
    check_same(got, want, "a copy of rows and memory");
    CHECK(pith_truncate(o.s, 2, 3, &err) == PITH_OK && pith_encoded(o.s, 2) == TEXT);
    writes(o.s, 2, 3, ROWS - 3, got);
    check_same(got, want, "gone back");
    CHECK(pith_copy(o.s, 2, 2, 0, 4, &err) == PITH_OK); /* onto itself */
    writes(o.s, 2, 4, ROWS - 4, got);
    check_same(got, want, "copied onto itself");
    CHECK(pith_keep(o.s, 2, &err) == PITH_OK && pith_encoded(o.s, 0) == 0 &&
          pith_encoded(o.s, 1) == 0 && pith_encoded(o.s, 2) == TEXT);
    close_it(&o);
}

/* An edit of the decoder's rows leaves the memory alone. */
static void edits_keep_it(void)
{
    static float a[V], b[V];
    struct pith_error err;
    struct open o = open_seqs(2);
    REQUIRE(o.s, "no session");
    must_read(o.s, 0, 1, TEXT);
    writes(o.s, 0, 0, ROWS, a);
    CHECK(pith_remove(o.s, 0, 2, 5, &err) == PITH_OK && pith_shift(o.s, 0, 5, -1, -3, &err) == 0);
    CHECK(pith_copy(o.s, 1, 0, 0, -1, &err) == PITH_OK);
    CHECK(pith_encoded(o.s, 0) == TEXT && pith_length(o.s, 0) == ROWS - 3);
    writes(o.s, 0, 40, 3, a);
    CHECK(reads(o.s, 1, 2, TEXT, &err) == PITH_STATE && strstr(err.msg, "truncate it to 0"));
    writes(o.s, 1, 40, 3, b);
    check_same(a, b, "an edited sequence and its copy");
    CHECK(pith_remove(o.s, 0, 0, -1, &err) == PITH_OK && pith_encoded(o.s, 0) == 0);
    close_it(&o);
}

/* ---------------------------------------------------------------- snapshots */

static void snapshots(void)
{
    static float want[V], got[V];
    static uint8_t image[1 << 20], other[1 << 20];
    struct pith_error err = {PITH_OK, ""};
    size_t n = 0, m = 0;
    struct open o = open_seqs(2);
    REQUIRE(o.s, "no session");
    alone(1, TEXT, ROWS, want);
    must_read(o.s, 1, 1, TEXT);
    CHECK(pith_save_memory(o.s, 1, other, sizeof other, &m, &err) == PITH_OK);
    writes(o.s, 1, 0, 6, got);
    CHECK(pith_save_memory(o.s, 1, image, sizeof image, &n, &err) == PITH_OK && n > m);
    close_it(&o);
    o = open_seqs(2);
    REQUIRE(o.s, "no session");
    must_read(o.s, 0, 2, 256);
    CHECK_MSG(pith_load_memory(o.s, 0, image, n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_encoded(o.s, 0) == TEXT && pith_length(o.s, 0) == 6);
    writes(o.s, 0, 6, ROWS - 6, got);
    check_same(got, want, "loaded");
    CHECK_MSG(pith_load_memory(o.s, 1, other, m, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_encoded(o.s, 1) == TEXT && pith_length(o.s, 1) == 0);
    writes(o.s, 1, 0, ROWS, got);
    check_same(got, want, "loaded before a row was written");
    CHECK_MSG(pith_save_memory(o.s, -1, image, sizeof image, &n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK && pith_truncate(o.s, 1, 4, &err) == PITH_OK);
    for (size_t i = 0; i < n; i += 101) { /* damage is seen, and changes nothing */
        image[i] ^= 16;
        CHECK_MSG(pith_load_memory(o.s, -1, image, n, &err) != PITH_OK, "byte %zu", i);
        image[i] ^= 16;
    }
    CHECK(pith_encoded(o.s, 0) == 0 && pith_encoded(o.s, 1) == TEXT && pith_length(o.s, 1) == 4);
    CHECK_MSG(pith_load_memory(o.s, -1, image, n, &err) == PITH_OK, "%s", err.msg);
    writes(o.s, 0, ROWS, 1, want);
    writes(o.s, 1, ROWS, 1, got);
    check_same(got, want, "a whole session");
    close_it(&o);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_batch = 64;
    o = open_with(&sp); /* its encoder reads less */
    CHECK(o.s && pith_load_memory(o.s, 0, other, m, &err) == PITH_RANGE &&
          strstr(err.msg, "100") && strstr(err.msg, "64"));
    close_it(&o);
}

/* ---------------------------------------------------------------- the prefix store */

/* Pages behind the same text are found again, behind another they are not. */
static void stored_pages(void)
{
    enum { N = 150 };
    static float got[V], want[V];
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    int32_t ids[N];
    size_t kept;
    sp.n_ctx = N_CTX;
    sp.store_bytes = 4 << 20;
    struct open o = open_with(&sp);
    REQUIRE(o.s, "no session");
    for (int i = 0; i < N; i++)
        ids[i] = i ? 3 + i * 13 % (V - 3) : 0;
    static const struct {
        int which;
        int32_t n_text;
        size_t kept;
    } c[] = {{1, TEXT, 0}, {2, TEXT, 0}, {1, TEXT, 128}, {1, TEXT - 1, 0}, {2, TEXT, 128}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        must_read(o.s, 0, c[i].which, c[i].n_text);
        CHECK(pith_prefix(o.s, 0, ids, N, &kept, &err) == PITH_OK);
        CHECK_MSG(kept == c[i].kept, "case %zu: %zu positions kept, wanted %zu", i, kept,
                  c[i].kept);
        memcpy(got, pith_logits(o.s, 0), sizeof got);
        alone(c[i].which, c[i].n_text, N, want);
        check_same(got, want, "from the store");
        CHECK(pith_prefix(o.s, 0, ids, N, &kept, &err) == PITH_OK && kept == N - 1);
        CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK);
    }
    CHECK(pith_prefix(o.s, 0, ids, N, &kept, &err) == PITH_STATE && strstr(err.msg, "pith_encode"));
    close_it(&o);
}

/* ---------------------------------------------------------------- what is refused */

static void refused(void)
{
    static float want[V], got[V];
    struct pith_error err;
    int32_t id = 0, bad[3] = {4, V, 5}, below[2] = {4, -1};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 128;
    sp.n_batch = 60;
    struct open o = open_with(&sp);
    REQUIRE(o.s, "no session");
    CHECK(pith_feed(o.s, 0, &id, 1, &err) == PITH_STATE && strstr(err.msg, "pith_encode") &&
          strstr(err.msg, "sequence 0"));
    CHECK(reads(o.s, 0, 1, 61, &err) == PITH_RANGE && strstr(err.msg, "n_prompt = 61") &&
          strstr(err.msg, "at most 60") && strstr(err.msg, "n_over = 1"));
    CHECK(pith_encode(o.s, 0, bad, 3, &err) == PITH_RANGE && strstr(err.msg, "token 1 is 80"));
    CHECK(pith_encode(o.s, 0, below, 2, &err) == PITH_RANGE && strstr(err.msg, "-1"));
    CHECK(reads(o.s, 1, 1, 5, &err) == PITH_RANGE && strstr(err.msg, "sequence 1"));
    CHECK(reads(o.s, -1, 1, 5, &err) == PITH_RANGE);
    CHECK(pith_encode(o.s, 0, NULL, 3, &err) != PITH_OK && pith_encode(NULL, 0, &id, 1, &err));
    CHECK(pith_encoded(o.s, 0) == 0);
    must_read(o.s, 0, 1, 60);
    writes(o.s, 0, 0, 2, want);
    CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK);
    must_read(o.s, 0, 1, 60);
    CHECK(pith_encode(o.s, 0, bad, 3, &err) == PITH_RANGE && pith_encoded(o.s, 0) == 60);
    pith_cancel(o.s);
    CHECK(reads(o.s, 0, 2, 50, &err) == PITH_CANCELLED && pith_encoded(o.s, 0) == 60);
    pith_cancel_reset(o.s);
    writes(o.s, 0, 0, 2, got);
    check_same(got, want, "after what was refused and cancelled");
    CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK);
    must_read(o.s, 0, 1, 60);
    CHECK(pith_encode(o.s, 0, NULL, 0, &err) == PITH_OK && pith_encoded(o.s, 0) == 0);
    CHECK(pith_feed(o.s, 0, &id, 1, &err) == PITH_STATE);
    close_it(&o);
    make_model("llama"); /* has none */
    o = open_seqs(1);
    CHECK(o.s && reads(o.s, 0, 1, 5, &err) == PITH_UNSUPPORTED && strstr(err.msg, "llama") &&
          pith_encoder_most(o.s) == 0 && pith_encoded(o.s, 0) == 0);
    close_it(&o);
    make_model("t5");
}

/* ---------------------------------------------------------------- rows of both roles */

enum { MIXED = 2 * (9 + 4) };

/* Texts of 9 and 8 tokens and rows of the decoder, 4 and 3, of two sequences, among each other. */
static int32_t mixed(int32_t token[MIXED], int32_t seq[MIXED], uint8_t role[MIXED],
                     uint8_t want[MIXED])
{
    int32_t n = 0, at[2][2] = {{0}};
    for (int i = 0; i < 40; i++) {
        int q = i % 2, reads_it = i % 5 < 3;
        int32_t *k = &at[q][reads_it], most = (reads_it ? 9 : 4) - q;
        if (*k >= most)
            continue;
        token[n] = reads_it ? text_at(q, *k) : *k ? 3 + *k * 13 % (V - 3) : 0;
        seq[n] = q;
        role[n] = reads_it ? PITH_ROLE_ENCODER : PITH_ROLE_DECODER;
        want[n++] = !reads_it && ++*k == most;
        *k += reads_it;
    }
    return n;
}

static pith_status by_submit(pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    pith_status st = pith_submit(s, b, err);
    return st == PITH_OK ? pith_wait(s, err) : st;
}

/* The same batch by pith_submit, and what it does besides. */
static void rows_of_both_roles_submitted(struct pith_batch b, float want[2][V])
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    static const int32_t one[1] = {0}, third[1] = {2};
    static const uint8_t read_it[1] = {PITH_ROLE_ENCODER};
    sp.n_ctx = N_CTX;
    sp.n_seq = 3;
    sp.n_lanes = 2;
    struct open o = open_with(&sp);
    REQUIRE(o.s, "no session");
    for (int round = 0; round < 2; round++) {
        CHECK_MSG(by_submit(o.s, &b, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_n_outputs(o.s) == 2 && pith_encoded(o.s, 0) == 9 && pith_length(o.s, 1) == 3);
        for (int i = 0, out = 0; i < b.n && out < 2; i++)
            if (b.want[i])
                check_same(want[b.seq[i]], pith_logits(o.s, out++), "rows of both, submitted");
        for (int q = 0; q < 2; q++)
            CHECK(pith_truncate(o.s, q, 0, &err) == PITH_OK && pith_encoded(o.s, q) == 0);
    }
    /* Beside a step under way, or alone, there is nothing to submit. */
    struct pith_batch text = PITH_BATCH_INIT;
    text.n = 1;
    text.token = one;
    text.seq = third;
    text.role = read_it;
    CHECK(pith_submit(o.s, &text, &err) == PITH_RANGE && strstr(err.msg, "all rows are"));
    CHECK_MSG(pith_submit(o.s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_submit(o.s, &text, &err) == PITH_STATE && strstr(err.msg, "under way"));
    CHECK(pith_wait(o.s, &err) == PITH_OK && pith_encoded(o.s, 0) == 9 && !pith_encoded(o.s, 2));
    close_it(&o);
    /* A step that is cancelled on its way, on a device that works by itself, has read nothing. */
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    setenv("PITH_LAYER_DEVICES", "1", 1);
    o.m = open_on_far(path, "1", &mp, 32, &err);
    unsetenv("PITH_LAYER_DEVICES");
    o.s = o.m ? pith_session_open(o.m, &sp, &err) : NULL;
    REQUIRE(o.s && pith_submit(o.s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_encoded(o.s, 0) == 9 && pith_encoded(o.s, 1) == 8);
    pith_cancel(o.s);
    CHECK_MSG(pith_wait(o.s, &err) == PITH_CANCELLED, "%s", err.msg);
    pith_cancel_reset(o.s);
    CHECK(!pith_encoded(o.s, 0) && !pith_encoded(o.s, 1) && !pith_length(o.s, 0));
    CHECK_MSG(by_submit(o.s, &b, &err) == PITH_OK && pith_encoded(o.s, 0) == 9, "%s", err.msg);
    close_it(&o);
}

static void rows_of_both_roles(void)
{
    static const uint8_t no_such[1] = {2};
    static const int32_t one[1] = {5};
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = PITH_BATCH_INIT, bad = PITH_BATCH_INIT;
    int32_t token[MIXED], seq[MIXED];
    uint8_t role[MIXED], wanted[MIXED];
    float want[2][V];
    make_model("t5");
    for (int q = 0; q < 2; q++)
        alone(q, 9 - q, 4 - q, want[q]);
    struct open o = open_seqs(2);
    b.n = mixed(token, seq, role, wanted);
    REQUIRE(o.s && b.n == 9 + 8 + 4 + 3, "%d rows", b.n);
    b.token = token;
    b.seq = seq;
    b.role = role;
    b.want = wanted;
    for (int round = 0; round < 2; round++) {
        CHECK_MSG(pith_step(o.s, &b, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_n_outputs(o.s) == 2 && pith_encoded(o.s, 0) == 9 && pith_encoded(o.s, 1) == 8 &&
              pith_length(o.s, 0) == 4 && pith_length(o.s, 1) == 3);
        for (int i = 0, out = 0; i < b.n && out < 2; i++)
            if (wanted[i])
                check_same(want[seq[i]], pith_logits(o.s, out++), "rows of both roles");
        CHECK(pith_step(o.s, &b, &err) == PITH_STATE && strstr(err.msg, "read a text already"));
        for (int q = 0; q < 2; q++)
            CHECK(pith_truncate(o.s, q, 0, &err) == PITH_OK && pith_encoded(o.s, q) == 0);
    }
    rows_of_both_roles_submitted(b, want);
    /* What fails has read nothing, wherever it fails. */
    for (int i = b.n - 1; i >= 0; i--) {
        int32_t was = token[i];
        token[i] = V;
        CHECK_MSG(pith_step(o.s, &b, &err) == PITH_RANGE, "row %d: %s", i, err.msg);
        CHECK(!pith_encoded(o.s, 0) && !pith_encoded(o.s, 1) && !pith_length(o.s, 0));
        token[i] = was;
    }
    for (int i = 0; i < b.n; i++)
        if (role[i]) {
            wanted[i] = 1;
            CHECK(pith_step(o.s, &b, &err) == PITH_RANGE && strstr(err.msg, "wants output"));
            wanted[i] = 0;
            seq[i] += 2;
            CHECK(pith_step(o.s, &b, &err) == PITH_RANGE && strstr(err.msg, "sequence"));
            seq[i] -= 2;
        }
    CHECK_MSG(pith_step(o.s, &b, &err) == PITH_OK, "%s", err.msg);
    bad.n = 1;
    bad.token = one;
    bad.role = no_such;
    CHECK(pith_step(o.s, &bad, &err) == PITH_RANGE && strstr(err.msg, "role 2"));
    close_it(&o);
    /* A text alone; a model without an encoder. */
    static const uint8_t read_it[1] = {PITH_ROLE_ENCODER};
    o = open_seqs(1);
    bad.role = read_it;
    CHECK_MSG(pith_step(o.s, &bad, &err) == PITH_OK && pith_encoded(o.s, 0) == 1, "%s", err.msg);
    close_it(&o);
    make_model("llama");
    o = open_seqs(1);
    CHECK(pith_step(o.s, &bad, &err) == PITH_UNSUPPORTED && strstr(err.msg, "no encoder"));
    close_it(&o);
    make_model("t5");
}

/* ---------------------------------------------------------------- text */

/* pith_generate: the prompt is the encoder's; the decoder begins with its start token. */
static void generates(void)
{
    enum { N = 20 };
    struct pith_error err = {PITH_OK, ""};
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    struct open o = open_seqs(2);
    int32_t text[TEXT], other[30], made[N + 1] = {0}, held[N + 4];
    REQUIRE(o.s, "no session");
    for (int i = 0; i < TEXT; i++)
        text[i] = text_at(1, i);
    for (int i = 0; i < 30; i++)
        other[i] = text_at(2, i);
    must_read(o.s, 0, 1, TEXT);
    for (int i = 0; i < N; i++) { /* the same by hand, the best token each time */
        CHECK(pith_feed(o.s, 0, &made[i], 1, &err) == PITH_OK);
        const float *x = pith_logits(o.s, 0);
        for (int v = 1; v < V; v++)
            made[i + 1] = x[v] > x[made[i + 1]] ? v : made[i + 1];
    }
    p.seq = 1;
    p.tokens = text;
    p.n_tokens = TEXT;
    p.n_max = N;
    p.ignore_eog = 1;
    for (int again = 0; again < 3; again++) {
        CHECK_MSG(pith_generate(o.s, &p, &r, &err) == PITH_OK, "%s", err.msg);
        CHECK(r.n_prompt == TEXT && r.n_generated == N && pith_encoded(o.s, 1) == TEXT);
        CHECK_MSG(r.n_kept == (again ? TEXT : 0), "%d kept", r.n_kept);
        CHECK(pith_tokens(o.s, 1, held, N + 4) == N && !memcmp(held, made, N * sizeof *made));
        CHECK(r.unfed == made[N]);
    }
    p.tokens = other;
    p.n_tokens = 30;
    CHECK(pith_generate(o.s, &p, &r, &err) == PITH_OK && r.n_kept == 0 && r.n_prompt == 30);
    CHECK(pith_encoded(o.s, 1) == 30 && pith_tokens(o.s, 1, held, N + 4) == N);
    CHECK(memcmp(held, made, N * sizeof *made));
    p.n_tokens = 0;
    CHECK(pith_generate(o.s, &p, &r, &err) == PITH_RANGE && pith_encoded(o.s, 1) == 30);
    p.seq = 2;
    p.n_tokens = 30;
    CHECK(pith_generate(o.s, &p, &r, &err) == PITH_RANGE && strstr(err.msg, "sequence 2"));
    close_it(&o);
}

/* A start token that the vocabulary does not have. */
static void bad_keys(void)
{
    static const struct {
        const char *set, *says;
    } c[] = {{"t5.decoder_start_token_id=int:80", "decoder_start_token_id is 80"},
             {"t5.decoder_start_token_id=int:-1", "decoder_start_token_id"},
             {"t5.decoder_block_count=int:0", "decoder_block_count"},
             {"t5.decoder_block_count=int:5", "dec.blk.3.attn_q.weight"},
             {"t5.decoder_block_count=int:2", "extra dec.blk.2."},
             {"t5.attention.relative_buckets_count=int:2", "relative_buckets_count"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *set[] = {c[i].set, NULL};
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        mp.overrides = set;
        pith_model *m = pith_model_open(path, &mp, &err);
        CHECK_MSG(!m && strstr(err.msg, c[i].says), "%s: %s", c[i].set, m ? "opened" : err.msg);
        pith_model_close(m);
    }
    const char *set[] = {"t5.decoder_start_token_id=int:7", NULL};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    struct pith_error err = {PITH_OK, ""};
    mp.overrides = set;
    pith_model *m = pith_model_open(path, &mp, &err);
    CHECK_MSG(m && pith_model_get_info(m, &info, &err) == PITH_OK && info.decoder_start == 7, "%s",
              err.msg);
    pith_model_close(m);
}

/* The encoder works without allocating once it has worked. */
static void no_allocation(void)
{
    struct open o = open_seqs(1);
    float got[V];
    REQUIRE(o.s, "no session");
    must_read(o.s, 0, 1, TEXT);
    writes(o.s, 0, 0, 3, got);
    long before = atomic_load(&hook.asked);
    struct pith_error err;
    CHECK(pith_truncate(o.s, 0, 0, &err) == PITH_OK);
    must_read(o.s, 0, 2, TEXT);
    writes(o.s, 0, 0, 3, got);
    CHECK_MSG(atomic_load(&hook.asked) == before, "%ld allocations",
              atomic_load(&hook.asked) - before);
    close_it(&o);
}

int main(void)
{
    hook_install();
    tmp_make();
    make_model("t5");
    TEST(every_length);
    TEST(information);
    TEST(copies_share);
    TEST(edits_keep_it);
    TEST(snapshots);
    TEST(stored_pages);
    TEST(refused);
    TEST(rows_of_both_roles);
    TEST(bad_keys);
    TEST(generates);
    TEST(no_allocation);
    unlink(path);
    return test_end();
}
