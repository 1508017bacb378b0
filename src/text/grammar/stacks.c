/* stacks.c -- see stacks.h. A set only refers to sets made before it, so numbers ascend from the
 * bottom of the stacks to their tops: dropping what is not needed is one pass down to mark and one
 * up to move. */
#include "text/grammar/stacks.h"

#include <string.h>

#include "base/fmath.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/work.h"

struct stack_set {
    uint32_t at, n;
    uint32_t hash;
};

enum wait { ENDS, CALLS, N_WAITS };

static int grow_table(struct stacks *s, uint32_t cap);

static uint32_t hash_of(const struct stack_pair *p, uint32_t n)
{
    return (uint32_t)hash_bytes(p, n * sizeof *p);
}

/* The slot of an equal set, or the free one where it belongs. */
static uint32_t find(const struct stacks *s, const struct stack_pair *p, uint32_t n, uint32_t hash)
{
    uint32_t i = hash & (s->table_cap - 1);
    for (; s->table[i]; i = (i + 1) & (s->table_cap - 1)) {
        const struct stack_set *set = &s->set[s->table[i] - 1];
        if (set->hash == hash && set->n == n &&
            (n == 0 || !memcmp(s->pair + set->at, p, n * sizeof *p)))
            break;
    }
    return i;
}

int stacks_spend(struct stacks *s, uint64_t n)
{
    s->work += n;
    if (s->failed)
        return 0;
    if (!work_tick(n))
        s->failed = STACKS_CANCELLED;
    else if (s->work > s->most)
        s->failed = s->most < STACKS_MOST_WORK ? STACKS_LATE : STACKS_TOO_MANY;
    s->passed = s->most;
    return !s->failed;
}

/* Steps of closing a position: one that takes more is none that a token could lead to. */
static int spend(struct stacks *s, uint64_t n)
{
    s->here += n;
    if (!stacks_spend(s, n))
        return 0;
    if (s->here > STACKS_MOST_BYTE) {
        s->failed = STACKS_TOO_MANY;
        s->passed = STACKS_MOST_BYTE;
    }
    return !s->failed;
}

/* p in order of state, then below; it must not lie in s->pair. */
static uint32_t intern(struct stacks *s, const struct stack_pair *p, uint32_t n)
{
    uint32_t hash = hash_of(p, n), i = find(s, p, n, hash);
    if (s->table[i])
        return s->table[i] - 1;
    if (s->n_pairs + (uint64_t)n > STACKS_MOST_PAIRS) {
        s->failed = STACKS_TOO_MANY;
        return STACKS_NONE;
    }
    if (!mem_grow(&s->pair, &s->cap_pairs, (uint64_t)s->n_pairs + n, sizeof *s->pair,
                  PITH_MEM_SCRATCH) ||
        !mem_grow(&s->set, &s->cap_sets, (uint64_t)s->n_sets + 1, sizeof *s->set,
                  PITH_MEM_SCRATCH) ||
        (4 * (uint64_t)(s->n_sets + 1) > 3 * (uint64_t)s->table_cap &&
         !grow_table(s, 2 * s->table_cap))) {
        s->failed = STACKS_NO_MEMORY;
        return STACKS_NONE;
    }
    i = find(s, p, n, hash);
    if (n)
        memcpy(s->pair + s->n_pairs, p, n * sizeof *p);
    s->set[s->n_sets] = (struct stack_set){s->n_pairs, n, hash};
    s->n_pairs += n;
    s->table[i] = ++s->n_sets;
    return s->n_sets - 1;
}

static int grow_table(struct stacks *s, uint32_t cap)
{
    uint32_t *table = mem_array(cap, sizeof *table, PITH_MEM_SCRATCH);
    if (!table)
        return 0;
    mem_free(s->table);
    s->table = table;
    s->table_cap = cap;
    for (uint32_t k = 0; k < s->n_sets; k++) { /* in the order of their making, for stacks_cut */
        uint32_t i = s->set[k].hash & (cap - 1);
        while (table[i])
            i = (i + 1) & (cap - 1);
        table[i] = k + 1;
    }
    return 1;
}

/* ---------------------------------------------------------------- lists whose items differ */

static uint32_t list_of(const struct stack_state *x)
{
    return (uint32_t)(x->seen >> 32);
}

static uint32_t text_of(const struct stack_state *x)
{
    return (uint32_t)x->seen;
}

/* What was made later has the higher place, so of two lists the higher one is no beginning of the
 * other. */
enum { N_VIEWS = sizeof((struct differ *)0)->view / sizeof(struct differ_view) };

/* Places of texts and lists have changed. */
static void differ_forget(struct differ *d)
{
    for (int i = 0; i < N_VIEWS; i++)
        d->view[i].set = 0;
    d->now = NULL;
}

static void differ_deinit(struct differ *d)
{
    for (int i = 0; i < N_VIEWS; i++)
        mem_free(d->view[i].text);
    mem_free(d->path);
    mem_free(d->more);
    *d = (struct differ){.clock = 0};
}

uint64_t stacks_differ_bytes(const struct stacks *s)
{
    uint64_t n = sizeof(uint32_t) * ((uint64_t)s->differ.cap_path + s->differ.cap_more);
    for (int i = 0; i < N_VIEWS; i++)
        n += (uint64_t)s->differ.view[i].cap * sizeof *s->differ.view[i].text;
    return n;
}

static uint16_t bytes_on(const struct automaton *a, uint32_t state)
{
    const struct automaton_row *r = &a->row[state];
    uint32_t n = r->several || !r->to ? 0 : r->width + 1u;
    for (int b = 0; r->several && b < 256; b++)
        n += automaton_next(a, state, (uint8_t)b) != 0;
    return (uint16_t)n;
}

/* The texts that an item begins with, from the whole of it to its first byte. How many; UINT32_MAX:
 * no memory. */
static uint32_t path_of(struct differ *d, const struct stack_state *state, uint32_t text)
{
    uint32_t n = 0;
    for (; text; text = list_of(&state[text])) {
        if (!mem_grow(&d->path, &d->cap_path, (uint64_t)n + 1, sizeof *d->path, PITH_MEM_SCRATCH))
            return UINT32_MAX;
        d->path[n++] = text;
    }
    return n;
}

static void judge(struct differ_view *v, const struct automaton *a, uint32_t text, uint32_t parent)
{
    struct differ_text *t = &v->text[text];
    int over = t->n && t->n_over == t->n_next &&
               (t->whole || !(automaton_flags(a, t->state) & STATE_FINAL));
    if (text && over != t->over)
        v->text[parent].n_over += over ? 1 : UINT32_MAX;
    t->over = (uint8_t)over;
}

