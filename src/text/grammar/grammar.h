/* grammar.h -- constrained output: which tokens may come next so that the text can still become
 * what a grammar describes.
 *
 *     text ──gbnf.c / schema.c (regex.c)──> rules ──automaton.c──> tables ──stacks.c──> positions
 *         ──masks.c──> allowed tokens
 *
 * A grammar is compiled once (core) and shared by any number of handles, each with a position of
 * its own. Masks and stacks are made when first needed and kept in the core, under its lock:
 * handles may belong to different threads, each to one at a time.
 *
 * A token is allowed when some continuation makes the text complete; a token that ends the
 * generation when the text is complete. Texts of tokens are bytes: half of a character is as exact
 * as any other text. Tokens without text are allowed where the grammar names them. */
#ifndef PITH_TEXT_GRAMMAR_H
#define PITH_TEXT_GRAMMAR_H

#include "text/vocab/trie.h"

struct chat_format;
struct grammar_spec {
    int kind; /* pith_grammar_kind */
    struct slice text;
    const struct chat_format *format; /* of PITH_GRAMMAR_CALLS */
    const struct vocab *vocab;        /* NULL: bytes alone */
    const struct trie *trie;          /* of the vocabulary; both outlive the grammar */
    struct slice trigger;  /* the grammar holds for what comes behind this text, anything may come
                              before; empty: from the start */
    int32_t trigger_token; /* the same with a token, -1: none */
    int again;             /* behind the grammar's text: anything, until the next trigger */
    uint64_t cache_bytes;  /* for masks */
    struct slice or_prefix, or_schema; /* or_schema not empty: the text may be these instead */
    int calls_only;                    /* of PITH_GRAMMAR_CALLS: calls_spec.only */
    int unsearched;                    /* tests, of PITH_GRAMMAR_GBNF: nobody looks for what
                                          grows (stacks.h) */
    int schema_order;                  /* members of objects come in the order of their schema */
    void (*release)(void *owner);      /* called when the last handle goes; NULL: nothing is */
    void *owner;
};
struct grammar_core;
struct pith_grammar {
    struct grammar_core *core;
    struct pith_grammar *prev, *next; /* all handles of the core */
    uint32_t at;                      /* position; STACKS_NONE: the generation has ended */
    int32_t pending;                  /* a token behind it that has yet to be followed, -1: none */
};

struct pith_grammar *grammar_new(const struct grammar_spec *spec, struct pith_error *err);
/* Whether a schema can be kept: all that is said of it when it is read, for what reading takes. */
pith_status grammar_check_schema(struct slice text, struct pith_error *err);
struct pith_grammar *grammar_clone(const struct pith_grammar *g,
                                   struct pith_error *err); /* at the same position */
void grammar_free(struct pith_grammar *g);                  /* NULL allowed */
void grammar_reset(struct pith_grammar *g);
/* One token, or bytes, further. PITH_STATE when the grammar does not allow it; then nothing
 * changes. */
pith_status grammar_accept(struct pith_grammar *g, int32_t id, struct pith_error *err);
pith_status grammar_accept_text(struct pith_grammar *g, struct slice text, struct pith_error *err);
/* The same, but where it takes more than `most` steps, or another thread is at work in the core,
 * the token is followed with the next mask, or whatever else asks for the position. Then one that
 * is not allowed shows nowhere: the position stays. */
pith_status grammar_accept_within(struct pith_grammar *g, int32_t id, uint64_t most,
                                  struct pith_error *err);
int grammar_may_end(struct pith_grammar *g);  /* the text is complete */
int grammar_must_end(struct pith_grammar *g); /* and nothing can follow it */
/* Allowed tokens, bit id % 64 of word id / 64; valid until the next call with any handle of the
 * core, which no other thread may use. NULL with *err. */
const uint64_t *grammar_mask(struct pith_grammar *g, struct pith_error *err);
pith_status grammar_prepare(struct pith_grammar *g,
                            struct pith_error *err);  /* makes it, to be found later */
/* What its schemas say of values that it does not hold, a line each; as long as a handle lives. */
const char *grammar_unkept(const struct pith_grammar *g);
uint64_t grammar_bytes(const struct pith_grammar *g); /* of the core, as of its last use */
/* -infinity to every logit of [n] that is not allowed. */
pith_status grammar_apply(struct pith_grammar *g, float *logits, int32_t n, struct pith_error *err);
/* The same, unless it takes more than *most steps or another thread is at work in the core: then
 * *late is 1 and nothing has changed. What it took is subtracted from *most. */
pith_status grammar_apply_within(struct pith_grammar *g, float *logits, int32_t n, uint64_t *most,
                                 int *late, struct pith_error *err);

#endif
