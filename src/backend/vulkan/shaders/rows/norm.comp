#include "common.glsl"
#include "tree.glsl"
/* norm.comp -- a workgroup for each stretch of a row (graph/ops/norm.c, and what sums like it):
 * 64 chains, one a thread, and their tree. */
layout(local_size_x = 64) in;

const int RMS = 0, LAYER = 1, L2 = 2, HEAD_SCALE = 3, LENGTH = 4, TOP_PART = 5,
          HEAD_DOT = 6;
#define OP    SPEC0
#define HAS_W (SPEC1 != 0)
#define CENTRED (OP == LAYER || OP == TOP_PART)
#define NUMBER (OP == LENGTH || OP == HEAD_DOT) /* one of a stretch */

/* p[0] elements of x; p[1] from one stretch to the next; p[2] stretches of a row; p[3] eps. */
void stretch(uint r, uint h)
{
    uint n = arg.p[0], t = gl_LocalInvocationID.x;
    F32 x = F32(arg.a + 4 * (uint64_t(r) * arg.lda + uint64_t(h) * arg.p[1]));
    F32 y = F32(arg.dst + 4 * (uint64_t(r) * arg.ld + uint64_t(h) * (NUMBER ? 1 : n)));
    F32 z = F32(arg.b + 4 * (uint64_t(r) * arg.ldb + uint64_t(h) * n));
    F32 w = F32(arg.w + (OP == HEAD_SCALE ? 4 * uint64_t(h) * n : 0));
    precise float sum = 0, mean = 0;
    for (uint i = t; i < n; i += 64)
        sum = CENTRED            ? sum + x.v[i]
              : OP == HEAD_SCALE ? fma(z.v[i], w.v[i], sum)
              : OP == HEAD_DOT   ? fma(x.v[i], z.v[i], sum)
                                 : fma(x.v[i], x.v[i], sum);
    sum = tree_sum(sum);
    if (CENTRED) {
        precise float sq = 0;
        mean = sum / float(n);
        for (uint i = t; i < n; i += 64) {
            precise float d = x.v[i] - mean;
            sq = fma(d, d, sq);
        }
        sum = tree_sum(sq);
    }
    if (OP == TOP_PART) {
        precise float cut = mean + ARG_F(3) * sqrt(sum / float(n > 1 ? n - 1 : 1));
        for (uint i = t; i < n; i += 64)
            y.v[i] = max(x.v[i] - cut, 0.0);
        return;
    }
    if (NUMBER) {
        if (t == 0)
            y.v[0] = OP == LENGTH ? sqrt(sum) : sum;
        return;
    }
    float len = OP == L2 ? sqrt(sum) : 0;
    precise float k = OP == HEAD_SCALE ? sum
                      : OP == L2       ? 1.0 / (len > ARG_F(3) ? len : ARG_F(3))
                                       : 1.0 / sqrt(sum / float(n) + ARG_F(3));
    for (uint i = t; i < n; i += 64) {
        precise float v = (x.v[i] - mean) * k;
        y.v[i] = OP == RMS && HAS_W ? v * w.v[i] : v;
    }
}

void main()
{
    uint n = rows_of(arg.rows);
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        stretch(r, gl_WorkGroupID.x);
}
