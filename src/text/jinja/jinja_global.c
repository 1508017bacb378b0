/* jinja_global.c -- functions that templates find without an object: range, dict, namespace ... */
#include "text/jinja/jinja_impl.h"

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
    struct jv s = jv_to_str(vm, c->arg[0]);
    if (!vm->failed) {
        vm->failed = PITH_STATE;
        error_set(vm->err, PITH_STATE, "%.*s", s.u.s->n > 4096 ? 4096 : (int)s.u.s->n, s.u.s->p);
    }
    return (struct jv){0};
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
