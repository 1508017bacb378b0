/* synth.c -- random models from the architectures' own tables: every tensor a table asks for, of
 * any size and weight type, the same bytes for the same parameters on every machine. Weights are
 * near normal with deviation 1/sqrt(K), norms near 1, so activations keep their size through the
 * layers. Rows that a block type cannot hold (K not a multiple of the block) are stored as q8_0,
 * else as f16. */
#include "run/model/model.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"

struct synth {
    const struct pith_synth_params *p;
    struct arch_model m;
    struct arena arena;
    struct gguf_writer *w;
    enum dtype type;
    float *row;
    uint8_t *blocks;
    int64_t longest;
};

static int32_t or_default(int32_t v, int32_t d)
{
    return v ? v : d;
}

static pith_status set_hparams(struct synth *s, struct pith_error *err)
{
    const struct pith_synth_params *p = s->p;
    struct hparams *hp = &s->m.hp;
    hp->n_layer = or_default(p->n_layer, 2);
    hp->n_embd = or_default(p->n_embd, 64);
    hp->n_vocab = or_default(p->n_vocab, 320);
    hp->n_ctx_train = or_default(p->n_ctx, 256);
    if (hp->n_layer < 1 || hp->n_layer > 1024 || hp->n_embd < 1 || hp->n_embd > 1 << 20 ||
        hp->n_vocab < 8 || hp->n_vocab > 1 << 24 || hp->n_ctx_train < 1)
        return error_set(
            err, PITH_RANGE,
            "synth: %d layers (1..1024), n_embd %d (1..2^20), n_vocab %d (8..2^24), n_ctx %d (> 0)",
            hp->n_layer, hp->n_embd, hp->n_vocab, hp->n_ctx_train);
    int32_t heads = or_default(p->n_head, hp->n_embd >= 256 ? hp->n_embd / 64 : 4),
            kv = or_default(p->n_head_kv, heads > 1 ? heads / 2 : 1);
    hp->d_k = hp->d_v = or_default(p->head_dim, heads > 0 ? hp->n_embd / heads : 0);
    if (heads < 1 || heads > 1024 || kv < 1 || heads % kv || hp->d_k < 2 || hp->d_k % 2 ||
        hp->d_k > 4096)
        return error_set(
            err, PITH_RANGE,
            "synth: %d heads over %d kv heads of %d; wanted whole groups and an even head size",
            heads, kv, hp->d_k);
    hp->n_expert = p->n_expert;
    hp->n_expert_used = p->n_expert ? or_default(p->n_expert_used, 2) : 0;
    if (p->n_expert < 0 || p->n_expert > 4096 || hp->n_expert_used > hp->n_expert ||
        hp->n_expert_used < 0 || p->n_ff < 0 || p->n_ff > 1 << 22)
        return error_set(err, PITH_RANGE, "synth: %d of %d experts, n_ff %d", hp->n_expert_used,
                         hp->n_expert, p->n_ff);
    int32_t ff = or_default(p->n_ff, hp->n_embd * 2);
    hp->n_ff_exp = ff;
    int32_t **per_layer[3] = {&hp->n_head, &hp->n_head_kv, &hp->n_ff}, value[3] = {heads, kv, ff};
    for (int i = 0; i < 3; i++) {
        *per_layer[i] = arena_array(&s->arena, (size_t)hp->n_layer, sizeof(int32_t));
        for (int32_t l = 0; *per_layer[i] && l < hp->n_layer; l++)
            (*per_layer[i])[l] = value[i];
    }
    return arena_ok(&s->arena) ? PITH_OK
                               : error_set(err, PITH_NOMEM, "out of memory while writing a model");
}

static enum dtype type_for(const struct synth *s, enum tensor_use use, int n_dims, int64_t k)
{
    if (use == TENSOR_INTEGERS)
        return DT_I32;
    if (n_dims == 1 || use == TENSOR_VECTOR) /* as converters write them */
        return DT_F32;
    if (k % dtypes[s->type].block == 0)
        return s->type;
    return k % 32 == 0 ? DT_Q8_0 : DT_F16;
}

/* Optional tensors are left out but the output matrix, those that are asked for, and what families
 * ask for by a feature (arch.h, need). */
static int is_written(const struct synth *s, const struct tensor_spec *t, int32_t l)
{
    return arch_tensor_used(&s->m, t, l) &&
           ((!t->optional && !t->group) || arch_tensor_asked(&s->m, t->name) ||
            (t->use == TENSOR_OUTPUT && !s->p->tied));
}

