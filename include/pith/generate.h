/* generate.h -- generation, and measuring, benchmarks, tools. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_GENERATE_H
#define PITH_GENERATE_H

#include "pith/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    /* Terminated text; or tokens below. Of models with an encoder it is what that reads (n_kept:
     * all of it, when the sequence's memory is of the same), and the decoder begins anew. */
    const char *prompt;
    const int32_t *tokens;
    size_t n_tokens;
    int32_t n_max; /* most tokens to make; -1: until the end token; -2: until the context is full,
                      end tokens ignored. 0 = 128 */
    int32_t ignore_eog;
    const char *const *stop; /* NULL-terminated strings; none of their bytes is shown */
    /* NULL = greedy. Penalties and dry look at the prompt and what is made, whatever the sampler
     * accepted before; of models with an encoder at what is made. */
    pith_sampler *sampler;
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
    /* Asked before the first token, and behind every one and its text: nonzero, and the n_force
     * tokens come next, whatever the model would say, before it goes on by itself. NULL: never. Not
     * of models that fill in masks. */
    int (*forces)(void *ctx);
    const int32_t *force;
    int32_t n_force;
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

/* Text of a model that fills in masks, a step at a time: for who has something else to do between
 * two steps. pith_generate makes the same text in one call. */
typedef struct pith_fill pith_fill;
struct pith_fill_params {
    size_t size;
    int32_t seq; /* empty before a step and behind it; several texts may take turns with it */
    const int32_t *tokens; /* the prompt, [n_tokens >= 1]; copied */
    size_t n_tokens;
    int32_t n_text;           /* tokens to make, >= 1 */
    int32_t n_block, n_steps; /* as in pith_generate_params */
    pith_surest surest;
    pith_sampler *sampler; /* of its own; the caller closes it, behind the text */
};
#define PITH_FILL_PARAMS_INIT PITH_SIZED(struct pith_fill_params)
/* NULL: the model fills in no masks (PITH_STATE) or has no token for them (PITH_MISSING), prompt
 * and text are more than n_ctx or n_batch, or parameters are wrong (PITH_RANGE). The session is to
 * outlive it. */
PITH_API pith_fill *pith_fill_open(pith_session *s, const struct pith_fill_params *params,
                                   struct pith_error *err);
/* One step of prompt and text. *n is 0, or a block is there for good: its *n tokens, until the next
 * call. One that fails (PITH_CANCELLED, too) changes nothing and may be done again; without a step
 * left it is PITH_STATE. */
PITH_API pith_status pith_fill_step(pith_fill *f, const int32_t **ids, int32_t *n,
                                    struct pith_error *err);
PITH_API int32_t pith_fill_left(const pith_fill *f); /* steps; 0: the text is complete */
PITH_API uint64_t pith_fill_bytes(const pith_fill *f);
PITH_API void pith_fill_close(pith_fill *f); /* NULL allowed */

/* ---------------------------------------------------------------- machine, bench, tools */

struct pith_machine {
    size_t size;
    char cpu[64]; /* "AMD EPYC"; of another device what its maker calls it */
    char isa[32]; /* kernel level in use, "avx512vnni"; "": another device */
    int32_t n_threads;
    double read_gbs;  /* 1e9 bytes/s, all threads reading */
    double int8_gops; /* 1e9 int8 multiply or add /s of the kernels' dot-product instruction */
    double f32_gops;  /* 1e9 f32 multiply or add /s of fma */
};
/* Measures for about ms milliseconds each. n_threads 0 = default. */
PITH_API pith_status pith_machine_measure(int32_t n_threads, int32_t ms, struct pith_machine *out,
                                          struct pith_error *err);
/* The same of device i of pith_device_get. One with memory of its own copies in it: read_gbs is
 * what is read and written together; int8_gops and f32_gops are 0, which is: not known. PITH_RANGE:
 * there are not so many; PITH_UNSUPPORTED: its backend measures nothing; else what keeps it from
 * being opened. */
PITH_API pith_status pith_device_measure(int32_t i, int32_t ms, struct pith_machine *out,
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
    /* NULL-terminated, or NULL. Keys of the architecture without its name, which are written even
     * where they say the default: "ssm.state_size=128". One number stands for all layers. */
    const char *const *keys;
    /* NULL-terminated, or NULL: optional tensors to write, without "blk.N.": "attn_q.bias". */
    const char *const *tensors;
};
#define PITH_SYNTH_PARAMS_INIT PITH_SIZED(struct pith_synth_params)
PITH_API pith_status pith_synth(const char *path, const struct pith_synth_params *params,
                                struct pith_error *err);

#ifdef __cplusplus
}
#endif
#endif
