/* settings.h -- how the tokens of a request are chosen, as llama.cpp tells it (generation_settings,
 * and default_generation_settings of /props). */
#ifndef PITH_SERVER_SETTINGS_H
#define PITH_SERVER_SETTINGS_H

#include "server/request/fields.h"
#include "server/request/request.h"

/* The numbers of samplers into j, by the names that requests have for them: of a request what it
 * said, else what p has; b NULL: those alone that a model's file may advise. 0: out of memory. */
int settings_put(json_t *j, const struct pith_sampler_params *p, const struct fields *b);
/* Of a request and the fields that it was made from. NULL: out of memory. */
json_t *settings_json(const struct request *r, const struct fields *b);

#endif
