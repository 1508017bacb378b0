/* test_derive.c -- templates of no known family: how their models write calls is found out from
 * what they make of calls in a history. Answers in that form are read back, cut anywhere, the lazy
 * grammar holds arguments to their schemas and nothing else to anything; where nothing visible
 * marks a call the family is generic. */
#include <stdlib.h>
#include <string.h>

#include "pith.h"
#include "test.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\", \"minimum\": 1, \"maximum\": 9}}, \"required\": [\"city\", \"days\"], "
    "\"additionalProperties\": false}}}]";

#define TURNS                                                                                      \
    "{%- for m in messages %}{%- if m.role == 'assistant' %}[bot] {{ m.content }}"
#define OTHERS                                                                                     \
    "[eot]\n{%- else %}[{{ m.role }}] {{ m.content }}[eot]\n{%- endif %}{%- endfor %}"             \
    "{%- if add_generation_prompt %}[bot] {% endif %}"
#define CALLS(open, item, between, close)                                                          \
    TURNS "{%- if m.tool_calls %}" open "{%- for c in m.tool_calls %}" item                        \
    "{%- if not loop.last %}" between "{%- endif %}{%- endfor %}" close "{%- endif %}" OTHERS

/* What a model says: two calls of the same arguments, a text before them; and the begin of a call
 * whose arguments are wrong. */
