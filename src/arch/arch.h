/* arch.h -- what an architecture is: tables of its keys and tensors, the states its layers keep,
 * and three short functions that build its graph. The tables serve the loader (read, check shape
 * and type, bind), `pith inspect --arch` and synthetic models; the functions are the only code.
 *
 * A family's file has, in this order: what it computes (a comment with the paper), its hyper-
 * parameters, its weights, their tables, `derive` (checks, and which features this model has), its
 * states, begin, visit and end. docs/adding-an-architecture.md walks through one.
 *
 * Layers' weights are bound into a struct of tensor pointers; a tensor row says its name in the
 * file, where in the struct it goes, its symbolic shape, and when it belongs to the model. Symbolic
 * dimensions are resolved per layer against the hyper-parameters, so a mismatch is reported before
 * anything is built. */
#ifndef PITH_ARCH_ARCH_H
#define PITH_ARCH_ARCH_H

#include "arch/hparams.h"
#include "format/gguf.h"
#include "nn/nn.h"

struct arch_model;

/* ---------------------------------------------------------------- tensors */

/* Symbolic dimensions of tensor rows. */
enum dim {
    DIM_END,
    DIM_E, /* embedding; twice that */
    DIM_E2,
    DIM_V, /* vocabulary */
    DIM_SAID, /* rows of the output matrix: mostly the same */
    DIM_Q, /* rows of q: heads x d_k; k; v; what attention gives; q, k and v */
    DIM_K,
    DIM_VV,
    DIM_O,
    DIM_QKV,
    DIM_D, /* d_k */
    DIM_H, /* heads; of k and v */
    DIM_G,
    DIM_F, /* feed-forward; twice that */
    DIM_F2,
    DIM_X, /* experts; feed-forward of one; twice that; of the shared ones */
    DIM_FX,
    DIM_FX2,
    DIM_FS,
    DIM_FS2,
    DIM_ROT2, /* pairs that are rotated */
    DIM_CTX,  /* positions trained */
    DIM_ONE,
    DIM_ANY,
    DIM_FAMILY /* from here on dimensions of the family's own (struct arch, dim) */
};

struct tensor_spec {
    const char *name; /* "attn_q.weight"; of a layer: "blk.N." goes before it */
    int layer;        /* 1: one per layer; 0: one of the model */
    const char *stack; /* goes before "blk.N." where a file has more than one, or NULL */
    int io;           /* 1: of struct arch_io */
    size_t at;        /* of the struct tensor * in the layer's, the model's or the io struct */
    /* Feature bits: it belongs to the model (in a layer: to the layer) when all of need and none of
     * unless are set. */
    uint64_t need, unless;
    int optional;
    /* Optional rows of one group belong together: a file has all of them, in every layer that uses
     * them, or none. 0: a row of its own. */
    int group;
    int dims[4]; /* enum dim or the family's; C order, DIM_END-terminated */
    enum tensor_use use;
    float centre; /* of a random model's values; 0: as usual (run/model/synth.c) */
};
/* Table rows: L("attn_q.weight", wq, DIM(DIM_Q, DIM_E), .need = F_ATTN) with
 *   #define L(name_, field, ...) ROW(struct my_layer, name_, field, .layer = 1, __VA_ARGS__)
 * and IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING). */
#define ROW(type, name_, field, ...)                                                               \
    {                                                                                              \
        .name = name_, .at = offsetof(type, field), __VA_ARGS__                                    \
    }
#define DIM(...)              .dims = {__VA_ARGS__}
#define IO(name_, field, ...) ROW(struct arch_io, name_, field, .io = 1, __VA_ARGS__)
/* A model's two ends: what says tokens is the embedding where there is no output matrix. */
#define IO_ENDS                                                                                    \
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),                 \
        IO("output_norm.weight", output_norm, DIM(DIM_E)),                                         \
        IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT)
/* The head of models that rank texts. */
#define IO_RANK                                                                                    \
    IO("cls.weight", cls, DIM(DIM_ANY, DIM_E), .optional = 1),                                     \
        IO("cls.bias", cls_b, DIM(DIM_ANY), .optional = 1),                                        \
        IO("cls.norm.weight", cls_norm, DIM(DIM_E), .optional = 1),                                \
        IO("cls.output.weight", rank, DIM(DIM_ANY, DIM_E), .optional = 1),                         \
        IO("cls.output.bias", rank_b, DIM(DIM_ANY), .optional = 1)
