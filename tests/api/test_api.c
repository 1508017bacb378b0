/* test_api.c -- every public call with what a careless, old or newer program could give it:
 * nothing, too little, too much, the wrong order, two threads, a change of mind. Wanted is the
 * status and message that pith.h promises, and a session that a failed call has not changed. */
#include "refused.h"
#include "robust.h"

#include <math.h>

#include "base/rng.h"

enum { V = 2000, E = 32 }; /* tokens and width of these */
static const struct tiny llama = {"llama", "f32", 32, 2, 16, 48, V, 0, 0, 2, 1};
static const struct tiny gemma = {"gemma3", "q8_0", 32, 2, 16, 32, V, 0, 1, 6, 1};
static const struct tiny embed = {"llama-embed", "f32", 32, 2, 16, 32, V, 0, 0, 1, 1};

struct pair {
    pith_model *m;
    pith_session *s;
};

static void pair_close(struct pair *p)
{
    pith_session_close(p->s);
    pith_model_close(p->m);
    *p = (struct pair){0};
}

/* A model of this shape and a session on it; params may be NULL. */
static int pair_open(struct pair *p, const struct tiny *t, const struct pith_model_params *mp,
                     const struct pith_session_params *sp)
{
    struct pith_error err = {0};
    struct pith_model_params two = PITH_MODEL_PARAMS_INIT;
    const char *path = tiny_write(t, 11);
    two.n_threads = 2;
    *p = (struct pair){0};
    p->m = path ? pith_model_open(path, mp ? mp : &two, &err) : NULL;
    p->s = p->m ? pith_session_open(p->m, sp, &err) : NULL;
    CHECK_MSG(p->s, "%s: %s", tiny_name(t), err.msg);
    if (!p->s)
        pair_close(p);
    return p->s != NULL;
}

static void fill_ids(int32_t *ids, int n, uint64_t seed)
{
    struct rng r;
    rng_init(&r, seed);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(&r, V);
}

/* ---------------------------------------------------------------- nothing instead of something */

static void null_objects(void)
{
    struct pith_tensor_info ti = PITH_TENSOR_INFO_INIT;
    struct pith_memory_report report = PITH_MEMORY_REPORT_INIT;
    char buf[8];
    int32_t id = 1;
    size_t n = 99;
    pith_memory(NULL);
    pith_memory(&report);
    pith_file_close(NULL);
    CHECK(pith_file_n_keys(NULL) == 0 && pith_file_n_tensors(NULL) == 0);
    CHECK(!pith_file_key(NULL, 0) && !pith_file_key_type(NULL, 0));
    CHECK(pith_file_value(NULL, 0, 1, buf, sizeof buf) == -1);
    CHECK(pith_file_tensor(NULL, 0, &ti) == PITH_RANGE);
    CHECK(pith_file_gguf_version(NULL) == 0 && pith_file_n_parts(NULL) == 0 &&
          !pith_file_type(NULL));
    pith_model_close(NULL);
    CHECK(pith_model_meta(NULL, "x", buf, 8) == -1);
    CHECK(!pith_token_is_eog(NULL, 0) && pith_token_bos(NULL) == -1 && pith_token_eos(NULL) == -1);
    CHECK(pith_token_of(NULL, PITH_TOKEN_FIM_PRE) == -1);
    pith_stream_close(NULL);
    CHECK(!strcmp(pith_stream_put(NULL, 5, &n), "") && n == 0);
    CHECK(!strcmp(pith_stream_put(NULL, 5, NULL), ""));
    pith_session_close(NULL);
    CHECK(pith_length(NULL, 0) == -1 && pith_n_ctx(NULL) == 0 && pith_cache_bytes(NULL, 5) == 0);
    CHECK(pith_n_outputs(NULL) == 0 && pith_max_outputs(NULL) == 0);
    CHECK(!pith_logits(NULL, 0) && !pith_embedding(NULL, 0));
    pith_cancel(NULL);
    pith_cancel_reset(NULL);
    pith_profile(NULL, 1);
    CHECK(pith_report(NULL, 0, buf, 8) == -1);
    pith_sampler_close(NULL);
    pith_sampler_reset(NULL);
    pith_sampler_accept(NULL, 1);
    CHECK(pith_sample(NULL, NULL) == -1);
    CHECK(pith_feed(NULL, 0, &id, 1, NULL) == PITH_RANGE);
    CHECK(pith_generate(NULL, NULL, NULL, NULL) == PITH_RANGE);
    CHECK(!strcmp(pith_status_text(PITH_OK), "ok") &&
          strlen(pith_status_text((pith_status)77)) > 3);
    CHECK(strlen(pith_status_text((pith_status)-1)) > 3);
    CHECK(!strcmp(pith_purpose_name(PITH_MEM_CACHE), "cache") &&
          pith_purpose_name((pith_purpose)99));
    CHECK(strstr(pith_version(), "0.1.") && *pith_isa());
}

static void null_arguments(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_machine machine = {.size = sizeof machine};
    int32_t id = 1;
    char buf[8];
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    REFUSED_OBJECT("open", PITH_RANGE, "path", NULL, NULL, pith_model_open(NULL, NULL, &err));
    REFUSED_OBJECT("open", PITH_RANGE, "name", NULL, NULL, pith_model_open("", NULL, &err));
    REFUSED_OBJECT("file", PITH_RANGE, "name", NULL, NULL, pith_file_open(NULL, &err));
    REFUSED_OBJECT("session", PITH_RANGE, "model", NULL, NULL, pith_session_open(NULL, NULL, &err));
    REFUSED_OBJECT("stream", PITH_RANGE, "model", NULL, NULL, pith_stream_open(NULL, &err));
    REFUSED("info", PITH_RANGE, "m is NULL", NULL, NULL, pith_model_get_info(NULL, &info, &err));
    REFUSED("info", PITH_RANGE, "out is NULL", NULL, NULL, pith_model_get_info(p.m, NULL, &err));
    REFUSED("step", PITH_RANGE, "s is NULL", NULL, NULL, pith_step(NULL, &b, &err));
    REFUSED("step", PITH_RANGE, "batch is NULL", NULL, NULL, pith_step(p.s, NULL, &err));
    REFUSED("feed", PITH_RANGE, "tokens is NULL", NULL, NULL, pith_feed(p.s, 0, NULL, 3, &err));
    REFUSED("prefix", PITH_RANGE, "s is NULL", NULL, NULL,
            pith_prefix(NULL, 0, &id, 1, NULL, &err));
    REFUSED("prefix", PITH_RANGE, "tokens is NULL", NULL, NULL,
            pith_prefix(p.s, 0, NULL, 1, NULL, &err));
    REFUSED("truncate", PITH_RANGE, "s is NULL", NULL, NULL, pith_truncate(NULL, 0, 0, &err));
    REFUSED("copy", PITH_RANGE, "s is NULL", NULL, NULL, pith_copy(NULL, 0, 0, 0, 0, &err));
    REFUSED("observe", PITH_RANGE, "s is NULL", NULL, NULL,
            pith_session_observe(NULL, NULL, NULL, &err));
    REFUSED("observe", PITH_STATE, "observe = 1", NULL, NULL,
            pith_session_observe(p.s, NULL, NULL, &err));
    REFUSED("generate", PITH_RANGE, "params is NULL", NULL, NULL,
            pith_generate(p.s, NULL, NULL, &err));
    REFUSED("measure", PITH_RANGE, "out is NULL", NULL, NULL,
            pith_machine_measure(0, 1, NULL, &err));
    REFUSED("measure", PITH_RANGE, "-1", NULL, NULL, pith_machine_measure(-1, 1, &machine, &err));
    REFUSED("device measure", PITH_RANGE, "out is NULL", NULL, NULL,
            pith_device_measure(0, 1, NULL, &err));
    REFUSED("device measure", PITH_RANGE, "no device -1", NULL, NULL,
            pith_device_measure(-1, 1, &machine, &err));
    REFUSED("device measure", PITH_RANGE, "0 ms", NULL, NULL,
            pith_device_measure(0, 0, &machine, &err));
    REFUSED("measure", PITH_RANGE, "0 ms", NULL, NULL, pith_machine_measure(1, 0, &machine, &err));
    REFUSED("synth", PITH_RANGE, "path is NULL", NULL, NULL, pith_synth(NULL, NULL, &err));
    REFUSED("allocator", PITH_RANGE, "size", NULL, NULL, pith_set_allocator(NULL, &err));
    REFUSED_OBJECT("tokenize", PITH_RANGE, "NULL", NULL, NULL,
                   pith_tokenize(NULL, "a", 1, 0, NULL, 0, &err) != -1);
    REFUSED_OBJECT("tokenize", PITH_RANGE, "NULL", NULL, NULL,
                   pith_tokenize(p.m, NULL, 1, 0, NULL, 0, &err) != -1);
    REFUSED_OBJECT("tokenize", PITH_RANGE, "NULL", NULL, NULL,
                   pith_tokenize(p.m, "a", 1, 0, NULL, 4, &err) != -1);
    REFUSED_OBJECT("detokenize", PITH_RANGE, "NULL", NULL, NULL,
                   pith_detokenize(p.m, NULL, 1, 0, buf, 8, &err) != -1);
    REFUSED_OBJECT("detokenize", PITH_RANGE, "NULL", NULL, NULL,
                   pith_detokenize(p.m, &id, 1, 0, NULL, 8, &err) != -1);
    CHECK(pith_tokenize(p.m, NULL, 0, 0, NULL, 0, &err) == 0 &&
          pith_detokenize(p.m, NULL, 0, 0, NULL, 0, &err) == 0);
    CHECK(pith_model_meta(p.m, NULL, buf, 8) == -1);
    CHECK(pith_model_get_info(p.m, NULL, NULL) == PITH_RANGE &&
          pith_step(p.s, NULL, NULL) == PITH_RANGE);
    CHECK(!pith_model_open(NULL, NULL, NULL) && !pith_session_open(NULL, NULL, NULL) &&
          !pith_stream_open(NULL, NULL));
    CHECK(!pith_sampler_open(0, NULL, NULL) && pith_synth(NULL, NULL, NULL) == PITH_RANGE);
    CHECK(pith_cache_bytes(p.s, -5) == 0 && pith_cache_bytes(p.s, 10) > 0);
    uint64_t now = 1, most = 1, before;
    pith_session_memory(NULL, &now, &most);
    CHECK(now == 0 && most == 0);
    pith_session_memory(p.s, &before, NULL);
    CHECK(pith_feed(p.s, 0, (const int32_t[]){1, 2, 3}, 3, NULL) == PITH_OK);
    pith_session_memory(p.s, &now, &most);
    CHECK(before > 0 && now >= before && most >= now);
    pith_truncate(p.s, 0, 0, NULL);
    CHECK(pith_length(p.s, 0) == 0 && pith_length(p.s, 1) == -1 && pith_length(p.s, -1) == -1);
    pair_close(&p);
}

