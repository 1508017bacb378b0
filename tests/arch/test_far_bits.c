/* test_far_bits.c -- every recorded model on devices whose memory the host cannot touch
 * (backend/far): wholly, its second half, and layer by layer on two of them and the CPU. Its rows
 * are, bit by bit, those that the CPU gives alone. Kinds of sessions, steps and edits are others'
 * (test_bits.c, test_far.c), and models without a file test_each.c's; here it is that no family
 * and no weight type is left out. In make check one way each of a few models. */
#include "backend/far/far.h"
#include "encoder.h"
#include "golden.h"
#include "hook.h"

enum { ROWS = 20 };

/* Steps of a text: a prompt, a token alone, the rest. What sees or pools the whole text has it in
 * one. */
static const int32_t pieces[] = {11, 1, ROWS};

static const struct way {
    const char *name;
    const char *layers; /* by turns (PITH_LAYER_DEVICES); NULL: the second half of them */
} ways[] = {{"wholly on a far device", "1"},
            {"the second half on a far device", NULL},
            {"layers by turns on two far devices and the CPU", "1,2,0"}};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* What came out of all steps, one row after the other. */
struct rows {
    float *p;
    size_t n, cap;
};

static void keep(struct rows *out, const float *row, size_t n)
{
    if (out->n + n > out->cap) {
        out->cap = 2 * (out->n + n);
        out->p = realloc(out->p, out->cap * sizeof *row);
    }
    memcpy(out->p + out->n, row, n * sizeof *row);
    out->n += n;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* A layer more than half where there are many: the states of later ones may lie with it. */
static int32_t half_of(int32_t n_layer)
{
    return n_layer > 4 ? n_layer / 2 + 1 : (n_layer + 1) / 2;
}

static pith_status run(pith_session *s, const struct golden *g, const struct pith_model_info *info,
                       struct rows *out, struct pith_error *err)
{
    int32_t n = smaller(g->n, ROWS);
    pith_status st = encoder_reads(s, 0, err);
    for (int32_t at = 0, k = 0; at < n && st == PITH_OK; k++) {
        int whole = !info->causal || info->pooling != PITH_POOL_NONE;
        int32_t rows = whole ? n : smaller(pieces[k], n - at);
        st = golden_feed(s, g->token + at, rows, err);
        at += rows;
        for (int32_t i = 0; st == PITH_OK && i < pith_n_outputs(s); i++) {
            const float *logits = pith_logits(s, i), *row = logits ? logits : pith_embedding(s, i);
            int32_t cols = logits                            ? info->n_vocab
                           : info->pooling == PITH_POOL_RANK ? info->n_labels
                                                             : info->n_embd_out;
            CHECK_MSG(row, "%s: output %d is neither logits nor an embedding", g->name, i);
            if (row)
                keep(out, row, (size_t)cols);
        }
    }
    return st;
}

/* way NULL: the CPU alone. Returns 1 when it ran. */
static int rows_of(const struct golden *g, const struct way *w, int32_t n_layer, struct rows *out,
                   struct pith_model_info *info)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    mp.n_threads = 1;
    sp.n_ctx = smaller(golden_ctx(g), 64);
    sp.cache_type_k = sp.cache_type_v = "f32";
    sp.pooling = PITH_POOL_FILE;
    out->n = 0;
    if (w) {
        setenv("PITH_FAR_DEVICES", w->layers ? "2" : "1", 1);
        if (w->layers)
            setenv("PITH_LAYER_DEVICES", w->layers, 1);
        else
            mp.gpu_layers = half_of(n_layer);
    }
    far_plan(&(struct far_plan){.seed = (uint64_t)g->n});
    pith_model *m = pith_model_open(golden_path(g, ".gguf"), &mp, &err);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    uint64_t opened = far_calls();
    *info = (struct pith_model_info)PITH_MODEL_INFO_INIT;
    int ok = s && pith_model_get_info(m, info, &err) == PITH_OK &&
             run(s, g, info, out, &err) == PITH_OK && out->n > 0;
    CHECK_MSG(ok, "%s, %s: %s", g->name, w ? w->name : "on the CPU", err.msg);
    CHECK_MSG(!ok || !w == !(far_calls() > opened), "%s, %s: far devices had %llu calls", g->name,
              w ? w->name : "on the CPU", (unsigned long long)(far_calls() - opened));
    pith_session_close(s);
    pith_model_close(m);
    CHECK_MSG(far_live() == 0, "%s: far devices still hold something", g->name);
    return ok;
}

static void compare(const struct golden *g, int turn, int all)
{
    static struct rows want, got;
    struct pith_model_info info, other;
    if (!rows_of(g, NULL, 0, &want, &info))
        return;
    for (int i = 0; i < N_WAYS; i++) {
        const struct way *w = &ways[i];
        if (!all && i != turn % N_WAYS)
            continue;
        if (rows_of(g, w, info.n_layer, &got, &other))
            CHECK_MSG(got.n == want.n && !memcmp(got.p, want.p, want.n * sizeof *want.p),
                      "%s, %s: other bits", g->name, w->name);
    }
}

/* Every so many of a folder at TEST_SCALE 1, each of them later. */
static void folder(const char *name, int every, int least)
{
    struct golden *list;
    int n = golden_list(name, &list), n_run = 0, all = test_scale() >= 10;
    for (int i = 0; i < n; i++)
        if (golden_known(&list[i]) && (all || i % every == 0))
            compare(&list[i], n_run++, all);
    golden_free(list, n);
    if (!n)
        SKIP("no %s under %s", name, test_shared());
    CHECK_MSG(n_run >= (all ? least : least / every), "only %d models were in scope", n_run);
}

static void every_family(void)
{
    folder("golden/arch", 12, 130);
}

static void every_weight_type(void)
{
    folder("golden/quant", 12, 59);
}

int main(void)
{
    TEST(every_family);
    TEST(every_weight_type);
    return test_end();
}
