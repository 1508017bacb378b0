/* automaton.c -- rules to tables.
 *
 *     rules ──callees first──> one deterministic automaton each (subsets of its states; calls are
 *         letters like bytes)
 *                              small ones are copied where they are called
 *           ──what the root still calls──> one table
 *
 * The work of making subsets is counted and bounded: an expression whose automaton is exponential
 * is refused, not computed.
 */
#include "text/grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"

enum {
    MOST_WORK = 1 << 27,    /* steps of all subset constructions */
    MOST_STATES = 1 << 19,  /* of one rule, its copies included */
    MOST_EDGES = 2000000,   /* likewise; their room doubles at 2^21 */
    MOST_ENTRIES = 1 << 24, /* of the table */
    INLINE_ACYCLIC = 64,  /* most states of a rule without loops that is copied into its callers */
    INLINE_LOOPS = 4,     /* of one with loops */
    INLINE_COPIES = 1 << 15, /* of all copies of one rule without loops */
    INLINE_ONCE = 4096,   /* of one that is called from one place */
};

/* One rule's automaton. State 0 is its start; edges in order of `from`. */
struct dfa {
    struct rules_edge *edge;
    uint8_t *final;
    uint32_t n_states, n_edges, cap_edges, cap_final;
    uint32_t base; /* where its states are in the table; 0: not in it */
    int inlined;
};

/* A call or a token that leads on from a set. */
struct letter {
    uint32_t value, to;
    uint8_t kind;
};

struct compiler {
    struct rules *r;
    struct analysis *a;
    struct dfa *dfa;     /* [n_rules] */
    uint64_t work, told; /* told: of it, to the thread's bounds */
    int stopped;
    struct pith_error *err;
    /* The rule at hand as a nondeterministic automaton: state 0 its start, 1 its end. */
    struct rules_edge *edge;
    uint32_t n_edges, cap_edges, n_states;
    uint32_t *local; /* [n_states of the rules] number here + 1 */
    uint32_t *at;    /* edges by `from` */
    uint32_t cap_at;
    /* Subsets */
    uint32_t *stamp, now, cap_stamp, cap_stack, cap_alone;
    uint32_t *stack, *set;
    uint32_t
        *alone; /* number + 1 of the set of one state and what EPS reaches from it; 0: not made */
    uint32_t n_set, cap_set;
    struct letter *letter;    /* of the set at hand */
    struct rules_edge *moves; /* its bytes */
    uint32_t cap_letter, cap_moves;
    struct map subsets;
    struct arena arena;
    struct slice *members; /* of each state of the automaton made */
    uint32_t cap_members;
    struct dfa *out;
};

static pith_status no_memory(struct compiler *c)
{
    return error_set(c->err, PITH_NOMEM, "out of memory for a grammar of %u rules", c->r->n_rules);
}

/* Whether there was too much work, or nobody waits for it any more. */
static int over(struct compiler *c)
{
    c->stopped |= !work_tick(c->work - c->told) || c->work > MOST_WORK;
    c->told = c->work;
    return c->stopped;
}

#define GROW(array, cap, need)                                                                     \
    mem_grow(&(array), &(cap), (uint64_t)(need), sizeof *(array), PITH_MEM_SCRATCH)

static pith_status too_large(struct compiler *c, uint32_t rule)
{
    struct slice name = c->r->rule[rule].name;
    return error_set(c->err, PITH_RANGE,
                     "grammar: rule \"%.*s\" is too large or too ambiguous to compile; wanted "
                     "fewer repetitions or alternatives "
                     "that differ earlier",
                     (int)(name.n < 64 ? name.n : 64), name.p);
}

/* ---------------------------------------------------------------- the rule with copies of small
 * ones */

static int put(struct compiler *c, struct rules_edge e)
{
    if (!GROW(c->edge, c->cap_edges, (uint64_t)c->n_edges + 1))
        return 0;
    c->edge[c->n_edges++] = e;
    return 1;
}

static uint32_t local_state(struct compiler *c, uint32_t state, uint32_t *todo, uint32_t *n_todo)
{
    if (!c->local[state]) {
        c->local[state] = ++c->n_states;
        todo[(*n_todo)++] = state;
    }
    return c->local[state] - 1;
}

