/* best.cu -- the greatest numbers of a row, or of a part of one (BEST of graph/ops/best.c), a block
 * for each row of the result. The k-th is found byte by byte, from counts; those above it, and of
 * its equals the first, are written in order. spec[0]: pairs. p: k, columns of the operand,
 * parts. */
#include "kth.cuh"

struct Some { /* things [first, first + n) of row r of the operand, or of the rows from r on */
    uint32_t r, first, n;
};

FN uint64_t place(const Args &arg, const Some &s, uint32_t i)
{
    uint32_t k = arg.p[0], ld = arg.lda;
    return arg.spec[0] ? arg.a + 4 * ((uint64_t)(s.r + i / k) * ld + i % k)
                       : arg.a + 4 * ((uint64_t)s.r * ld + s.first + i);
}
FN int column(const Args &arg, const Some &s, uint32_t i)
{
    return arg.spec[0] ? i32_at(place(arg, s, i))[arg.p[0]] : (int)(s.first + i);
}

/* As ordered_bits; 0 for what is in no column. */
FN uint32_t ordered(const Args &arg, const Some &s, uint32_t i)
{
    return arg.spec[0] && column(arg, s, i) < 0 ? 0 : ordered_bits(u32(place(arg, s, i)));
}

struct Numbers {
    const Args &arg;
    const Some &s;
    __device__ uint32_t of(uint32_t i) const { return ordered(arg, s, i); }
};

FN void choose(const Args &arg, const Some &s, float *z)
{
    __shared__ uint32_t kind[64];
    uint32_t t = threadIdx.x, k = arg.p[0], equals = 0, base = 0, limit = 0, wanted = s.n;
    if (s.n > k)
        limit = find_kth(Numbers{arg, s}, s.n, k, &wanted);
    for (uint32_t i0 = 0; i0 < s.n; i0 += 64) {
        uint32_t i = i0 + t, key = i < s.n ? ordered(arg, s, i) : 0;
        kind[t] = i >= s.n || key < limit ? 0 : key > limit ? 1 : 2;
        __syncthreads();
        uint32_t at = base, same = equals;
        for (uint32_t j = 0; j < 64; j++) {
            uint32_t taken = kind[j] == 1 || (kind[j] == 2 && equals < wanted);
            equals += kind[j] == 2;
            base += taken;
            at += j < t ? taken : 0;
            same += j < t && kind[j] == 2;
        }
        if (kind[t] == 1 || (kind[t] == 2 && same < wanted)) {
            float x = *f32_at(place(arg, s, i));
            z[at] = x == 0 ? 0 : x;
            ((int32_t *)z)[k + at] = column(arg, s, i);
        }
        __syncthreads();
    }
    for (uint32_t i = base + t; i < k; i += 64) {
        z[i] = none();
        ((int32_t *)z)[k + i] = -1;
    }
}

KERNEL(best, 64)
{
    uint32_t n = rows_of(arg, arg.rows), parts = arg.p[2], cols = arg.p[1];
    uint32_t size = (cols + parts - 1) / parts;
    EACH_ROW(r, n) {
        Some s;
        s.r = arg.spec[0] ? r * parts : r / parts;
        s.first = arg.spec[0] ? 0 : r % parts * size;
        s.n = arg.spec[0] ? parts * arg.p[0] : s.first < cols ? least(size, cols - s.first) : 0;
        choose(arg, s, row_of(arg.dst, r, arg.ld));
        __syncthreads();
    }
}
