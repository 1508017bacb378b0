/* arch.c -- the list of architectures, key readers, symbolic shapes and rope constants, shared by
 * all of them. */
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/fmath.h"

#define X(symbol) extern const struct arch symbol;
#include "arch/archs.def"
#undef X
#define X(symbol) &symbol,
const struct arch *const arch_list[] = {
#include "arch/archs.def"
    NULL};
#undef X

const struct arch *arch_find(const char *name)
{
    for (const struct arch *const *a = arch_list; *a; a++)
        if (!strcmp((*a)->name, name))
            return *a;
    return NULL;
}

pith_status arch_open(struct arch_model *m, const struct gguf *g, struct arena *arena,
                      struct pith_error *err)
{
    struct slice name;
    const struct gguf_kv *kv = gguf_find(g, "general.architecture");
    if (!kv || !gguf_str(g, kv, &name))
        return error_set(err, PITH_MISSING,
                         "%s has no general.architecture; it is not a language model",
                         gguf_path(g));
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 60 ? name.n : 60), name.p);
    memset(m, 0, sizeof *m);
    m->arch = arch_find(text);
    m->arena = arena;
    if (!m->arch) {
        char known[512] = "";
        size_t n = 0;
        for (const struct arch *const *a = arch_list; *a && n < sizeof known; a++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", (*a)->name);
        return error_set(err, PITH_UNSUPPORTED, "%s: unknown architecture \"%s\"; known are %s",
                         gguf_path(g), text, known);
    }
    m->features = m->arch->features;
    m->want_logits = 1;
    pith_status st = m->arch->hparams(m, g, err);
    if (st != PITH_OK)
        return st;
    m->model = arena_alloc(arena, m->arch->model_bytes);
    m->layers = arena_array(arena, (size_t)m->hp.n_layer, m->arch->layer_bytes);
    m->rope = arena_array(arena, (size_t)m->hp.n_layer, sizeof *m->rope);
    m->state_of = arena_array(arena, (size_t)m->hp.n_layer, sizeof *m->state_of);
    if (arena_ok(arena)) {
        memset(m->state_of, -1, (size_t)m->hp.n_layer * sizeof *m->state_of);
        m->arch->states(m);
    }
    return arena_ok(arena)
               ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory while reading %s", gguf_path(g));
}

pith_status arch_ready(struct arch_model *m, struct pith_error *err)
{
    pith_status st = m->arch->ready ? m->arch->ready(m, err) : PITH_OK;
    for (struct state *s = m->states; s < m->states + m->n_states; s++)
        if (s->rows != STATE_RECURRENT && !s->rope)
            s->rope = m->rope[s->layer];
    return st;
}

/* ---------------------------------------------------------------- states */

void arch_state(struct arch_model *m, int32_t l, int slot, struct state s)
{
    if (m->n_states == m->cap_states) {
        int32_t cap = m->cap_states ? 2 * m->cap_states : m->hp.n_layer;
        struct state *more = arena_array(m->arena, (size_t)cap, sizeof *more);
        if (!more)
            return;
        if (m->n_states)
            memcpy(more, m->states, (size_t)m->n_states * sizeof *more);
        m->states = more;
        m->cap_states = cap;
    }
    s.layer = s.last = l;
    s.group = -1;
    m->state_of[l][slot] = m->n_states;
    m->states[m->n_states++] = s;
}

void arch_share(struct arch_model *m, int32_t l, int slot, int32_t of)
{
    int32_t id = m->state_of[l][slot] = m->state_of[of][slot];
    if (id >= 0 && m->states[id].last < l)
        m->states[id].last = l;
}

/* ---------------------------------------------------------------- keys */

static const struct gguf_kv *find(struct keys *k, const char *suffix, char *key, size_t cap)
{
    snprintf(key, cap, "%s.%s", k->arch, suffix);
    return k->st == PITH_OK ? gguf_find(k->g, key) : NULL;
}

