/* test_adapters.c -- low-rank adapters of sequences.
 *
 *   merged     every architecture of the list: logits with an adapter of all its products are about
 *              those of a model whose weights have the adapter's product added
 *   draft heads   the same of their logits, with one adapter for them and their decoder
 *   same bits  rows without an adapter have the bits of a session without; rows with one have the
 *              same alone, in pieces, on two threads, beside others, by the plain C reference and
 *              on devices whose memory the host cannot touch
 *   rows       of one batch have those of slots: the bits of each alone
 *   keys       stored prefixes and snapshots belong to who has the same adapters
 *   refused    files that are no adapter of the model, and what a session cannot do */
#include <fenv.h>
#include <math.h>
#include <sys/stat.h>

#include "encoder.h"
#include "robust.h"

#include "base/rng.h"
#include "format/gguf.h"
#include "run/model/adapter.h"
#include "run/session/session.h"

enum { N_ROWS = 20, N_VOCAB = 90, N_OUT = N_ROWS * N_VOCAB, RANK = 3 };
static const float alpha = 7; /* over a rank of 3 it is rounded */

static struct tiny tiny_of(const char *arch, int experts)
{
    return (struct tiny){.arch = arch,
                         .type = "f32",
                         .n_embd = 32,
                         .n_head = 4,
                         .n_head_kv = 2,
                         .head_dim = 16,
                         .n_ff = 32,
                         .n_vocab = N_VOCAB,
                         .n_expert = experts ? 4 : 0,
                         .n_layer = 3};
}

/* ---------------------------------------------------------------- files of adapters */

struct pair { /* of the file to be written */
    char name[96];
    int64_t stack, k, m, rank;
    float *a, *b; /* [stack, rank, k], [stack, m, rank] */
};
static struct pair pairs[600];
static int n_pairs;

static void drop_pairs(void)
{
    for (int i = 0; i < n_pairs; i++) {
        free(pairs[i].a);
        free(pairs[i].b);
    }
    n_pairs = 0;
}

/* For each product of a role that has none yet one pair of random matrices. */
static void role_pairs(const struct graph *g, struct rng *r, float size)
{
    for (const struct adapted *w = g->adapted; w; w = w->next) {
        int known = w->w->use == TENSOR_EMBEDDING || n_pairs == 600;
        for (int i = 0; i < n_pairs; i++)
            known |= !strcmp(pairs[i].name, w->w->name);
        if (known)
            continue;
        struct pair *p = &pairs[n_pairs++];
        *p = (struct pair){
            .stack = tensor_stack(w->w), .k = tensor_k(w->w), .m = tensor_m(w->w), .rank = RANK};
        snprintf(p->name, sizeof p->name, "%s", w->w->name);
        p->a = malloc((size_t)(p->stack * p->rank * p->k) * sizeof *p->a);
        p->b = malloc((size_t)(p->stack * p->rank * p->m) * sizeof *p->b);
        for (int64_t i = 0; i < p->stack * p->rank * p->k; i++)
            p->a[i] = size * rng_normal(r) / 4;
        for (int64_t i = 0; i < p->stack * p->rank * p->m; i++)
            p->b[i] = size * rng_normal(r) / 4;
    }
}

/* role: of the session, whose products they are. */
static void session_pairs(pith_model *m, int32_t role, struct rng *r, float size)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    sp.n_ctx = 64;
    sp.n_adapters = 1;
    sp.role = role;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "role %d: %s", role, err.msg);
    for (int i = 0; s && i < s->n_roles; i++)
        role_pairs(&s->role[i].graph, r, size);
    pith_session_close(s);
}

static int make_pairs_with(const char *path, int draft_heads, uint64_t seed, float size)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    struct rng r;
    drop_pairs();
    mp.n_threads = 1;
    mp.draft_heads = draft_heads;
    pith_model *m = pith_model_open(path, &mp, &err);
    CHECK_MSG(m, "%s: %s", path, err.msg);
    rng_init(&r, seed);
    session_pairs(m, PITH_ROLE_DECODER, &r, size);
    if (draft_heads)
        session_pairs(m, PITH_ROLE_DRAFT, &r, size);
    pith_model_close(m);
    return n_pairs > 0;
}

static int make_pairs(const char *path, uint64_t seed, float size)
{
    return make_pairs_with(path, 0, seed, size);
}

/* What a test makes wrong. */
struct wrong {
    const char *type, *lora, *arch, *rename;
    int no_b, turned, nan;
    int alpha; /* 1: a text, 2: more than any number, 3: none */
    int extra; /* a tensor that is of no pair */
};

static void put_tensor(struct gguf_writer *w, const char *name, int64_t stack, int64_t m, int64_t k)
{
    int64_t dims[3] = {stack, m, k};
    gguf_writer_tensor(w, name, DT_F32, stack > 1 ? 3 : 2, stack > 1 ? dims : dims + 1);
}

static int write_adapter(const char *to, const char *arch, const struct wrong *x)
{
    struct pith_error err;
    struct gguf_writer *w = gguf_writer_open(to, &err);
    char name[120];
    if (!w)
        return 0;
    gguf_writer_str(w, "general.type", slice_of(x->type ? x->type : "adapter"));
    gguf_writer_str(w, "adapter.type", slice_of(x->lora ? x->lora : "lora"));
    gguf_writer_str(w, "general.architecture", slice_of(x->arch ? x->arch : arch));
    if (x->alpha == 1)
        gguf_writer_str(w, "adapter.lora.alpha", slice_of("six"));
    else
        gguf_writer_f32(w, "adapter.lora.alpha",
                        x->alpha == 2   ? INFINITY
                        : x->alpha == 3 ? NAN
                                        : alpha);
    if (x->extra)
        put_tensor(w, "lora_a", 1, 1, 1);
    for (int i = 0; i < n_pairs; i++) {
        const struct pair *p = &pairs[i];
        const char *base = !i && x->rename ? x->rename : p->name;
        snprintf(name, sizeof name, "%.96s.lora_a", base);
        put_tensor(w, name, p->stack, x->turned ? p->k : p->rank, x->turned ? p->rank : p->k);
        snprintf(name, sizeof name, "%.96s.lora_b", base);
        if (i || !x->no_b)
            put_tensor(w, name, p->stack, p->m, p->rank);
    }
    if (x->extra)
        gguf_writer_data(w, &alpha, sizeof alpha);
    for (int i = 0; i < n_pairs; i++) {
        const struct pair *p = &pairs[i];
        if (!i && x->nan)
            p->a[1] = 0.0f / 0.0f;
        gguf_writer_data(w, p->a, (uint64_t)(p->stack * p->rank * p->k) * sizeof *p->a);
        if (i || !x->no_b)
            gguf_writer_data(w, p->b, (uint64_t)(p->stack * p->rank * p->m) * sizeof *p->b);
    }
    return gguf_writer_close(w, &err) == PITH_OK;
}

