/* test_template.c -- chat templates: recorded renderings of published templates, then what no
 * recording covers: the language case by case against values from Python's Jinja, damaged
 * templates, limits, small stacks, failed allocations, threads.
 *
 * The recorded cases are in ../shared/vectors/templates (see its README). tests/data/jinja.json
 * holds the cases of the language:
 * t the template, v its variables (s: the shared ones), r the text or x what it raises; neither: it
 * must fail. tests/data/kimi.json has the texts of recorded cases that the immutable sandbox
 * refused, because they change lists of the template's own: by jinja2 3.1.6, all else the same, in
 * its SandboxedEnvironment. */
#include <dirent.h>
#include <jansson.h>
#include <locale.h>
#include <pthread.h>

#include "robust.h"
#include "text/jinja/jinja.h"

/* ---------------------------------------------------------------- recorded cases */

/* The variables of a case: its messages, tools ... and, on top, its kwargs. */
static char *variables(const json_t *c)
{
    static const char *const names[] = {"messages",  "tools",     "add_generation_prompt",
                                        "bos_token", "eos_token", "now"};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(c, names[i]);
        if (v)
            json_object_set(o, names[i], v);
    }
    json_object_update(o, json_object_get(c, "kwargs"));
    char *text = json_dumps(o, 0);
    json_decref(o);
    return text;
}

static int first_difference(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;
    while (i < n && i < m && a[i] == b[i])
        i++;
    return (int)i;
}

/* own: texts of cases that have none, by name, NULL: none; n_own counts those met. */
static int run_case(const struct jinja *t, const char *file, const json_t *c, const json_t *own,
                    int *n_own, int show)
{
    struct pith_error err = {0};
    struct str out;
    const json_t *want = json_object_get(c, "expected"), *raised = json_object_get(c, "raised");
    if (!want && !raised) {
        want = json_object_get(own, json_string_value(json_object_get(c, "name")));
        *n_own += want != NULL;
    }
    char *vars = variables(c);
    str_init(&out, PITH_MEM_SCRATCH);
    pith_status st = jinja_render(t, vars, strlen(vars), NULL, &out, &err);
    int ok;
    if (want)
        ok = st == PITH_OK && out.n == json_string_length(want) &&
             memcmp(out.n ? out.p : "", json_string_value(want), out.n) == 0;
    else if (raised)
        ok = st == PITH_STATE && !strcmp(err.msg, json_string_value(raised));
    else
        ok = st != PITH_OK && st != PITH_STATE && err.msg[0];
    if (!ok && show) {
        const char *name = json_string_value(json_object_get(c, "name"));
        if (st != PITH_OK || !want) {
            printf("    %s, %s: status %d, %s\n", file, name, st, err.msg);
        } else {
            const char *w = json_string_value(want);
            int at = first_difference(out.p, out.n, w, strlen(w)), from = at > 40 ? at - 40 : 0;
            printf("    %s, %s: at %d found\n%.*s\n---- wanted\n%.*s\n", file, name, at, 120,
                   out.p + from, 120, w + from);
        }
    }
    free(vars);
    str_deinit(&out);
    return ok;
}

static void run_file(const char *dir, const char *file, const json_t *own, int *n_cases,
                     int *n_own, int *n_bad)
{
    char path[1024];
    size_t n, n_json;
    struct pith_error err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *text = test_read(path, &n);
    snprintf(path, sizeof path, "%.*s", (int)strlen(file) - 6, file);
    own = json_object_get(own, path);
    snprintf(path, sizeof path, "%s/%.*s.cases.json", dir, (int)strlen(file) - 6, file);
    char *json = test_read(path, &n_json);
    struct jinja *t = text ? jinja_new(text, n, &err) : NULL;
    json_t *cases = json ? json_loads(json, 0, NULL) : NULL, *c;
    size_t i;
    CHECK_MSG(t, "%s: %s", file, err.msg);
    json_array_foreach(cases, i, c)
    {
        (*n_cases)++;
        if (t)
            *n_bad += !run_case(t, file, c, own, n_own, *n_bad < 10);
    }
    json_decref(cases);
    jinja_free(t);
    free(text);
    free(json);
}

static void recorded_templates(void)
{
    char dir[512];
    int n_cases = 0, n_own = 0, n_bad = 0;
    snprintf(dir, sizeof dir, "%s/vectors/templates", test_shared());
    DIR *d = opendir(dir);
    if (!d)
        SKIP("no templates in %s", test_shared());
    json_t *own = json_load_file("tests/data/kimi.json", 0, NULL);
    CHECK_MSG(own, "tests/data/kimi.json cannot be read");
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 6 && !strcmp(e->d_name + n - 6, ".jinja"))
            run_file(dir, e->d_name, own, &n_cases, &n_own, &n_bad);
    }
    closedir(d);
    json_decref(own);
    printf("    %d cases\n", n_cases);
    CHECK_MSG(n_cases > 0 && n_bad == 0, "%d of %d cases differ", n_bad, n_cases);
    CHECK_MSG(n_own == 22, "%d of 22 cases that change lists are there", n_own);
}

