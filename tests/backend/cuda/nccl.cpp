// nccl.cpp -- stands in for libnccl.so.2 beside driver.cpp: the functions that the backend uses.
// What is sent and received between ncclGroupStart and ncclGroupEnd has to match; it arrives when
// both streams have come there.
//
//   STANDIN_NCCL=init        devices cannot be joined
//   STANDIN_NCCL=3           the third group fails, and all behind it
//   STANDIN_NCCL=hangs3      the third one never ends: an error that comes later
//   STANDIN_NCCL=gone3       .. and device 1 is gone, of which NCCL knows nothing
//   STANDIN_NCCL_VERSION=n   the version that it says it has
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace {

enum Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

struct Comm {
    int rank, n, device;
    std::vector<int> devices;
};
struct Message {
    bool sent, matched;
    uint64_t at;
    size_t n;
    int peer;
    Comm *comm;
    void *stream;
};
thread_local int depth;
thread_local std::vector<Message> group;
int comms, aborted;
int hung; /* as standin_hang of driver.cpp has it */

const char *how()
{
    const char *s = getenv("STANDIN_NCCL");
    return s ? s : "";
}

typedef int (*Bring)(void *, void *, uint64_t, uint64_t, size_t, int, int);
Bring bring()
{
    void *driver = dlopen(getenv("PITH_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    return driver ? (Bring)dlsym(driver, "standin_bring") : nullptr;
}

void hang(int how)
{
    void *driver = dlopen(getenv("PITH_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    int (*f)(int) = driver ? (int (*)(int))dlsym(driver, "standin_hang") : nullptr;
    hung = how;
    if (f)
        f(how);
}

int add(Message m)
{
    if (!depth || !m.comm || m.peer < 0 || m.peer >= m.comm->n || m.peer == m.comm->rank)
        return INVALID_USAGE;
    group.push_back(m);
    return OK;
}

} // namespace

#define API extern "C" __attribute__((visibility("default")))

/* Groups that were carried out; communicators that are there. */
API int standin_nccl_groups;
int standin_nccl_groups;
API int standin_nccl_comms() { return comms; }

API const char *ncclGetErrorString(int r)
{
    return r == SYSTEM_ERROR   ? "unhandled system error of the stand-in"
           : r == REMOTE_ERROR ? "remote process exited, says the stand-in"
                               : "invalid usage of the stand-in";
}
API int ncclGetVersion(int *version)
{
    const char *s = getenv("STANDIN_NCCL_VERSION");
    *version = s ? atoi(s) : 22105;
    return OK;
}
API int ncclCommInitAll(Comm **comm, int n, const int *devices)
{
    if (!strcmp(how(), "init"))
        return SYSTEM_ERROR;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (devices[i] == devices[k])
                return INVALID_USAGE;
    for (int i = 0; i < n; i++)
        comm[i] = new Comm{i, n, devices[i], std::vector<int>(devices, devices + n)};
    comms += n;
    aborted = 0;
    return OK;
}
API int ncclCommDestroy(Comm *c)
{
    comms--;
    delete c;
    return OK;
}
API int ncclCommAbort(Comm *c)
{
    aborted = 1;
    if (hung)
        hang(0);
    return ncclCommDestroy(c);
}
API int ncclCommGetAsyncError(Comm *, int *r)
{
    *r = hung == 1 ? REMOTE_ERROR : OK;
    return OK;
}
API int ncclGroupStart()
{
    depth++;
    return OK;
}
API int ncclSend(const void *from, size_t n, int type, int peer, Comm *c, void *stream)
{
    return type ? INVALID_ARGUMENT
                : add({true, false, (uint64_t)(uintptr_t)from, n, peer, c, stream});
}
API int ncclRecv(void *to, size_t n, int type, int peer, Comm *c, void *stream)
{
    return type ? INVALID_ARGUMENT
                : add({false, false, (uint64_t)(uintptr_t)to, n, peer, c, stream});
}
API int ncclGroupEnd()
{
    static int ended;
    std::vector<Message> all;
    if (!depth)
        return INVALID_USAGE;
    if (--depth)
        return OK;
    all.swap(group);
    if (atoi(how()) > 0 && ++ended >= atoi(how())) {
        ended = 0;
        return REMOTE_ERROR;
    }
    int gone = !strncmp(how(), "gone", 4);
    if ((gone || !strncmp(how(), "hangs", 5)) && ++ended >= atoi(how() + 5 - gone)) {
        ended = 0;
        hang(1 + gone);
    }
    for (Message &s : all)
        for (Message &r : all) {
            if (!s.sent || s.matched || r.sent || r.matched || s.peer != r.comm->rank ||
                r.peer != s.comm->rank || s.n != r.n)
                continue;
            Bring b = bring();
            if (!b || b(s.stream, r.stream, s.at, r.at, s.n, s.comm->device, r.comm->device))
                return INVALID_USAGE;
            s.matched = r.matched = true;
        }
    for (const Message &m : all)
        if (!m.matched)
            return INVALID_USAGE; /* which would wait for ever */
    standin_nccl_groups += !all.empty();
    return OK;
}
