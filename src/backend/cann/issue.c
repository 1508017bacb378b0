/* issue.c -- operators, one after the other: see cann_impl.h. */
#include "backend/cann/cann_impl.h"

#include <stdio.h>
#include "base/unconst.h"

int cn_type(enum dtype t)
{
    return t == DT_F32    ? ACL_FLOAT
           : t == DT_F16  ? ACL_FLOAT16
           : t == DT_BF16 ? ACL_BF16
                          : -1;
}

acl_tensor *cn_tensor(struct cn_queue *q, int type, uint64_t at, int n_dims, const int64_t *dims,
                      const int64_t *strides)
{
    int64_t own[CN_MOST_DIMS], n = 1;
    if (q->st != PITH_OK)
        return NULL;
    for (int i = n_dims - 1; i >= 0 && !strides; i--) {
        own[i] = n;
        n *= dims[i];
    }
    for (int i = 0; i < n_dims && strides; i++)
        n += (dims[i] - 1) * strides[i];
    acl_tensor *t = NULL;
    if (q->n_tensors < CN_TEMPS)
        t = acl.tensor_make(dims, (uint64_t)n_dims, type, strides ? strides : own, 0, ACL_ND, &n, 1,
                            pointer_of(at));
    if (!t)
        q->st = error_set(q->err, PITH_NOMEM, "%s: no tensor can be made", q->v->dev.name);
    else
        q->tensor[q->n_tensors++] = t;
    return t;
}

acl_scalar *cn_scalar(struct cn_queue *q, float value)
{
    if (q->st != PITH_OK)
        return NULL;
    acl_scalar *s = q->n_scalars < CN_TEMPS ? acl.scalar_make(&value, ACL_FLOAT) : NULL;
    if (!s)
        q->st = error_set(q->err, PITH_NOMEM, "%s: no number can be made", q->v->dev.name);
    else
        q->scalar[q->n_scalars++] = s;
    return s;
}

void cn_drop(struct cn_queue *q)
{
    while (q->n_tensors > 0)
        acl.tensor_end(q->tensor[--q->n_tensors]);
    while (q->n_scalars > 0)
        acl.scalar_end(q->scalar[--q->n_scalars]);
    q->need = 0;
    q->executor = NULL;
}

/* Work space for what is needed. Each is twice the one before it, so there are few. */
static pith_status make_space(struct cn_queue *q, const struct buffer **out)
{
    const struct buffer *last = q->n_spaces ? &q->space[q->n_spaces - 1] : NULL;
    uint64_t bytes = last ? 2 * last->bytes : GPU_STAGE_BYTES;
    *out = last;
    if (!q->need || (last && q->need <= last->bytes))
        return PITH_OK;
    if (q->capturing || q->n_spaces == CN_SPACES)
        return error_set(q->err, PITH_UNSUPPORTED, "%s: work space would grow while recording",
                         q->v->dev.name);
    bytes = bytes > q->need ? bytes : q->need;
    struct buffer *b = &q->space[q->n_spaces];
    pith_status st = buffer_alloc(&q->v->dev, bytes, PITH_MEM_SCRATCH, b, q->err);
    q->n_spaces += st == PITH_OK;
    *out = b;
    return st;
}

/* Only one that could be used again is its maker's to end. */
static void drop_executor(acl_executor *e)
{
    if (e && acl.executor_keep && acl.executor_end && acl.executor_keep(e) == ACL_OK)
        acl.executor_end(e);
}

void cn_run(struct cn_queue *q, acl_error r,
            acl_error (*run)(void *, uint64_t, acl_executor *, acl_stream), const char *name)
{
    const struct buffer *space = NULL;
    if (q->st == PITH_OK)
        q->st = cn_check(q->v, r, name, q->err);
    if (q->st == PITH_OK)
        q->st = make_space(q, &space);
    if (q->st != PITH_OK)
        drop_executor(q->executor);
    else
        q->st = cn_check(q->v,
                         run(q->need ? space->handle : NULL, q->need, q->executor, q->stream), name,
                         q->err);
    cn_drop(q);
}

void cn_queue_deinit(struct cn_queue *q)
{
    while (q->n_spaces > 0)
        buffer_release(&q->space[--q->n_spaces]);
}
