/* lora.c -- the adapters of a request (request.h). */
#include "server/request/request.h"

#include <math.h>

#include "server/json.h"
#include "server/hosted.h"

enum { MOST = 4 }; /* of one sequence: pith_adapt */

int request_lora_scales(const struct hosted *m, const json_t *list, float *scale, struct fault *f)
{
    size_t i;
    json_t *o;
    for (int k = 0; k < SERVER_LORAS; k++)
        scale[k] = 0;
    json_array_foreach(list, i, o)
    {
        const json_t *id = json_object_get(o, "id"), *by = json_object_get(o, "scale");
        double v = by ? json_number_value(by) : 1;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= m->n_loras)
            return fault_set(f, 400, "invalid_value", "lora",
                             "lora: there is no adapter of this id, there are %d (--lora)",
                             m->n_loras);
        if ((by && !json_is_number(by)) || !(fabs(v) <= 1e6))
            return fault_set(f, 400, "invalid_value", "lora", "lora: scale is %s, wanted a number",
                             json_found(by));
        scale[json_integer_value(id)] = (float)v;
    }
    return 1;
}

int request_loras(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    float scale[SERVER_LORAS];
    for (int i = 0; i < m->n_loras; i++)
        scale[i] = atomic_load(&m->lora_scale[i]);
    if (b->v[F_lora] && !request_lora_scales(m, b->v[F_lora], scale, f))
        return 0;
    r->n_loras = 0;
    for (int i = 0; i < m->n_loras; i++) {
        if (scale[i] == 0)
            continue;
        if (r->n_loras == MOST)
            return fault_set(f, 400, "invalid_value", "lora",
                             "lora: more than %d adapters have a scale that is not 0", MOST);
        r->lora_id[r->n_loras] = i;
        r->lora[r->n_loras++] = (struct pith_adapter_use){
            .size = sizeof *r->lora, .adapter = m->lora[i].adapter, .scale = scale[i]};
    }
    return 1;
}
