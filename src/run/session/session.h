/* session.h -- sequences over a model: a plan for each role, one cache, one step at a time.
 * Everything that all steps need is allocated at open, and the cache commits reserved slabs. What
 * not all sessions need is made when it is first asked for, and kept: tables of edited sequences,
 * the best tokens of outputs, the sampler of rows that are drawn; and lists of changes of pages
 * grow. */
#ifndef PITH_RUN_SESSION_H
#define PITH_RUN_SESSION_H

#include "graph/ops/adapt.h"
#include "graph/plan.h"
#include "run/cache/cache.h"
#include "run/model/model.h"
#include "run/cache/recurrent.h"
#include "run/cache/store.h"

enum { CONTEXT_MOST = 1 << 24 };

/* Raised with every change that makes a kernel or an op give other bits: stored pages and snapshots
 * outlive the program. Sessions that keep K or V turned (kv_page.h) count their own. */
enum { NUMERICS_VERSION = 2, NUMERICS_TURNED = 3 };

enum { PREFILL_ROWS = 16 }; /* up to one tile of columns a step reads weights, beyond it computes */

enum { SESSION_LANES = 4 }; /* steps under way at the same time, at most (pipeline.c) */

/* Plans of a session: what its rows go through, the decoder or whatever role it was opened for, at
 * ROLE_DECODER; the encoder beside it; and the first once more for steps of many rows, which bring
 * weights to a GPU (upload.c). */
enum { SESSION_LARGE = 2, SESSION_ROLES = 3 };

/* What a role of the model runs by. */
struct session_role {
    struct graph graph; /* owns what the plan points at */
    struct plan plan;
    struct plan_run run;
    struct plan_run beside[SESSION_LANES - 1]; /* of the decoder: those of lanes behind the first */
    struct call_stats *stats; /* [plan.n_calls] */
};

/* A place for a step: with a plan_run (session_lane) all that it needs. */
struct lane {
    struct step *step;
    struct run run;   /* of the step under way */
    uint32_t changes; /* of pages that come before it: so much of the list */
    /* Of one that the caller waits for: it has run to its end, or failed, before that; or it has
     * not begun, as rows of it are drawn from the one before (drawn.c). */
    int ended, held, reads_best;
    int tried; /* it has trees, */
    int read;  /* or goes with what the encoder has read (seq_read) */
    int32_t first, n; /* its rows, of the batch's */
    pith_status st;
    struct pith_error err;
};

/* Weights that a CPU has and steps of many rows bring to a GPU. */
struct uploading {
    int32_t rows, device; /* steps of at least so many; 0: none do */
    int now;              /* the step in the first lane does */
    struct brought what;
    uint64_t steps;
    char why[200]; /* none do, though there are such weights; "": there is nothing to say */
};

/* Of a sequence whose last token the last call was asked an output of: which that is, and how many
 * tokens there were. output -1: there is none. */
struct last_output {
    int32_t output, n;
};

/* What an edit will do to a session, once it is ready: keep the first `at` slots of seq; put the
 * cache's draft in its place; make it a copy of another, or of the other's memory alone; or empty
 * all but seq. */
enum edit_what { EDIT_NOTHING, EDIT_CUT, EDIT_DRAFT, EDIT_COPY, EDIT_MEMORY, EDIT_KEEP };
struct edit_plan {
    enum edit_what what;
    int32_t seq, src, at;
};

