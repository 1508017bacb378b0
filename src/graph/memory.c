/* memory.c -- see memory.h: the accounts of devices, and what is made of a backend's few
 * entries. */
#include "graph/memory.h"

#include <string.h>
#include "graph/backend.h"

enum { SMALL_PAGE = 4096, BOUNCE = 16 << 10 };

static void charge(const struct buffer *b, uint64_t to)
{
    if (to > b->committed)
        atomic_fetch_add(&b->device->used[b->purpose], to - b->committed);
    else
        atomic_fetch_sub(&b->device->used[b->purpose], b->committed - to);
}

pith_status buffer_alloc(struct device *d, uint64_t bytes, pith_purpose purpose, struct buffer *out,
                         struct pith_error *err)
{
    *out = (struct buffer){.device = d, .bytes = bytes, .purpose = purpose};
    if (!bytes)
        return PITH_OK;
    pith_status st = d->backend->alloc(out, err);
    if (st != PITH_OK) {
        *out = (struct buffer){0};
        return error_prefix(err, "%s: %llu bytes of %s", d->name, (unsigned long long)bytes,
                            pith_purpose_name(purpose));
    }
    charge(out, bytes);
    out->committed = bytes;
    return PITH_OK;
}

pith_status buffer_reserve(struct device *d, uint64_t bytes, pith_purpose purpose,
                           struct buffer *out, struct pith_error *err)
{
    *out = (struct buffer){.device = d, .bytes = bytes, .reserved = 1, .purpose = purpose};
    pith_status st = d->backend->reserve(out, err);
    if (st != PITH_OK)
        *out = (struct buffer){0};
    return st;
}

pith_status buffer_commit(struct buffer *b, uint64_t to, struct pith_error *err)
{
    if (to <= b->committed)
        return PITH_OK;
    pith_status st = b->device->backend->commit(b, to, err);
    if (st != PITH_OK)
        return st;
    charge(b, to);
    b->committed = to;
    return PITH_OK;
}

void buffer_decommit(struct buffer *b, uint64_t to)
{
    if (to >= b->committed)
        return;
    b->device->backend->decommit(b, to);
    charge(b, to);
    b->committed = to;
}

int buffer_import(struct device *d, const void *host, uint64_t bytes, struct buffer *out)
{
    *out = (struct buffer){.device = d, .bytes = bytes, .imported = 1, .purpose = PITH_MEM_WEIGHTS};
    if (d->backend->import && d->backend->import(out, host))
        return 1;
    *out = (struct buffer){0};
    return 0;
}

void buffer_release(struct buffer *b)
{
    if (b->device && b->bytes) {
        charge(b, 0);
        b->device->backend->release(b);
    }
    *b = (struct buffer){0};
}

void *buffer_map(const struct buffer *b)
{
    return b->device && b->bytes && b->device->backend->map ? b->device->backend->map(b) : NULL;
}

/* ---------------------------------------------------------------- contents */

pith_status event_wait(struct event *ev, struct pith_error *err)
{
    struct device *d = ev->device;
    ev->device = NULL;
    return d ? d->backend->event_wait(d, ev->ticket, err) : PITH_OK;
}

/* A call that was started ends here, unless the caller waits for it himself. */
static pith_status ended(pith_status st, struct event *own, struct event *ev,
                         struct pith_error *err)
{
    return st == PITH_OK && !ev ? event_wait(own, err) : st;
}

static pith_status write_to(struct place to, const void *host, uint64_t n, int apart,
                            struct event *ev, struct pith_error *err)
{
    struct event own = {0};
    if (!n)
        return PITH_OK;
    return ended(to.buffer->device->backend->write(to, host, n, apart, ev ? ev : &own, err), &own,
                 ev, err);
}

pith_status buffer_write(struct place to, const void *host, uint64_t n, struct event *ev,
                         struct pith_error *err)
{
    return write_to(to, host, n, ev != NULL, ev, err);
}

pith_status buffer_read(void *host, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err)
{
    struct event own = {0};
    if (!n)
        return PITH_OK;
    return ended(from.buffer->device->backend->read(host, from, n, ev ? ev : &own, err), &own, ev,
                 err);
}

/* Neither device has a way to the other, and the host can look into neither. */
static pith_status bounce(struct place to, struct place from, uint64_t n, struct pith_error *err)
{
    uint8_t piece[BOUNCE];
    pith_status st = PITH_OK;
    for (uint64_t at = 0; at < n && st == PITH_OK; at += BOUNCE) {
        uint64_t part = n - at < BOUNCE ? n - at : BOUNCE;
        st = buffer_read(piece, (struct place){from.buffer, from.offset + at}, part, NULL, err);
        if (st == PITH_OK)
            st = buffer_write((struct place){to.buffer, to.offset + at}, piece, part, NULL, err);
    }
    return st;
}

pith_status buffer_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err)
{
    const struct backend *b = to.buffer->device->backend;
    struct event own = {0};
    if (!n)
        return PITH_OK;
    if (b == from.buffer->device->backend)
        return ended(b->copy(to, from, n, ev ? ev : &own, err), &own, ev, err);
    uint8_t *map = buffer_map(from.buffer);
    if (map)
        return write_to(to, map + from.offset, n, 0, ev, err);
    map = buffer_map(to.buffer);
    if (map)
        return buffer_read(map + to.offset, from, n, ev, err);
    return bounce(to, from, n, err);
}

pith_status buffer_copies(struct copy *c, int n, struct pith_error *err)
{
    const struct backend *b = n ? c->to.buffer->device->backend : NULL;
    pith_status st = PITH_OK;
    int own = b && b->copies;
    for (int i = 0; i < n; i++) {
        c[i].ev = (struct event){0};
        own = own && c[i].n && c[i].to.buffer->device->backend == b &&
              c[i].from.buffer->device->backend == b;
    }
    if (own)
        return b->copies(c, n, err);
    for (int i = 0; i < n && st == PITH_OK; i++)
        st = buffer_copy(c[i].to, c[i].from, c[i].n, &c[i].ev, err);
    return st;
}

