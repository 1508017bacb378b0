/* connections.h -- the listening side: opened first, closed last (http.c). */
#ifndef PITH_SERVER_HTTP_CONNECTIONS_H
#define PITH_SERVER_HTTP_CONNECTIONS_H

#include <pith.h>
#include "server/server.h"

struct http;
struct server;
struct site; /* route.h */

struct http *http_open(struct server *s, const struct site *site, const struct server_params *p,
                       struct pith_error *err);
const char *http_url(const struct http *h);
/* Waits until what has ended by now is sent, or until `deadline`: the clients take it at their
 * pace. */
void http_drain(struct http *h, int64_t deadline);
void http_close(struct http *h);

#endif
