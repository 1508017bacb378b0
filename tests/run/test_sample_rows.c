/* test_sample_rows.c -- rows of a step sampled at once: the same tokens and log-probabilities as
 * one after the other, whatever the number of threads, with chains, penalties and grammars of every
 * kind; what is refused changes nothing. */
#include <math.h>

#include "base/rng.h"
#include "robust.h"

enum { N_SEQ = 24, N_STEPS = 6, TOP = 5, V = 300 };

static const struct tiny llama = {"llama", "f32", 32, 2, 16, 48, V, 0, 0, 2, 1};

static const char *const chains[] = {
    "greedy",
    "temp:t=0.8",
    "top_k:k=9;temp:t=1.2",
    "penalties:last_n=8,repeat=1.3;top_p:p=0.9;temp:t=1",
    "typical:p=0.9;temp:t=1",
    "temp:t=1;mirostat_v2",
};
enum { N_CHAINS = sizeof chains / sizeof chains[0] };

struct side { /* the same requests, sampled in one way or the other */
    pith_session *session;
    pith_sampler *sampler[N_SEQ];
    pith_grammar *grammar[N_SEQ];
    int32_t said[N_STEPS][N_SEQ];
    struct pith_logprob top[N_STEPS][N_SEQ][TOP];
    float logprob[N_STEPS][N_SEQ];
};

/* Sequences 0, 3, 6 ... keep one of two grammars, several of them the same one. */
static int side_open(struct side *d, pith_model *m)
{
    static const char *const texts[] = {"root ::= [a-z ]*", "root ::= [^q]*"};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {0};
    pith_grammar *first[2] = {0};
    sp.n_seq = N_SEQ;
    sp.n_ctx = 64;
    *d = (struct side){.session = pith_session_open(m, &sp, &err)};
    for (int g = 0; g < 2; g++)
        first[g] = pith_grammar_open(m, PITH_GRAMMAR_GBNF, texts[g], strlen(texts[g]), NULL, &err);
    int ok = d->session && first[0] && first[1];
    for (int i = 0; i < N_SEQ && ok; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = chains[i % N_CHAINS];
        p.seed = (uint64_t)i;
        d->sampler[i] = pith_sampler_open(V, &p, &err);
        ok = d->sampler[i] != NULL;
        if (i % 3 == 0 && ok) {
            d->grammar[i] = pith_grammar_clone(first[i / 3 % 2], &err);
            ok = d->grammar[i] &&
                 pith_sampler_grammar(d->sampler[i], d->grammar[i], &err) == PITH_OK;
        }
    }
    pith_grammar_close(first[0]);
    pith_grammar_close(first[1]);
    CHECK_MSG(ok, "%s", err.msg);
    return ok;
}

static void side_close(struct side *d)
{
    for (int i = 0; i < N_SEQ; i++) {
        pith_sampler_close(d->sampler[i]);
        pith_grammar_close(d->grammar[i]);
    }
    pith_session_close(d->session);
}

