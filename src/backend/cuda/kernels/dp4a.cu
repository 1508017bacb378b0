/* dp4a.cu -- products of coded.cuh for few rows of x, four bytes at a time: a lane goes over the
 * blocks of one chain. dp4a_TYPE_COLS. And rows rounded for them. */
#include "coded.cuh"

FN uint32_t code_of(float v)
{
    v = v > -127 ? v : -127; /* what is no number, too */
    return (uint32_t)(int)rintf(v < 127 ? v : 127) & 255;
}

/* A thread for each 32 numbers, as tensor/act.h rounds them: what is not finite is not lost. */
KERNEL(quantise, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (32 * i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        const float *x = row_of(arg.a, r, arg.lda) + 32 * (uint64_t)i;
        uint64_t y = arg.dst + (uint64_t)r * arg.ld;
        uint32_t top = 0;
        for (int j = 0; j < 32; j++)
            top = (as_uint(x[j]) & 0x7fffffffu) > top ? as_uint(x[j]) & 0x7fffffffu : top;
        float most = as_float(top), id = most < 0x1p-120f ? 0 : 127 / most;
        float d = most < 0x1p-120f ? 0 : most / 127;
        uint32_t *q = (uint32_t *)i32_at(y + 32 * (uint64_t)i);
        for (int j = 0; j < 8; j++) {
            uint32_t word = 0;
            for (int b = 0; b < 4; b++)
                word |= code_of(x[4 * j + b] * id) << (8 * b);
            q[j] = word;
        }
        f32_at(y + arg.cols)[i] = d;
    }
}

template <int TYPE, int COLS>
FN void products(const Args &arg, const Span &g, uint32_t head, uint32_t m0)
{
    __shared__ float chains[WARPS][ROWS * COLS][CHAINS + 1];
    enum { UNIT = unit_of(TYPE) };
    uint32_t K = arg.p[0], M = arg.p[1], t = threadIdx.x;
    uint32_t first = arg.spec[1] == HEADS ? head * K : 0;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + (uint64_t)g.matrix * M * bytes, row[COLS];
    float acc[ROWS * COLS];
    UNROLL for (uint32_t c = 0; c < COLS; c++)
        row[c] = arg.a + (uint64_t)in_row(arg, out_row(arg, g, c)) * arg.lda;
    UNROLL for (int i = 0; i < ROWS * COLS; i++)
        acc[i] = 0;
    uint32_t end = chain_start(t + 1, K / 32);
    for (uint32_t b = chain_start(t, K / 32); b < end; b++)
        UNROLL for (uint32_t u = 0; u < 4; u += UNIT) {
            Pair x[COLS][UNIT];
            float dx[COLS];
            int sum_x[COLS];
            UNROLL for (int c = 0; c < COLS; c++) {
                dx[c] = f32_at(row[c] + arg.ldb)[first / 32 + b];
                sum_x[c] = 0;
                UNROLL for (uint32_t o = 0; o < UNIT; o++) {
                    x[c][o] = quad8(row[c] + first + 32 * (uint64_t)b + 8 * (u + o));
                    sum_x[c] += has_least(TYPE) ? sum_of(x[c][o]) : 0;
                }
            }
            UNROLL for (uint32_t i = 0; i < ROWS; i++) {
                Codes e[UNIT];
                UNROLL for (uint32_t o = 0; o < UNIT; o++)
                    e[o] = codes8(TYPE, w + (uint64_t)least(m0 + i, M - 1) * bytes, 4 * b + u + o,
                                  books_of(arg));
                UNROLL for (int c = 0; c < COLS; c++) {
                    int sum = 0;
                    UNROLL for (int o = 0; o < UNIT; o++)
                        sum = dp4a(e[o].q.x, x[c][o].x, dp4a(e[o].q.y, x[c][o].y, sum));
                    acc[i * COLS + c] =
                        add_unit<TYPE>(acc[i * COLS + c], e[0].d, e[0].m, dx[c], sum, sum_x[c]);
                }
            }
        }
    warp_sync();
    UNROLL for (int e = 0; e < ROWS * COLS; e++)
        chains[threadIdx.y][e][t] = acc[e];
    warp_sync();
    if (t >= ROWS * COLS || t % COLS >= g.n || m0 + t / COLS >= M) /* a lane adds an element up */
        return;
    float sum = 0;
    for (int j = 0; j < CHAINS; j++)
        sum = sum + chains[threadIdx.y][t][j];
    write_sum(arg, g, head, m0 + t / COLS, out_row(arg, g, t % COLS), sum);
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, blockIdx.z, COLS);
        if (g.n == 0)
            break;
        products<TYPE, COLS>(arg, g, blockIdx.z, first_row());
    }
}

#define ONE(name, type, cols)                                                                      \
    KERNEL(dp4a_##name##_##cols, 32 * WARPS) { matmul<type, cols>(arg); }
#define CODED(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
CODED_TYPES(CODED)