/* A copy of a rule's automaton between two states. */
static int put_copy(struct compiler *c, const struct dfa *d, uint32_t from, uint32_t to)
{
    uint32_t base = c->n_states;
    c->n_states += d->n_states;
    int ok = put(c, (struct rules_edge){from, base, 0, EDGE_EPS, 0, 0});
    for (uint32_t i = 0; i < d->n_edges && ok; i++) {
        struct rules_edge e = d->edge[i];
        e.from += base;
        e.to += base;
        ok = put(c, e);
    }
    for (uint32_t i = 0; i < d->n_states && ok; i++)
        ok = !d->final[i] || put(c, (struct rules_edge){base + i, to, 0, EDGE_EPS, 0, 0});
    return ok;
}

/* todo: room for all states of the rules. */
static pith_status gather(struct compiler *c, uint32_t rule, uint32_t *todo)
{
    const struct rules *r = c->r;
    uint32_t n_todo = 0;
    c->n_edges = c->n_states = 0;
    local_state(c, r->rule[rule].start, todo, &n_todo);
    local_state(c, r->rule[rule].end, todo, &n_todo);
    while (n_todo) {
        uint32_t state = todo[--n_todo], from = c->local[state] - 1;
        for (uint32_t k = c->a->out_at[state]; k < c->a->out_at[state + 1]; k++) {
            struct rules_edge e = r->edge[c->a->out[k]];
            if (!c->a->live[e.to] || (e.kind == EDGE_CALL && !c->a->live[r->rule[e.value].start]))
                continue;
            e.from = from;
            e.to = local_state(c, e.to, todo, &n_todo);
            int copied = e.kind == EDGE_CALL && c->dfa[e.value].inlined;
            if (copied ? !put_copy(c, &c->dfa[e.value], e.from, e.to) : !put(c, e))
                return no_memory(c);
            c->work++;
            if (c->n_states > MOST_STATES || (c->work - c->told > WORK_LOOK && over(c)))
                return too_large(c, rule);
        }
    }
    return PITH_OK;
}

/* c->at[s] .. c->at[s + 1]: the places of the edges of s in an order by where they begin. */
static int index_states(struct compiler *c, const struct rules_edge *edge, uint32_t n_edges,
                        uint32_t n_states)
{
    if (!GROW(c->at, c->cap_at, (uint64_t)n_states + 2))
        return 0;
    memset(c->at, 0, ((size_t)n_states + 2) * sizeof *c->at);
    for (uint32_t i = 0; i < n_edges; i++)
        c->at[edge[i].from + 1]++;
    for (uint32_t s = 0; s < n_states; s++)
        c->at[s + 1] += c->at[s];
    return 1;
}

/* Orders the edges by where they begin. */
static pith_status index_edges(struct compiler *c)
{
    struct rules_edge *sorted = mem_array(c->n_edges, sizeof *sorted, PITH_MEM_SCRATCH);
    if (!sorted || !index_states(c, c->edge, c->n_edges, c->n_states)) {
        mem_free(sorted);
        return no_memory(c);
    }
    for (uint32_t i = c->n_edges;
         i-- > 0;) /* from the back: at[s + 1] comes down to the beginning of s */
        sorted[--c->at[c->edge[i].from + 1]] = c->edge[i];
    memmove(c->at, c->at + 1, c->n_states * sizeof *c->at);
    c->at[c->n_states] = c->n_edges;
    mem_free(c->edge);
    c->edge = sorted;
    c->cap_edges = c->n_edges;
    return PITH_OK;
}

/* ---------------------------------------------------------------- subsets */

static void begin_set(struct compiler *c)
{
    c->now++;
    c->n_set = 0;
}

