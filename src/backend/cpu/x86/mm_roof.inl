/* mm_roof.inl -- the machine's limits for one vector width, and the table of its object (mm_lanes_*.inl and the kernels come first). */

/* Keeps a result that nobody reads. */
#define USE(v) __asm__ volatile("" : : "v"(v))

static uint64_t roof_read(const void *p, size_t n)
{
    const uint8_t *b = p, *end = b + n / 256 * 256;
    vi s[4] = {vi_zero(), vi_zero(), vi_zero(), vi_zero()};
    for (; b < end; b += 256)
        UNROLL for (int i = 0; i < 256 / (4 * LANES); i++)
            s[i % 4] = vi_or(s[i % 4], vi_load(b + 4 * LANES * i));
    return (uint64_t)vi_hmax(vi_or(vi_or(s[0], s[1]), vi_or(s[2], s[3])));
}

/* maddubs, madd and add of 32 bits: what int8 without vpdpbusd and without sums of int16 can do. */
static double roof_int8(int64_t rounds)
{
    vi s[8], u = vi_set8(3), x = vi_set8(5), one = vi_set16(1);
    UNROLL for (int i = 0; i < 8; i++)
        s[i] = vi_zero();
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < 8; i++) {
            PIN(u);
            s[i] = vi_add32(s[i], vi_madd16(vi_maddubs(u, x), one));
            PIN(s[i]);
        }
    UNROLL for (int i = 0; i < 8; i++)
        USE(s[i]);
    return (double)rounds * 8 * 4 * LANES * 2;
}

static double roof_f32(int64_t rounds)
{
    vf s[10], a = vf_set(0.5f), b = vf_set(1.0f);
    UNROLL for (int i = 0; i < 10; i++)
        s[i] = vf_zero();
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < 10; i++) {
            s[i] = vf_fma(s[i], a, b);
            PIN(s[i]);
        }
    UNROLL for (int i = 0; i < 10; i++)
        USE(s[i]);
    return (double)rounds * 10 * LANES * 2;
}

#define KERN_MM_TABLE                                                                                                  \
    {                                                                                                                  \
        .mm = {[DT_F32] = f32, [DT_F16] = f16, [DT_BF16] = bf16, [DT_Q8_0] = q8_0, [DT_Q4_0] = q4_0, [DT_Q4_1] = q4_1, \
               [DT_Q5_0] = q5_0, [DT_Q5_1] = q5_1, [DT_IQ4_NL] = iq4_nl, [DT_MXFP4] = mxfp4, [DT_Q2_K] = q2_K,         \
               [DT_Q3_K] = q3_K, [DT_Q4_K] = q4_K, [DT_Q5_K] = q5_K, [DT_Q6_K] = q6_K, [DT_IQ4_XS] = iq4_xs},          \
        .pack = {[DT_F32] = panel_f32, [DT_F16] = panel_f16, [DT_BF16] = panel_bf16, [DT_Q8_0] = panel_q8_0,           \
                 [DT_Q4_0] = panel_q4_0, [DT_Q4_1] = panel_q4_1, [DT_Q5_0] = panel_q5_0, [DT_Q5_1] = panel_q5_1,       \
                 [DT_IQ4_NL] = panel_q4_0, [DT_MXFP4] = panel_mxfp4, [DT_Q2_K] = panel_q2_K, [DT_Q3_K] = panel_q3_K,   \
                 [DT_Q4_K] = panel_q4_K, [DT_Q5_K] = panel_q5_K, [DT_Q6_K] = panel_q6_K, [DT_IQ4_XS] = panel_iq4_xs},  \
        .quant_a32 = quant_a32, .quant_a256 = quant_a256, .to_bf16 = to_bf16, .roof_read = roof_read,                  \
        .roof_int8 = roof_int8, .roof_f32 = roof_f32,                                                                  \
    }
