/* pretok.h -- cutting text into the words that byte-pair merging may not cross. */
#ifndef PITH_TEXT_PRETOK_H
#define PITH_TEXT_PRETOK_H

#include "base/error.h"
#include "base/str.h"

enum pretok_flag {
    PRETOK_WHOLE_WORDS = 1, /* a word that is a token is that token, whatever its merges say */
    PRETOK_ADD_BOS = 2,     /* by default */
    PRETOK_NEWLINES = 4,    /* a word of newlines that is a token is that token */
    PRETOK_KEEP_SPACES = 8, /* detokenising does not tidy the spaces before punctuation */
    PRETOK_CHARS = 16,      /* symbols are characters, spaces U+2581; else bytes */
    PRETOK_PLAIN = 32,      /* symbols are characters, white space only parts words */
};

struct pretok; /* compiled; read-only, any number of threads */
/* By the name a file gives in tokenizer.ggml.pre. Unknown: PITH_UNSUPPORTED with all the known. */
struct pretok *pretok_new(struct slice name, struct pith_error *err);
void pretok_free(struct pretok *p);
int pretok_flags(const struct pretok *p); /* bits of enum pretok_flag */
void pretok_by_pattern(struct pretok *p); /* tests: plain words too are cut by their pattern */

/* Called for each word in order; together they are the text. A status other than PITH_OK stops. */
typedef pith_status (*pretok_word_fn)(void *ctx, struct slice word);
/* text must be valid UTF-8. */
pith_status pretok_split(const struct pretok *p, struct slice text, pretok_word_fn word, void *ctx,
                         struct pith_error *err);

/* The i-th known name, NULL past the last. */
const char *pretok_name(int i);

#endif
