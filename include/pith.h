/* pith.h -- the one public header of libpith: open a GGUF model, feed tokens, read logits, sample,
 * text in and out.
 *
 * Example (compiled and run by the tests, as C and as C++):
 *
 *     #include <pith.h>
 *     #include <stdio.h>
 *     int main(int argc, char **argv)
 *     {
 *         struct pith_error err;
 *         pith_model *model = pith_model_open(argc > 1 ? argv[1] : "model.gguf", NULL, &err);
 *         pith_session *session = model ? pith_session_open(model, NULL, &err) : NULL;
 *         if (!session) {
 *             fprintf(stderr, "%s\n", err.msg);
 *             pith_model_close(model);
 *             return 1;
 *         }
 *         char text[4096];
 *         struct pith_generate_params params = PITH_GENERATE_PARAMS_INIT;
 *         params.prompt = "Once upon a time";
 *         params.n_max = 32;
 *         params.text = text;
 *         params.text_cap = sizeof text;
 *         struct pith_generate_result result = PITH_GENERATE_RESULT_INIT;
 *         pith_status st = pith_generate(session, &params, &result, &err);
 *         puts(st == PITH_OK ? text : err.msg);
 *         pith_session_close(session);
 *         pith_model_close(model);
 *         return st == PITH_OK ? 0 : 1;
 *     }
 *
 * Conventions
 *   Errors     Every function that can fail takes `struct pith_error *err` last (NULL allowed) and
 *              returns a pith_status, or NULL/-1
 *              with *err filled. The message says what was found, what was wanted and what to do. A
 *                  call that fails changes nothing.
 *   Structs    that one side fills for the other begin with their size, which is the caller's:
 *              start from the matching PITH_..._INIT macro; zero
 *              means "default". Where one is filled for the caller, not a byte behind its size is
 *                  written; what the library does not know of
 *              is zero. So both may be of different versions. Without a size, and never to grow:
 *                  pith_error, pith_logprob, pith_logit_bias.
 *   Threads    A model is read-only after open and may be used by any number of threads. A session
 *              is used by one thread at a time;
 *              pith_cancel() alone may be called from any thread or signal handler.
 *   fork()     The child has none of the library's threads: what was opened before is the parent's,
 *              and the child must neither use nor
 *              close it. It may open models and sessions of its own, unless another thread was
 *                  inside the library at the time of the
 *              fork, and it may exec or _exit. The parent goes on as before. Open models behind a
 *                  fork, or in every child.
 *   Ownership  *_open and *_close pair up. Closing NULL is a no-op. A session keeps its model
 *              alive: closing order is free.
 *   Shapes     are written slowest first: logits [R, V] are R rows of V floats. Sizes are bytes,
 *              times are nanoseconds (int64_t).
 *   Tokens     are int32_t ids in 0..V-1. Text is UTF-8; bytes that are not are handled as the
 *              vocabulary says, never a crash.
 *   Law        On CPUs the logits of a token are bit-identical whatever the batch, chunking, thread
 *              count, cache hit or instruction set.
 */
#ifndef PITH_H
#define PITH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PITH_API __attribute__((visibility("default")))
#else
#define PITH_API
#endif

/* Initialises a struct that begins with its size: everything else is zero, without a compiler's
 * warning about it. */
#ifdef __cplusplus
extern "C++" {
template <class T> inline T pith_sized()
{
    T t = T();
    t.size = sizeof(T);
    return t;
}
}
#define PITH_SIZED(type) pith_sized<type>()
#else
#define PITH_SIZED(type)                                                                           \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

#define PITH_VERSION_MAJOR 0
#define PITH_VERSION_MINOR 1
#define PITH_VERSION_PATCH 0

/* ---------------------------------------------------------------- status and errors */

#define PITH_STATUS_MAP(X)                                                                         \
    X(OK, 0, "ok")                                                                                 \
    X(NOMEM, 1, "out of memory")                                                                   \
    X(IO, 2, "input/output error")                                                                 \
    X(FORMAT, 3, "damaged or malformed data")                                                      \
    X(MISSING, 4, "not found")                                                                     \
    X(SHAPE, 5, "shape mismatch")                                                                  \
    X(UNSUPPORTED, 6, "not supported")                                                             \
    X(RANGE, 7, "out of range")                                                                    \
    X(STATE, 8, "not possible in this state")                                                      \
    X(CANCELLED, 9, "cancelled")                                                                   \
    X(DEVICE, 10, "device error")                                                                  \
    X(INTERNAL, 11, "internal error")

typedef enum pith_status {
#define PITH_STATUS_ENUM(name, value, text) PITH_##name = value,
    PITH_STATUS_MAP(PITH_STATUS_ENUM)
#undef PITH_STATUS_ENUM
} pith_status;

#define PITH_ERROR_MAX                                                                             \
    2048 /* one message lists every missing, extra and misshapen tensor, or says how many more */

struct pith_error {
    pith_status code;
    char msg[PITH_ERROR_MAX]; /* always terminated, one line, valid UTF-8 */
};

PITH_API const char *pith_version(void);               /* "0.1.0 (commit)" */
PITH_API const char *pith_status_text(pith_status st); /* never NULL */

/* ---------------------------------------------------------------- memory */

typedef enum pith_purpose {
    PITH_MEM_WEIGHTS,
    PITH_MEM_CACHE,
    PITH_MEM_SCRATCH,
    PITH_MEM_VOCAB,
    PITH_MEM_META,
    PITH_MEM_SERVER,
    PITH_MEM_N
} pith_purpose;

/* Process-wide allocator, set before any other call of the library (PITH_STATE afterwards). alloc
 * returns memory aligned to `align` (a power of two) or NULL; commit is asked before reserved
 * address space is first used and returns 0, or -1 to refuse. */
struct pith_allocator {
    size_t size;
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align, pith_purpose purpose);
    void (*free)(void *ctx, void *p, size_t bytes, pith_purpose purpose);
    int (*commit)(void *ctx, void *addr, size_t bytes, pith_purpose purpose);
};
PITH_API pith_status pith_set_allocator(const struct pith_allocator *a, struct pith_error *err);

#define PITH_MEM_MAX 32 /* there will never be more purposes; those that are not known are 0 */
struct pith_memory_report {
    size_t size;
    uint64_t used[PITH_MEM_MAX]; /* bytes held now, per purpose */
    uint64_t peak[PITH_MEM_MAX]; /* highest value since the process began */
};
#define PITH_MEMORY_REPORT_INIT PITH_SIZED(struct pith_memory_report)
PITH_API pith_status pith_memory(struct pith_memory_report *out); /* PITH_RANGE: out has no size */
PITH_API const char *pith_purpose_name(pith_purpose p);
/* Memory of the machine, or the least limit of a control group this process is in; and how much of
 * it this process can still take: less a 64th of all, less what it has promised to sessions.
 * UINT64_MAX: not known. Either may be NULL. */
