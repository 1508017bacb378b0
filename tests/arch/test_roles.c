/* test_roles.c -- sessions of other roles than the decoder's (pith_session_params.role).
 *
 *   draft heads   by definition: a head is the layer behind the others, over what eh_proj makes of
 *                 token and vector; the same bits in pieces, by submit, in trees, after edits and
 *                 snapshots, on two threads, and on devices whose memory the host cannot touch
 *   projectors    by definition; their rows are what the decoder takes as embedding rows
 *   refused       roles that are not there, rows that are not theirs, files that lack tensors,
 *                 memory that runs out at any call */
#include <math.h>

#include "backend/far/far.h"
#include "model_file.h"
#include "robust.h"
#include "run/session/session.h"

enum { V = 60, E = 32, N = 20, N_LAYER = 2 };

static char path[MODEL_PATH];

/* A model of two layers, and heads behind them. */
static void make(const char *arch, int n_heads, const char *const *tensors)
{
    static char key[64];
    static const char *keys[2] = {key, NULL};
    struct pith_synth_params p = small_params(arch, V);
    snprintf(key, sizeof key, "nextn_predict_layers=%d", n_heads);
    p.n_embd = E;
    p.n_layer = N_LAYER + n_heads;
    p.keys = n_heads ? keys : NULL;
    p.tensors = tensors;
    model_file(path, p);
}

static pith_model *opened(const char *n_far, const char *layers, int heads, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.draft_heads = heads;
    if (layers)
        setenv("PITH_LAYER_DEVICES", layers, 1);
    pith_model *m = open_on_far(path, n_far, &mp, 32, err);
    unsetenv("PITH_LAYER_DEVICES");
    return m;
}

static pith_session *session_of(pith_model *m, int32_t role, int32_t draft, struct pith_error *err)
{
    static const char *const taps[] = {"visit.1", "end", NULL};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 128;
    sp.n_seq = 3;
    sp.n_lanes = role == PITH_ROLE_PROJECTOR ? 1 : 2;
    sp.role = role;
    sp.draft = draft;
    sp.taps = role == PITH_ROLE_DRAFT ? taps : NULL;
    *err = (struct pith_error){PITH_OK, ""};
    return pith_session_open(m, &sp, err);
}

/* What goes in, and what comes of it: logits of every row. */
static int32_t token[N];
static float vector[N][E];

static void fill_rows(void)
{
    for (int i = 0; i < N; i++) {
        token[i] = 3 + (i * 17 + i * i) % (V - 3);
        for (int k = 0; k < E; k++)
            vector[i][k] = sinf((float)(i * E + k)) * (float)(1 + i % 3);
    }
}

static struct pith_batch rows(int from, int n)
{
    static const uint8_t all[N] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = n;
    b.token = token + from;
    b.embd = vector[from];
    b.both = b.want = all;
    return b;
}

static void run_in_pieces(pith_session *s, int piece, int by_submit, float out[N][V])
{
    struct pith_error err = {PITH_OK, ""};
    for (int at = 0; at < N; at += piece) {
        int n = at + piece < N ? piece : N - at;
        struct pith_batch b = rows(at, n);
        pith_status st = by_submit ? pith_submit(s, &b, &err) : pith_step(s, &b, &err);
        if (st == PITH_OK && by_submit)
            st = pith_wait(s, &err);
        REQUIRE(st == PITH_OK && pith_n_outputs(s) == n, "%s", err.msg);
        for (int i = 0; i < n; i++)
            memcpy(out[at + i], pith_logits(s, i), sizeof out[0]);
    }
}

/* ---------------------------------------------------------------- by definition */

static const float *floats(const pith_model *m, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, slice_of(name));
    return t ? (const float *)(const void *)gguf_tensor_data(m->gguf, t) : NULL;
}

static void normed(const float *x, const float *w, double *y)
{
    double sum = 0;
    for (int k = 0; k < E; k++)
        sum += (double)x[k] * (double)x[k];
    for (int k = 0; k < E; k++)
        y[k] = (double)x[k] / sqrt(sum / E + 1e-5) * (double)w[k];
}

