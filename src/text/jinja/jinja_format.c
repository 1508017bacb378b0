/* jinja_format.c -- Python's two ways to format: "%-5s" % values and "{:>5}".format(values).
 *
 * Both end in one spec, [[fill]align][sign][#][0][width][,][.precision][type], for one value. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

struct spec {
    uint32_t fill; /* 0: not given */
    enum jfrom fill_from;
    char align; /* < > = ^, 0: by type */
    char sign;  /* + - or blank */
    int alternate, zero;
    char group;           /* , or _ */
    int width, precision; /* -1: not given */
    char type;
};

enum { WIDTH_MAX = 1 << 20, PRECISION_MAX = 300 };

static void pad(struct jbuild *b, struct slice prefix, struct slice body, const struct spec *s,
                char dflt)
{
    struct jstr t = {body.p, body.n, SIZE_MAX, NULL};
    size_t have = prefix.n + str_n_cp(&t),
           n = s->width > 0 && (size_t)s->width > have ? (size_t)s->width - have : 0;
    char align = s->align ? s->align : dflt;
    size_t left = align == '>'   ? n
                  : align == '^' ? n / 2
                                 : 0,
           inner = align == '=' ? n : 0, right = n - left - inner;
    uint32_t fill = s->fill ? s->fill : ' ';
    if (!vm_charge(b->vm, n / 16))
        return;
    for (size_t i = 0; i < left; i++)
        jb_cp(b, s->fill_from, fill);
    jb_slice(b, prefix);
    for (size_t i = 0; i < inner; i++)
        jb_cp(b, s->fill_from, fill);
    jb_slice(b, body);
    for (size_t i = 0; i < right; i++)
        jb_cp(b, s->fill_from, fill);
}

/* Digits before the point. */
static size_t whole_digits(const char *digits, int every)
{
    return strspn(digits, every == 3 ? "0123456789" : "0123456789abcdefABCDEF");
}

/* How many zeros in front make a grouped number as wide as wanted; one that would begin with a
 * separator gets one more. */
static size_t zeros_to_fill(const char *digits, size_t prefix, int width, int every)
{
    size_t whole = whole_digits(digits, every), rest = strlen(digits) - whole + prefix, n = whole;
    while (n + (n - 1) / (size_t)every + rest < (size_t)width)
        n++;
    return n - whole;
}

/* digits with a separator every three (four in other bases) digits of the whole part, and zeros in
 * front */
static void group_digits(struct jbuild *b, const char *digits, size_t zeros, char group, int every)
{
    size_t whole = whole_digits(digits, every) + zeros;
    for (size_t i = 0; i < whole; i++) {
        if (i && group && (whole - i) % (size_t)every == 0)
            jb_put(b, &group, 1);
        jb_put(b, i < zeros ? "0" : digits + (i - zeros), 1);
    }
    jb_from(b, FROM_VALUE, NULL, digits + (whole - zeros), strlen(digits + (whole - zeros)));
}

static void put_number(struct jbuild *b, int negative, const char *radix, const char *digits,
                       const struct spec *s, int every)
{
    struct jbuild body = {.vm = b->vm};
    char prefix[4];
    const char *sign = negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
    snprintf(prefix, sizeof prefix, "%s%s", sign, s->alternate ? radix : "");
    struct spec t = *s;
    if (s->zero) {
        t.align = t.align ? t.align : '=';
        t.fill = t.fill ? t.fill : '0';
    }
    size_t zeros = t.align == '=' && t.fill == '0' && s->group && s->width > 0
                       ? zeros_to_fill(digits, strlen(prefix), s->width, every)
                       : 0;
    group_digits(&body, digits, zeros, s->group, every);
    pad(b, slice_of(prefix), jb_text(&body), &t, '>');
}

