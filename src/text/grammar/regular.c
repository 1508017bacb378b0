/* regular.c -- rules that call themselves though they need no stack become loops.
 *
 *     s ::= c s s | c s | c           below:  s ::= c s | c      above:  c, and behind it any
 *         return at all
 *
 * Of a rule in a circle of rules that call each other two automata are made from the states of the
 * whole circle. The lower one keeps those calls behind which nothing of the caller is left: its
 * texts are texts of the rule. The upper one forgets who called, so that the end of a rule leads
 * behind every call of it: it has all texts of the rule. Where both have the same texts, which
 * walking through both at once shows, the rule is the lower one: it is read without a stack, in one
 * way. Otherwise it stays what it is. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/work.h"
#include "text/grammar/automaton.h"

enum {
    MOST_STATES = 1 << 12, /* of a circle's rules */
    MOST_PAIRS = 1 << 12,  /* of sets that are compared */
    MOST_STEPS = 1 << 18,  /* of comparing one rule */
    MOST_COPIES = 1 << 15, /* states of the rules of a circle that are replaced: each has its own */
};

struct circle {
    struct rules *r;
    const struct analysis *a;
    const uint32_t
        *start; /* [n_rules of all] as the analysis knows them: circles before have moved some */
    uint32_t *number; /* [n_states of the rules] place in `state` + 1, 0: not in this circle */
    uint32_t *state;  /* its states */
    uint8_t *lives,
        *ends; /* [n] in the lower one: can reach the end; is an end, or reaches one by nothing */
    uint8_t *is_end;      /* [n] the end of a rule */
    const uint32_t *rule; /* its rules */
    uint8_t *member;      /* [n_rules] */
    uint32_t n, n_rules;
    uint32_t *back_at, *back; /* where the end of a rule leads in the upper one: by rule */
    uint32_t *rule_of_end;    /* [n] rule + 1 */
    uint64_t steps;
    uint32_t *stamp, now, *stack; /* [n] */
};

static const struct rules_edge *edge_of(const struct circle *c, uint32_t k)
{
    return &c->r->edge[c->a->out[k]];
}

/* An edge that the rules keep: to what can end. */
static int is_live(const struct circle *c, const struct rules_edge *e)
{
    return c->a->live[e->to] && (e->kind != EDGE_CALL || c->a->live[c->start[e->value]]);
}

static int calls_in(const struct circle *c, const struct rules_edge *e)
{
    return e->kind == EDGE_CALL && c->member[e->value];
}

#define EACH_OUT(c, i, e)                                                                          \
    for (uint32_t k_ = (c)->a->out_at[(c)->state[i]]; k_ < (c)->a->out_at[(c)->state[i] + 1];      \
         k_++)                                                                                     \
        for (const struct rules_edge *e = edge_of(c, k_); e && is_live(c, e); e = NULL)

static void take(struct circle *c, uint32_t state)
{
    if (!c->number[state]) {
        c->state[c->n] = state;
        c->number[state] = ++c->n;
    }
}

/* All states of the rules of the circle; 0: too many. */
static int gather(struct circle *c)
{
    for (uint32_t i = 0; i < c->n_rules; i++) {
        take(c, c->r->rule[c->rule[i]].start);
        take(c, c->r->rule[c->rule[i]].end);
    }
    for (uint32_t i = 0; i < c->n && c->n <= MOST_STATES; i++)
        EACH_OUT(c, i, e) take(c, e->to);
    return c->n <= MOST_STATES;
}

/* Marks states until nothing changes: few rounds, since edges mostly lead on in the order of the
 * states. */
static void mark(struct circle *c)
{
    for (uint32_t i = 0; i < c->n_rules; i++) {
        uint32_t end = c->number[c->r->rule[c->rule[i]].end] - 1;
        c->is_end[end] = c->ends[end] = c->lives[end] = 1;
        c->rule_of_end[end] = c->rule[i] + 1;
    }
    for (int again = 1; again;) {
        again = 0;
        for (uint32_t i = c->n; i-- > 0;) {
            uint8_t ends = c->ends[i], lives = c->lives[i];
            EACH_OUT(c, i, e)
            {
                uint32_t to = c->number[e->to] - 1;
                c->steps++;
                ends |= e->kind == EDGE_EPS && c->ends[to];
                if (calls_in(c, e)) /* kept where nothing is left behind it */
                    lives |= c->ends[to] && c->lives[c->number[c->r->rule[e->value].start] - 1];
                else
                    lives |= c->lives[to];
            }
            again |= ends != c->ends[i] || lives != c->lives[i];
            c->ends[i] = ends;
            c->lives[i] = lives;
        }
        if (c->steps > MOST_STEPS || !work_tick(c->n))
            return;
    }
}

