/* rules.c -- writing rules: states, edges, the bytes of characters, repetition by copies. */
#include "text/grammar/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"

void rules_init(struct rules *r)
{
    *r = (struct rules){.err = {.code = PITH_OK}};
    arena_init(&r->arena, PITH_MEM_SCRATCH);
    map_init(&r->names, PITH_MEM_SCRATCH);
    str_init(&r->unkept, PITH_MEM_SCRATCH);
}

void rules_deinit(struct rules *r)
{
    arena_deinit(&r->arena);
    map_deinit(&r->names);
    str_deinit(&r->unkept);
    mem_free(r->rule);
    mem_free(r->edge);
}

pith_status rules_fail(struct rules *r, pith_status st, const char *fmt, ...)
{
    char msg[sizeof r->err.msg];
    va_list ap;
    if (!rules_ok(r))
        return r->err.code;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return error_set(&r->err, st, "%s", msg);
}

void rules_unkept(struct rules *r, const char *keyword, struct slice value)
{
    enum { MOST_VALUE = 40, MOST = 1000 };
    char line[128];
    int n = snprintf(line, sizeof line, "\n%.60s%s%.*s\n", keyword, value.n ? " " : "",
                     (int)(value.n < MOST_VALUE ? value.n : MOST_VALUE), value.n ? value.p : "");
    for (int i = 1; i < n - 1; i++)
        line[i] = line[i] >= ' ' && line[i] <= '~' ? line[i] : '?';
    if (!r->unkept.n) /* each stands between line ends */
        str_putc(&r->unkept, '\n');
    if (r->unkept.p && r->unkept.n < MOST && !strstr(r->unkept.p, line))
        str_put(&r->unkept, line + 1, (size_t)n - 1);
    if (r->unkept.failed)
        rules_fail(r, PITH_NOMEM, "out of memory for a grammar");
}

int rules_spend(struct rules *r, uint64_t steps)
{
    r->steps += steps;
    if (!work_tick(steps))
        rules_fail(r, PITH_CANCELLED, "grammar: cancelled");
    else if (r->steps > RULES_MAX_STEPS)
        rules_fail(r, PITH_RANGE, "grammar: it takes over %d steps to read; wanted a shorter one",
                   RULES_MAX_STEPS);
    return rules_ok(r);
}

static pith_status no_memory(struct rules *r)
{
    return rules_fail(r, PITH_NOMEM, "out of memory for a grammar of %u rules", r->n_rules);
}

uint32_t rules_new(struct rules *r, struct slice name)
{
    if (r->n_rules >= RULES_MAX) {
        rules_fail(r, PITH_RANGE, "grammar: over %d rules", RULES_MAX);
        return 0;
    }
    struct slice copy = {arena_strndup(&r->arena, name.p, name.n), name.n};
    if (!copy.p ||
        !mem_grow(&r->rule, &r->cap_rules, (uint64_t)r->n_rules + 1, sizeof *r->rule,
                  PITH_MEM_SCRATCH) ||
        map_put(&r->names, copy, r->n_rules) < 0) {
        no_memory(r);
        return 0;
    }
    r->rule[r->n_rules] =
        (struct rule){.name = copy, .start = rules_state(r), .end = rules_state(r)};
    return r->n_rules++;
}

int rules_find(const struct rules *r, struct slice name, uint32_t *rule)
{
    return map_get(&r->names, name, rule);
}

uint32_t rules_state(struct rules *r)
{
    if (r->n_states >= RULES_MAX_STATES) {
        rules_fail(r, PITH_RANGE, "grammar: over %d states; repetitions or lengths are too large",
                   RULES_MAX_STATES);
        return 0;
    }
    return r->n_states++;
}

struct rules_mark rules_mark(const struct rules *r)
{
    return (struct rules_mark){r->n_states, r->n_edges};
}

