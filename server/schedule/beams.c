/* beams.c -- beam search: the choices of a request are its beams, texts of the same length that
 * grow by a token at a time.
 *
 *     choice 0: prompt -> best tokens of its row    all others are parked until there is a beam for
 *         each: parked, with its best tokens           them
 *     all that go on are parked: the best of all their best tokens are the beams from there on
 *         an end token: a text that is found; its beam goes no further by it
 *         the first use of a beam stays where it is, a further one takes an idle choice and shares
 *             what was computed (take_over)
 *     the search is over: choice k says the k-th best of what was found, as if it had been drawn,
 *         some of its tokens between any two steps
 *
 * A parked branch needs no sequence: it gives it up where one of its own has none, so beams that do
 * not fit into the cache together take turns. Bits do not depend on it. Texts are ranked by the sum
 * of their log-probabilities divided by length ** length_penalty; the end token is one of them. */
#include <stdlib.h>
#include <string.h>

#include "server/hosted.h"
#include "server/json.h"
#include "server/parts.h"
#include "server/schedule/beside.h"
#include "server/schedule/lines.h"

#define TOLD_OF_GAP 0.1 /* what rows leave of it */

/* The branches of a request by their choices; how many. */
static int branches_of(const struct sched *s, const struct request *r, struct branch **all)
{
    int n = 0;
    for (struct branch *b = s->share[r->tenant->index].first; b; b = b->next) {
        if (b->r != r)
            continue;
        all[b->choice] = b;
        n++;
    }
    return n;
}

/* However many requests there are, each branch is looked at twice. */
void beams_settle(struct sched *s)
{
    double looked = 0;
    int some = 0;
    for (struct request *r = s->all; r; r = r->next) {
        r->beams_wait = 0;
        some |= r->beams;
    }
    for (int i = 0; some && i < s->n_shares; i++)
        for (struct branch *b = s->share[i].first; b; b = b->next, looked++)
            if (b->r->beams && !b->parked && b->seq < 0)
                b->r->beams_wait = 1;
    for (int i = 0; some && i < s->n_shares; i++)
        for (struct branch *b = s->share[i].first; b; b = b->next, looked++)
            if (b->parked && b->r->beams_wait)
                branch_release(s, b);
    if (some)
        metrics_add(s->hosted->metrics, M_LOOKS, looked);
}

/* ---------------------------------------------------------------- the end */

/* Nothing that goes on gets among the best of what was found. best: the sum of the most probable
 * one, of n tokens. */
static int is_over(const struct sched *s, const struct request *r, double best, int64_t n)
{
    const struct found *f = r->found;
    int64_t room = s->n_ctx + 1 - r->n_prompt, most = r->n_max > 0 && r->n_max < room ? r->n_max
                                                                                     : room;
    if (f->n < r->n)
        return 0;
    if (r->early_stopping == BEAMS_NEVER && r->length_penalty > 0)
        n = most;
    return r->early_stopping == BEAMS_EARLY || line_score(r, best, n) <= f->score[f->n - 1];
}

/* From here on choice k says the k-th best text, between steps (beams_tell). */
static void finish(struct sched *s, const struct request *r)
{
    struct branch *all[BEAMS_MAX];
    int n = branches_of(s, r, all);
    for (int k = 0; k < n; k++) {
        branch_release(s, all[k]);
        all[k]->parked = 1;
        all[k]->n = r->n_prompt;
        all[k]->n_made = 0;
    }
    r->found->is_told = 1;
}

/* One token, or the end of a text. 0: it was the last of its request, which is no more. */
static int tell_next(struct sched *s, struct request *r)
{
    struct found *f = r->found;
    const struct line *l = f->choice < f->n ? &f->line[f->choice] : NULL;
    struct branch *b = s->share[r->tenant->index].first;
    int ended = 1, is_last = r->n_open == 1;
    while (b->r != r || b->choice != f->choice)
        b = b->next;
    if (l && f->at < l->n) {
        const struct kept *t = line_at(r, l, f->at++);
        struct token_info info = {
            .id = t->id, .logprob = t->logprob, .top = t->top, .n_top = t->n_top};
        ended = branch_take(s, b, &info);
    } else {
        branch_end(s, b, "length");
    }
    if (ended && is_last)
        return 0;
    if (ended) {
        f->choice++;
        f->at = 0;
    }
    return 1;
}

/* Of the key that was served least, the search that was begun first; NULL: none is told. */
static struct request *to_tell(const struct sched *s)
{
    struct request *best = NULL;
    for (struct request *r = s->all; r; r = r->next) {
        if (!r->found || !r->found->is_told)
            continue;
        double served = s->share[r->tenant->index].served,
               least = best ? s->share[best->tenant->index].served : 0;
        if (!best || served < least || (served == least && r->number < best->number))
            best = r;
    }
    return best;
}

