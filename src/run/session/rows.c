/* rows.c -- the parts of a step that are not its running: rows of a batch become a struct step,
 * with pages and states taken for them; sequences hold them; outputs are collected, and kept where
 * another step follows. */
#include "run/session/rows.h"

#include <string.h>

#include "base/mem.h"

/* The set of adapters that row i has, -1: none. */
static int32_t set_of(const struct pith_session *s, const struct pith_batch *b, int32_t i)
{
    int32_t slot = adapter_of(b, i);
    return slot >= 0                      ? s->slot_set[slot]
           : slot == PITH_ADAPTER_NONE    ? -1
                                          : session_set(s, seq_of(s, b, i));
}

/* Fills the step with rows [from, from + n) of the batch, grouped by sequence. */
static void fill_rows(struct pith_session *s, const struct pith_batch *b, int32_t from, int32_t n)
{
    struct step *t = s->step;
    int32_t *order = session_order(s, s->lane_at), N = 0, at = 0;
    memset(s->seq_rows, 0, (size_t)s->n_seq * sizeof *s->seq_rows);
    for (int32_t i = from; i < from + n; i++)
        s->seq_rows[seq_of(s, b, i)]++;
    for (int32_t q = 0; q < s->n_seq; q++) { /* counts become first rows */
        int32_t rows = s->seq_rows[q];
        if (!rows)
            continue;
        step_put_seq(t)[N] = q;
        step_put_first(t)[N++] = at;
        s->seq_rows[q] = at;
        at += rows;
    }
    step_put_first(t)[N] = at;
    for (int32_t k = 0; k < N; k++) /* those without branches are as other rows */
        step_put_tree(t)[k] = 0;
    t->T = n;
    t->N = N;
    t->embd = 0;
    for (int32_t i = from; i < from + n; i++) {
        int32_t r = s->seq_rows[seq_of(s, b, i)]++;
        order[i - from] = r;
        s->span[r] = span_of(b, i);
        step_put_plus(t)[r] = is_both(b, i) && s->arch->runs == ROLE_DECODER;
        step_put_adapter(t)[r] = set_of(s, b, i);
        step_put_parent(t)[r] =
            tree_has(b, i) && b->parent[i] >= 0 ? order[b->parent[i] - from] : -1;
        if (has_vector(s, b, i))
            memcpy(step_put_embd(t) + (int64_t)r * t->n_embd, b->embd + (int64_t)i * t->n_embd,
                   (size_t)t->n_embd * sizeof(float));
        step_put_token(t)[r] = is_embd(b, i) ? -1 : token_of(s, b, i);
        const int32_t *pos = given(b, i);
        if (pos && s->cache.axes)
            step_place4(t, r, pos);
        else
            step_place(t, r, pos ? pos[0] : -1); /* -1: the next, when those before are known */
        t->embd |= has_vector(s, b, i);
    }
    t->R = 0;
    for (int32_t i = from; i < from + n; i++)
        if (wanted(s, b, i))
            step_put_out(t)[t->R++] = order[i - from];
}

/* A window of a model that looks both ways: as many rows on each side. Its sequences are whole. */
static void see_both_sides(struct step *t, int g, int32_t r, int32_t side)
{
    int32_t slot = step_slot(t, g)[r], end = step_hi(t, g)[r];
    step_put_lo(t, g)[r] = slot > side ? slot - side : 0;
    step_put_hi(t, g)[r] = slot + side + 1 < end ? slot + side + 1 : end;
}

/* Rows [first, end) of a segment, whose first slot is `slot`: each of a span sees to its end. */
static void see_spans(struct pith_session *s, int g, int32_t first, int32_t end, int32_t slot)
{
    int32_t sees = end;
    if (s->arch->hp.spans_in_windows && !state_range_is(s->cache.group[g].range, SEES_SPANS))
        return;
    for (int32_t r = end - 1; r >= first; r--) {
        sees = r + 1 < end && s->span[r] == s->span[r + 1] ? sees : r + 1;
        if (s->span[r])
            step_put_hi(s->step, g)[r] = slot + sees - first;
    }
}

