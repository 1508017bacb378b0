#include "common.glsl"
/* hadamard.comp -- a workgroup for each p[0] numbers of a row, turned (graph/ops/rope.c). p[1]:
 * what they are multiplied with at last. */
layout(local_size_x = 64) in;

shared float block[256];

void turn(uint r)
{
    uint b = arg.p[0], t = gl_LocalInvocationID.x, first = gl_WorkGroupID.x * b;
    F32 x = F32(arg.a + 4 * (uint64_t(r) * arg.lda + first));
    F32 y = F32(arg.dst + 4 * (uint64_t(r) * arg.ld + first));
    for (uint i = t; i < b; i += 64)
        block[i] = x.v[i];
    for (uint h = 1; h < b; h *= 2) {
        barrier();
        for (uint i = t; i < b / 2; i += 64) { /* the pair i: the bit h is put in */
            uint at = (i & ~(h - 1)) * 2 + (i & (h - 1));
            float p = block[at], q = block[at + h];
            block[at] = p + q;
            block[at + h] = p - q;
        }
    }
    barrier();
    for (uint i = t; i < b; i += 64)
        y.v[i] = block[i] * ARG_F(1);
    barrier(); /* before the next row */
}

void main()
{
    uint n = rows_of(arg.rows);
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        turn(r);
}
