#include "common.glsl"
#define ACT    SPEC1
#define ACT_AT 0
#include "act.glsl"
/* rows.comp -- element-wise ops (graph/ops/rows.c), one thread a column, row after row. */
layout(local_size_x = 64) in;

const int ADD = 0, MUL = 1, SCALE = 2, SOFTCAP = 3, AFFINE = 4, LERP = 5, HEAD_MUL = 6, GLU = 7,
          CLAMP = 8, TEMPER = 9, SELECT = 10, MOE_SPREAD = 11, MOE_SUM = 12,
          DIVIDE = 13, UNSAID = 14, MOE_ROUTE = 15, MOE_PICK = 16;
#define OP     SPEC0
#define HAS_B  (SPEC2 != 0) /* a second operand; AFFINE: a summand; MOE_SUM: weights */
#define HAS_W  (SPEC3 != 0)

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
        return HAS_B ? joined(x, y) : act_of(ACT, x);
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
