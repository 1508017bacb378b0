/* test_vec.c -- the float-vector kernels at every level of this machine against vec_ref.h, by
 * memcmp; and how accurate they are. */
#include "vec_ref.h"

#include "backend/cpu/kern_vec.h"
#include "base/rng.h"
#include "test.h"

enum { MAX_N = 5000, GUARD = 32 };

static const struct kern *levels[CPU_N_LEVELS];
static int n_levels;

/* ---- one table of kernels: how to call each, and what it means */

struct args {
    const float *x, *y, *w;
    float *z;
    int64_t n;
    float a, b;
};

/* X(name, NULL allowed for y, call of kernel k, reference) over the fields of a */
#define KERNELS(X)                                                                                 \
    X(add, 0, k->add(a->x, a->y, a->z, a->n), a->x[i] + a->y[i])                                   \
    X(mul, 0, k->mul(a->x, a->y, a->z, a->n), a->x[i] * a->y[i])                                   \
    X(scale, 0, k->scale(a->x, a->a, a->b, a->z, a->n), fmaf(a->x[i], a->a, a->b))                 \
    X(silu, 1, k->silu(a->x, a->y, a->z, a->n), gated(vr_silu(a->x[i]), a->y, i))                  \
    X(gelu, 1, k->gelu(a->x, a->y, a->z, a->n), gated(vr_gelu(a->x[i]), a->y, i))                  \
    X(gelu_erf, 1, k->gelu_erf(a->x, a->y, a->z, a->n), gated(vr_gelu_erf(a->x[i]), a->y, i))      \
    X(gelu_quick, 1, k->gelu_quick(a->x, a->y, a->z, a->n),                                        \
      gated(vr_gelu_quick(a->x[i]), a->y, i))                                                      \
    X(relu, 1, k->relu(a->x, a->y, a->z, a->n), gated(vr_relu(a->x[i]), a->y, i))                  \
    X(relu2, 1, k->relu2(a->x, a->y, a->z, a->n),                                                  \
      gated(vr_relu(a->x[i]) * vr_relu(a->x[i]), a->y, i))                                         \
    X(sigmoid, 0, k->sigmoid(a->x, a->z, a->n), vr_sigmoid(a->x[i]))                               \
    X(softcap, 0, k->softcap(a->x, a->a, a->z, a->n), vr_softcap(a->x[i], a->a))                   \
    X(exp, 0, k->exp(a->x, a->z, a->n), vr_exp(a->x[i]))

static float gated(float z, const float *u, int64_t i)
{
    return u ? z * u[i] : z;
}

struct kernel {
    const char *name;
    int gate; /* y may be NULL */
    void (*run)(const struct kern *k, const struct args *a);
    void (*ref)(const struct args *a);
};

#define DEFINE(name, gate, call, value)                                                            \
    static void run_##name(const struct kern *k, const struct args *a)                             \
    {                                                                                              \
        call;                                                                                      \
    }                                                                                              \
    static void ref_##name(const struct args *a)                                                   \
    {                                                                                              \
        for (int64_t i = 0; i < a->n; i++)                                                         \
            a->z[i] = value;                                                                       \
    }
KERNELS(DEFINE)

