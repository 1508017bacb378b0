/* grammar.c -- the grammar that flags ask for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

int cli_grammar_check(const struct grammar_opts *o)
{
    const char *path = o->grammar ? o->grammar : o->schema;
    if (!o->grammar + !o->schema + !o->json < 2)
        return cli_say(CLI_USE,
                       "found several of --grammar, --schema and --json; wanted one of them");
    if (!path && !o->json && o->trigger)
        return cli_say(CLI_USE,
                       "found --trigger alone; wanted --grammar, --schema or --json besides");
    if (path && strcmp(path, "-") != 0 && access(path, R_OK) != 0)
        return cli_say(CLI_INPUT, "%s: cannot open: %s", path, strerror(errno));
    return CLI_OK;
}

pith_grammar *cli_grammar_open(const struct grammar_opts *o, pith_model *m, int *code)
{
    struct pith_error err = {0};
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    const char *path = o->grammar ? o->grammar : o->schema;
    char *text = NULL;
    size_t n = 0;
    p.trigger = o->trigger;
    p.schema_order = o->schema_order;
    p.strict_schema = o->strict_schema;
    *code = cli_grammar_check(o);
    if (!*code && path)
        *code = cli_read_file(path, &text, &n);
    if (*code || (!path && !o->json))
        return NULL;
    pith_grammar_kind kind = o->grammar  ? PITH_GRAMMAR_GBNF
                             : o->schema ? PITH_GRAMMAR_SCHEMA
                                         : PITH_GRAMMAR_JSON;
    pith_grammar *g = pith_grammar_open(m, kind, text, n, &p, &err);
    if (!g)
        *code = path ? cli_fail_file(path, &err) : cli_fail(&err);
    free(text);
    return g;
}
