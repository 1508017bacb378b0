/* block.h -- the arithmetic of a pass over logits, 64 at a time: highest, weights and their sums,
 * scaling. Only elementwise IEEE operations and exact sums: the same bits on every machine. */
#ifndef PITH_RUN_BLOCK_H
#define PITH_RUN_BLOCK_H

#include <stdint.h>

enum { BLOCK = 64 };
#define ZERO_DISTANCE 32.0f /* weights are 0 from here on: e^-32 < 2^-35 */

/* Highest of 64; 0: one of them is not finite, *highest means nothing. */
int block_highest(const float *x, float *highest);
/* d = best - x; w = exp(-d), at most 1, rounded by adding and subtracting `rounder`. x <= best. */
void block_weigh(const float *x, float best, float rounder, float *d, float *w);
/* Adds the weights to the lanes total[8], and, where distance[8] is given, w d rounded alike. */
void block_mass(const float *x, float best, float rounder, double *total, double *distance);
/* Adds d and d * d. */
void block_moments(const float *x, float best, double *sum, double *squares);
/* to = (x - shift) / t, kept finite; to may be x. */
void block_scale(const float *x, float shift, float t, float *to);
/* Smaller for a higher logit; +0 and -0 alike. */
void block_keys(const float *x, uint32_t *key);

static inline double sum_lanes(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

#endif
