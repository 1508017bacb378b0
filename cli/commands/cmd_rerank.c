/* cmd_rerank.c -- pith rerank: how well do texts answer a question? A model with a head that ranks
 * gives each a score; lines of JSON {"index", "score"}, as the texts came or, --top, the best
 * first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/pooled.h"

struct opts {
    struct model_opts model;
    const char *query;
    struct arg_texts texts;
    int64_t n_top;
    int jsonl;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "TEXT", ARG_FIELD(struct opts, texts, ARG_TEXTS),
     .otherwise = "the lines of stdin", .help = "the texts to rank"},
    {.name = "--query", .alias = "-q", .required = 1, .meta = "TEXT",
     ARG_FIELD(struct opts, query, ARG_TEXT), .help = "the question"},
    {.name = "--top", ARG_FIELD(struct opts, n_top, ARG_INT), .lo = 1, .hi = INT32_MAX,
     .otherwise = "all, as they came", .help = "the best ones, best first"},
    {.name = "--jsonl", ARG_FIELD(struct opts, jsonl, ARG_SWITCH),
     .help = "lines of stdin are JSON: a text, or an object with \"text\""},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 0,
     .hi = 1 << 24, .otherwise = "as the model was trained, at most 8192",
     .help = "most tokens of question and text; 0: as without it"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

struct ranked {
    int64_t i;
    double score;
};
struct run {
    const struct opts *o;
    struct pooled pooled;
    struct ranked *best; /* of --top: all so far */
    size_t n, cap;
};

static void put(const struct ranked *r)
{
    printf("{\"index\":%lld,\"score\":%.9g}\n", (long long)r->i, r->score);
}

static int on_row(void *ctx, int64_t i, const float *row)
{
    struct run *r = ctx;
    struct ranked one = {i, (double)row[0]};
    if (!isfinite(one.score))
        return cli_say(CLI_INPUT, "text %lld: the model's score is %g", (long long)i + 1,
                       one.score);
    if (!r->o->n_top) {
        put(&one);
        return CLI_OK;
    }
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        struct ranked *more = realloc(r->best, cap * sizeof *more);
        if (!more)
            return cli_no_memory();
        r->best = more;
        r->cap = cap;
    }
    r->best[r->n++] = one;
    return CLI_OK;
}

/* Equal ones as they came. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->i > y->i) - (x->i < y->i);
}

static int add_text(void *ctx, const char *text, size_t n)
{
    struct run *r = ctx;
    struct pith_error err = {0};
    const char *query = r->o->query;
    size_t cap = strlen(query) + n + 64; /* a byte is at most a token */
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids)
        return cli_no_memory();
    int64_t n_ids =
        pith_rank_tokenize(r->pooled.model, query, strlen(query), text, n, ids, cap, &err);
    if (n_ids > (int64_t)cap) { /* a long template */
        int32_t *more = realloc(ids, (size_t)n_ids * sizeof *more);
        ids = more ? more : ids;
        n_ids = more ? pith_rank_tokenize(r->pooled.model, query, strlen(query), text, n, ids,
                                          (size_t)n_ids, &err)
                     : -1;
        if (!more)
            err.code = PITH_NOMEM;
    }
    int code = n_ids < 0 ? cli_fail(&err) : pooled_add(&r->pooled, ids, n_ids);
    free(ids);
    return code;
}

static int rank_all(struct run *r)
{
    const struct opts *o = r->o;
    int code = pooled_open_model(&r->pooled);
    if (!code && !r->pooled.info.n_labels)
        code = cli_say(CLI_INPUT,
                       "%s cannot rank: its file has neither cls.weight nor cls.output.weight; "
                       "wanted a reranker",
                       o->model.path);
    if (!code)
        code = pooled_open(&r->pooled, PITH_POOL_RANK);
    for (int i = 0; i < o->texts.n && !code; i++)
        code = add_text(r, o->texts.v[i], strlen(o->texts.v[i]));
    if (!code && !o->texts.n)
        code = pooled_lines(&r->pooled, o->jsonl, add_text);
    return pooled_end(&r->pooled, code);
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct run r = {.o = o};
    r.pooled = (struct pooled){.opts = &o->model, .on_row = on_row, .ctx = &r};
    int code =
        o->jsonl && o->texts.n
            ? cli_say(CLI_USE, "--jsonl reads stdin, and there are %d texts on the command line",
                      o->texts.n)
            : rank_all(&r);
    if (!code && r.n) {
        qsort(r.best, r.n, sizeof *r.best, by_score);
        for (size_t i = 0; i < r.n && i < (size_t)o->n_top; i++)
            put(&r.best[i]);
    }
    pooled_close(&r.pooled);
    free(r.best);
    return cli_finish(code);
}

const struct command cmd_rerank = {
    .name = "rerank",
    .summary = "how well do texts answer a question?",
    .args =
        {
            .command = "pith rerank",
            .about = "Writes a score for each text, as lines of JSON. The model has to be one that "
                     "ranks; a higher score is a better answer.",
            .example = "  pith rerank model.gguf -q \"who sleeps?\" \"a cat\" \"a stone\"\n"
                       "  pith rerank model.gguf -q \"who sleeps?\" --top 3 < lines.txt\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