/* by: 1, or -1 as UINT32_MAX. Returns the texts it has touched; UINT32_MAX: no memory. */
static uint32_t put_item(struct differ *d, struct differ_view *v, const struct automaton *a,
                         const struct stack_state *state, uint32_t text, uint32_t by)
{
    uint32_t n = path_of(d, state, text), at = v->text[0].state;
    if (n == UINT32_MAX)
        return n;
    for (uint32_t i = n; i-- > 0;) {
        struct differ_text *t = &v->text[d->path[i]];
        at = automaton_next(a, at, (uint8_t)text_of(&state[d->path[i]]));
        if (!t->n)
            *t = (struct differ_text){.state = at, .n_next = bytes_on(a, at)};
        t->n += by;
    }
    v->text[0].n += by;
    v->n_items += by;
    v->text[text].whole = by == 1;
    for (uint32_t i = 0; i < n; i++)
        judge(v, a, d->path[i], list_of(&state[d->path[i]]));
    judge(v, a, 0, 0);
    return n + 1;
}

static int is_near(const struct differ_view *v, const struct stack_state *state, uint32_t list)
{
    uint32_t up = list ? list_of(&state[list]) : 0, own = v->list ? list_of(&state[v->list]) : 0;
    return v->list == up || own == list || own == up;
}

/* The view of a set whose list is the same, or near; else the one that was used longest ago. */
static struct differ_view *choose(struct differ *d, const struct stack_state *state, uint32_t set,
                                  uint32_t list)
{
    struct differ_view *oldest = d->view, *close = NULL;
    for (struct differ_view *v = d->view; v < d->view + N_VIEWS; v++) {
        if (v->set == set + 1 && v->list == list)
            return v;
        if (v->set == set + 1 && is_near(v, state, list))
            close = v;
        if (v->used < oldest->used)
            oldest = v;
    }
    return close ? close : oldest;
}

/* Empties a view for a set. */
static void begin_view(struct differ_view *v, const struct automaton *a, uint32_t set)
{
    uint32_t start = a->member[a->set[set].member].start;
    memset(v->text, 0, v->cap * sizeof *v->text);
    v->text[0] = (struct differ_text){.state = start, .n_next = bytes_on(a, start)};
    v->set = set + 1;
    v->list = v->n_items = 0;
}

static uint64_t go_to(struct differ *d, struct differ_view *v, const struct automaton *a,
                      const struct stack_state *state, uint32_t list)
{
    uint64_t steps = 0;
    uint32_t n_more = 0, n = 0;
    while (v->list != list && n != UINT32_MAX) {
        if (v->list > list) {
            n = put_item(d, v, a, state, text_of(&state[v->list]), UINT32_MAX);
            v->list = list_of(&state[v->list]);
            steps += n;
            continue;
        }
        if (!mem_grow(&d->more, &d->cap_more, (uint64_t)n_more + 1, sizeof *d->more,
                      PITH_MEM_SCRATCH))
            n = UINT32_MAX;
        else
            d->more[n_more++] = list;
        list = list_of(&state[list]);
        steps++;
    }
    while (n_more && n != UINT32_MAX) {
        v->list = d->more[--n_more];
        n = put_item(d, v, a, state, text_of(&state[v->list]), 1);
        steps += n;
    }
    return n == UINT32_MAX ? UINT64_MAX : steps;
}

/* Looks at a list of a set; n of state[] are there. The texts touched and lists looked at;
 * UINT64_MAX: no memory. */
static uint64_t differ_look(struct differ *d, const struct automaton *a,
                            const struct stack_state *state, uint32_t n, uint32_t set,
                            uint32_t list)
{
    enum { CLEARED_A_STEP = 64 };
    struct differ_view *v = d->now;
    uint64_t steps = 0, went;
    if (v && v->set == set + 1 && v->list == list)
        return 0;
    v = choose(d, state, set, list);
    uint32_t was = v->cap;
    if (!mem_grow(&v->text, &v->cap, (uint64_t)n + 1, sizeof *v->text, PITH_MEM_SCRATCH))
        return UINT64_MAX;
    if (v->cap > was)
        memset(v->text + was, 0, (v->cap - was) * sizeof *v->text);
    if (v->set != set + 1) {
        begin_view(v, a, set);
        steps += v->cap / CLEARED_A_STEP;
    }
    v->used = ++d->clock;
    d->now = v;
    went = go_to(d, v, a, state, list);
    if (went != UINT64_MAX)
        return steps + went;
    v->set = 0;
    d->now = NULL;
    return UINT64_MAX;
}

/* Of the list that was looked at last. */
static const struct differ_text *differ_text(const struct differ *d, uint32_t text)
{
    static const struct differ_text none;
    return d->now && text < d->now->cap ? &d->now->text[text] : &none;
}

/* ---------------------------------------------------------------- states of sets */

static uint8_t flags_of(const struct stacks *s, uint32_t state)
{
    return state < s->a->n_states ? automaton_flags(s->a, state) : STATE_CALLS;
}

/* The arrays by states for so many. */
static int room_for_states(struct stacks *s, uint64_t n)
{
    uint32_t was = s->cap_states;
    if (n <= was)
        return 1;
    if (!mem_grow(&s->member, &s->cap_members, n, sizeof *s->member, PITH_MEM_SCRATCH) ||
        !mem_grow(&s->at, &s->cap_states, n, sizeof *s->at, PITH_MEM_SCRATCH))
        return 0;
    memset(s->at + was, 0, (s->cap_states - was) * sizeof *s->at);
    return 1;
}

static uint32_t state_slot(const struct stacks *s, const struct stack_state *x)
{
    uint32_t i =
        (uint32_t)slice_hash((struct slice){(const char *)x, sizeof *x}) & (s->state_cap - 1);
    while (s->state_table[i] && memcmp(&s->state[s->state_table[i] - 1], x, sizeof *x))
        i = (i + 1) & (s->state_cap - 1);
    return i;
}

static int index_states(struct stacks *s, uint32_t cap)
{
    uint32_t *table = mem_array(cap, sizeof *table, PITH_MEM_SCRATCH);
    if (!table)
        return 0;
    mem_free(s->state_table);
    s->state_table = table;
    s->state_cap = cap;
    for (uint32_t i = 0; i < s->n_more; i++)
        s->state_table[state_slot(s, &s->state[i])] = i + 1;
    return 1;
}

