/* cmd_run.c -- pith run: a prompt in, generated text out, as it is made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "cli.h"

struct opts {
    struct model_opts model;
    const char *prompt, *file, *session, *system, *history;
    int64_t n;
    struct sampler_opts sampler;
    struct grammar_opts grammar;
    struct arg_texts stop;
    int64_t keep, discard, ga_n, ga_w;
    int ignore_eog, literal, context_shift;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "--prompt", .alias = "-p", .meta = "TEXT", ARG_FIELD(struct opts, prompt, ARG_TEXT),
     .help = "the prompt"},
    {.name = "--file", .alias = "-f", .meta = "FILE", ARG_FIELD(struct opts, file, ARG_TEXT),
     .otherwise = "stdin, unless it is a terminal",
     .help = "read the prompt from a file, byte for byte; - is stdin"},
    {.name = "--system", .meta = "TEXT", ARG_FIELD(struct opts, system, ARG_TEXT),
     .help = "chat: the system text, as /system sets it"},
    {.name = "--history", .meta = "FILE", ARG_FIELD(struct opts, history, ARG_TEXT),
     .otherwise = "none", .help = "chat: remember typed lines in FILE, beyond this run"},
    {.name = "--session", .meta = "FILE", ARG_FIELD(struct opts, session, ARG_TEXT),
     .help = "load the state saved in FILE if it is there, save it at the end; without a prompt "
             "the text goes on where it stopped, with one what they have in common is reused"},
    {.name = "--predict", .alias = "-n", ARG_FIELD(struct opts, n, ARG_INT), .lo = -2,
     .hi = INT32_MAX, .dflt = "-1",
     .help = "most tokens to make; -1: until the end token; -2: until the context is full; "
             "0: only read the prompt"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 1,
     .hi = INT32_MAX, .otherwise = "what the model was trained for, at most 4096",
     .help = "positions of context for prompt and text"},
    {.name = "--context-shift", ARG_FIELD(struct opts, context_shift, ARG_SWITCH),
     .help = "a full context drops its oldest tokens and goes on, instead of ending with an error"},
    {.name = "--keep", .meta = "N", ARG_FIELD(struct opts, keep, ARG_INT), .lo = -1,
     .hi = INT32_MAX, .dflt = "0",
     .help = "tokens of the prompt that a context shift keeps; -1: all; a start token always stays"},
    {.name = "--discard", .meta = "N", ARG_FIELD(struct opts, discard, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "half of the rest", .help = "tokens a context shift drops"},
    {.name = "--ga-n", .meta = "N", ARG_FIELD(struct opts, ga_n, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "off", .help = "self-extend: divide positions by N"},
    {.name = "--ga-w", .meta = "N", ARG_FIELD(struct opts, ga_w, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "off",
     .help = "self-extend: in groups of N tokens, a multiple of --ga-n"},
    ARGS_SAMPLER(struct opts, sampler),
    ARGS_GRAMMAR(struct opts, grammar),
    {.name = "--stop", .meta = "TEXT", ARG_FIELD(struct opts, stop, ARG_TEXTS),
     .help = "end before this text; may be given several times"},
    {.name = "--ignore-eog", ARG_FIELD(struct opts, ignore_eog, ARG_SWITCH),
     .help = "go on after the end token"},
    {.name = "--literal", ARG_FIELD(struct opts, literal, ARG_SWITCH),
     .help = "control tokens spelled out in the prompt are plain text"},
    ARGS_STORE(struct opts, model),
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- prompt */

/* A saved session and no prompt. */
static int goes_on(const struct opts *o)
{
    return o->session && !o->prompt && !o->file && access(o->session, F_OK) == 0;
}

/* The tokens of the saved text. */
static int32_t *held_ids(const pith_session *s, int64_t *n, int *code)
{
    *n = pith_tokens(s, 0, NULL, 0);
    int32_t *ids = malloc((size_t)*n * sizeof *ids + 1);
    if (!ids)
        *code = cli_no_memory();
    else
        pith_tokens(s, 0, ids, (size_t)*n);
    return ids;
}

/* A conversation: nothing else was asked for, and somebody is there to have it. */
static int chats(const struct opts *o)
{
    return !o->prompt && !o->file && !o->session && o->n != 0 && isatty(STDIN_FILENO);
}

static int load_session(const struct opts *o, pith_session *s)
{
    struct pith_error err = {0};
    if (!o->session || access(o->session, F_OK) != 0)
        return CLI_OK;
    pith_status st = pith_load(s, 0, o->session, &err);
    if (st == PITH_STATE) /* of another model: the file is wrong here, not the machine */
        return cli_say(CLI_INPUT, "%s", err.msg);
    return st == PITH_OK ? CLI_OK : cli_fail(&err);
}

