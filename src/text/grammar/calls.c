/* calls.c -- see calls.h. The texts that lead somewhere are looked for together (Aho, Corasick): a
 * state is the longest of their begins that was just read. A bare call is followed byte by byte
 * beside that; each of its states knows what the search would have read, and goes on there when the
 * text is no call. */
#include "text/grammar/calls.h"

#include <string.h>

#include "text/jtree.h"
#include "base/mem.h"
#include "text/chat/chat_impl.h"
#include "text/grammar/native.h"
#include "text/grammar/schema/schema.h"

enum {
    MOST_MARKERS = CHAT_CALLS + 2,
    MOST_STATES = 256,
    MOST_CHAIN = 1 << 16,
    BLANKS = 4,
    INDENT = 16
};

struct marker {
    struct slice text;
    int32_t token;   /* when it is one without text, else -1 */
    uint32_t behind; /* state */
};
struct search {
    struct marker marker[MOST_MARKERS];
    int n;
    uint32_t state[MOST_STATES]; /* of rules, by prefix */
    struct slice prefix[MOST_STATES];
    uint32_t n_states;
    uint32_t end;      /* of the rule: an answer may end in all states */
    uint16_t *leads;   /* [n_states, 256] a state, or n_states + the marker that is whole */
};
struct link {                            /* a state on the way into a bare call */
    uint32_t state, shadow, first, next; /* shadow: of the search; children */
    uint8_t byte, blanks;                /* read to get here; loops over white space */
    uint8_t lists;                       /* and over "[" and "," */
};
struct calls {
    struct rules *r;
    const struct calls_spec *spec;
    struct native native;
    struct map made; /* native's */
    struct search free, think;
    struct link *link;
    uint32_t n_links, cap_links;
    uint32_t blanks; /* rule: white space between parts of a call */
    struct {
        int32_t id;
        struct slice text; /* that it stands for */
    } token[RULES_APART];  /* without text, inside of native markers */
    int n_tokens;
};

static int is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ---------------------------------------------------------------- search */

static void add_marker(struct calls *c, struct search *s, struct slice text, int32_t token,
                       uint32_t behind)
{
    const struct vocab *v = c->spec->vocab;
    char piece[4];
    int32_t id;
    if (!text.n && token < 0)
        return;
    if (token < 0 && v &&
        vocab_tokenize(v, text.p, text.n, PITH_PARSE_SPECIAL, &id, 1, NULL) == 1 &&
        vocab_piece(v, id, 0, piece, sizeof piece) == 0)
        token = id;
    s->marker[s->n++] = (struct marker){text, token, behind};
}

/* What a byte behind a state makes whole, or the longest begin that it is the end of. */
static uint32_t next_of(const struct search *s, uint32_t at, uint8_t byte)
{
    char text[MOST_STATES + 1];
    size_t n = s->prefix[at].n;
    if (n)
        memcpy(text, s->prefix[at].p, n);
    text[n++] = (char)byte;
    for (size_t from = 0; from < n; from++) {
        struct slice tail = {text + from, n - from};
        for (int m = 0; m < s->n; m++)
            if (slice_eq(s->marker[m].text, tail))
                return s->n_states + (uint32_t)m;
        for (uint32_t i = 1; i < s->n_states; i++)
            if (slice_eq(s->prefix[i], tail))
                return i;
    }
    return 0;
}

/* All of that, once: bytes of no marker lead to the empty begin. */
static void put_leads(struct calls *c, struct search *s)
{
    uint8_t used[256] = {0};
    s->leads = arena_array(&c->r->arena, (size_t)s->n_states * 256, sizeof *s->leads);
    if (!s->leads) {
        rules_fail(c->r, PITH_NOMEM, "out of memory for what opens calls");
        return;
    }
    for (int m = 0; m < s->n; m++)
        for (size_t i = 0; i < s->marker[m].text.n; i++)
            used[(uint8_t)s->marker[m].text.p[i]] = 1;
    for (uint32_t at = 0; at < s->n_states; at++)
        for (int b = 0; b < 256 && rules_spend(c->r, 1 + (used[b] ? s->n_states / 4 : 0)); b++)
            s->leads[at * 256 + (uint32_t)b] = used[b] ? (uint16_t)next_of(s, at, (uint8_t)b) : 0;
}