static void put(struct rules *r, struct rules_edge e)
{
    if (!rules_spend(r, 1))
        return;
    if (r->n_edges >= RULES_MAX_EDGES) {
        rules_fail(r, PITH_RANGE, "grammar: over %d edges; repetitions or lengths are too large",
                   RULES_MAX_EDGES);
        return;
    }
    if (!mem_grow(&r->edge, &r->cap_edges, (uint64_t)r->n_edges + 1, sizeof *r->edge,
                  PITH_MEM_SCRATCH)) {
        no_memory(r);
        return;
    }
    r->edge[r->n_edges++] = e;
}

void rules_edge(struct rules *r, uint32_t from, uint32_t to, enum rules_edge_kind kind,
                uint32_t value)
{
    put(r, (struct rules_edge){from, to, value, (uint8_t)kind, 0, 0});
}

void rules_bytes(struct rules *r, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
    put(r, (struct rules_edge){from, to, 0, EDGE_BYTES, lo, hi});
}

uint32_t rules_text(struct rules *r, uint32_t from, const char *p, size_t n)
{
    for (size_t i = 0; i < n && rules_ok(r); i++) {
        uint32_t to = rules_state(r);
        rules_bytes(r, from, to, (uint8_t)p[i], (uint8_t)p[i]);
        from = to;
    }
    return from;
}

uint32_t rules_call(struct rules *r, uint32_t from, uint32_t rule)
{
    uint32_t to = rules_state(r);
    rules_edge(r, from, to, EDGE_CALL, rule);
    return to;
}

/* ---------------------------------------------------------------- characters */

/* The states from which 1, 2, 3 more digits of any value lead to the end; made when first used. */
struct tails {
    uint32_t state[5]; /* [0] the end itself */
    int made[5];
};

/* How the digits of a number are written: UTF-8 continuation bytes (6 bits), hex digits (4). */
struct digits {
    int bits, last; /* value bits of a digit; its highest value */
    void (*edge)(struct rules *r, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
};

static void edge_utf8(struct rules *r, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    rules_bytes(r, from, to, (uint8_t)(0x80 | lo), (uint8_t)(0x80 | hi));
}

static void edge_hex(struct rules *r, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (lo <= 9)
        rules_bytes(r, from, to, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 9 ? hi : 9)));
    if (hi > 9) {
        uint32_t a = lo > 10 ? lo - 10 : 0, b = hi - 10;
        rules_bytes(r, from, to, (uint8_t)('a' + a), (uint8_t)('a' + b));
        rules_bytes(r, from, to, (uint8_t)('A' + a), (uint8_t)('A' + b));
    }
}

static const struct digits utf8_digits = {6, 0x3F, edge_utf8}, hex_digits = {4, 0xF, edge_hex};

static uint32_t tail(struct rules *r, const struct digits *d, struct tails *t, int n)
{
    for (int i = 1; i <= n; i++) {
        if (!t->made[i]) {
            t->made[i] = 1;
            t->state[i] = rules_state(r);
            d->edge(r, t->state[i], t->state[i - 1], 0, (uint32_t)d->last);
        }
    }
    return t->state[n];
}

/* The numbers lo..hi of n digits that follow `from`. A range is split where digits differ: the part
 * up to the next round number, the round part whose tail is free, the rest; each of the ragged
 * parts has one digit less to differ in, so the loops are bounded by n. */