PITH_API void pith_memory_limits(uint64_t *total, uint64_t *left);

/* ---------------------------------------------------------------- bounds of work */

/* What the calls of one thread may cost, from pith_work_begin to pith_work_end: those that may be
 * long for small inputs (grammars and schemas, templates, tokenizing, reading answers, samplers)
 * count their steps and the memory they take, ask go_on and look at the clock every few
 * milliseconds, and end with PITH_CANCELLED or PITH_RANGE when they may not go on. What they had
 * begun is freed. */
typedef enum pith_work_stop {
    PITH_WORK_GOES_ON,
    PITH_WORK_CANCELLED, /* go_on said so: PITH_CANCELLED */
    PITH_WORK_LATE,      /* the deadline has passed: PITH_CANCELLED */
    PITH_WORK_BYTES,     /* max_bytes: PITH_RANGE */
    PITH_WORK_STEPS      /* max_steps: PITH_RANGE */
} pith_work_stop;
struct pith_work {
    size_t size;
    /* 0: stop. Called by the thread that works, with no lock of the library held, at most 4096
     * steps after it was called before; it may take its time (to let others have their turn). NULL:
     * nobody is asked. */
    int (*go_on)(void *ctx, const struct pith_work *w);
    void *ctx;
    int64_t deadline;   /* CLOCK_MONOTONIC ns; 0: none */
    uint64_t max_bytes; /* of held_bytes; 0: no bound */
    uint64_t max_steps; /* 0: no bound. A step is some 10 to 100 ns */
    /* Told by the library, at any time: */
    uint64_t steps;
    int64_t held_bytes; /* taken less given back since it began: what its results hold, once calls
                           have returned; below 0: it freed older ones */
    int64_t peak_bytes;
    pith_work_stop stop; /* why it does not go on; stays */
    /* The library's own. */
    uint64_t look_at;
    struct pith_work *outer;
};
#define PITH_WORK_INIT PITH_SIZED(struct pith_work)
/* w is the caller's and stays in place until its end. Inside of another one of the thread only the
 * inner one bounds, and what it has counted is added to the outer one at its end. PITH_RANGE: size.
 */
PITH_API pith_status pith_work_begin(struct pith_work *w, struct pith_error *err);
PITH_API void pith_work_end(
    struct pith_work *w); /* of the thread's innermost one; any other, or NULL, is left as it is */

/* ---------------------------------------------------------------- files (reading what a GGUF file
 * holds, without loading it) */

typedef struct pith_file pith_file;
struct pith_tensor_info {
    size_t size;
    const char *name; /* owned by the file */
    const char *type; /* "q4_K" */
    int n_dims;
    int64_t dims[4]; /* C order, slowest first */
    uint64_t offset; /* from the start of its part */
    uint64_t bytes;
    int part; /* index of the split part */
};
#define PITH_TENSOR_INFO_INIT PITH_SIZED(struct pith_tensor_info)
PITH_API pith_file *pith_file_open(const char *path, struct pith_error *err);
PITH_API void pith_file_close(pith_file *f);
PITH_API int64_t pith_file_n_keys(const pith_file *f);
PITH_API const char *pith_file_key(const pith_file *f, int64_t i);      /* NULL outside 0..n-1 */
PITH_API const char *pith_file_key_type(const pith_file *f, int64_t i); /* "u32", "arr<str>" */
/* Value as text (strings raw, arrays as JSON cut after max_items with "..."). Returns its full
 * length in bytes, as snprintf does, -1 if out of range. */
PITH_API int64_t pith_file_value(const pith_file *f, int64_t i, int64_t max_items, char *buf,
                                 size_t cap);
PITH_API int64_t pith_file_n_tensors(const pith_file *f);
PITH_API pith_status pith_file_tensor(const pith_file *f, int64_t i, struct pith_tensor_info *out);
/* What the file's mixture of weights is called (general.file_type: "Q4_K_M"), else the weight type
 * that holds most bytes ("q8_0"); NULL: it has no tensors. */
PITH_API const char *pith_file_type(const pith_file *f);
PITH_API int pith_file_gguf_version(const pith_file *f);
PITH_API int pith_file_n_parts(const pith_file *f);

/* ---------------------------------------------------------------- devices */

struct pith_device_info {
    size_t size;
    char name[32];    /* "CPU", "vulkan0" */
    char about[96];   /* what its maker calls it */
    char backend[16]; /* "cpu", "vulkan" */
    char kind[16];    /* "cpu", "gpu", "integrated" (shares the machine's memory), "software" */
    uint64_t total_bytes, free_bytes; /* of memory, UINT64_MAX: not known */
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
    PITH_WEIGHTS_PACKED
} pith_weights;

/* Memory nodes. spread: threads over all of them, each reading rows of weights and heads of K and V
 * in its own memory first; isolate: those of the opening thread only. */
typedef enum pith_numa { PITH_NUMA_OFF, PITH_NUMA_SPREAD, PITH_NUMA_ISOLATE } pith_numa;

/* auto: as many as fit into the memory that is free. */
enum { PITH_GPU_LAYERS_AUTO = 0, PITH_GPU_LAYERS_NONE = -1, PITH_GPU_LAYERS_ALL = INT32_MAX };
typedef enum pith_split { PITH_SPLIT_LAYER, PITH_SPLIT_NONE } pith_split; /* by layers; one GPU */

struct pith_model_params {
    size_t size;
    /* mapped: straight from the file's pages; packed: interleaved for the kernels (auto = packed).
     * Packed ones that do not fit into the memory that is left are mapped, which
     * pith_model_info.note tells; PITH_NOMEM with strict, or where all memory is less than they
     * have. */
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
    const char *tensor_split; /* "3,1": share of the layers of each GPU (without any: of each CPU
                                 device); NULL: by the memory that is free */
    int32_t main_gpu;         /* the one of PITH_SPLIT_NONE, by its number among the GPUs */
    const char *const *placements; /* NULL-terminated list of "PATTERN=DEVICE": weights whose names
                                      hold a match (POSIX extended regular expression), and the
                                      products with them; the first that matches counts */
    int32_t cpu_experts; /* experts of so many first layers stay on the CPU, -1: of all */
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
};
#define PITH_MODEL_INFO_INIT PITH_SIZED(struct pith_model_info)
PITH_API pith_status pith_model_get_info(const pith_model *m, struct pith_model_info *out,
                                         struct pith_error *err);
