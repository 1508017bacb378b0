/* args.h -- command lines from a table: one row per flag gives parsing, checks, messages and help.
 *
 *     static const struct arg args[] = {
 *         {.name = "MODEL", .required = 1, ARG_FIELD(struct opts, model, ARG_TEXT), .help = ...},
 *         {.name = "--temp", ARG_FIELD(struct opts, temp, ARG_REAL), .hi = 100, .help = ...},
 *         {0},
 *     };
 *
 * A name without dashes is a positional argument; one of type ARG_TEXTS is the last and takes all
 * that are left. The value of a row is that of the command line,
 * else of the environment (--max-body: PITH_MAX_BODY), else of the configuration file (config.h;
 * positional arguments too, by their name in small letters), else its default text; without any the
 * field stays zero, or says that there is none (`open`). All are parsed and checked alike. "--flag
 * VALUE" and "--flag=VALUE" are the same; "--" ends the flags; a switch may be given as --flag=no.
 * Sizes may end in K, M or G (powers of 1024). Texts point into argv, environment, file or table.
 */
#ifndef PITH_CLI_ARGS_H
#define PITH_CLI_ARGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ARG_LIST_MAX = 32 };
struct arg_ints {
    int64_t v[ARG_LIST_MAX];
    int n;
};
struct arg_texts {
    const char *v[ARG_LIST_MAX + 1]; /* NULL-terminated */
    int n;
};

enum arg_type {
    ARG_SWITCH, /* int: 1 when given; yes or no where a value is wanted */
    ARG_INT,    /* int64_t */
    ARG_SIZE,   /* int64_t, K M G allowed */
    ARG_REAL,   /* double */
    ARG_TEXT,   /* const char * */
    ARG_CHOICE, /* const char *, one of `choices` */
    ARG_INTS,   /* struct arg_ints: numbers separated by commas, K M G allowed; may be repeated */
    ARG_TEXTS,  /* struct arg_texts: the flag may be repeated */
    ARG_CPUS,   /* const char *, one of `choices` or processors: "0-3,8" */
};

struct arg {
    const char *name, *alias; /* "--temp", "-t"; "MODEL" */
    const char *meta;         /* what the help calls the value; NULL: "N", or the choices */
    enum arg_type type;
    int required;
    size_t field;        /* offset in the command's options */
    double lo, hi;       /* of numbers; hi 0 = no upper end */
    const char *choices; /* "f16|f32" */
    const char *word;    /* accepted for a number: "auto|all", as -1 and -2 */
    int secret;          /* the value is never printed */
    int typed;           /* counts on the command line alone */
    int open;            /* of ARG_INT, ARG_REAL: without any value the field is ARG_NONE, NaN */
    const char *env;     /* the variable, where it is not named as the flag is */
    const char *dflt;
    const char *otherwise; /* the default in words, when there is no `dflt` */
    const char *help;
};
#define ARG_NONE                      INT64_MIN
#define ARG_FIELD(opts, member, kind) .type = (kind), .field = offsetof(opts, member)

struct args_spec {
    const char *command; /* "pith run" */
    const char *about;   /* paragraphs of the help */
    const char *example; /* lines of commands */
    const struct arg *rows;
};

struct config;
enum { ARGS_RUN, ARGS_HELP, ARGS_BAD };
/* Fills *opts (zeroed by the caller) from argv[0..argc), the words after the command, and what is
 * around them; the file is opened into *conf, which has to live as long as *opts. ARGS_BAD: one
 * message went to stderr. ARGS_HELP: the help was asked for; nothing was checked. */
int args_parse(const struct args_spec *spec, struct config *conf, int argc, char **argv,
               void *opts);
/* conf: open; values that it or the environment sets are told with where they come from. */
void args_help(const struct args_spec *spec, const struct config *conf, FILE *to);
/* Every line of an open file: known, and acceptable where it applies? 0: a message went to stderr.
 */
int args_check_config(const struct args_spec *spec, const struct config *conf);
/* What the help calls a flag's value, "" for a switch; the name of its variable (out: of 64). */
const char *args_meta(const struct arg *a);
/* What a row is for, its range, its variable where that has another name, and its default. */
void args_describe(const struct arg *a, FILE *to);
const char *args_env(const struct arg *a, char *out);

/* The candidate (NULL-terminated list) nearest to a mistyped word, NULL when none is near. */
const char *args_nearest(const char *word, const char *const *candidates);
/* Prints text in lines of at most 92 columns, all but the first indented. */
void args_wrap(FILE *to, const char *text, int indent, int column);

#endif
