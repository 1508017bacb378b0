/* chat_match.c -- one pattern of chat_formats.def against text that is still growing. The state is
 * a place in the pattern and one in the text; a capture that waits for its end remembers how far it
 * has looked, so no byte is read twice. Repetitions need no stack: a pattern's bracket finds its
 * other half in the pattern.
 *
 * Calls are told while they come (`partial`) by one of two ways: a JSON object's text as it stands,
 * or, of arguments in other forms, the JSON that they become, which grows in `args`:
 *
 *     %k %v, %x      key by key, strings as they come (grow_value), other values whole
 *     %p, %g         as literal_scan reads along
 *     "{\"n\":1}"    arguments in a string of a call in JSON, as literal_text reads along */
#include <string.h>

#include "base/utf8.h"
#include "base/work.h"
#include "text/chat/chat_impl.h"

/* What an argument's value is, as far as its begin tells. */
enum value_kind { VALUE_NEW, VALUE_STRING, VALUE_CDATA, VALUE_OTHER };

void chat_match_init(struct chat_match *m, const char *pattern)
{
    memset(m, 0, sizeof *m);
    str_init(&m->args, PITH_MEM_SCRATCH);
    m->only_known = *pattern == '!';
    m->op = pattern + m->only_known;
    m->only_known |= m->op[0] == '%';
}

void chat_match_deinit(struct chat_match *m)
{
    str_deinit(&m->args);
}

size_t chat_literal(const char *op)
{
    return strcspn(op, "% \n");
}

/* How a literal fits: SCAN_MORE when the text ends within it. */
static enum scan_result fits(const char *lit, size_t n, struct slice text, int final)
{
    size_t k = text.n < n ? text.n : n;
    if (k && memcmp(lit, text.p, k) != 0)
        return SCAN_NO;
    return k == n ? SCAN_END : final ? SCAN_NO : SCAN_MORE;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int word_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (unsigned char)c >= 0x80 || (c && strchr("_-.:/@", c));
}

/* [name( or name( : what calls in Python's syntax begin with. */
static enum scan_result starts_python(struct slice text, int final, int list)
{
    size_t i = 0;
    if (list && text.n && text.p[0] != '[')
        return SCAN_NO;
    i += text.n && text.p[0] == '[';
    while (i < text.n && is_space(text.p[i]))
        i++;
    size_t name = i;
    while (i < text.n && word_char(text.p[i]) && (unsigned char)text.p[i] < 0x80)
        i++;
    if (i > CHAT_NAME_MAX)
        return SCAN_NO;
    if (i == text.n)
        return final ? SCAN_NO : SCAN_MORE;
    return i > name && text.p[i] == '(' ? SCAN_END : SCAN_NO;
}

enum scan_result chat_starts(const char *op, struct slice text, int final)
{
    for (;;) {
        if (*op == ' ' || *op == '\n') {
            size_t n = 0;
            while (n < text.n && n <= CHAT_NAME_MAX &&
                   is_space(text.p[n])) /* bounded: looked at anew with every piece */
                n++;
            text = (struct slice){text.p + n, text.n - n};
            op++;
        } else if (op[0] == '%' && op[1] == '.') {
            op += 2;
        } else {
            break;
        }
    }
    if (*op && *op != '%')
        return fits(op, chat_literal(op), text, final);
    if (!*op || strchr("()", op[1]))
        return SCAN_NO;
    if (!text.n)
        return final ? SCAN_NO : SCAN_MORE;
    char c = text.p[0];
    if (op[1] == 'p')
        return starts_python(text, final, 1);
    if (op[1] == 'c' || op[1] == 'j' || op[1] == 'g')
        return c == '{' || (c == '[' && op[1] == 'c') ? SCAN_END : SCAN_NO;
    return word_char(c) ? SCAN_END : SCAN_NO;
}

/* The other half of a bracket of the pattern. */
static const char *behind_group(const char *op)
{
    for (int depth = 0;; op++) {
        if (op[0] != '%')
            continue;
        depth += op[1] == '(' ? 1 : op[1] == ')' ? -1 : 0;
        if (depth == 0)
            return op + 2;
        op++;
    }
}

