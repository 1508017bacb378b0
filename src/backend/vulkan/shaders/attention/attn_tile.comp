#include "common.glsl"
#include "types.glsl"
#include "pages.glsl"
/* attn_tile.comp -- attention of many rows, with what attn.comp is called with and its bits: a
 * workgroup takes a tile of TILE pairs of a row and a query head, rows of one sequence and heads
 * that share K and V, and goes over the pages that any of them sees. K and V of a page come to
 * shared memory once for all pairs. A score is one chain over d, an output one chain over slots, a
 * thread has 4 x 4 of them; what attn.comp adds up in a tree is added up in the same one. A pair's
 * partial of the span is in registers and `one`, that of the spans before in the result and `all`.
 *
 * No loop that calls exact_exp or exact_tanh is marked [[unroll]]: glslc -O unrolls those itself
 * and forgets what was `precise` in the copies, whose last bits drivers may then change. */
layout(local_size_x = 128) in;

const int SPAN = 1024, NEAR = 144, MOST_CHUNKS = 4;
const uint TILE = 32, DEPTH = 32; /* numbers of a key that are brought at a time */
const float NONE = -1.0 / 0.0;
#define CAP    ((SPEC3 & 1) != 0)
#define SLOPES ((SPEC3 & 2) != 0)
#define TABLE  ((SPEC3 & 4) != 0)
#define CHUNKS SPEC4
#define D_K    SPEC5
#define SLOTS  (CHUNKS == 1 ? 64 : CHUNKS == 2 ? 32 : 16) /* whose V is brought at a time */
#define HEADS  (arg.p[10] / arg.p[3])                     /* that share K and V */

shared vec4 side[1024];        /* [d][pairs], [d][slots]; or V, [slots][d] */
shared vec4 weight[PAGE][TILE / 4];
shared float lane[4][TILE];
struct top {
    float m, l;
};
shared top one[TILE], all[TILE];
shared float factor[TILE];     /* of what there is, when a page has a larger score */
shared int lo[TILE], hi[TILE]; /* slots that a pair sees */

vec4 o[4][MOST_CHUNKS];        /* of four pairs numbers 64 c + 4 dl .. of the head's output */

/* The tile: its segment, the segment's first row, pairs before it, of the segment; kv head. */
uint seg, first, q0, items, kv;

bool is_pair(uint i) { return q0 + i < items; }
uint row_of_pair(uint i) { return first + (q0 + i) / HEADS; }
uint head_of_pair(uint i) { return kv * HEADS + (q0 + i) % HEADS; }

float near(float s, uint i, int slot)
{
    if (!SLOPES && !TABLE)
        return s;
    uint h = head_of_pair(i);
    int r = slot - step_slot(arg.p[0], row_of_pair(i));
    if (SLOPES)
        return fma(F32(arg.bias).v[h], -float(abs(r)), s);
    return s + F32(arg.bias).v[h * 2 * NEAR + NEAR + clamp(r, -NEAR, NEAR - 1)];
}

/* Numbers d0 .. d0 + DEPTH - 1 of all pairs' queries and of the keys of slots [j0, j1). */
void bring_keys(uint64_t page, uint at, int j0, int j1, uint d0)
{
    uint id = gl_LocalInvocationIndex, i = id % TILE, slot = id % PAGE, step = k_step();
    bool is_seen = int(slot) >= j0 && int(slot) < j1;
    for (uint k = 0; k < 8; k++) {
        uint d = id / TILE * 8 + k;
        float x = 0;
        if (is_pair(i) && d0 + d < D_K)
            x = row_of(arg.a, row_of_pair(i), arg.lda).v[head_of_pair(i) * D_K + d0 + d];
        side[8 * d + i / 4][i % 4] = x;
    }
    uint64_t key = k_place(page, kv, at + slot);
    if (K_TYPE > T_BF16) {
        for (uint e = id / PAGE; 8 * e < DEPTH; e += 2) {
            bool some = is_seen && d0 + 8 * e < D_K;
            if (some)
                decode32(K_TYPE, key, d0 / 8 + e);
            [[unroll]] for (uint k = 0; k < 8; k++)
                side[256 + 16 * (8 * e + k) + slot / 4][slot % 4] = some ? w8[k] : 0;
        }
    } else {
        for (uint d = id / PAGE; d < DEPTH; d += 2) {
            float x = 0;
            if (is_seen && d0 + d < D_K)
                x = load_number(K_TYPE, key + (d0 + d) * step);
            side[256 + 16 * d + slot / 4][slot % 4] = x;
        }
    }
}

