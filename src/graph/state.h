/* state.h -- what a sequence keeps between steps, as an architecture declares it: a list of states,
 * each a product of a few properties. Layers name states by their place in the list: none, one or
 * several; several layers may name one. Ops that read and write states name them the same way.
 *
 *     rows    what is kept of a token: K and V of some heads; one latent row whose first columns
 *             are V; keys of an indexer; K and V of an encoder's memory; or, instead of rows, some
 *             arrays of floats that every token changes (a recurrent state)
 *     range   which rows a query sees: all, the last n, those of its chunk of n positions, or all
 *             rows of its sequence in its step, which are kept for no longer (an encoder's)
 *     ratio   1, or r: one row is kept for r tokens, in the place of the last of them
 *
 * run/ fills in where a state lies: rows in the pages of a group (the states of one range and
 * device), a recurrent state in a block. */
#ifndef PITH_GRAPH_STATE_H
#define PITH_GRAPH_STATE_H

#include "tensor/dtype.h"

#define STATE_ROWS(name, called, flags) STATE_##name,
enum state_rows {
#include "graph/state.def"
    STATE_N_ROWS
};
#undef STATE_ROWS
#define STATE_RANGE(name, called, first, most, flags) RANGE_##name,
enum state_range {
#include "graph/state.def"
    RANGE_N
};
#undef STATE_RANGE

/* What is so of a kind of rows. */
enum state_flag {
    STATE_PAGED = 1,  /* it has a row for each token, in pages; else parts, in blocks */
    STATE_FLAT = 2,   /* a row lies in one piece, and is numbers whatever its type; else K lies as
                         kernels for scores want it */
    STATE_V_IN_K = 4, /* V is K's first columns */
    STATE_SPARSE = 8, /* where all of it is seen, one row may be kept for several tokens */
    STATE_CHOOSES = 16, /* scores of it choose slots: its type is not one of blocks */
    STATE_BY_HEADS = 64, /* a head is K and V of its own: devices may share them (n_shares) */
    STATE_MEMORY = 32   /* filled by an encoder's run, of a sequence and not of its tokens */
};

/* What is so of a range. */
enum range_flag {
    SEES_ALL = 1,    /* all rows before, of tokens: one may be kept for several (STATE_SPARSE) */
    SEES_STEP = 2,   /* all rows of the sequence's step, which are kept for no longer */
    SEES_AROUND = 4, /* goes along with the row: half of it lies behind the row in models that look
                        both ways */
    SEES_SPANS = 8   /* spans of rows that see each other to their end do so here, where a model has
                        them in some layers alone (spans_in_windows) */
};

enum { STATE_PARTS = 4 }; /* arrays of a recurrent state */

struct rope_set;
struct tensor;

struct state {
    enum state_rows rows;
    enum state_range range;
    int32_t span;  /* positions of the window or chunk; 0: all */
    int32_t ratio; /* tokens of a row; 0 is 1 */
    int32_t layer; /* it lies on the device of this layer */
    int32_t last;  /* the last layer that names it: the layers between lie on that device too */
    /* Rows: heads of d_k elements of K and d_v of V. Of latent rows d_v is how many of K's are V
     * too; an indexer has no V. */
    int32_t n_head_kv, d_k, d_v;
    enum dtype k_type, v_type; /* chosen by the session unless `fixed` */
    int fixed;
    const struct rope_set *rope; /* how K was rotated, NULL: not at all */
    int unturned;                /* not at all, whatever its layer does */
    int32_t rope_first;          /* the first rotated element of a head */
    int by_distance;             /* scores depend on how many slots lie between: so positions of a
                                    sequence have to follow one another */
    int64_t n[STATE_PARTS];      /* recurrent: floats of each part, 0: none */
    /* Heads that several devices share (cut.h): of each that has some, a state of its own, the
     * n_shares from `shares` on; what was divided has no pages itself, and `by` is a matrix whose
     * slices are where the shares are. Of a share: its first head, and its device + 1. */
    int32_t shares, n_shares, first_head, sent;
    const struct tensor *by;

    /* Filled by run/. */
    int32_t turn_k, turn_v;   /* K and V are kept turned, so many numbers at a time (kv_page.h);
                                 0: as they are */
    int32_t device;           /* where it lies, and all that reads and writes it runs */
    int32_t group;            /* of the cache; -1: it has no pages */
    int64_t k_off, v_off;     /* in a page; kv head h adds h * k_head, h * v_head */
    int64_t k_head, v_head;   /* bytes of one kv head's 64 slots */
    int64_t off[STATE_PARTS]; /* of the parts, bytes from the start of a block */
};

/* Slots of a page that a row is kept for: row i of a page is of its slots i n .. i n + n - 1. A
 * ratio divides the 64 slots of a page, or is a multiple of them. */
static inline int32_t state_every(const struct state *s)
{
    return s->ratio <= 1 ? 1 : s->ratio < 64 ? s->ratio : 64;
}
/* What slot i has a row of its own for, or nothing: the last of each `ratio` slots has. */
static inline int state_has_row(const struct state *s, int32_t slot)
{
    return s->ratio <= 1 || slot % s->ratio == s->ratio - 1;
}
/* The slot of row i of a sequence, and rows that its first n slots have. */
static inline int32_t state_row_slot(const struct state *s, int32_t i)
{
    return s->ratio <= 1 ? i : i * s->ratio + s->ratio - 1;
}
static inline int32_t state_rows_of(const struct state *s, int32_t n)
{
    return s->ratio <= 1 ? n : n / s->ratio;
}

/* The first position that a row at pos sees; < 0 where that is before all of them. Never descends
 * as pos rises. */
static inline int64_t state_first_seen(enum state_range range, int32_t span, int64_t pos)
{
    switch (range) {
#define STATE_RANGE(name, called, first, most, flags)                                              \
    case RANGE_##name:                                                                             \
        return first;
#include "graph/state.def"
#undef STATE_RANGE
    default:
        return -1;
    }
}

/* Positions that a row sees at most; 0: all before it. */
static inline int64_t state_reach(enum state_range range, int64_t span)
{
    switch (range) {
#define STATE_RANGE(name, called, first, most, flags)                                              \
    case RANGE_##name:                                                                             \
        return most;
#include "graph/state.def"
#undef STATE_RANGE
    default:
        return 0;
    }
}

static inline int state_is(const struct state *s, enum state_flag f)
{
#define STATE_ROWS(name, called, flags) (flags),
    static const uint16_t of[] = {
#include "graph/state.def"
    };
#undef STATE_ROWS
    return (of[s->rows] & f) != 0;
}
static inline const char *state_called(const struct state *s)
{
#define STATE_ROWS(name, called, flags) called,
    static const char *const of[] = {
#include "graph/state.def"
    };
#undef STATE_ROWS
    return of[s->rows];
}
static inline int state_range_is(enum state_range range, enum range_flag f)
{
#define STATE_RANGE(name, called, first, most, flags) (flags),
    static const uint16_t of[] = {
#include "graph/state.def"
    };
#undef STATE_RANGE
    return (of[range] & f) != 0;
}
static inline const char *state_range_called(enum state_range range)
{
#define STATE_RANGE(name, called, first, most, flags) called,
    static const char *const of[] = {
#include "graph/state.def"
    };
#undef STATE_RANGE
    return of[range];
}

#endif
