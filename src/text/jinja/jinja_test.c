/* jinja_test.c -- tests: what may stand behind "is", and what select and reject name. */
#include "text/jinja/jinja_impl.h"

#define TEST(name, condition)                                                                      \
    static struct jv t_##name(struct jvm *vm, struct jcall *c)                                     \
    {                                                                                              \
        (void)vm;                                                                                  \
        struct jv v = c->arg[0];                                                                   \
        return jv_bool(condition);                                                                 \
    }

TEST(boolean, v.t == J_BOOL)
TEST(callable, v.t == J_FUNC || v.t == J_METHOD || v.t == J_MACRO || v.t == J_LOOP ||
                   v.t == J_JOINER || v.t == J_UNDEF)
TEST(defined, v.t != J_UNDEF)
TEST(undefined, v.t == J_UNDEF)
TEST(escaped, v.t == J_STR && v.safe)
TEST(true, v.t == J_BOOL && v.u.i)
TEST(false, v.t == J_BOOL && !v.u.i)
TEST(float, v.t == J_FLOAT)
TEST(integer, v.t == J_INT || v.t == J_BIG)
TEST(mapping, v.t == J_DICT)
TEST(none, v.t == J_NONE)
TEST(number, jv_is_int(v) || v.t == J_FLOAT || v.t == J_BIG)
TEST(string, v.t == J_STR)
TEST(iterable, jv_len(v) >= 0 || v.t == J_ITER)
TEST(sequence, v.t == J_STR || jv_is_list(v) || v.t == J_DICT || v.t == J_RANGE || v.t == J_UNDEF)
TEST(filter, v.t == J_STR && filter_find(vm, jv_text(v)))
TEST(test, v.t == J_STR && builtin_find(vm->rows[ROWS_TESTS], jv_text(v)))
TEST(eq, jv_equal(vm, v, c->arg[1]))
TEST(ne, !jv_equal(vm, v, c->arg[1]))
TEST(lt, op_compare(vm, JOP_LT, v, c->arg[1]))
TEST(le, op_compare(vm, JOP_LE, v, c->arg[1]))
TEST(gt, op_compare(vm, JOP_GT, v, c->arg[1]))
TEST(ge, op_compare(vm, JOP_GE, v, c->arg[1]))
TEST(in, jv_contains(vm, c->arg[1], v))

static struct jv remainder_is(struct jvm *vm, struct jv v, struct jv by, int64_t want)
{
    struct jv r = op_binary(vm, JOP_MOD, v, by);
    return vm->failed ? r : jv_bool(jv_equal(vm, r, jv_int(want)));
}

static struct jv t_even(struct jvm *vm, struct jcall *c)
{
    return remainder_is(vm, c->arg[0], jv_int(2), 0);
}

static struct jv t_odd(struct jvm *vm, struct jcall *c)
{
    return remainder_is(vm, c->arg[0], jv_int(2), 1);
}

static struct jv t_divisibleby(struct jvm *vm, struct jcall *c)
{
    return remainder_is(vm, c->arg[0], c->arg[1], 0);
}

/* str(v).islower() and isupper() */
static struct jv t_case(struct jvm *vm, struct jcall *c, const char *method)
{
    struct jv s = jv_to_str(vm, c->arg[0]);
    struct jargs none = {0};
    return vm->failed
               ? s
               : builtin_call(vm, builtin_find(vm->rows[ROWS_STR], slice_of(method)), s, &none);
}

static struct jv t_lower(struct jvm *vm, struct jcall *c)
{
    return t_case(vm, c, "islower");
}

static struct jv t_upper(struct jvm *vm, struct jcall *c)
{
    return t_case(vm, c, "isupper");
}

static struct jv t_sameas(struct jvm *vm, struct jcall *c)
{
    struct jv a = c->arg[0], b = c->arg[1];
    (void)vm;
    if (a.t != b.t)
        return jv_bool(0);
    if (a.t == J_NONE)
        return jv_bool(1);
    if (a.t == J_STR) /* equal ones are one object often enough in Python; here always */
        return jv_bool(slice_eq(jv_text(a), jv_text(b)));
    return jv_bool(a.t == J_FLOAT ? a.u.f == b.u.f : a.u.i == b.u.i);
}

const struct builtin jinja_tests[] = {
    {"boolean", t_boolean, "v"},     {"callable", t_callable, "v"},
    {"defined", t_defined, "v"},     {"divisibleby", t_divisibleby, "v num"},
    {"eq", t_eq, "v other"},         {"equalto", t_eq, "v other"},
    {"==", t_eq, "v other"},         {"escaped", t_escaped, "v"},
    {"even", t_even, "v"},           {"false", t_false, "v"},
    {"filter", t_filter, "v"},       {"float", t_float, "v"},
    {"ge", t_ge, "v other"},         {">=", t_ge, "v other"},
    {"gt", t_gt, "v other"},         {"greaterthan", t_gt, "v other"},
    {">", t_gt, "v other"},          {"in", t_in, "v seq"},
    {"integer", t_integer, "v"},     {"iterable", t_iterable, "v"},
    {"le", t_le, "v other"},         {"<=", t_le, "v other"},
    {"lower", t_lower, "v"},         {"lt", t_lt, "v other"},
    {"lessthan", t_lt, "v other"},   {"<", t_lt, "v other"},
    {"mapping", t_mapping, "v"},     {"ne", t_ne, "v other"},
    {"!=", t_ne, "v other"},         {"none", t_none, "v"},
    {"number", t_number, "v"},       {"odd", t_odd, "v"},
    {"sameas", t_sameas, "v other"}, {"sequence", t_sequence, "v"},
    {"string", t_string, "v"},       {"test", t_test, "v"},
    {"true", t_true, "v"},           {"undefined", t_undefined, "v"},
    {"upper", t_upper, "v"},         {0},
};

int test_run_named(struct jvm *vm, struct slice name, struct jv v, const struct jargs *args)
{
    const struct builtin *fn = builtin_find(vm->rows[ROWS_TESTS], name);
    if (!fn) {
        vm_fail(vm, "No test named '%.*s'.", name.n > 100 ? 100 : (int)name.n, name.p);
        return -1;
    }
    struct jv r = builtin_call(vm, fn, v, args);
    return vm->failed ? -1 : jv_truth(r);
}
