/* chat_derive.h -- how a model writes calls of tools, found out from what its template makes of
 * calls in its history: for templates that belong to no row of chat_formats.def. */
#ifndef PITH_TEXT_CHAT_DERIVE_H
#define PITH_TEXT_CHAT_DERIVE_H

#include "base/str.h"

/* What stands in the renderings. Calls have both arguments. */
#define DERIVE_CONTENT "pithplaintext"
#define DERIVE_NAMES                                                                               \
    {                                                                                              \
        "pith_probe_one", "pith_probe_two"                                                         \
    }
#define DERIVE_IDS                                                                                 \
    {                                                                                              \
        "pithcall1", "pithcall2"                                                                   \
    }
#define DERIVE_KEYS                                                                                \
    {                                                                                              \
        "pithkeya", "pithkeyb"                                                                     \
    }
#define DERIVE_VALUES                                                                              \
    {                                                                                              \
        "pithvala", "pithvalb"                                                                     \
    }

/* One conversation of a user's message and an answer of the assistant. */
struct chat_samples {
    struct slice prompt;   /* the message and the begin of an answer */
    struct slice plain;    /* the answer is DERIVE_CONTENT */
    struct slice one, two; /* the answer is the first call; both of them */
};

struct chat_format;
/* *out: a family named "derived", for chat_derived_free; NULL: calls have no visible marker, or
 * none that can be told. What is derived reads both samples back. PITH_NOMEM. */
pith_status chat_derive(const struct chat_samples *s, const struct chat_format **out,
                        struct pith_error *err);
void chat_derived_free(const struct chat_format *f); /* NULL allowed */

#endif