static const char *begin_of_group(const char *op)
{
    for (int depth = 0;; op--) {
        if (op[0] != '%')
            continue;
        depth += op[1] == ')' ? 1 : op[1] == '(' ? -1 : 0;
        if (depth == 0)
            return op;
    }
}

/* ---------------------------------------------------------------- ops */

struct run {
    struct chat_match *m;
    struct slice text, left; /* left: from m->at on */
    int final;
    const struct chat_tools *tools;
    chat_take take;
    void *ctx;
};

static enum match_result no(struct run *r, size_t looked)
{
    r->m->reach = r->m->at + looked;
    return MATCH_NO;
}

/* Not yet, or never when no more text comes. */
static enum match_result more(struct run *r)
{
    r->m->cut = r->final && (*r->m->op != '%' || r->m->op[1] == '(' || r->m->n_told);
    return r->final ? no(r, r->left.n) : MATCH_MORE;
}

static struct slice part(const struct run *r, size_t from, size_t n)
{
    return (struct slice){r->text.p + from, n};
}

/* The tool that is called, when it is known. */
static const struct chat_tool *tool(const struct run *r)
{
    return chat_tool(r->tools, (struct slice){r->m->name, r->m->n_name});
}

static enum match_result advance(struct run *r, size_t n, int op)
{
    struct chat_match *m = r->m;
    m->at += n;
    m->op += op;
    m->scan = m->told = 0;
    m->depth = 0;
    if (m->n_told) /* it stays a call, whatever comes */
        m->kept = m->at;
    return MATCH_DONE;
}

static enum match_result group(struct run *r)
{
    struct chat_match *m = r->m;
    const char *behind = behind_group(m->op);
    enum scan_result leave = chat_starts(behind, r->left, r->final),
                     in = chat_starts(m->op + 2, r->left, r->final);
    if (leave == SCAN_END || (leave == SCAN_NO && in == SCAN_NO))
        m->op = behind;
    else if (leave == SCAN_MORE || in == SCAN_MORE)
        return more(r);
    else
        m->op += 2;
    return MATCH_DONE;
}

static enum match_result hand_on(struct run *r, const struct chat_call *call)
{
    return r->take(r->ctx, call) == PITH_OK ? MATCH_DONE : MATCH_NOMEM;
}

/* More of a call's arguments, and that it has begun; it is one now, whatever comes. */
static enum match_result tell(struct run *r, struct slice args, int ends)
{
    struct chat_match *m = r->m;
    struct chat_call call = {{m->name, m->n_name}, {m->id, m->n_id}, args, m->fresh, ends};
    m->n_told += (uint32_t)m->fresh;
    m->fresh = 0;
    return args.n || ends ? hand_on(r, &call) : MATCH_DONE;
}

/* What has come of arguments that are told by the JSON they become. */
static enum match_result tell_args(struct run *r, int ends)
{
    struct chat_match *m = r->m;
    size_t n = m->n_args;
    if (m->args.failed)
        return MATCH_NOMEM;
    m->n_args = m->args.n;
    if (n == m->args.n && !ends)
        return MATCH_DONE;
    return tell(r, (struct slice){m->args.p + n, m->args.n - n}, ends);
}

static void begin_args(struct chat_match *m)
{
    str_clear(&m->args);
    m->n_args = 0;
}

/* A word of at most CHAT_NAME_MAX - 1 bytes. */
static enum match_result word(struct run *r)
{
    struct chat_match *m = r->m;
    char kind = m->op[1];
    size_t n = 0;
    while (n < r->left.n && n < CHAT_NAME_MAX && word_char(r->left.p[n]))
        n++;
    if (n == CHAT_NAME_MAX || (n == 0 && r->left.n))
        return no(r, 0);
    if (n == r->left.n)
        return more(r);
    const char *p = r->left.p;
    size_t name_n = n;
    if (kind == 'i' || (kind == 'f' && memchr(p, ':', n))) {
        memcpy(m->id, p, n);
        m->n_id = (uint16_t)n;
    }
    if (kind == 'f') {
        const char *colon = memchr(p, ':', n);
        size_t skip = n > 10 && !memcmp(p, "functions.", 10) ? 10 : 0;
        name_n = (colon && colon > p + skip ? (size_t)(colon - p) : n) - skip;
        p += skip;
    }
    if (kind == 'n' || kind == 'f') {
        memcpy(m->name, p, name_n);
        m->n_name = (uint16_t)name_n;
        begin_args(m);
    }
    return advance(r, n, 2);
}

