/* tree.c -- rows of a step that are a tree: what might come next, of which one path will be kept.
 * They are computed in slots behind what a sequence holds (graph/step.h tells what they see) and
 * become part of it when they are accepted; the next call that steps or edits the sequence has
 * forgotten them. */
#include "run/session/session.h"

#include <string.h>

const char *session_sees_alone(const struct pith_session *s)
{
    if (!s->causal || s->pooled)
        return "it takes a sequence whole";
    for (int32_t i = 0; i < s->n_states; i++)
        if (s->states[i].ratio > 1 || state_is(&s->states[i], STATE_CHOOSES))
            return "layers choose slots, or keep one row for several tokens";
    return NULL;
}

/* A state on a device that has no trees; NULL: there is none. */
static const struct state *elsewhere(const struct pith_session *s)
{
    for (const struct state *t = s->states; t < s->states + s->n_states; t++)
        if (!s->model->devices[t->device]->backend->trees)
            return t;
    return NULL;
}

int32_t tree_rows(const struct pith_session *s, int32_t asked)
{
    return session_sees_alone(s) || elsewhere(s) ? 0 : asked < s->n_batch ? asked : s->n_batch;
}

pith_status tree_refuses(const struct pith_session *s, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    const struct state *t = elsewhere(s);
    const char *why = session_sees_alone(s);
    if (!why && t)
        return error_set(err, PITH_UNSUPPORTED,
                         "a tree of rows: layer %d is on %s, which goes from a row to the next "
                         "alone; open the model without that device",
                         t->layer, m->devices[t->device]->name);
    if (!why && s->recurrent.n_blocks && !s->n_tree_rows)
        why = "recurrent layers need states for its rows; open the session with n_tree_rows";
    return why ? error_set(err, PITH_UNSUPPORTED, "a tree of rows for %s: %s", m->info.arch, why)
               : PITH_OK;
}

static pith_status check_row(struct pith_session *s, const struct pith_batch *b, int32_t i,
                             struct pith_error *err)
{
    int32_t q = b->seq ? b->seq[i] : s->one_seq, p = b->parent[i];
    int32_t *depth = s->depth, *is_tree = s->seq_at[q];
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

/* Blocks for the states after n rows. */
static pith_status check_blocks(const struct pith_session *s, int32_t n, struct pith_error *err)
{
    if (!s->recurrent.n_blocks || !n)
        return PITH_OK;
    for (int i = 0; i < s->n_flying; i++)
        if (s->lane[s->flying[i]].tried)
            return error_set(err, PITH_STATE,
                             "a tree of rows is under way, and its recurrent states are those that "
                             "are set aside; end it first (pith_wait)");
    if (n > s->n_tree_rows)
        return error_set(err, PITH_RANGE,
                         "%d rows of trees in a step, recurrent states are set aside for %d; open "
                         "the session with a larger n_tree_rows",
                         n, s->n_tree_rows);
    return PITH_OK;
}

void tree_forget(struct pith_session *s)
{
    s->n_tried = 0;
    recurrent_forget(&s->recurrent);
}

pith_status tree_check(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    int32_t some = 0;
    s->n_tried = 0;
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
        some += tree_has(b, i);
    }
    pith_status st = some ? tree_refuses(s, err) : PITH_OK;
    return st == PITH_OK ? check_blocks(s, some, err) : st;
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
            step_put_lo(t, g)[r] = lo;
            step_put_hi(t, g)[r] = q->n + depth + 1;
        }
    }
}

/* What is accepted of a session: n rows of its last step, from a root down. */
struct path {
    int32_t row[STEP_DEPTH], token[STEP_DEPTH], n;
};

static pith_status find_path(const struct pith_session *s, int32_t seq, int32_t row,
                             struct path *p, struct pith_error *err)
{
    const struct step *t = s->lane[s->tree_lane].step;
    p->n = 0;
    if (seq < 0 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d", seq, s->n_seq - 1);
    if (!s->n_tried || !s->cache.seq[seq].n_tree)
        return error_set(err, PITH_STATE,
                         "sequence %d has no tree that the last step has tried, or it was edited "
                         "since", seq);
    if (row < PITH_ROOT || row >= s->n_tried)
        return error_set(err, PITH_RANGE, "row %d, the last step had 0..%d; %d is none", row,
                         s->n_tried - 1, PITH_ROOT);
    int32_t at = row < 0 ? -1 : session_order(s, s->tree_lane)[row],
            seg = row < 0 ? -1 : step_seg(t)[at];
    if (row >= 0 && step_seq(t)[seg] != seq)
        return error_set(err, PITH_RANGE, "row %d is of sequence %d, not of %d", row,
                         step_seq(t)[seg], seq);
    for (int32_t r = at; r >= 0; r = step_parent(t)[r])
        p->n++;
    for (int32_t r = at, i = p->n; i-- > 0; r = step_parent(t)[r]) {
        p->row[i] = r - step_first(t)[seg];
        p->token[i] = session_kept_token(s, t, r);
    }
    return PITH_OK;
}

/* The last step of a session that follows had a tree of the sequence as well. */
static int tried_too(const struct pith_session *f, int32_t seq)
{
    return f->n_tried && f->cache.seq[seq].n_tree;
}

/* The same row of such a tree, which has to be the same path. */
static pith_status find_same(const struct pith_session *f, int32_t seq, int32_t row,
                             const struct path *as, struct path *p, struct pith_error *err)
{
    if (!tried_too(f, seq))
        return PITH_OK;
    pith_status st = find_path(f, seq, row, p, err);
    if (st == PITH_OK &&
        (p->n != as->n || memcmp(p->row, as->row, (size_t)p->n * sizeof *p->row) != 0))
        st = error_set(err, PITH_STATE, "row %d has another path there", row);
    return st == PITH_OK ? st : error_prefix(err, "the tree of a session that follows");
}

/* Those before `end` have taken their rows, and give them back. */
static void take_back(struct pith_session *s, const struct pith_session *end, int32_t seq)
{
    for (struct pith_session *f = s->followers; f && f != end; f = f->next_follower)
        if (f->accepted >= 0)
            cache_cut(&f->cache, seq, f->accepted);
}

pith_status session_accept(struct pith_session *s, int32_t seq, int32_t row,
                           struct pith_error *err)
{
    struct path own, p;
    pith_status st = find_path(s, seq, row, &own, err);
    if (st == PITH_OK)
        st = follow_idle(s, err);
    for (struct pith_session *f = s->followers; f && st == PITH_OK; f = f->next_follower)
        st = find_same(f, seq, row, &own, &p, err);
    if (st != PITH_OK)
        return st;
    struct pith_session *f = s->followers;
    for (; f && st == PITH_OK; f = st == PITH_OK ? f->next_follower : f) {
        f->accepted = -1;
        if (!tried_too(f, seq))
            continue;
        f->accepted = f->cache.seq[seq].n;
        st = find_path(f, seq, row, &p, err);
        if (st == PITH_OK)
            st = cache_accept(&f->cache, seq, p.row, p.token, p.n, err);
    }
    if (st == PITH_OK)
        st = cache_accept(&s->cache, seq, own.row, own.token, own.n, err);
    else
        cache_cut(&s->cache, seq, s->cache.seq[seq].n); /* its tree is forgotten, too */
    if (st != PITH_OK) {
        take_back(s, f, seq);
        return st;
    }
    for (f = s->followers; f; f = f->next_follower)
        if (f->accepted >= 0)
            recurrent_accept(&f->recurrent, seq, own.row, own.n);
    recurrent_accept(&s->recurrent, seq, own.row, own.n);
    return PITH_OK;
}
