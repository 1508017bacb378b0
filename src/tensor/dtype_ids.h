/* dtype_ids.h -- the enum of dtypes.def, for freestanding kernel objects. */
#ifndef PITH_TENSOR_DTYPE_IDS_H
#define PITH_TENSOR_DTYPE_IDS_H

enum dtype {
#define X(NAME, name, id, n, bytes, act, rows) DT_##NAME,
#include "tensor/dtypes.def"
#undef X
    DT_COUNT
};

#endif
