/* alike.c -- a string of up to 1,000 characters has 1,000 states for "a character follows", and no
 * token tells them apart as long as more characters may follow than it has.
 *
 * Classes of states are split in rounds [Moore, Gedanken-experiments on sequential machines, 1956]:
 * after k of them two states of a class read the same texts of k bytes, and end, call or name
 * tokens behind the same ones of them, since a state that does any of that is a class of its own.
 * Only states with an edge to one that has left its class are looked at again. */
#include "text/grammar/alike.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* A state that is looked at in a round, and the class that it goes to. */
struct looked {
    uint64_t hash; /* of its edges */
    uint32_t class, state, to;
};

struct split {
    const struct automaton *a;
    struct stacks *s;
    uint32_t *class, *size;   /* [n_states] of each state; [n_classes] */
    uint32_t *from_at, *from; /* [n_states + 1]; whose edges lead to a state */
    struct looked *look;      /* [n_states] */
    uint32_t *asked;          /* [n_states] the last round in which it was looked at */
    uint32_t *left;           /* [n_states] those that have left their class in a round */
    uint32_t n_classes, n_look;
};

enum { APART = STATE_FINAL | STATE_CALLS | STATE_TOKENS, MOST_STATES = 1 << 17 };

static int is_apart(const struct automaton *a, uint32_t state)
{
    return state < STATE_FIRST || (automaton_flags(a, state) & APART);
}

static uint32_t n_edges(const struct automaton *a, uint32_t state)
{
    return a->row[state].several ? a->n_classes : 1;
}

static uint32_t edge_to(const struct automaton *a, uint32_t state, uint32_t i)
{
    const struct automaton_row *r = &a->row[state];
    return r->several ? a->next[(size_t)r->to * a->n_classes + i] : r->to;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_of(const struct split *p, uint32_t state)
{
    const struct automaton_row *r = &p->a->row[state];
    uint64_t h = r->several ? 1 : mix(2, (uint64_t)r->lo << 8 | r->width);
    for (uint32_t i = 0, n = n_edges(p->a, state); i < n; i++)
        h = mix(h, p->class[edge_to(p->a, state, i)]);
    return h;
}

static int same_edges(const struct split *p, uint32_t x, uint32_t y)
{
    const struct automaton_row *r = &p->a->row[x], *q = &p->a->row[y];
    if (r->several != q->several || (!r->several && (r->lo != q->lo || r->width != q->width)))
        return 0;
    for (uint32_t i = 0, n = n_edges(p->a, x); i < n; i++)
        if (p->class[edge_to(p->a, x, i)] != p->class[edge_to(p->a, y, i)])
            return 0;
    return 1;
}

static int by_class(const void *a, const void *b)
{
    const struct looked *x = a, *y = b;
    if (x->class != y->class)
        return (x->class > y->class) - (x->class < y->class);
    if (x->hash != y->hash)
        return (x->hash > y->hash) - (x->hash < y->hash);
    return (x->state > y->state) - (x->state < y->state);
}

static int cost(struct split *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_look; i++)
        n += 1 + n_edges(p->a, p->look[i].state);
    return stacks_spend(p->s, n);
}

/* Those of [from, to) whose hash is the same go to a class of their own together; what only has the
 * same hash goes alone. */
static void leave_together(struct split *p, uint32_t from, uint32_t to)
{
    uint32_t together = p->n_classes++;
    for (uint32_t i = from; i < to; i++)
        p->look[i].to = same_edges(p, p->look[from].state, p->look[i].state) ? together
                                                                             : p->n_classes++;
}

/* A class of which all are looked at keeps those that are most; else all that are looked at leave
 * it: each has an edge to a class that is new, which no other has. */
static void split_class(struct split *p, uint32_t from, uint32_t to)
{
    int whole = p->size[p->look[from].class] == to - from;
    uint32_t most = 0, stay = to;
    for (uint32_t i = from, k; whole && i < to; i = k) {
        for (k = i; k < to && p->look[k].hash == p->look[i].hash;)
            k++;
        if (k - i > most) {
            most = k - i;
            stay = i;
        }
    }
    for (uint32_t i = from, k; i < to; i = k) {
        for (k = i; k < to && p->look[k].hash == p->look[i].hash;)
            k++;
        if (i != stay) {
            leave_together(p, i, k);
            continue;
        }
        for (uint32_t j = i; j < k; j++)
            p->look[j].to = same_edges(p, p->look[i].state, p->look[j].state) ? p->look[j].class
                                                                              : p->n_classes++;
    }
}