struct pith_session {
    struct pith_model *model;
    /* Sessions that follow this one's edits (edit.c), and the one that this follows; NULL: none.
     */
    struct pith_session *followers, *next_follower, *follows;
    struct edit_plan plan;
    int32_t accepted; /* of a follower, while trees are: its slots before; -1: it had no tree */
    struct mem_account account; /* its blocks, but for itself */
    const struct arch_model *arch; /* the model's, or that of the role it runs */
    int32_t draft;                 /* of draft heads: which */
    struct session_role role[SESSION_ROLES];
    struct uploading uploading;
    int n_roles; /* 1: the decoder alone; 2: an encoder besides */
    struct cache cache;
    struct store store;
    struct store_miss miss; /* of the last session_prefix */
    struct recurrent recurrent;
    struct state *states; /* [n_states] the model's, as they lie in caches and blocks */
    int32_t n_states;
    int n_threads, n_threads_prefill; /* of steps with at most PREFILL_ROWS rows, and with more */
    int32_t n_ctx, n_seq, n_batch, cap_outputs;
    int32_t n_tree_rows; /* of trees, in a step, where layers are recurrent */
    /* The context that was asked for, which chooses among sets of RoPE; 0: none, the first set.
     * What memory allows has no say in it. */
    int32_t rope_ctx;
    enum pool_kind pool_kind;
    int pooled, causal, ranks; /* ranks: what is pooled goes through the head */
    struct lane lane[SESSION_LANES];
    int n_lanes, lane_at;            /* lane_at: the one that `step` and `run` are of */
    int outputs_of;                  /* the lane of the last outputs */
    int flying[SESSION_LANES], n_flying; /* lanes whose steps are under way, the oldest first */
    int32_t stretches[MAX_DEVICES];  /* of a step on each device */
    uint8_t *in_use[STEP_MAX_GROUPS]; /* [pages] with lanes: of steps under way (pipeline.c) */
    uint64_t looked;                 /* at so many segments of steps for them */
    struct step *step;
    uint64_t step_reserved, step_committed; /* of one; of all */
    struct run run;
    uint32_t generation; /* of the model's placements that the plans are made for */
    /* For devices: what the sets add to each product, of each role. */
    struct adapter_sets adapters[SESSION_ROLES];
    struct adapter_set *sets; /* [n_sets] */
    int32_t *slot_set;        /* [n_sets] the set in each slot, -1: none, SLOT_EMPTY: it is empty */
    int32_t n_sets, adapter_rank;
    _Atomic(int) cancel;
    /* Sorting a batch by sequence. */
    int32_t *seq_rows; /* [n_seq + 1] */
    int32_t *order;    /* [n_lanes][n_batch] the step's rows of those of its batch: session_order */
    int32_t *span;             /* [n_batch] of each row of the step, 0: none */
    int32_t *seq_last;         /* [n_seq] last row of each sequence in the call */
    uint8_t *seq_tried;        /* [n_seq] 1: its rows in the call are a tree */
    uint8_t *seq_read;         /* [n_seq] 1: read by the encoder for a step that is under way */
    int32_t (*seq_at)[2];      /* [n_seq] position of its last row so far, and of a next one */
    int32_t one_seq;           /* of a batch without sequence numbers */
    /* Outputs of the last call: the plan's own rows for its last step, copies for earlier ones. */
    const float **output;            /* [cap_outputs] */
    int32_t n_outputs, last_outputs; /* last_outputs: those of the running step */
    float *kept;                     /* reserved address space [cap_outputs][cols] */
    uint64_t kept_bytes, kept_committed;
    int64_t n_cols; /* V or E */
    /* Where the host cannot look at logits: of the last call's outputs the best, [cap_outputs] of
     * plan.best; then output[i] is NULL until somebody wants all of it (session_output). */
    float *best;
    int wants_best, reads_best; /* the caller draws by sample_rows.c alone; so it is in this step */
    /* What rows of a batch took from outputs of the step before it: [n_drawn] of [cap_outputs]. */
    int32_t *drawn, n_drawn;
    /* Taps, of all roles: there are those of rows [tap_first, tap_first + n_tapped) of the last
     * batch, and of n_tap_read tokens of the encoder. */
    struct arch_tap *tap;            /* [n_taps] */
    float **tap_read;                /* [n_taps] [cap_T, cols] rows of devices that the host cannot
                                        look at; NULL: it can */
    int32_t n_taps, tap_first, n_tapped, n_tap_read;
    struct pith_sampler *greedy; /* that takes the best one; made when it is needed */
    struct pith_batch held;      /* of the lane that is; its arrays lie in held_rows */
    uint8_t *held_rows;          /* NULL: there is one lane */
    int32_t n_tried; /* rows of the last step, if it had trees, which are still in the step of */
    int tree_lane;   /* this lane */
    int32_t *depth;  /* [n_batch] scratch: of a tree's rows */
    struct last_output *last; /* [n_seq] */
};

