/* answer.h -- the way from a body to an answer, as far as all APIs that make text share it.
 *
 *     fields --take--> fields all share --> prompts --> requests ~~> events --> texts, parts of
 *         messages, counts --> JSON of the API
 *            dialect                     answer.c    scheduler             answer.c
 *                dialect
 *
 * A body is one or more prompts, each a request of its own with `per_prompt` choices; choice k of
 * prompt i is number i * per_prompt + k. A conversation is one prompt by the model's template, and
 * each of its choices a message (message.h). A dialect is a table of what its API says otherwise;
 * its functions are called on the scheduler's thread once the requests are submitted, so an answer
 * needs no lock. */
#ifndef PITH_SERVER_ANSWER_H
#define PITH_SERVER_ANSWER_H

#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fields.h"
#include "server/request/message.h"
#include "server/request/request.h"

struct choice {
    struct message *message; /* of a conversation */
    char *text;              /* [n_text] of a prompt: kept for a whole answer */
    size_t n_text, cap_text;
    json_t *ids;    /* tokens that nobody has told; NULL: not asked for */
    json_t *tokens; /* log-probabilities that nobody has told: answer_token of each; NULL: not asked
                       for */
    json_t *lp[4];  /* the same as completions have it: tokens, token_logprobs, top_logprobs,
                       text_offset */
    int64_t offset; /* characters of that */
    const char *reason; /* NULL: it goes on; "stop", "length", "tool_calls" */
    char *stopped_by;   /* the stop text, NULL: none */
    double mean;        /* log-probability of a token */
    int64_t n_made;
    int has_line, truncated; /* its text has a line end; its context was full */
    int told;                /* the dialect's */
    int64_t n_reasoned;      /* tokens of reasoning */
    int enough;              /* somebody wants it to end */
    int reasons;             /* the content told so far ends inside reasoning */
    int made_answer;         /* it was made to end */
};

struct answer {
    struct exchange *x;
    struct hosted *m;
    const struct dialect *dialect;
    int chat, stream, logprobs, progress; /* logprobs: -1 none */
    int cuts_prompt; /* a prompt longer than most_prompt (-1: than the context) loses its beginning
                      */
    int64_t most_prompt;
    int shows_lead;   /* the text that the client has begun the answer with is a part of it */
    int keeps_calls;  /* calls are text, as they were made */
    int reasons_here; /* reasoning is text of the answer, with its marks */
    int add_special;  /* a start token before the prompt of a conversation: 1, 0, or -1: as its
                         template has it */
    int tells_ids;    /* the tokens of prompts and choices */
    int named_by_id;  /* logprobs name a token by its number */
    int ranked;       /* choices come in their order, the best first */
    int left;         /* they are of what the samplers left */
    int timings, verbose; /* told with every piece; told at the end */
    json_t *only;         /* names of the fields that it has, NULL: all */
    json_t *settings;     /* how its tokens are chosen, where that is to be told; NULL */
    int n, per_prompt, n_prompts, n_left, failed;
    struct fault why; /* of a stream that has failed in the middle */
    int fails_late;   /* it has yet to say so */
    int lost; /* there was no memory for a piece of it: it ends with that fault, never with a hole
               */
    int64_t created; /* seconds */
    int64_t n_prompt, n_cached, n_made, n_logprobs;
    int64_t n_repeated; /* bytes that its choices tell of the request itself */
    int64_t holds; /* bytes of JSON that it keeps of the request to its end: the dialect's; with its
                      own in the account once the request is submitted */
    int charged;   /* they are */
    int echo;           /* its choices begin with their prompts */
    int prompt_top; /* so many most probable tokens are told of each token of a prompt, -1: nothing
                       is */
    struct figures figures; /* of the last request */
    char id[64];
    json_t
        *lead; /* the text that a message is made to begin with, behind the prompt; NULL: nothing */
    int lead_is_said;   /* it belongs to the message: a call, which has to come and ends it */
    int reasons_first; /* its format holds behind the end of the reasoning that the prompt begins */
    pith_grammar *held; /* the request's, where it holds calls that may come; NULL: nothing does.
                           Not behind the taking of a request. */
    int one_call;       /* a call ends a message */
    int64_t reasoning;  /* most tokens of it, -1: any number */
    int controlled;     /* it may be ended while it runs */
    const char *last_words; /* said before its end then, NULL: the family's. As `held`. */
    const pith_template *template; /* of its conversation, NULL: none */
    const char *family;            /* of calls, where it is not the template's */
    pith_stream *pieces;           /* texts of single tokens */
    struct known_piece *known;     /* those told before, as JSON; NULL: none was */
    struct choice *choice;         /* [n_prompts * per_prompt] */
    struct prompt *prompt;         /* [n_prompts] */
    struct request **requests;
};
struct prompt {
    struct answer *a;
    int base; /* its first choice */
    int32_t *ids;
    int64_t n_ids;
    int cut;       /* its beginning is left out */
    json_t *probs; /* log-probabilities of its tokens; NULL: not asked for */
};

