/* serve.h -- the rooms of the server and what they hand each other.
 *
 *     socket -- http.c -- work.c -- api_NAME.c -- scheduler.c -- pith_session
 *               bytes     a body     fields ->      steps
 *                         is whole   struct request
 *     socket <- http.c <----------- api_NAME.c <- struct event
 *               exchange_write      its own JSON
 *
 * http.c alone knows the HTTP library: an *exchange* (exchange.c) is one HTTP request and its
 * answer. Its connection is suspended while there is nothing to say; whoever has something to say
 * writes to the exchange, from any thread. watch.c looks after those who wait, listen.c opens the
 * socket. work.c has a few threads that do what takes time before a request can be queued (JSON,
 * templates, tokens, grammars), so that bytes always move. scheduler.c has the one thread that owns
 * the sessions.
 * An API is one file: it turns a body into `struct request` and events into its own JSON.
 * fields.def is the one table of what a body may hold. */
#ifndef PITH_SERVER_SERVE_H
#define PITH_SERVER_SERVE_H

#include <jansson.h>
#include <pith.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http/account.h"
#include "server/server.h"

struct exchange; /* a request of HTTP and its answer (exchange.c) */
struct tenant;   /* who asks (auth.c) */
struct hosted;   /* a model on offer (models.c) */
struct route;

/* ---------------------------------------------------------------- errors */