static void file_arguments(void)
{
    struct pith_error err;
    struct pith_tensor_info ti = PITH_TENSOR_INFO_INIT;
    char buf[64];
    const char *path = tiny_write(&llama, 1);
    pith_file *f = path ? pith_file_open(path, &err) : NULL;
    REQUIRE(f, "no file");
    int64_t n = pith_file_n_keys(f), nt = pith_file_n_tensors(f);
    CHECK(n > 5 && nt > 5 && pith_file_gguf_version(f) == 3 && pith_file_n_parts(f) == 1);
    CHECK(!pith_file_key(f, -1) && !pith_file_key(f, n) && !pith_file_key_type(f, n) &&
          pith_file_key(f, n - 1));
    CHECK(pith_file_value(f, -1, 3, buf, 64) == -1 && pith_file_value(f, n, 3, buf, 64) == -1);
    CHECK(pith_file_tensor(f, -1, &ti) == PITH_RANGE && pith_file_tensor(f, nt, &ti) == PITH_RANGE);
    CHECK(pith_file_tensor(f, 0, NULL) == PITH_RANGE && pith_file_tensor(f, 0, &ti) == PITH_OK);
    for (int64_t i = 0; i < n; i++) { /* the length does not depend on the room */
        int64_t full = pith_file_value(f, i, 2, NULL, 0);
        memset(buf, 'x', sizeof buf);
        CHECK(pith_file_value(f, i, 2, NULL, 10) == full); /* room, but none there */
        CHECK(pith_file_value(f, i, 2, buf, 4) == full &&
              strlen(buf) == (size_t)(full < 3 ? full : 3) && buf[4] == 'x');
    }
    pith_file_close(f);
}

/* ---------------------------------------------------------------- sizes of structs */

static void struct_sizes(void)
{
    struct pair p;
    struct pith_error err;
    union { /* more than any struct, so that "newer" ones can be made */
        size_t size;
        uint8_t bytes[1024];
        struct pith_model_params mp;
        struct pith_session_params sp;
        struct pith_batch b;
        struct pith_sampler_params sa;
        struct pith_generate_params g;
        struct pith_synth_params sy;
        struct pith_model_info info;
        struct pith_machine machine;
        struct pith_allocator a;
    } u;
    static const size_t bad[] = {0, 1, 7, 65537, SIZE_MAX};
    char path[256];
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    snprintf(path, sizeof path, "%s/llama-f32.gguf", tmp_dir);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char n[32];
        snprintf(n, sizeof n, "%zu", bad[i]);
        memset(&u, 0, sizeof u);
        u.size = bad[i];
        REFUSED_OBJECT("model params", PITH_RANGE, "size", n, "INIT",
                       pith_model_open(path, &u.mp, &err));
        REFUSED_OBJECT("session params", PITH_RANGE, "size", n, "INIT",
                       pith_session_open(p.m, &u.sp, &err));
        REFUSED_OBJECT("sampler params", PITH_RANGE, "size", n, "INIT",
                       pith_sampler_open(8, &u.sa, &err));
        REFUSED("batch", PITH_RANGE, "size", n, "INIT", pith_step(p.s, &u.b, &err));
        REFUSED("generate", PITH_RANGE, "size", n, "INIT", pith_generate(p.s, &u.g, NULL, &err));
        REFUSED("synth", PITH_RANGE, "size", n, "INIT", pith_synth(path, &u.sy, &err));
        REFUSED("info", PITH_RANGE, "size", n, NULL, pith_model_get_info(p.m, &u.info, &err));
        REFUSED("measure", PITH_RANGE, "size", n, NULL,
                pith_machine_measure(1, 1, &u.machine, &err));
        REFUSED("allocator", PITH_RANGE, "size", n, NULL, pith_set_allocator(&u.a, &err));
    }
    /* An older program knows fewer fields, a newer one more: the known ones count, the others are
     * defaults. */
    memset(&u, 0, sizeof u);
    u.size = sizeof u.size;
    pith_model *m = pith_model_open(path, &u.mp, &err);
    pith_session *s = pith_session_open(m, &u.sp, &err);
    CHECK(m && s && pith_n_ctx(s) == 128);
    pith_session_close(s);
    memset(&u, 0xee, sizeof u);
    u.sp = (struct pith_session_params)PITH_SESSION_PARAMS_INIT;
    u.sp.size = sizeof u;
    u.sp.n_ctx = 100;
    s = pith_session_open(m, &u.sp, &err);
    CHECK_MSG(s && pith_n_ctx(s) == 100, "%s", err.msg);
    pith_session_close(s);
    /* What the library fills: never more than there is, the rest zero. */
    memset(&u, 0xee, sizeof u);
    u.info.size = 32;
    CHECK(pith_model_get_info(m, &u.info, &err) == PITH_OK && !strcmp(u.info.arch, "llama") &&
          u.bytes[32] == 0xee);
    u.info.size = sizeof u;
    CHECK(pith_model_get_info(m, &u.info, &err) == PITH_OK && u.info.n_vocab == V &&
          u.bytes[1023] == 0);
    memset(&u, 0xee, sizeof u);
    u.machine.size = sizeof u.machine - 8;
    CHECK(pith_machine_measure(1, 1, &u.machine, &err) == PITH_OK && u.machine.read_gbs > 0);
    CHECK(u.bytes[sizeof u.machine - 8] == 0xee && u.machine.n_threads == 1);
    pith_model_close(m);
    pair_close(&p);
}

/* ---------------------------------------------------------------- numbers out of range */

static void model_params_range(void)
{
    static const struct {
        const char *word;
        int32_t n_threads, n_batch, n_outputs;
        int weights;
    } rows[] = {{"n_threads", -1, 0, 0, 0}, {"n_threads", 1025, 0, 0, 0},
                {"n_batch", 1, -1, 0, 0},   {"n_batch", 1, 65537, 0, 0},
                {"n_outputs", 1, 0, -1, 0}, {"n_outputs", 1, 16, 17, 0},
                {"weights", 1, 0, 0, -1},   {"weights", 1, 0, 0, 4}};
    struct pith_error err;
    const char *path = tiny_write(&llama, 1);
    for (size_t i = 0; path && i < sizeof rows / sizeof rows[0]; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.n_threads = rows[i].n_threads;
        mp.n_batch = rows[i].n_batch;
        mp.n_outputs = rows[i].n_outputs;
        mp.weights = (pith_weights)rows[i].weights;
        REFUSED_OBJECT(rows[i].word, PITH_RANGE, rows[i].word, "wanted", NULL,
                       pith_model_open(path, &mp, &err));
    }
}

