/* work.c -- threads for what takes time before a request can be queued: bodies parsed, templates
 * rendered, texts tokenized, grammars compiled. The thread of HTTP never waits for any of it.
 *
 *     lane of a key:  jobs that wait ... | jobs that have begun and let others go first
 *                          \                      |
 *                           +--- the lane that has had the least time, and of it the job that has
 *                               had the least --> one of few turns
 *
 * As many jobs run at a time as there are turns (one for each of two cores). A job has a thread of
 * its own and gives its turn up as soon as one with less time waits: whatever it does asks whether
 * it may go on (pith_work of the library; json.c at allocations), which is also where it ends
 * because its client has left, its time is over, or it costs more than a request may. So many or
 * expensive requests of one key hold up nobody else, nor the cheap ones of that key. Where it has
 * not asked for long, its turn is lent to another one; then the system shares the cores out.
 *
 * Answers that are made and have to be written come here from the scheduler (work_finish). They go
 * first in their lane, however many wait there, and begin beside jobs that keep what the others may
 * begin: else the scheduler would write them itself, between two steps of all keys.
 *
 * Handlers that wait for the scheduler (ROUTE_WAITS) are run one at a time in a last lane, without
 * a turn, those of the keys one after the other. Clients that wait hold a connection each, so a
 * lane longer than connections may be is full of those that have left. */
#include <stdlib.h>
#include <time.h>
#include <pthread.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/parts.h"

enum {
    THREADS_MAX = 64,
    LANE_BEGUN = 4,     /* jobs of a key that have begun, where threads are many: with half of them
                           taken it is one */
    LANE_FINISH = 8,    /* the same for one that finishes an answer */
    SLICE_NS = 2000000, /* a lane that had so much more time than another lets it go first */
    WITHIN_NS = 10000000, /* likewise a job and another one of its lane */
    LEND_NS = 20000000,   /* the turn of a job that has not looked for so long is lent */
};

struct job {
    struct job *next;
    void (*fn)(struct server *, struct exchange *);
    struct server *s;
    struct exchange *x;
    int lane, finishes;
};

/* A job that has begun. */
struct turn {
    struct pith_work bounds;
    struct work *w;
    struct job *job;
    struct turn *next; /* of those that let others go first */
    struct turn *below, **above; /* of those that run */
    pthread_cond_t go;
    int granted;
    int lent;        /* another one has its turn */
    clockid_t clock; /* of its thread's time */
    int64_t looked; /* clock_now(), when it asked last whether it may go on */
    int64_t since, spent; /* ns of processor time: when it was looked at last; of its turns */
    int64_t json;         /* bytes of JSON */
    int64_t own;          /* bytes of work_take */
    int64_t kept;         /* bytes that are somebody else's to count now */
    int64_t told;         /* bytes that the account knows of */
    int64_t room;         /* bytes that it may have */
    enum { GOES_ON, TOO_LONG, TOO_LARGE, HAS_LEFT, TOO_LATE } stop;
    struct fault why; /* it was stopped, once somebody has asked */
    int answers;      /* what is allocated from now on is the answer to that */
};
static _Thread_local struct turn *turn_now;

struct lane {
    struct job *first, **others, **end; /* others: behind those that finish */
    struct turn *parked;
    int n, n_begun, n_running; /* n: of the others */
    struct job *call, **calls_end; /* those of its key that wait for the scheduler */
    int n_calls;
    int64_t used; /* ns of turns; not less than others had when it came back */
};

struct work {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread[THREADS_MAX];
    int n_threads, n_idle, n_turns, quit;
    int n_begun, n_running;         /* jobs; those that have a turn */
    int n_lent;                     /* those that run while another has theirs */
    struct turn *running;           /* both of these */
    int most;                       /* jobs in a lane */
    int waits;                      /* a job of the last lane runs */
    int called;                     /* the key that had the last one */
    struct job *ready, **ready_end; /* to be run by the next thread that is free */
    int n;
    struct lane lane[];
};

/* ---------------------------------------------------------------- who is next */

static int may_begin(const struct work *w, const struct lane *l)
{
    int limit = w->n_begun >= THREADS_MAX / 2           ? 1
                : l->first && l->first->finishes ? LANE_FINISH
                                                 : LANE_BEGUN;
    return l->first && l->n_begun < limit &&
           w->n_begun < THREADS_MAX - 1; /* one is for those that wait for the scheduler */
}

