/* rope.c -- rotary position embedding [RoFormer, arXiv:2104.09864, sec. 3.4].
 *
 *   ROPE_TABLE  z [T, n_rot] = cos(p freq[i]) mscale for i < n_rot/2, then sin(p freq[i]) mscale; p
 *               that of the row's four positions which pair i goes by (axis), or the first
 *               position of each `every`. Angles in double, reduced and rounded once; layers
 *               share it.
 *   ROPE        of each head of x [T, H width] the first n_rot elements, as pairs (a, b):
 *               a' = fma(-b, sin, a cos), b' = fma(b, cos, a sin); the rest as it is. In place
 * where wanted. Pairs are neighbours, or half of n_rot apart (neox).
 *   HADAMARD    z = H x / sqrt(b) of each b numbers of x [T, n], b a power of two: H[i][j] is -1
 *               where i and j have an odd number of bits in common, else 1, so it is its own
 *               inverse. For h = 1, 2, .. b / 2, of each i without the bit h,
 *                   (x[i], x[i + h]) = (x[i] + x[i + h], x[i] - x[i + h]),
 *               and at last one multiplication with 1 / sqrt(b), which is rounded twice. */
#include "graph/ops/rope.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"
#include "graph/backend.h"

void rope_axis_sections(uint8_t *axis, int32_t n_pairs, const int32_t n[4])
{
    int32_t period = n[0] + n[1] + n[2] + n[3];
    for (int32_t i = 0; i < n_pairs; i++) {
        int32_t at = period > 0 ? i % period : 0;
        axis[i] = (uint8_t)((at >= n[0]) + (at >= n[0] + n[1]) + (at >= n[0] + n[1] + n[2]));
    }
}

static uint8_t axis_of(int32_t j, const int32_t n[4])
{
    return j < 3 * n[j % 3] ? (uint8_t)(j % 3) : 3;
}

void rope_axis_interleaved(uint8_t *axis, int32_t n_pairs, const int32_t n[4])
{
    int32_t period = n[0] + n[1] + n[2] + n[3];
    for (int32_t i = 0; i < n_pairs; i++)
        axis[i] = axis_of(period > 0 ? i % period : i, n);
}

void ref_rope_angles4(const struct rope_set *set, const double pos[4], double scale, float *angles)
{
    int half = set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        double sn, cs;
        fmath_sincos(pos[set->axis ? set->axis[i] : 0] * set->freq[i], &sn, &cs);
        angles[i] = (float)(cs * scale);
        angles[half + i] = (float)(sn * scale);
    }
}

void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles)
{
    ref_rope_angles4(set, (const double[4]){pos, pos, pos, 0}, scale, angles);
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
    for (int64_t r = begin; r < end; r++) {
        int32_t pos = step_pos(x->step)[r];
        const int32_t *axes = step_axes(x->step) + STEP_AXES * r;
        double at[4] = {pos, axes[0], axes[1], axes[2]};
        if (set->every > 1)
            at[0] = at[1] = at[2] = at[3] = pos - pos % set->every;
        ref_rope_angles4(set, at, (double)set->mscale, value_row(x, &c->dst, r));
    }
}

const struct op_info op_rope_table = {.name = "rope_table",
                                      .kind = OP_ROWS,
                                      .flags = OP_MOVER,
                                      .params_bytes = sizeof(struct rope_table_op),
                                      .shape = shape_rope_table,
                                      .reference = ref_rope_table};

node graph_rope_table(struct graph *g, const struct rope_set *set)
{
    struct rope_table_op p = {.set = rope_set_for(set, g->n_ctx)};
    return graph_node(g, &(struct node){.op = OP_ROPE_TABLE, .p = &p}, "rope_table");
}

/* ---------------------------------------------------------------- ROPE */

static void shape_rope(struct graph *g, struct node *n)
{
    const struct rope_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->width <= 0 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    else if (p->first < 0 || p->set->n_rot > p->width - p->first ||
             p->set->n_rot != n->src[1]->cols)
        graph_mismatch(g, n, "rotated part", p->first + p->set->n_rot, p->width);
}

static int64_t rope_stretch(const struct node *n)
{
    return ((const struct rope_op *)n->p)->width;
}

static size_t rope_scratch(const struct node *n)
{
    const struct rope_op *p = n->p;
    return p->inverse ? (size_t)p->set->n_rot * sizeof(float) : 0;
}

