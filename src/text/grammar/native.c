/* native.c -- see native.h. */
#include "text/grammar/native.h"

#include <stdio.h>
#include <string.h>

#include "text/chat/chat_impl.h"
#include "text/grammar/regex/regex.h"
#include "text/grammar/schema/schema.h"

/* One argument, as one of two: a string as it stands, or another value. */
struct argument {
    struct slice key;
    const struct jtree *property; /* its schema */
    const struct jtree *node;     /* the same, references followed */
    struct jtree *schema;         /* of all arguments */
    unsigned kinds;               /* bits of enum jtree_kind that this way of writing it has */
    int free;                     /* nothing is said about it */
    int mixed;                    /* the other way has more than null and words */
    int line_end;                 /* one before what ends it is not part of it */
    const struct jtree *choice;   /* anyOf, of which strings are left out; NULL: it is all of it */
};
static const unsigned strings = 1u << JTREE_STRING;

/* ---------------------------------------------------------------- texts */

int native_tokens(const struct vocab *v, struct slice text, struct native_token out[NATIVE_TOKENS])
{
    int32_t ids[64];
    char piece[128];
    int n = 0;
    size_t at = 0;
    int64_t n_ids = v ? vocab_tokenize(v, text.p, text.n, PITH_PARSE_SPECIAL, ids, 64, NULL) : 0;
    for (int64_t i = 0; i < n_ids && i < 64 && n < NATIVE_TOKENS; i++) {
        size_t len = vocab_piece(v, ids[i], 1, piece, sizeof piece);
        const char *hit = len && len <= sizeof piece && vocab_piece(v, ids[i], 0, NULL, 0) == 0
                              ? memmem(text.p + at, text.n - at, piece, len)
                              : NULL;
        if (!hit)
            continue;
        out[n++] = (struct native_token){ids[i], (size_t)(hit - text.p), len};
        at = (size_t)(hit - text.p) + len;
    }
    return n;
}

uint32_t native_text(const struct native *n, uint32_t from, struct slice text)
{
    struct native_token token[NATIVE_TOKENS];
    int n_tokens = native_tokens(n->vocab, text, token);
    size_t at = 0;
    for (int i = 0; i < n_tokens; i++) {
        from = rules_text(n->r, from, text.p + at, token[i].at - at);
        uint32_t behind = rules_text(n->r, from, text.p + token[i].at, token[i].n);
        rules_edge(n->r, from, behind, EDGE_TOKEN, (uint32_t)token[i].id);
        from = behind;
        at = token[i].at + token[i].n;
    }
    return rules_text(n->r, from, text.p + at, text.n - at);
}

static uint32_t optional_line_end(const struct native *n, uint32_t from)
{
    uint32_t to = rules_text(n->r, from, "\n", 1);
    rules_edge(n->r, from, to, EDGE_EPS, 0);
    return to;
}

/* The tokens of a mark, from a state behind k bytes of it. */
static void mark_tokens(const struct native *n, uint32_t from, size_t k, struct slice mark,
                        uint32_t first, uint32_t behind)
{
    struct native_token token[NATIVE_TOKENS];
    int n_tokens = native_tokens(n->vocab, mark, token);
    for (int i = 0; i < n_tokens && rules_ok(n->r); i++) {
        size_t at = k;
        for (size_t b = 0; b < token[i].n && at < mark.n; b++)
            at = rules_overlap(mark, at, (uint8_t)mark.p[token[i].at + b]);
        rules_edge(n->r, from, at == mark.n ? behind : first + (uint32_t)at, EDGE_TOKEN,
                   (uint32_t)token[i].id);
    }
}

/* Any text up to the mark, and that, but none that begins with CDATA_OPEN, also behind white space:
 * it would be read as another. The states of its begin go on to those of the mark's. */
static uint32_t until(const struct native *n, uint32_t from, struct slice mark)
{
    static const char open[] = CDATA_OPEN;
    struct charset_range beyond = {0x80, CHARSET_LAST};
    struct rules *r = n->r;
    uint32_t first = 0, behind = rules_until(r, rules_state(r), mark, &first),
             other = rules_state(r), at = rules_state(r);
    if (!mark.n || !rules_ok(r))
        return behind;
    for (size_t k = 0; k < mark.n; k++)
        mark_tokens(n, first + (uint32_t)k, k, mark, first, behind);
    rules_edge(r, from, at, EDGE_EPS, 0);
    rules_chars(r, other, first, &(struct charset){&beyond, 1, 1, 0}, 0);
    for (size_t k = 0, read = 0; open[k] && read < mark.n && rules_ok(r); k++) {
        uint32_t next = rules_state(r);
        for (int b = 0; b < 0x80; b++) {
            size_t to = rules_overlap(mark, read, (uint8_t)b);
            if (b != open[k])
                rules_bytes(r, at,
                            to == mark.n                          ? behind
                            : k == 0 && b && strchr(" \t\r\n", b) ? at
                                                                  : first + (uint32_t)to,
                            (uint8_t)b, (uint8_t)b);
            else if (open[k + 1])
                rules_bytes(r, at, next, (uint8_t)b, (uint8_t)b);
        }
        rules_edge(r, at, other, EDGE_EPS, 0);
        mark_tokens(n, at, read, mark, first, behind);
        read = rules_overlap(mark, read, (uint8_t)open[k]);
        at = next;
    }
    return behind;
}

