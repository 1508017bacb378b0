/* jinja_text.c -- what Python's str does, on UTF-8: code point indices, white space, case, search,
 * numbers in texts.
 *
 * A string knows its number of code points once it was counted; when that is its number of bytes,
 * an index is an offset. Case mappings are utf8proc's simple ones and the special ones of Latin
 * texts, where one character becomes two. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

size_t str_n_cp(struct jstr *s)
{
    if (s->n_cp ==
        SIZE_MAX) { /* never one of the template's own, which are counted when compiled */
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++)
            n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
        s->n_cp = n;
    }
    return s->n_cp;
}

size_t str_offset(struct jstr *s, size_t cp_index)
{
    if (str_n_cp(s) == s->n)
        return cp_index < s->n ? cp_index : s->n;
    size_t i = 0;
    while (i < s->n && cp_index-- > 0) {
        i++;
        while (i < s->n && ((unsigned char)s->p[i] & 0xc0) == 0x80)
            i++;
    }
    return i;
}

int cp_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* ---------------------------------------------------------------- search and strip */

static int has_cp(struct slice set, uint32_t cp)
{
    for (size_t i = 0; i < set.n;) {
        uint32_t c;
        i += (size_t)utf8_decode(set.p + i, set.n - i, &c);
        if (c == cp)
            return 1;
    }
    return 0;
}

static int strips(const struct slice *chars, uint32_t cp)
{
    return chars ? has_cp(*chars, cp) : cp_is_space(cp);
}

struct slice slice_strip(struct slice s, const struct slice *chars, int left, int right)
{
    uint32_t cp;
    while (left && s.n) {
        size_t len = (size_t)utf8_decode(s.p, s.n, &cp);
        if (!strips(chars, cp))
            break;
        s.p += len;
        s.n -= len;
    }
    while (right && s.n) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80)
            at--;
        utf8_decode(s.p + at, s.n - at, &cp);
        if (!strips(chars, cp))
            break;
        s.n = at;
    }
    return s;
}

size_t slice_find(struct slice s, struct slice what, size_t from)
{
    if (from > s.n)
        return SIZE_MAX;
    const char *at = what.n ? memmem(s.p + from, s.n - from, what.p, what.n) : s.p + from;
    return at ? (size_t)(at - s.p) : SIZE_MAX;
}

struct jv text_replace(struct jvm *vm, struct slice s, struct slice old, struct slice fresh,
                       int64_t count)
{
    struct jbuild b = {.vm = vm};
    size_t from = 0, at = 0;
    if (!vm_charge(vm, s.n / 64))
        return (struct jv){0};
    for (; count != 0 && !vm->failed; count--) {
        at = slice_find(s, old, at);
        if (at == SIZE_MAX)
            break;
        jb_put(&b, s.p + from, at - from);
        jb_slice(&b, fresh);
        from = at + old.n;
        at = from;
        if (!old.n) { /* before each character and at the end */
            uint32_t cp;
            if (at >= s.n)
                break;
            at += (size_t)utf8_decode(s.p + at, s.n - at, &cp);
        }
    }
    jb_put(&b, s.p + from, s.n - from);
    return jb_value(&b);
}

/* ---------------------------------------------------------------- case */

