/* test_chains.c -- what chains of samplers are: read from text, or the default ones; and what of a
 * generation they look at. */
#include "test.h"

#include <math.h>

#include "run/sample/sample.h"
#include "run/session/session.h"
#include "small_model.h"

static void bad_chains(void)
{
    static const struct {
        const char *chain, *says;
    } bad[] = {
        {"top_q", "unknown sampler \"top_q\"; wanted some of: logit_bias penalties"},
        {";temp", "unknown sampler \"\""},
        {"temp;;temp", "unknown sampler \"\""},
        {"top_p:p=1.5", "top_p: p is 1.5; wanted 0 to 1"},
        {"top_p:p=nan", "top_p: p is nan; wanted 0 to 1"},
        {"top_p:p", "top_p: p is \"\"; wanted a number"},
        {"top_p:p=", "wanted a number"},
        {"top_p:p=0.5x", "wanted a number"},
        {"top_p:p=0,5", "has no parameter \"5\""},
        {"top_p:q=1", "sampler top_p has no parameter \"q\""},
        {"greedy:k=1", "sampler greedy has no parameter \"k\""},
        {"top_k:k=-2", "top_k: k is -2; wanted a whole number from -1"},
        {"top_k:k=1.5", "top_k: k is 1.5; wanted a whole number"},
        {"penalties:last_n=5,repeat=2;penalties:last_n=6,repeat=2", "wanted one window"},
        {"temp;temp;temp;temp;top_k;top_k;top_k;top_k;top_p;top_p;top_p;top_p;min_p;min_p;min_p;"
         "min_p;typical;typical;typical;typical;xtc;xtc;xtc;xtc;greedy;greedy;greedy;greedy;"
         "temp_ext;temp_ext;temp_ext;temp_ext;top_n_sigma",
         "more than 32"},
        {"top_p;top_p;temp;top_p;top_p;top_p",
         "top_p is there more than 4 times in a chain; wanted at most that"},
        {"dry;dry;temp;dry", "dry is there more than 2 times"},
        {"penalties;penalties;penalties", "penalties is there more than 2 times"},
        {"mirostat;mirostat;mirostat", "mirostat is there more than 2 times"},
        {"top_k:k=1111111111111111111111111111111111111111111111111111111111111111111111111111111",
         "wanted a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pith_error err = {0};
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = bad[i].chain;
        CHECK(pith_sampler_open(4, &p, &err) == NULL && err.code == PITH_RANGE);
        CHECK_MSG(strstr(err.msg, bad[i].says), "%s: \"%s\"", bad[i].chain, err.msg);
    }
    static const struct pith_logit_bias out = {4, 1}, nan_bias = {1, NAN}, most = {1, INFINITY};
    const struct pith_logit_bias *biases[] = {&out, &nan_bias, &most};
    for (int i = 0; i < 4; i++) {
        struct pith_error err = {0};
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.logit_bias = i < 3 ? biases[i] : NULL;
        p.n_logit_bias = i < 3;
        p.dry_breakers = i == 3 ? (const int32_t[]){1, 9, -1} : NULL;
        p.n_dry_breakers = i == 3 ? 3 : 0;
        CHECK(pith_sampler_open(4, &p, &err) == NULL && err.code == PITH_RANGE);
        CHECK_MSG(strstr(err.msg, i < 3 ? "logit_bias" : "dry_breakers"), "\"%s\"", err.msg);
    }
}

/* The names of a chain's steps, with ; behind each. */
static void names_of(const pith_sampler *s, char *text, size_t cap)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; s && i < s->n_steps && used < cap; i++)
        used += (size_t)snprintf(text + used, cap - used, "%s;", s->steps[i].kind->name);
}

/* What a chain becomes: by the names of other programs, with biases wherever there are any, with
 * mirostat in its place, with a range of temperatures. */
