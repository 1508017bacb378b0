/* fuse.h -- fusion rules of a graph whose nodes have their devices (fuse.c). */
#ifndef PITH_GRAPH_FUSE_H
#define PITH_GRAPH_FUSE_H

#include "graph/backend.h"

pith_status fuse_graph(struct graph *g, struct device **devices, struct pith_error *err);

#endif
