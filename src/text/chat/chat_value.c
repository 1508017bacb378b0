/* chat_value.c -- arguments and calls as text become JSON: where a value ends in text that grows,
 * calls out of JSON and out of Python's syntax, single values by the tool's schema. What a scan
 * lets through is judged by jtree_read or the reader of literals. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/chat/chat_impl.h"

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct slice trim(struct slice s)
{
    while (s.n && is_space(s.p[0]))
        s = (struct slice){s.p + 1, s.n - 1};
    while (s.n && is_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

/* ---------------------------------------------------------------- where a value ends */

enum {
    S_BEGIN,
    S_VALUE,
    S_ITEM,
    S_MEMBER,
    S_KEY,
    S_COLON,
    S_AFTER,
    S_STRING,
    S_ESCAPE,
    S_HEX,
    S_WORD
};

static int in_object(const struct json_scan *s)
{
    return (int)(s->objects[s->depth >> 6] >> (s->depth & 63) & 1);
}

/* An opening bracket; 0: too deep. */
static int open_level(struct json_scan *s, int object)
{
    if (++s->depth >= JTREE_DEPTH)
        return 0;
    uint64_t bit = (uint64_t)1 << (s->depth & 63), *w = &s->objects[s->depth >> 6];
    *w = object ? *w | bit : *w & ~bit;
    s->state = object ? S_MEMBER : S_ITEM;
    return 1;
}

/* A character between strings, numbers and words; 0: it cannot stand there. */
static int between(struct json_scan *s, char c)
{
    int value = s->state == S_VALUE || s->state == S_ITEM || s->state == S_BEGIN;
    if (is_space(c))
        return 1;
    if (value && (c == '{' || c == '['))
        return open_level(s, c == '{');
    if (c == '"' && (s->state == S_MEMBER || s->state == S_KEY || (value && s->state != S_BEGIN))) {
        s->in_key = s->state == S_MEMBER || s->state == S_KEY;
        s->state = S_STRING;
        return 1;
    }
    if (s->state == S_COLON && c == ':') {
        s->state = S_VALUE;
        return 1;
    }
    if (s->state == S_AFTER && c == ',') {
        s->state = in_object(s) ? S_KEY : S_VALUE;
        return 1;
    }
    if ((c == '}' && (s->state == S_MEMBER || (s->state == S_AFTER && in_object(s)))) ||
        (c == ']' && (s->state == S_ITEM || (s->state == S_AFTER && !in_object(s))))) {
        s->depth--;
        s->state = S_AFTER;
        return 1;
    }
    if (value && s->state != S_BEGIN &&
        (c == '-' || (c >= '0' && c <= '9') || (c && strchr("tfn", c)))) {
        s->state = S_WORD;
        return 1;
    }
    return 0;
}

static int in_string(struct json_scan *s, char c)
{
    if (s->state == S_HEX) {
        s->state = --s->n_hex ? S_HEX : S_STRING;
        return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    }
    if (s->state == S_ESCAPE) {
        s->state = c == 'u' ? S_HEX : S_STRING;
        s->n_hex = 4;
        return c && strchr("\"\\/bfnrtu", c) != NULL;
    }
    s->state = c == '\\' ? S_ESCAPE : c != '"' ? S_STRING : s->in_key ? S_COLON : S_AFTER;
    return (unsigned char)c >= 0x20;
}

