/* args.c -- see args.h. Every message names the flag (or the environment variable), what was found
 * and what was wanted.
 */
#include "cli/args/args.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/args/config.h"

enum { LINE = 92, HELP_COLUMN = 28, ROWS_MAX = 128, ENV_MAX = 64 };

/* ---------------------------------------------------------------- values */

/* Whole number at text, K, M or G with `suffix`; *end is behind it. 0: there is none that fits. */
static int parse_int(const char *text, int suffix, int64_t *out, const char **end)
{
    char *e;
    errno = 0;
    long long v = strtoll(text, &e, 10);
    if (e == text || errno)
        return 0;
    const char *units = "KMG", *unit = suffix && *e ? strchr(units, *e & ~0x20) : NULL;
    if (unit) {
        int64_t scale = (int64_t)1 << (10 * (unit - units + 1));
        if (v > INT64_MAX / scale || v < INT64_MIN / scale)
            return 0;
        v *= scale;
        e++;
    }
    *out = v;
    *end = e;
    return 1;
}

static int in_range(const struct arg *a, double v)
{
    return v >= a->lo && (a->hi == 0 || v <= a->hi);
}

/* Which of the row's words the item at text (up to a comma) is: 1, 2, ..; 0: none. */
static int which_word(const struct arg *a, const char *text)
{
    size_t n = strcspn(text, ",");
    int k = 1;
    for (const char *w = a->word; w && n; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL, k++) {
        if (strcspn(w, "|") == n && !memcmp(text, w, n))
            return k;
    }
    return 0;
}

static int set_int(const struct arg *a, const char *text, void *field)
{
    const char *end;
    int64_t *v = field;
    int word = strchr(text, ',') ? 0 : which_word(a, text);
    if (word) {
        *v = -word;
        return 1;
    }
    return parse_int(text, a->type == ARG_SIZE, v, &end) && !*end && in_range(a, (double)*v);
}

static int set_real(const struct arg *a, const char *text, void *field)
{
    char *end;
    double *v = field;
    errno = 0;
    *v = strtod(text, &end);
    return end != text && !*end && isfinite(*v) && in_range(a, *v);
}

static int set_text(const struct arg *a, const char *text, void *field)
{
    (void)a;
    *(const char **)field = text;
    return 1;
}

static int set_choice(const struct arg *a, const char *text, void *field)
{
    size_t n = strlen(text);
    for (const char *c = a->choices; c && n; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        if (strcspn(c, "|") == n && !memcmp(c, text, n))
            return set_text(a, text, field);
    }
    return 0;
}

/* Numbers and ascending ranges of them, separated by commas. */
static int set_cpus(const struct arg *a, const char *text, void *field)
{
    if (set_choice(a, text, field))
        return 1;
    for (const char *p = text;; p++) {
        int64_t lo, hi;
        if (*p < '0' || *p > '9' || !parse_int(p, 0, &lo, &p))
            return 0;
        hi = lo;
        if (*p == '-' && (p[1] < '0' || p[1] > '9' || !parse_int(p + 1, 0, &hi, &p)))
            return 0;
        if (lo > hi || hi > 1023)
            return 0;
        if (*p != ',')
            return !*p && set_text(a, text, field);
    }
}

static int set_ints(const struct arg *a, const char *text, void *field)
{
    struct arg_ints *list = field;
    for (;; text++) { /* behind those of the flag's earlier values */
        int64_t v = -1;
        if (list->n == ARG_LIST_MAX)
            return 0;
        int word = which_word(a, text);
        if (word) {
            v = -word;
            text += strcspn(text, ",");
        } else if (!parse_int(text, 1, &v, &text) || !in_range(a, (double)v)) {
            return 0;
        }
        list->v[list->n++] = v;
        if (*text != ',')
            return !*text;
    }
}

static int set_texts(const struct arg *a, const char *text, void *field)
{
    (void)a;
    struct arg_texts *list = field;
    if (list->n == ARG_LIST_MAX)
        return 0;
    list->v[list->n++] = text;
    return 1;
}

