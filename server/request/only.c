/* only.c -- the fields of an answer that a request wants alone (F_response_fields). */
#include <string.h>

#include "server/http/exchange.h"
#include "server/json.h"
#include "server/request/answer.h"
#include "server/request/fields.h"

static int check_fields(const json_t *list, struct fault *f)
{
    enum { NAME_MAX_BYTES = 256 }; /* each choice looks for them */
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v))
            return fault_set(f, 400, "wrong_type", "response_fields",
                             "response_fields[%zu] is %s, wanted a text", i, json_found(v));
        if (json_string_length(v) > NAME_MAX_BYTES)
            return fault_set(f, 400, "out_of_range", "response_fields",
                             "response_fields[%zu] has %zu bytes, at most %d are taken", i,
                             json_string_length(v), NAME_MAX_BYTES);
    }
    return 1;
}

int answer_takes_only(struct answer *a, const struct fields *b, struct fault *f)
{
    json_t *list = json_lent(b->v[F_response_fields]);
    if (!check_fields(list, f))
        return 0;
    a->only = json_array_size(list) ? json_incref(list) : NULL;
    return 1;
}

/* The value under a name, or under names with slashes between them. */
static json_t *find(const json_t *j, const char *name)
{
    json_t *whole;
    for (const char *slash; !(whole = json_object_get(j, name)); name = slash + 1) {
        char first[128];
        slash = strchr(name, '/');
        if (!j || !slash || (size_t)(slash - name) >= sizeof first)
            break;
        memcpy(first, name, (size_t)(slash - name));
        first[slash - name] = 0;
        j = json_object_get(j, first);
    }
    return whole;
}

json_t *answer_only(const struct answer *a, json_t *j)
{
    size_t i;
    const json_t *name;
    if (!a->only)
        return j;
    json_t *some = json_object();
    json_array_foreach(a->only, i, name) if (find(j, json_string_value(name)))
        json_object_set(some, json_string_value(name), find(j, json_string_value(name)));
    json_decref(j);
    return some;
}
