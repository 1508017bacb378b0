/* device.c -- the libraries, devices, their memory, and what moves bytes: see cann.h.
 *
 * Everything is handed to one stream of a device, which works in order. After each hand-over the
 * stream passes a mark, an event out of a ring; a number stands for it, and whoever waits for an
 * older number than the ring has waits for the one that came in its place. All bytes go through
 * stages: pieces of pinned host memory, taken in turn.
 *
 * Pools that grow are one piece each, since operators find their rows by number: all of it is taken
 * when a session is opened. */
#include "backend/cann/cann_impl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/mem.h"

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static void *runtime, *operators; /* opened once, and there as long as the process */

/* ---------------------------------------------------------------- the libraries */

static pith_status find(void *lib, const char *name, const char *file, void **out,
                        struct pith_error *err)
{
    *out = dlsym(lib, name);
    return *out ? PITH_OK
                : error_set(err, PITH_DEVICE, "CANN: %.60s has no %s: it is too old", file, name);
}

static pith_status find_runtime(void *lib, const char *file, struct pith_error *err)
{
    pith_status st;
#define X(member, name, params) TRY(find(lib, name, file, (void **)&acl.member, err));
    ACL_FUNCTIONS(X)
#undef X
#define X(member, name, params) *(void **)&acl.member = dlsym(lib, name);
    ACL_GRAPH_FUNCTIONS(X)
#undef X
    *(void **)&acl.soc_name = dlsym(lib, "aclrtGetSocName");
    *(void **)&acl.last_error = dlsym(lib, "aclGetRecentErrMsg");
fail:
    return st;
}

static pith_status find_operators(void *lib, const char *file, struct pith_error *err)
{
    pith_status st;
#define X(member, name, params)                                                                    \
    TRY(find(lib, name "GetWorkspaceSize", file, (void **)&acl.size.member, err));                 \
    TRY(find(lib, name, file, (void **)&acl.run.member, err));
    ACL_OPERATORS(X)
#undef X
    TRY(find(lib, "aclCreateTensor", file, (void **)&acl.tensor_make, err));
    TRY(find(lib, "aclDestroyTensor", file, (void **)&acl.tensor_end, err));
    TRY(find(lib, "aclCreateScalar", file, (void **)&acl.scalar_make, err));
    TRY(find(lib, "aclDestroyScalar", file, (void **)&acl.scalar_end, err));
    *(void **)&acl.executor_keep = dlsym(lib, "aclSetAclOpExecutorRepeatable");
    *(void **)&acl.executor_end = dlsym(lib, "aclDestroyAclOpExecutor");
fail:
    return st;
}

static pith_status open_libraries(struct pith_error *err)
{
    static const struct gpu_library runtimes = {"CANN", "runtime of CANN's", "PITH_CANN_LIBRARY",
                                                "libascendcl.so", "aclInit"};
    static const struct gpu_library ops = {"CANN", "operator library of CANN's", "PITH_CANN_OPS",
                                           "libopapi.so", "aclnnAdd"};
    void *lib = NULL, *more = NULL, *first;
    const char *file;
    pith_status st = gpu_library(&runtimes, &lib, &first, &file, err);
    if (st != PITH_OK)
        return st;
    TRY(find_runtime(lib, file, err));
    st = gpu_library(&ops, &more, &first, &file, err);
    if (st != PITH_OK) {
        dlclose(lib);
        return st;
    }
    TRY(find_operators(more, file, err));
    acl_error r = acl.init(NULL);
    if (r != ACL_OK && r != ACL_AGAIN)
        TRY(error_set(err, PITH_DEVICE, "CANN: no device can be had: error %d", r));
    runtime = lib;
    operators = more;
    return PITH_OK;
fail:
    if (more)
        dlclose(more);
    dlclose(lib);
    return st;
}

static pith_status need_libraries(struct pith_error *err)
{
    pthread_mutex_lock(&library_lock);
    pith_status st = runtime ? PITH_OK : open_libraries(err);
    pthread_mutex_unlock(&library_lock);
    return st;
}

void cann_forget(void)
{
    if (operators)
        dlclose(operators);
    if (runtime)
        dlclose(runtime);
    runtime = operators = NULL;
}

int cn_has_graphs(void)
{
    return acl.capture_begin && acl.capture_end && acl.replay && acl.recording_end;
}

/* ---------------------------------------------------------------- which devices */

