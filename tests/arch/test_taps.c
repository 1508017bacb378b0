/* test_taps.c -- values that steps give out on their way (pith_session_params.taps, pith_tap).
 *
 *   every architecture   all its taps are results of ops of the layer before, by the bits; the same
 *                        in pieces, with one output, beside other rows, unfused, by the plain C
 *                        reference and on devices whose memory the host cannot touch; and outputs
 *                        have the bits that they have without taps
 *   by definition        of a llama: the first is the embedding, logits are made of the last; a
 *                        step that is given the first goes on as with tokens; of T5's encoder
 *   refused              names that are none, rows that are not there, calls that fail */
#include "encoder.h"
#include "robust.h"

#include <math.h>
#include "backend/far/far.h"
#include "run/session/session.h"

enum { N_VOCAB = 60, N_ROWS = 12, MOST = 32, WIDE = 2048, N_LAYER = 3 };

static struct tiny tiny_of(const char *arch)
{
    return tiny_with(arch, 0, N_LAYER, N_VOCAB);
}

static int32_t token(int i)
{
    return 3 + (i * 37 + i * i) % (N_VOCAB - 3);
}

/* ---------------------------------------------------------------- one way to run it */

struct way {
    const char *name;
    int piece, reference, observe, few, beside; /* few: one output of each step */
    const char *far, *layers;
    pith_split split;
};

