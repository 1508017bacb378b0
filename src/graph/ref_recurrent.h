/* ref_recurrent.h -- reference ops of recurrent layers, for the table in ref.c. */
#ifndef PITH_GRAPH_REF_RECURRENT_H
#define PITH_GRAPH_REF_RECURRENT_H

#include "graph/backend.h"

#define REF_OP(name)                                                                               \
    void name(const struct call *c, const struct exec *x, int64_t begin, int64_t end, int ith)
REF_OP(ref_layer_norm);
REF_OP(ref_l2_norm);
REF_OP(ref_affine);
REF_OP(ref_lerp);
REF_OP(ref_head_scale);
REF_OP(ref_conv);
REF_OP(ref_ssm);
REF_OP(ref_wkv7);

#endif