/* The number of a state of a set; 0: the failure is in s. */
static uint32_t set_state(struct stacks *s, struct stack_state x)
{
    uint32_t i = state_slot(s, &x), n = s->n_more;
    if (s->state_table[i])
        return s->a->n_states + s->state_table[i] - 1;
    if (n >= STACKS_MOST_PAIRS) {
        s->failed = STACKS_TOO_MANY;
        return 0;
    }
    if (!mem_grow(&s->state, &s->cap_more, (uint64_t)n + 1, sizeof *s->state, PITH_MEM_SCRATCH) ||
        !room_for_states(s, (uint64_t)s->a->n_states + n + 1) ||
        (2 * (uint64_t)(n + 1) > s->state_cap && !index_states(s, 2 * s->state_cap))) {
        s->failed = STACKS_NO_MEMORY;
        return 0;
    }
    s->state[n] = x;
    s->state_table[state_slot(s, &x)] = ++s->n_more;
    return s->a->n_states + n;
}

/* ---------------------------------------------------------------- what lies below a state */

/* The slot of a part, or the free one where it belongs. */
static uint32_t part_slot(const struct stacks *s, uint32_t owner, struct stack_pair p)
{
    uint64_t key = ((uint64_t)p.state << 32 | p.below) + owner * (uint64_t)0x9E3779B97F4A7C15;
    uint32_t mask = s->seen_cap - 1, i = (uint32_t)(hash_number(s->key, key) >> 32) & mask;
    for (; s->seen[i].stamp == s->now; i = (i + 1) & mask) {
        const struct stack_part *q = &s->part[s->seen[i].part];
        if (q->owner == owner && q->pair.state == p.state && q->pair.below == p.below)
            break;
    }
    return i;
}

/* Parts that are found by what they are, of this position alone. */
static int grow_seen(struct stacks *s, uint32_t cap)
{
    struct stack_seen *seen = mem_array(cap, sizeof *seen, PITH_MEM_SCRATCH);
    if (!seen)
        return 0;
    mem_free(s->seen);
    s->seen = seen;
    s->seen_cap = cap;
    for (uint32_t i = 1; i <= s->n_parts; i++)
        s->seen[part_slot(s, s->part[i].owner, s->part[i].pair)] = (struct stack_seen){s->now, i};
    return 1;
}

int stacks_init(struct stacks *s, const struct automaton *a)
{
    static const struct stack_pair bottom = {STATE_END, 0}, open = {STATE_OPEN, 0};
    *s = (struct stacks){.a = a, .most = STACKS_MOST_WORK, .key = hash_key()};
    if (!room_for_states(s, (uint64_t)a->n_states + a->n_sets) || !index_states(s, 64) ||
        !grow_table(s, 1024) || !grow_seen(s, 64))
        return 0;
    for (uint32_t i = 0; i < a->n_sets; i++)
        if (!set_state(s, (struct stack_state){0, i, SET_BEGINS}))
            return 0;
    intern(s, &bottom, 1);
    intern(s, &open, 1);
    intern(s, NULL, 0);
    return !s->failed;
}

void stacks_deinit(struct stacks *s)
{
    mem_free(s->pair);
    mem_free(s->state);
    mem_free(s->state_table);
    mem_free(s->set);
    mem_free(s->table);
    mem_free(s->at);
    mem_free(s->member);
    mem_free(s->part);
    mem_free(s->seen);
    mem_free(s->wait[ENDS].state);
    mem_free(s->wait[CALLS].state);
    mem_free(s->merge);
    mem_free(s->spare);
    differ_deinit(&s->differ);
}

/* ---------------------------------------------------------------- making a position */

void stacks_begin(struct stacks *s)
{
    if (++s->now == 0) {
        for (uint32_t i = 0; i < s->cap_states; i++)
            s->at[i].stamp = 0;
        memset(s->seen, 0, s->seen_cap * sizeof *s->seen);
        s->now = 1;
    }
    for (int i = 0; i < N_WAITS; i++)
        while (s->wait[i].n)
            s->at[s->wait[i].state[--s->wait[i].n]].waits = 0;
    s->n_members = s->n_parts = 0;
    s->here = 0;
}

static int less(struct stack_pair a, struct stack_pair b)
{
    return a.state < b.state || (a.state == b.state && a.below < b.below);
}

/* One more part; 0: it was there, or the failure is in s. */
static uint32_t note_part(struct stacks *s, uint32_t owner, struct stack_pair p)
{
    uint32_t i = part_slot(s, owner, p), n = s->n_parts + 1;
    if (s->seen[i].stamp == s->now)
        return 0;
    if (n >= STACKS_MOST_PAIRS) {
        s->failed = STACKS_TOO_MANY;
        return 0;
    }
    if (!mem_grow(&s->part, &s->cap_parts, (uint64_t)n + 1, sizeof *s->part, PITH_MEM_SCRATCH) ||
        (2 * (uint64_t)n > s->seen_cap && !grow_seen(s, 2 * s->seen_cap))) {
        s->failed = STACKS_NO_MEMORY;
        return 0;
    }
    s->part[n] = (struct stack_part){owner, 0, p};
    s->n_parts = n;
    s->seen[part_slot(s, owner, p)] = (struct stack_seen){s->now, n};
    return n;
}

/* The pairs of a set to the parts of a state; how many are new. */
static uint32_t add_parts(struct stacks *s, uint32_t state, uint32_t set)
{
    struct stack_at *at = &s->at[state];
    uint32_t n = s->set[set].n, n_new = 0;
    if (!note_part(s, state, (struct stack_pair){STACKS_PARTS, set}) || !spend(s, n))
        return 0;
    for (uint32_t i = 0; i < n && !s->failed; i++) {
        uint32_t part = note_part(s, state, s->pair[s->set[set].at + i]);
        if (!part)
            continue;
        if (at->last)
            s->part[at->last].next = part;
        else
            at->first = part;
        at->last = part;
        n_new++;
    }
    return n_new;
}

/* Where a run that begins at `from` ends; one that descends is turned. */
static uint32_t run_end(struct stack_pair *p, uint32_t from, uint32_t n)
{
    uint32_t to = from + 1;
    int falls = to < n && less(p[to], p[from]);
    while (to < n && less(p[to], p[to - 1]) == falls)
        to++;
    for (uint32_t i = from, k = to; falls && i + 1 < k; i++) {
        struct stack_pair first = p[i];
        p[i] = p[--k];
        p[k] = first;
    }
    return to;
}