/* What makes rows of embeddings of a tower's rows. */
#define IO_PROJECTOR                                                                               \
    IO("mm.0.weight", mm_in, DIM(DIM_ANY, DIM_ANY), .optional = 1),                                \
        IO("mm.0.bias", mm_in_b, DIM(DIM_ANY), .optional = 1),                                     \
        IO("mm.2.weight", mm_out, DIM(DIM_E, DIM_ANY), .optional = 1),                             \
        IO("mm.2.bias", mm_out_b, DIM(DIM_E), .optional = 1)

/* What nearly every model has at its two ends. The stack (stack.c) embeds by it and gives the
 * output; absent ones are NULL, an absent output matrix is the embedding. */
struct arch_io {
    struct tensor *tok_embd, *tok_norm, *tok_norm_b, *pos_embd;
    struct tensor *output_norm, *output_norm_b, *output, *output_b;
    struct tensor *rope_freqs, *rope_long, *rope_short; /* divisors of frequencies */
    struct tensor *dense_2, *dense_2_b, *dense_3; /* embeddings go through them at the end */
    struct tensor *cls, *cls_b, *cls_norm; /* the head that scores a pooled row: a layer of its */
    struct tensor *rank, *rank_b;          /* own, and the labels */
    struct tensor *mm_in, *mm_in_b, *mm_out, *mm_out_b; /* the projector's */
};

/* A block behind the layers that predicts further on [DeepSeek-V3, arXiv:2412.19437, sec. 2.2]:
 * h = eh_proj [norm(embedding), norm(hidden)], a layer, a head of its own or the model's. The
 * layer's tensors are those of layer n_layer + k, as far as the file has them. Nothing of it is
 * placed unless drafts are to be made (struct arch_model, drafts). */
struct arch_nextn {
    struct tensor *eh_proj, *enorm, *hnorm; /* [E, 2 E], [E], [E] */
    struct tensor *embed, *head;            /* [V, E]; NULL: the model's */
    struct tensor *norm, *out_norm;         /* [E]; both NULL: the model's */
};
extern const struct tensor_spec arch_nextn_tensors[]; /* of that struct; ends with name NULL */

/* ---------------------------------------------------------------- graphs */

/* What crosses from a visit to the next, and so from device to device: x[0] is the residual stream;
 * the others are the family's, NULL where it has none. */
enum { CARRY_MAX = 6 };
struct carry {
    node x[CARRY_MAX];
};

/* A role of a model has a graph and a plan of its own. A visit runs some layers' weights once;
 * the states it names are its own. Any of them may be NULL but `visit`.
 *   begin   finds the embedding in x[0] (io->tok_embd times hp.embd_scale)
 *   visit   in the last one nn_tail leaves only rows that an output asks for
 *   end     leaves in x[0] what is an embedding, or is multiplied by the output matrix; NULL: the
 *           norm of hp.norm with io->output_norm. The encoder's writes the memory that the decoder
 *           sees (states of CROSS rows), and leaves in x[0] what that is made of */
struct arch_role {
    void (*begin)(const struct arch_model *m, struct graph *g, struct carry *c);
    void (*visit)(const struct arch_model *m, struct graph *g, int32_t i, struct carry *c);
    void (*end)(const struct arch_model *m, struct graph *g, struct carry *c);
    const char *stack; /* goes before "blk.N." in the names of nodes, or NULL */
    const char *carried[CARRY_MAX]; /* names of values of the carry that taps can ask for; x[0], the
                                       residual stream, needs none */
};
#define ROLE(...) (&(const struct arch_role){__VA_ARGS__})

/* A stage: visits [first, end) of the decoder, opened by themselves for a device or a process; end
 * 0: all there are. One that does not begin at 0 is given the carry, one that ends before the last
 * hands it on: its values side by side in one row, value k n[k] columns wide, 0: there is none.
 * What is no value of rows crosses no cut (stage.c), so a visit makes it anew where it finds NULL:
 * t5's table of distances. */
struct arch_cut {
    int64_t n[CARRY_MAX], cols; /* cols: of all */
};
struct arch_stage {
    int32_t first, end;
    struct arch_cut in, out;
};

/* A draft head's rows are a token with the vector of the row before it; what begins and ends its
 * graph is the same for all families, which say its visit. A projector's rows are vectors of
 * another width, which it makes embedding rows of (roles.c). */
enum role { ROLE_DECODER, ROLE_ENCODER, ROLE_DRAFT, ROLE_PROJECTOR, N_ROLES };

