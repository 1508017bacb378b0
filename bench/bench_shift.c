/* bench_shift.c -- does a text that outgrows its context stay fluent? Generates 3 times the context
 * with context shifts and prints the perplexity of the text under the model that makes it, twice:
 * as the shifted cache sees it, and as a cache does that after each shift computes what is left
 * anew, at the same positions. Per context's length of text, so that a drift would show.
 *
 *     bench_shift MODEL [n_ctx [temperature]]          default 512, 0.8; seed 1 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/session/session.h"

enum { TIMES = 3, KEEP = 1 };

static pith_session *open_session(pith_model *m, int32_t n_ctx)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    if (!s) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return s;
}

static void need(pith_status st, const struct pith_error *err)
{
    if (st == PITH_OK)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static double surprise(const pith_session *s, int32_t n_vocab, int32_t id)
{
    float logprob;
    pith_logprobs(pith_logits(s, 0), n_vocab, id, &logprob, NULL, 0);
    return -(double)logprob;
}

int main(int argc, char **argv)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_model *m = argc > 1 ? pith_model_open(argv[1], &mp, &err) : NULL;
    if (!m || pith_model_get_info(m, &info, &err) != PITH_OK) {
        fprintf(stderr, "%s\n", argc > 1 ? err.msg : "bench_shift MODEL [n_ctx [temperature]]");
        return 1;
    }
    int32_t n_ctx = argc > 2 ? atoi(argv[2]) : 512, ids[64];
    sp.temperature = argc > 3 ? (float)atof(argv[3]) : 0.8f;
    sp.seed = 1;
    pith_session *shifted = open_session(m, n_ctx), *anew = open_session(m, n_ctx);
    pith_sampler *sampler = pith_sampler_open(info.n_vocab, &sp, &err);
    int32_t *held = calloc((size_t)n_ctx, sizeof *held);
    static const char text[] = "The lighthouse keeper had not spoken to anyone for a year when";
    int64_t n = pith_tokenize(m, text, sizeof text - 1, PITH_ADD_SPECIAL, ids, 64, &err);
    if (!sampler || !held || n < 1)
        return 1;
    need(pith_feed(shifted, 0, ids, (size_t)n, &err), &err);
    need(pith_feed(anew, 0, ids, (size_t)n, &err), &err);
    printf("tokens, shifts, perplexity shifted, perplexity computed anew, ratio\n");
    int shifts = 0;
    double sum[2] = {0, 0};
    for (int32_t i = 1; i <= TIMES * n_ctx; i++) {
        int32_t id = pith_sample(sampler, pith_logits(shifted, 0));
        pith_sampler_accept(sampler, id);
        sum[0] += surprise(shifted, info.n_vocab, id);
        sum[1] += surprise(anew, info.n_vocab, id);
        if (pith_length(shifted, 0) == n_ctx) {
            need(context_shift(shifted, 0, KEEP, 0, &err), &err);
            int64_t k = pith_tokens(shifted, 0, held, (size_t)n_ctx);
            need(pith_truncate(anew, 0, 0, &err), &err);
            need(pith_feed(anew, 0, held, (size_t)k, &err), &err);
            shifts++;
        }
        need(pith_feed(shifted, 0, &id, 1, &err), &err);
        need(pith_feed(anew, 0, &id, 1, &err), &err);
        if (i % n_ctx == 0) {
            double a = exp(sum[0] / n_ctx), b = exp(sum[1] / n_ctx);
            printf("%d, %d, %.4f, %.4f, %.4f\n", i, shifts, a, b, a / b);
            sum[0] = sum[1] = 0;
        }
    }
    free(held);
    pith_sampler_close(sampler);
    pith_session_close(shifted);
    pith_session_close(anew);
    pith_model_close(m);
    return 0;
}