static void session_params_range(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
#define WITH(field, value, st, w1, w2)                                                             \
    do {                                                                                           \
        sp = (struct pith_session_params)PITH_SESSION_PARAMS_INIT;                                 \
        sp.field = value;                                                                          \
        REFUSED_OBJECT(#field " = " #value, st, w1, w2, NULL, pith_session_open(p.m, &sp, &err));  \
    } while (0)
    WITH(n_ctx, -1, PITH_RANGE, "n_ctx", "-1");
    WITH(n_ctx, INT32_MAX, PITH_RANGE, "n_ctx", "2147483647");
    WITH(n_seq, -1, PITH_RANGE, "n_seq", "-1");
    WITH(n_seq, 65537, PITH_RANGE, "n_seq", "65537");
    WITH(n_tokens, -1, PITH_RANGE, "n_tokens", "-1");
    WITH(n_threads, -1, PITH_RANGE, "n_threads", "-1");
    WITH(cache_type_k, "q9", PITH_UNSUPPORTED, "q9", "f16");
    WITH(cache_type_k, "q4_K", PITH_UNSUPPORTED, "q4_K", "f32, f16, bf16, q8_0, q5_1");
    WITH(cache_type_v, "", PITH_UNSUPPORTED, "V", "iq4_nl");
    WITH(cache_type_k, "q8_0", PITH_UNSUPPORTED, "heads of K have 16 elements", "q8_0");
    WITH(cache_type_v, "iq4_nl", PITH_UNSUPPORTED, "heads of V have 16 elements", "iq4_nl");
    WITH(pooling, (pith_pooling)-1, PITH_UNSUPPORTED, "pooling", "-1");
    WITH(pooling, (pith_pooling)99, PITH_UNSUPPORTED, "pooling", "99");
    WITH(pooling, PITH_POOL_RANK, PITH_UNSUPPORTED, "pooling", "cls.output.weight");
#undef WITH
    pair_close(&p);
}

static void sampler_params_range(void)
{
    struct pith_error err;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    float logits[8] = {0}, none[8];
    REFUSED_OBJECT("vocabulary of 0", PITH_RANGE, "n_vocab", NULL, NULL,
                   pith_sampler_open(0, NULL, &err));
    REFUSED_OBJECT("vocabulary of -1", PITH_RANGE, "n_vocab", "-1", NULL,
                   pith_sampler_open(-1, NULL, &err));
#define WITH(field, value)                                                                         \
    do {                                                                                           \
        sp = (struct pith_sampler_params)PITH_SAMPLER_PARAMS_INIT;                                 \
        sp.repeat_penalty = 2;                                                                     \
        sp.field = value;                                                                          \
        REFUSED_OBJECT(#field " = " #value, PITH_RANGE, #field, NULL, NULL,                        \
                       pith_sampler_open(8, &sp, &err));                                           \
    } while (0)
    WITH(temperature, -1);
    WITH(temperature, NAN);
    WITH(temperature, INFINITY);
    WITH(top_k, -1);
    WITH(top_p, -0.5f);
    WITH(top_p, 1.5f);
    WITH(min_p, NAN);
    WITH(repeat_penalty, -1);
    WITH(frequency_penalty, NAN);
    WITH(presence_penalty, INFINITY);
    WITH(typical_p, 1.5f);
    WITH(top_n_sigma, NAN);
    WITH(dynatemp_range, -1);
    WITH(dynatemp_exponent, NAN);
    WITH(xtc_probability, 2);
    WITH(xtc_threshold, -0.5f);
    WITH(penalty_last_n, -2);
    WITH(dry_multiplier, -1);
    WITH(dry_base, NAN);
    WITH(dry_allowed_length, -1);
    WITH(dry_last_n, 1 << 25);
    WITH(mirostat, 3);
    WITH(mirostat_tau, -1);
    WITH(mirostat_eta, INFINITY);
    WITH(adaptive_target, 1.5f);
    WITH(adaptive_decay, 1);
#undef WITH
    pith_sampler *s = pith_sampler_open(8, NULL, &err);
    for (int i = 0; i < 8; i++)
        none[i] = NAN;
    logits[3] = 1;
    CHECK(pith_sample(s, logits) == 3 && pith_sample(s, NULL) == -1 && pith_sample(s, none) == -1);
    pith_sampler_accept(s, -1);
    pith_sampler_accept(s, 8);
    pith_sampler_close(s);
}

/* Advice of a file, and what else there is. */
static void sampler_advice(void)
{
    static const char *const advice[] = {"general.sampling.temp=float:0.25",
                                         "general.sampling.top_k=int:-1",
                                         "general.sampling.penalty_repeat=float:1.5",
                                         "general.sampling.penalty_last_n=int:0",
                                         "general.sampling.xtc_threshold=float:0.5",
                                         "general.sampling.mirostat=int:2",
                                         "general.sampling.min_p=float:7",
                                         "general.sampling.top_p=str:x",
                                         NULL};
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT, other = PITH_SAMPLER_PARAMS_INIT;
    check_refused("no out", pith_sampler_defaults(NULL, NULL, NULL, &err), &err, PITH_RANGE, "out",
                  0, 0);
    p.size = 3;
    check_refused("size of out", pith_sampler_defaults(NULL, NULL, &p, &err), &err, PITH_RANGE,
                  "size", 0, 0);
    p.size = sizeof p;
    other.size = 1;
    check_refused("size of otherwise", pith_sampler_defaults(NULL, &other, &p, &err), &err,
                  PITH_RANGE, "size", 0, 0);
    CHECK(pith_sampler_defaults(NULL, NULL, &p, &err) == PITH_OK);
    CHECK(p.temperature == 0.8f && p.top_k == 40 && p.top_p == 0.95f && p.min_p == 0.05f &&
          p.repeat_penalty == 0 && p.mirostat == 0 && p.seed == 0);
    other = (struct pith_sampler_params){
        .size = sizeof other, .temperature = 3, .typical_p = 0.5f, .repeat_penalty = 1.1f};
    mp.vocab_only = 1;
    mp.overrides = advice;
    pith_model *m = pith_model_open(tiny_write(&llama, 11), &mp, &err);
    CHECK_MSG(m, "%s", err.msg);
    pith_status st = pith_sampler_defaults(m, &other, &p, &err);
    check_refused("advice that is none", st, &err, PITH_RANGE, "general.sampling.top_p", 0, 0);
    CHECK(p.temperature == 0.25f && p.top_k == 0 && p.top_p == 0 && p.min_p == 0 &&
          p.typical_p == 0.5f);
    CHECK(p.repeat_penalty == 0 && p.xtc_threshold == 0.5f && p.mirostat == 2);
    p.size = offsetof(struct pith_sampler_params, min_p); /* of an older program */
    p.min_p = 9;
    pith_sampler_defaults(m, NULL, &p, &err);
    CHECK(p.size == offsetof(struct pith_sampler_params, min_p) && p.temperature == 0.25f &&
          p.top_p == 0.95f && p.min_p == 9);
    pith_model_close(m);
}

static void generate_params_range(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    int32_t ids[] = {1, V};
    char text[16] = "before";
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    g.tokens = ids;
    g.n_tokens = 1;
    g.text = text;
    g.text_cap = sizeof text;
    g.n_force = 1;
    REFUSED("force", PITH_RANGE, "n_force is 1", "NULL", NULL, pith_generate(p.s, &g, &r, &err));
    g.n_force = 0;
    g.n_max = -3;
    REFUSED("n_max", PITH_RANGE, "n_max", "-3", NULL, pith_generate(p.s, &g, &r, &err));
    g.n_max = 1;
    g.seq = 1;
    REFUSED("seq", PITH_RANGE, "sequence 1", NULL, NULL, pith_generate(p.s, &g, &r, &err));
    g.seq = -1;
    REFUSED("seq", PITH_RANGE, "sequence -1", NULL, NULL, pith_generate(p.s, &g, &r, &err));
    g.seq = 0;
    g.n_tokens = 2;
    REFUSED("token", PITH_RANGE, "token 1 is 2000", NULL, NULL, pith_generate(p.s, &g, &r, &err));
    g.n_tokens = 0;
    REFUSED("no tokens", PITH_RANGE, "empty", NULL, NULL, pith_generate(p.s, &g, &r, &err));
    g.n_tokens = (size_t)1 << 40; /* more than there is: must not be read */
    REFUSED("tokens", PITH_RANGE, "n_prompt = 1099511627776", "n_ctx = 128",
            "n_over = 1099511627648", pith_generate(p.s, &g, &r, &err));
    CHECK(text[0] == 0 && pith_length(p.s, 0) == 0);
    g.tokens = NULL; /* and no text: the start token alone */
    g.n_tokens = 0;
    CHECK_MSG(pith_generate(p.s, &g, &r, &err) == PITH_OK && r.n_prompt == 1, "%s", err.msg);
    pair_close(&p);
}

/* ---------------------------------------------------------------- a failed call changes nothing */

struct before {
    int64_t n[4];
    int32_t n_outputs;
    float logits[V];
};

static void look(pith_session *s, struct before *b)
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 4; i++)
        b->n[i] = pith_length(s, i);
    b->n_outputs = pith_n_outputs(s);
    if (pith_logits(s, 0))
        memcpy(b->logits, pith_logits(s, 0), sizeof b->logits);
}

