/* quant.h -- the functions every weight type with values supplies (struct dtype_traits tells what
 * each does). A type's file defines NAME_dequant, NAME_quant, NAME_dot, NAME_check and, when its
 * row of dtypes.def names a packed layout, NAME_pack, NAME_unpack_row and (16 rows) NAME_pack_row,
 * mostly by one of the macros of block.h. */
#ifndef PITH_TENSOR_QUANT_QUANT_H
#define PITH_TENSOR_QUANT_QUANT_H

#include <stdint.h>
#include "tensor/act.h"

#define X(NAME, name, id, n, bytes, act, rows)                                                     \
    void NAME##_dequant(const void *blocks, float *out, int64_t n_elems);                          \
    void NAME##_quant(const float *in, void *blocks, int64_t n_elems);                             \
    float NAME##_dot(const void *blocks, const struct act_tile *a, int c, int64_t n_elems);        \
    int64_t NAME##_check(const void *blocks, int64_t n_elems);                                     \
    void NAME##_pack(const void *const *src, int n_src, int64_t n_elems, void *out);               \
    void NAME##_pack_row(const void *blocks, int row, int64_t n_elems, void *packed);              \
    void NAME##_unpack_row(const void *packed, int row, int64_t n_elems, void *blocks);
#include "tensor/dtypes.def"
#undef X

#endif
