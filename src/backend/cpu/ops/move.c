/* move.c -- ops that bring rows somewhere: graph/ops/move.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>

static OP_FN(cpu_embed)
{
    const struct embed_op *p = c->p;
    const struct step *s = x->step;
    const struct dtype_traits *d = &dtypes[c->w->type];
    const struct pending *pending = pending_now(c->w_panels.pending);
    int64_t n = c->dst.cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        if (step_is_embd(s, r)) {
            memcpy(y, step_embd(s) + r * n, (size_t)n * sizeof *y);
            continue;
        }
        int64_t id = embed_token(p, step_token(s)[r]);
        int packed = c->layout == LAYOUT_PANELS &&
                     (!pending || pending_there(pending, id / d->pack_rows));
        const uint8_t *rows = pending ? c->w_panels.rows : c->w_data;
        const void *row = rows + (uint64_t)id * dtype_row_bytes(c->w->type, n);
        if (packed) {
            const uint8_t *panel = (const uint8_t *)c->w_data +
                                   (uint64_t)(id / d->pack_rows) * dtype_panel_bytes(c->w->type, n);
            row = scratch_of(x, ith);
            d->unpack_row(panel, (int)(id % d->pack_rows), n, scratch_of(x, ith));
        }
        d->dequant(row, y, n);
        if (p->scale != 1.0f)
            times(kern_of(c), y, p->scale, y, n);
        if (step_plus(s)[r])
            kern_of(c)->add(y, step_embd(s) + r * n, y, n);
    }
}

/* A row of blocks, unpacked. */
static size_t embed_scratch(const struct node *n)
{
    return (size_t)tensor_k(n->w) * 4 + 64;
}

static OP_FN(cpu_gather_rows)
{
    const struct gather_op *p = c->p;
    int64_t n = tensor_k(c->w);
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t k = 0; k * n < c->dst.cols; k++) {
            float *y = value_row(x, &c->dst, r) + k * n;
            const void *row =
                weight_row(c, gather_row(c, x, r, k), dtype_row_bytes(c->w->type, n));
            if (c->w->type == DT_I32)
                for (int64_t i = 0; i < n; i++)
                    y[i] = (float)((const int32_t *)row)[i];
            else
                dtypes[c->w->type].dequant(row, y, n);
            if (p->scale != 1.0f)
                times(kern_of(c), y, p->scale, y, n);
        }
}

/* A table that a product reads, too, may lie in panels: nobody has one. */
static int reads_rows(const struct kern *k, const struct node *n)
{
    (void)k;
    return tensor_layout_on(n->w, n->device) == LAYOUT_ROWS;
}

const struct cpu_op cpu_move_ops[] = {
    {OP_EMBED, "embed", .fn = cpu_embed, .scratch = embed_scratch},
    {OP_GATHER, "gather", .fn = cpu_gather_rows, .can = reads_rows},
    {.fn = NULL},
};