enum { SLOT_EMPTY = -2 };

/* Of the model, as the role sees it: rows of one role mean nothing to another. */
static inline void session_fingerprint(const struct pith_session *s, uint64_t h[2])
{
    h[0] = s->model->fingerprint[0] ^ ((uint64_t)s->arch->runs << 32 | (uint32_t)s->draft);
    h[1] = s->model->fingerprint[1];
}
static inline uint32_t session_numerics(const struct pith_session *s)
{
    int32_t i = 0;
    while (i < s->n_states && !s->states[i].turn_k && !s->states[i].turn_v)
        i++;
    return i < s->n_states ? NUMERICS_TURNED : NUMERICS_VERSION;
}

/* The set of adapters that a sequence has, -1: none. */
static inline int32_t session_set(const struct pith_session *s, int32_t seq)
{
    const struct cache_seq *q = &s->cache.seq[seq];
    return q->adapter[0] ? q->adapter_set : -1;
}
/* Does row r of a step see rows behind it, as a span's do? */
static inline int session_sees_on(const struct pith_session *s, const struct step *t, int32_t r)
{
    int on = 0;
    for (int g = 0; g < s->cache.n_own && s->causal; g++)
        on |= step_hi(t, g)[r] > step_slot(t, g)[r] + 1;
    return on;
}
/* What is kept as the token of row r of a step: -1 where it was not the token alone, saw later
 * ones, or had other adapters than its sequence, whose name stored pages go by. */
static inline int32_t session_kept_token(const struct pith_session *s, const struct step *t,
                                         int32_t r)
{
    int32_t seq = step_seq(t)[step_seg(t)[r]];
    int other = s->arch->runs != ROLE_DECODER || step_plus(t)[r] || session_sees_on(s, t, r) ||
                step_adapter(t)[r] != session_set(s, seq);
    return other ? -1 : step_token(t)[r];
}

struct pith_session *session_open(struct pith_model *m, const struct pith_session_params *params,
                                  struct pith_error *err);
void session_close(struct pith_session *s); /* NULL allowed */
/* model_fits (model.h). */
pith_status session_fits(struct pith_model *m, int *fits, struct pith_error *err);
/* See pith_plan_session. */
pith_status session_plan(struct pith_model *m, const struct pith_session_params *params,
                         struct pith_session_plan *out, struct pith_error *err);
/* Bytes of its own: now, and with cache, states and outputs at their limits. */
void session_memory(const struct pith_session *s, uint64_t *now, uint64_t *most);
pith_status session_step(struct pith_session *s, const struct pith_batch *b,
                         struct pith_error *err);
/* For pipeline.c: the parts that a step has in any case. make: rows [from, from + n) of a batch
 * become s->step, pages and states are taken. commit: sequences hold the rows. collect: outputs of
 * the step that has run. keep: copies of them, as the step's values go. */
pith_status session_make_rows(struct pith_session *s, const struct pith_batch *b, int32_t from,
                              int32_t n, struct pith_error *err);
void session_commit_rows(struct pith_session *s);
pith_status session_collect(struct pith_session *s, struct pith_error *err);
pith_status session_keep_outputs(struct pith_session *s, struct pith_error *err);
/* The output of a sequence's last token, -1: the last call gave none, or the sequence has changed
 * since. mark: all outputs are collected, their rows are committed. forget: there is none of this
 * sequence any more (-1: of any). */