static void missing(struct keys *k, const char *key)
{
    if (k->st == PITH_OK)
        k->st =
            error_set(k->err, PITH_MISSING, "%s: key \"%s\" is missing; the file is not complete",
                      gguf_path(k->g), key);
}

static uint32_t read_u32(struct keys *k, const struct gguf_kv *kv, const char *key, uint64_t i,
                         int64_t lo, int64_t hi)
{
    int64_t v;
    if (!gguf_i64(k->g, kv, i, &v)) {
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" has type %s, wanted an integer",
                          gguf_path(k->g), key, gguf_type_name(kv->type));
        return (uint32_t)lo;
    }
    if (v < lo || v > hi) {
        k->st = error_set(k->err, PITH_RANGE, "%s: key \"%s\" is %lld, wanted %lld..%lld",
                          gguf_path(k->g), key, (long long)v, (long long)lo, (long long)hi);
        return (uint32_t)lo;
    }
    return (uint32_t)v;
}

uint32_t key_u32(struct keys *k, const char *suffix, int64_t lo, int64_t hi)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    if (!kv) {
        missing(k, key);
        return (uint32_t)lo;
    }
    return read_u32(k, kv, key, 0, lo, hi);
}

uint32_t key_u32_or(struct keys *k, const char *suffix, int64_t lo, int64_t hi, uint32_t fallback)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    if (kv)
        return read_u32(k, kv, key, 0, lo, hi);
    if (k->st == PITH_OK && (fallback < lo || fallback > hi)) /* it follows from other keys */
        k->st = error_set(k->err, PITH_RANGE,
                          "%s: \"%s\" would be %u from the other keys, wanted %lld..%lld",
                          gguf_path(k->g), key, fallback, (long long)lo, (long long)hi);
    return fallback;
}

static float read_f32(struct keys *k, const struct gguf_kv *kv, const char *key)
{
    double v = 0;
    if (!gguf_f64(k->g, kv, 0, &v) || !isfinite(v) || fabs(v) > 1e30) {
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" (%s) is not a finite number",
                          gguf_path(k->g), key, gguf_type_name(kv->type));
        return 1;
    }
    return (float)v;
}

float key_f32(struct keys *k, const char *suffix)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    if (!kv) {
        missing(k, key);
        return 1;
    }
    return read_f32(k, kv, key);
}

float key_f32_or(struct keys *k, const char *suffix, float fallback)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    return kv ? read_f32(k, kv, key) : fallback;
}

int key_bool_or(struct keys *k, const char *suffix, int fallback)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    int v = fallback;
    if (kv && !gguf_bool(k->g, kv, 0, &v))
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" has type %s, wanted bool",
                          gguf_path(k->g), key, gguf_type_name(kv->type));
    return v;
}

int32_t *key_per_layer(struct keys *k, struct arena *a, const char *suffix, int32_t n, int64_t lo,
                       int64_t hi, int64_t fallback)
{
    char key[128];
    const struct gguf_kv *kv = find(k, suffix, key, sizeof key);
    int32_t *v = arena_array(a, (size_t)n, sizeof *v);
    if (!v) {
        if (k->st == PITH_OK)
            k->st = error_set(k->err, PITH_NOMEM, "out of memory while reading %s", key);
        return NULL;
    }
    if (!kv && fallback < lo)
        missing(k, key);
    if (kv && kv->type == GGUF_ARR && kv->n < (uint64_t)n)
        k->st = error_set(k->err, PITH_SHAPE, "%s: key \"%s\" has %llu items for %d layers",
                          gguf_path(k->g), key, (unsigned long long)kv->n, n);
    for (int32_t i = 0; i < n && k->st == PITH_OK; i++)
        v[i] = kv ? (int32_t)read_u32(k, kv, key, kv->type == GGUF_ARR ? (uint64_t)i : 0, lo, hi)
                  : (int32_t)fallback;
    return v;
}

int arch_has_tensor(const struct gguf *g, const char *name)
{
    return gguf_tensor_find(g, slice_of(name)) != NULL;
}

