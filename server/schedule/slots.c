/* slots.c -- what runs, and the contents of slots by the numbers that requests give them (id_slot).
 * A slot here is no place where a conversation lives: it is the tokens of the last choice that
 * named it, and what was computed of them is in the prefix store, from where it is saved with them
 * and to where it is restored. Nothing is computed here: a slot that is restored is a request like
 * others (api_slots.c), which finds what is in the store. */
#include <stdlib.h>
#include <string.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/hosted.h"
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

static struct slot_info info_of(const struct branch *b)
{
    return (struct slot_info){.busy = 1,
                              .task = b->arrival,
                              .settings = b->r->settings ? strdup(b->r->settings) : NULL,
                              .n_prompt = b->r->n_prompt,
                              .n_fed = b->n_fed,
                              .n_cached = b->r->figures.n_cached,
                              .n_made = b->n_made,
                              .n_max = b->r->n_max};
}

/* A choice is where its id_slot says, or the first free place. */
void slots_look(void *ctx)
{
    struct slots_look *look = ctx;
    const struct sched *s = look->s;
    look->n = s->parallel < look->most ? s->parallel : look->most;
    memset(look->v, 0, (size_t)look->n * sizeof *look->v);
    for (int named = 1; named >= 0; named--)
        for (int q = 0; q < s->n_seq; q++) {
            const struct branch *b = s->seq[q];
            int i = b && b->r->slot >= 0 && b->r->slot < look->n ? b->r->slot : -1, first = 1;
            for (int p = 0; i >= 0 && p < q; p++) /* another one has named it before */
                first &= !s->seq[p] || s->seq[p]->r->slot != i;
            if (!b || named != (i >= 0 && first))
                continue;
            for (i = named ? i : 0; i < look->n && look->v[i].busy;)
                i++;
            if (i < look->n && look->of && b->r->tenant != look->of)
                look->v[i].busy = 2; /* somebody else's */
            else if (i < look->n)
                look->v[i] = info_of(b);
        }
    for (int i = 0; i < look->n; i++)
        if (!look->of || s->slot[i].tenant == look->of)
            look->v[i].n_kept = s->slot[i].n;
}

void slot_text_free(struct server *s, struct slot_text *t)
{
    if (t->kept)
        account_add(s, t->tenant, -(int64_t)t->n_kept);
    free(t->kept);
    free(t->ids);
    *t = (struct slot_text){.tenant = t->tenant};
}

/* A sequence that nobody has, with the salt of a key; -1: there is none. */
static int32_t borrow(const struct sched *s, const struct tenant *of)
{
    for (int32_t q = 0; q < s->n_seq; q++) {
        const char *salt = s->share[of->index].salt;
        if (is_free(s, q) &&
            pith_salt(s->hosted->generate, q, salt, strlen(salt), NULL) == PITH_OK &&
            pith_adapt(s->hosted->generate, q, NULL, 0, NULL) == PITH_OK)
            return q;
    }
    return -1;
}

static void end_copy(struct sched *s)
{
    pith_saver_close(s->copying.saver);
    pith_loader_close(s->copying.loader);
    pith_truncate(s->hosted->generate, s->copying.seq, 0, NULL);
    free(s->copying.text);
    s->copying = (struct copying){0};
}

int slots_give_up(struct sched *s)
{
    if (!s->copying.number)
        return 0;
    if (s->copying.text)
        slot_text_free(s->hosted->server, s->copying.text);
    end_copy(s);
    return 1;
}

/* Bytes that are copied at once; how many such pieces there are between two steps at most, and the
 * time that they take. */
enum { PIECE = 256 << 10, MOST_PIECES = 16, PIECES_NS = 4000000 };

/* What the prefix store has of the tokens of a key begins to be copied, as bytes; nothing is
 * computed for it. */
static void begin_copy(struct sched *s, const struct tenant *of, struct slot_job *j)
{
    struct copying *c = &s->copying;
    pith_session *session = s->hosted->generate;
    struct fault full = {0};
    size_t n = 0, found = 0;
    struct slot_text *t = calloc(1, sizeof *t);
    int32_t q = t ? borrow(s, of) : -1;
    if (q < 0) {
        free(t);
        return;
    }
    *c = (struct copying){.number = ++s->copies, .seq = q, .text = t, .piece = PIECE};
    t->tenant = j->tenant;
    if (pith_reuse(session, q, j->text.ids, (size_t)j->text.n, &found, NULL) == PITH_OK && found)
        c->saver = pith_saver_open(session, q, &n, NULL);
    if (c->saver && account_take(s->hosted->server, t->tenant, (int64_t)n, 0, &full)) {
        t->n_kept = n;
        t->kept = malloc(n);
        if (!t->kept)
            account_add(s->hosted->server, t->tenant, -(int64_t)n);
    }
    j->copy = c->number;
    if (!t->kept) {
        slots_give_up(s);
        j->copy = 0;
    }
}

