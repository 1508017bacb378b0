/* vocab.c -- a vocabulary: loading, dispatch to its model, and the way back from ids to text.
 *
 *     tokenizer.ggml.tokens        text[]  "<s>" "</s>" "_the" ...     at[]  0 3 7 11 ...
 *     tokenizer.ggml.scores        score[]
 *     tokenizer.ggml.token_type    mark[]  type and what special.c found out
 *
 * Text goes in through special_split, which takes out the special tokens, and the model's encode
 * for what lies between. Ids go out token by token: hidden ones (control, unknown) only on request,
 * U+2581 as a space where the model writes spaces so, byte tokens as their byte.
 *
 * The file is not trusted: ids in it are checked, scores that are not numbers sort last, empty and
 * repeated tokens exist but are never produced. What this file does not do: chat templates. */
#include "text/vocab/vocab.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"
#include "text/vocab/vocab_impl.h"

#define VOCAB_MODEL(name) &vocab_##name,
static const struct vocab_model *const models[] = {
#include "text/vocab/models.def"
};
#undef VOCAB_MODEL
#define N_MODELS (sizeof models / sizeof *models)

/* ---------------------------------------------------------------- loading */

static pith_status find_model(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.model");
    struct slice name;
    if (!kv)
        return PITH_OK;
    if (!gguf_str(g, kv, &name))
        return error_set(err, PITH_FORMAT, "tokenizer.ggml.model: found type %s, wanted a string",
                         gguf_type_name(kv->type));
    if (slice_eq_z(name, "none") || slice_eq_z(name, "no_vocab"))
        return PITH_OK;
    for (size_t i = 0; i < N_MODELS; i++) {
        if (slice_eq_z(name, models[i]->name)) {
            v->model = models[i];
            return PITH_OK;
        }
    }
    struct str known;
    str_init(&known, PITH_MEM_SCRATCH);
    for (size_t i = 0; i < N_MODELS; i++)
        str_printf(&known, "%s%s", i ? " " : "", models[i]->name);
    error_set(err, PITH_UNSUPPORTED, "tokenizer.ggml.model: unknown model '%.*s'; known: %s none",
              (int)(name.n < 64 ? name.n : 64), name.p, known.failed ? "" : known.p);
    str_deinit(&known);
    return PITH_UNSUPPORTED;
}

static pith_status load_tokens(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.tokens");
    struct gguf_strs it;
    struct slice s;
    uint64_t bytes = 0, n = 0;
    if (!kv || kv->type != GGUF_ARR || kv->item != GGUF_STR)
        return error_set(err, kv ? PITH_FORMAT : PITH_MISSING,
                         "tokenizer.ggml.tokens: found %s, wanted an array of strings",
                         kv ? gguf_type_name(kv->type) : "nothing");
    gguf_strs_begin(&it, g, kv);
    while (gguf_strs_next(&it, &s)) {
        bytes += s.n;
        n++;
    }
    if (n >= INT32_MAX || bytes >= UINT32_MAX)
        return error_set(err, PITH_RANGE,
                         "tokenizer.ggml.tokens: %llu tokens of %llu bytes, at most 2^31 and 2^32",
                         (unsigned long long)n, (unsigned long long)bytes);
    v->n = (int32_t)n;
    v->text = mem_alloc(bytes, PITH_MEM_VOCAB);
    v->at = mem_array(n + 1, sizeof *v->at, PITH_MEM_VOCAB);
    v->score = mem_array(n, sizeof *v->score, PITH_MEM_VOCAB);
    v->mark = mem_array(n, sizeof *v->mark, PITH_MEM_VOCAB);
    if (!v->text || !v->at || !v->score || !v->mark)
        return vocab_nomem(err);
    gguf_strs_begin(&it, g, kv);
    for (uint64_t i = 0; i < n; i++) {
        if (!gguf_strs_next(&it, &s) || s.n > bytes - v->at[i]) /* who counts twice may differ */
            return error_set(err, PITH_FORMAT,
                             "tokenizer.ggml.tokens: the file was changed while it was read");
        if (s.n)
            memcpy(v->text + v->at[i], s.p, s.n);
        v->at[i + 1] = v->at[i] + (uint32_t)s.n;
    }
    return PITH_OK;
}

