/* list.c -- the kernel of a node: the first row for its op in the groups' lists (ops.h). */
#include "backend/cpu/ops/ops.h"

_Static_assert((int)KERN_PAGE == (int)STEP_PAGE && (int)KERN_SPAN == (int)ATTN_SPAN,
               "kernels and graph agree on pages");

static const struct cpu_op *const groups[] = {
    cpu_rows_ops, cpu_norm_ops,      cpu_rope_ops, cpu_product_ops, cpu_moe_ops,
    cpu_scan_ops, cpu_attention_ops, cpu_conv_ops, cpu_move_ops,    cpu_stream_ops};

int cpu_ops_impl(const struct kern *kern, const struct node *n, struct op_impl *out)
{
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (const struct cpu_op *row = groups[g]; row->fn; row++) {
            if (row->op != n->op || (row->can && !row->can(kern, n)))
                continue;
            int mapped = row->mapped[0] && tensor_layout_on(n->w, n->device) != LAYOUT_PANELS;
            *out = (struct op_impl){.kernel = mapped ? row->mapped[!!kern->pack[n->w->type]]
                                                     : row->kernel,
                                    .fn = row->fn,
                                    .units = row->units,
                                    .ctx = kern,
                                    .scratch = row->scratch ? row->scratch(n) : 0};
            return 1;
        }
    return 0;
}
