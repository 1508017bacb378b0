/* taps.c -- values that steps give out on their way. A tap is a result of its role's graph, so the
 * plan keeps it until the step has ended; it stays on its device until a row of it is asked for. */
#include "run/session/session.h"

#include "base/mem.h"

pith_status taps_take_params(struct pith_session *s, const struct pith_session_params *p,
                             struct pith_error *err)
{
    pith_status st = PITH_OK;
    int32_t n = 0;
    while (p->taps && p->taps[n] && n <= GRAPH_TAPS)
        n++;
    if (n > GRAPH_TAPS)
        return error_set(err, PITH_RANGE, "more than %d taps; wanted fewer", GRAPH_TAPS);
    if (!n)
        return st;
    s->tap = mem_array((size_t)n, sizeof *s->tap, PITH_MEM_META);
    if (!s->tap)
        return error_set(err, PITH_NOMEM, "out of memory for %d taps", n);
    for (int32_t i = 0; i < n && st == PITH_OK; i++)
        st = arch_tap_find(s->arch, p->taps[i], &s->tap[i], err);
    s->n_taps = n;
    return st;
}

/* Tap i is of the encoder. */
static int is_read(const struct pith_session *s, int32_t i)
{
    return s->tap[i].role == ROLE_ENCODER;
}

static const struct plan *plan_of(const struct pith_session *s, int32_t i)
{
    return &s->role[is_read(s, i) ? ROLE_ENCODER : ROLE_DECODER].plan;
}

/* Elements of all its rows; 0: the host can see them where they are. */
static size_t to_read(const struct pith_session *s, int32_t i)
{
    const struct plan *p = plan_of(s, i);
    const struct value *v = &p->tap[i];
    return p->devices[v->device]->backend->map ? 0 : (size_t)(p->params.cap_T * v->cols);
}

uint64_t taps_bytes(const struct pith_session *s)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < s->n_taps; i++)
        n += to_read(s, i) * sizeof(float);
    return n;
}

pith_status taps_init(struct pith_session *s, struct pith_error *err)
{
    if (!s->n_taps)
        return PITH_OK;
    s->tap_read = mem_array((size_t)s->n_taps, sizeof *s->tap_read, PITH_MEM_SCRATCH);
    int ok = s->tap_read != NULL;
    for (int32_t i = 0; ok && i < s->n_taps; i++) {
        size_t n = to_read(s, i);
        s->tap_read[i] = n ? mem_array(n, sizeof(float), PITH_MEM_SCRATCH) : NULL;
        ok = s->tap_read[i] || !n;
    }
    return ok ? PITH_OK
              : error_set(err, PITH_NOMEM, "out of memory for %d taps of %d rows", s->n_taps,
                          s->n_batch);
}

void taps_deinit(struct pith_session *s)
{
    for (int32_t i = 0; s->tap_read && i < s->n_taps; i++)
        mem_free(s->tap_read[i]);
    mem_free((void *)s->tap_read);
    mem_free(s->tap);
}

void taps_mark(struct pith_session *s, int32_t first, int32_t n)
{
    struct lane *l = &s->lane[s->lane_at];
    l->first = first;
    l->n = n;
}

void taps_show(struct pith_session *s)
{
    s->tap_first = s->lane[s->lane_at].first;
    s->n_tapped = s->lane[s->lane_at].n;
}

const float *session_tap(struct pith_session *s, int32_t tap, int32_t row, struct pith_error *err)
{
    if (tap < 0 || tap >= s->n_taps) {
        error_set(err, PITH_RANGE, "tap %d, the session was opened with %d", tap, s->n_taps);
        return NULL;
    }
    const struct arch_tap *t = &s->tap[tap];
    int reads = is_read(s, tap);
    int32_t first = reads ? 0 : s->tap_first, n = reads ? s->n_tap_read : s->n_tapped;
    if (!n) {
        error_set(err, PITH_STATE, "tap %s: %s", t->name,
                  reads ? "the encoder has read nothing" : "there was no step, or it has failed");
        return NULL;
    }
    if (row < first || row >= first + n) {
        error_set(err, PITH_RANGE, "tap %s: row %d, it is there of rows %d..%d", t->name, row,
                  first, first + n - 1);
        return NULL;
    }
    struct plan_run *run = reads ? &s->role[ROLE_ENCODER].run : session_lane(s, s->outputs_of);
    const struct value *v = &plan_of(s, tap)->tap[tap];
    int32_t at = reads ? row : session_order(s, s->outputs_of)[row - first];
    const float *there = plan_map(run, v, at);
    if (there)
        return there;
    float *to = s->tap_read[tap] + (int64_t)at * v->cols;
    return plan_read(run, v, at, 1, to, err) == PITH_OK ? to : NULL;
}
