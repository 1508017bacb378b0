/* attn.cu -- attention of one row, query head and span of slots (ATTN of graph/ops/attention.c): a
 * thread for each slot of a page while scores are made, then for each number of V; and the partials
 * of a row and head as one result (ATTN_MERGE).
 *
 * A kernel for each count of numbers that a thread has of V: attn_CHUNKS, attn_merge_CHUNKS. spec:
 * pages.cuh; [3]: cap, slopes, table; [4]: chunks; [5]: d_k. p[10]: query heads; p[11]: soft-cap;
 * p[12]: partials of a row: spans are blocks of their own, or 1, and one goes over all of them from
 * left to right, which gives the same bits. bias: slopes, or what distances add. */
#include "pages.cuh"

enum { SPAN = 1024, NEAR = 144, MOST_D_K = 2048, CAP = 1, SLOPES = 2, TABLE = 4 };

/* Partials of one softmax: thread t has the outputs t, t + 64, .. of a head. */
template <int CHUNKS> struct Partial {
    float m, l, o[CHUNKS];
};

template <int CHUNKS> FN Partial<CHUNKS> no_part()
{
    Partial<CHUNKS> p;
    p.m = none();
    p.l = 0;
    UNROLL for (int c = 0; c < CHUNKS; c++)
        p.o[c] = 0;
    return p;
}

template <int CHUNKS> FN void merge_part(Partial<CHUNKS> &all, const Partial<CHUNKS> &one)
{
    if (one.l == 0)
        return;
    if (all.l == 0) {
        all = one;
        return;
    }
    float top = all.m > one.m ? all.m : one.m;
    float a = exact_exp(all.m - top), b = exact_exp(one.m - top);
    all.l = fmaf(all.l, a, one.l * b);
    UNROLL for (int c = 0; c < CHUNKS; c++)
        all.o[c] = fmaf(all.o[c], a, one.o[c] * b);
    all.m = top;
}

FN float score_of(const Args &arg, const float *query, uint64_t k, uint32_t step)
{
    float sum = 0;
    uint32_t n = (uint32_t)arg.spec[5];
    if (k_type(arg) > T_BF16) {
        for (uint32_t d = 0; d < n; d += 8) {
            Eight w = decode32(k_type(arg), k, d / 8);
            UNROLL for (int j = 0; j < 8; j++)
                sum = fmaf(w.v[j], query[d + j], sum);
        }
    } else {
        for (uint32_t d = 0; d < n; d++)
            sum = fmaf(load_number(k_type(arg), k + (uint64_t)d * step), query[d], sum);
    }
    return arg.spec[3] & CAP ? arg_f(arg, 11) * exact_tanh(sum / arg_f(arg, 11)) : sum;
}

FN float score(const Args &arg, const float *query, uint64_t page, uint32_t head, uint32_t at)
{
    return score_of(arg, query, k_place(arg, page, head, at), k_step(arg));
}

/* Number d of a slot's V. */
FN float value_of(const Args &arg, uint64_t row, uint32_t d)
{
    int type = v_type(arg);
    if (type <= T_BF16)
        return load_number(type, row + (uint64_t)d * number_bytes(type));
    Eight w = decode32(type, row, d / 8);
    float x = 0;
    UNROLL for (uint32_t j = 0; j < 8; j++)
        x = d % 8 == j ? w.v[j] : x;
    return x;
}

FN float near(const Args &arg, float s, uint32_t h, int slot, int own)
{
    int r = slot - own;
    if (arg.spec[3] & SLOPES)
        return fmaf(f32_at(arg.bias)[h], -(float)(r < 0 ? -r : r), s);
    if (arg.spec[3] & TABLE)
        return s + f32_at(arg.bias)[(int)h * 2 * NEAR + NEAR + bound(r, -NEAR, NEAR - 1)];
    return s;
}

/* The step's row, the head, what else a span is made of. */
struct Seen {
    uint32_t h, head, seg;
    int own;
};

/* The scores of 64 slots, each thread's own, become weights of what p has then. */
template <int CHUNKS> FN void take_scores(Partial<CHUNKS> &p, float s, float *weight)
{
    float most = tree_max(s), m = most > p.m ? most : p.m;
    s = exact_exp(s - m);
    float sum = tree_sum(s);
    weight[threadIdx.x] = s;
    if (m != p.m) {
        float k = exact_exp(p.m - m);
        p.l = fmaf(p.l, k, sum);
        UNROLL for (int c = 0; c < CHUNKS; c++)
            p.o[c] = p.o[c] * k;
        p.m = m;
    } else {
        p.l = p.l + sum;
    }
    __syncthreads();
}

