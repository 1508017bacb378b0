/* bind.c -- from the file's tensors to the architecture's slots. Everything wrong (missing, extra,
 * misshapen, of a type that cannot be used there) is collected into one message before it fails, so
 * that a user mends a conversion once. */
#include "run/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

struct binder {
    struct pith_model *m;
    struct str faults;
    int n_faults;
    uint8_t *seen; /* [tensors in the file] */
    pith_status first;
};

static void fault(struct binder *b, pith_status st, const char *what)
{
    if (!b->n_faults++)
        b->first = st;
    if (b->faults.n > PITH_ERROR_MAX - 300) /* the rest is counted */
        return;
    str_printf(&b->faults, "%s%s", b->n_faults > 1 ? "; " : "", what);
}

void model_shape_text(char *out, size_t cap, int n, const int64_t *dims)
{
    size_t at = (size_t)snprintf(out, cap, "[");
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, i ? ", %lld" : "%lld", (long long)dims[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "]");
}

/* A vector must be readable as floats, a matrix must have a reference dot product; integers are
 * integers. */
static int usable(const struct gguf_tensor *t, int n_dims, enum tensor_use use)
{
    if (use == TENSOR_INTEGERS)
        return t->type == DT_I32;
    return n_dims == 1 || use == TENSOR_VECTOR ? dtypes[t->type].dequant != NULL
                                               : dtypes[t->type].dot != NULL;
}

enum { MOST_ROWS = 1 << 28 };

/* Whether a tensor has the n dimensions that are wanted (below 0: any), and what they are. */
static int fits(const struct gguf_tensor *t, enum tensor_use use, int n, const int64_t *dims,
                int64_t found[4])
{
    /* Files leave a slowest dimension of 1 out. */
    int short_of_one = t->n_dims == n - 1 && (dims[0] < 0 || dims[0] == 1);
    /* Of a stack of matrices, or a vector, the two slowest may be one. */
    int flat = !short_of_one && n > 1 && t->n_dims == n - 1 && t->dims[0] == dims[0] * dims[1] &&
               (use == TENSOR_PER_HEAD || use == TENSOR_VECTOR);
    int first = short_of_one || flat, same = t->n_dims == n || first;
    found[0] = flat ? dims[0] : 1;
    for (int i = 0; first ? i < 3 : i < 4; i++)
        found[first + i] = t->dims[i];
    if (flat)
        found[1] = dims[1];
    for (int i = 0; i < n && same; i++) /* any: that rows of a value can have */
        same = dims[i] < 0 ? found[i] <= MOST_ROWS : found[i] == dims[i];
    return same;
}

static struct tensor_source source_of(const struct pith_model *m, const struct gguf_tensor *t)
{
    return (struct tensor_source){
        .type = t->type, .data = gguf_tensor_data(m->gguf, t), .bytes = t->bytes};
}

/* The file's tensor as it is used; it is not yet among the model's. */
static struct tensor *take(struct binder *b, const struct gguf_tensor *t, const char *name,
                           enum tensor_use use, int n, const int64_t dims[4])
{
    struct pith_model *m = b->m;
    struct sourced_tensor *made = arena_alloc(&m->arena, sizeof *made);
    if (!made)
        return NULL;
    struct tensor *w = &made->t;
    made->s = source_of(m, t);
    *w = (struct tensor){.type = t->type,
                         .n_dims = n,
                         .bytes = t->bytes,
                         .layer = -1,
                         .index = -1,
                         .from = &made->s};
    w->use = use;
    w->name = arena_strndup(&m->arena, name, strlen(name));
    memcpy(w->dims, dims, sizeof w->dims);
    if (w->use == TENSOR_VECTOR) {
        for (int i = 1; i < w->n_dims; i++)
            w->dims[0] *= w->dims[i];
        w->n_dims = 1;
    }
    if (w->use == TENSOR_KERNEL) {
        for (int i = 2; i < w->n_dims; i++)
            w->dims[1] *= w->dims[i];
        w->n_dims = 2;
    }
    if (w->n_dims == 1) { /* vectors are f32 wherever they go */
        w->type = DT_F32;
        w->bytes = (uint64_t)w->dims[0] * sizeof(float);
    }
    return w;
}

/* Rows of the tensor of this name in layer l, as its table has it; 0: it has none. */
static int64_t rows_of(const struct arch_model *a, const char *name, int32_t l)
{
    char full[160];
    int64_t dims[4] = {0};
    for (const struct tensor_spec *s = a->arch->tensors; s->name; s++) {
        if (s->layer != (l >= 0) || !arch_tensor_used(a, s, l))
            continue;
        arch_tensor_name(a, s, l, full, sizeof full);
        if (!strcmp(full, name))
            return arch_tensor_dims(a, s, l, dims) > 0 ? dims[0] : 0;
    }
    return 0;
}

