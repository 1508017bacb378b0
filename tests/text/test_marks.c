/* test_marks.c -- text of users and tools is never a control token.
 *
 * Where a text comes from is checked from outside: characters that no template has (private use)
 * are put into every value, and wherever one comes out, the byte has to be a value's; markers are
 * put between two of them, and a control token between two of them is forged. Over the recorded
 * cases of all published templates, the cases of the language, and vocabularies of every kind. */
/* In make test alone: it takes long at any scale. */
#include "robust.h"
#include "templates.h"
#define tokens jinja_tokens /* vocab_image.h has others */
#include "text/jinja/jinja_impl.h"
#undef tokens
#include "text/chat/chat_parse.h"
#include "text/vocab/vocab_impl.h"
#include "vocab_image.h"

#define SIGN "\xEE\x80\x80" /* U+E000 */

/* ---------------------------------------------------------------- markers */

static struct markers markers;

/* A vocabulary of bytes and all markers: `type` control, or user-defined. */
static struct vocab *marker_vocab(int type)
{
    struct keys k = {0};
    struct pith_error err;
    static struct tokens t;
    memset(&t, 0, sizeof t);
    add_byte_alphabet(&t);
    add_words(&t, "the user system assistant end im start think tool call");
    for (int i = 0; i < markers.n; i++)
        add_token(&t, markers.text[i], type, 0);
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_str(&k, "tokenizer.ggml.pre", "llama-bpe"); /* looks whole words up first */
    key_tokens(&k, &t);
    struct vocab *v = open_keys(&k, &err);
    CHECK_MSG(v, "%s", err.msg);
    return v;
}

/* ---------------------------------------------------------------- values */

/* What is put into every text of a request but the roles and types, which templates choose by. */
struct payload {
    const char *before, *after;
    int keys;      /* names of arguments and parameters too */
    long only, at; /* only that place, where it is not -1 */
};

static long n_places; /* texts that a payload was put into */

static json_t *wrap(struct payload *p, const char *s)
{
    json_t *v;
    if (p->only >= 0 && p->at++ != p->only)
        return json_string(s);
    n_places++;
    size_t n = strlen(s) + strlen(p->before) + strlen(p->after) + 1;
    char *buf = malloc(n);
    snprintf(buf, n, "%s%s%s", p->before, s, p->after);
    v = json_string(buf);
    free(buf);
    return v;
}

static json_t *inject(struct payload *p, const json_t *v, int in_names)
{
    json_t *out, *item;
    const char *key;
    size_t i;
    if (json_is_string(v))
        return wrap(p, json_string_value(v));
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach((json_t *)(uintptr_t)v, i, item)
            json_array_append_new(out, inject(p, item, 0));
        return out;
    }
    if (!json_is_object(v))
        return json_incref((json_t *)(uintptr_t)v);
    out = json_object();
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        int names = !strcmp(key, "arguments") || !strcmp(key, "properties"),
            fixed = !strcmp(key, "role") || !strcmp(key, "type");
        json_t *name = p->keys && in_names ? wrap(p, key) : json_string(key);
        json_object_set_new(out, json_string_value(name),
                            fixed && !in_names ? json_incref(item) : inject(p, item, names));
        json_decref(name);
    }
    return out;
}

/* A case's variables with the payload in all that a request gives. */
static char *variables(const json_t *c, struct payload *p)
{
    static const char *const own[] = {"add_generation_prompt", "bos_token", "eos_token", "now"},
                             *const given[] = {"messages", "tools"};
    json_t *o = json_object(), *kwargs = inject(p, json_object_get(c, "kwargs"), 0);
    for (size_t i = 0; i < 4; i++)
        if (json_object_get(c, own[i]))
            json_object_set(o, own[i], json_object_get(c, own[i]));
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(c, given[i]))
            json_object_set_new(o, given[i], inject(p, json_object_get(c, given[i]), 0));
    json_object_update(o, kwargs);
    char *text = json_dumps(o, 0);
    json_decref(kwargs);
    json_decref(o);
    return text;
}

