/* test_chat_parse.c -- answers of models taken apart. First what published templates render: an
 * assistant's message with its calls is rendered, the text behind the generation prompt is parsed
 * back in pieces of 1, 2, 3, 7 bytes, at random cuts and whole, and the same calls, content and
 * reasoning must come out, and the same again where calls are told while they come. Then forms that
 * no template at hand renders, malformed answers, damage, limits, refused memory. */
#include <dirent.h>
#include <jansson.h>

#include "robust.h"
#include "text/jinja/jinja.h"

/* ---------------------------------------------------------------- parsing in pieces */

/* What came as events, to be compared with what the parser holds in the end. */
enum { CALLS_MAX = 64 };
struct heard {
    struct str said[2], args[CALLS_MAX];
    int32_t n_calls, whole[CALLS_MAX];
    int wrong, partial;
};

/* Another call, or with `partial` more of one that is not whole. */
static void hear_call(struct heard *h, const struct pith_chat_event *e)
{
    int more = e->index < h->n_calls;
    if (e->index < 0 || e->index > h->n_calls || e->index >= CALLS_MAX) {
        h->wrong++;
        return;
    }
    h->n_calls += !more;
    h->wrong += !e->name[0] || !e->id[0] || (more && h->whole[e->index]) ||
                (h->partial ? !e->n_bytes && !e->whole : more || !e->whole);
    str_put(&h->args[e->index], e->text, e->n_bytes);
    h->whole[e->index] = e->whole;
}

static void hear(void *ctx, const struct pith_chat_event *e)
{
    struct heard *h = ctx;
    if (e->kind == PITH_CHAT_CALL)
        hear_call(h, e);
    else
        str_put(&h->said[e->kind], e->text, e->n_bytes);
    h->wrong += e->kind != PITH_CHAT_CALL && !e->n_bytes;
}

static json_t *text_of(const pith_chat_parser *p, pith_chat_kind kind)
{
    size_t n;
    const char *s = pith_chat_text(p, kind, &n);
    json_t *v = json_stringn(s, n);
    return v ? v : json_pack("s", "(not UTF-8)");
}

/* {"content", "reasoning", "calls": [[name, arguments (with `partial` as a text), id, whole]...]};
 * the pieces' length by `cut`, random where it is 0. */
static json_t *parse(const pith_template *t, struct pith_chat_params params, const char *text,
                     size_t n, size_t cut, uint64_t *rng)
{
    struct pith_error err = {0};
    struct heard h = {.partial = params.partial};
    params.on_event = hear;
    params.ctx = &h;
    pith_chat_parser *p = pith_chat_open(t, &params, &err);
    CHECK_MSG(p, "%s", err.msg);
    for (size_t i = 0, k; p && i < n; i += k) {
        *rng = *rng * 6364136223846793005u + 1442695040888963407u;
        k = cut ? cut : 1 + (size_t)(*rng >> 33) % 12;
        k = k < n - i ? k : n - i;
        CHECK(pith_chat_feed(p, text + i, k, &err) == PITH_OK);
    }
    CHECK(pith_chat_finish(p, &err) == PITH_OK && pith_chat_finish(p, &err) == PITH_OK);
    CHECK(pith_chat_feed(p, "x", 1, &err) == PITH_STATE);
    json_t *calls = json_array();
    for (int32_t i = 0; i < pith_chat_n_calls(p); i++) {
        const struct pith_chat_event *e = pith_chat_call(p, i);
        json_t *args = json_loadb(e->text, e->n_bytes, JSON_REJECT_DUPLICATES, NULL);
        CHECK_MSG(json_is_object(args) || !e->whole, "arguments %.*s", (int)e->n_bytes, e->text);
        CHECK_MSG(e->n_bytes == h.args[i].n && !memcmp(e->text, h.args[i].p, e->n_bytes) &&
                      e->whole == h.whole[i],
                  "told %.*s, is %.*s", (int)h.args[i].n, h.args[i].p, (int)e->n_bytes, e->text);
        if (params.partial) {
            json_decref(args);
            args = json_stringn_nocheck(e->text, e->n_bytes);
        }
        json_array_append_new(calls, json_pack("[sosi]", e->name, args, e->id, e->whole));
        str_deinit(&h.args[i]);
    }
    CHECK(!pith_chat_call(p, -1) && !pith_chat_call(p, pith_chat_n_calls(p)));
    CHECK_MSG(!h.wrong && h.n_calls == pith_chat_n_calls(p), "%d events are wrong", h.wrong);
    for (int i = 0; i < 2; i++) {
        size_t m;
        const char *s = pith_chat_text(p, (pith_chat_kind)i, &m);
        CHECK(m == h.said[i].n && (!m || !memcmp(s, h.said[i].p, m)));
        str_deinit(&h.said[i]);
    }
    json_t *all = json_pack("{sososo}", "content", text_of(p, PITH_CHAT_CONTENT), "reasoning",
                            text_of(p, PITH_CHAT_REASONING), "calls", calls);
    pith_chat_close(p);
    return all;
}

/* What was told while it came is what came whole, but that a call which has begun stays one. */
static int told_same(const json_t *all, const json_t *told)
{
    const json_t *a = json_object_get(all, "calls"), *b = json_object_get(told, "calls"), *call;
    size_t i;
    int same = json_array_size(a) == json_array_size(b), broken = 0;
    json_array_foreach(b, i, call)
    {
        const json_t *was = json_array_get(a, i);
        json_t *args =
            json_loads(json_string_value(json_array_get(call, 1)), JSON_REJECT_DUPLICATES, NULL);
        same = same && json_equal(json_array_get(was, 0), json_array_get(call, 0)) &&
               json_equal(json_array_get(was, 1), args);
        broken |= !json_integer_value(json_array_get(call, 3));
        json_decref(args);
    }
    return broken ||
           (same && json_equal(json_object_get(all, "content"), json_object_get(told, "content")) &&
            json_equal(json_object_get(all, "reasoning"), json_object_get(told, "reasoning")));
}

