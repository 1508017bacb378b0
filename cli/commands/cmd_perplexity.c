/* cmd_perplexity.c -- pith perplexity: how well a model foresees a text.
 *
 * The tokens of the text are cut into chunks of --ctx. Of each chunk the second half is scored, so
 * that every scored token has at least half a chunk before it:
 *
 *     perplexity = exp(-mean(log p(token | the tokens before it in its chunk)))
 *
 * Where the vocabulary puts a start token before a text, one takes the place of the first token of
 * each chunk. llama-perplexity does it this way, too, so the figures can be compared.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct opts {
    struct model_opts model;
    const char *file;
    int64_t n_chunks;
    int json;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "--file", .alias = "-f", .meta = "FILE", ARG_FIELD(struct opts, file, ARG_TEXT),
     .otherwise = "stdin", .help = "the text, UTF-8; - is stdin"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 4,
     .hi = 1 << 24, .dflt = "512",
     .help = "tokens of a chunk, of which the second half is scored; figures with different ones "
         "cannot be compared"},
    {.name = "--chunks", .meta = "N", ARG_FIELD(struct opts, n_chunks, ARG_INT), .lo = 1,
     .hi = INT32_MAX, .otherwise = "all", .help = "score so many first chunks only"},
    {.name = "--json", ARG_FIELD(struct opts, json, ARG_SWITCH),
     .help = "one JSON object: perplexity, error, nll (mean of -log p), n_scored, n_chunks, n_ctx, "
         "n_tokens (of the text); what is not finite is null"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

enum { STEP = 512 }; /* rows without outputs */

struct run {
    const struct opts *o;
    pith_session *s;
    int32_t *chunk; /* [n_ctx] */
    uint8_t *want;  /* [STEP or most] */
    struct pith_draw *draws; /* [most] */
    int32_t n_ctx, most;     /* tokens of a chunk; outputs of a step */
    int64_t n_scored;
    double sum, squares; /* of -log p */
};

static int add_scores(struct run *r, const int32_t *next, int32_t n)
{
    struct pith_error err = {0};
    for (int32_t i = 0; i < n; i++)
        r->draws[i] = (struct pith_draw){.size = sizeof *r->draws, .output = i, .id = next[i]};
    if (pith_sample_rows(r->s, r->draws, n, &err) != PITH_OK)
        return cli_fail(&err);
    for (int32_t i = 0; i < n; i++) {
        double nll = -(double)r->draws[i].logprob;
        r->sum += nll;
        r->squares += nll * nll;
    }
    r->n_scored += n;
    return CLI_OK;
}

/* The first half in steps without outputs, then rows whose logits foresee their next tokens. */
static int score_chunk(struct run *r)
{
    struct pith_error err = {0};
    int32_t first = r->n_ctx / 2, last = r->n_ctx - 1, n;
    if (pith_truncate(r->s, 0, 0, &err) != PITH_OK)
        return cli_fail(&err);
    for (int32_t at = 0; at < last; at += n) {
        int scores = at >= first;
        struct pith_batch batch = PITH_BATCH_INIT;
        int32_t room = scores ? r->most : STEP, left = (scores ? last : first) - at;
        n = left < room ? left : room;
        memset(r->want, scores, (size_t)n);
        batch.n = n;
        batch.token = r->chunk + at;
        batch.want = r->want;
        if (pith_step(r->s, &batch, &err) != PITH_OK)
            return cli_fail(&err);
        int code = scores ? add_scores(r, r->chunk + at + 1, n) : CLI_OK;
        if (code)
            return code;
    }
    return CLI_OK;
}

static double mean(const struct run *r)
{
    return r->sum / (double)r->n_scored;
}

/* The standard error of the mean, as a part of the perplexity. */
static double error_of(const struct run *r)
{
    double n = (double)r->n_scored, m = mean(r), variance = r->squares / n - m * m;
    return n > 1 && variance > 0 ? exp(m) * sqrt(variance / (n - 1)) : 0;
}

