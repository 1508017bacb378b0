/* server.h -- the server as its program sees it: opened before the model, so that it can say "loading"; given a model; waited for. */
#ifndef PITH_SERVER_SERVER_H
#define PITH_SERVER_SERVER_H

#include <pith.h>

struct server;

enum { SERVER_BATCH = 512 }; /* n_batch of its model */

struct server_params {
    const char *host; /* address to listen on; anything but this machine's own needs a key */
    int port;         /* 0: any that is free */
    const char *unix_path;     /* a socket in the file system instead */
    const char *const *keys;   /* NULL-terminated, "name:secret" or "secret"; none: everybody may */
    const char *const *hosts;  /* further names that the Host header may have */
    const char *const *origins; /* web pages that may call: "https://example.org", or "*" */
    const char *tls_cert, *tls_key; /* PEM texts */
    const char *name;          /* of the model in answers; NULL: what its file says */
    const char *chat_template; /* text of a template instead of the model's own */
    int parallel;       /* most sequences that advance in one step */
    int queue;          /* most that wait */
    int connections;    /* most at a time */
    int64_t body_bytes; /* most of one request */
    double gap;         /* seconds between tokens that prefill has to leave to others */
    double read_timeout, request_timeout; /* seconds; 0: none */
    int log; /* access log on stderr */
    int no_web; /* without the page at / */
};

/* Listens. NULL: *err says why. */
struct server *server_open(const struct server_params *p, struct pith_error *err);
/* "http://127.0.0.1:8080", owned by the server. */
const char *server_url(const struct server *s);
/* From now on it serves. The sessions become the server's own: `generate` for text, `embed` for embeddings; either may be NULL. */
pith_status server_give(struct server *s, pith_model *m, pith_session *generate,
                        pith_session *embed, struct pith_error *err);
/* Takes nothing new, lets what runs come to its end for so many seconds. Returns how many requests did not. */
int server_drain(struct server *s, double seconds);
void server_close(struct server *s);

/* How many sequences a session for `parallel` of them needs. */
int server_sequences(int parallel);

#endif
