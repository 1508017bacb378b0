/* dp4a.cu -- products of coded.cuh for few rows of x, four bytes at a time: a lane goes over the
 * blocks of one chain. dp4a_TYPE_COLS. And rows rounded for them.
 *
 * The chains of a row lie one after the other, so lanes that read a block each would read as many
 * lines of memory. Of types in blocks of 32 a warp fetches the next few blocks of all chains into
 * shared memory first, where neighbouring lanes read neighbouring words, and each takes its own
 * from there. */
#include "coded.cuh"
#include "tensor.cuh"

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
        uint64_t row = arg.a + 4 * (uint64_t)r * arg.lda, y = arg.dst + (uint64_t)r * arg.ld;
        uint32_t top = 0;
        Eight x[4];
        UNROLL for (uint32_t o = 0; o < 4; o++) {
            x[o] = plain(T_F32, row, 32 * i + 8 * o, arg.cols);
            UNROLL for (int j = 0; j < 8; j++)
                top = (as_uint(x[o].v[j]) & 0x7fffffffu) > top ? as_uint(x[o].v[j]) & 0x7fffffffu
                                                               : top;
        }
        float most = as_float(top), id = most < 0x1p-120f ? 0 : 127 / most;
        float d = most < 0x1p-120f ? 0 : most / 127;
        uint32_t *q = (uint32_t *)i32_at(y + 32 * (uint64_t)i);
        UNROLL for (int j = 0; j < 8; j++) {
            uint32_t word = 0;
            UNROLL for (int b = 0; b < 4; b++)
                word |= code_of(x[j / 2].v[j % 2 * 4 + b] * id) << (8 * b);
            q[j] = word;
        }
        f32_at(y + arg.cols)[i] = d;
    }
}

/* What a warp has fetched of ROWS rows: BLOCKS blocks of each chain, in WORDS words, the first of
 * which may begin before them. An odd number of words goes over all banks. */
template <int TYPE> struct Fetched {
    enum { BYTES = block_of(TYPE), BLOCKS = BYTES ? 76 / BYTES : 0 };
    enum { WORDS = (BLOCKS * BYTES / 4 + 1) | 1 };
};

/* Bytes [from, end) of a word that is not wholly of the weight. */
FN uint32_t part_of_word(uint64_t from, uint64_t end)
{
    uint32_t word = 0;
    for (uint32_t i = 0; from + i < end; i++)
        word |= u8(from + i) << (8 * i);
    return word;
}

/* Blocks [i0, i0 + BLOCKS) of all chains of rows m0 and on. */
template <int TYPE>
FN void fetch_rows(const Args &arg, uint32_t *to, uint64_t w, uint64_t bytes, uint32_t m0,
                   uint32_t i0)
{
    typedef Fetched<TYPE> F;
    uint32_t blocks = arg.p[0] / 32;
    for (uint32_t n = threadIdx.x; n < CHAINS * F::WORDS; n += 32) {
        uint32_t chain = n / F::WORDS, first = chain_start(chain, blocks) + i0;
        uint32_t end = least(first + F::BLOCKS, chain_start(chain + 1, blocks));
        for (uint32_t i = 0; i < ROWS && first < end; i++) {
            uint64_t row = row_at(arg, w, m0, i, bytes);
            uint64_t from = ((row + first * F::BYTES) & ~(uint64_t)3) + 4 * (n % F::WORDS);
            uint64_t stop = row + end * F::BYTES;
            if (from + 4 <= stop)
                fetch4(&to[i * CHAINS * F::WORDS + n], from);
            else if (from < stop)
                to[i * CHAINS * F::WORDS + n] = part_of_word(from, stop);
        }
    }
    end_stage();
    wait_stages<0>();
    warp_sync();
}

/* A block of a row of x. */
template <int UNITS> struct Rounded {
    Pair q[4];
    int sum[UNITS];
    float d;
};
template <int TYPE>
FN Rounded<4 / unit_of(TYPE)> rounded(const Args &arg, uint64_t row, uint32_t first, uint32_t b)
{
    enum { UNIT = unit_of(TYPE) };
    Rounded<4 / UNIT> x;
    x.d = f32_at(row + arg.ldb)[first / 32 + b];
    UNROLL for (uint32_t o = 0; o < 4; o += 2) {
        Quad v = quad16(row + first + 32 * (uint64_t)b + 8 * o);
        x.q[o] = Pair{v.v[0], v.v[1]};
        x.q[o + 1] = Pair{v.v[2], v.v[3]};
    }
    UNROLL for (uint32_t u = 0; u < 4 / UNIT; u++) {
        x.sum[u] = 0;
        UNROLL for (uint32_t o = u * UNIT; o < (u + 1) * UNIT; o++)
            x.sum[u] += has_least(TYPE) ? sum_of(x.q[o]) : 0;
    }
    return x;
}