/* The model with scale * alpha / rank * B A added to its weights, which are f32. */
static int write_merged(const char *from, const char *to, float scale)
{
    size_t n = 0;
    struct pith_error err;
    uint8_t *p = file_bytes(from, &n);
    struct gguf *g = p ? gguf_open_memory(p, n, &err) : NULL;
    int ok = g != NULL;
    for (int i = 0; ok && i < n_pairs; i++) {
        const struct pair *q = &pairs[i];
        const struct gguf_tensor *t = gguf_tensor_find(g, slice_of(q->name));
        ok = t && t->type == DT_F32;
        float *w = ok ? (float *)(uintptr_t)gguf_tensor_data(g, t) : NULL;
        for (int64_t j = 0; ok && j < q->stack * q->m; j++)
            for (int64_t k = 0; k < q->k; k++) {
                double sum = 0;
                for (int64_t c = 0; c < q->rank; c++)
                    sum += (double)q->b[j * q->rank + c] *
                           (double)q->a[(j / q->m * q->rank + c) * q->k + k];
                w[j * q->k + k] += (float)(sum * (double)(scale * alpha) / (double)q->rank);
            }
    }
    gguf_close(g);
    ok = ok && file_put(to, p, n);
    free(p);
    return ok;
}

/* ---------------------------------------------------------------- one way to run it */

struct way {
    const char *name;
    int piece, n_threads, reference, beside, plain; /* plain: a session without adapters */
    const char *far, *layers;
    pith_split split;
    const char *sent[2]; /* weights that are on another device */
};

static int32_t token(int i)
{
    return 3 + (i * 37 + i * i) % (N_VOCAB - 3);
}

struct opened {
    pith_model *m;
    pith_session *s;
    pith_adapter *a;
    int64_t cols;
    int causal;
};

static void close_way(struct opened *o)
{
    pith_session_close(o->s);
    pith_adapter_close(o->a);
    pith_model_close(o->m);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
}

/* adapter NULL: without. */
static int open_way(struct opened *o, const char *path, const char *adapter, const struct way *w,
                    struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    if (w->far)
        setenv("PITH_FAR_DEVICES", w->far, 1);
    if (w->layers)
        setenv("PITH_LAYER_DEVICES", w->layers, 1);
    mp.n_threads = w->n_threads;
    mp.reference = w->reference;
    mp.split = w->split;
    mp.placements = *w->sent ? w->sent : NULL;
    sp.n_ctx = 128;
    sp.n_seq = 3;
    sp.n_adapters = w->plain ? 0 : 2;
    sp.adapter_rank = w->plain ? 0 : RANK;
    sp.cache_type_k = sp.cache_type_v = "f32";
    sp.store_bytes = 1 << 20;
    *o = (struct opened){.m = pith_model_open(path, &mp, err)};
    o->s = o->m ? pith_session_open(o->m, &sp, err) : NULL;
    o->a = o->s && adapter ? pith_adapter_open(o->m, adapter, err) : NULL;
    pith_model_get_info(o->m, &info, NULL);
    if (o->s && w->split == PITH_SPLIT_TENSOR && !strcmp(info.arch, "llama"))
        CHECK_MSG(o->s->states->n_shares == 2, "%s: heads are not divided", w->name);
    o->causal = info.causal;
    return o->s && (o->a || !adapter);
}

static struct pith_adapter_use use_of(pith_adapter *a, float scale)
{
    struct pith_adapter_use use = PITH_ADAPTER_USE_INIT;
    use.adapter = a;
    use.scale = scale;
    return use;
}

/* Rows [at, at + n) of sequence 0, and as many of sequences 1 and 2 among them. */
static int step(struct opened *o, const struct way *w, int at, int n, float *out)
{
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    int32_t ids[3 * N_ROWS], seq[3 * N_ROWS];
    uint8_t want[3 * N_ROWS];
    int rows = 0, of_first[N_ROWS], k = 0;
    for (int i = 0; i < n; i++)
        for (int q = w->beside ? 2 : 0; q >= 0; q--) {
            if (!q)
                of_first[k++] = rows;
            ids[rows] = token(q * 100 + at + i);
            seq[rows] = q;
            want[rows++] = 1;
        }
    b.n = rows;
    b.token = ids;
    b.want = want;
    b.seq = seq;
    if (pith_step(o->s, &b, &err) != PITH_OK) {
        CHECK_MSG(0, "%s: %s", w->name, err.msg);
        return 0;
    }
    for (int i = 0; i < n; i++) {
        const float *row = pith_logits(o->s, of_first[i]);
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        pith_model_get_info(o->m, &info, NULL);
        o->cols = row ? N_VOCAB : info.n_embd_out;
        row = row ? row : pith_embedding(o->s, of_first[i]);
        memcpy(out + (int64_t)(at + i) * o->cols, row, (size_t)o->cols * sizeof *row);
    }
    return 1;
}

static int run_way(const char *path, const char *adapter, float scale, const struct way *w,
                   float *out, int64_t *cols)
{
    struct opened o;
    struct pith_error err;
    int ok = open_way(&o, path, adapter, w, &err);
    CHECK_MSG(ok, "%s, %s: %s", path, w->name, err.msg);
    struct pith_adapter_use use = use_of(o.a, scale), other = use_of(o.a, 2 * scale);
    if (ok && adapter && pith_adapt(o.s, 0, &use, 1, &err) != PITH_OK) {
        CHECK_MSG(0, "%s, %s: %s", path, w->name, err.msg);
        ok = 0;
    }
    if (ok && adapter && w->beside) /* sequence 2 has none */
        CHECK(pith_adapt(o.s, 1, &other, 1, &err) == PITH_OK);
    for (int32_t q = 0; ok && q < 3; q++)
        ok = encoder_reads(o.s, q, &err) == PITH_OK;
    if (ok && adapter && pith_encoder_most(o.s)) /* its memory was made with these */
        CHECK(pith_adapt(o.s, 0, &other, 1, &err) == PITH_STATE && strstr(err.msg, "encoder"));
    int piece = o.causal ? w->piece : N_ROWS;
    for (int at = 0; ok && at < N_ROWS; at += piece)
        ok = step(&o, w, at, N_ROWS - at < piece ? N_ROWS - at : piece, out);
    *cols = o.cols;
    close_way(&o);
    return ok;
}

/* ---------------------------------------------------------------- merged */

/* The largest difference, by the largest number. */
static double distance(const float *x, const float *y, int64_t n)
{
    double most = 0, size = 1e-9;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i], a = (double)(x[i] < 0 ? -x[i] : x[i]);
        most = d > most ? d : -d > most ? -d : most;
        size = a > size ? a : size;
    }
    return most / size;
}

