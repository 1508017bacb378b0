/* session.h -- sequences over a model: steps, edits, snapshots, adapters. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_SESSION_H
#define PITH_SESSION_H

#include "pith/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- sessions */

typedef struct pith_session pith_session;
typedef struct pith_sampler pith_sampler; /* see below */

typedef enum pith_pooling {
    PITH_POOL_NONE,
    PITH_POOL_MEAN,
    PITH_POOL_CLS,
    PITH_POOL_LAST,
    PITH_POOL_RANK, /* scores of a model with a head for them: pith_model_info, n_labels */
    PITH_POOL_FILE
} pith_pooling;

struct pith_session_params {
    size_t size;
    /* Most positions of one sequence. 0: as many as the model was trained for, if the cache of one
     * sequence fits into half of the memory that is left beside the weights, else the largest that
     * does (pith_plan_session tells). What is computed does not depend on it, but of models with
     * two sets of factors for RoPE (LongRoPE): more than their original context takes the second,
     * and 0 is at most that context. */
    int32_t n_ctx;
    int32_t n_seq; /* most sequences, default 1 */
    /* Most cached positions over all sequences; 0: n_ctx * n_seq, or as many as fit into that half,
     * at least n_ctx. */
    int64_t n_tokens;
    /* f32 f16 (default) bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl; types of blocks need heads of a
     * multiple of 32 elements. */
    const char *cache_type_k, *cache_type_v;
    pith_pooling pooling; /* 0 is none, the one field whose 0 is not its default: INIT says _FILE */
    int32_t n_threads;         /* 0 = as the model */
    int32_t n_threads_prefill; /* 0 = n_threads when given, else as the model */
    int64_t store_bytes; /* of full pages kept for prefixes to come, of running and ended sequences,
                          * beside those of n_tokens; 0 = none. None are kept for encoders and
                          * pooled sessions. Recurrent layers: a state each 64 positions or more */
    /* A folder (made if need be) that gets these pages too, so that later sessions and other
     * processes find them; store_bytes 0 then means one context's. NULL = none. PITH_MISSING: it
     * cannot be made or opened; what cannot be written or read there later is a line in the report.
     * store_limit: bytes there, 0 = 32 GiB. store_bytes has to hold an entry (PITH_RANGE). */
    const char *store_dir;
    int64_t store_limit;
    int64_t memory_bytes; /* most it may count on, for the defaults above and PITH_NOMEM, where less
                             is left, that; 0: all that is left */
    int32_t n_batch; /* most tokens in one step, and so of an input that is taken whole (encoders,
                        pooled sessions); 0: the model's */
    /* Adapters (pith_adapt, pith_adapt_slot): how many different ones, or mixtures of them, its
     * sequences and slots have at the same time; 0 = none. adapter_rank: the largest, 0 = 64. */
    int32_t n_adapters, adapter_rank;
    /* Steps that can be under way at the same time, each with values of its own: up to 4. 0: one,
     * or as many as devices share the layers, whose steps of a long batch then run beside each
     * other. With 2 or more there is pith_submit. Pooled sessions and models that are no decoders
     * have one. */
    int32_t n_lanes;
    /* Values that steps give out on their way (pith_tap): names, NULL behind the last, at most 32;
     * NULL: none, and nothing is computed or kept for them. Tap i is that of taps[i].
     *   visit.N         the residual stream as visit N finds it, from 0 on. A visit runs a layer
     *                   once, so in nearly all models this is what stands before layer N; N = their
     *                   number: what the last one leaves
     *   visit.N.NAME    of what models have beside it, that of this name (gemma4: per_layer)
     *   end             what the output matrix is multiplied by, or embeddings are made of
     *   encoder. before one of these: of the encoder that stands beside a decoder
     * PITH_RANGE: the model has no such tap; the message tells which there are. PITH_UNSUPPORTED:
     * it has, but nothing is there before this visit. */
    const char *const *taps;
    /* What its rows go through; its states, sequences, outputs, taps and edits are this role's
     * alone. Draft heads and projectors have no prefix store (what they keep is of vectors, and
     * pages are found by tokens) and do not pool; projectors have no adapters.
     *   PITH_ROLE_DECODER    the model, with its encoder if it has one
     *   PITH_ROLE_DRAFT      draft head `draft`, 0 .. n_nextn - 1. Its rows are tokens, each with
     *                        the vector [E] of the row before it (pith_batch.both), which is not
     *                        added but joined to it: a tap of the decoder's session, or of this
     *                        one's. Outputs are logits of the token after the row's; "visit.1" is
     *                        what the head's layer leaves
     *   PITH_ROLE_PROJECTOR  rows are vectors [n_embd_projector] (pith_batch.embd), outputs
     *                        embedding rows [E] for the decoder. It takes a sequence whole, as
     *                        models that are not causal do
     * PITH_UNSUPPORTED: the model has no such role, or was opened without draft_heads;
     * PITH_RANGE: no such role, or head. */
    int32_t role, draft;
    /* A session of as many sequences (n_seq 0: so many) whose edits this one takes part in, as one
     * of a draft head does in its decoder's, or of a later stage in the first one's; NULL: none.
     * Each call of truncate, remove, copy, keep, shift, divide and accept on that session, and what
     * pith_generate does so, changes all sessions that follow it, or fails and changes none.
     * Positions are the same in each: give a head's row that of its token (pith_batch.pos) where
     * rows before it are left out. Where fewer or more rows are there an edit is of those that
     * are. pith_accept is of a follower's tree if its last step had one of this sequence, which
     * then has to be alike. pith_prefix, pith_reuse and loads of that session cut the followers to
     * what it keeps; after a load they are empty. Rows are fed to each session by itself, and
     * edits asked of a follower are of that one alone. All of them are used by one thread at a
     * time, and may be closed in any order. PITH_RANGE: another n_seq; PITH_UNSUPPORTED: that
     * session follows one itself. */
    pith_session *follows;
    /* Rows of trees (pith_batch.parent) in one step at most, where layers are recurrent: the state
     * after each is kept until the next call that steps, in memory that is set aside for it, as
     * much for each as one sequence has (pith_session_state.bytes). 0: none, and there are no
     * trees; more than n_batch is as n_batch. Models without such layers do not ask for it. For
     * them, and where there are no trees at all, nothing is set aside. */
    int32_t n_tree_rows;
};
#define PITH_SESSION_PARAMS_INIT                                                                   \
    {                                                                                              \
        sizeof(struct pith_session_params), 0, 0, 0, NULL, NULL, PITH_POOL_FILE, 0, 0, 0, NULL, 0, \
            0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0                                                     \
    }