static const struct {
    uint32_t cp;
    const char *upper, *title;
} special[] = {
    {0xdf, "SS", "Ss"},
    {0x149, "\xca\xbcN", "\xca\xbcN"},
    {0x1f0, "J\xcc\x8c", "J\xcc\x8c"},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
    {0x587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
};

static void put_upper(struct jbuild *b, enum jfrom from, uint32_t cp, int title)
{
    for (size_t i = 0; cp >= 0xdf && i < sizeof special / sizeof *special; i++) {
        if (special[i].cp == cp) {
            jb_printf(b, from, "%s", title ? special[i].title : special[i].upper);
            return;
        }
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    jb_cp(b, from, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
}

static int is_cased(uint32_t cp)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* A sigma behind a letter and before none is the final one. */
static int is_final_sigma(struct slice s, size_t at, size_t len)
{
    uint32_t cp;
    size_t before = at;
    while (before > 0 && ((unsigned char)s.p[--before] & 0xc0) == 0x80)
        continue;
    if (at == 0 || (utf8_decode(s.p + before, s.n - before, &cp), !is_cased(cp)))
        return 0;
    return at + len >= s.n || (utf8_decode(s.p + at + len, s.n - at - len, &cp), !is_cased(cp));
}

static void put_lower(struct jbuild *b, enum jfrom from, struct slice s, size_t at, size_t len,
                      uint32_t cp)
{
    if (cp == 0x130)
        jb_printf(b, from, "i\xcc\x87");
    else if (cp == 0x3a3)
        jb_cp(b, from, is_final_sigma(s, at, len) ? 0x3c2 : 0x3c3);
    else
        jb_cp(b, from, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

struct jv text_case(struct jvm *vm, struct slice s, enum text_case how)
{
    struct jbuild b = {.vm = vm};
    int behind_letter = 0;
    if (!vm_charge(vm, s.n / 16))
        return (struct jv){0};
    for (size_t i = 0; i < s.n && !vm->failed;) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        enum jfrom from = byte_from(vm, s.p + i);
        int up =
            how == CASE_UPPER || (how == CASE_CAPITAL && i == 0) ||
            (how == CASE_TITLE && !behind_letter) ||
            (how == CASE_SWAP && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LL);
        if (up)
            put_upper(&b, from, cp, how == CASE_CAPITAL || how == CASE_TITLE);
        else
            put_lower(&b, from, s, i, len, cp);
        behind_letter = is_cased(cp);
        i += len;
    }
    return jb_value(&b);
}

/* ---------------------------------------------------------------- numbers */

static int digit_of(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                : 99;
}

static int big(struct jvm *vm, struct slice digits, int negative, struct jv *out)
{
    *out = (struct jv){.t = J_BIG};
    if (!vm)
        return 1;
    struct jbuild b = {.vm = vm};
    if (digits.n > 4300) /* where Python stops too */
        return 0;
    jb_putz(&b, negative ? "-" : "");
    for (size_t i = 0; i < digits.n; i++) {
        if (digits.p[i] != '_')
            jb_put(&b, digits.p + i, 1);
    }
    *out = jb_value(&b);
    out->t = out->t == J_STR ? J_BIG : J_UNSET;
    return 1;
}

int parse_int(struct slice s, int base, struct jv *out, struct jvm *vm)
{
    int64_t v = 0;
    int negative = 0, over = 0;
    s = slice_strip(s, NULL, 1, 1);
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) {
        negative = s.p[0] == '-';
        s.p++, s.n--;
    }
    if (s.n > 2 && s.p[0] == '0') {
        char c = (char)(s.p[1] | 32);
        int of = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (of && (base == 0 || base == of)) {
            base = of;
            s.p += 2, s.n -= 2;
            if (s.n > 1 && s.p[0] == '_')
                s.p++, s.n--;
        }
    }
    base = base ? base : 10;
    if (!s.n || s.p[0] == '_' || s.p[s.n - 1] == '_')
        return 0;
    for (size_t i = 0; i < s.n; i++) {
        int d = digit_of(s.p[i]);
        if (s.p[i] == '_' && s.p[i - 1] != '_')
            continue;
        if (d >= base)
            return 0;
        over |= __builtin_mul_overflow(v, base, &v) ||
                __builtin_sub_overflow(v, d, &v); /* negative: it reaches further */
    }
    while (s.n > 1 && (s.p[0] == '0' || s.p[0] == '_'))
        s.p++, s.n--;
    over |= !negative && v == INT64_MIN;
    if (over)
        return base == 10 && big(vm, s, negative, out);
    *out = jv_int(negative ? v : -v);
    return 1;
}

int parse_float(struct slice s, double *out)
{
    char buf[512], *end;
    size_t n = 0;
    s = slice_strip(s, NULL, 1, 1);
    for (size_t i = 0; i < s.n; i++) {
        int between =
            i > 0 && i + 1 < s.n && digit_of(s.p[i - 1]) < 10 && digit_of(s.p[i + 1]) < 10;
        if (s.p[i] == '_' && between)
            continue;
        if (n == sizeof buf - 1 || s.p[i] == 'x' || s.p[i] == 'X' || s.p[i] == '(')
            return 0;
        buf[n++] = s.p[i];
    }
    buf[n] = 0;
    if (!n)
        return 0;
    *out = strtod(buf, &end); /* as wide a syntax as float(), but for hexadecimal and nan(...) */
    return end == buf + n;
}

struct jv float_to_int(struct jvm *vm, double f)
{
    char digits[400];
    if (isnan(f) || isinf(f))
        return vm_fail(vm, "cannot convert float %s to integer", isnan(f) ? "NaN" : "infinity");
    f = trunc(f);
    if (f >= -9223372036854775808.0 && f < 9223372036854775808.0)
        return jv_int((int64_t)f);
    snprintf(digits, sizeof digits, "%.0f", f);
    struct jv v = jv_str(vm, digits, strlen(digits));
    v.t = v.t == J_STR ? J_BIG : v.t;
    return v;
}
