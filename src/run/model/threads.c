/* threads.c -- how many threads, where they run, and which node's memory their weights are in.
 *
 * By default decoding takes the fast cores and prefill all cores, one thread each and never more
 * than the CPU quota: memory is read as fast with fewer, hyperthreads share the arithmetic of a
 * core, and threads beyond a quota are stopped together. machine_threads measures instead: every
 * count worth a try, both kinds of work, in turns (so that a slow moment hits all counts alike),
 * the best of its rounds; the least count within a few per cent of the best wins. */
#include "run/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/machine/cpu.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/machine/topology.h"

enum { COUNTS_MAX = 14, ROUNDS = 3, NEAR_PERCENT = 97 };

struct defaults {
    int decode, prefill, most;
};

static int at_most(int n, int most)
{
    return n < 1 ? 1 : n < most ? n : most;
}

static struct defaults defaults_of(const struct topology *t)
{
    int most = cores_usable();
    return (struct defaults){at_most(t->n_fast, most), at_most(t->n_cores, most), most};
}

/* A setting: the parameter, else the environment ("auto" is for programs: as unset), else *n as it
 * is. 1: it was set. */
static int setting(int32_t param, const char *what, const char *env, int *n, pith_status *st,
                   struct pith_error *err)
{
    const char *text = env_get(env);
    int64_t v = param;
    if (param < 0 || param > THREADS_MAX)
        *st = error_set(err, PITH_RANGE, "%s is %d, wanted 1..%d (0: as many as cores)", what,
                        param, THREADS_MAX);
    else if (param == 0 && text && strcmp(text, "auto") != 0)
        *st = env_int(env, 1, THREADS_MAX, 0, &v, err);
    if (*st != PITH_OK || v == 0)
        return 0;
    *n = (int)v;
    return 1;
}

pith_status model_open_threads(struct pith_model *m, struct pith_error *err)
{
    struct places *places = NULL;
    const struct pith_model_params *p = &m->params;
    pith_status st = PITH_OK;
    struct topology *t = mem_alloc(sizeof *t, PITH_MEM_META);
    if (!t)
        return error_set(err, PITH_NOMEM, "out of memory for the list of processors");
    topology_here(t);
    struct defaults d = defaults_of(t);
    m->n_threads = d.decode;
    m->n_threads_prefill = d.prefill;
    if (p->numa < PITH_NUMA_OFF || p->numa > PITH_NUMA_ISOLATE)
        st = error_set(err, PITH_RANGE, "numa is %d, wanted off, spread or isolate", (int)p->numa);
    if (st == PITH_OK &&
        setting(p->n_threads, "n_threads", "PITH_THREADS", &m->n_threads, &st, err))
        m->n_threads_prefill = m->n_threads;
    if (st == PITH_OK)
        setting(p->n_threads_prefill, "n_threads_prefill", "PITH_THREADS_PREFILL",
                &m->n_threads_prefill, &st, err);
    int n = m->n_threads > m->n_threads_prefill ? m->n_threads : m->n_threads_prefill;
    if (st == PITH_OK)
        st = places_new(t, p->affinity, (int)p->numa, n, &places, err);
    if (st == PITH_OK) {
        m->pool = pool_new_at(n, places, err);
        m->n_nodes = places->n_nodes;
        memcpy(m->node, places->node, sizeof m->node);
        st = m->pool ? PITH_OK : err->code;
    }
    mem_free(places);
    mem_free(t);
    return st;
}

/* ---------------------------------------------------------------- memory nodes */

/* Where a placement lies that is the process's own, in one piece; NULL: it is not. */
static uint8_t *own_bytes(const struct pith_model *m, const struct placement *p)
{
    return p->bytes && !p->part_rows && !model_in_copy(m, p) ? buffer_map(p->buffer) : NULL;
}

static int has_experts(const struct tensor *t, const struct placement *p)
{
    return t->use == TENSOR_EXPERTS && p->layout == LAYOUT_PANELS && tensor_stack(t) > 1;
}

