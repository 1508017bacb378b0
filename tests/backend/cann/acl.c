/* acl.c -- what stands in for CANN's runtime: see standin.h.
 *
 * An address of the device is no address of the host: DEVICE + an offset in a region. A stream is a
 * list of tasks, which are done when somebody waits for the stream or for an event in it. */
#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHOWN  __attribute__((visibility("default")))
#define DEVICE 0x5a00000000000000u

enum { REGION = 1 << 30, ALIGN = 512, MOST = 4096 };
enum { OK = 0, BAD = 107000, NO_MEMORY = 207001, CAPTURING = 107030 };

SHOWN struct standin standin;

struct block {
    uint64_t at, n;
};
struct stream {
    struct task *first, **last, *graph, **graph_last;
    int captures;
};
struct event {
    struct stream *stream;
    uint64_t recorded, done;
};
struct graph {
    struct task *first;
    int queued; /* replays that did not run yet */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *region;
static struct block blocks[MOST], pinned[MOST];
static int n_blocks, n_captures;

void standin_fault(const char *what, const char *who)
{
    if (!*standin.fault)
        snprintf(standin.fault, sizeof standin.fault, "%s: %s", who, what);
}

static int wrong(const char *what, const char *who)
{
    standin_fault(what, who);
    return BAD;
}

int standin_fails(void)
{
    return ++standin.calls == standin.fail_at;
}

/* Every function that returns a status begins with it. */
#define CALL                                                                                       \
    if (standin_fails())                                                                           \
        return BAD;

static struct block *find(struct block *b, uint64_t at, uint64_t n)
{
    for (int i = 0; i < MOST; i++)
        if (b[i].n && at >= b[i].at && at + n <= b[i].at + b[i].n)
            return &b[i];
    return NULL;
}

uint8_t *standin_at(uint64_t device, uint64_t n)
{
    return find(blocks, device, n) ? region + (device - DEVICE) : NULL;
}

int standin_type_bytes(int type)
{
    return type == 0 || type == 3    ? 4
           : type == 1 || type == 27 ? 2
           : type == 9               ? 8
           : type == 12              ? 1
                                     : 0;
}

/* ---------------------------------------------------------------- devices and memory */

SHOWN int aclInit(const char *config)
{
    static int inited;
    (void)config;
    CALL
    const char *fails = getenv("STANDIN_INIT");
    if (fails)
        return atoi(fails);
    return inited++ ? 100002 : OK;
}

SHOWN int aclrtGetDeviceCount(uint32_t *n)
{
    CALL
    const char *set = getenv("STANDIN_DEVICES");
    *n = set ? (uint32_t)atoi(set) : 1;
    return OK;
}

SHOWN const char *aclrtGetSocName(void)
{
    return "Ascend stand-in";
}

SHOWN const char *aclGetRecentErrMsg(void)
{
    return "as was asked for\nsecond line";
}

SHOWN int aclrtSetDevice(int32_t device)
{
    CALL
    return device ? wrong("no such device", "aclrtSetDevice") : OK;
}

SHOWN int aclrtCreateContext(void **c, int32_t device)
{
    CALL
    (void)device;
    *c = malloc(1);
    standin.live++;
    return OK;
}

SHOWN int aclrtDestroyContext(void *c)
{
    free(c);
    standin.live--;
    return OK;
}

static _Thread_local void *current;

SHOWN int aclrtSetCurrentContext(void *c)
{
    CALL
    current = c;
    return OK;
}

SHOWN int aclrtGetMemInfo(int which, size_t *left, size_t *total)
{
    CALL
    (void)which;
    *left = *total = REGION;
    return OK;
}

static int holds(uint64_t at, uint64_t n)
{
    for (int i = 0; i < MOST; i++)
        if (blocks[i].n && at < blocks[i].at + blocks[i].n && blocks[i].at < at + n)
            return i + 1;
    return 0;
}

SHOWN int aclrtMalloc(void **p, size_t n, int policy)
{
    CALL
    (void)policy;
    if (!current || !n)
        return wrong("no device is this thread's, or nothing is asked for", "aclrtMalloc");
    if (n_captures)
        return wrong("while a stream is captured", "aclrtMalloc");
    pthread_mutex_lock(&lock);
    if (!region)
        region = mmap(NULL, REGION, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t at = DEVICE, size = (n + ALIGN - 1) / ALIGN * ALIGN;
    for (int in; at + size <= DEVICE + REGION && (in = holds(at, size)) != 0;)
        at = (blocks[in - 1].at + blocks[in - 1].n + ALIGN - 1) / ALIGN * ALIGN;
    int i = 0;
    while (i < MOST && blocks[i].n)
        i++;
    int ok = i < MOST && at + size <= DEVICE + REGION;
    if (ok) {
        blocks[i] = (struct block){at, n};
        n_blocks++;
        standin.live++;
        memset(region + (at - DEVICE), 0xa5, n < 1 << 20 ? n : 1 << 20);
        *p = (void *)(uintptr_t)at;
    }
    pthread_mutex_unlock(&lock);
    return ok ? OK : NO_MEMORY;
}

SHOWN int aclrtFree(void *p)
{
    struct block *b = find(blocks, (uintptr_t)p, 1);
    if (!b || b->at != (uintptr_t)p)
        return wrong("was not given", "aclrtFree");
    if (n_captures)
        wrong("while a stream is captured", "aclrtFree");
    madvise(region + (b->at - DEVICE), b->n, MADV_DONTNEED);
    b->n = 0;
    n_blocks--;
    standin.live--;
    return OK;
}

SHOWN int aclrtMallocHost(void **p, size_t n)
{
    CALL
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST && pinned[i].n)
        i++;
    *p = i < MOST ? malloc(n) : NULL;
    if (*p) {
        pinned[i] = (struct block){(uintptr_t)*p, n};
        standin.live++;
    }
    pthread_mutex_unlock(&lock);
    return *p ? OK : NO_MEMORY;
}

static int is_queued_host(uint64_t at, uint64_t n);

SHOWN int aclrtFreeHost(void *p)
{
    struct block *b = find(pinned, (uintptr_t)p, 1);
    if (!b || b->at != (uintptr_t)p)
        return wrong("was not given", "aclrtFreeHost");
    if (is_queued_host(b->at, b->n))
        wrong("a copy that it is an end of is under way", "aclrtFreeHost");
    b->n = 0;
    free(p);
    standin.live--;
    return OK;
}

/* ---------------------------------------------------------------- streams */

enum { STREAMS = 64 };
static struct stream *streams[STREAMS];

static int is_queued_host(uint64_t at, uint64_t n)
{
    for (int i = 0; i < STREAMS; i++)
        for (const struct task *t = streams[i] ? streams[i]->first : NULL; t; t = t->next) {
            uint64_t h = (uintptr_t)t->host;
            if (h && h < at + n && at < h + t->bytes)
                return 1;
        }
    return 0;
}

SHOWN int aclrtCreateStream(void **s)
{
    CALL
    struct stream *p = calloc(1, sizeof *p);
    p->last = &p->first;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < STREAMS - 1 && streams[i])
        i++;
    streams[i] = p;
    pthread_mutex_unlock(&lock);
    standin.live++;
    *s = p;
    return OK;
}

