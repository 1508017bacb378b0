/* gguf_parts.c -- what reading, values and writing share: types of values, lists that grow, the
 * files that a set is mapped from. */
#include "base/mem.h"
#include "format/gguf_impl.h"

static const struct {
    const char *name;
    uint32_t bytes; /* 0: not of fixed size */
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},   [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2}, [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1}, [GGUF_STR] = {"str", 0},
    [GGUF_ARR] = {"arr", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? value_types[t].name : "?";
}

uint32_t gguf_type_bytes(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? value_types[t].bytes : 0;
}

void *gguf_grow(void *items, uint64_t n, uint64_t *cap, size_t item_bytes)
{
    uint64_t want = *cap ? *cap * 2 : 16, bytes;
    if (n < *cap)
        return items;
    if (size_mul(want, item_bytes, &bytes) || bytes > SIZE_MAX)
        return NULL;
    void *moved = mem_realloc(items, (size_t)bytes, PITH_MEM_META);
    if (moved)
        *cap = want;
    return moved;
}

int gguf_add_extent(struct gguf *g, struct gguf_extent extent)
{
    struct gguf_extent *moved = gguf_grow(g->extents, g->n_extents, &g->cap_extents, sizeof *moved);
    if (!moved)
        return -1;
    g->extents = moved;
    g->extents[g->n_extents] = extent;
    return (int)g->n_extents++;
}
