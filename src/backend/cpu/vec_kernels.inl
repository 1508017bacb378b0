/* vec_kernels.inl -- the float vector kernels of kern.h but attention, written once over simd.h's
 * V. Included once by each level's file.
 *
 * Element-wise kernels apply one function of V to 16 elements at a time, the tail through the same
 * function with masked loads and stores. Sums run over 64 interleaved chains (sum64) or 16,
 * whatever the level; a chain is one lane of one V.
 *
 * References: the exponential and tanh polynomials are those of Cephes expf and tanhf (S. Moshier);
 * erfc is formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions (absolute
 * error 1.5e-7). */

#define LOG2_E  1.44269504f
#define ROUND   12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
#define EXP_MAX 88.0f
#define EXP_MIN -87.33f /* the least x whose result is normal, less a little */

/* c[0] x^(n-1) + .. + c[n-1], Horner, one fma a step. */
SIMD_FN V polynomial(V x, const float *c, int n)
{
    V p = v_set(c[0]);
    EACH(i, n - 1)
    p = v_fma(p, x, v_set(c[i + 1]));
    return p;
}

/* exp(x), error below 1 ulp; 0 below EXP_MIN, exp(EXP_MAX) above it, NaN for NaN. The product with
 * 2^n is exact: it is the integer addition to the exponent, and it keeps a NaN. */