/* ---------------------------------------------------------------- values of arguments */

static const char cdata[] = CDATA_OPEN, shut[] = CDATA_CLOSE;

/* What a value is that begins with a text; VALUE_NEW: it is not known yet. */
static enum value_kind kind_of(const struct run *r, struct slice s)
{
    enum { LOOKED_AT = 64 }; /* anew with every piece */
    const struct chat_match *m = r->m;
    int elements = m->op[1] == 'x';
    size_t n = elements ? sizeof ELEMENT : sizeof cdata - 1, lead = 0;
    while (elements && lead < s.n && lead < LOOKED_AT && is_space(s.p[lead]))
        lead++;
    work_tick(1 + lead / CHAT_BYTES_A_STEP);
    size_t left = s.n - lead;
    if (!left || lead == LOOKED_AT)
        return left ? VALUE_OTHER : VALUE_NEW;
    if (!memcmp(s.p + lead, elements ? ELEMENT "<" : cdata, left < n ? left : n))
        return left < n ? VALUE_NEW : elements ? VALUE_OTHER : VALUE_CDATA;
    if (elements && fits(cdata, sizeof cdata - 1, s, 0) != SCAN_NO)
        return VALUE_OTHER;
    if (chat_is_string(s, part(r, m->type_at, m->n_type), tool(r), part(r, m->key_at, m->n_key)))
        return VALUE_STRING;
    return s.n < LOOKED_AT ? VALUE_NEW : VALUE_OTHER;
}

/* What is certain to be of a string, of the value's first n bytes. */
static void put_text(struct chat_match *m, const char *p, size_t n)
{
    if (n <= m->told)
        return;
    str_json_part(&m->args, p + m->told, n - m->told);
    m->told = n;
}

/* n more bytes of a value have come, its end has not. */
static enum match_result grow_value(struct run *r, size_t n, int line_end)
{
    struct chat_match *m = r->m;
    const char *p = r->left.p;
    if (!m->open || m->op[1] == 'k' || m->op[1] == 't')
        return MATCH_DONE;
    if (m->value == VALUE_NEW) {
        m->value = (int)kind_of(r, (struct slice){p, n});
        if (m->value == VALUE_STRING || m->value == VALUE_CDATA)
            str_putc(&m->args, '"');
        m->told = m->value == VALUE_CDATA ? sizeof cdata - 1 : 0;
    }
    if (m->value == VALUE_NEW || m->value == VALUE_OTHER)
        return MATCH_DONE;
    size_t hold = m->value == VALUE_CDATA ? sizeof shut - 1 : 0;
    n -= (size_t)(line_end && n && p[n - 1] == '\n');
    n -= hold < n ? hold : n;
    if (n > m->told)
        n = m->told + utf8_complete(p + m->told, n - m->told);
    put_text(m, p, n);
    return tell_args(r, 0);
}

/* A value is all there. */
static enum match_result end_value(struct run *r, struct slice s)
{
    struct chat_match *m = r->m;
    struct slice key = part(r, m->key_at, m->n_key);
    if (m->value == VALUE_STRING || m->value == VALUE_CDATA) {
        put_text(m, s.p, m->value == VALUE_CDATA ? s.n - (sizeof shut - 1) : s.n);
        str_putc(&m->args, '"');
    } else if (m->op[1] == 'x') {
        chat_put_elements(&m->args, s, tool(r), key);
    } else {
        chat_put_value(&m->args, s, part(r, m->type_at, m->n_type), tool(r), key);
    }
    m->value = VALUE_NEW;
    return m->open ? tell_args(r, 0) : MATCH_DONE;
}

/* Text up to the literal behind the op, of which one line end before it is no part where the
 * pattern has one. */
