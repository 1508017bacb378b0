/* jinja_lex.c -- a template's source to tokens, with the whitespace rules of trim_blocks and
 * lstrip_blocks.
 *
 *     text {%- if x -%} text {# comment #} text {{ expression }} text
 *
 * Before a tag: "-" strips all white space; else, before a block or a comment that is first on its
 * line, the blanks of that line go unless the tag begins with "+". Behind a tag: "-" strips all
 * white space; behind a block or comment one newline goes unless "+". Expressions never end inside
 * brackets, so "}}" may close two dicts.
 *
 * References: Jinja 3.1 documentation, Template Designer: whitespace control, literals. */
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

struct lexer {
    struct arena *arena;
    struct slice s;
    size_t at;
    struct tokens *out;
    struct pith_error *err;
    int failed;
    char closing[JINJA_NESTING]; /* brackets that are open */
    int n_closing;
};

static void fail(struct lexer *x, size_t at, const char *what)
{
    char where[160];
    if (x->failed)
        return;
    x->failed = 1;
    jinja_where(x->s, at, where, sizeof where);
    error_set(x->err, arena_ok(x->arena) ? PITH_FORMAT : PITH_NOMEM, "template: %s: %s", where,
              what);
}

static void put(struct lexer *x, enum jtok t, struct slice s, size_t at)
{
    struct tokens *o = x->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 256;
        struct token *v = arena_array(x->arena, cap, sizeof *v);
        if (!v) {
            fail(x, at, "out of memory");
            return;
        }
        if (o->n)
            memcpy(v, o->v, o->n * sizeof *v);
        o->v = v;
        o->cap = cap;
    }
    o->v[o->n++] = (struct token){t, s, (uint32_t)at};
}