/* A word that means nothing, an id. */
static uint32_t word(const struct native *n, uint32_t from)
{
    struct charset_range letters[] = {{'-', ':'}, {'@', 'Z'}, {'_', '_'}, {'a', 'z'}};
    struct charset set = {letters, 4, 4, 0};
    struct rules_mark mark = rules_mark(n->r);
    struct rules_piece piece = {rules_state(n->r), rules_state(n->r)};
    rules_chars(n->r, piece.start, piece.end, &set, 0);
    piece = rules_repeat(n->r, mark, piece, 1, 24);
    rules_edge(n->r, from, piece.start, EDGE_EPS, 0);
    return piece.end;
}

/* ---------------------------------------------------------------- schemas */

static int one_of(struct slice key, const char *const *names)
{
    while (*names && !slice_eq_z(key, *names))
        names++;
    return *names != NULL || (key.n > 2 && !memcmp(key.p, "x-", 2));
}

/* A keyword that no rule here is about; NULL: there is none. */
static const struct jtree *other_keyword(const struct jtree *node, const char *const *known)
{
    static const char *const says_nothing[] = {
        "title",         "description", "default",         "examples",
        "$schema",       "$id",         "$comment",        "$defs",
        "definitions",   "strict",      "deprecated",      "readOnly",
        "writeOnly",     "$anchor",     "contentEncoding", "contentMediaType",
        "contentSchema", SCHEMA_OF_EDITORS, NULL};
    const struct jtree *k = node && node->kind == JTREE_OBJECT ? node->first : NULL;
    while (k && (one_of(k->key, says_nothing) || one_of(k->key, known)))
        k = k->next;
    return k;
}

static void refuse(const struct native *n, struct slice key, const char *why)
{
    rules_fail(n->r, PITH_UNSUPPORTED, "tools: argument \"%.*s\": %s",
               (int)(key.n < 64 ? key.n : 64), key.p, why);
}

/* Follows "$ref" inside the arguments' schema. */
static const struct jtree *referred(const struct native *n, const struct jtree *schema,
                                    const struct jtree *node, struct slice key)
{
    for (int i = 0; i < 16; i++) {
        const struct jtree *ref = jtree_get(node, "$ref");
        if (!ref)
            return node;
        node = chat_schema_at(schema, ref);
        if (!node)
            break;
    }
    refuse(n, key, "its $ref leads nowhere");
    return NULL;
}

uint32_t native_arguments(const struct native *n, struct jtree *schema, enum schema_form form)
{
    struct rules *r = n->r;
    if (!schema && rules_ok(r))
        schema = jtree_read(&r->arena, CHAT_NO_PARAMETERS, strlen(CHAT_NO_PARAMETERS), &r->err);
    return schema ? schema_add(n->schemas, schema, schema, form) : 0;
}

/* The rule of one argument as JSON, or as Python writes it. */
static uint32_t member(const struct native *n, const struct argument *a, enum schema_form form)
{
    return schema_add(n->schemas, a->schema, a->property, form);
}

/* ---------------------------------------------------------------- what is equal */

/* The beginning of a key in n->made: what it is a key of, and numbers. */
static void begin_key(struct str *key, char what, uint32_t a, uint32_t b)
{
    str_init(key, PITH_MEM_SCRATCH);
    str_putc(key, what);
    str_put(key, (const char *)&a, sizeof a);
    str_put(key, (const char *)&b, sizeof b);
}

/* The rule with a key, which ends here. 1: it is there already; 0: it is new and has to be written.
 */
static int made_before(const struct native *n, struct str *key, struct slice name, uint32_t *rule)
{
    struct rules *r = n->r;
    struct slice kept = {key->failed ? NULL : arena_strndup(&r->arena, key->p, key->n), key->n};
    int there = kept.p && map_get(n->made, kept, rule);
    str_deinit(key);
    if (there)
        return 1;
    *rule = rules_new(r, name);
    if (!kept.p || map_put(n->made, kept, *rule) < 0)
        rules_fail(r, PITH_NOMEM, "out of memory for the arguments of a tool");
    if (rules_ok(r))
        r->rule[*rule].defined = 1;
    return !rules_ok(r);
}

/* ---------------------------------------------------------------- values */

/* A count that a keyword gives, `none` without it. */
static uint32_t count(const struct native *n, const struct argument *a, const char *name,
                      uint32_t none)
{
    const struct jtree *v = jtree_get(a->node, name);
    uint64_t x = 0;
    for (size_t i = 0; v && v->kind == JTREE_NUMBER && i < v->text.n; i++)
        x = v->text.p[i] < '0' || v->text.p[i] > '9' || x > RULES_ENDLESS
                ? UINT32_MAX
                : 10 * x + (uint64_t)(v->text.p[i] - '0');
    if (v && (v->kind != JTREE_NUMBER || x >= RULES_ENDLESS))
        refuse(n, a->key, "minLength and maxLength want counts below 2^31");
    return v ? (uint32_t)x : none;
}

