/* recurrent.c -- see recurrent.h. */
#include "run/cache/recurrent.h"

#include <string.h>
#include <unistd.h>
#include "base/mem.h"

enum { PROMPT_ENDS = 4, FIRST_EVERY = 64 };

/* ---------------------------------------------------------------- layout */

uint64_t recurrent_layout(struct state *states, int32_t n_states, uint64_t bytes[MAX_DEVICES])
{
    uint64_t all = 0;
    memset(bytes, 0, MAX_DEVICES * sizeof *bytes);
    for (struct state *s = states; s < states + n_states; s++)
        for (int i = 0; i < STATE_PARTS && !state_is(s, STATE_PAGED); i++) {
            uint64_t *at = &bytes[s->device];
            s->off[i] = (int64_t)*at;
            *at += size_align((uint64_t)s->n[i] * sizeof(float), 64);
        }
    for (int d = 0; d < MAX_DEVICES; d++)
        all += bytes[d] = size_align(bytes[d], 4096);
    return all;
}

/* Blocks that can be in use at once. A sequence holds its checkpoints, the present, and where a
 * call began. A step in the making takes one for the last of a sequence's n rows, and one for each
 * of the others that ends a stretch of `every`: wherever those begin, at most (n - 1) / every + 1,
 * so one a sequence and one for each `every` rows of the batch. Beside these are those of trees. */
static int64_t limit(const struct recurrent *r, const struct recurrent_params *p)
{
    return (int64_t)p->n_seq * (r->cap + 4) + p->n_batch / r->every + p->n_stored + p->n_tree_rows;
}

pith_status recurrent_shape(struct recurrent *r, struct state *states, int32_t n_states,
                            const struct recurrent_params *p, struct pith_error *err)
{
    memset(r, 0, sizeof *r);
    r->block_bytes = recurrent_layout(states, n_states, r->device_bytes);
    if (!r->block_bytes)
        return PITH_OK;
    r->states = states;
    r->n_states = n_states;
    uint64_t budget = p->cache_limit / 10 > 64 << 20 ? p->cache_limit / 10 : 64 << 20, bytes;
    r->every = FIRST_EVERY;
    while (r->every < p->n_ctx &&
           (uint64_t)(p->n_ctx / r->every) * (uint64_t)p->n_seq > budget / r->block_bytes)
        r->every *= 2;
    r->cap = p->n_ctx / r->every + PROMPT_ENDS;
    r->n_seq = p->n_seq;
    r->n_tree_rows = p->n_tree_rows;
    int64_t n = limit(r, p);
    if (n > INT32_MAX / 2 || size_mul((uint64_t)n, r->block_bytes, &bytes) ||
        bytes > (uint64_t)1 << 46)
        return error_set(err, PITH_RANGE,
                         "recurrent state of %lld blocks of %llu bytes is too large; use fewer "
                         "sequences, or fewer rows of trees",
                         (long long)n, (unsigned long long)r->block_bytes);
    r->n_blocks = (int32_t)n;
    return PITH_OK;
}

/* Blocks, laid out as on any system, grow by whole pages of this one. */
static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