static int save_session(const struct opts *o, pith_session *s,
                        const struct pith_generate_result *r)
{
    struct pith_error err = {0};
    if (!o->session)
        return CLI_OK;
    int shown = r->unfed >= 0 && (r->stop == PITH_STOP_LENGTH || r->stop == PITH_STOP_CALLBACK);
    pith_cancel_reset(s);
    if (shown && pith_length(s, 0) < pith_n_ctx(s) &&
        pith_feed(s, 0, &r->unfed, 1, &err) != PITH_OK)
        return cli_fail(&err);
    return pith_save(s, 0, o->session, &err) == PITH_OK ? CLI_OK : cli_fail(&err);
}

/* Without loading anything. A file that is no model is told about when it is opened. */
static int has_template(const struct opts *o)
{
    pith_file *f = pith_file_open(o->model.path, NULL);
    int found = f == NULL;
    for (int64_t i = 0, n = f ? pith_file_n_keys(f) : 0; i < n && !found; i++)
        found = !strcmp(pith_file_key(f, i), "tokenizer.chat_template");
    for (int i = 0; i < o->model.overrides.n && !found; i++)
        found = !strncmp(o->model.overrides.v[i], "tokenizer.chat_template=", 24);
    pith_file_close(f);
    return found;
}

static int read_prompt(struct opts *o, char **text, size_t *n)
{
    if (o->prompt && o->file)
        return cli_say(CLI_USE, "found both --prompt and --file; wanted one of them");
    if (chats(o)) {
        int code = cli_model_path(&o->model.path);
        if (code)
            return code;
        if (!has_template(o))
            return cli_say(CLI_USE, "no prompt; give -p TEXT or -f FILE, or pipe one in (the model has no "
                                    "chat template to talk by)");
        if (o->literal)
            return cli_say(CLI_USE, "found --literal without a prompt; a chat template needs control tokens");
        return CLI_OK;
    }
    if (o->system)
        return cli_say(CLI_USE, "--system is for a chat, which begins at a terminal without a prompt");
    if (goes_on(o))
        return CLI_OK;
    if (o->prompt) {
        *text = strdup(o->prompt);
        *n = strlen(o->prompt);
        return *text ? CLI_OK : cli_no_memory();
    }
    if (!o->file && isatty(STDIN_FILENO))
        return cli_say(CLI_USE, "no prompt; give -p TEXT or -f FILE, or pipe one in");
    return cli_read_file(o->file ? o->file : "-", text, n);
}

static int32_t *prompt_ids(const struct opts *o, const pith_model *m, const char *text,
                           size_t n_bytes, int64_t *n, int *code)
{
    struct pith_error err = {0};
    int flags = PITH_ADD_SPECIAL | (o->literal ? 0 : PITH_PARSE_SPECIAL);
    int32_t *ids = cli_tokenize(m, text, n_bytes, flags, n, &err);
    if (!ids) {
        *code = cli_fail(&err);
    } else if (*n == 0) {
        *code =
            cli_say(CLI_INPUT, "the prompt is empty and the model adds no token before it; give "
                               "it some text");
        free(ids);
        ids = NULL;
    }
    return ids;
}

/* ---------------------------------------------------------------- text */

struct output {
    int failed_errno;
    char last;
};

/* Straight to the descriptor: each piece is there at once, and a failure is known at once. */
static int on_text(void *ctx, const char *text, size_t n)
{
    struct output *out = ctx;
    if (n)
        out->last = text[n - 1];
    out->failed_errno = cli_write_all(STDOUT_FILENO, text, n);
    return !out->failed_errno && !interrupt_asked();
}

/* ---------------------------------------------------------------- the command */

static struct pith_generate_params generation(const struct opts *o)
{
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    p.n_max = (int32_t)o->n;
    p.ignore_eog = o->ignore_eog;
    p.stop = o->stop.n ? o->stop.v : NULL;
    p.context_shift = o->context_shift;
    p.n_keep = (int32_t)o->keep;
    p.n_discard = (int32_t)o->discard;
    p.ga_n = (int32_t)o->ga_n;
    p.ga_w = (int32_t)o->ga_w;
    return p;
}

