/* cache_write.cu -- the step's rows of K and V into their slots (CACHE_WRITE): a thread a number,
 * or a block of 32, which is rounded as tensor/quant/legacy.c does. */
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