static const struct way ways[] = {
    {.name = "whole", .piece = N_ROWS},
    {.name = "in pieces, one output", .piece = 5, .few = 1},
    {.name = "beside others", .piece = 5, .beside = 1},
    {.name = "unfused", .piece = N_ROWS, .observe = 1},
    {.name = "reference", .piece = 7, .reference = 1},
    {.name = "on a far device", .piece = 5, .far = "1", .layers = "1"},
    {.name = "by turns", .piece = N_ROWS, .far = "1", .layers = "0,1"},
    {.name = "rows over two", .piece = 7, .far = "2", .split = PITH_SPLIT_ROW},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

struct taken {
    int64_t width[MOST], cols;
    float tap[MOST][N_ROWS * WIDE], out[N_ROWS * WIDE];
};

static pith_session *open_way(const char *path, const struct way *w, const char *const *taps,
                              struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    if (w->far)
        setenv("PITH_FAR_DEVICES", w->far, 1);
    if (w->layers)
        setenv("PITH_LAYER_DEVICES", w->layers, 1);
    mp.n_threads = 1;
    mp.reference = w->reference;
    mp.observe = w->observe;
    mp.split = w->split;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.cache_type_k = sp.cache_type_v = "f32";
    sp.pooling = PITH_POOL_NONE;
    sp.taps = taps;
    pith_model *m = pith_model_open(path, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    pith_model_close(m); /* the session keeps it */
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    for (int32_t q = 0; s && q < 2; q++)
        CHECK_MSG(encoder_reads(s, q, err) == PITH_OK, "%s: %s", path, err->msg);
    return s;
}

/* Rows [at, at + n) of sequence 0, which stand behind as many of the other one, backwards. */
static int step(pith_session *s, const struct way *w, int at, int n, int n_taps, struct taken *out)
{
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    int32_t ids[2 * N_ROWS], seq[2 * N_ROWS];
    uint8_t want[2 * N_ROWS];
    int own = 1 + w->beside, first = w->beside; /* row i of it is row own * i + first */
    for (int i = 0; i < own * n; i++) {
        int other = i % own != first;
        ids[i] = token(i / own + at + 100 * other);
        seq[i] = other;
        want[i] = !other;
    }
    b.n = own * n;
    b.token = ids;
    b.seq = seq;
    b.want = w->few ? NULL : want;
    if (pith_step(s, &b, &err) != PITH_OK) {
        CHECK_MSG(0, "%s: %s", w->name, err.msg);
        return 0;
    }
    for (int k = 0; k < n_taps; k++) {
        out->width[k] = pith_tap_width(s, k);
        CHECK_MSG(out->width[k] > 0 && out->width[k] <= WIDE, "%s: a tap of %lld", w->name,
                  (long long)out->width[k]);
        for (int i = 0; i < n && out->width[k] <= WIDE; i++) {
            const float *row = pith_tap(s, k, own * i + first, &err);
            if (!row) {
                CHECK_MSG(0, "%s: %s", w->name, err.msg);
                return 0;
            }
            memcpy(out->tap[k] + (at + i) * out->width[k], row,
                   (size_t)out->width[k] * sizeof *row);
        }
    }
    for (int i = 0; i < n && !w->few; i++) {
        const float *row = pith_logits(s, i);
        out->cols = row ? N_VOCAB : s->n_cols;
        row = row ? row : pith_embedding(s, i);
        memcpy(out->out + (at + i) * out->cols, row, (size_t)out->cols * sizeof *row);
    }
    return 1;
}

static int run_way(const char *path, const struct way *w, const char *const *taps, int n_taps,
                   struct taken *out)
{
    struct pith_error err;
    pith_session *s = open_way(path, w, taps, &err);
    CHECK_MSG(s, "%s, %s: %s", path, w->name, err.msg);
    int piece = s && s->causal ? w->piece : N_ROWS, ok = s != NULL;
    for (int at = 0; ok && at < N_ROWS; at += piece)
        ok = step(s, w, at, N_ROWS - at < piece ? N_ROWS - at : piece, n_taps, out);
    pith_session_close(s);
    return ok;
}

/* ---------------------------------------------------------------- what ops have made */

struct seen {
    int n;
    struct {
        char name[64];
        uint64_t hash;
    } op[8192];
};

static uint64_t hash_of(const float *x, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n * 4; i++)
        h = (h ^ ((const uint8_t *)x)[i]) * 0x100000001b3u;
    return h;
}

static void see(void *ctx, const char *name, int64_t rows, int64_t cols, const float *data)
{
    struct seen *s = ctx;
    if (s->n == 8192)
        return;
    snprintf(s->op[s->n].name, sizeof s->op[0].name, "%s", name);
    s->op[s->n++].hash = hash_of(data, rows * cols);
}

/* All ops of a session without taps. */
static int32_t watch(const char *path, struct seen *seen, int32_t layer_of[MOST])
{
    struct taken *t = calloc(1, sizeof *t);
    struct pith_error err;
    pith_session *s = open_way(path, &ways[3], NULL, &err);
    int32_t n = 0;
    CHECK_MSG(s, "%s: %s", path, err.msg);
    seen->n = 0;
    if (s && pith_session_observe(s, see, seen, &err) == PITH_OK)
        step(s, &ways[0], 0, N_ROWS, 0, t);
    for (; s && n < s->model->arch.n_visits && n < MOST; n++)
        layer_of[n] = arch_layer_of(&s->model->arch, n);
    pith_session_close(s);
    free(t);
    return n;
}

/* The tap before visit i is what an op of the layer before has made, and no op of another layer. */
static void check_made(const char *arch, const struct seen *s, const struct taken *t, int tap,
                       const char *name, int32_t layer)
{
    uint64_t hash = hash_of(t->tap[tap], N_ROWS * t->width[tap]);
    char blk[32];
    int found = 0;
    snprintf(blk, sizeof blk, "blk.%d.", layer);
    for (int i = 0; i < s->n; i++)
        if (s->op[i].hash == hash)
            found |= (strstr(s->op[i].name, layer < 0 ? "blk." : blk) != NULL) == (layer >= 0);
    CHECK_MSG(found, "%s: tap %s is nothing that an op of layer %d has made", arch, name, layer);
}

static void same_as(const char *arch, const struct way *w, const struct taken *want,
                    const struct taken *got, int n_taps, const char *const *names)
{
    for (int k = 0; k < n_taps; k++)
        CHECK_MSG(got->width[k] == want->width[k] &&
                      !memcmp(got->tap[k], want->tap[k],
                              (size_t)(N_ROWS * want->width[k]) * sizeof(float)),
                  "%s, %s: tap %s has other bits", arch, w->name, names[k]);
    if (!w->few)
        CHECK_MSG(got->cols == want->cols &&
                      !memcmp(got->out, want->out,
                              (size_t)(N_ROWS * want->cols) * sizeof(float)),
                  "%s, %s: other outputs", arch, w->name);
}

static void taps_of(const char *arch)
{
    static struct seen seen;
    static struct taken want, got;
    static char text[MOST][24];
    const char *names[MOST + 1] = {NULL};
    struct tiny t = tiny_of(arch);
    char path[300];
    int32_t layer_of[MOST];
    snprintf(path, sizeof path, "%s", tiny_write(&t, 21));
    int32_t n = watch(path, &seen, layer_of), n_taps = n < MOST - 2 ? n + 2 : MOST;
    REQUIRE(n > 0, "%s is not run", arch);
    for (int i = 0; i < n_taps; i++) {
        snprintf(text[i], sizeof text[i], "visit.%d", i);
        names[i] = text[i];
    }
    names[n_taps - 1] = "end";
    if (run_way(path, &ways[0], names, n_taps, &want)) {
        /* The first stream of hrm_text stays as it is while the other one runs. */
        for (int i = 0; i < n_taps - 1 && strcmp(arch, "hrm_text") != 0; i++)
            check_made(arch, &seen, &want, i, names[i], i ? layer_of[i - 1] : -1);
        if (run_way(path, &ways[0], NULL, 0, &got))
            same_as(arch, &ways[0], &want, &got, 0, names);
        for (int w = 1; w < N_WAYS; w++)
            if (run_way(path, &ways[w], names, n_taps, &got))
                same_as(arch, &ways[w], &want, &got, n_taps, names);
    }
    unlink(path);
}

static void every_architecture(void)
{
    int i = 0;
    for (const char *const *a = pith_arch_names(); *a; a++)
        if (test_scale() >= 10 || i++ % 8 == 0 || !strcmp(*a, "t5") || !strcmp(*a, "hrm_text") ||
            !strcmp(*a, "gemma4") || !strcmp(*a, "deepseek4"))
            taps_of(*a);
}

/* ---------------------------------------------------------------- by definition */

static const float *weight(const pith_session *s, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(s->model->gguf, slice_of(name));
    return t && t->type == DT_F32 ? (const float *)gguf_tensor_data(s->model->gguf, t) : NULL;
}

static int near(float got, double want)
{
    return fabs((double)got - want) <= 1e-4 * (fabs(want) > 1 ? fabs(want) : 1);
}

/* y is x through an RMS norm with weights w, of n columns. */
static int normed(const float *x, const float *w, const float *y, int64_t n)
{
    double sum = 0;
    int64_t i = 0;
    for (int64_t k = 0; k < n; k++)
        sum += (double)x[k] * (double)x[k];
    while (i < n && near(y[i], (double)x[i] / sqrt(sum / (double)n + 1e-5) * (double)w[i]))
        i++;
    return i == n;
}

static void ends_of_a_llama(void)
{
    static const char *const names[] = {"visit.0", "end", "visit.3", NULL};
    static struct taken t, plain;
    const struct way *w = &ways[0];
    struct tiny tiny = tiny_of("llama");
    struct pith_error err;
    char path[300];
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 22));
    pith_session *s = open_way(path, w, names, &err);
    REQUIRE(s && step(s, w, 0, N_ROWS, 3, &t), "%s", err.msg);
    int64_t e = t.width[0];
    const float *embd = weight(s, "token_embd.weight"), *out = weight(s, "output.weight"),
                *norm = weight(s, "output_norm.weight");
    REQUIRE(embd && out && norm && e == 32 && t.width[1] == e, "no weights");
    for (int i = 0; i < N_ROWS; i++) {
        CHECK(!memcmp(t.tap[0] + i * e, embd + token(i) * e, (size_t)e * sizeof *embd));
        CHECK_MSG(normed(t.tap[2] + i * e, norm, t.tap[1] + i * e, e), "row %d", i);
        for (int v = 0; v < N_VOCAB; v++) {
            double sum = 0;
            for (int k = 0; k < e; k++)
                sum += (double)t.tap[1][i * e + k] * (double)out[v * e + k];
            CHECK_MSG(near(t.out[i * N_VOCAB + v], sum), "row %d, logit %d", i, v);
        }
    }
    /* What came out goes in: rows of embeddings instead of tokens. */
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = N_ROWS;
    b.embd = t.tap[0];
    uint8_t want[N_ROWS];
    memset(want, 1, sizeof want);
    b.want = want;
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
    for (int i = 0; i < N_ROWS; i++) {
        memcpy(plain.tap[2] + i * e, pith_tap(s, 2, i, &err), (size_t)e * sizeof(float));
        CHECK(!memcmp(pith_logits(s, i), t.out + i * N_VOCAB, N_VOCAB * sizeof(float)));
    }
    CHECK(!memcmp(plain.tap[2], t.tap[2], (size_t)(N_ROWS * e) * sizeof(float)));
    pith_session_close(s);
    unlink(path);
}