int32_t session_last_output(const struct pith_session *s, int32_t seq);
void session_mark_last(struct pith_session *s);
void session_forget_last(struct pith_session *s, int32_t seq);
static inline struct plan_run *session_lane(struct pith_session *s, int i)
{
    return i                  ? &s->role[ROLE_DECODER].beside[i - 1]
           : s->uploading.now ? &s->role[SESSION_LARGE].run
                              : &s->role[ROLE_DECODER].run;
}
static inline int32_t *session_order(const struct pith_session *s, int lane)
{
    return s->order + (int64_t)lane * s->n_batch;
}
/* What the step in lane i went by. */
static inline const struct plan *session_plan_of(const struct pith_session *s, int i)
{
    return &s->role[!i && s->uploading.now ? SESSION_LARGE : ROLE_DECODER].plan;
}
/* upload.c. compile: makes the second plan where there are weights to bring and it pays, of the
 * placed graph that `build` makes at SESSION_LARGE, or notes why there is none. refused: it cannot
 * be opened, which is an error with `strict` alone. failed: a weight did not come in a step, which
 * goes once more without; else what is returned. */
typedef pith_status (*make_graph)(struct pith_session *s, struct pith_error *err);
pith_status upload_compile(struct pith_session *s, const struct plan_params *pp, make_graph build,
                           struct pith_error *err);
/* A session is only planned: nothing is measured, and what would be is taken to pay. */
void upload_expect(struct pith_session *s);
pith_status upload_refused(struct pith_session *s, const char *why, struct pith_error *err);
pith_status upload_failed(struct pith_session *s, struct pith_error *why, struct pith_error *err);
/* Gives back all that the second plan has, for what cannot be had else; 0: there is none. */
int upload_give_back(struct pith_session *s);
/* What a role runs by goes; its runs alone. Zeroed is allowed, and is what remains of all. */
void role_drop(struct session_role *r);
void role_close_runs(struct session_role *r);
void upload_report(const struct pith_session *s, int json, struct str *out);
static inline void session_use_lane(struct pith_session *s, int i)
{
    s->lane_at = i;
    s->run.step = s->step = s->lane[i].step;
}
/* pipeline.c. choose: how many lanes there are, asked: 0: as many as pay; the plans are made. rows:
 * all rows of a batch, in as many steps as it takes. */
pith_status pipeline_choose(struct pith_session *s, int32_t asked, struct pith_error *err);
pith_status pipeline_init(struct pith_session *s, struct pith_error *err); /* lanes are known */
void pipeline_deinit(struct pith_session *s);
pith_status pipeline_rows(struct pith_session *s, const struct pith_batch *b,
                          struct pith_error *err);
void pipeline_stop(struct pith_session *s); /* nothing stays under way */
/* See pith_submit, pith_wait; the batch is checked, and s->seq_rows counts its rows. */
pith_status pipeline_submit(struct pith_session *s, const struct pith_batch *b,
                            struct pith_error *err);
int32_t pipeline_outputs(const struct pith_session *s); /* of the step that the next one follows */
pith_status pipeline_wait(struct pith_session *s, struct pith_error *err);
pith_status session_submit(struct pith_session *s, const struct pith_batch *b,
                           struct pith_error *err);
/* tree.c: see pith_batch.parent and pith_accept. check: the parents of a batch. fill: positions and
 * what is seen of the rows of segment k, a tree's. forget: nothing of the last step's is accepted
 * any more; no step with trees is under way. rows: of so many that are asked for states are set
 * aside, where layers are recurrent; 0: there are no trees. */
/* Why a batch cannot say what its rows see (trees, spans); NULL: it can. */
const char *session_sees_alone(const struct pith_session *s);
pith_status session_check_spans(const struct pith_session *s, const struct pith_batch *b,
                                struct pith_error *err);
pith_status tree_check(struct pith_session *s, const struct pith_batch *b, struct pith_error *err);
void tree_fill(struct pith_session *s, int32_t k);
void tree_forget(struct pith_session *s);
int32_t tree_rows(const struct pith_session *s, int32_t asked);
pith_status session_accept(struct pith_session *s, int32_t seq, int32_t row,
                           struct pith_error *err);
