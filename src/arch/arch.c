/* arch.c -- the list of architectures, opening one, symbolic shapes and states, shared by all. */
#include "arch/arch.h"

#include <stdio.h>
#include <string.h>
#include "tensor/source.h"

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

/* ---------------------------------------------------------------- opening */

/* What a file's tensors are called, layer by layer the same: blk.7.attn_q.weight is
 * blk.0.attn_q.weight. */
enum { KINDS_MAX = 64, KIND_BYTES = 96 };
struct kinds {
    char name[KINDS_MAX][KIND_BYTES];
    int n;
};

static void kind_of(struct slice name, char out[KIND_BYTES])
{
    size_t at = 0;
    for (size_t i = 0; i < name.n && at + 2 < KIND_BYTES; i++) {
        size_t end = i + 1;
        while (name.p[i] == '.' && end < name.n && name.p[end] >= '0' && name.p[end] <= '9')
            end++;
        out[at++] = name.p[i];
        if (end > i + 1 && end < name.n && name.p[end] == '.') {
            out[at++] = '0';
            i = end - 1;
        }
    }
    out[at] = 0;
}

static int kinds_find(const struct kinds *k, const char *name)
{
    int i = 0;
    while (i < k->n && strcmp(k->name[i], name) != 0)
        i++;
    return i;
}

static void kinds_of(const struct gguf *g, struct kinds *k)
{
    char name[KIND_BYTES];
    for (uint64_t i = 0; i < gguf_n_tensors(g) && k->n < KINDS_MAX; i++) {
        kind_of(gguf_tensor_at(g, i)->name, name);
        if (kinds_find(k, name) == k->n)
            memcpy(k->name[k->n++], name, sizeof name);
    }
}

/* Which kinds an architecture's table has; how many. */
static int kinds_had(const struct kinds *k, const struct arch *a, uint8_t had[KINDS_MAX])
{
    const struct arch_model m = {.arch = a};
    char name[160];
    int n = 0;
    memset(had, 0, KINDS_MAX);
    for (const struct tensor_spec *s = a->tensors; s->name; s++) {
        arch_tensor_name(&m, s, s->layer ? 0 : -1, name, sizeof name);
        int i = kinds_find(k, name);
        n += i < k->n && !had[i];
        if (i < k->n)
            had[i] = 1;
    }
    return n;
}

/* The known architecture that has most of the file's tensors, and what it lacks: "" for a file
 * without tensors. */
static void nearest(const struct gguf *g, struct str *out)
{
    struct kinds k = {.n = 0};
    uint8_t had[KINDS_MAX];
    int most = -1, told = 0;
    const struct arch *best = NULL;
    kinds_of(g, &k);
    for (const struct arch *const *a = arch_list; *a && k.n; a++) {
        int n = kinds_had(&k, *a, had);
        if (n > most) {
            most = n;
            best = *a;
        }
    }
    if (!best)
        return;
    kinds_had(&k, best, had);
    str_printf(out, "; nearest is %s, which has %d of %d kinds of tensors", best->name, most, k.n);
    for (int i = 0; i < k.n && told < 6; i++)
        if (!had[i])
            str_printf(out, "%s%s", told++ ? ", " : " and lacks ", k.name[i]);
    if (k.n - most > told)
        str_printf(out, " and %d more", k.n - most - told);
}

static pith_status unknown(const struct gguf *g, const char *name, struct pith_error *err)
{
    struct str text;
    str_init(&text, PITH_MEM_META);
    nearest(g, &text);
    str_printf(&text, "; known are ");
    for (const struct arch *const *a = arch_list; *a; a++)
        str_printf(&text, "%s%s", a == arch_list ? "" : ", ", (*a)->name);
    pith_status st =
        error_set(err, PITH_UNSUPPORTED, "%s: unknown architecture \"%s\"%s", gguf_path(g), name,
                  text.failed ? "" : text.p);
    str_deinit(&text);
    return st;
}

