/* settings.h -- how the tokens of a request are chosen, as llama.cpp tells it (generation_settings,
 * and default_generation_settings of /props). */
#ifndef PITH_SERVER_SETTINGS_H
#define PITH_SERVER_SETTINGS_H

#include "server/request/request.h"

/* Of a request and the fields that it was made from. NULL: out of memory. */
json_t *settings_json(const struct request *r, const struct fields *b);

#endif