/* All rows of segment k see the whole memory of its sequence, and nothing of the encoder's rows. */
static void see_memory(struct pith_session *s, int g, int32_t k, const struct cache_seq *q)
{
    struct step *t = s->step;
    int32_t n = s->cache.group[g].of == CACHE_MEMORY ? q->n_memory : 0;
    for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++) {
        step_put_slot(t, g)[r] = step_put_lo(t, g)[r] = 0;
        step_put_hi(t, g)[r] = n;
    }
    memcpy(step_put_pages(t, g, k), q->pages[g],
           (size_t)((n + STEP_PAGE - 1) / STEP_PAGE) * sizeof(int32_t));
}

static void row_pos4(const struct step *t, int32_t r, int32_t pos[1 + STEP_AXES])
{
    pos[0] = step_pos(t)[r];
    memcpy(pos + 1, step_axes(t) + STEP_AXES * (int64_t)r, STEP_AXES * sizeof *pos);
}

/* Those of rows that were given none. */
static void fill_next(struct step *t, int32_t k, const struct cache_seq *q)
{
    int32_t next = cache_next(q, q->n), pos[1 + STEP_AXES];
    for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++) {
        if (step_pos(t)[r] < 0)
            step_place(t, r, next);
        row_pos4(t, r, pos);
        next = cache_after(pos);
    }
}

/* The first slot that row r of a segment sees, whose rows begin with `first`: that of the first
 * position from `seen` on. */
static int32_t first_slot(const struct step *t, const struct cache_seq *q, int32_t first, int32_t r,
                          int64_t seen)
{
    int32_t lo = seen > 0 ? cache_find(q, seen) : 0, a = first, b = r;
    if (seen <= 0 || lo < q->n)
        return lo;
    while (a < b) {
        int32_t m = a + (b - a) / 2;
        if (step_pos(t)[m] < seen)
            a = m + 1;
        else
            b = m;
    }
    return q->n + a - first;
}

/* Positions, slots, visible ranges and page tables; sequences are settled, pages are there. */
static void fill_positions(struct pith_session *s)
{
    struct step *t = s->step;
    t->n_tiles = 0;
    for (int32_t k = 0; k < t->N; k++) {
        const struct cache_seq *q = &s->cache.seq[step_seq(t)[k]];
        for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r += STEP_TILE)
            step_put_tile(t)[t->n_tiles++] = r;
        int32_t first = step_first(t)[k], end = step_first(t)[k + 1];
        fill_next(t, k, q);
        step_put_tree(t)[k] = s->seq_tried[step_seq(t)[k]];
        for (int32_t r = first; r < end; r++) {
            int32_t slot = q->n + r - first, pos = step_pos(t)[r];
            step_put_seg(t)[r] = k;
            for (int g = 0; g < s->cache.n_own; g++) {
                const struct cache_group *of = &s->cache.group[g];
                int64_t seen = cache_first_seen(of, pos);
                step_put_slot(t, g)[r] = slot;
                step_put_lo(t, g)[r] = first_slot(t, q, first, r, seen);
                step_put_hi(t, g)[r] = s->causal ? slot + 1 : q->n + end - first;
                if (!s->causal && state_range_is(of->range, SEES_AROUND))
                    see_both_sides(t, g, r, (int32_t)(state_reach(of->range, of->span) / 2));
            }
        }
        for (int g = 0; g < s->cache.n_own && s->causal; g++)
            see_spans(s, g, first, end, q->n);
        if (step_tree(t)[k])
            tree_fill(s, k);
        int32_t n_pages = (q->n + end - first + STEP_PAGE - 1) / STEP_PAGE;
        for (int g = 0; g < s->cache.n_own; g++)
            memcpy(step_put_pages(t, g, k), q->pages[g], (size_t)n_pages * sizeof(int32_t));
        for (int g = s->cache.n_own; g < t->n_groups; g++)
            see_memory(s, g, k, q);
    }
}

/* Why rows of this session cannot see later ones; NULL: they can. */
static const char *sees_no_spans(const struct pith_session *s)
{
    const char *why = session_sees_alone(s);
    return !why && s->recurrent.n_blocks ? "recurrent layers go from row to row" : why;
}

