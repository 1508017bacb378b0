/* test_each.c -- every architecture of the list as a random model, with and without experts (at
 * TEST_SCALE 1 one of both): no file is needed, so none is left out.
 *
 *   the same bits    whole, in pieces, token by token, on two threads, beside another sequence, by
 *                    the plain C reference, after going back, from a snapshot, and on devices whose
 *                    memory the host cannot touch: wholly, the last layers, layers by turns (one of
 *                    these three by turns, all at scale 100)
 *   memory refused   the n-th allocation of opening, a session and two steps; some n
 *   damage           bytes of the keys and the list of tensors are others: an error, or a model
 *                    that runs; never a crash */
#include "backend/far/far.h"
#include "encoder.h"
#include "format/gguf.h"
#include "robust.h"
#include "graph/fuse.h"
#include "run/session/session.h"

#include <float.h>

#include "base/rng.h"

enum { N_ROWS = 24, N_VOCAB = 300, N_OUT = N_ROWS * N_VOCAB };

static struct tiny tiny_of(const char *arch, int experts)
{
    return tiny_with(arch, experts, 4, N_VOCAB);
}

static int32_t token(int i)
{
    return 3 + (i * 37 + i * i) % (N_VOCAB - 3);
}

/* ---------------------------------------------------------------- one way to run it */

struct way {
    const char *name;
    int piece, n_threads, reference;
    int beside;         /* another sequence has rows in every step */
    int back;           /* after so many rows go back as far as it may, and feed them again */
    int saved;          /* a snapshot is taken and loaded between pieces */
    int far;            /* far devices, */
    const char *layers; /* by turns (PITH_LAYER_DEVICES), or */
    int32_t gpu_layers; /* so many of the last */
};

struct opened {
    pith_model *m;
    pith_session *s;
    int64_t cols;
    int causal;
};

static int has_all(const struct device *d, const struct node *n, struct op_impl *out)
{
    (void)d, (void)n;
    *out = (struct op_impl){.kernel = "any"};
    return 1;
}

/* On devices that have every fused op every node is read by another or is a result, or writes a
 * state: what fused ones have taken over is gone, with what led there alone. */
static pith_status all_are_read(void *ctx, const struct graph *of, struct pith_error *err)
{
    static const struct backend all = {.impl = has_all};
    static struct device any = {.backend = &all};
    struct device *devices[MAX_DEVICES];
    const struct opened *o = ctx;
    struct graph fused = *of; /* nobody needs it as it was */
    for (int d = 0; d < MAX_DEVICES; d++)
        devices[d] = &any;
    if (fuse_graph(&fused, devices, err) != PITH_OK)
        return err->code;
    for (const struct node *n = fused.first; n; n = n->next) {
        int read = op_has(n->op, OP_WRITES_STATE);
        for (int i = 0; i < GRAPH_RESULTS; i++)
            read |= *graph_result(&fused, i) == n;
        for (const struct node *by = n->next; by && !read; by = by->next)
            for (int i = 0; i < by->n_src; i++)
                read |= by->src[i] == n;
        CHECK_MSG(read, "%s: nobody reads %s (%s)", o->m->info.arch, n->name,
                  op_infos[n->op]->name);
    }
    return PITH_OK;
}

static int open_way(struct opened *o, const char *path, const struct way *w)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    mp.n_threads = w->n_threads;
    mp.reference = w->reference;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.cache_type_k = sp.cache_type_v = "f32";
    mp.gpu_layers = w->gpu_layers;
    if (w->far) {
        setenv("PITH_FAR_DEVICES", w->far == 1 ? "1" : "2", 1);
        if (w->layers)
            setenv("PITH_LAYER_DEVICES", w->layers, 1);
    }
    far_plan(&(struct far_plan){.seed = 1});
    *o = (struct opened){.m = pith_model_open(path, &mp, &err)};
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    o->s = o->m ? pith_session_open(o->m, &sp, &err) : NULL;
    CHECK_MSG(o->s, "%s, %s: %s", path, w->name, err.msg);
    CHECK_MSG(!o->m || model_graphs(o->m, 0, all_are_read, o, &err) == PITH_OK, "%s", err.msg);
    for (int32_t q = 0; o->s && q < 2; q++)
        CHECK_MSG(encoder_reads(o->s, q, &err) == PITH_OK, "%s: %s", path, err.msg);
    pith_model_get_info(o->m, &info, NULL);
    o->causal = info.causal;
    return o->s != NULL;
}