pith_status arch_known(struct slice name, struct pith_error *err)
{
    char text[64];
    int n = 0;
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 60 ? name.n : 60), name.p);
    if (arch_find(text))
        return PITH_OK;
    while (arch_list[n])
        n++;
    return error_set(err, PITH_UNSUPPORTED,
                     "unknown architecture \"%s\", none of the %d that this build runs", text, n);
}

static pith_status out_of_memory(const struct arch_model *m, struct pith_error *err)
{
    return error_set(err, PITH_NOMEM, "out of memory while %s %s", m->gguf ? "reading" : "making",
                     arch_path(m));
}

/* Layers that are run again need no more tensors, so a file of any size could ask for any number: a
 * graph of some kilobytes each. */
enum { VISITS_MOST = 4 * MAX_LAYERS };

/* Once the keys are known. */
static pith_status take_shape(struct arch_model *m, struct pith_error *err)
{
    const struct arch *a = m->arch;
    size_t n = (size_t)m->hp.n_layer, more = (size_t)m->hp.n_nextn;
    m->n_visits = m->hp.n_layer;
    m->hp.embeds = !m->hp.causal;
    m->layer_features = arena_array(m->arena, n + more, sizeof *m->layer_features);
    if (!m->layer_features)
        return out_of_memory(m, err);
    pith_status st = a->derive ? a->derive(m, err) : PITH_OK;
    if (st != PITH_OK)
        return st;
    size_t visits = (size_t)(m->n_visits > m->n_encoder_visits ? m->n_visits : m->n_encoder_visits);
    if (visits > VISITS_MOST)
        return error_set(err, PITH_RANGE,
                         "%s runs its %d layers %zu times in all, wanted at most %d", arch_path(m),
                         m->hp.n_layer, visits, VISITS_MOST);
    n = (size_t)m->hp.n_layer; /* a second stack may have more */
    m->model = arena_alloc(m->arena, a->model_bytes + 1);
    m->layers = arena_array(m->arena, n + more, a->layer_bytes);
    m->nextn = arena_array(m->arena, more + 1, sizeof *m->nextn);
    m->rope = arena_array(m->arena, n + more, sizeof *m->rope);
    m->state_of = arena_array(m->arena, visits, sizeof *m->state_of);
    if (arena_ok(m->arena)) {
        memset(m->state_of, -1, visits * sizeof *m->state_of);
        if (a->states)
            a->states(m);
    }
    return arena_ok(m->arena) ? PITH_OK : out_of_memory(m, err);
}

static pith_status make_family(struct arch_model *m, struct pith_error *err)
{
    m->family = arena_alloc(m->arena, m->arch->family_bytes + 1);
    return m->family ? PITH_OK : out_of_memory(m, err);
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
    *m = (struct arch_model){.arch = arch_find(text), .arena = arena, .gguf = g};
    if (!m->arch)
        return unknown(g, text, err);
    pith_status st = make_family(m, err);
    if (st == PITH_OK)
        st = keys_read(m, err);
    return st == PITH_OK ? take_shape(m, err) : st;
}

pith_status arch_open_synthetic(struct arch_model *m, struct gguf_writer *w, struct pith_error *err)
{
    pith_status st = make_family(m, err);
    if (st == PITH_OK)
        st = keys_synthesise(m, w, err);
    return st == PITH_OK ? take_shape(m, err) : st;
}