/* For each rule of the circle where its calls return to. 0: no memory. */
static int find_returns(struct circle *c)
{
    uint32_t n = 0;
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < c->n; i++) {
            EACH_OUT(c, i, e)
            {
                if (!calls_in(c, e))
                    continue;
                n += !fill;
                if (fill)
                    c->back[c->back_at[e->value + 1]++] = c->number[e->to] - 1;
                else
                    c->back_at[e->value + 2]++;
            }
        }
        for (uint32_t k = 0; !fill && k < c->r->n_rules; k++)
            c->back_at[k + 2] += c->back_at[k + 1];
        if (!fill && !(c->back = mem_array((size_t)n + 1, sizeof *c->back, PITH_MEM_SCRATCH)))
            return 0;
    }
    return 1;
}

/* ---------------------------------------------------------------- both at once */

struct walk { /* sets of states, lower and upper ones side by side */
    struct circle *c;
    uint32_t rule; /* the one that is compared */
    struct map seen;
    struct arena arena;
    const uint32_t *
        *set; /* {n of the lower, the lower ones, the upper ones}; its size lies before it */
    uint32_t n, cap;
    uint32_t *make, n_make, cap_make;
    int failed;
};

static void put(struct walk *w, uint32_t v)
{
    if (!mem_grow(&w->make, &w->cap_make, (uint64_t)w->n_make + 1, sizeof *w->make,
                  PITH_MEM_SCRATCH))
        w->failed = 1;
    else
        w->make[w->n_make++] = v;
}

