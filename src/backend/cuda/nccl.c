/* nccl.c -- values between several GPUs by NCCL, where its library is: rows of matrices and experts
 * over devices (PITH_SPLIT_ROW) bring their results together and send out their input.
 *
 * The library (libnccl.so.2, PITH_NCCL_LIBRARY) is opened when it is first wanted. A model whose
 * devices share matrices joins them: one communicator for each, made by ncclCommInitAll. Copies
 * that go at once are one group of sends and receives, on the streams of both ends. Nothing is
 * added up on the way: bits are those of copies.
 *
 * What NCCL cannot do, or fails to, is named once, and values go by copies (device.c) from then on.
 * What fails after it was handed over is found by whoever waits for it (cu_wait): its devices wait
 * for each other in kernels of NCCL's, which only its abort ends, and what they have by then is
 * nobody's result, so all of them are lost to who has them open. */
#include "backend/cuda/cuda_impl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/mem.h"

typedef struct nccl_comm_ *nccl_comm;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 0 };
enum { NCCL_LEAST = 20700 }; /* sends came with 2.7 */

/* X(member, name in the library, parameters) */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(version, "ncclGetVersion", (int *version))                                                   \
    X(init_all, "ncclCommInitAll", (nccl_comm * comm, int n, const int *ordinals))                 \
    X(comm_end, "ncclCommDestroy", (nccl_comm c))                                                  \
    X(comm_abort, "ncclCommAbort", (nccl_comm c))                                                  \
    X(async_error, "ncclCommGetAsyncError", (nccl_comm c, int *r))                                 \
    X(group_start, "ncclGroupStart", (void))                                                       \
    X(group_end, "ncclGroupEnd", (void))                                                           \
    X(send, "ncclSend",                                                                            \
      (const void *from, size_t n, int type, int peer, nccl_comm c, cu_stream s))                  \
    X(receive, "ncclRecv", (void *to, size_t n, int type, int peer, nccl_comm c, cu_stream s))

static struct {
#define X(member, name, params) int(*member) params;
    NCCL_FUNCTIONS(X)
#undef X
    const char *(*error_text)(int r);
} nccl;

/* Devices of one model, by rank. */
struct cu_clique {
    int n;
    struct cu_gpu *of[MAX_DEVICES];
    nccl_comm comm[MAX_DEVICES];
    int locked[MAX_DEVICES]; /* ranks, in the order of locks */
    pthread_mutex_t lock;    /* of the communicators; behind those of devices */
    _Atomic(int) broken; /* its communicators are gone, and copies take their place */
    char says[200];      /* for reports */
};

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;

static pith_status find_functions(void *lib, const char *file, struct pith_error *why)
{
#define X(member, name, params)                                                                    \
    *(void **)&nccl.member = dlsym(lib, name);                                                     \
    if (!nccl.member)                                                                              \
        return error_set(why, PITH_MISSING, "NCCL: %.200s has no %s: it is too old", file, name);
    NCCL_FUNCTIONS(X)
#undef X
    *(void **)&nccl.error_text = dlsym(lib, "ncclGetErrorString");
    int version = 0;
    if (nccl.version(&version) != NCCL_SUCCESS || version < NCCL_LEAST)
        return error_set(why, PITH_MISSING, "NCCL: %.200s is version %d, %d is needed", file,
                         version, NCCL_LEAST);
    return PITH_OK;
}

pith_status cu_nccl_found(struct pith_error *why)
{
    static const struct gpu_library of = {"NCCL", "library of NCCL", "PITH_NCCL_LIBRARY",
                                          "libnccl.so.2", "ncclGetVersion"};
    pith_status st = PITH_OK;
    const char *off = env_get("PITH_NCCL"), *file;
    void *lib, *first;
    if (off && !strcmp(off, "0"))
        return error_set(why, PITH_MISSING, "NCCL is turned off (PITH_NCCL=0)");
    pthread_mutex_lock(&library_lock);
    if (!library) {
        st = gpu_library(&of, &lib, &first, &file, why);
        if (st == PITH_OK) {
            st = find_functions(lib, file, why);
            if (st == PITH_OK)
                library = lib;
            else
                dlclose(lib);
        }
    }
    pthread_mutex_unlock(&library_lock);
    return st;
}

void cu_nccl_forget(void)
{
    if (library)
        dlclose(library);
    library = NULL;
}

