/* request.h -- from what a body says to what the scheduler runs: what every API needs. All of it
 * may take time, and fails with a fault. */
#ifndef PITH_SERVER_REQUEST_H
#define PITH_SERVER_REQUEST_H

#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fields.h"
#include "server/schedule/scheduler.h"

/* Room for so many tokens (malloc), in the account before it is there; NULL with *f. fit: n of
 * `cap` are needed. */
int32_t *request_room(size_t n, struct fault *f);
int32_t *request_fit(int32_t *ids, size_t cap, size_t n);
/* Text to tokens (malloc), NULL with *f. flags as pith_tokenize; `field` is named in errors. */
int32_t *request_tokenize(struct hosted *m, const char *text, size_t n, int flags, int64_t *n_ids,
                          const char *field, struct fault *f);
/* Tokens from a JSON list (malloc), each within the vocabulary. */
int32_t *request_ids(struct hosted *m, const json_t *list, int64_t *n_ids, const char *field,
                     struct fault *f);
/* The context contract: all n tokens fit, or context_length_exceeded with n_prompt, n_ctx, n_over.
 */
int request_fits(int64_t n, int64_t n_ctx, const char *field, struct fault *f);
/* The conversation of a body as a prompt by the model's template, with its tools: refused where no
 * turn of the template shows them. What the body gives are values in it. *flags is how it is to be
 * tokenized. */
pith_prompt *request_prompt(struct hosted *m, const struct fields *b, int *flags, struct fault *f);
int32_t *request_prompt_ids(struct hosted *m, const pith_prompt *p, int flags, int64_t *n_ids,
                            struct fault *f); /* malloc */
/* The text of a content part, NULL: it has none. */
json_t *request_part_text(const json_t *part);
/* Those of a list as one (*flat; NULL: out of memory). What is no text stops it: its index is
 * returned, else -1. of_tool: what a tool has returned stays in the conversation for good, so a
 * text says what is left out. */
int request_texts(const json_t *parts, int of_tool, json_t **flat, struct exchange *x);
/* What a part that is no text is refused with: *f; returns 0. where: it, as messages[0].content[0].
 */
int request_no_text(const char *where, const json_t *part, const char *field, struct fault *f);
/* Messages of the system where a template has a place for them (system.c). */
int request_fit_system(const pith_template *t, json_t **messages, struct exchange *x,
                       struct fault *f);
/* Of the conversation of a body: some models have one of their own for those with tools. NULL:
 * none. */
const pith_template *request_template(const struct hosted *m, const struct fields *b);
/* The role that templates know by the one given; others would be left out of the prompt. NULL:
 * there is none such. */
const char *request_role(const char *given);
/* What ends an answer of a model without a template: the plain form's text before the next turn. */
extern const char request_plain_end[];
/* Tried once, for hosted.shows_tools: the template of a model that is being loaded knows what to do
 * with tools. */
int request_shows_tools(struct hosted *m);
/* How many tokens it has, with the text that its answer begins with (NULL: nothing). -1 with *f. */
int64_t request_count(struct hosted *m, const struct fields *b, const json_t *lead,
                      struct fault *f);
/* Reads the body by the rows of an endpoint, lets `answer` make the JSON of x (json_true(): it has
 * answered itself), drops x. m is NULL where the endpoint needs none. */
void request_answer(struct exchange *x, unsigned endpoint,
                    json_t *(*answer)(struct hosted *m, struct fields *b, struct fault *f));
/* How tokens are chosen where a request does not say: the interface of x decides what the model's
 * file does not. */
const struct pith_sampler_params *request_usual(const struct hosted *m, const struct exchange *x);
/* What a request's text has to keep; text NULL for JSON. */
int request_grammar(struct hosted *m, pith_grammar_kind kind, const char *text,
                    const struct pith_grammar_params *more, struct request *r, const char *field,
                    struct fault *f);
int request_open_grammar(
    struct hosted *m, pith_grammar_kind kind, const char *text,
    const struct pith_grammar_params *more, struct request *r,
    struct pith_error *err); /* the same where a grammar that cannot be is no fault */
/* Everything but the prompt, by the fields that all which make text share. */
int request_take(struct hosted *m, struct exchange *x, const struct fields *b, struct request *r,
                 struct fault *f);
/* Of a model that fills in masks, and of a beam search: nothing was asked for that it cannot do. */
int request_can(const struct hosted *m, const struct fields *b, const struct request *r,
                struct fault *f);
int request_ends_by(struct request *r, const char *text, struct fault *f); /* one stop text more */
int request_choices(const struct fields *b); /* of each prompt */
/* The grammar of a body, with more of it (NULL: nothing). Where tools may be called beside a format
 * it waits for tools_take, which knows how. */
int request_format(struct hosted *m, const struct fields *b, const struct pith_grammar_params *more,
                   struct request *r, struct fault *f);
/* A format that has its schema beside its type, as newer interfaces do, as response_format. where:
 * its place in the body. */
int request_flat_format(struct fields *b, const json_t *format, const char *where,
                        struct fault *f);
int request_format_waits(const struct fields *b);
/* The tokens that end the text, or may not end it yet: stop_token_ids, min_tokens. */
int request_ends(struct hosted *m, const struct fields *b, struct request *r, struct fault *f);
/* Of the body, else a new one. */
uint64_t request_seed(const struct fields *b);
/* How tokens are chosen, by the fields of a body. */
int request_sampler(struct hosted *m, const struct fields *b, struct request *r, struct fault *f);
/* lora.c: its adapters, by the field or as they are set now. */
int request_loras(struct hosted *m, const struct fields *b, struct request *r, struct fault *f);
/* [scale of each adapter] as a list says; 0: *f. */
int request_lora_scales(const struct hosted *m, const json_t *list, float *scale, struct fault *f);
/* The same request for another prompt, with a seed of its own where the body gives none. NULL: out
 * of memory. */
struct request *request_clone(const struct request *r, const struct fields *b, struct fault *f);

#endif