static void said_chains(void)
{
    static const struct pith_logit_bias bias = {1, 5};
    static const struct {
        const char *chain, *steps;
        int32_t n_bias, mirostat;
        float range;
    } cases[] = {
        {"top-k:k=3;typ_p;typical_p:p=1;top-p;min-p;temperature:t=0.5",
         "top_k;typical;typical;top_p;min_p;temp_ext;", 0, 0, 0},
        {"temp", "temp;", 0, 0, 0},
        {"top_k:k=1;temp", "logit_bias;top_k;temp;", 1, 0, 0},
        {"top_k:k=1;logit_bias;temp", "top_k;logit_bias;temp;", 1, 0, 0},
        {"", "logit_bias;", 1, 0, 0},
        {"penalties;top_k;temp", "logit_bias;penalties;dry;temp;mirostat;", 0, 1, 0},
        {"penalties;top_k;temp", "logit_bias;penalties;dry;temp;mirostat_v2;", 1, 2, 0},
        {"top_k;mirostat_v2;temp", "top_k;mirostat_v2;temp;", 0, 1, 0},
        {"top_k;temp;min_p", "top_k;temp_ext;min_p;", 0, 0, 0.5f},
        {"temp:t=0;min_p", "temp;min_p;", 0, 0, 0.5f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        struct pith_error err = {0};
        char got[256];
        p.samplers = cases[i].chain;
        p.temperature = 0.75f;
        p.logit_bias = &bias;
        p.n_logit_bias = cases[i].n_bias;
        p.mirostat = cases[i].mirostat;
        p.dynatemp_range = cases[i].range;
        pith_sampler *s = pith_sampler_open(4, &p, &err);
        names_of(s, got, sizeof got);
        CHECK_MSG(s && !strcmp(got, cases[i].steps), "%s: \"%s\", wanted \"%s\"; %s",
                  cases[i].chain, got, cases[i].steps, err.msg);
        for (int k = 0; s && k < s->n_steps; k++)
            CHECK(s->steps[k].place == k + 1);
        if (s && cases[i].range > 0 && s->n_steps == 3)
            CHECK(s->steps[1].p[0] == 0.75 && s->steps[1].p[1] == 0.5 && s->steps[1].p[2] == 1);
        pith_sampler_close(s);
    }
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    static const float logits[4] = {3, 1, 2, 0};
    p.samplers = "temp:t=0";
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    pith_sampler *s = pith_sampler_open(4, &p, NULL);
    CHECK(pith_sample(s, logits) == 1);
    pith_sampler_close(s);
    p.samplers = "temp:t=2;temp:t=2;temp:t=2;temp:t=2;temp:t=2";
    p.dynatemp_range = 1;
    CHECK(!pith_sampler_open(4, &p, NULL));
    p.samplers = "temp;no_such";
    p.mirostat = 1;
    CHECK(!pith_sampler_open(4, &p, NULL)); /* it has to be one, though another is used */
}

/* The default chains have these, in this order; a sampler that is added may stand between. */
static void default_chains(void)
{
    static const struct {
        float temperature, adaptive_target;
        int32_t mirostat;
        const char *chain, *without;
    } cases[] = {
        {0.8f, 0, 0, "logit_bias;penalties;dry;top_n_sigma;top_k;typical;top_p;min_p;xtc;temp_ext;",
         "adaptive_p;mirostat;mirostat_v2;greedy;temp;"},
        {0.8f, 0.4f, 0,
         "logit_bias;penalties;dry;top_n_sigma;top_k;typical;top_p;min_p;xtc;temp_ext;adaptive_p;",
         "mirostat;mirostat_v2;greedy;temp;"},
        {0.8f, 0.4f, 1, "logit_bias;penalties;dry;temp;mirostat;",
         "top_k;top_p;min_p;typical;top_n_sigma;xtc;temp_ext;mirostat_v2;adaptive_p;"},
        {0.8f, 0, 2, "logit_bias;penalties;dry;temp;mirostat_v2;",
         "top_k;top_p;min_p;typical;top_n_sigma;xtc;temp_ext;mirostat;adaptive_p;"},
        {0, 0.4f, 2, "logit_bias;penalties;dry;xtc;temp;",
         "top_k;top_p;min_p;typical;top_n_sigma;temp_ext;mirostat;mirostat_v2;adaptive_p;"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        const char *next = cases[i].chain;
        p.temperature = cases[i].temperature;
        p.adaptive_target = cases[i].adaptive_target;
        p.mirostat = cases[i].mirostat;
        pith_sampler *s = pith_sampler_open(8, &p, NULL);
        REQUIRE(s, "case %d", (int)i);
        for (int k = 0; k < s->n_steps; k++) {
            char name[64];
            size_t n = (size_t)snprintf(name, sizeof name, "%s;", s->steps[k].kind->name);
            next += strncmp(next, name, n) == 0 ? n : 0;
            const char *at = strstr(cases[i].without, name);
            CHECK_MSG(!at || (at != cases[i].without && at[-1] != ';'), "case %d has %s", (int)i,
                      name);
        }
        CHECK_MSG(!*next, "case %d lacks %s", (int)i, next);
        pith_sampler_close(s);
    }
}

/* Of how many of the best logits a draw looks at no more: by what each step leaves, where it is not
 * off. What nobody set costs a device no row. */
static void best_of_chains(void)
{
    static const struct pith_logit_bias bias = {1, 5};
    static const struct {
        const char *chain;
        int32_t best, n_bias;
        float temperature, repeat;
    } cases[] = {
        {NULL, 40, 0, 0.8f, 0},
        {NULL, 1, 0, 0, 0},
        {NULL, 0, 0, 0.8f, 1.5f},
        {NULL, 0, 1, 0.8f, 0},
        {"penalties;dry;logit_bias;top_p:p=1;typical:p=1;min_p:p=0;xtc;top_n_sigma;top_k:k=5", 5, 0,
         0.8f, 0},
        {"penalties:present=1;top_k:k=5", 0, 0, 0.8f, 0},
        {"dry:multiplier=1;top_k:k=5", 0, 0, 0.8f, 0},
        {"top_p:p=0.9;top_k:k=5", 0, 0, 0.8f, 0},
        {"temp:t=1;top_k:k=7", 7, 0, 0.8f, 0},
        {"temp_ext:t=1;top_k:k=7", 7, 0, 0.8f, 0},
        {"temp_ext:t=1,delta=0.5;top_k:k=7", 0, 0, 0.8f, 0},
        {"top_k:k=0;temp:t=0", 1, 0, 0.8f, 0},
        {"greedy", 1, 0, 0.8f, 0},
        {"greedy;top_p;temp:t=2", 1, 0, 0.8f, 0},
        {"greedy;xtc:p=1,t=0.1", 0, 0, 0.8f, 0},
        {"mirostat", 0, 0, 0.8f, 0},
        {"adaptive_p:target=0.5;top_k", 0, 0, 0.8f, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        struct pith_error err = {0};
        CHECK(pith_sampler_defaults(NULL, NULL, &p, &err) == PITH_OK);
        p.samplers = cases[i].chain;
        p.temperature = cases[i].temperature;
        p.repeat_penalty = cases[i].repeat;
        p.logit_bias = &bias;
        p.n_logit_bias = cases[i].n_bias;
        pith_sampler *s = pith_sampler_open(64, &p, &err);
        CHECK_MSG(s && pith_sampler_best(s) == cases[i].best, "%d, %s: %d, wanted %d; %s", (int)i,
                  cases[i].chain ? cases[i].chain : "the default chain", pith_sampler_best(s),
                  cases[i].best, err.msg);
        pith_sampler_close(s);
    }
    /* Of these logits the best one is dropped, and what is drawn is the best that is left. */
    static const float logits[4] = {3, 2.9f, -5, -6};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.samplers = "greedy;xtc:p=1,t=0.1";
    pith_sampler *s = pith_sampler_open(4, &p, NULL);
    CHECK(pith_sample(s, logits) == 1);
    pith_sampler_close(s);
}

/* Every generation's history is its prompt and what it makes: the same as by hand, also in a second
 * text of the same sampler, whose draws go on. */
static void prompts_are_history(void)
{
    enum { V = 300, N = 24, PROMPT = 60 };
    static const char *const chains[] = {
        "penalties:present=100,last_n=-1;temp:t=0", "penalties:freq=1,last_n=9;temp:t=1.5",
        "dry:multiplier=9,allowed_length=1;temp:t=0", "temp:t=1.5"};
    struct pith_error err = {0};
    struct pith_synth_params synth = small_params("llama", V);
    pith_model *m = small_model(&synth, 0, NULL);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    pith_sampler *kept = NULL;
    int32_t prompt[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = 260 + i % 20;
    for (int c = 0; c < 8; c++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
        p.samplers = chains[c / 2];
        g.tokens = prompt;
        g.n_tokens = PROMPT;
        g.n_max = N;
        g.ignore_eog = 1;
        kept = c % 2 ? kept : pith_sampler_open(V, &p, &err);
        g.sampler = kept;
        struct pith_generate_result out = PITH_GENERATE_RESULT_INIT;
        REQUIRE(pith_generate(s, &g, &out, &err) == PITH_OK && out.n_generated == N, "%s", err.msg);
        int32_t made[N];
        memcpy(made, s->cache.seq[0].token + PROMPT, (N - 1) * sizeof *made);
        made[N - 1] = out.unfed;
        pith_sampler *hand = pith_sampler_open(V, &p, &err);
        hand->index = c % 2 ? N : 0;
        for (int32_t i = 0; i < PROMPT; i++)
            pith_sampler_accept(hand, prompt[i]);
        CHECK(pith_prefix(s, 0, prompt, PROMPT, NULL, &err) == PITH_OK);
        for (int32_t i = 0; i < N; i++) {
            int32_t id = pith_sample(hand, pith_logits(s, 0));
            CHECK_MSG(made[i] == id, "%s, text %d: token %d is %d, wanted %d", chains[c / 2], c % 2,
                      i, made[i], id);
            pith_sampler_accept(hand, id);
            CHECK(pith_feed(s, 0, &made[i], 1, &err) == PITH_OK);
        }
        pith_sampler_close(hand);
        if (c % 2)
            pith_sampler_close(kept);
    }
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    TEST(bad_chains);
    TEST(default_chains);
    TEST(said_chains);
    TEST(best_of_chains);
    TEST(prompts_are_history);
    return test_end();
}