enum scan_result json_scan(struct json_scan *s, const char *p, size_t n, size_t *i)
{
    for (; *i < n; ++*i) {
        char c = p[*i];
        int ok = 1, was = s->state;
        if (s->state == S_WORD &&
            !((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
              (c && strchr("+-.", c))))
            s->state = S_AFTER;
        if (s->state >= S_STRING && s->state <= S_HEX)
            ok = in_string(s, c);
        else if (s->state != S_WORD)
            ok = between(s, c);
        if (!ok)
            return SCAN_NO;
        if (s->depth == 0 && s->state == S_AFTER) {
            ++*i;
            return SCAN_END;
        }
        int is_text = s->state == S_STRING, begins = is_text && !s->in_key && was < S_STRING;
        int bracket = !is_text && (c == '{' || c == '}');
        if ((s->stops && bracket) || (s->stops == STOPS_AT_TEXTS && begins)) {
            ++*i;
            return SCAN_STOP;
        }
    }
    return SCAN_MORE;
}

void json_close(const struct json_scan *s, struct str *out)
{
    struct json_scan level = *s;
    for (; level.depth; level.depth--)
        str_putc(out, in_object(&level) ? '}' : ']');
}

enum scan_result gemma_scan(struct py_scan *s, const char *p, size_t n, size_t *i)
{
    static const char mark[] = GEMMA_QUOTE; /* of which s->escaped bytes were read */
    for (; *i < n; ++*i) {
        char c = p[*i];
        s->escaped = c == mark[s->escaped] ? s->escaped + 1 : c == mark[0];
        if (s->escaped == sizeof mark - 1) {
            s->quote = !s->quote;
            s->escaped = 0;
        } else if (!s->quote && (c == '{' || c == '[')) {
            s->depth++;
        } else if (!s->quote && (c == '}' || c == ']') && (s->depth == 0 || --s->depth == 0)) {
            ++*i;
            return SCAN_END;
        }
    }
    return SCAN_MORE;
}

enum scan_result py_scan(struct py_scan *s, const char *p, size_t n, size_t *i)
{
    for (; *i < n; ++*i) {
        char c = p[*i];
        if (s->quote) {
            if (!s->escaped && c == s->quote)
                s->quote = 0;
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"' || c == '\'') {
            s->quote = c;
        } else if (c && strchr("([{", c)) {
            s->depth++;
        } else if (c && strchr(")]}", c) && (s->depth == 0 || --s->depth == 0)) {
            ++*i;
            return SCAN_END;
        }
    }
    return SCAN_MORE;
}

/* ---------------------------------------------------------------- Python's literals */

struct literal {
    const char *p, *end;
    struct str *out; /* the value as JSON */
    int bare_keys;
};

static void skip_space(struct literal *l)
{
    while (l->p < l->end && is_space(*l->p))
        l->p++;
}

static int at(struct literal *l, char c)
{
    skip_space(l);
    if (l->p >= l->end || *l->p != c)
        return 0;
    l->p++;
    return 1;
}

/* \xHH or \uHHHH: n digits; UINT32_MAX: they are not there. */
/* The number that n digits spell, and past them; UINT32_MAX: they do not, and nothing is read. */
static uint32_t hex(struct literal *l, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        char c = (char)(l->end - l->p > i ? l->p[i] | 0x20 : 0);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return UINT32_MAX;
        v = v << 4 | (uint32_t)digit;
    }
    l->p += n;
    return v;
}

/* The second half of a pair, and past it; 0: none stands here. */
static uint32_t low_half(struct literal *l)
{
    const char *from = l->p;
    uint32_t low = 0;
    if (l->end - l->p >= 6 && l->p[0] == '\\' && l->p[1] == 'u') {
        l->p += 2;
        low = hex(l, 4);
    }
    if (low >= 0xdc00 && low < 0xe000)
        return low;
    l->p = from;
    return 0;
}

/* A backslash and what it means; an unknown one stays as it is, as in Python, and half of a pair is
 * a replacement character. */
static void escape(struct literal *l, struct str *text)
{
    static const char from[] = "\"'\\/bfnrt", to[] = "\"'\\/\b\f\n\r\t";
    char utf8[4], c = *l->p++;
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t cp = c == 'u' ? hex(l, 4) : c == 'x' ? hex(l, 2) : UINT32_MAX, low;
    if (known) {
        str_putc(text, to[known - from]);
    } else if (cp == UINT32_MAX) {
        str_put(text, (char[]){'\\', c}, 2);
    } else {
        if (cp >= 0xd800 && cp < 0xdc00 && (low = low_half(l)))
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        int n = utf8_encode(cp, utf8);
        str_put(text, n ? utf8 : "\xEF\xBF\xBD", n ? (size_t)n : 3);
    }
}

static int quoted(struct literal *l)
{
    size_t n = sizeof GEMMA_QUOTE - 1;
    if ((size_t)(l->end - l->p) < n || memcmp(l->p, GEMMA_QUOTE, n) != 0)
        return 0;
    const char *from = l->p + n, *to = memmem(from, (size_t)(l->end - from), GEMMA_QUOTE, n);
    if (!to)
        return 0;
    str_json(l->out, from, (size_t)(to - from));
    l->p = to + n;
    return 1;
}

