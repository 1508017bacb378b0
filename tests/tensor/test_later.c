/* test_later.c -- weights that are packed while the model is in use. Whoever makes a panel, a step
 * or the thread beside, and whoever meets one that another is just making: the bits are those of
 * weights packed at once. A model may be closed, or its opening run out of memory, at any time. */
#include "robust.h"

#include <sys/wait.h>

#include "base/rng.h"
#include "run/session/session.h"

enum { V = 72, PROMPT = 37, STEPS = 2, N_CTX = 128 };

static const struct tiny tinies[] = {
    {"llama", "q4_0", 64, 2, 32, 96, V, 0, 0, 2, 1},
    {"llama", "q8_0", 64, 2, 32, 96, V, 0, 1, 2, 1}, /* 1: one matrix is the embedding, too */
    {"qwen3", "q4_K", 256, 1, 8, 256, V, 0, 1, 1, 1},
    {"llama", "q6_K", 256, 1, 8, 256, V, 0, 1, 1, 1},
    {"qwen2", "f16", 48, 2, 16, 80, V, 0, 1, 2, 1},
    {"gemma3", "bf16", 48, 2, 16, 80, V, 0, 1, 2, 1},
    {"qwen3moe", "q5_1", 64, 2, 32, 96, V, 4, 0, 2, 1},
    {"qwen3moe", "mxfp4", 64, 2, 32, 96, V, 4, 0, 2, 1},
    {"deepseek2", "q8_0", 64, 2, 32, 96, V, 4, 0, 2, 1}, /* has matrices for each head */
    {"llama", "iq4_xs", 256, 1, 8, 256, V, 0, 1, 1, 1},
    {"llama", "iq2_xs", 256, 1, 8, 256, V, 0, 1, 1, 1},
    {"llama", "iq1_s", 256, 1, 8, 256, V, 0, 0, 1, 1},
    {"llama", "tq1_0", 256, 1, 8, 256, V, 0, 1, 1, 1},
    {"llama", "f32", 48, 2, 16, 80, V, 0, 0, 2, 1},
};
enum { N_TINIES = sizeof tinies / sizeof tinies[0] };

struct logits {
    float of[1 + STEPS][V];
};

static pith_model *open_model(const char *path, pith_weights weights, int32_t n_threads,
                              struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.weights = weights;
    mp.n_threads = n_threads;
    mp.n_batch = 64;
    return pith_model_open(path, &mp, err);
}

/* A prompt and some tokens of a session of its own. */
static pith_status ask(pith_model *m, struct logits *out, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t tokens[PROMPT + STEPS];
    sp.n_ctx = N_CTX;
    pith_session *s = pith_session_open(m, &sp, err);
    pith_status st = s ? PITH_OK : err->code;
    for (int i = 0; i < PROMPT + STEPS; i++)
        tokens[i] = (i * 7 + 3) % V;
    for (int i = 0; i <= STEPS && st == PITH_OK; i++) {
        st = pith_feed(s, 0, i ? tokens + PROMPT + i - 1 : tokens, i ? 1 : PROMPT, err);
        if (st == PITH_OK)
            memcpy(out->of[i], pith_logits(s, 0), sizeof out->of[i]);
    }
    pith_session_close(s);
    return st;
}

static void check_logits(const char *what, pith_model *m, const struct logits *want)
{
    struct pith_error err = {PITH_OK, ""};
    struct logits got;
    CHECK_MSG(ask(m, &got, &err) == PITH_OK, "%s: %s", what, err.msg);
    CHECK_MSG(!memcmp(&got, want, sizeof got), "%s: other logits", what);
}

/* Writes a model, once; the logits of its weights packed at once. NULL after a failed check. */
static const char *prepare(const struct tiny *t, struct logits *want)
{
    static struct {
        char path[256];
        struct logits want;
    } made[N_TINIES];
    struct pith_error err = {PITH_OK, ""};
    int i = (int)(t - tinies);
    if (!*made[i].path) {
        const char *path = tiny_write(t, 11);
        pith_model *m = path ? open_model(path, PITH_WEIGHTS_PACKED, 2, &err) : NULL;
        int ok = m && ask(m, &made[i].want, &err) == PITH_OK;
        CHECK_MSG(ok, "%s: %s", tiny_name(t), err.msg);
        pith_model_close(m);
        if (!ok)
            return NULL;
        snprintf(made[i].path, sizeof made[i].path, "%s", path);
    }
    *want = made[i].want;
    return made[i].path;
}