static int looking_at(const struct lexer *x, size_t at, const char *z)
{
    size_t n = strlen(z);
    return n <= x->s.n - at && memcmp(x->s.p + at, z, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    struct slice rest = {x->s.p + at, x->s.n - at};
    return at + (rest.n - slice_strip(rest, NULL, 1, 0).n);
}

/* ---------------------------------------------------------------- text between tags */

/* Text [from, to) before a tag that begins with "{%", "{#" or "{{" and then `sign`. */
static void put_text(struct lexer *x, size_t from, size_t to, char kind, char sign)
{
    struct slice s = {x->s.p + from, to - from};
    if (sign == '-') {
        s = slice_strip(s, NULL, 0, 1);
    } else if (sign != '+' && kind != '{') {
        size_t line = s.n;
        while (line > 0 && s.p[line - 1] != '\n')
            line--;
        int first = line > 0 || from == 0 || x->s.p[from - 1] == '\n';
        struct slice tail = {s.p + line, s.n - line};
        if (first && slice_strip(tail, NULL, 1, 1).n == 0)
            s.n = line;
    }
    if (s.n)
        put(x, TOK_TEXT, s, from);
}

/* The end of a block or comment whose "%}" or "#}" is at `at`: where the text behind it begins. */
static size_t behind(const struct lexer *x, size_t at, char sign)
{
    at += 2;
    if (sign == '-')
        return skip_space(x, at);
    return sign != '+' && at < x->s.n && x->s.p[at] == '\n' ? at + 1 : at;
}

struct raw_tag {
    char sign, end_sign;
    size_t end; /* of its "%}" */
};

/* 1: the tag {% word %} stands at `at`. */
static int tag_at(const struct lexer *x, size_t at, const char *word, struct raw_tag *t)
{
    size_t i = at + 2;
    if (x->s.n - at < 4 || !looking_at(x, at, "{%"))
        return 0;
    t->sign = x->s.p[i] == '-' || x->s.p[i] == '+' ? x->s.p[i++] : 0;
    i = skip_space(x, i);
    if (!looking_at(x, i, word))
        return 0;
    i = skip_space(x, i + strlen(word));
    t->end_sign = i < x->s.n && (x->s.p[i] == '-' || x->s.p[i] == '+') ? x->s.p[i++] : 0;
    t->end = i;
    return looking_at(x, i, "%}");
}

static int try_raw(struct lexer *x, size_t at, size_t from)
{
    struct raw_tag open, shut;
    if (!tag_at(x, at, "raw", &open) || open.end_sign == '+')
        return 0;
    put_text(x, from, at, '%', open.sign);
    size_t begin = open.end_sign == '-' ? skip_space(x, open.end + 2) : open.end + 2, close = begin;
    while (close < x->s.n && !tag_at(x, close, "endraw", &shut))
        close++;
    if (close == x->s.n) {
        fail(x, at, "found no {% endraw %} for this {% raw %}");
        return 1;
    }
    put_text(x, begin, close, '%', shut.sign);
    x->at = behind(x, shut.end, shut.end_sign);
    return 1;
}

static void skip_comment(struct lexer *x, size_t at)
{
    for (size_t i = at + 2; i + 2 <= x->s.n; i++) {
        if (looking_at(x, i, "#}")) {
            char sign = i > at + 2 ? x->s.p[i - 1] : 0;
            x->at = behind(x, i, sign);
            return;
        }
    }
    fail(x, at, "found no #} for this comment");
}

/* ---------------------------------------------------------------- inside tags */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* One escape behind the backslash at s.p[*i - 1]; writes at most 4 bytes. 0: not a character. */
static int unescape(struct slice s, size_t *i, char *to, size_t *n)
{
    static const char letters[] = "abfnrtv\\'\"", codes[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s.p[(*i)++];
    const char *l = c ? strchr(letters, c) : NULL;
    uint32_t cp = 0;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (l) {
        to[(*n)++] = codes[l - letters];
        return 1;
    }
    if (c == '\n')
        return 1;
    if (c >= '0' && c <= '7') {
        cp = (uint32_t)(c - '0');
        for (int k = 0; k < 2 && *i < s.n && s.p[*i] >= '0' && s.p[*i] <= '7'; k++)
            cp = cp * 8 + (uint32_t)(s.p[(*i)++] - '0');
    } else if (digits) {
        for (int k = 0; k < digits; k++) {
            int d = *i < s.n ? hex_digit(s.p[*i]) : -1;
            if (d < 0 || cp > 0x10ffff)
                return 0;
            cp = cp * 16 + (uint32_t)d;
            (*i)++;
        }
    } else { /* no escape: both bytes stay */
        to[(*n)++] = '\\';
        to[(*n)++] = c;
        return 1;
    }
    int len = utf8_encode(cp, to + *n);
    *n += (size_t)len;
    return len > 0;
}

static void put_string(struct lexer *x)
{
    size_t at = x->at, n = 0;
    char quote = x->s.p[x->at++];
    size_t end = x->at;
    while (end < x->s.n && x->s.p[end] != quote)
        end += x->s.p[end] == '\\' ? 2 : 1;
    if (end >= x->s.n) {
        fail(x, at, "found no end of this string");
        return;
    }
    struct slice s = {x->s.p + x->at, end - x->at};
    char *to = arena_alloc(x->arena, s.n + 8); /* no escape is shorter than what it stands for */
    for (size_t i = 0; to && i < s.n;) {
        char c = s.p[i++];
        if (c != '\\') {
            to[n++] = c;
        } else if (!unescape(s, &i, to, &n)) {
            fail(x, at, "found an escape that is no character in this string");
            return;
        }
    }
    if (!to)
        fail(x, at, "out of memory");
    put(x, TOK_STR, (struct slice){to, n}, at);
    x->at = end + 1;
}

static int is_digit(const struct lexer *x, size_t at)
{
    return at < x->s.n && x->s.p[at] >= '0' && x->s.p[at] <= '9';
}

/* Digits with single underscores between them. */
static size_t digits(const struct lexer *x, size_t at)
{
    while (is_digit(x, at) || (at < x->s.n && x->s.p[at] == '_' && is_digit(x, at + 1)))
        at++;
    return at;
}

static void put_number(struct lexer *x)
{
    size_t from = x->at, at = digits(x, from);
    enum jtok t = TOK_INT;
    char second = from + 1 < x->s.n ? (char)(x->s.p[from + 1] | 32) : 0;
    if (x->s.p[from] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
        for (at = from + 2; at < x->s.n && (hex_digit(x->s.p[at]) >= 0 || x->s.p[at] == '_');)
            at++;
    } else {
        if (at < x->s.n && x->s.p[at] == '.' && is_digit(x, at + 1)) {
            at = digits(x, at + 1);
            t = TOK_FLOAT;
        }
        if (at < x->s.n && (x->s.p[at] | 32) == 'e') {
            size_t e = at + 1;
            if (e < x->s.n && (x->s.p[e] == '+' || x->s.p[e] == '-'))
                e++;
            if (is_digit(x, e)) {
                at = digits(x, e);
                t = TOK_FLOAT;
            }
        }
    }
    put(x, t, (struct slice){x->s.p + from, at - from}, from);
    x->at = at;
}

static int in_name(uint32_t cp, int first)
{
    if (cp < 0x80)
        return (cp | 32) - 'a' < 26u || cp == '_' || (!first && cp - '0' < 10u);
    utf8proc_category_t k =
        cp == UINT32_MAX ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)cp);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || k == UTF8PROC_CATEGORY_NL ||
           (!first &&
            (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ND));
}

