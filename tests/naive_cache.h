/* naive_cache.h -- a model of the cache that keeps everything: a sequence is a list of entries,
 * each with its token, its position, the shift still to be applied and its own K and V of every
 * layer. Copies are deep, nothing is shared, paged, slid or given back. Before a step the entries
 * of its one sequence are rotated by what is due and laid densely into the pages of a session that
 * serves nothing else. What it shares with the engine is the plan and the kernels, nothing of
 * src/run/cache*.c but pages to lie in. */
#ifndef PITH_TESTS_NAIVE_CACHE_H
#define PITH_TESTS_NAIVE_CACHE_H

#include "graph/kv_page.h"
#include "graph/ops/rope.h"
#include "run/session/session.h"
#include "test.h"

struct entry {
    int32_t token, pos, delta;
    int32_t axes[STEP_AXES], turns[STEP_AXES]; /* the same of its other positions */
    uint8_t *kv; /* per layer and head: the row of K, the row of V, as they are cached */
};
struct naive_seq {
    int32_t n;
    struct entry *e; /* [n_ctx] */
};
struct naive {
    struct pith_session *s;
    struct naive_seq *seq;
    int32_t n_seq, n_ctx;
    size_t kv_bytes;
};

static size_t naive_row(enum dtype t, int32_t d)
{
    return dtype_row_bytes(t, d);
}

static int naive_open(struct naive *m, struct pith_model *model, int32_t n_seq, int32_t n_ctx,
                      const char *type, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx;
    sp.cache_type_k = sp.cache_type_v = type;
    *m = (struct naive){.n_seq = n_seq, .n_ctx = n_ctx};
    m->s = pith_session_open(model, &sp, err);
    m->seq = calloc((size_t)n_seq, sizeof *m->seq);
    if (!m->s || !m->seq)
        return 0;
    for (int32_t l = 0; l < m->s->n_states; l++) {
        const struct state *kv = &m->s->states[l];
        m->kv_bytes += (size_t)kv->n_head_kv *
                       (naive_row(kv->k_type, kv->d_k) + naive_row(kv->v_type, kv->d_v));
    }
    for (int32_t i = 0; i < n_seq; i++)
        m->seq[i].e = calloc((size_t)n_ctx, sizeof *m->seq[i].e);
    return 1;
}

static void naive_remove(struct naive *m, int32_t seq, int64_t p0, int64_t p1)
{
    struct naive_seq *q = &m->seq[seq];
    int32_t n = 0;
    for (int32_t i = 0; i < q->n; i++) {
        if (q->e[i].pos >= p0 && (p1 < 0 || q->e[i].pos < p1))
            free(q->e[i].kv);
        else
            q->e[n++] = q->e[i];
    }
    q->n = n;
}

static void naive_close(struct naive *m)
{
    for (int32_t i = 0; m->seq && i < m->n_seq; i++) {
        naive_remove(m, i, 0, -1);
        free(m->seq[i].e);
    }
    free(m->seq);
    pith_session_close(m->s);
}

static void naive_copy(struct naive *m, int32_t dst, int32_t src, int64_t p0, int64_t p1)
{
    struct naive_seq *to = &m->seq[dst], *from = &m->seq[src];
    if (dst == src) {
        naive_remove(m, dst, 0, p0);
        if (p1 >= 0)
            naive_remove(m, dst, p1, -1);
        return;
    }
    naive_remove(m, dst, 0, -1);
    for (int32_t i = 0; i < from->n; i++) {
        if (from->e[i].pos < p0 || (p1 >= 0 && from->e[i].pos >= p1))
            continue;
        struct entry *e = &to->e[to->n++];
        *e = from->e[i];
        e->kv = malloc(m->kv_bytes);
        memcpy(e->kv, from->e[i].kv, m->kv_bytes);
    }
}

/* Positions p of [p0, p1) become (p + delta) / by; entries stay in order of positions. */
static void naive_move(struct naive *m, int32_t seq, int64_t p0, int64_t p1, int64_t delta,
                       int64_t by)
{
    struct naive_seq *q = &m->seq[seq];
    for (int32_t i = 0; i < q->n; i++) {
        int32_t pos = q->e[i].pos;
        if (pos < p0 || (p1 >= 0 && pos >= p1))
            continue;
        q->e[i].pos = (int32_t)((pos + delta) / by);
        q->e[i].delta += q->e[i].pos - pos;
        for (int k = 0; k < 2; k++) { /* the last stays */
            int32_t was = q->e[i].axes[k];
            q->e[i].axes[k] = (int32_t)((was + delta) / by);
            q->e[i].turns[k] += q->e[i].axes[k] - was;
        }
    }
    for (int32_t i = 1; i < q->n; i++) /* insertion sort: stable */
        for (int32_t j = i; j && q->e[j - 1].pos > q->e[j].pos; j--) {
            struct entry t = q->e[j];
            q->e[j] = q->e[j - 1];
            q->e[j - 1] = t;
        }
}

static void naive_entry_move(struct naive *m, struct entry *e, int32_t slot, int to_page)
{
    struct cache *c = &m->s->cache;
    uint8_t *row = e->kv;
    for (int32_t l = 0; l < m->s->n_states; l++) {
        const struct state *kv = &m->s->states[l];
        struct cache_group *g = &c->group[kv->group];
        int32_t place = c->seq[0].pages[kv->group][slot / STEP_PAGE];
        struct place at = slabs_at(&g->pages, (uint64_t)place_page(place));
        uint8_t *page = (uint8_t *)buffer_map(at.buffer) + at.offset;
        int in = place_slot(place, slot);
        size_t k_row = naive_row(kv->k_type, kv->d_k);
        for (int h = 0; h < kv->n_head_kv; h++) {
            if (to_page) {
                kv_put_k(kv, page, h, in, row);
                kv_put_v(kv, page, h, in, row + k_row);
            } else {
                kv_get_k(kv, page, h, in, row);
                kv_get_v(kv, page, h, in, row + k_row);
            }
            row += k_row + naive_row(kv->v_type, kv->d_v);
        }
    }
}