/* Adds a state and what EPS reaches from it; those that only pass on are left out. */
static void add(struct compiler *c, uint32_t state)
{
    uint32_t n = 0;
    if (c->stamp[state] == c->now)
        return;
    c->stamp[state] = c->now;
    c->stack[n++] = state;
    while (n) {
        uint32_t s = c->stack[--n];
        int keep = s == 1; /* the end */
        for (uint32_t k = c->at[s]; k < c->at[s + 1]; k++) {
            const struct rules_edge *e = &c->edge[k];
            c->work++;
            if (e->kind != EDGE_EPS) {
                keep = 1;
            } else if (c->stamp[e->to] != c->now) {
                c->stamp[e->to] = c->now;
                c->stack[n++] = e->to;
            }
        }
        if (keep)
            c->set[c->n_set++] = s;
        if (c->work - c->told > WORK_LOOK && over(c))
            return;
    }
}

void set_sort(uint32_t *v, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (uint32_t i = gap; i < n; i++) {
            uint32_t x = v[i], k = i;
            for (; k >= gap && v[k - gap] > x; k -= gap)
                v[k] = v[k - gap];
            v[k] = x;
        }
    }
}

/* The number of the gathered set among the states made; UINT32_MAX: no memory. */
static uint32_t intern(struct compiler *c)
{
    struct dfa *d = c->out;
    uint32_t id = UINT32_MAX;
    set_sort(c->set, c->n_set);
    c->work += 4 * (uint64_t)c->n_set;
    struct slice key = {(const char *)c->set, c->n_set * sizeof *c->set};
    if (map_get(&c->subsets, key, &id))
        return id;
    uint32_t *kept = arena_array(&c->arena, (size_t)c->n_set + 1, sizeof *kept);
    if (!kept || !GROW(c->members, c->cap_members, (uint64_t)d->n_states + 1) ||
        !GROW(d->final, d->cap_final, (uint64_t)d->n_states + 1))
        return UINT32_MAX;
    memcpy(kept, c->set, key.n);
    key.p = (const char *)kept;
    if (map_put(&c->subsets, key, d->n_states) != 1)
        return UINT32_MAX;
    c->members[d->n_states] = key;
    d->final[d->n_states] = 0;
    for (uint32_t i = 0; i < c->n_set; i++)
        d->final[d->n_states] |= kept[i] == 1;
    return d->n_states++;
}

/* The state behind an edge to `to`, together with the gathered set when there are others. Alone,
 * which is nearly always, it is kept. */
static uint32_t behind_one(struct compiler *c, uint32_t to, int others)
{
    if (!others && c->alone[to])
        return c->alone[to] - 1;
    add(c, to);
    uint32_t id = intern(c);
    if (!others && id != UINT32_MAX)
        c->alone[to] = id + 1;
    return id;
}

static int emit(struct compiler *c, struct rules_edge e)
{
    struct dfa *d = c->out;
    if (e.to == UINT32_MAX)
        return 0;
    struct rules_edge *last = d->n_edges ? &d->edge[d->n_edges - 1] : NULL;
    if (last && e.kind == EDGE_BYTES && last->kind == EDGE_BYTES && last->from == e.from &&
        last->to == e.to && last->hi + 1 == e.lo) {
        last->hi = e.hi;
        return 1;
    }
    if (!GROW(d->edge, d->cap_edges, (uint64_t)d->n_edges + 1))
        return 0;
    d->edge[d->n_edges++] = e;
    return 1;
}

#define EACH_EDGE(c, members, e)                                                                   \
    for (uint32_t i_ = 0; i_ < (members).n / sizeof(uint32_t); i_++)                               \
        for (const struct rules_edge *                                                             \
                 e = (c)->edge + (c)->at[((const uint32_t *)(const void *)(members).p)[i_]],       \
                *end_ =                                                                            \
                    (c)->edge + (c)->at[((const uint32_t *)(const void *)(members).p)[i_] + 1];    \
             e < end_; e++)

/* The edges by bytes of a subset into c->moves: how many; UINT32_MAX: no memory. *apart: no byte is
 * taken by two of them, and they are in the order of their bytes, which is so for nearly all
 * subsets of one state. */
