/* candidates.h -- the tokens a sampler still considers, and the few passes all samplers are made
 * of.
 *
 *     x   [n]  logits, finite; the caller's own array until something is changed or dropped. Each
 *              counts as (x - shift) / t, which is
 *              worked out block by block where it is read: a temperature costs no pass of its own
 *     id  [n]  token ids, ascending; NULL while candidate i is token i
 *     block_best [n / 64]  the highest logit of each block of 64: a pass skips what cannot matter
 *
 * Weights. The weight of a candidate is exp(x - best), rounded to a multiple of a quantum so small
 * that the sum of all weights has at most 53 bits (2^-34 for up to 2^19 tokens). So every sum of
 * weights is exact in a double, whatever the order it is made in, and what is found by buckets is,
 * bit for bit, what walking a sorted list would find. A weight below the quantum is 0.
 *
 * Places. An order gives each candidate a 32-bit key; its place is (key << 32 | index), smaller =
 * earlier, never equal. The orders: by logit, descending, and by distance from a centre (typical).
 * Nothing is ever sorted but a head of the order, and that only as far as it is walked. A draw
 * walks the candidates by id: sums of chunks, then the blocks of one chunk, then one block.
 *
 * Nothing is allocated after candidates_init. */
#ifndef PITH_RUN_CANDIDATES_H
#define PITH_RUN_CANDIDATES_H

#include "base/error.h"

enum { CANDIDATES_MAX = 1 << 26, CANDIDATES_CHUNK = 4096 };

struct candidates {
    int32_t n;
    const float *x;
    const int32_t *id;
    float *block_best;
    const struct kern_logits *kern;
    float best;            /* highest logit; n >= 1 */
    float shift, t;        /* t 0: x as it is */
    double total;          /* of all weights; 0: not known */
    double *chunk;         /* [V / CANDIDATES_CHUNK + 1] where it is known: of each chunk */
    double *chunk_distance; /* weights times distances, of each chunk */
    float quantum_rounder; /* y + it - it is y rounded to a multiple of the quantum */
    float pad[64];         /* the last block, filled up */
    float *own_x;          /* [V] what x points to once something was changed */
    int32_t *own_id;
    uint64_t *heap; /* places of a head */
    double *hist;   /* masses by digit of the key */
    /* Whose threads, so many, go over many logits together while nobody else has them; NULL: the
     * caller goes alone. */
    struct pool *pool;
    int n_threads;
};

int candidates_init(struct candidates *c, int32_t n_vocab); /* 0: no memory */
int64_t candidates_bytes(int32_t n_vocab);                  /* which it takes */
void candidates_deinit(struct candidates *c);
/* All finite logits. `logits` must stay until the list is filled again. */
void candidates_fill(struct candidates *c, const float *logits, int32_t n_vocab);
/* All finite ones of n logits x, of the tokens `id`, ascending; both as above. */
void candidates_fill_some(struct candidates *c, const float *x, const int32_t *id, int32_t n);
static inline int32_t candidates_id(const struct candidates *c, int32_t at)
{
    return c->id ? c->id[at] : at;
}
int32_t candidates_find(const struct candidates *c, int32_t id); /* index, -1: not there */

float candidates_logit(struct candidates *c, int32_t at);

/* Changing logits: write to the array returned ([n]), kept finite by candidates_finite(), then call
 * candidates_changed() for each index and candidates_settle() once behind all of them, or
 * candidates_refresh() alone. -INFINITY drops a candidate at candidates_refresh(). */
float *candidates_edit(struct candidates *c);
float candidates_finite(float x);
void candidates_changed(struct candidates *c, int32_t at);
void candidates_settle(struct candidates *c);
void candidates_refresh(struct candidates *c);
/* x = (x - shift) / t for all, t > 0: no two candidates swap. */
void candidates_scale(struct candidates *c, float shift, float t);

/* ---------------------------------------------------------------- mass */

struct mass {
    double total;    /* sum of the weights */
    double distance; /* mean of best - x, by weight: the entropy is log(total) + this */
};
struct mass candidates_mass(struct candidates *c);
double candidates_total(struct candidates *c);
/* The first candidate, by id, at which the running weight exceeds u of the total, u < 1; n >= 1. */
int32_t candidates_draw(struct candidates *c, double u);
/* Standard deviation of the logits. */
double candidates_sigma(struct candidates *c);

/* ---------------------------------------------------------------- order */

struct order {
    int by_distance; /* from centre below the best; otherwise by logit */
    float centre;
};
enum { BY_COUNT = 0, BY_WEIGHT = 1, REACH = 2 };
/* Place of the first candidate of the order at which the running count or weight exceeds the bound
 * (with REACH: reaches it); a place behind all when none does. */
uint64_t candidates_place(struct candidates *c, struct order o, int how, double bound);
/* A place such that exactly the candidates with x >= bound are before or at it. */
uint64_t candidates_place_of(const struct candidates *c, double bound);
static inline int32_t place_at(uint64_t place)
{
    return (int32_t)(uint32_t)place;
}
/* Drops all but first <= place <= last. */
void candidates_keep(struct candidates *c, struct order o, uint64_t first, uint64_t last);
/* How many are before or at `last`, by logit; the last of them. */
int32_t candidates_count(struct candidates *c, uint64_t last, uint64_t *last_there);
/* Indices of the k first candidates at or behind the place `from`, by logit, in order; there must
 * be as many, at most CANDIDATES_HEAD. Returns the place to go on from. */
enum { CANDIDATES_HEAD = 1024 };
uint64_t candidates_head(struct candidates *c, uint64_t from, int32_t *at, int32_t k);

/* ---------------------------------------------------------------- without a list */

/* ln of the sum of exp(logit) over the finite logits. */
double logits_log_total(const float *logits, int32_t n_vocab);

/* Adds to the logit of a token, when it is still there; candidates_settle() once behind all. */
void candidates_add(struct candidates *c, int32_t id, double more);

#endif