/* ---------------------------------------------------------------- the language */

/* What a template gives; its status, the text or the message in *out. */
static pith_status render(const char *text, size_t n, const char *vars,
                          const struct jinja_limits *limits, struct str *out)
{
    struct pith_error err = {0};
    str_clear(out);
    struct jinja *t = jinja_new(text, n, &err);
    pith_status st = t ? jinja_render(t, vars, strlen(vars), limits, out, &err) : err.code;
    if (st != PITH_OK) {
        CHECK_MSG(err.code == st, "status %d, error %d", st, err.code);
        CHECK_MSG(out->n == 0, "a failure left text");
        str_putz(out, err.msg);
    }
    jinja_free(t);
    return st;
}

static void language(void)
{
    size_t n, i, bad = 0;
    json_t *all = NULL, *c;
    struct str out;
    char *text = test_read("tests/data/jinja.json", &n);
    if (text)
        all = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    REQUIRE(all, "tests/data/jinja.json cannot be read");
    const char *shared = json_string_value(json_object_get(all, "shared"));
    str_init(&out, PITH_MEM_SCRATCH);
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        const json_t *t = json_object_get(c, "t"), *v = json_object_get(c, "v"),
                     *r = json_object_get(c, "r");
        const char *raised = json_string_value(json_object_get(c, "x"));
        char vars[2048];
        const char *given = json_object_get(c, "s") ? shared : v ? json_string_value(v) : "{}";
        snprintf(vars, sizeof vars, "{\"now\": \"2026-11-21T09:05:07.123456\"%s%s",
                 strcmp(given, "{}") ? ", " : "", given + 1);
        pith_status st = render(json_string_value(t), json_string_length(t), vars, NULL, &out);
        int ok = r ? st == PITH_OK && out.n == json_string_length(r) &&
                         !memcmp(out.n ? out.p : "", json_string_value(r), out.n)
                 : raised ? st == PITH_STATE && !strcmp(out.p, raised)
                          : st != PITH_OK && st != PITH_STATE;
        bad += !ok;
        CHECK_MSG(ok || bad > 5, "%s: status %d, \"%s\", wanted \"%s\"", json_string_value(t), st,
                  out.p ? out.p : "", r ? json_string_value(r) : "an error");
    }
    CHECK_MSG(i > 1000 && bad == 0, "%zu of %zu cases differ", bad, i);
    str_deinit(&out);
    json_decref(all);
    free(text);
}

/* Numbers have a point whatever the program's locale says, and the locale stays as it was. */
static void other_locale(void)
{
    struct str out;
    const char *own = getenv("TEST_LOCALES"); /* run_tests.sh makes them */
    if (own)
        setenv("LOCPATH", own, 1);
    const char *was = setlocale(LC_ALL, "de_DE.UTF-8");
    if (!was)
        SKIP("no locale de_DE.UTF-8");
    str_init(&out, PITH_MEM_SCRATCH);
    const char *text =
        "{{ 1.5 + x }} {{ '%.2f' % x }} {{ '0.5' | float }} {{ '{:.1f}'.format(x) }}";
    CHECK(render(text, strlen(text), "{\"x\": 0.25}", NULL, &out) == PITH_OK);
    CHECK_MSG(!strcmp(out.p, "1.75 0.25 0.5 0.2"), "%s", out.p);
    char digits[8];
    snprintf(digits, sizeof digits, "%.1f", 0.5);
    CHECK_MSG(!strcmp(digits, "0,5"), "%s", digits);
    setlocale(LC_ALL, "C");
    str_deinit(&out);
}

#define GROWING "{% set x = [1] %}{% for i in range(999) %}{% for j in range(999) %}"
#define GROWN   "{% endfor %}{% endfor %}{{ x|length }}"
#define RING    "{% set x = [] %}{% set _ = x.append(x) %}"