static void number_range(struct rules *r, const struct digits *d, struct tails *t, uint32_t from,
                         uint32_t lo, uint32_t hi, int n)
{
    while (n > 0 && lo <= hi && rules_ok(r)) {
        int shift = d->bits * (n - 1);
        uint32_t low = (1u << shift) - 1, a = lo >> shift, b = hi >> shift;
        if (n > 1 && a == b) { /* the first digit is the same */
            uint32_t to = rules_state(r);
            d->edge(r, from, to, a, a);
            from = to;
            lo &= low;
            hi &= low;
            n--;
            continue;
        }
        if (n > 1 && (hi & low) != low) { /* ragged at the top: a chain of its own */
            uint32_t to = rules_state(r), at = hi & low;
            d->edge(r, from, to, b, b);
            for (int k = n - 1; k > 0; k--) {
                int s = d->bits * (k - 1);
                uint32_t digit = at >> s;
                if (k == 1) {
                    d->edge(r, to, t->state[0], 0, digit);
                } else {
                    uint32_t next = rules_state(r);
                    if (digit > 0)
                        d->edge(r, to, tail(r, d, t, k - 1), 0, digit - 1);
                    d->edge(r, to, next, digit, digit);
                    to = next;
                    at &= (1u << s) - 1;
                }
            }
            b--;
            hi = (b << shift) | low;
            continue;
        }
        if (n > 1 && (lo & low) != 0) { /* ragged at the bottom */
            uint32_t to = rules_state(r), at = lo & low;
            d->edge(r, from, to, a, a);
            for (int k = n - 1; k > 0; k--) {
                int s = d->bits * (k - 1);
                uint32_t digit = at >> s;
                if (k == 1) {
                    d->edge(r, to, t->state[0], digit, (uint32_t)d->last);
                } else {
                    uint32_t next = rules_state(r);
                    if (digit < (uint32_t)d->last)
                        d->edge(r, to, tail(r, d, t, k - 1), digit + 1, (uint32_t)d->last);
                    d->edge(r, to, next, digit, digit);
                    to = next;
                    at &= (1u << s) - 1;
                }
            }
            lo = (a + 1) << shift;
            continue;
        }
        d->edge(r, from, tail(r, d, t, n - 1), a, b);
        return;
    }
}

/* Code points of one UTF-8 length as lead byte and continuation bytes. */
static void utf8_range(struct rules *r, struct tails *t, uint32_t from, uint32_t lo, uint32_t hi,
                       int n, uint8_t mark)
{
    int shift = 6 * n;
    for (uint32_t lead = lo >> shift; lead <= hi >> shift && rules_ok(r);) {
        uint32_t low = (1u << shift) - 1;
        uint32_t a = lead == lo >> shift ? lo & low : 0, b = lead == hi >> shift ? hi & low : low;
        uint32_t last = lead;
        if (a == 0 && b == low) { /* leads whose tails are all free share one edge */
            last = (hi & low) == low ? hi >> shift : (hi >> shift) - 1;
            rules_bytes(r, from, tail(r, &utf8_digits, t, n), (uint8_t)(mark | lead),
                        (uint8_t)(mark | last));
        } else {
            uint32_t to = rules_state(r);
            rules_bytes(r, from, to, (uint8_t)(mark | lead), (uint8_t)(mark | lead));
            number_range(r, &utf8_digits, t, to, a, b, n);
        }
        lead = last + 1;
    }
}

static void chars_utf8(struct rules *r, uint32_t from, uint32_t to, const struct charset *set)
{
    static const struct {
        uint32_t lo, hi;
        int n;
        uint8_t mark;
    } lengths[] = {{0, 0x7F, 0, 0},
                   {0x80, 0x7FF, 1, 0xC0},
                   {0x800, 0xD7FF, 2, 0xE0},
                   {0xE000, 0xFFFF, 2, 0xE0},
                   {0x10000, CHARSET_LAST, 3, 0xF0}};
    struct tails t = {.state = {to}};
    for (uint32_t i = 0; i < set->n; i++) {
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            uint32_t lo = set->v[i].lo > lengths[k].lo ? set->v[i].lo : lengths[k].lo;
            uint32_t hi = set->v[i].hi < lengths[k].hi ? set->v[i].hi : lengths[k].hi;
            if (lo > hi)
                continue;
            if (lengths[k].n)
                utf8_range(r, &t, from, lo, hi, lengths[k].n, lengths[k].mark);
            else
                rules_bytes(r, from, to, (uint8_t)lo, (uint8_t)hi);
        }
    }
}

/* A \u with its four hex digits, and pairs of them above U+FFFF; `from` is behind the first
 * backslash. */