/* Whole, then in pieces: the same must come every time. In make check the pieces are of one byte,
 * and random. */
static json_t *parse_at_cuts(const pith_template *t, struct pith_chat_params params,
                             const char *text, size_t n)
{
    static const size_t cuts[] = {1, 2, 3, 7};
    uint64_t rng = n;
    json_t *all[2];
    for (params.partial = 0; params.partial < 2; params.partial++) {
        json_t *first = all[params.partial] = parse(t, params, text, n, n + 1, &rng);
        for (int i = 0; i < 4 + (int)test_scale(); i += test_scale() < 10 ? 4 : 1) {
            json_t *other = parse(t, params, text, n, i < 4 ? cuts[i] : 0, &rng);
            char *a = json_dumps(first, 0), *b = json_dumps(other, 0);
            CHECK_MSG(json_equal(first, other), "pieces of %zu: %s\nwhole: %s", i < 4 ? cuts[i] : 0,
                      b, a);
            free(a);
            free(b);
            json_decref(other);
        }
    }
    CHECK_MSG(told_same(all[0], all[1]), "told while it came: %s\nwhole: %s", json_dumps(all[1], 0),
              json_dumps(all[0], 0));
    json_decref(all[1]);
    return all[0];
}

/* ---------------------------------------------------------------- round trips */

static int n_held;
static const char dir_name[] = "vectors/templates";

/* A family and what its template cannot keep: r the reasoning of a message with calls, R of any
 * message, c the content beside calls, n members that are null, q a quote in a string, t calls, s
 * text (it closes no reasoning before it, though the prompt opens one), j arguments that are a
 * string. */
static const struct {
    const char *file, *family, *loses;
} published[] = {
    {"Bielik-11B-v3.0-Instruct", "hermes", ""},
    {"ByteDance-Seed-OSS", "seed", ""},
    {"Cohere2MoE", "command-r7b", "c"},
    {"CohereForAI-c4ai-command-r-plus-tool_use", "command-r", "rR"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b", "cR"},
    {"GLM-4.6", "glm", ""},
    {"GLM-4.7-Flash", "glm", ""},
    {"Kimi-K2-Instruct", "kimi-k2", "Rr"},
    {"Kimi-K2-Thinking", "kimi-k2", "R"},
    {"Kimi-K3", "kimi-k3", ""},
    {"LFM2.5-8B-A1B", "lfm2", "rRq"},
    {"LFM2.5-Instruct", "lfm2", "rRt"},
    {"MiMo-VL", "hermes", "rR"},
    {"MiniMax-M1", "minimax-m1", "crR"},
    {"MiniMax-M2", "minimax-m2", ""},
    {"MiniMax-M3", "minimax-m3", "n"},
    {"NVIDIA-Nemotron-Nano-v2", "nemotron-v2", "crRs"},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", "crR"},
    {"Qwen-QwQ-32B", "hermes", "rR"},
    {"Qwen-Qwen2.5-7B-Instruct", "hermes", "rR"},
    {"Qwen-Qwen3-0.6B", "hermes", ""},
    {"Qwen3-Coder", "qwen3-coder", "rR"},
    {"Qwen3.5-4B", "qwen3-coder", ""},
    {"Reka-Edge", "hermes", "rR"},
    {"Spark2.5", "glm", ""},
    {"StepFun3.5-Flash", "qwen3-coder", ""},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", "crRj"},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek", "rRj"},
    {"fireworks-ai-llama-3-firefunction-v2", "firefunction", "rR"},
    {"google-gemma-2-2b-it", "gemma", "rRt"},
    {"ibm-granite-granite-3.3-2B-Instruct", "granite", "rRt"},
    {"ibm-granite-granite-4.0", "hermes", "rR"},
    {"ibm-granite-granite-4.1", "hermes", "rR"},
    {"inclusionai-ling-3.0-flash", "glm", ""},
    {"meetkai-functionary-medium-v3.2", "functionary", "rR"},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama-3", "crR"},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama-3", "crR"},
    {"muse-glimmer", "atem", "c"},
    {"openbmb-MiniCPM5-1B", "minicpm5", ""},
    {"poolside-Laguna-S-2.1", "glm", ""},
    {"poolside-Laguna-XS-2.1", "glm", ""},
    {"tencent-Hy3", "hunyuan-3", ""},
    {"upstage-Solar-Open-100B", "solar", "crR"},
};
enum { N_PUBLISHED = sizeof published / sizeof *published };

static char *render(const struct jinja *t, const json_t *c, json_t *messages, int generate,
                    size_t *n)
{
    struct str out;
    json_t *o =
        json_pack("{sOsOsbsOsOsO}", "messages", messages, "tools", json_object_get(c, "tools"),
                  "add_generation_prompt", generate, "bos_token", json_object_get(c, "bos_token"),
                  "eos_token", json_object_get(c, "eos_token"), "now", json_object_get(c, "now"));
    json_object_update(o, json_object_get(c, "kwargs"));
    char *text = json_dumps(o, 0), *copy = NULL;
    str_init(&out, PITH_MEM_SCRATCH);
    if (jinja_render(t, text, strlen(text), NULL, &out, NULL) == PITH_OK) {
        copy = malloc(out.n + 1);
        memcpy(copy, out.n ? out.p : "", out.n + (out.n > 0));
        copy[out.n] = 0;
        *n = out.n;
    }
    free(text);
    json_decref(o);
    str_deinit(&out);
    return copy;
}