int32_t key_vocab(struct keys *k)
{
    const struct gguf_tensor *t = gguf_tensor_find(k->g, SLICE("token_embd.weight"));
    if (t && t->n_dims == 2 && t->dims[0] > 0 && t->dims[0] <= INT32_MAX / 4)
        return (int32_t)t->dims[0];
    return (int32_t)key_u32(k, "vocab_size", 1, INT32_MAX / 4);
}

void key_rope(struct keys *k, struct hparams *hp, float base_swa)
{
    struct slice type = {0};
    char key[128];
    hp->n_rot = (int32_t)key_u32_or(k, "rope.dimension_count", 0, hp->d_k, (uint32_t)hp->d_k);
    hp->rope_base = key_f32_or(k, "rope.freq_base", 10000.0f);
    hp->rope_base_swa =
        key_f32_or(k, "rope.freq_base_swa", base_swa > 0 ? base_swa : hp->rope_base);
    hp->rope_factor =
        key_f32_or(k, "rope.scaling.factor", key_f32_or(k, "rope.scale_linear", 1.0f));
    hp->rope_attn_factor = key_f32_or(k, "rope.scaling.attn_factor", 1.0f);
    hp->rope_ctx_orig = (int32_t)key_u32_or(k, "rope.scaling.original_context_length", 1, INT32_MAX,
                                            (uint32_t)hp->n_ctx_train);
    hp->yarn_ext = key_f32_or(k, "rope.scaling.yarn_ext_factor", 1.0f);
    hp->yarn_attn = key_f32_or(k, "rope.scaling.yarn_attn_factor", 1.0f);
    hp->yarn_beta_fast = key_f32_or(k, "rope.scaling.yarn_beta_fast", 32.0f);
    hp->yarn_beta_slow = key_f32_or(k, "rope.scaling.yarn_beta_slow", 1.0f);
    snprintf(key, sizeof key, "%s.rope.scaling.type", k->arch);
    const struct gguf_kv *kv = gguf_find(k->g, key);
    if (kv && gguf_str(k->g, kv, &type)) {
        if (slice_eq_z(type, "linear"))
            hp->rope_scaling = ROPE_SCALE_LINEAR;
        else if (slice_eq_z(type, "yarn"))
            hp->rope_scaling = ROPE_SCALE_YARN;
        else if (!slice_eq_z(type, "none") && k->st == PITH_OK)
            k->st = error_set(k->err, PITH_UNSUPPORTED,
                              "%s: key \"%s\" is \"%.*s\"; known are none, linear, yarn",
                              gguf_path(k->g), key, (int)(type.n < 40 ? type.n : 40), type.p);
    } else if (hp->rope_factor != 1.0f) {
        hp->rope_scaling = ROPE_SCALE_LINEAR;
    }
    if (k->st == PITH_OK &&
        (hp->n_rot % 2 || hp->rope_base <= 1 || hp->rope_base_swa <= 1 || hp->rope_factor <= 0))
        k->st = error_set(k->err, PITH_RANGE,
                          "%s: RoPE of %d dimensions (wanted even), base %g and %g (wanted > 1), "
                          "factor %g (wanted > 0)",
                          gguf_path(k->g), hp->n_rot, (double)hp->rope_base,
                          (double)hp->rope_base_swa, (double)hp->rope_factor);
}

/* ---------------------------------------------------------------- symbolic shapes */

static int64_t dim_size(const struct arch_model *m, int d, int32_t l)
{
    const struct hparams *hp = &m->hp;
    if (d >= DIM_FAMILY)
        return m->arch->dim(m, d, l);
    int64_t q = (int64_t)hp->n_head[l] * hp->d_k, k = (int64_t)hp->n_head_kv[l] * hp->d_k,
            v = (int64_t)hp->n_head_kv[l] * hp->d_v;
    switch (d) {
    case DIM_E:
        return hp->n_embd;
    case DIM_V:
        return hp->n_vocab;
    case DIM_Q:
        return q;
    case DIM_K:
        return k;
    case DIM_VV:
        return v;
    case DIM_O:
        return (int64_t)hp->n_head[l] * hp->d_v;
    case DIM_QKV:
        return q + k + v;
    case DIM_D:
        return hp->d_k;
    case DIM_F:
        return hp->n_ff[l];
    case DIM_X:
        return hp->n_expert;
    case DIM_FX:
        return hp->n_ff_exp;
    case DIM_ROT2:
        return hp->n_rot / 2;
    default:
        return -1; /* DIM_ANY */
    }
}

