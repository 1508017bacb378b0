/* decoder.h -- the parameterised decoder (decoder.c): what a family that differs from the others
 * only by parameters writes down. It is one row in one of the files rows_*.c,
 *
 *     DECODER(arch_qwen3, "qwen3", .rope = ROPE_HALVES, .qk_norm = QK_HEAD)
 *
 * and one line in archs.def. Whatever is left out is as in llama: RMS norms before attention and
 * feed-forward, grouped queries from three products or a fused one with optional biases, positions
 * rotated by adjacent pairs, a gated feed-forward with SiLU, an output matrix that may be the
 * embedding. */
#ifndef PITH_ARCH_DECODER_H
#define PITH_ARCH_DECODER_H

#include "arch/arch.h"

enum presence { MAY, NEVER, MUST }; /* a tensor or key in the file */
enum by_key { NO, YES, BY_KEY };    /* BY_KEY: the file says */

enum norms { /* of the residual stream */
             NORMS_RMS,
             NORMS_RMS_BIAS,  /* and a bias */
             NORMS_RMS_BARE,  /* no weights */
             NORMS_LAYER,     /* LayerNorm, weight and bias */
             NORMS_LAYER_MAY, /* each bias by itself may be there */
             NORMS_LAYER_W,   /* weight only */
             NORMS_LAYER_OR_RMS, /* .., or RMS, if the file has its epsilon */
             NORMS_LAYER_BARE /* no weights */
};
enum norm_place {
    NORM_BEFORE,   /* x += block(norm(x)) */
    NORM_SANDWICH, /* x += norm(block(norm(x))): post_attention_norm, post_ffw_norm */
    NORM_BEHIND,   /* x += norm(block(x)): the same names */
    NORM_OF_SUM    /* x = norm(x + block(x)): attn_output_norm, layer_output_norm */
};
enum parallel { /* x += attention(norm(x)) + ffn(norm(x)) */
                SEQUENTIAL,
                PARALLEL,        /* both read one norm */
                PARALLEL_BY_KEY, /* use_parallel_residual; each reads a norm of its own */
                PARALLEL_FALCON, /* attention reads attn_norm_2 if there is one, the feed-forward
                                    attn_norm */
                PARALLEL_STABLE  /* sequential, but for files that have no ffn_norm */
};
enum rope { ROPE_PAIRS, ROPE_HALVES, ROPE_NONE }; /* (2i, 2i + 1), or (i, i + R/2) */
enum rotates {                                    /* which layers have positions */
               ROTATES_ALL,
               ROTATES_WINDOWED, /* the windowed ones, where the model has windows */
               ROTATES_BY_STEP,  /* all but every rotate_step-th */
               ROTATES_BY_KEY    /* attention.rope_pattern */
};
enum sections { /* rope.dimension_sections, where the file has it: positions of four axes */
                SECTIONS_NONE,
                SECTIONS_PAIRS,       /* one after the other */
                SECTIONS_INTERLEAVED, /* time, height, width by turns */
                SECTIONS_PAIR_HALVES  /* one after the other; pairs are halves then, whatever .rope
                                         says */
};
enum clamped { /* silu(gate) * up, with a limit for each layer: swiglu_clamp_exp, of experts */
               CLAMPED_NOT,
               CLAMPED_BEFORE, /* the gate from above, up on both sides */
               CLAMPED_BEHIND /* silu(gate) is, not the gate; swiglu_clamp_shexp of dense and shared
                                 ones */
};
enum qk_norm {
    QK_PLAIN,
    QK_HEAD,  /* RMS of each head, one weight [D] */
    QK_ROW,   /* RMS of the whole row, weight [H D] */
    QK_ROW_LN, /* LayerNorm of the whole row, weight [H D], each bias may be there */
    QK_HEADS, /* LayerNorm of each head, a weight for each [H, D] */
    QK_HEADS_MAY, /* .., each bias may be there */
    QK_GAIN,  /* RMS of each head, one number for each head of q */
    QK_BARE   /* RMS of each head, no weight */
};
enum experts {
    EXPERTS_NEVER,
    EXPERTS_BY_COUNT,  /* in all layers, if expert_count is not 0 */
    EXPERTS_ALL,       /* in all layers */
    EXPERTS_BEHIND,    /* after leading_dense_block_count layers */
    EXPERTS_BY_ROUTER, /* where the file has a router */
    EXPERTS_BY_STEP    /* after the dense ones, every interleave_moe_layer_step-th */
};
enum shared { /* an expert that every row has, beside the chosen ones */
              SHARED_NEVER,
              SHARED_BY_WIDTH, /* expert_shared_feed_forward_length, 0: none */
              SHARED_BY_COUNT, /* expert_shared_count times the width of one */
              SHARED_WIDE,   /* expert_shared_feed_forward_length, without it feed_forward_length */
              SHARED_AS_ONE, /* .., without it the width of one expert */
              SHARED_BY_BOTH /* the latter times expert_shared_count */
};
enum ff_of_expert {           /* width of an expert */
                    FF_FULL,  /* expert_feed_forward_length, without it feed_forward_length */
                    FF_SHARE, /* .., without it or with 0 that over the experts used */
                    FF_NO_KEY /* feed_forward_length */
};
enum scales { /* keys that scale; a value of 0 is none */
              SCALES_NONE,
              SCALES_LOGITS, /* logit_scale */
              SCALES_STREAM, /* embedding_scale and residual_scale, too */
              SCALES_ALL     /* and attention.scale, in place of 1 / sqrt(d) */
};
enum attn_gate { /* attention's output is times gate_act(attn_gate x) */
                 GATE_NONE,
                 GATE_ELEMENTS,  /* one for each element */
                 GATE_HEADS,     /* one for each head */
                 GATE_HEADS_MAY, /* .., if the file has it */
                 GATE_BY_ROWS    /* one or the other, as a layer's tensor shows */
};

