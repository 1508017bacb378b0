/* think.h -- tells the reasoning in <think>...</think>, with which an answer may begin, from the
 * answer behind it, as the text comes in. */
#ifndef PITH_CLI_THINK_H
#define PITH_CLI_THINK_H

#include <stddef.h>

struct think { /* the caller sets show and ctx, the rest is zero */
    int (*show)(void *ctx, int is_reasoning, const char *text, size_t n);
    void *ctx;
    enum { THINK_UNDECIDED, THINK_REASONING, THINK_ENDED, THINK_ANSWER } state;
    char *held; /* what may become a tag */
    size_t n_held;
};
/* 0: show() asked to stop, or there is no memory. */
int think_put(struct think *t, const char *text, size_t n);
int think_end(struct think *t); /* shows what is held, frees */

#endif