/* Pages that begin in the panels which the threads of node `home` read of an expert. */
static void touch_expert(const struct pith_model *m, const struct tensor *t, uint8_t *at, int home)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uint64_t panel = dtype_panel_bytes(t->type, tensor_k(t));
    const int64_t n = tensor_panels(t);
    uint8_t *end = at + panel * (uint64_t)(n * (home + 1) / m->n_nodes);
    at += panel * (uint64_t)(n * home / m->n_nodes);
    for (at += (page - (uintptr_t)at % page) % page; at < end; at += page)
        *(volatile uint8_t *)at = 0; /* as it is */
}

static void touch_experts(void *ctx, int ith)
{
    const struct pith_model *m = ctx;
    int home = ith % m->n_nodes, nth = ith / m->n_nodes; /* of the node's threads */
    int threads = (pool_n_threads(m->pool) - home + m->n_nodes - 1) / m->n_nodes;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t j = 0; j < m->tensors[i]->n_at; j++) {
            const struct tensor *t = m->tensors[i];
            uint8_t *base = has_experts(t, &t->at[j]) ? own_bytes(m, &t->at[j]) : NULL;
            for (int64_t e = nth; base && e < tensor_stack(t); e += threads)
                touch_expert(m, t,
                             base + t->at[j].offset + (uint64_t)e * tensor_packed_matrix_bytes(t),
                             home);
        }
}

/* A stack of experts is no range of memory for each node: of every expert each has a part (moe.h),
 * and these are more ranges than the system keeps count of. So their pages are small, and each
 * is first touched by a thread of its node. */
static void spread_experts(struct pith_model *m)
{
    int n = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t j = 0; j < m->tensors[i]->n_at; j++) {
            const struct placement *p = &m->tensors[i]->at[j];
            uint8_t *base = has_experts(m->tensors[i], p) ? own_bytes(m, p) : NULL;
            if (base)
                mem_small_pages(base + p->offset, p->bytes);
            n += base != NULL;
        }
    if (n)
        pool_run(m->pool, pool_n_threads(m->pool), touch_experts, m);
}

/* Each node gets the part of every matrix whose rows its threads will read (run.c: shares lie node
 * by node). Whole pages: what is of two nodes goes to the first. Mapped weights are the page
 * cache's and stay where they are. */
void model_spread_weights(struct pith_model *m)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int why = 0;
    if (m->n_nodes > 1)
        spread_experts(m);
    for (int32_t i = 0; i < m->n_tensors && m->n_nodes > 1; i++)
        for (int32_t j = 0; j < m->tensors[i]->n_at; j++) {
            const struct placement *p = &m->tensors[i]->at[j];
            uint8_t *base = has_experts(m->tensors[i], p) ? NULL : own_bytes(m, p);
            uint64_t begin = (p->offset + page - 1) / page * page;
            for (int k = 0; k < m->n_nodes && base; k++) {
                uint64_t end = p->offset + p->bytes * (uint64_t)(k + 1) / (uint64_t)m->n_nodes;
                end = end / page * page;
                if (end > begin && !memory_prefer_node(base + begin, end - begin, m->node[k]))
                    why = errno;
                begin = end > begin ? end : begin;
            }
        }
    if (why)
        str_printf(&m->note, "%sweights are not in the memory of their nodes: %s",
                   m->note.n ? "; " : "", strerror(why));
}

/* ---------------------------------------------------------------- measuring */

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Thread counts worth a try, ascending: few, fast cores, all cores, all there are, and a core left
 * to others. */
static int counts_to_try(const struct topology *t, int most, int32_t *out)
{
    int32_t tries[COUNTS_MAX] = {1,
                                 2,
                                 3,
                                 4,
                                 6,
                                 8,
                                 t->n_fast / 2,
                                 t->n_fast - 1,
                                 t->n_fast,
                                 t->n_cores / 2,
                                 t->n_cores - 1,
                                 t->n_cores,
                                 most - 1,
                                 most};
    int n = 0;
    qsort(tries, COUNTS_MAX, sizeof *tries, by_value);
    for (int i = 0; i < COUNTS_MAX; i++) {
        if (tries[i] >= 1 && tries[i] <= most && (n == 0 || out[n - 1] != tries[i]))
            out[n++] = tries[i];
    }
    return n;
}

