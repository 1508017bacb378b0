/* test_native_calls.c -- calls in the forms that families write themselves. Whatever the rules of a
 * family let through is read back as a call of a known tool whose arguments satisfy its schema:
 * each family's rules are walked at random, the texts are parsed, the arguments held against the
 * schema. What goes wrong is refused where it goes wrong, tokens without text stand for theirs, and
 * schemas that a form cannot keep are refused by name. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "pith.h"
#include "test.h"
#include "text/chat/chat_parse.h"
#include "text/grammar/calls.h"
#include "text/grammar/grammar.h"
#include "vocab_image.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\", \"minimum\": 1, \"maximum\": 14}, \"unit\": {\"$ref\": \"#/$defs/Unit\"}, "
    "\"at\": {\"type\": [\"string\", \"null\"], \"maxLength\": 6}, \"id\": {\"type\": \"string\", "
    "\"pattern\": \"^[a-z]{2}[0-9]{1,3}$\"}, \"near\": {\"type\": \"array\", \"items\": {\"type\": "
    "\"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"ok\": {\"type\": "
    "\"boolean\"}}, \"required\": [\"name\"], \"additionalProperties\": false}, \"maxItems\": 2}}, "
    "\"required\": [\"city\", \"days\"], \"$defs\": {\"Unit\": {\"enum\": [\"celsius\", "
    "\"kelvin\"]}}}}}, {\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {}}}}, {\"name\": \"set\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"on\": {\"type\": \"boolean\"}, \"level\": {\"type\": "
    "\"number\"}, \"tag\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\", \"items\": "
    "{\"type\": \"integer\"}}]}, \"price\": {\"anyOf\": [{\"type\": \"integer\", \"maximum\": 9}, "
    "{\"type\": \"string\", \"pattern\": \"^(?!^[-+.]*$)[+-]?[0-9]*\\\\.?[0-9]*$\"}]}, \"mail\": "
    "{\"anyOf\": [{\"type\": \"string\", \"format\": \"email\", \"pattern\": \"^(?!b)[a-z@.]*$\"}, "
    "{\"type\": \"null\"}]}}, \"required\": [\"on\"]}}]";

static const char *const families[] = {
    "harmony",    "atem",       "kimi-k3", "kimi-k2",     "deepseek-v3.2", "deepseek", "lfm2",
    "apertus",    "gigachat-3", "solar",   "minicpm5",    "hunyuan-3",     "hunyuan",  "seed",
    "minimax-m3", "minimax-m2", "glm",     "qwen3-coder", "functionary",   "gemma-4"};
enum { N_FAMILIES = sizeof families / sizeof *families };

static struct pith_grammar *open_calls(const char *family, const char *text, int only,
                                       struct pith_error *err)
{
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                .text = slice_of(text),
                                .format = chat_format_named(family),
                                .trigger_token = -1,
                                .calls_only = only};
    return grammar_new(&spec, err);
}

/* A text that a grammar allows: bytes that end things come sooner than others. */
static size_t walk(struct pith_grammar *g, uint64_t seed, char *text, size_t cap)
{
    static const char likely[] = "<>|]})\"\n/\\,:=";
    size_t n = 0;
    grammar_reset(g);
    for (uint64_t step = 0; n < cap; step++) {
        uint8_t may[256];
        int n_may = 0, n_ends = 0;
        uint8_t ends[16];
        if (grammar_may_end(g) && (grammar_must_end(g) || rng_uniform(seed, step, 0) < 0.5))
            return n;
        for (int b = 1; b < 256; b++) {
            char c = (char)b;
            if (b >= 0x80 && b < 0xC0 && n && !((uint8_t)text[n - 1] & 0x80))
                continue;
            struct pith_grammar *next = grammar_clone(g, NULL);
            if (next && grammar_accept_text(next, (struct slice){&c, 1}, NULL) == PITH_OK) {
                may[n_may++] = (uint8_t)b;
                if (strchr(likely, c))
                    ends[n_ends++] = (uint8_t)b;
            }
            grammar_free(next);
        }
        if (!n_may)
            return 0;
        if (strchr(" \t\r\n", text[n ? n - 1 : 0]) && n) /* of white space little */
            for (int i = n_may - 1; i >= 0 && n_may > 1; i--)
                if (strchr(" \t\r\n", may[i]))
                    may[i] = may[--n_may];
        int soon = n_ends && rng_uniform(seed, step, 1) < (n > cap / 3 ? 0.95 : 0.4);
        double u = rng_uniform(seed, step, 2);
        text[n] = (char)(soon ? ends[(int)(u * n_ends)] : may[(int)(u * n_may)]);
        grammar_accept_text(g, (struct slice){text + n, 1}, NULL);
        n++;
    }
    return grammar_may_end(g) ? n : 0;
}

