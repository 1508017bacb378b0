/* rope.c -- rotary position embedding [RoFormer, arXiv:2104.09864, sec. 3.4].
 *
 *   ROPE_TABLE  z [T, n_rot] = cos(p freq[i]) mscale for i < n_rot/2, then sin(p freq[i]) mscale; p
 *               the row's position. Angles in double, reduced and rounded once; layers share it.
 *   ROPE        of each head of x [T, H width] the first n_rot elements, as pairs (a, b):
 *               a' = fma(-b, sin, a cos), b' = fma(b, cos, a sin); the rest as it is. In place
 * where wanted. Pairs are neighbours, or half of n_rot apart (neox). */
#include "graph/ops/rope.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"
#include "graph/backend.h"

void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles)
{
    int half = set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        double sn, cs;
        fmath_sincos(pos * set->freq[i], &sn, &cs);
        angles[i] = (float)(cs * scale);
        angles[half + i] = (float)(sn * scale);
    }
}

void ref_rope_head(const struct rope_set *set, float *head, const float *angles)
{
    int half = set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        float *a = head + (set->neox ? i : 2 * i), *b = set->neox ? a + half : a + 1;
        float cs = angles[i], sn = angles[half + i], a0 = *a, b0 = *b;
        *a = fmaf(-b0, sn, a0 * cs);
        *b = fmaf(b0, cs, a0 * sn);
    }
}

/* ---------------------------------------------------------------- ROPE_TABLE */

static void shape_rope_table(struct graph *g, struct node *n)
{
    const struct rope_table_op *p = n->p;
    (void)g;
    n->rows = ROWS_T;
    n->cols = p->set->n_rot;
}

static OP_FN(ref_rope_table)
{
    const struct rope_set *set = ((const struct rope_table_op *)c->p)->set;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        ref_rope_angles(set, step_pos(x->step)[r], (double)set->mscale, value_row(x, &c->dst, r));
}

const struct op_info op_rope_table = {.name = "rope_table",
                                      .kind = OP_ROWS,
                                      .params_bytes = sizeof(struct rope_table_op),
                                      .shape = shape_rope_table,
                                      .reference = ref_rope_table};

node graph_rope_table(struct graph *g, const struct rope_set *set)
{
    struct rope_table_op p = {.set = set};
    return graph_node(g, &(struct node){.op = OP_ROPE_TABLE, .p = &p}, "rope_table");
}

/* ---------------------------------------------------------------- ROPE */

static void shape_rope(struct graph *g, struct node *n)
{
    const struct rope_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->width <= 0 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    else if (p->set->n_rot > p->width || p->set->n_rot != n->src[1]->cols)
        graph_mismatch(g, n, "rotated part", p->set->n_rot, p->width);
}

static OP_FN(ref_rope)
{
    const struct rope_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r), *table = value_row(x, &c->src[1], r);
        float *out = value_row(x, &c->dst, r);
        if (out != in)
            memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
        for (int64_t at = 0; at < c->dst.cols; at += p->width)
            ref_rope_head(p->set, out + at, table);
    }
}

const struct op_info op_rope = {.name = "rope",
                                .kind = OP_ROWS,
                                .flags = OP_IN_PLACE,
                                .params_bytes = sizeof(struct rope_op),
                                .shape = shape_rope,
                                .reference = ref_rope};

node graph_rope(struct graph *g, node x, node table, int64_t width, const char *name)
{
    if (!table)
        return NULL;
    const struct rope_table_op *of = table->p;
    struct rope_op p = {.set = of->set, .width = (int32_t)width};
    return graph_node(g, &(struct node){.op = OP_ROPE, .n_src = 2, .src = {x, table}, .p = &p},
                      name);
}