/* The rest reads more than element i. */
static void run_axpy(const struct kern *k, const struct args *a)
{
    memcpy(a->z, a->y, (size_t)a->n * 4);
    k->axpy(a->a, a->x, a->z, a->n);
}
static void ref_axpy(const struct args *a)
{
    for (int64_t i = 0; i < a->n; i++)
        a->z[i] = fmaf(a->a, a->x[i], a->y[i]);
}
/* A few rows of a matrix made of y. */
static float of_matrix(const struct args *a, int64_t i, int64_t j)
{
    return a->y[(i * 13 + j) % a->n];
}
static void run_mix(const struct kern *k, const struct args *a)
{
    static float w[5 * MAX_N];
    int64_t rows = a->n < 5 ? a->n : 5;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < a->n; j++)
            w[i * a->n + j] = of_matrix(a, i, j);
    memcpy(a->z, a->y, (size_t)a->n * sizeof *a->z);
    k->mix(a->x, w, rows, a->n, a->z);
}
static void ref_mix(const struct args *a)
{
    int64_t rows = a->n < 5 ? a->n : 5;
    for (int64_t j = 0; j < a->n; j++) {
        a->z[j] = a->y[j];
        for (int64_t i = 0; i < rows; i++)
            a->z[j] = fmaf(a->x[i], of_matrix(a, i, j), a->z[j]);
    }
}
static void run_rms_norm(const struct kern *k, const struct args *a)
{
    k->rms_norm(a->x, a->y, a->z, a->n, 1e-5f);
}
static void ref_rms_norm(const struct args *a)
{
    vr_rms_norm(a->x, a->y, a->z, a->n, 1e-5f);
}
static void run_layer_norm(const struct kern *k, const struct args *a)
{
    k->layer_norm(a->x, a->y, a->w, a->z, a->n, 1e-6f);
}
static void ref_layer_norm(const struct args *a)
{
    vr_layer_norm(a->x, a->y, a->w, a->z, a->n, 1e-6f);
}
static void run_dot(const struct kern *k, const struct args *a)
{
    a->z[0] = k->dot(a->x, a->y, a->n);
}
static void ref_dot(const struct args *a)
{
    a->z[0] = vr_dot(a->x, a->y, a->n);
}

#define ROW(name, gate, call, value) {#name, gate, run_##name, ref_##name},
static const struct kernel kernels[] = {
    KERNELS(ROW){"axpy", 0, run_axpy, ref_axpy},
    {"rms_norm", 1, run_rms_norm, ref_rms_norm},
    {"layer_norm", 1, run_layer_norm, ref_layer_norm},
    {"dot", 0, run_dot, ref_dot},
    {"mix", 0, run_mix, ref_mix},
};
enum { N_KERNELS = sizeof kernels / sizeof kernels[0] };

/* ---- values */

enum { V_NORMAL, V_LARGE, V_TINY, V_WIDE, V_SPECIAL, V_EDGES, V_MODES };

static float value(struct rng *r, int mode)
{
    static const float special[] = {0,       -0.0f,   INFINITY, -INFINITY, NAN,      1e-40f,
                                    -1e-45f, 1e30f,   -1e30f,   3.4e38f,   -3.4e38f, 0x1p-126f,
                                    1,       -1,      88,       -88,       0.625f,   -0.625f,
                                    -87.33f, -87.34f, 88.1f,    44,        -44};
    switch (mode) {
    case V_NORMAL:
        return rng_normal(r);
    case V_LARGE:
        return 30 * rng_normal(r);
    case V_TINY:
        return 1e-20f * rng_normal(r);
    case V_WIDE: /* any finite number */
        for (;;) {
            float f = float_of(rng_u32(r));
            if (f - f == 0)
                return f;
        }
    case V_EDGES: { /* one ulp around the bounds of exp and tanh */
        static const float edge[] = {-87.33f, 87.33f, 88.0f, -88.0f, 0.625f, 44.0f, 43.665f};
        float e = edge[rng_below(r, 7)];
        return float_of(bits_of(e) + rng_below(r, 9) - 4);
    }
    default:
        return rng_below(r, 8) ? rng_normal(r) : special[rng_below(r, sizeof special / 4)];
    }
}

static float buf_x[MAX_N + 2 * GUARD], buf_y[MAX_N + 2 * GUARD], buf_w[MAX_N + 2 * GUARD];
static float buf_z[MAX_N + 2 * GUARD], buf_ref[MAX_N + 2 * GUARD];

static void fill(struct rng *r, float *p, int64_t n, int mode)
{
    for (int64_t i = 0; i < MAX_N + 2 * GUARD; i++)
        p[i] = NAN; /* what lies outside must not matter */
    for (int64_t i = 0; i < n; i++)
        p[GUARD + i] = value(r, mode);
}

