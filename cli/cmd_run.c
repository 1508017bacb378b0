/* cmd_run.c -- pith run: a prompt in, generated text out, as it is made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

struct opts {
    struct model_opts model;
    const char *prompt, *file;
    int64_t n, top_k, last_n, seed;
    double temp, top_p, min_p, repeat, frequency, presence;
    struct arg_texts stop;
    int ignore_eog, literal;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "--prompt", .alias = "-p", .meta = "TEXT", ARG_FIELD(struct opts, prompt, ARG_TEXT),
     .help = "the prompt"},
    {.name = "--file", .alias = "-f", .meta = "FILE", ARG_FIELD(struct opts, file, ARG_TEXT),
     .otherwise = "stdin, unless it is a terminal",
     .help = "read the prompt from a file, byte for byte; - is stdin"},
    {.name = "--predict", .alias = "-n", ARG_FIELD(struct opts, n, ARG_INT), .lo = -2,
     .hi = INT32_MAX, .dflt = "-1",
     .help = "most tokens to make; -1: until the end token or a full context; -2: until the "
             "context is full; 0: only read the prompt"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 1,
     .hi = INT32_MAX, .env = "PITH_CTX",
     .otherwise = "what the model was trained for, at most 4096",
     .help = "positions of context for prompt and text"},
    {.name = "--temp", .meta = "T", ARG_FIELD(struct opts, temp, ARG_REAL), .hi = 1000, .dflt = "0",
     .help = "temperature; 0: always the most probable token"},
    {.name = "--top-k", ARG_FIELD(struct opts, top_k, ARG_INT), .hi = INT32_MAX, .dflt = "0",
     .help = "draw from the N most probable tokens only; 0: off"},
    {.name = "--top-p", .meta = "P", ARG_FIELD(struct opts, top_p, ARG_REAL), .hi = 1, .dflt = "1",
     .help = "draw from the most probable tokens that together reach probability P; 1: off"},
    {.name = "--min-p", .meta = "P", ARG_FIELD(struct opts, min_p, ARG_REAL), .hi = 1, .dflt = "0",
     .help = "leave out tokens less than P times as probable as the best; 0: off"},
    {.name = "--repeat-penalty", .meta = "X", ARG_FIELD(struct opts, repeat, ARG_REAL), .hi = 1000,
     .dflt = "1", .help = "makes tokens of the last ones less probable; 1: off"},
    {.name = "--frequency-penalty", .meta = "X", ARG_FIELD(struct opts, frequency, ARG_REAL),
     .lo = -1000, .hi = 1000, .dflt = "0", .help = "taken off a logit for each time it occurred"},
    {.name = "--presence-penalty", .meta = "X", ARG_FIELD(struct opts, presence, ARG_REAL),
     .lo = -1000, .hi = 1000, .dflt = "0", .help = "taken off a logit that occurred"},
    {.name = "--repeat-last-n", ARG_FIELD(struct opts, last_n, ARG_INT), .lo = -1, .hi = 1 << 24,
     .dflt = "64", .help = "how many last tokens the penalties look at; -1: all"},
    {.name = "--seed", .alias = "-s", ARG_FIELD(struct opts, seed, ARG_INT), .lo = -1, .dflt = "-1",
     .help = "the same seed gives the same text on every machine; -1: a new one each time"},
    {.name = "--stop", .meta = "TEXT", ARG_FIELD(struct opts, stop, ARG_TEXTS),
     .help = "end before this text; may be given several times"},
    {.name = "--ignore-eog", ARG_FIELD(struct opts, ignore_eog, ARG_SWITCH),
     .help = "go on after the end token"},
    {.name = "--literal", ARG_FIELD(struct opts, literal, ARG_SWITCH),
     .help = "control tokens spelled out in the prompt are plain text"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- prompt */

static int read_prompt(const struct opts *o, char **text, size_t *n)
{
    if (o->prompt && o->file)
        return cli_say(CLI_USE, "found both --prompt and --file; wanted one of them");
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
    while (n > 0) {
        ssize_t put = write(STDOUT_FILENO, text, n);
        if (put < 0 && errno != EINTR) {
            out->failed_errno = errno;
            return 0;
        }
        if (put > 0) {
            text += put;
            n -= (size_t)put;
        }
    }
    return !interrupt_asked();
}

static void timings(const struct pith_generate_result *r, int64_t seed)
{
    static const char *const why[] = {
        [PITH_STOP_LENGTH] = "the number of tokens asked for",
        [PITH_STOP_EOG] = "the end token",
        [PITH_STOP_STRING] = "a stop string",
        [PITH_STOP_CONTEXT] = "the full context",
        [PITH_STOP_CALLBACK] = "the output",
        [PITH_STOP_CANCELLED] = "Ctrl-C",
    };
    double prefill = 1e-9 * (double)r->prefill_ns, decode = 1e-9 * (double)r->decode_ns;
    int32_t n_read = r->n_prompt - r->n_kept;
    fprintf(stderr, "prompt: %d tokens in %.3f s", n_read, prefill);
    if (prefill > 0)
        fprintf(stderr, " (%.1f tokens/s)", n_read / prefill);
    fprintf(stderr, "\ntext: %d tokens in %.3f s", r->n_generated, decode);
    if (decode > 0)
        fprintf(stderr, " (%.1f tokens/s)", r->n_generated / decode);
    if ((size_t)r->stop < sizeof why / sizeof why[0])
        fprintf(stderr, ", ended by %s", why[r->stop]);
    if (seed >= 0)
        fprintf(stderr, ", seed %lld", (long long)seed);
    fputc('\n', stderr);
}

