/* device.c -- the library, devices, their memory, and what moves bytes: see cuda.h.
 *
 * Everything is handed to one stream of a device, which works in order, but for writes that need
 * not wait for what was given before: weights as they are loaded, or brought for a step, come
 * through a second stream while the first one computes. After each hand-over a stream passes a mark
 * (struct cu_lane). All bytes go through stages: pieces of pinned host memory, which threads take
 * in turn (gpu.h, gpu_stages). */
#include "backend/cuda/cuda_impl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/mem.h"

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static void *library; /* opened once, and there as long as the process */
static int driver;    /* its version: 12040 is 12.4 */
/* ---------------------------------------------------------------- the library */

static pith_status find_functions(void *lib, const char *file, struct pith_error *err)
{
#define X(member, name, params)                                                                    \
    *(void **)&cu.member = dlsym(lib, name);                                                       \
    if (!cu.member)                                                                                \
        return error_set(err, PITH_DEVICE, "CUDA: %.60s has no %s: the driver is too old", file,   \
                         name);
    CU_FUNCTIONS(X)
#undef X
    int all = 1;
#define X(member, name, params)                                                                    \
    *(void **)&cu.member = dlsym(lib, name);                                                       \
    all &= cu.member != NULL;
    CU_POOL_FUNCTIONS(X)
#undef X
    cu.address_reserve = all ? cu.address_reserve : NULL;
    all = 1;
#define X(member, name, params)                                                                    \
    *(void **)&cu.member = dlsym(lib, name);                                                       \
    all &= cu.member != NULL;
    CU_PRIMARY_FUNCTIONS(X)
#undef X
    cu.primary_take = all ? cu.primary_take : NULL;
#define X(member, name, params) *(void **)&cu.member = dlsym(lib, name);
    CU_MAP_FUNCTIONS(X)
#undef X
    return PITH_OK;
}

static pith_status open_library(struct pith_error *err)
{
    static const struct gpu_library drivers = {"CUDA", "driver's library", "PITH_CUDA_LIBRARY",
                                               "libcuda.so.1", "cuInit"};
    const char *file;
    void *lib, *first;
    pith_status st = gpu_library(&drivers, &lib, &first, &file, err);
    if (st != PITH_OK)
        return st;
    st = find_functions(lib, file, err);
    cu_result r = st == PITH_OK ? cu.init(0) : CU_SUCCESS;
    if (r != CU_SUCCESS)
        st = error_set(err, PITH_DEVICE, "CUDA: no device can be had: error %d (%.60s)", r,
                       cu_name_of(r));
    if (st == PITH_OK && (cu.driver_version(&driver) || driver < CU_LEAST_DRIVER))
        st = error_set(err, PITH_UNSUPPORTED, "CUDA: the driver is for CUDA %d.%d, %d.%d is needed",
                       driver / 1000, driver % 1000 / 10, CU_LEAST_DRIVER / 1000,
                       CU_LEAST_DRIVER % 1000 / 10);
    if (st != PITH_OK)
        dlclose(lib);
    else
        library = lib;
    return st;
}

static pith_status need_library(struct pith_error *err)
{
    pthread_mutex_lock(&library_lock);
    pith_status st = library ? PITH_OK : open_library(err);
    pthread_mutex_unlock(&library_lock);
    return st;
}

/* ---------------------------------------------------------------- which devices */

/* Without PITH_CUDA_DEVICES: as many as the driver finds, where there is hardware to look for. */
static int count_hardware(void)
{
    int n = 0;
    if (access("/dev/nvidiactl", F_OK) && access("/dev/dxg", F_OK))
        return 0;
    if (cu_kernels_found(NULL) != PITH_OK)
        return 1; /* that says so when it is opened */
    if (need_library(NULL) != PITH_OK || cu.device_count(&n) != CU_SUCCESS)
        return 0;
    return n < MAX_DEVICES ? n : MAX_DEVICES - 1;
}

static int cuda_n_devices(struct pith_error *err)
{
    return env_get("PITH_CUDA_DEVICES") ? gpu_n_listed("PITH_CUDA_DEVICES", err) : count_hardware();
}