/* Files may have q, k and v in one tensor, the rows of one after those of the other. Where the
 * architecture's table has them apart, `part` is that of them called `name`. NULL: that is not so;
 * else the tensor. */
static const struct gguf_tensor *part_of_fused(const struct pith_model *m, const char *name,
                                               int32_t l, struct gguf_tensor *part)
{
    char other[160];
    const char *at = strstr(name, "attn_");
    int64_t rows = 0, first = 0, own = 0;
    if (l < 0 || !at || !at[5] || !strchr("qkv", at[5]) || at[6] != '.')
        return NULL;
    int n = (int)(at - name);
    snprintf(other, sizeof other, "%.*sattn_qkv%s", n, name, at + 6);
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, slice_of(other));
    if (!t || rows_of(&m->arch, other, l) || (t->n_dims != 2 && dtypes[t->type].block != 1))
        return NULL; /* a vector of blocks has no parts */
    for (const char *c = "qkv"; *c; c++) {
        snprintf(other, sizeof other, "%.*sattn_%c%s", n, name, *c, at + 6);
        int64_t some = rows_of(&m->arch, other, l);
        if (*c == at[5]) {
            first = rows;
            own = some;
        }
        rows += some;
    }
    if (t->dims[0] != rows || !own)
        return NULL;
    uint64_t row = t->bytes / (uint64_t)rows;
    *part = *t;
    part->dims[0] = own;
    part->bytes = row * (uint64_t)own;
    part->offset += row * (uint64_t)first;
    return t;
}

static void bind_one(struct binder *b, const struct tensor_spec *spec, int32_t l)
{
    struct pith_model *m = b->m;
    char name[160], what[512], found[96], want[96];
    int64_t dims[4], found_dims[4];
    arch_tensor_name(&m->arch, spec, l, name, sizeof name);
    struct gguf_tensor part;
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, slice_of(name)), *whole = t;
    int n = arch_tensor_dims(&m->arch, spec, l, dims);
    if (!t && (whole = part_of_fused(m, name, l, &part)))
        t = &part;
    if (!t) {
        if (!spec->optional && !spec->group) {
            model_shape_text(want, sizeof want, n, dims);
            snprintf(what, sizeof what, "missing %s %s", name, want);
            fault(b, PITH_MISSING, what);
        }
        return;
    }
    uint8_t *seen = &b->seen[whole - gguf_tensor_at(m->gguf, 0)];
    if (*seen && t == whole) /* two rows of the table name it */
        return;
    *seen = 1;
    if (!fits(t, spec->use, n, dims, found_dims)) {
        model_shape_text(found, sizeof found, t->n_dims, t->dims);
        model_shape_text(want, sizeof want, n, dims);
        snprintf(what, sizeof what, "%s is %s, wanted %s", name, found, want);
        fault(b, PITH_SHAPE, what);
        return;
    }
    if (!usable(t, n, spec->use)) {
        snprintf(what, sizeof what, "%s has type %s, which cannot be used there", name,
                 dtypes[t->type].name);
        fault(b, PITH_UNSUPPORTED, what);
        return;
    }
    struct tensor *w = take(b, t, name, spec->use, n, found_dims);
    if (!w)
        return;
    w->layer = l;
    w->index = m->n_tensors;
    *arch_tensor_slot(&m->arch, spec, l) = w;
    if (spec->use == TENSOR_EMBEDDING)
        m->tok_embd = w;
    if (spec->use == TENSOR_OUTPUT)
        m->tied = 0;
    m->tensors[m->n_tensors++] = w;
}

/* The numbers of a stack's NAME.scale as a vector of the model. */
static void bind_factor(struct binder *b, struct tensor *w, const struct gguf_tensor *t,
                        const char *name)
{
    struct pith_model *m = b->m;
    struct sourced_tensor *made = arena_alloc(&m->arena, sizeof *made);
    if (!made)
        return;
    struct tensor *f = &made->t;
    made->s = source_of(m, t);
    *f = (struct tensor){.name = arena_strndup(&m->arena, name, strlen(name)),
                         .use = TENSOR_VECTOR,
                         .type = DT_F32,
                         .n_dims = 1,
                         .dims = {t->dims[0]},
                         .bytes = t->bytes,
                         .layer = w->layer,
                         .index = m->n_tensors,
                         .from = &made->s};
    m->tensors[m->n_tensors++] = f;
    w->factor = f;
}

