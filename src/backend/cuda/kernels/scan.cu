/* scan.cu -- what keeps a state from row to row: convolutions (CONV of graph/ops/conv.c), selective
 * state spaces (SSM) and attention with a state instead of a cache (LINEAR of graph/ops/scan.c). */
#include "common.cuh"

/* Numbers [at, at + n) of the state before a segment, where the scan goes on: the block of its last
 * row. */
FN float *scan_from(const Args &a, uint32_t seg, uint32_t at, uint32_t n)
{
    float *h = f32_at(kept_of(a, (uint32_t)step_first(a, seg + 1) - 1)) + at;
    const float *from = has_before(a, seg) ? f32_at(before_of(a, seg)) + at : h;
    bool some = has_before(a, seg);
    for (uint32_t j = 0; j < n; j++)
        h[j] = some ? from[j] : 0;
    return h;
}

/* Keeps them after row r of the segment that ends before row `end`. */
FN void scan_keep(const Args &a, uint32_t r, uint32_t end, const float *h, uint32_t at, uint32_t n)
{
    if (r + 1 == end || !is_kept(a, r))
        return;
    float *to = f32_at(kept_of(a, r)) + at;
    for (uint32_t j = 0; j < n; j++)
        to[j] = h[j];
}

/* Tree over 16 chains. */
FN float tree16(float (&v)[16])
{
    UNROLL for (int h = 8; h > 0; h /= 2)
        UNROLL for (int j = 0; j < h; j++)
            v[j] = v[j] + v[j + h];
    return v[0];
}

/* ---------------------------------------------------------------- conv */

/* Channel i of row `at` of a segment; what lies outside: false. */
FN bool row_at(const Args &arg, uint32_t seg, int at, uint32_t i, float *x)
{
    int first = step_first(arg, seg), left = (int)arg.p[4];
    *x = 0;
    if (at >= first) {
        if (at >= step_first(arg, seg + 1))
            return false;
        *x = row_of(arg.a, (uint32_t)at, arg.lda)[i];
        return true;
    }
    if (!arg.spec[2] || !has_before(arg, seg))
        return false;
    *x = row_of(before_of(arg, seg), (uint32_t)(at - first + left), arg.cols)[i];
    return true;
}

/* A thread a channel. spec: weight, bias, state. p[3]: rows under the kernel; p[4]: how far before
 * the row the first lies; p[5]: from one to the next. */
KERNEL(conv, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    int width = arg.spec[0] ? (int)arg.p[3] : 1, left = (int)arg.p[4];
    if (i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        uint32_t seg = (uint32_t)step_seg(arg, r);
        float sum = 0, x;
        for (int k = 0; k < width; k++)
            if (row_at(arg, seg, (int)r - left + k * (int)arg.p[5], i, &x))
                sum = arg.spec[0] ? fmaf(f32_at(arg.w)[i * (uint32_t)width + (uint32_t)k], x, sum)
                                  : x;
        if (arg.spec[1])
            sum = sum + f32_at(arg.bias)[i];
        row_of(arg.dst, r, arg.ld)[i] = sum;
        for (int k = 0; arg.spec[2] && is_kept(arg, r) && k < left; k++) {
            row_at(arg, seg, (int)r - left + 1 + k, i, &x);
            row_of(kept_of(arg, r), (uint32_t)k, arg.cols)[i] = x;
        }
    }
}

/* ---------------------------------------------------------------- ssm */

FN uint64_t address(const Args &arg, uint32_t i)
{
    return (uint64_t)arg.p[i] | (uint64_t)arg.p[i + 1] << 32;
}

/* One row of a channel's state. */
FN float row_of_channel(const Args &arg, float *h, const float *a, const float *b, const float *c,
                        float dt, float x)
{
    uint32_t n = arg.p[9];
    float dx = dt * x, decay = exact_exp(dt * a[0]), chain[16];
    UNROLL for (int j = 0; j < 16; j++)
        chain[j] = 0;
    for (uint32_t j0 = 0; j0 < n; j0 += 16)
        UNROLL for (uint32_t l = 0; l < 16; l++) {
            uint32_t j = j0 + l;
            if (j < n) {
                float k = arg.spec[0] ? exact_exp(dt * a[j]) : decay;
                float old = h[j] * k, s = fmaf(dx, b[j], old);
                h[j] = s;
                chain[l] = fmaf(c[j], s, chain[l]);
            }
        }
    return tree16(chain);
}

/* A thread a channel of a segment, row after row. a: x; b: dt; w: decay; bias: skip. spec[0]: a
 * decay for each number. p[3 .. 6]: addresses of b and c; p[7], p[8]: from row to row of them;
 * p[9 .. 11]: numbers of a channel's state, heads, groups. */
