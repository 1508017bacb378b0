#include "common.glsl"
#include "types.glsl"
#define RATIO SPEC3
#include "pages.glsl"
#include "store.glsl"
/* cache_write.comp -- the step's rows of K and V into their slots (CACHE_WRITE): a thread a number,
 * or a block of 32, which is rounded as tensor/quant/legacy.c does. */
layout(local_size_x = 64) in;

/* Unit u of a head: number u, or block u. */
void store_unit(int type, uint64_t row, uint step, uint u, F32 x)
{
    if (type > T_BF16)
        store_block(type, row + row_bytes(type, 32) * u, block_of(F32(uint64_t(x) + 128 * u)));
    else
        store_number(type, row + u * step, x.v[u]);
}

void main()
{
    uint k_units = arg.p[4] / (K_TYPE > T_BF16 ? 32 : 1), n_k = arg.p[3] * k_units, at;
    uint v_units = LATENT ? 0 : arg.p[5] / (V_TYPE > T_BF16 ? 32 : 1), n_v = arg.p[3] * v_units;
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= n_k + n_v)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        uint slot = uint(step_slot(arg.p[0], r));
        if (RATIO > 1 && slot % RATIO != RATIO - 1)
            continue;
        uint64_t page = page_of(uint(step_seg(r)), slot, at);
        if (i < n_k) {
            uint h = i / k_units;
            store_unit(K_TYPE, k_place(page, h, at), k_step(), i % k_units,
                       F32(uint64_t(row_of(arg.a, r, arg.lda)) + 4 * h * arg.p[4]));
        } else {
            uint h = (i - n_k) / v_units;
            store_unit(V_TYPE, v_place(page, h, at), number_bytes(V_TYPE), (i - n_k) % v_units,
                       F32(uint64_t(row_of(arg.b, r, arg.ldb)) + 4 * h * arg.p[5]));
        }
    }
}