/* Whether a call's arguments satisfy its tool's schema. */
static int satisfies(const json_t *list, const struct pith_chat_event *call)
{
    size_t i;
    json_t *tool;
    json_array_foreach(list, i, tool)
    {
        json_t *fn = json_object_get(tool, "function");
        fn = fn ? fn : tool;
        if (strcmp(json_string_value(json_object_get(fn, "name")), call->name))
            continue;
        char *schema = json_dumps(json_object_get(fn, "parameters"), 0);
        struct grammar_spec spec = {
            .kind = PITH_GRAMMAR_SCHEMA, .text = slice_of(schema), .trigger_token = -1};
        struct pith_error err;
        struct pith_grammar *g = grammar_new(&spec, &err);
        int ok = g &&
                 grammar_accept_text(g, (struct slice){call->text, call->n_bytes}, NULL) == 0 &&
                 grammar_may_end(g);
        grammar_free(g);
        free(schema);
        return ok;
    }
    return 0;
}

/* Calls of a text of a family, all of them good; -1: they are not. */
static int good_calls(const char *family, const json_t *list, const char *text, size_t n)
{
    struct chat_parse_spec spec = {.format = chat_format_named(family), .tools = slice_of(tools)};
    struct pith_chat_parser *p = chat_parse_new(&spec, NULL);
    int n_calls = -1;
    if (p && chat_parse_feed(p, (struct slice){text, n}, NULL) == PITH_OK &&
        chat_parse_finish(p, NULL) == PITH_OK) {
        n_calls = chat_parse_n_calls(p);
        for (int i = 0; i < n_calls; i++) {
            if (!satisfies(list, chat_parse_call(p, i))) {
                printf("    arguments %s of %s\n", chat_parse_call(p, i)->text,
                       chat_parse_call(p, i)->name);
                n_calls = -2;
            }
        }
        if (chat_parse_said(p, PITH_CHAT_CONTENT).n)
            n_calls = -3;
    }
    chat_parse_free(p);
    return n_calls;
}

static void what_is_written_is_read(void)
{
    enum { MOST = 900 };
    static char text[MOST + 64];
    json_t *list = json_loads(tools, 0, NULL);
    int n_whole = 0;
    for (int f = 0; f < N_FAMILIES; f++) {
        struct pith_error err = {0};
        struct pith_grammar *g = open_calls(families[f], tools, 1, &err);
        size_t n_begin = 0;
        const char *begin = calls_opening(chat_format_named(families[f]), &n_begin);
        CHECK_MSG(g && begin, "%s: %s", families[f], err.msg);
        if (!g || !begin)
            continue;
        memcpy(text, begin, n_begin);
        int whole = 0, seeds = test_scale() < 10 ? 1 : 3 * (int)test_scale();
        for (uint64_t seed = 1; seed <= (unsigned)seeds; seed++) {
            size_t n = walk(g, seed * 977 + (uint64_t)f, text + n_begin, MOST);
            if (!n)
                continue;
            text[n_begin + n] = 0;
            int calls = good_calls(families[f], list, text, n_begin + n);
            CHECK_MSG(calls > 0, "%s: %d calls in %.*s", families[f], calls, (int)(n_begin + n),
                      text);
            whole++;
        }
        n_whole += whole;
        grammar_free(g);
    }
    json_decref(list);
    CHECK_MSG(n_whole > (test_scale() < 10 ? N_FAMILIES / 3 : N_FAMILIES), "only %d texts ended",
              n_whole);
}

/* What an answer may be: 0 it may not go so, 1 it may not end there, 2 it may. */
static int answers(struct pith_grammar *g, const char *text)
{
    grammar_reset(g);
    return grammar_accept_text(g, slice_of(text), NULL) == PITH_OK ? 1 + grammar_may_end(g) : 0;
}