struct variant {
    enum norms norms;
    enum norm_place norm_place;
    enum parallel parallel;
    int positions; /* position_embd: a vector is added for each */
    int positions_may; /* .., if the file has it */
    int embd_norm; /* token_embd_norm, of kind `norms` */
    int embd_skips; /* and each layer adds that once more, times layer_output_scale */
    int embd_bare; /* the embedding is normalised without weights */
    int no_eps;     /* the key of their epsilon is not read */
    float post_eps; /* norms behind the blocks add this to the mean, not the key's; 0: that */
    int swin_key;   /* swin_norm: the norms of blocks stand behind these */
    int first_bare; /* the first layer has no attn_norm */

    enum rope rope;
    enum rotates rotates;
    int rotate_step;
    int dense_rotates; /* layers without experts do in any case */
    enum sections sections;
    int norm_last;  /* q and k are rotated before they are normalised */
    int no_factors; /* rope_freqs, rope_factors_* are not used */

    float alibi;    /* scores fall with the distance, by slopes for this greatest bias; */
    int alibi_keys; /* attention.max_alibi_bias has it, attention.clamp_kqv cuts q, k and v off */
    int clamp_key;  /* the latter alone, which has to be there */
    int temper_key; /* attention.temperature_scale: queries grow with the position */

    /* Windows of attention.sliding_window positions, in a pattern of layers. */
    enum presence window;   /* the key; MAY with a period of 0: there are no windows */
    int window_default;     /* without it */
    int window_period;      /* of so many layers the last sees everything */
    int full_first;         /* or the first */
    enum by_key swa_base;   /* base of windowed layers: NO: as the others'; BY_KEY: or the key's */
    float swa_base_default; /* without that key; 0: as the others' */
    int swa_unscaled;       /* rope.scaling is not of windowed layers */
    int swa_rot;            /* windowed layers rotate rope.dimension_count_swa elements */
    int swa_alike;    /* key_length_swa, .. say for them what the keys without _swa say for all */
    int pattern_must; /* the pattern's key has to be there */

    enum presence fused_qkv; /* attn_qkv; MAY: or attn_q, attn_k, attn_v */
    enum presence qkv_bias;
    enum presence out_bias, ffn_bias; /* NO_BIAS in rows: NEVER is written out */
    enum qk_norm qk_norm;
    float qk_eps; /* these add this to the mean, not the key's; 0: that */
    int qk_may; /* files may have none */
    enum attn_gate attn_gate;
    enum glu_act gate_act;
    int sinks;     /* attn_sinks: a logit of each head that has no value */
    int sinks_may; /* .. in layers that have it */
    int value_scale; /* attention.value_scale: what attention adds is times that */
    int sub_norms; /* attn_sub_norm, ffn_sub_norm before the output matrices */

    enum glu_act act;
    int act_scales; /* files may have what the activation's results are divided by */
    int act_by_key; /* hidden_activation, without it GELU */
    int ungated;    /* down(act(up x)) */
    int beside;     /* experts read norm(x) of before attention, and are added to the dense one */
    enum clamped clamped;
    int fused_up; /* ffn_up holds the gate's rows, then its own */

    enum experts experts;
    enum presence choice_bias; /* exp_probs_b */
    int gate_may;              /* experts may have no gate: down(act(up x)) */
    int early_router;          /* it reads what the layer reads, not what its experts do */
    enum by_key gating;        /* expert_gating_func (YES: it has to be there), without it: */
    int gating_default;        /* 1: softmax (as 0 is), 2: sigmoid */
    enum by_key renorm;        /* the chosen ones' weights sum to 1; expert_weights_norm */
    int expert_scale;          /* they are times expert_weights_scale */
    enum ff_of_expert ff_of_expert;
    enum shared shared;
    int shared_default; /* expert_shared_count without the key */
    int fused_shared; /* ffn_up_shexp holds the gate's rows, then its own */
    int shared_mean;  /* the mean of shared and chosen, not the sum */
    int shared_gate;  /* the shared one is times sigmoid(ffn_gate_inp_shexp x) */