void slot_copy(void *ctx)
{
    struct slot_job *j = ctx;
    const struct slot *at = &j->s->slot[j->slot];
    size_t bytes = (size_t)at->n * sizeof *at->ids;
    j->waits = j->s->copying.number != 0;
    if (j->waits)
        return;
    j->text = (struct slot_text){.ids = malloc(bytes ? bytes : 1), .tenant = j->tenant};
    if (!j->text.ids || !bytes)
        return;
    memcpy(j->text.ids, at->ids, bytes);
    j->text.n = at->n;
    begin_copy(j->s, at->tenant, j);
}

/* One piece more; 0: there is none. */
static int copy_piece(const struct sched *s, struct copying *c)
{
    size_t n = 0, left = c->text->n_kept - c->n;
    pith_status st = PITH_RANGE;
    for (; left && st == PITH_RANGE; c->piece *= 2) { /* its next part may be longer */
        size_t most = c->piece < left ? c->piece : left;
        st = pith_saver_next(c->saver, c->text->kept + c->n, most, &n, NULL);
        if (st != PITH_RANGE || most == left)
            break;
    }
    c->n += n;
    metrics_add(s->hosted->metrics, M_SLOT_PIECES, n > 0);
    c->failed |= left && st != PITH_OK;
    return left && st == PITH_OK;
}

void slot_copy_on(void *ctx)
{
    struct slot_job *j = ctx;
    struct copying *c = &j->s->copying;
    int64_t until = clock_now() + PIECES_NS;
    if (c->number != j->copy) { /* given up */
        j->copy = 0;
        return;
    }
    metrics_add(j->s->hosted->metrics, M_SLOT_TURNS, 1);
    for (int n = 1; copy_piece(j->s, c); n++)
        if (n == MOST_PIECES || clock_now() > until)
            return;
    if (!c->failed) {
        j->text.kept = c->text->kept;
        j->text.n_kept = c->text->n_kept;
        c->text->kept = NULL;
    }
    slots_give_up(j->s);
    j->copy = 0;
}

void slot_copy_end(void *ctx)
{
    struct slot_job *j = ctx;
    if (j->copy && j->s->copying.number == j->copy)
        slots_give_up(j->s);
    j->copy = 0;
}

/* The tokens that the sequence holds are the first ones of the text. */
static int is_beginning(pith_session *session, int32_t q, const struct slot_text *t)
{
    int64_t n = pith_length(session, q);
    int32_t *ids = n > 0 && n <= t->n ? malloc((size_t)n * sizeof *ids) : NULL;
    int same = ids && pith_tokens(session, q, ids, (size_t)n) == n &&
               !memcmp(ids, t->ids, (size_t)n * sizeof *ids);
    free(ids);
    return same;
}

/* What is loaded goes to the prefix store; a file that is damaged is told, and for whatever else
 * it cannot be loaded it is computed again. */
static void end_load(struct slot_job *j, pith_status st, const struct pith_error *err)
{
    pith_session *session = j->s->hosted->generate;
    int32_t q = j->s->copying.seq;
    if (st == PITH_FORMAT || st == PITH_MISSING)
        fault_set(j->fault, 400, "invalid_value", "filename", "what was computed: %.400s",
                  err->msg);
    else if (st == PITH_OK && !is_beginning(session, q, &j->text))
        fault_set(j->fault, 400, "invalid_value", "filename",
                  "what was computed is damaged: it is not of the tokens that were saved");
    else if (st == PITH_OK && pith_trust(session, q, NULL) == PITH_OK)
        j->n_loaded = pith_length(session, q);
    slots_give_up(j->s);
    j->copy = 0;
}

void slot_load(void *ctx)
{
    struct slot_job *j = ctx;
    struct sched *s = j->s;
    const struct slot_text *t = &j->text;
    struct pith_error err = {0};
    j->waits = s->copying.number != 0;
    int32_t q = !j->waits && t->kept ? borrow(s, j->tenant) : -1;
    if (q < 0)
        return;
    s->copying = (struct copying){.number = ++s->copies, .seq = q};
    j->copy = s->copying.number;
    s->copying.loader = pith_loader_open(s->hosted->generate, q, t->kept, t->n_kept, &err);
    if (!s->copying.loader)
        end_load(j, err.code, &err);
}

void slot_load_on(void *ctx)
{
    struct slot_job *j = ctx;
    struct copying *c = &j->s->copying;
    struct pith_error err = {0};
    int64_t until = clock_now() + PIECES_NS;
    pith_status st = PITH_OK;
    int done = 0;
    if (c->number != j->copy) { /* given up */
        j->copy = 0;
        return;
    }
    metrics_add(j->s->hosted->metrics, M_SLOT_TURNS, 1);
    for (int n = 0; st == PITH_OK && !done && n < MOST_PIECES && clock_now() <= until; n++) {
        st = pith_loader_next(c->loader, PIECE, &done, &err);
        metrics_add(j->s->hosted->metrics, M_SLOT_PIECES, st == PITH_OK);
    }
    if (st != PITH_OK || done)
        end_load(j, st, &err);
}

void slot_erase(void *ctx)
{
    struct slot_job *j = ctx;
    struct slot *at = &j->s->slot[j->slot];
    j->text.n = at->n;
    forget(j->s, at);
}
