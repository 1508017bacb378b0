/* cmd_serve.c -- pith serve: the flags of the server; opens its model and waits for the end. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "server/server.h"
#include "cli/cli.h"
#include "cli/models/offers.h"

struct opts {
    struct model_opts model;
    struct arg_texts models;
    const char *slot_folder, *folder, *host, *unix_path, *name, *template, *key_file, *cert, *key;
    struct arg_texts keys, admin_keys, hosts, origins, aliases, defaults;
    int64_t memory, models_max, port, cache_tokens, store, parallel, queue, connections, unknown,
        body;
    int64_t max_memory, requests_memory, request_memory;
    double request_seconds;
    int64_t grammar_bytes, item_bytes, mask_steps, shift_contexts;
    double models_idle, gap, read_timeout, request_timeout, shutdown_timeout;
    int schema_order, no_store_dir, share_prefixes, lazy, embeddings, quiet, no_web, open_metrics,
        strict_fields, strict_model, no_slots;
    struct arg_texts lora;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "MODEL", ARG_FIELD(struct opts, models, ARG_TEXTS),
     .env = "PITH_MODEL",
     .help = "GGUF files; requests without a model's name mean the first, which is loaded at "
         "start"},
    {.name = "--models", .meta = "DIR", ARG_FIELD(struct opts, folder, ARG_TEXT),
     .env = "PITH_SERVE_MODELS", /* PITH_MODELS is where pith pull puts them */
     .help = "offer every GGUF file of this folder, too; loaded when it is asked for"},
    {.name = "--models-memory", .meta = "BYTES", ARG_FIELD(struct opts, memory, ARG_SIZE), .lo = 1,
     .otherwise = "with several models 3/4 of the machine's",
     .help = "weights and full caches of all that are loaded; those unused for longest go first"},
    {.name = "--models-max", ARG_FIELD(struct opts, models_max, ARG_INT), .lo = 1, .hi = 100000,
     .otherwise = "as many as fit", .help = "most models that are loaded at a time"},
    {.name = "--models-idle", .meta = "SECONDS", ARG_FIELD(struct opts, models_idle, ARG_REAL),
     .lo = 0, .hi = 1e6, .dflt = "0",
     .help = "unload a model that nobody has used for this time; 0: never"},
    {.name = "--lazy", ARG_FIELD(struct opts, lazy, ARG_SWITCH),
     .help = "load the first model, too, only when it is asked for"},
    {.name = "--host", .meta = "ADDRESS", ARG_FIELD(struct opts, host, ARG_TEXT),
     .dflt = "127.0.0.1", .help = "address to listen on; one that others can reach needs a key"},
    {.name = "--port", ARG_FIELD(struct opts, port, ARG_INT), .lo = 0, .hi = 65535,
     .dflt = "8080", .help = "port; 0: one that is free, which is printed"},
    {.name = "--unix", .meta = "PATH", ARG_FIELD(struct opts, unix_path, ARG_TEXT),
     .otherwise = "off", .help = "listen on a socket in the file system instead, for this user "
         "alone"},
    {.name = "--api-key", .meta = "[NAME:]KEY[,...]", ARG_FIELD(struct opts, keys, ARG_TEXTS),
     .secret = 1, .otherwise = "everybody on this machine may use it",
     .help = "a key of 8 characters or more that requests have to send; several share the machine "
             "fairly, and the prefix cache"},
    {.name = "--api-key-file", .meta = "FILE", ARG_FIELD(struct opts, key_file, ARG_TEXT),
     .otherwise = "none", .help = "more keys, one [NAME:]KEY a line"},
    {.name = "--admin-key", .meta = "[NAME:]KEY", ARG_FIELD(struct opts, admin_keys, ARG_TEXTS),
     .secret = 1, .otherwise = "nobody may",
     .help = "a key that may load and unload models and end the server, too; so may an --api-key "
         "named admin"},
    {.name = "--allow-host", .meta = "NAME", ARG_FIELD(struct opts, hosts, ARG_TEXTS),
     .help = "a name of this machine that the Host header may have, besides localhost; not checked "
             "where a key is needed"},
    {.name = "--allow-origin", .meta = "URL", ARG_FIELD(struct opts, origins, ARG_TEXTS),
     .help = "a web page elsewhere that may use it, as https://example.org; *: any; pages of this "
             "machine and windows of its programs (app://, tauri://, vscode-webview://) need none "
             "where only it can reach the server"},
    {.name = "--tls-cert", .meta = "FILE", ARG_FIELD(struct opts, cert, ARG_TEXT),
     .otherwise = "no TLS", .help = "certificate chain, PEM"},
    {.name = "--tls-key", .meta = "FILE", ARG_FIELD(struct opts, key, ARG_TEXT),
     .otherwise = "no TLS", .help = "its private key, PEM"},
    {.name = "--name", .meta = "NAME", ARG_FIELD(struct opts, name, ARG_TEXT),
     .otherwise = "its file's, without .gguf", .help = "name of the model in requests and answers"},
    {.name = "--alias", .meta = "[MODEL=]NAME", ARG_FIELD(struct opts, aliases, ARG_TEXTS),
     .help = "a further name that requests may say for the model, of several for the first"},
    {.name = "--slot-save-path", .meta = "DIR", ARG_FIELD(struct opts, slot_folder, ARG_TEXT),
     .otherwise = "none is saved", .help = "folder of what POST /slots/N?action=save writes and "
         "restore reads"},
    {.name = "--no-slots", ARG_FIELD(struct opts, no_slots, ARG_SWITCH),
     .help = "GET /slots tells nothing of what runs"},
    {.name = "--default", .meta = "FIELD=VALUE", ARG_FIELD(struct opts, defaults, ARG_TEXTS),
     .help = "what a field of requests is where they do not say, as temperature=0.7; VALUE is "
         "JSON, else a text"},
    {.name = "--strict-model", ARG_FIELD(struct opts, strict_model, ARG_SWITCH),
     .help = "refuse other names, too, where there is one model; else it makes the text whatever "
         "the name"},
    {.name = "--strict-fields", ARG_FIELD(struct opts, strict_fields, ARG_SWITCH),
     .help = "refuse fields of requests that are not known; else they are left out and named in a "
         "header"},
    {.name = "--chat-template", .meta = "FILE|NAME", ARG_FIELD(struct opts, template, ARG_TEXT),
     .otherwise = "the model's own", .help = cli_form_help},
    {.name = "--embeddings", ARG_FIELD(struct opts, embeddings, ARG_SWITCH),
     .help = "serve /v1/embeddings with a model that makes text or ranks, too"},
    {.name = "--ctx", .alias = "-c", ARG_FIELD(struct opts, model.n_ctx, ARG_SIZE), .lo = 0,
     .hi = 1 << 24, .otherwise = "what the model was trained for, or as much as fits into half "
         "of the memory left",
     .help = "most tokens of one conversation; 0: as without it"},
    {.name = "--cache-tokens", .meta = "N", ARG_FIELD(struct opts, cache_tokens, ARG_SIZE),
     .lo = 1, .otherwise = "as many as fit into half of the memory left",
         .help = "tokens of all conversations together"},
    {.name = "--prefix-store", .meta = "BYTES", ARG_FIELD(struct opts, store, ARG_SIZE), .lo = 0,
     .dflt = "1G", .help = "memory for beginnings of conversations that may come again; 1G is an "
         "eighth of what is left where that is less"},
    ARGS_LORA(struct opts, lora),
    {.name = "--store-dir", .meta = "DIR", ARG_FIELD(struct opts, model.store_dir, ARG_TEXT),
     .otherwise = "prefixes/ in $PITH_CACHE or ~/.cache/pith",
     .help = "keep them in this folder, too, so that a later start need not compute them again; "
             "made if it is not there, for this user alone"},
    {.name = "--no-store-dir", ARG_FIELD(struct opts, no_store_dir, ARG_SWITCH),
     .help = "keep them in memory alone"},
    {.name = "--store-limit", .meta = "BYTES", ARG_FIELD(struct opts, model.store_limit, ARG_SIZE),
     .lo = 1, .otherwise = "4G, and at most a twentieth of what is free; of a --store-dir 32G",
     .help = "bytes in that folder, of all servers that use it; what was unused for longest goes "
             "first"},
    {.name = "--share-prefixes", ARG_FIELD(struct opts, share_prefixes, ARG_SWITCH),
     .help = "keys find what others have had computed, so whoever has one can tell by the time of "
             "an answer that somebody has sent the same beginning"},
    {.name = "--parallel", .alias = "-np", ARG_FIELD(struct opts, parallel, ARG_INT), .lo = 1,
     .hi = 256, .dflt = "32", .help = "most conversations that advance in one step"},
    {.name = "--queue", ARG_FIELD(struct opts, queue, ARG_INT), .lo = 1, .hi = 1000000,
     .dflt = "256", .help = "most requests that wait; more are asked to try again, but a key may "
         "always have its part of them waiting"},
    {.name = "--max-memory", .meta = "BYTES", ARG_FIELD(struct opts, max_memory, ARG_SIZE), .lo = 1,
     .otherwise = "what the models need at most and an eighth, --requests-memory and 256M",
     .help = "most memory of the whole server; models get what --requests-memory leaves, and where "
             "the process has it all requests are refused"},
    {.name = "--requests-memory", .meta = "BYTES",
     ARG_FIELD(struct opts, requests_memory, ARG_SIZE), .lo = 1 << 20, .dflt = "2G",
     .help = "most memory of all requests together: bodies, grammars, samplers, answers; one key "
         "of several has at most half of it"},
    {.name = "--request-memory", .meta = "BYTES", ARG_FIELD(struct opts, request_memory, ARG_SIZE),
     .lo = 1 << 20, .dflt = "512M",
     .help = "most memory of one request beside its body; what needs more is refused"},
    {.name = "--request-seconds", .meta = "SECONDS",
     ARG_FIELD(struct opts, request_seconds, ARG_REAL), .lo = 0, .hi = 1e6, .dflt = "10",
     .help = "most processor time for reading a request: templates, schemas, grammars; 0: any"},
    {.name = "--shift-contexts", .meta = "N", ARG_FIELD(struct opts, shift_contexts, ARG_INT),
     .lo = 1, .hi = 1000000, .dflt = "10",
     .help = "most tokens of a choice whose context shifts, in sizes of the context; there it ends "
             "as by max_tokens"},
    {.name = "--gap", .meta = "SECONDS", ARG_FIELD(struct opts, gap, ARG_REAL), .lo = 0.001,
     .hi = 60, .dflt = "0.1",
     .help = "the time between two tokens to aim for while the prompts of others are computed; "
             "steps of a lone prompt keep to it, too, for whoever comes next"},
    {.name = "--grammar-cache", .meta = "BYTES", ARG_FIELD(struct opts, grammar_bytes, ARG_SIZE),
     .lo = 0,
     .dflt = "64M", .help = "compiled grammars and schemas that are kept for requests that bring "
         "them again; 0: none"},
    {.name = "--item-cache", .meta = "BYTES", ARG_FIELD(struct opts, item_bytes, ARG_SIZE),
     .lo = 0, .hi = 1 << 30,
     .dflt = "4M", .help = "items of answers of /v1/responses that are kept for each key, so that "
         "requests may name them (item_reference); all keys have 16 times as much; 0: none"},
    {.name = "--mask-steps", .meta = "N", ARG_FIELD(struct opts, mask_steps, ARG_SIZE), .lo = 1,
     .hi = 1 << 26,
     .dflt = "128K", .help = "what the masks of grammars may take of a step, in steps of some 10 "
         "ns; one that takes more is made beside, and its sequence waits"},
    {.name = "--schema-order", ARG_FIELD(struct opts, schema_order, ARG_SWITCH),
     .help = "members of objects come in the order of their JSON Schema, not in any"},
    {.name = "--max-connections", .meta = "N", ARG_FIELD(struct opts, connections, ARG_INT),
     .lo = 1, .hi = 100000, .dflt = "512",
     .help = "most connections that are open at a time; when there are more, those that are idle "
         "or slow go first"},
    {.name = "--max-unknown", .meta = "N", ARG_FIELD(struct opts, unknown, ARG_INT), .lo = 1,
     .hi = 100000, .otherwise = "a quarter of --max-connections",
     .help = "most of one address that have shown no key yet, where keys exist; a further one "
         "takes the place of its oldest"},
    {.name = "--max-body", .meta = "BYTES", ARG_FIELD(struct opts, body, ARG_SIZE), .lo = 1024,
     .hi = 1 << 30, .dflt = "32M", .help = "largest body of a request"},
    {.name = "--read-timeout", .meta = "SECONDS", ARG_FIELD(struct opts, read_timeout, ARG_REAL),
     .lo = 0, .hi = 1e6, .dflt = "60", .help = "close a connection whose next request has not come "
         "whole within this time; 0: never"},
    {.name = "--request-timeout", .meta = "SECONDS",
     ARG_FIELD(struct opts, request_timeout, ARG_REAL), .lo = 0, .hi = 1e6, .dflt = "0",
     .help = "give up an answer that is not whole within this time, with status 400; 0: never"},
    {.name = "--shutdown-timeout", .meta = "SECONDS",
     ARG_FIELD(struct opts, shutdown_timeout, ARG_REAL), .lo = 0, .hi = 86400, .dflt = "30",
     .help = "time that running requests may take after SIGTERM; a second SIGTERM ends at once"},
    {.name = "--no-web", ARG_FIELD(struct opts, no_web, ARG_SWITCH),
     .help = "no web page at /"},
    {.name = "--open-metrics", ARG_FIELD(struct opts, open_metrics, ARG_SWITCH),
     .help = "GET /metrics needs no key where keys exist; it names the models, and counts"},
    {.name = "--no-log", ARG_FIELD(struct opts, quiet, ARG_SWITCH),
     .help = "no line of JSON on stderr per request"},
    ARGS_MODEL(struct opts, model),
    {0},
};
/* clang-format on */

