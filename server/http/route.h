/* route.h -- an endpoint, and what HTTP is given of the rooms above it. */
#ifndef PITH_SERVER_HTTP_ROUTE_H
#define PITH_SERVER_HTTP_ROUTE_H

#include <stdint.h>

#include "server/json.h"

struct exchange;
struct server;

/* On the thread of HTTP; without a key; 503 until there is a model; for people, not in the
 * descriptions; errors in another shape than OpenAI's; for admins; its handler waits for the
 * scheduler; without a key where metrics are open; for admins, or for everybody where the server
 * has no keys at all. */
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
    ROUTE_METRICS = 1024,
    ROUTE_EMPTY = 2048, /* its body may have nothing in it */
    ROUTE_OWN = 8192,
    ROUTE_MAY_LACK = 4096 /* 501: not every model, or server, has it */
};
struct route {
    const char *method, *path;
    int flags;
    unsigned endpoint; /* of fields.def, 0: no body */
    void (*handle)(struct server *s, struct exchange *x);
    const char *help;
};
int route_is_open(const struct server *s, const struct route *r); /* it needs no key */

/* Errors in another shape than OpenAI's: of routes with the flag, and of paths that are none. */
struct shape {
    int flag;
    const char *under; /* how such paths begin; NULL: of routes alone */
    json_t *(*fault)(const struct fault *f);
};

/* What the server is, for HTTP. */
struct site {
    const struct route *routes; /* closed by an empty row */
    const struct shape *shapes; /* likewise */
    /* May the endpoint be asked now? 0: *f. */
    int (*admits)(struct server *s, const struct route *r, struct fault *f);
    /* On a thread of work: answers a request whose body is here, and drops it. */
    void (*handle)(struct server *s, struct exchange *x);
    /* From time to time, now: clock_now(). */
    void (*tend)(struct server *s, int64_t now);
};

#endif
