/* source.h -- what a file has of a weight: for whoever fills placements, and for constants that the
 * host computes. Backends see placements alone (scripts/check_layers.sh holds them to it). */
#ifndef PITH_TENSOR_SOURCE_H
#define PITH_TENSOR_SOURCE_H

#include "tensor/tensor.h"

struct tensor_source {
    enum dtype type;
    const uint8_t *data; /* mapped, or computed from what is; valid while the model is open */
    uint64_t bytes;
    uint64_t row; /* of columns: from one row to the next there; 0: rows are neighbours */
    int computed;
};

/* A weight with its source behind it, as models and adapters allocate them. */
struct sourced_tensor {
    struct tensor t;
    struct tensor_source s;
};

#endif
