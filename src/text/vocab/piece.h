/* piece.h -- a piece of text that merging makes into ids: scratch memory, a cache of short
 * pieces. */
#ifndef PITH_TEXT_PIECE_H
#define PITH_TEXT_PIECE_H

#include "text/vocab/merge.h"
#include "text/vocab/vocab_impl.h"

struct known_piece;
/* What one tokenize call needs, kept from one stretch of text to the next. Zero-initialised. */
struct scratch {
    struct merge merge;
    struct str text, escaped;
    struct known_piece *known; /* [1 << known_bits], NULL: text too short to be worth it */
    int known_bits;
    int32_t after;  /* the special token that the text follows, -1: none */
    int no_markers; /* what is no special token has none that is a marker either: it is spelled */
};
void scratch_init(struct scratch *s, size_t n_bytes); /* of the whole text */
void scratch_deinit(struct scratch *s);

/* Puts the ids of a piece met before; 0: it is not known. */
int piece_known(const struct scratch *s, struct slice piece, struct ids *out);
/* Merges the symbols gathered in s->merge, which cover part of text without a gap, puts the ids,
 * learns the piece and empties the list. 0 on failed allocation. */
int piece_finish(const struct vocab *v, struct scratch *s, const char *text, merge_rank_fn rank,
                 const void *ctx, struct ids *out);

#endif