static void close_way(struct opened *o)
{
    pith_session_close(o->s);
    pith_model_close(o->m);
}

/* Rows [at, at + n) of sequence 0, and n of sequence 1 among them; what comes out of the first. */
static int step(struct opened *o, const struct way *w, int at, int n, float *out)
{
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    int32_t ids[2 * N_ROWS], seq[2 * N_ROWS];
    uint8_t want[2 * N_ROWS];
    int rows = 0, of_first[N_ROWS], k = 0;
    for (int i = 0; i < n; i++) {
        if (w->beside) {
            ids[rows] = token(100 + at + i);
            seq[rows] = 1;
            want[rows++] = (uint8_t)(i % 2);
        }
        ids[rows] = token(at + i);
        seq[rows] = 0;
        want[rows++] = 1;
    }
    for (int i = 0, given = 0; i < rows; i++)
        if (want[i]) {
            if (!seq[i])
                of_first[k++] = given;
            given++;
        }
    b.n = rows;
    b.token = ids;
    b.want = want;
    b.seq = w->beside ? seq : NULL;
    if (pith_step(o->s, &b, &err) != PITH_OK) {
        CHECK_MSG(0, "%s: %s", w->name, err.msg);
        return 0;
    }
    for (int i = 0; i < n; i++) {
        const float *row = pith_logits(o->s, of_first[i]);
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        o->cols = row                                                 ? N_VOCAB
                  : pith_model_get_info(o->m, &info, NULL) == PITH_OK ? info.n_embd_out
                                                                      : 0;
        row = row ? row : pith_embedding(o->s, of_first[i]);
        memcpy(out + (int64_t)(at + i) * o->cols, row, (size_t)o->cols * sizeof *row);
    }
    return 1;
}

static int reload(struct opened *o, const struct way *w)
{
    static uint8_t image[4 << 20];
    struct pith_error err;
    size_t n = 0;
    int ok = pith_save_memory(o->s, 0, image, sizeof image, &n, &err) == PITH_OK &&
             pith_truncate(o->s, 0, 0, &err) == PITH_OK &&
             pith_load_memory(o->s, 0, image, n, &err) == PITH_OK;
    CHECK_MSG(ok, "%s: %s", w->name, err.msg);
    return ok;
}

static int run_way(const char *path, const struct way *w, float *out, int64_t *cols)
{
    struct opened o;
    struct pith_error err;
    if (!open_way(&o, path, w)) {
        close_way(&o);
        return 0;
    }
    int piece = o.causal ? w->piece : N_ROWS, ok = 1;
    for (int at = 0; ok && at < N_ROWS; at += piece) {
        int n = N_ROWS - at < piece ? N_ROWS - at : piece;
        ok = step(&o, w, at, n, out);
        if (ok && o.causal && w->saved)
            ok = reload(&o, w);
    }
    if (ok && o.causal && w->back && pith_truncate(o.s, 0, N_ROWS - w->back, &err) == PITH_OK) {
        int at = (int)pith_length(o.s, 0);
        CHECK_MSG(at <= N_ROWS - w->back, "%s: %d rows are left", w->name, at);
        ok = step(&o, w, at, N_ROWS - at, out);
    }
    *cols = o.cols;
    CHECK_MSG(!ok || !w->far == !far_calls(), "%s, %s: far devices had %llu calls", path, w->name,
              (unsigned long long)far_calls());
    close_way(&o);
    CHECK_MSG(far_live() == 0, "%s, %s: far devices still hold something", path, w->name);
    return ok;
}