static uint32_t gather_bytes(struct compiler *c, struct slice members, int *apart)
{
    uint32_t n = 0, at_lo[256] = {0}; /* place + 1 of the edge that begins there */
    *apart = 1;
    EACH_EDGE(c, members, e)
    {
        if (e->kind != EDGE_BYTES)
            continue;
        if (!GROW(c->moves, c->cap_moves, (uint64_t)n + 1))
            return UINT32_MAX;
        c->moves[n++] = *e;
        *apart &= !at_lo[e->lo];
        at_lo[e->lo] = n;
    }
    c->work += n;
    if (n < 2 || !*apart)
        return n;
    struct rules_edge sorted[256];
    uint32_t k = 0;
    for (int lo = 0; lo < 256; lo++) {
        if (!at_lo[lo])
            continue;
        sorted[k] = c->moves[at_lo[lo] - 1];
        *apart &= !k || sorted[k - 1].hi < lo;
        k++;
    }
    memcpy(c->moves, sorted, n * sizeof *sorted);
    return n;
}

/* The bytes of a subset, cut where the set of edges that take them changes. */
static int expand_bytes(struct compiler *c, uint32_t from, struct slice members)
{
    int apart;
    uint32_t n_moves = gather_bytes(c, members, &apart);
    if (n_moves == UINT32_MAX)
        return 0;
    for (uint32_t i = 0; apart && i < n_moves; i++) {
        const struct rules_edge *e = &c->moves[i];
        begin_set(c);
        if (!emit(c,
                  (struct rules_edge){from, behind_one(c, e->to, 0), 0, EDGE_BYTES, e->lo, e->hi}))
            return 0;
    }
    if (apart)
        return 1;
    uint8_t cut[257] = {0};
    for (uint32_t i = 0; i < n_moves; i++)
        cut[c->moves[i].lo] = cut[c->moves[i].hi + 1] = 1;
    for (int lo = 0, hi; lo < 256; lo = hi + 1) {
        for (hi = lo; hi < 255 && !cut[hi + 1]; hi++)
            ;
        uint32_t n = 0, one = 0;
        begin_set(c);
        c->work += n_moves;
        for (uint32_t i = 0; i < n_moves; i++) {
            const struct rules_edge *e = &c->moves[i];
            if (e->lo > lo || lo > e->hi)
                continue;
            if (n++)
                add(c, e->to);
            else
                one = e->to;
        }
        if (n == 0)
            continue;
        if (!emit(c, (struct rules_edge){from, behind_one(c, one, n > 1), 0, EDGE_BYTES,
                                         (uint8_t)lo, (uint8_t)hi}))
            return 0;
        if (over(c))
            return 1;
    }
    return 1;
}

