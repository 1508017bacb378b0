/* pipeline.c -- steps of a session beside each other:
 *
 *     device A    step 0   step 1   step 2   step 3
 *     device B             step 0   step 1   step 2  ..
 *
 * A step is in a *lane*, which has values, jobs (struct plan_run) and a struct step of its own.
 * Every lane takes one stretch in a round, the oldest first, so each device gets the stretches of
 * one step behind the same ones of the step before: what they share (pages, recurrent state) is
 * written in the order of one step after the other, and so are the bits.
 *
 * The session is told of a step's rows when it has begun, so that the next one can be made; one
 * that fails takes back all of its call. Changes of pages are done on a device right before the
 * step that they were made for begins there. Where a device has several stretches of a step that
 * would be too early for steps before that use one of the pages, which are then ended first.
 *
 * A long batch is as many steps, under way as lanes allow (pipeline_rows). Or the caller has two
 * steps of his own under way, of different sequences (pith_submit): each is a call, with its own
 * outputs and its own way back. */
#include "run/session/rows.h"

#include <string.h>

#include "base/env.h"
#include "base/mem.h"

/* ---------------------------------------------------------------- how many lanes */

/* Stretches of a step on each device. */
static void count_stretches(const struct plan *p, int32_t n[MAX_DEVICES])
{
    int32_t before = -1;
    memset(n, 0, MAX_DEVICES * sizeof *n);
    for (int32_t i = 0; i < p->n_phases; i++) {
        int copy = p->phases[i].kind == PHASE_COPY;
        n[p->phases[i].device] += !copy && p->phases[i].device != before;
        before = copy ? -1 : p->phases[i].device;
    }
}

/* Devices that have a good part of the calls, if one of them works while the host does not. */
static int workers(const struct plan *p)
{
    int n = 0, beside = 0;
    for (int d = 0; d < p->n_devices; d++) {
        int32_t calls = 0;
        for (int32_t i = 0; i < p->n_calls; i++)
            calls += p->calls[i].dst.device == d;
        if (calls * 16 < p->n_calls)
            continue;
        n++;
        beside |= !p->devices[d]->backend->at_once;
    }
    return beside ? n : 0;
}

pith_status pipeline_choose(struct pith_session *s, int32_t asked, struct pith_error *err)
{
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    int64_t said = 0;
    pith_status st = env_int("PITH_PIPELINE", 0, SESSION_LANES, 0, &said, err);
    int32_t most = workers(p), fit = most < SESSION_LANES ? most : SESSION_LANES;
    if (st != PITH_OK)
        return st;
    count_stretches(p, s->stretches);
    s->n_lanes = 1;
    if (s->pooled || !s->causal || s->model->params.observe)
        return PITH_OK;
    if (asked)
        s->n_lanes = asked;
    else if (most > 1 && s->n_batch < s->n_ctx)
        s->n_lanes = said ? (int)said : fit;
    return PITH_OK;
}

/* ---------------------------------------------------------------- lanes under way */

static struct plan_run *run_of(struct pith_session *s, int i)
{
    return session_lane(s, s->flying[i]);
}

static int free_lane(const struct pith_session *s)
{
    uint32_t busy = 0;
    int i = 0;
    for (int k = 0; k < s->n_flying; k++)
        busy |= 1u << s->flying[k];
    while (busy >> i & 1)
        i++;
    return i;
}

static void oldest_is_gone(struct pith_session *s)
{
    s->n_flying--;
    memmove(s->flying, s->flying + 1, (size_t)s->n_flying * sizeof *s->flying);
}

/* The next stretch, behind the changes of pages that it was made with. */
static pith_status go(struct pith_session *s, int i, struct pith_error *err)
{
    struct plan_run *r = run_of(s, i);
    pith_status st =
        cache_flush_on(&s->cache, plan_next(r)->index, s->lane[s->flying[i]].changes, err);
    return st == PITH_OK ? plan_go(r, err) : st;
}

/* Step i under way runs to its end, where it stays: its values are there. */
static pith_status run_out(struct pith_session *s, int i, struct pith_error *err)
{
    struct plan_run *r = run_of(s, i);
    pith_status st = PITH_OK;
    while (st == PITH_OK && !plan_over(r)) {
        st = plan_bring(r, err);
        if (st == PITH_OK && !plan_over(r))
            st = go(s, i, err);
    }
    return plan_end(r, st, err);
}

/* The oldest one ends, and is what `step` says; its outputs follow those that there are. */
static pith_status end_oldest(struct pith_session *s, struct pith_error *err)
{
    pith_status st = run_out(s, 0, err);
    session_use_lane(s, s->flying[0]);
    oldest_is_gone(s);
    return st == PITH_OK ? session_collect(s, err) : st;
}