static const char *text_of(int r)
{
    const char *text = nccl.error_text ? nccl.error_text(r) : NULL;
    return text ? text : "an error without a name";
}

/* ---------------------------------------------------------------- breaking off */

/* The lock of communicators is held. */
static void give_up(struct cu_clique *q, int r)
{
    char was[64];
    snprintf(was, sizeof was, "%.60s", q->says);
    snprintf(q->says, sizeof q->says, "copies, since %s has failed: %.80s", was, text_of(r));
    atomic_store(&q->broken, 1);
    for (int i = 0; i < q->n; i++)
        nccl.comm_abort(q->comm[i]);
}

/* What is wrong with a rank: the device is lost, its communicator has an error (*r). */
static int is_wrong(const struct cu_clique *q, int i, int *r)
{
    struct cu_gpu *w = q->of[i];
    *r = NCCL_SUCCESS;
    cu_enter(w);
    cu_result asked =
        atomic_load(&w->dev.lost) ? CU_LAUNCH_FAILED : cu.stream_query(w->work.stream);
    if (asked != CU_SUCCESS && asked != CU_NOT_READY)
        return 1;
    int told = nccl.async_error(q->comm[i], r);
    *r = told == NCCL_SUCCESS ? *r : told;
    return *r != NCCL_SUCCESS && *r != NCCL_IN_PROGRESS;
}

static pith_status watch(struct cu_gpu *v, struct pith_error *err)
{
    struct cu_clique *q = v->clique;
    pith_status st = PITH_OK;
    pthread_mutex_lock(&q->lock);
    for (int i = 0, r; i < q->n && st == PITH_OK && !atomic_load(&q->broken); i++) {
        if (!is_wrong(q, i, &r))
            continue;
        st = r ? error_set(err, PITH_DEVICE, "%s: wait: %.60s has failed at %s: %.80s", v->dev.name,
                           q->says, q->of[i]->dev.name, text_of(r))
               : error_set(err, PITH_DEVICE,
                           "%s: wait: %s is lost, and nothing comes from there by NCCL",
                           v->dev.name, q->of[i]->dev.name);
        for (int k = 0; k < q->n; k++)
            atomic_store(&q->of[k]->dev.lost, 1);
        give_up(q, r);
    }
    pthread_mutex_unlock(&q->lock);
    cu_enter(v);
    return st;
}

/* ---------------------------------------------------------------- joining and leaving */

static pith_status check_devices(struct device *const *d, int n, struct pith_error *why)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (cu_of(d[i])->ordinal == cu_of(d[k])->ordinal)
                return error_set(why, PITH_UNSUPPORTED,
                                 "NCCL takes each GPU once, %s and %s are the same", d[k]->name,
                                 d[i]->name);
    for (int i = 0; i < n; i++)
        if (!cu_of(d[i])->primary)
            return error_set(why, PITH_UNSUPPORTED,
                             "NCCL: the primary context of %s is not to be had (another model has "
                             "it)",
                             d[i]->name);
    return PITH_OK;
}

