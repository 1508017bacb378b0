// driver.cpp -- stands in for libcuda.so.1 on machines without a GPU: those functions of the
// driver that the backend uses, with kernels that run on the host (host.cpp).
//
// What is handed to a stream is done when somebody waits for it, and no sooner, so that whoever
// reads too early, or changes too early what is still to be copied, is found out; or, where that is
// asked for, at once, or at times that nobody knows. A thread that has no context set, memory that
// is nobody's, images of real kernels, calls that no capture allows, copies by memory that is not
// pinned, more threads than a kernel was compiled for and parameters of another size are errors, as
// they would be there, or as they would be slow. Behind each buffer lies a page that nobody can
// touch.
//
//   STANDIN_ORDER=n          when: 0 (as it is) when somebody waits, 1 at once, others draw by it
//   STANDIN_DRIVER=13000     the version that it says it has
//   STANDIN_ARCH=90          the compute capability of its devices
//   STANDIN_DEVICES=2        how many there are
//   STANDIN_MEMORY=bytes     of each
//   STANDIN_NAME=text        what they are called
//   STANDIN_VMM=0            no addresses can be reserved
//   STANDIN_SHARED=bytes     of shared memory that a launch can ask for
//   STANDIN_PEERS=0          devices do not reach each other: copies go by the host
//   STANDIN_WRONG=name       kernels whose names begin so do nothing
//   STANDIN_FATAL=name       nothing works any more behind them
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include "maps.h"

