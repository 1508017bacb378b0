/* sequence.c -- what can be done with a session's sequences between steps: feeding, prefix reuse,
 * edits. Ranges are of positions, [p0, p1), p1 = -1 for the end; they are checked here and become
 * slots of the cache. */
#include "run/session/session.h"

#include <xxhash.h>

static pith_status check_seq(const struct pith_session *s, int32_t seq, struct pith_error *err)
{
    if (seq < 0 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d", seq, s->n_seq - 1);
    return PITH_OK;
}

/* Slots [*a, *b) of the sequence at positions [p0, p1). */
static pith_status take_range(const struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                              int32_t *a, int32_t *b, struct pith_error *err)
{
    pith_status st = check_seq(s, seq, err);
    if (st != PITH_OK)
        return st;
    if (p0 < 0 || p1 < -1 || (p1 >= 0 && p1 < p0))
        return error_set(err, PITH_RANGE,
                         "positions [%lld, %lld) of sequence %d; wanted 0 <= p0 <= p1, or p1 = -1 "
                         "for the end",
                         (long long)p0, (long long)p1, seq);
    *a = cache_find(&s->cache.seq[seq], p0);
    *b = cache_find(&s->cache.seq[seq], p1 < 0 ? INT64_MAX : p1);
    return PITH_OK;
}

static int is_recurrent(const struct pith_session *s)
{
    return s->recurrent.n_blocks > 0;
}

static int can_shift(const struct pith_session *s)
{
    return s->causal && !s->pooled && !is_recurrent(s) && !s->model->arch.hp.n_positions;
}

uint32_t session_edits(const struct pith_session *s)
{
    struct pith_error why = {PITH_OK, ""};
    if (!s->causal || s->pooled)
        return 0;
    uint32_t e = PITH_EDIT_COPY;
    if (!is_recurrent(s))
        e |= PITH_EDIT_TRUNCATE | PITH_EDIT_REMOVE;
    if (can_shift(s))
        e |= PITH_EDIT_SHIFT;
    if (!session_follows(s))
        e |= PITH_EDIT_GAPS;
    e |= tree_refuses(s, &why) == PITH_OK ? PITH_EDIT_TREES : 0;
    for (const struct pith_session *f = s->followers; f; f = f->next_follower)
        e &= session_edits(f) | PITH_EDIT_GAPS | PITH_EDIT_TREES; /* rows, not edits */
    return e;
}

/* A recurrence holds the sum of what it has seen: nothing can be taken out of it but what came
 * last. */
static pith_status check_parts(const struct pith_session *s, struct pith_error *err)
{
    if (!is_recurrent(s))
        return PITH_OK;
    return error_set(err, PITH_STATE,
                     "%s has recurrent layers: they can go back to what they held before, not do "
                     "without a part of it",
                     s->model->info.arch);
}

pith_status session_feed(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                         struct pith_error *err)
{
    pith_status st = check_seq(s, seq, err);
    if (st != PITH_OK)
        return st;
    if (n > INT32_MAX / 2)
        return session_over_context(s, (uint64_t)s->cache.seq[seq].n + n, err);
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = (int32_t)n;
    b.token = tokens;
    s->one_seq = seq;
    st = session_step(s, &b, err);
    s->one_seq = 0;
    return st;
}

pith_status session_reuse(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                          size_t *n_kept, struct pith_error *err)
{
    pith_status st = check_seq(s, seq, err);
    if (st == PITH_OK)
        st = follow_idle(s, err);
    if (st != PITH_OK)
        return st;
    if (n == 0)
        return error_set(err, PITH_RANGE,
                         "a prefix of no tokens; pith_truncate empties a sequence");
    if (n > (size_t)s->n_ctx)
        return session_over_context(s, n, err);
    if ((st = session_needs_memory(s, seq, err)) != PITH_OK)
        return st;
    const struct cache_seq *q = &s->cache.seq[seq];
    int32_t keep = 0;
    while (s->causal && !s->pooled && keep < q->pure && (size_t)keep < n - 1 &&
           q->token[keep] == tokens[keep] && tokens[keep] >= 0) /* -1 there: a row of no token */
        keep++;
    keep = recurrent_point(&s->recurrent, seq, keep);
    if (!cache_can_resume(&s->cache, q, keep))
        keep = 0;
    s->miss = (struct store_miss){-1, -1};
    if (keep < q->n && (size_t)keep < n - 1)
        s->miss = (struct store_miss){.at = keep, .token = q->token[keep]};
    for (size_t i = (size_t)keep; i < n; i++) /* before anything is given up */
        if (tokens[i] < 0 || tokens[i] >= s->model->arch.hp.n_vocab)
            return error_set(err, PITH_RANGE, "token %zu is %d, the vocabulary has 0..%d", i,
                             tokens[i], s->model->arch.hp.n_vocab - 1);
    if (keep < STEP_PAGE) /* it becomes another prompt's */
        store_end(&s->store, &s->cache, seq);
    struct store_miss miss;
    int32_t stored = store_match(&s->store, &s->cache, seq, tokens, (int32_t)n - 1, keep, &miss);
    if (miss.at > s->miss.at)
        s->miss = miss;
    if ((st = cache_tokens(&s->cache, &s->cache.seq[seq], stored, err)) != PITH_OK)
        return st;
    follow_cut(s, seq, keep < q->n ? cache_pos(q, keep) : cache_next(q, keep));
    cache_cut(&s->cache, seq, stored > keep ? 0 : keep);
    recurrent_cut(&s->recurrent, seq, keep);
    if (stored > keep) {
        store_take(&s->store, &s->cache, seq, tokens, keep = stored);
        session_forget_last(s, seq); /* of others, there may be as many tokens as before */
    }
    if (n_kept)
        *n_kept = (size_t)keep;
    return PITH_OK;
}

pith_status session_prefix(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                           size_t *n_kept, struct pith_error *err)
{
    size_t kept = 0;
    pith_status st = session_reuse(s, seq, tokens, n, &kept, err);
    if (st != PITH_OK)
        return st;
    if (n_kept)
        *n_kept = kept;
    return session_feed(s, seq, tokens + kept, n - kept, err);
}

pith_status session_salt(struct pith_session *s, int32_t seq, const void *salt, size_t n,
                         struct pith_error *err)
{
    enum { MOST = 4096 };
    pith_status st = check_seq(s, seq, err);
    if (st != PITH_OK)
        return st;
    struct cache_seq *q = &s->cache.seq[seq];
    if (n > MOST)
        return error_set(err, PITH_RANGE, "a salt of %zu bytes, wanted 0..%d", n, MOST);
    if (q->n)
        return error_set(err, PITH_STATE,
                         "sequence %d holds %d positions of whom it belongs to; truncate it to 0 "
                         "before it gets a salt",
                         seq, q->n);
    XXH128_hash_t h = XXH3_128bits(salt, n);
    q->salt[0] = n ? h.low64 | 1 : 0;
    q->salt[1] = n ? h.high64 : 0;
    return PITH_OK;
}

pith_status session_trust(struct pith_session *s, int32_t seq, struct pith_error *err)
{
    pith_status st = check_seq(s, seq, err);
    if (st != PITH_OK || !s->cache.seq[seq].foreign)
        return st;
    s->cache.seq[seq].foreign = 0;
    store_publish(&s->store, &s->cache, seq);
    return PITH_OK;
}

/* To plan.at slots, if that can be. */
static pith_status ready_cut(struct pith_session *s, int32_t seq, int32_t n, struct pith_error *err)
{
    s->plan = (struct edit_plan){.what = EDIT_CUT, .seq = seq, .at = n};
    return session_can_cut(s, seq, n, err);
}

/* The slot of a session that is slot n at position pos of the one that is edited: of equal
 * positions as many are before it. */
static int32_t slot_at(const struct pith_session *s, const struct edit *e, int32_t n, int64_t pos)
{
    if (s == e->of)
        return n;
    const struct cache_seq *q = &s->cache.seq[e->seq];
    int32_t at = cache_find(q, pos) + n - cache_find(&e->of->cache.seq[e->seq], pos);
    int32_t end = cache_find(q, pos + 1);
    return at < end ? at : end;
}

static pith_status ready_truncate(struct pith_session *s, const struct edit *e,
                                  struct pith_error *err)
{
    return ready_cut(s, e->seq, slot_at(s, e, e->n[0], e->p0), err);
}

static int64_t position_of(const struct cache_seq *q, int32_t n)
{
    return n < q->n ? cache_pos(q, n) : cache_next(q, n);
}

pith_status session_truncate(struct pith_session *s, int32_t seq, int64_t n, struct pith_error *err)
{
    pith_status st = check_seq(s, seq, err);
    if (st != PITH_OK)
        return st;
    const struct cache_seq *q = &s->cache.seq[seq];
    if (n < 0 || n > q->n)
        return error_set(err, PITH_RANGE, "truncate to %lld positions, sequence %d holds %d",
                         (long long)n, seq, q->n);
    struct edit e = {.ready = ready_truncate, .seq = seq, .n = {(int32_t)n}};
    e.p0 = position_of(q, e.n[0]);
    return session_edit(s, &e, err);
}

static pith_status ready_remove(struct pith_session *s, const struct edit *e,
                                struct pith_error *err)
{
    int32_t a, b;
    pith_status st = take_range(s, e->seq, e->p0, e->p1, &a, &b, err);
    s->plan = (struct edit_plan){.what = EDIT_NOTHING};
    if (st != PITH_OK || a == b)
        return st;
    if (b == s->cache.seq[e->seq].n)
        return ready_cut(s, e->seq, a, err);
    s->plan = (struct edit_plan){.what = EDIT_DRAFT, .seq = e->seq};
    st = check_parts(s, err);
    return st == PITH_OK ? cache_remove(&s->cache, e->seq, a, b, err) : st;
}

pith_status session_remove(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                           struct pith_error *err)
{
    return session_edit(s, &(struct edit){.ready = ready_remove, .seq = seq, .p0 = p0, .p1 = p1},
                        err);
}

static pith_status ready_close_up(struct pith_session *s, const struct edit *e,
                                  struct pith_error *err)
{
    int32_t a = slot_at(s, e, e->n[0], e->p0), b = slot_at(s, e, e->n[1], e->p1);
    s->plan = (struct edit_plan){.what = EDIT_DRAFT, .seq = e->seq};
    return cache_close_up(&s->cache, e->seq, a, b, (int32_t)(e->p0 - e->p1), err);
}

pith_status session_close_up(struct pith_session *s, int32_t seq, int32_t a, int32_t b,
                             struct pith_error *err)
{
    const struct cache_seq *q = &s->cache.seq[seq];
    struct edit e = {.ready = ready_close_up, .seq = seq, .n = {a, b}};
    e.p0 = position_of(q, a);
    e.p1 = position_of(q, b);
    return session_edit(s, &e, err);
}

static pith_status ready_copy(struct pith_session *s, const struct edit *e, struct pith_error *err)
{
    int32_t a, b;
    pith_status st = check_seq(s, e->seq, err);
    if (st == PITH_OK)
        st = take_range(s, e->src, e->p0, e->p1, &a, &b, err);
    if (st != PITH_OK)
        return st;
    s->plan = (struct edit_plan){.what = EDIT_MEMORY, .seq = e->seq, .src = e->src, .at = b};
    if (a == b) /* nothing but what the encoder has read */
        return session_can_cut(s, e->seq, 0, err);
    s->plan.what = EDIT_COPY;
    if (a > 0)
        st = check_parts(s, err);
    else if (recurrent_point(&s->recurrent, e->src, b) != b)
        st = error_set(err, PITH_STATE,
                       "recurrent layers hold no state of sequence %d after %d positions", e->src,
                       b);
    return st == PITH_OK ? cache_share(&s->cache, e->seq, e->src, a, b, err) : st;
}

pith_status session_copy(struct pith_session *s, int32_t dst, int32_t src, int64_t p0, int64_t p1,
                         struct pith_error *err)
{
    struct edit e = {.ready = ready_copy, .seq = dst, .src = src, .p0 = p0, .p1 = p1};
    return session_edit(s, &e, err);
}

static pith_status ready_keep(struct pith_session *s, const struct edit *e, struct pith_error *err)
{
    pith_status st = check_seq(s, e->seq, err);
    s->plan = (struct edit_plan){.what = EDIT_KEEP, .seq = e->seq};
    for (int32_t q = 0; st == PITH_OK && q < s->n_seq; q++)
        if (q != e->seq)
            st = session_can_cut(s, q, 0, err);
    return st;
}

pith_status session_keep(struct pith_session *s, int32_t seq, struct pith_error *err)
{
    return session_edit(s, &(struct edit){.ready = ready_keep, .seq = seq}, err);
}

static pith_status check_shift(const struct pith_session *s, struct pith_error *err)
{
    if (can_shift(s))
        return PITH_OK;
    if (is_recurrent(s))
        return check_parts(s, err);
    if (s->causal && !s->pooled)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s adds a learned vector for each position to what it reads: positions "
                         "cannot be shifted",
                         s->model->info.arch);
    return error_set(err, PITH_UNSUPPORTED,
                     "%s takes a sequence whole: its positions cannot be shifted",
                     s->causal ? "a session that pools" : s->model->info.arch);
}