/* What flags name: keys, and texts of files; all freed at the end. */
struct texts {
    char *key_texts, *key_lines, *cert, *key, *template;
    const char **keys;
};

static int check_text(const char *path, const char *text, size_t n)
{
    return strlen(text) == n
               ? CLI_OK
               : cli_say(CLI_INPUT, "%s holds a zero byte; wanted a text", path);
}

static int read_text(const char *path, char **out)
{
    size_t n;
    int code = path ? cli_read_file(path, out, &n) : CLI_OK;
    return code || !path ? code : check_text(path, *out, n);
}

/* A model of these has a template of that name, or may get one by --override-kv. */
static int is_template_of(const struct opts *o, const struct offers *offers, const char *name)
{
    static const char before[] = "tokenizer.chat_template.";
    size_t n = sizeof before - 1, n_name = strlen(name);
    int found = 0;
    for (int i = 0; i < o->model.overrides.n && !found; i++) {
        const char *key = o->model.overrides.v[i];
        found = !strncmp(key, before, n) && !strncmp(key + n, name, n_name) &&
                key[n + n_name] == '=';
    }
    for (int k = 0; k < offers->n && !found; k++) {
        pith_file *f = pith_file_open(offers->v[k].path, NULL);
        for (int64_t i = 0, n_keys = f ? pith_file_n_keys(f) : 0; i < n_keys && !found; i++) {
            const char *key = pith_file_key(f, i);
            found = !strncmp(key, before, n) && !strcmp(key + n, name);
        }
        pith_file_close(f);
    }
    return found;
}