static enum match_result until(struct run *r)
{
    struct chat_match *m = r->m;
    const char *lit = m->op + 2;
    int line_end = *lit == '\n';
    lit += line_end;
    size_t n = chat_literal(lit), i = m->scan;
    enum scan_result quoted = m->op[1] == 'v' ? fits(cdata, sizeof cdata - 1, r->left, 1) : SCAN_NO;
    for (; i + n <= r->left.n; i++) {
        const char *hit = memchr(r->left.p + i, lit[0], r->left.n - n - i + 1);
        if (!hit)
            break;
        i = (size_t)(hit - r->left.p);
        if (memcmp(hit, lit, n) != 0)
            continue;
        struct slice found = {r->left.p, i - (size_t)(line_end && i && hit[-1] == '\n')};
        if (quoted == SCAN_END &&
            (found.n < 12 || memcmp(found.p + found.n - 3, shut, 3) != 0))
            continue;
        if (m->op[1] == 'k') {
            m->key_at = m->at;
            m->n_key = found.n;
        } else if (m->op[1] == 't') {
            m->type_at = m->at;
            m->n_type = found.n;
        } else if (end_value(r, found) != MATCH_DONE) {
            return MATCH_NOMEM;
        }
        return advance(r, i, 2);
    }
    work_tick(1 + (r->left.n - m->scan) / CHAT_BYTES_A_STEP);
    m->scan = r->left.n >= n ? r->left.n - n + 1 : 0;
    m->scan = m->scan > i ? m->scan : i;
    return grow_value(r, m->scan, line_end) == MATCH_DONE ? more(r) : MATCH_NOMEM;
}

static enum match_result elements(struct run *r)
{
    struct chat_match *m = r->m;
    struct slice key = part(r, m->key_at, m->n_key);
    size_t n;
    if (chat_scan_elements(r->left, key, &m->depth, &m->scan, &n) != SCAN_END)
        return grow_value(r, m->scan, 0) == MATCH_DONE ? more(r) : MATCH_NOMEM;
    if (end_value(r, (struct slice){r->left.p, m->scan}) != MATCH_DONE)
        return MATCH_NOMEM;
    return advance(r, m->scan + n, 2);
}

/* %k begins a member: its key can be written once it is known, before the value. With the first one
 * the call has begun, where nothing of it but arguments comes behind. */
static enum match_result member(struct run *r)
{
    struct chat_match *m = r->m;
    enum match_result res = until(r);
    if (res != MATCH_DONE)
        return res;
    if (m->partial && !m->args.n) {
        const char *end = strstr(m->op, "%."), *id = strstr(m->op, "%i");
        m->open = m->fresh = !id || (end && end < id);
    }
    str_putz(&m->args, m->args.n ? "," : "{");
    str_json(&m->args, r->text.p + m->key_at, m->n_key);
    str_putc(&m->args, ':');
    m->n_type = 0;
    m->value = VALUE_NEW;
    return m->open ? tell_args(r, 0) : MATCH_DONE;
}

static enum match_result whole(struct run *r)
{
    struct chat_match *m = r->m;
    str_putz(&m->args, m->args.n ? "}" : "{}");
    if (m->args.failed)
        return MATCH_NOMEM;
    struct chat_call call = {{m->name, m->n_name}, {m->id, m->n_id}, {NULL, 0}, 1, 1};
    struct arena a;
    arena_init(&a, PITH_MEM_SCRATCH);
    int ok = chat_object(&a, (struct slice){m->args.p, m->args.n},
                         &call.args); /* a key twice is no call */
    enum match_result res = !ok       ? arena_ok(&a) ? no(r, 0) : MATCH_NOMEM
                            : m->open ? tell_args(r, 1)
                                      : hand_on(r, &call);
    arena_deinit(&a);
    if (res == MATCH_DONE) {
        begin_args(m);
        m->n_id = 0;
        m->open = 0;
        m->n_told = 0;
        m->kept = m->at;
        m->op += 2;
    }
    return res;
}

/* ---------------------------------------------------------------- calls in one text */

/* A JSON or Python text is complete: its calls, or the arguments of the call that has a name
 * already. */
