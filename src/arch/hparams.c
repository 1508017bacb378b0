/* hparams.c -- see hparams.h. */
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const rope_scaling_names[] = {"none", "linear", "yarn", "longrope", NULL};
/* As enum pith_pooling counts them. */
const char *const rank_pool_names[] = {"none", "mean", "cls", "last", NULL};

const char *arch_path(const struct arch_model *m)
{
    return m->gguf ? gguf_path(m->gguf) : "a synthetic model";
}

/* ---------------------------------------------------------------- defaults that follow */

double key_like_heads(const struct arch_model *m, int32_t l)
{
    return m->hp.n_head[l];
}

/* Of the first layer that has heads. */
double key_head_dim(const struct arch_model *m, int32_t l)
{
    (void)l;
    for (int32_t i = 0; i < m->hp.n_layer; i++)
        if (m->hp.n_head[i] > 0)
            return m->hp.n_embd / m->hp.n_head[i];
    return 0;
}

double key_like_d_k(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.d_k;
}

double key_like_context(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ctx_train;
}

/* Models whose layers all have experts may leave it out. */
double key_ff(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_expert ? 0 : -1;
}

/* Older files have a factor and say no more. */
double key_scaling(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.rope_factor != 1.0f ? ROPE_SCALE_LINEAR : ROPE_SCALE_NONE;
}

/* ---------------------------------------------------------------- reading */

/* Added to a period that stands for a pattern of layers, until key_pattern makes flags of it. */
enum { PATTERN = 2 };

struct keys {
    struct arch_model *m;
    struct pith_error *err;
    pith_status st;
};

static void *field(struct arch_model *m, const struct key_spec *s)
{
    return (uint8_t *)(s->family ? m->family : &m->hp) + s->at;
}

/* The same to be looked at. */
static const void *given(const struct arch_model *m, const struct key_spec *s)
{
    return (const uint8_t *)(s->family ? m->family : &m->hp) + s->at;
}

/* Values of an array. */
static int32_t n_of(const struct arch_model *m, const struct key_spec *s)
{
    const uint8_t *base = s->family ? m->family : (const void *)&m->hp;
    return s->kind == KEY_INTS ? *(const int32_t *)(base + s->n_at) : m->hp.n_layer;
}

static void key_name(const struct arch_model *m, const struct key_spec *s, char *key, size_t cap)
{
    snprintf(key, cap, "%s%s%s", s->bare ? "" : m->arch->name, s->bare ? "" : ".", s->suffix);
}

static int limited(const struct key_spec *s)
{
    return s->lo != 0 || s->hi != 0;
}

static int within(const struct key_spec *s, double v)
{
    return !limited(s) || (v >= s->lo && v <= s->hi);
}

/* Without limits: what the field can hold. */
static void limits(const struct key_spec *s, double *lo, double *hi)
{
    *lo = limited(s) ? s->lo : INT32_MIN;
    *hi = limited(s) ? s->hi : INT32_MAX;
}

static int32_t read_int(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv,
                        uint64_t i)
{
    int64_t v;
    int flag;
    double lo, hi;
    char key[128];
    limits(s, &lo, &hi);
    key_name(k->m, s, key, sizeof key);
    if (s->kind == KEY_LAYERS && gguf_bool(k->m->gguf, kv, i, &flag))
        return flag;
    if (!gguf_i64(k->m->gguf, kv, i, &v))
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" has type %s, wanted an integer",
                          arch_path(k->m), key, gguf_type_name(kv->type));
    else if ((double)v < lo || (double)v > hi)
        k->st = error_set(k->err, PITH_RANGE, "%s: key \"%s\" is %lld, wanted %.0f..%.0f",
                          arch_path(k->m), key, (long long)v, lo, hi);
    return k->st == PITH_OK ? (int32_t)v : (int32_t)s->lo;
}

static float read_float(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv,
                        uint64_t i)
{
    double v = 0;
    char key[128];
    key_name(k->m, s, key, sizeof key);
    if (!gguf_f64(k->m->gguf, kv, i, &v) || !isfinite(v) || fabs(v) > 1e30)
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" (%s) is not a finite number",
                          arch_path(k->m), key, gguf_type_name(kv->type));
    else if (!within(s, v))
        k->st = error_set(k->err, PITH_RANGE, "%s: key \"%s\" is %g, wanted %g..%g",
                          arch_path(k->m), key, v, s->lo, s->hi);
    return k->st == PITH_OK ? (float)v : 1;
}