/* The file of a model with one layer, which has the tensors of layer `from` of m. */
static void make_layer_alone(const pith_model *m, int from)
{
    struct pith_error err = {PITH_OK, ""};
    char name[160];
    size_t n;
    struct pith_synth_params p = small_params(m->info.arch, V);
    p.n_embd = E;
    p.n_layer = 1;
    model_file(path, p);
    struct gguf *g = gguf_open(path, &err);
    uint8_t *bytes = file_bytes(path, &n);
    REQUIRE(g && bytes, "%s", err.msg);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        int layer = !strncmp(t->name.p, "blk.0.", 6);
        if (layer)
            snprintf(name, sizeof name, "blk.%d.%.*s", from, (int)t->name.n - 6, t->name.p + 6);
        else
            snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
        const float *src = floats(m, name);
        if (!strcmp(name, "output_norm.weight")) { /* a head may have one of its own */
            snprintf(name, sizeof name, "blk.%d.layer_output_norm.weight", from);
            src = floats(m, name) ? floats(m, name) : src;
        }
        REQUIRE(src, "no %s", name);
        memcpy(bytes + ((const uint8_t *)gguf_tensor_data(g, t) - gguf_part(g, 0)->p), src,
               t->bytes);
    }
    gguf_close(g);
    CHECK(file_put(path, bytes, n));
    free(bytes);
}

/* Logits of a head are those of its layer alone, which is given eh_proj [norm, norm] as rows. */
static void check_head(const char *arch, int32_t k)
{
    static float got[N][V], x[N][E];
    struct pith_error err;
    char name[96];
    pith_model *m = opened("0", NULL, 1, &err);
    pith_session *s = m ? session_of(m, PITH_ROLE_DRAFT, k, &err) : NULL;
    REQUIRE(s, "%s: %s", arch, err.msg);
    run_in_pieces(s, N, 0, got);
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", N_LAYER + k);
    const float *proj = floats(m, name), *embd = floats(m, "token_embd.weight");
    snprintf(name, sizeof name, "blk.%d.nextn.enorm.weight", N_LAYER + k);
    const float *enorm = floats(m, name);
    snprintf(name, sizeof name, "blk.%d.nextn.hnorm.weight", N_LAYER + k);
    const float *hnorm = floats(m, name);
    REQUIRE(proj && embd && enorm && hnorm, "%s: no tensors of head %d", arch, k);
    for (int i = 0; i < N; i++) {
        double both[2 * E];
        normed(embd + token[i] * E, enorm, both);
        normed(vector[i], hnorm, both + E);
        for (int r = 0; r < E; r++) {
            double sum = 0;
            for (int c = 0; c < 2 * E; c++)
                sum += (double)proj[r * 2 * E + c] * both[c];
            x[i][r] = (float)sum;
        }
    }
    char kept[MODEL_PATH + 8];
    snprintf(kept, sizeof kept, "%s.kept", path);
    CHECK(rename(path, kept) == 0);
    make_layer_alone(m, N_LAYER + k);
    pith_session_close(s);
    pith_model_close(m);
    m = opened("0", NULL, 0, &err);
    s = m ? session_of(m, PITH_ROLE_DECODER, 0, &err) : NULL;
    REQUIRE(s, "%s: %s", arch, err.msg);
    struct pith_batch b = rows(0, N);
    b.token = NULL;
    b.both = NULL;
    b.embd = x[0];
    for (int at = 0; at < N; at += 10) {
        b.n = 10;
        b.embd = x[at];
        REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        for (int i = 0; i < 10; i++)
            for (int v = 0; v < V; v++) {
                float want = pith_logits(s, i)[v], is = got[at + i][v];
                if (!(fabsf(is - want) <= 2e-4f * (1 + fabsf(want)))) {
                    CHECK_MSG(0, "%s head %d row %d: logit %d is %g, wanted %g", arch, k, at + i, v,
                              (double)is, (double)want);
                    v = V;
                }
            }
    }
    pith_session_close(s);
    pith_model_close(m);
    CHECK(rename(kept, path) == 0);
}

static void heads_by_definition(void)
{
    make("llama", 2, NULL);
    check_head("llama", 0);
    check_head("llama", 1);
    make("qwen3", 1, NULL);
    check_head("qwen3", 0);
    static const char *const own_norm[] = {"layer_output_norm.weight", NULL};
    make("llama", 1, own_norm);
    check_head("llama", 0);
}

/* ---------------------------------------------------------------- the same bits */

static const char *const archs[] = {"llama", "glm4moe", "exaone4", "mimo2"};

static void check_bits(const char *arch, const char *what, float got[N][V], float want[N][V])
{
    CHECK_MSG(!memcmp(got, want, sizeof(float[N][V])), "%s: other bits %s", arch, what);
}

static void taps_of(pith_session *s, int row, float out[2][E])
{
    struct pith_error err = {PITH_OK, ""};
    for (int k = 0; k < 2; k++) {
        const float *t = pith_tap(s, k, row, &err);
        REQUIRE(t, "%s", err.msg);
        memcpy(out[k], t, sizeof out[k]);
    }
}

