/* hosted.h -- a model on offer, for those who use it. */
#ifndef PITH_SERVER_HOSTED_H
#define PITH_SERVER_HOSTED_H

#include "server/json.h"
#include "server/server.h"
#include <pthread.h>
#include <stdatomic.h>

struct grammars;
struct metrics;
struct sched;
struct server;

enum model_state { MODEL_UNLOADED, MODEL_LOADING, MODEL_READY, MODEL_LEAVING };
/* What prompts show of conversations, by templates: a call, two calls of one turn, the system's
 * message. */
struct template_shows {
    int calls, several, system;
};
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
    char ends[68]; /* the text that ends its answers; "": tokens do */
    int shows_tools; /* the template puts tools into a prompt; 0: not into the simplest one, which
                        is when each is looked at */
    struct template_shows shows; /* all 0 without a template */
    struct pith_model_info info;
    struct pith_sampler_params usual,
        usual_ollama; /* where a request does not say: as its file advises, else as all programs, or
                         Ollama, do */
    struct sched *sched;
    struct grammars *grammars; /* compiled ones */
    atomic_int permille;       /* of it that are loaded, while that is done */

    pthread_mutex_t *lock;  /* of all models, and of what follows */
    pthread_cond_t *let_go; /* nobody holds it any more */
    enum model_state state;
    int n_users, wanted, forced,
        ended;                  /* forced: its requests are ended, too; ended: they have been */
    int checked;                /* its file is one of a model, as far as its header says */
    uint64_t bytes;             /* when its caches are full; 0: it has not been loaded yet */
    int64_t asked, used, retry; /* clock_now(): of the last request's beginning; of an end; of
                                   another try after a load that failed */
    struct pith_error error;    /* of the last load */
};
/* Whoever uses a loaded one holds it: models.h lends it, and it is not unloaded before all have let
 * go. */
void hosted_keep(struct hosted *h); /* once more, by who holds it */
int hosted_hold(struct hosted *h);  /* 0: it is not loaded, or is about to leave */
void hosted_drop(struct hosted *h);
/* Of one that is held: */
int32_t hosted_n_ctx(const struct hosted *h);
int32_t
hosted_n_input(const struct hosted *h); /* most tokens of an input to embed; 0: it embeds none */
int32_t hosted_n_pair(const struct hosted *h); /* of a question with a text; 0: it ranks none */
int hosted_fills_in(const struct hosted *h); /* its texts are masks at first */
/* The one that /v1/report tells of. */
pith_session *hosted_session(const struct hosted *h);
json_t *
hosted_template(const struct hosted *h); /* the text in its file, null; NULL: out of memory */

#endif
