/* alone.c -- steps of one request alone, which may take long: an input to embed or to rank, a text
 * whose masks are filled in. Whoever looks after clients ends such a step when nobody waits for it.
 */
#include "server/hosted.h"
#include "server/schedule/scheduler_impl.h"

void alone_begin(struct sched *s, struct request *r, pith_session *session)
{
    pthread_mutex_lock(&s->lock);
    s->alone = r;
    s->steps_in = session;
    pthread_mutex_unlock(&s->lock);
}

void alone_end(struct sched *s, pith_status st)
{
    pthread_mutex_lock(&s->lock);
    if (st == PITH_CANCELLED && !s->quit)
        pith_cancel_reset(s->steps_in);
    s->alone = NULL;
    pthread_mutex_unlock(&s->lock);
}

void sched_look(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    const struct request *r = s->alone;
    if (r && (atomic_load(r->gone) || (r->deadline && clock_now() > r->deadline)))
        pith_cancel(s->steps_in);
    pthread_mutex_unlock(&s->lock);
}