/* The states, one for each begin of a marker; the empty one is first. */
static void put_states(struct calls *c, struct search *s)
{
    s->state[0] = rules_state(c->r);
    s->prefix[0] = SLICE("");
    s->n_states = 1;
    for (int m = 0; m < s->n; m++)
        for (size_t n = 1; n < s->marker[m].text.n; n++) {
            struct slice p = {s->marker[m].text.p, n};
            uint32_t i = 0;
            while (i < s->n_states && !slice_eq(s->prefix[i], p))
                i++;
            if (i < s->n_states)
                continue;
            if (i == MOST_STATES) {
                rules_fail(c->r, PITH_RANGE, "grammar: what opens calls has over %d bytes",
                           MOST_STATES);
                return;
            }
            s->prefix[i] = p;
            s->state[i] = rules_state(c->r);
            s->n_states++;
        }
    put_leads(c, s);
}

/* Where a byte leads: another state of the search (*at), or behind the marker that is returned. */
static const struct marker *look(const struct search *s, uint32_t *at, uint8_t byte)
{
    uint32_t to = s->leads[*at * 256 + byte];
    *at = to < s->n_states ? to : *at;
    return to < s->n_states ? NULL : &s->marker[to - s->n_states];
}

/* Edges as the search has them in one of its states, to be put there or beside it, but for the
 * bytes that are taken. */
static void put_edges(struct calls *c, const struct search *s, uint32_t at, uint32_t from,
                      const uint8_t taken[256])
{
    uint32_t run_to = 0;
    int begin = -1;
    int32_t token = -1;
    for (int b = 0; b <= 256; b++) {
        uint32_t next = at, to = 0;
        int open = b < 256 && !(taken && taken[b]);
        if (open) {
            const struct marker *m = look(s, &next, (uint8_t)b);
            to = m ? m->behind : s->state[next];
        }
        if (begin >= 0 && (!open || to != run_to)) {
            rules_bytes(c->r, from, run_to, (uint8_t)begin, (uint8_t)(b - 1));
            begin = -1;
        }
        if (open && begin < 0) {
            begin = b;
            run_to = to;
        }
    }
    for (int i = 0; i < c->n_tokens; i++) {
        const struct marker *m = NULL;
        uint32_t next = at;
        for (size_t k = 0; !m && k < c->token[i].text.n; k++)
            m = look(s, &next, (uint8_t)c->token[i].text.p[k]);
        rules_edge(c->r, from, m ? m->behind : s->state[next], EDGE_TOKEN,
                   (uint32_t)c->token[i].id);
    }
    for (int m = 0; m < s->n; m++)
        if (s->marker[m].token >= 0) {
            token = token < 0 ? s->marker[m].token : token; /* the first is what must not pass */
            rules_edge(c->r, from, s->marker[m].behind, EDGE_TOKEN, (uint32_t)s->marker[m].token);
        }
    rules_edge(c->r, from, s->state[0], EDGE_SILENT, (uint32_t)token);
    rules_edge(c->r, from, s->end, EDGE_EPS, 0);
}

/* ---------------------------------------------------------------- a call */

static uint32_t put_part(struct calls *c, uint32_t from, const char *text)
{
    from = rules_call(c->r, from, c->blanks);
    return rules_call(c->r, rules_text(c->r, from, text, strlen(text)), c->blanks);
}