static void check_kernel(const struct kernel *f, struct args a, int mode)
{
    int64_t written = strcmp(f->name, "dot") ? a.n : 1;
    float *const ref = buf_ref + GUARD;
    a.z = ref;
    f->ref(&a);
    for (int l = 0; l < n_levels; l++)
        for (int alias = 0; alias < 2; alias++) {
            struct args b = a;
            static float copy[MAX_N + 2 * GUARD];
            if (alias &&
                (!strcmp(f->name, "dot") || !strcmp(f->name, "axpy") || !strcmp(f->name, "mix")))
                continue;
            for (int64_t i = -GUARD; i < a.n + GUARD; i++)
                buf_z[GUARD + i] = float_of(0x7fc12345);
            b.z = buf_z + GUARD;
            if (alias) {
                memcpy(copy, a.x - GUARD, (size_t)(a.n + 2 * GUARD) * 4);
                b.x = b.z = copy + GUARD;
            }
            f->run(levels[l], &b);
            int64_t i = differ(b.z, ref, written);
            CHECK_MSG(i < 0, "%s %s n %d mode %d alias %d: [%d] is %a, not %a", levels[l]->name,
                      f->name, (int)a.n, mode, alias, (int)i, (double)b.z[i < 0 ? 0 : i],
                      (double)ref[i < 0 ? 0 : i]);
            for (i = -GUARD; !alias && i < a.n + GUARD; i++)
                if ((i < 0 || i >= written) && bits_of(b.z[i]) != 0x7fc12345) {
                    CHECK_MSG(0, "%s %s n %d wrote [%d]", levels[l]->name, f->name, (int)a.n,
                              (int)i);
                    break;
                }
        }
}

static void kernels_equal_the_reference(void)
{
    struct rng r;
    rng_init(&r, 1);
    for (long round = 0; round < 6 * test_scale(); round++)
        for (int n = 1; n <= 140; n++) {
            int64_t len = n <= 130   ? n
                          : n == 140 ? MAX_N
                                     : 131 + (int)rng_below(&r, n == 139 ? 4000 : 600);
            int mode = (int)rng_below(&r, V_MODES);
            fill(&r, buf_x, len, mode);
            fill(&r, buf_y, len, (int)rng_below(&r, V_MODES));
            fill(&r, buf_w, len, mode);
            struct args a = {
                buf_x + GUARD,  buf_y + GUARD, buf_w + GUARD,
                NULL,           len,           mode == V_EDGES ? 1 : value(&r, V_NORMAL),
                value(&r, mode)};
            for (int i = 0; i < N_KERNELS; i++) {
                struct args b = a;
                check_kernel(&kernels[i], b, mode);
                b.w = NULL;
                if (!strcmp(kernels[i].name, "layer_norm"))
                    check_kernel(&kernels[i], b, mode);
                b.y = NULL;
                if (kernels[i].gate)
                    check_kernel(&kernels[i], b, mode);
                b.w = buf_w + GUARD;
                if (!strcmp(kernels[i].name, "layer_norm"))
                    check_kernel(&kernels[i], b, mode);
            }
        }
}

static void rope_equals_the_reference(void)
{
    struct rng r;
    rng_init(&r, 2);
    for (long round = 0; round < 2 * test_scale(); round++)
        for (int half = 1; half <= 130; half++)
            for (int neox = 0; neox < 2; neox++) {
                int mode = (int)rng_below(&r, V_MODES);
                fill(&r, buf_x, 2 * half, mode);
                fill(&r, buf_y, half, V_NORMAL);
                fill(&r, buf_w, half, V_NORMAL);
                memcpy(buf_ref, buf_x, sizeof buf_ref);
                vr_rope(buf_ref + GUARD, buf_y + GUARD, buf_w + GUARD, 2 * half, neox);
                for (int l = 0; l < n_levels; l++) {
                    memcpy(buf_z, buf_x, sizeof buf_z);
                    (neox ? levels[l]->rope_neox : levels[l]->rope_norm)(
                        buf_z + GUARD, buf_y + GUARD, buf_w + GUARD, 2 * half);
                    int64_t i = differ(buf_z, buf_ref, 2 * half + 2 * GUARD);
                    CHECK_MSG(i < 0, "%s rope neox %d n_rot %d: [%d]", levels[l]->name, neox,
                              2 * half, (int)i - GUARD);
                }
            }
}

