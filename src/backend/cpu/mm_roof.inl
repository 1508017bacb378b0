/* mm_roof.inl -- the machine's limits for one vector width (mm_lanes_*.inl comes first). What int8
 * can do is told by int8_step: one instruction, or the few that stand for it, of INT8_STEP_OPS
 * multiplications and additions. */

static uint64_t roof_read(const void *p, size_t n)
{
    const uint8_t *b = p, *end = b + n / 256 * 256;
    vi s[4] = {vi_zero(), vi_zero(), vi_zero(), vi_zero()};
    for (; b < end; b += 256)
        UNROLL for (int i = 0; i < 256 / (4 * LANES); i++) s[i % 4] =
            vi_or(s[i % 4], vi_load(b + 4 * LANES * i));
    return (uint64_t)vi_hmax(vi_or(vi_or(s[0], s[1]), vi_or(s[2], s[3])));
}

static double roof_int8(int64_t rounds)
{
    vi s[8], u = vi_set8(3), x = vi_set8(5);
    UNROLL for (int i = 0; i < 8; i++) s[i] = vi_zero();
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < 8; i++)
        {
            PIN(u);
            s[i] = int8_step(s[i], u, x);
            PIN(s[i]);
        }
    UNROLL for (int i = 0; i < 8; i++) USE(s[i]);
    return (double)rounds * 8 * INT8_STEP_OPS;
}

static double roof_f32(int64_t rounds)
{
    R s[10], a = r_set(0.5f), b = r_set(1.0f);
    UNROLL for (int i = 0; i < 10; i++) s[i] = r_zero();
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < 10; i++)
        {
            s[i] = r_fma(s[i], a, b);
            PIN(s[i]);
        }
    UNROLL for (int i = 0; i < 10; i++) USE(s[i]);
    return (double)rounds * 10 * LANES * 2;
}

#define KERN_MM_ROOF .roof_read = roof_read, .roof_int8 = roof_int8, .roof_f32 = roof_f32