/* ---------------------------------------------------------------- over the list */

static const struct way ways[] = {
    {.name = "whole", .piece = N_ROWS, .n_threads = 1},
    {.name = "in pieces", .piece = 7, .n_threads = 1},
    {.name = "token by token", .piece = 1, .n_threads = 1},
    {.name = "two threads", .piece = N_ROWS, .n_threads = 2},
    {.name = "beside another", .piece = 5, .n_threads = 1, .beside = 1},
    {.name = "reference", .piece = 11, .n_threads = 1, .reference = 1},
    {.name = "back and again", .piece = 9, .n_threads = 1, .back = 5},
    {.name = "from snapshots", .piece = 8, .n_threads = 1, .saved = 1},
    {.name = "on a far device", .piece = 13, .n_threads = 1, .saved = 1, .far = 1, .layers = "1"},
    {.name = "the last layers on one", .piece = 13, .n_threads = 1, .far = 1, .gpu_layers = 3},
    {.name = "layers by turns",
     .piece = 13,
     .n_threads = 1,
     .back = 5,
     .far = 2,
     .layers = "1,2,0"}};
enum { N_WAYS = sizeof ways / sizeof *ways, N_FAR = 3 };

static void each(void (*fn)(const struct tiny *t, const char *path))
{
    int i = 0;
    for (const char *const *a = pith_arch_names(); *a; a++, i++)
        for (int experts = 0; experts < 2; experts++) {
            if (test_scale() < 10 && experts != i % 2)
                continue;
            struct tiny t = tiny_of(*a, experts);
            const char *path = tiny_write(&t, 7);
            if (path) {
                fn(&t, path);
                unlink(path);
            }
        }
}

static void bits_of(const struct tiny *t, const char *path)
{
    static float want[N_OUT], got[N_OUT];
    int64_t cols = 0;
    if (!run_way(path, &ways[0], want, &cols))
        return;
    for (int i = 0; i < N_ROWS * (int)cols; i++)
        if (!(want[i] <= -FLT_MAX) && !(want[i] > -1e30f && want[i] < 1e30f)) {
            CHECK_MSG(0, "%s, %d experts: element %d is %g", t->arch, t->n_expert, i,
                      (double)want[i]);
            return;
        }
    static int turn;
    int some = test_scale() < 10, first = 1, n = N_WAYS - 1;
    if (some) { /* two */
        first = 1 + turn % (N_WAYS - 1);
        n = 2;
    }
    for (int i = 0; i < n; i++) {
        int w = 1 + (first - 1 + i) % (N_WAYS - 1), far = w - (N_WAYS - N_FAR);
        if (!some && test_scale() < 100 && far >= 0 && far != turn % N_FAR)
            continue;
        if (run_way(path, &ways[w], got, &cols))
            CHECK_MSG(!memcmp(want, got, (size_t)(N_ROWS * cols) * sizeof *want),
                      "%s, %d experts, %s: other bits", t->arch, t->n_expert, ways[w].name);
    }
    turn += some ? 2 : 1;
}

static void same_bits(void)
{
    each(bits_of);
}

/* ---------------------------------------------------------------- memory refused */

