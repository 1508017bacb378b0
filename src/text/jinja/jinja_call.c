/* jinja_call.c -- calling built-in functions: one binder for filters, tests, methods and globals.
 * Which there are is told by the tables that the rendering has (vm->rows): functions find each
 * other by name, as templates do.
 *
 * A function is a row: name, code, parameters as text. "s width? first? *": names in order, ? when
 * it may be missing (unset then),
 * * when it takes more. Positional and named arguments are both matched to them, so that a function
 *     sees filled slots alone. */
#include "text/jinja/jinja_impl.h"

const struct builtin *builtin_find(const struct builtin *rows, struct slice name)
{
    for (; rows->name; rows++) {
        if (rows->name[0] == (name.n ? name.p[0] : 0) && slice_eq_z(name, rows->name))
            return rows;
    }
    return NULL;
}

const struct builtin *filter_find(const struct jvm *vm, struct slice name)
{
    const struct builtin *fn = builtin_find(vm->rows[ROWS_FILTERS], name);
    return fn ? fn : builtin_find(vm->rows[ROWS_SEQ_FILTERS], name);
}

/* ---------------------------------------------------------------- the binder */

struct param {
    struct slice name;
    int optional;
};

static int next_param(const char **at, struct param *p)
{
    while (**at == ' ')
        (*at)++;
    size_t n = strcspn(*at, " ");
    if (!n)
        return 0;
    p->optional = (*at)[n - 1] == '?';
    p->name = (struct slice){*at, n - (size_t)p->optional};
    *at += n;
    return 1;
}

const struct jpair *args_named(const struct jargs *args, struct slice name)
{
    for (size_t i = 0; i < args->n_kw; i++) {
        if (slice_eq(jv_text(args->kw[i].k), name))
            return &args->kw[i];
    }
    return NULL;
}

struct jv builtin_call(struct jvm *vm, const struct builtin *fn, struct jv self,
                       const struct jargs *args)
{
    struct jcall c = {0};
    const char *at = fn->params;
    struct param p;
    size_t n = 0, used = 0, named = 0;
    if (vm->failed)
        return (struct jv){0};
    while (n < JINJA_PARAMS && next_param(&at, &p)) {
        if (p.name.p[0] == '*') {
            c.rest = (struct jargs){args->pos + used, args->n_pos - used, args->kw, args->n_kw};
            return fn->fn(vm, &c);
        }
        const struct jpair *kw;
        if (n == 0 && self.t != J_UNSET) {
            c.arg[n] = self;
        } else if (used < args->n_pos) {
            c.arg[n] = args->pos[used++];
        } else if ((kw = args_named(args, p.name)) != NULL) {
            c.arg[n] = kw->v;
            named++;
        } else if (!p.optional) {
            return vm_fail(vm, "%s() missing a required argument: '%.*s'", fn->name, (int)p.name.n,
                           p.name.p);
        }
        n++;
    }
    if (used < args->n_pos)
        return vm_fail(vm, "%s() takes at most %zu arguments (%zu given)", fn->name, used,
                       args->n_pos);
    if (named < args->n_kw)
        return vm_fail(vm, "%s() got an unexpected or repeated keyword argument", fn->name);
    return fn->fn(vm, &c);
}

int arg_int(struct jvm *vm, struct jv v, int64_t dflt, int64_t *out)
{
    *out = dflt;
    if (v.t == J_UNSET || v.t == J_NONE)
        return 1;
    if (jv_is_int(v))
        *out = v.u.i;
    else if (v.t == J_UNDEF)
        jv_use_undef(vm, v);
    else
        vm_fail(vm, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
    return !vm->failed;
}

struct jv value_call(struct jvm *vm, struct jv callee, const struct jargs *args)
{
    switch (callee.t) {
    case J_FUNC:
        return builtin_call(vm, callee.u.fn, (struct jv){0}, args);
    case J_METHOD:
        return builtin_call(vm, callee.u.method->fn, callee.u.method->self, args);
    case J_JOINER:
        return callee.u.it->at++ ? callee.u.it->list.v[0] : jv_view(vm, "", 0);
    case J_UNDEF:
        return jv_use_undef(vm, callee);
    default:
        return vm_fail(vm, "'%s' object is not callable", jv_type_name(callee));
    }
}