static const struct {
    const char *family, *text;
    int may;
} answer_rows[] = {
    {"qwen3-coder",
     "Let me see. <tool_call>\n<function=get_weather>\n<parameter=city>\nOslo "
     "<b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call> ok",
     2},
    {"qwen3-coder",
     "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</"
     "parameter>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
     2},
    {"qwen3-coder", "<function=now>\n</function>\n</tool_call>", 2},
    {"qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\nx", 0},
    {"qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n15\n", 0},
    {"qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=day>", 0},
    {"qwen3-coder", "<tool_call>\n<function=other>", 0},
    {"qwen3-coder",
     "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>", 0},
    {"qwen3-coder", "<think>I <function=x> would</think><function=now>", 1},
    {"qwen3-coder", "<think>I <function=x> would", 2},
    {"qwen3-coder", "a < b and <tool", 2},
    {"glm",
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</"
     "arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
     2},
    {"glm", "<tool_call>get_weather\n<arg_key>unit</arg_key>\n<arg_value>kelvin</arg_value>", 1},
    {"glm", "<tool_call>get_weather\n<arg_key>unit</arg_key>\n<arg_value>kg", 0},
    {"glm", "<tool_call>get_weather\n<arg_key>at</arg_key>\n<arg_value>null</arg_value>", 1},
    {"glm", "<tool_call>get_weather\n<arg_key>at</arg_key>\n<arg_value>1234567", 0},
    {"glm", "<tool_call>set\n<arg_key>tag</arg_key>\n<arg_value>[1,2]</arg_value>", 1},
    {"glm", "<tool_call>set\n<arg_key>tag</arg_key>\n<arg_value>[1,\"", 0},
    {"kimi-k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|"
     ">{}<|tool_call_end|><|tool_calls_section_end|>",
     2},
    {"kimi-k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>[", 0},
    {"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<"
     "｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     2},
    {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>set<｜tool▁sep｜>{\"on\": tr", 1},
    {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>set<｜tool▁sep｜>{\"on\": 1", 0},
    {"deepseek-v3.2",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"set\">\n<｜DSML｜parameter name=\"on\" "
     "string=\"false\">true</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     2},
    {"deepseek-v3.2",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"set\">\n<｜DSML｜parameter name=\"on\" "
     "string=\"t",
     0},
    {"harmony",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.set <|constrain|>json<|message|>{\"on\":true}<|call|>",
     2},
    {"harmony", "<|channel|>commentary to=functions.other", 0},
    {"harmony", "<|channel|>commentary<|message|>I will look.<|end|>", 2},
    {"harmony", "<|channel|>final<|message|>Hello", 2},
    {"functionary", ">>>all\nHello", 2},
    {"functionary", ">>>set\n{\"on\":true}", 2},
    {"functionary", ">>>set\nHello", 0},
    {"gigachat-3",
     "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}", 2},
    {"gigachat-3", "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"new", 0},
    {"gigachat-3", "It is so.<|message_sep|>\n\n", 2},
    {"lfm2",
     "<|tool_call_start|>[get_weather(city=\"Oslo\", days=3, at=None), "
     "set(on=True)]<|tool_call_end|>Well",
     2},
    {"lfm2", "<|tool_call_start|>[get_weather(days=3)", 0},
    {"lfm2", "<|tool_call_start|>[set(on=1", 0},
    {"gemma-4",
     "<|tool_call>call:get_weather{city:<|\"|>Oslo \"<b>\" "
     "{<|\"|>,days:3,near:[{name:<|\"|>x<|\"|>,ok:true}]}<tool_call|>",
     2},
    {"gemma-4", "<|tool_call>call:get_weather{city:\"", 0},
    {"gemma-4", "<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}", 0},
    {"gemma-4", "<|channel>thought\n<|tool_call>x<channel|>Hello", 2},
    {"atem", "<|start|>assistant to=self<|message|>Hm <atem:function_calls>", 2},
    {"atem", "<|start|>assistant to=user<|message|>Hello", 2},
    {"atem", "<atem:function_calls><atem:invoke name=\"nix", 0},
};

static void answers_hold_calls(void)
{
    const char *open = "";
    struct pith_grammar *g = NULL;
    struct pith_error err = {0};
    for (size_t i = 0; i < sizeof answer_rows / sizeof *answer_rows; i++) {
        if (strcmp(open, answer_rows[i].family)) {
            grammar_free(g);
            g = open_calls(open = answer_rows[i].family, tools, 0, &err);
            REQUIRE(g, "%s: %s", open, err.msg);
        }
        CHECK_MSG(answers(g, answer_rows[i].text) == answer_rows[i].may, "%s: %d for %s", open,
                  answers(g, answer_rows[i].text), answer_rows[i].text);
    }
    grammar_free(g);
}

/* Tokens without text stand for the markers, wherever an answer may have them, and for nothing
 * else there. */
static struct vocab *marker_vocab(void)
{
    static struct tokens t;
    static const char *const markers[] = {"<end>",
                                          "<|tool_calls_section_begin|>",
                                          "<|tool_calls_section_end|>",
                                          "<|tool_call_begin|>",
                                          "<|tool_call_argument_begin|>",
                                          "<|tool_call_end|>",
                                          "<|other|>"};
    struct keys k = {0};
    struct pith_error err = {0};
    memset(&t, 0, sizeof t);
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        add_token(&t, markers[i], VOCAB_CONTROL, 0);
    for (char c = ' '; c < 0x7F; c++)
        add_token(&t, (char[]){c, 0}, VOCAB_NORMAL, 0);
    key_str(&k, "tokenizer.ggml.model", "rwkv");
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.eos_token_id", 0);
    struct vocab *v = open_keys(&k, &err);
    CHECK_MSG(v != NULL, "%s", err.msg);
    return v;
}

/* Accepts a text, in which A to F are the tokens 1 to 6 and Z the end; how many characters. */
static int accepts(struct pith_grammar *g, const char *text)
{
    int n = 0;
    grammar_reset(g);
    for (; text[n]; n++) {
        int32_t id = text[n] == 'Z'                     ? 0
                     : text[n] >= 'A' && text[n] <= 'F' ? text[n] - 'A' + 1
                                                        : text[n] - ' ' + 7;
        const uint64_t *mask = grammar_mask(g, NULL);
        int may = mask && mask[id / 64] >> (id % 64) & 1;
        int ok = grammar_accept(g, id, NULL) == PITH_OK;
        CHECK_MSG(ok == may, "%s, %d: mask %d, accept %d", text, n, may, ok);
        if (!ok)
            break;
    }
    return n;
}

static void tokens_without_text(void)
{
    static const struct {
        const char *text;
        int most;
    } rows[] = {{"ok ACfunctions.now:0D{}EBZ", 26},
                {"ok Cfunctions.set:1D{\"on\":true}EZ", 33},
                {"ok ACfunctions.now:0D{\"a", 22},
                {"AFZ", 1},
                {"ACx", 2},
                {"F so it is Z", 12},
                {"ACfunctions.now:0D{}ECfunctions.now:1D{}EB and so on Z", 54},
                {"ACfunctions.now:0D{}Z", 20},
                {"<|tool_call_begin|>x", 19},
                {"<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}EZ", 66}};
    struct vocab *v = marker_vocab();
    struct trie *t = trie_new(v, NULL);
    struct pith_error err = {0};
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                .text = slice_of(tools),
                                .format = chat_format_named("kimi-k2"),
                                .vocab = v,
                                .trie = t,
                                .trigger_token = -1,
                                .cache_bytes = 1 << 20};
    struct pith_grammar *g = grammar_new(&spec, &err);
    REQUIRE(g, "%s", err.msg);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_MSG(accepts(g, rows[i].text) == rows[i].most, "%s: %d", rows[i].text,
                  accepts(g, rows[i].text));
    grammar_free(g);
    trie_free(t);
    vocab_free(v);
}

/* Very many arguments come in the order of their schema, which is told. */
static void many_arguments(void)
{
    for (int n = 64; n <= 65; n++) {
        struct str s;
        struct pith_error err = {0};
        str_init(&s, PITH_MEM_SCRATCH);
        str_printf(&s, "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{");
        for (int k = 0; k < n; k++)
            str_printf(&s, "%s\"m%d\":{\"type\":\"boolean\"}", k ? "," : "", k);
        str_printf(&s, "}}}]");
        struct pith_grammar *g = open_calls("glm", s.p, 1, &err);
        CHECK_MSG(g && (strstr(grammar_unkept(g), "any order of over 64 members\n") != NULL) ==
                           (n > 64),
                  "%d: %s, said: %s", n, err.msg, g ? grammar_unkept(g) : "");
        grammar_free(g);
        str_deinit(&s);
    }
}

#define TOOL(schema)                                                                               \
    "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": " schema    \
    "}}}]"

static void what_cannot_be_kept(void)
{
    static const char *const bad[][2] = {
        {"{}", "wanted an array"},
        {"[]", "none to call"},
        {"[{}]", "number 0 has no name"},
        {TOOL("{\"type\": \"string\", \"pattern\": \"^a</parameter>$\"}"),
         "no text of this pattern"},
        {TOOL("{\"type\": \"string\", \"pattern\": \"a\", \"enum\": [\"a\"]}"),
         "\"a\": of strings enum"},
        {TOOL("{\"$ref\": \"#/$defs/none\"}"), "leads nowhere"},
        {TOOL("{\"$ref\": \"#/properties/a\"}"), "leads nowhere"},
        {TOOL("{\"minimum\": 3}"), "names no type"},
        {TOOL("{\"type\": [\"string\", \"integer\"], \"minimum\": 3}"), "conditions of several"},
        {TOOL("{\"enum\": [\"a</parameter>b\"]}"), "spells what ends it"},
        {"[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a b\": "
         "{}}}}]",
         "cannot be written"},
        {"[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"enum\": "
         "[\"<![CDATA[x\"]}}}}]",
         "CDATA"},
        {"[{\"name\": \"f\", \"parameters\": {\"anyOf\": []}}]", "\"anyOf\""},
        {"[{\"name\": \"f\", \"parameters\": {\"properties\": {}, \"required\": [\"x\"]}}]",
         "no property"}};
    struct pith_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (struct pith_error){0};
        struct pith_grammar *g = open_calls("qwen3-coder", bad[i][0], i % 2, &err);
        CHECK_MSG(!g && strstr(err.msg, bad[i][1]), "%s: %s", bad[i][0], err.msg);
        CHECK_MSG(i < 3 || err.code == PITH_UNSUPPORTED, "%s: code %d", bad[i][0], err.code);
        grammar_free(g);
    }
    err = (struct pith_error){0};
    CHECK(!open_calls("hermes", tools, 1, &err) && err.code == PITH_UNSUPPORTED);
    static const char noted[] =
        TOOL("{\"type\": \"string\", \"errorMessage\": \"b\", \"enumNames\": []}");
    struct pith_grammar *shown = open_calls("qwen3-coder", noted, 0, &err);
    CHECK_MSG(shown, "%s", err.msg); /* what editors show constrains nothing */
    grammar_free(shown);
}