pith_status session_check_spans(const struct pith_session *s, const struct pith_batch *b,
                                struct pith_error *err)
{
    int some = 0;
    for (int32_t i = 0; i < b->n; i++) {
        if (span_of(b, i) < 0 || (span_of(b, i) && tree_has(b, i)))
            return error_set(err, PITH_RANGE, "row %d is of span %d%s", i, span_of(b, i),
                             span_of(b, i) < 0 ? "; wanted 0 (none) or more"
                                               : " and of a tree; wanted one of the two");
        some |= span_of(b, i);
    }
    if (some && sees_no_spans(s))
        return error_set(err, PITH_UNSUPPORTED, "a span of rows that see each other for %s: %s",
                         s->model->info.arch, sees_no_spans(s));
    if (some && b->n > s->n_batch)
        return error_set(err, PITH_RANGE,
                         "%d rows with spans, which go in one step: at most n_batch = %d; open the "
                         "session with a larger n_batch",
                         b->n, s->n_batch);
    return PITH_OK;
}

static int some_given(const struct step *t, int32_t k)
{
    int some = 0;
    for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++)
        some |= step_pos(t)[r] >= 0;
    return some;
}

static pith_status take_pages(struct pith_session *s, struct pith_error *err)
{
    const struct step *t = s->step;
    for (int32_t k = 0; k < t->N; k++) {
        int32_t seq = step_seq(t)[k], rows = step_first(t)[k + 1] - step_first(t)[k];
        pith_status st = cache_settle(&s->cache, seq, err);
        if (st == PITH_OK && some_given(t, k))
            st = cache_place(&s->cache, seq, err);
        if (st == PITH_OK)
            st = cache_grow(&s->cache, seq, rows, err);
        if (st != PITH_OK)
            return st;
    }
    return PITH_OK;
}

static void commit_rows(struct pith_session *s)
{
    const struct step *t = s->step;
    int32_t pos[1 + STEP_AXES];
    for (int32_t k = 0; k < t->N; k++) {
        int32_t rows = step_first(t)[k + 1] - step_first(t)[k];
        if (s->seq_tried[step_seq(t)[k]]) {
            s->cache.seq[step_seq(t)[k]].n_tree = rows;
            s->n_tried = t->T;
            s->tree_lane = s->lane_at;
            continue;
        }
        for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++) {
            row_pos4(t, r, pos);
            cache_append(&s->cache, step_seq(t)[k], session_kept_token(s, t, r), pos);
        }
    }
}

static const struct value *output_value(const struct pith_session *s)
{
    const struct plan *p = session_plan_of(s, s->lane_at);
    return p->has_logits ? &p->logits : &p->embd;
}

/* Of n outputs what few bytes tell. 0: there is no memory, or it could not be read; all of them are
 * read then. */
static int collect_best(struct pith_session *s, int32_t n)
{
    const struct plan *p = session_plan_of(s, s->lane_at);
    if (!s->reads_best || !p->has_best)
        return 0;
    if (!s->best)
        s->best = mem_array((size_t)(s->cap_outputs * p->best.cols), sizeof *s->best,
                            PITH_MEM_SCRATCH);
    struct plan_run *r = session_lane(s, s->lane_at);
    if (!s->best || plan_read(r, &p->best, 0, n, s->best, NULL) != PITH_OK)
        return 0;
    for (int32_t i = 0; i < n; i++)
        s->output[i] = NULL;
    s->last_outputs = s->n_outputs = n;
    return 1;
}

const float *session_output(struct pith_session *s, int32_t i, struct pith_error *err)
{
    float *to = s->kept + (int64_t)i * s->n_cols;
    if (s->output[i])
        return s->output[i];
    if (session_room_for_outputs(s, i + 1, err) != PITH_OK ||
        plan_read(session_lane(s, s->outputs_of), output_value(s), i, 1, to, err) != PITH_OK)
        return NULL;
    return s->output[i] = to;
}

void session_forget_last(struct pith_session *s, int32_t seq)
{
    for (int32_t q = seq < 0 ? 0 : seq; q < (seq < 0 ? s->n_seq : seq + 1); q++)
        s->last[q].output = -1;
}

int32_t session_last_output(const struct pith_session *s, int32_t seq)
{
    const struct last_output *l = &s->last[seq];
    return l->output < s->n_outputs && s->cache.seq[seq].n == l->n ? l->output : -1;
}

