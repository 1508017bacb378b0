/* functions.h -- OpenAI's older names of tools and calls: functions, function_call. */
#ifndef PITH_SERVER_FUNCTIONS_H
#define PITH_SERVER_FUNCTIONS_H

#include "server/request/fields.h"

/* functions become F_tools, function_call F_tool_choice; *older: the body has some, so its answer
 * has function_call, one at most. 0: *f. */
int functions_take(struct fields *b, int *older, struct fault *f);
/* The call of an earlier turn, of a message that has it as function_call, becomes one of
 * tool_calls; a message of its result is given its id. i: which message. 0: *f. */
int functions_message(json_t *m, size_t i, struct fault *f);

#endif
