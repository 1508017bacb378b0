/* step.h -- one pass of the engine as one plain, flat struct: no pointers, fixed capacities, so
 * that it can be logged, recorded, replayed or sent to another process as it lies. It is all that
 * goes from the scheduler to a plan with each step. Changes of pages (struct cache_log, below) and
 * sets of adapters (graph/ops/adapt.h) go beside it when there are some, and before it.
 *
 * A step holds T rows of any mixture of sequences; the rows of one sequence are adjacent (a
 * segment) and in order. R of the rows are asked for (outputs), N sequences take part. Layers that
 * keep the same kind of state on the same device share a cache group; a group has its own page
 * tables and its own visible range per row.
 *
 *   row r: token[r] (-1: it is embedding row r), seg[r] = its segment, pos[r], axes[r] = three
 *       positions more (of text pos[r], pos[r], 0), and per group g:
 *       slot[g][r] where its K and V go,
 *          lo[g][r] <= slot < hi[g][r] what it sees
 *   segment n: first[n] .. first[n+1] its rows, seq[n] the caller's sequence; pages[g][n][i] =
 *       place of slots 64i .. 64i+63
 *             state[n] = block of recurrent state it goes on from, -1: from nothing
 *   plus[r]: 1: its token's embedding and embedding row r, added
 *   adapter[r]: which set of adapters is added to its products (graph/ops/adapt.h), -1: none
 *   parent[r]: the row before it in its segment's tree, -1: none, it comes after what was there
 *       before the step; only where tree[seg[r]] is set
 *   keep[r]: block where the recurrent state after row r is kept, -1: nowhere; the last row of a
 *       segment always has one, and so has every row of a tree
 *   output i: out[i] = its row
 *   tile i of n_tiles: up to 16 rows of one segment from row tile[i] on: what attention works on
 *
 * Rows of a *tree* are not one after the other: each sees what was there before, the rows above it
 * and itself, as if it stood behind these alone. Slots are those of the rows in their order, but lo
 * and hi count the slots that a row sees: from that of the segment's first row on, slot i is its
 * ancestor at that depth (step_seen).
 *
 * A place (of slots; memory.h has another, of bytes) is 4 * page, or 4 * page + i for at most 16
 * slots that lie in the page from its slot 16i on: a quarter, as the last slots of a sequence may
 * have it.
 */
#ifndef PITH_GRAPH_STEP_H
#define PITH_GRAPH_STEP_H

#include <stdint.h>

enum { STEP_PAGE = 64, STEP_QUARTER = 16, STEP_TILE = 16 };
enum { STEP_MAX_GROUPS = 24 }; /* three kinds of state on each of eight devices (memory.h) */
enum { STEP_QUARTERS = STEP_PAGE / STEP_QUARTER };
enum { STEP_AXES = 3 };   /* positions of a row beside the first */
enum { STEP_DEPTH = 64 }; /* rows from a tree's root to its last, at most */

struct step {
    int32_t T, R, N, n_tiles;
    int32_t n_groups;
    int32_t embd; /* 1: some rows are embedding rows */
    int32_t cap_T, cap_R, cap_N, cap_pages, n_embd;
    int64_t bytes; /* of the whole struct with its arrays */
    /* Offsets of the arrays in int32 units from `data`. */
    int64_t o_token, o_seg, o_pos, o_out, o_first, o_seq, o_tile, o_embd, o_state, o_keep,
        o_adapter, o_axes, o_plus;
    int64_t o_slot[STEP_MAX_GROUPS], o_lo[STEP_MAX_GROUPS], o_hi[STEP_MAX_GROUPS],
        o_pages[STEP_MAX_GROUPS];
    int64_t o_parent, o_tree;
    int32_t data[];
};

/* Bytes a step of these capacities needs; step_init lays it out in zeroed memory of that size. */
int64_t step_bytes(int32_t cap_T, int32_t cap_R, int32_t cap_N, int32_t cap_pages, int32_t n_groups,
                   int32_t n_embd);
void step_init(struct step *s, int32_t cap_T, int32_t cap_R, int32_t cap_N, int32_t cap_pages,
               int32_t n_groups, int32_t n_embd);

/* step_NAME of a step that is looked at, step_put_NAME of one that is filled. */
#define STEP_ARRAY(name)                                                                           \
    static inline const int32_t *step_##name(const struct step *s)                                 \
    {                                                                                              \
        return s->data + s->o_##name;                                                              \
    }                                                                                              \
    static inline int32_t *step_put_##name(struct step *s)                                         \
    {                                                                                              \
        return s->data + s->o_##name;                                                              \
    }
#define STEP_GROUP_ARRAY(name)                                                                     \
    static inline const int32_t *step_##name(const struct step *s, int g)                          \
    {                                                                                              \
        return s->data + s->o_##name[g];                                                           \
    }                                                                                              \
    static inline int32_t *step_put_##name(struct step *s, int g)                                  \
    {                                                                                              \
        return s->data + s->o_##name[g];                                                           \
    }
