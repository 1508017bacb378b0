/* stacks.c -- see stacks.h. A set only refers to sets made before it, so numbers ascend from the
 * bottom of the stacks to their tops: dropping what is not needed is one pass down to mark and one
 * up to move. */
#include "text/grammar/stacks.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/work.h"

struct stack_set {
    uint32_t at, n;
    uint32_t hash;
};

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

/* ---------------------------------------------------------------- states of sets */

static uint8_t flags_of(const struct stacks *s, uint32_t state)
{
    return state < s->a->n_states ? automaton_flags(s->a, state) : STATE_CALLS;
}

/* The arrays by states for so many. */
static int room_for_states(struct stacks *s, uint64_t n)
{
    uint32_t was = s->cap_states, cap[4] = {was, was, was, was};
    if (n <= was)
        return 1;
    if (!mem_grow(&s->below, &cap[0], n, sizeof *s->below, PITH_MEM_SCRATCH) ||
        !mem_grow(&s->stamp, &cap[1], n, sizeof *s->stamp, PITH_MEM_SCRATCH) ||
        !mem_grow(&s->member, &cap[2], n, sizeof *s->member, PITH_MEM_SCRATCH) ||
        !mem_grow(&s->waits, &cap[3], n, sizeof *s->waits, PITH_MEM_SCRATCH))
        return 0;
    for (int i = 0; i < 4; i++)
        s->cap_states = i == 0 || cap[i] < s->cap_states ? cap[i] : s->cap_states;
    memset(s->stamp + was, 0, (s->cap_states - was) * sizeof *s->stamp);
    memset(s->waits + was, 0, (s->cap_states - was) * sizeof *s->waits);
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

int stacks_init(struct stacks *s, const struct automaton *a)
{
    static const struct stack_pair bottom = {STATE_END, 0}, open = {STATE_OPEN, 0};
    *s = (struct stacks){.a = a, .most = STACKS_MOST_WORK};
    if (!room_for_states(s, (uint64_t)a->n_states + a->n_sets) || !index_states(s, 64) ||
        !grow_table(s, 1024))
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
    mem_free(s->below);
    mem_free(s->stamp);
    mem_free(s->member);
    mem_free(s->waits);
    mem_free(s->todo);
    mem_free(s->merge);
}

/* ---------------------------------------------------------------- making a position */

void stacks_begin(struct stacks *s)
{
    if (++s->now == 0) {
        memset(s->stamp, 0, s->cap_states * sizeof *s->stamp);
        s->now = 1;
    }
    while (s->n_todo)
        s->waits[s->todo[--s->n_todo]] = 0;
    s->n_members = 0;
}

static int less(struct stack_pair a, struct stack_pair b)
{
    return a.state < b.state || (a.state == b.state && a.below < b.below);
}

static uint32_t unite(struct stacks *s, uint32_t a, uint32_t b)
{
    uint32_t n_a = s->set[a].n, n_b = s->set[b].n, i = 0, k = 0, n = 0;
    if (a == b || !stacks_spend(s, (uint64_t)n_a + n_b))
        return a;
    if (!mem_grow(&s->merge, &s->cap_merge, (uint64_t)n_a + n_b, sizeof *s->merge,
                  PITH_MEM_SCRATCH)) {
        s->failed = STACKS_NO_MEMORY;
        return a;
    }
    const struct stack_pair *p = s->pair + s->set[a].at, *q = s->pair + s->set[b].at;
    while (i < n_a || k < n_b) {
        if (k == n_b || (i < n_a && less(p[i], q[k]))) {
            s->merge[n++] = p[i++];
        } else {
            i += i < n_a && !less(q[k], p[i]);
            s->merge[n++] = q[k++];
        }
    }
    return intern(s, s->merge, n);
}

void stacks_add(struct stacks *s, uint32_t state, uint32_t below)
{
    if (s->failed)
        return;
    if (s->stamp[state] == s->now) {
        uint32_t both = unite(s, s->below[state], below);
        if (both == s->below[state])
            return;
        below = both;
    } else {
        s->stamp[state] = s->now;
        s->member[s->n_members++] = state;
    }
    s->below[state] = below;
    if (!(flags_of(s, state) & (STATE_FINAL | STATE_CALLS)) || s->waits[state])
        return;
    if (!mem_grow(&s->todo, &s->cap_todo, (uint64_t)s->n_todo + 1, sizeof *s->todo,
                  PITH_MEM_SCRATCH))
        s->failed = STACKS_NO_MEMORY;
    if (s->failed)
        return;
    s->todo[s->n_todo++] = state;
    s->waits[state] = 1;
}

static void add_call(struct stacks *s, uint32_t start, uint32_t back, uint32_t below)
{
    struct stack_pair pair = {back, below};
    if (!s->failed)
        stacks_add(s, start, intern(s, &pair, 1));
}

/* What may come at a state of a set. */
static void add_set(struct stacks *s, uint32_t state, uint32_t below)
{
    struct stack_state x = s->state[state - s->a->n_states];
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

uint32_t stacks_close(struct stacks *s)
{
    const struct automaton *a = s->a;
    while (s->n_todo && !s->failed) {
        uint32_t state = s->todo[--s->n_todo], below = s->below[state];
        s->waits[state] = 0;
        if (state >= a->n_states) {
            add_set(s, state, below);
            continue;
        }
        if (!stacks_spend(s,
                          s->set[below].n + (uint64_t)(a->call_at[state + 1] - a->call_at[state])))
            break;
        for (uint32_t i = 0; (flags_of(s, state) & STATE_FINAL) && i < s->set[below].n; i++) {
            struct stack_pair p = s->pair[s->set[below].at + i];
            stacks_add(s, p.state, p.below);
        }
        for (uint32_t i = a->call_at[state]; i < a->call_at[state + 1]; i++) {
            struct stack_pair back = {a->call[i].back, below};
            stacks_add(s, a->call[i].start, back.state ? intern(s, &back, 1) : below);
        }
    }
    return s->failed ? 0 : s->n_members;
}

/* Whether a state of a closed position matters to what comes: it reads something, or says that the
 * rule or the text may end. */
static int matters(const struct stacks *s, uint32_t state)
{
    return state < STATE_FIRST || (flags_of(s, state) & STATE_MOVES);
}

uint32_t stacks_take(struct stacks *s, struct stack_pair *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_members && !s->failed; i++) {
        if (matters(s, s->member[i]))
            out[n++] = (struct stack_pair){s->member[i], s->below[s->member[i]]};
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

void stacks_step(struct stacks *s, const struct stack_pair *p, uint32_t n, uint8_t byte)
{
    const struct automaton *a = s->a;
    stacks_spend(s, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = automaton_next(a, p[i].state, byte);
        if (to)
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
    for (uint32_t i = 0; i < s->n_more; i++) {
        if (i >= s->a->n_sets && !moved[i])
            continue;
        moved[i] = i < s->a->n_sets ? i : n++;
        s->state[moved[i]] = s->state[i];
    }
    s->n_more = n;
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