static int generate(struct opts *o, pith_session *s, pith_sampler *sampler, const int32_t *ids,
                    int64_t n_ids)
{
    struct pith_error err = {0};
    struct output out = {0};
    struct pith_generate_params p;
    struct pith_generate_result result = {.unfed = -1};
    if (o->n == 0) {
        double began = cli_seconds();
        if (pith_prefix(s, 0, ids, (size_t)n_ids, NULL, &err) != PITH_OK)
            return cli_fail(&err);
        result.n_prompt = (int32_t)n_ids;
        result.prefill_ns = (int64_t)(1e9 * (cli_seconds() - began));
    } else {
        p = generation(o);
        p.tokens = ids;
        p.n_tokens = (size_t)n_ids;
        p.sampler = sampler;
        p.on_text = on_text;
        p.ctx = &out;
        pith_status st = pith_generate(s, &p, &result, &err);
        if (out.last && out.last != '\n' && isatty(STDOUT_FILENO))
            on_text(&out, "\n", 1);
        if (st != PITH_OK && st != PITH_CANCELLED)
            return cli_fail(&err);
    }
    int code = save_session(o, s, &result);
    if (code)
        return code;
    if (cli_chatty(&o->model))
        cli_timings(&result, o->sampler.seed);
    if (o->model.verbose)
        cli_report(s);
    if (out.failed_errno && out.failed_errno != EPIPE) /* EPIPE: the reader has seen enough */
        return cli_say(CLI_SYSTEM, "cannot write to stdout: %s", strerror(out.failed_errno));
    if (result.stop == PITH_STOP_CONTEXT && o->n != -2)
        return cli_fail(&err);
    return interrupt_asked() ? CLI_INTERRUPTED : CLI_OK;
}

/* Everything behind the prompt. */
static int run_prompt(struct opts *o, const char *text, size_t n_bytes)
{
    int code = CLI_OK;
    int64_t n_ids = 0;
    int32_t *ids = NULL;
    pith_session *s = NULL;
    pith_sampler *sampler = NULL;
    pith_grammar *grammar = NULL;
    struct pith_model_params model_params = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params session_params = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    pith_model *m = cli_model_open(&o->model, &model_params, &code);
    if (!m)
        return code;
    if (pith_model_get_info(m, &info, NULL) == PITH_OK && !info.causal)
        code = cli_say(CLI_INPUT, "%s is an encoder and makes no text; 'pith logits' gives its output",
                       o->model.path);
    if (!code && text)
        ids = prompt_ids(o, m, text, n_bytes, &n_ids, &code);
    if (!code)
        grammar = cli_grammar_open(&o->grammar, m, &code);
    if (!code)
        sampler = cli_sampler_open(&o->sampler, m, &code);
    if (sampler && pith_sampler_grammar(sampler, grammar, NULL) != PITH_OK)
        code = cli_no_memory();
    if (sampler && !code)
        s = cli_session_open(m, &o->model, (int32_t)o->model.n_ctx, &session_params, &code);
    if (s)
        code = load_session(o, s);
    if (s && !code && chats(o)) {
        struct chat chat = {.model = m, .session = s, .sampler = sampler, .grammar = grammar,
                            .params = generation(o)};
        code = chat_run(&chat, o->system, o->history, o->model.verbose);
    } else if (s && !code) {
        if (!text)
            ids = held_ids(s, &n_ids, &code);
        interrupt_watch(s);
        if (!code)
            code = generate(o, s, sampler, ids, n_ids);
        interrupt_watch(NULL);
    }
    free(ids);
    pith_sampler_close(sampler);
    pith_grammar_close(grammar);
    pith_session_close(s);
    pith_model_close(m);
    return code;
}

static int run(void *opts)
{
    char *text = NULL;
    size_t n_bytes = 0;
    int code = read_prompt(opts, &text, &n_bytes);
    if (code)
        return code;
    code = run_prompt(opts, text, n_bytes);
    free(text);
    return code;
}

const struct command cmd_run = {
    .name = "run",
    .summary = "generate text from a prompt, or chat",
    .args =
        {
            .command = "pith run",
            .about =
                "Continues a prompt. The generated text alone goes to stdout, as it is made; "
                "progress and timings go to stderr when that is a terminal, or with -v. Ctrl-C "
                "ends the text, a second one the program. A prompt longer than the context is an "
                "error, never cut.\n\n"
                "Without a prompt, at a terminal, and with a model that has a chat template it is "
                "a chat: a line is a message, and so are a paste and the lines between two lines "
                "of \"\"\". The prompt shows how much of the context is used. /help, /clear, /save "
                "FILE, /load FILE, /system TEXT, /regen, /stats and /exit are commands (/help says "
                "more); //... is a message that begins with /. Keys edit the line and go through "
                "earlier ones where the program was built with libedit. Ctrl-C stops an answer and "
                "keeps the conversation; twice at the prompt, or Ctrl-D, leaves. Reasoning is "
                "dimmed, unless NO_COLOR is set. A conversation that outgrows the context is told "
                "so, with numbers; with --context-shift its oldest messages are left out instead, "
                "which is told too.",
            .example = "  pith run model.gguf -p \"Once upon a time\" -n 64 --temp 0.8 --top-k 40 "
                       "--seed 1\n"
                       "  pith run model.gguf -f question.txt --stop END > answer.txt\n"
                       "  pith run model.gguf --temp 0.7 --system \"Answer briefly.\"\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
