/* cache.h -- K and V of all sequences: pages of 64 slots in pools, page tables per sequence,
 * reference counts.
 *
 * States (graph/state.h) that are rows and of which the same is seen (everything, or a window or
 * chunk of the same size) on the same device form a group. A page of a group holds 64 slots of all
 * its states:
 *
 *     page:  [state a: K of head 0 .. | V of head 0 ..][state b: ..]     (graph/kv_page.h: what is
 *            in a head)
 *
 * A sequence is a page table per group: entry i is the place (graph/step.h) of slots 64i .. 64i+63.
 * Slot i is the i-th token held, without holes; slot = position until the sequence is edited or a
 * row is given its position, and positions never descend along slots. Where K goes by four
 * positions (M-RoPE) `position` is the first: it alone says what is seen, and the others go with it
 * through every edit. Places are counted and shared by copies of a sequence; one
 * that is written while shared is copied first. The last slots of a sequence lie in a quarter of a
 * page as long as they are 16 or fewer, so that many short ends of one prefix take few pages; then
 * they move to a page of their own. Address space for the limit is reserved at open; 2 MiB slabs
 * are committed as pages are first used. Groups with a window give pages back that no row to come
 * can see, but keep those that `floor` may need (rewinding after a step that failed).
 *
 * An edit (cache_edit.c) costs no memory for K and V and moves none: it says for each slot where
 * its K and V lie now (src) and by how much K has to be rotated (delta, summed). cache_settle does
 * it all in one pass before the next step that reads the sequence:
 *
 *     remove [64, 130):   slots 0 .. 63 | 64 ..        src 0 .. 63 | 130 ..     the first page is
 *                         kept, later ones are gathered anew
 *
 * A sequence of a model with an encoder has a memory besides (cache_memory.c): the rows that the
 * encoder's run wrote into states of CROSS rows. Groups of these come after those of tokens. Their
 * page tables do not grow with the sequence, no edit changes them, and what is in a page is never
 * written again; copies share them. A third kind of group is used only while the encoder runs.
 *
 * So kernels know nothing of holes, a window is a range of slots, and a sequence never has more
 * than one partial page once settled. The pages it was gathered from stay until the call of the
 * step has succeeded: rotating rounds, and a call that fails has rounded nothing. For so long the
 * pool may hold one context beyond its limit. */
#ifndef PITH_RUN_CACHE_H
#define PITH_RUN_CACHE_H

#include "graph/plan.h"

/* What a group has pages of: tokens of sequences, their memories, rows of a step of the encoder. */
enum cache_of { CACHE_TOKENS, CACHE_MEMORY, CACHE_STEP };
enum { POS_MAX = 1 << 30 }; /* positions are below */

struct cache_group {
    enum cache_of of;
    enum state_range range;
    int32_t span; /* of the window or chunk; 0: everything is seen */
    int32_t device;
    int64_t page_bytes;
    struct slabs pages;
    uint64_t reserved; /* bytes of all pages there can be */
    int32_t n_pages; /* limit */
    int32_t n_spare; /* pages beyond it that settled sequences may hold until the call ends, */
    int32_t n_lent;  /* and that they do: cache_seq.lent of all */
    int32_t n_made;  /* pages ever used: [0, n_made) are zeroed or in use */
    int32_t n_free;
    int32_t *free_list; /* [n_pages + n_spare] stack */
    int32_t *refs;      /* [n_pages + n_spare][4] of places */
    uint8_t *parts;     /* [n_pages + n_spare] bit i: quarter i is in use; 0: the page is whole */
    int32_t *open; /* [n_pages + n_spare] pages of which some quarters are in use, and some not */
    int32_t n_open;
    int32_t *stored; /* [n_pages + n_spare] entries of the store that hold it: one of the tree, and
                        orphans; NULL: there is no store */
    int32_t n_stored; /* pages that the store holds, */
    int32_t n_idle;   /* and that nobody else does */
};

struct cache_slot {
    int32_t pos;
    int32_t src;   /* the slot of the page tables where K and V lie until the sequence is settled */
    int32_t delta; /* K is to be rotated by so many positions */
};

