/* account.h -- what requests cost: bytes and seconds, of each key and of all together; and the
 * bounds.
 *
 *     bytes    what a thread of work holds for a request (JSON, templates, tokens, grammars)  --
 *              counted while it grows (work.c)
 *              rooms for the tokens of a text                                                  --
 *                  taken before the text is read (work_take)
 *              what a request holds while it waits (grammar, prompt, lists, room for its
 *              vectors)                                                                        --
 *                  until it is freed
 *              JSON of a request that its answer keeps, to repeat it                           --
 *                  until the answer is freed
 *              tables of samplers of choices that run                                          --
 *                  from admission to the end
 *              logits whose masks are made beside the steps (beside.c)                         --
 *                  until their token is drawn
 *              answers that nobody has taken                                                   --
 *                  as they are written
 *              tokens that a slot keeps                                                        --
 *                  until others take their place
 *              items of answers that requests may name                                         --
 *                  likewise
 *     seconds  of threads of work, of samplers and masks, of reading the store's folder        --
 *              charged in the fair shares
 *
 * Bytes are taken before the work is done, as far as they are known, and else while it is done:
 * work that passes a bound is stopped. */
#ifndef PITH_SERVER_ACCOUNT_H
#define PITH_SERVER_ACCOUNT_H

#include <stddef.h>
#include <stdint.h>

#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/json.h"

struct server;

void account_add(struct server *s, struct tenant *t, int64_t bytes); /* below 0: gives back */
/* The same if it fits: more bytes for a request that has `held` of its own. 0: *f says which bound
 * is in the way. */
int account_take(struct server *s, struct tenant *t, int64_t bytes, int64_t held, struct fault *f);
/* Is there room for so many more, of the key and of all? */
int account_has_room(const struct server *s, const struct tenant *t, int64_t bytes);
/* Most bytes that work for a request of a key may hold now. */
int64_t account_room(const struct server *s, const struct tenant *t);
/* From time to time: how large the process is. It counts, too, since memory has more than its
 * owners know of: the allocator, libraries, stacks. of_models: bytes that they need at most. */
void account_measure(struct server *s, int64_t of_models);
int64_t
account_own(void); /* bytes of the process now, for server.own_bytes; 0: not to be measured */
/* Which bound a request that needs so many bytes passes. Returns 0. */
int account_refuse(const struct server *s, const struct tenant *t, int64_t bytes, struct fault *f);
void account_ended(struct tenant *t, const struct figures *f); /* a request, with its tokens */
/* For /metrics (malloc): what one key had, NULL: all of them, and all together. NULL: out of
 * memory.
 */
char *account_text(const struct server *s, const struct tenant *who, size_t *n);
int64_t account_most(const struct server *s);   /* bytes of the process; 0: not known yet, or any */
int64_t account_of_key(const struct server *s); /* most bytes of the requests of one key */
int64_t account_budget(const struct server *s); /* bytes of all requests together */

#endif