namespace {

enum Result {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ENABLED = 704, LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900
};

typedef std::function<int()> Work;
typedef int (*Run)(void *, const unsigned *, const unsigned *, unsigned, const void *);
typedef void (*Memory)(const uint64_t (*)[2], size_t);
typedef const char *(*Said)();
/* Bytes of a kernel's parameters, as a rule and at most; SHARED: what a launch gets that has not
 * asked before. */
enum { PARAMS = 152, MOST_PARAMS = 448, SHARED = 48 << 10 };

struct Context;
struct Graph {
    std::vector<Work> work;
};
struct Stream {
    Context *context;
    std::deque<Work> work;
    uint64_t put = 0, done = 0; /* counts of it */
    uint64_t brought = 0, waits = 0;
    Graph *capture = nullptr;
};
static int beside; /* copies to devices in streams that have had nothing but those, and waits */
constexpr auto LATE = std::chrono::milliseconds(2);
struct Event {
    Stream *stream = nullptr;
    uint64_t at = 0;
    bool late = false; /* not there before somebody waits for it, or asks for LATE long */
    std::chrono::steady_clock::time_point asked{};
};
struct Function {
    void *code;
    Run run;
    unsigned shared;
    Memory memory;
    Said said;
    std::string name;
    unsigned threads; /* of a block, at most; 0: nobody knows */
    unsigned params;  /* bytes of them */
};
struct Module {
    void *library;
    Run run;
    std::map<std::string, Function> functions; /* those that were asked for; they go with it */
};
/* A buffer, and the pages that it lies in. */
struct Pages {
    size_t n;
    void *map;
    size_t mapped;
};
struct Context {
    int device, failed = 0;
    std::map<uint64_t, Pages> memory;
    std::set<Stream *> streams;
    std::set<Context *> peers; /* that it reaches */
    int held = 0; /* a device's primary one: how often it was taken */
};
/* A piece of memory, which is there as long as its handle or its mapping is. */
struct Piece {
    int device;
    size_t n;
    int held;
};
struct Mapped {
    Piece *piece;
    bool access;
};
enum { PIECE = 2 << 20 };

std::recursive_mutex lock;
bool ready;
thread_local Context *current;
std::map<int, size_t> taken; /* of each device */
std::map<int, Context *> primary;
std::map<uint64_t, size_t> reserved;
std::map<uint64_t, Mapped> mapped; /* a piece each */
std::map<uint64_t, Pages> pinned;  /* memory of the host */
int staged;
unsigned recorded; /* events */
int hung;          /* what NCCL brings does not come; 2: and a device is gone */
std::map<std::string, int> launched; /* kernels, how often */
thread_local int captures;         /* of this thread that are under way */
std::set<Context *> contexts;

long setting(const char *name, long otherwise)
{
    const char *s = getenv(name);
    return s ? atol(s) : otherwise;
}
bool is_named(const char *setting, const std::string &kernel)
{
    const char *s = getenv(setting);
    return s && kernel.compare(0, strlen(s), s) == 0;
}
size_t most() { return (size_t)setting("STANDIN_MEMORY", 16l << 30); }

/* Does what was put into a stream up to there. */
int drain(Stream *s, uint64_t to)
{
    while (s->done < to && !s->work.empty()) {
        Work w = s->work.front();
        int r = s->context->failed ? 0 : w();
        if (r == NOT_READY)
            return s->context->failed ? s->context->failed : NOT_READY;
        s->work.pop_front();
        s->done++;
        if (r)
            s->context->failed = r;
    }
    return s->context->failed;
}
/* The same, for who would wait for ever. */
int wait_for(Stream *s, uint64_t to)
{
    int r = drain(s, to);
    if (r == NOT_READY)
        fprintf(stderr, "the stand-in: somebody waits for what never comes\n");
    return r == NOT_READY ? s->context->failed = LAUNCH_TIMEOUT : r;
}
int drain_all(Context *c)
{
    for (Stream *s : c->streams)
        drain(s, s->put);
    return c->failed;
}
/* What comes of a number between two calls: some streams go on by some. */
void go_on()
{
    static uint32_t state = 1;
    uint32_t seed = (uint32_t)setting("STANDIN_ORDER", 0);
    if (!seed)
        return;
    for (Context *c : contexts)
        for (Stream *s : c->streams) {
            state = state * 1664525 + 1013904223 + seed;
            if (seed == 1)
                drain(s, s->put);
            else if (state >> 30 == 0)
                drain(s, s->done + (state >> 20) % 16);
        }
}
int put(Stream *s, Work w)
{
    if (s->capture) {
        s->capture->work.push_back(w);
        return OK;
    }
    s->work.push_back(w);
    s->put++;
    go_on();
    return s->context->failed;
}
/* n bytes, with a page behind them that nobody can touch; they begin at a multiple of 256. */
bool make_pages(size_t n, Pages *out, uint64_t *p)
{
    const size_t page = 4096;
    size_t whole = (n + page - 1) / page * page;
    void *m = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return false;
    mprotect((char *)m + whole, page, PROT_NONE);
    *out = Pages{n, m, whole + page};
    *p = (uint64_t)m + (whole - (n + 255) / 256 * 256);
    return true;
}
/* Is a copy by the host's bytes [p, p + n) one that comes and goes by itself? */
bool is_pinned(const void *p, size_t n)
{
    auto i = pinned.upper_bound((uint64_t)p);
    if (i == pinned.begin())
        return false;
    --i;
    return (uint64_t)p + n <= i->first + i->second.n;
}
/* What kernels in a context may touch. */
std::vector<uint64_t> ranges_of(Context *c)
{
    std::map<uint64_t, uint64_t> all;
    std::vector<uint64_t> out;
    for (auto &m : c->memory)
        all[m.first] = m.first + m.second.n;
    for (auto &m : mapped)
        if (m.second.access && m.second.piece->device == c->device)
            all[m.first] = m.first + m.second.piece->n;
    for (auto &r : all)
        if (!out.empty() && out.back() == r.first) {
            out.back() = r.second;
        } else {
            out.push_back(r.first);
            out.push_back(r.second);
        }
    return out;
}
/* Is address p of a piece that the device can reach, and so are the n behind it? */
bool is_mapped(int device, uint64_t p, size_t n)
{
    for (uint64_t at = p / PIECE * PIECE; at < p + n; at += PIECE) {
        auto i = mapped.find(at);
        if (i == mapped.end() || !i->second.access || i->second.piece->device != device)
            return false;
    }
    return n > 0;
}
void let_go(Piece *p)
{
    if (--p->held)
        return;
    taken[p->device] -= p->n;
    delete p;
}
/* Bytes [p, p + n) of a context's memory. */
bool is_of(Context *c, uint64_t p, size_t n)
{
    if (is_mapped(c->device, p, n))
        return true;
    auto i = c->memory.upper_bound(p);
    if (i == c->memory.begin())
        return false;
    --i;
    return p + n <= i->first + i->second.n;
}
bool is_own(uint64_t p, size_t n) { return is_of(current, p, n); }

} // namespace

