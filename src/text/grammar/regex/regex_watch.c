/* regex_watch.c -- what is asked of the characters to come while a pattern is read: look-aheads,
 * and other patterns that hold besides.
 *
 *     (?!ab)cd     tuple {not ab: at 0}  --'c'-->  {} : it cannot be found any more
 *                                        --'a'-->  {not ab: at 1}  --'b'-->  no way on
 *
 * Each is read as a deterministic automaton whose states, sets of states of the pattern's, are made
 * when they are first reached. A *tuple* is all that is watched at a place. What has been found
 * leaves it, or ends the way where it must not be found. */
#include "text/grammar/regex/regex_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    MOST_RANGES = 1 << 12,
    MOST_CELLS = 1 << 22, /* of a table */
    MOST_STATES = 1 << 14,
    MOST_TUPLE = 16,      /* states in one */
    FOUND = UINT32_MAX,   /* whatever follows */
    LOST = UINT32_MAX - 1
};

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t no_memory(struct watch *w)
{
    rules_fail(w->x->r, PITH_NOMEM, "out of memory for a pattern");
    return WATCH_DEAD;
}

/* ---------------------------------------------------------------- characters */

static int find_ranges(struct watch *w)
{
    struct regex *x = w->x;
    uint64_t n = 1;
    for (uint32_t i = 0; i < x->n_sets; i++)
        n += 2 * (uint64_t)x->set[i].n;
    w->begin = mem_array((size_t)n, sizeof *w->begin, PITH_MEM_SCRATCH);
    if (!w->begin || n > UINT32_MAX)
        return 0;
    uint32_t n_begins = 1; /* the first one is 0 */
    for (uint32_t i = 0; i < x->n_sets; i++) {
        for (uint32_t k = 0; k < x->set[i].n; k++) {
            w->begin[n_begins++] = x->set[i].v[k].lo;
            if (x->set[i].v[k].hi < CHARSET_LAST)
                w->begin[n_begins++] = x->set[i].v[k].hi + 1;
        }
    }
    rules_spend(x->r, n_begins);
    qsort(w->begin, n_begins, sizeof *w->begin, by_number);
    for (uint32_t i = 0; i < n_begins; i++)
        if (!i || w->begin[i] != w->begin[w->n_ranges - 1])
            w->begin[w->n_ranges++] = w->begin[i];
    w->too_large = w->n_ranges > MOST_RANGES;
    return !w->too_large;
}

/* Splits classes by each set in turn. */
static int find_classes(struct watch *w)
{
    struct regex *x = w->x;
    w->class_of = mem_array(w->n_ranges, sizeof *w->class_of, PITH_MEM_SCRATCH);
    w->sample = mem_array((size_t)w->n_ranges, sizeof *w->sample, PITH_MEM_SCRATCH);
    uint32_t *split = mem_array((size_t)w->n_ranges, sizeof *split, PITH_MEM_SCRATCH);
    w->n_classes = 1;
    for (uint32_t i = 0; w->class_of && split && i < x->n_sets && rules_ok(x->r); i++) {
        const struct charset *set = &x->set[i];
        uint32_t n = w->n_classes;
        uint8_t *all = mem_array(n, 2, PITH_MEM_SCRATCH); /* some outside; some inside */
        if (!all)
            break;
        for (int pass = 0; pass < 2; pass++) {
            for (uint32_t k = 0, at = 0; k < w->n_ranges; k++) {
                while (at < set->n && set->v[at].hi < w->begin[k])
                    at++;
                int in = at < set->n && set->v[at].lo <= w->begin[k];
                uint32_t c = w->class_of[k];
                if (!pass) {
                    all[2 * c + (uint32_t)in] = 1;
                } else if (in && all[2 * c]) {
                    if (all[2 * c + 1] == 1) {
                        all[2 * c + 1] = 2;
                        split[c] = w->n_classes++;
                    }
                    w->class_of[k] = split[c];
                }
            }
        }
        mem_free(all);
        rules_spend(x->r, w->n_ranges / 8);
    }
    int ok = w->class_of && split && w->sample;
    mem_free(split);
    for (uint32_t k = 0; ok && k < w->n_ranges; k++)
        w->sample[w->class_of[k]] = w->begin[k];
    return ok;
}