/* A value that is given out on its way through a role's graph (tap.c): value `value` of the carry
 * as a visit is given it; visit n of n is what the last one leaves, and TAP_END x[0] behind the
 * role's end. Of all rows of a step, also those that no output is asked of. */
enum { TAP_END = -1, TAP_NAME = 48 };
struct arch_tap {
    enum role role;
    int32_t visit;
    int value;
    char name[TAP_NAME];
};

/* What a graph is to give: logits, or embeddings (of each row, or pooled). */
struct arch_want {
    enum role role;
    int32_t draft; /* ROLE_DRAFT: which head */
    int pooled;
    enum pool_kind pool;
    int rank; /* scores of the pooled rows instead */
    int logits;
    int32_t adapter_rank; /* of adapters that can be added to products, at most; 0: none */
    const struct arch_tap *taps; /* [n_taps] of all roles: tap i of the graph of its role */
    int32_t n_taps;
};

/* ---------------------------------------------------------------- an architecture */

/* A visit names up to this many states, in slots that the family counts. */
enum { STATE_SLOTS = 6 };

struct arch {
    const char *name;
    const char *layers; /* what goes before ".N." in the names of layers' tensors; NULL: "blk" */
    const void *variant;                           /* of the family */
    const struct key_spec *keys;                   /* ends with suffix NULL */
    const struct tensor_spec *tensors;             /* ends with name NULL */
    size_t family_bytes, layer_bytes, model_bytes; /* own hyper-parameters; structs of tensors */
    int64_t (*dim)(const struct arch_model *m, int d, int32_t l); /* of DIM_FAMILY and above */
    /* Tensors that this architecture calls otherwise than its table: name in the table, name in
     * the file, ..., NULL. */
    const char *const *renamed;
    /* Beginnings of names of tensors that a file may have and that nothing here uses: "blk.N." is
     * not told. NULL-terminated; NULL: none. */
    const char *const *unused;
    /* A synthetic model: changes what the key rows chose (NULL: nothing). */
    pith_status (*synth)(struct arch_model *m, struct pith_error *err);
    /* Once the keys are read: checks what they say together; sets features of model and layers. */
    pith_status (*derive)(struct arch_model *m, struct pith_error *err);
    /* Tells what each visit keeps, by arch_state and arch_share. NULL: nothing. */
    void (*states)(struct arch_model *m);
    /* Once the weights are bound, before they are placed: constants that depend on them. */
    pith_status (*ready)(struct arch_model *m, struct pith_error *err);
    const struct arch_role *role[N_ROLES]; /* ROLE(..) each; NULL: the family has nothing to say */
};

/* A model's architecture with its weights bound; the arena owns arrays, tensors and rope sets. */
struct arch_model {
    const struct arch *arch;
    struct arena *arena;
    const struct gguf *gguf; /* while keys are read; NULL: a synthetic model is made */
    /* Of a synthetic model, NULL-terminated or NULL: "suffix=number" of keys, and optional tensors
     * by their names in the table. */
    const char *const *asked_keys, *const *asked_tensors;
    struct hparams hp;
    uint64_t features;        /* the family's bits */
    uint64_t *layer_features; /* [n_layer] besides, of each layer */
    void *family;             /* the family's own hyper-parameters */
    struct arch_io io;
    void *model;                  /* model-level tensor pointers of the family's own */
    void *layers;                 /* n_layer + n_nextn times layer_bytes */
    struct arch_nextn *nextn;     /* [n_nextn] */
    const struct rope_set **rope; /* [n_layer + n_nextn]; how K is rotated, unless a state has its
                                     own */
    int32_t n_visits;             /* the decoder's; layers, unless derive says otherwise, */
    int32_t *layer_of;            /* [n_visits] and which each is of; NULL: visit i of layer i */
    int32_t n_encoder_visits;     /* of layers 0, 1 ..; 0: there is no encoder beside the decoder */
    int32_t start_token;          /* that a decoder with an encoder begins with */
    struct arch_stage stage;      /* which of the visits there are: all, or a part */
    struct state *states;         /* [n_states] what a sequence keeps */
    int32_t n_states, cap_states;
    /* [the greater number of visits] what each visit names, of both roles; -1: nothing */
    int32_t (*state_of)[STATE_SLOTS];
    /* Roles with states of their own see the model as one of its own, with the same weights
     * (roles.c): visits, their layers and states are theirs. */
    enum role runs;            /* ROLE_DECODER: the model itself, and its encoder */
    int drafts;                /* 1: what predicts further on is to be run */
    struct arch_model *draft;  /* [n_nextn], NULL: nothing is run of these */
    struct arch_model *projector; /* NULL: the file has none; hp.n_embd is its rows' width */
    const struct arch_nextn *head; /* ROLE_DRAFT: its own */
};

