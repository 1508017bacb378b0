/* ugm.c -- SentencePiece Unigram, the model "t5": of all ways to cut a text into tokens, the one
 * with the highest sum of scores.
 *
 *     normalised text   _ n e w _ y o r k     best[i]: highest sum over text[0..i), the
 *     best[]            0 . . . 4 . . . 9     token that ends there and where it began
 *
 * Normalising replaces the longest match in the file's character map (a double array trie and the
 * replacement strings), merges spaces where the file says so and writes them as U+2581, one in
 * front. A character that is no token itself costs 10 more than the lowest score and counts as
 * unknown; runs of unknown ones are one token. Sums are doubles: rounding decides ties the way the
 * published code does.
 *
 * The double array [Kanda 2018, "Space- and time-efficient string dictionaries", the XOR form]:
 * node i has base(i); its child by byte c is base(i) ^ c if the label there is c; a leaf's value is
 * at its base.
 *
 * References: Kudo 2018, Subword Regularization; SentencePiece. */
#include <float.h>
#include <string.h>

#include "base/cursor.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"

struct ugm {
    struct prefix_set tokens;
    float unknown_score;
    uint32_t *trie; /* [n_trie] */
    uint32_t n_trie;
    char *replaced; /* terminated strings, one after the other */
    size_t n_replaced;
};

static void ugm_deinit(struct vocab *v)
{
    struct ugm *m = v->impl;
    if (!m)
        return;
    prefix_deinit(&m->tokens);
    mem_free(m->trie);
    mem_free(m->replaced);
    mem_free(m);
}

static int wanted(const struct vocab *v, int32_t id)
{
    enum vocab_attr type = vocab_type(v, id);
    return type == VOCAB_NORMAL || type == VOCAB_USER || type == VOCAB_UNUSED;
}

/* Scores beyond this are cut off, so that sums stay finite. */
#define SCORE_LIMIT 1e30f

static float score_of(const struct vocab *v, int32_t id)
{
    float s = vocab_type(v, id) == VOCAB_USER ? 0.0f : v->score[id];
    return s > SCORE_LIMIT ? SCORE_LIMIT : s < -SCORE_LIMIT ? -SCORE_LIMIT : s;
}

/* "u32 size of the trie in bytes, trie, strings", little endian, as an array of 8-bit integers. */
static pith_status load_map(struct ugm *m, const struct gguf *g, struct pith_error *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
    if (!kv || kv->n == 0)
        return PITH_OK;
    if (kv->type != GGUF_ARR || (kv->item != GGUF_I8 && kv->item != GGUF_U8))
        return error_set(err, PITH_FORMAT,
                         "tokenizer.ggml.precompiled_charsmap: found %s, wanted an array of bytes",
                         gguf_type_name(kv->type));
    struct cursor c;
    cursor_init(&c, gguf_part(g, kv->part)->p + kv->at, kv->n);
    uint32_t trie_bytes = cursor_u32(&c, "size of the character map");
    const uint8_t *trie = cursor_bytes(&c, trie_bytes, "character map");
    uint64_t n = c.n - c.at;
    const uint8_t *strings = cursor_bytes(&c, n, "replacements");
    if (c.failed || n == 0 || strings[n - 1] != 0)
        return error_set(err, PITH_FORMAT,
                         "tokenizer.ggml.precompiled_charsmap: %llu bytes, a map of %u bytes and "
                         "terminated strings do not fit",
                         (unsigned long long)kv->n, trie_bytes);
    m->n_trie = trie_bytes / 4;
    m->n_replaced = (size_t)n;
    m->trie = mem_array(m->n_trie, sizeof *m->trie, PITH_MEM_VOCAB);
    m->replaced = mem_alloc(m->n_replaced, PITH_MEM_VOCAB);
    if (!m->trie || !m->replaced)
        return vocab_nomem(err);
    cursor_init(&c, trie, trie_bytes);
    for (uint32_t i = 0; i < m->n_trie; i++)
        m->trie[i] = cursor_u32(&c, "character map");
    memcpy(m->replaced, strings, m->n_replaced);
    m->replaced[n - 1] = 0; /* whoever has changed the file meanwhile */
    return PITH_OK;
}

static pith_status ugm_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct ugm *m = v->impl = mem_zalloc(sizeof *m, PITH_MEM_VOCAB);
    pith_status st;
    if (!m)
        return vocab_nomem(err);
    float lowest = FLT_MAX;
    for (int32_t id = 0; id < v->n; id++) {
        if (vocab_type(v, id) == VOCAB_NORMAL && score_of(v, id) < lowest)
            lowest = score_of(v, id);
    }
    m->unknown_score = (lowest < FLT_MAX ? lowest : 0) - 10.0f;
    TRY(load_map(m, g, err));
    TRY(vocab_prefixes(v, wanted, &m->tokens, err));
    return PITH_OK;
fail:
    return st;
}

/* ---------------------------------------------------------------- normalising */

/* A node of the double array; a node out of range is no node. */
static uint32_t node(const struct ugm *m, uint32_t i)
{
    return i < m->n_trie ? m->trie[i] : 0;
}
static uint32_t node_base(uint32_t u)
{
    return (u >> 10) << ((u & (1u << 9)) >> 6);
}

/* Longest match of the map at p[0..n): its length, 0 for none, and the replacement. */
static size_t map_longest(const struct ugm *m, const char *p, size_t n, const char **replacement)
{
    size_t longest = 0;
    uint32_t at = node_base(node(m, 0));
    for (size_t i = 0; i < n && i < VOCAB_TOKEN_MOST && p[i]; i++) { /* a false map goes round */
        at ^= (uint8_t)p[i];
        uint32_t u = node(m, at);
        if ((u & 0x800000FFu) != (uint8_t)p[i]) /* the label */
            break;
        at ^= node_base(u);
        uint32_t value = node(m, at) & 0x7FFFFFFFu;
        if ((u >> 8 & 1) && value < m->n_replaced) {
            longest = i + 1;
            *replacement = m->replaced + value;
        }
    }
    return longest;
}