/* The three positions of a slot beside `pos`, and by how much K is to be rotated of each. */
struct cache_axes {
    int32_t pos[STEP_AXES], delta[STEP_AXES];
};

/* The last page of a sequence in the store's tree: its entry, or that there is none any more, and
 * how many pages lead to it. */
struct store_mark {
    uint64_t key[2], born;
    int32_t entry,
        depth; /* a depth below cache_seq.published: what comes after it is not taken in */
};

/* How far the store's folder has a prompt whose pages are being brought to memory, call by call. */
struct store_far {
    uint64_t key[2]; /* after all full pages of the prompt */
    int32_t pages;   /* 0: it is to be looked up */
};

struct cache_seq {
    int32_t n;     /* slots held */
    int32_t floor; /* n before the call in progress: it may have to go back there */
    int32_t pure; /* slots [0, pure) were computed from their true prefix at their true positions */
    int32_t published; /* full pages the store has been offered */
    struct store_mark mark;
    struct store_far far;
    uint64_t salt[2];                /* 0, 0: none; see pith_salt */
    uint64_t adapter[2];             /* what its adapters are; 0, 0: none; see pith_adapt */
    int32_t adapter_set;             /* their number in a step */
    int32_t n_memory;                /* rows of its memory, 0: it has none; of the tokens */
    uint64_t memory[2];              /* of this hash */
    int32_t *token;                  /* [n_ctx] what was fed; -1: an embedding row */
    int32_t n_tokens;                /* of them that there is memory for: cache_tokens */
    int32_t *pages[STEP_MAX_GROUPS]; /* [cap_pages] places, -1: none */
    /* Slots below may be missing in a group with a window even where a page is there: edits gather
     * slots of pages given back with others. */
    int32_t torn[STEP_MAX_GROUPS];
    int foreign; /* some of it came from a snapshot's file: the store does not take it on trust */
    int edited;  /* positions are in `slot`, not the slots' own numbers */
    int axed;    /* edited, and the other positions of some slot, in `axes`, or by how much they are
                    still to be rotated, are not those of text */
    int n_tree;  /* rows of a tree that the last step has tried, in the slots from n on; see
                    cache_accept */
    int placed;  /* some row was given its position: the next one's may be that of the last */
    int pending; /* some src is not the slot itself, or some delta not 0 */
    int settled; /* in the call in progress: src and delta tell of `was`, the tables before */
    /* Of each group, pages beyond the limit that it holds until the call ends: never more than the
     * old table gives back then if the call succeeds, or the new one if it fails. */
    int32_t lent[STEP_MAX_GROUPS];
    struct cache_slot *slot; /* [n_ctx], NULL until the first edit, as the tables: */
    struct cache_axes *axes; /* [n_ctx], kept where `edited` is and the cache has axes */
    int32_t *was[STEP_MAX_GROUPS];
};

enum { CACHE_RUNS = 2 };

struct cache {
    int32_t n_ctx, n_seq, cap_pages;
    int32_t n_groups, n_own; /* those of tokens come first: n_own of them */
    int32_t n_memory;        /* rows that a memory can have; 0: the model has no encoder */
    struct cache_group group[STEP_MAX_GROUPS];
    int32_t *fresh[STEP_MAX_GROUPS]; /* [cap_pages] places of the memory that is being made */
    struct cache_seq *seq; /* [n_seq] */
    struct device *const *devices;
    const struct state *states; /* [n_states] of the session; those with pages take part */
    int32_t n_states;
    int by_distance; /* some state is */
    int axes;        /* K of some state goes by more than one position: M-RoPE */
    int n_nodes; /* memory nodes that threads of the pool are dealt over; 1: nodes do not matter */
    struct pool *pool;
    int32_t *tokens; /* of all sequences: reserved, and committed as they grow */
    uint64_t tokens_reserved, tokens_committed;
    uint64_t store_bytes;
    int32_t
        n_stored; /* entries of the store: each with a page of every group and a recurrent state */
    /* What is to be done to pages before the next step reads them, and who does it; NULL: they hold
     * nothing, only their accounting is of interest. */
    struct cache_log *log;
    struct plan_run *run[CACHE_RUNS]; /* each may know devices that others do not */
    struct store *store; /* NULL: there is none */
    /* When there are no pages: it gives back what frees one of the group. 0: it has none. */
    int (*evict)(struct store *t, struct cache *c, int group);
    struct mem_account *account; /* of what is made later, NULL: nobody's */
    struct cache_draft *draft;   /* cache_edit.c's, from the first edit on */
};

