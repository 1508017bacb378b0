/* scheduler.c -- the scheduler: one thread that owns the sessions and runs one ragged step after
 * the other.
 *
 *     inbox -> choices of each key, in order -> compose.c: rows of a step -> pith_step -> branch.c:
 *         tokens, text, events
 *                        ^                                                                  |
 *                        +------------ until they end, leave or are preempted <-------------+
 *
 * Sequences are a pool: a choice takes one when its turn comes and gives it up when it ends, when
 * its client has left (looked at between any two steps) or when pages run out; what it has computed
 * stays in the library's prefix store as long as there is room. Nothing here waits for a client:
 * events are written into buffers of the exchanges. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <stdatomic.h>
#include <pthread.h>

#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/parts.h"
#include "server/schedule/beside.h"

struct call { /* sched_call */
    struct call *next;
    void (*fn)(void *ctx);
    void *ctx;
    int done;
};

/* ---------------------------------------------------------------- what arrives */

static void fault_of_end(const struct sched *s, struct fault *f)
{
    if (server_is_draining(s->hosted->server))
        fault_set(f, 503, "shutting_down", NULL,
                  "the server has shut down before this request came to its end");
    else
        fault_set(f, 503, "model_unloaded", NULL,
                  "the model was unloaded before this request came to its end");
}

/* In the queue: a choice each, or all inputs to embed together, which take one step after the
 * other. */
static int places(const struct request *r)
{
    return r->input_end ? 1 : r->n;
}

/* Of the lists that say how its tokens are chosen, which each choice has as well. */
static int64_t bytes_of_lists(const struct request *r)
{
    const struct pith_sampler_params *p = &r->sampler;
    int64_t n = (int64_t)sizeof *p->logit_bias * p->n_logit_bias;
    for (char **stop = r->stop; stop && *stop; stop++)
        n += 6 * (int64_t)strlen(*stop); /* with the table that it is found by */
    return n + (int64_t)sizeof(int32_t) * ((int64_t)p->n_late + p->n_dry_breakers + r->n_force +
                                           r->n_stop_ids + r->n_named);
}

int64_t request_bytes(const struct request *r, int32_t n_vocab)
{
    enum { CHOICE = 8192 };
    int64_t prompt = (int64_t)sizeof(int32_t) * r->n_prompt, lists = bytes_of_lists(r),
            only = r->sampler.n_only, bits = only ? n_vocab / 8 : 0;
    if (r->input_end)
        return prompt + r->holds;
    int64_t settings = r->settings ? (int64_t)strlen(r->settings) : 0;
    return prompt * (2 + r->n) + lists + settings + (int64_t)sizeof(int32_t) * only +
           r->n * (CHOICE + lists + bits);
}

/* What the library made for all of them is the first one's. */
static int charge(struct sched *s, struct request **r, int n, struct fault *f)
{
    struct server *server = s->hosted->server;
    for (int i = 0; i < n; i++) {
        int64_t bytes = request_bytes(r[i], s->n_vocab) + (i ? 0 : work_hand_over());
        if (!account_take(server, r[i]->tenant, bytes, 0, f))
            return 0;
        r[i]->server = server;
        r[i]->bytes = bytes;
    }
    return 1;
}

/* Here, where nobody waits for a step. */
static int make_choices(const struct sched *s, struct request **r, int n, struct fault *f)
{
    struct pith_error err = {0};
    for (int i = 0; i < n; i++)
        if (!r[i]->input_end && !branches_make(s, r[i], &err))
            return fault_from(f, &err, NULL);
    work_hand_over(); /* request_bytes has it */
    return 1;
}

/* A full queue is full for those who have filled it: a key may always have its part of it waiting.
 */
int sched_submit(struct sched *s, struct request **r, int n, struct fault *f)
{
    int n_choices = 0, ok = 0, queue = server_told(s->hosted->server)->queue;
    struct share *t = &s->share[r[0]->tenant->index];
    if (!charge(s, r, n, f) || !make_choices(s, r, n, f))
        return 0;
    for (int i = 0; i < n; i++)
        n_choices += places(r[i]);
    for (int i = 0; i < n; i++)
        hosted_keep(s->hosted); /* each lets go of it at its end */
    pthread_mutex_lock(&s->lock);
    if (server_is_draining(s->hosted->server)) {
        fault_shutting_down(f);
    } else if (s->quit) {
        fault_of_end(s, f);
    } else if (s->n_waiting + n_choices > queue && t->n_waiting + n_choices > queue / s->n_shares) {
        fault_set(
            f, 429, "queue_full", NULL,
            "%d choices are waiting and this request has %d; at most %d may wait; try again later",
            s->n_waiting, n_choices, queue);
        f->retry_after = 1 + s->n_waiting / (4 * s->parallel);
    } else {
        for (int i = 0; i < n; i++) {
            r[i]->arrived = clock_now();
            r[i]->next = NULL;
            *s->inbox_end = r[i];
            s->inbox_end = &r[i]->next;
        }
        s->n_left += n;
        s->n_waiting += n_choices;
        t->n_waiting += n_choices;
        pthread_cond_signal(&s->wake);
        ok = 1;
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n && !ok; i++)
        hosted_drop(s->hosted);
    return ok;
}

