/* room.c -- whether there is memory for a session before any is taken, and how much context there
 * is room for where nobody says. A cache is charged as if it were full: it grows as it is used, and
 * what would not fit when it is full is refused when it is opened. */
#include "run/session/session.h"

#include <stdio.h>
#include <string.h>

/* A context that is not asked for is a multiple of this. */
enum { CONTEXT_STEP = 256 };

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* An encoder takes its input whole. */
int32_t room_memory(const struct pith_session *s, const struct cache_params *p)
{
    int32_t n = p->n_ctx < s->n_batch ? p->n_ctx : s->n_batch;
    return s->n_roles > 1 ? n : 0;
}

/* What there would be with these parameters; 0: nothing. */
static int shape(struct pith_session *s, const struct cache_params *p, struct cache *c,
                 struct recurrent *r)
{
    const struct pith_model *m = s->model;
    struct cache_params with = *p;
    with.n_memory = room_memory(s, p);
    if (cache_shape(c, s->states, s->n_states, m->devices, &with, NULL) !=
        PITH_OK)
        return 0;
    struct recurrent_params rp = {.n_ctx = p->n_ctx,
                                  .n_seq = p->n_seq,
                                  .n_batch = p->n_batch,
                                  .n_tree_rows = s->n_tree_rows,
                                  .cache_limit = cache_limit(c),
                                  .n_stored = c->n_stored};
    return recurrent_shape(r, s->states, s->n_states, &rp, NULL) == PITH_OK;
}

/* What edits of any sequence are written in first: there is one. */
static uint64_t draft(const struct cache *c)
{
    struct cache none = *c;
    none.n_seq = 0;
    return cache_growth(&none);
}

uint64_t room_cache(struct pith_session *s, const struct cache_params *p)
{
    struct cache c;
    struct recurrent r;
    if (!shape(s, p, &c, &r))
        return UINT64_MAX;
    return cache_limit(&c) + recurrent_limit(&r) + cache_tables_most(&c) + draft(&c) +
           recurrent_tables(&r) + store_tables(&c, &r, p->pool, p->store_folder);
}

/* What a plan takes of a device for one step at a time: values, and what its job has. */
static uint64_t run_needs(struct pith_session *s, struct plan *p, int d, uint64_t n_slabs)
{
    struct device *dev = s->model->devices[d];
    struct device_limits lim;
    dev->backend->limits(dev, &lim);
    uint64_t job = p->act_bytes[d] && dev->backend->job_memory
                       ? dev->backend->job_memory(dev, p, s->step_reserved, n_slabs)
                       : 0;
    return buffer_takes(&lim, p->act_bytes[d]) + job;
}

/* What full pools, and steps where there is a plan, take of a device with memory of its own; 0: it
 * has none. */
static uint64_t need_on(struct pith_session *s, const struct cache *c, const struct recurrent *r,
                        int d, struct mem_left *left)
{
    struct device *dev = s->model->devices[d];
    const struct plan *large = &s->role[SESSION_LARGE].plan;
    struct device_limits lim;
    dev->backend->limits(dev, &lim);
    if (lim.host)
        return 0;
    uint64_t need = slabs_need(dev, r->device_bytes[d], (uint64_t)r->n_blocks);
    uint64_t n_slabs = slabs_count(dev, r->device_bytes[d], (uint64_t)r->n_blocks);
    for (int g = 0; g < c->n_groups; g++)
        if (c->group[g].device == d) {
            uint64_t unit = (uint64_t)c->group[g].page_bytes;
            uint64_t n = (uint64_t)(c->group[g].n_pages + c->group[g].n_spare);
            need += slabs_need(dev, unit, n);
            n_slabs += slabs_count(dev, unit, n);
        }
    for (int i = 0; i < SESSION_ROLES; i++)
        need += run_needs(s, &s->role[i].plan, d, n_slabs) *
                (i == ROLE_DECODER && s->n_lanes ? (uint64_t)s->n_lanes : 1);
    if (large->n_uploads && large->ring_device == d)
        need += 2 * buffer_takes(&lim, large->ring_bytes);
    dev->backend->memory(dev, left);
    uint64_t promised = s->model->promised[d];
    left->bytes = left->bytes > promised ? left->bytes - promised : 0;
    return need;
}