/* Each tensor that was asked for is one that some layer has. */
static pith_status check_asked(const struct synth *s, struct pith_error *err)
{
    for (const char *const *a = s->m.asked_tensors; a && *a; a++) {
        int found = 0;
        for (const struct tensor_spec *t = s->m.arch->tensors; t->name && !found; t++)
            for (int32_t l = t->layer ? 0 : -1; l < (t->layer ? s->m.hp.n_layer : 0); l++)
                found |= !strcmp(t->name, *a) && is_written(s, t, l);
        for (const struct tensor_spec *t = arch_nextn_tensors; t->name && s->m.hp.n_nextn; t++)
            found |= !strcmp(t->name, *a);
        if (!found)
            return error_set(err, PITH_UNSUPPORTED,
                             "synth: %s has no tensor \"%.40s\" in this size (names go without "
                             "\"blk.N.\"; pith inspect --arch %s lists them)",
                             s->m.arch->name, *a, s->m.arch->name);
    }
    return PITH_OK;
}

/* Blocks behind the layers that predict further on: a layer each, and what they have besides. */
static void each_of_heads(struct synth *s,
                          void (*fn)(struct synth *, const struct tensor_spec *, int32_t l))
{
    const struct arch_model *m = &s->m;
    for (int32_t l = m->hp.n_layer; l < arch_blocks(m) && m->arch->role[ROLE_DRAFT]; l++) {
        for (const struct tensor_spec *t = m->arch->tensors; t->name; t++)
            if (t->layer && is_written(s, t, l))
                fn(s, t, l);
        for (const struct tensor_spec *t = arch_nextn_tensors; t->name; t++)
            if (!t->optional || arch_tensor_asked(m, t->name))
                fn(s, t, l);
    }
}

static void each_tensor(struct synth *s,
                        void (*fn)(struct synth *, const struct tensor_spec *, int32_t l))
{
    for (const struct tensor_spec *t = s->m.arch->tensors; t->name; t++)
        if (!t->layer && is_written(s, t, -1))
            fn(s, t, -1);
    for (int32_t l = 0; l < s->m.hp.n_layer; l++)
        for (const struct tensor_spec *t = s->m.arch->tensors; t->name; t++)
            if (t->layer && is_written(s, t, l))
                fn(s, t, l);
    each_of_heads(s, fn);
}

/* What may have any size is as wide as the model. */
static int dims_of(const struct synth *s, const struct tensor_spec *t, int32_t l, int64_t dims[4])
{
    int n = arch_tensor_dims(&s->m, t, l, dims);
    for (int i = 0; i < n; i++)
        dims[i] = dims[i] < 0 ? s->m.hp.n_embd : dims[i];
    return n;
}

static void declare(struct synth *s, const struct tensor_spec *t, int32_t l)
{
    char name[160];
    int64_t dims[4];
    int n = dims_of(s, t, l, dims);
    arch_tensor_name(&s->m, t, l, name, sizeof name);
    gguf_writer_tensor(s->w, name, type_for(s, t->use, n, dims[n - 1]), n, dims);
}

/* Elements of the longest row, for the buffers of fill. */
static void measure(struct synth *s, const struct tensor_spec *t, int32_t l)
{
    int64_t dims[4];
    int n = dims_of(s, t, l, dims);
    s->longest = dims[n - 1] > s->longest ? dims[n - 1] : s->longest;
}

/* Different experts for each row. */
static void fill_integers(struct synth *s, int64_t rows, int64_t k, struct rng *rng)
{
    int32_t *row = (int32_t *)(void *)s->row, n = s->m.hp.n_expert;
    for (int64_t r = 0; r < rows; r++) {
        int32_t first = (int32_t)rng_below(rng, (uint32_t)n);
        for (int64_t i = 0; i < k; i++)
            row[i] = (int32_t)((first + i) % n);
        gguf_writer_data(s->w, row, (size_t)k * sizeof *row);
    }
}

static void fill(struct synth *s, const struct tensor_spec *t, int32_t l)
{
    int64_t dims[4], rows = 1;
    int n = dims_of(s, t, l, dims);
    int64_t k = dims[n - 1];
    enum dtype type = type_for(s, t->use, n, k);
    struct rng rng;
    float dev = 1.0f, centre = t->centre != 0 ? t->centre : n == 1 ? 1.0f : 0.0f;
    for (int64_t i = k; i > 1; i /= 4) /* about 1/sqrt(K), exact on every machine */
        dev *= 0.5f;
    for (int i = 0; i < n - 1; i++)
        rows *= dims[i];
    rng_init(&rng, s->p->seed ^
                       (slice_hash(slice_of(t->name)) + (uint64_t)(l + 1) * 0x9e3779b97f4a7c15u));
    if (type == DT_I32) {
        fill_integers(s, rows, k, &rng);
        return;
    }
    for (int64_t r = 0; r < rows && !gguf_writer_failed(s->w); r++) {
        /* Large models: one random row in 64, the others turned copies of it; the bytes look random
         * to every kernel. */
        if (r % 64 == 0)
            for (int64_t i = 0; i < k; i++)
                s->row[i] = centre ? centre + 0.1f * rng_normal(&rng) : dev * rng_normal(&rng);
        else
            for (int64_t i = 0; i < k; i++)
                s->row[k + i] = s->row[(i + r * 7) % k];
        dtypes[type].quant(r % 64 ? s->row + k : s->row, s->blocks, k);
        gguf_writer_data(s->w, s->blocks, dtype_row_bytes(type, k));
    }
}