#define API extern "C" __attribute__((visibility("default"))) int
#define HOLD                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(lock);                                              \
    if (!ready)                                                                                    \
        return NOT_INITIALIZED
#define IN_CONTEXT                                                                                 \
    HOLD;                                                                                          \
    if (!current)                                                                                  \
    return INVALID_CONTEXT
/* Not while this thread captures: what allocates, waits or loads. */
#define NO_CAPTURE                                                                                 \
    IN_CONTEXT;                                                                                    \
    if (captures)                                                                                  \
    return CAPTURE_UNSUPPORTED

API cuInit(unsigned)
{
    if (!setting("STANDIN_DEVICES", 2))
        return NO_DEVICE;
    ready = true;
    return OK;
}
API cuDriverGetVersion(int *version)
{
    *version = (int)setting("STANDIN_DRIVER", 13000);
    return OK;
}
API cuGetErrorName(int r, const char **name)
{
    *name = r == OUT_OF_MEMORY    ? "CUDA_ERROR_OUT_OF_MEMORY"
            : r == LAUNCH_FAILED  ? "CUDA_ERROR_LAUNCH_FAILED"
            : r == NO_DEVICE      ? "CUDA_ERROR_NO_DEVICE"
            : r == FILE_NOT_FOUND ? "CUDA_ERROR_FILE_NOT_FOUND"
                                  : "CUDA_ERROR_OF_THE_STAND_IN";
    return OK;
}
API cuDeviceGetCount(int *n)
{
    HOLD;
    *n = (int)setting("STANDIN_DEVICES", 2);
    return OK;
}
API cuDeviceGet(int *d, int i)
{
    HOLD;
    *d = i;
    return i < setting("STANDIN_DEVICES", 2) ? OK : INVALID_DEVICE;
}
API cuDeviceGetName(char *name, int cap, int d)
{
    HOLD;
    const char *own = getenv("STANDIN_NAME");
    if (own)
        snprintf(name, (size_t)cap, "%s", own);
    else
        snprintf(name, (size_t)cap, "stand-in %d, on the host", d);
    return OK;
}
API cuDeviceTotalMem_v2(size_t *bytes, int)
{
    HOLD;
    *bytes = most();
    return OK;
}
API cuDeviceGetAttribute(int *value, int which, int)
{
    HOLD;
    long arch = setting("STANDIN_ARCH", 90);
    *value = which == 75    ? (int)arch / 10
             : which == 76  ? (int)arch % 10
             : which == 16  ? 4
             : which == 97  ? (int)setting("STANDIN_SHARED", 227 << 10)
             : which == 102 ? (int)setting("STANDIN_VMM", 1)
                            : 0;
    return OK;
}

API cuCtxCreate_v2(Context **c, unsigned, int d)
{
    HOLD;
    *c = current = new Context{d, 0, {}, {}, {}, 0};
    contexts.insert(current);
    return OK;
}
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned)
{
    HOLD;
    return OK;
}
API cuDevicePrimaryCtxRetain(Context **c, int d)
{
    HOLD;
    if (!primary[d])
        contexts.insert(primary[d] = new Context{d, 0, {}, {}, {}, 0});
    *c = primary[d];
    (*c)->held++;
    return OK;
}
static int end_context(Context *c)
{
    for (auto &m : c->memory) {
        taken[c->device] -= m.second.n;
        munmap(m.second.map, m.second.mapped);
    }
    for (Stream *s : c->streams)
        delete s;
    contexts.erase(c);
    if (current == c)
        current = nullptr;
    delete c;
    return OK;
}
API cuCtxDestroy_v2(Context *c)
{
    HOLD;
    return c->held ? INVALID_CONTEXT : end_context(c);
}
API cuDevicePrimaryCtxRelease_v2(int d)
{
    HOLD;
    if (!primary[d])
        return INVALID_CONTEXT;
    if (--primary[d]->held)
        return OK;
    end_context(primary[d]);
    primary.erase(d);
    return OK;
}
API cuCtxSetCurrent(Context *c)
{
    HOLD;
    current = c;
    return OK;
}

