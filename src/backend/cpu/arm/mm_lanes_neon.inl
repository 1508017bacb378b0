/* mm_lanes_neon.inl -- whole numbers for the templates of matrix products (AArch64): vi has as many
 * lanes of 32 bits as R of simd.h has floats, here 4. The other mm_lanes_*.inl have the same names
 * for 8 and 16. A lane is a row of the panel.
 *
 * Operators on vectors and casts between them are those of gcc and clang: a shift by a constant is
 * one instruction, by a variable two. */
#define SIMD_NEON
#include "backend/cpu/simd.h"

enum { LANES = 4 };
typedef int32x4_t vi;

/* Makes the value be computed here. */
#define PIN(v) __asm__("" : "+w"(v))
/* Keeps a result that nobody reads. */
#define USE(v) __asm__ volatile("" : : "w"(v))

INLINE vi vi_load(const void *p)
{
    return (vi)vld1q_u8(p);
}
INLINE void vi_store(void *p, vi a)
{
    vst1q_u8(p, (uint8x16_t)a);
}
INLINE vi vi_zero(void)
{
    return vdupq_n_s32(0);
}
INLINE vi vi_set8(int v)
{
    return (vi)vdupq_n_s8((int8_t)v);
}
INLINE vi vi_set32(int v)
{
    return vdupq_n_s32(v);
}
INLINE vi vi_and(vi a, vi b)
{
    return a & b;
}
INLINE vi vi_or(vi a, vi b)
{
    return a | b;
}
INLINE vi vi_xor(vi a, vi b)
{
    return a ^ b;
}
INLINE vi vi_or_masked(vi a, vi b, vi mask)
{
    return a | (b & mask);
}
INLINE vi vi_sub8(vi a, vi b)
{
    return (vi)((int8x16_t)a - (int8x16_t)b);
}
/* As unsigned: they wrap. */
INLINE vi vi_add32(vi a, vi b)
{
    return (vi)((uint32x4_t)a + (uint32x4_t)b);
}
INLINE vi vi_sub32(vi a, vi b)
{
    return (vi)((uint32x4_t)a - (uint32x4_t)b);
}
INLINE vi vi_mul32(vi a, vi b)
{
    return (vi)((uint32x4_t)a * (uint32x4_t)b);
}
INLINE vi vi_max32(vi a, vi b)
{
    return vmaxq_s32(a, b);
}
typedef uint32x4_t vi_mask;
INLINE vi_mask vi_greater32(vi a, vi b)
{
    return vcgtq_s32(a, b);
}
INLINE vi vi_select(vi_mask m, vi a, vi b)
{
    return vbslq_s32(m, a, b);
}
INLINE vi vi_shl16(vi a, const int n)
{
    return (vi)((uint16x8_t)a << (uint16_t)n);
}
INLINE vi vi_shr16(vi a, const int n)
{
    return (vi)((uint16x8_t)a >> (uint16_t)n);
}
INLINE vi vi_shl32(vi a, const int n)
{
    return (vi)((uint32x4_t)a << (uint32_t)n);
}
INLINE vi vi_shr32(vi a, const int n)
{
    return (vi)((uint32x4_t)a >> (uint32_t)n);
}
INLINE vi vi_shr32_by(vi a, int n)
{
    return vi_shr32(a, n);
}
/* 16 bytes to look up in, and LANES * 4 look-ups. */
INLINE vi vi_table(const uint8_t *p)
{
    return (vi)vld1q_u8(p);
}
INLINE vi vi_look_up(vi table, vi index)
{
    return (vi)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
}
/* LANES bytes or int16 to int32, 2 LANES bytes to int16. */
INLINE int16x8_t s8_to_16(const void *p)
{
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vmovl_s8(vcreate_s8(four));
}
INLINE vi vi_s8_to_32(const void *p)
{
    return vmovl_s16(vget_low_s16(s8_to_16(p)));
}
INLINE vi vi_u8_to_32(const void *p)
{
    return vi_and(vi_s8_to_32(p), vi_set32(255));
}
INLINE vi vi_u8_to_16(const void *p)
{
    return (vi)vmovl_u8(vld1_u8(p));
}
INLINE vi vi_s16_to_32(const int16_t *p)
{
    return vmovl_s16(vld1_s16(p));
}

