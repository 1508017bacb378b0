/* models_impl.h -- what the files of the models share: those on offer, and requests that wait for
 * one.
 *
 *     waiting.c  requests that wait while the model they are for is loaded
 *     loader.c   the thread that loads and unloads
 *     models.c   which model a request is for; what there are
 *     shows.c    what a model's template shows, tried while it is loaded
 *
 *     UNLOADED -> LOADING -> READY -> LEAVING -> UNLOADED
 *
 * A model is READY or LEAVING as long as somebody holds it: a handler, until it returns, and the
 * scheduler, for each request. LEAVING ones are not given to anybody else and are closed when the
 * last one lets go; requests that come in between wait until it has been loaded anew. */
#ifndef PITH_SERVER_MODELS_IMPL_H
#define PITH_SERVER_MODELS_IMPL_H

#include "server/hosted.h"
#include "server/json.h"
#include "server/metrics.h"
#include "server/models/models.h"
#include "server/schedule/scheduler.h"

struct waiter {
    struct waiter *next;
    struct exchange *x;
    struct hosted *model;
    int64_t deadline; /* clock_now(), 0: none */
};

struct models {
    struct server *server;
    pthread_mutex_t lock;  /* of all below, and of what struct hosted says */
    pthread_cond_t wake;   /* the loader has something to look at */
    pthread_cond_t loaded; /* a load has come to its end */
    pthread_t loader;
    int has_loader, quit;
    struct waiter *first, **end; /* in the order of arrival */
    int n_waiting;
    struct hosted *opened; /* has been loaded, and waits for room */
    int first_told;        /* of the aliases: those that came from files stand before it */
    int n;
    struct hosted v[]; /* the first is the default */
};

/* waiting.c. Lets the handler of its route answer x, with the model that it has been given. */
void waiter_handle(struct server *s, struct exchange *x);
/* With the lock. A full queue is full for those who have filled it: a key may always have its part
 * of it waiting. 0: *f says why not. */
int waiter_add(struct models *m, struct hosted *h, struct exchange *x, int64_t deadline,
               struct fault *f);
/* With the lock. Those that wait for the model go on: held, or (why->http) to say why not. */
void waiters_resume(struct models *m, struct hosted *h, const struct fault *why);

/* shows.c. Sets h->shows, which nobody else reads yet; a template that fails shows nothing. */
void shows_try(struct hosted *h);

/* loader.c */
void *loader_run(void *models);
void loader_end(struct hosted *h);   /* ends its requests; without the lock */
void loader_close(struct hosted *h); /* frees what loading made; likewise */

#endif
