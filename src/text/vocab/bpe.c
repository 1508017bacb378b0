/* bpe.c -- byte-pair encoding with a list of merges, the models "gpt2", "gemma4", "whitespace".
 *
 * Text is cut into words (pretok.c); in each word neighbours join in the order of the merges.
 *
 *     merges  0 "h e"  1 "l l"  2 "he ll"         "hello" -> h e l l o -> he ll o -> hell o
 *
 * Byte vocabularies (GPT-2) write each byte as one printable character: 'A' for 'A', U+0120 for a
 * space. The texts of the tokens and merges are turned back into bytes when a file is opened, so a
 * text needs no encoding at all. Character vocabularies (Gemma 4) write spaces as U+2581 and have
 * byte tokens for characters they lack. Plain ones (whitespace) have no spaces at all, and the
 * unknown token for characters they lack; text becomes lower case where the file says so.
 *
 * A symbol is a token's id, or a number from n on for a text that only merges name. Pairs are found
 * in one hash table (left, right) -> (rank, joined). */
#include "text/vocab/pretok.h"

#include <string.h>
#include <utf8proc.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"
#include "text/vocab/vocab_impl.h"

struct pair {
    uint32_t a, b; /* a = MERGE_NONE: free */
    uint32_t rank, joined;
};

struct bpe {
    struct pretok *pretok;
    int flags;                /* of the pre-tokenizer */
    int chars, lowercase;     /* symbols are characters; of small letters */
    struct pair *pairs;       /* open addressing, at most half full */
    uint32_t mask;            /* number of entries - 1 */
    int shift;                /* leaves as many bits as the mask has */
    struct hash_key key;      /* a file cannot choose merges that collide */
    uint32_t n_symbols;       /* tokens and texts that only merges name */
    struct arena texts;       /* of the latter */
    uint32_t byte_sym[256];   /* symbol of each byte, MERGE_NONE: none */
    struct merge_seams seams; /* character vocabularies: pairs of characters inside symbols */
};

/* ---------------------------------------------------------------- bytes as printable characters */

/* GPT-2's alphabet: the printable bytes of Latin-1 stand for themselves, the others are numbered
 * from U+0100 on. -1: not in the alphabet. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD))
        return (int)cp;
    if (cp >= 0x100 && cp <= 0x120)
        return (int)(cp - 0x100); /* 00..20 */
    if (cp >= 0x121 && cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F); /* 7F..A0 */
    return cp == 0x143 ? 0xAD : -1;
}

/* Bytes that s stands for, to out (NULL: only counted), which may begin at or before s. -1: a
 * character is not of the alphabet. */
static int64_t decode(struct slice s, char *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.n; n++) {
        uint32_t cp;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        int byte = byte_of(cp);
        if (byte < 0)
            return -1;
        if (out)
            out[n] = (char)byte;
    }
    return n;
}

/* ---------------------------------------------------------------- merges */

static struct pair *find_pair(const struct bpe *m, uint32_t a, uint32_t b)
{
    uint32_t i = (uint32_t)(hash_number(m->key, ((uint64_t)a << 32) | b) >> m->shift);
    while (m->pairs[i].a != MERGE_NONE && !(m->pairs[i].a == a && m->pairs[i].b == b))
        i = (i + 1) & m->mask;
    return &m->pairs[i];
}

static uint32_t rank_pair(const void *ctx, const char *text, const struct merge_sym *a,
                          const struct merge_sym *b, uint32_t *joined)
{
    (void)text;
    const struct pair *p = find_pair(ctx, a->id, b->id);
    *joined = p->joined;
    return p->rank; /* MERGE_NONE where free */
}

/* The symbol of a text, a new one if there is none. 0 on failed allocation. */
static int symbol(struct vocab *v, struct slice s, uint32_t *id)
{
    struct bpe *m = v->impl;
    if (map_get(&v->ids, s, id))
        return 1;
    char *text = arena_strndup(&m->texts, s.p, s.n);
    *id = m->n_symbols++;
    return text && map_put(&v->ids, (struct slice){text, s.n}, *id) == 1;
}

/* The symbol of a joined text. Most files list merges in the order of the tokens they make: the
 * token of the merge before, or the next one, spares the search. */