SIMD_FN V v_exp(V x)
{
    static const float c[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    x = v_min(v_set(EXP_MAX), x);
    V t = v_fma(x, v_set(LOG2_E), v_set(ROUND));
    V n = v_sub(t, v_set(ROUND));
    V r = v_fma(n, v_set(-0.693359375f), x); /* ln 2 in two parts */
    r = v_fma(n, v_set(2.12194440e-4f), r);
    V p = v_add(v_fma(polynomial(r, c, 6), v_mul(r, r), r), v_set(1));
    return v_less(x, v_set(EXP_MIN), v_set(0), v_mul(p, v_pow2(t)));
}

/* tanh(x): an odd polynomial where 1 - 2 / (exp(2|x|) + 1) would cancel. */
SIMD_FN V v_tanh(V x)
{
    static const float c[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                               1.33314422036e-1f, -3.33332819422e-1f};
    V a = v_abs(x), z = v_mul(x, x), e = v_exp(v_add(a, a));
    V small = v_fma(v_mul(polynomial(z, c, 5), z), x, x);
    V large = v_sub(v_set(1), v_div(v_set(2), v_add(e, v_set(1))));
    return v_less(a, v_set(0.625f), small, v_sign(large, x));
}

SIMD_FN V v_softcap(V x, V cap)
{
    return v_mul(cap, v_tanh(v_div(x, cap)));
}

/* ---- element-wise: z = f(x, y, a, b) for n elements; a and b are constants of the call */

typedef V map_fn(V x, V y, V a, V b);

SIMD_FN void map(map_fn *f, const float *x, const float *y, float *z, int64_t n, float a, float b)
{
    const V va = v_set(a), vb = v_set(b);
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_store(z + i, f(v_load(x + i), v_load(y + i), va, vb));
    if (i < n)
        v_store_n(z + i, f(v_load_n(x + i, n - i), v_load_n(y + i, n - i), va, vb), n - i);
}

/* map_NAME: a map_fn named by its expression in x, y, a, b. */
#define MAP_FN(name, expr)                                                                         \
    SIMD_FN V map_##name(V x, V y, V a, V b)                                                       \
    {                                                                                              \
        (void)x, (void)y, (void)a, (void)b;                                                        \
        return expr;                                                                               \
    }

MAP_FN(add, v_add(x, y))
MAP_FN(mul, v_mul(x, y))
MAP_FN(div, v_div(x, y))
MAP_FN(scale, v_fma(x, a, b))
MAP_FN(axpy, v_fma(a, x, y))
MAP_FN(sigmoid, v_div(v_set(1), v_add(v_set(1), v_exp(v_neg(x)))))
MAP_FN(softcap, v_softcap(x, a))
MAP_FN(exp, v_exp(x))
MAP_FN(clamp, v_min(b, v_max(a, x)))

static void vec_add(const float *x, const float *y, float *z, int64_t n)
{
    map(map_add, x, y, z, n, 0, 0);
}

static void vec_mul(const float *x, const float *y, float *z, int64_t n)
{
    map(map_mul, x, y, z, n, 0, 0);
}

static void vec_div(const float *x, const float *y, float *z, int64_t n)
{
    map(map_div, x, y, z, n, 0, 0);
}

static void vec_scale(const float *x, float s, float b, float *y, int64_t n)
{
    map(map_scale, x, x, y, n, s, b);
}

static void vec_axpy(float a, const float *x, float *y, int64_t n)
{
    map(map_axpy, x, y, y, n, a, 0);
}

/* 64 columns of it. */
static void mix_wide(const float *x, const float *w, int64_t k, int64_t n, float *y)
{
    V a = v_load(y), b = v_load(y + 16), c = v_load(y + 32), d = v_load(y + 48);
    for (int64_t i = 0; i < k; i++, w += n) {
        const V f = v_set(x[i]);
        a = v_fma(f, v_load(w), a);
        b = v_fma(f, v_load(w + 16), b);
        c = v_fma(f, v_load(w + 32), c);
        d = v_fma(f, v_load(w + 48), d);
    }
    v_store(y, a);
    v_store(y + 16, b);
    v_store(y + 32, c);
    v_store(y + 48, d);
}

static void vec_mix(const float *x, const float *w, int64_t k, int64_t n, float *y)
{
    int64_t j = 0;
    for (; j + 64 <= n; j += 64)
        mix_wide(x, w + j, k, n, y + j);
    for (; j + V_LANES <= n; j += V_LANES) {
        V a = v_load(y + j);
        for (int64_t i = 0; i < k; i++)
            a = v_fma(v_set(x[i]), v_load(w + i * n + j), a);
        v_store(y + j, a);
    }
    if (j < n) {
        V a = v_load_n(y + j, n - j);
        for (int64_t i = 0; i < k; i++)
            a = v_fma(v_set(x[i]), v_load_n(w + i * n + j, n - j), a);
        v_store_n(y + j, a, n - j);
    }
}

static void vec_sigmoid(const float *x, float *y, int64_t n)
{
    map(map_sigmoid, x, x, y, n, 0, 0);
}

static void vec_softcap(const float *x, float cap, float *y, int64_t n)
{
    map(map_softcap, x, x, y, n, cap, 0);
}

static void vec_exp(const float *x, float *y, int64_t n)
{
    map(map_exp, x, x, y, n, 0, 0);
}

static void vec_clamp(const float *x, float lo, float hi, float *y, int64_t n)
{
    map(map_clamp, x, x, y, n, lo, hi);
}

static void vec_xielu(const float *x, const float *c, float *y, int64_t n)
{
    const V up = v_set(c[0]), down = v_set(c[1]), all = v_set(c[2]), top = v_set(c[3]);
    for (int64_t i = 0; i < n; i += V_LANES) {
        V v = v_load_n(x + i, n - i), e = v_exp(v_min(top, v)), line = v_mul(all, v);
        V below = v_fma(down, v_sub(v_sub(e, v_set(1)), v), line);
        V above = v_fma(v_mul(up, v), v, line);
        v_store_n(y + i, v_less(v_set(0), v, above, below), n - i);
    }
}

/* ---- gated activations */

/* g / (1 + exp(x)) */
SIMD_FN V v_gate(V g, V x)
{
    return v_div(g, v_add(v_set(1), v_exp(x)));
}

SIMD_FN V v_gelu(V g)
{
    const V c0 = v_set(-1.5957691216f), c1 = v_set(-0.071354816f); /* -2 sqrt(2/pi) {1, 0.044715} */
    return v_gate(g, v_mul(v_fma(v_mul(g, g), c1, c0), g));
}

SIMD_FN V v_gelu_erf(V g)
{
    static const float c[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                               0.254829592f};
    V x = v_mul(v_abs(g), v_set(0.70710678f));
    V t = v_div(v_set(1), v_fma(v_set(0.3275911f), x, v_set(1)));
    V erfc = v_mul(v_mul(polynomial(t, c, 5), t), v_exp(v_mul(v_neg(x), x))); /* of |g| / sqrt 2 */
    return v_mul(v_mul(v_set(0.5f), g), v_less(g, v_set(0), erfc, v_sub(v_set(2), erfc)));
}

SIMD_FN V v_relu(V g)
{
    return v_max(g, v_set(0));
}

SIMD_FN V v_relu2(V g)
{
    return v_mul(v_relu(g), v_relu(g));
}

#define GATED(name, act)                                                                           \
    MAP_FN(name, act)                                                                              \
    MAP_FN(name##_gate, v_mul(map_##name(x, x, a, b), y))                                          \
    static void vec_##name(const float *g, const float *u, float *z, int64_t n)                    \
    {                                                                                              \
        if (u)                                                                                     \
            map(map_##name##_gate, g, u, z, n, 0, 0);                                              \
        else                                                                                       \
            map(map_##name, g, g, z, n, 0, 0);                                                     \
    }

GATED(silu, v_gate(x, v_neg(x)))
GATED(gelu, v_gelu(x))
GATED(gelu_erf, v_gelu_erf(x))
GATED(gelu_quick, v_gate(x, v_mul(x, v_set(-1.702f))))
GATED(relu, v_relu(x))
GATED(relu2, v_relu2(x))
#undef GATED
#undef MAP_FN

/* ---- sums */

/* Chain i of 64 takes elements i, i + 64, ..: acc = f(x, y, acc, k). */
SIMD_FN void chains64(map_fn *f, const float *x, const float *y, int64_t n, V vk, V *acc)
{
    int64_t i = 0;
    for (; i + 4 * V_LANES <= n; i += 4 * V_LANES)
        EACH(j, 4)
    acc[j] = f(v_load(x + i + j * V_LANES), v_load(y + i + j * V_LANES), acc[j], vk);
    EACH(j, 4)
    {
        int64_t left = n - i - j * V_LANES;
        if (left > 0) {
            V a = v_load_n(x + i + j * V_LANES, left), b = v_load_n(y + i + j * V_LANES, left);
            acc[j] = v_first(left, f(a, b, acc[j], vk), acc[j]);
        }
    }
}

/* The tree over the chains. */
SIMD_FN float tree64(const V *acc)
{
    return v_sum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3])));
}