static pith_status short_life(const char *path, struct pith_error *err)
{
    static const int32_t ids[] = {5, 6, 7, 8};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    mp.n_threads = 1;
    sp.n_ctx = 64;
    err->code = PITH_OK;
    pith_model *m = pith_model_open(path, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    if (s && encoder_reads(s, 0, err) == PITH_OK && pith_feed(s, 0, ids, 3, err) == PITH_OK) {
        pith_model_get_info(m, &info, NULL);
        if (info.causal) /* else a sequence is fed whole */
            pith_feed(s, 0, ids + 3, 1, err);
    }
    pith_session_close(s);
    pith_model_close(m);
    return err->code;
}

static void refuse(const struct tiny *t, const char *path)
{
    struct pith_error err;
    hook_refuse(-1, 0);
    pith_status st = short_life(path, &err);
    long n = atomic_load(&hook.asked), by = test_scale() >= 100  ? 1
                                            : test_scale() >= 10 ? 3 /* others of the next */
                                                                 : n / 2 + 1;
    CHECK_MSG(st == PITH_OK && n > 30, "%s: %s", t->arch, err.msg);
    for (long i = (long)strlen(t->arch) % by; i < n && test_bad < 5; i += by) {
        hook_refuse(i, 0);
        st = short_life(path, &err);
        hook_refuse(-1, 0);
        CHECK_MSG(st == PITH_NOMEM || st == PITH_OK, "%s, allocation %ld of %ld: error %d, %s",
                  t->arch, i, n, st, err.msg);
        check_nothing_held(t->arch);
    }
}

static void memory_refused(void)
{
    each(refuse);
}

/* ---------------------------------------------------------------- damage */

static void damage(const struct tiny *t, const char *path)
{
    size_t n = 0;
    struct pith_error err;
    uint8_t *p = file_bytes(path, &n);
    const char *other = tmp_path("damaged.gguf");
    struct rng r;
    rng_init(&r, 11 + strlen(t->arch));
    REQUIRE(p && n > 4096, "%s cannot be read", path);
    size_t keys = n < 20000 ? n : 20000; /* keys, the vocabulary, and what is behind it */
    int times = test_scale() >= 100 ? 200 : test_scale() >= 10 ? 40 : 2;
    for (int i = 0; i < times && test_bad < 5; i++) {
        size_t at = rng_u32(&r) % (i % 2 ? 1200 : keys);
        uint8_t was = p[at];
        p[at] ^= (uint8_t)(1u << rng_u32(&r) % 8);
        if (file_put(other, p, n)) {
            pith_status st = short_life(other, &err);
            CHECK_MSG(st == PITH_OK || strlen(err.msg) > 8, "%s, byte %zu: error %d says \"%s\"",
                      t->arch, at, st, err.msg);
        }
        p[at] = was;
    }
    unlink(other);
    free(p);
}

static void damaged(void)
{
    each(damage);
}

/* ---------------------------------------------------------------- learned positions */

/* No more positions than the table has, and none that is moved. */
static void positions_of(const char *arch)
{
    struct tiny t = tiny_of(arch, 0);
    const char *path = tiny_write(&t, 3);
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    static const int32_t ids[] = {5, 6, 7, 8};
    mp.n_threads = 1;
    sp.n_ctx = 129; /* 128 are trained */
    pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
    REQUIRE(m && pith_model_get_info(m, &info, &err) == PITH_OK, "%s: %s", arch, err.msg);
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(!s && err.code == PITH_RANGE && strstr(err.msg, "129") && strstr(err.msg, "128"),
              "%s: %s", arch, s ? "more positions than there are" : err.msg);
    pith_session_close(s);
    CHECK_MSG(pith_plan_session(m, &sp, &plan, &err) == PITH_RANGE, "%s: a plan", arch);
    sp.n_ctx = 128;
    s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s: %s", arch, err.msg);
    CHECK(pith_feed(s, 0, ids, 4, &err) == PITH_OK && !(pith_edits(s) & PITH_EDIT_SHIFT));
    if (info.causal) {
        CHECK(pith_remove(s, 0, 0, 1, &err) == PITH_OK);
        CHECK(pith_shift(s, 0, 0, -1, -1, &err) == PITH_UNSUPPORTED &&
              strstr(err.msg, "learned vector"));
    }
    pith_session_close(s);
    pith_model_close(m);
    unlink(path);
}

static void learned_positions(void)
{
    positions_of("gpt2");
    positions_of("bert");
}

/* ---------------------------------------------------------------- tokens that are never said */

/* Logits of tokens [first, end) are the lowest there are, all others numbers; greedy never says
 * them. */
static void never_said(const char *arch, int32_t n_vocab, int32_t first, int32_t end)
{
    struct tiny t = tiny_of(arch, 0);
    t.n_vocab = n_vocab;
    const char *path = tiny_write(&t, 5);
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_sampler_params greedy = PITH_SAMPLER_PARAMS_INIT;
    static const int32_t ids[] = {5, 6, 7, 2};
    greedy.temperature = 0;
    for (int reference = 0; reference < 2; reference++) {
        mp.n_threads = 1;
        mp.reference = reference;
        pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        pith_sampler *p = pith_sampler_open(n_vocab, &greedy, &err);
        REQUIRE(s && p && pith_feed(s, 0, ids, 4, &err) == PITH_OK, "%s: %s", arch, err.msg);
        const float *z = pith_logits(s, 0);
        int32_t n_low = 0, n_finite = 0;
        for (int32_t i = 0; i < n_vocab; i++) {
            n_low += z[i] <= -FLT_MAX && i >= first && i < end;
            n_finite += z[i] > -1e30f && z[i] < 1e30f && (i < first || i >= end);
        }
        CHECK_MSG(n_low == end - first && n_finite == n_vocab - n_low,
                  "%s: %d of %d are never said, %d of %d may be", arch, n_low, end - first,
                  n_finite, n_vocab - end + first);
        int32_t id = pith_sample(p, z);
        CHECK_MSG(id >= 0 && (id < first || id >= end), "%s says %d", arch, id);
        pith_sampler_close(p);
        pith_session_close(s);
        pith_model_close(m);
    }
    unlink(path);
}

static void tokens_never_said(void)
{
    never_said("chameleon", 8300, 4, 8196);
    never_said("chameleon", 200, 4, 200);
    never_said("qwen3tts", 3100, 0, 28);
    never_said("qwen3tts", 3072, 0, 0);
}

/* ---------------------------------------------------------------- keys that say nothing known */

/* What is no value of a key, of a model that has it or, without it, goes by its default. */
static void refused_values(void)
{
    static const struct {
        const char *arch, *spec, *says;
        pith_status wanted;
    } each_of[] = {
        {"qwen35", "qwen35.rope.dimension_sections=int:2", "an array of up to 4", PITH_FORMAT},
        {"qwen4exp", "qwen4exp.rope.dimension_sections=str:2", "an array of up to 4", PITH_FORMAT},
        {"bert", "bert.classifier.pooling_type=str:most", "known are none, mean, cls, last",
         PITH_UNSUPPORTED},
        {"bert", "bert.classifier.pooling_type=int:4", "is 4, wanted 0..3", PITH_RANGE},
        {"llama", "llama.classifier.pooling_type=int:-1", "is -1, wanted 0..3", PITH_RANGE},
        {"modern-bert", "modern-bert.classifier.pooling_type=float:1",
         "wanted a string or a whole number", PITH_FORMAT},
        {"dream", "diffusion.shift_logits=str:x", "wanted bool", PITH_FORMAT},
        {"llada", "diffusion.shift_logits=float:1", "wanted bool", PITH_FORMAT},
        {"modern-bert", "modern-bert.classifier.pooling_type=str:last", "", PITH_OK},
        {"llama", "diffusion.shift_logits=str:x", "", PITH_OK}, /* which no llama has */
    };
    for (size_t i = 0; i < sizeof each_of / sizeof *each_of; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        const char *spec[] = {each_of[i].spec, NULL};
        struct tiny t = tiny_of(each_of[i].arch, 0);
        const char *path = tiny_write(&t, 3);
        mp.n_threads = 1;
        mp.overrides = spec;
        pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
        CHECK_MSG(!m == (each_of[i].wanted != PITH_OK) && err.code == each_of[i].wanted &&
                      strstr(err.msg, each_of[i].says),
                  "%s: error %d, \"%s\"", *spec, err.code, err.msg);
        pith_model_close(m);
        if (path)
            unlink(path);
    }
}

/* ---------------------------------------------------------------- keys that disagree */

/* Where the value of a key lies in a file's bytes; 0: it has no such key. */
static size_t value_of(const uint8_t *p, size_t n, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i + len + 8 <= n; i++)
        if (!memcmp(p + i, key, len))
            return i + len + 4; /* the type is before it */
    return 0;
}

