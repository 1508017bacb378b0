/* slots.c -- what runs, and the contents of slots by the numbers that requests give them (id_slot).
 * A slot here is no place where a conversation lives: it is the tokens of the last choice that
 * named it, and what was computed of them is in the prefix store. Nothing is computed here: a slot
 * that is restored is a request like others (api_slots.c). */
#include <stdlib.h>
#include <string.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/models/hosted.h"
#include "server/schedule/scheduler_impl.h"
#include "server/schedule/slots.h"

static void forget(struct sched *s, struct slot *at)
{
    if (at->ids)
        account_add(s->hosted->server, at->tenant, -at->n * (int64_t)sizeof *at->ids);
    free(at->ids);
    *at = (struct slot){0};
}

int slot_keep(struct sched *s, const struct request *r, const int32_t *ids, int64_t n)
{
    struct slot *at = r->slot >= 0 && r->slot < s->parallel ? &s->slot[r->slot] : NULL;
    n = n < s->n_ctx ? n : s->n_ctx; /* the last token of a full context has not been computed */
    int64_t bytes = n * (int64_t)sizeof *ids;
    if (!at)
        return 0;
    forget(s, at); /* what is not kept leaves the slot empty */
    if (!n || !account_has_room(s->hosted->server, r->tenant, bytes) ||
        !(at->ids = malloc((size_t)bytes)))
        return 0;
    memcpy(at->ids, ids, (size_t)bytes);
    at->n = n;
    at->tenant = r->tenant;
    account_add(s->hosted->server, at->tenant, bytes);
    return 1;
}

void slots_free(struct sched *s)
{
    for (int i = 0; s->slot && i < s->parallel; i++)
        forget(s, &s->slot[i]);
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
        if (b && look->of && b->r->tenant != look->of)
            look->v[i++].busy = 2; /* somebody else's */
        else if (b)
            look->v[i++] = (struct slot_info){.busy = 1,
                                              .n_prompt = b->r->n_prompt,
                                              .n_fed = b->n_fed,
                                              .n_cached = b->r->figures.n_cached,
                                              .n_made = b->n_made,
                                              .n_max = b->r->n_max};
    }
    for (int i = 0; i < look->n; i++)
        if (!look->of || s->slot[i].tenant == look->of)
            look->v[i].n_kept = s->slot[i].n;
}

void slot_copy(void *ctx)
{
    struct slot_job *j = ctx;
    const struct slot *at = &j->s->slot[j->slot];
    size_t bytes = (size_t)at->n * sizeof *at->ids;
    j->ids = malloc(bytes ? bytes : 1);
    if (!j->ids)
        return;
    if (bytes)
        memcpy(j->ids, at->ids, bytes);
    j->n = at->n;
}

void slot_erase(void *ctx)
{
    struct slot_job *j = ctx;
    struct slot *at = &j->s->slot[j->slot];
    j->n = at->n;
    forget(j->s, at);
}
