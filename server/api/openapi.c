/* openapi.c -- GET /openapi.json: what routes.def and fields.def say, as OpenAPI 3.1, with what
 * they cannot say: which fields have to be there, what is inside of objects and lists, and how
 * answers look. A schema here refuses nothing that the server takes, but further names of models;
 * who needs a key is told none. What it lets through may still be refused with 400 where no schema
 * can know better: grammars, templates, tokens, lengths in tokens. GET /docs: the same for people.
 * Both take long to make, so the server makes them once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/routes.h"
#include "server/http/auth.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/parts.h"
#include "server/request/fields.h"

/* ---------------------------------------------------------------- bodies */

static const struct {
    enum field_id id;
    unsigned endpoints;
} required[] = {
    {F_messages, E_CHAT | E_TEMPLATE | E_MESSAGES | E_COUNT},
    {F_messages_max_tokens, E_MESSAGES},
    {F_prompt, E_COMPLETE | E_COMPLETION},
    {F_query, E_RERANK},
    {F_items, E_RESPONSES},
    {F_content, E_TOKENIZE},
    {F_tokens, E_DETOKENIZE},
    {F_control_id, E_CONTROL},
    {F_control_action, E_CONTROL},
};

/* JSON as it is written. */
#define JSON(...) #__VA_ARGS__
#define TOKENS                                                                                     \
    JSON({"type" : "array", "minItems" : 1, "items" : {"type" : "integer", "minimum" : 0}})
#define TEXTS_OR_TOKENS                                                                            \
    "{\"anyOf\": [" JSON({"type" : "string"}) "," TOKENS "," JSON({"type" : "object"}) "," JSON({  \
        "type" : "array",                                                                          \
        "minItems" : 1,                                                                            \
        "maxItems" : 4096,                                                                         \
        "items" : {"type" : [ "string", "integer", "object" ]}                                     \
    }) "," JSON({                                                                                  \
        "type" : "array",                                                                          \
        "minItems" : 1,                                                                            \
        "maxItems" : 4096,                                                                         \
        "items" : {"type" : [ "string", "array", "object" ]}                                       \
    }) "]}"

