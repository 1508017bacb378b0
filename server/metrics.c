/* metrics.c -- see metrics.h, metrics.def. */
#include "server/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS_MAX = 24, BLOCK = 64 };

static const struct {
    const char *name, *type, *help;
} rows[N_METRICS] = {
#define METRIC(id, ...) [id] = {__VA_ARGS__},
#define HISTOGRAM(...)
#include "server/metrics.def"
#undef METRIC
#undef HISTOGRAM
};

static const double seconds[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                                 2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, 0};
static const double gaps[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2,
                              .3,   .4,    .5,   .75, 1,    2.5, 5,    10, 0};
static const double tokens[] = {1,    2,    5,    10,    20,    50,    100,    200, 500,
                                1000, 2000, 5000, 10000, 20000, 50000, 100000, 0};
static const double rows_of_step[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0};
static const double few[] = {1, 2, 5, 10, 20, 50, 100, 0};

static const struct {
    const char *name, *help;
    const double *bound;
} hists[N_HISTOGRAMS] = {
#define METRIC(...)
#define HISTOGRAM(id, ...) [id] = {__VA_ARGS__},
#include "server/metrics.def"
#undef METRIC
#undef HISTOGRAM
};

static const char *const reasons[] = {"stop", "length", "abort", "error"};
enum { N_REASONS = sizeof reasons / sizeof reasons[0] };

struct metrics {
    pthread_mutex_t lock;
    double v[N_METRICS];
    unsigned long long n[N_REASONS];
    struct {
        unsigned long long n[BUCKETS_MAX], all;
        double sum;
    } h[N_HISTOGRAMS];
    char label[600];
    int64_t n_blocks;
};

struct metrics *metrics_new(void)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (m)
        pthread_mutex_init(&m->lock, NULL);
    return m;
}

void metrics_free(struct metrics *m)
{
    if (m)
        pthread_mutex_destroy(&m->lock);
    free(m);
}

void metrics_add(struct metrics *m, enum metric i, double x)
{
    pthread_mutex_lock(&m->lock);
    m->v[i] += x;
    pthread_mutex_unlock(&m->lock);
}

void metrics_set(struct metrics *m, enum metric i, double x)
{
    pthread_mutex_lock(&m->lock);
    m->v[i] = x;
    pthread_mutex_unlock(&m->lock);
}

void metrics_observe(struct metrics *m, enum histogram i, double x)
{
    int k = 0;
    while (hists[i].bound[k] > 0 && x > hists[i].bound[k])
        k++;
    pthread_mutex_lock(&m->lock);
    m->h[i].n[k]++;
    m->h[i].all++;
    m->h[i].sum += x;
    pthread_mutex_unlock(&m->lock);
}

void metrics_reason(struct metrics *m, const char *reason)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < N_REASONS; i++)
        m->n[i] += !strcmp(reasons[i], reason);
    pthread_mutex_unlock(&m->lock);
}

void metrics_label(struct metrics *m, const char *model, int64_t n_blocks)
{
    pthread_mutex_lock(&m->lock);
    size_t at = (size_t)snprintf(m->label, sizeof m->label, "engine=\"0\",model_name=\"");
    for (const char *p = model; *p && at < sizeof m->label - 4; p++) { /* a label's own escapes */
        if (*p == '"' || *p == '\\')
            m->label[at++] = '\\';
        m->label[at++] = *p == '\n' ? ' ' : *p;
    }
    m->label[at++] = '"';
    m->label[at] = 0;
    m->n_blocks = n_blocks;
    pthread_mutex_unlock(&m->lock);
}

static void put_head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_histogram(FILE *f, const struct metrics *m, int i)
{
    unsigned long long sum = 0;
    for (int k = 0; hists[i].bound[k] > 0; k++) {
        sum += m->h[i].n[k];
        fprintf(f, "%s_bucket{%s,le=\"%g\"} %llu\n", hists[i].name, m->label, hists[i].bound[k],
                sum);
    }
    fprintf(f, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.9g\n%s_count{%s} %llu\n",
            hists[i].name, m->label, m->h[i].all, hists[i].name, m->label, m->h[i].sum,
            hists[i].name, m->label, m->h[i].all);
}

/* Each metric once, with a line or more for each model. */
static void put_all(FILE *f, struct metrics *const *list, int n)
{
    for (int i = 0; i < N_METRICS; i++) {
        put_head(f, rows[i].name, rows[i].type, rows[i].help);
        for (int k = 0; k < n; k++)
            fprintf(f, "%s{%s} %.15g\n", rows[i].name, list[k]->label, list[k]->v[i]);
    }
    put_head(f, "vllm:gpu_cache_usage_perc", "gauge",
             "The same as vllm:kv_cache_usage_perc, by its older name.");
    for (int k = 0; k < n; k++)
        fprintf(f, "vllm:gpu_cache_usage_perc{%s} %.15g\n", list[k]->label,
                list[k]->v[M_CACHE_USED]);
    put_head(f, "vllm:cache_config_info", "gauge", "Pages of the cache.");
    for (int k = 0; k < n; k++)
        fprintf(f, "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%lld\"} 1\n",
                list[k]->label, BLOCK, (long long)list[k]->n_blocks);
    put_head(f, "vllm:request_success_total", "counter", "Choices ended, by reason.");
    for (int k = 0; k < n; k++)
        for (int i = 0; i < N_REASONS; i++)
            fprintf(f, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n",
                    list[k]->label, reasons[i], list[k]->n[i]);
    for (int i = 0; i < N_HISTOGRAMS; i++) {
        put_head(f, hists[i].name, "histogram", hists[i].help);
        for (int k = 0; k < n; k++)
            put_histogram(f, list[k], i);
    }
}

char *metrics_text(struct metrics *const *list, int n_list, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    for (int k = 0; k < n_list; k++)
        pthread_mutex_lock(&list[k]->lock);
    put_all(f, list, n_list);
    for (int k = 0; k < n_list; k++)
        pthread_mutex_unlock(&list[k]->lock);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}