/* Blocks of every size that there is, one and several; in place, too. */
static void hadamard_equals_the_reference(void)
{
    struct rng r;
    rng_init(&r, 9);
    for (long round = 0; round < 6 * test_scale(); round++)
        for (int way = 0; way < 4 * V_MODES * 2; way++) {
            int b = 32 << way % 4, n = b * (1 + (int)rng_below(&r, 4)), alias = way / 4 % 2;
            int mode = way / 8;
            float scale = round % 2 ? value(&r, mode) : 1 / sqrtf((float)b);
            fill(&r, buf_x, n, mode);
            memcpy(buf_ref, buf_x, sizeof buf_ref);
            for (int at = GUARD; at < GUARD + n; at += b)
                vr_hadamard(buf_ref + at, b, scale);
            for (int l = 0; l < n_levels; l++) {
                memcpy(buf_z, buf_x, sizeof buf_z);
                levels[l]->hadamard((alias ? buf_z : buf_x) + GUARD, buf_z + GUARD, n, b, scale);
                int64_t i = differ(buf_z, buf_ref, n + 2 * GUARD);
                CHECK_MSG(i < 0, "%s hadamard of %d by %d, alias %d, mode %d: [%d]",
                          levels[l]->name, n, b, alias, mode, (int)i - GUARD);
            }
        }
}

/* All halves; a share of all floats (all of them at scale 100), and the neighbourhood of every
 * half's rounding bounds. */
static void halves_equal_the_reference(void)
{
    static uint16_t h[65536], h2[65536];
    static float f[65536];
    for (int i = 0; i < 65536; i++)
        h[i] = (uint16_t)i;
    for (int i = 0; i < 65536; i++)
        f[i] = vr_from_f16(h[i]);
    uint64_t step = test_scale() >= 100 ? 1 : (uint64_t)(1501 / test_scale()) | 1, u = 0;
    while (u < 1ull << 32) {
        int n = 0;
        for (; n < 65536 && u < 1ull << 32; n++, u += step) {
            f[n] = float_of((uint32_t)u);
            h[n] = vr_to_f16(f[n]);
        }
        for (int l = 0; l < n_levels; l++) {
            levels[l]->f32_to_f16(f, h2, n);
            for (int i = 0; i < n; i++)
                CHECK_MSG(h2[i] == h[i] || f[i] != f[i], "%s f32_to_f16(%a): %x, not %x",
                          levels[l]->name, (double)f[i], h2[i], h[i]);
        }
    }
    for (int l = 0; l < n_levels;
         l++) /* both sides of the middle between two halves, and the middle */
        for (int i = 0; i < 0x7bff; i++) {
            float mid = (vr_from_f16((uint16_t)i) + vr_from_f16((uint16_t)(i + 1))) / 2;
            float x[3] = {float_of(bits_of(mid) - 1), mid, float_of(bits_of(mid) + 1)};
            uint16_t y[4] = {0, 0, 0, 0x1234};
            levels[l]->f32_to_f16(x, y, 3);
            CHECK_MSG(y[0] == i && y[1] == i + (i & 1) && y[2] == i + 1 && y[3] == 0x1234,
                      "%s rounding of %x", levels[l]->name, i);
        }
}

/* ---- accuracy, at the best level (all are equal) */

