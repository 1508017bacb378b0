#include "common.glsl"
#include "pages.glsl"
/* cache_write.comp -- the step's rows of K and V into their slots (CACHE_WRITE), a thread a
 * number. */
layout(local_size_x = 64) in;

void main()
{
    uint i = gl_GlobalInvocationID.x, n_k = arg.p[3] * arg.p[4], n = rows_of(arg.rows), at;
    uint n_v = LATENT ? 0 : arg.p[3] * arg.p[5];
    if (i >= n_k + n_v)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        uint64_t page = page_of(uint(step_seg(r)), uint(step_slot(arg.p[0], r)), at);
        if (i < n_k)
            store_number(K_TYPE, k_place(page, i / arg.p[4], at, i % arg.p[4]),
                         row_of(arg.a, r, arg.lda).v[i]);
        else
            store_number(V_TYPE, v_place(page, (i - n_k) / arg.p[5], at, (i - n_k) % arg.p[5]),
                         row_of(arg.b, r, arg.ldb).v[i - n_k]);
    }
}
