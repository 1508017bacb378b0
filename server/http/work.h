/* work.h -- threads for what takes time before a request can be queued. */
#ifndef PITH_SERVER_HTTP_WORK_H
#define PITH_SERVER_HTTP_WORK_H

#include "server/json.h"

struct exchange;
struct server;

struct work;
struct work *work_open(int n_threads, int n_keys, int most); /* most: requests of a key that wait */
/* fn(s, x) on one of the threads; the keys take turns. 0: *f says why not. */
int work_push(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s,
              struct exchange *x, struct fault *f);
/* The same for an answer that has only to be written, of x that was pushed before: it goes first,
 * whatever waits. 0: it has to be done here, since the server ends or there is no memory. */
int work_finish(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s,
                struct exchange *x);
void work_stop(struct work *w); /* what is queued is done first */
/* From time to time, now: clock_now(). Lends the turns of those who have not looked for long to
 * keys that wait and have none. */
void work_lend(struct work *w, int64_t now);
/* On a thread of work, for the job that it does; elsewhere nothing: */
int work_goes_on(void); /* 0: it ends here; where it does not, others may have gone first */
int work_was_stopped(void); /* by a bound, or since nobody waits: what failed may not fail again */
void work_deadline(int64_t deadline); /* it ends then; clock_now(), 0: never */
int64_t work_hand_over(void); /* bytes that the library holds for it, which the caller counts from
                                 now on, as he does those of work_take */
/* Bytes that neither the library nor JSON knows of, before they are there: in the account until
 * they are given back, handed over, or the job ends. 0: *f, there is no room. */
int work_take(int64_t bytes, struct fault *f);
void work_give(int64_t bytes);
extern const struct json_bounds work_bounds; /* for json_watch */
/* Between the two it does not let others go first: a lock is held. */
struct turn;
struct turn *work_leave(void);
void work_return(struct turn *t);
void work_free(struct work *w);

#endif