/* Runs that ascend, or descend, become one. Returns where it is: p or q. */
static struct stack_pair *order(struct stack_pair *p, struct stack_pair *q, uint32_t n)
{
    for (uint32_t n_runs = 2; n_runs > 1;) {
        n_runs = 0;
        for (uint32_t from = 0, to = 0; from < n; from = to, n_runs++) {
            uint32_t mid = to = run_end(p, from, n);
            to = mid < n ? run_end(p, mid, n) : mid;
            for (uint32_t i = from, k = mid, out = from; out < to; out++)
                q[out] = k == to || (i < mid && less(p[i], p[k])) ? p[i++] : p[k++];
        }
        struct stack_pair *was = p;
        p = q;
        q = was;
    }
    return p;
}

/* What lies below a state as a set. */
static void settle(struct stacks *s, uint32_t state)
{
    struct stack_at *at = &s->at[state];
    uint32_t n = 0;
    if (at->below != STACKS_PARTS || s->failed)
        return;
    if (!mem_grow(&s->merge, &s->cap_merge, s->n_parts, sizeof *s->merge, PITH_MEM_SCRATCH) ||
        !mem_grow(&s->spare, &s->cap_spare, s->n_parts, sizeof *s->spare, PITH_MEM_SCRATCH)) {
        s->failed = STACKS_NO_MEMORY;
        return;
    }
    for (uint32_t i = at->first; i; i = s->part[i].next)
        s->merge[n++] = s->part[i].pair;
    if (spend(s, n))
        at->below = intern(s, order(s->merge, s->spare, n), n);
}

static void wait_in(struct stacks *s, enum wait list, uint32_t state)
{
    struct stack_wait *t = &s->wait[list];
    if (s->failed || (s->at[state].waits >> list & 1))
        return;
    if (!mem_grow(&t->state, &t->cap, (uint64_t)t->n + 1, sizeof *t->state, PITH_MEM_SCRATCH)) {
        s->failed = STACKS_NO_MEMORY;
        return;
    }
    t->state[t->n++] = state;
    s->at[state].waits |= (uint8_t)(1 << list);
}

static uint32_t next_in(struct stacks *s, enum wait list)
{
    struct stack_wait *t = &s->wait[list];
    uint32_t state = t->state[--t->n];
    s->at[state].waits &= (uint8_t) ~(1 << list);
    return state;
}

/* Another set below a state that has one. 0: all of it was there. */
static int add_below(struct stacks *s, uint32_t state, uint32_t below)
{
    struct stack_at *at = &s->at[state];
    if (at->below == below)
        return 0;
    if (!at->first) {
        add_parts(s, state, at->below);
        at->ended = at->set_ended ? at->last : 0;
    }
    if (!add_parts(s, state, below))
        return 0;
    at->below = STACKS_PARTS;
    return 1;
}

void stacks_add(struct stacks *s, uint32_t state, uint32_t below)
{
    if (s->failed)
        return;
    if (s->at[state].stamp == s->now) {
        if (!add_below(s, state, below))
            return;
    } else {
        s->at[state] = (struct stack_at){.stamp = s->now, .below = below};
        s->member[s->n_members++] = state;
    }
    uint8_t flags = flags_of(s, state);
    if (flags & STATE_FINAL)
        wait_in(s, ENDS, state);
    if (flags & STATE_CALLS)
        wait_in(s, CALLS, state);
}

static void add_call(struct stacks *s, uint32_t start, uint32_t back, uint32_t below)
{
    struct stack_pair pair = {back, below};
    if (!s->failed)
        stacks_add(s, start, intern(s, &pair, 1));
}

/* ---------------------------------------------------------------- items that differ */

/* The place of a text or a list with one more; 0: the failure is in s. */
static uint32_t longer(struct stacks *s, uint32_t of, uint32_t more, enum stack_phase what)
{
    uint32_t state = set_state(s, (struct stack_state){(uint64_t)of << 32 | more, 0, what});
    return state ? state - s->a->n_states : 0;
}

const struct stack_state *stacks_item(const struct stacks *s, uint32_t state)
{
    const struct stack_state *x = state < s->a->n_states ? NULL : &s->state[state - s->a->n_states];
    return x && x->phase == SET_ITEM ? x : NULL;
}

uint32_t stacks_text(const struct stacks *s, uint32_t text, uint8_t byte)
{
    struct stack_state x = {(uint64_t)text << 32 | byte, 0, SET_TEXT};
    uint32_t at = s->state_table[state_slot(s, &x)];
    return at ? at - 1 : 0;
}

/* What a text is to a list of a set. */
static const struct differ_text *look(struct stacks *s, uint32_t set, uint32_t list, uint32_t text)
{
    uint64_t n = differ_look(&s->differ, s->a, s->state, s->n_more, set, list);
    if (n == UINT64_MAX)
        s->failed = STACKS_NO_MEMORY;
    else
        stacks_spend(s, 1 + n);
    return differ_text(&s->differ, text);
}

int stacks_item_begun(struct stacks *s, uint32_t set, uint32_t list, uint32_t text)
{
    return look(s, set, list, text)->n > 0 && !s->failed;
}

int stacks_item_over(struct stacks *s, uint32_t set, uint32_t list, uint32_t text)
{
    return look(s, set, list, text)->over && !s->failed;
}

int stacks_item_step(struct stacks *s, uint32_t *state, struct stack_pair *p, uint8_t byte)
{
    const struct stack_state *item = stacks_item(s, p->state);
    uint32_t to = automaton_next(s->a, *state, byte);
    if (!to || s->failed)
        return 0;
    *state = to;
    if (!item)
        return 1;
    struct stack_state x = *item;
    uint32_t text = stacks_text(s, text_of(&x), byte);
    if (text && stacks_item_over(s, x.set, list_of(&x), text))
        return 0;
    text = text ? text : longer(s, text_of(&x), byte, SET_TEXT);
    if (!text)
        return 0;
    x.seen = (uint64_t)list_of(&x) << 32 | text;
    p->state = set_state(s, x);
    return !s->failed;
}