/* Of a lane: the one that let others go first and has had the least time, NULL: none. */
static struct turn **least_of(struct lane *l)
{
    struct turn **least = NULL;
    for (struct turn **at = &l->parked; *at; at = &(*at)->next)
        if (!least || (*at)->spent < (*least)->spent)
            least = at;
    return least;
}

/* The lane that has had the least time, of those that have something to do; idle: and of which
 * nobody runs. -1: none. */
static int next_lane(const struct work *w, int idle)
{
    int best = -1;
    for (int i = 0; i < w->n - 1; i++)
        if (!(idle && w->lane[i].n_running) && (w->lane[i].parked || may_begin(w, &w->lane[i])) &&
            (best < 0 || w->lane[i].used < w->lane[best].used))
            best = i;
    return best;
}

static void ready(struct work *w, struct lane *l, struct job *j)
{
    l->n_begun++;
    w->n_begun++;
    j->next = NULL;
    *w->ready_end = j;
    w->ready_end = &j->next;
}

static void take_off(struct work *w, struct lane *l)
{
    struct job *j = l->first;
    l->first = j->next;
    if (l->others == &j->next)
        l->others = &l->first;
    if (l->end == &j->next)
        l->end = &l->first;
    l->n -= !j->finishes;
    ready(w, l, j);
}

/* The next key that has a job which waits for the scheduler has its turn. */
static void take_call(struct work *w)
{
    int n_keys = w->n - 1;
    for (int i = 1; i <= n_keys && !w->waits; i++) {
        int k = (w->called + i) % n_keys;
        struct lane *l = &w->lane[k];
        struct job *j = l->call;
        if (!j)
            continue;
        l->call = j->next;
        if (!l->call)
            l->calls_end = &l->call;
        l->n_calls--;
        w->called = k;
        w->waits = 1;
        ready(w, &w->lane[n_keys], j);
    }
}

static void *run(void *work);

/* With the lock. */
static void give_turn(struct work *w, struct lane *l)
{
    l->n_running++;
    w->n_running++;
    if (may_begin(w, l)) { /* it has had no time yet */
        take_off(w, l);
        return;
    }
    struct turn **at = least_of(l), *t = *at;
    *at = t->next;
    t->granted = 1;
    pthread_cond_signal(&t->go);
}

/* With the lock. Gives out the turns that are free. */
static void give_turns(struct work *w)
{
    int n_ready = 0;
    for (int i; w->n_running < w->n_turns && (i = next_lane(w, 0)) >= 0;)
        give_turn(w, &w->lane[i]);
    take_call(w);
    for (struct job *j = w->ready; j; j = j->next)
        n_ready++;
    for (; n_ready > w->n_idle && w->n_threads < THREADS_MAX &&
           !pthread_create(&w->thread[w->n_threads], NULL, run, w);
         n_ready--)
        w->n_threads++;
    if (w->ready)
        pthread_cond_broadcast(&w->wake);
}

