/* kv_page.c -- see kv_page.h. */
#include "graph/kv_page.h"

#include <string.h>
#include "base/mem.h"
#include "graph/backend.h"
#include "graph/ops/rope.h"
#include "graph/step.h"

enum {
    PANEL = 16,                                /* slots of a panel of K blocks */
    BEYOND = STEP_PAGE * (int)sizeof(float) /* bytes behind a head that kernels read with it */
};

#define X(T) DT_##T,
const enum dtype kv_types[KV_N_TYPES] = {KV_TYPES(X)};
#undef X

int kv_type_known(enum dtype t)
{
    for (int i = 0; i < KV_N_TYPES; i++)
        if (kv_types[i] == t)
            return 1;
    return 0;
}

int64_t kv_k_bytes(enum dtype t, int64_t d_k)
{
    return (int64_t)dtype_row_bytes(t, d_k) * STEP_PAGE;
}

int64_t kv_v_bytes(enum dtype t, int64_t d_v)
{
    return (int64_t)dtype_row_bytes(t, kv_has_blocks(t) ? d_v : kv_padded(d_v)) * STEP_PAGE;
}

/* From one element of a key to the next: room for the rows of a page, one vector or all of them. */
static int64_t k_lanes(const struct state *s)
{
    return STEP_PAGE / state_every(s) <= PANEL ? PANEL : STEP_PAGE;
}

int64_t kv_lay_out(struct state *s, int64_t at)
{
    s->k_off = s->v_off = at;
    s->k_head = s->v_head = kv_v_bytes(s->k_type, s->d_k) / state_every(s);
    if (state_is(s, STATE_FLAT))
        return at + s->n_head_kv * s->k_head;
    s->k_head = kv_k_bytes(s->k_type, s->d_k) / STEP_PAGE * k_lanes(s);
    s->v_head = kv_has_v(s) ? kv_v_bytes(s->v_type, s->d_v) : 0;
    s->v_off = at + s->n_head_kv * s->k_head;
    return s->v_off + s->n_head_kv * s->v_head + (kv_has_v(s) ? 0 : BEYOND);
}

static int32_t turn_of(enum dtype t)
{
    return kv_has_blocks(t) ? dtypes[t].block : 0;
}

void kv_choose_turn(struct state *s)
{
    int turns = state_is(s, STATE_PAGED) && kv_has_v(s) && !state_is(s, STATE_CHOOSES) &&
                !state_is(s, STATE_FLAT);
    s->turn_k = turns ? turn_of(s->k_type) : 0;
    s->turn_v = turns ? turn_of(s->v_type) : 0;
}

size_t kv_row_scratch(const struct state *kv)
{
    int64_t d = kv_padded(kv->d_k > kv->d_v ? kv->d_k : kv->d_v);
    return (size_t)size_align((uint64_t)d * sizeof(float), 64);
}

/* n elements of `bytes` bytes each, from and to places that many elements apart. */
static void copy_strided(uint8_t *to, int64_t to_step, const uint8_t *from, int64_t from_step,
                         int64_t n, int32_t bytes)
{
    if (bytes == 2)
        for (int64_t i = 0; i < n; i++)
            memcpy(to + 2 * i * to_step, from + 2 * i * from_step, 2);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + 4 * i * to_step, from + 4 * i * from_step, 4);
}

/* Where a row begins in its page. */
static int64_t k_at(const struct state *kv, int head, int slot)
{
    int64_t at = kv->k_off + head * kv->k_head;
    slot /= state_every(kv);
    if (state_is(kv, STATE_FLAT))
        at += slot * (kv->k_head * state_every(kv) / STEP_PAGE);
    else if (kv_has_blocks(kv->k_type))
        at += slot / PANEL * (kv->k_head / (STEP_PAGE / PANEL));
    else
        at += slot * dtypes[kv->k_type].block_bytes;
    return at;
}

static int64_t v_at(const struct state *kv, int head, int slot)
{
    int32_t every = state_every(kv);
    return kv->v_off + head * kv->v_head + slot / every * (kv->v_head * every / STEP_PAGE);
}

void kv_put_k(const struct state *kv, uint8_t *page, int head, int slot, const void *row)
{
    const struct dtype_traits *t = &dtypes[kv->k_type];
    uint8_t *to = page + k_at(kv, head, slot);
    if (state_is(kv, STATE_FLAT))
        memcpy(to, row, dtype_row_bytes(kv->k_type, kv->d_k));
    else if (t->block > 1)
        t->pack_row(row, slot % PANEL, kv->d_k, to);
    else
        copy_strided(to, k_lanes(kv), row, 1, kv->d_k, t->block_bytes);
}

void kv_get_k(const struct state *kv, const uint8_t *page, int head, int slot, void *row)
{
    const struct dtype_traits *t = &dtypes[kv->k_type];
    const uint8_t *from = page + k_at(kv, head, slot);
    if (state_is(kv, STATE_FLAT))
        memcpy(row, from, dtype_row_bytes(kv->k_type, kv->d_k));
    else if (t->block > 1)
        t->unpack_row(from, slot % PANEL, kv->d_k, row);
    else
        copy_strided(row, 1, from, k_lanes(kv), kv->d_k, t->block_bytes);
}

void kv_put_v(const struct state *kv, uint8_t *page, int head, int slot, const void *row)
{
    if (kv_has_v(kv))
        memcpy(page + v_at(kv, head, slot), row, dtype_row_bytes(kv->v_type, kv->d_v));
}