/* PITH_NOMEM, and nothing is taken: with its cache full it would not fit into the memory that is
 * left, of the machine, of the control groups and the limits of the process. The message tells
 * both, and what would help. A cache takes memory as it fills; a step that finds others have taken
 * it fails with PITH_NOMEM and changes nothing. */
PITH_API pith_session *pith_session_open(pith_model *m, const struct pith_session_params *params,
                                         struct pith_error *err);
PITH_API void pith_session_close(pith_session *s);
struct pith_session_plan { /* what pith_session_open would make now */
    size_t size;
    int32_t n_ctx, n_ctx_train; /* n_ctx_train: what n_ctx 0 is where memory allows */
    int64_t n_tokens;
    uint64_t cache_bytes; /* of cache, recurrent state, prefix store and their tables, when they are
                             full */
    uint64_t
        left_bytes; /* that this process can still take; UINT64_MAX, as below: nothing limits it */
    uint64_t memory_bytes; /* of the machine, or the least limit of a control group */
    char limited_by[160];  /* what left_bytes is by: "the machine", "cgroup /a/b", "RLIMIT_AS" */
};
#define PITH_SESSION_PLAN_INIT PITH_SIZED(struct pith_session_plan)
/* params may be NULL. Takes no memory that lasts. */
PITH_API pith_status pith_plan_session(pith_model *m, const struct pith_session_params *params,
                                       struct pith_session_plan *out, struct pith_error *err);

/* One step over any mixture of sequences: row i is a token appended to sequence seq[i], or, where
 * embd is given, its row [E] of that: all rows without token, else those whose token is -1. So an
 * image between two pieces of text goes in one step with them. Rows of a sequence keep their order.
 * want[i] asks for output of row i (NULL: the last row of each sequence); PITH_WANT_DRAWN instead
 * of 1: pith_sample_rows is all that will be done with it. More rows than n_batch are run as
 * several steps. Over the context: PITH_RANGE with n_prompt, n_ctx, n_over; out of pages:
 * PITH_NOMEM; nothing has changed. */
