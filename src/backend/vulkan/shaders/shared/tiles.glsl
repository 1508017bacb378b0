#include "groups.glsl"
/* tiles.glsl -- products with many rows of x (groups.glsl): a workgroup makes a tile of TILE_M rows
 * of the weight by COLS rows of x. Both are brought to shared memory piece by piece, numbers of the
 * weight taken apart once for all rows of x. Thread t of a line has chain t of products.glsl for
 * PART_M x PART_N elements, in registers; then their tree. So bits are those of products.glsl.
 *
 * Who includes it has defined PART_M, and has the function add_chains. SIZE: pieces of shared
 * memory, of 16 bytes. */
layout(local_size_x = 32, local_size_y = 8) in;

const int PART_N = 8, LINES = 8, MOST_COLS = 32;
#define TILE_M (PART_M * LINES * PART_N / COLS)

shared uvec4 piece[SIZE];
shared uint in_row[MOST_COLS], out_row[MOST_COLS]; /* of x, of the result */
float acc[PART_M][PART_N]; /* a thread's chain of each element */

/* Adds to `acc` this thread's chains of the elements from (i0, c0) of the tile on, where the tile
 * begins with row m0 of a matrix and has n rows of x. */
void add_chains(uint matrix, uint head, uint m0, uint n, uint i0, uint c0);

/* Chains in shared memory: those of an element are 33 words from the next one's, so that threads
 * which go over them in step meet in no bank. */
void put_chain(uint e, uint t, float x)
{
    uint at = 33 * e + t;
    piece[at / 4][at % 4] = floatBitsToUint(x);
}
float chain(uint e, uint t)
{
    uint at = 33 * e + t;
    return uintBitsToFloat(piece[at / 4][at % 4]);
}

float tree_of_chains(uint e)
{
    precise float v[16];
    [[unroll]] for (int j = 0; j < 16; j++)
        v[j] = chain(e, j) + chain(e, j + 16);
    [[unroll]] for (int h = 8; h > 0; h /= 2)
        [[unroll]] for (int j = 0; j < h; j++)
            v[j] = v[j] + v[j + h];
    return v[0];
}

/* Two rows of each thread's elements at a time are as much as shared memory has room for. */
void put_tile(uint matrix, uint head, uint m0, uint n)
{
    const uint EACH = 2 * PART_N;
    uint M = arg.p[1], t = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y, id = 32 * y + t;
    [[unroll]] for (int i = 0; i < PART_M; i += 2) {
        barrier();
        [[unroll]] for (int e = 0; e < EACH; e++)
            put_chain(EACH * y + e, t, acc[i + e / PART_N][e % PART_N]);
        barrier();
        if (id < LINES * EACH) {
            uint line = id / EACH, e = id % EACH, c = line % (COLS / PART_N) * PART_N + e % PART_N;
            uint m = m0 + line / (COLS / PART_N) * PART_M + i + e / PART_N;
            if (c < n && m < M)
                put_element(matrix, head, m, out_row[c], tree_of_chains(id));
        }
    }
}

void main()
{
    uint id = gl_LocalInvocationIndex, y = gl_LocalInvocationID.y, head = gl_WorkGroupID.z;
    uint m0 = gl_WorkGroupID.x * TILE_M;
    for (uint u = gl_WorkGroupID.y;; u += gl_NumWorkGroups.y) {
        group g = group_at(u, head);
        if (g.n == 0)
            break;
        barrier();
        if (id < g.n) {
            out_row[id] = row_in_group(g, id);
            in_row[id] = row_of_x(out_row[id]);
        }
        [[unroll]] for (int i = 0; i < PART_M; i++)
            [[unroll]] for (int c = 0; c < PART_N; c++)
                acc[i][c] = 0;
        barrier();
        add_chains(g.matrix, head, m0, g.n, y / (COLS / PART_N) * PART_M,
                   y % (COLS / PART_N) * PART_N);
        put_tile(g.matrix, head, m0, g.n);
    }
}
