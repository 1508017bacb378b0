/* test_devices.c -- who computes what: devices by name, layers by number and share, weights by
 * pattern, experts that stay; and what a device has no kernel for, op by op. Far devices stand for
 * GPUs; wherever things run the bits are those of the CPU. */
#include "backend/far/far.h"
#include "base/env.h"
#include "model_file.h"
#include "run/session/session.h"

enum { V = 48, N_TOKENS = 5, LAYERS = 4 };

static char path[MODEL_PATH];
static float expected[N_TOKENS * V];

static void make_model(const char *arch)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_embd = 64;
    p.n_layer = LAYERS;
    model_file(path, p);
}

static pith_model *open_on(const char *n_far, const struct pith_model_params *how,
                           struct pith_error *err)
{
    return open_on_far(path, n_far, how, 16, err);
}

/* Logits of the first tokens: recorded, or compared with what was. */
static void run_tokens(pith_model *m, int record, const char *what)
{
    struct pith_error err = {PITH_OK, ""};
    pith_session *s = pith_session_open(m, NULL, &err);
    CHECK_MSG(s, "%s: %s", what, err.msg);
    for (int32_t i = 0; s && i < N_TOKENS; i++) {
        int32_t token = i * 7 % V;
        if (pith_feed(s, 0, &token, 1, &err) != PITH_OK) {
            CHECK_MSG(0, "%s: %s", what, err.msg);
            break;
        }
        if (record)
            memcpy(expected + i * V, pith_logits(s, 0), V * sizeof *expected);
        else
            CHECK_MSG(!memcmp(pith_logits(s, 0), expected + i * V, V * sizeof *expected),
                      "%s: token %d", what, i);
    }
    pith_session_close(s);
}

static void record(void)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    pith_model *m = open_on("0", &mp, &err);
    CHECK_MSG(m, "%s", err.msg);
    if (m)
        run_tokens(m, 1, "alone");
    pith_model_close(m);
}

/* ---------------------------------------------------------------- layers and names */

/* Letters by layer: C the CPU, 0 the first GPU, 1 the second. */
static void check_layers(const char *what, struct pith_model_params mp, const char *wanted)
{
    struct pith_error err;
    char got[LAYERS + 1] = {0};
    pith_model *m = open_on("2", &mp, &err);
    CHECK_MSG(m, "%s: %s", what, err.msg);
    for (int l = 0; m && l < LAYERS; l++) {
        const char *name = m->devices[m->layer_device[l]]->name;
        got[l] = !strcmp(name, "CPU") ? 'C' : name[strlen(name) - 1];
    }
    CHECK_MSG(!strcmp(got, wanted), "%s: layers on %s, wanted %s", what, got, wanted);
    if (m)
        run_tokens(m, 0, what);
    pith_model_close(m);
}

#define HOW(...)                                                                                   \
    (struct pith_model_params)                                                                     \
    {                                                                                              \
        .size = sizeof(struct pith_model_params), __VA_ARGS__                                      \
    }

static void layers_go_where_they_are_sent(void)
{
    make_model("llama");
    record();
    check_layers("all fit", HOW(0), "0011");
    check_layers("none", HOW(.gpu_layers = PITH_GPU_LAYERS_NONE), "CCCC");
    check_layers("one", HOW(.gpu_layers = 1), "CCC0");
    check_layers("three by shares", HOW(.gpu_layers = 3, .tensor_split = "2,1"), "C001");
    check_layers("more than there are", HOW(.gpu_layers = 99, .tensor_split = "0,1"), "1111");
    check_layers("all", HOW(.gpu_layers = PITH_GPU_LAYERS_ALL), "0011");
    check_layers("the second alone", HOW(.split = PITH_SPLIT_NONE, .main_gpu = 1), "1111");
    check_layers("the CPU by name", HOW(.devices = "CPU"), "CCCC");
    check_layers("a GPU by name", HOW(.devices = "far1"), "1111");
}

/* What does not fit stays on the CPU, and that is said. */
static void auto_takes_what_fits(void)
{
    struct pith_error err = {PITH_OK, ""};
    model_file(path, wide_params(V, LAYERS));
    far_plan(&(struct far_plan){.bytes = 10 * FAR_SLAB});
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    pith_model *m = open_on("1", &mp, &err);
    CHECK_MSG(m, "%s", err.msg);
    if (m) {
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        CHECK(pith_model_get_info(m, &info, &err) == PITH_OK);
        CHECK_MSG(info.note && strstr(info.note, "1 of 4 layers are on GPUs"), "%s",
                  info.note ? info.note : "no note");
    }
    pith_model_close(m);
    far_plan(&(struct far_plan){0});
}

