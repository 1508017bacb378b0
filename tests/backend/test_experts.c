/* test_experts.c -- experts in pages of a file, asked for before they are read: the same bits with
 * it and without; what is asked for is what a layer has chosen and what the next router would
 * choose of its input; whatever the system refuses, or how late the thread is, nothing waits and
 * nothing breaks. */
#include "robust.h"

#include <dirent.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/machine/ahead.h"
#include "run/session/session.h"

/* Experts of several pages each. */
static const struct tiny model = {"qwen3moe", "q8_0", 128, 2, 64, 160, 96, 12, 0, 4, 1};
static const struct tiny bigger = {"qwen3moe", "q4_0", 256, 2, 128, 96, 96, 6, 1, 3, 1};
enum { PROMPT = 20, STEPS = 12, MOST_ASKED = 1 << 16 };

/* ---------------------------------------------------------------- the system's calls */

static struct {
    uintptr_t at[MOST_ASKED];
    int n, singly;
    atomic_int holds;
    sem_t held, go;
} asked;

static int note(void *p, size_t n, int advice)
{
    (void)n;
    if (advice != MADV_WILLNEED)
        asked.singly++;
    else if (asked.n < MOST_ASKED)
        asked.at[asked.n++] = (uintptr_t)p;
    return 0;
}

static int nothing_there(void *p, size_t n, unsigned char *each)
{
    (void)p;
    memset(each, 0, (n + 4095) / 4096);
    return 0;
}

static int all_there(void *p, size_t n, unsigned char *each)
{
    (void)p;
    memset(each, 1, (n + 4095) / 4096);
    return 0;
}

static int refuse(void *p, size_t n, int advice)
{
    (void)p, (void)n, (void)advice;
    errno = EIO;
    return -1;
}

static int refuse_to_tell(void *p, size_t n, unsigned char *each)
{
    (void)p, (void)n, (void)each;
    errno = EFAULT;
    return -1;
}

/* The thread stays in its first call until it is let go. */
static int hold(void *p, size_t n, int advice)
{
    (void)p, (void)n;
    if (advice == MADV_WILLNEED && atomic_exchange(&asked.holds, 0)) {
        sem_post(&asked.held);
        sem_wait(&asked.go);
    }
    return 0;
}

/* ---------------------------------------------------------------- a run */

struct run_of {
    struct pith_model_params params;
    pith_status st;
    struct pith_read_ahead ahead;
    float logits[(STEPS + 1) * 96];
};

static struct run_of mapped(void)
{
    struct run_of r = {.params = PITH_MODEL_PARAMS_INIT};
    r.params.weights = PITH_WEIGHTS_MAPPED;
    r.params.n_threads = 2;
    return r;
}

static int32_t token_at(int i)
{
    return (i * 37 + 11) % 90;
}

