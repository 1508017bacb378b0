/* fuse.h -- see fuse.c. */
#ifndef PITH_GRAPH_FUSE_H
#define PITH_GRAPH_FUSE_H

#include "graph/backend.h"

pith_status fuse_graph(struct graph *g, struct device *const *devices, struct pith_error *err);

/* For rules (op.h, fuse): how often a node's result is read; whether its device has a kernel for
 * it that is not slow; does a come before b in the list; parameters for the node a rule makes, NULL
 * without memory. A rule may rewrite a node before n, too, where its operands are there. */
int32_t fuse_uses(const struct fuser *f, const struct node *n);
int fuse_precedes(const struct node *a, const struct node *b);
int fuse_supported(const struct fuser *f, const struct node *n);
const void *fuse_params(struct fuser *f, const void *p, size_t bytes);

#endif
