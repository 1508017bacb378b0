/* edit.c -- edits of a session, and of sessions that follow those of another one, as a draft head's
 * does its decoder's: what each keeps of a sequence is of the same tokens at the same positions, so
 * an edit is of all of them. It is made ready in each, which can fail and changes nothing, and then
 * made in each, which cannot. Rows are fed to each by itself: one may be behind the other, or
 * before. What is asked of a session that follows is its own: rows that it has tried and gives up.
 */
#include "run/session/session.h"

pith_status session_can_cut(const struct pith_session *s, int32_t seq, int32_t n,
                            struct pith_error *err)
{
    if (!cache_can_resume(&s->cache, &s->cache.seq[seq], n))
        return error_set(err, PITH_STATE,
                         "layers with a window no longer hold what position %d sees; use "
                         "pith_prefix, which recomputes it",
                         n);
    if (recurrent_point(&s->recurrent, seq, n) != n)
        return error_set(err, PITH_STATE,
                         "recurrent layers hold no state after %d positions; use pith_prefix, "
                         "which recomputes it",
                         n);
    return PITH_OK;
}

/* Keeps the first n slots of a sequence, in every kind of state. */
static void cut_slots(struct pith_session *s, int32_t seq, int32_t n)
{
    if (!n)
        store_end(&s->store, &s->cache, seq);
    cache_cut(&s->cache, seq, n);
    recurrent_cut(&s->recurrent, seq, n);
}

/* The same; an emptied sequence has no memory of an encoder either. */
static void cut(struct pith_session *s, int32_t seq, int32_t n)
{
    cut_slots(s, seq, n);
    if (!n)
        cache_memory_drop(&s->cache, seq);
}

/* Makes the edit that is ready. */
static void apply(struct pith_session *s, const struct edit_plan *p)
{
    if (p->what == EDIT_COPY || p->what == EDIT_DRAFT) /* of as many tokens, maybe */
        session_forget_last(s, p->seq);
    switch (p->what) {
    case EDIT_CUT:
        cut(s, p->seq, p->at);
        break;
    case EDIT_DRAFT:
        cache_edit(&s->cache, p->seq, p->seq);
        break;
    case EDIT_COPY:
        cache_edit(&s->cache, p->seq, p->src);
        recurrent_share(&s->recurrent, p->seq, p->src, p->at);
        cache_memory_share(&s->cache, p->seq, p->src);
        break;
    case EDIT_MEMORY:
        cut_slots(s, p->seq, 0);
        cache_memory_share(&s->cache, p->seq, p->src);
        break;
    case EDIT_KEEP:
        for (int32_t q = 0; q < s->n_seq; q++)
            if (q != p->seq)
                cut(s, q, 0);
        break;
    case EDIT_NOTHING:
        break;
    }
}

pith_status session_edit(struct pith_session *s, const struct edit *asked, struct pith_error *err)
{
    struct edit e = *asked;
    e.of = s;
    pith_status st = e.ready(s, &e, err);
    if (st == PITH_OK)
        st = follow_idle(s, err);
    for (struct pith_session *f = s->followers; f && st == PITH_OK; f = f->next_follower) {
        st = e.ready(f, &e, err);
        if (st != PITH_OK)
            error_prefix(err, "a session that follows this one");
    }
    if (st != PITH_OK)
        return st;
    apply(s, &s->plan);
    for (struct pith_session *f = s->followers; f; f = f->next_follower)
        apply(f, &f->plan);
    return PITH_OK;
}

pith_status follow_check(const struct pith_session *s, const struct pith_session_params *p,
                         struct pith_error *err)
{
    const struct pith_session *leader = p->follows;
    if (!leader)
        return PITH_OK;
    if (leader->follows)
        return error_set(err, PITH_UNSUPPORTED,
                         "follows: that session follows another one; wanted that one");
    if (leader->n_seq != s->n_seq)
        return error_set(err, PITH_RANGE, "n_seq is %d, the session that it follows has %d",
                         s->n_seq, leader->n_seq);
    return PITH_OK;
}

void follow_link(struct pith_session *s, struct pith_session *leader)
{
    s->follows = leader;
    if (!leader)
        return;
    s->next_follower = leader->followers;
    leader->followers = s;
}

void follow_unlink(struct pith_session *s)
{
    struct pith_session **at = s->follows ? &s->follows->followers : NULL;
    while (at && *at != s)
        at = &(*at)->next_follower;
    if (at)
        *at = s->next_follower;
    for (struct pith_session *f = s->followers; f; f = f->next_follower)
        f->follows = NULL;
    s->followers = s->follows = NULL;
}

/* A session that cannot go back so far begins anew. */
static void cut_follower(struct pith_session *f, int32_t seq, int64_t pos)
{
    int32_t n = cache_find(&f->cache.seq[seq], pos);
    int can = session_can_cut(f, seq, n, NULL) == PITH_OK;
    struct edit_plan p = {.what = EDIT_CUT, .seq = seq, .at = can ? n : 0};
    apply(f, &p);
}

void follow_cut(struct pith_session *s, int32_t seq, int64_t pos)
{
    for (struct pith_session *f = s->followers; f; f = f->next_follower)
        for (int32_t q = seq < 0 ? 0 : seq; q < (seq < 0 ? f->n_seq : seq + 1); q++)
            cut_follower(f, q, pos);
}
