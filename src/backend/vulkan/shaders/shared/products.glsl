#include "groups.glsl"
#define ACT    SPEC4
#define ACT_AT 2
#include "act.glsl"
/* products.glsl -- products with few rows of x (groups.glsl), and what their sums are: a
 * workgroup's threads take the 32 chains of 4 ROWS weight rows with up to COLS rows of x; then
 * their tree. So an element's bits depend on nothing beside it. tiles.glsl keeps to the same chains
 * and tree for many rows. Of a gate and what it opens (MATMUL_GLU: extra is the second matrix,
 * SPEC4 the activation, p from 2 on its constants) half of the rows are of each, and joined.
 *
 * Who includes it has the function add_chains. */
layout(local_size_x = 32, local_size_y = 4) in;

const int MOST_COLS = 8, MOST_ROWS = 4;
#define ROWS SPEC3
#define MADE (KIND == GATED ? ROWS / 2 : ROWS) /* rows of the result */

shared float lane[4][MOST_ROWS][MOST_COLS][32];
float acc[MOST_ROWS][MOST_COLS]; /* a thread's chain of each element */

/* Rows of x, and of the result, of this workgroup's columns. */
uint in_row[MOST_COLS], out_row[MOST_COLS];

/* Where the i-th row of this thread begins, the first of which is row m0 of matrix w; behind the
 * end it is the last one. */
uint64_t row_at(uint64_t w, uint m0, int i, uint64_t bytes)
{
    bool second = KIND == GATED && i >= MADE;
    uint64_t from = second ? arg.extra : w;
    return from + uint64_t(min(m0 + uint(second ? i - MADE : i), arg.p[1] - 1)) * bytes;
}

/* Adds to `acc` this thread's chains of rows row_at(w, m0, 0 .. ROWS - 1) by rows in_row. */
void add_chains(uint matrix, uint head, uint m0);

float tree_of_chains(uint i, uint c)
{
    uint y = gl_LocalInvocationID.y;
    precise float v[16];
    [[unroll]] for (int j = 0; j < 16; j++)
        v[j] = lane[y][i][c][j] + lane[y][i][c][j + 16];
    [[unroll]] for (int h = 8; h > 0; h /= 2)
        [[unroll]] for (int j = 0; j < h; j++)
            v[j] = v[j] + v[j + h];
    return v[0];
}

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
    for (uint e = t; e < MADE * COLS; e += 32) { /* a thread sums an element's chains */
        uint i = e / COLS, c = e % COLS, m = m0 + i;
        if (c >= n || m >= M)
            continue;
        precise float sum = tree_of_chains(i, c);
        if (KIND == GATED)
            row_of(arg.dst, out_row[c], arg.ld).v[m] = joined(sum, tree_of_chains(i + MADE, c));
        else
            put_element(matrix, head, m, out_row[c], sum);
    }
}

void main()
{
    uint m0 = (gl_WorkGroupID.x * 4 + gl_LocalInvocationID.y) * MADE;
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
