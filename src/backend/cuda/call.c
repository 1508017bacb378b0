/* call.c -- how calls of the driver end, and which of them tests make fail: see cuda.h. Marks in a
 * device's stream. */
#include "backend/cuda/cuda_impl.h"

struct cu_functions cu;

static _Atomic(uint64_t) n_calls, fail_at, lose_at;

void cuda_plan(const struct cuda_plan *p)
{
    n_calls = 0;
    fail_at = p->fail_at;
    lose_at = p->lose_at;
}

uint64_t cuda_calls(void)
{
    return n_calls;
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

/* ---------------------------------------------------------------- the stream */

pith_status cu_mark(struct cu_gpu *v, uint64_t *value, struct pith_error *err)
{
    uint64_t next = v->value + 1;
    pith_status st =
        cu_check(v, cu.event_record(v->mark[next % CU_MARKS], v->stream), "an event", err);
    if (st == PITH_OK)
        *value = v->value = next;
    return st;
}

pith_status cu_wait(struct cu_gpu *v, uint64_t value, struct pith_error *err)
{
    if (!value)
        return PITH_OK;
    cu_enter(v);
    return cu_check(v, cu.event_wait(v->mark[value % CU_MARKS]), "wait", err);
}

pith_status cu_fill(struct cu_gpu *v, uint64_t from, uint64_t n, struct pith_error *err)
{
    uint64_t value;
    pthread_mutex_lock(&v->lock);
    pith_status st = cu_check(v, cu.fill(from, 0, n, v->stream), "zero", err);
    if (st == PITH_OK)
        st = cu_mark(v, &value, err);
    pthread_mutex_unlock(&v->lock);
    return st;
}
