/* adapt.c -- adapters of a session's sequences and rows. A *set* is what one of these has: up to
 * ADAPTER_USES adapters, each with a scale. A session keeps the sets that its sequences and its
 * slots have now, as many as were reserved when it was opened; rows of a step name theirs by
 * number. Who has the same adapters and scales shares a set. A row has its sequence's, whose name
 * goes into the key of stored pages and into snapshots, or those of a slot. */
#include <math.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/machine/pool.h"
#include "run/model/adapter.h"
#include "run/session/session.h"

struct adapter_set {
    uint64_t id[2]; /* 0, 0: nobody had it yet */
    int32_t n;
    int32_t n_users; /* sequences and slots that have it, when counted */
    struct pith_adapter *of[ADAPTER_USES];
    float scale[ADAPTER_USES];
};

pith_status adapt_take_params(struct pith_session *s, const struct pith_session_params *p,
                              struct pith_error *err)
{
    if (p->n_adapters < 0 || p->n_adapters > 65536 || p->adapter_rank < 0 || p->adapter_rank > 4096)
        return error_set(err, PITH_RANGE,
                         "n_adapters is %d and adapter_rank %d, wanted 0..65536 and 0..4096",
                         p->n_adapters, p->adapter_rank);
    s->n_sets = p->n_adapters;
    s->adapter_rank = !p->n_adapters ? 0 : p->adapter_rank ? p->adapter_rank : 64;
    return PITH_OK;
}

pith_status adapt_init(struct pith_session *s, struct pith_error *err)
{
    if (!s->n_sets)
        return PITH_OK;
    s->sets = mem_array((size_t)s->n_sets, sizeof *s->sets, PITH_MEM_META);
    s->slot_set = mem_array((size_t)s->n_sets, sizeof *s->slot_set, PITH_MEM_META);
    int ok = s->sets && s->slot_set;
    for (int32_t i = 0; ok && i < s->n_sets; i++)
        s->slot_set[i] = SLOT_EMPTY;
    for (int i = 0; i < s->n_roles; i++) {
        struct adapter_sets *a = &s->adapters[i];
        size_t n = (size_t)s->n_sets * (size_t)s->role[i].graph.n_adapted * ADAPTER_USES;
        *a = (struct adapter_sets){.n_sets = s->n_sets,
                                   .n_adapted = s->role[i].graph.n_adapted,
                                   .generation = 1,
                                   .use = mem_array(n + 1, sizeof *a->use, PITH_MEM_META)};
        ok = ok && a->use;
    }
    if (!ok)
        return error_set(err, PITH_NOMEM, "out of memory for %d sets of adapters", s->n_sets);
    return PITH_OK;
}

static void drop_set(struct adapter_set *t)
{
    for (int32_t i = 0; i < t->n; i++)
        adapter_unref(t->of[i]);
    memset(t, 0, sizeof *t);
}

void adapt_deinit(struct pith_session *s)
{
    for (int32_t i = 0; s->sets && i < s->n_sets; i++)
        drop_set(&s->sets[i]);
    mem_free(s->sets);
    mem_free(s->slot_set);
    for (int i = 0; i < SESSION_ROLES; i++)
        mem_free(s->adapters[i].use);
}

/* ---------------------------------------------------------------- sets */

/* Does the session use w, and nowhere in a product that takes adapters? */
static int used_bare(const struct pith_session *s, const struct tensor *w)
{
    int used = 0;
    for (int i = 0; i < s->n_roles; i++) {
        for (const struct adapted *a = s->role[i].graph.adapted; a; a = a->next)
            if (a->w == w)
                return 0;
        for (const struct node *n = s->role[i].graph.first; n && !used; n = n->next)
            used = n->w == w;
    }
    return used;
}

/* Its matrices for w are where the session adds them. A session may have a sum elsewhere than the
 * model's own graphs: types of its cache decide where attention runs, and so what is beside it. */
static const struct device *lacks_on(const struct pith_session *s, const struct pith_adapter *ad)
{
    for (int i = 0; i < s->n_roles; i++)
        for (const struct adapted *a = s->role[i].graph.adapted; a; a = a->next)
            for (int32_t k = 0; k < ad->n; k++)
                if (ad->pair[k].w == a->w && !(ad->pair[k].on >> a->sum->device & 1))
                    return s->model->devices[a->sum->device];
    return NULL;
}

