/* gbnf.h -- grammars in GBNF, the notation of the field: `name ::= alternatives`, "literals",
 * [classes], (groups), * + ? {m,n}, . for any character, <token> and <[id]> for whole tokens,
 * !<token> for any other, # comments; the rule `root` is the text. */
#ifndef PITH_TEXT_GBNF_H
#define PITH_TEXT_GBNF_H

#include "text/grammar/rules.h"
#include "text/vocab/vocab.h"

enum { GBNF_DEPTH = 256 }; /* groups inside each other */
/* Writes the rules of the text; a failure stays in r and names the line. vocab: for <token>, NULL:
 * they are refused. */
void gbnf_read(struct rules *r, struct slice text, const struct vocab *vocab);

#endif
