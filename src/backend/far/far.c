/* far.c -- devices, memory and copies of the far device: see far.h. */
#include "backend/far/far_impl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/mem.h"
#include "graph/kv_page.h"

static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;
static struct far_plan plan;
static uint64_t n_calls;
static _Atomic(uint64_t) live;
static _Atomic(int) most_moves;

void far_plan(const struct far_plan *p)
{
    pthread_mutex_lock(&plan_lock);
    plan = *p;
    n_calls = 0;
    atomic_store(&most_moves, 0);
    pthread_mutex_unlock(&plan_lock);
}

int far_most_moves(void)
{
    return atomic_load(&most_moves);
}

uint64_t far_calls(void)
{
    pthread_mutex_lock(&plan_lock);
    uint64_t n = n_calls;
    pthread_mutex_unlock(&plan_lock);
    return n;
}

uint64_t far_live(void)
{
    return atomic_load(&live);
}

pith_status far_call(struct far_device *f, const char *what, int memory, struct pith_error *err)
{
    pthread_mutex_lock(&plan_lock);
    uint64_t n = ++n_calls;
    int fails = n == plan.fail_at;
    void (*on_call)(uint64_t) = plan.on_call;
    if (n == plan.vanish_at)
        atomic_store(&f->dev.lost, 1);
    pthread_mutex_unlock(&plan_lock);
    if (on_call)
        on_call(n);
    if (atomic_load(&f->dev.lost))
        return error_set(err, PITH_DEVICE, "%s: %s: the device is lost", f->dev.name, what);
    if (fails && memory)
        return error_set(err, PITH_NOMEM, "%s: %s: no memory, as was asked for", f->dev.name, what);
    return fails ? error_set(err, PITH_DEVICE, "%s: %s failed, as was asked for", f->dev.name, what)
                 : PITH_OK;
}

/* ---------------------------------------------------------------- devices */

static int far_n_devices(struct pith_error *err)
{
    int64_t n = 0;
    return env_int("PITH_FAR_DEVICES", 0, MAX_DEVICES - 1, 0, &n, err) == PITH_OK ? (int)n : -1;
}

int64_t far_delay_ns(void)
{
    int64_t us = 0;
    return env_int("PITH_FAR_DELAY", 0, 1000000, 0, &us, NULL) == PITH_OK ? 1000 * us : 0;
}

