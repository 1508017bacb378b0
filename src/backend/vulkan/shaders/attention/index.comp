#include "common.glsl"
#include "types.glsl"
#define RATIO SPEC3
#include "pages.glsl"
/* index.comp -- which slots a row looks at (INDEX_TOPK of graph/ops/index.c), a workgroup a row, or
 * a row and head where blocks are chosen. A score is a number whose order is that of its bits; the
 * k-th of them is found byte by byte, from counts, and scores are made anew each time: they are
 * kept nowhere. Then those above it, and of its equals the first, are written in order.
 *
 * p[10]: query heads; p[11]: the most that are chosen; p[12]: rows' distance of weights, which are
 * at `bias`. spec: pages; ratio; slots of a block, 0: single ones; of what the list is (enum
 * index_of), 4: weights, 8: blocks before the row's own that are always chosen. */
layout(local_size_x = 64) in;

const int OF_ROWS = 0, OF_POOLS = 1, OF_SLOTS = 2;
#define BLOCK  SPEC4
#define OF     (SPEC5 & 3)
#define HAS_W  ((SPEC5 & 4) != 0)
#define LOCAL  (SPEC5 >> 3)
#define POOLED (RATIO > 1)

shared uint kind[64], width[64];

struct choice { /* of a row and head: things [first, first + n), k of them; what a list can have */
    uint r, head;
    int first, n, k, part, lo, hi;
};
#define THINGS choice
#include "kth.glsl"

/* q . key over one head. */
float dot_key(uint64_t k, F32 q)
{
    precise float sum = 0;
    uint step = k_step();
    if (K_TYPE > T_BF16)
        for (uint d = 0; d < arg.p[4]; d += 8) {
            decode32(K_TYPE, k, d / 8);
            [[unroll]] for (int j = 0; j < 8; j++)
                sum = fma(w8[j], q.v[d + j], sum);
        }
    else
        for (uint d = 0; d < arg.p[4]; d++)
            sum = fma(load_number(K_TYPE, k + d * step), q.v[d], sum);
    return sum;
}

float score(uint r, uint head, int slot)
{
    uint at;
    uint64_t page = page_of(uint(step_seg(r)), uint(slot), at), k = k_place(page, 0, at);
    F32 q = row_of(arg.a, r, arg.lda);
    if (!HAS_W && !POOLED)
        return dot_key(k, F32(uint64_t(q) + 4 * head * arg.p[4]));
    precise float sum = 0;
    for (uint h = 0; h < arg.p[10]; h++) {
        precise float t = dot_key(k, F32(uint64_t(q) + 4 * h * arg.p[4]));
        t = t > 0 ? t : 0;
        sum = HAS_W ? fma(row_of(arg.bias, r, arg.p[12]).v[h], t, sum) : sum + t;
    }
    return sum;
}

/* Greater for greater scores; of none it is the least. */
uint ordered(float s) { return ordered_bits(floatBitsToUint(s)); }

uint key_of(choice c, uint i)
{
    int at = c.first + int(i);
    if (POOLED)
        return ordered(score(c.r, c.head, at * RATIO + RATIO - 1));
    if (BLOCK == 0)
        return ordered(score(c.r, c.head, at));
    int own = step_slot(arg.p[0], c.r) / BLOCK;
    if (at > own - LOCAL && at <= own)
        return ordered(1.0 / 0.0);
    precise float most = -1.0 / 0.0;
    for (int s = max(at * BLOCK, c.lo); s < min((at + 1) * BLOCK, c.hi); s++) {
        float x = score(c.r, c.head, s);
        most = x > most ? x : most;
    }
    return ordered(most);
}

choice choice_of(uint r, uint head)
{
    choice c;
    c.r = r;
    c.head = head;
    int k = int(arg.p[11]), size = BLOCK > 0 ? BLOCK : 1;
    c.lo = step_lo(arg.p[0], r);
    c.hi = step_hi(arg.p[0], r);
    c.part = 0;
    c.k = k;
    if (!POOLED) {
        c.first = c.lo / size;
        c.n = c.hi > c.lo ? (c.hi - 1) / size - c.first + 1 : 0;
        return c;
    }
    int left = k + RATIO - 1 - c.hi % RATIO;
    c.first = 0;
    c.n = c.hi / RATIO;
    c.k = OF == OF_ROWS ? k : OF == OF_POOLS ? k / RATIO : left / RATIO;
    c.part = OF == OF_SLOTS ? left % RATIO : 0;
    return c;
}

/* Slot j of thing i of the list, and how many it has. */
int slots_of(choice c, int i, bool last)
{
    int at = c.first + i, size = BLOCK > 0 ? BLOCK : 1;
    if (POOLED)
        return OF == OF_ROWS ? 1 : last && c.part > 0 ? c.part : RATIO;
    return min((at + 1) * size, c.hi) - max(at * size, c.lo);
}
int slot_of(choice c, int i, int j)
{
    int at = c.first + i, size = BLOCK > 0 ? BLOCK : 1;
    if (POOLED)
        return at * RATIO + (OF == OF_ROWS ? RATIO - 1 : j);
    return max(at * size, c.lo) + j;
}

void choose(uint r, uint head, I32 row)
{
    choice c = choice_of(r, head);
    uint t = gl_LocalInvocationID.x;
    if (c.n <= c.k) {
        if (t == 0)
            row.v[0] = -1;
        return;
    }
    c.k += int(c.part > 0);
    uint least = find_kth(c, uint(c.n), uint(c.k)), wanted = rank, equals = 0, base = 1;
    for (int i0 = 0; i0 < c.n; i0 += 64) {
        int i = i0 + int(t);
        uint key = i < c.n ? key_of(c, uint(i)) : 0;
        kind[t] = i >= c.n || key < least ? 0 : key > least ? 1 : 2;
        barrier();
        uint before = equals, own = 0, all = 0;
        for (uint j = 0; j < 64; j++) {
            before += uint(j < t && kind[j] == 2);
            equals += uint(kind[j] == 2);
        }
        bool taken = kind[t] == 1 || (kind[t] == 2 && before < wanted);
        int n = taken ? slots_of(c, i, kind[t] == 2 && before + 1 == wanted) : 0;
        width[t] = uint(n);
        barrier();
        for (uint j = 0; j < 64; j++) {
            own += j < t ? width[j] : 0;
            all += width[j];
        }
        for (int j = 0; j < n; j++)
            row.v[base + own + j] = slot_of(c, i, j);
        base += all;
        barrier();
    }
    if (t != 0)
        return;
    for (int s = c.hi / RATIO * RATIO; POOLED && OF != OF_ROWS && s < c.hi; s++)
        row.v[base++] = s;
    row.v[0] = int(base) - 1;
}

void main()
{
    uint head = gl_WorkGroupID.x, heads = gl_NumWorkGroups.x, n = rows_of(arg.rows) / heads;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        choose(r, head, ints_of(arg.dst, r * heads + head, arg.ld));
        barrier();
    }
}