/* The mark of a value that may be nested elements. */
static int ends_elements(struct slice mark)
{
    return mark.n > sizeof ELEMENT && !memcmp(mark.p, ELEMENT, sizeof ELEMENT - 1);
}

/* Any text up to the mark, as it stands or, where that is read so, within CDATA. */
static uint32_t any_text(const struct native *n, const struct argument *a, uint32_t from,
                         struct slice mark)
{
    uint32_t first, behind = until(n, from, mark);
    if (ends_elements(mark))
        return behind;
    from = native_text(n, from, SLICE(CDATA_OPEN));
    from = rules_until(n->r, from, SLICE(CDATA_CLOSE), &first);
    from = native_text(n, a->line_end ? optional_line_end(n, from) : from, mark);
    rules_edge(n->r, from, behind, EDGE_EPS, 0);
    return behind;
}

/* Characters that are counted leave out what may begin the mark. */
static uint32_t counted(const struct native *n, const struct argument *a, uint32_t from,
                        struct slice mark)
{
    uint32_t cp = (uint8_t)mark.p[0], min = count(n, a, "minLength", 0),
             max = count(n, a, "maxLength", RULES_ENDLESS);
    struct charset_range but_mark[] = {{0, cp - 1}, {cp + 1, CHARSET_LAST}};
    if (min == 0 && max == RULES_ENDLESS)
        return any_text(n, a, from, mark);
    if (cp >= 0x80 || min > max || !rules_ok(n->r)) {
        refuse(n, a->key, "minLength and maxLength cannot be kept here");
        return from;
    }
    struct str key;
    uint32_t rule;
    begin_key(&key, 'c', min, max);
    str_putc(&key, mark.p[0]);
    if (!made_before(n, &key, a->key, &rule)) {
        struct rules_mark made = rules_mark(n->r);
        struct rules_piece piece = {rules_state(n->r), rules_state(n->r)};
        rules_chars(n->r, piece.start, piece.end, &(struct charset){but_mark, 2, 2, 0}, 0);
        piece = rules_repeat(n->r, made, piece, min, max);
        rules_edge(n->r, n->r->rule[rule].start, piece.start, EDGE_EPS, 0);
        rules_edge(n->r, piece.end, n->r->rule[rule].end, EDGE_EPS, 0);
    }
    from = rules_ok(n->r) ? rules_call(n->r, from, rule) : from;
    return native_text(n, a->line_end ? optional_line_end(n, from) : from, mark);
}

/* The same for a text that cannot be taken for a number, a list or an object, nor for CDATA. */
static uint32_t unlike_json(const struct native *n, uint32_t from, struct slice mark)
{
    struct charset_range beyond = {0x80, CHARSET_LAST};
    uint32_t rest = rules_state(n->r), behind = until(n, rest, mark);
    for (int c = '!'; c < 0x7F; c++)
        if (c != (uint8_t)mark.p[0] && !strchr("{[(<\"-0123456789", c))
            rules_bytes(n->r, from, rest, (uint8_t)c, (uint8_t)c);
    rules_chars(n->r, from, rest, &(struct charset){&beyond, 1, 1, 0}, 0);
    rules_edge(n->r, native_text(n, from, mark), behind, EDGE_EPS, 0);
    return behind;
}

/* A string of a pattern, read back as it is: it does not hold what ends it, nor begin like what
 * means something else. */
static uint32_t matching(const struct native *n, const struct argument *a, uint32_t from,
                         struct slice mark, const struct schema_patterns *pattern)
{
    struct regex_end end = {mark, {NULL, 0}, SLICE(CDATA_OPEN), a->line_end};
    uint32_t to = rules_state(n->r), to_line = rules_state(n->r), min = count(n, a, "minLength", 0),
             max = count(n, a, "maxLength", RULES_ENDLESS);
    if (ends_elements(mark))
        end.unique = SLICE(ELEMENT);
    if (min > max)
        refuse(n, a->key, "minLength is above maxLength");
    if (!regex_write_until(n->r, from, to, to_line, &pattern->all, min, max, &end))
        schema_note_formats(n->r, pattern);
    if (!a->line_end)
        return native_text(n, to, mark);
    uint32_t behind = optional_line_end(n, to);
    rules_bytes(n->r, to_line, behind, '\n', '\n');
    return native_text(n, behind, mark);
}

/* Such a text would be read as another one. */
static int opens_cdata(struct slice text)
{
    while (text.n && strchr(" \t\r\n", text.p[0]) && text.p[0])
        text = (struct slice){text.p + 1, text.n - 1};
    return text.n >= sizeof CDATA_OPEN - 1 && !memcmp(text.p, CDATA_OPEN, sizeof CDATA_OPEN - 1);
}

