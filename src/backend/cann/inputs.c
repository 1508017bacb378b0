/* inputs.c -- what operators read of a step: numbers of rows, blocks and positions, made by the
 * host and uploaded in one piece. Operators have fixed shapes, so rows are rounded up to those of a
 * bucket: padding is copies of the last row (and segment), which computes and writes once more what
 * that has computed and written. */
#include "backend/cann/cann_impl.h"

#include <math.h>
#include <string.h>
#include "graph/kv_page.h"
#include "graph/ops.h"

/* ---------------------------------------------------------------- what a plan has */

static pith_status add_shape(struct cn_job *j, const struct state *kv, enum dtype t,
                             struct pith_error *err)
{
    const struct slabs *s = j->g.p.cache[kv->group];
    int64_t row = (t == DT_F16 ? 2 : 4) * (int64_t)kv->d_k;
    if (cn_shape_of(j, kv, row) >= 0)
        return PITH_OK;
    if (s->unit % (uint64_t)(CN_BLOCK * row) || kv->k_off % (CN_BLOCK * row) ||
        s->shift < 0 || s->cap > 1 || j->n_shapes == CN_SHAPES)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: pages of %llu bytes are no rows of %lld: layers with such different "
                         "caches cannot be there together",
                         j->v->dev.name, (unsigned long long)s->unit, (long long)row);
    j->shape[j->n_shapes++] = (struct cn_shape){kv->group, kv->n_head_kv, row};
    return PITH_OK;
}

static pith_status add_set(struct cn_job *j, const struct rope_set *set, struct pith_error *err)
{
    for (int32_t i = 0; i < j->n_sets; i++)
        if (j->set[i] == set)
            return PITH_OK;
    if (j->n_sets == CN_SETS)
        return error_set(err, PITH_UNSUPPORTED, "%s: more than %d RoPE sets", j->v->dev.name,
                         CN_SETS);
    j->set[j->n_sets++] = set;
    return PITH_OK;
}

pith_status cn_find_shapes(struct cn_job *j, struct pith_error *err)
{
    const struct plan *p = j->g.p.plan;
    pith_status st = PITH_OK;
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        if (c->dst.device != j->v->dev.index)
            continue;
        if (c->op == OP_ROPE_TABLE)
            TRY(add_set(j, ((const struct rope_table_op *)c->p)->set, err));
        if (c->op == OP_ROPE)
            TRY(add_set(j, ((const struct rope_op *)c->p)->set, err));
        if (c->op != OP_CACHE_WRITE && c->op != OP_ATTN)
            continue;
        TRY(add_shape(j, c->state[0], c->state[0]->k_type, err));
        TRY(add_shape(j, c->state[0], c->state[0]->v_type, err));
    }
fail:
    return st;
}

/* ---------------------------------------------------------------- keys */

static int32_t bucket(int32_t n, int32_t most)
{
    int32_t b = 1;
    while (b < n)
        b *= 2;
    return n < 1 ? n : b < most ? b : most;
}

/* The slots that rows of a segment see: from *start on, a block's first, to before *end. */
static void seen(const struct step *s, int g, int32_t n, int32_t *start, int32_t *end)
{
    int32_t lo = INT32_MAX, hi = 0;
    for (int32_t r = step_first(s)[n]; r < step_first(s)[n + 1]; r++) {
        lo = step_lo(s, g)[r] < lo ? step_lo(s, g)[r] : lo;
        hi = step_hi(s, g)[r] > hi ? step_hi(s, g)[r] : hi;
    }
    lo = lo < hi ? lo : hi > 0 ? hi - 1 : 0;
    *start = lo / CN_BLOCK * CN_BLOCK;
    *end = hi;
}

static int32_t most_slots(const struct cn_job *j, const struct step *s)
{
    int32_t most = 1, start, end;
    for (int32_t i = 0; i < j->n_shapes; i++)
        for (int32_t n = 0; n < s->N; n++) {
            seen(s, j->shape[i].group, n, &start, &end);
            most = end - start > most ? end - start : most;
        }
    return most;
}

struct cn_key cn_key_of(const struct cn_job *j, const struct step *s)
{
    struct cn_key k = {s->T, s->R, s->N, 0, s->embd ? s->n_embd : 0, 0};
    int one = s->T == s->N && s->T <= GPU_RECORD_ROWS; /* a row of each segment */
    k.keep = !s->embd && (one || (j->g.records_all && s->N == 1));
    if (k.keep) {
        k.T = bucket(s->T, one && j->cap_N < j->cap_T ? j->cap_N : j->cap_T);
        k.R = bucket(s->R, j->cap_R);
        k.N = one ? k.T : 1;
    }
    k.S = CN_LEAST_SLOTS * bucket((most_slots(j, s) + CN_LEAST_SLOTS - 1) / CN_LEAST_SLOTS,
                                  j->cap_S / CN_LEAST_SLOTS);
    return k;
}

static uint64_t take(uint64_t *at, int64_t n, uint64_t each)
{
    uint64_t from = *at;
    *at = size_align(from + (uint64_t)n * each, CN_ALIGN);
    return from;
}