/* An array with a number for each token, NULL when the file has none. */
static pith_status find_numbers(const struct vocab *v, const struct gguf *g, const char *key,
                                const struct gguf_kv **kv, struct pith_error *err)
{
    double x;
    *kv = gguf_find(g, key);
    if (!*kv || v->n == 0)
        return PITH_OK;
    if ((*kv)->type != GGUF_ARR || (*kv)->n < (uint64_t)v->n || !gguf_f64(g, *kv, 0, &x))
        return error_set(err, PITH_FORMAT, "%s: found %s of %llu, wanted an array of %d numbers",
                         key, gguf_type_name((*kv)->type), (unsigned long long)(*kv)->n, v->n);
    return PITH_OK;
}

static pith_status load_numbers(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    const struct gguf_kv *scores, *types;
    pith_status st;
    TRY(find_numbers(v, g, "tokenizer.ggml.scores", &scores, err));
    TRY(find_numbers(v, g, "tokenizer.ggml.token_type", &types, err));
    for (int32_t id = 0; id < v->n; id++) {
        double score = 0;
        int64_t type = VOCAB_NORMAL;
        if (scores && (!gguf_f64(g, scores, (uint64_t)id, &score) || isnan(score)))
            score = -INFINITY;
        if (types && !gguf_i64(g, types, (uint64_t)id, &type))
            type = 0;
        v->score[id] = (float)score;
        v->mark[id] = type >= VOCAB_NORMAL && type <= VOCAB_BYTE ? (uint8_t)type : 0;
    }
    return PITH_OK;
fail:
    return st;
}

static void load_id(const struct vocab *v, const struct gguf *g, const char *key, int32_t *id)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    uint64_t found;
    if (kv && gguf_u64(g, kv, 0, &found) && found < (uint64_t)v->n)
        *id = (int32_t)found;
    if (*id >= v->n)
        *id = -1;
}

static void load_flag(const struct gguf *g, const char *key, int *flag)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (kv)
        (void)gguf_bool(g, kv, 0, flag);
}

static void load_ids(struct vocab *v, const struct gguf *g)
{
    load_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos);
    load_id(v, g, "tokenizer.ggml.eos_token_id", &v->eos);
    load_id(v, g, "tokenizer.ggml.unknown_token_id", &v->unk);
    load_id(v, g, "tokenizer.ggml.seperator_token_id", &v->sep); /* spelled so in every file */
    load_id(v, g, "tokenizer.ggml.padding_token_id", &v->pad);
    load_id(v, g, "tokenizer.ggml.mask_token_id", &v->mask);
}

static void load_flags(struct vocab *v, const struct gguf *g)
{
    load_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos);
    load_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos);
    load_flag(g, "tokenizer.ggml.add_sep_token", &v->add_sep);
    load_flag(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix);
    load_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &v->merge_spaces);
    if (v->model == &vocab_gemma4) /* files were published that say no, and mean yes */
        v->add_bos = 1;
    v->add_bos = v->add_bos && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    v->add_sep = v->add_sep && v->sep >= 0;
}

