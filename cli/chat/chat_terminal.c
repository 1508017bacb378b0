/* chat_terminal.c -- the chat program: reads questions and commands, shows answers as they are
 * made.
 *
 * Answers go to stdout, everything else to stderr. Reasoning is dimmed where colours are wanted,
 * else it stands between <think> and </think>. A model may write any byte: control characters are
 * shown as ^X, so that no answer can command the terminal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/cli.h"
#include "cli/chat/line.h"

struct terminal {
    struct chat *chat;
    struct line *line;
    int colours, verbose;
    int is_terminal;     /* stdout is */
    int told_system;     /* that it stands in the first question */
    int reasoning, last; /* of the answer: what it is in, its last byte (0: nothing yet) */
    int failed_errno;    /* stdout is gone */
    int code;            /* exit code, once a command returned 0 */
};

enum { FENCE = 3 };
static const char fence[] = "\"\"\"";

/* ---------------------------------------------------------------- what is shown */

static void put(struct terminal *t, const char *text, size_t n)
{
    if (n && !t->failed_errno)
        t->failed_errno = cli_write_all(STDOUT_FILENO, text, n);
    if (n)
        t->last = (unsigned char)text[n - 1];
}

static void put_text(struct terminal *t, const char *text)
{
    put(t, text, strlen(text));
}

static void put_visible(struct terminal *t, const char *p, size_t n)
{
    if (n && !t->failed_errno)
        t->failed_errno = cli_write_text(STDOUT_FILENO, t->is_terminal, p, n);
    if (n)
        t->last = (unsigned char)p[n - 1];
}

static void show_reasoning(struct terminal *t, int on)
{
    if (on == t->reasoning)
        return;
    t->reasoning = on;
    if (t->colours)
        put_text(t, on ? "\033[2m" : "\033[0m\n\n");
    else
        put_text(t, on ? "<think>\n" : "\n</think>\n\n");
}

static int show(void *ctx, int is_reasoning, const char *text, size_t n)
{
    struct terminal *t = ctx;
    show_reasoning(t, is_reasoning);
    put_visible(t, text, n);
    return !t->failed_errno && !interrupt_asked();
}

static void end_answer(struct terminal *t)
{
    if (t->reasoning)
        show_reasoning(t, 0);
    else if (t->last && t->last != '\n' && t->is_terminal)
        put_text(t, "\n");
}

static void offer_room(void)
{
    fputs("      /clear begins a new conversation; started with a larger --ctx, or with "
          "--context-shift, this one could go on\n",
          stderr);
}

/* ---------------------------------------------------------------- answers */

static void answered(struct terminal *t, pith_status st, const struct pith_error *err)
{
    const struct chat *c = t->chat;
    end_answer(t);
    if (st == PITH_CANCELLED) {
        fputs("(stopped before its first word: the question is taken back)\n", stderr);
    } else if (st != PITH_OK) {
        cli_say(0, "%s", err->msg);
        if (st == PITH_RANGE)
            offer_room();
    } else if (c->last.stop == PITH_STOP_CANCELLED || c->last.stop == PITH_STOP_CALLBACK) {
        fputs("(stopped)\n", stderr);
    } else if (c->last.stop == PITH_STOP_LENGTH) {
        fprintf(stderr, "(ended after %d tokens, as --predict says)\n", c->last.n_generated);
    } else if (c->last.stop == PITH_STOP_CONTEXT) {
        cli_say(0, "%s", err->msg);
        offer_room();
    }
    if (st == PITH_OK && t->verbose)
        cli_timings(c->session, &c->last, -1);
}

static void answer(struct terminal *t,
                   pith_status (*make)(struct terminal *, const char *, struct pith_error *),
                   const char *text)
{
    struct pith_error err = {0};
    struct chat *c = t->chat;
    size_t left_out = c->n_left_out;
    t->last = 0;
    pith_cancel_reset(c->session);
    interrupt_watch(c->session);
    pith_status st = make(t, text, &err);
    interrupt_watch(NULL);
    pith_cancel_reset(c->session);
    answered(t, st, &err);
    if (c->n_left_out > left_out)
        fprintf(
            stderr,
            "(to make room the model no longer sees the %zu oldest messages; /save keeps them)\n",
            c->n_left_out);
}

static pith_status ask(struct terminal *t, const char *text, struct pith_error *err)
{
    return chat_ask(t->chat, text, err);
}

static pith_status again(struct terminal *t, const char *text, struct pith_error *err)
{
    (void)text;
    return chat_again(t->chat, err);
}

/* ---------------------------------------------------------------- commands; 0: leave */

static int do_help(struct terminal *t, const char *arg);

static void tell_system(struct terminal *t)
{
    if (!t->told_system && chat_moves_system(t->chat)) {
        t->told_system = 1;
        cli_say(0, CHAT_MOVES_SYSTEM);
    }
}

static int do_clear(struct terminal *t, const char *arg)
{
    (void)arg;
    chat_clear(t->chat);
    fprintf(stderr, "a new conversation%s\n",
            chat_system_text(t->chat) ? ", with the same system text" : "");
    return 1;
}