/* Does what is in a stream up to a task, or all. */
static int drain(struct stream *s, const struct event *until, uint64_t value)
{
    int r = OK;
    while (s->first && !(until && until->done >= value)) {
        struct task *t = s->first;
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        int got = t->fn(t);
        r = r ? r : got;
        free(t);
    }
    return r;
}

SHOWN int aclrtDestroyStream(void *s)
{
    struct stream *p = s;
    if (p->first)
        wrong("what is in it did not run", "aclrtDestroyStream");
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] == p)
            streams[i] = NULL;
    drain(p, NULL, 0);
    free(p);
    standin.live--;
    return OK;
}

/* One that fails has waited, as errors of streams come to light. */
SHOWN int aclrtSynchronizeStream(void *s)
{
    struct stream *p = s;
    int fails = standin_fails();
    if (p->captures)
        return wrong("it is captured", "aclrtSynchronizeStream");
    pthread_mutex_lock(&lock);
    int r = drain(p, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fails ? BAD : r;
}

int standin_put(void *stream, const struct task *t)
{
    struct stream *s = stream;
    struct task *copy = malloc(sizeof *copy);
    *copy = *t;
    copy->next = NULL;
    pthread_mutex_lock(&lock);
    struct task ***last = s->captures ? &s->graph_last : &s->last;
    **last = copy;
    *last = &copy->next;
    pthread_mutex_unlock(&lock);
    return OK;
}

/* ---------------------------------------------------------------- events */

SHOWN int aclrtCreateEventExWithFlag(void **e, uint32_t flag)
{
    CALL
    if (flag != 1)
        return wrong("not for waiting", "aclrtCreateEventExWithFlag");
    *e = calloc(1, sizeof(struct event));
    standin.live++;
    return OK;
}

SHOWN int aclrtDestroyEvent(void *e)
{
    const struct event *p = e;
    if (p->done != p->recorded)
        wrong("it did not come to pass", "aclrtDestroyEvent");
    free(e);
    standin.live--;
    return OK;
}

static int pass(const struct task *t)
{
    ((struct event *)t->event)->done = t->value;
    return OK;
}

SHOWN int aclrtRecordEvent(void *e, void *s)
{
    CALL
    struct event *p = e;
    if (((struct stream *)s)->captures)
        return wrong("its stream is captured", "aclrtRecordEvent");
    p->stream = s;
    return standin_put(s, &(struct task){.fn = pass, .event = e, .value = ++p->recorded});
}

SHOWN int aclrtSynchronizeEvent(void *e)
{
    CALL
    struct event *p = e;
    if (!p->stream)
        return wrong("it was never recorded", "aclrtSynchronizeEvent");
    pthread_mutex_lock(&lock);
    int r = drain(p->stream, p, p->recorded);
    pthread_mutex_unlock(&lock);
    return r;
}

/* ---------------------------------------------------------------- copies */

static int move(const struct task *t)
{
    uint8_t *to = t->kind == 2 ? t->host : standin_at(t->to, t->bytes);
    const uint8_t *from = t->kind == 1 ? t->host : standin_at(t->from, t->bytes);
    if (!to || !from)
        return wrong("of no allocation", "aclrtMemcpyAsync");
    memmove(to, from, t->bytes);
    return OK;
}

SHOWN int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t n, int kind, void *s)
{
    CALL
    const void *host = kind == 1 ? from : kind == 2 ? to : NULL;
    if (room < n || kind < 1 || kind > 3)
        return wrong("no room for it, or no way", "aclrtMemcpyAsync");
    if (host && !find(pinned, (uintptr_t)host, n))
        return wrong("memory of the host that is not pinned", "aclrtMemcpyAsync");
    struct task t = {.fn = move, .kind = kind, .bytes = n};
    t.host = (void *)(uintptr_t)host;
    t.to = (uintptr_t)to;
    t.from = (uintptr_t)from;
    return standin_put(s, &t);
}

