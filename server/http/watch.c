/* watch.c -- the thread that looks after those who wait. A suspended connection is not looked at by
 * libmicrohttpd, so a client that leaves would go unnoticed: poll() is asked about those that wait.
 * Besides, it writes the pulse of silent streams, shuts connections whose requests come too slowly,
 * lets the server tend to what is its own, and gives memory back when nothing is asked. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <pthread.h>
#endif

#include "server/http/http.h"
#include "server/json.h"
#include "server/parts.h"
#include "server/server.h"

enum { WATCH_MS = 50, TIDY_MS = 500 };

static int has_left(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* With the list's lock, under which no descriptor of it is closed. somebody_left: poll() has seen
 * one who has. */
static void look_at(struct exchange *x, int somebody_left, int64_t now)
{
    const struct server_params *p = server_told(x->h->s);
    pthread_mutex_lock(&x->lock);
    if (somebody_left && x->dispatched && x->suspended && x->fd >= 0 && !x->ended &&
        has_left(x->fd)) {
        atomic_store(&x->gone, 1);
        exchange_wake(x);
    } else if (x->live && x->pulse && x->begun && !x->ended &&
               now - x->spoke > x->pulse_ns) {
        exchange_put(x, x->pulse, strlen(x->pulse));
        exchange_wake(x);
    } else if (!x->dispatched && p->read_timeout > 0 &&
               (double)(now - x->began) > 1e9 * p->read_timeout && x->fd >= 0) {
        shutdown(x->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&x->lock);
}

/* The descriptors of those who wait for their answers, so that one who leaves is noticed at once.
 * Only a hint: they may be closed and opened anew by the time poll() returns. */
static nfds_t waiting(struct http *h, struct pollfd **fds, nfds_t *cap)
{
    nfds_t n = 0;
    if (*cap < (nfds_t)h->n) {
        struct pollfd *more = realloc(*fds, 2 * (size_t)h->n * sizeof *more);
        if (!more)
            return 0;
        *fds = more;
        *cap = 2 * (nfds_t)h->n;
    }
    for (struct exchange *x = h->first; x; x = x->next) {
        pthread_mutex_lock(&x->lock);
        if (x->dispatched && x->suspended && x->fd >= 0 && !x->ended && !atomic_load(&x->gone))
            (*fds)[n++] = (struct pollfd){.fd = x->fd, .events = POLLRDHUP};
        pthread_mutex_unlock(&x->lock);
    }
    return n;
}

/* What requests have freed goes back to the system when there are none: the allocator by itself
 * keeps what the largest ones took. */
static void tidy(struct http *h, int any, int64_t now)
{
    if (any) {
        h->stirred = now;
    } else if (h->stirred && now - h->stirred > (int64_t)TIDY_MS * 1000000) {
        h->stirred = 0;
#ifdef __GLIBC__
        malloc_trim(0);
#endif
    }
}

void *http_watch(void *arg)
{
    struct http *h = arg;
    struct pollfd *fds = NULL;
    nfds_t n, cap = 0;
    int somebody_left = 0;
    double most = server_told(h->s)->read_timeout;
    while (!atomic_load(&h->quit)) {
        int64_t now = clock_now();
        pthread_mutex_lock(&h->lock);
        for (struct exchange *x = h->first; x; x = x->next)
            look_at(x, somebody_left, now);
        if (most > 0) /* the next request does not come, or by single bytes */
            peers_expire(h->peers, now - (int64_t)(1e9 * most));
        n = waiting(h, &fds, &cap);
        int any = h->first != NULL;
        pthread_mutex_unlock(&h->lock);
        h->site->tend(h->s, now);
        tidy(h, any, now);
        somebody_left = poll(fds, n, WATCH_MS) > 0;
    }
    free(fds);
    return NULL;
}
