/* server.h -- the server as its program sees it: opened before its models, so that it can say
 * "loading"; waited for. */
#ifndef PITH_SERVER_SERVER_H
#define PITH_SERVER_SERVER_H

#include <pith.h>

struct server;

enum { SERVER_BATCH = 512 }; /* n_batch of its model */

struct server_model {
    char *name;
    char *path;          /* for `load` alone */
    uint64_t file_bytes; /* about what it needs; asked before the first load */
};
struct server_alias { /* a further name that a request may say; one of several models means none of
                         them */
    char *name;
    int model; /* index */
    int told;  /* the list of models tells it */
};
enum { SERVER_LORAS = 16 };
struct server_lora { /* an adapter, and how much of it requests have that do not say */
    pith_adapter *adapter;
    float scale;
    char path[512];
};
struct server_loaded {
    pith_model *model;
    struct server_lora lora[SERVER_LORAS]; /* [n_loras] */
    int n_loras;
    pith_session *generate, *embed, *rank; /* for text, vectors, scores; any may be NULL */
    int32_t n_embed, n_rank;               /* n_batch of the last two: most tokens of an input */
    int (*progress)(
        void *ctx,
        double fraction); /* for `load` to tell how far it is, 0 to 1; 0: it is to give up */
    void *progress_ctx;
};

struct server_params {
    const struct server_model
        *models; /* [n_models], the first is meant where a request names none; kept by the caller */
    const struct server_alias *aliases; /* [n_aliases], likewise */
    int n_models, n_aliases;
    /* Opens a model; what is in *out becomes the server's own, whatever this returns. Called by a
     * thread of the server's, one at a time. */
    pith_status (*load)(void *ctx, const char *path, struct server_loaded *out,
                        struct pith_error *err);
    void *load_ctx;
    uint64_t models_memory; /* bytes of all that are loaded, with full caches; 0: no limit */
    int models_max;         /* most that are loaded; 0: no limit */
    double models_idle;     /* seconds after which one that nobody asks for is unloaded; 0: never */
    const char *host;       /* address to listen on; anything but this machine's own needs a key */
    int port;               /* 0: any that is free */
    const char *unix_path;  /* a socket in the file system instead */
    const char *const *keys; /* NULL-terminated, "name:secret" or "secret"; none: everybody may */
    const char *const *admin_keys;  /* likewise, for what changes the server; none, and none of
                                       `keys` has the name admin: nobody may */
    const char *const *hosts;       /* further names that the Host header may have */
    const char *const *origins;     /* web pages that may call: "https://example.org", or "*" */
    const char *tls_cert, *tls_key; /* PEM texts */
    const char *chat_template;      /* text of a template instead of the model's own */
    const char *chat_template_name; /* the model's own template of this name; NULL: without one */
    int parallel;                   /* most sequences that advance in one step */
    int queue;                      /* most that wait */
    int connections;                /* most at a time */
    int connections_unknown; /* of one address: most that have shown no key, where there are keys */
    int64_t body_bytes;      /* most of one request */
    uint64_t
        grammar_bytes; /* most of the compiled grammars that are kept, for each model; 0: none is */
    int64_t item_bytes; /* most of the items of answers that are kept for a key; 0: none is */
    int schema_order;  /* members of objects in the order of their schemas */
    int64_t mask_steps; /* most that the masks of a step may take of it, some 10 ns each */
    double gap;         /* seconds between tokens that prefill has to leave to others */
    double read_timeout, request_timeout; /* seconds; 0: none */
    int64_t requests_memory;              /* bytes of all requests together */
    int64_t request_memory;               /* of one, beside its body */
    int shift_contexts;                   /* tokens of a choice that shifts, by context sizes */
    double request_seconds;               /* of processor time for reading one; 0: no limit */
    int64_t max_memory;      /* of the process: models get what requests leave; 0: no limit */
    int log;                 /* access log on stderr */
    int share_prefixes;      /* keys find what others have had computed */
    int open_metrics;        /* /metrics needs no key */
    int no_slots;            /* /slots says nothing */
    const char *slot_folder; /* where slots are saved; NULL: nowhere */
    const char *const
        *defaults;     /* NULL-terminated "field=JSON": of fields that a body does not have */
    int strict_fields; /* a field that is not known is refused, not left out */
    int strict_model;  /* a name that is not known is refused by a single model, too */
    int no_web;        /* without the page at / */
    const char *(*nearest)(const char *word,
                           const char *const *candidates); /* what a mistyped word was to be; NULL:
                                                              none is near; may be NULL */
};

/* Listens. NULL: *err says why; PITH_RANGE: the parameters are wrong. */
struct server *server_open(const struct server_params *p, struct pith_error *err);
/* "http://127.0.0.1:8080", owned by the server. */
const char *server_url(const struct server *s);
/* Loads the first model, and serves from then on. lazy: serves at once, and loads it when it is
 * asked for. */
pith_status server_start(struct server *s, int lazy, struct pith_error *err);
/* Takes nothing new, lets what runs come to its end for so many seconds. Returns how many requests
 * did not. */
int server_drain(struct server *s, double seconds);
/* An admin wants it to end; server_drain and server_close are the program's to call. */
int server_is_draining(const struct server *s);
void server_close(struct server *s);

/* How many sequences a session for `parallel` of them needs. */
int server_sequences(int parallel);

#endif
