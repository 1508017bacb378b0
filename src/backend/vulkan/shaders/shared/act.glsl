/* act.glsl -- activations, and what joins a gate with what it opens (GLU of graph/ops/rows.c), as
 * gpu/ops.c numbers them. Those from 12 to 15 limit both together. Who includes it has defined ACT
 * and ACT_AT, where its constants are in p. */
#define ACT_C(i) ARG_F(ACT_AT + i)

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
        precise float up = fma(ACT_C(0) * x, x, ACT_C(2) * x);
        precise float down = fma(ACT_C(1), exact_exp(ACT_C(3) < x ? ACT_C(3) : x) - 1 - x,
                                 ACT_C(2) * x);
        return 0 < x ? up : down;
    }
    }
}

float limited(float x, float y)
{
    const float c = ACT_C(0), none = -uintBitsToFloat(0x7f800000u);
    if (ACT == 12)
        return act_of(0, clamped(x, none, c)) * clamped(y, -c, c);
    if (ACT == 13)
        return clamped(act_of(0, x), none, c) * clamped(y, -c, c);
    if (ACT == 15) {
        const float d = ACT_C(1);
        precise float gate = c * exact_tanh(x / c) * act_of(6, x);
        precise float up = d != 0 ? d * exact_tanh(y / d) : y;
        return gate * up;
    }
    return act_of(3, clamped(x, none, c)) * (clamped(y, -c, c) + 1);
}

float joined(float x, float y)
{
    return ACT >= 12 && ACT < 16 ? limited(x, y) : act_of(ACT, x) * y;
}
