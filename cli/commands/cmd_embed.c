/* cmd_embed.c -- pith embed: texts to vectors.
 *
 *     texts    of the command line, or the lines of stdin; with --jsonl lines of JSON: a text, or
 *              an object with "text"
 *     vectors  JSON lines {"index", "embedding"} on stdout, or a NumPy file [texts, dimensions] of
 *              float32 that appears when it is complete
 *
 * Texts go together, as many as fit into one step; the vector of a text does not depend on which.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { TEXTS_AT_ONCE = 32, STEP_MOST = 8192 };

struct opts {
    struct model_opts model;
    struct arg_texts texts;
    const char *pooling, *npy, *prefix;
    int64_t n_dims;
    int jsonl, raw;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "TEXT", ARG_FIELD(struct opts, texts, ARG_TEXTS),
     .otherwise = "the lines of stdin", .help = "the texts"},
    {.name = "--jsonl", ARG_FIELD(struct opts, jsonl, ARG_SWITCH),
     .help = "lines of stdin are JSON: a text, or an object with \"text\""},
    {.name = "--prefix", .meta = "TEXT", ARG_FIELD(struct opts, prefix, ARG_TEXT),
     .help = "put this before each text, as models want it of queries or passages: "
             "\"search_query: \""},
    {.name = "--pooling", ARG_FIELD(struct opts, pooling, ARG_CHOICE), .choices = "mean|cls|last",
     .otherwise = "the model's own, else mean", .help = "how the vectors of tokens become one"},
    {.name = "--dimensions", ARG_FIELD(struct opts, n_dims, ARG_INT), .lo = 1, .hi = 1 << 20,
     .otherwise = "all", .help = "keep the first ones of each vector"},
    {.name = "--raw", ARG_FIELD(struct opts, raw, ARG_SWITCH),
     .help = "leave the vectors as long as they are; otherwise their length is 1"},
    {.name = "--npy", .meta = "FILE", ARG_FIELD(struct opts, npy, ARG_TEXT),
     .otherwise = "lines of JSON on stdout", .help = "write a NumPy array of float32 instead"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 1,
     .hi = INT32_MAX, .otherwise = "as the model was trained, at most 8192",
     .help = "most tokens of a text"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

struct run {
    const struct opts *o;
    pith_model *model;
    pith_session *session;
    struct pith_model_info info;
    int32_t n_most; /* tokens of a text, and of a step */
    int32_t n_dims;
    int64_t n_texts, n_done;
    int32_t *tokens, *seq; /* [n_most] of the step to come, */
    int32_t n, n_seq;      /* so far */
    float *vector;
    struct cli_out out;
};

/* ---------------------------------------------------------------- vectors out */

/* 9 digits tell a float. */
static int put_vector(struct run *r, const float *v)
{
    if (r->out.f) {
        fwrite(v, sizeof *v, (size_t)r->n_dims, r->out.f);
        return CLI_OK; /* its close says what failed */
    }
    printf("{\"index\":%lld,\"embedding\":[", (long long)r->n_done);
    for (int32_t i = 0; i < r->n_dims; i++) {
        if (!isfinite(v[i]))
            return cli_say(CLI_INPUT, "text %lld: the model gives %g in dimension %d",
                           (long long)r->n_done + 1, (double)v[i], i);
        printf("%s%.9g", i ? "," : "", (double)v[i]);
    }
    fputs("]}\n", stdout);
    return CLI_OK;
}

/* NumPy's format, version 1.0: the head says the shape, which is known at the end. */
static int put_npy_head(struct run *r)
{
    enum { HEAD = 128 };
    char head[HEAD + 1] = "\x93NUMPY\x01";
    int n = snprintf(head + 10, HEAD - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %d), }",
                     (long long)r->n_done, r->n_dims);
    memset(head + 10 + n, ' ', (size_t)(HEAD - 10 - n));
    head[HEAD - 1] = '\n';
    head[8] = HEAD - 10;
    if (fseek(r->out.f, 0, SEEK_SET))
        return cli_say(CLI_SYSTEM, "--npy %s: cannot go back to its beginning: %s; wanted a file",
                       r->out.path, strerror(errno));
    fwrite(head, 1, HEAD, r->out.f);
    return CLI_OK;
}

