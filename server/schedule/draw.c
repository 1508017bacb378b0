/* draw.c -- from the outputs of a step to tokens: which choices draw from which output, and what
 * has been drawn, at once or from a mask that was made beside the steps (beside.c). */
#include <math.h>
#include <string.h>

#include "server/hosted.h"
#include "server/json.h"
#include "server/schedule/beside.h"

static void put_draw(struct sched *s, struct branch *b, int64_t i, int32_t out)
{
    struct request *r = b->r;
    int k = s->n_draws++, samples = i == b->n;
    s->drawn[k] = (struct drawn){b, i};
    s->draw[k] = (struct pith_draw){.size = sizeof(struct pith_draw),
                                    .output = out,
                                    .top = s->top + (size_t)k * TOP_MAX,
                                    .n_top = -1};
    if (!samples)
        s->draw[k].id = r->prompt[i];
    else if (r->n_max != 0 && !b->beam)
        s->draw[k].sampler = b->sampler;
    if (!samples)
        s->draw[k].n_top = r->n_prompt_top;
    else if (b->beam)
        s->draw[k].n_top = r->n_logprobs > 2 * r->n ? r->n_logprobs : 2 * r->n;
    else if (r->n_max != 0 && (r->n_logprobs >= 0 || r->rank))
        s->draw[k].n_top = r->n_logprobs > 0 ? r->n_logprobs : 0;
}

/* Choices and requests with the very same prompt take it over whole, and sample from the same
 * logits. Where several keys wait for this step they are no more than fit in it: the tables of a
 * sampler are made at its first draw, which takes longer than those that follow. */
static void share_prompt(struct sched *s, struct branch *b, int32_t out)
{
    int over = 0;
    for (int i = 0; over >= 0 && i < s->n_shares; i++) {
        for (struct branch *o = s->share[i].first; o && over >= 0; o = o->next) {
            if ((s->apart && o->share != b->share) || o->seq >= 0 || stands_by(o) || o->n_made ||
                o->n != b->n || !may_share(o->r, b->r) || tells_prompt(o) ||
                s->n_draws >= s->most_draws || o->r->forgets ||
                memcmp(o->token, b->token, (size_t)b->n * sizeof *b->token) != 0)
                continue;
            if ((over = take_over(s, o, b)) <= 0)
                continue;
            if (!o->choice) {
                o->r->started = clock_now();
                o->r->figures.queue_ns = o->r->started - o->r->arrived;
                o->r->figures.n_cached = o->n;
                metrics_add(s->hosted->metrics, M_PREFIX_HITS, (double)o->n);
                metrics_add(s->hosted->metrics, M_PREFIX_QUERIES, (double)o->n);
            }
            put_draw(s, o, o->n, out);
        }
    }
}

void draw_put(struct sched *s, struct branch *b, int64_t i, int32_t out)
{
    if (i == b->r->n_prompt && b->n_made == 0)
        share_prompt(s, b, out);
    put_draw(s, b, i, out);
}

/* What the samplers left for the draw that has been made. top: [TOP_MAX] */
static void take_left(struct branch *b, struct token_info *t, struct pith_logprob *top)
{
    int32_t wanted = b->r->n_logprobs < TOP_MAX ? b->r->n_logprobs : TOP_MAX,
            n = pith_sampler_left(b->sampler, NULL, top, TOP_MAX);
    pith_sampler_left_of(b->sampler, t->id, &t->logprob); /* one that was forced keeps its own */
    t->top = top;
    t->n_top = n < wanted ? n : wanted;
    while (t->n_top && !(top[t->n_top - 1].logprob > -100)) /* none of what cannot be drawn */
        t->n_top--;
}

/* The tokens that the request names, instead of the most probable ones: top [NAMED_MAX]. Of logits
 * that gave t its log-probability, or of what the samplers left. */
static void take_named(struct branch *b, const float *logits, struct token_info *t,
                       struct pith_logprob *top)
{
    const struct request *r = b->r;
    if (!r->n_named || t->id < 0 || (!logits && !r->left))
        return;
    for (int i = 0; i < r->n_named; i++) {
        top[i] = (struct pith_logprob){r->named[i], -INFINITY};
        if (r->left)
            pith_sampler_left_of(b->sampler, top[i].id, &top[i].logprob);
        else
            top[i].logprob = logits[top[i].id] - logits[t->id] + t->logprob;
    }
    t->top = top;
    t->n_top = r->n_named;
}

