/* message.c -- see message.h. */
#include "message.h"

#include <stdlib.h>
#include <string.h>

enum { CONTENT, REASONING, N_TEXTS };

struct text {
    char *p;
    size_t n, cap, told;
};

struct message {
    pith_chat_parser *parser; /* NULL: all is content */
    struct text text[N_TEXTS];
    json_t *calls;
    size_t calls_told;
};

static void put(struct text *t, const char *p, size_t n)
{
    if (!n)
        return;
    if (t->cap - t->n < n) {
        size_t cap = 2 * (t->n + n) + 64;
        char *more = realloc(t->p, cap);
        if (!more)
            return;
        t->p = more;
        t->cap = cap;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
}

static void on_event(void *ctx, const struct pith_chat_event *e)
{
    struct message *m = ctx;
    if (e->kind == PITH_CHAT_CALL)
        json_array_append_new(m->calls, json_pack("{s:i, s:o, s:s, s:{s:o, s:o}}", "index", e->index, "id", json_text(e->id, strlen(e->id)), "type", "function", "function",
                                                  "name", json_text(e->name, strlen(e->name)), "arguments", json_text(e->text, e->n_bytes)));
    else
        put(&m->text[e->kind == PITH_CHAT_REASONING ? REASONING : CONTENT], e->text, e->n_bytes);
}

struct message *message_open(struct hosted *h, const json_t *tools, const char *prompt, size_t n, struct fault *f)
{
    struct pith_error err = {0};
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    struct message *m = calloc(1, sizeof *m);
    char *list = tools ? json_dumps(tools, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (!m || (tools && !list) || !(m->calls = json_array())) {
        fault_memory(f);
        message_free(m);
        m = NULL;
    } else if (h->template) {
        p.tools = list ? list : "[]";
        p.prompt = prompt;
        p.prompt_bytes = n;
        p.on_event = on_event;
        p.ctx = m;
        m->parser = pith_chat_open(h->template, &p, &err);
        if (!m->parser) {
            fault_from(f, &err, "tools");
            message_free(m);
            m = NULL;
        }
    }
    free(list);
    return m;
}

void message_free(struct message *m)
{
    if (!m)
        return;
    pith_chat_close(m->parser);
    for (int i = 0; i < N_TEXTS; i++)
        free(m->text[i].p);
    json_decref(m->calls);
    free(m);
}

void message_put(struct message *m, const char *text, size_t n)
{
    if (!m->parser)
        put(&m->text[CONTENT], text ? text : "", n);
    else if (text)
        pith_chat_feed(m->parser, text, n, NULL);
    else
        pith_chat_finish(m->parser, NULL);
}

json_t *message_delta(struct message *m)
{
    static const char *const names[N_TEXTS] = {"content", "reasoning_content"};
    json_t *d = json_object();
    for (int i = 0; i < N_TEXTS; i++) {
        struct text *t = &m->text[i];
        if (t->told < t->n)
            json_object_set_new(d, names[i], json_text(t->p + t->told, t->n - t->told));
        t->told = t->n;
    }
    if (m->calls_told < json_array_size(m->calls)) {
        json_t *list = json_array();
        for (; m->calls_told < json_array_size(m->calls); m->calls_told++)
            json_array_append(list, json_array_get(m->calls, m->calls_told));
        json_object_set_new(d, "tool_calls", list);
    }
    return d;
}

json_t *message_whole(struct message *m)
{
    const struct text *c = &m->text[CONTENT], *r = &m->text[REASONING];
    json_t *j = json_pack("{s:s}", "role", "assistant");
    json_object_set_new(j, "content", !c->n && json_array_size(m->calls) ? json_null() : json_text(c->n ? c->p : "", c->n));
    if (r->n)
        json_object_set_new(j, "reasoning_content", json_text(r->p, r->n));
    if (json_array_size(m->calls)) {
        json_t *list = json_deep_copy(m->calls);
        for (size_t i = 0; i < json_array_size(list); i++)
            json_object_del(json_array_get(list, i), "index"); /* of pieces of a stream */
        json_object_set_new(j, "tool_calls", list);
    }
    return j;
}

int message_n_calls(const struct message *m)
{
    return (int)json_array_size(m->calls);
}
