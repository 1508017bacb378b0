/* ops.h -- the builders of every group of ops, for those who write models. */
#ifndef PITH_GRAPH_OPS_H
#define PITH_GRAPH_OPS_H

#include "graph/ops/adapt.h"
#include "graph/ops/attention.h"
#include "graph/ops/conv.h"
#include "graph/ops/index.h"
#include "graph/ops/moe.h"
#include "graph/ops/move.h"
#include "graph/ops/norm.h"
#include "graph/ops/product.h"
#include "graph/ops/rope.h"
#include "graph/ops/rows.h"
#include "graph/ops/scan.h"
#include "graph/ops/stream.h"

#endif
