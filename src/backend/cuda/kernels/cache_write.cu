/* cache_write.cu -- the step's rows of K and V into their slots (CACHE_WRITE): a thread a number,
 * or a block of 32, which is rounded as tensor/quant/legacy.c does. And the same behind norms and
 * RoPE of heads (ATTN_ENTER), each number as norm.cu, rope.cu and rows.cu make it. */
#include "pages.cuh"

FN uint32_t code_of(float x, float top)
{
    float r = rintf(x);
    return (uint32_t)(r < 0 ? 0 : r > top ? top : r);
}

/* Codes 0 .. top of x around `zero`: (x - base) id + zero, in nibbles and fifth bits. */
FN void store_codes(uint64_t qs, uint64_t qh, const float *x, float base, float id, float zero,
                    float top)
{
    uint32_t high = 0;
    for (int i = 0; i < 16; i += 2) {
        uint32_t word = 0;
        for (int j = i; j < i + 2; j++) {
            uint32_t a = code_of((x[j] - base) * id + zero, top);
            uint32_t b = code_of((x[j + 16] - base) * id + zero, top);
            high |= a >> 4 << j | b >> 4 << (j + 16);
            word |= ((a & 15) | (b & 15) << 4) << (8 * (j - i));
        }
        put16(qs + i, word);
    }
    if (top > 16) {
        put16(qh, high & 0xffff);
        put16(qh + 2, high >> 16);
    }
}

FN uint32_t byte_code(float x)
{
    float r = rintf(x);
    return (uint32_t)(int)(r < -127 ? -127 : r > 127 ? 127 : r) & 255;
}

