/* tensor.h -- a weight: its type and shape, and where devices have it. Shapes are C order, slowest
 * first; a matrix [M, K] multiplies rows of K values into rows of M; a stack of experts is
 * [X, M, K]. */
#ifndef PITH_TENSOR_TENSOR_H
#define PITH_TENSOR_TENSOR_H

#include "tensor/dtype.h"

/* What a weight is used for; everything else is the architecture's. */
enum tensor_use {
    TENSOR_PLAIN,     /* a matrix that rows are multiplied with; with one dimension a vector */
    TENSOR_EMBEDDING, /* rows by token */
    TENSOR_OUTPUT,    /* the product that makes logits */
    TENSOR_VECTOR,    /* one vector of floats, whatever its shape in the file */
    TENSOR_EXPERTS,   /* a stack of matrices, of which a row uses those it is routed to */
    TENSOR_PER_HEAD,  /* a stack of matrices, one for each head */
    TENSOR_KERNEL,    /* a matrix whose rows have several dimensions in the file */
    TENSOR_INTEGERS,  /* rows of int32, by token */
    TENSOR_TABLE      /* rows that are looked up, by position, type or otherwise */
};

/* How a weight's bytes lie: as in a file, row after row; as P16/P64 panels (quant/packed.h); or one
 * in blocks as rows of f16, for devices that read no blocks. */
enum tensor_layout { LAYOUT_ROWS, LAYOUT_PANELS, LAYOUT_HALF };

struct buffer;
struct pending;
struct tensor_source;

/* Where a device has it: bytes [offset, offset + bytes) of a buffer of that device; or, where its
 * kernels cannot see that much at once, in n_parts buffers one after the other in `buffer`, from
 * the beginning of each, part_rows rows in all but the last. */
struct placement {
    int32_t device; /* index into the model's devices */
    enum tensor_layout layout;
    struct buffer *buffer;
    uint64_t offset, bytes;
    int64_t part_rows; /* 0: it lies in one piece */
    int32_t n_parts;
    /* Of panels: where the rows that they are made of lie, matrix after matrix, in an imported
     * buffer of the device; NULL: nowhere that its kernels see. */
    struct buffer *rows;
    uint64_t rows_offset;
    struct pending *pending; /* panels that need not be there yet (pending.h); NULL: all are */
};

enum { TENSOR_PLACES = 8 };

/* Of a copy that a plan for steps of many rows reads on another device: its bytes on the host,
 * which are brought there before each use (graph/plan.h, uploads), and its one placement, which
 * says where they are then. */
struct bringing {
    const void *host;
    struct placement *to;
};

struct tensor {
    const char *name;
    enum tensor_use use;
    enum dtype type; /* of its placements */
    int n_dims;
    int64_t dims[4];
    uint64_t bytes;                     /* of its rows in that type */
    uint64_t packed_bytes;              /* of its panels, if some device has those; else 0 */
    int32_t layer;                      /* -1: of the model */
    float scale;                        /* of its products: a file's NAME.scale; 0: none */
    const struct tensor *factor;        /* [X] the same of a stack of experts; NULL: none */
    int32_t index;                      /* among the model's tensors */
    int32_t multiplied;                 /* 1: some product reads it */
    struct placement at[TENSOR_PLACES]; /* one for each device that has it */
    int32_t n_at;
    struct tensor **slice; /* [n_slices] its rows (or columns; of a stack: matrices), in order, as
                              weights of their own */
    int32_t n_slices;      /* 0: it is whole */
    int32_t by_heads;      /* 1: slices are heads of attention, where their K and V are */
    const struct tensor *whole; /* of a slice: of which weight, from which row, column, matrix on */
    int64_t first;
    int32_t by_columns;         /* 1: it is columns of that, else rows or matrices */
    struct tensor_source *from; /* what the file has of it: source.h */
    const struct bringing *brought; /* NULL: it lies where it is read */
};

/* Its placement on a device, NULL: it is not there. */
static inline const struct placement *tensor_on(const struct tensor *t, int32_t device)
{
    for (int32_t i = 0; i < t->n_at; i++)
        if (t->at[i].device == device)
            return &t->at[i];
    return NULL;
}
/* The same for who places weights. */
static inline struct placement *tensor_place_on(struct tensor *t, int32_t device)
{
    for (int32_t i = 0; i < t->n_at; i++)
        if (t->at[i].device == device)
            return &t->at[i];
    return NULL;
}
static inline enum tensor_layout tensor_layout_on(const struct tensor *t, int32_t device)
{
    const struct placement *p = tensor_on(t, device);
    return p ? p->layout : LAYOUT_ROWS;
}

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
/* Bytes of its rows as f16. */
static inline uint64_t tensor_half_bytes(const struct tensor *t)
{
    return 2 * (uint64_t)(tensor_stack(t) * tensor_m(t)) * (uint64_t)tensor_k(t);
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
