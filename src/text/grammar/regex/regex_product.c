/* regex_product.c -- the automaton of a pattern becomes rules over bytes.
 *
 * All reachable combinations are walked of a state of it, what ^ and $ have to know (something was
 * read; nothing may follow), how many characters were read, as far as the bounds of the length need
 * it, and what is watched (regex_watch.c). So anchors and look-aheads work wherever they stand, and
 * a pattern goes together with minLength and maxLength. */
#include "text/grammar/regex/regex_impl.h"

#include <string.h>

#include "base/mem.h"

enum { STARTED = 1, CLOSED = 2, N_PHASES = 4 }; /* something was read; nothing may follow */
enum {
    MOST_PLACES = 1 << 22,
    MOST_WATCHED = 1 << 16, /* combinations with something watched */
    MOST_EDGES = 1 << 20    /* written for these */
};

struct place {
    uint32_t i, tuple; /* state, phase and length as one number */
};
struct product {
    struct regex *x;
    struct watch watch;
    uint32_t n_lengths, min, max, q_before, q_behind, n_ends;
    uint32_t *state;    /* of the rules + 1, 0: not reached; by place.i where nothing is watched */
    struct map watched; /* place -> state, where something is */
    struct place *todo;
    uint32_t n_todo, cap_todo;
    uint32_t *behind; /* [n_classes] the tuple behind a character */
    int as_json, anchored;
};

static void no_memory(struct product *d)
{
    rules_fail(d->x->r, PITH_NOMEM, "out of memory for a pattern");
}

static uint32_t reach(struct product *d, uint32_t q, uint32_t phase, uint32_t length,
                      uint32_t tuple)
{
    struct rules *r = d->x->r;
    struct place p = {(q * N_PHASES + phase) * d->n_lengths + length, tuple}, *key;
    uint32_t state = r->n_states;
    if (tuple == WATCH_NOTHING && d->state[p.i])
        return d->state[p.i] - 1;
    if (tuple != WATCH_NOTHING &&
        map_get(&d->watched, (struct slice){(const char *)&p, sizeof p}, &state))
        return state;
    rules_state(r);
    if (tuple == WATCH_NOTHING) {
        d->state[p.i] = state + 1;
    } else {
        key = arena_alloc(&r->arena, sizeof *key);
        if (key)
            *key = p;
        if (!key || map_put(&d->watched, (struct slice){(const char *)key, sizeof *key}, state) < 0)
            no_memory(d);
        d->watch.too_large |= d->watched.n > MOST_WATCHED;
    }
    if (mem_grow(&d->todo, &d->cap_todo, (uint64_t)d->n_todo + 1, sizeof *d->todo,
                 PITH_MEM_SCRATCH))
        d->todo[d->n_todo++] = p;
    else
        no_memory(d);
    return state;
}

/* The characters of a set one by one where what is watched reads them in different ways. set: its
 * number, n_sets: all characters. */
static void write_watched(struct product *d, uint32_t from, uint32_t set, uint32_t q,
                          uint32_t phase, uint32_t length, uint32_t tuple)
{
    struct watch *w = &d->watch;
    struct rules *r = d->x->r;
    for (uint32_t c = 0; c < w->n_classes && !w->too_large && rules_ok(r); c++) {
        int in = set == d->x->n_sets || w->in[(size_t)set * w->n_classes + c];
        d->behind[c] = in ? watch_step(w, tuple, c) : WATCH_DEAD;
    }
    for (uint32_t c = 0; c < w->n_classes && !w->too_large && rules_ok(r); c++) {
        struct charset chars = CHARSET_INIT;
        uint32_t to = d->behind[c];
        if (to == WATCH_DEAD)
            continue;
        for (uint32_t k = 0; k < w->n_ranges; k++)
            if (d->behind[w->class_of[k]] == to)
                charset_add(&chars, w->begin[k],
                            k + 1 < w->n_ranges ? w->begin[k + 1] - 1 : CHARSET_LAST);
        for (uint32_t k = c; k < w->n_classes; k++)
            d->behind[k] = d->behind[k] == to ? WATCH_DEAD : d->behind[k];
        charset_sort(&chars);
        rules_spend(r, w->n_ranges);
        rules_chars(r, from, reach(d, q, phase, length, to), &chars, d->as_json);
        charset_deinit(&chars);
    }
}

static void write_set(struct product *d, uint32_t from, uint32_t set, uint32_t q, uint32_t phase,
                      uint32_t length, uint32_t tuple)
{
    struct charset_range all_range = {0, CHARSET_LAST};
    struct charset all = {&all_range, 1, 1, 0};
    if ((phase & CLOSED) || length == d->max)
        return;
    phase |= STARTED;
    length += length + 1 < d->n_lengths;
    if (tuple == WATCH_NOTHING)
        rules_chars(d->x->r, from, reach(d, q, phase, length, tuple),
                    set == d->x->n_sets ? &all : &d->x->set[set], d->as_json);
    else
        write_watched(d, from, set, q, phase, length, tuple);
}

static void write_edge(struct product *d, uint32_t from, const struct rules_edge *e,
                       uint32_t phase, uint32_t length, uint32_t tuple)
{
    uint32_t kind = e->kind;
    if (kind == EDGE_SET) {
        write_set(d, from, e->value, e->to, phase, length, tuple);
        return;
    }
    if (kind == EDGE_BEGIN && (phase & STARTED))
        return;
    if (kind == EDGE_AHEAD)
        tuple = watch_add(&d->watch, tuple, e->value, (phase & STARTED) != 0);
    if (tuple != WATCH_DEAD)
        rules_edge(d->x->r, from,
                   reach(d, e->to, phase | (kind == EDGE_END ? CLOSED : 0), length, tuple),
                   EDGE_EPS, 0);
}