template <int CHUNKS>
FN Partial<CHUNKS> span(const Args &arg, const Seen &row, const float *query, float *weight, int lo,
                        int hi)
{
    uint32_t t = threadIdx.x, at;
    Partial<CHUNKS> p = no_part<CHUNKS>();
    for (int p0 = lo / PAGE * PAGE; p0 < hi; p0 += PAGE) {
        int j0 = lo > p0 ? lo - p0 : 0, j1 = hi - p0 < PAGE ? hi - p0 : PAGE;
        uint64_t page = page_of(arg, row.seg, (uint32_t)p0, &at); /* at: of the first slot */
        float s = none();
        if ((int)t >= j0 && (int)t < j1)
            s = near(arg, score(arg, query, page, row.head, at + t), row.h, p0 + (int)t, row.own);
        take_scores(p, s, weight);
        UNROLL for (int c = 0; c < CHUNKS; c++) {
            uint32_t d = t + 64 * c;
            for (int j = j0; d < arg.p[5] && j < j1; j++)
                p.o[c] = fmaf(weight[j], value_of(arg, v_place(arg, page, row.head, at + j), d),
                              p.o[c]);
        }
        __syncthreads();
    }
    return p;
}

template <int CHUNKS>
FN void write_part(const Args &arg, uint32_t r, uint32_t h, uint32_t part,
                   const Partial<CHUNKS> &p)
{
    uint32_t t = threadIdx.x, n = arg.p[10], padded = arg.cols / n - 2;
    float *y = row_of(arg.dst, (uint64_t)r * arg.p[12] + part, arg.ld);
    if (t == 0) {
        y[h] = p.m;
        y[n + h] = p.l;
    }
    UNROLL for (int c = 0; c < CHUNKS; c++)
        if (t + 64 * c < padded)
            y[2 * n + h * padded + t + 64 * c] = p.o[c];
}

template <int CHUNKS> FN void attn(const Args &arg)
{
    __shared__ float query[MOST_D_K], weight[PAGE];
    uint32_t h = blockIdx.x, part = blockIdx.z, t = threadIdx.x, d_k = (uint32_t)arg.spec[5];
    uint32_t n = rows_of(arg, arg.rows), g = arg.p[0];
    EACH_ROW(r, n) {
        int lo = step_lo(arg, g, r), hi = step_hi(arg, g, r);
        int from = lo / SPAN + (int)part, to = arg.p[12] > 1 ? from + 1 : (hi + SPAN - 1) / SPAN;
        Seen row = {h, h / (arg.p[10] / arg.p[3]), (uint32_t)step_seg(arg, r),
                    step_slot(arg, g, r)};
        Partial<CHUNKS> all = no_part<CHUNKS>();
        __syncthreads();
        for (uint32_t d = t; d < d_k; d += 64)
            query[d] = row_of(arg.a, r, arg.lda)[h * d_k + d];
        __syncthreads();
        for (int s = from; s < to; s++) {
            int a = lo > s * SPAN ? lo : s * SPAN, b = hi < (s + 1) * SPAN ? hi : (s + 1) * SPAN;
            if (s * SPAN < hi)
                merge_part(all, span<CHUNKS>(arg, row, query, weight, a, b));
        }
        write_part(arg, r, h, part, all);
    }
}

/* ---------------------------------------------------------------- several states, lists */

/* A state in the place of the one that arguments tell: attn_states.comp says where it stands. */
FN Args of_state(const Args &arg, uint32_t k, uint32_t *ratio)
{
    const uint32_t *from = (const uint32_t *)i32_at(arg.bias) + 16 * k;
    Args s = arg;
    s.extra = (uint64_t)from[0] | (uint64_t)from[1] << 32;
    for (int i = 0; i < 10; i++)
        s.p[i] = from[2 + i];
    s.p[10] = arg.p[0];
    s.p[11] = arg.p[1];
    for (int i = 0; i < 3; i++)
        s.spec[i] = (int32_t)from[12 + i];
    s.bias = arg.spec[3] & TABLE ? arg.extra : arg.bias + 64 * (uint64_t)arg.p[2] + 16;
    *ratio = from[15];
    return s;
}

/* Rows [lo, hi) of a state, or entries of a list, which is NULL where there is none. */
template <int CHUNKS>
FN Partial<CHUNKS> span_of_rows(const Args &s, uint32_t ratio, const Seen &row, const float *query,
                                float *weight, uint64_t *v_at, const int32_t *list, int lo, int hi)
{
    uint32_t t = threadIdx.x, at;
    Partial<CHUNKS> p = no_part<CHUNKS>();
    for (int p0 = lo / PAGE * PAGE; p0 < hi; p0 += PAGE) {
        int j0 = lo > p0 ? lo - p0 : 0, j1 = hi - p0 < PAGE ? hi - p0 : PAGE, i = p0 + (int)t;
        float x = none();
        if ((int)t >= j0 && (int)t < j1) {
            uint32_t slot = list ? (uint32_t)list[i] : (uint32_t)i * ratio + ratio - 1;
            uint64_t page = page_of(s, row.seg, slot, &at);
            x = near(s, score_of(s, query, k_place(s, page, row.head, at, ratio), k_step(s, ratio)),
                     row.h, i, row.own);
            v_at[t] = v_place(s, page, row.head, at, ratio);
        }
        take_scores(p, x, weight);
        UNROLL for (int c = 0; c < CHUNKS; c++) {
            uint32_t d = t + 64 * c;
            for (int j = j0; d < s.p[5] && j < j1; j++)
                p.o[c] = fmaf(weight[j], value_of(s, v_at[j], d), p.o[c]);
        }
        __syncthreads();
    }
    return p;
}

