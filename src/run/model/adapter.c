/* adapter.c -- see adapter.h. Reading: keys -> pairs, each checked against the model's tensor (all
 * faults by name) -> memory on the devices that multiply -> matrices turned, so that what is
 * multiplied by one number lies together. */
#include "run/model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#include "base/mem.h"

enum { RANK_MOST = 4096 };

struct reading {
    struct pith_adapter *a;
    struct gguf *g;
    uint64_t most; /* elements of the largest matrix */
    XXH3_state_t *sum;
};

/* ---------------------------------------------------------------- keys */

static int key_is(const struct gguf *g, const char *key, const char *want, struct slice *found)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *found = slice_of("nothing");
    return kv && gguf_str(g, kv, found) && slice_eq_z(*found, want);
}

static pith_status read_keys(struct reading *r, struct pith_error *err)
{
    const struct {
        const char *key, *want;
    } is[] = {{"general.type", "adapter"},
              {"adapter.type", "lora"},
              {"general.architecture", r->a->model->arch.arch->name}};
    struct slice found;
    double alpha = 0;
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        if (key_is(r->g, is[i].key, is[i].want, &found))
            continue;
        if (!gguf_find(r->g, is[i].key))
            return error_set(err, PITH_FORMAT,
                             "%s is no adapter: it has no %s, wanted \"%s\" there",
                             gguf_path(r->g), is[i].key, is[i].want);
        return error_set(err, PITH_FORMAT, "%s: %s is \"%.*s\", wanted \"%s\"", gguf_path(r->g),
                         is[i].key, (int)(found.n < 40 ? found.n : 40), found.p, is[i].want);
    }
    const struct gguf_kv *kv = gguf_find(r->g, "adapter.lora.alpha");
    if (kv && (!gguf_f64(r->g, kv, 0, &alpha) || !(fabs(alpha) < 1e30)))
        return error_set(err, PITH_FORMAT, "%s: adapter.lora.alpha is no number, wanted one",
                         gguf_path(r->g));
    r->a->alpha = (float)alpha;
    return PITH_OK;
}

/* ---------------------------------------------------------------- pairs */

static const struct tensor *tensor_named(const struct pith_model *m, struct slice name)
{
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (slice_eq_z(name, m->tensors[i]->name))
            return m->tensors[i];
    return NULL;
}

/* A weight of another stage, or of draft heads that were not opened. */
static int is_elsewhere(const struct pith_model *m, struct slice name)
{
    int32_t i = 0;
    if (m->arch.hp.n_nextn && !m->arch.drafts && gguf_tensor_find(m->gguf, name))
        return 1;
    while (i < m->n_elsewhere && !slice_eq_z(name, m->elsewhere[i]->name))
        i++;
    return i < m->n_elsewhere;
}

/* [stack, rows, cols] of t, which has leading dimensions of 1 or those of w. */
static int has_shape(const struct gguf_tensor *t, int64_t stack, int64_t rows, int64_t cols)
{
    int64_t lead = 1;
    for (int i = 0; i < t->n_dims - 2; i++)
        lead *= t->dims[i];
    return t->n_dims > 1 && t->dims[t->n_dims - 1] == cols && t->dims[t->n_dims - 2] == rows &&
           lead == stack;
}

static pith_status misshapen(const struct reading *r, const struct gguf_tensor *t,
                             const struct tensor *w, int64_t rows, int64_t cols,
                             struct pith_error *err)
{
    const int64_t of_w[] = {tensor_stack(w), tensor_m(w), tensor_k(w)};
    const int64_t wanted[] = {of_w[0], rows, cols};
    const int skip = w->n_dims < 3;
    char text[3][96];
    model_shape_text(text[0], sizeof text[0], t->n_dims, t->dims);
    model_shape_text(text[1], sizeof text[1], 3 - skip, wanted + skip);
    model_shape_text(text[2], sizeof text[2], 3 - skip, of_w + skip);
    return error_set(err, PITH_SHAPE, "%s: %.*s is %s, wanted %s, for %s is %s", gguf_path(r->g),
                     (int)t->name.n, t->name.p, text[0], text[1], w->name, text[2]);
}