/* A range whose positions may change. */
static pith_status take_movable(const struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                                int32_t *a, int32_t *b, struct pith_error *err)
{
    pith_status st = take_range(s, seq, p0, p1, a, b, err);
    return st == PITH_OK ? check_shift(s, err) : st;
}

/* Of positions [p0, p1) of a session to (pos + delta) / by. */
static pith_status ready_move(struct pith_session *s, const struct edit *e, int32_t a, int32_t b,
                              int32_t delta, int32_t by, struct pith_error *err)
{
    int some = a < b && (delta || by > 1);
    s->plan = (struct edit_plan){.what = some ? EDIT_DRAFT : EDIT_NOTHING, .seq = e->seq};
    return some ? cache_move(&s->cache, e->seq, a, b, delta, by, err) : PITH_OK;
}

static pith_status ready_shift(struct pith_session *s, const struct edit *e, struct pith_error *err)
{
    int32_t a, b;
    int64_t delta = e->by;
    pith_status st = take_movable(s, e->seq, e->p0, e->p1, &a, &b, err);
    if (st != PITH_OK)
        return st;
    const struct cache_seq *q = &s->cache.seq[e->seq];
    if (delta < -POS_MAX || delta > POS_MAX ||
        (a < b && (cache_pos(q, a) + delta < 0 || cache_pos(q, b - 1) + delta >= POS_MAX)))
        return error_set(err, PITH_RANGE,
                         "shift by %lld of positions %d..%d of sequence %d; they have to stay "
                         "within 0..%d",
                         (long long)delta, a < b ? cache_pos(q, a) : 0,
                         a < b ? cache_pos(q, b - 1) : 0, e->seq, POS_MAX - 1);
    return ready_move(s, e, a, b, (int32_t)delta, 1, err);
}