/* Metadata by key, as text. Returns its length as snprintf does, -1 when the key is absent. */
PITH_API int64_t pith_model_meta(const pith_model *m, const char *key, char *buf, size_t cap);
PITH_API const char *const *pith_arch_names(void); /* NULL-terminated */

/* ---------------------------------------------------------------- text */

enum { PITH_ADD_SPECIAL = 1, PITH_PARSE_SPECIAL = 2 };
/* Text to ids. Writes at most cap ids and returns how many there are in all (call again with more
 * room), -1 on error. */
PITH_API int64_t pith_tokenize(const pith_model *m, const char *text, size_t n_bytes, int flags,
                               int32_t *ids, size_t cap, struct pith_error *err);
enum { PITH_RENDER_SPECIAL = 1, PITH_STRIP_SPECIAL = 2 };
/* Ids to bytes (not terminated). PITH_RENDER_SPECIAL renders control tokens as their text;
 * PITH_STRIP_SPECIAL removes an added BOS/EOS. Writes at most cap bytes, returns the full length,
 * -1 on an id out of range. */
PITH_API int64_t pith_detokenize(const pith_model *m, const int32_t *ids, size_t n, int flags,
                                 char *buf, size_t cap, struct pith_error *err);
PITH_API int pith_token_is_eog(const pith_model *m, int32_t id); /* ends a generation */
PITH_API int32_t pith_token_bos(const pith_model *m);            /* -1: none */
PITH_API int32_t pith_token_eos(const pith_model *m);            /* -1: none */
/* Tokens with a role (FIM: fill in the middle), as the file's keys name them, else by the texts
 * that such tokens are known to have. */
typedef enum {
    PITH_TOKEN_BOS,
    PITH_TOKEN_EOS,
    PITH_TOKEN_UNK,
    PITH_TOKEN_SEP,
    PITH_TOKEN_PAD,
    PITH_TOKEN_FIM_PRE,
    PITH_TOKEN_FIM_SUF,
    PITH_TOKEN_FIM_MID,
    PITH_TOKEN_FIM_PAD,
    PITH_TOKEN_FIM_REP,
    PITH_TOKEN_FIM_SEP,
    PITH_TOKEN_MASK, /* stands for a token that is to be found */
    PITH_TOKEN_N
} pith_token_role;
PITH_API int32_t pith_token_of(const pith_model *m, pith_token_role role); /* -1: none */

/* Streaming text: ids in, complete UTF-8 out. Bytes of an unfinished character are kept for the
 * next call; put with id -1 flushes. */
typedef struct pith_stream pith_stream;
PITH_API pith_stream *pith_stream_open(const pith_model *m, struct pith_error *err);
PITH_API void pith_stream_close(pith_stream *s);
/* Returns the text that became complete (owned by the stream, valid until the next call,
 * terminated) and its length. */
PITH_API const char *pith_stream_put(pith_stream *s, int32_t id, size_t *n_bytes);
PITH_API void pith_stream_continue(
    pith_stream *s); /* the text goes on after a prompt: a leading space belongs to it */
/* Bytes as valid UTF-8: those that are none become U+FFFD (what a model says need not be text).
 * Length as snprintf, not terminated. */
PITH_API int64_t pith_utf8(const char *text, size_t n_bytes, char *buf, size_t cap);

/* Stop strings in a text that arrives in pieces: what is shown never holds a byte of one, and
 * nothing waits longer than it could begin one. */
typedef struct pith_stopper pith_stopper;
struct pith_shown { /* what may be shown now: bytes that were held back, then the first bytes of the
                       piece just put */
    size_t size;
    const char *held; /* owned by the stopper */
    size_t n_held, n_fresh;
};
#define PITH_SHOWN_INIT PITH_SIZED(struct pith_shown)
/* strings: NULL-terminated, none empty; copied. */
PITH_API pith_stopper *pith_stopper_open(const char *const *strings, struct pith_error *err);
PITH_API void pith_stopper_close(pith_stopper *s);
/* Returns the index of the string that has come to its end, -1: none yet (and *out stays as it is
 * when it has no size). text NULL: the text has ended, what was held back is shown. */
PITH_API int pith_stopper_put(pith_stopper *s, const char *text, size_t n, struct pith_shown *out);

/* ---------------------------------------------------------------- chat templates */

/* A template of the Jinja language as models publish them, rendered as transformers does.
 * Read-only: any number of threads may render. */
typedef struct pith_template pith_template;
/* PITH_FORMAT: a syntax error; PITH_UNSUPPORTED: include, import, extends, block. The message has
 * line, column and the text there. */
PITH_API pith_template *pith_template_open(const char *text, size_t n_bytes,
                                           struct pith_error *err);
PITH_API void pith_template_close(pith_template *t);
/* The model's own, owned by the model: NULL = tokenizer.chat_template, "tool_use" =
 * tokenizer.chat_template.tool_use. bos_token and eos_token are the model's where the variables do
 * not say. NULL: PITH_MISSING, or why the text cannot be a template (the model opens all the same).
 */
PITH_API const pith_template *pith_model_template(const pith_model *m, const char *name,
                                                  struct pith_error *err);
/* Renders with the variables of a JSON object: messages, tools, documents (null when absent),
 * add_generation_prompt (false) and any other; "now" (ISO 8601) is what strftime_now formats, else
 * the clock. Writes at most cap bytes (not terminated), returns the full length, -1 on error.
 * PITH_STATE: the template called raise_exception, and the message is its own; PITH_RANGE: a limit
 * on steps, memory or length. This is text to look at; what a model is given is a pith_prompt. */
PITH_API int64_t pith_template_render(const pith_template *t, const char *json, size_t n_bytes,
                                      char *buf, size_t cap, struct pith_error *err);

/* ---------------------------------------------------------------- prompts */

/* A prompt knows of each byte whether a template wrote it or a request gave it. Only what the
 * template wrote can be control tokens: text of users, tools and documents that spells one
 * ("<|im_end|>") is that text, in smaller tokens or bytes. The text of pith_template_render, given
 * to pith_tokenize with PITH_PARSE_SPECIAL, has lost that. One thread at a time.
 *
 * Values are all strings of the variables, names and keys inside them too, and what is made of them
 * by any filter, slice or loop; but not bos_token and eos_token (leave those to the model where the
 * variables are somebody else's), nor the roles system, user, assistant, tool, function, developer,
 * ipython and model. A marker is the template's as a whole or none at all. User-defined tokens in
 * brackets ("<tool_call>", "[INST]") are markers like control tokens; others (white space, HTML)
 * are text, and values have them as ever. */
