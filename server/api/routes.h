/* routes.h -- the endpoints. */
#ifndef PITH_SERVER_API_ROUTES_H
#define PITH_SERVER_API_ROUTES_H

struct exchange;
struct server;

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
char *openapi_make(struct server *s);   /* the description of all endpoints, as JSON (openapi.c);
                                           NULL: out of memory */
char *docs_make(void);                  /* likewise, for people */

#endif