static int by_letter(const void *a, const void *b)
{
    const struct letter *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Calls and tokens of a subset: those of one kind and value go on together. */
static int expand_letters(struct compiler *c, uint32_t from, struct slice members)
{
    uint32_t n = 0;
    EACH_EDGE(c, members, e)
    {
        if (e->kind == EDGE_BYTES || e->kind == EDGE_EPS)
            continue;
        if (!GROW(c->letter, c->cap_letter, (uint64_t)n + 1))
            return 0;
        c->letter[n++] = (struct letter){e->value, e->to, e->kind};
    }
    if (n > 1)
        qsort(c->letter, n, sizeof *c->letter, by_letter);
    c->work += n;
    for (uint32_t i = 0, k; i < n && !over(c); i = k) {
        const struct letter *l = &c->letter[i];
        begin_set(c);
        for (k = i; k < n && by_letter(l, &c->letter[k]) == 0; k++)
            add(c, c->letter[k].to);
        struct rules_edge e = {from, intern(c), l->value, l->kind, 0, 0};
        if (!emit(c, e))
            return 0;
    }
    return 1;
}

static pith_status determinise(struct compiler *c, uint32_t rule)
{
    c->out = &c->dfa[rule];
    map_init(&c->subsets, PITH_MEM_SCRATCH);
    arena_init(&c->arena, PITH_MEM_SCRATCH);
    pith_status st = PITH_OK;
    int ok = GROW(c->stamp, c->cap_stamp, c->n_states) &&
             GROW(c->stack, c->cap_stack, c->n_states) && GROW(c->set, c->cap_set, c->n_states) &&
             GROW(c->alone, c->cap_alone, c->n_states);
    if (ok) {
        memset(c->alone, 0, c->n_states * sizeof *c->alone);
        memset(c->stamp, 0, c->n_states * sizeof *c->stamp);
        c->now = 0;
        begin_set(c);
        add(c, 0);
        ok = intern(c) == 0;
    }
    for (uint32_t s = 0; ok && st == PITH_OK && s < c->out->n_states; s++) {
        struct slice members = c->members[s];
        ok = expand_bytes(c, s, members) && expand_letters(c, s, members);
        if (over(c) || c->out->n_states > MOST_STATES || c->out->n_edges > MOST_EDGES)
            st = too_large(c, rule);
    }
    map_deinit(&c->subsets);
    arena_deinit(&c->arena);
    return ok ? st : no_memory(c);
}

/* Whether a small automaton has a loop: states that no edge enters are taken away until none is
 * left. */
static int has_loop(const struct dfa *d)
{
    uint8_t gone[INLINE_ACYCLIC] = {0};
    for (uint32_t round = 0; round < d->n_states; round++) {
        uint8_t entered[INLINE_ACYCLIC] = {0};
        uint32_t took = 0;
        for (uint32_t i = 0; i < d->n_edges; i++) {
            if (!gone[d->edge[i].from])
                entered[d->edge[i].to] = 1;
        }
        for (uint32_t s = 0; s < d->n_states; s++) {
            took += !entered[s] && !gone[s];
            gone[s] |= !entered[s];
        }
        if (!took)
            break;
    }
    for (uint32_t s = 0; s < d->n_states; s++) {
        if (!gone[s])
            return 1;
    }
    return 0;
}

static int wants_inlining(const struct compiler *c, uint32_t rule, uint32_t root)
{
    const struct dfa *d = &c->dfa[rule];
    if (c->a->recursive[rule] || rule == root)
        return 0;
    return d->n_states <= INLINE_LOOPS || (c->a->uses[rule] == 1 && d->n_states <= INLINE_ONCE) ||
           (d->n_states <= INLINE_ACYCLIC &&
            (uint64_t)d->n_states * c->a->uses[rule] <= INLINE_COPIES && !has_loop(d));
}

/* ---------------------------------------------------------------- the table */

/* Gives the root and all that is still called their place; list: room for all rules. */
static uint32_t place(struct compiler *c, uint32_t root, uint32_t *list, uint64_t *n_states)
{
    uint32_t n = 0;
    *n_states = STATE_FIRST;
    list[n++] = root;
    c->dfa[root].base = STATE_FIRST;
    for (uint32_t i = 0; i < n; i++) {
        const struct dfa *d = &c->dfa[list[i]];
        const struct rules_set *set = c->r->rule[list[i]].set;
        c->dfa[list[i]].base = (uint32_t)*n_states;
        *n_states += d->n_states;
        for (uint32_t k = 0; set && k < set->n + 3; k++) {
            uint32_t rule = k < set->n        ? set->v[k].rule
                            : k == set->n     ? set->comma
                            : k == set->n + 1 ? set->close
                                              : set->extra;
            if (rule == RULES_NONE || !c->a->live[c->r->rule[rule].start] || c->dfa[rule].base)
                continue;
            c->dfa[rule].base = STATE_FIRST;
            list[n++] = rule;
        }
        for (uint32_t k = 0; k < d->n_edges; k++) {
            struct dfa *callee = d->edge[k].kind == EDGE_CALL ? &c->dfa[d->edge[k].value] : NULL;
            if (callee && !callee->base) {
                callee->base = STATE_FIRST; /* seen */
                list[n++] = d->edge[k].value;
            }
        }
    }
    for (uint32_t i = 0, n_sets = 0; i < n; i++) /* behind all states */
        if (c->r->rule[list[i]].set)
            c->dfa[list[i]].base = (uint32_t)*n_states + n_sets++;
    return n;
}

/* Sets in the order of `place`, without what can never be read. */
static pith_status make_sets(const struct compiler *c, struct automaton *a, const uint32_t *list,
                             uint32_t n)
{
    uint64_t n_members = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct rules_set *set = c->r->rule[list[i]].set;
        n_members += set ? set->n : 0;
        a->n_sets += set != NULL;
    }
    a->set = mem_array(a->n_sets, sizeof *a->set, PITH_MEM_SCRATCH);
    a->member = mem_array((size_t)n_members, sizeof *a->member, PITH_MEM_SCRATCH);
    uint32_t n_sets = 0, at = 0;
    for (uint32_t i = 0; a->set && a->member && i < n; i++) {
        const struct rules_set *set = c->r->rule[list[i]].set;
        if (!set)
            continue;
        struct automaton_set *to = &a->set[n_sets++];
        *to = (struct automaton_set){.member = at,
                                     .comma = c->dfa[set->comma].base,
                                     .close = c->dfa[set->close].base,
                                     .min = set->min,
                                     .max = set->max,
                                     .differ = set->differ};
        a->n_differ += set->differ != 0;
        if (set->extra != RULES_NONE && c->a->live[c->r->rule[set->extra].start])
            to->extra = c->dfa[set->extra].base;
        for (uint32_t k = 0; k < set->n; k++) {
            if (c->a->live[c->r->rule[set->v[k].rule].start])
                a->member[at++] =
                    (struct automaton_member){c->dfa[set->v[k].rule].base, set->v[k].must};
        }
        to->n = at - to->member;
    }
    return a->set && a->member ? PITH_OK : PITH_NOMEM;
}

