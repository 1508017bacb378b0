/* rope.c -- rotary position embedding: graph/ops/rope.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>

static OP_FN(cpu_rope)
{
    (void)ith;
    const struct rope_op *p = c->p;
    const struct rope_set *set = p->set;
    void (*rotate)(float *, const float *, const float *, int) =
        set->neox ? kern_of(c)->rope_neox : kern_of(c)->rope_norm;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r), *table = value_row(x, &c->src[1], r);
        float *out = value_row(x, &c->dst, r);
        if (out != in)
            memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
        for (int64_t at = 0; at < c->dst.cols; at += p->width)
            rotate(out + at, table, table + set->n_rot / 2, set->n_rot);
    }
}

const struct cpu_op cpu_rope_ops[] = {{OP_ROPE, "rope", .fn = cpu_rope}, {.fn = NULL}};