static void chars_u(struct rules *r, uint32_t from, uint32_t to, const struct charset *set)
{
    struct tails t = {.state = {to}};
    uint32_t u = rules_state(r);
    rules_bytes(r, from, u, 'u', 'u');
    for (uint32_t i = 0; i < set->n && rules_ok(r); i++) {
        uint32_t lo = set->v[i].lo, hi = set->v[i].hi;
        if (lo <= 0xD7FF)
            number_range(r, &hex_digits, &t, u, lo, hi < 0xD7FF ? hi : 0xD7FF, 4);
        if (lo <= 0xFFFF && hi >= 0xE000)
            number_range(r, &hex_digits, &t, u, lo > 0xE000 ? lo : 0xE000,
                         hi < 0xFFFF ? hi : 0xFFFF, 4);
        if (hi <= 0xFFFF)
            continue;
        lo = lo > 0x10000 ? lo - 0x10000 : 0;
        hi -= 0x10000;
        while (lo <= hi && rules_ok(r)) { /* first halves that go with the same second halves */
            uint32_t a = lo >> 10, b = a, low_a = lo & 0x3FF, low_b = 0x3FF;
            if (low_a == 0 && (hi >> 10 > a))
                b = (hi & 0x3FF) == 0x3FF ? hi >> 10 : (hi >> 10) - 1;
            else if (hi >> 10 == a)
                low_b = hi & 0x3FF;
            uint32_t half = rules_state(r), slash = rules_text(r, half, "\\u", 2);
            struct tails first = {.state = {half}};
            number_range(r, &hex_digits, &first, u, 0xD800 + a, 0xD800 + b, 4);
            number_range(r, &hex_digits, &t, slash, 0xDC00 + low_a, 0xDC00 + low_b, 4);
            lo = (b << 10 | low_b) + 1;
        }
    }
}

void rules_chars(struct rules *r, uint32_t from, uint32_t to, const struct charset *set,
                 int as_json)
{
    static const char shorthand[][2] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\b', 'b'},
                                        {'\f', 'f'}, {'\n', 'n'},  {'\r', 'r'}, {'\t', 't'}};
    if (set->failed)
        no_memory(r);
    if (!rules_ok(r) || set->n == 0)
        return;
    if (!as_json) {
        chars_utf8(r, from, to, set);
        return;
    }
    struct charset plain = CHARSET_INIT;
    charset_cut(&plain, set, 0x20, '"' - 1);
    charset_cut(&plain, set, '"' + 1, '\\' - 1);
    charset_cut(&plain, set, '\\' + 1, CHARSET_LAST);
    if (plain.failed)
        no_memory(r);
    chars_utf8(r, from, to, &plain);
    uint32_t slash = rules_state(r);
    rules_bytes(r, from, slash, '\\', '\\');
    for (size_t i = 0; i < sizeof shorthand / sizeof shorthand[0]; i++) {
        for (uint32_t k = 0; k < set->n; k++) {
            uint32_t c = (uint8_t)shorthand[i][0];
            if (set->v[k].lo <= c && c <= set->v[k].hi)
                rules_bytes(r, slash, to, (uint8_t)shorthand[i][1], (uint8_t)shorthand[i][1]);
        }
    }
    chars_u(r, slash, to, set);
    charset_deinit(&plain);
}

/* ---------------------------------------------------------------- text up to a mark */

size_t rules_overlap(struct slice mark, size_t n, uint8_t byte)
{
    for (size_t k = n + 1; k > 0; k--)
        if ((uint8_t)mark.p[k - 1] == byte && !memcmp(mark.p, mark.p + n + 1 - k, k - 1))
            return k;
    return 0;
}