typedef struct pith_prompt pith_prompt;
/* The template rendered with the variables of a JSON object, as pith_template_render does it; t
 * NULL: an empty prompt. NULL on error, besides those of rendering: PITH_FORMAT, with the line,
 * where the template uses a value as a format ("value % x"), which makes that a template. */
PITH_API pith_prompt *pith_prompt_open(const pith_template *t, const char *json, size_t n_bytes,
                                       struct pith_error *err);
PITH_API void pith_prompt_close(pith_prompt *p);
typedef enum { PITH_FROM_TEMPLATE, PITH_FROM_VALUE } pith_origin;
/* Appends a text, such as the beginning of an answer, or what stands around a gap that is to be
 * filled. */
PITH_API pith_status pith_prompt_put(pith_prompt *p, pith_origin from, const char *text,
                                     size_t n_bytes, struct pith_error *err);
PITH_API const char *
pith_prompt_text(const pith_prompt *p,
                 size_t *n_bytes); /* the prompt's, terminated, valid until the next put */
struct pith_span {
    size_t from, to; /* bytes from..to - 1 of a text */
};
/* The parts of it that are values, sorted, apart from each other; [n], the prompt's. */
PITH_API const struct pith_span *pith_prompt_values(const pith_prompt *p, size_t *n);
/* Its ids, as pith_tokenize; flags: PITH_ADD_SPECIAL, where no template has written the start
 * token. */
PITH_API int64_t pith_prompt_tokenize(const pith_prompt *p, const pith_model *m, int flags,
                                      int32_t *ids, size_t cap, struct pith_error *err);

/* What a model that ranks (n_labels of its info) is given of a question and a text: the template
 * tokenizer.chat_template.rerank of its file, else the pair as its kind of encoder is trained on
 * it. Neither text can hold a control token. A session with PITH_POOL_RANK gives its score. Ids as
 * pith_tokenize: returns how many, writes at most cap, -1 on error. */
PITH_API int64_t pith_rank_tokenize(const pith_model *m, const char *query, size_t n_query,
                                    const char *document, size_t n_document, int32_t *ids,
                                    size_t cap, struct pith_error *err);

/* ---------------------------------------------------------------- reading answers */

/* Takes what a model answers apart into content, reasoning and tool calls, in the form of its
 * template's family. Pieces may be cut anywhere; no part of a marker is shown, white space beside
 * one belongs to it. A call that is not well-formed is content, as it stands. */
typedef struct pith_chat_parser pith_chat_parser;
typedef enum pith_chat_kind {
    PITH_CHAT_CONTENT,
    PITH_CHAT_REASONING,
    PITH_CHAT_CALL
} pith_chat_kind;
struct pith_chat_event { /* more content or reasoning, or one call */
    size_t size;         /* the library's: what lies behind it is of a later version */
    pith_chat_kind kind;
    const char *text; /* [n_bytes]; of a call: its arguments, a JSON object */
    size_t n_bytes;
    const char *name, *id; /* of a call: id is the model's own, else made for it */
    int32_t index;         /* of a call, from 0 */
    int32_t whole;         /* of a call: no more of it comes */
};
struct pith_chat_params {
    size_t size;
    const char *tools;  /* JSON array of tools as templates take them; NULL: not known; "[]": none,
                           calls are content */
    const char *prompt; /* what the model was given, or its end: it may have opened the reasoning.
                           NULL: the template's for one message */
    size_t prompt_bytes;
    const char *family; /* NULL: by the template's text; see pith_chat_family */
    void (*on_event)(void *ctx,
                     const struct pith_chat_event
                         *e); /* from feed and finish; what e points to is valid during the call */
    void *ctx;
    const pith_chat_parser *tools_of; /* tools are those that this one has read, which stays open as
                                         long; NULL: `tools` */
    /* 1: a call is told while it is made, by events of one index, each with more of its arguments
     * and the last (which may be of 0 bytes) `whole`; one that has begun stays one, so arguments
     * that break off or go wrong end as they stand, never whole. 0: whole calls only. */
    int32_t partial;
};
#define PITH_CHAT_PARAMS_INIT PITH_SIZED(struct pith_chat_params)
/* t NULL: family "generic", or the one named. After PITH_NOMEM a parser can only be closed. */
PITH_API pith_chat_parser *pith_chat_open(const pith_template *t,
                                          const struct pith_chat_params *params,
                                          struct pith_error *err);
PITH_API void pith_chat_close(pith_chat_parser *p);
PITH_API pith_status pith_chat_feed(pith_chat_parser *p, const char *text, size_t n_bytes,
                                    struct pith_error *err);
PITH_API pith_status pith_chat_finish(
    pith_chat_parser *p, struct pith_error *err); /* no more text comes: says what was held back */
/* All so far, owned by the parser, valid until the next feed: content or reasoning (not
 * terminated); call i, NULL outside 0..n-1. */
PITH_API const char *pith_chat_text(const pith_chat_parser *p, pith_chat_kind kind,
                                    size_t *n_bytes);
PITH_API int32_t pith_chat_n_calls(const pith_chat_parser *p);
PITH_API const struct pith_chat_event *pith_chat_call(const pith_chat_parser *p, int32_t i);
PITH_API int pith_chat_reasons(
    const pith_chat_parser *p); /* reasoning has begun, by the prompt or since, and not ended */
PITH_API const char *
pith_chat_family(const pith_template *t); /* "hermes", "llama-3" ...; "derived": none of these, but
                                           * calls in its history have a marker, by which they are
                                           * known; NULL gives "generic" */
PITH_API const char *
pith_chat_think(const pith_template *t); /* what begins it, "<think>"; NULL: it has none */
PITH_API const char *pith_chat_answer(
    const pith_template *t); /* what ends reasoning in its family, "</think>"; NULL: it has none */
/* What calls of its family begin with, n bytes of it, where they are not one JSON text
 * (pith_chat_grammar says PITH_UNSUPPORTED); NULL: they are. */
PITH_API const char *pith_chat_opening(const pith_template *t, size_t *n);
/* For pith_grammar_open with PITH_GRAMMAR_SCHEMA: the schema that a call of one of the tools keeps,
 * and the trigger it follows. Returns its full length as snprintf does, -1 on error:
 * PITH_UNSUPPORTED where calls of the family are not one JSON text. */
