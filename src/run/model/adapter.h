/* adapter.h -- a low-rank adapter of a model (graph/ops/adapt.h): a GGUF file whose tensors
 * NAME.lora_a [.., rank, K] and NAME.lora_b [.., M, rank] belong to the model's NAME. It lies as
 * f32 on every device that adds something to products with NAME, and can be used by any number of
 * sessions of its model. */
#ifndef PITH_RUN_ADAPTER_H
#define PITH_RUN_ADAPTER_H

#include "run/model/model.h"

struct adapter_pair {
    const struct tensor *w;
    struct sourced_tensor a, b; /* as graph/ops/adapt.h wants them */
    uint32_t on;        /* bit d: device d adds it to a product */
};

struct pith_adapter {
    _Atomic(int) refs;
    struct pith_model *model;
    struct mem_account account; /* its blocks, but for itself */
    struct arena arena;
    struct adapter_pair *pair; /* [n] */
    int32_t n, rank;           /* rank: the largest */
    float alpha;               /* 0: none, a scale is what it is */
    uint64_t id[2];            /* of what it holds */
    struct weight_buffers buffers[MAX_DEVICES];
};

struct pith_adapter *adapter_open(struct pith_model *m, const char *path, struct pith_error *err);
struct pith_adapter *adapter_ref(struct pith_adapter *a);
void adapter_unref(struct pith_adapter *a); /* NULL allowed */
/* NULL: it adds nothing to products with w. */
const struct adapter_pair *adapter_pair_of(const struct pith_adapter *a, const struct tensor *w);

#endif