SIMD_FN float sum64(map_fn *f, const float *x, const float *y, int64_t n, float k)
{
    V acc[4] = {v_set(0), v_set(0), v_set(0), v_set(0)};
    chains64(f, x, y, n, v_set(k), acc);
    return tree64(acc);
}

SIMD_FN V sum_step(V x, V y, V acc, V k)
{
    (void)y, (void)k;
    return v_add(acc, x);
}

SIMD_FN V dot_step(V x, V y, V acc, V k)
{
    (void)k;
    return v_fma(x, y, acc);
}

SIMD_FN V variance_step(V x, V y, V acc, V mean)
{
    (void)y;
    V d = v_sub(x, mean);
    return v_fma(d, d, acc);
}

static float vec_dot(const float *x, const float *y, int64_t n)
{
    return sum64(dot_step, x, y, n, 0);
}

SIMD_FN V scaled(V x, V y, V s, V b)
{
    (void)y, (void)b;
    return v_mul(x, s);
}

SIMD_FN V scaled_weighted(V x, V w, V s, V b)
{
    (void)b;
    return v_mul(v_mul(x, s), w);
}

static void vec_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    float s = 1.0f / __builtin_sqrtf(vec_dot(x, x, n) / (float)n + eps);
    if (w)
        map(scaled_weighted, x, w, y, n, s, 0);
    else
        map(scaled, x, x, y, n, s, 0);
}

