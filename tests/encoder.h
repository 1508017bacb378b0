/* encoder.h -- of models whose encoder reads before the decoder writes: a text for a sequence, so
 * that tests which know nothing of it can go on. Of models without an encoder nothing happens. */
#ifndef PITH_TESTS_ENCODER_H
#define PITH_TESTS_ENCODER_H

#include "pith.h"

enum { ENCODER_TEXT = 7 }; /* few enough for small steps */

static pith_status encoder_reads(pith_session *s, int32_t seq, struct pith_error *err)
{
    int32_t ids[ENCODER_TEXT];
    for (int32_t i = 0; i < ENCODER_TEXT; i++)
        ids[i] = 3 + i * 5 % 17;
    if (!pith_encoder_most(s) || pith_encoded(s, seq) || pith_length(s, seq))
        return PITH_OK;
    return pith_encode(s, seq, ids, ENCODER_TEXT, err);
}

#endif