struct cn_inputs cn_lay_inputs(const struct cn_job *j, const struct cn_key *k)
{
    struct cn_inputs at = {.bytes = 0};
    at.token = take(&at.bytes, k->T, 8);
    at.out = take(&at.bytes, k->R, 8);
    for (int32_t i = 0; i < j->n_sets; i++)
        at.angle[i] = take(&at.bytes, (int64_t)k->T * (j->set[i]->n_rot / 2), 4);
    for (int32_t i = 0; i < j->n_shapes; i++) {
        const struct cn_shape *s = &j->shape[i];
        at.lo[s->group] = take(&at.bytes, k->T, 4);
        at.hi[s->group] = take(&at.bytes, k->T, 4);
        at.put[i] = take(&at.bytes, (int64_t)k->T * s->n_head_kv, 8);
        at.get[i] = take(&at.bytes, (int64_t)k->N * s->n_head_kv * (k->S / CN_BLOCK), 8);
    }
    at.embd = take(&at.bytes, (int64_t)k->T * k->n_embd, 4);
    return at;
}

/* ---------------------------------------------------------------- filling in */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void fill_rows(const struct step *s, const struct cn_key *k, const struct cn_inputs *at,
                      uint8_t *out)
{
    int64_t *token = (int64_t *)(void *)(out + at->token), *row = (void *)(out + at->out);
    for (int32_t r = 0; r < k->T; r++) {
        int32_t t = step_token(s)[least(r, s->T - 1)];
        token[r] = t < 0 ? 0 : t;
    }
    for (int32_t i = 0; i < k->R; i++)
        row[i] = step_out(s)[least(i, s->R - 1)];
    if (k->n_embd)
        memcpy(out + at->embd, step_embd(s), (size_t)k->T * (size_t)k->n_embd * sizeof(float));
}

/* Angles in double, brought into half a turn around 0 and rounded once. */
static void fill_angles(const struct step *s, const struct cn_key *k, const struct rope_set *set,
                        float *out)
{
    const double turn = 6.283185307179586476925;
    int half = set->n_rot / 2;
    for (int32_t r = 0; r < k->T; r++) {
        int32_t from = least(r, s->T - 1);
        const int32_t *axes = step_axes(s) + STEP_AXES * from;
        const int32_t pos[4] = {step_pos(s)[from], axes[0], axes[1], axes[2]};
        for (int i = 0; i < half; i++) {
            double a = pos[set->axis ? set->axis[i] : 0] * set->freq[i];
            out[r * half + i] = (float)(a - turn * floor(a / turn + 0.5));
        }
    }
}

/* Of a group: what rows see, as slots behind the start of their segment. */
static void fill_seen(const struct step *s, const struct cn_key *k, int g, int32_t *lo, int32_t *hi)
{
    int32_t start = 0, end, before = -1;
    for (int32_t r = 0; r < k->T; r++) {
        int32_t from = least(r, s->T - 1), n = step_seg(s)[from];
        if (n != before)
            seen(s, g, n, &start, &end);
        before = n;
        lo[r] = step_lo(s, g)[from] - start;
        hi[r] = step_hi(s, g)[from] - start;
    }
}

static void fill_put(const struct cn_job *j, const struct step *s, const struct cn_key *k,
                     const struct cn_shape *y, int64_t *out)
{
    int64_t rows = (int64_t)j->g.p.cache[y->group]->unit / y->row;
    for (int32_t r = 0; r < k->T; r++) {
        int32_t from = least(r, s->T - 1), slot = step_slot(s, y->group)[from];
        int32_t place = step_pages(s, y->group, step_seg(s)[from])[slot / STEP_PAGE];
        for (int32_t h = 0; h < y->n_head_kv; h++)
            *out++ = place_page(place) * rows + h * STEP_PAGE + place_slot(place, slot);
    }
}

/* The block of 16 slots that holds slot `slot` of a segment; nobody asks for slots of a quarter
 * that are not its own. */
static int64_t block_at(const int32_t *pages, int32_t slot, int64_t blocks)
{
    int32_t place = pages[slot / STEP_PAGE];
    return place_page(place) * blocks + place_slot(place, slot) / CN_BLOCK;
}

static void fill_get(const struct cn_job *j, const struct step *s, const struct cn_key *k,
                     const struct cn_shape *y, int64_t *out)
{
    int64_t blocks = (int64_t)j->g.p.cache[y->group]->unit / (y->row * CN_BLOCK);
    for (int32_t n = 0; n < k->N; n++) {
        int32_t from = least(n, s->N - 1), start, end;
        const int32_t *pages = step_pages(s, y->group, from);
        seen(s, y->group, from, &start, &end);
        for (int32_t h = 0; h < y->n_head_kv; h++)
            for (int32_t i = 0; i < k->S; i += CN_BLOCK) /* behind the end: any that is there */
                *out++ = block_at(pages, start + i < end ? start + i : start, blocks) +
                         h * (STEP_PAGE / CN_BLOCK);
    }
}

void cn_fill_inputs(const struct cn_job *j, const struct step *s, const struct cn_key *k,
                    const struct cn_inputs *at, uint8_t *out)
{
    fill_rows(s, k, at, out);
    for (int32_t i = 0; i < j->n_sets; i++)
        fill_angles(s, k, j->set[i], (float *)(void *)(out + at->angle[i]));
    for (int32_t i = 0; i < j->n_shapes; i++) {
        const struct cn_shape *y = &j->shape[i];
        fill_seen(s, k, y->group, (int32_t *)(void *)(out + at->lo[y->group]),
                  (int32_t *)(void *)(out + at->hi[y->group]));
        fill_put(j, s, k, y, (int64_t *)(void *)(out + at->put[i]));
        fill_get(j, s, k, y, (int64_t *)(void *)(out + at->get[i]));
    }
}
