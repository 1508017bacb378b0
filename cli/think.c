/* think.c -- see think.h. Text is held as long as it may be the beginning of a tag; tags are ASCII,
 * so no character is torn. White space around the reasoning is the template's business and dropped. */
#include "think.h"

#include <stdlib.h>
#include <string.h>

static const char opening[] = "<think>", closing[] = "</think>";
enum { N_OPENING = sizeof opening - 1, N_CLOSING = sizeof closing - 1 };

static size_t n_space(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && (p[i] == ' ' || p[i] == '\n' || p[i] == '\t' || p[i] == '\r'))
        i++;
    return i;
}

/* Bytes at the end of p that may be the beginning of the closing tag. */
static size_t n_begun(const char *p, size_t n)
{
    size_t k = n < N_CLOSING ? n : N_CLOSING - 1;
    while (k > 0 && memcmp(p + n - k, closing, k) != 0)
        k--;
    return k;
}

/* Uses what it can of p[0..n), returns how much; *more is 0 when it can do no more now. */
static size_t advance(struct think *t, const char *p, size_t n, int *more, int *go_on)
{
    size_t blank = n_space(p, n), left = n - blank;
    const char *tag;
    switch (t->state) {
    case THINK_UNDECIDED:
        *more = left > 0 && (left >= N_OPENING || memcmp(p + blank, opening, left) != 0);
        if (*more && left >= N_OPENING && !memcmp(p + blank, opening, N_OPENING)) {
            t->state = THINK_REASONING;
            return blank + N_OPENING;
        }
        if (*more)
            t->state = THINK_ANSWER;
        return 0;
    case THINK_REASONING:
        tag = memmem(p, n, closing, N_CLOSING);
        if (tag)
            t->state = THINK_ENDED;
        else
            *more = 0;
        left = tag ? (size_t)(tag - p) : n - n_begun(p, n);
        *go_on = left == 0 || t->show(t->ctx, 1, p, left);
        return left + (tag ? N_CLOSING : 0);
    case THINK_ENDED:
        *more = left > 0;
        if (left > 0)
            t->state = THINK_ANSWER;
        return blank;
    case THINK_ANSWER:
        break;
    }
    *more = 0;
    *go_on = n == 0 || t->show(t->ctx, 0, p, n);
    return n;
}

int think_put(struct think *t, const char *text, size_t n)
{
    int more = 1, go_on = 1;
    size_t done = 0;
    char *all = realloc(t->held, t->n_held + n + 1);
    if (!all)
        return 0;
    memcpy(all + t->n_held, text, n);
    n += t->n_held;
    while (more && go_on)
        done += advance(t, all + done, n - done, &more, &go_on);
    memmove(all, all + done, n - done);
    t->held = all;
    t->n_held = n - done;
    return go_on;
}

int think_end(struct think *t)
{
    int go_on = t->n_held == 0 || t->show(t->ctx, t->state == THINK_REASONING, t->held, t->n_held);
    free(t->held);
    t->held = NULL;
    t->n_held = 0;
    return go_on;
}
