/* api_lora.c -- GET and POST /lora-adapters, as llama.cpp has them: the adapters that the server
 * was started with, and how much of each requests have that do not say. */
#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/request.h"

static json_t *all(const struct hosted *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->n_loras; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:f}", "id", i, "path", m->lora[i].path,
                                              "scale", (double)atomic_load(&m->lora_scale[i])));
    return list;
}

static json_t *tell(struct exchange *x, struct hosted *m, struct fault *f)
{
    (void)x;
    (void)f;
    return all(m);
}

void api_lora(struct server *s, struct exchange *x)
{
    api_tell(s, x, tell);
}

/* All are as the list says, or nothing has changed. */
static int set(struct hosted *m, const json_t *list, struct fault *f)
{
    float scale[SERVER_LORAS];
    int n = 0;
    if (!json_is_array(list))
        return fault_set(f, 400, "wrong_type", NULL, "the body is %s, wanted a list, or {lora: []}",
                         json_found(list));
    if (!request_lora_scales(m, list, scale, f))
        return 0;
    for (int i = 0; i < m->n_loras; i++)
        n += scale[i] != 0;
    if (n > 4)
        return fault_set(f, 400, "invalid_value", "lora",
                         "lora: more than 4 adapters have a scale that is not 0");
    for (int i = 0; i < m->n_loras; i++)
        atomic_store(&m->lora_scale[i], scale[i]);
    return 1;
}

void api_lora_set(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    json_t *body = exchange_tree(x, &f);
    struct hosted *m = body ? exchange_model(x, &f) : NULL;
    (void)s;
    if (m && set(m, json_is_object(body) ? json_object_get(body, "lora") : body, &f))
        exchange_json(x, 200, all(m));
    else
        exchange_fault(x, &f);
    json_decref(body);
    exchange_drop(x);
}
