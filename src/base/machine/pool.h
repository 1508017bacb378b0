/* pool.h -- persistent worker threads. pool_run hands one function to n threads (the caller is
 * thread 0) and returns when all are done. Idle workers spin at most ~50 us, then sleep on a futex.
 * Every thread runs with round-to-nearest and no FTZ/DAZ (fp_enter). */
#ifndef PITH_BASE_POOL_H
#define PITH_BASE_POOL_H

#include <pthread.h>
#include "base/error.h"

enum { THREADS_MAX = 1024 }; /* as many processors as a cpu_set_t has (topology.h) */

struct pool;
/* n_threads 1..THREADS_MAX, counted with the caller. */
struct pool *pool_new(int n_threads, struct pith_error *err);
/* The same with each thread at its place (NULL: wherever the scheduler likes; copied). The caller
 * of a run is at its own during the run. */
struct places;
struct pool *pool_new_at(int n_threads, const struct places *places, struct pith_error *err);
int pool_n_refused(const struct pool *p); /* threads the system has not let go to their place */
void pool_free(struct pool *p);
int pool_n_threads(const struct pool *p);
typedef void (*pool_fn)(void *ctx, int ith);
/* Runs fn(ctx, 0..n-1), n <= pool_n_threads. Runs of several callers on one pool take turns. A run
 * from inside a run of the same pool calls its indices one after the other on the calling thread
 * (so they must not wait for each other). */
void pool_run(struct pool *p, int n, pool_fn fn, void *ctx);

/* One function by whoever is there: fn(ctx, 0) on the caller and fn(ctx, i), 0 < i < n, on workers
 * as they come, each any number of times (also never) until fn(ctx, 0) returns 1: it is over.
 * Returning 0 means "nothing to do for now"; the thread is called again after pool_ring, which fn
 * rings when there is work again or all is over. Nothing may rely on a worker's taking part. */
typedef int (*pool_share_fn)(void *ctx, int ith);
void pool_share(struct pool *p, int n, pool_share_fn fn, void *ctx);
/* The same, unless some thread has the pool: 0 at once, and nothing was called. */
int pool_try_share(struct pool *p, int n, pool_share_fn fn, void *ctx);
void pool_ring(struct pool *p);

/* With many threads these are groups, of one memory node and one complex of cores, which have what
 * is read by all in a line of their own. Threads of a group; the groups that the first n are of.
 * PITH_POOL_GROUP=threads sets the size (tests). */
int pool_group(const struct pool *p);
int pool_groups(const struct pool *p, int n);
/* Rings, and tells all threads of the shared run a word, not 0. Of several the last one stands: a
 * thread may hear an older one after a later one, and is then called again. */
void pool_tell(struct pool *p, uint64_t word);
uint64_t pool_told(const struct pool *p, int ith); /* the last one; 0: none yet */
int pool_is_inside(const struct pool *p); /* this thread is in a run of it */

/* A thread beside all pools that takes none of the program's signals; 0: there is none. */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Waiting for a 32-bit word to change: spin with pause for about spin_ns, then futex. */
void wait_while_equal(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns);
void wake_all(const _Atomic(uint32_t) *word);

/* Floating-point control: sets round to nearest without FTZ/DAZ and returns what was there;
 * fp_leave restores it. */
uint32_t fp_enter(void);
void fp_leave(uint32_t saved);

int cores_usable(void); /* affinity mask and cgroup cpu.max, at least 1 */
/* Cores in the CPU quota of the control groups that the file lists, mounted at root; INT_MAX when
 * there is none. */
int cores_by_quota(const char *proc_cgroup, const char *root);
int64_t clock_ns(void); /* monotonic */

#endif
