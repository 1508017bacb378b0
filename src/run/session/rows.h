/* rows.h -- rows of a batch as a session reads them; what rows.c makes of them is in session.h. */
#ifndef PITH_RUN_ROWS_H
#define PITH_RUN_ROWS_H

#include "run/session/session.h"

static inline int32_t seq_of(const struct pith_session *s, const struct pith_batch *b, int32_t i)
{
    return b->seq ? b->seq[i] : s->one_seq;
}

/* Does row i ask for output? A pooled session gives one output per sequence, and a stage that hands
 * its carry on one per row, whatever `want` says. */
static inline int wanted(const struct pith_session *s, const struct pith_batch *b, int32_t i)
{
    if (!arch_ends(s->arch))
        return 1;
    return b->want && !s->pooled ? b->want[i] : s->seq_last[seq_of(s, b, i)] == i;
}

/* Row i is the token that is drawn from an output of the step before. */
static inline int is_drawn(const struct pith_batch *b, int32_t i)
{
    return b->drawn && b->drawn[i] != -1;
}

/* Row i is an embedding row, not a token. */
static inline int is_embd(const struct pith_batch *b, int32_t i)
{
    return b->embd && !is_drawn(b, i) && (!b->token || b->token[i] == -1);
}

/* Of a row that is no embedding row, once tokens are drawn (drawn_take). */
static inline int32_t token_of(const struct pith_session *s, const struct pith_batch *b, int32_t i)
{
    return is_drawn(b, i) ? s->drawn[b->drawn[i]] : b->token[i];
}

/* Where the adapters of row i are: a slot, or one of the two below 0. */
static inline int32_t adapter_of(const struct pith_batch *b, int32_t i)
{
    return b->adapter ? b->adapter[i] : PITH_ADAPTER_SEQUENCE;
}

/* Row i is a token with an embedding row, which are added. */
static inline int is_both(const struct pith_batch *b, int32_t i)
{
    return b->both && b->both[i];
}

/* The span of rows that see each other that row i is of; 0: none. */
static inline int32_t span_of(const struct pith_batch *b, int32_t i)
{
    return b->span ? b->span[i] : 0;
}

/* Row i brings numbers, of which all rows have some where the carry comes from another stage. */
static inline int has_vector(const struct pith_session *s, const struct pith_batch *b, int32_t i)
{
    return s->arch->stage.first || is_embd(b, i) || is_both(b, i);
}

/* All outputs that are wanted are drawn from, and no more. */
static inline int only_drawn(const struct pith_batch *b)
{
    for (int32_t i = 0; b->want && i < b->n; i++)
        if (b->want[i] && b->want[i] != PITH_WANT_DRAWN)
            return 0;
    return b->want != NULL;
}

/* The four positions that row i is given; NULL: it is text and comes next. */
static inline const int32_t *given(const struct pith_batch *b, int32_t i)
{
    const int32_t *pos = b->pos ? b->pos + (int64_t)(1 + STEP_AXES) * i : NULL;
    return pos && pos[0] != -1 ? pos : NULL;
}

#endif