struct cache_params {
    int32_t n_ctx, n_seq, n_batch;
    int32_t n_memory; /* as in struct cache */
    int64_t n_tokens;
    uint64_t store_bytes; /* pages beyond those of n_tokens, for the store */
    int store_context;    /* at least those of one context */
    int store_folder;     /* they are written to a folder, too */
    uint64_t state_bytes; /* of recurrent state that the store keeps with each page */
    enum dtype k_type, v_type;
    int n_nodes;       /* over which the threads of `pool` are spread; 0, 1: nodes do not matter */
    struct pool *pool; /* NULL: as with one node */
};

/* What cache_init would make, of which cache_limit tells: it takes no memory, and there is nothing
 * to deinit. */
pith_status cache_shape(struct cache *c, struct state *states, int32_t n_states,
                        struct device *const *devices, const struct cache_params *p,
                        struct pith_error *err);
/* Lays out those of the states that are rows (fills group, offsets and types) and makes the pools.
 */
pith_status cache_init(struct cache *c, struct state *states, int32_t n_states,
                       struct device *const *devices, const struct cache_params *p,
                       struct pith_error *err);
void cache_deinit(struct cache *c);

/* The first position that a row at pos sees. */
static inline int64_t cache_first_seen(const struct cache_group *g, int64_t pos)
{
    return state_first_seen(g->range, g->span, pos);
}
static inline int32_t cache_pos(const struct cache_seq *q, int32_t slot)
{
    return q->edited ? q->slot[slot].pos : slot;
}
/* 1: those of text. */
static inline int cache_is_text(const int32_t pos[1 + STEP_AXES])
{
    return pos[1] == pos[0] && pos[2] == pos[0] && !pos[3];
}
/* All four; those beside the first are 0 of text where the model goes by the first alone. */
static inline void cache_pos4(const struct cache_seq *q, int32_t slot, int32_t pos[1 + STEP_AXES])
{
    pos[0] = pos[1] = pos[2] = cache_pos(q, slot);
    pos[3] = 0;
    for (int i = 0; q->axed && i < STEP_AXES; i++)
        pos[1 + i] = q->axes[slot].pos[i];
}
/* Position of a row of text that comes after these. */
static inline int32_t cache_after(const int32_t pos[1 + STEP_AXES])
{
    int32_t most = pos[0] > pos[1] ? pos[0] : pos[1];
    return (most > pos[2] ? most : pos[2]) + 1;
}
/* The same after the first n slots. */
static inline int32_t cache_next(const struct cache_seq *q, int32_t n)
{
    int32_t pos[1 + STEP_AXES];
    if (!n)
        return 0;
    cache_pos4(q, n - 1, pos);
    return cache_after(pos);
}
/* The least position that a row after the first n slots can have. */
static inline int32_t cache_least(const struct cache_seq *q, int32_t n)
{
    return q->placed && n ? cache_pos(q, n - 1) : cache_next(q, n);
}
/* A call that feeds the sequence begins, has succeeded, or goes back to where it began. */
void cache_begin(struct cache *c, int32_t seq);
void cache_end(struct cache *c, int32_t seq, int failed);
/* The first slot whose position is at least pos. */
int32_t cache_find(const struct cache_seq *q, int64_t pos);

/* Does now what is in the log; or the first n ints of it, on one device alone. */
pith_status cache_flush(const struct cache *c, struct pith_error *err);
uint32_t cache_forget(const struct cache *c); /* ints that all devices have done leave the log */
pith_status cache_flush_on(const struct cache *c, int device, uint32_t n, struct pith_error *err);
/* Makes slots [seq.n, seq.n + add) of a settled sequence writable: pages taken, shared ones copied.
 * PITH_NOMEM tells needed and free pages. */