struct vocab *vocab_new(const struct gguf *g, struct pith_error *err)
{
    struct vocab *v = mem_zalloc(sizeof *v, PITH_MEM_VOCAB);
    pith_status st;
    error_clear(err);
    if (!v) {
        vocab_nomem(err);
        return NULL;
    }
    map_init(&v->ids, PITH_MEM_VOCAB);
    v->bos = v->eos = v->unk = v->sep = v->pad = v->mask = -1;
    memset(v->fim, 0xFF, sizeof v->fim); /* -1 */
    TRY(find_model(v, g, err));
    if (!v->model)
        return v;
    v->bos = v->model->bos;
    v->eos = v->model->eos;
    v->unk = v->model->unk;
    v->sep = v->model->sep;
    v->pad = v->model->pad;
    v->add_bos = v->model->add_bos;
    v->add_eos = v->model->add_eos;
    v->add_sep = v->model->add_sep;
    v->add_space_prefix = v->model->add_space_prefix;
    v->clean_spaces = v->model->clean_spaces;
    v->escaped = 1;
    TRY(load_tokens(v, g, err));
    TRY(load_numbers(v, g, err));
    load_ids(v, g);
    TRY(special_roles(v, g, err));
    TRY(v->model->init(v, g, err));
    TRY(special_index(v, err));
    load_flags(v, g);
    for (int32_t id = 0; id < v->n; id++)
        v->longest = vocab_text(v, id).n > v->longest ? vocab_text(v, id).n : v->longest;
    return v;

fail:
    vocab_free(v);
    return NULL;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    if (v->model && v->model->deinit)
        v->model->deinit(v);
    special_deinit(v);
    map_deinit(&v->ids);
    mem_free(v->text);
    mem_free(v->at);
    mem_free(v->score);
    mem_free(v->mark);
    mem_free(v);
}

/* ---------------------------------------------------------------- small questions */

int32_t vocab_n(const struct vocab *v)
{
    return v->n;
}

int vocab_is_eog(const struct vocab *v, int32_t id)
{
    return id >= 0 && id < v->n && (v->mark[id] & TOKEN_EOG);
}

int vocab_is_control(const struct vocab *v, int32_t id)
{
    return id >= 0 && id < v->n && vocab_type(v, id) == VOCAB_CONTROL;
}

int32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

int32_t vocab_eos(const struct vocab *v)
{
    return v->eos;
}

int32_t vocab_role(const struct vocab *v, pith_token_role role)
{
    const int32_t ids[] = {v->bos,    v->eos,    v->unk,    v->sep,    v->pad,   v->fim[0],
                           v->fim[1], v->fim[2], v->fim[3], v->fim[4], v->fim[5], v->mask};
    return (unsigned)role < sizeof ids / sizeof *ids ? ids[role] : -1;
}

/* ---------------------------------------------------------------- text to ids */

/* Three times as many bytes (spaces as U+2581) are still counted in 32 bits. */
#define MAX_TEXT ((size_t)1 << 30)

struct tokenizing {
    const struct vocab *v;
    struct ids out;
    int at_start;
    struct scratch scratch;
    struct pith_error *err;
};

static pith_status on_text(void *ctx, struct slice s)
{
    struct tokenizing *t = ctx;
    pith_status st = t->v->model->encode(t->v, s, t->at_start, &t->scratch, &t->out, t->err);
    t->at_start = 0;
    t->scratch.after = -1;
    return st;
}

static void on_token(void *ctx, int32_t id)
{
    struct tokenizing *t = ctx;
    ids_put(&t->out, id);
    t->at_start = 1;
    t->scratch.after = id;
}

int64_t vocab_tokenize(const struct vocab *v, const char *text, size_t n, int flags, int32_t *ids,
                       size_t cap, struct pith_error *err)
{
    return vocab_tokenize_marked(v, text, n, flags, NULL, ids, cap, err);
}

int64_t vocab_tokenize_marked(const struct vocab *v, const char *text, size_t n, int flags,
                              const struct spans *values, int32_t *ids, size_t cap,
                              struct pith_error *err)
{
    error_clear(err);
    if (!v->model) {
        error_set(err, PITH_UNSUPPORTED, "this file has no vocabulary: it takes token ids only");
        return -1;
    }
    if (n > MAX_TEXT) {
        error_set(err, PITH_RANGE, "text of %zu bytes, at most 2^30 at once", n);
        return -1;
    }
    struct tokenizing t = {.v = v, .out = {ids, cap, 0}, .at_start = 1, .err = err};
    struct special_sink sink = {on_text, on_token, &t};
    int add = flags & PITH_ADD_SPECIAL;
    if (add && v->add_bos)
        ids_put(&t.out, v->bos);
    scratch_init(&t.scratch, n);
    t.scratch.no_markers = values != NULL;
    pith_status st =
        special_split(v, (struct slice){text, n}, flags & PITH_PARSE_SPECIAL, values, &sink, err);
    scratch_deinit(&t.scratch);
    if (st != PITH_OK)
        return -1;
    if (add && v->add_eos)
        ids_put(&t.out, v->eos);
    if (add && v->add_sep)
        ids_put(&t.out, v->sep);
    return t.out.n;
}