/* Runs what has come together. */
static int flush_step(struct run *r)
{
    struct pith_error err = {0};
    struct pith_batch batch = PITH_BATCH_INIT;
    int code = CLI_OK;
    if (!r->n_seq)
        return CLI_OK;
    batch.n = r->n;
    batch.token = r->tokens;
    batch.seq = r->seq;
    if (pith_step(r->session, &batch, &err) != PITH_OK)
        return cli_fail(&err);
    for (int32_t i = 0; i < r->n_seq && !code; i++) {
        const float *v = pith_embedding(r->session, i);
        double sum = 0;
        if (!v)
            return cli_say(CLI_SYSTEM, "the step gave no vector %d of %d", i, r->n_seq);
        for (int32_t k = 0; k < r->n_dims; k++)
            sum += (double)v[k] * (double)v[k];
        double scale = r->o->raw ? 1 : sum > 0 ? 1 / sqrt(sum) : 0;
        for (int32_t k = 0; k < r->n_dims; k++)
            r->vector[k] = (float)(scale * (double)v[k]);
        code = put_vector(r, r->vector);
        r->n_done++;
        if (pith_truncate(r->session, i, 0, &err) != PITH_OK)
            return cli_fail(&err);
    }
    r->n = r->n_seq = 0;
    return code;
}

/* ---------------------------------------------------------------- texts in */

static int add_text(struct run *r, const char *text, size_t n)
{
    struct pith_error err = {0};
    int64_t n_ids = 0;
    int code = CLI_OK;
    const char *prefix = r->o->prefix ? r->o->prefix : "";
    size_t n_prefix = strlen(prefix);
    char *whole = malloc(n_prefix + n + 1);
    if (!whole)
        return cli_no_memory();
    memcpy(whole, prefix, n_prefix);
    memcpy(whole + n_prefix, text, n);
    int32_t *ids = cli_tokenize(r->model, whole, n_prefix + n, PITH_ADD_SPECIAL, &n_ids, &err);
    free(whole);
    r->n_texts++;
    if (!ids)
        return cli_fail(&err);
    if (n_ids == 0)
        code = cli_say(CLI_INPUT, "text %lld is empty; wanted at least one token",
                       (long long)r->n_texts);
    else if (n_ids > r->n_most)
        code = cli_say(CLI_INPUT,
                       "text %lld is too long: n_prompt = %lld tokens, n_ctx = %d, which is n_over "
                       "= %lld too many",
                       (long long)r->n_texts, (long long)n_ids, r->n_most,
                       (long long)(n_ids - r->n_most));
    else if (r->n_seq == TEXTS_AT_ONCE || r->n + n_ids > r->n_most)
        code = flush_step(r);
    for (int64_t i = 0; i < n_ids && !code; i++, r->n++) {
        r->tokens[r->n] = ids[i];
        r->seq[r->n] = r->n_seq;
    }
    r->n_seq += !code;
    free(ids);
    return code;
}

static int add_line(struct run *r, const char *line, size_t n)
{
    if (!r->o->jsonl)
        return add_text(r, line, n);
    json_error_t why;
    json_t *j = json_loadb(line, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    const json_t *text = json_is_object(j) ? json_object_get(j, "text") : j;
    int code = !j ? cli_say(CLI_INPUT, "line %lld is not JSON: %s", (long long)r->n_texts + 1,
                            why.text)
               : !json_is_string(text)
                   ? cli_say(CLI_INPUT,
                             "line %lld has no text; wanted a JSON string, or {\"text\": a string}",
                             (long long)r->n_texts + 1)
                   : add_text(r, json_string_value(text), json_string_length(text));
    json_decref(j);
    return code;
}

/* At a terminal each line is answered at once. */
static int add_stdin(struct run *r)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    int code = CLI_OK, at_once = isatty(STDIN_FILENO);
    errno = 0;
    while (!code && (n = getline(&line, &cap, stdin)) > 0) {
        n -= line[n - 1] == '\n';
        n -= n && line[n - 1] == '\r';
        code = n ? add_line(r, line, (size_t)n) : CLI_OK; /* an empty line is none */
        if (!code && at_once)
            code = flush_step(r);
        if (at_once)
            fflush(stdout);
        errno = 0;
    }
    if (n < 0 && !feof(stdin) && !code)
        code = cli_say(interrupt_asked() ? CLI_INTERRUPTED : CLI_SYSTEM, "stdin: cannot read: %s",
                       strerror(errno));
    free(line);
    return code;
}

