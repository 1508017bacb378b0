/* value.c -- where the parts of a value lie: activation formats have several (tensor/act.h). */
#include "graph/backend.h"

static uint64_t quant_blocks(const struct value *v)
{
    return (uint64_t)v->cap_rows * (uint64_t)v->cols / (v->fmt == ACT_A256 ? 256 : 32);
}

uint64_t value_bytes(const struct value *v)
{
    uint64_t n = (uint64_t)v->cap_rows * (uint64_t)v->cols;
    switch (v->fmt) {
    case ACT_A32:
        return size_align(n, 64) + 2 * size_align(quant_blocks(v) * 4, 64);
    case ACT_A256:
        return size_align(n, 64) + size_align(quant_blocks(v) * 8, 64) + quant_blocks(v) * 32;
    case ACT_BF16:
        return (uint64_t)v->cap_rows * size_align((uint64_t)v->cols, 2) * 2;
    case ACT_CODED:
        return (uint64_t)(v->cap_rows * act_coded_bytes(v->cols));
    default:
        return n * 4;
    }
}

struct act_out value_out(const struct exec *x, const struct value *v, int64_t i)
{
    int64_t rows = exec_rows(x, v->rows, v->rows_mul), first = i * ACT_TILE;
    struct act_out t = {.nc = (int32_t)(rows - first < ACT_TILE ? rows - first : ACT_TILE)};
    uint8_t *p = value_ptr(x, v);
    uint64_t n = size_align((uint64_t)v->cap_rows * (uint64_t)v->cols, 64);
    switch (v->fmt) {
    case ACT_A32:
        t.q = (int8_t *)p + first * v->cols;
        t.d = (float *)(p + n) + first * (v->cols / 32);
        t.s32 = (int32_t *)(p + n + size_align(quant_blocks(v) * 4, 64)) + first * (v->cols / 32);
        break;
    case ACT_A256:
        t.q = (int8_t *)p + first * v->cols;
        t.d = (float *)(p + n) + first * (v->cols / 128);
        t.s16 =
            (int16_t *)(p + n + size_align(quant_blocks(v) * 8, 64)) + first * (v->cols / 256) * 16;
        break;
    case ACT_BF16:
        t.ld = (int64_t)size_align((uint64_t)v->cols, 2);
        t.h = (uint16_t *)p + first * t.ld;
        break;
    default:
        t.ld = v->ld;
        t.f = (float *)p + first * v->ld;
    }
    return t;
}

struct act_tile value_tile(const struct exec *x, const struct value *v, int64_t i)
{
    const struct act_out t = value_out(x, v, i); /* inlined: no copy of what was just written */
    return act_read(&t);
}