static void merged_of(const char *arch, int experts)
{
    static float want[N_OUT], got[N_OUT], base[N_OUT];
    const struct way whole = {.name = "whole", .piece = N_ROWS, .n_threads = 1};
    struct tiny t = tiny_of(arch, experts);
    char path[300], adapter[300], merged[300];
    snprintf(path, sizeof path, "%s", tiny_write(&t, 11));
    snprintf(adapter, sizeof adapter, "%s", tmp_path("adapter.gguf"));
    snprintf(merged, sizeof merged, "%s", tmp_path("merged.gguf"));
    int64_t cols = 0;
    REQUIRE(make_pairs(path, 5, 0.08f), "%s: no products", arch);
    REQUIRE(write_adapter(adapter, arch, &(struct wrong){0}), "%s: not written", arch);
    REQUIRE(write_merged(path, merged, 0.5f), "%s: not merged", arch);
    if (run_way(path, adapter, 0.5f, &whole, got, &cols) &&
        run_way(merged, NULL, 0, &whole, want, &cols) &&
        run_way(path, NULL, 0, &whole, base, &cols)) {
        double off = distance(want, got, N_ROWS * cols), by = distance(base, got, N_ROWS * cols);
        CHECK_MSG(off < 2e-4 && by > 10 * off,
                  "%s, %d experts: %g from the merged model, %g from "
                  "the model without",
                  arch, experts, off, by);
        printf("# %s, %d experts: %d products, %.2g from the merged model, %.2g from the plain\n",
               arch, experts, n_pairs, off, by);
    }
    unlink(path);
    unlink(adapter);
    unlink(merged);
}

static void merged(void)
{
    int i = 0;
    for (const char *const *a = pith_arch_names(); *a; a++)
        for (int experts = 0; experts < 2; experts++)
            if (test_scale() >= 10 || i++ % 9 == 0 || !strcmp(*a, "deepseek2") || !strcmp(*a, "t5"))
                merged_of(*a, experts);
}

/* ---------------------------------------------------------------- draft heads */

/* Logits of a draft head's rows: tokens, each with a vector. */
static int run_head(const char *path, const char *adapter, int piece, float *out)
{
    static float vector[N_ROWS][32];
    static const uint8_t all[N_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        ids[i] = token(i);
        for (int k = 0; k < 32; k++)
            vector[i][k] = sinf((float)(i * 32 + k));
    }
    mp.n_threads = 1;
    mp.draft_heads = 1;
    sp.n_ctx = 64;
    sp.cache_type_k = sp.cache_type_v = "f32";
    sp.n_adapters = adapter ? 1 : 0;
    sp.role = PITH_ROLE_DRAFT;
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    pith_adapter *a = s && adapter ? pith_adapter_open(m, adapter, &err) : NULL;
    struct pith_adapter_use use = use_of(a, 0.5f);
    int ok = s && (!adapter || (a && pith_adapt(s, 0, &use, 1, &err) == PITH_OK));
    for (int at = 0; ok && at < N_ROWS; at += piece) {
        struct pith_batch b = PITH_BATCH_INIT;
        b.n = at + piece < N_ROWS ? piece : N_ROWS - at;
        b.token = ids + at;
        b.embd = vector[at];
        b.both = b.want = all;
        ok = pith_step(s, &b, &err) == PITH_OK;
        for (int i = 0; ok && i < b.n; i++)
            memcpy(out + (at + i) * N_VOCAB, pith_logits(s, i), N_VOCAB * sizeof *out);
    }
    CHECK_MSG(ok, "%s: %s", path, err.msg);
    pith_session_close(s);
    pith_adapter_close(a);
    pith_model_close(m);
    return ok;
}

/* An adapter of the decoder and of the head: each session takes what is of its own products, also
 * where heads were not opened. */
static void draft_heads(void)
{
    static float want[N_OUT], got[N_OUT], base[N_OUT];
    static const char *const keys[] = {"nextn_predict_layers=1", NULL};
    const struct way whole = {.name = "whole", .piece = N_ROWS, .n_threads = 1};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    char path[300], adapter[300], merged[300];
    int64_t cols = 0;
    p.arch = "llama";
    p.type = "f32";
    p.n_layer = 3;
    p.n_embd = p.n_ff = 32;
    p.n_head = 4;
    p.n_head_kv = 2;
    p.head_dim = 16;
    p.n_vocab = N_VOCAB;
    p.n_ctx = 128;
    p.keys = keys;
    snprintf(path, sizeof path, "%s", tmp_path("heads.gguf"));
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    snprintf(adapter, sizeof adapter, "%s", tmp_path("adapter.gguf"));
    snprintf(merged, sizeof merged, "%s", tmp_path("merged.gguf"));
    REQUIRE(make_pairs(path, 5, 0.08f), "no products");
    int n_decoder = n_pairs;
    REQUIRE(make_pairs_with(path, 1, 5, 0.08f) && n_pairs > n_decoder + 7, "%d products", n_pairs);
    REQUIRE(write_adapter(adapter, "llama", &(struct wrong){0}), "not written");
    REQUIRE(write_merged(path, merged, 0.5f), "not merged");
    if (run_head(path, adapter, N_ROWS, got) && run_head(merged, NULL, N_ROWS, want) &&
        run_head(path, NULL, N_ROWS, base)) {
        double off = distance(want, got, N_OUT), by = distance(base, got, N_OUT);
        CHECK_MSG(off < 2e-4 && by > 10 * off, "%g from the merged, %g from the plain", off, by);
    }
    if (run_head(path, adapter, 7, want))
        CHECK(!memcmp(want, got, sizeof got));
    if (run_way(path, adapter, 0.5f, &whole, got, &cols) &&
        run_way(merged, NULL, 0, &whole, want, &cols))
        CHECK(distance(want, got, N_OUT) < 2e-4);
    unlink(path);
    unlink(adapter);
    unlink(merged);
}

/* ---------------------------------------------------------------- same bits */

