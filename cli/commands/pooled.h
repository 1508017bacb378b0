/* pooled.h -- texts through a model that gives one row for each: what pith embed and pith rerank
 * share. Inputs come one after the other and go together, as many as fit into a step. */
#ifndef PITH_CLI_POOLED_H
#define PITH_CLI_POOLED_H

#include "cli/cli.h"

struct pooled {
    const struct model_opts *opts;
    pith_model *model;
    pith_session *session;
    struct pith_model_info info;
    int32_t n_most; /* tokens of a text, and of a step */
    int64_t n_texts, n_done;
    int32_t *tokens, *seq; /* [n_most] of the step to come, */
    int32_t n, n_seq;      /* so far */
    /* Given the row of each text in their order; returns an exit code. */
    int (*on_row)(void *ctx, int64_t i, const float *row);
    void *ctx;
};

/* All return an exit code, the message is out. open: on_row, ctx and opts are set. */
int pooled_open_model(struct pooled *p);
int pooled_open(struct pooled *p, pith_pooling pooling);
int pooled_add(struct pooled *p, const int32_t *ids, int64_t n_ids);
int pooled_flush(struct pooled *p);
/* After the last text, or the one that cannot be taken (code): those before it have their rows. */
int pooled_end(struct pooled *p, int code);
void pooled_close(struct pooled *p);

/* Each line of stdin, as it is or, jsonl, as JSON: a text, or an object with "text". An empty line
 * is an empty text, for who counts lines counts vectors; in JSON it is none. Where stdin is a
 * terminal each is answered at once, and an empty one is none. */
int pooled_lines(struct pooled *p, int jsonl, int (*add)(void *ctx, const char *text, size_t n));
#endif
