/* schema_string.c -- strings: lengths, patterns, and formats, which are patterns. */
#include <string.h>

#include "text/grammar/regex/regex.h"
#include "text/grammar/schema/schema_impl.h"

#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST  LABEL "(\\." LABEL ")*"
#define YEAR  "(\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP  "(\\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-"  \
    "9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE    "(25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)"
#define H16     "[0-9A-Fa-f]{1,4}"
#define PERCENT "%[0-9A-Fa-f]{2}"
#define SEGMENT "([A-Za-z0-9._~!$&'()*+,;=:@-]|" PERCENT ")*"
#define QUERY   "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|" PERCENT ")*"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(//([A-Za-z0-9._~!$&'()*+,;=-]|" PERCENT ")+(:\\d{1,5})?(/" SEGMENT   \
    ")*|[A-Za-z0-9._~-]" SEGMENT "(/" SEGMENT ")*)(\\?" QUERY ")?(#" QUERY ")?"
#define SPAN "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)"

/* From both ends; NULL: says nothing about the characters. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(" SPAN ")?|" SPAN ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16
             "){1,2}|(" H16 ":){1,4}(:" H16 "){1,3}|(" H16 ":){1,3}(:" H16 "){1,4}|(" H16
             ":){1,2}(:" H16 "){1,5}|" H16 ":(:" H16 "){1,6}|:(:" H16 "){1,7}|::)$"},
    {"uri", "^" URI "$"},
    {"uri-reference", "^" URI "$"},
    {"iri", "^" URI "$"},
    {"json-pointer", "^(/([^~/]|~[01])*)*$"},
    {"password", NULL},
};

/* Its place in the table; -1: it is none of those, and says nothing. */
static int format_of(const struct jtree *node)
{
    const struct jtree *format = jtree_get(node, "format");
    for (int i = 0;
         format && format->kind == JTREE_STRING && i < (int)(sizeof formats / sizeof formats[0]);
         i++)
        if (slice_eq_z(format->text, formats[i].name))
            return i;
    return -1;
}

int schema_knows_format(const struct jtree *node)
{
    return format_of(node) >= 0;
}

void schema_note(struct rules *r, const struct jtree *node)
{
    static const char *const told[] = {"contentEncoding", "contentMediaType", "contentSchema",
                                       SCHEMA_OF_EDITORS};
    const struct jtree *format = jtree_get(node, "format");
    if (format && format->kind == JTREE_STRING && !schema_knows_format(node))
        rules_unkept(r, "format", format->text);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (jtree_get(node, told[i]))
            rules_unkept(r, told[i], (struct slice){NULL, 0});
}

/* Puts one more, unless it is there; 0: there are too many. */
static int put_pattern(struct schema_patterns *p, struct slice pattern, const char *format)
{
    struct regex_all *all = &p->all;
    for (uint32_t i = 0; i < all->n; i++)
        if (slice_eq(all->v[i], pattern))
            return 1;
    if (all->n == REGEX_PATTERNS)
        return format != NULL;
    if (format && all->n) /* the first one of all is a must */
        p->format[all->n - all->n_must] = format;
    else
        all->n_must++;
    all->v[all->n++] = pattern;
    return 1;
}

static int put_patterns(struct schema_patterns *p, const struct jtree *node, int formats_only)
{
    const struct jtree *pattern = jtree_get(node, "pattern");
    int i = format_of(node);
    if (formats_only)
        return i < 0 || !formats[i].pattern ||
               put_pattern(p, slice_of(formats[i].pattern), formats[i].name);
    return !pattern || pattern->kind != JTREE_STRING || put_pattern(p, pattern->text, NULL);
}

void schema_string_patterns(const struct jtree *node, struct schema_patterns *p)
{
    *p = (struct schema_patterns){.all.n = 0};
    put_patterns(p, node, 0);
    put_patterns(p, node, 1);
}

void schema_note_formats(struct rules *r, const struct schema_patterns *p)
{
    for (uint32_t i = p->all.n_must; i < p->all.n; i++)
        rules_unkept(r, "format", slice_of(p->format[i - p->all.n_must]));
}

/* Those of all parts. */
static void patterns_of(struct schema *s, const struct parts *parts, struct schema_patterns *p)
{
    *p = (struct schema_patterns){.all.n = 0};
    for (int formats_only = 0; formats_only < 2; formats_only++) {
        for (uint32_t i = 0; i < parts->n; i++) {
            const struct jtree *node = parts->v[i].node,
                               *v = jtree_get(node, formats_only ? "format" : "pattern");
            if (v && v->kind != JTREE_STRING)
                schema_refuse(s, v, "found %s; wanted a string", jtree_kind_name(v));
            else if (!put_patterns(p, node, formats_only))
                schema_refuse(s, node, "over %d patterns for one string are not supported",
                              REGEX_PATTERNS);
        }
    }
}