static int set_switch(const struct arg *a, const char *text, void *field)
{
    static const char *const words[] = {"no", "yes", "off", "on", "false", "true", "0", "1", NULL};
    (void)a;
    for (int i = 0; words[i]; i++) {
        if (!strcasecmp(text, words[i])) {
            *(int *)field = i & 1;
            return 1;
        }
    }
    return 0;
}

static const struct {
    int (*set)(const struct arg *a, const char *text, void *field); /* 0: not acceptable */
    const char *wanted;                                             /* in messages */
    int is_number;
} types[] = {
    [ARG_SWITCH] = {set_switch, "yes or no", 0},
    [ARG_INT] = {set_int, "a whole number", 1},
    [ARG_SIZE] = {set_int, "a whole number (K, M, G = powers of 1024)", 1},
    [ARG_REAL] = {set_real, "a number", 1},
    [ARG_TEXT] = {set_text, "text", 0},
    [ARG_CHOICE] = {set_choice, "one of ", 0},
    [ARG_INTS] = {set_ints, "whole numbers separated by commas", 1},
    [ARG_TEXTS] = {set_texts, "at most 32 texts", 0},
    [ARG_CPUS] = {set_cpus, "processors like 0-3,8 or one of ", 0},
};

static void say_range(const struct arg *a, FILE *to)
{
    if (!types[a->type].is_number)
        return;
    if (a->word)
        fprintf(to, " or %s,", a->word);
    if (a->hi != 0)
        fprintf(to, " from %.15g to %.15g", a->lo, a->hi);
    else
        fprintf(to, " of at least %.15g", a->lo);
}

/* The flags of a command that take several values. */
static void say_lists(const struct arg *a)
{
    const char *before = "; lists are for ";
    for (; a->name; a++)
        if (a->type == ARG_INTS) {
            fprintf(stderr, "%s%s", before, a->alias);
            before = " ";
        }
}

/* source: the flag, variable or line the text came from */
static int set_field(const struct args_spec *spec, const struct arg *a, const char *source,
                     const char *text, void *field)
{
    if (types[a->type].set(a, text, field))
        return 1;
    fprintf(stderr, "%s: %s is ", spec->command, source);
    fprintf(stderr, a->secret ? "not acceptable" : "\"%s\"", text);
    fprintf(stderr, "; wanted %s%s", types[a->type].wanted, a->choices ? a->choices : "");
    say_range(a, stderr);
    if (a->type < ARG_INTS && strchr(text, ','))
        say_lists(spec->rows);
    fputc('\n', stderr);
    return 0;
}

static int set(const struct args_spec *spec, const struct arg *a, const char *source,
               const char *text, void *opts)
{
    return set_field(spec, a, source, text, (char *)opts + a->field);
}

/* ---------------------------------------------------------------- parsing */

static int is_flag(const struct arg *a)
{
    return a->name[0] == '-';
}

/* The row whose name or alias is word[0..n), NULL if none. */
static const struct arg *find(const struct arg *rows, const char *word, size_t n)
{
    for (const struct arg *a = rows; a->name; a++) {
        if (is_flag(a) && ((strlen(a->name) == n && !memcmp(a->name, word, n)) ||
                           (a->alias && strlen(a->alias) == n && !memcmp(a->alias, word, n))))
            return a;
    }
    return NULL;
}

/* What every command has besides its own. */
static const struct arg common[] = {
    {.name = "--config",
     .meta = "FILE",
     .type = ARG_TEXT,
     .otherwise = "pith.conf in $XDG_CONFIG_HOME/pith or ~/.config/pith, else /etc/pith/pith.conf",
     .help = "configuration file; /dev/null: none"},
    {.name = "--help", .alias = "-h", .type = ARG_SWITCH, .help = "show this"},
    {0},
};

/* The flags that other programs have for it. */
static int names_a_model(const char *flag)
{
    static const char *const flags[] = {"-m", "--model", "-hf", "-hfr", "--hf-repo"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (!strcmp(flag, flags[i]))
            return 1;
    }
    return 0;
}

