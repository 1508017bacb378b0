#include "common.glsl"
/* columns.comp -- pieces of rows side by side (COLUMNS of graph/ops/move.c). extra: for each run
 * its operand's address and rows' distance, first, width, stride and where its columns begin. */
layout(local_size_x = 64) in;

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= arg.cols)
        return;
    U32 run = U32(arg.extra);
    uint at = 0;
    while (at + 8 < 8 * arg.p[0] && i >= run.v[at + 8 + 6])
        at += 8;
    uint64_t src = uint64_t(run.v[at]) | uint64_t(run.v[at + 1]) << 32;
    uint in_run = i - run.v[at + 6], width = run.v[at + 4];
    uint from = run.v[at + 3] + in_run / width * run.v[at + 5] + in_run % width;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        row_of(arg.dst, r, arg.ld).v[i] =
            row_of(src, r, run.v[at + 2]).v[from];
}
