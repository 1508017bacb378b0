/* mm_columns.inl -- what all vector kernels of matrix products share: compile-time columns, and the
 * walk over a tile.
 *
 * A kernel proper is an inline function of (where, NC) whose column count is a constant, so that
 * its accumulators are registers. It is instantiated for the counts that fit the registers; the
 * tile's run-time count is cut into those (7 = 4 + 3), never reading a column that is not there.
 * Only the stride between blocks stays a run-time number. When the cut gives several pieces, or one
 * piece cannot hold all rows, the panel is walked in chunks of k that stay in the cache while all
 * pieces pass over them; accumulators wait in y, which does not change their bits. */
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kern_mm.h"
#include "tensor/quant/packed.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define COLUMNS(c) UNROLL for (int c = 0; c < NC; c++)
/* Loads and stores stay on their side of it. */
#define BARRIER() __asm__ volatile("" : : : "memory")

/* Asks for `bytes` of the panel (or the next one): FAR ahead into the second-level cache, NEAR
 * ahead into the first. It pays where a loop computes for long between two lines of weights, so
 * that the hardware's prefetcher does not reach far enough ahead, and costs where the loop runs at
 * the memory's pace by itself; each kernel says from which column count on. */
enum { FAR = 16 << 10, NEAR = 4 << 10 };
INLINE void prefetch(const uint8_t *p, const int bytes)
{
    UNROLL for (int i = 0; i < bytes; i += 64)
    {
        __builtin_prefetch(p + FAR + i, 0, 2);
        __builtin_prefetch(p + NEAR + i, 0, 3);
    }
}

/* How few columns ask for weights (base/machine/cpu.h), which with 8 lanes run at the pace of
 * memory. Set when tables are made, where the table has it. */
static __attribute__((unused)) struct cpu_ahead columns_ahead = {256, 0};

/* Asks for them `ahead` bytes ahead, into the first-level cache. */
INLINE void prefetch_close(const uint8_t *p, const int bytes, const int ahead)
{
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + ahead + i, 0, 3);
}

/* One piece of work: columns [c0, c0 + NC) of the tile, blocks [b0, b1) of the panel ("block": what
 * one step along k reads). y is the tile's first column. The accumulators start from zero at block
 * 0 and from y elsewhere. */
struct piece {
    const uint8_t *panel;
    const struct act_tile *a;
    float *y;
    int64_t b0, b1;
    int c0;
};
typedef void piece_fn(const struct piece *p);

/* fn[nc]: the instance for nc columns, for nc = 1 .. few without a gap and perhaps `some` and
 * `many`, which may be the same; EVEN: there is none. The tile is cut into pieces of `many`, of
 * `some`, then even shares of at most `few`. With 4, 8 and 8: 13 = 8 + 3 + 2; with 6, EVEN and
 * EVEN: 13 = 5 + 4 + 4. */
enum { EVEN = ACT_TILE + 1 };
INLINE void walk_tile(piece_fn *const fn[], int few, int some, int many, const void *panel,
                      int64_t n_blocks, int64_t chunk, const struct act_tile *a, float *y)
{
    struct piece p = {.panel = panel, .a = a, .y = y};
    do {
        p.b0 = p.b1;
        p.b1 = n_blocks - p.b0 > chunk ? p.b0 + chunk : n_blocks;
        p.c0 = 0;
        for (int left = a->nc, nc; left > 0; left -= nc, p.c0 += nc) {
            const int shares = (left + few - 1) / few;
            nc = left >= many ? many : left >= some ? some : (left + shares - 1) / shares;
            fn[nc](&p);
        }
    } while (p.b1 < n_blocks);
}
