/* cut.h -- nodes whose work several devices share. A weight may be divided by rows (tensor.h,
 * slices); a product with it (op.h, OP_BY_ROWS) is as many products then, each with a slice, and
 * their columns side by side are what it was:
 *
 *     z = x W^T    =>    z_i = x W_i^T for each slice i    z = z_0 z_1 ..
 *
 * What works on columns alone (OP_BY_COLUMNS) is done on the parts before they are brought
 * together, so gate and up are fused where they are. Every element is the sum that it was.
 *
 * A weight may be divided by columns instead, where its input lies in such parts already. Then the
 * parts are never brought together, and sums are added, in the order of the slices:
 *
 *     z = x W^T    =>    z = x_0 W_0^T + x_1 W_1^T + ..   which is another sum: other bits
 *
 * A stack of experts may be divided, too, into ranges of experts. What works for each expert by
 * itself (op.h, experts) and what lies between is done where the experts are, for the rows that are
 * routed there:
 *
 *     routing, x -> on each device: sorted, gate, up, act, down -> z_0 -> z_1 -> .. z
 *
 * z_i is the sum over the experts of devices 0 .. i: one chain over ascending experts, which goes
 * from device to device. So every element is the sum that it was, and what is copied is a row for
 * each row of x, not one for each of its experts. Where something else reads the experts' rows (an
 * adapter), they are picked together first. */
#ifndef PITH_GRAPH_CUT_H
#define PITH_GRAPH_CUT_H

#include "graph/graph.h"

/* Rewrites a graph whose nodes have no devices yet. Parts come in the order of the slices. */
pith_status graph_cut(struct graph *g, struct pith_error *err);

#endif