static int do_save(struct terminal *t, const char *arg)
{
    static const char flag[] = "--state";
    struct pith_error err = {0};
    int with_state = !strncmp(arg, flag, strlen(flag)) && strchr(" ", arg[strlen(flag)]);
    if (with_state)
        arg += strlen(flag) + strspn(arg + strlen(flag), " ");
    if (!*arg)
        fputs("/save wants the name of a file\n", stderr);
    else if (chat_save(t->chat, arg, with_state, &err) != PITH_OK)
        cli_say(0, "%s", err.msg);
    else
        fprintf(stderr, "saved %zu messages in %s%s\n", json_array_size(t->chat->messages), arg,
                with_state ? ", the session's state beside it" : "");
    return 1;
}

static int do_load(struct terminal *t, const char *arg)
{
    struct pith_error err = {0}, state = {0};
    if (!*arg) {
        fputs("/load wants the name of a file\n", stderr);
    } else if (chat_load(t->chat, arg, &state, &err) != PITH_OK) {
        cli_say(0, "%s", err.msg);
    } else {
        if (state.code)
            cli_say(0, "%s; the messages will be read again", state.msg);
        fprintf(stderr, "loaded %zu messages from %s\n", json_array_size(t->chat->messages), arg);
        tell_system(t);
    }
    return 1;
}

static int do_system(struct terminal *t, const char *arg)
{
    struct pith_error err = {0};
    const char *now = chat_system_text(t->chat);
    if (!*arg)
        cli_tell("%s\n", now ? now : "there is no system text");
    else if (chat_system(t->chat, strcmp(arg, "-") ? arg : "", &err) != PITH_OK)
        cli_say(0, "%s", err.msg);
    else
        fprintf(stderr, "%s from the next answer on\n",
                strcmp(arg, "-") ? "the new system text holds" : "no system text");
    tell_system(t);
    return 1;
}

static int do_regen(struct terminal *t, const char *arg)
{
    (void)arg;
    answer(t, again, NULL);
    return 1;
}

static int do_stats(struct terminal *t, const char *arg)
{
    const struct chat *c = t->chat;
    (void)arg;
    fprintf(stderr, "context: %lld of %d tokens, %zu messages", (long long)c->n_used,
            pith_n_ctx(c->session), json_array_size(c->messages));
    if (c->n_left_out)
        fprintf(stderr, ", the oldest %zu not seen by the model", c->n_left_out);
    fputc('\n', stderr);
    if (c->n_answers) {
        fprintf(stderr, "last answer: %d of its %d prompt tokens were cached\n", c->last.n_kept,
                c->last.n_prompt);
        cli_timings(c->session, &c->last, -1);
        fprintf(stderr, "in all: %d answers, %lld tokens read, %lld cached, %lld made\n",
                c->n_answers, (long long)c->n_read, (long long)c->n_cached, (long long)c->n_made);
    }
    return 1;
}

static int do_exit(struct terminal *t, const char *arg)
{
    (void)t, (void)arg;
    return 0;
}

static const struct chat_command {
    const char *name, *args, *help;
    int (*run)(struct terminal *t, const char *arg);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/clear", "", "begin a new conversation; the system text stays", do_clear},
    {"/save", "FILE",
     "write the messages to FILE (--state FILE: and the session's state beside it)", do_save},
    {"/load", "FILE", "go on with the messages of FILE, and with its state where there is one",
     do_load},
    {"/system", "TEXT", "set the system text; without TEXT show it, with - remove it", do_system},
    {"/regen", "", "make the last answer again", do_regen},
    {"/stats", "", "tokens, speeds, what was cached", do_stats},
    {"/exit", "", "leave, as /bye and Ctrl-D do", do_exit},
    {"/bye", "", NULL, do_exit}, /* without a help: another name */
    {"/?", "", NULL, do_help},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int do_help(struct terminal *t, const char *arg)
{
    (void)arg;
    for (int i = 0; i < N_COMMANDS; i++) {
        const struct chat_command *c = &commands[i];
        if (c->help)
            fprintf(stderr, "  %-8s %-5s %s\n", c->name, c->args, c->help);
    }
    fprintf(
        stderr,
        "Lines between two lines of %s are one message%s; one that begins with / is sent as //.\n"
        "Ctrl-C stops an answer; at the prompt it clears the line, and a second one leaves.\n",
        fence, line_edits(t->line) ? ", and so is a paste" : "");
    return 1;
}

static int unknown_command(const char *word)
{
    const char *names[N_COMMANDS + 1] = {0};
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = args_nearest(word, names);
    fprintf(stderr, "unknown command %s; %s%s%s (a message that begins with / is sent as //)\n",
            word, near ? "did you mean " : "/help lists them", near ? near : "", near ? "?" : "");
    return 1;
}

/* A line that begins with one slash. Text of several lines is a command only when its name is one.
 */
static int command(struct terminal *t, char *text)
{
    size_t n = strcspn(text, " \n");
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) == n && !memcmp(text, commands[i].name, n)) {
            char *arg = text + n + strspn(text + n, " \n"), *end = arg + strlen(arg);
            while (end > arg && (end[-1] == ' ' || end[-1] == '\n'))
                *--end = 0;
            return commands[i].run(t, arg);
        }
    }
    if (strchr(text, '\n')) {
        answer(t, ask, text);
        return 1;
    }
    text[n] = 0;
    return unknown_command(text);
}