/* ---------------------------------------------------------------- what is there */

/* What is done to each weight that is packed later, and added up. */
typedef int64_t (*look)(const struct tensor *t, const struct placement *at, void *ctx);

static int64_t each_pending(const pith_model *model, look fn, void *ctx)
{
    const struct pith_model *m = model;
    int64_t n = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++)
            if (m->tensors[i]->at[k].pending)
                n += fn(m->tensors[i], &m->tensors[i]->at[k], ctx);
    return n;
}

static int64_t count_all(const struct tensor *t, const struct placement *at, void *ctx)
{
    (void)t, (void)ctx;
    return at->pending->n;
}

static int64_t count_missing(const struct tensor *t, const struct placement *at, void *ctx)
{
    int64_t n = 0;
    (void)t, (void)ctx;
    for (int64_t i = 0; i < at->pending->n; i++)
        n += !pending_there(at->pending, i);
    CHECK(atomic_load(&at->pending->left) == n || n == 0);
    return n;
}

/* What is still missing of a model whose thread runs: its count and states change in turn. */
static int64_t count_left(const struct tensor *t, const struct placement *at, void *ctx)
{
    (void)t, (void)ctx;
    return atomic_load(&at->pending->left);
}

/* Forgets panels of a model whose thread has ended: every one; or those that `ctx`'s numbers
 * choose, some of them as ones that another is just making. What was there is damaged. */
static int64_t forget(const struct tensor *t, const struct placement *at, void *ctx)
{
    struct pending *p = at->pending;
    struct rng *random = ctx;
    uint64_t bytes = dtype_panel_bytes(t->type, tensor_k(t));
    uint8_t *data = (uint8_t *)buffer_map(at->buffer) + at->offset;
    for (int64_t i = 0; i < p->n; i++) {
        int state = random ? (int)(rng_below(random, 3)) : PANEL_MISSING;
        if (state == PANEL_THERE || !pending_there(p, i))
            continue;
        memset(data + (uint64_t)i * bytes, 0xa5, bytes);
        atomic_fetch_add(&p->left, 1);
        atomic_fetch_add(&p->stretch[i / p->per], 1);
        atomic_store(&p->state[i], (uint8_t)state);
        atomic_store(&p->all, 0);
    }
    return 0;
}

/* Its thread has been through. */
static void let_end(pith_model *model)
{
    struct pith_model *m = model;
    CHECK(m->later.process == getpid());
    pthread_join(m->later.thread, NULL);
    m->later.process = 0;
}

static pith_model *open_later(const char *path, int32_t n_threads)
{
    struct pith_error err = {PITH_OK, ""};
    pith_model *m = open_model(path, PITH_WEIGHTS_LATER, n_threads, &err);
    CHECK_MSG(m, "%s", err.msg);
    CHECK(!m || each_pending(m, count_all, NULL) > 0);
    return m;
}

/* ---------------------------------------------------------------- the same bits */

static void beside_the_thread(void)
{
    for (int i = 0; i < N_TINIES; i++) {
        struct logits want;
        const char *path = prepare(&tinies[i], &want);
        pith_model *m = path ? open_later(path, 2) : NULL;
        REQUIRE(m, "%s", tiny_name(&tinies[i]));
        check_logits(tiny_name(&tinies[i]), m, &want);
        let_end(m);
        CHECK(each_pending(m, count_missing, NULL) == 0);
        check_logits(tiny_name(&tinies[i]), m, &want);
        pith_model_close(m);
    }
    check_nothing_held("models packed later");
}