/* Marks the pages that rows of the step see or fill something of. */
static void mark_pages(struct pith_session *s, const struct step *t, int32_t group)
{
    for (int32_t k = 0; k < t->N; k++, s->looked++) {
        int32_t end = 0;
        for (int32_t r = step_first(t)[k]; r < step_first(t)[k + 1]; r++) {
            int32_t hi = step_hi(t, group)[r], slot = step_slot(t, group)[r];
            end = hi > end ? hi : end;
            end = slot >= end ? slot + 1 : end;
        }
        for (int32_t i = 0; i * STEP_PAGE < end; i++) {
            int32_t place = step_pages(t, group, k)[i];
            if (place >= 0)
                s->in_use[group][place_page(place)] = 1;
        }
    }
}

static uint64_t n_pages(const struct cache_group *g)
{
    return (uint64_t)(g->n_pages + g->n_spare);
}

static void mark_group(struct pith_session *s, int32_t group)
{
    memset(s->in_use[group], 0, n_pages(&s->cache.group[group]));
    for (int i = 0; i < s->n_flying; i++)
        mark_pages(s, s->lane[s->flying[i]].step, group);
}

/* 1: a change of pages from `at` on is on a device that steps under way come back to, for one of
 * the pages. */
static int too_early(struct pith_session *s, uint32_t at)
{
    const struct cache *c = &s->cache;
    const struct cache_op *op;
    uint32_t marked = 0;
    _Static_assert(STEP_MAX_GROUPS <= 32, "a bit for each group");
    while (s->n_flying && (op = cache_log_next(c->log, &at)) != NULL) {
        if (s->stretches[c->group[op->group].device] <= 1)
            continue;
        if (!(marked >> op->group & 1))
            mark_group(s, op->group);
        marked |= 1u << op->group;
        const uint8_t *in_use = s->in_use[op->group];
        int used = in_use[op->page];
        for (int32_t i = 0; i < op->n; i++)
            used |= op->from[i].page >= 0 && in_use[op->from[i].page];
        if (used)
            return 1;
    }
    return 0;
}

pith_status pipeline_init(struct pith_session *s, struct pith_error *err)
{
    for (int g = 0; g < s->cache.n_groups && s->n_lanes > 1; g++)
        if (!(s->in_use[g] = mem_alloc(n_pages(&s->cache.group[g]), PITH_MEM_SCRATCH)))
            return error_set(err, PITH_NOMEM, "out of memory for steps beside each other");
    return PITH_OK;
}

void pipeline_deinit(struct pith_session *s)
{
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        mem_free(s->in_use[g]);
}

/* What all devices have done leaves the list: it never ends where steps follow without a pause. */
static void forget_changes(struct pith_session *s)
{
    uint32_t n = cache_forget(&s->cache);
    for (int i = 0; i < s->n_flying; i++) {
        struct lane *l = &s->lane[s->flying[i]];
        l->changes -= l->changes < n ? l->changes : n;
    }
}

/* Rows [from, from + n) of a batch are a step that can begin in lane i. make_way: what is under way
 * runs to its end. */
static pith_status make(struct pith_session *s, int i, const struct pith_batch *b, int32_t from,
                        int32_t n, pith_status (*make_way)(struct pith_session *,
                                                           struct pith_error *),
                        struct pith_error *err)
{
    forget_changes(s);
    uint32_t changes = s->cache.log->n;
    session_use_lane(s, i);
    pith_status st = session_make_rows(s, b, from, n, err);
    if (st != PITH_OK)
        return st;
    struct run run = s->run;
    if (too_early(s, changes)) {
        st = make_way(s, err);
        session_use_lane(s, i);
    }
    if (st != PITH_OK) {
        recurrent_abort(&s->recurrent, s->step);
        return st;
    }
    s->lane[i].ended = 0;
    s->lane[i].run = run;
    s->lane[i].changes = s->cache.log->n;
    session_commit_rows(s);
    plan_begin(session_lane(s, i), &s->lane[i].run);
    s->flying[s->n_flying++] = i;
    return PITH_OK;
}

/* Each lane takes its next stretch. Those of devices that work by themselves begin before the
 * host works for the others; and what they read is brought before they have more to do. */
static pith_status one_round(struct pith_session *s, struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint32_t gone = 0;
    for (int i = 0; i < s->n_flying && st == PITH_OK; i++)
        st = plan_bring(run_of(s, i), err);
    for (int at_once = 0; at_once < 2; at_once++)
        for (int i = 0; i < s->n_flying && st == PITH_OK; i++) {
            const struct device *d = gone >> i & 1 ? NULL : plan_next(run_of(s, i));
            if (!d || d->backend->at_once != at_once)
                continue;
            gone |= 1u << i;
            st = go(s, i, err);
        }
    return st;
}

/* ---------------------------------------------------------------- a long batch */

