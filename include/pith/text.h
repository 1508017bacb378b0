/* text.h -- tokens and text, chat templates, prompts, reading answers. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_TEXT_H
#define PITH_TEXT_H

#include "pith/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- text */

enum { PITH_ADD_SPECIAL = 1, PITH_PARSE_SPECIAL = 2 };
/* Text to ids. Writes at most cap ids and returns how many there are in all (call again with more
 * room), -1 on error. */
PITH_API int64_t pith_tokenize(const pith_model *m, const char *text, size_t n_bytes, int flags,
                               int32_t *ids, size_t cap, struct pith_error *err);
enum { PITH_RENDER_SPECIAL = 1, PITH_STRIP_SPECIAL = 2 };
/* Ids to bytes (not terminated). PITH_RENDER_SPECIAL renders control tokens as their text;
 * PITH_STRIP_SPECIAL removes an added BOS/EOS. Writes at most cap bytes, returns the full length,
 * -1 on an id out of range. */
PITH_API int64_t pith_detokenize(const pith_model *m, const int32_t *ids, size_t n, int flags,
                                 char *buf, size_t cap, struct pith_error *err);
PITH_API int pith_token_is_eog(const pith_model *m, int32_t id); /* ends a generation */
PITH_API int32_t pith_token_bos(const pith_model *m);            /* -1: none */
PITH_API int32_t pith_token_eos(const pith_model *m);            /* -1: none */
/* Tokens with a role (FIM: fill in the middle), as the file's keys name them, else by the texts
 * that such tokens are known to have. */
typedef enum {
    PITH_TOKEN_BOS,
    PITH_TOKEN_EOS,
    PITH_TOKEN_UNK,
    PITH_TOKEN_SEP,
    PITH_TOKEN_PAD,
    PITH_TOKEN_FIM_PRE,
    PITH_TOKEN_FIM_SUF,
    PITH_TOKEN_FIM_MID,
    PITH_TOKEN_FIM_PAD,
    PITH_TOKEN_FIM_REP,
    PITH_TOKEN_FIM_SEP,
    PITH_TOKEN_MASK, /* stands for a token that is to be found */
    PITH_TOKEN_N
} pith_token_role;
PITH_API int32_t pith_token_of(const pith_model *m, pith_token_role role); /* -1: none */

/* Streaming text: ids in, complete UTF-8 out. Bytes of an unfinished character are kept for the
 * next call; put with id -1 flushes. */
typedef struct pith_stream pith_stream;
PITH_API pith_stream *pith_stream_open(pith_model *m, struct pith_error *err);
PITH_API void pith_stream_close(pith_stream *s);
/* Returns the text that became complete (owned by the stream, valid until the next call,
 * terminated) and its length. */
PITH_API const char *pith_stream_put(pith_stream *s, int32_t id, size_t *n_bytes);
PITH_API void pith_stream_continue(
    pith_stream *s); /* the text goes on after a prompt: a leading space belongs to it */
/* shown: control tokens come as their text from now on; 0: as nothing, as at first. */
PITH_API void pith_stream_show_control(pith_stream *s, int shown);
/* Bytes as valid UTF-8: those that are none become U+FFFD (what a model says need not be text).
 * Length as snprintf, not terminated. */
PITH_API int64_t pith_utf8(const char *text, size_t n_bytes, char *buf, size_t cap);

/* Stop strings in a text that arrives in pieces: what is shown never holds a byte of one, and
 * nothing waits longer than it could begin one. */
typedef struct pith_stopper pith_stopper;
struct pith_shown { /* what may be shown now: bytes that were held back, then the first bytes of the
                       piece just put */
    size_t size;
    const char *held; /* owned by the stopper */
    size_t n_held, n_fresh;
};
#define PITH_SHOWN_INIT PITH_SIZED(struct pith_shown)
/* strings: NULL-terminated, none empty; copied. */
PITH_API pith_stopper *pith_stopper_open(const char *const *strings, struct pith_error *err);
PITH_API void pith_stopper_close(pith_stopper *s);
/* Returns the index of the string that has come to its end, -1: none yet (and *out stays as it is
 * when it has no size). text NULL: the text has ended, what was held back is shown. */
PITH_API int pith_stopper_put(pith_stopper *s, const char *text, size_t n, struct pith_shown *out);

/* ---------------------------------------------------------------- chat templates */

/* A template of the Jinja language as models publish them, rendered as transformers does.
 * Read-only: any number of threads may render. */
typedef struct pith_template pith_template;
/* PITH_FORMAT: a syntax error; PITH_UNSUPPORTED: include, import, extends, block. The message has
 * line, column and the text there. */
PITH_API pith_template *pith_template_open(const char *text, size_t n_bytes,
                                           struct pith_error *err);
