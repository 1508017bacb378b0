/* compose.c -- which rows a step has.
 *
 *     rows:  | decode: one of each branch that has only its last token to feed | prefill: chunks,
 *            as many rows as time allows |
 *
 * Both parts are filled by start-time fair queueing (Goyal, Vin, Cheng 1996) over the keys: the
 * next branch is the first one of the key that has been served the fewest tokens; within a key by
 * priority, then arrival. At most `parallel` branches are in a step; those left out keep their
 * sequence and wait a step. So a key that asks for much never delays one that asks for little by
 * more than a step, and a long prompt never holds up those who are being written to.
 *
 * The time of a step: prefill gets what decoding leaves of the gap asked for (--gap), by the times
 * of earlier steps. Where decoding alone takes longer and several keys decode, only as many rows
 * are in a step as fit: those of a key that has many take turns. Bits do not depend on it (the law
 * of same bits), so time may decide. */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/parts.h"
#include "server/schedule/scheduler_impl.h"

enum {
    CHUNK_MIN = 16,
    CHUNK_FIRST = 64,
    HELD_BACK = 8
}; /* HELD_BACK: steps without a row, and nobody waits for it any more */

/* Who gives way first: the least urgent, and of these the youngest. */
static struct branch *least_urgent(const struct sched *s, const struct share *of)
{
    struct branch *least = NULL;
    for (int i = 0; i < s->n_seq; i++) {
        struct branch *b = s->seq[i];
        if (b && b->share == of &&
            (!least || b->r->priority > least->r->priority ||
             (b->r->priority == least->r->priority && b->arrival > least->arrival)))
            least = b;
    }
    return least;
}

static struct share *largest_holder(const struct sched *s)
{
    struct share *most = NULL;
    for (int i = 0; i < s->n_shares; i++) {
        struct share *t = &s->share[i];
        if (!most || t->n_held > most->n_held)
            most = t;
    }
    return most;
}

static int in_step(const struct sched *s, const struct branch *b)
{
    for (int i = 0; i < s->n_parts; i++)
        if (s->part[i].b == b)
            return 1;
    return 0;
}

/* Its tokens stay; they are fed again when its turn comes, and give the same bits. */
static void preempt(struct sched *s, struct branch *b)
{
    branch_release(s, b);
    metrics_add(s->hosted->metrics, M_PREEMPTIONS, 1);
}

int make_room(struct sched *s)
{
    if (slots_give_up(s))
        return 1;
    struct branch *b = s->n_held > 1 ? least_urgent(s, largest_holder(s)) : NULL;
    if (!b)
        return 0;
    preempt(s, b);
    return 1;
}

static int32_t free_sequence(const struct sched *s)
{
    for (int32_t i = 0; i < s->n_seq; i++)
        if (is_free(s, i))
            return i;
    return -1;
}

/* A free sequence for a share; where there is none, that of the least urgent branch of who holds
 * more than this one would. -1: none. */
static int32_t take_seq(struct sched *s, const struct share *t)
{
    int32_t q = free_sequence(s);
    if (q < 0) {
        struct share *most = largest_holder(s);
        struct branch *b = most->n_held > t->n_held + 1 ? least_urgent(s, most) : NULL;
        if (!b || in_step(s, b))
            return -1;
        preempt(s, b);
        q = free_sequence(s);
    }
    return q;
}