/* What an encoder has read, also on a device that the host cannot look into. */
static void of_an_encoder(void)
{
    static const char *const names[] = {"encoder.visit.0", "encoder.visit.3", "encoder.end", NULL};
    static float first[3][ENCODER_TEXT * WIDE];
    struct tiny tiny = tiny_of("t5");
    struct pith_error err;
    char path[300];
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 23));
    for (int w = 0; w < N_WAYS; w++) {
        pith_session *s = open_way(path, &ways[w], names, &err);
        REQUIRE(s, "%s: %s", ways[w].name, err.msg);
        int64_t e = pith_tap_width(s, 2);
        const float *norm = weight(s, "enc.output_norm.weight");
        REQUIRE(norm && e == 32, "%lld columns", (long long)e);
        for (int k = 0; k < 3; k++)
            for (int i = 0; i < ENCODER_TEXT; i++) {
                const float *row = pith_tap(s, k, i, &err);
                REQUIRE(row, "%s: %s", ways[w].name, err.msg);
                if (!w)
                    memcpy(first[k] + i * e, row, (size_t)e * sizeof *row);
                CHECK_MSG(!memcmp(first[k] + i * e, row, (size_t)e * sizeof *row),
                          "%s: tap %s, row %d: other bits", ways[w].name, names[k], i);
            }
        for (int i = 0; i < ENCODER_TEXT; i++)
            CHECK_MSG(normed(first[1] + i * e, norm, first[2] + i * e, e), "row %d", i);
        CHECK(!pith_tap(s, 0, ENCODER_TEXT, &err) && err.code == PITH_RANGE);
        CHECK(!pith_tap(s, 0, -1, &err) && err.code == PITH_RANGE);
        pith_session_close(s);
    }
    unlink(path);
}

