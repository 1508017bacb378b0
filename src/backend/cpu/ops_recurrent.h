/* ops_recurrent.h -- the ops of recurrent layers, for the table in ops.c. */
#ifndef PITH_CPU_OPS_RECURRENT_H
#define PITH_CPU_OPS_RECURRENT_H

#include "backend/cpu/cpu.h"

#define CPU_OP(name)                                                                               \
    void name(const struct call *c, const struct exec *x, int64_t begin, int64_t end, int ith)
CPU_OP(op_layer_norm);
CPU_OP(op_l2_norm);
CPU_OP(op_affine);
CPU_OP(op_lerp);
CPU_OP(op_head_scale);
CPU_OP(op_ssm);
CPU_OP(op_wkv7);

#endif
