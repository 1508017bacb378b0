/* beside.h -- masks that take longer than a step may be made to wait, made by a thread of their
 * own. */
#ifndef PITH_SERVER_BESIDE_H
#define PITH_SERVER_BESIDE_H

#include "server/json.h"
#include "server/schedule/scheduler_impl.h"

/* All of these on the scheduler's thread. */
/* The draw of a branch from these logits has to wait for its mask; they are copied. 0: *f, no
 * memory, or none left of what the key may have. The branch has no part in steps until
 * beside_collect has drawn for it. */
int beside_put(struct sched *s, struct branch *b, const float *logits, struct fault *f);
void beside_forget(struct sched *s, struct branch *b); /* it ends */
/* Those whose masks have been made since: `masked` is the copy with the mask on it; err: it could
 * not be made. */
typedef void beside_draw(struct sched *s, struct branch *b, const float *logits, float *masked,
                         const struct pith_error *err);
void beside_collect(struct sched *s, beside_draw *draw);
/* No mask is begun from 1 to 0. */
void beside_hold(struct sched *s, int held);
int beside_done(const struct sched *s); /* with the lock: beside_collect has something to do */
int64_t beside_thread_ns(void);         /* processor time of this thread */
void beside_stop(struct sched *s);

#endif