static double worst(void (*run)(const struct kern *, const struct args *), double (*exact)(double),
                    float lo, float hi, int relative)
{
    enum { N = 4096 };
    double bad = 0;
    for (long block = 0; block < 25 * test_scale(); block++) {
        for (int i = 0; i < N; i++)
            buf_x[i] =
                fminf(hi, lo + (hi - lo) * (float)rng_uniform(3, (uint64_t)block, (uint64_t)i));
        struct args a = {.x = buf_x, .z = buf_z, .n = N, .a = 30};
        run(levels[n_levels - 1], &a);
        for (int i = 0; i < N; i++) {
            double want = exact((double)buf_x[i]), e = fabs((double)buf_z[i] - want);
            if (relative) { /* in units of the last place of the result */
                int k;
                frexp(want, &k);
                e = ldexp(e, 24 - k);
            }
            bad = e > bad || e != e ? e : bad;
        }
    }
    return bad;
}

static double exact_silu(double x)
{
    return x / (1 + exp(-x));
}
static double exact_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double exact_gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}
static double exact_gelu_quick(double x)
{
    return x / (1 + exp(-1.702 * x));
}
static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double exact_softcap(double x)
{
    return 30 * tanh(x / 30);
}

static void functions_are_accurate(void)
{
    static const struct {
        const char *name;
        void (*run)(const struct kern *, const struct args *);
        double (*exact)(double);
        float lo, hi;
        int relative; /* bound in ulp, else absolute */
        double bound;
    } f[] = {
        {"exp", run_exp, exp, -87.32f, 88, 1, 1.5},
        {"exp near 0", run_exp, exp, -1, 1, 1, 1.5},
        {"sigmoid", run_sigmoid, exact_sigmoid, -80, 80, 1, 3},
        {"silu", run_silu, exact_silu, -80, 80, 1, 3.5},
        {"silu near 0", run_silu, exact_silu, -2, 2, 1, 3.5},
        {"gelu", run_gelu, exact_gelu, -20, 20, 0, 1e-6},
        {"gelu near 0", run_gelu, exact_gelu, -2, 2, 0, 3e-7},
        {"gelu_erf", run_gelu_erf, exact_gelu_erf, -8, 8, 0, 1e-6},
        {"gelu_erf near 0", run_gelu_erf, exact_gelu_erf, -0.01f, 0.01f, 0, 3e-9},
        {"gelu_quick", run_gelu_quick, exact_gelu_quick, -20, 20, 0, 1.5e-6},
        {"softcap", run_softcap, exact_softcap, -300, 300, 1, 3},
        {"softcap near 0", run_softcap, exact_softcap, -1, 1, 1, 3},
    };
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        double e = worst(f[i].run, f[i].exact, f[i].lo, f[i].hi, f[i].relative);
        CHECK_MSG(e < f[i].bound, "%s: error %g, bound %g", f[i].name, e, f[i].bound);
        if (getenv("TEST_VERBOSE"))
            printf("# %-16s %.3g %s\n", f[i].name, e, f[i].relative ? "ulp" : "absolute");
    }
}

/* What has a value by its definition: exp and the gates at their ends. */
static void special_values(void)
{
    for (int l = 0; l < n_levels; l++) {
        const struct kern *k = levels[l];
        float x[6] = {0, -0.0f, -INFINITY, -87.34f, INFINITY, NAN}, y[6];
        k->exp(x, y, 6);
        CHECK(y[0] == 1 && y[1] == 1 && bits_of(y[2]) == 0 && bits_of(y[3]) == 0 &&
              y[4] == vr_exp(88) && y[5] != y[5]);
        x[3] = float_of(0x7fc001ffu); /* a payload that an integer addition to the exponent would
                                         turn into a number */
        k->exp(x + 3, y, 1);
        CHECK(y[0] != y[0]);
        float g[4] = {INFINITY, 1e30f, NAN, -1000};
        k->silu(g, NULL, y, 4);
        CHECK(y[0] == INFINITY && y[1] == 1e30f && y[2] != y[2] && fabsf(y[3]) < 1e-30f);
        k->gelu(g, NULL, y, 4);
        CHECK(y[0] == INFINITY && y[1] == 1e30f && y[2] != y[2] && fabsf(y[3]) < 1e-30f);
        k->gelu_erf(g, NULL, y, 4);
        CHECK(y[0] == INFINITY && y[1] == 1e30f && y[2] != y[2] && y[3] == 0);
        float t[4] = {INFINITY, -INFINITY, 0, NAN};
        k->softcap(t, 30, y, 4);
        CHECK(y[0] == 30 && y[1] == -30 && y[2] == 0 && y[3] != y[3]);
    }
}