static void go(struct run_of *r, const char *path)
{
    struct pith_error err;
    int32_t tokens[PROMPT];
    r->ahead = (struct pith_read_ahead)PITH_READ_AHEAD_INIT;
    pith_model *m = pith_model_open(path, &r->params, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    r->st = s ? PITH_OK : err.code;
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = token_at(i);
    for (int i = 0; i <= STEPS && r->st == PITH_OK; i++) {
        int32_t next = token_at(PROMPT + i);
        r->st = pith_feed(s, 0, i ? &next : tokens, i ? 1 : PROMPT, &err);
        if (r->st == PITH_OK)
            memcpy(r->logits + i * 96, pith_logits(s, 0), 96 * sizeof(float));
    }
    if (r->st == PITH_OK)
        r->st = pith_session_read_ahead(s, &r->ahead, &err);
    CHECK_MSG(r->st == PITH_OK, "%s", err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

static int same(const struct run_of *a, const struct run_of *b)
{
    return !memcmp(a->logits, b->logits, sizeof a->logits);
}

/* ---------------------------------------------------------------- bits */

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void same_bits_of(const struct tiny *t)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(t, 7);
    struct run_of packed = mapped(), plain = mapped();
    REQUIRE(path, "no model");
    packed.params.weights = PITH_WEIGHTS_PACKED;
    go(&packed, path);
    CHECK(packed.ahead.layers == 0);
    plain.params.no_read_ahead = 1;
    int tasks = entries("/proc/self/task"), files = entries("/proc/self/fd");
    go(&plain, path);
    CHECK(plain.ahead.layers == 0 && same(&plain, &packed));
    for (int way = 0; way < 6; way++) {
        struct run_of r = mapped();
        r.params.observe = way == 1;
        r.params.reference = way == 2;
        ahead_calls.at_once = way == 3;
        ahead_calls.resident = way == 4 ? refuse_to_tell : way ? nothing_there : before.resident;
        ahead_calls.advise = way == 4 ? refuse : before.advise;
        r.params.n_batch = way == 5 ? 7 : 0;
        go(&r, path);
        CHECK_MSG(same(&r, &packed), "%s, way %d: other bits", t->arch, way);
        CHECK_MSG(r.ahead.layers == t->n_layer && (way != 3 || r.ahead.asked_bytes > 0),
                  "%s, way %d: %lld layers, %llu bytes", t->arch, way, (long long)r.ahead.layers,
                  (unsigned long long)r.ahead.asked_bytes);
        ahead_calls = before;
    }
    CHECK_MSG(entries("/proc/self/task") == tasks, "a thread is left");
    CHECK_MSG(entries("/proc/self/fd") == files, "a file is left");
}

static void same_bits(void)
{
    same_bits_of(&model);
    same_bits_of(&bigger);
}

/* The kept copy of packed weights lies in a file as well. */
static void from_a_copy(void)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(&model, 7);
    struct run_of first = mapped(), again;
    REQUIRE(path, "no model");
    first.params.weights = PITH_WEIGHTS_AUTO;
    first.params.cache_dir = tmp_dir;
    again = first;
    go(&first, path);
    CHECK(first.ahead.layers == 0);
    ahead_calls.resident = nothing_there;
    ahead_calls.at_once = 1;
    go(&again, path);
    ahead_calls = before;
    CHECK(again.ahead.layers == model.n_layer && again.ahead.asked > 0 && same(&first, &again));
    CHECK(again.ahead.guessed > 0);
}

static void only_experts_in_files(void)
{
    struct tiny dense = model;
    dense.arch = "llama";
    dense.n_expert = 0;
    const char *path = tiny_write(&dense, 3);
    struct run_of r = mapped();
    REQUIRE(path, "no model");
    go(&r, path);
    CHECK(r.ahead.layers == 0 && r.ahead.looked == 0);
}

/* ---------------------------------------------------------------- what is asked for */

enum { LAYERS = 4, MOST_E = 256, X = 12, USED = 2 };

/* What a step does, as an observer sees it: what routers were given and what they made. */
struct watch {
    float in[LAYERS][MOST_E], logits[LAYERS][X];
    int32_t width;
    int n_in, n_out;
};

/* "blk.2.ffn_norm" ends so. */
static int is_op(const char *name, const char *what)
{
    size_t n = strlen(name), m = strlen(what);
    return n >= m && !strcmp(name + n - m, what);
}

static void watch(void *ctx, const char *name, int64_t rows, int64_t cols, const float *data)
{
    struct watch *w = ctx;
    if (rows == 1 && cols == w->width && is_op(name, "ffn_norm") && w->n_in < LAYERS)
        memcpy(w->in[w->n_in++], data, (size_t)cols * sizeof *data);
    if (rows == 1 && cols == X && is_op(name, "ffn_router") && w->n_out < LAYERS)
        memcpy(w->logits[w->n_out++], data, sizeof w->logits[0]);
}

static const struct tensor *weight(const pith_session *s, int layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    for (int32_t i = 0; i < s->model->n_tensors; i++)
        if (!strcmp(s->model->tensors[i]->name, full))
            return s->model->tensors[i];
    return NULL;
}

/* A row as products with weights of a type read it. */
static void as_read(enum dtype type, const float *x, int64_t n, float *out)
{
    int8_t q[MOST_E];
    float d[MOST_E / 32 + 2];
    int32_t s32[MOST_E / 32];
    int16_t s16[MOST_E / 16];
    uint16_t h[MOST_E];
    switch (dtypes[type].act) {
    case ACT_A32:
        act_quant_a32(x, n, q, d, s32, 1, 0);
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)q[i] * d[i / 32];
        break;
    case ACT_A256:
        act_quant_a256(x, n, q, d, s16, 1, 0);
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)q[i] * d[i / 128];
        break;
    case ACT_BF16:
        act_to_bf16(x, n, h);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)h[i] << 16;
            memcpy(out + i, &bits, sizeof bits);
        }
        break;
    default:
        memcpy(out, x, (size_t)n * sizeof *out);
    }
}