STEP_ARRAY(token)
STEP_ARRAY(seg)
STEP_ARRAY(pos)
STEP_ARRAY(out)
STEP_ARRAY(first)
STEP_ARRAY(seq)
STEP_ARRAY(tile)
STEP_ARRAY(state)
STEP_ARRAY(keep)
STEP_ARRAY(adapter)
STEP_ARRAY(axes)
STEP_ARRAY(plus)
STEP_ARRAY(parent)
STEP_ARRAY(tree)
STEP_GROUP_ARRAY(slot)
STEP_GROUP_ARRAY(lo)
STEP_GROUP_ARRAY(hi)
#undef STEP_ARRAY
#undef STEP_GROUP_ARRAY

static inline int32_t place_page(int32_t place)
{
    return place / STEP_QUARTERS;
}
/* Where in its page slot `slot` of a sequence lies. */
static inline int32_t place_slot(int32_t place, int32_t slot)
{
    return place % STEP_QUARTERS * STEP_QUARTER + slot % STEP_PAGE;
}
/* 1: row r is an embedding row, not a token. */
static inline int step_is_embd(const struct step *s, int64_t r)
{
    return step_token(s)[r] < 0;
}
/* Gives row r the positions of text, or four of its own. */
static inline void step_place(struct step *s, int64_t r, int32_t pos)
{
    int32_t *axes = step_put_axes(s) + STEP_AXES * r;
    step_put_pos(s)[r] = axes[0] = axes[1] = pos;
    axes[2] = 0;
}
static inline void step_place4(struct step *s, int64_t r, const int32_t pos[1 + STEP_AXES])
{
    step_put_pos(s)[r] = pos[0];
    for (int i = 0; i < STEP_AXES; i++)
        step_put_axes(s)[STEP_AXES * r + i] = pos[1 + i];
}
static inline const float *step_embd(const struct step *s)
{
    return (const float *)(const void *)(s->data + s->o_embd);
}
static inline float *step_put_embd(struct step *s)
{
    return (float *)(void *)(s->data + s->o_embd);
}
static inline const int32_t *step_pages(const struct step *s, int g, int n)
{
    return s->data + s->o_pages[g] + (int64_t)n * s->cap_pages;
}
static inline int32_t *step_put_pages(struct step *s, int g, int n)
{
    return s->data + s->o_pages[g] + (int64_t)n * s->cap_pages;
}

/* The row that lies so many above row r of a tree. */
static inline int32_t step_above(const struct step *s, int32_t r, int32_t up)
{
    while (up-- > 0)
        r = step_parent(s)[r];
    return r;
}
/* The row that comes `back` >= 0 rows before row r in its sequence; -1: it is not of this step, but
 * *past rows before the last that was there. */
static inline int32_t step_back(const struct step *s, int32_t r, int32_t back, int32_t *past)
{
    int32_t seg = step_seg(s)[r], left = r - step_first(s)[seg];
    if (step_tree(s)[seg]) {
        for (; back && r >= 0; back--)
            r = step_parent(s)[r];
        *past = back;
        return r;
    }
    *past = back - left - 1;
    return back <= left ? r - back : -1;
}
/* The slot that row r sees as slot i of a group of its sequence's tokens. */
static inline int32_t step_seen(const struct step *s, int g, int32_t r, int32_t i)
{
    int32_t seg = step_seg(s)[r];
    if (!step_tree(s)[seg] || i < step_slot(s, g)[step_first(s)[seg]])
        return i;
    return step_slot(s, g)[step_above(s, r, step_hi(s, g)[r] - 1 - i)];
}

/* What is done to pages of the cache before the rows of a step: a flat list, in order, that goes
 * with the step to every device; each does what is of its groups.
 *
 *     zero     page `page` of group `group` becomes zero
 *     gather   slot first + j of it becomes a copy of a slot of another page, for j < n, its K
 *              rotated by `delta`, of each of a row's four positions
 *
 * No operation reads what it writes, so one that failed half way can be done again. What a device
 * has not done yet when a step fails stays in the list: pages are dealt out in the order of the
 * list, and so they have to be filled. */
enum cache_op_kind { CACHE_ZERO, CACHE_GATHER };
struct cache_slot_from {
    int32_t page, slot; /* page -1: from nowhere, nobody sees it */
    int32_t delta[1 + STEP_AXES];
};
struct cache_op {
    int32_t kind, group, page, first, n;
    struct cache_slot_from from[]; /* [n] */
};
enum { CACHE_OP_INTS = 5, CACHE_FROM_INTS = 3 + STEP_AXES };
struct cache_log {
    int32_t *op; /* [n] ints of operations one after the other */
    uint32_t n, cap;
};
/* Makes room for so many operations with so many slots in all. 0: no memory. */
int cache_log_room(struct cache_log *log, int64_t ops, int64_t slots);
/* Appends one, for which there is room; the caller fills `from`. */
struct cache_op *cache_log_add(struct cache_log *log, enum cache_op_kind kind, int32_t group,
                               int32_t page, int32_t first, int32_t n);
/* The operation at *at, which moves behind it; NULL at the end. */
const struct cache_op *cache_log_next(const struct cache_log *log, uint32_t *at);
void cache_log_deinit(struct cache_log *log);

#endif
