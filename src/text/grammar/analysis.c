/* analysis.c -- what must be known of rules before they become tables: which may be empty (and so
 * hide left recursion), which can end at all, which call themselves, and an order in which callees
 * come first. All of it is marking along edges, linear in their number. */
#include "text/grammar/automaton.h"

#include <string.h>

#include "base/mem.h"
#include "base/work.h"

enum { NOBODY = UINT32_MAX };

/* Groups edges i by key(i) in [0, n): at[k] .. at[k + 1] in list. */
struct groups {
    uint32_t *at, *list;
};

static uint32_t *numbers(uint64_t n)
{
    return mem_array((size_t)n + 2, sizeof(uint32_t), PITH_MEM_SCRATCH);
}

enum by { BY_FROM, BY_TO, BY_CALL };

static uint32_t key_of(const struct rules_edge *e, enum by by)
{
    return by == BY_FROM ? e->from : by == BY_TO ? e->to : e->kind == EDGE_CALL ? e->value : NOBODY;
}

/* Counts in at[1..n] become beginnings; a pass that places its items with at[k + 1]++ then leaves
 * k's items in at[k] .. at[k + 1]. */
static void begin_groups(uint32_t *at, uint32_t n)
{
    for (uint32_t k = 1, sum = 0; k <= n; k++) {
        uint32_t count = at[k];
        at[k] = sum;
        sum += count;
    }
}

static int group(struct groups *g, const struct rules *r, enum by by, uint32_t n)
{
    g->at = numbers(n);
    g->list = numbers(r->n_edges);
    if (!g->at || !g->list)
        return 0;
    for (uint32_t i = 0; i < r->n_edges; i++) {
        uint32_t k = key_of(&r->edge[i], by);
        if (k != NOBODY)
            g->at[k + 1]++;
    }
    begin_groups(g->at, n);
    for (uint32_t i = 0; i < r->n_edges; i++) {
        uint32_t k = key_of(&r->edge[i], by);
        if (k != NOBODY)
            g->list[g->at[k + 1]++] = i;
    }
    return 1;
}

static void ungroup(struct groups *g)
{
    mem_free(g->at);
    mem_free(g->list);
}

struct marks {
    const struct rules *r;
    struct groups out, in, calls;
    uint32_t *todo, n_todo;
    uint32_t *owner;   /* [n_states] the rule from whose start a state is reached without a byte */
    uint8_t *nullable; /* [n_rules] */
    uint8_t *live;     /* [n_states] */
};

/* ---------------------------------------------------------------- empty rules and left recursion
 */

static void own(struct marks *m, uint32_t state, uint32_t rule)
{
    if (m->owner[state] == NOBODY) {
        m->owner[state] = rule;
        m->todo[m->n_todo++] = state;
    }
}

static void mark_empty(struct marks *m)
{
    const struct rules *r = m->r;
    memset(m->owner, 0xFF, (size_t)r->n_states * sizeof *m->owner);
    for (uint32_t i = 0; i < r->n_rules; i++)
        own(m, r->rule[i].start, i);
    while (m->n_todo && work_tick(2)) {
        uint32_t state = m->todo[--m->n_todo], rule = m->owner[state];
        for (uint32_t k = m->out.at[state]; k < m->out.at[state + 1]; k++) {
            const struct rules_edge *e = &r->edge[m->out.list[k]];
            if (e->kind == EDGE_EPS || (e->kind == EDGE_CALL && m->nullable[e->value]))
                own(m, e->to, rule);
        }
        if (state != r->rule[rule].end || m->nullable[rule])
            continue;
        m->nullable[rule] = 1;
        for (uint32_t k = m->calls.at[rule]; k < m->calls.at[rule + 1]; k++) {
            const struct rules_edge *e = &r->edge[m->calls.list[k]];
            if (m->owner[e->from] != NOBODY)
                own(m, e->to, m->owner[e->from]);
        }
    }
}

/* A walk over calls, deep first: rules on the path, and for each the next call to look at. */
struct path {
    uint32_t *rule, *next, n;
};