enum {
    /* Where all outputs of a step are wanted so, and a device has them, few bytes are brought from
     * there for each, and the others when a draw needs them. Until then pith_logits is NULL. */
    PITH_WANT_DRAWN = 2
};
struct pith_batch {
    size_t size;
    int32_t n;
    const int32_t *token; /* [n], or NULL: all are embedding rows */
    const float *embd;    /* [n, E], or NULL: all are tokens; of tokens' rows nothing is read */
    const int32_t *seq;   /* [n], NULL: all in sequence 0 */
    const uint8_t *want;  /* [n] */
    /* [n, 4], or NULL: every row comes next. Four positions of each row: of models that rotate
     * pairs of a head by several (M-RoPE: time, height, width and one more) all four, of others the
     * first alone, which also says what windows see. A row whose first is -1 is text and comes
     * next: the greatest of the first three of the row before it, plus 1, as all three, and 0. The
     * first never goes back within a sequence, but may stay. PITH_RANGE: it goes back, or one is
     * not within 0 .. 2^30 - 1. PITH_STATE: what a window has given up would be seen.
     * PITH_UNSUPPORTED: positions other than the next in a model that is not causal, goes by
     * distance (ALiBi, T5), or keeps one row for several tokens. */
    const int32_t *pos;
    /* [n], or NULL: no row is. 1: row i is its token and its row of embd: that is added to what
     * the model embeds the token as, with the model's own factor; everything else that goes by
     * tokens goes by this one. What it was is kept nowhere: pith_tokens tells -1, prefixes end
     * before it. PITH_RANGE: it has no token, or there is no embd. */
    const uint8_t *both;
    /* [n], or NULL: every row is appended. Trees of rows that may come next, as drafts of several
     * tokens are: parent[i] is the row of this batch, a former one of the same sequence, behind
     * which row i stands, or PITH_ROOT, behind what the sequence holds. It sees that, the rows
     * above it and itself, at the position after its parent's, and has the bits of its path run by
     * itself. The rows of a tree are not appended; see pith_accept. PITH_APPENDED: row i is of no
     * tree; a sequence's rows all are, or none is. At most n_batch rows, and 64 from a root to a
     * row; they count as positions of their sequence. Recurrent layers go on from the state after
     * the parent, for as many rows as the session was opened for (n_tree_rows). PITH_RANGE: no
     * such parent, a position given, or more rows than that. PITH_STATE: recurrent layers, and
     * another tree is under way (pith_submit). PITH_UNSUPPORTED: the model is not causal, the
     * session pools, or layers are recurrent and n_tree_rows is 0, choose slots, keep one row for
     * several tokens, or are on a device that cannot do it (GPUs). */
    const int32_t *parent;
    /* [n], or NULL: no row is. 0 and above: row i is a token that nobody has seen yet, the one that
     * is drawn from output drawn[i] of the step before this batch; token[i] is not read. -1: it is
     * as said above. Rows of one output are the same token, drawn once, in the order of rows, by
     * the thread that calls. Bits are those of feeding the token. The step before is that of the
     * last pith_step, pith_wait or load, or the one of pith_submit that is still under way.
     * pith_drawn tells the tokens. PITH_STATE: there is no step before, it had no outputs, or they
     * are no logits; nothing is left to draw; or the mask of a sampler's grammar takes more than
     * pith_sampler_mask_steps. PITH_RANGE: it had fewer outputs, or rows of one output name unlike
     * samplers. PITH_SHAPE: a sampler of another vocabulary. */
    const int32_t *drawn;
    /* [n], or NULL: all NULL. What draws the token of a row of `drawn`, and accepts it; NULL: the
     * best one is taken, as by a sampler of default parameters. Where the batch fails after its
     * draws samplers stay as they are then. */
    pith_sampler *const *sampler;
    /* [n], or NULL: each row has what its sequence has (pith_adapt). The slot whose adapters row i
     * has (pith_adapt_slot); PITH_ADAPTER_SEQUENCE: its sequence's; PITH_ADAPTER_NONE: none. Bits
     * are those of the row alone with these. A row that has others than its sequence leaves its K
     * and V as any other does, but not its token: pith_tokens tells -1, prefixes end before it.
     * PITH_RANGE: there is no such slot (n_adapters of the session); PITH_STATE: it is empty. */
    const int32_t *adapter;
    /* [n], or NULL: all are the decoder's. Of models with an encoder beside it: PITH_ROLE_ENCODER:
     * row i is of what the encoder reads for its sequence. Such rows of a sequence are one text,
     * in order, read whole before the decoder's rows of the batch, as by pith_encode, whose
     * errors this has. Such a row has its token and its sequence, and nothing else of these arrays;
     * outputs, taps and `drawn` know the decoder's rows alone. PITH_STATE: the sequence has read a
     * text already, or a step is under way; PITH_UNSUPPORTED: trees of rows beside it. If the call
     * fails, or of pith_submit the pith_wait that ends it, nothing is read. Draft heads and
     * projectors are roles of sessions of their own (pith_session_params.role). Towers of vision
     * and of audio are no roles: a row of an image is a vector that the caller made (embd). */
    const uint8_t *role;
    /* [n], or NULL: no row sees one behind it. Images: rows of a sequence, one after the other,
     * that have the same number above 0 are a span, and each sees all of it, whatever comes before
     * it, and nothing behind; in layers with a window alone where the model was made so (gemma4).
     * 0: the row is of none. A span is whole in its batch, which has at most n_batch rows. Tokens
     * of a span go as those of `both` do: pith_tokens tells -1, prefixes end before it.
     * PITH_RANGE: more rows, a number below 0, or a row of a tree. PITH_UNSUPPORTED: the model is
     * not causal, the session pools, or layers are recurrent, choose slots, or keep one row for
     * several tokens. */
    const int32_t *span;
};
enum { PITH_ROLE_DECODER, PITH_ROLE_ENCODER, PITH_ROLE_DRAFT, PITH_ROLE_PROJECTOR };
enum { PITH_ADAPTER_SEQUENCE = -1, PITH_ADAPTER_NONE = -2 };
enum { PITH_ROOT = -1, PITH_APPENDED = -2 };
#define PITH_BATCH_INIT PITH_SIZED(struct pith_batch)
PITH_API pith_status pith_step(pith_session *s, const struct pith_batch *batch,
                               struct pith_error *err);
