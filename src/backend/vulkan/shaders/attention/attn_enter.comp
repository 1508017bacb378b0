#include "common.glsl"
#include "tree.glsl"
#include "types.glsl"
#include "pages.glsl"
#include "store.glsl"
/* attn_enter.comp -- heads of q and K normed and turned, q scaled, K and V written into their slots
 * (ATTN_ENTER), each number as norm.comp, rope.comp, rows.comp and cache_write.comp make it. A
 * workgroup for each head of q, then of K, then of V. */
layout(local_size_x = 64) in;

/* As gpu/ops.c puts them behind `bias`. SPEC4: what is done. */
const int AT_V = 0, V_LD = 2, AT_TABLE = 3, TABLE_LD = 5, Q_STEP = 6, K_STEP = 7, FIRST = 8,
          N_ROT = 9, NEOX = 10, N_HEAD = 11, Q_EPS = 12, K_EPS = 13, Q_SCALE = 14;
const int NORMED = 1, WEIGHTED = 4, SCALED = 16, MOST_WIDTH = 512;

shared float head[MOST_WIDTH];

uint enters(int i) { return U32(arg.bias).v[i]; }
uint64_t enters_at(int i) { return enters(i) | uint64_t(enters(i + 1)) << 32; }

void turn_head(F32 x, F32 w, bool normed, bool weighted, float eps, F32 table)
{
    uint width = arg.p[4], t = gl_LocalInvocationID.x, first = enters(FIRST);
    uint half_ = enters(N_ROT) / 2;
    bool neox = enters(NEOX) != 0;
    precise float k = 1, sum = 0;
    if (normed) {
        for (uint i = t; i < width; i += 64)
            sum = fma(x.v[i], x.v[i], sum);
        sum = tree_sum(sum);
        k = 1.0 / sqrt(sum / float(width) + eps);
    }
    barrier(); /* nobody reads the head before any more */
    for (uint i = t; i < width; i += 64) {
        precise float v = x.v[i];
        if (normed)
            v = v * k;
        head[i] = weighted ? v * w.v[i] : v;
    }
    barrier();
    for (uint i = t; i < half_; i += 64) {
        uint a = first + (neox ? i : 2 * i), b = neox ? a + half_ : a + 1;
        precise float cs = table.v[i], sn = table.v[half_ + i], x0 = head[a], x1 = head[b];
        precise float y0 = x0 * cs, y1 = x0 * sn;
        head[a] = fma(-x1, sn, y0);
        head[b] = fma(x1, cs, y1);
    }
    barrier();
}

/* Unit u of the head, or of V: number u, or block u. */
void store_head(int type, uint64_t row, uint step, uint u)
{
    if (type <= T_BF16) {
        store_number(type, row + u * step, head[u]);
        return;
    }
    float x[32];
    for (int i = 0; i < 32; i++)
        x[i] = head[32 * u + i];
    store_block(type, row + row_bytes(type, 32) * u, x);
}
void store_v(uint64_t row, uint u, F32 x)
{
    if (V_TYPE > T_BF16)
        store_block(V_TYPE, row + row_bytes(V_TYPE, 32) * u, block_of(F32(uint64_t(x) + 128 * u)));
    else
        store_number(V_TYPE, row + u * number_bytes(V_TYPE), x.v[u]);
}

void main()
{
    uint h = gl_WorkGroupID.x, n_q = enters(N_HEAD), n_kv = arg.p[3], d_k = arg.p[4];
    uint n = rows_of(arg.rows), t = gl_LocalInvocationID.x, at;
    bool is_q = h < n_q, is_v = h >= n_q + n_kv;
    bool normed = (SPEC4 & (is_q ? NORMED : 2 * NORMED)) != 0;
    bool weighted = (SPEC4 & (is_q ? WEIGHTED : 2 * WEIGHTED)) != 0;
    F32 w = F32(is_q ? arg.w : arg.p[10] | uint64_t(arg.p[11]) << 32);
    float eps = uintBitsToFloat(enters(is_q ? Q_EPS : K_EPS));
    h -= is_q ? 0 : is_v ? n_q + n_kv : n_q;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        uint64_t page = page_of(uint(step_seg(r)), uint(step_slot(arg.p[0], r)), at);
        if (is_v) {
            F32 x = F32(enters_at(AT_V) + 4 * (uint64_t(r) * enters(V_LD) + h * arg.p[5]));
            for (uint u = t; u < arg.p[5] / (V_TYPE > T_BF16 ? 32 : 1); u += 64)
                store_v(v_place(page, h, at), u, x);
            continue;
        }
        uint64_t row = is_q ? arg.a + 4 * (uint64_t(r) * arg.lda + uint64_t(h) * enters(Q_STEP))
                            : arg.b + 4 * (uint64_t(r) * arg.ldb + uint64_t(h) * enters(K_STEP));
        turn_head(F32(row), w, normed, weighted, eps,
                  F32(enters_at(AT_TABLE) + 4 * uint64_t(r) * enters(TABLE_LD)));
        if (is_q) {
            F32 y = F32(arg.dst + 4 * (uint64_t(r) * arg.ld + uint64_t(h) * d_k));
            for (uint i = t; i < d_k; i += 64)
                y.v[i] = (SPEC4 & SCALED) != 0 ? head[i] * uintBitsToFloat(enters(Q_SCALE))
                                               : head[i];
        } else {
            for (uint u = t; u < d_k / (K_TYPE > T_BF16 ? 32 : 1); u += 64)
                store_head(K_TYPE, k_place(page, h, at), k_step(), u);
        }
    }
}
