/* chat.h -- a conversation with a model that has a chat template.
 *
 * chat.c keeps the messages and has them answered; it knows no terminal. chat_terminal.c is the
 * program around it: prompt, commands, the answer as it is made. Messages are a JSON array as
 * templates take it: [{"role": "system"|"user"|"assistant", "content": TEXT,
 * "reasoning_content": TEXT where there is any}, ...]; a file of /save is {"model", "messages"}.
 * Every answer renders the whole conversation; what its tokens have in common with the cached ones
 * is reused. What fails, or is stopped before its first word, leaves the messages as they were. */
#ifndef PITH_CLI_CHAT_H
#define PITH_CLI_CHAT_H

#include <jansson.h>
#include <pith.h>

/* Where a template has a system text stand; found out when there is one. */
enum system_place { SYSTEM_UNKNOWN, SYSTEM_OWN, SYSTEM_IN_QUESTION };

struct chat {
    pith_model *model; /* these are the caller's */
    pith_session *session;
    pith_sampler *sampler;
    pith_grammar *grammar;              /* NULL: none */
    const struct grammar_opts *asked;   /* what it was opened from */
    const json_t *variables;            /* further ones of the template, an object; NULL: none */
    struct pith_generate_params params; /* of every answer: limit, stop strings, context shift */
    int64_t think_budget;               /* most tokens of reasoning in an answer; below 0: any */
    /* A piece of the answer, whole characters; returning 0 stops it. */
    int (*show)(void *ctx, int is_reasoning, const char *text, size_t n);
    void *ctx;

    pith_grammar *behind; /* the grammar behind the end of reasoning, for prompts that begin some;
                           * the caller's to close, NULL: there was none so far */
    int is_behind;        /* it held in the last answer, or would in that to what was read */
    const pith_template *form; /* NULL at chat_open: the model's own */
    json_t *messages;
    enum system_place system_place;
    size_t
        n_left_out; /* oldest messages behind the system's that the model does not see any more */
    int64_t n_used; /* tokens of the conversation */
    int32_t n_answers;
    int64_t n_read, n_cached, n_made; /* tokens over all answers */
    struct pith_generate_result last;
};

/* Takes the fields above the gap as given. PITH_MISSING: the model has no template. */
pith_status chat_open(struct chat *c, struct pith_error *err);
void chat_close(struct chat *c);
/* Adds the question and its answer. c->last tells how it ended; after PITH_STOP_CONTEXT *err has
 * the numbers. */
pith_status chat_ask(struct chat *c, const char *text, struct pith_error *err);
/* Replaces the last answer. PITH_STATE: there is none. */
pith_status chat_again(struct chat *c, struct pith_error *err);
pith_status chat_system(struct chat *c, const char *text, struct pith_error *err); /* "": none */
const char *chat_system_text(const struct chat *c);                                /* NULL: none */
/* Whether there is a system text that the template has no place for: it stands before the first
 * question then, with an empty line between them. */
int chat_moves_system(struct chat *c);
/* What is said of it, once. */
#define CHAT_MOVES_SYSTEM                                                                          \
    "the model's chat template has no system messages; the system text stands before the first " \
    "question"
void chat_clear(struct chat *c); /* all but the system's message */
/* An existing file that is no conversation is not replaced. The session's state goes to PATH.state
 * when asked. */
pith_status chat_save(struct chat *c, const char *path, int with_state, struct pith_error *err);
/* *state_err says why PATH.state, which is there, cannot be used; the messages are loaded all the
 * same. */
pith_status chat_load(struct chat *c, const char *path, struct pith_error *state_err,
                      struct pith_error *err);

/* Reads what a question would be asked with, and makes no answer: *n tokens. */
pith_status chat_read(struct chat *c, const char *text, int64_t *n, struct pith_error *err);

/* One question (text) and its answer, which goes to stdout; what else there is to say, to stderr
 * (chat_once.c). Returns an exit code. */
struct chat_once {
    const char *text, *system; /* system NULL: none */
    int show_thinking, verbose, read_only, saves; /* saves: for another run */
    int64_t seed; /* -1: none */
};
int chat_once(struct chat *c, const struct chat_once *q);

/* The program at the terminal. Returns an exit code. */
int chat_run(struct chat *c, const char *system, const char *history, int verbose);

#endif