/* The list of row r for a head of K, where state k has one: of its entries. */
FN const int32_t *list_of(const Args &arg, uint32_t k, uint32_t r, uint32_t head, int *n)
{
    const uint32_t *lists = (const uint32_t *)i32_at(arg.bias) + 16 * arg.p[2];
    uint32_t mul = lists[3];
    *n = -1;
    if (k + 1 != arg.p[2] || !mul)
        return NULL;
    const int32_t *list = ints_of((uint64_t)lists[0] | (uint64_t)lists[1] << 32,
                                  (uint64_t)r * mul + (mul > 1 ? head : 0), lists[2]);
    *n = list[0];
    return *n < 0 ? NULL : list + 1;
}

template <int CHUNKS> FN void attn_states(const Args &arg)
{
    __shared__ float query[MOST_D_K], weight[PAGE];
    __shared__ uint64_t v_at[PAGE];
    uint32_t h = blockIdx.x, d_k = (uint32_t)arg.spec[5], n = rows_of(arg, arg.rows), ratio;
    EACH_ROW(r, n) {
        Partial<CHUNKS> all = no_part<CHUNKS>();
        __syncthreads();
        for (uint32_t d = threadIdx.x; d < d_k; d += 64)
            query[d] = row_of(arg.a, r, arg.lda)[h * d_k + d];
        __syncthreads();
        for (uint32_t k = 0; k < arg.p[2]; k++) {
            Args s = of_state(arg, k, &ratio);
            Seen row = {h, h / (arg.p[0] / s.p[3]), (uint32_t)step_seg(arg, r),
                        step_slot(arg, s.p[0], r)};
            int lo = step_lo(arg, s.p[0], r) / (int)ratio, hi, listed;
            const int32_t *list = list_of(arg, k, r, row.head, &listed);
            hi = list ? listed : step_hi(arg, s.p[0], r) / (int)ratio;
            lo = list ? 0 : lo;
            for (int i = lo / SPAN; i * SPAN < hi; i++)
                merge_part(all, span_of_rows<CHUNKS>(s, ratio, row, query, weight, v_at, list,
                                                     lo > i * SPAN ? lo : i * SPAN,
                                                     hi < (i + 1) * SPAN ? hi : (i + 1) * SPAN));
        }
        Args whole = arg;
        whole.p[10] = arg.p[0];
        whole.p[12] = 1;
        write_part(whole, r, h, 0, all);
    }
}

/* ---------------------------------------------------------------- one result */

/* w: sinks; spec[0]: there are some. p: query heads, d_v, partials of a row. */
template <int CHUNKS> FN void attn_merge(const Args &arg)
{
    uint32_t h = blockIdx.x, t = threadIdx.x, heads = arg.p[0], n = rows_of(arg, arg.rows);
    uint32_t padded = arg.lda / heads - 2;
    EACH_ROW(r, n) {
        Partial<CHUNKS> all = no_part<CHUNKS>(), one = no_part<CHUNKS>();
        for (uint32_t part = 0; part < arg.p[2]; part++) {
            const float *x = row_of(arg.a, (uint64_t)r * arg.p[2] + part, arg.lda);
            one.m = x[h];
            one.l = x[heads + h];
            UNROLL for (int c = 0; c < CHUNKS; c++)
                one.o[c] = t + 64 * c < padded ? x[2 * heads + h * padded + t + 64 * c] : 0;
            merge_part(all, one);
        }
        if (arg.spec[0]) {
            one = no_part<CHUNKS>();
            one.m = f32_at(arg.w)[h];
            one.l = 1;
            merge_part(all, one);
        }
        float k = 1.0f / all.l;
        UNROLL for (int c = 0; c < CHUNKS; c++)
            if (t + 64 * c < arg.p[1])
                row_of(arg.dst, r, arg.ld)[h * arg.p[1] + t + 64 * c] = all.o[c] * k;
    }
}

#define CHUNKED(n)                                                                                 \
    KERNEL(attn_##n, 64) { attn<n>(arg); }                                                         \
    KERNEL(attn_states_##n, 64) { attn_states<n>(arg); }                                           \
    KERNEL(attn_merge_##n, 64) { attn_merge<n>(arg); }
CHUNKED(1)
CHUNKED(2)
CHUNKED(4)
CHUNKED(8)
CHUNKED(16)
