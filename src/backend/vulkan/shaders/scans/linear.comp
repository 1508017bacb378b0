#include "common.glsl"
#include "blocks.glsl"
/* linear.comp -- attention with a state instead of a cache (LINEAR of graph/ops/scan.c): a
 * workgroup a head of a segment, a thread for each row of its state. bias: of each operand address,
 * distance of rows and heads; then decays. w: bonus. p[3 .. 6]: heads, d_k, d_v, scale. */
layout(local_size_x = 64) in;

const int GATED = 0, SHARED = 1, BONUS = 2, DELTA = 3, RANK1 = 4, OPERANDS = 6;
#define RULE    SPEC0
#define PER_KEY (SPEC1 != 0)
#define TILED   (SPEC2 != 0)
#define CONST_W (SPEC3 != 0)

/* Operand s of a row and head, heads of `width` numbers. */
F32 operand(uint s, uint width, uint r, uint head)
{
    U32 t = U32(arg.bias + 16 * s);
    uint heads = t.v[3], h = TILED ? head % heads : head * heads / arg.p[3];
    uint64_t base = uint64_t(t.v[0]) | uint64_t(t.v[1]) << 32;
    return F32(base + 4 * (uint64_t(r) * t.v[2] + uint64_t(h) * width));
}

/* One row of the state. */
float row_of_state(F32 s, F32 q, F32 k, F32 w, F32 a, F32 b, float in_v, float beta)
{
    uint n = arg.p[4];
    precise float chain[16], read[16], u = 0, v = in_v;
    [[unroll]] for (int j = 0; j < 16; j++)
        chain[j] = read[j] = 0;
    for (uint j0 = 0; (RULE == DELTA || RULE == RANK1) && j0 < n; j0 += 16)
        [[unroll]] for (int c = 0; c < 16; c++) {
            uint j = j0 + c;
            if (j < n && RULE == DELTA)
                chain[c] = fma(s.v[j] * w.v[PER_KEY ? j : 0], k.v[j], chain[c]);
            if (j < n && RULE == RANK1)
                chain[c] = fma(s.v[j], a.v[j], chain[c]);
        }
    if (RULE == DELTA)
        v = beta * (v - tree16(chain));
    if (RULE == RANK1)
        u = tree16(chain);
    for (uint j0 = 0; j0 < n; j0 += 16)
        [[unroll]] for (int c = 0; c < 16; c++) {
            uint j = j0 + c;
            if (j < n) {
                precise float decay = w.v[PER_KEY ? j : 0], key = k.v[j], old = s.v[j];
                precise float t = old * decay;
                if (RULE == SHARED)
                    key = fma(-key, decay, key);
                if (RULE == RANK1)
                    t = fma(u, b.v[j], t);
                t = fma(v, key, t);
                precise float seen = RULE == BONUS ? fma(v, a.v[j] * key, old) : t;
                s.v[j] = t;
                read[c] = fma(q.v[j], seen, read[c]);
            }
        }
    return ARG_F(6) * tree16(read);
}

void main()
{
    uint head = gl_WorkGroupID.x, d_k = arg.p[4], d_v = arg.p[5], size = d_k * d_v;
    for (uint seg = gl_WorkGroupID.y; seg < uint(step_at(2)); seg += gl_NumWorkGroups.y) {
        uint end = uint(step_first(seg + 1));
        for (uint i = gl_LocalInvocationID.x; i < d_v; i += 64) {
            uint at = head * size + i * d_k;
            F32 s = scan_from(seg, at, d_k);
            for (uint r = uint(step_first(seg)); r < end; r++) {
                F32 q = operand(0, d_k, r, head), k = operand(1, d_k, r, head), w = k, a = k, b = k;
                float v = operand(2, d_v, r, head).v[i], beta = 0;
                if (CONST_W)
                    w = F32(arg.bias + 16 * OPERANDS + 4 * head);
                else
                    w = operand(3, PER_KEY ? d_k : 1, r, head);
                if (RULE == DELTA)
                    beta = operand(CONST_W ? 3 : 4, 1, r, head).v[0];
                if (RULE == BONUS)
                    a = F32(arg.w + 4 * uint64_t(head) * d_k);
                if (RULE == RANK1) {
                    a = operand(4, d_k, r, head);
                    b = operand(5, d_k, r, head);
                }
                row_of(arg.dst, r, arg.ld).v[head * d_v + i] =
                    row_of_state(s, q, k, w, a, b, v, beta);
                scan_keep(r, end, s, at, d_k);
            }
        }
    }
}