static int32_t read_name(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    struct slice text = {0};
    char key[128], known[200] = "";
    size_t n = 0;
    int64_t place = -1;
    key_name(k->m, s, key, sizeof key);
    if (s->numbered && gguf_i64(k->m->gguf, kv, 0, &place)) {
        int32_t last = 0;
        while (s->names[last + 1])
            last++;
        if (place < 0 || place > last)
            k->st = error_set(k->err, PITH_RANGE, "%s: key \"%s\" is %lld, wanted 0..%d",
                              arch_path(k->m), key, (long long)place, last);
        return k->st == PITH_OK ? (int32_t)place : 0;
    }
    if (!gguf_str(k->m->gguf, kv, &text)) {
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" has type %s, wanted a string%s",
                          arch_path(k->m), key, gguf_type_name(kv->type),
                          s->numbered ? " or a whole number" : "");
        return 0;
    }
    for (int32_t i = 0; s->names[i]; i++) {
        if (slice_eq_z(text, s->names[i]))
            return i;
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", s->names[i]);
    }
    k->st = error_set(k->err, PITH_UNSUPPORTED, "%s: key \"%s\" is \"%.*s\"; known are %s",
                      arch_path(k->m), key, (int)(text.n < 40 ? text.n : 40), text.p, known);
    return 0;
}

/* Without the key: the default, or what follows from others. */
static double default_of(const struct arch_model *m, const struct key_spec *s, int32_t l)
{
    return (s->from ? s->from(m, l) : s->def) + (s->pattern ? PATTERN : 0);
}

static double fallback(struct keys *k, const struct key_spec *s, int32_t l)
{
    double v = default_of(k->m, s, l), lo, hi;
    char key[128];
    limits(s, &lo, &hi);
    key_name(k->m, s, key, sizeof key);
    if (k->st != PITH_OK || (s->kind == KEY_NAME || within(s, v) || (!s->from && v == 0)))
        return v;
    if (v < 0)
        k->st =
            error_set(k->err, PITH_MISSING, "%s: key \"%s\" is missing; the file is not complete",
                      arch_path(k->m), key);
    else
        k->st = error_set(k->err, PITH_RANGE,
                          "%s: \"%s\" would be %g from the other keys, wanted %g..%g",
                          arch_path(k->m), key, v, lo, hi);
    return s->lo;
}

/* An array that stands for layers is not longer than there can be some. */
static void check_length(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    char key[128];
    key_name(k->m, s, key, sizeof key);
    if (!kv->n || kv->n > MAX_LAYERS)
        k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" is an array of %llu, wanted 1..%d",
                          arch_path(k->m), key, (unsigned long long)kv->n, MAX_LAYERS);
}

/* Arrays where one number is wanted: all items are that one. */
static void check_alike(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    char key[128];
    key_name(k->m, s, key, sizeof key);
    check_length(k, s, kv);
    int32_t first = k->st == PITH_OK ? read_int(k, s, kv, 0) : 0;
    for (uint64_t i = 1; i < kv->n && k->st == PITH_OK; i++)
        if (read_int(k, s, kv, i) != first && k->st == PITH_OK)
            k->st = error_set(k->err, PITH_UNSUPPORTED,
                              "%s: key \"%s\" differs between layers, wanted one number",
                              arch_path(k->m), key);
}

/* The greatest item. */
static int32_t read_most(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    int32_t most = 0;
    check_length(k, s, kv);
    for (uint64_t i = 0; i < kv->n && k->st == PITH_OK; i++) {
        int32_t v = read_int(k, s, kv, i);
        most = v > most ? v : most;
    }
    return most;
}