uint32_t rules_until(struct rules *r, uint32_t from, struct slice mark, uint32_t *first)
{
    struct charset_range beyond = {0x80, CHARSET_LAST};
    uint32_t state = r->n_states, behind, other = 0;
    int ascii = 1;
    for (size_t i = 0; i < mark.n; i++) {
        ascii &= (uint8_t)mark.p[i] < 0x80;
        rules_state(r);
    }
    behind = rules_state(r);
    if (!rules_ok(r) || !mark.n)
        return behind;
    if (ascii) {
        other = rules_state(r);
        rules_chars(r, other, state, &(struct charset){&beyond, 1, 1, 0}, 0);
    }
    for (size_t i = 0; i < mark.n; i++) {
        size_t begin = 0, to = rules_overlap(mark, i, 0);
        for (size_t b = 1; b <= (ascii ? 0x80 : 0x100); b++) {
            int over = b == (ascii ? 0x80u : 0x100u);
            size_t next = over ? SIZE_MAX : rules_overlap(mark, i, (uint8_t)b);
            if (next == to)
                continue;
            rules_bytes(r, state + (uint32_t)i, to == mark.n ? behind : state + (uint32_t)to,
                        (uint8_t)begin, (uint8_t)(b - 1));
            begin = b;
            to = next;
        }
        if (ascii)
            rules_edge(r, state + (uint32_t)i, other, EDGE_EPS, 0);
    }
    rules_edge(r, from, state, EDGE_EPS, 0);
    if (first)
        *first = state;
    return behind;
}

/* ---------------------------------------------------------------- repetition */

/* Once more what lies between the marks; returns the distance of its states. */
static uint32_t copy(struct rules *r, struct rules_mark from, struct rules_mark to)
{
    uint32_t by = r->n_states - from.states, n = to.states - from.states;
    if ((uint64_t)r->n_states + n > RULES_MAX_STATES) {
        rules_fail(r, PITH_RANGE,
                   "grammar: a repetition makes over %d states; wanted fewer or shorter copies",
                   RULES_MAX_STATES);
        return 0;
    }
    r->n_states += n;
    for (uint32_t i = from.edges; i < to.edges && rules_ok(r); i++) {
        struct rules_edge e = r->edge[i];
        e.from += by;
        e.to += by;
        put(r, e);
    }
    return by;
}

/* By copies; the piece lies between the marks. */
static struct rules_piece unroll(struct rules *r, struct rules_mark mark, struct rules_mark behind,
                                 struct rules_piece piece, uint32_t min, uint32_t max)
{
    struct rules_piece all = {rules_state(r), rules_state(r)};
    uint32_t copies = max == RULES_ENDLESS ? (min ? min : 1) : max;
    uint32_t at = all.start;
    /* Each copy begins at a state of its own: an edge that leaves there cannot be taken from
     * inside it. */
    for (uint32_t i = 0; i < copies && rules_ok(r); i++) {
        uint32_t by = i ? copy(r, mark, behind) : 0;
        uint32_t next = rules_state(r);
        rules_edge(r, at, piece.start + by, EDGE_EPS, 0);
        rules_edge(r, piece.end + by, next, EDGE_EPS, 0);
        if (i >= min)
            rules_edge(r, at, all.end, EDGE_EPS, 0);
        if (max == RULES_ENDLESS && i + 1 == copies)
            rules_edge(r, next, at, EDGE_EPS, 0);
        at = next;
    }
    rules_edge(r, at, all.end, EDGE_EPS, 0);
    return all;
}

/* ---------------------------------------------------------------- repetition by rules
 *
 *     chunk      the piece c times, as copies                    power k    2^k chunks: power k-1
 *                twice
 *     up to k    less than 2^k chunks:  up to k-1  |  power k-1, up to k-1
 *
 * So a count of n takes log n rules beside the copies of one chunk. Which chunk of a shorter text
 * was left out is not asked: of the ways to read it one a level is alive. What closes the text
 * stands in the rule of its last piece: no other rule may end where any piece does, so that what
 * tokens may come is known of the rule alone (masks.h). */
enum { UNROLL_STATES = 1 << 15, CHUNK_STATES = 1 << 13, POWERS = 32 };

