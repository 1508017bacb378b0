/* regex.c -- a pattern becomes an automaton over characters, then rules over bytes.
 *
 *     "a+b$"  ──parse──>  states, edges {set of characters, nothing, ^, $, look-ahead}  ──write──>
 *             rules (regex_product.c)
 *
 * Several patterns that must hold for one string are parts of one automaton, and so is what a
 * look-ahead asks for: one part is read state by state, the others are watched beside it
 * (regex_watch.c).
 */
#include "text/grammar/regex/regex_impl.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

int regex_refuse(struct regex *x, const char *what)
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
            return regex_refuse(x, "wanted a code point in the braces of \\u{}");
        x->p += n + 2;
        return 1;
    }
    if (!hex(x, x->p, 4, cp))
        return regex_refuse(x, "wanted four hex digits after \\u");
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
        return *cp != UINT32_MAX ? 1 : regex_refuse(x, "not UTF-8");
    }
    if (++x->p >= x->end)
        return regex_refuse(x, "ends with a backslash");
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
            return regex_refuse(x, "wanted two hex digits after \\x");
        x->p += 2;
    } else if (c == 'c' && x->p < x->end && ((*x->p | 0x20) >= 'a' && (*x->p | 0x20) <= 'z')) {
        *cp = *x->p++ & 31;
    } else if (c == '0' && !(x->p < x->end && *x->p >= '0' && *x->p <= '9')) {
        *cp = 0;
    } else if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c & 0x80)) {
        x->p--;
        return regex_refuse(x, "this escape is not supported (classes are \\d \\w \\s; no \\b, "
                               "\\p, back references)");
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
                return regex_refuse(x, "the range of a class ends before it begins");
            }
        }
        if (lo != UINT32_MAX)
            charset_add(set, lo, hi);
    }
    if (x->p >= x->end)
        return regex_refuse(x, "a class without ']'");
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
            return regex_refuse(x, "a repetition {m,n} whose m is above n");
        x->p += next_is(x, '?'); /* lazy: the same strings */
        piece = rules_repeat(&x->nfa, mark, piece, min, max);
        if (x->p < x->end && strchr("*+?", *x->p))
            return regex_refuse(x, "nothing to repeat");
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

/* Behind "(?": what it is; 0: refused. *ahead: 1 and -1 for a look-ahead and its opposite. */
static int read_group_kind(struct regex *x, int *ahead)
{
    const char *p = x->p + 1, *close = NULL;
    char c = (char)(p < x->end ? *p : 0), d = (char)(x->end - p > 1 ? p[1] : 0);
    if (c == '<' && (d == '=' || d == '!'))
        return regex_refuse(x, "look-behind is not supported");
    if (c == '<' || (c == 'P' && d == '<')) /* a name */
        close = memchr(p, '>', (size_t)(x->end - p));
    if (c == '=' || c == '!')
        *ahead = c == '=' ? 1 : -1;
    else if (c != ':' && !close)
        return regex_refuse(x, c && strchr("aiLmsux-", c)
                                   ? "flags inside a pattern, as (?i), are not supported"
                                   : "this kind of group is not supported");
    if (*ahead && x->n_open_aheads)
        return regex_refuse(x, "a look-ahead inside a look-ahead is not supported");
    x->p = close ? close + 1 : p + 1;
    return 1;
}

static int open_group(struct regex *x)
{
    int ahead = 0;
    x->p++;
    if (next_is(x, '?') && !read_group_kind(x, &ahead))
        return 0;
    if (x->depth == REGEX_DEPTH)
        return regex_refuse(x, "groups are nested too deep");
    struct rules_mark mark = rules_mark(&x->nfa);
    x->level[++x->depth] =
        (struct regex_level){mark, rules_state(&x->nfa), rules_state(&x->nfa), x->at, ahead};
    x->n_open_aheads += ahead != 0;
    begin_sequence(x);
    return 1;
}

/* One more part; its number. */
static uint32_t put_part(struct regex *x, struct regex_part part)
{
    if (x->n_parts == REGEX_PARTS) {
        regex_refuse(x, "over 32 look-aheads and patterns for one string are not supported");
        return 0;
    }
    x->part[x->n_parts] = part;
    return x->n_parts++;
}

static int close_group(struct regex *x)
{
    end_sequence(x);
    const struct regex_level *l = &x->level[x->depth--];
    x->at = l->before;
    x->p++;
    if (!l->ahead)
        return finish_item(x, l->mark, (struct rules_piece){l->start, l->end});
    uint32_t to = rules_state(&x->nfa);
    rules_edge(&x->nfa, x->at, to, (enum rules_edge_kind)EDGE_AHEAD,
               put_part(x, (struct regex_part){.start = l->start,
                                               .end = l->end,
                                               .negative = l->ahead < 0}));
    x->at = to;
    x->n_open_aheads--;
    if (x->p < x->end && strchr("*+?{", *x->p))
        return regex_refuse(x, "nothing to repeat");
    return rules_ok(&x->nfa) && rules_ok(x->r);
}