static json_t *finite_json(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static int show(const struct run *r, int64_t n_chunks, int64_t n_tokens)
{
    if (!r->o->json) {
        printf("perplexity %.4f +- %.4f (%lld tokens scored, in %lld chunk%s of %d)\n",
               exp(mean(r)), error_of(r), (long long)r->n_scored, (long long)n_chunks,
               n_chunks == 1 ? "" : "s", r->n_ctx);
        return CLI_OK;
    }
    json_t *root = json_pack("{s:o, s:o, s:o, s:I, s:I, s:i, s:I}", "perplexity",
                             finite_json(exp(mean(r))), "error", finite_json(error_of(r)), "nll",
                             finite_json(mean(r)), "n_scored", (json_int_t)r->n_scored, "n_chunks",
                             (json_int_t)n_chunks, "n_ctx", (int)r->n_ctx, "n_tokens",
                             (json_int_t)n_tokens);
    if (!root)
        return cli_no_memory();
    if (json_dumpf(root, stdout, JSON_COMPACT) == 0)
        putchar('\n');
    json_decref(root);
    return CLI_OK;
}

static int score_all(struct run *r, const int32_t *ids, int64_t n_ids, int32_t bos)
{
    int64_t n_chunks = n_ids / r->n_ctx;
    int chatty = cli_chatty(&r->o->model), code = CLI_OK;
    if (r->o->n_chunks && r->o->n_chunks < n_chunks)
        n_chunks = r->o->n_chunks;
    for (int64_t c = 0; c < n_chunks && !code; c++) {
        memcpy(r->chunk, ids + c * r->n_ctx, (size_t)r->n_ctx * sizeof *ids);
        if (bos >= 0)
            r->chunk[0] = bos;
        code = score_chunk(r);
        if (!code && isnan(r->sum))
            code = cli_say(CLI_INPUT, "chunk %lld: a probability is not a number; the model's "
                                      "weights are damaged, or of the wrong kind",
                           (long long)c + 1);
        if (!code && chatty)
            fprintf(stderr, "%schunk %lld of %lld: perplexity %.4f%s",
                    isatty(STDERR_FILENO) ? "\r\033[K" : "", (long long)c + 1,
                    (long long)n_chunks, exp(mean(r)),
                    isatty(STDERR_FILENO) && c + 1 < n_chunks ? "" : "\n");
    }
    return code ? code : show(r, n_chunks, n_ids);
}

/* What only a model that makes text token by token has. */
static int check_model(const pith_model *m, const char *path)
{
    struct pith_model_info info = {.size = sizeof info};
    if (pith_model_get_info(m, &info, NULL) == PITH_OK && info.causal && info.logits &&
        !info.encoder)
        return CLI_OK;
    return cli_say(CLI_INPUT, "%s does not foresee one token after the other; wanted a model that "
                              "makes text, without an encoder",
                   path);
}

static int measure(struct run *r, pith_model *m, const int32_t *ids, int64_t n_ids)
{
    struct pith_session_params params = PITH_SESSION_PARAMS_INIT;
    int32_t bos = pith_token_bos(m);
    int code = CLI_OK;
    r->n_ctx = (int32_t)r->o->model.n_ctx;
    if (n_ids < r->n_ctx)
        return cli_say(CLI_INPUT, "the text has %lld token%s, and a chunk %d; a longer text, or a "
                                  "smaller --ctx, can be scored",
                       (long long)n_ids, n_ids == 1 ? "" : "s", r->n_ctx);
    r->s = cli_session_open(m, &r->o->model, r->n_ctx, &params, &code);
    if (!r->s)
        return code;
    r->most = pith_max_outputs(r->s);
    r->chunk = malloc((size_t)r->n_ctx * sizeof *r->chunk);
    r->want = malloc((size_t)(r->most > STEP ? r->most : STEP));
    r->draws = malloc((size_t)r->most * sizeof *r->draws);
    interrupt_watch(r->s);
    code = r->chunk && r->want && r->draws
               ? score_all(r, ids, n_ids, ids[0] == bos ? bos : -1)
               : cli_no_memory();
    interrupt_watch(NULL);
    free(r->chunk);
    free(r->want);
    free(r->draws);
    pith_session_close(r->s);
    return code;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct run r = {.o = o};
    struct pith_error err = {0};
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    char *text = NULL;
    size_t n_bytes = 0;
    int64_t n_ids = 0;
    if (!o->file && isatty(STDIN_FILENO))
        return cli_say(CLI_USE, "no text; give -f FILE, or pipe one in");
    int code = cli_read_file(o->file ? o->file : "-", &text, &n_bytes);
    pith_model *m = code ? NULL : cli_model_open(&o->model, &params, &code);
    if (m)
        code = check_model(m, o->model.path);
    int32_t *ids =
        m && !code ? cli_tokenize(m, text, n_bytes, PITH_ADD_SPECIAL, &n_ids, &err) : NULL;
    if (m && !code)
        code = ids ? measure(&r, m, ids, n_ids) : cli_fail(&err);
    pith_model_close(m);
    free(ids);
    free(text);
    return cli_finish(code);
}

const struct command cmd_perplexity = {
    .name = "perplexity",
    .summary = "how well does a model foresee a text?",
    .args =
        {
            .command = "pith perplexity",
            .about = "Cuts a text into chunks and tells how well the model foresees the second "
                     "half of each: the lower, the better. It is how quantized files of one model "
                     "are compared; files with other vocabularies cannot be. It is measured as "
                     "llama-perplexity does.",
            .example = "  pith perplexity model-q4_k_m.gguf -f wiki.test.raw\n"
                       "  pith perplexity model.gguf --chunks 20 --json < wiki.test.raw\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