void beams_tell(struct sched *s)
{
    enum { LEAST = 4 };
    struct request *r = to_tell(s);
    s->tells = r != NULL;
    if (!r)
        return;
    struct tenant *who = r->tenant;
    int64_t began = beside_thread_ns(), now = began,
            most = (int64_t)(1e9 * TOLD_OF_GAP * server_told(s->hosted->server)->gap);
    for (int i = 0; i < LEAST || now - began < most; i++) {
        int more = tell_next(s, r);
        now = beside_thread_ns();
        if (!more)
            break;
    }
    atomic_fetch_add(&who->account.sample_ns, now - began);
}

/* ---------------------------------------------------------------- a step of the search */

static int by_sum(const void *p, const void *q)
{
    const struct way *a = p, *b = q;
    if (a->sum != b->sum)
        return a->sum < b->sum ? 1 : -1;
    if (a->from->choice != b->from->choice)
        return a->from->choice - b->from->choice;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Every way from the beams, the best first. */
static int ways_of(struct branch *const *all, int n, struct way *ways)
{
    int n_ways = 0;
    for (int i = 0; i < n; i++) {
        const struct beam *m = all[i]->beam;
        for (int k = 0; k < m->n_best; k++)
            ways[n_ways++] = (struct way){all[i], m->best[k].id, m->best[k].logprob,
                                          m->line.sum + (double)m->best[k].logprob};
    }
    qsort(ways, (size_t)n_ways, sizeof *ways, by_sum);
    return n_ways;
}

/* `to` is the same text as `from`, and has what was computed of it where there is room. */
static int copy(struct sched *s, struct branch *to, struct branch *from)
{
    struct request *r = to->r;
    branch_release(s, to);
    if (!line_copy(r, &to->beam->line, &from->beam->line))
        return 0;
    memcpy(to->beam->best, from->beam->best, sizeof to->beam->best);
    to->beam->n_best = from->beam->n_best;
    to->n = r->n_prompt;
    for (int64_t i = 0; i < from->beam->line.n; i++)
        if (!branch_put(to, line_at(r, &from->beam->line, i)->id))
            return 0;
    if (from->seq >= 0)
        take_over(s, to, from);
    return 1;
}

/* The ways become the beams; who has none is idle. */
static int go_on(struct sched *s, struct branch **all, int n, const struct way *ways, int n_ways)
{
    struct branch *to[BEAMS_MAX];
    int used[BEAMS_MAX] = {0}, idle = 0;
    for (int k = 0; k < n_ways; k++) {
        int first = !used[ways[k].from->choice]++;
        to[k] = first ? ways[k].from : NULL;
    }
    for (int k = 0; k < n_ways; k++) {
        if (to[k])
            continue;
        while (used[idle])
            idle++;
        to[k] = all[idle++];
        if (!copy(s, to[k], ways[k].from))
            return 0;
    }
    for (int i = 0; i < n; i++)
        all[i]->parked = 1;
    for (int k = 0; k < n_ways; k++) {
        struct branch *b = to[k];
        if (!line_put(b->r, &b->beam->line, b->beam, &ways[k]) || !branch_put(b, ways[k].id))
            return 0;
        b->parked = 0;
    }
    for (int i = 0; i < n; i++) {
        all[i]->n_made++;
        all[i]->beam->n_best = 0;
        if (all[i]->parked)
            branch_release(s, all[i]);
    }
    return 1;
}

/* All that go on are parked, and have so many tokens with the next one. 0: out of memory. */
static int choose(struct sched *s, struct request *r, struct branch **all, int n, int64_t length)
{
    struct way ways[BEAMS_MAX * TOP_MAX], next[BEAMS_MAX];
    int n_ways = ways_of(all, n, ways), n_next = 0;
    int full = length == r->n_max || r->n_prompt + length > s->n_ctx;
    for (int k = 0; k < n_ways; k++) {
        int ends = branch_ends(s, r, ways[k].id);
        if (ends || (full && n_next < r->n)) {
            if (!found_put(r, ways[k].from->beam, &ways[k]))
                return 0;
        } else if (!full && n_next < r->n) {
            next[n_next] = ways[k];
        }
        n_next += !ends;
    }
    n_next = n_next < r->n ? n_next : r->n;
    if (full || !n_next || is_over(s, r, next[0].sum, length)) {
        finish(s, r);
        return 1;
    }
    if (!go_on(s, all, n, next, n_next))
        return 0;
    request_grows(r); /* what its lines have */
    return 1;
}

void beam_take(struct sched *s, struct branch *b, const struct pith_logprob *best, int n)
{
    struct branch *all[BEAMS_MAX];
    struct request *r = b->r;
    struct fault f = {0};
    request_begins(s, r, clock_now());
    b->beam->n_best = n;
    memcpy(b->beam->best, best, (size_t)n * sizeof *best);
    b->parked = 1;
    int n_all = branches_of(s, r, all), runs = 0;
    for (int i = 0; i < n_all; i++)
        runs |= !all[i]->parked;
    if (runs)
        return;
    if (choose(s, r, all, n_all, b->n_made + 1))
        return;
    fault_memory(&f);
    request_fail(s, r, &f);
}
