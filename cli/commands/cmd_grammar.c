/* cmd_grammar.c -- pith grammar: does a text match a grammar or a JSON Schema? */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    const char *grammar, *schema, *text;
    int jsonl;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "TEXT", ARG_FIELD(struct opts, text, ARG_TEXT), .otherwise = "all of stdin",
     .help = "the text"},
    {.name = "--grammar", .meta = "FILE", ARG_FIELD(struct opts, grammar, ARG_TEXT),
     .help = "a grammar in GBNF; a file, or the text itself"},
    {.name = "--schema", .meta = "FILE", ARG_FIELD(struct opts, schema, ARG_TEXT),
     .help = "a JSON Schema; a file, or the text itself"},
    {.name = "--jsonl", ARG_FIELD(struct opts, jsonl, ARG_SWITCH),
     .help = "answer each line of stdin, {\"grammar\": GBNF or \"schema\": a JSON Schema, "
         "\"text\"}, with {\"accept\": true or false}, or with {\"invalid\": why} when the grammar "
         "is refused, or with {\"error\"}"},
    {0},
};
/* clang-format on */

/* The grammar of the line before: most lines ask of the same one, and to compile it costs more than
 * to answer. */
struct kept {
    pith_grammar *g; /* NULL: none */
    pith_grammar_kind kind;
    char *text;
    size_t n;
};

static void kept_clear(struct kept *k)
{
    pith_grammar_close(k->g);
    free(k->text);
    *k = (struct kept){0};
}

/* The grammar, at the empty text: the one that is kept, or a new one that now is; NULL with *err:
 * it is refused. */
static pith_grammar *kept_open(struct kept *k, pith_grammar_kind kind, const char *text, size_t n,
                               struct pith_error *err)
{
    if (k->text && k->kind == kind && k->n == n && !memcmp(k->text, text, n)) {
        pith_grammar_reset(k->g);
        return k->g;
    }
    kept_clear(k);
    k->g = pith_grammar_open(NULL, kind, text, n, NULL, err);
    k->text = k->g ? malloc(n + 1) : NULL;
    if (k->text) { /* else it is found by nobody */
        memcpy(k->text, text, n);
        k->kind = kind;
        k->n = n;
    }
    return k->g;
}

/* 1 accepts, 0 rejects, -1 with *err: the grammar is refused. */
static int matches(struct kept *k, pith_grammar_kind kind, const char *grammar, size_t n_grammar,
                   const char *text, size_t n, struct pith_error *err)
{
    pith_grammar *g = kept_open(k, kind, grammar, n_grammar, err);
    if (!g)
        return -1;
    int accepts = pith_grammar_accept_text(g, text, n, err) == PITH_OK && pith_grammar_complete(g);
    if (err->code && err->code != PITH_STATE) {
        accepts = -1;
        kept_clear(k);
    }
    return accepts;
}

static json_t *answer(struct kept *k, pith_grammar_kind kind, const char *grammar,
                      size_t n_grammar, const json_t *text)
{
    struct pith_error err = {0};
    int accepts = matches(k, kind, grammar, n_grammar, json_string_value(text),
                          json_string_length(text), &err);
    if (accepts < 0)
        return err.code == PITH_NOMEM
                   ? cli_json_failure(err.msg)
                   : json_pack("{s:o}", "invalid", cli_json_text(err.msg, strlen(err.msg)));
    return json_pack("{s:b}", "accept", accepts);
}

static json_t *answer_line(void *ctx, const char *line, size_t n)
{
    json_error_t why;
    json_t *said = NULL, *q = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    const json_t *grammar = json_object_get(q, "grammar"), *schema = json_object_get(q, "schema"),
                 *text = json_object_get(q, "text");
    if (!q) {
        said = cli_json_failure(why.text);
    } else if (!json_is_string(text) || !grammar == !schema ||
               (grammar && !json_is_string(grammar))) {
        said = cli_json_failure("wanted an object with \"text\", a string, and one of \"grammar\", "
                                "a string, and \"schema\"");
    } else if (grammar) {
        said = answer(ctx, PITH_GRAMMAR_GBNF, json_string_value(grammar),
                      json_string_length(grammar), text);
    } else {
        /* 15 digits: 16.9 stays 16.9 and does not become 16.899999999999999, another bound */
        char *dump = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        said = dump ? answer(ctx, PITH_GRAMMAR_SCHEMA, dump, strlen(dump), text) : NULL;
        free(dump);
    }
    json_decref(q);
    return said;
}

static int answer_once(const struct opts *o)
{
    struct pith_error err = {0};
    struct grammar_opts said = {.grammar = o->grammar, .schema = o->schema};
    struct kept kept = {0};
    char *from_stdin = NULL;
    size_t n = o->text ? strlen(o->text) : 0;
    int accepts = 0;
    int code = cli_grammar_read(&said);
    if (!code && !o->text)
        code = cli_read_file("-", &from_stdin, &n);
    if (!code) {
        accepts = matches(&kept, o->grammar ? PITH_GRAMMAR_GBNF : PITH_GRAMMAR_SCHEMA, said.text,
                          said.n, o->text ? o->text : from_stdin, n, &err);
        code = accepts < 0 ? cli_fail(&err) : CLI_OK;
    }
    if (!code)
        puts(accepts ? "accept" : "reject");
    kept_clear(&kept);
    free(said.text);
    free(from_stdin);
    return code;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    if (o->jsonl && (o->text || o->grammar || o->schema))
        return cli_say(CLI_USE, "with --jsonl grammars and texts come from stdin");
    if (!o->jsonl && !o->grammar == !o->schema)
        return cli_say(CLI_USE, "give one of --grammar, --schema and --jsonl");
    const char *path = o->grammar ? o->grammar : o->schema;
    if (!o->jsonl && !o->text && !strcmp(path, "-"))
        return cli_say(CLI_USE, "found %s - and no TEXT, which would come from stdin, too; wanted "
                       "one of them from elsewhere", o->grammar ? "--grammar" : "--schema");
    if (!o->jsonl)
        return answer_once(o);
    struct kept kept = {0};
    int code = cli_answer_lines(answer_line, &kept);
    kept_clear(&kept);
    return code;
}

const struct command cmd_grammar = {
    .name = "grammar",
    .summary = "does a text match a grammar or a JSON Schema?",
    .args =
        {
            .command = "pith grammar",
            .about = "Says accept or reject: whether the whole text is one that 'pith run' with "
                     "the same grammar may write.",
            .example = "  pith grammar --schema person.json '{\"name\":\"A\",\"age\":3}'\n"
                       "  echo '{\"grammar\": \"root ::= [a-c]+\", \"text\": \"abc\"}' | pith "
                       "grammar --jsonl\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
