/* hash.h -- hashes of tables that input fills, keyed with numbers that this process alone knows:
 * nobody can choose texts, tokens or merges that collide. They differ from one process to the next,
 * so they are never written down, compared between processes or an order that shows; names of files
 * and what is drawn by number come from slice_hash. */
#ifndef PITH_BASE_HASH_H
#define PITH_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *p, size_t n);

/* Of numbers, by multiplication with an odd number: the upper bits are those to use. A table that
 * is asked often keeps the key. */
struct hash_key {
    uint64_t add, odd;
};
struct hash_key hash_key(void);
static inline uint64_t hash_number(struct hash_key k, uint64_t x)
{
    return (x ^ k.add) * k.odd;
}

#endif