static void format_int(struct jbuild *b, struct jv v, const struct spec *s)
{
    char digits[80];
    size_t n = sizeof digits - 1;
    uint64_t u = v.u.i < 0 ? 0 - (uint64_t)v.u.i : (uint64_t)v.u.i;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16
                    : s->type == 'o'                 ? 8
                    : s->type == 'b'                 ? 2
                                                     : 10;
    const char *set = s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    if (v.t == J_BIG) {
        struct slice t = jv_text(v);
        struct jbuild z = {.vm = b->vm};
        int negative = t.p[0] == '-';
        jb_put(&z, t.p + negative, t.n - (size_t)negative);
        jb_put(&z, "", 1);
        if (base != 10)
            vm_fail(b->vm, "integer too large to format in base %u", base);
        else if (!b->vm->failed)
            put_number(b, negative, "", z.p, s, 3);
        return;
    }
    digits[n] = 0;
    do
        digits[--n] = set[u % base];
    while (u /= base);
    while (s->precision > 0 && sizeof digits - 1 - n < (size_t)s->precision && n > 0)
        digits[--n] = '0';
    const char *radix = base == 16  ? (s->type == 'X' ? "0X" : "0x")
                        : base == 8 ? "0o"
                        : base == 2 ? "0b"
                                    : "";
    put_number(b, v.u.i < 0, radix, digits + n, s, base == 10 ? 3 : 4);
}

/* What repr gives, or g with precision, with ".0" so that it reads as a float: type 0 */
static void format_float(struct jbuild *b, double f, const struct spec *s)
{
    char digits[700], fmt[8] = "%.*f";
    int precision = s->precision < 0 ? 6 : s->precision;
    char type = s->type;
    if (type == 0 && s->precision < 0) {
        struct jbuild t = {.vm = b->vm};
        jb_float(&t, FROM_VALUE, fabs(f));
        jb_put(&t, "", 1);
        if (!b->vm->failed)
            put_number(b, signbit(f) && !isnan(f), "", t.p, s, 3);
        return;
    }
    if (type == '%')
        f *= 100;
    if ((type == 'g' || type == 'G' || type == 0 || type == 'n') && precision == 0)
        precision = 1;
    fmt[3] = type == '%' ? 'f' : type == 0 || type == 'n' ? 'g' : type;
    if (s->alternate)
        memcpy(fmt, (char[]){'%', '#', '.', '*', fmt[3], 0}, 6);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(digits, sizeof digits - 2, fmt, precision, fabs(f));
#pragma GCC diagnostic pop
    if (type == 0 && !strpbrk(digits, ".en"))
        memcpy(digits + strlen(digits), ".0", 3);
    if (type == '%')
        memcpy(digits + strlen(digits), "%", 2);
    struct spec t = *s;
    t.alternate = 0;
    put_number(b, signbit(f) && !isnan(f), "", digits, &t, 3);
}

static void format_str(struct jbuild *b, struct slice text, const struct spec *s)
{
    struct jstr t = {text.p, text.n, SIZE_MAX, NULL};
    if (s->precision >= 0)
        text.n = str_offset(&t, (size_t)s->precision);
    pad(b, SLICE(""), text, s, '<');
}

/* ---------------------------------------------------------------- "..." % values */

/* A format decides what its text becomes: one that a request gives would be a template. */
static struct jv value_as_format(struct jvm *vm)
{
    return vm_fail(vm, "a value of the request is used as a format, wanted text of the template");
}

static int read_number(struct slice f, size_t *i, int most, int *out)
{
    *out = 0;
    for (; *i < f.n && isdigit((unsigned char)f.p[*i]); (*i)++) {
        *out = *out * 10 + (f.p[*i] - '0');
        if (*out > most)
            return 0;
    }
    return 1;
}

struct percent {
    struct jvm *vm;
    struct jv args;
    size_t used;
};

static struct jv next_arg(struct percent *p)
{
    if (p->args.t == J_TUPLE)
        return p->used < p->args.u.l->n ? p->args.u.l->v[p->used++]
                                        : vm_fail(p->vm, "not enough arguments for format string");
    return p->used++ ? vm_fail(p->vm, "not enough arguments for format string") : p->args;
}

static int star_or_number(struct percent *p, struct slice f, size_t *i, int most, int *out)
{
    if (*i < f.n && f.p[*i] == '*') {
        struct jv v = next_arg(p);
        (*i)++;
        if (!jv_is_int(v) || v.u.i > most || v.u.i < -most) {
            vm_fail(p->vm, "* wants int");
            return 0;
        }
        *out = (int)v.u.i;
        return 1;
    }
    if (!read_number(f, i, most, out))
        vm_fail(p->vm, "a width or precision is too large");
    return !p->vm->failed;
}

