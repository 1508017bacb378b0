/* test_cancel.c -- a step that is cancelled somewhere on its way: either it has run and its result
 * is there, or it has not and nothing has changed. Which of the two is what was run, not what the
 * flag says afterwards. Also what a fork() leaves of the parent's and the child's. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "small_model.h"

enum { N_VOCAB = 64, N_PROMPT = 40 };

static int32_t prompt[N_PROMPT];

static pith_session *open_session(pith_model *m)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    sp.n_ctx = 128;
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s, "%s", err.msg);
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + i * 5 % 60;
    return s;
}

/* A model of random weights, gone from the disk. */
static pith_model *model(int observe, int n_threads)
{
    char path[64];
    struct pith_error err;
    struct pith_synth_params p = small_params("llama", N_VOCAB);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, "/tmp/pith-cancel-%d.gguf", (int)getpid());
    mp.observe = observe;
    mp.n_threads = n_threads;
    mp.n_batch = 16;
    pith_model *m = pith_synth(path, &p, &err) == PITH_OK ? pith_model_open(path, &mp, &err) : NULL;
    CHECK_MSG(m, "%s", err.msg);
    unlink(path);
    return m;
}

/* ---------------------------------------------------------------- at every op */

struct watch {
    pith_session *s;
    int n, at; /* ops seen; the one at which the step is cancelled, -1: none */
};

static void at_op(void *ctx, const char *name, int64_t rows, int64_t cols, const float *data)
{
    struct watch *w = ctx;
    (void)name, (void)rows, (void)cols, (void)data;
    if (w->n++ == w->at)
        pith_cancel(w->s);
}

static void cancelled_at_every_op(void)
{
    float want[N_VOCAB];
    struct pith_error err;
    struct watch w = {.at = -1};
    pith_model *m = model(1, 1);
    pith_session *s = w.s = m ? open_session(m) : NULL;
    REQUIRE(s && pith_session_observe(s, at_op, &w, &err) == PITH_OK, "no session");
    CHECK(pith_feed(s, 0, prompt, N_PROMPT, &err) == PITH_OK);
    memcpy(want, pith_logits(s, 0), sizeof want);
    int all = w.n, ran = 0;
    for (int at = 0; at < all; at++) {
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        w = (struct watch){.s = s, .at = at};
        pith_status st = pith_feed(s, 0, prompt, N_PROMPT, &err);
        CHECK(pith_length(s, 0) == (st == PITH_OK ? N_PROMPT : 0));
        if (st == PITH_OK) {
            ran++;
            CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "cancelled at %d: other bits",
                      at);
            CHECK(w.n == all); /* nothing was left to run, */
            int32_t one = 5;   /* and the flag stands: it ends the next one */
            CHECK(pith_feed(s, 0, &one, 1, &err) == PITH_CANCELLED);
        } else {
            CHECK_MSG(st == PITH_CANCELLED && pith_n_outputs(s) == 0, "%s", err.msg);
        }
        pith_cancel_reset(s);
    }
    CHECK_MSG(ran == 1, "%d of %d steps ran though they were cancelled at an op", ran, all);
    pith_session_close(s);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- raised and taken back */

struct nuisance {
    pith_session *s;
    _Atomic int stop;
};

static void *cancel_often(void *arg)
{
    struct nuisance *n = arg;
    for (unsigned i = 0; !atomic_load(&n->stop); i++) {
        pith_cancel(n->s);
        for (unsigned k = 0; k < i % 64; k++)
            atomic_load(&n->stop);
        pith_cancel_reset(n->s);
        if (i % 8 == 0)
            usleep(i % 200);
    }
    return NULL;
}

static void raised_and_taken_back(void)
{
    float want[N_VOCAB];
    struct pith_error err;
    pith_model *m = model(0, 2);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s && pith_feed(s, 0, prompt, N_PROMPT, &err) == PITH_OK, "no session");
    memcpy(want, pith_logits(s, 0), sizeof want);
    struct nuisance n = {.s = s};
    pthread_t t;
    int ran = 0, cancelled = 0;
    REQUIRE(pthread_create(&t, NULL, cancel_often, &n) == 0, "no thread");
    for (long i = 0; i < 1500 * test_scale() && !test_bad; i++) {
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        pith_status st = pith_feed(s, 0, prompt, N_PROMPT, &err);
        CHECK(pith_length(s, 0) == (st == PITH_OK ? N_PROMPT : 0));
        if (st == PITH_OK)
            CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want),
                      "step %ld says that it ran, and has not", i);
        ran += st == PITH_OK;
        cancelled += st == PITH_CANCELLED;
    }
    atomic_store(&n.stop, 1);
    pthread_join(t, NULL);
    printf("# %d ran, %d were cancelled\n", ran, cancelled);
    pith_session_close(s);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- fork */

#if defined(__SANITIZE_THREAD__)
#define FORKS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FORKS 0
#endif
#endif
#ifndef FORKS
#define FORKS 1
#endif

/* In the child: models of its own. */
static int child(const float *want)
{
    struct pith_error err;
    pith_model *m = model(0, 2);
    pith_session *s = m ? open_session(m) : NULL;
    if (!s || pith_feed(s, 0, prompt, N_PROMPT, &err) != PITH_OK)
        return 1;
    int same = !memcmp(want, pith_logits(s, 0), N_VOCAB * sizeof *want);
    pith_session_close(s);
    pith_model_close(m);
    return same ? 0 : 2;
}

static void after_fork(void)
{
    if (!FORKS)
        SKIP("the thread sanitizer allows no threads behind a fork");
    float want[N_VOCAB];
    struct pith_error err;
    pith_model *m = model(0, 3);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s && pith_feed(s, 0, prompt, N_PROMPT, &err) == PITH_OK, "no session");
    memcpy(want, pith_logits(s, 0), sizeof want);
    for (int i = 0; i < 5; i++) {
        int status = 0;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            _exit(child(want));
        }
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK); /* the parent goes on */
        CHECK(pith_feed(s, 0, prompt, N_PROMPT, &err) == PITH_OK);
        CHECK(!memcmp(want, pith_logits(s, 0), sizeof want));
        REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ends with 0x%x",
                  (unsigned)status);
    }
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    TEST(cancelled_at_every_op);
    TEST(raised_and_taken_back);
    TEST(after_fork);
    return test_end();
}
