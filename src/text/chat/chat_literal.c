/* chat_literal.c -- values as Python and Gemma write them become JSON while they come. A stack of
 * closing brackets and a state:
 *
 *     [ name ( key = value , ... ) , ... ]          calls
 *     { key : value , ... }   [ value , ... ]   ( value , ... )   "text"   <|"|>text<|"|>   word
 *
 * A comma is put when something comes behind it, for one may stand behind the last. What is not
 * certain yet is left where it stands and looked at again: the begin of an escape, of a character
 * or of Gemma's quote, a word that may go on. */
#include <ctype.h>
#include <string.h>

#include "base/utf8.h"
#include "base/work.h"
#include "text/chat/chat_impl.h"

enum { L_BEGIN, L_NAME, L_NEXT, L_VALUE, L_ITEM, L_KEY, L_COLON, L_AFTER, L_TEXT, L_QUOTED, L_END };
enum { ARGUMENTS = 'a' }; /* the closing bracket of a call's, other than a tuple's */

struct at {
    struct literal_scan *l;
    const char *p;
    size_t n, *i;
    struct str *out;
};

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int is_word(char c)
{
    return chat_name_char(c) || c == '+';
}

static int is_bare(char c)
{
    return !is_space(c) && c && !strchr(":,{}[]\"'<>", c);
}

/* The end of a run of such characters that begins here; a.n: it may go on. */
static size_t run_end(const struct at *a, int (*is)(char))
{
    size_t k = *a->i + a->l->seen;
    while (k < a->n && is(a->p[k]))
        k++;
    a->l->seen = k < a->n ? 0 : k - *a->i;
    return k;
}

static void put_comma(struct at *a)
{
    if (a->l->comma)
        str_putc(a->out, ',');
    a->l->comma = 0;
}

/* ---------------------------------------------------------------- strings */

/* Whether p[from] to p[to - 1] are hexadecimal digits, as far as they are there. */
static int hex(const char *p, size_t n, size_t from, size_t to)
{
    while (from < to && from < n && isxdigit((unsigned char)p[from]))
        from++;
    return from == to || from >= n;
}

/* How many bytes a backslash and what belongs to it are; 0: that is not known yet. 1: nothing does.
 */
static size_t escape_bytes(const char *p, size_t n)
{
    if (n < 2)
        return 0;
    if ((unsigned char)p[1] >= 0x80)
        return 1;
    size_t own = p[1] == 'u' ? 6 : p[1] == 'x' ? 4 : 2;
    if (!hex(p, n, 2, own))
        return 2;
    if (n < own)
        return 0;
    if (own < 6 || (p[2] | 0x20) != 'd' || !memchr("89abAB", p[3], 6))
        return own;
    static const char low[] = "\\ud"; /* then c to f, and two more: the second half of a pair */
    for (size_t i = 0; i < 3 && 6 + i < n; i++)
        if ((i < 2 ? p[6 + i] : p[6 + i] | 0x20) != low[i])
            return 6;
    if ((n > 9 && !memchr("cdefCDEF", p[9], 8)) || !hex(p, n, 10, 12))
        return 6;
    return n < 12 ? 0 : 12;
}

/* Characters as they are; of the last one that begins here all. */
static void put_plain(const char *p, size_t n, int raw, struct str *out)
{
    raw ? str_put(out, p, n) : str_json_part(out, p, n);
}

/* Up to a quote, behind it. */
static enum scan_result text(const char *p, size_t n, size_t *i, char quote, int raw,
                             struct str *out)
{
    for (;;) {
        size_t from = *i, to = from;
        while (to < n && p[to] != quote && p[to] != '\\')
            to++;
        *i = to < n ? to : from + utf8_complete(p + from, n - from);
        put_plain(p + from, *i - from, raw, out);
        if (to == n)
            return SCAN_MORE;
        if (p[to] == quote) {
            ++*i;
            return SCAN_END;
        }
        size_t len = escape_bytes(p + to, n - to);
        struct str meant;
        str_init(&meant, PITH_MEM_SCRATCH);
        int ok = len < 2 || chat_escape(&meant, (struct slice){p + to, len});
        if (len == 1)
            str_putc(&meant, '\\');
        put_plain(meant.p ? meant.p : "", meant.n, raw, out);
        out->failed |= meant.failed;
        str_deinit(&meant);
        if (!ok || !len)
            return ok ? SCAN_MORE : SCAN_NO;
        *i += len;
    }
}

