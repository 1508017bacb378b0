/* items.h -- what answers of /v1/responses were made of, kept for a while, so that the next request
 * may name it (item_reference) instead of sending it again. Of each key apart; in memory alone. */
#ifndef PITH_SERVER_API_ITEMS_H
#define PITH_SERVER_API_ITEMS_H

#include <stdint.h>

#include "server/json.h"

struct items;
struct server;
struct tenant;

/* most: bytes of one key, 0: nothing is kept; all keys together have at most 16 times as much.
 * NULL: out of memory. */
struct items *items_open(struct server *s, int64_t most);
void items_close(struct items *k);
/* A list of items with ids, which stays the caller's. Those used longest ago go for them, of this
 * key first; what there is no room for is not kept. Any thread, as the next. */
void items_keep(struct items *k, struct tenant *t, const json_t *list);
/* One of them, the caller's. NULL: nothing of that id is kept (f->http 0), or *f says why not. */
json_t *items_find(struct items *k, struct tenant *t, const char *id, struct fault *f);

#endif
