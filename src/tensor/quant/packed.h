/* packed.h -- weights as the kernels read them: rows interleaved, so that one vector lane is one
 * row.
 *
 * A matrix [M, K] is a sequence of panels of 16 rows (P16, block types) or 64 rows (P64, f32 f16
 * bf16); a panel is contiguous and holds its block columns in order of k. Rows beyond M are zero.
 * "Group g" is k = 4g .. 4g+3 of a block: 64 bytes, row r at bytes 4r..4r+3.
 *
 *   P16, one 32-block of 16 rows
 *     q8_0   544  [16 f16 d][8 groups of int8]
 *     q4_0   288  [16 f16 d][4 x 64: low nibble group g, high nibble group g+4]
 *     q4_1   320  [16 f16 d][16 f16 m][4 x 64 as q4_0]
 *     q5_0   352  as q4_0, then [64: byte j, bit g = fifth bit of byte j of group g]
 *     q5_1   384  as q4_1, then the 64 bytes of fifth bits
 *     iq4_nl 288  as q4_0; the nibbles are indices into the type's 16 values
 *     mxfp4  288  as iq4_nl with [16 bf16 d]: d = 2^(e-128), which multiplies the doubled values
 *                 0 1 2 3 4 6 8 12, is exact in bf16 (e = 0xff: NaN)
 *   P16, one longer block of an A32 type
 *     nvfp4  576  64 weights: [s: 4 parts x 16 rows, E4M3 as in the file, its NaN as 0]
 *                 [4 parts x (2 x 64: low nibbles groups 0 and 1 of the part, high 2 and 3)]
 *     q2_0   288  64 weights: [16 f16 d][4 x 64: 2-bit field f of vector v = group 4v + f]
 *     q1_0   288  128 weights: [16 f16 d][4 x 64: bit g of vector v = group g of the v-th 32]
 *   P16, one 256-block of 16 rows, "sub" = a part with its own scale
 *     q2_K  1344  [16 f16 d][16 f16 dmin]
 *                 [8 pairs of subs x (16 rows x 2 subs) u8: low nibble sc, high nibble min]
 *                 [2 halves of 128 k x 2 (j) x (4 x 64 of 2-bit)];
 *                 sub s = j + 2f of the half: 2-bit field f
 *     q3_K  1824  [16 f16 d][sc: 16 subs x 16 rows s8, 32 subtracted]
 *                 [2 halves of 128 k x 2 (j) x (4 x 64 of 2-bit)(2 x 64 of third bits)];
 *                 2-bit fields as q2_K; third bit of field f of group g = 0..3: vector g/2,
 *                 bit 4 (g & 1) + f; w = low + 4 third - 4
 *     q4_K  2368  [16 f16 d][16 f16 dmin][sc: 8 subs x 16 rows u8]
 *                 [min: 4 x (16 rows x 2 subs) u8]
 *                 [4 pairs x 8 groups x 64: low = sub 2p, high = 2p+1]
 *     q5_K  2880  as q4_K; each pair's 512 bytes are followed by
 *                 [2 x 64: fifth bits of sub 2p, of sub 2p+1; byte j, bit g as above]
 *     q6_K  3360  [16 f16 d][sc: 16 subs x 16 rows s8]
 *                 [2 halves of 128 k x 2 (j) x (4 x 64 of 2-bit)(4 x 64 nibbles va)
 *                 (4 x 64 nibbles vb)];
 *                 sub s = j + 2f: f0 va low, f1 vb low, f2 va high, f3 vb high, 2-bit field f
 *     iq4_xs 2208 [16 f16 d][sc: 8 subs x 16 rows s8, 32 subtracted][8 subs x (4 x 64 as iq4_nl)]
 *     iq3_*  2208 as iq4_xs, without the code book: nibble = magnitude + 8 (minus sign),
 *                 sc = 2s + 1; times d / 4 (xxs)
 *     iq2_*  1824 as q3_K, without the code book: third bit = minus sign; sc = 2s + 1 (twice where
 *                 it is that of 32); times d / 8
 *     iq1_*  1248 [16 f16 d][2s + 1: 8 pairs of subs x 16 rows u8, the even one below]
 *                 [shifts: 2 halves x 2 (j) x 16 rows u8, bit 2f + h: set +1, else -1, of groups
 *                 2h and 2h + 1 of field f][2 halves x 2 (j) x (4 x 64 of 2-bit levels)]; times
 *                 d / 8
 *     tq*   1056  [16 f16 d][2 halves of 128 k x 2 (j) x (4 x 64 of 2-bit)]; fields as q2_K,
 *                 also those of tq1_0, whose digits they are
 *   P64
 *     f32, f16    [k][64 rows]
 *     bf16        [k/2][64 rows][2]; an odd K is padded with a zero
 */
#ifndef PITH_TENSOR_QUANT_PACKED_H
#define PITH_TENSOR_QUANT_PACKED_H

enum {
    P16_Q8_0 = 544,
    P16_Q4_0 = 288,
    P16_Q4_1 = 320,
    P16_Q5_0 = 352,
    P16_Q5_1 = 384,
    P16_IQ4_NL = 288,
    P16_MXFP4 = 288,
    P16_NVFP4 = 576,
    P16_Q1_0 = 288,
    P16_Q2_0 = 288,
    P16_Q2_K = 1344,
    P16_Q3_K = 1824,
    P16_Q4_K = 2368,
    P16_Q5_K = 2880,
    P16_Q6_K = 3360,
    P16_IQ4_XS = 2208,
    P16_IQ3_XXS = 2208,
    P16_IQ3_S = 2208,
    P16_IQ2_XXS = 1824,
    P16_IQ2_XS = 1824,
    P16_IQ2_S = 1824,
    P16_IQ1_S = 1248,
    P16_IQ1_M = 1248,
    P16_TQ1_0 = 1056,
    P16_TQ2_0 = 1056,
    P64_F32 = 256,
    P64_F16 = 128,
    P64_BF16 = 256 /* per k, per k, per pair of k */
};

#endif
