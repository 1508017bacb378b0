/* model.h -- an open model: file, architecture with bound and placed weights, vocabulary, devices,
 * threads. Read-only after model_open, any number of sessions and threads, counted: the last
 * pith_model_close or session to go frees it.
 *
 *     open: gguf -> architecture (keys) -> vocabulary -> bind (every tensor checked against the
 *         table, all faults in one message)
 *           -> place (device of each layer, packed or mapped) -> load (pack in parallel, drop
 *               source pages; or map the packed copy that
 *           an earlier start kept; or leave packing to the steps and a thread beside,
 *           pack_later.h) -> ready */
#ifndef PITH_RUN_MODEL_H
#define PITH_RUN_MODEL_H

#include <pthread.h>
#include "arch/arch.h"
#include "base/machine/pool.h"
#include "base/machine/topology.h"
#include "graph/backend.h"
#include "run/model/chat.h"
#include "run/model/pack_later.h"
#include "run/model/packed_file.h"
#include "tensor/source.h"
#include "text/vocab/trie.h"

/* Devices that something is dealt out over by shares. */
struct takers {
    int device[MAX_DEVICES], n;
    double share[MAX_DEVICES], sum;
};

/* Of a matrix whose columns are the rows of others that make its input: one of these. Of all of
 * them: what they are divided at multiples of. */
struct column_pair {
    const struct tensor *before; /* NULL: it has none */
    int64_t unit;                /* 0: any */
};

/* Heads of a state (heads.c): can they be divided (`are`, unless `why` not), at multiples of what.
 */
struct heads_of {
    const char *why;
    int64_t unit;
    int are;
};

/* Rows (columns) of a weight that go along with each head of a state; -1: of none. */
struct by_heads {
    int32_t state, columns;
    int64_t each;
};

/* What it takes to bring a byte of a weight to a GPU, and to do an operation of a product here and
 * there, ns: measured for the first session that may bring some. */
struct upload_rates {
    int known;
    double bring, here, there;
};

/* Which weights are used as they lie in the file, whatever a kernel would rather have. */
enum from_file { FROM_FILE_NONE, FROM_FILE_EXPERTS, FROM_FILE_ALL };

struct pith_model {
    _Atomic(int) refs;
    struct upload_rates upload_rates; /* `placing` is held */
    pthread_mutex_t placing;      /* of placements, once the model is open */
    _Atomic(uint32_t) generation; /* rises as placements are replaced */
    struct mem_account account; /* its blocks, but for itself */
    struct arena arena;
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat_templates chat;
    _Atomic(struct trie *) trie; /* of the vocabulary, made when a grammar first wants it */
    struct arch_model arch;
    struct pith_model_params params;
    struct pool *pool;
    int n_threads, n_threads_prefill; /* by default; the pool has as many as the larger */
    int n_nodes;                      /* over which threads and weights are spread */
    int32_t node[NODES_MAX];          /* the kernel's numbers */
    struct device *devices[MAX_DEVICES];
    int n_devices;
    int32_t *layer_device;              /* [n_layer] */
    struct takers slicing;              /* who gets rows of each matrix, the main device last; n 0:
                                           matrices are whole */
    int by_columns;                     /* where there are pairs, since nobody minds other bits */
    struct column_pair *pair;           /* [n_tensors] of the file; NULL: nobody asked */
    struct heads_of *heads;             /* [n_states] of the architecture; NULL: as `pair` */
    struct by_heads *by_heads;          /* [n_tensors] of the file */
    int8_t *sent;                       /* [n_tensors] the device it was sent to by name; -1 */
    struct weight_buffers {
        struct buffer *buffer;
        int32_t n;
    } weights[MAX_DEVICES];              /* what is not in the file's pages */
    struct buffer *imports[MAX_DEVICES]; /* the file's parts, and the copy of packed weights */
    struct packed_file copy;            /* mapped: the packed weights are there instead */
    struct pack_later later;
    enum from_file in_file;             /* what is never packed */
    struct str note;                    /* what was asked for and not given, in sentences */
    pith_status (*fits)(struct pith_model *m, int *fits, struct pith_error *err); /* see below */
    /* Of each device what weights will take that are not there yet, while it is asked what fits. */
    uint64_t promised[MAX_DEVICES];
    const struct tensor *tok_embd;
    int gives_logits;        /* unless a session pools */
    int tied;                /* the embedding is the output matrix too */
    struct tensor **tensors; /* every bound weight */
    int32_t n_tensors;
    struct tensor **elsewhere; /* [n_elsewhere] weights of other stages */
    int32_t n_elsewhere;
    struct pith_model_info info;
    uint64_t fingerprint[2]; /* of files and overrides */
};