static void check_unchanged(const char *what, pith_session *s, const struct before *was)
{
    struct before now;
    look(s, &now);
    CHECK_MSG(!memcmp(&now, was, sizeof now), "%s: the session has changed", what);
}

static void bad_batches(void)
{
    struct pair p;
    struct pith_error err;
    struct before was;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[200], seqs[200];
    static float rows[2 * E];
    sp.n_ctx = 100;
    sp.n_seq = 2;
    if (!pair_open(&p, &llama, NULL, &sp))
        return;
    fill_ids(ids, 200, 1);
    CHECK(pith_feed(p.s, 0, ids, 30, &err) == PITH_OK &&
          pith_feed(p.s, 1, ids, 7, &err) == PITH_OK);
    look(p.s, &was);
    struct pith_batch b = PITH_BATCH_INIT;
    REFUSED("empty batch", PITH_RANGE, "0 rows", NULL, NULL, pith_step(p.s, &b, &err));
    b.n = -1;
    b.token = ids;
    REFUSED("-1 rows", PITH_RANGE, "-1 rows", NULL, NULL, pith_step(p.s, &b, &err));
    b.n = 2;
    b.embd = rows;
    ids[1] = -2;
    REFUSED("both", PITH_RANGE, "row 1", "token -2", "-1 is an embedding row",
            pith_step(p.s, &b, &err));
    b.n = 0;
    REFUSED("none of both", PITH_RANGE, "both", NULL, NULL, pith_step(p.s, &b, &err));
    fill_ids(ids, 200, 1);
    b.n = 2;
    b.token = NULL;
    b.embd = NULL;
    REFUSED("neither", PITH_RANGE, "neither", NULL, NULL, pith_step(p.s, &b, &err));
    b.token = ids;
    b.seq = seqs;
    seqs[1] = 2;
    REFUSED("sequence 2", PITH_RANGE, "row 1", "sequence 2", "0..1", pith_step(p.s, &b, &err));
    seqs[1] = -1;
    REFUSED("sequence -1", PITH_RANGE, "row 1", "sequence -1", NULL, pith_step(p.s, &b, &err));
    seqs[1] = 1;
    ids[1] = V;
    REFUSED("token", PITH_RANGE, "row 1", "token 2000", "0..1999", pith_step(p.s, &b, &err));
    ids[1] = -1;
    REFUSED("token", PITH_RANGE, "row 1", "token -1", NULL, pith_step(p.s, &b, &err));
    ids[1] = INT32_MIN;
    REFUSED("token of a feed", PITH_RANGE, "token -2147483648", NULL, NULL,
            pith_feed(p.s, 1, ids, 2, &err));
    REFUSED("token of a prefix", PITH_RANGE, "token 1", NULL, NULL,
            pith_prefix(p.s, 1, ids, 2, NULL, &err));
    fill_ids(ids, 200, 1);
    REFUSED("feed of none", PITH_RANGE, "0 rows", NULL, NULL, pith_feed(p.s, 0, ids, 0, &err));
    REFUSED("prefix of none", PITH_RANGE, "no tokens", NULL, NULL,
            pith_prefix(p.s, 0, ids, 0, NULL, &err));
    REFUSED("feed elsewhere", PITH_RANGE, "sequence 2", NULL, NULL,
            pith_feed(p.s, 2, ids, 1, &err));
    REFUSED("prefix elsewhere", PITH_RANGE, "sequence -1", NULL, NULL,
            pith_prefix(p.s, -1, ids, 1, NULL, &err));
    REFUSED("truncate", PITH_RANGE, "31", "30", NULL, pith_truncate(p.s, 0, 31, &err));
    REFUSED("truncate", PITH_RANGE, "-1", NULL, NULL, pith_truncate(p.s, 0, -1, &err));
    REFUSED("truncate elsewhere", PITH_RANGE, "sequence 9", NULL, NULL,
            pith_truncate(p.s, 9, 0, &err));
    REFUSED("copy", PITH_RANGE, "[8, 7)", "0 <= p0 <= p1", NULL, pith_copy(p.s, 0, 1, 8, 7, &err));
    REFUSED("copy", PITH_RANGE, "[-1, 3)", NULL, NULL, pith_copy(p.s, 0, 1, -1, 3, &err));
    REFUSED("copy", PITH_RANGE, "sequence 5", NULL, NULL, pith_copy(p.s, 5, 1, 0, 1, &err));
    REFUSED("copy", PITH_RANGE, "sequence -7", NULL, NULL, pith_copy(p.s, 0, -7, 0, 1, &err));
    check_unchanged("bad batches", p.s, &was);
    CHECK(!pith_logits(p.s, -1) && !pith_logits(p.s, 1) && !pith_embedding(p.s, 0) &&
          pith_logits(p.s, 0));
    pair_close(&p);
}

static void over_the_context(void)
{
    struct pair p;
    struct pith_error err;
    struct before was;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[200], seqs[200];
    char text[1024] = "";
    fill_ids(ids, 200, 2);
    sp.n_ctx = 100;
    sp.n_seq = 2;
    if (!pair_open(&p, &llama, NULL, &sp))
        return;
    CHECK(pith_feed(p.s, 0, ids, 30, &err) == PITH_OK);
    look(p.s, &was);
    REFUSED("feed", PITH_RANGE, "n_prompt = 101", "n_ctx = 100", "n_over = 1",
            pith_feed(p.s, 0, ids, 71, &err));
    REFUSED("feed", PITH_RANGE, "n_prompt = 150", "n_ctx = 100", "n_over = 50",
            pith_feed(p.s, 1, ids, 150, &err));
    REFUSED("huge feed", PITH_RANGE, "n_prompt = 1099511627806", "n_ctx = 100",
            "n_over = 1099511627706", pith_feed(p.s, 0, ids, (size_t)1 << 40, &err));
    REFUSED("prefix", PITH_RANGE, "n_prompt = 101", "n_ctx = 100", "n_over = 1",
            pith_prefix(p.s, 0, ids, 101, NULL, &err));
    REFUSED("huge prefix", PITH_RANGE, "n_prompt = 1099511627776", "n_ctx = 100", NULL,
            pith_prefix(p.s, 0, ids, (size_t)1 << 40, NULL, &err));
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 171; /* 71 rows for the first sequence, 100 for the second */
    b.token = ids;
    b.seq = seqs;
    for (int i = 0; i < 171; i++)
        seqs[i] = i >= 71;
    REFUSED("batch", PITH_RANGE, "n_prompt = 101", "n_ctx = 100", "n_over = 1",
            pith_step(p.s, &b, &err));
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    for (int i = 0; i < 120; i++)
        strcat(text, " w270");
    g.prompt = text;
    char n_prompt[32];
    snprintf(n_prompt, sizeof n_prompt, "n_prompt = %" PRId64,
             pith_tokenize(p.m, text, strlen(text), PITH_ADD_SPECIAL, NULL, 0, &err));
    REFUSED("generate", PITH_RANGE, n_prompt, "n_ctx = 100",
            "n_over = ", pith_generate(p.s, &g, NULL, &err));
    check_unchanged("over the context", p.s, &was);
    CHECK_MSG(pith_feed(p.s, 0, ids, 70, &err) == PITH_OK && pith_length(p.s, 0) == 100,
              "to the brim: %s", err.msg);
    pair_close(&p);
}

/* Without pages nothing moves; with some of them given back the same step gives the bits it always
 * gives. */