/* What stands behind the name: , "arguments": {...}} */
static uint32_t put_rest(struct calls *c, struct jtree *schema)
{
    static const char *const keys[] = {"\"arguments\"", "\"parameters\""};
    struct rules *r = c->r;
    uint32_t args = native_arguments(&c->native, schema, SCHEMA_JSON);
    uint32_t rest = rules_new(r, SLICE("rest of a call"));
    if (!rules_ok(r))
        return rest;
    r->rule[rest].defined = 1;
    uint32_t at = put_part(c, r->rule[rest].start, ","), colon = rules_state(r);
    for (int i = 0; i < 2; i++)
        rules_edge(r, rules_text(r, at, keys[i], strlen(keys[i])), colon, EDGE_EPS, 0);
    at = rules_call(r, put_part(c, colon, ":"), args);
    at = rules_text(r, rules_call(r, at, c->blanks), "}", 1);
    rules_edge(r, at, r->rule[rest].end, EDGE_EPS, 0);
    return rest;
}

/* The state behind a name in quotes, as a key or a value. */
static uint32_t put_quoted(struct calls *c, uint32_t from, struct slice name)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    str_json(&s, name.p, name.n);
    if (s.failed)
        rules_fail(c->r, PITH_NOMEM, "out of memory for the name of a tool");
    else
        from = rules_text(c->r, from, s.p, s.n);
    str_deinit(&s);
    return from;
}

/* What all calls behind the trigger begin with: {"name": */
static uint32_t put_begin(struct calls *c, uint32_t from)
{
    from = rules_call(c->r, rules_text(c->r, from, "{", 1), c->blanks);
    return put_part(c, put_quoted(c, from, slice_of(c->spec->format->name_key)), ":");
}

/* ---------------------------------------------------------------- bare calls */

static uint32_t new_link(struct calls *c, struct link l)
{
    if (c->n_links == MOST_CHAIN)
        rules_fail(c->r, PITH_RANGE, "grammar: the names of tools have over %d bytes", MOST_CHAIN);
    else if (!mem_grow(&c->link, &c->cap_links, (uint64_t)c->n_links + 1, sizeof *c->link,
                       PITH_MEM_SCRATCH))
        rules_fail(c->r, PITH_NOMEM, "out of memory for the names of tools");
    if (!rules_ok(c->r))
        return 0;
    l.state = rules_state(c->r);
    c->link[c->n_links] = l;
    return c->n_links++;
}

/* The link behind a byte, made when it is not there; blanks may stand behind it. */
static uint32_t follow(struct calls *c, uint32_t at, uint8_t byte, int blanks)
{
    for (uint32_t i = c->link[at].first; i; i = c->link[i].next)
        if (c->link[i].byte == byte)
            return i;
    struct link l = {.shadow = c->link[at].shadow,
                     .next = c->link[at].first,
                     .byte = byte,
                     .blanks = (uint8_t)blanks};
    if (look(&c->free, &l.shadow, byte))
        l.shadow = 0;
    uint32_t i = new_link(c, l);
    if (i)
        c->link[at].first = i;
    return i;
}

static void put_bare(struct calls *c, struct slice name, uint32_t rest, uint32_t behind)
{
    static const char key[] = "{\"name\":\"";
    uint32_t at = 0;
    for (size_t i = 0; i < name.n; i++) /* one that JSON writes otherwise is not followed */
        if ((unsigned char)name.p[i] < ' ' || name.p[i] == '"' || name.p[i] == '\\')
            return;
    for (size_t i = 0; i < sizeof key - 1 && rules_ok(c->r); i++)
        at = follow(c, at, (uint8_t)key[i], i == 0 || i == 6 || i == 7);
    for (size_t i = 0; i < name.n && rules_ok(c->r); i++)
        at = follow(c, at, (uint8_t)name.p[i], 0);
    if (!rules_ok(c->r))
        return;
    at = follow(c, at, '"', 0);
    if (rules_ok(c->r))
        rules_edge(c->r, c->link[at].state, behind, EDGE_CALL, rest);
    if (rules_ok(c->r))
        c->link[at].lists = 2; /* a call, whatever comes */
}

