#include "common.glsl"
/* rope_table.comp -- cos and sin of each row's angles (graph/ops/rope.c). Angles are turns, in
 * fractions of 2^64, so that a position times one is exact but for whole turns. Behind the turns of
 * all pairs lies which of a row's four positions each goes by. p: factor; rows that are turned as
 * the first of them, 0 or 1: each by itself. */
layout(local_size_x = 64) in;

/* sin and cos of x, |x| <= pi/4 [Cephes sinf, cosf]. */
float small_sin(float x)
{
    precise float z = x * x;
    return fma(fma(fma(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1) * z, x, x);
}
float small_cos(float x)
{
    precise float z = x * x;
    return fma(fma(fma(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2),
               z * z, fma(-0.5, z, 1.0));
}

void main()
{
    uint i = gl_GlobalInvocationID.x, half_ = arg.cols / 2, n = rows_of(arg.rows);
    if (i >= half_)
        return;
    uint64_t turn = U64(arg.extra).v[i];
    uint axis = uint(U64(arg.extra).v[half_ + i]);
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        int pos = step_axis(r, axis);
        if (arg.p[1] > 1)
            pos = step_pos(r) - step_pos(r) % int(arg.p[1]);
        uint64_t all = turn * uint64_t(int64_t(pos));
        uint top = uint(all >> 32), quarter = (top + 0x20000000u) >> 30;
        float x = float(int(top - (quarter << 30))) * 1.4629180792671596e-9; /* 2 pi / 2^32 */
        float s = small_sin(x), c = small_cos(x);
        float cs = (quarter & 1) == 0 ? c : s, sn = (quarter & 1) == 0 ? s : c;
        cs = quarter == 1 || quarter == 2 ? -cs : cs;
        sn = quarter >= 2 ? -sn : sn;
        F32 y = F32(arg.dst + 4 * uint64_t(r) * arg.ld);
        y.v[i] = cs * ARG_F(0);
        y.v[half_ + i] = sn * ARG_F(0);
    }
}
