/* hparams.h -- hyper-parameters, and the tables they are read by. One row of a table says a key's
 * name, kind, limits and default, where its value goes, and what a synthetic model has there: files
 * are read and checked, synthetic models written, and `pith inspect --arch` is printed by the same
 * rows.
 *
 *     {I32("block_count", n_layer), RANGE(1, MAX_LAYERS), .required = 1},
 *     {F32("rope.freq_base_swa", rope_base_swa), .from = base_of_others},
 *     {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .from = heads},
 *
 * Rows are read in order: what `when` and `from` look at stands above. */
#ifndef PITH_ARCH_HPARAMS_H
#define PITH_ARCH_HPARAMS_H

#include <stddef.h>
#include "base/arena.h"
#include "base/error.h"
#include "format/gguf.h"

enum rope_scaling { ROPE_SCALE_NONE, ROPE_SCALE_LINEAR, ROPE_SCALE_YARN, ROPE_SCALE_LONG };

/* Common ones; per-layer ones are arrays of n_layer. A family's own are in a struct of its file. */
struct hparams {
    int32_t n_vocab, n_ctx_train, n_embd;
    int32_t n_embd_out;                 /* of an embedding that comes out; 0: n_embd */
    int32_t n_layer, n_nextn; /* layers run; those after them that predict further on, which
                                 per-layer arrays cover, too (arch_blocks) */
    int32_t *n_head, *n_head_kv, *n_ff; /* [n_layer] */
    int32_t d_k, d_v;                   /* head dimensions */
    float norm_eps;
    /* experts */
    int32_t n_expert, n_expert_used, n_ff_exp, n_expert_shared, n_ff_shexp;
    int32_t expert_gating, expert_norm, n_expert_groups, n_groups_used;
    int32_t n_dense; /* leading layers without experts */
    int32_t moe_step;
    float expert_scale;
    float *clamp_exp, *clamp_shexp; /* [n_layer] of the gate and up; 0: none */
    /* what is seen */
    int32_t window;    /* of windowed layers; 0: none */
    int32_t *windowed; /* [n_layer] 1: the layer sees only the window */
    int32_t causal;
    int32_t spans_in_windows; /* rows of an image see each other in windowed layers alone */
    /* positions */
    int32_t n_rot, rope_sections[4];
    int32_t n_factors; /* divisors of frequencies that the file may have; 0: one for each pair */
    float rope_base, rope_base_swa, rope_factor, rope_attn_factor;
    int32_t rope_scaling, rope_ctx_orig, rope_finetuned;
    float yarn_ext, yarn_attn, yarn_beta_fast, yarn_beta_slow, yarn_log;
    float alibi_max;
    int32_t n_positions; /* of a table that is added to the embedding; 0: there is none */
    /* scales */
    float embd_scale, residual_scale, logit_scale, attn_scale;
    /* Tokens that are embedded as others: [n_swapped] each. */
    int32_t n_swapped, *swap_from, *swap_to;
    /* Tokens that are never said, n_unsaid of them from the first on: of images, say. */
    int32_t unsaid_first, n_unsaid;
    int32_t n_said; /* rows of the output matrix, which has none of these; 0: it has all */
    float attn_softcap, logit_softcap;
    int32_t pooling;                 /* enum pith_pooling */
    int32_t rank_gelu, rank_softmax; /* of the head that ranks: GELU, not tanh; shares of labels */
    int32_t rank_pool; /* what it looks at, enum pith_pooling; 0: what sees most of the text */
    int32_t embeds;                  /* no logits, but an embedding of each row */
    int32_t mask_shift; /* fills in masks, and a row's logits tell the token behind it */
};

/* Limits of what a file may ask for. */
enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1024,
    MAX_EMBD = 1 << 20,
    MAX_FF = 1 << 22,
    MAX_HEAD_DIM = 4096,
    MAX_EXPERTS = 4096
};

struct arch_model;

