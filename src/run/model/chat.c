/* chat.c -- see chat.h. */
#include "run/model/chat.h"

#include <string.h>

#define KEY "tokenizer.chat_template"

/* Templates of one file; files have up to three. */
enum { TEMPLATES_MOST = 64 };

/* "" for the key itself, what stands behind its dot for a named one; 0: another key. */
static int template_name(struct slice key, struct slice *name)
{
    size_t n = sizeof KEY - 1;
    if (key.n < n || memcmp(key.p, KEY, n) != 0 || (key.n > n && key.p[n] != '.'))
        return 0;
    *name = key.n > n ? (struct slice){key.p + n + 1, key.n - n - 1} : SLICE("");
    return 1;
}

/* The text of a token as a variable of the template. */
static pith_status define(struct jinja *t, const char *name, const struct vocab *v, int32_t id,
                          struct pith_error *err)
{
    char piece[256];
    size_t n = id >= 0 ? vocab_piece(v, id, 1, piece, sizeof piece) : 0;
    return n && n <= sizeof piece ? jinja_define(t, name, (struct slice){piece, n}, err) : PITH_OK;
}

/* *left: bytes that all templates may have in sum from here on. */
static pith_status open_one(struct chat_template *c, struct slice text, size_t *left,
                            const struct vocab *v, struct arena *arena, struct pith_error *err)
{
    struct pith_error why = {PITH_OK, ""};
    pith_status st = PITH_OK;
    if (text.n > *left)
        error_set(&why, PITH_RANGE, "template: it has %zu bytes, with those before it over %d",
                  text.n, JINJA_SOURCE_MOST);
    else
        c->t = jinja_new(text.p, text.n, &why);
    *left -= c->t ? text.n : 0;
    if (c->t) {
        TRY(define(c->t, "bos_token", v, vocab_bos(v), err));
        TRY(define(c->t, "eos_token", v, vocab_eos(v), err));
    } else if (why.code == PITH_NOMEM) {
        return error_set(err, why.code, "%s", why.msg);
    } else {
        c->code = why.code;
        c->msg = arena_strndup(arena, why.msg, strlen(why.msg));
    }
fail:
    return st;
}

pith_status chat_templates_open(struct chat_templates *c, const struct gguf *g,
                                const struct vocab *v, struct arena *arena, struct str *note,
                                struct pith_error *err)
{
    struct slice name, text;
    size_t left = JINJA_SOURCE_MOST;
    int n = 0;
    for (uint64_t i = 0; i < gguf_n_kv(g); i++)
        n += template_name(gguf_kv_at(g, i)->key, &name);
    if (n > TEMPLATES_MOST)
        str_printf(note, "%s%d chat templates, of which the first %d are taken",
                   note->n ? "; " : "", n, TEMPLATES_MOST);
    n = n < TEMPLATES_MOST ? n : TEMPLATES_MOST;
    c->v = arena_array(arena, (size_t)n, sizeof *c->v);
    for (uint64_t i = 0; c->v && i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        if (c->n == n || !template_name(kv->key, &name) || !gguf_str(g, kv, &text))
            continue; /* n: there are more than are taken, or the file was changed meanwhile */
        struct chat_template *t = &c->v[c->n++];
        t->name = name;
        pith_status st = open_one(t, text, &left, v, arena, err);
        if (st != PITH_OK)
            return st;
        if (!t->t)
            str_printf(note, "%schat template unusable: %s", note->n ? "; " : "",
                       t->msg ? t->msg : "");
    }
    return arena_ok(arena) ? PITH_OK
                           : error_set(err, PITH_NOMEM, "out of memory for chat templates");
}

void chat_templates_close(struct chat_templates *c)
{
    for (int i = 0; i < c->n; i++)
        jinja_free(c->v[i].t);
    c->n = 0;
}

const struct jinja *chat_templates_find(const struct chat_templates *c, const char *name,
                                        struct pith_error *err)
{
    for (int i = 0; i < c->n; i++) {
        const struct chat_template *t = &c->v[i];
        if (!slice_eq_z(t->name, name ? name : ""))
            continue;
        if (!t->t)
            error_set(err, t->code, "%s", t->msg);
        return t->t;
    }
    error_set(err, PITH_MISSING, "the model has no %s%s%s", KEY, name && *name ? "." : "",
              name ? name : "");
    return NULL;
}
