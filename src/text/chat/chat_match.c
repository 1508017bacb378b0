/* chat_match.c -- one pattern of chat_formats.def against text that is still growing. The state is
 * a place in the pattern and one in the text; a capture that waits for its end remembers how far it
 * has looked, so no byte is read twice. Repetitions need no stack: a pattern's bracket finds its
 * other half in the pattern. */
#include <string.h>

#include "text/chat/chat_impl.h"

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
    const struct jtree *tools;
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
static const struct jtree *tool(const struct run *r)
{
    return chat_tool(r->tools, (struct slice){r->m->name, r->m->n_name});
}

static enum match_result advance(struct run *r, size_t n, int op)
{
    r->m->at += n;
    r->m->op += op;
    r->m->scan = 0;
    r->m->depth = 0;
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
        str_clear(&m->args);
    }
    return advance(r, n, 2);
}

/* Text up to the literal behind the op, of which one line end before it is no part where the
 * pattern has one. */
static enum match_result until(struct run *r)
{
    static const char cdata[] = "<![CDATA[", shut[] = "]]>";
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
        if (memcmp(hit, lit, n) != 0 ||
            (quoted == SCAN_END && (i < 12 || memcmp(hit - 3, shut, 3) != 0)))
            continue;
        struct slice found = {r->left.p, i - (size_t)(line_end && i && hit[-1] == '\n')};
        if (m->op[1] == 'k') {
            m->key_at = m->at;
            m->n_key = found.n;
        } else if (m->op[1] == 't') {
            m->type_at = m->at;
            m->n_type = found.n;
        } else {
            chat_put_value(&m->args, found, part(r, m->type_at, m->n_type), tool(r),
                           part(r, m->key_at, m->n_key));
        }
        return advance(r, i, 2);
    }
    m->scan = r->left.n >= n ? r->left.n - n + 1 : 0;
    m->scan = m->scan > i ? m->scan : i;
    return more(r);
}

static enum match_result elements(struct run *r)
{
    struct chat_match *m = r->m;
    struct slice key = part(r, m->key_at, m->n_key);
    size_t n;
    if (chat_scan_elements(r->left, key, &m->depth, &m->scan, &n) != SCAN_END)
        return more(r);
    chat_put_elements(&m->args, (struct slice){r->left.p, m->scan}, tool(r), key);
    return advance(r, m->scan + n, 2);
}

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
        advance(r, text.n, 2);
        m->kept = m->at;
    }
    return res;
}

/* Whether the object that has just opened holds the arguments of a call whose name is known: if it
 * were closed there, the text would be calls of which this is the last, and all before it have been
 * told. */
static enum match_result begin_call(struct run *r)
{
    /* Each try reads the text so far. A call's arguments open with its third object at most; what
     * has more of them in vain, or very many calls, is read as a whole from there on. */
    enum { MISSES = 4, TOLD_MAX = 64 };
    static const char probe[] = "{\"\":0}";
    struct chat_match *m = r->m;
    struct chat_call *list = NULL;
    uint32_t n = 0;
    struct arena a;
    struct str s;
    if (m->n_told >= TOLD_MAX) {
        m->json.stops = 0;
        return MATCH_DONE;
    }
    arena_init(&a, PITH_MEM_SCRATCH);
    str_init(&s, PITH_MEM_SCRATCH);
    str_put(&s, r->left.p, m->scan);
    str_put(&s, probe + 1, sizeof probe - 3);
    json_close(&m->json, &s);
    int ok = !s.failed && chat_calls_of_json(&a, (struct slice){s.p, s.n}, &list, &n) &&
             n == m->n_told + 1;
    const struct chat_call *last = ok ? &list[n - 1] : NULL;
    if (last && slice_eq_z(last->args, probe) &&
        (!m->only_known || !r->tools || chat_tool(r->tools, last->name))) {
        memcpy(m->name, last->name.p, m->n_name = (uint16_t)last->name.n);
        if (last->id.n)
            memcpy(m->id, last->id.p, last->id.n);
        m->n_id = (uint16_t)last->id.n;
        m->open = m->json.depth;
        m->fresh = 1;
        m->told = m->scan - 1;
        m->misses = 0;
    } else if (++m->misses >= MISSES) {
        m->json.stops = 0;
    }
    enum match_result res = s.failed || !arena_ok(&a) ? MATCH_NOMEM : MATCH_DONE;
    str_deinit(&s);
    arena_deinit(&a);
    return res;
}

/* More of the arguments in a JSON text, as it is written. */
static enum match_result tell_json(struct run *r, enum scan_result end)
{
    enum { DEEPEST = 4 }; /* a list, a call, "function", its arguments */
    struct chat_match *m = r->m;
    const char *p = r->left.p;
    enum match_result res = MATCH_DONE;
    if (m->open) {
        res = tell(r, (struct slice){p + m->told, m->scan - m->told}, 0);
        m->told = m->scan;
        m->open = m->json.depth < m->open ? 0 : m->open;
    }
    int opens = end == SCAN_STOP && p[m->scan - 1] == '{' && m->json.depth <= DEEPEST;
    return res == MATCH_DONE && !m->open && opens ? begin_call(r) : res;
}

static enum match_result scanned(struct run *r)
{
    struct chat_match *m = r->m;
    int python = m->op[1] == 'p', gemma = m->op[1] == 'g';
    if (m->scan == 0) {
        m->json = (struct json_scan){.stops = m->partial && m->op[1] == 'c'};
        m->misses = 0;
        m->open = m->fresh = m->partial && m->op[1] == 'j';
        m->told = 0;
        m->py = (struct py_scan){.depth = 0};
        enum scan_result begin =
            python ? starts_python(r->left, r->final, 0) : chat_starts(m->op, r->left, r->final);
        if (begin != SCAN_END)
            return begin == SCAN_NO ? no(r, 0) : more(r);
    }
    enum scan_result end;
    do {
        end = python  ? py_scan(&m->py, r->left.p, r->left.n, &m->scan)
              : gemma ? gemma_scan(&m->py, r->left.p, r->left.n, &m->scan)
                      : json_scan(&m->json, r->left.p, r->left.n, &m->scan);
        if (m->partial && !python && !gemma && tell_json(r, end) == MATCH_NOMEM)
            return MATCH_NOMEM;
    } while (end == SCAN_STOP);
    m->kept = m->n_told ? m->at + m->scan : m->kept;
    if (end == SCAN_NO)
        return no(r, m->scan);
    return end == SCAN_MORE ? more(r) : calls(r, (struct slice){r->left.p, m->scan});
}

/* %k begins a member: its key can be written once it is known, before the value. */
static enum match_result member(struct run *r)
{
    struct chat_match *m = r->m;
    enum match_result res = until(r);
    if (res == MATCH_DONE) {
        str_putz(&m->args, m->args.n ? "," : "{");
        str_json(&m->args, r->text.p + m->key_at, m->n_key);
        str_putc(&m->args, ':');
        m->n_type = 0;
    }
    return res;
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
    enum match_result res = ok ? hand_on(r, &call) : arena_ok(&a) ? no(r, 0) : MATCH_NOMEM;
    arena_deinit(&a);
    if (res == MATCH_DONE) {
        m->n_id = 0;
        m->kept = m->at;
        m->op += 2;
    }
    return res;
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
                                 const struct jtree *tools, chat_take take, void *ctx)
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