/* The common format or file; none where a name that only models know is meant. */
static int read_form(const struct opts *o, const struct offers *offers, char **out)
{
    size_t n = 0;
    if (!o->template || is_template_of(o, offers, o->template))
        return CLI_OK;
    int code = cli_form_text(o->template, out, &n);
    return code ? code : check_text(o->template, *out, n);
}

/* The keys of a flag's text, with commas between (which it loses), at the end of the list. Empty
 * ones are none, but a text without any is one: it is refused as too short, and never means that
 * nobody needs a key. */
static int put_keys(const char **keys, int n, char *text)
{
    int before = n;
    for (char *rest = text, *one; (one = strsep(&rest, ","));)
        if (*one)
            keys[n++] = one;
    if (n == before)
        keys[n++] = "";
    return n;
}

/* Keys of flags and file as one list. */
static int read_keys(const struct opts *o, struct texts *t)
{
    int n = 0, code = read_text(o->key_file, &t->key_lines);
    size_t most = 1, bytes = 0;
    for (int i = 0; i < o->keys.n; i++) {
        bytes += strlen(o->keys.v[i]) + 1;
        most++;
        for (const char *p = o->keys.v[i]; *p; p++)
            most += *p == ',';
    }
    for (const char *p = t->key_lines; p && *p; p++)
        most += *p == '\n';
    t->keys = calloc(most + 1, sizeof *t->keys);
    t->key_texts = malloc(bytes + 1);
    if (code || !t->keys || !t->key_texts)
        return code ? code : cli_no_memory();
    char *text = t->key_texts;
    for (int i = 0; i < o->keys.n; i++) {
        size_t len = strlen(o->keys.v[i]) + 1;
        memcpy(text, o->keys.v[i], len);
        n = put_keys(t->keys, n, text);
        text += len;
    }
    int of_flags = n;
    for (char *rest = t->key_lines, *line; rest && (line = strsep(&rest, "\n"));) {
        line[strcspn(line, "\r")] = 0;
        if (*line && *line != '#')
            t->keys[n++] = line;
    }
    return o->key_file && n == of_flags
               ? cli_say(CLI_INPUT, "%s has no key; wanted [NAME:]KEY, one a line", o->key_file)
               : CLI_OK;
}