static void put_links(struct calls *c)
{
    for (uint32_t i = 0; i < c->n_links && rules_ok(c->r); i++) {
        const struct link *l = &c->link[i];
        uint8_t taken[256] = {0};
        if (l->lists == 2)
            continue;
        for (int b = 0; b < 256; b++)
            if ((l->blanks && is_space(b)) || (l->lists && (b == '[' || b == ','))) {
                taken[b] = 1;
                rules_bytes(c->r, l->state, l->state, (uint8_t)b, (uint8_t)b);
            }
        for (uint32_t k = l->first; k; k = c->link[k].next) {
            taken[c->link[k].byte] = 1;
            rules_bytes(c->r, l->state, c->link[k].state, c->link[k].byte, c->link[k].byte);
        }
        put_edges(c, &c->free, l->shadow, l->state, taken);
    }
}

/* Behind a bare call: what may stand where an answer begins, but for a brace. A token of two may
 * close the call with the first; the other would be all that the answer says beside it. */
static void put_behind_bare(struct calls *c, uint32_t behind)
{
    const struct link *begin = &c->link[0];
    uint8_t taken[256] = {['}'] = 1};
    for (int b = 0; b < 256; b++)
        if (is_space(b) || (begin->lists && (b == '[' || b == ','))) {
            taken[b] = 1;
            rules_bytes(c->r, behind, behind, (uint8_t)b, (uint8_t)b);
        }
    for (uint32_t k = begin->first; k; k = c->link[k].next) {
        taken[c->link[k].byte] = 1;
        rules_bytes(c->r, behind, c->link[k].state, c->link[k].byte, c->link[k].byte);
    }
    put_edges(c, &c->free, begin->shadow, behind, taken);
}

/* ---------------------------------------------------------------- all of it */

static int has_pattern(const struct chat_format *f, const char *begin)
{
    for (int i = 0; i < CHAT_CALLS && f->calls[i]; i++)
        if (!strncmp(f->calls[i], begin, strlen(begin)))
            return 1;
    return 0;
}

/* Behind a call in an open tag: another one, or anything that neither begins like one nor closes
 * it once more. */
static void put_tagged(struct calls *c, uint32_t behind, uint32_t tagged, uint32_t call)
{
    uint8_t taken[256] = {0};
    struct rules *r = c->r;
    int many = c->spec->format->many;
    rules_edge(r, rules_blanks(r, behind, BLANKS), many ? c->free.state[0] : tagged, EDGE_CALL,
        call);
    if (many)
        return;
    for (int b = 0; b < 256; b++)
        taken[b] = (uint8_t)(is_space(b) || b == '{' || b == '}');
    for (int b = 0; b < 256; b++)
        if (is_space(b))
            rules_bytes(r, tagged, tagged, (uint8_t)b, (uint8_t)b);
    rules_edge(r, tagged, tagged, EDGE_CALL, call);
    put_edges(c, &c->free, 0, tagged, taken);
}

static void put_tools(struct calls *c, const struct jtree *tools, uint32_t call,
                      uint32_t behind_bare)
{
    struct rules *r = c->r;
    uint32_t from = r->rule[call].start, to = r->rule[call].end, names;
    int i = 0, bare = has_pattern(c->spec->format, "%c"), many = c->spec->format->many;
    if (many) {
        uint32_t end = to;
        from = rules_call(r, rules_text(r, from, "[", 1), c->blanks);
        to = rules_state(r);
        rules_edge(r, rules_text(r, rules_call(r, to, c->blanks), "]", 1), end, EDGE_EPS, 0);
        rules_edge(r, put_part(c, to, ","), from, EDGE_EPS, 0);
    }
    names = put_begin(c, from);
    for (const struct jtree *t = tools->first; t && rules_ok(r); t = t->next, i++) {
        struct slice name;
        const struct jtree *fn = native_function(r, t, i, &name);
        if (!fn)
            return;
        uint32_t rest = put_rest(c, chat_parameters(fn));
        if (c->spec->trigger.n || c->spec->token >= 0)
            rules_edge(r, rules_call(r, put_quoted(c, names, name), rest), to, EDGE_EPS, 0);
        if (bare)
            put_bare(c, name, rest, behind_bare);
    }
    if (!i)
        rules_fail(r, PITH_RANGE, "tools: there are none to call");
}