static int takes_a_model(const struct args_spec *spec)
{
    const struct arg *a = spec->rows;
    while (a->name && strcmp(a->name, "MODEL") != 0)
        a++;
    return a->name != NULL;
}

/* What is meant by a flag that other programs have: a flag of the command (*is_flag), or words.
 * NULL: nothing is known of it. */
static const char *elsewhere(const char *flag, const char *const *names, int *is_flag)
{
    static const char *const rows[][2] = {
/* Samplers first: where a command has requests, they are fields of them. */
#define SETTING(name, member, kind, least, most, usual, flag, letter, ...)                         \
    {flag, "--default " #name "=" letter " says it where a request does not"},
#include "src/run/sample/samplers.def"
#define ELSEWHERE(flag, what) {flag, what},
#include "cli/args/elsewhere.def"
#undef ELSEWHERE
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (fnmatch(rows[i][0], flag, 0) != 0)
            continue;
        *is_flag = !strncmp(rows[i][1], "--", 2) && !strchr(rows[i][1], ' ');
        const char *const *n = names;
        while (*is_flag && *n && strcmp(*n, rows[i][1]) != 0)
            n++;
        /* words that name a flag count where the command has it */
        size_t first = strcspn(rows[i][1], " ");
        while (!*is_flag && !strncmp(rows[i][1], "--", 2) && *n &&
               (strlen(*n) != first || strncmp(*n, rows[i][1], first) != 0))
            n++;
        if (*n)
            return rows[i][1];
    }
    return NULL;
}

static int bad_flag(const struct args_spec *spec, const char *word)
{
    const char *names[ROWS_MAX + sizeof common / sizeof common[0]];
    char flag[64], two[64]; /* the word; with the dashes that names have */
    int n = 0;
    for (const struct arg *a = spec->rows; a->name && n < ROWS_MAX; a++) {
        if (is_flag(a))
            names[n++] = a->name;
    }
    for (const struct arg *a = common; a->name; a++)
        names[n++] = a->name;
    names[n] = NULL;
    snprintf(flag, sizeof flag, "%.*s", (int)strcspn(word, "="), word);
    if (names_a_model(flag) && takes_a_model(spec)) {
        const char *what = strstr(flag, "hf") ? "hf:OWNER/REPO" : "MODEL";
        fprintf(stderr, "%s: unknown flag %s; %s stands without a flag: %s %s\n", spec->command,
                flag, what, spec->command, what);
        return ARGS_BAD;
    }
    int is_ours = 1;
    const char *near = elsewhere(flag, names, &is_ours);
    fprintf(stderr, "%s: unknown flag %s", spec->command, flag);
    if (near && !is_ours) {
        fprintf(stderr, "; %s\n", near);
        return ARGS_BAD;
    }
    snprintf(two, sizeof two, "--%s", flag + strspn(flag, "-"));
    near = near ? near : args_nearest(two, names);
    if (near)
        fprintf(stderr, "; did you mean %s?", near);
    fprintf(stderr, "%s '%s --help' lists the flags\n", near ? "" : ";", spec->command);
    return ARGS_BAD;
}

/* Up to the "=" of a long flag. */
static size_t flag_length(const char *word)
{
    return strncmp(word, "--", 2) ? strlen(word) : strcspn(word, "=");
}

/* The flags behind one that is unknown which are so, too: a command line of another program is
 * mended at once. A word that may be the value of one is no flag. */
static void bad_flags_behind(const struct args_spec *spec, int argc, char **argv, int i)
{
    while (++i < argc && strcmp(argv[i], "--") != 0) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1] || strchr("0123456789.", word[1]))
            continue;
        size_t n = flag_length(word);
        const struct arg *a = find(spec->rows, word, n);
        a = a ? a : find(common, word, n);
        if (!a)
            bad_flag(spec, word);
        else if (a->type != ARG_SWITCH && !word[n])
            i++;
    }
}

