/* regex.c -- a pattern becomes an automaton over characters, then rules over bytes.
 *
 *     "a+b$"  ──parse──>  states, edges {set of characters, nothing, ^, $}  ──write──>  states (q,
 *             anchors, length)
 *
 * The second step walks all reachable combinations of a state of the first, what ^ and $ have to
 * know (something was read; nothing may follow) and how many characters were read, as far as the
 * bounds of the length need it. So anchors work wherever they stand and a pattern goes together
 * with minLength and maxLength.
 */
#include "text/grammar/regex.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* Kinds of edges behind those of rules.h, in the automaton over characters alone. */
enum { EDGE_SET = 100, EDGE_BEGIN, EDGE_END };

struct level {
    struct rules_mark mark;
    uint32_t start, end, before;
};
struct regex {
    struct rules *r; /* where failures go */
    struct rules nfa;
    struct slice pattern;
    const char *p, *end;
    struct charset *set; /* of EDGE_SET edges */
    uint32_t n_sets, cap_sets;
    uint32_t at;
    int depth, whole; /* whole: nothing may stand around it */
    struct level level[REGEX_DEPTH + 1];
};

static int refuse(struct regex *x, const char *what)
{
    int n = (int)(x->pattern.n < 80 ? utf8_complete(x->pattern.p, x->pattern.n)
                                    : utf8_complete(x->pattern.p, 80));
    rules_fail(x->r, PITH_UNSUPPORTED, "pattern \"%.*s\", byte %lld: %s", n, x->pattern.p,
               (long long)(x->p - x->pattern.p), what);
    return 0;
}

static int next_is(const struct regex *x, char c)
{
    return x->p < x->end && *x->p == c;
}

/* ---------------------------------------------------------------- characters */

static void add_class(struct charset *to, char which)
{
    static const struct charset_range digit[] = {{'0', '9'}},
                                      word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                      space[] = {{9, 13},          {32, 32},
                                                 {0xA0, 0xA0},     {0x1680, 0x1680},
                                                 {0x2000, 0x200A}, {0x2028, 0x2029},
                                                 {0x202F, 0x202F}, {0x205F, 0x205F},
                                                 {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    struct charset set = CHARSET_INIT;
    int low = which | 0x20;
    const struct charset_range *v = low == 'd' ? digit : low == 'w' ? word : space;
    size_t n = low == 'd' ? 1 : low == 'w' ? 4 : sizeof space / sizeof space[0];
    for (size_t i = 0; i < n; i++)
        charset_add(&set, v[i].lo, v[i].hi);
    if (low != which)
        charset_invert(&set);
    charset_put(to, &set);
    charset_deinit(&set);
}

static int hex(const struct regex *x, const char *p, int n, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < n; i++) {
        char c = (char)(p + i < x->end ? p[i] : 0), low = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *cp = *cp << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *cp = *cp << 4 | (uint32_t)(low - 'a' + 10);
        else
            return 0;
    }
    return 1;
}

/* Behind \u: four digits, a pair of them, or any number in braces. */
static int read_u(struct regex *x, uint32_t *cp)
{
    uint32_t low;
    if (next_is(x, '{')) {
        int n = 0;
        while (x->p + 1 + n < x->end && x->p[1 + n] != '}')
            n++;
        if (n < 1 || n > 6 || !hex(x, x->p + 1, n, cp) || x->p + 1 + n >= x->end ||
            *cp > CHARSET_LAST)
            return refuse(x, "wanted a code point in the braces of \\u{}");
        x->p += n + 2;
        return 1;
    }
    if (!hex(x, x->p, 4, cp))
        return refuse(x, "wanted four hex digits after \\u");
    x->p += 4;
    if (*cp >= 0xD800 && *cp < 0xDC00 && x->end - x->p >= 6 && x->p[0] == '\\' && x->p[1] == 'u' &&
        hex(x, x->p + 2, 4, &low) && low >= 0xDC00 && low < 0xE000) {
        *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        x->p += 6;
    }
    return 1;
}

/* One character, plain or escaped, to *cp, or a class like \d to the set (*cp = UINT32_MAX). */
static int read_char(struct regex *x, struct charset *set, uint32_t *cp)
{
    static const char from[] = "tnvfr", to[] = "\t\n\v\f\r";
    if (*x->p != '\\') {
        x->p += utf8_decode(x->p, (size_t)(x->end - x->p), cp);
        return *cp != UINT32_MAX ? 1 : refuse(x, "not UTF-8");
    }
    if (++x->p >= x->end)
        return refuse(x, "ends with a backslash");
    char c = *x->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *cp = (uint8_t)to[at - from];
    } else if (c && strchr("dDwWsS", c)) {
        add_class(set, c);
        *cp = UINT32_MAX;
    } else if (c == 'u') {
        return read_u(x, cp);
    } else if (c == 'x') {
        if (!hex(x, x->p, 2, cp))
            return refuse(x, "wanted two hex digits after \\x");
        x->p += 2;
    } else if (c == 'c' && x->p < x->end && ((*x->p | 0x20) >= 'a' && (*x->p | 0x20) <= 'z')) {
        *cp = *x->p++ & 31;
    } else if (c == '0' && !(x->p < x->end && *x->p >= '0' && *x->p <= '9')) {
        *cp = 0;
    } else if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c & 0x80)) {
        x->p--;
        return refuse(x, "this escape is not supported (classes are \\d \\w \\s; no \\b, \\p, back "
                         "references)");
    } else {
        *cp = (uint8_t)c;
    }
    return 1;
}