static int joined_symbol(struct vocab *v, struct slice s, uint32_t *id)
{
    for (uint32_t guess = *id; guess < *id + 2 && guess < (uint32_t)v->n; guess++) {
        if (!(v->mark[guess] & TOKEN_APART) && slice_eq(vocab_text(v, (int32_t)guess), s)) {
            *id = guess;
            return 1;
        }
    }
    return symbol(v, s, id);
}

/* "left right" with rank i. *joined: the last merge's symbol, becomes this one's. text: scratch for
 * the two halves side by side. 0 on failed allocation. */
static int add_merge(struct vocab *v, struct slice merge, uint32_t i, uint32_t *joined,
                     struct str *text)
{
    struct bpe *m = v->impl;
    const char *gap = merge.n > 1 ? memchr(merge.p + 1, ' ', merge.n - 1) : NULL;
    if (!gap) /* malformed: it joins nothing */
        return 1;
    struct slice a = {merge.p, (size_t)(gap - merge.p)};
    struct slice b = {gap + 1, merge.n - a.n - 1};
    str_clear(text);
    if (!str_reserve(text, merge.n))
        return 0;
    int64_t na = (int64_t)a.n, nb = (int64_t)b.n;
    if (m->chars) {
        memcpy(text->p, a.p, a.n);
        memcpy(text->p + a.n, b.p, b.n);
    } else {
        na = decode(a, text->p);
        nb = na < 0 ? -1 : decode(b, text->p + na);
    }
    if (na <= 0 || nb <= 0)
        return 1;
    uint32_t ia, ib;
    struct slice both = {text->p, (size_t)(na + nb)};
    if (!symbol(v, (struct slice){text->p, (size_t)na}, &ia) ||
        !symbol(v, (struct slice){text->p + na, (size_t)nb}, &ib) ||
        !joined_symbol(v, both, joined))
        return 0;
    struct pair *p = find_pair(m, ia, ib);
    if (p->a == MERGE_NONE) /* else an earlier one names the same pair */
        *p = (struct pair){ia, ib, i, *joined};
    if (m->chars)
        merge_seams_add(&m->seams, both);
    return 1;
}

static pith_status load_merges(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct bpe *m = v->impl;
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.merges");
    if (!kv || kv->type != GGUF_ARR || kv->item != GGUF_STR)
        return error_set(err, kv ? PITH_FORMAT : PITH_MISSING,
                         "tokenizer.ggml.merges: found %s, wanted an array of strings",
                         kv ? gguf_type_name(kv->type) : "nothing");
    if (kv->n >= UINT32_MAX / 4)
        return error_set(err, PITH_RANGE, "tokenizer.ggml.merges: %llu merges, at most 2^30",
                         (unsigned long long)kv->n);
    m->mask = 15;
    m->shift = 60;
    for (; m->mask < kv->n * 2; m->shift--)
        m->mask = m->mask * 2 + 1;
    m->key = hash_key();
    m->pairs = mem_alloc((m->mask + (size_t)1) * sizeof *m->pairs, PITH_MEM_VOCAB);
    if (!m->pairs)
        return vocab_nomem(err);
    memset(m->pairs, 0xFF, (m->mask + (size_t)1) * sizeof *m->pairs);

    struct gguf_strs it;
    struct slice merge;
    struct str text;
    uint32_t joined = 0;
    int ok = 1;
    str_init(&text, PITH_MEM_SCRATCH);
    gguf_strs_begin(&it, g, kv);
    for (uint32_t i = 0; ok && gguf_strs_next(&it, &merge); i++)
        ok = add_merge(v, merge, i, &joined, &text);
    str_deinit(&text);
    return ok ? PITH_OK : vocab_nomem(err);
}

uint64_t bpe_steps(const struct vocab *v, uint64_t *n)
{
    const struct bpe *m = v->impl;
    uint64_t steps = *n = 0;
    for (uint32_t i = 0; i <= m->mask; i++) {
        const struct pair *p = &m->pairs[i];
        if (p->a == MERGE_NONE)
            continue;
        uint64_t at = hash_number(m->key, ((uint64_t)p->a << 32) | p->b) >> m->shift;
        steps += ((i - at) & m->mask) + 1;
        ++*n;
    }
    return steps;
}

/* ---------------------------------------------------------------- opening */