KERNEL(ssm, 64)
{
    uint32_t i = thread_x(), n = arg.p[9], heads = arg.p[10], groups = arg.p[11];
    if (i >= arg.cols)
        return;
    uint32_t head = i / (arg.cols / heads), g = head / (heads / groups) * n;
    const float *a = f32_at(arg.w) + (arg.spec[0] ? head * n : head);
    EACH_ROW(seg, (uint32_t)step_at(arg, 2)) {
        uint32_t end = (uint32_t)step_first(arg, seg + 1);
        float *h = scan_from(arg, seg, i * n, n);
        for (uint32_t r = (uint32_t)step_first(arg, seg); r < end; r++) {
            const float *b = row_of(address(arg, 3), r, arg.p[7]) + g;
            const float *c = row_of(address(arg, 5), r, arg.p[8]) + g;
            float x = row_of(arg.a, r, arg.lda)[i], dt = row_of(arg.b, r, arg.ldb)[head];
            float sum = row_of_channel(arg, h, a, b, c, dt, x);
            row_of(arg.dst, r, arg.ld)[i] = fmaf(f32_at(arg.bias)[head], x, sum);
            scan_keep(arg, r, end, h, i * n, n);
        }
    }
}

/* ---------------------------------------------------------------- linear */

enum { GATED, SHARED, BONUS, DELTA, RANK1, OPERANDS = 6 };

/* Operand s of a row and head, heads of `width` numbers. */
FN const float *operand(const Args &arg, uint32_t s, uint32_t width, uint32_t r, uint32_t head)
{
    uint64_t t = arg.bias + 16 * (uint64_t)s;
    uint32_t heads = u32(t + 12), h = arg.spec[2] ? head % heads : head * heads / arg.p[3];
    return row_of((uint64_t)u32(t) | (uint64_t)u32(t + 4) << 32, r, u32(t + 8)) +
           (uint64_t)h * width;
}

/* What a row brings for one row of the state. */
struct Brought {
    const float *q, *k, *w, *a, *b;
    float v, beta;
};

FN float row_of_state(const Args &arg, float *s, const Brought &x)
{
    int rule = arg.spec[0];
    uint32_t n = arg.p[4], every = arg.spec[1] ? 1 : 0;
    float chain[16], read[16], u = 0, v = x.v;
    UNROLL for (int j = 0; j < 16; j++)
        chain[j] = read[j] = 0;
    for (uint32_t j0 = 0; (rule == DELTA || rule == RANK1) && j0 < n; j0 += 16)
        UNROLL for (uint32_t c = 0; c < 16; c++) {
            uint32_t j = j0 + c;
            if (j < n && rule == DELTA)
                chain[c] = fmaf(s[j] * x.w[j * every], x.k[j], chain[c]);
            if (j < n && rule == RANK1)
                chain[c] = fmaf(s[j], x.a[j], chain[c]);
        }
    if (rule == DELTA)
        v = x.beta * (v - tree16(chain));
    if (rule == RANK1)
        u = tree16(chain);
    for (uint32_t j0 = 0; j0 < n; j0 += 16)
        UNROLL for (uint32_t c = 0; c < 16; c++) {
            uint32_t j = j0 + c;
            if (j < n) {
                float decay = x.w[j * every], key = x.k[j], old = s[j], t = old * decay;
                if (rule == SHARED)
                    key = fmaf(-key, decay, key);
                if (rule == RANK1)
                    t = fmaf(u, x.b[j], t);
                t = fmaf(v, key, t);
                float seen = rule == BONUS ? fmaf(v, x.a[j] * key, old) : t;
                s[j] = t;
                read[c] = fmaf(x.q[j], seen, read[c]);
            }
        }
    return arg_f(arg, 6) * tree16(read);
}

FN Brought brought(const Args &arg, uint32_t r, uint32_t head, uint32_t i)
{
    int rule = arg.spec[0];
    uint32_t d_k = arg.p[4];
    bool fixed = arg.spec[3] != 0;
    Brought x;
    x.q = operand(arg, 0, d_k, r, head);
    x.k = x.a = x.b = operand(arg, 1, d_k, r, head);
    x.v = operand(arg, 2, arg.p[5], r, head)[i];
    x.w = fixed ? f32_at(arg.bias + 16 * OPERANDS) + head
                : operand(arg, 3, arg.spec[1] ? d_k : 1, r, head);
    x.beta = rule == DELTA ? operand(arg, fixed ? 3 : 4, 1, r, head)[0] : 0;
    if (rule == BONUS)
        x.a = f32_at(arg.w) + (uint64_t)head * d_k;
    if (rule == RANK1) {
        x.a = operand(arg, 4, d_k, r, head);
        x.b = operand(arg, 5, d_k, r, head);
    }
    return x;
}

/* A block a head of a segment, a thread for each row of its state. spec: rule, a decay for each
 * key, tiled heads, constant decays. bias: of each operand address, distance of rows and heads;
 * then decays. w: bonus. p[3 .. 6]: heads, d_k, d_v, scale. */
KERNEL(linear, 64)
{
    uint32_t head = blockIdx.x, d_k = arg.p[4], d_v = arg.p[5];
    EACH_ROW(seg, (uint32_t)step_at(arg, 2)) {
        uint32_t end = (uint32_t)step_first(arg, seg + 1);
        for (uint32_t i = threadIdx.x; i < d_v; i += 64) {
            uint32_t at = (head * d_v + i) * d_k;
            float *s = scan_from(arg, seg, at, d_k);
            for (uint32_t r = (uint32_t)step_first(arg, seg); r < end; r++) {
                row_of(arg.dst, r, arg.ld)[head * d_v + i] =
                    row_of_state(arg, s, brought(arg, r, head, i));
                scan_keep(arg, r, end, s, at, d_k);
            }
        }
    }
}
