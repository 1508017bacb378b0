/* lines.h -- the texts of a beam search, token by token, and the best of those that have ended. */
#ifndef PITH_SERVER_SCHEDULE_LINES_H
#define PITH_SERVER_SCHEDULE_LINES_H

#include "server/json.h"
#include "server/hosted.h"
#include "server/schedule/scheduler_impl.h"

struct kept { /* a token of a text, and what is to be told with it */
    int32_t id, n_top;
    float logprob;
    struct pith_logprob top[];
};

struct line { /* a text: tokens of stride() bytes each */
    char *v;
    int64_t n, cap;
    double sum;
};

struct beam { /* of a branch */
    struct line line;
    struct pith_logprob best[TOP_MAX]; /* [n_best] of its row, when it is parked */
    int n_best;
};

struct found { /* texts, the best first */
    struct line line[BEAMS_MAX];
    double score[BEAMS_MAX];
    int n;
    int is_told; /* the search is over: they are told from token `at` of the one of `choice` on */
    int choice;
    int64_t at;
};

struct way { /* a text that may be a beam */
    struct branch *from;
    int32_t id;
    float logprob;
    double sum;
};

/* Token i of a text. */
struct kept *line_at(const struct request *r, const struct line *l, int64_t i);
/* 0, of all: out of memory. What they take is in request.answer. */
int line_copy(struct request *r, struct line *to, const struct line *from);
/* A token behind a text, with what is told of the row that it is of. */
int line_put(struct request *r, struct line *l, const struct beam *row, const struct way *w);
/* How good a text of n tokens is. */
double line_score(const struct request *r, double sum, int64_t n);
/* A text has ended, by a token of its row; kept where it is among the best. */
int found_put(struct request *r, const struct beam *row, const struct way *w);

#endif
