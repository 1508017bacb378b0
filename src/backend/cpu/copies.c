/* copies.c -- activations of a prompt beside the threads that read them.
 *
 * With several memory nodes each has some of a matrix's panels, and all of a product's activations
 * are read by all nodes: on many cores more than a link between sockets brings. So each node has
 * room for the activations of one product, a tile of 16 rows in each of its places:
 *
 *     rooms    [node][place][parts of a tile, each 64-byte aligned: q d s32 | q d s16 | h | f]
 *     states   [node][place]   2 turn: being copied; 2 turn + 1: there; else nothing of this turn
 *
 * A phase is a turn. The first thread of a node that wants a tile copies it; who comes meanwhile
 * reads the original, so nobody waits. A turn has the activations of one value, those its first
 * call reads; another call's are read as they lie. Nothing of a turn is read in the next one: a
 * phase ends when all its units are done. Copies are the same bytes, so no result knows of them.
 *
 * A step of one tile reads its activations where they are: a copy would be read from there, too,
 * and waited for. */
#include "backend/cpu/cpu.h"

#include <string.h>
#include "base/mem.h"

enum { NODE_BYTES = 2 << 20 }; /* rooms of two nodes share no large page */

struct copies {
    int n_nodes;
    int32_t n_places;
    uint64_t room; /* bytes of a node's */
    uint8_t *rooms;
    _Atomic(uint64_t) *states;
    uint64_t turn;
    const void *of; /* the value of this turn */
};

struct need { /* of a node */
    int64_t places;
    uint64_t room;
};

static int64_t tiles(int64_t rows)
{
    return (rows + ACT_TILE - 1) / ACT_TILE;
}

static uint64_t place_bytes(const struct value *v)
{
    struct value tile = *v;
    tile.cap_rows = ACT_TILE;
    return size_align(value_bytes(&tile), 64);
}

static struct need need_of(const struct plan *p, int n_nodes)
{
    struct need n = {0, 0};
    for (int32_t i = 0; i < p->n_calls && n_nodes > 1; i++) {
        const struct call *c = &p->calls[i];
        if ((c->op != OP_MATMUL && c->op != OP_MATMUL_GLU) || c->src[0].cap_rows <= ACT_TILE)
            continue;
        int64_t places = tiles(c->src[0].cap_rows);
        uint64_t room = (uint64_t)places * place_bytes(&c->src[0]);
        n.places = places > n.places ? places : n.places;
        n.room = room > n.room ? room : n.room;
    }
    n.room = size_align(n.room, NODE_BYTES);
    return n;
}

uint64_t copies_bytes(const struct plan *p, int n_nodes)
{
    struct need n = need_of(p, n_nodes);
    return n.places ? (uint64_t)n_nodes * (n.room + (uint64_t)n.places * sizeof(uint64_t)) +
                          sizeof(struct copies)
                    : 0;
}

pith_status copies_new(const struct plan *p, int n_nodes, struct copies **out,
                       struct pith_error *err)
{
    struct need n = need_of(p, n_nodes);
    *out = NULL;
    if (!n.places)
        return PITH_OK;
    struct copies *c = mem_zalloc(sizeof *c, PITH_MEM_SCRATCH);
    if (c) {
        c->n_nodes = n_nodes;
        c->n_places = (int32_t)n.places;
        c->room = n.room;
        c->states =
            mem_array((size_t)n_nodes * (size_t)n.places, sizeof *c->states, PITH_MEM_SCRATCH);
        c->rooms = mem_reserve(n.room * (uint64_t)n_nodes);
    }
    pith_status st = PITH_OK;
    if (!c || !c->states || !c->rooms)
        st = error_set(err, PITH_NOMEM, "out of memory for activations of %d memory nodes",
                       n_nodes);
    else /* touched by who copies, so each node's is its own */
        st = mem_commit(c->rooms, n.room * (uint64_t)n_nodes, PITH_MEM_SCRATCH, err);
    if (st != PITH_OK && c && c->rooms) {
        mem_release(c->rooms, n.room * (uint64_t)n_nodes);
        c->rooms = NULL;
    }
    if (st != PITH_OK) {
        copies_free(c);
        return st;
    }
    *out = c;
    return PITH_OK;
}

void copies_free(struct copies *c)
{
    if (!c)
        return;
    if (c->rooms) {
        mem_decommit(c->rooms, c->room * (uint64_t)c->n_nodes, PITH_MEM_SCRATCH);
        mem_release(c->rooms, c->room * (uint64_t)c->n_nodes);
    }
    mem_free(c->states);
    mem_free(c);
}

void copies_turn(struct copies *c, const struct exec *x, const struct call *first)
{
    if (!c)
        return;
    c->turn++;
    c->of = first->n_src ? value_in(x, &first->src[0]) : NULL;
}

/* The next part of a tile's place: its n bytes are there, or are put there. */
static const void *part(uint8_t **at, const void *from, size_t n, int put)
{
    const void *part = *at;
    if (put)
        memcpy(*at, from, n);
    *at += size_align(n, 64);
    return part;
}

/* The tile as it is, or will be, in its place. */
static struct act_tile placed(uint8_t *at, const struct act_tile *t, const struct value *v,
                              int put)
{
    struct act_tile to = *t;
    const size_t n = (size_t)t->nc * (size_t)v->cols;
    switch (v->fmt) {
    case ACT_A32:
        to.q = part(&at, t->q, n, put);
        to.d = part(&at, t->d, n / 32 * sizeof *t->d, put);
        to.s32 = part(&at, t->s32, n / 32 * sizeof *t->s32, put);
        break;
    case ACT_A256:
        to.q = part(&at, t->q, n, put);
        to.d = part(&at, t->d, n / 128 * sizeof *t->d, put);
        to.s16 = part(&at, t->s16, n / 16 * sizeof *t->s16, put);
        break;
    case ACT_BF16:
        to.h = part(&at, t->h, (size_t)t->nc * (size_t)t->ld * sizeof *t->h, put);
        break;
    default:
        to.ld = v->cols;
        to.f = (const float *)(const void *)at;
        for (int i = 0; put && i < t->nc; i++)
            memcpy(at + (size_t)(i * to.ld) * sizeof *t->f, t->f + i * t->ld,
                   (size_t)to.ld * sizeof *t->f);
    }
    return to;
}

struct act_tile copies_tile(const struct exec *x, const struct value *v, int64_t i, int ith)
{
    const struct act_tile t = value_tile(x, v, i);
    const struct cpu_own *own = cpu_own_of(x);
    struct copies *c = own ? own->copies : NULL;
    if (!c || c->of != value_in(x, v) || i >= c->n_places)
        return t;
    const int home = ith % c->n_nodes;
    _Atomic(uint64_t) *state = &c->states[(int64_t)home * c->n_places + i];
    uint8_t *at = c->rooms + (uint64_t)home * c->room + (uint64_t)i * place_bytes(v);
    uint64_t s = atomic_load_explicit(state, memory_order_acquire);
    if (s == 2 * c->turn + 1)
        return placed(at, &t, v, 0);
    if (s == 2 * c->turn || !atomic_compare_exchange_strong(state, &s, 2 * c->turn))
        return t;
    const struct act_tile made = placed(at, &t, v, 1);
    atomic_store_explicit(state, 2 * c->turn + 1, memory_order_release);
    return made;
}
