/* api_tokens.c -- text to tokens, tokens to text, conversations to the text that the model gets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/hosted.h"
#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/request/tools.h"

/* One token's bytes as they are written behind others: a space at its beginning belongs to it. */
static size_t piece_bytes(const struct hosted *m, int32_t id, char *buf, size_t cap)
{
    int32_t two[2] = {id, id};
    char both[1024];
    int64_t n = pith_detokenize(m->model, two, 1, PITH_RENDER_SPECIAL, buf, cap, NULL),
            n_both =
                pith_detokenize(m->model, two, 2, PITH_RENDER_SPECIAL, both, sizeof both, NULL);
    if (n >= 0 && n_both > 2 * n && n_both - n <= (int64_t)cap &&
        n_both <= (int64_t)sizeof both) { /* the first of a text had lost its space */
        memcpy(buf, both + n, (size_t)(n_both - n));
        n = n_both - n;
    }
    return n < 0 ? 0 : n < (int64_t)cap ? (size_t)n : cap;
}

json_t *token_piece(const struct hosted *m, int32_t id)
{
    char buf[512];
    return json_text(buf, piece_bytes(m, id, buf, sizeof buf));
}

/* As text, or as a list of its bytes where they are part of a character. */
static json_t *piece_or_bytes(const struct hosted *m, int32_t id)
{
    char buf[512];
    size_t n = piece_bytes(m, id, buf, sizeof buf);
    json_t *j = json_stringn(buf, n);
    if (j || !n)
        return j;
    j = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(j, json_integer((unsigned char)buf[i]));
    return j;
}

enum {
    PIECES_MAX = 200000,
    SMALL = 4096, /* tokens of an answer that is not worth to be poured */
};

/* A list of tokens, or a text, on its way out: written as it is taken. */
struct pouring {
    int32_t *ids;
    char *text;
    size_t n, at;
    int part; /* 0: what comes before; then the values, of a text twice */
};

static void pouring_free(void *ctx)
{
    struct pouring *p = ctx;
    free(p->ids);
    free(p->text);
    free(p);
}

static size_t pour_ids(void *ctx, char *buf, size_t max)
{
    struct pouring *p = ctx;
    size_t n = 0;
    if (p->part == 0)
        n += (size_t)sprintf(buf, "{\"tokens\":[");
    p->part += p->part == 0;
    for (; p->part == 1 && p->at < p->n && n + 16 < max; p->at++)
        n += (size_t)sprintf(buf + n, p->at ? ",%d" : "%d", p->ids[p->at]);
    if (p->part == 1 && p->at == p->n && n + 64 < max) {
        n += (size_t)sprintf(buf + n, "],\"count\":%zu}\n", p->n);
        p->part = 2;
    }
    return n;
}

/* One byte of a JSON string; returns how many it has become. */
static size_t put_escaped(char *to, char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", as[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        to[0] = '\\';
        to[1] = as[at - from];
        return 2;
    }
    if ((unsigned char)c < 0x20)
        return (size_t)sprintf(to, "\\u%04X", (unsigned)c);
    *to = c;
    return 1;
}

/* The text as `content`, and by the name that vLLM has for it. */
static size_t pour_text(void *ctx, char *buf, size_t max)
{
    static const char *const before[] = {"{\"content\":\"", "\",\"prompt\":\"", "\"}\n"};
    struct pouring *p = ctx;
    size_t n = 0;
    while (p->part < 6 && n + 32 < max) {
        if (p->part % 2 == 0) {
            n += (size_t)sprintf(buf + n, "%s", before[p->part++ / 2]);
            p->part += p->part == 5;
            p->at = 0;
            continue;
        }
        for (; p->at < p->n && n + 32 < max; p->at++)
            n += put_escaped(buf + n, p->text[p->at]);
        p->part += p->at == p->n;
    }
    return n;
}

/* Takes ids and text. */
static json_t *pour(struct exchange *x, int32_t *ids, char *text, size_t n, struct fault *f)
{
    struct pouring *p = malloc(sizeof *p);
    if (!p) {
        free(ids);
        free(text);
        fault_memory(f);
        return NULL;
    }
    *p = (struct pouring){.ids = ids, .text = text, .n = n};
    exchange_pour(x, "application/json", text ? pour_text : pour_ids, pouring_free, p,
                  (int64_t)(n * (text ? 1 : sizeof *ids)));
    return json_true(); /* request_answer: it is answered */
}

/* The prompt of a conversation, with the text that its answer begins with. NULL: *f. */
static pith_prompt *conversation(struct hosted *m, struct fields *b, int *flags, struct fault *f)
{
    json_t *lead = NULL;
    pith_prompt *p = tools_functions(b, f) && answer_continue(b, &lead, f)
                         ? request_prompt(m, b, flags, f)
                         : NULL;
    if (p && pith_prompt_put(p, PITH_FROM_VALUE,
                             json_string_length(lead) ? json_string_value(lead) : "",
                             json_string_length(lead), NULL)) {
        fault_memory(f);
        pith_prompt_close(p);
        p = NULL;
    }
    json_decref(lead);
    return p;
}