static pith_status find_ordinal(long n, cu_device *out, struct pith_error *err)
{
    int found = 0;
    cu_result r = cu.device_count(&found);
    if (r == CU_SUCCESS && (n < 0 || n >= found))
        return error_set(err, PITH_DEVICE,
                         "PITH_CUDA_DEVICES names device %ld, this machine has %d", n, found);
    if (r == CU_SUCCESS)
        r = cu.device_get(out, (int)n);
    return r == CU_SUCCESS ? PITH_OK
                           : error_set(err, PITH_DEVICE, "CUDA: devices cannot be listed: %.60s",
                                       cu_name_of(r));
}

/* ---------------------------------------------------------------- opening and closing */

static pith_status read_properties(struct cu_gpu *v, struct pith_error *err)
{
    int major = 0, minor = 0, integrated = 0, shared = 0;
    int64_t limit = 0;
    size_t bytes = 0;
    pith_status st;
    TRY(cu_check(v, cu.device_name(v->what, sizeof v->what, v->ordinal), "its name", err));
    TRY(cu_check(v, cu.device_memory(&bytes, v->ordinal), "its memory", err));
    TRY(cu_check(v, cu.device_attribute(&major, CU_MAJOR, v->ordinal), "its kind", err));
    TRY(cu_check(v, cu.device_attribute(&minor, CU_MINOR, v->ordinal), "its kind", err));
    TRY(cu_check(v, cu.device_attribute(&integrated, CU_INTEGRATED, v->ordinal), "its kind", err));
    TRY(cu_check(v, cu.device_attribute(&shared, CU_SHARED, v->ordinal), "its kind", err));
    v->arch = 10 * major + minor;
    v->shared = (uint32_t)shared;
    v->total = bytes;
    snprintf(v->dev.about, sizeof v->dev.about, "%.95s", v->what);
    v->dev.kind = integrated && !env_get("PITH_CUDA_DEVICES") ? DEVICE_INTEGRATED : DEVICE_GPU;
    if (v->arch < CU_LEAST_ARCH)
        TRY(error_set(err, PITH_UNSUPPORTED,
                      "%s: %.90s has compute capability %d.%d, 7.5 is needed", v->dev.name, v->what,
                      major, minor));
    const char *env = "PITH_CUDA_MASK";
    gpu_optional(&v->dev, env, "dp4a", 1);
    gpu_optional(&v->dev, env, "mma", 1);
    gpu_optional(&v->dev, env, "flash", 1);
    gpu_optional(&v->dev, env, "wgmma", v->arch >= 90 && v->arch < 100);
    gpu_optional(&v->dev, env, "flash_wide", v->arch >= 90 && v->arch < 100);
    gpu_optional(&v->dev, env, "vmm", cu.address_reserve != NULL);
    TRY(cu_pools_open(v, err));
    TRY(env_int("PITH_CUDA_MEMORY", 1 << 20, INT64_MAX, 0, &limit, err));
    if (limit && (uint64_t)limit < v->total)
        v->total = (uint64_t)limit;
fail:
    return st;
}

pith_status cu_stage_make(struct cu_gpu *v, uint64_t bytes, struct cu_stage *out,
                          struct pith_error *err)
{
    void *p = NULL;
    *out = (struct cu_stage){0};
    pith_status st = cu_call(v, "pinned memory of the host", 1, err);
    if (st == PITH_OK)
        st = cu_check(v, cu.host_alloc(&p, bytes, 0), "pinned memory of the host", err);
    out->map = st == PITH_OK ? p : NULL;
    return st;
}

void cu_stage_free(struct cu_stage *s)
{
    if (s->map)
        cu.host_free(s->map);
    *s = (struct cu_stage){0};
}

/* Devices whose primary context somebody here has: a bit for each ordinal. */
static _Atomic(uint64_t) primaries;

/* NCCL works in a device's primary context and nowhere else, which one alone can have: whoever
 * comes first, where there are several GPUs and NCCL. */
static int take_primary(const struct cu_gpu *v)
{
    int n = 0;
    uint64_t bit = v->ordinal < 64 ? (uint64_t)1 << v->ordinal : 0;
    if (!bit || !cu.primary_take || cu.device_count(&n) != CU_SUCCESS || n < 2 ||
        cu_nccl_found(NULL) != PITH_OK)
        return 0;
    return !(atomic_fetch_or(&primaries, bit) & bit);
}

static void give_primary(struct cu_gpu *v)
{
    if (v->primary)
        atomic_fetch_and(&primaries, ~((uint64_t)1 << v->ordinal));
    v->primary = 0;
}

