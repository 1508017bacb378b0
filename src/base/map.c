/* map.c -- open addressing with linear probing, at most 3/4 full, by a keyed hash: whoever writes
 * the keys cannot make them collide.
 *
 *     entries[cap]:  key (pointer, length) | 32 bits of its hash | value
 *                    an entry whose key has no pointer is free
 *
 * The stored hash makes most comparisons one integer and growing free of re-hashing. Keys are not
 * copied. There is no removal, hence no tombstones: vocabularies, tensor tables and metadata are
 * built once and read often.
 */
#include "base/map.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

#define CAP_FIRST 16u
#define CAP_LAST  (1u << 31)

struct map_entry {
    struct slice key;
    uint32_t hash, value;
};

void map_init(struct map *m, pith_purpose purpose)
{
    *m = (struct map){.purpose = purpose};
}

void map_deinit(struct map *m)
{
    mem_free(m->entries);
    map_init(m, m->purpose);
}

static uint32_t fits(uint32_t cap)
{
    return cap - cap / 4;
}

/* The key's entry, or the free one where it belongs. cap > 0, and at least one entry is free. */
static struct map_entry *find(const struct map *m, struct slice key, uint32_t hash)
{
    uint32_t i = hash & (m->cap - 1);
    struct map_entry *e = &m->entries[i];
    while (e->key.p && !(e->hash == hash && slice_eq(e->key, key))) {
        i = (i + 1) & (m->cap - 1);
        e = &m->entries[i];
    }
    return e;
}

static int grow(struct map *m, uint32_t cap)
{
    struct map_entry *entries = mem_array(cap, sizeof *entries, m->purpose);
    if (!entries)
        return 0;
    struct map to = {entries, m->n, cap, m->purpose};
    for (uint32_t i = 0; i < m->cap; i++) {
        const struct map_entry *e = &m->entries[i];
        if (e->key.p)
            *find(&to, e->key, e->hash) = *e;
    }
    mem_free(m->entries);
    *m = to;
    return 1;
}

int map_reserve(struct map *m, uint32_t n)
{
    uint32_t cap = m->cap ? m->cap : CAP_FIRST;
    while (fits(cap) < n) {
        if (cap == CAP_LAST)
            return 0;
        cap *= 2;
    }
    return cap == m->cap || grow(m, cap);
}

int map_put(struct map *m, struct slice key, uint32_t value)
{
    uint32_t hash = (uint32_t)hash_bytes(key.p, key.n);
    if (m->cap && find(m, key, hash)->key.p)
        return 0;
    if (m->n >= fits(CAP_LAST) || !map_reserve(m, m->n + 1))
        return -1;
    if (!key.p)
        key.p = ""; /* an empty key is a key; a free entry is one without a pointer */
    *find(m, key, hash) = (struct map_entry){key, hash, value};
    m->n++;
    return 1;
}

int map_get(const struct map *m, struct slice key, uint32_t *value)
{
    if (!m->cap)
        return 0;
    const struct map_entry *e = find(m, key, (uint32_t)hash_bytes(key.p, key.n));
    if (!e->key.p)
        return 0;
    *value = e->value;
    return 1;
}

uint64_t map_steps(const struct map *m)
{
    uint64_t n = m->n;
    for (uint32_t i = 0; i < m->cap; i++)
        if (m->entries[i].key.p)
            n += (i - m->entries[i].hash) & (m->cap - 1);
    return n;
}