/* min to max characters between quotes that are plain, but for the escapes. raw: tabs and line ends
 * may be, too. */
static void quoted(struct schema *s, char quote, const char *escapes, int raw, uint32_t min,
                   uint32_t max, uint32_t from, uint32_t to)
{
    struct charset_range plain[] = {{'\t', '\n'},
                                    {' ', (uint32_t)quote - 1},
                                    {(uint32_t)quote + 1, '\\' - 1},
                                    {'\\' + 1, CHARSET_LAST}};
    struct rules *r = s->r;
    uint32_t at = rules_text(r, from, &quote, 1);
    struct rules_mark mark = rules_mark(r);
    struct rules_piece piece = {rules_state(r), rules_state(r)};
    struct charset set =
        raw ? (struct charset){plain, 4, 4, 0} : (struct charset){plain + 1, 3, 3, 0};
    rules_chars(r, piece.start, piece.end, &set, 0);
    uint32_t slash = rules_text(r, piece.start, "\\", 1);
    for (const char *c = escapes; *c; c++)
        rules_bytes(r, slash, piece.end, (uint8_t)*c, (uint8_t)*c);
    piece = rules_repeat_to(r, mark, piece, min, max, (struct slice){&quote, 1});
    rules_edge(r, at, piece.start, EDGE_EPS, 0);
    rules_edge(r, piece.end, to, EDGE_EPS, 0);
}

int schema_string_once(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    uint32_t min = schema_count(s, p, "minLength", 1, 0),
             max = schema_count(s, p, "maxLength", 0, RULES_ENDLESS);
    const struct jtree *node = p->n ? p->v[0].node : NULL;
    const struct jtree *format = node ? jtree_get(node, "format") : NULL;
    int i = node ? format_of(node) : -1;
    const char *pattern = i >= 0 ? formats[i].pattern : NULL;
    if (format && format->kind != JTREE_STRING)
        schema_refuse(s, format, "found %s; wanted a string", jtree_kind_name(format));
    if (pattern && strstr(pattern, "[^")) /* some character of it may be written with an escape */
        return 0;
    if (s->form == SCHEMA_GEMMA) {
        schema_string(s, p, from, to);
    } else if (pattern) {
        uint32_t end = rules_state(r);
        regex_write(r, rules_text(r, from, "\"", 1), end, slice_of(pattern), min, max, 0);
        rules_bytes(r, end, to, '"', '"');
    } else if (min <= max) {
        quoted(s, '"', "\"\\bfnrt", 0, min, max, from, to);
    }
    return 1;
}

void schema_string(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    struct charset_range all = {0, CHARSET_LAST};
    struct charset any = {&all, 1, 1, 0};
    struct schema_patterns pattern;
    uint32_t min = schema_count(s, p, "minLength", 1, 0),
             max = schema_count(s, p, "maxLength", 0, RULES_ENDLESS);
    patterns_of(s, p, &pattern);
    if (!rules_ok(r) || min > max)
        return;
    int json = s->form != SCHEMA_GEMMA;
    struct slice quote = json ? SLICE("\"") : SLICE(SCHEMA_QUOTE);
    uint32_t at = rules_text(r, from, quote.p, quote.n), end = rules_state(r);
    struct charset_range but_quote[] = {{0, '<' - 1}, {'<' + 1, CHARSET_LAST}};
    if (!json && !pattern.all.n && min == 0 && max == RULES_ENDLESS) {
        rules_edge(r, rules_until(r, at, quote, NULL), to, EDGE_EPS, 0);
        return;
    }
    if (s->form == SCHEMA_PYTHON && !pattern.all.n)
        quoted(s, '\'', "'\"\\nrt", 1, min, max, from, to);
    if (!json) /* where they are counted, what may begin the quote is left out */
        any = (struct charset){but_quote, 2, 2, 0};
    if (pattern.all.n && !json) {
        if (!regex_write_until(r, at, end, end, &pattern.all, min, max,
                               &(struct regex_end){.mark = quote}))
            schema_note_formats(r, &pattern);
    } else if (pattern.all.n) {
        if (!regex_write_all(r, at, end, &pattern.all, min, max, json))
            schema_note_formats(r, &pattern);
    } else if (min == 0 && max == RULES_ENDLESS) {
        rules_edge(r, at, end, EDGE_EPS, 0);
        rules_chars(r, end, end, &any, 1);
    } else {
        struct rules_mark mark = rules_mark(r);
        struct rules_piece piece = {rules_state(r), rules_state(r)};
        rules_chars(r, piece.start, piece.end, &any, json);
        piece = rules_repeat_to(r, mark, piece, min, max, quote);
        rules_edge(r, at, piece.start, EDGE_EPS, 0);
        rules_edge(r, piece.end, to, EDGE_EPS, 0);
        return;
    }
    rules_edge(r, rules_text(r, end, quote.p, quote.n), to, EDGE_EPS, 0);
}
