/* hash.c -- XXH3 with a secret from the kernel's random numbers, drawn once.
 *
 * XXH3 takes its secret apart into 64-bit keys, each for eight bytes of input: without the secret
 * nothing is known of which inputs share a place. It is as fast with one as without, which
 * vocabularies of 262,144 texts notice at every start.
 *
 * Multiplication of numbers by a random odd one puts two of them into the same of 2^k places with a
 * probability of at most 2 / 2^k [Dietzfelbinger et al. 1997, "A reliable randomized algorithm for
 * the closest-pair problem"].
 */
#include "base/hash.h"

#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* short keys are hashed most: worth inlining, and nothing to link */
#include <xxhash.h>

#include "base/rng.h"

static union {
    uint64_t number[XXH_SECRET_DEFAULT_SIZE / 8];
    uint8_t bytes[XXH_SECRET_DEFAULT_SIZE];
} secret;
static struct hash_key key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Where the kernel gives no random numbers (an old one, a sandbox): those that it gave the program
 * at its start. */
static void draw_from_start(void)
{
    uint64_t seed[2] = {0};
    const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes */
    struct timespec now;
    if (random)
        memcpy(seed, random, sizeof seed);
    clock_gettime(CLOCK_MONOTONIC, &now);
    seed[1] ^= (uint64_t)now.tv_nsec << 32 ^ (uint64_t)getpid();
    for (uint64_t i = 0; i < sizeof secret / 16; i++)
        rng_philox(seed[0], i, seed[1], (uint32_t *)secret.bytes + 4 * i);
}

static void draw(void)
{
    /* Up to 256 bytes come whole or not at all. */
    if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) != (ssize_t)sizeof secret ||
        getrandom(&key, sizeof key, GRND_NONBLOCK) != (ssize_t)sizeof key) {
        draw_from_start();
        key.add = secret.number[0] * 0x9e3779b97f4a7c15u;
        key.odd = secret.number[1] ^ secret.number[2];
    }
    key.odd |= 1;
}

uint64_t hash_bytes(const void *p, size_t n)
{
    pthread_once(&once, draw);
    return XXH3_64bits_withSecret(n ? p : "", n, &secret, sizeof secret);
}

struct hash_key hash_key(void)
{
    pthread_once(&once, draw);
    return key;
}