/* Templates that must be refused, and words of the message. */
static const struct {
    const char *text;
    pith_status st;
    const char *says;
} wrong[] = {
    {"a\n{% if x %}b", PITH_FORMAT, "line 2, column 12"},
    {"a\n  {{ x", PITH_FORMAT, "line 2, column 3, at \"{{ x\": found no }}"},
    {"{% for x in y %}", PITH_FORMAT, "wanted else endfor"},
    {"{% frobnicate %}", PITH_FORMAT, "unknown tag \"frobnicate\""},
    {"{% include 'x' %}", PITH_UNSUPPORTED, "include is not supported"},
    {"{% import 'x' as y %}", PITH_UNSUPPORTED, "import"},
    {"{% extends 'x' %}", PITH_UNSUPPORTED, "extends"},
    {"{% block x %}{% endblock %}", PITH_UNSUPPORTED, "block"},
    {"{{ 'abc }}", PITH_FORMAT, "no end of this string"},
    {"{{ (1, }}", PITH_FORMAT, "line 1"},
    {"{{ ] }}", PITH_FORMAT, "closing bracket"},
    {"{# x", PITH_FORMAT, "no #}"},
    {"{{ 1 2 }}", PITH_FORMAT, "found \"2\""},
    {"h\xc3\xa9\n{{ \xc3\xa9.x }}", PITH_FORMAT, "'\xc3\xa9' is undefined"},
    {"{{ messages.x.y }}", PITH_FORMAT, "'None' has no attribute 'x'"},
    {"{{ 'a' + 1 }}", PITH_FORMAT, "can only concatenate str (not \"int\") to str"},
    {"{{ x|frob }}", PITH_FORMAT, "No filter named 'frob'"},
    {"{{ raise_exception('no\\nway') }}", PITH_STATE, "no?way"},
    {"{% for i in range(1000000000) %}{% endfor %}", PITH_FORMAT, "Range too big"},
    {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
     PITH_RANGE, "too m"},
    {"{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", PITH_FORMAT,
     "'ns' is undefined"},
    {"{% set ns = namespace(x='0123456789') %}{% for i in range(60) %}{% set ns.x = ns.x + "
     "ns.x %}{% endfor %}",
     PITH_RANGE, "memory"},
    {"{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", PITH_RANGE, ""},
    {"{{ 'x' * 1000000000000 }}", PITH_FORMAT, "too large"},
    {"{{ [0] * 1000000000000 }}", PITH_FORMAT, "too large"},
    {"{{ '%1000000000d' % 1 }}", PITH_FORMAT, "too large"},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", PITH_FORMAT, "deeper than 256"},
    {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", PITH_FORMAT, "too deep"},
    {"{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor "
     "%}{{ ns.x|tojson }}",
     PITH_FORMAT, "too deep"},
    {"{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}{% endfor "
     "%}{{ ns.x == ns.x[0] }}",
     PITH_FORMAT, "too deep"},
    /* lists that change: without end, and those that hold themselves */
    {GROWING "{% set _ = x.append(x|length) %}" GROWN, PITH_RANGE, "too many steps"},
    {"{% set y = 'y' * 9000 %}" GROWING "{% set _ = x.append(i ~ y) %}" GROWN,
     PITH_RANGE, "too much memory"},
    {GROWING "{% set _ = x.extend(x) %}" GROWN, PITH_RANGE, ""},
    {GROWING "{% set _ = x.insert(0, 1) %}" GROWN, PITH_RANGE, "too many steps"},
    {GROWING "{% set _ = x.append(x.pop()) %}" GROWN, PITH_RANGE, "too many steps"},
    {GROWING "{% set _ = x.reverse() %}" GROWN, PITH_RANGE, "too many steps"},
    {"{% set x = [1] %}{% for y in x %}{% set _ = x.append(y) %}{% endfor %}{{ x[2] + 1 }}",
     PITH_FORMAT, "has no element 2"},
    {RING "{{ x }}", PITH_FORMAT, "too deep to print"},
    {RING "{{ x|string }}", PITH_FORMAT, "too deep to print"},
    {RING "{{ '%s' % (x,) }}", PITH_FORMAT, "too deep to print"},
    {RING "{{ x|tojson }}", PITH_FORMAT, "too deep to write"},
    {RING "{{ x|tojson(indent=2) }}", PITH_FORMAT, "too deep to write"},
    {RING "{{ x|join(',') }}", PITH_FORMAT, "too deep to print"},
    {RING "{{ x|pprint }}", PITH_FORMAT, "too deep"},
    {RING "{{ x == x[:] }}", PITH_FORMAT, "too deep to compare"},
    {RING "{{ [x, x[:]]|sort }}", PITH_FORMAT, "too deep to compare"},
    {RING "{{ [x, x[:]]|unique|list }}", PITH_FORMAT, "unhashable"},
    {RING "{{ {x: 1} }}", PITH_FORMAT, "unhashable"},
    {"{% set ns = namespace(t=(1, 1)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
     "{% endfor %}{{ {ns.t: 1} }}",
     PITH_RANGE, "too many steps"},
    {RING "{% set _ = x.remove(5) %}{{ x.count(x[:]) }}", PITH_FORMAT, "not in list"},
    {RING "{{ x.count(x[:]) }}", PITH_FORMAT, "too deep to compare"},
    {"{% set x = [] %}{% set y = [x] %}{% set _ = x.extend([y, y, y]) %}{{ y }}", PITH_FORMAT,
     "too deep to print"},
    {"{% set x = [] %}{% set d = {'x': x} %}{% set _ = x.append(d) %}{{ d|tojson }}",
     PITH_FORMAT, "too deep to write"},
    {RING "{% for y in x recursive %}{{ loop(y) }}{% endfor %}", PITH_FORMAT,
     "deeper than 256"},
    {"{{ x.sort() }}", PITH_FORMAT, "'x' is undefined"},
    {"{% set x = [2, 1] %}{{ x.sort() }}", PITH_FORMAT, "'sort' of 'list' object is unsafe"},
    {"{% set x = {} %}{{ x.update({}) }}", PITH_FORMAT, "'update' of 'dict' object is unsafe"},
};

static void messages(void)
{
    static const struct jinja_limits limits = {200000, 32 << 20, 1 << 20};
    static const char of_request[] = "{% set _ = l.append(1) %}";
    struct str out;
    str_init(&out, PITH_MEM_SCRATCH);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pith_status st = render(wrong[i].text, strlen(wrong[i].text), "{}", &limits, &out);
        CHECK_MSG(st == wrong[i].st && strstr(out.p ? out.p : "", wrong[i].says),
                  "%s: status %d, %s", wrong[i].text, st, out.p ? out.p : "");
    }
    CHECK(render(of_request, strlen(of_request), "{\"l\": []}", NULL, &out) == PITH_FORMAT);
    CHECK_MSG(strstr(out.p, "'append' would change a list of the request"), "%s", out.p);
    CHECK(render("\xff", 1, "{}", NULL, &out) == PITH_FORMAT);
    CHECK(render("x", 1, "[]", NULL, &out) == PITH_FORMAT);
    CHECK(render("x", 1, "", NULL, &out) == PITH_FORMAT);
    CHECK(render("x", 1, "{\"a\": \"\xff\"}", NULL, &out) == PITH_FORMAT);
    CHECK(render("", 0, "{}", NULL, &out) == PITH_OK && out.n == 0);
    str_deinit(&out);
}