/* Block b of a row of the weight, or of what was fetched of it, goes into its chains. */
template <int TYPE, int COLS>
FN void add_block(const Args &arg, const Rounded<4 / unit_of(TYPE)> (&x)[COLS], uint64_t row,
                  uint32_t b, float *acc)
{
    enum { UNIT = unit_of(TYPE) };
    UNROLL for (uint32_t u = 0; u < 4 / UNIT; u++) {
        Codes e[UNIT];
        UNROLL for (uint32_t o = 0; o < UNIT; o++)
            e[o] = codes8(TYPE, row, 4 * b + u * UNIT + o, books_of(arg));
        UNROLL for (int c = 0; c < COLS; c++) {
            int sum = 0;
            UNROLL for (int o = 0; o < UNIT; o++) {
                Pair q = x[c].q[u * UNIT + o];
                sum = dp4a(e[o].q.x, q.x, dp4a(e[o].q.y, q.y, sum));
            }
            acc[c] = add_unit<TYPE>(acc[c], e[0].d, e[0].m, x[c].d, sum, x[c].sum[u]);
        }
    }
}

FN float sum_of_chains(const float *chain)
{
    float sum = 0;
    for (int j = 0; j < CHAINS; j++)
        sum = sum + chain[j];
    return sum;
}

template <int TYPE, int COLS>
FN void products(const Args &arg, const Span &g, uint32_t head, uint32_t m0)
{
    typedef Fetched<TYPE> F;
    enum { FETCHED = ROWS * CHAINS * F::WORDS * (F::BLOCKS > 0) };
    enum { SUMS = ROWS * COLS * (CHAINS + 1), ROOM = FETCHED > SUMS ? FETCHED : SUMS };
    __shared__ uint32_t room[WARPS][ROOM];
    uint32_t K = arg.p[0], M = arg.p[1], t = threadIdx.x, *mine = room[threadIdx.y];
    uint32_t first = arg.spec[1] == HEADS ? head * K : 0, blocks = K / 32;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + (uint64_t)g.matrix * M * bytes, row[COLS];
    float acc[ROWS][COLS];
    UNROLL for (uint32_t c = 0; c < COLS; c++)
        row[c] = arg.a + (uint64_t)in_row(arg, out_row(arg, g, c)) * arg.lda;
    UNROLL for (int i = 0; i < ROWS * COLS; i++)
        acc[i / COLS][i % COLS] = 0;
    uint32_t from = chain_start(t, blocks), end = chain_start(t + 1, blocks);
    uint32_t step = F::BLOCKS > 0 ? F::BLOCKS : 1, longest = (blocks + CHAINS - 1) / CHAINS;
    for (uint32_t i0 = 0; i0 < longest; i0 += step) {
        if (F::BLOCKS > 0) {
            warp_sync(); /* what was fetched before is not needed any more */
            fetch_rows<TYPE>(arg, mine, w, bytes, m0, i0);
        }
        for (uint32_t k = 0; k < step && from + i0 + k < end; k++) {
            Rounded<4 / unit_of(TYPE)> x[COLS];
            UNROLL for (int c = 0; c < COLS; c++)
                x[c] = rounded<TYPE>(arg, row[c], first, from + i0 + k);
            UNROLL for (uint32_t i = 0; i < ROWS; i++) {
                uint64_t of = row_at(arg, w, m0, i, bytes);
                uint32_t *at = mine + (i * CHAINS + t) * F::WORDS;
                if (F::BLOCKS > 0)
                    add_block<TYPE, COLS>(arg, x,
                                          (uint64_t)(uintptr_t)at +
                                              ((of + (from + i0) * F::BYTES) & 3),
                                          k, acc[i]);
                else
                    add_block<TYPE, COLS>(arg, x, of, from + i0 + k, acc[i]);
            }
        }
    }
    float *chains = (float *)mine;
    warp_sync();
    UNROLL for (int e = 0; e < ROWS * COLS; e++)
        chains[e * (CHAINS + 1) + t] = acc[e / COLS][e % COLS];
    warp_sync();
    bool gated = is_gated(arg);
    if (t >= (gated ? HALF : ROWS) * COLS || t % COLS >= g.n || m0 + t / COLS >= M)
        return; /* a lane adds an element up, or both that are joined */
    float sum = sum_of_chains(chains + t * (CHAINS + 1));
    uint32_t r = out_row(arg, g, t % COLS);
    if (gated)
        write_joined(arg, m0 + t / COLS, r, sum,
                     sum_of_chains(chains + (t + HALF * COLS) * (CHAINS + 1)));
    else
        write_sum(arg, g, head, m0 + t / COLS, r, sum);
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, blockIdx.z, COLS);
        if (g.n == 0)
            break;
        products<TYPE, COLS>(arg, g, blockIdx.z, first_row(arg));
    }
}

#define ONE(name, type, cols)                                                                      \
    KERNEL(dp4a_##name##_##cols, 32 * WARPS) { matmul<type, cols>(arg); }
#define CODED(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
CODED_TYPES(CODED)