static int read_anchor(struct regex *x)
{
    uint32_t to = rules_state(&x->nfa);
    rules_edge(&x->nfa, x->at, to, (enum rules_edge_kind)(*x->p == '^' ? EDGE_BEGIN : EDGE_END), 0);
    x->at = to;
    x->p++;
    return !(x->p < x->end && strchr("*+?", *x->p)) ? 1 : regex_refuse(x, "nothing to repeat");
}

static int parse(struct regex *x)
{
    x->level[0] = (struct regex_level){.start = rules_state(&x->nfa), .end = rules_state(&x->nfa)};
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
            ok = x->depth ? close_group(x) : regex_refuse(x, "')' without '('");
        } else if (c == '^' || c == '$') {
            ok = read_anchor(x);
        } else if (c && strchr("*+?", c)) {
            ok = regex_refuse(x, "nothing to repeat");
        } else {
            ok = read_set(x, &piece) && finish_item(x, mark, piece);
        }
        if (!ok || !rules_ok(&x->nfa))
            return 0;
    }
    end_sequence(x);
    return x->depth == 0 ? 1 : regex_refuse(x, "'(' without ')'");
}

/* ---------------------------------------------------------------- several patterns */

/* Reads one more pattern that holds besides. The one with look-aheads is read state by state. */
static int parse_more(struct regex *x, struct slice pattern)
{
    uint32_t n_parts = x->n_parts, n_states = x->nfa.n_states;
    x->pattern = pattern;
    x->p = pattern.p;
    x->end = pattern.p + pattern.n;
    if (!parse(x))
        return 0;
    struct rules_piece piece = {x->level[0].start, x->level[0].end}, other = piece;
    if (!n_states) {
        x->main = piece;
        x->main_looks = x->n_parts > 0;
        return 1;
    }
    if (x->n_parts > n_parts && x->main_looks)
        return regex_refuse(x, "two patterns with look-ahead for one string are not supported");
    if (x->n_parts > n_parts) {
        other = x->main;
        x->main = piece;
        x->main_looks = 1;
    }
    put_part(x, (struct regex_part){.start = other.start, .end = other.end, .searched = 1});
    return rules_ok(x->r);
}

static enum regex_result write_some(struct rules *r, uint32_t from, uint32_t to,
                                    const struct regex_all *all, uint32_t n, uint32_t min,
                                    uint32_t max, int as_json, int whole)
{
    struct regex *x = arena_alloc(&r->arena, sizeof *x);
    enum regex_result result = REGEX_FAILED;
    int ok = 1;
    if (!x) {
        rules_fail(r, PITH_NOMEM, "out of memory for a pattern");
        return result;
    }
    *x = (struct regex){.r = r, .whole = whole};
    rules_init(&x->nfa);
    x->nfa.flat = 1;
    for (uint32_t i = 0; i < n && ok; i++)
        ok = parse_more(x, all->v[i]);
    if (ok && rules_ok(r))
        result = regex_product(x, from, to, min, max, as_json);
    if (!rules_ok(&x->nfa))
        rules_fail(r, x->nfa.err.code, "pattern: %s", x->nfa.err.msg);
    r->steps += x->nfa.steps; /* these have ticked */
    if (result == REGEX_TOO_LARGE && n == all->n_must)
        regex_refuse(x, n > 1 || x->n_parts ? "too large together with look-ahead, other patterns, "
                                              "minLength or maxLength"
                                            : "too large together with minLength or maxLength");
    rules_deinit(&x->nfa);
    for (uint32_t i = 0; i < x->n_sets; i++)
        charset_deinit(&x->set[i]);
    mem_free(x->set);
    return result;
}

int regex_write_all(struct rules *r, uint32_t from, uint32_t to, const struct regex_all *all,
                    uint32_t min, uint32_t max, int as_json)
{
    struct rules_mark mark = rules_mark(r);
    if (all->n > all->n_must) {
        if (write_some(r, from, to, all, all->n, min, max, as_json, 0) == REGEX_DONE ||
            !rules_ok(r))
            return 1;
        r->n_states = mark.states; /* nothing else was written */
        r->n_edges = mark.edges;
    }
    write_some(r, from, to, all, all->n_must, min, max, as_json, 0);
    return all->n == all->n_must;
}

void regex_write(struct rules *r, uint32_t from, uint32_t to, struct slice pattern, uint32_t min,
                 uint32_t max, int as_json)
{
    write_some(r, from, to, &(struct regex_all){{pattern}, 1, 1}, 1, min, max, as_json, 0);
}

void regex_write_whole(struct rules *r, uint32_t from, uint32_t to, struct slice pattern)
{
    write_some(r, from, to, &(struct regex_all){{pattern}, 1, 1}, 1, 0, RULES_ENDLESS, 0, 1);
}
