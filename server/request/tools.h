/* tools.h -- the tools of a body, and tool_choice: which of them the model may call, and whether it
 * has to. */
#ifndef PITH_SERVER_TOOLS_H
#define PITH_SERVER_TOOLS_H

#include "server/json.h"
#include "server/request/answer.h"
#include "server/request/fields.h"

/* By F_tools, F_tool_choice and F_parallel_tool_calls. A call that has to come is made to come: the
 * answer begins with what opens calls in the model's family, and a grammar of the tools' parameters
 * holds for what follows. */
int tools_take(struct answer *a, const struct fields *b, struct request *r, struct fault *f);
/* Leaves out of F_tools what is no function, with a note. */
int tools_functions(struct fields *b, struct fault *f);
/* F_tools given as {type, name, description, SCHEMA} become {type, function: {name, description,
 * parameters}}. type: the one that is taken, as that of tools which the client runs; others are
 * left out, with a note. may_lack: it need not be said. */
int tools_nest(struct fields *b, const char *schema, const char *type, int may_lack,
               struct fault *f);
/* tool_choice of type allowed_tools: of the tools only these are there, and mode is the choice. 0:
 * *f. */
int tools_allow(struct fields *b, struct fault *f);

#endif