struct counted {
    struct rules *r;
    struct slice name, close;
    uint32_t power[POWERS], up_to[POWERS]; /* rule + 1; 0: not made */
};

static uint32_t new_rule(struct counted *c)
{
    uint32_t rule = rules_new(c->r, c->name);
    if (rules_ok(c->r))
        c->r->rule[rule].defined = 1;
    return rules_ok(c->r) ? rule : 0;
}

static uint32_t power(struct counted *c, int k)
{
    for (int i = 1; i <= k && rules_ok(c->r); i++) {
        if (c->power[i])
            continue;
        uint32_t rule = new_rule(c), below = c->power[i - 1] - 1;
        c->power[i] = rule + 1;
        rules_edge(c->r, rules_call(c->r, c->r->rule[rule].start, below), c->r->rule[rule].end,
                   EDGE_CALL, below);
    }
    return rules_ok(c->r) ? c->power[k] - 1 : 0;
}

/* n times, n at most 2^k. */
static uint32_t call_times(struct counted *c, uint32_t at, uint32_t n)
{
    for (int k = 0; n; k++, n >>= 1) {
        if (n & 1)
            at = rules_call(c->r, at, power(c, k));
    }
    return at;
}

static uint32_t up_to(struct counted *c, int k)
{
    for (int i = 0; i <= k && rules_ok(c->r); i++) {
        if (c->up_to[i])
            continue;
        uint32_t rule = new_rule(c);
        c->up_to[i] = rule + 1;
        uint32_t from = c->r->rule[rule].start, to = c->r->rule[rule].end;
        rules_edge(c->r, from, to, i ? EDGE_CALL : EDGE_EPS, i ? c->up_to[i - 1] - 1 : 0);
        if (i)
            rules_edge(c->r, rules_call(c->r, from, power(c, i - 1)), to, EDGE_CALL,
                       c->up_to[i - 1] - 1);
    }
    return rules_ok(c->r) ? c->up_to[k] - 1 : 0;
}

/* Less than n chunks, and then `behind`; or n chunks, and `last`. */
static void call_up_to(struct counted *c, uint32_t at, uint32_t n, uint32_t behind, uint32_t last)
{
    for (int k = POWERS - 1; k >= 0; k--) {
        if (!(n >> k & 1))
            continue;
        rules_edge(c->r, at, behind, EDGE_CALL, up_to(c, k));
        at = rules_call(c->r, at, power(c, k));
    }
    rules_edge(c->r, at, last, EDGE_EPS, 0);
}

/* A rule of the piece min to max times, the last one: with what closes the text. */
static uint32_t piece_rule(struct counted *c, uint32_t one, uint32_t min, uint32_t max, int last)
{
    struct rules *r = c->r;
    uint32_t rule = new_rule(c);
    struct rules_mark mark = rules_mark(r);
    struct rules_piece p = {rules_state(r), rules_state(r)};
    rules_edge(r, p.start, p.end, EDGE_CALL, one);
    if (!rules_ok(r))
        return 0;
    p = unroll(r, mark, rules_mark(r), p, min, max);
    rules_edge(r, r->rule[rule].start, p.start, EDGE_EPS, 0);
    if (last)
        p.end = rules_text(r, p.end, c->close.p, c->close.n);
    rules_edge(r, p.end, r->rule[rule].end, EDGE_EPS, 0);
    return rules_ok(r) ? rule : 0;
}