/* Whether a set whose items differ has items that call: their text is remembered byte by byte. */
static int calls_inside(const struct compiler *c, uint32_t rule)
{
    const struct rules_set *set = c->r->rule[rule].set;
    const struct dfa *d = set && set->differ ? &c->dfa[set->v[0].rule] : NULL;
    for (uint32_t i = 0; d && i < d->n_edges; i++)
        if (d->edge[i].kind != EDGE_BYTES)
            return 1;
    return 0;
}

/* Ranges of bytes that a state reads. at: edges by `from`. */
static uint32_t n_ranges(const struct dfa *d, const uint32_t *at, uint32_t s)
{
    uint32_t n = 0;
    for (uint32_t i = at[s]; i < at[s + 1]; i++)
        n += d->edge[i].kind == EDGE_BYTES;
    return n;
}

/* Bytes that no state with several ranges tells apart are one class. */
static pith_status make_classes(struct compiler *c, struct automaton *a, const uint32_t *list,
                                uint32_t n)
{
    uint8_t cut[257] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct dfa *d = &c->dfa[list[i]];
        if (!index_states(c, d->edge, d->n_edges, d->n_states))
            return no_memory(c);
        for (uint32_t s = 0; s < d->n_states; s++) {
            int several = n_ranges(d, c->at, s) > 1;
            a->n_lines += (uint32_t)several;
            for (uint32_t k = c->at[s]; several && k < c->at[s + 1]; k++) {
                if (d->edge[k].kind == EDGE_BYTES)
                    cut[d->edge[k].lo] = cut[d->edge[k].hi + 1] = 1;
            }
        }
    }
    uint8_t class = 0;
    for (int b = 0; b < 256; b++) {
        class = (uint8_t)(class + (b && cut[b]));
        a->class_of[b] = class;
    }
    a->n_classes = (uint32_t) class + 1;
    return PITH_OK;
}

/* at: edges by `from`. */
static void fill_state(const struct compiler *c, struct automaton *a, const struct dfa *d,
                       const uint32_t *at, uint32_t s)
{
    uint32_t state = d->base + s;
    int several = n_ranges(d, at, s) > 1;
    uint32_t *next = several ? a->next + (size_t)a->n_lines * a->n_classes : NULL;
    struct automaton_row *row = &a->row[state];
    *row =
        (struct automaton_row){.flags = d->final[s] ? STATE_FINAL : 0, .several = (uint8_t)several};
    if (several)
        row->to = a->n_lines++;
    for (uint32_t i = at[s]; i < at[s + 1]; i++) {
        const struct rules_edge *e = &d->edge[i];
        if (e->kind == EDGE_BYTES) {
            for (uint32_t k = a->class_of[e->lo]; several && k <= a->class_of[e->hi]; k++)
                next[k] = d->base + e->to;
            if (!several) {
                row->to = d->base + e->to;
                row->lo = e->lo;
                row->width = (uint8_t)(e->hi - e->lo);
            }
            row->flags |= STATE_MOVES;
        } else if (e->kind == EDGE_CALL) {
            /* A state that can only end needs no place on the stack. */
            int leaves = d->final[e->to] && at[e->to] == at[e->to + 1];
            a->call[a->call_at[state + 1]++] =
                (struct automaton_call){c->dfa[e->value].base, leaves ? 0 : d->base + e->to};
            row->flags |= STATE_CALLS;
        } else {
            a->token[a->token_at[state + 1]++] =
                (struct automaton_token){e->kind, e->value, d->base + e->to};
            row->flags |= STATE_MOVES | STATE_TOKENS;
        }
    }
    if (state + 2 <= a->n_states) {
        a->call_at[state + 2] = a->call_at[state + 1];
        a->token_at[state + 2] = a->token_at[state + 1];
    }
}

