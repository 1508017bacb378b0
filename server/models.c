/* models.c -- which model a request is for. */
#include <string.h>

#include "serve.h"

struct hosted *models_default(struct server *s)
{
    return &s->hosted;
}

struct hosted *models_find(struct server *s, const char *name, struct fault *f)
{
    struct hosted *m = models_default(s);
    if (!name || !*name || !strcmp(name, m->name))
        return m;
    fault_set(f, 404, "model_not_found", "model", "there is no model \"%.100s\" here; this is \"%.100s\"", name, m->name);
    return NULL;
}

void models_handle(struct server *s, struct exchange *x)
{
    const struct route *r = exchange_route(x);
    struct fault why = {0};
    struct hosted *m = NULL;
    json_t *body = r->endpoint ? exchange_tree(x, &why) : NULL;
    if (body || !r->endpoint)
        m = models_find(s, body ? json_string_value(json_object_get(body, "model")) : exchange_query(x), &why);
    json_decref(body);
    exchange_give_model(x, m, &why);
    r->handle(s, x);
}
