/* beside.c -- a mask that is too much work for a step is made here.
 *
 *     step ──draw: later──> job {copy of the logits, position} ──this thread: mask──> done ──before
 *         the next step──> draw, token
 *
 * Its sequence keeps what it has and waits; the others go on. Keys take turns by the steps that
 * their masks took. The draw itself is made by the scheduler's thread, from the masked copy, and is
 * what it would have been. Lists are under the scheduler's lock.
 *
 * Whoever makes a mask keeps all others from the same compiled grammar, so the scheduler must not
 * need it meanwhile: no mask is begun while it draws and moves positions on (beside_hold), nor of a
 * grammar that it has yet to draw from. */
#include "server/http/account.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/schedule/beside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <pthread.h>

struct job {
    struct job *next;
    struct branch *b; /* NULL: it has ended */
    struct server *server;
    struct tenant *tenant;
    pith_grammar *grammar;
    float *logits, *masked;
    int64_t bytes; /* that the account has for them */
    atomic_int ended;
    struct pith_error err;
};
struct beside {
    pthread_t thread;
    pthread_cond_t wake;
    struct job *waits, **waits_end, *at, *done; /* at: being made */
    uint64_t *served;                           /* [n_shares] steps */
    int quit, held;
};

static void free_job(struct job *j)
{
    if (!j)
        return;
    pith_grammar_close(j->grammar);
    free(j->logits);
    free(j->masked);
    account_add(j->server, j->tenant, -j->bytes);
    free(j);
}

/* ---------------------------------------------------------------- its thread */

static int go_on(void *ctx, const struct pith_work *w)
{
    struct job *j = ctx;
    (void)w;
    return !atomic_load(&j->ended);
}

static int may_begin(const struct beside *k, const struct job *j)
{
    for (const struct job *o = k->done; o; o = o->next)
        if (pith_grammar_shares(o->grammar, j->grammar))
            return 0;
    return 1;
}

/* Of the key that was served least, the first that may be begun. NULL: there is none. */
static struct job *take(struct beside *k)
{
    struct job **best = NULL, *j;
    for (struct job **at = &k->waits; *at; at = &(*at)->next)
        if (may_begin(k, *at) &&
            (!best || k->served[(*at)->tenant->index] < k->served[(*best)->tenant->index]))
            best = at;
    if (!best)
        return NULL;
    j = *best;
    *best = j->next;
    if (!j->next)
        k->waits_end = best;
    j->next = NULL;
    return k->at = j;
}

int64_t beside_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns the steps it took; its key is charged for the time. */
static uint64_t make(struct job *j, int32_t n_vocab)
{
    struct pith_work w = PITH_WORK_INIT;
    int64_t began = beside_thread_ns();
    w.go_on = go_on;
    w.ctx = j;
    pith_work_begin(&w, NULL);
    pith_grammar_mask(j->grammar, j->masked, n_vocab, &j->err);
    pith_work_end(&w);
    atomic_fetch_add(&j->tenant->account.sample_ns, beside_thread_ns() - began);
    atomic_fetch_add(&j->tenant->account.steps, (long long)w.steps);
    return w.steps;
}

