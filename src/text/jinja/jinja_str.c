/* jinja_str.c -- the methods of str; arg[0] is the object. */
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- arguments */

static struct slice self(const struct jcall *c)
{
    return jv_text(c->arg[0]);
}

/* A string argument; 0 and failure otherwise. */
static int str_arg(struct jvm *vm, struct jv v, struct slice *out)
{
    if (v.t != J_STR) {
        vm_fail(vm, "argument must be str, not %s", jv_type_name(v));
        return 0;
    }
    *out = jv_text(v);
    return 1;
}

/* What comes from a safe string is safe. */
static struct jv like_self(const struct jcall *c, struct jv v)
{
    v.safe = v.t == J_STR ? c->arg[0].safe : v.safe;
    return v;
}

static struct jv part(struct jvm *vm, const struct jcall *c, struct slice s)
{
    return like_self(c, jv_view(vm, s.p, s.n));
}

/* [start, end) of code points as bytes. 0 and failure on a bad argument; -1 when start is behind
 * the end. */
static int range_args(struct jvm *vm, struct jcall *c, int first, size_t *from, size_t *to)
{
    struct jstr *s = c->arg[0].u.s;
    int64_t n = (int64_t)str_n_cp(s), a, b;
    if (!arg_int(vm, c->arg[first], 0, &a) || !arg_int(vm, c->arg[first + 1], n, &b))
        return 0;
    a = a < 0 ? (a < -n ? 0 : a + n) : a;
    b = b < 0 ? (b < -n ? 0 : b + n) : b > n ? n : b;
    if (a > n || a > b)
        return -1;
    *from = str_offset(s, (size_t)a);
    *to = str_offset(s, (size_t)b);
    return 1;
}

/* ---------------------------------------------------------------- str: case, strip, affixes */

static struct jv m_upper(struct jvm *vm, struct jcall *c)
{
    return like_self(c, text_case(vm, self(c), CASE_UPPER));
}

static struct jv m_lower(struct jvm *vm, struct jcall *c)
{
    return like_self(c, text_case(vm, self(c), CASE_LOWER));
}

static struct jv m_capitalize(struct jvm *vm, struct jcall *c)
{
    return like_self(c, text_case(vm, self(c), CASE_CAPITAL));
}

static struct jv m_title(struct jvm *vm, struct jcall *c)
{
    return like_self(c, text_case(vm, self(c), CASE_TITLE));
}

static struct jv m_swapcase(struct jvm *vm, struct jcall *c)
{
    return like_self(c, text_case(vm, self(c), CASE_SWAP));
}

static struct jv m_casefold(struct jvm *vm, struct jcall *c)
{
    struct jv low = text_case(vm, self(c), CASE_LOWER);
    return vm->failed ? low : text_replace(vm, jv_text(low), SLICE("\xc3\x9f"), SLICE("ss"), -1);
}

static struct jv strip(struct jvm *vm, struct jcall *c, int left, int right)
{
    struct slice chars = {0};
    int given = c->arg[1].t != J_UNSET && c->arg[1].t != J_NONE;
    if (given && !str_arg(vm, c->arg[1], &chars))
        return (struct jv){0};
    return part(vm, c, slice_strip(self(c), given ? &chars : NULL, left, right));
}

static struct jv m_strip(struct jvm *vm, struct jcall *c)
{
    return strip(vm, c, 1, 1);
}

static struct jv m_lstrip(struct jvm *vm, struct jcall *c)
{
    return strip(vm, c, 1, 0);
}

static struct jv m_rstrip(struct jvm *vm, struct jcall *c)
{
    return strip(vm, c, 0, 1);
}

static int has_affix(struct slice s, struct slice what, int at_end)
{
    return what.n <= s.n && memcmp(at_end ? s.p + s.n - what.n : s.p, what.p, what.n) == 0;
}

