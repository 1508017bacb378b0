#include "common.glsl"
#include "tree.glsl"
#include "types.glsl"
#include "pages.glsl"
#include "merge.glsl"
/* attn.comp -- attention of one row, query head and span of slots (ATTN of graph/ops/attention.c):
 * a thread for each slot of a page while scores are made, then for each number of V.
 *
 * p[10]: query heads; p[11]: soft-cap; p[12]: partials of a row: spans are workgroups of their own,
 * or 1, and one goes over all of them from left to right, which gives the same bits. bias: slopes,
 * or what distances add. */
layout(local_size_x = 64) in;

const int SPAN = 1024, NEAR = 144;
#define CAP    ((SPEC3 & 1) != 0)
#define SLOPES ((SPEC3 & 2) != 0)
#define TABLE  ((SPEC3 & 4) != 0)
#define CHUNKS SPEC4
#define D_K    SPEC5

shared float query[D_K], weight[PAGE];

float score(uint64_t page, uint head, uint at)
{
    precise float sum = 0;
    uint64_t k = k_place(page, head, at);
    uint step = k_step();
    if (K_TYPE > T_BF16)
        for (uint d = 0; d < D_K; d += 8) {
            decode32(K_TYPE, k, d / 8);
            [[unroll]] for (int j = 0; j < 8; j++)
                sum = fma(w8[j], query[d + j], sum);
        }
    else
        for (int d = 0; d < D_K; d++)
            sum = fma(load_number(K_TYPE, k + d * step), query[d], sum);
    return CAP ? ARG_F(11) * exact_tanh(sum / ARG_F(11)) : sum;
}

/* Number d of a slot's V. */
float value(uint64_t row, uint d)
{
    if (V_TYPE <= T_BF16)
        return load_number(V_TYPE, row + d * number_bytes(V_TYPE));
    decode32(V_TYPE, row, d / 8);
    float x = 0;
    [[unroll]] for (int j = 0; j < 8; j++)
        x = d % 8 == j ? w8[j] : x;
    return x;
}

float near(float s, uint h, int slot, int own)
{
    int r = slot - own;
    if (SLOPES)
        return fma(F32(arg.bias).v[h], -float(abs(r)), s);
    if (TABLE)
        return s + F32(arg.bias).v[h * 2 * NEAR + NEAR + clamp(r, -NEAR, NEAR - 1)];
    return s;
}

partial span(uint r, uint h, int lo, int hi)
{
    uint t = gl_LocalInvocationID.x, head = h / (arg.p[10] / arg.p[3]), seg = uint(step_seg(r)), at;
    int own = step_slot(arg.p[0], r);
    partial p = no_part(CHUNKS);
    for (int p0 = lo / PAGE * PAGE; p0 < hi; p0 += PAGE) {
        int j0 = max(lo - p0, 0), j1 = min(hi - p0, PAGE), slot = p0 + int(t);
        uint64_t page = page_of(seg, uint(p0), at); /* at: of the page's first slot */
        precise float s = NONE;
        if (int(t) >= j0 && int(t) < j1)
            s = near(score(page, head, at + t), h, slot, own);
        precise float most = tree_max(s), m = most > p.m ? most : p.m;
        s = exact_exp(s - m);
        precise float sum = tree_sum(s);
        weight[t] = s;
        if (m != p.m) {
            precise float k = exact_exp(p.m - m);
            p.l = fma(p.l, k, sum);
            for (int c = 0; c < CHUNKS; c++)
                p.o[c] = p.o[c] * k;
            p.m = m;
        } else {
            p.l = p.l + sum;
        }
        barrier();
        for (int c = 0; c < CHUNKS; c++) {
            uint d = t + 64 * c;
            if (d < arg.p[5])
                for (int j = j0; j < j1; j++)
                    p.o[c] = fma(weight[j], value(v_place(page, head, at + j), d), p.o[c]);
        }
        barrier();
    }
    return p;
}

void write_part(uint r, uint h, uint part, partial p)
{
    uint t = gl_LocalInvocationID.x, n = arg.p[10], padded = arg.cols / n - 2;
    F32 y = row_of(arg.dst, r * arg.p[12] + part, arg.ld);
    if (t == 0) {
        y.v[h] = p.m;
        y.v[n + h] = p.l;
    }
    for (int c = 0; c < CHUNKS; c++)
        if (t + 64 * c < padded)
            y.v[2 * n + h * padded + t + 64 * c] = p.o[c];
}

void main()
{
    uint h = gl_WorkGroupID.x, part = gl_WorkGroupID.z;
    uint n = rows_of(arg.rows), t = gl_LocalInvocationID.x;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        int lo = step_lo(arg.p[0], r), hi = step_hi(arg.p[0], r), first = lo / SPAN;
        int from = first + int(part), to = arg.p[12] > 1 ? from + 1 : (hi + SPAN - 1) / SPAN;
        partial all = no_part(CHUNKS);
        barrier();
        for (uint d = t; d < D_K; d += 64)
            query[d] = row_of(arg.a, r, arg.lda).v[h * D_K + d];
        barrier();
        for (int s = from; s < to; s++)
            if (s * SPAN < hi)
                merge_part(all, span(r, h, max(lo, s * SPAN), min(hi, (s + 1) * SPAN)), CHUNKS);
        write_part(r, h, part, all);
    }
}