static void percent_value(struct percent *p, struct jbuild *b, struct jv v, struct spec *s)
{
    struct jbuild t = {.vm = p->vm};
    double f = 0;
    char type = s->type;
    if (type == 's' || type == 'r' || type == 'a') {
        type == 's' ? jb_str(&t, v) : jb_repr(&t, v, 0);
        s->zero = 0;
        s->align = s->align ? s->align : '>';
        format_str(b, jb_text(&t), s);
    } else if (type == 'c') {
        if (jv_is_int(v) && v.u.i >= 0 && v.u.i <= 0x10ffff)
            jb_cp(&t, FROM_VALUE, (uint32_t)v.u.i);
        else if (v.t == J_STR && str_n_cp(v.u.s) == 1)
            jb_slice(&t, jv_text(v));
        else
            vm_fail(p->vm, "%%c requires int or char");
        s->align = s->align ? s->align : '>';
        format_str(b, jb_text(&t), s);
    } else if (strchr("diuxXo", type)) {
        if (v.t == J_FLOAT && strchr("diu", type))
            v = float_to_int(p->vm, v.u.f);
        if (!jv_is_int(v) && v.t != J_BIG)
            vm_fail(p->vm, "%%%c format: a%s number is required, not %s", type,
                    strchr("diu", type) ? " real" : "n integer", jv_type_name(v));
        else
            format_int(b, v, s);
    } else if (strchr("eEfFgG", type)) {
        if (jv_number(v, &f))
            format_float(b, f, s);
        else
            vm_fail(p->vm, "must be real number, not %s", jv_type_name(v));
    } else {
        vm_fail(p->vm, "unsupported format character '%c'", type);
    }
}

/* Behind a '%'. */
static void percent_one(struct percent *p, struct jbuild *b, struct slice f, size_t *i)
{
    struct spec s = {.width = -1, .precision = -1, .fill_from = FROM_TEMPLATE};
    struct jv v = {0};
    if (*i < f.n && f.p[*i] == '(') {
        size_t from = ++*i;
        while (*i < f.n && f.p[*i] != ')')
            (*i)++;
        if (p->args.t != J_DICT || *i >= f.n) {
            vm_fail(p->vm, "format requires a mapping");
            return;
        }
        const struct jv *at = jdict_getz(p->vm, p->args.u.d, (struct slice){f.p + from, *i - from});
        if (!at) {
            vm_fail(p->vm, "'%.*s'", *i - from > 100 ? 100 : (int)(*i - from), f.p + from);
            return;
        }
        v = *at;
        p->used = 1;
        (*i)++;
    }
    for (; *i < f.n && f.p[*i] && strchr("#0- +", f.p[*i]); (*i)++) {
        char c = f.p[*i];
        s.alternate |= c == '#';
        s.zero |= c == '0';
        s.align = c == '-' ? '<' : s.align;
        s.sign = c == '+' ? '+' : c == ' ' && !s.sign ? ' ' : s.sign;
    }
    if (!star_or_number(p, f, i, WIDTH_MAX, &s.width))
        return;
    if (s.width < 0) {
        s.align = '<';
        s.width = -s.width;
    }
    if (*i < f.n && f.p[*i] == '.') {
        (*i)++;
        if (!star_or_number(p, f, i, PRECISION_MAX, &s.precision))
            return;
    }
    while (*i < f.n && (f.p[*i] == 'l' || f.p[*i] == 'h' || f.p[*i] == 'L'))
        (*i)++;
    if (*i >= f.n) {
        vm_fail(p->vm, "incomplete format");
        return;
    }
    s.type = f.p[(*i)++];
    s.zero &= s.align != '<';
    if (s.type == '%')
        jb_putz(b, "%");
    else if (v.t != J_UNSET || (v = next_arg(p)).t != J_UNSET)
        percent_value(p, b, v, &s);
}

struct jv format_percent(struct jvm *vm, struct jv fmt, struct jv args)
{
    struct slice f = jv_text(fmt);
    struct percent p = {.vm = vm, .args = args};
    struct jbuild b = {.vm = vm};
    if (vm->marked && text_has_value(vm, f))
        return value_as_format(vm);
    for (size_t i = 0; i < f.n && !vm->failed;) {
        size_t from = i;
        while (i < f.n && f.p[i] != '%')
            i++;
        jb_put(&b, f.p + from, i - from);
        if (i < f.n) {
            i++;
            percent_one(&p, &b, f, &i);
        }
    }
    if (!vm->failed && (args.t == J_TUPLE ? p.used < args.u.l->n
                                          : !p.used && args.t != J_DICT && args.t != J_LIST &&
                                                args.t != J_RANGE && args.t != J_UNDEF))
        return vm_fail(vm, "not all arguments converted during string formatting");
    struct jv r = jb_value(&b);
    r.safe = fmt.safe;
    return r;
}