static const struct way ways[] = {
    {.name = "whole", .piece = N_ROWS, .n_threads = 1},
    {.name = "in pieces", .piece = 7, .n_threads = 1},
    {.name = "token by token", .piece = 1, .n_threads = 1},
    {.name = "two threads", .piece = N_ROWS, .n_threads = 2},
    {.name = "beside others", .piece = 5, .n_threads = 1, .beside = 1},
    {.name = "reference", .piece = 11, .n_threads = 1, .reference = 1},
    {.name = "on a far device", .piece = 9, .n_threads = 1, .far = "1", .layers = "1"},
    {.name = "by turns", .piece = 9, .n_threads = 1, .far = "1", .layers = "0,1"},
    {.name = "rows over two", .piece = 9, .n_threads = 1, .far = "2", .split = PITH_SPLIT_ROW},
    {.name = "some weights elsewhere",
     .piece = 9,
     .n_threads = 1,
     .far = "2",
     .layers = "1",
     .sent = {"blk\\.[01]\\..*[^m]\\.weight=FAR1"}}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void bits_of(const char *arch, int experts)
{
    static float want[N_OUT], got[N_OUT];
    const struct way plain = {.name = "no adapters", .piece = N_ROWS, .n_threads = 1, .plain = 1};
    struct tiny t = tiny_of(arch, experts);
    char path[300], adapter[300];
    int64_t cols = 0;
    snprintf(path, sizeof path, "%s", tiny_write(&t, 12));
    snprintf(adapter, sizeof adapter, "%s", tmp_path("adapter.gguf"));
    REQUIRE(make_pairs(path, 6, 0.5f), "%s: no products", arch);
    REQUIRE(write_adapter(adapter, arch, &(struct wrong){0}), "%s: not written", arch);
    if (run_way(path, adapter, 1, &ways[0], want, &cols))
        for (int w = 1; w < N_WAYS; w++)
            if (run_way(path, adapter, 1, &ways[w], got, &cols))
                CHECK_MSG(!memcmp(want, got, (size_t)(N_ROWS * cols) * sizeof *want),
                          "%s, %d experts, %s: other bits", arch, experts, ways[w].name);
    if (run_way(path, NULL, 1, &plain, want, &cols)) {
        for (int w = 0; w < N_WAYS; w += 4)
            if (run_way(path, NULL, 1, &ways[w], got, &cols))
                CHECK_MSG(!memcmp(want, got, (size_t)(N_ROWS * cols) * sizeof *want),
                          "%s without an adapter, %s: other bits", arch, ways[w].name);
        /* a scale of 0 is none */
        if (run_way(path, adapter, 0, &ways[0], got, &cols))
            CHECK(!memcmp(want, got, (size_t)(N_ROWS * cols) * sizeof *want));
    }
    unlink(path);
    unlink(adapter);
}

static void same_bits(void)
{
    static const struct {
        const char *arch;
        int experts;
    } c[] = {{"llama", 0},   {"llama", 1},     {"gemma3", 0}, {"deepseek2", 1},
             {"qwen3", 0},   {"mamba", 0},     {"phi3", 0},   {"qwen3next", 1},
             {"rwkv7", 0},   {"bert", 0},      {"gpt2", 0},   {"gemma4", 0}};
    for (size_t i = 0; i < (test_scale() >= 10 ? sizeof c / sizeof *c : 4); i++)
        bits_of(c[i].arch, c[i].experts);
}

/* ---------------------------------------------------------------- sequences */

static struct opened two; /* a llama, two adapters: one file, twice */
static pith_adapter *second;
static char model_path[300], adapter_path[300];

static int open_two(void)
{
    struct tiny t = tiny_of("llama", 0);
    struct pith_error err;
    snprintf(model_path, sizeof model_path, "%s", tiny_write(&t, 13));
    snprintf(adapter_path, sizeof adapter_path, "%s", tmp_path("first.gguf"));
    int ok = make_pairs(model_path, 7, 0.5f) &&
             write_adapter(adapter_path, "llama", &(struct wrong){0}) &&
             open_way(&two, model_path, adapter_path, &ways[0], &err);
    const char *other = tmp_path("second.gguf");
    ok = ok && make_pairs(model_path, 8, 0.5f) && write_adapter(other, "llama", &(struct wrong){0});
    second = ok ? pith_adapter_open(two.m, other, &err) : NULL;
    CHECK_MSG(second, "%s", err.msg);
    return second != NULL;
}

static void close_two(void)
{
    pith_adapter_close(second);
    close_way(&two);
}

static pith_status adapt(int32_t seq, pith_adapter *a, float scale, struct pith_error *err)
{
    struct pith_adapter_use use = use_of(a, scale);
    return pith_adapt(two.s, seq, &use, a ? 1 : 0, err);
}

/* An array is walked by its caller's size, and every element has to have it. */
static void uses_of_other_versions(const struct pith_adapter_use *two_uses, const int32_t *ids)
{
    enum { LATER = sizeof *two_uses + 40 };
    _Alignas(16) uint8_t later[2 * LATER];
    struct pith_error err;
    float want[N_VOCAB];
    memset(later, 0xA5, sizeof later);
    for (size_t i = 0; i < 2; i++) {
        memcpy(later + i * LATER, &two_uses[i], sizeof *two_uses);
        memcpy(later + i * LATER, &(size_t){LATER}, sizeof(size_t));
    }
    for (int i = 0; i < 2; i++) {
        const void *uses = i ? (const void *)later : two_uses;
        CHECK(pith_truncate(two.s, 1, 0, &err) == PITH_OK);
        CHECK_MSG(pith_adapt(two.s, 1, NULL, 0, &err) == PITH_OK &&
                      pith_adapt(two.s, 1, uses, 2, &err) == PITH_OK &&
                      pith_feed(two.s, 1, ids, 3, &err) == PITH_OK,
                  "%s", err.msg);
        if (!i)
            memcpy(want, pith_logits(two.s, 0), sizeof want);
        CHECK_MSG(!memcmp(want, pith_logits(two.s, 0), sizeof want), "version %d: other bits", i);
    }
    static const size_t bad[] = {0, 7, sizeof *two_uses + 4, 1 << 20};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pith_adapter_use use = two_uses[0];
        use.size = bad[i];
        CHECK_MSG(pith_adapt(two.s, 1, &use, 1, &err) == PITH_RANGE && strstr(err.msg, "size"),
                  "%zu: %s", bad[i], err.msg);
    }
    struct pith_adapter_use unlike[2] = {two_uses[0], two_uses[1]};
    unlike[1].size += 8;
    CHECK(pith_adapt(two.s, 1, unlike, 2, &err) == PITH_RANGE && strstr(err.msg, "adapter 1"));
}

static void stored(void)
{
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[80];
    size_t kept = 99;
    for (int i = 0; i < 80; i++)
        ids[i] = token(i);
    if (!open_two())
        return;
    CHECK(pith_feed(two.s, 0, ids, 80, &err) == PITH_OK);
    CHECK(adapt(1, two.a, 1, &err) == PITH_OK);
    CHECK_MSG(pith_prefix(two.s, 1, ids, 80, &kept, &err) == PITH_OK && kept == 0,
              "%zu of another's tokens are kept", kept);
    CHECK(pith_prefix(two.s, 2, ids, 80, &kept, &err) == PITH_OK && kept == 64);
    CHECK(pith_truncate(two.s, 2, 0, &err) == PITH_OK && adapt(2, two.a, 1, &err) == PITH_OK);
    CHECK_MSG(pith_prefix(two.s, 2, ids, 80, &kept, &err) == PITH_OK && kept == 64, "%zu", kept);
    CHECK(pith_truncate(two.s, 2, 0, &err) == PITH_OK && adapt(2, two.a, 0.5f, &err) == PITH_OK);
    CHECK_MSG(pith_prefix(two.s, 2, ids, 80, &kept, &err) == PITH_OK && kept == 0, "%zu", kept);
    /* a copy has its source's adapters */
    float want[N_VOCAB], got[N_VOCAB];
    CHECK(pith_copy(two.s, 0, 2, 0, -1, &err) == PITH_OK);
    CHECK(pith_feed(two.s, 2, ids, 3, &err) == PITH_OK);
    memcpy(want, pith_logits(two.s, 0), sizeof want);
    CHECK(pith_feed(two.s, 0, ids, 3, &err) == PITH_OK);
    memcpy(got, pith_logits(two.s, 0), sizeof got);
    CHECK(!memcmp(want, got, sizeof want));
    close_two();
}