static struct {
    struct vocab *control, *user;
    char *payload; /* "QZ<|im_end|>WKQZ<|im_start|>WK ..." */
    int cases, rendered, signs, same, differ, forged, rewritten, marked;
    int templates;
    long tried; /* markers in places */
} all;

/* ---------------------------------------------------------------- one rendering */

struct rendered {
    struct str text;
    struct spans values;
    pith_status st;
    struct pith_error err;
};

static void render(struct rendered *r, const struct jinja *t, const char *vars)
{
    memset(r, 0, sizeof *r);
    str_init(&r->text, PITH_MEM_SCRATCH);
    r->st = jinja_render_marked(t, vars, strlen(vars), NULL, &r->text, &r->values, &r->err);
    for (size_t i = 0; i < r->values.n; i++) {
        const struct pith_span *s = &r->values.v[i];
        CHECK_MSG(s->from < s->to && s->to <= r->text.n && (!i || s[-1].to < s->from),
                  "span %zu is %zu..%zu of %zu", i, s->from, s->to, r->text.n);
    }
}

static void drop(struct rendered *r)
{
    str_deinit(&r->text);
    spans_deinit(&r->values);
}

/* Signs that are said to be the template's. */
static int n_stray(const struct rendered *r, int *n_signs)
{
    int n = 0;
    for (size_t i = 0; r->st == PITH_OK && i + 3 <= r->text.n; i++) {
        if (memcmp(r->text.p + i, SIGN, 3))
            continue;
        ++*n_signs;
        for (size_t k = i; k < i + 3; k++)
            n += !spans_touch(&r->values, k, k + 1);
    }
    return n;
}

static int64_t tokenize(const struct vocab *v, const struct rendered *r, const struct spans *values,
                        int32_t **ids)
{
    const char *text = r->text.p ? r->text.p : "";
    int64_t n =
        vocab_tokenize_marked(v, text, r->text.n, PITH_PARSE_SPECIAL, values, NULL, 0, NULL);
    *ids = calloc((size_t)n + 1, sizeof **ids);
    return vocab_tokenize_marked(v, text, r->text.n, PITH_PARSE_SPECIAL, values, *ids, (size_t)n,
                                 NULL);
}

static int piece_ends(const struct vocab *v, int32_t id, char c, int first)
{
    char buf[64];
    size_t n = vocab_piece(v, id, 1, buf, sizeof buf);
    return n && n <= sizeof buf && buf[first ? 0 : n - 1] == c;
}

/* Some templates cut their assistant's text where its reasoning ends and write that marker
 * themselves, around what they cut. */
static int is_rewritten(const struct jinja *t, struct slice marker)
{
    struct slice s = jinja_source(t);
    const char *end = chat_format_answer(chat_format_of(s));
    return end && slice_eq_z(marker, end) && memmem(s.p, s.n, ".split(", 7);
}

/* Markers between "QZ" and "WK", which no template writes. */
static int n_forged(const struct vocab *v, const struct jinja *t, const struct rendered *r,
                    const char **which)
{
    int32_t *ids;
    int n = 0;
    int64_t n_ids = tokenize(v, r, &r->values, &ids);
    for (int64_t i = 1; i + 1 < n_ids; i++) {
        if (!vocab_is_marker(v, ids[i]) || !piece_ends(v, ids[i - 1], 'Z', 0) ||
            !piece_ends(v, ids[i + 1], 'W', 1))
            continue;
        *which = v->text + v->at[ids[i]];
        int again = is_rewritten(t, vocab_text(v, ids[i]));
        n += !again;
        all.rewritten += again;
    }
    free(ids);
    return n;
}

/* ---------------------------------------------------------------- all templates */

static int has_marker(const char *json)
{
    for (int i = 0; i < markers.n; i++)
        if (strstr(json, markers.text[i]))
            return 1;
    return 0;
}