PITH_API int64_t pith_chat_grammar(const pith_template *t, const char *tools, const char **trigger,
                                   char *buf, size_t cap, struct pith_error *err);

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
     * does (pith_plan_session tells). What is computed does not depend on it. */
    int32_t n_ctx;
    int32_t n_seq; /* most sequences, default 1 */
    /* Most cached positions over all sequences; 0: n_ctx * n_seq, or as many as fit into that half,
     * at least n_ctx. */
    int64_t n_tokens;
    /* f32 f16 (default) bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl; types of blocks need heads of a
     * multiple of 32 elements. */
    const char *cache_type_k, *cache_type_v;
    pith_pooling pooling;
    int32_t n_threads;         /* 0 = as the model */
    int32_t n_threads_prefill; /* 0 = n_threads when given, else as the model */
    int64_t store_bytes; /* of full pages kept for prefixes to come, of running and ended sequences,
                          * beside those of n_tokens; 0 = none. None are kept for encoders and
                          * pooled sessions. Recurrent layers: a state each 64 positions or more */
    /* A folder (made if need be) that gets these pages too, so that later sessions and other
     * processes find them; store_bytes 0 then means one context's. NULL = none. PITH_MISSING: it
     * cannot be made or opened; what cannot be written or read there later is a line in the report.
     * store_limit: bytes there, 0 = 32 GiB. */
    const char *store_dir;
    int64_t store_limit;
    int64_t memory_bytes; /* most it may count on, for the defaults above and PITH_NOMEM, where less
                             is left, that; 0: all that is left */
    int32_t n_batch; /* most tokens in one step, and so of an input that is taken whole (encoders,
                        pooled sessions); 0: the model's */
    /* Adapters (pith_adapt): how many different ones, or mixtures of them, its sequences can have
     * at the same time; 0 = none. adapter_rank: the largest rank of one, 0 = 64. */
    int32_t n_adapters, adapter_rank;
};
#define PITH_SESSION_PARAMS_INIT                                                                   \
    {                                                                                              \
        sizeof(struct pith_session_params), 0, 0, 0, NULL, NULL, PITH_POOL_FILE, 0, 0, 0, NULL, 0, \
            0, 0, 0, 0                                                                             \
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
    int32_t n_ctx, n_ctx_train;
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
 * image between two pieces of text goes in one step with them. Rows of a sequence keep their order. want[i] asks for output
 * of row i (NULL: the last row of each sequence). More rows than n_batch are run as several steps.
 * Over the context: PITH_RANGE with n_prompt, n_ctx, n_over; out of pages: PITH_NOMEM; nothing has
 * changed. */
struct pith_batch {
    size_t size;
    int32_t n;
    const int32_t *token; /* [n], or NULL: all are embedding rows */
    const float *embd;    /* [n, E], or NULL: all are tokens; of tokens' rows nothing is read */
    const int32_t *seq;   /* [n], NULL: all in sequence 0 */
    const uint8_t *want;  /* [n] */
};
#define PITH_BATCH_INIT PITH_SIZED(struct pith_batch)
PITH_API pith_status pith_step(pith_session *s, const struct pith_batch *batch,
                               struct pith_error *err);
/* Appends n tokens to a sequence; logits of the last one. */
PITH_API pith_status pith_feed(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                               struct pith_error *err);
/* Models with an encoder beside their decoder (pith_model_info.encoder): the encoder reads n tokens
 * at once, whole, and what the decoder's rows of this sequence see of it is kept as the memory of
 * the sequence. The decoder's own tokens then begin with pith_model_info.decoder_start. The
 * sequence has to be empty (else PITH_STATE). Its memory stays the same whatever is fed to it and
 * edited in it, goes where the sequence is emptied (pith_truncate to 0, pith_keep of another) or
 * with n = 0, is shared by pith_copy (which of an empty sequence copies the memory alone), and is
 * in snapshots; the prefix store finds what followed the same tokens. PITH_UNSUPPORTED: the model
 * has no encoder. PITH_RANGE: a token is not of the vocabulary, or they are more than
 * pith_encoder_most. A call that fails has changed nothing. Feeding a sequence that has no memory
 * is PITH_STATE. Outputs of the last step stay as they are. */
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
 * tokens are kept. */
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
PITH_API void pith_adapter_close(pith_adapter *a); /* NULL allowed */
PITH_API int32_t pith_adapter_rank(const pith_adapter *a); /* the largest of its tensors */
struct pith_adapter_use {
    const pith_adapter *adapter;
    float scale; /* 0: as if it were not there */
};
/* From now on the sequence has these adapters: up to 4, added in this order; n = 0: none. It has to
 * be empty (else PITH_STATE), unless it has them already, and keeps them when it is emptied;
 * pith_copy gives the copy its source's. Rows of sequences without adapters have the same bits as
 * if there were none. Stored prefixes are found by sequences with the same adapters and scales
 * alone; a snapshot can be loaded where the sequence has those it was computed with.
 * PITH_RANGE: more different ones than the session's n_adapters, or a rank above its. */
PITH_API pith_status pith_adapt(pith_session *s, int32_t seq, const struct pith_adapter_use *uses,
                                int32_t n, struct pith_error *err);

/* Edits. Ranges [p0, p1) are of positions; p1 = -1 means to the end; negative or reversed ones and
 * unknown sequences are PITH_RANGE. A new row's position is one after the last. Edits are recorded
 * and carried out before the next step that reads the sequence; rotations of K by several shifts
 * are summed and done once. Where layers with a window have given up what the next row would see,
 * and where recurrent layers would have to forget a part of what they saw: PITH_STATE. */
PITH_API pith_status pith_remove(pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                                 struct pith_error *err);
/* dst becomes [p0, p1) of src; pages are shared until one of the two writes. */
PITH_API pith_status pith_copy(pith_session *s, int32_t dst, int32_t src, int64_t p0, int64_t p1,
                               struct pith_error *err);
PITH_API pith_status pith_keep(pith_session *s, int32_t seq,
                               struct pith_error *err); /* empties all other sequences */
/* Positions become p + delta, or p / by rounded down; below 0 or above 2^30 - 1 is PITH_RANGE.
 * Equal positions are allowed. */
PITH_API pith_status pith_shift(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t delta,
                                struct pith_error *err);
PITH_API pith_status pith_divide(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t by,
                                 struct pith_error *err);
PITH_API int pith_can_shift(const pith_session *s); /* 0: shift and divide are refused */
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

/* Ids of the first cap tokens held (-1: an embedding row). Returns how many there are, -1: no such
 * sequence. */
PITH_API int64_t pith_tokens(const pith_session *s, int32_t seq, int32_t *ids, size_t cap);

/* Save and load: one sequence, or all of the session with seq -1, with K, V, recurrent state, edits
 * and the last logits. Files are written under another name, synced and renamed. A load checks
 * everything first: another model, cache type, format or numerics version, damage or want of room
 * is an error that names it, and changes nothing, as does pith_cancel. It replaces the sequence, or
 * all of them. A file is read a page at a time, into pages beside those that are replaced where the
 * pool has them. What was said is in a file: its owner alone may read it (mode 0600). */
PITH_API pith_status pith_save(const pith_session *s, int32_t seq, const char *path,
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
PITH_API pith_status pith_save_with(const pith_session *s, int32_t seq, const pith_sampler *sampler,
                                    const char *path, struct pith_error *err);
PITH_API pith_status pith_load_with(pith_session *s, int32_t seq, pith_sampler *sampler,
                                    const char *path, struct pith_error *err);
/* What was loaded into a sequence is not taken into the prefix store, for a file may be anybody's;
 * behind this call it is: for files that are kept as well as the store's own folder. Sequences that
 * were not loaded stay as they are. */
PITH_API pith_status pith_trust(pith_session *s, int32_t seq, struct pith_error *err);
/* *n receives the bytes needed; buf NULL: that alone. Too small a buffer is PITH_RANGE. */
PITH_API pith_status pith_save_memory(const pith_session *s, int32_t seq, void *buf, size_t cap,
                                      size_t *n, struct pith_error *err);
PITH_API pith_status pith_load_memory(pith_session *s, int32_t seq, const void *p, size_t n,
                                      struct pith_error *err);

/* Outputs of the last step, in the order of its rows that asked. NULL when i is out of range. Valid
 * until the next step. */
PITH_API int32_t pith_n_outputs(const pith_session *s);
/* Most outputs one pith_step can give; a batch that asks for more is PITH_RANGE. */
PITH_API int32_t pith_max_outputs(const pith_session *s);
PITH_API const float *pith_logits(const pith_session *s, int32_t i); /* [V], causal models */
PITH_API const float *pith_embedding(const pith_session *s,
                                     int32_t i); /* [n_embd_out]: per row, or per sequence when
                                                  * pooled; with pooling rank [n_labels] */

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
PITH_API void pith_profile(pith_session *s, int on);

/* ---------------------------------------------------------------- sampling */

struct pith_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY: never this token */
};
struct pith_sampler_params { /* zero = default = off, where nothing else is said */
    size_t size;
    float temperature; /* 0 = greedy */
    int32_t top_k;
    float top_p; /* 0 or 1 = off */
    float min_p;
    float repeat_penalty; /* 0 or 1 = off */
    float frequency_penalty, presence_penalty;
    int32_t penalty_last_n; /* history they look at, 0 = 64, -1 = all */
    uint64_t seed;          /* Philox key: the same seed gives the same draws on every machine */
    /* The chain: names and parameters in order, "top_k:k=40;temp:t=0.8;...". What a name does not
     * set comes from the fields here; the parameters of a name are in pith_sampler_help(). NULL:
     * the default chain, "logit_bias;penalties;dry;top_n_sigma;top_k;typical;top_p;
     * min_p;xtc;temp_ext;adaptive_p", or "logit_bias;penalties;dry;temp;mirostat" where mirostat is
     * on. */
    const char *samplers;
    float typical_p; /* 0 or 1 = off */
    float top_n_sigma;
    float dynatemp_range,
        dynatemp_exponent;                /* temperature +- range, by entropy ^ exponent (0 = 1) */
    float xtc_probability, xtc_threshold; /* threshold 0 = 0.1 */
    float dry_multiplier, dry_base;       /* base 0 = 1.75 */
    int32_t dry_allowed_length,
        dry_last_n;              /* 0 = 2; 0 or -1 = the last 131072 tokens, others at most 10^6 */
    const int32_t *dry_breakers; /* token sequences that end repetitions, each closed by -1 */
    int32_t n_dry_breakers;      /* ids, the -1 included */
    int32_t mirostat;            /* 1, 2: instead of the truncating samplers */
    float mirostat_tau, mirostat_eta;      /* 0 = 5, 0.1 */
    float adaptive_target, adaptive_decay; /* decay 0 = 0.9 */
    const struct pith_logit_bias *logit_bias;
    int32_t n_logit_bias;
    int32_t history_max; /* more tokens are never accepted (a context's): windows are no larger than
                            that; 0: no bound */
    const int32_t
        *late; /* [n_late] tokens that are not drawn before late_from tokens have been accepted */
    int32_t n_late, late_from;
    int32_t resumable; /* 1: remembers what it accepts (4 bytes a token), for pith_save_with */
};
#define PITH_SAMPLER_PARAMS_INIT PITH_SIZED(struct pith_sampler_params)
/* How a model is sampled where nobody says otherwise; pith's programs all ask here. *out (its size
 * set) becomes what the model's file advises (general.sampling.temp, top_k, top_p, min_p,
 * xtc_probability, xtc_threshold, penalty_last_n, penalty_repeat, mirostat, mirostat_tau,
 * mirostat_eta) and for the rest *otherwise; with that NULL temperature 0.8, top_k 40, top_p 0.95,
 * min_p 0.05, all else off. m may be NULL.
 * PITH_RANGE: a key of the file is none or out of range; it is left out, *out is good, and *err
 * names it. */
PITH_API pith_status pith_sampler_defaults(const pith_model *m,
                                           const struct pith_sampler_params *otherwise,
                                           struct pith_sampler_params *out, struct pith_error *err);
/* Copies what params point to. Tables as large as the vocabulary and the windows are made with the
 * first token, sampled or accepted. */
PITH_API pith_sampler *pith_sampler_open(int32_t n_vocab, const struct pith_sampler_params *params,
                                         struct pith_error *err);
PITH_API void pith_sampler_close(pith_sampler *s);
enum {
    PITH_TOKEN_NONE = -1, /* nothing finite is left, the grammar has failed, or there was no memory
                             for the tables: pith_sampler_error */
    PITH_TOKEN_LATER = -2 /* its mask takes too long: pith_sampler_mask_steps */
};
/* Chooses a token from logits [V], V as given at open: the chain, then a draw. Below 0: one of the
 * above. */
PITH_API int32_t pith_sample(pith_sampler *s, const float *logits);
/* Why the last draw of a sampler was PITH_TOKEN_NONE: PITH_NOMEM, the grammar's own error, or
 * PITH_STATE: nothing was left. */
PITH_API pith_status pith_sampler_error(const pith_sampler *s, struct pith_error *err);
PITH_API int64_t pith_sampler_bytes(const pith_sampler *s); /* of the tables that come with its
                                                               first token; 0 when they are there */
PITH_API int64_t pith_sampler_time(
    const pith_sampler *s); /* ns that its draws have taken, with the masks of its grammar */
PITH_API void
pith_sampler_accept(pith_sampler *s,
                    int32_t token); /* adds to the history that penalties and dry look at */
PITH_API void pith_sampler_reset(pith_sampler *s); /* as after open; a loaded seed stays */
/* Every sampler of chains with its parameters, ranges and defaults, one a line. Length as snprintf.
 */
PITH_API int64_t pith_sampler_help(char *buf, size_t cap);

struct pith_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the probability */
};
/* Before sampling: log-probabilities by the softmax of raw logits [V]. *of_id (NULL allowed) gets
 * the one of token `id`, -INFINITY when its logit is not finite; top[n_top] the most probable ones,
 * best first. Returns how many are in top, -1 with NULL logits. */