/* A device that would take more of that (*need) than the part-th part of what is left; -1: there is
 * none. */
static int short_of_memory(struct pith_session *s, const struct cache_params *p, uint64_t part,
                           struct mem_left *left, uint64_t *need)
{
    struct cache c;
    struct recurrent r;
    if (!shape(s, p, &c, &r))
        return -1;
    for (int d = 0; d < s->model->n_devices; d++)
        if ((*need = need_on(s, &c, &r, d, left)) && *need > left->bytes / part)
            return d;
    return -1;
}

/* Of the machine's memory; more than there is where a device's own does not do (half of it: there
 * will be activations). */
static uint64_t charge(struct pith_session *s, const struct cache_params *p)
{
    struct mem_left left;
    uint64_t need;
    return short_of_memory(s, p, 2, &left, &need) < 0 ? room_cache(s, p) : UINT64_MAX;
}

/* Half of the memory left beside the weights: those that lie in a file's pages want to stay there.
 * A limit that the caller sets is of what is beside them already. */
static uint64_t half_left(struct pith_model *m, int64_t most, struct mem_left *left)
{
    uint64_t mapped = 0;
    m->devices[0]->backend->memory(m->devices[0], left);
    pthread_mutex_lock(&m->placing);
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++)
            if (!m->tensors[i]->at[k].bytes || model_in_copy(m, &m->tensors[i]->at[k]))
                mapped += m->tensors[i]->from->bytes;
    pthread_mutex_unlock(&m->placing);
    uint64_t beside = left->bytes > mapped ? left->bytes - mapped : 0;
    if (most && (uint64_t)most < left->bytes) {
        left->bytes = (uint64_t)most;
        snprintf(left->by, sizeof left->by, "memory_bytes");
    }
    return (beside < left->bytes ? beside : left->bytes) / 2;
}

/* One in the pages of all sequences: each has tables, and a page that is not full. */
static uint64_t one_context(struct pith_session *s, struct cache_params p, int32_t n_ctx)
{
    p.n_ctx = n_ctx;
    p.n_tokens = n_ctx;
    p.store_bytes = (uint64_t)(p.store_context = 0);
    return charge(s, &p);
}

/* As trained, with the set of RoPE that nobody has to ask for, or the largest that `bytes` have
 * room for. */
static int32_t choose_context(struct pith_session *s, const struct cache_params *p, uint64_t bytes)
{
    int32_t train = rope_near(&s->model->arch), lo = 1, hi;
    train = train < 1 ? 1 : train > CONTEXT_MOST ? CONTEXT_MOST : train;
    if (train <= CONTEXT_STEP || one_context(s, *p, train) <= bytes)
        return train;
    for (hi = train / CONTEXT_STEP + 1;
         hi - lo > 1;) { /* lo steps are taken even if they do not fit: what follows says so */
        int32_t mid = lo + (hi - lo) / 2;
        if (one_context(s, *p, mid * CONTEXT_STEP) <= bytes)
            lo = mid;
        else
            hi = mid;
    }
    return lo * CONTEXT_STEP;
}

/* Positions over all sequences: of every sequence a whole context, or as many as there is room for,
 * at least one context. */
static int64_t choose_tokens(struct pith_session *s, struct cache_params p, uint64_t bytes)
{
    int64_t lo = p.n_ctx, hi = (int64_t)p.n_ctx * p.n_seq;
    p.store_bytes = (uint64_t)(p.store_context = 0);
    p.n_tokens = hi;
    if (charge(s, &p) <= bytes)
        return hi;
    while (hi - lo > STEP_PAGE) {
        p.n_tokens = lo + (hi - lo) / 2;
        if (charge(s, &p) <= bytes)
            lo = p.n_tokens;
        else
            hi = p.n_tokens;
    }
    return lo;
}

