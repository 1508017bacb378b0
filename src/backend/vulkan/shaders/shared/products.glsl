/* products.glsl -- what shaders of products with the rows of a weight have in common (MATMUL,
 * HEAD_MATMUL, MOE_MATMUL of graph/ops): which rows go together, the sum of an element's chains,
 * and where it goes. A workgroup's threads take the 32 chains of 4 ROWS weight rows with up to COLS
 * rows of x; then their tree. So an element's bits depend on nothing beside it.
 *
 * Who includes it has the function add_chains. p: K, rows of the weight (of one matrix), rows of x
 * for each of the result's (experts: 1 or k), experts of a row, experts in all. extra: factors of
 * experts. b: what MOE_SORT made. */
layout(local_size_x = 32, local_size_y = 4) in;

const int PLAIN = 0, HEADS = 1, EXPERTS = 2, MOST_COLS = 8, MOST_ROWS = 4;
#define TYPE     SPEC0
#define KIND     SPEC1
#define COLS     SPEC2
#define ROWS     SPEC3
#define HAS_BIAS (SPEC4 != 0)
#define SCALED   (SPEC5 != 0)

shared float lane[4][MOST_ROWS][MOST_COLS][32];
float acc[MOST_ROWS][MOST_COLS]; /* a thread's chain of each element */

/* Rows of x, and of the result, of this workgroup's columns; n of them. */
uint in_row[MOST_COLS], out_row[MOST_COLS];

/* Of experts: the u-th group of up to COLS rows of one. 0: there are no more. */
uint group_of_rows(uint u, out uint expert)
{
    I32 s = I32(arg.b);
    uint n_expert = arg.p[4], used = uint(s.v[0]), first = 1 + n_expert, rows = 2 + 2 * n_expert;
    for (uint e = 0; e < used; e++) {
        uint from = uint(s.v[first + e]), to = uint(s.v[first + e + 1]);
        uint groups = (to - from + COLS - 1) / COLS;
        if (u < groups) {
            uint at = from + u * COLS, n = min(to - at, uint(COLS));
            for (uint c = 0; c < COLS; c++) {
                out_row[c] = uint(s.v[rows + at + min(c, n - 1)]);
                in_row[c] = out_row[c] / arg.p[2];
            }
            expert = uint(s.v[1 + e]);
            return n;
        }
        u -= groups;
    }
    expert = 0;
    return 0;
}

uint group_of(uint u, uint head, out uint matrix)
{
    if (KIND == EXPERTS)
        return group_of_rows(u, matrix);
    uint all = rows_of(arg.rows), at = u * COLS;
    matrix = head;
    if (at >= all)
        return 0;
    uint n = min(all - at, uint(COLS));
    for (uint c = 0; c < COLS; c++)
        in_row[c] = out_row[c] = at + min(c, n - 1);
    return n;
}

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
        precise float sum = v[0];
        if (SCALED)
            sum = sum * F32(arg.extra).v[matrix];
        if (HAS_BIAS)
            sum = sum + F32(arg.bias).v[(KIND == EXPERTS ? matrix * M : 0) + m];
        row_of(arg.dst, out_row[c], arg.ld).v[(KIND == HEADS ? head * M : 0) + m] = sum;
    }
}

void main()
{
    uint m0 = (gl_WorkGroupID.x * 4 + gl_LocalInvocationID.y) * ROWS;
    uint head = gl_WorkGroupID.z, matrix;
    for (uint u = gl_WorkGroupID.y;; u += gl_NumWorkGroups.y) {
        uint n = group_of(u, head, matrix);
        if (n == 0)
            break;
        products(matrix, head, m0, n);
    }
}