pith_status recurrent_init(struct recurrent *r, struct state *states, int32_t n_states,
                           struct device *const *devices, const struct recurrent_params *p,
                           struct pith_error *err)
{
    pith_status st = recurrent_shape(r, states, n_states, p, err);
    if (st != PITH_OK || !r->block_bytes)
        return st;
    size_t n = (size_t)r->n_blocks;
    r->free_list = mem_array(n, sizeof *r->free_list, PITH_MEM_CACHE);
    r->refs = mem_array(n, sizeof *r->refs, PITH_MEM_CACHE);
    r->seq = mem_array((size_t)p->n_seq, sizeof *r->seq, PITH_MEM_CACHE);
    if (r->n_tree_rows)
        r->tree = mem_array((size_t)r->n_tree_rows, sizeof *r->tree, PITH_MEM_CACHE);
    int ok = r->free_list && r->refs && r->seq && (r->tree || !r->n_tree_rows);
    for (int32_t s = 0; ok && s < p->n_seq; s++) {
        r->seq[s].now = r->seq[s].back.block = -1;
        r->seq[s].at = mem_array((size_t)r->cap, sizeof *r->seq[s].at, PITH_MEM_CACHE);
        r->seq[s].lost = mem_array((size_t)r->cap, sizeof *r->seq[s].lost, PITH_MEM_CACHE);
        ok = r->seq[s].at && r->seq[s].lost;
    }
    st = ok ? PITH_OK
            : error_set(err, PITH_NOMEM, "out of memory for the recurrent state of %d sequences",
                        p->n_seq);
    for (int d = 0; d < MAX_DEVICES && st == PITH_OK; d++)
        if (r->device_bytes[d])
            st = slabs_init(&r->blocks[d], devices[d], r->device_bytes[d], n, page_bytes(),
                            PITH_MEM_CACHE, err);
    if (st != PITH_OK)
        recurrent_deinit(r);
    return st;
}

void recurrent_deinit(struct recurrent *r)
{
    for (int32_t s = 0; r->seq && s < r->n_seq; s++) {
        mem_free(r->seq[s].at);
        mem_free(r->seq[s].lost);
    }
    for (int d = 0; d < MAX_DEVICES; d++)
        slabs_deinit(&r->blocks[d]);
    mem_free(r->seq);
    mem_free(r->free_list);
    mem_free(r->refs);
    mem_free(r->tree);
    memset(r, 0, sizeof *r);
}

uint64_t recurrent_limit(const struct recurrent *r)
{
    uint64_t n = 0;
    for (int d = 0; d < MAX_DEVICES; d++)
        n += size_align((uint64_t)r->n_blocks * r->device_bytes[d], page_bytes());
    return n;
}

uint64_t recurrent_bytes(const struct recurrent *r)
{
    uint64_t n = 0;
    for (int d = 0; d < MAX_DEVICES; d++)
        n += slabs_bytes(&r->blocks[d]);
    return n;
}

/* ---------------------------------------------------------------- blocks */

static int32_t ref(struct recurrent *r, int32_t block)
{
    if (block >= 0)
        r->refs[block]++;
    return block;
}

void recurrent_unref(struct recurrent *r, int32_t *block)
{
    if (*block >= 0 && --r->refs[*block] == 0)
        r->free_list[r->n_free++] = *block;
    *block = -1;
}

/* One more free block. */
static pith_status make(struct recurrent *r, struct pith_error *err)
{
    if (r->n_made == r->n_blocks) /* limit is wrong */
        return error_set(err, PITH_INTERNAL, "all %d blocks of recurrent state are in use",
                         r->n_blocks);
    for (int d = 0; d < MAX_DEVICES; d++) {
        pith_status st = slabs_grow(&r->blocks[d], r->device_bytes[d] ? r->n_made + 1u : 0, err);
        if (st != PITH_OK)
            return error_prefix(err, "block %d of recurrent state", r->n_made);
    }
    r->free_list[r->n_free++] = r->n_made++;
    return PITH_OK;
}

/* Calls in progress give up what they would bring back if they failed, until a block is free. */
static int give_up(struct recurrent *r)
{
    for (struct recurrent_seq *q = r->seq; q < r->seq + r->n_seq; q++)
        while (q->n_lost && !r->n_free)
            recurrent_unref(r, &q->lost[--q->n_lost].block);
    return r->n_free > 0;
}

/* There always is a block (limit), if there is memory for it. */
static pith_status take(struct recurrent *r, int32_t *out, struct pith_error *err)
{
    pith_status st = r->n_free ? PITH_OK : make(r, err);
    if (st != PITH_OK && !give_up(r))
        return st;
    if (st != PITH_OK)
        error_clear(err);
    *out = r->free_list[--r->n_free];
    r->refs[*out] = 1;
    return PITH_OK;
}

