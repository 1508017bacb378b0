/* scheduler_impl.h -- what the files of the scheduler share: branches, and the step being composed.
 * Each knows those above it in this list:
 *
 *     slots.c      the tokens that slots keep
 *     beside.c     masks that are made beside the steps
 *     lines.c      texts of a beam search
 *     branch.c     a choice: its tokens, text and events, its beginning and end
 *     compose.c    which rows a step has
 *     alone.c      steps of one request
 *     beams.c      beam search
 *     draw.c       what is drawn from the outputs of a step
 *     embed.c      inputs that are embedded or ranked
 *     fill.c       texts of models that fill in masks
 *     scheduler.c  the thread */
#ifndef PITH_SERVER_SCHEDULER_IMPL_H
#define PITH_SERVER_SCHEDULER_IMPL_H

#include "server/json.h"
#include "server/hosted.h"
#include "server/metrics.h"
#include "server/schedule/scheduler.h"

enum { PAGE = 64 }; /* tokens that are found again together */

/* One choice of a request: tokens [0, n) of which the session has seen [0, n_fed). Prefill, decode
 * and what a preempted branch has to see again are one thing: feed tokens [n_fed, n), and when the
 * last one has been fed, sample the next. */
struct branch {
    struct request *r;
    struct share *share;
    int choice;
    struct branch *next;     /* of its share */
    uint64_t arrival, moved; /* moved: the step that had rows of it last */
    int32_t *token;
    int64_t n, cap, n_fed, n_made, n_told; /* n_told: prompt tokens whose logprobs have been told */
    int32_t seq;                           /* -1: none */
    int tried;                             /* it has had one */
    int in_folder; /* it waits for pages of the prefix store's folder */
    int reads;     /* steps that some were read in for it since it last had all of them; what was
                      read may be undone, and its sequence go, meanwhile */
    int n_forced;            /* tokens that it still has to say, the last ones of r->force_ids */
    int in_indent;           /* its text ends in the blanks that a line begins with */
    int64_t indent;          /* so many */
    int has_line, truncated; /* its text has a line end; it has lost its middle */
    int64_t n_anew;          /* tokens computed again since */
    int64_t first;           /* when its first token came */
    pith_fill *fill; /* of models that fill in masks: its text; NULL: not begun */
    pith_sampler *sampler;
    pith_stream *stream;
    pith_stopper *stopper;
    pith_grammar *grammar; /* a position of its own */
    struct job *beside; /* its mask is made beside the steps (beside.c): it takes no part in them;
                           NULL: it is not */
    struct beam *beam; /* of a beam search; NULL: it is none */
    int parked;        /* it has its row, or is none of the beams: it takes no part in steps */
    double logprob_sum;
    int64_t last;             /* when the last token came */
    int64_t bytes, sample_ns; /* of its sampler: what the account has for it */
};

struct slot { /* the tokens of the last choice that named it; NULL: none */
    int32_t *ids;
    int64_t n;
    struct tenant *tenant; /* whose account has its bytes */
};

struct copying {     /* what was computed of a slot, on its way to who saves it, or back */
    uint64_t number; /* 0: none is */
    pith_saver *saver;
    pith_loader *loader;    /* back, from who waits for it */
    int32_t seq; /* that has the slot's tokens meanwhile */
    struct slot_text *text; /* of a saver: `kept` of it, so far n bytes */
    size_t n, piece;        /* piece: bytes that are copied at once */
    int failed;
};

struct share {                     /* what a tenant has of this model */
    struct branch *first, *cursor; /* by priority, then arrival */
    const char *salt; /* whose prefixes it finds: those of no other; "": nobody's in particular */
    double served, pass; /* tokens; with those of the step being composed */
    int64_t charged_ns;  /* time of its tenant that is in them: as many tokens as it would have fed
                            meanwhile */
    int n_held;          /* sequences */
    int full;            /* its next branch has to wait, and nobody overtakes within a key */
    int starved;         /* a request without a place waits where places are few */
    int n_decoding;      /* branches with their last token alone to feed */
    int in_turns;        /* they are more than its part of a step */
    int n_embeds;        /* requests with inputs to embed */
    int n_waiting;       /* its part of sched.n_waiting; under its lock */
};

