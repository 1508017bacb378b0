/* cache.h -- K and V of all sequences: pages of 64 slots in pools, page tables per sequence, reference counts.
 *
 * Layers that keep the same kind of state (everything, or a window of the same size) on the same device form a group. A page of a group
 * holds 64 slots of all its layers:
 *
 *     page:  [layer a: K of head 0 .. | V of head 0 ..][layer b: ..]     (graph/kv_page.h: what is in a head)
 *
 * A sequence is a page table per group: entry i holds slots 64i .. 64i+63; slot = position. Pages are counted and shared by copies of a
 * sequence; one that is written while shared is copied first. Address space for the limit is reserved at open; 2 MiB slabs are committed
 * as pages are first used. Groups with a window give pages back that no row to come can see, but keep those that `floor` may need
 * (rewinding after a step that failed). */
#ifndef PITH_RUN_CACHE_H
#define PITH_RUN_CACHE_H

#include "graph/backend.h"

struct cache_group {
    int32_t window; /* 0: everything */
    int32_t device;
    int64_t page_bytes;
    uint8_t *base;
    uint64_t reserved, committed;
    int32_t n_pages; /* limit */
    int32_t n_made;  /* pages ever used: [0, n_made) are zeroed or in use */
    int32_t n_free;
    int32_t *free_list; /* [n_pages] stack */
    int32_t *refs;      /* [n_pages] */
};

struct cache_seq {
    int32_t n;      /* positions held */
    int32_t floor;  /* n before the call in progress: it may have to go back there */
    int32_t *token; /* [n_ctx] what was fed; -1: an embedding row */
    int32_t *pages[STEP_MAX_GROUPS]; /* [cap_pages], -1: none */
};

struct cache {
    int32_t n_ctx, n_seq, cap_pages, n_groups;
    struct cache_group group[STEP_MAX_GROUPS];
    struct cache_seq *seq; /* [n_seq] */
    struct device **devices;
};

struct cache_params {
    int32_t n_ctx, n_seq, n_batch;
    int64_t n_tokens;
    enum dtype k_type, v_type;
};

/* Lays out kv[n_layer] (fills group, offsets and types) and makes the pools. window[l] and layer_device[l] per layer. */
pith_status cache_init(struct cache *c, struct kv_layer *kv, const int32_t *window,
                       const int32_t *layer_device, int32_t n_layer, struct device **devices,
                       const struct cache_params *p, struct pith_error *err);
void cache_deinit(struct cache *c);

/* Makes slots [seq.n, seq.n + add) writable: pages taken, shared ones copied. PITH_NOMEM tells needed and free pages. */
pith_status cache_grow(struct cache *c, int32_t seq, int32_t add, struct pith_error *err);
/* Keeps the first n positions. */
void cache_cut(struct cache *c, int32_t seq, int32_t n);
/* 1: the sequence can be cut to n and go on; 0: a window group has given back pages that position n needs. */
int cache_can_resume(const struct cache *c, int32_t seq, int32_t n);
/* dst becomes the first n positions of src, sharing its pages. */
void cache_share(struct cache *c, int32_t dst, int32_t src, int32_t n);
uint64_t cache_bytes(const struct cache *c); /* committed */
uint64_t cache_limit(const struct cache *c); /* at most */

#endif
