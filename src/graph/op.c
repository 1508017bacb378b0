/* op.c -- the rows of all ops, and the plain C reference as an implementation. */
#include "graph/op.h"

#include "graph/backend.h"

#define X(NAME, row) &row,
const struct op_info *const op_infos[OP_COUNT] = {
#include "graph/ops.def"
};
#undef X

void ref_impl(const struct node *n, struct op_impl *out)
{
    const struct op_info *info = op_infos[n->op];
    *out = (struct op_impl){.kernel = "reference",
                            .fn = info->reference,
                            .units = info->units,
                            .scratch = info->scratch ? info->scratch(n) : 0};
}