int sched_call(struct sched *s, void (*fn)(void *ctx), void *ctx)
{
    struct call c = {.fn = fn, .ctx = ctx};
    pthread_mutex_lock(&s->lock);
    int ok = !s->quit;
    if (ok) {
        c.next = s->calls;
        s->calls = &c;
        pthread_cond_signal(&s->wake);
    }
    while (ok && !c.done)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

void sched_each(struct sched *s, void (*fn)(struct request *r, void *ctx), void *ctx)
{
    for (struct request *r = s->all; r; r = r->next)
        fn(r, ctx);
}

static void start(struct sched *s, struct request *r)
{
    if (r->input_end) {
        embed_start(s, r);
        return;
    }
    r->next = s->all;
    s->all = r;
    r->figures.n_choices = r->n;
    r->figures.n_max = r->n_max;
    r->figures.temperature = (double)r->sampler.temperature;
    r->figures.top_p = (double)r->sampler.top_p;
    branches_begin(s, r);
}

/* What has arrived since the last step; sleeps when there is nothing to do. 0: the server ends. */
static int listen_up(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->inbox && !s->calls && !s->quit && !s->all && !s->embeds)
        pthread_cond_wait(&s->wake, &s->lock);
    if (!s->inbox && !s->calls && !s->quit && s->stuck && !s->embeds && !beside_done(s)) {
        struct timespec until; /* who leaves or is late is looked for meanwhile */
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 10000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
    }
    s->stuck = 0;
    struct request *r = s->inbox;
    struct call *calls = s->calls;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    s->calls = NULL;
    int quit = s->quit;
    pthread_mutex_unlock(&s->lock);
    for (struct request *next; r; r = next) {
        next = r->next;
        start(s, r);
    }
    for (struct call *next; calls; calls = next) {
        next = calls->next;
        calls->fn(calls->ctx);
        pthread_mutex_lock(&s->lock);
        calls->done = 1; /* its owner goes on, and it is no more */
        pthread_cond_broadcast(&s->idle);
        pthread_mutex_unlock(&s->lock);
    }
    return !quit;
}

/* Ends what nobody waits for any more. */
static void sweep(struct sched *s, struct request *r,
                  void (*fail)(struct sched *s, struct request *r, const struct fault *f))
{
    struct fault gone = {0}, late = {0}, over = {0};
    int64_t now = clock_now();
    fault_set(&gone, 499, "client_closed_request", NULL, "the client has left");
    fault_set(&late, 400, "deadline_exceeded", "timeout",
              "the request took longer than it was allowed to");
    for (struct request *next; r; r = next) {
        next = r->next;
        if (atomic_load(r->gone))
            fail(s, r, &gone);
        else if (r->deadline && now > r->deadline)
            fail(s, r, &late);
        else if (r->over) {
            request_over(r, &over);
            fail(s, r, &over);
        }
    }
}

/* ---------------------------------------------------------------- a step */

static void observe_disk(struct sched *s)
{
    struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
    struct metrics *m = s->hosted->metrics;
    if (!s->hosted->generate ||
        pith_session_read_ahead(s->hosted->generate, &a, NULL) != PITH_OK || !a.layers)
        return;
    metrics_set(m, M_AHEAD_LOOKED, (double)a.looked);
    metrics_set(m, M_AHEAD_ASKED, (double)a.asked);
    metrics_set(m, M_AHEAD_BYTES, (double)a.asked_bytes);
    metrics_set(m, M_AHEAD_GUESSED, (double)a.guessed);
    metrics_set(m, M_AHEAD_RIGHT, (double)a.right);
}

static void observe_queue(struct sched *s)
{
    int64_t used = 0, total = 0;
    int running = 0;
    pthread_mutex_lock(&s->lock);
    s->n_waiting = 0;
    for (int i = 0; i < s->n_shares; i++) {
        struct share *t = &s->share[i];
        t->n_waiting = 0;
        for (struct branch *b = t->first; b; b = b->next)
            b->seq < 0 ? t->n_waiting++ : running++;
    }
    for (struct request *r = s->embeds; r; r = r->next)
        s->share[r->tenant->index].n_waiting += places(r);
    for (int i = 0; i < s->n_shares; i++)
        s->n_waiting += s->share[i].n_waiting;
    metrics_set(s->hosted->metrics, M_WAITING, s->n_waiting);
    for (struct request *r = s->inbox; r; r = r->next) {
        s->share[r->tenant->index].n_waiting += places(r);
        s->n_waiting += places(r);
    }
    pthread_mutex_unlock(&s->lock);
    if (s->hosted->generate)
        pith_cache_use(s->hosted->generate, &used, &total, NULL);
    metrics_set(s->hosted->metrics, M_RUNNING, running);
    metrics_set(s->hosted->metrics, M_CACHE_USED, total ? (double)used / (double)total : 0);
    observe_disk(s);
}