/* ---------------------------------------------------------------- layers beside a session */

enum { CONTEXT = 1024, FEW = 12, SLABS = 44 };

static int32_t on_gpus(const pith_model *m)
{
    int32_t n = 0;
    for (int l = 0; l < m->arch.hp.n_layer; l++)
        n += m->layer_device[l] != 0;
    return n;
}

/* Opens the model and then the session; the number of layers on GPUs, -1: one of them refuses. */
static int32_t open_both(const char *n_far, struct pith_model_params mp,
                         const struct pith_session_params *sp, int fill)
{
    struct pith_error err;
    pith_model *m = open_on(n_far, &mp, &err);
    pith_session *s = m ? pith_session_open(m, sp, &err) : NULL;
    int32_t n = s ? on_gpus(m) : -1, token[16] = {0};
    CHECK_MSG(s || err.code == PITH_NOMEM, "%s", err.msg);
    for (int32_t i = 0; s && fill && i < sp->n_ctx; i += 16)
        if (pith_feed(s, 0, token, 16, &err) != PITH_OK) {
            CHECK_MSG(0, "position %d: %s", i, err.msg);
            break;
        }
    pith_session_close(s);
    pith_model_close(m);
    return n;
}

/* With any amount of memory `auto` takes the most layers with which a session can be opened, which
 * then has what it was promised. */
static int32_t fewest_slabs(const char *n_far, struct pith_model_params mp,
                            const struct pith_session_params *sp, int fill)
{
    int32_t enough = 0;
    mp.session = sp;
    for (int32_t slabs = 2; slabs <= SLABS && !enough; slabs++) {
        far_plan(&(struct far_plan){.bytes = (uint64_t)slabs * FAR_SLAB});
        mp.gpu_layers = PITH_GPU_LAYERS_AUTO;
        int32_t got = open_both(n_far, mp, sp, 0);
        mp.gpu_layers = got + 1;
        int32_t more = got < LAYERS ? open_both(n_far, mp, sp, 0) : -1;
        CHECK_MSG(got >= 0 && more < 0, "%d slabs of %s: %d layers, with one more %d", slabs, n_far,
                  got, more);
        enough = got == LAYERS ? slabs : 0;
        mp.gpu_layers = PITH_GPU_LAYERS_AUTO;
        if (enough && fill && test_scale() >= 10)
            open_both(n_far, mp, sp, 1);
    }
    far_plan(&(struct far_plan){0});
    CHECK_MSG(enough, "%d slabs are not enough", SLABS);
    return enough;
}

static void auto_leaves_room_for_a_session(void)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    model_file(path, wide_params(V, LAYERS));
    sp.n_ctx = CONTEXT;
    sp.n_lanes = 1; /* more are counted, and not insisted on */
    sp.cache_type_k = sp.cache_type_v = "f32";
    int32_t wide = fewest_slabs("1", HOW(0), &sp, 1);
    sp.cache_type_k = sp.cache_type_v = "q8_0";
    int32_t narrow = fewest_slabs("1", HOW(0), &sp, 0);
    CHECK_MSG(narrow < wide, "%d slabs with q8_0, %d with f32", narrow, wide);
    if (test_scale() < 10)
        return;
    sp.n_seq = 4;
    sp.n_tokens = 4 * CONTEXT;
    int32_t four = fewest_slabs("1", HOW(0), &sp, 0);
    CHECK_MSG(four > narrow, "%d slabs for four contexts, %d for one", four, narrow);
    fewest_slabs("2", HOW(.split = PITH_SPLIT_TENSOR), &sp, 0);
}

static int32_t layers_beside(uint64_t slabs, uint64_t keep_free,
                             const struct pith_session_params *sp)
{
    far_plan(&(struct far_plan){.bytes = slabs * FAR_SLAB});
    int32_t n = open_both("1", HOW(.session = sp, .keep_free = keep_free), sp, 0);
    far_plan(&(struct far_plan){0});
    return n;
}

