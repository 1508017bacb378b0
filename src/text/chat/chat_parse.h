/* chat_parse.h -- reading a model's answer: content, reasoning and tool calls out of text that
 * comes in pieces of any cut.
 *
 *     piece ──> held text ──marker?──> content | reasoning          (chat_parse.c: modes, what is
 *         held back)
 *                            └─pattern of the family──> call         (chat_match.c: one pattern
 *                                against text that is still growing)
 *                                                        └─ arguments as JSON (chat_value.c;
 *                                                           while they come: chat_literal.c)
 *
 * A family is a row of chat_formats.def. What may yet become a marker is held back; white space
 * beside a marker belongs to it. A call that does not keep to its pattern is content, from its
 * first byte to the one that does not fit; what was a whole call before that stays one. With
 * `partial` a call begins where its name is known and its arguments open, or the first of them has
 * its key. What is told then never changes, so one that breaks after that ends as it stands.
 * Strings come as they are written, in whatever form; of a value whose kind its end decides nothing
 * comes before that; arguments before the name come whole, with it. Every byte is looked at a
 * bounded number of times. */
#ifndef PITH_TEXT_CHAT_PARSE_H
#define PITH_TEXT_CHAT_PARSE_H

#include "base/str.h"

struct chat_format;
const struct chat_format *
chat_format_of(struct slice template_text); /* never NULL: "generic" is the last row */
const struct chat_format *chat_format_named(const char *name); /* NULL: no such row */
const char *chat_format_think(const struct chat_format *f);    /* what opens it, likewise */
const char *chat_format_answer(
    const struct chat_format *f); /* what closes reasoning, NULL: the family has none */
const char *chat_format_name(const struct chat_format *f);
/* Appends what ends reasoning that has got too long; as pith_chat_enough. */
void chat_format_enough(const struct chat_format *f, int begun, int bare, struct str *out);
/* The JSON Schema of what follows *trigger when one of the tools is called. PITH_UNSUPPORTED: the
 * family's calls are not JSON. */
pith_status chat_format_grammar(const struct chat_format *f, struct slice tools, struct str *schema,
                                const char **trigger, struct pith_error *err);

struct chat_parse_spec {
    const struct chat_format *format;
    struct slice tools; /* a JSON array; empty: not known, calls are read all the same; "[]": none,
                           they are not */
    struct slice
        prompt; /* what the model was given, or its end: it may have opened the reasoning */
    void (*on_event)(void *ctx, const struct pith_chat_event *e); /* NULL allowed */
    void *ctx;
    const struct pith_chat_parser *tools_of; /* not read, but taken from this one; NULL allowed */
    int partial;                             /* calls are told while they come */
    uint64_t seed;                           /* of the ids that are made for calls */
};
struct pith_chat_parser *chat_parse_new(const struct chat_parse_spec *spec, struct pith_error *err);
void chat_parse_free(struct pith_chat_parser *p);
pith_status chat_parse_feed(struct pith_chat_parser *p, struct slice text, struct pith_error *err);
pith_status chat_parse_finish(struct pith_chat_parser *p,
                              struct pith_error *err); /* no more text comes; again: nothing */
struct slice chat_parse_said(const struct pith_chat_parser *p,
                             pith_chat_kind kind); /* all content or reasoning so far */
int chat_parse_reasons(const struct pith_chat_parser *p); /* what comes next is reasoning */
int32_t chat_parse_n_calls(const struct pith_chat_parser *p);
const struct pith_chat_event *chat_parse_call(const struct pith_chat_parser *p,
                                              int32_t i); /* NULL outside 0..n-1 */

#endif