void kv_get_v(const struct state *kv, const uint8_t *page, int head, int slot, void *row)
{
    memcpy(row, page + v_at(kv, head, slot), dtype_row_bytes(kv_v_type(kv), kv->d_v));
}

int64_t kv_canonical_k(const struct state *kv)
{
    return kv->n_head_kv * kv_k_bytes(kv->k_type, kv->d_k) / state_every(kv);
}

int64_t kv_canonical_v(const struct state *kv)
{
    return kv_has_v(kv) ? kv->n_head_kv * (int64_t)dtype_row_bytes(kv->v_type, kv->d_v) * STEP_PAGE
                        : 0;
}

void kv_get_page(const struct state *kv, const uint8_t *page, int first, int n, void *k, void *v)
{
    uint64_t k_row = dtype_row_bytes(kv->k_type, kv->d_k);
    uint64_t v_row = dtype_row_bytes(kv->v_type, kv->d_v);
    for (int i = 0; i < n / state_every(kv) * kv->n_head_kv; i++) {
        int slot = first + i / kv->n_head_kv * state_every(kv), head = i % kv->n_head_kv;
        kv_get_k(kv, page, head, slot, (uint8_t *)k + (uint64_t)i * k_row);
        if (kv_has_v(kv))
            kv_get_v(kv, page, head, slot, (uint8_t *)v + (uint64_t)i * v_row);
    }
}

void kv_put_page(const struct state *kv, uint8_t *page, int first, int n, const void *k,
                 const void *v)
{
    uint64_t k_row = dtype_row_bytes(kv->k_type, kv->d_k);
    uint64_t v_row = dtype_row_bytes(kv->v_type, kv->d_v);
    for (int i = 0; i < n / state_every(kv) * kv->n_head_kv; i++) {
        int slot = first + i / kv->n_head_kv * state_every(kv), head = i % kv->n_head_kv;
        kv_put_k(kv, page, head, slot, (const uint8_t *)k + (uint64_t)i * k_row);
        if (kv_has_v(kv))
            kv_put_v(kv, page, head, slot, (const uint8_t *)v + (uint64_t)i * v_row);
    }
}

/* Of so many bytes of rows. Blocks of a cache's types begin with their scale, some with their least
 * value behind it, as f16: these are compared as bits, several times as quickly as dtype_check. */
static int is_finite(enum dtype t, const void *rows, int64_t bytes)
{
    enum { EXPONENT = 0x7c00 };
    const uint8_t *p = rows;
    unsigned all = 0;
    if (!kv_has_blocks(t))
        return dtype_check(t, rows, bytes / dtypes[t].block_bytes) < 0;
    for (int64_t at = 0; at < bytes; at += dtypes[t].block_bytes) {
        uint16_t x[2];
        memcpy(x, p + at, sizeof x);
        x[1] = t == DT_Q4_1 || t == DT_Q5_1 ? x[1] : 0;
        all |= (x[0] & EXPONENT) + 0x400u;
        all |= (x[1] & EXPONENT) + 0x400u;
    }
    return !(all & 0x8000);
}

int kv_page_finite(const struct state *kv, const void *k, const void *v)
{
    return is_finite(kv->k_type, k, kv_canonical_k(kv)) &&
           is_finite(kv_v_type(kv), v, kv_canonical_v(kv));
}

/* ---------------------------------------------------------------- gathering */

enum { MAX_D = 4096 }; /* elements of a head, as architectures allow */

void kv_rotate(const struct state *kv, float *x, const float *angles)
{
    if (kv->turn_k)
        ref_hadamard(x, kv->d_k, kv->turn_k);
    ref_rope_head(kv->rope, x + kv->rope_first, angles);
    if (kv->turn_k)
        ref_hadamard(x, kv->d_k, kv->turn_k);
}

/* A row of K as it is cached, rotated: to numbers, turned, rounded again. */
static void rotate_row(const struct state *kv, uint8_t *row, const float *angles,
                       kv_rotate_fn rotate, const void *ctx)
{
    float x[MAX_D];
    dtypes[kv->k_type].dequant(row, x, kv->d_k);
    if (rotate)
        rotate(ctx, kv, x, angles);
    else
        kv_rotate(kv, x, angles);
    dtypes[kv->k_type].quant(x, row, kv->d_k);
}

void kv_gather(const struct state *kv, int head, const struct cache_view *view,
               const struct cache_op *op, kv_rotate_fn rotate, const void *ctx)
{
    _Alignas(8) uint8_t row[MAX_D * 4];
    float angles[MAX_D];
    const int32_t *angle_of = NULL;
    int32_t every = state_every(kv);
    uint8_t *to = view_at(view, op->page);
    for (int32_t j = 0; j < op->n; j++) {
        const struct cache_slot_from *from = &op->from[j];
        if (from->page < 0 || (op->first + j) % every != every - 1 ||
            from->slot % every != every - 1)
            continue;
        const uint8_t *page = view_in(view, from->page);
        const int32_t *d = from->delta;
        int turned = kv->rope && (d[0] || d[1] || d[2] || d[3]);
        kv_get_k(kv, page, head, from->slot, row);
        if (turned && (!angle_of || memcmp(d, angle_of, sizeof from->delta) != 0)) {
            ref_rope_angles4(kv->rope, (const double[4]){d[0], d[1], d[2], d[3]}, 1.0, angles);
            angle_of = d;
        }
        if (turned)
            rotate_row(kv, row, angles, rotate, ctx);
        kv_put_k(kv, to, head, op->first + j, row);
        if (!kv_has_v(kv))
            continue;
        kv_get_v(kv, page, head, from->slot, row);
        kv_put_v(kv, to, head, op->first + j, row);
    }
}