static int choose(const int32_t *counts, const double (*rates)[2], int n, int kind, double *rate)
{
    double best = 0;
    int i = 0;
    for (int k = 0; k < n; k++)
        best = rates[k][kind] > best ? rates[k][kind] : best;
    while (i < n - 1 && rates[i][kind] * 100 < best * NEAR_PERCENT)
        i++;
    *rate = rates[i][kind];
    return counts[i];
}

/* What the result depends on, in words. */
static void signature(const struct topology *t, const struct defaults *d, char *out, size_t cap)
{
    enum cpu_level level = CPU_BASE;
    cpu_level(&level, NULL);
    uint64_t sum = 0;
    for (int i = 0; i < t->n; i++) {
        const struct processor *p = &t->p[i];
        const int32_t id[] = {p->id, p->node, p->core, p->slow};
        sum = sum * 31 + slice_hash((struct slice){(const char *)id, sizeof id});
    }
    snprintf(out, cap,
             "%s, %s, %d processors, %d cores, %d fast, %d nodes, %llu MiB of last caches, "
             "at most %d, %016llx",
             cpu_brand(), cpu_level_name(level), t->n, t->n_cores, t->n_fast, t->n_nodes,
             (unsigned long long)(t->cache_bytes >> 20), d->most, (unsigned long long)sum);
}

static pith_status measure(const struct topology *t, int most, int ms, struct pith_threads *out,
                           struct pith_error *err)
{
    int32_t counts[COUNTS_MAX];
    double rates[COUNTS_MAX][2] = {{0}};
    int n = counts_to_try(t, most, counts);
    struct device *d;
    pith_status st = first_backend()->open(0, 0, &d, err);
    if (st != PITH_OK)
        return st;
    struct pool *pool = pool_new(most, err);
    st = pool ? d->backend->measure_threads(d, pool, counts, n, ROUNDS, ms, rates, err) : err->code;
    pool_free(pool);
    d->backend->close(d);
    if (st != PITH_OK)
        return st;
    out->n_decode = choose(counts, (const double(*)[2])rates, n, 0, &out->decode_gbs);
    out->n_prefill = choose(counts, (const double(*)[2])rates, n, 1, &out->prefill_gops);
    return PITH_OK;
}

pith_status machine_threads(int ms, struct pith_threads *out, struct pith_error *err)
{
    struct topology *t = mem_alloc(sizeof *t, PITH_MEM_META);
    if (!t)
        return error_set(err, PITH_NOMEM, "out of memory for the list of processors");
    topology_here(t);
    struct defaults d = defaults_of(t);
    out->n_decode = d.decode;
    out->n_prefill = d.prefill;
    signature(t, &d, out->machine, sizeof out->machine);
    pith_status st = ms > 0 && d.most > 1 ? measure(t, d.most, ms, out, err) : PITH_OK;
    mem_free(t);
    return st;
}

pith_status machine_measure_on(struct device *d, int n_threads, int ms, struct pith_machine *out,
                               struct pith_error *err)
{
    if (!d->backend->measure)
        return error_set(err, PITH_UNSUPPORTED, "%s: %s measures nothing", d->name,
                         d->backend->name);
    n_threads = n_threads ? n_threads : cores_usable();
    struct pool *pool = pool_new(n_threads, err);
    pith_status st = pool ? d->backend->measure(d, pool, n_threads, ms, out, err) : err->code;
    pool_free(pool);
    return st;
}

pith_status machine_measure(int n_threads, int ms, struct pith_machine *out, struct pith_error *err)
{
    struct device *d;
    pith_status st = first_backend()->open(0, 0, &d, err);
    if (st != PITH_OK)
        return st;
    st = machine_measure_on(d, n_threads, ms, out, err);
    d->backend->close(d);
    return st;
}

pith_status device_measure(int i, int ms, struct pith_machine *out, struct pith_error *err)
{
    struct device *d;
    pith_status st = device_open_ith(i, &d, err);
    if (st != PITH_OK)
        return st;
    st = machine_measure_on(d, 0, ms, out, err);
    d->backend->close(d);
    return st;
}
