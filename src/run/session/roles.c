/* roles.c -- batches with rows of more than one role: what the encoder is to read for a sequence
 * goes before the decoder's rows of the same batch, each text whole (encode.c), and then these run
 * as a batch of their own. If that fails the sequences have read nothing. */
#include "run/session/rows.h"

#include <string.h>

#include "base/mem.h"

/* Of the decoder's batch, a row beside its embedding row. */
enum { KEPT_ROW = sizeof(void *) + (6 + STEP_AXES) * sizeof(int32_t) + 2 };

static int is_read(const struct pith_batch *b, int32_t i)
{
    return b->role && b->role[i] == PITH_ROLE_ENCODER;
}

/* What row i, which the encoder is to read, has beside its token; NULL: nothing. */
static const char *too_much(const struct pith_batch *b, int32_t i)
{
    return is_drawn(b, i)                              ? "is drawn"
           : is_embd(b, i) || is_both(b, i)            ? "is an embedding row"
           : b->want && b->want[i]                     ? "wants output"
           : given(b, i)                               ? "is given a position"
           : tree_has(b, i)                            ? "is of a tree"
           : span_of(b, i)                             ? "is of a span"
           : adapter_of(b, i) != PITH_ADAPTER_SEQUENCE ? "has adapters of its own"
                                                       : NULL;
}

static pith_status check_row(const struct pith_session *s, const struct pith_batch *b, int32_t i,
                             struct pith_error *err)
{
    int32_t q = seq_of(s, b, i);
    if (b->role[i] > PITH_ROLE_ENCODER)
        return error_set(err, PITH_RANGE,
                         "row %d is of role %d, wanted %d (decoder) or %d (encoder)", i, b->role[i],
                         PITH_ROLE_DECODER, PITH_ROLE_ENCODER);
    if (!is_read(b, i))
        return PITH_OK;
    if (!b->token)
        return error_set(err, PITH_RANGE, "row %d is the encoder's, and there are no tokens", i);
    if (too_much(b, i))
        return error_set(err, PITH_RANGE,
                         "row %d is the encoder's and %s; wanted a token and nothing else", i,
                         too_much(b, i));
    if (q < 0 || q >= s->n_seq)
        return error_set(err, PITH_RANGE, "row %d is of sequence %d, the session has 0..%d", i, q,
                         s->n_seq - 1);
    if (s->cache.seq[q].n_memory)
        return error_set(err, PITH_STATE,
                         "row %d is to be read for sequence %d, which has read a text already; "
                         "take it away first (pith_encode of no tokens)",
                         i, q);
    return PITH_OK;
}

/* Each text, whole. Those that are read have a memory then. */
static pith_status read_all(struct pith_session *s, const struct pith_batch *b, int32_t *text,
                            struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < b->n && st == PITH_OK; i++) {
        int32_t q = seq_of(s, b, i);
        size_t n = 0;
        if (!is_read(b, i) || s->cache.seq[q].n_memory)
            continue;
        for (int32_t k = i; k < b->n; k++)
            if (is_read(b, k) && seq_of(s, b, k) == q)
                text[n++] = b->token[k];
        st = session_encode(s, q, text, n, err);
    }
    return st;
}

static void forget_all(struct pith_session *s, const struct pith_batch *b)
{
    for (int32_t i = 0; i < b->n; i++)
        if (is_read(b, i))
            cache_memory_drop(&s->cache, seq_of(s, b, i));
    s->n_tap_read = 0;
}

/* The decoder's rows of one array, one after the other. */
static void *kept(const struct pith_batch *b, const void *from, size_t bytes, uint8_t **at)
{
    void *to = from ? *at : NULL;
    for (int32_t i = 0; from && i < b->n; i++)
        if (!is_read(b, i)) {
            memcpy(*at, (const uint8_t *)from + (size_t)i * bytes, bytes);
            *at += bytes;
        }
    return to;
}

static struct pith_batch decoder_rows(const struct pith_session *s, const struct pith_batch *b,
                                      uint8_t *at)
{
    struct pith_batch d = {.size = sizeof d};
    size_t row = (size_t)arch_row_cols(s->arch) * sizeof(float);
    for (int32_t i = 0; i < b->n; i++)
        d.n += !is_read(b, i);
    d.sampler = kept(b, (const void *)b->sampler, sizeof *b->sampler, &at);
    d.token = kept(b, b->token, sizeof *b->token, &at);
    d.seq = kept(b, b->seq, sizeof *b->seq, &at);
    d.pos = kept(b, b->pos, (1 + STEP_AXES) * sizeof *b->pos, &at);
    d.drawn = kept(b, b->drawn, sizeof *b->drawn, &at);
    d.adapter = kept(b, b->adapter, sizeof *b->adapter, &at);
    d.span = kept(b, b->span, sizeof *b->span, &at);
    d.embd = kept(b, b->embd, row, &at);
    d.want = kept(b, b->want, sizeof *b->want, &at);
    d.both = kept(b, b->both, sizeof *b->both, &at);
    return d;
}

/* The step just submitted goes with what was read. */
static void note_read(struct pith_session *s, const struct pith_batch *b)
{
    for (int32_t i = 0; i < b->n; i++)
        if (is_read(b, i))
            s->seq_read[seq_of(s, b, i)] = 1;
    s->lane[s->flying[s->n_flying - 1]].read = 1;
}

static pith_status run_roles(struct pith_session *s, const struct pith_batch *b, run_batch run,
                             struct pith_error *err)
{
    size_t n = (size_t)b->n, row = b->embd ? (size_t)arch_row_cols(s->arch) * sizeof(float) : 0;
    int32_t *text = mem_array(n, sizeof *text, PITH_MEM_SCRATCH);
    uint8_t *rows = mem_array(n, KEPT_ROW + row, PITH_MEM_SCRATCH);
    pith_status st = PITH_OK;
    if (!text || !rows)
        st = error_set(err, PITH_NOMEM, "out of memory for a batch of %d rows", b->n);
    if (st == PITH_OK) {
        struct pith_batch d = decoder_rows(s, b, rows);
        st = read_all(s, b, text, err);
        if (st == PITH_OK && d.n)
            st = run(s, &d, err);
        if (st != PITH_OK)
            forget_all(s, b);
        else if (s->n_flying)
            note_read(s, b);
    }
    mem_free(text);
    mem_free(rows);
    return st;
}

pith_status roles_run(struct pith_session *s, const struct pith_batch *b, run_batch run,
                      struct pith_error *err)
{
    int some = 0, others = 0;
    for (int32_t i = 0; b->role && i < b->n; i++) {
        pith_status st = check_row(s, b, i, err);
        if (st != PITH_OK)
            return st;
        some |= is_read(b, i);
        others |= !is_read(b, i);
    }
    if (!some)
        return run(s, b, err);
    if (b->parent)
        return error_set(err, PITH_UNSUPPORTED,
                         "a tree of rows in one batch with rows of the encoder; encode first "
                         "(pith_encode)");
    if (s->n_flying)
        return error_set(err, PITH_STATE,
                         "rows of the encoder while a step is under way; end that first "
                         "(pith_wait)");
    if (run == session_submit && (!others || s->n_lanes < 2))
        return error_set(err, others ? PITH_STATE : PITH_RANGE,
                         others ? "pith_submit: the session has one lane; open it with n_lanes 2"
                                : "pith_submit: all rows are the encoder's; use pith_encode");
    return run_roles(s, b, run, err);
}