/* Where the model's text ends: what a token that ends a generation, or the next turn, would be. */
static size_t answer_end(const char *text)
{
    static const char *const ends[] = {"<|im_end|>",
                                       "<|eot_id|>",
                                       "<seed:eos>",
                                       "<|END_OF_TURN_TOKEN|>",
                                       "\n<|START_OF_TURN_TOKEN|>",
                                       "<|end_of_text|>",
                                       "<｜end▁of▁sentence｜>",
                                       "<SPECIAL_12>",
                                       "[e~[",
                                       "<end_of_sentence>",
                                       "\n\n<sep>",
                                       "</assistant>",
                                       "<|role_end|>",
                                       "<｜hy_eos",
                                       "<|end_of_msg|>",
                                       "<end_of_turn>"};
    size_t n = strlen(text);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *at = strstr(text, ends[i]);
        if (at && (size_t)(at - text) < n)
            n = (size_t)(at - text);
    }
    return n;
}

/* The message's text without its prompt. A prompt that opens or closes the reasoning is shortened,
 * marker by marker, to where the rendered message begins with it. */
static char *answer_of(const struct jinja *t, const json_t *c, size_t i, char **prompt,
                       size_t *n_prompt)
{
    json_t *all = json_object_get(c, "messages"), *before = json_array();
    size_t n_whole = 0;
    for (size_t k = 0; k < i; k++)
        json_array_append(before, json_array_get(all, k));
    *prompt = render(t, c, before, 1, n_prompt);
    json_array_append(before, json_array_get(all, i));
    char *whole = render(t, c, before, 0, &n_whole), *answer = NULL;
    while (whole && *prompt && (*n_prompt > n_whole || memcmp(whole, *prompt, *n_prompt) != 0)) {
        size_t n = *n_prompt;
        while (n && !strchr("<]", (*prompt)[--n])) {
        }
        *n_prompt = n;
        (*prompt)[n] = 0;
    }
    if (whole && *prompt) {
        const char *from = whole + *n_prompt;
        from += strncmp(from, "<|CHATBOT_TOKEN|>", 17)
                    ? 0
                    : 17; /* Command R's system text stood between */
        answer = strdup(from);
        answer[answer_end(answer)] = 0;
    }
    free(whole);
    json_decref(before);
    return answer;
}

static json_t *without_nulls(json_t *args)
{
    const char *key;
    json_t *v, *o = json_object();
    json_object_foreach(args, key, v) if (!json_is_null(v)) json_object_set(o, key, v);
    return o;
}

static int same_calls(json_t *want, const json_t *got, int no_nulls)
{
    size_t i;
    json_t *w;
    int same = json_array_size(want) == json_array_size(got);
    json_array_foreach(want, i, w)
    {
        json_t *f = json_object_get(w, "function"), *args = json_object_get(f, "arguments"),
               *call = json_array_get(got, i);
        args = json_is_string(args) ? json_loads(json_string_value(args), 0, NULL)
               : no_nulls           ? without_nulls(args)
                                    : json_incref(args);
        same = same && json_equal(json_object_get(f, "name"), json_array_get(call, 0)) &&
               json_equal(args, json_array_get(call, 1));
        json_decref(args);
    }
    return same;
}

static int has_quote(json_t *m)
{
    char *text = json_dumps(m, 0);
    int has = strchr(text, '\'') != NULL;
    free(text);
    return has;
}

static const char *string_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Equal but for white space at the ends: Reka's answers begin with a blank. */
static int same_text(const char *a, const char *b)
{
    size_t n, m;
    a += strspn(a, " \n");
    b += strspn(b, " \n");
    for (n = strlen(a); n && strchr(" \n", a[n - 1]);)
        n--;
    for (m = strlen(b); m && strchr(" \n", b[m - 1]);)
        m--;
    return n == m && !memcmp(a, b, n);
}

static void compare(const char *file, const char *loses, const json_t *c, json_t *m,
                    const json_t *got, const char *answer)
{
    json_t *calls = json_object_get(m, "tool_calls");
    const char *content = strchr(loses, 'c') && calls ? "" : string_of(m, "content");
    int none = json_is_null(json_object_get(m, "content")) &&
               !strcmp(string_of(got, "content"), "None"); /* as the template wrote it */
    const char *reasoning =
        strchr(loses, calls ? 'r' : 'R') ? "" : string_of(m, "reasoning_content");
    CHECK_MSG(same_calls(calls, json_object_get(got, "calls"), strchr(loses, 'n') != NULL) &&
                  (none || same_text(content, string_of(got, "content"))) &&
                  !strcmp(reasoning, string_of(got, "reasoning")),
              "%s, %s: from\n%s\ncame %s", file, string_of(c, "name"), answer, json_dumps(got, 0));
}

/* The tools as text, with those arguments of a message's calls that no property is about; NULL:
 * none. */
static char *with_arguments(json_t *list, json_t *m)
{
    json_t *all = json_deep_copy(list), *tool, *call, *v;
    const char *key;
    size_t i, k;
    json_array_foreach(json_object_get(m, "tool_calls"), i, call) json_array_foreach(all, k, tool)
    {
        json_t *f = json_object_get(call, "function"), *own = json_object_get(tool, "function"),
               *properties = json_object_get(json_object_get(own, "parameters"), "properties");
        if (json_equal(json_object_get(f, "name"), json_object_get(own, "name")))
            json_object_foreach(json_object_get(f, "arguments"), key,
                                v) if (!json_object_get(properties, key))
                json_object_set_new(properties, key, json_object());
    }
    char *text = json_array_size(all) ? json_dumps(all, 0) : NULL;
    json_decref(all);
    return text;
}

