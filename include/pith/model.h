/* model.h -- devices and models. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_MODEL_H
#define PITH_MODEL_H

#include "pith/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- devices */

struct pith_device_info {
    size_t size;
    char name[32];    /* "CPU", "vulkan0" */
    char about[96];   /* what its maker calls it */
    char backend[16]; /* "cpu", "vulkan" */
    char kind[16];    /* "cpu", "gpu", "integrated" (shares the machine's memory), "software" */
    uint64_t total_bytes, free_bytes; /* of memory, UINT64_MAX: not known */
    /* What it has not, and kernels would use: features and extensions as their makers call them,
     * with ", " between them; those that a setting hides with its name behind. "": nothing. */
    char lacks[256];
};
#define PITH_DEVICE_INFO_INIT PITH_SIZED(struct pith_device_info)
PITH_API int32_t pith_n_devices(void);
/* Opens the device for the time of the call. PITH_RANGE: there are not so many; else what keeps it
 * from being opened. */
PITH_API pith_status pith_device_get(int32_t i, struct pith_device_info *out,
                                     struct pith_error *err);

/* ---------------------------------------------------------------- models */

typedef struct pith_model pith_model;

typedef enum pith_weights {
    PITH_WEIGHTS_AUTO,
    PITH_WEIGHTS_MAPPED,
    PITH_WEIGHTS_PACKED,
    PITH_WEIGHTS_LATER
} pith_weights;

/* Memory nodes. spread: threads over all of them, each reading rows of weights and heads of K and V
 * in its own memory first; isolate: those of the opening thread only. */
typedef enum pith_numa { PITH_NUMA_OFF, PITH_NUMA_SPREAD, PITH_NUMA_ISOLATE } pith_numa;

enum { PITH_UPLOAD_AUTO = 0, PITH_UPLOAD_NONE = -1 };
enum { PITH_RECORDINGS_NONE = -1 };
/* auto: as many as fit into the memory that is free, beside a session (`session` below). */
enum { PITH_GPU_LAYERS_AUTO = 0, PITH_GPU_LAYERS_NONE = -1, PITH_GPU_LAYERS_ALL = INT32_MAX };
/* By layers; one GPU; rows of each matrix and experts, all else on one GPU; the same, and heads
 * with their cache, and columns where the input is divided: less is brought, bits are others. */
typedef enum pith_split {
    PITH_SPLIT_LAYER,
    PITH_SPLIT_NONE,
    PITH_SPLIT_ROW,
    PITH_SPLIT_TENSOR
} pith_split;