/* 0: no logit is a number, and the request has failed: the model cannot be what it was. */
static int has_numbers(struct sched *s, struct branch *b, const float *logits)
{
    struct fault f = {0};
    for (int32_t i = 0; logits && i < s->n_vocab; i++)
        if (isfinite(logits[i]))
            return 1;
    fault_set(&f, 500, "model_damaged", NULL,
              "the model's scores behind %lld tokens are no numbers: its weights are damaged, or "
              "its file was changed while it is in use",
              (long long)b->n);
    request_fail(s, b->r, &f);
    return 0;
}

/* Samplers and masks are what some choices cost most by. */
static void count_sampling(struct branch *b)
{
    int64_t ns = pith_sampler_time(b->sampler);
    atomic_fetch_add(&b->r->tenant->account.sample_ns, ns - b->sample_ns);
    b->sample_ns = ns;
}

/* What is told of many tokens with each one is written here, and its key is charged for the time:
 * from when, 0: for nothing. */
static int64_t begin_telling(const struct token_info *t)
{
    enum { FEW = 5 };
    return t->n_top > FEW ? beside_thread_ns() : 0;
}

static void end_telling(struct tenant *who, int64_t began)
{
    if (began)
        atomic_fetch_add(&who->account.sample_ns, beside_thread_ns() - began);
}

/* The branch, and its request, may be gone afterwards. */
static void take_told(struct sched *s, struct branch *b, const struct token_info *t)
{
    struct tenant *who = b->r->tenant;
    int64_t began = begin_telling(t);
    branch_take(s, b, t);
    end_telling(who, began);
}

static int64_t rank_of(const float *logits, int32_t n, int32_t id)
{
    int64_t rank = 1;
    for (int32_t i = 0; logits && i < n; i++)
        rank += logits[i] > logits[id];
    return rank;
}

void draw_tell(struct sched *s, int k)
{
    struct branch *b = s->drawn[k].b;
    const struct pith_draw *d = &s->draw[k];
    struct pith_logprob named[NAMED_MAX];
    count_sampling(b);
    struct token_info t = {
        .id = d->id, .logprob = d->logprob, .top = d->top, .n_top = d->n_top > 0 ? d->n_top : 0};
    if (b->beam && s->drawn[k].i == b->n) {
        beam_take(s, b, d->top, d->n_top > 0 ? d->n_top : 0);
        return;
    }
    if (t.id == PITH_TOKEN_LATER) {
        struct fault f = {0};
        if (beside_put(s, b, pith_logits(s->hosted->generate, d->output), &f))
            return;
        request_fail(s, b->r, &f);
        return;
    }
    if (s->drawn[k].i == b->n) {
        if (t.id < 0 && !has_numbers(s, b, pith_logits(s->hosted->generate, d->output)))
            return;
        if (b->r->left && d->id >= 0)
            take_left(b, &t, s->top + (size_t)k * TOP_MAX);
        take_named(b, b->r->n_named ? pith_logits(s->hosted->generate, d->output) : NULL, &t,
                   named);
        take_told(s, b, &t);
        return;
    }
    b->n_told = s->drawn[k].i;
    if (b->r->rank_prompt)
        t.rank = rank_of(pith_logits(s->hosted->generate, d->output), s->n_vocab, t.id);
    struct tenant *who = b->r->tenant;
    int64_t began = begin_telling(&t);
    request_tell(b->r, &(struct event){.kind = EV_PROMPT, .i = b->n_told, .token = &t});
    end_telling(who, began);
}

/* beside_collect: a mask has been made, or could not be. */
static void draw_masked(struct sched *s, struct branch *b, const float *logits, float *masked,
                        const struct pith_error *err)
{
    struct pith_logprob top[TOP_MAX], named[NAMED_MAX];
    struct token_info t = {.top = top};
    const struct request *r = b->r;
    if (err->code != PITH_OK) {
        struct fault f = {0};
        fault_from(&f, err, "grammar");
        request_fail(s, b->r, &f);
        return;
    }
    t.id = pith_sample_masked(b->sampler, masked);
    if (t.id < 0 && !has_numbers(s, b, logits))
        return;
    if (r->n_logprobs >= 0 || r->rank)
        t.n_top = pith_logprobs(logits, s->n_vocab, t.id, &t.logprob, top,
                                r->n_logprobs > 0 ? r->n_logprobs : 0);
    if (r->left && t.id >= 0)
        take_left(b, &t, top);
    take_named(b, logits, &t, named);
    take_told(s, b, &t);
}

void draw_collect(struct sched *s)
{
    beside_collect(s, draw_masked);
}