static cu_result make_context(struct cu_gpu *v)
{
    v->primary = take_primary(v);
    if (!v->primary)
        return cu.context_make(&v->context, CU_CTX_BLOCKING_SYNC, v->ordinal);
    cu.primary_flags(v->ordinal, CU_CTX_BLOCKING_SYNC); /* if nobody else has it already */
    cu_result r = cu.primary_take(&v->context, v->ordinal);
    if (r == CU_SUCCESS)
        cu_enter(v);
    else
        v->context = NULL;
    return r;
}

static pith_status open_new(struct cu_gpu *v, struct pith_error *err)
{
    pith_status st;
    TRY(cu_call(v, "open", 0, err));
    TRY(cu_check(v, make_context(v), "open", err));
    TRY(cu_lane_open(v, &v->work, err));
    TRY(cu_lane_open(v, &v->beside, err));
    TRY(cu_check(v, cu.stream_make(&v->recorder, CU_STREAM_NON_BLOCKING), "a stream", err));
    for (int i = 0; i < CU_STAGES; i++)
        TRY(cu_stage_make(v, GPU_STAGE_BYTES, &v->stage[i], err));
    TRY(cu_kernels_open(v, driver, err));
fail:
    return st;
}

/* A context takes all that was made in it along. */
static void destroy(struct cu_gpu *v)
{
    cu_nccl_leave(v);
    if (v->context) {
        cu_enter(v);
        cu_idle(v);
        cu_kernels_close(v);
        for (int i = 0; i < CU_STAGES; i++)
            cu_stage_free(&v->stage[i]);
        if (v->recorder)
            cu.stream_end(v->recorder);
        cu_lane_close(&v->beside);
        cu_lane_close(&v->work);
        if (v->primary)
            cu.primary_end(v->ordinal);
        else
            cu.context_end(v->context);
    }
    give_primary(v);
    pthread_mutex_destroy(&v->lock);
    gpu_stages_deinit(&v->stages);
    mem_free(v);
}

static struct gpu_parked parked = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void cuda_close(struct device *d)
{
    struct cu_gpu *v = cu_of(d);
    cu_nccl_leave(v);
    if (atomic_load(&d->lost) || !gpu_park(&parked, v, (uint64_t)v->ordinal))
        destroy(v);
}

void cuda_forget(void)
{
    for (void *v; (v = gpu_unpark(&parked, NULL)) != NULL;)
        destroy(v);
    if (library)
        dlclose(library);
    library = NULL;
    cu_nccl_forget();
}

static pith_status open_device(int i, struct device **out, struct pith_error *err)
{
    cu_device ordinal = 0;
    pith_status st = cu_kernels_found(err);
    if (st == PITH_OK)
        st = need_library(err);
    if (st == PITH_OK)
        st = find_ordinal(gpu_listed("PITH_CUDA_DEVICES", i), &ordinal, err);
    if (st != PITH_OK)
        return st;
    uint64_t key = (uint64_t)ordinal;
    struct cu_gpu *v = gpu_unpark(&parked, &key);
    if (!v) {
        v = mem_zalloc(sizeof *v, PITH_MEM_META);
        if (!v)
            return error_set(err, PITH_NOMEM, "out of memory while opening a CUDA device");
        pthread_mutex_init(&v->lock, NULL);
        gpu_stages_init(&v->stages);
        v->ordinal = ordinal;
    }
    v->dev = (struct device){.backend = &backend_cuda, .priv = v};
    snprintf(v->dev.name, sizeof v->dev.name, "cuda%d", i);
    const char *names;
    cu_without(&v->dev, 0, 0, &names);
    st = read_properties(v, err);
    if (st == PITH_OK && !v->context)
        st = open_new(v, err);
    if (st != PITH_OK) {
        destroy(v);
        return st;
    }
    *out = &v->dev;
    return PITH_OK;
}

/* What is parked is nobody's. */
static pith_status cuda_open(int i, int reference, struct device **out, struct pith_error *err)
{
    struct mem_account *before = mem_account_enter(NULL);
    pith_status st = open_device(i, out, err);
    (void)reference;
    mem_account_leave(before);
    return st;
}

/* Other processes use it, too. */
static void cuda_memory(struct device *d, struct mem_left *out)
{
    struct cu_gpu *v = cu_of(d);
    uint64_t taken = atomic_load(&v->taken), left = v->total > taken ? v->total - taken : 0;
    size_t all = 0, now = 0;
    cu_enter(v);
    if (cu.memory_left(&now, &all) == CU_SUCCESS && now < left)
        left = now;
    *out = (struct mem_left){.bytes = left, .total = v->total};
    snprintf(out->by, sizeof out->by, "the memory of %s, %.90s", d->name, v->what);
}

