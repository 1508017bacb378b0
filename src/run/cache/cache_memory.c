/* cache_memory.c -- what an encoder has read for a sequence: see cache.h. A memory is made beside
 * the one that the sequence has, and takes its place when the encoder's run has succeeded. */
#include "run/cache/cache_impl.h"

#include <string.h>

/* Pages of n rows. */
static int32_t pages_of(int32_t n)
{
    return (n + STEP_PAGE - 1) / STEP_PAGE;
}

pith_status cache_memory_take(struct cache *c, int32_t seq, int32_t n, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int g = c->n_own; g < c->n_groups && st == PITH_OK; g++)
        st = pages_need(c, g, seq, pages_of(n), err);
    if (st == PITH_OK)
        st = pages_log(c, (int64_t)pages_of(n) * (c->n_groups - c->n_own), err);
    for (int g = c->n_own; g < c->n_groups && st == PITH_OK; g++)
        for (int32_t p = 0; p < pages_of(n); p++)
            c->fresh[g][p] =
                page_take(c, g, n - p * STEP_PAGE < STEP_PAGE ? n - p * STEP_PAGE : STEP_PAGE);
    return st;
}

void cache_memory_end(struct cache *c, int32_t seq, int32_t n, const uint64_t hash[2], int failed)
{
    struct cache_seq *q = &c->seq[seq];
    if (!failed)
        cache_memory_drop(c, seq);
    for (int g = c->n_own; g < c->n_groups; g++)
        for (int32_t p = 0; p < pages_of(n); p++) {
            if (failed || c->group[g].of == CACHE_STEP)
                page_unref(&c->group[g], &c->fresh[g][p]);
            else
                q->pages[g][p] = c->fresh[g][p];
        }
    if (failed)
        return;
    q->n_memory = n;
    memcpy(q->memory, hash, sizeof q->memory);
}

void cache_memory_drop(struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    for (int g = c->n_own; g < c->n_groups; g++)
        for (int32_t p = 0; p < pages_of(q->n_memory); p++)
            page_unref(&c->group[g], &q->pages[g][p]);
    q->n_memory = 0;
}

void cache_memory_share(struct cache *c, int32_t dst, int32_t src)
{
    struct cache_seq *to = &c->seq[dst];
    const struct cache_seq *from = &c->seq[src];
    if (dst == src)
        return;
    cache_memory_drop(c, dst);
    for (int g = c->n_own; g < c->n_groups; g++)
        for (int32_t p = 0; c->group[g].of == CACHE_MEMORY && p < pages_of(from->n_memory); p++)
            page_ref(&c->group[g], to->pages[g][p] = from->pages[g][p]);
    to->n_memory = from->n_memory;
    memcpy(to->memory, from->memory, sizeof to->memory);
    memcpy(to->adapter, from->adapter, sizeof to->adapter); /* of a copy of nothing, too */
    to->adapter_set = from->adapter_set;
    memcpy(to->salt, from->salt, sizeof to->salt);
}
