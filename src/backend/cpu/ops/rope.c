/* rope.c -- heads turned: graph/ops/rope.c. */
#include "backend/cpu/ops/ops.h"

static OP_FN(cpu_rope)
{
    const struct rope_op *p = c->p;
    const struct rope_set *set = p->set;
    void (*rotate)(float *, const float *, const float *, int) =
        set->neox ? kern_of(c)->rope_neox : kern_of(c)->rope_norm;
    for (int64_t r = begin; r < end; r++) {
        const float *table = rope_angles_of(c, x, r, ith);
        float *out = value_row(x, &c->dst, r);
        rope_bring(c, x, r);
        for (int64_t at = p->first; at < c->dst.cols; at += p->width)
            rotate(out + at, table, table + set->n_rot / 2, set->n_rot);
    }
}

static OP_FN(cpu_hadamard)
{
    const struct hadamard_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->hadamard(value_in_row(x, &c->src[0], r), value_row(x, &c->dst, r), c->dst.cols,
                             p->b, hadamard_scale(p->b));
}

static size_t rope_scratch(const struct node *n)
{
    return op_infos[n->op]->scratch(n);
}

const struct cpu_op cpu_rope_ops[] = {
    {OP_ROPE, "rope", .fn = cpu_rope, .scratch = rope_scratch},
    {OP_HADAMARD, "hadamard", .fn = cpu_hadamard},
    {.fn = NULL},
};
