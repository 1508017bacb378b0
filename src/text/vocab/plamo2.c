/* plamo2.c -- PLaMo 2's tokenizer, the model "plamo2": of all ways to cut a text into tokens the
 * one with the highest sum of scores, where a character may also be its UTF-8 bytes.
 *
 *     text      n e w y o r k      best[i]: the lowest cost of text[i..n), the token that
 *     best[]    9 . . 5 . . . 0    begins there and where it ends
 *
 * The costs are whole numbers, -score times 10^4, so that sums have no rounding; a character as
 * bytes costs 10^7. Text is looked at from its end, and of cuts of equal cost the one counts whose
 * first token is longer. Text is not normalised. Reference: PLaMo 2, arXiv:2509.04897, and the
 * tokenizer published with the model. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"

enum { UNKNOWN_COST = 10000000, NO_COST = 20000000 }; /* a token that costs this much is none */

struct plamo2 {
    struct prefix_set tokens;
};

static void plamo2_deinit(struct vocab *v)
{
    struct plamo2 *m = v->impl;
    if (m)
        prefix_deinit(&m->tokens);
    mem_free(m);
}

/* -score times 10^4, to the nearest; halves to even. */
static int64_t cost_of(const struct vocab *v, int32_t id)
{
    double cost = -(double)v->score[id] * 1e4;
    return !(cost < NO_COST) ? NO_COST : cost < -NO_COST * 1e2 ? -NO_COST * 100LL : llrint(cost);
}

static int wanted(const struct vocab *v, int32_t id)
{
    return vocab_type(v, id) != VOCAB_BYTE && !vocab_is_hidden(v, id) && cost_of(v, id) < NO_COST;
}

static pith_status plamo2_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct plamo2 *m = v->impl = mem_zalloc(sizeof *m, PITH_MEM_VOCAB);
    pith_status st;
    (void)g;
    if (!m)
        return vocab_nomem(err);
    v->escaped = 0;
    TRY(vocab_index(v, err));
    for (int b = 0; b < 256; b++)
        if (v->byte_id[b] < 0 || vocab_type(v, v->byte_id[b]) != VOCAB_BYTE)
            return error_set(err, PITH_MISSING,
                             "tokenizer.ggml.tokens: <0x%02X> is no byte token; plamo2 has all 256",
                             (unsigned)b);
    TRY(vocab_prefixes(v, wanted, &m->tokens, err));
    return PITH_OK;
fail:
    return st;
}

struct best {
    int64_t cost;
    uint32_t to; /* the first token is text[here .. to) */
    int32_t id;  /* -1: its bytes */
};

/* Starts of characters, from the end of the text. 0: it may not go on. */
static int search(const struct vocab *v, struct slice text, int no_markers, struct best *best)
{
    const struct plamo2 *m = v->impl;
    for (size_t i = 0; i < text.n; i++) /* no token ends inside of a character */
        best[i].cost = INT64_MAX / 4;
    best[text.n] = (struct best){0, 0, -1};
    for (size_t i = text.n; i > 0;) {
        uint32_t cp;
        size_t end = i, from = end > 4 ? end - 4 : 0;
        for (i = end - 1; from < end; from++) /* the character that ends at `end` */
            if (from + (size_t)utf8_decode(text.p + from, end - from, &cp) == end &&
                cp != UINT32_MAX) {
                i = from;
                break;
            }
        const struct prefix_item *item;
        struct prefix_walk w;
        struct best b = {INT64_MAX, 0, -1};
        if (!work_tick(16))
            return 0;
        prefix_begin(&w, &m->tokens, text.p + i, text.n - i);
        while ((item = prefix_next(&w))) {
            int32_t id = (int32_t)item->value;
            if (no_markers && vocab_is_marker(v, id))
                continue;
            int64_t cost = best[i + item->s.n].cost + cost_of(v, id);
            if (cost <= b.cost) /* the longest comes last */
                b = (struct best){cost, (uint32_t)(i + item->s.n), id};
        }
        prefix_tick(&w, text.p + i);
        if (best[end].cost + UNKNOWN_COST < b.cost)
            b = (struct best){best[end].cost + UNKNOWN_COST, (uint32_t)end, -1};
        best[i] = b;
    }
    return 1;
}

static pith_status plamo2_encode(const struct vocab *v, struct slice text, int at_start,
                                 struct scratch *s, struct ids *out, struct pith_error *err)
{
    (void)at_start;
    struct best *best = mem_array(text.n + 1, sizeof *best, PITH_MEM_SCRATCH);
    if (!best)
        return vocab_nomem(err);
    if (!search(v, text, s->no_markers, best)) {
        mem_free(best);
        return error_set(err, PITH_CANCELLED, "cancelled");
    }
    for (size_t i = 0; i < text.n; i = best[i].to) {
        if (best[i].id >= 0)
            ids_put(out, best[i].id);
        else if (vocab_put_bytes(v, (struct slice){text.p + i, best[i].to - i}, s->no_markers, out))
            vocab_put_unknown(v, s->no_markers, out);
    }
    mem_free(best);
    return PITH_OK;
}

const struct vocab_model vocab_plamo2 = {
    .name = "plamo2",
    .kind = VOCAB_PLAMO2,
    .bos = 1,
    .eos = 2,
    .unk = 0,
    .sep = -1,
    .pad = 3,
    .init = plamo2_init,
    .deinit = plamo2_deinit,
    .encode = plamo2_encode,
};