/* ---------------------------------------------------------------- input */

static int ends_with_fence(const char *text, size_t n)
{
    return n >= FENCE && !memcmp(text + n - FENCE, fence, FENCE);
}

/* The lines up to the closing fence; *text, the first line behind the opening one, is used up. */
static enum line_status read_block(struct terminal *t, char **text)
{
    size_t n = strlen(*text);
    int closed = ends_with_fence(*text, n);
    while (!closed) {
        char *next = NULL;
        enum line_status st = line_read(t->line, "... ", 4, t->colours, &next);
        size_t n_next = next ? strlen(next) : 0;
        char *more = st == LINE_TEXT ? realloc(*text, n + n_next + 2) : NULL;
        if (!more) {
            free(*text);
            free(next);
            *text = NULL;
            return st == LINE_TEXT ? LINE_NO_MEMORY : st;
        }
        *text = more;
        if (n)
            more[n++] = '\n';
        memcpy(more + n, next, n_next + 1);
        n += n_next;
        free(next);
        closed = ends_with_fence(more, n);
    }
    n -= FENCE;
    n -= n > 0 && (*text)[n - 1] == '\n';
    (*text)[n] = 0;
    return LINE_TEXT;
}

/* A message or a command; *is_block: it was written between fences and is no command. */
static enum line_status read_message(struct terminal *t, char **text, int *is_block)
{
    char prompt[80];
    const struct chat *c = t->chat;
    int n_dim =
        snprintf(prompt, sizeof prompt, "%lld/%d", (long long)c->n_used, pith_n_ctx(c->session));
    snprintf(prompt + n_dim, sizeof prompt - (size_t)n_dim, "> ");
    enum line_status st = line_read(t->line, prompt, n_dim, t->colours, text);
    *is_block = st == LINE_TEXT && !strncmp(*text, fence, FENCE) && !strchr(*text, '\n');
    if (*is_block) {
        memmove(*text, *text + FENCE, strlen(*text + FENCE) + 1);
        st = read_block(t, text);
    }
    return st;
}

/* 0: leave. */
static int take(struct terminal *t, char *text, int is_block)
{
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n') /* a paste may end with the end of its last line */
        text[--n] = 0;
    if (!text[strspn(text, " \t\n")])
        return 1;
    line_remember(t->line, text);
    if (!is_block && text[0] == '/' && text[1] != '/')
        return command(t, text);
    answer(t, ask, text + (!is_block && text[0] == '/'));
    return 1;
}

static int loop(struct terminal *t)
{
    for (int n_interrupts = 0;;) {
        char *text = NULL;
        int is_block = 0, stays = 1;
        if (t->failed_errno)
            return cli_say(CLI_SYSTEM, "cannot write to stdout: %s", strerror(t->failed_errno));
        if (interrupt_take() == INTERRUPT_END)
            return CLI_INTERRUPTED;
        enum line_status st = read_message(t, &text, &is_block);
        n_interrupts = st == LINE_INTERRUPTED ? n_interrupts + 1 : 0;
        switch (st) {
        case LINE_TEXT:
            stays = take(t, text, is_block);
            break;
        case LINE_END:
            fputc('\n', stderr);
            stays = 0;
            break;
        case LINE_INTERRUPTED:
            fputs(n_interrupts == 1 ? "\n(Ctrl-C once more, or Ctrl-D, leaves)\n" : "\n", stderr);
            if (n_interrupts > 1)
                return CLI_INTERRUPTED;
            break;
        case LINE_TOO_LONG:
            cli_say(0,
                    "nothing is sent: of so long a line the terminal drops the rest; write it in "
                    "shorter lines between two lines of %s",
                    fence);
            break;
        case LINE_NO_MEMORY:
            return cli_no_memory();
        }
        free(text);
        if (!stays)
            return CLI_OK;
    }
}

int chat_run(struct chat *c, const char *system, const char *history, int verbose)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    struct pith_error err = {0};
    struct terminal t = {.chat = c, .verbose = verbose, .is_terminal = isatty(STDOUT_FILENO)};
    t.colours =
        t.is_terminal && !(no_color && *no_color) && term && *term && strcmp(term, "dumb") != 0;
    c->show = show;
    c->ctx = &t;
    if (chat_open(c, &err) != PITH_OK)
        return cli_fail(&err);
    t.line = line_open(history);
    int code = t.line ? CLI_OK : cli_no_memory();
    if (!code && system && chat_system(c, system, &err) != PITH_OK)
        code = cli_fail(&err);
    if (!code && interrupt_asked()) /* while the model was opened, and nothing else heeded it */
        code = CLI_INTERRUPTED;
    if (!code) {
        interrupt_stay();
        fputs("/help lists the commands; Ctrl-D leaves\n", stderr);
        tell_system(&t);
        code = loop(&t);
    }
    line_close(t.line);
    chat_close(c);
    return code;
}
