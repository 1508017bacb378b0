/* chat.c -- see chat.h. */
#include "cli/chat/chat.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static pith_status fail(struct pith_error *err, pith_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static pith_status fail(struct pith_error *err, pith_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

static pith_status no_memory(struct pith_error *err)
{
    return fail(err, PITH_NOMEM, "out of memory");
}

/* ---------------------------------------------------------------- messages */

static int has_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && !strcmp(is, role);
}

static int add(struct chat *c, const char *role, const char *text, size_t n)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", cli_json_text(text, n));
    return json_array_append_new(c->messages, message) == 0;
}

static size_t n_system(const struct chat *c)
{
    return has_role(json_array_get(c->messages, 0), "system") ? 1 : 0;
}

static void remove_last(struct chat *c)
{
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

const char *chat_system_text(const struct chat *c)
{
    return n_system(c)
               ? json_string_value(json_object_get(json_array_get(c->messages, 0), "content"))
               : NULL;
}

/* ---------------------------------------------------------------- the prompt */

/* The template's prompt for messages, which it takes. */
static pith_prompt *render_these(const struct chat *c, json_t *messages, int asks,
                                 struct pith_error *err)
{
    json_t *vars = c->variables ? json_deep_copy(c->variables) : json_object();
    json_object_set_new(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_boolean(asks));
    char *json = vars ? json_dumps(vars, JSON_COMPACT) : NULL;
    json_decref(vars);
    if (!json)
        no_memory(err);
    pith_prompt *p = json ? pith_prompt_open(c->form, json, strlen(json), err) : NULL;
    free(json);
    return p;
}

/* Whether a rendering of messages, which it takes, has a word of theirs. */
static int renders(const struct chat *c, json_t *messages, const char *word)
{
    struct pith_error ignored;
    size_t n = 0, n_word = strlen(word);
    pith_prompt *p = render_these(c, messages, 1, &ignored);
    const char *text = p ? pith_prompt_text(p, &n) : NULL;
    int found = text && memmem(text, n, word, n_word) != NULL;
    pith_prompt_close(p);
    return found;
}

/* Whether the template refuses a system text, or leaves it out without a word (Gemma's do). A
 * template that does not take the question alone tells nothing. */
static int has_no_system(const struct chat *c)
{
    static const char word[] = "QZSYSTEM", asked[] = "QZUSER";
    return renders(c, json_pack("[{s:s, s:s}]", "role", "user", "content", asked), asked) &&
           !renders(c,
                    json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", word, "role",
                              "user", "content", asked),
                    word);
}

int chat_moves_system(struct chat *c)
{
    if (!n_system(c))
        return 0;
    if (c->system_place == SYSTEM_UNKNOWN)
        c->system_place = has_no_system(c) ? SYSTEM_IN_QUESTION : SYSTEM_OWN;
    return c->system_place == SYSTEM_IN_QUESTION;
}

/* The first question seen, with the system text before it, as a message of the user's. */
static json_t *with_system(const struct chat *c, const json_t *message)
{
    const json_t *text = json_object_get(json_array_get(c->messages, 0), "content"),
                 *asked = json_object_get(message, "content");
    size_t n = json_string_length(text), n_asked = json_string_length(asked);
    char *both = malloc(n + 2 + n_asked);
    if (!both)
        return NULL;
    memcpy(both, json_string_value(text), n);
    memcpy(both + n, "\n\n", 2);
    memcpy(both + n + 2, json_string_value(asked), n_asked);
    json_t *whole = json_pack("{s:s, s:o}", "role", "user", "content",
                              cli_json_text(both, n + 2 + n_asked));
    free(both);
    return whole;
}

/* The template's prompt for the messages the model sees. */
static pith_prompt *render(struct chat *c, int asks, struct pith_error *err)
{
    json_t *seen = json_array(), *message;
    size_t i, head = n_system(c);
    int moves = chat_moves_system(c), ok = seen != NULL;
    json_array_foreach(c->messages, i, message)
    {
        if (i < head ? moves : i < head + c->n_left_out)
            continue;
        int first = moves && i >= head && has_role(message, "user");
        ok = ok && !json_array_append_new(seen, first ? with_system(c, message)
                                                      : json_incref(message));
        moves = moves && !first;
    }
    if (ok)
        return render_these(c, seen, asks, err);
    json_decref(seen);
    no_memory(err);
    return NULL;
}