struct pith_session_params; /* session.h */
struct pith_model_params {
    size_t size;
    /* mapped: straight from the file's pages; packed: interleaved for the kernels, before
     * pith_model_open returns; later: the same, by the steps that first use them and by a thread of
     * lower priority beside, so the model is open at once and its file is read until then. A
     * copy that is to be kept and can be (cache_dir), and check_tensors, make packed of later.
     * auto: packed, of models from 32 MiB on later.
     * Packed ones that do not fit into the memory that is left are mapped, experts alone if that
     * is enough, which pith_model_info.note tells; PITH_NOMEM with strict, or where all memory is
     * less than they have. */
    pith_weights weights;
    int32_t n_threads; /* 0 = PITH_THREADS, else one per (fast) core this process may use, within
                          its CPU quota */
    int32_t n_batch;   /* most tokens in one step, default 512 */
    int32_t
        n_outputs; /* most rows of logits in one step, default as memory allows (64 .. n_batch) */
    int32_t vocab_only;    /* 1: of any architecture, no tensors are read; only text functions and
                              metadata (info: arch, name, n_vocab) work */
    int32_t check_tensors; /* 1: refuse weights whose scales are NaN or infinite */
    int32_t observe; /* 1: compile the plan unfused so that pith_session_observe sees every op (same
                        bits) */
    int32_t strict;  /* 1: refuse instead of falling back to a slower kernel or device */
    int32_t
        reference; /* 1: run every op with the plain C reference, straight from the file's layout */
    /* Called from the opening thread; fraction 0..1 of bytes. Returning 0 cancels: everything is
     * freed, PITH_CANCELLED. */
    int (*progress)(void *ctx, const char *stage, double fraction, uint64_t bytes);
    void *progress_ctx;
    const char *const
        *overrides; /* NULL-terminated list of "key=type:value", type = int | float | bool | str */
    /* A folder that is there: a copy of the packed weights is kept in it, as large as they are, and
     * mapped by later opens, which start at once then. NULL: none. A copy that cannot be used or
     * kept is no error; pith_model_info.note tells. */
    const char *cache_dir;
    uint64_t cache_limit;      /* bytes of such copies in the folder, 0 = 32 GiB; the one unused for
                                  longest goes first */
    int32_t n_threads_prefill; /* of steps with more than 16 rows; 0 = PITH_THREADS_PREFILL, else
                                  n_threads when given, else all cores */
    pith_numa numa;
    /* Where threads run: NULL or "none"; "spread" over nodes and cores; "compact", node by node; or
     * processors, "0-3,8". The thread that calls is moved for the time of a step. Workers inherit
     * the opening thread's priority. */
    const char *affinity;
    /* Devices. Layers go to GPUs, the last ones first; a layer's states lie where it is. Names are
     * those of pith_device_get; PITH_RANGE for one that is not there. */
    const char *devices;  /* "CPU,vulkan0": those that may be used, beside the first CPU; NULL: all
                             GPUs, integrated ones where there is no other, software never */
    int32_t gpu_layers;   /* how many: PITH_GPU_LAYERS_AUTO, _NONE, _ALL, or a number */
    pith_split split;     /* over several GPUs */
    const char *tensor_split; /* "3,1": share of the layers (of the rows, PITH_SPLIT_ROW, _TENSOR)
                                 of each GPU (without any: of each CPU device); NULL: by the memory
                                 that is free */
    int32_t main_gpu;         /* by its number among the GPUs: the one of PITH_SPLIT_NONE, and that
                                 of all but others' rows of PITH_SPLIT_ROW, _TENSOR */
    const char *const *placements; /* NULL-terminated list of "PATTERN=DEVICE": weights whose names
                                      hold a match (POSIX extended regular expression), and the
                                      products with them; the first that matches counts. Rules may
                                      stand in one text, with commas between them */
    int32_t cpu_experts; /* experts of so many first layers stay on the CPU, -1: of all */
    /* 1: on every device a token's logits are the same bits whatever else is in its steps and
     * however its prompt was cut into them. 0: devices may have kernels for steps of many rows that
     * add in another order; pith_report names them. The CPU has none. */
    int32_t reproducible;
    /* 1: experts that are pages of a file are read when they are touched, and not asked for before
     * that (pith_session_read_ahead). */
    int32_t no_read_ahead;
    /* 1: blocks behind the layers that predict further on (pith_model_info.n_nextn) are loaded,
     * too, for sessions of draft heads (pith_session_params.role). PITH_UNSUPPORTED: the file has
     * none, or its family's cannot be run; PITH_MISSING: one lacks tensors. */
    int32_t draft_heads;
    /* The model as a stage: visits [first_visit, first_visit + n_visits) alone, n_visits 0: to the
     * last. A visit runs a layer once; in nearly all models visit i is layer i. Weights, states and
     * caches are those of these visits, with what stands before the first one or behind the last.
     * Sessions of the stages of a model get the same batches, in the same order, but
     *   where first_visit > 0 every row has its row of pith_batch.embd, [n, carry_in]: what the
     *       stage before gave out for it. Tokens, positions and all else are given as to the first
     *   before the last visit every row gives output, whatever is wanted: pith_embedding, of
     *       carry_out numbers, is the carry. There are no logits, and no pooling
     * Logits of the last stage have the bits of the model that is whole. A batch whose rows all
     * give output has at most n_batch rows. Edits are made in every session, and so is pith_encode:
     * an encoder is in all stages. Numbers of the carry are this machine's in memory; some may be
     * integers, which only copies leave alone.
     * PITH_RANGE: there are no such visits (pith_model_info.n_visits); PITH_UNSUPPORTED: some visit
     * keeps its rows with one that would be in another stage. */
    int32_t first_visit, n_visits;
    /* Steps of at least so many rows bring weights that a CPU has to a GPU, one product's after the
     * other's, and multiply there; K, V and states stay where they are. PITH_UPLOAD_AUTO: from as
     * many rows on as pay by what is measured when the first session is opened; PITH_UPLOAD_NONE:
     * never, and so with reproducible. pith_report tells. */
    int32_t upload_rows;
    /* Shapes of steps whose commands a session keeps, for each part of its plan on a GPU, at most
     * 1024. 0: as PITH_VULKAN_RECORDINGS, PITH_CUDA_RECORDINGS and PITH_CANN_RECORDINGS say, else
     * 12; PITH_RECORDINGS_NONE: steps are issued call by call. */
    int32_t recordings;
    /* 1: steps of more than 32 rows, too (of CANN: those with several rows of a sequence). Such a
     * step cannot be cancelled in the middle. 0: where PITH_VULKAN_PREFILL, PITH_CUDA_PREFILL or
     * PITH_CANN_PREFILL say so. */
    int32_t record_prefill;
    /* For PITH_GPU_LAYERS_AUTO: the session that is to be opened, beside whose memory layers have
     * to fit; NULL: one without parameters. Counted are its caches and states, the values, inputs
     * and outputs of its steps, and weights that are brought to a GPU. n_ctx 0 counts 4,096
     * positions, or as many as the model was trained for, n_tokens 0 one context. Read by
     * pith_model_open alone; `follows` is not looked at. */
    const struct pith_session_params *session;
    /* For PITH_GPU_LAYERS_AUTO: bytes of each GPU that stay free beside weights and session, for
     * what comes later (adapters: 4 bytes a number) and for other programs. */
    uint64_t keep_free;
};
#define PITH_MODEL_PARAMS_INIT PITH_SIZED(struct pith_model_params)

