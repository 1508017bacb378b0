/* recurrent.h -- recurrent states: one block per sequence and point in time, with all of them.
 *
 *     block:  [state a: part 0 | part 1 ..][state c: ..]     floats; parts as the architecture
 *             declares them (graph/state.h)
 *
 * A block is never written once a step has made it: a step reads a sequence's block and makes a new
 * one, so that a step that fails has changed nothing. Blocks are counted; copies of a sequence
 * share them. What is not the present is a checkpoint: of the ends of the latest prompts, of where
 * copies begin, and of every `every` positions. A sequence can go back to a checkpoint, and to
 * nothing else: a recurrence has no inverse.
 *
 * Each row of a tree makes a block, of those that the session set aside for such rows. They are
 * nobody's present: one becomes it where its row is accepted, and all go before the next step. */
#ifndef PITH_RUN_RECURRENT_H
#define PITH_RUN_RECURRENT_H

#include "graph/backend.h"

struct checkpoint {
    int32_t n; /* positions before it */
    int32_t block;
};

struct recurrent_seq {
    int32_t n, now; /* positions held and the state after them; -1: nothing */
    int in_call;
    int keep; /* what is the present now will be a checkpoint: a prompt ended here, or it was copied
                 or loaded */
    int is_prompt; /* of the call in progress: its end will be one, */
    int moved;     /* a step of it has been taken in, */
    int was_keep, kept; /* keep was so before, and made a checkpoint where the call began, */
    struct checkpoint back; /* which was this */
    struct checkpoint *at;  /* [cap] ascending */
    struct checkpoint *lost; /* [cap] those that had to go, until the call ends */
    int32_t n_at, n_lost;
    int32_t first_tree; /* of the last step's rows that were its tree: where in recurrent.tree */
};

struct recurrent {
    int32_t n_seq, n_blocks, every, cap; /* n_blocks 0: no recurrent layer */
    uint64_t block_bytes;                /* of all devices */
    uint64_t device_bytes[MAX_DEVICES];  /* of a block, on each */
    struct slabs blocks[MAX_DEVICES];
    const struct state *states; /* [n_states] as they were laid out, the session's */
    int32_t n_states;
    int32_t n_made, n_free;
    int32_t *free_list, *refs; /* [n_blocks] */
    int32_t *tree;             /* [n_tree_rows] blocks of rows of trees, n_tree of them */
    int32_t n_tree_rows, n_tree;
    struct recurrent_seq *seq; /* [n_seq] */
};

struct recurrent_params {
    int32_t n_ctx, n_seq, n_batch;
    int32_t n_tree_rows;  /* of trees, in one step: a block each */
    uint64_t cache_limit; /* bytes of K and V at most: a tenth may go to checkpoints, or 64 MiB */
    int64_t n_stored;     /* blocks beside those of sequences, for the prefix store */
};

/* Lays out the recurrent ones of the states (fills off), each on the device of its layer; returns
 * the bytes of a block, 0: there are none, and those of its part on each device. */
uint64_t recurrent_layout(struct state *states, int32_t n_states, uint64_t bytes[MAX_DEVICES]);
/* What recurrent_init would make, of which recurrent_limit tells; it takes no memory. */
pith_status recurrent_shape(struct recurrent *r, struct state *states, int32_t n_states,
                            const struct recurrent_params *p,
                            struct pith_error *err);
/* Reserves the pool of blocks that are laid out so. */
pith_status recurrent_init(struct recurrent *r, struct state *states, int32_t n_states,
                           struct device *const *devices,
                           const struct recurrent_params *p, struct pith_error *err);
void recurrent_deinit(struct recurrent *r);
uint64_t recurrent_bytes(const struct recurrent *r); /* committed */
/* Beside the blocks. */
static inline uint64_t recurrent_tables(const struct recurrent *r)
{
    return (uint64_t)r->n_seq * (sizeof *r->seq + 2 * (uint64_t)r->cap * sizeof *r->seq->at) +
           ((uint64_t)r->n_blocks * 2 + (uint64_t)r->n_tree_rows) * sizeof(int32_t);
}
uint64_t recurrent_limit(const struct recurrent *r); /* of blocks, committed at most */

/* A call that feeds `rows` rows (0: nothing happens) to a sequence begins, has succeeded, or goes
 * back to where it began, with the checkpoints that there were; only where blocks are short before
 * a later step of it some of those that had to go stay away. */
void recurrent_begin(struct recurrent *r, int32_t seq, int32_t rows);
void recurrent_end(struct recurrent *r, int32_t seq, int failed);
/* One step of it: fills the step's state and keep with blocks taken for it; commit when it ran,
 * abort when not. A segment that is a tree leaves its sequence where it is. */
pith_status recurrent_take(struct recurrent *r, struct step *s, struct pith_error *err);
void recurrent_commit(struct recurrent *r, const struct step *s);
void recurrent_abort(struct recurrent *r, struct step *s);
/* n rows of the sequence's tree in the last such step, counted within its segment, ascending, one
 * after the other: the sequence goes to the state after the last of them. */
void recurrent_accept(struct recurrent *r, int32_t seq, const int32_t *row, int32_t n);
/* What rows of trees have made goes, but for what was accepted; no step of them is under way. */
void recurrent_forget(struct recurrent *r);

/* The largest m <= n that the sequence can be cut to. */
int32_t recurrent_point(const struct recurrent *r, int32_t seq, int32_t n);
void recurrent_cut(struct recurrent *r, int32_t seq, int32_t n); /* n is such a point */
/* Loading: once `n` blocks are reserved in place of those of a sequence (-1: of all; the store
 * holds n_stored) and that has been cut to 0, push gives each in turn: the state after so many
 * positions; the last is the present. */
pith_status recurrent_reserve(struct recurrent *r, int32_t seq, int32_t n, int32_t n_stored,
                              struct pith_error *err);
int32_t recurrent_push(struct recurrent *r, int32_t seq, int32_t n, int present);
/* A block's contents, those of device after device, to and from the host. Any thread may ask. */
pith_status recurrent_read(const struct recurrent *r, int32_t block, void *out,
                           struct pith_error *err);
pith_status recurrent_write(const struct recurrent *r, int32_t block, const void *in,
                            struct pith_error *err);
/* Is every number of such contents finite? */
int recurrent_finite(const struct recurrent *r, const void *in);
/* For the prefix store: the block of a checkpoint (-1: there is none), counted once more; one to be
 * filled (-1: no memory); one less. */
int32_t recurrent_hold(struct recurrent *r, int32_t seq, int32_t n);
int32_t recurrent_block(struct recurrent *r);
void recurrent_unref(struct recurrent *r, int32_t *block); /* *block = -1 */
/* The sequence goes to the state after n positions, a checkpoint too; checkpoints before stay. */
void recurrent_adopt(struct recurrent *r, int32_t seq, int32_t n, int32_t block);
void recurrent_share(struct recurrent *r, int32_t dst, int32_t src, int32_t n);

#endif
