/* rope.cu -- heads turned by a table (graph/ops/rope.c), and the table: cos and sin of each row's
 * angles; and what a Hadamard matrix turns. Angles are turns, in fractions of 2^64, so that a
 * position times one is exact but for whole turns. Behind the turns of all pairs lies which of a
 * row's four positions each goes by. */
#include "common.cuh"

/* One thread a pair, or an element that stays. p: width, step of the operand's heads, first,
 * rotated, neox, inverse. */
KERNEL(rope, 64)
{
    uint32_t width = arg.p[0], first = arg.p[2], n_rot = arg.p[3], pairs = n_rot / 2;
    uint32_t per = width - pairs, u = thread_x(), h = u / per, i = u % per;
    uint32_t n = rows_of(arg, arg.rows);
    if (h * width >= arg.cols)
        return;
    EACH_ROW(r, n) {
        const float *x = row_of(arg.a, r, arg.lda) + (uint64_t)h * arg.p[1];
        float *y = row_of(arg.dst, r, arg.ld) + (uint64_t)h * width;
        const float *table = row_of(arg.b, r, arg.ldb);
        if (i >= pairs) {
            uint32_t at = i - pairs;
            at += at >= first ? n_rot : 0;
            y[at] = x[at];
            continue;
        }
        uint32_t a = first + (arg.p[4] ? i : 2 * i), b = arg.p[4] ? a + pairs : a + 1;
        float cs = table[i], sn = arg.p[5] ? -table[pairs + i] : table[pairs + i];
        float x0 = x[a], x1 = x[b], y0 = x0 * cs, y1 = x0 * sn;
        y[a] = fmaf(-x1, sn, y0);
        y[b] = fmaf(x1, cs, y1);
    }
}

/* sin and cos of x, |x| <= pi/4 [Cephes sinf, cosf]. */
FN float small_sin(float x)
{
    float z = x * x;
    return fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, x, x);
}
FN float small_cos(float x)
{
    float z = x * x;
    return fmaf(
        fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
        z * z, fmaf(-0.5f, z, 1.0f));
}

KERNEL(rope_table, 64)
{
    uint32_t i = thread_x(), pairs = arg.cols / 2, n = rows_of(arg, arg.rows);
    if (i >= pairs)
        return;
    uint64_t turn = u64(arg.extra + 8 * (uint64_t)i);
    uint32_t axis = (uint32_t)u64(arg.extra + 8 * (uint64_t)(pairs + i));
    EACH_ROW(r, n) {
        int pos = step_axis(arg, r, axis);
        if (arg.p[1] > 1)
            pos = step_pos(arg, r) - step_pos(arg, r) % (int)arg.p[1];
        uint64_t all = turn * (uint64_t)(int64_t)pos;
        uint32_t top = (uint32_t)(all >> 32), quarter = (top + 0x20000000u) >> 30;
        float x = (float)(int)(top - (quarter << 30)) * 1.4629180792671596e-9f; /* 2 pi / 2^32 */
        float s = small_sin(x), c = small_cos(x);
        float cs = (quarter & 1) == 0 ? c : s, sn = (quarter & 1) == 0 ? s : c;
        cs = quarter == 1 || quarter == 2 ? -cs : cs;
        sn = quarter >= 2 ? -sn : sn;
        float *y = row_of(arg.dst, r, arg.ld);
        y[i] = cs * arg_f(arg, 0);
        y[pairs + i] = sn * arg_f(arg, 0);
    }
}

/* A block for each p[0] numbers of a row, turned by the Hadamard matrix. p[1]: what they are
 * multiplied with at last. */
KERNEL(hadamard, 64)
{
    __shared__ float block[256];
    uint32_t b = arg.p[0], t = threadIdx.x, n = rows_of(arg, arg.rows);
    EACH_ROW(r, n) {
        const float *x = row_of(arg.a, r, arg.lda) + (uint64_t)blockIdx.x * b;
        float *y = row_of(arg.dst, r, arg.ld) + (uint64_t)blockIdx.x * b;
        for (uint32_t i = t; i < b; i += 64)
            block[i] = x[i];
        for (uint32_t h = 1; h < b; h *= 2) {
            __syncthreads();
            for (uint32_t i = t; i < b / 2; i += 64) { /* the pair i: the bit h is put in */
                uint32_t at = (i & ~(h - 1)) * 2 + (i & (h - 1));
                float p = block[at], q = block[at + h];
                block[at] = p + q;
                block[at + h] = p - q;
            }
        }
        __syncthreads();
        for (uint32_t i = t; i < b; i += 64)
            y[i] = block[i] * arg_f(arg, 1);
        __syncthreads(); /* before the next row */
    }
}