static int32_t *prompt_ids(const struct chat *c, const pith_prompt *p, int64_t *n_ids,
                           struct pith_error *err)
{
    int64_t n = pith_prompt_tokenize(p, c->model, 0, NULL, 0, err);
    int32_t *ids = n >= 0 ? malloc(((size_t)n + 1) * sizeof *ids) : NULL;
    if (n >= 0 && !ids)
        no_memory(err);
    *n_ids = ids ? pith_prompt_tokenize(p, c->model, 0, ids, (size_t)n, err) : -1;
    if (*n_ids >= 0)
        return ids;
    free(ids);
    return NULL;
}

/* Ids of the conversation, with asks = 1 up to where the answer begins; *kept (NULL allowed, the
 * caller's) is what they stand for. The template writes the start token where the model wants
 * one. */
static int32_t *prompt(struct chat *c, int asks, int64_t *n_ids, pith_prompt **kept,
                       struct pith_error *err)
{
    pith_prompt *p = render(c, asks, err);
    int32_t *ids = p ? prompt_ids(c, p, n_ids, err) : NULL;
    if (ids && kept)
        *kept = p;
    else
        pith_prompt_close(p);
    return ids;
}

static void count(struct chat *c)
{
    struct pith_error ignored;
    c->n_used = 0;
    if (json_array_size(c->messages) == 0)
        return;
    int32_t *ids = prompt(c, 0, &c->n_used, NULL, &ignored);
    /* A template may refuse what is no whole exchange; a conversation may outgrow the context. */
    if (!ids || c->n_used > pith_n_ctx(c->session))
        c->n_used = pith_length(c->session, 0);
    free(ids);
}

/* One exchange less for the model to see. 0: the last one is left. */
static int leave_out(struct chat *c)
{
    size_t i = n_system(c) + c->n_left_out + 1, n = json_array_size(c->messages);
    while (i < n && !has_role(json_array_get(c->messages, i), "user"))
        i++;
    if (i >= n)
        return 0;
    c->n_left_out = i - n_system(c);
    return 1;
}

/* The prompt; where it was asked for, oldest exchanges make room for it and a quarter of the
 * context behind it. */
static int32_t *fitting_prompt(struct chat *c, int64_t *n_ids, pith_prompt **kept,
                               struct pith_error *err)
{
    int32_t n_ctx = pith_n_ctx(c->session);
    int64_t most = c->params.context_shift ? n_ctx - n_ctx / 4 : n_ctx;
    int32_t *ids = prompt(c, 1, n_ids, kept, err);
    while (ids && *n_ids > most && c->params.context_shift && leave_out(c)) {
        free(ids);
        pith_prompt_close(*kept);
        *kept = NULL;
        ids = prompt(c, 1, n_ids, kept, err);
    }
    if (ids && *n_ids > n_ctx) {
        fail(err, PITH_RANGE,
             "the conversation has outgrown the context: n_prompt = %lld, n_ctx = %d, n_over = "
             "%lld",
             (long long)*n_ids, n_ctx, (long long)(*n_ids - n_ctx));
        free(ids);
        return NULL;
    }
    return ids;
}

/* ---------------------------------------------------------------- answers */

struct answer {
    struct chat *chat;
    pith_chat_parser *parser;
    struct pith_error err; /* the parser's */
    int stops;
    int reasons, made_answer; /* so far; it was made to end its reasoning */
    int64_t n_reasoned;
};

static void on_event(void *ctx, const struct pith_chat_event *e)
{
    struct answer *a = ctx;
    if (!a->stops &&
        !a->chat->show(a->chat->ctx, e->kind == PITH_CHAT_REASONING, e->text, e->n_bytes))
        a->stops = 1;
}

static int on_text(void *ctx, const char *text, size_t n)
{
    struct answer *a = ctx;
    return pith_chat_feed(a->parser, text, n, &a->err) == PITH_OK && !a->stops;
}

/* Whether the reasoning has got as long as it may be: of all that an answer reasons. */
static int has_enough(void *ctx)
{
    struct answer *a = ctx;
    int reasons = pith_chat_reasons(a->parser);
    a->n_reasoned += a->reasons;
    a->made_answer = a->made_answer && reasons;
    a->reasons = reasons;
    if (!reasons || a->made_answer || a->n_reasoned < a->chat->think_budget)
        return 0;
    return a->made_answer = 1;
}