static void count_step(struct sched *s)
{
    metrics_observe(s->hosted->metrics, H_ITERATION, s->n_rows);
    metrics_add(s->hosted->metrics, M_PROMPT_TOKENS, s->n_rows - s->n_decode);
    metrics_add(s->hosted->metrics, M_STEPS, 1);
}

/* Slow means of what a step takes, with all that is made of it: of one with decode rows alone, and
 * of a row of prefill beyond that. */
static void observe_time(struct sched *s, double ns)
{
    int n_prefill = s->n_rows - s->n_decode;
    if (!n_prefill) {
        double n = s->n_decode;
        s->decode_rows = s->decode_ns > 0 ? 0.8 * s->decode_rows + 0.2 * n : n;
        s->decode_ns = s->decode_ns > 0 ? 0.8 * s->decode_ns + 0.2 * ns : ns;
    } else if (n_prefill >= 16) {
        double row = (ns - (s->n_decode && s->decode_ns < ns ? s->decode_ns : 0)) / n_prefill;
        s->row_ns = s->row_ns > 0 ? 0.7 * s->row_ns + 0.3 * row : row;
    }
    metrics_add(s->hosted->metrics, M_STEP_SECONDS, 1e-9 * ns);
}

static void tell_progress(struct branch *b)
{
    struct request *r = b->r;
    struct progress p = {b->n_fed, r->n_prompt, r->figures.n_cached, clock_now() - r->started};
    if (r->progress && !b->choice && !b->n_made)
        request_tell(r, &(struct event){.kind = EV_PROGRESS, .progress = &p});
}

/* Why requests do not come to their end when the scheduler is stopped. */
static void fail_step(struct sched *s, const struct pith_error *err)
{
    struct fault f = {0};
    if (err->code == PITH_NOMEM)
        fault_set(&f, 503, "out_of_cache", NULL, "the cache cannot hold this sequence: %s",
                  err->msg);
    else if (err->code == PITH_CANCELLED)
        fault_of_end(s, &f);
    else
        fault_from(&f, err, NULL);
    for (int i = 0; i < s->n_parts; i++) /* closing branches empties their parts and draws */
        if (s->part[i].b)
            request_fail(s, s->part[i].b->r, &f);
    for (int k = 0; k < s->n_draws; k++)
        if (s->drawn[k].b)
            request_fail(s, s->drawn[k].b->r, &f);
}

/* All masks of a step together may take so much of it; what is more is made beside. */
static void bound_masks(struct sched *s)
{
    uint64_t n = 0, most = (uint64_t)server_told(s->hosted->server)->mask_steps;
    for (int k = 0; k < s->n_draws; k++)
        n += s->draw[k].sampler && s->drawn[k].b->grammar;
    for (int k = 0; k < s->n_draws; k++)
        if (s->draw[k].sampler && s->drawn[k].b->grammar)
            pith_sampler_mask_steps(s->draw[k].sampler, 1 + most / n);
}

static void deliver(struct sched *s)
{
    struct pith_error err = {0};
    int row = 0;
    int32_t out = 0;
    for (int i = 0; i < s->n_parts; i++) {
        struct part *p = &s->part[i];
        int64_t first = p->b->n_fed;
        p->b->n_fed += p->n;
        p->b->share->served += (double)p->n;
        tell_progress(p->b);
        for (int64_t k = 0; k < p->n; k++, row++)
            if (s->want[row])
                draw_put(s, p->b, first + k + 1, out++);
    }
    bound_masks(s);
    beside_hold(s, 1);
    if (pith_sample_rows(s->hosted->generate, s->draw, s->n_draws, &err) != PITH_OK)
        fail_step(s, &err);
    for (int k = 0; k < s->n_draws; k++)
        if (s->drawn[k].b)
            draw_tell(s, k);
    beside_hold(s, 0);
}

static void step(struct sched *s)
{
    struct pith_error err = {0};
    struct pith_batch batch = PITH_BATCH_INIT;
    pith_status st;
    int64_t began;
    s->n_draws = s->crowded = 0;
    s->n_read = 0;
    beams_settle(s);
    do {
        began = clock_now();
        s->read_ns = 0;
        compose(s);
        s->stuck = !s->n_rows && s->n_beside > 0 && !s->tells && !s->reader;
        if (!s->n_rows)
            return;
        batch.n = s->n_rows;
        batch.token = s->token;
        batch.seq = s->row_seq;
        batch.want = s->want;
        st = pith_step(s->hosted->generate, &batch, &err);
    } while (st == PITH_NOMEM && (s->crowded = make_room(s)));
    if (st != PITH_OK) {
        fail_step(s, &err);
        return;
    }
    count_step(s);
    deliver(s);
    observe_time(s, (double)(clock_now() - began - s->read_ns));
}

