/* norm.cu -- a block for each stretch of a row (graph/ops/norm.c, and what sums like it): 64
 * chains, one a thread, and their tree. spec: op; [1]: a weight. p[0] elements of x; p[1] from one
 * stretch to the next; p[3] eps. */
#include "common.cuh"

enum { RMS, LAYER, L2, HEAD_SCALE, LENGTH, TOP_PART, HEAD_DOT };

FN bool is_number(int op) { return op == LENGTH || op == HEAD_DOT; } /* one of a stretch */

struct Stretch {
    const float *x, *z, *w;
    float *y;
    uint32_t n;
};

FN float sum_of(const Stretch &s, int op)
{
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < s.n; i += 64)
        sum = op == LAYER || op == TOP_PART ? sum + s.x[i]
              : op == HEAD_SCALE            ? fmaf(s.z[i], s.w[i], sum)
              : op == HEAD_DOT              ? fmaf(s.x[i], s.z[i], sum)
                                            : fmaf(s.x[i], s.x[i], sum);
    return tree_sum(sum);
}

FN float squares_around(const Stretch &s, float mean)
{
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < s.n; i += 64) {
        float d = s.x[i] - mean;
        sum = fmaf(d, d, sum);
    }
    return tree_sum(sum);
}

FN void stretch(const Args &arg, const Stretch &s)
{
    int op = arg.spec[0];
    uint32_t t = threadIdx.x;
    float eps = arg_f(arg, 3), mean = 0, sum = sum_of(s, op);
    if (op == LAYER || op == TOP_PART) {
        mean = sum / (float)s.n;
        sum = squares_around(s, mean);
    }
    if (op == TOP_PART) {
        float cut = mean + eps * sqrtf(sum / (float)(s.n > 1 ? s.n - 1 : 1));
        for (uint32_t i = t; i < s.n; i += 64)
            s.y[i] = s.x[i] - cut > 0 ? s.x[i] - cut : 0;
        return;
    }
    if (is_number(op)) {
        if (t == 0)
            s.y[0] = op == LENGTH ? sqrtf(sum) : sum;
        return;
    }
    float len = op == L2 ? sqrtf(sum) : 0;
    float k = op == HEAD_SCALE ? sum
              : op == L2       ? 1.0f / (len > eps ? len : eps)
                               : 1.0f / sqrtf(sum / (float)s.n + eps);
    for (uint32_t i = t; i < s.n; i += 64) {
        float v = (s.x[i] - mean) * k;
        s.y[i] = op == RMS && arg.spec[1] ? v * s.w[i] : v;
    }
}

KERNEL(norm, 64)
{
    uint32_t n = rows_of(arg, arg.rows), h = blockIdx.x, width = arg.p[0];
    EACH_ROW(r, n) {
        Stretch s;
        s.n = width;
        s.x = row_of(arg.a, r, arg.lda) + (uint64_t)h * arg.p[1];
        s.y = row_of(arg.dst, r, arg.ld) + (uint64_t)h * (is_number(arg.spec[0]) ? 1 : width);
        s.z = row_of(arg.b, r, arg.ldb) + (uint64_t)h * width;
        s.w = f32_at(arg.w) + (arg.spec[0] == HEAD_SCALE ? (uint64_t)h * width : 0);
        stretch(arg, s);
    }
}