/* Of a text, or of a conversation. */
static int32_t *ids_of(struct hosted *m, struct fields *b, int64_t *n, struct fault *f)
{
    const json_t *text = b->v[F_content] ? b->v[F_content] : b->v[F_tokenize_prompt];
    int special = field_bool(b, F_add_special) || field_bool(b, F_add_special_tokens),
        flags = (special ? PITH_ADD_SPECIAL : 0) |
                (field_bool(b, F_parse_special) ? PITH_PARSE_SPECIAL : 0);
    if (!text == !b->v[F_messages]) {
        fault_set(f, 400, text ? "invalid_value" : "missing_field", "content",
                  text ? "content and messages; wanted one of them" : "content is missing");
        return NULL;
    }
    if (text)
        return request_tokenize(m, json_string_value(text), json_string_length(text), flags, n,
                                "content", f);
    pith_prompt *p = conversation(m, b, &flags, f);
    int32_t *ids = p ? request_prompt_ids(m, p, flags | (special ? PITH_ADD_SPECIAL : 0), n, f)
                     : NULL;
    pith_prompt_close(p);
    return ids;
}

static json_t *tokenize(struct hosted *m, struct fields *b, struct fault *f)
{
    int64_t n = 0;
    int32_t *ids = ids_of(m, b, &n, f);
    int pieces = field_bool(b, F_with_pieces), texts = field_bool(b, F_return_token_strs);
    if (ids && (pieces || texts) && n > PIECES_MAX) {
        fault_set(f, 400, "out_of_range", "content",
                  "content has %lld tokens; at most %d are told with their pieces", (long long)n,
                  PIECES_MAX);
        free(ids);
        return NULL;
    }
    if (ids && !pieces && !texts && n > SMALL)
        return pour(b->x, ids, NULL, (size_t)n, f);
    json_t *list = ids ? json_array() : NULL, *strs = ids && texts ? json_array() : NULL;
    for (int64_t i = 0; list && i < n; i++) {
        json_array_append_new(list, pieces ? json_pack("{s:i, s:o}", "id", ids[i], "piece",
                                                       piece_or_bytes(m, ids[i]))
                                           : json_integer(ids[i]));
        if (strs)
            json_array_append_new(strs, token_piece(m, ids[i]));
    }
    free(ids);
    return list ? json_pack("{s:o, s:I, s:i, s:o*}", "tokens", list, "count", (json_int_t)n,
                            "max_model_len", hosted_n_ctx(m), "token_strs", strs)
                : NULL;
}

/* The bytes of tokens as valid UTF-8 (malloc): far more than the tokens were, so they are in the
 * account before there are any (*held). NULL with *f. */
static char *text_of(struct hosted *m, struct tenant *t, const int32_t *ids, size_t n_ids,
                     size_t *n, int64_t *held, struct fault *f)
{
    enum { REPLACED = 3 }; /* a byte that is none of a character becomes so many */
    int64_t len = pith_detokenize(m->model, ids, n_ids, PITH_RENDER_SPECIAL, NULL, 0, NULL);
    int64_t most = len > 0 ? (1 + REPLACED) * len : 0;
    if (!account_take(m->server, t, most, 0, f))
        return NULL;
    *held = most;
    char *raw = len >= 0 ? malloc((size_t)len + 1) : NULL, *text = raw;
    if (!raw)
        return fault_memory(f), NULL;
    pith_detokenize(m->model, ids, n_ids, PITH_RENDER_SPECIAL, raw, (size_t)len, NULL);
    *n = (size_t)pith_utf8(raw, (size_t)len, NULL, 0);
    if (*n != (size_t)len) { /* what is valid is as long as it was */
        text = malloc(*n + 1);
        if (text)
            pith_utf8(raw, (size_t)len, text, *n);
        free(raw);
    } else {
        pith_utf8(raw, (size_t)len, raw, *n);
    }
    if (!text)
        fault_memory(f);
    return text;
}

static json_t *detokenize(struct hosted *m, struct fields *b, struct fault *f)
{
    int64_t n_ids = 0, held = 0;
    size_t n = 0;
    struct tenant *t = exchange_tenant(b->x);
    if (!b->v[F_tokens]) {
        fault_set(f, 400, "missing_field", "tokens", "tokens is missing");
        return NULL;
    }
    int32_t *ids = request_ids(m, b->v[F_tokens], &n_ids, "tokens", f);
    char *text = ids ? text_of(m, t, ids, (size_t)n_ids, &n, &held, f) : NULL;
    free(ids);
    account_add(m->server, t, -held);
    if (text && n_ids > SMALL)
        return pour(b->x, NULL, text, n, f);
    json_t *shown = text ? json_stringn(text, n) : NULL;
    free(text);
    return shown ? json_pack("{s:O, s:o}", "content", shown, "prompt", shown)
                 : NULL; /* prompt: vLLM's name for it */
}

static json_t *apply_template(struct hosted *m, struct fields *b, struct fault *f)
{
    size_t n = 0;
    int flags;
    pith_prompt *p = conversation(m, b, &flags, f);
    const char *text = pith_prompt_text(p, &n);
    json_t *j = p ? json_pack("{s:o}", "prompt", json_text(text, n)) : NULL;
    pith_prompt_close(p);
    return j;
}

void api_tokenize(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_TOKENIZE, tokenize);
}

void api_detokenize(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_DETOKENIZE, detokenize);
}

void api_apply_template(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_TEMPLATE, apply_template);
}
