/* pooled.c -- see pooled.h. */
#include "cli/commands/pooled.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXTS_AT_ONCE = 32, STEP_MOST = 8192 };

int pooled_open_model(struct pooled *p)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    int code = CLI_OK;
    mp.n_batch = p->opts->n_ctx ? (int32_t)p->opts->n_ctx : STEP_MOST;
    p->model = cli_model_open(p->opts, &mp, &code);
    if (!p->model)
        return code;
    p->info.size = sizeof p->info;
    if (pith_model_get_info(p->model, &p->info, &err) != PITH_OK)
        return cli_fail(&err);
    p->n_most =
        p->info.n_ctx_train < mp.n_batch && !p->opts->n_ctx ? p->info.n_ctx_train : mp.n_batch;
    return CLI_OK;
}

int pooled_open(struct pooled *p, pith_pooling pooling)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int code = CLI_OK;
    sp.pooling = pooling;
    sp.n_seq = TEXTS_AT_ONCE;
    sp.n_tokens = p->n_most;
    p->session = cli_session_open(p->model, p->opts, p->n_most, &sp, &code);
    if (!p->session)
        return code;
    p->tokens = malloc((size_t)p->n_most * sizeof *p->tokens);
    p->seq = malloc((size_t)p->n_most * sizeof *p->seq);
    interrupt_watch(p->session);
    return p->tokens && p->seq ? CLI_OK : cli_no_memory();
}

void pooled_close(struct pooled *p)
{
    interrupt_watch(NULL);
    pith_session_close(p->session);
    pith_model_close(p->model);
    free(p->tokens);
    free(p->seq);
}

int pooled_flush(struct pooled *p)
{
    struct pith_error err = {0};
    struct pith_batch batch = PITH_BATCH_INIT;
    int code = CLI_OK;
    if (!p->n_seq)
        return CLI_OK;
    batch.n = p->n;
    batch.token = p->tokens;
    batch.seq = p->seq;
    if (pith_step(p->session, &batch, &err) != PITH_OK)
        return cli_fail(&err);
    for (int32_t i = 0; i < p->n_seq && !code; i++) {
        const float *row = pith_embedding(p->session, i);
        code = row ? p->on_row(p->ctx, p->n_done++, row)
                   : cli_say(CLI_SYSTEM, "the step gave no row %d of %d", i, p->n_seq);
        if (!code && pith_truncate(p->session, i, 0, &err) != PITH_OK)
            code = cli_fail(&err);
    }
    p->n = p->n_seq = 0;
    return code;
}

int pooled_end(struct pooled *p, int code)
{
    int flushed = !code || code == CLI_INPUT ? pooled_flush(p) : CLI_OK;
    return code ? code : flushed;
}

int pooled_add(struct pooled *p, const int32_t *ids, int64_t n_ids)
{
    int code = CLI_OK;
    p->n_texts++;
    if (n_ids == 0)
        return cli_say(CLI_INPUT, "text %lld is empty; wanted at least one token",
                       (long long)p->n_texts);
    if (n_ids > p->n_most)
        return cli_say(CLI_INPUT,
                       "text %lld is too long: n_prompt = %lld tokens, n_ctx = %d, which is n_over "
                       "= %lld too many",
                       (long long)p->n_texts, (long long)n_ids, p->n_most,
                       (long long)(n_ids - p->n_most));
    if (p->n_seq == TEXTS_AT_ONCE || p->n + n_ids > p->n_most)
        code = pooled_flush(p);
    for (int64_t i = 0; i < n_ids && !code; i++, p->n++) {
        p->tokens[p->n] = ids[i];
        p->seq[p->n] = p->n_seq;
    }
    p->n_seq += !code;
    return code;
}

static int add_line(struct pooled *p, const char *line, size_t n, long long number,
                    int (*add)(void *ctx, const char *text, size_t n))
{
    json_error_t why;
    json_t *j = json_loadb(line, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    const json_t *text = json_is_object(j) ? json_object_get(j, "text") : j;
    int code = !j ? cli_say(CLI_INPUT, "line %lld is not JSON: %s", number, why.text)
               : !json_is_string(text)
                   ? cli_say(CLI_INPUT,
                             "line %lld has no text; wanted a JSON string, or {\"text\": a string}",
                             number)
                   : add(p->ctx, json_string_value(text), json_string_length(text));
    json_decref(j);
    return code;
}

int pooled_lines(struct pooled *p, int jsonl, int (*add)(void *ctx, const char *text, size_t n))
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    int code = CLI_OK, at_once = isatty(STDIN_FILENO);
    long long number = 0;
    errno = 0;
    while (!code && (n = getline(&line, &cap, stdin)) > 0) {
        number++;
        n -= line[n - 1] == '\n';
        n -= n && line[n - 1] == '\r';
        if (jsonl && strspn(line, " \t") < (size_t)n)
            code = add_line(p, line, (size_t)n, number, add);
        else if (!jsonl && (n || !at_once))
            code = add(p->ctx, line, (size_t)n);
        if (!code && at_once)
            code = pooled_flush(p);
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
