/* index.cu -- which slots a row looks at (INDEX_TOPK of graph/ops/index.c), a block a row, or a row
 * and head where blocks of slots are chosen. A score is a number whose order is that of its bits;
 * the k-th of them is found byte by byte, from counts, and scores are made anew each time: they are
 * kept nowhere. Then those above it, and of its equals the first, are written in order.
 *
 * p[10]: query heads; p[11]: the most that are chosen; p[12]: rows' distance of weights, which are
 * at `bias`. spec: pages; ratio; slots of a block, 0: single ones; of what the list is (enum
 * index_of), 4: weights, 8: blocks before the row's own that are always chosen. */
#include "kth.cuh"
#include "pages.cuh"

enum { OF_ROWS, OF_POOLS, OF_SLOTS };

struct Choice { /* things [first, first + n), k of them; what a list can have */
    int first, n, k, part, lo, hi;
    int ratio, block, of, local;
    bool weights;
    uint32_t r, head;
};

/* q . key over one head. */
FN float dot_key(const Args &arg, uint64_t k, const float *q)
{
    float sum = 0;
    uint32_t step = k_step(arg, (uint32_t)arg.spec[3]);
    if (k_type(arg) > T_BF16) {
        for (uint32_t d = 0; d < arg.p[4]; d += 8) {
            Eight w = decode32(k_type(arg), k, d / 8);
            UNROLL for (int j = 0; j < 8; j++)
                sum = fmaf(w.v[j], q[d + j], sum);
        }
    } else {
        for (uint32_t d = 0; d < arg.p[4]; d++)
            sum = fmaf(load_number(k_type(arg), k + (uint64_t)d * step), q[d], sum);
    }
    return sum;
}

FN float score(const Args &arg, const Choice &c, int slot)
{
    uint32_t at;
    uint64_t page = page_of(arg, (uint32_t)step_seg(arg, c.r), (uint32_t)slot, &at);
    uint64_t k = k_place(arg, page, 0, at, (uint32_t)c.ratio);
    const float *q = row_of(arg.a, c.r, arg.lda);
    if (!c.weights && c.ratio == 1)
        return dot_key(arg, k, q + c.head * arg.p[4]);
    float sum = 0;
    for (uint32_t h = 0; h < arg.p[10]; h++) {
        float t = dot_key(arg, k, q + h * arg.p[4]);
        t = t > 0 ? t : 0;
        sum = c.weights ? fmaf(row_of(arg.bias, c.r, arg.p[12])[h], t, sum) : sum + t;
    }
    return sum;
}

FN uint32_t ordered(float s)
{
    return ordered_bits(as_uint(s));
}

FN uint32_t thing(const Args &arg, const Choice &c, int i)
{
    int at = c.first + i;
    if (c.ratio > 1)
        return ordered(score(arg, c, at * c.ratio + c.ratio - 1));
    if (c.block == 0)
        return ordered(score(arg, c, at));
    int own = step_slot(arg, arg.p[0], c.r) / c.block;
    if (at > own - c.local && at <= own)
        return ordered(-none());
    float most = none();
    int from = at * c.block > c.lo ? at * c.block : c.lo;
    int to = (at + 1) * c.block < c.hi ? (at + 1) * c.block : c.hi;
    for (int s = from; s < to; s++) {
        float x = score(arg, c, s);
        most = x > most ? x : most;
    }
    return ordered(most);
}

FN Choice choice_of(const Args &arg, uint32_t r, uint32_t head)
{
    Choice c;
    int k = (int)arg.p[11], size = arg.spec[4] > 0 ? arg.spec[4] : 1;
    c.r = r;
    c.head = head;
    c.ratio = arg.spec[3];
    c.block = arg.spec[4];
    c.of = arg.spec[5] & 3;
    c.weights = (arg.spec[5] & 4) != 0;
    c.local = arg.spec[5] >> 3;
    c.lo = step_lo(arg, arg.p[0], r);
    c.hi = step_hi(arg, arg.p[0], r);
    c.part = 0;
    c.k = k;
    c.first = c.lo / size;
    c.n = c.hi > c.lo ? (c.hi - 1) / size - c.first + 1 : 0;
    if (c.ratio == 1)
        return c;
    int left = k + c.ratio - 1 - c.hi % c.ratio;
    c.first = 0;
    c.n = c.hi / c.ratio;
    c.k = c.of == OF_ROWS ? k : c.of == OF_POOLS ? k / c.ratio : left / c.ratio;
    c.part = c.of == OF_SLOTS ? left % c.ratio : 0;
    return c;
}

struct Things {
    const Args &arg;
    const Choice &c;
    __device__ uint32_t of(uint32_t i) const { return thing(arg, c, (int)i); }
};

/* Slots of the list that thing i has, and the first of them. */
FN int slots_of(const Choice &c, int i, bool last, int *first)
{
    int at = c.first + i, size = c.block > 0 ? c.block : 1;
    if (c.ratio > 1) {
        *first = at * c.ratio + (c.of == OF_ROWS ? c.ratio - 1 : 0);
        return c.of == OF_ROWS ? 1 : last && c.part > 0 ? c.part : c.ratio;
    }
    *first = at * size > c.lo ? at * size : c.lo;
    return ((at + 1) * size < c.hi ? (at + 1) * size : c.hi) - *first;
}

FN void choose(const Args &arg, Choice &c, int32_t *row)
{
    __shared__ uint32_t kind[64], width[64];
    uint32_t t = threadIdx.x, wanted, equals = 0, base = 1;
    if (c.n <= c.k) {
        if (t == 0)
            row[0] = -1;
        return;
    }
    c.k += c.part > 0;
    uint32_t limit = find_kth(Things{arg, c}, (uint32_t)c.n, (uint32_t)c.k, &wanted);
    for (int i0 = 0; i0 < c.n; i0 += 64) {
        int i = i0 + (int)t, first = 0;
        uint32_t key = i < c.n ? thing(arg, c, i) : 0;
        kind[t] = i >= c.n || key < limit ? 0 : key > limit ? 1 : 2;
        __syncthreads();
        uint32_t before = equals, own = 0, all = 0;
        for (uint32_t j = 0; j < 64; j++) {
            before += j < t && kind[j] == 2;
            equals += kind[j] == 2;
        }
        bool taken = kind[t] == 1 || (kind[t] == 2 && before < wanted);
        bool last = kind[t] == 2 && before + 1 == wanted;
        int n = taken ? slots_of(c, i, last, &first) : 0;
        width[t] = (uint32_t)n;
        __syncthreads();
        for (uint32_t j = 0; j < 64; j++) {
            own += j < t ? width[j] : 0;
            all += width[j];
        }
        for (int j = 0; j < n; j++)
            row[base + own + (uint32_t)j] = first + j;
        base += all;
        __syncthreads();
    }
    if (t != 0)
        return;
    for (int s = c.hi / c.ratio * c.ratio; c.ratio > 1 && c.of != OF_ROWS && s < c.hi; s++)
        row[base++] = s;
    row[0] = (int32_t)base - 1;
}

KERNEL(index, 64)
{
    uint32_t head = blockIdx.x, heads = gridDim.x, n = rows_of(arg, arg.rows) / heads;
    EACH_ROW(r, n) {
        Choice c = choice_of(arg, r, head);
        choose(arg, c, ints_of(arg.dst, (uint64_t)r * heads + head, arg.ld));
        __syncthreads();
    }
}
