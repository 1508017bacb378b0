/* jinja_emit.c -- the compiler's tools: tokens that are looked at and passed, and the code, names,
 * constants and calls that are written. */
#include <stdarg.h>
#include <stdio.h>

#include "text/jinja/jinja_impl.h"

void compile_fail(struct compiler *c, pith_status st, size_t at, const char *fmt, ...)
{
    char where[160], what[256];
    va_list ap;
    if (c->failed)
        return;
    c->failed = 1;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    jinja_where(c->t->source, at, where, sizeof where);
    error_set(c->err, arena_ok(&c->t->arena) ? st : PITH_NOMEM, "template: %s: %s", where, what);
}

const struct token *tok(const struct compiler *c)
{
    return &c->toks.v[c->i];
}

int tok_is(const struct compiler *c, enum jtok t, const char *s)
{
    return !c->failed && tok(c)->t == t && (!s || slice_eq_z(tok(c)->s, s));
}

int tok_skip(struct compiler *c, enum jtok t, const char *s)
{
    if (!tok_is(c, t, s))
        return 0;
    c->i += tok(c)->t != TOK_END;
    return 1;
}

void tok_expect(struct compiler *c, enum jtok t, const char *s)
{
    if (!tok_skip(c, t, s))
        compile_fail(c, PITH_FORMAT, tok(c)->at, "found \"%.*s\", wanted \"%s\"",
                     tok(c)->s.n > 40 ? 40 : (int)tok(c)->s.n, tok(c)->s.p,
                     s               ? s
                     : t == TOK_NAME ? "a name"
                                     : "the end of the tag");
}

int compile_enter(struct compiler *c)
{
    if (c->depth == JINJA_NESTING)
        compile_fail(c, PITH_UNSUPPORTED, tok(c)->at,
                     "found blocks and brackets nested too deep (over %d)", JINJA_NESTING);
    if (c->failed)
        return 0;
    c->depth++;
    return 1;
}

void *compile_grow(struct compiler *c, void *p, int32_t n, int32_t *cap, size_t item)
{
    if (n < *cap || c->failed)
        return c->failed ? NULL : p;
    int32_t more = *cap ? 2 * *cap : 32;
    void *q = more < INT32_MAX / 4 ? arena_array(&c->t->arena, (size_t)more, item) : NULL;
    if (!q) {
        compile_fail(c, PITH_NOMEM, 0, "out of memory");
        return NULL;
    }
    if (n)
        memcpy(q, p, (size_t)n * item);
    *cap = more;
    return q;
}

int32_t emit(struct compiler *c, enum jop code, int32_t a, int32_t b, size_t at)
{
    struct op *p = compile_grow(c, c->t->code, c->t->n_code, &c->cap_code, sizeof *p);
    if (!p)
        return 0;
    c->t->code = p;
    p[c->t->n_code] = (struct op){code, a, b, (uint32_t)at};
    return c->t->n_code++;
}

void emit_jump_to(struct compiler *c, int32_t from, int32_t to)
{
    if (!c->failed)
        c->t->code[from].a = to - from;
}

int32_t compile_name(struct compiler *c, struct slice s)
{
    struct jinja *t = c->t;
    uint32_t found;
    if (map_get(&c->names, s, &found))
        return (int32_t)found;
    struct slice *p = compile_grow(c, t->names, t->n_names, &c->cap_names, sizeof *p);
    if (!p)
        return 0;
    if (map_put(&c->names, s, (uint32_t)t->n_names) != 1) {
        compile_fail(c, PITH_NOMEM, 0, "out of memory");
        return 0;
    }
    t->names = p;
    p[t->n_names] = s;
    return t->n_names++;
}

int32_t compile_const(struct compiler *c, struct jv v)
{
    struct jv *p = compile_grow(c, c->t->consts, c->n_consts, &c->cap_consts, sizeof *p);
    if (!p)
        return 0;
    c->t->consts = p;
    p[c->n_consts] = v;
    return c->n_consts++;
}

int32_t compile_text(struct compiler *c, struct slice s)
{
    struct jstr *str = arena_alloc(&c->t->arena, sizeof *str);
    if (!str) {
        compile_fail(c, PITH_NOMEM, 0, "out of memory");
        return 0;
    }
    *str = (struct jstr){s.p, s.n, 0, NULL};
    for (size_t i = 0; i < s.n; i++) /* counted now: a template is read-only later */
        str->n_cp += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return compile_const(c, (struct jv){.t = J_STR, .u.s = str});
}

int32_t compile_site(struct compiler *c, struct slice name)
{
    struct jsite *p = compile_grow(c, c->t->sites, c->n_sites, &c->cap_sites, sizeof *p);
    if (!p)
        return 0;
    c->t->sites = p;
    p[c->n_sites] = (struct jsite){.name = name, .plain = 1};
    return c->n_sites++;
}

void site_add(struct compiler *c, int32_t site, enum jarg_kind kind, struct slice name)
{
    struct jsite *s = &c->t->sites[site];
    struct jarg *p = c->failed ? NULL : compile_grow(c, s->arg, s->n, &s->cap, sizeof *p);
    if (!p)
        return;
    s->arg = p;
    p[s->n++] = (struct jarg){kind, name};
    s->plain &= kind == ARG_POS;
}