pith_status buffer_zero(struct place at, uint64_t n, struct pith_error *err)
{
    return n ? at.buffer->device->backend->zero(at, n, err) : PITH_OK;
}

/* ---------------------------------------------------------------- slabs */

/* Bytes of a slab of a pool; UINT64_MAX: there is one, which is reserved. */
static uint64_t slab_bytes(const struct device_limits *lim)
{
    return lim->piece ? UINT64_MAX : lim->slab;
}

/* A slab has 1 << this units: as many as fit, and no more than there are. */
static int units_shift(const struct device_limits *lim, uint64_t unit, uint64_t n_units)
{
    int shift = 0;
    while (shift < 40 && (uint64_t)1 << shift < n_units && unit << shift <= slab_bytes(lim) / 2)
        shift++;
    return shift;
}

uint64_t slabs_need(const struct device *d, uint64_t unit, uint64_t n_units)
{
    struct device_limits lim;
    d->backend->limits(d, &lim);
    if (lim.piece)
        return (unit * n_units + lim.piece - 1) / lim.piece * lim.piece;
    if (lim.slab == UINT64_MAX || !unit)
        return unit * n_units;
    uint64_t each = (uint64_t)1 << units_shift(&lim, unit, n_units);
    uint64_t one = (each * unit + lim.slab - 1) / lim.slab * lim.slab;
    return (n_units + each - 1) / each * one;
}

uint64_t slabs_count(const struct device *d, uint64_t unit, uint64_t n_units)
{
    struct device_limits lim;
    d->backend->limits(d, &lim);
    uint64_t each = (uint64_t)1 << units_shift(&lim, unit, n_units);
    return unit ? (n_units + each - 1) / each : 0;
}

pith_status slabs_init(struct slabs *s, struct device *d, uint64_t unit, uint64_t n_units,
                       uint64_t grain, pith_purpose purpose, struct pith_error *err)
{
    struct device_limits lim;
    d->backend->limits(d, &lim);
    *s = (struct slabs){
        .device = d, .purpose = purpose, .unit = unit, .n_units = n_units, .grain = grain};
    if (!unit || !n_units)
        return PITH_OK;
    if (unit > lim.largest)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s takes at most %llu bytes in one piece, a unit of %s has %llu", d->name,
                         (unsigned long long)lim.largest, pith_purpose_name(purpose),
                         (unsigned long long)unit);
    s->shift = units_shift(&lim, unit, n_units);
    uint64_t each = (uint64_t)1 << s->shift;
    s->cap = (int32_t)((n_units + each - 1) >> s->shift);
    s->slab = mem_array((size_t)s->cap, sizeof *s->slab, purpose);
    if (!s->slab)
        return error_set(err, PITH_NOMEM, "out of memory for %d slabs of %s", s->cap,
                         pith_purpose_name(purpose));
    if (slab_bytes(&lim) != UINT64_MAX)
        return PITH_OK;
    s->n = s->reserved = 1;
    pith_status st = buffer_reserve(d, unit * n_units, purpose, &s->slab[0], err);
    if (st != PITH_OK)
        slabs_deinit(s);
    return st;
}

void slabs_deinit(struct slabs *s)
{
    for (int32_t i = 0; s->slab && i < s->n; i++)
        buffer_release(&s->slab[i]);
    mem_free(s->slab);
    *s = (struct slabs){0};
}

static uint64_t in_grains(const struct slabs *s, uint64_t n)
{
    uint64_t bytes = (n * s->unit + s->grain - 1) / s->grain * s->grain;
    uint64_t most = (s->unit * s->n_units + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
    most = (most + s->grain - 1) / s->grain * s->grain;
    return bytes < most ? bytes : most;
}

pith_status slabs_grow(struct slabs *s, uint64_t n, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (n <= s->made)
        return PITH_OK;
    if (s->reserved) {
        st = buffer_commit(&s->slab[0], in_grains(s, n), err);
    } else {
        uint64_t each = (uint64_t)1 << s->shift;
        while ((uint64_t)s->n << s->shift < n && st == PITH_OK) {
            uint64_t left = s->n_units - ((uint64_t)s->n << s->shift);
            st = buffer_alloc(s->device, (left < each ? left : each) * s->unit, s->purpose,
                              &s->slab[s->n], err);
            s->n += st == PITH_OK;
        }
    }
    if (st == PITH_OK)
        s->made = n;
    return st;
}

pith_status slabs_trim(struct slabs *s, uint64_t n, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (n >= s->made)
        return st;
    if (s->reserved) {
        uint64_t used = n * s->unit, keep = in_grains(s, n);
        uint64_t end = keep < s->slab[0].committed ? keep : s->slab[0].committed;
        st = buffer_zero((struct place){&s->slab[0], used}, end - used, err);
        if (st == PITH_OK)
            buffer_decommit(&s->slab[0], keep);
    } else {
        uint64_t each = (uint64_t)1 << s->shift;
        int32_t keep = (int32_t)((n + each - 1) >> s->shift);
        if (n & (each - 1)) {
            struct place p = slabs_at(s, n);
            st = buffer_zero(p, p.buffer->bytes - p.offset, err);
        }
        while (st == PITH_OK && s->n > keep)
            buffer_release(&s->slab[--s->n]);
    }
    if (st == PITH_OK)
        s->made = n;
    return st;
}

uint64_t slabs_bytes(const struct slabs *s)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        n += s->slab[i].committed;
    return n;
}
