/* chat.h -- the chat templates of a model file: tokenizer.chat_template and
 * tokenizer.chat_template.NAME, compiled at open. One that cannot be compiled keeps its error for
 * who asks; the model opens all the same. */
#ifndef PITH_RUN_CHAT_H
#define PITH_RUN_CHAT_H

#include "base/arena.h"
#include "format/gguf.h"
#include "text/jinja/jinja.h"
#include "text/vocab/vocab.h"

struct chat_template {
    struct slice name; /* "" for the one without a name */
    struct jinja *t;   /* NULL: see code and msg */
    pith_status code;
    const char *msg;
};
struct chat_templates {
    struct chat_template *v;
    int n;
};
/* Fails without memory only; adds a sentence to the notes for each that cannot be compiled. */
pith_status chat_templates_open(struct chat_templates *c, const struct gguf *g,
                                const struct vocab *v, struct arena *arena, struct str *note,
                                struct pith_error *err);
void chat_templates_close(struct chat_templates *c);
/* name NULL: the one without a name. */
const struct jinja *chat_templates_find(const struct chat_templates *c, const char *name,
                                        struct pith_error *err);

#endif