/* Opens a GGUF file (or the first part of a split one). params may be NULL. */
PITH_API pith_model *pith_model_open(const char *path, const struct pith_model_params *params,
                                     struct pith_error *err);
PITH_API void pith_model_close(pith_model *m);

struct pith_model_info {
    size_t size;
    const char *arch, *name, *type; /* type: as pith_file_type */
    int32_t n_vocab, n_embd, n_layer, n_head, n_head_kv, n_ctx_train;
    int32_t causal;    /* 0: an encoder; all rows of a sequence must come in one step */
    int32_t pooling;   /* enum pith_pooling written in the file */
    uint64_t n_params; /* weights, elements */
    uint64_t file_bytes;
    uint64_t weight_bytes; /* as placed in memory */
    uint64_t token_bytes;  /* weight bytes read to decode one token (embedding rows excluded, output
                              matrix included) */
    uint64_t token_ops;    /* multiply-adds x 2 per token in the matrices, output matrix included */
    uint64_t output_ops;   /* of these, the output matrix: in a prefill only the rows asked for go
                              through it */
    const char *note; /* what was asked for and not given (a kept copy of packed weights, memory of
                         a node, a chat template), owned by the model; NULL: all is well */
    uint64_t memory_bytes; /* all that it holds now, but for pages of files: packed weights,
                              vocabulary, templates, tables */
    int32_t n_labels;      /* scores that pooling rank gives of a text; 0: the model has no head */
    int32_t n_embd_out;    /* numbers of an embedding that comes out; most models: n_embd */
    int32_t logits; /* 1: sessions that do not pool give logits of tokens, causal or (models that
                     * fill in masks) not; 0: embeddings */
    int32_t encoder; /* 1: an encoder reads the text, which pith_encode gives to it, and the decoder
                      * writes its answer; sequences, tokens and logits are the decoder's */
    int32_t decoder_start; /* the first token of that answer, which is fed; -1: no encoder */
    int32_t n_nextn; /* blocks behind the layers that predict further on: draft heads, which run
                        where they are asked for (pith_model_params.draft_heads) */
    int32_t n_embd_projector; /* columns of the rows that its projector makes embedding rows of; 0:
                                 it has none */
    int32_t n_visits;            /* of the whole model */
    int32_t carry_in, carry_out; /* of a stage (pith_model_params.first_visit): numbers of a row
                                    that it is given, and that it gives out; 0: none */
};
#define PITH_MODEL_INFO_INIT PITH_SIZED(struct pith_model_info)
PITH_API pith_status pith_model_get_info(const pith_model *m, struct pith_model_info *out,
                                         struct pith_error *err);
/* Metadata by key, as text. Returns its length as snprintf does, -1 when the key is absent. */
PITH_API int64_t pith_model_meta(const pith_model *m, const char *key, char *buf, size_t cap);
PITH_API const char *const *pith_arch_names(void); /* NULL-terminated */

#ifdef __cplusplus
}
#endif
#endif