/* ---------------------------------------------------------------- nesting, on a stack of 64 KiB */

static void repeat(struct str *s, const char *what, int n)
{
    for (int i = 0; i < n; i++)
        str_putz(s, what);
}

static const char shows[] = "{{ x }}{{ x|tojson(indent=1) }}{{ x == x }}{{ x|string|length }}";
static const char calls[] =
    "{% macro m(n) %}{% if n %}{{ m(n - 1)|upper }}{% endif %}{% endmacro %}{{ m(200) }}";

static void *nest(void *unused)
{
    static const char *const pairs[][3] = {
        {"{{ ", "(", ")"},
        {"{{ ", "[", "]"},
        {"{{ ", "-", ""},
        {"{{ ", "not ", ""},
        {"{{ ", "{1:", "}"},
        {"{{ ", "x[", "]"},
        {"{{ ", "x(", ")"},
        {"{{ ", "x|default(", ")"},
        {"{{ ", "1 if ", " else 2"},
        {"", "{% if 1 %}", "{% endif %}"},
        {"", "{% for x in [1] %}", "{% endfor %}"},
        {"", "{% macro m() %}", "{% endmacro %}"},
        {"", "{% call m() %}", "{% endcall %}"},
        {"", "{% filter upper %}", "{% endfilter %}"},
        {"", "{% set x %}", "{% endset %}"},
        {"", "{% with a = 1 %}", "{% endwith %}"},
        {"{% set ", "(", ")"},
        {"{{ ", "1 < ", ""},
        {"{{ ", "1 + ", ""},
        {"{{ ", "1 and ", ""},
    };
    static const int depths[] = {5, 20, 30, 60, 64, 65, 100, 5000};
    struct str s, out;
    str_init(&s, PITH_MEM_SCRATCH);
    str_init(&out, PITH_MEM_SCRATCH);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        for (size_t k = 0; k < sizeof depths / sizeof *depths; k++) {
            str_clear(&s);
            str_putz(&s, pairs[i][0]);
            repeat(&s, pairs[i][1], depths[k]);
            str_putz(&s, "1");
            repeat(&s, pairs[i][2], depths[k]);
            str_putz(&s, i == 16 ? " = 1 %}" : *pairs[i][0] ? " }}" : "");
            render(s.p, s.n, "{}", NULL, &out);
        }
    }
    for (size_t k = 0; k < sizeof depths / sizeof *depths; k++) { /* and of the variables */
        str_clear(&s);
        str_putz(&s, "{\"x\": ");
        repeat(&s, "[{\"a\": ", depths[k]);
        str_putz(&s, "1");
        repeat(&s, "}]", depths[k]);
        str_putz(&s, "}");
        pith_status st = render(shows, sizeof shows - 1, s.p, NULL, &out);
        CHECK(st == (depths[k] <= 30 ? PITH_OK : PITH_FORMAT) || depths[k] < 65);
    }
    render(calls, sizeof calls - 1, "{}", NULL, &out);
    str_deinit(&s);
    str_deinit(&out);
    return unused;
}

