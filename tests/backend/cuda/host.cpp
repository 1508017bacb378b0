// host.cpp -- runs kernels on the host, a block after the other. A block's threads are fibers,
// which take turns: each runs until it waits for its warp or its block, or ends. What would hang a
// GPU or is not defined there is an error: some threads wait where others do not come, or at
// another place. Threads and blocks run in one order in one launch and in another in the next,
// forwards, backwards and mixed, so that none relies on another's work. What is touched on the way
// is looked at by checks.cpp, where that is compiled in.
#include "host.h"
#include "hopper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

/* Not zero: they do not lie with shared memory (checks.cpp). */
host_dim threadIdx = {1, 1, 1}, blockIdx = {1, 1, 1}, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};
void *host_shared = &threadIdx;

namespace {

enum { WARP = 32, MOST_THREADS = 1024, STACK = 128 << 10 };
enum State { READY, AT_WARP, AT_BLOCK, AT_BARRIER, DONE };

/* Of struct cu_args of backend/cuda/cuda_impl.h. */
struct Params {
    unsigned char bytes[448]; /* of most kernels 152, and they look at no more */
};
typedef void (*Kernel)(Params);

struct Fiber {
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    State state;
    host_dim index;
    const char *file; /* where it waits for its block */
    int line;
    /* What it gives to its warp. */
    enum What { NOTHING, SUM, PRODUCT, HALVES, BRAINS, MATRICES, TURNED, OTHER } what;
    float *v;
    int n, from, *c;
    uint32_t a[4], b[2], *r;
    const void *row;
    /* What it has fetched into shared memory and not waited for, of which stage each is. */
    struct Fetch {
        void *to;
        const void *from;
        int stage;
        size_t n;
    };
    std::vector<Fetch> fetches;
    int stage;
};

Fiber fibers[MOST_THREADS];
char *stacks;
int current;
Kernel kernel;
Params params;
unsigned order; /* of this launch: forwards, backwards, mixed */
bool failed;
char said[512];

void fiber_main();

#ifdef __x86_64__
void *scheduler;
extern "C" void pith_cuda_host_switch(void **save, void *to);
__asm__(".text\n"
        ".hidden pith_cuda_host_switch\n"
        ".globl pith_cuda_host_switch\n"
        "pith_cuda_host_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
        "ret\n");

void prepare(Fiber &f, char *top)
{
    void **sp = (void **)(void *)(top - 64);
    memset(sp, 0, 64);
    sp[6] = (void *)fiber_main; /* behind six registers */
    f.sp = sp;
}
void resume(Fiber &f) { pith_cuda_host_switch(&scheduler, f.sp); }
void pause(Fiber &f) { pith_cuda_host_switch(&f.sp, scheduler); }
#else
ucontext_t scheduler;
void prepare(Fiber &f, char *top)
{
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = top - STACK;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = NULL;
    makecontext(&f.context, fiber_main, 0);
}
void resume(Fiber &f) { swapcontext(&scheduler, &f.context); }
void pause(Fiber &f) { swapcontext(&f.context, &scheduler); }
#endif

void fiber_main()
{
    kernel(params);
    fibers[current].state = DONE;
    pause(fibers[current]);
}

void wait_as(State state)
{
    Fiber &f = fibers[current];
    f.state = state;
    pause(f);
}

void multiply(Fiber *lane)
{
    for (int l = 0; l < WARP; l++)
        for (int e = 0; e < 4; e++)
            for (int w = 0; w < 4; w++) {
                uint32_t a = lane[l / 4 * 4 + w].a[e / 2];
                uint32_t b = lane[(2 * (l % 4) + e % 2) * 4 + w].b[0];
                lane[l].c[e] = host_dp4a(a, b, lane[l].c[e]);
            }
}

/* Number k % 2 of a word. */
double half_of(uint32_t word, int k, bool bf16)
{
    uint32_t h = word >> (16 * (k % 2)) & 0xffff;
    return bf16 ? host_float(h << 16) : host_half(h);
}

/* Products are exact; an order of their sum is nobody's to rely on. */
void multiply_halves(Fiber *lane, bool bf16)
{
    for (int l = 0; l < WARP; l++)
        for (int e = 0; e < 4; e++) {
            double sum = lane[l].v[e];
            for (int k = 15; k >= 0; k--) {
                const Fiber &a = lane[l / 4 * 4 + k % 8 / 2];
                const Fiber &b = lane[(2 * (l % 4) + e % 2) * 4 + k % 8 / 2];
                sum += half_of(a.a[e / 2 + k / 8 * 2], k, bf16) * half_of(b.b[k / 8], k, bf16);
            }
            lane[l].v[e] = (float)sum;
        }
}

void give_matrices(Fiber *lane)
{
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++)
            memcpy(&lane[l].r[i], (const char *)lane[8 * i + l / 4].row + l % 4 * 4, 4);
}