static size_t name_end(const struct lexer *x, size_t at)
{
    size_t from = at;
    while (at < x->s.n) {
        uint32_t cp;
        int len = utf8_decode(x->s.p + at, x->s.n - at, &cp);
        if (!in_name(cp, at == from))
            break;
        at += (size_t)len;
    }
    return at;
}

static void put_op(struct lexer *x)
{
    static const char *const ops[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      "<",  ">",  "=",  ".",  ":",  "|",  ",", ";"};
    static const char opening[] = "([{", closing[] = ")]}";
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!looking_at(x, x->at, ops[i]))
            continue;
        char c = ops[i][0];
        const char *o = strchr(opening, c);
        if (o && x->n_closing == JINJA_NESTING)
            fail(x, x->at, "found brackets nested deeper than 64");
        else if (o)
            x->closing[x->n_closing++] = closing[o - opening];
        else if (strchr(closing, c) && (!x->n_closing || x->closing[--x->n_closing] != c))
            fail(x, x->at, "found a closing bracket that closes none");
        put(x, TOK_OP, (struct slice){x->s.p + x->at, strlen(ops[i])}, x->at);
        x->at += strlen(ops[i]);
        return;
    }
    fail(x, x->at, "found a character that begins nothing");
}

/* From behind "{{" or "{%" to behind its end. */
static void lex_tag(struct lexer *x, size_t begin, char kind)
{
    const char *end = kind == '{' ? "}}" : "%}";
    x->n_closing = 0;
    put(x, kind == '{' ? TOK_VAR : TOK_BLOCK, (struct slice){x->s.p + begin, 2}, begin);
    while (!x->failed) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->s.n) {
            fail(x, begin, kind == '{' ? "found no }} for this {{" : "found no %} for this {%");
            return;
        }
        char c = x->s.p[x->at], sign = c == '-' || (c == '+' && kind == '%') ? c : 0;
        if (!x->n_closing && looking_at(x, x->at + (sign != 0), end)) {
            size_t at = x->at + (sign != 0);
            put(x, kind == '{' ? TOK_VAR_END : TOK_BLOCK_END, (struct slice){end, 2}, x->at);
            x->at = kind == '%' ? behind(x, at, sign) : sign ? skip_space(x, at + 2) : at + 2;
            return;
        }
        size_t name = name_end(x, x->at);
        if (is_digit(x, x->at)) {
            put_number(x);
        } else if (c == '\'' || c == '"') {
            put_string(x);
        } else if (name > x->at) {
            put(x, TOK_NAME, (struct slice){x->s.p + x->at, name - x->at}, x->at);
            x->at = name;
        } else {
            put_op(x);
        }
    }
}

int jinja_lex(struct arena *arena, struct slice source, struct tokens *out, struct pith_error *err)
{
    struct lexer x = {.arena = arena, .s = source, .out = out, .err = err};
    while (!x.failed && x.at < x.s.n) {
        size_t from = x.at, at = from;
        while (at < x.s.n && !(x.s.p[at] == '{' && at + 1 < x.s.n && strchr("{%#", x.s.p[at + 1])))
            at++;
        if (at >= x.s.n) {
            put(&x, TOK_TEXT, (struct slice){x.s.p + from, at - from}, from);
            break;
        }
        char kind = x.s.p[at + 1], sign = at + 2 < x.s.n ? x.s.p[at + 2] : 0;
        if (kind == '%' && try_raw(&x, at, from))
            continue;
        put_text(&x, from, at, kind, sign);
        x.at = at + 2;
        if (kind == '#') {
            skip_comment(&x, at);
        } else {
            x.at += sign == '-' || sign == '+';
            lex_tag(&x, at, kind);
        }
    }
    put(&x, TOK_END, SLICE("the end"), source.n);
    return !x.failed;
}