static void not_loaded(const uint8_t *image, size_t n, const char *says)
{
    struct pith_error err = {PITH_OK, ""};
    pith_status st = pith_load_memory(two.s, 1, image, n, &err);
    CHECK_MSG(st == PITH_STATE && strstr(err.msg, says), "%d, \"%s\"", st, err.msg);
}

static void snapshots(void)
{
    static uint8_t image[4 << 20];
    struct pith_error err = {PITH_OK, ""};
    size_t n = 0;
    const int32_t ids[] = {5, 6, 7, 8};
    float want[N_VOCAB];
    if (!open_two())
        return;
    CHECK(adapt(0, two.a, 1, &err) == PITH_OK && pith_feed(two.s, 0, ids, 3, &err) == PITH_OK);
    CHECK(pith_save_memory(two.s, 0, image, sizeof image, &n, &err) == PITH_OK);
    CHECK(pith_feed(two.s, 0, ids + 3, 1, &err) == PITH_OK);
    memcpy(want, pith_logits(two.s, 0), sizeof want);
    not_loaded(image, n, "computed with adapters, and sequence 1 has none: set the same ones");
    CHECK(adapt(1, second, 1, &err) == PITH_OK);
    not_loaded(image, n, "computed with other adapters or scales than sequence 1 has");
    CHECK(adapt(1, two.a, 0.5f, &err) == PITH_OK);
    not_loaded(image, n, "computed with other adapters or scales than sequence 1 has");
    CHECK(adapt(1, two.a, 1, &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(two.s, 1, image, n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_feed(two.s, 1, ids + 3, 1, &err) == PITH_OK);
    CHECK(!memcmp(want, pith_logits(two.s, 0), sizeof want));
    CHECK(pith_feed(two.s, 2, ids, 3, &err) == PITH_OK);
    CHECK(pith_save_memory(two.s, 2, image, sizeof image, &n, &err) == PITH_OK);
    not_loaded(image, n, "computed without adapters, and sequence 1 has some: take them off first");
    close_two();
}

/* How the host rounds, when it gives a sequence an adapter, is in no logit. */
static void rounding(void)
{
    static const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD};
    struct pith_error err = {PITH_OK, ""};
    const int32_t ids[] = {5, 6, 7};
    float want[N_VOCAB];
    if (!open_two())
        return;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        CHECK(pith_truncate(two.s, 0, 0, &err) == PITH_OK && adapt(0, NULL, 0, &err) == PITH_OK);
        fesetround(modes[i]);
        pith_status st = adapt(0, two.a, 0.3f, &err);
        fesetround(FE_TONEAREST);
        CHECK_MSG(st == PITH_OK && pith_feed(two.s, 0, ids, 3, &err) == PITH_OK, "%s", err.msg);
        if (!i)
            memcpy(want, pith_logits(two.s, 0), sizeof want);
        CHECK_MSG(!memcmp(want, pith_logits(two.s, 0), sizeof want), "rounding %d", modes[i]);
    }
    close_two();
}

/* As many different ones as were reserved, which come and go. */
static void sets(void)
{
    struct pith_error err = {PITH_OK, ""};
    const int32_t ids[] = {5, 6, 7};
    if (!open_two())
        return;
    CHECK(adapt(0, two.a, 1, &err) == PITH_OK && adapt(1, two.a, 1, &err) == PITH_OK);
    CHECK(adapt(2, second, 1, &err) == PITH_OK);
    CHECK(adapt(1, second, 2, &err) == PITH_RANGE && strstr(err.msg, "all 2 sets"));
    CHECK(pith_feed(two.s, 1, ids, 3, &err) == PITH_OK); /* it has the first, as before */
    CHECK(adapt(1, NULL, 0, &err) == PITH_STATE && strstr(err.msg, "3 positions"));
    CHECK(adapt(1, two.a, 1, &err) == PITH_OK); /* nothing new */
    CHECK(adapt(2, second, 2, &err) == PITH_OK); /* its own goes */
    CHECK(adapt(2, NULL, 0, &err) == PITH_OK && adapt(0, second, 3, &err) == PITH_OK);
    for (int i = 0; i < 50; i++)
        CHECK_MSG(adapt(2, second, 4 + (float)i, &err) == PITH_RANGE, "%d", i);
    /* several at once, in this order; too many */
    struct pith_adapter_use many[5] = {use_of(two.a, 1), use_of(second, 1), use_of(two.a, -0.5f),
                                       use_of(second, 2), use_of(two.a, 1)};
    CHECK(pith_truncate(two.s, 1, 0, &err) == PITH_OK);
    CHECK(pith_adapt(two.s, 1, many, 4, &err) == PITH_OK);
    CHECK(pith_feed(two.s, 1, ids, 3, &err) == PITH_OK);
    CHECK(pith_adapt(two.s, 2, many, 5, &err) == PITH_RANGE);
    CHECK(pith_adapt(two.s, 9, many, 1, &err) == PITH_RANGE);
    CHECK(pith_adapt(two.s, -1, many, 1, &err) == PITH_RANGE);
    uses_of_other_versions(many, ids);
    many[0].scale = 0.0f / 0.0f;
    CHECK(pith_adapt(two.s, 2, many, 1, &err) == PITH_RANGE);
    many[0].adapter = NULL;
    CHECK(pith_adapt(two.s, 2, many, 1, &err) == PITH_RANGE);
    /* a session without, and one of too low a rank */
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 32;
    struct pith_adapter_use use = use_of(two.a, 1);
    pith_session *s = pith_session_open(two.m, &sp, &err);
    CHECK(pith_adapt(s, 0, &use, 1, &err) == PITH_STATE && strstr(err.msg, "n_adapters"));
    pith_session_close(s);
    sp.n_adapters = 1;
    sp.adapter_rank = RANK - 1;
    s = pith_session_open(two.m, &sp, &err);
    CHECK(pith_adapt(s, 0, &use, 1, &err) == PITH_RANGE && strstr(err.msg, "rank 3"));
    pith_session_close(s);
    sp.n_adapters = -1;
    CHECK(!pith_session_open(two.m, &sp, &err) && err.code == PITH_RANGE);
    /* closed while a sequence has it: it stays until then */
    pith_adapter_close(two.a);
    two.a = NULL;
    CHECK(pith_feed(two.s, 1, ids, 3, &err) == PITH_OK);
    close_two();
}