/* ---------------------------------------------------------------- calls */

static const char *const middle[] = {"visit.1", "visit.2", NULL};

static pith_session *open_lanes(const char *path, int32_t n_batch, int32_t n_lanes,
                                const char *far, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    if (far) {
        setenv("PITH_FAR_DEVICES", far, 1);
        setenv("PITH_LAYER_DEVICES", "1,2", 1);
    }
    mp.n_threads = 1;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.n_batch = n_batch;
    sp.n_lanes = n_lanes;
    sp.cache_type_k = sp.cache_type_v = "f32";
    sp.taps = middle;
    pith_model *m = pith_model_open(path, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    pith_model_close(m);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    return s;
}

static struct taken alone; /* of the tokens 0.. */

static void check_rows(pith_session *s, int from, int n, int at, const char *what)
{
    struct pith_error err;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n; i++) {
            const float *row = pith_tap(s, k, from + i, &err);
            CHECK_MSG(row && !memcmp(row, alone.tap[k] + (at + i) * alone.width[k],
                                     (size_t)alone.width[k] * sizeof *row),
                      "%s: tap %d, row %d: %s", what, k, from + i, row ? "other bits" : err.msg);
        }
}

/* A long batch has those of its last part; two steps under way have their own. */
static void parts_and_lanes(void)
{
    struct tiny tiny = tiny_of("llama");
    struct pith_error err;
    char path[300];
    int32_t ids[N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        ids[i] = token(i);
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 24));
    REQUIRE(run_way(path, &ways[0], middle, 2, &alone), "not run");
    for (int far = 0; far < 2; far++) {
        pith_session *s = open_lanes(path, 5, 2, far ? "2" : NULL, &err);
        REQUIRE(s, "%s", err.msg);
        CHECK(!pith_tap(s, 0, 0, &err) && err.code == PITH_STATE);
        CHECK_MSG(pith_feed(s, 0, ids, N_ROWS, &err) == PITH_OK, "%s", err.msg);
        check_rows(s, 10, 2, 10, "of a long batch");
        CHECK(!pith_tap(s, 0, 9, &err) && err.code == PITH_RANGE && strstr(err.msg, "10..11"));
        CHECK(!pith_tap(s, 0, 12, &err) && err.code == PITH_RANGE);
        CHECK(!pith_tap(s, 2, 10, &err) && err.code == PITH_RANGE);
        CHECK(!pith_tap(s, -1, 10, &err) && err.code == PITH_RANGE);
        CHECK(pith_tap_width(s, 2) == 0 && pith_tap_width(s, -1) == 0 && !pith_tap_width(NULL, 0));
        CHECK(!pith_tap(NULL, 0, 0, &err) && err.code == PITH_RANGE);
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        for (int at = 0; at < 8; at += 4) {
            static const int32_t seqs[2][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}};
            for (int q = 0; q < 2; q++) {
                struct pith_batch b = PITH_BATCH_INIT;
                b.n = 4;
                b.token = ids + at;
                b.seq = seqs[q];
                CHECK_MSG(pith_submit(s, &b, &err) == PITH_OK, "%s", err.msg);
            }
            CHECK(!pith_tap(s, 0, 0, &err) && err.code == PITH_STATE);
            for (int q = 0; q < 2; q++) {
                CHECK_MSG(pith_wait(s, &err) == PITH_OK, "%s", err.msg);
                check_rows(s, 0, 4, at, q ? "of the second step" : "of the first step");
            }
        }
        /* A step that fails leaves nothing; one that is refused leaves what was there. */
        struct pith_batch bad = PITH_BATCH_INIT;
        int32_t none = N_VOCAB;
        bad.n = 1;
        bad.token = &none;
        CHECK(pith_step(s, &bad, &err) == PITH_RANGE);
        check_rows(s, 0, 4, 4, "behind a refused step");
        pith_cancel(s);
        CHECK(pith_feed(s, 0, ids, 1, &err) == PITH_CANCELLED);
        CHECK(!pith_tap(s, 0, 0, &err) && err.code == PITH_STATE);
        pith_cancel_reset(s);
        pith_session_close(s);
    }
    unlink(path);
}