pith_status session_shift(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                          int64_t delta, struct pith_error *err)
{
    struct edit e = {.ready = ready_shift, .seq = seq, .p0 = p0, .p1 = p1, .by = delta};
    return session_edit(s, &e, err);
}

static pith_status ready_divide(struct pith_session *s, const struct edit *e,
                                struct pith_error *err)
{
    int32_t a, b;
    pith_status st = take_movable(s, e->seq, e->p0, e->p1, &a, &b, err);
    if (st != PITH_OK)
        return st;
    if (e->by < 1 || e->by > POS_MAX)
        return error_set(err, PITH_RANGE, "positions divided by %lld, wanted 1..%d",
                         (long long)e->by, POS_MAX);
    return ready_move(s, e, a, b, 0, (int32_t)e->by, err);
}

pith_status session_divide(struct pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t by,
                           struct pith_error *err)
{
    struct edit e = {.ready = ready_divide, .seq = seq, .p0 = p0, .p1 = p1, .by = by};
    return session_edit(s, &e, err);
}

/* ---------------------------------------------------------------- more than a context holds */

/* Both are edits of the sequence and nothing else: what they give are the bits of remove, shift and
 * divide. */
pith_status context_shift(struct pith_session *s, int32_t seq, int32_t n_keep, int32_t n_discard,
                          struct pith_error *err)
{
    int32_t n = s->cache.seq[seq].n, rest = n - n_keep;
    if (rest < 2)
        return error_set(err, PITH_RANGE,
                         "a context shift that keeps %d of %d positions leaves nothing to discard; "
                         "keep fewer or open the session with a larger context",
                         n_keep, n);
    if (!n_discard)
        n_discard = rest / 2;
    n_discard = n_discard < rest ? n_discard : rest - 1; /* the last one stays: it was just made */
    return session_close_up(s, seq, n_keep, n_keep + n_discard, err);
}

