#include "common.glsl"
#include "types.glsl"
#define RATIO SPEC3
#include "pages.glsl"
/* cache_write.comp -- the step's rows of K and V into their slots (CACHE_WRITE): a thread a number,
 * or a block of 32, which is rounded as tensor/quant/legacy.c does. */
layout(local_size_x = 64) in;

void store_f16(uint64_t at, uint h) { U16(at).v[0] = uint16_t(h); }

/* Codes 0 .. top of x around `zero`: (x - base) id + zero, in nibbles and fifth bits. */
void store_codes(uint64_t qs, uint64_t qh, F32 x, float base, float id, float zero, float top)
{
    uint high = 0;
    for (int i = 0; i < 16; i += 2) {
        uint word = 0;
        for (int j = i; j < i + 2; j++) {
            uint a = uint(clamp(roundEven((x.v[j] - base) * id + zero), 0.0, top));
            uint b = uint(clamp(roundEven((x.v[j + 16] - base) * id + zero), 0.0, top));
            high |= a >> 4 << j | b >> 4 << (j + 16);
            word |= ((a & 15) | (b & 15) << 4) << (8 * (j - i));
        }
        U16(qs + i).v[0] = uint16_t(word);
    }
    if (top > 16) {
        store_f16(qh, high & 0xffff);
        store_f16(qh + 2, high >> 16);
    }
}

void store_block(int type, uint64_t to, F32 x)
{
    float most = 0, lo = x.v[0], hi = x.v[0];
    for (int i = 0; i < 32; i++) {
        most = abs(x.v[i]) > abs(most) ? x.v[i] : most;
        lo = min(lo, x.v[i]);
        hi = max(hi, x.v[i]);
    }
    bool affine = type == T_Q4_1 || type == T_Q5_1, fives = type == T_Q5_0 || type == T_Q5_1;
    float top = type == T_Q8_0 ? 127 : fives ? 31 : 15, half_ = (top + 1) / 2;
    uint m16 = affine ? to_f16(lo) : 0;
    float base = unpackHalf2x16(m16).x;
    precise float scale = affine           ? (hi - base) / top
                          : type == T_Q8_0 ? abs(most) / 127
                                           : most / -half_;
    uint d16 = to_f16(scale);
    float d = unpackHalf2x16(d16).x, id = d != 0 ? 1.0 / d : 0;
    store_f16(to, d16);
    if (affine)
        store_f16(to + 2, m16);
    to += affine ? 4 : 2;
    if (type == T_Q8_0) {
        for (int i = 0; i < 32; i += 2) {
            int a = int(clamp(roundEven(x.v[i] * id), -127.0, 127.0));
            int b = int(clamp(roundEven(x.v[i + 1] * id), -127.0, 127.0));
            U16(to + i).v[0] = uint16_t((a & 255) | (b & 255) << 8);
        }
        return;
    }
    store_codes(to + (fives ? 4 : 0), to, x, base, id, affine ? 0 : half_, top);
}

/* Unit u of a head: number u, or block u. */
void store_unit(int type, uint64_t row, uint step, uint u, F32 x)
{
    if (type > T_BF16)
        store_block(type, row + row_bytes(type, 32) * u, F32(uint64_t(x) + 128 * u));
    else
        store_number(type, row + u * step, x.v[u]);
}

void main()
{
    uint k_units = arg.p[4] / (K_TYPE > T_BF16 ? 32 : 1), n_k = arg.p[3] * k_units, at;
    uint v_units = LATENT ? 0 : arg.p[5] / (V_TYPE > T_BF16 ? 32 : 1), n_v = arg.p[3] * v_units;
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= n_k + n_v)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        uint slot = uint(step_slot(arg.p[0], r));
        if (RATIO > 1 && slot % RATIO != RATIO - 1)
            continue;
        uint64_t page = page_of(uint(step_seg(r)), slot, at);
        if (i < n_k) {
            uint h = i / k_units;
            store_unit(K_TYPE, k_place(page, h, at), k_step(), i % k_units,
                       F32(uint64_t(row_of(arg.a, r, arg.lda)) + 4 * h * arg.p[4]));
        } else {
            uint h = (i - n_k) / v_units;
            store_unit(V_TYPE, v_place(page, h, at), number_bytes(V_TYPE), (i - n_k) % v_units,
                       F32(uint64_t(row_of(arg.b, r, arg.ldb)) + 4 * h * arg.p[5]));
        }
    }
}