/* A string as it stands, up to the mark behind it, and that. */
static uint32_t bare_string(const struct native *n, const struct argument *a, uint32_t from,
                            struct slice mark)
{
    static const char *const known[] = {"type",     "enum",    "const",  "minLength", "maxLength",
                                        "nullable", "pattern", "format", NULL};
    struct schema_patterns pattern;
    const struct jtree *list = jtree_get(a->node, "enum"), *other = other_keyword(a->node, known);
    int is_list = list && list->kind == JTREE_ARRAY;
    list = is_list ? list->first : jtree_get(a->node, "const");
    schema_string_patterns(a->node, &pattern);
    schema_note(n->r, a->node);
    if (a->free)
        return a->mixed ? unlike_json(n, from, mark) : any_text(n, a, from, mark);
    if (other || (pattern.all.n && list)) {
        refuse(n, a->key,
               "of strings enum, const, minLength, maxLength, known formats and patterns are kept "
               "here, no pattern beside an enum");
        return from;
    }
    if (pattern.all.n)
        return matching(n, a, from, mark, &pattern);
    if (!list)
        return counted(n, a, from, mark);
    uint32_t to = rules_state(n->r);
    for (const struct jtree *v = list; v; v = is_list ? v->next : NULL) {
        if (v->kind != JTREE_STRING)
            continue;
        if (memmem(v->text.p, v->text.n, mark.p, mark.n) || opens_cdata(v->text)) {
            refuse(n, a->key, "a value of enum spells what ends it, or begins with " CDATA_OPEN);
            return from;
        }
        rules_edge(n->r, rules_text(n->r, from, v->text.p, v->text.n), to, EDGE_EPS, 0);
    }
    return native_text(n, a->line_end ? optional_line_end(n, to) : to, mark);
}

/* What the branches of a choice allow that are no strings. */
static uint32_t without_strings(const struct native *n, const struct argument *a, uint32_t from)
{
    uint32_t to = rules_state(n->r);
    for (const struct jtree *v = a->choice->first; v && rules_ok(n->r); v = v->next)
        if (!(chat_kinds(a->schema, v) & strings))
            rules_edge(n->r, from, to, EDGE_CALL,
                       schema_add(n->schemas, a->schema, v, SCHEMA_PYTHON));
    return to;
}

/* null, true and false, or all as JSON; templates write them as Python does, too. */
static uint32_t other_value(const struct native *n, const struct argument *a, uint32_t from)
{
    static const struct {
        const char *text;
        enum jtree_kind kind;
    } words[] = {{"null", JTREE_NULL}, {"true", JTREE_TRUE}, {"false", JTREE_FALSE},
                 {"None", JTREE_NULL}, {"True", JTREE_TRUE}, {"False", JTREE_FALSE}};
    if (a->choice)
        return without_strings(n, a, from);
    if (a->mixed)
        return rules_call(n->r, from, member(n, a, SCHEMA_PYTHON));
    uint32_t to = rules_state(n->r);
    for (int i = 0; i < 6; i++)
        if (a->kinds >> words[i].kind & 1)
            rules_edge(n->r, rules_text(n->r, from, words[i].text, strlen(words[i].text)), to,
                       EDGE_EPS, 0);
    return to;
}

/* ---------------------------------------------------------------- patterns */

static const char *next_op(const char *op)
{
    return *op == '%' ? op + 2 : *op == ' ' || *op == '\n' ? op + 1 : op + chat_literal(op);
}

/* Behind the bracket that closes the one at op. */
static const char *behind_group(const char *op)
{
    int depth = 0;
    do {
        depth += op[0] == '%' ? (op[1] == '(') - (op[1] == ')') : 0;
        op = next_op(op);
    } while (depth);
    return op;
}

/* Whether one of the ops stands in [op, end) itself, in no group of it; where: behind it. NULL: no.
 */
static const char *behind_op(const char *op, const char *end, const char *ops)
{
    for (; op < end && *op; op = op[0] == '%' && op[1] == '(' ? behind_group(op) : next_op(op))
        if (op[0] == '%' && strchr(ops, op[1]))
            return op + 2;
    return NULL;
}

static uint32_t put_ops(const struct native *n, uint32_t from, const char *op, const char *end,
                        const struct jtree *tool, const struct argument *a);

/* The kind of an argument, as the text names it before its value. */
static uint32_t type_word(const struct native *n, uint32_t from, const char *op,
                          const struct argument *a)
{
    static const char says[] = "string=\"";
    static const struct {
        const char *text;
        unsigned kinds;
    } types[] = {{"string", 1u << JTREE_STRING},
                 {"number", 1u << JTREE_NUMBER},
                 {"boolean", 1u << JTREE_TRUE | 1u << JTREE_FALSE},
                 {"null", 1u << JTREE_NULL},
                 {"array", 1u << JTREE_ARRAY},
                 {"object", 1u << JTREE_OBJECT}};
    if (!memcmp(op - (sizeof says - 1), says, sizeof says - 1)) { /* whether it is one */
        const char *text = a->kinds & strings ? "true" : "false";
        return rules_text(n->r, from, text, strlen(text));
    }
    uint32_t to = rules_state(n->r);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (a->kinds & types[i].kinds)
            rules_edge(n->r, rules_text(n->r, from, types[i].text, strlen(types[i].text)), to,
                       EDGE_EPS, 0);
    return to;
}

/* A value and the mark behind it. */
static void write_value(const struct native *n, uint32_t from, uint32_t to, struct slice mark,
                        const struct argument *a)
{
    uint32_t at = a->kinds & strings
                      ? bare_string(n, a, from, mark)
                      : native_text(n, optional_line_end(n, other_value(n, a, from)), mark);
    rules_edge(n->r, at, to, EDGE_EPS, 0);
}

