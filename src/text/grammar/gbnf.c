/* gbnf.c -- one pass over the text that writes edges as it goes.
 *
 *     item       mark ─> piece (start, end) ─> * + ? {m,n} repeat it ─> joined to the sequence
 *                behind `at`
 *     sequence   level.start ─> item ─> item ─> at, then ─> level.end at '|', ')' or the end of the
 *                rule
 *     group      a level on a stack of its own: nesting costs no recursion
 *
 * A newline ends a rule, except inside a group, after '|' and after '::='.
 */
#include "text/grammar/gbnf.h"

#include <string.h>

#include "base/utf8.h"

struct level {
    struct rules_mark mark;
    uint32_t start, end; /* of the alternatives */
    uint32_t before;     /* where the sequence around the group had come to */
};
struct parser {
    struct rules *r;
    const struct vocab *vocab;
    const char *p, *end, *begin;
    int depth;
    uint32_t at; /* end of the sequence so far */
    struct level level[GBNF_DEPTH + 1];
};

static int line_of(const struct parser *g)
{
    int line = 1;
    for (const char *p = g->begin; p < g->p; p++)
        line += *p == '\n';
    return line;
}

/* 0, so that a failure is `return refuse(...)`. */
static int refuse(struct parser *g, const char *wanted)
{
    size_t left = (size_t)(g->end - g->p);
    if (left == 0) {
        rules_fail(g->r, PITH_FORMAT, "grammar, line %d: the text ends; wanted %s", line_of(g),
                   wanted);
    } else {
        size_t n = utf8_complete(g->p, left < 12 ? left : 12);
        const char *newline = memchr(g->p, '\n', n);
        n = newline ? (size_t)(newline - g->p) : n;
        rules_fail(g->r, PITH_FORMAT, "grammar, line %d: found %s%.*s; wanted %s", line_of(g),
                   n ? "" : "a new line", (int)n, g->p, wanted);
    }
    return 0;
}

static int next_is(const struct parser *g, char c)
{
    return g->p < g->end && *g->p == c;
}

static void skip_space(struct parser *g, int newlines)
{
    for (; g->p < g->end; g->p++) {
        if (*g->p == '#') {
            while (g->p < g->end && *g->p != '\n' && *g->p != '\r')
                g->p++;
            if (g->p == g->end)
                return;
        }
        if (!(*g->p == ' ' || *g->p == '\t' || (newlines && (*g->p == '\n' || *g->p == '\r'))))
            return;
    }
}

static struct slice read_name(struct parser *g)
{
    const char *from = g->p;
    while (g->p < g->end && ((*g->p >= 'a' && *g->p <= 'z') || (*g->p >= 'A' && *g->p <= 'Z') ||
                             (*g->p >= '0' && *g->p <= '9') || *g->p == '-' || *g->p == '_'))
        g->p++;
    return (struct slice){from, (size_t)(g->p - from)};
}

/* A count, at most RULES_ENDLESS - 1. 0: there is none, or it is larger. */
static int read_count(struct parser *g, uint32_t *n)
{
    const char *from = g->p;
    uint64_t v = 0;
    while (g->p < g->end && *g->p >= '0' && *g->p <= '9' && v < RULES_ENDLESS)
        v = 10 * v + (uint64_t)(*g->p++ - '0');
    *n = (uint32_t)v;
    return g->p > from && v < RULES_ENDLESS;
}

/* ---------------------------------------------------------------- characters */

static int read_hex(struct parser *g, int n, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < n; i++, g->p++) {
        char c = g->p < g->end ? *g->p : 0, low = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *cp = *cp << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *cp = *cp << 4 | (uint32_t)(low - 'a' + 10);
        else
            return refuse(g, "2 hex digits after \\x, 4 after \\u, 8 after \\U");
    }
    return *cp <= CHARSET_LAST ? 1 : refuse(g, "a code point of at most U+10FFFF before this");
}