FN void store_block(int type, uint64_t to, const float *x)
{
    float most = 0, lo = x[0], hi = x[0];
    for (int i = 0; i < 32; i++) {
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    bool affine = type == T_Q4_1 || type == T_Q5_1, fives = type == T_Q5_0 || type == T_Q5_1;
    float top = type == T_Q8_0 ? 127 : fives ? 31 : 15, middle = (top + 1) / 2;
    uint32_t m16 = affine ? to_f16(lo) : 0;
    float base = from_half(m16);
    float scale = affine           ? (hi - base) / top
                  : type == T_Q8_0 ? fabsf(most) / 127
                                   : most / -middle;
    uint32_t d16 = to_f16(scale);
    float d = from_half(d16), id = d != 0 ? 1.0f / d : 0;
    put16(to, d16);
    if (affine)
        put16(to + 2, m16);
    to += affine ? 4 : 2;
    if (type == T_Q8_0) {
        for (int i = 0; i < 32; i += 2)
            put16(to + i, byte_code(x[i] * id) | byte_code(x[i + 1] * id) << 8);
        return;
    }
    store_codes(to + (fives ? 4 : 0), to, x, base, id, affine ? 0 : middle, top);
}

/* Unit u of a head: number u, or block u. */
FN void store_unit(int type, uint64_t row, uint32_t step, uint32_t u, const float *x)
{
    if (type > T_BF16)
        store_block(type, row + row_bytes(type, 32) * u, x + 32 * u);
    else
        store_number(type, row + (uint64_t)u * step, x[u]);
}

KERNEL(cache_write, 64)
{
    int kt = k_type(arg), vt = v_type(arg);
    uint32_t k_units = arg.p[4] / (kt > T_BF16 ? 32 : 1), n_k = arg.p[3] * k_units, at;
    uint32_t v_units = is_latent(arg) ? 0 : arg.p[5] / (vt > T_BF16 ? 32 : 1);
    uint32_t n_v = arg.p[3] * v_units, i = thread_x(), n = rows_of(arg, arg.rows);
    uint32_t ratio = (uint32_t)arg.spec[3];
    if (i >= n_k + n_v)
        return;
    EACH_ROW(r, n) {
        uint32_t slot = (uint32_t)step_slot(arg, arg.p[0], r);
        if (slot % ratio != ratio - 1)
            continue;
        uint64_t page = page_of(arg, (uint32_t)step_seg(arg, r), slot, &at);
        if (i < n_k) {
            uint32_t h = i / k_units;
            store_unit(kt, k_place(arg, page, h, at, ratio), k_step(arg, ratio), i % k_units,
                       row_of(arg.a, r, arg.lda) + h * arg.p[4]);
        } else {
            uint32_t h = (i - n_k) / v_units;
            store_unit(vt, v_place(arg, page, h, at, ratio), number_bytes(vt), (i - n_k) % v_units,
                       row_of(arg.b, r, arg.ldb) + h * arg.p[5]);
        }
    }
}

/* ---------------------------------------------------------------- behind norms and RoPE */

/* As gpu/ops.c puts them behind `bias`. spec[4]: what is done. */
enum { AT_V = 0, V_LD = 2, AT_TABLE = 3, TABLE_LD = 5, Q_STEP, K_STEP, FIRST, N_ROT, NEOX, N_HEAD,
       Q_EPS, K_EPS, Q_SCALE };
enum { NORMED = 1, WEIGHTED = 4, SCALED = 16, MOST_WIDTH = 512 };

FN uint32_t enters(const Args &arg, int i) { return (uint32_t)i32_at(arg.bias)[i]; }
FN uint64_t enters_at(const Args &arg, int i)
{
    return enters(arg, i) | (uint64_t)enters(arg, i + 1) << 32;
}

/* A head x of `width` numbers, normed with weights w and turned by a row of the table. */
FN void turn_head(const Args &arg, const float *x, const float *w, bool normed, bool weighted,
                  float eps, const float *table, float *head)
{
    uint32_t width = arg.p[4], t = threadIdx.x, first = enters(arg, FIRST);
    uint32_t pairs = enters(arg, N_ROT) / 2;
    bool neox = enters(arg, NEOX) != 0;
    float k = 1;
    if (normed) {
        float sum = 0;
        for (uint32_t i = t; i < width; i += 64)
            sum = fmaf(x[i], x[i], sum);
        k = 1.0f / sqrtf(tree_sum(sum) / (float)width + eps);
    }
    __syncthreads(); /* nobody reads the head before any more */
    for (uint32_t i = t; i < width; i += 64) {
        float v = normed ? x[i] * k : x[i];
        head[i] = weighted ? v * w[i] : v;
    }
    __syncthreads();
    for (uint32_t i = t; i < pairs; i += 64) {
        uint32_t a = first + (neox ? i : 2 * i), b = neox ? a + pairs : a + 1;
        float cs = table[i], sn = table[pairs + i];
        float x0 = head[a], x1 = head[b], y0 = x0 * cs, y1 = x0 * sn;
        head[a] = fmaf(-x1, sn, y0);
        head[b] = fmaf(x1, cs, y1);
    }
    __syncthreads();
}

/* A block for each head of q, then of K, then of V. */
KERNEL(attn_enter, 64)
{
    __shared__ float head[MOST_WIDTH];
    uint32_t h = blockIdx.x, n_q = enters(arg, N_HEAD), n_kv = arg.p[3], d_k = arg.p[4];
    uint32_t n = rows_of(arg, arg.rows), t = threadIdx.x, at;
    int what = arg.spec[4], kt = k_type(arg), vt = v_type(arg);
    bool is_q = h < n_q, is_v = h >= n_q + n_kv, normed = what & (is_q ? NORMED : 2 * NORMED);
    bool weighted = what & (is_q ? WEIGHTED : 2 * WEIGHTED);
    const float *w = is_q ? f32_at(arg.w) : f32_at(arg.p[10] | (uint64_t)arg.p[11] << 32);
    float eps = as_float(enters(arg, is_q ? Q_EPS : K_EPS));
    h -= is_q ? 0 : is_v ? n_q + n_kv : n_q;
    EACH_ROW(r, n) {
        uint32_t slot = (uint32_t)step_slot(arg, arg.p[0], r);
        uint64_t page = page_of(arg, (uint32_t)step_seg(arg, r), slot, &at);
        if (is_v) {
            const float *x = row_of(enters_at(arg, AT_V), r, enters(arg, V_LD)) + h * arg.p[5];
            for (uint32_t u = t; u < arg.p[5] / (vt > T_BF16 ? 32 : 1); u += 64)
                store_unit(vt, v_place(arg, page, h, at), number_bytes(vt), u, x);
            continue;
        }
        const float *x = is_q ? row_of(arg.a, r, arg.lda) + (uint64_t)h * enters(arg, Q_STEP)
                              : row_of(arg.b, r, arg.ldb) + (uint64_t)h * enters(arg, K_STEP);
        turn_head(arg, x, w, normed, weighted, eps,
                  row_of(enters_at(arg, AT_TABLE), r, enters(arg, TABLE_LD)), head);
        if (is_q) {
            float *y = row_of(arg.dst, r, arg.ld) + (uint64_t)h * d_k;
            for (uint32_t i = t; i < d_k; i += 64)
                y[i] = what & SCALED ? head[i] * as_float(enters(arg, Q_SCALE)) : head[i];
        } else {
            for (uint32_t u = t; u < d_k / (kt > T_BF16 ? 32 : 1); u += 64)
                store_unit(kt, k_place(arg, page, h, at), k_step(arg), u, head);
        }
    }
}