/* Group i holds tokens [i * ga_w, (i + 1) * ga_w) at positions [i * ga_w / ga_n, (i + 1) * ga_w /
 * ga_n) once it has been divided; the tokens after the groups follow at positions of their own. */
int64_t self_extend_room(const struct pith_session *s, int32_t seq, int32_t ga_n, int32_t ga_w,
                         int64_t groups)
{
    int64_t end = groups * (ga_w / ga_n) + ga_w;
    return end - cache_next(&s->cache.seq[seq], s->cache.seq[seq].n);
}

pith_status self_extend(struct pith_session *s, int32_t seq, int32_t ga_n, int32_t ga_w,
                        int64_t *groups, struct pith_error *err)
{
    pith_status st = PITH_OK;
    while (st == PITH_OK && self_extend_room(s, seq, ga_n, ga_w, *groups) <= 0) {
        int64_t from = *groups * (ga_w / ga_n), token = *groups * ga_w, end = token + ga_w;
        st = session_shift(s, seq, from, -1, token - from, err);
        if (st == PITH_OK)
            st = session_divide(s, seq, token, end, ga_n, err);
        if (st == PITH_OK)
            st = session_shift(s, seq, end, -1, from + ga_w / ga_n - end, err);
        ++*groups;
    }
    return st;
}

/* ---------------------------------------------------------------- what it holds */

int64_t session_position(const struct pith_session *s, int32_t seq, int last)
{
    if (seq < 0 || seq >= s->n_seq || !s->cache.seq[seq].n)
        return -1;
    return cache_pos(&s->cache.seq[seq], last ? s->cache.seq[seq].n - 1 : 0);
}

uint64_t session_cache_bytes(const struct pith_session *s, int64_t n)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < s->n_states; i++) {
        const struct state *k = &s->states[i];
        if (k->group < 0 || k->group >= s->cache.n_own)
            continue;
        int64_t w = state_reach(k->range, k->span), seen = w && n > w ? w : n;
        bytes += (uint64_t)seen * (uint64_t)(k->n_head_kv * (k->k_head + k->v_head)) / STEP_PAGE;
    }
    return bytes;
}
