/* parts.h -- what rooms ask of the server that they are in. Its struct (serve.h) is for those who
 * change it. */
#ifndef PITH_SERVER_PARTS_H
#define PITH_SERVER_PARTS_H

#include <stdint.h>

#include "server/server.h"

struct json_t;
struct tenants; /* http/auth.h */
struct work;    /* http/work.h */

const struct server_params *server_told(const struct server *s); /* when it was opened */
struct tenants *server_tenants(const struct server *s);
struct work *server_work(const struct server *s);
struct json_t *server_defaults(const struct server *s); /* of fields, by the operator */
int64_t server_began(const struct server *s);           /* seconds since 1970 */

#endif