const struct arch *arch_find(const char *name); /* NULL: unknown */
const struct arch_role *arch_role(const struct arch_model *m, enum role role); /* never NULL */
extern const struct arch *const arch_list[];    /* NULL-terminated */
/* PITH_OK, or a message that names it. */
pith_status arch_known(struct slice name, struct pith_error *err);

/* Reads the architecture's keys; the unknown one lists the known. */
pith_status arch_open(struct arch_model *m, const struct gguf *g, struct arena *arena,
                      struct pith_error *err);
/* The same of a synthetic model: arch, arena and sizes (rows with .size) stand in m; writes its
 * keys.
 */
pith_status arch_open_synthetic(struct arch_model *m, struct gguf_writer *w,
                                struct pith_error *err);
/* Once the weights are bound: what depends on them. */
pith_status arch_ready(struct arch_model *m, struct pith_error *err);
/* States without a rotation of their own get their layer's. */
void arch_turn_states(struct arch_model *m);
/* What a graph of this role is built of; NULL: the model has no such role. */
const struct arch_model *arch_view(const struct arch_model *m, enum role role, int32_t draft);
/* For arch_ready: the views of m. */
pith_status arch_make_views(struct arch_model *m, struct pith_error *err);
/* For arch_build: what is the same in all families that have a role (roles.c). A tower is a row. */
struct arch_role_row {
    node (*rows)(const struct arch_model *m, struct graph *g); /* of the step, as x[0] */
    void (*end)(const struct arch_model *m, struct graph *g, struct carry *c); /* where the family
                                                                                  says none */
    int encodes; /* 1: whole texts, no row is left out, what comes out is states and taps */
    int dense;   /* 1: the model's dense layers come behind its embeddings */
};
extern const struct arch_role_row arch_roles[N_ROLES];
/* The scores that its head gives; 0: it has none. */
int32_t arch_n_labels(const struct arch_model *m);
/* The tap of a name: "visit.3", "visit.3.NAME", "end", and with "encoder." before it. PITH_RANGE
 * tells what there is. */
pith_status arch_tap_find(const struct arch_model *m, const char *name, struct arch_tap *out,
                          struct pith_error *err);
/* stage.c. take: the model is opened for visits [first, first + n), n 0: to the last; its keys are
 * read. ready: the weights are bound; what crosses the cuts is known then, and states of other
 * visits are gone. PITH_RANGE: there are no such visits; PITH_UNSUPPORTED: no cut can be there. */
pith_status arch_stage_take(struct arch_model *m, int32_t first, int32_t n, struct pith_error *err);
pith_status arch_stage_ready(struct arch_model *m, struct pith_error *err);
/* The layers of its visits: [*lo, *hi), those between included. */
void arch_stage_layers(const struct arch_model *m, int32_t *lo, int32_t *hi);
static inline int32_t arch_stage_end(const struct arch_model *m)
{
    return m->stage.end ? m->stage.end : m->n_visits;
}
/* It has the last visit: embeddings or logits come of it. Else the carry does. */
static inline int arch_ends(const struct arch_model *m)
{
    return arch_stage_end(m) == m->n_visits;
}
static inline int arch_is_part(const struct arch_model *m)
{
    return m->stage.first > 0 || !arch_ends(m);
}
/* Columns of the rows that a step may bring: embedding rows, vectors, the carry. */
static inline int64_t arch_row_cols(const struct arch_model *m)
{
    return m->stage.first ? m->stage.in.cols : m->hp.n_embd;
}
/* What crosses the cuts before these visits, in order; the graph is built for nothing else. */
pith_status arch_cuts(const struct arch_model *m, const int32_t *visit, int n, struct arch_cut *out,
                      struct pith_error *err);

/* The graph of a role. */
void arch_build(const struct arch_model *m, const struct arch_want *want, struct graph *g);

/* Does the row belong to this model, in layer l (before optional ones are looked up)? Resolved
 * shape of it; returns n_dims. l: -1 none */
int arch_tensor_used(const struct arch_model *m, const struct tensor_spec *t, int32_t l);
int arch_tensor_dims(const struct arch_model *m, const struct tensor_spec *t, int32_t l,
                     int64_t dims[4]);