static int read_texts(const struct opts *o, struct texts *t)
{
    struct stat sb;
    if (o->slot_folder && (stat(o->slot_folder, &sb) || !S_ISDIR(sb.st_mode)))
        return cli_say(CLI_INPUT, "--slot-save-path %s: there is no such folder", o->slot_folder);
    if (!o->cert != !o->key)
        return cli_say(CLI_USE, "--tls-cert and --tls-key belong together; found one of them");
    int code = read_keys(o, t);
    if (!code)
        code = read_text(o->cert, &t->cert);
    return code ? code : read_text(o->key, &t->key);
}

struct loading {
    const struct opts *o;
    uint64_t memory; /* of all models, 0: what there is */
    int n_models;
    char store_dir[4000]; /* "": none */
    int64_t store_limit;
    char note[4400]; /* on prefixes, "": nothing; told once the server serves */
    int code; /* an exit code, when a flag was wrong and its message is out */
};

enum { SHARES = 4 }; /* models that are to fit beside each other, when there are as many */
static const int64_t store_default = 1 << 30;

/* What the sessions of a model may count on, 0: all that is left. Of what --models-memory has
 * beside its weights a part, where several models are on offer and nobody has said how much context
 * they need. */
static int64_t session_memory(const struct loading *l, uint64_t weights)
{
    uint64_t n = l->o->model.n_ctx || l->o->cache_tokens || l->n_models < 1 ? 1
                 : l->n_models < SHARES                                     ? (uint64_t)l->n_models
                                                                            : SHARES;
    return !l->memory ? 0 : l->memory > weights + n ? (int64_t)((l->memory - weights) / n) : 1;
}