/* 16 bytes of row r; words and pairs of words of two such, alternating. */
INLINE vi vi_rows(const uint8_t *p, int64_t ld)
{
    (void)ld; /* of rows r + 4 ..., which wider vectors take too */
    return vi_load(p);
}
INLINE vi vi_low32(vi a, vi b)
{
    return vzip1q_s32(a, b);
}
INLINE vi vi_high32(vi a, vi b)
{
    return vzip2q_s32(a, b);
}
INLINE vi vi_low64(vi a, vi b)
{
    return (vi)vzip1q_s64((int64x2_t)a, (int64x2_t)b);
}
INLINE vi vi_high64(vi a, vi b)
{
    return (vi)vzip2q_s64((int64x2_t)a, (int64x2_t)b);
}
INLINE void vi_transpose128(vi *out, const vi *u)
{
    out[0] = u[0];
}
/* The low halves of all lanes to p, the high ones to p + step. */
INLINE void vi_store_words(uint8_t *p, int64_t step, vi a)
{
    vst1_u8(p, (uint8x8_t)vmovn_u32((uint32x4_t)a));
    vst1_u8(p + step, (uint8x8_t)vshrn_n_u32((uint32x4_t)a, 16));
}
/* Byte j of all lanes to p + j * step. */
INLINE void vi_store_bytes(uint8_t *p, int64_t step, vi a)
{
    static const uint8_t by_byte[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    a = (vi)vqtbl1q_u8((uint8x16_t)a, vld1q_u8(by_byte));
    UNROLL for (int j = 0; j < 4; j++)
    {
        int32_t four = a[j];
        __builtin_memcpy(p + j * step, &four, 4);
    }
}

/* Half of LANES scales of E4M3 without sign: as f16, whose exponent's bias is 8 more. */
INLINE R r_load_e4m3(const uint8_t *p)
{
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    const uint16x4_t s = vget_low_u16(vmovl_u8(vcreate_u8(four & 0x7f7f7f7f)));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(s, 7))), 128.0f);
}
INLINE R r_zero(void)
{
    return vdupq_n_f32(0);
}
INLINE R r_fnma(R a, R b, R c)
{
    return vfmsq_f32(c, a, b);
} /* -(a * b) + c */
INLINE R r_from_int(vi a)
{
    return vcvtq_f32_s32(a);
}
INLINE vi r_to_int(R a)
{
    return vcvtnq_s32_f32(a);
} /* to nearest even */
INLINE R r_bits(vi a)
{
    return (R)a;
}
INLINE vi vi_bits(R a)
{
    return (vi)a;
}

INLINE int32_t vi_hmax(vi a)
{
    return vmaxvq_s32(a);
}
/* 16 lanes to 16 bytes; they fit. Returns their sum. */
INLINE int32_t vi_store_s8(int8_t *q, const vi a[4])
{
    int16x8_t low = vcombine_s16(vmovn_s32(a[0]), vmovn_s32(a[1])),
              high = vcombine_s16(vmovn_s32(a[2]), vmovn_s32(a[3]));
    int8x16_t bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    vst1q_s8(q, bytes);
    return vaddlvq_s8(bytes);
}
/* 16 lanes to their low 16 bits. */
INLINE void vi_store_u16(uint16_t *p, const vi a[4])
{
    UNROLL for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32((uint32x4_t)a[i]));
}
/* The 8 sums of two neighbours of 16. */
INLINE void add_neighbours(int16_t out[8], const int16_t *s)
{
    vst1q_s16(out, vpaddq_s16(vld1q_s16(s), vld1q_s16(s + 8)));
}

/* Denormal inputs and results become zero from flush_begin to flush_end, which says whether a
 * result did: this machine decides before rounding, the law after it. */
enum { FPCR_FZ = 1 << 24, FPSR_UFC = 1 << 3 };
typedef struct {
    uint64_t fpcr, fpsr;
} flush_state;
INLINE flush_state flush_begin(void)
{
    flush_state saved;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr"
                     : "=r"(saved.fpcr), "=r"(saved.fpsr)
                     :
                     : "memory");
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(saved.fpcr | FPCR_FZ), "r"(saved.fpsr & ~(uint64_t)FPSR_UFC)
                     : "memory");
    return saved;
}
INLINE int flush_end(flush_state saved)
{
    uint64_t fpsr;
    __asm__ volatile("mrs %0, fpsr" : "=r"(fpsr) : : "memory");
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(saved.fpcr), "r"(saved.fpsr | fpsr)
                     : "memory");
    return (fpsr & FPSR_UFC) != 0;
}

/* Not wanted: weights are signed here. */
INLINE void minus_sums_of_16(int32_t out[8], const int8_t *x)
{
    (void)out, (void)x;
}

/* sum + the products of both int16 of each lane. */
INLINE vi dot16(vi sum, vi a, vi b)
{
    int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
    return vi_add32(sum, vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b)));
}