/* Ids as before there were values, wherever no value has a marker. */
static void check_ids(const char *file, const json_t *c, const struct jinja *t)
{
    struct payload none = {"", "", 0, -1, 0};
    struct rendered r;
    char *vars = variables(c, &none);
    json_t *given = json_loads(vars, 0, NULL);
    json_object_del(given, "bos_token");
    json_object_del(given, "eos_token");
    char *values = json_dumps(given, 0);
    render(&r, t, vars);
    const struct vocab *const both[] = {all.control, all.user};
    for (int i = 0; i < 2 && r.st == PITH_OK; i++) {
        int32_t *a, *b;
        int64_t n = tokenize(both[i], &r, &r.values, &a), m = tokenize(both[i], &r, NULL, &b);
        int same = n == m && !memcmp(a, b, (size_t)n * sizeof *a);
        all.same += same;
        all.differ += !same;
        CHECK_MSG(same || has_marker(values), "%s, %s: other ids", file,
                  json_string_value(json_object_get(c, "name")));
        free(a);
        free(b);
    }
    all.rendered += r.st == PITH_OK;
    drop(&r);
    free(vars);
    free(values);
    json_decref(given);
}

static void check_payload(const char *file, const json_t *c, const struct jinja *t,
                          struct payload p)
{
    struct rendered r;
    const char *which = "", *name = json_string_value(json_object_get(c, "name"));
    int n_markers = 0;
    for (const char *at = p.before; (at = strstr(at, "QZ")); at++)
        n_markers++;
    for (const char *at = p.after; (at = strstr(at, "QZ")); at++)
        n_markers++;
    n_places = 0;
    char *vars = variables(c, &p);
    render(&r, t, vars);
    all.tried += r.st == PITH_OK ? n_places * n_markers : 0;
    int stray = n_stray(&r, &all.signs);
    CHECK_MSG(!stray, "%s, %s: %d bytes of values are said to be the template's", file, name,
              stray);
    int forged =
        r.st == PITH_OK ? n_forged(all.cases % 2 ? all.control : all.user, t, &r, &which) : 0;
    all.forged += forged;
    all.marked += r.st == PITH_OK;
    CHECK_MSG(!forged, "%s, %s: %d forged markers, such as %.20s", file, name, forged, which);
    drop(&r);
    free(vars);
}

static void check_case(const char *file, const json_t *c, const struct jinja *t, struct rng *rng)
{
    enum { SAMPLE = 4 };
    char one[80], some[SAMPLE * 80] = "";
    if (all.cases++ % 4 && test_scale() < 10) { /* a few of the markers, others each time, in every
                                                   place */
        for (int i = 0; i < SAMPLE; i++) {
            int m = (all.cases * SAMPLE + i) % markers.n;
            snprintf(some + strlen(some), sizeof some - strlen(some), "QZ%sWK", markers.text[m]);
        }
        int front = all.cases / 4 % 2, keys = all.cases % 4 == 1;
        check_payload(file, c, t,
                      (struct payload){front ? some : "", front ? "" : some, keys, -1, 0});
        return;
    }
    check_ids(file, c, t);
    for (int keys = 0; keys < 2; keys++) {
        check_payload(file, c, t, (struct payload){SIGN, SIGN, keys, -1, 0});
        if (keys == all.cases / 2 % 2 || test_scale() > 1)
            check_payload(
                file, c, t,
                (struct payload){keys ? "" : all.payload, keys ? all.payload : "", keys, -1, 0});
    }
    for (long i = 0; i < 2 * test_scale(); i++) { /* one marker in one place */
        snprintf(one, sizeof one, "QZ%sWK", markers.text[rng_below(rng, (uint32_t)markers.n)]);
        int front = (int)rng_below(rng, 2);
        check_payload(
            file, c, t,
            (struct payload){front ? one : "", front ? "" : one, 0, (long)rng_below(rng, 24), 0});
    }
}

static void read_template(const char *file, const char *text, size_t n, const json_t *cases)
{
    (void)file;
    (void)cases;
    find_markers(&markers, text, n);
}

static void check_template(const char *file, const char *text, size_t n, const json_t *cases)
{
    struct rng rng;
    struct pith_error err = {0};
    struct jinja *t = jinja_new(text, n, &err);
    json_t *c;
    size_t i;
    rng_init(&rng, 1);
    CHECK_MSG(t, "%s: %s", file, err.msg);
    long before = all.tried;
    json_array_foreach((json_t *)(uintptr_t)cases, i, c) if (t) check_case(file, c, t, &rng);
    CHECK_MSG(!json_array_size(cases) || all.tried > before, "%s: no marker was tried", file);
    all.templates++;
    jinja_free(t);
}

