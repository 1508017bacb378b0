/* attn_kernels.inl -- attention over one span of a paged KV cache (struct attn_job of kern.h),
 * written once over simd.h's V.
 *
 * A query vector is one head of one row. Its chains (a score per slot, an output per element)
 * involve no other query vector, so how many are worked on together never changes a bit, only how
 * often K and V are read:
 *
 *     for each page of 64 slots
 *         for each run of rows that see a part of the page
 *             for each tile of up to 12 query vectors, rows x heads
 *                 scores    s[i][slot]   nh vectors x ng groups of 16 slots in registers, K loaded
 *                     once for the nh
 *                 weights   p = exp(s - max), the factor c of what was summed before
 *                 values    o[i]         nh vectors x nd times 16 elements in registers, V loaded
 *                     once for the nh
 *
 *     K page [d_k][64]: a row of one dimension is 4 groups of 16 slots    V page [64][d_v16]
 *     K of block types: 4 panels of 16 slots, whose scores are matrix products of the level's own
 *         (kern.h: mm); the queries are quantised
 *     once, at the start. V of block types: rows of blocks, taken apart in registers.
 *
 * Each vector sees slots [from, to) of the page; on the diagonal of a prompt those of neighbours
 * differ. Others are never multiplied: their scores become -inf, and of their values only those
 * that all nh vectors see are taken together, the few before and behind by each vector alone.
 * While K is read the page's V is prefetched, while V is read the next page's K; it is what keeps a
 * decode step at the speed of memory.
 *
 * A latent page (kern.h) is turned by dimension once, into scratch, whatever its type is: scores
 * are those of f32, values are its rows. A list is read 64 entries at a time: where these are a
 * page as it lies, there, else gathered into scratch. So one body does all of it.
 *
 * Where many vectors read a page, V of block types becomes numbers once, in scratch: with 16
 * registers a row of it would be taken apart for every 6 of them.
 *
 * A type of K or V is a load function and its place in ATTN_NUMBERS or ATTN_BLOCKS. */

enum { ATTN_TILE = 12, ATTN_GROUPS = KERN_PAGE / V_LANES };
enum attn_bias { ATTN_PLAIN, ATTN_SLOPES, ATTN_TABLES };

struct attn_tile {
    int n;                    /* query vectors */
    int a, b;                 /* the slots of the page that any of them sees, */
    int from[ATTN_TILE], to[ATTN_TILE]; /* and each of them; none of these is empty */
    int alike;                          /* they all see [a, b) */
    int d_k, d_v16;           /* elements of a query, of an output */
    int64_t k_bytes, v_bytes; /* of the page: all dimensions, all slots */
    float cap;
    int before[ATTN_TILE];        /* from each vector's own slot to the page's first, signed */
    const float *near[ATTN_TILE]; /* the slope, or the table, of its head */
    const float *q; /* of the first; the others follow q_ld elements apart */
    int64_t q_ld;
    struct act_tile x; /* K of block types: the same in A32, and what multiplies it */
    kern_mm_fn *mm;
    int k_second, v_second; /* the next K, this V are asked for into the second-level cache */
    float *m, *l, *o; /* of the first query vector; the others follow */
    float c[V_LANES]; /* per query vector: exp(m - new m), what is summed before is worth */
    _Alignas(64) float s[ATTN_GROUPS]
                        [ATTN_TILE * V_LANES]; /* scores, then weights: 16 slots of each vector */
};

SIMD_FN float *attn_s(struct attn_tile *t, int group, int h)
{
    return t->s[group] + h * V_LANES;
}

/* What to prefetch meanwhile: bytes from p. */
struct attn_ahead {
    const char *p;
    int64_t bytes;
};

typedef V attn_load_fn(const uint8_t *row, int i); /* elements 16i .. 16i + 15 of a row */
typedef void attn_part_fn(struct attn_tile *t, const uint8_t *page, struct attn_ahead ahead);

/* Bytes of two of them. */
enum {
#define X(NAME, name, id, elements, bytes, ...) ATTN_PAIR_##NAME = 32 * (bytes) / (elements),
#include "tensor/dtypes.def"
#undef X
};

SIMD_FN V attn_load_f32(const uint8_t *row, int i)
{
    return v_load((const float *)(const void *)row + i * V_LANES);
}

SIMD_FN V attn_load_f16(const uint8_t *row, int i)
{
    return v_load_f16((const uint16_t *)(const void *)row + i * V_LANES);
}

SIMD_FN V attn_load_bf16(const uint8_t *row, int i)
{
    return v_load_bf16((const uint16_t *)(const void *)row + i * V_LANES);
}

SIMD_FN uint16_t attn_u16(const uint8_t *p)
{
    uint16_t u;
    __builtin_memcpy(&u, p, 2);
    return u;
}

SIMD_FN V attn_load_q8_0(const uint8_t *row, int i)
{
    const uint8_t *b = row + (i >> 1) * 34;
    return v_mul(v_from_b(b_load(b + 2 + 16 * (i & 1))), v_set_f16(attn_u16(b)));
}

/* Where a register holds what 16 codes stand for it is made once for a block. Its numbers are as
 * those below, made of the same factors. */
