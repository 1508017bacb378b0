/* mm_columns.inl -- what the matrix-product kernels of x86 share: compile-time columns, and the walk over a tile.
 *
 * A kernel proper is an inline function of (where, NC) whose column count is a constant, so that its accumulators are registers. It is
 * instantiated for the counts that fit the registers; the tile's run-time count is cut into those (7 = 4 + 3), never reading a column
 * that is not there. Only the stride between blocks stays a run-time number. When the cut gives several pieces, or one piece cannot hold
 * all rows, the panel is walked in chunks of k that stay in the cache while all pieces pass over them; accumulators wait in y, which
 * does not change their bits. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kern_mm.h"
#include "tensor/quant/packed.h"

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define COLUMNS(c) UNROLL for (int c = 0; c < NC; c++)

/* One piece of work: columns [c0, c0 + NC) of the tile, blocks [b0, b1) of the panel ("block": what one step along k reads). y is the
 * tile's first column. The accumulators start from zero at block 0 and from y elsewhere. */
struct piece {
    const uint8_t *panel;
    const struct act_tile *a;
    float *y;
    int64_t b0, b1;
    int c0;
};
typedef void piece_fn(const struct piece *p);

/* fn[nc]: the instance for nc columns, NULL where there is none (fn[1] must be). */
INLINE void walk_tile(piece_fn *const fn[ACT_TILE + 1], const void *panel, int64_t n_blocks, int64_t chunk,
                      const struct act_tile *a, float *y)
{
    struct piece p = {.panel = panel, .a = a, .y = y};
    do {
        p.b0 = p.b1;
        p.b1 = n_blocks - p.b0 > chunk ? p.b0 + chunk : n_blocks;
        for (int left = a->nc, nc; left > 0; left -= nc) {
            for (nc = left; !fn[nc]; nc = (nc + 1) / 2) /* in even shares: 9 = 5 + 4 rather than 8 + 1 */
                ;
            p.c0 = a->nc - left;
            fn[nc](&p);
        }
    } while (p.b1 < n_blocks);
}