PITH_API int32_t pith_logprobs(const float *logits, int32_t n_vocab, int32_t id, float *of_id,
                               struct pith_logprob *top, int32_t n_top);
/* Rows of a session's last step sampled at once, by its threads: the same as pith_sample and
 * pith_logprobs one after the other. PITH_RANGE or PITH_SHAPE (another vocabulary): nothing was
 * drawn. */
struct pith_draw {
    size_t size;           /* the same in all of an array */
    int32_t output;        /* as in pith_logits */
    pith_sampler *sampler; /* each in one draw of a call at most; NULL: nothing is sampled, id is
                              the caller's */
    int32_t id;            /* out: the token, or one below 0 as of pith_sample */
    int32_t n_top; /* the most probable ones wanted; out: how many there are. -1: neither they nor
                      logprob */
    struct pith_logprob *top; /* [n_top] */
    float logprob;            /* out: of id */
};
#define PITH_DRAW_INIT PITH_SIZED(struct pith_draw)
PITH_API pith_status pith_sample_rows(pith_session *s, struct pith_draw *draws, int32_t n,
                                      struct pith_error *err);
/* After sampling: what the chain left for the draw, best first, at most cap; how many there are in
 * all. With logits NULL of the last pith_sample, whose logits must still be there; else the chain
 * is run on them without a draw. */
