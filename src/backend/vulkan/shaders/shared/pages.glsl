/* pages.glsl -- K and V of a slot in a page (graph/kv_page.h). K of numbers is [d_k][64 slots], as
 * everywhere; of block types it has a row for each slot, as V has. arg: extra is the group's table
 * of slabs; p[0 .. 9]: group, shift, bytes of a page, kv heads, d_k, d_v, k_off, v_off, k_head,
 * v_head. A state of one row for RATIO slots has its rows in the place of the first. Who has these
 * numbers elsewhere defines PAGE_ARG and the others before. */
#ifndef PAGE_ARG
#define PAGE_ARG(i) arg.p[i]
#define PAGE_VIEWS  arg.extra
#define K_TYPE      SPEC0
#define V_TYPE      SPEC1
#define LATENT      (SPEC2 == 1) /* rows whose first columns are V */
#endif
#ifndef RATIO
#define RATIO 1
#endif
#define K_ROWS (LATENT || K_TYPE > T_BF16)
#define EVERY  (RATIO < PAGE ? RATIO : PAGE)
#define LANES  (PAGE / EVERY <= 16 ? 16 : PAGE) /* from one number of a key to the next */

uint number_bytes(int type) { return type == T_F32 ? 4 : 2; }

float load_number(int type, uint64_t at)
{
    if (type == T_F32)
        return F32(at).v[0];
    uint h = uint(U16(at).v[0]);
    return type == T_F16 ? unpackHalf2x16(h).x : uintBitsToFloat(h << 16);
}

/* To the nearest f16, ties to even. */
uint to_f16(float x)
{
    uint u = floatBitsToUint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return sign | 0x7e00;
    if (a >= 0x477ff000u)
        return sign | 0x7c00;
    if (a < 0x38800000u) { /* less than 2^-14: counts of 2^-24, rounded by the sum */
        precise float r = uintBitsToFloat(a) + 0.5;
        return sign | (floatBitsToUint(r) - 0x3f000000u);
    }
    return sign | (a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13;
}

void store_number(int type, uint64_t at, float x)
{
    uint u = floatBitsToUint(x);
    if (type == T_F32)
        F32(at).v[0] = x;
    else if (type == T_F16)
        U16(at).v[0] = uint16_t(to_f16(x));
    else
        U16(at).v[0] = uint16_t((u & 0x7fffffffu) > 0x7f800000u
                                    ? u >> 16 | 0x40
                                    : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Of slot `slot` of segment seg: its page's first byte; where in the page it is. */
uint64_t page_of(uint seg, uint slot, out uint at)
{
    int place = step_place(PAGE_ARG(0), seg, slot / PAGE);
    uint page = uint(place) / 4;
    at = uint(place) % 4 * QUARTER + slot % PAGE;
    return U64(PAGE_VIEWS).v[page >> PAGE_ARG(1)] +
           uint64_t(page & ((1u << PAGE_ARG(1)) - 1)) * PAGE_ARG(2);
}
/* Where the row of a slot begins; or, of K that has none, its first number. */
uint64_t k_place(uint64_t page, uint head, uint at)
{
    page += PAGE_ARG(6) + uint64_t(head) * PAGE_ARG(8);
    return page + at / EVERY * (K_ROWS ? PAGE_ARG(8) * EVERY / PAGE : number_bytes(K_TYPE));
}
uint64_t v_place(uint64_t page, uint head, uint at)
{
    return LATENT ? k_place(page, head, at)
                  : page + PAGE_ARG(7) + uint64_t(head) * PAGE_ARG(9) +
                        at / EVERY * (PAGE_ARG(9) * EVERY / PAGE);
}
/* Bytes from one number of a key to the next. */
uint k_step() { return (K_ROWS ? 1 : LANES) * number_bytes(K_TYPE); }