pith_status cu_nccl_join(struct device *const *d, int n, struct pith_error *why)
{
    int ordinals[MAX_DEVICES], version = 0;
    const char *off = env_get("PITH_NCCL");
    if (off && !strcmp(off, "0"))
        return PITH_OK; /* as it was asked for */
    pith_status st = cu_nccl_found(why);
    if (st == PITH_OK)
        st = check_devices(d, n, why);
    if (st != PITH_OK)
        return st;
    struct cu_clique *q = mem_zalloc(sizeof *q, PITH_MEM_META);
    if (!q)
        return error_set(why, PITH_NOMEM, "NCCL: out of memory");
    for (q->n = 0; q->n < n; q->n++) {
        q->of[q->n] = cu_of(d[q->n]);
        ordinals[q->n] = q->of[q->n]->ordinal;
    }
    int r = nccl.init_all(q->comm, n, ordinals);
    if (r != NCCL_SUCCESS) {
        mem_free(q);
        return error_set(why, PITH_DEVICE, "NCCL: %d GPUs cannot be joined: %.80s", n, text_of(r));
    }
    for (int i = 0, k; i < n; i++) {
        for (k = i; k > 0 && cu_comes_before(q->of[i], q->of[q->locked[k - 1]]); k--)
            q->locked[k] = q->locked[k - 1];
        q->locked[k] = i;
    }
    pthread_mutex_init(&q->lock, NULL);
    nccl.version(&version);
    snprintf(q->says, sizeof q->says, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    for (int i = 0; i < n; i++) {
        q->of[i]->clique = q;
        q->of[i]->watch = watch;
    }
    return PITH_OK;
}

const char *cu_nccl_joined(const struct device *d)
{
    const struct cu_clique *q = cu_of(d)->clique;
    return q ? q->says : NULL;
}

void cu_nccl_leave(struct cu_gpu *v)
{
    struct cu_clique *q = v->clique;
    if (!q)
        return;
    int lost = 0; /* then an end would be waited for in vain */
    for (int i = 0; i < q->n; i++)
        lost |= atomic_load(&q->of[i]->dev.lost);
    for (int i = 0; i < q->n; i++) {
        if (!atomic_load(&q->broken))
            (lost ? nccl.comm_abort : nccl.comm_end)(q->comm[i]);
        q->of[i]->clique = NULL;
        q->of[i]->watch = NULL;
    }
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}

/* ---------------------------------------------------------------- copies */

static int rank_of(const struct cu_clique *q, const struct place *p)
{
    int i = 0;
    while (i < q->n && q->of[i] != cu_of(p->buffer->device))
        i++;
    return i;
}

/* In one order, so that two groups do not wait for each other. */
static void lock_all(struct cu_clique *q, int take)
{
    for (int i = 0; i < q->n; i++)
        if (take)
            pthread_mutex_lock(&q->of[q->locked[i]]->lock);
        else
            pthread_mutex_unlock(&q->of[q->locked[i]]->lock);
    if (take)
        pthread_mutex_lock(&q->lock);
    else
        pthread_mutex_unlock(&q->lock);
}

/* A group of sends and receives, in the streams of both ends. */
static int put_group(struct cu_clique *q, const struct copy *c, int n)
{
    int r = nccl.group_start(), end;
    if (r != NCCL_SUCCESS)
        return r;
    for (int i = 0; i < n && r == NCCL_SUCCESS; i++) {
        int to = rank_of(q, &c[i].to), from = rank_of(q, &c[i].from);
        void *here = pointer_of(cu_address(c[i].from.buffer) + c[i].from.offset);
        void *there = pointer_of(cu_address(c[i].to.buffer) + c[i].to.offset);
        r = nccl.send(here, c[i].n, NCCL_BYTES, to, q->comm[from], q->of[from]->work.stream);
        if (r == NCCL_SUCCESS)
            r = nccl.receive(there, c[i].n, NCCL_BYTES, from, q->comm[to], q->of[to]->work.stream);
    }
    end = nccl.group_end();
    return r == NCCL_SUCCESS ? end : r;
}

/* Are all of them between different devices that are joined? */
static int can_join(const struct cu_clique *q, const struct copy *c, int n)
{
    int i = 0;
    while (q && !atomic_load(&q->broken) && i < n && rank_of(q, &c[i].to) < q->n &&
           rank_of(q, &c[i].from) < q->n && c[i].to.buffer->device != c[i].from.buffer->device)
        i++;
    return i == n;
}

static pith_status mark_ends(struct copy *c, int n, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int i = 0; i < n && st == PITH_OK; i++) {
        struct cu_gpu *v = cu_of(c[i].to.buffer->device);
        uint64_t value = 0;
        cu_enter(v);
        st = cu_mark(v, &v->work, &value, err);
        if (st == PITH_OK)
            c[i].ev = (struct event){&v->dev, value};
    }
    return st;
}

int cu_nccl_copies(struct copy *c, int n, pith_status *st, struct pith_error *err)
{
    struct cu_clique *q = cu_of(c->to.buffer->device)->clique;
    *st = PITH_OK;
    if (!can_join(q, c, n))
        return 0;
    for (int i = 0; i < n && *st == PITH_OK; i++) {
        *st = cu_call(cu_of(c[i].from.buffer->device), "copy", 0, err);
        if (*st == PITH_OK)
            *st = cu_call(cu_of(c[i].to.buffer->device), "copy", 0, err);
    }
    if (*st != PITH_OK)
        return 1;
    lock_all(q, 1);
    int gone = atomic_load(&q->broken), r = gone ? NCCL_SUCCESS : put_group(q, c, n);
    if (r == NCCL_SUCCESS && !gone)
        *st = mark_ends(c, n, err);
    else if (!gone)
        give_up(q, r);
    lock_all(q, 0);
    return !gone && r == NCCL_SUCCESS;
}