static void small_stack(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, UNDER_SANITIZER ? 1 << 20 : 65536);
    REQUIRE(pthread_create(&thread, &attr, nest, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

/* ---------------------------------------------------------------- sharing, damage, memory */

static const char chat[] = "{%- macro tool(t, pad=2) -%}{{ t.name }}: {{ "
                           "t.parameters|tojson(indent=pad) }}{%- endmacro -%}\n"
                           "{{- bos_token }}{% for m in messages if m.role != 'x' %}<{{ m['role'] "
                           "}}>{{ m.content|trim }}\n"
                           "{% if loop.last %}{% for t in tools|sort(attribute='name') %}{{ "
                           "tool(t) }}{% endfor %}{% endif %}\n"
                           "{% endfor %}{% set x %}{{ '%05.1f' % 3.14159 }}{% endset %}{{ x ~ "
                           "dict(a=1, b=[1, 2])|string }}";
static const char chat_vars[] =
    "{\"bos_token\": \"<s>\", \"messages\": [{\"role\": \"user\", \"content\": \" h\\u00e9 "
    "\\ud83d\\ude00\"}, {\"role\": \"x\"}, {\"role\": "
    "\"assistant\", \"content\": \"ok\"}], \"tools\": [{\"name\": \"b\", \"parameters\": {\"x\": "
    "[1, 2.5, null]}}, {\"name\": \"a\", "
    "\"parameters\": {}}]}";

static void *render_often(void *t)
{
    struct str first, out;
    int64_t bad = 0;
    str_init(&first, PITH_MEM_SCRATCH);
    str_init(&out, PITH_MEM_SCRATCH);
    jinja_render(t, chat_vars, sizeof chat_vars - 1, NULL, &first, NULL);
    for (int i = 0; i < 50; i++) {
        str_clear(&out);
        bad += jinja_render(t, chat_vars, sizeof chat_vars - 1, NULL, &out, NULL) != PITH_OK ||
               out.n != first.n || memcmp(out.p, first.p, out.n) != 0;
    }
    str_deinit(&first);
    str_deinit(&out);
    return (void *)(intptr_t)bad;
}

static void shared_by_threads(void)
{
    pthread_t threads[4];
    struct jinja *t = jinja_new(chat, sizeof chat - 1, NULL);
    REQUIRE(t, "the chat template does not compile");
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, render_often, t);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        CHECK(bad == NULL);
    }
    jinja_free(t);
}

/* Every prefix, and every byte changed: anything but a crash. */
static void damaged(void)
{
    static const char bytes[] = "{}%#\"'\\()[].|-\n\x80";
    struct jinja_limits limits = {20000, 1 << 20, 1 << 16};
    struct str out;
    char text[sizeof chat];
    str_init(&out, PITH_MEM_SCRATCH);
    for (size_t n = 0; n < sizeof chat; n++)
        render(chat, n, chat_vars, &limits, &out);
    for (size_t i = 0; i < sizeof chat - 1; i++) {
        for (size_t k = 0; k < sizeof bytes - 1; k++) {
            memcpy(text, chat, sizeof chat);
            text[i] = bytes[k];
            render(text, sizeof chat - 1, chat_vars, &limits, &out);
        }
    }
    for (size_t n = 0; n < sizeof chat_vars - 1; n++) {
        char vars[sizeof chat_vars];
        memcpy(vars, chat_vars, sizeof vars);
        vars[n] = 0;
        CHECK_MSG(render("x", 1, vars, NULL, &out) == PITH_FORMAT, "cut at %zu", n);
    }
    str_deinit(&out);
}

/* The n-th allocation fails, for every n: PITH_NOMEM, nothing held, and the next rendering is as
 * ever. */