/* Schemas as Zod and Pydantic write them: a format beside its pattern, look-aheads, in a choice as
 * well, and keywords that were not set. */
static void as_validators_write_them(void)
{
    static const char *const taken[] = {
        TOOL("{\"type\": \"string\", \"format\": \"email\", \"pattern\": "
             "\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_.]*)[A-Za-z0-9_]@([A-Za-z0-9]+\\\\.)+"
             "[A-Za-z]{2,}$\"}"),
        TOOL("{\"anyOf\": [{\"type\": \"number\"}, {\"type\": \"string\", \"pattern\": "
             "\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}]}"),
        TOOL("{\"anyOf\": [{\"type\": \"string\", \"pattern\": \"^a(?!b)[a-c]*$\"}, "
             "{\"type\": \"null\"}]}"),
        TOOL("{\"type\": \"integer\", \"enum\": null, \"items\": null, \"properties\": null}"),
        ("[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": null, "
         "\"required\": null, \"additionalProperties\": null}}]")};
    for (int i = 0; i < N_FAMILIES; i++) {
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++) {
            struct pith_error err = {0};
            struct pith_grammar *g = open_calls(families[i], taken[k], 0, &err);
            CHECK_MSG(g, "%s: %s: %s", families[i], taken[k], err.msg);
            CHECK(!*grammar_unkept(g) || !strcmp(grammar_unkept(g), "strings of a\n"));
            grammar_free(g);
        }
    }
}