/* ---------------------------------------------------------------- "{}".format(values) */

static int read_spec(struct jvm *vm, struct slice f, struct spec *s)
{
    uint32_t cp = 0;
    size_t i = 0, len = f.n ? (size_t)utf8_decode(f.p, f.n, &cp) : 0;
    *s = (struct spec){.width = -1, .precision = -1};
    s->fill_from = text_has_value(vm, f) ? FROM_VALUE : FROM_TEMPLATE;
    if (len < f.n && f.p[len] && strchr("<>=^", f.p[len])) {
        s->fill = cp;
        s->align = f.p[len];
        i = len + 1;
    } else if (f.n && f.p[0] && strchr("<>=^", f.p[0])) {
        s->align = f.p[i++];
    }
    if (i < f.n && f.p[i] && strchr("+- ", f.p[i]))
        s->sign = f.p[i++];
    s->alternate = i < f.n && f.p[i] == '#' && ++i;
    s->zero = i < f.n && f.p[i] == '0' && ++i;
    if (i < f.n && isdigit((unsigned char)f.p[i]) && !read_number(f, &i, WIDTH_MAX, &s->width))
        vm_fail(vm, "a width is too large");
    if (i < f.n && (f.p[i] == ',' || f.p[i] == '_'))
        s->group = f.p[i++];
    if (i < f.n && f.p[i] == '.') {
        i++;
        if (!(i < f.n && isdigit((unsigned char)f.p[i])) ||
            !read_number(f, &i, PRECISION_MAX, &s->precision))
            vm_fail(vm, "Format specifier missing precision");
    }
    if (i < f.n)
        s->type = f.p[i++];
    if (i < f.n)
        vm_fail(vm, "Invalid format specifier");
    return !vm->failed;
}

static void format_value(struct jbuild *b, struct jv v, struct slice text)
{
    struct jvm *vm = b->vm;
    struct spec s;
    double f;
    if (!text.n) {
        jb_str(b, v);
        return;
    }
    if (!read_spec(vm, text, &s))
        return;
    int is_int = jv_is_int(v) || v.t == J_BIG;
    if (is_int && s.type == 'c' && v.u.i >= 0 && v.u.i <= 0x10ffff && v.t != J_BIG)
        jb_cp(b, FROM_VALUE, (uint32_t)v.u.i);
    else if (is_int && (!s.type || strchr("dnxXob", s.type)) && s.precision < 0)
        format_int(b, v, &s);
    else if ((is_int || v.t == J_FLOAT) && (!s.type || strchr("eEfFgGn%", s.type)) &&
             jv_number(v, &f))
        format_float(b, f, &s);
    else if ((v.t == J_STR || v.t == J_UNDEF) && (!s.type || s.type == 's') && s.align != '=') {
        struct jv t = jv_to_str(vm, v);
        s.fill = s.fill ? s.fill : s.zero ? '0' : 0;
        if (!vm->failed)
            format_str(b, jv_text(t), &s);
    } else {
        vm_fail(vm, "unsupported format string passed to %s.__format__", jv_type_name(v));
    }
}

struct braces {
    struct jvm *vm;
    const struct jargs *args;
    int64_t next; /* of automatic numbering; -1: numbers are given */
};

static struct jv positional(struct braces *p, int64_t i)
{
    return i < (int64_t)p->args->n_pos
               ? p->args->pos[i]
               : vm_fail(p->vm, "Replacement index %lld out of range for positional args tuple",
                         (long long)i);
}