static pith_status check_pair(struct reading *r, const struct gguf_tensor *a,
                              const struct gguf_tensor *b, const struct tensor *w,
                              struct pith_error *err)
{
    int64_t rank = a->n_dims > 1 ? a->dims[a->n_dims - 2] : 0;
    if (!w->multiplied || w->use == TENSOR_EMBEDDING) /* which may be the output's, too */
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: %.*s: %s is %s, adapters are for products", gguf_path(r->g),
                         (int)a->name.n, a->name.p, w->name,
                         w->multiplied ? "looked up" : "not multiplied with");
    if (rank < 1 || rank > RANK_MOST)
        return error_set(err, PITH_RANGE, "%s: %.*s has rank %lld, wanted 1..%d", gguf_path(r->g),
                         (int)a->name.n, a->name.p, (long long)rank, RANK_MOST);
    if (!has_shape(a, tensor_stack(w), rank, tensor_k(w)))
        return misshapen(r, a, w, rank, tensor_k(w), err);
    if (!has_shape(b, tensor_stack(w), tensor_m(w), rank))
        return misshapen(r, b, w, tensor_m(w), rank, err);
    if (!dtypes[a->type].dequant || !dtypes[b->type].dequant)
        return error_set(err, PITH_UNSUPPORTED, "%s: %.*s is of a type that cannot be read",
                         gguf_path(r->g), (int)a->name.n, a->name.p);
    return PITH_OK;
}

static void set_tensor(struct sourced_tensor *to, const char *name, const struct gguf *g,
                       const struct gguf_tensor *from, int64_t stack, int64_t k, int64_t m)
{
    to->s = (struct tensor_source){
        .type = from->type, .data = gguf_tensor_data(g, from), .bytes = from->bytes};
    to->t = (struct tensor){.name = name,
                             .type = DT_F32,
                             .n_dims = 3,
                             .dims = {stack, k, m},
                             .bytes = (uint64_t)(stack * k * m) * sizeof(float),
                             .from = &to->s};
}

/* The tensor of the same name but for its ending. */
static const struct gguf_tensor *other_of(const struct gguf *g, struct slice base, const char *end)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)(base.n < 240 ? base.n : 240), base.p, end);
    if (n >= (int)sizeof name)
        return NULL;
    return gguf_tensor_find(g, slice_of(name));
}

static pith_status read_pair(struct reading *r, const struct gguf_tensor *t, struct pith_error *err)
{
    static const char end_a[] = ".lora_a", end_b[] = ".lora_b";
    enum { END = sizeof end_a - 1 };
    struct pith_adapter *ad = r->a;
    struct slice base = {t->name.p, t->name.n < END ? 0 : t->name.n - END};
    int is_a = base.n && !memcmp(base.p + base.n, end_a, END);
    if (!is_a && (!base.n || memcmp(base.p + base.n, end_b, END) != 0))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: %.*s, wanted names that end in .lora_a and .lora_b", gguf_path(r->g),
                         (int)t->name.n, t->name.p);
    const struct gguf_tensor *other = other_of(r->g, base, is_a ? end_b : end_a);
    const struct tensor *w = tensor_named(ad->model, base);
    if (!other)
        return error_set(err, PITH_MISSING, "%s: %.*s is there, %.*s%s is missing",
                         gguf_path(r->g), (int)t->name.n, t->name.p, (int)base.n, base.p,
                         is_a ? end_b : end_a);
    if (!w && is_elsewhere(ad->model, base))
        return PITH_OK;
    if (!w)
        return error_set(err, PITH_MISSING, "%s: %.*s, and %s has no tensor %.*s", gguf_path(r->g),
                         (int)t->name.n, t->name.p, gguf_path(ad->model->gguf), (int)base.n,
                         base.p);
    pith_status st = is_a ? check_pair(r, t, other, w, err) : PITH_OK;
    if (st != PITH_OK || !is_a)
        return st;
    struct adapter_pair *p = &ad->pair[ad->n++];
    int32_t rank = (int32_t)t->dims[t->n_dims - 2];
    p->w = w;
    set_tensor(&p->a, w->name, r->g, t, tensor_stack(w), tensor_k(w), rank);
    set_tensor(&p->b, w->name, r->g, other, tensor_stack(w), rank, tensor_m(w));
    ad->rank = rank > ad->rank ? rank : ad->rank;
    uint64_t one = (p->a.t.bytes > p->b.t.bytes ? p->a.t.bytes : p->b.t.bytes);
    r->most = one > r->most ? one : r->most;
    return PITH_OK;
}