/* Patterns that may hold what ends a value, in every form: what may be written, and how the text is
 * read back. */
static const char not_over[] = "CDATA that is not closed yet";
static const struct {
    const char *family, *pattern, *text, *value; /* NULL: any string; it may not go so */
} pattern_rows[] = {
    {"qwen3-coder", NULL, "\n<![CDATA[x\n", not_over},
    {"qwen3-coder", NULL, "\n<![CDATA[x]]>\n", "x"},
    {"qwen3-coder", NULL, "\n<![CDATA[</parameter>]]>\n", "</parameter>"},
    {"qwen3-coder", NULL, "\n<![CDATA[x]]>y\n", NULL},
    {"qwen3-coder", NULL, "\n \n<![CDATA[x]]>\n", NULL},
    {"qwen3-coder", NULL, "<![CDATA[", not_over},
    {"qwen3-coder", NULL, "\n<![CDATAx\n", "<![CDATAx"},
    {"qwen3-coder", NULL, "\n<![CDATA\n", "<![CDATA"},
    {"qwen3-coder", NULL, "\na<![CDATA[x]]>\n", "a<![CDATA[x]]>"},
    {"qwen3-coder", NULL, "\n<</parameterr\n", "<</parameterr"},
    {"qwen3-coder", NULL, "\n<!\xC3\xA9\n", "<!\xC3\xA9"},
    {"qwen3-coder", NULL, "\n\xC3\xA9<\n", "\xC3\xA9<"},
    {"qwen3-coder", NULL, "\n\n", ""},
    {"glm", NULL, "<![CDATA[x", not_over},
    {"glm", NULL, "<![CDATA[x]]>", "x"},
    {"glm", NULL, "<!", "<!"},
    {"minimax-m3", NULL, "<![CDATA[x]]>", NULL},
    {"minimax-m3", NULL, "]<![CDATA[x]]>", "]<![CDATA[x]]>"},
    {"kimi-k2", NULL, "<![CDATA[x]]>", "<![CDATA[x]]>"},
    {"qwen3-coder", "a.c", "\nxabcx\n", "xabcx"},
    {"qwen3-coder", "a.c", "\nxabx\n", NULL},
    {"qwen3-coder", "^[^a]*$", "\n<b>\n</x>\n", "<b>\n</x>"},
    {"qwen3-coder", "^[^a]*$", "\nxay", NULL},
    {"qwen3-coder", "^[^y]*$", "</parameterr\n", "</parameterr"},
    {"qwen3-coder", "^[^y]*$", "\n<![CDATA[", NULL},
    {"qwen3-coder", "^<!.CDA", "\n<![CDA\n", "<![CDA"},
    {"qwen3-coder", "^x\\\\n$", "\nx\n\n", "x\n"},
    {"qwen3-coder", "^x\\\\n?$", "\nx\n", "x"},
    {"glm", "^(ab|c<)+$", "abc<", "abc<"},
    {"glm", "^(ab|c<)+$", "abc<<", NULL},
    {"glm", "<.*>", "a<b>\n", "a<b>\n"},
    {"glm", "<.*>", "a<b", NULL},
    {"minimax-m3", "b.*", "]<]miniab[", "]<]miniab["},
    {"minimax-m3", "b.*", "b]<]minimax[>[<", NULL},
    {"gemma-4", "<.*>", "a<|>", "a<|>"},
    {"gemma-4", "^.*$", "<|\"|>a", NULL},
    {"lfm2", "^a.*'$", "a b'", "a b'"},
    {"kimi-k2", "^a.*<$", "a b<", "a b<"},
};