/* Whether the rules of calls in the family's own form let an answer pass that the template wrote.
 */
static void check_held(const char *file, const struct jinja *t, json_t *list, json_t *m,
                       const char *answer)
{
    char *tools = with_arguments(list, m);
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    struct pith_error err = {0};
    p.calls_of = (const pith_template *)t;
    if (!tools || !pith_chat_opening(p.calls_of, NULL)) {
        free(tools);
        return;
    }
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_CALLS, tools, strlen(tools), &p, &err);
    CHECK_MSG(g, "%s: %s", file, err.msg);
    if (strstr(answer, "]<]minimax[>[<lang>")) /* lists and objects are held to JSON */
        answer = "";
    CHECK_MSG(!g || (pith_grammar_accept_text(g, answer, strlen(answer), &err) == PITH_OK &&
                     pith_grammar_complete(g)),
              "%s: %s: %s", file, err.msg, answer);
    n_held += g != NULL;
    free(tools);
    pith_grammar_close(g);
}

static int round_trips(const char *file, const struct jinja *t, const json_t *cases,
                       const char *loses)
{
    int n_trips = 0;
    size_t i, k;
    json_t *c, *m;
    json_array_foreach(cases, i, c) json_array_foreach(json_object_get(c, "messages"), k, m)
    {
        int last = k + 1 == json_array_size(json_object_get(c, "messages")) ||
                   json_object_get(m, "tool_calls");
        int plain = !json_object_get(m, "tool_calls") && !json_object_get(m, "reasoning_content");
        char *prompt = NULL, *answer = NULL;
        size_t n_prompt = 0;
        if (!strcmp(string_of(m, "role"), "assistant") && last && !plain &&
            !(strchr(loses, 't') && json_object_get(m, "tool_calls")) &&
            !(strchr(loses, 'q') && has_quote(m)))
            answer = answer_of(t, c, k, &prompt, &n_prompt);
        int skip =
            answer &&
            (!answer[strspn(answer, " \n")] || (strchr(loses, 's') && string_of(m, "content")[0]) ||
             (strchr(loses, 'j') && !strcmp(string_of(c, "name"), "tool_call_str")));
        if (answer && !skip) {
            struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
            char *tools = json_dumps(json_object_get(c, "tools"), JSON_ENCODE_ANY);
            params.tools = strcmp(tools, "null") ? tools : NULL;
            params.prompt = prompt;
            params.prompt_bytes = n_prompt;
            check_held(file, t, json_object_get(c, "tools"), m, answer);
            json_t *got = parse_at_cuts((const pith_template *)t, params, answer, strlen(answer));
            compare(file, loses, c, m, got, answer);
            n_trips++;
            json_decref(got);
            free(tools);
        }
        free(prompt);
        free(answer);
    }
    return n_trips;
}

static void published_templates(void)
{
    int n_all = 0;
    for (int i = 0; i < N_PUBLISHED; i++) {
        char path[1024];
        size_t n, n_json;
        snprintf(path, sizeof path, "%s/%s/%s.jinja", test_shared(), dir_name, published[i].file);
        char *text = test_read(path, &n);
        snprintf(path, sizeof path, "%s/%s/%s.cases.json", test_shared(), dir_name,
                 published[i].file);
        char *json = test_read(path, &n_json);
        if (!text || !json)
            SKIP("no templates in %s", test_shared());
        json_t *cases = json_loads(json, 0, NULL);
        struct jinja *t = jinja_new(text, n, NULL);
        CHECK_MSG(!strcmp(pith_chat_family((const pith_template *)t), published[i].family),
                  "%s: family %s", published[i].file, pith_chat_family((const pith_template *)t));
        int trips = t ? round_trips(published[i].file, t, cases, published[i].loses) : 0;
        n_all += trips;
        if (getenv("VERBOSE"))
            printf("    %s: %d\n", published[i].file, trips);
        jinja_free(t);
        json_decref(cases);
        free(text);
        free(json);
    }
    printf("    %d messages there and back\n", n_all);
    CHECK(n_all > 200);
    printf("    %d of them by the rules of calls\n", n_held);
    CHECK(n_held > 60);
}

/* ---------------------------------------------------------------- other forms, and what is
 * malformed */

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"}}}}}]";

