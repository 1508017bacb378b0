/* chat_once.c -- one question, one answer: what 'pith run MODEL -p TEXT' does with a model that
 * talks. The answer alone goes to stdout. Reasoning is left out, unless it was asked for; it stands
 * between <think> and </think> then. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/cli.h"

struct output {
    int thinks, is_terminal; /* thinks: reasoning is shown */
    int reasoning;           /* what is being shown is reasoning */
    int failed_errno;
    char last;
    size_t n_answer; /* bytes of the answer that are no white space */
};

static void put(struct output *out, const char *text, size_t n)
{
    if (n && !out->failed_errno)
        out->failed_errno = cli_write_text(STDOUT_FILENO, out->is_terminal, text, n);
    if (n)
        out->last = text[n - 1];
}

static void turn(struct output *out, int reasoning)
{
    if (reasoning == out->reasoning)
        return;
    const char *mark = reasoning ? "<think>\n" : "\n</think>\n\n";
    put(out, mark, strlen(mark));
    out->reasoning = reasoning;
}

static int show(void *ctx, int is_reasoning, const char *text, size_t n)
{
    struct output *out = ctx;
    for (size_t i = 0; i < n && !is_reasoning; i++)
        out->n_answer += !strchr(" \t\r\n", text[i]);
    if (!is_reasoning || out->thinks) {
        turn(out, is_reasoning);
        put(out, text, n);
    }
    return !out->failed_errno && !interrupt_asked();
}

/* An answer of nothing has a reason, and it is not on stdout. */
static void explain(const struct chat *c, const struct output *out)
{
    const struct pith_generate_result *r = &c->last;
    size_t n = json_array_size(c->messages);
    const char *thought =
        json_string_value(json_object_get(json_array_get(c->messages, n - 1), "reasoning_content"));
    const char *hint = out->thinks ? "" : "; --show-thinking shows it";
    if (out->n_answer || r->stop == PITH_STOP_CANCELLED || r->stop == PITH_STOP_CALLBACK)
        return;
    if (thought && r->stop == PITH_STOP_LENGTH)
        cli_say(CLI_OK,
                "the answer is empty: all %d tokens that --predict allows went into reasoning; "
                "allow more, or try --think off%s",
                r->n_generated, hint);
    else if (thought)
        cli_say(CLI_OK, "the answer is empty: the model reasoned for %d tokens and ended there%s",
                r->n_generated, hint);
    else if (r->stop == PITH_STOP_STRING)
        cli_say(CLI_OK, "the answer is empty: it began with a --stop text");
    else if (r->stop == PITH_STOP_EOG)
        cli_say(CLI_OK, "the answer is empty: the model ended it after %d tokens", r->n_generated);
    else if (r->stop == PITH_STOP_LENGTH)
        cli_say(CLI_OK, "the answer is empty: --predict allows %d tokens", r->n_generated);
}

static int ask(struct chat *c, const struct chat_once *q, struct output *out)
{
    struct pith_error err = {0};
    if (q->system && chat_system(c, q->system, &err) != PITH_OK)
        return cli_fail(&err);
    if (chat_moves_system(c))
        cli_say(CLI_OK, CHAT_MOVES_SYSTEM);
    if (q->read_only) {
        int64_t n;
        if (chat_read(c, q->text, &n, &err) != PITH_OK)
            return cli_fail(&err);
        if (!q->saves)
            cli_say(CLI_OK, "no answer was asked for: --predict 0 only reads the question");
        return CLI_OK;
    }
    pith_status st = chat_ask(c, q->text, &err);
    if (out->reasoning)
        turn(out, 0);
    if (out->last && out->last != '\n' && out->is_terminal)
        put(out, "\n", 1);
    if (st == PITH_CANCELLED)
        return CLI_INTERRUPTED;
    if (st != PITH_OK)
        return cli_fail(&err);
    if (q->verbose)
        cli_timings(c->session, &c->last, q->seed);
    if (out->failed_errno) /* EPIPE: the reader has seen enough */
        return out->failed_errno == EPIPE
                   ? CLI_OK
                   : cli_say(CLI_SYSTEM, "cannot write to stdout: %s", strerror(out->failed_errno));
    explain(c, out);
    if (c->last.stop == PITH_STOP_CONTEXT && c->params.n_max != -2)
        return cli_fail(&err);
    return interrupt_asked() ? CLI_INTERRUPTED : CLI_OK;
}

int chat_once(struct chat *c, const struct chat_once *q)
{
    struct output out = {.thinks = q->show_thinking, .is_terminal = isatty(STDOUT_FILENO)};
    struct pith_error err = {0};
    c->show = show;
    c->ctx = &out;
    if (chat_open(c, &err) != PITH_OK)
        return cli_fail(&err);
    interrupt_watch(c->session);
    int code = ask(c, q, &out);
    interrupt_watch(NULL);
    chat_close(c);
    return code;
}