enum key_kind {
    KEY_I32,
    KEY_F32,
    KEY_BOOL,       /* int32_t */
    KEY_NAME,       /* a string, one of `names`: its place, int32_t */
    KEY_LAYERS,     /* int32_t *, [n_layer]: one number for all layers, or an array; bools too */
    KEY_LAYERS_F32, /* float * */
    KEY_INTS,       /* int32_t *, an array of as many as the int32_t at `n_at` says */
    KEY_WIDE,       /* uint64_t *, the first `count` of an array of whole numbers */
    KEY_FOUR        /* int32_t [4]; an array of up to four, 0 for those behind them */
};

struct key_spec {
    const char *suffix; /* "ARCH." goes before it, */
    int bare;           /* or nothing */
    enum key_kind kind;
    size_t at, n_at;
    int family;      /* the fields are of m->family, not of m->hp */
    int numbered;    /* KEY_NAME: the file may have its place among the names, too */
    const char *old; /* another name that older files use */
    int required;
    int size;      /* of a synthetic model: chosen by who asks for it (struct pith_synth_params) */
    double lo, hi; /* numbers: wanted lo..hi; both 0: any */
    double def;    /* what it is without the key, */
    double (*from)(const struct arch_model *m, int32_t l); /* or by this; l: the layer */
    const char *const *names;                              /* KEY_NAME: NULL-terminated */
    int32_t (*count)(const struct arch_model *m);          /* KEY_WIDE */
    int (*when)(const struct arch_model *m);               /* else it is not looked at: 0 */
    /* KEY_LAYERS: a number alone, and the default, is the period of a pattern; key_pattern. */
    int pattern;
    int most; /* KEY_I32: of an array, which another row reads layer by layer, the greatest */
    /* Of a synthetic model; 0: as without the key. KEY_INTS, KEY_WIDE: the first of a row. */
    double synth;
    double (*synth_of)(const struct arch_model *m);
};

#define KEY_AT(kind_, suffix_, type, field)                                                        \
    .suffix = suffix_, .kind = kind_, .at = offsetof(type, field)
#define I32(suffix_, field)    KEY_AT(KEY_I32, suffix_, struct hparams, field)
#define F32(suffix_, field)    KEY_AT(KEY_F32, suffix_, struct hparams, field)
#define BOOL(suffix_, field)   KEY_AT(KEY_BOOL, suffix_, struct hparams, field)
#define NAME(suffix_, field)   KEY_AT(KEY_NAME, suffix_, struct hparams, field)
#define LAYERS(suffix_, field) KEY_AT(KEY_LAYERS, suffix_, struct hparams, field)
#define FOUR(suffix_, field)   KEY_AT(KEY_FOUR, suffix_, struct hparams, field)
#define RANGE(lo_, hi_)        .lo = lo_, .hi = hi_

/* Rows that families put into their tables. */
#define KEYS_SIZES                                                                                 \
    {I32("context_length", n_ctx_train), RANGE(1, INT32_MAX), .required = 1, .size = 1},           \
        {I32("embedding_length", n_embd), RANGE(1, MAX_EMBD), .required = 1, .size = 1},           \
        {I32("block_count", n_layer), RANGE(1, MAX_LAYERS), .required = 1, .size = 1},             \
    {                                                                                              \
        I32("nextn_predict_layers", n_nextn), RANGE(0, MAX_LAYERS)                                 \
    }
#define KEYS_RMS                                                                                   \
    {                                                                                              \
        F32("attention.layer_norm_rms_epsilon", norm_eps), RANGE(0, 1), .required = 1,             \
                                                                        .synth = 1e-5              \
    }
#define KEYS_LAYER_NORM                                                                            \
    {                                                                                              \
        F32("attention.layer_norm_epsilon", norm_eps), RANGE(0, 1), .required = 1, .synth = 1e-5   \
    }
#define KEYS_HEADS                                                                                 \
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},       \
    {                                                                                              \
        LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads, \
                                                                           .size = 1               \
    }
