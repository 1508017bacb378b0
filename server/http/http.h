/* http.h -- what the files of HTTP share: exchanges, connections, and the server of them.
 *
 *     auth.c      keys (account.c: what they cost)
 *     exchange.c  an exchange: its body, the bytes of its answer, the access log
 *     work.c      threads for what takes time before a request can be queued
 *     peers.c     the connections that are open, and who goes when there are too many
 *     watch.c     the thread that looks after those who wait
 *     listen.c    the socket
 *     http.c      the one file that knows libmicrohttpd: connections, requests and their checks,
 *                 answers
 *
 * Each knows those above it in this list. What lies above HTTP it is given (struct site, route.h).
 * An exchange is counted: once by its connection, once by whoever makes its answer. Locks are taken
 * in this order: of the lists, of an exchange. */
#ifndef PITH_SERVER_HTTP_H
#define PITH_SERVER_HTTP_H

#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/http/trace.h"
#include "server/json.h"
#include "server/hosted.h"

struct server_params;

struct MHD_Connection;

struct exchange {
    struct http *h;
    struct MHD_Connection *c; /* NULL: it has gone */
    struct exchange *next, **at;
    struct tenant *tenant;
    const struct route *route;
    atomic_int refs, gone, dispatched;     /* dispatched: the body is here, or was refused */
    pthread_mutex_t lock;                  /* of all below */
    int fd, suspended, too_large, crowded; /* crowded: the bodies of its key are */
    int begun, ended, live, queued, status, retry_after;
    const char *type, *pulse;
    struct header {
        const char *name;
        char value[256];
    } headers[4]; /* further ones of the answer */
    int n_headers;
    char *ignored; /* [n_ignored] what the answer does not regard, NULL: nothing */
    size_t n_ignored, cap_ignored;
    int ignored_full;
    char *body, *out;
    size_t n_body, cap_body, n_out, at_out, cap_out, sent;
    size_t (*fill)(void *ctx, char *buf, size_t max); /* exchange_pour; NULL: nothing is left */
    void (*done)(void *ctx);
    void *ctx;
    void *kept;       /* exchange_keep */
    int64_t poured;   /* bytes of ctx, which the account has */
    int64_t told_out; /* bytes of `out` that the account has */
    int64_t deadline; /* ns, 0: not read yet */
    int64_t pulse_ns; /* so long without a word */
    int64_t began, spoke,
        waits; /* ns; waits: since when there is something that the client has not taken */
    struct figures figures;
    json_t *tree;
    struct hosted *model; /* NULL: `why` says why there is none */
    struct fault why;
    struct trace trace;
    int wants_slot; /* ?fail_on_no_slot=1 */
    char id[32], method[12], path[512], query[256], action[16],
        allow[32]; /* allow: methods that there are instead of this one */
};

/* A connection, for as long as the library has it open. */
enum peer_state {
    PEER_UNKNOWN,
    PEER_IDLE,
    PEER_READING,
    PEER_BUSY,
    N_PEER_STATES
}; /* reading: its request; busy: with its answer */
enum peer_place { PLACE_NONE, PLACE_SEAT, PLACE_SPARE };
struct peer {
    struct peer_link {
        struct peer *prev, *next;
    } link[3];
    struct address *address; /* NULL: it is known */
    struct exchange *x;      /* NULL: it has none */
    enum peer_state state;
    enum peer_place place; /* none: it has been put out */
    int fd;
    int64_t since; /* ns: it is in its state, or was last asked something while unknown */
};
struct queue { /* oldest first */
    struct peer *first, *last;
};

struct http {
    struct server *s;
    const struct site *site;
    void (*resume)(struct MHD_Connection *c); /* it was suspended */
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock; /* of the lists */
    struct exchange *first;
    struct peers *peers;
    int64_t stirred; /* ns: there was an exchange; 0: nothing since it was tidied up */
    int n;
    pthread_t watch;
    atomic_int quit;
    int listen_fd, watching;
    int local; /* only this machine can reach it */
    atomic_uint_fast64_t serial;
    char url[300];
};

/* peers.c; all with the lock of the lists. most: places; most_unknown: of one address, for those
 * that have shown no key. */
struct sockaddr;
struct peers *peers_open(int most, int most_unknown);
void peers_close(struct peers *all);
int peers_descriptors(const struct peers *all); /* most that are open at a time */
struct peer *peers_add(struct peers *all, int fd,
                       const struct sockaddr *a); /* NULL: out of memory */
void peers_remove(struct peers *all, struct peer *p);
void peers_asks(struct peers *all, struct peer *p, struct exchange *x); /* a request has begun */
/* It is one that may ask. 0: there is no place for it. */
int peers_know(struct peers *all, struct peer *p);
void peers_waits(struct peers *all, struct peer *p); /* the request is here */
void peers_answered(struct peers *all, struct peer *p);
void peers_expire(struct peers *all, int64_t before); /* ends those that have been silent since */
/* exchange.c */
void exchange_wake(struct exchange *x); /* with its lock: its connection is looked at again */
void exchange_feed(struct exchange *x, const char *p, size_t n); /* bytes of the body */
int64_t exchange_body_most(const struct exchange *x);            /* its route is known */
void exchange_put(struct exchange *x, const char *p,
                  size_t n); /* exchange_write with the lock held; wakes nobody */
int exchange_unread(struct exchange *x,
                    int64_t before); /* its client has not taken what has waited since then */
void exchange_poured(
    struct exchange *x); /* with the lock: all of it has been taken, or nobody takes the rest */
void exchange_log(const struct exchange *x, const struct figures *f);
/* watch.c */
void *http_watch(void *http);
/* listen.c: the socket that p asks for, its address in h->url; -1 with *err. http_fail makes such
 * an error, and returns -1. */
int http_listen(struct http *h, const struct server_params *p, struct pith_error *err);
int http_fail(struct pith_error *err, const char *what, const char *why);

#endif
