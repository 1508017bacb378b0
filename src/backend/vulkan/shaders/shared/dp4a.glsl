#include "common.glsl"
#include "types.glsl"
#include "products.glsl"
/* dp4a.glsl -- products of products.glsl with weights whose numbers are codes, by rows of x that
 * are rounded to codes, too (quantise.comp): each 32 of them to bytes and a scale. Products of
 * bytes are exact, and so is their sum over a unit, the 32 (16 in some types) numbers that have one
 * scale. That is scaled and added to its chain: chain j goes over the blocks j, j + 32, .. of 32
 * numbers. DOT: four bytes at a time by the device's own instruction; the same integers, so the
 * same bits.
 *
 *     a rounded row   [columns] bytes, [columns / 32] scales: `lda` bytes from row to row, `ldb`
 *                     columns */
#define SHORT_UNIT                                                                                 \
    (TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q6_K || TYPE == T_IQ2_XS || TYPE == T_IQ2_S ||  \
     TYPE == T_IQ1_M || TYPE == T_NVFP4)
#define UNIT (SHORT_UNIT ? 2 : 4) /* in octets */

#ifdef DOT /* OpSDot of four bytes in a word: its last operand, 0, says so */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450) int dot4(uint a, uint b, spirv_literal int format);
int dp4a(uint a, uint b, int c) { return c + dot4(a, b, 0); }
#else
int dp4a(uint a, uint b, int c)
{
    [[unroll]] for (int i = 0; i < 32; i += 8)
        c += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return c;
}
#endif
int dot8(uvec2 a, uvec2 b, int c) { return dp4a(a.x, b.x, dp4a(a.y, b.y, c)); }

/* Octets u .. u + UNIT - 1 of block b of rows in_row. */
uvec2 x[MOST_COLS][4];
float dx[MOST_COLS];
int sum_x[MOST_COLS];

void load_x(uint first, uint b, int u)
{
    [[unroll]] for (int c = 0; c < COLS; c++) {
        uint64_t row = arg.a + uint64_t(in_row[c]) * arg.lda;
        dx[c] = F32(row + arg.ldb).v[first / 32 + b];
        sum_x[c] = 0;
        [[unroll]] for (int o = 0; o < UNIT; o++) {
            x[c][o] = quad8(row + first + 32 * uint64_t(b) + 8 * (u + o));
            if (has_least(TYPE))
                sum_x[c] = dot8(uvec2(0x01010101u), x[c][o], sum_x[c]);
        }
    }
}

void add_chains(uint matrix, uint head, uint m0)
{
    uint K = arg.p[0], M = arg.p[1];
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + uint64_t(matrix) * M * bytes;
    for (uint b = gl_LocalInvocationID.x; b < K / 32; b += 32)
        [[unroll]] for (int u = 0; u < 4; u += UNIT) {
            load_x(KIND == HEADS ? head * K : 0, b, u);
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                uint64_t row = w + uint64_t(min(m0 + i, M - 1)) * bytes;
                float d, m;
                int sum[MOST_COLS];
                [[unroll]] for (int o = 0; o < UNIT; o++) {
                    Codes e = codes8(TYPE, row, 4 * b + u + o);
                    d = e.d;
                    m = e.m;
                    [[unroll]] for (int c = 0; c < COLS; c++)
                        sum[c] = dot8(e.q, x[c][o], o == 0 ? 0 : sum[c]);
                }
                [[unroll]] for (int c = 0; c < COLS; c++) {
                    acc[i][c] = fma(d * dx[c], float(sum[c]), acc[i][c]);
                    if (has_least(TYPE))
                        acc[i][c] = fma(m * dx[c], float(sum_x[c]), acc[i][c]);
                }
            }
        }
}
