/* state.cuh -- a part of a block of recurrent state (graph/backend.h, state_before, state_kept):
 * extra is the table of slabs; p[0 .. 2]: shift, bytes of a block, where the part begins. */
#pragma once
#include "common.cuh"

FN uint64_t block_at(const Args &a, int block)
{
    uint32_t b = (uint32_t)block;
    return u64(a.extra + 8 * (uint64_t)(b >> a.p[0])) +
           (uint64_t)(b & ((1u << a.p[0]) - 1)) * a.p[1] + a.p[2];
}
FN bool has_before(const Args &a, uint32_t seg) { return step_state(a, seg) >= 0; }
FN uint64_t before_of(const Args &a, uint32_t seg) { return block_at(a, step_state(a, seg)); }
FN bool is_kept(const Args &a, uint32_t row) { return step_keep(a, row) >= 0; }
FN uint64_t kept_of(const Args &a, uint32_t row) { return block_at(a, step_keep(a, row)); }
