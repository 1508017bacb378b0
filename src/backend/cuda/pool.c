/* pool.c -- memory that grows where it is: addresses are reserved for all of it, and pieces of the
 * device's memory are put behind them as it is needed. So a pool of pages is one slab, and none of
 * what was recorded about it changes when it grows. Pieces have the least size that the device puts
 * behind an address; a buffer has those that its committed bytes reach into. */
#include "backend/cuda/cuda_impl.h"

#include "base/unconst.h"

static struct cu_memory_kind kind_of(const struct cu_gpu *v)
{
    return (struct cu_memory_kind){.type = CU_PINNED, .where = {CU_ON_DEVICE, v->ordinal}};
}

pith_status cu_pools_open(struct cu_gpu *v, struct pith_error *err)
{
    const struct cu_memory_kind kind = kind_of(v);
    int able = 0;
    size_t piece = 0;
    v->piece = 0;
    if (!cu.address_reserve || cu_masked("vmm"))
        return PITH_OK;
    pith_status st =
        cu_check(v, cu.device_attribute(&able, CU_RESERVES, v->ordinal), "its kind", err);
    if (st == PITH_OK && able)
        st = cu_check(v, cu.granularity(&piece, &kind, 0), "its pieces of memory", err);
    v->piece = st == PITH_OK && able ? piece : 0;
    return st;
}

static uint64_t in_pieces(const struct cu_gpu *v, uint64_t bytes)
{
    return (bytes + v->piece - 1) / v->piece * v->piece;
}

pith_status cu_reserve(struct buffer *b, struct pith_error *err)
{
    struct cu_gpu *v = cu_of(b->device);
    cu_ptr p = 0;
    pith_status st = cu_call(v, "addresses", 1, err);
    if (st == PITH_OK)
        st = cu_check(v, cu.address_reserve(&p, in_pieces(v, b->bytes), 0, 0, 0), "addresses", err);
    b->handle = st == PITH_OK ? pointer_of(p) : NULL;
    return st;
}

/* One piece, which goes with its mapping: its own number is not needed any more. */
static cu_result put_piece(struct cu_gpu *v, uint64_t at)
{
    const struct cu_memory_kind kind = kind_of(v);
    cu_handle h = 0;
    cu_result r = cu.piece_make(&h, v->piece, &kind, 0);
    if (r != CU_SUCCESS)
        return r;
    r = cu.piece_map(at, v->piece, 0, h, 0);
    cu.piece_end(h);
    return r;
}

/* Gives back [from, to), whole pieces. */
static void take_away(struct cu_gpu *v, uint64_t base, uint64_t from, uint64_t to)
{
    if (from < to && cu.unmap(base + from, to - from) == CU_SUCCESS)
        atomic_fetch_sub(&v->taken, to - from);
}

static pith_status put_pieces(struct cu_gpu *v, uint64_t base, uint64_t from, uint64_t to,
                              struct pith_error *err)
{
    const struct cu_memory_access access = {kind_of(v).where, CU_READ_WRITE};
    uint64_t at = from;
    cu_result r = atomic_load(&v->taken) + (to - from) > v->total ? CU_OUT_OF_MEMORY : CU_SUCCESS;
    for (; at < to && r == CU_SUCCESS; at += v->piece) {
        r = put_piece(v, base + at);
        if (r != CU_SUCCESS)
            break;
        atomic_fetch_add(&v->taken, v->piece);
    }
    if (r == CU_SUCCESS)
        r = cu.access(base + from, to - from, &access, 1);
    if (r != CU_SUCCESS)
        take_away(v, base, from, at);
    return cu_check(v, r, "memory", err);
}

pith_status cu_commit(struct buffer *b, uint64_t to, struct pith_error *err)
{
    struct cu_gpu *v = cu_of(b->device);
    uint64_t all = in_pieces(v, b->bytes), end = to < all ? to : all;
    uint64_t from = in_pieces(v, b->committed), upto = in_pieces(v, end);
    pith_status st = cu_call(v, "memory", 1, err);
    if (st == PITH_OK && from < upto)
        st = put_pieces(v, cu_address(b), from, upto, err);
    if (st != PITH_OK || b->committed >= end)
        return st;
    st = cu_fill(v, cu_address(b) + b->committed, end - b->committed, err);
    if (st != PITH_OK) {
        cu_idle(v);
        take_away(v, cu_address(b), from, upto);
    }
    return st;
}

void cu_decommit(struct buffer *b, uint64_t to)
{
    struct cu_gpu *v = cu_of(b->device);
    uint64_t all = in_pieces(v, b->bytes), end = in_pieces(v, b->committed);
    cu_enter(v);
    cu_idle(v);
    take_away(v, cu_address(b), in_pieces(v, to), end < all ? end : all);
}

void cu_unreserve(struct buffer *b)
{
    cu_decommit(b, 0);
    cu.address_free(cu_address(b), in_pieces(cu_of(b->device), b->bytes));
}