/* A list has exactly as many items as the key before it says. */
static int counted(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv, int32_t n)
{
    char key[128];
    key_name(k->m, s, key, sizeof key);
    if (s->kind != KEY_INTS || !kv || (kv->type == GGUF_ARR && kv->n == (uint64_t)n))
        return 1;
    k->st = error_set(k->err, PITH_SHAPE, "%s: key \"%s\" has %llu items, wanted %d",
                      arch_path(k->m), key,
                      (unsigned long long)(kv->type == GGUF_ARR ? kv->n : 1), n);
    return 0;
}

/* Of a synthetic model: what follows the first. */
static void choose_wide(struct keys *k, const struct key_spec *s)
{
    int32_t n = s->count(k->m);
    uint64_t *v = arena_array(k->m->arena, (size_t)n, sizeof *v);
    *(uint64_t **)field(k->m, s) = v;
    for (int32_t i = 0; v && i < n; i++)
        v[i] = (uint64_t)s->synth + (uint64_t)i;
}

/* Every bit counts, so they are no doubles. A longer list is one of a larger table. */
static void read_wide(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    int32_t n = s->count(k->m);
    uint64_t found = kv && kv->type == GGUF_ARR ? kv->n : kv != NULL;
    char key[128];
    key_name(k->m, s, key, sizeof key);
    choose_wide(k, s);
    uint64_t *v = *(uint64_t **)field(k->m, s);
    if (!v)
        k->st = error_set(k->err, PITH_NOMEM, "out of memory while reading %s", key);
    else if (found < (uint64_t)n)
        k->st = error_set(k->err, PITH_SHAPE, "%s: key \"%s\" has %llu items, wanted %d",
                          arch_path(k->m), key, (unsigned long long)found, n);
    for (int32_t i = 0; i < n && k->st == PITH_OK; i++)
        if (!gguf_u64(k->m->gguf, kv, (uint64_t)i, &v[i]))
            k->st = error_set(k->err, PITH_FORMAT,
                              "%s: key \"%s\": item %d is not a whole number of 0 or more",
                              arch_path(k->m), key, i);
        else if (!within(s, (double)v[i]))
            k->st = error_set(k->err, PITH_RANGE,
                              "%s: key \"%s\": item %d is %llu, wanted %.0f..%.0f",
                              arch_path(k->m), key, i, (unsigned long long)v[i], s->lo, s->hi);
}

static void read_layers(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    int32_t n = n_of(k->m, s);
    int is_float = s->kind == KEY_LAYERS_F32;
    void *v = arena_array(k->m->arena, (size_t)n, sizeof(int32_t)); /* floats are as large */
    char key[128];
    key_name(k->m, s, key, sizeof key);
    if (!v) {
        k->st = error_set(k->err, PITH_NOMEM, "out of memory while reading %s", key);
        return;
    }
    *(void **)field(k->m, s) = v;
    if (!counted(k, s, kv, n))
        return;
    if (kv && kv->type == GGUF_ARR && kv->n < (uint64_t)n)
        k->st = error_set(k->err, PITH_SHAPE, "%s: key \"%s\" has %llu items for %d layers",
                          arch_path(k->m), key, (unsigned long long)kv->n, n);
    for (int32_t l = 0; l < n && k->st == PITH_OK; l++) {
        uint64_t i = kv && kv->type == GGUF_ARR ? (uint64_t)l : 0;
        if (is_float)
            ((float *)v)[l] = kv ? read_float(k, s, kv, i) : (float)fallback(k, s, l);
        else
            ((int32_t *)v)[l] = kv ? read_int(k, s, kv, i) : (int32_t)fallback(k, s, l);
        if (s->pattern && kv && kv->type != GGUF_ARR)
            ((int32_t *)v)[l] += PATTERN;
    }
}

void key_pattern(int32_t *v, int32_t n, int first_full)
{
    for (int32_t l = 0; v && l < n; l++)
        if (v[l] >= PATTERN) {
            int32_t period = v[l] - PATTERN;
            v[l] = period == 0 || (first_full ? l % period != 0 : l % period < period - 1);
        }
}

