/* arch.h -- what an architecture is: a descriptor of tables and one builder per layer. The tables
 * serve the loader (read, check shape and type, bind), `pith inspect`, and synthetic models; the
 * builder is the only code.
 *
 * A layer's weights are bound into a struct of tensor pointers; a tensor row says its name in the
 * file, where in the struct it goes, its symbolic shape, and when it belongs to the model (features
 * of the variant; optional). Symbolic dimensions are resolved per layer against the
 * hyper-parameters, so a mismatch can be reported before anything is built. */
#ifndef PITH_ARCH_ARCH_H
#define PITH_ARCH_ARCH_H

#include "format/gguf.h"
#include "graph/ops/move.h"
#include "graph/ops/rope.h"

enum { ROPE_SCALE_NONE, ROPE_SCALE_LINEAR, ROPE_SCALE_YARN };

/* Hyper-parameters, as read by the key tables; per-layer ones are arrays of n_layer. */
struct hparams {
    int32_t n_vocab, n_ctx_train, n_embd, n_layer;
    int32_t *n_head, *n_head_kv, *n_ff; /* [n_layer] */
    int32_t d_k, d_v;                   /* head dimensions */
    int32_t n_expert, n_expert_used, n_ff_exp;
    float norm_eps;
    int32_t window;    /* sliding window of windowed layers, 0: none */
    int32_t *windowed; /* [n_layer] 1: the layer sees only the window */
    int32_t n_rot;
    float rope_base, rope_base_swa, rope_factor, rope_attn_factor;
    int32_t rope_scaling, rope_ctx_orig;
    float yarn_ext, yarn_attn, yarn_beta_fast, yarn_beta_slow;
    float attn_softcap, logit_softcap;
    int32_t pooling; /* enum pith_pooling; causal from the variant or the file */
    int32_t causal;
};

/* Symbolic dimensions of tensor rows. */
enum dim {
    DIM_END,
    DIM_E,
    DIM_V,
    DIM_Q,
    DIM_K,
    DIM_VV,
    DIM_O,
    DIM_QKV,
    DIM_D,
    DIM_F,
    DIM_X,
    DIM_FX,
    DIM_ROT2,
    DIM_ANY,
    DIM_FAMILY /* from here on dimensions of the family's own (struct arch, dim) */
};

struct tensor_spec {
    const char *name; /* "attn_q.weight"; of a layer: "blk.N." goes before it */
    int layer;        /* 1: one per layer */
    size_t field;     /* offset of the struct tensor * in the layer or model struct */
    uint32_t need,
        unless; /* feature bits: belongs to the model when all of need and none of unless are set */
    int optional;
    int dims[4]; /* enum dim or the family's; C order, DIM_END-terminated */
    enum tensor_role role;
    /* Optional rows of one group belong together: a file has all of them, in every layer that uses
     * them, or none. 0: a row of its own. */
    int group;
    float centre; /* of a random model's values; 0: as usual (synth.c) */
};

/* A layer keeps up to this many states, in slots that the family counts. */
enum { STATE_SLOTS = 6 };

struct arch_model;

struct arch {
    const char *name;
    uint32_t features, expert_feature; /* expert_feature: set when the model has experts */
    int windowed;                      /* some layers see a window only */
    const void *variant;               /* of the family */
    size_t layer_bytes, model_bytes;   /* structs of tensor pointers */
    const struct tensor_spec *tensors; /* ends with name NULL */
    int64_t (*dim)(const struct arch_model *m, int d, int32_t l); /* of DIM_FAMILY and above */
    /* Reads and checks the hyper-parameters. */
    pith_status (*hparams)(struct arch_model *m, const struct gguf *g, struct pith_error *err);
    /* A synthetic model: chooses what the family has beside the common hyper-parameters (NULL:
     * nothing); writes the keys that hparams reads. */
    pith_status (*synth)(struct arch_model *m, struct pith_error *err);
    void (*synth_keys)(const struct arch_model *m, struct gguf_writer *w);
    /* Once the weights are bound, before they are placed: constants that depend on them. */
    pith_status (*ready)(struct arch_model *m, struct pith_error *err);
    /* Tells what the layers keep, by arch_state and arch_share. */
    void (*states)(struct arch_model *m);
    void (*build)(const struct arch_model *m, struct graph *g);
};