/* ---------------------------------------------------------------- the command */

static int open_all(struct run *r)
{
    const struct opts *o = r->o;
    struct pith_error err = {0};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int code = CLI_OK;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_batch = o->model.n_ctx ? (int32_t)o->model.n_ctx : STEP_MOST;
    r->model = cli_model_open(&o->model, &mp, &code);
    if (!r->model)
        return code;
    r->info.size = sizeof r->info;
    if (pith_model_get_info(r->model, &r->info, &err) != PITH_OK)
        return cli_fail(&err);
    r->n_most = r->info.n_ctx_train < mp.n_batch && !o->model.n_ctx ? r->info.n_ctx_train
                                                                     : mp.n_batch;
    r->n_dims = o->n_dims ? (int32_t)o->n_dims : r->info.n_embd;
    if (r->n_dims > r->info.n_embd)
        return cli_say(CLI_USE, "--dimensions is %d, this model has %d", r->n_dims, r->info.n_embd);
    int own = r->info.pooling == PITH_POOL_MEAN || r->info.pooling == PITH_POOL_CLS ||
              r->info.pooling == PITH_POOL_LAST;
    sp.pooling = !o->pooling            ? own ? (pith_pooling)r->info.pooling : PITH_POOL_MEAN
                 : o->pooling[0] == 'm' ? PITH_POOL_MEAN
                 : o->pooling[0] == 'c' ? PITH_POOL_CLS
                                        : PITH_POOL_LAST;
    sp.n_seq = TEXTS_AT_ONCE;
    sp.n_tokens = r->n_most;
    r->session = cli_session_open(r->model, &o->model, r->n_most, &sp, &code);
    if (!r->session)
        return code;
    r->tokens = malloc((size_t)r->n_most * sizeof *r->tokens);
    r->seq = malloc((size_t)r->n_most * sizeof *r->seq);
    r->vector = malloc((size_t)r->n_dims * sizeof *r->vector);
    return r->tokens && r->seq && r->vector ? CLI_OK : cli_no_memory();
}

static int run(void *opts)
{
    struct run r = {.o = opts};
    const struct opts *o = opts;
    int code = o->npy ? cli_out_check(o->npy) : CLI_OK;
    if (!code && o->jsonl && o->texts.n)
        code = cli_say(CLI_USE, "--jsonl reads stdin, and there are %d texts on the command line",
                       o->texts.n);
    if (!code)
        code = open_all(&r);
    if (!code && o->npy) {
        code = cli_out_open(&r.out, o->npy);
        if (!code)
            code = put_npy_head(&r);
    }
    if (!code) {
        interrupt_watch(r.session);
        for (int i = 0; i < o->texts.n && !code; i++)
            code = add_text(&r, o->texts.v[i], strlen(o->texts.v[i]));
        if (!code && !o->texts.n)
            code = add_stdin(&r);
        if (!code)
            code = flush_step(&r);
        interrupt_watch(NULL);
    }
    if (!code && r.out.f)
        code = put_npy_head(&r);
    if (o->npy && r.out.path)
        code = cli_out_close(&r.out, code);
    if (!code && cli_chatty(&o->model))
        fprintf(stderr, "%lld texts, %d dimensions\n", (long long)r.n_done, r.n_dims);
    pith_session_close(r.session);
    pith_model_close(r.model);
    free(r.tokens);
    free(r.seq);
    free(r.vector);
    return o->npy ? code : cli_finish(code);
}

const struct command cmd_embed = {
    .name = "embed",
    .summary = "texts to vectors",
    .args =
        {
            .command = "pith embed",
            .about = "Writes the vector of each text: lines of JSON, or a NumPy file. Vectors have "
                     "the length 1, so their dot product is the cosine.",
            .example = "  pith embed model.gguf \"a cat\" \"a dog\"\n"
                       "  pith embed model.gguf --prefix \"search_query: \" --npy q.npy < "
                       "queries.txt\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
