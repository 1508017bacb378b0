#include "common.glsl"
/* rope.comp -- heads turned by a table (graph/ops/rope.c), one thread a pair or an element that
 * stays. p: width, step of the operand's heads, first, rotated, neox, inverse. */
layout(local_size_x = 64) in;

void main()
{
    uint width = arg.p[0], first = arg.p[2], n_rot = arg.p[3], half_ = n_rot / 2;
    uint per = width - half_, u = gl_GlobalInvocationID.x, h = u / per, i = u % per;
    uint n = rows_of(arg.rows);
    if (h * width >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        F32 x = F32(arg.a + 4 * (uint64_t(r) * arg.lda + uint64_t(h) * arg.p[1]));
        F32 y = F32(arg.dst + 4 * (uint64_t(r) * arg.ld + uint64_t(h) * width));
        F32 table = F32(arg.b + 4 * uint64_t(r) * arg.ldb);
        if (i >= half_) {
            uint at = i - half_;
            at += at >= first ? n_rot : 0;
            y.v[at] = x.v[at];
            continue;
        }
        uint a = first + (arg.p[4] != 0 ? i : 2 * i), b = arg.p[4] != 0 ? a + half_ : a + 1;
        precise float cs = table.v[i], sn = table.v[half_ + i], x0 = x.v[a], x1 = x.v[b];
        sn = arg.p[5] != 0 ? -sn : sn;
        precise float y0 = x0 * cs, y1 = x0 * sn;
        y.v[a] = fma(-x1, sn, y0);
        y.v[b] = fma(x1, cs, y1);
    }
}