static int by_base(const void *a, const void *b)
{
    const struct automaton_name *x = a, *y = b;
    return x->base < y->base ? -1 : x->base > y->base;
}

static int name_rules(const struct compiler *c, struct automaton *a, const uint32_t *list,
                      uint32_t n)
{
    uint32_t n_names = 0;
    for (uint32_t i = 0; i < n; i++)
        n_names += c->a->recursive[list[i]];
    a->name = mem_array(n_names, sizeof *a->name, PITH_MEM_SCRATCH);
    for (uint32_t i = 0; a->name && i < n; i++) {
        if (!c->a->recursive[list[i]])
            continue;
        struct automaton_name *name = &a->name[a->n_names++];
        struct slice text = c->r->rule[list[i]].name;
        name->base = c->dfa[list[i]].base;
        memcpy(name->text, text.p,
               utf8_complete(text.p, text.n < sizeof name->text ? text.n : sizeof name->text - 1));
    }
    if (a->n_names > 1)
        qsort(a->name, a->n_names, sizeof *a->name, by_base);
    return a->name != NULL;
}

const char *automaton_rule(const struct automaton *a, uint32_t state)
{
    uint32_t lo = 0, hi = a->n_names;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (a->name[mid].base <= state)
            lo = mid + 1;
        else
            hi = mid;
    }
    return a->n_names ? a->name[lo ? lo - 1 : 0].text : NULL;
}