static void bpe_deinit(struct vocab *v)
{
    struct bpe *m = v->impl;
    if (!m)
        return;
    pretok_free(m->pretok);
    mem_free(m->pairs);
    arena_deinit(&m->texts);
    merge_seams_deinit(&m->seams);
    mem_free(m);
}

static pith_status init_with(struct vocab *v, struct slice pre, const struct gguf *g,
                             struct pith_error *err)
{
    struct bpe *m = v->impl = mem_zalloc(sizeof *m, PITH_MEM_VOCAB);
    pith_status st;
    if (!m)
        return vocab_nomem(err);
    arena_init(&m->texts, PITH_MEM_VOCAB);
    m->n_symbols = (uint32_t)v->n;
    m->pretok = pretok_new(pre, err);
    if (!m->pretok)
        return err ? err->code : PITH_UNSUPPORTED;
    m->flags = pretok_flags(m->pretok);
    v->add_bos = (m->flags & PRETOK_ADD_BOS) != 0;
    v->clean_spaces = !(m->flags & PRETOK_KEEP_SPACES);
    v->escaped = (m->flags & PRETOK_CHARS) != 0;
    v->unknown_bytes = (m->flags & PRETOK_PLAIN) != 0;
    m->chars = (m->flags & (PRETOK_CHARS | PRETOK_PLAIN)) != 0;
    if (m->chars && !merge_seams_init(&m->seams, PITH_MEM_VOCAB))
        return vocab_nomem(err);
    if (!m->chars)
        vocab_rewrite(v, decode);
    TRY(vocab_index(v, err));
    TRY(load_merges(v, g, err));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        if (!map_get(&v->ids, (struct slice){&byte, 1}, &m->byte_sym[b]))
            m->byte_sym[b] = MERGE_NONE;
        if (!m->chars)
            v->byte_id[b] = vocab_find(v, (struct slice){&byte, 1});
    }
    return PITH_OK;
fail:
    return st;
}

static pith_status bpe_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.pre");
    struct slice pre = SLICE("default");
    if (kv && !gguf_str(g, kv, &pre))
        return error_set(err, PITH_FORMAT, "tokenizer.ggml.pre: found type %s, wanted a string",
                         gguf_type_name(kv->type));
    return init_with(v, pre, g, err);
}

static pith_status gemma4_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    return init_with(v, SLICE("gemma4"), g, err);
}

static pith_status whitespace_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    pith_status st = bpe_init(v, g, err);
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.normalizer.lowercase");
    struct bpe *m = v->impl;
    if (st == PITH_OK && kv)
        (void)gguf_bool(g, kv, 0, &m->lowercase);
    return st;
}

/* ---------------------------------------------------------------- text to ids */

struct encoding {
    const struct vocab *v;
    const struct bpe *m;
    struct scratch *s;
    struct ids *out;
    struct pith_error *err;
};

static int finish(const struct encoding *e, const char *text)
{
    return piece_finish(e->v, e->s, text, rank_pair, e->m, e->out);
}

static int merge_chars(const struct encoding *e, struct slice word)
{
    struct merge *m = &e->s->merge;
    uint32_t before = 0, cp, id;
    for (size_t i = 0; i < word.n; before = cp) {
        size_t n = (size_t)utf8_decode(word.p + i, word.n - i, &cp);
        if (m->n && !merge_seams_joins(&e->m->seams, before, cp) && !finish(e, word.p))
            return 0;
        if (!map_get(&e->v->ids, (struct slice){word.p + i, n}, &id))
            id = MERGE_NONE;
        if (!merge_put(m, (uint32_t)i, (uint32_t)n, id))
            return 0;
        i += n;
    }
    return finish(e, word.p);
}

static int merge_bytes(const struct encoding *e, struct slice word)
{
    struct merge *m = &e->s->merge;
    for (size_t i = 0; i < word.n; i++) {
        if (!merge_put(m, (uint32_t)i, 1, e->m->byte_sym[(uint8_t)word.p[i]]))
            return 0;
    }
    return finish(e, word.p);
}

static int only_newlines(struct slice s)
{
    while (s.n && s.p[s.n - 1] == '\n')
        s.n--;
    return s.n == 0;
}