/* The number at an offset in a key's value, alone, makes something that is not computed here. */
static void refused_key(const char *key, size_t at, uint32_t bits, pith_status wanted,
                        const char *says)
{
    char arch[32];
    snprintf(arch, sizeof arch, "%.*s", (int)strcspn(key, "."), key);
    struct tiny t = tiny_of(arch, 0);
    const char *path = tiny_write(&t, 3);
    struct pith_error err;
    size_t n = 0;
    uint8_t *p = path ? file_bytes(path, &n) : NULL;
    REQUIRE(p, "no file");
    size_t value = value_of(p, n, key);
    REQUIRE(value, "no key %s", key);
    memcpy(p + value + at, &bits, 4);
    CHECK(file_put(path, p, n));
    pith_status st = short_life(path, &err);
    CHECK_MSG(st == wanted && strstr(err.msg, says), "%s: error %d, \"%s\"", key, st, err.msg);
    free(p);
    unlink(path);
}

/* The bytes of four numbers are eight of half the width. */
static void refused_sections(void)
{
    static const char *const keys[] = {"qwen35.rope.dimension_sections",
                                       "qwen3vl.rope.dimension_sections"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *key = keys[i];
        char arch[32];
        snprintf(arch, sizeof arch, "%.*s", (int)strcspn(key, "."), key);
        struct tiny t = tiny_of(arch, 0);
        const char *path = tiny_write(&t, 3);
        struct pith_error err;
        size_t n = 0, value = 0;
        uint8_t *p = path ? file_bytes(path, &n) : NULL;
        REQUIRE(p && (value = value_of(p, n, key)) != 0, "%s: no such key", key);
        const uint32_t four[] = {GGUF_I32, 4}, eight[] = {GGUF_I16, 8};
        CHECK(!memcmp(p + value, four, sizeof four));
        memcpy(p + value, eight, sizeof eight);
        CHECK(file_put(path, p, n));
        pith_status st = short_life(path, &err);
        CHECK_MSG(st == PITH_SHAPE && strstr(err.msg, "has 8 items, wanted at most 4"),
                  "%s: error %d, \"%s\"", key, st, err.msg);
        free(p);
        unlink(path);
    }
}