/* Adds what a state reaches by nothing. upper: which of the two. */
static void reach(struct walk *w, uint32_t state, int upper)
{
    struct circle *c = w->c;
    uint32_t n = 0;
#define VISIT(to)                                                                                  \
    do {                                                                                           \
        uint32_t to_ = (to);                                                                       \
        if (c->stamp[to_] != c->now && (upper || c->lives[to_])) {                                 \
            c->stamp[to_] = c->now;                                                                \
            c->stack[n++] = to_;                                                                   \
        }                                                                                          \
    } while (0)
    VISIT(state);
    while (n && !w->failed) {
        uint32_t i = c->stack[--n], keep = c->is_end[i];
        EACH_OUT(c, i, e)
        {
            c->steps++;
            if (e->kind == EDGE_EPS)
                VISIT(c->number[e->to] - 1);
            else if (!calls_in(c, e))
                keep = 1;
            else if (upper || c->ends[c->number[e->to] - 1])
                VISIT(c->number[c->r->rule[e->value].start] - 1);
        }
        for (uint32_t rule = c->rule_of_end[i], k = rule && upper ? c->back_at[rule - 1] : 0;
             rule && upper && k < c->back_at[rule]; k++) {
            c->steps++;
            VISIT(c->back[k]);
        }
        if (keep)
            put(w, i);
    }
#undef VISIT
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The pair of sets in w->make, whose first number is how many are lower ones, is looked at later,
 * unless it was. */
static void keep(struct walk *w)
{
    if (w->failed)
        return;
    uint32_t n_lower = w->make[0], value;
    qsort(w->make + 1, n_lower, sizeof *w->make, by_number);
    qsort(w->make + 1 + n_lower, w->n_make - 1 - n_lower, sizeof *w->make, by_number);
    struct slice key = {(const char *)w->make, w->n_make * sizeof *w->make};
    w->c->steps += w->n_make;
    if (map_get(&w->seen, key, &value))
        return;
    uint32_t *kept = arena_array(&w->arena, (size_t)w->n_make + 1, sizeof *kept);
    if (!kept ||
        !mem_grow(&w->set, &w->cap, (uint64_t)w->n + 1, sizeof *w->set, PITH_MEM_SCRATCH)) {
        w->failed = 1;
        return;
    }
    kept[0] = w->n_make;
    memcpy(kept + 1, w->make, key.n);
    w->failed |= map_put(&w->seen, (struct slice){(const char *)(kept + 1), key.n}, w->n) < 0;
    w->set[w->n++] = kept + 1;
}

/* Whether e is taken by a letter: kind and value, of bytes the byte `value`. */
static int takes(const struct rules_edge *e, uint8_t kind, uint32_t value)
{
    return e->kind == kind &&
           (kind == EDGE_BYTES ? e->lo <= value && value <= e->hi : e->value == value);
}

/* Both sets behind a letter; 0: the upper one has what the lower one has not. */
static int step(struct walk *w, const uint32_t *set, uint32_t n, uint8_t kind, uint32_t value)
{
    struct circle *c = w->c;
    w->n_make = 0;
    put(w, 0);
    for (int upper = 0; upper < 2; upper++) {
        uint32_t from = upper ? 1 + set[0] : 1, to = upper ? n : 1 + set[0];
        c->now++;
        for (uint32_t i = from; i < to; i++) {
            EACH_OUT(c, set[i], e)
            {
                c->steps++;
                if (!calls_in(c, e) && takes(e, kind, value))
                    reach(w, c->number[e->to] - 1, upper);
            }
        }
        if (!upper && !w->failed) {
            w->make[0] = w->n_make - 1;
            if (!w->make[0])
                return 0;
        }
    }
    keep(w);
    return 1;
}

/* 1: the upper set of a pair leads nowhere where the lower one does not. */
static int expand(struct walk *w, const uint32_t *set)
{
    struct circle *c = w->c;
    uint32_t n = set[-1];
    uint8_t cut[257] = {0}, read[256] = {0};
    int end = 0, upper_end = 0;
    for (uint32_t i = 1; i < n; i++) {
        int upper = i > set[0];
        end |= !upper && c->is_end[set[i]];
        upper_end |= upper && c->rule_of_end[set[i]] == w->rule + 1;
        EACH_OUT(c, set[i], e)
        {
            if (e->kind == EDGE_BYTES) {
                cut[e->lo] = cut[e->hi + 1] = 1;
                if (upper)
                    memset(read + e->lo, 1, (size_t)(e->hi - e->lo) + 1);
            }
        }
    }
    if (upper_end && !end)
        return 0;
    cut[0] = 1;
    for (uint32_t b = 0; b < 256 && c->steps <= MOST_STEPS; b++) {
        if (cut[b] && read[b] && !step(w, set, n, EDGE_BYTES, b))
            return 0;
        for (; b < 255 && !cut[b + 1] && read[b + 1] == read[b]; b++)
            ;
    }
    for (uint32_t i = 1 + set[0]; i < n && c->steps <= MOST_STEPS; i++) {
        EACH_OUT(c, set[i], e)
        {
            if (e->kind != EDGE_EPS && e->kind != EDGE_BYTES && !calls_in(c, e) &&
                !step(w, set, n, e->kind, e->value))
                return 0;
        }
    }
    return 1;
}

/* 1: the lower automaton of a rule is all of it. */
static int is_regular(struct circle *c, uint32_t rule)
{
    struct walk w = {.c = c, .rule = rule};
    uint32_t start = c->number[c->r->rule[rule].start] - 1;
    int same = c->lives[start];
    c->steps = 0;
    map_init(&w.seen, PITH_MEM_SCRATCH);
    arena_init(&w.arena, PITH_MEM_SCRATCH);
    put(&w, 0);
    for (int upper = 0; upper < 2 && same; upper++) {
        c->now++;
        reach(&w, start, upper);
        if (!upper && !w.failed)
            w.make[0] = w.n_make - 1;
    }
    if (same)
        keep(&w);
    for (uint32_t i = 0; i < w.n && same; i++)
        same = expand(&w, w.set[i]) && !w.failed && w.n <= MOST_PAIRS && c->steps <= MOST_STEPS;
    same &= !w.failed && w.n > 0 && work_tick(c->steps);
    map_deinit(&w.seen);
    arena_deinit(&w.arena);
    mem_free(w.set);
    mem_free(w.make);
    return same;
}

/* ---------------------------------------------------------------- writing */

struct lower { /* of a rule */
    uint32_t rule, base, end;
};

/* Writes the lower automaton; where the start of each rule lies behind `base`, and one end. */
static void write_lower(struct circle *c, uint32_t *base, uint32_t *at_end)
{
    struct rules *r = c->r;
    uint32_t end, n = c->n;
    *base = r->n_states;
    for (uint32_t i = 0; i < n && rules_ok(r); i++)
        rules_state(r);
    end = rules_state(r);
    for (uint32_t i = 0; i < n && rules_ok(r); i++) {
        if (!c->lives[i])
            continue;
        if (c->is_end[i])
            rules_edge(r, *base + i, end, EDGE_EPS, 0);
        for (uint32_t k = c->a->out_at[c->state[i]]; k < c->a->out_at[c->state[i] + 1]; k++) {
            struct rules_edge e = *edge_of(c, k);
            uint32_t to = c->number[e.to] - 1;
            if (!is_live(c, &e))
                continue;
            if (calls_in(c, &e) && c->ends[to])
                rules_edge(r, *base + i, *base + c->number[r->rule[e.value].start] - 1, EDGE_EPS,
                           0);
            else if (e.kind == EDGE_BYTES)
                rules_bytes(r, *base + i, *base + to, e.lo, e.hi);
            else if (!calls_in(c, &e))
                rules_edge(r, *base + i, *base + to, (enum rules_edge_kind)e.kind, e.value);
        }
    }
    *at_end = end;
}

static void *items(uint64_t n, size_t bytes)
{
    return mem_array((size_t)n + 2, bytes, PITH_MEM_SCRATCH);
}

/* One circle; how many of its rules were replaced. */
static uint32_t try_circle(struct circle *c, struct lower *found)
{
    uint32_t n_found = 0;
    if (!gather(c))
        return 0;
    c->lives = items(c->n, 1);
    c->ends = items(c->n, 1);
    c->is_end = items(c->n, 1);
    c->rule_of_end = items(c->n, sizeof *c->rule_of_end);
    c->stamp = items(c->n, sizeof *c->stamp);
    c->stack = items(c->n, sizeof *c->stack);
    c->back_at = items((uint64_t)c->r->n_rules + 1, sizeof *c->back_at);
    if (c->lives && c->ends && c->is_end && c->rule_of_end && c->stamp && c->stack && c->back_at &&
        find_returns(c)) {
        mark(c);
        /* Those that are called from outside come last. */
        for (uint32_t i = c->n_rules;
             i-- > 0 && c->steps <= MOST_STEPS && (n_found + 1) * c->n <= MOST_COPIES;) {
            if (!is_regular(c, c->rule[i]))
                continue;
            found[n_found].rule = c->rule[i];
            write_lower(c, &found[n_found].base, &found[n_found].end);
            n_found++;
        }
        for (uint32_t i = 0; i < n_found && rules_ok(c->r); i++) {
            struct rule *rule = &c->r->rule[found[i].rule];
            rule->start = found[i].base + c->number[rule->start] - 1;
            rule->end = found[i].end;
        }
    } else {
        rules_fail(c->r, PITH_NOMEM, "out of memory for a grammar of %u rules", c->r->n_rules);
    }
    mem_free(c->lives);
    mem_free(c->ends);
    mem_free(c->is_end);
    mem_free(c->rule_of_end);
    mem_free(c->stamp);
    mem_free(c->stack);
    mem_free(c->back_at);
    mem_free(c->back);
    return n_found;
}

uint32_t regular_rules(struct rules *r, const struct analysis *a)
{
    uint32_t n_all = 0, n_rules = r->n_rules, *number = items(r->n_states, sizeof *number),
             *state = items(r->n_states, sizeof *state);
    struct lower *found = items(n_rules, sizeof *found);
    uint8_t *member = items(n_rules, 1);
    uint32_t *start = items(n_rules, sizeof *start);
    for (uint32_t i = 0; start && i < n_rules; i++)
        start[i] = r->rule[i].start;
    for (uint32_t i = 0, k;
         number && state && found && member && start && i < a->n_order && rules_ok(r); i = k) {
        for (k = i + 1; k < a->n_order && a->circle[a->order[k]] == a->circle[a->order[i]]; k++)
            ;
        int plain = a->recursive[a->order[i]];
        for (uint32_t m = i; m < k; m++)
            plain &= !r->rule[a->order[m]].set;
        if (!plain)
            continue;
        struct circle c = {.r = r,
                           .a = a,
                           .start = start,
                           .number = number,
                           .state = state,
                           .member = member,
                           .rule = a->order + i,
                           .n_rules = k - i};
        for (uint32_t m = i; m < k; m++)
            member[a->order[m]] = 1;
        n_all += try_circle(&c, found);
        for (uint32_t m = i; m < k; m++)
            member[a->order[m]] = 0;
        for (uint32_t m = 0; m < c.n; m++)
            number[c.state[m]] = 0;
    }
    if (!number || !state || !found || !member || !start)
        rules_fail(r, PITH_NOMEM, "out of memory for a grammar of %u rules", n_rules);
    mem_free(number);
    mem_free(state);
    mem_free(found);
    mem_free(member);
    mem_free(start);
    return n_all;
}