/* 1: row i of a batch is of a tree. */
static inline int tree_has(const struct pith_batch *b, int32_t i)
{
    return b->parent && b->parent[i] != PITH_APPENDED;
}
/* encode.c: see pith_encode. Empty tokens (n 0) take the memory away. */
pith_status session_encode(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                           struct pith_error *err);
/* 1: the memory of the sequence is of these tokens. */
int session_has_read(const struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n);
/* PITH_STATE: the decoder of this sequence has no memory to look at. */
pith_status session_needs_memory(const struct pith_session *s, int32_t seq, struct pith_error *err);
/* A call begins: no device is lost, and the plans are of the weights as they are placed now. */
pith_status session_ready(struct pith_session *s, struct pith_error *err);
/* The error of n positions in one sequence. */
pith_status session_over_context(const struct pith_session *s, uint64_t n, struct pith_error *err);
/* All of output i, which may have to be read from its device first. NULL: *err says why. */
const float *session_output(struct pith_session *s, int32_t i, struct pith_error *err);
/* sample_rows.c: whether output i has what draws of the sampler look at; the draw. */
int session_has_best(const struct pith_session *s, int32_t i, const struct pith_sampler *sampler);
int32_t session_draw(const struct pith_session *s, int32_t i, struct pith_sampler *sampler);
/* Makes `kept` hold n rows of output. */
pith_status session_room_for_outputs(struct pith_session *s, int32_t n, struct pith_error *err);
/* room.c: bytes of caches, states and tables with these parameters when they are full; UINT64_MAX:
 * there are none with them. */
uint64_t room_cache(struct pith_session *s, const struct cache_params *p);
/* Tokens that an encoder reads at most with these parameters; 0: the model has none. */
int32_t room_memory(const struct pith_session *s, const struct cache_params *p);
/* Chooses n_ctx and n_tokens where they are 0, by the memory that is left, which it tells, or by
 * `most` (0: no such limit). */
void room_choose(struct pith_session *s, struct cache_params *p, int64_t most,
                 struct mem_left *left);
/* Fewer lanes where devices have no memory for so many. */
void room_lanes(struct pith_session *s, const struct cache_params *p);
/* 0: devices have no memory for the plan that brings weights beside all else. */
int room_fits_large(struct pith_session *s, const struct cache_params *p);
/* 0: devices have no memory for it all; half: nor may it be more than half of what is left, as
 * where nobody says how large caches are. */
int room_fits_devices(struct pith_session *s, const struct cache_params *p, int half);
/* PITH_NOMEM: such a cache and `other` bytes beside it do not fit into what was left. */
pith_status room_check(struct pith_session *s, const struct cache_params *p, uint64_t other,
                       const struct mem_left *left, struct pith_error *err);
/* sequence.c */
pith_status session_feed(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                         struct pith_error *err);
pith_status session_reuse(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                          size_t *n_kept, struct pith_error *err);
pith_status session_prefix(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                           size_t *n_kept, struct pith_error *err);
pith_status session_trust(struct pith_session *s, int32_t seq, struct pith_error *err);
pith_status session_salt(struct pith_session *s, int32_t seq, const void *salt, size_t n,
                         struct pith_error *err);
pith_status session_truncate(struct pith_session *s, int32_t seq, int64_t n,
                             struct pith_error *err);
pith_status session_remove(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                           struct pith_error *err);
pith_status session_copy(struct pith_session *s, int32_t dst, int32_t src, int64_t p0, int64_t p1,
                         struct pith_error *err);
pith_status session_keep(struct pith_session *s, int32_t seq, struct pith_error *err);
/* Slots [a, b) go, and what follows moves down to their positions. */
pith_status session_close_up(struct pith_session *s, int32_t seq, int32_t a, int32_t b,
                             struct pith_error *err);
pith_status session_shift(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                          int64_t delta, struct pith_error *err);
pith_status session_divide(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t by,
                           struct pith_error *err);
