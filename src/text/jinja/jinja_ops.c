/* jinja_ops.c -- operators with Python's meaning: arithmetic, comparison, attributes, indexes,
 * slices.
 *
 * Integers are int64; a result outside it is an error, not another number. // and % round to minus
 * infinity, / always gives a float. v.name looks for an attribute first, then for a key; v[key] the
 * other way round; neither there is an undefined value that remembers what was looked for. */
#include <math.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

static const char *const signs[] = {
    [OP_ADD] = "+", [OP_SUB] = "-",           [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//",
    [OP_MOD] = "%", [OP_POW] = "** or pow()", [OP_LT] = "<",  [OP_LE] = "<=", [OP_GT] = ">",
    [OP_GE] = ">="};

/* ---------------------------------------------------------------- arithmetic */

static struct jv use_of_undefined(struct jvm *vm, struct jv a, struct jv b)
{
    struct slice what = a.t == J_UNDEF ? a.u.u->what : b.u.u->what;
    return vm_fail(vm, "%.*s", (int)what.n, what.p);
}

static struct jv bad_operands(struct jvm *vm, enum jop op, struct jv a, struct jv b)
{
    if (a.t == J_UNDEF || b.t == J_UNDEF)
        return use_of_undefined(vm, a, b);
    if (op == OP_ADD && (a.t == J_STR || jv_is_list(a)))
        return vm_fail(vm, "can only concatenate %s (not \"%s\") to %s", jv_type_name(a),
                       jv_type_name(b), jv_type_name(a));
    return vm_fail(vm, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op],
                   jv_type_name(a), jv_type_name(b));
}

static struct jv int_pow(struct jvm *vm, int64_t a, int64_t n)
{
    int64_t r = 1;
    while (n > 0) {
        if (n & 1 && __builtin_mul_overflow(r, a, &r))
            return vm_fail(vm, "integer too large");
        n >>= 1;
        if (n && __builtin_mul_overflow(a, a, &a))
            return vm_fail(vm, "integer too large");
    }
    return jv_int(r);
}

static struct jv int_op(struct jvm *vm, enum jop op, int64_t a, int64_t b)
{
    int64_t r = 0;
    int over = 0;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_POW:
        return b < 0 ? (a ? jv_float(pow((double)a, (double)b))
                          : vm_fail(vm, "0.0 cannot be raised to a negative power"))
                     : int_pow(vm, a, b);
    default:
        if (b == 0)
            return vm_fail(vm, op == OP_DIV ? "division by zero"
                                            : "integer division or modulo by zero");
        if (op == OP_DIV)
            return jv_float((double)a / (double)b);
        if (b == -1) {
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
        } else {
            int64_t q = a / b, rest = a % b;
            int down = rest != 0 && (rest < 0) != (b < 0);
            r = op == OP_FLOORDIV ? q - down : rest + (down ? b : 0);
        }
    }
    return over ? vm_fail(vm, "integer too large") : jv_int(r);
}

static struct jv float_op(struct jvm *vm, enum jop op, double a, double b)
{
    switch (op) {
    case OP_ADD:
        return jv_float(a + b);
    case OP_SUB:
        return jv_float(a - b);
    case OP_MUL:
        return jv_float(a * b);
    case OP_POW: {
        if (a == 0 && b < 0)
            return vm_fail(vm, "0.0 cannot be raised to a negative power");
        double r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b))
            return vm_fail(vm, "a negative number raised to a fraction is complex: not supported");
        return isinf(r) && !isinf(a) && !isinf(b) ? vm_fail(vm, "Result too large") : jv_float(r);
    }
    default:
        break;
    }
    if (b == 0)
        return vm_fail(vm, op == OP_DIV   ? "float division by zero"
                           : op == OP_MOD ? "float modulo"
                                          : "float floor division by zero");
    if (op == OP_DIV)
        return jv_float(a / b);
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        q -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (op == OP_MOD)
        return jv_float(rest);
    double whole = floor(q);
    return jv_float(q == 0 ? copysign(0, a / b) : q - whole > 0.5 ? whole + 1 : whole);
}

static struct jv repeat(struct jvm *vm, struct jv v, int64_t n)
{
    uint64_t total;
    n = n < 0 ? 0 : n;
    if (v.t == J_STR) {
        struct jbuild b = {.vm = vm};
        if (size_mul(v.u.s->n, (uint64_t)n, &total) || total > vm->left.memory)
            return vm_fail(vm, "a repeated string is too large");
        for (int64_t i = 0; i < n && v.u.s->n && vm_charge(vm, 1); i++)
            jb_slice(&b, jv_text(v));
        return jb_value(&b);
    }
    if (size_mul(v.u.l->n, (uint64_t)n, &total) || total > vm->left.memory / sizeof(struct jv) ||
        !vm_charge(vm, total))
        return vm_fail(vm, "a repeated list is too large");
    struct jv *to = vm_array(vm, (size_t)total, sizeof *to);
    for (size_t i = 0; to && i < total; i++)
        to[i] = v.u.l->v[i % v.u.l->n];
    return to ? jv_list(vm, v.t, to, (size_t)total) : (struct jv){0};
}

static struct jv add_lists(struct jvm *vm, struct jv a, struct jv b)
{
    size_t n = a.u.l->n + b.u.l->n;
    struct jv *to = vm_charge(vm, n) ? vm_array(vm, n, sizeof *to) : NULL;
    if (!to)
        return (struct jv){0};
    if (a.u.l->n)
        memcpy(to, a.u.l->v, a.u.l->n * sizeof *to);
    if (b.u.l->n)
        memcpy(to + a.u.l->n, b.u.l->v, b.u.l->n * sizeof *to);
    return jv_list(vm, a.t, to, n);
}

