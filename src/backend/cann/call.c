/* call.c -- how calls of CANN end, and which of them tests make fail: see cann.h. */
#include "backend/cann/cann_impl.h"

#include <string.h>

struct acl_functions acl;

static _Atomic(uint64_t) n_calls, fail_at, lose_at, scores;

void cann_plan(const struct cann_plan *p)
{
    n_calls = 0;
    fail_at = p->fail_at;
    lose_at = p->lose_at;
    scores = p->scores;
}

int64_t cn_most(void)
{
    return scores ? (int64_t)scores : CN_MOST;
}

uint64_t cann_calls(void)
{
    return n_calls;
}

/* The first line of what the library says about it. */
static int says(const char *text)
{
    return (int)strcspn(text, "\n");
}

pith_status cn_check(struct cn_npu *v, acl_error r, const char *what, struct pith_error *err)
{
    if (r == ACL_OK)
        return PITH_OK;
    if (r == ACL_NO_MEMORY || r == ACL_NO_ROOM)
        return error_set(err, PITH_NOMEM, "%s: %s: out of device memory", v->dev.name, what);
    const char *why = acl.last_error ? acl.last_error() : NULL;
    int n = why ? says(why) : 0;
    if (r >= ACL_FIRST_FAULT && r <= ACL_LAST_FAULT) {
        atomic_store(&v->dev.lost, 1);
        return error_set(err, PITH_DEVICE, "%s: %s: the device is lost (CANN error %d%s%.*s)",
                         v->dev.name, what, r, n ? ": " : "", n < 100 ? n : 100, n ? why : "");
    }
    return error_set(err, PITH_DEVICE, "%s: %s: CANN error %d%s%.*s", v->dev.name, what, r,
                     n ? ": " : "", n < 100 ? n : 100, n ? why : "");
}

void cn_enter(struct cn_npu *v)
{
    acl.context_set(v->context);
}

pith_status cn_call(struct cn_npu *v, const char *what, int memory, struct pith_error *err)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1;
    if (atomic_load(&v->dev.lost) || n == lose_at)
        return cn_check(v, ACL_FIRST_FAULT, what, err);
    if (n == fail_at)
        return cn_check(v, memory ? ACL_NO_MEMORY : 1, what, err);
    if (v->context)
        return cn_check(v, acl.context_set(v->context), what, err);
    return PITH_OK;
}

int cn_masked(const char *name)
{
    return gpu_masked("PITH_CANN_MASK", name);
}