/* clang-format off */
/* What is inside; added to what the row of the field says. */
static const struct {
    enum field_id id;
    unsigned endpoints;
    const char *schema;
} shapes[] = {
    {F_prompt, E_COMPLETE | E_COMPLETION, TEXTS_OR_TOKENS},
    {F_input, E_EMBED | E_OLLAMA_EMBED, TEXTS_OR_TOKENS},
    {F_embed_content, E_EMBED, TEXTS_OR_TOKENS},
    {F_items, E_RESPONSES, JSON({"anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "object", "properties": {
            "type": {"type": ["string", "null"]}}}}]})},
    {F_tokens, E_DETOKENIZE, JSON({"items": {"type": "integer", "minimum": 0}})},
    {F_messages, E_CHAT | E_TEMPLATE, JSON({"items": {
        "type": "object", "required": ["role"], "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {"anyOf": [
                {"type": ["string", "null"]},
                {"type": "array", "items": {"type": "object"}}]}}}})},
    {F_messages, E_MESSAGES | E_COUNT, JSON({"items": {
        "type": "object", "required": ["role", "content"], "properties": {
            "role": {"enum": ["user", "assistant", "system"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
                {"type": "object", "required": ["type", "text"], "properties": {
                    "type": {"const": "text"}, "text": {"type": "string"}}},
                {"type": "object", "required": ["type", "thinking"], "properties": {
                    "type": {"const": "thinking"}, "thinking": {"type": "string"}}},
                {"type": "object", "required": ["type", "id", "name"], "properties": {
                    "type": {"const": "tool_use"}}},
                {"type": "object", "required": ["type", "tool_use_id"], "properties": {
                    "type": {"const": "tool_result"},
                    "is_error": {"type": ["boolean", "null"]}}}]}}]}}}})},
    {F_system, E_MESSAGES | E_COUNT, JSON({"anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "object", "required": ["text"], "properties": {
            "text": {"type": "string"}}}}]})},
    {F_ollama_messages, E_OLLAMA_CHAT, JSON({"items": {
        "type": "object", "required": ["role"], "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {"type": ["string", "null"]}}}})},
    {F_format, E_OLLAMA, JSON({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]})},
    {F_think, E_OLLAMA, JSON({"enum": [true, false, "low", "medium", "high"]})},
    {F_logit_bias, E_SAMPLES, JSON({"anyOf": [
        {"type": "object", "additionalProperties": {"anyOf": [
            {"type": "number", "minimum": -100, "maximum": 100}, {"const": false}]}},
        {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}]})},
    {F_response_format, E_MADE | E_PEER, JSON({
        "type": "object", "required": ["type"], "additionalProperties": {"type": "null"},
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "schema": {"type": ["object", "boolean"]},
            "json_schema": {"type": "object", "additionalProperties": {"type": "null"},
                "properties": {
                "name": {"type": "string"}, "description": {"type": "string"},
                "strict": {"type": "boolean"}, "schema": {"type": ["object", "boolean"]}}}}})},
    {F_control_action, E_CONTROL, JSON({"enum": ["reasoning_end"]})},
    {F_lora, E_SAMPLES | E_LORA, JSON({"items": {
        "type": "object", "required": ["id"], "properties": {
            "id": {"type": "integer", "minimum": 0}, "scale": {"type": "number"}}}})},
    {F_dry_sequence_breakers, E_SAMPLES, JSON({"items": {"type": "string", "minLength": 1}})},
    {F_encoding_format, E_EMBED, JSON({"enum": ["float", "base64"]})},
};
/* clang-format on */

static int needs(const struct route *r, enum field_id id)
{
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (required[i].id == id && (required[i].endpoints & r->endpoint))
            return 1;
    return 0;
}

/* A field that is null is absent, so any but a required one may be null. */
static void allow_null(json_t *schema)
{
    const char *name;
    json_t *inner;
    json_object_foreach(json_object_get(schema, "properties"), name, inner)
        allow_null(inner); /* of `options`, whose fields are like those of a body */
    json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf"),
           *list = json_object_get(schema, "enum");
    if (json_is_string(type))
        json_object_set_new(schema, "type", json_pack("[O, s]", type, "null"));
    else if (type)
        json_array_append_new(type, json_string("null"));
    if (any) {
        json_array_append_new(any, json_pack("{s:s}", "type", "null"));
        json_object_del(schema, "type"); /* each of them has its own */
    }
    if (list)
        json_array_append_new(list, json_null());
}

/* models: their names, NULL: they are not told. */
static json_t *body_of(const struct server *s, const struct route *r, json_t *models)
{
    int any = (r->endpoint & E_ANY_MODEL) && !server_told(s)->strict_model &&
              server_told(s)->n_models == 1; /* of names one is as good as another */
    json_t *properties = json_object(), *names = json_array();
    for (int id = 0; id < N_FIELDS; id++) {
        json_t *schema = field_schema((enum field_id)id, r->endpoint);
        if (!schema)
            continue;
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if ((int)shapes[i].id == id && (shapes[i].endpoints & r->endpoint)) {
                json_t *shape = json_loads(shapes[i].schema, 0, NULL);
                json_object_update(schema, shape);
                json_decref(shape);
            }
        }
        if (id == F_model && models)
            json_object_set_new(schema, any ? "examples" : "enum", json_copy(models));
        if (needs(r, (enum field_id)id))
            json_array_append_new(names, json_string(field_name((enum field_id)id)));
        else
            allow_null(schema);
        json_object_set_new(properties, field_name((enum field_id)id), schema);
    }
    /* what is not known is left out, and named in the answer */
    return json_pack("{s:b, s:{s:{s:{s:s, s:o, s:o, s:o}}}}", "required", !(r->flags & ROUTE_EMPTY),
                     "content", "application/json", "schema", "type", "object", "properties",
                     properties, "required", names, "additionalProperties",
                     server_told(s)->strict_fields ? json_pack("{s:s}", "type", "null")
                                                   : json_true());
}