/* One character of a literal or a class. */
static int read_char(struct parser *g, uint32_t *cp, int in_class)
{
    if (g->p >= g->end)
        return refuse(g, in_class ? "']'" : "'\"'");
    if (*g->p != '\\') {
        int n = utf8_decode(g->p, (size_t)(g->end - g->p), cp);
        if (*cp == UINT32_MAX)
            return refuse(g, "UTF-8");
        g->p += n;
        return 1;
    }
    static const char from[] = "trn\\\"[]-^", to[] = "\t\r\n\\\"[]-^";
    char c = g->p + 1 < g->end ? g->p[1] : 0;
    const char *at = c ? strchr(from, c) : NULL;
    if (at && (in_class || (c != '-' && c != '^'))) {
        g->p += 2;
        *cp = (uint8_t)to[at - from];
        return 1;
    }
    if (c != 'x' && c != 'u' && c != 'U')
        return refuse(g,
                      "one of the escapes \\t \\r \\n \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
    g->p += 2;
    return read_hex(g, c == 'x' ? 2 : c == 'u' ? 4 : 8, cp);
}

static int is_surrogate(uint32_t cp)
{
    return cp >= 0xD800 && cp <= 0xDFFF;
}

static int read_literal(struct parser *g, struct rules_piece *piece)
{
    uint32_t at = rules_state(g->r), cp;
    piece->start = at;
    for (g->p++; !next_is(g, '"');) {
        char utf8[4];
        if (!read_char(g, &cp, 0))
            return 0;
        if (is_surrogate(cp))
            return refuse(g, "no half of a surrogate pair before this; \\U takes the whole");
        at = rules_text(g->r, at, utf8, (size_t)utf8_encode(cp, utf8));
    }
    g->p++;
    piece->end = at;
    return 1;
}

static int read_class(struct parser *g, struct rules_piece *piece)
{
    struct charset set = CHARSET_INIT;
    int ok = 1, invert;
    g->p++;
    invert = next_is(g, '^');
    g->p += invert;
    if (!invert && next_is(g, ']'))
        ok = refuse(g, "a character; an empty class matches nothing");
    while (ok && !next_is(g, ']')) {
        uint32_t lo, hi;
        ok = read_char(g, &lo, 1);
        hi = lo;
        if (ok && next_is(g, '-') && g->p + 1 < g->end && g->p[1] != ']') {
            g->p++;
            ok = read_char(g, &hi, 1);
            if (ok && hi < lo)
                ok = refuse(g, "a range whose end is not before its beginning");
        }
        charset_add(&set, lo, hi);
    }
    g->p += ok;
    charset_sort(&set);
    if (invert)
        charset_invert(&set);
    *piece = (struct rules_piece){rules_state(g->r), rules_state(g->r)};
    if (ok)
        rules_chars(g->r, piece->start, piece->end, &set, 0);
    charset_deinit(&set);
    return ok;
}

/* <[id]>, <text> and ! before either. */
static int read_token(struct parser *g, struct rules_piece *piece)
{
    enum rules_edge_kind kind = *g->p == '!' ? EDGE_OTHER : EDGE_TOKEN;
    uint32_t id;
    g->p += *g->p == '!';
    const char *close = next_is(g, '<') ? memchr(g->p, '>', (size_t)(g->end - g->p)) : NULL;
    if (!close)
        return refuse(g, "a token, <text> or <[id]>");
    if (g->p[1] == '[') {
        g->p += 2;
        if (!read_count(g, &id) || g->end - g->p < 2 || g->p[0] != ']' || g->p[1] != '>')
            return refuse(g, "the id of a token and \"]>\"");
        if (g->vocab && id >= (uint32_t)vocab_n(g->vocab))
            return refuse(g, "a token id inside the vocabulary before this");
        g->p += 2;
    } else {
        int32_t ids[2];
        size_t n = (size_t)(close + 1 - g->p);
        if (!g->vocab)
            return refuse(g, "a model to find the token in; without one only <[id]>");
        if (vocab_tokenize(g->vocab, g->p, n, PITH_PARSE_SPECIAL, ids, 2, &g->r->err) != 1)
            return rules_ok(g->r) ? refuse(g, "the text of one token of the vocabulary") : 0;
        id = (uint32_t)ids[0];
        g->p = close + 1;
    }
    *piece = (struct rules_piece){rules_state(g->r), rules_state(g->r)};
    rules_edge(g->r, piece->start, piece->end, kind, id);
    return 1;
}

static int read_reference(struct parser *g, struct rules_piece *piece)
{
    struct slice name = read_name(g);
    uint32_t rule;
    if (name.n == 0)
        return refuse(g, "a rule's name, a literal, a class, a group or the end of the rule");
    if (!rules_find(g->r, name, &rule))
        rule = rules_new(g->r, name);
    piece->start = rules_state(g->r);
    piece->end = rules_call(g->r, piece->start, rule);
    return rules_ok(g->r);
}

static int read_any(struct parser *g, struct rules_piece *piece)
{
    struct charset_range all = {0, CHARSET_LAST};
    struct charset set = {&all, 1, 1, 0};
    *piece = (struct rules_piece){rules_state(g->r), rules_state(g->r)};
    rules_chars(g->r, piece->start, piece->end, &set, 0);
    g->p++;
    return 1;
}

/* ---------------------------------------------------------------- items and rules */

/* {m} {m,} {,n} {m,n}, behind the brace. */
static int read_bounds(struct parser *g, uint32_t *min, uint32_t *max)
{
    static const char wanted[] = "a repetition: {m}, {m,}, {,n} or {m,n} with m <= n";
    skip_space(g, 0);
    *min = 0;
    int has_min = !next_is(g, ',');
    if (has_min && !read_count(g, min))
        return refuse(g, wanted);
    *max = *min;
    skip_space(g, 0);
    if (next_is(g, ',')) {
        g->p++;
        skip_space(g, 0);
        *max = RULES_ENDLESS;
        if (!next_is(g, '}') && !read_count(g, max))
            return refuse(g, wanted);
        if (*max == RULES_ENDLESS && !has_min)
            return refuse(g, wanted);
        skip_space(g, 0);
    }
    if (!next_is(g, '}') || *max < *min)
        return refuse(g, wanted);
    g->p++;
    return 1;
}

/* Repeats the piece as often as operators follow, and joins it to the sequence. */
static int finish_item(struct parser *g, struct rules_mark mark, struct rules_piece piece)
{
    for (;;) {
        uint32_t min = 0, max = RULES_ENDLESS;
        skip_space(g, g->depth > 0);
        char c = g->p < g->end ? *g->p : 0;
        if (c != '*' && c != '+' && c != '?' && c != '{')
            break;
        g->p++;
        if (c == '{' && !read_bounds(g, &min, &max))
            return 0;
        if (c == '+')
            min = 1;
        if (c == '?')
            max = 1;
        piece = rules_repeat(g->r, mark, piece, min, max);
        if (!rules_ok(g->r))
            return 0;
    }
    rules_edge(g->r, g->at, piece.start, EDGE_EPS, 0);
    g->at = piece.end;
    return rules_ok(g->r);
}

static void begin_sequence(struct parser *g)
{
    g->at = rules_state(g->r);
    rules_edge(g->r, g->level[g->depth].start, g->at, EDGE_EPS, 0);
}

static void end_sequence(struct parser *g)
{
    rules_edge(g->r, g->at, g->level[g->depth].end, EDGE_EPS, 0);
}

static int open_group(struct parser *g)
{
    if (g->depth == GBNF_DEPTH) {
        rules_fail(g->r, PITH_RANGE, "grammar, line %d: groups are nested deeper than %d levels",
                   line_of(g), GBNF_DEPTH);
        return 0;
    }
    struct rules_mark mark = rules_mark(g->r);
    g->level[++g->depth] = (struct level){mark, rules_state(g->r), rules_state(g->r), g->at};
    begin_sequence(g);
    g->p++;
    return 1;
}

static int close_group(struct parser *g)
{
    end_sequence(g);
    const struct level *l = &g->level[g->depth--];
    g->at = l->before;
    g->p++;
    return finish_item(g, l->mark, (struct rules_piece){l->start, l->end});
}

static int read_item(struct parser *g)
{
    struct rules_mark mark = rules_mark(g->r);
    struct rules_piece piece;
    int (*read)(struct parser *, struct rules_piece *) = *g->p == '"'   ? read_literal
                                                         : *g->p == '[' ? read_class
                                                         : *g->p == '.' ? read_any
                                                         : *g->p == '<' || *g->p == '!'
                                                             ? read_token
                                                             : read_reference;
    return read(g, &piece) && finish_item(g, mark, piece);
}

/* Everything behind "::=". */
static int read_alternatives(struct parser *g)
{
    skip_space(g, 1);
    begin_sequence(g);
    for (;;) {
        skip_space(g, g->depth > 0);
        char c = g->p < g->end ? *g->p : 0;
        int ok = 1;
        if (c == '|') {
            end_sequence(g);
            begin_sequence(g);
            g->p++;
            skip_space(g, 1);
        } else if (c == '(') {
            ok = open_group(g);
        } else if (c == ')' && g->depth > 0) {
            ok = close_group(g);
        } else if (g->depth == 0 && (g->p == g->end || c == '\n' || c == '\r')) {
            end_sequence(g);
            return rules_ok(g->r);
        } else if (g->p == g->end) {
            return refuse(g, "')'");
        } else {
            ok = read_item(g);
        }
        if (!ok || !rules_ok(g->r))
            return 0;
    }
}

static int read_rule(struct parser *g)
{
    struct slice name = read_name(g);
    uint32_t rule;
    rules_spend(g->r, 1 + name.n / 16);
    if (name.n == 0)
        return refuse(g, "a rule: name ::= ...");
    skip_space(g, 0);
    if (g->end - g->p < 3 || memcmp(g->p, "::=", 3))
        return refuse(g, "\"::=\" after the name of a rule");
    g->p += 3;
    if (!rules_find(g->r, name, &rule))
        rule = rules_new(g->r, name);
    if (!rules_ok(g->r))
        return 0;
    if (g->r->rule[rule].defined) {
        rules_fail(g->r, PITH_FORMAT, "grammar, line %d: rule \"%.*s\" is defined twice",
                   line_of(g), (int)(name.n < 64 ? name.n : 64), name.p);
        return 0;
    }
    g->r->rule[rule].defined = 1;
    g->r->writing = g->r->rule[rule].name;
    g->depth = 0;
    g->level[0] = (struct level){.start = g->r->rule[rule].start, .end = g->r->rule[rule].end};
    return read_alternatives(g);
}

void gbnf_read(struct rules *r, struct slice text, const struct vocab *vocab)
{
    struct parser *g = arena_alloc(&r->arena, sizeof *g);
    if (!g) {
        rules_fail(r, PITH_NOMEM, "out of memory reading a grammar");
        return;
    }
    *g = (struct parser){.r = r, .vocab = vocab, .p = text.p, .begin = text.p};
    g->end = text.n ? text.p + text.n : text.p;
    do
        skip_space(g, 1);
    while (rules_ok(r) && g->p < g->end && read_rule(g));
}