/* ---------------------------------------------------------------- rows */

static pith_status fill_slot(int32_t slot, pith_adapter *a, float scale,
                             struct pith_error *err)
{
    struct pith_adapter_use use = use_of(a, scale);
    return pith_adapt_slot(two.s, slot, &use, a ? 1 : 0, err);
}

/* The model of open_two, another way, with the first adapter in slot 0 and the second in slot 1. */
static int open_slots(const struct way *w, int32_t n_lanes)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int ok = open_way(&two, model_path, adapter_path, w, &err);
    if (ok && n_lanes) {
        pith_session_close(two.s);
        sp.n_ctx = 64;
        sp.n_adapters = 2;
        sp.adapter_rank = RANK;
        sp.n_lanes = n_lanes;
        two.s = pith_session_open(two.m, &sp, &err);
    }
    second = ok ? pith_adapter_open(two.m, tmp_path("second.gguf"), &err) : NULL;
    ok = second && two.s && fill_slot(0, two.a, 1, &err) == PITH_OK &&
         fill_slot(1, second, 2, &err) == PITH_OK;
    CHECK_MSG(ok, "%s: %s", w->name, err.msg);
    return ok;
}

enum { ROWS_EACH = 6 };

/* n rows of a sequence from row `at` on, whose adapters the sequence has, or (slots) each row. */
static int feed_rows(int32_t seq, const int32_t *slots, int at, int n, float *out)
{
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    int32_t ids[ROWS_EACH], seqs[ROWS_EACH];
    uint8_t want[ROWS_EACH];
    for (int i = 0; i < n; i++) {
        ids[i] = token(at + i);
        seqs[i] = seq;
        want[i] = 1;
    }
    b.n = n;
    b.token = ids;
    b.seq = seqs;
    b.want = want;
    b.adapter = slots;
    if (pith_step(two.s, &b, &err) != PITH_OK) {
        CHECK_MSG(0, "%s", err.msg);
        return 0;
    }
    for (int i = 0; i < n; i++)
        memcpy(out + (at + i) * N_VOCAB, pith_logits(two.s, i), N_VOCAB * sizeof *out);
    return 1;
}

enum { EACH = ROWS_EACH * N_VOCAB };

/* Rows of three sequences, in turn, in one batch: slots 0 and 1, and none. */
static void one_batch(const struct way *w, const float want[3][EACH])
{
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_error err;
    static const int32_t of[3] = {0, 1, PITH_ADAPTER_NONE};
    int32_t ids[3 * ROWS_EACH], seq[3 * ROWS_EACH], slot[3 * ROWS_EACH];
    uint8_t wanted[3 * ROWS_EACH];
    for (int i = 0; i < 3 * ROWS_EACH; i++) {
        ids[i] = token(i / 3);
        seq[i] = i % 3;
        slot[i] = of[i % 3];
        wanted[i] = 1;
    }
    b.n = 3 * ROWS_EACH;
    b.token = ids;
    b.seq = seq;
    b.want = wanted;
    b.adapter = slot;
    REQUIRE(pith_step(two.s, &b, &err) == PITH_OK, "%s: %s", w->name, err.msg);
    for (int i = 0; i < 3 * ROWS_EACH; i++)
        CHECK_MSG(!memcmp(pith_logits(two.s, i), want[i % 3] + i / 3 * N_VOCAB,
                          N_VOCAB * sizeof(float)),
                  "%s: row %d of sequence %d: other bits", w->name, i / 3, i % 3);
    int32_t held[ROWS_EACH];
    for (int32_t q = 0; q < 3; q++) {
        CHECK(pith_tokens(two.s, q, held, ROWS_EACH) == ROWS_EACH);
        CHECK_MSG(held[2] == (q < 2 ? -1 : token(2)), "sequence %d holds %d", q, held[2]);
        CHECK(pith_truncate(two.s, q, 0, &err) == PITH_OK);
    }
}

static void rows_of_slots(void)
{
    static float want[3][EACH], mixed[EACH], got[EACH];
    static const int at_ways[] = {0, 3, 5, 6, 7, 8};
    static const int32_t late[ROWS_EACH] = {PITH_ADAPTER_SEQUENCE, PITH_ADAPTER_NONE, 0, 0, 1, 0};
    struct pith_error err = {PITH_OK, ""};
    if (!open_two())
        return;
    CHECK(adapt(0, two.a, 1, &err) == PITH_OK && adapt(1, second, 2, &err) == PITH_OK);
    for (int32_t q = 0; q < 3; q++) /* each alone, by its sequence's adapters */
        feed_rows(q, NULL, 0, ROWS_EACH, want[q]);
    CHECK(memcmp(want[0], want[2], sizeof *want) && memcmp(want[0], want[1], sizeof *want));
    close_two();
    for (size_t i = 0; i < sizeof at_ways / sizeof *at_ways && test_bad < 5; i++) {
        const struct way *w = &ways[at_ways[i]];
        if (!open_slots(w, 0))
            return;
        one_batch(w, want);
        /* One text, other adapters from some token on: whole, and token by token. */
        feed_rows(0, late, 0, ROWS_EACH, i ? got : mixed);
        CHECK_MSG(!i || !memcmp(got, mixed, sizeof got), "%s: other bits", w->name);
        for (int k = 0; k < ROWS_EACH; k++)
            feed_rows(1, late + k, k, 1, got);
        CHECK_MSG(!memcmp(got, mixed, sizeof got), "%s, token by token: other bits", w->name);
        CHECK(!memcmp(mixed, want[2], 2 * N_VOCAB * sizeof *mixed));
        CHECK(memcmp(mixed + 2 * N_VOCAB, want[2] + 2 * N_VOCAB, N_VOCAB * sizeof *mixed));
        close_two();
    }
}