static void patterns(void)
{
    static const struct {
        const char *family, *before, *behind;
    } forms[] = {
        {"qwen3-coder", "<function=f>\n<parameter=a>", "</parameter>\n</function>"},
        {"glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"},
        {"minimax-m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>",
         "]<]minimax[>[</a>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"},
        {"gemma-4", "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"},
        {"lfm2", "<|tool_call_start|>[f(a=\"", "\")]<|tool_call_end|>"},
        {"kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"",
         "\"}<|tool_call_end|>"}};
    char list[512], text[512], want[256];
    for (size_t i = 0; i < sizeof pattern_rows / sizeof *pattern_rows; i++) {
        struct pith_error err = {0};
        size_t f = 0;
        while (strcmp(forms[f].family, pattern_rows[i].family))
            f++;
        const char *pattern = pattern_rows[i].pattern;
        snprintf(list, sizeof list,
                 "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": "
                 "{\"a\": {\"type\": \"string\"%s%s%s}}}}]",
                 pattern ? ", \"pattern\": \"" : "", pattern ? pattern : "", pattern ? "\"" : "");
        pattern = pattern ? pattern : "any string";
        snprintf(text, sizeof text, "%s%s%s", forms[f].before, pattern_rows[i].text,
                 forms[f].behind);
        struct pith_grammar *g = open_calls(forms[f].family, list, 0, &err);
        REQUIRE(g, "%s, %s: %s", forms[f].family, pattern, err.msg);
        int may = answers(g, text);
        int open = pattern_rows[i].value == not_over;
        CHECK_MSG(may == (open ? 1 : pattern_rows[i].value ? 2 : 0), "%s, %s: %d for %s",
                  forms[f].family, pattern, may, text);
        grammar_free(g);
        if (open || !pattern_rows[i].value)
            continue;
        struct chat_parse_spec spec = {.format = chat_format_named(forms[f].family),
                                       .tools = slice_of(list)};
        struct pith_chat_parser *p = chat_parse_new(&spec, NULL);
        CHECK(p && chat_parse_feed(p, slice_of(text), NULL) == PITH_OK &&
              chat_parse_finish(p, NULL) == PITH_OK);
        const struct pith_chat_event *e = p ? chat_parse_call(p, 0) : NULL;
        json_t *v = json_pack("{s:s}", "a", pattern_rows[i].value),
               *got = e ? json_loadb(e->text, e->n_bytes, 0, NULL) : NULL;
        snprintf(want, sizeof want, "%s", e ? e->text : "no call");
        CHECK_MSG(json_equal(v, got), "%s, %s: %s from %s", forms[f].family, pattern, want, text);
        json_decref(v);
        json_decref(got);
        chat_parse_free(p);
    }
}

/* Items that must differ, in the forms that lists have. */
static void unique_items(void)
{
    static const char list[] =
        "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
        "{\"type\": "
        "\"array\", \"items\": {\"type\": [\"string\", \"null\"]}, \"uniqueItems\": true}}}}]";
    static const struct {
        const char *family, *text;
        int may;
    } rows[] = {
        {"lfm2", "<|tool_call_start|>[f(a=[\"x\", \"y\", null])]<|tool_call_end|>", 2},
        {"lfm2", "<|tool_call_start|>[f(a=[\"x\", \"x\"])]<|tool_call_end|>", 0},
        {"lfm2", "<|tool_call_start|>[f(a=[\"x\", 'x'])]<|tool_call_end|>", 0},
        {"lfm2", "<|tool_call_start|>[f(a=[null, None])]<|tool_call_end|>", 0},
        {"gemma-4", "<|tool_call>call:f{a:[<|\"|>x<|\"|>,<|\"|>y<|\"|>]}<tool_call|>", 2},
        {"gemma-4", "<|tool_call>call:f{a:[<|\"|>x<|\"|>,<|\"|>x<|\"|>]}<tool_call|>", 0},
        {"qwen3-coder", "<function=f>\n<parameter=a>\n[\"x\",\"y\"]\n</parameter>\n</function>", 2},
        {"qwen3-coder", "<function=f>\n<parameter=a>\n[\"x\",\"x\"]\n</parameter>\n</function>",
         0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pith_error err = {0};
        struct pith_grammar *g = open_calls(rows[i].family, list, 0, &err);
        REQUIRE(g, "%s: %s", rows[i].family, err.msg);
        int may = answers(g, rows[i].text);
        CHECK_MSG(may == rows[i].may, "%d for %s", may, rows[i].text);
        grammar_free(g);
    }
}

/* Many tools of equal members: what is equal is written once, so steps and bytes go by the text. */
static void many_tools_are_cheap(void)
{
    enum { TOOLS = 60, STEPS_A_BYTE = 300, BYTES_A_BYTE = 1600 };
    static const char *const members[] = {
        "{\"type\":\"string\",\"description\":\"d%d\"}", "{\"type\":\"integer\",\"title\":\"d%d\"}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"d%d\"}",
        "{\"type\":\"string\",\"maxLength\":2000,\"description\":\"d%d\"}"};
    static const char *const more[] = {"hermes", "mistral", "llama-3"};
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    for (int i = 0; i < TOOLS; i++) {
        str_printf(&s,
                   "%s{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{",
                   i ? "," : "[", i);
        for (int k = 0; k < 8; k++) {
            str_printf(&s, "%s\"member_%d_%d\":", k ? "," : "", i, k);
            str_printf(&s, members[k % 4], 8 * i + k);
        }
        str_putz(&s, "}}}");
    }
    str_putz(&s, "]");
    for (int i = 0; i < N_FAMILIES + 3; i++) {
        const char *family = i < N_FAMILIES ? families[i] : more[i - N_FAMILIES];
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                    .text = {s.p, s.n},
                                    .format = chat_format_named(family),
                                    .trigger = slice_of(i < N_FAMILIES ? "" : "<tool_call>"),
                                    .trigger_token = -1};
        struct pith_work w = PITH_WORK_INIT;
        struct pith_error err = {0};
        pith_work_begin(&w, NULL);
        struct pith_grammar *g = grammar_new(&spec, &err);
        pith_work_end(&w);
        CHECK_MSG(g != NULL, "%s: %s", family, err.msg);
        CHECK_MSG(w.steps < STEPS_A_BYTE * s.n && w.peak_bytes < (int64_t)(BYTES_A_BYTE * s.n),
                  "%s: %zu bytes take %.1f steps and %.1f bytes each", family, s.n,
                  (double)w.steps / (double)s.n, (double)w.peak_bytes / (double)s.n);
        if (getenv("PITH_COST"))
            printf("# %s: %.1f steps and %.1f bytes a byte\n", family,
                   (double)w.steps / (double)s.n, (double)w.peak_bytes / (double)s.n);
        grammar_free(g);
    }
    str_deinit(&s);
}

