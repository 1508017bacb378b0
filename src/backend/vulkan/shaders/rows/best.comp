#include "common.glsl"
/* best.comp -- the greatest numbers of a row, or of a part of one (BEST of graph/ops/best.c), a
 * workgroup for each row of the result. The k-th is found byte by byte, from counts; those above
 * it, and of its equals the first, are written in order. p: k, columns of the operand, parts. */
layout(local_size_x = 64) in;

#define PAIRS (SPEC0 != 0)

shared uint kind[64];

struct stretch { /* things [first, first + n) of row r of the operand, or of the rows from r on */
    uint r, first, n;
};
#define THINGS stretch
#include "kth.glsl"

uint64_t place(stretch s, uint i)
{
    uint k = arg.p[0];
    return PAIRS ? uint64_t(row_of(arg.a, s.r + i / k, arg.lda)) + 4 * (i % k)
                 : uint64_t(row_of(arg.a, s.r, arg.lda)) + 4 * (s.first + i);
}
int column(stretch s, uint i)
{
    return PAIRS ? I32(place(s, i) + 4 * arg.p[0]).v[0] : int(s.first + i);
}

/* Of what is in no column it is the least. */
uint key_of(stretch s, uint i)
{
    if (PAIRS && column(s, i) < 0)
        return 0;
    return ordered_bits(floatBitsToUint(F32(place(s, i)).v[0]));
}

void choose(stretch s, F32 z)
{
    uint t = gl_LocalInvocationID.x, k = arg.p[0], equals = 0, base = 0;
    uint least = s.n > k ? find_kth(s, s.n, k) : 0, wanted = s.n > k ? rank : s.n;
    for (uint i0 = 0; i0 < s.n; i0 += 64) {
        uint i = i0 + t, key = i < s.n ? key_of(s, i) : 0;
        kind[t] = i >= s.n || key < least ? 0 : key > least ? 1 : 2;
        barrier();
        uint at = base, same = equals;
        for (uint j = 0; j < 64; j++) {
            bool taken = kind[j] == 1 || (kind[j] == 2 && equals < wanted);
            equals += uint(kind[j] == 2);
            base += uint(taken);
            at += uint(taken && j < t);
            same += uint(kind[j] == 2 && j < t);
        }
        if (kind[t] == 1 || (kind[t] == 2 && same < wanted)) {
            float x = F32(place(s, i)).v[0];
            z.v[at] = x == 0 ? 0 : x;
            I32(uint64_t(z)).v[k + at] = column(s, i);
        }
        barrier();
    }
    for (uint i = base + t; i < k; i += 64) {
        z.v[i] = -1.0 / 0.0;
        I32(uint64_t(z)).v[k + i] = -1;
    }
}

void main()
{
    uint n = rows_of(arg.rows), parts = arg.p[2], cols = arg.p[1];
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        stretch s;
        uint size = (cols + parts - 1) / parts;
        s.r = PAIRS ? r * parts : r / parts;
        s.first = PAIRS ? 0 : r % parts * size;
        s.n = PAIRS ? parts * arg.p[0] : s.first < cols ? min(size, cols - s.first) : 0;
        choose(s, row_of(arg.dst, r, arg.ld));
        barrier();
    }
}
