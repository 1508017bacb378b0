/* scores.h -- how far logits are from recorded ones: the best 20 of each position, of exact
 * arithmetic (reference/gemma-270m.json). */
#ifndef PITH_TESTS_SCORES_H
#define PITH_TESTS_SCORES_H

#include <jansson.h>
#include <math.h>
#include <stdint.h>

struct scores {
    double kl;
    int64_t n, n_clear,
        n_agree; /* positions; those whose best two are over 0.1 nat apart; of them, same best */
};

/* Divergence of one position's logits from the recorded best 20 and what is left as one class. */
__attribute__((unused)) static void score_row(const float *logits, int32_t n_vocab,
                                              const json_t *top, struct scores *s)
{
    double max = -INFINITY, sum = 0, kl = 0, p_rest = 1, q_rest = 1;
    int32_t best = 0;
    for (int32_t v = 0; v < n_vocab; v++)
        if ((double)logits[v] > max) {
            max = logits[v];
            best = v;
        }
    for (int32_t v = 0; v < n_vocab; v++)
        sum += (double)expf(logits[v] - (float)max);
    size_t n = json_array_size(top);
    double first[2] = {0};
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(top, i);
        int32_t id = (int32_t)json_integer_value(json_array_get(pair, 0));
        double lp = json_number_value(json_array_get(pair, 1));
        double lq = (double)logits[id] - max - log(sum);
        kl += exp(lp) * (lp - lq);
        p_rest -= exp(lp);
        q_rest -= exp(lq);
        if (i < 2)
            first[i] = lp;
    }
    p_rest = p_rest > 1e-12 ? p_rest : 1e-12; /* recorded with 7 digits */
    q_rest = q_rest > 1e-12 ? q_rest : 1e-12;
    s->kl += kl + p_rest * log(p_rest / q_rest);
    s->n++;
    if (first[0] - first[1] > 0.1) {
        s->n_clear++;
        s->n_agree +=
            best == (int32_t)json_integer_value(json_array_get(json_array_get(top, 0), 0));
    }
}

#endif
