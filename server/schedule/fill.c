/* fill.c -- texts of models that fill in masks (LLaDA, Dream): one step of one choice between two
 * looks at what has arrived. It is the turn of the key that has been served the fewest rows, and of
 * its choices that of the most urgent one whose last step is the longest ago. What a step has put
 * in for good is told like tokens that were drawn one by one.
 *
 * A sequence is a place here: as many texts are under way as --parallel says. Nothing is kept of a
 * sequence from step to step. */
#include "server/http/account.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/schedule/scheduler_impl.h"

enum { USUAL = 256 }; /* tokens of a text whose length nobody has said */

/* waiting: choices that have no place yet may have the turn, too. NULL: nobody. */
static struct branch *next_turn(const struct sched *s, int waiting)
{
    struct branch *best = NULL;
    for (int i = 0; i < s->n_shares; i++) {
        struct branch *of = NULL;
        for (struct branch *b = s->share[i].first; b; b = b->next)
            if ((b->seq >= 0 || (waiting && s->n_held < s->parallel)) &&
                (!of || b->r->priority < of->r->priority ||
                 (b->r->priority == of->r->priority && b->moved < of->moved)))
                of = b;
        if (of && (!best || of->share->served < best->share->served))
            best = of;
    }
    return best;
}

static int admit(struct sched *s, struct branch *b)
{
    struct request *r = b->r;
    int32_t q = 0;
    if (!room_for_sampler(s, b))
        return 0;
    while (s->seq[q]) /* there are more than may be held here */
        q++;
    s->seq[q] = b;
    b->seq = q;
    s->n_held++;
    b->share->n_held++;
    if (!b->choice) {
        r->figures.differs_at = -1;
        r->started = clock_now();
        r->figures.queue_ns = r->started - r->arrived;
        metrics_add(s->hosted->metrics, M_PROMPT_TOKENS, (double)r->n_prompt);
    }
    return 1;
}

/* As long as it may be, a text is masks at first. 0: it has ended. */
static int open_text(struct sched *s, struct branch *b)
{
    struct request *r = b->r;
    struct pith_fill_params p = PITH_FILL_PARAMS_INIT;
    struct pith_error err = {0};
    struct fault f = {0};
    int64_t room = s->n_ctx - r->n_prompt;
    r->cut |= r->n_max > room;
    b->truncated = r->cut; /* of each choice */
    r->n_max = r->n_max < 0 ? (room < USUAL ? room : USUAL) : r->n_max < room ? r->n_max : room;
    if (!r->n_max) {
        branch_take(s, b, &(struct token_info){.id = -1});
        return 0;
    }
    p.seq = b->seq;
    p.tokens = r->prompt;
    p.n_tokens = (size_t)r->n_prompt;
    p.n_text = (int32_t)r->n_max;
    p.sampler = b->sampler;
    b->fill = pith_fill_open(s->hosted->generate, &p, &err);
    if (!b->fill) {
        fault_from(&f, &err, "max_tokens");
        request_fail(s, r, &f);
        return 0;
    }
    int64_t bytes = (int64_t)pith_fill_bytes(b->fill);
    account_add(r->server, r->tenant, bytes);
    b->bytes += bytes;
    b->n_fed = r->n_prompt;
    return 1;
}

static void count(struct sched *s, struct branch *b, int64_t began)
{
    double n = (double)(b->r->n_prompt + b->r->n_max);
    s->now = b->share->served;
    b->share->served += n;
    b->moved = ++s->steps;
    metrics_observe(s->hosted->metrics, H_ITERATION, n);
    metrics_add(s->hosted->metrics, M_STEPS, 1);
    metrics_add(s->hosted->metrics, M_STEP_SECONDS, 1e-9 * (double)(clock_now() - began));
}

void fill_step(struct sched *s)
{
    struct branch *b = next_turn(s, 1);
    struct pith_error err = {0};
    struct fault f = {0};
    const int32_t *ids;
    int32_t n;
    if (b && b->seq < 0 && !admit(s, b))
        b = next_turn(s, 0); /* one of those that it has no room beside */
    if (!b || (!b->fill && !open_text(s, b)))
        return;
    int32_t q = b->seq;
    int64_t began = clock_now();
    alone_begin(s, b->r, s->hosted->generate);
    pith_status st = pith_fill_step(b->fill, &ids, &n, &err);
    alone_end(s, st);
    if (st == PITH_CANCELLED)
        return; /* nobody waits for it any more, or the scheduler ends: both are told there */
    if (st != PITH_OK) {
        fault_from(&f, &err, NULL);
        request_fail(s, b->r, &f);
        return;
    }
    count(s, b, began);
    for (int32_t i = 0; i < n && s->seq[q] == b; i++)
        branch_take(s, b, &(struct token_info){.id = ids[i]});
}