/* The value at op, and the mark behind it. *op moves behind both. */
static uint32_t put_value(const struct native *n, uint32_t from, const char **op,
                          const struct argument *a)
{
    char close[256];
    struct slice mark = {NULL, 0};
    struct argument way = *a;
    struct str key;
    uint32_t rule;
    if ((*op)[1] == 'x') {
        int len = snprintf(close, sizeof close, "]<]minimax[>[</%.*s>", (int)a->key.n, a->key.p);
        mark = (struct slice){close, (size_t)len < sizeof close ? (size_t)len : 0};
        *op += 2;
    } else {
        *op += 2;
        way.line_end = **op == '\n';
        *op += way.line_end;
        mark = (struct slice){*op, chat_literal(*op)};
        *op += mark.n;
    }
    if (!mark.n) {
        refuse(n, a->key, "nothing ends its value");
        return from;
    }
    begin_key(&key, 'v', schema_plain(n->schemas, a->schema, a->property), a->kinds);
    str_put(&key, (char[]){(char)a->free, (char)a->mixed, (char)way.line_end}, 3);
    str_put(&key, mark.p, mark.n);
    if (!made_before(n, &key, a->key, &rule))
        write_value(n, n->r->rule[rule].start, n->r->rule[rule].end, mark, &way);
    return rules_ok(n->r) ? rules_call(n->r, from, rule) : from;
}

/* ---------------------------------------------------------------- arguments */

/* The string among the branches of a choice, as it stands: any that is told from the others, or the
 * only one, that has conditions. 0: there is none. One with conditions beside numbers, lists or
 * objects would be read back as one of those: it is left out, which is told. */
static int string_of_choice(const struct native *n, struct jtree *schema, const struct jtree *node,
                            struct argument *a)
{
    static const char *const plain[] = {"type", NULL};
    const struct jtree *list = jtree_get(node, "anyOf"), *v = list, *held = NULL;
    int n_strings = 0, n_others = 0;
    for (v = v ? v : jtree_get(node, "oneOf"); v; v = v->kind == JTREE_ARRAY ? v->first : v->next) {
        unsigned kinds = v->kind == JTREE_OBJECT ? chat_kinds(schema, v) : 0;
        n_others += kinds && !(kinds & strings);
        if (!(kinds & strings))
            continue;
        n_strings++;
        if (kinds == strings && other_keyword(v, plain))
            held = v;
    }
    a->free = !held;
    if (!held)
        return 1;
    if (a->mixed && n_others && list && list->kind == JTREE_ARRAY) {
        rules_unkept(n->r, "strings of", a->key);
        return 0;
    }
    if (a->mixed || n_strings > 1)
        refuse(n, a->key, "a string of anyOf with conditions is not supported here");
    a->property = held;
    a->node = referred(n, schema, held, a->key);
    return a->node != NULL;
}

/* Splits an argument into the ways that it can be written in. 0: it is refused. */
static int ways_of(const struct native *n, struct jtree *schema, const struct jtree *property,
                   struct argument way[2])
{
    static const char *const typed[] = {"type", "enum", "const", "nullable", NULL};
    const struct jtree *node = referred(n, schema, property, property->key);
    unsigned kinds = chat_kinds(schema, property),
             words = 1u << JTREE_NULL | 1u << JTREE_TRUE | 1u << JTREE_FALSE;
    struct argument a = {property->key, property, node, schema, kinds, 0, 0, 0, NULL};
    if (!node)
        return 0;
    const struct jtree *values = jtree_get(node, "enum");
    unsigned listed = values && values->kind == JTREE_ARRAY && values->first ? 0 : ~0u;
    for (const struct jtree *v = listed ? NULL : values->first; v; v = v->next)
        listed |= 1u << v->kind;
    kinds = a.kinds &= listed;
    a.mixed = (kinds & ~(words | strings)) != 0;
    for (size_t i = 0; i < a.key.n; i++)
        if ((uint8_t)a.key.p[i] <= ' ' || strchr("<>\"'&=", a.key.p[i]))
            refuse(n, a.key, "its name cannot be written in calls of this model");
    if (!kinds) { /* whatever it looks like */
        static const char *const none[] = {NULL};
        if (other_keyword(node, none))
            refuse(n, a.key, "its schema names no type");
        a.free = 1;
        a.kinds = strings;
        way[0] = way[1] = a;
        way[1].free = 0;
        way[1].mixed = 1;
        way[1].kinds = ~strings;
        return 2;
    }
    int n_ways = 0;
    const struct argument whole = a;
    const struct jtree *choice = NULL;
    if (kinds & strings) {
        a.kinds = strings;
        if (kinds != strings && jtree_get(node, "type") == NULL && !jtree_get(node, "enum")) {
            static const char *const any[] = {"anyOf", "oneOf", NULL};
            if (!string_of_choice(n, schema, node, &a)) {
                kinds &= ~strings;
                choice = jtree_get(node, "anyOf");
            }
            if (other_keyword(node, any))
                refuse(n, a.key, "anyOf beside other keywords is not supported here");
        } else if (kinds & ~(strings | words) && other_keyword(node, typed)) {
            refuse(n, a.key, "conditions of several types are not supported here");
        }
        if (kinds & strings)
            way[n_ways++] = a;
    }
    if (kinds & ~strings) {
        a = whole;
        a.choice = choice;
        a.kinds = kinds & ~strings;
        a.free = 0;
        way[n_ways++] = a;
    }
    return rules_ok(n->r) ? n_ways : 0;
}