/* What is added to a safe string gets escaped. */
static struct jv add_strings(struct jvm *vm, struct jv a, struct jv b)
{
    if (a.safe == b.safe) {
        struct jv r = jv_concat(vm, a, b);
        r.safe = a.safe;
        return r;
    }
    struct jbuild x = {.vm = vm};
    (a.safe ? jb_slice : jb_escape)(&x, jv_text(a));
    (b.safe ? jb_slice : jb_escape)(&x, jv_text(b));
    struct jv r = jb_value(&x);
    r.safe = 1;
    return r;
}

/* A number, from a value of the request. */
static int given(struct jv v)
{
    return v.t == J_BIG || v.safe;
}

struct jv op_binary(struct jvm *vm, enum jop op, struct jv a, struct jv b)
{
    double f, g;
    if (op == OP_CONCAT) {
        struct jv s = jv_to_str(vm, a), t = jv_to_str(vm, b);
        s.safe = 0;
        return vm->failed ? s : jv_concat(vm, s, t);
    }
    if (jv_is_int(a) && jv_is_int(b))
        return jv_given(int_op(vm, op, a.u.i, b.u.i), a.safe | b.safe);
    if ((a.t == J_BIG || b.t == J_BIG) && a.t != J_FLOAT && b.t != J_FLOAT && op != OP_DIV &&
        jv_number(a, &f) && jv_number(b, &g))
        return vm_fail(vm, "integer too large to compute with");
    if (jv_number(a, &f) && jv_number(b, &g))
        return jv_given(float_op(vm, op, f, g), given(a) | given(b));
    if (op == OP_MOD && a.t == J_STR)
        return format_percent(vm, a, b);
    if (op == OP_ADD && a.t == J_STR && b.t == J_STR)
        return add_strings(vm, a, b);
    if (op == OP_ADD && jv_is_list(a) && a.t == b.t)
        return add_lists(vm, a, b);
    if (op == OP_MUL && (a.t == J_STR || jv_is_list(a)) && jv_is_int(b))
        return repeat(vm, a, b.u.i);
    if (op == OP_MUL && (b.t == J_STR || jv_is_list(b)) && jv_is_int(a))
        return repeat(vm, b, a.u.i);
    return bad_operands(vm, op, a, b);
}

struct jv op_unary(struct jvm *vm, enum jop op, struct jv a)
{
    if (jv_is_int(a))
        return jv_given(op == OP_POS ? jv_int(a.u.i) : int_op(vm, OP_SUB, 0, a.u.i), a.safe);
    if (a.t == J_FLOAT)
        return jv_given(jv_float(op == OP_NEG ? -a.u.f : a.u.f), a.safe);
    if (a.t == J_UNDEF)
        return use_of_undefined(vm, a, a);
    if (a.t == J_BIG) {
        struct slice s = jv_text(a);
        struct jbuild b = {.vm = vm};
        int negative = s.p[0] == '-', minus = negative != (op == OP_NEG);
        jb_putz(&b, minus ? "-" : "");
        jb_put(&b, s.p + negative, s.n - (size_t)negative);
        struct jv v = {0};
        return !vm->failed && parse_int(jb_text(&b), 10, &v, vm) ? jv_given(v, 1) : (struct jv){0};
    }
    return vm_fail(vm, "bad operand type for unary %s: '%s'", op == OP_NEG ? "-" : "+",
                   jv_type_name(a));
}

int op_compare(struct jvm *vm, enum jop op, struct jv a, struct jv b)
{
    if (op == OP_EQ || op == OP_NE)
        return jv_equal(vm, a, b) == (op == OP_EQ);
    if (op == OP_IN || op == OP_NOT_IN)
        return jv_contains(vm, b, a) == (op == OP_IN);
    int way = jv_order(vm, a, b, signs[op]);
    if (way == 2)
        return 0;
    return op == OP_LT ? way < 0 : op == OP_LE ? way <= 0 : op == OP_GT ? way > 0 : way >= 0;
}

/* ---------------------------------------------------------------- attributes and indexes */

/* Methods that change their object: the sandbox has none of them. */
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

static struct jv attribute(struct jvm *vm, struct jv v, struct slice name)
{
    const struct builtin *rows = v.t == J_STR    ? jinja_str_methods
                                 : v.t == J_DICT ? jinja_dict_methods
                                 : jv_is_list(v) || v.t == J_RANGE || v.t == J_CYCLER ||
                                         jv_is_int(v) || v.t == J_FLOAT || v.t == J_LOOP
                                     ? jinja_seq_methods
                                     : NULL;
    const struct builtin *fn = rows ? builtin_find(rows, name) : NULL;
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
    if (is_unsafe(v, name))
        return jv_undef(vm, "access to attribute '%.*s' of '%s' object is unsafe.", n, name.p,
                        jv_type_name(v));
    return jv_undef(vm, "'%.*s' has no attribute '%.*s'", (int)of.n, of.p, n, name.p);
}

struct jv op_attr(struct jvm *vm, struct jv v, struct slice name)
{
    if (v.t == J_UNDEF)
        return use_of_undefined(vm, v, v);
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
        return use_of_undefined(vm, v, v);
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
            use_of_undefined(vm, v, v);
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
    const struct jstr *s = v.u.s;
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
        return use_of_undefined(vm, v, v);
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