/* Is it one that model_open would open, by all that is told without reading weights? */
pith_status model_check(const char *path, struct pith_error *err);
/* Would devices with memory of their own have room for the session of m->params.session beside
 * `promised`? Weights have their places, and are not there. */
typedef pith_status (*model_fits)(struct pith_model *m, int *fits, struct pith_error *err);
/* fits: asked where gpu_layers is auto. */
struct pith_model *model_open(const char *path, const struct pith_model_params *params,
                              model_fits fits, struct pith_error *err);
struct pith_model *model_ref(struct pith_model *m);
void model_unref(struct pith_model *m);            /* NULL allowed */
uint64_t model_memory(const struct pith_model *m); /* bytes it holds that are no file's pages */
const struct trie *model_trie(struct pith_model *m, struct pith_error *err);

const struct backend *first_backend(void);

/* threads.c: counts and places of threads, from the parameters, the environment and the machine. */
pith_status model_open_threads(struct pith_model *m, struct pith_error *err);
/* Before anything is loaded: the pages of placed weights will come from the nodes of their readers.
 */
void model_spread_weights(struct pith_model *m);
/* pith_measure_threads */
pith_status machine_threads(int ms, struct pith_threads *out, struct pith_error *err);
/* Opens device i, counted through all backends. */
pith_status device_open_ith(int i, struct device **out, struct pith_error *err);
/* Limits of a device; n_threads of the host: of CPUs. */
pith_status machine_measure_on(struct device *d, int n_threads, int ms, struct pith_machine *out,
                               struct pith_error *err);
/* Limits of this machine by the first device (pith_machine_measure). */
pith_status machine_measure(int n_threads, int ms, struct pith_machine *out,
                            struct pith_error *err);

/* fingerprint.c: what identifies files, their headers and samples of their data; and fills
 * m->fingerprint. */
void files_fingerprint(const struct gguf *g, uint64_t h[2]);
uint64_t files_headers(const struct gguf *g); /* of the headers alone */
void model_fingerprint(struct pith_model *m);

/* bind.c: finds every tensor of the architecture's table in the file; all faults in one message. */
pith_status model_bind(struct pith_model *m, struct pith_error *err);
/* "[2, 3]", for messages; what does not fit is cut. */
void model_shape_text(char *out, size_t cap, int n, const int64_t *dims);
/* place.c: where each weight goes. Does one in blocks lie as rows of f16 on that device? */
int model_as_half(const struct pith_model *m, const struct tensor *t, int32_t device);
/* Is it in the mapped copy of packed weights? */
int model_in_copy(const struct pith_model *m, const struct placement *p);
pith_status model_place(struct pith_model *m, struct pith_error *err);
/* Of a model opened for a part of its visits: weights that nothing of them reads are no longer the
 * model's, but for their names (elsewhere). They are neither placed nor read. */
pith_status model_keep_stage(struct pith_model *m, struct pith_error *err);
void model_release_weights(struct pith_model *m);
/* Replaces placements of n weights, all at once; each is on the device that it names already, with
 * the same numbers. Sessions go over to them before their next step. The memory of the old ones
 * stays for those that have not, and that of the new ones is there as long as the model. */
struct replacement {
    struct tensor *tensor;
    struct placement to;
};
pith_status model_replace(struct pith_model *m, const struct replacement *r, int32_t n,
                          struct pith_error *err);
/* spread.c: the devices, m->n_devices of them, the first having every op. */
pith_status model_open_devices(struct pith_model *m, struct pith_error *err);
int devices_count(void); /* see pith_n_devices, pith_device_get */
pith_status device_info(int i, struct pith_device_info *out, struct pith_error *err);
pith_status device_measure(int i, int ms, struct pith_machine *out, struct pith_error *err);
/* Which device has which layer, at most `most` of them a GPU, and which weights were sent
 * elsewhere. Called again it begins anew, if slices are undone (slices.c). */
pith_status model_spread(struct pith_model *m, int32_t most, struct pith_error *err);
/* Layers of which as many as fit are to be on GPUs; 0: their number does not depend on that. */
int32_t model_auto_layers(const struct pith_model *m);
/* GPUs that matrices are divided over are made ready to bring values to each other. */
pith_status model_join(struct pith_model *m, struct pith_error *err);
/* Where what a session keeps will lie (struct state, device), once its types are chosen: with the
 * layer, or where all that reads and writes it can run. a: the model, or a view of it. */
pith_status model_place_states(struct pith_model *m, const struct arch_model *a,
                               struct state *states, struct pith_error *err);
/* Where each node runs: beside its states; where its weights were sent; on the device of its layer;
 * on the first, if that has no kernel for it. What is divided by rows becomes parts first. */
