/* message.h -- the answer of a chat taken apart while it is made: a list of parts in the order in
 * which the model said them, each text, reasoning or a tool call. APIs write what is new of it in
 * their own JSON. Used by one thread at a time. */
#ifndef PITH_SERVER_MESSAGE_H
#define PITH_SERVER_MESSAGE_H

#include "server/json.h"

enum part_kind { PART_TEXT, PART_REASONING, PART_CALL };
struct part {
    enum part_kind kind;
    int index;       /* of a call: which one */
    char *name, *id; /* of a call */
    char *text;      /* [n]; of a call: its arguments, a JSON object */
    int whole;       /* of a call: no more of it comes */
    size_t n, cap, told;
};

struct message;
/* For the conversation rendered as `prompt`; tools may be NULL. first: one that has read the same
 * tools and lives as long, NULL: none. family, partial and seed as pith_chat_params. Without a
 * template it has an answer that is all text, but where a family is named. */
struct message *message_open(const pith_template *t, const struct message *first,
                             const json_t *tools, const char *family, int partial, uint64_t seed,
                             const char *prompt, size_t n, struct fault *f);
/* 1: a prompt ends inside reasoning; what follows is more of it. -1: *f. */
int message_reasons(const pith_template *t, const char *family, const char *prompt, size_t n,
                    struct fault *f);
void message_one_call(struct message *m);   /* calls behind the first are left out */
void message_only_calls(struct message *m); /* what is no call is half of one, and not shown */
void message_free(struct message *m);       /* NULL allowed */
int message_put(struct message *m, const char *text,
                size_t n); /* NULL: it has ended. 0: out of memory, for good: it has a hole */
/* The next part that has grown since this was asked last, its number and what it has grown by.
 * NULL: none. */
const struct part *message_next(struct message *m, int *i, const char **fresh, size_t *n);
int message_n_parts(const struct message *m);
const struct part *message_part(const struct message *m, int i);
int message_is_reasoning(const struct message *m); /* what comes next is some */
int message_n_calls(const struct message *m);
int message_n_whole(const struct message *m); /* of those */
json_t *part_arguments(
    const struct part *p); /* of a call, as an object; what no object can hold as one text in it */
json_t *message_text(const struct message *m,
                     enum part_kind kind); /* all parts of a kind as one text */
int message_has(const struct message *m, enum part_kind kind);

#endif