static void templates(void)
{
    size_t n = 0;
    struct str s;
    each_template(read_template);
    if (!markers.n)
        SKIP("no templates in %s", test_shared());
    char *def = test_read("src/text/chat/chat_formats.def", &n);
    REQUIRE(def, "src/text/chat/chat_formats.def cannot be read");
    find_markers(&markers, def, n);
    free(def);
    for (int i = 0; i < N_OTHER_MARKERS; i++)
        add_marker(&markers, other_markers[i], strlen(other_markers[i]));
    str_init(&s, PITH_MEM_SCRATCH);
    for (int i = 0; i < markers.n; i++)
        str_printf(&s, "QZ%sWK", markers.text[i]);
    all.payload = s.p;
    all.control = marker_vocab(VOCAB_CONTROL);
    all.user = marker_vocab(VOCAB_USER);
    if (all.control && all.user)
        each_template(check_template);
    printf("    %d markers, %d cases, %d render; ids: %d same, %d not; %d signs; %d renderings "
           "with markers: %d forged, %d written by the template too\n",
           markers.n, all.cases, all.rendered, all.same, all.differ, all.signs, all.marked,
           all.forged, all.rewritten);
    printf("    %d templates, %ld times a marker in a place\n", all.templates, all.tried);
    int part = test_scale() < 10 ? 8 : 1; /* every fourth case */
    CHECK(all.cases > 1000 && all.rendered > 1000 / part && all.signs > 10000 / part &&
          all.same > 2000 / part);
    vocab_free(all.control);
    vocab_free(all.user);
    str_deinit(&s);
}

/* ---------------------------------------------------------------- the language */

/* Every filter, method and operator, on values with a sign at both ends. */
static void language(void)
{
    int n_signs = 0, n_stray_bytes = 0, n = 0;
    size_t i;
    json_t *file = read_json("tests/data/jinja.json"), *c;
    REQUIRE(file, "tests/data/jinja.json cannot be read");
    json_t *shared =
        json_loads(json_string_value(json_object_get(file, "shared")), JSON_ALLOW_NUL, NULL);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const char *text = json_string_value(json_object_get(c, "t")),
                   *v = json_string_value(json_object_get(c, "v"));
        struct payload sign = {SIGN, SIGN, 0, -1, 0};
        json_t *vars = json_object_get(c, "s") ? json_incref(shared)
                       : v                     ? json_loads(v, JSON_ALLOW_NUL, NULL)
                                               : NULL;
        json_t *with = vars ? inject(&sign, vars, 0) : NULL;
        char *json = with ? json_dumps(with, 0) : NULL;
        struct pith_error err;
        struct jinja *t = json && !strstr(text, SIGN)
                              ? jinja_new(text, json_string_length(json_object_get(c, "t")), &err)
                              : NULL;
        if (t) {
            struct rendered r;
            render(&r, t, json);
            int stray = n_stray(&r, &n_signs);
            n += r.st == PITH_OK;
            n_stray_bytes += stray;
            CHECK_MSG(!stray, "%s: %d bytes of values are said to be the template's", text, stray);
            drop(&r);
        }
        jinja_free(t);
        free(json);
        json_decref(with);
        json_decref(vars);
    }
    json_decref(shared);
    json_decref(file);
    printf("    %d cases, %d signs, %d strays\n", n, n_signs, n_stray_bytes);
    CHECK(n > 200 && n_signs > 40);
}