static void refused_memory(void)
{
    struct str out, want;
    str_init(&out, PITH_MEM_SCRATCH);
    str_init(&want, PITH_MEM_SCRATCH);
    CHECK(render(chat, sizeof chat - 1, chat_vars, NULL, &want) == PITH_OK);
    str_reserve(&out, want.n + 4096);
    long before = atomic_load(&hook.blocks);
    for (long n = 0; n < 1000; n++) {
        hook_refuse(n, 0);
        pith_status st = render(chat, sizeof chat - 1, chat_vars, NULL, &out);
        long refused = hook_grant();
        CHECK_MSG(atomic_load(&hook.blocks) == before, "refusal %ld: %ld blocks held", n,
                  atomic_load(&hook.blocks) - before);
        if (!refused) {
            CHECK(st == PITH_OK && out.n == want.n && !memcmp(out.p, want.p, out.n));
            CHECK_MSG(n > 5, "only %ld allocations", n);
            break;
        }
        CHECK_MSG(st == PITH_NOMEM, "refusal %ld: status %d", n, st);
    }
    str_deinit(&out);
    str_deinit(&want);
}

/* What a template's n parts of one kind cost when it is compiled: memory and time as n, not as its
 * square. */
static void long_ones(void)
{
    static const struct {
        const char *what, *begin, *part, *end; /* %06ld of a part: its number */
    } kinds[] = {{"literals side by side", "{{ ", "\"ab\"", " }}"},
                 {"names", "", "{{ n%06ld }}", ""},
                 {"names of a list", "{{ [", "n%06ld,", "0] }}"},
                 {"variables", "", "{%% set n%06ld = 1 %%}", ""},
                 {"attributes", "{{ a", ".n%06ld", " }}"},
                 {"arguments", "{{ f(", "n%06ld=1,", "a=1) }}"},
                 {"parameters", "{%% macro f(", "n%06ld,", "a) %%}{%% endmacro %%}"},
                 {"macros", "", "{%% macro n%06ld() %%}{%% endmacro %%}", ""},
                 {"branches", "{%% if a %%}", "{%% elif n%06ld %%}", "{%% endif %%}"},
                 {"choices", "{{ ", "a if b else ", "c }}"},
                 {"sums", "{{ 1", " + n%06ld", " }}"},
                 {"filters", "{{ a", "|trim", " }}"},
                 {"comments", "", "{#n%06ld#}", ""}};
    const size_t most = JINJA_SOURCE_MOST;
    char *text = malloc(most + 64);
    struct pith_error err;
    REQUIRE(text, "out of memory");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t n = (size_t)sprintf(text, kinds[k].begin, 0L);
        for (long i = 0; n + 100 < most; i++)
            n += (size_t)sprintf(text + n, kinds[k].part, i);
        n += (size_t)sprintf(text + n, kinds[k].end, 0L);
        uint64_t bytes = atomic_load(&hook.asked_bytes);
        double cpu = test_cpu_seconds();
        struct jinja *t = jinja_new(text, n, &err);
        cpu = test_cpu_seconds() - cpu;
        bytes = atomic_load(&hook.asked_bytes) - bytes;
        if (getenv("TEST_VERBOSE"))
            printf("  %-22s %.3f s, %.0f bytes a byte%s%s\n", kinds[k].what, cpu,
                   (double)bytes / (double)n, t ? "" : ": ", t ? "" : err.msg);
        CHECK_MSG(t || err.code == PITH_UNSUPPORTED, "%s: %s", kinds[k].what, err.msg);
        CHECK_MSG(bytes < 200 * (uint64_t)n, "%s: %" PRIu64 " bytes asked for", kinds[k].what,
                  bytes);
        CHECK_MSG(cpu < 4, "%s: %.1f s", kinds[k].what, cpu);
        jinja_free(t);
    }
    memset(text, ' ', most + 1);
    struct jinja *t = jinja_new(text, most, &err), *over = jinja_new(text, most + 1, NULL);
    CHECK(t && !over);
    jinja_free(t);
    CHECK(!jinja_new(text, most + 1, &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "1048577 bytes, wanted at most 1048576"));
    free(text);
}

/* ---------------------------------------------------------------- pith.h */

