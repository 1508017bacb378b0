/* step.c -- lays the arrays of a step out behind its header. */
#include "graph/step.h"

#include <stddef.h>

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
