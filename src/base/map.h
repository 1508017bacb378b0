/* map.h -- hash map from byte strings to uint32 values: open addressing, keys owned by the caller
 * (they must outlive the map). Nothing can be seen of the order of its entries, which differs from
 * one process to the next. */
#ifndef PITH_BASE_MAP_H
#define PITH_BASE_MAP_H

#include "base/str.h"

struct map_entry;
struct map {
    struct map_entry *entries;
    uint32_t n, cap; /* cap: power of two or 0 */
    pith_purpose purpose;
};
void map_init(struct map *m, pith_purpose purpose);
void map_deinit(struct map *m);
int map_reserve(struct map *m, uint32_t n); /* room for n keys in all; 0 on failed allocation */
int map_put(struct map *m, struct slice key,
            uint32_t value); /* 1 added, 0 already there (unchanged), -1 no memory */
int map_get(const struct map *m, struct slice key, uint32_t *value); /* 1 found */
uint64_t map_steps(const struct map *m); /* entries looked at when each key is found once */

#endif