static enum match_result calls(struct run *r, struct slice text)
{
    struct chat_match *m = r->m;
    struct chat_call one = {{m->name, m->n_name}, {m->id, m->n_id}, {NULL, 0}, 1, 1}, *list = &one;
    uint32_t n = 1, told = m->n_told;
    struct arena a;
    arena_init(&a, PITH_MEM_SCRATCH);
    char kind = m->op[1];
    int ok = kind == 'c'   ? chat_calls_of_json(&a, text, &list, &n)
             : kind == 'p' ? chat_calls_of_python(&a, text, &list, &n)
             : kind == 'g' ? chat_gemma(&a, text, &one.args)
                           : chat_object(&a, text, &one.args);
    int read = ok;
    for (uint32_t i = told; ok && i < n; i++) {
        ok = !m->only_known ||
             (r->tools ? chat_tool(r->tools, list[i].name) != NULL : list[i].args.n > 0);
        list[i].args = list[i].args.n ? list[i].args : SLICE("{}");
        list[i].begins = list[i].ends = 1;
    }
    enum match_result res = ok || (told && arena_ok(&a)) ? MATCH_DONE
                            : arena_ok(&a)               ? no(r, text.n)
                                                         : MATCH_NOMEM;
    if (res == MATCH_DONE && read &&
        told) /* those that were told are whole, though another names no tool */
        res = tell(r, (struct slice){NULL, 0}, 1);
    for (uint32_t i = told; ok && res == MATCH_DONE && i < n; i++)
        res = hand_on(r, &list[i]);
    arena_deinit(&a);
    if (res == MATCH_DONE) {
        m->n_id = 0;
        m->n_told = 0;
        m->open = m->fresh = 0;
        advance(r, text.n, 2);
        m->kept = m->at;
    }
    return res;
}

/* The call that is being told has this name. */
static void name_call(struct chat_match *m, const struct chat_call *call)
{
    memcpy(m->name, call->name.p, m->n_name = (uint16_t)call->name.n);
    if (call->id.n)
        memcpy(m->id, call->id.p, call->id.n);
    m->n_id = (uint16_t)call->id.n;
    m->fresh = 1;
    m->misses = 0;
    m->item_told = 1;
}

static int may_be_called(const struct run *r, struct slice name)
{
    return !r->m->only_known || !r->tools || chat_tool(r->tools, name);
}

/* Whether the object or the text that has just opened holds the arguments of a call whose name is
 * known: if it were closed there, the text would be calls of which this is the last, and all before
 * it have been told. Behind an object of a list the same for that: its name may stand behind its
 * arguments. */
static enum match_result begin_call(struct run *r, char c)
{
    /* Each try reads the text so far. A call's arguments open with its third object at most; what
     * has more of them in vain, or very many calls, is read as a whole from there on. */
    enum { MISSES = 4, TOLD_MAX = 64 };
    static const char probe[] = "{\"\":0}", in_text[] = "{\\\"\\\":0}\"";
    struct chat_match *m = r->m;
    struct chat_call *list = NULL;
    uint32_t n = 0;
    struct arena a;
    struct str s;
    int behind = c == '}';
    if (m->n_told >= TOLD_MAX)
        m->json.stops = 0;
    if (m->n_told >= TOLD_MAX || (m->misses >= MISSES && !behind))
        return MATCH_DONE;
    arena_init(&a, PITH_MEM_SCRATCH);
    str_init(&s, PITH_MEM_SCRATCH);
    str_put(&s, r->left.p, m->scan);
    if (!behind)
        str_putz(&s, c == '"' ? in_text : "\"\":0");
    json_close(&m->json, &s);
    int ok = !s.failed && chat_calls_of_json(&a, (struct slice){s.p, s.n}, &list, &n) &&
             n == m->n_told + 1 && may_be_called(r, list[n - 1].name);
    enum match_result res = s.failed || !arena_ok(&a) ? MATCH_NOMEM : MATCH_DONE;
    if (ok && behind) {
        name_call(m, &list[n - 1]);
        res = tell(r, list[n - 1].args.n ? list[n - 1].args : SLICE("{}"), 0);
    } else if (ok && slice_eq_z(list[n - 1].args, probe)) {
        name_call(m, &list[n - 1]);
        begin_args(m);
        m->open = m->json.depth;
        m->in_text = c == '"';
        m->told = m->scan - (size_t)!m->in_text;
    } else {
        m->misses++;
        if (behind) /* one of a list is no call: none of it is */
            m->json.stops = 0;
    }
    str_deinit(&s);
    arena_deinit(&a);
    return res;
}

