/* cmd_run.c -- pith run: a prompt in, generated text out, as it is made. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/cli.h"

struct opts {
    struct model_opts model;
    const char *said, *prompt, *file, *session, *system, *history;
    int64_t n;
    struct sampler_opts sampler;
    struct grammar_opts grammar;
    struct arg_texts stop;
    int64_t keep, discard, ga_n, ga_w, block, steps, think_budget;
    const char *surest;
    struct form_opts form;
    struct arg_texts lora;
    int ignore_eog, literal, context_shift, raw, show_thinking;
    int reseeds; /* no flag: --seed is given to a text that goes on */
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "PROMPT", ARG_FIELD(struct opts, said, ARG_TEXT), .typed = 1,
     .help = "the prompt, as -p gives it; one text, in quotes"},
    {.name = "--prompt", .alias = "-p", .meta = "TEXT", ARG_FIELD(struct opts, prompt, ARG_TEXT),
     .help = "the prompt; - is stdin, which is not read otherwise"},
    {.name = "--file", .alias = "-f", .meta = "FILE", ARG_FIELD(struct opts, file, ARG_TEXT),
     .otherwise = "stdin, unless it is a terminal",
     .help = "read the prompt from a file, byte for byte; - is stdin; with -p as well: what the "
             "question is about, before it and an empty line"},
    {.name = "--system", .alias = "-sys", .meta = "TEXT", ARG_FIELD(struct opts, system, ARG_TEXT),
     .help = "the system text before a question or a chat"},
    {.name = "--raw", ARG_FIELD(struct opts, raw, ARG_SWITCH),
     .help = "the prompt is a text to go on with, whatever template the model has"},
    ARGS_FORM(struct opts, form),
    {.name = "--show-thinking", ARG_FIELD(struct opts, show_thinking, ARG_SWITCH),
     .help = "show what the model reasons before its answer, too; a chat at a terminal always "
         "does"},
    {.name = "--think-budget", .meta = "N", ARG_FIELD(struct opts, think_budget, ARG_INT), .lo = -1,
     .hi = INT32_MAX, .dflt = "-1",
     .help = "most tokens of reasoning before an answer: then its end is written for the model; 0: "
         "none; -1: any number"},
    {.name = "--history", .meta = "FILE", ARG_FIELD(struct opts, history, ARG_TEXT),
     .otherwise = "none", .help = "chat: remember typed lines in FILE, beyond this run"},
    {.name = "--session", .meta = "FILE", ARG_FIELD(struct opts, session, ARG_TEXT),
     .help = "load the state saved in FILE if it is there, save it at the end; without a prompt "
             "the text goes on where it stopped, with its seed, samplers and grammar unless others "
             "are given, as if there had been one run; with one what they have in common is "
             "reused"},
    {.name = "--predict", .alias = "-n", ARG_FIELD(struct opts, n, ARG_INT), .lo = -2,
     .hi = INT32_MAX, .dflt = "-1",
     .help = "most tokens to make; -1: until the end token, of models that fill in masks at most "
             "256; -2: until the context is full; 0: only read the prompt"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 0,
     .hi = 1 << 24, .otherwise = "what the model was trained for, or as much as fits into half "
         "of the memory left",
     .help = "positions of context for prompt and text; 0: as without it"},
    {.name = "--context-shift", ARG_FIELD(struct opts, context_shift, ARG_SWITCH),
     .help = "a full context drops its oldest tokens and goes on, instead of ending with an error"},
    {.name = "--keep", .meta = "N", ARG_FIELD(struct opts, keep, ARG_INT), .lo = -1,
     .hi = INT32_MAX, .dflt = "0",
     .help = "tokens of the prompt that a context shift keeps; -1: all; a start token always "
         "stays"},
    {.name = "--discard", .meta = "N", ARG_FIELD(struct opts, discard, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "half of the rest", .help = "tokens a context shift drops"},
    {.name = "--ga-n", .meta = "N", ARG_FIELD(struct opts, ga_n, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "off", .help = "self-extend: divide positions by N"},
    {.name = "--ga-w", .meta = "N", ARG_FIELD(struct opts, ga_w, ARG_INT), .lo = 0,
     .hi = INT32_MAX, .otherwise = "off",
     .help = "self-extend: in groups of N tokens, a multiple of --ga-n"},
    {.name = "--block", .meta = "N", ARG_FIELD(struct opts, block, ARG_INT), .lo = 1, .hi = 65536,
     .dflt = "32", .help = "models that fill in masks: tokens of a block, which is shown when "
         "all of it is there"},
    {.name = "--steps", .meta = "N", ARG_FIELD(struct opts, steps, ARG_INT), .lo = 1,
     .hi = INT32_MAX, .otherwise = "one for each token",
     .help = "models that fill in masks: steps over the whole text; fewer are faster and worse"},
    {.name = "--surest", ARG_FIELD(struct opts, surest, ARG_CHOICE),
     .choices = "probability|margin|entropy|random", .dflt = "probability",
     .help = "models that fill in masks: what tells which tokens of a step stay"},
#define SAMPLER_OPTS struct opts
#define SAMPLER_IN   sampler
#include "cli/sampler_rows.def"
    ARGS_SAMPLER(struct opts, sampler),
    ARGS_GRAMMAR(struct opts, grammar),
    {.name = "--stop", .meta = "TEXT", ARG_FIELD(struct opts, stop, ARG_TEXTS),
     .help = "end before this text; may be given several times"},
    {.name = "--ignore-eog", ARG_FIELD(struct opts, ignore_eog, ARG_SWITCH),
     .help = "go on after the end token"},
    {.name = "--literal", ARG_FIELD(struct opts, literal, ARG_SWITCH),
     .help = "control tokens spelled out in the prompt are plain text"},
    ARGS_LORA(struct opts, lora),
    ARGS_STORE(struct opts, model),
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- prompt */

/* A saved session and no prompt. */
static int goes_on(const struct opts *o)
{
    return o->session && !o->prompt && !o->file && access(o->session, F_OK) == 0 &&
           !cli_is_device(o->session);
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

/* What goes on without a prompt goes on with the sampler as it was. */
static int load_session(struct opts *o, pith_session *s, pith_sampler *sampler)
{
    struct pith_error err = {0};
    if (!o->session || access(o->session, F_OK) != 0 || cli_is_device(o->session))
        return CLI_OK;
    pith_status st = goes_on(o) ? pith_load_with(s, 0, sampler, o->session, &err)
                                : pith_load(s, 0, o->session, &err);
    if (goes_on(o) && o->reseeds)
        pith_sampler_reseed(sampler, (uint64_t)o->sampler.seed);
    else if (goes_on(o) && o->sampler.seed >= 0)
        o->sampler.seed = (int64_t)pith_sampler_seed(sampler);
    const char *given = o->grammar.grammar ? o->grammar.grammar : o->grammar.schema;
    if (st == PITH_STATE && given && strstr(err.msg, "does not fit its grammar"))
        return cli_say(CLI_INPUT, "%s %s: %s", cli_grammar_flag(&o->grammar), given, err.msg);
    if (st == PITH_STATE && strstr(err.msg, "without adapters"))
        return cli_say(CLI_INPUT, "%s; leave --lora out, as when it was saved", err.msg);
    if (st == PITH_STATE && strstr(err.msg, "adapters"))
        return cli_say(CLI_INPUT, "%s; give the --lora flags it was saved with", err.msg);
    if (st == PITH_STATE) /* of another model: the file is wrong here, not the machine */
        return cli_say(CLI_INPUT, "%s", err.msg);
    return st == PITH_OK ? CLI_OK : cli_fail(&err);
}

/* With the sampler, unless the text came to its end: what comes after that begins anew, with the
 * same settings. */
static int save_session(const struct opts *o, pith_session *s, const pith_sampler *sampler,
                        const struct pith_generate_result *r)
{
    struct pith_error err = {0};
    if (!o->session)
        return CLI_OK;
    int goes_on = r->stop == PITH_STOP_LENGTH || r->stop == PITH_STOP_CALLBACK ||
                  r->stop == PITH_STOP_CANCELLED;
    int shown = r->unfed >= 0 && goes_on;
    pith_cancel_reset(s);
    if (shown && pith_length(s, 0) < pith_n_ctx(s) &&
        pith_feed(s, 0, &r->unfed, 1, &err) != PITH_OK)
        return cli_fail(&err);
    int code = CLI_OK;
    struct sampler_opts settings = o->sampler;
    settings.seed = goes_on ? settings.seed : -1;
    char *kept = cli_kept_text(&settings, &o->grammar, &code);
    if (!kept)
        return code;
    pith_status st = pith_save_noted(s, 0, goes_on ? sampler : NULL, kept, strlen(kept),
                                     o->session, &err);
    free(kept);
    return st == PITH_OK ? CLI_OK : cli_fail(&err);
}

/* Without loading anything. A file that is no model is told about when it is opened. */
static int has_template(const struct opts *o)
{
    pith_file *f = o->form.template ? NULL : pith_file_open(o->model.path, NULL);
    int found = f == NULL;
    for (int64_t i = 0, n = f ? pith_file_n_keys(f) : 0; i < n && !found; i++)
        found = !strcmp(pith_file_key(f, i), "tokenizer.chat_template");
    for (int i = 0; i < o->model.overrides.n && !found; i++)
        found = !strncmp(o->model.overrides.v[i], "tokenizer.chat_template=", 24);
    pith_file_close(f);
    return found;
}

/* The text of the file, an empty line, and the question about it. */
static int read_both(const struct opts *o, char **text, size_t *n)
{
    char *file = NULL;
    size_t n_file = 0, n_prompt = strlen(o->prompt);
    int code = cli_read_file(o->file, &file, &n_file);
    if (code)
        return code;
    while (n_file && file[n_file - 1] == '\n')
        n_file--;
    size_t n_gap = n_file ? 2 : 0;
    *text = malloc(n_file + n_gap + n_prompt + 1);
    if (*text) {
        memcpy(*text, file, n_file);
        memcpy(*text + n_file, "\n\n", n_gap);
        memcpy(*text + n_file + n_gap, o->prompt, n_prompt + 1);
        *n = n_file + n_gap + n_prompt;
    }
    free(file);
    return *text ? CLI_OK : cli_no_memory();
}

static int is_stdin(const char *path)
{
    return path && !strcmp(path, "-");
}

static int grammar_is_stdin(const struct opts *o)
{
    return is_stdin(o->grammar.grammar) || is_stdin(o->grammar.schema);
}

/* Whether somebody has put data into stdin: a pipe that holds some, a file that has not ended.
 * Looks and does not wait. */
static int stdin_holds_data(void)
{
    struct stat sb;
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    if (fstat(STDIN_FILENO, &sb) != 0)
        return 0;
    if (S_ISREG(sb.st_mode))
        return lseek(STDIN_FILENO, 0, SEEK_CUR) < sb.st_size;
    return S_ISFIFO(sb.st_mode) && poll(&fd, 1, 0) == 1 && (fd.revents & POLLIN);
}

static int read_prompt(struct opts *o, char **text, size_t *n)
{
    int from_stdin = is_stdin(o->prompt) && !o->said;
    if (from_stdin && o->file)
        return cli_say(CLI_USE, "found both --prompt - and --file; wanted one of them");
    if (o->prompt && o->file)
        return read_both(o, text, n);
    if (chats(o)) {
        int code = cli_model_path(&o->model.path);
        if (code)
            return code;
        if (o->raw || !has_template(o))
            return cli_say(CLI_USE, "no prompt; give -p TEXT or -f FILE, or pipe one in (%s)",
                           o->raw ? "--raw goes on with it"
                                  : "the model has no chat template to talk by");
        if (o->literal)
            return cli_say(
                CLI_USE, "found --literal without a prompt; a chat template needs control tokens");
        return CLI_OK;
    }
    if (goes_on(o))
        return CLI_OK;
    if (from_stdin)
        return cli_read_file("-", text, n);
    if (o->prompt) {
        if (!grammar_is_stdin(o) && stdin_holds_data())
            cli_say(CLI_OK, "stdin is not read beside a prompt; -f - puts it before the question");
        *text = strdup(o->prompt);
        *n = strlen(o->prompt);
        return *text ? CLI_OK : cli_no_memory();
    }
    if (!o->file && isatty(STDIN_FILENO))
        return cli_say(CLI_USE, "no prompt%s; give -p TEXT or -f FILE, or pipe one in",
                       o->n == 0 ? ", and --predict 0 leaves no conversation to have" : "");
    return cli_read_file(o->file ? o->file : "-", text, n);
}

/* What goes on with a text, rather than to answer it: it was asked for, or there is no template. */
static int is_text(const struct opts *o, const struct form *form)
{
    return o->raw || o->literal || goes_on(o) || !form->t;
}

/* What only a conversation has. */
static const char *of_chats(const struct opts *o)
{
    return o->system                                             ? "--system"
           : o->form.template                                    ? "--chat-template"
           : o->form.kwargs                                      ? "--template-kwargs"
           : o->form.think && strcmp(o->form.think, "auto") != 0 ? "--think"
           : o->show_thinking                                    ? "--show-thinking"
           : o->think_budget >= 0                                ? "--think-budget"
                                                                 : NULL;
}

static int refuse_text(const struct opts *o)
{
    const char *flag = of_chats(o);
    if (!flag)
        return CLI_OK;
    return cli_say(CLI_USE, "%s is for a conversation, and %s", flag,
                   o->raw       ? "--raw goes on with a text; leave one of them out"
                   : o->literal ? "--literal goes on with a text; leave one of them out"
                   : goes_on(o) ? "--session without a prompt goes on with its text; give a prompt"
                                : "the model has no chat template; --chat-template gives one, as "
                                  "chatml, or leave it out");}

static int check_question(const char *text, size_t n)
{
    if (strlen(text) != n)
        return cli_say(
            CLI_INPUT,
            "the question holds a zero byte; wanted a text (--raw goes on with any bytes)");
    if (!text[strspn(text, " \t\r\n")])
        return cli_say(CLI_INPUT, "the question is empty; wanted a text");
    return CLI_OK;
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
    out->failed_errno = cli_write_text(STDOUT_FILENO, isatty(STDOUT_FILENO), text, n);
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
    p.n_block = (int32_t)o->block;
    p.n_steps = (int32_t)o->steps;
    p.surest = o->surest[0] == 'm'   ? PITH_SUREST_MARGIN
               : o->surest[0] == 'e' ? PITH_SUREST_ENTROPY
               : o->surest[0] == 'r' ? PITH_SUREST_RANDOM
                                     : PITH_SUREST_PROBABILITY;
    return p;
}

static int generate(struct opts *o, pith_session *s, pith_sampler *sampler, const int32_t *ids,
                    int64_t n_ids)
{
    struct pith_error err = {0};
    struct output out = {0};
    struct pith_generate_params p;
    struct pith_generate_result result = {.size = sizeof result, .unfed = -1};
    if (o->n == 0) {
        double began = cli_seconds();
        if ((pith_encoder_most(s) ? pith_encode(s, 0, ids, (size_t)n_ids, &err)
                                  : pith_prefix(s, 0, ids, (size_t)n_ids, NULL, &err)) != PITH_OK)
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
    int code = save_session(o, s, sampler, &result);
    if (code)
        return code;
    if (cli_chatty(&o->model))
        cli_timings(s, &result, o->sampler.seed);
    if (o->model.verbose)
        cli_report(s);
    if (out.failed_errno && out.failed_errno != EPIPE) /* EPIPE: the reader has seen enough */
        return cli_say(CLI_SYSTEM, "cannot write to stdout: %s", strerror(out.failed_errno));
    if (result.stop == PITH_STOP_CONTEXT && o->n != -2)
        return cli_fail(&err);
    if (o->n == 0 && !o->session && !cli_chatty(&o->model))
        cli_say(CLI_OK, "no text was asked for: --predict 0 only reads the prompt");
    if (o->n != 0 && result.n_bytes == 0 &&
        (result.stop == PITH_STOP_EOG || result.stop == PITH_STOP_STRING))
        cli_say(CLI_OK, "the text is empty: %s",
                result.stop == PITH_STOP_EOG ? "the model ended it at once; --ignore-eog goes on"
                                             : "it began with a --stop text");
    return interrupt_asked() ? CLI_INTERRUPTED : CLI_OK;
}

struct running {
    struct opts *o;
    pith_model *m;
    pith_session *s;
    pith_sampler *sampler;
    pith_grammar *grammar, *behind; /* struct chat's */
    struct form form;
    struct cli_loras loras;
    json_t *variables, *kept;
    int fills_in; /* the model does, masks */
    int reads;    /* it has an encoder, which reads the prompt */
};

/* The stop texts of the flags, and what ends answers by the template (malloc). */
static const char **stops_of(const struct opts *o, const char *ends)
{
    const char **all = calloc((size_t)o->stop.n + 2, sizeof *all);
    for (int i = 0; all && i < o->stop.n; i++)
        all[i] = o->stop.v[i];
    if (all && *ends && !o->ignore_eog)
        all[o->stop.n] = ends;
    return all;
}

static int talk_of(struct running *r, const char *const *stop, char *text, size_t n)
{
    struct opts *o = r->o;
    struct chat chat = {.model = r->m,
                        .session = r->s,
                        .sampler = r->sampler,
                        .grammar = r->grammar,
                        .asked = &o->grammar,
                        .params = generation(o),
                        .form = r->form.t,
                        .variables = r->variables,
                        .last = {.size = sizeof chat.last, .unfed = -1},
                        .think_budget = o->think_budget};
    struct chat_once once = {.text = text,
                             .system = o->system,
                             .show_thinking = o->show_thinking,
                             .read_only = o->n == 0,
                             .saves = o->session != NULL,
                             .verbose = cli_chatty(&o->model),
                             .seed = o->sampler.seed};
    chat.params.stop = stop;
    if (chats(o)) {
        int code = chat_run(&chat, o->system, o->history, o->model.verbose);
        r->behind = chat.behind;
        return code;
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) /* the end of its last line */
        text[--n] = 0;
    int code = chat_once(&chat, &once), saved = CLI_OK;
    r->behind = chat.behind;
    if (chat.is_behind) { /* as the text goes on, if it was saved */
        o->grammar.trigger = pith_chat_answer(chat.form);
        o->grammar.behind = 1;
    }
    if (code == CLI_OK || chat.n_answers)
        saved = save_session(o, r->s, r->sampler, &chat.last);
    if (o->model.verbose)
        cli_report(r->s);
    return saved ? saved : code;
}

static int talk(struct running *r, char *text, size_t n)
{
    const char **stop = stops_of(r->o, r->form.ends);
    int code = stop ? talk_of(r, stop[0] ? stop : NULL, text, n) : cli_no_memory();
    free(stop);
    return code;
}

static int go_on(struct running *r, const char *text, size_t n)
{
    int code = CLI_OK;
    int64_t n_ids = 0;
    int32_t *ids =
        text ? prompt_ids(r->o, r->m, text, n, &n_ids, &code) : held_ids(r->s, &n_ids, &code);
    interrupt_watch(r->s);
    if (!code)
        code = generate(r->o, r->s, r->sampler, ids, n_ids);
    interrupt_watch(NULL);
    free(ids);
    return code;
}

/* A text that is filled in has no tokens that come one behind the other. */
static int check_masks(const struct opts *o, const pith_model *m)
{
    const struct sampler_opts *s = &o->sampler; /* a number that nobody gave is none */
    const char *flag = o->session                                       ? "--session"
                       : o->context_shift                               ? "--context-shift"
                       : o->ga_n || o->ga_w                             ? "--ga-n"
                       : cli_grammar_flag(&o->grammar)                  ? "a grammar"
                       : o->think_budget >= 0                           ? "--think-budget"
                       : s->repeat_penalty < 1 || s->repeat_penalty > 1 ? "--repeat-penalty"
                       : s->frequency_penalty < 0 || s->frequency_penalty > 0
                           ? "--frequency-penalty"
                       : s->presence_penalty < 0 || s->presence_penalty > 0 ? "--presence-penalty"
                       : s->dry_multiplier > 0                              ? "--dry-multiplier"
                                                                            : NULL;
    if (pith_token_of(m, PITH_TOKEN_MASK) < 0)
        return cli_say(CLI_INPUT,
                       "%s fills in masks, and its file has no tokenizer.ggml.mask_token_id",
                       o->model.path);
    return !flag ? CLI_OK
                 : cli_say(CLI_USE, "found %s, and %s fills in masks, in no order; leave it out",
                           flag, o->model.path);
}

/* Positions that these flags would shift, of a session where that can be done. */
static int check_edits(const struct running *r)
{
    const char *flag = r->o->context_shift            ? "--context-shift"
                       : r->o->ga_n || r->o->ga_w ? "--ga-n"
                                                  : NULL;
    if (!flag || pith_edits(r->s) & PITH_EDIT_SHIFT)
        return CLI_OK;
    return cli_say(CLI_USE, "found %s, and the positions of %s cannot be shifted; leave it out",
                   flag, r->o->model.path);
}

/* The model, and what can be wrong with the flags once it is known. */
static int open_model(struct running *r, const char *text, size_t n)
{
    int code = CLI_OK;
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    params.n_outputs = r->o->block > 64 ? (int32_t)r->o->block : 0;
    params.n_batch = params.n_outputs > 512 ? params.n_outputs : 0;
    params.keep_free = cli_loras_bytes(&r->o->lora);
    r->m = cli_model_open(&r->o->model, &params, &code);
    if (!r->m)
        return code;
    if (pith_model_get_info(r->m, &info, NULL) == PITH_OK && !info.causal && !info.logits)
        return cli_say(CLI_INPUT,
                       "%s is an encoder and makes no text; 'pith logits' gives its output",
                       r->o->model.path);
    r->fills_in = !info.causal;
    r->reads = info.encoder;
    code = r->fills_in ? check_masks(r->o, r->m) : CLI_OK;
    if (!r->fills_in && r->o->steps)
        code = cli_say(CLI_USE,
                       "found --steps, and %s makes a token in each step; it is for models that "
                       "fill in masks; leave it out",
                       r->o->model.path);
    if (r->reads && r->o->session)
        code = cli_say(CLI_USE,
                       "found --session, and the prompt of %s is what its encoder reads: there is "
                       "no text that goes on; leave it out",
                       r->o->model.path);
    if (code)
        return code;
    code = cli_form_open(&r->o->form, r->m, &r->form, r->variables);
    if (code || chats(r->o))
        return code;
    return is_text(r->o, &r->form) ? refuse_text(r->o) : check_question(text, n);
}

/* Positions of a model that fills in masks, or that reads its prompt at once. */
static int32_t whole_steps(const struct running *r)
{
    enum { USUAL = 4096, MOST = 65536 };
    struct pith_model_info info = {.size = sizeof info};
    int32_t n = (int32_t)r->o->model.n_ctx;
    pith_model_get_info(r->m, &info, NULL);
    n = n ? n : info.n_ctx_train < USUAL ? info.n_ctx_train : USUAL;
    return n < MOST ? n : MOST;
}

static int open_loras(struct running *r, struct pith_session_params *params)
{
    struct pith_error err = {0};
    if (cli_loras_open(r->m, &r->o->lora, &r->loras, &err) != PITH_OK)
        return cli_fail(&err);
    params->n_adapters = r->loras.n ? 1 : 0;
    params->adapter_rank = r->loras.rank;
    return CLI_OK;
}

static int adapt(struct running *r)
{
    struct pith_error err = {0};
    pith_status st = pith_adapt(r->s, 0, r->loras.use, r->loras.n, &err);
    return st == PITH_OK ? CLI_OK : cli_fail(&err);
}

/* Everything behind the prompt. */
static int run_prompt(struct running *r, char *text, size_t n_bytes)
{
    struct opts *o = r->o;
    struct pith_session_params session_params = PITH_SESSION_PARAMS_INIT;
    int code = open_model(r, text, n_bytes);
    if (!code)
        r->grammar = cli_grammar_open(&o->grammar, r->m, &code);
    o->sampler.resumable = o->session != NULL;
    if (!code)
        r->sampler = cli_sampler_open(&o->sampler, r->m, &code);
    if (r->sampler && pith_sampler_grammar(r->sampler, r->grammar, NULL) != PITH_OK)
        code = cli_no_memory();
    int32_t n_ctx = (int32_t)o->model.n_ctx;
    if (r->fills_in || r->reads) /* a step has all of it */
        session_params.n_batch = n_ctx = whole_steps(r);
    if (r->sampler && !code)
        code = open_loras(r, &session_params);
    if (r->sampler && !code)
        r->s = cli_session_open(r->m, &o->model, n_ctx, &session_params, &code);
    if (r->s && !r->fills_in)
        code = check_edits(r);
    if (r->s && !code)
        code = adapt(r);
    if (r->s && !code)
        code = load_session(o, r->s, r->sampler);
    if (r->s && !code)
        code = !chats(o) && is_text(o, &r->form) ? go_on(r, text, n_bytes) : talk(r, text, n_bytes);
    return code;
}

/* The prompt behind MODEL is that of -p. */
static int take_said(struct opts *o)
{
    if (o->said && o->prompt)
        return cli_say(CLI_USE, "found \"%s\" and --prompt; wanted one prompt", o->said);
    if (o->said)
        o->prompt = o->said;
    return CLI_OK;
}

/* That the session can be saved at the end: the text would be lost otherwise. */
static int check_session(const struct opts *o)
{
    if (!o->session || cli_is_device(o->session))
        return CLI_OK;
    char *folder = strdup(o->session);
    if (!folder)
        return cli_no_memory();
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0; /* "/" stays */
    struct stat sb;
    int code = CLI_OK;
    if (access(slash ? folder : ".", W_OK | X_OK) != 0)
        code = cli_say(CLI_INPUT, "--session %s: its folder cannot be written: %s", o->session,
                       strerror(errno));
    else if (!stat(o->session, &sb) && S_ISDIR(sb.st_mode))
        code = cli_say(CLI_INPUT, "--session %s: is a folder; wanted a file", o->session);
    free(folder);
    return code;
}

/* Stdin is one thing: what the grammar is read from, or the prompt and the lines of a chat. */
static int check_stdin(const struct opts *o)
{
    int named = (o->prompt || o->file) && !is_stdin(o->file) && (o->said || !is_stdin(o->prompt));
    if (!grammar_is_stdin(o) || named || goes_on(o))
        return CLI_OK;
    return cli_say(CLI_USE,
                   "found %s -, and stdin is where the prompt comes from; wanted a file "
                   "for one of them, or -p TEXT",
                   cli_grammar_flag(&o->grammar));
}

/* What is wrong whatever the model is, before it is loaded. */
static int check(const struct opts *o)
{
    int code = cli_grammar_check(&o->grammar);
    if (!code)
        code = check_stdin(o);
    if (!code)
        code = cli_sampler_check(&o->sampler);
    return code ? code : check_session(o);
}

/* A question of nothing is refused before the weights are read: whether it is one, a look at the
 * file says. */
static int check_early(struct opts *o, const char *text, size_t n)
{
    if (!text || o->raw || o->literal || text[strspn(text, " \t\r\n")])
        return CLI_OK;
    int code = cli_model_path(&o->model.path);
    return code || !has_template(o) ? code : check_question(text, n);
}

static int run(void *opts)
{
    char *text = NULL;
    size_t n_bytes = 0;
    struct running r = {.o = opts};
    int code = take_said(opts);
    if (!code)
        code = check(opts);
    if (!code)
        code = cli_form_check(&r.o->form, &r.variables);
    if (!code && !chats(opts) && (r.o->raw || r.o->literal || goes_on(opts)))
        code = refuse_text(opts);
    if (!code)
        code = read_prompt(opts, &text, &n_bytes);
    if (!code)
        code = check_early(opts, text, n_bytes);
    r.o->reseeds = r.o->sampler.seed >= 0;
    if (!code && goes_on(opts))
        code = cli_kept_take(r.o->session, &r.o->sampler, &r.o->grammar, &r.kept);
    if (!code)
        code = run_prompt(&r, text, n_bytes);
    pith_sampler_close(r.sampler);
    pith_grammar_close(r.grammar);
    pith_grammar_close(r.behind);
    pith_session_close(r.s);
    cli_loras_close(&r.loras);
    cli_form_close(&r.form);
    pith_model_close(r.m);
    json_decref(r.variables);
    json_decref(r.kept);
    free(r.o->grammar.text);
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
                "Asks a model with a chat template one question (-p, -f or stdin), with "
                "--system before it; its answer alone goes to stdout, without the reasoning. A "
                "model without a template, or --raw, goes on with the prompt as a text, and so "
                "does --literal, and --session without a prompt with the text that it has. "
                "Text comes as it is made; progress and timings go to stderr when that is a "
                "terminal, or with -v. Ctrl-C ends the text, a second one the program. A "
                "prompt longer than the context is an error, never cut.\n\n"
                "Without a prompt, at a terminal, and with a model that has a chat template it is "
                "a chat: a line is a message, and so are a paste and the lines between two lines "
                "of \"\"\". The prompt shows how much of the context is used. /help, /clear, /save "
                "FILE, /load FILE, /system TEXT, /regen, /stats and /exit are commands (/help says "
                "more); //... is a message that begins with /. Keys edit the line and go through "
                "earlier ones where libedit is installed. Ctrl-C stops an answer and "
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
