/* dp4a.cu -- products with weights whose numbers are codes, by rows of x that are rounded to codes,
 * too: each 32 of them to bytes and a scale. Products of bytes are exact, four at a time; an octet's
 * sum is scaled and added to its chain. Else as matmul.cu: an element's bits depend on nothing beside
 * it. dp4a_TYPE_COLS.
 *
 *     a rounded row   [columns] bytes, [columns / 32] scales: `lda` bytes from row to row, `ldb`
 *                     columns */
#include "products.cuh"

/* A thread for each 32 numbers. */
KERNEL(quantise, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (32 * i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        const float *x = row_of(arg.a, r, arg.lda) + 32 * (uint64_t)i;
        uint64_t y = arg.dst + (uint64_t)r * arg.ld;
        float most = 0;
        for (int j = 0; j < 32; j++)
            most = fabsf(x[j]) > most ? fabsf(x[j]) : most;
        float d = most / 127, id = d > 0 ? 1.0f / d : 0;
        uint32_t *q = (uint32_t *)i32_at(y + 32 * (uint64_t)i);
        for (int j = 0; j < 8; j++) {
            uint32_t word = 0;
            for (int b = 0; b < 4; b++)
                word |= ((uint32_t)(int)rintf(x[4 * j + b] * id) & 255) << (8 * b);
            q[j] = word;
        }
        f32_at(y + arg.cols)[i] = d;
    }
}

template <int TYPE, int COLS>
FN void products(const Args &arg, const Group<COLS> &g, uint32_t head, uint32_t m0)
{
    uint32_t K = arg.p[0], M = arg.p[1];
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + (uint64_t)g.matrix * M * bytes;
    uint32_t first = arg.spec[1] == HEADS ? head * K : 0;
    float acc[ROWS * COLS];
    UNROLL for (int i = 0; i < ROWS * COLS; i++)
        acc[i] = 0;
    for (uint32_t k8 = threadIdx.x; 8 * k8 < K; k8 += 32) {
        Pair x[COLS];
        float d[COLS], sum[COLS];
        UNROLL for (int c = 0; c < COLS; c++) {
            uint64_t row = arg.a + (uint64_t)g.in_row[c] * arg.lda;
            x[c] = quad8(row + first + 8 * k8);
            d[c] = f32_at(row + arg.ldb)[(first + 8 * k8) / 32];
            if (has_least(TYPE))
                sum[c] = (float)dp4a(0x01010101u, x[c].x, dp4a(0x01010101u, x[c].y, 0));
        }
        UNROLL for (uint32_t i = 0; i < ROWS; i++) {
            Codes e = codes8(TYPE, w + (uint64_t)least(m0 + i, M - 1) * bytes, k8);
            UNROLL for (int c = 0; c < COLS; c++) {
                float &to = acc[i * COLS + c];
                to = fmaf(e.d * d[c], (float)dp4a(e.q.x, x[c].x, dp4a(e.q.y, x[c].y, 0)), to);
                if (has_least(TYPE))
                    to = fmaf(e.m * d[c], sum[c], to);
            }
        }
    }
    write_sums(arg, g, head, m0, acc);
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    uint32_t m0 = first_row();
    Group<COLS> g;
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        group_of(arg, u, blockIdx.z, g);
        if (g.n == 0)
            break;
        products<TYPE, COLS>(arg, g, blockIdx.z, m0);
    }
}

#define ONE(name, type, cols)                                                                      \
    KERNEL(dp4a_##name##_##cols, 32 * WARPS) { matmul<type, cols>(arg); }
#define CODED(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
CODED_TYPES(CODED)
