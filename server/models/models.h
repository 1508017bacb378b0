/* models.h -- the models on offer: which a request means, how it is lent one, what there are. */
#ifndef PITH_SERVER_MODELS_H
#define PITH_SERVER_MODELS_H

#include "server/hosted.h"
#include "server/json.h"

struct exchange;
struct route;
struct server;
struct tenant;

struct models;
struct models *models_open(struct server *s, struct pith_error *err);
void models_stop(
    struct models *m); /* what waits and what runs ends with a fault; nothing is loaded any more */
void models_close(struct models *m);
/* As sched_drain, of all that are loaded. */
int models_drain(struct models *m, int64_t deadline);
int models_loading(struct server *s,
                   struct fault *f); /* what is said until the first model is there; returns 0 */
/* Whether an endpoint that needs a model may be asked now. 0: *f. */
int models_admit(struct server *s, const struct route *r, struct fault *f);
void models_look(struct server *s); /* sched_look of all that somebody uses */
struct hosted *models_at(struct server *s, int i); /* NULL: there are no more; 0 is the default */
/* Loads it, if it is not, and waits for that. */
pith_status models_load(struct server *s, struct hosted *h, struct pith_error *err);
/* On a thread of work: calls the handler of the route of x when the model that its body asks for is
 * there, or cannot be. */
void models_handle(struct server *s, struct exchange *x);
void models_expire(struct server *s); /* looks after those who wait too long, or have left */
/* The model of that name (NULL, "": the default), loaded or not. NULL: *f. */
struct hosted *models_find(struct server *s, const char *name, struct fault *f);
/* The same if it is loaded: hosted_drop lets go of it. NULL: *f says why. */
struct hosted *models_hold(struct server *s, const char *name, struct fault *f);
/* What `tell` says of the one of that name (NULL: *f), or with name NULL a list of all, or of all
 * that are loaded; the lock is held meanwhile. */
typedef json_t *(*models_tell)(const struct hosted *h);
json_t *models_json(struct server *s, const char *name, models_tell tell, struct fault *f);
json_t *models_list(struct server *s, int loaded, models_tell tell);
json_t *models_card(const struct hosted *h); /* as /v1/models tells of it */
int64_t
models_most(struct models *m); /* bytes that all that are loaded, or are being, need at most */
int models_is_loaded(const struct hosted *h);
/* Takes no new requests, and is unloaded when those it has have ended; force: they are ended. 0:
 * *f. One that is not loaded is no error. */
int models_unload(struct server *s, const char *name, int force, struct fault *f);
/* What one key had; NULL: all of them, and what all models that have been loaded did, as
 * metrics_text. */
char *models_metrics(struct server *s, const struct tenant *who, size_t *n);

#endif
