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

#include "cli/commands/pooled.h"

struct opts {
    struct model_opts model;
    struct arg_texts texts;
    const char *pooling, *npy, *prefix, *prompt_name;
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
    {.name = "--prompt-name", .meta = "NAME", ARG_FIELD(struct opts, prompt_name, ARG_TEXT),
     .help = "put before each text what the model's file has by this name, such as query or "
             "document: its key sentence_transformers.prompts.NAME"},
    {.name = "--pooling", ARG_FIELD(struct opts, pooling, ARG_CHOICE), .choices = "mean|cls|last",
     .otherwise = "the model's own, else mean", .help = "how the vectors of tokens become one"},
    {.name = "--dimensions", ARG_FIELD(struct opts, n_dims, ARG_INT), .lo = 1, .hi = 1 << 20,
     .otherwise = "all", .help = "keep the first ones of each vector"},
    {.name = "--raw", ARG_FIELD(struct opts, raw, ARG_SWITCH),
     .help = "leave the vectors as long as they are; otherwise their length is 1"},
    {.name = "--npy", .meta = "FILE", ARG_FIELD(struct opts, npy, ARG_TEXT),
     .otherwise = "lines of JSON on stdout", .help = "write a NumPy array of float32 instead"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 0,
     .hi = 1 << 24, .otherwise = "as the model was trained, at most 8192",
     .help = "most tokens of a text; 0: as without it"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

struct run {
    const struct opts *o;
    struct pooled pooled;
    int32_t n_dims;
    float *vector;
    char *prefix; /* before each text; NULL: nothing */
    struct cli_out out;
    FILE *rows; /* of --npy: what numbers are written to; out.f, or a file to copy where out.f is
                   no file of ours, and may not go back to its head */
};

/* ---------------------------------------------------------------- vectors out */

/* 9 digits tell a float. */
static int put_vector(const struct run *r, int64_t i, const float *v)
{
    for (int32_t k = 0; k < r->n_dims; k++)
        if (!isfinite(v[k]))
            return cli_say(CLI_INPUT, "text %lld: the model gives %g in dimension %d",
                           (long long)i + 1, (double)v[k], k);
    if (r->rows) {
        fwrite(v, sizeof *v, (size_t)r->n_dims, r->rows);
        return CLI_OK; /* its close says what failed */
    }
    printf("{\"index\":%lld,\"embedding\":[", (long long)i);
    for (int32_t k = 0; k < r->n_dims; k++)
        printf("%s%.9g", k ? "," : "", (double)v[k]);
    fputs("]}\n", stdout);
    return CLI_OK;
}

static int on_row(void *ctx, int64_t i, const float *v)
{
    struct run *r = ctx;
    double sum = 0;
    for (int32_t k = 0; k < r->n_dims; k++)
        sum += (double)v[k] * (double)v[k];
    double scale = r->o->raw ? 1 : sum > 0 ? 1 / sqrt(sum) : 0;
    for (int32_t k = 0; k < r->n_dims; k++)
        r->vector[k] = (float)(scale * (double)v[k]);
    return put_vector(r, i, r->vector);
}

/* NumPy's format, version 1.0: the head says the shape, which is known at the end. */
static void put_npy_head(struct run *r)
{
    enum { HEAD = 128 };
    char head[HEAD + 1] = "\x93NUMPY\x01";
    int n = snprintf(head + 10, HEAD - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %d), }",
                     (long long)r->pooled.n_done, r->n_dims);
    memset(head + 10 + n, ' ', (size_t)(HEAD - 10 - n));
    head[HEAD - 1] = '\n';
    head[8] = HEAD - 10;
    fwrite(head, 1, HEAD, r->out.f);
}

static int begin_npy(struct run *r)
{
    int code = cli_out_open(&r->out, r->o->npy);
    if (code)
        return code;
    r->rows = r->out.tmp ? r->out.f : tmpfile();
    if (!r->rows)
        return cli_say(CLI_SYSTEM, "--npy %s: no file for what a pipe gets at the end: %s",
                       r->out.path, strerror(errno));
    if (r->rows == r->out.f)
        put_npy_head(r);
    return CLI_OK;
}

static int end_npy(struct run *r)
{
    char part[BUFSIZ];
    size_t n;
    if (fseek(r->rows, 0, SEEK_SET))
        return cli_say(CLI_SYSTEM, "--npy %s: cannot write: %s", r->out.path, strerror(errno));
    put_npy_head(r);
    if (r->rows == r->out.f)
        return CLI_OK;
    int64_t left = r->pooled.n_done * r->n_dims * (int64_t)sizeof(float);
    while (left > 0 && (n = fread(part, 1, sizeof part, r->rows)) > 0) {
        fwrite(part, 1, n, r->out.f);
        left -= (int64_t)n;
    }
    return left ? cli_say(CLI_SYSTEM, "--npy %s: the numbers cannot be read back: %s", r->out.path,
                          strerror(errno))
                : CLI_OK;
}