PITH_API void pith_template_close(pith_template *t);
/* The model's own, owned by the model: NULL = tokenizer.chat_template, "tool_use" =
 * tokenizer.chat_template.tool_use. bos_token and eos_token are the model's where the variables do
 * not say. NULL: PITH_MISSING, or why the text cannot be a template (the model opens all the same).
 */
PITH_API const pith_template *pith_model_template(const pith_model *m, const char *name,
                                                  struct pith_error *err);
/* Whether a name stands in its text, such as that of a variable. */
PITH_API int pith_template_names(const pith_template *t, const char *name);
/* Renders with the variables of a JSON object: messages, tools, documents (null when absent),
 * add_generation_prompt (false) and any other; a template that reads `functions` or `datetime` has
 * the tools' functions as JSON text and the day, where they are absent; "now" (ISO 8601) is what
 * strftime_now formats, else the clock. Writes at most cap bytes (not terminated), returns the full
 * length, -1 on error. PITH_STATE: the template called raise_exception, and the message is its own;
 * PITH_RANGE: a limit on steps, memory or length. This is text to look at; what a model is given is
 * a pith_prompt. */
PITH_API int64_t pith_template_render(const pith_template *t, const char *json, size_t n_bytes,
                                      char *buf, size_t cap, struct pith_error *err);

/* What a template that is not the model's own writes behind an answer, without white space around
 * it, where the model's vocabulary has no control token for it: text that the model spells when its
 * answer is over, for pith_generate_params.stop. Writes at most cap bytes (not terminated), returns
 * its length, 0: there is none such, -1 on error. */
PITH_API int64_t pith_template_end(const pith_template *t, const pith_model *m, char *buf,
                                   size_t cap, struct pith_error *err);

/* ---------------------------------------------------------------- prompts */

/* A prompt knows of each byte whether a template wrote it or a request gave it. Only what the
 * template wrote can be control tokens: text of users, tools and documents that spells one
 * ("<|im_end|>") is that text, in smaller tokens or bytes. The text of pith_template_render, given
 * to pith_tokenize with PITH_PARSE_SPECIAL, has lost that. One thread at a time.
 *
 * Values are all strings of the variables, names and keys inside them too, and what is made of them
 * by any filter, slice or loop; but not bos_token and eos_token (leave those to the model where the
 * variables are somebody else's), nor the roles system, user, assistant, tool, function, developer,
 * ipython and model. A marker is the template's as a whole or none at all. User-defined tokens in
 * brackets ("<tool_call>", "[INST]") are markers like control tokens; others (white space, HTML)
 * are text, and values have them as ever. */
typedef struct pith_prompt pith_prompt;
/* The template rendered with the variables of a JSON object, as pith_template_render does it; t
 * NULL: an empty prompt. NULL on error, besides those of rendering: PITH_FORMAT, with the line,
 * where the template uses a value as a format ("value % x"), which makes that a template. */
PITH_API pith_prompt *pith_prompt_open(const pith_template *t, const char *json, size_t n_bytes,
                                       struct pith_error *err);
PITH_API void pith_prompt_close(pith_prompt *p);
typedef enum { PITH_FROM_TEMPLATE, PITH_FROM_VALUE } pith_origin;
/* Appends a text, such as the beginning of an answer, or what stands around a gap that is to be
 * filled. */
PITH_API pith_status pith_prompt_put(pith_prompt *p, pith_origin from, const char *text,
                                     size_t n_bytes, struct pith_error *err);
PITH_API const char *
pith_prompt_text(const pith_prompt *p,
                 size_t *n_bytes); /* the prompt's, terminated, valid until the next put */
struct pith_span {
    size_t from, to; /* bytes from..to - 1 of a text */
};
/* The parts of it that are values, sorted, apart from each other; [n], the prompt's. */
PITH_API const struct pith_span *pith_prompt_values(const pith_prompt *p, size_t *n);
/* Its ids, as pith_tokenize; flags: PITH_ADD_SPECIAL, where no template has written the start
 * token. */
PITH_API int64_t pith_prompt_tokenize(const pith_prompt *p, const pith_model *m, int flags,
                                      int32_t *ids, size_t cap, struct pith_error *err);

/* What a model that ranks (n_labels of its info) is given of a question and a text: the template
 * tokenizer.chat_template.rerank of its file, else the pair as its kind of encoder is trained on
 * it. Neither text can hold a control token. A session with PITH_POOL_RANK gives its score. Ids as
 * pith_tokenize: returns how many, writes at most cap, -1 on error. */
PITH_API int64_t pith_rank_tokenize(const pith_model *m, const char *query, size_t n_query,
                                    const char *document, size_t n_document, int32_t *ids,
                                    size_t cap, struct pith_error *err);

/* ---------------------------------------------------------------- reading answers */

