/* cpu.c -- the CPU as a backend. It can be opened as several logical devices (PITH_CPU_DEVICES=n):
 * they share the cores and differ in their memory accounts and in nothing else, so that cut plans
 * and copies between devices are real on any machine. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include "base/machine/cpu.h"
#include "base/machine/env.h"
#include "base/mem.h"
#include "graph/kv_page.h"

static int cpu_n_devices(void)
{
    int64_t n = 1;
    return env_int("PITH_CPU_DEVICES", 1, MAX_DEVICES, 1, &n, NULL) == PITH_OK ? (int)n : 1;
}

static pith_status cpu_open(int i, int reference, struct device **out, struct pith_error *err)
{
    enum cpu_level level;
    pith_status st = cpu_level(&level, err);
    if (st != PITH_OK)
        return st;
    int64_t n;
    st = env_int("PITH_CPU_DEVICES", 1, MAX_DEVICES, 1, &n, err);
    if (st != PITH_OK)
        return st;
    struct cpu_device *d = mem_zalloc(sizeof *d, PITH_MEM_META);
    if (!d)
        return error_set(err, PITH_NOMEM, "out of memory while opening the CPU");
    d->level = reference ? CPU_REF : (int)level;
    d->kern = d->level == CPU_REF ? NULL : kern_table(d->level);
    d->dev.backend = &backend_cpu;
    snprintf(d->dev.name, sizeof d->dev.name, i ? "CPU%d" : "CPU", i);
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

static pith_status cpu_alloc(struct device *d, uint64_t bytes, pith_purpose purpose,
                             struct buffer *out, struct pith_error *err)
{
    *out = (struct buffer){.device = d, .bytes = bytes, .purpose = purpose};
    out->p = mem_reserve(bytes);
    if (!out->p)
        return error_set(err, PITH_NOMEM, "%s: no address space for %llu bytes of %s", d->name,
                         (unsigned long long)bytes, pith_purpose_name(purpose));
    pith_status st = mem_commit(out->p, bytes, purpose, err);
    if (st != PITH_OK) {
        mem_release(out->p, bytes);
        out->p = NULL;
        return st;
    }
    atomic_fetch_add(&d->used[purpose], bytes);
    return PITH_OK;
}

static pith_status cpu_import(struct device *d, const void *host, uint64_t bytes,
                              struct buffer *out, struct pith_error *err)
{
    (void)err;
    *out = (struct buffer){
        .device = d, .p = (void *)(uintptr_t)host, .bytes = 0, .purpose = PITH_MEM_WEIGHTS};
    (void)bytes; /* page cache: not ours to count */
    return PITH_OK;
}

static void cpu_release(struct buffer *b)
{
    if (!b->p || !b->bytes)
        return;
    atomic_fetch_sub(&b->device->used[b->purpose], b->bytes);
    mem_decommit(b->p, b->bytes, b->purpose);
    mem_release(b->p, b->bytes);
    b->p = NULL;
}

static void cpu_write(struct device *d, void *dst, const void *host, uint64_t bytes)
{
    (void)d;
    memcpy(dst, host, bytes);
}

static void cpu_read(struct device *d, void *host, const void *src, uint64_t bytes)
{
    (void)d;
    memcpy(host, src, bytes);
}

static void cpu_copy(struct device *to, void *dst, struct device *from, const void *src,
                     uint64_t bytes)
{
    (void)to;
    from->backend->read(from, dst, src, bytes);
}

static int cpu_impl(const struct device *d, const struct node *n, const struct state *kv,
                    struct op_impl *out)
{
    const struct cpu_device *c = d->priv;
    if (c->kern && cpu_ops_impl(c->kern, n, kv, out))
        return 1;
    ref_impl(n, kv, out);
    if (!out->fn)
        return 0; /* an op that only fusion makes */
    out->slow = c->kern && (n->op == OP_MATMUL || n->op == OP_MOE_MATMUL);
    return 1;
}

void cpu_pack_panel(const struct kern *kern, const struct tensor *t, int64_t stack, int64_t p,
                    void *out)
{
    const struct dtype_traits *tr = &dtypes[t->type];
    int64_t m = tensor_m(t), k = tensor_k(t), left = m - p * tr->pack_rows;
    uint64_t row = dtype_row_bytes(t->type, k);
    const uint8_t *first =
        (const uint8_t *)t->file + (uint64_t)(stack * m + p * tr->pack_rows) * row;
    if (kern && kern->pack[t->type] && left >= tr->pack_rows) {
        kern->pack[t->type](first, (int64_t)row, k, out);
        return;
    }
    const void *rows[64];
    int n_rows = 0;
    for (; n_rows < tr->pack_rows && n_rows < left; n_rows++)
        rows[n_rows] = first + (uint64_t)n_rows * row;
    tr->pack(rows, n_rows, k, out);
}

static void cpu_pack(const struct device *d, const struct tensor *t, int64_t stack, int64_t first,
                     int64_t n, void *out)
{
    const struct cpu_device *c = d->priv;
    uint64_t panel = dtype_panel_bytes(t->type, tensor_k(t));
    for (int64_t p = first; p < first + n; p++)
        cpu_pack_panel(c->kern, t, stack, p, (uint8_t *)out + (uint64_t)(p - first) * panel);
}

static void cpu_page_read(struct device *d, const struct state *kv, const uint8_t *page, int first,
                          int n, void *k, void *v)
{
    (void)d;
    kv_get_page(kv, page, first, n, k, v);
}

static void cpu_page_write(struct device *d, const struct state *kv, uint8_t *page, int first,
                           int n, const void *k, const void *v)
{
    (void)d;
    kv_put_page(kv, page, first, n, k, v);
}

static void cpu_sync(struct device *d)
{
    (void)d; /* run returns when the work is done */
}

const struct backend backend_cpu = {
    .name = "cpu",
    .n_devices = cpu_n_devices,
    .open = cpu_open,
    .close = cpu_close,
    .memory = cpu_memory,
    .alloc = cpu_alloc,
    .import = cpu_import,
    .release = cpu_release,
    .write = cpu_write,
    .read = cpu_read,
    .copy = cpu_copy,
    .impl = cpu_impl,
    .pack = cpu_pack,
    .state_bytes = cpu_state_bytes,
    .run = cpu_run,
    .page_read = cpu_page_read,
    .page_write = cpu_page_write,
    .gather = cpu_gather,
    .sync = cpu_sync,
    .measure = cpu_measure,
    .measure_threads = cpu_measure_threads,
};