/* What is behind the last item stays 0. */
static void read_four(struct keys *k, const struct key_spec *s, const struct gguf_kv *kv)
{
    int32_t *to = field(k->m, s);
    uint64_t n = kv ? kv->n : 0;
    char key[128];
    key_name(k->m, s, key, sizeof key);
    if (kv && kv->type != GGUF_ARR)
        k->st = error_set(k->err, PITH_FORMAT,
                          "%s: key \"%s\" has type %s, wanted an array of up to 4 whole numbers",
                          arch_path(k->m), key, gguf_type_name(kv->type));
    else if (n > 4)
        k->st = error_set(k->err, PITH_SHAPE, "%s: key \"%s\" has %llu items, wanted at most 4",
                          arch_path(k->m), key, (unsigned long long)n);
    for (uint64_t i = 0; i < n && k->st == PITH_OK; i++)
        to[i] = read_int(k, s, kv, i);
}

static const struct gguf_kv *find(const struct arch_model *m, const struct key_spec *s)
{
    char key[128];
    key_name(m, s, key, sizeof key);
    const struct gguf_kv *kv = gguf_find(m->gguf, key);
    if (!kv && s->old) {
        snprintf(key, sizeof key, "%s.%s", m->arch->name, s->old);
        kv = gguf_find(m->gguf, key);
    }
    return kv;
}

static void read_row(struct keys *k, const struct key_spec *s)
{
    const struct gguf_kv *kv = find(k->m, s);
    char key[128];
    void *to = field(k->m, s);
    key_name(k->m, s, key, sizeof key);
    if (!kv && s->required) {
        k->st =
            error_set(k->err, PITH_MISSING, "%s: key \"%s\" is missing; the file is not complete",
                      arch_path(k->m), key);
        return;
    }
    switch (s->kind) {
    case KEY_LAYERS:
    case KEY_LAYERS_F32:
    case KEY_INTS:
        read_layers(k, s, kv);
        break;
    case KEY_WIDE:
        read_wide(k, s, kv);
        break;
    case KEY_F32:
        *(float *)to = kv ? read_float(k, s, kv, 0) : (float)fallback(k, s, 0);
        break;
    case KEY_BOOL: {
        int v = (int)default_of(k->m, s, 0);
        if (kv && !gguf_bool(k->m->gguf, kv, 0, &v))
            k->st = error_set(k->err, PITH_FORMAT, "%s: key \"%s\" has type %s, wanted bool",
                              arch_path(k->m), key, gguf_type_name(kv->type));
        *(int32_t *)to = v;
        break;
    }
    case KEY_NAME:
        *(int32_t *)to = kv ? read_name(k, s, kv) : (int32_t)fallback(k, s, 0);
        break;
    case KEY_FOUR:
        read_four(k, s, kv);
        break;
    case KEY_I32:
        if (kv && kv->type == GGUF_ARR && s->most) {
            *(int32_t *)to = read_most(k, s, kv);
            break;
        }
        if (kv && kv->type == GGUF_ARR)
            check_alike(k, s, kv);
        if (k->st == PITH_OK)
            *(int32_t *)to = kv ? read_int(k, s, kv, 0) : (int32_t)fallback(k, s, 0);
    }
}

/* The vocabulary's size is the embedding's: the key is not always there, and the tokenizer may be
 * shorter. */
static void read_vocab(struct keys *k)
{
    static const struct key_spec row = {I32("vocab_size", n_vocab), RANGE(1, INT32_MAX / 4),
                                        .required = 1};
    const struct gguf_tensor *t = gguf_tensor_find(k->m->gguf, SLICE("token_embd.weight"));
    if (!t) /* some embed by the output matrix */
        t = gguf_tensor_find(k->m->gguf, SLICE("output.weight"));
    if (t && t->n_dims == 2 && t->dims[0] > 0 && t->dims[0] <= INT32_MAX / 4)
        k->m->hp.n_vocab = (int32_t)t->dims[0];
    else
        read_row(k, &row);
}

/* Families without heads, or a feed-forward, have 0 of them in each layer. */
static void fill_layers(struct keys *k)
{
    struct hparams *hp = &k->m->hp;
    int32_t **each[] = {&hp->n_head, &hp->n_head_kv, &hp->n_ff, &hp->windowed};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (!*each[i])
            *each[i] = arena_array(k->m->arena, (size_t)hp->n_layer, sizeof(int32_t));
    if (!arena_ok(k->m->arena))
        k->st = error_set(k->err, PITH_NOMEM, "out of memory while reading %s", arch_path(k->m));
}

