/* schema_refuse.c -- why a schema is refused, and where in it. */
#include <stdarg.h>
#include <stdio.h>

#include "text/grammar/schema/schema_impl.h"

/* The place of a node as a JSON pointer, the end of a long one. */
static void put_place(const struct schema *s, const struct jtree *at, struct str *where)
{
    const struct jtree *path[JTREE_DEPTH + 1];
    int n = 0;
    for (; at && at != s->root && at->parent && n < JTREE_DEPTH; at = at->parent)
        path[n++] = at;
    while (n-- > 0) {
        uint32_t index = 0;
        for (const struct jtree *v = path[n]->parent->first; v != path[n]; v = v->next)
            index++;
        if (path[n]->parent->kind == JTREE_OBJECT)
            str_printf(where, "/%.*s", (int)(path[n]->key.n < 40 ? path[n]->key.n : 40),
                       path[n]->key.p);
        else
            str_printf(where, "/%u", index);
    }
}

void schema_empty(struct schema *s, const struct jtree *at, const char *why)
{
    enum { MOST = 60 };
    struct str where;
    if (s->r->empty[0] || !rules_ok(s->r))
        return;
    str_init(&where, PITH_MEM_SCRATCH);
    put_place(s, at, &where);
    size_t cut = where.n > MOST ? where.n - MOST : 0;
    snprintf(s->r->empty, sizeof s->r->empty, "schema %s%s: %s", cut ? "..." : "#",
             where.p ? where.p + cut : "", why);
    str_deinit(&where);
}

void schema_refuse(struct schema *s, const struct jtree *at, const char *fmt, ...)
{
    struct str where;
    char why[192];
    va_list ap;
    if (!rules_ok(s->r))
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    str_init(&where, PITH_MEM_SCRATCH);
    put_place(s, at, &where);
    size_t cut = where.n > 90 ? where.n - 90 : 0;
    rules_fail(s->r, PITH_UNSUPPORTED, "schema %s%s: %s", cut ? "..." : "#",
               where.p ? where.p + cut : "", why);
    str_deinit(&where);
}