static struct jv affix(struct jvm *vm, struct jcall *c, int at_end)
{
    size_t from, to;
    struct slice what;
    int ok = range_args(vm, c, 2, &from, &to);
    if (ok <= 0)
        return ok ? jv_bool(0) : (struct jv){0};
    struct slice s = {self(c).p + from, to - from};
    if (c->arg[1].t != J_TUPLE)
        return str_arg(vm, c->arg[1], &what) ? jv_bool(has_affix(s, what, at_end)) : (struct jv){0};
    for (size_t i = 0; i < c->arg[1].u.l->n; i++) {
        if (!str_arg(vm, c->arg[1].u.l->v[i], &what))
            return (struct jv){0};
        if (has_affix(s, what, at_end))
            return jv_bool(1);
    }
    return jv_bool(0);
}

static struct jv m_startswith(struct jvm *vm, struct jcall *c)
{
    return affix(vm, c, 0);
}

static struct jv m_endswith(struct jvm *vm, struct jcall *c)
{
    return affix(vm, c, 1);
}

static struct jv remove_affix(struct jvm *vm, struct jcall *c, int at_end)
{
    struct slice s = self(c), what;
    if (!str_arg(vm, c->arg[1], &what))
        return (struct jv){0};
    if (has_affix(s, what, at_end)) {
        s.n -= what.n;
        s.p += at_end ? 0 : what.n;
    }
    return part(vm, c, s);
}

static struct jv m_removeprefix(struct jvm *vm, struct jcall *c)
{
    return remove_affix(vm, c, 0);
}

static struct jv m_removesuffix(struct jvm *vm, struct jcall *c)
{
    return remove_affix(vm, c, 1);
}

/* ---------------------------------------------------------------- str: search */

/* Byte offset of the first or last place of arg[1] between the bounds, SIZE_MAX. */
static size_t search(struct jvm *vm, struct jcall *c, int last)
{
    struct slice what;
    size_t from, to, found = SIZE_MAX;
    if (!str_arg(vm, c->arg[1], &what) || range_args(vm, c, 2, &from, &to) <= 0 ||
        !vm_charge(vm, (to - from) / 64))
        return SIZE_MAX;
    struct slice s = {self(c).p, to};
    if (last && what.n == 0)
        return to;
    for (size_t at = slice_find(s, what, from); at != SIZE_MAX; at = slice_find(s, what, at + 1)) {
        found = at;
        if (!last)
            break;
    }
    return found;
}

static struct jv cp_index(struct jvm *vm, struct jcall *c, size_t at, int must)
{
    struct jstr before = {self(c).p, at, SIZE_MAX, NULL};
    if (at == SIZE_MAX)
        return must && !vm->failed ? vm_fail(vm, "substring not found") : jv_int(-1);
    return jv_int((int64_t)str_n_cp(&before));
}

static struct jv m_find(struct jvm *vm, struct jcall *c)
{
    return cp_index(vm, c, search(vm, c, 0), 0);
}

static struct jv m_rfind(struct jvm *vm, struct jcall *c)
{
    return cp_index(vm, c, search(vm, c, 1), 0);
}

static struct jv m_index(struct jvm *vm, struct jcall *c)
{
    return cp_index(vm, c, search(vm, c, 0), 1);
}

static struct jv m_rindex(struct jvm *vm, struct jcall *c)
{
    return cp_index(vm, c, search(vm, c, 1), 1);
}

static struct jv m_count(struct jvm *vm, struct jcall *c)
{
    struct slice what;
    size_t from, to;
    int64_t n = 0;
    if (!str_arg(vm, c->arg[1], &what))
        return (struct jv){0};
    int ok = range_args(vm, c, 2, &from, &to);
    if (ok <= 0 || !vm_charge(vm, (to - from) / 64))
        return ok < 0 ? jv_int(0) : (struct jv){0};
    struct slice s = {self(c).p, to};
    if (!what.n) {
        struct jstr inside = {s.p + from, to - from, SIZE_MAX, NULL};
        return jv_int((int64_t)str_n_cp(&inside) + 1);
    }
    for (size_t at = slice_find(s, what, from); at != SIZE_MAX;
         at = slice_find(s, what, at + what.n))
        n++;
    return jv_int(n);
}

