/* test_far.c -- models on devices whose memory the host cannot touch (backend/far): what fails
 * there fails a call and nothing else. For every n the n-th call of a device fails through opening,
 * steps, edits and snapshots (in make test of one family, of others for some n); devices run out of
 * memory, or are lost. That the bits are those of the CPU test_bits.c shows. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "backend/far/far.h"
#include "encoder.h"
#include "model_file.h"
#include "run/session/session.h"

enum { N_CTX = 256, PROMPT = 70, STEPS = 3, V = 40, SAVE_CAP = 4 << 20 };

/* A script: each part is done once, and again when it failed. */
enum part { OPEN, SESSION, FEED, STEP_1, STEP_2, EDIT, STEP_3, SAVE, LOAD, STEP_4, PARTS };
static const char *const part_names[PARTS] = {"open", "session", "feed", "step 1", "step 2",
                                              "edit", "step 3",  "save", "load",   "step 4"};

static char path[MODEL_PATH];
static uint8_t saved[SAVE_CAP];

struct play {
    const char *layers;
    int recurrent;
    pith_model *m;
    pith_session *s;
    size_t n_saved;
    float got[PARTS][V];
};

static void set_devices(const char *n, const char *layers)
{
    if (n)
        setenv("PITH_FAR_DEVICES", n, 1);
    else
        unsetenv("PITH_FAR_DEVICES");
    if (layers)
        setenv("PITH_LAYER_DEVICES", layers, 1);
    else
        unsetenv("PITH_LAYER_DEVICES");
}

static pith_model *open_model(const char *layers, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.n_batch = 32;
    set_devices(layers ? "2" : NULL, layers);
    pith_model *m = pith_model_open(path, &mp, err);
    set_devices(NULL, NULL);
    return m;
}

static pith_session *open_session(pith_model *m, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 2;
    sp.store_bytes = 1 << 20;
    return pith_session_open(m, &sp, err);
}

static void make_model(const char *arch)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_layer = 3;
    p.n_embd = 32;
    p.tied = 1;
    model_file(path, p);
}

static pith_status feed(struct play *p, int32_t seq, int32_t from, int32_t n, enum part part,
                        struct pith_error *err)
{
    int32_t token[PROMPT];
    for (int32_t i = 0; i < n; i++)
        token[i] = (from + i) * 7 % V;
    pith_status st = pith_feed(p->s, seq, token, (size_t)n, err);
    if (st == PITH_OK)
        memcpy(p->got[part], pith_logits(p->s, pith_n_outputs(p->s) - 1), sizeof p->got[part]);
    return st;
}

/* One part. */
static pith_status play(struct play *p, enum part part, struct pith_error *err)
{
    error_clear(err);
    switch (part) {
    case OPEN:
        p->m = open_model(p->layers, err);
        return p->m ? PITH_OK : err->code;
    case SESSION:
        p->s = open_session(p->m, err);
        return p->s ? PITH_OK : err->code;
    case FEED:
        if (encoder_reads(p->s, 0, err) != PITH_OK)
            return err->code;
        return feed(p, 0, 0, PROMPT, part, err);
    case EDIT:
        if (p->recurrent)
            return pith_copy(p->s, 1, 0, 0, -1, err);
        if (pith_remove(p->s, 0, 10, 20, err) != PITH_OK)
            return err->code;
        return pith_copy(p->s, 1, 0, 0, -1, err);
    case SAVE:
        return pith_save_memory(p->s, 0, saved, sizeof saved, &p->n_saved, err);
    case LOAD:
        return pith_load_memory(p->s, 1, saved, p->n_saved, err);
    default:
        return feed(p, part == STEP_4 ? 1 : 0, 100 * (int32_t)part, part == STEP_2 ? 20 : 1, part,
                    err);
    }
}

static void close_all(struct play *p)
{
    pith_session_close(p->s);
    pith_model_close(p->m);
    p->s = NULL;
    p->m = NULL;
}

static void check_same(const struct play *a, const struct play *b, const char *what, uint64_t n)
{
    for (int part = 0; part < PARTS; part++)
        CHECK_MSG(!memcmp(a->got[part], b->got[part], sizeof a->got[part]),
                  "%s on %s, call %llu: other logits after %s", what, a->layers,
                  (unsigned long long)n, part_names[part]);
}