struct dialect {
    unsigned endpoint;        /* of fields.def */
    size_t size;              /* of its own struct, which begins with struct answer */
    const char *id;           /* how its ids begin */
    const char *type, *pulse; /* of a stream */
    int lines;                /* a stream has JSON lines, not server-sent events */
    int whole_calls;          /* a call is told when it is whole */
    int exact;                /* answers hold numbers of the client or of calls */
    int keeps;                /* a stream tells all again at its end, or where it fails */
    /* What it says otherwise becomes fields that all share (fields_put); what it has besides is
     * kept in its own struct. */
    int (*take)(struct answer *a, struct fields *b, struct request *r, struct fault *f);
    /* The tokens of prompt i where they are made in another way than from F_prompt: 0 with *f.
     * NULL: they are not. */
    int (*prompt_ids)(struct answer *a, const struct fields *b, struct prompt *p, struct fault *f);
    int (*ready)(struct answer *a, const struct fields *b,
                 struct fault *f);   /* prompts are tokens; NULL: nothing to do */
    void (*begin)(struct answer *a); /* of a stream, before anything is made; NULL */
    void (*prompt)(struct answer *a, const struct prompt *p,
                   const struct event *e); /* with echo: a token of it; NULL */
    void (*grown)(struct answer *a, int choice,
                  const struct event *e);                  /* there is a token, or text */
    void (*ended)(struct answer *a, int choice);           /* in a stream; NULL */
    json_t *(*whole)(struct answer *a);                    /* what is no stream */
    void (*finish)(struct answer *a);                      /* what a stream says at its end */
    void (*fail)(struct answer *a, const struct fault *f); /* likewise, in the middle */
    void (*progress)(struct answer *a, const struct progress *p); /* in a stream; NULL */
    void (*close)(struct answer *a);                              /* frees what is its own; NULL */
};

/* dialect.prompt_ids of the text before a gap (F_prompt) and the one behind it (F_suffix), as the
 * model's own tokens tell them apart. */
int answer_gap_ids(struct answer *a, const struct fields *b, struct prompt *p, struct fault *f);
/* How many most probable tokens F_n_probs asks for, at most TOP_MAX, -1: it does not. */
int answer_n_probs(const struct fields *b);
/* Whether F_prompt is a list of prompts: nothing in it is a token. */
int answer_has_several(const json_t *prompt);
/* Has fn finish an answer on a thread of work, where that takes longer than a step may wait. The
 * model is held until fn returns. 0: it has to be done here. */
int answer_leave(struct exchange *x, struct hosted *m, void *what, void (*fn)(void *what));
/* Answers x, now or later, and drops it. */
void answer_make(struct exchange *x, const struct dialect *d);
/* On the scheduler's thread, of one of its requests: the choices that reason are made to answer.
 * How many there are; -1: it is none of the answer with this id, or of somebody else's; -2: it
 * cannot be ended. */
int answer_end_reasoning(struct request *r, const char *id, const struct tenant *who);
/* One event of a stream; `event` is its name (NULL: none), j is taken. */
void answer_send(struct answer *a, const char *event, json_t *j);
/* The fields of an answer that a body wants alone; and of j so much, which is taken. */
int answer_takes_only(struct answer *a, const struct fields *b, struct fault *f);
json_t *answer_only(const struct answer *a, json_t *j);
/* Text of a prompt's choice. 0: out of memory. */
int answer_keep(struct choice *h, const char *p, size_t n);
/* What a token adds to a text; control tokens as they are written. *bytes (NULL allowed): as a list
 * of numbers. */
json_t *answer_piece(struct answer *a, int32_t id, json_t **bytes);
/* {"token", "logprob", "bytes", "top_logprobs"}; of what the samplers left "prob", "top_probs" */
json_t *answer_token(struct answer *a, const struct token_info *t);
/* How logprobs name a token: answer_piece, or token_id:7. */
json_t *answer_name(struct answer *a, int32_t id, json_t **bytes);
json_t *answer_ids(const int32_t *ids, int64_t n); /* as a list */
json_t *answer_real(float logprob); /* JSON has no infinity: -9999 */
/* A further variable of the template, beside those of chat_template_kwargs; takes v. */
int answer_variable(struct fields *b, const char *name, json_t *v, struct fault *f);
/* How much a model is to think, as OpenAI has it: "none", "low" ... */
int answer_effort(struct fields *b, const char *effort, struct fault *f);
/* F_thinking, as Anthropic has it: the template's enable_thinking; behind that, most tokens of
 * reasoning. */
int answer_thinking(struct fields *b, struct fault *f);
void answer_thinking_budget(struct answer *a, const struct fields *b);
/* The most tokens that an answer may have, by fields that all say it: the first that has a bound
 * counts, others that have another one are named as ignored. Which it was; -1: none, *n_max is -1.
 */
int answer_most(struct answer *a, const struct fields *b, const enum field_id *ids, int n,
                int64_t *n_max);
/* Where the conversation of a body ends with the assistant's message, the answer goes on with it
 * (F_continue_final_message): it is taken out of F_messages, *lead is its text (NULL: there is none
 * such). */
int answer_continue(struct fields *b, json_t **lead, struct fault *f);
/* Into an object of usage: "cache_miss", the first position where a prompt left what was known of
 * its beginning, and the two tokens there as text. Nothing where there is none. Returns j. */
json_t *answer_miss(struct answer *a, json_t *j);
json_t *progress_json(const struct progress *p);
/* How long the prompt and the tokens so far have taken, and how many they are. */
json_t *answer_timings(const struct answer *a);
/* A prompt as the model gets it, control tokens as they are written. */
json_t *answer_prompt(struct answer *a, const struct prompt *p);
/* {prompt, generation_settings} of an answer that is `verbose`. */
json_t *answer_verbose(struct answer *a);
const char *answer_fingerprint(void);         /* of what computes */
json_t *answer_take_ids(struct choice *h);    /* likewise of ids */
json_t *answer_take_tokens(struct choice *h); /* the list so far, NULL: none; a new one begins */

#endif