/* What may come at a state of such a set. */
static void add_differing(struct stacks *s, struct stack_state x, uint32_t below)
{
    const struct automaton_set *set = &s->a->set[x.set];
    uint32_t list = list_of(&x), start = s->a->member[set->member].start, n;
    if (x.phase == SET_ITEM && look(s, x.set, list, text_of(&x))->whole)
        return;
    if (x.phase == SET_ITEM)
        list = longer(s, list, text_of(&x), SET_LIST);
    int over = stacks_item_over(s, x.set, list, 0);
    if (s->failed)
        return;
    n = s->differ.now->n_items;
    uint64_t seen = (uint64_t)list << 32;
    if (x.phase != SET_NEXT && n >= set->min)
        stacks_add(s, set->close, below);
    if (n >= set->max || over)
        return;
    if (x.phase == SET_ITEM)
        add_call(s, set->comma, set_state(s, (struct stack_state){seen, x.set, SET_NEXT}), below);
    else
        add_call(s, start, set_state(s, (struct stack_state){seen, x.set, SET_ITEM}), below);
}

/* What may come at a state of a set. */
static void add_set(struct stacks *s, uint32_t state, uint32_t below)
{
    struct stack_state x = s->state[state - s->a->n_states];
    if (s->a->set[x.set].differ) {
        add_differing(s, x, below);
        return;
    }
    const struct automaton_set *set = &s->a->set[x.set];
    const struct automaton_member *m = s->a->member + set->member;
    uint32_t n_seen = (uint32_t)__builtin_popcountll(x.seen);
    int all = 1, more = set->extra != 0;
    stacks_spend(s, set->n);
    for (uint32_t i = 0; i < set->n; i++) {
        int seen = (int)(x.seen >> i & 1);
        all &= seen || !m[i].must;
        more |= !seen && n_seen < set->max;
    }
    if (x.phase != SET_NEXT && all && n_seen >= set->min)
        stacks_add(s, set->close, below);
    if (x.phase == SET_BEHIND && more)
        add_call(s, set->comma, set_state(s, (struct stack_state){x.seen, x.set, SET_NEXT}), below);
    if (x.phase == SET_BEHIND)
        return;
    for (uint32_t i = 0; i < set->n && n_seen < set->max && !s->failed; i++) {
        if (!(x.seen >> i & 1))
            add_call(
                s, m[i].start,
                set_state(s, (struct stack_state){x.seen | (uint64_t)1 << i, x.set, SET_BEHIND}),
                below);
    }
    if (set->extra && !s->failed)
        add_call(s, set->extra, set_state(s, (struct stack_state){x.seen, x.set, SET_BEHIND}),
                 below);
}

/* The rule of a state ends: what lies below goes on, where it has not already. */
static void end_rule(struct stacks *s, uint32_t state)
{
    uint32_t below = s->at[state].below;
    if (!s->at[state].first) {
        s->at[state].set_ended = 1;
        if (!spend(s, s->set[below].n))
            return;
        for (uint32_t i = 0; i < s->set[below].n; i++) {
            struct stack_pair p = s->pair[s->set[below].at + i];
            stacks_add(s, p.state, p.below);
        }
        return;
    }
    for (uint32_t i; !s->failed; s->at[state].ended = i) {
        i = s->at[state].ended ? s->part[s->at[state].ended].next : s->at[state].first;
        if (!i || !spend(s, 1))
            return;
        stacks_add(s, s->part[i].pair.state, s->part[i].pair.below);
    }
}

/* Rules end before others are called: a caller's set is whole then, and no part of it goes to the
 * called one besides. */
static void follow(struct stacks *s)
{
    const struct automaton *a = s->a;
    while ((s->wait[ENDS].n || s->wait[CALLS].n) && !s->failed) {
        if (s->wait[ENDS].n) {
            end_rule(s, next_in(s, ENDS));
            continue;
        }
        uint32_t state = next_in(s, CALLS);
        settle(s, state);
        uint32_t below = s->at[state].below;
        if (s->failed)
            break;
        if (state >= a->n_states) {
            add_set(s, state, below);
            continue;
        }
        if (!spend(s, a->call_at[state + 1] - a->call_at[state]))
            break;
        for (uint32_t i = a->call_at[state]; i < a->call_at[state + 1]; i++) {
            struct stack_pair back = {a->call[i].back, below};
            stacks_add(s, a->call[i].start, back.state ? intern(s, &back, 1) : below);
        }
    }
}

/* Whether a state of a closed position matters to what comes: it reads something, or says that the
 * rule or the text may end. */
static int matters(const struct stacks *s, uint32_t state)
{
    return state < STATE_FIRST || (flags_of(s, state) & STATE_MOVES);
}

uint32_t stacks_close(struct stacks *s)
{
    follow(s);
    for (uint32_t i = 0; i < s->n_members && !s->failed; i++)
        if (matters(s, s->member[i]))
            settle(s, s->member[i]);
    return s->failed ? 0 : s->n_members;
}

uint32_t stacks_take(struct stacks *s, struct stack_pair *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_members && !s->failed; i++) {
        if (matters(s, s->member[i]))
            out[n++] = (struct stack_pair){s->member[i], s->at[s->member[i]].below};
    }
    return n;
}

uint32_t stacks_intern(struct stacks *s)
{
    stacks_close(s);
    set_sort(s->member, s->n_members);
    if (!mem_grow(&s->merge, &s->cap_merge, s->n_members, sizeof *s->merge, PITH_MEM_SCRATCH))
        s->failed = STACKS_NO_MEMORY;
    return s->failed ? STACKS_NONE : intern(s, s->merge, stacks_take(s, s->merge));
}

int stacks_has_items(const struct stacks *s, uint32_t set)
{
    int items = 0;
    for (uint32_t i = 0; s->a->n_differ && i < s->set[set].n; i++)
        items |= stacks_item(s, s->pair[s->set[set].at + i].state) != NULL;
    return items;
}

uint32_t stacks_push(struct stacks *s, struct stack_pair p)
{
    return intern(s, &p, 1);
}

/* A byte leads on from a pair: items below it have it in their text. */
static void step_below(struct stacks *s, struct stack_pair pair, uint8_t byte)
{
    int items = stacks_has_items(s, pair.below);
    if (!items)
        stacks_add(s, automaton_next(s->a, pair.state, byte), pair.below);
    for (uint32_t i = 0; items && i < s->set[pair.below].n && !s->failed; i++) {
        struct stack_pair p = s->pair[s->set[pair.below].at + i];
        uint32_t to = pair.state;
        if (stacks_item_step(s, &to, &p, byte))
            stacks_add(s, to, intern(s, &p, 1));
    }
}

void stacks_step(struct stacks *s, const struct stack_pair *p, uint32_t n, uint8_t byte)
{
    const struct automaton *a = s->a;
    stacks_spend(s, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = automaton_next(a, p[i].state, byte);
        if (to && a->n_differ)
            step_below(s, p[i], byte);
        else if (to)
            stacks_add(s, to, p[i].below);
    }
}