/* All filters and methods, with all numbers of arguments and kinds of values. */
static void functions(void)
{
    static const struct {
        const struct builtin *rows;
        const char *form;
    } tables[] = {{jinja_filters, "{{ %s | %s%s }}"},
                  {jinja_seq_filters, "{{ %s | %s%s }}"},
                  {jinja_filters, "{{ [%s] | map('%s') | join%s }}"},
                  {jinja_str_methods, "{{ %s.%s%s }}"},
                  {jinja_seq_methods, "{{ %s.%s%s }}"},
                  {jinja_dict_methods, "{{ %s.%s%s }}"},
                  {jinja_seq_filters, "{{ %s | %s%s | list | tojson }}"},
                  {jinja_dict_methods, "{{ %s.%s%s | list }}"}};
    static const char *const selfs[] = {"x", "('c' ~ x ~ 'c')", "[x, 'c', x]", "{x: x}", "n"};
    static const char *const args[] = {"",
                                       "()",
                                       "(x)",
                                       "('c')",
                                       "(5)",
                                       "(40)",
                                       "('b', x)",
                                       "(x, x)",
                                       "(' ', 1)",
                                       "(40, x[0])",
                                       "(x ~ ' ', 1, x)",
                                       "(3, true, x)",
                                       "(8, true)"};
    static const char vars[] = "{\"x\": \"" SIGN "a b<\\n" SIGN "\\\"c" SIGN "\", \"n\": 7}";
    int n = 0, n_signs = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const struct builtin *f = tables[i].rows; f->name; f++) {
            for (size_t k = 0; k < 5 * (sizeof args / sizeof *args); k++) {
                char text[256];
                struct rendered r;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(text, sizeof text, tables[i].form, selfs[k % 5], f->name, args[k / 5]);
#pragma GCC diagnostic pop
                struct jinja *t = jinja_new(text, strlen(text), NULL);
                if (!t)
                    continue;
                render(&r, t, vars);
                int stray = n_stray(&r, &n_signs);
                CHECK_MSG(!stray, "%s: %d bytes of values are said to be the template's", text,
                          stray);
                n += r.st == PITH_OK;
                drop(&r);
                jinja_free(t);
            }
        }
    }
    printf("    %d render, %d signs\n", n, n_signs);
    CHECK(n > 1000 && n_signs > 2000);
}

/* What is whose: T for the template, v for a value, of each character that comes out. */
static void origins(void)
{
    static const struct {
        const char *text, *out, *from;
    } rows[] = {
        {"<{{ x }}>", "<ab>", "TvvT"},
        {"{{ '<' ~ x ~ '>' }}", "<ab>", "TvvT"},
        {"{{ ('<' + x + '>')[1:] }}", "ab>", "vvT"},
        {"{{ ('<' + x + '>') | upper | reverse }}", ">BA<", "TvvT"},
        {"{{ (x ~ '!') * 2 }}", "ab!ab!", "vvTvvT"},
        {"{{ [x, 'c', x] | join('-') }}", "ab-c-ab", "vvTTTvv"},
        {"{{ x | tojson }}", "\"ab\"", "TvvT"},
        {"{{ {x: 1, 'k': n} | tojson }}", "{\"ab\": 1, \"k\": 7}", "TTvvTTTTTTTTTTTvT"},
        {"{{ x | replace('a', '<') }}", "<b", "Tv"},
        {"{{ '<a>' | replace('a', x) }}", "<ab>", "TvvT"},
        {"{{ 'a%sb' % x }}", "aabb", "TvvT"},
        {"{{ '{}{}'.format(x, 'c') }}", "abc", "vvT"},
        {"{% set s %}<{{ x }}>{% endset %}{{ s | trim('<') }}", "ab>", "vvT"},
        {"{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(x) }}{{ m('c') }}", "[ab][c]", "TvvTTTT"},
        {"{% set ns = namespace(s='') %}{% for c in x %}{% set ns.s = ns.s + c + ',' %}{% endfor "
         "%}{{ ns.s }}",
         "a,b,", "vTvT"},
        {"{% filter upper %}c{{ x }}{% endfilter %}", "CAB", "Tvv"},
        {"{{ x.split('b')[0] ~ 'b' }}", "ab", "vT"},
        {"{% for m in messages %}<{{ m.role }}|{{ m.name }}>{% endfor %}", "<user|user><else|user>",
         "TTTTTTvvvvTTvvvvTvvvvT"},
        {"{{ bos_token }}{{ x }}", "<s>ab", "TTTvv"},
        {"{{ n + 1 }}{{ n }}{{ x | length }}{{ 3 }}", "8723", "vvTT"},
        {"{{ y | int }}{{ yes }}{{ not yes }}", "12TrueFalse", "vvvvvvTTTTT"},
        {"{{ '%c' % 60 }}{{ '<' }}", "<<", "vT"},
    };
    static const char vars[] =
        "{\"x\": \"ab\", \"y\": \"12\", \"n\": 7, \"yes\": true, \"bos_token\": \"<s>\", "
        "\"messages\": [{\"role\": \"user\", \"name\": \"user\"}, "
        "{\"role\": \"else\", \"name\": \"user\"}]}";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rendered r;
        struct pith_error err;
        char from[64] = "";
        struct jinja *t = jinja_new(rows[i].text, strlen(rows[i].text), &err);
        REQUIRE(t, "%s: %s", rows[i].text, err.msg);
        render(&r, t, vars);
        for (size_t k = 0; k < r.text.n && k < sizeof from - 1; k++)
            from[k] = spans_touch(&r.values, k, k + 1) ? 'v' : 'T';
        const char *text = r.text.p ? r.text.p : "";
        CHECK_MSG(r.st == PITH_OK && !strcmp(text, rows[i].out), "%s: \"%s\", wanted \"%s\"; %s",
                  rows[i].text, text, rows[i].out, r.err.msg);
        CHECK_MSG(!strcmp(from, rows[i].from), "%s: \"%s\" is %s, wanted %s", rows[i].text, text,
                  from, rows[i].from);
        drop(&r);
        jinja_free(t);
    }
}