static void *run(void *arg)
{
    struct sched *s = arg;
    struct beside *k = s->beside;
    setpriority(PRIO_PROCESS, 0,
                5); /* of this thread alone: those who wait for nobody come first */
    pthread_mutex_lock(&s->lock);
    while (!k->quit) {
        struct job *j = k->held ? NULL : take(k);
        if (!j) {
            pthread_cond_wait(&k->wake, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        uint64_t steps = make(j, s->n_vocab);
        pthread_mutex_lock(&s->lock);
        k->served[j->tenant->index] += steps + 1;
        k->at = NULL;
        j->next = k->done;
        k->done = j;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---------------------------------------------------------------- the scheduler's */

static int begin(struct sched *s)
{
    struct beside *k = s->beside = calloc(1, sizeof *k);
    if (!k)
        return 0;
    k->waits_end = &k->waits;
    k->served = calloc((size_t)s->n_shares, sizeof *k->served);
    pthread_cond_init(&k->wake, NULL);
    if (k->served && !pthread_create(&k->thread, NULL, run, s))
        return 1;
    pthread_cond_destroy(&k->wake);
    free(k->served);
    free(k);
    s->beside = NULL;
    return 0;
}

int beside_put(struct sched *s, struct branch *b, const float *logits, struct fault *f)
{
    struct pith_error err = {0};
    size_t bytes = (size_t)s->n_vocab * sizeof *logits;
    struct job *j = logits && (s->beside || begin(s)) ? calloc(1, sizeof *j) : NULL;
    if (!j)
        return fault_memory(f);
    j->b = b;
    j->server = b->r->server;
    j->tenant = b->r->tenant;
    if (!account_take(j->server, j->tenant, 2 * (int64_t)bytes, 0, f)) {
        free_job(j);
        return 0;
    }
    j->bytes = 2 * (int64_t)bytes;
    j->grammar = pith_grammar_clone(b->grammar, &err);
    j->logits = malloc(bytes);
    j->masked = malloc(bytes);
    if (!j->grammar || !j->logits || !j->masked) {
        free_job(j);
        return fault_memory(f);
    }
    memcpy(j->logits, logits, bytes);
    memcpy(j->masked, logits, bytes);
    struct beside *k = s->beside;
    pthread_mutex_lock(&s->lock);
    uint64_t least = UINT64_MAX; /* who was away has saved nothing up */
    for (const struct job *o = k->waits; o; o = o->next)
        least = k->served[o->tenant->index] < least ? k->served[o->tenant->index] : least;
    if (least != UINT64_MAX && k->served[j->tenant->index] < least)
        k->served[j->tenant->index] = least;
    *k->waits_end = j;
    k->waits_end = &j->next;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&s->lock);
    b->beside = j;
    s->n_beside++;
    metrics_add(s->hosted->metrics, M_MASKS_BESIDE, 1);
    return 1;
}

void beside_forget(struct sched *s, struct branch *b)
{
    struct job *j = b->beside, *out = NULL;
    if (!j)
        return;
    struct beside *k = s->beside;
    b->beside = NULL;
    s->n_beside--;
    pthread_mutex_lock(&s->lock);
    j->b = NULL;
    atomic_store(&j->ended, 1);
    for (struct job **at = &k->waits; *at; at = &(*at)->next) {
        if (*at != j)
            continue;
        out = j;
        *at = j->next;
        if (!j->next)
            k->waits_end = at;
        break;
    }
    pthread_mutex_unlock(&s->lock);
    free_job(out);
}

void beside_hold(struct sched *s, int held)
{
    struct beside *k = s->beside;
    if (!k)
        return;
    pthread_mutex_lock(&s->lock);
    k->held = held;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&s->lock);
}

int beside_done(const struct sched *s)
{
    return s->beside && s->beside->done;
}

void beside_collect(struct sched *s, beside_draw *draw)
{
    struct beside *k = s->beside;
    if (!k)
        return;
    pthread_mutex_lock(&s->lock);
    struct job *done = k->done, *next;
    k->done = NULL;
    k->held = 1;
    pthread_mutex_unlock(&s->lock);
    for (; done; done = next) {
        struct branch *b = done->b;
        next = done->next;
        if (b) {
            b->beside = NULL;
            s->n_beside--;
            draw(s, b, done->logits, done->masked, &done->err);
        }
        free_job(done);
    }
    beside_hold(s, 0);
}

void beside_stop(struct sched *s)
{
    struct beside *k = s->beside;
    if (!k)
        return;
    pthread_mutex_lock(&s->lock);
    k->quit = 1;
    if (k->at)
        atomic_store(&k->at->ended, 1);
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(k->thread, NULL);
    for (struct job *j = k->waits, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    for (struct job *j = k->done, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    pthread_cond_destroy(&k->wake);
    free(k->served);
    free(k);
    s->beside = NULL;
}
