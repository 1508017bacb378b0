/* rows.cu -- element-wise ops (graph/ops/rows.c), one thread a column, row after row. spec: op,
 * activation; [2]: a second operand (AFFINE: a summand; MOE_SUM: weights); [3]: a weight. */
#include "common.cuh"

/* As gpu/ops.c numbers them. */
enum {
    ADD, MUL, SCALE, SOFTCAP, AFFINE, LERP, HEAD_MUL, GLU, CLAMP, TEMPER, SELECT, MOE_SPREAD,
    MOE_SUM, DIVIDE, UNSAID, MOE_ROUTE, MOE_PICK
};

FN float clamped(float x, float lo, float hi)
{
    x = lo > x ? lo : x;
    return hi < x ? hi : x;
}

FN float gelu_erf(float g)
{
    float x = fabsf(g) * 0.70710678f, t = 1.0f / fmaf(0.3275911f, x, 1.0f);
    float erfc = polynomial5(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                             0.254829592f) *
                 t * exact_exp(-x * x);
    return 0.5f * g * (g < 0 ? erfc : 2.0f - erfc);
}

FN float sigmoid(float x) { return 1.0f / (1.0f + exact_exp(-x)); }

FN float act_of(const Args &arg, int act, float x)
{
    float r = x > 0 ? x : 0;
    switch (act) {
    case 0: return x / (1.0f + exact_exp(-x));
    case 1: return x / (1.0f + exact_exp(fmaf(x * x, -0.071354816f, -1.5957691216f) * x));
    case 2: return gelu_erf(x);
    case 3: return x / (1.0f + exact_exp(x * -1.702f));
    case 4: return r;
    case 5: return r * r;
    case 6: return sigmoid(x);
    case 7: return exact_tanh(x);
    case 8: return exact_exp(x);
    case 9: return x > 20 ? x : exact_log(1 + exact_exp(x));
    case 10: return x < 0 ? -floorf(0.5f - x) : floorf(x + 0.5f);
    case 16:
        r = sqrtf(fabsf(x) > 1e-6f ? fabsf(x) : 1e-6f);
        return x > 0 ? r : x < 0 ? -r : x;
    default: { /* xielu */
        float c = arg_f(arg, 2), lim = arg_f(arg, 3);
        float up = fmaf(arg_f(arg, 0) * x, x, c * x);
        float down = fmaf(arg_f(arg, 1), exact_exp(lim < x ? lim : x) - 1 - x, c * x);
        return 0 < x ? up : down;
    }
    }
}

FN float gated(const Args &arg, float x, float y)
{
    float c = arg_f(arg, 0);
    if (arg.spec[1] == 12)
        return act_of(arg, 0, clamped(x, none(), c)) * clamped(y, -c, c);
    if (arg.spec[1] == 13)
        return clamped(act_of(arg, 0, x), none(), c) * clamped(y, -c, c);
    if (arg.spec[1] == 15) {
        float d = arg_f(arg, 1), up = d != 0 ? d * exact_tanh(y / d) : y;
        return c * exact_tanh(x / c) * sigmoid(x) * up;
    }
    return act_of(arg, 3, clamped(x, none(), c)) * (clamped(y, -c, c) + 1);
}