static pith_status read_pairs(struct reading *r, struct pith_error *err)
{
    uint64_t n = gguf_n_tensors(r->g);
    r->a->pair = arena_array(&r->a->arena, (size_t)n / 2 + 1, sizeof *r->a->pair);
    if (!r->a->pair)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", gguf_path(r->g));
    pith_status st = n ? PITH_OK
                       : error_set(err, PITH_MISSING, "%s has no tensors: it adapts nothing",
                                   gguf_path(r->g));
    for (uint64_t i = 0; i < n && st == PITH_OK; i++)
        st = read_pair(r, gguf_tensor_at(r->g, i), err);
    return st;
}

/* ---------------------------------------------------------------- memory */

static pith_status see_sums(void *ctx, const struct graph *g, struct pith_error *err)
{
    struct pith_adapter *ad = ctx;
    (void)err;
    for (const struct adapted *p = g->adapted; p; p = p->next)
        for (int32_t i = 0; i < ad->n; i++)
            if (ad->pair[i].w == p->w)
                ad->pair[i].on |= UINT32_C(1) << p->sum->device;
    return PITH_OK;
}

/* Deals the matrices of a device out over buffers; sizes NULL: only their number. */
static int32_t deal(struct pith_adapter *a, int d, uint64_t *sizes)
{
    struct device_limits lim;
    int32_t n = 0;
    uint64_t at = 0;
    a->model->devices[d]->backend->limits(a->model->devices[d], &lim);
    for (int32_t i = 0; i < 2 * a->n; i++) {
        struct tensor *t = i % 2 ? &a->pair[i / 2].b.t : &a->pair[i / 2].a.t;
        uint64_t bytes = size_align(t->bytes, 64);
        if (!(a->pair[i / 2].on >> d & 1))
            continue;
        at = size_align(at, lim.align);
        if (!n || (lim.slab != UINT64_MAX && at + bytes > lim.slab)) {
            n++;
            at = 0;
        }
        if (sizes) {
            t->at[t->n_at++] = (struct placement){.device = d,
                                                  .buffer = &a->buffers[d].buffer[n - 1],
                                                  .offset = at,
                                                  .bytes = bytes};
            sizes[n - 1] = at + bytes;
        }
        at += bytes;
    }
    return n;
}