static void drop(struct recurrent *r, struct recurrent_seq *q, int32_t i)
{
    recurrent_unref(r, &q->at[i].block);
    memmove(q->at + i, q->at + i + 1, (size_t)(--q->n_at - i) * sizeof *q->at);
}

/* Makes room for a checkpoint: the oldest prompt's end goes, or the oldest of all. What was there
 * when the call in progress began comes back if that fails. */
static void make_way(struct recurrent *r, struct recurrent_seq *q)
{
    int32_t i = 0;
    while (i < q->n_at && q->at[i].n % r->every == 0)
        i++;
    i = i < q->n_at ? i : 0;
    int is_back = q->kept && q->at[i].n == q->back.n;
    if (is_back)
        q->kept = 0;
    else if (q->in_call && q->at[i].n <= q->back.n)
        q->lost[q->n_lost++] =
            (struct checkpoint){.n = q->at[i].n, .block = ref(r, q->at[i].block)};
    drop(r, q, i);
}

/* Remembers a state; its reference becomes the checkpoint's. 0: it is known. */
static int remember(struct recurrent *r, struct recurrent_seq *q, int32_t n, int32_t block)
{
    if (q->n_at && q->at[q->n_at - 1].n >= n) {
        recurrent_unref(r, &block);
        return 0;
    }
    if (q->n_at == r->cap)
        make_way(r, q);
    q->at[q->n_at++] = (struct checkpoint){.n = n, .block = block};
    return 1;
}

/* Checkpoints are what they were before the call in progress. */
static void bring_back(struct recurrent *r, struct recurrent_seq *q)
{
    while (q->n_at && q->at[q->n_at - 1].n > q->back.n - q->kept)
        drop(r, q, q->n_at - 1);
    while (q->n_lost) {
        struct checkpoint c = q->lost[--q->n_lost];
        int32_t i = q->n_at++;
        for (; i && q->at[i - 1].n > c.n; i--)
            q->at[i] = q->at[i - 1];
        q->at[i] = c;
    }
}

/* ---------------------------------------------------------------- steps */

void recurrent_begin(struct recurrent *r, int32_t seq, int32_t rows)
{
    if (!r->n_blocks || !rows)
        return;
    struct recurrent_seq *q = &r->seq[seq];
    q->in_call = 1;
    q->moved = q->kept = 0;
    q->back = (struct checkpoint){.n = q->n, .block = ref(r, q->now)};
    q->is_prompt = rows > 1;
}

/* A step of the call has succeeded, or is on its way: what it began from is left behind. */
static void move_on(struct recurrent *r, struct recurrent_seq *q)
{
    if (q->moved)
        return;
    q->moved = 1;
    q->was_keep = q->keep;
    q->kept = q->keep && q->now >= 0 && remember(r, q, q->n, ref(r, q->now));
    q->keep = q->is_prompt;
}

void recurrent_end(struct recurrent *r, int32_t seq, int failed)
{
    if (!r->n_blocks || !r->seq[seq].in_call)
        return;
    struct recurrent_seq *q = &r->seq[seq];
    q->in_call = 0;
    if (failed && q->moved) {
        bring_back(r, q);
        recurrent_unref(r, &q->now);
        q->now = ref(r, q->back.block);
        q->n = q->back.n;
        q->keep = q->was_keep;
    }
    while (q->n_lost)
        recurrent_unref(r, &q->lost[--q->n_lost].block);
    recurrent_unref(r, &q->back.block);
    q->kept = 0;
}

pith_status recurrent_take(struct recurrent *r, struct step *s, struct pith_error *err)
{
    if (!r->n_blocks)
        return PITH_OK;
    for (int32_t i = 0; i < s->T; i++)
        step_put_keep(s)[i] = -1;
    for (int32_t k = 0; k < s->N; k++) {
        const struct recurrent_seq *q = &r->seq[step_seq(s)[k]];
        int32_t first = step_first(s)[k], end = step_first(s)[k + 1];
        step_put_state(s)[k] = q->now;
        for (int32_t i = first; i < end; i++) {
            if (i < end - 1 && !step_tree(s)[k] && (q->n + i - first + 1) % r->every)
                continue;
            pith_status st = take(r, &step_put_keep(s)[i], err);
            if (st != PITH_OK) {
                recurrent_abort(r, s);
                return st;
            }
        }
    }
    return PITH_OK;
}

