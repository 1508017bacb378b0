/* op.h -- what the engine knows of an op besides how to compute it: one row, at the op's home.
 *
 * graph/ops/GROUP.c holds for each of its ops the comment that defines it (equation, shapes), its
 * parameter struct, its builder, its plain C reference and its row. The plan, fusion, the report
 * and the backends ask rows and flags. No op is named outside of its home, ops.def and the backends
 * (scripts/check_layers.sh sees to it). An op is added by its row and one line in ops.def. */
#ifndef PITH_GRAPH_OP_H
#define PITH_GRAPH_OP_H

#include <stddef.h>
#include <stdint.h>
#include "tensor/act.h"

enum op {
#define X(NAME, row) OP_##NAME,
#include "graph/ops.def"
#undef X
    OP_COUNT
};

enum op_kind {
    OP_NONE,  /* no work: another way to look at a value */
    OP_ROWS,  /* row-local: works on any range of rows by itself; neighbours of this kind run as one
                 chain without a barrier */
    OP_UNITS, /* units of work of its own (weight rows, attention tiles); a barrier on both sides */
};

enum op_flags {
    OP_IN_PLACE = 1,      /* its result may take the place of its first operand */
    OP_PRODUCT = 2,       /* multiplies with the rows of w: w is packed for it, and a device whose
                             reference has to do it is slow */
    OP_BESIDE = 4,        /* its units may stand in one phase with those of others like it */
    OP_READS_STATE = 8,   /* of a sequence */
    OP_WRITES_STATE = 16, /* of a sequence */
    OP_ALIAS = 64,        /* its result lies in its operand's memory */
    OP_TRANSFER = 128,    /* takes a value to another device: run by the plan, not by a kernel */
    OP_OPAQUE = 256,      /* its result is no matrix of numbers: nobody is shown it */
    OP_FUSED = 512,       /* made by fusion alone, and so without a reference */
    OP_HEADS = 1024,      /* reads values whose heads lie apart (graph.h, head) as they are */
    OP_PARTS = 4096,      /* reads w row by row (weight_row): it may lie in parts */
    OP_MOVER = 2048,      /* moves, sorts or makes few numbers: its reference is slow nowhere */
    OP_BY_ROWS = 8192,    /* a column of its result is of one row of w and of b: cut.h */
    OP_BY_COLUMNS = 16384  /* a column of its result is of the same columns of its operands */
};

/* Of an op that does for some experts what stands by itself (its parameters are a moe_op): which of
 * its operands are what; -1: it has no such. */
struct op_experts {
    int8_t rows;    /* what is multiplied or added up: a row for each expert of a row, at most */
    int8_t routing; /* which experts each row has */
    int8_t list;    /* rows by experts: made by an op like this from the routing. Products have it,
                       and a slice of w for some experts */
    int8_t before;  /* the sum over the experts before, its last operand, and not of the first */
};

struct call;
struct column_run;
struct exec;
struct fuser;
struct graph;
struct node;

/* A kernel: works on units [begin, end) of the call (of OP_ROWS: rows) on thread ith. Everything it
 * may look at is in the call and in exec. */
typedef void (*op_fn)(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                      int ith);
typedef int64_t (*op_units_fn)(const struct call *c, const struct exec *x);
#define OP_FN(name)                                                                                \
    void name(const struct call *c, const struct exec *x, int64_t begin, int64_t end, int ith)

struct op_cost {
    uint64_t bytes, ops; /* touched, done */
};

struct op_info {
    const char *name;
    enum op_kind kind;
    unsigned flags;
    size_t params_bytes; /* of the op's parameter struct, 0: it has none */
    /* Sets rows, rows_mul and cols (and fmt where it is not f32), or records what does not fit. */
    void (*shape)(struct graph *g, struct node *n);
    /* The activation format in which the op reads its first operand. NULL: f32. */
    enum act_kind (*wants)(const struct node *n);
    /* Rows that its result needs room for, where these are more than it has: `rows` of them in a
     * session whose rows see at most `spans` spans of the cache. NULL: as many as it has. */
    int64_t (*room)(const struct node *n, int64_t rows, int64_t spans);
    /* What a call costs in this step; *cost holds its result's bytes and elements. NULL: that. */
    void (*cost)(const struct call *c, const struct exec *x, struct op_cost *cost);
    /* A pattern that ends in n as this op: rewrites n and returns 1. NULL: fusion makes it not. */
    int (*fuse)(struct fuser *f, struct node *n);
    /* A node that brings pieces of x side by side (ops/move.h): what an operand goes through whose
     * heads lie apart, where the op that reads it does not know of heads. NULL: not this op. */
    struct node *(*pieces)(struct graph *g, struct node *x, const struct column_run *run);
    /* Columns of its first operand, neighbours, that make as many of its result by themselves; it
     * reads its other operands whole. NULL: all make all. */
    int64_t (*stretch)(const struct node *n);
    /* Of an op that does for each head of its state the same by itself: makes of its parameters
     * those for heads [first, first + n) of K and V; 0: it cannot. NULL: it is not such an op. */
    int (*heads)(const struct node *of, int32_t first, int32_t n, void *params);
    const struct op_experts *experts; /* NULL: it knows of none */
    /* The definition in plain C, the units it works in (NULL: rows) and the scratch bytes it takes
     * of each thread (NULL: none). */
    op_fn reference;
    op_units_fn units;
    size_t (*scratch)(const struct node *n);
};

#define X(NAME, row) extern const struct op_info row;
#include "graph/ops.def"
#undef X
extern const struct op_info *const op_infos[OP_COUNT];

static inline int op_has(enum op op, enum op_flags flag)
{
    return (op_infos[op]->flags & flag) != 0;
}

#endif