static pith_status make_buffers(struct pith_adapter *a, int d, struct pith_error *err)
{
    struct weight_buffers *w = &a->buffers[d];
    struct device *dev = a->model->devices[d];
    struct mem_left left;
    int32_t n = deal(a, d, NULL);
    uint64_t need = 0;
    w->buffer = arena_array(&a->arena, (size_t)n + 1, sizeof *w->buffer);
    uint64_t *sizes = arena_array(&a->arena, (size_t)n + 1, sizeof *sizes);
    if (!w->buffer || !sizes)
        return error_set(err, PITH_NOMEM, "out of memory while placing an adapter");
    deal(a, d, sizes);
    for (int32_t i = 0; i < n; i++)
        need += sizes[i];
    dev->backend->memory(dev, &left);
    if (need > left.bytes)
        return error_set(err, PITH_NOMEM,
                         "the adapter needs %llu bytes on %s, %llu are left (limited by %s)",
                         (unsigned long long)need, dev->name, (unsigned long long)left.bytes,
                         left.by);
    for (; w->n < n; w->n++) {
        pith_status st = buffer_alloc(dev, sizes[w->n], PITH_MEM_WEIGHTS, &w->buffer[w->n], err);
        if (st != PITH_OK)
            return st;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- data */

/* [cols, rows] of each matrix [rows, cols] of the file; 0: some number is not finite. */
static int turn(const struct tensor *t, float *row, float *out)
{
    int64_t cols = tensor_m(t), rows = tensor_k(t); /* turned already */
    uint64_t bytes = dtype_row_bytes(t->from->type, cols);
    int finite = 1;
    for (int64_t i = 0; i < tensor_stack(t) * rows; i++) {
        float *to = out + i / rows * rows * cols + i % rows;
        dtypes[t->from->type].dequant(t->from->data + (uint64_t)i * bytes, row, cols);
        for (int64_t c = 0; c < cols; c++) {
            finite &= row[c] - row[c] == 0;
            to[c * rows] = row[c];
        }
    }
    return finite;
}

static pith_status fill(struct reading *r, struct tensor *t, float *row, float *stage,
                        struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (!turn(t, row, stage))
        return error_set(err, PITH_FORMAT,
                         "%s: the adapter of %s has numbers that are not finite; the file is "
                         "damaged",
                         gguf_path(r->g), t->name);
    XXH3_128bits_update(r->sum, t->name, strlen(t->name) + 1);
    XXH3_128bits_update(r->sum, t->dims, sizeof t->dims);
    XXH3_128bits_update(r->sum, stage, t->bytes);
    for (int32_t k = 0; k < t->n_at && st == PITH_OK; k++) {
        struct place to = {t->at[k].buffer, t->at[k].offset};
        st = buffer_write(to, stage, t->bytes, NULL, err);
    }
    t->from->data = NULL; /* the file is closed */
    return st;
}

static int64_t longest_row(const struct pith_adapter *a)
{
    int64_t n = 0;
    for (int32_t i = 0; i < a->n; i++) {
        n = tensor_m(&a->pair[i].a.t) > n ? tensor_m(&a->pair[i].a.t) : n;
        n = tensor_m(&a->pair[i].b.t) > n ? tensor_m(&a->pair[i].b.t) : n;
        n = tensor_k(&a->pair[i].a.t) > n ? tensor_k(&a->pair[i].a.t) : n;
    }
    return n;
}

static pith_status load(struct reading *r, struct pith_error *err)
{
    struct pith_adapter *a = r->a;
    pith_status st = PITH_OK;
    XXH3_state_t sum;
    float *stage = mem_alloc(r->most, PITH_MEM_SCRATCH);
    float *row = mem_alloc((size_t)(longest_row(a) + 64) * sizeof *row, PITH_MEM_SCRATCH);
    XXH3_128bits_reset(&sum);
    XXH3_128bits_update(&sum, &a->alpha, sizeof a->alpha);
    r->sum = &sum;
    if (!stage || !row)
        TRY(error_set(err, PITH_NOMEM, "out of memory while reading %s", gguf_path(r->g)));
    TRY(model_graphs(a->model, a->rank, see_sums, a, err));
    for (int d = 0; d < a->model->n_devices; d++)
        TRY(make_buffers(a, d, err));
    for (int32_t i = 0; i < a->n; i++) {
        TRY(fill(r, &a->pair[i].a.t, row, stage, err));
        TRY(fill(r, &a->pair[i].b.t, row, stage, err));
    }
    XXH128_hash_t h = XXH3_128bits_digest(&sum);
    a->id[0] = h.low64 | 1;
    a->id[1] = h.high64;
fail:
    mem_free(stage);
    mem_free(row);
    return st;
}

/* ---------------------------------------------------------------- open, close */

struct pith_adapter *adapter_open(struct pith_model *m, const char *path, struct pith_error *err)
{
    struct pith_adapter *a = mem_zalloc(sizeof *a, PITH_MEM_META);
    if (!a) {
        error_set(err, PITH_NOMEM, "out of memory while opening %s", path);
        return NULL;
    }
    atomic_init(&a->refs, 1);
    a->model = model_ref(m);
    struct mem_account *before = mem_account_enter(&a->account);
    arena_init(&a->arena, PITH_MEM_META);
    struct reading r = {.a = a, .g = gguf_open(path, err)};
    pith_status st = r.g ? PITH_OK : err->code;
    if (st == PITH_OK && m->params.vocab_only)
        st = error_set(err, PITH_STATE, "%s: the model was opened without its weights", path);
    if (st == PITH_OK)
        st = read_keys(&r, err);
    if (st == PITH_OK)
        st = read_pairs(&r, err);
    if (st == PITH_OK)
        st = load(&r, err);
    gguf_close(r.g);
    mem_account_leave(before);
    if (st == PITH_OK)
        return a;
    adapter_unref(a);
    return NULL;
}

struct pith_adapter *adapter_ref(struct pith_adapter *a)
{
    atomic_fetch_add(&a->refs, 1);
    return a;
}

void adapter_unref(struct pith_adapter *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) > 1)
        return;
    for (int d = 0; d < a->model->n_devices; d++)
        for (int32_t i = 0; i < a->buffers[d].n; i++)
            buffer_release(&a->buffers[d].buffer[i]);
    arena_deinit(&a->arena);
    model_unref(a->model);
    mem_free(a);
}

const struct adapter_pair *adapter_pair_of(const struct pith_adapter *a, const struct tensor *w)
{
    for (int32_t i = 0; i < a->n; i++)
        if (a->pair[i].w == w)
            return &a->pair[i];
    return NULL;
}
