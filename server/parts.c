/* parts.c -- see parts.h. */
#include "server/parts.h"

#include "server/serve.h"

const struct server_params *server_told(const struct server *s)
{
    return &s->p;
}

struct tenants *server_tenants(const struct server *s)
{
    return s->tenants;
}

struct work *server_work(const struct server *s)
{
    return s->work;
}

struct json_t *server_defaults(const struct server *s)
{
    return s->defaults;
}

int64_t server_began(const struct server *s)
{
    return s->created;
}

int server_is_draining(const struct server *s)
{
    return atomic_load(&s->draining);
}
