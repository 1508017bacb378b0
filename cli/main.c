/* main.c -- the program: finds the command, parses its flags, runs it, sees to its output. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/args/config.h"
#include "cli/args/man.h"

static const struct command *const commands[] = {
#define COMMAND(name) &cmd_##name,
#include "cli/commands.def"
#undef COMMAND
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };
static const struct args_spec *specs[N_COMMANDS + 1];

static void help(FILE *to)
{
    fprintf(to,
            "pith %s -- runs language models from GGUF files\n\n"
            "Usage: pith COMMAND [arguments]\n\n",
            pith_version());
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "  %-11s %s\n  %-11s %s\n  %-11s %s\n\n", "version",
            "print version and instruction set", "help", "print this, or the help of a command",
            "man", "print the manual page");
    fputs("'pith COMMAND --help' lists the flags of a command. Exit codes: 0 well, 1 wrong use,\n"
          "2 wrong input (file, prompt, model), 3 the system failed, 130 interrupted.\n\n"
          "Example:\n  pith run model.gguf -p \"Once upon a time\" -n 64\n",
          to);
}

static const struct command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    }
    return NULL;
}

/* What other programs have for a command, or for what is done in another way here: "pith ...", or
 * words. NULL: nothing is known of it. */
static const char *elsewhere(const char *word)
{
    static const char *const rows[][2] = {
        {"chat", "pith run MODEL"},
        {"generate", "pith run MODEL -p TEXT"},
        {"complete", "pith run MODEL -p TEXT"},
        {"completion", "pith run MODEL -p TEXT"},
        {"cli", "pith run MODEL"},
        {"-m", "pith run MODEL"},
        {"-p", "pith run MODEL -p TEXT"},
        {"--model", "pith run MODEL"},
        {"--prompt", "pith run MODEL -p TEXT"},
        {"-hf", "pith run hf:OWNER/REPO"},
        {"--hf-repo", "pith run hf:OWNER/REPO"},
        {"start", "pith serve MODEL"},
        {"web", "pith serve MODEL"},
        {"ls", "pith list"},
        {"models", "pith list"},
        {"download", "pith pull NAME"},
        {"get", "pith pull NAME"},
        {"remove", "pith rm NAME"},
        {"delete", "pith rm NAME"},
        {"uninstall", "pith rm NAME"},
        {"show", "pith inspect FILE"},
        {"info", "pith inspect FILE"},
        {"gguf", "pith inspect FILE"},
        {"ppl", "pith perplexity MODEL -f FILE"},
        {"detokenize", "pith tokenize MODEL --jsonl, whose answers have \"detok\""},
        {"ps", "GET /api/ps of 'pith serve' lists what is loaded"},
        {"stop", "POST /admin/unload of 'pith serve' unloads a model"},
        {"quantize", "files stay as they are; those that other programs quantize are read"},
        {"convert", "files stay as they are; GGUF files that other programs convert are read"},
        {"imatrix", "files stay as they are; those that other programs quantize are read"},
        {"create", "files are used as they are; --system and samplers are flags of 'pith run'"},
        {"push", "models are fetched here, and never sent"},
    };
    if (!strncmp(word, "llama-", 6))
        word += 6;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!strcmp(word, rows[i][0]))
            return rows[i][1];
    }
    return NULL;
}

/* Words that have no flags: the help is all that there is to say of them. */
static int is_plain(const char *word)
{
    return !strcmp(word, "version") || !strcmp(word, "help") || !strcmp(word, "man") ||
           !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* A model where the command belongs. */
static int means_run(const char *word)
{
    size_t n = strlen(word);
    return word[0] != '-' &&
           ((n > 5 && !strcmp(word + n - 5, ".gguf")) || !strncmp(word, "hf:", 3) ||
            !strncmp(word, "ollama:", 7) || (strpbrk(word, "/.") && !access(word, F_OK)));
}

static int unknown_command(const char *word)
{
    const char *other = elsewhere(word);
    if (other)
        return cli_say(CLI_USE, "unknown command \"%s\"; %s%s", word,
                       strncmp(other, "pith ", 5) ? "" : "wanted: ", other);
    if (means_run(word))
        return cli_say(CLI_USE, "unknown command \"%s\"; wanted: pith run MODEL ...", word);
    const char *names[N_COMMANDS + 4];
    int n = 0;
    for (; n < N_COMMANDS; n++)
        names[n] = commands[n]->name;
    names[n++] = "version";
    names[n++] = "help";
    names[n++] = "man";
    names[n] = NULL;
    const char *plain = strncmp(word, "llama-", 6) ? word : word + 6;
    const char *near = *word == '-' ? NULL : args_nearest(plain, names);
    if (near)
        return cli_say(CLI_USE, "unknown command \"%s\"; did you mean %s?", word, near);
    return cli_say(CLI_USE, "unknown command \"%s\"; 'pith --help' lists the commands", word);
}

/* Opens what the parent closed of stdin, stdout and stderr in the wrong direction: no file that is
 * opened later can take its place, and using it is an error as it should be. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            _exit(CLI_SYSTEM);
    }
}

static int run(const struct command *c, int argc, char **argv)
{
    void *opts = calloc(1, c->opts_bytes);
    struct config conf = {.commands = specs};
    int code = CLI_OK;
    if (!opts)
        return cli_no_memory();
    switch (args_parse(&c->args, &conf, argc, argv, opts)) {
    case ARGS_RUN:
        interrupt_install();
        if (c != &cmd_run) /* which writes by itself, and lets the line editor have stdout */
            cli_guard(&stdout);
        code = cli_trace_end(c->run(opts));
        break;
    case ARGS_HELP:
        args_help(&c->args, &conf, stdout);
        break;
    default:
        code = CLI_USE;
    }
    config_close(&conf);
    free(opts);
    return code;
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves early is no error, as cli_finish has it */
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < N_COMMANDS; i++)
        specs[i] = &commands[i]->args;
    if (!strcmp(word, "help") && argc > 2 && !is_plain(argv[2])) {
        const struct command *c = find(argv[2]);
        char *help_flag[] = {"--help"};
        return cli_finish(c ? run(c, 1, help_flag) : unknown_command(argv[2]));
    }
    int asks = argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"));
    if (asks && is_plain(word))
        word = "help";
    if (!strcmp(word, "man")) {
        man_show(commands, N_COMMANDS);
        return cli_finish(CLI_OK);
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
        help(stdout);
        return cli_finish(CLI_OK);
    }
    if (!strcmp(word, "version") || !strcmp(word, "--version")) {
        const char *isa = pith_isa();
        printf("pith %s %s\n", pith_version(), isa ? isa : "");
        return cli_finish(CLI_OK);
    }
    if (!*word) {
        help(stderr);
        return CLI_USE;
    }
    const struct command *c = find(word);
    return cli_finish(c ? run(c, argc - 2, argv + 2) : unknown_command(word));
}