/* All panels that a step multiplies with are there behind it; without experts these are all. */
static void made_by_steps(void)
{
    for (int i = 0; i < N_TINIES; i++)
        for (int32_t n_threads = 1; n_threads <= 2; n_threads++) {
            struct logits want;
            const char *path = prepare(&tinies[i], &want);
            pith_model *m = path ? open_later(path, n_threads) : NULL;
            REQUIRE(m, "%s", tiny_name(&tinies[i]));
            let_end(m);
            each_pending(m, forget, NULL);
            CHECK(each_pending(m, count_missing, NULL) == each_pending(m, count_all, NULL));
            check_logits(tiny_name(&tinies[i]), m, &want);
            int64_t missing = each_pending(m, count_missing, NULL);
            CHECK_MSG(missing == 0 || (tinies[i].n_expert &&
                                       missing < each_pending(m, count_all, NULL)),
                      "%s: %" PRId64 " panels are missing", tiny_name(&tinies[i]), missing);
            pith_model_close(m);
        }
}

/* Panels that another is at, and stays at. */
static void taken_by_another(void)
{
    for (int i = 0; i < N_TINIES; i++) {
        struct logits want;
        struct rng random;
        const char *path = prepare(&tinies[i], &want);
        pith_model *m = path ? open_later(path, 2) : NULL;
        REQUIRE(m, "%s", tiny_name(&tinies[i]));
        let_end(m);
        for (int k = 0; k < 3 * test_scale(); k++) {
            rng_init(&random, (uint64_t)k);
            each_pending(m, forget, &random);
            check_logits(tiny_name(&tinies[i]), m, &want);
        }
        CHECK(each_pending(m, count_missing, NULL) > 0);
        pith_model_close(m);
    }
}

struct asker {
    pith_model *m;
    const struct logits *want;
    pthread_t thread;
    int ok;
};

static void *asks(void *arg)
{
    struct asker *a = arg;
    struct pith_error err;
    struct logits got;
    a->ok = ask(a->m, &got, &err) == PITH_OK && !memcmp(&got, a->want, sizeof got);
    return NULL;
}

/* Sessions of one model, each on a thread, beside the one that packs. */
static void sessions_at_once(void)
{
    enum { ASKERS = 3 };
    for (long k = 0; k < 2 * test_scale(); k++)
        for (int i = 0; i < N_TINIES; i += 3) {
            struct logits want;
            const char *path = prepare(&tinies[i], &want);
            pith_model *m = path ? open_later(path, 2) : NULL;
            struct asker a[ASKERS];
            REQUIRE(m, "%s", tiny_name(&tinies[i]));
            if (k % 2) { /* they alone */
                let_end(m);
                each_pending(m, forget, NULL);
            }
            for (int j = 0; j < ASKERS; j++) {
                a[j] = (struct asker){.m = m, .want = &want};
                REQUIRE(!pthread_create(&a[j].thread, NULL, asks, &a[j]), "no thread");
            }
            for (int j = 0; j < ASKERS; j++) {
                pthread_join(a[j].thread, NULL);
                CHECK_MSG(a[j].ok, "%s: session %d", tiny_name(&tinies[i]), j);
            }
            pith_model_close(m);
        }
}

/* ---------------------------------------------------------------- ends */

static const struct tiny wide = {"llama", "q4_1", 512, 4, 128, 2048, 300, 0, 0, 2, 1};

/* At once, and after so many turns of the processor. */
static void closed_while_packing(void)
{
    const char *path = tiny_write(&wide, 3);
    int unfinished = 0;
    REQUIRE(path, "no model");
    for (int i = 0; i < 10 + 10 * test_scale(); i++) {
        pith_model *m = open_later(path, 1);
        REQUIRE(m, "start %d", i);
        for (int k = 0; k < i % 10; k++)
            usleep(100);
        unfinished += each_pending(m, count_left, NULL) > 0;
        pith_model_close(m);
        check_nothing_held("a model closed while it packs");
    }
    CHECK_MSG(unfinished > 0, "all were packed before they were closed");
}

/* A fork has the model without the thread. */
static void closed_in_a_fork(void)
{
    const char *path = tiny_write(&wide, 3);
    pith_model *m = path ? open_later(path, 1) : NULL;
    int status = -1;
    REQUIRE(m, "no model");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        pith_model_close(m);
        _exit(0);
    }
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid, "no fork");
    CHECK_MSG(status == 0, "the child ended with %d", status);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- opening */