/* A key without quotes, where such may come. */
static int bare_key(struct literal *l)
{
    const char *from = l->p;
    while (l->bare_keys && l->p < l->end && !is_space(*l->p) && !strchr(":,{}[]\"'<>", *l->p))
        l->p++;
    if (l->p == from)
        return 0;
    str_json(l->out, from, (size_t)(l->p - from));
    return 1;
}

static int string(struct literal *l)
{
    struct str text;
    char quote = *l->p++;
    int ok = 1;
    str_init(&text, PITH_MEM_SCRATCH);
    while (ok && l->p < l->end && *l->p != quote) {
        if (*l->p != '\\')
            str_putc(&text, *l->p++);
        else
            ok = ++l->p < l->end ? escape(l, &text), 1 : 0;
    }
    ok = ok && at(l, quote);
    if (ok)
        str_json(l->out, text.p ? text.p : "", text.n);
    if (text.failed)
        l->out->failed = 1;
    str_deinit(&text);
    return ok;
}

static size_t digits(struct literal *l)
{
    const char *from = l->p;
    while (l->p < l->end && *l->p >= '0' && *l->p <= '9')
        l->p++;
    return (size_t)(l->p - from);
}

/* As JSON writes one: "1." and "01" are none. */
static int number(struct literal *l)
{
    const char *from = l->p;
    l->p += *l->p == '-';
    int zero = l->p < l->end && *l->p == '0';
    size_t n = digits(l);
    int ok = n > 0 && (n == 1 || !zero);
    if (ok && l->p < l->end && *l->p == '.') {
        l->p++;
        ok = digits(l) > 0;
    }
    if (ok && l->p < l->end && (*l->p | 0x20) == 'e') {
        l->p++;
        l->p += l->p < l->end && (*l->p == '+' || *l->p == '-');
        ok = digits(l) > 0;
    }
    if (ok)
        str_put(l->out, from, (size_t)(l->p - from));
    return ok;
}

static const char *const words[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                       {"False", "false"}, {"null", "null"}, {"None", "null"}};

static int word(struct literal *l)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i][0]);
        if ((size_t)(l->end - l->p) >= n && !memcmp(l->p, words[i][0], n)) {
            l->p += n;
            str_putz(l->out, words[i][1]);
            return 1;
        }
    }
    return 0;
}

int chat_put_word(struct str *out, struct slice text)
{
    struct literal l = {text.p, text.p + text.n, out, 0};
    int is_number = text.n && (text.p[0] == '-' || (text.p[0] >= '0' && text.p[0] <= '9'));
    return (is_number ? number(&l) : word(&l)) && l.p == l.end;
}

int chat_escape(struct str *text, struct slice s)
{
    struct literal l = {s.p + 1, s.p + s.n, NULL, 0};
    escape(&l, text);
    return l.p == l.end;
}

static int value(struct literal *l, int depth);

/* Items up to `close`, behind the opening bracket; a comma may stand behind the last. */
static int items(struct literal *l, char close, int depth)
{
    str_putc(l->out, close == '}' ? '{' : '[');
    for (int i = 0; !at(l, close); i++) {
        if (i)
            str_putc(l->out, ',');
        if (close == '}') {
            skip_space(l);
            if (l->p >= l->end)
                return 0;
            int is_quoted = *l->p == '"' || *l->p == '\'';
            if (!(is_quoted ? string(l) : quoted(l) || bare_key(l)) || !at(l, ':'))
                return 0;
            str_putc(l->out, ':');
        }
        if (!value(l, depth))
            return 0;
        if (!at(l, ',')) {
            if (!at(l, close))
                return 0;
            break;
        }
    }
    str_putc(l->out, close == '}' ? '}' : ']');
    return 1;
}

static int value(struct literal *l, int depth)
{
    skip_space(l);
    if (l->p >= l->end || depth >= LITERAL_DEPTH)
        return 0;
    char c = *l->p;
    if (l->bare_keys && c == '<')
        return quoted(l);
    if (c == '"' || c == '\'')
        return string(l);
    if (c == '{' || c == '[' || c == '(') {
        l->p++;
        return items(l, c == '{' ? '}' : c == '[' ? ']' : ')', depth + 1);
    }
    return c == '-' || (c >= '0' && c <= '9') ? number(l) : word(l);
}

/* ---------------------------------------------------------------- calls */

/* Names and ids are handed out as C strings. */
static int is_name(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20)
            return 0;
    return s.n > 0 && s.n < CHAT_NAME_MAX;
}

