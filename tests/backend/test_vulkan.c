/* test_vulkan.c -- models and ops on Vulkan devices (src/backend/vulkan), through the public API
 * and beside the references. Any device will do; on a machine without a GPU Mesa's lavapipe is one.
 *
 *   golden/arch    whole on the device, layers by turns with the CPU, by turns on two logical
 *                  devices: every logit within twice the recorded tolerance of exact arithmetic;
 * the same bits in pieces of 7 and token by token
 *
 * TEST_ONLY=part of a name, TEST_MODEL_ONLY=part of a model's name. */
#include <math.h>
#include "backend/vulkan/vulkan.h"
#include "golden.h"

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void set_devices(const char *devices, const char *layers)
{
    set_env("PITH_VULKAN_DEVICES", devices);
    set_env("PITH_LAYER_DEVICES", layers);
}

/* Why there is no device; "": there is one. */
static const char *absent(void)
{
    static struct pith_error err;
    struct device *d;
    set_devices("0", NULL);
    error_clear(&err);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK)
        d->backend->close(d);
    set_devices(NULL, NULL);
    return err.msg;
}

/* ---------------------------------------------------------------- golden/arch */

struct way {
    const char *name, *devices, *layers;
};
static const struct way ways[] = {{"whole", "0", "1"},
                                  {"by turns with the CPU", "0", "1,0"},
                                  {"by turns on two devices", "0,0", "1,2"}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static pith_status feed(pith_session *s, const int32_t *token, int32_t n, struct pith_error *err)
{
    struct pith_batch b = PITH_BATCH_INIT;
    uint8_t *want = malloc((size_t)n + 1);
    memset(want, 1, (size_t)n + 1);
    b.n = n;
    b.token = token;
    b.want = want;
    pith_status st = pith_step(s, &b, err);
    free(want);
    return st;
}

/* The logits of all tokens, fed in pieces of so many. */
static int logits_of(const struct golden *g, pith_model *m, int32_t piece, float *out,
                     int32_t n_vocab, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = golden_ctx(g);
    sp.cache_type_k = sp.cache_type_v = "f32";
    pith_session *s = pith_session_open(m, &sp, err);
    int ok = s != NULL;
    for (int32_t at = 0; ok && at < g->n; at += piece) {
        int32_t n = g->n - at < piece ? g->n - at : piece;
        ok = feed(s, g->token + at, n, err) == PITH_OK;
        for (int32_t i = 0; ok && i < n; i++)
            memcpy(out + (int64_t)(at + i) * n_vocab, pith_logits(s, i),
                   (size_t)n_vocab * sizeof *out);
    }
    pith_session_close(s);
    return ok;
}

static double worst(const float *got, const float *want, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
    }
    return most;
}

static int flag(const struct golden *g, const char *name)
{
    return json_is_true(json_object_get(json_object_get(g->json, "flags"), name));
}

static void golden_model(const struct golden *g, const struct way *w, const float *want,
                         int32_t n_vocab)
{
    int64_t n = (int64_t)g->n * n_vocab;
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_info info = {.size = sizeof info};
    double limit = json_number_value(
        json_object_get(json_object_get(g->json, "suggested_atol"), "exact_math"));
    float *got = calloc((size_t)n, sizeof *got), *other = calloc((size_t)n, sizeof *other);
    set_devices(w->devices, w->layers);
    pith_model *m = pith_model_open(golden_path(g, ".gguf"), NULL, &err);
    set_devices(NULL, NULL);
    int ok = m && logits_of(g, m, g->n, got, n_vocab, &err);
    CHECK_MSG(ok, "%s, %s: %s", g->name, w->name, err.msg);
    double off = ok ? worst(got, want, n) : 0;
    CHECK_MSG(off <= 2 * limit, "%s, %s: a logit is off by %.3g, at most %.3g", g->name, w->name,
              off, 2 * limit);
    for (int32_t piece = 7; ok && flag(g, "causal") && !flag(g, "diffusion") && piece > 0;
         piece -= 6) {
        int again = logits_of(g, m, piece, other, n_vocab, &err);
        CHECK_MSG(again, "%s, %s, in pieces of %d: %s", g->name, w->name, piece, err.msg);
        CHECK_MSG(!again || !memcmp(got, other, (size_t)n * sizeof *got),
                  "%s, %s: other bits in pieces of %d, by up to %.3g", g->name, w->name, piece,
                  worst(got, other, n));
    }
    if (m && w == ways && pith_model_get_info(m, &info, NULL) == PITH_OK)
        printf("# %s: off by %.2g of %.2g%s%s\n", g->name, off, limit, info.note ? "; " : "",
               info.note ? info.note : "");
    pith_model_close(m);
    free(got);
    free(other);
}

static void golden_arch(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0;
    const char *only = getenv("TEST_MODEL_ONLY");
    int every = only || test_scale() >= 10 ? 1 : 16;
    for (int i = 0; i < n; i++) {
        const struct golden *g = &list[i];
        int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
        if (!golden_known(g) || (only && !strstr(g->name, only)) || i % every)
            continue;
        int64_t all = (int64_t)g->n * n_vocab;
        float *want = golden_floats(golden_path(g, ".logits_exactgelu.bin"), all);
        if (!want)
            want = golden_floats(golden_path(g, ".logits.bin"), all);
        if (!want)
            continue;
        golden_model(g, &ways[0], want, n_vocab);
        golden_model(g, &ways[1 + n_run % (N_WAYS - 1)], want, n_vocab);
        free(want);
        n_run++;
    }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    struct vulkan_counts c = vulkan_counts();
    printf("# %d models; recordings: %llu made, %llu run again, %llu evicted, %llu refused\n",
           n_run, (unsigned long long)c.recorded, (unsigned long long)c.replayed,
           (unsigned long long)c.evicted, (unsigned long long)c.refused);
}

static void no_device(void)
{
    SKIP("%s", absent());
}

int main(void)
{
    if (*absent()) {
        TEST(no_device);
        return test_end();
    }
    TEST(golden_arch);
    return test_end();
}