static void memory_gives_out(void)
{
    struct logits want;
    const char *path = prepare(&tinies[1], &want);
    REQUIRE(path, "no model");
    for (long n = 0, refused = 1; refused; n++) {
        struct pith_error err = {PITH_OK, ""};
        struct logits got;
        hook_refuse(n, 0);
        pith_model *m = open_model(path, PITH_WEIGHTS_LATER, 2, &err);
        pith_status st = m ? ask(m, &got, &err) : err.code;
        refused = hook_grant();
        CHECK_MSG(st == PITH_OK ? !memcmp(&got, &want, sizeof got)
                                : refused && st == PITH_NOMEM && err.msg[0],
                  "allocation %ld: status %d, \"%s\"", n, (int)st, err.msg);
        if (m)
            check_logits("after a refused allocation", m, &want);
        pith_model_close(m);
        check_nothing_held("a refused allocation");
    }
}

static int says_no(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    (void)ctx, (void)stage, (void)fraction, (void)bytes;
    return 0;
}

static void opening_is_cancelled(void)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    const char *path = tiny_write(&wide, 3);
    mp.weights = PITH_WEIGHTS_LATER;
    mp.progress = says_no;
    REQUIRE(path, "no model");
    CHECK(!pith_model_open(path, &mp, &err) && err.code == PITH_CANCELLED);
    check_nothing_held("a cancelled opening");
}

/* Who wants all of the file looked at, or a copy kept, has it packed at once; small models are, and
 * large ones are not, unless somebody says so. */
static void when(void)
{
    static const struct tiny small = {"llama", "q5_0", 64, 2, 32, 96, V, 0, 0, 1, 1},
                             large = {"qwen2", "f32", 1024, 8, 128, 4096, 300, 0, 0, 1, 1};
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_info info = {.size = sizeof info};
    struct {
        const struct tiny *t;
        pith_weights weights;
        int check, copy, later;
    } cases[] = {
        {&small, PITH_WEIGHTS_LATER, 0, 0, 1},  {&small, PITH_WEIGHTS_LATER, 1, 0, 0},
        {&small, PITH_WEIGHTS_LATER, 0, 1, 0},  {&small, PITH_WEIGHTS_AUTO, 0, 0, 0},
        {&large, PITH_WEIGHTS_AUTO, 0, 0, 1},   {&large, PITH_WEIGHTS_PACKED, 0, 0, 0},
        {&large, PITH_WEIGHTS_MAPPED, 0, 0, 0}, {&small, PITH_WEIGHTS_LATER, 0, 2, 1},
        {&large, PITH_WEIGHTS_AUTO, 0, 2, 1},
    }; /* copy 2: into a folder that it does not fit into, which is said */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        const char *path = tiny_write(cases[i].t, 3);
        mp.weights = cases[i].weights;
        mp.check_tensors = cases[i].check;
        mp.cache_dir = cases[i].copy ? tmp_dir : NULL;
        mp.cache_limit = cases[i].copy == 2 ? 1 : 0;
        mp.n_threads = 2;
        pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
        REQUIRE(m, "case %d: %s", (int)i, err.msg);
        CHECK_MSG((each_pending(m, count_all, NULL) > 0) == cases[i].later, "case %d", (int)i);
        pith_model_get_info(m, &info, NULL);
        CHECK_MSG((info.note && strstr(info.note, "not kept")) == (cases[i].copy == 2),
                  "case %d: note \"%s\"", (int)i, info.note ? info.note : "");
        pith_model_close(m);
    }
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.weights = (pith_weights)(PITH_WEIGHTS_LATER + 1);
    CHECK(!pith_model_open(tmp_path("absent"), &mp, &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "later"));
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(beside_the_thread);
    TEST(made_by_steps);
    TEST(taken_by_another);
    TEST(sessions_at_once);
    TEST(closed_while_packing);
    TEST(closed_in_a_fork);
    TEST(memory_gives_out);
    TEST(opening_is_cancelled);
    TEST(when);
    return test_end();
}
