/* metrics.h -- counters, gauges and histograms, and their text for Prometheus. From any thread. */
#ifndef PITH_SERVER_METRICS_H
#define PITH_SERVER_METRICS_H

#include <stddef.h>
#include <stdint.h>

enum metric {
#define METRIC(id, ...) id,
#define HISTOGRAM(...)
#include "server/metrics.def"
#undef METRIC
#undef HISTOGRAM
    N_METRICS
};
enum histogram {
#define METRIC(...)
#define HISTOGRAM(id, ...) id,
#include "server/metrics.def"
#undef METRIC
#undef HISTOGRAM
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