static int path_init(struct path *p, uint32_t n_rules)
{
    *p = (struct path){numbers(n_rules), numbers(n_rules), 0};
    return p->rule && p->next;
}

static void path_deinit(struct path *p)
{
    mem_free(p->rule);
    mem_free(p->next);
}

static pith_status refuse_cycle(const struct rules *r, const struct path *p, uint32_t again,
                                struct pith_error *err)
{
    struct slice a = r->rule[again].name, b = r->rule[p->rule[p->n - 1]].name;
    int n_a = (int)(a.n < 48 ? a.n : 48), n_b = (int)(b.n < 48 ? b.n : 48);
    if (p->rule[p->n - 1] == again)
        return error_set(err, PITH_UNSUPPORTED,
                         "grammar: rule \"%.*s\" is left-recursive: it begins with itself; wanted "
                         "recursion behind something that "
                         "is not empty (a list is  item (\",\" item)*)",
                         n_a, a.p);
    return error_set(err, PITH_UNSUPPORTED,
                     "grammar: rule \"%.*s\" is left-recursive: rule \"%.*s\", with which it "
                     "begins, begins with it; wanted "
                     "recursion behind something that is not empty",
                     n_a, a.p, n_b, b.p);
}

/* Calls in which nothing was read since the start of the calling rule, by that rule. */
static pith_status refuse_left_recursion(const struct marks *m, struct pith_error *err)
{
    const struct rules *r = m->r;
    uint32_t *at = numbers(r->n_rules), *to = numbers(r->n_edges);
    uint8_t *seen = mem_array(r->n_rules, 1, PITH_MEM_SCRATCH); /* 1 on the path, 2 done */
    struct path p;
    pith_status st = PITH_OK;
    if (!path_init(&p, r->n_rules) || !at || !to || !seen)
        st = error_set(err, PITH_NOMEM, "out of memory for a grammar of %u rules", r->n_rules);
    for (int fill = 0; fill < 2 && st == PITH_OK; fill++) {
        for (uint32_t i = 0; i < r->n_edges; i++) {
            const struct rules_edge *e = &r->edge[i];
            uint32_t rule = m->owner[e->from];
            if (e->kind != EDGE_CALL || rule == NOBODY)
                continue;
            if (fill)
                to[at[rule + 1]++] = e->value;
            else
                at[rule + 1]++;
        }
        if (!fill)
            begin_groups(at, r->n_rules);
    }
    for (uint32_t root = 0; root < r->n_rules && st == PITH_OK; root++) {
        if (seen[root])
            continue;
        p.rule[0] = root;
        p.next[0] = at[root];
        p.n = 1;
        seen[root] = 1;
        while (p.n && st == PITH_OK && work_tick(1)) {
            uint32_t rule = p.rule[p.n - 1];
            if (p.next[p.n - 1] == at[rule + 1]) {
                seen[rule] = 2;
                p.n--;
                continue;
            }
            uint32_t callee = to[p.next[p.n - 1]++];
            if (seen[callee] == 1) {
                st = refuse_cycle(r, &p, callee, err);
            } else if (!seen[callee]) {
                seen[callee] = 1;
                p.rule[p.n] = callee;
                p.next[p.n++] = at[callee];
            }
        }
    }
    path_deinit(&p);
    mem_free(at);
    mem_free(to);
    mem_free(seen);
    return st;
}

/* ---------------------------------------------------------------- what can end */

static void enliven(struct marks *m, uint32_t state)
{
    if (!m->live[state]) {
        m->live[state] = 1;
        m->todo[m->n_todo++] = state;
    }
}

static void mark_live(struct marks *m, const uint32_t *rule_of_start)
{
    const struct rules *r = m->r;
    for (uint32_t i = 0; i < r->n_rules; i++)
        enliven(m, r->rule[i].end);
    while (m->n_todo && work_tick(2)) {
        uint32_t state = m->todo[--m->n_todo], rule = rule_of_start[state];
        for (uint32_t k = m->in.at[state]; k < m->in.at[state + 1]; k++) {
            const struct rules_edge *e = &r->edge[m->in.list[k]];
            if (e->kind != EDGE_CALL || m->live[r->rule[e->value].start])
                enliven(m, e->from);
        }
        for (uint32_t k = rule == NOBODY ? 0 : m->calls.at[rule];
             rule != NOBODY && k < m->calls.at[rule + 1]; k++) {
            const struct rules_edge *e = &r->edge[m->calls.list[k]];
            if (m->live[e->to])
                enliven(m, e->from);
        }
    }
}

