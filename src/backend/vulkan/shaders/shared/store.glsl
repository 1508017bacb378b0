/* store.glsl -- blocks of 32 numbers of K and V, rounded as tensor/quant/legacy.c does. */
void store_f16(uint64_t at, uint h) { U16(at).v[0] = uint16_t(h); }

/* Codes 0 .. top of x around `zero`: (x - base) id + zero, in nibbles and fifth bits. */
void store_codes(uint64_t qs, uint64_t qh, float x[32], float base, float id, float zero, float top)
{
    uint high = 0;
    for (int i = 0; i < 16; i += 2) {
        uint word = 0;
        for (int j = i; j < i + 2; j++) {
            uint a = uint(clamp(roundEven((x[j] - base) * id + zero), 0.0, top));
            uint b = uint(clamp(roundEven((x[j + 16] - base) * id + zero), 0.0, top));
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

void store_block(int type, uint64_t to, float x[32])
{
    float most = 0, lo = x[0], hi = x[0];
    for (int i = 0; i < 32; i++) {
        most = abs(x[i]) > abs(most) ? x[i] : most;
        lo = min(lo, x[i]);
        hi = max(hi, x[i]);
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
            int a = int(clamp(roundEven(x[i] * id), -127.0, 127.0));
            int b = int(clamp(roundEven(x[i + 1] * id), -127.0, 127.0));
            U16(to + i).v[0] = uint16_t((a & 255) | (b & 255) << 8);
        }
        return;
    }
    store_codes(to + (fives ? 4 : 0), to, x, base, id, affine ? 0 : half_, top);
}

float[32] block_of(F32 x)
{
    float all[32];
    for (int i = 0; i < 32; i++)
        all[i] = x.v[i];
    return all;
}
