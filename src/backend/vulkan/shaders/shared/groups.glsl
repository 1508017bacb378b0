/* groups.glsl -- products with the rows of a weight (MATMUL, HEAD_MATMUL, MOE_MATMUL of graph/ops):
 * which rows of x go together, and where a product goes.
 *
 * p: K, rows of the weight (of one matrix), rows of x for each of the result's (experts: 1 or k),
 * experts of a row, experts in all. extra: factors of experts. b: what MOE_SORT made. */
const int PLAIN = 0, HEADS = 1, EXPERTS = 2, GATED = 3;
#define TYPE     SPEC0
#define KIND     SPEC1
#define COLS     SPEC2
#define HAS_BIAS (KIND != GATED && SPEC4 != 0)
#define SCALED   (SPEC5 != 0)

/* Up to COLS rows of the result with one matrix: n of them, from the `at`-th on. */
struct group {
    uint matrix, at, n; /* n 0: there are no more */
};

/* Of experts: the u-th group of rows of one. */
group group_of_expert(uint u)
{
    I32 s = I32(arg.b);
    uint used = uint(s.v[0]), first = 1 + arg.p[4];
    for (uint e = 0; e < used; e++) {
        uint from = uint(s.v[first + e]), to = uint(s.v[first + e + 1]);
        uint groups = (to - from + COLS - 1) / COLS, at = from + u * COLS;
        if (u < groups)
            return group(uint(s.v[1 + e]), at, min(to - at, uint(COLS)));
        u -= groups;
    }
    return group(0, 0, 0);
}

group group_at(uint u, uint head)
{
    if (KIND == EXPERTS)
        return group_of_expert(u);
    uint all = rows_of(arg.rows), at = u * COLS;
    return group(head, at, at < all ? min(all - at, uint(COLS)) : 0);
}

/* Row c of a group; the row of x that it is the product of. */
uint row_in_group(group g, uint c)
{
    return KIND == EXPERTS ? uint(I32(arg.b).v[2 + 2 * arg.p[4] + g.at + c]) : g.at + c;
}
uint row_of_x(uint row) { return KIND == EXPERTS ? row / arg.p[2] : row; }

/* Element m of a row of the result. */
void put_element(uint matrix, uint head, uint m, uint row, float all)
{
    uint M = arg.p[1];
    precise float sum = all;
    if (SCALED)
        sum = sum * F32(arg.extra).v[matrix];
    if (HAS_BIAS)
        sum = sum + F32(arg.bias).v[(KIND == EXPERTS ? matrix * M : 0) + m];
    row_of(arg.dst, row, arg.ld).v[(KIND == HEADS ? head * M : 0) + m] = sum;
}
