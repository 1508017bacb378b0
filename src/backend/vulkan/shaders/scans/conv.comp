#include "common.glsl"
#include "blocks.glsl"
/* conv.comp -- convolutions channel by channel (CONV of graph/ops/conv.c), a thread a channel.
 * p[3]: rows under the kernel; p[4]: how far before the row the first lies; p[5]: the next. */
layout(local_size_x = 64) in;

#define HAS_W     (SPEC0 != 0)
#define HAS_BIAS  (SPEC1 != 0)
#define HAS_STATE (SPEC2 != 0)

/* Channel i of row `at` of a segment; what lies outside: false. */
bool row_at(uint seg, int at, uint i, out float x)
{
    int first = step_first(seg), left = int(arg.p[4]);
    x = 0;
    if (at >= first) {
        if (at < step_first(seg + 1))
            x = row_of(arg.a, uint(at), arg.lda).v[i];
        return at < step_first(seg + 1);
    }
    if (!HAS_STATE || !has_before(seg))
        return false;
    x = row_of(before_of(seg), uint(at - first + left), arg.cols).v[i];
    return true;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    int width = int(arg.p[3]), left = int(arg.p[4]);
    if (i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        uint seg = uint(step_seg(r));
        precise float sum = 0;
        float x;
        for (int k = 0; k < (HAS_W ? width : 1); k++)
            if (row_at(seg, int(r) - left + k * int(arg.p[5]), i, x))
                sum = HAS_W ? fma(F32(arg.w).v[i * width + k], x, sum) : x;
        if (HAS_BIAS)
            sum = sum + F32(arg.bias).v[i];
        row_of(arg.dst, r, arg.ld).v[i] = sum;
        for (int k = 0; HAS_STATE && is_kept(r) && k < left; k++) {
            row_at(seg, int(r) - left + 1 + k, i, x);
            row_of(kept_of(r), uint(k), arg.cols).v[i] = x;
        }
    }
}