/* A SentencePiece-like vocabulary: unknown, start, end, the 256 bytes as far as they fit, then
 * pieces. */
static pith_status write_vocab(struct synth *s, struct pith_error *err)
{
    int32_t n = s->m.hp.n_vocab;
    struct slice *piece = arena_array(&s->arena, (size_t)n, sizeof *piece);
    float *score = arena_array(&s->arena, (size_t)n, sizeof *score);
    int32_t *type = arena_array(&s->arena, (size_t)n, sizeof *type);
    static const char *const first[3] = {"<unk>", "<s>", "</s>"};
    for (int32_t i = 0; piece && score && type && i < n; i++) {
        const char *text = i < 3     ? first[i]
                           : i < 259 ? arena_printf(&s->arena, "<0x%02X>", i - 3)
                                     : arena_printf(&s->arena, "\xe2\x96\x81w%d", i);
        piece[i] = slice_of(text);
        score[i] = (float)-i;
        type[i] = i == 0    ? VOCAB_UNKNOWN
                  : i < 3   ? VOCAB_CONTROL
                  : i < 259 ? VOCAB_BYTE
                            : VOCAB_NORMAL;
    }
    if (!arena_ok(&s->arena))
        return error_set(err, PITH_NOMEM, "out of memory for a vocabulary of %d", n);
    gguf_writer_str(s->w, "tokenizer.ggml.model", SLICE("llama"));
    gguf_writer_strs(s->w, "tokenizer.ggml.tokens", piece, (uint64_t)n);
    gguf_writer_array(s->w, "tokenizer.ggml.scores", GGUF_F32, score, (uint64_t)n);
    gguf_writer_array(s->w, "tokenizer.ggml.token_type", GGUF_I32, type, (uint64_t)n);
    gguf_writer_u32(s->w, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(s->w, "tokenizer.ggml.eos_token_id", 2);
    return PITH_OK;
}

static pith_status no_such_type(struct arena *a, const char *type, struct pith_error *err)
{
    const char *all = "";
    for (int t = 0; t < DT_COUNT && all; t++)
        if (dtypes[t].quant)
            all = arena_printf(a, "%s%s%s", all, *all ? " " : "", dtypes[t].name);
    return error_set(err, PITH_UNSUPPORTED, "synth: weight type \"%.20s\" is none of: %s", type,
                     all ? all : "");
}

pith_status synth_write(const char *path, const struct pith_synth_params *p, struct pith_error *err)
{
    struct synth s = {.p = p};
    pith_status st;
    const char *type = p->type ? p->type : "f32";
    arena_init(&s.arena, PITH_MEM_META);
    s.m.arena = &s.arena;
    s.m.arch = p->arch ? arch_find(p->arch) : NULL;
    s.m.asked_keys = p->keys;
    s.m.asked_tensors = p->tensors;
    int t = dtype_from_name(type);
    if (!s.m.arch)
        TRY(error_set(err, PITH_UNSUPPORTED,
                      "synth: unknown architecture \"%s\"; pith inspect --arch lists the known",
                      p->arch ? p->arch : ""));
    if (t < 0 || !dtypes[t].quant)
        TRY(no_such_type(&s.arena, type, err));
    s.type = (enum dtype)t;
    TRY(set_hparams(&s, err));
    s.w = gguf_writer_open(path, err);
    if (!s.w)
        TRY(err->code);
    gguf_writer_str(s.w, "general.architecture", slice_of(p->arch));
    gguf_writer_str(s.w, "general.name", SLICE("synthetic"));
    TRY(arch_open_synthetic(&s.m, s.w, err));
    TRY(check_asked(&s, err));
    TRY(write_vocab(&s, err));
    each_tensor(&s, measure);
    s.row = mem_array((size_t)s.longest * 2, sizeof *s.row, PITH_MEM_META);
    s.blocks = mem_alloc((size_t)s.longest * 4 + 64, PITH_MEM_META);
    if (!s.row || !s.blocks)
        TRY(error_set(err, PITH_NOMEM, "out of memory while writing %s", path));
    each_tensor(&s, declare);
    each_tensor(&s, fill);
    st = gguf_writer_close(s.w, err);
    s.w = NULL;
fail:
    if (s.w)
        gguf_writer_discard(s.w);
    mem_free(s.row);
    mem_free(s.blocks);
    arena_deinit(&s.arena);
    return st;
}