static int read_class(struct regex *x, struct charset *set)
{
    x->p++;
    int invert = next_is(x, '^');
    x->p += invert;
    while (x->p < x->end && *x->p != ']') {
        uint32_t lo, hi;
        int backspace = x->end - x->p > 1 && x->p[0] == '\\' && x->p[1] == 'b';
        if (backspace) {
            lo = '\b';
            x->p += 2;
        } else if (!read_char(x, set, &lo)) {
            return 0;
        }
        hi = lo;
        if (lo != UINT32_MAX && x->end - x->p > 1 && x->p[0] == '-' && x->p[1] != ']') {
            x->p++;
            if (!read_char(x, set, &hi))
                return 0;
            if (hi == UINT32_MAX) { /* [a-\d]: the dash is one */
                charset_add(set, '-', '-');
                hi = lo;
            } else if (hi < lo) {
                return refuse(x, "the range of a class ends before it begins");
            }
        }
        if (lo != UINT32_MAX)
            charset_add(set, lo, hi);
    }
    if (x->p >= x->end)
        return refuse(x, "a class without ']'");
    x->p++;
    charset_sort(set);
    if (invert)
        charset_invert(set);
    return 1;
}

/* ---------------------------------------------------------------- pattern to automaton */

/* Takes the set over. */
static uint32_t put_set(struct regex *x, struct charset *set)
{
    charset_sort(set);
    if (set->failed || !mem_grow(&x->set, &x->cap_sets, (uint64_t)x->n_sets + 1, sizeof *x->set,
                                 PITH_MEM_SCRATCH)) {
        charset_deinit(set);
        rules_fail(x->r, PITH_NOMEM, "out of memory for a pattern");
        return 0;
    }
    x->set[x->n_sets] = *set;
    return x->n_sets++;
}