/* More of the arguments in a text of a JSON text. It has to be an object; MATCH_NO: what has been
 * told of it goes no further. */
static enum match_result tell_text(struct run *r)
{
    struct chat_match *m = r->m;
    enum scan_result s = literal_text(r->left.p, m->scan, &m->told, &m->args);
    while (m->fresh && m->n_args < m->args.n && is_space(m->args.p[m->n_args]))
        m->n_args++;
    if (m->args.failed)
        return MATCH_NOMEM;
    int some = m->n_args < m->args.n, no_object = m->fresh && some && m->args.p[m->n_args] != '{';
    if (s != SCAN_MORE || no_object)
        m->open = m->in_text = 0;
    if (m->fresh && (!some || no_object || s == SCAN_NO)) {
        m->fresh = m->open;
        return MATCH_DONE;
    }
    return s == SCAN_NO ? no(r, m->told) : tell_args(r, 0);
}

/* Whether the text that has just begun is the value of a key that arguments go by. */
static int is_arguments(const char *p, size_t n)
{
    static const char *const keys[] = {"arguments\"", "parameters\"", "args\"", "input\""};
    while (n && is_space(p[n - 1]))
        n--;
    if (!n || p[--n] != ':')
        return 0;
    while (n && is_space(p[n - 1]))
        n--;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t len = strlen(keys[i]);
        if (n > len && !memcmp(p + n - len, keys[i], len) && p[n - len - 1] == '"')
            return 1;
    }
    return 0;
}

/* More of the arguments in a JSON text, as it is written. */
static enum match_result tell_json(struct run *r, enum scan_result end)
{
    enum { DEEPEST = 4 }; /* a list, a call, "function", its arguments */
    struct chat_match *m = r->m;
    const char *p = r->left.p;
    enum match_result res = MATCH_DONE;
    if (m->open && m->in_text) {
        res = tell_text(r);
    } else if (m->open) {
        res = tell(r, (struct slice){p + m->told, m->scan - m->told}, 0);
        m->told = m->scan;
        m->open = m->json.depth < m->open ? 0 : m->open;
    }
    if (m->json.stops && !m->open)
        m->json.stops = STOPS_AT_TEXTS;
    if (res != MATCH_DONE || m->open || end != SCAN_STOP)
        return res;
    char c = p[m->scan - 1];
    int item = c == '}' && m->json.depth == 1 && p[0] == '[', told = m->item_told;
    if (item) {
        m->misses = m->item_told = 0;
        return told ? MATCH_DONE : begin_call(r, c);
    }
    int opens = m->json.depth <= DEEPEST && !m->item_told &&
                (c == '{' || (c == '"' && is_arguments(p, m->scan - 1)));
    res = opens ? begin_call(r, c) : MATCH_DONE;
    if (m->json.stops && m->open)
        m->json.stops = STOPS_AT_BRACKETS;
    return res;
}

/* Whether the arguments have come to a value, or to their end: the call has begun. */
static int has_member(const struct chat_match *m)
{
    size_t n = m->args.n;
    return !m->fresh || (n && (memchr(m->args.p, ':', n) || m->args.p[n - 1] == '}'));
}

/* More of calls as Python writes them, or of arguments as Gemma does. What the reader refuses is no
 * call; of one that has been told no more comes. */