enum scan_result literal_text(const char *p, size_t n, size_t *i, struct str *out)
{
    return text(p, n, i, '"', 1, out);
}

/* Up to Gemma's quote, behind it. */
static enum scan_result quoted(struct at *a)
{
    static const char mark[] = GEMMA_QUOTE;
    size_t n = sizeof mark - 1, from = *a->i, to = from;
    for (;; to++) {
        const char *hit = to < a->n ? memchr(a->p + to, mark[0], a->n - to) : NULL;
        to = hit ? (size_t)(hit - a->p) : a->n;
        size_t left = a->n - to, k = left < n ? left : n;
        if (hit && memcmp(hit, mark, k) != 0)
            continue;
        *a->i = hit ? to : from + utf8_complete(a->p + from, to - from);
        str_json_part(a->out, a->p + from, *a->i - from);
        if (!hit || k < n)
            return SCAN_MORE;
        *a->i += n;
        return SCAN_END;
    }
}

/* ---------------------------------------------------------------- brackets */

static enum scan_result open_level(struct at *a, char close)
{
    struct literal_scan *l = a->l;
    if (l->depth == sizeof l->close)
        return SCAN_NO;
    l->close[l->depth++] = close;
    l->comma = 0;
    l->state = close == '}' || close == ARGUMENTS ? L_KEY : L_ITEM;
    if (close != ARGUMENTS)
        str_putc(a->out, close == '}' ? '{' : '[');
    return close == ARGUMENTS ? SCAN_STOP : SCAN_END;
}

static enum scan_result close_level(struct at *a)
{
    struct literal_scan *l = a->l;
    char close = l->close[--l->depth];
    str_putc(a->out, close == '}' || close == ARGUMENTS ? '}' : ']');
    l->comma = 0;
    l->state = l->depth ? L_AFTER : close == ARGUMENTS && l->list ? L_NEXT : L_END;
    return SCAN_END;
}

/* Whether a character closes what is open. */
static int closes(const struct literal_scan *l, char c)
{
    char close = l->depth ? l->close[l->depth - 1] : 0;
    return close && c == (close == ARGUMENTS ? ')' : close);
}

/* ---------------------------------------------------------------- states */

static enum scan_result begin_text(struct at *a, char c, int key)
{
    size_t n = sizeof GEMMA_QUOTE - 1, left = a->n - *a->i;
    if (c == '<') {
        if (memcmp(a->p + *a->i, GEMMA_QUOTE, left < n ? left : n) != 0)
            return SCAN_NO;
        if (left < n)
            return SCAN_MORE;
    }
    put_comma(a);
    a->l->key = (uint8_t)key;
    a->l->quote = (uint8_t)c;
    a->l->state = c == '<' ? L_QUOTED : L_TEXT;
    *a->i += c == '<' ? n : 1;
    str_putc(a->out, '"');
    return SCAN_END;
}

static enum scan_result in_text(struct at *a)
{
    enum scan_result s = a->l->state == L_QUOTED
                             ? quoted(a)
                             : text(a->p, a->n, a->i, (char)a->l->quote, 0, a->out);
    if (s != SCAN_END)
        return s;
    str_putc(a->out, '"');
    a->l->state = a->l->key ? L_COLON : a->l->depth ? L_AFTER : L_END;
    return SCAN_END;
}