/* A value that would be a template is refused, with the line; as text alone it is rendered as ever.
 */
static void formats(void)
{
    static const char *const rows[] = {"a\n{{ x % 1 }}", "a\n{{ ('%s' ~ x) % 1 }}",
                                       "a\n{{ x.format(1) }}", "a\n{{ x | format(1) }}",
                                       "a\n{{ x.format_map({}) }}"};
    static const char vars[] = "{\"x\": \"1\"}";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rendered r;
        struct jinja *t = jinja_new(rows[i], strlen(rows[i]), NULL);
        REQUIRE(t, "%s", rows[i]);
        render(&r, t, vars);
        CHECK_MSG(r.st == PITH_FORMAT && strstr(r.err.msg, "line 2") &&
                      strstr(r.err.msg, "used as a format"),
                  "%s: %d, %s", rows[i], r.st, r.err.msg);
        CHECK(r.text.n == 0);
        drop(&r);
        jinja_free(t);
    }
    struct str out;
    str_init(&out, PITH_MEM_SCRATCH);
    struct jinja *t = jinja_new(rows[2], strlen(rows[2]), NULL);
    CHECK(t && jinja_render(t, vars, sizeof vars - 1, NULL, &out, NULL) == PITH_OK &&
          !strcmp(out.p, "a\n1"));
    jinja_free(t);
    str_deinit(&out);
}

/* ---------------------------------------------------------------- vocabularies */

static int n_markers_in(const struct vocab *v, const int32_t *ids, int64_t n)
{
    int found = 0;
    for (int64_t i = 0; i < n; i++)
        found += vocab_is_marker(v, ids[i]) && ids[i] != v->unk;
    return found;
}

