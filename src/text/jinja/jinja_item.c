/* jinja_item.c -- parts of a value: attributes, indexes, slices.
 *
 * v.name looks for an attribute first, then for a key; v[key] the other way round; neither there is
 * an undefined value that remembers what was looked for. */
#include "text/jinja/jinja_impl.h"

/* Methods that change their object: the sandbox has none of them, but for lists that the template
 * made (jinja_list_methods). */
static int is_unsafe(struct jv v, struct slice name)
{
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (name.n > 1 && name.p[0] == '_' && name.p[1] == '_')
        return 1;
    for (size_t i = 0; v.t == J_LIST && i < sizeof of_list / sizeof *of_list; i++) {
        if (slice_eq_z(name, of_list[i]))
            return 1;
    }
    for (size_t i = 0; v.t == J_DICT && i < sizeof of_dict / sizeof *of_dict; i++) {
        if (slice_eq_z(name, of_dict[i]))
            return 1;
    }
    return 0;
}

static struct jv loop_attr(struct jvm *vm, struct jv v, struct slice name)
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

static struct jv attribute(struct jvm *vm, struct jv v, struct slice name)
{
    const struct builtin *rows = v.t == J_STR    ? vm->rows[ROWS_STR]
                                 : v.t == J_DICT ? vm->rows[ROWS_DICT]
                                 : jv_is_list(v) || v.t == J_RANGE || v.t == J_CYCLER ||
                                         jv_is_int(v) || v.t == J_FLOAT || v.t == J_LOOP
                                     ? vm->rows[ROWS_SEQ]
                                     : NULL;
    const struct builtin *fn = rows ? builtin_find(rows, name) : NULL;
    if (v.t == J_LIST && v.u.l->made && !fn)
        fn = builtin_find(vm->rows[ROWS_LIST], name);
    if (v.t == J_NS) {
        const struct jv *at = jdict_getz(vm, &v.u.ns->d, name);
        return at ? *at : (struct jv){0};
    }
    if (v.t == J_LOOP) {
        struct jv at = loop_attr(vm, v, name);
        if (at.t != J_UNSET)
            return at;
    }
    if (v.t == J_MACRO && slice_eq_z(name, "name"))
        return jv_view(vm, v.u.m->proto->name.p, v.u.m->proto->name.n);
    if (v.t == J_TUPLE && v.safe &&
        (slice_eq_z(name, "grouper") || slice_eq_z(name, "list"))) /* of groupby */
        return v.u.l->v[name.p[0] == 'l'];
    if (v.t == J_CYCLER && slice_eq_z(name, "current"))
        return v.u.it->list.v[v.u.it->at];
    if (!fn)
        return (struct jv){0};
    struct jmethod *m = vm_alloc(vm, sizeof *m);
    if (!m)
        return (struct jv){0};
    *m = (struct jmethod){v, fn};
    return (struct jv){.t = J_METHOD, .u.method = m};
}

/* v[key] where it is there; unset otherwise. */
static struct jv item(struct jvm *vm, struct jv v, struct jv key)
{
    if (v.t == J_DICT) {
        uint64_t hash;
        if (key.t == J_LIST || key.t == J_DICT || !jv_hash(vm, key, &hash))
            return (struct jv){0};
        const struct jv *at = jdict_get(vm, v.u.d, key);
        return at ? *at : (struct jv){0};
    }
    int64_t n = v.t == J_STR || jv_is_list(v) || v.t == J_RANGE ? jv_len(v) : -1;
    if (n < 0 || !jv_is_int(key))
        return (struct jv){0};
    int64_t i = key.u.i < 0 ? key.u.i + n : key.u.i;
    if (i < 0 || i >= n)
        return (struct jv){0};
    if (jv_is_list(v))
        return v.u.l->v[i];
    if (v.t == J_RANGE)
        return jv_int(v.u.r->from + i * v.u.r->step);
    size_t from = str_offset(v.u.s, (size_t)i), to = str_offset(v.u.s, (size_t)i + 1);
    return jv_view(vm, v.u.s->p + from, to - from);
}

static struct jv no_attribute(struct jvm *vm, struct jv v, struct slice name)
{
    struct slice of = jv_type_object(vm, v);
    int n = name.n > 100 ? 100 : (int)name.n;
    if (v.t == J_LIST && !v.u.l->made && is_unsafe(v, name) && name.p[0] != '_')
        return jv_undef(vm,
                        "'%.*s' would change a list of the request: templates change lists that "
                        "they made themselves ('|list' makes a copy).",
                        n, name.p);
    if (is_unsafe(v, name))
        return jv_undef(vm, "access to attribute '%.*s' of '%s' object is unsafe.", n, name.p,
                        jv_type_name(v));
    return jv_undef(vm, "'%.*s' has no attribute '%.*s'", (int)of.n, of.p, n, name.p);
}