static const struct {
    const char *name, *template, *two, *wrong;
} good[] = {
    {"object in a tag",
     CALLS("", "<|invoke|>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson "
               "}}<|/invoke|>", "\n", ""),
     "<|invoke|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}<|/invoke|>"
     "\n<|invoke|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}"
     "<|/invoke|>",
     "<|invoke|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 0"},
    {"list behind a marker",
     CALLS("[[CALLS]] [", "{\"name\": \"{{ c.function.name }}\", \"parameters\": "
           "{{ c.function.arguments | tojson }}}", ", ", "]"),
     "[[CALLS]] [{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3}}, "
     "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ulm\", \"days\": 3}}]",
     "[[CALLS]] [{\"name\": \"weather\", \"parameters\": {\"city\": 3"},
    {"name in a tag",
     CALLS("", "<<call:{{ c.function.name }}>>{{ c.function.arguments | tojson }}<</call>>", "\n",
           ""),
     "<<call:weather>>{\"city\": \"Ulm\", \"days\": 3}<</call>>\n"
     "<<call:weather>>{\"city\": \"Ulm\", \"days\": 3}<</call>>",
     "<<call:weather>>{\"city\": \"Ulm\", \"days\": 30"},
    {"a section of calls, with ids",
     CALLS("<use>\n", "<fn name=\"{{ c.function.name }}\" id=\"{{ c.id }}\">"
           "{{ c.function.arguments | tojson }}</fn>\n", "", "</use>"),
     "<use>\n<fn name=\"weather\" id=\"a1\">{\"city\": \"Ulm\", \"days\": 3}</fn>\n"
     "<fn name=\"weather\" id=\"a2\">{\"city\": \"Ulm\", \"days\": 3}</fn>\n</use>",
     "<use>\n<fn name=\"weather\" id=\"a1\">{\"town"},
    {"arguments as elements",
     CALLS("", "<act do=\"{{ c.function.name }}\">{%- for k, v in c.function.arguments.items() %}"
           "\n<arg key=\"{{ k }}\">{{ v }}</arg>{%- endfor %}\n</act>", "\n", ""),
     "<act do=\"weather\">\n<arg key=\"city\">Ulm</arg>\n<arg key=\"days\">3</arg>\n</act>\n"
     "<act do=\"weather\">\n<arg key=\"city\">Ulm</arg>\n<arg key=\"days\">3</arg>\n</act>",
     "<act do=\"weather\">\n<arg key=\"city\">Ulm</arg>\n<arg key=\"days\">0"},
    {"keys of its own",
     CALLS("", "#tool# {\"fn\": \"{{ c.function.name }}\", \"with\": {{ c.function.arguments | "
           "tojson }}} #end#", "\n", ""),
     "#tool# {\"fn\": \"weather\", \"with\": {\"city\": \"Ulm\", \"days\": 3}} #end#\n"
     "#tool# {\"fn\": \"weather\", \"with\": {\"city\": \"Ulm\", \"days\": 3}} #end#",
     "#tool# {\"fn\": \"weather\", \"with\": {\"city\": \"Ulm\", \"days\": \"3"},
    {"arguments that come as a text",
     CALLS("", "<|do|>{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + "
           "c.function.arguments + '}' }}<|done|>", "", ""),
     "<|do|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}<|done|>"
     "<|do|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}<|done|>",
     "<|do|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": -"},
};
enum { N_GOOD = sizeof good / sizeof *good };

static const char *const plain[] = {
    TURNS OTHERS, /* shows no calls */
    CALLS("", "I call {{ c.function.name }} with {{ c.function.arguments | tojson }}.", " ", ""),
    CALLS("", "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}", "\n",
          ""),
    CALLS("", "<x>{{ c.function.arguments | tojson }}{{ c.function.name }}</x>", "", ""),
    CALLS("", "<x n=\"{{ loop.index * 7 }}\">{{ c.function.name }} "
          "{{ c.function.arguments | tojson }}</x{{ loop.index }}>", "", ""),
    CALLS("", "<100%>{{ c.function.name }} {{ c.function.arguments | tojson }}</100%>", "", ""),
    CALLS("", "{{ raise_exception('no tools') }}", "", ""),
    CALLS("", "<x>{{ c.function.name }} {{ c.function.arguments | length }}</x>", "", ""),
};

static pith_template *open_template(const char *text)
{
    struct pith_error err;
    pith_template *t = pith_template_open(text, strlen(text), &err);
    CHECK_MSG(t, "%s: %s", text, err.msg);
    return t;
}

/* ---------------------------------------------------------------- read back */

static void read_pieces(const char *name, const pith_template *t, const char *said, size_t piece,
                        int partial)
{
    struct pith_error err;
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    size_t n = strlen(said), n_text = 0;
    p.tools = tools;
    p.partial = partial;
    pith_chat_parser *chat = pith_chat_open(t, &p, &err);
    REQUIRE(chat, "%s: %s", name, err.msg);
    CHECK(pith_chat_feed(chat, "Let me see. ", 12, &err) == PITH_OK);
    for (size_t i = 0; i < n; i += piece)
        CHECK(pith_chat_feed(chat, said + i, piece < n - i ? piece : n - i, &err) == PITH_OK);
    CHECK(pith_chat_finish(chat, &err) == PITH_OK);
    const char *text = pith_chat_text(chat, PITH_CHAT_CONTENT, &n_text);
    CHECK_MSG(n_text == 11 && !memcmp(text, "Let me see.", 11), "%s, by %zu: \"%.*s\"", name, piece,
              (int)n_text, text);
    CHECK_MSG(pith_chat_n_calls(chat) == 2, "%s, by %zu: %d calls", name, piece,
              pith_chat_n_calls(chat));
    for (int i = 0; i < 2 && pith_chat_n_calls(chat) == 2; i++) {
        const struct pith_chat_event *e = pith_chat_call(chat, i);
        CHECK_MSG(!strcmp(e->name, "weather") && strstr(e->text, "\"city\"") &&
                      strstr(e->text, "\"Ulm\"") && strstr(e->text, "3"),
                  "%s: %s(%s)", name, e->name, e->text);
    }
    pith_chat_close(chat);
}

static void test_read_back(void)
{
    for (int i = 0; i < N_GOOD; i++) {
        pith_template *t = open_template(good[i].template);
        REQUIRE(t, "no template");
        CHECK_MSG(!strcmp(pith_chat_family(t), "derived"), "%s: %s", good[i].name,
                  pith_chat_family(t));
        for (size_t piece = 1; piece < 40; piece += piece < 4 ? 1 : 7)
            read_pieces(good[i].name, t, good[i].two, piece, piece % 2);
        pith_template_close(t);
    }
}

/* A marker in prose, a call that breaks off: text, as it stands. */
static void test_not_calls(void)
{
    for (int i = 0; i < N_GOOD; i++) {
        struct pith_error err;
        char cut[600];
        snprintf(cut, sizeof cut, "Say %.12s like so.", good[i].two);
        pith_template *t = open_template(good[i].template);
        pith_chat_parser *chat = pith_chat_open(t, NULL, &err);
        size_t n = 0;
        CHECK(chat && pith_chat_feed(chat, cut, strlen(cut), &err) == PITH_OK &&
              pith_chat_finish(chat, &err) == PITH_OK);
        const char *text = pith_chat_text(chat, PITH_CHAT_CONTENT, &n);
        CHECK_MSG(pith_chat_n_calls(chat) == 0 && n == strlen(cut) && !memcmp(text, cut, n),
                  "%s: \"%.*s\"", good[i].name, (int)n, text);
        pith_chat_close(chat);
        pith_template_close(t);
    }
}

/* ---------------------------------------------------------------- held to */

static pith_grammar *open_calls(const pith_template *t, struct pith_error *err)
{
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    const char *trigger = NULL;
    p.calls_of = t;
    if (pith_chat_grammar(t, tools, &trigger, NULL, 0, err) >= 0)
        p.trigger = trigger;
    return pith_grammar_open(NULL, PITH_GRAMMAR_CALLS, tools, strlen(tools), &p, err);
}

static int accepts(const pith_grammar *g, const char *text, int whole)
{
    pith_grammar *c = pith_grammar_clone(g, NULL);
    int ok = c && pith_grammar_accept_text(c, text, strlen(text), NULL) == PITH_OK &&
             (!whole || pith_grammar_complete(c));
    pith_grammar_close(c);
    return ok;
}

static void test_held(void)
{
    for (int i = 0; i < N_GOOD; i++) {
        struct pith_error err;
        char text[800];
        pith_template *t = open_template(good[i].template);
        pith_grammar *g = t ? open_calls(t, &err) : NULL;
        REQUIRE(g, "%s: %s", good[i].name, err.msg);
        snprintf(text, sizeof text, "Let me see. %s", good[i].two);
        CHECK_MSG(accepts(g, text, 1), "%s: refuses %s", good[i].name, text);
        CHECK(accepts(g, "No call is needed: 2 < 3 and {x}.", 1));
        snprintf(text, sizeof text, "Let me see. %s", good[i].wrong);
        size_t n = strlen(text), k = n;
        CHECK_MSG(!accepts(g, text, 0), "%s: lets through %s", good[i].name, text);
        for (text[--k] = 0; k > 12 && !accepts(g, text, 0); text[--k] = 0)
            ;
        CHECK_MSG(k + 12 > n, "%s: refuses already behind \"%s\"", good[i].name, text);
        pith_grammar_close(g);
        pith_template_close(t);
    }
}

/* ---------------------------------------------------------------- nothing to derive */

static void test_plain(void)
{
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        pith_template *t = open_template(plain[i]);
        CHECK_MSG(t && !strcmp(pith_chat_family(t), "generic"), "%zu: %s", i, pith_chat_family(t));
        CHECK(!strcmp(pith_chat_family(t), "generic")); /* and it stays so */
        pith_template_close(t);
    }
    CHECK(!strcmp(pith_chat_family(NULL), "generic"));
}

/* A template that takes long is given up, not waited for. */
static void test_slow(void)
{
    pith_template *t = open_template("{% for a in range(9999) %}{% for b in range(9999) %}"
                                     "{{ a }}{% endfor %}{% endfor %}");
    struct pith_work w = PITH_WORK_INIT;
    CHECK(pith_work_begin(&w, NULL) == PITH_OK);
    CHECK(t && !strcmp(pith_chat_family(t), "generic"));
    CHECK_MSG(w.steps < 20000000, "%llu steps", (unsigned long long)w.steps);
    pith_work_end(&w);
    pith_template_close(t);
}

int main(void)
{
    TEST(test_read_back);
    TEST(test_not_calls);
    TEST(test_held);
    TEST(test_plain);
    TEST(test_slow);
    return test_end();
}