/* How far two prompts are the same. They are compared once: where many wait for a long one, doing
 * it in each step takes longer than the step. */
struct agreed {
    uint64_t with; /* request.number */
    int64_t n; /* tokens; 0 as well where nothing may be shared */
};

struct part { /* rows of one branch in a step */
    struct branch *b;
    int64_t n;
};

struct drawn {        /* whose row of outputs */
    struct branch *b; /* NULL: its request has ended since */
    int64_t i; /* the token of the prompt it tells about; n_prompt: the next one is sampled */
};

struct sched {
    struct hosted *hosted;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows up to `quit` */
    pthread_cond_t wake, idle;
    struct request *inbox, **inbox_end;
    struct call *calls;
    struct request *alone; /* whose step is under way, and nobody else's, in `steps_in` */
    pith_session *steps_in;
    int n_left;    /* requests taken and not ended */
    int n_waiting; /* choices in the inbox or without a sequence */
    int quit;
    /* The thread's own from here. */
    struct request *all; /* that generate */
    struct request *embeds;
    uint64_t begun, arrivals, steps; /* requests and their choices; steps composed so far */
    struct share *share;      /* [n_shares], one for each tenant */
    int n_shares, apart;      /* apart: shares have salts */
    double now;               /* virtual time: `served` of the share chosen last */
    int32_t n_ctx, n_vocab, n_batch, n_embed, n_rank, n_input, max_outputs, n_seq,
        parallel;        /* n_input: the larger one of n_embed and n_rank */
    struct branch **seq; /* [n_seq] */
    struct slot *slot;   /* [parallel] */
    struct copying copying;
    uint64_t copies; /* begun so far */
    int n_held;
    /* The step. */
    int32_t *token, *row_seq;
    uint8_t *want;
    struct part *part;
    int n_rows, n_parts, n_outs, n_decode,
        crowded;     /* crowded: it did not fit; nobody is admitted */
    int64_t n_read; /* tokens of prompts that samplers have read */
    /* What is made of its outputs, by all threads at once: [max_outputs + n_seq], since branches of
     * the same prompt share an output. */
    struct pith_draw *draw;
    struct drawn *drawn;
    struct pith_logprob *top; /* [.., TOP_MAX] */
    int n_draws, most_draws; /* most: past it no further choice takes a prompt over in this step */
    struct beside *beside; /* masks that are made beside; NULL: there was none yet */
    int n_beside, stuck;   /* stuck: nobody can do anything until one of these is made */
    int tells;             /* a beam search that is over is being told */
    struct branch *reader; /* whose pages are brought from the folder, some in each step: one at a
                              time, since two might drive each other's out; NULL: nobody's */
    int n_pieces;          /* read in this step */
    int64_t read_until, read_ns; /* when it has to go on; what reading took of it */
    /* What steps take, ns: one of decode rows alone; one more row of prefill; a row of inputs to
     * embed. */
    double decode_ns, row_ns, embed_ns;
    double decode_rows; /* of the steps that decode_ns is the mean of */
    int64_t owed;       /* to those who generate, of what the last step of inputs took */
};

/* alone.c. A step of that session is to begin that is one request's alone; it has ended with st. */
void alone_begin(struct sched *s, struct request *r, pith_session *session);
void alone_end(struct sched *s, pith_status st);

/* Choice 0 tells the logprobs of the prompt, which is why it computes all of it. */
static inline int tells_prompt(const struct branch *b)
{
    return b->r->echo && b->choice == 0;
}

/* It takes no part in steps for now. */
static inline int stands_by(const struct branch *b)
{
    return b->beside || b->parked;
}

/* Nobody has it, and no slot is copied from it. */
static inline int is_free(const struct sched *s, int32_t seq)
{
    return !s->seq[seq] && !(s->copying.number && s->copying.seq == seq);
}

/* It has a sequence, which becomes somebody else's. */
static inline void leave_sequence(struct sched *s, struct branch *b)
{
    s->seq[b->seq] = NULL;
    s->n_held--;
    b->share->n_held--;
    b->seq = -1;
    b->n_fed = 0;
    b->in_folder = 0;
    if (s->reader == b)
        s->reader = NULL;
}

