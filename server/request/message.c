/* message.c -- see message.h. */
#include "server/json.h"
#include "server/request/message.h"

#include <stdlib.h>
#include <string.h>

struct message {
    pith_chat_parser *parser; /* NULL: all is text */
    struct part *part;
    int n, cap, n_calls, n_whole, at; /* at: all before it has been told */
    int one_call, only_calls;
    int lost; /* there was no memory for a piece of it */
};

static int put(struct part *p, const char *text, size_t n)
{
    return text_put(&p->text, &p->n, &p->cap, text, n);
}

/* The last part where it is of this kind, else a new one. NULL: out of memory. */
static struct part *part_of(struct message *m, enum part_kind kind)
{
    if (m->n && m->part[m->n - 1].kind == kind && kind != PART_CALL)
        return &m->part[m->n - 1];
    if (m->n == m->cap) {
        int cap = 2 * m->cap + 4;
        struct part *more = realloc(m->part, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        m->part = more;
        m->cap = cap;
    }
    m->part[m->n] = (struct part){.kind = kind, .index = m->n_calls};
    return &m->part[m->n++];
}

static void forget_last(struct message *m)
{
    struct part *p = &m->part[--m->n];
    free(p->text);
    free(p->name);
    free(p->id);
}

/* More of a call that has begun: the last one, mostly. */
static void grow_call(struct message *m, const struct pith_chat_event *e)
{
    for (struct part *p = m->part + m->n; p-- > m->part;)
        if (p->kind == PART_CALL && p->index == e->index) {
            m->lost |= !put(p, e->text, e->n_bytes);
            p->whole = e->whole;
            break;
        }
}

static void on_event(void *ctx, const struct pith_chat_event *e)
{
    static const enum part_kind kinds[] = {[PITH_CHAT_CONTENT] = PART_TEXT,
                                           [PITH_CHAT_REASONING] = PART_REASONING,
                                           [PITH_CHAT_CALL] = PART_CALL};
    struct message *m = ctx;
    if (e->kind == PITH_CHAT_CALL ? m->one_call && e->index : m->only_calls)
        return;
    m->n_whole += e->kind == PITH_CHAT_CALL && e->whole;
    if (e->kind == PITH_CHAT_CALL && e->index < m->n_calls) {
        grow_call(m, e);
        return;
    }
    struct part *p = part_of(m, kinds[e->kind]);
    int ok = p && put(p, e->text, e->n_bytes);
    m->lost |= !ok;
    if (!p || p->kind != PART_CALL)
        return;
    p->whole = e->whole;
    p->name = strdup(e->name);
    p->id = strdup(e->id);
    if (ok && p->name && p->id) {
        m->n_calls++;
    } else { /* not half a call */
        m->lost = 1;
        forget_last(m);
    }
}

struct message *message_open(const pith_template *t, const struct message *first,
                             const json_t *tools, const char *family, int partial, uint64_t seed,
                             const char *prompt, size_t n, struct fault *f)
{
    struct pith_error err = {0};
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    struct message *m = calloc(1, sizeof *m);
    char *list = tools && !first ? json_exact(tools) : NULL;
    if (!m || (tools && !first && !list)) {
        fault_memory(f);
        message_free(m);
        m = NULL;
    } else if (t || family) {
        p.tools = list ? list : "[]";
        p.tools_of = first ? first->parser : NULL;
        p.prompt = prompt;
        p.prompt_bytes = n;
        p.family = family;
        p.partial = partial;
        p.seed = seed;
        p.on_event = on_event;
        p.ctx = m;
        m->parser = pith_chat_open(t, &p, &err);
        if (!m->parser) {
            fault_from(f, &err, "tools");
            message_free(m);
            m = NULL;
        }
    }
    free(list);
    return m;
}

int message_reasons(const pith_template *t, const char *family, const char *prompt, size_t n,
                    struct fault *f)
{
    struct message *m = message_open(t, NULL, NULL, family, 0, 0, prompt, n, f);
    if (!m)
        return -1;
    int ok = message_put(m, "x", 1) && message_put(m, NULL, 0);
    int reasons = ok ? message_has(m, PART_REASONING) : -1;
    if (!ok)
        fault_memory(f);
    message_free(m);
    return reasons;
}

void message_one_call(struct message *m)
{
    m->one_call = 1;
}

void message_only_calls(struct message *m)
{
    m->only_calls = 1;
}

void message_free(struct message *m)
{
    if (!m)
        return;
    pith_chat_close(m->parser);
    while (m->n)
        forget_last(m);
    free(m->part);
    free(m);
}

int message_put(struct message *m, const char *text, size_t n)
{
    if (m->parser && !m->lost) {
        m->lost |= (text ? pith_chat_feed(m->parser, text, n, NULL)
                         : pith_chat_finish(m->parser, NULL)) != PITH_OK;
    } else if (n && !m->lost) {
        struct part *p = part_of(m, PART_TEXT);
        m->lost = !p || !put(p, text, n);
    }
    return !m->lost;
}

const struct part *message_next(struct message *m, int *i, const char **fresh, size_t *n)
{
    for (; m->at < m->n; m->at++) {
        struct part *p = &m->part[m->at];
        if (p->told == p->n)
            continue;
        *i = m->at;
        *fresh = p->text + p->told;
        *n = p->n - p->told;
        p->told = p->n;
        return p;
    }
    if (m->at)
        m->at--; /* the last one may grow */
    return NULL;
}

int message_n_parts(const struct message *m)
{
    return m->n;
}

const struct part *message_part(const struct message *m, int i)
{
    return &m->part[i];
}

int message_is_reasoning(const struct message *m)
{
    return m->parser && pith_chat_reasons(m->parser);
}

int message_n_calls(const struct message *m)
{
    return m->n_calls;
}

int message_n_whole(const struct message *m)
{
    return m->n_whole;
}

int message_has(const struct message *m, enum part_kind kind)
{
    for (int i = 0; i < m->n; i++)
        if (m->part[i].kind == kind)
            return 1;
    return 0;
}

json_t *message_text(const struct message *m, enum part_kind kind)
{
    struct part all = {0};
    int ok = 1;
    for (int i = 0; ok && i < m->n; i++)
        if (m->part[i].kind == kind)
            ok = put(&all, m->part[i].text, m->part[i].n);
    json_t *j = ok ? json_text(all.n ? all.text : "", all.n) : NULL;
    free(all.text);
    return j;
}

json_t *part_arguments(const struct part *p)
{
    json_t *j = json_loadb(p->n ? p->text : "{}", p->n ? p->n : 2, JSON_ALLOW_NUL, NULL);
    if (!j) /* a number that no integer holds */
        j = json_loadb(p->text, p->n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    return j ? j : json_pack("{s:o}", "arguments", json_text(p->text, p->n));
}