static void vec_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n,
                           float eps)
{
    float mean = sum64(sum_step, x, x, n, 0) / (float)n;
    float s = 1.0f / __builtin_sqrtf(sum64(variance_step, x, x, n, mean) / (float)n + eps);
    const V vm = v_set(mean), vs = v_set(s);
    for (int64_t i = 0; i < n; i += V_LANES) {
        int64_t left = n - i;
        V t = v_mul(v_sub(v_load_n(x + i, left), vm), vs);
        if (w && b)
            t = v_fma(t, v_load_n(w + i, left), v_load_n(b + i, left));
        else if (w)
            t = v_mul(t, v_load_n(w + i, left));
        else if (b)
            t = v_add(t, v_load_n(b + i, left));
        v_store_n(y + i, t, left);
    }
}

/* ---- norms of groups of columns (kern.h, struct group_job) */

enum { GROUP_BLOCK = 1024 }; /* elements brought side by side, a multiple of the chains */

SIMD_FN float group_sum(map_fn *f, const struct group_job *j, float k)
{
    float block[GROUP_BLOCK];
    const V vk = v_set(k);
    V acc[4] = {v_set(0), v_set(0), v_set(0), v_set(0)};
    int64_t have = 0;
    for (int64_t r = 0; r < j->n_rows; r++)
        for (int64_t i = 0, n; i < j->n; i += n) {
            n = j->n - i < GROUP_BLOCK - have ? j->n - i : GROUP_BLOCK - have;
            __builtin_memcpy(block + have, j->x + r * j->x_ld + i, (size_t)n * sizeof *block);
            have += n;
            if (have == GROUP_BLOCK) {
                chains64(f, block, block, have, vk, acc);
                have = 0;
            }
        }
    chains64(f, block, block, have, vk, acc);
    return tree64(acc);
}

static void vec_group_norm(const struct group_job *j)
{
    float count = (float)(j->n_rows * j->n), mean = group_sum(sum_step, j, 0) / count;
    float s = 1.0f / __builtin_sqrtf(group_sum(variance_step, j, mean) / count + j->eps);
    const V vm = v_set(mean), vs = v_set(s);
    for (int64_t r = 0; r < j->n_rows; r++) {
        const float *x = j->x + r * j->x_ld;
        float *y = j->y + r * j->y_ld;
        for (int64_t i = 0; i < j->n; i += V_LANES) {
            V t = v_sub(v_load_n(x + i, j->n - i), vm);
            v_store_n(y + i, v_mul(t, vs), j->n - i);
        }
    }
}

/* ---- gates of residual streams (kern.h, struct gates_job) */

/* The matrix's rows become shares: e^(m - the row's greatest) by their sum, plus eps. */
static void gates_shares(float *m, int n, float eps)
{
    for (int s = 0; s < n; s++) {
        float most = -__builtin_inff();
        for (int d = 0; d < n; d++)
            most = m[s * n + d] > most ? m[s * n + d] : most;
        for (int d = 0; d < n; d++)
            m[s * n + d] = m[s * n + d] - most;
    }
    vec_exp(m, m, n * n);
    for (int s = 0; s < n; s++) {
        float k = 1.0f / v_sum(v_load_n(m + s * n, n));
        for (int d = 0; d < n; d++)
            m[s * n + d] = m[s * n + d] * k + eps;
    }
}

/* Each row (or column) by its sum plus eps, which stands beside each element, so that all are
 * divided at once. */
static void gates_divide(float *m, int n, int columns, float eps)
{
    float of[KERN_STREAMS * KERN_STREAMS];
    const int line = columns ? 1 : n, step = columns ? n : 1;
    for (int k = 0; k < n; k++) {
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum = sum + m[k * line + i * step];
        sum = sum + eps;
        for (int i = 0; i < n; i++)
            of[k * line + i * step] = sum;
    }
    vec_div(m, of, m, n * n);
}

static void vec_gates(const struct gates_job *j)
{
    const int n = j->n;
    for (int part = 0; part < 3 && part * n < j->cols; part++) {
        const int at = part * n, end = part < 2 ? at + n : j->cols;
        const V scale = v_set(j->scale[part]);
        for (int i = at; i < end; i += V_LANES)
            v_store_n(j->y + i, v_fma(v_load_n(j->x + i, end - i), scale,
                                      v_load_n(j->base + i, end - i)), end - i);
        if (part == 2)
            break;
        vec_sigmoid(j->y + at, j->y + at, n);
        for (int i = at; i < end; i++)
            j->y[i] = part ? j->magnitude * j->y[i] + j->post_eps : j->y[i] + j->eps;
    }
    if (j->cols <= 2 * n)
        return;
    gates_shares(j->y + 2 * n, n, j->eps);
    for (int it = 0; it < j->iterations; it++) {
        if (it)
            gates_divide(j->y + 2 * n, n, 0, j->eps);
        gates_divide(j->y + 2 * n, n, 1, j->eps);
    }
}