static struct pith_grammar *open_wide(const char *family, int n, struct pith_work *w)
{
    struct str s;
    struct pith_error err = {0};
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < n; i++)
        str_printf(&s, "%s\"m%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    str_putz(&s, "},\"required\":[\"m50\"]}}]");
    pith_work_begin(w, NULL);
    struct pith_grammar *g = open_calls(family, s.p, 0, &err);
    pith_work_end(w);
    CHECK_MSG(g != NULL, "%s: %s", family, err.msg);
    str_deinit(&s);
    return g;
}

/* More members than may come in any order come in that of the schema: four times as many take some
 * four times the steps and bytes. */
static void many_members_are_linear(void)
{
    enum { FEW = 200, MANY = 4 * FEW };
    static const struct {
        const char *text;
        int may;
    } v[] = {{"[f(m50=1)]", 1},   {"[f(m0=1, m50=2)]", 1}, {"[f(m49=1, m50=2, m199=3)]", 1},
             {"[f()]", 0},        {"[f(m0=1)]", 0},        {"[f(m50=1, m49=2)]", 0},
             {"[f(m50=1, )]", 0}, {"[f(m51=1", 0},         {"[f(m50=1, m50", 0},
             {"[f(, m50", 0}};
    for (int i = 0; i < N_FAMILIES; i++) {
        struct pith_work few = PITH_WORK_INIT, many = PITH_WORK_INIT;
        struct pith_grammar *a = open_wide(families[i], FEW, &few),
                            *b = open_wide(families[i], MANY, &many);
        CHECK_MSG(many.steps < 6 * few.steps && many.peak_bytes < 6 * few.peak_bytes,
                  "%s: %" PRIu64 " steps and %" PRId64 " bytes, then %" PRIu64 " and %" PRId64,
                  families[i], few.steps, few.peak_bytes, many.steps, many.peak_bytes);
        for (size_t k = 0; a && !strcmp(families[i], "lfm2") && k < sizeof v / sizeof *v; k++) {
            struct str s;
            str_init(&s, PITH_MEM_SCRATCH);
            str_printf(&s, "<|tool_call_start|>%s", v[k].text);
            grammar_reset(a);
            CHECK_MSG((grammar_accept_text(a, (struct slice){s.p, s.n}, NULL) == PITH_OK) ==
                          v[k].may,
                      "%s", v[k].text);
            str_deinit(&s);
        }
        grammar_free(a);
        grammar_free(b);
    }
}

