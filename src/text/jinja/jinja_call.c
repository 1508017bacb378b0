/* jinja_call.c -- calling built-in functions: one binder for filters, tests, methods and globals;
 * the globals; the loop's attributes.
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

const struct builtin *filter_find(struct slice name)
{
    const struct builtin *fn = builtin_find(jinja_filters, name);
    return fn ? fn : builtin_find(jinja_seq_filters, name);
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

static const struct jpair *keyword(const struct jargs *args, struct slice name)
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
        } else if ((kw = keyword(args, p.name)) != NULL) {
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
        vm_fail(vm, "%.*s", (int)v.u.u->what.n, v.u.u->what.p);
    else
        vm_fail(vm, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
    return !vm->failed;
}

static struct jv call_cycler(struct jiter *it, int advance)
{
    struct jv v = it->list.v[it->at];
    it->at = advance ? (it->at + 1) % it->list.n : it->at;
    return v;
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
        return vm_fail(vm, "%.*s", (int)callee.u.u->what.n, callee.u.u->what.p);
    default:
        return vm_fail(vm, "'%s' object is not callable", jv_type_name(callee));
    }
}

/* ---------------------------------------------------------------- globals */

static int range_arg(struct jvm *vm, struct jv v, int64_t *out)
{
    const int64_t most = (int64_t)1 << 53;
    if (v.t == J_NONE)
        vm_fail(vm, "'NoneType' object cannot be interpreted as an integer");
    else if (arg_int(vm, v, 1, out) && (*out > most || *out < -most))
        vm_fail(vm, "integer too large for a range");
    return !vm->failed;
}

static struct jv g_range(struct jvm *vm, struct jcall *c)
{
    enum { MOST = 100000 }; /* as the sandbox has it */
    struct jrange *r = vm_alloc(vm, sizeof *r);
    int two = c->arg[1].t != J_UNSET;
    if (!r || (two && !range_arg(vm, c->arg[0], &r->from)) || !range_arg(vm, c->arg[two], &r->to))
        return (struct jv){0};
    r->step = 1;
    if (c->arg[2].t != J_UNSET && !range_arg(vm, c->arg[2], &r->step))
        return (struct jv){0};
    if (r->step == 0)
        return vm_fail(vm, "range() arg 3 must not be zero");
    struct jv v = {.t = J_RANGE, .u.r = r};
    if (jv_len(v) > MOST)
        return vm_fail(vm, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                       MOST);
    return v;
}

/* A mapping or pairs, then named values. */
static int fill_dict(struct jvm *vm, struct jcall *c, struct jdict *d)
{
    struct jv from = c->arg[0];
    struct jlist l, two;
    if (from.t == J_DICT) {
        for (size_t i = 0; i < from.u.d->n; i++)
            jdict_put(vm, d, from.u.d->p[i].k, from.u.d->p[i].v);
    } else if (from.t != J_UNSET && jv_items(vm, from, &l)) {
        for (size_t i = 0; i < l.n && jv_items(vm, l.v[i], &two); i++) {
            if (two.n != 2)
                vm_fail(vm, "dictionary update sequence element #%zu has length %zu; 2 is required",
                        i, two.n);
            else
                jdict_put(vm, d, two.v[0], two.v[1]);
        }
    }
    for (size_t i = 0; i < c->rest.n_kw; i++)
        jdict_put(vm, d, c->rest.kw[i].k, c->rest.kw[i].v);
    return !vm->failed;
}

static struct jv g_dict(struct jvm *vm, struct jcall *c)
{
    struct jdict d = {0};
    return fill_dict(vm, c, &d) ? jv_dict(vm, &d) : (struct jv){0};
}

static struct jv g_namespace(struct jvm *vm, struct jcall *c)
{
    struct jns *ns = vm_alloc(vm, sizeof *ns);
    return ns && fill_dict(vm, c, &ns->d) ? (struct jv){.t = J_NS, .u.ns = ns} : (struct jv){0};
}

static struct jv copy_iter(struct jvm *vm, enum jtype t, const struct jv *from, size_t n)
{
    struct jv *v = vm_array(vm, n, sizeof *v);
    if (!v)
        return (struct jv){0};
    memcpy(v, from, n * sizeof *v);
    struct jv it = jv_iter(vm, v, n);
    it.t = it.t == J_UNSET ? J_UNSET : t;
    return it;
}

