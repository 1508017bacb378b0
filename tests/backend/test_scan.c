/* test_scan.c -- the kernels of recurrent layers at every level of this machine against the text of
 * kern.h, one element at a time, by memcmp: blending, scans, linear attention by each rule,
 * convolution over time, and norms of groups. Lengths cover the tails of vectors; values cover
 * infinities and NaN. */
#include "vec_ref.h"

#include "base/rng.h"
#include "test.h"

enum { MAX_K = 150, MAX_V = 21, MAX_ROWS = 9, GUARD = 32 };

static const struct kern *levels[CPU_N_LEVELS];
static int n_levels;

/* ---------------------------------------------------------------- values */

enum { V_NORMAL, V_LARGE, V_TINY, V_SPECIAL, V_MODES };

static float value(struct rng *r, int mode)
{
    static const float special[] = {0,     -0.0f,  INFINITY, -INFINITY, NAN, 1e-40f,
                                    1e30f, -1e30f, 3.4e38f,  0x1p-126f, 1,   -1};
    switch (mode) {
    case V_NORMAL:
        return rng_normal(r);
    case V_LARGE:
        return 30 * rng_normal(r);
    case V_TINY:
        return 1e-20f * rng_normal(r);
    default:
        return rng_below(r, 8) ? rng_normal(r) : special[rng_below(r, sizeof special / 4)];
    }
}

static float *fill(struct rng *r, float *p, int64_t n, int mode)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = value(r, mode);
    return p;
}

/* n values with NaN on both sides: what lies outside must not matter. */
static float *guarded(struct rng *r, float *p, int64_t n, int mode)
{
    for (int64_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = NAN;
    return fill(r, p + GUARD, n, mode);
}

enum { MARK = 0x7fc12345 };

static float *marked(float *p, int64_t n)
{
    for (int64_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = float_of(MARK);
    return p + GUARD;
}

/* The marks around p[n] are all there. */
static int inside(const float *p, int64_t n)
{
    int ok = 1;
    for (int64_t i = 1; i <= GUARD; i++)
        ok &= bits_of(p[-i]) == MARK && bits_of(p[n + i - 1]) == MARK;
    return ok;
}

/* ---------------------------------------------------------------- lerp */

static void lerp_equals_its_definition(void)
{
    static float bx[MAX_K + 2 * GUARD], by[MAX_K + 2 * GUARD], bt[MAX_K + 2 * GUARD];
    static float bz[MAX_K + 2 * GUARD], want[MAX_K];
    struct rng r;
    rng_init(&r, 31);
    for (int n = 1; n <= MAX_K; n++)
        for (int mode = 0; mode < V_MODES; mode++) {
            float *x = guarded(&r, bx, n, mode), *y = guarded(&r, by, n, mode);
            float *t = guarded(&r, bt, n, mode);
            for (int i = 0; i < n; i++)
                want[i] = fmaf(y[i] - x[i], t[i], x[i]);
            for (int l = 0; l < n_levels; l++) {
                float *z = marked(bz, n);
                levels[l]->lerp(x, y, t, z, n);
                CHECK_MSG(differ(z, want, n) < 0 && inside(z, n), "%s lerp n %d mode %d: [%d]",
                          levels[l]->name, n, mode, (int)differ(z, want, n));
            }
        }
}

/* ---------------------------------------------------------------- state spaces */

static float ssm(float *h, const float *a, int per_state, float dt, float x, const float *b,
                 const float *c, int n)
{
    float lane[16] = {0}, dx = dt * x;
    for (int i = 0; i < n; i++) {
        h[i] = fmaf(dx, b[i], h[i] * vr_exp(dt * a[per_state ? i : 0]));
        lane[i % 16] = fmaf(c[i], h[i], lane[i % 16]);
    }
    return vr_tree16(lane);
}

static void ssm_equals_its_definition(void)
{
    static float ba[MAX_K + 2 * GUARD], bb[MAX_K + 2 * GUARD], bc[MAX_K + 2 * GUARD];
    static float start[MAX_K], bh[MAX_K + 2 * GUARD], want[MAX_K];
    struct rng r;
    rng_init(&r, 32);
    for (int n = 1; n <= MAX_K; n++)
        for (int mode = 0; mode < 2 * V_MODES; mode++) {
            int per_state = mode & 1, m = mode / 2;
            float *a = guarded(&r, ba, per_state ? n : 1, m), *b = guarded(&r, bb, n, m);
            float *c = guarded(&r, bc, n, m), dt = value(&r, m), x = value(&r, m);
            memcpy(want, fill(&r, start, n, m), sizeof start);
            float y = ssm(want, a, per_state, dt, x, b, c, n);
            for (int l = 0; l < n_levels; l++) {
                float *h = marked(bh, n);
                memcpy(h, start, (size_t)n * sizeof *h);
                float got = levels[l]->ssm(h, a, per_state, dt, x, b, c, n);
                CHECK_MSG(same(got, y) && differ(h, want, n) < 0 && inside(h, n),
                          "%s ssm n %d mode %d per_state %d: %a, not %a; state [%d]",
                          levels[l]->name, n, m, per_state, (double)got, (double)y,
                          (int)differ(h, want, n));
            }
        }
}

/* ---------------------------------------------------------------- linear attention */

static float dot16(const float *x, const float *y, int n)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], y[i], lane[i % 16]);
    return vr_tree16(lane);
}

