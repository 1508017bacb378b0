/* hosted.h -- models on offer, for those who use one (models.c). */
#ifndef PITH_SERVER_MODELS_HOSTED_H
#define PITH_SERVER_MODELS_HOSTED_H

#include "server/json.h"
#include "server/server.h"
#include <stdatomic.h>

struct exchange;
struct grammars;
struct metrics;
struct sched;
struct server;
struct tenant;

enum model_state { MODEL_UNLOADED, MODEL_LOADING, MODEL_READY, MODEL_LEAVING };
/* A model on offer. */
struct hosted {
    struct server *server;
    int index; /* in server_params.models */
    int64_t created;
    char name[256];
    struct metrics *metrics; /* NULL before the first load */
    /* For those who hold it (exchange_model, models_hold): */
    pith_model *model;
    pith_session *generate, *embed, *rank; /* any may be NULL */
    int32_t n_embed, n_rank;               /* most tokens in one step of the last two */
    struct server_lora lora[SERVER_LORAS]; /* [n_loras] */
    int n_loras;
    _Atomic(float) lora_scale[SERVER_LORAS]; /* where a request does not say */
    const pith_template *template;           /* NULL: the plain fallback */
    const pith_template *tool_template;      /* of conversations with tools; NULL: the same */
    pith_template *own_template;
    int shows_tools; /* the template puts tools into a prompt; 0: not into the simplest one, which
                        is when each is looked at */
    struct pith_model_info info;
    struct pith_sampler_params usual,
        usual_ollama; /* where a request does not say: as its file advises, else as all programs, or
                         Ollama, do */
    struct sched *sched;
    struct grammars *grammars; /* compiled ones */
    atomic_int permille;       /* of it that are loaded, while that is done */
    /* Of models.h, with its lock. */
    enum model_state state;
    int n_users, wanted, forced,
        ended;                  /* forced: its requests are ended, too; ended: they have been */
    int checked;                /* its file is one of a model, as far as its header says */
    uint64_t bytes;             /* when its caches are full; 0: it has not been loaded yet */
    int64_t asked, used, retry; /* clock_now(): of the last request's beginning; of an end; of
                                   another try after a load that failed */
    struct pith_error error;    /* of the last load */
};
struct models;
struct models *models_open(struct server *s, struct pith_error *err);
void models_stop(
    struct models *m); /* what waits and what runs ends with a fault; nothing is loaded any more */
void models_close(struct models *m);
/* As sched_drain, of all that are loaded. */
int models_drain(struct models *m, int64_t deadline);
int models_loading(struct server *s,
                   struct fault *f); /* what is said until the first model is there; returns 0 */
struct hosted *models_at(struct server *s, int i); /* NULL: there are no more; 0 is the default */
/* Loads it, if it is not, and waits for that. */
pith_status models_load(struct server *s, struct hosted *h, struct pith_error *err);
/* On a thread of work: calls the handler of the route of x when the model that its body asks for is
 * there, or cannot be. */
void models_handle(struct server *s, struct exchange *x);
void models_expire(struct server *s); /* looks after those who wait too long, or have left */
/* The model of that name (NULL, "": the default), loaded or not. NULL: *f. */
struct hosted *models_find(struct server *s, const char *name, struct fault *f);
/* The same if it is loaded: models_drop lets go of it. NULL: *f says why. */
struct hosted *models_hold(struct server *s, const char *name, struct fault *f);
void models_keep(struct hosted *h); /* once more */
void models_drop(struct hosted *h);
/* What `tell` says of the one of that name (NULL: *f), or with name NULL a list of all, or of all
 * that are loaded; the lock is held meanwhile. */
typedef json_t *(*models_tell)(const struct hosted *h);
json_t *models_json(struct server *s, const char *name, models_tell tell, struct fault *f);
json_t *models_list(struct server *s, int loaded, models_tell tell);
json_t *models_card(const struct hosted *h); /* as /v1/models tells of it */
/* Of one that is held: */
int32_t models_n_ctx(const struct hosted *h);
int32_t
models_n_input(const struct hosted *h); /* most tokens of an input to embed; 0: it embeds none */
int32_t models_n_pair(const struct hosted *h); /* of a question with a text; 0: it ranks none */
/* The one that /v1/report tells of. */
pith_session *models_session(const struct hosted *h);
json_t *
models_template(const struct hosted *h); /* the text in its file, null; NULL: out of memory */
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