static void check_all_gone(const char *what, uint64_t n)
{
    CHECK_MSG(far_live() == 0, "%s, call %llu: %llu bytes of devices are still held", what,
              (unsigned long long)n, (unsigned long long)far_live());
    check_nothing_held(what);
}

/* The whole script without failures, on the CPU alone; and on far devices, how many calls those
 * get. */
static uint64_t play_through(struct play *p)
{
    struct pith_error err;
    far_plan(&(struct far_plan){.seed = 1});
    for (int part = 0; part < PARTS; part++)
        CHECK_MSG(play(p, (enum part)part, &err) == PITH_OK, "%s: %s", part_names[part], err.msg);
    uint64_t n = far_calls();
    close_all(p);
    return n;
}

/* Call n fails; what failed is done again, and goes on as if nothing had been. */
static void fail_once(const struct play *want, uint64_t n)
{
    static struct play p;
    struct pith_error err;
    int failed = 0;
    p = (struct play){.layers = want->layers, .recurrent = want->recurrent};
    far_plan(&(struct far_plan){.fail_at = n, .seed = n});
    for (int part = 0; part < PARTS && failed < 2; part++) {
        pith_status st = play(&p, (enum part)part, &err);
        if (st == PITH_OK)
            continue;
        CHECK_MSG(st == PITH_DEVICE || st == PITH_NOMEM, "call %llu, %s: status %d: %s",
                  (unsigned long long)n, part_names[part], (int)st, err.msg);
        CHECK_MSG(strstr(err.msg, "FAR") && strstr(err.msg, "as was asked for"),
                  "call %llu, %s: \"%s\" does not tell what failed", (unsigned long long)n,
                  part_names[part], err.msg);
        failed++;
        part--;
    }
    CHECK_MSG(failed == 1, "call %llu on %s: %d calls of the library failed", (unsigned long long)n,
              p.layers, failed);
    check_same(&p, want, "failing", n);
    close_all(&p);
    check_all_gone("failing", n);
}

/* At TEST_SCALE 100 each call fails; at 10 every `apart`-th, at 1 few. */
static void every_call_fails(const char *arch, int recurrent, uint64_t apart)
{
    static const char *const layers[] = {"1", "0,1", "1,2,0"}; /* the last: more often */
    static struct play cpu, far;
    make_model(arch);
    cpu = (struct play){.recurrent = recurrent};
    play_through(&cpu);
    for (int l = 0; l < 3; l++) {
        far = (struct play){.layers = layers[l], .recurrent = recurrent};
        uint64_t n = play_through(&far);
        CHECK_MSG(n > 20, "%s: %llu calls", layers[l], (unsigned long long)n);
        check_same(&far, &cpu, arch, 0);
        check_all_gone(arch, 0);
        uint64_t few = l < 2 || apart > 1 ? 61 : 23;
        for (uint64_t i = 1; i <= n; i += test_scale() >= 100  ? 1
                                          : test_scale() >= 10 ? apart
                                                               : few)
            fail_once(&far, i);
    }
}

/* In make test every one of them, through opening, steps, an edit and a snapshot. */
static void attention_fails(void)
{
    every_call_fails("gemma3", 0, 1);
}

/* Edits are copies, as of recurrent models: positions have to follow one another. */
static void encoder_fails(void)
{
    every_call_fails("t5", 1, 13);
}

static void recurrent_fails(void)
{
    every_call_fails("mamba2", 1, 7);
}

/* ---------------------------------------------------------------- large weights */

/* Weights that no kernel of the device can see at once: an embedding of 5 MiB, tied or not, stacks
 * of experts of 2 MiB, and a product of as many; whole, and half on the CPU. */