/* ---------------------------------------------------------------- order */

/* Tarjan's strongly connected components, without recursion: components come out callees first. */
struct tarjan {
    uint32_t *index, *low, *stack, n_stack, n_index;
    uint8_t *on_stack;
    struct path path;
};

/* The calls of each rule, by the rule they stand in: states of a rule are found from its start. */
static int calls_by_caller(struct analysis *a, const struct rules *r, uint32_t *todo, uint8_t *seen)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_rules; i++) {
        uint32_t n_todo = 0;
        a->calls_at[i] = n;
        todo[n_todo++] = r->rule[i].start;
        seen[r->rule[i].start] = 1;
        while (n_todo && work_tick(1)) {
            uint32_t state = todo[--n_todo];
            for (uint32_t k = a->out_at[state]; k < a->out_at[state + 1]; k++) {
                const struct rules_edge *e = &r->edge[a->out[k]];
                if (!a->live[e->to] || (e->kind == EDGE_CALL && !a->live[r->rule[e->value].start]))
                    continue;
                if (e->kind == EDGE_CALL)
                    a->calls[n++] = a->out[k];
                if (!seen[e->to]) {
                    seen[e->to] = 1;
                    todo[n_todo++] = e->to;
                }
            }
        }
    }
    a->calls_at[r->n_rules] = n;
    return 1;
}

static void enter(struct tarjan *t, const struct analysis *a, uint32_t rule)
{
    t->index[rule] = t->low[rule] = ++t->n_index;
    t->stack[t->n_stack++] = rule;
    t->on_stack[rule] = 1;
    t->path.rule[t->path.n] = rule;
    t->path.next[t->path.n++] = a->calls_at[rule];
}

static void leave(struct tarjan *t, struct analysis *a)
{
    uint32_t rule = t->path.rule[--t->path.n];
    if (t->path.n) {
        uint32_t caller = t->path.rule[t->path.n - 1];
        t->low[caller] = t->low[rule] < t->low[caller] ? t->low[rule] : t->low[caller];
    }
    if (t->low[rule] != t->index[rule])
        return;
    int several = t->stack[t->n_stack - 1] != rule;
    uint32_t member;
    do {
        member = t->stack[--t->n_stack];
        t->on_stack[member] = 0;
        a->recursive[member] |= (uint8_t)several;
        a->circle[member] = rule;
        a->order[a->n_order++] = member;
    } while (member != rule);
}

static void sort_rules(struct tarjan *t, struct analysis *a, const struct rules *r, uint32_t root)
{
    enter(t, a, root);
    while (t->path.n && work_tick(1)) {
        uint32_t rule = t->path.rule[t->path.n - 1];
        if (t->path.next[t->path.n - 1] == a->calls_at[rule + 1]) {
            leave(t, a);
            continue;
        }
        uint32_t callee = r->edge[a->calls[t->path.next[t->path.n - 1]++]].value;
        a->uses[callee]++;
        a->recursive[callee] |= callee == rule;
        if (!t->index[callee])
            enter(t, a, callee);
        else if (t->on_stack[callee] && t->index[callee] < t->low[rule])
            t->low[rule] = t->index[callee];
    }
}

