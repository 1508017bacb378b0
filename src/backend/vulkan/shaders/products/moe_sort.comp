#include "common.glsl"
/* moe_sort.comp -- the step's rows grouped by expert (MOE_SORT of graph/ops/moe.c), in one
 * workgroup: each thread looks through all rows for its experts. p: experts, experts of a
 * row, the first one's number in the routing. */
layout(local_size_x = 64) in;

const int MOST = 1024;
shared int count[MOST], start[MOST];

void main()
{
    uint t = gl_LocalInvocationID.x, n = arg.p[0], k = arg.p[1], rows = rows_of(arg.rows);
    int first = int(arg.p[2]);
    I32 y = I32(arg.dst);
    for (uint e = t; e < n; e += 64) {
        int c = 0;
        for (uint r = 0; r < rows; r++)
            for (uint j = 0; j < k; j++)
                c += int(ints_of(arg.a, r, arg.lda).v[j] == first + int(e));
        count[e] = c;
    }
    barrier();
    if (t == 0) {
        int at = 0, used = 0;
        for (uint e = 0; e < n; e++) {
            start[e] = at;
            if (count[e] > 0) {
                y.v[1 + used] = int(e);
                y.v[1 + n + used++] = at;
            }
            at += count[e];
        }
        y.v[0] = used;
        y.v[1 + n + used] = at;
    }
    barrier();
    for (uint e = t; e < n; e += 64) {
        uint at = 2 + 2 * n + uint(start[e]);
        for (uint r = 0; count[e] > 0 && r < rows; r++)
            for (uint j = 0; j < k; j++)
                if (ints_of(arg.a, r, arg.lda).v[j] == first + int(e))
                    y.v[at++] = int(r * k + j);
    }
}
