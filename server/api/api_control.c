/* api_control.c -- POST /v1/chat/completions/control, as llama.cpp has it: what an answer reasons
 * ends while it runs. Whoever asked for the answer may ask for that, by its id. */
#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/hosted.h"
#include "server/json.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/request.h"

#include <string.h>

struct control {
    struct sched *s;
    const char *id;
    const struct tenant *who;
    int n; /* choices that are made to answer; -1, -2: as answer_end_reasoning */
};

static void end_one(struct request *r, void *ctx)
{
    struct control *c = ctx;
    int n = answer_end_reasoning(r, c->id, c->who);
    if (n != -1)
        c->n = n < 0 ? n : (c->n > 0 ? c->n : 0) + n;
}

static void end(void *ctx)
{
    struct control *c = ctx;
    sched_each(c->s, end_one, c);
}

static json_t *control(struct hosted *m, struct fields *b, struct fault *f)
{
    const char *action = field_text(b, F_control_action), *id = field_text(b, F_control_id);
    if (!id || !action) {
        fault_set(f, 400, "missing_field", id ? "action" : "id", "%s is missing",
                  id ? "action" : "id");
        return NULL;
    }
    if (strcmp(action, "reasoning_end") != 0) {
        fault_set(f, 400, "invalid_value", "action", "action is \"%s\", wanted reasoning_end",
                  action);
        return NULL;
    }
    struct control c = {.s = m->sched, .id = id, .who = exchange_tenant(b->x), .n = -1};
    if (!sched_call(m->sched, end, &c)) {
        fault_set(f, 503, "model_unloaded", NULL, "the model is being unloaded");
        return NULL;
    }
    if (c.n > 0)
        return json_pack("{s:b}", "success", 1);
    return json_pack("{s:b, s:s}", "success", 0, "message",
                     c.n == -1   ? "no answer with this id is being made"
                     : c.n == -2 ? "it was not asked for with reasoning_control, or its reasoning "
                                   "cannot be ended"
                                 : "it does not reason now");
}

void api_control(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_CONTROL, control);
}