/* ---------------------------------------------------------------- answers */

static json_t *good_answer(const struct route *r)
{
    json_t *content = json_object();
    int is_text = (r->flags & ROUTE_METRICS) != 0;
    const char *type = is_text ? "text/plain" : "application/json";
    json_t *shape = json_string(is_text ? "string" : "object");
    if (r->flags & ROUTE_LIST) {
        json_decref(shape);
        shape = json_pack("[s, s]", "object", "array");
    }
    json_object_set_new(content, type, json_pack("{s:{s:o}}", "schema", "type", shape));
    if (r->endpoint & E_STREAMS)
        json_object_set_new(
            content, r->endpoint & E_OLLAMA ? "application/x-ndjson" : "text/event-stream",
            r->endpoint & E_OLLAMA
                ? json_pack("{s:{s:s}}", "schema", "type", "string")
                : json_object()); /* events: readers take a schema for that of each */
    return json_pack("{s:s, s:o}", "description", "the answer; of a stream, as it is made",
                     "content", content);
}

static void bad_answer(json_t *answers, const char *code, const char *why)
{
    json_object_set_new(answers, code,
                        json_pack("{s:s, s:{s:{s:{s:s}}}}", "description", why, "content",
                                  "application/json", "schema", "$ref",
                                  "#/components/schemas/Error"));
}

static json_t *answers_of(const struct server *s, const struct route *r, int keys)
{
    json_t *answers = json_pack("{s:o}", "200", good_answer(r));
    bad_answer(answers, "403", "Host or Origin is not one that may ask");
    if (keys && !route_is_open(s, r))
        bad_answer(answers, "401", "a key is needed, or this one is not known");
    if (r->endpoint) {
        bad_answer(answers, "400",
                   "the body is wrong; the message says what was found and what was wanted; or the "
                   "time that it allows is over");
        bad_answer(answers, "413", "the body is larger than --max-body");
        bad_answer(answers, "429", "too many wait; Retry-After says when to try again");
    }
    if (r->flags & (ROUTE_MODEL | ROUTE_ADMIN))
        bad_answer(answers, "404",
                   r->flags & ROUTE_ADMIN
                       ? "there is no such model, or the server has no --admin-key"
                       : "there is no such model");
    if ((r->flags & ROUTE_ADMIN) ? r->endpoint : !r->endpoint && (r->flags & ROUTE_MODEL))
        bad_answer(answers, "409",
                   r->flags & ROUTE_ADMIN ? "the model is being loaded"
                                          : "the model is not loaded");
    if (r->flags & ROUTE_MAY_LACK)
        bad_answer(answers, "501", "not with this model, or with these flags of the server");
    if (r->endpoint & (E_SLOTS | E_OLLAMA_SHOW)) {
        bad_answer(answers, "404", "there is no such slot or model");
        bad_answer(answers, "409", "the model is not loaded");
    }
    if (strstr(r->path, "/health") || !strcmp(r->path, "/ping"))
        json_object_set_new(answers, "503",
                            json_pack("{s:s}", "description", "the first model is being loaded"));
    if (!(r->flags & ROUTE_OPEN) || !strcmp(r->path, "/ready"))
        bad_answer(answers, "503",
                   "the model is being loaded, the server is shutting down, or all its connections "
                   "are taken; Retry-After says when to try again");
    return answers;
}

/* ---------------------------------------------------------------- all of it */

static json_t *parameter(const char *in, const char *name, int is_required)
{
    return json_pack("{s:s, s:s, s:b, s:s, s:{s:s}}", "in", in, "name", name, "required",
                     is_required, "description", "name of a model", "schema", "type", "string");
}

/* What stands for the * of a path. */
static const char *rest_of(const struct route *r)
{
    return r->endpoint & E_SLOTS ? "id_slot" : "model";
}