static void cuda_limits(const struct device *d, struct device_limits *out)
{
    const struct cu_gpu *v = cu_of(d);
    *out = (struct device_limits){
        .largest = v->total, .slab = CU_SLAB, .piece = v->piece, .spare = v->total / 64,
        .align = GPU_ALIGN};
}

/* ---------------------------------------------------------------- memory */

static pith_status cuda_alloc(struct buffer *b, struct pith_error *err)
{
    struct cu_gpu *v = cu_of(b->device);
    cu_ptr p = 0;
    pith_status st = cu_call(v, "memory", 1, err);
    if (st == PITH_OK && atomic_load(&v->taken) + b->bytes > v->total)
        st = cu_check(v, CU_OUT_OF_MEMORY, "memory", err);
    if (st == PITH_OK)
        st = cu_check(v, cu.alloc(&p, b->bytes), "memory", err);
    if (st == PITH_OK)
        st = cu_fill(v, p, b->bytes, err);
    if (st != PITH_OK) {
        if (p)
            cu.free(p);
        return st;
    }
    atomic_fetch_add(&v->taken, b->bytes);
    b->handle = pointer_of(p);
    return PITH_OK;
}

/* The driver frees when all that was handed over is done. */
static void cuda_release(struct buffer *b)
{
    struct cu_gpu *v = cu_of(b->device);
    if (b->reserved) {
        cu_unreserve(b);
        return;
    }
    cu_idle(v);
    cu.free(cu_address(b));
    atomic_fetch_sub(&v->taken, b->bytes);
}

static pith_status cuda_zero(struct place at, uint64_t n, struct pith_error *err)
{
    struct cu_gpu *v = cu_of(at.buffer->device);
    pith_status st = cu_call(v, "zero", 0, err);
    return st == PITH_OK ? cu_fill(v, cu_address(at.buffer) + at.offset, n, err) : st;
}

/* ---------------------------------------------------------------- copies */

/* Where it is to be written, zeros may still be on their way. The lock is held. */
static pith_status behind_zeros(struct cu_gpu *v, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (v->zeroed)
        st = cu_check(v, cu.stream_after(v->beside.stream, cu_mark_of(v, v->zeroed), 0), "write",
                      err);
    v->zeroed = st == PITH_OK ? 0 : v->zeroed;
    return st;
}

/* One piece to the device (in NULL: from it) through a stage. Threads have the lock while they hand
 * over, and not while they copy. */
static pith_status move(struct place at, const void *in, void *out, uint64_t n, int apart,
                        uint64_t *value, struct pith_error *err)
{
    struct cu_gpu *v = cu_of(at.buffer->device);
    struct cu_lane *lane = apart ? &v->beside : &v->work;
    uint64_t far = cu_address(at.buffer) + at.offset;
    int i = gpu_stage_take(&v->stages);
    struct cu_stage *s = &v->stage[i];
    pith_status st = cu_wait(v, s->value, err);
    if (st == PITH_OK && in)
        memcpy(s->map, in, n);
    pthread_mutex_lock(&v->lock);
    if (st == PITH_OK && apart)
        st = behind_zeros(v, err);
    if (st == PITH_OK)
        st = in ? cu_check(v, cu.to_device(far, s->map, n, lane->stream), "write", err)
                : cu_check(v, cu.to_host(s->map, far, n, lane->stream), "read", err);
    if (st == PITH_OK)
        st = cu_mark(v, lane, &s->value, err);
    if (st != PITH_OK) /* the stage is taken again */
        cu_idle(v);
    pthread_mutex_unlock(&v->lock);
    if (st == PITH_OK && !in)
        st = cu_wait(v, s->value, err);
    if (st == PITH_OK && !in)
        memcpy(out, s->map, n);
    *value = s->value;
    gpu_stage_leave(&v->stages, i);
    return st;
}

static const struct gpu_mover mover = {&cu_jobs, move};

static pith_status cuda_event_wait(struct device *d, uint64_t ticket, struct pith_error *err)
{
    return gpu_event_wait(&mover, d, ticket, err);
}

static pith_status cuda_write(struct place to, const void *host, uint64_t n, int apart,
                              struct event *ev, struct pith_error *err)
{
    return gpu_write(&mover, to, host, n, apart, ev, err);
}