static void public_api(void)
{
    static const char text[] = "{{ bos_token }}{% if not messages %}{{ raise_exception('no "
                               "messages') }}{% endif %}{{ messages[0].content }}";
    static const char vars[] = "{\"messages\": [{\"content\": \"hello\"}], \"bos_token\": \"<s>\"}";
    struct pith_error err;
    char buf[16] = "...............";
    pith_template *t = pith_template_open(text, sizeof text - 1, &err);
    REQUIRE(t, "%s", err.msg);
    CHECK(pith_template_render(t, vars, sizeof vars - 1, NULL, 0, &err) == 8);
    CHECK(pith_template_render(t, vars, sizeof vars - 1, buf, 4, &err) == 8 &&
          !memcmp(buf, "<s>h....", 8));
    CHECK(pith_template_render(t, vars, sizeof vars - 1, buf, sizeof buf, NULL) == 8 &&
          !memcmp(buf, "<s>hello", 8));
    CHECK(pith_template_render(t, "{}", 2, buf, sizeof buf, &err) == -1 && err.code == PITH_STATE &&
          !strcmp(err.msg, "no messages"));
    CHECK(pith_template_render(NULL, "{}", 2, buf, sizeof buf, &err) == -1 &&
          err.code == PITH_RANGE);
    CHECK(pith_template_open("{{", 2, &err) == NULL && err.code == PITH_FORMAT);
    CHECK(pith_template_open(NULL, 2, NULL) == NULL);
    CHECK(pith_model_template(NULL, NULL, &err) == NULL && err.code == PITH_RANGE);
    pith_template_close(t);
    pith_template_close(NULL);
}

/* Prompts: text and values, the ids of both, and what is wrong with a call. */
static void prompts(void)
{
    static const struct tiny tiny = {"llama", "f32", 32, 2, 16, 32, 300, 0, 0, 1, 1};
    static const char *const overrides[] = {
        "tokenizer.chat_template=str:{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        NULL};
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    char vars[200], eos[64] = "";
    int32_t ids[64], plain[64];
    params.vocab_only = 1;
    params.overrides = overrides;
    const char *path = tiny_write(&tiny, 1);
    pith_model *m = path ? pith_model_open(path, &params, &err) : NULL;
    REQUIRE(m, "no model");
    int32_t bos_id = pith_token_bos(m), eos_id = pith_token_eos(m);
    pith_detokenize(m, &eos_id, 1, PITH_RENDER_SPECIAL, eos, sizeof eos - 1, NULL);
    snprintf(vars, sizeof vars, "{\"messages\": [{\"content\": \"x%sy\"}]}", eos);
    pith_prompt *p = pith_prompt_open(pith_model_template(m, NULL, &err), vars, strlen(vars), &err);
    REQUIRE(p, "%s", err.msg);
    int64_t n = pith_prompt_tokenize(p, m, 0, ids, 64, &err);
    size_t n_text, n_values, ends = 0;
    const char *text = pith_prompt_text(p, &n_text);
    for (int64_t i = 0; i < n; i++)
        ends += ids[i] == eos_id;
    CHECK_MSG(n > 3 && n <= 64 && ids[0] == bos_id && ids[n - 1] == eos_id && ends == 1,
              "%lld ids, %zu ends", (long long)n, ends);
    CHECK(pith_prompt_tokenize(p, m, 0, NULL, 0, &err) == n &&
          pith_prompt_tokenize(p, m, 0, plain, 2, &err) == n);
    int64_t n_plain = pith_tokenize(m, text, n_text, PITH_PARSE_SPECIAL, plain, 64, &err);
    for (int64_t i = 0; i < n_plain && i < 64; i++)
        ends += plain[i] == eos_id;
    CHECK_MSG(ends == 3, "%zu ends: text alone has lost it", ends);
    const struct pith_span *values = pith_prompt_values(p, &n_values);
    CHECK(n_values == 1 && values[0].to - values[0].from == strlen(eos) + 2 &&
          text[values[0].from] == 'x' && text[values[0].to - 1] == 'y');
    CHECK(pith_prompt_put(p, PITH_FROM_VALUE, eos, strlen(eos), &err) == PITH_OK &&
          pith_prompt_put(p, PITH_FROM_TEMPLATE, eos, strlen(eos), &err) == PITH_OK);
    pith_prompt_values(p, &n_values);
    int64_t more = pith_prompt_tokenize(p, m, 0, ids, 64, &err);
    CHECK(n_values == 2 && more > n + 1 && more <= 64 && ids[n - 1] == eos_id && ids[n] != eos_id &&
          ids[more - 1] == eos_id);
    pith_prompt_close(p);
    p = pith_prompt_open(NULL, NULL, 0, &err);
    CHECK(p && pith_prompt_tokenize(p, m, PITH_ADD_SPECIAL, ids, 64, &err) == 1 &&
          ids[0] == bos_id && !*pith_prompt_text(p, NULL));
    CHECK(pith_prompt_put(p, PITH_FROM_VALUE, NULL, 1, &err) == PITH_RANGE &&
          pith_prompt_put(NULL, PITH_FROM_VALUE, "a", 1, &err) == PITH_RANGE);
    CHECK(pith_prompt_put(p, (pith_origin)2, "a", 1, &err) == PITH_RANGE && err.msg[0]);
    CHECK(pith_prompt_tokenize(p, NULL, 0, ids, 64, &err) == -1 &&
          pith_prompt_tokenize(NULL, m, 0, ids, 64, &err) == -1 && err.code == PITH_RANGE);
    CHECK(pith_prompt_tokenize(p, m, 0, NULL, 1, &err) == -1 &&
          !pith_prompt_open(NULL, NULL, 1, &err) && err.code == PITH_RANGE);
    CHECK(!pith_prompt_open(pith_model_template(m, NULL, &err), "[]", 2, &err) &&
          err.code == PITH_FORMAT);
    pith_prompt_close(p);
    pith_prompt_close(NULL);
    pith_model_close(m);
}

/* A model's templates: the one without a name, named ones, one that is no template. */
static void of_a_model(void)
{
    static const struct tiny tiny = {"llama", "f32", 32, 2, 16, 32, 300, 0, 0, 1, 1};
    static const char *const overrides[] = {
        "tokenizer.chat_template=str:{{ bos_token }}[{{ messages|length }}]",
        "tokenizer.chat_template.tool_use=str:T{{ eos_token }}",
        "tokenizer.chat_template.bad=str:{% if %}", NULL};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    char buf[64] = "", bos[64] = "";
    p.vocab_only = 1;
    p.overrides = overrides;
    const char *path = tiny_write(&tiny, 1);
    pith_model *m = path ? pith_model_open(path, &p, &err) : NULL;
    REQUIRE(m, "no model");
    int32_t id = pith_token_bos(m);
    pith_detokenize(m, &id, 1, PITH_RENDER_SPECIAL, bos, sizeof bos, NULL);
    snprintf(bos + strlen(bos), 8, "[2]");
    const pith_template *t = pith_model_template(m, NULL, &err);
    REQUIRE(t, "%s", err.msg);
    int64_t n = pith_template_render(t, "{\"messages\": [1, 2]}", 20, buf, sizeof buf, &err);
    CHECK_MSG(n == (int64_t)strlen(bos) && !memcmp(buf, bos, (size_t)n),
              "found \"%s\", wanted \"%s\"", buf, bos);
    CHECK(pith_template_render(t, "{\"messages\": [], \"bos_token\": \"B\"}", 34, buf, sizeof buf,
                               &err) == 4 &&
          !memcmp(buf, "B[0]", 4));
    t = pith_model_template(m, "tool_use", &err);
    CHECK(t && pith_template_render(t, "{}", 2, buf, sizeof buf, &err) > 1 && buf[0] == 'T');
    CHECK(!pith_model_template(m, "bad", &err) && err.code == PITH_FORMAT &&
          strstr(err.msg, "line 1"));
    CHECK(!pith_model_template(m, "none", &err) && err.code == PITH_MISSING);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && info.note &&
          strstr(info.note, "chat template"));
    pith_model_close(m);
}