/* One that others follow: its values go. */
static pith_status end_and_keep(struct pith_session *s, struct pith_error *err)
{
    pith_status st = end_oldest(s, err);
    return st == PITH_OK ? session_keep_outputs(s, err) : st;
}

static pith_status end_all(struct pith_session *s, struct pith_error *err)
{
    pith_status st = PITH_OK;
    while (st == PITH_OK && s->n_flying)
        st = end_and_keep(s, err);
    return st;
}

pith_status pipeline_rows(struct pith_session *s, const struct pith_batch *b,
                          struct pith_error *err)
{
    int32_t from = 0;
    pith_status st = cache_flush(&s->cache, err);
    while (st == PITH_OK && (s->n_flying > 1 || from < b->n || !plan_over(run_of(s, 0)))) {
        if (s->n_flying && plan_over(run_of(s, 0)))
            st = end_and_keep(s, err);
        if (st == PITH_OK && from < b->n && s->n_flying < s->n_lanes) {
            int32_t n = b->n - from < s->n_batch ? b->n - from : s->n_batch;
            st = make(s, free_lane(s), b, from, n, end_all, err);
            from += n;
        }
        if (st == PITH_OK)
            st = one_round(s, err);
    }
    if (st == PITH_OK)
        st = end_oldest(s, err);
    if (st == PITH_OK)
        session_mark_last(s);
    pipeline_stop(s);
    session_use_lane(s, 0);
    return st == PITH_OK ? cache_flush(&s->cache, err) : st;
}

void pipeline_stop(struct pith_session *s)
{
    for (; s->n_flying; oldest_is_gone(s))
        if (!s->lane[s->flying[0]].ended)
            plan_end(run_of(s, 0), PITH_STATE, NULL);
}

/* ---------------------------------------------------------------- two steps of the caller's */

/* How a step goes that the caller has not waited for is told when he does. */
static void go_on(struct pith_session *s, int i, int to_its_end)
{
    struct lane *l = &s->lane[s->flying[i]];
    if (l->ended)
        return;
    if (to_its_end) {
        l->st = run_out(s, i, &l->err);
        l->ended = 1;
        return;
    }
    l->st = plan_bring(run_of(s, i), &l->err);
    if (l->st == PITH_OK && !plan_over(run_of(s, i)))
        l->st = go(s, i, &l->err);
    if (l->st != PITH_OK) {
        plan_end(run_of(s, i), l->st, NULL);
        l->ended = 1;
    }
}

static pith_status make_way(struct pith_session *s, struct pith_error *err)
{
    (void)err;
    for (int i = 0; i < s->n_flying; i++)
        go_on(s, i, 1);
    return PITH_OK;
}

/* The sequence of a segment of a step under way, whose call ends. */
static void end_seq(struct pith_session *s, int32_t seq, int failed)
{
    cache_end(&s->cache, seq, failed);
    recurrent_end(&s->recurrent, seq, failed);
    if (!failed)
        store_publish(&s->store, &s->cache, seq);
}

static int is_flying(const struct pith_session *s, int32_t seq)
{
    for (int i = 0; i < s->n_flying; i++) {
        const struct step *t = s->lane[s->flying[i]].step;
        for (int32_t k = 0; k < t->N; k++)
            if (step_seq(t)[k] == seq)
                return 1;
    }
    return 0;
}

int32_t pipeline_outputs(const struct pith_session *s)
{
    return s->n_flying ? s->lane[s->flying[s->n_flying - 1]].step->R : s->n_outputs;
}

/* The batch becomes a step in lane i, and begins where a device works by itself, or at_once. On
 * failure its sequences are as they were. */
static pith_status begin_rows(struct pith_session *s, int i, const struct pith_batch *b,
                              int at_once, struct pith_error *err)
{
    memset(s->seq_rows, 0, (size_t)s->n_seq * sizeof *s->seq_rows);
    for (int32_t r = 0; r < b->n; r++) {
        int32_t q = seq_of(s, b, r);
        s->seq_rows[q]++;
        s->seq_last[q] = r;
        s->cache.seq[q].placed |= given(b, r) != NULL; /* windows keep what they may see */
        s->seq_tried[q] = (uint8_t)tree_has(b, r);
    }
    for (int32_t q = 0; q < s->n_seq; q++) {
        if (is_flying(s, q))
            continue;
        cache_begin(&s->cache, q);
        recurrent_begin(&s->recurrent, q, s->seq_rows[q]);
        s->seq_at[q][0] = s->seq_rows[q]; /* the counts go while the step is made */
    }
    pith_status st = s->n_flying ? PITH_OK : cache_flush(&s->cache, err);
    if (st == PITH_OK)
        st = make(s, i, b, 0, b->n, make_way, err);
    if (st == PITH_OK) {
        s->lane[i].reads_best = only_drawn(b);
        s->lane[i].tried = s->n_tried > 0;
        s->n_tried = 0; /* until it is waited for */
        if (at_once || !plan_next(session_lane(s, i))->backend->at_once)
            go_on(s, s->n_flying - 1, 0);
        return PITH_OK;
    }
    for (int32_t q = 0; q < s->n_seq; q++)
        if (!is_flying(s, q) && s->seq_at[q][0])
            end_seq(s, q, 1);
    return st;
}