/* Scores of the page's slots, as `weight`; those that a pair does not see are NONE. */
void scores(uint64_t page, uint at, int p0, int j0, int j1)
{
    uint id = gl_LocalInvocationIndex, four = id / 16, slots = id % 16;
    precise vec4 s[4];
    [[unroll]] for (int j = 0; j < 4; j++)
        s[j] = vec4(0);
    for (uint d0 = 0; d0 < D_K; d0 += DEPTH) {
        barrier();
        bring_keys(page, at, j0, j1, d0);
        barrier();
        for (uint d = 0; d < min(DEPTH, D_K - d0); d++) {
            vec4 q = side[8 * d + four], k = side[256 + 16 * d + slots];
            [[unroll]] for (int j = 0; j < 4; j++)
                s[j] = fma(vec4(k[j]), q, s[j]);
        }
    }
    for (int j = 0; j < 4; j++) {
        int slot = p0 + int(4 * slots) + j;
        vec4 y;
        for (int k = 0; k < 4; k++) {
            uint i = 4 * four + k;
            precise float x = s[j][k];
            if (CAP)
                x = ARG_F(11) * exact_tanh(x / ARG_F(11));
            y[k] = NONE;
            if (slot >= lo[i] && slot < hi[i])
                y[k] = near(x, i, slot);
        }
        weight[4 * slots + j][four] = y;
    }
    barrier();
}

/* Weights of the page from its scores; of each pair m, l and the factor. A thread has every fourth
 * slot of a pair: the trees of tree.glsl but for their last two steps. */
void softmax(int p0)
{
    uint i = gl_LocalInvocationIndex % TILE, t = gl_LocalInvocationIndex / TILE;
    float v[16], most[16];
    [[unroll]] for (int k = 0; k < 16; k++)
        most[k] = v[k] = weight[t + 4 * k][i / 4][i % 4];
    [[unroll]] for (int h = 8; h > 0; h /= 2)
        [[unroll]] for (int k = 0; k < h; k++)
            most[k] = most[k + h] > most[k] ? most[k + h] : most[k];
    lane[t][i] = most[0];
    barrier();
    float a = lane[2][i] > lane[0][i] ? lane[2][i] : lane[0][i];
    float b = lane[3][i] > lane[1][i] ? lane[3][i] : lane[1][i];
    a = b > a ? b : a;
    precise float m = a > one[i].m ? a : one[i].m, old = one[i].m;
    for (int k = 0; k < 16; k++) {
        precise float x = exact_exp(v[k] - m);
        weight[t + 4 * k][i / 4][i % 4] = v[k] = x;
    }
    precise float sum[4];
    [[unroll]] for (int k = 0; k < 4; k++)
        sum[k] = (v[k] + v[k + 4]) + (v[k + 8] + v[k + 12]);
    sum[0] = sum[0] + sum[2];
    sum[1] = sum[1] + sum[3];
    barrier();
    lane[t][i] = sum[0] + sum[1];
    barrier();
    if (t != 0)
        return;
    factor[i] = 1;
    if (max(lo[i], p0) >= min(hi[i], p0 + PAGE))
        return;
    precise float page = (lane[0][i] + lane[2][i]) + (lane[1][i] + lane[3][i]);
    if (m != old) {
        precise float k = exact_exp(old - m);
        factor[i] = k;
        one[i] = top(m, fma(one[i].l, k, page));
    } else {
        page = one[i].l + page;
        one[i].l = page;
    }
}