/* One member of the arguments, from op to end: its rule. */
static uint32_t member_rule(const struct native *n, const char *op, const char *end,
                            const struct jtree *tool, struct jtree *schema,
                            const struct jtree *property)
{
    struct argument way[2];
    uint32_t rule = rules_new(n->r, property->key);
    int n_ways = rules_ok(n->r) ? ways_of(n, schema, property, way) : 0;
    if (!rules_ok(n->r))
        return 0;
    n->r->rule[rule].defined = 1;
    if (n_ways && way[0].free && !way[0].mixed && !behind_op(op, end, "t"))
        n_ways = 1; /* a text of any kind */
    for (int i = 0; i < n_ways; i++)
        rules_edge(n->r, put_ops(n, n->r->rule[rule].start, op, end, tool, &way[i]),
                   n->r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

static int is_required(const struct native *n, const struct jtree *schema, struct slice key)
{
    const struct jtree *list = jtree_get(schema, "required");
    return list && list->kind == JTREE_ARRAY && schema_look_up(n->schemas, list, key);
}

/* Whether the arguments' schema says no more than what its members are. */
static void check_arguments(const struct native *n, const struct jtree *schema)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties",
                                        NULL};
    const struct jtree *other = other_keyword(schema, known), *list = jtree_get(schema, "required");
    if (other)
        refuse(n, other->key, "this keyword beside properties is not supported here");
    for (const struct jtree *v = list && list->kind == JTREE_ARRAY ? list->first : NULL; v;
         v = v->next)
        if (!schema_look_up(n->schemas, jtree_get(schema, "properties"), v->text))
            refuse(n, v->text, "it is required and no property");
}