static struct jv m_replace(struct jvm *vm, struct jcall *c)
{
    struct slice old, fresh;
    int64_t count;
    if (!str_arg(vm, c->arg[1], &old) || !str_arg(vm, c->arg[2], &fresh) ||
        !arg_int(vm, c->arg[3], -1, &count))
        return (struct jv){0};
    return like_self(c, text_replace(vm, self(c), old, fresh, count));
}

/* ---------------------------------------------------------------- str: split and join */

struct parts {
    struct jvm *vm;
    const struct jcall *c;
    struct jv *v;
    size_t n, cap;
};

static void add_part(struct parts *p, const char *from, size_t n)
{
    if (p->n == p->cap) {
        size_t cap = 2 * p->cap + 8;
        struct jv *v = vm_array(p->vm, cap, sizeof *v);
        if (!v)
            return;
        if (p->n)
            memcpy(v, p->v, p->n * sizeof *v);
        p->v = v;
        p->cap = cap;
    }
    if (vm_charge(p->vm, 1))
        p->v[p->n++] = part(p->vm, p->c, (struct slice){from, n});
}

static struct jv parts_list(struct parts *p, int reversed)
{
    for (size_t i = 0; reversed && i < p->n / 2; i++) {
        struct jv x = p->v[i];
        p->v[i] = p->v[p->n - 1 - i];
        p->v[p->n - 1 - i] = x;
    }
    return p->vm->failed ? (struct jv){0} : jv_list(p->vm, J_LIST, p->v, p->n);
}

static size_t word_end(struct slice s, size_t at)
{
    while (at < s.n) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(s.p + at, s.n - at, &cp);
        if (cp_is_space(cp))
            break;
        at += len;
    }
    return at;
}

static size_t word_begin(struct slice s)
{
    size_t at = s.n;
    while (at > 0) {
        size_t b = at - 1;
        uint32_t cp;
        while (b > 0 && ((unsigned char)s.p[b] & 0xc0) == 0x80)
            b--;
        utf8_decode(s.p + b, s.n - b, &cp);
        if (cp_is_space(cp))
            break;
        at = b;
    }
    return at;
}

static void split_words(struct parts *p, struct slice s, int64_t most, int from_right)
{
    while (!p->vm->failed) {
        s = slice_strip(s, NULL, !from_right, from_right);
        if (!s.n)
            return;
        if (most-- == 0) {
            s = slice_strip(s, NULL, from_right, !from_right && 0);
            add_part(p, s.p, s.n);
            return;
        }
        if (from_right) {
            size_t at = word_begin(s);
            add_part(p, s.p + at, s.n - at);
            s.n = at;
        } else {
            size_t at = word_end(s, 0);
            add_part(p, s.p, at);
            s.p += at;
            s.n -= at;
        }
    }
}

static size_t find_last(struct slice s, struct slice what)
{
    for (size_t at = s.n - what.n + 1; what.n <= s.n && at-- > 0;) {
        if (memcmp(s.p + at, what.p, what.n) == 0)
            return at;
    }
    return SIZE_MAX;
}

static struct jv split(struct jvm *vm, struct jcall *c, int from_right)
{
    struct parts p = {.vm = vm, .c = c};
    struct slice s = self(c), sep;
    int64_t most;
    if (!arg_int(vm, c->arg[2], -1, &most) || !vm_charge(vm, s.n / 64))
        return (struct jv){0};
    if (c->arg[1].t == J_UNSET || c->arg[1].t == J_NONE) {
        split_words(&p, s, most, from_right);
        return parts_list(&p, from_right);
    }
    if (!str_arg(vm, c->arg[1], &sep))
        return (struct jv){0};
    if (!sep.n)
        return vm_fail(vm, "empty separator");
    while (most-- != 0 && !vm->failed) {
        size_t at = from_right ? find_last(s, sep) : slice_find(s, sep, 0);
        if (at == SIZE_MAX)
            break;
        size_t behind = at + sep.n;
        if (from_right) {
            add_part(&p, s.p + behind, s.n - behind);
            s.n = at;
        } else {
            add_part(&p, s.p, at);
            s.p += behind;
            s.n -= behind;
        }
    }
    add_part(&p, s.p, s.n);
    return parts_list(&p, from_right);
}

