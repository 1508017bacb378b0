/* routes.c -- the endpoints (routes.def), and the shapes of errors. */
#include "server/api/api.h"
#include "server/api/routes.h"
#include "server/request/fields.h"

enum {
    DIRECT = ROUTE_DIRECT,
    OPEN = ROUTE_DIRECT | ROUTE_OPEN,
    MODEL = ROUTE_MODEL,
    OLLAMA = ROUTE_MODEL | ROUTE_OLLAMA,
    WAITS = ROUTE_MODEL | ROUTE_WAITS,
    PEER = ROUTE_MODEL | ROUTE_PEER
};

const struct route routes[] = {
#define ROUTE(...) {__VA_ARGS__},
#include "server/api/routes.def"
#undef ROUTE
    {0},
};

const struct shape fault_shapes[] = {
    {ROUTE_OLLAMA, "/api/", fault_ollama},
    {ROUTE_ANTHROPIC, "/v1/messages", fault_anthropic},
    {ROUTE_PEER, NULL, fault_peer},
    {0},
};