static void out_of_pages(const struct tiny *t)
{
    struct pair p, q;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[128];
    fill_ids(ids, 128, 3);
    mp.n_threads = 1;
    mp.n_batch = 48; /* a prompt is several steps: the failure may come after some of them */
    sp.n_ctx = 128;
    sp.n_seq = 4;
    if (!pair_open(&q, t, &mp, &sp)) /* enough for all */
        return;
    sp.n_tokens = 1; /* one page, and one more for each sequence */
    if (!pair_open(&p, t, &mp, &sp)) {
        pair_close(&q);
        return;
    }
    for (int i = 0; i < 2; i++)
        CHECK_MSG(pith_feed(p.s, i, ids, 128, &err) == PITH_OK, "%s", err.msg);
    int64_t was = pith_length(p.s, 2);
    REFUSED("pages", PITH_NOMEM, "cache is full", "sequence 2", "n_tokens",
            pith_feed(p.s, 2, ids, 128, &err));
    CHECK_MSG(pith_length(p.s, 2) == was && pith_length(p.s, 0) == 128 && pith_n_outputs(p.s) == 0,
              "%" PRId64 " positions, %d outputs", pith_length(p.s, 2), pith_n_outputs(p.s));
    CHECK(pith_feed(p.s, 2, ids, 64, &err) == PITH_OK &&
          pith_feed(q.s, 2, ids, 64, &err) == PITH_OK);
    CHECK_MSG(!memcmp(pith_logits(p.s, 0), pith_logits(q.s, 0), V * sizeof(float)),
              "other bits after a refusal");
    REFUSED("pages", PITH_NOMEM, "cache is full", NULL, NULL, pith_feed(p.s, 2, ids, 64, &err));
    CHECK(pith_length(p.s, 2) == 64 && pith_truncate(p.s, 0, 0, &err) == PITH_OK);
    CHECK(pith_feed(p.s, 2, ids, 64, &err) == PITH_OK &&
          pith_feed(q.s, 2, ids, 64, &err) == PITH_OK);
    CHECK_MSG(!memcmp(pith_logits(p.s, 0), pith_logits(q.s, 0), V * sizeof(float)),
              "other bits on used pages");
    CHECK(pith_feed(q.s, 1, ids, 127, &err) == PITH_OK &&
          pith_feed(q.s, 1, ids + 127, 1, &err) == PITH_OK);
    CHECK(pith_prefix(p.s, 1, ids, 128, NULL, &err) == PITH_OK);
    CHECK_MSG(!memcmp(pith_logits(p.s, 0), pith_logits(q.s, 0), V * sizeof(float)),
              "a neighbour's bits have changed");
    pair_close(&p);
    pair_close(&q);
}

static void pages_run_out(void)
{
    out_of_pages(&llama);
    out_of_pages(&gemma);
}

/* ---------------------------------------------------------------- outputs */

static void outputs_asked_for(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    static int32_t ids[40];
    static uint8_t none[40], many[40];
    static float want[V];
    mp.n_threads = 2;
    mp.n_batch = 16;
    mp.n_outputs = 3;
    fill_ids(ids, 40, 4);
    if (!pair_open(&p, &llama, &mp, NULL))
        return;
    CHECK(pith_max_outputs(p.s) == 3);
    CHECK(pith_feed(p.s, 0, ids, 40, &err) == PITH_OK && pith_n_outputs(p.s) == 1);
    memcpy(want, pith_logits(p.s, 0), sizeof want);
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 39;
    b.token = ids;
    b.want = none;
    CHECK(pith_truncate(p.s, 0, 0, &err) == PITH_OK && pith_step(p.s, &b, &err) == PITH_OK);
    CHECK(pith_n_outputs(p.s) == 0 && !pith_logits(p.s, 0) && pith_length(p.s, 0) == 39);
    CHECK(pith_feed(p.s, 0, ids + 39, 1, &err) == PITH_OK &&
          !memcmp(want, pith_logits(p.s, 0), sizeof want));
    many[0] = many[17] = many[39] = 1;
    b.n = 40;
    b.want = many;
    CHECK(pith_truncate(p.s, 0, 0, &err) == PITH_OK && pith_step(p.s, &b, &err) == PITH_OK);
    CHECK(pith_n_outputs(p.s) == 3 && pith_logits(p.s, 0) != pith_logits(p.s, 1));
    CHECK(!memcmp(want, pith_logits(p.s, 2), sizeof want));
    many[20] = 1;
    pith_truncate(p.s, 0, 0, &err);
    REFUSED("outputs", PITH_RANGE, "4 outputs", "3", "n_outputs", pith_step(p.s, &b, &err));
    CHECK(pith_length(p.s, 0) == 0 && pith_n_outputs(p.s) == 3);
    pair_close(&p);
}

/* Pooled: an output for each sequence, whatever the rows asked for, and never more than there is
 * room for. */
static void pooled_outputs(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[16], seqs[16];
    static uint8_t none[16];
    mp.n_threads = 1;
    mp.n_outputs = 4;
    sp.n_seq = 8;
    sp.pooling = PITH_POOL_MEAN;
    fill_ids(ids, 16, 5);
    for (int i = 0; i < 16; i++)
        seqs[i] = i / 2;
    for (int k = 0; k < 2; k++) {
        if (!pair_open(&p, k ? &llama : &embed, &mp, &sp))
            return;
        struct pith_batch b = PITH_BATCH_INIT;
        b.token = ids;
        b.seq = seqs;
        b.want = none;
        b.n = 8;
        CHECK_MSG(pith_step(p.s, &b, &err) == PITH_OK && pith_n_outputs(p.s) == 4, "%s, %d outputs",
                  err.msg, pith_n_outputs(p.s));
        CHECK(pith_embedding(p.s, 3) && !pith_embedding(p.s, 4) && !pith_logits(p.s, 0));
        for (int i = 0; i < 8; i++)
            pith_truncate(p.s, i, 0, NULL);
        b.n = 16;
        for (int w = 0; w < 2; w++) {
            REFUSED("pooled outputs", PITH_RANGE, "8 outputs", "4", NULL, pith_step(p.s, &b, &err));
            b.want = NULL;
        }
        pair_close(&p);
    }
}

static void whole_sequences(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    static int32_t ids[32];
    mp.n_threads = 1;
    mp.n_batch = 16;
    fill_ids(ids, 32, 6);
    if (!pair_open(&p, &embed, &mp, NULL))
        return;
    REFUSED("too long", PITH_RANGE, "17 rows", "n_batch = 16", NULL,
            pith_feed(p.s, 0, ids, 17, &err));
    CHECK(pith_feed(p.s, 0, ids, 16, &err) == PITH_OK && pith_embedding(p.s, 0) &&
          !pith_logits(p.s, 0));
    REFUSED("more", PITH_STATE, "16 positions", "truncate", NULL, pith_feed(p.s, 0, ids, 1, &err));
    CHECK(pith_prefix(p.s, 0, ids, 9, NULL, &err) == PITH_OK && pith_length(p.s, 0) == 9);
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    g.prompt = "w270";
    REFUSED("generate", PITH_STATE, "embeddings", NULL, NULL, pith_generate(p.s, &g, NULL, &err));
    pair_close(&p);
}

/* ---------------------------------------------------------------- rows of embeddings */

/* Reads the rows of an f32 matrix straight from the file. */
static float *embedding_rows(const char *path, const int32_t *ids, int n)
{
    struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
    pith_file *f = pith_file_open(path, NULL);
    float *rows = malloc((size_t)n * E * sizeof *rows);
    size_t size;
    uint8_t *bytes = file_bytes(path, &size);
    int found = 0;
    for (int64_t i = 0; f && bytes && i < pith_file_n_tensors(f); i++)
        if (pith_file_tensor(f, i, &t) == PITH_OK && !strcmp(t.name, "token_embd.weight") &&
            !strcmp(t.type, "f32") && t.dims[1] == E && t.offset + t.bytes <= size) {
            found = 1;
            for (int k = 0; k < n; k++)
                memcpy(rows + k * E, bytes + t.offset + (size_t)ids[k] * E * sizeof(float),
                       E * sizeof(float));
        }
    CHECK_MSG(found, "%s: no f32 token_embd.weight of rows of %d", path, E);
    free(bytes);
    pith_file_close(f);
    return rows;
}

static void embedding_rows_are_tokens(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[50], seqs[50];
    static float want[2][V];
    size_t kept = 99;
    sp.n_seq = 2;
    mp.n_threads = 2;
    mp.n_batch = 16;
    fill_ids(ids, 50, 7);
    for (int i = 0; i < 50; i++)
        seqs[i] = i % 3 == 0;
    if (!pair_open(&p, &llama, &mp, &sp))
        return;
    float *rows = embedding_rows(tmp_path("llama-f32.gguf"), ids, 50);
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 50;
    b.seq = seqs;
    b.token = ids;
    CHECK(pith_step(p.s, &b, &err) == PITH_OK && pith_n_outputs(p.s) == 2);
    for (int i = 0; i < 2; i++) {
        memcpy(want[i], pith_logits(p.s, i), sizeof want[i]);
        pith_truncate(p.s, i, 0, &err);
    }
    b.token = NULL;
    b.embd = rows;
    CHECK_MSG(pith_step(p.s, &b, &err) == PITH_OK && pith_n_outputs(p.s) == 2, "%s", err.msg);
    for (int i = 0; i < 2; i++)
        CHECK_MSG(!memcmp(want[i], pith_logits(p.s, i), sizeof want[i]),
                  "output %d of rows is not that of tokens", i);
    /* A row has no token: nothing of it is ever taken for a prefix. */
    CHECK(pith_prefix(p.s, 0, ids, 20, &kept, &err) == PITH_OK && kept == 0);
    free(rows);
    pair_close(&p);
}

