/* spm.c -- SentencePiece BPE, the model "llama": neighbours whose text together is a token join,
 * the pair with the highest score first.
 *
 *     "a cat"  ->  U+2581 'a' U+2581 'c' 'a' 't'  ->  "_a" "_cat"
 *
 * Spaces are written U+2581, one is put before the text where the vocabulary asks for it, and what
 * is no token in the end is given byte by byte ("<0xE2>"). */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"
#include "text/vocab/vocab_impl.h"

struct spm {
    struct merge_seams seams; /* pairs of characters inside tokens */
    uint32_t *rank;           /* [n] scores as integers that rise as the score falls */
};

/* Float bits in an order that integers have, turned round: the highest score is the lowest rank. */
static uint32_t rank_of(float score)
{
    uint32_t u;
    score += 0.0f; /* -0 is 0 */
    memcpy(&u, &score, sizeof u);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    u = ~u;
    return u == MERGE_NONE ? u - 1 : u;
}

static void spm_deinit(struct vocab *v)
{
    struct spm *m = v->impl;
    if (!m)
        return;
    merge_seams_deinit(&m->seams);
    mem_free(m->rank);
    mem_free(m);
}

static pith_status spm_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    (void)g;
    v->unknown_bytes = 1;
    struct spm *m = v->impl = mem_zalloc(sizeof *m, PITH_MEM_VOCAB);
    if (!m || !merge_seams_init(&m->seams, PITH_MEM_VOCAB))
        return vocab_nomem(err);
    m->rank = mem_array((size_t)v->n, sizeof *m->rank, PITH_MEM_VOCAB);
    if (!m->rank)
        return vocab_nomem(err);
    for (int32_t id = 0; id < v->n; id++) {
        m->rank[id] = rank_of(v->score[id]);
        merge_seams_add(&m->seams, vocab_text(v, id));
    }
    return vocab_index(v, err);
}

static uint32_t rank_pair(const void *ctx, const char *text, const struct merge_sym *a,
                          const struct merge_sym *b, uint32_t *joined)
{
    const struct vocab *v = ctx;
    const struct spm *m = v->impl;
    int32_t id = vocab_find(v, (struct slice){text + a->at, a->n + b->n});
    *joined = (uint32_t)id;
    return id < 0 ? MERGE_NONE : m->rank[id];
}

static pith_status spm_encode(const struct vocab *v, struct slice raw, int at_start,
                              struct scratch *s, struct ids *out, struct pith_error *err)
{
    const struct spm *spm = v->impl;
    struct str *text = &s->escaped;
    int ok = 1;
    uint32_t before = 0, cp;
    str_clear(text);
    if (at_start && v->add_space_prefix)
        str_putz(text, U2581);
    vocab_escape(raw, text);
    for (size_t i = 0; ok && i < text->n; before = cp) {
        ok = work_tick(2);
        size_t n = (size_t)utf8_decode(text->p + i, text->n - i, &cp);
        if (s->merge.n && !merge_seams_joins(&spm->seams, before, cp))
            ok = ok && piece_finish(v, s, text->p, rank_pair, v, out);
        ok = ok && merge_put(&s->merge, (uint32_t)i, (uint32_t)n, MERGE_NONE);
        i += n;
    }
    ok = ok && !text->failed && piece_finish(v, s, text->p, rank_pair, v, out);
    return ok ? PITH_OK : vocab_nomem(err);
}

const struct vocab_model vocab_spm = {
    .name = "llama",
    .kind = VOCAB_SPM,
    .bos = 1,
    .eos = 2,
    .unk = 0,
    .sep = -1,
    .pad = -1,
    .add_bos = 1,
    .add_space_prefix = 1,
    .init = spm_init,
    .deinit = spm_deinit,
    .encode = spm_encode,
};
