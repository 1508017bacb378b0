/* ops.c -- what stands in for CANN's operators: see standin.h. Of each operator there is what the
 * backend uses, in plain C, in order; shapes and types are checked when its work space is asked
 * for, addresses when it runs. */
#include "standin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { FLOAT = 0, HALF = 1, INT32 = 3, INT64 = 9, BOOL = 12, BF16 = 27 };
enum { ABSENT = 161001 }; /* an operand is NULL: its maker had failed */
enum { SPACE = 96 }; /* bytes of work space that an operator wants, and a few for each number */

struct executor {
    struct task task;
    uint64_t bytes;
    int kept;
};
struct scalar {
    float value;
};

static double value_of(const struct scalar *s)
{
    return s ? (double)s->value : NAN;
}

/* ---------------------------------------------------------------- tensors */

SHOWN struct view *aclCreateTensor(const int64_t *dims, uint64_t n, int type,
                                     const int64_t *strides, int64_t offset, int format,
                                     const int64_t *storage, uint64_t n_storage, void *data)
{
    if (standin_fails())
        return NULL;
    struct view *t = calloc(1, sizeof *t);
    int64_t last = 0;
    t->n_dims = (int)n;
    t->type = type;
    t->data = (uintptr_t)data + (uint64_t)(offset * standin_type_bytes(type));
    for (uint64_t i = 0; i < n && i < MOST_DIMS; i++) {
        t->dims[i] = dims[i];
        t->strides[i] = strides[i];
        last += (dims[i] - 1) * strides[i];
        if (dims[i] <= 0)
            standin_fault("a dimension of nothing", "aclCreateTensor");
    }
    if (n > MOST_DIMS || format != 2 || n_storage != 1 || offset + last >= storage[0] ||
        !standin_type_bytes(type))
        standin_fault("dimensions, format, storage or type", "aclCreateTensor");
    standin.live++;
    return t;
}

SHOWN int aclDestroyTensor(const struct view *t)
{
    free((void *)(uintptr_t)t);
    standin.live--;
    return 0;
}

SHOWN struct scalar *aclCreateScalar(void *value, int type)
{
    if (standin_fails())
        return NULL;
    struct scalar *s = malloc(sizeof *s);
    if (type != FLOAT)
        standin_fault("no float", "aclCreateScalar");
    memcpy(&s->value, value, sizeof s->value);
    standin.live++;
    return s;
}

SHOWN int aclDestroyScalar(const struct scalar *s)
{
    free((void *)(uintptr_t)s);
    standin.live--;
    return 0;
}

