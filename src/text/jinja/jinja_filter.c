/* jinja_filter.c -- filters of single values: texts, numbers, JSON. arg[0] is what stands before
 * the '|'. The filters of sequences are in jinja_seq.c.
 *
 * Reference: Jinja 3.1 documentation, List of Builtin Filters; tojson as transformers defines it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

/* arg[i] as text; 0 on failure. */
static int text_arg(struct jvm *vm, struct jcall *c, int i, struct slice *out)
{
    struct jv s = jv_to_str(vm, c->arg[i]);
    if (vm->failed)
        return 0;
    *out = jv_text(s);
    return 1;
}

/* The same for filters that ask for a str and take nothing else. */
static int str_arg(struct jvm *vm, struct jcall *c, int i, struct slice *out)
{
    if (c->arg[i].t == J_STR)
        return text_arg(vm, c, i, out);
    vm_fail(vm, "wanted a str, found %s", jv_type_name(c->arg[i]));
    return 0;
}

static struct jv like(struct jv from, struct jv v)
{
    v.safe = v.t == J_STR && from.t == J_STR ? from.safe : 0;
    return v;
}

/* ---------------------------------------------------------------- case and space */

static struct jv change_case(struct jvm *vm, struct jcall *c, enum text_case how)
{
    struct slice s;
    return text_arg(vm, c, 0, &s) ? like(c->arg[0], text_case(vm, s, how)) : (struct jv){0};
}

static struct jv f_upper(struct jvm *vm, struct jcall *c)
{
    return change_case(vm, c, CASE_UPPER);
}

static struct jv f_lower(struct jvm *vm, struct jcall *c)
{
    return change_case(vm, c, CASE_LOWER);
}

static struct jv f_capitalize(struct jvm *vm, struct jcall *c)
{
    return change_case(vm, c, CASE_CAPITAL);
}

/* Upper case behind space, '-', '(', '{', '[' and '<' alone: "it's" stays one word. */
static struct jv f_title(struct jvm *vm, struct jcall *c)
{
    struct slice s;
    struct jbuild b = {.vm = vm};
    if (!text_arg(vm, c, 0, &s))
        return (struct jv){0};
    for (size_t i = 0; i < s.n && !vm->failed;) {
        size_t from = i;
        uint32_t cp;
        int separator = 0;
        while (i < s.n && !separator) {
            size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
            separator = cp_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (char)cp));
            i += separator ? 0 : len;
        }
        if (i > from) {
            size_t first = (size_t)utf8_decode(s.p + from, i - from, &cp);
            struct jv a = text_case(vm, (struct slice){s.p + from, first}, CASE_UPPER);
            struct jv rest =
                text_case(vm, (struct slice){s.p + from + first, i - from - first}, CASE_LOWER);
            if (vm->failed)
                break;
            jb_slice(&b, jv_text(a));
            jb_slice(&b, jv_text(rest));
        } else {
            size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
            jb_put(&b, s.p + i, len);
            i += len;
        }
    }
    return like(c->arg[0], jb_value(&b));
}

static struct jv f_trim(struct jvm *vm, struct jcall *c)
{
    struct slice s, chars = {0};
    int given = c->arg[1].t != J_UNSET && c->arg[1].t != J_NONE;
    if (!text_arg(vm, c, 0, &s) || (given && !str_arg(vm, c, 1, &chars)))
        return (struct jv){0};
    s = slice_strip(s, given ? &chars : NULL, 1, 1);
    return like(c->arg[0], jv_view(vm, s.p, s.n));
}

static struct jv f_center(struct jvm *vm, struct jcall *c)
{
    struct jv s = jv_to_str(vm, c->arg[0]), width = c->arg[1].t == J_UNSET ? jv_int(80) : c->arg[1];
    if (vm->failed)
        return s;
    s.safe = c->arg[0].t == J_STR && c->arg[0].safe;
    struct jargs args = {.pos = &width, .n_pos = 1};
    return builtin_call(vm, builtin_find(vm->rows[ROWS_STR], SLICE("center")), s, &args);
}

