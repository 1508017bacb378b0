/* metrics.h -- counters, gauges and histograms, and their text for Prometheus. From any thread. */
#ifndef PITH_SERVER_METRICS_H
#define PITH_SERVER_METRICS_H

#include <stddef.h>
#include <stdint.h>

enum metric {
    M_RUNNING,
    M_WAITING,
    M_CACHE_USED,
    M_PREFIX_QUERIES,
    M_PREFIX_HITS,
    M_PROMPT_TOKENS,
    M_MADE_TOKENS,
    M_PREEMPTIONS,
    M_MASKS_BESIDE,
    M_ANSWERS_BESIDE,
    M_GRAMMARS,
    M_GRAMMAR_HITS,
    M_STEPS,
    M_STEP_SECONDS,
    M_MODEL_BYTES,
    M_LOADS,
    M_LOAD_SECONDS,
    N_METRICS
};
enum histogram {
    H_FIRST,
    H_GAP,
    H_PER_TOKEN,
    H_E2E,
    H_QUEUE,
    H_PREFILL,
    H_DECODE,
    H_INFERENCE,
    H_PROMPT_TOKENS,
    H_MADE_TOKENS,
    H_ITERATION,
    H_PARAMS_N,
    H_PARAMS_MAX,
    N_HISTOGRAMS
};
struct metrics;
struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);
void metrics_add(struct metrics *m, enum metric i, double x);
void metrics_set(struct metrics *m, enum metric i, double x);
void metrics_observe(struct metrics *m, enum histogram i, double x);
void metrics_reason(
    struct metrics *m,
    const char *finished_reason); /* a choice has ended; one of the reasons that are constants */
/* The model they are of, which becomes their label, and the pages of its cache. */
void metrics_label(struct metrics *m, const char *model, int64_t n_blocks);
/* The text of several models' (malloc), NULL: out of memory. */
char *metrics_text(struct metrics *const *list, int n_list, size_t *n);

#endif
