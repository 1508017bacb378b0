/* work.c -- a few threads for what takes time before a request can be queued: bodies parsed, templates rendered, texts tokenized, grammars
 * compiled. The thread of HTTP never waits for any of it.
 *
 * Each key has a lane, and the lanes take turns, so that many or large requests of one key hold up nobody else. Handlers that wait for the
 * scheduler (ROUTE_WAITS) share a last lane, of which one at a time is run: the other threads go on meanwhile. Clients that wait hold a
 * connection each, so a lane longer than connections may be is full of those that have left. */
#include <stdlib.h>

#include "scheduler.h"

enum { THREADS_MAX = 8 };

struct job {
    struct job *next;
    void (*fn)(struct server *, struct exchange *);
    struct server *s;
    struct exchange *x;
};

struct lane {
    struct job *first, **end;
    int n;
};

struct work {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread[THREADS_MAX];
    int n_threads, quit;
    int most;    /* jobs in a lane */
    int waits;   /* a job of the last lane runs */
    int n, turn; /* turn: the lane that is looked at first */
    struct lane lane[];
};

/* With the lock. The next lane that has something to do, -1: none. */
static int next_lane(const struct work *w)
{
    for (int i = 0; i < w->n; i++) {
        int k = (w->turn + i) % w->n;
        if (w->lane[k].first && !(k == w->n - 1 && w->waits))
            return k;
    }
    return -1;
}

/* With the lock, which is let go of while the job runs. */
static void run_one(struct work *w, int k)
{
    struct lane *l = &w->lane[k];
    struct job *j = l->first;
    int waits = k == w->n - 1;
    l->first = j->next;
    if (!l->first)
        l->end = &l->first;
    l->n--;
    w->turn = k + 1;
    w->waits |= waits;
    pthread_mutex_unlock(&w->lock);
    j->fn(j->s, j->x);
    free(j);
    pthread_mutex_lock(&w->lock);
    if (waits)
        w->waits = 0;
}

static void *run(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        int k = next_lane(w);
        if (k >= 0)
            run_one(w, k); /* and whoever ends it looks for the next one, so nobody else need be woken */
        else if (!w->quit)
            pthread_cond_wait(&w->wake, &w->lock);
        else
            break;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct work *work_open(int n_threads, int n_keys, int most)
{
    struct work *w = calloc(1, sizeof *w + (size_t)(n_keys + 1) * sizeof w->lane[0]);
    if (!w)
        return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->most = most;
    w->n = n_keys + 1;
    for (int i = 0; i < w->n; i++)
        w->lane[i].end = &w->lane[i].first;
    while (w->n_threads < n_threads && w->n_threads < THREADS_MAX && !pthread_create(&w->thread[w->n_threads], NULL, run, w))
        w->n_threads++;
    if (!w->n_threads) {
        work_free(w);
        return NULL;
    }
    return w;
}

int work_push(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s, struct exchange *x, struct fault *f)
{
    int waits = exchange_route(x)->flags & ROUTE_WAITS;
    struct lane *l = &w->lane[waits ? w->n - 1 : exchange_tenant(x)->index];
    struct job *j = malloc(sizeof *j);
    if (!j)
        return fault_memory(f);
    *j = (struct job){.fn = fn, .s = s, .x = x};
    pthread_mutex_lock(&w->lock);
    int full = l->n >= w->most, ok = !w->quit && !full;
    if (ok) {
        *l->end = j;
        l->end = &j->next;
        l->n++;
        pthread_cond_signal(&w->wake);
    } else if (w->quit) {
        fault_shutting_down(f);
    } else {
        fault_set(f, 429, "queue_full", NULL, "%d requests wait to be read, at most %d may; try again later", l->n, w->most);
        f->retry_after = 1;
    }
    pthread_mutex_unlock(&w->lock);
    if (!ok)
        free(j);
    return ok;
}

void work_stop(struct work *w)
{
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->thread[i], NULL);
    w->n_threads = 0;
}

void work_free(struct work *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
