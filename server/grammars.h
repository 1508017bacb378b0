/* grammars.h -- compiled grammars of a model, kept for the next request that brings the same text. */
#ifndef PITH_SERVER_GRAMMARS_H
#define PITH_SERVER_GRAMMARS_H

#include "serve.h"

struct grammars;
struct grammars *grammars_open(uint64_t most_bytes); /* NULL: no memory. most_bytes 0: none is kept */
void grammars_close(struct grammars *k);             /* NULL allowed; positions that were given out stay */
/* A position at the beginning of the grammar, compiled now or before, with its first mask made; mask_bytes: most memory for masks. The caller's to close. NULL: *err. From any thread. */
pith_grammar *grammars_get(struct hosted *m, pith_grammar_kind kind, const char *text, size_t n_bytes, uint64_t mask_bytes, struct pith_error *err);

#endif