struct jv op_attr(struct jvm *vm, struct jv v, struct slice name)
{
    if (v.t == J_UNDEF)
        return jv_use_undef(vm, v);
    struct jv at = attribute(vm, v, name);
    if (at.t == J_UNSET && v.t == J_DICT && !vm->failed && !is_unsafe(v, name)) {
        const struct jv *p = jdict_getz(vm, v.u.d, name);
        at = p ? *p : at;
    }
    return at.t != J_UNSET || vm->failed ? at : no_attribute(vm, v, name);
}

struct jv op_item(struct jvm *vm, struct jv v, struct jv key)
{
    if (v.t == J_UNDEF)
        return jv_use_undef(vm, v);
    struct jv at = item(vm, v, key);
    if (at.t == J_UNSET && key.t == J_STR && !vm->failed)
        at = attribute(vm, v, jv_text(key));
    if (at.t != J_UNSET || vm->failed)
        return at;
    if (key.t == J_STR)
        return no_attribute(vm, v, jv_text(key));
    struct slice of = jv_type_object(vm, v);
    struct jbuild b = {.vm = vm};
    jb_repr(&b, key, 0);
    return jv_undef(vm, "%.*s has no element %.*s", (int)of.n, of.p, b.n > 100 ? 100 : (int)b.n,
                    b.n ? b.p : "");
}

/* One end of a slice as an index of 0..n, or -1..n-1 when the step is negative. 0: not an integer.
 */
static int slice_end(struct jvm *vm, struct jv v, int64_t n, int64_t step, int64_t dflt,
                     int64_t *out)
{
    *out = dflt;
    if (v.t == J_NONE)
        return 1;
    if (!jv_is_int(v)) {
        if (v.t == J_UNDEF)
            jv_use_undef(vm, v);
        else
            vm_fail(vm, "slice indices must be integers or None or have an __index__ method");
        return 0;
    }
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    int64_t i = v.u.i < 0 ? (v.u.i < -n ? low : v.u.i + n) : v.u.i;
    *out = i < low ? low : i > high ? high : i;
    return 1;
}

static struct jv slice_of_str(struct jvm *vm, struct jv v, int64_t from, int64_t count,
                              int64_t step)
{
    struct jstr *s = v.u.s;
    if (count <= 0)
        return jv_view(vm, "", 0);
    if (step == 1) {
        size_t a = str_offset(s, (size_t)from), b = str_offset(s, (size_t)(from + count));
        struct jv r = jv_view(vm, s->p + a, b - a);
        r.safe = v.safe;
        return r;
    }
    struct jlist l;
    struct jbuild b = {.vm = vm};
    if (!jv_items(vm, v, &l))
        return (struct jv){0};
    for (int64_t i = 0; i < count; i++)
        jb_slice(&b, jv_text(l.v[from + i * step]));
    return jb_value(&b);
}

struct jv op_slice(struct jvm *vm, struct jv v, struct jv from, struct jv to, struct jv step)
{
    int64_t n = jv_len(v), by = 1, a, b;
    if (v.t == J_UNDEF)
        return jv_use_undef(vm, v);
    if (v.t != J_STR && !jv_is_list(v) && v.t != J_RANGE)
        return vm_fail(vm, "'%s' object cannot be sliced", jv_type_name(v));
    if (step.t != J_NONE) {
        if (!jv_is_int(step) || step.u.i == 0)
            return vm_fail(vm, jv_is_int(step) ? "slice step cannot be zero"
                                               : "slice indices must be integers or None");
        by = step.u.i < -INT32_MAX ? -INT32_MAX : step.u.i > INT32_MAX ? INT32_MAX : step.u.i;
    }
    if (!slice_end(vm, from, n, by, by < 0 ? n - 1 : 0, &a) ||
        !slice_end(vm, to, n, by, by < 0 ? -1 : n, &b))
        return (struct jv){0};
    int64_t count =
        by > 0 ? (b > a ? (b - a - 1) / by + 1 : 0) : (a > b ? (a - b - 1) / -by + 1 : 0);
    if (!vm_charge(vm, (uint64_t)count))
        return (struct jv){0};
    if (v.t == J_STR)
        return slice_of_str(vm, v, a, count, by);
    if (v.t == J_RANGE) {
        struct jrange *r = vm_alloc(vm, sizeof *r);
        int64_t s = v.u.r->step; /* a and b are at most 100,000, from and step at most 2^53 */
        if (r && __builtin_mul_overflow(s, by, &r->step))
            return vm_fail(vm, "integer too large");
        if (r)
            *r = (struct jrange){v.u.r->from + a * s, v.u.r->from + b * s, r->step};
        return r ? (struct jv){.t = J_RANGE, .u.r = r} : (struct jv){0};
    }
    struct jv *items = vm_array(vm, (size_t)count, sizeof *items);
    for (int64_t i = 0; items && i < count; i++)
        items[i] = v.u.l->v[a + i * by];
    return items ? jv_list(vm, v.t, items, (size_t)count) : (struct jv){0};
}
