/* mm_quantise.inl -- activation quantisers of tensor/act.h, for any vector width (mm_lanes_*.inl
 * comes first). */

enum { PART_VECTORS = 16 / LANES }; /* vectors of 16 values */

/* Largest magnitude of n values as its bits: integers order non-negative floats, and put NaN above
 * all. */
INLINE float magnitude(const float *x, const int n)
{
    const vi no_sign = vi_set32(0x7fffffff);
    vi m = vi_zero();
    for (int i = 0; i < n; i += LANES)
        m = vi_max32(m, vi_and(vi_bits(r_load(x + i)), no_sign));
    int32_t bits = vi_hmax(m);
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}

/* Returns 1 / d and sets d. */
INLINE float scale_of(float amax, float *d)
{
    const int ok = !(amax < 0x1p-120f);
    *d = ok ? amax / 127.0f : 0.0f;
    return ok ? 127.0f / amax : 0.0f;
}

/* 16 values times id to bytes; returns their sum. */
INLINE int32_t round_part(const float *x, float id, int8_t *q)
{
    vi v[PART_VECTORS];
    UNROLL for (int i = 0; i < PART_VECTORS; i++)
    {
        R f = r_mul(r_load(x + LANES * i), r_set(id));
        v[i] = r_to_int(r_min(r_max(f, r_set(-127.0f)), r_set(127.0f)));
    }
    return vi_store_s8(q, v);
}

static void quant_a32(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c)
{
    int64_t at = c;
    for (int64_t b = 0; b < n / 32; b++, x += 32, at += nc) {
        const float id = scale_of(magnitude(x, 32), &d[at]);
        s32[at] = round_part(x, id, q + at * 32) + round_part(x + 16, id, q + at * 32 + 16);
    }
}

static void quant_a256(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c)
{
    int64_t at = c;
    q += 32 * c;
    for (int64_t b = 0; b < n / 256; b++, x += 256, at += nc) {
        float id = 0.0f;
        for (int i = 0; i < 8; i++, q += 32 * nc) {
            if (i % 4 == 0)
                id = scale_of(magnitude(x + 32 * i, 128), &d[at * 2 + i / 4]);
            s16[at * 16 + 2 * i] = (int16_t)round_part(x + 32 * i, id, q);
            s16[at * 16 + 2 * i + 1] = (int16_t)round_part(x + 32 * i + 16, id, q + 16);
        }
    }
}

/* Rounded to nearest even in integers, denormals included; a NaN keeps its upper half and becomes
 * quiet. */
INLINE vi bf16_bits(vi u)
{
    const vi_mask nan = vi_greater32(vi_and(u, vi_set32(0x7fffffff)), vi_set32(0x7f800000));
    const vi odd = vi_and(vi_shr32(u, 16), vi_set32(1));
    const vi rounded = vi_shr32(vi_add32(u, vi_add32(odd, vi_set32(0x7fff))), 16);
    return vi_select(nan, vi_or(vi_shr32(u, 16), vi_set32(0x40)), rounded);
}

static void to_bf16(const float *x, int64_t n, uint16_t *h)
{
    vi v[PART_VECTORS];
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL for (int j = 0; j < PART_VECTORS; j++) v[j] =
            bf16_bits(vi_bits(r_load(x + i + LANES * j)));
        vi_store_u16(h + i, v);
    }
    if (i < n) { /* the rest, and the zero that pads an odd row */
        float tail[16] = {0};
        uint16_t out[16];
        __builtin_memcpy(tail, x + i, (size_t)(n - i) * sizeof(float));
        UNROLL for (int j = 0; j < PART_VECTORS; j++) v[j] =
            bf16_bits(vi_bits(r_load(tail + LANES * j)));
        vi_store_u16(out, v);
        __builtin_memcpy(h + i, out, (size_t)(n - i + (n & 1)) * sizeof(uint16_t));
    }
}

#define KERN_MM_QUANTISE .quant_a32 = quant_a32, .quant_a256 = quant_a256, .to_bf16 = to_bf16
