/* extend.c -- see session.h. Both are edits of the sequence and nothing else: what they give are
 * the bits of remove, shift and divide. */
#include "run/session/session.h"

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
    return cache_close_up(&s->cache, seq, n_keep, n_keep + n_discard, err);
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