/* What rows of a batch took from output i of the step before it (pith_batch.drawn), until the next
 * call of step, submit or wait; -1: nothing. It is there after the call in which the draw was made:
 * pith_step or pith_submit of that batch, or the pith_wait that has ended the step before. */
PITH_API int32_t pith_drawn(const pith_session *s, int32_t i);
/* Appends to a sequence row `row` of the last step's batch, of its tree, and the rows above it; the
 * others are forgotten, all of them with PITH_ROOT. As they are by every later call that steps, or
 * edits the sequence: then PITH_STATE. PITH_RANGE: no row of this sequence. On failure none is
 * appended. Outputs stay as they are. */
PITH_API pith_status pith_accept(pith_session *s, int32_t seq, int32_t row, struct pith_error *err);
/* Appends n tokens to a sequence; logits of the last one. */
PITH_API pith_status pith_feed(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                               struct pith_error *err);
/* Models with an encoder beside their decoder (pith_model_info.encoder): the encoder reads n tokens
 * at once, whole, and what the decoder's rows of this sequence see of it is kept as the memory of
 * the sequence. The decoder's own tokens then begin with pith_model_info.decoder_start. The
 * sequence has to be empty (else PITH_STATE). Its memory stays the same whatever is fed to it and
 * edited in it, goes where the sequence is emptied (pith_truncate to 0, pith_keep of another) or
 * with n = 0, is shared by pith_copy, also of a sequence without tokens, and is in snapshots; the
 * prefix store finds what followed the same tokens. PITH_UNSUPPORTED: the model has no encoder.
 * PITH_RANGE: a token is not of the vocabulary, or they are more than pith_encoder_most. A call
 * that fails has changed nothing. Feeding a sequence that has no memory is PITH_STATE. Outputs of
 * the last step stay as they are. */
PITH_API pith_status pith_encode(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                                 struct pith_error *err);
/* Tokens that the encoder reads at most: the smaller of n_ctx and n_batch; 0: there is none. */
PITH_API int32_t pith_encoder_most(const pith_session *s);
/* Tokens that it has read for a sequence; 0: none, -1: no such sequence. */
PITH_API int32_t pith_encoded(const pith_session *s, int32_t seq);
/* Makes the sequence be exactly `tokens`: its longest common prefix, or that of the prefix store,
 * is kept, the rest is recomputed (at least the last token, so that its logits are there). *n_kept
 * (NULL allowed) tells how many positions were reused. When the rest cannot be computed (cancelled,
 * out of pages) the sequence holds the common prefix. */
PITH_API pith_status pith_prefix(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                                 size_t *n_kept, struct pith_error *err);
/* The same, computing nothing: for callers that feed the rest in steps of their own. At most n - 1
 * tokens are kept. What the store's folder holds of them is read some 16 MiB at a time: where the
 * thread's pith_work stops between two pieces, *n_kept is what can be used so far, and the next
 * call goes on with the reading. (pith_prefix computes the rest then.) */
PITH_API pith_status pith_reuse(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                                size_t *n_kept, struct pith_error *err);
/* Where the tokens of the last such call left what was known of their beginning; *known (NULL
 * allowed): the token there. -1: nowhere. */
PITH_API int64_t pith_differs_at(const pith_session *s, int32_t *known);
PITH_API pith_status pith_truncate(pith_session *s, int32_t seq, int64_t n,
                                   struct pith_error *err); /* keeps the first n tokens */
/* Whose prompts the sequence holds: what the prefix store and its folder have from it is found only
 * by sequences of the same salt (any n bytes that are this owner's, the same after a restart; at
 * most 4096; n = 0: none, which is a salt like others). A server of several users needs it: who is
 * answered sooner knows that somebody has asked the same. The sequence has to be empty (else
 * PITH_STATE), and keeps its salt when it is emptied; pith_copy gives the copy its source's. */
