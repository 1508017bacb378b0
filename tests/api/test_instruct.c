/* test_instruct.c -- a real instruct model (scripts/instruct.sh) in conversation, by the public
 * functions alone: the second turn reuses the first one's cache, an answer bound to a schema
 * satisfies it, a tool call is read back. Skipped by name where the model is not. */
#include <jansson.h>
#include <pith.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static pith_model *model;
static pith_session *session;
static const pith_template *form;

/* Has the conversation answered, greedily or by the sampler given. The answer is malloc's. */
static char *answer(json_t *messages, json_t *tools, pith_sampler *sampler,
                    struct pith_generate_result *result)
{
    enum { MOST = 16384 };
    struct pith_error err = {0};
    json_t *vars = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
    if (tools)
        json_object_set(vars, "tools", tools);
    char *json = json_dumps(vars, JSON_COMPACT), *text = calloc(1, MOST);
    static int32_t ids[MOST];
    pith_prompt *prompt = pith_prompt_open(form, json, strlen(json), &err);
    int64_t n_ids = prompt ? pith_prompt_tokenize(prompt, model, 0, ids, MOST, &err) : -1;
    CHECK_MSG(n_ids > 0 && n_ids <= MOST, "%s", err.msg);
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    p.tokens = ids;
    p.n_tokens = (size_t)n_ids;
    p.n_max = 96;
    p.sampler = sampler;
    p.text = text;
    p.text_cap = MOST;
    CHECK_MSG(pith_generate(session, &p, result, &err) == PITH_OK, "%s", err.msg);
    json_decref(vars);
    free(json);
    pith_prompt_close(prompt);
    return text;
}

static json_t *question(const char *text)
{
    return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
}

static void check_two_turns(void)
{
    struct pith_generate_result one = PITH_GENERATE_RESULT_INIT, two = one;
    json_t *messages = question("What is the capital of France? Answer with one word.");
    char *text = answer(messages, NULL, NULL, &one);
    CHECK_MSG(strstr(text, "Paris"), "%s", text);
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", text));
    json_array_append_new(messages,
                          json_pack("{s:s, s:s}", "role", "user", "content", "And of Italy?"));
    free(text);
    text = answer(messages, NULL, NULL, &two);
    CHECK_MSG(strstr(text, "Rome"), "%s", text);
    CHECK_MSG(two.n_kept >= one.n_prompt, "%d of the first turn's %d tokens were cached",
              two.n_kept, one.n_prompt);
    free(text);
    json_decref(messages);
}

/* Answers bound to a grammar. */
static char *bound_answer(json_t *messages, json_t *tools, pith_grammar_kind kind, const char *text)
{
    struct pith_error err = {0};
    struct pith_generate_result result = PITH_GENERATE_RESULT_INIT;
    struct pith_sampler_params params = PITH_SAMPLER_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    pith_model_get_info(model, &info, NULL);
    pith_sampler *sampler = pith_sampler_open(info.n_vocab, &params, &err);
    pith_grammar *grammar = pith_grammar_open(model, kind, text, strlen(text), NULL, &err);
    CHECK_MSG(sampler && grammar && pith_sampler_grammar(sampler, grammar, &err) == PITH_OK, "%s",
              err.msg);
    char *said = answer(messages, tools, sampler, &result);
    pith_sampler_close(sampler);
    pith_grammar_close(grammar);
    return said;
}

static void check_schema(void)
{
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": "
        "20}, "
        "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 150}}, "
        "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}";
    json_t *messages = question("Describe Alice, who is 30 years old, as JSON with name and age.");
    char *text = bound_answer(messages, NULL, PITH_GRAMMAR_SCHEMA, schema);
    json_t *found = json_loads(text, 0, NULL);
    CHECK_MSG(json_is_string(json_object_get(found, "name")) && json_object_size(found) == 2, "%s",
              text);
    CHECK_MSG(json_integer_value(json_object_get(found, "age")) == 30, "%s", text);
    json_decref(found);
    json_decref(messages);
    free(text);
}

static void check_tool_call(void)
{
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
        "\"The weather "
        "in a city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
        "\"string\"}}, \"required\": [\"city\"]}}}]";
    /* So small a model forgets the tags: it is held to them, as tool_choice "required" would. */
    static const char form_of_call[] = "root ::= \"<tool_call>\\n{\\\"name\\\": \\\"\" [a-z_]+ "
                                       "\"\\\", \\\"arguments\\\": {\\\"\" [a-z]+ "
                                       "\"\\\": \\\"\" [A-Za-z ]+ \"\\\"}}\\n</tool_call>\"";
    struct pith_error err = {0};
    json_t *list = json_loads(tools, 0, NULL),
           *messages = question("What is the weather in Paris?");
    char *text = bound_answer(messages, list, PITH_GRAMMAR_GBNF, form_of_call);
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    params.tools = tools;
    pith_chat_parser *parser = pith_chat_open(form, &params, &err);
    CHECK_MSG(parser, "%s", err.msg);
    for (size_t i = 0; parser && text[i]; i++) /* by bytes, as a stream might cut it */
        pith_chat_feed(parser, text + i, 1, &err);
    if (parser)
        pith_chat_finish(parser, &err);
    const struct pith_chat_event *call = parser ? pith_chat_call(parser, 0) : NULL;
    CHECK_MSG(call && !strcmp(call->name, "get_weather"), "no call in: %s", text);
    json_t *args = call ? json_loadb(call->text, call->n_bytes, 0, NULL) : NULL;
    const char *city = json_string_value(json_object_get(args, "city"));
    CHECK_MSG(city && strstr(city, "Paris"), "%s", text);
    json_decref(args);
    pith_chat_close(parser);
    free(text);
    json_decref(list);
    json_decref(messages);
}

static const char absent[] = "TEST_INSTRUCT names no model (make test fetches one)";

static void two_turns(void)
{
    if (!form)
        SKIP("%s", absent);
    check_two_turns();
}

static void schema_bound(void)
{
    if (!form)
        SKIP("%s", absent);
    check_schema();
}

static void tool_call(void)
{
    if (!form)
        SKIP("%s", absent);
    check_tool_call();
}

static void open_model(void)
{
    const char *path = getenv("TEST_INSTRUCT");
    struct pith_error err = {0};
    struct pith_session_params params = PITH_SESSION_PARAMS_INIT;
    params.n_ctx = 2048;
    if (!path || !*path)
        SKIP("%s", absent);
    model = pith_model_open(path, NULL, &err);
    session = model ? pith_session_open(model, &params, &err) : NULL;
    form = session ? pith_model_template(model, NULL, &err) : NULL;
    REQUIRE(form, "%s", err.msg);
}

int main(void)
{
    TEST(open_model);
    TEST(two_turns);
    TEST(schema_bound);
    TEST(tool_call);
    pith_session_close(session);
    pith_model_close(model);
    return test_end();
}