static const struct {
    const char *family, *prompt, *answer,
        *want; /* want: [content, reasoning, [[name, arguments]...]] */
} answers[] = {
    {"harmony", "<|start|>assistant",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|"
     "return|>",
     "['Hi', 'Hm.', []]"},
    {"harmony", "<|start|>assistant",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f "
     "<|constrain|>json<|message|>{\"n\": 1}<|call|>",
     "['', 'Hm.', [['f', {'n': 1}]]]"},
    {"harmony", "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{}",
     "['', '', [['f', {}]]]"},
    {"kimi-k2", "",
     "On "
     "it.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
     "\"n\": 1}<|tool_call_end|>"
     "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_"
     "section_end|>",
     "['On it.', '', [['f', {'n': 1}], ['g', {}]]]"},
    {"deepseek-v3.2", "<think>",
     "a</think>b<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
     "name=\"s\" string=\"true\">1"
     "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"q\" "
     "string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "['b', 'a', [['f', {'s': '1', 'q': [1]}]]]"},
    {"mistral", "",
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"}, {\"name\": "
     "\"g\"}]",
     "['', '', [['f', {'n': 1}], ['g', {}]]]"},
    {"mistral", "",
     "[THINK]t[/THINK]x[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
     "['x', 't', [['f', {'n': 1}], ['g', {}]]]"},
    {"granite", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "['', '', [['f', {}]]]"},
    {"llama-3", "",
     "{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"f\", \"parameters\": {}}",
     "['', '', [['f', {'n': 1}], ['f', {}]]]"},
    {"llama-3", "", "[f(n=1, s='a\\'b', o={'k': None}), f()]",
     "['', '', [['f', {'n': 1, 's': \"a'b\", 'o': {'k': null}}], ['f', {}]]]"},
    {"llama-3", "", "<|python_tag|>brave_search.call(query=\"x\")",
     "['', '', [['brave_search', {'query': 'x'}]]]"},
    {"llama-3", "", "<function=f>{\"n\": 1}</function>", "['', '', [['f', {'n': 1}]]]"},
    {"llama-3", "", "{\"name\": \"Ada\", \"parameters\": {}}",
     "['{\\\"name\\\": \\\"Ada\\\", \\\"parameters\\\": {}}', '', []]"},
    {"functionary", ">>>", "all\nHi>>>f\n{\"n\": 1}", "['Hi', '', [['f', {'n': 1}]]]"},
    {"functionary", ">>>", "f\n{\"n\": 1}", "['', '', [['f', {'n': 1}]]]"},
    {"gemma", "", "```tool_code\n[f(n=1)]\n```", "['', '', [['f', {'n': 1}]]]"},
    {"gemma", "", "```json\n{\"a\": 1}\n```", "['```json\\n{\\\"a\\\": 1}\\n```', '', []]"},
    {"generic", "", "{\"name\": \"f\", \"arguments\": {\"n\": 1}}", "['', '', [['f', {'n': 1}]]]"},
    {"qwen3-coder", "",
     "<function=f>\n<parameter=n>\n7\n</parameter>\n<parameter=s>\n7\n</parameter>\n</function>\n</"
     "tool_call>",
     "['', '', [['f', {'n': 7, 's': '7'}]]]"},
    {"hermes", "<think>\n", "a\n</think>\n\nb", "['b', 'a', []]"},
    {"hermes", "<think>\n", "<think>\na</think>b", "['b', 'a', []]"},
    {"hermes", "", "1 < 2 <tool", "['1 < 2 <tool', '', []]"},
    {"hermes", "", " a \n", "[' a \\n', '', []]"},
    {"hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "['<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": [1]}</tool_call>', '', []]"},
    {"hermes", "", "<tool_call>{\"name\": \"f\", \"argu",
     "['<tool_call>{\\\"name\\\": \\\"f\\\", \\\"argu', '', []]"},
    {"hermes", "", "<tool_call>oh <tool_call>{\"name\": \"f\"}</tool_call>",
     "['<tool_call>oh', '', [['f', {}]]]"},
    {"hermes", "", "a <tool_call>{\"name\": \"f\"}</tool_c", "['a', '', [['f', {}]]]"},
    {"hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>",
     "['<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1, \\\"a\\\": "
     "2}}</tool_call>', '', []]"},
    {"hermes", "", "{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n{\"name\": \"f\"}",
     "['', '', [['f', {'n': 1}], ['f', {}]]]"},
    {"hermes", "", "{\"name\": \"Ada\", \"arguments\": {}}",
     "['{\\\"name\\\": \\\"Ada\\\", \\\"arguments\\\": {}}', '', []]"},
    {"hermes", "", "So:\n```json\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n```",
     "['So:', '', [['f', {'n': 1}]]]"},
    {"apertus", "",
     "<|inner_prefix|>a<|inner_suffix|>b<|tools_prefix|>[{\"f\": {\"n\": 1}}, {\"f\": "
     "{}}]<|tools_suffix|>c",
     "['bc', 'a', [['f', {'n': 1}], ['f', {}]]]"},
    {"apertus", "", "<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>",
     "['<|tools_prefix|>[{\\\"f\\\": 1}]<|tools_suffix|>', '', []]"},
    {"gigachat-3", "",
     "a<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
     "['a', '', [['f', {'n': 1}]]]"},
    {"gigachat-3", "", "a function call b<|message_sep|>\n\n", "['a function call b', '', []]"},
    {"seed", "", "<seed:tool_call><function=f><parameter=s>x",
     "['<seed:tool_call><function=f><parameter=s>x', '', []]"},
};

/* JSON with ' for ", so that the rows can be read. */
static json_t *loose(const char *text)
{
    char buf[2048], *to = buf;
    int quoted = 0;
    for (; *text; text++) {
        if (*text == '\\') {
            *to++ = *text++;
            *to++ = *text;
            continue;
        }
        quoted ^= *text == '"';
        *to++ = *text == '\'' && !quoted ? '"' : *text;
    }
    *to = 0;
    return json_loads(buf, JSON_DECODE_ANY, NULL);
}

static void other_forms(void)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
        params.family = answers[i].family;
        params.prompt = answers[i].prompt;
        params.prompt_bytes = strlen(answers[i].prompt);
        params.tools = tools;
        json_t *got = parse_at_cuts(NULL, params, answers[i].answer, strlen(answers[i].answer)),
               *call;
        json_t *want = loose(answers[i].want), *calls = json_object_get(got, "calls");
        size_t k;
        json_array_foreach(calls, k, call)
        {
            json_array_remove(call, 3);
            json_array_remove(call, 2);
        }
        CHECK_MSG(want && json_equal(json_array_get(want, 0), json_object_get(got, "content")) &&
                      json_equal(json_array_get(want, 1), json_object_get(got, "reasoning")) &&
                      json_equal(json_array_get(want, 2), calls),
                  "%s: from\n%s\ncame %s", answers[i].family, answers[i].answer,
                  json_dumps(got, 0));
        json_decref(got);
        json_decref(want);
    }
}

