/* jinja.h -- chat templates: the template language of Jinja 3.1 as chat templates use it, rendered
 * as transformers renders it (trim_blocks, lstrip_blocks, loop controls, no escaping, tojson with
 * ensure_ascii = False; a sandbox). What the request gives cannot be changed; lists that the
 * template makes can (append, extend, insert, pop, remove, clear, reverse), which transformers
 * refuses and published templates do all the same.
 *
 * A template is compiled once and read-only afterwards; any number of threads may render it. A
 * rendering keeps no state. */
#ifndef PITH_TEXT_JINJA_H
#define PITH_TEXT_JINJA_H

#include "text/spans.h"
#include "base/str.h"

/* Limits of one rendering; 0 in a field means the value named here. */
struct jinja_limits {
    uint64_t steps;  /* op calls and items touched: 20 million */
    uint64_t memory; /* bytes of values made: 64 MiB */
    uint64_t output; /* bytes of text: 64 MiB */
};

/* Bytes of a template: published ones have up to 40 thousand. What is compiled of one byte takes up
 * to a hundred. */
enum { JINJA_SOURCE_MOST = 1 << 20 };

struct jinja;
/* Compiles. PITH_RANGE: it is too long. PITH_FORMAT (syntax) or PITH_UNSUPPORTED (include, import,
 * extends, block) with line, column and the text there. */
struct jinja *jinja_new(const char *text, size_t n, struct pith_error *err);
void jinja_free(struct jinja *t);
/* A string variable for renderings whose JSON does not name it. Before the template is shared. */
pith_status jinja_define(struct jinja *t, const char *name, struct slice text,
                         struct pith_error *err);
struct slice jinja_source(const struct jinja *t);
/* What somebody has found out about a template, and keeps with it; any number of threads may. The
 * first note stays (0: there is another); drop, the same of all, ends it with the template. */
const void *jinja_note(const struct jinja *t); /* NULL: none yet */
int jinja_keep(const struct jinja *t, const void *note, void (*drop)(const void *));

/* Renders with the variables of a JSON object; messages, tools and documents are null and
 * add_generation_prompt is false when absent; functions is the JSON text of the tools' functions
 * and datetime the day, where the template has such names; "now" (ISO 8601) is what strftime_now
 * formats and no variable; without it, the clock. Appends to *out; a failure leaves *out as it was.
 * PITH_STATE: the template called raise_exception, and the message is the template's own.
 * PITH_FORMAT: an error of the template or of the JSON; PITH_RANGE: a limit was reached. */
pith_status jinja_render(const struct jinja *t, const char *json, size_t n,
                         const struct jinja_limits *limits, struct str *out,
                         struct pith_error *err);

/* The same; and which bytes of the text come from values of the JSON, appended to *values (also
 * on failure, NULL: not wanted). What the template writes, and bos_token and eos_token, is the
 * template's, and so is a message's role where it is one of the names that all templates know.
 * Whatever is made of a value (cut, joined, escaped, put into capitals) stays one, byte by byte.
 * PITH_FORMAT, with the line: a value is used as a format, which would make it a template. */
pith_status jinja_render_marked(const struct jinja *t, const char *json, size_t n,
                                const struct jinja_limits *limits, struct str *out,
                                struct spans *values, struct pith_error *err);

#endif
