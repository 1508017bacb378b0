#define PART_M 4
#define SIZE   1280
#include "common.glsl"
#include "types.glsl"
#include "tiles.glsl"
#include "dot.glsl"
/* dp4a_tile.glsl -- products of tiles.glsl with codes, in the order of dp4a.glsl. A piece is 16
 * codes: first halves of the blocks of 32 numbers b, b + 1 .. b + 31 of all rows of the tile, then
 * their second halves. */
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer U128 { uvec4 v[]; };

/* Of each row of the tile and block: the weight's d and m; the scale of x, and what the codes of a
 * unit of it add up to. */
shared float scale[2][1280];
int sum_x[MOST_COLS / LINES]; /* of the rows of x that this thread brings */
int sum[PART_M][PART_N];

void bring(uint64_t w, uint64_t bytes, uint m0, uint first, uint n, uint b, uint h)
{
    uint M = arg.p[1], t = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y;
    [[unroll]] for (int s = 0; s < TILE_M / LINES; s++) {
        uint i = y + LINES * s;
        uint64_t row = w + uint64_t(min(m0 + i, M - 1)) * bytes;
        Codes low = codes8(TYPE, row, 4 * b + 2 * h), high = codes8(TYPE, row, 4 * b + 2 * h + 1);
        piece[32 * i + t] = uvec4(low.q, high.q);
        scale[0][32 * i + t] = high.d;
        scale[1][32 * i + t] = high.m;
    }
    [[unroll]] for (int s = 0; s < COLS / LINES; s++) {
        uint c = y + LINES * s;
        if (c >= n)
            continue;
        uint64_t row = arg.a + uint64_t(in_row[c]) * arg.lda;
        uvec4 q = U128(row + first + 32 * uint64_t(b) + 16 * h).v[0];
        piece[32 * (TILE_M + c) + t] = q;
        scale[0][32 * (TILE_M + c) + t] = F32(row + arg.ldb).v[first / 32 + b];
        if (has_least(TYPE)) {
            sum_x[s] = dot8(uvec2(0x01010101u), q.xy, SHORT_UNIT || h == 0 ? 0 : sum_x[s]);
            sum_x[s] = dot8(uvec2(0x01010101u), q.zw, sum_x[s]);
            scale[1][32 * (TILE_M + c) + t] = float(sum_x[s]);
        }
    }
}

void multiply(uint i0, uint c0, bool begins)
{
    uint t = gl_LocalInvocationID.x;
    uvec4 a[PART_M];
    [[unroll]] for (int i = 0; i < PART_M; i++)
        a[i] = piece[32 * (i0 + i) + t];
    [[unroll]] for (int c = 0; c < PART_N; c++) {
        uvec4 b = piece[32 * (TILE_M + c0 + c) + t];
        [[unroll]] for (int i = 0; i < PART_M; i++)
            sum[i][c] = dot8(a[i].zw, b.zw, dot8(a[i].xy, b.xy, begins ? 0 : sum[i][c]));
    }
}

/* Sums of a unit to their chains. */
void add_unit(uint i0, uint c0)
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (int c = 0; c < PART_N; c++) {
        uint x = 32 * (TILE_M + c0 + c) + t;
        float dx = scale[0][x];
        [[unroll]] for (int i = 0; i < PART_M; i++) {
            acc[i][c] = fma(scale[0][32 * (i0 + i) + t] * dx, float(sum[i][c]), acc[i][c]);
            if (has_least(TYPE))
                acc[i][c] = fma(scale[1][32 * (i0 + i) + t] * dx, scale[1][x], acc[i][c]);
        }
    }
}

void add_chains(uint matrix, uint head, uint m0, uint n, uint i0, uint c0)
{
    uint K = arg.p[0], M = arg.p[1], first = KIND == HEADS ? head * K : 0;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + uint64_t(matrix) * M * bytes;
    for (uint from = 0; from < K / 32; from += 32) {
        uint b = from + gl_LocalInvocationID.x;
        bool some = b < K / 32;
        for (uint h = 0; h < 2; h++) {
            barrier();
            if (some)
                bring(w, bytes, m0, first, n, b, h);
            barrier();
            if (some && c0 < n) {
                multiply(i0, c0, SHORT_UNIT || h == 0);
                if (SHORT_UNIT || h == 1)
                    add_unit(i0, c0);
            }
        }
    }
}