static void far_close_device(struct device *d)
{
    struct far_device *f = far_of(d);
    mem_release(f->region, (size_t)f->n_slabs * FAR_SLAB);
    mem_free(f->taken);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static pith_status far_open_device(int i, int reference, struct device **out,
                                   struct pith_error *err)
{
    (void)reference;
    pthread_mutex_lock(&plan_lock);
    uint64_t bytes = plan.bytes ? plan.bytes : FAR_BYTES, seed = plan.seed;
    pthread_mutex_unlock(&plan_lock);
    struct far_device *f = mem_zalloc(sizeof *f, PITH_MEM_META);
    if (!f)
        return error_set(err, PITH_NOMEM, "out of memory while opening a far device");
    pthread_mutex_init(&f->lock, NULL);
    rng_init(&f->rng, seed + (uint64_t)i);
    f->n_slabs = (int32_t)(bytes / FAR_SLAB);
    f->taken = mem_zalloc((size_t)f->n_slabs + 1, PITH_MEM_META);
    f->region = mem_reserve((size_t)f->n_slabs * FAR_SLAB);
    f->dev.backend = &backend_far;
    f->dev.kind = DEVICE_GPU;
    f->dev.priv = f;
    snprintf(f->dev.name, sizeof f->dev.name, "FAR%d", i);
    snprintf(f->dev.about, sizeof f->dev.about, "a device for tests");
    pith_status st = f->taken && f->region
                         ? far_call(f, "open", 0, err)
                         : error_set(err, PITH_NOMEM, "out of memory while opening a far device");
    if (st != PITH_OK) {
        far_close_device(&f->dev);
        return st;
    }
    *out = &f->dev;
    return PITH_OK;
}

static void far_memory(struct device *d, struct mem_left *out)
{
    struct far_device *f = far_of(d);
    pthread_mutex_lock(&f->lock);
    *out = (struct mem_left){.bytes = (uint64_t)(f->n_slabs - f->n_used) * FAR_SLAB,
                             .total = (uint64_t)f->n_slabs * FAR_SLAB};
    pthread_mutex_unlock(&f->lock);
    snprintf(out->by, sizeof out->by, "the memory of %s", d->name);
}

static void far_limits(const struct device *d, struct device_limits *out)
{
    *out = (struct device_limits){
        .largest = (uint64_t)far_of(d)->n_slabs * FAR_SLAB,
                                  .bindable = FAR_SLAB,
                                  .slab = FAR_SLAB,
                                  .grain = FAR_SLAB,
                                  .align = FAR_ALIGN};
}

/* ---------------------------------------------------------------- memory */

/* The lock is held. Slabs in use follow one another with gaps; each run is opened by itself. */
static void protect(struct far_device *f, int how)
{
    for (int32_t i = 0, n; i < f->n_slabs; i += n) {
        for (n = 1; i + n < f->n_slabs && !f->taken[i + n] == !f->taken[i];)
            n++;
        if (f->taken[i])
            mprotect(f->region + (size_t)i * FAR_SLAB, (size_t)n * FAR_SLAB, how);
    }
}

void far_open(struct far_device *f)
{
    pthread_mutex_lock(&f->lock);
    if (!f->open++)
        protect(f, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&f->lock);
}

void far_close(struct far_device *f)
{
    pthread_mutex_lock(&f->lock);
    if (!--f->open)
        protect(f, PROT_NONE);
    pthread_mutex_unlock(&f->lock);
}

static int32_t slab_of(const struct buffer *b)
{
    return (int32_t)((uintptr_t)b->handle - 1);
}

static int32_t slabs_in(const struct buffer *b)
{
    return (int32_t)((b->bytes + FAR_SLAB - 1) / FAR_SLAB);
}

void *far_address(const struct buffer *b)
{
    return far_of(b->device)->region + (size_t)slab_of(b) * FAR_SLAB;
}

const void *far_touch(const struct buffer *b)
{
    return far_address(b);
}

/* The first of n free slabs in a row, -1: there are none. */
static int32_t find_slabs(const struct far_device *f, int32_t n)
{
    int32_t run = 0;
    for (int32_t i = 0; i < f->n_slabs; i++) {
        run = f->taken[i] ? 0 : run + 1;
        if (run == n)
            return i - n + 1;
    }
    return -1;
}

static pith_status far_alloc(struct buffer *b, struct pith_error *err)
{
    struct far_device *f = far_of(b->device);
    int32_t n = slabs_in(b), at;
    pith_status st = far_call(f, "alloc", 1, err);
    if (st != PITH_OK)
        return st;
    pthread_mutex_lock(&f->lock);
    at = find_slabs(f, n);
    if (at < 0)
        st = error_set(err, PITH_NOMEM, "no %d slabs of %d KiB in a row are free, of %d", n,
                       FAR_SLAB >> 10, f->n_slabs);
    else
        st = mem_commit(f->region + (size_t)at * FAR_SLAB, (size_t)n * FAR_SLAB, b->purpose, err);
    if (st == PITH_OK) {
        b->handle = pointer_of((uint64_t)at + 1);
        memset(f->taken + at, 1, (size_t)n);
        f->n_used += n;
        atomic_fetch_add(&live, (uint64_t)n * FAR_SLAB);
        if (!f->open)
            mprotect(f->region + (size_t)at * FAR_SLAB, (size_t)n * FAR_SLAB, PROT_NONE);
    }
    pthread_mutex_unlock(&f->lock);
    return st;
}

/* What is still under way to or from there never arrives. */
static void forget_moves(struct far_device *f, const struct buffer *b)
{
    for (int i = 0; i < FAR_PENDING; i++) {
        struct far_move *m = &f->pending[i];
        if (m->kind != FAR_NONE && (m->to.buffer == b || m->from.buffer == b))
            m->kind = FAR_NONE;
    }
}

static void far_release(struct buffer *b)
{
    struct far_device *f = far_of(b->device);
    int32_t n = slabs_in(b), at = slab_of(b);
    pthread_mutex_lock(&f->lock);
    forget_moves(f, b);
    mem_decommit(f->region + (size_t)at * FAR_SLAB, (size_t)n * FAR_SLAB, b->purpose);
    memset(f->taken + at, 0, (size_t)n);
    f->n_used -= n;
    atomic_fetch_sub(&live, (uint64_t)n * FAR_SLAB);
    pthread_mutex_unlock(&f->lock);
}

/* ---------------------------------------------------------------- copies */

int far_toss(struct far_device *f)
{
    pthread_mutex_lock(&f->lock);
    int heads = rng_below(&f->rng, 2) != 0;
    pthread_mutex_unlock(&f->lock);
    return heads;
}

static void move(const struct far_move *m)
{
    struct far_device *a = m->to.buffer ? far_of(m->to.buffer->device) : NULL;
    struct far_device *b = m->from.buffer ? far_of(m->from.buffer->device) : NULL;
    if (a)
        far_open(a);
    if (b)
        far_open(b);
    memcpy(a ? far_at(m->to) : m->out, b ? far_at(m->from) : m->in, m->n);
    if (b)
        far_close(b);
    if (a)
        far_close(a);
}

/* Moves one of those under way, drawn, unless `dropped` is its ticket: that one never arrives.
 * Until it has been moved it counts as under way. 0: there are none, or others move them. */
static int move_one(struct far_device *f, uint64_t dropped)
{
    struct far_move *p = NULL, m;
    pthread_mutex_lock(&f->lock);
    int at = (int)rng_below(&f->rng, FAR_PENDING);
    for (int i = 0; i < FAR_PENDING && !p; i++) {
        struct far_move *q = &f->pending[(at + i) % FAR_PENDING];
        p = q->kind != FAR_NONE && !q->moves ? q : NULL;
    }
    if (p) {
        p->moves = 1;
        m = *p;
    }
    pthread_mutex_unlock(&f->lock);
    if (!p)
        return 0;
    if (m.ticket != dropped)
        move(&m);
    pthread_mutex_lock(&f->lock);
    *p = (struct far_move){.kind = FAR_NONE};
    pthread_mutex_unlock(&f->lock);
    return 1;
}

static int is_pending(struct far_device *f, uint64_t ticket)
{
    int yes = 0;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < FAR_PENDING; i++)
        yes |= f->pending[i].kind != FAR_NONE && f->pending[i].ticket == ticket;
    pthread_mutex_unlock(&f->lock);
    return yes;
}

