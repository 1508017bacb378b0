/* step.c -- lays the arrays of a step out behind its header. */
#include "graph/step.h"

#include <stddef.h>
#include "base/mem.h"

/* Walks the arrays in order; with s NULL only the size is computed. Returns the number of int32
 * units. */
static int64_t layout(struct step *s, int32_t cap_T, int32_t cap_R, int32_t cap_N,
                      int32_t cap_pages, int32_t n_groups, int32_t n_embd)
{
    int64_t at = 0;
    int64_t unused;
#define PLACE(field, count)                                                                        \
    do {                                                                                           \
        *(s ? &s->field : &unused) = at;                                                           \
        at += ((int64_t)(count) + 15) & ~(int64_t)15; /* 64-byte lines */                          \
    } while (0)
    PLACE(o_token, cap_T);
    PLACE(o_seg, cap_T);
    PLACE(o_pos, cap_T);
    PLACE(o_out, cap_R);
    PLACE(o_first, cap_N + 1);
    PLACE(o_seq, cap_N);
    PLACE(o_tile, cap_T);
    PLACE(o_state, cap_N);
    PLACE(o_keep, cap_T);
    PLACE(o_adapter, cap_T);
    PLACE(o_axes, (int64_t)cap_T * STEP_AXES);
    PLACE(o_plus, cap_T);
    PLACE(o_parent, cap_T);
    PLACE(o_tree, cap_N);
    for (int g = 0; g < n_groups; g++) {
        PLACE(o_slot[g], cap_T);
        PLACE(o_lo[g], cap_T);
        PLACE(o_hi[g], cap_T);
        PLACE(o_pages[g], (int64_t)cap_N * cap_pages);
    }
    PLACE(o_embd, (int64_t)cap_T * n_embd); /* last: untouched pages stay uncommitted */
#undef PLACE
    return at;
}

int64_t step_bytes(int32_t cap_T, int32_t cap_R, int32_t cap_N, int32_t cap_pages, int32_t n_groups,
                   int32_t n_embd)
{
    return (int64_t)sizeof(struct step) +
           4 * layout(NULL, cap_T, cap_R, cap_N, cap_pages, n_groups, n_embd);
}

void step_init(struct step *s, int32_t cap_T, int32_t cap_R, int32_t cap_N, int32_t cap_pages,
               int32_t n_groups, int32_t n_embd)
{
    s->T = s->R = s->N = s->n_tiles = 0;
    s->n_groups = n_groups;
    s->embd = 0;
    s->cap_T = cap_T;
    s->cap_R = cap_R;
    s->cap_N = cap_N;
    s->cap_pages = cap_pages;
    s->n_embd = n_embd;
    s->bytes = step_bytes(cap_T, cap_R, cap_N, cap_pages, n_groups, n_embd);
    layout(s, cap_T, cap_R, cap_N, cap_pages, n_groups, n_embd);
}

/* ---------------------------------------------------------------- operations on the cache */

int cache_log_room(struct cache_log *log, int64_t ops, int64_t slots)
{
    uint64_t need = (uint64_t)(ops * CACHE_OP_INTS + slots * CACHE_FROM_INTS);
    return mem_grow(&log->op, &log->cap, log->n + need, sizeof *log->op, PITH_MEM_CACHE);
}

struct cache_op *cache_log_add(struct cache_log *log, enum cache_op_kind kind, int32_t group,
                               int32_t page, int32_t first, int32_t n)
{
    struct cache_op *op = (struct cache_op *)(void *)(log->op + log->n);
    log->n += CACHE_OP_INTS + (uint32_t)n * CACHE_FROM_INTS;
    op->kind = kind;
    op->group = group;
    op->page = page;
    op->first = first;
    op->n = n;
    return op;
}

const struct cache_op *cache_log_next(const struct cache_log *log, uint32_t *at)
{
    if (*at >= log->n)
        return NULL;
    const struct cache_op *op = (const struct cache_op *)(void *)(log->op + *at);
    *at += CACHE_OP_INTS + (uint32_t)op->n * CACHE_FROM_INTS;
    return op;
}

void cache_log_deinit(struct cache_log *log)
{
    mem_free(log->op);
    *log = (struct cache_log){0};
}
