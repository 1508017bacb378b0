/* test_call_stream.c -- arguments of calls while they come, for every family of the table: what is
 * told piece by piece is the whole, whatever the cuts are; no text of an argument is held back for
 * longer than its end marker is long, no other value for longer than itself; what has been told of
 * a text that ends or breaks stays the begin of what would have come. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "pith.h"
#include "test.h"
#include "text/chat/chat_parse.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, "
    "\"o\": {\"type\": \"object\"}, \"u\": {}}}}}, {\"name\": \"g\", \"parameters\": {}}]";

/* How a family writes values: as JSON, as Python, Gemma's way, as they stand, or as they stand and
 * lists and objects as elements. */
enum form { AS_JSON, AS_PYTHON, AS_GEMMA, AS_TEXT, AS_ELEMENTS, IN_TEXT };
enum { LAG = 80, WORDS = 40 }; /* LAG: bytes of what ends an object and its argument */

/* $s $n $o $u are the values of f's arguments; $j all of them as a JSON object. */
static const struct row {
    const char *family;
    enum form form;
    const char *text;
    int behind; /* the name stands behind: all comes at the end of the call */
} rows[] = {
    {"harmony", AS_JSON, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>$j"
                         "<|call|>", 0},
    {"atem", AS_TEXT,
     "<|start|>assistant to=fn<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n"
     "<atem:parameter name=\"s\">$s</atem:parameter>\n<atem:parameter name=\"n\">$n"
     "</atem:parameter>\n<atem:parameter name=\"o\">$o</atem:parameter>\n<atem:parameter "
     "name=\"u\">$u</atem:parameter>\n</atem:invoke>\n<atem:invoke name=\"g\">\n</atem:invoke>\n"
     "</atem:function_calls>", 0},
    {"kimi-k3", AS_TEXT,
     "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" "
     "type=\"string\"<|sep|>$s<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\""
     "<|sep|>$n<|close|>argument<|sep|><|open|>argument key=\"o\" type=\"object\"<|sep|>$o"
     "<|close|>argument<|sep|><|open|>argument key=\"u\" type=\"string\"<|sep|>$u<|close|>argument"
     "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", 0},
    {"kimi-k2", AS_JSON,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>$j"
     "<|tool_call_end|><|tool_calls_section_end|>", 0},
    {"deepseek-v3.2", AS_TEXT,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
     "string=\"true\">$s</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">$n"
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"o\" string=\"false\">$o</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"u\" string=\"true\">$u</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "</｜DSML｜function_calls>", 0},
    {"deepseek", AS_JSON,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n$j\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", 0},
    {"mistral", AS_JSON, "[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", "
                         "\"arguments\": $j}]", 0},
    {"mistral", AS_JSON, "[TOOL_CALLS]f[CALL_ID]abc[ARGS]$j", 0},
    {"mistral", AS_JSON, "[TOOL_CALLS][{\"arguments\": $j, \"name\": \"f\"}, {\"name\": \"g\"}]",
     1},
    {"command-r7b", AS_JSON,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": $j}\n]"
     "<|END_ACTION|>", 0},
    {"command-r", AS_JSON,
     "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": $j\n    }\n"
     "]```", 0},
    {"granite", AS_JSON, "<|tool_call|>[{\"name\": \"f\", \"arguments\": $j}]", 0},
    {"lfm2", AS_PYTHON,
     "<|tool_call_start|>[f(s=$s, n=$n, o=$o, u=$u,), g()]<|tool_call_end|>", 0},
    {"apertus", AS_JSON, "<|tools_prefix|>[{\"f\": $j}, {\"g\": {}}]<|tools_suffix|>", 0},
    {"gigachat-3", AS_JSON, "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", "
                            "\"arguments\": $j}", 0},
    {"solar", AS_JSON, "<|tool_calls|><|tool_call:begin|>i1<|tool_call:name|>f<|tool_call:args|>$j"
                       "<|tool_call:end|><|calls|>", 0},
    {"minicpm5", AS_TEXT,
     "<function name=\"f\"><param name=\"s\">$s</param><param name=\"n\">$n</param><param "
     "name=\"o\">$o</param><param name=\"u\">$u</param></function>", 0},
    {"hunyuan-3", AS_TEXT,
     "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>s"
     "</arg_key:opensource>\n<arg_value:opensource>$s</arg_value:opensource>\n<arg_key:opensource>"
     "n</arg_key:opensource>\n<arg_value:opensource>$n</arg_value:opensource>\n"
     "<arg_key:opensource>o</arg_key:opensource>\n<arg_value:opensource>$o"
     "</arg_value:opensource>\n<arg_key:opensource>u</arg_key:opensource>\n<arg_value:opensource>"
     "$u</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", 0},
    {"hunyuan", AS_TEXT,
     "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>s</arg_key>\n<arg_value>$s</arg_value>\n"
     "<arg_key>n</arg_key>\n<arg_value>$n</arg_value>\n<arg_key>o</arg_key>\n<arg_value>$o"
     "</arg_value>\n<arg_key>u</arg_key>\n<arg_value>$u</arg_value>\n</tool_call>\n</tool_calls>",
     0},
    {"seed", AS_TEXT,
     "<seed:tool_call>\n<function=f>\n<parameter=s>$s</parameter>\n<parameter=n>$n</parameter>\n"
     "<parameter=o>$o</parameter>\n<parameter=u>$u</parameter>\n</function>\n</seed:tool_call>",
     0},
    {"minimax-m3", AS_ELEMENTS,
     "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>$s]<]minimax[>[</s>"
     "]<]minimax[>[<n>$n]<]minimax[>[</n>]<]minimax[>[<o>$o]<]minimax[>[</o>]<]minimax[>[<u>$u"
     "]<]minimax[>[</u>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>", 0},
    {"minimax-m2", AS_TEXT,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">$s</parameter>\n<parameter "
     "name=\"n\">$n</parameter>\n<parameter name=\"o\">$o</parameter>\n<parameter name=\"u\">$u"
     "</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>", 0},
    {"minimax-m1", AS_JSON, "<tool_calls>\n{\"name\": \"f\", \"arguments\": $j}\n{\"name\": \"g\", "
                            "\"arguments\": {}}\n</tool_calls>", 0},
    {"glm", AS_TEXT,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>$s</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>$n</arg_value>\n<arg_key>o</arg_key>\n<arg_value>$o</arg_value>\n<arg_key>u"
     "</arg_key>\n<arg_value>$u</arg_value>\n</tool_call>", 0},
    {"glm", AS_TEXT,
     "<tool_call>f<arg_key>s</arg_key><arg_value><![CDATA[$s]]></arg_value><arg_key>n</arg_key>"
     "<arg_value>$n</arg_value><arg_key>o</arg_key><arg_value>$o</arg_value><arg_key>u</arg_key>"
     "<arg_value>$u</arg_value></tool_call>", 0},
    {"qwen3-coder", AS_TEXT,
     "<tool_call>\n<function=f>\n<parameter=s>\n$s\n</parameter>\n<parameter=n>\n$n\n</parameter>\n"
     "<parameter=o>\n$o\n</parameter>\n<parameter=u>\n$u\n</parameter>\n</function>\n</tool_call>",
     0},
    {"qwen3-coder", AS_TEXT,
     "<function=f>\n<parameter=s>\n<![CDATA[$s]]>\n</parameter>\n<parameter=n>\n$n\n</parameter>\n"
     "<parameter=o>\n$o\n</parameter>\n<parameter=u>\n$u\n</parameter>\n</function>", 0},
    {"nemotron-v2", AS_JSON, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": $j}]</TOOLCALL>", 0},
    {"hermes", AS_JSON, "<tool_call>\n{\"name\": \"f\", \"arguments\": $j}\n</tool_call>", 0},
    {"hermes", IN_TEXT, "<tool_call>\n{\"name\": \"f\", \"arguments\": \" $j\"}\n</tool_call>", 0},
    {"hermes", IN_TEXT,
     "<tool_call>\n{\"id\": \"x\", \"function\": {\"name\": \"f\", \"arguments\": \"$j\"}}\n"
     "</tool_call>", 0},
    {"functionary", AS_JSON, ">>>f\n$j", 0},
    {"firefunction", AS_JSON, "functools[{\"name\": \"f\", \"arguments\": $j}, {\"name\": \"g\"}]",
     0},
    {"llama-3", AS_JSON, "{\"name\": \"f\", \"parameters\": $j}; {\"name\": \"g\"}", 0},
    {"llama-3", AS_PYTHON, "[f( s = $s,n=$n, o=$o, u=$u), g()]", 0},
    {"llama-3", AS_PYTHON, "<|python_tag|>f.call(s=$s, n=$n, o=$o, u=$u)", 0},
    {"gemma-4", AS_GEMMA, "<|tool_call>call:f{s:$s,n:$n,o:$o,u:$u}<tool_call|>", 0},
    {"gemma", AS_PYTHON, "```tool_code\n[f(s=$s, n=$n, o=$o, u=$u)]\n```", 0},
    {"gemma", AS_JSON, "```tool_call\n{\"name\": \"f\", \"parameters\": $j}\n```", 0},
    {"generic", AS_JSON, "<tool_call>{\"name\": \"f\", \"arguments\": $j}</tool_call>", 0},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* ---------------------------------------------------------------- samples */

/* The text of s, words that are found again and what may be taken for something else. */
static void words(struct str *out)
{
    static const char *const between[] = {" \"", "é", "\\", "'\t", "</", "\n", "😀", "]]", "<|"};
    for (int i = 0; i < WORDS; i++)
        str_printf(out, "w%03d%s", i, between[i % 9]);
    str_putz(out, "end");
}

/* A text in quotes, in part by escapes. */
static void put_quoted(struct str *out, struct slice s, char quote)
{
    str_putc(out, quote);
    for (size_t i = 0; i < s.n; i++) {
        if (!memcmp(s.p + i, "é", 2) && i % 2) {
            str_putz(out, "\\u00e9");
            i++;
        } else if (s.n - i > 3 && !memcmp(s.p + i, "😀", 4)) {
            str_putz(out, "\\ud83d\\uDE00");
            i += 3;
        } else if (s.p[i] == '\n' || s.p[i] == '\t') {
            str_putz(out, s.p[i] == '\n' ? "\\n" : "\\t");
        } else {
            if (s.p[i] == '\\' || s.p[i] == quote)
                str_putc(out, '\\');
            str_putc(out, s.p[i]);
        }
    }
    str_putc(out, quote);
}

static void put_text(struct str *out, enum form form, struct slice s)
{
    if (form == AS_JSON || form == AS_PYTHON || form == IN_TEXT)
        put_quoted(out, s, form == AS_PYTHON ? '\'' : '"');
    else
        str_printf(out, form == AS_GEMMA ? "<|\"|>%.*s<|\"|>" : "%.*s", (int)s.n, s.p);
}

static void put_argument(struct str *out, enum form form, char key)
{
    static const char *const objects[] = {
        [AS_JSON] = "{\"zz\": [1, {\"y\": \"ENDO\"}]}",
        [AS_PYTHON] = "{'zz': [1, {\"y\": 'ENDO'}]}",
        [AS_GEMMA] = "{zz:[1,{y:<|\"|>ENDO<|\"|>}]}",
        [AS_TEXT] = "{\"zz\": [1, {\"y\": \"ENDO\"}]}",
        [AS_ELEMENTS] = "]<]minimax[>[<zz>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>["
                        "<item>]<]minimax[>[<y>ENDO]<]minimax[>[</y>]<]minimax[>[</item>]<]minimax["
                        ">[</zz>",
        [IN_TEXT] = "{\"zz\": [1, {\"y\": \"ENDO\"}]}"};
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    words(&s);
    if (key == 's')
        put_text(out, form, (struct slice){s.p, s.n});
    else if (key == 'u')
        put_text(out, form, SLICE("tuple ENDU"));
    else
        str_putz(out, key == 'n' ? "-1234567" : objects[form]);
    str_deinit(&s);
}

static char *sample(const struct row *row, size_t *n)
{
    struct str out, all;
    str_init(&out, PITH_MEM_SCRATCH);
    str_init(&all, PITH_MEM_SCRATCH);
    for (const char *p = "snou"; *p; p++) {
        str_printf(&all, "%s\"%c\": ", all.n ? ", " : "{", *p);
        put_argument(&all, row->form, *p);
    }
    str_putc(&all, '}');
    for (const char *p = row->text; *p; p++) {
        if (*p != '$')
            str_putc(&out, *p);
        else if (*++p != 'j')
            put_argument(&out, row->form, *p);
        else if (row->form != IN_TEXT)
            str_put(&out, all.p, all.n);
        else
            str_json_part(&out, all.p, all.n);
    }
    *n = out.n;
    char *text = strdup(out.p);
    str_deinit(&out);
    str_deinit(&all);
    return text;
}

static json_t *wanted(void)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    words(&s);
    json_t *v = json_pack("{s:s, s:i, s:{s:[i, {s:s}]}, s:s}", "s", s.p, "n", -1234567, "o", "zz",
                          1, "y", "ENDO", "u", "tuple ENDU");
    str_deinit(&s);
    return v;
}

/* ---------------------------------------------------------------- parsing */

enum { CALLS_MAX = 64 };
struct heard {
    struct str args[CALLS_MAX];
    int n, whole[CALLS_MAX], wrong;
};

static void hear(void *ctx, const struct pith_chat_event *e)
{
    struct heard *h = ctx;
    if (e->kind != PITH_CHAT_CALL)
        return;
    if (e->index < 0 || e->index > h->n || e->index >= CALLS_MAX) {
        h->wrong++;
        return;
    }
    h->n += e->index == h->n;
    h->wrong += h->whole[e->index] || (!e->n_bytes && !e->whole);
    str_put(&h->args[e->index], e->text, e->n_bytes);
    h->whole[e->index] = e->whole;
}

static void forget(struct heard *h)
{
    for (int i = 0; i < h->n; i++)
        str_deinit(&h->args[i]);
    *h = (struct heard){.n = 0};
}

static pith_chat_parser *open_parser(const char *family, struct heard *h, int partial)
{
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    params.family = family;
    params.prompt = "";
    params.tools = tools;
    params.partial = partial;
    params.on_event = hear;
    params.ctx = h;
    pith_chat_parser *p = pith_chat_open(NULL, &params, NULL);
    CHECK_MSG(p, "%s", family);
    return p;
}

/* What was told is what the parser has. */
static void check_told(const char *what, const pith_chat_parser *p, const struct heard *h)
{
    CHECK_MSG(!h->wrong && h->n == pith_chat_n_calls(p), "%s: %d events are wrong", what, h->wrong);
    for (int i = 0; i < h->n && i < pith_chat_n_calls(p); i++) {
        const struct pith_chat_event *e = pith_chat_call(p, i);
        CHECK_MSG(e->n_bytes == h->args[i].n && !memcmp(e->text, h->args[i].p, e->n_bytes) &&
                      e->whole == h->whole[i],
                  "%s: told %.*s, is %.*s", what, (int)h->args[i].n, h->args[i].p, (int)e->n_bytes,
                  e->text);
    }
}

/* All that an answer is, as one text: content, names, arguments. cut 0: at random. */
static char *answer_of(const char *family, const char *text, size_t n, size_t cut, int partial,
                       uint64_t seed)
{
    struct heard h = {.n = 0};
    struct str all;
    pith_chat_parser *p = open_parser(family, &h, partial);
    str_init(&all, PITH_MEM_SCRATCH);
    for (size_t i = 0, k; p && i < n; i += k) {
        k = cut ? cut : 1 + (size_t)(rng_uniform(seed, i, 0) * 24);
        k = k < n - i ? k : n - i;
        CHECK(pith_chat_feed(p, text + i, k, NULL) == PITH_OK);
    }
    CHECK(pith_chat_finish(p, NULL) == PITH_OK);
    check_told(family, p, &h);
    size_t len;
    const char *content = pith_chat_text(p, PITH_CHAT_CONTENT, &len);
    str_put(&all, content, len);
    for (int i = 0; i < pith_chat_n_calls(p); i++) {
        const struct pith_chat_event *e = pith_chat_call(p, i);
        str_printf(&all, "\n%s %d ", e->name, e->whole);
        str_put(&all, e->text, e->n_bytes);
    }
    pith_chat_close(p);
    forget(&h);
    char *copy = strdup(all.p ? all.p : "");
    str_deinit(&all);
    return copy;
}

/* ---------------------------------------------------------------- tests */

static int knows(const char *family)
{
    int i = 0;
    while (i < N_ROWS && strcmp(rows[i].family, family))
        i++;
    return i < N_ROWS;
}

/* A family that is added to the table has to be added here. */
static void every_family(void)
{
#define FORMAT(name, ...) CHECK_MSG(knows(name), "%s has no sample", name);
#include "text/chat/chat_formats.def"
#undef FORMAT
}

/* Byte by byte: what has been told by when. */
static void no_longer_than_a_value(void)
{
    json_t *want = wanted();
    for (int r = 0; r < N_ROWS; r++) {
        size_t n, late = 0;
        char *text = sample(&rows[r], &n), word[16], *told_at = calloc(1, WORDS + 4);
        struct heard h = {.n = 0};
        pith_chat_parser *p = open_parser(rows[r].family, &h, 1);
        for (size_t i = 0; p && i < n; i++) {
            CHECK(pith_chat_feed(p, text + i, 1, NULL) == PITH_OK);
            const struct str *args = &h.args[h.n > 1 && h.args[0].n == 2 ? 1 : 0];
            for (int w = 0; w < WORDS + 3; w++) {
                static const char *const others[] = {"1234567", "ENDO", "ENDU"};
                snprintf(word, sizeof word, "w%03d", w);
                const char *mark = w < WORDS ? word : others[w - WORDS], *at = strstr(text, mark);
                if (told_at[w])
                    continue;
                told_at[w] = h.n && args->n && strstr(args->p, mark) != NULL;
                size_t due = rows[r].behind ? n : (size_t)(at - text) + strlen(mark) + LAG;
                late += !told_at[w] && i + 1 >= due;
            }
        }
        for (int w = 0; w < WORDS + 3; w++)
            CHECK_MSG(told_at[w] || (rows[r].behind && !late), "%s, row %d: word %d never came",
                      rows[r].family, r, w);
        CHECK_MSG(!late, "%s, row %d: %zu times late", rows[r].family, r, late);
        CHECK(pith_chat_finish(p, NULL) == PITH_OK);
        check_told(rows[r].family, p, &h);
        int own = h.n > 1 && h.args[0].n == 2, whole = 1;
        json_t *got = h.n ? json_loadb(h.args[own].p, h.args[own].n, JSON_REJECT_DUPLICATES, NULL)
                          : NULL;
        for (int i = 0; i < h.n; i++)
            whole = whole && h.whole[i];
        CHECK_MSG(json_equal(got, want) && whole, "%s, row %d: %.*s", rows[r].family, r,
                  h.n ? (int)h.args[own].n : 0, h.n ? h.args[own].p : "");
        json_decref(got);
        pith_chat_close(p);
        forget(&h);
        free(text);
        free(told_at);
    }
    json_decref(want);
}

/* Cut anywhere the same comes, byte for byte; without being told, the same JSON. */
static void any_cut(void)
{
    int rounds = 4 * (int)test_scale();
    for (int r = 0; r < N_ROWS; r++) {
        size_t n;
        char *text = sample(&rows[r], &n);
        for (int partial = 0; partial < 2; partial++) {
            char *whole = answer_of(rows[r].family, text, n, n, partial, 0);
            for (int i = 0; i < 4 + rounds; i++) {
                static const size_t cuts[] = {1, 2, 3, 7};
                char *cut = answer_of(rows[r].family, text, n, i < 4 ? cuts[i] : 0, partial,
                                      (uint64_t)(100 * r + i));
                CHECK_MSG(!strcmp(whole, cut), "%s, row %d, cut %d:\n%s\nwhole:\n%s",
                          rows[r].family, r, i, cut, whole);
                free(cut);
            }
            CHECK_MSG(strstr(whole, "f 1 {"), "%s, row %d: %s", rows[r].family, r, whole);
            free(whole);
        }
        free(text);
    }
}

/* A text that ends early: what has been told of a call is the begin of what would have come. */
static void ends_early(void)
{
    for (int r = 0; r < N_ROWS; r++) {
        size_t n, step = test_scale() < 10 ? 7 : 1;
        char *text = sample(&rows[r], &n);
        struct heard all = {.n = 0}, h = {.n = 0};
        pith_chat_parser *p = open_parser(rows[r].family, &all, 1);
        CHECK(pith_chat_feed(p, text, n, NULL) == PITH_OK && !pith_chat_finish(p, NULL));
        pith_chat_close(p);
        for (size_t k = (size_t)r % step; k < n; k += step) {
            p = open_parser(rows[r].family, &h, 1);
            CHECK(pith_chat_feed(p, text, k, NULL) == PITH_OK && !pith_chat_finish(p, NULL));
            check_told(rows[r].family, p, &h);
            for (int i = 0; i < h.n; i++)
                CHECK_MSG(i < all.n && h.args[i].n <= all.args[i].n &&
                              !memcmp(h.args[i].p, all.args[i].p, h.args[i].n),
                          "%s, row %d, %zu bytes: told %.*s", rows[r].family, r, k,
                          (int)h.args[i].n, h.args[i].p);
            pith_chat_close(p);
            forget(&h);
        }
        forget(&all);
        free(text);
    }
}

/* Bytes that are other ones, too many or missing: cut anywhere the same comes. */
static void damaged(void)
{
    static const char scraps[] = "<>{}[]()|\\\"'/:=,;x1 \n\xC3\xA9\xF0\xFF";
    int rounds = 10 * (int)test_scale();
    for (int r = 0; r < N_ROWS; r++) {
        size_t n;
        char *text = sample(&rows[r], &n);
        for (int k = 0; k < rounds; k++) {
            char *bad = malloc(n + 2);
            size_t at = (size_t)(rng_uniform(7, (uint64_t)(r * 1000 + k), 0) * (double)n), m = n;
            /* half of them in the markers around the text */
            size_t far = (size_t)(rng_uniform(7, (uint64_t)(r * 1000 + k), 2) * 60);
            at = k % 4 == 0 ? far % n : k % 4 == 1 ? n - 1 - far % n : at;
            char c = scraps[(size_t)(rng_uniform(7, (uint64_t)(r * 1000 + k), 1) *
                                     (sizeof scraps - 1))];
            memcpy(bad, text, n + 1);
            if (k % 3 == 0) {
                bad[at] = c;
            } else if (k % 3 == 1) {
                memmove(bad + at + 1, bad + at, n + 1 - at);
                bad[at] = c;
                m = n + 1;
            } else {
                memmove(bad + at, bad + at + 1, n - at);
                m = n - 1;
            }
            for (int partial = 0; partial < 2; partial++) {
                char *whole = answer_of(rows[r].family, bad, m, m, partial, 0),
                     *cut = answer_of(rows[r].family, bad, m, k % 2 ? 1 : 0, partial, (uint64_t)k);
                CHECK_MSG(!strcmp(whole, cut), "%s, row %d, damage %d:\n%s\nwhole:\n%s\nof:\n%s",
                          rows[r].family, r, k, cut, whole, bad);
                free(whole);
                free(cut);
            }
            free(bad);
        }
        free(text);
    }
}

/* What looks like a call and is none is not told as one; what breaks ends as it stands. */
static void what_is_none(void)
{
    static const struct {
        const char *family, *text, *want;
    } cases[] = {
        {"llama-3", "[nobody(s='x'), f(n=1)]", "[nobody(s='x'), f(n=1)]"},
        {"llama-3", "[f(n=1), nobody(s='x')]", "\nf 1 {\"n\":1}"},
        {"lfm2", "<|tool_call_start|>[f(n=1, n=2)]<|tool_call_end|>", "\nf 0 {\"n\":1,\"n\":2}"},
        {"lfm2", "<|tool_call_start|>[f(n=01)]<|tool_call_end|>x",
         "01)]<|tool_call_end|>x\nf 0 {\"n\":"},
        {"lfm2", "<|tool_call_start|>[f(1)](x)", "<|tool_call_start|>[f(1)](x)"},
        {"lfm2", "<|tool_call_start|>[f(), f(]<|tool_call_end|>",
         "]<|tool_call_end|>\nf 0 {}"},
        {"glm", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>n</arg_key>"
                "\n<arg_value>2</arg_value>\n</tool_call>x", "x\nf 0 {\"n\":1,\"n\":2"},
        {"glm", "<tool_call>f\n</tool_call>", "\nf 1 {}"},
        {"glm", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\nhm.",
         "hm.\nf 0 {\"s\":\"a\""},
        {"glm", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_val",
         "\nf 0 {\"s\":"},
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"hm\"}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": \"hm\"}</tool_call>"},
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>"},
        {"gemma-4", "<|tool_call>call:f{n:1,n:2}<tool_call|>", "\nf 0 {\"n\":1,\"n\":2}"},
        {"mistral", "[TOOL_CALLS][{\"arguments\": {\"n\": 1}, \"name\": \"f\"}, 7]",
         "\nf 0 {\"n\":1}"},
        {"seed", "<seed:tool_call><function=f><parameter=u>true</parameter></function>"
                 "<function=f><parameter=u>truest</parameter></function></seed:tool_call>",
         "\nf 1 {\"u\":true}\nf 1 {\"u\":\"truest\"}"},
        {"seed", "<seed:tool_call><function=f><parameter=u>12 </parameter><parameter=v>12 a"
                 "</parameter></function></seed:tool_call>", "\nf 1 {\"u\":12,\"v\":\"12 a\"}"},
        {"seed", "<seed:tool_call><function=f><parameter=s></parameter><parameter=u>[1,</parameter>"
                 "</function></seed:tool_call>", "\nf 1 {\"s\":\"\",\"u\":\"[1,\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t cut = 1; cut < 1000; cut += 998) {
            char *got = answer_of(cases[i].family, cases[i].text, strlen(cases[i].text), cut, 1, 0);
            CHECK_MSG(!strcmp(got, cases[i].want), "%s: %s\ncame %s", cases[i].family,
                      cases[i].text, got);
            free(got);
        }
}

/* What a model is made to say when it has reasoned for long enough ends the reasoning, in every
 * family that has some. */
static int n_think;

static void cut_short(const char *family)
{
    const struct chat_format *f = chat_format_named(family);
    struct heard h = {.n = 0};
    struct str say;
    str_init(&say, PITH_MEM_SCRATCH);
    for (int begun = 0; f && chat_format_think(f) && begun < 2; begun++) {
        for (int bare = 0; bare < 2; bare++) {
            size_t n = 0;
            str_clear(&say);
            str_putz(&say, chat_format_think(f));
            str_putz(&say, begun ? "Hm, well." : "");
            pith_chat_parser *p = open_parser(family, &h, 0);
            CHECK(pith_chat_feed(p, say.p, say.n, NULL) == PITH_OK &&
                  (!begun || pith_chat_reasons(p)));
            size_t from = say.n;
            chat_format_enough(f, begun, bare, &say);
            CHECK_MSG(say.n > from, "%s: nothing ends it", family);
            CHECK(pith_chat_feed(p, say.p + from, say.n - from, NULL) == PITH_OK);
            CHECK_MSG(!pith_chat_reasons(p), "%s: %s", family, say.p);
            CHECK(pith_chat_feed(p, "Forty", 5, NULL) == PITH_OK &&
                  pith_chat_finish(p, NULL) == PITH_OK);
            const char *text = pith_chat_text(p, PITH_CHAT_CONTENT, &n);
            CHECK_MSG(n == 5 && !memcmp(text, "Forty", 5), "%s: %.*s", family, (int)n, text);
            text = pith_chat_text(p, PITH_CHAT_REASONING, &n);
            CHECK_MSG(begun ? n >= 9 && !memcmp(text, "Hm, well.", 9) : n == 0, "%s: %.*s", family,
                      (int)n, text);
            pith_chat_close(p);
            forget(&h);
            n_think += begun && bare;
        }
    }
    str_deinit(&say);
}

static void reasoning_that_is_cut_short(void)
{
#define FORMAT(name, ...) cut_short(name);
#include "text/chat/chat_formats.def"
#undef FORMAT
    char buf[16];
    CHECK_MSG(n_think > 25, "%d families", n_think);
    CHECK(pith_chat_enough(NULL, 1, 1, buf, sizeof buf) == 8 && !memcmp(buf, "</think>", 8));
    CHECK(pith_chat_enough(NULL, 1, 0, NULL, 0) == 10);
    CHECK(pith_chat_enough(NULL, 1, 0, buf, 3) == 10 && !memcmp(buf, "</t", 3));
}

/* The text that ends answers, of what is no template or no model. */
static void no_end(void)
{
    struct pith_error err;
    pith_template *t = pith_template_open("x", 1, NULL);
    CHECK(pith_template_end(NULL, NULL, NULL, 0, &err) == -1 && err.code == PITH_RANGE);
    CHECK(pith_template_end(t, NULL, NULL, 0, &err) == -1 && err.code == PITH_RANGE);
    CHECK(pith_template_names(t, "x") && !pith_template_names(t, "y") &&
          !pith_template_names(t, "") && !pith_template_names(t, NULL) &&
          !pith_template_names(NULL, "x"));
    pith_template_close(t);
}

/* Steps that a family's parser takes for the first n bytes of begin and then filler, in pieces as
 * tokens are. */
static uint64_t steps_of(const char *family, const char *of_tools, struct slice begin,
                         const char *filler, size_t n)
{
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    struct pith_work w = PITH_WORK_INIT;
    struct str s;
    params.family = family;
    params.tools = of_tools;
    params.partial = 1;
    str_init(&s, PITH_MEM_SCRATCH);
    str_put(&s, begin.p, begin.n);
    while (s.n < n)
        str_putz(&s, filler);
    pith_chat_parser *p = pith_chat_open(NULL, &params, NULL);
    CHECK(p && pith_work_begin(&w, NULL) == PITH_OK);
    for (size_t i = 0; p && i < n; i += 4)
        CHECK(pith_chat_feed(p, s.p + i, n - i < 4 ? n - i : 4, NULL) == PITH_OK);
    CHECK(p && pith_chat_finish(p, NULL) == PITH_OK);
    pith_work_end(&w);
    pith_chat_close(p);
    str_deinit(&s);
    return w.steps;
}

/* However long one thing is that does not end, each of its pieces costs the same. */
static void endless_parts_are_read_once(void)
{
    static const struct {
        const char *family, *begin, *filler;
    } v[] = {{"lfm2", "<|tool_call_start|>[f(), g", " "},
             {"lfm2", "<|tool_call_start|>[f(k", "k"},
             {"minimax-m3",
              "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<u>", " "},
             {"minimax-m3",
              "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<u>",
              "]<]minimax[>[<a>"}};
    static const char *const fillers[] = {" ", "x", "\"", "\\"};
    enum { N = 2048, CUTS = 3 };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct slice begin = slice_of(v[i].begin);
        uint64_t one = steps_of(v[i].family, tools, begin, v[i].filler, N),
                 two = steps_of(v[i].family, tools, begin, v[i].filler, 2 * (size_t)N);
        CHECK_MSG(two < 3 * one, "%s: %llu steps, twice as long %llu", v[i].begin,
                  (unsigned long long)one, (unsigned long long)two);
    }
    for (int i = 0; i < N_ROWS; i++) {
        size_t n;
        char *text = sample(&rows[i], &n);
        for (size_t k = 0; k < CUTS * sizeof fillers / sizeof *fillers; k++) {
            const char *filler = fillers[k / CUTS];
            double at = rng_uniform(1, (uint64_t)i, k);
            struct slice begin = {text, (size_t)(at * (double)n)};
            uint64_t one = steps_of(rows[i].family, tools, begin, filler, N),
                     two = steps_of(rows[i].family, tools, begin, filler, 2 * (size_t)N);
            CHECK_MSG(two < 3 * one, "%s: %.*s and then %s: %llu steps, twice as long %llu",
                      rows[i].family, (int)begin.n, begin.p, filler, (unsigned long long)one,
                      (unsigned long long)two);
        }
        free(text);
    }
}