static void auto_leaves_what_it_is_told(void)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    model_file(path, wide_params(V, LAYERS));
    sp.n_ctx = CONTEXT;
    sp.n_lanes = 1;
    uint64_t all = (uint64_t)fewest_slabs("1", HOW(0), &sp, 0);
    int32_t fewer = layers_beside(all, FAR_SLAB, &sp);
    CHECK_MSG(fewer >= 0 && fewer < LAYERS, "%d layers", fewer);
    CHECK(layers_beside(all + 1, FAR_SLAB, &sp) == LAYERS);
    CHECK(layers_beside(all, UINT64_MAX, &sp) == 0);
    sp.n_tokens = INT64_C(1000000000000); /* counted as what its sequences can hold */
    CHECK(layers_beside(all, 0, &sp) == LAYERS);
}

/* Where weights are to be brought to the GPU their ring is counted, too. */
static void auto_leaves_room_for_a_ring(void)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t some = 0;
    model_file(path, wide_params(V, 2 * LAYERS));
    sp.n_ctx = CONTEXT;
    for (int32_t slabs = 12; slabs <= 48; slabs += 4) {
        far_plan(&(struct far_plan){.bytes = (uint64_t)slabs * FAR_SLAB});
        pith_model *m = open_on("1", &HOW(.upload_rows = FEW, .session = &sp), &err);
        pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
        CHECK_MSG(s, "%d slabs: %s", slabs, err.msg);
        int32_t n = s ? on_gpus(m) : 0;
        some += n > 0 && n < 2 * LAYERS;
        CHECK_MSG(!n || n == 2 * LAYERS || s->uploading.rows == FEW, "%d slabs, %d layers: %s",
                  slabs, n, s->uploading.why);
        pith_session_close(s);
        pith_model_close(m);
    }
    far_plan(&(struct far_plan){0});
    CHECK_MSG(some, "no size has some layers on a GPU");
}

/* A context that is not asked for is 4,096 positions at least. */
static void auto_leaves_room_for_a_context(void)
{
    struct pith_error err;
    struct pith_synth_params p = wide_params(V, LAYERS);
    int32_t before = 0;
    p.n_ctx = 8192;
    model_file(path, p);
    for (int32_t slabs = 8; slabs <= 80; slabs += 3) {
        far_plan(&(struct far_plan){.bytes = (uint64_t)slabs * FAR_SLAB});
        pith_model *m = open_on("1", &HOW(0), &err);
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        CHECK_MSG(s, "%d slabs: %s", slabs, err.msg);
        int32_t n = s ? on_gpus(m) : 0;
        CHECK_MSG(!s || !n || pith_n_ctx(s) >= 4096, "%d slabs: a context of %d", slabs,
                  pith_n_ctx(s));
        CHECK_MSG(n >= before, "%d slabs: %d layers after %d", slabs, n, before);
        before = n;
        pith_session_close(s);
        pith_model_close(m);
    }
    CHECK_MSG(before == LAYERS, "%d layers", before);
    far_plan(&(struct far_plan){0});
}

static const struct tensor *find_tensor(const pith_model *m, const char *name)
{
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i]->name, name))
            return m->tensors[i];
    return NULL;
}

static void check_on(const pith_model *m, const char *name, const char *device)
{
    const struct tensor *t = find_tensor(m, name);
    CHECK_MSG(t && t->n_at == 1 && !strcmp(m->devices[t->at[0].device]->name, device),
              "%s is on %s, wanted %s", name, t ? m->devices[t->at[0].device]->name : "nothing",
              device);
}

static void weights_go_by(const char *const *rules)
{
    struct pith_error err;
    struct pith_model_params mp =
        HOW(.devices = "FAR0,FAR1", .tensor_split = "1,0", .placements = rules);
    pith_model *m = open_on("2", &mp, &err);
    REQUIRE(m, "%s", err.msg);
    check_on(m, "blk.0.ffn_down.weight", "CPU");
    check_on(m, "blk.2.ffn_down.weight", "FAR1");
    check_on(m, "blk.0.ffn_up.weight", "FAR1");
    check_on(m, "blk.0.ffn_gate.weight", "FAR0");
    check_on(m, "blk.3.attn_q.weight", "FAR0");
    run_tokens(m, 0, "weights by name");
    pith_model_close(m);
}