/* A lane in which nothing runs. */
static void idle_lane(struct pith_session *s, int i, int held)
{
    struct lane *l = &s->lane[i];
    l->step->T = l->step->R = l->step->N = l->step->n_tiles = 0;
    l->changes = 0;
    l->ended = 1;
    l->held = held;
    l->tried = 0;
    s->flying[s->n_flying++] = i;
}

pith_status pipeline_submit(struct pith_session *s, const struct pith_batch *b,
                            struct pith_error *err)
{
    int waits = s->n_flying && drawn_waits(b), lane = free_lane(s);
    pith_status st = PITH_OK;
    for (int32_t q = 0; !waits && q < s->n_seq; q++)
        if (s->seq_rows[q] && is_flying(s, q))
            return error_set(err, PITH_STATE,
                             "pith_submit: a step of sequence %d is under way; end it first "
                             "(pith_wait)",
                             q);
    if (waits && b->parent)
        return error_set(err, PITH_UNSUPPORTED,
                         "pith_submit: a tree of rows beside tokens that are drawn from a step "
                         "under way; end that first (pith_wait)");
    if (waits)
        st = drawn_hold(s, b, err);
    else if (!s->n_flying)
        st = drawn_take(s, b, err);
    if (st != PITH_OK)
        return st;
    s->n_outputs = s->last_outputs = s->n_tried = s->n_tapped = 0;
    s->uploading.now = 0; /* tokens were drawn from what the step before went by */
    session_forget_last(s, -1);
    if (!s->n_flying)
        tree_forget(s);
    if (s->n_flying) /* the one before goes on, if it can without being waited for by the caller */
        go_on(s, 0, 0);
    if (waits)
        idle_lane(s, lane, 1);
    else
        st = begin_rows(s, lane, b, 1, err);
    session_use_lane(s, 0);
    return st;
}

/* The step before the one that lane i holds has ended so. What becomes of this one is told when it
 * is waited for. */
static void take_up(struct pith_session *s, int i, pith_status before, struct pith_error *why)
{
    struct lane *l = &s->lane[i];
    l->held = 0;
    l->st = before == PITH_OK
                ? drawn_take(s, &s->held, &l->err)
                : error_set(&l->err, before, "the step before, whose outputs were to be drawn "
                            "from, has failed: %.1500s", why->msg);
    if (l->st == PITH_OK)
        l->st = begin_rows(s, i, &s->held, 0, &l->err);
    if (l->st != PITH_OK)
        idle_lane(s, i, 0);
}

/* What the encoder has read for the step of a lane goes with it (roles.c). */
static void end_read(struct pith_session *s, struct lane *l, int failed)
{
    for (int32_t q = 0; l->read && q < s->n_seq; q++) {
        if (failed && s->seq_read[q])
            cache_memory_drop(&s->cache, q);
        s->seq_read[q] = 0;
    }
    if (l->read && failed)
        s->n_tap_read = 0;
    l->read = 0;
}

pith_status pipeline_wait(struct pith_session *s, struct pith_error *err)
{
    if (!s->n_flying)
        return error_set(err, PITH_STATE, "pith_wait: no step is under way");
    int i = s->flying[0], next = -1;
    struct lane *l = &s->lane[i];
    go_on(s, 0, 1);
    pith_status st = l->st;
    if (st != PITH_OK)
        error_set(err, st, "%s", l->err.msg);
    oldest_is_gone(s);
    if (s->n_flying && s->lane[s->flying[0]].held) {
        next = s->flying[0];
        oldest_is_gone(s);
    }
    session_use_lane(s, i);
    s->n_outputs = s->last_outputs = s->n_drawn = s->n_tapped = s->n_tried = 0;
    s->reads_best = l->reads_best;
    session_forget_last(s, -1);
    if (st == PITH_OK)
        st = session_collect(s, err);
    if (st == PITH_OK)
        session_mark_last(s);
    else
        s->n_outputs = s->n_tapped = 0;
    for (int32_t k = 0; k < s->step->N; k++)
        end_seq(s, step_seq(s->step)[k], st != PITH_OK);
    end_read(s, l, st != PITH_OK);
    if (st == PITH_OK && l->tried && !s->n_flying && next < 0)
        s->n_tried = s->step->T, s->tree_lane = i;
    else if (l->tried)
        tree_forget(s);
    if (next >= 0)
        take_up(s, next, st, err);
    session_use_lane(s, 0);
    return st;
}