static struct rules_piece repeat_by_rules(struct rules *r, uint32_t n_states,
                                          struct rules_piece piece, uint32_t min, uint32_t max,
                                          struct slice close)
{
    struct counted c = {
        .r = r, .name = r->writing.n ? r->writing : SLICE("repetition"), .close = close};
    struct rules_piece all = {rules_state(r), rules_state(r)};
    uint32_t size = n_states < CHUNK_STATES ? CHUNK_STATES / (n_states + 1) : 1, one = new_rule(&c),
             at;
    if (!rules_ok(r))
        return all;
    rules_edge(r, r->rule[one].start, piece.start, EDGE_EPS, 0);
    rules_edge(r, piece.end, r->rule[one].end, EDGE_EPS, 0);
    c.power[0] = (size > 1 ? piece_rule(&c, one, size, size, 0) : one) + 1;
    at = call_times(&c, all.start, min / size);
    if (min % size)
        at = rules_call(r, at, piece_rule(&c, one, min % size, min % size, 0));
    if (max == RULES_ENDLESS && close.n) {
        rules_edge(r, at, all.end, EDGE_CALL, piece_rule(&c, one, 0, max, 1));
    } else if (max == RULES_ENDLESS) {
        rules_edge(r, at, at, EDGE_CALL, one);
        rules_edge(r, at, all.end, EDGE_EPS, 0);
    } else if (max > min || close.n) {
        uint32_t n = (max - min) / size, rest = (max - min) % size, part = rules_state(r),
                 last = rules_state(r);
        int rule = size > 1 || close.n;
        call_up_to(&c, at, n, part, last);
        rules_edge(r, part, all.end, rule ? EDGE_CALL : EDGE_EPS,
                   rule ? piece_rule(&c, one, 0, size - 1, 1) : 0);
        rule = rest || close.n;
        rules_edge(r, last, all.end, rule ? EDGE_CALL : EDGE_EPS,
                   rule ? piece_rule(&c, one, 0, rest, 1) : 0);
    } else {
        rules_edge(r, at, all.end, EDGE_EPS, 0);
    }
    return all;
}

struct rules_piece rules_repeat_to(struct rules *r, struct rules_mark mark,
                                   struct rules_piece piece, uint32_t min, uint32_t max,
                                   struct slice close)
{
    struct rules_mark behind = rules_mark(r);
    uint32_t copies = max == RULES_ENDLESS ? min : max, n = behind.states - mark.states;
    if (!r->draft && !r->flat && (uint64_t)copies * n > UNROLL_STATES)
        return repeat_by_rules(r, n, piece, min, max, close);
    if (!r->draft)
        piece = unroll(r, mark, behind, piece, min, max);
    piece.end = rules_text(r, piece.end, close.p, close.n);
    return piece;
}

struct rules_piece rules_repeat(struct rules *r, struct rules_mark mark, struct rules_piece piece,
                                uint32_t min, uint32_t max)
{
    return rules_repeat_to(r, mark, piece, min, max, SLICE(""));
}

/* ---------------------------------------------------------------- sets */

uint32_t rules_any_order(struct rules *r, struct slice name, const struct rules_set *set)
{
    uint32_t rule = rules_new(r, name);
    if (!rules_ok(r))
        return 0;
    r->rule[rule].defined = 1;
    r->rule[rule].set = set;
    /* What analysis has to know: those that must come are called on the way to the end, the others
     * beside it. */
    uint32_t start = r->rule[rule].start, at = start, behind = rules_state(r);
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->v[i].must)
            at = rules_call(r, rules_call(r, at, set->v[i].rule), set->comma);
        else
            rules_edge(r, start, behind, EDGE_CALL, set->v[i].rule);
    }
    if (set->extra != RULES_NONE)
        rules_edge(r, start, behind, EDGE_CALL, set->extra);
    rules_edge(r, behind, start, EDGE_CALL, set->comma);
    if (at == start)
        rules_edge(r, behind, r->rule[rule].end, EDGE_CALL, set->close);
    if (at != start || set->min == 0)
        rules_edge(r, at, r->rule[rule].end, EDGE_CALL, set->close);
    return rule;
}

uint32_t rules_blanks(struct rules *r, uint32_t from, int most)
{
    for (int i = 0; i < most; i++) {
        uint32_t to = rules_state(r);
        rules_edge(r, from, to, EDGE_EPS, 0);
        rules_bytes(r, from, to, '\t', '\n');
        rules_bytes(r, from, to, '\r', '\r');
        rules_bytes(r, from, to, ' ', ' ');
        from = to;
    }
    return from;
}
