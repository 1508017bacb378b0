/* grammars.h -- compiled grammars of a model, kept for the next request that brings the same text,
 * and what was said of texts that were refused. */
#ifndef PITH_SERVER_GRAMMARS_H
#define PITH_SERVER_GRAMMARS_H

#include "server/hosted.h"

struct grammars;
struct tenant;
struct grammars *
grammars_open(uint64_t most_bytes);      /* NULL: no memory. most_bytes 0: none is kept */
void grammars_close(struct grammars *k); /* NULL allowed; positions that were given out stay */
/* A position at the beginning of the grammar, compiled now or before, with its first mask made; p:
 * how it is opened. A key finds only what the same key (who) has brought, so nobody learns from the
 * time what others bring; with --share-prefixes all find all. The caller's to close.
 * NULL: *err. From any thread. */
pith_grammar *grammars_get(struct hosted *m, const struct tenant *who, pith_grammar_kind kind,
                           const char *text, size_t n_bytes, const struct pith_grammar_params *p,
                           struct pith_error *err);

#endif
