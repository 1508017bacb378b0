/* pages.cuh -- K and V of a slot in a page (graph/kv_page.h). K of numbers is [d_k][64 slots], as
 * everywhere; of block types it has a row for each slot, as V has. arg: extra is the group's table
 * of slabs; p[0 .. 9]: group, shift, bytes of a page, kv heads, d_k, d_v, k_off, v_off, k_head,
 * v_head. spec: types of K and V, latent rows (whose first columns are V). A state of one row for
 * `ratio` slots has its rows in the place of the first. */
#pragma once
#include "types.cuh"

FN int k_type(const Args &a) { return a.spec[0]; }
FN int v_type(const Args &a) { return a.spec[1]; }
FN bool is_latent(const Args &a) { return a.spec[2] == 1; }
FN bool k_has_rows(const Args &a) { return is_latent(a) || k_type(a) > T_BF16; }

FN uint32_t number_bytes(int type) { return type == T_F32 ? 4 : 2; }

FN float load_number(int type, uint64_t at)
{
    return type == T_F32 ? *f32_at(at) : type == T_F16 ? f16(at) : bf16(at);
}

/* To the nearest f16, ties to even. */
FN uint32_t to_f16(float x)
{
    uint32_t u = as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return sign | 0x7e00;
    if (a >= 0x477ff000u)
        return sign | 0x7c00;
    if (a < 0x38800000u) /* less than 2^-14: counts of 2^-24, rounded by the sum */
        return sign | (as_uint(as_float(a) + 0.5f) - 0x3f000000u);
    return sign | (a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13;
}

FN uint32_t to_bf16(float x)
{
    uint32_t u = as_uint(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

FN void store_number(int type, uint64_t at, float x)
{
    if (type == T_F32)
        *f32_at(at) = x;
    else
        put16(at, type == T_F16 ? to_f16(x) : to_bf16(x));
}

/* Of slot `slot` of segment seg: its page's first byte; where in the page it is. */
FN uint64_t page_of(const Args &a, uint32_t seg, uint32_t slot, uint32_t *at)
{
    uint32_t place = (uint32_t)step_place(a, a.p[0], seg, slot / PAGE), page = place / 4;
    *at = place % 4 * QUARTER + slot % PAGE;
    return u64(a.extra + 8 * (uint64_t)(page >> a.p[1])) +
           (uint64_t)(page & ((1u << a.p[1]) - 1)) * a.p[2];
}
FN uint32_t every(uint32_t ratio) { return least(ratio, PAGE); }
/* Where the row of a slot begins; or, of K that has none, its first number. */
FN uint64_t k_place(const Args &a, uint64_t page, uint32_t head, uint32_t at, uint32_t ratio = 1)
{
    page += a.p[6] + (uint64_t)head * a.p[8];
    return page + at / every(ratio) * (k_has_rows(a) ? a.p[8] * every(ratio) / PAGE
                                                     : number_bytes(k_type(a)));
}
FN uint64_t v_place(const Args &a, uint64_t page, uint32_t head, uint32_t at, uint32_t ratio = 1)
{
    return is_latent(a) ? k_place(a, page, head, at, ratio)
                        : page + a.p[7] + (uint64_t)head * a.p[9] +
                              at / every(ratio) * (a.p[9] * every(ratio) / PAGE);
}
/* Bytes from one number of a key to the next. */
FN uint32_t k_step(const Args &a, uint32_t ratio = 1)
{
    uint32_t lanes = PAGE / every(ratio) <= 16 ? 16u : 64u;
    return (k_has_rows(a) ? 1 : lanes) * number_bytes(k_type(a));
}
