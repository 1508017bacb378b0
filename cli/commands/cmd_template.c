/* cmd_template.c -- pith template: variables in, the text of a chat template out; with --parse a
 * model's answer in, its parts out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    const char *path, *name, *tools, *prompt;
    int parse;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "FILE", .required = 1, ARG_FIELD(struct opts, path, ARG_TEXT),
     .help = "a template, or a GGUF file whose template is meant"},
    {.name = "--name", .meta = "NAME", ARG_FIELD(struct opts, name, ARG_TEXT),
     .otherwise = "the one without a name",
     .help = "of a model's templates, the one called tokenizer.chat_template.NAME"},
    {.name = "--parse", ARG_FIELD(struct opts, parse, ARG_SWITCH),
     .help = "read a model's answer and print {content, reasoning, tool_calls: [{name, arguments, "
         "id}], family}"},
    {.name = "--tools", .meta = "FILE", ARG_FIELD(struct opts, tools, ARG_TEXT),
     .otherwise = "not known",
     .help = "with --parse: a JSON array of the tools that were offered"},
    {.name = "--prompt", .meta = "FILE", ARG_FIELD(struct opts, prompt, ARG_TEXT),
     .otherwise = "the template's for one message",
     .help = "with --parse: what the model was given"},
    {0},
};
/* clang-format on */

/* Status 2 is a template that refuses (raise_exception), with its message alone; all else is 1. */
static int refuse(const struct pith_error *err)
{
    if (err->code != PITH_STATE)
        return cli_say(CLI_USE, "%s", err->msg);
    cli_tell("%s\n", err->msg);
    return CLI_INPUT;
}

static int print(const pith_template *t, const char *json, size_t n)
{
    struct pith_error err = {0};
    char *buf = NULL;
    size_t cap = 1 << 16;
    for (;;) {
        char *more = realloc(buf, cap);
        if (!more) {
            free(buf);
            return cli_no_memory();
        }
        buf = more;
        int64_t len = pith_template_render(t, json, n, buf, cap, &err);
        if (len >= 0 && (size_t)len <= cap) {
            fwrite(buf, 1, (size_t)len, stdout);
            free(buf);
            return CLI_OK;
        }
        if (len < 0) {
            free(buf);
            return refuse(&err);
        }
        cap = (size_t)len;
    }
}

static json_t *parts_of(const pith_chat_parser *p, const pith_template *t)
{
    size_t n;
    const char *text = pith_chat_text(p, PITH_CHAT_CONTENT, &n);
    json_t *o = json_object(), *calls = json_array();
    json_object_set_new(o, "content", cli_json_text(text, n));
    text = pith_chat_text(p, PITH_CHAT_REASONING, &n);
    json_object_set_new(o, "reasoning", cli_json_text(text, n));
    for (int32_t i = 0; i < pith_chat_n_calls(p); i++) {
        const struct pith_chat_event *e = pith_chat_call(p, i);
        json_t *given = json_loadb(e->text, e->n_bytes, JSON_ALLOW_NUL, NULL),
               *call = json_object();
        json_object_set_new(call, "name", cli_json_text(e->name, strlen(e->name)));
        json_object_set_new(call, "arguments", given ? given : cli_json_text(e->text, e->n_bytes));
        json_object_set_new(call, "id", cli_json_text(e->id, strlen(e->id)));
        json_array_append_new(calls, call);
    }
    json_object_set_new(o, "tool_calls", calls);
    json_object_set_new(o, "family", json_string(pith_chat_family(t)));
    return o;
}

/* --parse: one JSON object, on one line. */
static int parse(const struct opts *o, const pith_template *t, const char *answer, size_t n)
{
    struct pith_error err = {0};
    struct pith_chat_params params = PITH_CHAT_PARAMS_INIT;
    char *tools = NULL, *prompt = NULL;
    size_t n_tools;
    int code = (o->tools && cli_read_file(o->tools, &tools, &n_tools)) ||
                       (o->prompt && cli_read_file(o->prompt, &prompt, &params.prompt_bytes))
                   ? CLI_USE
                   : CLI_OK;
    params.tools = tools;
    params.prompt = prompt;
    pith_chat_parser *p = code == CLI_OK ? pith_chat_open(t, &params, &err) : NULL;
    if (code == CLI_OK && (!p || pith_chat_feed(p, answer, n, &err) != PITH_OK ||
                           pith_chat_finish(p, &err) != PITH_OK))
        code = cli_say(CLI_USE, "%s", err.msg);
    if (code == CLI_OK) {
        json_t *parts = parts_of(p, t);
        json_dumpf(parts, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(parts);
    }
    pith_chat_close(p);
    free(tools);
    free(prompt);
    return code;
}

static int answer(const struct opts *o, const pith_template *t, const char *in, size_t n)
{
    return o->parse ? parse(o, t, in, n) : print(t, in, n);
}

static int is_model(const char *path)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rb");
    int yes = f && fread(magic, 1, 4, f) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (f)
        fclose(f);
    return yes;
}

static int run_model(const struct opts *o, const char *json, size_t n)
{
    struct pith_error err = {0};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    p.vocab_only = 1;
    pith_model *m = pith_model_open(o->path, &p, &err);
    const pith_template *t = m ? pith_model_template(m, o->name, &err) : NULL;
    int code = t ? answer(o, t, json, n) : refuse(&err);
    pith_model_close(m);
    return code;
}

static int run_file(const struct opts *o, const char *json, size_t n)
{
    struct pith_error err = {0};
    char *text;
    size_t n_text;
    if (o->name)
        return cli_say(CLI_USE, "--name chooses among a model's templates; %s is no GGUF file",
                       o->path);
    if (cli_read_file(o->path, &text, &n_text))
        return CLI_USE;
    pith_template *t = pith_template_open(text, n_text, &err);
    int code = t ? answer(o, t, json, n) : refuse(&err);
    pith_template_close(t);
    free(text);
    return code;
}

static int run(void *opts)
{
    struct opts *o = opts;
    char *json;
    size_t n;
    if (!o->parse && (o->tools || o->prompt))
        return cli_say(CLI_USE, "--tools and --prompt belong to --parse");
    if ((o->tools && !strcmp(o->tools, "-")) || (o->prompt && !strcmp(o->prompt, "-")))
        return cli_say(CLI_USE, "found %s -, and stdin is the answer; wanted a file",
                       o->tools && !strcmp(o->tools, "-") ? "--tools" : "--prompt");
    if (cli_read_file("-", &json, &n))
        return CLI_USE;
    int code = cli_model_path(&o->path);
    if (!code)
        code = is_model(o->path) ? run_model(o, json, n) : run_file(o, json, n);
    free(json);
    return code;
}

const struct command cmd_template = {
    .name = "template",
    .summary = "render a chat template",
    .args =
        {
            .command = "pith template",
            .about =
                "Reads one JSON object from stdin, whose keys are the template's variables "
                "(messages, tools, add_generation_prompt, enable_thinking ...; \"now\" is the "
                "ISO 8601 time that strftime_now formats), and prints the text, nothing else. "
                "With --parse it reads a model's answer instead, takes it apart in the form of the "
                "template's family and prints one JSON object. "
                "A template that refuses (raise_exception) gives its message and status 2; every "
                "other error is status 1.",
            .example = "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | "
                       "pith template model.gguf\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