/* ---------------------------------------------------------------- the command */

static pith_sampler *open_sampler(struct opts *o, int32_t n_vocab, int *code)
{
    struct pith_error err = {0};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    if (o->temp == 0)
        o->seed = -1; /* none is used */
    else if (o->seed < 0) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        o->seed = (int64_t)(((uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec) & 0x7FFFFFFF);
    }
    p.temperature = (float)o->temp;
    p.top_k = (int32_t)o->top_k;
    p.top_p = (float)o->top_p;
    p.min_p = (float)o->min_p;
    p.repeat_penalty = (float)o->repeat;
    p.frequency_penalty = (float)o->frequency;
    p.presence_penalty = (float)o->presence;
    p.penalty_last_n = (int32_t)o->last_n;
    p.seed = o->seed < 0 ? 0 : (uint64_t)o->seed;
    if (o->last_n == 0) /* a window of nothing: none of the penalties */
        p.repeat_penalty = p.frequency_penalty = p.presence_penalty = 0;
    pith_sampler *s = pith_sampler_open(n_vocab, &p, &err);
    if (!s)
        *code = cli_fail(&err);
    return s;
}

static int generate(struct opts *o, pith_session *s, pith_sampler *sampler, const int32_t *ids,
                    int64_t n_ids)
{
    struct pith_error err = {0};
    struct output out = {0};
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result result = {0};
    if (o->n == 0) {
        double began = cli_seconds();
        if (pith_prefix(s, 0, ids, (size_t)n_ids, NULL, &err) != PITH_OK)
            return cli_fail(&err);
        result.n_prompt = (int32_t)n_ids;
        result.prefill_ns = (int64_t)(1e9 * (cli_seconds() - began));
    } else {
        p.tokens = ids;
        p.n_tokens = (size_t)n_ids;
        p.n_max = (int32_t)o->n;
        p.ignore_eog = o->ignore_eog;
        p.stop = o->stop.n ? o->stop.v : NULL;
        p.sampler = sampler;
        p.on_text = on_text;
        p.ctx = &out;
        pith_status st = pith_generate(s, &p, &result, &err);
        if (out.last && out.last != '\n' && isatty(STDOUT_FILENO))
            on_text(&out, "\n", 1);
        if (st != PITH_OK && st != PITH_CANCELLED)
            return cli_fail(&err);
    }
    if (cli_chatty(&o->model))
        timings(&result, o->seed);
    if (o->model.verbose)
        cli_report(s);
    if (out.failed_errno && out.failed_errno != EPIPE) /* EPIPE: the reader has seen enough */
        return cli_say(CLI_SYSTEM, "cannot write to stdout: %s", strerror(out.failed_errno));
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
    struct pith_model_params model_params = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params session_params = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    pith_model *m = cli_model_open(&o->model, &model_params, &code);
    if (!m)
        return code;
    if (pith_model_get_info(m, &info, NULL) == PITH_OK && !info.causal)
        code = cli_say(CLI_INPUT, "%s is an encoder and makes no text; 'pith logits' gives its output",
                       o->model.path);
    if (!code)
        ids = prompt_ids(o, m, text, n_bytes, &n_ids, &code);
    if (ids)
        sampler = open_sampler(o, info.n_vocab, &code);
    if (sampler)
        s = cli_session_open(m, &o->model, (int32_t)o->model.n_ctx, &session_params, &code);
    if (s) {
        interrupt_watch(s);
        code = generate(o, s, sampler, ids, n_ids);
        interrupt_watch(NULL);
    }
    free(ids);
    pith_sampler_close(sampler);
    pith_session_close(s);
    pith_model_close(m);
    return code;
}

static int run(void *opts)
{
    char *text;
    size_t n_bytes;
    int code = read_prompt(opts, &text, &n_bytes);
    if (code)
        return code;
    code = run_prompt(opts, text, n_bytes);
    free(text);
    return code;
}

const struct command cmd_run = {
    .name = "run",
    .summary = "generate text from a prompt",
    .args =
        {
            .command = "pith run",
            .about =
                "Continues a prompt. The generated text alone goes to stdout, as it is made; "
                "progress "
                "and timings go to stderr when that is a terminal, or with -v. Ctrl-C ends the "
                "text, a "
                "second one the program. A prompt longer than the context is an error, never cut.",
            .example = "  pith run model.gguf -p \"Once upon a time\" -n 64 --temp 0.8 --top-k 40 "
                       "--seed 1\n"
                       "  pith run model.gguf -f question.txt --stop END > answer.txt\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
