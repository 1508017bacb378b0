#include "common.glsl"
#include "tree.glsl"
/* stream.comp -- several residual streams in a row (graph/ops/stream.c): STREAM_MIX a thread a
 * column, STREAM_GATES a thread a row, STREAM_ATTEND a workgroup a row. */
layout(local_size_x = 64) in;

const int MIX = 0, GATES = 1, ATTEND = 2, MOST = 1025;
#define OP SPEC0

/* MIX: p: streams in, out; 1: kept, 2: summed, 4: y; c_first, c_out, c_in, y_first, y_add, rows'
 * distance of y, which is at `extra`. */
float mixed(uint r, uint col)
{
    uint n = arg.cols / arg.p[1], o = col / n, i = col % n;
    F32 x = row_of(arg.a, r, arg.lda), k = row_of(arg.b, r, arg.ldb);
    precise float sum = (arg.p[2] & 1) != 0 ? x.v[o * n + i] : 0;
    for (uint s = 0; (arg.p[2] & 2) != 0 && s < arg.p[0]; s++)
        sum = fma(k.v[arg.p[3] + o * arg.p[4] + s * arg.p[5]], x.v[s * n + i], sum);
    if ((arg.p[2] & 4) == 0)
        return sum;
    precise float add = k.v[arg.p[6] + o] + ARG_F(7);
    return fma(add, row_of(arg.extra, r, arg.p[8]).v[i], sum);
}

/* ---------------------------------------------------------------- GATES */

/* p: streams, iterations, eps, magnitude, post_eps. w: scales; bias: base. */
void divide(F32 m, uint at, uint n, uint step)
{
    precise float sum = 0;
    for (uint i = 0; i < n; i++)
        sum = sum + m.v[at + i * step];
    sum = sum + ARG_F(2);
    for (uint i = 0; i < n; i++)
        m.v[at + i * step] = m.v[at + i * step] / sum;
}

void softmax_of(F32 m, uint at, uint n)
{
    precise float most = -1.0 / 0.0, lane16[16];
    for (int j = 0; j < 16; j++)
        lane16[j] = 0;
    for (uint i = 0; i < n; i++)
        most = m.v[at + i] > most ? m.v[at + i] : most;
    for (uint i = 0; i < n; i++) {
        m.v[at + i] = exact_exp(m.v[at + i] - most);
        lane16[i % 16] = lane16[i % 16] + m.v[at + i];
    }
    for (int h = 8; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            lane16[j] = lane16[j] + lane16[j + h];
    precise float k = 1.0 / lane16[0];
    for (uint i = 0; i < n; i++) {
        precise float share = m.v[at + i] * k;
        m.v[at + i] = share;
    }
}

void sinkhorn(F32 m, uint at, uint n)
{
    for (uint s = 0; s < n; s++) {
        softmax_of(m, at + s * n, n);
        for (uint d = 0; d < n; d++) {
            precise float more = m.v[at + s * n + d] + ARG_F(2);
            m.v[at + s * n + d] = more;
        }
    }
    for (uint it = 0; it < arg.p[1]; it++) {
        for (uint s = 0; s < n && it > 0; s++)
            divide(m, at + s * n, n, 1);
        for (uint d = 0; d < n; d++)
            divide(m, at + d, n, n);
    }
}

void gates(uint r)
{
    uint n = arg.p[0];
    F32 x = row_of(arg.a, r, arg.lda), z = row_of(arg.dst, r, arg.ld);
    for (uint i = 0; i < arg.cols; i++) {
        uint part = i < n ? 0 : i < 2 * n ? 1 : 2;
        precise float m = fma(x.v[i], F32(arg.w).v[part], F32(arg.bias).v[i]);
        precise float sigmoid = 1.0 / (1.0 + exact_exp(-m));
        precise float pre = sigmoid + ARG_F(2), post = ARG_F(3) * sigmoid + ARG_F(4);
        z.v[i] = part == 0 ? pre : part == 1 ? post : m;
    }
    if (arg.cols > 2 * n)
        sinkhorn(z, 2 * n, n);
}

/* ---------------------------------------------------------------- ATTEND */

shared float share[MOST];

/* p: streams that were kept, eps. */
void attend(uint r)
{
    uint n = arg.cols, kept = arg.p[0], t = gl_LocalInvocationID.x;
    F32 last = row_of(arg.a, r, arg.lda), x = row_of(arg.b, r, arg.ldb), w = F32(arg.w);
    for (uint s = 0; s <= kept; s++) {
        precise float sum = 0, sq = 0;
        for (uint i = t; i < n; i += 64) {
            float v = s < kept ? x.v[s * n + i] : last.v[i];
            sum = fma(v, w.v[i], sum);
            sq = fma(v, v, sq);
        }
        sum = tree_sum(sum);
        sq = tree_sum(sq);
        precise float score = sum * (1.0 / sqrt(sq / float(n) + ARG_F(1)));
        if (t == 0)
            share[s] = score;
    }
    if (t == 0) {
        precise float most = -1.0 / 0.0, lane16[16];
        for (int j = 0; j < 16; j++)
            lane16[j] = 0;
        for (uint s = 0; s <= kept; s++)
            most = share[s] > most ? share[s] : most;
        for (uint s = 0; s <= kept; s++) {
            share[s] = exact_exp(share[s] - most);
            lane16[s % 16] = lane16[s % 16] + share[s];
        }
        for (int h = 8; h > 0; h /= 2)
            for (int j = 0; j < h; j++)
                lane16[j] = lane16[j] + lane16[j + h];
        precise float k = 1.0 / lane16[0];
        for (uint s = 0; s <= kept; s++)
            share[s] = share[s] * k;
    }
    barrier();
    for (uint i = t; i < n; i += 64) {
        precise float sum = 0;
        for (uint s = 0; s < kept; s++)
            sum = fma(share[s], x.v[s * n + i], sum);
        row_of(arg.dst, r, arg.ld).v[i] = fma(share[kept], last.v[i], sum);
    }
    barrier();
}

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (OP == GATES) {
        for (uint r = i; r < n; r += 64 * gl_NumWorkGroups.x)
            gates(r);
        return;
    }
    if (OP == MIX && i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        if (OP == MIX)
            row_of(arg.dst, r, arg.ld).v[i] = mixed(r, i);
        else
            attend(r);
}