/* Feed-forwards are (W x + bias) times NAME.scale in files; products here are (W x) times it, plus
 * the bias, as attention has it. So that the former come out, their bias is multiplied, too. */
static void scale_bias(struct binder *b, const struct tensor *w)
{
    struct pith_model *m = b->m;
    struct tensor *bias = NULL;
    const uint8_t *by = w->factor ? w->factor->from->data : (const void *)&w->scale;
    char name[160];
    snprintf(name, sizeof name, "%.*s.bias", (int)strlen(w->name) - 7, w->name);
    if (!strstr(name, ".ffn_") || !gguf_tensor_find(m->gguf, slice_of(name)))
        return;
    for (int32_t i = 0; i < m->n_tensors && !bias; i++)
        bias = strcmp(m->tensors[i]->name, name) ? NULL : m->tensors[i];
    if (!bias)
        return;
    int64_t n = bias->dims[0] * (bias->n_dims > 1 ? bias->dims[1] : 1);
    int64_t each = n / (w->factor ? w->factor->dims[0] : 1); /* expert by expert */
    float *v = arena_array(&m->arena, (size_t)n, sizeof *v), s;
    if (!v)
        return;
    dtypes[bias->from->type].dequant(bias->from->data, v, n);
    for (int64_t i = 0; i < n; i++) {
        memcpy(&s, by + i / each * (int64_t)sizeof s, sizeof s);
        v[i] *= s;
    }
    bias->type = bias->from->type = DT_F32;
    bias->bytes = bias->from->bytes = (uint64_t)n * sizeof *v;
    bias->from->data = (const void *)v;
    bias->from->computed = 1;
}

/* NAME.scale, a number that products with NAME.weight are multiplied with, for each matrix of a
 * stack: blocks of four bits and ternary weights come with one. */
static void bind_scale(struct binder *b, struct tensor *w)
{
    size_t n = strlen(w->name);
    char name[160], what[256];
    int stack = w->use == TENSOR_EXPERTS && w->n_dims == 3;
    int64_t wanted = stack ? tensor_stack(w) : 1;
    if ((w->n_dims != 2 && !stack) || n < 8 || strcmp(w->name + n - 7, ".weight"))
        return;
    snprintf(name, sizeof name, "%.*s.scale", (int)n - 7, w->name);
    const struct gguf_tensor *t = gguf_tensor_find(b->m->gguf, slice_of(name));
    if (!t || rows_of(&b->m->arch, name, w->layer))
        return;
    b->seen[t - gguf_tensor_at(b->m->gguf, 0)] = 1;
    if (t->n_dims != 1 || t->dims[0] != wanted || t->type != DT_F32) {
        snprintf(what, sizeof what, "%s is %lld numbers of type %s, wanted %lld of f32", name,
                 (long long)t->dims[t->n_dims - 1], dtypes[t->type].name, (long long)wanted);
        fault(b, PITH_SHAPE, what);
        return;
    }
    for (int64_t i = 0; i < wanted; i++) {
        memcpy(&w->scale, (const float *)gguf_tensor_data(b->m->gguf, t) + i, sizeof w->scale);
        if (isfinite(w->scale))
            continue;
        snprintf(what, sizeof what, "%s is %g, wanted a finite number", name, (double)w->scale);
        fault(b, PITH_RANGE, what);
        return;
    }
    if (stack) {
        w->scale = 0;
        bind_factor(b, w, t, name);
    }
    if (w->factor || w->scale != 0)
        scale_bias(b, w);
}

/* ---------------------------------------------------------------- rows that belong together */

struct tally {
    int n;
    char first[160];
};

static void count_row(struct tally *t, const struct arch_model *a, const struct tensor_spec *spec,
                      int32_t l)
{
    if (!t->n++)
        arch_tensor_name(a, spec, l, t->first, sizeof t->first);
}

static void tally_text(char *out, size_t cap, const struct tally *t)
{
    if (t->n > 1)
        snprintf(out, cap, "%s and %d more are", t->first, t->n - 1);
    else
        snprintf(out, cap, "%s is", t->first);
}

