#include "common.glsl"
#include "tree.glsl"
#include "types.glsl"
/* attn_states.comp -- attention as in attn.comp, over several states in one softmax, states of one
 * row for several tokens, and lists of slots (ATTN of graph/ops/attention.c): one workgroup for a
 * row and head, which goes over all spans from left to right.
 *
 * bias: of each state where its slabs are, group, shift, bytes of a page, kv heads, d_k, d_v,
 * k_off, v_off, k_head, v_head, types of K and V, latent, ratio; then where lists are, their rows'
 * distance, lists of a row (0: none); then slopes. extra: what distances add. p: heads, soft-cap,
 * states. */
uint state[16];
uint64_t state_views;
#define PAGE_ARG(i) state[(i) + 2]
#define PAGE_VIEWS  state_views
#define K_TYPE      int(state[12])
#define V_TYPE      int(state[13])
#define LATENT      (state[14] != 0)
#define RATIO       state[15]
#include "pages.glsl"
#include "merge.glsl"
layout(local_size_x = 64) in;

const uint STATE_INTS = 16;
const int SPAN = 1024, NEAR = 144;
#define CAP    ((SPEC3 & 1) != 0)
#define SLOPES ((SPEC3 & 2) != 0)
#define TABLE  ((SPEC3 & 4) != 0)
#define CHUNKS SPEC4
#define D_K    SPEC5

shared float query[D_K], weight[PAGE];
shared uint64_t v_at[PAGE];

float score(uint64_t k)
{
    precise float sum = 0;
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
    return CAP ? ARG_F(1) * exact_tanh(sum / ARG_F(1)) : sum;
}

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
        return fma(F32(arg.bias).v[STATE_INTS * arg.p[2] + 4 + h], -float(abs(r)), s);
    if (TABLE)
        return s + F32(arg.extra).v[h * 2 * NEAR + NEAR + clamp(r, -NEAR, NEAR - 1)];
    return s;
}

/* Rows [lo, hi) of the state, or entries of the list. */
partial span(uint r, uint h, uint64_t list, int lo, int hi)
{
    uint t = gl_LocalInvocationID.x, head = h / (arg.p[0] / PAGE_ARG(3)), at;
    int own = step_slot(PAGE_ARG(0), r);
    partial p = no_part(CHUNKS);
    for (int p0 = lo / PAGE * PAGE; p0 < hi; p0 += PAGE) {
        int j0 = max(lo - p0, 0), j1 = min(hi - p0, PAGE), i = p0 + int(t);
        precise float s = NONE;
        if (int(t) >= j0 && int(t) < j1) {
            int slot = list != 0 ? I32(list).v[i + 1] : i * int(RATIO) + int(RATIO) - 1;
            uint64_t page = page_of(uint(step_seg(r)), uint(slot), at);
            s = near(score(k_place(page, head, at)), h, i, own);
            v_at[t] = v_place(page, head, at);
        }
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
            if (d < PAGE_ARG(5))
                for (int j = j0; j < j1; j++)
                    p.o[c] = fma(weight[j], value(v_at[j], d), p.o[c]);
        }
        barrier();
    }
    return p;
}

/* All that the row sees of state k. */
void over(uint k, uint r, uint h, inout partial all)
{
    U32 from = U32(arg.bias + 4 * STATE_INTS * k);
    U32 lists = U32(arg.bias + 4 * STATE_INTS * arg.p[2]);
    for (uint i = 0; i < STATE_INTS; i++)
        state[i] = from.v[i];
    state_views = uint64_t(state[0]) | uint64_t(state[1]) << 32;
    int lo = step_lo(PAGE_ARG(0), r) / int(RATIO), hi = step_hi(PAGE_ARG(0), r) / int(RATIO);
    uint64_t list = 0;
    if (k + 1 == arg.p[2] && lists.v[3] != 0) {
        uint row = r * lists.v[3] + (lists.v[3] > 1 ? h / (arg.p[0] / PAGE_ARG(3)) : 0);
        list = uint64_t(ints_of(uint64_t(lists.v[0]) | uint64_t(lists.v[1]) << 32, row,
                                lists.v[2]));
        if (I32(list).v[0] < 0) {
            list = 0;
        } else {
            lo = 0;
            hi = I32(list).v[0];
        }
    }
    for (int s = lo / SPAN; s * SPAN < hi; s++)
        merge_part(all, span(r, h, list, max(lo, s * SPAN), min(hi, (s + 1) * SPAN)), CHUNKS);
}

void main()
{
    uint h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, n = rows_of(arg.rows);
    uint heads = arg.p[0], padded = arg.cols / heads - 2;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        partial all = no_part(CHUNKS);
        barrier();
        for (uint d = t; d < D_K; d += 64)
            query[d] = row_of(arg.a, r, arg.lda).v[h * D_K + d];
        barrier();
        for (uint k = 0; k < arg.p[2]; k++)
            over(k, r, h, all);
        F32 y = row_of(arg.dst, r, arg.ld);
        if (t == 0) {
            y.v[h] = all.m;
            y.v[heads + h] = all.l;
        }
        for (int c = 0; c < CHUNKS; c++)
            if (t + 64 * c < padded)
                y.v[2 * heads + h * padded + t + 64 * c] = all.o[c];
    }
}