/* One flag at argv[*i]; moves *i to its last word. */
static int parse_flag(const struct args_spec *spec, int argc, char **argv, int *i, void *opts,
                      char *given, const char **config)
{
    char *word = argv[*i], *value = NULL;
    size_t n = flag_length(word);
    const struct arg *a = find(spec->rows, word, n), *shared = a ? NULL : find(common, word, n);
    if (!a && !shared) {
        bad_flag(spec, word);
        bad_flags_behind(spec, argc, argv, *i);
        return ARGS_BAD;
    }
    if (word[n] == '=') {
        value = word + n + 1;
    } else if (a && a->type == ARG_SWITCH) {
        value = "yes";
    } else if (*i + 1 == argc) {
        const struct arg *row = a ? a : shared;
        fprintf(stderr, "%s: %s has no value; wanted %s%s", spec->command, word,
                types[row->type].wanted, row->choices ? row->choices : "");
        say_range(row, stderr);
        fputc('\n', stderr);
        return ARGS_BAD;
    } else {
        value = argv[++*i];
    }
    if (shared) {
        *config = value;
        return ARGS_RUN;
    }
    given[a - spec->rows] = 1;
    return set(spec, a, a->name, value, opts) ? ARGS_RUN : ARGS_BAD;
}

const char *args_env(const struct arg *a, char *out)
{
    if (a->env || !is_flag(a))
        return a->env;
    int n = snprintf(out, ENV_MAX, "PITH_%s", a->name + strspn(a->name, "-"));
    for (int i = 0; i < n && i < ENV_MAX; i++)
        out[i] = (char)(out[i] == '-' ? '_' : toupper((unsigned char)out[i]));
    return out;
}

/* Kubernetes sets PITH_PORT=tcp://10.0.0.1:8080 where there is a service called pith. */
static int is_address(const char *text)
{
    return !strncmp(text, "tcp://", 6) || !strncmp(text, "udp://", 6) ||
           !strncmp(text, "sctp://", 7);
}

/* The k-th text of a row that was not given, from around the command line; NULL: no more of them.
 */
static const char *from_around(const struct args_spec *spec, const struct config *conf,
                               const struct arg *a, int k, char *source, size_t cap)
{
    if (a->typed)
        return NULL;
    char name[ENV_MAX];
    const char *variable = args_env(a, name), *text = variable ? getenv(variable) : NULL;
    if (text && *text && (a->type == ARG_TEXT || a->type == ARG_TEXTS || !is_address(text))) {
        snprintf(source, cap, "%s", variable);
        return k ? NULL : text;
    }
    const struct config_line *l = config_find(conf, spec->command, a->name, k);
    if (l)
        snprintf(source, cap, "%s:%d: %s", conf->path, l->number, l->key);
    return l ? l->value : NULL;
}

static void set_none(const struct arg *a, void *opts)
{
    void *field = (char *)opts + a->field;
    if (a->type == ARG_REAL)
        *(double *)field = NAN;
    else
        *(int64_t *)field = ARG_NONE;
}

/* Environment, file and defaults for the rows that were not given. */
static int fill_in(const struct args_spec *spec, const struct config *conf, const char *given,
                   void *opts)
{
    char source[512];
    for (const struct arg *a = spec->rows; a->name; a++) {
        const char *text;
        int k = 0;
        if (given[a - spec->rows])
            continue;
        while ((text = from_around(spec, conf, a, k, source, sizeof source))) {
            if (!set(spec, a, source, text, opts))
                return ARGS_BAD;
            k++;
        }
        if (!k && a->required) {
            fprintf(stderr, "%s: %s is missing; '%s --help' shows how it is used\n", spec->command,
                    a->name, spec->command);
            return ARGS_BAD;
        }
        if (!k && a->dflt && !set(spec, a, a->name, a->dflt, opts))
            return ARGS_BAD;
        if (!k && !a->dflt && a->open)
            set_none(a, opts);
    }
    return ARGS_RUN;
}

