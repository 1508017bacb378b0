/* dtype.c -- the traits table, built from dtypes.def, and look-ups in it. */
#include "tensor/dtype.h"

#include <stddef.h>

#include "base/mem.h"
#include "tensor/quant/packed.h"
#include "tensor/quant/quant.h"

/* A row of dtypes.def decides by its contract and its interleave which functions exist. */
#define IF_ACT_NONE(f) NULL
#define IF_ACT_F32(f)  f
#define IF_ACT_A32(f)  f
#define IF_ACT_A256(f) f
#define IF_ACT_BF16(f) f

#define IF_ROWS_0(f)  NULL
#define IF_ROWS_16(f) f
#define IF_ROWS_64(f) f

#define IF_16_0(f)  NULL
#define IF_16_16(f) f
#define IF_16_64(f) NULL

#define BYTES_0(NAME)  0
#define BYTES_16(NAME) P16_##NAME
#define BYTES_64(NAME) P64_##NAME

const struct dtype_traits dtypes[DT_COUNT] = {
#define X(NAME, name_, id, n, bytes, act_, rows)                                                   \
    [DT_##NAME] = {                                                                                \
        .name = name_,                                                                             \
        .gguf_id = id,                                                                             \
        .block = n,                                                                                \
        .block_bytes = bytes,                                                                      \
        .act = act_,                                                                               \
        .pack_rows = rows,                                                                         \
        .dequant = IF_##act_(NAME##_dequant),                                                      \
        .quant = IF_##act_(NAME##_quant),                                                          \
        .dot = IF_##act_(NAME##_dot),                                                              \
        .packed_bytes = BYTES_##rows(NAME),                                                        \
        .pack = IF_ROWS_##rows(NAME##_pack),                                                       \
        .unpack_row = IF_ROWS_##rows(NAME##_unpack_row),                                           \
        .pack_row = IF_16_##rows(NAME##_pack_row),                                                 \
        .check = IF_##act_(NAME##_check),                                                          \
    },
#include "tensor/dtypes.def"
#undef X
};

int dtype_from_gguf(uint32_t id)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (dtypes[t].gguf_id == id)
            return t;
    return -1;
}

static int lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

int dtype_from_name(const char *name)
{
    for (int t = 0; t < DT_COUNT; t++) {
        const char *a = name, *b = dtypes[t].name;
        while (*a && lower(*a) == lower(*b))
            a++, b++;
        if (!*a && !*b)
            return t;
    }
    return -1;
}

static uint64_t blocks_bytes(uint64_t n_blocks, int32_t bytes)
{
    uint64_t total;
    return size_mul(n_blocks, (uint64_t)bytes, &total) ? UINT64_MAX : total;
}

uint64_t dtype_row_bytes(enum dtype t, int64_t n)
{
    return blocks_bytes((uint64_t)n / (uint64_t)dtypes[t].block, dtypes[t].block_bytes);
}

uint64_t dtype_panel_bytes(enum dtype t, int64_t n)
{
    uint64_t columns = (uint64_t)n / (uint64_t)dtypes[t].block;
    if (dtypes[t].act == ACT_BF16) /* a column is a pair of k */
        columns = (columns + 1) / 2;
    return blocks_bytes(columns, dtypes[t].packed_bytes);
}

int64_t dtype_check(enum dtype t, const void *blocks, int64_t n)
{
    return dtypes[t].check ? dtypes[t].check(blocks, n) : -1;
}
