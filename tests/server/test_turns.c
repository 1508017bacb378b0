/* test_turns.c -- turns of the threads that read requests: one that does not ask whether it may go
 * on keeps nobody else waiting. The file is compiled in, what it calls stands in below; who runs
 * and who waits is counted, never timed. */
#include "server/http/work.c"
#include "server/parts.c"

#include <semaphore.h>
#include <stdarg.h>
#include <unistd.h>

#include "test.h"

struct exchange {
    struct tenant *tenant;
    sem_t go;
    int order; /* the how many-th to end */
    int calls; /* its route waits for the scheduler */
};
enum { N_KEYS = 4, MOST = 10 };
static struct tenant tenants[N_KEYS];
static struct exchange requests[N_KEYS];
static struct work *work;
static atomic_int n_begun, n_ended;
static sem_t ended;

/* ---------------------------------------------------------------- what stands in */

struct tenant *exchange_tenant(const struct exchange *x)
{
    return x->tenant;
}

const struct route *exchange_route(const struct exchange *x)
{
    static const struct route plain, calls = {.flags = ROUTE_WAITS};
    return x->calls ? &calls : &plain;
}

void exchange_hold(struct exchange *x)
{
    (void)x;
}

void exchange_drop(struct exchange *x)
{
    x->order = atomic_fetch_add(&n_ended, 1);
    sem_post(&ended);
}

int64_t exchange_deadline(const struct exchange *x)
{
    (void)x;
    return 0;
}

const atomic_int *exchange_gone(const struct exchange *x)
{
    static const atomic_int no;
    (void)x;
    return &no;
}

void account_add(struct server *s, struct tenant *t, int64_t bytes)
{
    (void)s;
    (void)t;
    (void)bytes;
}

int64_t account_room(const struct server *s, const struct tenant *t)
{
    (void)s;
    (void)t;
    return 1 << 30;
}

int account_has_room(const struct server *s, const struct tenant *t, int64_t bytes)
{
    (void)s;
    (void)t;
    (void)bytes;
    return 1;
}

int account_refuse(const struct server *s, const struct tenant *t, int64_t bytes, struct fault *f)
{
    (void)s;
    (void)t;
    (void)bytes;
    (void)f;
    return 0;
}

int64_t clock_now(void)
{
    return 1;
}

int fault_set(struct fault *f, int http, const char *code, const char *param, const char *fmt, ...)
{
    (void)f;
    (void)http;
    (void)code;
    (void)param;
    (void)fmt;
    return 0;
}

int fault_memory(struct fault *f)
{
    (void)f;
    return 0;
}

int fault_shutting_down(struct fault *f)
{
    (void)f;
    return 0;
}

/* ---------------------------------------------------------------- jobs */

static void wait_for(sem_t *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    CHECK_MSG(!sem_timedwait(s, &until), "nobody has come for a minute");
}

/* It does not look: an end to that comes from outside. */
static void deaf(struct server *s, struct exchange *x)
{
    (void)s;
    atomic_fetch_add(&n_begun, 1);
    wait_for(&x->go);
}

/* ... and then it does. */
static void deaf_then_looks(struct server *s, struct exchange *x)
{
    deaf(s, x);
    CHECK(work_goes_on());
}

static void begin(int n_turns)
{
    work = work_open(n_turns, N_KEYS, MOST);
    atomic_store(&n_begun, 0);
    atomic_store(&n_ended, 0);
    sem_init(&ended, 0, 0);
    for (int i = 0; i < N_KEYS; i++) {
        tenants[i].index = i;
        requests[i].tenant = &tenants[i];
        requests[i].calls = 0;
        sem_init(&requests[i].go, 0, 0);
    }
}

static void push(int key, void (*fn)(struct server *, struct exchange *))
{
    static struct server server;
    struct fault f;
    CHECK(work_push(work, fn, &server, &requests[key], &f));
}

static void until_begun(int n)
{
    for (int i = 0; atomic_load(&n_begun) < n && i < 60000; i++)
        usleep(1000);
    CHECK_MSG(atomic_load(&n_begun) == n, "%d have begun, wanted %d", atomic_load(&n_begun), n);
}

/* Jobs of a key that have not begun. */
static int waiting(int key)
{
    pthread_mutex_lock(&work->lock);
    int n = work->lane[key].n;
    pthread_mutex_unlock(&work->lock);
    return n;
}

static int parked(int key)
{
    pthread_mutex_lock(&work->lock);
    int n = work->lane[key].parked != NULL;
    pthread_mutex_unlock(&work->lock);
    return n;
}

static void end(void)
{
    work_stop(work);
    CHECK(work->n_running == 0 && work->n_lent == 0 && work->n_begun == 0 && !work->running);
    work_free(work);
}

/* ---------------------------------------------------------------- tests */

static void who_is_deaf_lends_his_turn(void)
{
    begin(1);
    push(0, deaf);
    until_begun(1);
    push(1, deaf);
    work_lend(work, 1 + LEND_NS - 1); /* not for long yet */
    CHECK(waiting(1) == 1);
    work_lend(work, 1 + LEND_NS);
    CHECK(waiting(1) == 0);
    until_begun(2);
    sem_post(&requests[1].go);
    wait_for(&ended);
    sem_post(&requests[0].go);
    wait_for(&ended);
    CHECK(requests[1].order == 0 && requests[0].order == 1);
    end();
}