/* What this session leaves out of a model (a head, the output) is left out of its adapters, too;
 * all else counts. */
static pith_status check_use(const struct pith_session *s, const struct pith_adapter_use *u,
                             struct pith_error *err)
{
    const struct pith_adapter *a = u->adapter;
    if (!a || a->model != s->model)
        return error_set(err, PITH_RANGE, a ? "an adapter of another model than the session's"
                                            : "an adapter is NULL");
    if (!(fabsf(u->scale) < 1e9f))
        return error_set(err, PITH_RANGE, "a scale of %g, wanted a number", (double)u->scale);
    if (a->rank > s->adapter_rank)
        return error_set(err, PITH_RANGE,
                         "an adapter of rank %d, the session was opened for %d; set adapter_rank",
                         a->rank, s->adapter_rank);
    for (int32_t i = 0; i < a->n; i++)
        if (used_bare(s, a->pair[i].w))
            return error_set(err, PITH_UNSUPPORTED,
                             "the adapter has numbers for %s, with which nothing is multiplied",
                             a->pair[i].w->name);
    const struct device *d = lacks_on(s, a);
    return d ? error_set(err, PITH_UNSUPPORTED,
                         "this session adds an adapter's numbers on %s, where the model was opened "
                         "for other types of cache; the adapter has none there",
                         d->name)
             : PITH_OK;
}

/* What is used of `uses`: those with a scale. */
static struct adapter_set make_set(const struct pith_adapter_use *uses, int32_t n)
{
    struct adapter_set t = {0};
    struct {
        uint64_t id[2];
        float scale, zero;
    } what[ADAPTER_USES];
    memset(what, 0, sizeof what);
    for (int32_t i = 0; i < n; i++) {
        if (uses[i].scale == 0)
            continue;
        memcpy(what[t.n].id, uses[i].adapter->id, sizeof what->id);
        what[t.n].scale = t.scale[t.n] = uses[i].scale;
        t.of[t.n++] = uses[i].adapter;
    }
    XXH128_hash_t h = XXH3_128bits(what, (size_t)t.n * sizeof *what);
    t.id[0] = t.n ? h.low64 | 1 : 0;
    t.id[1] = t.n ? h.high64 : 0;
    return t;
}

/* Gives up what nobody has; sequence `but` and slot `but_slot` are about to have another. */
static void drop_unused(struct pith_session *s, int32_t but, int32_t but_slot)
{
    for (int32_t i = 0; i < s->n_sets; i++)
        s->sets[i].n_users = 0;
    for (int32_t q = 0; q < s->n_seq; q++)
        if (q != but && session_set(s, q) >= 0)
            s->sets[session_set(s, q)].n_users++;
    for (int32_t i = 0; i < s->n_sets; i++)
        if (i != but_slot && s->slot_set[i] >= 0)
            s->sets[s->slot_set[i]].n_users++;
    for (int32_t i = 0; i < s->n_sets; i++)
        if (!s->sets[i].n_users)
            drop_set(&s->sets[i]);
}

/* The set's number, or a free one; -1: all are taken. */
static int32_t find_set(const struct pith_session *s, const struct adapter_set *t)
{
    int32_t at = -1;
    for (int32_t i = s->n_sets - 1; i >= 0; i--) {
        if (!memcmp(s->sets[i].id, t->id, sizeof t->id))
            return i;
        at = s->sets[i].n ? at : i;
    }
    return at;
}

/* For the products of one role. */
static void fill_set(struct pith_session *s, int role, int32_t set)
{
    const struct adapter_set *t = &s->sets[set];
    struct adapter_sets *a = &s->adapters[role];
    struct adapter_use *use = a->use + (int64_t)set * a->n_adapted * ADAPTER_USES;
    uint32_t fp = fp_enter(); /* scales are computed here: the host's rounding must not show */
    memset(use, 0, (size_t)a->n_adapted * ADAPTER_USES * sizeof *use);
    for (const struct adapted *w = s->role[role].graph.adapted; w; w = w->next, use += ADAPTER_USES)
        for (int32_t i = 0, n = 0; i < t->n; i++) {
            const struct adapter_pair *p = adapter_pair_of(t->of[i], w->w);
            if (!p)
                continue;
            float per = t->of[i]->alpha != 0 ? t->of[i]->alpha / (float)tensor_k(&p->a.t) : 1;
            use[n++] = (struct adapter_use){&p->a.t, &p->b.t, per * t->scale[i]};
        }
    fp_leave(fp);
    a->generation++;
}