static void *run(void *arg)
{
    struct sched *s = arg;
    while (listen_up(s)) {
        sweep(s, s->all, request_fail);
        sweep(s, s->embeds, embed_fail);
        embed_step(s);
        draw_collect(s);
        beams_tell(s);
        int64_t began = clock_now();
        if (s->all && hosted_fills_in(s->hosted))
            fill_step(s);
        else
            end_long_prompts(s);
        if (s->all && !hosted_fills_in(s->hosted))
            step(s);
        s->owed = s->all && !s->stuck ? s->owed - (clock_now() - began) : 0;
        observe_queue(s);
    }
    struct fault f = {0};
    slots_give_up(s);
    fault_of_end(s, &f);
    while (s->all)
        request_fail(s, s->all, &f);
    while (s->embeds)
        embed_fail(s, s->embeds, &f);
    return NULL;
}

/* ---------------------------------------------------------------- life */

void sched_free(struct sched *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    slots_free(s);
    free(s->token);
    free(s->row_seq);
    free(s->want);
    free(s->part);
    free(s->seq);
    free(s->share);
    free(s->draw);
    free(s->drawn);
    free(s->top);
    free(s);
}

int server_sequences(int parallel)
{
    return 2 * parallel; /* those of a step, and as many that wait a step for others */
}

static int make_lists(struct sched *s)
{
    size_t n_seq = (size_t)s->n_seq,
           n_batch = (size_t)(s->n_batch > s->n_input ? s->n_batch : s->n_input),
           n_draws = (size_t)s->max_outputs + n_seq;
    s->token = calloc(n_batch, sizeof *s->token);
    s->row_seq = calloc(n_batch, sizeof *s->row_seq);
    s->want = calloc(n_batch, sizeof *s->want);
    s->part = calloc(n_seq, sizeof *s->part);
    s->seq = calloc(n_seq, sizeof *s->seq);
    s->share = calloc((size_t)s->n_shares, sizeof *s->share);
    s->draw = calloc(n_draws, sizeof *s->draw);
    s->drawn = calloc(n_draws, sizeof *s->drawn);
    s->top = calloc(n_draws, TOP_MAX * sizeof *s->top);
    for (int i = 0; s->share && i < s->n_shares; i++)
        s->share[i].salt = s->apart ? tenants_at(server_tenants(s->hosted->server), i)->secret : "";
    s->slot = calloc((size_t)s->parallel, sizeof *s->slot);
    return s->token && s->row_seq && s->want && s->part && s->seq && s->share && s->draw &&
           s->drawn && s->top && s->slot;
}

struct sched *sched_open(struct hosted *m, struct pith_error *err)
{
    struct sched *s = calloc(1, sizeof *s);
    if (!s) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the scheduler"};
        return NULL;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_cond_init(&s->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->hosted = m;
    s->inbox_end = &s->inbox;
    s->parallel = server_told(m->server)->parallel;
    s->n_seq = server_sequences(s->parallel);
    s->n_vocab = m->info.n_vocab;
    s->n_ctx = m->generate ? pith_n_ctx(m->generate) : 0;
    s->max_outputs = m->generate ? pith_max_outputs(m->generate) : 0;
    s->n_batch = SERVER_BATCH;
    s->n_embed = hosted_n_input(m);
    s->n_rank = hosted_n_pair(m);
    s->n_input = s->n_embed > s->n_rank ? s->n_embed : s->n_rank;
    s->n_shares = tenants_count(server_tenants(m->server));
    s->apart = s->n_shares > 1 && !server_told(m->server)->share_prefixes;
    if (!make_lists(s) || pthread_create(&s->thread, NULL, run, s)) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the scheduler"};
        sched_free(s);
        return NULL;
    }
    return s;
}

int sched_is_idle(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    int idle = !s->n_left;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

int sched_drain(struct sched *s, int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    pthread_mutex_lock(&s->lock);
    while (s->n_left && clock_now() < deadline)
        pthread_cond_timedwait(&s->idle, &s->lock, &until);
    int n = s->n_left;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void sched_stop(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->hosted->generate)
        pith_cancel(s->hosted->generate);
    if (s->hosted->embed)
        pith_cancel(s->hosted->embed);
    if (s->hosted->rank)
        pith_cancel(s->hosted->rank);
    pthread_join(s->thread, NULL);
    beside_stop(s);
}
