#include "groups.glsl"
/* products.glsl -- products with few rows of x (groups.glsl), and what their sums are: a
 * workgroup's threads take the 32 chains of 4 ROWS weight rows with up to COLS rows of x; then
 * their tree. So an element's bits depend on nothing beside it. tiles.glsl keeps to the same chains
 * and tree for many rows.
 *
 * Who includes it has the function add_chains. */
layout(local_size_x = 32, local_size_y = 4) in;

const int MOST_COLS = 8, MOST_ROWS = 4;
#define ROWS SPEC3

shared float lane[4][MOST_ROWS][MOST_COLS][32];
float acc[MOST_ROWS][MOST_COLS]; /* a thread's chain of each element */

/* Rows of x, and of the result, of this workgroup's columns. */
uint in_row[MOST_COLS], out_row[MOST_COLS];

/* Adds to `acc` this thread's chains of rows m0 .. m0 + ROWS - 1 of a matrix by rows in_row. */
void add_chains(uint matrix, uint head, uint m0);

void products(uint matrix, uint head, uint m0, uint n)
{
    uint M = arg.p[1], t = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y;
    [[unroll]] for (int i = 0; i < ROWS; i++)
        [[unroll]] for (int c = 0; c < COLS; c++)
            acc[i][c] = 0;
    add_chains(matrix, head, m0);
    barrier();
    [[unroll]] for (int i = 0; i < ROWS; i++)
        [[unroll]] for (int c = 0; c < COLS; c++)
            lane[y][i][c][t] = acc[i][c];
    barrier();
    for (uint e = t; e < ROWS * COLS; e += 32) { /* a thread sums an element's chains */
        uint i = e / COLS, c = e % COLS, m = m0 + i;
        if (c >= n || m >= M)
            continue;
        precise float v[16];
        [[unroll]] for (int j = 0; j < 16; j++)
            v[j] = lane[y][i][c][j] + lane[y][i][c][j + 16];
        [[unroll]] for (int h = 8; h > 0; h /= 2)
            [[unroll]] for (int j = 0; j < h; j++)
                v[j] = v[j] + v[j + h];
        put_element(matrix, head, m, out_row[c], v[0]);
    }
}

void main()
{
    uint m0 = (gl_WorkGroupID.x * 4 + gl_LocalInvocationID.y) * ROWS;
    uint head = gl_WorkGroupID.z;
    for (uint u = gl_WorkGroupID.y;; u += gl_NumWorkGroups.y) {
        group g = group_at(u, head);
        if (g.n == 0)
            break;
        for (uint c = 0; c < COLS; c++) {
            out_row[c] = row_in_group(g, min(c, g.n - 1));
            in_row[c] = row_of_x(out_row[c]);
        }
        products(g.matrix, head, m0, g.n);
    }
}