/* White space, or nothing: words of a plain vocabulary's rule have none of it inside. */
static int only_space(struct slice s)
{
    uint32_t cp = 0;
    if (s.n)
        (void)utf8_decode(s.p, s.n, &cp);
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return !s.n || (cp >= 9 && cp <= 13) || cp == 0x85 || p->category == UTF8PROC_CATEGORY_ZS ||
           p->category == UTF8PROC_CATEGORY_ZL || p->category == UTF8PROC_CATEGORY_ZP;
}

static pith_status on_word(void *ctx, struct slice word)
{
    const struct encoding *e = ctx;
    int flags = e->m->flags;
    if ((flags & PRETOK_PLAIN) && only_space(word))
        return PITH_OK;
    if (piece_known(e->s, word, e->out))
        return PITH_OK;
    if ((flags & PRETOK_WHOLE_WORDS) || ((flags & PRETOK_NEWLINES) && only_newlines(word))) {
        int32_t id = vocab_find(e->v, word);
        if (id >= 0 && !(e->s->no_markers && vocab_is_marker(e->v, id))) {
            ids_put(e->out, id);
            return PITH_OK;
        }
    }
    int ok = e->m->chars ? merge_chars(e, word) : merge_bytes(e, word);
    return ok ? PITH_OK : vocab_nomem(e->err);
}

/* Appends text with every byte that is not UTF-8 as U+FFFD. */
static void repair(struct slice text, struct str *out)
{
    for (size_t i = 0, from = 0; i <= text.n; i++) {
        uint32_t cp = 0;
        size_t n = i < text.n ? (size_t)utf8_decode(text.p + i, text.n - i, &cp) : 1;
        if (i < text.n && cp != UINT32_MAX) {
            i += n - 1;
            continue;
        }
        str_put(out, text.p + from, i - from);
        if (i < text.n)
            str_putz(out, "\xEF\xBF\xBD");
        from = i + 1;
    }
}

/* Appends valid text in small letters; that of U+0130 is two characters. */
static void lower(struct slice text, struct str *out)
{
    for (size_t i = 0; i < text.n && !out->failed && work_tick(4);) {
        char utf8[4];
        uint32_t cp;
        i += (size_t)utf8_decode(text.p + i, text.n - i, &cp);
        uint32_t small = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        str_put(out, utf8, (size_t)utf8_encode(small, utf8));
        if (cp == 0x130)
            str_putz(out, "\xCC\x87");
    }
}

static pith_status bpe_encode(const struct vocab *v, struct slice text, int at_start,
                              struct scratch *s, struct ids *out, struct pith_error *err)
{
    (void)at_start;
    struct encoding e = {v, v->impl, s, out, err};
    if (!utf8_valid(text.p, text.n)) {
        str_clear(&s->text);
        repair(text, &s->text);
        text = (struct slice){s->text.p, s->text.n};
    }
    if (v->escaped) {
        str_clear(&s->escaped);
        vocab_escape(text, &s->escaped);
        text = (struct slice){s->escaped.p, s->escaped.n};
    }
    if (e.m->lowercase) {
        str_clear(&s->escaped);
        lower(text, &s->escaped);
        text = (struct slice){s->escaped.p, s->escaped.n};
    }
    if (s->text.failed || s->escaped.failed)
        return vocab_nomem(err);
    return pretok_split(e.m->pretok, text, on_word, &e, err);
}

const struct vocab_model vocab_bpe = {
    .name = "gpt2",
    .kind = VOCAB_BPE,
    .bos = 11,
    .eos = 11,
    .unk = -1,
    .sep = -1,
    .pad = -1,
    .init = bpe_init,
    .deinit = bpe_deinit,
    .encode = bpe_encode,
};

const struct vocab_model vocab_gemma4 = {
    .name = "gemma4",
    .kind = VOCAB_BPE,
    .bos = -1,
    .eos = -1,
    .unk = -1,
    .sep = -1,
    .pad = -1,
    .init = gemma4_init,
    .deinit = bpe_deinit,
    .encode = bpe_encode,
};

const struct vocab_model vocab_whitespace = {
    .name = "whitespace",
    .kind = VOCAB_BPE,
    .bos = -1,
    .eos = -1,
    .unk = -1,
    .sep = -1,
    .pad = -1,
    .init = whitespace_init,
    .deinit = bpe_deinit,
    .encode = bpe_encode,
};