/* What a row had that is not its sequence's is in no key: prefixes end before it. */
static void rows_and_prefixes(void)
{
    static const int32_t same[ROWS_EACH] = {0, 0, 0, 0, 0, 0},
                         late[ROWS_EACH] = {0, 0, 0, 1, 0, PITH_ADAPTER_SEQUENCE};
    static float got[EACH];
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[ROWS_EACH], held[ROWS_EACH];
    size_t kept = 0;
    for (int i = 0; i < ROWS_EACH; i++)
        ids[i] = token(i);
    if (!open_two())
        return;
    close_two();
    if (!open_slots(&ways[0], 0))
        return;
    CHECK(adapt(0, two.a, 1, &err) == PITH_OK && adapt(1, two.a, 1, &err) == PITH_OK);
    feed_rows(0, same, 0, ROWS_EACH, got); /* slot 0 has what the sequence has */
    CHECK(pith_prefix(two.s, 0, ids, ROWS_EACH, &kept, &err) == PITH_OK && kept == ROWS_EACH - 1);
    feed_rows(1, late, 0, ROWS_EACH, got);
    CHECK(pith_tokens(two.s, 1, held, ROWS_EACH) == ROWS_EACH && held[2] == token(2) &&
          held[3] == -1 && held[4] == token(4));
    CHECK(pith_prefix(two.s, 1, ids, ROWS_EACH, &kept, &err) == PITH_OK && kept == 3);
    /* Of a tree, too. */
    struct pith_batch b = PITH_BATCH_INIT;
    static const int32_t seqs[2] = {2, 2}, parent[2] = {PITH_ROOT, 0}, slot[2] = {0, -1};
    b.n = 2;
    b.token = ids;
    b.seq = seqs;
    b.parent = parent;
    b.adapter = slot;
    CHECK_MSG(pith_step(two.s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_accept(two.s, 2, 1, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_tokens(two.s, 2, held, 2) == 2 && held[0] == -1 && held[1] == ids[1]);
    /* What rows were tried with is gone: they cannot be accepted. */
    CHECK(pith_truncate(two.s, 2, 0, &err) == PITH_OK && pith_step(two.s, &b, &err) == PITH_OK);
    CHECK(fill_slot(1, NULL, 0, &err) == PITH_OK);
    CHECK(pith_accept(two.s, 2, 1, &err) == PITH_STATE);
    close_two();
}

/* A row that waits for its token keeps its slot. */
static void rows_that_wait(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = PITH_BATCH_INIT, next = PITH_BATCH_INIT;
    static const int32_t drawn[1] = {0}, slot[1] = {1};
    int32_t ids[3] = {token(0), token(1), token(2)};
    static float want[N_VOCAB];
    if (!open_two())
        return;
    close_two();
    if (!open_slots(&ways[0], 2))
        return;
    b.n = 3;
    b.token = ids;
    next.n = 1;
    next.drawn = drawn;
    next.adapter = slot;
    CHECK(pith_step(two.s, &b, &err) == PITH_OK && pith_step(two.s, &next, &err) == PITH_OK);
    memcpy(want, pith_logits(two.s, 0), sizeof want);
    CHECK(pith_truncate(two.s, 0, 0, &err) == PITH_OK);
    CHECK_MSG(pith_submit(two.s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_submit(two.s, &next, &err) == PITH_OK, "%s", err.msg);
    CHECK(fill_slot(0, second, 2, &err) == PITH_STATE && strstr(err.msg, "under way"));
    CHECK(pith_wait(two.s, &err) == PITH_OK && pith_wait(two.s, &err) == PITH_OK);
    CHECK(!memcmp(want, pith_logits(two.s, 0), sizeof want));
    next.adapter = NULL;
    CHECK(pith_truncate(two.s, 0, 0, &err) == PITH_OK);
    CHECK(pith_step(two.s, &b, &err) == PITH_OK && pith_step(two.s, &next, &err) == PITH_OK);
    CHECK(memcmp(want, pith_logits(two.s, 0), sizeof want) != 0);
    close_two();
}

static pith_status one_row(pith_session *s, int32_t slot, struct pith_error *err)
{
    struct pith_batch b = PITH_BATCH_INIT;
    static const int32_t id = 5;
    b.n = 1;
    b.token = &id;
    b.adapter = &slot;
    return pith_step(s, &b, err);
}

static void bad_slots(void)
{
    struct pith_error err = {PITH_OK, ""};
    if (!open_two())
        return;
    CHECK(one_row(two.s, 0, &err) == PITH_STATE && strstr(err.msg, "slot 0, which is empty"));
    CHECK(one_row(two.s, 2, &err) == PITH_RANGE && strstr(err.msg, "slot 2, the session has 2"));
    CHECK(one_row(two.s, -3, &err) == PITH_RANGE && strstr(err.msg, "row 0"));
    CHECK(one_row(two.s, 1 << 30, &err) == PITH_RANGE);
    CHECK(pith_length(two.s, 0) == 0);
    CHECK(one_row(two.s, PITH_ADAPTER_NONE, &err) == PITH_OK);
    CHECK(fill_slot(2, two.a, 1, &err) == PITH_RANGE && strstr(err.msg, "slot 2"));
    CHECK(fill_slot(-1, two.a, 1, &err) == PITH_RANGE && strstr(err.msg, "slot -1"));
    CHECK(pith_adapt_slot(two.s, 0, NULL, 1, &err) == PITH_RANGE);
    CHECK(pith_adapt_slot(NULL, 0, NULL, 0, &err) == PITH_RANGE);
    struct pith_adapter_use many[5] = {use_of(two.a, 1), use_of(two.a, 1), use_of(two.a, 1),
                                       use_of(two.a, 1), use_of(two.a, 1)};
    CHECK(pith_adapt_slot(two.s, 0, many, 5, &err) == PITH_RANGE && strstr(err.msg, "5 adapters"));
    many[0].size = 7;
    CHECK(pith_adapt_slot(two.s, 0, many, 1, &err) == PITH_RANGE && strstr(err.msg, "size"));
    /* As many different ones as were reserved, of sequences and slots together. */
    CHECK(fill_slot(0, two.a, 1, &err) == PITH_OK && fill_slot(1, second, 1, &err) == PITH_OK);
    CHECK(adapt(1, two.a, 1, &err) == PITH_OK); /* the slot's */
    CHECK(adapt(2, second, 3, &err) == PITH_RANGE && strstr(err.msg, "all 2 sets"));
    CHECK(fill_slot(1, second, 3, &err) == PITH_OK); /* its own goes */
    CHECK(fill_slot(1, NULL, 0, &err) == PITH_OK && adapt(2, second, 3, &err) == PITH_OK);
    CHECK(one_row(two.s, 1, &err) == PITH_STATE && one_row(two.s, 0, &err) == PITH_OK);
    /* A scale of 0 is none, and the slot is not empty. */
    CHECK(fill_slot(1, second, 0, &err) == PITH_OK && one_row(two.s, 1, &err) == PITH_OK);
    /* A slot keeps its adapter. */
    pith_adapter_close(two.a);
    two.a = NULL;
    CHECK(one_row(two.s, 0, &err) == PITH_OK);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 32;
    pith_session *s = pith_session_open(two.m, &sp, &err);
    struct pith_adapter_use use = use_of(second, 1);
    CHECK(one_row(s, 0, &err) == PITH_RANGE && strstr(err.msg, "has 0 slots"));
    CHECK(pith_adapt_slot(s, 0, &use, 1, &err) == PITH_STATE && strstr(err.msg, "n_adapters"));
    CHECK(one_row(s, PITH_ADAPTER_NONE, &err) == PITH_OK);
    pith_session_close(s);
    close_two();
}

/* ---------------------------------------------------------------- refused */

static void bad_files(void)
{
    static const struct {
        struct wrong x;
        pith_status st;
        const char *says;
    } c[] = {
        {{.type = "model"}, PITH_FORMAT, "general.type"},
        {{.lora = "ia3"}, PITH_FORMAT, "adapter.type"},
        {{.arch = "qwen3"}, PITH_FORMAT, "general.architecture is \"qwen3\", wanted \"llama\""},
        {{.no_b = 1}, PITH_MISSING, ".lora_b is missing"},
        {{.turned = 1}, PITH_SHAPE, ".lora_"},
        {{.rename = "blk.7.attn_q.weight"}, PITH_MISSING, "no tensor blk.7.attn_q.weight"},
        {{.rename = "output_norm.weight"}, PITH_UNSUPPORTED, "output_norm.weight is not multi"},
        {{.rename = "token_embd.weight"}, PITH_UNSUPPORTED, "token_embd.weight is not multi"},
        {{.nan = 1}, PITH_FORMAT, "not finite"},
        {{.alpha = 1}, PITH_FORMAT, "alpha is no number"},
        {{.alpha = 2}, PITH_FORMAT, "alpha is no number"},
        {{.alpha = 3}, PITH_FORMAT, "alpha is no number"},
        {{.extra = 1}, PITH_UNSUPPORTED, "names that end in .lora_a and .lora_b"},
    };
    struct pith_error err = {PITH_OK, ""};
    if (!open_two())
        return;
    const char *to = tmp_path("bad.gguf");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        REQUIRE(make_pairs(model_path, 7, 0.5f) && write_adapter(to, "llama", &c[i].x), "%zu", i);
        pith_adapter *a = pith_adapter_open(two.m, to, &err);
        CHECK_MSG(!a && err.code == c[i].st && strstr(err.msg, c[i].says), "case %zu: %d, \"%s\"",
                  i, err.code, err.msg);
        if (c[i].x.turned) {
            const struct pair *q = &pairs[0];
            char says[300];
            snprintf(says, sizeof says,
                     "%s.lora_a is [%d, %d], wanted [%d, %d], for %s is [%d, %d]", q->name,
                     (int)q->k, (int)q->rank, (int)q->k, (int)q->k, q->name, (int)q->m, (int)q->k);
            CHECK_MSG(q->stack == 1 && strstr(err.msg, says), "\"%s\", wanted \"%s\"", err.msg,
                      says);
        }
        pith_adapter_close(a);
    }
    CHECK(!pith_adapter_open(two.m, model_path, &err) && err.code == PITH_FORMAT);
    CHECK(!pith_adapter_open(two.m, "/nowhere.gguf", &err) && err.code != PITH_OK);
    CHECK(!pith_adapter_open(NULL, to, &err) && err.code == PITH_RANGE);
    /* A rank that no adapter has; what is no file. */
    struct pair *p = &pairs[0];
    REQUIRE(make_pairs(model_path, 7, 0.5f), "no pairs");
    p->rank = 4097;
    p->a = realloc(p->a, (size_t)(p->stack * p->rank * p->k) * sizeof *p->a);
    p->b = realloc(p->b, (size_t)(p->stack * p->rank * p->m) * sizeof *p->b);
    memset(p->a, 0, (size_t)(p->stack * p->rank * p->k) * sizeof *p->a);
    memset(p->b, 0, (size_t)(p->stack * p->rank * p->m) * sizeof *p->b);
    REQUIRE(write_adapter(to, "llama", &(struct wrong){0}), "no file");
    CHECK_MSG(!pith_adapter_open(two.m, to, &err) && err.code == PITH_RANGE &&
                  strstr(err.msg, "has rank 4097, wanted 1..4096"),
              "%s", err.msg);
    unlink(to);
    CHECK(mkfifo(to, 0600) == 0 && !pith_adapter_open(two.m, to, &err) && err.code == PITH_IO &&
          strstr(err.msg, "a pipe"));
    unlink(to);
    close_two();
}

/* Bytes of the file are others: an error, or an adapter that runs. */
static void damaged(void)
{
    size_t n = 0;
    struct pith_error err = {PITH_OK, ""};
    const int32_t ids[] = {5, 6, 7};
    if (!open_two())
        return;
    const char *to = tmp_path("bad.gguf");
    uint8_t *p = file_bytes(adapter_path, &n);
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < (test_scale() >= 10 ? 3000 : 200) && test_bad < 5; i++) {
        size_t at = rng_u32(&r) % (i % 4 ? 1500 : n);
        uint8_t was = p[at];
        p[at] ^= (uint8_t)(1u << rng_u32(&r) % 8);
        pith_adapter *a = file_put(to, p, n) ? pith_adapter_open(two.m, to, &err) : NULL;
        CHECK_MSG(a || strlen(err.msg) > 8, "byte %zu: \"%s\"", at, err.msg);
        if (a) {
            pith_status st = adapt(0, a, 1, &err);
            CHECK_MSG(st == PITH_OK ? pith_feed(two.s, 0, ids, 3, &err) == PITH_OK
                                    : st == PITH_RANGE,
                      "byte %zu: %s", at, err.msg);
            pith_truncate(two.s, 0, 0, &err);
            adapt(0, NULL, 0, &err);
        }
        pith_adapter_close(a);
        p[at] = was;
    }
    free(p);
    close_two();
}

static void memory_refused(void)
{
    struct pith_error err = {PITH_OK, ""};
    const int32_t ids[] = {5, 6, 7};
    long n = 1;
    if (!open_two())
        return;
    struct pith_memory_report before = PITH_MEMORY_REPORT_INIT, after = PITH_MEMORY_REPORT_INIT;
    pith_memory(&before);
    for (long i = 0; i < n && test_bad < 5; i++) {
        hook_refuse(i ? i - 1 : -1, 0);
        pith_adapter *a = pith_adapter_open(two.m, adapter_path, &err);
        if (!i)
            n = atomic_load(&hook.asked);
        hook_refuse(-1, 0);
        CHECK_MSG(!i == !!a || a || err.code == PITH_NOMEM, "allocation %ld of %ld: %s", i, n,
                  err.msg);
        pith_adapter_close(a);
    }
    pith_memory(&after);
    CHECK_MSG(n > 3 && after.used[PITH_MEM_WEIGHTS] == before.used[PITH_MEM_WEIGHTS],
              "%ld allocations, %llu bytes are left", n,
              (unsigned long long)(after.used[PITH_MEM_WEIGHTS] - before.used[PITH_MEM_WEIGHTS]));
    CHECK(adapt(0, two.a, 1, &err) == PITH_OK && pith_feed(two.s, 0, ids, 3, &err) == PITH_OK);
    close_two();
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(merged);
    TEST(draft_heads);
    TEST(same_bits);
    TEST(stored);
    TEST(snapshots);
    TEST(rounding);
    TEST(sets);
    TEST(rows_of_slots);
    TEST(rows_and_prefixes);
    TEST(rows_that_wait);
    TEST(bad_slots);
    TEST(bad_files);
    TEST(damaged);
    TEST(memory_refused);
    drop_pairs();
    return test_end();
}