PITH_API int32_t pith_sampler_left(pith_sampler *s, const float *logits, struct pith_logprob *out,
                                   int32_t cap);

/* ---------------------------------------------------------------- grammars (constrained output) */

/* A grammar says which tokens may come next so that the text can still become what it describes:
 * GBNF (start rule "root"), a JSON Schema (texts that satisfy it; an unsupported keyword is
 * PITH_UNSUPPORTED by name and place; uniqueItems alone is let through unkept, unless strict_schema
 * is set, where items can have more than 64 values), or any JSON object. Left recursion, undefined
 * rules and what is too large to compile are refused with the rule's name. */
typedef struct pith_grammar pith_grammar;
/* PITH_GRAMMAR_CALLS: text is a JSON array of tools, and the grammar that of an answer in which
 * they may be called: anything, but what begins a call, behind the trigger or (in families whose
 * models do that) as a bare or fenced JSON object that names one of the tools where the answer
 * begins, goes on as a call whose arguments satisfy their schema. In reasoning nothing is a call.
 * Families whose calls are not one JSON text need no trigger: their own form is what is held to;
 * schemas whose strings that form cannot keep (a pattern of any characters) are PITH_UNSUPPORTED.
 */
typedef enum pith_grammar_kind {
    PITH_GRAMMAR_GBNF,
    PITH_GRAMMAR_SCHEMA,
    PITH_GRAMMAR_JSON,
    PITH_GRAMMAR_CALLS
} pith_grammar_kind;
struct pith_grammar_params {
    size_t size;
    const char *trigger; /* not NULL: anything may come until this text; the grammar holds for what
                            follows it, in JSON also behind some white space */
    int32_t use_trigger_token, trigger_token; /* the same with a token */
    uint64_t cache_bytes;                     /* most memory for masks, 0 = 64 MiB */
    /* 1, with a trigger: behind a text that the grammar describes anything may come again, until
     * the trigger does, which the grammar then holds behind again; and some white space may stand
     * behind a trigger. For calls of tools inside an answer that may have none. */
    int32_t again;
    /* not NULL: instead of the grammar's, the text may be this prefix (NULL: none) and what
     * satisfies this JSON Schema (terminated): a call of a tool where an answer has to be JSON, as
     * pith_chat_grammar writes both */
    const char *or_prefix, *or_schema;
    int32_t schema_order; /* members of objects in the order of the schema; 0: in any order, where
                             nothing says that there are no others */
    const pith_template *calls_of; /* PITH_GRAMMAR_CALLS: whose family of models; NULL: "generic".
                                      Not used after the call. */
    int32_t calls_only; /* PITH_GRAMMAR_CALLS: 1: the text is one call, or the list of them that the
                           family writes at once, and begins behind pith_chat_opening; for families
                           that have one */
    int32_t strict_schema; /* 1: a schema with uniqueItems that cannot be kept is PITH_UNSUPPORTED,
                              with its place; 0: that is let through */
};
#define PITH_GRAMMAR_PARAMS_INIT PITH_SIZED(struct pith_grammar_params)
/* text: [n_bytes], NULL for JSON. m may be NULL: then text alone can be accepted. A grammar keeps
 * its model alive. */
PITH_API pith_grammar *pith_grammar_open(pith_model *m, pith_grammar_kind kind, const char *text,
                                         size_t n_bytes, const struct pith_grammar_params *params,
                                         struct pith_error *err);
/* Another position in the same compiled grammar, equal at first: one for each sequence. Each is
 * used by one thread at a time, different ones by different threads; who makes a mask keeps the
 * others waiting. */
PITH_API pith_grammar *pith_grammar_clone(const pith_grammar *g, struct pith_error *err);
PITH_API void pith_grammar_close(pith_grammar *g);
PITH_API void pith_grammar_reset(pith_grammar *g); /* back to the empty text */
/* One token further. PITH_STATE: it is not allowed here, nothing has changed. */
PITH_API pith_status pith_grammar_accept(pith_grammar *g, int32_t token, struct pith_error *err);
PITH_API pith_status pith_grammar_accept_text(pith_grammar *g, const char *text, size_t n_bytes,
                                              struct pith_error *err);
/* Makes the mask of the position now, where pith_grammar_mask will find it. Fails as that does. */
PITH_API pith_status pith_grammar_prepare(pith_grammar *g, struct pith_error *err);
PITH_API uint64_t pith_grammar_bytes(
    const pith_grammar *g); /* memory of the compiled grammar and of the masks it keeps; 0: NULL */
PITH_API int
pith_grammar_shares(const pith_grammar *a,
                    const pith_grammar *b); /* positions in the same compiled grammar */
PITH_API int pith_grammar_complete(
    const pith_grammar *g); /* the text so far is a whole one: end tokens are allowed */
/* -infinity to each of the logits [n] whose token is not allowed. */
PITH_API pith_status pith_grammar_mask(pith_grammar *g, float *logits, int32_t n,
                                       struct pith_error *err);