/* A key that keeps one does not get another: what is lent is for those who have none. */
static void one_for_each_key(void)
{
    begin(1);
    push(0, deaf);
    until_begun(1);
    push(0, deaf);
    push(1, deaf);
    for (int i = 0; i < 3; i++)
        work_lend(work, 2 * (int64_t)LEND_NS);
    until_begun(2);
    CHECK(work->n_lent == 1 && work->n_running == 1 && waiting(0) == 1 && waiting(1) == 0);
    push(1, deaf);
    push(2, deaf);
    for (int i = 0; i < 3; i++)
        work_lend(work, 2 * (int64_t)LEND_NS);
    until_begun(3);
    CHECK(work->n_lent == 2 && work->n_running == 1 && waiting(1) == 1 && waiting(2) == 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            sem_post(&requests[i].go);
    for (int i = 0; i < 5; i++)
        wait_for(&ended);
    end();
}

/* He waits when he asks again while another one has it, and takes it back where it is free. */
static void it_comes_back(void)
{
    begin(1);
    push(0, deaf_then_looks);
    until_begun(1);
    push(1, deaf);
    work_lend(work, 2 * (int64_t)LEND_NS);
    until_begun(2);
    sem_post(&requests[0].go);
    for (int i = 0; !parked(0) && i < 60000; i++)
        usleep(1000);
    CHECK(parked(0) && atomic_load(&n_ended) == 0 && work->n_running == 1 && work->n_lent == 0);
    sem_post(&requests[1].go);
    wait_for(&ended);
    wait_for(&ended);
    CHECK(requests[1].order == 0 && requests[0].order == 1);

    push(0, deaf_then_looks);
    until_begun(3);
    push(1, deaf);
    work_lend(work, 2 * (int64_t)LEND_NS);
    until_begun(4);
    sem_post(&requests[1].go);
    wait_for(&ended);
    sem_post(&requests[0].go);
    wait_for(&ended);
    end();
}

/* Nobody waits: there is nobody to lend it to. */
static void nothing_is_lent_to_nobody(void)
{
    begin(2);
    push(0, deaf);
    push(1, deaf);
    until_begun(2);
    work_lend(work, 2 * (int64_t)LEND_NS);
    CHECK(work->n_lent == 0 && work->n_running == 2);
    for (int i = 0; i < 2; i++)
        sem_post(&requests[i].go);
    for (int i = 0; i < 2; i++)
        wait_for(&ended);
    end();
}

static atomic_int n_finished;

static void finishes(struct server *s, struct exchange *x)
{
    (void)s;
    (void)x;
    atomic_fetch_add(&n_finished, 1);
}

static void finishes_deaf(struct server *s, struct exchange *x)
{
    atomic_fetch_add(&n_finished, 1);
    deaf(s, x);
}

/* The lane of a key is full, and what it may begin has begun: answers are finished first, in their
 * order, and never by who brings them. */
static void answers_go_first(void)
{
    struct fault f;
    begin(MOST);
    atomic_store(&n_finished, 0);
    for (int i = 0; i < LANE_BEGUN; i++)
        push(0, deaf);
    until_begun(LANE_BEGUN);
    for (int i = 0; i < MOST; i++)
        push(0, deaf);
    CHECK(!work_push(work, deaf, NULL, &requests[0], &f));
    CHECK(work_finish(work, finishes, NULL, &requests[0]));
    wait_for(&ended);
    CHECK(atomic_load(&n_finished) == 1 && waiting(0) == MOST);
    for (int i = 0; i < MOST + LANE_FINISH; i++)
        CHECK(work_finish(work, finishes_deaf, NULL, &requests[0]));
    until_begun(LANE_FINISH);
    CHECK(atomic_load(&n_finished) == 1 + LANE_FINISH - LANE_BEGUN && waiting(0) == MOST);
    for (int i = 0; i < LANE_BEGUN + MOST + MOST + LANE_FINISH; i++)
        sem_post(&requests[0].go);
    for (int i = 0; i < LANE_BEGUN + MOST + MOST + LANE_FINISH; i++)
        wait_for(&ended);
    CHECK(atomic_load(&n_finished) == 1 + MOST + LANE_FINISH && waiting(0) == 0);
    push(0, finishes); /* the lane is in order behind them */
    wait_for(&ended);
    end();
}

/* Those that wait for the scheduler are run one at a time: a key that asks for many of them does
 * not hold up the one of another key, nor fill its place. */
static void calls_take_turns(void)
{
    struct fault f;
    begin(2);
    requests[0].calls = requests[1].calls = 1;
    push(0, deaf);
    until_begun(1);
    for (int i = 0; i < MOST; i++)
        push(0, deaf);
    CHECK(!work_push(work, deaf, NULL, &requests[0], &f));
    push(1, deaf);
    CHECK(work->waits && work->n_running == 0 && atomic_load(&n_begun) == 1);
    sem_post(&requests[0].go);
    wait_for(&ended);
    until_begun(2);
    sem_post(&requests[1].go);
    wait_for(&ended);
    CHECK_MSG(requests[1].order == 1, "the other key's call was number %d, wanted 1",
              requests[1].order);
    for (int i = 0; i < MOST; i++)
        sem_post(&requests[0].go);
    for (int i = 0; i < MOST; i++)
        wait_for(&ended);
    end();
}

int main(void)
{
    TEST(calls_take_turns);
    TEST(answers_go_first);
    TEST(who_is_deaf_lends_his_turn);
    TEST(one_for_each_key);
    TEST(it_comes_back);
    TEST(nothing_is_lent_to_nobody);
    return test_end();
}