/* Lines behind the first get `width` blanks or the text given before them; empty ones only with
 * blank. */
static struct jv f_indent(struct jvm *vm, struct jcall *c)
{
    struct slice s, with = {0};
    struct jbuild b = {.vm = vm}, blanks = {.vm = vm};
    int64_t width = 4;
    if (c->arg[1].t == J_STR) {
        with = jv_text(c->arg[1]);
    } else {
        if (!arg_int(vm, c->arg[1], 4, &width))
            return (struct jv){0};
        jb_fill(&blanks, ' ', width > 0 ? (size_t)width : 0);
        with = jb_text(&blanks);
    }
    int first = jv_truth(c->arg[2]), blank = jv_truth(c->arg[3]);
    if (!str_arg(vm, c, 0, &s))
        return (struct jv){0};
    for (size_t i = 0, line = 0; i <= s.n && !vm->failed; line++) {
        const char *end = i < s.n ? memchr(s.p + i, '\n', s.n - i) : NULL;
        size_t n = end ? (size_t)(end - s.p) - i : s.n - i;
        size_t seen = n && s.p[i + n - 1] == '\r' ? n - 1 : n; /* a line may end in \r\n */
        if (line ? blank || seen : first)
            jb_slice(&b, with);
        jb_put(&b, s.p + i, n);
        if (!end)
            break;
        jb_putz(&b, "\n");
        i += n + 1;
    }
    return like(c->arg[0], jb_value(&b));
}

static struct jv f_replace(struct jvm *vm, struct jcall *c)
{
    struct slice s, old, fresh;
    int64_t count;
    if (!text_arg(vm, c, 0, &s) || !text_arg(vm, c, 1, &old) || !text_arg(vm, c, 2, &fresh) ||
        !arg_int(vm, c->arg[3], -1, &count))
        return (struct jv){0};
    return text_replace(vm, s, old, fresh, count);
}

static struct jv f_truncate(struct jvm *vm, struct jcall *c)
{
    struct slice s, end = SLICE("...");
    int64_t length, leeway;
    if (!text_arg(vm, c, 0, &s) || !arg_int(vm, c->arg[1], 255, &length) ||
        !arg_int(vm, c->arg[4], 5, &leeway) ||
        (c->arg[3].t != J_UNSET && !text_arg(vm, c, 3, &end)))
        return (struct jv){0};
    if (c->arg[0].t != J_STR) /* of what is no text, only the length counts */
        return jv_len(c->arg[0]) >= 0 && jv_len(c->arg[0]) <= length + leeway
                   ? c->arg[0]
                   : vm_fail(vm, "wanted a str, found %s", jv_type_name(c->arg[0]));
    struct jstr str = {s.p, s.n, SIZE_MAX, NULL}, tail = {end.p, end.n, SIZE_MAX, NULL};
    int64_t n = (int64_t)str_n_cp(&str), n_end = (int64_t)str_n_cp(&tail);
    if (length < n_end)
        return vm_fail(vm, "expected length >= %lld, got %lld", (long long)n_end,
                       (long long)length);
    if (leeway < 0)
        return vm_fail(vm, "expected leeway >= 0, got %lld", (long long)leeway);
    if (n <= length || n - length <= leeway)
        return like(c->arg[0], jv_view(vm, s.p, s.n));
    size_t keep = str_offset(&str, (size_t)(length - n_end));
    if (!jv_truth(c->arg[2])) { /* no part of a word */
        size_t at = keep;
        while (at > 0 && s.p[at - 1] != ' ')
            at--;
        keep = at ? at - 1 : keep;
    }
    struct jbuild b = {.vm = vm};
    jb_put(&b, s.p, keep);
    jb_slice(&b, end);
    return like(c->arg[0], jb_value(&b));
}