/* ---- rotary embedding */

/* (a, b) turned by the angle of cosine c and sine s. */
SIMD_FN void rotate(V *a, V *b, V c, V s)
{
    V t = v_fma(v_neg(*b), s, v_mul(*a, c));
    *b = v_fma(*b, c, v_mul(*a, s));
    *a = t;
}

static void vec_rope_norm(float *x, const float *cosv, const float *sinv, int n_rot)
{
    int half = n_rot / 2;
    for (int i = 0; i < half; i += V_LANES) {
        V a, b, c = v_load_n(cosv + i, half - i), s = v_load_n(sinv + i, half - i);
        if (half - i >= V_LANES) {
            v_load_pairs(x + 2 * i, &a, &b);
            rotate(&a, &b, c, s);
            v_store_pairs(x + 2 * i, a, b);
        } else {
            float t[2 * V_LANES] = {0};
            for (int j = 0; j < 2 * (half - i); j++)
                t[j] = x[2 * i + j];
            v_load_pairs(t, &a, &b);
            rotate(&a, &b, c, s);
            v_store_pairs(t, a, b);
            for (int j = 0; j < 2 * (half - i); j++)
                x[2 * i + j] = t[j];
        }
    }
}

static void vec_rope_neox(float *x, const float *cosv, const float *sinv, int n_rot)
{
    int half = n_rot / 2;
    for (int i = 0; i < half; i += V_LANES) {
        int left = half - i;
        V a = v_load_n(x + i, left), b = v_load_n(x + half + i, left);
        rotate(&a, &b, v_load_n(cosv + i, left), v_load_n(sinv + i, left));
        v_store_n(x + i, a, left);
        v_store_n(x + half + i, b, left);
    }
}

/* Pairs are neighbours at each step, and go to the first and the second half: what was at i is then
 * at i turned right by a bit. After as many steps as i has bits all are in their places. */
SIMD_FN void hadamard_step(const float *x, float *y, int b, V scale, int last)
{
    for (int i = 0; i < b / 2; i += V_LANES) {
        V p, q;
        v_load_pairs(x + 2 * i, &p, &q);
        V sum = v_add(p, q), difference = v_sub(p, q);
        v_store(y + i, last ? v_mul(sum, scale) : sum);
        v_store(y + b / 2 + i, last ? v_mul(difference, scale) : difference);
    }
}

static void vec_hadamard(const float *x, float *y, int64_t n, int b, float scale)
{
    _Alignas(64) float t[2][256];
    const V s = v_set(scale);
    for (int64_t at = 0; at < n; at += b) {
        const float *from = x + at;
        int k = 0;
        for (int h = 1; h < b / 2; h *= 2, k ^= 1) {
            hadamard_step(from, t[k], b, s, 0);
            from = t[k];
        }
        hadamard_step(from, y + at, b, s, 1);
    }
}

/* ---- recurrent layers */

static void vec_lerp(const float *x, const float *y, const float *t, float *z, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_LANES) {
        V a = v_load_n(x + i, n - i), b = v_load_n(y + i, n - i);
        v_store_n(z + i, v_fma(v_sub(b, a), v_load_n(t + i, n - i), a), n - i);
    }
}

static void vec_pool(float *acc, const float *x, const float *gate, const float *ape, int64_t n,
                     int first)
{
    const V none = v_set(0);
    for (int64_t i = 0; i < n; i += V_LANES) {
        V t = v_add(gate ? v_load_n(gate + i, n - i) : none, ape ? v_load_n(ape + i, n - i) : none);
        V m = v_load_n(acc + i, n - i), in = v_load_n(x + i, n - i), most = v_max(m, t);
        V a = v_exp(v_sub(m, most)), b = v_exp(v_sub(t, most));
        V l = v_fma(v_load_n(acc + n + i, n - i), a, b);
        V o = v_fma(v_load_n(acc + 2 * n + i, n - i), a, v_mul(in, b));
        v_store_n(acc + i, first ? t : most, n - i);
        v_store_n(acc + n + i, first ? v_set(1) : l, n - i);
        v_store_n(acc + 2 * n + i, first ? in : o, n - i);
    }
}