PITH_API pith_status pith_salt(pith_session *s, int32_t seq, const void *salt, size_t n,
                               struct pith_error *err);

/* Low-rank adapters (LoRA). A file is a GGUF file with general.type "adapter", adapter.type "lora",
 * the model's general.architecture and tensors NAME.lora_a [rank, K], NAME.lora_b [M, rank] for
 * tensors NAME [M, K] of the model (stacks of experts have one more dimension before). What is
 * added to a product is scale * adapter.lora.alpha / rank * (x A) B; without alpha, scale alone.
 *
 * An adapter holds its model, and sessions hold the adapters of their sequences. Errors name the
 * tensor: PITH_FORMAT (no adapter of this architecture), PITH_MISSING, PITH_SHAPE,
 * PITH_UNSUPPORTED (nothing is multiplied with it), PITH_RANGE. */
typedef struct pith_adapter pith_adapter;
PITH_API pith_adapter *pith_adapter_open(pith_model *m, const char *path, struct pith_error *err);
PITH_API void pith_adapter_close(pith_adapter *a);         /* NULL allowed */
PITH_API int32_t pith_adapter_rank(const pith_adapter *a); /* the largest of its tensors */
struct pith_adapter_use {
    size_t size; /* the same in all of an array */
    pith_adapter *adapter;
    float scale; /* 0: as if it were not there */
};
#define PITH_ADAPTER_USE_INIT PITH_SIZED(struct pith_adapter_use)
/* From now on the sequence has these adapters: up to 4, added in this order; n = 0: none. It has to
 * be empty (else PITH_STATE), unless it has them already, and keeps them when it is emptied;
 * pith_copy gives the copy its source's. Rows of sequences without adapters have the same bits as
 * if there were none. Stored prefixes are found by sequences with the same adapters and scales
 * alone; a snapshot can be loaded where the sequence has those it was computed with.
 * PITH_RANGE: more different ones than the session's n_adapters, or a rank above its. */
PITH_API pith_status pith_adapt(pith_session *s, int32_t seq, const struct pith_adapter_use *uses,
                                int32_t n, struct pith_error *err);
/* From now on slot `slot` of the session, one of 0 .. n_adapters - 1, has these adapters, for rows
 * that name it (pith_batch.adapter): so one text can have an adapter from some token on, and others
 * before. n = 0 empties it. Slots and sequences with the same adapters and scales count as one of
 * n_adapters. Errors are those of pith_adapt; rows of a tree can no longer be accepted. */
PITH_API pith_status pith_adapt_slot(pith_session *s, int32_t slot,
                                     const struct pith_adapter_use *uses, int32_t n,
                                     struct pith_error *err);

/* Edits. Ranges [p0, p1) are of positions; p1 = -1 means to the end; negative or reversed ones and
 * unknown sequences are PITH_RANGE. A new row's position is one after the last; of rows with four
 * positions ranges are of the first. Edits are recorded and carried out before the next step that
 * reads the sequence; rotations of K by several shifts are summed and done once. Where layers with
 * a window have given up what the next row would see, and where recurrent layers would have to
 * forget a part of what they saw: PITH_STATE. */
PITH_API pith_status pith_remove(pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                                 struct pith_error *err);
/* dst becomes [p0, p1) of src; pages are shared until one of the two writes. */
PITH_API pith_status pith_copy(pith_session *s, int32_t dst, int32_t src, int64_t p0, int64_t p1,
                               struct pith_error *err);
PITH_API pith_status pith_keep(pith_session *s, int32_t seq,
                               struct pith_error *err); /* empties all other sequences */
/* Positions become p + delta, or p / by rounded down; below 0 or above 2^30 - 1 is PITH_RANGE.
 * Equal positions are allowed. Of rows with four positions (pith_batch) the first three move. */
PITH_API pith_status pith_shift(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t delta,
                                struct pith_error *err);
PITH_API pith_status pith_divide(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t by,
                                 struct pith_error *err);
/* What edits there are in this session; 0 for NULL. The others are refused whatever a sequence
 * holds. Those of models that see their input whole, and of sessions that pool: none, but emptying
 * a sequence, which all have. */