/* A value, or what closes the items. */
static enum scan_result value(struct at *a, char c)
{
    struct literal_scan *l = a->l;
    if (l->state == L_ITEM && closes(l, c)) {
        ++*a->i;
        return close_level(a);
    }
    if (c == '"' || c == '\'' || (c == '<' && l->gemma))
        return begin_text(a, c, 0);
    if (c == '{' || c == '[' || c == '(') {
        put_comma(a);
        ++*a->i;
        return open_level(a, c == '{' ? '}' : c == '[' ? ']' : ')');
    }
    size_t end = run_end(a, is_word);
    if (end == a->n)
        return SCAN_MORE;
    put_comma(a);
    if (!chat_put_word(a->out, (struct slice){a->p + *a->i, end - *a->i}))
        return SCAN_NO;
    *a->i = end;
    l->state = l->depth ? L_AFTER : L_END;
    return SCAN_END;
}

static enum scan_result key(struct at *a, char c)
{
    struct literal_scan *l = a->l;
    int call = l->close[l->depth - 1] == ARGUMENTS;
    if (closes(l, c)) {
        ++*a->i;
        return close_level(a);
    }
    if (!call && (c == '"' || c == '\'' || (c == '<' && l->gemma)))
        return begin_text(a, c, 1);
    size_t end = call || l->gemma ? run_end(a, call ? chat_name_char : is_bare) : *a->i;
    if (end == a->n)
        return SCAN_MORE;
    if (end == *a->i)
        return SCAN_NO;
    put_comma(a);
    str_json(a->out, a->p + *a->i, end - *a->i);
    *a->i = end;
    l->state = L_COLON;
    return SCAN_END;
}

/* A call's name and its bracket, in one piece. */
static enum scan_result name(struct at *a)
{
    struct literal_scan *l = a->l;
    size_t end = run_end(a, chat_name_char), from = end + l->blank, open = from;
    while (open < a->n && is_space(a->p[open]))
        open++;
    l->blank = open == a->n ? open - end : 0;
    if (open == a->n) {
        l->seen = end - *a->i;
        return work_tick(1 + (open - from) / CHAT_BYTES_A_STEP) ? SCAN_MORE : SCAN_NO;
    }
    struct slice s = chat_called((struct slice){a->p + *a->i, end - *a->i});
    if (a->p[open] != '(' || !s.n || s.n >= CHAT_NAME_MAX)
        return SCAN_NO;
    l->name = *a->i;
    l->n_name = s.n;
    *a->i = open + 1;
    return open_level(a, ARGUMENTS);
}

/* One step from a character that is no white space, or within a text. SCAN_END: and on. */
static enum scan_result one_step(struct at *a)
{
    struct literal_scan *l = a->l;
    if (l->state == L_TEXT || l->state == L_QUOTED)
        return in_text(a);
    while (!l->seen && *a->i < a->n && is_space(a->p[*a->i]))
        ++*a->i;
    if (*a->i == a->n)
        return SCAN_MORE;
    char c = a->p[*a->i];
    switch (l->state) {
    case L_BEGIN:
        l->list = c == '[';
        *a->i += l->list;
        l->state = L_NAME;
        return SCAN_END;
    case L_NAME:
        return name(a);
    case L_NEXT:
        ++*a->i;
        l->state = c == ',' ? L_NAME : L_END;
        return c == ',' || c == ']' ? SCAN_END : SCAN_NO;
    case L_KEY:
        return key(a, c);
    case L_COLON:
        if (c != (l->close[l->depth - 1] == ARGUMENTS ? '=' : ':'))
            return SCAN_NO;
        ++*a->i;
        str_putc(a->out, ':');
        l->state = L_VALUE;
        return SCAN_END;
    case L_AFTER:
        if (c != ',' && !closes(l, c))
            return SCAN_NO;
        ++*a->i;
        if (c != ',')
            return close_level(a);
        l->comma = 1;
        l->state = strchr("}a", l->close[l->depth - 1]) ? L_KEY : L_ITEM;
        return SCAN_END;
    default:
        return value(a, c);
    }
}

enum scan_result literal_scan(struct literal_scan *l, const char *p, size_t n, size_t *i,
                              struct str *out)
{
    struct at a = {l, p, n, i, out};
    if (l->state == L_BEGIN && l->gemma)
        l->state = L_VALUE;
    enum scan_result s = SCAN_END;
    while (s == SCAN_END && l->state != L_END)
        s = one_step(&a);
    return s;
}