/* Do the parts of the head that ranks fit together? */
static pith_status check_head(const struct arch_model *m, struct pith_error *err)
{
    const struct arch_io *io = &m->io;
    int64_t in = io->cls ? tensor_m(io->cls) : m->hp.n_embd;
    const struct {
        const struct tensor *t;
        int64_t found, wanted;
        const char *what;
    } part[] = {
        {io->cls_b, io->cls_b ? tensor_k(io->cls_b) : 0, in, "rows of cls.weight"},
        {io->rank, io->rank ? tensor_k(io->rank) : 0, in, "columns, as cls.weight has rows"},
        {io->dense_2_b, io->dense_2_b ? tensor_k(io->dense_2_b) : 0,
         io->dense_2 ? tensor_m(io->dense_2) : 0, "rows of dense_2.weight"},
        {io->dense_3, io->dense_3 ? tensor_k(io->dense_3) : 0,
         io->dense_2 ? tensor_m(io->dense_2) : 0, "columns, as dense_2.weight has rows"},
        {io->rank_b, io->rank_b ? tensor_k(io->rank_b) : 0, arch_n_labels(m),
         "as cls.output.weight has rows"},
        {io->mm_in_b, io->mm_in_b ? tensor_k(io->mm_in_b) : 0, io->mm_in ? tensor_m(io->mm_in) : 0,
         "as mm.0.weight has rows"},
        {io->mm_out, io->mm_out ? tensor_k(io->mm_out) : 0, io->mm_in ? tensor_m(io->mm_in) : 0,
         "columns, as mm.0.weight has rows"},
        {io->mm_out_b, io->mm_out_b && !io->mm_out ? tensor_k(io->mm_out_b) : 0, 0,
         "as there is no mm.2.weight"},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].t && part[i].found != part[i].wanted)
            return error_set(err, PITH_SHAPE, "%s: %s has %lld elements a row, wanted %lld: %s",
                             arch_path(m), part[i].t->name, (long long)part[i].found,
                             (long long)part[i].wanted, part[i].what);
    return PITH_OK;
}

pith_status arch_ready(struct arch_model *m, struct pith_error *err)
{
    pith_status st = check_head(m, err);
    if (st == PITH_OK && m->arch->ready)
        st = m->arch->ready(m, err);
    if (st == PITH_OK)
        st = arch_make_views(m, err);
    arch_turn_states(m);
    if (st == PITH_OK && arch_is_part(m))
        st = arch_stage_ready(m, err);
    return st == PITH_OK && !arena_ok(m->arena) ? out_of_memory(m, err) : st;
}

static const char *layers_of(const struct arch_model *m)
{
    return m->arch->layers ? m->arch->layers : "blk";
}

static const struct gguf_tensor *in_file(const struct arch_model *m, int32_t l, const char *name)
{
    char full[160];
    if (l < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "%s.%d.%s", layers_of(m), l, name);
    return m->gguf ? gguf_tensor_find(m->gguf, slice_of(full)) : NULL;
}

int arch_tensor_asked(const struct arch_model *m, const char *name)
{
    const char *const *t = m->asked_tensors;
    while (t && *t && strcmp(*t, name) != 0)
        t++;
    return t && *t;
}

int arch_has(const struct arch_model *m, int32_t l, const char *name, int synth)
{
    return m->gguf ? in_file(m, l, name) != NULL : synth || arch_tensor_asked(m, name);
}

int64_t arch_rows(const struct arch_model *m, int32_t l, const char *name)
{
    const struct gguf_tensor *t = in_file(m, l, name);
    return t && t->n_dims >= 2 ? t->dims[t->n_dims - 2] : 0;
}

const float *arch_floats(const struct arch_model *m, const struct tensor *t)
{
    float *x = arena_array(m->arena, (size_t)t->dims[0], sizeof *x);
    if (x)
        dtypes[t->from->type].dequant(t->from->data, x, t->dims[0]);
    return x;
}

/* ---------------------------------------------------------------- states */

void arch_state(struct arch_model *m, int32_t i, int slot, struct state s)
{
    if (m->n_states == m->cap_states) {
        int32_t cap = m->cap_states ? 2 * m->cap_states : m->n_visits;
        struct state *more = arena_array(m->arena, (size_t)cap, sizeof *more);
        if (!more)
            return;
        if (m->n_states)
            memcpy(more, m->states, (size_t)m->n_states * sizeof *more);
        m->states = more;
        m->cap_states = cap;
    }
    s.layer = s.last = arch_layer_of(m, i);
    s.group = -1;
    m->state_of[i][slot] = m->n_states;
    m->states[m->n_states++] = s;
}