static struct jv m_split(struct jvm *vm, struct jcall *c)
{
    return split(vm, c, 0);
}

static struct jv m_rsplit(struct jvm *vm, struct jcall *c)
{
    return split(vm, c, 1);
}

static int ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static struct jv m_splitlines(struct jvm *vm, struct jcall *c)
{
    struct parts p = {.vm = vm, .c = c};
    struct slice s = self(c);
    int keep = jv_truth(c->arg[1]);
    size_t from = 0;
    for (size_t i = 0; i < s.n && !vm->failed;) {
        uint32_t cp;
        size_t at = i;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        if (!ends_line(cp))
            continue;
        i += cp == '\r' && i < s.n && s.p[i] == '\n';
        add_part(&p, s.p + from, (keep ? i : at) - from);
        from = i;
    }
    if (from < s.n)
        add_part(&p, s.p + from, s.n - from);
    return parts_list(&p, 0);
}

static struct jv partition(struct jvm *vm, struct jcall *c, int last)
{
    struct slice s = self(c), sep;
    struct jv *v = vm_array(vm, 3, sizeof *v);
    if (!v || !str_arg(vm, c->arg[1], &sep))
        return (struct jv){0};
    if (!sep.n)
        return vm_fail(vm, "empty separator");
    size_t at = last ? find_last(s, sep) : slice_find(s, sep, 0);
    if (at == SIZE_MAX) {
        v[0] = v[1] = v[2] = jv_view(vm, "", 0);
        v[last ? 2 : 0] = c->arg[0];
    } else {
        v[0] = part(vm, c, (struct slice){s.p, at});
        v[1] = part(vm, c, (struct slice){s.p + at, sep.n});
        v[2] = part(vm, c, (struct slice){s.p + at + sep.n, s.n - at - sep.n});
    }
    return jv_list(vm, J_TUPLE, v, 3);
}

static struct jv m_partition(struct jvm *vm, struct jcall *c)
{
    return partition(vm, c, 0);
}

static struct jv m_rpartition(struct jvm *vm, struct jcall *c)
{
    return partition(vm, c, 1);
}

static struct jv m_join(struct jvm *vm, struct jcall *c)
{
    struct jlist l;
    struct jbuild b = {.vm = vm};
    if (!jv_items(vm, c->arg[1], &l))
        return (struct jv){0};
    for (size_t i = 0; i < l.n && !vm->failed; i++) {
        if (l.v[i].t != J_STR)
            return vm_fail(vm, "sequence item %zu: expected str instance, %s found", i,
                           jv_type_name(l.v[i]));
        if (i)
            jb_slice(&b, self(c));
        (c->arg[0].safe && !l.v[i].safe ? jb_escape : jb_slice)(&b, jv_text(l.v[i]));
    }
    return like_self(c, jb_value(&b));
}

/* ---------------------------------------------------------------- str: padding, formatting */

static struct jv justify(struct jvm *vm, struct jcall *c, int where)
{
    struct jbuild b = {.vm = vm};
    struct slice fill = SLICE(" ");
    int64_t width, n = (int64_t)str_n_cp(c->arg[0].u.s);
    if (!arg_int(vm, c->arg[1], 0, &width) ||
        (c->arg[2].t != J_UNSET && !str_arg(vm, c->arg[2], &fill)))
        return (struct jv){0};
    if (c->arg[2].t == J_STR && str_n_cp(c->arg[2].u.s) != 1)
        return vm_fail(vm, "The fill character must be exactly one character long");
    int64_t more = width > n ? width - n : 0;
    /* Python's center puts the odd blank left when the width is odd */
    int64_t left = where == 0 ? 0 : where == 2 ? more : more / 2 + (more & width & 1);
    for (int64_t i = 0; i < left && vm_charge(vm, 1); i++)
        jb_slice(&b, fill);
    jb_slice(&b, self(c));
    for (int64_t i = left; i < more && vm_charge(vm, 1); i++)
        jb_slice(&b, fill);
    return like_self(c, jb_value(&b));
}