static void naive_rotate(struct naive *m, struct entry *e)
{
    float x[512], angles[512];
    uint8_t *row = e->kv;
    for (int32_t l = 0; l < m->s->n_states; l++) {
        const struct state *kv = &m->s->states[l];
        if (kv->rope)
            ref_rope_angles4(kv->rope,
                             (const double[]){e->delta, e->turns[0], e->turns[1], e->turns[2]},
                             1.0, angles);
        for (int h = 0; h < kv->n_head_kv; h++) {
            if (kv->rope) {
                dtypes[kv->k_type].dequant(row, x, kv->d_k);
                if (kv->turn_k) /* out of it and into it again */
                    ref_hadamard(x, kv->d_k, kv->turn_k);
                ref_rope_head(kv->rope, x, angles);
                if (kv->turn_k)
                    ref_hadamard(x, kv->d_k, kv->turn_k);
                dtypes[kv->k_type].quant(x, row, kv->d_k);
            }
            row += naive_row(kv->k_type, kv->d_k) + naive_row(kv->v_type, kv->d_v);
        }
    }
    e->delta = 0;
    memset(e->turns, 0, sizeof e->turns);
}

static void naive_settle(struct naive *m, int32_t seq)
{
    for (int32_t i = 0; i < m->seq[seq].n; i++)
        if (m->seq[seq].e[i].delta || m->seq[seq].e[i].turns[0] || m->seq[seq].e[i].turns[1])
            naive_rotate(m, &m->seq[seq].e[i]);
}

/* Position of a row of text behind one at these. */
static int32_t naive_after(int32_t pos, const int32_t axes[STEP_AXES])
{
    int32_t most = pos > axes[0] ? pos : axes[0];
    return (most > axes[1] ? most : axes[1]) + 1;
}

static int32_t naive_next(const struct naive_seq *q)
{
    return q->n ? naive_after(q->e[q->n - 1].pos, q->e[q->n - 1].axes) : 0;
}

static void naive_fill(struct naive *m, const struct naive_seq *q, const int32_t *token,
                       const int32_t *pos, int32_t n)
{
    struct step *t = m->s->step;
    int32_t next = naive_next(q);
    t->T = t->R = n;
    t->N = 1;
    t->n_tiles = t->embd = 0;
    step_put_first(t)[0] = step_put_seq(t)[0] = 0;
    step_put_first(t)[1] = n;
    for (int32_t r = 0; r < n; r++) {
        if (r % STEP_TILE == 0)
            step_put_tile(t)[t->n_tiles++] = r;
        step_put_token(t)[r] = token[r];
        step_put_seg(t)[r] = 0;
        if (pos && pos[4 * r] >= 0)
            step_place4(t, r, pos + 4 * r);
        else
            step_place(t, r, next);
        next = naive_after(step_pos(t)[r], step_axes(t) + STEP_AXES * r);
        step_put_out(t)[r] = r;
        for (int g = 0; g < t->n_groups; g++) {
            int64_t first = cache_first_seen(&m->s->cache.group[g], step_pos(t)[r]);
            int32_t lo = 0;
            while (lo < q->n + r && (lo < q->n ? q->e[lo].pos : step_pos(t)[lo - q->n]) < first)
                lo++;
            step_put_slot(t, g)[r] = q->n + r;
            step_put_lo(t, g)[r] = lo;
            step_put_hi(t, g)[r] = q->n + r + 1;
        }
    }
    for (int g = 0; g < t->n_groups; g++)
        memcpy(step_put_pages(t, g, 0), m->s->cache.seq[0].pages[g],
               (size_t)m->s->cache.cap_pages * sizeof(int32_t));
}

/* Appends n tokens (at most a step's worth) at positions pos [n][4], or, where it is NULL or has
 * -1, the next of text; logits of row r: naive_logits until the next call. */
static int naive_feed(struct naive *m, int32_t seq, const int32_t *token, const int32_t *pos,
                      int32_t n)
{
    struct naive_seq *q = &m->seq[seq];
    struct pith_error err;
    naive_settle(m, seq);
    cache_cut(&m->s->cache, 0, 0);
    if (cache_grow(&m->s->cache, 0, q->n + n, &err) != PITH_OK ||
        cache_flush(&m->s->cache, &err) != PITH_OK)
        return 0;
    for (int32_t i = 0; i < q->n; i++)
        naive_entry_move(m, &q->e[i], i, 1);
    naive_fill(m, q, token, pos, n);
    m->s->run.n_threads = m->s->n_threads;
    if (plan_submit(&m->s->role[ROLE_DECODER].run, &m->s->run, &err) != PITH_OK)
        return 0;
    for (int32_t r = 0; r < n; r++) {
        struct entry *e = &q->e[q->n + r];
        *e = (struct entry){.token = token[r], .pos = step_pos(m->s->step)[r]};
        memcpy(e->axes, step_axes(m->s->step) + STEP_AXES * r, sizeof e->axes);
        e->kv = malloc(m->kv_bytes);
        naive_entry_move(m, e, q->n + r, 0);
    }
    q->n += n;
    m->s->cache.seq[0].n = q->n; /* so that the next cut gives the pages back */
    return 1;
}

static const float *naive_logits(struct naive *m, int32_t r)
{
    return plan_map(&m->s->role[ROLE_DECODER].run, &m->s->role[ROLE_DECODER].plan.logits, r);
}

#endif