#ifdef R_LOOKS_UP
SIMD_FN V attn_by_table(const uint8_t *b, const int codes, const int high, const int minimum,
                        const int bias, const int8_t *values)
{
    static const int8_t from_0[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const V x = v_from_b(b_sub(b_load(values ? values : from_0), bias));
    const V d = v_set_f16(attn_u16(b));
    const V table = minimum ? v_fma(d, x, v_set_f16(attn_u16(b + 2))) : v_mul(d, x);
    return (V){{r_look_up(table.r[0], b_load(b + codes), high)}};
}
#endif

/* Blocks of 4 or 5 bits: [d](m)(fifth bits)[16 bytes: low nibbles first half, high nibbles second
 * half]. Of d * (w - bias), or of d * w + m, or of d * values[w]. */
SIMD_FN V attn_load_nibbles(const uint8_t *row, int i, const int fifths, const int minimum,
                            const int bias, const int8_t *values)
{
    const int at = minimum ? 4 : 2, codes = at + (fifths ? 4 : 0);
    const uint8_t *b = row + (i >> 1) * (codes + 16);
#ifdef R_LOOKS_UP
    if (!fifths)
        return attn_by_table(b, codes, i & 1, minimum, bias, values);
#endif
    B w = b_nibbles(b_load(b + codes), i & 1);
    if (fifths)
        w = b_or(w, b_fifths(attn_u16(b + at + 2 * (i & 1))));
    if (bias)
        w = b_sub(w, bias);
    if (values)
        w = b_look_up(b_load(values), w);
    V x = v_from_b(w), d = v_set_f16(attn_u16(b));
    return minimum ? v_fma(d, x, v_set_f16(attn_u16(b + 2))) : v_mul(d, x);
}

SIMD_FN V attn_load_q5_1(const uint8_t *row, int i)
{
    return attn_load_nibbles(row, i, 1, 1, 0, 0);
}

SIMD_FN V attn_load_q5_0(const uint8_t *row, int i)
{
    return attn_load_nibbles(row, i, 1, 0, 16, 0);
}

SIMD_FN V attn_load_q4_1(const uint8_t *row, int i)
{
    return attn_load_nibbles(row, i, 0, 1, 0, 0);
}

SIMD_FN V attn_load_q4_0(const uint8_t *row, int i)
{
    return attn_load_nibbles(row, i, 0, 0, 8, 0);
}

SIMD_FN V attn_load_iq4_nl(const uint8_t *row, int i)
{
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
    return attn_load_nibbles(row, i, 0, 0, 0, values);
}

/* Bytes to prefetch in each of n steps; the lines of the next step. Into the first-level cache, or
 * where the processor has that rather (kern.h) into the second. */
SIMD_FN int64_t attn_step(struct attn_ahead a, int64_t n)
{
    return (a.bytes + n - 1) / n;
}

SIMD_FN const char *attn_prefetch(const char *p, int64_t step, int second)
{
    for (int64_t i = 0; i < step; i += 64)
        if (second)
            __builtin_prefetch(p + i, 0, 2);
        else
            __builtin_prefetch(p + i);
    return p + step;
}

/* Query vector i of those at q, which lie ld apart: addresses that need three registers for six. */
SIMD_FN const float *attn_query_at(const float *q, const float *third, int64_t ld, const int i)
{
    return i < 3 || i == 4 ? q + i * ld : third + (i - 3) * ld;
}

/* Scores of query vectors h .. h+nh-1 for groups g .. g+ng-1. What is prefetched meanwhile is asked
 * for with every `part` dimensions: several, where the loop over them has no registers left, or
 * little to do beside it and the second-level cache takes so many lines at once. */
SIMD_FN void attn_score(struct attn_tile *t, attn_load_fn *load, const int nh, const int ng,
                        const int part, const int second, int h, int g, const uint8_t *page,
                        const char **ahead, int64_t step)
{
    const int64_t row = t->k_bytes / t->d_k, ld = t->q_ld;
    const uint8_t *from = page + row / ATTN_GROUPS * g;
    V acc[6][4];
    const float *q = t->q + h * ld, *third = nh > 3 ? q + 3 * ld : q;
    EACH(i, nh)
    EACH(j, ng)
    acc[i][j] = v_set(0);
    for (int64_t d = 0, end; d < t->d_k; d = end) {
        end = part == 1 || d + part < t->d_k ? d + part : t->d_k;
        *ahead = attn_prefetch(*ahead, step * (end - d), second);
        for (const float *q_end = q + (end - d); q < q_end; q++, third++, from += row) {
            V k[4];
            EACH(j, ng)
            k[j] = load(from, j);
            EACH(i, nh)
            {
                V b = v_set(*attn_query_at(q, third, ld, i));
                EACH(j, ng)
                acc[i][j] = v_fma(k[j], b, acc[i][j]);
            }
        }
    }
    EACH(i, nh)
    EACH(j, ng)
    v_store(attn_s(t, g + j, h + i), acc[i][j]);
}

/* As many query vectors as are left, nh at a time, over the groups they see, ng at a time. */
#define SCORES(nh, ng, part, second)                                                               \
    for (; t->n - h >= (nh); h += (nh)) {                                                          \
        int64_t step = attn_step(ahead, t->d_k * (int64_t)(ATTN_GROUPS / (ng)));                   \
        for (int g = t->a / V_LANES / (ng) * (ng); g * V_LANES < t->b; g += (ng))                  \
            attn_score(t, load, nh, ng, part, second, h, g, page, &ahead.p, step);                 \
        ahead.bytes = 0;                                                                           \
    }

SIMD_FN void attn_scores(struct attn_tile *t, attn_load_fn *load, const uint8_t *page,
                         struct attn_ahead ahead)
{
    const int second = t->v_second;
    int h = 0;
    if (V_FIT >= 32) {
        if (t->n == ATTN_TILE) {
            SCORES(6, 4, 1, second)
        }
        SCORES(4, 4, 1, second)
        SCORES(2, 4, 1, second)
        SCORES(1, 4, 1, second)
    } else if (V_FIT >= 8) {
        SCORES(6, 1, 8, second)
        if (second) {
            SCORES(4, 1, 8, 1)
            SCORES(2, 2, 8, 1)
        } else {
            SCORES(4, 1, 1, 0)
            SCORES(2, 2, 1, 0)
        }
        SCORES(1, 4, 1, second)
    } else {
        SCORES(1, 1, 1, second)
    }
}

/* The same of block types: one product for 16 slots and all vectors. */
static void attn_scores_blocks(struct attn_tile *t, const uint8_t *page, struct attn_ahead ahead)
{
    const int64_t panel = t->k_bytes / ATTN_GROUPS, step = attn_step(ahead, ATTN_GROUPS);
    for (int g = t->a / V_LANES; g * V_LANES < t->b; g++) {
        ahead.p = attn_prefetch(ahead.p, step, t->v_second);
        t->mm(page + g * panel, t->d_k, &t->x, t->s[g]);
    }
}

/* Scores of group j and what the distances of its slots add. */
SIMD_FN V attn_slope(const struct attn_tile *t, int h, int j, V x)
{
    static const float lanes[V_LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    V r = v_add(v_set((float)(t->before[h] + j * V_LANES)), v_load(lanes));
    return v_fma(v_set(*t->near[h]), v_neg(v_abs(r)), x);
}

SIMD_FN V attn_look_near(const struct attn_tile *t, int h, int j, V x)
{
    int r = t->before[h] + j * V_LANES;
    r = r < -KERN_NEAR ? -KERN_NEAR : r > KERN_FAR ? KERN_FAR : r;
    return v_add(x, v_load(t->near[h] + r + KERN_NEAR));
}

/* Scores -> weights, and what a new maximum does to m, l and c. With the maximum unchanged c is
 * exp(0), exactly 1 and no operation, or the maximum is infinite and the sums are NaN either way.
 */
SIMD_FN void attn_weigh(struct attn_tile *t, const enum attn_bias bias)
{
    const V none = v_set(-__builtin_inff()), cap = v_set(t->cap);
    float max[V_LANES] = {0}, old[V_LANES] = {0};
    for (int h = 0; h < t->n; h++) {
        V x[ATTN_GROUPS];
        EACH(j, ATTN_GROUPS)
        {
            int first = t->from[h] - j * V_LANES; /* lanes first .. last - 1 */
            int last = t->to[h] - j * V_LANES;
            float *s = attn_s(t, j, h);
            if (first >= V_LANES || last <= 0) {
                x[j] = none;
            } else {
                x[j] = v_load(s);
                if (t->cap > 0)
                    x[j] = v_softcap(x[j], cap);
                if (bias == ATTN_SLOPES)
                    x[j] = attn_slope(t, h, j, x[j]);
                if (bias == ATTN_TABLES)
                    x[j] = attn_look_near(t, h, j, x[j]);
                if (first > 0 || last < V_LANES)
                    x[j] = v_blend(first, none, v_blend(last, x[j], none));
            }
            v_store(s, x[j]);
        }
        float pm = v_hmax(v_max(v_max(x[0], x[1]), v_max(x[2], x[3])));
        old[h] = t->m[h];
        max[h] = old[h] > pm ? old[h] : pm;
    }
    v_store(t->c, v_exp(v_sub(v_load(old), v_load(max))));
    V sum[ATTN_TILE];
    for (int h = 0; h < t->n; h++) {
        const V m = v_set(max[h]);
        V p[ATTN_GROUPS];
        EACH(j, ATTN_GROUPS)
        {
            p[j] = v_exp(v_sub(v_load(attn_s(t, j, h)), m));
            v_store(attn_s(t, j, h), p[j]);
        }
        sum[h] = v_add(v_add(p[0], p[1]), v_add(p[2], p[3]));
    }
    for (int h = 0; h < t->n;
         h++) { /* apart: long chains of few operations, which run side by side */
        t->l[h] = __builtin_fmaf(t->l[h], t->c[h], v_sum(sum[h]));
        t->m[h] = max[h];
    }
}

static void attn_weights(struct attn_tile *t)
{
    attn_weigh(t, ATTN_PLAIN);
}

/* The same with what distances add; i: of all query vectors, the tile's first. */
static void attn_weights_near(const struct attn_job *j, struct attn_tile *t, int i, int p0)
{
    for (int h = 0; h < t->n; h++) {
        int row = (i + h) / j->g, head = (i + h) % j->g;
        t->before[h] = p0 - j->at[row];
        t->near[h] = j->slopes ? j->slopes + head : j->table + (int64_t)head * KERN_TABLE;
    }
    if (j->slopes)
        attn_weigh(t, ATTN_SLOPES);
    else
        attn_weigh(t, ATTN_TABLES);
}

/* What slots [a, b) of the page add to output elements 16e .. 16(e+nd)-1 of query vectors
 * h .. h+nh-1. pair: bytes of two vectors of a row. */
SIMD_FN void attn_value(struct attn_tile *t, attn_load_fn *load, const int pair, const int nh,
                        const int nd, int h, int e, int slot, int b, const uint8_t *page,
                        const char **ahead, int64_t step)
{
    const int64_t row = t->v_bytes / KERN_PAGE;
    const int first = nd % 2 ? e & 1 : 0; /* a constant: which half of a block a vector is */
    V acc[6][16];
    float *o = t->o + (int64_t)h * t->d_v16 + e * V_LANES;
    EACH(i, nh)
    EACH(j, nd)
    acc[i][j] = v_mul(v_load(o + (int64_t)i * t->d_v16 + j * V_LANES), v_set(t->c[h + i]));
    const uint8_t *from = page + slot * row + (e >> 1) * pair;
    for (int end; slot < b; slot = end) { /* a group of slots, whose weights lie side by side */
        end = slot / V_LANES * V_LANES + V_LANES;
        end = end < b ? end : b;
        const float *p = attn_s(t, slot / V_LANES, h) + slot % V_LANES;
        for (const float *p_end = p + (end - slot); p < p_end; p++, from += row) {
            V v[16];
            EACH(j, nd)
            v[j] = load(from, first + j);
            *ahead = attn_prefetch(*ahead, step, t->k_second);
            EACH(i, nh)
            {
                V w = v_set(p[i * V_LANES]);
                EACH(j, nd)
                acc[i][j] = v_fma(w, v[j], acc[i][j]);
            }
        }
    }
    EACH(i, nh)
    EACH(j, nd)
    v_store(o + (int64_t)i * t->d_v16 + j * V_LANES, acc[i][j]);
}

/* Slots [a, b) of the page for vector h alone. What its sums were times c is taken once. */
typedef void attn_alone_fn(struct attn_tile *t, int h, int a, int b, const uint8_t *page);
SIMD_FN void attn_value_alone(struct attn_tile *t, attn_load_fn *load, const int pair, int h, int a,
                              int b, const uint8_t *page)
{
    const char *none = (const char *)page;
    if (a >= b)
        return;
    int e = 0;
    for (; V_FIT >= 8 && e + 4 <= t->d_v16 / V_LANES; e += 4)
        attn_value(t, load, pair, 1, 4, h, e, a, b, page, &none, 0);
    for (; e < t->d_v16 / V_LANES; e++)
        attn_value(t, load, pair, 1, 1, h, e, a, b, page, &none, 0);
    t->c[h] = 1;
}

/* As many query vectors as are left, nh at a time; the slots that all of them see together, those
 * before and behind one vector after the other. Their elements 16 * `wide` at a time while that
 * many are left, then by smaller powers of two. A lone vector takes whole rows of V, so that memory
 * is read in order. */
#define VALUES(nh, nd)                                                                             \
    for (; n - e >= (nd); e += (nd))                                                               \
        attn_value(t, load, pair, nh, nd, h, e, a, b, page, &ahead.p, step);
#define HEADS(nh, wide)                                                                            \
    for (; t->n - h >= (nh); h += (nh)) {                                                          \
        int a = t->from[h], b = t->to[h], e = 0;                                                   \
        if (!t->alike)                                                                             \
            attn_together(t, h, nh, &a, &b);                                                       \
        for (int i = h; (nh) > 1 && !t->alike && i < h + (nh); i++)                                \
            alone(t, i, t->from[i], t->to[i] < a ? t->to[i] : a, page);                            \
        if (a < b) {                                                                               \
            int64_t step = attn_step(ahead, (b - a) * (int64_t)((n + (wide)-1) / (wide)));         \
            VALUES(nh, wide)                                                                       \
            if ((wide) > 8) {                                                                      \
                VALUES(nh, 8)                                                                      \
            }                                                                                      \
            if ((wide) > 4) {                                                                      \
                VALUES(nh, 4)                                                                      \
            }                                                                                      \
            if ((wide) > 2) {                                                                      \
                VALUES(nh, 2)                                                                      \
            }                                                                                      \
            VALUES(nh, 1)                                                                          \
        }                                                                                          \
        for (int i = h; (nh) > 1 && !t->alike && i < h + (nh); i++) {                              \
            t->c[i] = a < b ? 1 : t->c[i];                                                         \
            alone(t, i, t->from[i] > b ? t->from[i] : b, t->to[i], page);                          \
        }                                                                                          \
        ahead.bytes = 0;                                                                           \
    }

/* The slots [*a, *b) that vectors h .. h + nh - 1 all see; none: *b is *a. */
SIMD_FN void attn_together(const struct attn_tile *t, int h, const int nh, int *a, int *b)
{
    for (int i = h + 1; i < h + nh; i++) {
        *a = t->from[i] > *a ? t->from[i] : *a;
        *b = t->to[i] < *b ? t->to[i] : *b;
    }
    *b = *b > *a ? *b : *a;
}

SIMD_FN void attn_values(struct attn_tile *t, attn_load_fn *load, const int pair,
                         attn_alone_fn *alone, const uint8_t *page, struct attn_ahead ahead)
{
    const int n = t->d_v16 / V_LANES;
    int h = 0;
    if (V_FIT >= 32) {
        if (t->n == ATTN_TILE) {
            HEADS(6, 4)
        }
        HEADS(4, 4)
        HEADS(2, 4)
        HEADS(1, 16)
    } else if (V_FIT >= 8) {
        HEADS(6, 1)
        HEADS(4, 1)
        HEADS(2, 2)
        HEADS(1, 4)
    } else {
        HEADS(1, 1)
    }
}

/* ---- latent pages: rows become [dimension][64], numbers f32 */

/* 16 rows of 16 numbers: each round puts row i beside row i + 8; after four, all is turned. */
SIMD_FN void attn_turn_square(float *x, float *y)
{
    EACH(round, 4)
    {
        float *from = round % 2 ? y : x, *to = round % 2 ? x : y;
        EACH(i, 8)
        v_store_pairs(to + 32 * i, v_load(from + 16 * i), v_load(from + 16 * (i + 8)));
    }
}

/* Groups first .. last - 1 of a page's slots. */
SIMD_FN void attn_turn(const struct attn_job *j, attn_load_fn *load, const uint8_t *rows, int first,
                       int last, float *out)
{
    _Alignas(64) float x[V_LANES * V_LANES], y[V_LANES * V_LANES];
    const int64_t row = j->k_bytes / KERN_PAGE;
    for (int g = first; g < last; g++)
        for (int e = 0; e < (j->d_k + V_LANES - 1) / V_LANES; e += 2)
            EACH(half, 2)
            {
                if ((e + half) * V_LANES >= j->d_k)
                    break;
                for (int i = 0; i < V_LANES; i++)
                    v_store(x + i * V_LANES, load(rows + (g * V_LANES + i) * row, e + half));
                attn_turn_square(x, y);
                float *to = out + (e + half) * V_LANES * KERN_PAGE + g * V_LANES;
                for (int i = 0; i < V_LANES; i++)
                    v_store(to + i * KERN_PAGE, v_load(x + i * V_LANES));
            }
}

/* ---- V of block types as numbers, [64][16 n] */

SIMD_FN void attn_number(attn_load_fn *load, const uint8_t *rows, int64_t row, int first, int last,
                         int n, float *out)
{
    for (int i = first; i < last; i++)
        for (int e = 0; e < n; e += 2)
            EACH(half, 2)
            v_store(out + (i * n + e + half) * V_LANES, load(rows + i * row, e + half));
}

/* ---- types */

#define ATTN_SCORES(type, TYPE)                                                                    \
    static void attn_scores_##type(struct attn_tile *t, const uint8_t *page, struct attn_ahead a)  \
    {                                                                                              \
        attn_scores(t, attn_load_##type, page, a);                                                 \
    }
#define ATTN_VALUES(type, TYPE)                                                                    \
    static __attribute__((noinline)) void attn_alone_##type(struct attn_tile *t, int h, int a,     \
                                                            int b, const uint8_t *page)            \
    {                                                                                              \
        attn_value_alone(t, attn_load_##type, ATTN_PAIR_##TYPE, h, a, b, page);                    \
    }                                                                                              \
    static void attn_values_##type(struct attn_tile *t, const uint8_t *page, struct attn_ahead a)  \
    {                                                                                              \
        attn_values(t, attn_load_##type, ATTN_PAIR_##TYPE, attn_alone_##type, page, a);            \
    }
#define ATTN_NUMBER(type, TYPE)                                                                    \
    static void attn_number_##type(const uint8_t *rows, int64_t row, int first, int last, int n,   \
                                   float *out)                                                     \
    {                                                                                              \
        attn_number(attn_load_##type, rows, row, first, last, n, out);                             \
    }
#define ATTN_TURN(type, TYPE)                                                                      \
    static void attn_turn_##type(const struct attn_job *j, const uint8_t *rows, int first,         \
                                 int last, float *out)                                             \
    {                                                                                              \
        attn_turn(j, attn_load_##type, rows, first, last, out);                                    \
    }
#define ATTN_NUMBERS(X) X(f32, F32) X(f16, F16) X(bf16, BF16)
#define ATTN_BLOCKS(X)                                                                             \
    X(q8_0, Q8_0) X(q5_1, Q5_1) X(q5_0, Q5_0) X(q4_1, Q4_1) X(q4_0, Q4_0) X(iq4_nl, IQ4_NL)
ATTN_NUMBERS(ATTN_SCORES)
ATTN_NUMBERS(ATTN_VALUES)
ATTN_BLOCKS(ATTN_VALUES)
ATTN_BLOCKS(ATTN_NUMBER)
ATTN_NUMBERS(ATTN_TURN)
ATTN_BLOCKS(ATTN_TURN)

struct attn_type {
    attn_part_fn *scores, *values;
    void (*turn)(const struct attn_job *j, const uint8_t *rows, int first, int last, float *out);
    /* Rows first .. last - 1 as n vectors of numbers each; block types. */
    void (*number)(const uint8_t *rows, int64_t row, int first, int last, int n, float *out);
};
#define ATTN_NUMBERS_ROW(type, TYPE)                                                               \
    [DT_##TYPE] = {attn_scores_##type, attn_values_##type, attn_turn_##type, NULL},
#define ATTN_BLOCKS_ROW(type, TYPE)                                                                \
    [DT_##TYPE] = {attn_scores_blocks, attn_values_##type, attn_turn_##type, attn_number_##type},
static const struct attn_type attn_types[DT_COUNT] = {ATTN_NUMBERS(ATTN_NUMBERS_ROW)
                                                          ATTN_BLOCKS(ATTN_BLOCKS_ROW)};

/* ---- queries: a tile of them side by side; for K of block types in A32, in tiles of ATTN_TILE
 * vectors one after the other, and room for one tile behind them */

/* Tile of n vectors, the first being vector `at` of all. */
SIMD_FN struct act_out attn_a32(const struct attn_job *j, int64_t at, int n)
{
    const int64_t n_vec = (int64_t)j->n_rows * j->g + ACT_TILE, d = j->d_k;
    int8_t *q = j->scratch;
    float *scale = (float *)(void *)(q + n_vec * d);
    int32_t *sum = (int32_t *)(void *)(scale + n_vec * (d / 32));
    return (struct act_out){
        .nc = n, .q = q + at * d, .d = scale + at * (d / 32), .s32 = sum + at * (d / 32)};
}

/* Of those, the one that begins with vector 12 i. */
SIMD_FN struct act_out attn_a32_tile(const struct attn_job *j, int i)
{
    const int n_vec = j->n_rows * j->g, left = n_vec - i * ATTN_TILE;
    return attn_a32(j, (int64_t)i * ATTN_TILE, left < ATTN_TILE ? left : ATTN_TILE);
}

static const float *attn_query(const struct attn_job *j, int i)
{
    return j->q + i / j->g * j->q_ld + i % j->g * j->d_k;
}

static void attn_quantise(const struct kern *k, const struct attn_job *j)
{
    for (int i = 0; i < j->n_rows * j->g; i++) {
        struct act_out t = attn_a32_tile(j, i / ATTN_TILE);
        k->quant_a32(attn_query(j, i), j->d_k, t.q, t.d, t.s32, t.nc, i % ATTN_TILE);
    }
}

/* Vectors first .. first + n - 1 as a tile: one of those made, or gathered from two. */
static struct act_tile attn_gather(const struct attn_job *j, int first, int n)
{
    struct act_out from = attn_a32_tile(j, first / ATTN_TILE);
    if (first % ATTN_TILE == 0 && from.nc == n)
        return act_read(&from);
    struct act_out to = attn_a32(j, (int64_t)j->n_rows * j->g, n);
    for (int i = 0; i < n; i++) {
        int c = (first + i) % ATTN_TILE;
        from = attn_a32_tile(j, (first + i) / ATTN_TILE);
        for (int b = 0; b < j->d_k / 32; b++) {
            int at = b * n + i, of = b * from.nc + c;
            __builtin_memcpy(to.q + at * 32, from.q + of * 32, 32);
            to.d[at] = from.d[of];
            to.s32[at] = from.s32[of];
        }
    }
    return act_read(&to);
}

/* ---- pages and rows */

/* The slots [*a, *b) of the page at slot p0 that a row of the job sees. */
SIMD_FN void attn_visible(const struct attn_job *j, int row, int p0, int *a, int *b)
{
    int hi = j->hi[row] < j->slot1 ? j->hi[row] : j->slot1;
    *a = j->lo[row] > p0 ? j->lo[row] - p0 : 0;
    *b = hi < p0 + KERN_PAGE ? hi - p0 : KERN_PAGE;
}

/* Where the page at slot p0 lies in the tail. */
SIMD_FN const uint8_t *attn_tail(const struct attn_job *j, int p0)
{
    return j->tail + (p0 - j->tail_from) / KERN_PAGE * (j->k_bytes + j->v_bytes);
}

/* K and V of the page at slot p0: where its first slot lies. */
static const uint8_t *attn_k(const struct attn_job *j, int p0)
{
    if (j->tail && p0 >= j->tail_from)
        return attn_tail(j, p0);
    int place = j->pages[p0 / KERN_PAGE];
    int by_slot = j->latent || attn_types[j->k_type].scores == attn_scores_blocks;
    int64_t row = by_slot ? j->k_bytes : j->k_bytes / j->d_k;
    return j->base + place / ATTN_GROUPS * j->page_bytes + j->k_off +
           place % ATTN_GROUPS * (row / ATTN_GROUPS);
}

static const uint8_t *attn_v(const struct attn_job *j, int p0)
{
    if (j->tail && p0 >= j->tail_from)
        return attn_tail(j, p0) + j->k_bytes;
    int place = j->pages[p0 / KERN_PAGE];
    return j->base + place / ATTN_GROUPS * j->page_bytes + j->v_off +
           place % ATTN_GROUPS * (j->v_bytes / ATTN_GROUPS);
}

/* Touches what a later page takes of the address space. Pages lie a whole model's K and V apart, so
 * each is a walk through the tables of the processor, which a prefetch of its lines would wait for.
 */
static void attn_look_up(const struct attn_job *j, int row, int p0)
{
    if (p0 >= j->hi[row])
        return;
    for (int64_t i = 0; i < j->k_bytes; i += 4096)
        __builtin_prefetch(attn_k(j, p0) + i);
    for (int64_t i = 0; i < j->v_bytes; i += 4096)
        __builtin_prefetch(attn_v(j, p0) + i);
}

/* A page as it is worked on: where K and V of its first slot lie, what reads them, and what to
 * bring meanwhile. */
struct attn_page {
    const uint8_t *k, *v;
    int64_t k_bytes, v_bytes;
    attn_part_fn *scores, *values;
    struct attn_ahead with_k, with_v;
    int p0;
    int all; /* that many first slots are what all rows see; 0: each has its own */
};

/* The slots that the tile's vectors see, the first being vector i of all. */
static void attn_ranges(const struct attn_job *j, const struct attn_page *page, int i,
                        struct attn_tile *t)
{
    int row = i / j->g, head = i % j->g, from = 0, to = page->all;
    t->a = KERN_PAGE;
    t->b = 0;
    t->alike = 1;
    for (int h = 0; h < t->n; h++) {
        if (!page->all && (h == 0 || head == 0))
            attn_visible(j, row, page->p0, &from, &to);
        t->from[h] = from;
        t->to[h] = to;
        t->alike &= from == t->from[0] && to == t->to[0];
        t->a = from < t->a ? from : t->a;
        t->b = to > t->b ? to : t->b;
        head = head + 1 < j->g ? head + 1 : 0;
        row += head == 0;
    }
}

/* Its queries: as they lie where all are equally far apart, else in scratch. */
static void attn_queries(const struct attn_job *j, int i, struct attn_tile *t)
{
    t->q = attn_query(j, i);
    t->q_ld = j->d_k;
    if (i % j->g + t->n <= j->g || j->q_ld == (int64_t)j->g * j->d_k)
        return;
    float *to = j->scratch;
    for (int h = 0; h < t->n; h++)
        __builtin_memcpy(to + h * t->q_ld, attn_query(j, i + h), (size_t)j->d_k * sizeof *to);
    t->q = to;
}

/* Rows row .. end-1, each of which sees a part of the page. */
static void attn_rows(const struct kern *kern, const struct attn_job *j, int row, int end,
                      const struct attn_page *page)
{
    int d_v16 = (j->d_v + 15) / 16 * 16, first = row * j->g, last = end * j->g;
    struct attn_ahead with_k = page->with_k, with_v = page->with_v;
    for (int i = first; i < last; i += ATTN_TILE) {
        struct attn_tile t;
        t.n = last - i < ATTN_TILE ? last - i : ATTN_TILE;
        t.d_k = j->d_k;
        t.d_v16 = d_v16;
        t.k_bytes = page->k_bytes;
        t.v_bytes = page->v_bytes;
        t.cap = j->cap;
        attn_ranges(j, page, i, &t);
        /* What the two ask for by turns wants one level, what matrix products read wants the first;
         * a lone vector goes on at the pace of memory. Pages of a prompt are near already. */
        const int second = kern->ahead_second && last - first <= ATTN_TILE;
        t.k_second = second && t.n > 1 && page->scores != attn_scores_blocks;
        t.v_second = second && (t.n > 1 || page->scores == attn_scores_blocks);
        if (page->scores == attn_scores_blocks) {
            t.mm = kern->mm[j->k_type];
            t.x = attn_gather(j, i, t.n);
        } else {
            attn_queries(j, i, &t);
        }
        t.m = j->m + i;
        t.l = j->l + i;
        t.o = j->o + (int64_t)i * d_v16;
        page->scores(&t, page->k, with_k);
        if (j->slopes || j->table)
            attn_weights_near(j, &t, i, page->p0);
        else
            attn_weights(&t);
        page->values(&t, page->v, with_v);
        with_k.bytes = with_v.bytes = 0; /* the first tile brought them */
    }
}

/* K and V as they lie. */
static struct attn_page attn_as_it_lies(const struct attn_job *j, const uint8_t *k,
                                        const uint8_t *v)
{
    return (struct attn_page){.k = k,
                              .v = v,
                              .k_bytes = j->k_bytes,
                              .v_bytes = j->v_bytes,
                              .scores = attn_types[j->k_type].scores,
                              .values = attn_types[j->v_type].values,
                              .with_k = {(const char *)v, j->v_bytes},
                              .with_v = {(const char *)v, 0}};
}

static uint8_t *attn_room_of(const struct attn_job *j, enum kern_attn_part part)
{
    return (uint8_t *)j->scratch + kern_attn_at(j, (int64_t)j->n_rows * j->g, part);
}

/* Slots a .. b - 1 of latent rows: K turned, into scratch, V as it lies. */
static struct attn_page attn_turned(const struct attn_job *j, const uint8_t *rows, int a, int b)
{
    float *k = (float *)(void *)attn_room_of(j, KERN_ATTN_TURNED);
    attn_types[j->k_type].turn(j, rows, a / V_LANES, (b + V_LANES - 1) / V_LANES, k);
    return (struct attn_page){.k = (const uint8_t *)k,
                              .v = rows,
                              .k_bytes = (int64_t)j->d_k * KERN_PAGE * (int64_t)sizeof(float),
                              .v_bytes = j->k_bytes,
                              .scores = attn_scores_f32,
                              .values = attn_types[j->k_type].values,
                              .with_k = {(const char *)rows, 0},
                              .with_v = {(const char *)rows, 0}};
}

/* Where registers are few and vectors many: V of slots a .. b - 1 as numbers, into scratch. */
static void attn_numbered(const struct attn_job *j, struct attn_page *page, int a, int b)
{
    const struct attn_type *t = &attn_types[j->latent ? j->k_type : j->v_type];
    if (V_FIT >= 32 || !t->number || j->n_rows * j->g < ATTN_TILE)
        return;
    const int n = (j->d_v + 15) / 16;
    float *v = (float *)(void *)attn_room_of(j, KERN_ATTN_NUMBERS);
    t->number(page->v, page->v_bytes / KERN_PAGE, a, b, n, v);
    page->v = (const uint8_t *)v;
    page->v_bytes = (int64_t)n * V_LANES * KERN_PAGE * (int64_t)sizeof(float);
    page->values = attn_values_f32;
    page->with_k.bytes = 0;
}

/* What any of the rows sees of the page at slot p0. */
static void attn_seen(const struct attn_job *j, int p0, int *from, int *to)
{
    *from = KERN_PAGE;
    *to = 0;
    for (int row = 0, a, b; row < j->n_rows; row++) {
        attn_visible(j, row, p0, &a, &b);
        if (a < b) {
            *from = a < *from ? a : *from;
            *to = b > *to ? b : *to;
        }
    }
}

/* The page at slot p0; whole: all rows see all of it. */
static void attn_slots(const struct kern *kern, const struct attn_job *j, int p0, int whole)
{
    int from = 0, to = KERN_PAGE, a, b, next = p0 + KERN_PAGE;
    if (!whole)
        attn_seen(j, p0, &from, &to);
    if (from >= to)
        return;
    struct attn_page page = j->latent ? attn_turned(j, attn_k(j, p0), from, to)
                                      : attn_as_it_lies(j, attn_k(j, p0), attn_v(j, p0));
    attn_numbered(j, &page, from, to);
    page.p0 = p0;
    page.all = whole ? KERN_PAGE : 0;
    for (int row = 0, end; row < j->n_rows; row = end + 1) { /* row `end` sees nothing of it */
        for (end = whole ? j->n_rows : row; end < j->n_rows; end++) {
            attn_visible(j, end, p0, &a, &b);
            if (a >= b)
                break;
        }
        if (end == row)
            continue;
        page.with_v = (struct attn_ahead){(const char *)page.v, 0};
        if (next < j->hi[end - 1])
            page.with_v = (struct attn_ahead){(const char *)attn_k(j, next), j->k_bytes};
        attn_look_up(j, end - 1, next + KERN_PAGE);
        attn_rows(kern, j, row, end, &page);
    }
}

/* ---- slots of a list: entries first .. first + n - 1, side by side */

/* The page's first byte of entry i, and which row of the page it is. */
static const uint8_t *attn_entry(const struct attn_job *j, int i, int64_t *at)
{
    int slot = j->list ? j->list[i] : i * j->ratio + j->ratio - 1;
    int place = j->pages[slot / KERN_PAGE];
    *at = (place % ATTN_GROUPS * V_LANES + slot % KERN_PAGE) / (j->every > 1 ? j->every : 1);
    return j->base + place / ATTN_GROUPS * j->page_bytes;
}

static void attn_gather_rows(const struct attn_job *j, int first, int n, int64_t off,
                             int64_t bytes, uint8_t *to)
{
    const int64_t row = bytes / KERN_PAGE;
    for (int i = 0; i < n; i++) {
        int64_t at;
        const uint8_t *page = attn_entry(j, first + i, &at);
        __builtin_memcpy(to + i * row, page + off + at * row, (size_t)row);
    }
}

static void attn_gather_k(const struct attn_job *j, int first, int n, uint8_t *to)
{
    const int64_t row = j->k_bytes / j->d_k, size = row / KERN_PAGE;
    for (int i = 0; i < n; i++) {
        int64_t at;
        const uint8_t *from = attn_entry(j, first + i, &at) + j->k_off;
        from += at * size;
        uint8_t *out = to + i * size;
        if (size == 2)
            for (int64_t d = 0; d < j->d_k; d++)
                __builtin_memcpy(out + d * row, from + d * row, 2);
        else
            for (int64_t d = 0; d < j->d_k; d++)
                __builtin_memcpy(out + d * row, from + d * row, 4);
    }
}

/* In the place of a page: a page as it lies, or what is gathered, behind K turned. */
static void attn_listed(const struct kern *kern, const struct attn_job *j, int first, int n)
{
    const int slot = j->list ? j->list[first] : -1;
    int whole = j->ratio <= 1 && slot % KERN_PAGE == 0 && j->list[first + n - 1] == slot + n - 1;
    uint8_t *to = attn_room_of(j, KERN_ATTN_LISTED);
    const uint8_t *k = to, *v = to + j->k_bytes;
    if (whole) {
        k = attn_k(j, slot);
        v = attn_v(j, slot);
    } else if (j->latent) {
        attn_gather_rows(j, first, n, j->k_off, j->k_bytes, to);
    } else {
        attn_gather_k(j, first, n, to);
        attn_gather_rows(j, first, n, j->v_off, j->v_bytes, to + j->k_bytes);
    }
    struct attn_page page = j->latent ? attn_turned(j, k, 0, n) : attn_as_it_lies(j, k, v);
    attn_numbered(j, &page, 0, n);
    page.all = n;
    attn_rows(kern, j, 0, 1, &page);
}

static void vec_attn(const struct kern *kern, const struct attn_job *j)
{
    if (!j->latent && attn_types[j->k_type].scores == attn_scores_blocks)
        attn_quantise(kern, j);
    int64_t n = (int64_t)j->n_rows * j->g, d_v16 = (j->d_v + 15) / 16 * 16;
    for (int64_t i = 0; i < n; i++) {
        j->m[i] = -__builtin_inff();
        j->l[i] = 0;
    }
    for (int64_t i = 0; i < n * d_v16; i += V_LANES)
        v_store(j->o + i, v_set(0));
    const int listed = j->list || j->ratio > 1;
    for (int p0 = j->slot0; listed && p0 < j->slot1; p0 += KERN_PAGE)
        attn_listed(kern, j, p0, j->slot1 - p0 < KERN_PAGE ? j->slot1 - p0 : KERN_PAGE);
    if (listed)
        return;
    int from = j->slot1, to = j->slot0; /* what any of the rows sees */
    int lo = j->slot0, hi = j->slot1;   /* and what all of them do */
    for (int row = 0; row < j->n_rows; row++) {
        from = j->lo[row] < from ? j->lo[row] : from;
        to = j->hi[row] > to ? j->hi[row] : to;
        lo = j->lo[row] > lo ? j->lo[row] : lo;
        hi = j->hi[row] < hi ? j->hi[row] : hi;
    }
    from = from > j->slot0 ? from / KERN_PAGE * KERN_PAGE : j->slot0;
    to = to < j->slot1 ? to : j->slot1;
    for (int p0 = from; p0 < to; p0 += KERN_PAGE)
        attn_slots(kern, j, p0, lo <= p0 && hi >= p0 + KERN_PAGE);
}

/* ---- scores of a sparse indexer */

SIMD_FN void attn_index_scores(struct attn_tile *t, const struct index_job *j)
{
    struct attn_ahead none = {(const char *)j->k, 0};
    attn_types[j->type].scores(t, j->k, none);
}

static void vec_index(const struct index_job *j)
{
    V sum[ATTN_GROUPS];
    EACH(g, ATTN_GROUPS)
    sum[g] = v_set(0);
    for (int i = 0; i < j->n_head; i += ATTN_TILE) {
        struct attn_tile t;
        t.n = j->n_head - i < ATTN_TILE ? j->n_head - i : ATTN_TILE;
        t.a = j->a;
        t.b = j->b;
        t.d_k = j->d;
        t.k_bytes = j->k_bytes;
        t.v_second = 0;
        t.q = j->q + (int64_t)i * j->d;
        t.q_ld = j->d;
        attn_index_scores(&t, j);
        for (int h = 0; h < t.n; h++)
            for (int g = t.a / V_LANES; g * V_LANES < t.b; g++) {
                V s = v_load(attn_s(&t, g, h)), none = v_set(0);
                if (j->weights)
                    sum[g] = v_fma(v_set(j->weights[i + h]), v_less(none, s, s, none), sum[g]);
                else if (j->positive)
                    sum[g] = v_add(sum[g], v_less(none, s, s, none));
                else
                    sum[g] = s;
            }
    }
    const V none = v_set(-__builtin_inff());
    EACH(g, ATTN_GROUPS)
    {
        int first = j->a - g * V_LANES, last = j->b - g * V_LANES;
        if (first >= V_LANES || last <= 0)
            sum[g] = none;
        else if (first > 0 || last < V_LANES)
            sum[g] = v_blend(first, none, v_blend(last, sum[g], none));
        v_store(j->s + g * V_LANES, sum[g]);
    }
}

static void vec_attn_merge(float *M, float *L, float *O, const float *m, const float *l,
                           const float *o, int d)
{
    if (*l == 0)
        return;
    if (*L == 0) { /* the first partial is copied */
        *M = *m;
        *L = *l;
        for (int i = 0; i < d; i++)
            O[i] = o[i];
        return;
    }
    float e[V_LANES] = {0}, max = *M > *m ? *M : *m;
    e[0] = *M - max;
    e[1] = *m - max;
    v_store(e, v_exp(v_load(e)));
    const V a = v_set(e[0]), b = v_set(e[1]);
    *M = max;
    *L = __builtin_fmaf(*L, e[0], *l * e[1]);
    for (int i = 0; i < d; i += V_LANES) {
        V t = v_mul(v_load_n(o + i, d - i), b);
        v_store_n(O + i, v_fma(v_load_n(O + i, d - i), a, t), d - i);
    }
}