/* Lanes past n hold zeros, which add nothing. */
static float vec_ssm(float *h, const float *a, int per_state, float dt, float x, const float *b,
                     const float *c, int n)
{
    const V vdt = v_set(dt), dx = v_set(dt * x);
    V decay = v_exp(v_set(dt * a[0])), sum = v_set(0);
    for (int i = 0; i < n; i += V_LANES) {
        if (per_state)
            decay = v_exp(v_mul(vdt, v_load_n(a + i, n - i)));
        V s = v_fma(dx, v_load_n(b + i, n - i), v_mul(v_load_n(h + i, n - i), decay));
        v_store_n(h + i, s, n - i);
        sum = v_first(n - i, v_fma(v_load_n(c + i, n - i), s, sum), sum);
    }
    return v_sum(sum);
}

/* ---- linear attention (kern.h, struct linear_row) */

enum { LINEAR_ROWS = 4 };

/* Rows [at, at + rows) of the state. They share what is loaded of q, k, w, a, b. */
SIMD_FN void linear_rows(const struct linear_row *j, enum linear_rule rule, int at, const int rows)
{
    const int n = j->d_k, dots = rule == LINEAR_DELTA || rule == LINEAR_RANK1;
    const float *from = j->from + (int64_t)at * n;
    float *s = j->s + (int64_t)at * n;
    const float *against = rule == LINEAR_DELTA ? j->k : j->a;
    const V decay = v_set(j->w[0]), zero = v_set(0);
    V dot[LINEAR_ROWS], out[LINEAR_ROWS], v[LINEAR_ROWS];
    EACH(r, rows)
    {
        dot[r] = out[r] = zero;
        v[r] = v_set(j->v[at + r]);
    }
    for (int i = 0; dots && i < n; i += V_LANES) {
        V a = v_load_n(against + i, n - i), w = j->per_key ? v_load_n(j->w + i, n - i) : decay;
        EACH(r, rows)
        {
            V t = v_load_n(from + (int64_t)r * n + i, n - i);
            t = v_fma(rule == LINEAR_DELTA ? v_mul(t, w) : t, a, dot[r]);
            dot[r] = v_first(n - i, t, dot[r]);
        }
    }
    EACH(r, rows)
    if (dots) {
        float sum = v_sum(dot[r]);
        dot[r] = v_set(rule == LINEAR_DELTA ? j->beta * (j->v[at + r] - sum) : sum);
    }
    for (int i = 0; i < n; i += V_LANES) {
        V q = v_load_n(j->q + i, n - i), k = v_load_n(j->k + i, n - i), b = zero;
        V w = j->per_key ? v_load_n(j->w + i, n - i) : decay;
        if (rule == LINEAR_SHARED)
            k = v_fma(v_neg(k), w, k);
        else if (rule == LINEAR_RANK1)
            b = v_load_n(j->b + i, n - i);
        else if (rule == LINEAR_BONUS)
            b = v_mul(v_load_n(j->a + i, n - i), k);
        EACH(r, rows)
        {
            V old = v_load_n(from + (int64_t)r * n + i, n - i), t = v_mul(old, w), read;
            if (rule == LINEAR_RANK1)
                t = v_fma(dot[r], b, t);
            t = v_fma(rule == LINEAR_DELTA ? dot[r] : v[r], k, t);
            read = rule == LINEAR_BONUS ? v_fma(v[r], b, old) : t;
            out[r] = v_first(n - i, v_fma(q, read, out[r]), out[r]);
            v_store_n(s + (int64_t)r * n + i, t, n - i);
        }
    }
    EACH(r, rows)
    j->y[at + r] = j->scale * v_sum(out[r]);
}

