/* fim.h -- filling in the middle: prompts of what stands before a gap and behind it, by the model's
 * own tokens. */
#ifndef PITH_SERVER_FIM_H
#define PITH_SERVER_FIM_H

#include "server/json.h"
#include "server/hosted.h"
#include "server/request/request.h"

struct fim {                               /* texts; NULL: none */
    const json_t *prefix, *suffix, *begun; /* begun: how what fills the gap begins */
    const json_t *extra;                   /* a list of {filename, text}: other files */
};
/* The prompt (malloc). NULL with *f: `field` names what a model without such tokens cannot do.
 * Texts are texts: none of them is a control token. */
int32_t *fim_ids(struct hosted *m, const struct fim *g, int64_t *n, const char *field,
                 struct fault *f);

#endif