/* The lock is held. */
static void count_moves(const struct far_device *f)
{
    int n = 0;
    for (int i = 0; i < FAR_PENDING; i++)
        n += f->pending[i].kind != FAR_NONE;
    for (int most = atomic_load(&most_moves);
         n > most && !atomic_compare_exchange_weak(&most_moves, &most, n);)
        ;
}

/* Begins a move, which is under way from now on; the event is its caller's. */
static void begin(struct far_device *f, struct far_move m, struct event *ev)
{
    for (int put = 0; !put;) {
        pthread_mutex_lock(&f->lock);
        for (int i = 0; i < FAR_PENDING && !put; i++) {
            if (f->pending[i].kind != FAR_NONE)
                continue;
            m.ticket = ++f->tickets;
            f->pending[i] = m;
            *ev = (struct event){&f->dev, m.ticket};
            put = 1;
        }
        count_moves(f);
        pthread_mutex_unlock(&f->lock);
        if (!put && !move_one(f, 0)) /* too many are under way: some arrives */
            sched_yield();
    }
}

static pith_status far_event_wait(struct device *d, uint64_t ticket, struct pith_error *err)
{
    struct far_device *f = far_of(d);
    pith_status st = far_call(f, "wait for a copy", 0, err);
    while (is_pending(f, ticket)) {
        if (!move_one(f, st == PITH_OK ? 0 : ticket)) /* a failed one arrives never */
            sched_yield();
    }
    return st;
}