/* Without PITH_CANN_DEVICES: as many as the runtime finds, where there is hardware to look for. */
static int count_hardware(void)
{
    uint32_t n = 0;
    if (access("/dev/davinci_manager", F_OK))
        return 0;
    if (need_libraries(NULL) != PITH_OK || acl.device_count(&n) != ACL_OK)
        return 0;
    return n < MAX_DEVICES ? (int)n : MAX_DEVICES - 1;
}

static int cann_n_devices(struct pith_error *err)
{
    return env_get("PITH_CANN_DEVICES") ? gpu_n_listed("PITH_CANN_DEVICES", err) : count_hardware();
}

static pith_status find_ordinal(long n, int32_t *out, struct pith_error *err)
{
    uint32_t found = 0;
    acl_error r = acl.device_count(&found);
    if (r != ACL_OK)
        return error_set(err, PITH_DEVICE, "CANN: devices cannot be listed: error %d", r);
    if (n < 0 || n >= (long)found)
        return error_set(err, PITH_DEVICE,
                         "PITH_CANN_DEVICES names device %ld, this machine has %u", n, found);
    *out = (int32_t)n;
    return PITH_OK;
}

/* ---------------------------------------------------------------- opening and closing */

pith_status cn_stage_make(struct cn_npu *v, uint64_t bytes, struct cn_stage *out,
                          struct pith_error *err)
{
    void *p = NULL;
    *out = (struct cn_stage){0};
    pith_status st = cn_call(v, "pinned memory of the host", 1, err);
    if (st == PITH_OK)
        st = cn_check(v, acl.host_alloc(&p, bytes), "pinned memory of the host", err);
    out->map = st == PITH_OK ? p : NULL;
    return st;
}

void cn_stage_free(struct cn_stage *s)
{
    if (s->map)
        acl.host_free(s->map);
    *s = (struct cn_stage){0};
}

static pith_status open_new(struct cn_npu *v, struct pith_error *err)
{
    size_t left = 0, total = 0;
    int64_t limit = 0;
    pith_status st;
    TRY(cn_call(v, "open", 0, err));
    TRY(cn_check(v, acl.device_set(v->ordinal), "open", err));
    TRY(cn_check(v, acl.context_make(&v->context, v->ordinal), "open", err));
    TRY(cn_check(v, acl.context_set(v->context), "open", err));
    TRY(cn_check(v, acl.memory_left(ACL_HBM, &left, &total), "its memory", err));
    TRY(env_int("PITH_CANN_MEMORY", 1 << 20, INT64_MAX, 0, &limit, err));
    v->total = limit && (uint64_t)limit < total ? (uint64_t)limit : total;
    TRY(cn_check(v, acl.stream_make(&v->stream), "a stream", err));
    TRY(cn_check(v, acl.stream_make(&v->recorder), "a stream", err));
    for (int i = 0; i < CN_MARKS; i++)
        TRY(cn_check(v, acl.event_make(&v->mark[i], ACL_EVENT_SYNC), "an event", err));
    for (int i = 0; i < CN_STAGES; i++)
        TRY(cn_stage_make(v, GPU_STAGE_BYTES, &v->stage[i], err));
fail:
    return st;
}

static void cann_close(struct device *d)
{
    struct cn_npu *v = cn_of(d);
    if (v->context) {
        cn_enter(v);
        if (v->stream)
            acl.stream_wait(v->stream);
        for (int i = 0; i < CN_STAGES; i++)
            cn_stage_free(&v->stage[i]);
        for (int i = 0; i < CN_MARKS; i++)
            if (v->mark[i])
                acl.event_end(v->mark[i]);
        if (v->recorder)
            acl.stream_end(v->recorder);
        if (v->stream)
            acl.stream_end(v->stream);
        acl.context_end(v->context);
    }
    pthread_mutex_destroy(&v->lock);
    gpu_stages_deinit(&v->stages);
    mem_free(v);
}

static pith_status cann_open(int i, int reference, struct device **out, struct pith_error *err)
{
    int32_t ordinal = 0;
    (void)reference;
    pith_status st = need_libraries(err);
    if (st == PITH_OK)
        st = find_ordinal(gpu_listed("PITH_CANN_DEVICES", i), &ordinal, err);
    if (st != PITH_OK)
        return st;
    struct cn_npu *v = mem_zalloc(sizeof *v, PITH_MEM_META);
    if (!v)
        return error_set(err, PITH_NOMEM, "out of memory while opening a CANN device");
    pthread_mutex_init(&v->lock, NULL);
    gpu_stages_init(&v->stages);
    v->ordinal = ordinal;
    v->dev.backend = &backend_cann;
    v->dev.kind = DEVICE_GPU;
    v->dev.priv = v;
    const char *name = acl.soc_name ? acl.soc_name() : NULL;
    snprintf(v->what, sizeof v->what, "%.60s", name ? name : "Ascend");
    snprintf(v->dev.name, sizeof v->dev.name, "cann%d", i);
    snprintf(v->dev.about, sizeof v->dev.about, "%.60s", v->what);
    st = open_new(v, err);
    if (st != PITH_OK) {
        cann_close(&v->dev);
        return st;
    }
    *out = &v->dev;
    return PITH_OK;
}