/* A session for vectors, scores or texts that are filled in. An input is one step's: as many rows
 * as the context has, or, of more than 8,192, as many as a quarter of the memory left has room
 * for. */
static pith_session *open_whole(const struct server_loaded *out, const struct model_opts *o,
                                int64_t n_ctx, const struct pith_session_plan *plan,
                                struct pith_session_params sp, int32_t *n_input,
                                struct pith_error *err)
{
    enum { USUAL = 8192, MOST = 65536 };
    int64_t left = plan->left_bytes < INT64_MAX ? (int64_t)plan->left_bytes / 4 : 0,
            most = sp.memory_bytes, n = n_ctx < MOST ? n_ctx : MOST;
    pith_session *s = NULL;
    for (n = n > SERVER_BATCH ? n : SERVER_BATCH; !s; n = n / 2 > USUAL ? n / 2 : USUAL) {
        *n_input = sp.n_batch = (int32_t)n;
        sp.n_tokens = n + 64 * (int64_t)sp.n_seq;
        sp.memory_bytes = n > USUAL && left && (!most || left < most) ? left : most;
        s = cli_session_try(out->model, o, (int32_t)n_ctx, &sp, err);
        if (n <= USUAL || err->code != PITH_NOMEM)
            break;
    }
    return s;
}

enum { BESIDE_TEXT = 8192 }; /* tokens of an input, whose one step those who write text wait for */