static const struct jtree *first_of(const struct jtree *o, const char *const *keys)
{
    const struct jtree *v = NULL;
    while (!v && *keys)
        v = jtree_get(o, *keys++);
    return v;
}

/* NULL: no JSON, or no memory, which the arena remembers. */
static const struct jtree *read_json(struct arena *a, struct slice text)
{
    struct pith_error why = {0};
    const struct jtree *v = jtree_read(a, text.p, text.n, &why);
    a->failed |= why.code == PITH_NOMEM;
    return v;
}

static int written(struct arena *a, const struct jtree *v, struct slice *out)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    jtree_write(&s, v);
    char *p = s.failed ? NULL : arena_strndup(a, s.p, s.n);
    *out = (struct slice){p, s.n};
    a->failed |= s.failed;
    str_deinit(&s);
    return p != NULL;
}

int chat_object(struct arena *a, struct slice text, struct slice *out)
{
    const struct jtree *v = read_json(a, text);
    return v && v->kind == JTREE_OBJECT && written(a, v, out);
}

/* {"name": ..., "arguments": ...} by any of the names that models know, or the same inside
 * "function". */
static int call_of(struct arena *a, const struct jtree *o, struct chat_call *call)
{
    static const char *const names[] = {"name", "tool_name", "function", NULL};
    static const char *const arguments[] = {"arguments", "parameters", "args", "input", NULL};
    static const char *const ids[] = {"id", "tool_call_id", "call_id", NULL};
    const struct jtree *id = first_of(o, ids), *inner = jtree_get(o, "function");
    o = inner && inner->kind == JTREE_OBJECT ? inner : o;
    const struct jtree *name = first_of(o, names), *args = first_of(o, arguments);
    if (!name || name->kind != JTREE_STRING || !is_name(name->text))
        return 0;
    *call = (struct chat_call){.name = name->text};
    if (id && id->kind == JTREE_STRING && is_name(id->text))
        call->id = id->text;
    if (!args)
        return 1;
    if (args->kind == JTREE_NULL) {
        call->args = SLICE("{}");
        return 1;
    }
    if (args->kind == JTREE_STRING)
        return chat_object(a, args->text, &call->args);
    return args->kind == JTREE_OBJECT && written(a, args, &call->args);
}

int chat_calls_of_json(struct arena *a, struct slice text, struct chat_call **out, uint32_t *n)
{
    const struct jtree *v = read_json(a, text);
    if (!v)
        return 0;
    *n = v->kind == JTREE_ARRAY ? v->n : 1;
    *out = arena_array(a, *n, sizeof **out);
    if (!*out || *n == 0)
        return 0;
    if (v->kind == JTREE_OBJECT)
        return call_of(a, v, *out);
    struct chat_call *to = *out;
    for (v = v->first; v; v = v->next)
        if (!call_of(a, v, to++))
            return 0;
    return 1;
}

int chat_name_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
           c == '.' || c == '-';
}

static struct slice py_name(struct literal *l)
{
    skip_space(l);
    struct slice s = {l->p, 0};
    while (l->p < l->end && chat_name_char(*l->p))
        l->p++;
    s.n = (size_t)(l->p - s.p);
    return s;
}

/* Llama's built-in tools are called as name.call(...). */
struct slice chat_called(struct slice name)
{
    if (name.n > 5 && !memcmp(name.p + name.n - 5, ".call", 5))
        name.n -= 5;
    return name;
}

/* name(key=value, ...): all values by their keys. */
static int py_call(struct arena *a, struct literal *l, struct chat_call *call)
{
    *call = (struct chat_call){.name = chat_called(py_name(l))};
    if (!is_name(call->name) || !at(l, '('))
        return 0;
    struct str args, *out = l->out;
    str_init(&args, PITH_MEM_SCRATCH);
    l->out = &args;
    str_putc(&args, '{');
    int ok = 1;
    for (int i = 0; ok && !at(l, ')'); i++) {
        struct slice key = py_name(l);
        str_putz(&args, i ? "," : "");
        str_json(&args, key.p, key.n);
        str_putc(&args, ':');
        ok = key.n && at(l, '=') && value(l, 0);
        if (ok && !at(l, ',')) {
            ok = at(l, ')');
            break;
        }
    }
    str_putc(&args, '}');
    ok = ok && !args.failed && chat_object(a, (struct slice){args.p, args.n}, &call->args);
    a->failed |= args.failed;
    str_deinit(&args);
    l->out = out;
    return ok;
}

