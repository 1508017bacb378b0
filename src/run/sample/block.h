/* block.h -- the arithmetic of a pass over logits, in blocks of 64 (n of them, one after the
 * other): highest, weights and their sums, scaling. Only elementwise IEEE operations and exact
 * sums: the same bits on every machine. */
#ifndef PITH_RUN_BLOCK_H
#define PITH_RUN_BLOCK_H

#include <stdint.h>

enum { BLOCK = 64 };
#define ZERO_DISTANCE 24.5f /* weights are 0 from here on: e^-24.5 < 2^-35 */

/* How many lanes the machine gives, as PITH_CPU allows: what all functions below are told. */
int block_lanes(void);
/* The highest of each block; 0: not all are finite, then they mean nothing. */
int block_highest(int lanes, const float *x, int32_t n, float *highest);
/* One block: d = best - x; w = exp(-d), at most 1, rounded by adding and subtracting `rounder`. x
 * <= best. */
void block_weigh(int lanes, const float *x, float best, float rounder, float *d, float *w);
/* Adds the weights to the lanes total[8], and, where distance[8] is given, w d rounded alike. */
void block_mass(int lanes, const float *x, int32_t n, float best, float rounder, double *total,
                double *distance);
/* One block: adds d and d * d. */
void block_moments(int lanes, const float *x, float best, double *sum, double *squares);
/* to = (x - shift) / t, kept finite; to may be x. */
void block_scale(int lanes, const float *x, int32_t n, float shift, float t, float *to);
/* One block: smaller for a higher logit; +0 and -0 alike. */
void block_keys(int lanes, const float *x, uint32_t *key);

static inline double sum_lanes(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

#endif