static int find_members(struct watch *w)
{
    struct regex *x = w->x;
    uint64_t cells = (uint64_t)w->n_classes * (x->n_sets + 1);
    w->too_large = cells > MOST_CELLS;
    w->in = w->too_large ? NULL : mem_array((size_t)cells, 1, PITH_MEM_SCRATCH);
    if (!w->in)
        return 0;
    for (uint32_t i = 0; i < x->n_sets; i++) {
        for (uint32_t c = 0; c < w->n_classes; c++) {
            uint32_t low = 0, high = x->set[i].n; /* the first range that ends behind it */
            while (low < high) {
                uint32_t mid = (low + high) / 2;
                if (x->set[i].v[mid].hi < w->sample[c])
                    low = mid + 1;
                else
                    high = mid;
            }
            w->in[(size_t)i * w->n_classes + c] =
                low < x->set[i].n && x->set[i].v[low].lo <= w->sample[c];
        }
        rules_spend(x->r, w->n_classes);
    }
    return 1;
}

/* ---------------------------------------------------------------- states of one part */

int regex_is_anchored(const struct regex *x, struct rules_piece piece, uint8_t *seen,
                      uint32_t *stack)
{
    uint32_t n = 1;
    int anchored = 1;
    memset(seen, 0, 2 * (size_t)x->nfa.n_states);
    stack[0] = piece.start;
    seen[piece.start] = 1;
    while (n) {
        uint32_t q = stack[--n];
        anchored &= q != piece.end;
        for (uint32_t k = x->first[q]; k < x->first[q + 1]; k++) {
            const struct rules_edge *e = &x->edge[k];
            anchored &= e->kind != EDGE_SET;
            if (e->kind == EDGE_SET || e->kind == EDGE_BEGIN || seen[e->to])
                continue;
            seen[e->to] = 1;
            stack[n++] = e->to;
        }
    }
    return anchored;
}

static uint32_t q_before(const struct watch *w)
{
    return w->x->nfa.n_states;
}

/* Begins a set of states. */
static void begin_set(struct watch *w)
{
    w->n_list = 0;
    memset(w->seen, 0, 2 * (size_t)w->x->nfa.n_states);
    rules_spend(w->x->r, w->x->nfa.n_states / 16);
}

/* Adds what a state reaches by nothing: 1: there the part is found, whatever follows. *ends: if
 * nothing follows. */
static int add_reached(struct watch *w, uint32_t part, uint32_t from, int begun, int *ends)
{
    struct regex *x = w->x;
    uint32_t n = 0;
    if (!w->seen[2 * from])
        w->stack[n++] = 2 * from;
    w->seen[2 * from] = 1;
    while (n) {
        uint32_t i = w->stack[--n], q = i / 2;
        int closed = (int)(i & 1), keep = 0;
        if (q == x->part[part].end) {
            *ends = 1;
            if (!closed)
                return 1;
        }
        rules_spend(x->r, 1 + x->first[q + 1] - x->first[q]);
        for (uint32_t k = x->first[q]; k < x->first[q + 1]; k++) {
            const struct rules_edge *e = &x->edge[k];
            uint32_t to = 2 * e->to + (closed || e->kind == EDGE_END);
            keep |= e->kind == EDGE_SET && !closed;
            if (e->kind == EDGE_SET || (e->kind == EDGE_BEGIN && begun) || w->seen[to])
                continue;
            w->seen[to] = 1;
            w->stack[n++] = to;
        }
        if (keep)
            w->list[w->n_list++] = q;
    }
    return 0;
}

