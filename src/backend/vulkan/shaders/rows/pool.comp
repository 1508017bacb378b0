#include "common.glsl"
/* pool.comp -- one row of each sequence (POOL of graph/ops/move.c). p[0]: mean, first, last. */
layout(local_size_x = 64) in;

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= arg.cols)
        return;
    for (uint s = gl_WorkGroupID.y; s < n; s += gl_NumWorkGroups.y) {
        int from = step_first(s), to = step_first(s + 1);
        if (arg.p[0] == 2)
            from = to - 1;
        float y = row_of(arg.a, from, arg.lda).v[i];
        if (arg.p[0] == 0) {
            for (int r = from + 1; r < to; r++)
                y = y + row_of(arg.a, r, arg.lda).v[i];
            y = y / float(to - from);
        }
        row_of(arg.dst, s, arg.ld).v[i] = y;
    }
}