static void large_weights(void)
{
    static const char *const layers[] = {"1", "0,1"};
    enum { LARGE_V = 20480, ROWS = 6 };
    static float want[LARGE_V];
    for (int i = 0; i < 3; i++) {
        struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        const int32_t ids[ROWS] = {5, LARGE_V - 1, 16383, 16384, 4095, 4096};
        snprintf(path, sizeof path, "%s/large.gguf", tmp_dir);
        p.arch = i == 2 ? "deepseek2" : "llama";
        p.type = i == 1 ? "q8_0" : "f32";
        p.n_layer = 2;
        p.n_embd = 64;
        p.n_head = 2;
        p.n_vocab = LARGE_V;
        p.n_ctx = N_CTX;
        p.n_ff = i == 2 ? 2048 : 8192;
        p.n_expert = i == 2 ? 4 : 0;
        p.tied = i == 0;
        REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
        for (int l = -1; l < 2; l++) {
            pith_model *m = open_model(l < 0 ? NULL : layers[l], &err);
            pith_session *s = m ? open_session(m, &err) : NULL;
            REQUIRE(s && pith_feed(s, 0, ids, ROWS, &err) == PITH_OK, "model %d: %s", i, err.msg);
            const float *got = pith_logits(s, 0);
            if (l < 0)
                memcpy(want, got, sizeof want);
            else
                CHECK_MSG(!memcmp(want, got, sizeof want), "model %d on %s: other bits", i,
                          layers[l]);
            for (int32_t t = 0, cut = 0; l >= 0 && t < m->n_tensors; t++) {
                for (int32_t k = 0; k < m->tensors[t]->n_at; k++)
                    cut += m->tensors[t]->at[k].part_rows > 0;
                CHECK_MSG(t < m->n_tensors - 1 || cut > (l == 0 && i != 1), "model %d: %d are cut",
                          i, cut);
            }
            pith_session_close(s);
            pith_model_close(m);
        }
        unlink(path);
    }
}

/* ---------------------------------------------------------------- lost devices */

/* Lost with call n: everything from there on says so, closing works, and the model can be opened
 * again. */
static void lose(const struct play *want, uint64_t n)
{
    static struct play p;
    struct pith_error err;
    int part = 0;
    p = (struct play){.layers = want->layers};
    far_plan(&(struct far_plan){.vanish_at = n, .seed = n});
    while (part < PARTS && play(&p, (enum part)part, &err) == PITH_OK)
        part++;
    CHECK_MSG(part < PARTS && err.code == PITH_DEVICE, "call %llu: %s: status %d: %s",
              (unsigned long long)n, part_names[part < PARTS ? part : 0], (int)err.code, err.msg);
    if (p.s)
        for (int i = 0; i < 2; i++) {
            pith_status st = feed(&p, 0, 0, 1, FEED, &err);
            CHECK_MSG(st == PITH_DEVICE && strstr(err.msg, "open the model again"),
                      "call %llu: a step after the device was lost: %d, %s", (unsigned long long)n,
                      (int)st, st == PITH_OK ? "" : err.msg);
        }
    close_all(&p);
    check_all_gone("lost", n);
    p = (struct play){.layers = want->layers};
    play_through(&p);
    check_same(&p, want, "opened again", n);
}

static void devices_are_lost(void)
{
    static struct play far;
    make_model("gemma3");
    far = (struct play){.layers = "1,2,0"};
    uint64_t n = play_through(&far);
    for (uint64_t i = 1; i <= n; i += 1 + n / (test_scale() >= 10 ? 40 : 6))
        lose(&far, i);
}

/* ---------------------------------------------------------------- out of memory */

/* With so much memory and no more the model is opened or not, and so is the session; a full pool
 * refuses a step and nothing else. */
static void memory_runs_out(void)
{
    static struct play p;
    struct pith_error err;
    int opened = 0, refused = 0;
    make_model("gemma3");
    for (uint64_t mib = 0; mib <= 24; mib += test_scale() >= 10 ? 1 : 3) {
        p = (struct play){.layers = "1"};
        far_plan(&(struct far_plan){.bytes = (mib + 1) << 20, .seed = mib});
        for (int part = 0; part < PARTS; part++) {
            pith_status st = play(&p, (enum part)part, &err);
            if (st == PITH_OK)
                continue;
            refused++;
            CHECK_MSG(st == PITH_NOMEM && strstr(err.msg, "FAR"), "%d MiB, %s: %d, %s", (int)mib,
                      part_names[part], (int)st, err.msg);
            break;
        }
        opened += p.s != NULL;
        close_all(&p);
        check_all_gone("out of memory", mib);
    }
    CHECK_MSG(opened > 0 && refused > 0, "%d sessions were opened, %d refused", opened, refused);
}