static void write_place(struct product *d, uint32_t at, struct place p, uint32_t to)
{
    struct regex *x = d->x;
    uint32_t length = p.i % d->n_lengths, phase = p.i / d->n_lengths % N_PHASES,
             q = p.i / d->n_lengths / N_PHASES;
    struct rules_edge on = {.kind = EDGE_EPS, .to = UINT32_MAX};
    if (((q == d->q_before && !d->anchored) || q == d->q_behind) && !x->whole)
        write_set(d, at, x->n_sets, q, phase, length, p.tuple);
    if (q == d->q_before)
        on.to = x->main.start;
    else if (q == x->main.end)
        on.to = d->q_behind;
    else if (q == d->q_behind && length >= d->min && watch_ends(&d->watch, p.tuple)) {
        rules_edge(x->r, at, to, EDGE_EPS, 0);
        d->n_ends++;
    }
    if (on.to != UINT32_MAX)
        write_edge(d, at, &on, phase, length, p.tuple);
    for (uint32_t k = q < x->nfa.n_states ? x->first[q] : 0;
         q < x->nfa.n_states && k < x->first[q + 1]; k++)
        write_edge(d, at, &x->edge[k], phase, length, p.tuple);
}

/* All patterns besides are watched from the begin on. */
static uint32_t watch_all(struct product *d)
{
    uint32_t tuple = WATCH_NOTHING;
    for (uint32_t i = 0; i < d->x->n_parts && tuple != WATCH_DEAD; i++)
        if (d->x->part[i].searched)
            tuple = watch_add(&d->watch, tuple, i, 0);
    return tuple;
}

static enum regex_result walk(struct product *d, uint32_t from, uint32_t to)
{
    struct regex *x = d->x;
    struct rules *r = x->r;
    uint32_t tuple = watch_all(d), n_edges = r->n_edges;
    d->anchored = regex_is_anchored(x, x->main, d->watch.seen, d->watch.stack);
    if (tuple != WATCH_DEAD)
        rules_edge(r, from, reach(d, d->q_before, 0, 0, tuple), EDGE_EPS, 0);
    while (d->n_todo && rules_ok(r) && !d->watch.too_large) {
        struct place p = d->todo[--d->n_todo];
        uint32_t state = d->state[p.i] - 1;
        if (p.tuple != WATCH_NOTHING)
            map_get(&d->watched, (struct slice){(const char *)&p, sizeof p}, &state);
        write_place(d, state, p, to);
        d->watch.too_large |= x->n_parts && r->n_edges - n_edges > MOST_EDGES;
    }
    if (d->watch.too_large && rules_ok(r))
        return REGEX_TOO_LARGE;
    return !rules_ok(r) ? REGEX_FAILED : d->n_ends ? REGEX_DONE : REGEX_EMPTY;
}

/* Edges in order of where they begin. 0: no memory. */
static int sort_edges(struct regex *x)
{
    uint32_t n = x->nfa.n_states, n_edges = x->nfa.n_edges;
    x->first = mem_array((size_t)n + 2, sizeof *x->first, PITH_MEM_SCRATCH);
    x->edge = mem_array((size_t)n_edges + 1, sizeof *x->edge, PITH_MEM_SCRATCH);
    if (!x->first || !x->edge)
        return 0;
    for (uint32_t i = 0; i < n_edges; i++)
        x->first[x->nfa.edge[i].from + 2]++;
    for (uint32_t q = 1; q < n; q++)
        x->first[q + 1] += x->first[q];
    for (uint32_t i = 0; i < n_edges; i++)
        x->edge[x->first[x->nfa.edge[i].from + 1]++] = x->nfa.edge[i];
    return 1;
}

enum regex_result regex_product(struct regex *x, uint32_t from, uint32_t to, uint32_t min,
                                uint32_t max, int as_json)
{
    uint32_t n = x->nfa.n_states;
    uint64_t n_lengths = (uint64_t)(max == RULES_ENDLESS ? min : max) + 1, total;
    enum regex_result result = REGEX_FAILED;
    if (size_mul(n_lengths, (uint64_t)(n + 2) * N_PHASES, &total) || total > MOST_PLACES)
        return REGEX_TOO_LARGE;
    struct product d = {.x = x,
                        .n_lengths = (uint32_t)n_lengths,
                        .min = min,
                        .max = max,
                        .q_before = n,
                        .q_behind = n + 1,
                        .as_json = as_json};
    map_init(&d.watched, PITH_MEM_SCRATCH);
    d.state = mem_array((size_t)total, sizeof *d.state, PITH_MEM_SCRATCH);
    int ok = d.state && sort_edges(x) && watch_init(&d.watch, x);
    d.behind = ok ? mem_array((size_t)d.watch.n_classes + 1, sizeof *d.behind, PITH_MEM_SCRATCH)
                  : NULL;
    if (d.behind)
        result = walk(&d, from, to);
    else if (d.watch.too_large)
        result = REGEX_TOO_LARGE;
    else
        no_memory(&d);
    watch_deinit(&d.watch);
    map_deinit(&d.watched);
    mem_free(x->first);
    mem_free(x->edge);
    mem_free(d.state);
    mem_free(d.behind);
    mem_free(d.todo);
    return result;
}