void give_turned(Fiber *lane)
{
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                memcpy((char *)&lane[l].r[i] + 2 * e,
                       (const char *)lane[8 * i + 2 * (l % 4) + e].row + l / 4 * 2, 2);
}

/* All lanes have given theirs. */
void exchange(Fiber *lane)
{
    if (lane[0].what == Fiber::PRODUCT)
        multiply(lane);
    if (lane[0].what == Fiber::HALVES || lane[0].what == Fiber::BRAINS)
        multiply_halves(lane, lane[0].what == Fiber::BRAINS);
    if (lane[0].what == Fiber::MATRICES)
        give_matrices(lane);
    if (lane[0].what == Fiber::TURNED)
        give_turned(lane);
    for (int l = 0; l < WARP && lane[0].what == Fiber::OTHER; l++)
        lane[l].b[0] = lane[l ^ lane[0].from].a[0];
    if (lane[0].what != Fiber::SUM)
        return;
    float now[WARP], then[WARP];
    for (int i = 0; i < lane[0].n; i++) {
        for (int l = 0; l < WARP; l++)
            now[l] = lane[l].v[i];
        for (int h = lane[0].from; h > 0; h /= 2) {
            for (int l = 0; l < WARP; l++)
                then[l] = now[l] + now[l ^ h];
            memcpy(now, then, sizeof now);
        }
        for (int l = 0; l < WARP; l++)
            lane[l].v[i] = now[l];
    }
}

/* The i-th of n that comes: no 37 divides n where the order is a mixed one. */
uint64_t nth(uint64_t i, uint64_t n)
{
    return order % 3 == 0 ? i : order % 3 == 1 || n % 37 == 0 ? n - 1 - i : (37 * i + order) % n;
}

/* Until each lane has ended, waits for its block, or one waits at a barrier in shared memory. */
const char *run_warp(int first, int n)
{
    for (;;) {
        int waiting = 0, others = 0;
        for (int i = 0; i < n; i++) {
            Fiber &f = fibers[first + (int)nth((uint64_t)i, (uint64_t)n)];
            if (f.state == READY) {
                current = (int)(&f - fibers);
                threadIdx = f.index;
                resume(f);
            }
            if (failed)
                return said;
            waiting += f.state == AT_WARP;
            others += f.state == AT_BARRIER;
        }
        if (!waiting || others)
            return NULL;
        if (waiting != WARP)
            return "lanes wait for others of their warp that do not come";
        for (int i = first; i < first + n; i++) {
            if (fibers[i].what != fibers[first].what || fibers[i].n != fibers[first].n ||
                fibers[i].from != fibers[first].from)
                return "lanes of a warp do different things together";
            fibers[i].state = READY;
        }
        if (fibers[first].what == Fiber::NOTHING)
            checks_warp_met(first / WARP);
        exchange(fibers + first);
    }
}

/* They wait for each other at one place. */
bool have_met(int n)
{
    for (int i = 1; i < n; i++)
        if (fibers[i].line != fibers[0].line || strcmp(fibers[i].file, fibers[0].file))
            return false;
    return true;
}

/* Threads at barriers in shared memory, of n: those go on that can, or something comes that they
 * may wait for. 0: there are none. */
