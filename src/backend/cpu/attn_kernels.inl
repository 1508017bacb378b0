/* attn_kernels.inl -- attention over one span of a paged KV cache (struct attn_job of kern.h), written once over simd.h's V.
 *
 * A query vector is one head of one row. Its chains (a score per slot, an output per element) involve no other query vector, so how many
 * are worked on together never changes a bit, only how often K and V are read:
 *
 *     for each page of 64 slots
 *         for each run of rows that see the same slots [a, b) of the page     (in prefill: all rows, but on the diagonal)
 *             for each tile of up to 12 query vectors, rows x heads
 *                 scores    s[i][slot]   nh vectors x ng groups of 16 slots in registers, K loaded once for the nh
 *                 weights   p = exp(s - max), the factor c of what was summed before
 *                 values    o[i]         nh vectors x nd times 16 elements in registers, V loaded once for the nh
 *
 *     K page [d_k][64]: a row of one dimension is 4 groups of 16 slots    V page [64][d_v16]
 *
 * Slots outside [a, b) are never multiplied: their scores become -inf, their values are not read. While K is read the page's V is
 * prefetched, while V is read the next page's K; it is what keeps a decode step at the speed of memory.
 *
 * A type of K or V is a load function and a row of `types`. */

enum { ATTN_TILE = 12, ATTN_GROUPS = KERN_PAGE / V_LANES };

struct attn_tile {
    int n;          /* query vectors */
    int a, b;       /* the slots of the page they see */
    int d_k, d_v16; /* elements of a query, of an output */
    float cap;
    const float *q[ATTN_TILE];
    float *m, *l, *o; /* of the first query vector; the others follow */
    float c[V_LANES]; /* per query vector: exp(m - new m), what is summed before is worth */
    float s[ATTN_TILE][KERN_PAGE]; /* scores, then weights */
};

/* What to prefetch meanwhile: bytes from p. */
struct attn_ahead {
    const char *p;
    int64_t bytes;
};

typedef V attn_load_fn(const void *page, int64_t i); /* elements i .. i + 15 */
typedef void attn_part_fn(struct attn_tile *t, const void *page, struct attn_ahead ahead);

SIMD_FN V attn_load_f32(const void *page, int64_t i)
{
    return v_load((const float *)page + i);
}

SIMD_FN V attn_load_f16(const void *page, int64_t i)
{
    return v_load_f16((const uint16_t *)page + i);
}

/* Bytes to prefetch in each of n steps; the lines of the next step. Into the second-level cache: the first holds the page at work. */
SIMD_FN int64_t attn_step(struct attn_ahead a, int64_t n)
{
    return (a.bytes + n - 1) / n;
}

SIMD_FN const char *attn_prefetch(const char *p, int64_t step)
{
    for (int64_t i = 0; i < step; i += 64)
        __builtin_prefetch(p + i, 0, 2);
    return p + step;
}

/* Scores of query vectors h .. h+nh-1 for groups g .. g+ng-1. */
SIMD_FN void attn_score(struct attn_tile *t, attn_load_fn *load, const int nh, const int ng, int h,
                        int g, const void *page, const char **ahead, int64_t step)
{
    V acc[6][4];
    const float *q[6];
    EACH(i, nh)
        q[i] = t->q[h + i];
    EACH(i, nh)
        EACH(j, ng)
            acc[i][j] = v_set(0);
    for (int d = 0; d < t->d_k; d++) {
        V k[4];
        EACH(j, ng)
            k[j] = load(page, (int64_t)d * KERN_PAGE + (g + j) * V_LANES);
        *ahead = attn_prefetch(*ahead, step);
        EACH(i, nh) {
            V b = v_set(q[i][d]);
            EACH(j, ng)
                acc[i][j] = v_fma(k[j], b, acc[i][j]);
        }
    }
    EACH(i, nh)
        EACH(j, ng)
            v_store(&t->s[h + i][(g + j) * V_LANES], acc[i][j]);
}

/* As many query vectors as are left, nh at a time, over the groups they see, ng at a time. */
#define SCORES(nh, ng)                                                                             \
    for (; t->n - h >= (nh); h += (nh)) {                                                          \
        int64_t step = attn_step(ahead, t->d_k * (int64_t)(ATTN_GROUPS / (ng)));                   \
        for (int g = t->a / V_LANES / (ng) * (ng); g * V_LANES < t->b; g += (ng))                  \
            attn_score(t, load, nh, ng, h, g, page, &ahead.p, step);                               \
        ahead.bytes = 0;                                                                           \
    }

