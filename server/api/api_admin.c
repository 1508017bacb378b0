/* api_admin.c -- what changes the server: models loaded and unloaded by hand, and its end. Needs a
 * key given with --admin-key. */
#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/serve.h"

#include <stdatomic.h>

/* By then it is loaded. */
static json_t *loaded(struct hosted *m, struct fields *b, struct fault *f)
{
    (void)b;
    return models_json(m->server, m->name, models_card, f);
}

void api_load(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_LOAD, loaded);
}

static json_t *unload(struct hosted *none, struct fields *b, struct fault *f)
{
    struct server *s = exchange_server(b->x);
    const char *name = field_text(b, F_model);
    (void)none;
    return models_unload(s, name, field_bool(b, F_force), f)
               ? models_json(s, name, models_card, f)
               : NULL;
}

void api_unload(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_UNLOAD, unload);
}

/* Its program sees it, and goes on as with SIGTERM. The answer has ended by then, so it is sent. */
void api_drain(struct server *s, struct exchange *x)
{
    exchange_json(x, 200, json_pack("{s:s}", "status", "draining"));
    atomic_store(&s->draining, 1);
}