/* One marker as a value, half of it as a value, and beside a value. */
static void check_marker(const char *name, const struct vocab *v, int32_t id)
{
    char text[600], back[1200];
    int32_t ids[1200];
    struct slice s = vocab_text(v, id);
    if (s.n < 2 || s.n > 200)
        return;
    size_t n = (size_t)snprintf(text, sizeof text, "a %.*s b", (int)s.n, s.p);
    struct pith_span all_of_it = {0, n}, half = {0, 2 + s.n / 2}, end = {2 + s.n, n},
                     one = {2 + s.n - 1, 2 + s.n};
    struct spans whole = {&all_of_it, 1, 1}, first = {&half, 1, 1}, behind = {&end, 1, 1},
                 last = {&one, 1, 1};
    const struct spans *const none[] = {&whole, &first, &last};
    for (int i = 0; i < 3; i++) {
        int64_t k = vocab_tokenize_marked(v, text, n, PITH_PARSE_SPECIAL, none[i], ids, 1200, NULL);
        int found = n_markers_in(v, ids, k), lost = 0;
        for (int64_t j = 0; j < k; j++)
            lost |= ids[j] == v->unk;
        /* inside of one, another may stand: "<|x|>" in "<|<|x|>" */
        CHECK_MSG(k > 0 && (!found || i), "%s: %.*s as a value is a marker", name, (int)s.n, s.p);
        for (int64_t j = 0; j < k; j++)
            CHECK_MSG(ids[j] != id, "%s: %.*s, which is a value in part (%d), is a marker", name,
                      (int)s.n, s.p, i);
        int64_t m =
            vocab_detokenize(v, ids, (size_t)k, PITH_RENDER_SPECIAL, back, sizeof back, NULL);
        if (v->model->kind == VOCAB_BPE || (v->model->kind == VOCAB_SPM && !lost)) {
            size_t skip = m > 0 && back[0] == ' ';
            CHECK_MSG((size_t)m - skip == n && !memcmp(back + skip, text, n),
                      "%s: %.*s as a value reads \"%.*s\"", name, (int)s.n, s.p, (int)m, back);
        }
    }
    int64_t k = vocab_tokenize_marked(v, text, n, PITH_PARSE_SPECIAL, &behind, ids, 1200, NULL);
    int64_t m = vocab_tokenize(v, text, n, PITH_PARSE_SPECIAL, ids + 600, 600, NULL);
    CHECK_MSG(k == m && !memcmp(ids, ids + 600, (size_t)k * sizeof *ids),
              "%s: %.*s beside a value has other ids", name, (int)s.n, s.p);
}

/* Texts of the recorded cases as values: the ids are as ever where there is no marker. */
static int check_texts(const char *name, const struct vocab *v, const char *path)
{
    size_t n_file, n_line;
    int n = 0;
    char *file = test_read(path, &n_file), *line = file;
    static int32_t a[1 << 16], b[1 << 16];
    for (; line && *line; line += n_line + (line[n_line] == '\n')) {
        n_line = strcspn(line, "\n");
        json_t *c = json_loadb(line, n_line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(c, "text");
        struct pith_span span = {0, json_string_length(text)};
        struct spans values = {&span, 1, 1};
        int64_t k = text ? vocab_tokenize(v, json_string_value(text), span.to, PITH_PARSE_SPECIAL,
                                          a, 1 << 16, NULL)
                         : -1;
        int unknown = v->unk >= 0 && text &&
                      memmem(json_string_value(text), span.to, vocab_text(v, v->unk).p,
                             vocab_text(v, v->unk).n);
        if (k > 0 && k <= 1 << 16 && !unknown && !n_markers_in(v, a, k)) {
            int64_t m = vocab_tokenize_marked(v, json_string_value(text), span.to,
                                              PITH_PARSE_SPECIAL, &values, b, 1 << 16, NULL);
            CHECK_MSG(k == m && !memcmp(a, b, (size_t)k * sizeof *a),
                      "%s: \"%.60s\" as a value has other ids", name, json_string_value(text));
            n++;
        }
        json_decref(c);
    }
    free(file);
    return n;
}

static void vocabularies(void)
{
    char dir[512], path[1024];
    int n_vocabs = 0, n_markers = 0, n_texts = 0;
    struct pith_error err;
    snprintf(dir, sizeof dir, "%s/vectors/vocab", test_shared());
    DIR *d = opendir(dir);
    if (!d)
        SKIP("no vocabularies in %s", test_shared());
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 5, ".gguf"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        struct gguf *g = gguf_open_listing(path, &err);
        struct vocab *v = g ? vocab_new(g, &err) : NULL;
        gguf_close(g);
        REQUIRE(v, "%s: %s", path, err.msg);
        int seen = 0;
        for (int32_t id = 0; id < v->n && seen < 400; id++) {
            if (!vocab_is_marker(v, id))
                continue;
            seen++;
            check_marker(e->d_name, v, id);
        }
        snprintf(path, sizeof path, "%s/%.*s.cases.jsonl", dir, (int)n - 5, e->d_name);
        n_texts += check_texts(e->d_name, v, path);
        n_vocabs++;
        n_markers += seen;
        vocab_free(v);
    }
    closedir(d);
    printf("    %d vocabularies, %d markers, %d texts\n", n_vocabs, n_markers, n_texts);
    CHECK(n_vocabs > 5 && n_markers > 300 && n_texts > 1000);
}

