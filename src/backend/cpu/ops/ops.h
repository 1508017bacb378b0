/* ops.h -- op calls of a plan over the kernel table: one file for each group of graph/ops/, loops
 * over rows, panels and tiles without arithmetic of their own. A group's list has a row for each
 * kernel: the first that can do a node runs it. Ops that move, sort or make few numbers (tables
 * of angles, experts in order, selected rows) have no row: their reference is what runs, and that
 * is not slow. */
#ifndef PITH_CPU_OPS_OPS_H
#define PITH_CPU_OPS_OPS_H

#include "backend/cpu/cpu.h"
#include "graph/ops.h"

struct cpu_op {
    enum op op;
    const char *kernel;
    const char *mapped[2]; /* panels made on the fly from the file's rows: in plain C, by vectors */
    op_fn fn;              /* NULL: the list's end */
    op_units_fn units;
    int (*can)(const struct kern *k, const struct node *n); /* NULL: all nodes of the op */
    size_t (*scratch)(const struct node *n);                /* of a thread, NULL: none */
};
extern const struct cpu_op cpu_rows_ops[], cpu_norm_ops[], cpu_rope_ops[], cpu_product_ops[],
    cpu_attention_ops[], cpu_moe_ops[], cpu_scan_ops[], cpu_conv_ops[], cpu_move_ops[],
    cpu_stream_ops[];

static inline const struct kern *kern_of(const struct call *c)
{
    return c->impl.ctx;
}

static inline void *scratch_of(const struct exec *x, int ith)
{
    return x->scratch + (size_t)ith * x->scratch_bytes;
}

/* y = x * s: fma(x, s, -0) is the product, sign of zero included. */
static inline void times(const struct kern *k, const float *x, float s, float *y, int64_t n)
{
    k->scale(x, s, -0.0f, y, n);
}

/* Gated activations: z = act(g) * u; u NULL: act(g). NULL: no kernel. */
typedef void (*act_fn)(const float *g, const float *u, float *z, int64_t n);
act_fn cpu_act(const struct kern *k, enum glu_act act);

/* Packed products, of one weight or of a stack of them. */
int cpu_can_multiply(const struct kern *k, const struct node *n);
/* Of one matrix of a node, of a call: where its panels are made on the fly, or have to be for the
 * time being; 0: nowhere. */
size_t cpu_panel_scratch_of(const struct node *n);
size_t cpu_panel_scratch(const struct call *c);
/* A call's w or w2, looked at once for many panels. */
struct cpu_panels {
    const struct kern *kern;
    const struct tensor *w;
    const uint8_t *rows; /* what panels are made of; NULL: all are there */
    uint8_t *to;         /* where they are; NULL: nowhere, each is made when it is wanted */
    struct pending *pending; /* NULL: all are there, or nowhere */
    uint64_t bytes;          /* of a panel */
    int64_t n;               /* panels of a matrix */
};
struct cpu_panels cpu_panels(const struct call *c);
/* A panel that may not be there: where it is now, or packed from its rows into `scratch`. */
const void *cpu_panel_made(const struct cpu_panels *s, int64_t stack, int64_t p, void *scratch);
/* Panel p of matrix `stack`; scratch: where it is made, unless all are there. A panel of a small
 * model is read in a quarter of a microsecond, so this is a multiplication. */
static inline const void *cpu_panel(const struct cpu_panels *s, int64_t stack, int64_t p,
                                    void *scratch)
{
    if (s->to && !s->pending)
        return s->to + (uint64_t)(stack * s->n + p) * s->bytes;
    return cpu_panel_made(s, stack, p, scratch);
}

#endif