int chat_gemma(struct arena *a, struct slice text, struct slice *out)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    struct literal l = {text.p, text.p + text.n, &s, 1};
    int ok =
        value(&l, 0) && l.p == l.end && !s.failed && chat_object(a, (struct slice){s.p, s.n}, out);
    a->failed |= s.failed;
    str_deinit(&s);
    return ok;
}

int chat_calls_of_python(struct arena *a, struct slice text, struct chat_call **out, uint32_t *n)
{
    struct literal l = {text.p, text.p + text.n, NULL, 0};
    uint32_t cap = 1;
    for (size_t i = 0; i < text.n; i++)
        cap += text.p[i] == '(';
    *out = arena_array(a, cap, sizeof **out);
    *n = 0;
    if (!*out)
        return 0;
    int list = at(&l, '[');
    do {
        if (*n == cap || !py_call(a, &l, &(*out)[*n]))
            return 0;
        ++*n;
    } while (list && at(&l, ','));
    if (list && !at(&l, ']'))
        return 0;
    skip_space(&l);
    return l.p == l.end;
}

/* ---------------------------------------------------------------- values by schema */

static enum jtree_kind kind_of_json(struct slice s)
{
    switch (s.p[0]) {
    case '"':
        return JTREE_STRING;
    case '{':
        return JTREE_OBJECT;
    case '[':
        return JTREE_ARRAY;
    case 't':
        return JTREE_TRUE;
    case 'f':
        return JTREE_FALSE;
    case 'n':
        return JTREE_NULL;
    default:
        return JTREE_NUMBER;
    }
}

/* kinds 0: by its looks alone. */
static void put_by_kinds(struct str *out, struct slice text, unsigned kinds)
{
    struct slice t = trim(text);
    struct str json;
    unsigned strings = 1u << JTREE_STRING;
    if (kinds == strings || !t.n || t.p[0] == '(') {
        str_json(out, text.p, text.n);
        return;
    }
    str_init(&json, PITH_MEM_SCRATCH);
    struct literal l = {t.p, t.p + t.n, &json, 0};
    int ok = value(&l, 0) && l.p == l.end && json.n;
    enum jtree_kind kind = ok ? kind_of_json((struct slice){json.p, json.n}) : JTREE_STRING;
    /* a quoted text is a string with quotes where a string could stand bare */
    if (ok && kind == JTREE_STRING)
        ok = kinds && !(kinds & strings);
    if (ok && !(kinds && (kinds & strings) && !(kinds & 1u << kind)))
        str_put(out, json.p, json.n);
    else
        str_json(out, text.p, text.n);
    out->failed |= json.failed;
    str_deinit(&json);
}

/* "true": the text says whether it is a string. */
static int says_string(struct slice type)
{
    return slice_eq_z(type, "string") || slice_eq_z(type, "true");
}

/* Whether a text is the begin of a number or a word, with white space behind it or without. */
static int may_be_scalar(struct slice t)
{
    size_t n = 0;
    while (n < t.n && t.p[n] && strchr("+-.eE0123456789", t.p[n]))
        n++;
    if (t.p[0] == '-' || (t.p[0] >= '0' && t.p[0] <= '9'))
        return !trim((struct slice){t.p + n, t.n - n}).n;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        n = strlen(words[i][0]);
        if (!memcmp(t.p, words[i][0], t.n < n ? t.n : n) &&
            (t.n <= n || !trim((struct slice){t.p + n, t.n - n}).n))
            return 1;
    }
    return 0;
}

int chat_is_string(struct slice text, struct slice type, const struct chat_tool *tool,
                   struct slice key)
{
    unsigned strings = 1u << JTREE_STRING, kinds = type.n ? 0 : chat_argument_kinds(tool, key);
    if (says_string(type) || kinds == strings)
        return 1;
    while (text.n && is_space(text.p[0]))
        text = (struct slice){text.p + 1, text.n - 1};
    if ((kinds && !(kinds & strings)) || !text.n || text.p[0] == '{' || text.p[0] == '[')
        return 0;
    return !may_be_scalar(text);
}