/* What every family's keys have to agree in. */
static void check_common(struct keys *k)
{
    struct hparams *hp = &k->m->hp;
    if (hp->n_nextn >= hp->n_layer) {
        k->st = error_set(k->err, PITH_RANGE, "%s: nextn_predict_layers is %d of %d layers in all",
                          arch_path(k->m), hp->n_nextn, hp->n_layer);
        return;
    }
    hp->n_layer -= hp->n_nextn;
    if (hp->n_expert_used > hp->n_expert || (hp->n_expert && !hp->n_expert_used)) {
        k->st = error_set(
            k->err, PITH_RANGE, "%s: %d experts but expert_used_count is %d, wanted %d..%d",
            arch_path(k->m), hp->n_expert, hp->n_expert_used, hp->n_expert > 0, hp->n_expert);
        return;
    }
    if (hp->n_rot % 2 || hp->n_rot > hp->d_k)
        k->st = error_set(k->err, PITH_RANGE,
                          "%s: RoPE: rope.dimension_count is %d, wanted an even number in 0..%d",
                          arch_path(k->m), hp->n_rot, hp->d_k);
    else if ((hp->n_rot && (hp->rope_base <= 1 || hp->rope_factor <= 0)) ||
             (hp->rope_base_swa != 0 && hp->rope_base_swa <= 1))
        k->st = error_set(k->err, PITH_RANGE,
                          "%s: RoPE of base %g and %g (wanted > 1), factor %g (wanted > 0)",
                          arch_path(k->m), (double)hp->rope_base, (double)hp->rope_base_swa,
                          (double)hp->rope_factor);
    if (hp->n_expert_groups > 1 && (hp->n_expert % hp->n_expert_groups || hp->n_groups_used < 1 ||
                                    hp->n_groups_used > hp->n_expert_groups))
        k->st = error_set(k->err, PITH_SHAPE,
                          "%s: %d experts in %d groups of which %d are used: not whole groups",
                          arch_path(k->m), hp->n_expert, hp->n_expert_groups, hp->n_groups_used);
    int32_t n = hp->n_head && hp->n_head_kv ? arch_blocks(k->m) : 0;
    for (int32_t l = 0; l < n && k->st == PITH_OK; l++)
        if (hp->n_head_kv[l] > 0 && (hp->n_head[l] < 1 || hp->n_head[l] % hp->n_head_kv[l]))
            k->st = error_set(k->err, PITH_SHAPE,
                              "%s: layer %d has %d query heads over %d key/value heads: not a "
                              "whole group",
                              arch_path(k->m), l, hp->n_head[l], hp->n_head_kv[l]);
}

pith_status keys_read(struct arch_model *m, struct pith_error *err)
{
    struct keys k = {.m = m, .err = err, .st = PITH_OK};
    m->hp.causal = 1;
    read_vocab(&k);
    for (const struct key_spec *s = m->arch->keys; s->suffix && k.st == PITH_OK; s++)
        if (!s->when || s->when(m))
            read_row(&k, s);
    if (k.st == PITH_OK)
        fill_layers(&k);
    if (k.st == PITH_OK)
        check_common(&k);
    return k.st;
}

/* ---------------------------------------------------------------- synthetic models */

static double value_at(const struct arch_model *m, const struct key_spec *s, int32_t l)
{
    const void *at = given(m, s);
    return s->kind == KEY_LAYERS       ? (*(int32_t *const *)at)[l]
           : s->kind == KEY_INTS       ? (*(int32_t *const *)at)[l]
           : s->kind == KEY_LAYERS_F32 ? (double)(*(float *const *)at)[l]
           : s->kind == KEY_F32        ? (double)*(const float *)at
                                       : *(const int32_t *)at;
}

static int is_array(const struct key_spec *s)
{
    return s->kind == KEY_LAYERS || s->kind == KEY_LAYERS_F32 || s->kind == KEY_INTS;
}

