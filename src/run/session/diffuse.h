/* diffuse.h -- text of models that fill in masks (diffuse.c). */
#ifndef PITH_RUN_DIFFUSE_H
#define PITH_RUN_DIFFUSE_H

#include "run/session/session.h"

/* 1: the model of this session fills in masks. */
int diffuses(const struct pith_session *s);
/* A text to be filled in; PITH_MISSING: the model's file names no mask token. What pith.h says of
 * pith_fill_*, arguments checked. */
struct pith_fill *fill_new(struct pith_session *s, const struct pith_fill_params *p,
                           struct pith_error *err);
pith_status fill_step(struct pith_fill *f, const int32_t **ids, int32_t *n, struct pith_error *err);
int32_t fill_left(const struct pith_fill *f);
uint64_t fill_bytes(const struct pith_fill *f);
void fill_free(struct pith_fill *f);

#endif