static int read_set(struct regex *x, struct rules_piece *piece)
{
    struct charset set = CHARSET_INIT;
    uint32_t cp = UINT32_MAX;
    int ok = 1;
    if (*x->p == '[') {
        ok = read_class(x, &set);
    } else if (*x->p == '.') {
        static const struct charset_range line_ends[] = {
            {'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
        for (int i = 0; i < 3; i++)
            charset_add(&set, line_ends[i].lo, line_ends[i].hi);
        charset_invert(&set);
        x->p++;
    } else {
        ok = read_char(x, &set, &cp);
        if (cp != UINT32_MAX)
            charset_add(&set, cp, cp);
    }
    if (!ok) {
        charset_deinit(&set);
        return 0;
    }
    *piece = (struct rules_piece){rules_state(&x->nfa), rules_state(&x->nfa)};
    rules_edge(&x->nfa, piece->start, piece->end, (enum rules_edge_kind)EDGE_SET, put_set(x, &set));
    return 1;
}

/* {m}, {m,}, {m,n}; 0 and nothing read when it is none of them: then the brace is a character. */
static int read_bounds(struct regex *x, uint32_t *min, uint32_t *max)
{
    const char *p = x->p + 1;
    uint64_t v[2] = {0, 0};
    int n_digits[2] = {0, 0}, k = 0;
    for (; p < x->end && *p != '}'; p++) {
        if (*p == ',' && k == 0)
            k = 1;
        else if (*p >= '0' && *p <= '9' && v[k] < RULES_ENDLESS)
            v[k] = 10 * v[k] + (uint64_t)(*p - '0'), n_digits[k]++;
        else
            return 0;
    }
    if (p >= x->end || !n_digits[0])
        return 0;
    x->p = p + 1;
    *min = (uint32_t)(v[0] < RULES_ENDLESS ? v[0] : RULES_ENDLESS - 1);
    *max = !k ? *min : !n_digits[1] || v[1] >= RULES_ENDLESS ? RULES_ENDLESS : (uint32_t)v[1];
    return 1;
}

static int finish_item(struct regex *x, struct rules_mark mark, struct rules_piece piece)
{
    uint32_t min = 0, max = RULES_ENDLESS;
    char c = (char)(x->p < x->end ? *x->p : 0);
    int repeats = c == '*' || c == '+' || c == '?';
    if (repeats) {
        min = c == '+';
        max = c == '?' ? 1 : RULES_ENDLESS;
        x->p++;
    } else {
        repeats = c == '{' && read_bounds(x, &min, &max);
    }
    if (repeats) {
        if (min > max)
            return refuse(x, "a repetition {m,n} whose m is above n");
        x->p += next_is(x, '?'); /* lazy: the same strings */
        piece = rules_repeat(&x->nfa, mark, piece, min, max);
        if (x->p < x->end && strchr("*+?", *x->p))
            return refuse(x, "nothing to repeat");
    }
    rules_edge(&x->nfa, x->at, piece.start, EDGE_EPS, 0);
    x->at = piece.end;
    return rules_ok(&x->nfa) && rules_ok(x->r);
}

static void begin_sequence(struct regex *x)
{
    x->at = rules_state(&x->nfa);
    rules_edge(&x->nfa, x->level[x->depth].start, x->at, EDGE_EPS, 0);
}

static void end_sequence(struct regex *x)
{
    rules_edge(&x->nfa, x->at, x->level[x->depth].end, EDGE_EPS, 0);
}

static int open_group(struct regex *x)
{
    x->p++;
    if (next_is(x, '?')) {
        const char *close = x->end - x->p > 2 && x->p[1] == '<' && x->p[2] != '=' && x->p[2] != '!'
                                ? memchr(x->p, '>', (size_t)(x->end - x->p))
                                : NULL;
        if (x->end - x->p > 1 && x->p[1] == ':')
            x->p += 2;
        else if (close)
            x->p = close + 1;
        else
            return refuse(x, "look-around is not supported");
    }
    if (x->depth == REGEX_DEPTH)
        return refuse(x, "groups are nested too deep");
    struct rules_mark mark = rules_mark(&x->nfa);
    x->level[++x->depth] = (struct level){mark, rules_state(&x->nfa), rules_state(&x->nfa), x->at};
    begin_sequence(x);
    return 1;
}

static int close_group(struct regex *x)
{
    end_sequence(x);
    const struct level *l = &x->level[x->depth--];
    x->at = l->before;
    x->p++;
    return finish_item(x, l->mark, (struct rules_piece){l->start, l->end});
}

static int read_anchor(struct regex *x)
{
    uint32_t to = rules_state(&x->nfa);
    rules_edge(&x->nfa, x->at, to, (enum rules_edge_kind)(*x->p == '^' ? EDGE_BEGIN : EDGE_END), 0);
    x->at = to;
    x->p++;
    return !(x->p < x->end && strchr("*+?", *x->p)) ? 1 : refuse(x, "nothing to repeat");
}

static int parse(struct regex *x)
{
    x->level[0] = (struct level){.start = rules_state(&x->nfa), .end = rules_state(&x->nfa)};
    begin_sequence(x);
    while (x->p < x->end) {
        struct rules_mark mark = rules_mark(&x->nfa);
        struct rules_piece piece;
        char c = *x->p;
        int ok = 1;
        if (c == '|') {
            end_sequence(x);
            begin_sequence(x);
            x->p++;
        } else if (c == '(') {
            ok = open_group(x);
        } else if (c == ')') {
            ok = x->depth ? close_group(x) : refuse(x, "')' without '('");
        } else if (c == '^' || c == '$') {
            ok = read_anchor(x);
        } else if (c && strchr("*+?", c)) {
            ok = refuse(x, "nothing to repeat");
        } else {
            ok = read_set(x, &piece) && finish_item(x, mark, piece);
        }
        if (!ok || !rules_ok(&x->nfa))
            return 0;
    }
    end_sequence(x);
    return x->depth == 0 ? 1 : refuse(x, "'(' without ')'");
}

/* ---------------------------------------------------------------- automaton to rules */

enum { STARTED = 1, CLOSED = 2, N_PHASES = 4 }; /* something was read; nothing may follow */

/* A combination of state, phase and length, numbered by its place in `state`. */
struct product {
    struct regex *x;
    uint32_t n_lengths, min, max, q_before, q_behind;
    uint32_t *state; /* of the rules, 0: not reached */
    uint32_t *todo;
    uint32_t n_todo, cap_todo;
};

static uint32_t reach(struct product *d, uint32_t q, uint32_t phase, uint32_t length)
{
    uint32_t i = (q * N_PHASES + phase) * d->n_lengths + length;
    if (!d->state[i]) {
        d->state[i] = rules_state(d->x->r);
        if (mem_grow(&d->todo, &d->cap_todo, (uint64_t)d->n_todo + 1, sizeof *d->todo,
                     PITH_MEM_SCRATCH))
            d->todo[d->n_todo++] = i;
        else
            rules_fail(d->x->r, PITH_NOMEM, "out of memory for a pattern");
    }
    return d->state[i];
}

static void write_edge(struct product *d, uint32_t from, uint32_t kind, const struct charset *set,
                       uint32_t q, uint32_t phase, uint32_t length, int as_json)
{
    struct rules *r = d->x->r;
    if (kind == EDGE_SET) {
        if ((phase & CLOSED) || length == d->max)
            return;
        rules_chars(r, from,
                    reach(d, q, phase | STARTED, length + 1 < d->n_lengths ? length + 1 : length),
                    set, as_json);
    } else if (kind == EDGE_EPS || kind == EDGE_END || !(phase & STARTED)) {
        rules_edge(r, from, reach(d, q, phase | (kind == EDGE_END ? CLOSED : 0), length), EDGE_EPS,
                   0);
    }
}

/* Edges of the automaton in order of where they begin: first[q] .. first[q + 1]. */
static void write_product(struct product *d, const uint32_t *first, const struct rules_edge *edge,
                          uint32_t from, uint32_t to, int as_json)
{
    struct charset_range all_range = {0, CHARSET_LAST};
    struct charset all = {&all_range, 1, 1, 0};
    struct regex *x = d->x;
    rules_edge(x->r, from, reach(d, d->q_before, 0, 0), EDGE_EPS, 0);
    while (d->n_todo && rules_ok(x->r)) {
        uint32_t i = d->todo[--d->n_todo], at = d->state[i];
        uint32_t length = i % d->n_lengths, phase = i / d->n_lengths % N_PHASES,
                 q = i / d->n_lengths / N_PHASES;
        if ((q == d->q_before || q == d->q_behind) && !x->whole)
            write_edge(d, at, EDGE_SET, &all, q, phase, length, as_json);
        if (q == d->q_before)
            write_edge(d, at, EDGE_EPS, NULL, x->level[0].start, phase, length, as_json);
        else if (q == x->level[0].end)
            write_edge(d, at, EDGE_EPS, NULL, d->q_behind, phase, length, as_json);
        else if (q == d->q_behind && length >= d->min)
            rules_edge(x->r, at, to, EDGE_EPS, 0);
        for (uint32_t k = q < x->nfa.n_states ? first[q] : 0;
             q < x->nfa.n_states && k < first[q + 1]; k++)
            write_edge(d, at, edge[k].kind,
                       edge[k].kind == EDGE_SET ? &x->set[edge[k].value] : NULL, edge[k].to, phase,
                       length, as_json);
    }
}

static void write_rules(struct regex *x, uint32_t from, uint32_t to, uint32_t min, uint32_t max,
                        int as_json)
{
    enum { MOST = 1 << 22 };
    uint32_t n = x->nfa.n_states, n_edges = x->nfa.n_edges;
    uint64_t n_lengths = (uint64_t)(max == RULES_ENDLESS ? min : max) + 1, total;
    if (size_mul(n_lengths, (uint64_t)(n + 2) * N_PHASES, &total) || total > MOST) {
        refuse(x, "too large together with minLength or maxLength");
        return;
    }
    struct product d = {x, (uint32_t)n_lengths, min, max, n, n + 1, NULL, NULL, 0, 0};
    uint32_t *first = mem_array((size_t)n + 2, sizeof *first, PITH_MEM_SCRATCH);
    struct rules_edge *edge = mem_array(n_edges, sizeof *edge, PITH_MEM_SCRATCH);
    d.state = mem_array((size_t)total, sizeof *d.state, PITH_MEM_SCRATCH);
    if (first && edge && d.state) {
        for (uint32_t i = 0; i < n_edges; i++)
            first[x->nfa.edge[i].from + 2]++;
        for (uint32_t q = 1; q < n; q++)
            first[q + 1] += first[q];
        for (uint32_t i = 0; i < n_edges; i++)
            edge[first[x->nfa.edge[i].from + 1]++] = x->nfa.edge[i];
        write_product(&d, first, edge, from, to, as_json);
    } else {
        rules_fail(x->r, PITH_NOMEM, "out of memory for a pattern");
    }
    mem_free(first);
    mem_free(edge);
    mem_free(d.state);
    mem_free(d.todo);
}

static void write_pattern(struct rules *r, uint32_t from, uint32_t to, struct slice pattern,
                          uint32_t min, uint32_t max, int as_json, int whole)
{
    struct regex *x = arena_alloc(&r->arena, sizeof *x);
    if (!x) {
        rules_fail(r, PITH_NOMEM, "out of memory for a pattern");
        return;
    }
    *x = (struct regex){.r = r, .pattern = pattern, .p = pattern.p, .end = pattern.p + pattern.n};
    x->whole = whole;
    rules_init(&x->nfa);
    x->nfa.flat = 1;
    if (parse(x) && rules_ok(r))
        write_rules(x, from, to, min, max, as_json);
    if (!rules_ok(&x->nfa))
        rules_fail(r, x->nfa.err.code, "pattern: %s", x->nfa.err.msg);
    rules_deinit(&x->nfa);
    for (uint32_t i = 0; i < x->n_sets; i++)
        charset_deinit(&x->set[i]);
    mem_free(x->set);
}

void regex_write(struct rules *r, uint32_t from, uint32_t to, struct slice pattern, uint32_t min,
                 uint32_t max, int as_json)
{
    write_pattern(r, from, to, pattern, min, max, as_json, 0);
}

void regex_write_whole(struct rules *r, uint32_t from, uint32_t to, struct slice pattern)
{
    write_pattern(r, from, to, pattern, 0, RULES_ENDLESS, 0, 1);
}