/* The tokens of what ends reasoning, inside of a text (malloc). NULL with *n 0: it has no end. */
static int32_t *enough_ids(const struct chat *c, int32_t *n, struct pith_error *err)
{
    char text[512] = "\n";
    const char *trigger = c->grammar ? c->asked->trigger : NULL;
    int begun = c->think_budget > 0, bare = c->is_behind;
    int64_t len = pith_chat_enough(c->form, begun, bare, text + 1, sizeof text - 1);
    if (trigger && len > 0 && len < (int64_t)sizeof text &&
        memmem(text + 1, (size_t)len, trigger, strlen(trigger))) /* what follows is the grammar's */
        len = pith_chat_enough(c->form, begun, 1, text + 1, sizeof text - 1);
    *n = 0;
    if (len <= 0 || len >= (int64_t)sizeof text)
        return NULL;
    len++;
    int32_t *ids = malloc((size_t)(2 * len) * sizeof *ids), *before = ids ? ids + len : NULL;
    int64_t n_all = ids ? pith_tokenize(c->model, text, (size_t)len, PITH_PARSE_SPECIAL, ids,
                                        (size_t)len, err)
                        : -1,
            n_before = ids ? pith_tokenize(c->model, text, 1, PITH_PARSE_SPECIAL, before,
                                           (size_t)len, err)
                           : -1;
    if (!ids)
        no_memory(err);
    if (n_all < 0 || n_before < 0 || n_all > len) {
        free(ids);
        return NULL;
    }
    if (n_before < n_all && !memcmp(ids, before, (size_t)n_before * sizeof *ids)) {
        n_all -= n_before;
        memmove(ids, ids + n_before, (size_t)n_all * sizeof *ids);
    }
    *n = (int32_t)n_all;
    return ids;
}

/* Where the prompt has begun reasoning, a grammar without a trigger holds behind its end. */
static int holds_behind(const struct chat *c, const pith_chat_parser *p)
{
    return c->grammar && !c->asked->trigger && pith_chat_answer(c->form) && pith_chat_reasons(p);
}

static pith_status hold(struct chat *c, const struct answer *a, struct pith_error *err)
{
    c->is_behind = holds_behind(c, a->parser);
    if (c->is_behind && !c->behind)
        c->behind = cli_grammar_behind(c->asked, c->model, pith_chat_answer(c->form), err);
    if (c->is_behind && !c->behind)
        return err->code;
    pith_grammar *holds = c->is_behind ? c->behind : c->grammar;
    if (holds)
        pith_grammar_reset(holds);
    return pith_sampler_grammar(c->sampler, holds, err);
}

/* A grammar that holds from the first token leaves nothing to bound where there would be some. */
static pith_status bound(struct chat *c, struct answer *a, struct pith_generate_params *p,
                         int32_t **enough, struct pith_error *err)
{
    const char *end = pith_chat_answer(c->form);
    int strict = c->grammar && !c->asked->trigger && !c->is_behind,
        off = json_is_false(json_object_get(c->variables, "enable_thinking"));
    if (strict && end && c->think_budget > 0 && !off)
        return fail(err, PITH_UNSUPPORTED,
                    "found --think-budget and %s, which holds from the first token: the prompt "
                    "begins no reasoning, so there would be none; leave one of them out, or let "
                    "the model reason first with --trigger '%s'",
                    cli_grammar_flag(c->asked), end);
    if (c->think_budget < 0 || strict)
        return PITH_OK;
    *enough = enough_ids(c, &p->n_force, err);
    p->force = *enough;
    p->forces = has_enough;
    p->ctx = a;
    return *enough ? PITH_OK : err->code;
}

/* Who takes an answer to the prompt apart; events go to a, NULL: nowhere. */
static pith_chat_parser *open_parser(const struct chat *c, const pith_prompt *prompt,
                                     struct answer *a, struct pith_error *err)
{
    struct pith_chat_params reading = PITH_CHAT_PARAMS_INIT;
    reading.tools = "[]";
    reading.prompt = pith_prompt_text(prompt, &reading.prompt_bytes);
    reading.on_event = a ? on_event : NULL;
    reading.ctx = a;
    return pith_chat_open(c->form, &reading, err);
}

