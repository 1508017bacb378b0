/* kv_page.h -- where K and V of a slot lie in a page of the cache, and which types they can have:
 * what the reference ops, the CPU's kernels and whoever copies pages agree on.
 *
 * A page holds 64 slots; kv head h of a layer (struct state) at page + k_off + h * k_head and
 * page + v_off + h * v_head:
 *
 *     K   numbers (f32 f16 bf16)   [d_k][64]: scores of neighbouring slots are neighbouring lanes
 *         block types              4 panels of 16 slots, packed as that many rows of a weight are
 *             (tensor/quant/packed.h), so that scores
 *                                  are matrix products of the quantised query with them
 *     V   numbers                  [64][d_v], each row padded with zeros to whole vectors of 16
 *         block types              [64] rows of blocks as in a file
 *
 *     latent rows              [64] rows as in a file, those of numbers padded with zeros to whole
 *                              vectors of 16; V is their first d_v columns, and lies nowhere else
 *     keys of an indexer       K, and no V; 256 bytes behind them are the head's, too
 *
 * A state of one row for n slots has 64 / n rows in a page (one where n is more), in the place of
 * 64: row i for slots i n .. i n + n - 1. It is latent or keys of an indexer; of the latter
 * [d_k][16], or [d_k][64] where n is 2. Who gives or gets a row names any of its slots.
 *
 * Blocks lie along the head, so d_k and d_v are multiples of 32 where the type has blocks. A page
 * takes the bytes of its type and no more (but for the padding of V). Padding is never written:
 * pages are zeroed when they are made.
 *
 * Any 16 slots from slot 16i on can be another sequence's (graph/step.h, places): they are a panel,
 * or a vector of each row of K, and rows of V. So kernels read a quarter of a page as they read a
 * page, from its first slot on. Reading all 64 slots from there goes at most 48 slots beyond the
 * head, which are in the page: V is behind K.
 *
 * A slot's *row* is one head in the layout of a file: d numbers, or d / 32 blocks. */
#ifndef PITH_GRAPH_KV_PAGE_H
#define PITH_GRAPH_KV_PAGE_H

#include "graph/graph.h"

/* The types of a cache, best first; kv_types[n] for n < KV_N_TYPES. */
#define KV_TYPES(X)                                                                                \
    X(F32) X(F16) X(BF16) X(Q8_0) X(Q5_1) X(Q5_0) X(Q4_1) X(Q4_0) X(IQ4_NL)
#define X(T) KV_##T,
enum { KV_TYPES(X) KV_N_TYPES };
#undef X
extern const enum dtype kv_types[KV_N_TYPES];
int kv_type_known(enum dtype t);

static inline int kv_has_blocks(enum dtype t)
{
    return dtypes[t].block > 1;
}
/* Bytes of the 64 slots of one kv head. */
int64_t kv_k_bytes(enum dtype t, int64_t d_k);
int64_t kv_v_bytes(enum dtype t, int64_t d_v);
/* Lays one layer's part of a page out from byte `at` on: fills k_off, k_head, v_off and v_head;
 * returns where it ends. */
int64_t kv_lay_out(struct state *s, int64_t at);
/* K and V of block types are kept turned by a Hadamard matrix (graph/ops/rope.h, graph_hadamard): a
 * block has one scale, and where a few channels are much larger than their neighbours, as those of
 * K of many models are, it is theirs. Turned, each number is a sum of the block's with either sign,
 * and none is much larger than the others. The matrix is its own inverse and keeps dot products: so
 * scores are those of q turned alike, and what is summed up of V is turned back once.
 * Sets turn_k and turn_v for the types that the state has: the numbers of a block; 0 of types
 * without, and of rows that are numbers whatever their type, that choose slots, or whose V is
 * columns of K. */
void kv_choose_turn(struct state *s);
/* Whether V is kept by itself; its type. */
static inline int kv_has_v(const struct state *s)
{
    return !state_is(s, STATE_V_IN_K) && s->d_v > 0;
}
static inline enum dtype kv_v_type(const struct state *s)
{
    return state_is(s, STATE_V_IN_K) ? s->k_type : s->v_type;
}
/* Bytes of the longest row of K or V as f32, rounded up to 64: scratch for whoever converts rows.
 */
size_t kv_row_scratch(const struct state *kv);

/* Row of a slot to and from its place. V of latent rows can be read, not written: that does
 * nothing. page is the page's first byte, rows need no alignment. */
void kv_put_k(const struct state *kv, uint8_t *page, int head, int slot, const void *row);
void kv_put_v(const struct state *kv, uint8_t *page, int head, int slot, const void *row);
void kv_get_k(const struct state *kv, const uint8_t *page, int head, int slot, void *row);
void kv_get_v(const struct state *kv, const uint8_t *page, int head, int slot, void *row);

/* A layer's part of a page in canonical form, that of files and other devices: K and V apart, each
 * [64 slots][kv head][row]. The same bytes whatever layout a device keeps, and each is the other's
 * exact inverse; put leaves the padding of V as it is. Of n slots from `first` on. */
int64_t kv_canonical_k(const struct state *kv); /* bytes of a whole page's rows */
int64_t kv_canonical_v(const struct state *kv);
void kv_get_page(const struct state *kv, const uint8_t *page, int first, int n, void *k, void *v);
void kv_put_page(const struct state *kv, uint8_t *page, int first, int n, const void *k,
                 const void *v);

/* Is every number of such a page finite, or every scale of its blocks? */
int kv_page_finite(const struct state *kv, const void *k, const void *v);

/* One head's part of CACHE_GATHER (step.h). rotate turns a row of d_k numbers of K, as the state
 * keeps them, by the angles of a delta; NULL: the definition, kv_rotate, does. */
struct cache_op;
struct cache_view;
typedef void (*kv_rotate_fn)(const void *ctx, const struct state *kv, float *x,
                             const float *angles);
void kv_rotate(const struct state *kv, float *x, const float *angles);
void kv_gather(const struct state *kv, int head, const struct cache_view *view,
               const struct cache_op *op, kv_rotate_fn rotate, const void *ctx);

#endif
