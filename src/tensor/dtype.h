/* dtype.h -- the weight types: sizes, the file's block layout, and what each one needs from its
 * activations.
 *
 * A type's traits are rows of functions over one row of blocks in the file's layout (`quant/` has
 * one file per family). Packed layouts interleave rows: P16 = 16 rows of a block type, P64 = 64
 * rows of f32/f16/bf16 (see quant/packed.h for the bytes). */
#ifndef PITH_TENSOR_DTYPE_H
#define PITH_TENSOR_DTYPE_H

#include "base/error.h"
#include "tensor/act.h"
#include "tensor/dtype_ids.h"

struct dtype_traits {
    const char *name;
    uint32_t gguf_id;
    int32_t block, block_bytes;
    enum act_kind act;
    int32_t pack_rows; /* rows interleaved when packed: 16, 64 or 0 */
    /* One row of n elements (a multiple of block) between f32 and the file's blocks; NULL for
     * integer types. Plain C, exact in the sense of the format's definition: dequantise reproduces
     * the published values bit for bit. */
    void (*dequant)(const void *blocks, float *out, int64_t n);
    void (*quant)(const float *in, void *blocks, int64_t n);
    /* Reference dot product of docs/numerics.md: one row of n weights with row c of an activation
     * tile in the contract's format. */
    float (*dot)(const void *blocks, const struct act_tile *a, int c, int64_t n);
    /* Packed layout: bytes of one block column of pack_rows rows (of bf16: of one pair of k); pack
     * n_rows <= pack_rows rows (missing rows are zero); and back. */
    int32_t packed_bytes;
    void (*pack)(const void *const *rows, int n_rows, int64_t n, void *out);
    void (*unpack_row)(const void *packed, int row, int64_t n, void *blocks);
    /* One row into its place among the others, which stay as they are. NULL but for pack_rows 16.
     */
    void (*pack_row)(const void *blocks, int row, int64_t n, void *packed);
    /* Index of the first of n elements' blocks whose scale (or value) is not finite, or -1. NULL
     * for integer types. */
    int64_t (*check)(const void *blocks, int64_t n);
};
extern const struct dtype_traits dtypes[DT_COUNT];

int dtype_from_gguf(uint32_t id);      /* enum dtype or -1 */
int dtype_from_name(const char *name); /* enum dtype or -1; case-insensitive */
/* Bytes of n elements, a multiple of the block; UINT64_MAX when that does not fit. */
uint64_t dtype_row_bytes(enum dtype t, int64_t n);
/* Bytes of one packed panel (pack_rows rows of n elements), 0 for types without a packed layout. */
uint64_t dtype_panel_bytes(enum dtype t, int64_t n);
/* Does every scale of the blocks hold a finite number? Returns the index of the first bad block or
 * -1. */
int64_t dtype_check(enum dtype t, const void *blocks, int64_t n);

#endif