void arch_share(struct arch_model *m, int32_t i, int slot, int32_t of)
{
    int32_t id = m->state_of[i][slot] = m->state_of[of][slot], l = arch_layer_of(m, i);
    if (id >= 0 && m->states[id].last < l)
        m->states[id].last = l;
}

struct state arch_kv(const struct hparams *hp, int32_t l)
{
    int windowed = hp->windowed && hp->windowed[l] && hp->window;
    return (struct state){.rows = STATE_KV,
                          .range = windowed ? RANGE_WINDOW : RANGE_ALL,
                          .span = windowed ? hp->window : 0,
                          .n_head_kv = hp->n_head_kv[l],
                          .d_k = hp->d_k,
                          .d_v = hp->d_v};
}

/* ---------------------------------------------------------------- symbolic shapes */

static int64_t head_dims(const struct hparams *hp, int d, int32_t l)
{
    int64_t q = (int64_t)hp->n_head[l] * hp->d_k, k = (int64_t)hp->n_head_kv[l] * hp->d_k,
            v = (int64_t)hp->n_head_kv[l] * hp->d_v;
    switch (d) {
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
    case DIM_H:
        return hp->n_head[l];
    default: /* DIM_G */
        return hp->n_head_kv[l];
    }
}

static int64_t dim_size(const struct arch_model *m, int d, int32_t l)
{
    const struct hparams *hp = &m->hp;
    if (d >= DIM_FAMILY)
        return m->arch->dim(m, d, l);
    switch (d) {
    case DIM_E:
        return hp->n_embd;
    case DIM_E2:
        return 2 * (int64_t)hp->n_embd;
    case DIM_V:
        return hp->n_vocab;
    case DIM_SAID:
        return hp->n_said ? hp->n_said : hp->n_vocab;
    case DIM_Q:
    case DIM_K:
    case DIM_VV:
    case DIM_O:
    case DIM_QKV:
    case DIM_H:
    case DIM_G:
        return head_dims(hp, d, l);
    case DIM_D:
        return hp->d_k;
    case DIM_F:
        return hp->n_ff[l];
    case DIM_F2:
        return 2 * (int64_t)hp->n_ff[l];
    case DIM_X:
        return hp->n_expert;
    case DIM_FX:
        return hp->n_ff_exp;
    case DIM_FX2:
        return 2 * (int64_t)hp->n_ff_exp;
    case DIM_FS:
        return hp->n_ff_shexp;
    case DIM_FS2:
        return 2 * (int64_t)hp->n_ff_shexp;
    case DIM_ROT2:
        return hp->n_factors ? hp->n_factors : hp->n_rot / 2;
    case DIM_CTX:
        return hp->n_ctx_train;
    case DIM_ONE:
        return 1;
    default:
        return -1; /* DIM_ANY */
    }
}

int arch_tensor_used(const struct arch_model *m, const struct tensor_spec *t, int32_t l)
{
    uint64_t has = m->features | (l >= 0 ? m->layer_features[l] : 0);
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

struct tensor **arch_tensor_slot(struct arch_model *m, const struct tensor_spec *t, int32_t l)
{
    uint8_t *base = t->layer ? (uint8_t *)m->layers + (size_t)l * m->arch->layer_bytes
                    : t->io  ? (uint8_t *)&m->io
                             : m->model;
    return (struct tensor **)(base + t->at);
}

void arch_tensor_name(const struct arch_model *m, const struct tensor_spec *t, int32_t l, char *out,
                      size_t cap)
{
    const char *name = t->name;
    for (const char *const *r = m->arch->renamed; r && r[0]; r += 2)
        if (!strcmp(r[0], name)) {
            name = r[1];
            break;
        }
    if (l < 0)
        snprintf(out, cap, "%s", name);
    else
        snprintf(out, cap, "%s%s.%d.%s", t->stack ? t->stack : "", layers_of(m), l, name);
}