const struct stack_pair *stacks_pairs(const struct stacks *s, uint32_t set, uint32_t *n)
{
    *n = s->set[set].n;
    return s->pair + s->set[set].at;
}

int stacks_has(const struct stacks *s, uint32_t set, uint32_t state)
{
    const struct stack_pair *p = s->pair + s->set[set].at;
    for (uint32_t i = 0; i < s->set[set].n && p[i].state <= state; i++) {
        if (p[i].state == state)
            return 1;
    }
    return 0;
}

/* ---------------------------------------------------------------- dropping sets */

uint32_t stacks_mark(const struct stacks *s)
{
    return s->n_sets;
}

void stacks_cut(struct stacks *s, uint32_t mark)
{
    while (s->n_sets > mark) {
        const struct stack_set *set = &s->set[--s->n_sets];
        uint32_t i = set->hash & (s->table_cap - 1);
        while (s->table[i] != s->n_sets + 1)
            i = (i + 1) & (s->table_cap - 1);
        s->table[i] = 0; /* the newest: no other was put behind it */
        s->n_pairs = set->at;
    }
}

static int remembers(const struct stacks *s, const struct stack_state *x)
{
    return x->phase >= SET_TEXT || s->a->set[x->set].differ;
}

/* to: sets that stay. Drops states of sets that none of these has; numbers stay in their order. 0:
 * no memory. */
static int keep_states(struct stacks *s, const uint32_t *to)
{
    uint32_t base = s->a->n_states, n = s->a->n_sets;
    uint32_t *moved = mem_array((size_t)s->n_more + 1, sizeof *moved, PITH_MEM_SCRATCH);
    if (!moved)
        return 0;
    for (uint32_t k = 0; k < s->n_sets; k++) {
        for (uint32_t i = 0; to[k] && i < s->set[k].n; i++) {
            uint32_t state = s->pair[s->set[k].at + i].state;
            if (state >= base)
                moved[state - base] = 1;
        }
    }
    for (uint32_t i = s->n_more; i-- > s->a->n_sets;) { /* what they are made of lies before them */
        const struct stack_state *x = &s->state[i];
        if (moved[i] && remembers(s, x)) {
            moved[list_of(x)] = 1;
            if (x->phase != SET_TEXT)
                moved[text_of(x)] = 1;
        }
    }
    for (uint32_t i = 0; i < s->n_more; i++) {
        if (i >= s->a->n_sets && !moved[i])
            continue;
        moved[i] = i < s->a->n_sets ? i : n++;
        struct stack_state x = s->state[i];
        if (remembers(s, &x))
            x.seen = (uint64_t)moved[list_of(&x)] << 32 |
                     (x.phase == SET_TEXT ? text_of(&x) : moved[text_of(&x)]);
        s->state[moved[i]] = x;
    }
    s->n_more = n;
    differ_forget(&s->differ);
    for (uint32_t k = 0; k < s->n_sets; k++) {
        for (uint32_t i = 0; to[k] && i < s->set[k].n; i++) {
            uint32_t *state = &s->pair[s->set[k].at + i].state;
            *state = *state >= base ? base + moved[*state - base] : *state;
        }
    }
    mem_free(moved);
    memset(s->state_table, 0, s->state_cap * sizeof *s->state_table);
    for (uint32_t i = 0; i < s->n_more; i++)
        s->state_table[state_slot(s, &s->state[i])] = i + 1;
    return 1;
}

int stacks_keep(struct stacks *s, uint32_t **root, uint32_t n)
{
    uint32_t *to = mem_array(s->n_sets, sizeof *to, PITH_MEM_SCRATCH), n_sets = 0, n_pairs = 0;
    if (!to)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        to[*root[i]] = 1;
    for (uint32_t k = s->n_sets; k-- > 0;) {
        to[k] |= k <= STACKS_NONE;
        for (uint32_t i = 0; to[k] && i < s->set[k].n; i++)
            to[s->pair[s->set[k].at + i].below] = 1;
    }
    if (s->a->n_sets && !keep_states(s, to)) {
        mem_free(to);
        return 0;
    }
    for (uint32_t k = 0; k < s->n_sets; k++) {
        struct stack_set set = s->set[k];
        if (!to[k])
            continue;
        to[k] = n_sets;
        for (uint32_t i = 0; i < set.n; i++) {
            struct stack_pair p = s->pair[set.at + i];
            s->pair[n_pairs + i] = (struct stack_pair){p.state, to[p.below]};
        }
        set.at = n_pairs;
        set.hash = hash_of(s->pair + n_pairs, set.n);
        n_pairs += set.n;
        s->set[n_sets++] = set;
    }
    for (uint32_t i = 0; i < n; i++)
        *root[i] = to[*root[i]];
    s->n_sets = n_sets;
    s->n_pairs = n_pairs;
    memset(s->table, 0, s->table_cap * sizeof *s->table);
    for (uint32_t k = 0; k < n_sets; k++)
        s->table[find(s, s->pair + s->set[k].at, s->set[k].n, s->set[k].hash)] = k + 1;
    s->failed = 0;
    mem_free(to);
    return 1;
}

/* ---------------------------------------------------------------- what grows */

/* Whether a grammar is read in ever more ways as its text grows.
 *
 *     texts of k bytes ──each by the first bytes of what may come──> texts of k + 1 bytes
 *         a few of them go on: by the steps of their last byte, of all, by depth
 *
 * Whether a grammar is ambiguous cannot be decided, but what a byte costs can be looked at: a
 * position is a set of stacks, and the steps from one to the next are those of every later token.
 * Where the costliest byte of such texts grows so fast that a text of GROWTH_TEXT bytes
 * would pass the bound of a token, or what its stacks hold the bound of all of them, the grammar is
 * refused when it is compiled. What a search of
 * GROWTH_STEPS steps does not find is ended by the bound when it comes. */
enum {
    EACH = 4,        /* texts that go on, by each of what they are known for */
    MOST_BYTES = 24, /* that are tried behind a text */
    KEEP_PAIRS = 1 << 14,
    LEAST_BYTES = 24, /* before that many nothing is told by how it grows */
    MUCH_MORE = 64,
    ONE_BYTE = 1 << 18, /* most steps of a byte in the search */
    PAIRS_EACH = 8,     /* bytes; then what a text's stacks hold is counted */
};