/* Optional rows of one group, over all layers that use them: all or none. */
static void check_group(struct binder *b, int group)
{
    struct arch_model *a = &b->m->arch;
    struct tally here = {0}, gone = {0};
    char what[512], is[200], is_not[200];
    for (int32_t l = -1; l < a->hp.n_layer; l++)
        for (const struct tensor_spec *s = a->arch->tensors; s->name; s++)
            if (s->group == group && s->layer == (l >= 0) && arch_tensor_used(a, s, l))
                count_row(*arch_tensor_slot(a, s, l) ? &here : &gone, a, s, l);
    if (!here.n || !gone.n)
        return;
    tally_text(is, sizeof is, &here);
    tally_text(is_not, sizeof is_not, &gone);
    snprintf(what, sizeof what, "%s there, %s missing: they belong together", is, is_not);
    fault(b, PITH_MISSING, what);
}

/* ---------------------------------------------------------------- what predicts further on */

/* The layer of a block that does, or -1. */
static int32_t nextn_layer(const struct arch_model *a, struct slice name)
{
    char text[32];
    int n;
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 30 ? name.n : 30), name.p);
    return sscanf(text, "blk.%d.", &n) == 1 && n >= a->hp.n_layer &&
                   n < a->hp.n_layer + a->hp.n_nextn
               ? n
               : -1;
}

/* The row of the block's own tensors that has this name; NULL: it has none. */
static const struct tensor_spec *nextn_spec(const struct arch_model *a, int32_t l, const char *name)
{
    char full[160];
    for (const struct tensor_spec *t = arch_nextn_tensors; t->name; t++) {
        arch_tensor_name(a, t, l, full, sizeof full);
        if (!strcmp(full, name))
            return t;
    }
    return NULL;
}

static struct tensor **nextn_slot(struct arch_model *a, int32_t l, const struct tensor_spec *t)
{
    return (struct tensor **)((uint8_t *)&a->nextn[l - a->hp.n_layer] + t->at);
}

/* One of a layer's: by a row that such layers use. In families without draft heads which those are
 * is only known of the layers before, so there any row will do that has its name and shape. */
static int bind_as_layer(struct binder *b, const struct gguf_tensor *t, const char *name, int32_t l)
{
    struct arch_model *a = &b->m->arch;
    const struct tensor_spec *by = NULL;
    int64_t dims[4], found[4], kept[4] = {0};
    char full[160];
    for (const struct tensor_spec *s = a->arch->tensors; s->name; s++) {
        if (!s->layer || ((by || a->arch->role[ROLE_DRAFT]) && !arch_tensor_used(a, s, l)))
            continue;
        arch_tensor_name(a, s, l, full, sizeof full);
        int n = strcmp(full, name) ? 0 : arch_tensor_dims(a, s, l, dims);
        if (!n || !fits(t, s->use, n, dims, found) || !usable(t, n, s->use))
            continue;
        if (by && arch_tensor_used(a, by, l))
            break;
        by = s;
        memcpy(kept, found, sizeof kept);
    }
    if (by)
        *arch_tensor_slot(a, by, l) =
            take(b, t, name, by->use, arch_tensor_dims(a, by, l, dims), kept);
    return by != NULL;
}

/* A tensor that is not known or has another shape is no fault, but is told. */
static void bind_nextn(struct binder *b)
{
    struct pith_model *m = b->m;
    struct arch_model *a = &m->arch;
    int64_t dims[4] = {0}, found[4];
    int n_other = 0, n_found = 0;
    char name[160], first[160] = "";
    for (uint64_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        int32_t l = nextn_layer(a, t->name);
        if (l < 0)
            continue;
        n_found += b->seen[i] = 1;
        snprintf(name, sizeof name, "%.*s", (int)(t->name.n < 150 ? t->name.n : 150), t->name.p);
        const struct tensor_spec *s = nextn_spec(a, l, name);
        int n = s ? arch_tensor_dims(a, s, l, dims) : 0;
        int own = s && fits(t, TENSOR_PLAIN, n, dims, found) && usable(t, n, TENSOR_PLAIN);
        if (own)
            *nextn_slot(a, l, s) = take(b, t, name, TENSOR_PLAIN, n, found);
        if (!own && (s || !bind_as_layer(b, t, name, l)) && !n_other++)
            memcpy(first, name, sizeof first);
    }
    if (n_other)
        str_printf(
            &m->note,
            "%s%d tensors of blocks that predict further on are not known in this shape, the "
            "first being %s",
            m->note.n ? "; " : "", n_other, first);
    if (n_found > n_other && !a->drafts)
        str_printf(&m->note, "%s%d tensors of blocks that predict further on are not loaded%s",
                   m->note.n ? "; " : "", n_found - n_other,
                   a->arch->role[ROLE_DRAFT] ? " (draft_heads)" : "");
}

