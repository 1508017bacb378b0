/* parts.h -- what families with files of their own share: attention with one matrix for q, k and v
 * or three, Mamba-2, residual streams, positions rotated alike in all layers. Each part is a struct
 * of tensors for the family's layer, rows for its table (which use the family's L), and a function
 * that fills in the block of nn.h. */
#ifndef PITH_ARCH_PARTS_H
#define PITH_ARCH_PARTS_H

#include "arch/arch.h"

/* ---------------------------------------------------------------- attention */

struct arch_attn { /* a member `attn` of the layer */
    struct tensor *wqkv, *wq, *wk, *wv, *wo;
    struct tensor *bqkv, *bq, *bk, *bv, *bo;
};
/* Rows with what follows the shape: .need = .., .group = .. */
#define ROWS_QKV(...)                                                                              \
    L("attn_q.weight", attn.wq, DIM(DIM_Q, DIM_E), __VA_ARGS__),                                   \
        L("attn_k.weight", attn.wk, DIM(DIM_K, DIM_E), __VA_ARGS__),                               \
        L("attn_v.weight", attn.wv, DIM(DIM_VV, DIM_E), __VA_ARGS__)
#define ROWS_QKV_BIAS(...)                                                                         \
    L("attn_q.bias", attn.bq, DIM(DIM_Q), __VA_ARGS__),                                            \
        L("attn_k.bias", attn.bk, DIM(DIM_K), __VA_ARGS__),                                        \
        L("attn_v.bias", attn.bv, DIM(DIM_VV), __VA_ARGS__)

/* By the keys that all have: heads, scores over the root of d_k, the rotation of layer l. */
struct nn_attention arch_attention(const struct arch_model *m, int32_t l, const struct arch_attn *w,
                                   int state_slot);
/* A ready function: all layers rotate halves by rope.freq_base and its scaling. */
pith_status arch_rotate_halves(struct arch_model *m, struct pith_error *err);

/* ---------------------------------------------------------------- Mamba-2 */

struct arch_ssm_hp { /* a member `ssm` of the family's hyper-parameters */
    int32_t conv, state, inner, heads, groups;
};
struct arch_ssm { /* a member `ssm` of the layer */
    struct tensor *in, *conv, *conv_b, *dt_b, *a, *d, *norm, *out;
};
#define SSM_KEY(type, suffix_, field_)                                                             \
    KEY_AT(KEY_I32, "ssm." suffix_, struct type, ssm.field_), .family = 1
#define KEYS_SSM(type)                                                                             \
    {SSM_KEY(type, "conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},           \
        {SSM_KEY(type, "state_size", state), RANGE(1, 4096), .required = 1, .synth = 16},          \
        {SSM_KEY(type, "inner_size", inner), RANGE(1, MAX_EMBD), .required = 1,                    \
         .synth_of = arch_two_rows},                                                               \
        {SSM_KEY(type, "time_step_rank", heads), RANGE(1, MAX_EMBD), .required = 1,                \
         .synth_of = arch_heads_of_16},                                                            \
    {                                                                                              \
        SSM_KEY(type, "group_count", groups), RANGE(1, MAX_EMBD), .required = 1, .synth = 1        \
    }
double arch_two_rows(const struct arch_model *m);
double arch_heads_of_16(const struct arch_model *m);
/* Dimensions that the rows use: the first of a family's own. */
enum {
    D_SSM_INNER = DIM_FAMILY,
    D_SSM_IN,
    D_SSM_CHANNELS,
    D_SSM_CONV,
    D_SSM_HEADS,
    D_SSM_GROUP,
    D_SSM_PER_GROUP,
    DIM_BEHIND_SSM
};
int64_t arch_ssm_dim(const struct arch_ssm_hp *h, int d);
pith_status arch_ssm_check(const struct arch_model *m, const struct arch_ssm_hp *h,
                           struct pith_error *err);
struct nn_ssm arch_ssm(const struct arch_model *m, const struct arch_ssm_hp *h,
                       const struct arch_ssm *w, int32_t state);

/* ---------------------------------------------------------------- residual streams */

/* A member `streams` of the family's hyper-parameters. iterations 0: streams are not mixed, and
 * what results are times has a magnitude of the file's and an epsilon, too. */
struct arch_streams_hp {
    int32_t n, iterations;
    float eps, magnitude;
};
/* Of a half of a layer: how its block reads the streams, and how its result goes to each. Of the
 * model's end, where m->model is one: how they are read. */
struct arch_half {
    struct tensor *fn, *base, *scale;
};
#define STREAMS_KEY(type, kind, suffix_, field_)                                                   \
    KEY_AT(kind, "hyper_connection." suffix_, struct type, streams.field_), .family = 1
#define KEYS_FOUR_STREAMS(type)                                                                    \
    {STREAMS_KEY(type, KEY_I32, "count", n), RANGE(4, 4), .required = 1, .synth = 4},              \
        {STREAMS_KEY(type, KEY_I32, "sinkhorn_iterations", iterations), RANGE(1, 1000),            \
         .required = 1, .synth = 3},                                                               \
    {                                                                                              \
        STREAMS_KEY(type, KEY_F32, "epsilon", eps), RANGE(0, 1), .required = 1, .synth = 1e-6      \
    }
#define ROWS_HALF(name_, field, ...)                                                               \
    L(name_ "_fn.weight", field.fn, DIM(D_GATES, D_STREAMS), __VA_ARGS__),                         \
        L(name_ "_base.weight", field.base, DIM(D_GATES), __VA_ARGS__),                            \
        L(name_ "_scale.weight", field.scale, DIM(D_PARTS), __VA_ARGS__)
#define ROWS_STREAMS_END(...)                                                                      \
    ROW(struct arch_half, "output_hc_fn.weight", fn, DIM(D_N_STREAMS, D_STREAMS), __VA_ARGS__),    \
        ROW(struct arch_half, "output_hc_base.weight", base, DIM(D_N_STREAMS), __VA_ARGS__),       \
        ROW(struct arch_half, "output_hc_scale.weight", scale, DIM(DIM_ONE), __VA_ARGS__)
/* Dimensions that the rows use: the first of a family's own. */
enum {
    D_STREAMS = DIM_FAMILY, /* elements of all of them */
    D_GATES,
    D_PARTS,
    D_N_STREAMS,
    DIM_BEHIND_STREAMS
};
int64_t arch_streams_dim(const struct arch_model *m, const struct arch_streams_hp *h, int d);
struct nn_streams arch_streams(const struct arch_model *m, const struct arch_streams_hp *h,
                               const struct arch_half *w);
/* For .end: what is read of the streams by m->model, normalised. */
node arch_streams_end(const struct arch_model *m, struct graph *g, const struct arch_streams_hp *h,
                      node x);

/* ---------------------------------------------------------------- rest */

/* silu(gate) up, both held within the limit first where there is one. */
enum glu_act arch_silu_within(float limit);

/* For .states: every layer keeps K and V of its own, as its state 0. */
void arch_attention_states(struct arch_model *m);

#endif