/* What a text is known for: steps of its last byte, of all its bytes, how deep its stacks are: what
 * was opened often is costly when it is closed. */
enum known_for { LAST, ALL, DEEP, N_KNOWN };
struct text {
    uint32_t at; /* position */
    uint64_t known[N_KNOWN];
};

struct search {
    struct stacks stacks;
    struct text text[N_KNOWN * EACH], next[N_KNOWN][EACH]; /* next: most first */
    uint32_t n, n_next[N_KNOWN];
    uint32_t *depth; /* [n_depth] of sets */
    uint32_t cap_depth, n_depth;
    struct stack_pair *pair; /* of the position at hand */
    uint32_t cap_pairs;
    uint8_t first[256]; /* of each class of bytes */
    uint64_t steps, most[GROWTH_BYTES + 1];
    uint64_t pairs[GROWTH_BYTES + 1]; /* that the costliest texts hold */
    uint32_t *met, cap_met;           /* [sets] of a count: the round that a set was met in last */
    uint32_t widest; /* of the costliest byte */
};

uint32_t growth_widest(const struct stacks *s)
{
    uint32_t state = 0, most = 0, n;
    for (uint32_t i = 0; i < s->n_members; i++) {
        const struct stack_at *at = &s->at[s->member[i]];
        n = 0;
        for (uint32_t k = at->first; k; k = s->part[k].next)
            n++;
        if (!at->first)
            stacks_pairs(s, at->below, &n);
        if (n >= most && s->member[i] >= STATE_FIRST) {
            most = n;
            state = s->member[i];
        }
    }
    return state;
}

/* Bytes that may come, one for each range or class that some state reads. */
static uint32_t candidates(const struct search *s, uint32_t n_pairs, uint8_t out[MOST_BYTES])
{
    const struct automaton *a = s->stacks.a;
    uint8_t seen[256] = {0};
    uint32_t n = 0, n_all = 0, k = 0;
    for (uint32_t i = 0; i < n_pairs; i++) {
        if (s->pair[i].state >= a->n_states || s->pair[i].state < STATE_FIRST)
            continue;
        const struct automaton_row *row = &a->row[s->pair[i].state];
        for (uint32_t c = 0; row->several && c < a->n_classes; c++)
            seen[s->first[c]] |= a->next[(size_t)row->to * a->n_classes + c] != 0;
        if (!row->several && row->to)
            seen[row->lo] = 1;
    }
    for (uint32_t b = 0; b < 256; b++)
        n_all += seen[b];
    for (uint32_t b = 0; b < 256; b++) { /* of many some, spread out */
        if (!seen[b])
            continue;
        if (n_all <= MOST_BYTES || (uint64_t)k * MOST_BYTES / n_all >= n)
            out[n++] = (uint8_t)b;
        k++;
        if (n == MOST_BYTES)
            break;
    }
    return n;
}

/* How deep the stacks of a set are. Sets refer to those before them. */
static uint32_t depth_of(struct search *s, uint32_t set)
{
    uint32_t n;
    if (!mem_grow(&s->depth, &s->cap_depth, (uint64_t)set + 1, sizeof *s->depth,
                  PITH_MEM_SCRATCH)) {
        s->stacks.failed = STACKS_NO_MEMORY;
        return 0;
    }
    for (; s->n_depth <= set; s->n_depth++) {
        const struct stack_pair *p = stacks_pairs(&s->stacks, s->n_depth, &n);
        uint32_t most = 0;
        for (uint32_t i = 0; i < n && s->n_depth > STACKS_NONE; i++)
            most = s->depth[p[i].below] >= most ? s->depth[p[i].below] + 1 : most;
        s->depth[s->n_depth] = most;
        s->steps += n;
    }
    return s->depth[set];
}

static void put(struct search *s, enum known_for by, struct text t)
{
    struct text *v = s->next[by];
    uint32_t n = s->n_next[by], i = n;
    for (uint32_t k = 0; k < n; k++) /* a position goes on once */
        if (v[k].at == t.at)
            return;
    while (i > 0 && v[i - 1].known[by] < t.known[by]) {
        if (i < EACH)
            v[i] = v[i - 1];
        i--;
    }
    if (i == EACH)
        return;
    v[i] = t;
    s->n_next[by] = n < EACH ? n + 1 : EACH;
}

/* One byte further from the position at hand. 0: it ends here. */
static int try_byte(struct search *s, const struct text *from, uint32_t n_pairs, uint8_t byte,
                    uint32_t length)
{
    struct stacks *k = &s->stacks;
    k->work = 0;
    stacks_begin(k);
    stacks_step(k, s->pair, n_pairs, byte);
    uint32_t at = stacks_intern(k);
    s->steps += k->work + 1;
    if (k->work > s->most[length]) {
        s->most[length] = k->work;
        s->widest = growth_widest(k);
    }
    if (k->failed || at == STACKS_NONE)
        return !k->failed;
    struct text t = {at, {k->work, from->known[ALL] + k->work, depth_of(s, at)}};
    for (int by = 0; by < N_KNOWN; by++)
        put(s, (enum known_for)by, t);
    return s->steps < GROWTH_STEPS;
}

/* Pairs of all sets that a text's position is made of. Sets refer to those before them. */
static uint64_t pairs_of(struct search *s, uint32_t at, uint32_t round)
{
    uint64_t all = 0;
    s->met[at] = round;
    for (uint32_t k = at + 1; k-- > 0;) {
        uint32_t n;
        if (s->met[k] != round)
            continue;
        const struct stack_pair *p = stacks_pairs(&s->stacks, k, &n);
        for (uint32_t i = 0; i < n && k > STACKS_NONE; i++)
            s->met[p[i].below] = round;
        all += n;
    }
    s->steps += all + at / 64;
    return all;
}

static int count_pairs(struct search *s, uint32_t length)
{
    uint32_t was = s->cap_met, round = 3 * length;
    s->pairs[length] = s->pairs[length - 1];
    if (length % PAIRS_EACH)
        return 1;
    if (!mem_grow(&s->met, &s->cap_met, stacks_mark(&s->stacks), sizeof *s->met,
                  PITH_MEM_SCRATCH)) {
        s->stacks.failed = STACKS_NO_MEMORY;
        return 0;
    }
    memset(s->met + was, 0, (s->cap_met - was) * sizeof *s->met);
    for (int by = 0; by < N_KNOWN; by++) {
        uint64_t n = s->n_next[by] ? pairs_of(s, s->next[by][0].at, ++round) : 0;
        s->pairs[length] = n > s->pairs[length] ? n : s->pairs[length];
    }
    return s->steps < GROWTH_STEPS;
}

