#include "common.glsl"
#include "types.glsl"
#include "products.glsl"
#include "dot.glsl"
/* dp4a.glsl -- products of products.glsl with weights whose numbers are codes, by rows of x that
 * are rounded to codes, too (quantise.comp): each 32 of them to bytes and a scale. Products of
 * bytes are exact, and so is their sum over a unit. That is scaled and added to its chain: chain j
 * goes over the blocks j, j + 32, .. of 32 numbers. */

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
                uint64_t row = row_at(w, m0, i, bytes);
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