/* Tokens a and b have in common at their beginning, at most n. */
static int64_t common(const int32_t *a, const int32_t *b, int64_t n)
{
    enum { MANY = 1024 };
    int64_t i = 0;
    while (i + MANY <= n && !memcmp(a + i, b + i, MANY * sizeof *a))
        i += MANY;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

int may_share(const struct request *a, const struct request *b)
{
    int same = a->n_loras == b->n_loras && !strcmp(a->salt ? a->salt : "", b->salt ? b->salt : "");
    for (int i = 0; same && i < a->n_loras; i++)
        same = a->lora[i].adapter == b->lora[i].adapter && a->lora[i].scale == b->lora[i].scale;
    return same;
}

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tokens that b and a branch in its prompt, which has a sequence, have in common at their
 * beginning. Beside the prompts, b may have what it made before it was preempted. */
static int64_t in_common(const struct branch *o, const struct branch *b)
{
    struct agreed *a = &b->r->agreed[o->seq];
    int64_t n_prompt = less(o->r->n_prompt, b->r->n_prompt), n = less(o->n, b->n);
    if (b->truncated)
        return may_share(o->r, b->r) ? common(o->token, b->token, n) : 0;
    if (a->with != o->r->number)
        *a = (struct agreed){o->r->number, may_share(o->r, b->r)
                                               ? common(o->r->prompt, b->r->prompt, n_prompt)
                                               : 0};
    return a->n < n_prompt ? a->n : a->n + common(o->token + a->n, b->token + a->n, n - a->n);
}

/* 1: a branch that is in its prompt, and gets on with it, is about to compute pages that this one
 * needs as well: it waits for them. */
static int follows_another(const struct sched *s, const struct branch *b)
{
    for (int i = 0; i < s->n_seq; i++) {
        const struct branch *o = s->seq[i];
        if (!o || (s->apart && o->share != b->share) || o->n_made ||
            o->moved + HELD_BACK < s->steps)
            continue;
        int64_t n = in_common(o, b);
        if (n == b->n && n == o->n ? o->n_fed < n : n - n % PAGE > o->n_fed)
            return 1;
    }
    return 0;
}

/* Pages for what a branch and those who have been admitted have to feed, and one more for everybody
 * who runs. */
static int pages_left(const struct sched *s, int64_t n_new)
{
    int64_t used = 0, total = 0;
    if (s->n_held == 0 || pith_cache_use(s->hosted->generate, &used, &total, NULL) != PITH_OK ||
        !total)
        return 1;
    for (int i = 0; i < s->n_seq; i++)
        if (s->seq[i])
            n_new += s->seq[i]->n - s->seq[i]->n_fed;
    return total - used >= n_new + (int64_t)PAGE * (s->n_held + 1);
}

/* The prompt is history for penalties, and none of the text that the grammar describes. */
static void accept_prompt(struct branch *b)
{
    const struct request *r = b->r;
    pith_sampler_grammar(b->sampler, NULL, NULL);
    for (int64_t i = 0; i < r->n_prompt; i++)
        pith_sampler_accept(b->sampler, r->prompt[i]);
    pith_sampler_grammar(b->sampler, b->grammar, NULL);
}

/* Its tables come with its first token, which may be one of the prompt; masks with each. With
 * nobody else here they fit, or never would. Prompts that are read take some 60 ns a token, while
 * the others wait: those of a step are few. */
int room_for_sampler(struct sched *s, struct branch *b)
{
    enum { MANY_READ = 1 << 17 };
    const struct request *r = b->r;
    int first = !b->bytes, reads = first && r->penalise_prompt;
    if (reads && s->n_read && s->n_read + r->n_prompt > MANY_READ)
        return 0;
    int64_t tables = first ? pith_sampler_bytes(b->sampler) : 0,
            masks = r->masks ? 0 : r->mask_bytes; /* of all its choices */
    if (s->n_held && !account_has_room(r->server, r->tenant, tables + masks))
        return 0;
    account_add(r->server, r->tenant, tables + masks);
    b->bytes += tables;
    b->r->masks += masks;
    if (reads) {
        s->n_read += r->n_prompt;
        accept_prompt(b);
    }
    return 1;
}

/* Of its key, and the one that the request itself has. */
static void put_salt(struct sched *s, int32_t q, const struct branch *b)
{
    char both[SALT_BYTES + 256];
    int n = snprintf(both, sizeof both, "%s%s%s", b->share->salt, b->r->salt ? "\n" : "",
                     b->r->salt ? b->r->salt : "");
    pith_salt(s->hosted->generate, q, both, (size_t)n, NULL);
}

int take_over(struct sched *s, struct branch *to, const struct branch *from)
{
    int32_t q = free_sequence(s);
    if (q < 0 || to->share->n_held >= s->parallel)
        return 0;
    if (!(pith_edits(s->hosted->generate) & PITH_EDIT_COPY))
        return -1;
    if (!room_for_sampler(s, to))
        return 0;
    if (pith_copy(s->hosted->generate, q, from->seq, 0, -1, NULL) != PITH_OK)
        return -1;
    s->seq[q] = to;
    to->seq = q;
    to->n_fed = from->n_fed;
    to->tried = 1;
    s->n_held++;
    to->share->n_held++;
    return 1;
}

struct asks { /* of may_read */
    struct sched *s;
    const struct branch *b;
};

/* pith_work.go_on: a piece in each step, and more while there is time, all for one branch. */
static int may_read(void *ctx, const struct pith_work *w)
{
    const struct asks *a = ctx;
    struct sched *s = a->s;
    (void)w;
    return (!s->reader || s->reader == a->b) &&
           (!s->n_pieces++ || clock_now() < s->read_until);
}

/* What is known of its tokens; 0: more of it is in the store's folder than there was time to read.
 * Its key is charged for that time. */
static int find_known(struct sched *s, struct branch *b, size_t *kept)
{
    enum { MORE_READS = 64, PAGE_READS = 8 }; /* steps, in all and for each page */
    struct asks asks = {s, b};
    struct pith_work w = PITH_WORK_INIT;
    int64_t began = clock_now();
    w.go_on = may_read;
    w.ctx = &asks;
    w.deadline = b->reads < MORE_READS + PAGE_READS * b->n / PAGE ? 0 : 1; /* who else needs room
                                                                  may undo what was read */
    pith_work_begin(&w, NULL);
    if (pith_reuse(s->hosted->generate, b->seq, b->token, (size_t)b->n, kept, NULL) != PITH_OK)
        *kept = 0; /* the step will tell what is wrong */
    pith_work_end(&w);
    int64_t ns = w.steps ? clock_now() - began : 0;
    atomic_fetch_add(&b->r->tenant->account.work_ns, ns);
    s->read_ns += ns;
    b->in_folder = w.stop == PITH_WORK_CANCELLED;
    if (!b->in_folder && s->reader == b)
        s->reader = NULL;
    else if (b->in_folder && !s->reader)
        s->reader = b;
    if (!w.stop)
        b->reads = 0;
    if (s->reader == b) {
        b->reads++;
        b->moved = s->steps; /* it gets on */
    }
    return !b->in_folder;
}

enum admission { ADMITTED, FOLLOWS, NO_ROOM };

static int n_held_of(const struct sched *s, const struct request *r)
{
    int n = 0;
    for (int i = 0; i < s->n_seq; i++)
        n += s->seq[i] && s->seq[i]->r == r;
    return n;
}

/* It has a sequence, which is empty or holds what was read so far. */
static enum admission find_prefix(struct sched *s, struct branch *b)
{
    size_t kept = 0;
    int alone = tells_prompt(b) || b->r->forgets;
    if ((b->in_folder && s->reader != b) || (!alone && !find_known(s, b, &kept)))
        return FOLLOWS;
    b->n_fed = (int64_t)kept;
    if (!b->tried && !b->choice) {
        b->r->figures.n_cached = (int64_t)kept;
        b->r->figures.differs_at = alone || s->n_shares > 1
                                       ? -1
                                       : pith_differs_at(s->hosted->generate, &b->r->figures.known);
        b->r->started = clock_now();
        b->r->figures.queue_ns = b->r->started - b->r->arrived;
        metrics_add(s->hosted->metrics, M_PREFIX_HITS, (double)kept);
        metrics_add(s->hosted->metrics, M_PREFIX_QUERIES, (double)b->n);
    }
    b->tried = 1;
    return ADMITTED;
}

static enum admission admit(struct sched *s, struct branch *b)
{
    struct share *t = b->share;
    int alone = tells_prompt(b) || b->r->forgets;
    if (s->crowded || t->n_held >= s->parallel)
        return NO_ROOM;
    if (!alone && follows_another(s, b))
        return FOLLOWS;
    if (!pages_left(s, b->n) || !room_for_sampler(s, b))
        return NO_ROOM;
    int32_t q = take_seq(s, t);
    if (q < 0)
        return NO_ROOM;
    /* It is empty, and there are as many sets of adapters as sequences. */
    put_salt(s, q, b);
    pith_adapt(s->hosted->generate, q, b->r->lora, b->r->n_loras, NULL);
    s->seq[q] = b;
    b->seq = q;
    s->n_held++;
    t->n_held++;
    return find_prefix(s, b);
}

/* Of those that wait for pages of the folder, the one of the key that was served least is next. */
static void choose_reader(struct sched *s)
{
    if (s->reader)
        return;
    for (int i = 0; i < s->n_seq; i++) {
        struct branch *b = s->seq[i];
        if (b && b->in_folder && (!s->reader || b->share->served < s->reader->share->served))
            s->reader = b;
    }
}

static int is_decoding(const struct branch *b)
{
    return b->seq >= 0 && b->n - b->n_fed == 1 && b->n_made;
}

/* Of the branches of a share that take turns: of the most urgent ones with no row in this step the
 * one whose last row is the longest ago. NULL: none. */
static struct branch *next_in_turns(const struct sched *s, const struct share *t)
{
    struct branch *best = NULL;
    for (struct branch *b = t->first; b; b = b->next)
        if (!stands_by(b) && is_decoding(b) && b->moved != s->steps &&
            (!best || b->r->priority < best->r->priority ||
             (b->r->priority == best->r->priority && b->moved < best->moved)))
            best = b;
    return best;
}

/* The share whose turn it is among those with a branch left, NULL: none. */
static struct share *next_share(struct sched *s, int decoding)
{
    struct share *best = NULL;
    for (int i = 0; i < s->n_shares; i++) {
        struct share *t = &s->share[i];
        if (decoding && t->in_turns)
            t->cursor = next_in_turns(s, t);
        while (t->cursor && (stands_by(t->cursor) || is_decoding(t->cursor) != decoding ||
                             (t->cursor->seq < 0 &&
                              (t->full || (t->starved && n_held_of(s, t->cursor->r))))))
            t->cursor = t->cursor->next;
        if (t->cursor && (!best || t->pass < best->pass))
            best = t;
    }
    return best;
}

static void rewind_shares(struct sched *s)
{
    for (int i = 0; i < s->n_shares; i++) {
        struct share *t = &s->share[i];
        t->cursor = t->first;
        t->full = 0;
    }
}

static int wants(const struct branch *b, int64_t i)
{
    return i == b->n - 1 || (tells_prompt(b) && i + 1 < b->r->n_prompt && i + 1 > b->n_told);
}

/* Of a token to be drawn, where nothing is told of the logits. */
static int only_drawn(const struct branch *b, int64_t i)
{
    const struct request *r = b->r;
    return i == b->n - 1 && b->n_made > 0 && b->sampler && r->n_logprobs < 0 && !r->rank &&
           pith_sampler_best(b->sampler) > 0;
}

/* At most n rows of a branch; fewer where outputs run out. Returns how many. */
static int64_t put_rows(struct sched *s, struct branch *b, int64_t n)
{
    int64_t i = b->n_fed;
    for (; i < b->n_fed + n; i++) {
        int want = wants(b, i);
        if (want && s->n_outs == s->max_outputs)
            break;
        s->token[s->n_rows] = b->token[i];
        s->row_seq[s->n_rows] = b->seq;
        s->want[s->n_rows++] = (uint8_t)(want && only_drawn(b, i) ? PITH_WANT_DRAWN : want);
        s->n_outs += want;
    }
    n = i - b->n_fed;
    if (n) {
        s->part[s->n_parts++] = (struct part){b, n};
        b->moved = s->steps;
        b->share->pass += (double)n;
    }
    return n;
}

#define TIME_USED 0.9 /* of the gap: steps take up to a tenth more than what is expected of them   \
                       */

/* What decoding leaves, ns; below 0: it takes longer. */
static double gap_left(const struct sched *s)
{
    return TIME_USED * 1e9 * server_told(s->hosted->server)->gap -
           (s->n_decode ? s->decode_ns : 0);
}

int64_t rows_in_gap(const struct sched *s, double row_ns, int64_t least, int64_t most)
{
    double n = gap_left(s) / row_ns;
    int64_t rows = n < (double)least ? least : n < (double)most ? (int64_t)n : most;
    return rows < most ? rows : most;
}

static int64_t prefill_rows(const struct sched *s)
{
    int64_t room = s->n_batch - s->n_rows;
    if (s->row_ns > 0)
        return rows_in_gap(s, s->row_ns, CHUNK_MIN, room);
    return CHUNK_FIRST < room ? CHUNK_FIRST : room;
}

/* What is left of so many rows after some time of reading. Where nobody knows how long rows take, a
 * few are: from them it is known, and until then no key is charged for what it reads. */
static int64_t rows_beside_reading(const struct sched *s, int64_t rows, int64_t ns)
{
    return s->row_ns > 0 ? rows - (int64_t)((double)ns / s->row_ns) : less(rows, CHUNK_MIN);
}

/* Threads of work and samplers take processors from the steps of others. */
static void charge_time(struct sched *s, struct share *t)
{
    struct tenants *all = server_tenants(s->hosted->server);
    const struct account *a = &tenants_at(all, (int)(t - s->share))->account;
    int64_t ns = atomic_load(&a->work_ns) + atomic_load(&a->sample_ns);
    if (s->row_ns > 0)
        t->served += (double)(ns - t->charged_ns) / s->row_ns;
    t->charged_ns = ns;
}

/* Most decode rows of this step, and most draws of those that share a prompt. */
static int decode_most(struct sched *s)
{
    int n_shares = 0, n = 0, n_here = 0, most = s->parallel;
    double gap = 1e9 * server_told(s->hosted->server)->gap,
           fit = s->decode_ns > 0 ? TIME_USED * gap * s->decode_rows / s->decode_ns : s->parallel;
    for (int i = 0; i < s->n_shares; i++) {
        struct share *t = &s->share[i];
        n_here += t->first != NULL;
        t->n_decoding = 0;
        for (const struct branch *b = t->first; b; b = b->next)
            t->n_decoding += !stands_by(b) && is_decoding(b);
        n += t->n_decoding;
        n_shares += t->n_decoding > 0;
    }
    if (n_shares > 1 && s->decode_ns > 0)
        most = fit < n_shares ? n_shares : fit < most ? (int)fit : most;
    s->most_draws = n_here > 1 && fit < s->max_outputs ? 1 + (int)fit : INT_MAX;
    for (int i = 0; i < s->n_shares; i++)
        s->share[i].in_turns = n > most && s->share[i].n_decoding > most / n_shares;
    return most;
}

/* The last choice of the request that has the most places of a share, more than one, and is no more
 * urgent than `priority`. NULL: there is none. Beams of a search come and go together. */
static struct branch *most_crowding(const struct sched *s, const struct share *t, int priority)
{
    struct branch *last = NULL;
    int most = 1;
    for (int i = 0; i < s->n_seq; i++) {
        struct branch *b = s->seq[i];
        if (!b || b->share != t || b->r->beams || b->r->priority < priority)
            continue;
        int same = last && b->r == last->r, n = same ? most : n_held_of(s, b->r);
        if (n > most || (same && b->choice > last->choice)) {
            most = n;
            last = b;
        }
    }
    return last;
}

/* Where the places of a share are taken, a request that has none gets one of a request that has
 * several, and no further choice takes it: choices of one do not keep others from beginning. */
static void give_way(struct sched *s, struct share *t)
{
    struct branch *b = t->n_held + 1 < s->parallel ? NULL : t->first;
    while (b && (b->seq >= 0 || stands_by(b) || n_held_of(s, b->r)))
        b = b->next;
    t->starved = b != NULL;
    struct branch *last =
        b && t->n_held >= s->parallel ? most_crowding(s, t, b->r->priority) : NULL;
    if (last)
        preempt(s, last);
}

void compose(struct sched *s)
{
    struct share *t;
    s->n_rows = s->n_parts = s->n_outs = 0;
    s->steps++;
    for (int i = 0; i < s->n_shares; i++) {
        t = &s->share[i];
        charge_time(s, t);
        t->pass = t->served;
        give_way(s, t);
    }
    choose_reader(s);
    s->n_pieces = 0;
    int most = decode_most(s);
    rewind_shares(s);
    while (s->n_parts < most && s->n_rows < s->n_batch && (t = next_share(s, 1))) {
        struct branch *b = t->cursor;
        t->cursor = b->next;
        s->now = t->pass;
        if (!put_rows(s, b, 1))
            break;
    }
    s->n_decode = s->n_parts;
    rewind_shares(s);
    int64_t left = prefill_rows(s);
    s->read_until = clock_now() + (int64_t)gap_left(s);
    while (left > 0 && s->n_parts < s->n_seq && (t = next_share(s, 0))) {
        struct branch *b = t->cursor;
        t->cursor = b->next;
        int64_t had = s->read_ns;
        enum admission a = b->seq < 0 ? admit(s, b) : b->in_folder ? find_prefix(s, b) : ADMITTED;
        if (s->read_ns > had) /* as many rows less */
            left = rows_beside_reading(s, left, s->read_ns - had);
        t->full |= a == NO_ROOM;
        if (a != ADMITTED)
            continue;
        s->now = t->pass;
        int64_t pending = b->n - b->n_fed, n = put_rows(s, b, pending < left ? pending : left);
        if (!n)
            break;
        left -= n;
    }
}
