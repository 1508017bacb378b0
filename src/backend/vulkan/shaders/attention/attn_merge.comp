#include "common.glsl"
#include "merge.glsl"
/* attn_merge.comp -- the partials of a row and head as one result (ATTN_MERGE). p: query heads,
 * d_v, partials of a row. */
layout(local_size_x = 64) in;

#define SINKS  (SPEC0 != 0)
#define CHUNKS SPEC1

void main()
{
    uint h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, heads = arg.p[0], n = rows_of(arg.rows);
    uint padded = arg.lda / heads - 2;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        partial all = no_part(CHUNKS), one = no_part(CHUNKS);
        for (uint part = 0; part < arg.p[2]; part++) {
            F32 x = row_of(arg.a, r * arg.p[2] + part, arg.lda);
            one.m = x.v[h];
            one.l = x.v[heads + h];
            for (int c = 0; c < CHUNKS; c++)
                one.o[c] = t + 64 * c < padded ? x.v[2 * heads + h * padded + t + 64 * c] : 0;
            merge_part(all, one, CHUNKS);
        }
        if (SINKS) {
            one = no_part(CHUNKS);
            one.m = F32(arg.w).v[h];
            one.l = 1;
            merge_part(all, one, CHUNKS);
        }
        precise float k = 1.0 / all.l;
        for (int c = 0; c < CHUNKS; c++)
            if (t + 64 * c < arg.p[1])
                row_of(arg.dst, r, arg.ld).v[h * arg.p[1] + t + 64 * c] = all.o[c] * k;
    }
}
