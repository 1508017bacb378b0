/* scan.h -- recurrences over the rows of a sequence, and the state they keep: see scan.c. */
#ifndef PITH_GRAPH_OPS_SCAN_H
#define PITH_GRAPH_OPS_SCAN_H

#include "graph/graph.h"

/* Channels of a work unit of SSM. */
enum { SCAN_CHANNELS = 64 };

/* x [T, C], dt [T, H] with H dividing C, b and c [T, n_group * n_state]; a [H] or [H * n_state],
 * d [H]; state [C][n_state]: part `part` of state `state`. */
struct ssm_op {
    int32_t n_group;
};
struct ssm_in {
    node x, dt, b, c;
    const struct tensor *a, *d;
    int32_t n_group, state, part;
};
node graph_ssm(struct graph *g, const struct ssm_in *in, const char *name);

/* LINEAR: what the state [d_v][d_k] of a head becomes with a row, and how it is read (scan.c). */
enum scan_rule { SCAN_GATED, SCAN_SHARED, SCAN_BONUS, SCAN_DELTA, SCAN_RANK1 };
struct linear_op {
    enum scan_rule rule;
    int32_t n_head, d_k, d_v;
    int tiled;          /* of a source of n heads, head h reads h % n; else h * n / n_head */
    float scale;        /* of the result */
    const float *decay; /* [n_head], where there is no source w; lives as long as the graph */
};
/* Operands; those that the rule does not name are not looked at. State [n_head][d_v][d_k]. */
struct linear_in {
    node q, k, v;               /* heads of d_k, d_k, d_v */
    node w;                     /* heads of d_k, or one number a head */
    node a, b;                  /* RANK1: heads of d_k; DELTA: a is beta, one number a head */
    const struct tensor *bonus; /* BONUS: [n_head * d_k] */
    int32_t state, part;
};
node graph_linear(struct graph *g, const struct linear_in *in, const struct linear_op *op,
                  const char *name);

/* COMPRESS: rows of a sequence pooled, one for several. */
struct compress_op {
    int32_t ratio;
    int overlap; /* each pool has the tokens of the one before, too: by the first half of columns */
};
/* x [T, D], or [T, 2 D] with overlap; gate as x, NULL: all count the same; ape, a vector
 * of [ratio, D or 2 D]: of each place in a pool, NULL: nothing. Part `part` of the state, of
 * compress_floats, holds what is not complete. [T, D]: of the last row of each pool; else 0. */
struct compress_in {
    node x, gate;
    const struct tensor *ape;
    struct compress_op p;
    int32_t state, part;
};
node graph_compress(struct graph *g, const struct compress_in *in, const char *name);
/* Floats that it keeps of D columns. */
static inline int64_t compress_floats(int64_t d, int overlap)
{
    return 3 * d * (overlap ? 2 : 1);
}

/* In shape rules: the part of the state that n goes on from has to be this many floats. */
void check_state(struct graph *g, const struct node *n, int64_t wanted);
/* Elements [at, at + n) of the state before segment `seg`, copied to where a scan updates them: the
 * block of its last row. */
float *state_scan(const struct exec *x, const struct call *c, int32_t seg, int64_t at, int64_t n);
/* The scan's elements before row r, to be updated in place: h, what the row before has left; of a
 * tree a copy of those after its parent, where the row keeps its own. */
float *state_row(const struct exec *x, const struct call *c, int64_t r, float *h, int64_t at,
                 int64_t n);
/* Keeps the scan's elements h after row r, if the row asks for it. */
void state_snapshot(const struct exec *x, const struct call *c, int64_t r, const float *h,
                    int64_t at, int64_t n);
/* Work units: (segment, SCAN_CHANNELS channels); (segment, head). */
int64_t ssm_units(const struct call *c, const struct exec *x);
int64_t linear_units(const struct call *c, const struct exec *x);
/* What LINEAR reads of one row and head, and where its result goes. */
struct linear_at {
    const float *q, *k, *v, *w, *a, *b;
    float *y, beta;
    int per_key; /* w is a vector */
};
struct linear_at linear_at(const struct call *c, const struct exec *x, int64_t r, int32_t head);

/* One more token of n channels to acc: m [n], l [n], o [n]. t = gate + ape, each 0 where it is
 * NULL; `first`: m = t, l = 1, o = x; else M = m > t ? m : t, a = exp(m - M), b = exp(t - M),
 * l = fma(l, a, b), o = fma(o, a, x b), m = M. */
struct compress_job {
    float *acc;
    const float *x, *gate, *ape;
    int64_t n;
    int first;
};
typedef void compress_add_fn(const void *ctx, const struct compress_job *j);
void compress_rows(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                   compress_add_fn *add, const void *ctx);
int64_t compress_units(const struct call *c, const struct exec *x);

#endif