/* Other processes use it, too. */
static void cann_memory(struct device *d, struct mem_left *out)
{
    struct cn_npu *v = cn_of(d);
    uint64_t taken = atomic_load(&v->taken), left = v->total > taken ? v->total - taken : 0;
    size_t all = 0, now = 0;
    cn_enter(v);
    if (acl.memory_left(ACL_HBM, &now, &all) == ACL_OK && now < left)
        left = now;
    *out = (struct mem_left){.bytes = left, .total = v->total};
    snprintf(out->by, sizeof out->by, "the memory of %s, %.60s", d->name, v->what);
}

static void cann_limits(const struct device *d, struct device_limits *out)
{
    *out = (struct device_limits){
        .largest = cn_of(d)->total,
        .slab = UINT64_MAX,
        .spare = cn_of(d)->total / 10, /* work space of operators, which nobody tells before */
        .align = CN_ALIGN};
}

/* ---------------------------------------------------------------- the stream */

pith_status cn_mark(struct cn_npu *v, uint64_t *value, struct pith_error *err)
{
    uint64_t next = v->value + 1;
    pith_status st =
        cn_check(v, acl.event_record(v->mark[next % CN_MARKS], v->stream), "an event", err);
    if (st == PITH_OK)
        *value = v->value = next;
    return st;
}

pith_status cn_wait(struct cn_npu *v, uint64_t value, struct pith_error *err)
{
    if (!value)
        return PITH_OK;
    cn_enter(v);
    return cn_check(v, acl.event_wait(v->mark[value % CN_MARKS]), "wait", err);
}

/* ---------------------------------------------------------------- memory */

static pith_status fill(struct cn_npu *v, uint64_t from, uint64_t n, struct pith_error *err)
{
    uint64_t value;
    pthread_mutex_lock(&v->lock);
    pith_status st =
        cn_check(v, acl.fill(pointer_of(from), n, 0, n, v->stream), "zero", err);
    if (st == PITH_OK)
        st = cn_mark(v, &value, err);
    pthread_mutex_unlock(&v->lock);
    return st;
}

static pith_status take(struct buffer *b, struct pith_error *err)
{
    struct cn_npu *v = cn_of(b->device);
    void *p = NULL;
    pith_status st = cn_call(v, "memory", 1, err);
    if (st == PITH_OK && atomic_load(&v->taken) + b->bytes > v->total)
        st = cn_check(v, ACL_NO_MEMORY, "memory", err);
    if (st == PITH_OK)
        st = cn_check(v, acl.alloc(&p, b->bytes, ACL_HUGE_FIRST), "memory", err);
    if (st != PITH_OK)
        return st;
    atomic_fetch_add(&v->taken, b->bytes);
    b->handle = p;
    return PITH_OK;
}

static void cann_release(struct buffer *b)
{
    struct cn_npu *v = cn_of(b->device);
    cn_enter(v);
    acl.stream_wait(v->stream);
    acl.free(b->handle);
    atomic_fetch_sub(&v->taken, b->bytes);
}

static pith_status cann_alloc(struct buffer *b, struct pith_error *err)
{
    pith_status st = take(b, err);
    if (st != PITH_OK)
        return st;
    st = fill(cn_of(b->device), cn_address(b), b->bytes, err);
    if (st != PITH_OK)
        cann_release(b);
    return st;
}

/* Addresses are memory here: what is committed is made zero, and stays when it is not. */
static pith_status cann_reserve(struct buffer *b, struct pith_error *err)
{
    return take(b, err);
}

static pith_status cann_commit(struct buffer *b, uint64_t to, struct pith_error *err)
{
    struct cn_npu *v = cn_of(b->device);
    uint64_t end = to < b->bytes ? to : b->bytes;
    pith_status st = cn_call(v, "memory", 1, err);
    if (st != PITH_OK || b->committed >= end)
        return st;
    return fill(v, cn_address(b) + b->committed, end - b->committed, err);
}

