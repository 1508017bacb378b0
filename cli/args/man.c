/* man.c -- see man.h. */
#include "cli/args/man.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Text as troff takes it: no escapes, dashes that can be copied, no line that begins a request. */
static void put(FILE *to, const char *text)
{
    int begins = 1;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", to);
        begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else if (*text == '\'')
            fputs("\\(aq", to);
        else if (*text == '~')
            fputs("\\(ti", to);
        else if (*text == '^')
            fputs("\\(ha", to);
        else
            fputc(*text, to);
    }
}

static void row(const struct arg *a, FILE *to)
{
    const char *meta = args_meta(a);
    fputs(".TP\n", to);
    if (a->alias) {
        fputs("\\fB", to);
        put(to, a->alias);
        fputs("\\fR, ", to);
    }
    fputs("\\fB", to);
    put(to, a->name);
    fputs("\\fR", to);
    if (*a->name == '-' && *meta) {
        fputs(" \\fI", to);
        put(to, meta);
        fputs("\\fR", to);
    }
    fputc('\n', to);
    char *text = NULL;
    size_t n;
    FILE *words = open_memstream(&text, &n);
    if (words) {
        args_describe(a, words);
        fclose(words);
    }
    put(to, text ? text : a->help);
    free(text);
    fputc('\n', to);
}

static void example(const char *text, FILE *to)
{
    fputs(".PP\n.nf\n.RS\n", to);
    put(to, text);
    fputs(".RE\n.fi\n", to);
}

static void command(const struct command *c, FILE *to)
{
    fputs(".SS ", to);
    fprintf(to, "pith %s", c->name);
    for (const struct arg *a = c->args.rows; a->name; a++) {
        if (*a->name != '-')
            fprintf(to, a->required ? " %s%s" : " [%s%s]", a->name,
                    a->type == ARG_TEXTS ? "..." : "");
    }
    fputs(" [flags]\n", to);
    put(to, c->args.about);
    fputc('\n', to);
    for (const struct arg *a = c->args.rows; a->name; a++)
        row(a, to);
    example(c->args.example, to);
}

static const char files[] =
    ".SH ENVIRONMENT\n"
    "A flag that is not given is looked for in the environment as PITH_ and its name in capitals, "
    "with _ for \\-: \\fBPITH_MAX_BODY\\fR for \\fB\\-\\-max\\-body\\fR. An empty one does not "
    "count. "
    "A switch is \\fByes\\fR or \\fBno\\fR. Besides there are\n"
    ".TP\n\\fBPITH_CONFIG\\fR\nthe configuration file\n"
    ".TP\n\\fBPITH_CACHE\\fR\nthe cache folder (default: $XDG_CACHE_HOME/pith or "
    "\\(ti/.cache/pith)\n"
    ".TP\n\\fBPITH_MODELS\\fR\nthe folder of pulled models (default: $XDG_DATA_HOME/pith/models or "
    "\\(ti/.local/share/pith/models)\n"
    ".TP\n\\fBHF_ENDPOINT\\fR, \\fBHF_TOKEN\\fR, \\fBPITH_OLLAMA_REGISTRY\\fR\nthe hub, the key to "
    "it, and the "
    "registry that \\fBpith pull\\fR asks\n"
    ".TP\n\\fBPITH_CPU\\fR\nthe highest instruction set to use: base, avx2, avxvnni, avx512, "
    "avx512vnni, avx512bf16, amx, neon, dotprod, i8mm or bf16\n"
    ".SH FILES\n"
    "What neither the command line nor the environment says is looked for in the configuration "
    "file: that of \\fB\\-\\-config\\fR, else \\fBPITH_CONFIG\\fR, else\n"
    ".I $XDG_CONFIG_HOME/pith/pith.conf\n(or\n.IR \\(ti/.config/pith/pith.conf ),\nelse\n"
    ".IR /etc/pith/pith.conf .\n"
    "Its lines are those of flags without dashes; those before the first [command] hold for all "
    "commands that have the flag. MODEL is \\fBmodel\\fR. A line that is unknown or wrong is "
    "refused with its number.\n";

void man_print(const struct command *const *commands, int n, FILE *to)
{
    fprintf(to,
            ".TH PITH 1 \"\" \"pith %s\" \"User Commands\"\n.nh\n.ad l\n"
            ".SH NAME\npith \\- runs and serves language models from GGUF files\n"
            ".SH SYNOPSIS\n\\fBpith\\fR \\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIflags\\fR]\n"
            ".SH COMMANDS\n",
            pith_version());
    for (int i = 0; i < n; i++)
        command(commands[i], to);
    fputs(files, to);
    example("threads = 4\n\n[serve]\nmodel = /srv/models/model.gguf\nport = 8080\n"
            "allow-host = llm.example.org\n",
            to);
    fputs(".SH EXIT STATUS\n", to);
    fprintf(to,
            "%d: all is well. %d: the command line or the configuration is wrong. %d: a file, "
            "prompt or model is wrong. %d: the system failed. %d: interrupted.\n",
            CLI_OK, CLI_USE, CLI_INPUT, CLI_SYSTEM, CLI_INTERRUPTED);
}

static int on_path(const char *name)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];
    while (path && *path) {
        int n = (int)strcspn(path, ":");
        if (snprintf(file, sizeof file, "%.*s/%s", n, path, name) < (int)sizeof file &&
            access(file, X_OK) == 0)
            return 1;
        path += n + (path[n] == ':');
    }
    return 0;
}

void man_show(const struct command *const *commands, int n)
{
    FILE *reader = isatty(STDOUT_FILENO) && on_path("man") ? popen("man -l -", "w") : NULL;
    if (reader) {
        signal(SIGPIPE, SIG_IGN); /* who reads it may leave early */
        man_print(commands, n, reader);
        if (pclose(reader) == 0)
            return;
    }
    man_print(commands, n, stdout);
}