static void linear_value(const struct linear_row *j, int row)
{
    float *s = j->s + (int64_t)row * j->d_k, t[MAX_K], read[MAX_K], key[MAX_K], v = j->v[row];
    int n = j->d_k;
    for (int i = 0; i < n; i++) {
        float w = j->w[j->per_key ? i : 0];
        t[i] = s[i] * w;
        key[i] = j->rule == LINEAR_SHARED ? fmaf(-j->k[i], w, j->k[i]) : j->k[i];
    }
    if (j->rule == LINEAR_DELTA)
        v = j->beta * (v - dot16(t, key, n));
    float u = j->rule == LINEAR_RANK1 ? dot16(s, j->a, n) : 0;
    for (int i = 0; i < n; i++) {
        float old = s[i];
        if (j->rule == LINEAR_RANK1)
            t[i] = fmaf(u, j->b[i], t[i]);
        s[i] = fmaf(v, key[i], t[i]);
        read[i] = j->rule == LINEAR_BONUS ? fmaf(v, j->a[i] * j->k[i], old) : s[i];
    }
    j->y[row] = j->scale * dot16(read, j->q, n);
}

static void linear_case(struct rng *r, int d_k, int d_v, enum linear_rule rule, int mode)
{
    static float vec[6][MAX_K + 2 * GUARD], start[MAX_K * MAX_V], want_s[MAX_K * MAX_V];
    static float bs[MAX_K * MAX_V + 2 * GUARD], by[MAX_V + 2 * GUARD], want_y[MAX_V];
    int64_t n = (int64_t)d_k * d_v;
    struct linear_row j = {.rule = rule,
                           .d_k = d_k,
                           .d_v = d_v,
                           .per_key = (int)rng_below(r, 2),
                           .beta = value(r, mode),
                           .scale = rng_below(r, 2) ? 1 : value(r, V_NORMAL)};
    j.q = guarded(r, vec[0], d_k, mode);
    j.k = guarded(r, vec[1], d_k, mode);
    j.w = guarded(r, vec[2], j.per_key ? d_k : 1, mode);
    j.a = rule == LINEAR_BONUS || rule == LINEAR_RANK1 ? guarded(r, vec[3], d_k, mode) : NULL;
    j.b = rule == LINEAR_RANK1 ? guarded(r, vec[4], d_k, mode) : NULL;
    j.v = guarded(r, vec[5], d_v, mode);
    memcpy(want_s, fill(r, start, n, mode), (size_t)n * sizeof *start);
    j.from = j.s = want_s;
    j.y = want_y;
    for (int i = 0; i < d_v; i++)
        linear_value(&j, i);
    for (int l = 0; l < 2 * n_levels; l++) { /* in place, and to another array */
        j.s = marked(bs, n);
        j.from = l % 2 ? start : j.s;
        j.y = marked(by, d_v);
        if (l % 2 == 0)
            memcpy(j.s, start, (size_t)n * sizeof *start);
        levels[l / 2]->linear(&j);
        int64_t ds = differ(j.s, want_s, n), dy = differ(j.y, want_y, d_v);
        CHECK_MSG(ds < 0 && dy < 0 && inside(j.s, n) && inside(j.y, d_v),
                  "%s linear rule %d of %d by %d, mode %d: y[%d], s[%d]", levels[l / 2]->name, rule,
                  d_v, d_k, mode, (int)dy, (int)ds);
    }
}

static void linear_equals_its_definition(void)
{
    struct rng r;
    rng_init(&r, 33);
    for (long round = 0; round < test_scale(); round++)
        for (int d_k = 1; d_k <= MAX_K; d_k++)
            for (int rule = LINEAR_GATED; rule <= LINEAR_RANK1; rule++)
                for (int mode = 0; mode < V_MODES; mode++)
                    linear_case(&r, d_k, 1 + (int)rng_below(&r, MAX_V), (enum linear_rule)rule,
                                mode);
}

/* ---------------------------------------------------------------- convolution */

static float conv_at(const struct conv_job *j, int i, int64_t c, int *there)
{
    *there = i >= 0 ? i < j->n_rows : j->before != NULL;
    if (!*there)
        return 0;
    return i >= 0 ? j->x[i * j->x_ld + c] : j->before[(j->left + i) * j->before_ld + c];
}

static float conv_value(const struct conv_job *j, int row, int64_t c)
{
    float y = 0;
    int there;
    if (!j->w)
        return conv_at(j, row - j->left, c, &there);
    for (int k = 0; k < j->width; k++) {
        float x = conv_at(j, row - j->left + k * j->step, c, &there);
        if (there)
            y = fmaf(j->w[c * j->width + k], x, y);
    }
    return y;
}