    enum presence output; /* NEVER: the embedding is the output matrix */
    int embeds_by_output; /* and files without token_embd have the one under the other's name */
    enum presence output_bias;
    int32_t says_last; /* the output has rows for so many last tokens alone, if it is not tied */
    int embeds; /* an embedding model: no output */
    int output_unused; /* .. but files may have one */
    int rank_shares;   /* models that rank answer with the share of each label */
    int rank_pool;     /* they look at that (enum pith_pooling) without the key; 0: hparams.h */
    int after_pool;    /* dense_2 and dense_3, which embeddings go through at the end */
    int skips;  /* layers may have no attention, or no feed-forward */
    int never_causal;
    int mask_shift; /* of those that fill in masks: hparams.mask_shift without the key */
    int loops; /* the layers are run num_loops times */

    enum scales scales;
    int logits_divided; /* logit_scale is a divisor */
    int logits_scaled;  /* it alone, and it has to be there */
    /* Defaults of embedding_scale, of residual_scale over sqrt(layers), of logit_scale over the
     * width. */
    float embd_scale, residual_by_depth, logits_by_width;
    int rope_switch;                          /* rope.scaling.finetuned = false: no positions */
    int embd_by_width;                        /* the embedding is times sqrt(E) */
    int scale_by_d;     /* scores are over d, not sqrt(d) */
    enum by_key capped; /* soft-caps of scores and logits, with these defaults; < 0: no such key */
    float attn_cap, logit_cap;
    /* What depends on size, or on several keys: has the last word on hp and features. */
    pith_status (*tune)(struct arch_model *m, struct pith_error *err);
};

/* Hyper-parameters that only rows of decoder_keys read. */
struct decoder_hp {
    float rms_eps; /* of norms that may be either kind; 0: they are the other */
    int32_t d_k_swa, d_v_swa, n_rot_swa; /* of windowed layers */
    int32_t *rotated; /* [n_layer] 0: the layer has no positions; NULL: that is not told */
    float rope_alpha, value_scale, qkv_clamp;
    float temper;      /* of queries, by spans of rope_ctx_orig positions; 0: none */
    float *skip_scale; /* [n_layer] of the embedding that each layer adds */
    float *xielu[4];   /* [n_layer] each: constants of GLU_XIELU, those of n and p raw in files */
    int32_t parallel, swin, n_loops, loops_as_they_are;
    int32_t hidden_act; /* of hidden_activation: a place in its names */
};
static inline struct decoder_hp *decoder_own(const struct arch_model *m)
{
    return m->family;
}

extern const struct key_spec decoder_keys[];
extern const struct tensor_spec decoder_tensors[];
pith_status decoder_derive(struct arch_model *m, struct pith_error *err);
pith_status decoder_ready(struct arch_model *m, struct pith_error *err);
void decoder_states(struct arch_model *m);
void decoder_begin(const struct arch_model *m, struct graph *g, struct carry *c);
void decoder_visit(const struct arch_model *m, struct graph *g, int32_t i, struct carry *c);
void decoder_end(const struct arch_model *m, struct graph *g, struct carry *c);
extern const struct arch_role decoder_role, decoder_draft;
extern const size_t decoder_layer_bytes;

#define DECODER(symbol, arch_name, ...)                                                            \
    const struct arch symbol = {                                                                   \
        .name = arch_name, .variant = &(const struct variant){__VA_ARGS__}, DECODER_PARTS};
/* With tensors that are called otherwise: "name here", "name there", ... */
#define RENAMED(...) ((const char *const[]){__VA_ARGS__, NULL})
#define DECODER_UNUSED(symbol, arch_name, names, ...)                                              \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const struct variant){__VA_ARGS__},                   \
                                .unused = names,                                                   \
                                DECODER_PARTS};
#define DECODER_RENAMED(symbol, arch_name, names, ...)                                             \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const struct variant){__VA_ARGS__},                   \
                                .renamed = names,                                                  \
                                DECODER_PARTS};
#define DECODER_PARTS                                                                              \
    .keys = decoder_keys, .tensors = decoder_tensors, .family_bytes = sizeof(struct decoder_hp),   \
    .layer_bytes = sizeof(struct decoder_layer),                                                   \
    .derive = decoder_derive, .states = decoder_states, .ready = decoder_ready,                    \
    .role = {[ROLE_DECODER] = &decoder_role, [ROLE_DRAFT] = &decoder_draft}

struct decoder_layer {
    struct tensor *attn_norm, *attn_norm_b, *ffn_norm, *ffn_norm_b;
    struct tensor *post_attn_norm, *post_attn_norm_b, *post_ffn_norm, *post_ffn_norm_b;
    struct tensor *wq, *wk, *wv, *wqkv, *wo, *attn_gate;
    struct tensor *bq, *bk, *bv, *bqkv, *bo;
    struct tensor *q_gain, *out_scale, *act_scales;
    struct tensor *q_norm_b, *k_norm_b;
    struct tensor *q_norm, *k_norm, *attn_sub_norm, *ffn_sub_norm;
    struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
    struct tensor *exp_probs_b, *sinks;
    struct tensor *router, *gate_exps, *up_exps, *gate_up_exps, *down_exps;
    struct tensor *exps_norm;
    struct tensor *gate_sh, *up_sh, *down_sh, *router_sh;
};

#endif