/* The last word that the command takes is one text. */
static int of_a_text(const struct args_spec *spec)
{
    const struct arg *last = NULL;
    for (const struct arg *a = spec->rows; a->name; a++)
        last = is_flag(a) ? last : a;
    return last && (!strcmp(last->name, "PROMPT") || !strcmp(last->name, "TEXT"));
}

/* The last --config before "--", whatever else is wrong: for the help. */
static const char *config_given(int argc, char **argv)
{
    const char *path = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strncmp(argv[i], "--config=", 9))
            path = argv[i] + 9;
        else if (!strcmp(argv[i], "--config") && i + 1 < argc)
            path = argv[i + 1];
    }
    return path;
}

int args_parse(const struct args_spec *spec, struct config *conf, int argc, char **argv, void *opts)
{
    char given[ROWS_MAX] = {0};
    const char *config = NULL;
    int flags = 1;
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            config_open(conf, config_given(argc, argv)); /* a message, if it is damaged */
            return ARGS_HELP;
        }
    }
    const struct arg *next = spec->rows; /* positional */
    for (int i = 0; i < argc; i++) {
        if (flags && !strcmp(argv[i], "--")) {
            flags = 0;
            continue;
        }
        if (flags && argv[i][0] == '-' && argv[i][1]) { /* "-" alone is a file name */
            if (parse_flag(spec, argc, argv, &i, opts, given, &config) != ARGS_RUN)
                return ARGS_BAD;
            continue;
        }
        while (next->name && is_flag(next))
            next++;
        if (!next->name) {
            fprintf(stderr, "%s: found \"%s\" where nothing more was wanted%s\n", spec->command,
                    argv[i], of_a_text(spec) ? "; a text of several words stands in quotes" : "");
            return ARGS_BAD;
        }
        given[next - spec->rows] = 1;
        if (!set(spec, next, next->name, argv[i], opts))
            return ARGS_BAD;
        next += next->type != ARG_TEXTS; /* which takes all that come */
    }
    if (!config_open(conf, config) || !args_check_config(spec, conf))
        return ARGS_BAD;
    return fill_in(spec, conf, given, opts);
}

int args_check_config(const struct args_spec *spec, const struct config *conf)
{
    union {
        int on;
        int64_t whole;
        double real;
        const char *text;
        struct arg_ints ints;
        struct arg_texts texts;
    } field;
    char source[512];
    for (int i = 0; i < conf->n; i++) {
        const struct config_line *l = &conf->lines[i];
        /* A line for all commands may be right for one and wrong for another: the one that is run
         * decides. */
        const struct args_spec *of = l->section ? l->section : spec;
        for (const struct arg *a = of->rows; a->name; a++) {
            memset(&field, 0, sizeof field);
            snprintf(source, sizeof source, "%s:%d: %s", conf->path, l->number, l->key);
            if (config_names(a->name, l->key) && !set_field(spec, a, source, l->value, &field))
                return 0;
        }
    }
    return 1;
}

/* ---------------------------------------------------------------- help */

void args_wrap(FILE *to, const char *text, int indent, int column)
{
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)n > LINE) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", (int)n, text);
        column += (int)n;
        text += n;
        if (*text == '\n') {
            fprintf(to, "\n%*s", text[1] ? indent : 0, "");
            column = indent;
        }
        text += *text != 0;
    }
    fputc('\n', to);
}

const char *args_meta(const struct arg *a)
{
    return a->type == ARG_SWITCH ? "" : a->meta ? a->meta : a->choices ? a->choices : "N";
}

/* What the environment or the file sets it to, and where. */
static void say_source(const struct args_spec *spec, const struct config *conf, const struct arg *a,
                       FILE *to)
{
    char source[512];
    const char *text;
    for (int k = 0; (text = from_around(spec, conf, a, k, source, sizeof source)); k++)
        fprintf(to, "%s%s%s%s", k ? ", " : " [set by ", source, a->secret ? "" : " to ",
                a->secret ? "" : text);
    text = from_around(spec, conf, a, 0, source, sizeof source);
    fputs(text ? "]" : "", to);
}