/* Sequences are cut, copied, saved and loaded as those of a decoder. */
static void edits(pith_session *s, const char *arch, float want[N][V])
{
    static float got[N][V];
    static uint8_t saved[1 << 20];
    struct pith_error err = {PITH_OK, ""};
    size_t n = 0;
    CHECK(pith_length(s, 0) == N && pith_truncate(s, 0, 7, &err) == PITH_OK);
    CHECK(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK);
    CHECK_MSG(pith_save_memory(s, 1, saved, sizeof saved, &n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(s, 0, saved, n, &err) == PITH_OK, "%s", err.msg);
    struct pith_batch b = rows(7, N - 7);
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s: %s", arch, err.msg);
    memcpy(got, want, sizeof got);
    for (int i = 7; i < N; i++)
        memcpy(got[i], pith_logits(s, i - 7), sizeof got[i]);
    check_bits(arch, "after edits and a snapshot", got, want);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    /* another role's sequence is another model's */
    pith_session *decoder = session_of(s->model, PITH_ROLE_DECODER, 0, &err);
    REQUIRE(decoder, "%s", err.msg);
    CHECK(pith_load_memory(decoder, 0, saved, n, &err) != PITH_OK);
    CHECK(pith_length(decoder, 0) == 0);
    pith_session_close(decoder);
}

/* A tree of two ways behind the first rows: each has the bits of its path alone. */
static void trees(pith_session *s, const char *arch, int by_submit, float want[N][V])
{
    static const int32_t parent[] = {PITH_ROOT, 0, 1, PITH_ROOT, 3};
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = rows(0, 8);
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    b = rows(8, 5);
    b.parent = parent;
    if (by_submit) {
        REQUIRE(pith_submit(s, &b, &err) == PITH_OK, "%s: %s", arch, err.msg);
        CHECK(pith_accept(s, 0, 2, &err) == PITH_STATE);
        REQUIRE(pith_wait(s, &err) == PITH_OK, "%s: %s", arch, err.msg);
    } else {
        REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s: %s", arch, err.msg);
    }
    for (int i = 0; i < 3; i++)
        CHECK_MSG(!memcmp(pith_logits(s, i), want[8 + i], sizeof want[0]),
                  "%s: other bits of row %d of a tree", arch, i);
    CHECK(pith_accept(s, 0, 2, &err) == PITH_OK && pith_length(s, 0) == 11);
    b = rows(11, N - 11);
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(!memcmp(pith_logits(s, N - 12), want[N - 1], sizeof want[0]),
              "%s: other bits behind a path that was accepted", arch);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
}

static void check_arch(const char *arch)
{
    static const struct {
        const char *what, *n_far, *layers;
    } on[] = {{"on a far device", "1", "1"},
              {"by turns", "1", "0,1"},
              {"the other way", "2", "2,0"}};
    static float want[N][V], got[N][V];
    float tap[2][E], far_tap[2][E];
    struct pith_error err;
    make(arch, 1, NULL);
    pith_model *m = opened("0", NULL, 1, &err);
    pith_session *s = m ? session_of(m, PITH_ROLE_DRAFT, 0, &err) : NULL;
    REQUIRE(s, "%s: %s", arch, err.msg);
    run_in_pieces(s, N, 0, want);
    taps_of(s, N - 1, tap);
    edits(s, arch, want);
    int32_t ids[N];
    for (int piece = 1; piece < N; piece += 5) {
        run_in_pieces(s, piece, piece % 2, got);
        check_bits(arch, "in pieces", got, want);
        CHECK(pith_tokens(s, 0, ids, N) == N && ids[0] == -1);
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    }
    if (pith_edits(s) & PITH_EDIT_TREES)
        for (int by_submit = 0; by_submit < 2; by_submit++)
            trees(s, arch, by_submit, want);
    pith_session_close(s);
    pith_model_close(m);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        m = opened(on[i].n_far, on[i].layers, 1, &err);
        s = m ? session_of(m, PITH_ROLE_DRAFT, 0, &err) : NULL;
        REQUIRE(s, "%s %s: %s", arch, on[i].what, err.msg);
        run_in_pieces(s, 6, 0, got);
        check_bits(arch, on[i].what, got, want);
        taps_of(s, 1, far_tap);
        CHECK_MSG(!memcmp(tap, far_tap, sizeof tap), "%s %s: other taps", arch, on[i].what);
        pith_session_close(s);
        pith_model_close(m);
    }
    CHECK(far_live() == 0);
}

static void heads_have_the_same_bits(void)
{
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++)
        check_arch(archs[a]);
}