static pith_status generate(struct chat *c, struct answer *a, struct pith_error *err)
{
    int64_t n_ids = 0;
    pith_prompt *kept = NULL;
    int32_t *ids = fitting_prompt(c, &n_ids, &kept, err);
    a->parser = ids ? open_parser(c, kept, a, err) : NULL;
    struct pith_generate_params p = c->params;
    p.tokens = ids;
    p.n_tokens = (size_t)n_ids;
    p.sampler = c->sampler;
    p.on_text = on_text;
    p.ctx = a;
    int32_t *enough = NULL;
    struct pith_generate_result result = {.size = sizeof result, .unfed = -1};
    pith_status st = a->parser ? hold(c, a, err) : err->code;
    if (st == PITH_OK)
        st = bound(c, a, &p, &enough, err);
    if (st == PITH_OK)
        st = pith_generate(c->session, &p, &result, err);
    if (st == PITH_OK && a->err.code == PITH_OK)
        pith_chat_finish(a->parser, &a->err);
    if (st == PITH_OK && a->err.code != PITH_OK)
        st = fail(err, a->err.code, "%s", a->err.msg);
    free(ids);
    free(enough);
    pith_prompt_close(kept);
    if (st == PITH_OK) {
        c->last = result;
        c->n_answers++;
        c->n_read += result.n_prompt - result.n_kept;
        c->n_cached += result.n_kept;
        c->n_made += result.n_generated;
    }
    return st;
}

/* Answers the last message. Stopped before its first word it is PITH_CANCELLED. */
static pith_status answer(struct chat *c, struct pith_error *err)
{
    struct answer a = {.chat = c};
    size_t left_out = c->n_left_out, n = 0, n_reasoning = 0;
    const char *text = NULL, *reasoning = NULL;
    pith_status st = generate(c, &a, err);
    if (st == PITH_OK) {
        text = pith_chat_text(a.parser, PITH_CHAT_CONTENT, &n);
        reasoning = pith_chat_text(a.parser, PITH_CHAT_REASONING, &n_reasoning);
    }
    if (st == PITH_OK && c->last.stop == PITH_STOP_CANCELLED && n + n_reasoning == 0)
        st = fail(err, PITH_CANCELLED, "stopped");
    if (st == PITH_OK && !add(c, "assistant", n ? text : "", n))
        st = no_memory(err);
    if (st == PITH_OK && n_reasoning)
        json_object_set_new(json_array_get(c->messages, json_array_size(c->messages) - 1),
                            "reasoning_content", cli_json_text(reasoning, n_reasoning));
    if (st != PITH_OK)
        c->n_left_out = left_out;
    pith_chat_close(a.parser);
    return st;
}

pith_status chat_ask(struct chat *c, const char *text, struct pith_error *err)
{
    if (!add(c, "user", text, strlen(text)))
        return no_memory(err);
    pith_status st = answer(c, err);
    if (st != PITH_OK)
        remove_last(c);
    count(c);
    return st;
}

pith_status chat_read(struct chat *c, const char *text, int64_t *n, struct pith_error *err)
{
    *n = 0;
    if (!add(c, "user", text, strlen(text)))
        return no_memory(err);
    pith_prompt *kept = NULL;
    int32_t *ids = prompt(c, 1, n, &kept, err);
    pith_chat_parser *parser = ids ? open_parser(c, kept, NULL, err) : NULL;
    pith_status st =
        parser ? pith_prefix(c->session, 0, ids, (size_t)*n, NULL, err) : err->code;
    c->is_behind = parser && holds_behind(c, parser);
    pith_chat_close(parser);
    pith_prompt_close(kept);
    free(ids);
    return st;
}

pith_status chat_again(struct chat *c, struct pith_error *err)
{
    size_t n = json_array_size(c->messages);
    if (n == 0 || !has_role(json_array_get(c->messages, n - 1), "assistant"))
        return fail(err, PITH_STATE, "there is no answer to make again");
    json_t *old = json_incref(json_array_get(c->messages, n - 1));
    remove_last(c);
    pith_status st = answer(c, err);
    if (st != PITH_OK)
        json_array_append(c->messages, old);
    json_decref(old);
    count(c);
    return st;
}