SIMD_FN void attn_scores(struct attn_tile *t, attn_load_fn *load, const void *page,
                         struct attn_ahead ahead)
{
    int h = 0;
    if (V_FIT >= 32) {
        if (t->n == ATTN_TILE) {
            SCORES(6, 4)
        }
        SCORES(4, 4)
        SCORES(2, 4)
        SCORES(1, 4)
    } else if (V_FIT >= 8) {
        if (t->n == ATTN_TILE) {
            SCORES(6, 1)
        }
        SCORES(4, 1)
        SCORES(2, 2)
        SCORES(1, 4)
    } else {
        SCORES(1, 1)
    }
}

/* Scores -> weights, and what a new maximum does to m, l and c. With the maximum unchanged c is exp(0), exactly 1 and no operation, or the
 * maximum is infinite and the sums are NaN either way. */
static void attn_weights(struct attn_tile *t)
{
    const V none = v_set(-__builtin_inff()), cap = v_set(t->cap);
    float max[V_LANES] = {0}, old[V_LANES] = {0};
    for (int h = 0; h < t->n; h++) {
        V x[ATTN_GROUPS];
        EACH(j, ATTN_GROUPS) {
            int first = t->a - j * V_LANES, last = t->b - j * V_LANES; /* lanes first .. last-1 */
            float *s = &t->s[h][j * V_LANES];
            if (first >= V_LANES || last <= 0) {
                x[j] = none;
            } else {
                x[j] = v_load(s);
                if (t->cap > 0)
                    x[j] = v_softcap(x[j], cap);
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
    for (int h = 0; h < t->n; h++) {
        const V m = v_set(max[h]);
        V p[ATTN_GROUPS];
        EACH(j, ATTN_GROUPS) {
            p[j] = v_exp(v_sub(v_load(&t->s[h][j * V_LANES]), m));
            v_store(&t->s[h][j * V_LANES], p[j]);
        }
        float sum = v_sum(v_add(v_add(p[0], p[1]), v_add(p[2], p[3])));
        t->l[h] = __builtin_fmaf(t->l[h], t->c[h], sum);
        t->m[h] = max[h];
    }
}

/* Output elements 16e .. 16(e+nd)-1 of query vectors h .. h+nh-1. */
SIMD_FN void attn_value(struct attn_tile *t, attn_load_fn *load, const int nh, const int nd, int h,
                        int e, const void *page, const char **ahead, int64_t step)
{
    V acc[6][16];
    float *o = t->o + (int64_t)h * t->d_v16 + e * V_LANES;
    EACH(i, nh)
        EACH(j, nd)
            acc[i][j] = v_mul(v_load(o + (int64_t)i * t->d_v16 + j * V_LANES), v_set(t->c[h + i]));
    for (int s = t->a; s < t->b; s++) {
        V v[16];
        EACH(j, nd)
            v[j] = load(page, (int64_t)s * t->d_v16 + (e + j) * V_LANES);
        *ahead = attn_prefetch(*ahead, step);
        EACH(i, nh) {
            V p = v_set(t->s[h + i][s]);
            EACH(j, nd)
                acc[i][j] = v_fma(p, v[j], acc[i][j]);
        }
    }
    EACH(i, nh)
        EACH(j, nd)
            v_store(o + (int64_t)i * t->d_v16 + j * V_LANES, acc[i][j]);
}

/* As many query vectors as are left, nh at a time; their elements 16 * `wide` at a time while that many are left, then by smaller powers
 * of two. A lone vector takes whole rows of V, so that memory is read in order. */
#define VALUES(nh, nd)                                                                             \
    for (; n - e >= (nd); e += (nd))                                                               \
        attn_value(t, load, nh, nd, h, e, page, &ahead.p, step);
#define HEADS(nh, wide)                                                                            \
    for (; t->n - h >= (nh); h += (nh)) {                                                          \
        int64_t step = attn_step(ahead, (t->b - t->a) * (int64_t)((n + (wide) - 1) / (wide)));     \
        int e = 0;                                                                                 \
        VALUES(nh, wide)                                                                           \
        if ((wide) > 8) {                                                                          \
            VALUES(nh, 8)                                                                          \
        }                                                                                          \
        if ((wide) > 4) {                                                                          \
            VALUES(nh, 4)                                                                          \
        }                                                                                          \
        if ((wide) > 2) {                                                                          \
            VALUES(nh, 2)                                                                          \
        }                                                                                          \
        VALUES(nh, 1)                                                                              \
        ahead.bytes = 0;                                                                           \
    }

SIMD_FN void attn_values(struct attn_tile *t, attn_load_fn *load, const void *page,
                         struct attn_ahead ahead)
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
        if (t->n == ATTN_TILE) {
            HEADS(6, 1)
        }
        HEADS(4, 1)
        HEADS(2, 2)
        HEADS(1, 4)
    } else {
        HEADS(1, 1)
    }
}

/* ---- types */

#define ATTN_TYPE(type)                                                                            \
    static void attn_scores_##type(struct attn_tile *t, const void *page, struct attn_ahead ahead) \
    {                                                                                              \
        attn_scores(t, attn_load_##type, page, ahead);                                             \
    }                                                                                              \
    static void attn_values_##type(struct attn_tile *t, const void *page, struct attn_ahead ahead) \
    {                                                                                              \
        attn_values(t, attn_load_##type, page, ahead);                                             \
    }
ATTN_TYPE(f32)
ATTN_TYPE(f16)

struct attn_type {
    attn_part_fn *scores, *values;
    int bytes; /* of an element */
};
static const struct attn_type attn_types[DT_COUNT] = {
    [DT_F32] = {attn_scores_f32, attn_values_f32, 4},
    [DT_F16] = {attn_scores_f16, attn_values_f16, 2},
};

/* ---- pages and rows */

/* The slots [*a, *b) of the page at slot p0 that a row of the job sees. */
SIMD_FN void attn_visible(const struct attn_job *j, int row, int p0, int *a, int *b)
{
    int hi = j->hi[row] < j->slot1 ? j->hi[row] : j->slot1;
    *a = j->lo[row] > p0 ? j->lo[row] - p0 : 0;
    *b = hi < p0 + KERN_PAGE ? hi - p0 : KERN_PAGE;
}

static const uint8_t *attn_page(const struct attn_job *j, int p0)
{
    return j->base + j->pages[p0 / KERN_PAGE] * j->page_bytes;
}

/* Rows row .. end-1, which see the slots [a, b) of the page at p0, and no others of it. */
static void attn_rows(const struct attn_job *j, int row, int end, int p0, int a, int b)
{
    const struct attn_type *kt = &attn_types[j->k_type], *vt = &attn_types[j->v_type];
    const uint8_t *page = attn_page(j, p0);
    int d_v16 = (j->d_v + 15) / 16 * 16, first = row * j->g, last = end * j->g;
    struct attn_ahead v = {(const char *)page + j->v_off, 0}, k = v;
    int next = p0 + KERN_PAGE;
    /* A single vector reads each line once and in order, which the hardware foresees better. */
    if (last - first > 1) {
        v.bytes = (int64_t)KERN_PAGE * d_v16 * vt->bytes;
        if (next < j->slot1 && next < j->hi[row]) {
            k.p = (const char *)attn_page(j, next) + j->k_off;
            k.bytes = (int64_t)KERN_PAGE * j->d_k * kt->bytes;
        }
    }
    for (int i = first; i < last; i += ATTN_TILE) {
        struct attn_tile t;
        t.n = last - i < ATTN_TILE ? last - i : ATTN_TILE;
        t.a = a;
        t.b = b;
        t.d_k = j->d_k;
        t.d_v16 = d_v16;
        t.cap = j->cap;
        for (int h = 0; h < t.n; h++)
            t.q[h] = j->q + (i + h) / j->g * j->q_ld + (i + h) % j->g * j->d_k;
        t.m = j->m + i;
        t.l = j->l + i;
        t.o = j->o + (int64_t)i * d_v16;
        kt->scores(&t, page + j->k_off, v);
        attn_weights(&t);
        vt->values(&t, page + j->v_off, k);
        v.bytes = k.bytes = 0; /* the first tile brought them */
    }
}

static void vec_attn(const struct attn_job *j)
{
    int64_t n = (int64_t)j->n_rows * j->g, d_v16 = (j->d_v + 15) / 16 * 16;
    for (int64_t i = 0; i < n; i++) {
        j->m[i] = -__builtin_inff();
        j->l[i] = 0;
    }
    for (int64_t i = 0; i < n * d_v16; i += V_LANES)
        v_store(j->o + i, v_set(0));
    for (int p0 = j->slot0; p0 < j->slot1; p0 += KERN_PAGE) {
        for (int row = 0, end; row < j->n_rows; row = end) {
            int a, b, a1, b1;
            attn_visible(j, row, p0, &a, &b);
            for (end = row + 1; end < j->n_rows; end++) {
                attn_visible(j, end, p0, &a1, &b1);
                if (a1 != a || b1 != b)
                    break;
            }
            if (a < b)
                attn_rows(j, row, end, p0, a, b);
        }
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