static struct jv m_ljust(struct jvm *vm, struct jcall *c)
{
    return justify(vm, c, 0);
}

static struct jv m_rjust(struct jvm *vm, struct jcall *c)
{
    return justify(vm, c, 2);
}

static struct jv m_center(struct jvm *vm, struct jcall *c)
{
    return justify(vm, c, 1);
}

static struct jv m_zfill(struct jvm *vm, struct jcall *c)
{
    struct jbuild b = {.vm = vm};
    struct slice s = self(c);
    int64_t width, n = (int64_t)str_n_cp(c->arg[0].u.s);
    if (!arg_int(vm, c->arg[1], 0, &width))
        return (struct jv){0};
    size_t sign = s.n && (s.p[0] == '-' || s.p[0] == '+');
    jb_put(&b, s.p, sign);
    jb_fill(&b, '0', width > n ? (size_t)(width - n) : 0);
    jb_put(&b, s.p + sign, s.n - sign);
    return like_self(c, jb_value(&b));
}

static struct jv m_expandtabs(struct jvm *vm, struct jcall *c)
{
    struct jbuild b = {.vm = vm};
    struct slice s = self(c);
    int64_t size, column = 0;
    if (!arg_int(vm, c->arg[1], 8, &size))
        return (struct jv){0};
    for (size_t i = 0; i < s.n && !vm->failed; i++) {
        if (s.p[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            jb_fill(&b, ' ', (size_t)n);
            column += n;
        } else {
            jb_put(&b, s.p + i, 1);
            column = s.p[i] == '\n' || s.p[i] == '\r'
                         ? 0
                         : column + (((unsigned char)s.p[i] & 0xc0) != 0x80);
        }
    }
    return like_self(c, jb_value(&b));
}

static struct jv m_format(struct jvm *vm, struct jcall *c)
{
    return like_self(c, format_braces(vm, self(c), &c->rest));
}

static struct jv m_format_map(struct jvm *vm, struct jcall *c)
{
    if (c->arg[1].t != J_DICT)
        return vm_fail(vm, "format_map() wants a mapping, not %s", jv_type_name(c->arg[1]));
    struct jargs args = {.kw = c->arg[1].u.d->p, .n_kw = c->arg[1].u.d->n};
    for (size_t i = 0; i < args.n_kw; i++) {
        if (args.kw[i].k.t != J_STR)
            return vm_fail(vm, "format_map() wants keys that are strings");
    }
    return like_self(c, format_braces(vm, self(c), &args));
}

/* ---------------------------------------------------------------- str: classes of characters */

static int in_class(uint32_t cp, char k)
{
    utf8proc_category_t g = utf8proc_category((utf8proc_int32_t)cp);
    int letter = g >= UTF8PROC_CATEGORY_LU && g <= UTF8PROC_CATEGORY_LO;
    int digit = g == UTF8PROC_CATEGORY_ND ||
                (k != 'c' && (cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
                              (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
                              (cp >= 0x2460 && cp <= 0x2468)));
    int number = digit || g == UTF8PROC_CATEGORY_NL || g == UTF8PROC_CATEGORY_NO;
    switch (k) {
    case 'a':
        return letter;
    case 'n':
        return letter || number;
    case 'c':
    case 'd':
        return digit;
    case 'm':
        return number;
    case 's':
        return cp_is_space(cp);
    default:
        return 0;
    }
}

static struct jv all_in(struct jcall *c, char k)
{
    struct slice s = self(c);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        if (!in_class(cp, k))
            return jv_bool(0);
    }
    return jv_bool(s.n > 0);
}

#define CLASS(name, k)                                                                             \
    static struct jv m_##name(struct jvm *vm, struct jcall *c)                                     \
    {                                                                                              \
        return vm_charge(vm, self(c).n / 16) ? all_in(c, k) : (struct jv){0};                      \
    }
CLASS(isalpha, 'a')
CLASS(isalnum, 'n')
CLASS(isdigit, 'd')
CLASS(isdecimal, 'c')
CLASS(isnumeric, 'm')
CLASS(isspace, 's')

/* up: no lower case and some upper; title: upper case exactly behind no letter */
static struct jv m_case(struct jcall *c, enum text_case how)
{
    struct slice s = self(c);
    int some = 0, behind = 0;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        utf8proc_category_t g = utf8proc_category((utf8proc_int32_t)cp);
        int up = g == UTF8PROC_CATEGORY_LU || g == UTF8PROC_CATEGORY_LT,
            low = g == UTF8PROC_CATEGORY_LL;
        if ((how == CASE_UPPER && low) || (how == CASE_LOWER && up) ||
            (how == CASE_TITLE && ((up && behind) || (low && !behind))))
            return jv_bool(0);
        some |= up || low;
        behind = up || low;
    }
    return jv_bool(some);
}