/* ---------------------------------------------------------------- ids to text */

/* The caller's bytes: written while there is room, counted to the end. */
struct bytes {
    char *p;
    size_t cap, n;
    int drop_space; /* of the next bytes that come, one leading space is left out */
};

static void bytes_put(struct bytes *o, const char *p, size_t n)
{
    if (n && o->drop_space) {
        int space = *p == ' ';
        p += space;
        n -= (size_t)space;
        o->drop_space = 0;
    }
    if (n && o->n < o->cap)
        memcpy(o->p + o->n, p, n < o->cap - o->n ? n : o->cap - o->n);
    o->n += n;
}

static void put_unescaped(struct bytes *o, struct slice s)
{
    size_t from = 0;
    for (size_t i = 0; i + 3 <= s.n;) {
        if (memcmp(s.p + i, U2581, 3) != 0) {
            i++;
            continue;
        }
        bytes_put(o, s.p + from, i - from);
        bytes_put(o, " ", 1);
        from = i += 3;
    }
    bytes_put(o, s.p + from, s.n - from);
}

static void put_token(const struct vocab *v, int32_t id, int render, struct bytes *o)
{
    struct slice s = vocab_text(v, id);
    switch (vocab_type(v, id)) {
    case VOCAB_CONTROL:
    case VOCAB_UNKNOWN:
        if (render)
            bytes_put(o, s.p, s.n);
        break;
    case VOCAB_USER:
        bytes_put(o, s.p, s.n);
        break;
    case VOCAB_NORMAL:
        if (v->escaped)
            put_unescaped(o, s);
        else
            bytes_put(o, s.p, s.n);
        break;
    case VOCAB_BYTE: /* "<0x0A>" */
        if (s.n == 6 && vocab_hex(s.p[3]) >= 0 && vocab_hex(s.p[4]) >= 0) {
            char byte = (char)(vocab_hex(s.p[3]) << 4 | vocab_hex(s.p[4]));
            bytes_put(o, &byte, 1);
        }
        break;
    case VOCAB_UNUSED:
    default:
        break;
    }
}

size_t vocab_piece(const struct vocab *v, int32_t id, int render, char *buf, size_t cap)
{
    struct bytes o = {buf, cap, 0, 0};
    if (id >= 0 && id < v->n)
        put_token(v, id, render, &o);
    return o.n;
}

/* 0: it may not go on. */
static int put_tokens(const struct vocab *v, const int32_t *ids, size_t n, int flags,
                      struct bytes *o)
{
    o->drop_space = v->add_space_prefix;
    if ((flags & PITH_STRIP_SPECIAL) && v->add_bos && n && ids[0] == v->bos) {
        o->drop_space = 0; /* the field's rule: after a removed BOS the space stays */
        ids++;
        n--;
    }
    if ((flags & PITH_STRIP_SPECIAL) && v->add_eos && n && ids[n - 1] == v->eos)
        n--;
    for (size_t i = 0; i < n; i++) {
        put_token(v, ids[i], flags & PITH_RENDER_SPECIAL, o);
        o->drop_space = 0;
        if (!work_tick(2))
            return 0;
    }
    return 1;
}

/* How many bytes the English tidying takes away around s[i], the apostrophe or mark: pass 0 the
 * space before ? ! . , -- pass 1 both spaces around a lone apostrophe -- pass 2 the space before 's
 * 'm 're 've. before: the space in front of i is still there. Sets *skip when the byte after i goes
 * too. */