static uint32_t empty_rule(const struct native *n)
{
    struct str key;
    uint32_t rule = 0;
    begin_key(&key, 'e', 0, 0);
    if (!made_before(n, &key, SLICE("nothing"), &rule))
        rules_edge(n->r, n->r->rule[rule].start, n->r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

/* Members in the order of the schema. With edges alone every state would have those to all members
 * behind it; with rules each has two.
 *
 *     list i ::= member i rest i+1 | list i+1      the latter where member i may be left out
 *     rest i ::= comma list i | ""                 the latter where all from i on may */
static uint32_t put_in_order(struct rules *r, uint32_t from, const struct rules_set *set,
                             uint32_t comma)
{
    uint32_t list = RULES_NONE, rest = RULES_NONE, to = rules_state(r);
    int may_end = 1;
    for (uint32_t i = set->n; i-- > 0 && rules_ok(r);) {
        uint32_t at = rules_new(r, SLICE("arguments")), behind = rules_new(r, SLICE("arguments"));
        if (!rules_ok(r))
            break;
        r->rule[at].defined = r->rule[behind].defined = 1;
        uint32_t start = r->rule[at].start, end = r->rule[at].end,
                 member = rules_call(r, start, set->v[i].rule);
        rules_edge(r, member, end, rest == RULES_NONE ? EDGE_EPS : EDGE_CALL,
                   rest == RULES_NONE ? 0 : rest);
        if (!set->v[i].must && list != RULES_NONE)
            rules_edge(r, start, end, EDGE_CALL, list);
        may_end &= !set->v[i].must;
        start = r->rule[behind].start;
        end = r->rule[behind].end;
        rules_edge(r, rules_call(r, start, comma), end, EDGE_CALL, at);
        if (may_end)
            rules_edge(r, start, end, EDGE_EPS, 0);
        list = at;
        rest = behind;
    }
    if (!rules_ok(r))
        return from;
    rules_edge(r, from, to, EDGE_CALL, list);
    if (may_end)
        rules_edge(r, from, to, EDGE_EPS, 0);
    return to;
}

/* Members in any order, or, where there are too many, in that of the schema. rule: [n_members]. */
static uint32_t put_members(const struct native *n, uint32_t from, struct rules_set *set,
                            uint32_t comma)
{
    struct rules *r = n->r;
    if (set->n == 0)
        return from;
    if (!n->in_order && set->n <= RULES_SET) {
        set->comma = comma;
        set->close = empty_rule(n);
        set->extra = RULES_NONE;
        set->max = RULES_ENDLESS;
        return rules_ok(r) ? rules_call(r, from, rules_any_order(r, SLICE("arguments"), set))
                           : from;
    }
    if (!n->in_order)
        rules_unkept(r, RULES_SET_OVER, (struct slice){NULL, 0});
    return put_in_order(r, from, set, comma);
}

/* The state behind all members of a tool's arguments: op..end is one of them, NULL: KEY=VALUE as
 * Python has it. */
static uint32_t write_arguments(const struct native *n, uint32_t from, const char *op,
                                const char *end, const struct jtree *tool, uint32_t comma)
{
    struct jtree *schema = chat_parameters(tool);
    const struct jtree *list = jtree_get(schema, "properties");
    uint32_t n_all = list && list->kind == JTREE_OBJECT ? list->n : 0;
    struct rules_set *set = arena_alloc(&n->r->arena, sizeof *set + (n_all + 1) * sizeof set->v[0]);
    if (!set) {
        rules_fail(n->r, PITH_NOMEM, "out of memory for the arguments of a tool");
        return from;
    }
    *set = (struct rules_set){.n = 0};
    check_arguments(n, schema);
    for (const struct jtree *p = n_all ? list->first : NULL; p && rules_ok(n->r); p = p->next) {
        uint32_t rule;
        if (op) {
            rule = member_rule(n, op, end, tool, schema, p);
        } else {
            struct argument a = {.key = p->key, .property = p, .schema = schema};
            rule = rules_new(n->r, p->key);
            if (!rules_ok(n->r))
                break;
            n->r->rule[rule].defined = 1;
            uint32_t at = rules_text(n->r, n->r->rule[rule].start, p->key.p, p->key.n);
            at = rules_call(n->r, rules_text(n->r, at, "=", 1), member(n, &a, SCHEMA_PYTHON));
            rules_edge(n->r, at, n->r->rule[rule].end, EDGE_EPS, 0);
        }
        set->v[set->n++] = (struct rules_choice){rule, is_required(n, schema, p->key)};
    }
    return rules_ok(n->r) ? put_members(n, from, set, comma) : from;
}

/* The same, written once for tools with equal arguments and for all patterns with such members. */
static uint32_t put_arguments(const struct native *n, uint32_t from, const char *op,
                              const char *end, const struct jtree *tool, uint32_t comma)
{
    struct jtree *schema = chat_parameters(tool);
    struct str key;
    uint32_t rule;
    begin_key(&key, 'a', schema ? schema_plain(n->schemas, schema, schema) : 0, comma);
    str_put(&key, op ? op : "", op ? (size_t)(end - op) : 0);
    if (!made_before(n, &key, SLICE("arguments"), &rule)) {
        uint32_t to = write_arguments(n, n->r->rule[rule].start, op, end, tool, comma);
        rules_edge(n->r, to, n->r->rule[rule].end, EDGE_EPS, 0);
    }
    return rules_ok(n->r) ? rules_call(n->r, from, rule) : from;
}

/* ---------------------------------------------------------------- calls */

const struct jtree *native_function(struct rules *r, const struct jtree *tool, int i,
                                    struct slice *name)
{
    const struct jtree *fn = jtree_get(tool, "function");
    fn = fn && fn->kind == JTREE_OBJECT ? fn : tool;
    const struct jtree *v = jtree_get(fn, "name");
    if (!v || v->kind != JTREE_STRING) {
        rules_fail(r, PITH_FORMAT, "tools: number %d has no name", i);
        return NULL;
    }
    *name = v->text;
    return fn;
}

static struct slice name_of(const struct native *n, const struct jtree *tool)
{
    struct slice name = {"", 0};
    native_function(n->r, tool, 0, &name);
    return name;
}

/* A comma and white space. */
static uint32_t comma_rule(const struct native *n)
{
    uint32_t rule = rules_new(n->r, SLICE(","));
    if (!rules_ok(n->r))
        return 0;
    n->r->rule[rule].defined = 1;
    rules_edge(n->r, rules_text(n->r, n->r->rule[rule].start, ",", 1), n->r->rule[rule].end,
               EDGE_CALL, n->blanks);
    return rule;
}

/* [name(key=value, ...), ...] */
static uint32_t put_python(const struct native *n, uint32_t from)
{
    struct rules *r = n->r;
    uint32_t comma = comma_rule(n), call = rules_text(r, from, "[", 1), behind = rules_state(r);
    for (const struct jtree *t = n->tools->first; t && rules_ok(r); t = t->next) {
        struct slice name = name_of(n, t);
        uint32_t at = rules_text(r, rules_text(r, call, name.p, name.n), "(", 1);
        at = rules_text(r, put_arguments(n, at, NULL, NULL, t, comma), ")", 1);
        rules_edge(r, at, behind, EDGE_EPS, 0);
    }
    rules_edge(r, behind, call, EDGE_CALL, comma);
    return rules_text(r, behind, "]", 1);
}

/* {"name": "f", "arguments": {...}} */
static uint32_t put_json(const struct native *n, uint32_t from)
{
    static const char *const parts[] = {"{", "\"name\"", ":", "", ",", "\"arguments\"", ":"};
    enum { NAME = 3 };
    struct rules *r = n->r;
    uint32_t behind = rules_state(r);
    for (int i = 0; i < NAME; i++)
        from = rules_call(r, rules_text(r, from, parts[i], strlen(parts[i])), n->blanks);
    for (const struct jtree *t = n->tools->first; t && rules_ok(r); t = t->next) {
        struct slice name = name_of(n, t);
        struct str quoted;
        uint32_t at = from;
        str_init(&quoted, PITH_MEM_SCRATCH);
        str_json(&quoted, name.p, name.n);
        for (int i = NAME; i < 7 && !quoted.failed; i++) {
            struct slice part = i == NAME ? (struct slice){quoted.p, quoted.n} : slice_of(parts[i]);
            at = rules_call(r, rules_text(r, at, part.p, part.n), n->blanks);
        }
        if (quoted.failed)
            rules_fail(r, PITH_NOMEM, "out of memory for the name of a tool");
        str_deinit(&quoted);
        at = rules_ok(r) ? rules_call(r, at, native_arguments(n, chat_parameters(t), SCHEMA_JSON))
                         : at;
        rules_edge(r, rules_text(r, rules_call(r, at, n->blanks), "}", 1), behind, EDGE_EPS, 0);
    }
    return behind;
}

/* functions.NAME, or functions.NAME:INDEX. */
static uint32_t put_name(const struct native *n, uint32_t from, struct slice name, int in_functions)
{
    struct rules *r = n->r;
    if (!in_functions)
        return rules_text(r, from, name.p, name.n);
    uint32_t at = rules_text(r, from, "functions.", 10), colon, digits, behind = rules_state(r);
    at = rules_text(r, at, name.p, name.n);
    rules_edge(r, at, behind, EDGE_EPS, 0);
    colon = rules_text(r, at, ":", 1);
    for (int i = 0; i < 4; i++, colon = digits) {
        digits = rules_state(r);
        rules_bytes(r, colon, digits, '0', '9');
        rules_edge(r, digits, behind, EDGE_EPS, 0);
    }
    return behind;
}

/* A group: the members of the arguments, one call or more, or what may be there. */
static uint32_t put_group(const struct native *n, uint32_t from, const char *op, const char *end,
                          const struct jtree *tool)
{
    if (tool && behind_op(op, end, "k"))
        return put_arguments(n, from, op, end, tool, empty_rule(n));
    uint32_t at = rules_state(n->r);
    rules_edge(n->r, from, at, EDGE_EPS, 0);
    uint32_t to = put_ops(n, at, op, end, tool, NULL), behind = rules_state(n->r);
    if (behind_op(op, end, "nfcp"))
        rules_edge(n->r, to, at, EDGE_EPS, 0);
    else
        rules_edge(n->r, at, behind, EDGE_EPS, 0);
    rules_edge(n->r, to, behind, EDGE_EPS, 0);
    return behind;
}

/* The rest of a call from its name on, once for each tool. */
static uint32_t put_tools(const struct native *n, uint32_t from, const char *op, const char *end)
{
    uint32_t to = rules_state(n->r);
    for (const struct jtree *t = n->tools->first; t && rules_ok(n->r); t = t->next)
        rules_edge(n->r, put_ops(n, from, op, end, t, NULL), to, EDGE_EPS, 0);
    return to;
}

static uint32_t put_op(const struct native *n, uint32_t from, const char *op,
                       const struct jtree *tool, const struct argument *a)
{
    switch (op[1]) {
    case 'n':
    case 'f':
        return put_name(n, from, name_of(n, tool), op[1] == 'f');
    case 'i':
    case '_':
        return word(n, from);
    case 'k':
        return rules_text(n->r, from, a->key.p, a->key.n);
    case 't':
        return type_word(n, from, op, a);
    case 'j':
        return rules_call(n->r, from, native_arguments(n, chat_parameters(tool), SCHEMA_JSON));
    case 'g':
        return rules_call(n->r, from, native_arguments(n, chat_parameters(tool), SCHEMA_GEMMA));
    case 'p':
        return put_python(n, from);
    case 'c':
        return put_json(n, from);
    default: /* %. */
        return from;
    }
}

/* Whether a word may come next that would be taken for more of the one before. */
static int goes_on_with_word(const char *op)
{
    while (op[0] == '%' && op[1] == '(' && memcmp(op + 2, "%_", 2) != 0)
        op = behind_group(op);
    return op[0] == '%' && op[1] == '(';
}

static uint32_t put_ops(const struct native *n, uint32_t from, const char *op, const char *end,
                        const struct jtree *tool, const struct argument *a)
{
    while (op < end && *op && rules_ok(n->r)) {
        if (*op == ' ' && goes_on_with_word(op + 1)) {
            uint32_t to = rules_text(n->r, from, " ", 1);
            rules_bytes(n->r, from, to, '\t', '\n');
            from = rules_call(n->r, to, n->blanks);
        } else if (*op == ' ') {
            from = rules_call(n->r, from, n->blanks);
        } else if (*op == '\n') {
            from = optional_line_end(n, from);
        } else if (*op != '%') {
            from = native_text(n, from, (struct slice){op, chat_literal(op)});
        } else if (op[1] == '(') {
            const char *behind = behind_group(op);
            from = put_group(n, from, op + 2, behind - 2, tool);
            op = behind;
            continue;
        } else if (!tool && (op[1] == 'n' || op[1] == 'f')) {
            const char *behind = behind_op(op, end, ".jg");
            behind = behind ? behind : end;
            from = put_tools(n, from, op, behind);
            op = behind;
            continue;
        } else if (op[1] == 'v' || op[1] == 'x') {
            from = put_value(n, from, &op, a);
            continue;
        } else {
            from = put_op(n, from, op, tool, a);
        }
        op = next_op(op);
    }
    return from;
}

uint32_t native_rest(const struct native *n, uint32_t from, const char *op)
{
    return put_ops(n, from, op, op + strlen(op), NULL, NULL);
}
