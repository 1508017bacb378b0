/* routes.h -- the endpoints. */
#ifndef PITH_SERVER_API_ROUTES_H
#define PITH_SERVER_API_ROUTES_H

#include "server/http/route.h"

extern const struct route routes[]; /* closed by an empty row */
extern const struct shape fault_shapes[]; /* likewise */
/* openapi.c: the description of all endpoints as JSON; NULL: out of memory. */
char *openapi_make(struct server *s);
char *docs_make(void); /* likewise, for people */

#endif