void room_choose(struct pith_session *s, struct cache_params *p, int64_t most,
                 struct mem_left *left)
{
    uint64_t half = half_left(s->model, most, left);
    int chosen = !p->n_ctx;
    if (chosen)
        p->n_ctx = choose_context(s, p, half);
    if (chosen && p->n_tokens && p->n_tokens < p->n_ctx)
        p->n_ctx = (int32_t)p->n_tokens;
    if (!p->n_tokens)
        p->n_tokens = choose_tokens(s, *p, half);
    int64_t all = (int64_t)p->n_ctx * p->n_seq;
    p->n_tokens = p->n_tokens < all ? p->n_tokens : all;
    s->n_ctx = p->n_ctx;
}

void room_lanes(struct pith_session *s, const struct cache_params *p)
{
    struct mem_left left;
    uint64_t need;
    while (s->n_lanes > 1 && short_of_memory(s, p, 1, &left, &need) >= 0)
        s->n_lanes--;
}

/* A quarter of what is left stays free: allocations come in whole pieces, and caches grow. */
int room_fits_large(struct pith_session *s, const struct cache_params *p)
{
    struct cache c;
    struct recurrent r;
    int fits = shape(s, p, &c, &r);
    for (int d = 0; d < s->model->n_devices && fits; d++) {
        struct mem_left left;
        uint64_t need = need_on(s, &c, &r, d, &left);
        fits = !need || need <= left.bytes - left.bytes / 4;
    }
    return fits;
}

int room_fits_devices(struct pith_session *s, const struct cache_params *p, int half)
{
    struct mem_left left;
    uint64_t need;
    return short_of_memory(s, p, half ? 2 : 1, &left, &need) < 0;
}

pith_status room_check(struct pith_session *s, const struct cache_params *p, uint64_t other,
                       const struct mem_left *left, struct pith_error *err)
{
    struct mem_left own;
    uint64_t cache = room_cache(s, p), need;
    int d = short_of_memory(s, p, 1, &own, &need);
    if (d >= 0)
        return error_set(err, PITH_NOMEM,
                         "the session needs %.1f MiB of %s at most, for %lld positions, of one "
                         "sequence at most %d; %.1f MiB of %.1f MiB are left; use a smaller "
                         "context (--ctx), fewer positions in all, or cache types of fewer bits "
                         "(--cache-type-k, --cache-type-v)",
                         mib(need), s->model->devices[d]->name, (long long)p->n_tokens, p->n_ctx,
                         mib(own.bytes), mib(own.total));
    if (cache == UINT64_MAX ||
        (cache <= left->bytes &&
         other <= left->bytes - cache)) /* what has no shape is told by who makes it */
        return PITH_OK;
    uint64_t beside = left->bytes > other ? left->bytes - other : 0;
    int32_t fits = choose_context(s, p, beside);
    char advice[160] = "";
    if (fits < p->n_ctx && one_context(s, *p, fits) <= beside)
        snprintf(advice, sizeof advice, "one context of %d (--ctx) would fit; ", fits);
    else if (s->model->in_file != FROM_FILE_ALL)
        snprintf(advice, sizeof advice,
                 "weights that are read from the file's pages (--weights mapped) leave more; ");
    return error_set(err, PITH_NOMEM,
                     "the session needs %.1f MiB at most: %.1f MiB of cache for %lld positions, of "
                     "one sequence at most %d, in %s and %s, "
                     "and %.1f MiB beside it; %.1f MiB are left (limited by %s); %suse a smaller "
                     "context (--ctx), fewer positions in all, "
                     "or cache types of fewer bits (--cache-type-k, --cache-type-v)",
                     mib(cache + other), mib(cache), (long long)p->n_tokens, p->n_ctx,
                     dtypes[p->k_type].name, dtypes[p->v_type].name, mib(other), mib(left->bytes),
                     left->by, advice);
}