/* A session that would not fit when it is full is refused when it is opened; where nobody says how
 * large, it is as large as the device has room for. */
static void promises_are_kept(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    make_model("llama");
    far_plan(&(struct far_plan){.bytes = (test_scale() >= 10 ? 12 : 5) << 20});
    pith_model *m = open_model("1", &err);
    REQUIRE(m, "%s", err.msg);
    sp.n_ctx = 1 << 20;
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(!s && err.code == PITH_NOMEM && strstr(err.msg, "FAR0") && strstr(err.msg, "--ctx"),
              "%s", s ? "opened" : err.msg);
    pith_session_close(s);
    error_clear(&err);
    sp.n_ctx = 0;
    sp.n_seq = 64;
    s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    int32_t token[32] = {0}, n = 0;
    for (int32_t q = 0; q < 64; q++) /* what it promises it has */
        while (pith_feed(s, q, token, 32, &err) == PITH_OK)
            n += 32;
    CHECK_MSG(err.code == PITH_RANGE || strstr(err.msg, "the cache is full"), "%d positions: %s", n,
              err.msg);
    CHECK(n >= N_CTX);
    pith_session_close(s);
    pith_model_close(m);
    check_all_gone("promises", 0);
}

/* ---------------------------------------------------------------- the device itself */

static struct device *open_device(void)
{
    struct device *d;
    struct pith_error err = {PITH_OK, ""};
    return backend_far.open(0, 0, &d, &err) == PITH_OK ? d : NULL;
}

/* Reading its memory kills whoever does it. */
static void the_host_cannot_look(void)
{
    struct buffer b;
    struct pith_error err = {PITH_OK, ""};
    int status;
    far_plan(&(struct far_plan){0});
    struct device *d = open_device();
    REQUIRE(d && buffer_alloc(d, 100, PITH_MEM_SCRATCH, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(buffer_map(&b) == NULL && atomic_load(&d->used[PITH_MEM_SCRATCH]) == 100);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile const uint8_t *)far_touch(&b));
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    buffer_release(&b);
    d->backend->close(d);
    check_all_gone("device", 0);
}

/* What was begun has not arrived before somebody waits, and need not arrive in order. */
static void copies_are_late(void)
{
    enum { N = 6 };
    struct buffer b;
    struct pith_error err = {PITH_OK, ""};
    struct event ev[N];
    int late = 0, crossed = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        uint32_t out[N] = {0}, in[N];
        far_plan(&(struct far_plan){.seed = seed});
        struct device *d = open_device();
        REQUIRE(d && buffer_alloc(d, 4096, PITH_MEM_SCRATCH, &b, &err) == PITH_OK, "%s", err.msg);
        for (uint32_t i = 0; i < N; i++) {
            in[i] = i + 1;
            struct place at = {&b, 256 * i};
            CHECK(buffer_write(at, &in[i], sizeof in[i], NULL, &err) == PITH_OK);
        }
        for (uint32_t i = 0; i < N; i++) {
            struct place at = {&b, 256 * i};
            CHECK(buffer_read(&out[i], at, sizeof out[i], &ev[i], &err) == PITH_OK);
        }
        for (int i = 0; i < N; i++)
            late += !out[i];
        CHECK(event_wait(&ev[2], &err) == PITH_OK && out[2] == 3);
        crossed += out[5] && !(out[0] && out[1] && out[3] && out[4]);
        for (int i = 0; i < N; i++)
            CHECK(event_wait(&ev[i], &err) == PITH_OK && out[i] == in[i]);
        buffer_release(&b);
        d->backend->close(d);
    }
    CHECK_MSG(late > 0 && crossed > 0, "%d were late, %d out of order", late, crossed);
}

/* Nobody has one who does not ask; who asks for nonsense is told. */
/* Threads that copy at once carry out each other's copies: a copy is over when it is done, not when
 * somebody has taken it up. */