enum pith_edit {
    PITH_EDIT_COPY = 1,     /* a copy of all that a sequence holds */
    PITH_EDIT_TRUNCATE = 2, /* its first part is kept, or copied, whatever its length (where layers
                               have windows: as far as they hold what comes next); without: those
                               lengths alone that are on record, and pith_prefix finds them */
    PITH_EDIT_REMOVE = 4,   /* a part before its end is taken out; a copy begins behind 0 */
    PITH_EDIT_SHIFT = 8,    /* pith_shift, pith_divide */
    PITH_EDIT_GAPS = 16,    /* positions need not follow one another: a gap that a removal leaves
                               need not be closed, and rows may have their own (pith_batch.pos) */
    PITH_EDIT_TREES = 32    /* pith_batch.parent, pith_accept */
};
PITH_API uint32_t pith_edits(const pith_session *s);
PITH_API int64_t pith_position_min(const pith_session *s,
                                   int32_t seq); /* -1: empty, or no such sequence */
PITH_API int64_t pith_position_max(const pith_session *s, int32_t seq);
PITH_API void
pith_trim(pith_session *s); /* gives cache memory behind the last page in use back to the system */
PITH_API int64_t pith_length(const pith_session *s,
                             int32_t seq); /* tokens held, -1: no such sequence */
PITH_API int32_t pith_n_ctx(const pith_session *s);
/* Positions that the pages of all sequences have room for, shared pages counted once (those that
 * only the prefix store holds are free), and those of all pages; of the layers that are fullest. */
PITH_API pith_status pith_cache_use(const pith_session *s, int64_t *used, int64_t *total,
                                    struct pith_error *err);
/* All memory that a session has of its own, what it is kept by included: now, and at most, with
 * every sequence full and edited, and its prefix store full. Calls take some more while they run (a
 * snapshot is made in memory). Either may be NULL. */
PITH_API void pith_session_memory(const pith_session *s, uint64_t *now, uint64_t *most);
/* Bytes of cached K and V that decoding one token reads behind n positions (window layers stop
 * growing). */
PITH_API uint64_t pith_cache_bytes(const pith_session *s, int64_t n);

/* Ids of the first cap tokens held (-1: a row that is no token, or not alone, or that had other
 * adapters than its sequence). Returns how many
 * there are, -1: no such sequence. */
PITH_API int64_t pith_tokens(const pith_session *s, int32_t seq, int32_t *ids, size_t cap);

/* Save and load: one sequence, or all of the session with seq -1, with K, V, recurrent state and
 * edits; and with the logits of its last token, if the last step gave them and the sequence has not
 * changed since (of a whole session: the last output, if it is of a last token). Files are written
 * under another name, synced and renamed. A load checks everything first: another model, cache
 * type, format or numerics version, damage or want of room is an error that names it, and changes
 * nothing, as does pith_cancel. Damage is a number that is not finite, too, whatever the checksums
 * say: PITH_FORMAT. It replaces the sequence, or all of them. A file is read a page at a time, into
 * pages beside those that are replaced where the pool has them. What was said is in a file: its
 * owner alone may read it (mode 0600).
 *
 * A load ends the outputs of the last step, those of other sequences, too: behind it there is one,
 * the logits that it brought, or none (pith_n_outputs). Logits of another sequence are to be copied
 * before, or made again (pith_prefix with its tokens computes the last one anew). */
PITH_API pith_status pith_save(pith_session *s, int32_t seq, const char *path,
                               struct pith_error *err);
PITH_API pith_status pith_load(pith_session *s, int32_t seq, const char *path,
                               struct pith_error *err);
/* The same with a sampler (a resumable one where it is saved, else PITH_STATE), which goes on as it
 * was saved: seed and number of draws, history, what its steps have learnt, and, where it had a
 * grammar, its position. So a text made in two runs is the text of one. The sampler that is loaded
 * is opened for the same number of tokens (else PITH_RANGE) and need not be resumable; other
 * parameters may differ, and what other steps have learnt is left out. A file saved without one
 * leaves it as it is. PITH_STATE: the accepted tokens do not fit its grammar; then, and where there
 * is no memory for them (PITH_NOMEM), the sampler is as after pith_sampler_reset. Any other failure
 * leaves it as it was. Text that a stop string held back is not in the file. */
PITH_API pith_status pith_save_with(pith_session *s, int32_t seq, const pith_sampler *sampler,
                                    const char *path, struct pith_error *err);
PITH_API pith_status pith_load_with(pith_session *s, int32_t seq, pith_sampler *sampler,
                                    const char *path, struct pith_error *err);
/* The same with n_note bytes of the caller's beside it, which a load does not look at (settings to
 * go on with, say); sampler NULL: without one. */
PITH_API pith_status pith_save_noted(pith_session *s, int32_t seq,
                                     const pith_sampler *sampler, const void *note, size_t n_note,
                                     const char *path, struct pith_error *err);
/* These bytes of a file, before anything is opened to load it: *n receives how many there are, 0 of
 * a file without; buf NULL: that alone. Their checksum and the file's outline are checked, the rest
 * by a load. Too small a buffer is PITH_RANGE; what is no saved session or damaged PITH_FORMAT, a
 * version that is not known PITH_UNSUPPORTED, anything but a regular file PITH_IO. */