/* lines.c */
int beam_open(struct branch *b); /* 0: out of memory */
void beam_close(struct branch *b);
void found_free(struct found *f); /* NULL allowed */

/* branch.c */
/* All choices of a request, on any thread: what they are made of may take long. 0: *err. */
int branches_make(const struct sched *s, struct request *r, struct pith_error *err);
void branches_begin(struct sched *s, struct request *r); /* they take part from now on */
void branch_close(struct sched *s, struct branch *b);   /* takes it out of its share's list, too */
void branch_release(struct sched *s, struct branch *b); /* gives its sequence up */
/* A token has been drawn for a branch, or none could be. 1: the branch has ended. */
int branch_take(struct sched *s, struct branch *b, const struct token_info *t);
void branch_end(struct sched *s, struct branch *b, const char *reason);
int branch_ends(const struct sched *s, const struct request *r,
                int32_t id);               /* whether a token ends a choice */
int branch_put(struct branch *b, int32_t id); /* behind its tokens; 0: out of memory */
void request_grows(struct request *r); /* request.answer has: to the account of its key */
/* Choices whose prompt takes longer than it may. */
void end_long_prompts(struct sched *s);
void request_begins(struct sched *s, struct request *r, int64_t now); /* there is a first token */
void request_fail(struct sched *s, struct request *r,
                  const struct fault *f);          /* ends it, whatever it was doing */
void share_back(struct sched *s, struct share *t); /* before it is given something to do */
void request_done(struct sched *s, struct request *r,
                  const struct event *e); /* tells the last event, frees */
/* Tells an event, and counts what the answer has grown by: past the room of its key the request is
 * `over`, which is why it ends. */
void request_tell(struct request *r, const struct event *e);
void request_over(const struct request *r, struct fault *f);

/* compose.c */
void compose(struct sched *s);
int room_for_sampler(struct sched *s, struct branch *b); /* 1: its tables are in the account */
/* Rows of work that takes row_ns each that fit into a step beside its decode rows, `most` at most,
 * `least` at least. */
int64_t rows_in_gap(const struct sched *s, double row_ns, int64_t least, int64_t most);
/* Their texts may share what was computed. */
int may_share(const struct request *a, const struct request *b);
/* A branch without a sequence takes over what another one with the same tokens has computed. 0:
 * there is no room; -1: nor will there be. */
int take_over(struct sched *s, struct branch *to, const struct branch *from);
/* Frees pages for the step that did not fit. 0: there is nothing to give up. */
int make_room(struct sched *s);

/* slots.c */
/* In the slot that the request names. 0: there is none, or no room, and it is empty. */
int slot_keep(struct sched *s, const struct request *r, const int32_t *ids, int64_t n);
/* A copy that goes on ends with what it has: its pages may go. 0: there is none. */
int slots_give_up(struct sched *s);
void slots_free(struct sched *s);

/* beams.c */
/* The best tokens of the row of a beam: [n]. Its request may end. */
void beam_take(struct sched *s, struct branch *b, const struct pith_logprob *best, int n);
/* Of searches that are over some of what was found is told; sched.tells: there was some. Requests
 * may end. */
void beams_tell(struct sched *s);
/* Beams that have their rows leave their sequences to those that have none. */
void beams_settle(struct sched *s);

/* draw.c */
/* Output `out` of the step tells about token i of a branch: it is to be drawn (sched.draw), for all
 * branches that have the same prompt, too. */
void draw_put(struct sched *s, struct branch *b, int64_t i, int32_t out);
/* Draw k has been made: tokens, text and events; its branch may end. */
void draw_tell(struct sched *s, int k);
void draw_collect(struct sched *s); /* those whose masks have been made since */

/* fill.c */
void fill_step(struct sched *s); /* of a model that fills in masks, instead of a step of all */

/* embed.c */
void embed_start(struct sched *s, struct request *r);
void embed_step(struct sched *s);
void embed_fail(struct sched *s, struct request *r, const struct fault *f);

#endif
