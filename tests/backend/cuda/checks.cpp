// checks.cpp -- finds what compute-sanitizer's tools find, in kernels that run on the host. Kernels
// are compiled as for ThreadSanitizer, which calls a function before each access, and as for
// UndefinedBehaviorSanitizer: those functions are here, and are no sanitizer's.
//
//   memcheck    bytes that are of none of the device's buffers; numbers that do not lie at a
//               multiple of their size, which no GPU loads
//   racecheck   bytes that two threads of a block touch, one of them writing, and have not met in
//               between; of the device's memory also two blocks of a launch. Lanes of a warp meet
//               where they wait for each other: no shuffle and no product of a warp orders memory
//   initcheck   shared memory that the block has not written
//   besides     shared memory that a fetch is still under way to, or that products of four warps
//               read and its writer has not given to them (fence.proxy.async); another thread's
//               stack; shifts by too much, sums that overflow, subscripts behind an array's end
//
// For each word there is who wrote it last, and the last two threads that read it. Of more readers
// some are forgotten: what is found is there, but not all that is there is found. Launches follow
// each other in other orders of threads (host.cpp), so that what one misses the next may meet.
#include "checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <algorithm>
#include <unordered_map>
#include <vector>

/* Shared memory of kernels is the only data of theirs that is not constant; there is some of
 * host.cpp and of this file beside it, which kernels do not touch. */
extern __attribute__((visibility("hidden"))) char __bss_start[], _end[];
extern __attribute__((visibility("hidden"))) const char __ehdr_start[];