#define KEYS_HEAD_DIMS                                                                             \
    {I32("attention.key_length", d_k), RANGE(1, MAX_HEAD_DIM), .from = key_head_dim, .size = 1},   \
    {                                                                                              \
        I32("attention.value_length", d_v), RANGE(1, MAX_HEAD_DIM), .from = key_head_dim,          \
                                                                    .size = 1                      \
    }
/* Of all families with experts: the best ones are looked for in the best groups alone. */
#define KEYS_EXPERT_GROUPS(condition)                                                              \
    {I32("expert_group_count", n_expert_groups), RANGE(0, MAX_EXPERTS), .when = condition},        \
    {                                                                                              \
        I32("expert_group_used_count", n_groups_used), RANGE(0, MAX_EXPERTS), .when = condition    \
    }
#define KEYS_EXPERTS                                                                               \
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .size = 1},                             \
        {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .size = 1},               \
        KEYS_EXPERT_GROUPS(NULL)
#define KEYS_FF                                                                                    \
    {                                                                                              \
        LAYERS("feed_forward_length", n_ff), RANGE(0, MAX_FF), .from = key_ff, .size = 1           \
    }
#define KEYS_ROPE                                                                                  \
    {I32("rope.dimension_count", n_rot), RANGE(0, MAX_HEAD_DIM), .from = key_like_d_k},            \
        KEYS_ROPE_SCALING
#define KEYS_ROPE_SCALING                                                                          \
    {F32("rope.freq_base", rope_base), .def = 10000},                                              \
        {F32("rope.scaling.factor", rope_factor), .def = 1, .old = "rope.scale_linear"},           \
        {F32("rope.scaling.attn_factor", rope_attn_factor), .def = 1},                             \
        {I32("rope.scaling.original_context_length", rope_ctx_orig), RANGE(1, INT32_MAX),          \
         .from = key_like_context},                                                                \
        {F32("rope.scaling.yarn_ext_factor", yarn_ext), .def = 1},                                 \
        {F32("rope.scaling.yarn_attn_factor", yarn_attn), .def = 1},                               \
        {F32("rope.scaling.yarn_beta_fast", yarn_beta_fast), .def = 32},                           \
        {F32("rope.scaling.yarn_beta_slow", yarn_beta_slow), .def = 1},                            \
        {F32("rope.scaling.yarn_log_multiplier", yarn_log)},                                       \
    {                                                                                              \
        NAME("rope.scaling.type", rope_scaling), .names = rope_scaling_names, .from = key_scaling  \
    }
#define KEYS_POOLING                                                                               \
    {                                                                                              \
        I32("pooling_type", pooling), RANGE(0, 4)                                                  \
    }
/* Of families whose models may rank texts: what their head looks at. */
#define KEYS_RANK(otherwise)                                                                       \
    {                                                                                              \
        NAME("classifier.pooling_type", rank_pool), .names = rank_pool_names, .numbered = 1,       \
                                                    .from = otherwise                              \
    }
extern const char *const rope_scaling_names[], *const rank_pool_names[];
double key_like_heads(const struct arch_model *m, int32_t l);
double key_head_dim(const struct arch_model *m, int32_t l);
double key_like_d_k(const struct arch_model *m, int32_t l);
double key_like_context(const struct arch_model *m, int32_t l);
double key_ff(const struct arch_model *m, int32_t l);
double key_scaling(const struct arch_model *m, int32_t l);

/* Makes flags of a pattern's period p, if there is one: all but the last layer of every p;
 * first_full: all but the first. 0: all layers. */
void key_pattern(int32_t *v, int32_t n, int first_full);

/* Reads and checks all rows of the architecture's table, and the vocabulary's size. */
pith_status keys_read(struct arch_model *m, struct pith_error *err);
/* Of a synthetic model: fills what no one chose; writes what a reader would not find by itself. */
pith_status keys_synthesise(struct arch_model *m, struct gguf_writer *w, struct pith_error *err);

#endif
