/* tree.c -- rows of a step that are a tree: what might come next, of which one path will be kept.
 * They are computed in slots behind what a sequence holds (graph/step.h tells what they see) and
 * become part of it when they are accepted; the next call that steps or edits the sequence has
 * forgotten them. */
#include "run/session/session.h"

/* What this session cannot try trees with; NULL: nothing. */
static const char *refuses(const struct pith_session *s)
{
    if (!s->causal || s->pooled)
        return "it takes a sequence whole";
    if (s->recurrent.n_blocks)
        return "recurrent layers go from a row to the next";
    for (int32_t i = 0; i < s->n_states; i++)
        if (s->states[i].ratio > 1 || state_is(&s->states[i], STATE_CHOOSES))
            return "layers choose slots, or keep one row for several tokens";
    return NULL;
}

pith_status tree_refuses(const struct pith_session *s, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    const char *why = refuses(s);
    if (why)
        return error_set(err, PITH_UNSUPPORTED, "a tree of rows for %s: %s", m->info.arch, why);
    for (int32_t i = 0; i < s->n_states; i++) {
        const struct device *d = m->devices[s->states[i].device];
        if (!d->backend->trees)
            return error_set(err, PITH_UNSUPPORTED,
                             "a tree of rows: layer %d is on %s, which has no attention for it; "
                             "open the model without that device",
                             s->states[i].layer, d->name);
    }
    return PITH_OK;
}

static pith_status check_row(struct pith_session *s, const struct pith_batch *b, int32_t i,
                             struct pith_error *err)
{
    int32_t q = b->seq ? b->seq[i] : s->one_seq, p = b->parent[i];
    int32_t *depth = s->order, *is_tree = s->seq_at[q];
    if (p < PITH_APPENDED || p >= i)
        return error_set(err, PITH_RANGE,
                         "row %d comes after row %d; wanted a row before it (0..%d), %d, which is "
                         "after what its sequence holds, or %d, of no tree",
                         i, p, i - 1, PITH_ROOT, PITH_APPENDED);
    if (*is_tree < 0)
        *is_tree = p != PITH_APPENDED;
    if (*is_tree != (p != PITH_APPENDED))
        return error_set(err, PITH_RANGE,
                         "row %d of sequence %d is %s, and the rows of it before are not; wanted "
                         "all of a sequence's rows in its tree, or none",
                         i, q, p == PITH_APPENDED ? "of no tree" : "of a tree");
    if (p >= 0 && (b->seq ? b->seq[p] : s->one_seq) != q)
        return error_set(err, PITH_RANGE,
                         "row %d of sequence %d comes after row %d, which is of sequence %d", i, q,
                         p, b->seq[p]);
    depth[i] = p >= 0 ? depth[p] + 1 : 1;
    if (p != PITH_APPENDED && depth[i] > STEP_DEPTH)
        return error_set(err, PITH_RANGE,
                         "row %d lies %d rows deep in its tree, wanted at most %d", i, depth[i],
                         STEP_DEPTH);
    if (p != PITH_APPENDED && b->pos && b->pos[(int64_t)(1 + STEP_AXES) * i] != -1)
        return error_set(err, PITH_RANGE,
                         "row %d of a tree is given position %d; wanted -1, the next of the row "
                         "that it comes after",
                         i, b->pos[(int64_t)(1 + STEP_AXES) * i]);
    return PITH_OK;
}

pith_status tree_check(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    int some = 0;
    s->n_tried = 0; /* the order of its rows goes */
    if (b->n > s->n_batch)
        return error_set(err, PITH_RANGE,
                         "%d rows with parents, which go in one step: at most n_batch = %d; open "
                         "the session with a larger n_batch",
                         b->n, s->n_batch);
    for (int32_t q = 0; q < s->n_seq; q++)
        s->seq_at[q][0] = -1;
    for (int32_t i = 0; i < b->n; i++) {
        pith_status st = check_row(s, b, i, err);
        if (st != PITH_OK)
            return st;
        some |= tree_has(b, i);
    }
    return some ? tree_refuses(s, err) : PITH_OK;
}

void tree_fill(struct pith_session *s, int32_t k)
{
    struct step *t = s->step;
    const struct cache_seq *q = &s->cache.seq[step_seq(t)[k]];
    int32_t next = cache_next(q, q->n);
    for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++) {
        int32_t p = step_parent(t)[r], depth = p < 0 ? 0 : step_hi(t, 0)[p] - q->n;
        step_place(t, r, next + depth);
        for (int g = 0; g < s->cache.n_own; g++) {
            int64_t seen = cache_first_seen(&s->cache.group[g], next + depth);
            int32_t lo = seen > 0 ? cache_find(q, seen) : 0;
            if (lo == q->n && seen > next)
                lo = q->n + (int32_t)(seen - next);
            step_lo(t, g)[r] = lo;
            step_hi(t, g)[r] = q->n + depth + 1;
        }
    }
}

pith_status session_accept(struct pith_session *s, int32_t seq, int32_t row,
                           struct pith_error *err)
{
    const struct step *t = s->lane[s->tree_lane].step;
    int32_t path[STEP_DEPTH], token[STEP_DEPTH], n = 0;
    if (seq < 0 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d", seq, s->n_seq - 1);
    if (!s->n_tried || !s->cache.seq[seq].n_tree)
        return error_set(err, PITH_STATE,
                         "sequence %d has no tree that the last step has tried, or it was edited "
                         "since", seq);
    if (row < PITH_ROOT || row >= s->n_tried)
        return error_set(err, PITH_RANGE, "row %d, the last step had 0..%d; %d is none", row,
                         s->n_tried - 1, PITH_ROOT);
    int32_t at = row < 0 ? -1 : s->order[row], seg = row < 0 ? -1 : step_seg(t)[at];
    if (row >= 0 && step_seq(t)[seg] != seq)
        return error_set(err, PITH_RANGE, "row %d is of sequence %d, not of %d", row,
                         step_seq(t)[seg], seq);
    for (int32_t r = at; r >= 0; r = step_parent(t)[r])
        n++;
    for (int32_t r = at, i = n; i-- > 0; r = step_parent(t)[r]) {
        path[i] = r - step_first(t)[seg];
        token[i] = session_kept_token(s, t, r);
    }
    return cache_accept(&s->cache, seq, path, token, n, err);
}
