/* diffuse.h -- text of models that fill in masks (diffuse.c). */
#ifndef PITH_RUN_DIFFUSE_H
#define PITH_RUN_DIFFUSE_H

#include "run/session/session.h"

struct pith_sampler;

struct diffusion {
    struct pith_session *s;
    struct pith_sampler *sampler;
    const int32_t *prompt;
    int32_t seq, n_prompt, n_text; /* text: tokens to make */
    int32_t n_block, n_steps;      /* 0: as pith.h says */
    pith_surest surest;
    /* A block [n] is there for good; 0: no further ones are made. */
    int (*on_block)(void *ctx, const int32_t *ids, int32_t n);
    void *ctx;
};

/* 1: the model of this session fills in masks. */
int diffuses(const struct pith_session *s);
/* PITH_MISSING: its file names no mask token. Leaves the sequence empty. */
pith_status diffuse(const struct diffusion *d, struct pith_error *err);

#endif