static int fill(const struct task *t)
{
    uint8_t *to = standin_at(t->to, t->bytes);
    if (!to)
        return wrong("of no allocation", "aclrtMemsetAsync");
    memset(to, t->kind, t->bytes);
    return OK;
}

SHOWN int aclrtMemsetAsync(void *to, size_t room, int32_t byte, size_t n, void *s)
{
    CALL
    if (room < n)
        return wrong("no room for it", "aclrtMemsetAsync");
    return standin_put(
        s, &(struct task){.fn = fill, .to = (uintptr_t)to, .bytes = n, .kind = byte});
}

/* ---------------------------------------------------------------- graphs */

SHOWN int aclmdlRICaptureBegin(void *s, int mode)
{
    CALL
    struct stream *p = s;
    if (standin.no_capture)
        return BAD;
    if (mode < 0 || mode > 2)
        return wrong("no mode", "aclmdlRICaptureBegin");
    if (p->captures || p->first)
        return wrong("it is captured, or not empty", "aclmdlRICaptureBegin");
    p->captures = 1;
    p->graph = NULL;
    p->graph_last = &p->graph;
    n_captures++;
    return OK;
}

static void free_tasks(struct task *t)
{
    for (struct task *next; t; t = next) {
        next = t->next;
        free(t);
    }
}

/* Ends it even where it fails, as was asked for: then there is no graph. */
SHOWN int aclmdlRICaptureEnd(void *s, void **out)
{
    struct stream *p = s;
    if (!p->captures)
        return wrong("it is not captured", "aclmdlRICaptureEnd");
    p->captures = 0;
    n_captures--;
    *out = NULL;
    if (standin_fails()) {
        free_tasks(p->graph);
        return BAD;
    }
    struct graph *g = calloc(1, sizeof *g);
    g->first = p->graph;
    *out = g;
    standin.live++;
    standin.captured++;
    return OK;
}

static int replayed(const struct task *t)
{
    ((struct graph *)t->graph)->queued--;
    return OK;
}

SHOWN int aclmdlRIExecuteAsync(void *graph, void *s)
{
    CALL
    struct graph *g = graph;
    if (((struct stream *)s)->captures)
        return wrong("its stream is captured", "aclmdlRIExecuteAsync");
    for (const struct task *t = g->first; t; t = t->next)
        standin_put(s, t);
    g->queued++;
    standin.replayed++;
    return standin_put(s, &(struct task){.fn = replayed, .graph = g});
}

SHOWN int aclmdlRIDestroy(void *graph)
{
    struct graph *g = graph;
    if (g->queued)
        wrong("it is under way", "aclmdlRIDestroy");
    free_tasks(g->first);
    free(g);
    standin.live--;
    return OK;
}
