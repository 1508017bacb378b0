/* calls.h -- the rules of an answer that may hold calls of tools: anything, but what begins a call
 * goes on as a call of a known tool whose arguments satisfy their schema.
 *
 *     begin ──{"name": "known"──> the rest of a call ──> begin           (where the family's rows
 *         have a bare %c)
 *     begin, free ──trigger──> call ──> tagged: another call, or free
 *     begin, free ──```json──> begin       (where they have one in a fence)
 *     begin, free ──<think>──> think ──</think>──> begin
 *     begin ──anything else──> free
 *
 * Families whose calls are not one JSON text have their own form (native.h):
 *
 *     free ──begin of a pattern──> the rest of it ──> free
 *
 * `only`: the calls alone, behind what opens them; of such families. */
#ifndef PITH_TEXT_CALLS_H
#define PITH_TEXT_CALLS_H

#include "text/chat/chat_parse.h"
#include "text/grammar/rules.h"
#include "text/vocab/vocab.h"

struct calls_spec {
    const struct chat_format *format;
    struct slice tools;        /* a JSON array */
    struct slice trigger;      /* what opens calls; empty: nothing does */
    int32_t token;             /* the same as a token without text, -1: none */
    const struct vocab *vocab; /* NULL: bytes alone */
    int in_order;              /* as schema_read has it */
    int only;
};
/* What calls begin with, of a family whose calls are not one JSON text; NULL: they are. */
const char *calls_opening(const struct chat_format *f, size_t *n);
/* Writes the rules; returns the one of the whole answer. A failure stays in r. */
uint32_t calls_read(struct rules *r, const struct calls_spec *spec);

#endif
