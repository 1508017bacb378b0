/* jinja_seq.c -- filters of sequences. What Python makes a generator is an iterator here: made at
 * once, read once.
 *
 * An attribute is a path, "a.b.0"; sort takes several, "a,b". */
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- attributes as keys */

static struct jv attr_path(struct jvm *vm, struct jv v, struct slice path)
{
    while (!vm->failed) {
        const char *dot = memchr(path.p, '.', path.n);
        struct slice name = {path.p, dot ? (size_t)(dot - path.p) : path.n};
        struct jv index;
        int digits = name.n > 0;
        for (size_t i = 0; i < name.n; i++)
            digits &= name.p[i] >= '0' && name.p[i] <= '9';
        if (!digits || !parse_int(name, 10, &index, vm))
            index = jv_view(vm, name.p, name.n);
        v = op_item(vm, v, index);
        if (!dot)
            break;
        path = (struct slice){dot + 1, path.n - name.n - 1};
    }
    return v;
}

/* The item, or its attribute; dflt (unset: none) where that is not defined; lower case when asked.
 */
static struct jv key_of(struct jvm *vm, struct jv v, struct jv attribute, struct jv dflt, int lower)
{
    if (attribute.t == J_STR)
        v = attr_path(vm, v, jv_text(attribute));
    else if (attribute.t > J_NONE)
        v = op_item(vm, v, attribute);
    if (v.t == J_UNDEF && dflt.t != J_UNSET)
        v = dflt;
    return lower && v.t == J_STR ? text_case(vm, jv_text(v), CASE_LOWER) : v;
}

/* A copy of the items, for sorting; *keys by attribute. 0 on failure. */
static int items_and_keys(struct jvm *vm, struct jv from, struct jv attribute, struct jv dflt,
                          int lower, struct jlist *items, struct jv **keys)
{
    struct jlist l;
    if (!jv_items(vm, from, &l))
        return 0;
    items->n = l.n;
    items->v = vm_array(vm, l.n, sizeof *items->v);
    *keys = vm_array(vm, l.n, sizeof **keys);
    for (size_t i = 0; i < l.n && !vm->failed; i++) {
        items->v[i] = l.v[i];
        (*keys)[i] = key_of(vm, l.v[i], attribute, dflt, lower);
    }
    return !vm->failed;
}

/* A list of keys, one for each attribute of "a,b": two that are undefined are equal there. */
static struct jv sort_key(struct jvm *vm, struct jv v, struct jv attribute, int lower)
{
    struct slice s = attribute.t == J_STR ? jv_text(attribute) : SLICE("");
    size_t n = 1, k = 0;
    for (size_t i = 0; i < s.n; i++)
        n += s.p[i] == ',';
    struct jv *parts = vm_array(vm, n, sizeof *parts);
    if (parts && n == 1)
        parts[0] = key_of(vm, v, attribute, (struct jv){0}, lower);
    for (const char *p = s.p, *end = s.p + s.n; parts && n > 1 && k < n; k++) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        comma = comma ? comma : end;
        parts[k] = key_of(vm, v, jv_view(vm, p, (size_t)(comma - p)), (struct jv){0}, lower);
        p = comma < end ? comma + 1 : end;
    }
    return jv_list(vm, J_LIST, parts, n);
}

static struct jv f_sort(struct jvm *vm, struct jcall *c)
{
    struct jlist items;
    struct jv *keys;
    if (!items_and_keys(vm, c->arg[0], (struct jv){0}, (struct jv){0}, 0, &items, &keys))
        return (struct jv){0};
    for (size_t i = 0; i < items.n && !vm->failed; i++)
        keys[i] = sort_key(vm, items.v[i], c->arg[3], !jv_truth(c->arg[2]));
    if (vm->failed || !sort_values(vm, items.v, keys, items.n, jv_truth(c->arg[1])))
        return (struct jv){0};
    return jv_list(vm, J_LIST, items.v, items.n);
}

static struct jv f_dictsort(struct jvm *vm, struct jcall *c)
{
    struct jlist items;
    struct jv *keys;
    int64_t by = 0;
    if (c->arg[0].t != J_DICT)
        return vm_fail(vm, "'%s' object has no attribute 'items'", jv_type_name(c->arg[0]));
    if (c->arg[2].t == J_STR) {
        by = slice_eq_z(jv_text(c->arg[2]), "value");
        if (!by && !slice_eq_z(jv_text(c->arg[2]), "key"))
            return vm_fail(vm, "You can only sort by either \"key\" or \"value\"");
    }
    struct jv pairs = {.t = J_VIEW, .safe = 2, .u.d = c->arg[0].u.d};
    if (!items_and_keys(vm, pairs, jv_int(by), (struct jv){0}, !jv_truth(c->arg[1]), &items,
                        &keys) ||
        !sort_values(vm, items.v, keys, items.n, jv_truth(c->arg[3])))
        return (struct jv){0};
    return jv_list(vm, J_LIST, items.v, items.n);
}