static enum match_result tell_literals(struct run *r)
{
    struct chat_match *m = r->m;
    while (m->reads) {
        enum scan_result s = literal_scan(&m->lit, r->left.p, m->scan, &m->told, &m->args);
        if (m->args.failed ||
            (m->open && has_member(m) && tell_args(r, 0) != MATCH_DONE))
            return MATCH_NOMEM;
        if (s == SCAN_STOP) {
            struct chat_call call = {.name = {r->left.p + m->lit.name, m->lit.n_name}};
            begin_args(m);
            str_putc(&m->args, '{');
            m->reads = m->open = may_be_called(r, call.name);
            if (m->open)
                name_call(m, &call);
            continue;
        }
        m->reads = s == SCAN_MORE;
        return s == SCAN_NO && m->n_told ? no(r, m->told) : MATCH_DONE;
    }
    return MATCH_DONE;
}

static enum match_result scanned(struct run *r)
{
    struct chat_match *m = r->m;
    int python = m->op[1] == 'p', gemma = m->op[1] == 'g';
    if (m->scan == 0) {
        m->json = (struct json_scan){.stops = m->partial && m->op[1] == 'c' ? STOPS_AT_TEXTS : 0};
        m->misses = m->item_told = m->in_text = 0;
        m->open = m->fresh = m->partial && (m->op[1] == 'j' || gemma);
        m->told = 0;
        m->py = (struct py_scan){.depth = 0};
        m->lit = (struct literal_scan){.gemma = (uint8_t)gemma};
        m->reads = m->partial && (python || gemma);
        begin_args(m);
        enum scan_result begin =
            python ? starts_python(r->left, r->final, 0) : chat_starts(m->op, r->left, r->final);
        if (begin != SCAN_END)
            return begin == SCAN_NO ? no(r, 0) : more(r);
    }
    enum scan_result end;
    work_tick(1 + (r->left.n - m->scan) / CHAT_BYTES_A_STEP);
    do {
        end = python  ? py_scan(&m->py, r->left.p, r->left.n, &m->scan)
              : gemma ? gemma_scan(&m->py, r->left.p, r->left.n, &m->scan)
                      : json_scan(&m->json, r->left.p, r->left.n, &m->scan);
        enum match_result told = !m->partial        ? MATCH_DONE
                                 : python || gemma ? tell_literals(r)
                                                   : tell_json(r, end);
        if (m->n_told)
            m->kept = m->at + (told == MATCH_NO ? m->told : m->scan);
        if (told != MATCH_DONE)
            return told;
    } while (end == SCAN_STOP);
    if (end == SCAN_NO)
        return no(r, m->scan);
    return end == SCAN_MORE ? more(r) : calls(r, (struct slice){r->left.p, m->scan});
}

static enum match_result one_op(struct run *r)
{
    struct chat_match *m = r->m;
    size_t n = 0;
    if (*m->op == ' ') {
        while (n < r->left.n && is_space(r->left.p[n]))
            n++;
        int goes_on = n == r->left.n && !r->final;
        advance(r, n, !goes_on);
        return goes_on ? MATCH_MORE : MATCH_DONE;
    }
    if (*m->op == '\n') {
        if (!r->left.n && !r->final)
            return MATCH_MORE;
        return advance(r, (size_t)(r->left.n && r->left.p[0] == '\n'), 1);
    }
    if (*m->op != '%') {
        n = chat_literal(m->op);
        enum scan_result fit = fits(m->op, n, r->left, 0);
        return fit == SCAN_END ? advance(r, n, (int)n) : fit == SCAN_MORE ? more(r) : no(r, 0);
    }
    switch (m->op[1]) {
    case '(':
        return group(r);
    case ')':
        m->op = begin_of_group(m->op);
        return MATCH_DONE;
    case '.':
        return whole(r);
    case 'c':
    case 'g':
    case 'j':
    case 'p':
        return scanned(r);
    case 'k':
        return member(r);
    case 't':
    case 'v':
        return until(r);
    case 'x':
        return elements(r);
    default:
        return word(r);
    }
}

enum match_result chat_match_run(struct chat_match *m, struct slice text, int final,
                                 const struct chat_tools *tools, chat_take take, void *ctx)
{
    struct run r = {m, text, {NULL, 0}, final, tools, take, ctx};
    while (*m->op) {
        r.left = (struct slice){text.p + m->at, text.n - m->at};
        enum match_result res = one_op(&r);
        if (res != MATCH_DONE)
            return res;
    }
    return MATCH_DONE;
}