static void refused(void)
{
    static const struct {
        const char *arch, *name;
        pith_status st;
    } bad[] = {{"llama", "", PITH_RANGE},
               {"llama", "visit", PITH_RANGE},
               {"llama", "visit.", PITH_RANGE},
               {"llama", "visit.-1", PITH_RANGE},
               {"llama", "visit.4", PITH_RANGE},
               {"llama", "visit.01", PITH_RANGE},
               {"llama", "visit.99999999999999999999", PITH_RANGE},
               {"llama", "visit.1x", PITH_RANGE},
               {"llama", "visit.1.", PITH_RANGE},
               {"llama", "visit.1.low", PITH_RANGE},
               {"llama", "end.1", PITH_RANGE},
               {"llama", "encoder.end", PITH_RANGE},
               {"llama", "a name that is longer than those of taps can ever be", PITH_RANGE},
               {"t5", "encoder.visit.4", PITH_RANGE},
               {"hrm_text", "visit.0.run", PITH_UNSUPPORTED}};
    struct pith_error err;
    char path[300];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tiny tiny = tiny_of(bad[i].arch);
        const char *const names[] = {"visit.0", bad[i].name, NULL};
        snprintf(path, sizeof path, "%s", tiny_write(&tiny, 25));
        pith_session *s = open_way(path, &ways[0], names, &err);
        CHECK_MSG(!s && err.code == bad[i].st && strstr(err.msg, bad[i].name), "\"%s\": %d, %s",
                  bad[i].name, s ? 0 : (int)err.code, err.msg);
        if (bad[i].st == PITH_RANGE)
            CHECK_MSG(strstr(err.msg, "wanted one of visit.0 .. visit."), "\"%s\": %s",
                      bad[i].name, err.msg);
        pith_session_close(s);
        unlink(path);
    }
    const char *many[34] = {NULL};
    for (int i = 0; i < 33; i++)
        many[i] = "end";
    struct tiny tiny = tiny_of("llama");
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 25));
    CHECK(!open_way(path, &ways[0], many, &err) && err.code == PITH_RANGE);
    many[32] = NULL;
    pith_session *s = open_way(path, &ways[0], many, &err);
    CHECK_MSG(s, "%s", err.msg);
    pith_session_close(s);
    unlink(path);
}