/* Sizes that were asked for and that the family has none of. */
static void drop_sizes(struct arch_model *m)
{
    static const size_t fields[] = {
        offsetof(struct hparams, n_head), offsetof(struct hparams, n_head_kv),
        offsetof(struct hparams, n_ff), offsetof(struct hparams, n_expert),
        offsetof(struct hparams, n_expert_used)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct key_spec *s = m->arch->keys;
        while (s->suffix && (s->at != fields[i] || s->family || (s->when && !s->when(m))))
            s++;
        if (!s->suffix)
            memset((uint8_t *)&m->hp + fields[i], 0, i < 3 ? sizeof(void *) : sizeof(int32_t));
    }
}

static void choose(struct keys *k, const struct key_spec *s)
{
    void *at = field(k->m, s);
    int32_t n = is_array(s) ? n_of(k->m, s) : 1;
    if (s->size)
        return;
    if (s->kind == KEY_WIDE) {
        choose_wide(k, s);
        return;
    }
    if (s->kind == KEY_FOUR) { /* three parts of the rotated pairs */
        int32_t pairs = k->m->hp.n_rot / 2, part = s->synth != 0 ? pairs / 3 : 0;
        memcpy(at, (int32_t[4]){part ? pairs - 2 * part : 0, part, part, 0}, 4 * sizeof(int32_t));
        return;
    }
    if (is_array(s))
        at = *(void **)at = arena_array(k->m->arena, (size_t)n, sizeof(int32_t));
    for (int32_t l = 0; at && l < n; l++) {
        double v = s->synth_of     ? s->synth_of(k->m)
                   : s->synth != 0 ? s->synth + (s->pattern ? PATTERN : 0)
                                   : fallback(k, s, l);
        if (s->kind == KEY_F32 || s->kind == KEY_LAYERS_F32)
            ((float *)at)[l] = (float)v;
        else
            ((int32_t *)at)[l] = (int32_t)v + (s->kind == KEY_INTS ? l : 0);
    }
}

/* The number that was asked for, as text; NULL: none. */
static const char *asked(const struct arch_model *m, const struct key_spec *s)
{
    size_t n = strlen(s->suffix);
    for (const char *const *a = m->asked_keys; a && *a; a++)
        if (!strncmp(*a, s->suffix, n) && (*a)[n] == '=')
            return *a + n + 1;
    return NULL;
}

static void choose_asked(struct keys *k, const struct key_spec *s)
{
    const char *text = asked(k->m, s);
    char *end;
    if (!text || k->st != PITH_OK)
        return;
    double v = str_to_double(text, &end);
    if (s->kind == KEY_WIDE || s->kind == KEY_NAME || s->kind == KEY_INTS) {
        k->st = error_set(k->err, PITH_UNSUPPORTED, "synth: key \"%s\" is not one number",
                          s->suffix);
        return;
    }
    if (!s->family && s->at == offsetof(struct hparams, n_layer)) { /* lists have so many items */
        k->st = error_set(k->err, PITH_UNSUPPORTED,
                          "synth: key \"%s\" is the number of layers; ask for it as that, not as a "
                          "key",
                          s->suffix);
        return;
    }
    int real = s->kind == KEY_F32 || s->kind == KEY_LAYERS_F32;
    if (end == text || *end || !within(s, v) || fabs(v) > 1e30 ||
        (!real && (v != floor(v) || fabs(v) > INT32_MAX))) {
        double lo, hi;
        limits(s, &lo, &hi);
        k->st = error_set(k->err, PITH_RANGE, "synth: key \"%s\" is \"%s\", wanted %s in %g..%g",
                          s->suffix, text, real ? "a number" : "a whole number", lo, hi);
        return;
    }
    void *at = field(k->m, s);
    int32_t n = is_array(s) ? n_of(k->m, s) : s->kind == KEY_FOUR ? 4 : 1;
    if (is_array(s)) /* its own: the default may be shared with another field */
        at = *(void **)at = arena_array(k->m->arena, (size_t)n, sizeof(int32_t));
    for (int32_t l = 0; at && l < n; l++)
        if (real)
            ((float *)at)[l] = (float)v;
        else
            ((int32_t *)at)[l] = (int32_t)v + (s->pattern ? PATTERN : 0);
}

