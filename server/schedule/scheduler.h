/* scheduler.h -- requests to be generated, and the thread that does it (scheduler.c). */
#ifndef PITH_SERVER_SCHEDULER_H
#define PITH_SERVER_SCHEDULER_H

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"

enum { TOP_MAX = 100, NAMED_MAX = 128, SALT_BYTES = 1024 };
enum { BEAMS_MAX = 10 }; /* each looks at twice as many tokens as there are beams */
/* When a beam search ends that has found as many texts as it has beams: when those that go on, as
 * long as they are, are not better; at once; when they cannot get better. */
enum { BEAMS_USUAL, BEAMS_EARLY, BEAMS_NEVER };

struct token_info {
    int32_t id;
    float logprob; /* of the model, before sampling; with `left` of what the samplers left */
    const struct pith_logprob *top;
    int n_top;
    int64_t rank; /* of a token of the prompt, where that is wanted: 1 is the most probable one */
};
struct progress {                  /* of a prompt */
    int64_t n, n_prompt, n_cached; /* tokens computed so far, the cached ones among them */
    int64_t ns;                    /* since its first step */
};
enum event_kind {
    EV_PROMPT, /* with n_logprobs and echo: token i of the prompt */
    EV_TEXT, /* text that may be shown; with a token that was made, or without (text held back until
                now) */
    EV_PROGRESS,  /* with `progress`: a step has computed more of the prompt */
    EV_CHOICE,    /* a choice has ended */
    EV_EMBEDDING, /* of input `choice` */
    /* The last one of a request is one of these; the request is freed behind it. */
    EV_DONE,
    EV_FAILED,
};
struct event {
    enum event_kind kind;
    int choice;
    int64_t i;
    const char *text;
    size_t n_text;
    const struct token_info *token;
    const char *reason;     /* "stop", "length" */
    const char *stopped_by; /* the stop string, NULL: none */
    int32_t end_id;         /* of EV_CHOICE: the token that ended it and is no text, -1: none */
    double logprob_sum;
    int truncated; /* of EV_CHOICE: its context was full and lost its middle */
    const float *vector;
    int32_t n_vector;
    const struct fault *fault;
    const struct progress *progress;
};