/* Streams beside the first one are taps, too. */
static void values_beside(void)
{
    static const char *const names[] = {"visit.1.low", "visit.1", NULL};
    static struct taken want, got;
    struct tiny tiny = tiny_of("hrm_text");
    char path[300];
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 26));
    if (run_way(path, &ways[0], names, 2, &want)) {
        CHECK(memcmp(want.tap[0], want.tap[1], 32 * sizeof(float)) != 0);
        for (int w = 1; w < N_WAYS; w++)
            if (run_way(path, &ways[w], names, 2, &got))
                same_as("hrm_text", &ways[w], &want, &got, 2, names);
    }
    unlink(path);
}

/* A device that fails while a tap is read, and memory that is refused. */
static void bad_luck(void)
{
    struct tiny tiny = tiny_of("llama");
    struct pith_error err;
    char path[300];
    int32_t ids[4] = {token(0), token(1), token(2), token(3)};
    snprintf(path, sizeof path, "%s", tiny_write(&tiny, 24)); /* of which `alone` is */
    REQUIRE(run_way(path, &ways[0], middle, 2, &alone), "not run");
    pith_session *s = open_lanes(path, 8, 1, "2", &err);
    REQUIRE(s && pith_feed(s, 0, ids, 4, &err) == PITH_OK, "%s", err.msg);
    far_plan(&(struct far_plan){.fail_at = 1});
    CHECK(!pith_tap(s, 0, 2, &err) && err.code == PITH_DEVICE);
    check_rows(s, 0, 4, 0, "behind a failure");
    far_plan(&(struct far_plan){0});
    pith_session_close(s);
    long n = 1;
    long before = atomic_load(&hook.blocks);
    long by = test_scale() >= 10 ? 1 : 9;
    for (long i = 0; i < n && test_bad < 5; i += i ? by : 1) {
        hook_refuse(i ? i - 1 : -1, 0);
        s = open_lanes(path, 8, 1, "2", &err);
        if (!i)
            n = atomic_load(&hook.asked);
        hook_refuse(-1, 0);
        CHECK_MSG(s || err.code == PITH_NOMEM, "allocation %ld of %ld: %s", i, n, err.msg);
        pith_session_close(s);
        CHECK_MSG(atomic_load(&hook.blocks) == before, "allocation %ld of %ld: %ld blocks are left",
                  i, n, atomic_load(&hook.blocks) - before);
    }
    unlink(path);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(every_architecture);
    TEST(ends_of_a_llama);
    TEST(of_an_encoder);
    TEST(parts_and_lanes);
    TEST(refused);
    TEST(values_beside);
    TEST(bad_luck);
    return test_end();
}