static pith_status order_rules(struct analysis *a, const struct rules *r, uint32_t root,
                               uint32_t *todo, struct pith_error *err)
{
    uint32_t n = r->n_rules;
    struct tarjan t = {.index = numbers(n), .low = numbers(n), .stack = numbers(n)};
    uint8_t *seen = mem_array(r->n_states, 1, PITH_MEM_SCRATCH);
    pith_status st = PITH_OK;
    t.on_stack = mem_array(n, 1, PITH_MEM_SCRATCH);
    a->calls_at = numbers(n);
    a->calls = numbers(r->n_edges);
    a->order = numbers(n);
    a->uses = numbers(n);
    a->recursive = mem_array(n, 1, PITH_MEM_SCRATCH);
    a->circle = numbers(n);
    if (path_init(&t.path, n) && t.index && t.low && t.stack && t.on_stack && seen && a->calls_at &&
        a->calls && a->order && a->uses && a->recursive && a->circle) {
        calls_by_caller(a, r, todo, seen);
        sort_rules(&t, a, r, root);
    } else {
        st = error_set(err, PITH_NOMEM, "out of memory for a grammar of %u rules", n);
    }
    path_deinit(&t.path);
    mem_free(t.index);
    mem_free(t.low);
    mem_free(t.stack);
    mem_free(t.on_stack);
    mem_free(seen);
    return st;
}

/* ---------------------------------------------------------------- all of it */

pith_status analysis_init(struct analysis *a, const struct rules *r, uint32_t root,
                          struct pith_error *err)
{
    struct marks m = {.r = r};
    uint32_t *rule_of_start = numbers(r->n_states);
    pith_status st;
    *a = (struct analysis){0};
    m.todo = numbers(r->n_states);
    m.owner = numbers(r->n_states);
    m.nullable = mem_array(r->n_rules, 1, PITH_MEM_SCRATCH);
    m.live = mem_array(r->n_states, 1, PITH_MEM_SCRATCH);
    if (!group(&m.out, r, BY_FROM, r->n_states) || !group(&m.in, r, BY_TO, r->n_states) ||
        !group(&m.calls, r, BY_CALL, r->n_rules) || !m.todo || !m.owner || !m.nullable || !m.live ||
        !rule_of_start) {
        TRY(error_set(err, PITH_NOMEM, "out of memory for a grammar of %u rules", r->n_rules));
    }
    for (uint32_t i = 0; i < r->n_rules; i++) {
        struct slice name = r->rule[i].name;
        if (!r->rule[i].defined)
            TRY(error_set(err, PITH_MISSING, "grammar: rule \"%.*s\" is used but not defined",
                          (int)(name.n < 64 ? name.n : 64), name.p));
    }
    mark_empty(&m);
    TRY(refuse_left_recursion(&m, err));
    memset(rule_of_start, 0xFF, (size_t)r->n_states * sizeof *rule_of_start);
    for (uint32_t i = 0; i < r->n_rules; i++)
        rule_of_start[r->rule[i].start] = i;
    mark_live(&m, rule_of_start);
    if (!m.live[r->rule[root].start])
        TRY(error_set(
            err, PITH_UNSUPPORTED,
            r->empty[0] ? "grammar: rule \"%.*s\" matches no text: %s"
                        : "grammar: rule \"%.*s\" matches no text: what it needs has no end or is "
                          "empty%s",
            (int)(r->rule[root].name.n < 64 ? r->rule[root].name.n : 64), r->rule[root].name.p,
            r->empty));
    a->live = m.live;
    a->out_at = m.out.at;
    a->out = m.out.list;
    m.live = NULL;
    m.out = (struct groups){NULL, NULL};
    TRY(order_rules(a, r, root, m.todo, err));
    if (!work_tick(0))
        TRY(error_set(err, PITH_CANCELLED, "grammar: cancelled"));
fail:
    if (st != PITH_OK)
        analysis_deinit(a);
    ungroup(&m.out);
    ungroup(&m.in);
    ungroup(&m.calls);
    mem_free(m.todo);
    mem_free(m.owner);
    mem_free(m.nullable);
    mem_free(m.live);
    mem_free(rule_of_start);
    return st;
}

void analysis_deinit(struct analysis *a)
{
    mem_free(a->out_at);
    mem_free(a->out);
    mem_free(a->calls_at);
    mem_free(a->calls);
    mem_free(a->live);
    mem_free(a->order);
    mem_free(a->recursive);
    mem_free(a->circle);
    mem_free(a->uses);
    *a = (struct analysis){0};
}