/* One round; those that have left their class, and after it who has an edge to one of them. 0:
 * there is no more work to spend. */
static int split_round(struct split *p, uint32_t round)
{
    uint32_t n_left = 0, n = 0;
    if (!cost(p))
        return 0;
    for (uint32_t i = 0; i < p->n_look; i++) {
        p->look[i].class = p->class[p->look[i].state];
        p->look[i].hash = hash_of(p, p->look[i].state);
    }
    qsort(p->look, p->n_look, sizeof *p->look, by_class);
    for (uint32_t i = 0, k; i < p->n_look; i = k) {
        for (k = i; k < p->n_look && p->look[k].class == p->look[i].class;)
            k++;
        split_class(p, i, k);
    }
    for (uint32_t i = 0; i < p->n_look; i++) {
        struct looked *l = &p->look[i];
        if (l->to == l->class)
            continue;
        p->size[l->class]--;
        p->size[l->to]++;
        p->class[l->state] = l->to;
        p->left[n_left++] = l->state;
    }
    for (uint32_t i = 0; i < n_left; i++)
        for (uint32_t k = p->from_at[p->left[i]]; k < p->from_at[p->left[i] + 1]; k++) {
            uint32_t from = p->from[k];
            if (p->asked[from] == round || is_apart(p->a, from))
                continue;
            p->asked[from] = round;
            p->look[n++].state = from;
        }
    p->n_look = n;
    return 1;
}

/* from_at and from. 0: no memory, or too many edges. */
static int turn_edges(struct split *p)
{
    enum { MOST_EDGES = 1 << 22 };
    const struct automaton *a = p->a;
    uint64_t n = 0;
    for (uint32_t s = STATE_FIRST; s < a->n_states; s++)
        for (uint32_t i = 0; i < n_edges(a, s); i++, n++)
            p->from_at[edge_to(a, s, i) + 1]++;
    for (uint32_t s = 0; s < a->n_states; s++)
        p->from_at[s + 1] += p->from_at[s];
    p->from = n <= MOST_EDGES && stacks_spend(p->s, n)
                  ? mem_array((size_t)n + 1, sizeof *p->from, PITH_MEM_SCRATCH)
                  : NULL;
    if (!p->from)
        return 0;
    for (uint32_t s = a->n_states; s-- > STATE_FIRST;)
        for (uint32_t i = 0; i < n_edges(a, s); i++)
            p->from[--p->from_at[edge_to(a, s, i) + 1]] = s;
    /* each begins one place behind now: where its own begin */
    for (uint32_t s = 0; s < a->n_states; s++)
        p->from_at[s] = p->from_at[s + 1];
    p->from_at[a->n_states] = (uint32_t)n;
    return 1;
}

/* Into p->size, which is not needed any more: the first state of each class; and so for all. */
static void name_first(struct split *p)
{
    for (uint32_t s = p->a->n_states; s-- > 0;)
        p->size[p->class[s]] = s;
    for (uint32_t s = 0; s < p->a->n_states; s++)
        p->class[s] = p->size[p->class[s]];
}

uint32_t *alike_states(struct stacks *stacks, uint32_t depth)
{
    const struct automaton *a = stacks->a;
    struct split p = {.a = a, .s = stacks, .n_classes = 1};
    size_t n = a->n_states;
    int ok = n <= MOST_STATES;
    uint32_t **const lists[] = {&p.class, &p.size, &p.from_at, &p.asked, &p.left};
    for (size_t i = 0; ok && i < sizeof lists / sizeof *lists; i++)
        ok = (*lists[i] = mem_array(n + 1, sizeof **lists[i], PITH_MEM_SCRATCH)) != NULL;
    p.look = ok ? mem_array(n, sizeof *p.look, PITH_MEM_SCRATCH) : NULL;
    ok = p.look && turn_edges(&p);
    for (uint32_t s = 0; ok && s < n; s++) {
        if (is_apart(a, s)) {
            p.size[p.n_classes] = 1;
            p.class[s] = p.n_classes++;
        } else {
            p.look[p.n_look++].state = s;
        }
    }
    if (ok)
        p.size[0] = p.n_look;
    for (uint32_t k = 1; ok && k <= depth && p.n_look; k++)
        ok = split_round(&p, k);
    if (ok)
        name_first(&p);
    for (size_t i = 1; i < sizeof lists / sizeof *lists; i++)
        mem_free(*lists[i]);
    mem_free(p.from);
    mem_free(p.look);
    if (!ok)
        mem_free(p.class);
    return ok ? p.class : NULL;
}
