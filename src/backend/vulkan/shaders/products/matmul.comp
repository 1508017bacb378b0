#include "common.glsl"
#include "types.glsl"
#include "products.glsl"
/* matmul.comp -- products of products.glsl with numbers: chain j goes over the octets j, j + 32, ..
 * of K in order, number by number. */

void add_chains(uint matrix, uint head, uint m0)
{
    uint K = arg.p[0], M = arg.p[1], t = gl_LocalInvocationID.x;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + uint64_t(matrix) * M * bytes;
    uint64_t x0 = arg.a + (KIND == HEADS ? 4 * uint64_t(head) * K : 0);
    for (uint k8 = t; 8 * k8 < K; k8 += 32) {
        float x[MOST_COLS][8];
        [[unroll]] for (int c = 0; c < COLS; c++) {
            F32 row = F32(x0 + 4 * (uint64_t(in_row[c]) * arg.lda + 8 * k8));
            [[unroll]] for (int j = 0; j < 8; j++)
                x[c][j] = 8 * k8 + j < K ? row.v[j] : 0;
        }
        [[unroll]] for (int i = 0; i < ROWS; i++) {
            decode8(TYPE, row_at(w, m0, i, bytes), k8, K);
            [[unroll]] for (int c = 0; c < COLS; c++)
                [[unroll]] for (int j = 0; j < 8; j++)
                    acc[i][c] = fma(w8[j], x[c][j], acc[i][c]);
        }
    }
}
