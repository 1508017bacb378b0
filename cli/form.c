/* form.c -- the flags that say how a conversation is written for a model: its template, which is
 * one of the model's, a common one (forms.def) or a file's, and variables of it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const struct {
    const char *name, *text;
} forms[] = {
#define FORM(name, text) {name, text},
#include "cli/forms.def"
#undef FORM
};

const char cli_form_help[] =
    "template of conversations: a file, the name of another one that the model has, or of a common "
    "one:"
#define FORM(name, text) " " name
#include "cli/forms.def"
#undef FORM
    ;

int cli_form_text(const char *asked, char **text, size_t *n)
{
    char names[256] = "";
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(forms[i].name, asked) != 0)
            continue;
        *text = strdup(forms[i].text);
        *n = strlen(forms[i].text);
        return *text ? CLI_OK : cli_no_memory();
    }
    if (!access(asked, F_OK))
        return cli_read_file(asked, text, n);
    for (size_t i = 0, at = 0; i < sizeof forms / sizeof *forms && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", forms[i].name);
    return cli_say(CLI_INPUT,
                   "--chat-template %s: there is no such file, no template of that name in the "
                   "model, and the common ones are %s",
                   asked, names);
}

static int read_kwargs(const char *text, json_t **out)
{
    json_error_t why;
    *out = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!*out)
        return cli_say(CLI_USE,
                       "--template-kwargs: column %d: %s; wanted a JSON object, as "
                       "{\"enable_thinking\": false}",
                       why.column, why.text);
    if (!json_is_object(*out))
        return cli_say(CLI_USE,
                       "--template-kwargs is \"%.100s\"; wanted a JSON object, as "
                       "{\"enable_thinking\": false}",
                       text);
    static const char *const ours[] = {"messages", "add_generation_prompt", "bos_token",
                                       "eos_token"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_object_get(*out, ours[i]))
            return cli_say(CLI_USE, "--template-kwargs gives %s, which is %s; leave it out",
                           ours[i], i < 2 ? "the conversation's" : "the model's");
    return CLI_OK;
}

int cli_form_check(const struct form_opts *o, json_t **variables)
{
    int code = o->kwargs ? read_kwargs(o->kwargs, variables) : CLI_OK;
    if (!o->kwargs)
        *variables = json_object();
    if (!code && !*variables)
        code = cli_no_memory();
    if (!code && o->think && strcmp(o->think, "auto") != 0)
        json_object_set_new(*variables, "enable_thinking", json_boolean(!strcmp(o->think, "on")));
    return code;
}

/* A template that is not the model's knows no model: its start and end tokens are told. */
static void put_token(json_t *variables, const char *name, const pith_model *m, int32_t id)
{
    char text[512];
    int64_t n =
        id >= 0 ? pith_detokenize(m, &id, 1, PITH_RENDER_SPECIAL, text, sizeof text, NULL) : -1;
    if (n >= 0 && n < (int64_t)sizeof text && !json_object_get(variables, name))
        json_object_set_new(variables, name, cli_json_text(text, (size_t)n));
}

/* The template's prompt for one question, with reasoning or without; NULL: it refuses that. */
static char *asked_with(const pith_template *t, const json_t *variables, int thinks)
{
    char *text = NULL;
    int64_t n = -1;
    json_t *vars = json_deep_copy(variables);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
    if (vars && messages) {
        json_object_set(vars, "messages", messages);
        json_object_set_new(vars, "add_generation_prompt", json_true());
        json_object_set_new(vars, "enable_thinking", json_boolean(thinks));
    }
    char *json = vars && messages ? json_dumps(vars, JSON_COMPACT) : NULL;
    if (json)
        n = pith_template_render(t, json, strlen(json), NULL, 0, NULL);
    if (n >= 0 && (text = calloc((size_t)n + 1, 1)))
        pith_template_render(t, json, strlen(json), text, (size_t)n, NULL);
    json_decref(messages);
    json_decref(vars);
    free(json);
    return text;
}

/* A choice that changes nothing is told. */
static void check_think(const struct form_opts *o, const pith_template *t, const json_t *variables)
{
    if (!t || !o->think || !strcmp(o->think, "auto"))
        return;
    char *with = asked_with(t, variables, 1), *without = asked_with(t, variables, 0);
    if (with && without && !strcmp(with, without))
        cli_say(CLI_OK, "--think %s changes nothing: the template writes the same either way",
                o->think);
    free(with);
    free(without);
}

static int find_form(const struct form_opts *o, const pith_model *m, struct form *out,
                     json_t *variables)
{
    struct pith_error err = {0};
    char *text = NULL;
    size_t n = 0;
    if (!o->template) {
        out->t = pith_model_template(m, NULL, &err);
        return CLI_OK;
    }
    out->t = pith_model_template(m, o->template, &err);
    if (out->t)
        return CLI_OK;
    if (err.code != PITH_MISSING)
        return cli_say(CLI_INPUT, "--chat-template %s: %s", o->template, err.msg);
    int code = cli_form_text(o->template, &text, &n);
    if (code)
        return code;
    out->t = out->own = pith_template_open(text, n, &err);
    free(text);
    if (!out->own)
        return cli_say(CLI_INPUT, "%s: %s", o->template, err.msg);
    put_token(variables, "bos_token", m, pith_token_bos(m));
    put_token(variables, "eos_token", m, pith_token_eos(m));
    int64_t n_ends = pith_template_end(out->t, m, out->ends, sizeof out->ends - 1, &err);
    out->ends[n_ends > 0 ? n_ends : 0] = 0;
    return n_ends < 0 ? cli_fail(&err) : CLI_OK;
}

int cli_form_open(const struct form_opts *o, const pith_model *m, struct form *out,
                  json_t *variables)
{
    int code = find_form(o, m, out, variables);
    if (!code)
        check_think(o, out->t, variables);
    return code;
}

void cli_form_close(struct form *f)
{
    pith_template_close(f->own);
    *f = (struct form){0};
}
