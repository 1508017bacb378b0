/* test_placement.c -- where weights lie: a tied embedding read on two devices is on both; a plan
 * refuses a weight that is elsewhere; and placements are replaced between two steps of sessions
 * that run, which changes kernels and no bits. */
#include "base/machine/pool.h"
#include "hook.h"
#include "run/session/session.h"

enum { V = 48, N_SESSIONS = 2, TOKENS = 12, PLACES = 64 };

static char path[256];

static pith_model *open_model(pith_weights weights, const char *far, const char *layers,
                              struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 2;
    mp.n_batch = 16;
    mp.weights = weights;
    if (far)
        setenv("PITH_FAR_DEVICES", far, 1);
    if (layers)
        setenv("PITH_LAYER_DEVICES", layers, 1);
    pith_model *m = pith_model_open(path, &mp, err);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    return m;
}

static void make_model(const char *type, int tied)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    snprintf(path, sizeof path, "%s/%s.gguf", tmp_dir, type);
    p.arch = "llama";
    p.type = type;
    p.n_embd = 64;
    p.n_layer = 2;
    p.n_head = 2;
    p.n_vocab = V;
    p.tied = tied;
    CHECK_MSG(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
}

/* ---------------------------------------------------------------- replacing */

struct packed {
    struct replacement r[PLACES];
    struct buffer b[PLACES];
    int32_t n;
};

/* Panels of every matrix that a product multiplies with, made beside the running sessions. */
static void pack_all(struct pith_model *m, struct packed *p)
{
    struct pith_error err = {PITH_OK, ""};
    struct device *d = m->devices[0];
    p->n = 0;
    for (int32_t i = 0; i < m->n_tensors && p->n < PLACES; i++) {
        struct tensor *t = m->tensors[i];
        if (t->n_dims != 2 || t->use == TENSOR_EMBEDDING || !t->n_at)
            continue;
        uint64_t bytes = tensor_packed_matrix_bytes(t);
        struct buffer *b = &p->b[p->n];
        CHECK_MSG(buffer_alloc(d, bytes, PITH_MEM_WEIGHTS, b, &err) == PITH_OK, "%s", err.msg);
        d->backend->pack(d, t, t->from->data, 0, tensor_panels(t), buffer_map(b));
        p->r[p->n++] = (struct replacement){
            t, {.device = 0, .layout = LAYOUT_PANELS, .buffer = b, .bytes = bytes}};
    }
}

static int runs_packed(const struct pith_session *s)
{
    int n = 0;
    for (int32_t i = 0; i < s->role[ROLE_DECODER].plan.n_calls; i++)
        n += s->role[ROLE_DECODER].plan.calls[i].layout == LAYOUT_PANELS;
    return n;
}

