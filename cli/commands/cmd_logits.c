/* cmd_logits.c -- pith logits: what the model says at every position of given tokens, as raw
 * floats. It is how correctness is checked from outside.
 *
 *     causal model      [T, V]  float32, little endian: the logits behind each token
 *     fills in masks    [T, V]  the same, of all tokens in one step
 *     encoder, pooling  [T, E]  its output rows, or [1, E] pooled
 *     both              [T, V]  behind each token of the decoder, once the encoder has read its own
 *     --tap NAME        [T, n]  a value on its way instead, of each token (pith_tap)
 *
 * The file appears when it is complete, or not at all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    struct model_opts model;
    const char *tokens, *encoder, *out, *pooling, *tap;
    int64_t chunk;
};

/* clang-format off */
static const struct arg args[] = {
    ARGS_MODEL_FILE(struct opts, model),
    {.name = "--tokens", .required = 1, .meta = "1,2,3|@FILE",
     ARG_FIELD(struct opts, tokens, ARG_TEXT),
     .help = "the token ids, or a file with them as text, separated by commas or white space"},
    {.name = "--encoder-tokens", .meta = "1,2,3|@FILE",
     ARG_FIELD(struct opts, encoder, ARG_TEXT),
     .help = "of a model with an encoder and a decoder: what the encoder reads; --tokens are the "
             "decoder's, of which the first is its start token"},
    {.name = "--out", .alias = "-o", .required = 1, .meta = "FILE",
     ARG_FIELD(struct opts, out, ARG_TEXT), .help = "file to write; - is stdout"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 0,
     .hi = 1 << 24,
     .otherwise = "as many as tokens, at least what the model was trained for or 4096",
     .help = "positions of context; 0: as without it"},
    {.name = "--chunk", ARG_FIELD(struct opts, chunk, ARG_SIZE), .lo = 1, .hi = INT32_MAX,
     .otherwise = "512", .help = "most tokens in one step; an encoder takes all of them in one"},
    {.name = "--pooling", ARG_FIELD(struct opts, pooling, ARG_CHOICE),
     .choices = "mean|cls|last|rank|none", .otherwise = "logits; of an encoder none",
     .help = "write embeddings: one of all tokens or, with none, one of each; rank: scores"},
    {.name = "--tap", .meta = "NAME", ARG_FIELD(struct opts, tap, ARG_TEXT),
     .help = "write a value on its way instead: visit.N, the residual stream before layer N (their "
             "number: behind the last), end, what the output matrix is multiplied by; "
             "encoder.visit.N, encoder.end: of the encoder's tokens"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- tokens */

/* Whole numbers separated by commas and white space, the value of a flag. NULL: the message is out,
 * *code is set. */
static int32_t *parse_ids(const char *flag, const char *text, size_t n_bytes, int32_t *n, int *code)
{
    static const char between[] = ", \t\r\n";
    int32_t *ids = malloc((n_bytes / 2 + 1) * sizeof *ids);
    size_t count = 0;
    *code = ids ? CLI_OK : cli_no_memory();
    text += strspn(text, between);
    while (ids && *text) {
        char *end;
        errno = 0;
        long v = strtol(text, &end, 10);
        if (end == text || errno || v < 0 || v > INT32_MAX || (*end && !strchr(between, *end)) ||
            count == INT32_MAX) {
            *code =
                cli_say(CLI_INPUT, "%s: number %zu is \"%.*s\"; wanted a token id, 0 or more", flag,
                        count + 1, (int)strcspn(text, between) % 40, text);
            break;
        }
        ids[count++] = (int32_t)v;
        text = end + strspn(end, between);
    }
    if (!*code && count == 0)
        *code = cli_say(CLI_INPUT, "%s: found no token; wanted at least one", flag);
    if (*code) {
        free(ids);
        return NULL;
    }
    *n = (int32_t)count;
    return ids;
}

static int32_t *read_ids(const char *flag, const char *from, int32_t *n, int *code)
{
    char *text = NULL;
    size_t n_bytes;
    if (from[0] != '@') {
        int32_t *ids = parse_ids(flag, from, strlen(from), n, code);
        if (*code == CLI_INPUT)
            *code = CLI_USE; /* it was on the command line */
        return ids;
    }
    *code = cli_read_file(from + 1, &text, &n_bytes);
    int32_t *ids = *code ? NULL : parse_ids(flag, text, n_bytes, n, code);
    free(text);
    return ids;
}

/* ---------------------------------------------------------------- the command */

static pith_pooling pooling_of(const char *name)
{
    switch (name ? name[0] : 0) {
    case 'm':
        return PITH_POOL_MEAN;
    case 'c':
        return PITH_POOL_CLS;
    case 'l':
        return PITH_POOL_LAST;
    case 'r':
        return PITH_POOL_RANK;
    }
    return PITH_POOL_NONE;
}

static int write_row(const float *row, int64_t width, struct cli_out *w)
{
    if (fwrite(row, sizeof *row, (size_t)width, w->f) != (size_t)width)
        return cli_say(CLI_SYSTEM, "%s: cannot write: %s", w->path, strerror(errno));
    return CLI_OK;
}

/* Tap 0 of n rows of the last step, or of what the encoder has read. */
static int write_taps(pith_session *s, int32_t n, struct cli_out *w)
{
    struct pith_error err = {0};
    int code = CLI_OK;
    for (int32_t i = 0; i < n && !code; i++) {
        const float *row = pith_tap(s, 0, i, &err);
        code = row ? write_row(row, pith_tap_width(s, 0), w) : cli_fail(&err);
    }
    return code;
}

/* One step; writes a row of `width` floats for each of its outputs, or of a tap (width 0). */
static int write_step(pith_session *s, const struct pith_batch *batch, int embeddings,
                      int32_t width, struct cli_out *w)
{
    struct pith_error err = {0};
    if (pith_step(s, batch, &err) != PITH_OK)
        return cli_fail(&err);
    if (!width)
        return write_taps(s, batch->n, w);
    int32_t n = pith_n_outputs(s);
    if (!embeddings && n != batch->n)
        return cli_say(CLI_SYSTEM, "the step gave %d rows of logits, wanted %d", n, batch->n);
    for (int32_t i = 0; i < n; i++) {
        const float *row = embeddings ? pith_embedding(s, i) : pith_logits(s, i);
        if (!row)
            return cli_say(CLI_SYSTEM, "the step gave no output row %d of %d", i, n);
        int code = write_row(row, width, w);
        if (code)
            return code;
    }
    return CLI_OK;
}

/* All tokens in steps of at most `chunk`. */
static int write_rows(pith_session *s, const int32_t *ids, int32_t n, int32_t chunk, int embeddings,
                      int32_t width, struct cli_out *w)
{
    int code = CLI_OK;
    uint8_t *want = malloc((size_t)chunk);
    if (!want)
        return cli_no_memory();
    memset(want, 1, (size_t)chunk);
    for (int32_t at = 0; at < n && !code; at += chunk) {
        struct pith_batch batch = PITH_BATCH_INIT;
        batch.n = n - at < chunk ? n - at : chunk;
        batch.token = ids + at;
        batch.want = width ? want : NULL;
        code = write_step(s, &batch, embeddings, width, w);
    }
    free(want);
    return code;
}

/* What the encoder reads, if there is one, is in its flag. */
static int check_encoder(const struct opts *o, const struct pith_model_info *info)
{
    if (info->encoder && !o->encoder)
        return cli_say(CLI_USE,
                       "--encoder-tokens: %s has an encoder, whose text its decoder looks at; give "
                       "its tokens",
                       info->arch);
    if (!info->encoder && o->encoder)
        return cli_say(CLI_USE,
                       "--encoder-tokens: %s has no encoder beside a decoder; leave it out",
                       info->arch);
    return CLI_OK;
}

/* Opens the model; one that must see all n tokens, or all n_read ones of its encoder, in one step
 * is opened with room for them. */
static pith_model *open_for(const struct opts *o, int32_t n, int32_t n_read,
                            struct pith_model_info *info, int *embeddings, int *code)
{
    int32_t n_batch = o->chunk ? (int32_t)o->chunk : 512;
    int whole = 0;
    n_batch = n_read > n_batch ? n_read : n_batch;
    for (;;) {
        struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
        struct pith_error err = {0};
        params.n_batch = n_batch;
        params.n_outputs = whole ? n_batch : 0;
        pith_model *m = cli_model_open(&o->model, &params, code);
        if (!m)
            return NULL;
        if (pith_model_get_info(m, info, &err) != PITH_OK) {
            *code = cli_fail(&err);
            pith_model_close(m);
            return NULL;
        }
        if ((*code = check_encoder(o, info)) != CLI_OK) {
            pith_model_close(m);
            return NULL;
        }
        int was_whole = whole;
        if (info->logits && o->pooling && pooling_of(o->pooling) == PITH_POOL_NONE) {
            *code = cli_say(CLI_USE,
                            "--pooling none: %s gives logits of each token, not embeddings; leave "
                            "it out, or give mean, cls or last",
                            info->arch);
            pith_model_close(m);
            return NULL;
        }
        *embeddings = !info->logits || o->pooling;
        whole = !info->causal || *embeddings;
        if (!whole || (n_batch >= n && !o->chunk && (*embeddings || was_whole || n <= 64)))
            return m;
        pith_model_close(m);
        if (o->chunk) {
            *code = cli_say(CLI_USE,
                            "--chunk: this model takes all %d tokens in one step; leave it out", n);
            return NULL;
        }
        n_batch = n > n_batch ? n : n_batch;
    }
}

static int32_t width_of(const struct opts *o, const struct pith_model_info *info, int embeddings)
{
    return o->tap                                     ? 0
           : !embeddings                              ? info->n_vocab
           : pooling_of(o->pooling) == PITH_POOL_RANK ? info->n_labels
                                                      : info->n_embd_out;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    int code, embeddings = 0;
    int32_t n = 0, n_read = 0, *read = NULL;
    struct cli_out out = {0};
    struct pith_model_info info = {.size = sizeof info};
    struct pith_session_params params = PITH_SESSION_PARAMS_INIT;
    if (o->tap && o->pooling)
        return cli_say(CLI_USE, "found --tap, which writes a row of each token, and --pooling; "
                       "wanted one of them");
    if (o->encoder && !strcmp(o->tokens, "@-") && !strcmp(o->encoder, "@-"))
        return cli_say(CLI_USE, "found @- for both --tokens and --encoder-tokens; wanted another "
                       "place for one of them");
    code = cli_out_check(o->out);
    int32_t *ids = code ? NULL : read_ids("--tokens", o->tokens, &n, &code);
    if (ids && o->encoder)
        read = read_ids("--encoder-tokens", o->encoder, &n_read, &code);
    pith_session *s = NULL;
    pith_model *m = code ? NULL : open_for(o, n, n_read, &info, &embeddings, &code);
    if (m) {
        int32_t n_ctx = info.n_ctx_train > 0 && info.n_ctx_train < 4096 ? info.n_ctx_train : 4096;
        n_ctx = n > n_ctx ? n : n_ctx;
        n_ctx = n_read > n_ctx ? n_read : n_ctx;
        n_ctx = o->model.n_ctx ? (int32_t)o->model.n_ctx : n_ctx;
        const char *const taps[] = {o->tap, NULL};
        params.pooling = pooling_of(o->pooling);
        params.taps = taps;
        s = cli_session_open(m, &o->model, n_ctx, &params, &code);
    }
    if (s) {
        int32_t chunk = o->chunk ? (int32_t)o->chunk : 512, most = pith_max_outputs(s);
        if (embeddings || !info.causal)
            chunk = n;
        else if (chunk > most && most > 0)
            chunk = most;
        struct pith_error err = {0};
        interrupt_watch(s);
        if (read && pith_encode(s, 0, read, (size_t)n_read, &err) != PITH_OK)
            code = cli_fail(&err);
        if (!code)
            code = cli_out_open(&out, o->out);
        if (!code && o->tap && !strncmp(o->tap, "encoder.", 8))
            code = write_taps(s, n_read, &out);
        else if (!code)
            code = write_rows(s, ids, n, chunk, embeddings, width_of(o, &info, embeddings), &out);
        code = cli_out_close(&out, code);
        interrupt_watch(NULL);
        if (!code && cli_chatty(&o->model))
            fprintf(stderr, "%s: %d tokens\n", o->out, n);
    }
    pith_session_close(s);
    pith_model_close(m);
    free(ids);
    free(read);
    return code;
}

const struct command cmd_logits = {
    .name = "logits",
    .summary = "write the logits of given tokens to a file",
    .args =
        {
            .command = "pith logits",
            .about = "Runs the tokens and writes float32 little endian: [T, V], the logits behind "
                     "each of T "
                     "tokens; for an encoder or with --pooling [T, E], or [1, E] pooled; with "
                     "--tap [T, n]. The file appears when it is complete.",
            .example =
                "  pith logits model.gguf --tokens 2,9259,1902 --out logits.f32\n"
                "  pith logits model.gguf --tokens @ids.txt --out logits.f32 -c 1K --chunk 64\n"
                "  pith logits model.gguf --tokens @ids.txt --tap visit.12 --out hidden.f32\n"
                "  pith logits t5.gguf --encoder-tokens 571,13,1 --tokens 0,32099 -o logits.f32\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