/* All that goes on by a byte. 0: it ends here. */
static int lengthen(struct search *s, uint32_t length)
{
    uint8_t byte[MOST_BYTES];
    int goes_on = 1;
    memset(s->n_next, 0, sizeof s->n_next);
    for (uint32_t i = 0; i < s->n && goes_on; i++) {
        uint32_t n;
        const struct stack_pair *p = stacks_pairs(&s->stacks, s->text[i].at, &n);
        if (!mem_grow(&s->pair, &s->cap_pairs, (uint64_t)n + 1, sizeof *s->pair,
                      PITH_MEM_SCRATCH)) {
            s->stacks.failed = STACKS_NO_MEMORY;
            return 0;
        }
        if (n)
            memcpy(s->pair, p, n * sizeof *p);
        uint32_t n_bytes = candidates(s, n, byte);
        for (uint32_t b = 0; b < n_bytes && goes_on; b++)
            goes_on = try_byte(s, &s->text[i], n, byte[b], length);
    }
    if (!goes_on)
        return 0;
    s->n = 0;
    for (int by = 0; by < N_KNOWN; by++)
        for (uint32_t i = 0, k; i < s->n_next[by]; i++) {
            for (k = 0; k < s->n && s->text[k].at != s->next[by][i].at; k++)
                ;
            s->text[k] = s->next[by][i];
            s->n += k == s->n;
        }
    return count_pairs(s, length) && s->n > 0;
}

/* Drops what no text needs. */
static int tidy(struct search *s)
{
    uint32_t *root[N_KNOWN * EACH];
    if (s->stacks.n_pairs < KEEP_PAIRS)
        return 1;
    for (uint32_t i = 0; i < s->n; i++)
        root[i] = &s->text[i].at;
    if (!stacks_keep(&s->stacks, root, s->n)) {
        s->stacks.failed = STACKS_NO_MEMORY;
        return 0;
    }
    s->n_depth = 0;
    s->steps += s->stacks.n_pairs;
    return s->steps < GROWTH_STEPS;
}

/* The most of some numbers by length, up to half of n and up to n. Returns what it would be at
 * GROWTH_TEXT: it is taken to grow with some power of the length, which is found between these two.
 */
static double grown(const uint64_t *by_length, uint32_t n, uint64_t most[2])
{
    uint32_t half = n / 2;
    most[0] = most[1] = 1;
    for (uint32_t i = 1; i <= n; i++) {
        most[0] = i <= half && by_length[i] > most[0] ? by_length[i] : most[0];
        most[1] = by_length[i] > most[1] ? by_length[i] : most[1];
    }
    if (n < LEAST_BYTES)
        return 0;
    double doublings = fmath_log((double)GROWTH_TEXT / n) / fmath_log((double)n / half);
    return (double)most[1] * fmath_pow((double)most[1] / (double)most[0], doublings);
}

/* Whether the costliest byte would pass the bound of a token, or the stacks theirs. Of few bytes
 * the last one says something only where it took more than any byte may, and far more than the
 * first. */
static int passes(const struct search *s, uint32_t n, struct growth *g)
{
    uint64_t pairs[2];
    double steps = grown(s->most, n, g->steps);
    g->n[0] = n / 2;
    g->n[1] = n;
    g->state = s->widest;
    if (n < LEAST_BYTES)
        return s->stacks.failed && g->steps[1] > MUCH_MORE * (s->most[1] > 1 ? s->most[1] : 1);
    if (steps > GROWTH_TOKEN)
        return 1;
    g->by_pairs = grown(s->pairs, n, pairs) > STACKS_MOST_PAIRS / 2; /* the others have been */
    if (g->by_pairs)
        memcpy(g->steps, pairs, sizeof pairs);
    return g->by_pairs;
}

/* The position where the grammar's own text begins. */
static void begin(struct search *s, struct slice trigger, int32_t token)
{
    const struct automaton *a = s->stacks.a;
    struct stacks *k = &s->stacks;
    struct stack_pair *p = s->pair;
    uint32_t n = 0;
    for (size_t i = 0; i <= trigger.n && !k->failed; i++) {
        stacks_begin(k);
        if (i)
            stacks_step(k, p, n, (uint8_t)trigger.p[i - 1]);
        else
            stacks_add(k, a->start, STACKS_BOTTOM);
        if (!mem_grow(&s->pair, &s->cap_pairs, (uint64_t)stacks_close(k) + 1, sizeof *s->pair,
                      PITH_MEM_SCRATCH))
            k->failed = STACKS_NO_MEMORY;
        p = s->pair;
        n = stacks_take(k, p);
    }
    stacks_begin(k);
    for (uint32_t i = 0; i < n && !k->failed; i++) {
        if (token < 0) {
            stacks_add(k, p[i].state, p[i].below);
            continue;
        }
        for (uint32_t t = a->token_at[p[i].state]; t < a->token_at[p[i].state + 1]; t++)
            if (a->token[t].kind == EDGE_TOKEN && a->token[t].value == (uint32_t)token)
                stacks_add(k, a->token[t].to, p[i].below);
    }
    s->text[0].at = stacks_intern(k);
}

int growth_search(const struct automaton *a, struct slice trigger, int32_t token, struct growth *g,
                  int *why)
{
    struct search s = {.n = 1};
    uint32_t length = 1;
    *g = (struct growth){0};
    for (int b = 255; b >= 0; b--)
        s.first[a->class_of[b]] = (uint8_t)b;
    int ok = stacks_init(&s.stacks, a) &&
             mem_grow(&s.pair, &s.cap_pairs, 1, sizeof *s.pair, PITH_MEM_SCRATCH);
    s.stacks.most = ONE_BYTE;
    if (ok)
        begin(&s, trigger, token);
    if (ok && !s.stacks.failed)
        while (length <= GROWTH_BYTES && lengthen(&s, length) && tidy(&s))
            length++;
    if (length > GROWTH_BYTES)
        length = GROWTH_BYTES;
    int failed = s.stacks.failed;
    g->grows = failed != STACKS_NO_MEMORY && failed != STACKS_CANCELLED && passes(&s, length, g);
    *why = !ok ? STACKS_NO_MEMORY : failed;
    stacks_deinit(&s.stacks);
    mem_free(s.pair);
    mem_free(s.depth);
    mem_free(s.met);
    return ok && failed != STACKS_NO_MEMORY && failed != STACKS_CANCELLED;
}
