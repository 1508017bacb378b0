/* call.c -- how calls of the driver end, and which of them tests make fail: see cuda.h. Marks in a
 * device's streams. */
#include "backend/cuda/cuda_impl.h"

#include <string.h>
#include <time.h>

#include "base/env.h"

/* How long whoever waits asks again and again, and how long it sleeps from then on where it has to
 * go on asking. */
enum { ASK_NS = 1000000, SLEEP_NS = 100000 };

struct cu_functions cu;

/* What was written without such hardware at hand, the least tried first. */
static struct gpu_levels levels = {{"wgmma,flash_wide", "mma,flash"}, 2, 0};

static _Atomic(uint64_t) n_calls, fail_at, lose_at;

void cuda_plan(const struct cuda_plan *p)
{
    n_calls = 0;
    fail_at = p->fail_at;
    lose_at = p->lose_at;
    levels.left = 0;
}

uint64_t cuda_calls(void)
{
    return n_calls;
}

int cu_without(struct device *d, int n, int for_good, const char **names)
{
    const char *tried = env_get("PITH_CUDA_TRIAL");
    return gpu_without(&levels, !tried || strcmp(tried, "0") != 0, &cu_of(d)->left, n, for_good,
                       names);
}

int cu_left_out(const struct cu_gpu *v, const char *name)
{
    return gpu_left_out(&levels, v->left, name) || cu_masked(name);
}

const char *cu_name_of(cu_result r)
{
    const char *name = NULL;
    return cu.error_name && cu.error_name(r, &name) == CU_SUCCESS && name ? name : "unknown";
}

/* After one of these nothing of its context works any more. */
static int is_lost(cu_result r)
{
    return r == CU_ECC_UNCORRECTABLE || r == CU_NVLINK_UNCORRECTABLE || r == CU_ILLEGAL_ADDRESS ||
           r == CU_LAUNCH_TIMEOUT || r == CU_CONTEXT_IS_DESTROYED || r == CU_ASSERT ||
           (r >= CU_HARDWARE_STACK && r <= CU_LAUNCH_FAILED) || r == CU_UNKNOWN;
}

pith_status cu_check(struct cu_gpu *v, cu_result r, const char *what, struct pith_error *err)
{
    if (r == CU_SUCCESS)
        return PITH_OK;
    if (r == CU_OUT_OF_MEMORY)
        return error_set(err, PITH_NOMEM, "%s: %s: out of device memory", v->dev.name, what);
    if (is_lost(r)) {
        atomic_store(&v->dev.lost, 1);
        return error_set(err, PITH_DEVICE, "%s: %s: the device is lost (%.60s)", v->dev.name, what,
                         cu_name_of(r));
    }
    return error_set(err, PITH_DEVICE, "%s: %s: CUDA error %d (%.60s)", v->dev.name, what, r,
                     cu_name_of(r));
}

void cu_enter(struct cu_gpu *v)
{
    cu.context_set(v->context);
}

pith_status cu_call(struct cu_gpu *v, const char *what, int memory, struct pith_error *err)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1;
    if (atomic_load(&v->dev.lost) || n == lose_at)
        return cu_check(v, CU_LAUNCH_FAILED, what, err);
    if (n == fail_at)
        return cu_check(v, memory ? CU_OUT_OF_MEMORY : CU_NOT_FOUND, what, err);
    if (v->context)
        return cu_check(v, cu.context_set(v->context), what, err);
    return PITH_OK;
}

/* ---------------------------------------------------------------- streams */

pith_status cu_lane_open(struct cu_gpu *v, struct cu_lane *lane, struct pith_error *err)
{
    pith_status st =
        cu_check(v, cu.stream_make(&lane->stream, CU_STREAM_NON_BLOCKING), "a stream", err);
    for (int i = 0; i < CU_MARKS && st == PITH_OK; i++)
        st = cu_check(v, cu.event_make(&lane->mark[i], CU_EVENT_NO_TIMING | CU_EVENT_BLOCKING_SYNC),
                      "an event", err);
    return st;
}

void cu_lane_close(struct cu_lane *lane)
{
    for (int i = 0; i < CU_MARKS; i++)
        if (lane->mark[i])
            cu.event_end(lane->mark[i]);
    if (lane->stream)
        cu.stream_end(lane->stream);
    *lane = (struct cu_lane){0};
}

/* Values: a lane's marks counted from 1 on, times two, and one more beside. */
pith_status cu_mark(struct cu_gpu *v, struct cu_lane *lane, uint64_t *value, struct pith_error *err)
{
    uint64_t next = lane->n + 1;
    pith_status st =
        cu_check(v, cu.event_record(lane->mark[next % CU_MARKS], lane->stream), "an event", err);
    if (st != PITH_OK)
        return st;
    lane->n = next;
    *value = next * 2 + (lane == &v->beside);
    return PITH_OK;
}

cu_event cu_mark_of(const struct cu_gpu *v, uint64_t value)
{
    return (value & 1 ? &v->beside : &v->work)->mark[value / 2 % CU_MARKS];
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static cu_result ask(cu_stream s, cu_event e)
{
    return e ? cu.event_query(e) : cu.stream_query(s);
}

/* Until the device has come to an event; e NULL: has done all that a stream was given. The host
 * asks for a while, which is the fastest and costs a core: small models' steps end within it. Then
 * it sleeps until the driver wakes it (events and contexts are made for that): tens of microseconds
 * late, beside a step of many, and the core is others' meanwhile. Where NCCL joins devices it goes
 * on asking, for all of them: what a device waits for does not come when another one has failed. */
static pith_status wait_until(struct cu_gpu *v, cu_stream s, cu_event e, struct pith_error *err)
{
    int64_t from = now();
    pith_status st = PITH_OK;
    cu_enter(v);
    cu_result r = ask(s, e);
    for (; r == CU_NOT_READY && st == PITH_OK; r = ask(s, e)) {
        if (now() - from < ASK_NS)
            continue;
        if (!v->watch) {
            r = e ? cu.event_wait(e) : cu.stream_wait(s);
            break;
        }
        st = v->watch(v, err);
        if (st == PITH_OK)
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    return st == PITH_OK ? cu_check(v, r, "wait", err) : st;
}

/* What others have broken off has come to its end, too, and is not what it should be. */
pith_status cu_wait(struct cu_gpu *v, uint64_t value, struct pith_error *err)
{
    if (!value)
        return PITH_OK;
    pith_status st = wait_until(v, NULL, cu_mark_of(v, value), err);
    return st == PITH_OK && atomic_load(&v->dev.lost) ? cu_check(v, CU_LAUNCH_FAILED, "wait", err)
                                                      : st;
}

void cu_idle(struct cu_gpu *v)
{
    if (v->beside.stream)
        wait_until(v, v->beside.stream, NULL, NULL);
    if (v->work.stream)
        wait_until(v, v->work.stream, NULL, NULL);
}

pith_status cu_fill(struct cu_gpu *v, uint64_t from, uint64_t n, struct pith_error *err)
{
    pthread_mutex_lock(&v->lock);
    pith_status st = cu_check(v, cu.fill(from, 0, n, v->work.stream), "zero", err);
    if (st == PITH_OK)
        st = cu_mark(v, &v->work, &v->zeroed, err);
    pthread_mutex_unlock(&v->lock);
    return st;
}