/* The decoder beside them has the bits that it has in a model without them. */
static void the_decoder_stays(void)
{
    struct pith_error err;
    float out[2][V];
    make("llama", 1, NULL);
    for (int heads = 0; heads < 2; heads++) {
        pith_model *m = opened("0", NULL, heads, &err);
        pith_session *s = m ? session_of(m, PITH_ROLE_DECODER, 0, &err) : NULL;
        REQUIRE(s && pith_feed(s, 0, token, N, &err) == PITH_OK, "%s", err.msg);
        memcpy(out[heads], pith_logits(s, 0), sizeof out[0]);
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && info.n_nextn == 1);
        CHECK_MSG(heads ? !info.note
                        : info.note && strstr(info.note, "12 tensors of blocks that predict "
                                                         "further on are not loaded (draft_heads)"),
                  "%s", info.note ? info.note : "no note");
        CHECK(s->n_states == N_LAYER);
        pith_session_close(s);
        pith_model_close(m);
    }
    CHECK(!memcmp(out[0], out[1], sizeof out[0]));
}

/* ---------------------------------------------------------------- projectors */

static const char *const mm_tensors[] = {"mm.0.weight", "mm.0.bias", "mm.2.weight", "mm.2.bias",
                                         NULL};

static void projected(pith_session *s, float out[N][E])
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = rows(0, N);
    b.token = NULL;
    b.both = NULL;
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < b.n; i++) {
        REQUIRE(pith_embedding(s, i) && !pith_logits(s, i), "no row %d", i);
        memcpy(out[i], pith_embedding(s, i), sizeof out[i]);
    }
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
}

static void projectors(void)
{
    static float got[N][E], far[N][E];
    struct pith_error err;
    make("llama", 0, mm_tensors);
    pith_model *m = opened("0", NULL, 0, &err);
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    pith_session *s = m ? session_of(m, PITH_ROLE_PROJECTOR, 0, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && info.n_embd_projector == E);
    projected(s, got);
    projected(s, far);
    CHECK(!memcmp(got, far, sizeof got));
    const float *w0 = floats(m, "mm.0.weight"), *b0 = floats(m, "mm.0.bias"),
                *w2 = floats(m, "mm.2.weight"), *b2 = floats(m, "mm.2.bias");
    REQUIRE(w0 && b0 && w2 && b2, "no tensors of a projector");
    for (int i = 0; i < N; i++) {
        double h[E];
        for (int r = 0; r < E; r++) {
            double sum = (double)b0[r];
            for (int c = 0; c < E; c++)
                sum += (double)w0[r * E + c] * (double)vector[i][c];
            h[r] = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        }
        for (int r = 0; r < E; r++) {
            double sum = (double)b2[r];
            for (int c = 0; c < E; c++)
                sum += (double)w2[r * E + c] * h[c];
            CHECK_MSG(fabs((double)got[i][r] - sum) <= 2e-3 * (1 + fabs(sum)),
                      "row %d column %d is %g, wanted %g", i, r, (double)got[i][r], sum);
        }
    }
    /* the decoder takes them */
    pith_session *d = session_of(m, PITH_ROLE_DECODER, 0, &err);
    struct pith_batch b = rows(0, N);
    b.token = NULL;
    b.both = NULL;
    b.embd = got[0];
    CHECK(d && pith_step(d, &b, &err) == PITH_OK && pith_logits(d, 0));
    pith_session_close(d);
    b = rows(0, 3);
    CHECK(pith_step(s, &b, &err) == PITH_RANGE && strstr(err.msg, "row 0 of a projector"));
    b.both = NULL;
    CHECK(pith_step(s, &b, &err) == PITH_RANGE && strstr(err.msg, "row 0 of a projector"));
    pith_session_close(s);
    pith_model_close(m);
    m = opened("1", "1", 0, &err);
    s = m ? session_of(m, PITH_ROLE_PROJECTOR, 0, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    projected(s, far);
    CHECK(!memcmp(got, far, sizeof got));
    pith_session_close(s);
    pith_model_close(m);
    CHECK(far_live() == 0);
}

/* ---------------------------------------------------------------- refused */

static void no_session(pith_model *m, struct pith_session_params sp, pith_status st,
                       const char *why)
{
    struct pith_error err = {PITH_OK, ""};
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(!s && err.code == st && strstr(err.msg, why), "wanted \"%s\": %s", why, err.msg);
    pith_session_close(s);
}

static void no_model(const char *const *overrides, pith_status st, const char *why)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.draft_heads = 1;
    mp.overrides = overrides;
    pith_model *m = pith_model_open(path, &mp, &err);
    CHECK_MSG(!m && err.code == st && strstr(err.msg, why), "wanted \"%s\": %s", why, err.msg);
    pith_model_close(m);
}