static void put_all(struct calls *c, const struct jtree *tools, uint32_t whole)
{
    const struct chat_format *f = c->spec->format;
    struct rules *r = c->r;
    uint32_t behind = rules_state(r), tagged = rules_state(r), call = rules_new(r, SLICE("call"));
    c->blanks = rules_new(r, SLICE("blanks"));
    if (!rules_ok(r))
        return;
    r->rule[call].defined = r->rule[c->blanks].defined = r->rule[whole].defined = 1;
    rules_edge(r, rules_blanks(r, r->rule[c->blanks].start, INDENT), r->rule[c->blanks].end,
        EDGE_EPS,
               0);
    c->free.end = c->think.end = r->rule[whole].end;
    int bare = has_pattern(f, "%c"), list = c->spec->trigger.n && c->spec->trigger.p[0] == '[';
    /* where an answer begins */
    new_link(c, (struct link){.blanks = (uint8_t)bare, .lists = (uint8_t)(bare && !list)});
    if (!rules_ok(r))
        return;
    uint32_t begin = c->link[0].state, think = rules_state(r), behind_bare = rules_state(r);
    add_marker(c, &c->free, c->spec->trigger, c->spec->token, behind);
    if (has_pattern(f, "!```json %c"))
        add_marker(c, &c->free, SLICE("```json"), -1, begin);
    if (f->think) {
        add_marker(c, &c->free, slice_of(f->think), -1, think);
        add_marker(c, &c->think, slice_of(f->answer), -1, begin);
    }
    put_states(c, &c->free);
    put_states(c, &c->think);
    if (!rules_ok(r))
        return;
    rules_edge(r, think, c->think.state[0], EDGE_EPS, 0);
    for (uint32_t i = 0; i < c->free.n_states; i++)
        put_edges(c, &c->free, i, c->free.state[i], NULL);
    for (uint32_t i = 0; i < c->think.n_states; i++)
        put_edges(c, &c->think, i, c->think.state[i], NULL);
    put_tools(c, tools, call, behind_bare);
    put_links(c);
    if (bare && rules_ok(r))
        put_behind_bare(c, behind_bare);
    if (c->spec->trigger.n || c->spec->token >= 0)
        put_tagged(c, behind, tagged, call);
    rules_edge(r, r->rule[whole].start, begin, EDGE_EPS, 0);
}

/* ---------------------------------------------------------------- as the family writes them */

/* What a pattern is known by: its begin, or, where that opens other things as well, the longest
 * marker before its calls, else all up to the name. */
static struct slice opens(const struct chat_format *f, const char *pattern, const char **rest)
{
    struct slice s = {pattern, chat_literal(pattern)}, longest = {NULL, 0};
    int common = 0;
    for (int i = 0; i < CHAT_DROPS && f->drops[i]; i++)
        common |= slice_eq_z(s, f->drops[i]);
    for (const char *op = s.p + s.n; common && *op && (*op != '%' || op[1] == '_');) {
        size_t n = *op == '%' ? 0 : chat_literal(op);
        if (n > longest.n && memchr(op, '<', n))
            longest = (struct slice){op, n};
        op += n ? n : *op == '%' ? 2 : 1;
    }
    if (common)
        s = longest.n ? longest : (struct slice){pattern, strcspn(pattern, "%")};
    *rest = s.p + s.n;
    return s;
}