/* name.attribute[key] */
static struct jv field_value(struct braces *p, struct slice name)
{
    size_t end = 0;
    struct jv v = {0}, index;
    while (end < name.n && name.p[end] != '.' && name.p[end] != '[')
        end++;
    struct slice first = {name.p, end};
    if (end == 0) {
        v = p->next < 0
                ? vm_fail(
                      p->vm,
                      "cannot switch from manual field specification to automatic field numbering")
                : positional(p, p->next++);
    } else if (parse_int(first, 10, &index, p->vm) && index.t == J_INT && index.u.i >= 0) {
        v = p->next > 0
                ? vm_fail(
                      p->vm,
                      "cannot switch from automatic field numbering to manual field specification")
                : positional(p, index.u.i);
        p->next = -1;
    } else {
        for (size_t i = 0; i < p->args->n_kw; i++) {
            if (slice_eq(jv_text(p->args->kw[i].k), first))
                v = p->args->kw[i].v;
        }
        if (v.t == J_UNSET)
            return vm_fail(p->vm, "'%.*s'", first.n > 100 ? 100 : (int)first.n, first.p);
    }
    while (end < name.n && !p->vm->failed) {
        int bracket = name.p[end++] == '[';
        size_t from = end;
        while (end < name.n &&
               (bracket ? name.p[end] != ']' : name.p[end] != '.' && name.p[end] != '['))
            end++;
        struct slice part = {name.p + from, end - from};
        end += bracket && end < name.n;
        v = !bracket ? op_attr(p->vm, v, part)
            : parse_int(part, 10, &index, p->vm) && part.n
                ? op_item(p->vm, v, index)
                : op_item(p->vm, v, jv_view(p->vm, part.p, part.n));
        if (v.t == J_UNDEF)
            return jv_use_undef(p->vm, v);
    }
    return v;
}

/* Expands the fields inside a spec: one level. */
static struct slice nested_spec(struct braces *p, struct slice spec)
{
    struct jbuild b = {.vm = p->vm};
    if (!spec.n || !memchr(spec.p, '{', spec.n))
        return spec;
    for (size_t i = 0; i < spec.n && !p->vm->failed; i++) {
        if (spec.p[i] != '{') {
            jb_put(&b, spec.p + i, 1);
            continue;
        }
        size_t from = ++i;
        while (i < spec.n && spec.p[i] != '}')
            i++;
        jb_str(&b, field_value(p, (struct slice){spec.p + from, i - from}));
    }
    return jb_text(&b);
}

/* Behind '{'; *i is left behind its '}'. */
static void replacement(struct braces *p, struct jbuild *b, struct slice f, size_t *i)
{
    size_t from = *i, depth = 1, name_end, spec = SIZE_MAX;
    char conversion = 0;
    for (; *i < f.n && depth; (*i)++)
        depth += f.p[*i] == '{' ? 1 : f.p[*i] == '}' ? (size_t)-1 : 0;
    if (depth) {
        vm_fail(p->vm, "expected '}' before end of string");
        return;
    }
    size_t end = *i - 1;
    for (name_end = from; name_end < end && f.p[name_end] != '!' && f.p[name_end] != ':';
         name_end++)
        continue;
    if (name_end < end && f.p[name_end] == '!') {
        conversion = name_end + 1 < end ? f.p[name_end + 1] : '?';
        spec = name_end + 2 < end ? name_end + 2 : SIZE_MAX;
    } else if (name_end < end) {
        spec = name_end;
    }
    if (spec != SIZE_MAX && f.p[spec] != ':') {
        vm_fail(p->vm, "expected ':' after conversion specifier");
        return;
    }
    struct jv v = field_value(p, (struct slice){f.p + from, name_end - from});
    if (conversion) {
        struct jbuild t = {.vm = p->vm};
        if (conversion != 'r' && conversion != 's' && conversion != 'a')
            vm_fail(p->vm, "Unknown conversion specifier '%c'", conversion);
        conversion == 's' ? jb_str(&t, v) : jb_repr(&t, v, 0);
        v = jb_value(&t);
    }
    if (!p->vm->failed)
        format_value(b, v,
                     nested_spec(p, spec == SIZE_MAX
                                        ? SLICE("")
                                        : (struct slice){f.p + spec + 1, end - spec - 1}));
}

struct jv format_braces(struct jvm *vm, struct slice f, const struct jargs *args)
{
    struct braces p = {.vm = vm, .args = args};
    struct jbuild b = {.vm = vm};
    if (vm->marked && text_has_value(vm, f))
        return value_as_format(vm);
    for (size_t i = 0; i < f.n && !vm->failed;) {
        char c = f.p[i++];
        if (c != '{' && c != '}') {
            jb_put(&b, f.p + i - 1, 1);
        } else if (i < f.n && f.p[i] == c) {
            jb_put(&b, f.p + i++, 1);
        } else if (c == '}') {
            vm_fail(vm, "Single '}' encountered in format string");
        } else {
            replacement(&p, &b, f, &i);
        }
    }
    return jb_value(&b);
}