static int64_t time_of(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* With the lock, on any thread: the time since it was looked at last. */
static void count_time(struct turn *t)
{
    struct lane *l = &t->w->lane[t->job->lane];
    int64_t now = time_of(t->clock), ns = now - t->since;
    t->since = now;
    t->spent += ns;
    l->used += ns;
    atomic_fetch_add(&exchange_tenant(t->job->x)->account.work_ns, ns);
}

/* With the lock: somebody else should have its turn. */
static int gives_way(const struct turn *t)
{
    struct work *w = t->w;
    int i = next_lane(w, 0);
    struct lane *mine = &w->lane[t->job->lane], *other = i >= 0 ? &w->lane[i] : NULL;
    if (!other)
        return 0;
    if (other != mine)
        return other->used + SLICE_NS < mine->used;
    struct turn **least = least_of(mine);
    return (may_begin(w, mine) ? 0 : (*least)->spent) + WITHIN_NS < t->spent;
}

/* With the lock, where a thread begins or ends to run its job. */
static void runs(struct turn *t)
{
    struct work *w = t->w;
    t->looked = clock_now();
    t->below = w->running;
    t->above = &w->running;
    if (t->below)
        t->below->above = &t->below;
    w->running = t;
}

static void rests(struct turn *t)
{
    struct work *w = t->w;
    *t->above = t->below;
    if (t->below)
        t->below->above = t->above;
    w->lane[t->job->lane].n_running--;
    if (t->lent)
        w->n_lent--;
    else
        w->n_running--;
    t->lent = 0;
}

static void let_others(struct turn *t)
{
    struct work *w = t->w;
    pthread_mutex_lock(&w->lock);
    count_time(t);
    if (t->job->lane == w->n - 1) { /* it runs without a turn */
        pthread_mutex_unlock(&w->lock);
        return;
    }
    t->looked = clock_now();
    if (t->lent && w->n_running < w->n_turns) { /* it has been given back */
        t->lent = 0;
        w->n_lent--;
        w->n_running++;
    }
    if (t->lent || gives_way(t)) {
        struct lane *l = &w->lane[t->job->lane];
        rests(t);
        t->next = l->parked;
        l->parked = t;
        t->granted = 0;
        give_turns(w);
        while (!t->granted)
            pthread_cond_wait(&t->go, &w->lock);
        runs(t);
    }
    pthread_mutex_unlock(&w->lock);
}

void work_lend(struct work *w, int64_t now)
{
    pthread_mutex_lock(&w->lock);
    for (struct turn *t = w->running; t && next_lane(w, 1) >= 0; t = t->below) {
        if (t->lent || now - t->looked < LEND_NS)
            continue;
        count_time(t);
        t->lent = 1;
        w->n_lent++;
        w->n_running--;
        give_turn(w, &w->lane[next_lane(w, 1)]);
    }
    give_turns(w); /* threads for those who begin */
    pthread_mutex_unlock(&w->lock);
}

/* ---------------------------------------------------------------- bounds */

static void tell_bytes(struct turn *t)
{
    int64_t held = t->bounds.held_bytes + t->json + t->own - t->kept;
    held = held > 0 ? held : 0;
    account_add(t->job->s, exchange_tenant(t->job->x), held - t->told);
    t->told = held;
}

/* From time to time: 0, it ends here. */
static int goes_on(struct turn *t)
{
    if (t->stop || t->answers)
        return !t->stop;
    tell_bytes(t);
    let_others(t);
    double most = server_told(t->job->s)->request_seconds;
    if (atomic_load(exchange_gone(t->job->x)))
        t->stop = HAS_LEFT;
    else if (t->bounds.deadline && clock_now() > t->bounds.deadline)
        t->stop = TOO_LATE;
    else if (most > 0 && 1e-9 * (double)t->spent > most)
        t->stop = TOO_LONG;
    else if (t->told > t->room || !account_has_room(t->job->s, exchange_tenant(t->job->x), 0))
        t->stop = TOO_LARGE;
    return !t->stop;
}

static int on_look(void *ctx, const struct pith_work *bounds)
{
    (void)bounds;
    return goes_on(ctx);
}

static int take_json(size_t bytes, int taken)
{
    enum { LOOK_BYTES = 64 << 10 };
    struct turn *t = turn_now;
    if (!t)
        return 1;
    int64_t before = t->json / LOOK_BYTES;
    t->json += taken ? (int64_t)bytes : -(int64_t)bytes;
    if (t->answers || !taken)
        return 1;
    return !t->stop && (t->json / LOOK_BYTES == before || goes_on(t));
}

int work_goes_on(void)
{
    return !turn_now || turn_now->answers || goes_on(turn_now);
}

int work_was_stopped(void)
{
    return turn_now && (turn_now->stop || turn_now->bounds.stop != PITH_WORK_GOES_ON);
}

struct turn *work_leave(void)
{
    struct turn *t = turn_now;
    turn_now = NULL;
    return t;
}

void work_return(struct turn *t)
{
    turn_now = t;
}

void work_deadline(int64_t deadline)
{
    if (turn_now)
        turn_now->bounds.deadline = deadline;
}

int64_t work_hand_over(void)
{
    struct turn *t = turn_now;
    int64_t held = t ? t->bounds.held_bytes - t->kept : 0;
    if (!t)
        return 0;
    t->own = 0;
    t->kept += held > 0 ? held : 0;
    tell_bytes(t);
    return held > 0 ? held : 0;
}

int work_take(int64_t bytes, struct fault *f)
{
    struct turn *t = turn_now;
    if (!t)
        return 1;
    t->own += bytes;
    if (goes_on(t))
        return 1;
    fault_memory(f); /* says why it ends */
    t->own -= bytes;
    return 0;
}

void work_give(int64_t bytes)
{
    struct turn *t = turn_now;
    if (t)
        t->own = bytes < t->own ? t->own - bytes : 0;
}

/* A stop is not undone by whoever asks for its reason: all that follows ends, too, until the answer
 * is made. */
static int why(struct fault *f)
{
    struct turn *t = turn_now;
    if (!t || t->answers)
        return 0;
    if (t->why.http) {
        *f = t->why;
        return 1;
    }
    if (!t->stop && t->bounds.stop == PITH_WORK_LATE)
        t->stop = TOO_LATE;
    if (!t->stop && t->bounds.stop == PITH_WORK_BYTES)
        t->stop = TOO_LARGE;
    if (!t->stop)
        return 0;
    switch (t->stop) {
    case TOO_LONG:
        fault_set(f, 400, "request_too_expensive", NULL,
                  "reading this request takes more than %g seconds, which is --request-seconds; "
                  "ask for less at a time",
                  server_told(t->job->s)->request_seconds);
        break;
    case TOO_LARGE: {
        int64_t most = server_told(t->job->s)->request_memory;
        int64_t needs = t->told > t->room ? t->told : t->room + 1;
        if (t->bounds.stop != PITH_WORK_BYTES && t->told <= t->room)
            needs = t->told; /* others have come meanwhile */
        account_add(t->job->s, exchange_tenant(t->job->x), -t->told); /* as it was before it came */
        account_refuse(t->job->s, exchange_tenant(t->job->x),
                       needs > most && t->room < most ? most : needs, f);
        account_add(t->job->s, exchange_tenant(t->job->x), t->told);
        break;
    }
    case HAS_LEFT:
        fault_set(f, 499, "client_closed_request", NULL, "the client has left");
        break;
    case TOO_LATE:
    case GOES_ON:
    default:
        fault_set(f, 400, "deadline_exceeded", "timeout",
                  "the request took longer than it was allowed to");
    }
    t->why = *f;
    return 1;
}

static void answers(void)
{
    if (turn_now)
        turn_now->answers = 1;
}

const struct json_bounds work_bounds = {take_json, work_goes_on, why, answers};

/* ---------------------------------------------------------------- running */

static void do_job(struct work *w, struct job *j)
{
    struct turn t = {.bounds = PITH_WORK_INIT, .w = w, .job = j};
    struct tenant *who = exchange_tenant(j->x);
    pthread_cond_init(&t.go, NULL);
    pthread_getcpuclockid(pthread_self(), &t.clock);
    t.since = time_of(t.clock);
    exchange_hold(j->x);
    int takes_turns = j->lane < w->n - 1;
    if (takes_turns) {
        pthread_mutex_lock(&w->lock);
        runs(&t);
        pthread_mutex_unlock(&w->lock);
    }
    t.room = account_room(j->s, who);
    t.bounds.max_bytes = (uint64_t)t.room + 1;
    t.bounds.deadline = exchange_deadline(j->x);
    t.bounds.go_on = on_look;
    t.bounds.ctx = &t;
    turn_now = &t;
    pith_work_begin(&t.bounds, NULL);
    j->fn(j->s, j->x);
    pith_work_end(&t.bounds);
    atomic_fetch_add(&who->account.steps, (long long)t.bounds.steps);
    turn_now = NULL;
    account_add(j->s, who, -t.told);
    pthread_mutex_lock(&w->lock);
    count_time(&t);
    if (takes_turns)
        rests(&t);
    else
        w->waits = 0;
    pthread_mutex_unlock(&w->lock);
    exchange_drop(j->x);
    pthread_cond_destroy(&t.go);
}

static void *run(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct job *j = w->ready;
        int queued = 0;
        if (j) {
            w->ready = j->next;
            if (!w->ready)
                w->ready_end = &w->ready;
            pthread_mutex_unlock(&w->lock);
            do_job(w, j);
            pthread_mutex_lock(&w->lock);
            w->n_begun--;
            w->lane[j->lane].n_begun--;
            free(j);
            give_turns(w);
            continue;
        }
        for (int i = 0; i < w->n; i++)
            queued |= w->lane[i].first || w->lane[i].call;
        if (w->quit && !queued && !w->n_begun)
            break;
        w->n_idle++;
        pthread_cond_wait(&w->wake, &w->lock);
        w->n_idle--;
    }
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct work *work_open(int n_turns, int n_keys, int most)
{
    struct work *w = calloc(1, sizeof *w + (size_t)(n_keys + 1) * sizeof w->lane[0]);
    if (!w)
        return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->most = most;
    w->n_turns = n_turns;
    w->n = n_keys + 1;
    w->ready_end = &w->ready;
    for (int i = 0; i < w->n; i++) {
        w->lane[i].others = w->lane[i].end = &w->lane[i].first;
        w->lane[i].calls_end = &w->lane[i].call;
    }
    while (w->n_threads < n_turns && !pthread_create(&w->thread[w->n_threads], NULL, run, w))
        w->n_threads++;
    if (!w->n_threads) {
        work_free(w);
        return NULL;
    }
    return w;
}

/* With the lock. Who was away has saved nothing up, and owes nothing: he begins as the least of
 * those who are here, where nobody is as the most of those who were. */
static void come_back(struct work *w, struct lane *l)
{
    int64_t least = -1, most = 0;
    for (int i = 0; i < w->n - 1; i++) {
        const struct lane *o = &w->lane[i];
        most = o->used > most ? o->used : most;
        if (o != l && (o->first || o->n_begun) && (least < 0 || o->used < least))
            least = o->used;
    }
    least = least < 0 ? most : least;
    if (!l->first && !l->n_begun && l->used < least)
        l->used = least;
}

/* With the lock. */
static void put_call(struct work *w, struct lane *l, struct job *j)
{
    j->next = NULL;
    *l->calls_end = j;
    l->calls_end = &j->next;
    l->n_calls++;
    give_turns(w);
}

/* With the lock. */
static void put(struct work *w, struct lane *l, struct job *j)
{
    struct job **at = j->finishes ? l->others : l->end;
    come_back(w, l);
    j->next = *at;
    *at = j;
    if (l->end == at)
        l->end = &j->next;
    if (j->finishes)
        l->others = &j->next;
    l->n += !j->finishes;
    give_turns(w);
}

int work_finish(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s,
                struct exchange *x)
{
    struct job *j = malloc(sizeof *j);
    if (!j)
        return 0;
    *j = (struct job){
        .fn = fn, .s = s, .x = x, .lane = exchange_tenant(x)->index, .finishes = 1};
    pthread_mutex_lock(&w->lock);
    int ok = !w->quit;
    if (ok)
        put(w, &w->lane[j->lane], j);
    pthread_mutex_unlock(&w->lock);
    if (!ok)
        free(j);
    return ok;
}

int work_push(struct work *w, void (*fn)(struct server *, struct exchange *), struct server *s,
              struct exchange *x, struct fault *f)
{
    int k = exchange_tenant(x)->index, calls = exchange_route(x)->flags & ROUTE_WAITS;
    struct lane *l = &w->lane[k];
    struct job *j = malloc(sizeof *j);
    if (!j)
        return fault_memory(f);
    *j = (struct job){.fn = fn, .s = s, .x = x, .lane = calls ? w->n - 1 : k};
    pthread_mutex_lock(&w->lock);
    int n = calls ? l->n_calls : l->n, ok = !w->quit && n < w->most;
    if (ok) {
        (calls ? put_call : put)(w, l, j);
    } else if (w->quit) {
        fault_shutting_down(f);
    } else {
        fault_set(f, 429, "queue_full", NULL,
                  "%d requests wait to be read, at most %d may; try again later", n, w->most);
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
    for (int i = 0; i < w->n_threads; i++) { /* jobs that are left may begin threads meanwhile */
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread[i], NULL);
        pthread_mutex_lock(&w->lock);
    }
    w->n_threads = 0;
    pthread_mutex_unlock(&w->lock);
}

void work_free(struct work *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
