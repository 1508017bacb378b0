/* drawn.c -- rows of a step whose tokens are drawn from outputs of the step before, so that a step
 * can be given before anybody has seen them.
 *
 * The draw is made by the host, from all logits or from the best of them that a device has found
 * (graph/ops/best.c); the row is then a token like any other. If the step before is still under
 * way, the batch is kept as it was given, in a lane that is `held`, and becomes a step when that
 * one has ended (pipeline.c): nothing of a sequence depends on a token that is not known. */
#include "run/session/rows.h"

#include <string.h>

#include "base/mem.h"
#include "run/sample/sample.h"

/* Of a batch that is kept, a row. */
enum { HELD_ROW = sizeof(void *) + (6 + STEP_AXES) * sizeof(int32_t) + 1 };

pith_status drawn_init(struct pith_session *s, struct pith_error *err)
{
    s->drawn = mem_array((size_t)s->cap_outputs, sizeof *s->drawn, PITH_MEM_SCRATCH);
    if (s->n_lanes > 1)
        s->held_rows = mem_array((size_t)s->n_batch, HELD_ROW, PITH_MEM_SCRATCH);
    if (!s->drawn || (s->n_lanes > 1 && !s->held_rows))
        return error_set(err, PITH_NOMEM, "out of memory for a session of %d rows a step",
                         s->n_batch);
    return PITH_OK;
}

void drawn_deinit(struct pith_session *s)
{
    mem_free(s->drawn);
    mem_free(s->held_rows);
    sampler_free(s->greedy);
}

static struct pith_sampler *sampler_of(const struct pith_batch *b, int32_t i)
{
    return b->sampler ? b->sampler[i] : NULL;
}

int drawn_waits(const struct pith_batch *b)
{
    for (int32_t i = 0; b->drawn && i < b->n; i++)
        if (is_drawn(b, i))
            return 1;
    return 0;
}

/* s->drawn tells the first row of each output meanwhile. */
static pith_status check_row(struct pith_session *s, const struct pith_batch *b, int32_t i,
                             int32_t n_outputs, struct pith_error *err)
{
    int32_t o = b->drawn[i];
    const struct pith_sampler *sampler = sampler_of(b, i);
    if (o < -1 || (o >= 0 && n_outputs > 0 && o >= n_outputs))
        return error_set(err, PITH_RANGE,
                         "row %d is drawn from output %d, the step before has 0..%d; -1 is none", i,
                         o, n_outputs - 1);
    if (o < 0)
        return PITH_OK;
    if (!s->role[ROLE_DECODER].plan.has_logits || s->pooled)
        return error_set(err, PITH_STATE,
                         "row %d is to be drawn from output %d: outputs of this session are no "
                         "logits",
                         i, o);
    if (!n_outputs)
        return error_set(err, PITH_STATE,
                         "row %d is to be drawn from output %d of the step before: there is none, "
                         "or it has failed, or had no outputs",
                         i, o);
    if (sampler && sampler->n_vocab != s->n_cols)
        return error_set(err, PITH_SHAPE,
                         "row %d: the sampler is of %d tokens, the output has %lld", i,
                         sampler->n_vocab, (long long)s->n_cols);
    if (s->drawn[o] < 0)
        s->drawn[o] = i;
    if (sampler_of(b, s->drawn[o]) != sampler)
        return error_set(err, PITH_RANGE,
                         "rows %d and %d are drawn from output %d, by unlike samplers",
                         s->drawn[o], i, o);
    return PITH_OK;
}

static void forget(struct pith_session *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        s->drawn[i] = -1;
}

pith_status drawn_check(struct pith_session *s, const struct pith_batch *b, int32_t n_outputs,
                        struct pith_error *err)
{
    pith_status st = PITH_OK;
    s->n_drawn = 0;
    if (!b->drawn)
        return st;
    forget(s, n_outputs);
    for (int32_t i = 0; i < b->n && st == PITH_OK; i++)
        st = check_row(s, b, i, n_outputs, err);
    return st;
}

static pith_status draw(struct pith_session *s, int32_t o, struct pith_sampler *sampler,
                        struct pith_error *err)
{
    static const struct pith_sampler_params best = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error why = {0};
    if (!sampler && !s->greedy)
        s->greedy = sampler_open((int32_t)s->n_cols, &best, err);
    struct pith_sampler *by = sampler ? sampler : s->greedy;
    if (!by || (!session_has_best(s, o, by) && !session_output(s, o, err)))
        return err->code;
    int32_t id = session_draw(s, o, by);
    if (id == PITH_TOKEN_LATER)
        return error_set(err, PITH_STATE,
                         "output %d: the mask of the sampler's grammar takes more than "
                         "pith_sampler_mask_steps",
                         o);
    if (id < 0)
        return error_set(err, sampler_error(by, &why), "output %d: %s", o, why.msg);
    s->drawn[o] = id;
    if (sampler)
        sampler_accept(sampler, id);
    return PITH_OK;
}

pith_status drawn_take(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (!b->drawn)
        return st;
    s->n_drawn = s->n_outputs;
    forget(s, s->n_drawn);
    for (int32_t i = 0; i < b->n && st == PITH_OK; i++)
        if (is_drawn(b, i) && s->drawn[b->drawn[i]] < 0)
            st = draw(s, b->drawn[i], sampler_of(b, i), err);
    return st;
}

static void *put(uint8_t **at, const void *from, size_t bytes)
{
    void *to = from ? *at : NULL;
    if (from)
        memcpy(to, from, bytes);
    *at += from ? bytes : 0;
    return to;
}

pith_status drawn_hold(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    size_t n = (size_t)b->n;
    uint8_t *at = s->held_rows;
    if (b->embd)
        return error_set(err, PITH_UNSUPPORTED,
                         "pith_submit: embedding rows beside tokens that are drawn from a step "
                         "under way; end it first (pith_wait)");
    s->held = (struct pith_batch){.size = sizeof *b, .n = b->n};
    s->held.sampler = put(&at, (const void *)b->sampler, n * sizeof *b->sampler);
    s->held.token = put(&at, b->token, n * sizeof *b->token);
    s->held.seq = put(&at, b->seq, n * sizeof *b->seq);
    s->held.drawn = put(&at, b->drawn, n * sizeof *b->drawn);
    s->held.adapter = put(&at, b->adapter, n * sizeof *b->adapter);
    s->held.span = put(&at, b->span, n * sizeof *b->span);
    s->held.pos = put(&at, b->pos, n * (1 + STEP_AXES) * sizeof *b->pos);
    s->held.want = put(&at, b->want, n);
    return PITH_OK;
}