FN float combined(const Args &arg, float x, float y, uint32_t r, uint32_t i)
{
    bool has_b = arg.spec[2] != 0, has_w = arg.spec[3] != 0;
    switch (arg.spec[0]) {
    case ADD: return x + y;
    case MUL: return x * y;
    case SCALE: return x * arg_f(arg, 0);
    case SOFTCAP: return arg_f(arg, 0) * exact_tanh(x / arg_f(arg, 0));
    case AFFINE: {
        float z = has_w ? x * f32_at(arg.w)[i] : x;
        return has_b ? z + f32_at(arg.bias)[i] : z;
    }
    case LERP: {
        float t = has_w ? f32_at(arg.w)[i] : row_of(arg.extra, r, arg.p[0])[i];
        return fmaf(y - x, t, x);
    }
    case GLU:
        return arg.spec[1] >= 12 && arg.spec[1] < 16 ? gated(arg, x, y)
               : has_b ? act_of(arg, arg.spec[1], x) * y
                       : act_of(arg, arg.spec[1], x);
    case DIVIDE: return x / f32_at(arg.w)[i];
    case CLAMP: return clamped(x, arg_f(arg, 0), arg_f(arg, 1));
    case TEMPER: {
        int spans = (step_pos(arg, r) + (int)arg.p[2]) / (int)arg.p[1];
        return x * fmaf(arg_f(arg, 0), exact_log((float)spans + 1), 1.0f);
    }
    default: return x;
    }
}

/* p: experts of a row; the first of a range, how many (0: all of them). */
FN bool has_expert(const Args &arg, int e)
{
    return !arg.p[2] || (e >= (int)arg.p[1] && e < (int)(arg.p[1] + arg.p[2]));
}

/* Ops whose operands are other rows or columns than the result's. */
FN float moved(const Args &arg, uint32_t r, uint32_t i)
{
    uint32_t k = arg.p[0];
    switch (arg.spec[0]) {
    case SELECT: return row_of(arg.a, (uint32_t)step_out(arg, r), arg.lda)[i];
    case UNSAID: /* p: first, how many, the column that follows */
        if (i >= arg.p[0] && i < arg.p[0] + arg.p[1])
            return -3.402823466e38f;
        return row_of(arg.a, r, arg.lda)[i < arg.p[0] ? i : i - arg.p[0] - arg.p[1] + arg.p[2]];
    case MOE_SPREAD:
        return row_of(arg.a, r / k, arg.lda)[i] * row_of(arg.b, r / k, arg.ldb)[k + r % k];
    case MOE_PICK: {
        bool other = has_expert(arg, ints_of(arg.extra, r / k, arg.p[3])[r % k]);
        return other ? row_of(arg.b, r, arg.ldb)[i] : row_of(arg.a, r, arg.lda)[i];
    }
    default: { /* MOE_SUM */
        float sum = arg.extra ? row_of(arg.extra, r, arg.p[3])[i] : 0;
        for (uint32_t j = 0; j < k; j++) {
            float w = arg.spec[2] ? row_of(arg.b, r, arg.ldb)[k + j] : 1;
            if (!has_expert(arg, ints_of(arg.b, r, arg.ldb)[j]))
                continue;
            sum = fmaf(w, row_of(arg.a, (uint64_t)r * k + j, arg.lda)[i], sum);
        }
        return sum;
    }
    }
}

FN float element(const Args &arg, uint32_t r, uint32_t i)
{
    int op = arg.spec[0];
    if (op == SELECT || op == UNSAID || op == MOE_SPREAD || op == MOE_SUM ||
        op == MOE_PICK)
        return moved(arg, r, i);
    float x = row_of(arg.a, r, arg.lda)[i];
    if (op == HEAD_MUL)
        return x * row_of(arg.b, r, arg.ldb)[i / arg.p[0]];
    bool two = op == ADD || op == MUL || op == LERP || (op == GLU && arg.spec[2]);
    return combined(arg, x, two ? row_of(arg.b, r, arg.ldb)[i] : 0, r, i);
}

/* An expert's number, which is no float, and its weight. */
FN void route(const Args &arg, uint32_t r)
{
    int n = (int)arg.p[0];
    float v = row_of(arg.a, r, arg.lda)[0];
    ints_of(arg.dst, r, arg.ld)[0] = v > 0 ? v < (float)n ? (int)v : n - 1 : 0;
    row_of(arg.dst, r, arg.ld)[1] = 1;
}

KERNEL(rows, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        if (arg.spec[0] != MOE_ROUTE)
            row_of(arg.dst, r, arg.ld)[i] = element(arg, r, i);
        else if (i == 0)
            route(arg, r);
    }
}