static void weights_go_by_name(void)
{
    static const char *const rules[] = {"blk\\.[01]\\.ffn_down=CPU", "ffn_(up|down)=FAR1", NULL};
    static const char *const at_once[] = {"[01]{1,2}\\.ffn_down=CPU,ffn_(up|down)=FAR1", NULL};
    make_model("llama");
    record();
    weights_go_by(rules);
    weights_go_by(at_once);
}

/* The experts' products and what lies between them are on the CPU, the rest is not. */
static void experts_stay(void)
{
    struct pith_error err;
    make_model("qwen3moe");
    record();
    for (int32_t n = -1; n <= 2; n += 3) {
        pith_model *m = open_on("1", &HOW(.cpu_experts = n), &err);
        REQUIRE(m, "%s", err.msg);
        check_on(m, "blk.1.ffn_down_exps.weight", "CPU");
        check_on(m, "blk.3.ffn_down_exps.weight", n < 0 ? "CPU" : "FAR0");
        check_on(m, "blk.0.ffn_gate_inp.weight", "FAR0");
        check_on(m, "blk.0.attn_output.weight", "FAR0");
        struct graph g;
        CHECK(model_graph(m, m->arch.states, &(struct arch_want){.logits = 1}, &g, &err) ==
              PITH_OK);
        CHECK(model_place_nodes(m, &g, &err) == PITH_OK);
        for (node d = g.first; d; d = d->next)
            if (d->w && d->w == find_tensor(m, "blk.0.ffn_down_exps.weight"))
                CHECK_MSG(d->src[0]->device == 0, "what goes into ffn_down_exps is on %s",
                          m->devices[d->src[0]->device]->name);
        graph_deinit(&g);
        run_tokens(m, 0, "experts on the CPU");
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- what is missing */

static int n_gaps;

/* A far device without an op: said, refused where all is wanted, and the same bits. */
static void lack(const char *arch, const char *op)
{
    struct pith_error err;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    char what[96], wanted[96];
    snprintf(what, sizeof what, "%s without %s", arch, op);
    snprintf(wanted, sizeof wanted, "FAR0 has no kernel for %s", op);
    far_plan(&(struct far_plan){.lacks = op});
    pith_model *m = open_on("1", &HOW(0), &err);
    CHECK_MSG(m, "%s: %s", what, err.msg);
    if (m) {
        n_gaps++;
        CHECK(pith_model_get_info(m, &info, &err) == PITH_OK);
        CHECK_MSG(info.note && strstr(info.note, wanted), "%s: %s", what,
                  info.note ? info.note : "no note");
        run_tokens(m, 0, what);
    }
    pith_model_close(m);
    m = open_on("1", &HOW(.strict = 1), &err);
    CHECK_MSG(!m && err.code == PITH_UNSUPPORTED && strstr(err.msg, wanted), "%s, strict: %s", what,
              m ? "opened" : err.msg);
    pith_model_close(m);
    far_plan(&(struct far_plan){0});
}

static void gaps_are_named(void)
{
    static const char *const archs[] = {"llama",  "qwen3moe", "gemma3n", "deepseek2",
                                        "mamba2", "rwkv7",    "lfm2",    "qwen3next"};
    uint8_t seen[OP_COUNT] = {0};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        struct pith_error err;
        struct graph g;
        uint8_t here[OP_COUNT] = {0};
        make_model(archs[a]);
        record();
        pith_model *m = open_on("0", &HOW(0), &err);
        REQUIRE(m, "%s: %s", archs[a], err.msg);
        CHECK(model_graph(m, m->arch.states, &(struct arch_want){.logits = 1}, &g, &err) ==
              PITH_OK);
        for (node n = g.first; n; n = n->next)
            here[n->op] = !op_has(n->op, OP_ALIAS) && !op_has(n->op, OP_TRANSFER);
        graph_deinit(&g);
        pith_model_close(m);
        for (int op = 0; op < OP_COUNT; op++)
            if (here[op] && !seen[op]++)
                lack(archs[a], op_infos[op]->name);
    }
    CHECK_MSG(n_gaps >= 25, "only %d gaps were tried", n_gaps);
    printf("# %d gaps\n", n_gaps);
}

/* ---------------------------------------------------------------- what is wrong */

static void wrong_ones_are_named(void)
{
    static const char *const
        no_device[] = {"ffn=GPU9", NULL},
        *const no_match[] = {"nobody=CPU", NULL}, *const no_rule[] = {"ffn", NULL},
        *const no_second[] = {"ffn_.{2,4}=CPU,nobody=CPU", NULL},
        *const no_tail[] = {"ffn=CPU,attn", NULL}, *const no_regex[] = {"ffn(=CPU", NULL},
        *const wide[] = {"(((a{1,255}){1,255}){1,255})=CPU", NULL},
        *const wide2[] = {"((a{,100}){11})=CPU", NULL}, *const own[] = {"(a.*)\\1=CPU", NULL};
    const struct {
        struct pith_model_params how;
        const char *said;
    } cases[] = {
        {HOW(.devices = "CPU,foo"), "there is no device \"foo\""},
        {HOW(.devices = ""), "there is no device \"\""},
        {HOW(.tensor_split = "1"), "wanted 2 numbers"},
        {HOW(.tensor_split = "1,2,3"), "wanted 2 numbers"},
        {HOW(.tensor_split = "1,nan"), "wanted 2 numbers"},
        {HOW(.tensor_split = "0,0"), "all are 0"},
        {HOW(.tensor_split = "-1,2"), "wanted 2 numbers"},
        {HOW(.main_gpu = 2), "main_gpu is 2, there are 2 GPUs"},
        {HOW(.main_gpu = -1), "main_gpu is -1"},
        {HOW(.gpu_layers = -2), "gpu_layers is -2"},
        {HOW(.split = 9), "split is 9"},
        {HOW(.cpu_experts = -2), "cpu_experts is -2"},
        {HOW(.placements = no_device), "there is no device \"GPU9\""},
        {HOW(.placements = no_match), "no tensor has such a name"},
        {HOW(.placements = no_rule), "wanted PATTERN=DEVICE"},
        {HOW(.placements = no_second), "nobody=CPU: no tensor has such a name"},
        {HOW(.placements = no_tail), "\"attn\": wanted PATTERN=DEVICE"},
        {HOW(.devices = "CPU", .main_gpu = 9), "main_gpu is 9, there are 0 GPUs"},
        {HOW(.placements = no_regex), "the pattern"},
        {HOW(.placements = wide), "over 1,000 times"},
        {HOW(.placements = wide2), "over 1,000 times"},
        {HOW(.placements = own), "refers to a match"},
    };
    make_model("llama");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_error err;
        pith_model *m = open_on("2", &cases[i].how, &err);
        CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, cases[i].said), "%s: %s",
                  cases[i].said, m ? "opened" : err.msg);
        pith_model_close(m);
    }
    check_nothing_held("wrong ones");
}