static struct jv extreme(struct jvm *vm, struct jcall *c, int sign)
{
    struct jlist items;
    struct jv *keys;
    size_t best = 0;
    if (!items_and_keys(vm, c->arg[0], c->arg[2], (struct jv){0}, !jv_truth(c->arg[1]), &items,
                        &keys))
        return (struct jv){0};
    if (!items.n)
        return jv_undef(vm, "No aggregated item, sequence was empty.");
    for (size_t i = 1; i < items.n && !vm->failed; i++) {
        if (jv_order(vm, keys[i], keys[best], sign > 0 ? ">" : "<") == sign)
            best = i;
    }
    return items.v[best];
}

static struct jv f_min(struct jvm *vm, struct jcall *c)
{
    return extreme(vm, c, -1);
}

static struct jv f_max(struct jvm *vm, struct jcall *c)
{
    return extreme(vm, c, 1);
}

static struct jv f_unique(struct jvm *vm, struct jcall *c)
{
    struct jlist items;
    struct jv *keys;
    struct jdict seen = {0};
    size_t n = 0;
    if (!items_and_keys(vm, c->arg[0], c->arg[2], (struct jv){0}, !jv_truth(c->arg[1]), &items,
                        &keys))
        return (struct jv){0};
    for (size_t i = 0; i < items.n && !vm->failed; i++) {
        size_t before = seen.n;
        if (jdict_put(vm, &seen, keys[i], jv_none()) && seen.n > before)
            items.v[n++] = items.v[i];
    }
    return jv_iter(vm, items.v, n);
}

static struct jv f_groupby(struct jvm *vm, struct jcall *c)
{
    struct jlist items;
    struct jv *keys, *groups;
    size_t n = 0;
    int lower = !jv_truth(c->arg[3]);
    if (!items_and_keys(vm, c->arg[0], c->arg[1], c->arg[2], lower, &items, &keys) ||
        !sort_values(vm, items.v, keys, items.n, 0))
        return (struct jv){0};
    groups = vm_array(vm, items.n, sizeof *groups);
    for (size_t i = 0, j; i < items.n && !vm->failed; i = j) {
        struct jv k = key_of(vm, items.v[i], c->arg[1], c->arg[2], lower);
        for (j = i + 1; j < items.n && !vm->failed; j++) {
            if (!jv_equal(vm, k, key_of(vm, items.v[j], c->arg[1], c->arg[2], lower)))
                break;
        }
        k = key_of(vm, items.v[i], c->arg[1], c->arg[2], 0); /* as it is written in the first */
        struct jv group = jv_pair(vm, k, jv_list(vm, J_LIST, items.v + i, j - i));
        if (group.t == J_TUPLE)
            group.safe = 1; /* has .grouper and .list */
        groups[n++] = group;
    }
    return vm->failed ? (struct jv){0} : jv_list(vm, J_LIST, groups, n);
}

/* ---------------------------------------------------------------- map and select */

