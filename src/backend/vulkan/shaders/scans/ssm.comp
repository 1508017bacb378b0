#include "common.glsl"
#include "blocks.glsl"
/* ssm.comp -- selective state spaces (SSM of graph/ops/scan.c): a thread a channel of a segment,
 * row after row. a: x; b: dt; w: decay; bias: skip. p[3 .. 6]: addresses of b and c; p[7], p[8]:
 * from row to row of them; p[9 .. 11]: numbers of a channel's state, heads, groups. */
layout(local_size_x = 64) in;

#define PER_STATE (SPEC0 != 0)

uint64_t address(uint i) { return uint64_t(arg.p[i]) | uint64_t(arg.p[i + 1]) << 32; }

void main()
{
    uint i = gl_GlobalInvocationID.x, n = arg.p[9], heads = arg.p[10], groups = arg.p[11];
    if (i >= arg.cols)
        return;
    uint head = i / (arg.cols / heads), g = head / (heads / groups) * n;
    F32 a = F32(arg.w + 4 * (PER_STATE ? head * n : head));
    for (uint seg = gl_WorkGroupID.y; seg < uint(step_at(2)); seg += gl_NumWorkGroups.y) {
        uint end = uint(step_first(seg + 1));
        F32 h = scan_from(seg, i * n, n);
        for (uint r = uint(step_first(seg)); r < end; r++) {
            F32 b = F32(address(3) + 4 * (uint64_t(r) * arg.p[7] + g));
            F32 c = F32(address(5) + 4 * (uint64_t(r) * arg.p[8] + g));
            precise float x = row_of(arg.a, r, arg.lda).v[i];
            precise float dt = row_of(arg.b, r, arg.ldb).v[head], dx = dt * x;
            precise float decay = exact_exp(dt * a.v[0]), chain[16];
            [[unroll]] for (int j = 0; j < 16; j++)
                chain[j] = 0;
            for (uint j0 = 0; j0 < n; j0 += 16)
                [[unroll]] for (int l = 0; l < 16; l++) {
                    uint j = j0 + l;
                    if (j < n) {
                        precise float k = decay;
                        if (PER_STATE)
                            k = exact_exp(dt * a.v[j]);
                        precise float old = h.v[j] * k, s = fma(dx, b.v[j], old);
                        h.v[j] = s;
                        chain[l] = fma(c.v[j], s, chain[l]);
                    }
                }
            row_of(arg.dst, r, arg.ld).v[i] = fma(F32(arg.bias).v[head], x, tree16(chain));
            scan_keep(r, end, h, i * n, n);
        }
    }
}