API cuMemGetInfo_v2(size_t *left, size_t *total)
{
    IN_CONTEXT;
    *total = most();
    *left = most() > taken[current->device] ? most() - taken[current->device] : 0;
    return OK;
}
/* What is there at first is anything but zero. */
API cuMemAlloc_v2(uint64_t *p, size_t n)
{
    Pages pages;
    NO_CAPTURE;
    if (!n)
        return INVALID_VALUE;
    if (n > most() || taken[current->device] > most() - n)
        return OUT_OF_MEMORY;
    if (!make_pages(n, &pages, p))
        return OUT_OF_MEMORY;
    memset((void *)*p, 0xff, n < 1 << 20 ? n : 1 << 20);
    current->memory[*p] = pages;
    taken[current->device] += n;
    return current->failed;
}
API cuMemFree_v2(uint64_t p)
{
    NO_CAPTURE;
    auto m = current->memory.find(p);
    if (m == current->memory.end())
        return INVALID_VALUE;
    drain_all(current);
    taken[current->device] -= m->second.n;
    munmap(m->second.map, m->second.mapped);
    current->memory.erase(m);
    return OK;
}
struct Kind {
    int type, handles, where, device;
    void *metadata;
    uint64_t flags;
};
struct Access {
    int where, device, flags;
};
API cuMemGetAllocationGranularity(size_t *n, const Kind *kind, int)
{
    HOLD;
    *n = PIECE;
    return kind->type == 1 && kind->where == 1 ? OK : INVALID_VALUE;
}
/* Nothing can be touched there. */
API cuMemAddressReserve(uint64_t *p, size_t n, size_t, uint64_t, unsigned long long)
{
    HOLD;
    if (!n || n % PIECE)
        return INVALID_VALUE;
    char *m = (char *)mmap(NULL, n + PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                           -1, 0);
    if (m == MAP_FAILED)
        return OUT_OF_MEMORY;
    size_t before = (PIECE - (uint64_t)m % PIECE) % PIECE;
    if (before)
        munmap(m, before);
    munmap(m + before + n, PIECE - before);
    *p = (uint64_t)m + before;
    reserved[*p] = n;
    return OK;
}
API cuMemAddressFree(uint64_t p, size_t n)
{
    HOLD;
    auto r = reserved.find(p);
    auto next = mapped.lower_bound(p);
    if (r == reserved.end() || r->second != n || (next != mapped.end() && next->first < p + n))
        return INVALID_VALUE;
    munmap((void *)p, n);
    reserved.erase(r);
    return OK;
}
API cuMemCreate(Piece **h, size_t n, const Kind *kind, unsigned long long)
{
    HOLD;
    if (!n || n % PIECE)
        return INVALID_VALUE;
    if (n > most() || taken[kind->device] > most() - n)
        return OUT_OF_MEMORY;
    taken[kind->device] += n;
    *h = new Piece{kind->device, n, 1};
    return OK;
}
API cuMemRelease(Piece *p)
{
    HOLD;
    let_go(p);
    return OK;
}
API cuMemMap(uint64_t p, size_t n, size_t offset, Piece *piece, unsigned long long)
{
    HOLD;
    auto r = reserved.upper_bound(p);
    if (r == reserved.begin() || offset || n != PIECE || piece->n != n || p % PIECE ||
        mapped.count(p))
        return INVALID_VALUE;
    --r;
    if (p + n > r->first + r->second)
        return INVALID_VALUE;
    piece->held++;
    mapped[p] = Mapped{piece, false};
    return OK;
}
/* Nobody waits for what is under way: whoever touches it then is gone. */
API cuMemUnmap(uint64_t p, size_t n)
{
    HOLD;
    for (uint64_t at = p; at < p + n; at += PIECE)
        if (p % PIECE || n % PIECE || !mapped.count(at))
            return INVALID_VALUE;
    for (uint64_t at = p; at < p + n; at += PIECE) {
        let_go(mapped[at].piece);
        mapped.erase(at);
    }
    mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return OK;
}
/* What is there at first is anything but zero. */
API cuMemSetAccess(uint64_t p, size_t n, const Access *who, size_t n_who)
{
    HOLD;
    if (n_who != 1 || who->flags != 3)
        return INVALID_VALUE;
    for (uint64_t at = p; at < p + n; at += PIECE)
        if (!mapped.count(at) || mapped[at].piece->device != who->device)
            return INVALID_VALUE;
    for (uint64_t at = p; at < p + n; at += PIECE) {
        mapped[at].access = true;
        mprotect((void *)at, PIECE, PROT_READ | PROT_WRITE);
        memset((void *)at, 0xff, 4096);
        memset((void *)(at + PIECE - 4096), 0xff, 4096);
    }
    return OK;
}