/* What the schemas of tools say is looked at once, not for each piece of an answer. */
static void large_tools_cost_no_more(void)
{
    static const char call[] =
        "<tool_call>f\n<arg_key>k</arg_key><arg_value>-1</arg_value></tool_call>\n";
    uint64_t steps[2];
    for (int large = 0; large < 2; large++) {
        struct str s;
        str_init(&s, PITH_MEM_SCRATCH);
        str_putz(&s, "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"k\":{\"anyOf\":[{");
        for (int i = 0; large && i < 5000; i++)
            str_putz(&s, "},{");
        str_putz(&s, "}]}");
        for (int i = 0; large && i < 5000; i++)
            str_printf(&s, ",\"%d\":{}", i);
        str_putz(&s, "}}}");
        for (int i = 0; large && i < 1000; i++)
            str_printf(&s, ",{\"name\":\"f%d\"}", i);
        str_putz(&s, "]");
        steps[large] = steps_of("glm", s.p, SLICE(""), call, 20 * (sizeof call - 1));
        str_deinit(&s);
    }
    CHECK_MSG(steps[1] == steps[0], "%llu steps, with large tools %llu",
              (unsigned long long)steps[0], (unsigned long long)steps[1]);
}

int main(void)
{
    TEST(endless_parts_are_read_once);
    TEST(large_tools_cost_no_more);
    TEST(reasoning_that_is_cut_short);
    TEST(no_end);
    TEST(every_family);
    TEST(no_longer_than_a_value);
    TEST(any_cut);
    TEST(ends_early);
    TEST(damaged);
    TEST(what_is_none);
    return test_end();
}
