/* rng.h -- counter-based random numbers: Philox4x32-10 [Salmon et al. 2011, "Parallel random
 * numbers: as easy as 1, 2, 3"].
 * Pure functions of (key, counter): order of calls, threads and restarts cannot move the stream. */
#ifndef PITH_BASE_RNG_H
#define PITH_BASE_RNG_H

#include <stdint.h>

void rng_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);
double rng_uniform(uint64_t key, uint64_t index, uint64_t draw); /* [0, 1), 53 bits */

struct rng { /* a convenience stream over the same function, for tests and synthetic data */
    uint64_t key, n;
    uint32_t buf[4];
    int left;
};
void rng_init(struct rng *r, uint64_t seed);
uint32_t rng_u32(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n); /* 0..n-1 */
float rng_normal(
    struct rng *r); /* about N(0,1): sum of 12 uniforms - 6, exact arithmetic on every machine */

#endif
