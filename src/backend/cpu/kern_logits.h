/* kern_logits.h -- the arithmetic of a pass over logits, for the sampler: blocks of 64 (n of them,
 * one after the other): highest, weights and their sums, scaling. One template (logits/steps.inl)
 * is compiled for each width of vectors. Only elementwise IEEE operations and exact sums: the same
 * bits on every machine, whichever table is taken. */
#ifndef PITH_CPU_KERN_LOGITS_H
#define PITH_CPU_KERN_LOGITS_H

#include <stdint.h>

enum { BLOCK = 64 };
#define ZERO_DISTANCE 24.5f /* weights are 0 from here on: e^-24.5 < 2^-35 */

struct kern_logits {
    /* The highest of each block; 0: not all are finite, then they mean nothing. */
    int (*highest)(const float *x, int32_t n, float *highest);
    /* One block: d = best - x; w = exp(-d), at most 1, rounded by adding and subtracting `rounder`.
     * x <= best. */
    void (*weigh)(const float *x, float best, float rounder, float *d, float *w);
    /* Adds the weights to the lanes total[8], and, where distance[8] is given, w d rounded alike.
     */
    void (*mass)(const float *x, int32_t n, float best, float rounder, double *total,
                 double *distance);
    /* One block: adds d and d * d. */
    void (*moments)(const float *x, float best, double *sum, double *squares);
    /* to = (x - shift) / t, kept finite; to may be x. */
    void (*scale)(const float *x, int32_t n, float shift, float t, float *to);
    /* One block: smaller for a higher logit; +0 and -0 alike. */
    void (*keys)(const float *x, uint32_t *key);
};

/* The machine's, as PITH_CPU allows. */
const struct kern_logits *kern_logits(void);

static inline double sum_lanes(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

#endif
