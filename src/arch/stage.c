/* stage.c -- a part of a model's visits, opened by itself (arch.h, struct arch_stage).
 *
 *     visits    0 1 2 3 | 4 5 6 7        two stages; `|` is a cut
 *     rows      token ..  token, carry   of the same rows in the same order, so caches are alike
 *     results   carry     logits
 *
 * What crosses a cut is asked of the family's own functions, which build the visits before it for
 * nothing else; so no family has to say it twice. Only values of rows cross. States do not: visits
 * that share one have to lie on the same side. An encoder beside the decoder belongs to every
 * stage: each runs it whole, and keeps the memory that its own visits look at. */
#include "arch/arch.h"

#include <string.h>

pith_status arch_stage_take(struct arch_model *m, int32_t first, int32_t n, struct pith_error *err)
{
    if (first < 0 || n < 0 || first >= m->n_visits || n > m->n_visits - first)
        return error_set(err, PITH_RANGE,
                         "first_visit is %d and n_visits %d, %s has visits 0..%d (n_visits 0: to "
                         "the last)",
                         first, n, arch_path(m), m->n_visits - 1);
    m->stage.first = first;
    m->stage.end = n ? first + n : m->n_visits;
    return PITH_OK;
}

void arch_stage_layers(const struct arch_model *m, int32_t *lo, int32_t *hi)
{
    *lo = 0;
    *hi = m->hp.n_layer;
    if (!arch_is_part(m) || m->n_encoder_visits) /* whose layers are all there */
        return;
    *lo = *hi = arch_layer_of(m, m->stage.first);
    for (int32_t i = m->stage.first; i < arch_stage_end(m); i++) {
        int32_t l = arch_layer_of(m, i);
        *lo = l < *lo ? l : *lo;
        *hi = l >= *hi ? l + 1 : *hi;
    }
}

static int is_in(const struct arch_model *m, int32_t visit)
{
    return visit >= m->stage.first && visit < arch_stage_end(m);
}

/* A visit of this side, or the other one, that names state id; -1: there is none. */
static int32_t namer(const struct arch_model *m, int32_t id, int inside)
{
    for (int32_t i = 0; i < m->n_visits; i++)
        for (int slot = 0; slot < STATE_SLOTS; slot++)
            if (m->state_of[i][slot] == id && is_in(m, i) == inside)
                return i;
    return -1;
}

/* Those of the stage's visits move to the front, in order; an encoder's own stay. */
static pith_status keep_states(struct arch_model *m, struct pith_error *err)
{
    int32_t visits = m->n_visits > m->n_encoder_visits ? m->n_visits : m->n_encoder_visits;
    int32_t *to = arena_array(m->arena, (size_t)m->n_states + 1, sizeof *to), n = 0;
    if (!to)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
    for (int32_t id = 0; id < m->n_states; id++) {
        int own = m->n_encoder_visits && m->states[id].range == RANGE_STEP;
        int32_t here = namer(m, id, 1), there = namer(m, id, 0);
        if (!own && here >= 0 && there >= 0)
            return error_set(err, PITH_UNSUPPORTED,
                             "%s: no stage of %s can have visits %d..%d: visit %d and visit %d "
                             "keep their rows together, wanted both of them in it, or none",
                             arch_path(m), m->arch->name, m->stage.first, arch_stage_end(m) - 1,
                             here, there);
        to[id] = own || here >= 0 ? n++ : -1;
        if (to[id] >= 0)
            m->states[to[id]] = m->states[id];
    }
    m->n_states = n;
    for (int32_t i = 0; i < visits; i++)
        for (int slot = 0; slot < STATE_SLOTS; slot++)
            if (m->state_of[i][slot] >= 0)
                m->state_of[i][slot] = to[m->state_of[i][slot]];
    return PITH_OK;
}

pith_status arch_stage_ready(struct arch_model *m, struct pith_error *err)
{
    int32_t visit[2];
    struct arch_cut cut[2];
    int n = 0;
    if (m->stage.first)
        visit[n++] = m->stage.first;
    if (!arch_ends(m))
        visit[n++] = arch_stage_end(m);
    pith_status st = arch_cuts(m, visit, n, cut, err);
    if (st != PITH_OK)
        return st;
    if (m->stage.first)
        m->stage.in = cut[0];
    if (!arch_ends(m))
        m->stage.out = cut[n - 1];
    return keep_states(m, err);
}