/* ---------------------------------------------------------------- texts in */

static int add_text(void *ctx, const char *text, size_t n)
{
    struct run *r = ctx;
    struct pith_error err = {0};
    int64_t n_ids = 0;
    const char *prefix = r->prefix ? r->prefix : r->o->prefix ? r->o->prefix : "";
    size_t n_prefix = strlen(prefix);
    char *whole = malloc(n_prefix + n + 1);
    if (!whole)
        return cli_no_memory();
    memcpy(whole, prefix, n_prefix);
    memcpy(whole + n_prefix, text, n);
    int32_t *ids =
        cli_tokenize(r->pooled.model, whole, n_prefix + n, PITH_ADD_SPECIAL, &n_ids, &err);
    int code = ids ? pooled_add(&r->pooled, ids, n_ids) : cli_fail(&err);
    free(whole);
    free(ids);
    return code;
}

/* ---------------------------------------------------------------- the command */

/* The prefix that the model's file has by a name. */
static int find_prefix(struct run *r, const char *name)
{
    char key[160];
    if (r->o->prefix)
        return cli_say(CLI_USE, "--prefix and --prompt-name exclude each other");
    snprintf(key, sizeof key, "sentence_transformers.prompts.%.100s", name);
    int64_t n = pith_model_meta(r->pooled.model, key, NULL, 0);
    if (n < 0)
        return cli_say(CLI_INPUT, "%s has no key %s; wanted another name, or --prefix",
                       r->o->model.path, key);
    r->prefix = malloc((size_t)n + 1);
    if (!r->prefix)
        return cli_no_memory();
    pith_model_meta(r->pooled.model, key, r->prefix, (size_t)n + 1);
    return CLI_OK;
}

static int open_all(struct run *r)
{
    const struct opts *o = r->o;
    int code = pooled_open_model(&r->pooled);
    if (!code && o->prompt_name)
        code = find_prefix(r, o->prompt_name);
    if (code)
        return code;
    const struct pith_model_info *info = &r->pooled.info;
    if (info->encoder)
        return cli_say(CLI_INPUT,
                       "%s has an encoder beside its decoder; wanted a model without one",
                       o->model.path);
    r->n_dims = o->n_dims ? (int32_t)o->n_dims : info->n_embd_out;
    if (r->n_dims > info->n_embd_out)
        return cli_say(CLI_USE, "--dimensions is %d, this model has %d", r->n_dims,
                       info->n_embd_out);
    r->vector = malloc((size_t)r->n_dims * sizeof *r->vector);
    int own = info->pooling >= PITH_POOL_MEAN && info->pooling <= PITH_POOL_LAST;
    return !r->vector ? cli_no_memory()
                      : pooled_open(&r->pooled,
                                    !o->pooling ? own ? (pith_pooling)info->pooling : PITH_POOL_MEAN
                                    : o->pooling[0] == 'm' ? PITH_POOL_MEAN
                                    : o->pooling[0] == 'c' ? PITH_POOL_CLS
                                                           : PITH_POOL_LAST);
}

static int embed_all(struct run *r)
{
    int code = CLI_OK;
    for (int i = 0; i < r->o->texts.n && !code; i++)
        code = add_text(r, r->o->texts.v[i], strlen(r->o->texts.v[i]));
    if (!code && !r->o->texts.n)
        code = pooled_lines(&r->pooled, r->o->jsonl, add_text);
    return pooled_end(&r->pooled, code);
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct run r = {.o = o};
    r.pooled = (struct pooled){.opts = &o->model, .on_row = on_row, .ctx = &r};
    int code = o->npy ? cli_out_check(o->npy) : CLI_OK;
    if (!code && o->jsonl && o->texts.n)
        code = cli_say(CLI_USE, "--jsonl reads stdin, and there are %d texts on the command line",
                       o->texts.n);
    if (!code)
        code = open_all(&r);
    if (!code && o->npy)
        code = begin_npy(&r);
    if (!code)
        code = embed_all(&r);
    if (!code && r.rows)
        code = end_npy(&r);
    if (r.rows && r.rows != r.out.f)
        fclose(r.rows);
    if (o->npy && r.out.path)
        code = cli_out_close(&r.out, code);
    if (!code && cli_chatty(&o->model))
        fprintf(stderr, "%lld texts, %d dimensions\n", (long long)r.pooled.n_done, r.n_dims);
    pooled_close(&r.pooled);
    free(r.vector);
    free(r.prefix);
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