static pith_status open_sessions(const struct loading *l, struct server_loaded *out,
                                 struct pith_error *err)
{
    const struct opts *o = l->o;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT, ep = PITH_SESSION_PARAMS_INIT;
    pith_model_get_info(out->model, &info, NULL);
    int fills_in = !info.causal && info.logits && pith_token_of(out->model, PITH_TOKEN_MASK) >= 0;
    int makes_text = (info.causal || fills_in) && info.pooling == PITH_POOL_NONE;
    sp.n_ctx = (int32_t)o->model.n_ctx;
    sp.cache_type_k = o->model.cache_k;
    sp.cache_type_v = o->model.cache_v;
    ep.n_seq = sp.n_seq = server_sequences((int)o->parallel);
    sp.n_tokens = o->cache_tokens;
    sp.memory_bytes = ep.memory_bytes = session_memory(l, info.weight_bytes);
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT;
    pith_status st = pith_plan_session(out->model, &sp, &plan, err);
    if (st != PITH_OK)
        return st;
    int64_t n_ctx = plan.n_ctx;
    sp.n_tokens = plan.n_tokens;
    sp.store_bytes = o->store == store_default && plan.left_bytes / 8 < (uint64_t)store_default
                         ? (int64_t)(plan.left_bytes / 8)
                         : o->store;
    /* Models that give logits, or scores, are pooled as texts usually are. */
    ep.pooling = info.logits || info.pooling == PITH_POOL_RANK ? PITH_POOL_MEAN : PITH_POOL_FILE;
    if (sp.n_tokens < n_ctx) {
        err->code = PITH_RANGE;
        snprintf(err->msg, sizeof err->msg,
                 "--cache-tokens is %lld and one conversation may have %lld; wanted at least that",
                 (long long)sp.n_tokens, (long long)n_ctx);
        return err->code;
    }
    for (int i = 0; i < out->n_loras; i++) {
        int32_t rank = pith_adapter_rank(out->lora[i].adapter);
        sp.n_adapters = sp.n_seq; /* each may have others */
        sp.adapter_rank = rank > sp.adapter_rank ? rank : sp.adapter_rank;
    }
    struct model_opts bare = o->model, kept = o->model;
    bare.store_dir = NULL;                    /* inputs to embed have no prefixes */
    bare.n_ctx = makes_text ? 0 : bare.n_ctx; /* of which the other session tells */
    kept.store_dir = *l->store_dir && !fills_in ? l->store_dir : NULL;
    kept.store_limit = l->store_limit;
    kept.tells_room = makes_text; /* in the log of a service, too, which is no terminal */
    bare.tells_room = !makes_text;
    if (fills_in)
        sp.store_bytes = 0;
    int32_t n_text; /* of prompt and text; a longer one is refused when it comes */
    if (makes_text)
        out->generate = fills_in ? open_whole(out, &kept, n_ctx, &plan, sp, &n_text, err)
                                 : cli_session_try(out->model, &kept, (int32_t)n_ctx, &sp, err);
    if (makes_text && !out->generate && kept.store_dir && !o->model.store_dir &&
        err->code == PITH_RANGE) { /* nobody asked for the folder */
        cli_say(CLI_OK, "note: no prefixes are kept: %s", err->msg);
        kept.store_dir = NULL;
        out->generate = cli_session_try(out->model, &kept, (int32_t)n_ctx, &sp, err);
    }
    if (makes_text && !out->generate)
        return err->code;
    if (o->embeddings || !(makes_text || info.pooling == PITH_POOL_RANK)) {
        int64_t most = makes_text && !o->model.n_ctx && n_ctx > BESIDE_TEXT ? BESIDE_TEXT : n_ctx;
        out->embed = open_whole(out, &bare, most, &plan, ep, &out->n_embed, err);
        if (!out->embed)
            return err->code;
    }
    ep.pooling = PITH_POOL_RANK;
    if (info.n_labels)
        out->rank = open_whole(out, &bare, n_ctx, &plan, ep, &out->n_rank, err);
    return out->rank || !info.n_labels ? PITH_OK : err->code;
}

/* The adapters are the server's, whatever this returns. */
static pith_status open_loras(const struct opts *o, struct server_loaded *out,
                              struct pith_error *err)
{
    struct cli_loras loras = {0};
    pith_status st = cli_loras_open(out->model, &o->lora, &loras, err);
    for (; out->n_loras < loras.n; out->n_loras++) {
        struct server_lora *to = &out->lora[out->n_loras];
        to->adapter = loras.use[out->n_loras].adapter;
        to->scale = loras.use[out->n_loras].scale;
        memcpy(to->path, loras.path[out->n_loras], sizeof to->path);
    }
    return st;
}

static int tell_progress(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    struct server_loaded *out = ctx;
    (void)stage;
    (void)bytes;
    return out->progress(out->progress_ctx, fraction);
}

/* How conversations with a model are written that has no template. Names may have any bytes. */
static void say_plain(const char *path)
{
    char name[200];
    size_t n = 0;
    const char *file = strrchr(path, '/');
    for (file = file ? file + 1 : path; file[n] && n < sizeof name - 1; n++)
        name[n] = file[n] < ' ' || file[n] > '~' ? '?' : file[n];
    name[n] = 0;
    cli_say(CLI_OK,
            "%s has no chat template: conversations are written as \"role: content\" and a blank "
            "line, and an answer ends at \"user:\"; --chat-template gives one, as chatml",
            name);
}