static struct jv f_map(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jargs args = c->rest;
    struct jv attribute = {0}, dflt = {0};
    const struct builtin *fn = NULL;
    if (!args.n_pos) {
        for (size_t i = 0; i < args.n_kw; i++) {
            struct slice name = jv_text(args.kw[i].k);
            if (slice_eq_z(name, "attribute"))
                attribute = args.kw[i].v;
            else if (slice_eq_z(name, "default"))
                dflt = args.kw[i].v;
            else
                return vm_fail(vm, "Unexpected keyword argument '%.*s'", (int)name.n, name.p);
        }
        if (attribute.t == J_UNSET)
            return vm_fail(vm, "map requires a filter argument");
    } else {
        struct jv name = args.pos[0];
        fn = name.t == J_STR ? filter_find(vm, jv_text(name)) : NULL;
        if (!fn)
            return name.t == J_STR
                       ? vm_fail(vm, "No filter named '%.*s'.", (int)name.u.s->n, name.u.s->p)
                       : vm_fail(vm, "map wants the name of a filter");
        args.pos++;
        args.n_pos--;
    }
    if (!jv_truth(c->arg[0]))
        return jv_iter(vm, NULL, 0);
    if (!jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    struct jv *v = vm_array(vm, l.n, sizeof *v);
    for (size_t i = 0; v && i < l.n && vm_charge(vm, 1); i++)
        v[i] = fn ? builtin_call(vm, fn, l.v[i], &args) : key_of(vm, l.v[i], attribute, dflt, 0);
    return vm->failed ? (struct jv){0} : jv_iter(vm, v, l.n);
}

/* by_attr: the first argument names what is tested; want: what the test must say */
static struct jv choose(struct jvm *vm, struct jcall *c, int by_attr, int want)
{
    struct jlist l;
    struct jargs args = c->rest;
    struct jv attribute = {0};
    struct slice test = {0};
    size_t n = 0;
    if (by_attr) {
        if (!args.n_pos)
            return vm_fail(vm, "Missing parameter for attribute name");
        attribute = args.pos[0];
        args.pos++, args.n_pos--;
    }
    if (args.n_pos) {
        if (args.pos[0].t != J_STR)
            return vm_fail(vm, "select wants the name of a test");
        test = jv_text(args.pos[0]);
        args.pos++, args.n_pos--;
    }
    if (!jv_truth(c->arg[0]))
        return jv_iter(vm, NULL, 0);
    if (!jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    struct jv *v = vm_array(vm, l.n, sizeof *v);
    for (size_t i = 0; v && i < l.n && vm_charge(vm, 1); i++) {
        struct jv k = key_of(vm, l.v[i], attribute, (struct jv){0}, 0);
        if (!vm->failed && (test.p ? test_run_named(vm, test, k, &args) : jv_truth(k)) == want)
            v[n++] = l.v[i];
    }
    return vm->failed ? (struct jv){0} : jv_iter(vm, v, n);
}

static struct jv f_select(struct jvm *vm, struct jcall *c)
{
    return choose(vm, c, 0, 1);
}

static struct jv f_reject(struct jvm *vm, struct jcall *c)
{
    return choose(vm, c, 0, 0);
}

static struct jv f_selectattr(struct jvm *vm, struct jcall *c)
{
    return choose(vm, c, 1, 1);
}

static struct jv f_rejectattr(struct jvm *vm, struct jcall *c)
{
    return choose(vm, c, 1, 0);
}

/* ---------------------------------------------------------------- parts and sums */

static struct jv f_first(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jv v = c->arg[0];
    if (v.t == J_ITER) /* takes one */
        return v.u.it->at < v.u.it->list.n ? v.u.it->list.v[v.u.it->at++]
                                           : jv_undef(vm, "No first item, sequence was empty.");
    if (!jv_items(vm, v, &l))
        return (struct jv){0};
    return l.n ? l.v[0] : jv_undef(vm, "No first item, sequence was empty.");
}

static struct jv f_last(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    if (c->arg[0].t == J_ITER)
        return vm_fail(vm, "'generator' object is not reversible");
    if (!jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    return l.n ? l.v[l.n - 1] : jv_undef(vm, "No last item, sequence was empty.");
}

static struct jv f_length(struct jvm *vm, struct jcall *c)
{
    int64_t n = jv_len(c->arg[0]);
    return n < 0 ? vm_fail(vm, "object of type '%s' has no len()", jv_type_name(c->arg[0]))
                 : jv_int(n);
}

static struct jv f_list(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    return jv_items(vm, c->arg[0], &l) ? jv_list(vm, J_LIST, l.v, l.n) : (struct jv){0};
}

static struct jv f_items(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    if (c->arg[0].t == J_UNDEF)
        return jv_iter(vm, NULL, 0);
    if (c->arg[0].t != J_DICT)
        return vm_fail(vm, "Can only get item pairs from a mapping.");
    struct jv pairs = {.t = J_VIEW, .safe = 2, .u.d = c->arg[0].u.d};
    return jv_items(vm, pairs, &l) ? jv_iter(vm, l.v, l.n) : (struct jv){0};
}

static struct jv f_join(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jbuild b = {.vm = vm};
    struct jv sep = c->arg[1].t == J_UNSET ? jv_view(vm, "", 0) : jv_to_str(vm, c->arg[1]);
    if (vm->failed || !jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    for (size_t i = 0; i < l.n && vm_charge(vm, 1); i++) {
        if (i)
            jb_slice(&b, jv_text(sep));
        jb_str(&b, key_of(vm, l.v[i], c->arg[2], (struct jv){0}, 0));
    }
    return jb_value(&b);
}

static struct jv f_reverse(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jbuild b = {.vm = vm};
    if (c->arg[0].t == J_ITER || !jv_items(vm, c->arg[0], &l))
        return vm_fail(vm, "argument must be iterable");
    struct jv *v = vm_array(vm, l.n, sizeof *v);
    for (size_t i = 0; v && i < l.n; i++)
        v[i] = l.v[l.n - 1 - i];
    if (c->arg[0].t != J_STR)
        return v ? jv_iter(vm, v, l.n) : (struct jv){0};
    for (size_t i = 0; v && i < l.n; i++)
        jb_slice(&b, jv_text(v[i]));
    return jb_value(&b);
}

static struct jv f_sum(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jv sum = c->arg[2].t == J_UNSET ? jv_int(0) : c->arg[2];
    if (sum.t == J_STR)
        return vm_fail(vm, "sum() can't sum strings [use ''.join(seq) instead]");
    if (!jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    for (size_t i = 0; i < l.n && !vm->failed; i++)
        sum = op_binary(vm, JOP_ADD, sum, key_of(vm, l.v[i], c->arg[1], (struct jv){0}, 0));
    return sum;
}

static struct jv f_batch(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    int64_t size;
    if (!arg_int(vm, c->arg[1], 0, &size) || !jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    if (size < 1)
        return vm_fail(vm, "batch wants a positive number");
    size_t width = (size_t)size < l.n || c->arg[2].t > J_NONE ? (size_t)size : l.n, n = 0;
    struct jv *rows = vm_array(vm, l.n + 1, sizeof *rows);
    for (size_t i = 0; rows && i < l.n && !vm->failed; i += width) {
        size_t have = l.n - i < width ? l.n - i : width, all = c->arg[2].t > J_NONE ? width : have;
        struct jv *v = vm_charge(vm, all) ? vm_array(vm, all, sizeof *v) : NULL;
        for (size_t k = 0; v && k < all; k++)
            v[k] = k < have ? l.v[i + k] : c->arg[2];
        rows[n++] = jv_list(vm, J_LIST, v, all);
    }
    return vm->failed ? (struct jv){0} : jv_iter(vm, rows, n);
}

static struct jv f_slice(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    int64_t n;
    if (!arg_int(vm, c->arg[1], 0, &n) || !jv_items(vm, c->arg[0], &l))
        return (struct jv){0};
    if (n < 1 || n > 100000)
        return vm_fail(vm, "slice wants a number of 1..100000");
    size_t each = l.n / (size_t)n, more = l.n % (size_t)n, at = 0;
    struct jv *rows = vm_array(vm, (size_t)n, sizeof *rows);
    for (size_t i = 0; rows && i < (size_t)n && vm_charge(vm, 1); i++) {
        size_t have = each + (i < more), fill = c->arg[2].t > J_NONE && more && i >= more;
        struct jv *v = vm_array(vm, have + fill, sizeof *v);
        for (size_t k = 0; v && k < have; k++)
            v[k] = l.v[at + k];
        if (v && fill)
            v[have] = c->arg[2];
        at += have;
        rows[i] = jv_list(vm, J_LIST, v, have + fill);
    }
    return vm->failed ? (struct jv){0} : jv_iter(vm, rows, (size_t)n);
}

const struct builtin jinja_seq_filters[] = {
    {"batch", f_batch, "v linecount fill_with?"},
    {"count", f_length, "v"},
    {"dictsort", f_dictsort, "d case_sensitive? by? reverse?"},
    {"first", f_first, "v"},
    {"groupby", f_groupby, "v attribute default? case_sensitive?"},
    {"items", f_items, "d"},
    {"join", f_join, "v d? attribute?"},
    {"last", f_last, "v"},
    {"length", f_length, "v"},
    {"list", f_list, "v"},
    {"map", f_map, "v *"},
    {"max", f_max, "v case_sensitive? attribute?"},
    {"min", f_min, "v case_sensitive? attribute?"},
    {"reject", f_reject, "v *"},
    {"rejectattr", f_rejectattr, "v *"},
    {"reverse", f_reverse, "v"},
    {"select", f_select, "v *"},
    {"selectattr", f_selectattr, "v *"},
    {"slice", f_slice, "v slices fill_with?"},
    {"sort", f_sort, "v reverse? case_sensitive? attribute?"},
    {"sum", f_sum, "v attribute? start?"},
    {"unique", f_unique, "v case_sensitive? attribute?"},
    {0},
};