/* One prompt and its choices, or inputs to be embedded. All it points to is the request's own. */
struct request {
    int32_t *prompt; /* inputs lie end to end */
    int64_t n_prompt;
    int64_t *input_end; /* [n] ends of inputs to embed; NULL: text is wanted */
    int ranks;          /* they are pairs to be ranked: vectors are scores */
    int n;              /* choices, or inputs */
    int64_t n_max;      /* most tokens of a choice; 0: only the prompt; -1: as the context allows */
    struct pith_sampler_params sampler; /* choice k has seed + k */
    char **stop;                        /* NULL-terminated, or NULL */
    int ignore_eos, never_ends; /* never_ends: no end token is drawn */
    int32_t *stop_ids; /* [n_stop_ids] tokens that end a choice as an end token does */
    int n_stop_ids;
    int show_stop;       /* the stop string is returned, too */
    int penalise_prompt; /* penalties look at the prompt as well */
    int forgets;         /* nothing of it is taken from the prefix store */
    int shifts;          /* a full context goes on without its middle: the first n_keep tokens stay,
                            n_discard (0: half) of the others go */
    int64_t n_keep, n_discard;
    int64_t n_indent;   /* a choice ends where a line behind the first has fewer blanks before it */
    int64_t prompt_ns;  /* so long its prompt may be computed; 0: any time */
    int64_t predict_ns; /* a choice that has a line end is over so long after its first token; 0:
                           never */
    int left; /* tell what the samplers left for the draw instead of the model's probabilities */
    struct pith_adapter_use lora[SERVER_LORAS]; /* [n_loras] adapters of its text */
    int lora_id[SERVER_LORAS], n_loras; /* lora_id: their numbers */
    int n_logprobs; /* -1: none (a whole pass over the logits less); 0: the token's own alone */
    int32_t *named; /* [n_named] tokens told with each one instead of the most probable ones */
    int n_named;
    int beams; /* its choices are those of a beam search, the best first (beams.c) */
    int beams_wait; /* one that is not parked has no sequence */
    int cut;        /* its texts are shorter than was asked for (fill.c) */
    int early_stopping; /* BEAMS_EARLY ... */
    double length_penalty;
    int rank;       /* logprob_sum is wanted */
    int echo;       /* tell the logprobs of the prompt, too */
    int n_prompt_top, rank_prompt; /* with so many most probable tokens, and their ranks */
    int shows_control;             /* control tokens are text */
    int progress;   /* tell how far the prompt is */
    pith_grammar *grammar;
    int64_t mask_bytes; /* most for its masks, which come while it runs */
    int64_t masks;      /* of them, that its key's account has */
    int slot;           /* that keeps its tokens, -1: none */
    char *settings;     /* JSON of how its tokens are chosen, for /slots; NULL: nobody may ask */
    int kept;           /* set before EV_DONE: it does */
    char *salt;         /* only requests with the same one share a prefix; NULL: those with none */
    int priority;       /* lower comes first, among requests of one key */
    int64_t deadline;   /* clock_now(), 0: none */
    struct tenant *tenant;
    const atomic_int *gone; /* 1: nobody listens any more */
    /* On the scheduler's thread. */
    void (*on_event)(struct request *r, const struct event *e);
    void *ctx;
    int enough; /* set by on_event with a token: its choice ends here */
    /* What a choice is made to say next, before it goes on by itself: `forces` is set by on_event
     * with a token, `forces_first` is for the begin of all choices. */
    int32_t *force_ids; /* [n_force] */
    int n_force, forces, forces_first;
    /* Told with EV_CHOICE and later. */
    struct figures figures;

    struct server *server;
    int64_t holds;  /* bytes that on_event has for it from the beginning on */
    int64_t bytes;  /* that its key's account has for it */
    int64_t answer; /* bytes that its answer has so far */
    int64_t told;   /* of them, that the account knows of */
    int over;       /* they are more than there is room for */

    /* The scheduler's own. */
    struct request *next;
    struct branch **made; /* [n] its choices, until it begins */
    uint64_t number;       /* no other has it; 0: its choices have not begun */
    struct agreed *agreed; /* [n_seq] with the requests of those that have the sequences */
    struct found *found; /* by its beam search; NULL: nothing to be told */
    int n_open, n_embedded;
    int64_t arrived, started;
};
struct request *request_new(void);
void request_free(struct request *r); /* NULL allowed */
/* What it has while it waits: its prompt, the lists that came with it, and a copy of them for each
 * of its choices. */
int64_t request_bytes(const struct request *r, int32_t n_vocab);

struct sched;
struct sched *sched_open(struct hosted *m, struct pith_error *err);
/* Takes all of them, or none. They are the scheduler's then, and may have ended when this returns.
 */
int sched_submit(struct sched *s, struct request **r, int n, struct fault *f);
/* fn(ctx) between two steps, on the thread that may use the sessions; waits for its end. 0: it has
 * been stopped. */
int sched_call(struct sched *s, void (*fn)(void *ctx), void *ctx);
/* fn(r, ctx) for each request that makes text, from within sched_call. */
void sched_each(struct sched *s, void (*fn)(struct request *r, void *ctx), void *ctx);
int sched_is_idle(struct sched *s); /* no request runs or waits */
/* From any thread, now and then: ends a step that is one request's alone when its client has left,
 * or its time is over. */
void sched_look(struct sched *s);
/* Waits until nothing is left to do, or until `deadline`. Returns how many requests are left. */
int sched_drain(struct sched *s, int64_t deadline);
/* Ends what runs with a fault; nothing is taken any more. */
void sched_stop(struct sched *s);
void sched_free(struct sched *s);

#endif
