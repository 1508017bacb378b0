/* serve.h -- the server itself, and how its rooms hang together.
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
 * fields.def is the one table of what a body may hold.
 *
 * Each room knows those before it:  parts.c, json.c, metrics.c, hosted.c | http/ | schedule/ |
 * request/ | models/ | api/ | server.c
 *
 * This header is for files that change the struct; others ask parts.h. */
#ifndef PITH_SERVER_SERVE_H
#define PITH_SERVER_SERVE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>

#include "server/http/auth.h"
#include "server/server.h"

struct http;    /* http/connections.h */
struct items;   /* api/items.h */
struct models;  /* models/models.h */
struct tenants; /* http/auth.h */
struct work;    /* http/work.h */

struct server {
    struct server_params p;
    struct http *http;
    struct work *work;
    struct tenants *tenants;
    struct account account;       /* of all requests */
    atomic_llong beside_requests; /* bytes of the process that are none of theirs, as measured last
                                   */
    int64_t own_bytes;         /* the process had before there were models; 0: it is not measured */
    atomic_llong process_most; /* where nobody says --max-memory, 0: not known yet */
    struct models *models;
    struct items *items; /* of answers, which requests may name */
    json_t *defaults; /* of fields, by the operator */
    char *openapi, *docs;
    int64_t created; /* seconds since 1970 */
    atomic_int ready, draining;
};

#endif
