/* jinja_ops.c -- operators with Python's meaning: arithmetic, comparison.
 *
 * Integers are int64; a result outside it is an error, not another number. // and % round to minus
 * infinity, / always gives a float. */
#include <math.h>

#include "text/jinja/jinja_impl.h"

static const char *const signs[] = {[JOP_ADD] = "+",
                                    [JOP_SUB] = "-",
                                    [JOP_MUL] = "*",
                                    [JOP_DIV] = "/",
                                    [JOP_FLOORDIV] = "//",
                                    [JOP_MOD] = "%",
                                    [JOP_POW] = "** or pow()",
                                    [JOP_LT] = "<",
                                    [JOP_LE] = "<=",
                                    [JOP_GT] = ">",
                                    [JOP_GE] = ">="};

/* ---------------------------------------------------------------- arithmetic */

static struct jv bad_operands(struct jvm *vm, enum jop op, struct jv a, struct jv b)
{
    if (a.t == J_UNDEF || b.t == J_UNDEF)
        return jv_use_undef(vm, a.t == J_UNDEF ? a : b);
    if (op == JOP_ADD && (a.t == J_STR || jv_is_list(a)))
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
    case JOP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JOP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JOP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JOP_POW:
        return b < 0 ? (a ? jv_float(pow((double)a, (double)b))
                          : vm_fail(vm, "0.0 cannot be raised to a negative power"))
                     : int_pow(vm, a, b);
    default:
        if (b == 0)
            return vm_fail(vm, op == JOP_DIV ? "division by zero"
                                             : "integer division or modulo by zero");
        if (op == JOP_DIV)
            return jv_float((double)a / (double)b);
        if (b == -1) {
            over = op == JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
        } else {
            int64_t q = a / b, rest = a % b;
            int down = rest != 0 && (rest < 0) != (b < 0);
            r = op == JOP_FLOORDIV ? q - down : rest + (down ? b : 0);
        }
    }
    return over ? vm_fail(vm, "integer too large") : jv_int(r);
}

static struct jv float_op(struct jvm *vm, enum jop op, double a, double b)
{
    switch (op) {
    case JOP_ADD:
        return jv_float(a + b);
    case JOP_SUB:
        return jv_float(a - b);
    case JOP_MUL:
        return jv_float(a * b);
    case JOP_POW: {
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
        return vm_fail(vm, op == JOP_DIV   ? "float division by zero"
                           : op == JOP_MOD ? "float modulo"
                                           : "float floor division by zero");
    if (op == JOP_DIV)
        return jv_float(a / b);
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        q -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (op == JOP_MOD)
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
    if (op == JOP_CONCAT) {
        struct jv s = jv_to_str(vm, a), t = jv_to_str(vm, b);
        s.safe = 0;
        return vm->failed ? s : jv_concat(vm, s, t);
    }
    if (jv_is_int(a) && jv_is_int(b))
        return jv_given(int_op(vm, op, a.u.i, b.u.i), a.safe | b.safe);
    if ((a.t == J_BIG || b.t == J_BIG) && a.t != J_FLOAT && b.t != J_FLOAT && op != JOP_DIV &&
        jv_number(a, &f) && jv_number(b, &g))
        return vm_fail(vm, "integer too large to compute with");
    if (jv_number(a, &f) && jv_number(b, &g))
        return jv_given(float_op(vm, op, f, g), given(a) | given(b));
    if (op == JOP_MOD && a.t == J_STR)
        return format_percent(vm, a, b);
    if (op == JOP_ADD && a.t == J_STR && b.t == J_STR)
        return add_strings(vm, a, b);
    if (op == JOP_ADD && jv_is_list(a) && a.t == b.t)
        return add_lists(vm, a, b);
    if (op == JOP_MUL && (a.t == J_STR || jv_is_list(a)) && jv_is_int(b))
        return repeat(vm, a, b.u.i);
    if (op == JOP_MUL && (b.t == J_STR || jv_is_list(b)) && jv_is_int(a))
        return repeat(vm, b, a.u.i);
    return bad_operands(vm, op, a, b);
}

struct jv op_unary(struct jvm *vm, enum jop op, struct jv a)
{
    if (jv_is_int(a))
        return jv_given(op == JOP_POS ? jv_int(a.u.i) : int_op(vm, JOP_SUB, 0, a.u.i), a.safe);
    if (a.t == J_FLOAT)
        return jv_given(jv_float(op == JOP_NEG ? -a.u.f : a.u.f), a.safe);
    if (a.t == J_UNDEF)
        return jv_use_undef(vm, a);
    if (a.t == J_BIG) {
        struct slice s = jv_text(a);
        struct jbuild b = {.vm = vm};
        int negative = s.p[0] == '-', minus = negative != (op == JOP_NEG);
        jb_putz(&b, minus ? "-" : "");
        jb_put(&b, s.p + negative, s.n - (size_t)negative);
        struct jv v = {0};
        return !vm->failed && parse_int(jb_text(&b), 10, &v, vm) ? jv_given(v, 1) : (struct jv){0};
    }
    return vm_fail(vm, "bad operand type for unary %s: '%s'", op == JOP_NEG ? "-" : "+",
                   jv_type_name(a));
}

int op_compare(struct jvm *vm, enum jop op, struct jv a, struct jv b)
{
    if (op == JOP_EQ || op == JOP_NE)
        return jv_equal(vm, a, b) == (op == JOP_EQ);
    if (op == JOP_IN || op == JOP_NOT_IN)
        return jv_contains(vm, b, a) == (op == JOP_IN);
    int way = jv_order(vm, a, b, signs[op]);
    if (way == 2)
        return 0;
    return op == JOP_LT ? way < 0 : op == JOP_LE ? way <= 0 : op == JOP_GT ? way > 0 : way >= 0;
}
