/* test_beside.c -- masks that are too much work for a draw: it tells so and changes nothing, and a
 * mask made on another thread gives what the draw would have given. What a grammar cannot do is
 * told in its own words. */
#include <math.h>
#include <pthread.h>

#include "small_model.h"

enum { N_VOCAB = 300, N_TOKENS = 40 };
static pith_model *model;

static pith_grammar *grammar(const char *text)
{
    struct pith_error err = {0};
    pith_grammar *g = pith_grammar_open(model, PITH_GRAMMAR_GBNF, text, strlen(text), NULL, &err);
    CHECK_MSG(g != NULL, "%s: %s", text, err.msg);
    return g;
}

static pith_sampler *sampler(pith_grammar *g)
{
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err = {0};
    p.temperature = 1;
    p.seed = 5;
    p.repeat_penalty = 1.1f;
    pith_sampler *s = pith_sampler_open(N_VOCAB, &p, &err);
    CHECK_MSG(s && (!g || pith_sampler_grammar(s, g, &err) == PITH_OK), "%s", err.msg);
    return s;
}

static void some_logits(int step, float logits[N_VOCAB])
{
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] = pith_token_is_eog(model, i)
                        ? -INFINITY
                        : (float)((i * 7919 + step * 104729) % 1000) / 100.0f;
}

static const char ambiguous[] =
    "root ::= s\ns ::= [a-z0-9 ] s [a-z0-9 ] | \"\""; /* half of it may be over at any time */
/* behind more than is looked at when a grammar is compiled */
static const char too_ambiguous[] =
    "root ::= [a-z0-9 ]{300} s\ns ::= [a-z0-9 ] s s s s s s s s | [a-z0-9 ]";
static const char plain[] = "root ::= ([a-z0-9]{1,3} \" \")+ \".\"";

struct job {
    pith_grammar *g;
    float *logits;
    struct pith_error err;
};

static void *mask_it(void *arg)
{
    struct job *j = arg;
    pith_grammar_mask(j->g, j->logits, N_VOCAB, &j->err);
    return NULL;
}

/* The next token by a clone of the position, on a thread of its own. */
static int32_t drawn_beside(pith_sampler *s, const pith_grammar *g, const float *logits)
{
    float masked[N_VOCAB];
    struct job j = {pith_grammar_clone(g, NULL), masked, {0}};
    pthread_t thread;
    memcpy(masked, logits, sizeof masked);
    if (!j.g || pthread_create(&thread, NULL, mask_it, &j))
        return -9;
    pthread_join(thread, NULL);
    CHECK_MSG(j.err.code == PITH_OK, "%s", j.err.msg);
    pith_grammar_close(j.g);
    return pith_sample_masked(s, masked);
}

static void what_waits_is_drawn_alike(void)
{
    static const char *const texts[] = {plain, ambiguous};
    for (int k = 0; k < 2; k++) {
        pith_grammar *a = grammar(texts[k]), *b = grammar(texts[k]);
        pith_sampler *at_once = sampler(a), *bounded = sampler(b);
        int n_late = 0;
        pith_sampler_mask_steps(bounded, 1);
        for (int i = 0; i < N_TOKENS && a && b && !test_bad; i++) {
            float logits[N_VOCAB];
            some_logits(i, logits);
            int32_t want = pith_sample(at_once, logits), got = pith_sample(bounded, logits);
            if (got == PITH_TOKEN_LATER) {
                n_late++;
                CHECK(pith_sampler_error(bounded, NULL) == PITH_STATE);
                CHECK(pith_sample(bounded, logits) ==
                      PITH_TOKEN_LATER); /* again: nothing has changed */
                got = drawn_beside(bounded, b, logits);
            }
            CHECK_MSG(got == want, "grammar %d, token %d: %d, wanted %d", k, i, got, want);
            if (want < 0)
                break;
            pith_sampler_accept(at_once, want);
            pith_sampler_accept(bounded, want);
        }
        CHECK_MSG(n_late > 3, "only %d masks were too much work", n_late);
        pith_sampler_close(at_once);
        pith_sampler_close(bounded);
        pith_grammar_close(a);
        pith_grammar_close(b);
    }
}