/* References are about the schema that they stand in: equal ones in two tools mean other things. */
static void references_of_two_tools(void)
{
    static const char two[] =
        "[{\"name\":\"a\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":"
        "\"#/$defs/T\"}},\"required\":[\"x\"],\"$defs\":{\"T\":{\"enum\":[\"one\"]}}}},"
        "{\"name\":\"b\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":"
        "\"#/$defs/T\"}},\"required\":[\"x\"],\"$defs\":{\"T\":{\"type\":\"integer\"}}}}]";
    static const struct {
        const char *family, *text;
        int may;
    } v[] = {
        {"qwen3-coder", "<tool_call>\n<function=a>\n<parameter=x>\none\n</parameter>\n</function>",
         1},
        {"qwen3-coder", "<tool_call>\n<function=a>\n<parameter=x>\n1", 0},
        {"qwen3-coder", "<tool_call>\n<function=b>\n<parameter=x>\n12\n</parameter>\n</function>",
         1},
        {"qwen3-coder", "<tool_call>\n<function=b>\n<parameter=x>\no", 0},
        {"gemma-4", "<|tool_call>call:a{x:<|\"|>one<|\"|>}<tool_call|>", 1},
        {"gemma-4", "<|tool_call>call:a{x:1", 0},
        {"gemma-4", "<|tool_call>call:b{x:1}<tool_call|>", 1},
        {"gemma-4", "<|tool_call>call:b{x:<", 0},
        {"lfm2", "<|tool_call_start|>[a(x='one'), b(x=3)]<|tool_call_end|>", 1},
        {"lfm2", "<|tool_call_start|>[a(x=3", 0},
        {"lfm2", "<|tool_call_start|>[b(x='", 0},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct pith_error err = {0};
        struct pith_grammar *g = open_calls(v[i].family, two, 0, &err);
        CHECK_MSG(g && (grammar_accept_text(g, slice_of(v[i].text), &err) == PITH_OK) == v[i].may,
                  "%s: %s: %s", v[i].family, v[i].text, err.msg);
        grammar_free(g);
    }
}

/* A tool that says nothing of its parameters has none: it is called with {}, as one whose object
 * has no properties. */
static void tools_without_parameters(void)
{
    static const char *const lists[] = {
        "[{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":null}}]",
        "[{\"name\":\"now\"}]",
        "[{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}]"};
    static const struct {
        const char *family, *text;
        int may;
        const char *trigger;
    } v[] = {
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {}}", 2, "<tool_call>"},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"", 0, "<tool_call>"},
        {"hermes", "{\"name\": \"now\", \"arguments\": {}}", 2, "<tool_call>"},
        {"hermes", "{\"name\": \"now\", \"arguments\": {\"", 0, "<tool_call>"},
        {"mistral", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"", 0, "[TOOL_CALLS]"},
        {"harmony",
         "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>", 2, NULL},
        {"harmony",
         "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{\"", 0, NULL},
        {"gemma-4", "<|tool_call>call:now{}<tool_call|>", 2, NULL},
        {"gemma-4", "<|tool_call>call:now{c", 0, NULL},
        {"lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>", 2, NULL},
        {"lfm2", "<|tool_call_start|>[now(c", 0, NULL},
        {"qwen3-coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", 2, NULL},
        {"qwen3-coder", "<tool_call>\n<function=now>\n<p", 0, NULL},
    };
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
            struct pith_error err = {0};
            struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                        .text = slice_of(lists[k]),
                                        .format = chat_format_named(v[i].family),
                                        .trigger_token = -1};
            if (v[i].trigger)
                spec.trigger = slice_of(v[i].trigger);
            struct pith_grammar *g = grammar_new(&spec, &err);
            CHECK_MSG(g && answers(g, v[i].text) == v[i].may, "%s: %s: %s: %d %s", lists[k],
                      v[i].family, v[i].text, g ? answers(g, v[i].text) : -1, err.msg);
            grammar_free(g);
        }
}

/* A token of two braces would close a call and say one more: no brace stands behind it, while all
 * else may. */
static void calls_close_once(void)
{
#define CALL "{\"name\": \"now\", \"arguments\": {}}"
    static const struct {
        const char *text;
        int may;
    } v[] = {{CALL, 2},
             {CALL "}", 0},
             {CALL "\n }", 0},
             {"[" CALL "}", 0},
             {"[" CALL ", " CALL "]", 2},
             {CALL "\n" CALL, 2},
             {CALL "\n{\"name\": \"now\", \"b\"", 0},
             {CALL " so {x}", 2},
             {CALL "\n<tool_call>" CALL "</tool_call>", 2},
             {"<tool_call>" CALL "}", 0},
             {"<tool_call>" CALL "\n" CALL "</tool_call> so }", 2},
             {"```json\n" CALL "}", 0},
             {"```json\n" CALL "\n```", 2}};
#undef CALL
    struct pith_error err = {0};
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                .text = SLICE("[{\"name\":\"now\"}]"),
                                .format = chat_format_named("hermes"),
                                .trigger = SLICE("<tool_call>"),
                                .trigger_token = -1};
    struct pith_grammar *g = grammar_new(&spec, &err);
    REQUIRE(g, "%s", err.msg);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        CHECK_MSG(answers(g, v[i].text) == v[i].may, "%s: %d", v[i].text, answers(g, v[i].text));
    grammar_free(g);
}

int main(void)
{
    TEST(patterns);
    TEST(unique_items);
    TEST(many_tools_are_cheap);
    TEST(many_members_are_linear);
    TEST(references_of_two_tools);
    TEST(tools_without_parameters);
    TEST(calls_close_once);
    TEST(what_is_written_is_read);
    TEST(answers_hold_calls);
    TEST(tokens_without_text);
    TEST(many_arguments);
    TEST(what_cannot_be_kept);
    TEST(as_validators_write_them);
    return test_end();
}