static void check_token(pith_session *s, const float *want, int32_t i)
{
    struct pith_error err;
    int32_t token = i * 5 % V;
    REQUIRE(pith_feed(s, 0, &token, 1, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(!memcmp(pith_logits(s, 0), want + i * V, V * sizeof *want), "token %d", i);
}

/* Sessions that run go over at their next step, each by itself. */
static void replaced_while_running(void)
{
    static float want[TOKENS * V];
    static struct packed p;
    struct pith_error err = {PITH_OK, ""};
    make_model("q8_0", 0);
    pith_model *m = open_model(PITH_WEIGHTS_PACKED, NULL, NULL, &err);
    pith_session *s[N_SESSIONS] = {m ? pith_session_open(m, NULL, &err) : NULL};
    REQUIRE(s[0], "%s", err.msg);
    for (int32_t i = 0; i < TOKENS; i++) {
        int32_t token = i * 5 % V;
        CHECK(pith_feed(s[0], 0, &token, 1, &err) == PITH_OK);
        memcpy(want + i * V, pith_logits(s[0], 0), V * sizeof *want);
    }
    int packed = runs_packed(s[0]);
    CHECK(packed > 4);
    pith_session_close(s[0]);
    pith_model_close(m);

    m = open_model(PITH_WEIGHTS_MAPPED, NULL, NULL, &err);
    for (int k = 0; k < N_SESSIONS; k++)
        s[k] = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s[1], "%s", err.msg);
    for (int32_t i = 0; i < 4; i++)
        for (int k = 0; k < N_SESSIONS; k++)
            check_token(s[k], want, i);
    CHECK(runs_packed(s[0]) == 0);
    pack_all(m, &p);
    CHECK(model_replace(m, p.r, p.n, &err) == PITH_OK);
    CHECK_MSG(session_ready(s[0], &err) == PITH_OK, "%s", err.msg);
    CHECK(!memcmp(pith_logits(s[0], 0), want + 3 * V, V * sizeof *want)); /* kept beside the plan */
    for (int32_t i = 4; i < 8; i++)
        check_token(s[0], want, i);
    CHECK_MSG(runs_packed(s[0]) == packed, "%d calls of %d read panels", runs_packed(s[0]), packed);
    CHECK(runs_packed(s[1]) == 0); /* it has not made a step */
    for (int32_t i = 4; i < TOKENS; i++)
        check_token(s[1], want, i);
    CHECK(runs_packed(s[1]) == packed);

    /* No memory at one of the allocations of a new plan: that call fails, the old one goes on. */
    for (int32_t i = 0; i < p.n; i++)
        p.r[i].to = (struct placement){
            .buffer = p.r[i].to.buffer, .layout = LAYOUT_PANELS, .bytes = p.r[i].to.bytes};
    CHECK(model_replace(m, p.r, p.n, &err) == PITH_OK);
    int32_t token = 8 * 5 % V;
    long n = 0;
    pith_status st;
    do {
        error_clear(&err);
        hook_refuse(n++, 0);
        st = pith_feed(s[0], 0, &token, 1, &err);
        if (!hook_grant())
            break;
        CHECK_MSG(st == PITH_NOMEM, "allocation %ld: %d", n, (int)st);
    } while (st != PITH_OK);
    CHECK_MSG(n > 4 && st == PITH_OK, "%ld allocations, %s", n, err.msg);
    CHECK(!memcmp(pith_logits(s[0], 0), want + 8 * V, V * sizeof *want));
    for (int32_t i = 9; i < TOKENS; i++)
        check_token(s[0], want, i);

    for (int k = 0; k < N_SESSIONS; k++)
        pith_session_close(s[k]);
    for (int32_t i = 0; i < p.n; i++)
        buffer_release(&p.b[i]);
    pith_model_close(m);
    check_nothing_held("replaced");
}

/* ---------------------------------------------------------------- devices */

/* One matrix, read as a table where the input is and as a product where the output is. */
static void tied_on_two_devices(void)
{
    struct pith_error err = {PITH_OK, ""};
    make_model("f16", 1);
    pith_model *m = open_model(PITH_WEIGHTS_AUTO, "2", "1,2", &err);
    REQUIRE(m, "%s", err.msg);
    const struct tensor *t = m->tok_embd;
    CHECK(t->n_at == 2 && tensor_on(t, 1) && tensor_on(t, 2) && !tensor_on(t, 0));
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK);
    CHECK_MSG(info.note && strstr(info.note, "token_embd.weight is on FAR0") &&
                  strstr(info.note, "and on FAR1"),
              "%s", info.note ? info.note : "no note");
    pith_model_close(m);
}

/* A weight of another device's is no weight. */
static void elsewhere_is_refused(void)
{
    struct pith_error err = {PITH_OK, ""};
    make_model("f16", 0);
    pith_model *m = open_model(PITH_WEIGHTS_AUTO, "1", "0,1", &err);
    REQUIRE(m, "%s", err.msg);
    struct tensor *t = m->tensors[0];
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i]->name, "blk.1.ffn_down.weight"))
            t = m->tensors[i];
    CHECK(t->n_at == 1 && t->at[0].device == 1);
    struct replacement r = {t, t->at[0]};
    r.to.device = 0;
    CHECK(model_replace(m, &r, 1, &err) == PITH_INTERNAL && strstr(err.msg, t->name));
    t->at[0].device = 0;
    error_clear(&err);
    pith_session *s = pith_session_open(m, NULL, &err);
    CHECK_MSG(!s && err.code == PITH_INTERNAL && strstr(err.msg, t->name) &&
                  strstr(err.msg, "was not placed"),
              "%s", s ? "opened" : err.msg);
    pith_session_close(s);
    t->at[0].device = 1;
    pith_model_close(m);
    check_nothing_held("elsewhere");
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(replaced_while_running);
    TEST(tied_on_two_devices);
    TEST(elsewhere_is_refused);
    return test_end();
}