/* A bound tensor of a block becomes one of the model's. */
static void keep_nextn(struct binder *b, const struct tensor_spec *t, struct tensor *w, int32_t l)
{
    struct pith_model *m = b->m;
    char name[160], what[200];
    if (!w && !t->optional && !t->group) {
        arch_tensor_name(&m->arch, t, l, name, sizeof name);
        snprintf(what, sizeof what, "missing %s, of a draft head", name);
        fault(b, PITH_MISSING, what);
    }
    if (!w || w->index >= 0)
        return;
    w->layer = l;
    w->index = m->n_tensors;
    m->tensors[m->n_tensors++] = w;
}

/* The blocks are to run: each has all that a layer needs, and what joins token and vector. */
static void keep_heads(struct binder *b)
{
    struct arch_model *a = &b->m->arch;
    for (int32_t l = a->hp.n_layer; l < a->hp.n_layer + a->hp.n_nextn; l++) {
        for (const struct tensor_spec *t = arch_nextn_tensors; t->name; t++)
            keep_nextn(b, t, *nextn_slot(a, l, t), l);
        for (const struct tensor_spec *t = a->arch->tensors; t->name; t++)
            if (t->layer && arch_tensor_used(a, t, l))
                keep_nextn(b, t, *arch_tensor_slot(a, t, l), l);
    }
}

/* The architecture knows it, and has no use for it. */
static int is_unused(const struct arch *a, struct slice name)
{
    char text[64];
    int layer, skip = 0;
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 60 ? name.n : 60), name.p);
    if (sscanf(text, "blk.%d.%n", &layer, &skip) < 1 &&
        sscanf(text, "%*[a-z].blk.%d.%n", &layer, &skip) < 1)
        skip = 0;
    for (const char *const *u = a->unused; u && *u; u++)
        if (!strncmp(text + skip, *u, strlen(*u)))
            return 1;
    return 0;
}

pith_status model_bind(struct pith_model *m, struct pith_error *err)
{
    struct binder b = {.m = m, .first = PITH_OK};
    uint64_t n_file = gguf_n_tensors(m->gguf);
    str_init(&b.faults, PITH_MEM_META);
    m->tied = m->gives_logits; /* until an output matrix is found */
    b.seen = mem_zalloc(n_file + 1, PITH_MEM_META);
    /* one may be three of them */
    m->tensors = arena_array(&m->arena, 3 * n_file + 2, sizeof *m->tensors);
    if (b.seen && m->tensors) {
        for (const struct tensor_spec *s = m->arch.arch->tensors; s->name; s++)
            for (int32_t l = s->layer ? 0 : -1; l < (s->layer ? m->arch.hp.n_layer : 0); l++)
                if (arch_tensor_used(&m->arch, s, l))
                    bind_one(&b, s, l);
        bind_nextn(&b);
        if (m->arch.drafts && arena_ok(&m->arena))
            keep_heads(&b);
        for (int32_t i = 0; i < m->n_tensors && arena_ok(&m->arena); i++)
            bind_scale(&b, m->tensors[i]);
        int n_groups = 0;
        for (const struct tensor_spec *s = m->arch.arch->tensors; s->name; s++)
            n_groups = s->group > n_groups ? s->group : n_groups;
        for (int g = 1; g <= n_groups && !b.n_faults && arena_ok(&m->arena); g++)
            check_group(&b, g); /* what is misshapen has no slot, and was named */
        for (uint64_t i = 0; i < n_file; i++) {
            const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
            char what[256];
            if (b.seen[i] || is_unused(m->arch.arch, t->name))
                continue;
            snprintf(what, sizeof what, "extra %.*s", (int)(t->name.n < 100 ? t->name.n : 100),
                     t->name.p);
            fault(&b, PITH_FORMAT, what);
        }
    }
    pith_status st = PITH_OK;
    if (!b.seen || !arena_ok(&m->arena) || b.faults.failed)
        st = error_set(err, PITH_NOMEM, "out of memory while binding the tensors of %s",
                       gguf_path(m->gguf));
    else if (b.n_faults)
        st =
            error_set(err, b.first, "%s does not fit architecture %s, %d fault%s: %s%s",
                      gguf_path(m->gguf), m->arch.arch->name, b.n_faults, b.n_faults > 1 ? "s" : "",
                      b.faults.p, b.faults.n > PITH_ERROR_MAX - 300 ? "; ..." : "");
    mem_free(b.seen);
    str_deinit(&b.faults);
    return st;
}