static void cann_decommit(struct buffer *b, uint64_t to)
{
    (void)b, (void)to;
}

static pith_status cann_zero(struct place at, uint64_t n, struct pith_error *err)
{
    struct cn_npu *v = cn_of(at.buffer->device);
    pith_status st = cn_call(v, "zero", 0, err);
    return st == PITH_OK ? fill(v, cn_address(at.buffer) + at.offset, n, err) : st;
}

/* ---------------------------------------------------------------- copies */

static pith_status copy(struct cn_npu *v, uint64_t to, uint64_t from, uint64_t n, int kind,
                        const char *what, struct pith_error *err)
{
    return cn_check(v,
                    acl.copy(pointer_of(to), n, pointer_of(from), n, kind, v->stream), what, err);
}

/* One piece to the device (in NULL: from it) through a stage. Threads have the lock while they hand
 * over, and not while they copy. */
static pith_status move(struct place at, const void *in, void *out, uint64_t n, int apart,
                        uint64_t *value, struct pith_error *err)
{
    (void)apart;
    struct cn_npu *v = cn_of(at.buffer->device);
    uint64_t far = cn_address(at.buffer) + at.offset;
    int i = gpu_stage_take(&v->stages);
    struct cn_stage *s = &v->stage[i];
    pith_status st = cn_wait(v, s->value, err);
    if (st == PITH_OK && in)
        memcpy(s->map, in, n);
    pthread_mutex_lock(&v->lock);
    if (st == PITH_OK)
        st = in ? copy(v, far, (uintptr_t)s->map, n, ACL_TO_DEVICE, "write", err)
                : copy(v, (uintptr_t)s->map, far, n, ACL_TO_HOST, "read", err);
    if (st == PITH_OK)
        st = cn_mark(v, &s->value, err);
    pthread_mutex_unlock(&v->lock);
    if (st == PITH_OK && !in)
        st = cn_wait(v, s->value, err);
    if (st == PITH_OK && !in)
        memcpy(out, s->map, n);
    *value = s->value;
    gpu_stage_leave(&v->stages, i);
    return st;
}

static const struct gpu_mover mover = {&cn_jobs, move};

static pith_status cann_event_wait(struct device *d, uint64_t ticket, struct pith_error *err)
{
    return gpu_event_wait(&mover, d, ticket, err);
}

static pith_status cann_write(struct place to, const void *host, uint64_t n, int apart,
                              struct event *ev, struct pith_error *err)
{
    return gpu_write(&mover, to, host, n, apart, ev, err);
}

static pith_status cann_read(void *host, struct place from, uint64_t n, struct event *ev,
                             struct pith_error *err)
{
    (void)ev;
    return gpu_read(&mover, host, from, n, err);
}

static pith_status cann_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                             struct pith_error *err)
{
    struct cn_npu *v = cn_of(to.buffer->device);
    uint64_t value = 0;
    if (from.buffer->device != to.buffer->device)
        return gpu_across(&mover, to, from, n, ev, err);
    pith_status st = cn_call(v, "copy", 0, err);
    if (st != PITH_OK)
        return st;
    pthread_mutex_lock(&v->lock);
    st = copy(v, cn_address(to.buffer) + to.offset, cn_address(from.buffer) + from.offset, n,
              ACL_ON_DEVICE, "copy", err);
    if (st == PITH_OK)
        st = cn_mark(v, &value, err);
    pthread_mutex_unlock(&v->lock);
    if (st == PITH_OK)
        *ev = (struct event){&v->dev, value};
    return st;
}

const struct backend backend_cann = {
    .name = "cann",
    .plain = 1,
    .half = 1,
    .k_rows = 1,
    .n_devices = cann_n_devices,
    .open = cann_open,
    .close = cann_close,
    .memory = cann_memory,
    .limits = cann_limits,
    .alloc = cann_alloc,
    .reserve = cann_reserve,
    .commit = cann_commit,
    .decommit = cann_decommit,
    .release = cann_release,
    .write = cann_write,
    .read = cann_read,
    .copy = cann_copy,
    .zero = cann_zero,
    .event_wait = cann_event_wait,
    .impl = cn_impl,
    .job_bytes = cn_job_bytes,
    .prepare = cn_prepare,
    .finish = cn_finish,
    .cache_ops = gpu_cache_ops,
    .submit = gpu_submit,
    .wait = gpu_wait,
    .recordings = gpu_recordings,
    .page_read = gpu_page_read,
    .page_write = gpu_page_write,
};