/* Each key that was asked for is one that this model has. */
static pith_status check_asked(const struct arch_model *m, struct pith_error *err)
{
    for (const char *const *a = m->asked_keys; a && *a; a++) {
        size_t n = strcspn(*a, "=");
        const struct key_spec *s = m->arch->keys;
        while (s->suffix &&
               (strncmp(*a, s->suffix, n) != 0 || s->suffix[n] || (s->when && !s->when(m))))
            s++;
        if (!s->suffix || !(*a)[n])
            return error_set(err, PITH_UNSUPPORTED,
                             "synth: \"%.40s\": wanted NAME=NUMBER of a key that %s has in this "
                             "size, without \"%s.\" (pith inspect --arch %s lists them)",
                             *a, m->arch->name, m->arch->name, m->arch->name);
    }
    return PITH_OK;
}

static void write_row(const struct arch_model *m, const struct key_spec *s, struct gguf_writer *w)
{
    char key[128];
    key_name(m, s, key, sizeof key);
    if (s->kind == KEY_WIDE) {
        uint64_t *const *wide = given(m, s);
        gguf_writer_array(w, key, GGUF_U64, *wide, (uint64_t)s->count(m));
        return;
    }
    int32_t n = is_array(s) ? n_of(m, s) : 1, as_default = 1;
    int alike = !s->pattern && s->kind != KEY_INTS;
    for (int32_t l = 0; l < n; l++) {
        double v = value_at(m, s, l), d = default_of(m, s, l);
        alike &= v == value_at(m, s, 0);
        as_default &= v == (s->kind == KEY_F32 || s->kind == KEY_LAYERS_F32 ? (double)(float)d : d);
    }
    if (as_default && !s->required && !asked(m, s))
        return;
    if (s->kind == KEY_FOUR)
        gguf_writer_array(w, key, GGUF_I32, given(m, s), 4);
    else if (s->kind == KEY_NAME)
        gguf_writer_str(w, key, slice_of(s->names[*(const int32_t *)given(m, s)]));
    else if (s->kind == KEY_BOOL)
        gguf_writer_bool(w, key, *(const int32_t *)given(m, s));
    else if (!alike)
        gguf_writer_array(w, key, s->kind == KEY_LAYERS_F32 ? GGUF_F32 : GGUF_I32,
                          *(void *const *)given(m, s), (uint64_t)n);
    else if (s->kind == KEY_F32 || s->kind == KEY_LAYERS_F32)
        gguf_writer_f32(w, key, (float)value_at(m, s, 0));
    else
        gguf_writer_u32(w, key, (uint32_t)value_at(m, s, 0));
}

static void write_rows(const struct arch_model *m, struct gguf_writer *w)
{
    char key[128];
    snprintf(key, sizeof key, "%s.vocab_size", m->arch->name);
    gguf_writer_u32(w, key, (uint32_t)m->hp.n_vocab);
    for (const struct key_spec *s = m->arch->keys; s->suffix; s++) {
        int again = s > m->arch->keys && s[-1].most && !strcmp(s[-1].suffix, s->suffix);
        if (!again && (!s->when || s->when(m)))
            write_row(m, s, w);
    }
}

pith_status keys_synthesise(struct arch_model *m, struct gguf_writer *w, struct pith_error *err)
{
    struct keys k = {.m = m, .err = err, .st = PITH_OK};
    m->hp.causal = 1;
    drop_sizes(m);
    for (const struct key_spec *s = m->arch->keys; s->suffix && k.st == PITH_OK; s++)
        if (!s->when || s->when(m)) {
            choose(&k, s);
            choose_asked(&k, s);
        }
    if (k.st == PITH_OK)
        k.st = check_asked(m, err);
    if (k.st == PITH_OK && m->arch->synth)
        k.st = m->arch->synth(m, err);
    if (k.st == PITH_OK && !arena_ok(m->arena))
        k.st = error_set(err, PITH_NOMEM, "out of memory while making a model");
    if (k.st != PITH_OK)
        return k.st;
    write_rows(m, w);
    fill_layers(&k);
    if (k.st == PITH_OK)
        check_common(&k);
    return k.st;
}