/* Which of the step's outputs, the first of which is output `from` of the call, are of the last row
 * so far of a sequence. */
static void note_last(struct pith_session *s, int32_t from)
{
    const struct step *t = s->step;
    for (int32_t k = 0; k < t->N; k++)
        session_forget_last(s, step_seq(t)[k]);
    for (int32_t i = 0; i < t->R && output_value(s)->rows == ROWS_R; i++) {
        int32_t row = step_out(t)[i], seg = step_seg(t)[row];
        if (row == step_first(t)[seg + 1] - 1)
            s->last[step_seq(t)[seg]].output = from + i;
    }
}

void session_mark_last(struct pith_session *s)
{
    for (int32_t q = 0; q < s->n_seq; q++) {
        const struct cache_seq *c = &s->cache.seq[q];
        s->last[q] = (struct last_output){c->n_tree ? -1 : s->last[q].output, c->n};
    }
}

/* Outputs of the step just run: where they lie, or, where the host cannot look, read to `kept`;
 * those of earlier steps of the same call were copied there by session_keep_outputs. */
pith_status session_collect(struct pith_session *s, struct pith_error *err)
{
    const struct value *v = output_value(s);
    struct plan_run *r = session_lane(s, s->lane_at);
    int32_t n = v->rows == ROWS_N ? s->step->N : s->step->R, before = s->n_outputs;
    const float *map = plan_map(r, v, 0);
    float *to = s->kept + (int64_t)before * s->n_cols;
    s->outputs_of = s->lane_at;
    taps_show(s);
    note_last(s, before);
    if (collect_best(s, n))
        return PITH_OK;
    pith_status st = map || !n ? PITH_OK : session_room_for_outputs(s, before + n, err);
    if (st == PITH_OK && !map)
        st = plan_read(r, v, 0, n, to, err);
    if (st != PITH_OK)
        return st;
    for (int32_t i = 0; i < n; i++)
        s->output[before + i] = map ? map + i * v->ld : to + (int64_t)i * s->n_cols;
    s->last_outputs = n;
    s->n_outputs += n;
    return st;
}

pith_status session_room_for_outputs(struct pith_session *s, int32_t n, struct pith_error *err)
{
    uint64_t need = size_align((uint64_t)n * (uint64_t)s->n_cols * sizeof(float), 2 << 20);
    if (need <= s->kept_committed)
        return PITH_OK;
    pith_status st = mem_commit((uint8_t *)s->kept + s->kept_committed, need - s->kept_committed,
                                PITH_MEM_SCRATCH, err);
    if (st == PITH_OK)
        s->kept_committed = need;
    return st;
}

/* The plan's rows will be overwritten by the next step of this call. */
pith_status session_keep_outputs(struct pith_session *s, struct pith_error *err)
{
    uint64_t row = (uint64_t)s->n_cols * sizeof(float);
    pith_status st = s->last_outputs ? session_room_for_outputs(s, s->n_outputs, err) : PITH_OK;
    if (st != PITH_OK)
        return st;
    for (int32_t i = s->n_outputs - s->last_outputs; i < s->n_outputs; i++) {
        float *to = s->kept + (int64_t)i * s->n_cols;
        if (to != s->output[i])
            memcpy(to, s->output[i], row);
        s->output[i] = to;
    }
    return PITH_OK;
}

pith_status session_make_rows(struct pith_session *s, const struct pith_batch *b, int32_t from,
                              int32_t n, struct pith_error *err)
{
    fill_rows(s, b, from, n);
    taps_mark(s, from, n);
    pith_status st = take_pages(s, err);
    if (st == PITH_NOMEM && upload_give_back(s))
        st = take_pages(s, err);
    if (st != PITH_OK)
        return st;
    fill_positions(s);
    s->run.stats = s->role[ROLE_DECODER].stats;
    s->run.number++;
    s->run.n_threads = n > PREFILL_ROWS ? s->n_threads_prefill : s->n_threads;
    st = recurrent_take(&s->recurrent, s->step, err);
    return st == PITH_NOMEM && upload_give_back(s) ? recurrent_take(&s->recurrent, s->step, err)
                                                     : st;
}

void session_commit_rows(struct pith_session *s)
{
    commit_rows(s);
    recurrent_commit(&s->recurrent, s->step);
}