static pith_status cuda_read(void *host, struct place from, uint64_t n, struct event *ev,
                             struct pith_error *err)
{
    (void)ev;
    return gpu_read(&mover, host, from, n, err);
}

/* Lets a device reach another one's memory by itself, if it can: else copies go by the host. Once
 * for each; what the driver says is nobody's error. The lock is held. */
static void reach(struct cu_gpu *v, const struct cu_gpu *w)
{
    int i = 0, can = 0;
    while (i < MAX_DEVICES && v->peer[i] && v->peer[i] != w->context)
        i++;
    if (i == MAX_DEVICES || v->peer[i] || v->ordinal == w->ordinal)
        return;
    v->peer[i] = w->context;
    if (cu.peer_can(&can, v->ordinal, w->ordinal) == CU_SUCCESS && can)
        cu.peer_enable(w->context, 0);
}

/* v's stream goes on behind all that w has been given: a mark of w, which comes round again after
 * CU_MARKS others, so w's lock is held until v waits for it. Both are. */
static pith_status go_behind(struct cu_gpu *v, struct cu_gpu *w, struct pith_error *err)
{
    uint64_t value = 0;
    cu_enter(w);
    pith_status st = cu_mark(w, &w->work, &value, err);
    cu_enter(v);
    return st == PITH_OK
               ? cu_check(v, cu.stream_after(v->work.stream, cu_mark_of(w, value), 0), "copy", err)
               : st;
}

/* Into the stream of its destination, behind what either device was given before. */
static pith_status cuda_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                             struct pith_error *err)
{
    struct cu_gpu *v = cu_of(to.buffer->device), *w = cu_of(from.buffer->device);
    uint64_t value = 0, there = cu_address(to.buffer) + to.offset;
    uint64_t here = cu_address(from.buffer) + from.offset;
    pith_status st = v == w ? PITH_OK : cu_call(w, "copy", 0, err);
    if (st == PITH_OK)
        st = cu_call(v, "copy", 0, err);
    if (st != PITH_OK)
        return st;
    struct cu_gpu *first = v == w || cu_comes_before(v, w) ? v : w;
    pthread_mutex_lock(&first->lock);
    if (v == w) {
        st = cu_check(v, cu.copy(there, here, n, v->work.stream), "copy", err);
    } else {
        struct cu_gpu *second = first == v ? w : v;
        pthread_mutex_lock(&second->lock);
        reach(v, w);
        st = go_behind(v, w, err);
        pthread_mutex_unlock(&w->lock);
        if (st == PITH_OK)
            st = cu_check(v, cu.copy_peer(there, v->context, here, w->context, n, v->work.stream),
                          "copy", err);
    }
    if (st == PITH_OK)
        st = cu_mark(v, &v->work, &value, err);
    pthread_mutex_unlock(&v->lock);
    if (st == PITH_OK)
        *ev = (struct event){&v->dev, value};
    return st;
}

static pith_status cuda_copies(struct copy *c, int n, struct pith_error *err)
{
    pith_status st;
    if (cu_nccl_copies(c, n, &st, err))
        return st;
    for (int i = 0; i < n && st == PITH_OK; i++)
        st = cuda_copy(c[i].to, c[i].from, c[i].n, &c[i].ev, err);
    return st;
}

const struct backend backend_cuda = {
    .name = "cuda",
    .plain = 1,
    .n_devices = cuda_n_devices,
    .open = cuda_open,
    .close = cuda_close,
    .memory = cuda_memory,
    .limits = cuda_limits,
    .alloc = cuda_alloc,
    .reserve = cu_reserve,
    .commit = cu_commit,
    .decommit = cu_decommit,
    .release = cuda_release,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .copies = cuda_copies,
    .join = cu_nccl_join,
    .joined = cu_nccl_joined,
    .event_wait = cuda_event_wait,
    .impl = cu_impl,
    .coded = cu_coded,
    .without = cu_without,
    .job_bytes = cu_job_bytes,
    .job_memory = cu_job_memory,
    .prepare = cu_prepare,
    .finish = cu_finish,
    .cache_ops = gpu_cache_ops,
    .submit = gpu_submit,
    .wait = gpu_wait,
    .recordings = gpu_recordings,
    .measure = gpu_measure,
    .page_read = gpu_page_read,
    .page_write = gpu_page_write,
};
