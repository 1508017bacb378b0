/* cpu.c -- the CPU as a backend. It can be opened as several logical devices (PITH_CPU_DEVICES=n):
 * they share the cores and differ in their memory accounts and in nothing else, so that cut plans
 * and copies between devices are real on any machine. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include "base/machine/cpu.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/unconst.h"
#include "graph/kv_page.h"

static int cpu_n_devices(struct pith_error *err)
{
    int64_t n = 1;
    return env_int("PITH_CPU_DEVICES", 1, MAX_DEVICES, 1, &n, err) == PITH_OK ? (int)n : -1;
}

static pith_status cpu_open(int i, int reference, struct device **out, struct pith_error *err)
{
    enum cpu_level level;
    pith_status st = cpu_level(&level, err);
    if (st != PITH_OK)
        return st;
    struct cpu_device *d = mem_zalloc(sizeof *d, PITH_MEM_META);
    if (!d)
        return error_set(err, PITH_NOMEM, "out of memory while opening the CPU");
    d->level = reference ? CPU_REF : (int)level;
    d->kern = d->level == CPU_REF ? NULL : kern_table(d->level);
    d->dev.backend = &backend_cpu;
    snprintf(d->dev.name, sizeof d->dev.name, i ? "CPU%d" : "CPU", i);
    snprintf(d->dev.about, sizeof d->dev.about, "%s", cpu_brand());
    d->dev.priv = d;
    *out = &d->dev;
    return PITH_OK;
}

static void cpu_close(struct device *d)
{
    mem_free(d->priv);
}

static void cpu_memory(struct device *d, struct mem_left *out)
{
    (void)d;
    mem_left(out);
}

static void cpu_limits(const struct device *d, struct device_limits *out)
{
    (void)d;
    *out = (struct device_limits){
        .largest = UINT64_MAX, .slab = UINT64_MAX, .align = 64, .host = 1};
}

/* A buffer's handle is its address. */
static pith_status cpu_reserve(struct buffer *b, struct pith_error *err)
{
    b->handle = mem_reserve(b->bytes);
    return b->handle ? PITH_OK
                     : error_set(err, PITH_NOMEM, "no address space for %llu bytes",
                                 (unsigned long long)b->bytes);
}

static pith_status cpu_commit(struct buffer *b, uint64_t to, struct pith_error *err)
{
    return mem_commit((uint8_t *)b->handle + b->committed, to - b->committed, b->purpose, err);
}

static void cpu_decommit(struct buffer *b, uint64_t to)
{
    mem_decommit((uint8_t *)b->handle + to, b->committed - to, b->purpose);
}

static pith_status cpu_alloc(struct buffer *b, struct pith_error *err)
{
    pith_status st = cpu_reserve(b, err);
    if (st == PITH_OK && (st = cpu_commit(b, b->bytes, err)) != PITH_OK)
        mem_release(b->handle, b->bytes);
    return st;
}

/* Page cache is not ours to give back: nothing of an import is committed. */
static int cpu_import(struct buffer *b, const void *host)
{
    b->handle = unconst(host);
    return 1;
}

static void cpu_release(struct buffer *b)
{
    if (b->imported)
        return;
    mem_decommit(b->handle, b->committed, b->purpose);
    mem_release(b->handle, b->bytes);
}

static void *cpu_map(const struct buffer *b)
{
    return b->handle;
}

static void *at(struct place p)
{
    return (uint8_t *)p.buffer->handle + p.offset;
}

static pith_status cpu_write(struct place to, const void *host, uint64_t n, int apart,
                             struct event *ev, struct pith_error *err)
{
    (void)apart, (void)ev, (void)err;
    memcpy(at(to), host, n);
    return PITH_OK;
}

static pith_status cpu_read(void *host, struct place from, uint64_t n, struct event *ev,
                            struct pith_error *err)
{
    (void)ev, (void)err;
    memcpy(host, at(from), n);
    return PITH_OK;
}

static pith_status cpu_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                            struct pith_error *err)
{
    (void)ev, (void)err;
    memcpy(at(to), at(from), n);
    return PITH_OK;
}

static pith_status cpu_zero(struct place p, uint64_t n, struct pith_error *err)
{
    (void)err;
    memset(at(p), 0, n);
    return PITH_OK;
}

static pith_status cpu_event_wait(struct device *d, uint64_t ticket, struct pith_error *err)
{
    (void)d, (void)ticket, (void)err; /* nothing is under way when a call returns */
    return PITH_OK;
}

static int cpu_impl(const struct device *d, const struct node *n, struct op_impl *out)
{
    const struct cpu_device *c = d->priv;
    if (c->kern && cpu_ops_impl(c->kern, n, out))
        return 1;
    if (n->w && tensor_layout_on(n->w, n->device) != LAYOUT_ROWS)
        return 0; /* the reference reads rows */
    ref_impl(n, out);
    out->slow = c->kern && !op_has(n->op, OP_MOVER);
    return out->fn || op_has(n->op, OP_TRANSFER); /* not what fusion alone makes */
}

static void cpu_pack(const struct device *d, const struct tensor *t, const void *rows,
                     int64_t first, int64_t n, void *out)
{
    const struct cpu_device *c = d->priv;
    uint64_t panel = dtype_panel_bytes(t->type, tensor_k(t));
    for (int64_t p = first; p < first + n; p++)
        cpu_pack_panel(c->kern, t, rows, p, (uint8_t *)out + (uint64_t)(p - first) * panel);
}

static pith_status cpu_page_read(struct place page, const struct state *kv, int first, int n,
                                 void *k, void *v, struct pith_error *err)
{
    (void)err;
    kv_get_page(kv, at(page), first, n, k, v);
    return PITH_OK;
}

static pith_status cpu_page_write(struct place page, const struct state *kv, int first, int n,
                                  const void *k, const void *v, struct pith_error *err)
{
    (void)err;
    kv_put_page(kv, at(page), first, n, k, v);
    return PITH_OK;
}

const struct backend backend_cpu = {
    .name = "cpu",
    .trees = 1,
    .makes_panels = 1,
    .n_devices = cpu_n_devices,
    .open = cpu_open,
    .close = cpu_close,
    .memory = cpu_memory,
    .limits = cpu_limits,
    .alloc = cpu_alloc,
    .reserve = cpu_reserve,
    .commit = cpu_commit,
    .decommit = cpu_decommit,
    .import = cpu_import,
    .release = cpu_release,
    .map = cpu_map,
    .write = cpu_write,
    .read = cpu_read,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .event_wait = cpu_event_wait,
    .impl = cpu_impl,
    .pack = cpu_pack,
    .job_bytes = cpu_job_bytes,
    .prepare = cpu_prepare,
    .finish = cpu_finish,
    .cache_ops = cpu_cache_ops,
    .at_once = 1,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .read_ahead = cpu_read_ahead,
    .page_read = cpu_page_read,
    .page_write = cpu_page_write,
    .measure = cpu_measure,
    .measure_threads = cpu_measure_threads,
};