/* Vocabularies whose merges, words or longest matches give a marker without any search for special
 * tokens. */
static void spelled(void)
{
    static const char *const models[] = {"llama", "gpt2", "bert", "t5", "rwkv", "gemma4"};
    static const char text[] = "the <x> the";
    struct pith_span span = {0, sizeof text - 1};
    struct spans values = {&span, 1, 1};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (int type = VOCAB_CONTROL; type <= VOCAB_USER; type++) {
            struct keys k = {0};
            static struct tokens t;
            int32_t ids[64];
            memset(&t, 0, sizeof t);
            add_token(&t, "<unk>", VOCAB_UNKNOWN, 0);
            if (i == 0)
                add_byte_tokens(&t);
            if (i == 1)
                add_byte_alphabet(&t);
            add_words(&t, "the <x> \xE2\x96\x81the \xE2\x96\x81<x>");
            for (int j = 0; j < t.n; j++)
                if (!strcmp(t.text[j], "<x>"))
                    t.type[j] = type;
            key_str(&k, "tokenizer.ggml.model", models[i]);
            if (i == 1)
                key_str(&k, "tokenizer.ggml.pre", "llama-bpe");
            key_u32(&k, "tokenizer.ggml.unknown_token_id", 0);
            key_tokens(&k, &t);
            struct pith_error err;
            struct vocab *v = open_keys(&k, &err);
            REQUIRE(v, "%s: %s", models[i], err.msg);
            int64_t n = vocab_tokenize_marked(v, text, sizeof text - 1, PITH_PARSE_SPECIAL, &values,
                                              ids, 64, NULL);
            CHECK_MSG(n > 2 && n <= 64 && !n_markers_in(v, ids, n),
                      "%s, type %d: a marker in a value", models[i], type);
            n = vocab_tokenize(v, text, sizeof text - 1, PITH_PARSE_SPECIAL, ids, 64, NULL);
            CHECK_MSG(n_markers_in(v, ids, n) == 1, "%s, type %d: no marker in the template's text",
                      models[i], type);
            vocab_free(v);
        }
    }
}

/* A user-defined "<s>" strikes text through, but one that begins texts is a marker. */
static void struck_through(void)
{
    for (int role = 0; role < 2; role++) {
        static const char text[] = "a<s>the";
        struct pith_span span = {0, sizeof text - 1};
        struct spans values = {&span, 1, 1};
        struct keys k = {0};
        static struct tokens t;
        struct pith_error err;
        int32_t ids[64];
        memset(&t, 0, sizeof t);
        add_byte_alphabet(&t);
        add_token(&t, "<s>", VOCAB_USER, 0);
        add_words(&t, "the");
        key_str(&k, "tokenizer.ggml.model", "gpt2");
        if (role)
            key_u32(&k, "tokenizer.ggml.bos_token_id", 256);
        key_tokens(&k, &t);
        struct vocab *v = open_keys(&k, &err);
        REQUIRE(v, "%s", err.msg);
        int64_t n = vocab_tokenize_marked(v, text, sizeof text - 1, PITH_PARSE_SPECIAL, &values,
                                          ids, 64, NULL);
        int found = 0;
        for (int64_t i = 0; i < n && i < 64; i++)
            found += ids[i] == 256;
        CHECK_MSG(found == !role, "role %d: %d tokens of brackets in a value", role, found);
        vocab_free(v);
    }
}

int main(void)
{
    TEST(origins);
    TEST(formats);
    TEST(functions);
    TEST(language);
    TEST(templates);
    TEST(spelled);
    TEST(struck_through);
    TEST(vocabularies);
    return test_end();
}