int go_on(int n)
{
    int waiting = 0, going = 0;
    for (int i = 0; i < n; i++) {
        waiting += fibers[i].state == AT_BARRIER;
        if (fibers[i].state == AT_BARRIER && hopper_goes_on(i)) {
            fibers[i].state = READY;
            going++;
        }
    }
    return !waiting ? 0 : going || hopper_copy_one(order) ? 1 : -1;
}

const char *run_block(int n)
{
    int warps = (n + WARP - 1) / WARP;
    checks_block();
    hopper_begin_block();
    for (int i = 0; i < n; i++) {
        prepare(fibers[i], stacks + (size_t)(i + 1) * STACK);
        fibers[i].state = READY;
        fibers[i].fetches.clear();
        fibers[i].stage = 0;
    }
    for (;;) {
        int waiting = 0;
        for (int w = 0; w < warps; w++) {
            int first = (int)nth((uint64_t)w, (uint64_t)warps) * WARP;
            const char *bad = run_warp(first, n - first < WARP ? n - first : WARP);
            if (bad)
                return bad;
        }
        int going = go_on(n);
        if (going < 0)
            return "threads wait at a barrier for what does not come";
        if (going)
            continue;
        for (int i = 0; i < n; i++)
            waiting += fibers[i].state == AT_BLOCK;
        if (!waiting)
            return hopper_end_block(n);
        if (waiting != n)
            return "threads wait for others of their block that do not come";
        if (!have_met(n))
            return "threads of a block wait for each other at different places";
        checks_block_met();
        for (int i = 0; i < n; i++)
            fibers[i].state = READY;
    }
}

} // namespace

int host_thread() { return current; }

void host_wait_for_barrier() { wait_as(AT_BARRIER); }

bool host_is_stack(uint64_t at)
{
    uint64_t from = (uint64_t)(uintptr_t)stacks;
    return at >= from && at < from + (uint64_t)MOST_THREADS * STACK;
}

bool host_is_own_stack(uint64_t at)
{
    return host_is_stack(at) && (at - (uint64_t)(uintptr_t)stacks) / STACK == (uint64_t)current;
}

/* The launch is over: this thread never runs again. */
void host_fail(const char *format, ...)
{
    va_list args;
    int n = snprintf(said, sizeof said, "thread %d of block (%u, %u, %u): ", current, blockIdx.x,
                     blockIdx.y, blockIdx.z);
    va_start(args, format);
    vsnprintf(said + n, sizeof said - (size_t)n, format, args);
    va_end(args);
    failed = true;
    for (;;)
        pause(fibers[current]);
}

void host_block_sync(const char *file, int line)
{
    fibers[current].file = file;
    fibers[current].line = line;
    wait_as(AT_BLOCK);
}

void host_load16(uint32_t (&to)[4], const void *from)
{
    if ((uintptr_t)from % 16)
        host_fail("sixteen bytes at %p, which is no multiple of sixteen", from);
    checks_access(HOST_READ, from, 16);
    memcpy(to, from, sizeof to);
}

/* One thread runs at a time. */
uint32_t host_add(uint32_t *p, uint32_t x)
{
    checks_access(HOST_ATOMIC, p, sizeof *p);
    uint32_t was = *p;
    *p += x;
    return was;
}

void host_warp_trees(float *v, int n, int from)
{
    Fiber &f = fibers[current];
    f.what = Fiber::SUM;
    f.v = v;
    f.n = n;
    f.from = from;
    wait_as(AT_WARP);
}

void host_warp_sync()
{
    fibers[current].what = Fiber::NOTHING;
    wait_as(AT_WARP);
}

void host_mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    Fiber &f = fibers[current];
    f.what = Fiber::PRODUCT;
    f.c = c;
    f.a[0] = a0;
    f.a[1] = a1;
    f.b[0] = b;
    wait_as(AT_WARP);
}

void host_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16)
{
    Fiber &f = fibers[current];
    f.what = bf16 ? Fiber::BRAINS : Fiber::HALVES;
    f.v = c;
    memcpy(f.a, a, sizeof f.a);
    f.b[0] = b0;
    f.b[1] = b1;
    wait_as(AT_WARP);
}