/* edit.c. An edit as it is asked of a session: `ready` checks it, takes the memory it needs and
 * fills s->plan, for the session itself (e->of) and for those that follow it. Ranges are of
 * positions; n[] are slots that two positions of the first session are, where these alone would
 * not say which of equal ones are meant. session_edit: all of the sessions change, or none. */
struct edit {
    pith_status (*ready)(struct pith_session *s, const struct edit *e, struct pith_error *err);
    const struct pith_session *of;
    int32_t seq, src, n[2];
    int64_t p0, p1, by;
};
pith_status session_edit(struct pith_session *s, const struct edit *e, struct pith_error *err);
/* Checks the session that parameters name, if they do; from link on s follows it; unlink: nothing
 * follows s, nor does s. */
pith_status follow_check(const struct pith_session *s, const struct pith_session_params *p,
                         struct pith_error *err);
void follow_link(struct pith_session *s, struct pith_session *leader);
void follow_unlink(struct pith_session *s);
/* PITH_STATE: one that follows has steps under way. */
static inline pith_status follow_idle(const struct pith_session *s, struct pith_error *err)
{
    const struct pith_session *f = s->followers;
    while (f && !f->n_flying)
        f = f->next_follower;
    return f ? error_set(err, PITH_STATE,
                         "a session that follows this one: %d steps are under way; end them first "
                         "(pith_wait)",
                         f->n_flying)
             : PITH_OK;
}
/* Sequence seq (-1: every one) holds something else from position pos on: so those that follow
 * forget what they have there, or all of it. */
void follow_cut(struct pith_session *s, int32_t seq, int64_t pos);
/* The first n slots of a sequence can be kept. */
pith_status session_can_cut(const struct pith_session *s, int32_t seq, int32_t n,
                            struct pith_error *err);
/* See pith_edits. The parts are what refusals go by, too: why positions cannot be other than the
 * next, and why there are no trees (NULL: nothing is in the way). */
uint32_t session_edits(const struct pith_session *s);
const char *session_follows(const struct pith_session *s);
pith_status tree_refuses(const struct pith_session *s, struct pith_error *err);
/* Position of the first or last slot, -1: no such sequence, or an empty one. */
int64_t session_position(const struct pith_session *s, int32_t seq, int last);
uint64_t session_cache_bytes(const struct pith_session *s, int64_t n);

/* drawn.c: rows whose tokens are drawn from outputs of the step before. check: they can be, of
 * n_outputs there. take: draws them all, from the last outputs. hold: keeps a copy of a batch in
 * s->held. waits: it has such rows. */
pith_status drawn_init(struct pith_session *s, struct pith_error *err);
void drawn_deinit(struct pith_session *s);
pith_status drawn_check(struct pith_session *s, const struct pith_batch *b, int32_t n_outputs,
                        struct pith_error *err);
pith_status drawn_take(struct pith_session *s, const struct pith_batch *b, struct pith_error *err);
int drawn_waits(const struct pith_batch *b);
pith_status drawn_hold(struct pith_session *s, const struct pith_batch *b, struct pith_error *err);

/* adapt.c: adapters of sequences and of rows, see pith_adapt and pith_adapt_slot. init: the graph
 * is made. */
pith_status adapt_take_params(struct pith_session *s, const struct pith_session_params *p,
                              struct pith_error *err);
pith_status adapt_init(struct pith_session *s, struct pith_error *err);
void adapt_deinit(struct pith_session *s);
pith_status session_adapt(struct pith_session *s, int32_t seq, const struct pith_adapter_use *uses,
                          int32_t n, struct pith_error *err);
pith_status session_adapt_slot(struct pith_session *s, int32_t slot,
                               const struct pith_adapter_use *uses, int32_t n,
                               struct pith_error *err);

/* taps.c: see pith_tap. bytes: of what init will make, once there are plans. mark: rows of a batch
 * have become the step of this lane; show: it has run. */
