/* regex_until.c -- a pattern's strings between marks: those in which the mark behind them does not
 * stand, as the product of three automata that read the same bytes:
 *
 *     pattern (regex.c)  x  how much of the mark was just read  x  how much of not_first, from the
 *         begin on
 *
 * A byte that would complete one of the latter two has no edge. */
#include "text/grammar/regex/regex.h"

#include <string.h>

#include "base/mem.h"

enum { MARK_MOST = 256, FIRST_MOST = 16, MOST = 1 << 22 };

struct both {
    struct rules *r, own; /* own: the pattern's */
    const struct regex_end *end;
    struct slice unique;
    uint16_t (*next)[256]; /* [unique.n] by how much was read */
    uint8_t ends[2][MARK_MOST]; /* whether a string may end there, without a line end of its own and
                                   with one */
    uint32_t *state;            /* of r + 1, by place */
    uint32_t *todo, n_todo, cap_todo;
    uint32_t *first, *order; /* edges of `own` by where they begin */
    uint32_t n_first;        /* begins of not_first, and one for what is none */
};
struct place {
    uint32_t q, read, first, line; /* first: n_first - 1: it began otherwise; line: behind one */
};

static uint32_t index_of(const struct both *b, struct place p)
{
    return ((p.q * (uint32_t)b->unique.n + p.read) * b->n_first + p.first) * 2 + p.line;
}

static struct place place_of(const struct both *b, uint32_t i)
{
    struct place p = {.line = i & 1};
    i >>= 1;
    p.first = i % b->n_first;
    i /= b->n_first;
    p.read = i % (uint32_t)b->unique.n;
    p.q = i / (uint32_t)b->unique.n;
    return p;
}

static uint32_t reach(struct both *b, struct place p)
{
    uint32_t i = index_of(b, p);
    if (b->state[i])
        return b->state[i] - 1;
    uint32_t state = rules_state(b->r);
    b->state[i] = state + 1;
    if (mem_grow(&b->todo, &b->cap_todo, (uint64_t)b->n_todo + 1, sizeof *b->todo,
                 PITH_MEM_SCRATCH))
        b->todo[b->n_todo++] = i;
    else
        rules_fail(b->r, PITH_NOMEM, "out of memory for a pattern");
    return state;
}

/* Where a byte leads; 0: nowhere. */
static int behind_byte(const struct both *b, struct place p, uint8_t byte, struct place *to)
{
    const struct regex_end *e = b->end;
    uint32_t none = b->n_first - 1;
    if (p.first == 0 && e->line_end && byte == '\n')
        return 0;
    *to = (struct place){.read = b->next[p.read][byte], .first = none, .line = byte == '\n'};
    if (to->read == b->unique.n)
        return 0;
    if (p.first < none && p.first < e->not_first.n && (uint8_t)e->not_first.p[p.first] == byte)
        to->first = p.first + 1;
    return to->first != e->not_first.n || !e->not_first.n;
}

static int same(struct place a, struct place b)
{
    return a.read == b.read && a.first == b.first && a.line == b.line;
}

static void put_bytes(struct both *b, uint32_t at, struct place p, const struct rules_edge *e)
{
    struct place to, run = {0};
    int begin = -1;
    for (int c = e->lo; c <= e->hi + 1; c++) {
        int open = c <= e->hi && behind_byte(b, p, (uint8_t)c, &to);
        if (begin >= 0 && (!open || !same(to, run))) {
            run.q = e->to;
            rules_bytes(b->r, at, reach(b, run), (uint8_t)begin, (uint8_t)(c - 1));
            begin = -1;
        }
        if (open && begin < 0) {
            begin = c;
            run = to;
        }
    }
}

/* 1: a string that ends here is read back whole, the mark behind it. */
static int ends_here(const struct both *b, size_t read, int with_line)
{
    size_t n = 0;
    if (with_line)
        read = b->next[read]['\n'];
    for (; read < b->unique.n && n < b->end->mark.n; n++)
        read = b->next[read][(uint8_t)b->end->mark.p[n]];
    return read == b->unique.n && n == b->unique.n;
}

