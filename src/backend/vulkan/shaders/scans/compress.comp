#include "common.glsl"
#include "blocks.glsl"
/* compress.comp -- rows of a sequence pooled (COMPRESS of graph/ops/scan.c), a thread a column. A
 * block of 64 columns keeps (m, l, o) of each, those of the pool that is open, then, with overlap,
 * those of the next. p[3 ..]: tokens of a pool, overlap, a gate, numbers of places (w). */
layout(local_size_x = 64) in;

const uint BLOCK = 64;
#define OVERLAP (arg.p[4] != 0)

/* Column c of row r, which is place `at` of its pool, to the number at h + i of n. */
void add_row(F32 h, uint i, uint n, uint r, uint c, uint at, bool first)
{
    uint width = arg.cols * (OVERLAP ? 2 : 1);
    precise float x = row_of(arg.a, r, arg.lda).v[c];
    precise float gate = arg.p[5] != 0 ? row_of(arg.b, r, arg.ldb).v[c] : 0;
    precise float t = gate + (arg.p[6] != 0 ? F32(arg.w).v[at * width + c] : 0);
    if (first) {
        h.v[i] = t;
        h.v[n + i] = 1;
        h.v[2 * n + i] = x;
        return;
    }
    precise float m = h.v[i], most = m > t ? m : t;
    precise float a = exact_exp(m - most), b = exact_exp(t - most), part = x * b;
    h.v[n + i] = fma(h.v[n + i], a, b);
    h.v[2 * n + i] = fma(h.v[2 * n + i], a, part);
    h.v[i] = most;
}

void copy(F32 to, F32 from, uint i, uint n, bool some)
{
    for (uint k = 0; k < (OVERLAP ? 6 : 3); k++)
        to.v[k * n + i] = some ? from.v[k * n + i] : 0;
}

void scan(uint seg, uint c)
{
    uint c0 = c / BLOCK * BLOCK, n = min(BLOCK, arg.cols - c0), i = c - c0;
    uint end = uint(step_first(seg + 1)), parts = OVERLAP ? 2 : 1;
    uint64_t from = 4 * uint64_t(3 * c0 * parts);
    F32 h = F32(kept_of(end - 1) + from);
    bool some = has_before(seg);
    copy(h, F32(some ? before_of(seg) + from : uint64_t(h)), i, n, some);
    for (uint r = uint(step_first(seg)); r < end; r++) {
        uint pos = uint(step_pos(r)), at = pos % arg.p[3];
        add_row(h, i, n, r, OVERLAP ? arg.cols + c : c, at, (OVERLAP ? pos : at) == 0);
        if (OVERLAP)
            add_row(h, 3 * n + i, n, r, c, at, at == 0);
        float y = 0;
        if (at == arg.p[3] - 1) {
            y = h.v[2 * n + i] / h.v[n + i];
            for (uint k = 0; OVERLAP && k < 3; k++)
                h.v[k * n + i] = h.v[(3 + k) * n + i];
        }
        row_of(arg.dst, r, arg.ld).v[c] = y;
        if (r + 1 != end && is_kept(r))
            copy(F32(kept_of(r) + from), h, i, n, true);
    }
}

void main()
{
    if (gl_GlobalInvocationID.x >= arg.cols)
        return;
    for (uint seg = gl_WorkGroupID.y; seg < uint(step_at(2)); seg += gl_NumWorkGroups.y)
        scan(seg, gl_GlobalInvocationID.x);
}
