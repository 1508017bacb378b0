/* cmd_tokenize.c -- pith tokenize: text to ids, once or line by line. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    const char *model, *text;
    int jsonl, bare, literal;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "MODEL", .required = 1, ARG_FIELD(struct opts, model, ARG_TEXT),
     .env = "PITH_MODEL",
     .help = "GGUF file; only its vocabulary is read"},
    {.name = "TEXT", ARG_FIELD(struct opts, text, ARG_TEXT),
     .otherwise = "all of stdin", .help = "the text"},
    {.name = "--bare", ARG_FIELD(struct opts, bare, ARG_SWITCH),
     .help = "do not add the tokens that the vocabulary puts around a text"},
    {.name = "--literal", ARG_FIELD(struct opts, literal, ARG_SWITCH),
     .help = "control tokens spelled out in the text are plain text"},
    {.name = "--jsonl", ARG_FIELD(struct opts, jsonl, ARG_SWITCH),
     .help = "answer each line of stdin, {\"text\" or \"b64\": bytes, \"special\": parse control "
             "tokens (false), \"add_special\": add BOS and EOS (false)}, with {\"ids\", "
             "\"detok\"}: the ids and what they are as text, control tokens included "
             "(\"detok_b64\" when that is not UTF-8), or with {\"error\"}"},
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- base64 (RFC 4648) */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* into: 4 * ceil(n / 3) bytes; returns that */
static size_t base64_encode(const char *from, size_t n, char *into)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++)
            v = v << 8 | (i + k < n ? (unsigned char)from[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            into[used++] = i + k <= n ? alphabet[v >> (18 - 6 * k) & 63] : '=';
    }
    return used;
}

/* into: n / 4 * 3 bytes. Returns how many there are, -1 when it is not base64. */
static int64_t base64_decode(const char *from, size_t n, char *into)
{
    int64_t used = 0;
    if (n % 4)
        return -1;
    for (size_t i = 0; i < n; i += 4) {
        size_t n_chars = i + 4 < n || from[i + 3] != '=' ? 4 : from[i + 2] != '=' ? 3 : 2;
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *at = k < n_chars ? memchr(alphabet, from[i + k], 64) : alphabet;
            if (!at)
                return -1;
            v = v << 6 | (uint32_t)(at - alphabet);
        }
        for (size_t k = 0; k + 1 < n_chars; k++)
            into[used++] = (char)(v >> (16 - 8 * k));
    }
    return used;
}

/* ---------------------------------------------------------------- one line */

/* Adds "detok", or "detok_b64" when the bytes are not UTF-8. 0: no memory. */
static int add_detok(json_t *answer, const pith_model *m, const int32_t *ids, size_t n)
{
    int64_t len = pith_detokenize(m, ids, n, PITH_RENDER_SPECIAL, NULL, 0, NULL);
    size_t cap = len > 0 ? (size_t)len : 0;
    char *buf = len < 0 ? NULL : malloc(cap + cap / 3 * 4 + 8);
    if (!buf)
        return 0;
    pith_detokenize(m, ids, n, PITH_RENDER_SPECIAL, buf, cap, NULL);
    json_t *text = json_stringn(buf, cap);
    const char *key = text ? "detok" : "detok_b64";
    if (!text)
        text = json_stringn(buf + cap, base64_encode(buf, cap, buf + cap));
    free(buf);
    return json_object_set_new(answer, key, text) == 0;
}

static json_t *answer_text(const pith_model *m, const char *text, size_t n, int flags)
{
    struct pith_error err = {0};
    int64_t n_ids;
    int32_t *ids = cli_tokenize(m, text, n, flags, &n_ids, &err);
    if (!ids)
        return cli_json_failure(err.msg);
    json_t *answer = json_object(), *list = json_array();
    int ok = 1;
    for (int64_t i = 0; i < n_ids && ok; i++)
        ok = json_array_append_new(list, json_integer(ids[i])) == 0;
    ok = json_object_set_new(answer, "ids", list) == 0 && ok;
    ok = ok && add_detok(answer, m, ids, (size_t)n_ids);
    free(ids);
    if (ok)
        return answer;
    json_decref(answer);
    return cli_json_failure("out of memory");
}

