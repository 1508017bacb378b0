/* api_rerank.c -- /rerank and /v1/rerank in the shapes of Jina, Cohere and TEI: what they ask is
 * checked, and refused: the scheduler has no scores yet. `pith rerank` has them. */
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/request/fields.h"

/* Each a text, or an object with one. */
static int check_texts(const json_t *list, const char *name, struct fault *f)
{
    size_t i;
    const json_t *v;
    if (!json_array_size(list))
        return fault_set(f, 400, "out_of_range", name, "%s is empty, wanted at least one text",
                         name);
    json_array_foreach(list, i,
                       v) if (!json_is_string(v) &&
                              !json_is_string(json_object_get(
                                  v, "text"))) return fault_set(f, 400, "wrong_type", name,
                                                                "%s[%zu] is %s, wanted a text",
                                                                name, i, json_found(v));
    return 1;
}

static int check(const struct fields *b, struct fault *f)
{
    if (!b->v[F_query])
        return fault_set(f, 400, "missing_field", "query", "query is missing");
    if (!b->v[F_documents] == !b->v[F_texts])
        return fault_set(f, 400, "missing_field", "documents",
                         b->v[F_texts] ? "documents and texts; wanted one of them"
                                       : "documents is missing");
    return check_texts(b->v[F_documents] ? b->v[F_documents] : b->v[F_texts],
                       b->v[F_documents] ? "documents" : "texts", f);
}

void api_rerank(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct fields b;
    (void)s;
    if (fields_read(&b, E_RERANK, x, &f)) {
        if (check(&b, &f))
            fault_set(&f, 501, "not_supported", "model",
                      "this server does not rank texts; the command pith rerank does, with models "
                      "that have a head for scores");
        fields_free(&b);
    }
    exchange_fault(x, &f);
    exchange_drop(x);
}