/* What has been told of the last call when the text comes no further, and what then becomes of it.
 */
static void while_they_come(void)
{
    static const struct {
        const char *family, *text, *args; /* NULL: nothing */
        int n;
    } rows[] = {
        {"hermes", "<tool_call>\n{\"name\": \"f", NULL, 0},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {", "{", 1},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a}\\", "{\"s\": \"a}\\",
         1},
        {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"o\":{\"o\":{}},\"n\":1}",
         "{\"o\":{\"o\":{}},\"n\":1}", 1},
        {"hermes", "<tool_call>{\"arguments\":{\"n\":1},\"name\":\"f\"", NULL, 0},
        {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1", "{\"n\":1", 1},
        {"hermes", "<tool_call>{\"function\":{\"name\":\"f\",\"arguments\":{\"n\":", "{\"n\":", 1},
        {"hermes",
         "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\",\"arguments\":{\"n\":",
         "{\"n\":", 2},
        {"mistral",
         "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\",\"arguments\":{\"n\":1",
         "{\"n\":1", 2},
        {"mistral", "[TOOL_CALLS]f[ARGS]{\"n\": 1", "{\"n\": 1", 1},
        {"harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\"",
         "{\"n\"", 1},
        {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"é",
         "{\"s\": \"é", 1},
        {"kimi-k2",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
         "{",
         "{", 1},
        {"solar", "<|tool_calls|><|tool_call:begin|>i<|tool_call:name|>f<|tool_call:args|>{\"n\":1",
         "{\"n\":1", 1},
        {"llama-3", "{\"name\": \"f\", \"parameters\": {\"n\": 1", "{\"n\": 1", 1},
        {"llama-3", "{\"name\": \"Ada\", \"parameters\": {\"n\": 1", NULL, 0},
        {"llama-3", "[f(", NULL, 0},
        {"llama-3", "[f(n=1", "{\"n\":", 1},
        {"seed", "<seed:tool_call><function=f><parameter=n>", "{\"n\":", 1},
        {"seed", "<seed:tool_call><function=f><parameter=n>1</parameter>", "{\"n\":1", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
        params.family = rows[i].family;
        params.prompt = "";
        params.tools = tools;
        params.partial = 1;
        pith_chat_parser *p = pith_chat_open(NULL, &params, NULL);
        REQUIRE(p, "%s", rows[i].family);
        CHECK(pith_chat_feed(p, rows[i].text, strlen(rows[i].text), NULL) == PITH_OK);
        for (int end = 0; end < 2; end++) {
            const struct pith_chat_event *e = pith_chat_call(p, pith_chat_n_calls(p) - 1);
            size_t n_content;
            pith_chat_text(p, PITH_CHAT_CONTENT, &n_content);
            CHECK_MSG(pith_chat_n_calls(p) == rows[i].n, "row %zu: %d calls", i,
                      pith_chat_n_calls(p));
            CHECK_MSG(rows[i].args ? e && !e->whole && e->n_bytes == strlen(rows[i].args) &&
                                         !memcmp(e->text, rows[i].args, e->n_bytes)
                                   : !e,
                      "row %zu: %.*s", i, e ? (int)e->n_bytes : 0, e ? e->text : "");
            CHECK_MSG(!n_content || !rows[i].n, "row %zu: %zu bytes of content", i, n_content);
            CHECK(pith_chat_finish(p, NULL) == PITH_OK);
        }
        pith_chat_close(p);
        json_decref(parse_at_cuts(NULL, params, rows[i].text, strlen(rows[i].text)));
    }
}

/* Calls of one list. */
static void lists_while_they_come(void)
{
    /* One that has been told is whole when its list is, though another of the list is no call. */
    static const char list[] = "[{\"name\": \"f\", \"parameters\": {\"n\": 1}}, {\"name\": "
                               "\"nobody\", \"parameters\": {}}]";
    struct pith_chat_params params = {
        .size = sizeof params, .family = "llama-3", .prompt = "", .tools = tools, .partial = 1};
    pith_chat_parser *p = pith_chat_open(NULL, &params, NULL);
    CHECK(p && pith_chat_feed(p, list, sizeof list - 1, NULL) == PITH_OK &&
          pith_chat_finish(p, NULL) == PITH_OK);
    CHECK(p && pith_chat_n_calls(p) == 1 && pith_chat_call(p, 0)->whole);
    pith_chat_close(p);
    /* Behind very many the rest comes whole. */
    enum { MANY = 100 };
    params.family = "mistral";
    p = pith_chat_open(NULL, &params, NULL);
    CHECK(p && pith_chat_feed(p, "[TOOL_CALLS][", 13, NULL) == PITH_OK);
    for (int i = 0; p && i < MANY; i++) {
        char call[64];
        int n = snprintf(call, sizeof call, "%s{\"name\":\"f\",\"arguments\":{\"n\":%d}}%s",
                         i ? "," : "", i, i + 1 == MANY ? "]" : "");
        CHECK(pith_chat_feed(p, call, (size_t)n, NULL) == PITH_OK);
    }
    CHECK(p && pith_chat_finish(p, NULL) == PITH_OK && pith_chat_n_calls(p) == MANY);
    for (int i = 0; p && i < pith_chat_n_calls(p); i++) {
        const struct pith_chat_event *e = pith_chat_call(p, i);
        char want[24];
        int n = snprintf(want, sizeof want, "{\"n\":%d}", i);
        CHECK_MSG(e->whole && e->n_bytes == (size_t)n && !memcmp(e->text, want, e->n_bytes),
                  "call %d: %.*s", i, (int)e->n_bytes, e->text);
    }
    pith_chat_close(p);
}

/* Without tools, whatever stands there is content. */
static void no_tools(void)
{
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    const char *text = "<tool_call>{\"name\": \"f\"}</tool_call>";
    params.tools = "[]";
    json_t *got = parse_at_cuts(NULL, params, text, strlen(text));
    CHECK(!strcmp(string_of(got, "content"), text));
    json_decref(got);
}

/* Those that another parser has read are one's own, whatever `tools` says. */
static void tools_of_another(void)
{
    static const char *const lists[] = {"[]", tools};
    const char *text = "<tool_call>{\"name\": \"f\"}</tool_call>";
    for (int i = 0; i < 2; i++) {
        struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
        params.tools = lists[i];
        pith_chat_parser *first = pith_chat_open(NULL, &params, NULL);
        params.tools = i ? "[]" : NULL;
        params.tools_of = first;
        json_t *got = parse_at_cuts(NULL, params, text, strlen(text));
        CHECK(first && json_array_size(json_object_get(got, "calls")) == (size_t)i &&
              !strcmp(string_of(got, "content"), i ? "" : text));
        json_decref(got);
        pith_chat_close(first);
    }
}

/* Any text of markers and scraps: the same at every cut, and none of a text without markers is
 * lost. */
static void random_texts(void)
{
    static const char *const scraps[] = {"<tool_call>",
                                         "</tool_call>",
                                         "{\"name\":",
                                         "\"f\"",
                                         "}",
                                         "{",
                                         "\"arguments\":",
                                         ",",
                                         "<think>",
                                         "</think>",
                                         "<function=",
                                         "f>",
                                         "<parameter=",
                                         "</parameter>",
                                         "</function>",
                                         " ",
                                         "\n",
                                         "x",
                                         "[f(",
                                         "a=1",
                                         ")]",
                                         "[TOOL_CALLS]",
                                         "[ARGS]",
                                         "<|python_tag|>",
                                         "<",
                                         "é",
                                         "<|channel|>",
                                         "analysis<|message|>",
                                         "<|end|>",
                                         "```json",
                                         "```",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         ">>>",
                                         "'",
                                         "\\"};
    static const char *const families[] = {"hermes",  "qwen3-coder", "mistral",
                                           "llama-3", "harmony",     "glm",
                                           "gemma",   "functionary", "generic"};
    uint64_t rng = 1;
    for (long k = 0; k < 100 * test_scale(); k++) {
        char text[512] = "";
        for (int i = 0; i < 24; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            strcat(text, scraps[(rng >> 33) % (sizeof scraps / sizeof *scraps)]);
        }
        struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
        params.family = families[(size_t)k % (sizeof families / sizeof *families)];
        params.prompt = "";
        json_decref(parse_at_cuts(NULL, params, text, strlen(text)));
    }
}

/* Every allocation refused in turn: PITH_NOMEM or all as it should be, and nothing is left behind.
 */
static void refused_memory(void)
{
    static const char *const rows[][2] = {
        {"seed", "<seed:think>a</seed:think>b<seed:tool_call><function=f><parameter=o>{'k': "
                 "[1]}</parameter></function></seed:tool_call>"},
        {"hermes", "b<think>a</think><tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"o\\\": "
                   "{}}\"}</tool_call>"},
        {"hermes", "b<tool_call>{\"name\": \"f\", \"arguments\": {\"o\": {}}}</tool_call>"},
        {"llama-3", "[f(n=1, s='x')]"},
        {"gemma-4", "<|tool_call>call:f{n:1,s:<|\"|>x<|\"|>}<tool_call|>"},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    for (size_t k = 0; k < 2 * N_ROWS; k++) {
        struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
        size_t row = k % N_ROWS;
        const char *text = rows[row][1];
        params.family = rows[row][0];
        params.prompt = "x";
        params.prompt_bytes = 1;
        params.tools = tools;
        params.partial = k >= N_ROWS;
        long before = atomic_load(&hook.blocks);
        for (long n = 0; n < 1000; n++) {
            struct pith_error err = {0};
            hook_refuse(n, 0);
            pith_chat_parser *p = pith_chat_open(NULL, &params, &err);
            pith_status st = p ? PITH_OK : err.code;
            for (size_t i = 0; text[i] && st == PITH_OK; i++)
                st = pith_chat_feed(p, text + i, 1, &err);
            st = st == PITH_OK ? pith_chat_finish(p, &err) : st;
            long refused = hook_grant();
            CHECK_MSG(st != PITH_OK || pith_chat_n_calls(p) == 1,
                      "%s, refusal %ld: the call is lost", rows[row][0], n);
            pith_chat_close(p);
            CHECK_MSG(atomic_load(&hook.blocks) == before, "refusal %ld: blocks are held", n);
            if (!refused) {
                CHECK_MSG(st == PITH_OK && n > 5, "status %d after %ld allocations", st, n);
                break;
            }
            CHECK_MSG(st == PITH_NOMEM, "%s, refusal %ld: status %d", rows[row][0], n, st);
        }
    }
}

static void arguments(void)
{
    struct pith_error err;
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    params.tools = "{}";
    CHECK(!pith_chat_open(NULL, &params, &err) && err.code == PITH_FORMAT);
    params.tools = "[";
    CHECK(!pith_chat_open(NULL, &params, &err) && err.code == PITH_FORMAT);
    params.tools = NULL;
    params.family = "nobody";
    CHECK(!pith_chat_open(NULL, &params, &err) && err.code == PITH_RANGE);
    CHECK(pith_chat_feed(NULL, "", 0, &err) == PITH_RANGE &&
          pith_chat_finish(NULL, &err) == PITH_RANGE);
    CHECK(pith_chat_n_calls(NULL) == 0 && !pith_chat_call(NULL, 0));
    pith_chat_close(NULL);
}

/* The schema of calls compiles, and holds what the parser reads. */
static void grammar(void)
{
    char schema[4096];
    const char *trigger = "";
    struct pith_error err;
    int64_t n = pith_chat_grammar(NULL, tools, &trigger, schema, sizeof schema, &err);
    REQUIRE(n > 0 && !strcmp(trigger, "<tool_call>"), "%s", err.msg);
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, schema, (size_t)n, NULL, &err);
    REQUIRE(g, "%s", err.msg);
    const char *good = "{\"name\": \"f\", \"arguments\": {\"n\": 1}}", *bad = "{\"name\": \"g\"";
    CHECK(pith_grammar_accept_text(g, good, strlen(good), &err) == PITH_OK &&
          pith_grammar_complete(g));
    pith_grammar_reset(g);
    CHECK(pith_grammar_accept_text(g, bad, strlen(bad), &err) == PITH_STATE);
    pith_grammar_close(g);
    /* What $ref means is looked for in the parameters that it stands in; what only looks like one
     * is a value. */
    static const char nested[] =
        "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/"
        "$defs/n\"}},\"required\":[\"n\"],\"$defs\":{\"n\":{\"type\":\"integer\"}}}},"
        "{\"name\":\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{\"t\":{\"$ref\":\"#/"
        "$defs/tree\"},\"const\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"t\"],"
        "\"$defs\":{\"n\":{\"const\":{\"$ref\":\"#/"
        "x\"}},\"tree\":{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\","
        "\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"kids\"]}}}},"
        "{\"name\":\"h\",\"parameters\":{\"type\":\"object\",\"properties\":{\"more\":{\"anyOf\":[{"
        "\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"more\"]}}]";
    static const struct {
        const char *text;
        int good;
    } calls[] = {
        {"{\"name\": \"f\", \"arguments\": {\"n\": 1}}", 1},
        {"{\"name\": \"f\", \"arguments\": {\"n\": \"1\"}}", 0},
        {"{\"name\": \"g\", \"arguments\": {\"t\": {\"kids\":[{\"kids\":[]}]}}}", 1},
        {"{\"name\": \"g\", \"arguments\": {\"t\": {\"kids\":[1]}}}", 0},
        {"{\"name\": \"g\", \"arguments\": {\"const\":{\"$ref\":\"#/x\"},\"t\": {\"kids\":[]}}}",
         1},
        {"{\"name\": \"h\", \"arguments\": {\"more\":{\"more\":null}}}", 1},
        {"{\"name\": \"h\", \"arguments\": {\"more\":{\"n\":1}}}", 0}};
    n = pith_chat_grammar(NULL, nested, &trigger, schema, sizeof schema, &err);
    REQUIRE(n > 0 && n < (int64_t)sizeof schema, "%s", err.msg);
    g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, schema, (size_t)n, NULL, &err);
    REQUIRE(g, "%s in %.*s", err.msg, (int)n, schema);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int ok =
            pith_grammar_accept_text(g, calls[i].text, strlen(calls[i].text), &err) == PITH_OK &&
            pith_grammar_complete(g);
        CHECK_MSG(ok == calls[i].good, "%s: %d %s", calls[i].text, ok, err.msg);
        pith_grammar_reset(g);
    }
    pith_grammar_close(g);
    /* A tool without parameters is called with none. */
    static const char *const without[] = {"[{\"name\":\"f\"}]",
                                          "[{\"name\":\"f\",\"parameters\":null}]"};
    for (int i = 0; i < 2; i++) {
        n = pith_chat_grammar(NULL, without[i], &trigger, schema, sizeof schema, &err);
        REQUIRE(n > 0 && n < (int64_t)sizeof schema, "%s", err.msg);
        g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, schema, (size_t)n, NULL, &err);
        REQUIRE(g, "%s", err.msg);
        good = "{\"name\": \"f\", \"arguments\": {}}";
        bad = "{\"name\": \"f\", \"arguments\": {\"";
        CHECK(pith_grammar_accept_text(g, good, strlen(good), &err) == PITH_OK &&
              pith_grammar_complete(g));
        pith_grammar_reset(g);
        CHECK(pith_grammar_accept_text(g, bad, strlen(bad), &err) == PITH_STATE);
        pith_grammar_close(g);
    }
    CHECK(!strcmp(pith_chat_answer(NULL), "</think>") && !strcmp(pith_chat_think(NULL), "<think>"));
    CHECK(pith_chat_grammar(NULL, "[]", &trigger, schema, sizeof schema, &err) == -1 &&
          err.code == PITH_RANGE);
    CHECK(pith_chat_grammar(NULL, "[{}]", &trigger, schema, sizeof schema, &err) == -1 &&
          err.code == PITH_FORMAT);
}

int main(void)
{
    hook_install();
    TEST(published_templates);
    TEST(other_forms);
    TEST(while_they_come);
    TEST(lists_while_they_come);
    TEST(no_tools);
    TEST(tools_of_another);
    TEST(random_texts);
    TEST(refused_memory);
    TEST(arguments);
    TEST(grammar);
    return test_end();
}