static json_t *slot_parameters(const struct server *s)
{
    return json_pack("[{s:s, s:s, s:b, s:s, s:{s:s, s:i, s:i}}, {s:s, s:s, s:b, s:s, s:{s:s, "
                     "s:[s, s, s]}}]",
                     "in", "path", "name", "id_slot", "required", 1, "description",
                     "number of a slot", "schema", "type", "integer", "minimum", 0, "maximum",
                     server_told(s)->parallel - 1, "in", "query", "name", "action", "required", 1,
                     "description", "what to do with its tokens", "schema", "type", "string",
                     "enum", "save", "restore", "erase");
}

static json_t *operation(const struct server *s, const struct route *r, int keys, json_t *models)
{
    json_t *op = json_pack("{s:s, s:o}", "summary", r->help, "responses", answers_of(s, r, keys));
    if (r->endpoint)
        json_object_set_new(op, "requestBody", body_of(s, r, models));
    if (r->endpoint & E_SLOTS)
        json_object_set_new(op, "parameters", slot_parameters(s));
    else if (strchr(r->path, '*'))
        json_object_set_new(op, "parameters", json_pack("[o]", parameter("path", "model", 1)));
    else if (!r->endpoint && (r->flags & ROUTE_MODEL))
        json_object_set_new(op, "parameters", json_pack("[o]", parameter("query", "model", 0)));
    if (keys)
        json_object_set_new(
            op, "security",
            route_is_open(s, r) ? json_array() : json_pack("[{s:[]}, {s:[]}]", "bearer", "header"));
    return op;
}

static json_t *components(int keys)
{
    json_t *all = json_pack("{s:{s:{s:s, s:[s], s:{s:{s:[s, s], s:{s:{s:s}}}}}}}", "schemas",
                            "Error", "type", "object", "required", "error", "properties", "error",
                            "type", "object", "string", "properties", "message", "type", "string");
    if (keys)
        json_object_set_new(all, "securitySchemes",
                            json_pack("{s:{s:s, s:s}, s:{s:s, s:s, s:s}}", "bearer", "type", "http",
                                      "scheme", "bearer", "header", "type", "apiKey", "in",
                                      "header", "name", "x-api-key"));
    return all;
}

static json_t *name_of(const struct hosted *h)
{
    return json_string(h->name);
}

static char *text_of(json_t *j)
{
    char *text = json_exact(j);
    json_decref(j);
    return text;
}

char *openapi_make(struct server *s)
{
    static const char *const methods[][2] = {
        {"GET", "get"}, {"POST", "post"}, {"PUT", "put"}, {"DELETE", "delete"}};
    int keys = tenants_have_keys(server_tenants(s));
    json_t *paths = json_object(), *models = keys ? NULL : models_list(s, 0, name_of);
    json_array_insert_new(models, 0, json_string("")); /* the first one */
    for (const struct route *r = routes; r->path; r++) {
        if (r->flags & ROUTE_PAGE)
            continue;
        char name[128];
        int n = (int)strcspn(r->path, "*");
        if (r->path[n])
            snprintf(name, sizeof name, "%.*s{%s}", n, r->path, rest_of(r));
        else
            snprintf(name, sizeof name, "%s", r->path);
        json_t *path = json_object_get(paths, name);
        if (!path) {
            path = json_object();
            json_object_set_new(paths, name, path);
        }
        for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
            if (!strcmp(methods[i][0], r->method))
                json_object_set_new(path, methods[i][1], operation(s, r, keys, models));
    }
    json_decref(models);
    return text_of(json_pack("{s:s, s:{s:s, s:s}, s:o, s:o}", "openapi", "3.1.0", "info", "title",
                             "pith", "version", pith_version(), "paths", paths, "components",
                             components(keys)));
}

char *docs_make(void)
{
    json_t *list = json_array();
    for (const struct route *r = routes; r->path; r++) {
        json_t *j =
            json_pack("{s:s, s:s, s:s}", "method", r->method, "path", r->path, "help", r->help);
        if (r->endpoint)
            json_object_set_new(j, "fields", fields_docs(r->endpoint));
        json_array_append_new(list, j);
    }
    return text_of(json_pack("{s:o}", "endpoints", list));
}