void chat_put_value(struct str *out, struct slice text, struct slice type,
                    const struct chat_tool *tool, struct slice key)
{
    static const char open[] = CDATA_OPEN, close[] = CDATA_CLOSE;
    size_t n = sizeof open - 1, m = sizeof close - 1;
    if (text.n >= n + m && !memcmp(text.p, open, n) && !memcmp(text.p + text.n - m, close, m))
        str_json(out, text.p + n, text.n - n - m);
    else if (says_string(type))
        str_json(out, text.p, text.n);
    else
        put_by_kinds(out, text, type.n ? 0 : chat_argument_kinds(tool, key));
}

/* ---------------------------------------------------------------- nested elements */

/* ELEMENT<key>value ELEMENT</key>, where a value is text or more elements; elements that are all
 * called item are an array. */
/* What stands at text[i..): 1 ELEMENT<key>, -1 ELEMENT</key>, 0 neither. */
static int tag_at(struct slice text, size_t i, struct slice key, size_t *len)
{
    size_t n = sizeof ELEMENT - 1;
    if (text.n - i < n + 1 || memcmp(text.p + i, ELEMENT "<", n + 1) != 0)
        return 0;
    size_t from = i + n + 1;
    int shut = from < text.n && text.p[from] == '/';
    from += (size_t)shut;
    if (text.n - from <= key.n || memcmp(text.p + from, key.p, key.n) != 0 ||
        text.p[from + key.n] != '>')
        return 0;
    *len = from + key.n + 1 - i;
    return shut ? -1 : 1;
}

enum scan_result chat_scan_elements(struct slice text, struct slice key, uint32_t *depth, size_t *i,
                                    size_t *n)
{
    size_t longest = sizeof ELEMENT + 2 + key.n; /* ELEMENT</key> */
    for (const char *next; *i < text.n && (next = memchr(text.p + *i, ELEMENT[0], text.n - *i));
         *i += *n) {
        *i = (size_t)(next - text.p);
        *n = 1;
        int tag = tag_at(text, *i, key, n);
        if (tag < 0 && *depth == 0)
            return SCAN_END;
        if (!tag && text.n - *i < longest)
            return SCAN_MORE;
        *depth += (uint32_t)tag;
    }
    *i = text.n;
    return SCAN_MORE;
}

/* The key of the element at text[0..); empty: none begins there. */
static struct slice element_key(struct slice text)
{
    size_t n = sizeof ELEMENT; /* with '<' */
    const char *end =
        text.n > n && !memcmp(text.p, ELEMENT "<", n) ? memchr(text.p + n, '>', text.n - n)
                                                      : NULL;
    return end && text.p[n] != '/' ? (struct slice){text.p + n, (size_t)(end - text.p) - n}
                                   : (struct slice){NULL, 0};
}

static int put_elements(struct str *out, struct slice text, int depth)
{
    size_t from = out->n, n_items = 0;
    struct slice rest = trim(text), key;
    int list = 1;
    for (int pass = 0; pass < 2; pass++) { /* the first finds out whether all are items */
        rest = trim(text);
        if (pass)
            str_putc(out, list ? '[' : '{');
        for (n_items = 0; rest.n; n_items++) {
            key = element_key(rest);
            size_t begin = sizeof ELEMENT + key.n + 1;
            struct slice inner = {rest.p + begin, rest.n - begin};
            uint32_t level = 0;
            size_t value_n = 0, n;
            if (!key.n || depth >= LITERAL_DEPTH ||
                chat_scan_elements(inner, key, &level, &value_n, &n) != SCAN_END)
                return 0;
            list = list && slice_eq_z(key, "item");
            rest = trim((struct slice){inner.p + value_n + n, inner.n - value_n - n});
            if (!pass)
                continue;
            str_putz(out, n_items ? "," : "");
            if (!list) {
                str_json(out, key.p, key.n);
                str_putc(out, ':');
            }
            inner.n = value_n;
            size_t back = out->n;
            if (!put_elements(out, inner, depth + 1)) {
                out->n = back;
                put_by_kinds(out, inner, 0);
            }
        }
        if (!n_items)
            return 0;
    }
    str_putc(out, list ? ']' : '}');
    return out->n > from;
}

void chat_put_elements(struct str *out, struct slice text, const struct chat_tool *tool,
                       struct slice key)
{
    size_t back = out->n;
    if (put_elements(out, text, 0))
        return;
    out->n = back;
    chat_put_value(out, text, (struct slice){NULL, 0}, tool, key);
}