API cuMemHostAlloc(void **p, size_t n, unsigned)
{
    Pages pages;
    uint64_t at;
    NO_CAPTURE;
    if (!n || !make_pages(n, &pages, &at))
        return OUT_OF_MEMORY;
    pinned[at] = pages;
    *p = (void *)at;
    return OK;
}
/* Nobody waits for copies that are under way: they go on, into nothing. */
API cuMemFreeHost(void *p)
{
    NO_CAPTURE;
    auto i = pinned.find((uint64_t)p);
    if (i == pinned.end())
        return INVALID_VALUE;
    munmap(i->second.map, i->second.mapped);
    pinned.erase(i);
    return OK;
}

API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, Stream *s)
{
    IN_CONTEXT;
    if (!is_own(to, n) || !is_pinned(from, n) || s->context != current)
        return INVALID_VALUE;
    beside += s->put == s->brought + s->waits;
    s->brought++;
    return put(s, [=] { return memcpy((void *)to, from, n), 0; });
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, Stream *s)
{
    IN_CONTEXT;
    if (!is_own(from, n) || !is_pinned(to, n) || s->context != current)
        return INVALID_VALUE;
    return put(s, [=] { return memcpy(to, (void *)from, n), 0; });
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, Stream *s)
{
    IN_CONTEXT;
    if (!is_own(from, n) || !is_own(to, n) || s->context != current)
        return INVALID_VALUE;
    return put(s, [=] { return memmove((void *)to, (void *)from, n), 0; });
}
API cuDeviceCanAccessPeer(int *yes, int d, int peer)
{
    HOLD;
    *yes = d != peer && setting("STANDIN_PEERS", 1);
    return OK;
}
API cuCtxEnablePeerAccess(Context *peer, unsigned)
{
    NO_CAPTURE;
    if (peer->device == current->device || !setting("STANDIN_PEERS", 1))
        return INVALID_VALUE;
    return current->peers.insert(peer).second ? OK : PEER_ACCESS_ENABLED;
}
/* Copies that went by the host. */
/* Launches of kernels whose names begin so. */
API standin_launched(const char *name)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    int n = 0;
    for (auto &l : launched)
        n += l.first.compare(0, strlen(name), name) == 0 ? l.second : 0;
    return n;
}
API standin_staged()
{
    return staged;
}
API standin_beside()
{
    return beside;
}
API cuMemcpyPeerAsync(uint64_t to, Context *there, uint64_t from, Context *here, size_t n,
                      Stream *s)
{
    IN_CONTEXT;
    if (!is_of(here, from, n) || !is_of(there, to, n) || s->context != current)
        return INVALID_VALUE;
    Context *other = current == here ? there : here;
    staged += other->device != current->device && !current->peers.count(other);
    return put(s, [=] { return memmove((void *)to, (void *)from, n), 0; });
}
API cuMemsetD8Async(uint64_t to, unsigned char byte, size_t n, Stream *s)
{
    IN_CONTEXT;
    if (!is_own(to, n) || s->context != current)
        return INVALID_VALUE;
    return put(s, [=] { return memset((void *)to, byte, n), 0; });
}

API cuStreamCreate(Stream **s, unsigned)
{
    IN_CONTEXT;
    *s = new Stream;
    (*s)->context = current;
    current->streams.insert(*s);
    return OK;
}
API cuStreamDestroy_v2(Stream *s)
{
    IN_CONTEXT;
    drain(s, s->put);
    s->context->streams.erase(s);
    delete s;
    return OK;
}
API cuStreamSynchronize(Stream *s)
{
    NO_CAPTURE;
    return s->capture ? CAPTURE_UNSUPPORTED : wait_for(s, s->put);
}
/* Whoever asks moves a stream on, too. */
API cuStreamQuery(Stream *s)
{
    NO_CAPTURE;
    return s->capture ? CAPTURE_UNSUPPORTED : drain(s, s->put);
}
API cuStreamWaitEvent(Stream *s, Event *e, unsigned)
{
    NO_CAPTURE;
    Stream *other = e->stream;
    uint64_t at = e->at;
    s->waits++;
    return put(s, [=] { return other ? drain(other, at) : 0; });
}
/* For what stands in for NCCL: from now on what it brings does not come (1), besides a device is
 * gone (2); it is broken off (0). */
