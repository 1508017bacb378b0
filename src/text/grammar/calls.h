/* calls.h -- the rules of an answer that may hold calls of tools: anything, but what begins a call
 * goes on as a call of a known tool whose arguments satisfy their schema.
 *
 *     begin ──{"name": "known"──> the rest of a call ──> begin           (where the family's rows
 *         have a bare %c)
 *     begin, free ──trigger──> call ──> tagged: another call, or free
 *     begin, free ──```json──> begin       (where they have one in a fence)
 *     begin, free ──<think>──> think ──</think>──> begin
 *     begin ──anything else──> free */
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
};
/* Writes the rules; returns the one of the whole answer. A failure stays in r. */
uint32_t calls_read(struct rules *r, const struct calls_spec *spec);

#endif