/* V of slots s0 .. s0 + SLOTS - 1, zeros in place of those that nobody sees. */
void bring_values(uint64_t page, uint at, int j0, int j1, int s0)
{
    const uint WIDTH = 64 * CHUNKS;
    uint id = gl_LocalInvocationIndex;
    if (V_TYPE > T_BF16) {
        for (uint e = id; e < SLOTS * WIDTH / 8; e += 128) {
            int j = s0 + int(e / (WIDTH / 8));
            uint d8 = e % (WIDTH / 8);
            bool some = j >= j0 && j < j1 && 8 * d8 < arg.p[5];
            if (some)
                decode32(V_TYPE, v_place(page, kv, at + j), d8);
            side[2 * e] = some ? vec4(w8[0], w8[1], w8[2], w8[3]) : vec4(0);
            side[2 * e + 1] = some ? vec4(w8[4], w8[5], w8[6], w8[7]) : vec4(0);
        }
        return;
    }
    for (uint e = id; e < SLOTS * WIDTH; e += 128) {
        int j = s0 + int(e / WIDTH);
        uint d = e % WIDTH;
        float x = 0;
        if (j >= j0 && j < j1 && d < arg.p[5])
            x = load_number(V_TYPE, v_place(page, kv, at + j) + d * number_bytes(V_TYPE));
        side[e / 4][e % 4] = x;
    }
}

/* Adds the page's V by weight. whole: all pairs see all slots. */
void add_values(uint64_t page, uint at, int p0, int j0, int j1, bool whole)
{
    uint four = gl_LocalInvocationIndex / 16, dl = gl_LocalInvocationIndex % 16;
    int from[4], to[4];
    barrier();
    [[unroll]] for (int i = 0; i < 4; i++) {
        float f = factor[4 * four + i];
        from[i] = lo[4 * four + i] - p0;
        to[i] = hi[4 * four + i] - p0;
        if (f != 1)
            [[unroll]] for (int c = 0; c < CHUNKS; c++)
                o[i][c] = o[i][c] * f;
    }
    for (int s0 = j0 / SLOTS * SLOTS; s0 < j1; s0 += SLOTS) {
        barrier();
        bring_values(page, at, j0, j1, s0);
        barrier();
        for (int j = max(s0, j0); j < min(s0 + SLOTS, j1); j++) {
            vec4 w = weight[j][four];
            [[unroll]] for (int c = 0; c < CHUNKS; c++) {
                vec4 v = side[16 * CHUNKS * (j - s0) + 16 * c + dl];
                [[unroll]] for (int i = 0; i < 4; i++)
                    if (whole || (j >= from[i] && j < to[i]))
                        o[i][c] = fma(vec4(w[i]), v, o[i][c]);
            }
        }
    }
}

F32 result_of_pair(uint i)
{
    return row_of(arg.dst, row_of_pair(i) * arg.p[12] + gl_WorkGroupID.z, arg.ld);
}

/* The span's partial to those before it (merge_part): outputs by the threads that have them, m and
 * l by one thread a pair. */
void merge_span()
{
    uint id = gl_LocalInvocationIndex, n = arg.p[10], padded = arg.cols / n - 2;
    barrier();
    for (int k = 0; k < 4; k++) {
        uint i = id / 16 * 4 + k;
        precise float m = all[i].m > one[i].m ? all[i].m : one[i].m;
        precise float a = exact_exp(all[i].m - m), b = exact_exp(one[i].m - m);
        bool begins = all[i].l == 0, some = is_pair(i) && one[i].l != 0;
        for (int c = 0; c < CHUNKS; c++)
            [[unroll]] for (int e = 0; e < 4; e++) {
                uint d = 64 * c + id % 16 * 4 + e;
                float x = o[k][c][e];
                if (some && d < arg.p[5]) {
                    F32 y = result_of_pair(i);
                    uint at = 2 * n + head_of_pair(i) * padded + d;
                    y.v[at] = begins ? x : fma(y.v[at], a, x * b);
                }
                o[k][c][e] = 0;
            }
    }
    barrier();
    if (id < TILE && one[id].l != 0) {
        precise float m = all[id].m > one[id].m ? all[id].m : one[id].m;
        precise float a = exact_exp(all[id].m - m), b = exact_exp(one[id].m - m);
        if (all[id].l == 0)
            all[id] = one[id];
        else
            all[id] = top(m, fma(all[id].l, a, one[id].l * b));
    }
    if (id < TILE)
        one[id] = top(NONE, 0);
    barrier();
}