/* The number of set t, which is made if there is none, for a sequence or a slot (the other is -1),
 * whose own goes then unless others have it, too. -1: nothing is added. */
static pith_status take_set(struct pith_session *s, const struct adapter_set *t, int32_t seq,
                            int32_t slot, int32_t *out, struct pith_error *err)
{
    *out = -1;
    if (!t->n)
        return PITH_OK;
    drop_unused(s, -1, -1);
    int32_t set = find_set(s, t);
    if (set < 0) {
        drop_unused(s, seq, slot);
        set = find_set(s, t);
    }
    if (set < 0)
        return error_set(err, PITH_RANGE,
                         "all %d sets of adapters are in use by other sequences and slots; open "
                         "the session with more (n_adapters)",
                         s->n_sets);
    if (memcmp(s->sets[set].id, t->id, sizeof t->id) != 0) {
        int i = 0;
        for (; i < t->n; i++)
            adapter_ref(t->of[i]);
        s->sets[set] = *t;
        for (i = 0; i < s->n_roles; i++)
            fill_set(s, i, set);
    }
    *out = set;
    return PITH_OK;
}

static pith_status check_uses(const struct pith_session *s, const struct pith_adapter_use *uses,
                              int32_t n, const char *whose, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (n < 0 || n > ADAPTER_USES)
        return error_set(err, PITH_RANGE, "%d adapters of a %s, wanted 0..%d", n, whose,
                         ADAPTER_USES);
    if (n && !s->n_sets)
        return error_set(err, PITH_STATE,
                         "the session was opened without adapters; set n_adapters");
    for (int32_t i = 0; i < n && st == PITH_OK; i++)
        st = check_use(s, &uses[i], err);
    return st;
}

pith_status session_adapt(struct pith_session *s, int32_t seq, const struct pith_adapter_use *uses,
                          int32_t n, struct pith_error *err)
{
    if (seq < 0 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d", seq, s->n_seq - 1);
    struct cache_seq *q = &s->cache.seq[seq];
    pith_status st = check_uses(s, uses, n, "sequence", err);
    if (st != PITH_OK)
        return st;
    struct adapter_set t = make_set(uses, n);
    int32_t set;
    if (!memcmp(t.id, q->adapter, sizeof t.id))
        return PITH_OK;
    if (q->n)
        return error_set(err, PITH_STATE,
                         "sequence %d holds %d positions that were computed with other adapters; "
                         "truncate it to 0 first",
                         seq, q->n);
    if (q->n_memory)
        return error_set(err, PITH_STATE,
                         "sequence %d: the encoder has read its text with other adapters; take it "
                         "away first (pith_encode of no tokens)",
                         seq);
    st = take_set(s, &t, seq, -1, &set, err);
    if (st != PITH_OK)
        return st;
    memcpy(q->adapter, t.id, sizeof q->adapter);
    q->adapter_set = set < 0 ? 0 : set;
    s->n_tried = 0; /* rows of a tree that is yet to be accepted had others */
    drop_unused(s, -1, -1);
    return PITH_OK;
}

pith_status session_adapt_slot(struct pith_session *s, int32_t slot,
                               const struct pith_adapter_use *uses, int32_t n,
                               struct pith_error *err)
{
    pith_status st = check_uses(s, uses, n, "slot", err);
    if (st == PITH_OK && (slot < 0 || slot >= s->n_sets))
        st = error_set(err, PITH_RANGE, "adapter slot %d, the session has %d (n_adapters)", slot,
                       s->n_sets);
    if (st != PITH_OK)
        return st;
    struct adapter_set t = make_set(uses, n);
    int32_t set;
    st = take_set(s, &t, -1, slot, &set, err);
    if (st != PITH_OK)
        return st;
    s->slot_set[slot] = n ? set : SLOT_EMPTY;
    s->n_tried = 0; /* rows of a tree that is yet to be accepted may have had what was there */
    drop_unused(s, -1, -1);
    return PITH_OK;
}