enum { COPIERS = 4, COPIES = 3000, COPIED = 1 << 15 };
struct copier {
    struct buffer *b;
    uint64_t at;
    int wrong;
};

static void *copy_often(void *ctx)
{
    struct copier *c = ctx;
    struct pith_error err;
    uint8_t *in = malloc(COPIED), *out = malloc(COPIED);
    for (int i = 0; in && out && i < COPIES; i++) {
        struct place at = {c->b, c->at};
        struct event ev = {0};
        memset(in, i & 127, COPIED);
        c->wrong += buffer_write(at, in, COPIED, &ev, &err) != PITH_OK ||
                    event_wait(&ev, &err) != PITH_OK;
        memset(in, 255, COPIED); /* the source is the caller's again */
        c->wrong += buffer_read(out, at, COPIED, NULL, &err) != PITH_OK;
        for (int k = 0; k < COPIED; k += 64)
            c->wrong += out[k] != (i & 127);
    }
    free(in);
    free(out);
    return NULL;
}

static void copies_by_several_threads(void)
{
    struct pith_error err;
    struct buffer b = {0};
    struct device *d = open_device();
    pthread_t thread[COPIERS];
    struct copier c[COPIERS];
    REQUIRE(d && buffer_alloc(d, COPIERS * COPIED, PITH_MEM_SCRATCH, &b, &err) == PITH_OK, "%s",
            err.msg);
    for (int i = 0; i < COPIERS; i++) {
        c[i] = (struct copier){&b, (uint64_t)i * COPIED, 0};
        pthread_create(&thread[i], NULL, copy_often, &c[i]);
    }
    for (int i = 0; i < COPIERS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_MSG(!c[i].wrong, "thread %d: %d", i, c[i].wrong);
    }
    buffer_release(&b);
    d->backend->close(d);
}

static void only_on_request(void)
{
    static const char *const bad[] = {"3", "x", "0,", "-1", "1,,0"};
    struct pith_error err = {PITH_OK, ""};
    make_model("llama");
    set_devices(NULL, NULL);
    CHECK(backend_far.n_devices(NULL) == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pith_model *m = open_model(bad[i], &err);
        CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, bad[i]),
                  "PITH_LAYER_DEVICES=%s: %s", bad[i], m ? "opened" : err.msg);
        pith_model_close(m);
    }
}

/* While a piece of a weight is on its way to the device the thread has read the next one; and
 * each call that fails meanwhile is an error, after which nothing is held. */
static void loading_overlaps(void)
{
    struct pith_error err;
    static char large[MODEL_PATH];
    struct pith_model_params how = PITH_MODEL_PARAMS_INIT;
    uint64_t n = 1, calls;
    int failed = 0;
    model_file(large, wide_params(64, 4));
    far_plan(&(struct far_plan){0});
    pith_model *m = open_on_far(large, "1", &how, 16,
                                &err);
    REQUIRE(m, "%s", err.msg);
    calls = far_calls();
    CHECK_MSG(far_most_moves() == 2, "%d copies were under way together", far_most_moves());
    pith_model_close(m);
    for (; n <= calls; n++) {
        far_plan(&(struct far_plan){.fail_at = n, .seed = n});
        m = open_on_far(large, "1", &how, 16, &err);
        failed += !m;
        CHECK_MSG(m || err.code == PITH_DEVICE || err.code == PITH_NOMEM, "call %d: %s", (int)n,
                  err.msg);
        pith_model_close(m);
        check_all_gone("loading", n);
    }
    far_plan(&(struct far_plan){0});
    CHECK_MSG(failed + 2 > (int)calls, "%d of %d calls made it fail", failed, (int)calls);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(the_host_cannot_look);
    TEST(copies_are_late);
    TEST(copies_by_several_threads);
    TEST(loading_overlaps);
    TEST(only_on_request);
    TEST(large_weights);
    TEST(attention_fails);
    TEST(recurrent_fails);
    TEST(encoder_fails);
    TEST(devices_are_lost);
    TEST(memory_runs_out);
    TEST(promises_are_kept);
    return test_end();
}