void recurrent_commit(struct recurrent *r, const struct step *s)
{
    for (int32_t k = 0; r->n_blocks && k < s->N; k++) {
        struct recurrent_seq *q = &r->seq[step_seq(s)[k]];
        int32_t first = step_first(s)[k], end = step_first(s)[k + 1];
        move_on(r, q);
        if (step_tree(s)[k]) {
            q->keep = 0; /* if the present is to be a checkpoint it is one now */
            q->first_tree = r->n_tree;
            for (int32_t i = first; i < end; i++)
                r->tree[r->n_tree++] = step_keep(s)[i];
            continue;
        }
        recurrent_unref(r, &q->now);
        for (int32_t i = first; i < end; i++, q->n++)
            if (step_keep(s)[i] >= 0 && i < end - 1)
                remember(r, q, q->n + 1, step_keep(s)[i]);
        q->now = step_keep(s)[end - 1];
        if (q->n % r->every == 0)
            remember(r, q, q->n, ref(r, q->now));
    }
}

void recurrent_abort(struct recurrent *r, struct step *s)
{
    for (int32_t i = 0; r->n_blocks && i < s->T; i++)
        recurrent_unref(r, &step_put_keep(s)[i]);
}

/* ---------------------------------------------------------------- trees */

void recurrent_accept(struct recurrent *r, int32_t seq, const int32_t *row, int32_t n)
{
    if (!r->n_blocks || !n)
        return;
    struct recurrent_seq *q = &r->seq[seq];
    for (int32_t i = 0; i < n; i++) {
        int32_t block = r->tree[q->first_tree + row[i]];
        q->n++;
        if (q->n % r->every == 0)
            remember(r, q, q->n, ref(r, block));
        if (i < n - 1)
            continue;
        recurrent_unref(r, &q->now);
        q->now = ref(r, block);
    }
    q->keep = 0;
}

void recurrent_forget(struct recurrent *r)
{
    while (r->n_tree)
        recurrent_unref(r, &r->tree[--r->n_tree]);
}

/* ---------------------------------------------------------------- going back */

int32_t recurrent_point(const struct recurrent *r, int32_t seq, int32_t n)
{
    if (!r->n_blocks || n >= r->seq[seq].n)
        return n;
    const struct recurrent_seq *q = &r->seq[seq];
    for (int32_t i = q->n_at - 1; i >= 0; i--)
        if (q->at[i].n <= n)
            return q->at[i].n;
    return 0;
}

/* Makes q hold n positions with the state `block` (a reference of its own), and checkpoints up to
 * there. */
static void become(struct recurrent *r, struct recurrent_seq *q, int32_t n, int32_t block)
{
    while (q->n_at && q->at[q->n_at - 1].n > n)
        drop(r, q, q->n_at - 1);
    recurrent_unref(r, &q->now);
    q->now = block;
    q->n = n;
    q->keep = 0;
}

/* The state of a sequence after n positions, counted once more. */
static int32_t state_at(struct recurrent *r, const struct recurrent_seq *q, int32_t n)
{
    if (n == q->n)
        return ref(r, q->now);
    for (int32_t i = 0; i < q->n_at; i++)
        if (q->at[i].n == n)
            return ref(r, q->at[i].block);
    return -1;
}

void recurrent_cut(struct recurrent *r, int32_t seq, int32_t n)
{
    if (!r->n_blocks || r->seq[seq].n == n)
        return;
    struct recurrent_seq *q = &r->seq[seq];
    become(r, q, n, state_at(r, q, n));
}

/* Blocks that are free once the sequence has been emptied. */
static int32_t freed_by(const struct recurrent *r, const struct recurrent_seq *q)
{
    int32_t n = 0, shared = 0;
    for (int32_t i = 0; i < q->n_at; i++) {
        int present = q->at[i].block == q->now;
        n += r->refs[q->at[i].block] == 1 + present;
        shared |= present;
    }
    return n + (q->now >= 0 && !shared && r->refs[q->now] == 1);
}