int arch_tensor_used(const struct arch_model *m, const struct tensor_spec *t, int32_t l)
{
    uint32_t has = m->features | (l >= 0 && m->layer_features ? m->layer_features[l] : 0);
    return (has & t->need) == t->need && !(has & t->unless);
}

int arch_tensor_dims(const struct arch_model *m, const struct tensor_spec *t, int32_t l,
                     int64_t dims[4])
{
    int n = 0;
    for (; n < 4 && t->dims[n] != DIM_END; n++)
        dims[n] = dim_size(m, t->dims[n], l < 0 ? 0 : l);
    return n;
}

const float *arch_floats(const struct arch_model *m, const struct tensor *t)
{
    float *x = arena_array(m->arena, (size_t)t->dims[0], sizeof *x);
    if (x)
        dtypes[t->file_type].dequant(t->file, x, t->dims[0]);
    return x;
}

struct tensor **arch_tensor_slot(const struct arch_model *m, const struct tensor_spec *t, int32_t l)
{
    uint8_t *base = t->layer ? (uint8_t *)m->layers + (size_t)l * m->arch->layer_bytes : m->model;
    return (struct tensor **)(base + t->field);
}

/* ---------------------------------------------------------------- rope */

/* Dimension (of n_rot) whose wavelength makes `turns` full turns over the original context [YaRN,
 * arXiv:2309.00071, sec. 3.2]. */
static double yarn_dim(int n_rot, double ctx, double turns, double base)
{
    return n_rot * fmath_log(ctx / (turns * 6.283185307179586)) / (2 * fmath_log(base));
}

struct rope_set *rope_set_new(struct arena *a, const struct hparams *hp, int neox, float base,
                              int scaled, const float *factors)
{
    struct rope_set *set = arena_alloc(a, sizeof *set);
    double *freq = arena_array(a, (size_t)hp->n_rot / 2 + 1, sizeof *freq);
    if (!set || !freq)
        return NULL;
    int yarn = scaled && hp->rope_scaling == ROPE_SCALE_YARN;
    double scale = scaled && hp->rope_scaling != ROPE_SCALE_NONE ? 1 / (double)hp->rope_factor : 1,
           low = 0, high = 0;
    *set = (struct rope_set){
        .n_rot = hp->n_rot, .neox = neox, .freq = freq, .mscale = hp->rope_attn_factor};
    if (yarn) {
        low = floor(yarn_dim(hp->n_rot, hp->rope_ctx_orig, hp->yarn_beta_fast, base));
        high = ceil(yarn_dim(hp->n_rot, hp->rope_ctx_orig, hp->yarn_beta_slow, base));
        low = low > 0 ? low : 0;
        high = high < hp->n_rot - 1 ? high : hp->n_rot - 1;
        set->mscale =
            (float)(hp->yarn_attn * hp->rope_attn_factor * (1 + 0.1 * fmath_log(1 / scale)));
    }
    for (int i = 0; i < hp->n_rot / 2; i++) {
        double f = fmath_pow(base, -2.0 * i / hp->n_rot) / (factors ? (double)factors[i] : 1.0);
        double ramp = 0; /* 1: keep the original frequency */
        if (yarn) {
            double t = (i - low) / (high - low > 0.001 ? high - low : 0.001);
            ramp = (1 - (t < 0 ? 0 : t > 1 ? 1 : t)) * hp->yarn_ext;
        }
        freq[i] = f * scale * (1 - ramp) + f * ramp;
    }
    return set;
}
