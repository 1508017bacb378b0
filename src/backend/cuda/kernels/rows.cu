/* rows.cu -- element-wise ops (graph/ops/rows.c), one thread a column, row after row. spec: op,
 * activation; [2]: a second operand (AFFINE: a summand; MOE_SUM: weights); [3]: a weight. */
#include "common.cuh"

/* As gpu/ops.c numbers them. */
enum {
    ADD, MUL, SCALE, SOFTCAP, AFFINE, LERP, HEAD_MUL, GLU, CLAMP, TEMPER, SELECT, MOE_SPREAD,
    MOE_SUM, DIVIDE, UNSAID, MOE_ROUTE, MOE_PICK
};

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
    case GLU: {
        Act a = act_at(arg, arg.spec[1], 0);
        return has_b ? joined(a, x, y) : act_of(a, a.which, x);
    }
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