/* What goes wrong with a request. msg says what was found, what was wanted, what to do. */
struct fault {
    int http;         /* status, 0: none */
    int retry_after;  /* seconds, 0: not said */
    const char *code; /* "context_length_exceeded" */
    char param[64];   /* the field, "" for none */
    char msg[512];
    int64_t n_prompt, n_ctx, n_over; /* of context_length_exceeded */
    double progress;                 /* of model_loading, 0 to 1 */
};
/* Returns 0, so that it can be returned. param may be NULL. */
int fault_set(struct fault *f, int http, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int fault_from(struct fault *f, const struct pith_error *err, const char *param); /* by status */
int fault_memory(struct fault *f);
int fault_shutting_down(struct fault *f);
const char *fault_type(const struct fault *f);  /* "invalid_request_error" */
json_t *fault_json(const struct fault *f);      /* the shape of OpenAI's errors */
json_t *fault_anthropic(const struct fault *f); /* api_anthropic.c */
json_t *fault_ollama(const struct fault *f);    /* api_ollama.c */

/* ---------------------------------------------------------------- JSON (json.c) */

enum { JSON_DEPTH = 128 };
/* A body as JSON; nested deeper than JSON_DEPTH is refused before it is parsed. */
json_t *json_read(const char *p, size_t n, struct fault *f);
/* What was found where something else was wanted: "an object", a number or the beginning of a text
 * as it is; NULL: "missing". */
const char *json_found_in(const json_t *v, char buf[64]);
#define json_found(v) json_found_in(v, (char[64]){0}) /* lives as long as the block */
json_t *json_float(float x);                          /* 0.8f as 0.8 */
json_t *json_text(const char *p, size_t n);           /* bytes that are no UTF-8 become U+FFFD */
/* The texts of a list as one, or those that its objects have under a key. NULL: one of them is no
 * text, or out of memory. */
json_t *json_joined(const json_t *list, const char *key);
/* As text (malloc), compact, with numbers that read back as the very same. NULL: out of memory. */
char *json_exact(const json_t *j);
/* jansson's callers cannot look at each of its allocations, so it tells their thread of those that
 * fail (from json_watch on), as all of json.c does. Whether there was one since this was asked
 * last: what was made meanwhile has a hole. */
void json_watch(void);
int json_lost(void);
/* n more bytes at the end of (*text)[*n_text]. 0: out of memory. */
int text_put(char **text, size_t *n_text, size_t *cap, const char *p, size_t n);
int64_t clock_now(void); /* monotonic ns */

/* ---------------------------------------------------------------- fields (fields.c) */

/* Endpoints, as bits of the column "endpoints" of fields.def. */
enum {
    E_CHAT = 1,
    E_COMPLETE = 2,
    E_EMBED = 4,
    E_TOKENIZE = 8,
    E_DETOKENIZE = 16,
    E_TEMPLATE = 32,
    E_RESPONSES = 64,
    E_MESSAGES = 128,
    E_COUNT = 256,
    E_OLLAMA_CHAT = 512,
    E_OLLAMA_GENERATE = 1024,
    E_OLLAMA_SHOW = 2048,
    E_OLLAMA_EMBED = 4096,
    E_OLLAMA_OPTIONS = 8192, /* the object `options` */
    E_LOAD = 16384,
    E_UNLOAD = 32768,
    E_STREAM_OPTIONS = 65536, /* the object `stream_options` */
    E_COMPLETION = 131072,
    E_INFILL = 262144,
    E_PEER = E_COMPLETION | E_INFILL, /* llama.cpp's own */
    E_SLOTS = 524288,
    E_RERANK = 1048576,
    E_OLLAMA = E_OLLAMA_CHAT | E_OLLAMA_GENERATE,
    E_MADE = E_CHAT | E_COMPLETE,                                      /* OpenAI's older two */
    E_TALKS = E_CHAT | E_RESPONSES | E_MESSAGES | E_OLLAMA_CHAT,       /* conversations */
    E_STREAMS = E_MADE | E_RESPONSES | E_MESSAGES | E_OLLAMA | E_PEER, /* all that make text */
    /* Text is made by the only model whatever its name in the request; vectors and what changes the
     * server want the very one. */
    E_ANY_MODEL = E_STREAMS | E_TOKENIZE | E_DETOKENIZE | E_TEMPLATE | E_COUNT,
    E_SAMPLES = E_MADE | E_RESPONSES | E_MESSAGES | E_OLLAMA_OPTIONS |
                E_PEER, /* and where they have how to choose tokens */
};

enum field_id {
#define FIELD(id, ...) F_##id,
#include "server/fields.def"
#undef FIELD
    N_FIELDS
};
struct fields {
    json_t *body;              /* owned */
    json_t *put;               /* a list of what fields_put took */
    const json_t *v[N_FIELDS]; /* NULL: absent or null */
    struct exchange *x;        /* whose body it is, NULL: nobody's */
    const char *(*nearest)(const char *word,
                           const char *const *candidates); /* server_params.nearest */
};
/* "field=value" texts, each value JSON or else a text, as an object; checked against the rows by
 * that name. NULL: *err. */
json_t *fields_defaults(const char *const *texts, struct pith_error *err);
/* Checks the body of x against the rows of an endpoint: names, types, ranges. */
int fields_read(struct fields *f, unsigned endpoint, struct exchange *x, struct fault *fault);
/* The members of the object that field `id` is, by the rows of an endpoint of their own. */
void fields_of_nothing(struct fields *f, unsigned endpoint,
                       const struct server *s); /* as if a body had said nothing */
int fields_nested(struct fields *f, enum field_id id, unsigned endpoint, struct fault *fault);
/* As if the body had said so; takes v (NULL: out of memory), which is not checked. */
int fields_put(struct fields *f, enum field_id id, json_t *v, struct fault *fault);
void fields_free(struct fields *f);
int64_t field_int(const struct fields *f, enum field_id id); /* value, else default */
double field_real(const struct fields *f, enum field_id id);
int field_bool(const struct fields *f, enum field_id id);
const char *field_text(const struct fields *f, enum field_id id); /* NULL: absent */
size_t texts_count(const json_t *v); /* of a field that is a text or a list of them */
const json_t *texts_at(const json_t *v, size_t i);
const char *field_name(enum field_id id);
json_t *
field_schema(enum field_id id,
             unsigned endpoint); /* a row as a JSON Schema; NULL: the endpoint has no such field */
json_t *fields_docs(unsigned endpoint); /* its rows as JSON */
char *openapi_make(struct server *s);   /* the description of all endpoints, as JSON (openapi.c);
                                           NULL: out of memory */
char *docs_make(void);                  /* likewise, for people */

/* ---------------------------------------------------------------- exchanges (exchange.c) */

const char *exchange_body(const struct exchange *x, size_t *n);
/* The body as JSON, parsed once; the caller's (a reference). NULL with *f. By the thread that
 * answers. */
json_t *exchange_tree(struct exchange *x, struct fault *f);
void exchange_forget(struct exchange *x,
                     int body); /* frees the tree, and the body; by who answers */
const char *exchange_query(const struct exchange *x);  /* model of ?model=, "" */
const char *exchange_action(const struct exchange *x); /* action of ?action=, "" */
const struct route *exchange_route(const struct exchange *x);
/* The model asked for, loaded and held until the handler returns; sched_submit holds it for its
 * requests. NULL: *f says why. */
struct hosted *exchange_model(struct exchange *x, struct fault *f);
void exchange_give_model(struct exchange *x, struct hosted *m, const struct fault *why);
struct server *exchange_server(const struct exchange *x);
struct tenant *exchange_tenant(const struct exchange *x);
const char *exchange_id(const struct exchange *x); /* "req-..." */
int64_t exchange_began(const struct exchange *x);
int64_t exchange_deadline(const struct exchange *x); /* clock_now(), 0: none; as far as it has been
                                                        read, else the server's limit */
void exchange_set_deadline(struct exchange *x, int64_t deadline);
const char *exchange_path(const struct exchange *x);
const atomic_int *exchange_gone(const struct exchange *x); /* becomes 1 when the client has left */
void exchange_hold(struct exchange *x);
void exchange_drop(struct exchange *x);
/* The answer. begin: status and type are known; the first call decides (1). `live` sends the
 * headers at once and the body as it is written (what was written before comes first), with `pulse`
 * (NULL: none) when nothing was written for 5 s; otherwise the body is what is written from here.
 * end: it is whole. From any thread. */
int exchange_begin(struct exchange *x, int status, const char *type, int live, const char *pulse);
void exchange_retry_after(struct exchange *x, int seconds); /* before begin */
/* What of the request the answer does not regard: told in the header x-pith-ignored, and in the
 * log. Before begin; x NULL: nowhere. */
void exchange_ignores(struct exchange *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void exchange_header(struct exchange *x, const char *name,
                     const char *value); /* before begin; at most 4, name a constant */
const char *
exchange_asked(const struct exchange *x,
               const char *name); /* a header of the request, NULL; on the thread of HTTP */
void exchange_write(struct exchange *x, const char *p, size_t n);
/* An answer that is made as it is taken: fill writes the next bytes, at most max (4096 at least),
 * 0: that was all. On the thread of HTTP, with no lock but the exchange's. ctx, of so many bytes,
 * is freed with done. The first call that begins decides (0: ctx is freed). */
int exchange_pour(struct exchange *x, const char *type,
                  size_t (*fill)(void *ctx, char *buf, size_t max), void (*done)(void *ctx),
                  void *ctx, int64_t bytes);
void exchange_end(struct exchange *x);
void exchange_break(
    struct exchange *x); /* it cannot be whole: the connection ends in the middle of it */
void exchange_json(struct exchange *x, int status,
                   json_t *body); /* all of it; takes body, NULL or json_lost(): out of memory */
void exchange_text(struct exchange *x, int status,
                   char *json); /* the same of JSON as text (malloc) */
json_t *exchange_fault_json(const struct exchange *x,
                            const struct fault *f); /* in the shape of its route */
void exchange_fault(struct exchange *x, const struct fault *f);
/* For the access log. */
struct figures {
    int64_t n_prompt, n_cached, n_made, queue_ns, first_ns;
    int64_t made_ns;    /* from the first token to the last so far */
    int64_t differs_at; /* where the prompt left what was known of it, -1: nowhere */
    int32_t known;      /* the token there */
    /* What was asked for: n_choices 0: no text; n_max <= 0: as the context allows. */
    int64_t n_choices, n_max;
    double temperature, top_p;
};
void exchange_figures(struct exchange *x, const struct figures *f);

/* ---------------------------------------------------------------- connections (http.c) */

struct http;
struct http *http_open(struct server *s, const struct server_params *p, struct pith_error *err);
const char *http_url(const struct http *h);
/* Waits until what has ended by now is sent, or until `deadline`: the clients take it at their
 * pace. */
void http_drain(struct http *h, int64_t deadline);
void http_close(struct http *h);
/* auth.c: Host and Origin are not what they have to be. local: only this machine can reach the
 * server; keys: a request needs one. */
int http_tells_lies(const struct server_params *p, const char *host, const char *origin, int local,
                    int keys, struct fault *f);

/* ---------------------------------------------------------------- routes (routes.c) */

/* On the thread of HTTP; without a key; 503 until there is a model; for people, not in the
 * descriptions; errors in another shape than OpenAI's; for admins; its handler waits for the
 * scheduler; without a key where metrics are open. */
enum {
    ROUTE_DIRECT = 1,
    ROUTE_OPEN = 2,
    ROUTE_MODEL = 4,
    ROUTE_PAGE = 8,
    ROUTE_ANTHROPIC = 16,
    ROUTE_OLLAMA = 32,
    ROUTE_ADMIN = 64,
    ROUTE_WAITS = 128,
    ROUTE_PEER = 256, /* llama.cpp's: its type of an error of length */
    ROUTE_LIST = 512, /* answers may be lists */
    ROUTE_METRICS = 1024
};
struct route {
    const char *method, *path;
    int flags;
    unsigned endpoint; /* of fields.def, 0: no body */
    void (*handle)(struct server *s, struct exchange *x);
    const char *help;
};
extern const struct route routes[];                               /* closed by an empty row */
int route_is_open(const struct server *s, const struct route *r); /* it needs no key */

/* ---------------------------------------------------------------- work (work.c) */

struct work;
struct work *work_open(int n_threads, int n_keys, int most); /* most: requests of a key that wait */
/* fn(s, x) on one of the threads; the keys take turns. 0: *f says why not. */
int work_push(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s,
              struct exchange *x, struct fault *f);
void work_stop(struct work *w); /* what is queued is done first */
/* From time to time, now: clock_now(). Lends the turns of those who have not looked for long to
 * keys that wait and have none. */
void work_lend(struct work *w, int64_t now);
/* On a thread of work, for the job that it does; elsewhere nothing: */
int work_json(size_t bytes,
              int taken); /* json.c: a block is taken (0: it may not be), or given back */
int work_goes_on(void); /* 0: it ends here; where it does not, others may have gone first */
void work_deadline(int64_t deadline); /* it ends then; clock_now(), 0: never */
int64_t
work_hand_over(void); /* bytes that the library holds for it, which the caller counts from now on */
int work_why(struct fault *f); /* 1: it was stopped, and *f says why */
/* Between the two it does not let others go first: a lock is held. */
struct turn;
struct turn *work_leave(void);
void work_return(struct turn *t);
void work_free(struct work *w);

/* ---------------------------------------------------------------- keys (auth.c) */

struct tenants;
struct tenants *tenants_open(const char *const *keys, const char *const *admin_keys,
                             struct pith_error *err);
void tenants_close(struct tenants *t);
int tenants_have_keys(const struct tenants *t); /* without, everybody may ask */
int tenants_have_admins(const struct tenants *t);
/* By the key given (NULL: none). NULL: there is none such, and one is needed. Compares in constant
 * time. */
struct tenant *tenants_find(struct tenants *t, const char *key);
struct tenant *tenants_at(struct tenants *t, int i); /* 0 .. tenants_count - 1 */
int tenants_count(const struct tenants *t);
struct tenant *tenants_at(struct tenants *t, int i);

/* ---------------------------------------------------------------- models (models.c) */

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
    pith_session *generate, *embed;     /* either may be NULL */
    const pith_template *template;      /* NULL: the plain fallback */
    const pith_template *tool_template; /* of conversations with tools; NULL: the same */
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
json_t *
models_template(const struct hosted *h); /* the text in its file, null; NULL: out of memory */
int models_is_loaded(const struct hosted *h);
/* Takes no new requests, and is unloaded when those it has have ended; force: they are ended. 0:
 * *f. One that is not loaded is no error. */
int models_unload(struct server *s, const char *name, int force, struct fault *f);
/* What one key had; NULL: all of them, and what all models that have been loaded did, as
 * metrics_text. */
char *models_metrics(struct server *s, const struct tenant *who, size_t *n);

/* ---------------------------------------------------------------- the server (server.c) */

struct server {
    struct server_params p;
    struct http *http;
    struct work *work;
    struct tenants *tenants;
    struct account account; /* of all requests */
    atomic_llong beside_requests; /* bytes of the process that are none of theirs, as measured last
                                   */
    struct models *models;
    json_t *defaults; /* of fields, by the operator */
    char *openapi, *docs;
    int64_t created; /* seconds since 1970 */
    atomic_int ready, draining;
};

#endif