pith_status cache_grow(struct cache *c, int32_t seq, int32_t add, struct pith_error *err);
/* Rows that come with positions of their own are about to be appended to a settled sequence: makes
 * what will hold them. */
pith_status cache_place(struct cache *c, int32_t seq, struct pith_error *err);
/* Appends a slot that cache_grow made and a step filled; pos NULL: the next one, of text. */
void cache_append(struct cache *c, int32_t seq, int32_t token, const int32_t pos[1 + STEP_AXES]);
/* Appends n of the rows that a tree's step has left behind slot seq.n, ascending: row[i] of them is
 * token[i]. The others go. On failure none is appended, and all go. */
pith_status cache_accept(struct cache *c, int32_t seq, const int32_t *row, const int32_t *token,
                         int32_t n, struct pith_error *err);
/* Keeps the first n slots. */
void cache_cut(struct cache *c, int32_t seq, int32_t n);
/* 1: the sequence can be cut to n and go on; 0: a window group has given back pages that the row
 * after slot n needs. */
int cache_can_resume(const struct cache *c, const struct cache_seq *q, int32_t n);
/* The same of a row after slot n whose position is `pos`. */
int cache_can_see(const struct cache *c, const struct cache_seq *q, int32_t n, int32_t pos);
/* Makes room for the numbers of n tokens in a sequence; whoever writes more of them asks first. */
pith_status cache_tokens(struct cache *c, struct cache_seq *q, int32_t n, struct pith_error *err);
uint64_t cache_bytes(const struct cache *c); /* of pages, committed */
uint64_t cache_limit(const struct cache *c); /* at most */
uint64_t cache_tables_most(
    const struct cache *c); /* beside K and V, when every sequence is full and edited */
uint64_t cache_growth(const struct cache *c); /* of tables: what may still be made */
/* Gives whole slabs behind the last page in use back to the system, as far as the devices go along.
 */
void cache_trim(struct cache *c);

/* cache_memory.c. Pages for a new memory of n rows, in c->fresh, and for the encoder's run;
 * PITH_NOMEM as cache_grow. Then the run has ended: the sequence gets it, or (failed) keeps what it
 * had. */
pith_status cache_memory_take(struct cache *c, int32_t seq, int32_t n, struct pith_error *err);
void cache_memory_end(struct cache *c, int32_t seq, int32_t n, const uint64_t hash[2], int failed);
void cache_memory_drop(struct cache *c, int32_t seq);
void cache_memory_share(struct cache *c, int32_t dst, int32_t src);

/* Edits; [a, b) are slots. Each of these four makes an edit ready, as the cache's draft, and
 * changes nothing; cache_edit makes it, right after that, and cannot fail. PITH_STATE: a window
 * group has given back what the row to come would see then. PITH_RANGE: one of a slot's other
 * positions would be below 0 or above 2^30 - 1. */
pith_status cache_remove(struct cache *c, int32_t seq, int32_t a, int32_t b,
                         struct pith_error *err);
/* The same, and positions of what follows become pos + delta. */
pith_status cache_close_up(struct cache *c, int32_t seq, int32_t a, int32_t b, int32_t delta,
                           struct pith_error *err);
/* dst becomes slots [a, b) of src, sharing their pages. */
pith_status cache_share(struct cache *c, int32_t dst, int32_t src, int32_t a, int32_t b,
                        struct pith_error *err);
/* Positions of slots [a, b) become (pos + delta) / divisor, the fourth stays as it is; the first
 * ones stay within 0 and 2^30 - 1. */
pith_status cache_move(struct cache *c, int32_t seq, int32_t a, int32_t b, int32_t delta,
                       int32_t divisor, struct pith_error *err);
/* The draft becomes sequence dst, its slots being those of src (of all but cache_share: dst). */
void cache_edit(struct cache *c, int32_t dst, int32_t src);
/* Carries out the edits of a sequence, for the call in progress: afterwards K and V of slot i lie
 * in slot i. PITH_NOMEM as cache_grow. */
pith_status cache_settle(struct cache *c, int32_t seq, struct pith_error *err);

#endif