const char *calls_opening(const struct chat_format *f, size_t *n)
{
    *n = f->trigger || !f->calls[0] || *f->calls[0] == '!' ? 0 : chat_literal(f->calls[0]);
    return *n ? f->calls[0] : NULL;
}

/* A marker that begins like a call, and no further: read on as what it is. */
static void put_other(struct calls *c, const struct native *n, uint32_t behind, struct slice mark,
                      const char *text, uint32_t to)
{
    size_t len = text ? strlen(text) : 0;
    if (len > mark.n && !memcmp(text, mark.p, mark.n))
        rules_edge(c->r, native_text(n, behind, (struct slice){text + mark.n, len - mark.n}), to,
                   EDGE_EPS, 0);
}

static void take_tokens(struct calls *c, struct slice mark)
{
    struct native_token found[NATIVE_TOKENS];
    int n = native_tokens(c->spec->vocab, mark, found);
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < c->n_tokens && c->token[k].id != found[i].id)
            k++;
        if (k < c->n_tokens || k == RULES_APART)
            continue;
        c->token[k].id = found[i].id;
        c->token[k].text = (struct slice){mark.p + found[i].at, found[i].n};
        c->n_tokens++;
        c->r->apart[c->r->n_apart++] = (uint32_t)found[i].id;
    }
}

/* What may stand behind a marker: the rest of each pattern that begins so, or what else does. */
static void put_behind(struct calls *c, const struct native *n, uint32_t behind, struct slice mark,
                       uint32_t free, uint32_t think)
{
    const struct chat_format *f = c->spec->format;
    for (int i = 0; i < CHAT_CALLS && f->calls[i] && rules_ok(c->r); i++) {
        const char *rest, *pattern = f->calls[i] + (*f->calls[i] == '!');
        struct slice s = opens(f, pattern, &rest);
        if (s.n < mark.n || memcmp(s.p, mark.p, mark.n) != 0)
            continue;
        uint32_t at = native_text(n, behind, (struct slice){s.p + mark.n, s.n - mark.n});
        rules_edge(c->r, native_rest(n, at, rest), free, EDGE_EPS, 0);
    }
    for (int i = 0; i < CHAT_DROPS && f->drops[i]; i++)
        put_other(c, n, behind, mark, f->drops[i], free);
    put_other(c, n, behind, mark, f->think, think);
}

static int is_marker(const struct search *s, struct slice mark)
{
    int i = 0;
    while (i < s->n && !slice_eq(s->marker[i].text, mark))
        i++;
    return i < s->n;
}

static void put_native(struct calls *c, uint32_t whole)
{
    const struct chat_format *f = c->spec->format;
    struct rules *r = c->r;
    const struct native *n = &c->native;
    c->free.end = c->think.end = r->rule[whole].end;
    for (int i = 0; i < CHAT_CALLS && f->calls[i]; i++) {
        const char *rest, *pattern = f->calls[i] + (*f->calls[i] == '!');
        struct slice mark = opens(f, pattern, &rest);
        if (mark.n && !is_marker(&c->free, mark))
            c->free.marker[c->free.n++] = (struct marker){mark, -1, rules_state(r)};
    }
    int n_calls = c->free.n;
    if (f->think) {
        c->free.marker[c->free.n++] = (struct marker){slice_of(f->think), -1, rules_state(r)};
        c->think.marker[c->think.n++] = (struct marker){slice_of(f->answer), -1, rules_state(r)};
        take_tokens(c, slice_of(f->answer));
    }
    for (int i = 0; i < c->free.n; i++)
        take_tokens(c, c->free.marker[i].text);
    put_states(c, &c->free);
    put_states(c, &c->think);
    if (!rules_ok(r))
        return;
    uint32_t free = c->free.state[0], think = c->think.state[0];
    for (int i = 0; i < n_calls && rules_ok(r); i++)
        put_behind(c, n, c->free.marker[i].behind, c->free.marker[i].text, free, think);
    if (f->think) {
        rules_edge(r, c->free.marker[n_calls].behind, think, EDGE_EPS, 0);
        rules_edge(r, c->think.marker[0].behind, free, EDGE_EPS, 0);
    }
    for (uint32_t i = 0; i < c->free.n_states && rules_ok(r); i++)
        put_edges(c, &c->free, i, c->free.state[i], NULL);
    for (uint32_t i = 0; f->think && i < c->think.n_states && rules_ok(r); i++)
        put_edges(c, &c->think, i, c->think.state[i], NULL);
    rules_edge(r, r->rule[whole].start, free, EDGE_EPS, 0);
}