API standin_hang(int how)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    hung = how;
    if (how == 2 && primary.count(1))
        primary[1]->failed = LAUNCH_FAILED;
    return OK;
}
/* For what stands in for NCCL (nccl.cpp): n bytes from one stream to another, where both have come
 * there. Its devices are used in their primary contexts alone, and it leaves one of them set. */
API standin_bring(Stream *from, Stream *to, uint64_t here, uint64_t there, size_t n, int device,
                  int peer)
{
    HOLD;
    Context *a = from->context, *b = to->context;
    if (!primary.count(device) || !primary.count(peer) || a != primary[device] ||
        b != primary[peer] || !is_of(a, here, n) || !is_of(b, there, n))
        return INVALID_CONTEXT;
    auto kept = std::make_shared<std::vector<char>>(n);
    put(from, [=] { return memcpy(kept->data(), (void *)here, n), 0; });
    uint64_t at = from->put;
    current = a;
    return put(to, [=] {
        int r = hung ? NOT_READY : drain(from, at);
        if (r == NOT_READY)
            return r;
        memcpy((void *)there, kept->data(), n);
        return r;
    });
}

API cuEventCreate(Event **e, unsigned)
{
    IN_CONTEXT;
    *e = new Event;
    return OK;
}
API cuEventDestroy_v2(Event *e)
{
    IN_CONTEXT;
    delete e;
    return OK;
}
API cuEventRecord(Event *e, Stream *s)
{
    IN_CONTEXT;
    if (s->context != current)
        return INVALID_HANDLE;
    if (s->capture)
        return CAPTURE_UNSUPPORTED;
    e->stream = s;
    e->at = s->put;
    e->late = ++recorded % 16 == 0;
    e->asked = {};
    return s->context->failed;
}
API cuEventSynchronize(Event *e)
{
    NO_CAPTURE;
    return e->stream ? wait_for(e->stream, e->at) : OK;
}
API cuEventQuery(Event *e)
{
    NO_CAPTURE;
    bool there = !e->stream || e->stream->done >= e->at;
    auto now = std::chrono::steady_clock::now();
    if (e->asked == std::chrono::steady_clock::time_point{})
        e->asked = now;
    if (!there && e->late && now - e->asked < LATE)
        return e->stream->context->failed ? e->stream->context->failed : NOT_READY;
    return e->stream ? drain(e->stream, e->at) : OK;
}

API cuModuleLoad(Module **m, const char *file)
{
    NO_CAPTURE;
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    Run run = lib ? (Run)dlsym(lib, "cuda_host_run") : NULL;
    if (!run)
        return lib ? INVALID_IMAGE : FILE_NOT_FOUND;
    *m = new Module{lib, run, {}};
    return OK;
}
/* An image is the path of a library, and a line's end. */
API cuModuleLoadData(Module **m, const void *image)
{
    const char *text = (const char *)image;
    if (text[0] != '/')
        return INVALID_IMAGE;
    return cuModuleLoad(m, std::string(text, strcspn(text, "\n")).c_str());
}
API cuModuleUnload(Module *m)
{
    NO_CAPTURE;
    drain_all(current);
    dlclose(m->library);
    delete m;
    return OK;
}
API cuModuleGetFunction(Function **f, Module *m, const char *name)
{
    NO_CAPTURE;
    void *code = dlsym(m->library, name);
    if (!code)
        return NOT_FOUND;
    if (!m->functions.count(name)) {
        std::string bound = "pith_threads_" + std::string(name).substr(5);
        std::string bytes = "pith_parameters_" + std::string(name).substr(5);
        const unsigned *threads = (const unsigned *)dlsym(m->library, bound.c_str());
        const unsigned *params = (const unsigned *)dlsym(m->library, bytes.c_str());
        m->functions[name] = Function{code,
                                      m->run,
                                      SHARED,
                                      (Memory)dlsym(m->library, "cuda_host_memory"),
                                      (Said)dlsym(m->library, "cuda_host_said"),
                                      name,
                                      threads ? *threads : 0,
                                      params ? *params : (unsigned)PARAMS};
    }
    *f = &m->functions[name];
    return OK;
}