static void conv_case(struct rng *r, int n, int width, int mode)
{
    enum { MAX_W = 9, MAX_STEP = 4, LD = MAX_K + 3 };
    static float bx[LD * MAX_ROWS + 2 * GUARD], bb[LD * MAX_W * MAX_STEP + 2 * GUARD];
    static float bw[MAX_K * MAX_W + 2 * GUARD], bias[MAX_K + 2 * GUARD];
    static float by[LD * MAX_ROWS + 2 * GUARD], want[LD * MAX_ROWS + 2 * GUARD];
    int rows = 1 + (int)rng_below(r, MAX_ROWS), first = (int)rng_below(r, (uint32_t)rows);
    struct conv_job j = {.x_ld = LD, .before_ld = LD, .y_ld = LD, .n = n, .width = width};
    j.step = rng_below(r, 2) ? 1 : 1 + (int)rng_below(r, MAX_STEP);
    j.left = rng_below(r, 2) ? (width - 1) * j.step : (int)rng_below(r, (uint32_t)width);
    j.n_rows = rows;
    j.first = first;
    j.end = first + 1 + (int)rng_below(r, (uint32_t)(rows - first));
    j.x = guarded(r, bx, LD * rows, mode);
    j.before = rng_below(r, 2) ? guarded(r, bb, LD * width * j.step, mode) : NULL;
    j.w = rng_below(r, 4) ? guarded(r, bw, (int64_t)n * width, mode) : NULL;
    j.b = rng_below(r, 2) ? guarded(r, bias, n, mode) : NULL;
    float *w = marked(want, LD * MAX_ROWS);
    for (int i = j.first; i < j.end; i++)
        for (int c = 0; c < n; c++) {
            float y = conv_value(&j, i, c);
            w[i * LD + c] = j.b ? y + j.b[c] : y;
        }
    for (int l = 0; l < n_levels; l++) {
        j.y = marked(by, LD * MAX_ROWS);
        levels[l]->conv(&j);
        int64_t d = differ(by, want, LD * MAX_ROWS + 2 * GUARD) - GUARD;
        CHECK_MSG(d < -GUARD,
                  "%s conv of %d channels, width %d, step %d, left %d, rows %d..%d of %d: [%d][%d]",
                  levels[l]->name, n, width, j.step, j.left, j.first, j.end, rows, (int)(d / LD),
                  (int)(d % LD));
    }
}

static void conv_equals_its_definition(void)
{
    struct rng r;
    rng_init(&r, 35);
    for (long round = 0; round < 2 * test_scale(); round++)
        for (int n = 1; n <= MAX_K; n += n < 40 ? 1 : 7)
            for (int width = 1; width <= 9; width++)
                for (int mode = 0; mode < V_MODES; mode++)
                    conv_case(&r, n, width, mode);
}

/* ---------------------------------------------------------------- groups of columns */

static void group_case(struct rng *r, int n, int rows, int mode)
{
    enum { LD = MAX_K + 5, MAX_R = 40 };
    static float bx[LD * MAX_R + 2 * GUARD], by[LD * MAX_R + 2 * GUARD];
    static float part[LD * MAX_R], one[LD * MAX_R], want[LD * MAX_R + 2 * GUARD];
    struct group_job j = {.x_ld = LD, .y_ld = LD, .n_rows = rows, .n = n, .eps = 1e-6f};
    int e = rows * n;
    j.x = guarded(r, bx, LD * rows, mode);
    for (int i = 0; i < e; i++) {
        part[i] = j.x[i / n * LD + i % n];
        one[i] = 1;
    }
    float mean = vr_dot(part, one, e) / (float)e;
    for (int i = 0; i < e; i++)
        part[i] = part[i] - mean;
    float s = 1.0f / sqrtf(vr_dot(part, part, e) / (float)e + j.eps);
    float *w = marked(want, LD * MAX_R);
    for (int i = 0; i < e; i++)
        w[i / n * LD + i % n] = part[i] * s;
    for (int l = 0; l < n_levels; l++) {
        j.y = marked(by, LD * MAX_R);
        levels[l]->group_norm(&j);
        int64_t d = differ(by, want, LD * MAX_R + 2 * GUARD) - GUARD;
        CHECK_MSG(d < -GUARD, "%s group_norm of %d rows of %d, mode %d: [%d][%d]", levels[l]->name,
                  rows, n, mode, (int)(d / LD), (int)(d % LD));
    }
}

static void group_norm_equals_its_definition(void)
{
    struct rng r;
    rng_init(&r, 36);
    for (int n = 1; n <= MAX_K; n += n < 70 ? 1 : 13)
        for (int rows = 1; rows <= 40; rows += 1 + rows / 3)
            for (int mode = 0; mode < V_MODES; mode++)
                group_case(&r, n, rows, mode);
}

int main(void)
{
    n_levels = vr_levels(levels);
    TEST(lerp_equals_its_definition);
    TEST(ssm_equals_its_definition);
    TEST(linear_equals_its_definition);
    TEST(conv_equals_its_definition);
    TEST(group_norm_equals_its_definition);
    return test_end();
}
