/* store.h -- pages that outlive their sequences: a tree of full pages, found by the tokens that
 * lead to them.
 *
 *     root -- "64 tokens" -- "next 64" -- ..       an entry is a page of 64 tokens after its
 *         parent's, with the page of every cache group
 *          \- "64 others"
 *
 * A page enters when it is full and was computed from its true prefix at true positions, while its
 * sequence still runs; it is counted once more in its pool, so that whoever writes to it copies it
 * first. Entries are found by a hash of the parent's key and the tokens; the hash is an index:
 * parent and tokens are compared. A prefix can be taken up to page boundary p when every page of
 * groups without a window is there up to p and those with a window w have theirs over [p - w, p).
 * Models with recurrent layers have a further part in an entry: the block (recurrent.h) of the
 * state after the page, where there is a checkpoint; p has to have one.
 *
 * What goes when the budget is spent, or when sequences need pages: the least recently used leaf,
 * or, by itself, the pages of groups with a window and the state of any entry, which serve only who
 * goes on near them. Heaps by time of use find it. Everything is allocated at open; nothing here
 * fails.
 *
 * A sequence remembers its last page in the tree (struct store_mark), so a new page costs one
 * entry, whatever came before. Where that entry is gone by now, what comes after it is not taken
 * in: running sequences that together exceed the budget would else drive each other out with every
 * page. Once such a sequence ends its pages are offered again, a single time (store_end).
 *
 * With a folder (store_disk.h) every page is also written there, behind the back of who computes,
 * and what a prompt wants and memory has not is brought back from there. An entry that waits to be
 * written stays; a page that has no place in the tree waits in an entry of its own (an orphan),
 * which nobody finds and which goes when it is written.
 *
 * Sequences with different salts have trees of their own: what one computed is not found by the
 * other, in memory or in the folder. So have those with different adapters. */
#ifndef PITH_RUN_STORE_H
#define PITH_RUN_STORE_H

#include "run/cache/cache.h"
#include "run/cache/recurrent.h"

enum { STORE_PARTS = STEP_MAX_GROUPS + 1, STORE_HEAPS = STORE_PARTS + 1 };
enum { STORE_ROOT = -1, STORE_LOST = -2 }; /* instead of an entry */

struct store_entry {
    uint64_t key[2], parent_key[2], born; /* born: no two are equal, even of the same place */
    int32_t parent,
        next; /* STORE_ROOT, STORE_LOST: an orphan; the next of the bucket, or of the free list */
    int32_t n_children; /* and one for whoever works with it */
    int32_t child, elder,
        younger; /* the last child made; the ones made before and after it; -1: none */
    uint64_t used, used_window; /* when, by the store's clock; 0: the entry is free */
    int32_t spot[STORE_HEAPS];  /* in each heap, -1: not in it */
    int32_t page[STORE_PARTS];  /* of each group, then the block; -1: not held */
    int32_t token[STEP_PAGE];
    int32_t next_save, prev_save; /* of those that wait, -1: the last */
    int8_t waits;                 /* in that list, which has a lock of its own */
    int8_t saved;                 /* its files have been written, as far as they could */
    int8_t queued;                /* it is the writer's: pages and tokens stay as they are */
};

struct store_heap { /* entries, that used longest ago first */
    int32_t *v;
    int32_t n;
};

struct store_fetch { /* a page that comes back from the folder */
    int32_t entry, part, page;
    int ok;
};

struct store {
    struct recurrent *recurrent;
    int n_parts;
    struct store_entry *entry; /* [cap] */
    int32_t *bucket;           /* [mask + 1] */
    uint32_t mask;
    int32_t cap, free, child;            /* child: of the root, as in an entry */
    struct store_heap heap[STORE_HEAPS]; /* leaves; then those with this part, if not every page of
                                            a prefix needs it */
    int32_t held[STORE_PARTS];           /* pages */
    uint64_t clock, births, bytes, budget, root[2];
    uint64_t work;             /* entries looked at so far */
    uint64_t looks;            /* and files of the folder looked for */
    struct store_disk *disk;   /* NULL: there is no folder */
    struct store_fetch *fetch; /* [pages of a context * n_parts], with a folder */
    int32_t *chain;            /* [pages of a context] */
    uint64_t piece;            /* bytes that are brought from the folder at a time, about */
    struct pool *pool;         /* reads, with so many threads */
    int n_readers;
    const _Atomic(int) *cancel; /* ends reading */
};

/* What a prompt met that was not it. */
struct store_miss {
    int32_t at,
        token; /* the first position that differs and the token known there; -1: nothing differs */
};

struct store_params {
    uint64_t budget;  /* bytes of pages held at most; 0: nothing is */
    uint64_t root[2]; /* hash of what the bits of a page depend on beside its tokens */
    const char *dir;  /* NULL: only memory */
    uint64_t disk_limit;
    struct pool *pool; /* for a folder: reads pages */
    const _Atomic(int) *cancel;
};

/* PITH_RANGE: pages are to go to a folder, and there is room for none. */
pith_status store_init(struct store *t, struct cache *c, struct recurrent *r,
                       const struct store_params *p, struct pith_error *err);
/* Bytes it takes beside pages, of a cache and recurrent state that have a shape; folder: it has
 * one. */
uint64_t store_tables(const struct cache *c, struct recurrent *r, struct pool *pool, int folder);
void store_deinit(struct store *t); /* before the cache's: what waits to be written is */
/* Takes in full pages of a sequence that it has got since the last time. Waits for nothing. */
void store_publish(struct store *t, struct cache *c, int32_t seq);
/* The sequence will be emptied: takes in what of it had to go meanwhile. */
void store_end(struct store *t, struct cache *c, int32_t seq);
/* The longest boundary up to which the sequence can take the tokens. What is longer than `kept` and
 * only in the folder is brought to memory, some of it at a time: until `cancel` is set, or the work
 * of this thread (base/work.h) may not go on, and then the next call finds what was brought. */
int32_t store_match(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t n,
                    int32_t kept, struct store_miss *miss);
/* Makes an empty sequence hold them up to there. */
void store_take(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t p);
/* Gives back what frees a page of the group; 0: there is nothing. */
int store_evict(struct store *t, struct cache *c, int group);
/* See pith_cache_use; both stay as they are where nothing is cached. */
void store_cache_use(const struct cache *c, int64_t *used, int64_t *total);

#endif
