/* cache_impl.h -- between the files of the cache: cache_pages.c counts pages, cache_edit.c edits
 * sequences over it, cache.c goes with both from call to call. */
#ifndef PITH_RUN_CACHE_IMPL_H
#define PITH_RUN_CACHE_IMPL_H

#include <unistd.h>
#include "run/cache/cache.h"

/* The numbers of a sequence's tokens grow by so many bytes: whole pages, and not too few. */
static inline uint64_t tokens_grain(void)
{
    const uint64_t least = 16 << 10, page = (uint64_t)sysconf(_SC_PAGESIZE);
    return page > least ? page : least;
}

/* One reference more for a place in use. */
void page_ref(struct cache_group *g, int32_t place);
/* One entry of the store more that holds the page of a place, or one less; its reference is one of
 * those counted. */
void page_store(struct cache_group *g, int32_t place, int stored);
/* One reference less, *entry = -1; a place without references is free. */
void page_unref(struct cache_group *g, int32_t *entry);
/* A place for n slots with one reference, a page for which the caller made sure there is. A whole
 * page is zeroed, in a quarter can be what was there before: nobody reads slots that were not
 * written. */
int32_t page_take(struct cache *c, int group, int32_t n);
/* Fills it with n slots from elsewhere. */
void page_fill(struct cache *c, int group, int32_t place, const struct cache_slot_from *from,
               int32_t n);
/* Makes room in the log for n pages that are taken and filled, in all groups together. */
pith_status pages_log(struct cache *c, int64_t n, struct pith_error *err);
/* cache_nodes.c: with several memory nodes, bytes [from, to) of the group, new and whole pages of
 * memory, come from those of their readers. */
void cache_touch(struct cache *c, int group, uint64_t from, uint64_t to);
/* The node, of n_nodes, that a kv head of a page of the cache lies in. */
int cache_home(const struct state *kv, int head, int64_t page, int n_nodes);
/* A page of which n slots are used is a quarter from now on, if they fit and it is one's own. */
void page_shrink(struct cache_group *g, int32_t place, int32_t n);
/* What a sequence holds of a group beyond the limit until its call ends, from now on. */
void cache_lend(struct cache *c, int group, struct cache_seq *q, int32_t n);
/* No more than the new table of a settled sequence gives back if its call fails. */
void cache_repay(struct cache *c, int group, struct cache_seq *q);
/* 1: giving it back would free a page. */
int page_frees(const struct cache_group *g, int32_t place);
int32_t pages_available(const struct cache_group *g);
/* Gives back pages of a pending sequence, in a group with a window, in which no slot lies that rows
 * from `floor` on can see. Returns the first of those slots. */
int32_t cache_slide(struct cache *c, int group, struct cache_seq *q);
/* Makes sure that n pages can be taken and are backed by memory; sequence `seq` is who asks. */
pith_status pages_need(struct cache *c, int group, int32_t seq, int32_t n, struct pith_error *err);
/* Makes sure that n pages can be taken once sequence `seq` (-1: all) has been emptied. */
pith_status pages_replace(struct cache *c, int group, int32_t seq, int32_t n,
                          struct pith_error *err);
/* A page in canonical form (kv_page.h): K and V of each layer of the group. What the log has for
 * other pages does not matter; cache_flush comes before a read of one that it may be of. Read: n
 * slots, the others are zero. */
uint64_t page_canonical(const struct cache *c, int group); /* bytes */
pith_status page_read(const struct cache *c, int group, int32_t place, int32_t n, uint8_t *out,
                      struct pith_error *err);
pith_status page_write(struct cache *c, int group, int32_t place, const uint8_t *in,
                       struct pith_error *err); /* a new one */
/* Is every number of it finite? What a model computes is; what was forged need not be, and one row
 * that reads it has no numbers any more. */
int page_finite(const struct cache *c, int group, const uint8_t *in);
/* cache_edit.c: makes what editing needs, and the slots of q (NULL: of none). */
pith_status cache_edit_init(struct cache *c, struct cache_seq *q, struct pith_error *err);
/* cache_edit.c: the call that settled q is over; failed: its edits are pending again. */
void cache_settle_end(struct cache *c, struct cache_seq *q, int failed);
/* cache_edit.c: gives back pages of a pending sequence that none of its first n slots lies in. */
void cache_drop(struct cache *c, struct cache_seq *q, int32_t n);

#endif