static void element_does_not_depend_on_its_place(void)
{
    struct rng r;
    rng_init(&r, 4);
    for (int l = 0; l < n_levels; l++)
        for (int i = 0; i < N_KERNELS - 4; i++) { /* the element-wise ones */
            fill(&r, buf_x, 97, V_SPECIAL);
            fill(&r, buf_y, 97, V_SPECIAL);
            struct args a = {buf_x + GUARD, buf_y + GUARD, NULL, buf_ref, 97, 0.7f, 0.1f};
            kernels[i].run(levels[l], &a);
            for (int at = 0; at < 97; at++) {
                struct args b = {
                    buf_x + GUARD + at, buf_y + GUARD + at, NULL, buf_z, 1, 0.7f, 0.1f};
                kernels[i].run(levels[l], &b);
                CHECK_MSG(same(buf_z[0], buf_ref[at]), "%s %s element %d", levels[l]->name,
                          kernels[i].name, at);
            }
        }
}

/* A tile goes to its rows, and nothing else is touched. */
static void tiles_are_put_to_their_rows(void)
{
    enum { LD = 96, COLUMNS = 5 };
    static _Alignas(64) float y[COLUMNS * 64], out[(COLUMNS + 1) * LD];
    for (int i = 0; i < COLUMNS * 64; i++)
        y[i] = (float)i;
    for (int l = 0; l < n_levels; l++)
        for (int n = 16; n <= 64; n += 16)
            for (int at = 0; at + n <= LD; at += 16) {
                for (int i = 0; i < (COLUMNS + 1) * LD; i++)
                    out[i] = -1;
                levels[l]->put_far(y, COLUMNS, n, out + at, LD);
                levels[l]->put_end();
                for (int i = 0; i < (COLUMNS + 1) * LD; i++) {
                    int r = i % LD - at, c = i / LD;
                    float want = c < COLUMNS && r >= 0 && r < n ? y[c * n + r] : -1;
                    CHECK_MSG(out[i] == want, "%s: row %d, %d", levels[l]->name, c, r);
                }
            }
}

/* Every level the machine has gives a whole table, and each vector width its own. */
static void tables_are_complete(void)
{
    for (int l = CPU_BASE; l < CPU_N_LEVELS; l++) {
        const struct kern *k = kern_table(l);
#define X(entry) CHECK_MSG(k->entry, "%s has no " #entry, k->name);
        KERN_VEC(X)
#undef X
        CHECK(k == kern_table(l) && !strcmp(k->name, cpu_level_name((enum cpu_level)l)));
    }
    CHECK(kern_table(CPU_REF) == kern_table(CPU_BASE) && kern_table(-1) == kern_table(CPU_BASE) &&
          kern_table(1000) == kern_table(CPU_BASE));
    CHECK(n_levels == 1 + cpu_has(CPU_AVX2) + cpu_has(CPU_AVX512) + cpu_has(CPU_NEON));
}

int main(void)
{
    n_levels = vr_levels(levels);
    TEST(tables_are_complete);
    TEST(kernels_equal_the_reference);
    TEST(rope_equals_the_reference);
    TEST(hadamard_equals_the_reference);
    TEST(halves_equal_the_reference);
    TEST(functions_are_accurate);
    TEST(special_values);
    TEST(tiles_are_put_to_their_rows);
    TEST(element_does_not_depend_on_its_place);
    return test_end();
}