static pith_status far_write(struct place to, const void *host, uint64_t n, int apart,
                             struct event *ev, struct pith_error *err)
{
    (void)apart; /* moves keep no order anyway */
    struct far_device *f = far_of(to.buffer->device);
    pith_status st = far_call(f, "write", 0, err);
    if (st == PITH_OK)
        begin(f, (struct far_move){.kind = FAR_WRITE, .to = to, .in = host, .n = n}, ev);
    return st;
}

static pith_status far_read(void *host, struct place from, uint64_t n, struct event *ev,
                            struct pith_error *err)
{
    struct far_device *f = far_of(from.buffer->device);
    pith_status st = far_call(f, "read", 0, err);
    if (st == PITH_OK)
        begin(f, (struct far_move){.kind = FAR_READ, .from = from, .out = host, .n = n}, ev);
    return st;
}

static pith_status far_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                            struct pith_error *err)
{
    struct far_device *f = far_of(to.buffer->device);
    pith_status st = far_call(f, "copy", 0, err);
    if (st == PITH_OK && atomic_load(&from.buffer->device->lost))
        st = error_set(err, PITH_DEVICE, "%s: copy: the device is lost", from.buffer->device->name);
    if (st == PITH_OK)
        begin(f, (struct far_move){.kind = FAR_COPY, .to = to, .from = from, .n = n}, ev);
    return st;
}

static pith_status far_zero(struct place at, uint64_t n, struct pith_error *err)
{
    struct far_device *f = far_of(at.buffer->device);
    pith_status st = far_call(f, "zero", 0, err);
    if (st != PITH_OK)
        return st;
    far_open(f);
    memset(far_at(at), 0, n);
    far_close(f);
    return PITH_OK;
}

static pith_status far_page_read(struct place page, const struct state *kv, int first, int n,
                                 void *k, void *v, struct pith_error *err)
{
    struct far_device *f = far_of(page.buffer->device);
    pith_status st = far_call(f, "read of a page", 0, err);
    if (st != PITH_OK)
        return st;
    far_open(f);
    kv_get_page(kv, far_at(page), first, n, k, v);
    far_close(f);
    return PITH_OK;
}

static pith_status far_page_write(struct place page, const struct state *kv, int first, int n,
                                  const void *k, const void *v, struct pith_error *err)
{
    struct far_device *f = far_of(page.buffer->device);
    pith_status st = far_call(f, "write of a page", 0, err);
    if (st != PITH_OK)
        return st;
    far_open(f);
    kv_put_page(kv, far_at(page), first, n, k, v);
    far_close(f);
    return PITH_OK;
}

/* ---------------------------------------------------------------- the table */

/* The reference of every op that has one and is not told to be missing; it reads rows. */
static int far_impl(const struct device *d, const struct node *n, struct op_impl *out)
{
    (void)d;
    pthread_mutex_lock(&plan_lock);
    int lacks = plan.lacks && !strcmp(plan.lacks, op_infos[n->op]->name);
    pthread_mutex_unlock(&plan_lock);
    if (lacks)
        return 0;
    if (n->w && tensor_layout_on(n->w, n->device) != LAYOUT_ROWS)
        return 0;
    ref_impl(n, out);
    return out->fn != NULL;
}

const struct backend backend_far = {
    .name = "far",
    .trees = 1,
    .n_devices = far_n_devices,
    .open = far_open_device,
    .close = far_close_device,
    .memory = far_memory,
    .limits = far_limits,
    .alloc = far_alloc,
    .release = far_release,
    .write = far_write,
    .read = far_read,
    .copy = far_copy,
    .zero = far_zero,
    .event_wait = far_event_wait,
    .impl = far_impl,
    .job_bytes = far_job_bytes,
    .job_memory = far_job_memory,
    .prepare = far_prepare,
    .finish = far_finish,
    .cache_ops = far_cache_ops,
    .submit = far_submit,
    .wait = far_wait,
    .page_read = far_page_read,
    .page_write = far_page_write,
};