/* Items of a list: a type and a count go before them. F64: the number of that type. */
enum { FIRST = 12, SECOND = 16, F64 = 12 };

static void refused_keys(void)
{
    refused_key("bailingmoe3.kda.gate_lower_bound", 0, 0, PITH_UNSUPPORTED,
                "kda.gate_lower_bound 0");
    refused_key("bailingmoe3.kda.gate_lower_bound", 0, 0x40a00000, PITH_RANGE,
                "kda.gate_lower_bound");
    refused_key("bailingmoe3.rope.dimension_count", 0, 7, PITH_RANGE, "7 elements (wanted an even");
    refused_key("bailingmoe3.rope.dimension_count", 0, 24, PITH_SHAPE, "nothing is left of a head");
    refused_key("graniteswitch.adapters.count", 0, 3, PITH_SHAPE, "2 items, wanted 3");
    refused_key("graniteswitch.adapters.count", 0, 0, PITH_RANGE, "is 0, wanted 1..");
    refused_key("graniteswitch.adapters.token_ids_activate", SECOND, 1000, PITH_RANGE,
                "adapter 1 is switched on by token 1000, embedded as token 7: of 300 tokens");
    refused_key("graniteswitch.adapters.token_ids_substitute", FIRST, 300, PITH_RANGE,
                "embedded as token 300: of 300");
    refused_key("graniteswitch.adapters.token_ids_substitute", FIRST, 0x80000000u, PITH_RANGE,
                "wanted 0..");
    refused_key("graniteswitch.adapters.lora_rank", 0, 5, PITH_SHAPE, "lora_a");
    refused_key("deepseek4.attention.compress_ratios", FIRST, 8, PITH_UNSUPPORTED,
                "of layer 0 is 8, wanted 0, 4 or 128");
    refused_key("deepseek4.attention.output_group_count", 0, 3, PITH_SHAPE,
                "output_group_count 3 does not divide");
    refused_key("deepseek4.rope.dimension_count", 0, 20, PITH_RANGE, "20, wanted");
    refused_key("deepseek4.hyper_connection.count", 0, 2, PITH_RANGE, "is 2, wanted 4..4");
    refused_key("deepseek4.expert_used_count", 0, 64, PITH_RANGE, "is 64, wanted 1..4");
    refused_key("glm5-next.attention.indexer.kpool", 0, 3, PITH_UNSUPPORTED, "kpool is 3, wanted");
    refused_key("glm5-next.attention.indexer.top_k", 0, 6, PITH_SHAPE,
                "top_k is 6, which kpool 4 does not divide");
    refused_key("glm5-next.attention.indexer.types", SECOND, 0, PITH_RANGE,
                "no layer up to 1 has an indexer");
    refused_key("hy_v4.hyper_connection.count", 0, 7, PITH_RANGE, "is 7, wanted 1..6");
    refused_key("hy_v4.attention.indexer.types", FIRST, 0, PITH_RANGE, "layer 0 has no indexer");
    refused_key("hy_v4.attention.value_length_mla", 0, 0, PITH_RANGE,
                "attention.value_length_mla 0: both");
    refused_key("kimi-k3.activation.situ_beta", 0, 0, PITH_RANGE, "situ_beta is 0, wanted > 0");
    refused_key("kimi-k3.activation.situ_beta", 0, 0x7fc00000, PITH_FORMAT, "not a finite number");
    refused_key("kimi-k3.kda.gate_lower_bound", 0, 0x40a00000, PITH_RANGE, "kda.gate_lower_bound");
    refused_key("kimi-k3.attn_res.block_size", 0, 0x80000000u, PITH_RANGE, "attn_res.block_size");
    refused_key("kimi-k3.rope.dimension_count", 0, 24, PITH_SHAPE, "nothing is left of a head");
    refused_key("qwen4exp.attention.compress_ratios", 0, 3, PITH_UNSUPPORTED,
                "of layer 1 is 3, wanted 0, 2, 4");
    refused_key("qwen4exp.attention.compress_ratios", 0, 1, PITH_UNSUPPORTED, "is 1, wanted 0, 2");
    refused_key("qwen4exp.attention.indexer.key_length", 0, 4, PITH_RANGE, "8, wanted at most 4");
    refused_key("qwen4exp.hyper_connection.count", 0, 1, PITH_RANGE, "is 1, wanted 2..64");
    refused_key("qwen4exp.ple.layers", 0, 1, PITH_RANGE, "has 1, which is no recurrent layer of");
    refused_key("qwen4exp.ple.layers", 0, 9, PITH_RANGE, "has 9, which is no recurrent layer of");
    refused_key("qwen4exp.ple.ngram_size", 0, 4, PITH_SHAPE, "has 3 items, wanted 4");
    refused_key("qwen4exp.ple.ngram_size", 0, 1, PITH_RANGE, "is 1, wanted 2..32");
    refused_key("qwen4exp.ple.layer_multipliers", 0, F64, PITH_FORMAT,
                "item 0 is not a whole number");
    refused_key("qwen4exp.ple.head_offsets", FIRST, 500, PITH_SHAPE, "59 rows, wanted 529");
    refused_key("qwen4exp.ple.head_vocab_sizes", FIRST, 0, PITH_RANGE, "item 0 is 0, wanted 1..");
    refused_key("qwen4exp.embedding_length_per_layer_input", 0, 5, PITH_SHAPE,
                "2 rows of embedding_length_per_layer_input 5 for each token are 10 numbers");
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(same_bits);
    TEST(memory_refused);
    TEST(damaged);
    TEST(learned_positions);
    TEST(tokens_never_said);
    TEST(refused_values);
    TEST(refused_sections);
    TEST(refused_keys);
    return test_end();
}