static int prepare(struct both *b)
{
    size_t n = b->unique.n;
    b->next = mem_array(n, sizeof *b->next, PITH_MEM_SCRATCH);
    b->first = mem_array((size_t)b->own.n_states + 2, sizeof *b->first, PITH_MEM_SCRATCH);
    b->order = mem_array((size_t)b->own.n_edges + 1, sizeof *b->order, PITH_MEM_SCRATCH);
    b->state = mem_array((size_t)b->own.n_states * n * b->n_first * 2, sizeof *b->state,
                         PITH_MEM_SCRATCH);
    if (!b->next || !b->first || !b->order || !b->state)
        return 0;
    for (size_t k = 0; k < n; k++)
        for (int c = 0; c < 256; c++)
            b->next[k][c] = (uint16_t)rules_overlap(b->unique, k, (uint8_t)c);
    for (size_t k = 0; k < n; k++) {
        int line = ends_here(b, k, 1), plain = ends_here(b, k, 0);
        b->ends[0][k] = (uint8_t)(plain && (line || !b->end->line_end));
        b->ends[1][k] = (uint8_t)(b->end->line_end ? line : plain);
    }
    for (uint32_t i = 0; i < b->own.n_edges; i++)
        b->first[b->own.edge[i].from + 2]++;
    for (uint32_t q = 1; q < b->own.n_states; q++)
        b->first[q + 1] += b->first[q];
    for (uint32_t i = 0; i < b->own.n_edges; i++)
        b->order[b->first[b->own.edge[i].from + 1]++] = i;
    return 1;
}

/* At how many places a string may end. */
static int write_all(struct both *b, uint32_t from, uint32_t start, uint32_t last, uint32_t to,
                     uint32_t to_line)
{
    int n_ends = 0;
    rules_edge(b->r, from, reach(b, (struct place){.q = start}), EDGE_EPS, 0);
    while (b->n_todo && rules_ok(b->r)) {
        uint32_t i = b->todo[--b->n_todo], at = b->state[i] - 1;
        struct place p = place_of(b, i);
        if (!rules_spend(b->r, 1 + b->first[p.q + 1] - b->first[p.q]))
            break;
        if (p.q == last && b->ends[p.line][p.read]) {
            rules_edge(b->r, at, p.line && b->end->line_end ? to_line : to, EDGE_EPS, 0);
            n_ends++;
        }
        for (uint32_t k = b->first[p.q]; k < b->first[p.q + 1]; k++) {
            const struct rules_edge *e = &b->own.edge[b->order[k]];
            struct place same_place = p;
            same_place.q = e->to;
            if (e->kind == EDGE_BYTES)
                put_bytes(b, at, p, e);
            else
                rules_edge(b->r, at, reach(b, same_place), EDGE_EPS, 0);
        }
    }
    return n_ends;
}

/* The first n patterns; 1: written. last: a failure stays in r. *all_hold: all of them do. */
static int write_until(struct both *b, uint32_t from, uint32_t to, uint32_t to_line,
                       const struct regex_all *all, uint32_t min, uint32_t max, int last,
                       int *all_hold)
{
    struct rules *r = b->r;
    const struct regex_end *end = b->end;
    rules_init(&b->own);
    b->n_first = (uint32_t)end->not_first.n + 2;
    uint32_t start = rules_state(&b->own), behind = rules_state(&b->own);
    *all_hold = regex_write_all(&b->own, start, behind, all, min, max, 0);
    r->steps += b->own.steps;
    uint64_t places = (uint64_t)b->own.n_states * b->unique.n * b->n_first * 2;
    int flat = 1, n_ends = 0, large;
    for (uint32_t i = 0; i < b->own.n_edges; i++)
        flat = flat && (b->own.edge[i].kind == EDGE_BYTES || b->own.edge[i].kind == EDGE_EPS);
    large = !flat || places > MOST || !b->unique.n || b->unique.n >= MARK_MOST ||
            end->not_first.n > FIRST_MOST;
    if (!rules_ok(&b->own))
        rules_fail(r, b->own.err.code, "%s", b->own.err.msg);
    else if (large && last)
        rules_fail(r, PITH_UNSUPPORTED, "the pattern is too large together with what ends it");
    else if (!large && !prepare(b))
        rules_fail(r, PITH_NOMEM, "out of memory for a pattern");
    else if (!large)
        n_ends = write_all(b, from, start, behind, to, to_line);
    if (last && !n_ends)
        rules_fail(r, PITH_UNSUPPORTED, "no text of this pattern can stand before \"%.*s\"",
                   (int)end->mark.n, end->mark.p);
    mem_free(b->next);
    mem_free(b->first);
    mem_free(b->order);
    mem_free(b->state);
    mem_free(b->todo);
    rules_deinit(&b->own);
    return n_ends > 0;
}

int regex_write_until(struct rules *r, uint32_t from, uint32_t to, uint32_t to_line,
                      const struct regex_all *all, uint32_t min, uint32_t max,
                      const struct regex_end *end)
{
    struct regex_all must = *all;
    struct rules_mark mark = rules_mark(r);
    int all_hold;
    must.n = all->n_must;
    for (int last = all->n == must.n; last < 2 && rules_ok(r); last++) {
        struct both b = {.r = r, .end = end, .unique = end->unique.n ? end->unique : end->mark};
        if (write_until(&b, from, to, to_line, last ? &must : all, min, max, last, &all_hold))
            return all_hold && (!last || all->n == must.n);
        if (!rules_ok(r))
            break;
        r->n_states = mark.states; /* nothing else was written */
        r->n_edges = mark.edges;
    }
    return 1;
}
