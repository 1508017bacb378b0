#include "common.glsl"
/* rows.comp -- element-wise ops (graph/ops/rows.c), one thread a column, row after row. */
layout(local_size_x = 64) in;

const int ADD = 0, MUL = 1, SCALE = 2, SOFTCAP = 3, AFFINE = 4, LERP = 5, HEAD_MUL = 6, GLU = 7,
          CLAMP = 8, TEMPER = 9, SELECT = 10, MOE_SPREAD = 11, MOE_SUM = 12,
          DIVIDE = 13, UNSAID = 14, MOE_ROUTE = 15, MOE_PICK = 16;
#define OP     SPEC0
#define ACT    SPEC1
#define HAS_B  (SPEC2 != 0) /* a second operand; AFFINE: a summand; MOE_SUM: weights */
#define HAS_W  (SPEC3 != 0)

float clamped(float x, float lo, float hi)
{
    x = lo > x ? lo : x;
    return hi < x ? hi : x;
}

float gelu_erf(float g)
{
    precise float x = abs(g) * 0.70710678, t = 1.0 / fma(0.3275911, x, 1.0);
    precise float erfc = polynomial5(t, 1.061405429, -1.453152027, 1.421413741, -0.284496736,
                                     0.254829592) * t * exact_exp(-x * x);
    return 0.5 * g * (g < 0 ? erfc : 2.0 - erfc);
}

float softplus(float x)
{
    return x > 20 ? x : exact_log(1 + exact_exp(x));
}

float root(float x)
{
    float r = sqrt(max(abs(x), 1e-6));
    return x > 0 ? r : x < 0 ? -r : x;
}

float act_of(int act, float x)
{
    float r = x > 0 ? x : 0;
    switch (act) {
    case 0: return x / (1.0 + exact_exp(-x));
    case 1: return x / (1.0 + exact_exp(fma(x * x, -0.071354816, -1.5957691216) * x));
    case 2: return gelu_erf(x);
    case 3: return x / (1.0 + exact_exp(x * -1.702));
    case 4: return r;
    case 5: return r * r;
    case 6: return 1.0 / (1.0 + exact_exp(-x));
    case 7: return exact_tanh(x);
    case 8: return exact_exp(x);
    case 9: return softplus(x);
    case 10: return x < 0 ? -floor(0.5 - x) : floor(x + 0.5);
    case 16: return root(x);
    default: { /* xielu */
        precise float up = fma(ARG_F(0) * x, x, ARG_F(2) * x);
        precise float down = fma(ARG_F(1), exact_exp(ARG_F(3) < x ? ARG_F(3) : x) - 1 - x,
                                 ARG_F(2) * x);
        return 0 < x ? up : down;
    }
    }
}

float gated(float x, float y)
{
    const float c = ARG_F(0), none = -uintBitsToFloat(0x7f800000u);
    if (ACT == 12)
        return act_of(0, clamped(x, none, c)) * clamped(y, -c, c);
    if (ACT == 13)
        return clamped(act_of(0, x), none, c) * clamped(y, -c, c);
    if (ACT == 15) {
        const float d = ARG_F(1);
        precise float gate = c * exact_tanh(x / c) * act_of(6, x);
        precise float up = d != 0 ? d * exact_tanh(y / d) : y;
        return gate * up;
    }
    return act_of(3, clamped(x, none, c)) * (clamped(y, -c, c) + 1);
}

float combined(float x, float y, uint r, uint i)
{
    switch (OP) {
    case ADD: return x + y;
    case MUL: return x * y;
    case SCALE: return x * ARG_F(0);
    case SOFTCAP: return ARG_F(0) * exact_tanh(x / ARG_F(0));
    case AFFINE: {
        precise float z = HAS_W ? x * F32(arg.w).v[i] : x;
        return HAS_B ? z + F32(arg.bias).v[i] : z;
    }
    case LERP: {
        float t = HAS_W ? F32(arg.w).v[i] : row_of(arg.extra, r, arg.p[0]).v[i];
        return fma(y - x, t, x);
    }
    case GLU:
        return ACT >= 12 && ACT < 16 ? gated(x, y) : HAS_B ? act_of(ACT, x) * y : act_of(ACT, x);
    case DIVIDE: return x / F32(arg.w).v[i];
    case CLAMP: return clamped(x, ARG_F(0), ARG_F(1));
    case TEMPER: {
        int spans = (step_pos(r) + int(arg.p[2])) / int(arg.p[1]);
        return x * fma(ARG_F(0), exact_log(float(spans) + 1), 1.0);
    }
    default: return x;
    }
}

/* p: experts of a row; the first of a range, how many (0: all of them). */
bool has_expert(int e)
{
    return arg.p[2] == 0 || (e >= int(arg.p[1]) && e < int(arg.p[1] + arg.p[2]));
}

/* Where the operands of row r, column i are. */
float element(uint r, uint i)
{
    if (OP == SELECT)
        return row_of(arg.a, uint(step_out(r)), arg.lda).v[i];
    if (OP == UNSAID) { /* p: first, how many, the column that follows */
        uint behind = i - arg.p[0] - arg.p[1] + arg.p[2];
        if (i >= arg.p[0] && i < arg.p[0] + arg.p[1])
            return -3.402823466e38;
        return row_of(arg.a, r, arg.lda).v[i < arg.p[0] ? i : behind];
    }
    if (OP == MOE_SPREAD) {
        uint k = arg.p[0], from = r / k;
        return row_of(arg.a, from, arg.lda).v[i] *
               row_of(arg.b, from, arg.ldb).v[k + r % k];
    }
    if (OP == MOE_SUM) {
        uint k = arg.p[0];
        precise float sum = 0;
        if (arg.extra != 0)
            sum = row_of(arg.extra, r, arg.p[3]).v[i];
        for (uint j = 0; j < k; j++) {
            float w = HAS_B ? row_of(arg.b, r, arg.ldb).v[k + j] : 1;
            if (has_expert(ints_of(arg.b, r, arg.ldb).v[j]))
                sum = fma(w, row_of(arg.a, r * k + j, arg.lda).v[i], sum);
        }
        return sum;
    }
    if (OP == MOE_PICK) {
        uint k = arg.p[0];
        bool other = has_expert(ints_of(arg.extra, r / k, arg.p[3]).v[r % k]);
        return other ? row_of(arg.b, r, arg.ldb).v[i] : row_of(arg.a, r, arg.lda).v[i];
    }
    float x = row_of(arg.a, r, arg.lda).v[i];
    if (OP == HEAD_MUL)
        return x * row_of(arg.b, r, arg.ldb).v[i / arg.p[0]];
    bool two = OP == ADD || OP == MUL || OP == LERP || (OP == GLU && HAS_B);
    return combined(x, two ? row_of(arg.b, r, arg.ldb).v[i] : 0, r, i);
}

/* An expert's number, which is no float, and its weight. */
void route(uint r)
{
    int n = int(arg.p[0]);
    float v = row_of(arg.a, r, arg.lda).v[0];
    ints_of(arg.dst, r, arg.ld).v[0] = v > 0 ? v < float(n) ? int(v) : n - 1 : 0;
    row_of(arg.dst, r, arg.ld).v[1] = 1;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y)
        if (OP != MOE_ROUTE)
            row_of(arg.dst, r, arg.ld).v[i] = element(r, i);
        else if (i == 0)
            route(r);
}
