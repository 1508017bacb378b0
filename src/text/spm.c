/* spm.c -- SentencePiece BPE, the model "llama": neighbours whose text together is a token join, the
 * pair with the highest score first.
 *
 *     "a cat"  ->  U+2581 'a' U+2581 'c' 'a' 't'  ->  "_a" "_cat"
 *
 * Spaces are written U+2581, one is put before the text where the vocabulary asks for it, and what is
 * no token in the end is given byte by byte ("<0xE2>"). */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/merge.h"
#include "text/vocab_impl.h"

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

static int finish(const struct vocab *v, struct merge *m, const char *text, struct ids *out)
{
    if (m->n == 0)
        return 1;
    if (!merge_run(m, text, rank_pair, v))
        return 0;
    for (uint32_t i = 0; i != MERGE_NONE; i = m->sym[i].next) {
        const struct merge_sym *s = &m->sym[i];
        struct slice bytes = {text + s->at, s->n};
        int32_t id = (int32_t)s->id;
        if (id < 0) /* a character that never joined */
            id = vocab_find(v, bytes);
        if (id >= 0)
            ids_put(out, id);
        else if (vocab_put_bytes(v, bytes, out) && v->unk >= 0)
            ids_put(out, v->unk);
    }
    m->n = 0;
    return 1;
}

static pith_status spm_encode(const struct vocab *v, struct slice text, int at_start,
                              struct ids *out, struct pith_error *err)
{
    const struct spm *spm = v->impl;
    struct merge m = {0};
    struct str s;
    int ok = 1;
    uint32_t before = 0, cp;
    str_init(&s, PITH_MEM_SCRATCH);
    if (at_start && v->add_space_prefix)
        str_putz(&s, U2581);
    vocab_escape(text, &s);
    for (size_t i = 0; ok && i < s.n && !s.failed; before = cp) {
        size_t n = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        if (m.n && !merge_seams_joins(&spm->seams, before, cp))
            ok = finish(v, &m, s.p, out);
        ok = ok && merge_reserve(&m, m.n + 1);
        if (ok)
            merge_put(&m, (uint32_t)i, (uint32_t)n, MERGE_NONE);
        i += n;
    }
    ok = ok && !s.failed && finish(v, &m, s.p, out);
    merge_deinit(&m);
    str_deinit(&s);
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