/* The USED greatest, ties to the lower. */
static void greatest(const float *v, int take[X])
{
    memset(take, 0, X * sizeof *take);
    for (int k = 0; k < USED; k++) {
        int best = -1;
        for (int i = 0; i < X; i++)
            if (!take[i] && (best < 0 || v[i] > v[best]))
                best = i;
        take[best] = 1;
    }
}

/* The begins of all calls that ask for an expert of a layer. */
static int expect(const pith_session *s, int layer, const int take[X], uintptr_t *at)
{
    static const char *const stacks[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    int n = 0;
    for (int k = 0; k < 3; k++) {
        const struct tensor *t = weight(s, layer, stacks[k]);
        if (!t) {
            CHECK_MSG(0, "no %s", stacks[k]);
            return 0;
        }
        uint64_t each = t->from->bytes / X;
        for (int i = 0; i < X; i++) {
            uintptr_t from = (uintptr_t)t->from->data + (uint64_t)i * each;
            for (uintptr_t a = from & ~(page - 1); take[i] && a < from + each; a += 128 << 10)
                at[n++] = a;
        }
    }
    return n;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

struct lately {
    unsigned n, right;
};

/* Compares what the last step asked for with what it should have. */
static void compare(const pith_session *s, const struct watch *w, struct lately *lately,
                    uint64_t *guessed, uint64_t *right, int step)
{
    static uintptr_t want[MOST_ASKED];
    int n = 0, guess[X] = {0}, n_guess = 0;
    CHECK_MSG(w->n_in == LAYERS && w->n_out == LAYERS, "%d inputs and %d results of routers",
              w->n_in, w->n_out);
    for (int l = 0; l < LAYERS; l++) {
        int take[X];
        greatest(w->logits[l], take);
        n += expect(s, l, take, want + n);
        for (int i = 0, hit = 0; l && i < X; i++) {
            hit = guess[i] && take[i];
            *right += (uint64_t)hit;
            lately->right += (unsigned)hit;
        }
        *guessed += (uint64_t)n_guess;
        lately->n += (unsigned)n_guess;
        if (l == LAYERS - 1)
            break;
        const struct tensor *r = weight(s, l + 1, "ffn_gate_inp");
        float v[X], in[MOST_E], row[MOST_E];
        as_read(r->type, w->in[l], w->width, in);
        for (int i = 0; i < X; i++) {
            const uint8_t *rows = r->from->data;
            double sum = 0;
            dtypes[r->type].dequant(rows + (uint64_t)i * dtype_row_bytes(r->type, w->width), row,
                                    w->width);
            for (int k = 0; k < w->width; k++)
                sum += (double)row[k] * (double)in[k];
            v[i] = (float)sum;
        }
        greatest(v, guess);
        n_guess = USED;
        if (16 * lately->right >= 12 * lately->n)
            n += expect(s, l + 1, guess, want + n);
    }
    qsort(want, (size_t)n, sizeof *want, by_address);
    qsort(asked.at, (size_t)asked.n, sizeof *asked.at, by_address);
    CHECK_MSG(n == asked.n && !memcmp(want, asked.at, (size_t)n * sizeof *want),
              "%s, step %d: %d calls, wanted %d, or others",
              dtypes[weight(s, 0, "ffn_gate_inp")->type].name, step, asked.n, n);
}

static void right_ones_of(const struct tiny *t)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(t, 7);
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    struct lately lately = {0, 0};
    uint64_t guessed = 0, right = 0, calls = 0;
    REQUIRE(path, "no model");
    p.weights = PITH_WEIGHTS_MAPPED;
    p.observe = 1;
    asked.singly = 0;
    ahead_calls = (struct ahead_calls){note, nothing_there, 1};
    pith_model *m = pith_model_open(path, &p, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    CHECK_MSG(!s || asked.singly == 3 * LAYERS, "%d stacks are read singly", asked.singly);
    for (int i = 0; s && i < 40 * (int)test_scale() && i < 120; i++) {
        struct watch w = {.width = t->n_embd};
        int32_t token = token_at(i);
        asked.n = 0;
        if (pith_session_observe(s, watch, &w, &err) != PITH_OK ||
            pith_feed(s, 0, &token, 1, &err) != PITH_OK) {
            CHECK_MSG(0, "%s", err.msg);
            break;
        }
        calls += (uint64_t)asked.n;
        compare(s, &w, &lately, &guessed, &right, i);
    }
    struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
    CHECK(pith_session_read_ahead(s, &a, &err) == PITH_OK);
    CHECK_MSG(a.guessed == guessed && a.right == right && guessed > 0,
              "%llu of %llu guesses are right, wanted %llu of %llu", (unsigned long long)a.right,
              (unsigned long long)a.guessed, (unsigned long long)right,
              (unsigned long long)guessed);
    CHECK(a.late == 0 && a.asked == a.looked && calls >= a.asked);
    char report[8192];
    pith_report(s, 0, report, sizeof report);
    CHECK(strstr(report, "experts in the file: 4 layers"));
    pith_report(s, 1, report, sizeof report);
    CHECK(strstr(report, "\"read_ahead\": {\"layers\": 4"));
    pith_session_close(s);
    pith_model_close(m);
    ahead_calls = before;
}

/* With routers whose input is read in each of the formats. */
static void asks_for_the_right_ones(void)
{
    static const char *const types[] = {"q8_0", "f16", "bf16", "q4_K"};
    for (int i = 0; i < 4; i++) {
        struct tiny t = model;
        t.type = types[i];
        if (i == 3)
            t.n_embd = t.n_ff = MOST_E;
        right_ones_of(&t);
    }
}

/* ---------------------------------------------------------------- nothing waits */

/* The thread stands still: steps go on without it, and that is counted. */
static void nobody_waits_for_it(void)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(&model, 7);
    struct run_of plain = mapped();
    struct pith_error err;
    float logits[96];
    REQUIRE(path, "no model");
    plain.params.no_read_ahead = 1;
    go(&plain, path);
    sem_init(&asked.held, 0, 0);
    sem_init(&asked.go, 0, 0);
    asked.holds = 1;
    ahead_calls = (struct ahead_calls){hold, nothing_there, 0};
    struct run_of r = mapped();
    pith_model *m = pith_model_open(path, &r.params, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = token_at(i);
    CHECK(pith_feed(s, 0, tokens, PROMPT, &err) == PITH_OK);
    sem_wait(&asked.held);
    for (int i = 1; i <= STEPS; i++) {
        int32_t next = token_at(PROMPT + i);
        CHECK(pith_feed(s, 0, &next, 1, &err) == PITH_OK);
    }
    memcpy(logits, pith_logits(s, 0), sizeof logits);
    struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
    CHECK(pith_session_read_ahead(s, &a, &err) == PITH_OK);
    CHECK_MSG(a.late >= (uint64_t)(STEPS * model.n_layer - AHEAD_SLOTS), "%llu were late",
              (unsigned long long)a.late);
    CHECK(!memcmp(logits, plain.logits + STEPS * 96, sizeof logits));
    sem_post(&asked.go);
    pith_session_close(s);
    pith_model_close(m);
    ahead_calls = before;
}

/* Where all is in memory hardly anybody looks; where something is not, all do again. */
static void rests_while_all_is_there(void)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(&model, 7);
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    uint64_t looked[4] = {0};
    REQUIRE(path, "no model");
    p.weights = PITH_WEIGHTS_MAPPED;
    p.n_threads = 1;
    ahead_calls = (struct ahead_calls){note, all_there, 1};
    asked.n = 0;
    pith_model *m = pith_model_open(path, &p, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    for (int i = 0; i < 340; i++) {
        struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
        int32_t token = token_at(i);
        if (i == 320)
            ahead_calls.resident = nothing_there;
        if (i % 100 == 0)
            CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        CHECK(pith_feed(s, 0, &token, 1, &err) == PITH_OK);
        CHECK(pith_session_read_ahead(s, &a, &err) == PITH_OK);
        if (i < 320)
            CHECK(a.asked == 0 && asked.n == 0);
        if (i == 19 || i == 299 || i == 319 || i == 339)
            looked[i == 19 ? 0 : i == 299 ? 1 : i == 319 ? 2 : 3] = a.looked;
    }
    /* 20 steps: at first, at rest, awake again. */
    uint64_t first = looked[0], rest = looked[2] - looked[1], again = looked[3] - looked[2];
    CHECK_MSG(rest * 8 < first && again * 2 > first, "%llu, %llu, %llu", (unsigned long long)first,
              (unsigned long long)rest, (unsigned long long)again);
    pith_session_close(s);
    pith_model_close(m);
    ahead_calls = before;
}

/* Each block and commit of a session in turn cannot be had: an error, or the same bits. */
static void any_block_may_fail(void)
{
    const struct ahead_calls before = ahead_calls;
    const char *path = tiny_write(&model, 7);
    struct run_of want = mapped();
    struct pith_error err;
    long blocks = hook.blocks;
    REQUIRE(path, "no model");
    go(&want, path);
    ahead_calls.at_once = 1;
    ahead_calls.resident = nothing_there;
    for (long n = 0, refused = 1; refused && n < 2000; n++) {
        struct run_of r = mapped();
        pith_model *m = pith_model_open(path, &r.params, &err);
        REQUIRE(m, "%s", err.msg);
        hook_refuse(n, 0);
        pith_session *s = pith_session_open(m, NULL, &err);
        refused = hook_grant();
        CHECK_MSG(s || (refused && err.code == PITH_NOMEM), "%s", err.msg);
        if (s) {
            int32_t tokens[PROMPT];
            for (int i = 0; i < PROMPT; i++)
                tokens[i] = token_at(i);
            CHECK(pith_feed(s, 0, tokens, PROMPT, &err) == PITH_OK &&
                  !memcmp(pith_logits(s, 0), want.logits, 96 * sizeof(float)));
        }
        pith_session_close(s);
        pith_model_close(m);
        CHECK_MSG(hook.blocks == blocks, "%ld blocks are held", (long)hook.blocks - blocks);
    }
    ahead_calls = before;
}

static void refuses(void)
{
    struct pith_error err;
    struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
    CHECK(pith_session_read_ahead(NULL, &a, &err) == PITH_RANGE && strstr(err.msg, "s is NULL"));
    const char *path = tiny_write(&model, 7);
    pith_model *m = path ? pith_model_open(path, NULL, &err) : NULL;
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    CHECK(pith_session_read_ahead(s, NULL, &err) == PITH_RANGE);
    a.size = 3;
    CHECK(pith_session_read_ahead(s, &a, &err) == PITH_RANGE && strstr(err.msg, "size is 3"));
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(same_bits);
    TEST(from_a_copy);
    TEST(only_experts_in_files);
    TEST(asks_for_the_right_ones);
    TEST(nobody_waits_for_it);
    TEST(rests_while_all_is_there);
    TEST(any_block_may_fail);
    TEST(refuses);
    check_nothing_held("at the end");
    return test_end();
}