/* A mask that is there already is no work. */
static void what_is_made_does_not_wait(void)
{
    pith_grammar *g = grammar(plain), *same = pith_grammar_clone(g, NULL);
    pith_sampler *s = sampler(g);
    float logits[N_VOCAB];
    some_logits(0, logits);
    pith_sampler_mask_steps(s, 1);
    CHECK(pith_sample(s, logits) == PITH_TOKEN_LATER);
    CHECK(pith_grammar_shares(g, same) && !pith_grammar_shares(g, NULL));
    uint64_t before = pith_grammar_bytes(g);
    CHECK(pith_grammar_prepare(same, NULL) == PITH_OK);
    CHECK(before > 0 && pith_grammar_bytes(g) > before && pith_grammar_bytes(NULL) == 0);
    CHECK(pith_sample(s, logits) >= 0);
    pith_sampler_close(s);
    pith_grammar_close(g);
    pith_grammar_close(same);
}

/* A text that can be read in too many ways ends with the grammar's own error, which names the rule;
 * also where it shows while a token is taken. */
static void its_own_error(void)
{
    if (test_scale() < 10)
        SKIP("at TEST_SCALE=10: masks until then take seconds");
    pith_grammar *g = grammar(too_ambiguous);
    pith_sampler *s = sampler(g);
    float logits[N_VOCAB];
    struct pith_error err = {0};
    int32_t id = 0;
    for (int i = 0; i < 4000 && id >= 0; i++) {
        some_logits(i, logits);
        id = pith_sample(s, logits);
        if (id >= 0)
            pith_sampler_accept(s, id);
    }
    CHECK(id == PITH_TOKEN_NONE);
    CHECK_MSG(pith_sampler_error(s, &err) == PITH_RANGE && strstr(err.msg, "rule \"s\"") &&
                  strstr(err.msg, "too many ways"),
              "%d %s", err.code, err.msg);
    CHECK(pith_sample(s, logits) == PITH_TOKEN_NONE && pith_sampler_error(s, NULL) == PITH_RANGE);
    pith_sampler_reset(s); /* begins anew */
    CHECK(pith_sampler_error(s, NULL) == PITH_STATE && pith_sample(s, logits) >= 0);
    pith_sampler_close(s);
    pith_grammar_close(g);
    CHECK(pith_sampler_error(NULL, NULL) == PITH_RANGE &&
          pith_sample_masked(NULL, logits) == PITH_TOKEN_NONE &&
          pith_grammar_prepare(NULL, &err) == PITH_RANGE);
    pith_sampler_mask_steps(NULL, 1);
}

/* Positions of one grammar on several threads: each text is what it would be alone. */
enum { N_THREADS = 4 };
struct writer {
    pith_grammar *g;
    uint64_t seed;
    int32_t id[N_TOKENS];
};

static void *write_text(void *arg)
{
    struct writer *w = arg;
    pith_sampler *s = sampler(w->g);
    for (int i = 0; i < N_TOKENS; i++) {
        float logits[N_VOCAB];
        some_logits(i + 1000 * (int)w->seed, logits);
        w->id[i] = pith_sample(s, logits);
        if (w->id[i] < 0)
            break;
        pith_sampler_accept(s, w->id[i]);
    }
    pith_sampler_close(s);
    return NULL;
}

static void threads_share_a_grammar(void)
{
    pith_grammar *g = grammar(plain);
    struct writer alone[N_THREADS] = {0}, together[N_THREADS] = {0};
    pthread_t thread[N_THREADS];
    for (uint64_t i = 0; i < N_THREADS; i++) {
        alone[i] = (struct writer){.g = grammar(plain), .seed = i};
        write_text(&alone[i]);
        pith_grammar_close(alone[i].g);
        together[i] = (struct writer){.g = pith_grammar_clone(g, NULL), .seed = i};
    }
    for (int i = 0; i < N_THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, write_text, &together[i]));
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_MSG(!memcmp(alone[i].id, together[i].id, sizeof alone[i].id),
                  "thread %d wrote another text", i);
        pith_grammar_close(together[i].g);
    }
    pith_grammar_close(g);
}

int main(void)
{
    struct pith_synth_params p = small_params("llama", N_VOCAB);
    model = small_model(&p, 0, NULL);
    TEST(what_waits_is_drawn_alike);
    TEST(what_is_made_does_not_wait);
    TEST(its_own_error);
    TEST(threads_share_a_grammar);
    pith_model_close(model);
    return test_end();
}