uint32_t host_lane_xor(uint32_t x, int mask)
{
    Fiber &f = fibers[current];
    f.what = Fiber::OTHER;
    f.a[0] = x;
    f.n = 1;
    f.from = mask;
    wait_as(AT_WARP);
    return f.b[0];
}

void host_matrices4(uint32_t (&r)[4], const void *row, bool turned)
{
    Fiber &f = fibers[current];
    f.what = turned ? Fiber::TURNED : Fiber::MATRICES;
    f.r = r;
    f.row = row;
    if ((uintptr_t)row % 16)
        host_fail("a row of a matrix at %p, which is no multiple of sixteen", row);
    checks_access(HOST_READ, row, 16);
    wait_as(AT_WARP);
}

/* Until it is waited for, there is nothing that anybody could use. */
void host_fetch(void *to, const void *from, int bytes)
{
    Fiber &f = fibers[current];
    size_t n = (size_t)bytes;
    if ((uintptr_t)to % n || (uintptr_t)from % n)
        host_fail("%d bytes from %p to %p: no multiples of that", bytes, from, to);
    if (from)
        checks_access(HOST_READ, from, n);
    hopper_fetches(to, n);
    f.fetches.push_back({to, from, f.stage, n});
    checks_fetch(to, n);
    memset(to, 0xff, n);
}

void host_end_stage()
{
    fibers[current].stage++;
}

void host_wait_stages(int n)
{
    Fiber &f = fibers[current];
    size_t left = 0;
    for (const Fiber::Fetch &x : f.fetches)
        if (x.stage >= f.stage - n) {
            f.fetches[left++] = x;
        } else {
            if (x.from)
                memcpy(x.to, x.from, x.n);
            else
                memset(x.to, 0, x.n);
            checks_fetched(x.to, x.n);
        }
    f.fetches.resize(left);
}

static char *memory;

const void *host_window_base() { return memory; }

uint32_t host_window(const void *p)
{
    uint64_t at = (uint64_t)((const char *)p - memory);
    if (at >= HOST_WINDOW)
        host_fail("%p is no shared memory that the launch has asked for", p);
    return (uint32_t)at;
}

/* Shared memory of so many bytes, up to a page that nobody may touch; what is there is anything.
 * 0: there is none. */
static int make_shared(unsigned bytes)
{
    enum { MOST = HOST_WINDOW, BEHIND = 64 << 10 };
    if (bytes > MOST || bytes % 16)
        return 0;
    if (!memory) {
        void *m = mmap(NULL, MOST + BEHIND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
        if (m == MAP_FAILED || mprotect((char *)m + MOST, BEHIND, PROT_NONE))
            return 0;
        memory = (char *)m;
    }
    host_shared = memory + MOST - bytes;
    memset(host_shared, 0xff, bytes);
    return 1;
}

/* What was wrong with the last launch that failed. */
extern "C" __attribute__((visibility("default"))) const char *cuda_host_said()
{
    return said;
}

/* 0, or what a driver says of a kernel that failed. */
extern "C" __attribute__((visibility("default"))) int
cuda_host_run(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared,
              const void *args)
{
    static unsigned launches;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    int n = (int)(block[0] * block[1] * block[2]);
    if (!stacks)
        stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (n < 1 || n > MOST_THREADS || !blocks || stacks == MAP_FAILED || !make_shared(shared))
        return 1;
    order = launches++;
    failed = false;
    kernel = (Kernel)function;
    memcpy(&params, args, sizeof params);
    gridDim = host_dim{grid[0], grid[1], grid[2]};
    blockDim = host_dim{block[0], block[1], block[2]};
    for (int i = 0; i < n; i++) {
        unsigned t = (unsigned)i;
        fibers[i].index = host_dim{t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
    }
    checks_launch(host_shared, shared);
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t at = nth(b, blocks);
        blockIdx.x = (uint32_t)(at % grid[0]);
        blockIdx.y = (uint32_t)(at / grid[0] % grid[1]);
        blockIdx.z = (uint32_t)(at / grid[0] / grid[1]);
        const char *bad = run_block(n);
        if (bad) {
            memmove(said, bad, strlen(bad) + 1);
            return 719;
        }
    }
    return 0;
}
