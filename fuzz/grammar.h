/* grammar.h -- what the fuzzers of grammars share. An input is a grammar up to a zero byte, and a
 * text behind it. Whatever opens must take the text to the same end at once and byte by byte, and
 * never take back that a text can go on. */
#ifndef PITH_FUZZ_GRAMMAR_H
#define PITH_FUZZ_GRAMMAR_H

#include "fuzz.h"
#include "base/str.h"
#include "text/grammar/grammar.h"

enum { GRAMMAR_MOST_BYTES = 1 << 14 };

static inline void grammar_use(pith_grammar_kind kind, struct slice text, struct slice input)
{
    struct pith_error err = {.code = PITH_OK};
    struct grammar_spec spec = {.kind = (int)kind, .text = text, .trigger_token = -1};
    struct pith_grammar *g = grammar_new(&spec, &err), *h;
    if (!g) {
        require(err.code != PITH_OK && err.msg[0]);
        return;
    }
    h = grammar_clone(g, &err);
    require(h != NULL);
    size_t n = input.n < 512 ? input.n : 512, taken = 0;
    while (taken < n && grammar_accept_text(h, (struct slice){input.p + taken, 1}, NULL) == PITH_OK)
        taken++;
    struct slice whole = {input.p, taken};
    require(grammar_accept_text(g, whole, NULL) == PITH_OK);
    require(grammar_may_end(g) == grammar_may_end(h));
    require(taken == n ||
            grammar_accept_text(g, (struct slice){input.p + taken, 1}, NULL) != PITH_OK);
    grammar_free(g);
    grammar_free(h);
}

/* The grammar of an input; *input: the text behind it. */
static inline struct slice grammar_cut(const uint8_t *data, size_t size, struct slice *input)
{
    const char *p = (const char *)data, *zero = memchr(p, 0, size);
    struct slice text = {p, zero ? (size_t)(zero - p) : size};
    *input = (struct slice){zero ? zero + 1 : "", zero ? size - 1 - text.n : 0};
    return text;
}

#endif