static struct jv g_cycler(struct jvm *vm, struct jcall *c)
{
    if (!c->rest.n_pos)
        return vm_fail(vm, "at least one item has to be provided");
    return copy_iter(vm, J_CYCLER, c->rest.pos, c->rest.n_pos);
}

static struct jv g_joiner(struct jvm *vm, struct jcall *c)
{
    struct jv sep = c->arg[0].t == J_UNSET ? jv_strz(vm, ", ") : c->arg[0];
    return copy_iter(vm, J_JOINER, &sep, 1);
}

static struct jv g_raise(struct jvm *vm, struct jcall *c)
{
    return vm_raise(vm, c->arg[0]);
}

static struct jv g_strftime_now(struct jvm *vm, struct jcall *c)
{
    return c->arg[0].t == J_STR
               ? time_format(vm, jv_text(c->arg[0]))
               : vm_fail(vm, "strftime() argument 1 must be str, not %s", jv_type_name(c->arg[0]));
}

static struct jv g_lipsum(struct jvm *vm, struct jcall *c)
{
    (void)c;
    return vm_fail(vm, "lipsum is not supported: its text is random");
}

const struct builtin jinja_globals[] = {
    {"range", g_range, "start stop? step?"},
    {"dict", g_dict, "from? *"},
    {"namespace", g_namespace, "from? *"},
    {"cycler", g_cycler, "*"},
    {"joiner", g_joiner, "sep?"},
    {"raise_exception", g_raise, "message"},
    {"strftime_now", g_strftime_now, "format"},
    {"lipsum", g_lipsum, "*"},
    {0},
};

/* ---------------------------------------------------------------- loops */

struct jv loop_attr(struct jvm *vm, struct jv v, struct slice name)
{
    const struct jloop *l = v.u.loop;
    int64_t n = (int64_t)l->items.n, i = (int64_t)l->at - 1; /* the items are never empty here */
    const struct {
        const char *name;
        struct jv v;
    } plain[] = {
        {"index", jv_int(i + 1)},     {"index0", jv_int(i)},
        {"revindex", jv_int(n - i)},  {"revindex0", jv_int(n - i - 1)},
        {"first", jv_bool(i == 0)},   {"last", jv_bool(i == n - 1)},
        {"length", jv_int(n)},        {"depth", jv_int(l->depth + 1)},
        {"depth0", jv_int(l->depth)},
    };
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
        if (slice_eq_z(name, plain[k].name))
            return plain[k].v;
    }
    if (slice_eq_z(name, "previtem"))
        return i > 0 ? l->items.v[i - 1] : jv_undef(vm, "there is no previous item");
    if (slice_eq_z(name, "nextitem"))
        return i + 1 < n ? l->items.v[i + 1] : jv_undef(vm, "there is no next item");
    return (struct jv){0};
}

/* Methods of objects with state; the rows are in jinja_seq_methods. */
struct jv loop_cycle(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_LOOP)
        return vm_fail(vm, "'%s' has no attribute 'cycle'", jv_type_name(c->arg[0]));
    if (!c->rest.n_pos)
        return vm_fail(vm, "no items for cycling given");
    size_t at = c->arg[0].u.loop->at;
    return c->rest.pos[(at ? at - 1 : 0) % c->rest.n_pos];
}

struct jv loop_changed(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_LOOP)
        return vm_fail(vm, "'%s' has no attribute 'changed'", jv_type_name(c->arg[0]));
    struct jloop *l = c->arg[0].u.loop;
    struct jv *v = vm_array(vm, c->rest.n_pos, sizeof *v);
    if (v && c->rest.n_pos)
        memcpy(v, c->rest.pos, c->rest.n_pos * sizeof *v);
    struct jv now = v ? jv_list(vm, J_TUPLE, v, c->rest.n_pos) : (struct jv){0};
    int same = l->changed.t != J_UNSET && !vm->failed && jv_equal(vm, l->changed, now);
    l->changed = now;
    return jv_bool(!same);
}

struct jv cycler_next(struct jvm *vm, struct jcall *c)
{
    return c->arg[0].t == J_CYCLER
               ? call_cycler(c->arg[0].u.it, 1)
               : vm_fail(vm, "'%s' has no attribute 'next'", jv_type_name(c->arg[0]));
}

struct jv cycler_reset(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_CYCLER)
        return vm_fail(vm, "'%s' has no attribute 'reset'", jv_type_name(c->arg[0]));
    c->arg[0].u.it->at = 0;
    return jv_none();
}