/* More templates than files have, and longer ones: those that are not taken are told. */
static void too_many(void)
{
    static const struct tiny tiny = {"llama", "f32", 32, 2, 16, 32, 300, 0, 0, 1, 1};
    enum { N = 70, LONG = 700000 };
    static char text[N][64], longer[2][LONG];
    const char *overrides[N + 3] = {longer[0], longer[1]};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    for (int i = 0; i < 2; i++) {
        memset(longer[i], ' ', LONG - 1);
        memcpy(longer[i], i ? "tokenizer.chat_template.b=str:" : "tokenizer.chat_template.a=str:",
               30);
    }
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "tokenizer.chat_template.t%d=str:x", i);
        overrides[2 + i] = text[i];
    }
    p.vocab_only = 1;
    p.overrides = overrides;
    const char *path = tiny_write(&tiny, 1);
    pith_model *m = path ? pith_model_open(path, &p, &err) : NULL;
    REQUIRE(m, "no model");
    CHECK(pith_model_template(m, "a", &err) && pith_model_template(m, "t61", &err));
    CHECK(!pith_model_template(m, "b", &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "699969 bytes, with those before it over 1048576"));
    CHECK(!pith_model_template(m, "t62", &err) && err.code == PITH_MISSING);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && info.note &&
          strstr(info.note, "72 chat templates, of which the first 64 are taken"));
    pith_model_close(m);
    unlink(path);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(recorded_templates);
    TEST(language);
    TEST(messages);
    TEST(other_locale);
    TEST(small_stack);
    TEST(shared_by_threads);
    TEST(damaged);
    TEST(refused_memory);
    TEST(long_ones);
    TEST(public_api);
    TEST(prompts);
    TEST(of_a_model);
    TEST(too_many);
    return test_end();
}