/* Takes what a model answers apart into content, reasoning and tool calls, in the form of its
 * template's family. Pieces may be cut anywhere; no part of a marker is shown, white space beside
 * one belongs to it. A call that is not well-formed is content, as it stands. */
typedef struct pith_chat_parser pith_chat_parser;
typedef enum pith_chat_kind {
    PITH_CHAT_CONTENT,
    PITH_CHAT_REASONING,
    PITH_CHAT_CALL
} pith_chat_kind;
struct pith_chat_event { /* more content or reasoning, or one call */
    size_t size;         /* the library's: what lies behind it is of a later version */
    pith_chat_kind kind;
    const char *text; /* [n_bytes]; of a call: its arguments, a JSON object */
    size_t n_bytes;
    const char *name, *id; /* of a call: id is the model's own, else made for it */
    int32_t index;         /* of a call, from 0 */
    int32_t whole;         /* of a call: no more of it comes */
};
struct pith_chat_params {
    size_t size;
    const char *tools;  /* JSON array of tools as templates take them; NULL: not known; "[]": none,
                           calls are content */
    const char *prompt; /* what the model was given, or its end: it may have opened the reasoning.
                           NULL: the template's for one message */
    size_t prompt_bytes;
    const char *family; /* NULL: by the template's text; see pith_chat_family */
    void (*on_event)(void *ctx,
                     const struct pith_chat_event
                         *e); /* from feed and finish; what e points to is valid during the call */
    void *ctx;
    const pith_chat_parser *tools_of; /* tools are those that this one has read, which stays open as
                                         long; NULL: `tools` */
    /* 1: a call is told while it is made, by events of one index, each with more of its arguments
     * and the last (which may be of 0 bytes) `whole`; one that has begun stays one, so arguments
     * that break off or go wrong end as they stand, never whole. 0: whole calls only. */
    int32_t partial;
    uint64_t seed; /* of the ids that are made for calls: equal answers have others with another */
};
#define PITH_CHAT_PARAMS_INIT PITH_SIZED(struct pith_chat_params)
/* t NULL: family "generic", or the one named. After PITH_NOMEM a parser can only be closed. */
PITH_API pith_chat_parser *pith_chat_open(const pith_template *t,
                                          const struct pith_chat_params *params,
                                          struct pith_error *err);
PITH_API void pith_chat_close(pith_chat_parser *p);
PITH_API pith_status pith_chat_feed(pith_chat_parser *p, const char *text, size_t n_bytes,
                                    struct pith_error *err);
PITH_API pith_status pith_chat_finish(
    pith_chat_parser *p, struct pith_error *err); /* no more text comes: says what was held back */
/* All so far, owned by the parser, valid until the next feed: content or reasoning (not
 * terminated); call i, NULL outside 0..n-1. */
PITH_API const char *pith_chat_text(const pith_chat_parser *p, pith_chat_kind kind,
                                    size_t *n_bytes);
PITH_API int32_t pith_chat_n_calls(const pith_chat_parser *p);
PITH_API const struct pith_chat_event *pith_chat_call(const pith_chat_parser *p, int32_t i);
PITH_API int pith_chat_reasons(
    const pith_chat_parser *p); /* reasoning has begun, by the prompt or since, and not ended */
PITH_API const char *
pith_chat_family(const pith_template *t); /* "hermes", "llama-3" ...; "derived": none of these, but
                                           * calls in its history have a marker, by which they are
                                           * known; NULL gives "generic" */
PITH_API const char *
pith_chat_think(const pith_template *t); /* what begins it, "<think>"; NULL: it has none */
PITH_API const char *pith_chat_answer(
    const pith_template *t); /* what ends reasoning in its family, "</think>"; NULL: it has none */
/* What a model of its family is made to say when it has reasoned for long enough: where there is
 * reasoning (begun) the sentence that its makers document for that, if any; what ends reasoning;
 * and, unless bare, what an answer begins with. Writes at most cap bytes (not terminated), returns
 * its length; 0: the family has no reasoning. */
PITH_API int64_t pith_chat_enough(const pith_template *t, int begun, int bare, char *buf,
                                  size_t cap);
/* What calls of its family begin with, n bytes of it, where they are not one JSON text
 * (pith_chat_grammar says PITH_UNSUPPORTED); NULL: they are. */
PITH_API const char *pith_chat_opening(const pith_template *t, size_t *n);
/* For pith_grammar_open with PITH_GRAMMAR_SCHEMA: the schema that a call of one of the tools keeps,
 * and the trigger it follows. Returns its full length as snprintf does, -1 on error:
 * PITH_UNSUPPORTED where calls of the family are not one JSON text. */
PITH_API int64_t pith_chat_grammar(const pith_template *t, const char *tools, const char **trigger,
                                   char *buf, size_t cap, struct pith_error *err);

#ifdef __cplusplus
}
#endif
#endif