struct tensor **arch_tensor_slot(struct arch_model *m, const struct tensor_spec *t, int32_t l);
/* Its name in the file. */
void arch_tensor_name(const struct arch_model *m, const struct tensor_spec *t, int32_t l, char *out,
                      size_t cap);

/* For derive functions. The file has this tensor (of layer l, -1: of the model); a synthetic model
 * has what `synth` says, and what was asked for. */
int arch_has(const struct arch_model *m, int32_t l, const char *name, int synth);
/* Who asked for the synthetic model named this tensor. */
int arch_tensor_asked(const struct arch_model *m, const char *name);
/* Rows of a matrix that the file has; 0: it has none, or the model is synthetic. */
int64_t arch_rows(const struct arch_model *m, int32_t l, const char *name);
/* The numbers of a vector as the file has them, for constants of the host; NULL: no memory. */
const float *arch_floats(const struct arch_model *m, const struct tensor *t);
/* The file's name, for messages. */
const char *arch_path(const struct arch_model *m);

/* For states functions: visit i keeps s and calls it `slot`; or it names what visit `of` calls so.
 */
void arch_state(struct arch_model *m, int32_t i, int slot, struct state s);
void arch_share(struct arch_model *m, int32_t i, int slot, int32_t of);
/* Layers of the file: those that are run, and those that predict further on. */
static inline int32_t arch_blocks(const struct arch_model *m)
{
    return m->hp.n_layer + (m->runs == ROLE_DECODER ? m->hp.n_nextn : 0);
}
static inline int32_t arch_layer_of(const struct arch_model *m, int32_t i)
{
    return m->layer_of ? m->layer_of[i] : i;
}
static inline struct state *arch_state_of(const struct arch_model *m, int32_t i, int slot)
{
    return &m->states[m->state_of[i][slot]];
}
/* K and V of layer l, all seen or those of a window (by hp). */
struct state arch_kv(const struct hparams *hp, int32_t l);

static inline const void *arch_layer(const struct arch_model *m, int32_t l)
{
    return (const uint8_t *)m->layers + (size_t)l * m->arch->layer_bytes;
}

/* ---------------------------------------------------------------- sizes.c */

/* What families decide by a model's size. */
enum by_size {
    SIZE_ROTATES,         /* positions are rotated, */
    SIZE_ALIBI,           /* or leave scores by their distance; models of neither size have none */
    SIZE_SCORES_BY_WIDTH, /* scores are over the root of n_embd / heads, not of the head's size */
    SIZE_WINDOWS,         /* there are some */
    SIZE_BARE_HEADS,      /* q and k are not normalised */
    SIZE_ONE_Q,           /* q is one product, not two */
    SIZE_SIGMOID,         /* experts are chosen by it, if the file does not say */
    SIZE_SHARED_CHOICE    /* most layers have an earlier one's choice of slots */
};
/* Does it, with so many layers? */
int arch_by_size(const struct arch_model *m, enum by_size what, int32_t n_layer);

/* ---------------------------------------------------------------- rope.c */

/* Constants of rotated positions for some layers. */
struct rope_params {
    int32_t n_rot;
    int neox; /* halves of a head are paired, not neighbours */
    float base;
    int scaled;           /* by hp.rope_scaling, and hp.rope_attn_factor long */
    const float *factors; /* [n_rot / 2] divisors, or NULL; */
    const float *far;     /* [n_rot / 2] those of contexts longer than hp.rope_ctx_orig, or NULL */
    const uint8_t *axis; /* [n_rot / 2] which of the four positions turns a pair; NULL: the first */
};
/* NULL: memory is short. */
const struct rope_set *rope_set_new(struct arch_model *m, const struct rope_params *p);
/* The context that it is trained for with the first set of its layers; and whether one of n_ctx
 * takes another. */
int32_t rope_near(const struct arch_model *m);
int rope_is_far(const struct arch_model *m, int32_t n_ctx);
/* Two sets of divisors: the file says so, or has them, as Phi-3's do that name no type. */
int rope_is_long(const struct arch_model *m);
/* The divisors that the file has, checked, into p: io->rope_freqs, or the short ones and the long
 * ones; nothing where there are none. */
pith_status rope_factors(const struct arch_model *m, struct rope_params *p, struct pith_error *err);
/* Which position turns a pair, by rope.dimension_sections (M-RoPE); NULL: there are none. */
const uint8_t *rope_axis(const struct arch_model *m, int interleaved);

#endif