/* The sampler masks a copy of its logits before its chain runs, and every accepted token moves g
 * on. NULL ends that. g stays the caller's and must outlive its use; pith_sampler_reset resets it
 * too. */
PITH_API pith_status pith_sampler_grammar(pith_sampler *s, pith_grammar *g, struct pith_error *err);
/* Most steps (of some 10 ns) that a mask may take inside of a draw; 0, the default: no bound. Past
 * it, or while another thread works with the same compiled grammar, a draw gives PITH_TOKEN_LATER
 * and nothing has changed. Then a copy of the logits can be masked on any thread, by
 * pith_grammar_mask with a clone of the grammar, and pith_sample_masked draws from it what
 * pith_sample would have drawn. Draws of one pith_sample_rows that share a compiled grammar share
 * these steps. */
PITH_API void pith_sampler_mask_steps(pith_sampler *s, uint64_t most);
PITH_API int32_t pith_sample_masked(pith_sampler *s, const float *logits);

/* ---------------------------------------------------------------- generation (the loop above in
 * one call) */

typedef enum pith_stop {
    PITH_STOP_LENGTH,
    PITH_STOP_EOG,
    PITH_STOP_STRING,
    PITH_STOP_CONTEXT,
    PITH_STOP_CALLBACK,
    PITH_STOP_CANCELLED
} pith_stop;

/* Which tokens a model that fills in masks is surest of: by their probability, by how far it is
 * from that of the next one, by the entropy of all, or by chance (of the sampler's seed). */
typedef enum pith_surest {
    PITH_SUREST_PROBABILITY,
    PITH_SUREST_MARGIN,
    PITH_SUREST_ENTROPY,
    PITH_SUREST_RANDOM
} pith_surest;

struct pith_generate_params {
    size_t size;
    int32_t seq;
    /* Terminated text; or tokens below. Of models with an encoder it is what that reads (n_kept: all
     * of it, when the sequence's memory is of the same), and the decoder begins anew. */
    const char *prompt;
    const int32_t *tokens;
    size_t n_tokens;
    int32_t n_max; /* most tokens to make; -1: until the end token; -2: until the context is full,
                      end tokens ignored. 0 = 128 */
    int32_t ignore_eog;
    const char *const *stop; /* NULL-terminated strings; none of their bytes is shown */
    pith_sampler *sampler;   /* NULL = greedy */
    char *text; /* receives the text, terminated, cut at text_cap (n_bytes tells the full length);
                   may be NULL */
    size_t text_cap;
    int (*on_text)(void *ctx, const char *text,
                   size_t n_bytes); /* streaming, whole characters; returning 0 stops */
    void *ctx;
    /* When the context is full: 0 ends the text with PITH_STOP_CONTEXT (*err tells n_prompt, n_ctx
     * and n_over); 1 (not with n_max -2) drops n_discard tokens (0: half of the rest) after the
     * first n_keep (-1: the prompt; a start token is always kept) and goes on. */
    int32_t context_shift, n_keep, n_discard;
    /* Self-extend: the positions of every ga_w tokens but the latest are divided by ga_n, which
     * divides ga_w. 0: off. */
    int32_t ga_n, ga_w;
    /* Models that fill in masks (logits without being causal) write block by block: n_block tokens
     * (0 = 32) are masks at first, and in n_steps steps over the whole text (0: one a token) those
     * that the model is surest of are put in for good; the text is shown block by block. Masks
     * behind the block, up to n_max tokens, are seen meanwhile. Each token is what the sampler
     * draws, which accepts none: nothing looks at a history, and no grammar holds. n_max -1 is 256.
     * The session's n_batch has to hold prompt and text. */
    int32_t n_block, n_steps;
    pith_surest surest;
};
#define PITH_GENERATE_PARAMS_INIT PITH_SIZED(struct pith_generate_params)
struct pith_generate_result {
    size_t size;
    pith_stop stop;
    int32_t n_prompt, n_kept, n_generated;
    size_t n_bytes;
    int64_t prefill_ns, decode_ns;
    /* Where a prompt left what was known of it: the first position that differs (-1: none) and the
     * two tokens as text. */
    int32_t differs_at;
    char differs_known[32], differs_given[32];
    int32_t unfed; /* the last token made, which the sequence does not hold yet; -1: none */
};
#define PITH_GENERATE_RESULT_INIT PITH_SIZED(struct pith_generate_result)
/* Cancelled while it writes: PITH_OK with PITH_STOP_CANCELLED and the text so far; in the prompt:
 * PITH_CANCELLED. */
PITH_API pith_status pith_generate(pith_session *s, const struct pith_generate_params *params,
                                   struct pith_generate_result *out, struct pith_error *err);

/* ---------------------------------------------------------------- machine, bench, tools */

struct pith_machine {
    size_t size;
    char cpu[64]; /* "AMD EPYC" */
    char isa[32]; /* kernel level in use, "avx512vnni" */
    int32_t n_threads;
    double read_gbs;  /* 1e9 bytes/s, all threads reading */
    double int8_gops; /* 1e9 int8 multiply or add /s of the kernels' dot-product instruction */
    double f32_gops;  /* 1e9 f32 multiply or add /s of fma */
};
/* Measures for about ms milliseconds each. n_threads 0 = default. */
PITH_API pith_status pith_machine_measure(int32_t n_threads, int32_t ms, struct pith_machine *out,
                                          struct pith_error *err);
PITH_API const char *pith_isa(void);

struct pith_threads {
    size_t size;
    int32_t n_decode, n_prefill; /* thread counts to open a model with */
    double decode_gbs,
        prefill_gops;  /* 1e9 bytes and int8 operations /s at these counts; 0: not measured */
    char machine[256]; /* what the counts depend on: keep them by this text, and ask again when it
                          differs */
};
/* Finds thread counts by measuring, within about ms milliseconds (up to 60000); ms 0: nothing is
 * measured, the counts are the defaults. */
PITH_API pith_status pith_measure_threads(int32_t ms, struct pith_threads *out,
                                          struct pith_error *err);

/* Writes a random GGUF model: any architecture's tensor table, any size, type and seed. For tests
 * and benchmarks. */
struct pith_synth_params {
    size_t size;
    const char *arch; /* "llama" */
    const char *type; /* matrices: "f32" .. "q6_K"; default f32 */
    int32_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx; /* 0 = a tiny default */
    int32_t head_dim, n_expert, n_expert_used;
    int32_t tied; /* 1: no output matrix */
    uint64_t seed;
};
#define PITH_SYNTH_PARAMS_INIT PITH_SIZED(struct pith_synth_params)
PITH_API pith_status pith_synth(const char *path, const struct pith_synth_params *params,
                                struct pith_error *err);

#ifdef __cplusplus
}
#endif
#endif