/* A model's architecture with its weights bound; the arena owns arrays, tensors and rope tables. */
struct arch_model {
    const struct arch *arch;
    struct arena *arena;
    struct hparams hp;
    uint32_t features;            /* of the arch, plus what the file's tensors show */
    uint32_t *layer_features;     /* [n_layer] besides, of each layer; NULL: none */
    void *family;                 /* the family's own hyper-parameters */
    void *model;                  /* model-level tensor pointers */
    void *layers;                 /* n_layer times layer_bytes */
    const struct rope_set **rope; /* [n_layer]; that of K, unless a state has its own */
    struct state *states;         /* [n_states] what a sequence keeps */
    int32_t n_states, cap_states;
    int32_t (*state_of)[STATE_SLOTS]; /* [n_layer] what each layer names; -1: nothing */
    enum pool_kind pool;              /* of the embedding result */
    int want_logits, want_embd, pooled;
};

const struct arch *arch_find(const char *name); /* NULL: unknown */
extern const struct arch *const arch_list[];    /* NULL-terminated */

/* Reads the architecture's keys; the unknown one lists the known. */
pith_status arch_open(struct arch_model *m, const struct gguf *g, struct arena *arena,
                      struct pith_error *err);
/* Once the weights are bound: what depends on them. */
pith_status arch_ready(struct arch_model *m, struct pith_error *err);
/* Does the row belong to this model, in layer l (before optional ones are looked up)? Resolved
 * shape of it; returns n_dims. l: -1 none */
int arch_tensor_used(const struct arch_model *m, const struct tensor_spec *t, int32_t l);
int arch_tensor_dims(const struct arch_model *m, const struct tensor_spec *t, int32_t l,
                     int64_t dims[4]);
/* The numbers of a vector as the file has them, for constants of the host; NULL: no memory. */
const float *arch_floats(const struct arch_model *m, const struct tensor *t);
struct tensor **arch_tensor_slot(const struct arch_model *m, const struct tensor_spec *t,
                                 int32_t l);

/* For states functions: layer l keeps s (its layer is set here) and calls it `slot`; or it names
 * the state that layer `of` calls so. */
void arch_state(struct arch_model *m, int32_t l, int slot, struct state s);
void arch_share(struct arch_model *m, int32_t l, int slot, int32_t of);
/* The state that layer l calls so, to be read by ops and changed by ready functions. */
static inline struct state *arch_state_of(const struct arch_model *m, int32_t l, int slot)
{
    return &m->states[m->state_of[l][slot]];
}

/* Key readers for hparams functions: "ARCH.suffix". Sticky in *err like everything here: after a
 * failure they do nothing. */
struct keys {
    const struct gguf *g;
    const char *arch;
    struct pith_error *err;
    pith_status st;
};
uint32_t key_u32(struct keys *k, const char *suffix, int64_t lo, int64_t hi); /* required */
uint32_t key_u32_or(struct keys *k, const char *suffix, int64_t lo, int64_t hi, uint32_t fallback);
float key_f32(struct keys *k, const char *suffix);
float key_f32_or(struct keys *k, const char *suffix, float fallback);
int key_bool_or(struct keys *k, const char *suffix, int fallback);
/* A scalar for all layers or an array of n. */
int32_t *key_per_layer(struct keys *k, struct arena *a, const char *suffix, int32_t n, int64_t lo,
                       int64_t hi, int64_t fallback);

/* The vocabulary's size is the embedding's: the key is not always there, and the tokenizer may be
 * shorter. */
int32_t key_vocab(struct keys *k);
/* All rope.* keys; base_swa: default base of windowed layers, 0: as the others. d_k and n_ctx_train
 * are set. */
void key_rope(struct keys *k, struct hparams *hp, float base_swa);
int arch_has_tensor(const struct gguf *g, const char *name);

/* Limits of what a file may ask for. */
enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1024,
    MAX_EMBD = 1 << 20,
    MAX_FF = 1 << 22,
    MAX_HEAD_DIM = 4096,
    MAX_EXPERTS = 4096
};

/* Rope constants of one set of layers; factors: [n_rot/2] divisors or NULL. NULL when memory is
 * short. */
struct rope_set *rope_set_new(struct arena *a, const struct hparams *hp, int neox, float base,
                              int scaled, const float *factors);

#endif