/* m, l, and zeros where no output was written. */
void put_rest()
{
    uint id = gl_LocalInvocationIndex, n = arg.p[10], padded = arg.cols / n - 2;
    if (id < TILE && is_pair(id)) {
        result_of_pair(id).v[head_of_pair(id)] = all[id].m;
        result_of_pair(id).v[n + head_of_pair(id)] = all[id].l;
    }
    for (uint e = id; e < TILE * padded; e += 128) {
        uint i = e / padded, d = e % padded;
        if (is_pair(i) && (d >= arg.p[5] || all[i].l == 0))
            result_of_pair(i).v[2 * n + head_of_pair(i) * padded + d] = 0;
    }
}

/* Slots that the tile's pairs see, of this workgroup's span if it has one of its own. */
void look(out int from, out int to)
{
    uint id = gl_LocalInvocationIndex;
    barrier();
    if (id < TILE) {
        int a = 0, b = 0;
        if (is_pair(id)) {
            a = step_lo(arg.p[0], row_of_pair(id));
            b = step_hi(arg.p[0], row_of_pair(id));
            if (arg.p[12] > 1) {
                int span = a / SPAN + int(gl_WorkGroupID.z);
                a = max(a, span * SPAN);
                b = min(b, (span + 1) * SPAN);
            }
        }
        lo[id] = a;
        hi[id] = b;
        one[id] = all[id] = top(NONE, 0);
    }
    [[unroll]] for (int i = 0; i < 4; i++)
        [[unroll]] for (int c = 0; c < CHUNKS; c++)
            o[i][c] = vec4(0);
    barrier();
    from = 0x7fffffff;
    to = 0;
    for (uint i = 0; i < TILE; i++)
        if (lo[i] < hi[i]) {
            from = min(from, lo[i]);
            to = max(to, hi[i]);
        }
}

void tile()
{
    int from, to;
    uint at;
    look(from, to);
    for (int p0 = from / PAGE * PAGE; p0 < to; p0 += PAGE) {
        int j0 = PAGE, j1 = 0;
        bool whole = true;
        if (p0 % SPAN == 0)
            merge_span();
        for (uint i = 0; i < TILE; i++) {
            int a = max(lo[i] - p0, 0), b = min(hi[i] - p0, PAGE);
            j0 = a < b ? min(j0, a) : j0;
            j1 = a < b ? max(j1, b) : j1;
            whole = whole && (b - a == PAGE || !is_pair(i));
        }
        if (j0 >= j1)
            continue;
        uint64_t page = page_of(seg, uint(p0), at); /* at: of the page's first slot */
        scores(page, at, p0, j0, j1);
        softmax(p0);
        add_values(page, at, p0, j0, j1, whole);
    }
    merge_span();
    put_rest();
}

void main()
{
    uint u = gl_WorkGroupID.y, before = 0, n = uint(step_at(2));
    kv = gl_WorkGroupID.x;
    for (seg = 0; seg < n; seg++) {
        first = uint(step_first(seg));
        items = (uint(step_first(seg + 1)) - first) * HEADS;
        uint tiles = (items + TILE - 1) / TILE;
        for (; u < before + tiles; u += gl_NumWorkGroups.y) {
            q0 = (u - before) * TILE;
            tile();
        }
        before += tiles;
    }
}