PITH_API pith_status pith_saved_note(const char *path, void *buf, size_t cap, size_t *n,
                                     struct pith_error *err);
/* What was loaded into a sequence is not taken into the prefix store, for a file may be anybody's;
 * behind this call it is: for files that are kept as well as the store's own folder. Sequences that
 * were not loaded stay as they are. */
PITH_API pith_status pith_trust(pith_session *s, int32_t seq, struct pith_error *err);
/* *n receives the bytes needed; buf NULL: that alone. Too small a buffer is PITH_RANGE. */
PITH_API pith_status pith_save_memory(pith_session *s, int32_t seq, void *buf, size_t cap,
                                      size_t *n, struct pith_error *err);
PITH_API pith_status pith_load_memory(pith_session *s, int32_t seq, const void *p, size_t n,
                                      struct pith_error *err);
/* One sequence in pieces, between which the session goes on with others: end to end they are what
 * pith_save_memory makes, without the last logits. *n_bytes: of all. Each call fills buf with as
 * many whole parts as fit, *n bytes, 0 behind the last; a part is at most a page of one kind of
 * layers, a recurrent state, or the tokens. PITH_RANGE: not even one fits; PITH_STATE: the sequence
 * has changed meanwhile. Close it before the session. */
typedef struct pith_saver pith_saver;
PITH_API pith_saver *pith_saver_open(pith_session *s, int32_t seq, size_t *n_bytes,
                                     struct pith_error *err);
PITH_API pith_status pith_saver_next(pith_saver *w, void *buf, size_t cap, size_t *n,
                                     struct pith_error *err);
PITH_API void pith_saver_close(pith_saver *w); /* NULL allowed */
/* And back, into one sequence: p[n] stays there, and as it is, until it is closed. What is not
 * pages is checked at once; each call of next brings pages of about `most` bytes, one at least, and
 * the last one, *done, checks their checksum and makes the sequence what was saved. Until then it
 * is as it was, and after an error, which ends the loading, too; closed before its end nothing is
 * loaded. PITH_STATE: the sequence has changed meanwhile, or it has ended; PITH_NOMEM: pages are
 * wanting, of which others have taken some. No other load of the whole session meanwhile; close it
 * before the session. */
typedef struct pith_loader pith_loader;
PITH_API pith_loader *pith_loader_open(pith_session *s, int32_t seq, const void *p, size_t n,
                                       struct pith_error *err);
PITH_API pith_status pith_loader_next(pith_loader *w, size_t most, int *done,
                                      struct pith_error *err);
PITH_API void pith_loader_close(pith_loader *w); /* NULL allowed */

/* A step in two calls: submit begins it, wait ends the one that was begun first; its outputs are
 * there then, until the next call of submit, wait or step. Two can be under way, of different
 * sequences, so that those of one half are sampled while a device computes the other half. Each
 * is a call of its own: one that fails takes its sequences back to where they were before its
 * submit, and leaves the other one alone. Bits are those of pith_step. While a step is under way
 * everything else that reads or changes sequences is PITH_STATE (pith_sample_rows, pith_cancel and
 * what tells of a session go on); closing the session gives it up.
 *
 * A batch may have rows whose tokens are drawn from outputs of a step that is under way
 * (pith_batch.drawn). It may be of the same sequences, and begins when that step has ended, in its
 * pith_wait and before that returns: a device then works while the caller looks at outputs, and
 * gets the next batch. Where PITH_WANT_DRAWN is all that was wanted few bytes come from it in
 * between. If the step before fails, so does this one, with the same status.
 *
 * submit   PITH_STATE: two are under way, one of them is of the same sequence and no row is drawn
 *          from it, or the session has one lane (n_lanes); PITH_RANGE: more rows than n_batch,
 *          or no row but the encoder's; PITH_UNSUPPORTED: trees of rows, or embedding rows, beside
 *          tokens that are drawn from a step under way; else as pith_step. Rows of a tree can be
 *          accepted once all has been waited for, if it was submitted last
 * wait     PITH_STATE: none is under way; else as pith_step, of the step that it ends */
PITH_API pith_status pith_submit(pith_session *s, const struct pith_batch *batch,
                                 struct pith_error *err);
PITH_API pith_status pith_wait(pith_session *s, struct pith_error *err);

/* Outputs of the last step, in the order of its rows that asked. NULL when i is out of range, or
 * was wanted for draws alone (PITH_WANT_DRAWN). Valid until the next step or load. */