static json_t *answer_line(void *model, const char *line, size_t n)
{
    const pith_model *m = model;
    json_error_t why;
    int special = 0, add_special = 0;
    json_t *text = NULL, *b64 = NULL, *answer;
    json_t *q = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!q)
        return cli_json_failure(why.text);
    if (json_unpack_ex(q, &why, 0, "{s?o, s?o, s?b, s?b}", "text", &text, "b64", &b64, "special",
                       &special, "add_special", &add_special)) {
        answer = cli_json_failure(why.text);
    } else if (!json_is_string(text) == !json_is_string(b64)) {
        answer = cli_json_failure("wanted an object with one of \"text\" and \"b64\", a string");
    } else {
        json_t *from = text ? text : b64;
        const char *bytes = json_string_value(from);
        size_t n_bytes = json_string_length(from);
        char *decoded = text ? NULL : malloc(n_bytes + 1);
        int64_t len = text      ? (int64_t)n_bytes
                      : decoded ? base64_decode(bytes, n_bytes, decoded)
                                : -1;
        int flags = (special ? PITH_PARSE_SPECIAL : 0) | (add_special ? PITH_ADD_SPECIAL : 0);
        answer = len < 0 ? cli_json_failure("\"b64\" is not base64 (RFC 4648, padded)")
                         : answer_text(m, text ? bytes : decoded, (size_t)len, flags);
        free(decoded);
    }
    json_decref(q);
    return answer;
}

/* ---------------------------------------------------------------- the command */

static int answer_once(const struct opts *o, const pith_model *m)
{
    struct pith_error err = {0};
    char *from_stdin = NULL;
    size_t n = o->text ? strlen(o->text) : 0;
    int64_t n_ids;
    int flags = (o->bare ? 0 : PITH_ADD_SPECIAL) | (o->literal ? 0 : PITH_PARSE_SPECIAL);
    int code = o->text ? CLI_OK : cli_read_file("-", &from_stdin, &n);
    if (code)
        return code;
    int32_t *ids = cli_tokenize(m, o->text ? o->text : from_stdin, n, flags, &n_ids, &err);
    for (int64_t i = 0; ids && i < n_ids; i++)
        printf("%s%d", i ? "," : "", ids[i]);
    if (ids)
        putchar('\n');
    else
        code = cli_fail(&err);
    free(ids);
    free(from_stdin);
    return code;
}

static int run(void *opts)
{
    struct opts *o = opts;
    struct pith_error err = {0};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    if (o->jsonl && o->text)
        return cli_say(CLI_USE, "found TEXT and --jsonl; with --jsonl the texts come from stdin");
    if (o->jsonl && (o->bare || o->literal))
        return cli_say(CLI_USE, "found %s and --jsonl; there each line says \"%s\"",
                       o->bare ? "--bare" : "--literal", o->bare ? "add_special" : "special");
    int code = cli_model_path(&o->model);
    if (code)
        return code;
    p.vocab_only = 1;
    pith_model *m = pith_model_open(o->model, &p, &err);
    if (!m)
        return cli_fail_file(o->model, &err);
    code = o->jsonl ? cli_answer_lines(answer_line, m) : answer_once(o, m);
    pith_model_close(m);
    return code;
}

const struct command cmd_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids",
    .args =
        {
            .command = "pith tokenize",
            .about = "Prints the token ids of a text, separated by commas, as 'pith logits "
                     "--tokens' takes "
                     "them.",
            .example =
                "  pith tokenize model.gguf \"Once upon a time\"\n"
                "  echo '{\"text\": \"Hello\", \"add_special\": true}' | pith tokenize model.gguf "
                "--jsonl\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
