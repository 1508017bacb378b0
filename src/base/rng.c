/* rng.c -- Philox4x32-10: ten rounds of multiply, swap and xor over a 128-bit counter, with a
 * 64-bit key.
 *
 *     round:  c0, c1, c2, c3  <-  hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)
 *             k0, k1  <-  k0 + W0, k1 + W1
 *
 * Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11; the
 * tests hold its known answers.
 */
#include "base/rng.h"

void rng_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    const uint64_t M0 = 0xd2511f53, M1 = 0xcd9e8d57; /* multipliers found by the authors' search */
    const uint32_t W0 = 0x9e3779b9, W1 = 0xbb67ae85; /* golden ratio, sqrt(3) - 1 */
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = M0 * c0, p1 = M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += W0;
        k1 += W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double rng_uniform(uint64_t key, uint64_t index, uint64_t draw)
{
    uint32_t w[4];
    rng_philox(key, index, draw, w);
    return (double)(((uint64_t)w[1] << 32 | w[0]) >> 11) * 0x1p-53;
}

/* ---------------------------------------------------------------- stream */

void rng_init(struct rng *r, uint64_t seed)
{
    *r = (struct rng){.key = seed};
}

uint32_t rng_u32(struct rng *r)
{
    if (r->left == 0) {
        rng_philox(r->key, r->n++, 0, r->buf);
        r->left = 4;
    }
    return r->buf[4 - r->left--];
}

/* The high word of u * n, without bias: the first 2^32 mod n values of the low word are drawn
 * again. [Lemire 2019, "Fast random integer generation in an interval"] */
uint32_t rng_below(struct rng *r, uint32_t n)
{
    uint64_t p = (uint64_t)rng_u32(r) * n;
    if ((uint32_t)p < n) {
        uint32_t reject = n ? -n % n : 0;
        while ((uint32_t)p < reject)
            p = (uint64_t)rng_u32(r) * n;
    }
    return (uint32_t)(p >> 32);
}

float rng_normal(struct rng *r)
{
    int32_t sum = 0; /* of 12 uniforms in units of 2^-24: below 2^28 */
    for (int i = 0; i < 12; i++)
        sum += (int32_t)(rng_u32(r) >> 8);
    return (float)(sum - 6 * (1 << 24)) * 0x1p-24f;
}
