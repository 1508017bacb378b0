/* work.c -- a few threads for what takes time before a request can be queued: bodies parsed, templates rendered, texts tokenized, grammars
 * compiled. The thread of HTTP never waits for any of it. */
#include <stdlib.h>

#include "serve.h"

enum { THREADS_MAX = 8 };

struct job {
    struct job *next;
    void (*fn)(struct server *, struct exchange *);
    struct server *s;
    struct exchange *x;
};

struct work {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *first, **end;
    pthread_t thread[THREADS_MAX];
    int n_threads, quit;
};

static void *run(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct job *j = w->first;
        if (!j && w->quit)
            break;
        if (!j) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        w->first = j->next;
        if (!w->first)
            w->end = &w->first;
        pthread_mutex_unlock(&w->lock);
        j->fn(j->s, j->x);
        free(j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct work *work_open(int n_threads)
{
    struct work *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->end = &w->first;
    while (w->n_threads < n_threads && w->n_threads < THREADS_MAX && !pthread_create(&w->thread[w->n_threads], NULL, run, w))
        w->n_threads++;
    if (!w->n_threads) {
        work_free(w);
        return NULL;
    }
    return w;
}

int work_push(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s, struct exchange *x)
{
    struct job *j = malloc(sizeof *j);
    if (!j)
        return 0;
    *j = (struct job){.fn = fn, .s = s, .x = x};
    pthread_mutex_lock(&w->lock);
    int ok = !w->quit;
    if (ok) {
        *w->end = j;
        w->end = &j->next;
        pthread_cond_signal(&w->wake);
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