pith_status recurrent_reserve(struct recurrent *r, int32_t seq, int32_t n, int32_t n_stored,
                              struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (!r->n_blocks)
        return st;
    int32_t freed =
        seq < 0 ? r->n_made - r->n_free - n_stored - r->n_tree : freed_by(r, &r->seq[seq]);
    if (r->n_free + freed + r->n_blocks - r->n_made < n)
        return error_set(err, PITH_NOMEM,
                         "%d blocks of recurrent state wanted, %d are free; empty a sequence first",
                         n, r->n_free + freed + r->n_blocks - r->n_made);
    while (r->n_free + freed < n && st == PITH_OK)
        st = make(r, err);
    return st;
}

int32_t recurrent_push(struct recurrent *r, int32_t seq, int32_t n, int present)
{
    int32_t block = -1;
    take(r, &block, NULL); /* reserved */
    if (present)
        become(r, &r->seq[seq], n, block);
    else
        remember(r, &r->seq[seq], n, block);
    r->seq[seq].keep = present;
    return block;
}

pith_status recurrent_read(const struct recurrent *r, int32_t block, void *out,
                           struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint8_t *to = out;
    for (int d = 0; d < MAX_DEVICES && st == PITH_OK; to += r->device_bytes[d++])
        if (r->device_bytes[d])
            st = buffer_read(to, slabs_at(&r->blocks[d], (uint64_t)block), r->device_bytes[d], NULL,
                             err);
    return st;
}

pith_status recurrent_write(const struct recurrent *r, int32_t block, const void *in,
                            struct pith_error *err)
{
    pith_status st = PITH_OK;
    const uint8_t *from = in;
    for (int d = 0; d < MAX_DEVICES && st == PITH_OK; from += r->device_bytes[d++])
        if (r->device_bytes[d])
            st = buffer_write(slabs_at(&r->blocks[d], (uint64_t)block), from, r->device_bytes[d],
                              NULL, err);
    return st;
}

int recurrent_finite(const struct recurrent *r, const void *in)
{
    int finite = 1;
    for (const struct state *s = r->states; s < r->states + r->n_states && finite; s++) {
        const uint8_t *p = in; /* what lies between states is nobody's */
        for (int d = 0; d < s->device; d++)
            p += r->device_bytes[d];
        for (int i = 0; i < STATE_PARTS && !state_is(s, STATE_PAGED) && finite; i++)
            finite = dtype_check(DT_F32, p + s->off[i], s->n[i]) < 0;
    }
    return finite;
}

int32_t recurrent_hold(struct recurrent *r, int32_t seq, int32_t n)
{
    return state_at(r, &r->seq[seq], n);
}

int32_t recurrent_block(struct recurrent *r)
{
    int32_t block = -1;
    take(r, &block, NULL);
    return block;
}

void recurrent_adopt(struct recurrent *r, int32_t seq, int32_t n, int32_t block)
{
    become(r, &r->seq[seq], n, ref(r, block));
    remember(r, &r->seq[seq], n, ref(r, block));
}

void recurrent_share(struct recurrent *r, int32_t dst, int32_t src, int32_t n)
{
    if (!r->n_blocks || dst == src) {
        recurrent_cut(r, dst, n);
        return;
    }
    struct recurrent_seq *to = &r->seq[dst];
    struct recurrent_seq *from = &r->seq[src];
    become(r, to, 0, -1);
    while (to->n_at)
        drop(r, to, to->n_at - 1);
    for (int32_t i = 0; i < from->n_at && from->at[i].n <= n; i++)
        to->at[to->n_at++] =
            (struct checkpoint){.n = from->at[i].n, .block = ref(r, from->at[i].block)};
    become(r, to, n, state_at(r, from, n));
    to->keep = 1;
    from->keep |= n == from->n;
}