API cuFuncSetAttribute(Function *f, int which, int value)
{
    IN_CONTEXT;
    if (which != 8 || value < 0 || value > setting("STANDIN_SHARED", 227 << 10))
        return INVALID_VALUE;
    f->shared = (unsigned)value;
    return OK;
}

API cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, Stream *s, void **params, void **)
{
    struct Launch {
        unsigned grid[3], block[3], shared;
        unsigned char params[MOST_PARAMS];
    } l = {{gx, gy, gz}, {bx, by, bz}, shared, {}};
    IN_CONTEXT;
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || gx > INT32_MAX ||
        (uint64_t)bx * by * bz > (f->threads ? f->threads : 1024) || shared > f->shared ||
        s->context != current)
        return INVALID_VALUE;
    memcpy(l.params, params[0], f->params);
    launched[f->name]++;
    if (is_named("STANDIN_WRONG", f->name))
        return OK;
    Context *c = current;
    if (is_named("STANDIN_FATAL", f->name))
        return put(s, [] { return LAUNCH_FAILED; });
    return put(s, [c, f, l] {
        if (f->memory) {
            std::vector<uint64_t> r = ranges_of(c);
            f->memory((const uint64_t(*)[2])(const void *)r.data(), r.size() / 2);
        }
        int r = f->run(f->code, l.grid, l.block, l.shared, l.params);
        if (r)
            fprintf(stderr, "%s on the host: %s\n", f->name.c_str(), f->said());
        return r;
    });
}

/* Three dimensions of numbers of 16 bits, boxes that lie swizzled by 128 bytes: what is used. What
 * is refused is what CUDA's documentation says, other kinds of maps, and those of memory that is
 * not the context's. */
API cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at, const uint64_t *dim,
                           const uint64_t *stride, const unsigned *box, const unsigned *step,
                           int interleave, int swizzle, int promotion, int fill)
{
    if (setting("STANDIN_ARCH", 90) < 90 || (uint64_t)map % 64 || type != 1 || rank != 3 ||
        (uint64_t)at % 16 || interleave || swizzle != MAP_SWIZZLE_128 || promotion < 0 ||
        promotion > 3 || fill || 2 * box[0] > 128)
        return INVALID_VALUE;
    host_map m = {(uint64_t)at, {dim[0], dim[1], dim[2]}, {2, stride[0], stride[1]},
                  {box[0], box[1], box[2]}, MAP_MAGIC, (uint32_t)swizzle, 0, {}};
    for (int i = 0; i < 3; i++)
        if (!dim[i] || dim[i] > 1ull << 32 || !box[i] || box[i] > 256 || step[i] != 1 ||
            (i && (m.step[i] % 16 || m.step[i] >= 1ull << 40)) ||
            (i && (m.step[i] % (i > 1 ? m.step[1] : 1) || m.step[i] < dim[i - 1] * m.step[i - 1])))
            return INVALID_VALUE;
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (current && !is_own(m.at, (dim[2] - 1) * m.step[2] + (dim[1] - 1) * m.step[1] + 2 * dim[0]))
        return INVALID_VALUE;
    static_assert(sizeof m == MAP_BYTES, "a map's bytes");
    memcpy(map, &m, sizeof m);
    return OK;
}

API cuStreamBeginCapture_v2(Stream *s, int)
{
    IN_CONTEXT;
    if (s->capture)
        return INVALID_VALUE;
    s->capture = new Graph;
    captures++;
    return OK;
}
API cuStreamEndCapture(Stream *s, Graph **g)
{
    IN_CONTEXT;
    *g = s->capture;
    captures -= s->capture != nullptr;
    s->capture = nullptr;
    return *g ? OK : INVALID_VALUE;
}
API cuGraphInstantiateWithFlags(Graph **e, Graph *g, unsigned long long)
{
    NO_CAPTURE;
    *e = new Graph(*g);
    return OK;
}
API cuGraphLaunch(Graph *e, Stream *s)
{
    IN_CONTEXT;
    Graph copy = *e;
    return put(s, [copy] {
        for (const Work &w : copy.work)
            if (int r = w())
                return r;
        return 0;
    });
}
API cuGraphDestroy(Graph *g)
{
    IN_CONTEXT;
    delete g;
    return OK;
}
API cuGraphExecDestroy(Graph *e)
{
    NO_CAPTURE;
    delete e;
    return OK;
}
