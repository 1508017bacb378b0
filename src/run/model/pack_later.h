/* pack_later.h -- weights that are packed while the model is in use already: tensor/pending.h. */
#ifndef PITH_RUN_PACK_LATER_H
#define PITH_RUN_PACK_LATER_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "base/error.h"

struct pith_model;

struct pack_later {
    struct stretch *stretches; /* [n] of what is packed later, in the order of their use */
    int32_t n;
    pthread_t thread;
    pid_t process; /* whose thread it is; 0: there is none */
    _Atomic(int) stop;
};

/* Decides which placed weights are packed later, before they are loaded. Fails for want of memory.
 */
pith_status pack_later_init(struct pith_model *m, struct pith_error *err);
/* Begins to pack beside, once all else is loaded. A thread that the system refuses is no error:
 * steps pack what they use. */
void pack_later_start(struct pith_model *m);
void pack_later_stop(struct pith_model *m); /* and waits until nobody is at it */

#endif
