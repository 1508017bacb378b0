/* tensor.h -- a weight: its type and shape, the file's bytes, and where it was placed. Shapes are C
 * order, slowest first; a matrix [M, K] multiplies rows of K values into rows of M; a stack of
 * experts is [X, M, K]. */
#ifndef PITH_TENSOR_TENSOR_H
#define PITH_TENSOR_TENSOR_H

#include "tensor/dtype.h"

/* What the engine itself must know of a weight; everything else is the architecture's. */
enum tensor_role {
    TENSOR_PLAIN,
    TENSOR_EMBEDDING,
    TENSOR_OUTPUT,
    TENSOR_VECTOR /* used as one vector of floats, whatever its shape in the file */
};

struct tensor {
    const char *name;
    enum tensor_role role;
    enum dtype type;
    int n_dims;
    int64_t dims[4];
    const void *file; /* mapped bytes in the file's layout; valid while the model is open, or NULL
                         once packed and dropped */
    uint64_t bytes;   /* of the file's layout */
    const void
        *packed; /* P16/P64 panels (quant/packed.h), or NULL when the weight is used as mapped */
    uint64_t packed_bytes;
    int device; /* index into the model's devices */
};

/* [.., M, K] of a matrix or stack of matrices; a vector [n] is one row of n. */
static inline int64_t tensor_k(const struct tensor *t)
{
    return t->dims[t->n_dims - 1];
}
static inline int64_t tensor_m(const struct tensor *t)
{
    return t->n_dims > 1 ? t->dims[t->n_dims - 2] : 1;
}
static inline int64_t tensor_stack(const struct tensor *t)
{
    return t->n_dims > 2 ? t->dims[t->n_dims - 3] : 1;
}
/* Panels of one packed matrix of the stack, and their bytes. */
static inline int64_t tensor_panels(const struct tensor *t)
{
    int32_t r = dtypes[t->type].pack_rows;
    return r ? (tensor_m(t) + r - 1) / r : 0;
}

static inline uint64_t tensor_packed_matrix_bytes(const struct tensor *t)
{
    return (uint64_t)tensor_panels(t) * dtype_panel_bytes(t->type, tensor_k(t));
}

#endif