struct spaces {
    int prefix; /* one space is still to be put in front of the first word */
    int inside; /* of a word */
};

/* Appends normalised characters, treating spaces. */
static void put_normal(const struct vocab *v, struct spaces *sp, const char *p, size_t n,
                       struct str *out)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == ' ') {
            sp->inside = 0;
            if (!v->merge_spaces)
                str_putz(out, U2581);
            continue;
        }
        if (!sp->inside && (sp->prefix || v->merge_spaces)) {
            str_putz(out, U2581);
            sp->prefix = 0;
        }
        sp->inside = 1;
        str_putc(out, p[i]);
    }
}

/* Normalised text is at most so many times as long as it was, and some bytes: maps of Unicode's
 * forms stay below 14 times. */
enum { GROWTH = 24, GROWTH_SPARE = 1024 };

static pith_status normalise(const struct vocab *v, struct slice text, struct str *out,
                             struct pith_error *err)
{
    const struct ugm *m = v->impl;
    const size_t most = text.n * GROWTH + GROWTH_SPARE;
    struct spaces sp = {v->add_space_prefix, 0};
    for (size_t i = 0; i < text.n && out->n <= most && !out->failed && work_tick(4);) {
        const char *with;
        uint32_t cp;
        size_t n = map_longest(m, text.p + i, text.n - i, &with);
        if (n) {
            size_t n_with = strnlen(with, most + 1);
            put_normal(v, &sp, with, n_with, out);
            work_tick(n_with / 4);
        } else {
            n = (size_t)utf8_decode(text.p + i, text.n - i, &cp);
            if (cp == UINT32_MAX)
                put_normal(v, &sp, "\xEF\xBF\xBD", 3, out);
            else
                put_normal(v, &sp, text.p + i, n, out);
        }
        i += n;
    }
    if (out->n <= most)
        return PITH_OK;
    return error_set(err, PITH_RANGE,
                     "%zu bytes of text become over %zu by "
                     "tokenizer.ggml.precompiled_charsmap; the file is damaged: download it again "
                     "or convert the model anew",
                     text.n, most);
}

/* ---------------------------------------------------------------- the best cut */

struct best {
    double score;
    uint32_t from; /* the last token is text[from .. here) */
    int32_t id;    /* -1: unknown */
};

static void offer(struct best *best, size_t from, size_t to, int32_t id, float score)
{
    double sum = best[from].score + (double)score;
    if (sum > best[to].score)
        best[to] = (struct best){sum, (uint32_t)from, id};
}

/* Fills best[0..n]. */
static void search(const struct vocab *v, struct slice text, int no_markers, struct best *best)
{
    const struct ugm *m = v->impl;
    for (size_t i = 0; i <= text.n; i++)
        best[i] = (struct best){i ? -DBL_MAX : 0, 0, -1};
    for (size_t i = 0; i < text.n && work_tick(16);) {
        uint32_t cp;
        size_t n = (size_t)utf8_decode(text.p + i, text.n - i, &cp);
        const struct prefix_item *item;
        struct prefix_walk w;
        int whole = 0; /* the character itself is a token */
        prefix_begin(&w, &m->tokens, text.p + i, text.n - i);
        while ((item = prefix_next(&w))) {
            if (no_markers && vocab_is_marker(v, (int32_t)item->value))
                continue;
            whole |= item->s.n == n;
            offer(best, i, i + item->s.n, (int32_t)item->value, score_of(v, (int32_t)item->value));
        }
        prefix_tick(&w, text.p + i);
        if (!whole)
            offer(best, i, i + n, -1, m->unknown_score);
        i += n;
    }
}

static pith_status ugm_encode(const struct vocab *v, struct slice raw, int at_start,
                              struct scratch *s, struct ids *out, struct pith_error *err)
{
    (void)at_start;
    struct str *text = &s->text;
    struct best *best = NULL;
    str_clear(text);
    pith_status st = normalise(v, raw, text, err);
    if (st != PITH_OK)
        return st;
    if (text->n >= UINT32_MAX)
        return error_set(err, PITH_RANGE, "text of %zu bytes grows beyond 2^32 when normalised",
                         raw.n);
    if (!text->failed)
        best = mem_alloc((text->n + 1) * sizeof *best, PITH_MEM_SCRATCH);
    if (!best)
        return vocab_nomem(err);
    search(v, (struct slice){text->p, text->n}, s->no_markers, best);
    if (!work_tick(0)) {
        mem_free(best);
        return error_set(err, PITH_CANCELLED, "cancelled");
    }

    /* Backwards over the cuts, turning each link round, then forwards. */
    uint32_t to = (uint32_t)text->n, next = 0;
    while (to > 0) {
        uint32_t from = best[to].from;
        best[to].from = next; /* where the token after this one ends */
        next = to;
        to = from;
    }
    for (int32_t before = 0; next; before = best[next].id, next = best[next].from) {
        if (best[next].id >= 0)
            ids_put(out, best[next].id);
        else if (before >= 0)
            vocab_put_unknown(v, s->no_markers, out);
    }
    mem_free(best);
    return PITH_OK;
}

const struct vocab_model vocab_ugm = {
    .name = "t5",
    .kind = VOCAB_UGM,
    .bos = -1,
    .eos = 1,
    .unk = 2,
    .sep = -1,
    .pad = 0,
    .add_eos = 1,
    .init = ugm_init,
    .deinit = ugm_deinit,
    .encode = ugm_encode,
};
