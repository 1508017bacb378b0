/* tools.h -- tool_choice: which tools the model may call, and whether it has to. */
#ifndef PITH_SERVER_TOOLS_H
#define PITH_SERVER_TOOLS_H

#include "answer.h"

/* By F_tools, F_tool_choice and F_parallel_tool_calls. A call that has to come is made to come: the answer begins with what opens calls in the
 * model's family, and a grammar of the tools' parameters holds for what follows. */
int tools_take(struct answer *a, const struct fields *b, struct request *r, struct fault *f);

#endif
