/* jinja_object.c -- methods of list, tuple, dict and numbers that do not change their object, those
 * of lists that do, and of loops and cyclers, which have state; arg[0] is the object. */
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
    if (no_such(vm, c, "copy", c->arg[0].t == J_LIST))
        return (struct jv){0};
    return jv_list(vm, J_LIST, c->arg[0].u.l->v, c->arg[0].u.l->n);
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

/* ---------------------------------------------------------------- lists that the template made
 *
 * Each change costs the steps and the memory of what it copies, so the rendering's limits bound
 * them; a list may come to hold itself, and whatever walks through values has a depth. */

static struct jlist *own_list(const struct jcall *c)
{
    return c->arg[0].u.l; /* attribute() gave this method: it is made */
}

/* Room for n items behind those that are there. */
static int list_room(struct jvm *vm, struct jlist *l, size_t n)
{
    if (l->cap > l->n && l->cap - l->n >= n)
        return 1;
    size_t cap = 2 * (l->n + n) + 2; /* n: of an array that is there */
    struct jv *v = vm_charge(vm, l->n) ? vm_array(vm, cap, sizeof *v) : NULL;
    if (!v)
        return 0;
    if (l->n)
        memcpy(v, l->v, l->n * sizeof *v);
    l->v = v;
    l->cap = cap;
    return 1;
}

/* The items without n of them at `at`, in an array of its own. */
static int list_cut(struct jvm *vm, struct jlist *l, size_t at, size_t n)
{
    size_t behind = l->n - at - n;
    if (behind && at) {
        struct jv *v = vm_charge(vm, l->n) ? vm_array(vm, l->n - n, sizeof *v) : NULL;
        if (!v)
            return 0;
        memcpy(v, l->v, at * sizeof *v);
        memcpy(v + at, l->v + at + n, behind * sizeof *v);
        l->v = v;
    } else if (!at) {
        l->v = behind ? l->v + n : NULL;
    }
    l->n -= n;
    l->cap = 0; /* what lies behind may be seen by others */
    return 1;
}

static struct jv l_append(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c);
    if (list_room(vm, l, 1))
        l->v[l->n++] = c->arg[1];
    return jv_none();
}

static struct jv l_extend(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c), more;
    if (jv_items(vm, c->arg[1], &more) && more.n && list_room(vm, l, more.n)) {
        memcpy(l->v + l->n, more.v, more.n * sizeof *more.v);
        l->n += more.n;
    }
    return jv_none();
}

static struct jv l_insert(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c);
    int64_t at, n = (int64_t)l->n;
    if (!arg_int(vm, c->arg[1], 0, &at))
        return (struct jv){0};
    at = at < 0 ? (at < -n ? 0 : at + n) : at > n ? n : at;
    struct jv *v = vm_charge(vm, l->n) ? vm_array(vm, l->n + 1, sizeof *v) : NULL;
    if (!v)
        return (struct jv){0};
    if (at)
        memcpy(v, l->v, (size_t)at * sizeof *v);
    v[at] = c->arg[2];
    if (n > at)
        memcpy(v + at + 1, l->v + at, (size_t)(n - at) * sizeof *v);
    *l = (struct jlist){.v = v, .n = l->n + 1, .cap = l->n + 1, .made = 1};
    return jv_none();
}

static struct jv l_pop(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c);
    int64_t at, n = (int64_t)l->n;
    if (!arg_int(vm, c->arg[1], -1, &at))
        return (struct jv){0};
    at = at < 0 ? at + n : at;
    if (at < 0 || at >= n)
        return vm_fail(vm, n ? "pop index out of range" : "pop from empty list");
    struct jv v = l->v[at];
    return list_cut(vm, l, (size_t)at, 1) ? v : (struct jv){0};
}

static struct jv l_remove(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c);
    for (size_t i = 0; i < l->n && vm_charge(vm, 1); i++) {
        if (jv_equal(vm, l->v[i], c->arg[1])) {
            list_cut(vm, l, i, 1);
            return jv_none();
        }
    }
    return vm_fail(vm, "list.remove(x): x not in list");
}

static struct jv l_clear(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    *own_list(c) = (struct jlist){.made = 1};
    return jv_none();
}

static struct jv l_reverse(struct jvm *vm, struct jcall *c)
{
    struct jlist *l = own_list(c);
    struct jv *v = vm_charge(vm, l->n) ? vm_array(vm, l->n, sizeof *v) : NULL;
    for (size_t i = 0; v && i < l->n; i++)
        v[i] = l->v[l->n - 1 - i];
    if (v)
        *l = (struct jlist){.v = v, .n = l->n, .cap = l->n, .made = 1};
    return jv_none();
}

const struct builtin jinja_list_methods[] = {
    {"append", l_append, "l value"},    {"extend", l_extend, "l more"},
    {"insert", l_insert, "l at value"}, {"pop", l_pop, "l at?"},
    {"remove", l_remove, "l value"},    {"clear", l_clear, "l"},
    {"reverse", l_reverse, "l"},        {0},
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