static void refused(void)
{
    static const char *const llama_1[] = {"llama.nextn_predict_layers=int:1", NULL};
    static const char *const mla_1[] = {"deepseek2.nextn_predict_layers=int:1", NULL};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    make("llama", 0, NULL);
    no_model(NULL, PITH_UNSUPPORTED, "has no blocks that predict further on");
    no_model(llama_1, PITH_MISSING, "missing blk.1.nextn.eh_proj.weight, of a draft head");
    sp.role = PITH_ROLE_DRAFT;
    pith_model *m = opened("0", NULL, 0, &err);
    REQUIRE(m, "%s", err.msg);
    no_session(m, sp, PITH_UNSUPPORTED, "0 blocks that predict further on");
    sp.role = PITH_ROLE_PROJECTOR;
    no_session(m, sp, PITH_UNSUPPORTED, "no projector");
    sp.role = PITH_ROLE_ENCODER;
    no_session(m, sp, PITH_RANGE, "role is 1");
    sp.role = 9;
    no_session(m, sp, PITH_RANGE, "role is 9");
    sp.role = -1;
    no_session(m, sp, PITH_RANGE, "role is -1");
    sp.role = 0;
    sp.draft = 1;
    no_session(m, sp, PITH_RANGE, "draft is 1");
    pith_model_close(m);
    make("deepseek2", 0, NULL);
    no_model(mla_1, PITH_UNSUPPORTED, "draft heads of deepseek2 cannot be run yet");

    make("llama", 1, NULL);
    m = opened("0", NULL, 0, &err);
    REQUIRE(m, "%s", err.msg);
    sp.role = PITH_ROLE_DRAFT;
    sp.draft = 0;
    no_session(m, sp, PITH_UNSUPPORTED, "which are not loaded; open the model with draft_heads");
    pith_model_close(m);
    m = opened("0", NULL, 1, &err);
    REQUIRE(m, "%s", err.msg);
    sp.draft = 1;
    no_session(m, sp, PITH_RANGE, "draft is 1, the session has draft heads 0..0");
    sp.draft = 0;
    sp.store_bytes = 1 << 20;
    no_session(m, sp, PITH_UNSUPPORTED, "a draft head has no prefix store");
    sp.store_bytes = 0;
    sp.pooling = PITH_POOL_MEAN;
    no_session(m, sp, PITH_UNSUPPORTED, "does not pool");
    sp.pooling = PITH_POOL_FILE;
    sp.taps = (const char *const[]){"visit.2", NULL};
    no_session(m, sp, PITH_RANGE, "visit.0 .. visit.1");
    pith_session *s = session_of(m, PITH_ROLE_DRAFT, 0, &err);
    REQUIRE(s, "%s", err.msg);
    struct pith_batch b = rows(0, 3);
    b.both = NULL;
    CHECK(pith_step(s, &b, &err) == PITH_RANGE && strstr(err.msg, "is a token alone"));
    b.token = NULL;
    CHECK(pith_step(s, &b, &err) == PITH_RANGE && strstr(err.msg, "is a vector alone"));
    CHECK(pith_feed(s, 0, token, 3, &err) == PITH_RANGE);
    CHECK(pith_length(s, 0) == 0);
    pith_session_close(s);
    pith_model_close(m);
}

/* Every allocation fails once: an error, nothing held. */
static void without_memory(void)
{
    struct pith_error err;
    make("llama", 1, mm_tensors);
    int done = 0;
    for (long n = 0; !done && n < 4000; n += test_scale() >= 10 ? 1 : 17) {
        hook_refuse(n, 0);
        pith_model *m = opened("0", NULL, 1, &err);
        pith_session *s = m ? session_of(m, PITH_ROLE_DRAFT, 0, &err) : NULL;
        pith_session *p = s ? session_of(m, PITH_ROLE_PROJECTOR, 0, &err) : NULL;
        struct pith_batch b = rows(0, N);
        int ran = p && pith_step(s, &b, &err) == PITH_OK;
        done = !hook_grant();
        CHECK_MSG(done ? ran : ran || err.code == PITH_NOMEM, "allocation %ld: %s", n, err.msg);
        pith_session_close(p);
        pith_session_close(s);
        pith_model_close(m);
        check_nothing_held("draft head");
    }
    CHECK(done);
}

int main(void)
{
    hook_install();
    tmp_make();
    fill_rows();
    TEST(heads_by_definition);
    TEST(heads_have_the_same_bits);
    TEST(the_decoder_stays);
    TEST(projectors);
    TEST(refused);
    TEST(without_memory);
    unlink(path);
    return test_end();
}
