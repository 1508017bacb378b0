/* slots.c -- what runs, and the contents of slots by the numbers that requests give them (id_slot): told, saved, restored, erased. A slot here is no
 * place where a conversation lives: it is the tokens of the last choice that named it, and what was computed of them is in the prefix store. */
#include <stdlib.h>
#include <string.h>

#include "scheduler_impl.h"
#include "slots.h"

void slot_keep(struct sched *s, int i, const int32_t *ids, int64_t n)
{
    struct slot *at = i >= 0 && i < s->parallel ? &s->slot[i] : NULL;
    int32_t *more = at ? malloc((size_t)(n + 1) * sizeof *more) : NULL;
    if (!more) /* a slot that is not kept is empty */
        return;
    memcpy(more, ids, (size_t)n * sizeof *more);
    free(at->ids);
    at->ids = more;
    at->n = n;
}

void slots_free(struct sched *s)
{
    for (int i = 0; s->slot && i < s->parallel; i++)
        free(s->slot[i].ids);
    free(s->slot);
}

void slots_look(void *ctx)
{
    struct slots_look *look = ctx;
    const struct sched *s = look->s;
    look->n = s->parallel < look->most ? s->parallel : look->most;
    memset(look->v, 0, (size_t)look->n * sizeof *look->v);
    for (int q = 0, i = 0; q < s->n_seq && i < look->n; q++) {
        const struct branch *b = s->seq[q];
        if (b)
            look->v[i++] = (struct slot_info){.busy = 1, .n_prompt = b->r->n_prompt, .n_fed = b->n_fed, .n_cached = b->r->figures.n_cached, .n_made = b->n_made,
                                              .n_max = b->r->n_max};
    }
    for (int i = 0; i < look->n; i++)
        look->v[i].n_kept = s->slot[i].n;
}

static int32_t free_sequence(const struct sched *s)
{
    for (int32_t q = 0; q < s->n_seq; q++)
        if (!s->seq[q])
            return q;
    return -1;
}

/* The tokens in sequence q: what is in the store, and what is not computed, a batch at a time. */
static pith_status compute(struct sched *s, int32_t q, const int32_t *ids, int64_t n, struct pith_error *err)
{
    pith_session *session = s->hosted->generate;
    size_t kept = 0;
    pith_status st = pith_reuse(session, q, ids, (size_t)n, &kept, err);
    for (int64_t i = (int64_t)kept, m; st == PITH_OK && i < n; i += m) {
        m = n - i < s->n_batch ? n - i : s->n_batch;
        st = pith_feed(session, q, ids + i, (size_t)m, err);
    }
    return st;
}

static void save(struct sched *s, struct slot_job *j, int32_t q)
{
    pith_session *session = s->hosted->generate;
    const struct slot *at = &s->slot[j->slot];
    pith_status st = compute(s, q, at->ids, at->n, &j->err);
    if (st == PITH_OK)
        st = pith_save(session, q, j->path, &j->err);
    j->n = at->n;
}

static void restore(struct sched *s, struct slot_job *j, int32_t q)
{
    pith_session *session = s->hosted->generate;
    if (pith_load(session, q, j->path, &j->err) != PITH_OK)
        return;
    int64_t n = pith_tokens(session, q, NULL, 0);
    int32_t *ids = n > 0 ? malloc((size_t)n * sizeof *ids) : NULL;
    if (!ids) {
        j->err = (struct pith_error){n > 0 ? PITH_NOMEM : PITH_FORMAT, "the file holds no tokens, or there is no memory for them"};
        return;
    }
    pith_tokens(session, q, ids, (size_t)n);
    /* Pages of a file are no pages of the store, whose bits are what this engine computes: they are computed here, not when somebody waits. */
    pith_truncate(session, q, 0, NULL);
    if (compute(s, q, ids, n, &j->err) != PITH_OK) {
        free(ids);
        return;
    }
    slot_keep(s, j->slot, ids, n);
    free(ids);
    j->n = n;
}

void slot_work(void *ctx)
{
    struct slot_job *j = ctx;
    struct sched *s = j->s;
    if (j->slot < 0 || j->slot >= s->parallel) {
        j->err.code = PITH_RANGE;
        snprintf(j->err.msg, sizeof j->err.msg, "there is no slot %d, there are 0..%d", j->slot, s->parallel - 1);
        return;
    }
    struct slot *at = &s->slot[j->slot];
    int32_t q = j->what == SLOT_ERASE ? -1 : free_sequence(s);
    if (j->what == SLOT_ERASE) {
        j->n = at->n;
        free(at->ids);
        *at = (struct slot){0};
    } else if (q < 0) {
        j->err = (struct pith_error){PITH_NOMEM, "every sequence of the cache is in use; try again later"};
    } else if (j->what == SLOT_SAVE && !at->n) {
        j->err.code = PITH_RANGE;
        snprintf(j->err.msg, sizeof j->err.msg, "slot %d is empty: no request has had this id_slot", j->slot);
    } else {
        pith_salt(s->hosted->generate, q, s->share[j->tenant].salt, strlen(s->share[j->tenant].salt), NULL); /* it is empty */
        j->what == SLOT_SAVE ? save(s, j, q) : restore(s, j, q);
        pith_truncate(s->hosted->generate, q, 0, NULL); /* full pages stay in the prefix store */
    }
}