pith_status chat_system(struct chat *c, const char *text, struct pith_error *err)
{
    json_t *message =
        json_pack("{s:s, s:o}", "role", "system", "content", cli_json_text(text, strlen(text)));
    if (!message)
        return no_memory(err);
    if (n_system(c))
        json_array_remove(c->messages, 0);
    if (*text)
        json_array_insert(c->messages, 0, message);
    json_decref(message);
    count(c);
    return PITH_OK;
}

void chat_clear(struct chat *c)
{
    while (json_array_size(c->messages) > n_system(c))
        remove_last(c);
    c->n_left_out = 0;
    count(c);
}

/* ---------------------------------------------------------------- files */

/* The messages of a file, NULL with *err when it holds no conversation. */
static json_t *read_messages(const char *path, struct pith_error *err)
{
    json_error_t why;
    json_t *whole = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *messages, *message;
    size_t i;
    if (!whole && json_error_code(&why) == json_error_cannot_open_file) {
        fail(err, PITH_IO, "%s: %s", path, why.text);
        return NULL;
    }
    if (!whole) {
        fail(err, PITH_FORMAT, "%s: line %d: %s; wanted a conversation saved by /save", path,
             why.line, why.text);
        return NULL;
    }
    messages = json_is_array(whole) ? whole : json_object_get(whole, "messages");
    int good = json_is_array(messages);
    if (!good)
        fail(err, PITH_FORMAT,
             "%s: found no array \"messages\"; wanted a conversation saved by /save", path);
    json_array_foreach(messages, i, message)
    {
        if (good && (!json_is_string(json_object_get(message, "role")) ||
                     !json_is_string(json_object_get(message, "content")))) {
            good = 0;
            fail(err, PITH_FORMAT,
                 "%s: message %zu: wanted an object with the texts \"role\" and \"content\"", path,
                 i + 1);
        }
    }
    json_t *found = good ? json_incref(messages) : NULL;
    json_decref(whole);
    return found;
}

static char *state_path(const char *path)
{
    char *state = NULL;
    return asprintf(&state, "%s.state", path) < 0 ? NULL : state;
}

pith_status chat_save(struct chat *c, const char *path, int with_state, struct pith_error *err)
{
    if (access(path, F_OK) == 0) {
        json_t *old = read_messages(path, err);
        if (!old)
            return fail(err, PITH_STATE,
                        "%s is there and holds no conversation; choose another name", path);
        json_decref(old);
    }
    char name[256] = "", *state = state_path(path), *text = NULL;
    pith_model_meta(c->model, "general.name", name, sizeof name);
    json_t *whole = json_pack("{s:o, s:O}", "model", cli_json_text(name, strlen(name)), "messages",
                              c->messages);
    char *json = whole ? json_dumps(whole, JSON_INDENT(2)) : NULL;
    json_decref(whole);
    int why = 0;
    if (json && asprintf(&text, "%s\n", json) < 0)
        text = NULL;
    free(json);
    pith_status st = state && text ? PITH_OK : no_memory(err);
    if (st == PITH_OK && with_state)
        st = pith_save(c->session, 0, state, err);
    if (st == PITH_OK && (why = cli_replace_file(path, text)))
        st = fail(err, PITH_IO, "%s: cannot write: %s", path, strerror(why));
    free(state);
    free(text);
    return st;
}

pith_status chat_load(struct chat *c, const char *path, struct pith_error *state_err,
                      struct pith_error *err)
{
    json_t *messages = read_messages(path, err);
    char *state = messages ? state_path(path) : NULL;
    if (messages && !state) {
        json_decref(messages);
        no_memory(err);
    }
    if (!state)
        return err->code;
    state_err->code = PITH_OK;
    if (access(state, F_OK) == 0)
        pith_load(c->session, 0, state, state_err);
    free(state);
    json_decref(c->messages);
    c->messages = messages;
    c->n_left_out = 0;
    count(c);
    return PITH_OK;
}

/* ---------------------------------------------------------------- all of it */

pith_status chat_open(struct chat *c, struct pith_error *err)
{
    if (!c->form)
        c->form = pith_model_template(c->model, NULL, err);
    if (!c->form)
        return err->code;
    c->messages = json_array();
    return c->messages ? PITH_OK : no_memory(err);
}

void chat_close(struct chat *c)
{
    json_decref(c->messages);
    c->messages = NULL;
}
