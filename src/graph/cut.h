/* cut.h -- nodes whose work several devices share. A weight may be divided by rows (tensor.h,
 * slices); a product with it (op.h, OP_BY_ROWS) is as many products then, each with a slice, and
 * their columns side by side are what it was:
 *
 *     z = x W^T    =>    z_i = x W_i^T for each slice i    z = z_0 z_1 ..
 *
 * What works on columns alone (OP_BY_COLUMNS) is done on the parts before they are brought
 * together, so gate and up are fused where they are. Every element is the sum that it was. */
#ifndef PITH_GRAPH_CUT_H
#define PITH_GRAPH_CUT_H

#include "graph/graph.h"

/* Rewrites a graph whose nodes have no devices yet. Parts come in the order of the slices. */
pith_status graph_cut(struct graph *g, struct pith_error *err);

#endif