/* A bound as people write it: 1G, not 1073741824. */
static void say_bound(const struct arg *a, double v, FILE *to)
{
    const char *unit = " KMG";
    for (; a->type == ARG_SIZE && v >= 1024 && fmod(v, 1024) == 0 && unit[1]; unit++)
        v /= 1024;
    fprintf(to, *unit == ' ' ? "%.15g" : "%.15g%c", v, *unit);
}

void args_describe(const struct arg *a, FILE *to)
{
    const char *dflt = a->dflt ? a->dflt : a->otherwise, *open = " (";
    fputs(a->help, to);
    if (types[a->type].is_number && (a->lo != 0 || a->hi != 0)) {
        fprintf(to, "%s%s", open, a->hi != 0 ? "" : "at least ");
        say_bound(a, a->lo, to);
        if (a->hi != 0) {
            fputs(" to ", to);
            say_bound(a, a->hi, to);
        }
        if (a->word)
            fprintf(to, ", or %s", a->word);
        open = "; ";
    }
    if (a->env) {
        fprintf(to, "%senvironment: %s", open, a->env);
        open = "; ";
    }
    if (dflt) {
        fprintf(to, "%sdefault: %s", open, dflt);
        open = "; ";
    }
    if (*open == ';')
        fputc(')', to);
}

static void help_row(const struct args_spec *spec, const struct config *conf, const struct arg *a,
                     FILE *to)
{
    char *text = NULL;
    size_t n;
    int column;
    if (is_flag(a))
        column = fprintf(to, "  %3s%s %s %s", a->alias ? a->alias : "", a->alias ? "," : " ",
                         a->name, args_meta(a));
    else
        column = fprintf(to, "  %s", a->name);
    if (column >= HELP_COLUMN) {
        fputc('\n', to);
        column = 0;
    }
    fprintf(to, "%*s", HELP_COLUMN - column, "");
    FILE *words = open_memstream(&text, &n);
    if (words) {
        args_describe(a, words);
        say_source(spec, conf, a, words);
        fclose(words);
    }
    args_wrap(to, text ? text : a->help, HELP_COLUMN, HELP_COLUMN);
    free(text);
}

/* Where flags come from that are not given, with one of the command's own for an example: the first
 * that has a default, else the first switch. */
static void help_elsewhere(const struct args_spec *spec, FILE *to)
{
    const struct arg *shown = NULL;
    char name[ENV_MAX], text[512];
    for (const struct arg *a = spec->rows; a->name && !(shown && shown->dflt); a++) {
        if (is_flag(a) && !a->typed && (a->dflt || (a->type == ARG_SWITCH && !shown)))
            shown = a;
    }
    if (!shown)
        return;
    snprintf(text, sizeof text,
             "A flag that is not given is looked for in the environment (%s: %s), then in the "
             "configuration file (%s = %s, for all commands or below a line [%s]).",
             shown->name, args_env(shown, name), shown->name + 2, shown->dflt ? shown->dflt : "yes",
             strrchr(spec->command, ' ') + 1);
    fputc('\n', to);
    args_wrap(to, text, 0, 0);
}

void args_help(const struct args_spec *spec, const struct config *conf, FILE *to)
{
    fprintf(to, "Usage: %s", spec->command);
    for (const struct arg *a = spec->rows; a->name; a++) {
        if (a->required && is_flag(a))
            fprintf(to, " %s %s", a->name, args_meta(a));
        else if (!is_flag(a))
            fprintf(to, a->required ? " %s%s" : " [%s%s]", a->name,
                    a->type == ARG_TEXTS ? "..." : "");
    }
    fputs(" [flags]\n\n", to);
    args_wrap(to, spec->about, 0, 0);
    fputc('\n', to);
    for (const struct arg *a = spec->rows; a->name; a++)
        help_row(spec, conf, a, to);
    for (const struct arg *a = common; a->name; a++)
        help_row(spec, conf, a, to);
    help_elsewhere(spec, to);
    fprintf(to, "\nExample:\n%s", spec->example);
}
