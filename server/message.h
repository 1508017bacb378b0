/* message.h -- the answer of a chat taken apart while it is made: content, reasoning, tool calls. What is new since the last look is a delta in
 * OpenAI's form, which other APIs translate. Used by one thread at a time. */
#ifndef PITH_SERVER_MESSAGE_H
#define PITH_SERVER_MESSAGE_H

#include "serve.h"

struct message;
/* For the conversation rendered as `prompt`; tools may be NULL. A model without a template has an answer that is all content. */
struct message *message_open(struct hosted *h, const json_t *tools, const char *prompt, size_t n, struct fault *f);
void message_free(struct message *m); /* NULL allowed */
void message_put(struct message *m, const char *text, size_t n); /* NULL: it has ended */
json_t *message_delta(struct message *m); /* {"content", "reasoning_content", "tool_calls"}, each where it has grown; the caller's */
json_t *message_whole(struct message *m); /* {"role", "content", ...} */
int message_n_calls(const struct message *m);

#endif