pith_status taps_take_params(struct pith_session *s, const struct pith_session_params *p,
                             struct pith_error *err);
uint64_t taps_bytes(const struct pith_session *s);
pith_status taps_init(struct pith_session *s, struct pith_error *err);
void taps_deinit(struct pith_session *s);
void taps_mark(struct pith_session *s, int32_t first, int32_t n);
void taps_show(struct pith_session *s);
const float *session_tap(struct pith_session *s, int32_t tap, int32_t row, struct pith_error *err);

/* roles.c: `run`, session_step or session_submit, of a batch that may have rows for the encoder. */
typedef pith_status (*run_batch)(struct pith_session *s, const struct pith_batch *b,
                                 struct pith_error *err);
pith_status roles_run(struct pith_session *s, const struct pith_batch *b, run_batch run,
                      struct pith_error *err);

/* More text than a context holds. A context shift drops n_discard tokens (0: half) after
 * the first n_keep; what follows moves down. Self-extend (arXiv:2401.01325) divides the positions
 * of every ga_w tokens by ga_n, but for the latest: *groups have been. */
pith_status context_shift(struct pith_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                          struct pith_error *err);
pith_status self_extend(struct pith_session *s, int32_t seq, int32_t ga_n, int32_t ga_w,
                        int64_t *groups, struct pith_error *err);
/* Tokens that can be fed before the next call of it. */
int64_t self_extend_room(const struct pith_session *s, int32_t seq, int32_t ga_n, int32_t ga_w,
                         int64_t groups);
/* snapshot.c, snapshot_load.c: one sequence, or all (seq -1), to and from a file or memory. A load
 * that fails has changed nothing. */
struct pith_sampler; /* NULL: none */
struct session_note { /* of the caller's; n 0: none */
    const void *p;
    size_t n;
};
pith_status session_save(struct pith_session *s, int32_t seq,
                         const struct pith_sampler *sampler, struct session_note note,
                         const char *path, struct pith_error *err);
pith_status session_note(const char *path, void *buf, size_t cap, size_t *n,
                         struct pith_error *err); /* see pith_saved_note */
pith_status session_save_memory(struct pith_session *s, int32_t seq, void *buf, size_t cap,
                                size_t *n, struct pith_error *err);
/* See pith_saver_open. */
struct pith_saver *session_saver(struct pith_session *s, int32_t seq, size_t *n,
                                 struct pith_error *err);
pith_status session_saver_next(struct pith_saver *w, void *buf, size_t cap, size_t *n,
                               struct pith_error *err);
void session_saver_free(struct pith_saver *w);
/* See pith_loader_open. */
struct pith_loader *session_loader(struct pith_session *s, int32_t seq, const void *p, size_t n,
                                   struct pith_error *err);
pith_status session_loader_next(struct pith_loader *w, size_t most, int *done,
                                struct pith_error *err);
void session_loader_free(struct pith_loader *w);
pith_status session_load(struct pith_session *s, int32_t seq, struct pith_sampler *sampler,
                         const char *path, struct pith_error *err);
pith_status session_load_memory(struct pith_session *s, int32_t seq, const void *p, size_t n,
                                struct pith_error *err);
/* generate.c */
pith_status session_generate(struct pith_session *s, const struct pith_generate_params *p,
                             struct pith_generate_result *out, struct pith_error *err);
/* sample_rows.c: see pith_sample_rows. */
pith_status session_sample_rows(struct pith_session *s, struct pith_draw *draws, int32_t n,
                                struct pith_error *err);
/* report.c. session_state: the i-th of what pith_session_state_at tells; 0: there are fewer. */
int session_state(const struct pith_session *s, int32_t i, struct pith_session_state *out);
/* pith_session_read_ahead, added to *out. */
void session_read_ahead(const struct pith_session *s, struct pith_read_ahead *out);
void session_report(const struct pith_session *s, int json, struct str *out);
/* synth.c */
pith_status synth_write(const char *path, const struct pith_synth_params *p,
                        struct pith_error *err);

#endif
