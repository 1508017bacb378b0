/* core.h -- errors, memory, bounds of work. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_CORE_H
#define PITH_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PITH_API __attribute__((visibility("default")))
#else
#define PITH_API
#endif

/* Initialises a struct that begins with its size: everything else is zero, without a compiler's
 * warning about it. */
#ifdef __cplusplus
extern "C++" {
template <class T> inline T pith_sized()
{
    T t = T();
    t.size = sizeof(T);
    return t;
}
}
#define PITH_SIZED(type) pith_sized<type>()
#else
#define PITH_SIZED(type)                                                                           \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

/* ---------------------------------------------------------------- status and errors */

#define PITH_STATUS_MAP(X)                                                                         \
    X(OK, 0, "ok")                                                                                 \
    X(NOMEM, 1, "out of memory")                                                                   \
    X(IO, 2, "input/output error")                                                                 \
    X(FORMAT, 3, "damaged or malformed data")                                                      \
    X(MISSING, 4, "not found")                                                                     \
    X(SHAPE, 5, "shape mismatch")                                                                  \
    X(UNSUPPORTED, 6, "not supported")                                                             \
    X(RANGE, 7, "out of range")                                                                    \
    X(STATE, 8, "not possible in this state")                                                      \
    X(CANCELLED, 9, "cancelled")                                                                   \
    X(DEVICE, 10, "device error")                                                                  \
    X(INTERNAL, 11, "internal error")

typedef enum pith_status {
#define PITH_STATUS_ENUM(name, value, text) PITH_##name = value,
    PITH_STATUS_MAP(PITH_STATUS_ENUM)
#undef PITH_STATUS_ENUM
} pith_status;

#define PITH_ERROR_MAX                                                                             \
    2048 /* one message lists every missing, extra and misshapen tensor, or says how many more */

struct pith_error {
    pith_status code;
    char msg[PITH_ERROR_MAX]; /* always terminated, one line, valid UTF-8 */
};

PITH_API const char *pith_version(void);               /* "0.1.0 (commit)" */
PITH_API const char *pith_status_text(pith_status st); /* never NULL */

/* ---------------------------------------------------------------- memory */

typedef enum pith_purpose {
    PITH_MEM_WEIGHTS,
    PITH_MEM_CACHE,
    PITH_MEM_SCRATCH,
    PITH_MEM_VOCAB,
    PITH_MEM_META,
    PITH_MEM_SERVER,
    PITH_MEM_N
} pith_purpose;

/* Process-wide allocator, set before any other call of the library (PITH_STATE afterwards). alloc
 * returns memory aligned to `align` (a power of two) or NULL; commit is asked before reserved
 * address space is first used and returns 0, or -1 to refuse. */
struct pith_allocator {
    size_t size;
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align, pith_purpose purpose);
    void (*free)(void *ctx, void *p, size_t bytes, pith_purpose purpose);
    int (*commit)(void *ctx, void *addr, size_t bytes, pith_purpose purpose);
};
PITH_API pith_status pith_set_allocator(const struct pith_allocator *a, struct pith_error *err);

#define PITH_MEM_MAX 32 /* there will never be more purposes; those that are not known are 0 */
struct pith_memory_report {
    size_t size;
    uint64_t used[PITH_MEM_MAX]; /* bytes held now, per purpose */
    uint64_t peak[PITH_MEM_MAX]; /* highest value since the process began */
};
#define PITH_MEMORY_REPORT_INIT PITH_SIZED(struct pith_memory_report)
PITH_API pith_status pith_memory(struct pith_memory_report *out); /* PITH_RANGE: out has no size */
PITH_API const char *pith_purpose_name(pith_purpose p);
/* Memory of the machine, or the least limit of a control group this process is in; and how much of
 * it this process can still take: less a 64th of all, less what it has promised to sessions.
 * UINT64_MAX: not known. Either may be NULL. */
PITH_API void pith_memory_limits(uint64_t *total, uint64_t *left);

/* ---------------------------------------------------------------- bounds of work */

/* What the calls of one thread may cost, from pith_work_begin to pith_work_end: those that may be
 * long for small inputs (grammars and schemas, templates, tokenizing, reading answers, samplers)
 * count their steps and the memory they take, ask go_on and look at the clock every few
 * milliseconds, and end with PITH_CANCELLED or PITH_RANGE when they may not go on. What they had
 * begun is freed. */
typedef enum pith_work_stop {
    PITH_WORK_GOES_ON,
    PITH_WORK_CANCELLED, /* go_on said so: PITH_CANCELLED */
    PITH_WORK_LATE,      /* the deadline has passed: PITH_CANCELLED */
    PITH_WORK_BYTES,     /* max_bytes: PITH_RANGE */
    PITH_WORK_STEPS      /* max_steps: PITH_RANGE */
} pith_work_stop;
struct pith_work {
    size_t size;
    /* 0: stop. Called by the thread that works, with no lock of the library held, at most 4096
     * steps after it was called before; it may take its time (to let others have their turn). NULL:
     * nobody is asked. */
    int (*go_on)(void *ctx, const struct pith_work *w);
    void *ctx;
    int64_t deadline;   /* CLOCK_MONOTONIC ns; 0: none */
    uint64_t max_bytes; /* of held_bytes; 0: no bound */
    uint64_t max_steps; /* 0: no bound. A step is some 10 to 100 ns */
    /* Told by the library, at any time: */
    uint64_t steps;
    int64_t held_bytes; /* taken less given back since it began: what its results hold, once calls
                           have returned; below 0: it freed older ones */
    int64_t peak_bytes;
    pith_work_stop stop; /* why it does not go on; stays */
    /* The library's own. */
    uint64_t look_at;
    struct pith_work *outer;
};
#define PITH_WORK_INIT PITH_SIZED(struct pith_work)
/* w is the caller's and stays in place until its end. Inside of another one of the thread only the
 * inner one bounds, and what it has counted is added to the outer one at its end. PITH_RANGE: size.
 */
PITH_API pith_status pith_work_begin(struct pith_work *w, struct pith_error *err);
PITH_API void pith_work_end(
    struct pith_work *w); /* of the thread's innermost one; any other, or NULL, is left as it is */

/* ---------------------------------------------------------------- traces */

/* What the process does when, as a file for viewers of Chrome traces: a JSON array of complete
 * events (times in microseconds since the trace began). Process 0 is the host, its lines are
 * threads: steps, what is handed to devices and waited for, sampling. Each device is a process,
 * whose lines are those of sessions (two where steps run beside each other): segments, which are
 * what a device does of a step at a stretch, its groups of ops where the backend tells them, copies
 * from other devices, changes of pages. On a line events nest.
 *
 * There is one trace at a time. It is kept in memory: the latest n_events (0: 200,000, of 128 bytes
 * each; at most 10,000,000); how many were left out is in the file. The file appears when the trace
 * is stopped, whole or not at all, but whether it can be written is found out at once.
 *
 * start   PITH_IO, or PITH_MISSING where there is no such folder: the file cannot be written
 *         there; PITH_STATE: a trace goes on; PITH_RANGE
 * stop    PITH_IO: it could not be written; PITH_STATE: none goes on. It has ended in any case. */
PITH_API pith_status pith_trace_start(const char *path, int64_t n_events, struct pith_error *err);
PITH_API pith_status pith_trace_stop(struct pith_error *err);

#ifdef __cplusplus
}
#endif
#endif