/* Model and sessions for the server. */
static pith_status load(void *ctx, const char *path, struct server_loaded *out,
                        struct pith_error *err)
{
    struct loading *l = ctx;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error none = {0};
    struct model_opts o = l->o->model;
    o.path = path;
    mp.n_batch = SERVER_BATCH;
    mp.progress = tell_progress;
    mp.progress_ctx = out;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT; /* beside which layers fit */
    sp.n_seq = server_sequences((int)l->o->parallel);
    sp.n_tokens = l->o->cache_tokens;
    mp.session = &sp;
    mp.keep_free = cli_loras_bytes(&l->o->lora);
    out->model = cli_model_try(&o, &mp, err, &l->code);
    if (out->model && open_loras(l->o, out, err) != PITH_OK)
        return err->code;
    if (out->model && open_sessions(l, out, err) != PITH_OK)
        return err->code;
    if (out->model && out->generate && !l->o->template &&
        !pith_model_template(out->model, NULL, &none) && none.code == PITH_MISSING)
        say_plain(path);
    if (out->model)
        return PITH_OK;
    if (l->code)
        *err = (struct pith_error){PITH_INTERNAL,
                                   "the flags of the server are wrong; it has told how on stderr"};
    return err->code;
}

static struct server *listen_up(const struct opts *o, const struct texts *t,
                                const struct offers *offers, struct loading *l, int *code)
{
    struct pith_error err = {0};
    struct server_params p = {
        .host = o->host,
        .port = (int)o->port,
        .unix_path = o->unix_path,
        .keys = t->keys,
        .admin_keys = o->admin_keys.v,
        .hosts = o->hosts.v,
        .origins = o->origins.v,
        .tls_cert = t->cert,
        .tls_key = t->key,
        .models = offers->v,
        .n_models = offers->n,
        .aliases = offers->aliases,
        .n_aliases = offers->n_aliases,
        .load = load,
        .load_ctx = l,
        .models_memory = l->memory,
        .models_max = (int)o->models_max,
        .models_idle = o->models_idle,
        .chat_template = t->template,
        .chat_template_name = t->template ? NULL : o->template,
        .parallel = (int)o->parallel,
        .queue = (int)o->queue,
        .connections = (int)o->connections,
        .connections_unknown = (int)(o->unknown ? o->unknown : (o->connections + 3) / 4),
        .body_bytes = o->body,
        .schema_order = o->schema_order,
        .grammar_bytes = (uint64_t)o->grammar_bytes,
        .item_bytes = o->item_bytes,
        .mask_steps = o->mask_steps,
        .gap = o->gap,
        .max_memory = o->max_memory,
        .requests_memory = o->requests_memory,
        .request_memory = o->request_memory,
        .request_seconds = o->request_seconds,
        .shift_contexts = (int)o->shift_contexts,
        .read_timeout = o->read_timeout,
        .request_timeout = o->request_timeout,
        .share_prefixes = o->share_prefixes,
        .log = !o->quiet,
        .no_web = o->no_web,
        .no_slots = o->no_slots,
        .slot_folder = o->slot_folder,
        .defaults = o->defaults.v,
        .strict_fields = o->strict_fields,
        .strict_model = o->strict_model,
        .open_metrics = o->open_metrics,
        .nearest = args_nearest,
    };
    struct server *s = server_open(&p, &err);
    if (!s)
        *code = err.code == PITH_RANGE ? cli_say(CLI_USE, "%s", err.msg) : cli_fail(&err);
    return s;
}

/* The folder for prefixes: the one asked for, or one of the cache folder that only this user can
 * read, made if it can be. */