PITH_API int32_t pith_n_outputs(const pith_session *s);
/* Most outputs one pith_step can give; a batch that asks for more is PITH_RANGE. */
PITH_API int32_t pith_max_outputs(const pith_session *s);
PITH_API const float *pith_logits(const pith_session *s, int32_t i); /* [V], causal models */
PITH_API const float *pith_embedding(const pith_session *s,
                                     int32_t i); /* [n_embd_out]: per row, or per sequence when
                                                  * pooled; with pooling rank [n_labels] */

/* Taps (pith_session_params.taps). They are of all rows, whatever asks for output, and bits are
 * those of the outputs: the same however rows are cut into steps. Columns of a tap's row, 0: there
 * is no such tap. */
PITH_API int64_t pith_tap_width(const pith_session *s, int32_t tap);
/* Tap `tap` [width] of row `row` of the last batch, or, of an encoder's tap, of the tokens that
 * pith_encode has read last. A batch of more than n_batch rows runs in parts, and taps are there of
 * the last part's rows. They stay on the device until they are asked for here; the memory is the
 * session's, until the next step (pith_encode). NULL, with PITH_RANGE: no such tap, or row;
 * PITH_STATE: there was no step, or it has failed; else it could not be read from its device. */
PITH_API const float *pith_tap(pith_session *s, int32_t tap, int32_t row, struct pith_error *err);

PITH_API void
pith_cancel(pith_session *s); /* async-signal-safe: the running step ends with PITH_CANCELLED */
PITH_API void pith_cancel_reset(pith_session *s); /* the next step runs again */

/* Observe mode (model opened with observe = 1): called after each op of a step with its name and
 * its f32 result [rows, cols], from whichever of the model's threads finished it, one call at a
 * time. */
typedef void (*pith_observe_fn)(void *ctx, const char *name, int64_t rows, int64_t cols,
                                const float *data);
PITH_API pith_status pith_session_observe(pith_session *s, pith_observe_fn fn, void *ctx,
                                          struct pith_error *err);
/* Execution report: per op group its kernel, device, calls, bytes, operations, nanoseconds (profile
 * on), and every fallback. Text or JSON; length as snprintf. */
PITH_API int64_t pith_report(const pith_session *s, int json, char *buf, size_t cap);
/* What a sequence keeps between steps. States of layers that keep alike are told together. */
struct pith_session_state {
    size_t size;
    const char *rows;  /* "K and V", "latent rows", "keys of an indexer", "an encoder's memory",
                          "recurrent state" */
    const char *range; /* what a row sees of it: "all", "window" and "chunk" of `span` positions,
                          "step": those of its step; "": recurrent states have no rows */
    int32_t span;      /* 0: of "all" and "step" */
    int32_t ratio;     /* tokens that one row is kept for, mostly 1 */
    int32_t layers;    /* that use it, each its own or an earlier one's, */
    int32_t states;    /* and how many states these are; the first is of layer `first` */
    int32_t first;
    const char *type_k, *type_v; /* "f16"; of latent rows and an indexer's type_v is NULL */
    const char *device;          /* that it lies on, as pith_device calls it */
    uint64_t bytes; /* of all of them for 64 positions of a sequence; recurrent: for a sequence */
};
#define PITH_SESSION_STATE_INIT PITH_SIZED(struct pith_session_state)
/* How many there are to tell; 0: it keeps nothing, -1: no session. PITH_RANGE: no such one.
 * pith_report has them, too. Texts are the library's, device the model's. */
PITH_API int32_t pith_session_n_states(const pith_session *s);
PITH_API pith_status pith_session_state_at(const pith_session *s, int32_t i,
                                           struct pith_session_state *out, struct pith_error *err);
/* Experts on the CPU whose weights are pages of a file (mapped, or a kept copy of packed ones) are
 * asked of the disk when a layer has chosen them, and those that the next layer is likely to choose
 * while this one is computed. Counts since the session was opened; bits do not depend on it. */
struct pith_read_ahead {
    size_t size;
    int64_t layers;        /* with such experts; 0: there is nothing to ask for */
    uint64_t looked;       /* matrices of experts that were looked for, */
    uint64_t asked;        /* of these, asked for, since a part was not in memory */
    uint64_t asked_bytes;  /* what is on its way counts again when it is looked for again */
    uint64_t guessed, right; /* experts guessed for a layer; of these, chosen by it */
    uint64_t late; /* layers whose products had gone ahead of it */
    int64_t step_ns, thread_ns; /* time it took of steps; processor time of threads beside them */
};
#define PITH_READ_AHEAD_INIT PITH_SIZED(struct pith_read_ahead)
PITH_API pith_status pith_session_read_ahead(const pith_session *s, struct pith_read_ahead *out,
                                             struct pith_error *err);
PITH_API void pith_profile(pith_session *s, int on);

#ifdef __cplusplus
}
#endif
#endif