static struct jv m_isupper(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return m_case(c, CASE_UPPER);
}

static struct jv m_islower(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return m_case(c, CASE_LOWER);
}

static struct jv m_istitle(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return m_case(c, CASE_TITLE);
}

static struct jv m_isascii(struct jvm *vm, struct jcall *c)
{
    (void)vm;
    return jv_bool(str_n_cp(c->arg[0].u.s) == c->arg[0].u.s->n);
}

static struct jv m_isidentifier(struct jvm *vm, struct jcall *c)
{
    struct slice s = self(c);
    (void)vm;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        size_t at = i;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        if (cp != '_' && !(at ? in_class(cp, 'a') || in_class(cp, 'c') : in_class(cp, 'a')))
            return jv_bool(0);
    }
    return jv_bool(s.n > 0);
}

const struct builtin jinja_str_methods[] = {
    {"capitalize", m_capitalize, "s"},
    {"casefold", m_casefold, "s"},
    {"center", m_center, "s width fillchar?"},
    {"count", m_count, "s sub start? end?"},
    {"endswith", m_endswith, "s suffix start? end?"},
    {"expandtabs", m_expandtabs, "s tabsize?"},
    {"find", m_find, "s sub start? end?"},
    {"format", m_format, "s *"},
    {"format_map", m_format_map, "s mapping"},
    {"index", m_index, "s sub start? end?"},
    {"isalnum", m_isalnum, "s"},
    {"isalpha", m_isalpha, "s"},
    {"isascii", m_isascii, "s"},
    {"isdecimal", m_isdecimal, "s"},
    {"isdigit", m_isdigit, "s"},
    {"isidentifier", m_isidentifier, "s"},
    {"islower", m_islower, "s"},
    {"isnumeric", m_isnumeric, "s"},
    {"isspace", m_isspace, "s"},
    {"istitle", m_istitle, "s"},
    {"isupper", m_isupper, "s"},
    {"join", m_join, "s iterable"},
    {"ljust", m_ljust, "s width fillchar?"},
    {"lower", m_lower, "s"},
    {"lstrip", m_lstrip, "s chars?"},
    {"partition", m_partition, "s sep"},
    {"removeprefix", m_removeprefix, "s prefix"},
    {"removesuffix", m_removesuffix, "s suffix"},
    {"replace", m_replace, "s old new count?"},
    {"rfind", m_rfind, "s sub start? end?"},
    {"rindex", m_rindex, "s sub start? end?"},
    {"rjust", m_rjust, "s width fillchar?"},
    {"rpartition", m_rpartition, "s sep"},
    {"rsplit", m_rsplit, "s sep? maxsplit?"},
    {"rstrip", m_rstrip, "s chars?"},
    {"split", m_split, "s sep? maxsplit?"},
    {"splitlines", m_splitlines, "s keepends?"},
    {"startswith", m_startswith, "s prefix start? end?"},
    {"strip", m_strip, "s chars?"},
    {"swapcase", m_swapcase, "s"},
    {"title", m_title, "s"},
    {"upper", m_upper, "s"},
    {"zfill", m_zfill, "s width"},
    {0},
};
