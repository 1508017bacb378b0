/* jinja_object.c -- methods of list, tuple, dict and numbers that do not change their object, and
 * of loops and cyclers, which have state; arg[0] is the object. */
#include <math.h>

#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- list, tuple, range, numbers,
 * loops */

static int no_such(struct jvm *vm, struct jcall *c, const char *name, int have)
{
    if (!have)
        vm_fail(vm, "'%s object' has no attribute '%s'", jv_type_name(c->arg[0]), name);
    return !have;
}

static struct jv l_count(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    int64_t n = 0;
    if (no_such(vm, c, "count", jv_is_list(c->arg[0]) || c->arg[0].t == J_RANGE) ||
        !jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    for (size_t i = 0; i < l.n && !vm->failed; i++)
        n += jv_equal(vm, l.v[i], c->arg[1]);
    return jv_int(n);
}

static struct jv l_index(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    int64_t from, to;
    if (no_such(vm, c, "index", jv_is_list(c->arg[0]) || c->arg[0].t == J_RANGE) ||
        !jv_items(vm, c->arg[0], &l) || !arg_int(vm, c->arg[2], 0, &from) ||
        !arg_int(vm, c->arg[3], (int64_t)l.n, &to))
        return (struct jv){0};
    int64_t n = (int64_t)l.n;
    from = from < 0 ? (from < -n ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to && !vm->failed; i++) {
        if (jv_equal(vm, l.v[i], c->arg[1]))
            return jv_int(i);
    }
    return vm_fail(vm, "the value is not in the list");
}

static struct jv l_copy(struct jvm *vm, struct jcall *c)
{
    return no_such(vm, c, "copy", c->arg[0].t == J_LIST) ? (struct jv){0} : c->arg[0];
}

static struct jv n_is_integer(struct jvm *vm, struct jcall *c)
{
    double f = 0;
    if (no_such(vm, c, "is_integer", jv_number(c->arg[0], &f)))
        return (struct jv){0};
    return jv_bool(f == floor(f) && !isinf(f));
}

static struct jv n_bit_length(struct jvm *vm, struct jcall *c)
{
    int64_t n = 0;
    if (no_such(vm, c, "bit_length", jv_is_int(c->arg[0])))
        return (struct jv){0};
    for (uint64_t u = c->arg[0].u.i < 0 ? 0 - (uint64_t)c->arg[0].u.i : (uint64_t)c->arg[0].u.i; u;
         u >>= 1)
        n++;
    return jv_int(n);
}

static struct jv loop_cycle(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_LOOP)
        return vm_fail(vm, "'%s' has no attribute 'cycle'", jv_type_name(c->arg[0]));
    if (!c->rest.n_pos)
        return vm_fail(vm, "no items for cycling given");
    size_t at = c->arg[0].u.loop->at;
    return c->rest.pos[(at ? at - 1 : 0) % c->rest.n_pos];
}

static struct jv loop_changed(struct jvm *vm, struct jcall *c)
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

static struct jv cycler_next(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_CYCLER)
        return vm_fail(vm, "'%s' has no attribute 'next'", jv_type_name(c->arg[0]));
    struct jiter *it = c->arg[0].u.it;
    struct jv v = it->list.v[it->at];
    it->at = (it->at + 1) % it->list.n;
    return v;
}

static struct jv cycler_reset(struct jvm *vm, struct jcall *c)
{
    if (c->arg[0].t != J_CYCLER)
        return vm_fail(vm, "'%s' has no attribute 'reset'", jv_type_name(c->arg[0]));
    c->arg[0].u.it->at = 0;
    return jv_none();
}

const struct builtin jinja_seq_methods[] = {
    {"count", l_count, "s value"},
    {"index", l_index, "s value start? stop?"},
    {"copy", l_copy, "s"},
    {"is_integer", n_is_integer, "s"},
    {"bit_length", n_bit_length, "s"},
    {"cycle", loop_cycle, "s *"},
    {"changed", loop_changed, "s *"},
    {"next", cycler_next, "s"},
    {"reset", cycler_reset, "s"},
    {0},
};

/* ---------------------------------------------------------------- dict */

static struct jv view(const struct jcall *c, int what)
{
    return (struct jv){.t = J_VIEW, .safe = what, .u.d = c->arg[0].u.d};
}

static struct jv d_keys(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return view(c, 0);
}

static struct jv d_values(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return view(c, 1);
}

static struct jv d_items(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return view(c, 2);
}

static struct jv d_get(struct jvm *vm, struct jcall *c)
{
    const struct jv *at = jdict_get(vm, c->arg[0].u.d, c->arg[1]);
    return at ? *at : c->arg[2].t == J_UNSET ? jv_none() : c->arg[2];
}

static struct jv d_copy(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return c->arg[0];
}

const struct builtin jinja_dict_methods[] = {
    {"keys", d_keys, "d"},   {"values", d_values, "d"},
    {"items", d_items, "d"}, {"get", d_get, "d key default?"},
    {"copy", d_copy, "d"},   {0},
};