/* The calls alone, behind what opens them. */
static void put_only(struct calls *c, uint32_t whole)
{
    const struct chat_format *f = c->spec->format;
    struct rules *r = c->r;
    size_t len;
    const char *begin = calls_opening(f, &len);
    if (!begin)
        rules_fail(r, PITH_UNSUPPORTED,
                   "calls of family \"%s\" are held to a schema: pith_chat_grammar", f->name);
    for (int i = 0; begin && i < CHAT_CALLS && f->calls[i] && rules_ok(r); i++)
        if (chat_literal(f->calls[i]) == len && !memcmp(f->calls[i], begin, len))
            rules_edge(r, native_rest(&c->native, r->rule[whole].start, f->calls[i] + len),
                       r->rule[whole].end, EDGE_EPS, 0);
}

/* ---------------------------------------------------------------- */

/* Names, and that there are tools. */
static void check_tools(struct rules *r, const struct jtree *tools)
{
    struct slice name;
    int i = 0;
    for (const struct jtree *t = tools->first; t && rules_ok(r); t = t->next)
        native_function(r, t, i++, &name);
    if (!i)
        rules_fail(r, PITH_RANGE, "tools: there are none to call");
}

uint32_t calls_read(struct rules *r, const struct calls_spec *spec)
{
    struct calls c = {.r = r, .spec = spec};
    uint32_t whole = rules_new(r, SLICE("answer"));
    const char *text = spec->tools.p ? spec->tools.p : "";
    const struct jtree *tools =
        rules_ok(r) ? jtree_read(&r->arena, text, spec->tools.n, &r->err) : NULL;
    for (const struct jtree *t = tools ? tools->first : NULL; t; t = t->next)
        schema_drop_nulls(r, chat_parameters(t));
    if (tools && tools->kind != JTREE_ARRAY)
        rules_fail(r, PITH_FORMAT, "tools: found %s, wanted an array", jtree_kind_name(tools));
    if (spec->trigger.n >= MOST_STATES)
        rules_fail(r, PITH_RANGE, "grammar: the trigger has %zu bytes; wanted below %d",
                   spec->trigger.n, MOST_STATES);
    map_init(&c.made, PITH_MEM_SCRATCH);
    c.native = (struct native){.r = r,
                               .tools = tools,
                               .vocab = spec->vocab,
                               .in_order = spec->in_order,
                               .schemas = schema_set_new(r, spec->in_order),
                               .made = &c.made};
    if (rules_ok(r) && (spec->only || !spec->format->trigger)) {
        c.native.blanks = c.blanks = rules_new(r, SLICE("blanks"));
        check_tools(r, tools);
        if (rules_ok(r)) {
            r->rule[c.blanks].defined = r->rule[whole].defined = 1;
            rules_edge(r, rules_blanks(r, r->rule[c.blanks].start, INDENT), r->rule[c.blanks].end,
                       EDGE_EPS, 0);
            spec->only ? put_only(&c, whole) : put_native(&c, whole);
        }
    } else if (rules_ok(r)) {
        put_all(&c, tools, whole);
    }
    schema_set_free(c.native.schemas);
    map_deinit(&c.made);
    mem_free(c.link);
    return whole;
}
