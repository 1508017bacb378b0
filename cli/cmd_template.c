/* cmd_template.c -- pith template: variables in, the text of a chat template out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct opts {
    const char *path, *name;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "FILE", .required = 1, ARG_FIELD(struct opts, path, ARG_TEXT),
     .help = "a template, or a GGUF file whose template is meant"},
    {.name = "--name", .meta = "NAME", ARG_FIELD(struct opts, name, ARG_TEXT),
     .otherwise = "the one without a name",
     .help = "of a model's templates, the one called tokenizer.chat_template.NAME"},
    {0},
};
/* clang-format on */

/* Status 2 is a template that refuses (raise_exception), with its message alone; all else is 1. */
static int refuse(const struct pith_error *err)
{
    if (err->code != PITH_STATE)
        return cli_say(CLI_USE, "%s", err->msg);
    fprintf(stderr, "%s\n", err->msg);
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
    int code = t ? print(t, json, n) : refuse(&err);
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
    int code = t ? print(t, json, n) : refuse(&err);
    pith_template_close(t);
    free(text);
    return code;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    char *json;
    size_t n;
    if (cli_read_file("-", &json, &n))
        return CLI_USE;
    int code = is_model(o->path) ? run_model(o, json, n) : run_file(o, json, n);
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
                "A template that refuses (raise_exception) gives its message and status 2; every "
                "other error is status 1.",
            .example = "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | "
                       "pith template model.gguf\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