static struct jv f_wordcount(struct jvm *vm, struct jcall *c)
{
    const struct builtin *alnum = builtin_find(vm->rows[ROWS_STR], SLICE("isalnum"));
    struct slice s;
    int64_t n = 0;
    int in_word = 0;
    if (!text_arg(vm, c, 0, &s))
        return (struct jv){0};
    for (size_t i = 0; i < s.n;) { /* \w+ */
        uint32_t cp;
        i += (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        char buf[4];
        struct jstr one = {buf, (size_t)utf8_encode(cp, buf), 1, NULL};
        struct jcall call = {.arg = {{.t = J_STR, .u.s = &one}}};
        int word = cp == '_' || jv_truth(alnum->fn(vm, &call));
        n += word && !in_word;
        in_word = word;
    }
    return jv_int(n);
}

/* One line of words no longer than width; words that are longer are broken when asked. */
static void wrap_line(struct jbuild *b, struct slice s, size_t width, int break_long,
                      struct slice between)
{
    size_t column = 0;
    int first = 1;
    while (s.n && !b->vm->failed) {
        struct slice word = s;
        const char *blank = memchr(s.p, ' ', s.n);
        word.n = blank ? (size_t)(blank - s.p) : s.n;
        struct jstr w = {word.p, word.n, SIZE_MAX, NULL};
        size_t n = str_n_cp(&w), gap = first ? 0 : 1;
        if (!first && column + gap + n > width && n <= width) {
            jb_slice(b, between);
            column = 0;
            gap = 0;
        }
        if (gap)
            jb_putz(b, " ");
        column += gap;
        while (break_long && column + n > width && n) {
            size_t fit = width > column ? width - column : 0, bytes = str_offset(&w, fit);
            jb_put(b, w.p, bytes);
            jb_slice(b, between);
            w = (struct jstr){w.p + bytes, w.n - bytes, SIZE_MAX, NULL};
            n = str_n_cp(&w);
            column = 0;
        }
        jb_put(b, w.p, w.n);
        column += n;
        first = 0;
        s.p += word.n + (blank != NULL);
        s.n -= word.n + (blank != NULL);
    }
}

static struct jv f_wordwrap(struct jvm *vm, struct jcall *c)
{
    struct slice s, between = SLICE("\n");
    int64_t width;
    struct jbuild b = {.vm = vm};
    if (!str_arg(vm, c, 0, &s) || !arg_int(vm, c->arg[1], 79, &width) ||
        (c->arg[3].t != J_UNSET && c->arg[3].t != J_NONE && !text_arg(vm, c, 3, &between)))
        return (struct jv){0};
    if (width <= 0)
        return vm_fail(vm, "invalid width %lld (must be > 0)", (long long)width);
    for (size_t i = 0; i < s.n && !vm->failed;) {
        const char *end = memchr(s.p + i, '\n', s.n - i);
        size_t n = end ? (size_t)(end - s.p) - i : s.n - i;
        wrap_line(&b, (struct slice){s.p + i, n}, (size_t)width,
                  c->arg[2].t == J_UNSET || jv_truth(c->arg[2]), between);
        i += n + 1;
        if (i < s.n)
            jb_slice(&b, between);
    }
    return jb_value(&b);
}

/* Tags and comments go, white space becomes single blanks. */
static struct jv f_striptags(struct jvm *vm, struct jcall *c)
{
    struct slice s;
    struct jbuild b = {.vm = vm}, out = {.vm = vm};
    if (!text_arg(vm, c, 0, &s))
        return (struct jv){0};
    for (size_t i = 0; i < s.n;) {
        int comment = s.n - i >= 4 && memcmp(s.p + i, "<!--", 4) == 0;
        size_t end =
            s.p[i] == '<' ? slice_find(s, comment ? SLICE("-->") : SLICE(">"), i) : SIZE_MAX;
        if (end == SIZE_MAX)
            jb_put(&b, s.p + i++, 1);
        else
            i = end + (comment ? 3 : 1);
    }
    s = jb_text(&b);
    for (int first = 1; !vm->failed; first = 0) {
        s = slice_strip(s, NULL, 1, 0);
        if (!s.n)
            break;
        size_t n = 0;
        uint32_t cp;
        for (size_t len; n < s.n; n += len) {
            len = (size_t)utf8_decode(s.p + n, s.n - n, &cp);
            if (cp_is_space(cp))
                break;
        }
        jb_putz(&out, first ? "" : " ");
        jb_put(&out, s.p, n);
        s.p += n;
        s.n -= n;
    }
    static const struct {
        struct slice name, text;
    } entities[] = {{{"&lt;", 4}, {"<", 1}},    {{"&gt;", 4}, {">", 1}},  {{"&#34;", 5}, {"\"", 1}},
                    {{"&quot;", 6}, {"\"", 1}}, {{"&#39;", 5}, {"'", 1}}, {{"&amp;", 5}, {"&", 1}}};
    struct jv v = jb_value(&out);
    for (size_t i = 0; i < sizeof entities / sizeof *entities && !vm->failed; i++)
        v = text_replace(vm, jv_text(v), entities[i].name, entities[i].text, -1);
    return v;
}

/* ---------------------------------------------------------------- escaping */

static struct jv escape(struct jvm *vm, struct jcall *c, int again)
{
    struct slice s;
    struct jbuild b = {.vm = vm};
    if (c->arg[0].t == J_STR && c->arg[0].safe && !again)
        return c->arg[0];
    if (!text_arg(vm, c, 0, &s))
        return (struct jv){0};
    jb_escape(&b, s);
    struct jv v = jb_value(&b);
    v.safe = 1;
    return v;
}

static struct jv f_escape(struct jvm *vm, struct jcall *c)
{
    return escape(vm, c, 0);
}

static struct jv f_forceescape(struct jvm *vm, struct jcall *c)
{
    return escape(vm, c, 1);
}

static struct jv f_safe(struct jvm *vm, struct jcall *c)
{
    struct jv v = jv_to_str(vm, c->arg[0]);
    v.safe = v.t == J_STR;
    return v;
}

static struct jv f_string(struct jvm *vm, struct jcall *c)
{
    return jv_to_str(vm, c->arg[0]);
}

static void quote(struct jbuild *b, struct slice s, const char *keep)
{
    for (size_t i = 0; i < s.n && !b->vm->failed; i++) {
        char x = s.p[i];
        int plain = (x | 32) >= 'a' && (x | 32) <= 'z';
        if (plain || (x >= '0' && x <= '9') || (x && strchr("_.-~", x)) || (x && strchr(keep, x)))
            jb_put(b, s.p + i, 1);
        else
            jb_printf(b, byte_from(b->vm, s.p + i), "%%%02X", (unsigned char)x);
    }
}

static void quote_plus(struct jbuild *b, struct jv v)
{
    struct jv s = jv_to_str(b->vm, v);
    struct slice t = b->vm->failed ? SLICE("") : jv_text(s);
    for (size_t i = 0, n; i < t.n; i += n + 1) {
        const char *blank = memchr(t.p + i, ' ', t.n - i);
        n = blank ? (size_t)(blank - t.p) - i : t.n - i;
        quote(b, (struct slice){t.p + i, n}, "");
        jb_putz(b, blank ? "+" : "");
    }
}

static struct jv f_urlencode(struct jvm *vm, struct jcall *c)
{
    struct jv v = c->arg[0];
    struct slice s;
    struct jlist l, two;
    struct jbuild b = {.vm = vm};
    if (v.t == J_STR || jv_len(v) < 0) {
        if (text_arg(vm, c, 0, &s))
            quote(&b, s, "/");
        return jb_value(&b);
    }
    if (v.t == J_DICT)
        v = (struct jv){.t = J_VIEW, .safe = 2, .u.d = v.u.d};
    if (!jv_items(vm, v, &l))
        return (struct jv){0};
    for (size_t i = 0; i < l.n && jv_items(vm, l.v[i], &two); i++) {
        if (two.n != 2)
            return vm_fail(vm, "urlencode wants pairs");
        jb_putz(&b, i ? "&" : "");
        quote_plus(&b, two.v[0]);
        jb_putz(&b, "=");
        quote_plus(&b, two.v[1]);
    }
    return jb_value(&b);
}

static struct jv f_xmlattr(struct jvm *vm, struct jcall *c)
{
    struct jbuild b = {.vm = vm};
    int space = c->arg[1].t == J_UNSET || jv_truth(c->arg[1]);
    if (c->arg[0].t != J_DICT)
        return vm_fail(vm, "xmlattr wants a mapping, not %s", jv_type_name(c->arg[0]));
    const struct jdict *d = c->arg[0].u.d;
    for (size_t i = 0; i < d->n && !vm->failed; i++) {
        struct jv k = d->p[i].k, v = jv_to_str(vm, d->p[i].v);
        if (d->p[i].v.t == J_NONE || d->p[i].v.t == J_UNDEF)
            continue;
        if (k.t != J_STR)
            return vm_fail(vm, "Invalid character in attribute name");
        for (size_t j = 0; j < k.u.s->n; j++) {
            if (k.u.s->p[j] && strchr(" \t\n\r\f/>=", k.u.s->p[j]))
                return vm_fail(vm, "Invalid character in attribute name");
        }
        jb_putz(&b, b.n || space ? " " : "");
        jb_escape(&b, jv_text(k));
        jb_putz(&b, "=\"");
        if (!vm->failed)
            jb_escape(&b, jv_text(v));
        jb_putz(&b, "\"");
    }
    return jb_value(&b);
}

/* ---------------------------------------------------------------- numbers */

static struct jv f_abs(struct jvm *vm, struct jcall *c)
{
    struct jv v = c->arg[0];
    if (v.t == J_FLOAT)
        return jv_given(jv_float(fabs(v.u.f)), v.safe);
    if (jv_is_int(v))
        return v.u.i < 0 ? op_unary(vm, JOP_NEG, v) : jv_given(jv_int(v.u.i), v.safe);
    if (v.t == J_UNDEF)
        return op_unary(vm, JOP_NEG, v);
    return vm_fail(vm, "bad operand type for abs(): '%s'", jv_type_name(v));
}

static struct jv f_int(struct jvm *vm, struct jcall *c)
{
    struct jv v = c->arg[0], dflt = c->arg[1].t == J_UNSET ? jv_int(0) : c->arg[1], out;
    int64_t base;
    double f;
    if (!arg_int(vm, c->arg[2], 10, &base))
        return (struct jv){0};
    if (v.t == J_UNDEF)
        return op_unary(vm, JOP_NEG, v);
    if (v.t == J_STR) {
        int given = text_has_value(vm, jv_text(v));
        if (base >= 0 && base <= 36 && base != 1 && parse_int(jv_text(v), (int)base, &out, vm))
            return jv_given(out, given);
        if (vm->failed || !parse_float(jv_text(v), &f) || isnan(f) || isinf(f))
            return dflt;
        return jv_given(float_to_int(vm, f), given);
    }
    if (v.t == J_FLOAT)
        return isnan(v.u.f) || isinf(v.u.f) ? dflt : jv_given(float_to_int(vm, v.u.f), v.safe);
    return jv_is_int(v) ? jv_given(jv_int(v.u.i), v.safe) : v.t == J_BIG ? v : dflt;
}

static struct jv f_float(struct jvm *vm, struct jcall *c)
{
    struct jv v = c->arg[0], dflt = c->arg[1].t == J_UNSET ? jv_float(0) : c->arg[1];
    double f;
    if (v.t == J_UNDEF)
        return op_unary(vm, JOP_NEG, v);
    if (v.t == J_STR)
        return parse_float(jv_text(v), &f) ? jv_given(jv_float(f), text_has_value(vm, jv_text(v)))
                                           : dflt;
    return jv_number(v, &f) ? jv_given(jv_float(f), v.safe) : dflt;
}

/* common: to even on the exact binary value, as round() does; ceil and floor on value *
 * 10^precision */
static struct jv round_number(struct jvm *vm, struct jcall *c)
{
    struct slice how = SLICE("common");
    int64_t precision;
    double f = 0;
    char digits[700];
    if (!arg_int(vm, c->arg[1], 0, &precision) ||
        (c->arg[2].t != J_UNSET && !text_arg(vm, c, 2, &how)))
        return (struct jv){0};
    if (c->arg[0].t == J_UNDEF)
        return op_unary(vm, JOP_NEG, c->arg[0]);
    if (!jv_number(c->arg[0], &f))
        return vm_fail(vm, "type %s doesn't define __round__ method", jv_type_name(c->arg[0]));
    if (slice_eq_z(how, "common")) {
        if (jv_is_int(c->arg[0]) && precision >= 0)
            return jv_int(c->arg[0].u.i);
        if (precision > 320 || isnan(f) || isinf(f))
            return c->arg[0];
        if (precision < 0) {
            double unit = pow(10, (double)-precision), r = nearbyint(f / unit) * unit;
            return jv_is_int(c->arg[0]) ? float_to_int(vm, r) : jv_float(r);
        }
        snprintf(digits, sizeof digits, "%.*f", (int)precision, f);
        return jv_float(strtod(digits, NULL));
    }
    if (!slice_eq_z(how, "ceil") && !slice_eq_z(how, "floor"))
        return vm_fail(vm, "method must be common, ceil or floor");
    double unit = pow(10, (double)precision),
           r = slice_eq_z(how, "ceil") ? ceil(f * unit) : floor(f * unit);
    return jv_float(r / unit);
}

static struct jv f_round(struct jvm *vm, struct jcall *c)
{
    return jv_given(round_number(vm, c), c->arg[0].t == J_BIG || c->arg[0].safe);
}

static struct jv f_filesizeformat(struct jvm *vm, struct jcall *c)
{
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    int is_binary = jv_truth(c->arg[1]), i = 0;
    double base = is_binary ? 1024 : 1000, bytes = 0, unit = base * base;
    struct jbuild b = {.vm = vm};
    if (c->arg[0].t == J_STR ? !parse_float(jv_text(c->arg[0]), &bytes)
                             : !jv_number(c->arg[0], &bytes))
        return vm_fail(vm, "filesizeformat wants a number");
    if (bytes == 1) {
        jb_putz(&b, "1 Byte");
    } else if (bytes < base) {
        jb_printf(&b, FROM_VALUE, "%.0f Bytes", trunc(bytes));
    } else {
        while (bytes >= unit && i < 7) {
            unit *= base;
            i++;
        }
        jb_printf(&b, FROM_VALUE, "%.1f %s", base * bytes / unit,
                  (is_binary ? binary : decimal)[i]);
    }
    return jb_value(&b);
}

/* ---------------------------------------------------------------- others */

static struct jv f_default(struct jvm *vm, struct jcall *c)
{
    struct jv dflt = c->arg[1].t == J_UNSET ? jv_view(vm, "", 0) : c->arg[1];
    return c->arg[0].t == J_UNDEF || (jv_truth(c->arg[2]) && !jv_truth(c->arg[0])) ? dflt
                                                                                   : c->arg[0];
}

static struct jv f_attr(struct jvm *vm, struct jcall *c)
{
    struct slice name;
    if (!str_arg(vm, c, 1, &name))
        return (struct jv){0};
    if (c->arg[0].t == J_DICT) { /* attributes alone, not keys */
        const struct builtin *fn = builtin_find(vm->rows[ROWS_DICT], name);
        if (!fn)
            return jv_undef(vm, "'dict object' has no attribute '%.*s'",
                            name.n > 100 ? 100 : (int)name.n, name.p);
    }
    return op_attr(vm, c->arg[0], name);
}

static struct jv f_format(struct jvm *vm, struct jcall *c)
{
    struct jv s = jv_to_str(vm, c->arg[0]), args = {0};
    if (c->rest.n_kw && c->rest.n_pos)
        return vm_fail(vm, "can't handle positional and keyword arguments at the same time");
    if (c->rest.n_kw) {
        struct jdict d = {0};
        for (size_t i = 0; i < c->rest.n_kw; i++)
            jdict_put(vm, &d, c->rest.kw[i].k, c->rest.kw[i].v);
        args = jv_dict(vm, &d);
    } else {
        struct jv *v = vm_array(vm, c->rest.n_pos, sizeof *v);
        if (v && c->rest.n_pos)
            memcpy(v, c->rest.pos, c->rest.n_pos * sizeof *v);
        args = jv_list(vm, J_TUPLE, v, c->rest.n_pos);
    }
    return vm->failed ? (struct jv){0} : format_percent(vm, s, args);
}

static struct jv f_pprint(struct jvm *vm, struct jcall *c)
{
    struct jbuild b = {.vm = vm};
    jb_repr(&b, c->arg[0], 0);
    return jb_value(&b);
}

static struct jv f_tojson(struct jvm *vm, struct jcall *c)
{
    struct json_style s = {.ascii = jv_truth(c->arg[1]), .sort = jv_truth(c->arg[4])};
    struct jbuild b = {.vm = vm}, blanks = {.vm = vm};
    struct jv indent = c->arg[2];
    if (jv_is_int(indent)) {
        s.has_indent = 1;
        jb_fill(&blanks, ' ', indent.u.i > 0 ? (size_t)indent.u.i : 0);
        s.indent = jb_text(&blanks);
    } else if (indent.t == J_STR) {
        s.has_indent = 1;
        s.indent = jv_text(indent);
    } else if (indent.t != J_UNSET && indent.t != J_NONE) {
        return vm_fail(vm, "tojson: indent is a %s", jv_type_name(indent));
    }
    struct jv comma = jv_strz(vm, s.has_indent ? "," : ", "), colon = jv_strz(vm, ": ");
    if (vm->failed)
        return (struct jv){0};
    s.comma = jv_text(comma);
    s.colon = jv_text(colon);
    if (c->arg[3].t != J_UNSET && c->arg[3].t != J_NONE) {
        struct jlist two;
        if (!jv_items(vm, c->arg[3], &two))
            return (struct jv){0};
        if (two.n != 2 || two.v[0].t != J_STR || two.v[1].t != J_STR)
            return vm_fail(vm, "tojson: separators are two strings");
        s.comma = jv_text(two.v[0]);
        s.colon = jv_text(two.v[1]);
    }
    json_write(&b, c->arg[0], &s, 0);
    return jb_value(&b);
}

static struct jv f_unsupported(struct jvm *vm, struct jcall *c)
{
    (void)c;
    return vm_fail(vm, "the filters random and urlize are not supported in chat templates");
}

const struct builtin jinja_filters[] = {
    {"abs", f_abs, "v"},
    {"attr", f_attr, "v name"},
    {"capitalize", f_capitalize, "s"},
    {"center", f_center, "s width?"},
    {"default", f_default, "v default_value? boolean?"},
    {"d", f_default, "v default_value? boolean?"},
    {"escape", f_escape, "s"},
    {"e", f_escape, "s"},
    {"filesizeformat", f_filesizeformat, "v binary?"},
    {"float", f_float, "v default?"},
    {"forceescape", f_forceescape, "s"},
    {"format", f_format, "s *"},
    {"indent", f_indent, "s width? first? blank?"},
    {"int", f_int, "v default? base?"},
    {"lower", f_lower, "s"},
    {"pprint", f_pprint, "v"},
    {"random", f_unsupported, "*"},
    {"replace", f_replace, "s old new count?"},
    {"round", f_round, "v precision? method?"},
    {"safe", f_safe, "s"},
    {"string", f_string, "s"},
    {"striptags", f_striptags, "s"},
    {"title", f_title, "s"},
    {"tojson", f_tojson, "v ensure_ascii? indent? separators? sort_keys?"},
    {"trim", f_trim, "s chars?"},
    {"truncate", f_truncate, "s length? killwords? end? leeway?"},
    {"upper", f_upper, "s"},
    {"urlencode", f_urlencode, "v"},
    {"urlize", f_unsupported, "*"},
    {"wordcount", f_wordcount, "s"},
    {"wordwrap", f_wordwrap, "s width? break_long_words? wrapstring? break_on_hyphens?"},
    {"xmlattr", f_xmlattr, "d autospace?"},
    {0},
};