/* The number of the state that is w->list. */
static uint32_t intern_state(struct watch *w, uint32_t part, int ends)
{
    struct rules *r = w->x->r;
    uint32_t state = w->n_states;
    if (!w->n_list && !ends)
        return LOST;
    qsort(w->list, w->n_list, sizeof *w->list, by_number);
    uint32_t *key = arena_array(&r->arena, (size_t)w->n_list + 2, sizeof *key);
    if (!key)
        return no_memory(w), LOST;
    key[0] = part;
    key[1] = (uint32_t)ends;
    memcpy(key + 2, w->list, w->n_list * sizeof *key);
    struct slice text = {(const char *)key, (w->n_list + 2) * sizeof *key};
    rules_spend(r, 1 + w->n_list);
    if (map_get(&w->states, text, &state))
        return state;
    if (w->n_states == MOST_STATES || (uint64_t)w->n_states * w->n_classes > MOST_CELLS) {
        w->too_large = 1;
        return LOST;
    }
    uint32_t *next = arena_array(&r->arena, w->n_classes, sizeof *next);
    if (!next || map_put(&w->states, text, state) < 0 ||
        !mem_grow(&w->state, &w->cap_states, (uint64_t)state + 1, sizeof *w->state,
                  PITH_MEM_SCRATCH))
        return no_memory(w), LOST;
    memset(next, 0, w->n_classes * sizeof *next);
    w->state[w->n_states++] = (struct watch_state){part, w->n_list, key + 2, next, ends};
    return state;
}

static uint32_t begin_part(struct watch *w, uint32_t part, int begun)
{
    const struct regex_part *p = &w->x->part[part];
    uint32_t *known = &w->initial[part][begun];
    int ends = 0;
    if (*known)
        return *known - 1;
    begin_set(w);
    if (p->searched && !w->anchored[part])
        w->list[w->n_list++] = q_before(w);
    uint32_t state =
        add_reached(w, part, p->start, begun, &ends) ? FOUND : intern_state(w, part, ends);
    if (state < LOST)
        *known = state + 1;
    return state;
}

static uint32_t step_state(struct watch *w, uint32_t from, uint32_t class)
{
    const struct watch_state *s = &w->state[from];
    struct regex *x = w->x;
    uint32_t part = s->part, state = LOST;
    int ends = 0, found = 0;
    if (s->next[class])
        return s->next[class] == 1 ? LOST : s->next[class] == 2 ? FOUND : s->next[class] - 3;
    begin_set(w);
    for (uint32_t i = 0; i < s->n && !found; i++) {
        uint32_t q = s->q[i];
        if (q == q_before(w)) {
            w->list[w->n_list++] = q;
            found = add_reached(w, part, x->part[part].start, 1, &ends);
            continue;
        }
        for (uint32_t k = x->first[q]; k < x->first[q + 1] && !found; k++)
            if (x->edge[k].kind == EDGE_SET &&
                w->in[(size_t)x->edge[k].value * w->n_classes + class])
                found = add_reached(w, part, x->edge[k].to, 1, &ends);
    }
    state = found ? FOUND : intern_state(w, part, ends);
    w->state[from].next[class] = state == LOST ? 1 : state == FOUND ? 2 : state + 3;
    return state;
}

/* ---------------------------------------------------------------- tuples */

/* n states in any order, some of them more than once. */
static uint32_t intern_tuple(struct watch *w, uint32_t *v, uint32_t n)
{
    struct rules *r = w->x->r;
    uint32_t n_kept = 0, tuple = w->n_tuples;
    qsort(v, n, sizeof *v, by_number);
    for (uint32_t i = 0; i < n; i++)
        if (!n_kept || v[i] != v[n_kept - 1])
            v[n_kept++] = v[i];
    struct slice text = {(const char *)v, n_kept * sizeof *v};
    if (!n_kept)
        return WATCH_NOTHING;
    if (map_get(&w->tuples, text, &tuple))
        return tuple;
    uint32_t *kept = arena_array(&r->arena, (size_t)n_kept + 1, sizeof *kept);
    if (!kept || !mem_grow(&w->tuple, &w->cap_tuples, (uint64_t)tuple + 1, sizeof *w->tuple,
                           PITH_MEM_SCRATCH))
        return no_memory(w);
    kept[0] = n_kept;
    memcpy(kept + 1, v, text.n);
    if (map_put(&w->tuples, (struct slice){(const char *)(kept + 1), text.n}, tuple) < 0)
        return no_memory(w);
    w->tuple[w->n_tuples++] = kept;
    return tuple;
}

