/* grammar.c -- the grammar that flags ask for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* The text itself was given, as no name of a file could be. */
static int is_text(const struct grammar_opts *o)
{
    return o->grammar  ? strstr(o->grammar, "::=") != NULL
           : o->schema ? o->schema[strspn(o->schema, " \t\r\n")] == '{'
                       : 0;
}

int cli_grammar_check(const struct grammar_opts *o)
{
    const char *path = o->grammar ? o->grammar : o->schema;
    if (!o->grammar + !o->schema + !o->json < 2)
        return cli_say(CLI_USE,
                       "found several of --grammar, --schema and --json; wanted one of them");
    if (!path && !o->json && o->trigger)
        return cli_say(CLI_USE,
                       "found --trigger alone; wanted --grammar, --schema or --json besides");
    if (path && !is_text(o) && strcmp(path, "-") != 0 && access(path, R_OK) != 0)
        return cli_say(CLI_INPUT, "%s: cannot open: %s", path, strerror(errno));
    return CLI_OK;
}

const char *cli_grammar_flag(const struct grammar_opts *o)
{
    return o->grammar ? "--grammar" : o->schema ? "--schema" : o->json ? "--json" : o->kept;
}

int cli_grammar_read(struct grammar_opts *o)
{
    const char *path = o->grammar ? o->grammar : o->schema;
    if (!path || o->text)
        return CLI_OK;
    if (!is_text(o))
        return cli_read_file(path, &o->text, &o->n);
    o->text = strdup(path);
    o->n = strlen(path);
    return o->text ? CLI_OK : cli_no_memory();
}

pith_grammar *cli_grammar_behind(const struct grammar_opts *o, pith_model *m, const char *trigger,
                                 struct pith_error *err)
{
    const char *flag = cli_grammar_flag(o);
    pith_grammar_kind kind = !strcmp(flag, "--grammar")  ? PITH_GRAMMAR_GBNF
                             : !strcmp(flag, "--schema") ? PITH_GRAMMAR_SCHEMA
                                                         : PITH_GRAMMAR_JSON;
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    p.trigger = trigger;
    p.schema_order = o->schema_order;
    return pith_grammar_open(m, kind, o->text, o->n, &p, err);
}

pith_grammar *cli_grammar_open(struct grammar_opts *o, pith_model *m, int *code)
{
    struct pith_error err = {0};
    const char *path = o->grammar ? o->grammar : o->schema, *flag = cli_grammar_flag(o);
    *code = path ? cli_grammar_check(o) : CLI_OK;
    if (!*code)
        *code = cli_grammar_read(o);
    if (*code || !flag)
        return NULL;
    pith_grammar *g = cli_grammar_behind(o, m, o->trigger, &err);
    if (!g)
        *code = path && !is_text(o) ? cli_fail_file(path, &err) : cli_fail(&err);
    for (const char *line = pith_grammar_unkept(g); *line; line += strcspn(line, "\n") + 1)
        cli_say(CLI_OK, "%s: left out: %.*s", flag, (int)strcspn(line, "\n"), line);
    return g;
}