static pith_status make_table(struct compiler *c, struct automaton *a, uint32_t root,
                              uint32_t *list)
{
    uint64_t n_states, n_calls = 0, n_tokens = 0;
    uint32_t n = place(c, root, list, &n_states);
    if (make_classes(c, a, list, n) != PITH_OK)
        return no_memory(c);
    if ((uint64_t)a->n_lines * a->n_classes > MOST_ENTRIES)
        return too_large(c, root);
    if (make_sets(c, a, list, n) != PITH_OK)
        return no_memory(c);
    for (uint32_t i = 0; i < n; i++)
        if (calls_inside(c, list[i]))
            return error_set(c->err, PITH_UNSUPPORTED,
                             "schema: uniqueItems cannot be kept: an item is too long a text; "
                             "wanted a smaller maxLength, or none");
    for (uint32_t i = 0; i < n; i++) {
        const struct dfa *d = &c->dfa[list[i]];
        for (uint32_t k = 0; k < d->n_edges; k++) {
            n_calls += d->edge[k].kind == EDGE_CALL;
            n_tokens += d->edge[k].kind != EDGE_CALL && d->edge[k].kind != EDGE_BYTES;
        }
    }
    a->n_states = (uint32_t)n_states;
    a->start = c->dfa[root].base;
    a->row = mem_array((size_t)n_states, sizeof *a->row, PITH_MEM_SCRATCH);
    a->next = mem_array((size_t)a->n_lines * a->n_classes, sizeof *a->next, PITH_MEM_SCRATCH);
    a->n_lines = 0; /* up again as they are filled */
    a->call_at = mem_array((size_t)n_states + 1, sizeof *a->call_at, PITH_MEM_SCRATCH);
    a->token_at = mem_array((size_t)n_states + 1, sizeof *a->token_at, PITH_MEM_SCRATCH);
    a->call = mem_array((size_t)n_calls, sizeof *a->call, PITH_MEM_SCRATCH);
    a->token = mem_array((size_t)n_tokens, sizeof *a->token, PITH_MEM_SCRATCH);
    if (!name_rules(c, a, list, n) || !a->row || !a->next || !a->call_at || !a->token_at ||
        !a->call || !a->token)
        return no_memory(c);
    for (uint32_t i = 0; i < n; i++) {
        const struct dfa *d = &c->dfa[list[i]];
        if (!index_states(c, d->edge, d->n_edges, d->n_states))
            return no_memory(c);
        for (uint32_t s = 0; s < d->n_states; s++) {
            c->work += 2 + a->n_classes / 8;
            if (c->work - c->told > WORK_LOOK && over(c))
                return too_large(c, list[i]);
            fill_state(c, a, d, c->at, s);
        }
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- all of it */

pith_status automaton_init(struct automaton *a, struct rules *r, uint32_t root,
                           struct pith_error *err)
{
    struct analysis what;
    struct compiler c = {.r = r, .a = &what, .err = err};
    *a = (struct automaton){.n_apart = r->n_apart};
    memcpy(a->apart, r->apart, sizeof a->apart);
    pith_status st = analysis_init(&what, r, root, err);
    if (st == PITH_OK && regular_rules(r, &what)) {
        analysis_deinit(&what);
        st = rules_ok(r) ? analysis_init(&what, r, root, err) : PITH_OK;
    }
    if (st == PITH_OK && !rules_ok(r)) {
        analysis_deinit(&what);
        st = error_set(err, r->err.code, "%s", r->err.msg);
    }
    if (st != PITH_OK)
        return st;
    uint32_t *todo =
        mem_array((size_t)r->n_states + r->n_rules + 1, sizeof *todo, PITH_MEM_SCRATCH);
    c.dfa = mem_array(r->n_rules, sizeof *c.dfa, PITH_MEM_SCRATCH);
    c.local = mem_array(r->n_states, sizeof *c.local, PITH_MEM_SCRATCH);
    if (!todo || !c.dfa || !c.local)
        TRY(no_memory(&c));
    for (uint32_t i = 0; i < what.n_order; i++) {
        uint32_t rule = what.order[i];
        if (r->rule[rule].set)
            continue;
        TRY(gather(&c, rule, todo));
        TRY(index_edges(&c));
        TRY(determinise(&c, rule));
        c.dfa[rule].inlined = wants_inlining(&c, rule, root);
    }
    TRY(make_table(&c, a, root, todo));
fail:
    for (uint32_t i = 0; c.dfa && i < r->n_rules; i++) {
        mem_free(c.dfa[i].edge);
        mem_free(c.dfa[i].final);
    }
    mem_free(todo);
    mem_free(c.dfa);
    mem_free(c.local);
    mem_free(c.edge);
    mem_free(c.at);
    mem_free(c.stamp);
    mem_free(c.stack);
    mem_free(c.set);
    mem_free(c.letter);
    mem_free(c.moves);
    mem_free(c.alone);
    mem_free(c.members);
    analysis_deinit(&what);
    if (st != PITH_OK)
        automaton_deinit(a);
    return st;
}

uint64_t automaton_bytes(const struct automaton *a)
{
    uint64_t n_states = (uint64_t)a->n_states + 1;
    return n_states * (sizeof *a->row + sizeof *a->call_at + sizeof *a->token_at) +
           (uint64_t)a->n_lines * a->n_classes * sizeof *a->next + a->n_names * sizeof *a->name +
           a->n_sets * (sizeof *a->set + RULES_SET * sizeof *a->member) +
           (a->n_states ? a->call_at[a->n_states] * sizeof *a->call +
                              a->token_at[a->n_states] * sizeof *a->token
                        : 0);
}

void automaton_deinit(struct automaton *a)
{
    mem_free(a->row);
    mem_free(a->name);
    mem_free(a->set);
    mem_free(a->member);
    mem_free(a->next);
    mem_free(a->call_at);
    mem_free(a->token_at);
    mem_free(a->call);
    mem_free(a->token);
    *a = (struct automaton){0};
}