static int find_store(const struct opts *o, struct loading *l)
{
    const int64_t most = INT64_C(4) << 30, least = INT64_C(1) << 20;
    struct statvfs fs;
    l->store_limit = o->model.store_limit;
    if (o->no_store_dir && o->model.store_dir)
        return cli_say(CLI_USE, "--store-dir and --no-store-dir exclude each other");
    if (o->model.store_dir) {
        if (strlen(o->model.store_dir) >= sizeof l->store_dir)
            return cli_say(CLI_USE, "--store-dir has %zu bytes, at most %zu are possible",
                           strlen(o->model.store_dir), sizeof l->store_dir - 1);
        strcpy(l->store_dir, o->model.store_dir);
        return CLI_OK;
    }
    if (o->no_store_dir || !o->store)
        return CLI_OK;
    if (!cli_cache_path("prefixes", l->store_dir, sizeof l->store_dir) ||
        !cli_make_private(l->store_dir) || statvfs(l->store_dir, &fs)) {
        snprintf(l->note, sizeof l->note, "note: prefixes are kept in memory alone: %s: %s",
                 *l->store_dir ? l->store_dir : "there is no cache folder (set PITH_CACHE)",
                 strerror(errno));
        *l->store_dir = 0;
        return CLI_OK;
    }
    int64_t part = (int64_t)((double)fs.f_bavail * (double)fs.f_frsize / 20);
    if (!l->store_limit)
        l->store_limit = part < most ? part : most;
    if (l->store_limit < least && !o->model.store_limit)
        *l->store_dir = 0;
    if (*l->store_dir)
        snprintf(l->note, sizeof l->note,
                 "prefixes of conversations are kept in %s, at most %.0f MiB, for this user alone; "
                 "--no-store-dir keeps them in memory",
                 l->store_dir, (double)l->store_limit / 1048576);
    return CLI_OK;
}

static int serve(const struct opts *o, const struct texts *t, const struct offers *offers)
{
    int left = 0;
    struct loading l = {.o = o, .n_models = offers->n};
    l.memory = o->memory ? (uint64_t)o->memory : offers->n > 1 ? offers_memory() : 0;
    struct pith_error err = {0};
    int code = cli_trace_begin(&o->model);
    if (!code)
        code = find_store(o, &l);
    if (code)
        return code;
    interrupt_asked(); /* from here on signals are looked for: a socket has to be taken away */
    struct server *s = listen_up(o, t, offers, &l, &code);
    if (!s)
        return code;
    printf("%s\n", server_url(s));
    fflush(stdout);
    if (server_start(s, o->lazy || !o->models.n, &err) == PITH_OK) {
        if (*l.note)
            cli_say(CLI_OK, "%s", l.note);
        cli_notify("READY=1\nSTATUS=serving at %s", server_url(s));
        if (cli_chatty(&o->model))
            fprintf(stderr, "serving at %s\n", server_url(s));
        while (!interrupt_asked() && !server_is_draining(s))
            poll(NULL, 0, 100); /* signals may come to any thread */
        cli_notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=%.0f", 1e6 * (o->shutdown_timeout + 10));
        left = server_drain(s, o->shutdown_timeout);
        if (left)
            cli_say(CLI_OK, "%d requests had not come to their end after %g s", left,
                    o->shutdown_timeout);
    } else {
        code = l.code ? l.code : cli_fail_file(offers->v[0].path, &err);
    }
    server_close(s);
    return code;
}

static int run(void *opts)
{
    struct texts t = {0};
    const struct opts *o = opts;
    struct offers offers = {0};
    int code = read_texts(o, &t);
    if (!code)
        code = offers_open(&offers, &o->models, o->folder, o->name);
    if (!code)
        code = read_form(o, &offers, &t.template);
    for (int i = 0; !code && i < o->aliases.n; i++)
        code = offers_alias(&offers, o->aliases.v[i]);
    if (!code)
        code = serve(o, &t, &offers);
    offers_close(&offers);
    free(t.key_texts);
    free(t.key_lines);
    free(t.cert);
    free(t.key);
    free(t.template);
    free(t.keys);
    return code;
}

const struct command cmd_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP",
    .args =
        {
            .command = "pith serve",
            .about =
                "Serves the interfaces of OpenAI (/v1/chat/completions, /v1/completions, "
                "/v1/responses, /v1/embeddings), Anthropic (/v1/messages) and Ollama (/api/chat, "
                "/api/generate, /api/embed), its own, and a web page at /; GET /docs lists "
                "endpoints and fields, GET /metrics counts. The address is printed at once; /ready "
                "answers 200 when the model is loaded. Requests "
                "share every step of the engine, and get the bits they would get alone. SIGTERM "
                "and Ctrl-C let what runs come to its end.",
            .example =
                "  pith serve model.gguf --port 8080\n"
                "  curl localhost:8080/v1/completions -d '{\"prompt\": \"Once upon a time\"}'\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