/* Rows that are not numbers leave nothing behind in the pages they used. */
static void not_a_number_stays_alone(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t ids[100], seqs[100];
    static float rows[100 * E], want[V];
    static const char *const types[] = {"f16", "f32"};
    fill_ids(ids, 100, 8);
    for (int i = 0; i < 100 * E; i++)
        rows[i] = i % 3 ? NAN : -INFINITY;
    for (int i = 0; i < 100; i++)
        seqs[i] = i % 2;
    sp.n_seq = 2;
    for (int k = 0; k < 4; k++) {
        sp.cache_type_k = sp.cache_type_v = types[k % 2];
        if (!pair_open(&p, k < 2 ? &llama : &gemma, NULL, &sp))
            return;
        struct pith_batch b = PITH_BATCH_INIT;
        CHECK(pith_feed(p.s, 0, ids, 41, &err) == PITH_OK);
        memcpy(want, pith_logits(p.s, 0), sizeof want);
        CHECK(isfinite(want[0]));
        for (int round = 0; round < 2; round++) {
            pith_truncate(p.s, 0, 0, &err);
            pith_truncate(p.s, 1, 0, &err);
            b.n = 100;
            b.embd = rows;
            b.token = NULL;
            b.seq = round ? seqs : NULL;
            CHECK(pith_step(p.s, &b, &err) == PITH_OK && !isfinite(pith_logits(p.s, 0)[0]));
            if (round) { /* beside them, too */
                pith_truncate(p.s, 0, 0, &err);
                CHECK(pith_feed(p.s, 1, ids, 3, &err) == PITH_OK);
            } else {
                pith_truncate(p.s, 0, 0, &err);
            }
            CHECK(pith_feed(p.s, 0, ids, 41, &err) == PITH_OK);
            CHECK_MSG(!memcmp(want, pith_logits(p.s, 0), sizeof want),
                      "%s, %s cache: NaN has leaked", k < 2 ? "llama" : "gemma3", types[k % 2]);
        }
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- cancelling */

struct canceller {
    pith_session *s;
    atomic_int started;
    double wait_s, at; /* when the call was made */
};

static void *cancel_later(void *arg)
{
    struct canceller *c = arg;
    while (!atomic_load(&c->started))
        ;
    struct timespec t = {.tv_nsec = (long)(c->wait_s * 1e9)};
    nanosleep(&t, NULL);
    c->at = seconds();
    pith_cancel(c->s);
    return NULL;
}

/* Cancels while fn runs; the time from the cancelling to the end of it in *took. Returns what fn
 * returned. */
static pith_status cancelled(pith_session *s, double wait_s,
                             pith_status (*fn)(pith_session *, struct pith_error *),
                             struct pith_error *err, double *took)
{
    struct canceller c = {.s = s, .wait_s = wait_s};
    pthread_t thread;
    pthread_create(&thread, NULL, cancel_later, &c);
    atomic_store(&c.started, 1);
    pith_status st = fn(s, err);
    double end = seconds();
    pthread_join(thread, NULL);
    *took = end - c.at;
    return st;
}

static const struct tiny slow = {"llama", "q8_0", 256, 8, 32, 1024, V, 0, 0, 4, 1};
static int32_t n_long, long_ids[3000];

static pith_status long_feed(pith_session *s, struct pith_error *err)
{
    return pith_feed(s, 0, long_ids + 100, (size_t)n_long - 100, err);
}

static pith_status long_prefix(pith_session *s, struct pith_error *err)
{
    return pith_prefix(s, 0, long_ids, (size_t)n_long, NULL, err);
}

static pith_status long_generate(pith_session *s, struct pith_error *err)
{
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    g.tokens = long_ids;
    g.n_tokens = 100;
    g.n_max = -2;
    g.ignore_eog = 1;
    pith_status st = pith_generate(s, &g, &r, err);
    CHECK_MSG(st != PITH_OK || pith_length(s, 0) >= 100, "%" PRId64 " positions",
              pith_length(s, 0));
    return st == PITH_OK && r.stop == PITH_STOP_CANCELLED ? PITH_CANCELLED : st;
}

static void cancel_and_go_on(void)
{
    static const struct {
        const char *name;
        pith_status (*fn)(pith_session *, struct pith_error *);
    } calls[] = {{"feed", long_feed}, {"prefix", long_prefix}, {"generate", long_generate}};
    struct pair p, q;
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static float want[V];
    double limit = UNDER_SANITIZER ? 1.0 : 0.1;
    n_long = test_scale() >= 10 ? 3000 : 1000;
    sp.n_ctx = n_long + 1;
    fill_ids(long_ids, n_long, 9);
    if (!pair_open(&p, &slow, NULL, &sp))
        return;
    q.s = pith_session_open(p.m, &sp, &err);
    REQUIRE(q.s, "%s", err.msg);
    CHECK(pith_feed(q.s, 0, long_ids, 100, &err) == PITH_OK);
    double whole = seconds();
    CHECK(long_feed(q.s, &err) == PITH_OK);
    whole = seconds() - whole;
    memcpy(want, pith_logits(q.s, 0), sizeof want);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        double best = 1e9, worst = 0, within = whole * 0.6;
        int hits = 0;
        for (int t = 0; t < 16 && (hits < 4 || best > limit);
             t++) { /* the machine does other things too */
            double took = 0;
            pith_truncate(p.s, 0, 0, &err);
            pith_cancel_reset(p.s);
            CHECK(pith_feed(p.s, 0, long_ids, 100, &err) == PITH_OK);
            pith_status st = cancelled(p.s, within * (hits % 4) / 3, calls[i].fn, &err, &took);
            if (st == PITH_OK && took < 0) { /* came too late */
                within /= 2;
                continue;
            }
            hits++;
            CHECK_MSG(st == PITH_CANCELLED, "%s: status %d", calls[i].name, (int)st);
            CHECK_MSG(i == 2 || (pith_length(p.s, 0) == 100 && pith_n_outputs(p.s) == 0),
                      "%s: %" PRId64 " positions", calls[i].name, pith_length(p.s, 0));
            best = took < best ? took : best;
            worst = took > worst ? took : worst;
            CHECK(pith_feed(p.s, 0, long_ids, 1, &err) == PITH_CANCELLED); /* until it is reset */
        }
        CHECK_MSG(hits >= 4, "%s: cancelled %d times only", calls[i].name, hits);
        printf("# %s of %.0f ms ends %.1f to %.1f ms after it is cancelled\n", calls[i].name,
               whole * 1e3, best * 1e3, worst * 1e3);
        CHECK_MSG(best <= limit, "%s: %.0f ms from the cancelling to the end", calls[i].name,
                  best * 1e3);
        pith_cancel_reset(p.s);
        CHECK_MSG(pith_prefix(p.s, 0, long_ids, (size_t)n_long, NULL, &err) == PITH_OK, "%s",
                  err.msg);
        CHECK_MSG(!memcmp(want, pith_logits(p.s, 0), sizeof want),
                  "%s: other bits after a cancelled call", calls[i].name);
    }
    pith_session_close(q.s);
    pair_close(&p);
}

/* ---------------------------------------------------------------- two threads */

struct talker {
    pith_model *m;
    int32_t ids[40], said[60];
    float logits[V];
    int bad;
};

static void *talk(void *arg)
{
    struct talker *t = arg;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    sp.temperature = 1;
    sp.seed = (uint64_t)t->ids[0];
    pith_session *s = pith_session_open(t->m, NULL, NULL);
    pith_sampler *sampler = pith_sampler_open(V, &sp, NULL);
    pith_stream *stream = pith_stream_open(t->m, NULL);
    t->bad = !s || !sampler || !stream || !pith_arch_names()[0] ||
             pith_feed(s, 0, t->ids, 40, NULL) != PITH_OK;
    for (int i = 0; i < 60 && !t->bad; i++) {
        int32_t id = t->said[i] = pith_sample(sampler, pith_logits(s, 0));
        pith_sampler_accept(sampler, id);
        pith_stream_put(stream, id, NULL);
        t->bad |= pith_feed(s, 0, &id, 1, NULL) != PITH_OK;
    }
    if (!t->bad)
        memcpy(t->logits, pith_logits(s, 0), sizeof t->logits);
    int32_t ids[16];
    char buf[64];
    t->bad |= pith_tokenize(t->m, "w270 w271", 9, PITH_ADD_SPECIAL, ids, 16, NULL) < 3;
    t->bad |= pith_detokenize(t->m, t->said, 60, 0, buf, sizeof buf, NULL) < 1;
    t->bad |= pith_model_meta(t->m, "general.name", buf, sizeof buf) < 1 ||
              pith_report(s, 1, buf, sizeof buf) < 10;
    pith_stream_close(stream);
    pith_sampler_close(sampler);
    pith_session_close(s);
    return NULL;
}

static void two_threads(void)
{
    static const struct tiny *const models[] = {&llama, &gemma};
    static struct talker alone[3], together[3];
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    mp.n_threads = 2;
    for (int k = 0; k < 2; k++) {
        const char *path = tiny_write(models[k], 11);
        pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
        pthread_t threads[3];
        REQUIRE(m, "%s", err.msg);
        for (int i = 0; i < 3; i++) {
            alone[i].m = m;
            fill_ids(alone[i].ids, 40, (uint64_t)(20 + i));
            together[i] = alone[i];
            talk(&alone[i]);
            CHECK(!alone[i].bad);
        }
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 3; i++)
                pthread_create(&threads[i], NULL, talk, &together[i]);
            for (int i = 0; i < 3; i++) {
                pthread_join(threads[i], NULL);
                CHECK(!together[i].bad);
                CHECK_MSG(!memcmp(alone[i].said, together[i].said, sizeof alone[i].said) &&
                              !memcmp(alone[i].logits, together[i].logits, sizeof alone[i].logits),
                          "session %d beside others does not say what it says alone", i);
            }
        }
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- closing */

static long resident_kib(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Sequences that hold nothing take next to nothing, however long they may become; what they take
 * the report knows. */
static void empty_sequences(void)
{
    enum { N_SEQ = 1000, CTX = 131072 };
    struct pith_error err;
    struct pith_memory_report was = PITH_MEMORY_REPORT_INIT, is = was;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pair p;
    int32_t ids[3000];
    uint64_t now = 0, most = 0, later = 0;
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    sp.n_ctx = CTX;
    sp.n_seq = N_SEQ;
    sp.n_tokens = 8192;
    for (int i = 0; i < 3000; i++)
        ids[i] = 1 + i % 50;
    long before = resident_kib();
    pith_memory(&was);
    pith_session *s = pith_session_open(p.m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    long grown = resident_kib() - before;
    CHECK_MSG(grown < 64 << 10, "an empty session has made %ld KiB resident", grown);
    pith_memory(&is);
    pith_session_memory(s, &now, &most);
    uint64_t own = is.used[PITH_MEM_CACHE] - was.used[PITH_MEM_CACHE];
    CHECK_MSG(now + (1 << 20) > own && now < (uint64_t)64 << 20,
              "%llu bytes told, %llu taken for the cache", (unsigned long long)now,
              (unsigned long long)own);
    CHECK(most > (uint64_t)N_SEQ * CTX * sizeof(int32_t));
    CHECK_MSG(pith_feed(s, 999, ids, 3000, &err) == PITH_OK, "%s", err.msg);
    pith_session_memory(s, &later, NULL);
    CHECK(later >= now + 3000 * sizeof(int32_t));
    int32_t got[3000];
    CHECK(pith_tokens(s, 999, got, 3000) == 3000 && !memcmp(got, ids, sizeof ids));
    pith_session_close(s);
    pith_memory(&is);
    CHECK_MSG(is.used[PITH_MEM_CACHE] == was.used[PITH_MEM_CACHE], "%llu bytes are left",
              (unsigned long long)(is.used[PITH_MEM_CACHE] - was.used[PITH_MEM_CACHE]));
    pair_close(&p);
}

static void any_order(void)
{
    struct pith_error err;
    const char *path = tiny_write(&llama, 11);
    static int32_t ids[10];
    uint64_t held = memory_held();
    fill_ids(ids, 10, 10);
    for (int order = 0; path && order < 6; order++) {
        static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        pith_model *m = pith_model_open(path, NULL, &err);
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        pith_stream *st = m ? pith_stream_open(m, &err) : NULL;
        REQUIRE(s && st, "%s", err.msg);
        for (int i = 0; i < 3; i++) {
            if (orders[order][i] == 0)
                pith_model_close(m);
            else if (orders[order][i] == 1)
                pith_session_close(s), s = NULL;
            else
                pith_stream_close(st), st = NULL;
            size_t n;
            if (s)
                CHECK(pith_feed(s, 0, ids, 10, &err) == PITH_OK && pith_logits(s, 0));
            if (st)
                CHECK(pith_stream_put(st, 270, &n) && n > 0);
        }
    }
    CHECK_MSG(memory_held() == held, "%" PRIu64 " bytes are still held", memory_held() - held);
}

/* ---------------------------------------------------------------- generating */

struct heard {
    char text[4096];
    size_t n;
    int calls, stop_after;
};

static int hear(void *ctx, const char *text, size_t n)
{
    struct heard *h = ctx;
    CHECK(n > 0 && h->n + n < sizeof h->text);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    h->text[h->n] = 0;
    return ++h->calls != h->stop_after;
}

static void say(pith_session *s, struct pith_generate_params *g, struct heard *h,
                struct pith_generate_result *r)
{
    struct pith_error err;
    int stop_after = h->stop_after;
    *h = (struct heard){.stop_after = stop_after};
    g->on_text = hear;
    g->ctx = h;
    CHECK_MSG(pith_generate(s, g, r, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(r->n_bytes == h->n, "%zu bytes, %zu heard", r->n_bytes, h->n);
}

static void generating(void)
{
    struct pair p;
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    struct heard h = {0};
    static char full[4096], text[4096];
    int32_t ids[] = {1, 270, 271};
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    g.tokens = ids;
    g.n_tokens = 3;
    g.ignore_eog = 1;
    g.n_max = 20;
    g.text = full;
    g.text_cap = sizeof full;
    say(p.s, &g, &h, &r);
    CHECK_MSG(r.stop == PITH_STOP_LENGTH && r.n_generated == 20 && r.n_prompt == 3 && r.n_kept == 0,
              "stop %d, %d made", (int)r.stop, r.n_generated);
    CHECK(!strcmp(full, h.text) && strlen(full) > 20);
    g.text = text;
    g.n_max = 1;
    say(p.s, &g, &h, &r);
    CHECK(r.n_generated == 1 && r.n_kept == 2 && pith_length(p.s, 0) == 3 &&
          !strncmp(full, h.text, h.n));
    g.n_max = -2;
    say(p.s, &g, &h, &r); /* 128 positions, and a token that is sampled but not fed */
    CHECK_MSG(r.stop == PITH_STOP_CONTEXT && r.n_generated == 126 && pith_length(p.s, 0) == 128,
              "stop %d, %d made, %d held", (int)r.stop, r.n_generated, (int)pith_length(p.s, 0));
    g.n_max = 0;
    g.n_tokens = 1;
    say(p.s, &g, &h, &r);
    CHECK_MSG(r.n_generated == 128 && r.stop == PITH_STOP_LENGTH, "n_max 0: %d made, stop %d",
              r.n_generated, (int)r.stop);
    g.n_tokens = 3;
    g.n_max = 20;
    /* A stop string across tokens: none of it is shown. */
    char stop[8];
    snprintf(stop, sizeof stop, "%.6s", full + 7);
    const char *stops[] = {"nowhere", stop, NULL};
    g.stop = stops;
    say(p.s, &g, &h, &r);
    size_t at = (size_t)(strstr(full, stop) - full);
    CHECK_MSG(r.stop == PITH_STOP_STRING && h.n == at && !strncmp(h.text, full, at) &&
                  !strcmp(text, h.text),
              "stop %d: \"%s\" of \"%s\" before \"%s\"", (int)r.stop, h.text, full, stop);
    g.stop = NULL;
    /* Little room: what fits, terminated, and the length it would have had. */
    for (size_t cap = 0; cap < 12; cap++) {
        memset(text, 'x', sizeof text);
        g.text_cap = cap;
        say(p.s, &g, &h, &r);
        size_t n = cap ? cap - 1 : 0;
        CHECK_MSG(r.n_bytes == strlen(full) && text[cap] == 'x' &&
                      (!cap || (strlen(text) == n && !strncmp(text, full, n))),
                  "room for %zu: \"%.20s\"", cap, text);
    }
    g.text = NULL;
    h.stop_after = 3;
    say(p.s, &g, &h, &r);
    CHECK_MSG(r.stop == PITH_STOP_CALLBACK && h.calls == 3 && r.n_generated < 20,
              "stop %d after %d calls", (int)r.stop, h.calls);
    pair_close(&p);
}

/* The token that greedy choice makes fifth becomes the end token. */
static void end_of_generation(void)
{
    struct pair p;
    struct pith_error err;
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct heard h = {0};
    int32_t ids[64] = {1, 270, 271}, n = 3;
    char spec[64];
    const char *overrides[] = {spec, NULL};
    mp.n_threads = 1;
    if (!pair_open(&p, &llama, &mp, NULL))
        return;
    pith_sampler *greedy = pith_sampler_open(V, NULL, &err);
    CHECK(pith_feed(p.s, 0, ids, n, &err) == PITH_OK);
    for (int seen = 0; n < 60 && (n < 8 || seen);
         n++) { /* a token not met before, the fifth or a later one */
        ids[n] = pith_sample(greedy, pith_logits(p.s, 0));
        CHECK(pith_feed(p.s, 0, &ids[n], 1, &err) == PITH_OK);
        seen = 0;
        for (int i = 3; i < n; i++)
            seen |= ids[i] == ids[n];
    }
    pith_sampler_close(greedy);
    pair_close(&p);
    snprintf(spec, sizeof spec, "tokenizer.ggml.eos_token_id=int:%d", ids[n - 1]);
    mp.overrides = overrides;
    if (!pair_open(&p, &llama, &mp, NULL))
        return;
    CHECK(pith_token_eos(p.m) == ids[n - 1] && pith_token_is_eog(p.m, ids[n - 1]));
    g.tokens = ids;
    g.n_tokens = 3;
    g.n_max = -1;
    say(p.s, &g, &h, &r);
    CHECK_MSG(r.stop == PITH_STOP_EOG && r.n_generated == n - 4, "stop %d, %d made, wanted %d",
              (int)r.stop, r.n_generated, n - 4);
    g.ignore_eog = 1;
    say(p.s, &g, &h, &r);
    CHECK_MSG(r.stop == PITH_STOP_CONTEXT && r.n_generated > 100, "stop %d, %d made", (int)r.stop,
              r.n_generated);
    pair_close(&p);
}

/* ---------------------------------------------------------------- text */

static void text_in_and_out(void)
{
    struct pair p;
    struct pith_error err;
    int32_t ids[64], few[2] = {-7, -7}, wrong[] = {5, V};
    char buf[64];
    static const char text[] = "w270 w271 \xff\xfe w272";
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    int64_t n = pith_tokenize(p.m, text, sizeof text - 1, PITH_ADD_SPECIAL, ids, 64, &err);
    CHECK_MSG(n > 4 && n < 64 && ids[0] == pith_token_bos(p.m), "%d ids: %s", (int)n, err.msg);
    CHECK(pith_tokenize(p.m, text, sizeof text - 1, PITH_ADD_SPECIAL, NULL, 0, &err) == n);
    CHECK(pith_tokenize(p.m, text, sizeof text - 1, PITH_ADD_SPECIAL, few, 1, &err) == n &&
          few[0] == ids[0] && few[1] == -7);
    int64_t bytes = pith_detokenize(p.m, ids, (size_t)n, PITH_STRIP_SPECIAL, buf, sizeof buf, &err);
    CHECK(bytes > 10 &&
          pith_detokenize(p.m, ids, (size_t)n, PITH_STRIP_SPECIAL, NULL, 0, &err) == bytes);
    memset(buf, 'x', sizeof buf);
    CHECK(pith_detokenize(p.m, ids, (size_t)n, PITH_STRIP_SPECIAL, buf, 3, &err) == bytes &&
          buf[3] == 'x');
    REFUSED_OBJECT("id", PITH_RANGE, "token 1", "2000", "0..1999",
                   pith_detokenize(p.m, wrong, 2, 0, buf, 8, &err) != -1);
    wrong[0] = -1;
    REFUSED_OBJECT("id", PITH_RANGE, "token 0", "-1", NULL,
                   pith_detokenize(p.m, wrong, 2, 0, buf, 8, &err) != -1);
    CHECK(!pith_token_is_eog(p.m, -1) && !pith_token_is_eog(p.m, V) && pith_token_is_eog(p.m, 2));
    /* A character in three tokens comes out whole; what never becomes one comes out at the flush.
     */
    pith_stream *s = pith_stream_open(p.m, &err);
    size_t got;
    pith_stream_put(s, 3 + 0xe2, &got);
    CHECK(got == 0);
    pith_stream_put(s, 3 + 0x82, &got);
    CHECK(got == 0);
    CHECK(!strcmp(pith_stream_put(s, 3 + 0xac, &got), "\xe2\x82\xac") && got == 3);
    CHECK(!*pith_stream_put(s, V, &got) && !*pith_stream_put(s, 3 + 0xe2, &got) &&
          !*pith_stream_put(s, INT32_MAX, &got));
    pith_stream_put(s, -1, &got);
    CHECK(got == 1);
    pith_stream_close(s);
    pair_close(&p);
}

/* What programs with a loop of their own need of text: stop strings, valid UTF-8, a stream behind a
 * prompt. */
static void text_in_pieces(void)
{
    struct pith_error err;
    struct pith_shown shown = PITH_SHOWN_INIT;
    const char *const stops[] = {"abc", "END", NULL}, *const none[] = {"", NULL};
    char buf[16];
    CHECK(!pith_stopper_open(none, &err) && err.code == PITH_RANGE);
    pith_stopper *s = pith_stopper_open(stops, &err);
    CHECK(s && pith_stopper_put(s, "xab", 3, &shown) == -1 && shown.n_held == 0 &&
          shown.n_fresh == 1);
    CHECK(pith_stopper_put(s, "d", 1, &shown) == -1 && shown.n_held == 2 &&
          !memcmp(shown.held, "ab", 2) && shown.n_fresh == 1);
    CHECK(pith_stopper_put(s, "E", 1, NULL) == -1 && pith_stopper_put(s, "NDx", 3, &shown) == 1 &&
          shown.n_held + shown.n_fresh == 0);
    pith_stopper_close(s);
    s = pith_stopper_open(NULL, &err);
    CHECK(pith_stopper_put(s, "abc", 3, &shown) == -1 && shown.n_fresh == 3 &&
          pith_stopper_put(s, NULL, 0, &shown) == -1 && !shown.n_held);
    CHECK(pith_stopper_put(NULL, "a", 1, &shown) == -1);
    pith_stopper_close(s);
    pith_stopper_close(NULL);
    pith_stream_continue(NULL);
    pith_stream_show_control(NULL, 1);
    CHECK(pith_utf8("a\xFF\xC3\xA9", 4, NULL, 0) == 6);
    CHECK(pith_utf8("a\xFF\xC3\xA9", 4, buf, sizeof buf) == 6 &&
          !memcmp(buf, "a\xEF\xBF\xBD\xC3\xA9", 6));
    CHECK(pith_utf8("abc", 3, buf, 1) == 3 && pith_utf8(NULL, 0, NULL, 0) == 0);
}

static void reports(void)
{
    struct pair p;
    struct pith_error err;
    static char buf[1 << 16], part[64];
    int32_t ids[] = {1, 2, 3};
    if (!pair_open(&p, &llama, NULL, NULL))
        return;
    pith_profile(p.s, 1);
    CHECK(pith_feed(p.s, 0, ids, 3, &err) == PITH_OK);
    for (int json = 0; json < 2; json++) {
        int64_t n = pith_report(p.s, json, buf, sizeof buf);
        CHECK(n > 100 && n < (int64_t)sizeof buf && (int64_t)strlen(buf) == n &&
              strstr(buf, "matmul"));
        memset(part, 'x', sizeof part);
        CHECK(strstr(buf, json ? "\"cache_type_k\": \"f16\"" : "K f16, V f16") != NULL);
        CHECK(pith_report(p.s, json, part, 10) > 100 && strlen(part) == 9 && part[10] == 'x');
        CHECK(pith_report(p.s, json, NULL, 0) > 100 && pith_report(p.s, json, NULL, 10) > 100);
    }
    pair_close(&p);
}

int main(void)
{
    struct pith_allocator a = {.size = sizeof a, .alloc = hook_alloc};
    struct pith_error err;
    tmp_make();
    if (pith_set_allocator(&a, &err) != PITH_RANGE || !strstr(err.msg, "free"))
        printf("FAIL allocator_without_free: %s\n", err.msg), test_failed++;
    hook_install();
    TEST(null_objects);
    TEST(null_arguments);
    TEST(file_arguments);
    TEST(struct_sizes);
    TEST(model_params_range);
    TEST(session_params_range);
    TEST(sampler_params_range);
    TEST(sampler_advice);
    TEST(generate_params_range);
    TEST(bad_batches);
    TEST(over_the_context);
    TEST(pages_run_out);
    TEST(outputs_asked_for);
    TEST(pooled_outputs);
    TEST(whole_sequences);
    TEST(embedding_rows_are_tokens);
    TEST(not_a_number_stays_alone);
    TEST(cancel_and_go_on);
    TEST(two_threads);
    TEST(any_order);
    TEST(empty_sequences);
    TEST(generating);
    TEST(end_of_generation);
    TEST(text_in_and_out);
    TEST(text_in_pieces);
    TEST(reports);
    a.free = hook_free;
    if (pith_set_allocator(&a, &err) != PITH_STATE)
        printf("FAIL allocator_too_late: %s\n", err.msg), test_failed++;
    if (atomic_load(&hook.blocks) || memory_held())
        printf("FAIL nothing_held: %ld blocks, %" PRIu64 " bytes\n", atomic_load(&hook.blocks),
               memory_held()),
            test_failed++;
    return test_end();
}