static void sample_step(struct side *d, int t, int at_once)
{
    struct pith_draw draw[N_SEQ];
    struct pith_error err = {0};
    for (int i = 0; i < N_SEQ; i++)
        draw[i] = (struct pith_draw){.size = sizeof(struct pith_draw),
                                     .output = i,
                                     .sampler = d->sampler[i],
                                     .n_top = i % 4 ? i % 4 + 1 : -1,
                                     .top = d->top[t][i]};
    if (at_once)
        CHECK_MSG(pith_sample_rows(d->session, draw, N_SEQ, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < N_SEQ; i++) {
        const float *logits = pith_logits(d->session, i);
        if (!at_once) {
            draw[i].id = pith_sample(d->sampler[i], logits);
            if (draw[i].n_top >= 0)
                pith_logprobs(logits, V, draw[i].id, &draw[i].logprob, draw[i].top, draw[i].n_top);
        }
        d->said[t][i] = draw[i].id;
        d->logprob[t][i] = draw[i].n_top >= 0 ? draw[i].logprob : 0;
        pith_sampler_accept(d->sampler[i], draw[i].id);
    }
}

static void run(struct side *d, int at_once)
{
    int32_t token[N_SEQ], seq[N_SEQ];
    struct pith_error err = {0};
    for (int i = 0; i < N_SEQ; i++) {
        token[i] = 3 + i;
        seq[i] = i;
    }
    for (int t = 0; t < N_STEPS; t++) {
        struct pith_batch b = PITH_BATCH_INIT;
        b.n = N_SEQ;
        b.token = t ? d->said[t - 1] : token;
        b.seq = seq;
        for (int i = 0; i < N_SEQ && t; i++)
            REQUIRE(b.token[i] >= 0, "sequence %d has no token", i);
        REQUIRE(pith_step(d->session, &b, &err) == PITH_OK, "%s", err.msg);
        sample_step(d, t, at_once);
    }
}

static void same_as_one_by_one(void)
{
    static struct side one, many;
    const char *path = tiny_write(&llama, 5);
    struct pith_error err = {0};
    for (int n_threads = 1; n_threads <= 4 && path; n_threads++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.n_threads = n_threads;
        pith_model *m = pith_model_open(path, &mp, &err);
        REQUIRE(m, "%s", err.msg);
        if (side_open(&one, m) && side_open(&many, m)) {
            run(&one, 0);
            run(&many, 1);
            CHECK_MSG(!memcmp(one.said, many.said, sizeof one.said), "%d threads: other tokens",
                      n_threads);
            CHECK_MSG(!memcmp(one.top, many.top, sizeof one.top) &&
                          !memcmp(one.logprob, many.logprob, sizeof one.logprob),
                      "%d threads: other log-probabilities", n_threads);
        }
        side_close(&one);
        side_close(&many);
        pith_model_close(m);
    }
}

/* A row without a sampler tells about the caller's token. */
static void logprobs_alone(void)
{
    struct pith_error err = {0};
    const char *path = tiny_write(&llama, 5);
    pith_model *m = path ? pith_model_open(path, NULL, &err) : NULL;
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    int32_t ids[] = {3, 4, 5};
    struct pith_logprob want[TOP], got[TOP] = {{0}};
    float of = 0;
    REQUIRE(s && pith_feed(s, 0, ids, 3, &err) == PITH_OK, "%s", err.msg);
    struct pith_draw d = {.size = sizeof d, .id = 77, .n_top = TOP, .top = got};
    CHECK(pith_sample_rows(s, &d, 1, &err) == PITH_OK && d.id == 77 && d.n_top == TOP);
    pith_logprobs(pith_logits(s, 0), V, 77, &of, want, TOP);
    CHECK(!memcmp(want, got, sizeof want) && d.logprob == of);
    CHECK(pith_sample_rows(s, NULL, 0, &err) == PITH_OK);
    pith_session_close(s);
    pith_model_close(m);
}

static void refused(void)
{
    struct pith_error err = {0};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    const char *path = tiny_write(&llama, 5);
    pith_model *m = path ? pith_model_open(path, NULL, &err) : NULL;
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    int32_t ids[] = {3, 4, 5};
    p.temperature = 1;
    pith_sampler *own = pith_sampler_open(V, &p, &err), *twin = pith_sampler_open(V, &p, &err),
                 *other = pith_sampler_open(8, &p, &err);
    REQUIRE(s && own && twin && other && pith_feed(s, 0, ids, 3, &err) == PITH_OK, "%s", err.msg);
    struct pith_draw good = {.size = sizeof good, .sampler = own, .n_top = -1}, d[2] = {good, good};
    CHECK(pith_sample_rows(NULL, d, 1, &err) == PITH_RANGE &&
          pith_sample_rows(s, NULL, 1, &err) == PITH_RANGE &&
          pith_sample_rows(s, d, -1, &err) == PITH_RANGE);
    d[1] = (struct pith_draw){.size = sizeof d[1], .output = 1, .n_top = -1};
    CHECK_MSG(pith_sample_rows(s, d, 2, &err) == PITH_RANGE && strstr(err.msg, "output 1"), "%s",
              err.msg);
    d[1] = (struct pith_draw){.size = sizeof d[1], .sampler = other, .n_top = -1};
    CHECK_MSG(pith_sample_rows(s, d, 2, &err) == PITH_SHAPE && strstr(err.msg, "8"), "%s", err.msg);
    d[1] = (struct pith_draw){.size = sizeof d[1], .n_top = 3};
    CHECK_MSG(pith_sample_rows(s, d, 2, &err) == PITH_RANGE && strstr(err.msg, "top"), "%s",
              err.msg);
    /* `own` has drawn nothing so far. */
    for (int i = 0; i < 8; i++) {
        CHECK(pith_sample_rows(s, &good, 1, &err) == PITH_OK);
        CHECK(good.id == pith_sample(twin, pith_logits(s, 0)));
    }
    pith_sampler_close(own);
    pith_sampler_close(twin);
    pith_sampler_close(other);
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    TEST(same_as_one_by_one);
    TEST(logprobs_alone);
    TEST(refused);
    return test_end();
}