const float *rope_angles_of(const struct call *c, const struct exec *x, int64_t row, int ith)
{
    const struct rope_op *p = c->p;
    const float *table = value_in_row(x, &c->src[1], row);
    if (!p->inverse)
        return table;
    float *back = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    int half = p->set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        back[i] = table[i];
        back[half + i] = -table[half + i];
    }
    return back;
}

void rope_bring(const struct call *c, const struct exec *x, int64_t row)
{
    const struct rope_op *p = c->p;
    const float *in = value_in_row(x, &c->src[0], row);
    float *out = value_row(x, &c->dst, row);
    int64_t step = value_step(&c->src[0], p->width);
    if (out == in)
        return;
    if (step == p->width)
        memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
    else
        for (int64_t at = 0; at < c->dst.cols; at += p->width, in += step)
            memcpy(out + at, in, (size_t)p->width * sizeof *out);
}

static OP_FN(ref_rope)
{
    const struct rope_op *p = c->p;
    for (int64_t r = begin; r < end; r++) {
        const float *table = rope_angles_of(c, x, r, ith);
        float *out = value_row(x, &c->dst, r);
        rope_bring(c, x, r);
        for (int64_t at = p->first; at < c->dst.cols; at += p->width)
            ref_rope_head(p->set, out + at, table);
    }
}

const struct op_info op_rope = {.name = "rope",
                                .kind = OP_ROWS,
                                .flags = OP_IN_PLACE | OP_HEADS,
                                .params_bytes = sizeof(struct rope_op),
                                .shape = shape_rope,
                                .stretch = rope_stretch,
                                .reference = ref_rope,
                                .scratch = rope_scratch};

node graph_rope_part(struct graph *g, node x, node table, const struct rope_op *p, const char *name)
{
    x = graph_adjacent(g, x, p->width);
    if (!x || !table)
        return NULL;
    struct rope_op mine = *p;
    mine.set = ((const struct rope_table_op *)table->p)->set;
    return graph_node(g, &(struct node){.op = OP_ROPE, .n_src = 2, .src = {x, table}, .p = &mine},
                      name);
}

node graph_rope(struct graph *g, node x, node table, int64_t width, const char *name)
{
    return graph_rope_part(g, x, table, &(struct rope_op){.width = (int32_t)width}, name);
}

/* ---------------------------------------------------------------- HADAMARD */

void ref_hadamard(float *x, int64_t n, int32_t b)
{
    float scale = hadamard_scale(b);
    for (float *end = x + n; x < end; x += b) {
        for (int32_t h = 1; h < b; h *= 2)
            for (int32_t i = 0; i < b; i = (i + h + 1) & ~h) { /* those without the bit */
                float p = x[i], q = x[i + h];
                x[i] = p + q;
                x[i + h] = p - q;
            }
        for (int32_t i = 0; i < b; i++)
            x[i] = x[i] * scale;
    }
}

static void shape_hadamard(struct graph *g, struct node *n)
{
    int32_t b = ((const struct hadamard_op *)n->p)->b;
    node_like(n, n->src[0]);
    if (b < HADAMARD_LEAST || b > HADAMARD_MOST || (b & (b - 1)))
        graph_mismatch(g, n, "numbers turned together", b, HADAMARD_MOST);
    else if (n->cols % b)
        graph_mismatch(g, n, "row", n->cols, b);
}

static int64_t hadamard_stretch(const struct node *n)
{
    return ((const struct hadamard_op *)n->p)->b;
}

static OP_FN(ref_hadamard_rows)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        if (out != in)
            memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
        ref_hadamard(out, c->dst.cols, ((const struct hadamard_op *)c->p)->b);
    }
}

const struct op_info op_hadamard = {.name = "hadamard",
                                    .kind = OP_ROWS,
                                    .flags = OP_IN_PLACE,
                                    .params_bytes = sizeof(struct hadamard_op),
                                    .shape = shape_hadamard,
                                    .stretch = hadamard_stretch,
                                    .reference = ref_hadamard_rows};

node graph_hadamard(struct graph *g, node x, int32_t b, const char *name)
{
    struct hadamard_op p = {.b = b};
    return graph_node(g, &(struct node){.op = OP_HADAMARD, .n_src = 1, .src = {x}, .p = &p}, name);
}