pith_status model_place_nodes(const struct pith_model *m, struct graph *g, struct pith_error *err);
/* The same of a placed graph for steps of many rows: products of all rows with weights that a CPU
 * has go to `device`, to which the weights are brought (tensor.h, brought), and what lies between
 * two such products with them. */
struct brought {
    int32_t n;                 /* products; 0: there are none */
    uint64_t bytes;            /* of their weights */
    double ops;                /* of a row in them */
    const struct tensor *most; /* the largest of these */
};
pith_status model_place_uploads(const struct pith_model *m, struct graph *g, int32_t device,
                                struct brought *out, struct pith_error *err);
/* The device of a layer, of the input side (-1), of the output side (n_layer). */
static inline int32_t model_layer_device(const struct pith_model *m, int32_t layer)
{
    int32_t n_layer = m->arch.hp.n_layer;
    return m->layer_device[layer < 0 ? 0 : layer < n_layer ? layer : n_layer - 1];
}
/* slices.c: rows or columns of matrices, experts of stacks over devices. How many of t's each of
 * m->slicing gets, and of how many in all; 0: it stays whole. */
int64_t model_slice_rows(const struct pith_model *m, const struct tensor *t,
                         int64_t rows[MAX_DEVICES]);
/* columns.c: notes the pairs of a graph, for PITH_SPLIT_TENSOR. */
void model_find_pairs(struct pith_model *m, const struct graph *g);
/* heads.c: `all` over t's devices by their shares, at multiples of unit. */
void model_deal(const struct takers *t, int64_t all, int64_t unit, int64_t n[MAX_DEVICES]);
/* The same: what of K and V is divided by heads, for PITH_SPLIT_TENSOR. Room for the notes, and
 * those of a graph. */
#define ONE_HEAD "one head of K and V"
pith_status model_heads_begin(struct pith_model *m, struct pith_error *err);
void model_find_heads(struct pith_model *m, const struct graph *g);
/* How many heads of a state of the architecture each of m->slicing gets, and of how many in all; 0:
 * they stay together, and *why says why (NULL: nobody would divide them). */
int64_t model_share_heads(const struct pith_model *m, int32_t state, int64_t heads[MAX_DEVICES],
                          const char **why);
/* The same of the rows (columns: 1) of t that go along with them. */
int64_t model_head_rows(const struct pith_model *m, const struct tensor *t,
                        int64_t rows[MAX_DEVICES]);
int model_head_columns(const struct pith_model *m, const struct tensor *t);
/* The architecture's states get those that have the heads of each device. */
pith_status model_share_states(struct pith_model *m, struct pith_error *err);
/* Makes the slices, weights of the model that were sent to their devices; and what there was before
 * them again. */
struct unsliced {
    struct tensor **tensors;
    int32_t n_tensors;
    struct state *states;
    int32_t n_states, cap_states;
};
pith_status model_slice(struct pith_model *m, struct pith_error *err);
void model_unslice(struct pith_model *m, const struct unsliced *before);
/* What is divided, and its bytes on each device; what could have been and why it is not. */
enum { SLICING_WHYS = 4 };
struct slicing {
    int32_t matrices, columns, stacks; /* by rows; by columns; by experts */
    int32_t layers;                    /* whose K and V are divided by heads */
    int32_t no_heads;                  /* .. are not, though that was asked for */
    const char *why_no_heads;          /* of the last of them */
    int32_t no_columns;                /* by rows, though columns were asked for */
    const char *why_no_columns;
    uint64_t bytes[MAX_DEVICES];
    struct {
        const char *why;
        int32_t n;
    } whole[SLICING_WHYS];
    int32_t n_whole;
};
void model_sliced(const struct pith_model *m, struct slicing *out);
/* Says which ops of a placed graph run elsewhere for want of a kernel; an error with `strict`. */
pith_status model_tell_of_gaps(struct pith_model *m, const struct graph *g, struct pith_error *err);
/* What the model computes, keeping its rows in `states`. To be freed whatever is returned. */
pith_status model_graph(struct pith_model *m, struct state *states, const struct arch_want *want,
                        struct graph *g, struct pith_error *err);
/* place.c: shows the placed graphs of all that sessions ask for; rank: of adapters, 0: none. */
typedef pith_status (*see_graph)(void *ctx, const struct graph *g, struct pith_error *err);
pith_status model_graphs(struct pith_model *m, int32_t rank, see_graph see, void *ctx,
                         struct pith_error *err);
/* load.c: the data. */
pith_status model_load(struct pith_model *m, struct pith_error *err);
/* Bytes [off, off + n) of a weight's source: whole pages of them are not needed any more, or soon
 * will be. */
void model_drop_source(const struct pith_model *m, const struct tensor *t, uint64_t off,
                       uint64_t n);
void model_want_source(const struct pith_model *m, const struct tensor *t, uint64_t off,
                       uint64_t n);

#endif