static int64_t count(const struct view *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

/* Where it lies; NULL: not all of it is in an allocation. */
static uint8_t *lies(const struct view *t)
{
    int64_t last = 0;
    for (int i = 0; i < t->n_dims; i++)
        last += (t->dims[i] - 1) * t->strides[i];
    return standin_at(t->data, (uint64_t)((last + 1) * standin_type_bytes(t->type)));
}

static float bf16_to_float(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float half_to_float(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float x = e == 31 ? (m ? NAN : INFINITY)
              : e     ? ldexpf((float)(m + 1024), e - 25)
                      : ldexpf((float)m, -24);
    return h & 0x8000 ? -x : x;
}

/* To the nearest, ties to even. */
static uint16_t float_to_half(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);
    int e;
    if (isnan(x))
        return 0x7e00;
    if (a >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14f)
        return (uint16_t)(sign | (uint16_t)nearbyintf(a * 0x1p24f));
    frexpf(a, &e); /* a = m 2^e, m in [1/2, 1) */
    int m = (int)nearbyintf(ldexpf(a, 11 - e));
    return (uint16_t)(sign | (((e + 14) << 10) + (m - 1024)));
}

static float rounded(float x)
{
    return half_to_float(float_to_half(x));
}

static double get(const uint8_t *at, int type)
{
    float f;
    uint16_t h;
    int32_t i;
    int64_t l;
    switch (type) {
    case FLOAT:
        memcpy(&f, at, 4);
        return (double)f;
    case HALF:
        memcpy(&h, at, 2);
        return (double)half_to_float(h);
    case BF16:
        memcpy(&h, at, 2);
        return (double)bf16_to_float(h);
    case INT32:
        memcpy(&i, at, 4);
        return i;
    case INT64:
        memcpy(&l, at, 8);
        return (double)l;
    default:
        return *at;
    }
}

static void set(uint8_t *at, int type, double x)
{
    float f = (float)x;
    uint16_t h = float_to_half(f);
    if (type == FLOAT)
        memcpy(at, &f, 4);
    else if (type == HALF)
        memcpy(at, &h, 2);
    else
        *at = x != 0;
}

/* The place of number i of `like`, counted row by row, in t, which is repeated where its dimensions
 * are 1 or missing. */
static int64_t place(const struct view *t, const struct view *like, int64_t i)
{
    int64_t at = 0;
    for (int d = like->n_dims - 1; d >= 0; d--) {
        int64_t in = i % like->dims[d];
        int own = d - (like->n_dims - t->n_dims);
        i /= like->dims[d];
        if (own >= 0 && t->dims[own] > 1)
            at += in * t->strides[own];
    }
    return at;
}

static int fits(const struct view *t, const struct view *like)
{
    if (t->n_dims > like->n_dims)
        return 0;
    for (int d = 0; d < t->n_dims; d++) {
        int64_t n = like->dims[d + like->n_dims - t->n_dims];
        if (t->dims[d] != n && t->dims[d] != 1)
            return 0;
    }
    return 1;
}

static int same(const struct view *a, const struct view *b)
{
    return a->n_dims == b->n_dims && !memcmp(a->dims, b->dims, sizeof a->dims);
}

/* ---------------------------------------------------------------- executors */

static int refuse(const char *op)
{
    standin_fault("operands that it does not take", op);
    return PARAM_INVALID;
}

/* The first function of an operator, once its operands are right. */
static int plan(const struct task *t, uint64_t *bytes, struct executor **out)
{
    if (standin_fails())
        return PARAM_INVALID;
    struct executor *e = calloc(1, sizeof *e);
    e->task = *t;
    e->bytes = *bytes = SPACE + (uint64_t)count(&t->t[0]) / 8;
    *out = e;
    standin.live++;
    return 0;
}

/* The second. */
static int issue(const char *op, void *space, uint64_t bytes, struct executor *e, void *stream)
{
    int fails = standin_fails();
    if (!e || bytes != e->bytes || !standin_at((uintptr_t)space, bytes)) {
        standin_fault("an executor or work space that is not its own", op);
        return PARAM_INVALID;
    }
    e->task.space = (uintptr_t)space;
    e->task.space_bytes = bytes;
    if (!fails)
        standin_put(stream, &e->task);
    standin.operators++;
    standin.live--;
    free(e);
    return fails ? PARAM_INVALID : 0;
}

/* Of one that is not put into a stream. */
SHOWN int aclSetAclOpExecutorRepeatable(struct executor *e)
{
    e->kept = 1;
    return 0;
}

SHOWN int aclDestroyAclOpExecutor(struct executor *e)
{
    if (!e->kept)
        standin_fault("it cannot be used again", "aclDestroyAclOpExecutor");
    standin.live--;
    free(e);
    return 0;
}

/* Where operands lie; what an operator writes is no part of what it reads unless `in_place`, and
 * nothing lies in the work space, which is not kept. */
static int begin(const struct task *t, const char *op, int n, uint8_t **at)
{
    uint8_t *space = standin_at(t->space, t->space_bytes);
    for (int i = 0; i < n; i++) {
        at[i] = lies(&t->t[i]);
        if (!at[i] || !space) {
            standin_fault("an operand is of no allocation", op);
            return 0;
        }
    }
    memset(space, 0xee, t->space_bytes);
    return 1;
}

#define OPERATOR(name)                                                                             \
    SHOWN int aclnn##name(void *space, uint64_t bytes, struct executor *e, void *stream);          \
    SHOWN int aclnn##name(void *space, uint64_t bytes, struct executor *e, void *stream)           \
    {                                                                                              \
        return issue("aclnn" #name, space, bytes, e, stream);                                      \
    }                                                                                              \
    SHOWN int aclnn##name##GetWorkspaceSize
#define OUT uint64_t *bytes, struct executor **out

/* ---------------------------------------------------------------- numbers one by one */

enum each { E_ADD, E_MUL, E_SILU, E_COS, E_SIN, E_COPY, E_PUT, E_GE, E_LT, E_MASK, E_SCALE };

static double one(enum each op, double a, double b, double number)
{
    float x = (float)a, y = (float)b, n = (float)number;
    switch (op) {
    case E_ADD:
        return (double)(x + n * y);
    case E_MUL:
        return (double)(x * y);
    case E_SILU:
        return (double)(x / (1.0f + expf(-x)));
    case E_COS:
        return (double)cosf(x);
    case E_SIN:
        return (double)sinf(x);
    case E_COPY:
        return a;
    case E_PUT:
        return number;
    case E_GE:
        return a >= b;
    case E_LT:
        return a < b;
    case E_SCALE:
        return (double)(x * n);
    default:
        return b != 0 ? number : a;
    }
}

/* t[0] = op(t[1], t[2]). */
static int each(const struct task *t)
{
    uint8_t *at[3];
    if (!begin(t, "a pointwise operator", 3, at))
        return PARAM_INVALID;
    int64_t size[3];
    for (int i = 0; i < 3; i++)
        size[i] = standin_type_bytes(t->t[i].type);
    for (int64_t i = 0; i < count(&t->t[0]); i++) {
        double a = get(at[1] + place(&t->t[1], &t->t[0], i) * size[1], t->t[1].type);
        double b = get(at[2] + place(&t->t[2], &t->t[0], i) * size[2], t->t[2].type);
        set(at[0] + place(&t->t[0], &t->t[0], i) * size[0], t->t[0].type,
            one((enum each)t->integer, a, b, t->number));
    }
    return 0;
}

static int plan_each(const char *name, enum each op, const struct view *z, const struct view *x,
                     const struct view *y, double number, OUT)
{
    int compares = op == E_GE || op == E_LT;
    if (!x || !y || !z || isnan(number))
        return ABSENT;
    if (!fits(x, z) || !fits(y, z) || (compares && z->type != BOOL) ||
        (op == E_MASK && y->type != BOOL) ||
        (!compares && op != E_COPY && (z->type != FLOAT || x->type != FLOAT)))
        return refuse(name);
    return plan(&(struct task){.fn = each, .t = {*z, *x, *y}, .integer = op, .number = number},
                bytes, out);
}

OPERATOR(InplaceAdd)(struct view *x, const struct view *y, const struct scalar *alpha, OUT)
{
    return plan_each("InplaceAdd", E_ADD, x, x, y, value_of(alpha), bytes, out);
}
OPERATOR(Add)(const struct view *x, const struct view *y, const struct scalar *alpha,
              struct view *z, OUT)
{
    return plan_each("Add", E_ADD, z, x, y, value_of(alpha), bytes, out);
}
OPERATOR(Mul)(const struct view *x, const struct view *y, struct view *z, OUT)
{
    return plan_each("Mul", E_MUL, z, x, y, 0, bytes, out);
}
OPERATOR(InplaceMuls)(struct view *x, const struct scalar *by, OUT)
{
    return plan_each("InplaceMuls", E_SCALE, x, x, x, value_of(by), bytes, out);
}
OPERATOR(Silu)(const struct view *x, struct view *z, OUT)
{
    return plan_each("Silu", E_SILU, z, x, x, 0, bytes, out);
}
OPERATOR(Cos)(const struct view *x, struct view *z, OUT)
{
    return plan_each("Cos", E_COS, z, x, x, 0, bytes, out);
}
OPERATOR(Sin)(const struct view *x, struct view *z, OUT)
{
    return plan_each("Sin", E_SIN, z, x, x, 0, bytes, out);
}
OPERATOR(Cast)(const struct view *x, int type, struct view *z, OUT)
{
    if (!x || !z)
        return ABSENT;
    if (z->type != type || !same(x, z))
        return refuse("Cast");
    return plan_each("Cast", E_COPY, z, x, x, 0, bytes, out);
}
OPERATOR(InplaceCopy)(struct view *z, const struct view *x, OUT)
{
    return plan_each("InplaceCopy", E_COPY, z, x, x, 0, bytes, out);
}
OPERATOR(InplaceFillScalar)(struct view *z, const struct scalar *value, OUT)
{
    return plan_each("InplaceFillScalar", E_PUT, z, z, z, value_of(value), bytes, out);
}
OPERATOR(GeTensor)(const struct view *x, const struct view *y, struct view *z, OUT)
{
    return plan_each("GeTensor", E_GE, z, x, y, 0, bytes, out);
}
OPERATOR(LtTensor)(const struct view *x, const struct view *y, struct view *z, OUT)
{
    return plan_each("LtTensor", E_LT, z, x, y, 0, bytes, out);
}
OPERATOR(InplaceMaskedFillScalar)(struct view *z, const struct view *mask,
                                  const struct scalar *value, OUT)
{
    return plan_each("InplaceMaskedFillScalar", E_MASK, z, z, mask, value_of(value), bytes,
                     out);
}

/* ---------------------------------------------------------------- rows by number */

/* t: written, read, numbers of rows; integer: 1 where rows of the written are numbered. */
static int move_rows(const struct task *t)
{
    uint8_t *at[3];
    const struct view *z = &t->t[0], *x = &t->t[1], *index = &t->t[2];
    int size = standin_type_bytes(z->type), puts = t->integer != 0;
    if (!begin(t, "rows by number", 3, at))
        return PARAM_INVALID;
    for (int64_t i = 0; i < index->dims[0]; i++) {
        int64_t n = (int64_t)get(at[2] + i * index->strides[0] * 8, INT64);
        if (n < 0 || n >= (puts ? z : x)->dims[0]) {
            standin_fault("no such row", puts ? "aclnnInplaceIndexCopy" : "aclnnIndexSelect");
            return PARAM_INVALID;
        }
        for (int64_t k = 0; k < z->dims[1]; k++)
            memcpy(at[0] + ((puts ? n : i) * z->strides[0] + k * z->strides[1]) * size,
                   at[1] + ((puts ? i : n) * x->strides[0] + k * x->strides[1]) * size,
                   (size_t)size);
    }
    return 0;
}

static int plan_rows(const char *name, const struct view *z, const struct view *x, int64_t dim,
                     const struct view *index, int puts, OUT)
{
    const struct view *few = puts ? x : z;
    if (!x || !z || !index)
        return ABSENT;
    if (dim || z->n_dims != 2 || x->n_dims != 2 || index->n_dims != 1 || index->type != INT64 ||
        z->type != x->type || z->dims[1] != x->dims[1] || few->dims[0] != index->dims[0])
        return refuse(name);
    return plan(&(struct task){.fn = move_rows, .t = {*z, *x, *index}, .integer = puts}, bytes,
                out);
}

OPERATOR(IndexSelect)(const struct view *x, int64_t dim, const struct view *index,
                      struct view *z, OUT)
{
    return plan_rows("IndexSelect", z, x, dim, index, 0, bytes, out);
}
OPERATOR(InplaceIndexCopy)(struct view *z, int64_t dim, const struct view *index,
                           const struct view *x, OUT)
{
    return plan_rows("InplaceIndexCopy", z, x, dim, index, 1, bytes, out);
}

/* ---------------------------------------------------------------- rows of numbers */

static float *number(uint8_t *at, const struct view *t, int64_t i, int64_t j, int64_t k)
{
    return (float *)(void *)at + i * t->strides[0] + j * t->strides[1] + k * t->strides[2];
}

static int rms_norm(const struct task *t)
{
    uint8_t *at[4];
    if (!begin(t, "aclnnRmsNorm", 4, at))
        return PARAM_INVALID;
    int64_t n = t->t[0].dims[2];
    for (int64_t i = 0; i < t->t[0].dims[0]; i++)
        for (int64_t j = 0; j < t->t[0].dims[1]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++)
                sum += pow((double)*number(at[1], &t->t[1], i, j, k), 2);
            float r = (float)(1 / sqrt(sum / (double)n + t->number));
            for (int64_t k = 0; k < n; k++)
                *number(at[0], &t->t[0], i, j, k) =
                    *number(at[1], &t->t[1], i, j, k) * r * ((float *)(void *)at[2])[k];
            *number(at[3], &t->t[3], i, j, 0) = r;
        }
    return 0;
}

OPERATOR(RmsNorm)(const struct view *x, const struct view *gamma, double eps,
                  const struct view *y, const struct view *rstd, OUT)
{
    if (!x || !gamma || !y || !rstd)
        return ABSENT;
    if (x->n_dims != 3 || !same(x, y) || gamma->n_dims != 1 || gamma->dims[0] != x->dims[2] ||
        rstd->n_dims != 3 || rstd->dims[0] != x->dims[0] || rstd->dims[1] != x->dims[1] ||
        rstd->dims[2] != 1 || x->type != FLOAT || y->type != FLOAT || x->data == y->data)
        return refuse("RmsNorm");
    return plan(&(struct task){.fn = rms_norm, .t = {*y, *x, *gamma, *rstd}, .number = eps}, bytes,
                out);
}

/* x [1, T, H, n] by cos and sin [1, T, 1, n]. */
static int rotate(const struct task *t)
{
    uint8_t *at[4];
    if (!begin(t, "aclnnRotaryPositionEmbedding", 4, at))
        return PARAM_INVALID;
    struct view v[4];
    int64_t n = t->t[0].dims[3], half = n / 2;
    for (int i = 0; i < 4; i++) {
        v[i] = t->t[i];
        memmove(v[i].strides, v[i].strides + 1, 3 * sizeof *v[i].strides);
    }
    for (int64_t i = 0; i < t->t[0].dims[1]; i++)
        for (int64_t j = 0; j < t->t[0].dims[2]; j++)
            for (int64_t k = 0; k < n; k++) {
                int64_t with = t->integer ? k ^ 1 : (k + half) % n;
                int first = t->integer ? !(k & 1) : k < half;
                float x = *number(at[1], &v[1], i, j, k), y = *number(at[1], &v[1], i, j, with);
                *number(at[0], &v[0], i, j, k) =
                    x * *number(at[2], &v[2], i, 0, k) +
                    (first ? -y : y) * *number(at[3], &v[3], i, 0, k);
            }
    return 0;
}

OPERATOR(RotaryPositionEmbedding)(const struct view *x, const struct view *cs,
                                  const struct view *sn, int64_t mode, struct view *z, OUT)
{
    if (!x || !cs || !sn || !z)
        return ABSENT;
    if (x->n_dims != 4 || !same(x, z) || !same(cs, sn) || cs->n_dims != 4 || cs->dims[0] != 1 ||
        cs->dims[1] != x->dims[1] || cs->dims[2] != 1 || cs->dims[3] != x->dims[3] ||
        x->dims[3] % 2 || x->dims[0] * x->dims[2] >= 1000 || x->dims[3] >= 896 || mode < 0 ||
        mode > 1 || x->type != FLOAT || x->data == z->data)
        return refuse("RotaryPositionEmbedding");
    return plan(&(struct task){.fn = rotate, .t = {*z, *x, *cs, *sn}, .integer = mode}, bytes, out);
}

static int softmax(const struct task *t)
{
    uint8_t *at[2];
    if (!begin(t, "aclnnSoftmax", 2, at))
        return PARAM_INVALID;
    int64_t n = t->t[0].dims[2];
    for (int64_t i = 0; i < t->t[0].dims[0]; i++)
        for (int64_t j = 0; j < t->t[0].dims[1]; j++) {
            const float *x = number(at[1], &t->t[1], i, j, 0);
            float *z = number(at[0], &t->t[0], i, j, 0), most = x[0], sum = 0;
            for (int64_t k = 1; k < n; k++)
                most = x[k] > most ? x[k] : most;
            for (int64_t k = 0; k < n; k++)
                sum += z[k] = expf(x[k] - most);
            for (int64_t k = 0; k < n; k++)
                z[k] /= sum;
        }
    return 0;
}

OPERATOR(Softmax)(const struct view *x, int64_t dim, struct view *z, OUT)
{
    if (!x || !z)
        return ABSENT;
    if (x->n_dims != 3 || !same(x, z) || (dim != -1 && dim != 2) || x->strides[2] != 1 ||
        z->strides[2] != 1 || x->type != FLOAT || z->type != FLOAT || x->data == z->data)
        return refuse("Softmax");
    return plan(&(struct task){.fn = softmax, .t = {*z, *x}}, bytes, out);
}

/* ---------------------------------------------------------------- products */

/* Matrices as stacks of them. */
static struct view stack(const struct view *t)
{
    struct view s = *t;
    for (int i = 2; i >= 0 && t->n_dims == 2; i--) {
        s.dims[i] = i ? t->dims[i - 1] : 1;
        s.strides[i] = i ? t->strides[i - 1] : 0;
    }
    s.n_dims = 3;
    return s;
}

static float element(const uint8_t *at, const struct view *t, int64_t i, int64_t j, int64_t k,
                     int narrow)
{
    int64_t n = i * t->strides[0] + j * t->strides[1] + k * t->strides[2];
    if (t->type == HALF || t->type == BF16) {
        uint16_t h;
        memcpy(&h, at + 2 * n, 2);
        return t->type == HALF ? half_to_float(h) : bf16_to_float(h);
    }
    float x;
    memcpy(&x, at + 4 * n, 4);
    return narrow ? rounded(x) : x;
}

static int matmul(const struct task *t)
{
    uint8_t *at[3];
    if (!begin(t, "aclnnMatmul", 3, at))
        return PARAM_INVALID;
    const struct view *z = &t->t[0], *x = &t->t[1], *y = &t->t[2];
    int64_t rows = z->dims[1], cols = z->dims[2], depth = x->dims[2];
    float *wide = malloc((size_t)(cols * depth) * sizeof *wide);
    for (int64_t i = 0; i < z->dims[0]; i++) {
        for (int64_t c = 0; c < cols; c++)
            for (int64_t k = 0; k < depth; k++)
                wide[c * depth + k] = element(at[2], y, i, k, c, t->integer == 2);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                float sum = 0;
                for (int64_t k = 0; k < depth; k++)
                    sum += element(at[1], x, i, r, k, t->integer == 2) * wide[c * depth + k];
                *number(at[0], z, i, r, c) = sum;
            }
    }
    free(wide);
    return 0;
}

OPERATOR(Matmul)(const struct view *self, const struct view *other, struct view *result,
                 int8_t cube, OUT)
{
    if (!self || !other || !result)
        return ABSENT;
    struct view z = stack(result), x = stack(self), y = stack(other);
    if (self->n_dims != result->n_dims || other->n_dims != result->n_dims || self->n_dims < 2 ||
        self->n_dims > 3 || x.dims[0] != z.dims[0] || y.dims[0] != z.dims[0] ||
        x.dims[1] != z.dims[1] || y.dims[2] != z.dims[2] || x.dims[2] != y.dims[1] ||
        z.type != FLOAT || (x.type != FLOAT && x.type != HALF) ||
        (y.type != FLOAT && y.type != HALF && (y.type != BF16 || cube == 2)) || cube < 0 ||
        cube > 3 || x.data == z.data)
        return refuse("Matmul");
    return plan(&(struct task){.fn = matmul, .t = {z, x, y}, .integer = cube}, bytes, out);
}