/* Appends a state to those of a tuple. 0: no way on. */
static int put_state(struct watch *w, uint32_t part, uint32_t state, uint32_t *v, uint32_t *n)
{
    int negative = w->x->part[part].negative;
    if (w->too_large)
        return 0;
    if (state == FOUND || state == LOST)
        return (state == FOUND) != negative;
    if (*n == MOST_TUPLE) {
        w->too_large = 1;
        return 0;
    }
    v[(*n)++] = state;
    return 1;
}

uint32_t watch_add(struct watch *w, uint32_t tuple, uint32_t part, int begun)
{
    uint32_t v[MOST_TUPLE], n = w->tuple[tuple][0];
    memcpy(v, w->tuple[tuple] + 1, n * sizeof *v);
    if (!put_state(w, part, begin_part(w, part, begun), v, &n))
        return WATCH_DEAD;
    return intern_tuple(w, v, n);
}

uint32_t watch_step(struct watch *w, uint32_t tuple, uint32_t class)
{
    uint32_t v[MOST_TUPLE], n = 0;
    rules_spend(w->x->r, w->tuple[tuple][0]);
    for (uint32_t i = 0; i < w->tuple[tuple][0]; i++) {
        uint32_t state = w->tuple[tuple][1 + i], part = w->state[state].part;
        if (!put_state(w, part, step_state(w, state, class), v, &n))
            return WATCH_DEAD;
    }
    return intern_tuple(w, v, n);
}

int watch_ends(const struct watch *w, uint32_t tuple)
{
    const uint32_t *v = w->tuple[tuple];
    for (uint32_t i = 0; i < v[0]; i++) {
        const struct watch_state *s = &w->state[v[1 + i]];
        if (s->ends == w->x->part[s->part].negative)
            return 0;
    }
    return 1;
}

/* ---------------------------------------------------------------- all of it */

int watch_init(struct watch *w, struct regex *x)
{
    static const uint32_t nothing[] = {0};
    uint32_t n = x->nfa.n_states;
    *w = (struct watch){.x = x};
    map_init(&w->states, PITH_MEM_SCRATCH);
    map_init(&w->tuples, PITH_MEM_SCRATCH);
    w->seen = mem_array((size_t)n + 1, 2, PITH_MEM_SCRATCH);
    w->stack = mem_array(2 * (size_t)n + 2, sizeof *w->stack, PITH_MEM_SCRATCH);
    w->list = mem_array(2 * (size_t)n + 2, sizeof *w->list, PITH_MEM_SCRATCH);
    if (!w->seen || !w->stack || !w->list ||
        !mem_grow(&w->tuple, &w->cap_tuples, 1, sizeof *w->tuple, PITH_MEM_SCRATCH))
        return 0;
    w->tuple[w->n_tuples++] = nothing;
    if (!x->n_parts) /* characters are not looked at one by one */
        return 1;
    if (!find_ranges(w) || !find_classes(w) || !find_members(w))
        return 0;
    for (uint32_t i = 0; i < x->n_parts; i++) {
        struct rules_piece piece = {x->part[i].start, x->part[i].end};
        w->anchored[i] = (uint8_t)regex_is_anchored(x, piece, w->seen, w->stack);
    }
    return 1;
}

void watch_deinit(struct watch *w)
{
    map_deinit(&w->states);
    map_deinit(&w->tuples);
    mem_free(w->begin);
    mem_free(w->class_of);
    mem_free(w->in);
    mem_free(w->sample);
    mem_free(w->state);
    mem_free(w->tuple);
    mem_free(w->seen);
    mem_free(w->stack);
    mem_free(w->list);
}