static int tidies(int pass, const char *s, size_t n, size_t i, int *skip)
{
    char c = s[i], c1 = i + 1 < n ? s[i + 1] : 0, c2 = i + 2 < n ? s[i + 2] : 0;
    switch (pass) {
    case 0:
        return c == '?' || c == '!' || c == '.' || c == ',';
    case 1:
        *skip = c == '\'' && c1 == ' ';
        return *skip;
    default:
        return c == '\'' && (c1 == 's' || c1 == 'm' || ((c1 == 'r' || c1 == 'v') && c2 == 'e'));
    }
}

/* What the published tokenizers call clean_up_tokenization_spaces. In place; returns the length. */
static size_t clean_spaces(char *s, size_t n)
{
    for (int pass = 0; pass < 3; pass++) {
        size_t to = 0;
        char before = 0;
        for (size_t i = 0; i < n; i++) {
            int skip = 0;
            if (before == ' ' && tidies(pass, s, n, i, &skip))
                to--;
            before = skip ? 0 : s[i];
            s[to++] = s[i];
            i += (size_t)skip;
        }
        n = to;
    }
    return n;
}

int64_t vocab_detokenize(const struct vocab *v, const int32_t *ids, size_t n, int flags, char *buf,
                         size_t cap, struct pith_error *err)
{
    error_clear(err);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= v->n) {
            error_set(err, PITH_RANGE, "token %zu of %zu: id %d, wanted 0..%d", i, n, ids[i],
                      v->n - 1);
            return -1;
        }
    }
    struct bytes o = {buf, cap, 0, 0};
    if (!put_tokens(v, ids, n, flags, &o)) {
        vocab_nomem(err);
        return -1;
    }
    if (!v->clean_spaces || o.n == 0)
        return (int64_t)o.n;
    struct bytes all = {mem_alloc(o.n, PITH_MEM_SCRATCH), o.n, 0, 0};
    if (!all.p || !put_tokens(v, ids, n, flags, &all)) {
        mem_free(all.p);
        vocab_nomem(err);
        return -1;
    }
    size_t total = clean_spaces(all.p, all.n);
    if (cap)
        memcpy(buf, all.p, total < cap ? total : cap);
    mem_free(all.p);
    return (int64_t)total;
}

/* ---------------------------------------------------------------- streaming */

int vocab_stream_init(struct vocab_stream *s, const struct vocab *v)
{
    memset(s, 0, sizeof *s);
    s->v = v;
    str_init(&s->text, PITH_MEM_SCRATCH);
    /* A piece is no longer than its token but for a space in front of it. */
    return str_reserve(&s->text, sizeof s->pending + v->longest + 1);
}

void vocab_stream_deinit(struct vocab_stream *s)
{
    str_deinit(&s->text);
}

struct slice vocab_stream_put(struct vocab_stream *s, int32_t id)
{
    str_clear(&s->text);
    str_put(&s->text, s->pending, s->n_pending);
    s->n_pending = 0;
    if (id >= 0 && id < s->v->n) {
        struct bytes o = {NULL, 0, 0, s->v->add_space_prefix && !s->started};
        put_token(s->v, id, s->shows, &o);
        if (str_reserve(&s->text, o.n)) {
            o = (struct bytes){s->text.p + s->text.n, o.n, 0,
                               s->v->add_space_prefix && !s->started};
            put_token(s->v, id, s->shows, &o);
            s->text.n += o.n;
        }
        s->started = 1;
    }
    size_t whole = id < 0 ? s->text.n : utf8_complete(s->text.p, s->text.n);
    s->n_pending = s->text.n - whole; /* an unfinished character: at most 3 bytes */
    if (s->n_pending)
        memcpy(s->pending, s->text.p + whole, s->n_pending);
    s->text.n = whole;
    if (s->text.p)
        s->text.p[whole] = 0;
    return (struct slice){s->text.p ? s->text.p : "", whole};
}
