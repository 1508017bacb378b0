/* memory.h -- memory of devices. A buffer is opaque: only the backend that made it knows what its
 * handle means, and nobody else follows a pointer into it. Contents move by read, write, copy and
 * zero, all of which can fail; every byte that is backed is counted in its device's account, here
 * and nowhere else.
 *
 *     place = (buffer, offset)        what everything outside of a backend keeps
 *
 * (Another place is that of slots in pages: step.h.)
 *
 * A backend that computes in the host's memory can say where a buffer lies (buffer_map), so that
 * nothing has to be copied there. What uses that works without it, too: a map is NULL where the
 * host cannot look.
 *
 * What is asynchronous ends at an event: a call with `ev` NULL returns when its bytes have arrived,
 * one with `ev` may return before; event_wait is for them. Until then nobody touches either end. */
#ifndef PITH_GRAPH_MEMORY_H
#define PITH_GRAPH_MEMORY_H

#include <stdatomic.h>
#include "base/error.h"
#include "base/mem.h"

enum { MAX_DEVICES = 8 };

struct backend;

/* What computes: the processor; a GPU with memory of its own; one that shares the machine's; one
 * that the processor plays, which is for tests. */
enum device_kind { DEVICE_CPU, DEVICE_GPU, DEVICE_INTEGRATED, DEVICE_SOFTWARE };

struct device {
    const struct backend *backend;
    enum device_kind kind;
    int index;         /* among the model's devices */
    char name[32];     /* "CPU", "CPU1", "vulkan0": it begins as its backend is called */
    char about[96];    /* what its maker calls it; "": nothing is known */
    char lacks[256];   /* what it could have and kernels would use, names with ", " between them */
    int reproducible;  /* bits do not depend on the batch: nothing with by_rows (backend.h) runs */
    _Atomic(int) lost; /* set by the backend: nothing can be had from it any more */
    _Atomic(uint64_t) used[PITH_MEM_N];
    void *priv;
};

struct buffer {
    struct device *device; /* NULL: there is none */
    void *handle;          /* the backend's */
    uint64_t bytes;        /* it can hold */
    uint64_t committed;    /* a beginning of it that is backed by memory and counted */
    int reserved;          /* made by buffer_reserve */
    int imported;          /* host memory of somebody else's, not counted */
    pith_purpose purpose;
};

struct place {
    struct buffer *buffer;
    uint64_t offset;
};

struct event {
    struct device *device; /* NULL: nothing to wait for */
    uint64_t ticket;       /* the backend's */
};

/* What a device's allocations are like. */
struct device_limits {
    uint64_t largest; /* bytes of one allocation, UINT64_MAX: as memory allows */
    uint64_t bindable; /* bytes of a weight that a kernel can see at once; 0: all */
    uint64_t slab;    /* what grows is best made of pieces of so many bytes; UINT64_MAX: of one, */
                      /* reserved whole and committed as it grows */
    uint64_t piece;   /* not 0: pools are so, whatever slab is, in pieces of so many bytes */
    uint64_t grain;   /* a buffer takes whole ones of so many bytes; 0: nobody knows of any */
    uint64_t spare;   /* what its driver may take beside buffers, at a guess */
    uint32_t align;   /* of offsets that kernels see: a power of two, at least 64 */
    int host;         /* its memory is the machine's, of which all such devices take together */
};

/* What a buffer of so many bytes takes. */
static inline uint64_t buffer_takes(const struct device_limits *lim, uint64_t bytes)
{
    return lim->grain ? (bytes + lim->grain - 1) / lim->grain * lim->grain : bytes;
}

/* Zeroed memory. Sizes of 0 give a buffer that holds nothing and has a device. */
pith_status buffer_alloc(struct device *d, uint64_t bytes, pith_purpose purpose, struct buffer *out,
                         struct pith_error *err);
/* Addresses only, for devices that reserve pools (device_limits); buffer_commit backs bytes
 * [committed, to) and zeroes them, buffer_decommit gives back what is behind `to`. Both count in
 * whole pages. */
pith_status buffer_reserve(struct device *d, uint64_t bytes, pith_purpose purpose,
                           struct buffer *out, struct pith_error *err);
pith_status buffer_commit(struct buffer *b, uint64_t to, struct pith_error *err);
void buffer_decommit(struct buffer *b, uint64_t to);
/* Host memory as the device's own, not counted; it stays the caller's and outlives the buffer.
 * 0: the device cannot use it. */
int buffer_import(struct device *d, const void *host, uint64_t bytes, struct buffer *out);
void buffer_release(struct buffer *b); /* zeroed is allowed, and is what remains */
/* Where the host can read and write it; NULL: nowhere. */
void *buffer_map(const struct buffer *b);

/* With `ev` (weights that are loaded, or brought for a step) a device may write beside what it
 * computes: what was begun before does not touch these bytes either. */
pith_status buffer_write(struct place to, const void *host, uint64_t n, struct event *ev,
                         struct pith_error *err);
pith_status buffer_read(void *host, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err);
/* Between any devices; through the host where they have no way of their own. */
pith_status buffer_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err);
/* Several at once, to one device from others or from one to others, none of which writes what
 * another reads. Each has an event of its own, empty where it has ended; so also behind a failure.
 */
struct copy {
    struct place to, from;
    uint64_t n;
    struct event ev;
};
pith_status buffer_copies(struct copy *c, int n, struct pith_error *err);
pith_status buffer_zero(struct place at, uint64_t n, struct pith_error *err);
pith_status event_wait(struct event *ev, struct pith_error *err);

/* Units of equal size, numbered from 0, in as many buffers as it takes: pools of K and V pages and
 * of recurrent state. They are made as they are needed and zero then. */
struct slabs {
    struct device *device;
    pith_purpose purpose;
    uint64_t unit;    /* bytes; 0: there are none */
    uint64_t n_units; /* limit */
    uint64_t made;    /* units that are backed */
    uint64_t grain;   /* bytes that one slab grows by */
    int shift;        /* a slab has 1 << shift units */
    int reserved;     /* there is one, whose addresses are reserved */
    int32_t n, cap;   /* slabs */
    struct buffer *slab;
};

/* PITH_UNSUPPORTED: a unit is more than the device's largest allocation. */
pith_status slabs_init(struct slabs *s, struct device *d, uint64_t unit, uint64_t n_units,
                       uint64_t grain, pith_purpose purpose, struct pith_error *err);
void slabs_deinit(struct slabs *s); /* zeroed is allowed */
/* Backs units [0, n), and a few more where memory comes in larger pieces. */
pith_status slabs_grow(struct slabs *s, uint64_t n, struct pith_error *err);
/* Gives back what is not of units [0, n); what stays of the others is zero. */
pith_status slabs_trim(struct slabs *s, uint64_t n, struct pith_error *err);
static inline struct place slabs_at(const struct slabs *s, uint64_t i)
{
    return (struct place){&s->slab[i >> s->shift], (i & (((uint64_t)1 << s->shift) - 1)) * s->unit};
}
uint64_t slabs_bytes(const struct slabs *s); /* backed */
/* What so many units will take of a device when all are made, in whole slabs; how many slabs. */
uint64_t slabs_need(const struct device *d, uint64_t unit, uint64_t n_units);
uint64_t slabs_count(const struct device *d, uint64_t unit, uint64_t n_units);

#endif