static void devices_are_listed(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_device_info d = PITH_DEVICE_INFO_INIT;
    setenv("PITH_FAR_DEVICES", "2", 1);
    int32_t n = pith_n_devices();
    CHECK(pith_device_get(0, &d, &err) == PITH_OK && !strcmp(d.kind, "cpu") && d.total_bytes > 0);
    CHECK(pith_device_get(n - 1, &d, &err) == PITH_OK && !strcmp(d.kind, "gpu"));
    CHECK(pith_device_get(n, &d, &err) == PITH_RANGE);
    error_clear(&err);
    CHECK(pith_device_get(-1, &d, &err) == PITH_RANGE);
    struct pith_machine h = {.size = sizeof h};
    CHECK(pith_device_measure(0, 1, &h, &err) == PITH_OK && h.read_gbs > 0 && h.int8_gops > 0);
    CHECK(pith_device_measure(n - 1, 1, &h, &err) == PITH_UNSUPPORTED &&
          strstr(err.msg, "measures nothing"));
    error_clear(&err);
    CHECK(pith_device_measure(n, 1, &h, &err) == PITH_RANGE && strstr(err.msg, "no device"));
    unsetenv("PITH_FAR_DEVICES");
    CHECK(pith_n_devices() == n - 2);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(layers_go_where_they_are_sent);
    TEST(auto_takes_what_fits);
    TEST(auto_leaves_room_for_a_session);
    TEST(auto_leaves_room_for_a_context);
    TEST(auto_leaves_what_it_is_told);
    TEST(auto_leaves_room_for_a_ring);
    TEST(weights_go_by_name);
    TEST(experts_stay);
    TEST(gaps_are_named);
    TEST(wrong_ones_are_named);
    TEST(devices_are_listed);
    return test_end();
}
