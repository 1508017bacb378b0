#define PART_M 8
#define SIZE   1536
#include "common.glsl"
#include "types.glsl"
#include "tiles.glsl"
/* tile.comp -- products of tiles.glsl with numbers, in the order of matmul.comp. A piece is four
 * numbers of an octet: the octets k8, k8 + 1 .. k8 + 31 of all rows of the tile, their first halves
 * and then their second ones. */
const int MOST_EACH = 4; /* rows of the weight that a thread takes apart */

vec4 first[MOST_EACH], second[MOST_EACH];

/* Octet k8 of the rows of the weight that are this thread's. */
void decode(uint64_t w, uint64_t bytes, uint m0, uint k8)
{
    uint K = arg.p[0], M = arg.p[1], y = gl_LocalInvocationID.y;
    [[unroll]] for (int s = 0; s < TILE_M / LINES; s++) {
        decode8(TYPE, w + uint64_t(min(m0 + y + LINES * s, M - 1)) * bytes, k8, K);
        first[s] = vec4(w8[0], w8[1], w8[2], w8[3]);
        second[s] = vec4(w8[4], w8[5], w8[6], w8[7]);
    }
}

void bring(uint64_t x0, uint n, uint k8, uint h)
{
    uint K = arg.p[0], t = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y, k = 8 * k8 + 4 * h;
    [[unroll]] for (int s = 0; s < TILE_M / LINES; s++)
        piece[32 * (y + LINES * s) + t] = floatBitsToUint(h == 0 ? first[s] : second[s]);
    [[unroll]] for (int s = 0; s < COLS / LINES; s++) {
        uint c = y + LINES * s;
        if (c < n) {
            F32 row = F32(x0 + 4 * (uint64_t(in_row[c]) * arg.lda + k));
            vec4 x;
            [[unroll]] for (int j = 0; j < 4; j++)
                x[j] = k + j < K ? row.v[j] : 0;
            piece[32 * (TILE_M + c) + t] = floatBitsToUint(x);
        }
    }
}

void multiply(uint i0, uint c0)
{
    uint t = gl_LocalInvocationID.x;
    vec4 a[PART_M];
    [[unroll]] for (int i = 0; i < PART_M; i++)
        a[i] = uintBitsToFloat(piece[32 * (i0 + i) + t]);
    [[unroll]] for (int c = 0; c < PART_N; c++) {
        vec4 b = uintBitsToFloat(piece[32 * (TILE_M + c0 + c) + t]);
        [[unroll]] for (int i = 0; i < PART_M; i++)
            [[unroll]] for (int j = 0; j < 4; j++)
                acc[i][c] = fma(a[i][j], b[j], acc[i][c]);
    }
}

void add_chains(uint matrix, uint head, uint m0, uint n, uint i0, uint c0)
{
    uint K = arg.p[0], M = arg.p[1];
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + uint64_t(matrix) * M * bytes;
    uint64_t x0 = arg.a + (KIND == HEADS ? 4 * uint64_t(head) * K : 0);
    for (uint from = 0; from < K; from += 256) {
        uint k8 = from / 8 + gl_LocalInvocationID.x;
        bool some = 8 * k8 < K;
        if (some)
            decode(w, bytes, m0, k8);
        for (uint h = 0; h < 2; h++) {
            barrier();
            if (some)
                bring(x0, n, k8, h);
            barrier();
            if (some && c0 < n)
                multiply(i0, c0);
        }
    }
}
