#include "common.glsl"
#include "tree.glsl"
/* grid.comp -- rows of a sequence as points of a grid (graph/ops/conv.c): IM2COL a thread a column,
 * GROUP_NORM a workgroup for a group of a sequence. */
layout(local_size_x = 64) in;

const int IM2COL = 0, GROUP_NORM = 1;
#define OP SPEC0

/* p: points under the kernel, w and h; left, top; points of a line, 0: all are one. */
float under(uint r, uint col)
{
    int w = int(arg.p[0]), h = int(arg.p[1]), part = int(col) % (w * h);
    int seg = step_seg(r), first = step_first(seg), rows = step_first(seg + 1) - first;
    int line = arg.p[4] != 0 ? int(arg.p[4]) : rows, own = int(r) - first;
    int x = own % line - int(arg.p[2]) + part % w, y = own / line - int(arg.p[3]) + part / w;
    int at = y * line + x;
    if (x < 0 || x >= line || y < 0 || at >= rows)
        return 0;
    return row_of(arg.a, uint(first + at), arg.lda).v[int(col) / (w * h)];
}

/* p: groups, eps. */
void group_norm(uint seg, uint group)
{
    uint per = (arg.cols + arg.p[0] - 1) / arg.p[0], col = group * per;
    uint width = col >= arg.cols ? 0 : min(per, arg.cols - col), t = gl_LocalInvocationID.x;
    uint first = uint(step_first(seg)), n = (uint(step_first(seg + 1)) - first) * width;
    precise float sum = 0, sq = 0;
    for (uint e = t; e < n; e += 64)
        sum = sum + row_of(arg.a, first + e / width, arg.lda).v[col + e % width];
    precise float mean = tree_sum(sum) / float(n);
    for (uint e = t; e < n; e += 64) {
        precise float d = row_of(arg.a, first + e / width, arg.lda).v[col + e % width] - mean;
        sq = fma(d, d, sq);
    }
    precise float k = 1.0 / sqrt(tree_sum(sq) / float(n) + ARG_F(1));
    for (uint e = t; e < n; e += 64) {
        uint r = first + e / width, i = col + e % width;
        precise float y = (row_of(arg.a, r, arg.lda).v[i] - mean) * k;
        row_of(arg.dst, r, arg.ld).v[i] = y;
    }
}

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (OP == GROUP_NORM) {
        for (uint s = gl_WorkGroupID.y; s < uint(step_at(2)); s += gl_NumWorkGroups.y)
            group_norm(s, gl_WorkGroupID.x);
        return;
    }
    if (i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        row_of(arg.dst, r, arg.ld).v[i] = under(r, i);
}
