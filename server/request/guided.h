/* guided.h -- what a text has to keep, by the names that vLLM and SGLang have: guided_json,
 * structured_outputs, regex, bad_words ... become the fields that request_format reads. */
#ifndef PITH_SERVER_GUIDED_H
#define PITH_SERVER_GUIDED_H

#include "server/request/fields.h"

/* One of them at most is taken, and response_format and grammar count. 0: *f. */
int guided_take(struct fields *b, struct fault *f);
/* The name of the field that says what the text has to keep; "grammar" where none does. */
const char *guided_source(const struct fields *b);

#endif
