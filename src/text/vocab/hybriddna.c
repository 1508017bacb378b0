/* hybriddna.c -- text by pairs of bytes, DNA by sixes, the model "hybriddna" [Carbon, model card].
 *
 *     "see <dna>acgtacGN</dna>"   ->   see _ <dna> ACGTAC <oov> </dna>
 *
 * Between "<dna>" and "</dna>", or the end of the text, every six characters are one token, in
 * capital letters; what is left over is filled up with A. Six of which one is not A, C, G or T are
 * "<oov>". A file writes such a token with U+E000 behind it, because text may have one of the same
 * letters ("CCCCCC") that is another; it is no part of what the token says. All else is as in
 * bpe.c. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"

enum { SIX = 6, N_SIXES = 4096 };
static const char bases[] = "ACGT";
static const struct slice mark = {"\xEE\x80\x80", 3}; /* U+E000 */
static const struct slice opens = {"<dna>", 5}, closes = {"</dna>", 6};

struct dna {
    int32_t open, close, oov;
    int32_t six[N_SIXES]; /* ids, the first letter being the highest digit */
};

/* 0..3; -1: no base. */
static int base_of(uint32_t c)
{
    const char *at = c && c < 128 ? memchr(bases, (int)(c & ~0x20u), 4) : NULL;
    return at ? (int)(at - bases) : -1;
}

/* The number of a token that is six bases in capital letters and the mark; -1: it is none. */
static int six_of(struct slice s)
{
    int n = 0;
    if (s.n != SIX + mark.n || memcmp(s.p + SIX, mark.p, mark.n) != 0)
        return -1;
    for (int i = 0; i < SIX; i++) {
        int base = s.p[i] < 'a' ? base_of((uint8_t)s.p[i]) : -1;
        if (base < 0)
            return -1;
        n = n * 4 + base;
    }
    return n;
}

/* A token without its mark. */
static int64_t unmarked(struct slice s, char *out)
{
    size_t n = six_of(s) >= 0 ? SIX : s.n;
    if (out)
        memmove(out, s.p, n);
    return (int64_t)n;
}

static void dna_deinit(struct vocab *v)
{
    mem_free(v->over);
    vocab_bpe.deinit(v);
}

static pith_status dna_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct dna *d = v->over = mem_alloc(sizeof *d, PITH_MEM_VOCAB);
    if (!d)
        return vocab_nomem(err);
    memset(d, 0xFF, sizeof *d);
    for (int32_t id = v->n; id-- > 0;) {
        int six = six_of(vocab_text(v, id));
        if (six < 0 || vocab_type(v, id) != VOCAB_NORMAL)
            continue;
        d->six[six] = id;
        v->mark[id] |= TOKEN_APART;
    }
    vocab_rewrite(v, unmarked);
    pith_status st = vocab_bpe.init(v, g, err);
    d->open = vocab_find(v, opens);
    d->close = vocab_find(v, closes);
    d->oov = vocab_find(v, SLICE("<oov>"));
    if (st == PITH_OK && (d->open < 0 || d->close < 0 || d->oov < 0))
        return error_set(err, PITH_MISSING,
                         "tokenizer.ggml.tokens: found %s<dna>, %s</dna>, %s<oov>; hybriddna has "
                         "all three",
                         d->open < 0 ? "no " : "", d->close < 0 ? "no " : "",
                         d->oov < 0 ? "no " : "");
    return st;
}

/* 0: it may not go on. */
static int put_sixes(const struct dna *d, struct slice s, struct ids *out)
{
    int n = 0, at = 0, odd = 0;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        int base = base_of(cp);
        odd |= base < 0;
        n = n * 4 + (base < 0 ? 0 : base);
        if (++at < SIX && i < s.n)
            continue;
        for (; at < SIX; at++)
            n *= 4;
        ids_put(out, odd || d->six[n] < 0 ? d->oov : d->six[n]);
        n = at = odd = 0;
        if (!work_tick(1))
            return 0;
    }
    return 1;
}

/* Where it begins in s; s.n: nowhere. */
static size_t find(struct slice s, struct slice what)
{
    for (size_t i = 0; i + what.n <= s.n; i++) {
        const char *p = memchr(s.p + i, what.p[0], s.n - i);
        i = p ? (size_t)(p - s.p) : s.n;
        if (i + what.n <= s.n && !memcmp(s.p + i, what.p, what.n))
            return i;
    }
    return s.n;
}

static pith_status dna_encode(const struct vocab *v, struct slice text, int at_start,
                              struct scratch *s, struct ids *out, struct pith_error *err)
{
    const struct dna *d = v->over;
    int inside = s->after == d->open;
    while (text.n) {
        struct slice end = inside ? closes : opens;
        /* A mark that is a marker stands where special_split found it: not here, if not in values.
         */
        int plain = s->no_markers && vocab_is_marker(v, inside ? d->close : d->open);
        struct slice part = {text.p, plain ? text.n : find(text, end)};
        pith_status st = PITH_OK;
        if (part.n && !inside)
            st = vocab_bpe.encode(v, part, at_start, s, out, err);
        else if (part.n && !put_sixes(d, part, out))
            st = error_set(err, PITH_CANCELLED, "cancelled");
        if (st != PITH_OK || part.n == text.n)
            return st;
        ids_put(out, inside ? d->close : d->open);
        text = (struct slice){text.p + part.n + end.n, text.n - part.n - end.n};
        inside = !inside;
        at_start = 0;
    }
    return PITH_OK;
}

const struct vocab_model vocab_hybriddna = {
    .name = "hybriddna",
    .kind = VOCAB_BPE,
    .bos = 11,
    .eos = 11,
    .unk = -1,
    .sep = -1,
    .pad = -1,
    .init = dna_init,
    .deinit = dna_deinit,
    .encode = dna_encode,
};