#define LINEAR_RULE(name, rule)                                                                    \
    static void linear_##name(const struct linear_row *j)                                          \
    {                                                                                              \
        int i = 0;                                                                                 \
        for (; i + LINEAR_ROWS <= j->d_v; i += LINEAR_ROWS)                                        \
            linear_rows(j, rule, i, LINEAR_ROWS);                                                  \
        for (; i < j->d_v; i++)                                                                    \
            linear_rows(j, rule, i, 1);                                                            \
    }
LINEAR_RULE(gated, LINEAR_GATED)
LINEAR_RULE(shared, LINEAR_SHARED)
LINEAR_RULE(bonus, LINEAR_BONUS)
LINEAR_RULE(delta, LINEAR_DELTA)
LINEAR_RULE(rank1, LINEAR_RANK1)
#undef LINEAR_RULE

static void vec_linear(const struct linear_row *j)
{
    switch (j->rule) {
    case LINEAR_GATED:
        linear_gated(j);
        break;
    case LINEAR_SHARED:
        linear_shared(j);
        break;
    case LINEAR_BONUS:
        linear_bonus(j);
        break;
    case LINEAR_DELTA:
        linear_delta(j);
        break;
    case LINEAR_RANK1:
        linear_rank1(j);
    }
}

/* ---- convolution over time (kern.h, struct conv_job) */

/* Weights of up to 16 channels, tap by tap: t[16 * k + channel]. */
SIMD_FN void conv_taps(const float *w, int width, int64_t n, float *t)
{
    if (width == 4 && n >= V_LANES) {
        float half[4 * V_LANES];
        V a, b;
        EACH(i, 2)
        {
            v_load_pairs(w + 2 * V_LANES * i, &a, &b);
            v_store(half + V_LANES * i, a);
            v_store(half + V_LANES * (i + 2), b);
        }
        EACH(i, 2)
        {
            v_load_pairs(half + 2 * V_LANES * i, &a, &b);
            v_store(t + V_LANES * i, a);
            v_store(t + V_LANES * (i + 2), b);
        }
        return;
    }
    for (int k = 0; k < width; k++)
        for (int64_t i = 0; i < n && i < V_LANES; i++)
            t[V_LANES * k + i] = w[i * width + k];
}

/* Row i of the segment, from channel c on; NULL: it is left out. */
SIMD_FN const float *conv_row(const struct conv_job *j, int i, int64_t c)
{
    if (i >= 0)
        return i < j->n_rows ? j->x + i * j->x_ld + c : NULL;
    return j->before ? j->before + (j->left + i) * j->before_ld + c : NULL;
}

static void vec_conv(const struct conv_job *j)
{
    float taps[V_LANES * KERN_CONV_WIDTH] = {0};
    for (int64_t c = 0; c < j->n; c += V_LANES) {
        int64_t left = j->n - c;
        int width = j->w ? j->width : 1;
        if (j->w)
            conv_taps(j->w + c * width, width, left, taps);
        for (int r = j->first; r < j->end; r++) {
            V y = v_set(0);
            for (int k = 0; k < width; k++) {
                const float *x = conv_row(j, r - j->left + k * j->step, c);
                if (x && j->w)
                    y = v_fma(v_load(taps + V_LANES * k), v_load_n(x, left), y);
                else if (x)
                    y = v_load_n(x, left);
            }
            if (j->b)
                y = v_add(y, v_load_n(j->b + c, left));
            v_store_n(j->y + r * j->y_ld + c, y, left);
        }
    }
}

/* ---- halves */

static void vec_put_far(const float *y, int columns, int64_t n, float *out, int64_t ld)
{
    for (int i = 0; i < columns; i++, y += n, out += ld)
        for (int64_t r = 0; r < n; r += V_LANES)
            v_stream(out + r, v_load(y + r));
}

static void vec_put_end(void)
{
    stream_end();
}

static void vec_f32_to_f16(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_store_f16(y + i, v_load(x + i));
    if (i < n) {
        uint16_t t[V_LANES];
        v_store_f16(t, v_load_n(x + i, n - i));
        for (int j = 0; i + j < n; j++)
            y[i + j] = t[j];
    }
}
