#include "common.glsl"
/* adapt.comp -- what adapters add to a product (ADAPT of graph/ops/adapt.c), a workgroup a row. w:
 * the table, of each set and product up to 4 of (A, B, rank, scale). extra: experts of a row. p:
 * kind, K, M, matrices, the product, products of a set, rows for one of x, rows' distance of
 * experts. */
layout(local_size_x = 64) in;

const int HEADS = 1, EXPERTS = 2, USES = 4, USE_INTS = 6, MOST_RANK = 1024;
#define KIND SPEC0

shared float u[MOST_RANK];

/* The set of row r; -1: none. */
int set_of(uint r)
{
    uint which = arg.rows & 3, mul = arg.rows >> 2;
    r /= mul;
    uint row = which == 1 ? uint(step_out(r)) : which == 2 ? uint(step_first(r)) : r;
    return which == 3 ? -1 : step_array(34, row);
}

/* z of a head with one adapter: A and B of its matrix. */
void add(F32 x, F32 a, F32 b, uint rank, float scale, F32 z)
{
    uint t = gl_LocalInvocationID.x, K = arg.p[1], M = arg.p[2];
    barrier();
    for (uint i = t; i < rank; i += 64) {
        precise float sum = 0;
        for (uint k = 0; k < K; k++)
            sum = fma(x.v[k], a.v[k * rank + i], sum);
        sum = sum * scale;
        u[i] = sum;
    }
    barrier();
    for (uint m = t; m < M; m += 64) {
        precise float sum = z.v[m];
        for (uint i = 0; i < rank; i++)
            sum = fma(u[i], b.v[i * M + m], sum);
        z.v[m] = sum;
    }
}

void row(uint r)
{
    uint heads = KIND == HEADS ? arg.p[3] : 1, K = arg.p[1], M = arg.p[2], matrix = 0;
    F32 y = row_of(arg.a, r, arg.lda), x = row_of(arg.b, r / arg.p[6], arg.ldb);
    F32 z = row_of(arg.dst, r, arg.ld);
    int set = set_of(r);
    for (uint m = gl_LocalInvocationID.x; m < M; m += 64)
        for (uint h = 0; h < heads; h++)
            z.v[h * M + m] = y.v[h * M + m];
    if (KIND == EXPERTS)
        matrix = uint(ints_of(arg.extra, r / arg.p[8], arg.p[7]).v[r % arg.p[8]]);
    uint first = (uint(max(set, 0)) * arg.p[5] + arg.p[4]) * USES;
    for (int i = 0; set >= 0 && i < USES; i++) {
        U32 use = U32(arg.w + 4 * uint64_t((first + i) * USE_INTS));
        uint64_t a = uint64_t(use.v[0]) | uint64_t(use.v[1]) << 32;
        uint64_t b = uint64_t(use.v[2]) | uint64_t(use.v[3]) << 32;
        uint rank = use.v[4];
        if (a == 0)
            break;
        for (uint h = 0; h < heads; h++)
            add(F32(uint64_t(x) + 4 * h * K), F32(a + 4 * uint64_t(matrix + h) * K * rank),
                F32(b + 4 * uint64_t(matrix + h) * rank * M), rank, uintBitsToFloat(use.v[5]),
                F32(uint64_t(z) + 4 * h * M));
    }
}

void main()
{
    uint n = rows_of(arg.rows);
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        row(r);
}