namespace {

enum { WARP = 32, THREAD = 1023, ATOMIC = 1 << 10, MASK_AT = 12 };

struct Access {
    uint32_t block, epoch; /* of all that have run; how often its threads have met */
    uint16_t warp_epoch, who; /* thread, ATOMIC, which bytes of the word */
};
struct Word {
    Access written, read, read_before;
};
/* Of shared memory besides: bytes that a block has written; a fetch to them is under way; which
 * thread has written last (1 and on; 0: a copy has), and `given` of that thread then. */
struct Shared {
    Word word;
    uint32_t block;
    uint8_t written, coming;
    uint16_t writer;
    uint32_t given;
};
struct Range {
    uint64_t from, to;
};

uint32_t block, launch_first, epoch;
uint16_t warp_epoch[THREAD / WARP + 1];
uint32_t given[THREAD + 1]; /* how often a thread has given to products what it had written */
std::vector<Shared> shared, asked; /* of kernels; of a launch */
std::vector<Range> memory; /* the device's buffers, in order */
Range asked_at;
size_t last_range;

enum { PAGE = 4096, PAGE_WORDS = PAGE / 4 };
struct Page {
    uint64_t number;
    Word *words;
} recent[1024];
std::unordered_map<uint64_t, Word *> pages;

uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

/* Where in this library code is, for addr2line. */
unsigned long place_of(const void *code) { return address(code) - address(__ehdr_start); }

/* ---------------------------------------------------------------- races */

bool are_ordered(const Access &before, const Access &now)
{
    int a = before.who & THREAD, b = now.who & THREAD;
    if (before.block < launch_first || !(before.who >> MASK_AT & now.who >> MASK_AT))
        return true;
    if (before.who & now.who & ATOMIC)
        return true;
    if (before.block != now.block)
        return false;
    return a == b || before.epoch != now.epoch ||
           (a / WARP == b / WARP && before.warp_epoch != now.warp_epoch);
}

void check_race(const Access &before, const Access &now, const char *did, const char *does,
                const char *where, uint64_t at)
{
    if (are_ordered(before, now))
        return;
    if (before.block != now.block)
        host_fail("race: it %s %s memory (%#lx) that another block of the launch has %s", does,
                  where, (unsigned long)at, did);
    host_fail("race: it %s %s memory (%#lx) that thread %d has %s, and they have not met since",
              does, where, (unsigned long)at, before.who & THREAD, did);
}

void touch(Word &w, host_kind kind, const Access &now, const char *where, uint64_t at)
{
    const char *does = kind == HOST_READ ? "reads" : "writes";
    check_race(w.written, now, "written", does, where, at);
    if (kind != HOST_READ) {
        check_race(w.read, now, "read", does, where, at);
        check_race(w.read_before, now, "read", does, where, at);
        w.written = now;
        return;
    }
    bool same = w.read.block == now.block && w.read.epoch == now.epoch &&
                !((w.read.who ^ now.who) & THREAD);
    uint16_t bytes = same ? (uint16_t)(w.read.who & ~(THREAD | ATOMIC)) : 0;
    if (!same)
        w.read_before = w.read;
    w.read = now;
    w.read.who = (uint16_t)(w.read.who | bytes);
}

/* ---------------------------------------------------------------- where memory is */

Word *words_of(uint64_t page)
{
    Page &found = recent[page % 1024];
    if (found.words && found.number == page)
        return found.words;
    Word *&w = pages[page];
    if (!w) {
        void *p = mmap(NULL, PAGE_WORDS * sizeof(Word), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            abort();
        w = (Word *)p;
    }
    found = Page{page, w};
    return w;
}

bool is_of_device(uint64_t at, size_t n)
{
    if (last_range < memory.size() && at >= memory[last_range].from &&
        at + n <= memory[last_range].to)
        return true;
    auto i = std::upper_bound(memory.begin(), memory.end(), at,
                              [](uint64_t x, const Range &r) { return x < r.from; });
    if (i == memory.begin())
        return false;
    last_range = (size_t)(i - memory.begin()) - 1;
    return at + n <= memory[last_range].to;
}

Access access_of(host_kind kind, unsigned bytes)
{
    Access a;
    int t = host_thread();
    a.block = block;
    a.epoch = epoch;
    a.warp_epoch = warp_epoch[t / WARP];
    a.who = (uint16_t)((unsigned)t | (kind == HOST_ATOMIC ? ATOMIC : 0) | bytes << MASK_AT);
    return a;
}

/* Bytes of the word at `word` that are in [at, at + n). */
unsigned bytes_of(uint64_t word, uint64_t at, size_t n)
{
    unsigned bytes = 0;
    for (unsigned i = 0; i < 4; i++)
        bytes |= (word + i >= at && word + i < at + n) << i;
    return bytes;
}

Shared &shared_at(uint64_t word)
{
    if (shared.empty())
        shared.resize((size_t)(_end - __bss_start) / 4 + 2);
    bool is_asked = word >= asked_at.from && word < asked_at.to;
    Shared &s = is_asked ? asked[(word - asked_at.from) / 4]
                         : shared[(word - address(__bss_start) / 4 * 4) / 4];
    if (s.block != block) {
        s = Shared{};
        s.block = block;
    }
    return s;
}

void touch_shared(host_kind kind, uint64_t word, unsigned bytes)
{
    Shared &s = shared_at(word);
    if (s.coming & bytes)
        host_fail("it touches shared memory that is still to be fetched");
    if (kind != HOST_WRITE && (s.written & bytes) != bytes)
        host_fail("it reads shared memory that nobody has written");
    touch(s.word, kind, access_of(kind, bytes), "shared", word);
    if (kind == HOST_READ)
        return;
    s.written = (uint8_t)(s.written | bytes);
    s.writer = (uint16_t)(host_thread() + 1);
    s.given = given[host_thread()];
}

void check(host_kind kind, const void *p, size_t n, const void *code)
{
    uint64_t at = address(p), first = at / 4 * 4;
    bool is_shared = (at >= address(__bss_start) && at + n <= address(_end)) ||
                     (at >= asked_at.from && at + n <= asked_at.to);
    if (host_is_stack(at)) {
        if (!host_is_own_stack(at))
            host_fail("it touches another thread's own memory (+%#lx)", place_of(code));
        return;
    }
    if (!is_shared && !is_of_device(at, n)) {
        bool constant = at >= address(__ehdr_start) && at + n <= address(__bss_start);
        if (constant && kind == HOST_READ)
            return;
        host_fail("it %s %zu bytes at %#lx, which are not of the device's memory (+%#lx)",
                  kind == HOST_READ ? "reads" : "writes", n, (unsigned long)at, place_of(code));
    }
    for (uint64_t word = first; word < at + n; word += 4) {
        unsigned bytes = bytes_of(word, at, n);
        if (is_shared)
            touch_shared(kind, word, bytes);
        else
            touch(words_of(word / PAGE)[word % PAGE / 4], kind, access_of(kind, bytes),
                  "the device's", word);
    }
}

} // namespace

void checks_launch(const void *at, size_t n)
{
    launch_first = block + 1;
    asked_at = Range{address(at), address(at) + n};
    asked.resize(n / 4 > asked.size() ? n / 4 : asked.size());
}

void checks_block()
{
    block++;
    epoch = 1;
    memset(warp_epoch, 0, sizeof warp_epoch);
}

void checks_block_met()
{
    epoch++;
    memset(warp_epoch, 0, sizeof warp_epoch);
}

void checks_warp_met(int warp)
{
    warp_epoch[warp]++;
}

void checks_access(host_kind kind, const void *at, size_t n)
{
    check(kind, at, n, __builtin_return_address(0));
}

void checks_fetch(const void *to, size_t n)
{
    check(HOST_WRITE, to, n, __builtin_return_address(0));
    for (uint64_t word = address(to); word < address(to) + n; word += 4)
        shared_at(word).coming = 15;
}

void checks_fetched(const void *to, size_t n)
{
    for (uint64_t word = address(to); word < address(to) + n; word += 4)
        shared_at(word).coming = 0;
    check(HOST_WRITE, to, n, __builtin_return_address(0));
}

void checks_copy(const void *to, size_t n)
{
    for (uint64_t word = address(to); word < address(to) + n; word += 4) {
        Shared &s = shared_at(word);
        if (s.coming)
            host_fail("it fetches into shared memory that something else is still fetched to");
        s.coming = 15;
    }
}

void checks_copied(const void *to, size_t n)
{
    for (uint64_t word = address(to); word < address(to) + n; word += 4) {
        Shared &s = shared_at(word);
        s.word = Word{};
        s.coming = 0;
        s.written = 15;
        s.writer = 0;
    }
}

void checks_operand(const void *from, size_t n)
{
    for (uint64_t word = address(from); word < address(from) + n; word += 4) {
        const Shared &s = shared_at(word);
        if (s.coming)
            host_fail("it multiplies shared memory that is still to be fetched");
        if (s.written != 15)
            host_fail("it multiplies shared memory that nobody has written");
        if (s.writer && s.given == given[s.writer - 1])
            host_fail("it multiplies shared memory that thread %d has not given to products",
                      s.writer - 1);
    }
}

void checks_given()
{
    given[host_thread()]++;
}

/* The buffers that the kernels of the next launches may touch, in order. */
extern "C" __attribute__((visibility("default"))) void
cuda_host_memory(const uint64_t (*ranges)[2], size_t n)
{
    memory.clear();
    for (size_t i = 0; i < n; i++)
        memory.push_back(Range{ranges[i][0], ranges[i][1]});
}

/* ---------------------------------------------------------------- what compilers call */

extern "C" {
void __tsan_init();
void __tsan_func_entry(void *);
void __tsan_func_exit();
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

#define CALLED(name, kind, n)                                                                      \
    void name(void *at);                                                                           \
    void name(void *at) { check(kind, at, n, __builtin_return_address(0)); }
#define CALLED_OF(n)                                                                               \
    CALLED(__tsan_read##n, HOST_READ, n)                                                           \
    CALLED(__tsan_write##n, HOST_WRITE, n)                                                         \
    CALLED(__tsan_unaligned_read##n, HOST_READ, n)                                                 \
    CALLED(__tsan_unaligned_write##n, HOST_WRITE, n)
CALLED_OF(1)
CALLED_OF(2)
CALLED_OF(4)
CALLED_OF(8)
CALLED_OF(16)

void __tsan_read_range(void *at, size_t n);
void __tsan_write_range(void *at, size_t n);
void *__tsan_memcpy(void *to, const void *from, size_t n);
void *__tsan_memset(void *to, int byte, size_t n);
void __tsan_read_range(void *at, size_t n)
{
    check(HOST_READ, at, n, __builtin_return_address(0));
}
void __tsan_write_range(void *at, size_t n)
{
    check(HOST_WRITE, at, n, __builtin_return_address(0));
}
void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    check(HOST_READ, from, n, __builtin_return_address(0));
    check(HOST_WRITE, to, n, __builtin_return_address(0));
    return memcpy(to, from, n);
}
void *__tsan_memset(void *to, int byte, size_t n)
{
    check(HOST_WRITE, to, n, __builtin_return_address(0));
    return memset(to, byte, n);
}

/* What each is told begins with where it is. */
struct Source {
    const char *file;
    uint32_t line, column;
};
#define FOUND(name, what, ...)                                                                     \
    void __ubsan_handle_##name(Source *at, __VA_ARGS__);                                           \
    void __ubsan_handle_##name(Source *at, __VA_ARGS__)                                            \
    {                                                                                              \
        host_fail(what " (%s:%u)", at->file, at->line);                                            \
    }
FOUND(shift_out_of_bounds, "a shift by more than there is", void *, void *)
FOUND(add_overflow, "a sum is too large", void *, void *)
FOUND(sub_overflow, "a difference is too large", void *, void *)
FOUND(mul_overflow, "a product is too large", void *, void *)
FOUND(negate_overflow, "a negative is too large", void *)
FOUND(divrem_overflow, "a division by zero", void *, void *)
FOUND(out_of_bounds, "a subscript behind the end", void *)
FOUND(type_mismatch_v1, "a number lies at no multiple of its size", void *)
}
