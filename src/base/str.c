/* str.c -- slices, a growing string, numbers in the C locale.
 *
 * The string doubles, so n appends cost O(n) copied bytes. Once an append failed (memory, overflow,
 * a format that cannot be printed) the string keeps what it had and ignores the rest: the writer of
 * a long text checks `failed` once, at its end.
 */
#include "base/str.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* short keys are hashed most: worth inlining, and nothing to link */
#include <xxhash.h>

#include "base/mem.h"
#include "base/utf8.h"

struct slice slice_of(const char *z)
{
    return (struct slice){z, z ? strlen(z) : 0};
}

int slice_eq(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

int slice_eq_z(struct slice a, const char *z)
{
    return slice_eq(a, slice_of(z));
}

uint64_t slice_hash(struct slice s)
{
    return XXH3_64bits(s.n ? s.p : "", s.n);
}

/* ---------------------------------------------------------------- growing string */

void str_init(struct str *s, pith_purpose purpose)
{
    *s = (struct str){.purpose = purpose};
}

void str_deinit(struct str *s)
{
    mem_free(s->p);
    str_init(s, s->purpose);
}

void str_clear(struct str *s)
{
    s->n = 0;
    s->failed = 0;
    if (s->p)
        s->p[0] = 0;
}

int str_reserve(struct str *s, size_t extra)
{
    uint64_t want;
    if (s->failed)
        return 0;
    if (size_add(s->n, extra, &want) || want >= PTRDIFF_MAX / 2)
        goto fail;
    want++; /* terminator */
    if (want <= s->cap)
        return 1;
    size_t cap = s->cap ? s->cap : 64;
    while (cap < want)
        cap *= 2;
    char *p = mem_realloc(s->p, cap, s->purpose);
    if (!p)
        goto fail;
    p[s->n] = 0;
    s->p = p;
    s->cap = cap;
    return 1;
fail:
    s->failed = 1;
    return 0;
}

void str_put(struct str *s, const char *bytes, size_t n)
{
    if (!str_reserve(s, n))
        return;
    if (n)
        memcpy(s->p + s->n, bytes, n);
    s->n += n;
    s->p[s->n] = 0;
}

void str_putz(struct str *s, const char *z)
{
    str_put(s, z, strlen(z));
}

void str_putc(struct str *s, char c)
{
    str_put(s, &c, 1);
}

void str_printf(struct str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        s->failed = 1;
    if (n < 0 || !str_reserve(s, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(s->p + s->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    s->n += (size_t)n;
}

void str_json(struct str *s, const char *bytes, size_t n)
{
    str_putc(s, '"');
    str_json_part(s, bytes, n);
    str_putc(s, '"');
}

void str_json_part(struct str *s, const char *bytes, size_t n)
{
    static const char shorthand[] = "\b\t\n\f\r\"\\"; /* written as a backslash and ... */
    static const char letters[] = "btnfr\"\\";        /* ... the letter at the same place */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(bytes + i, n - i, &cp);
        const char *at = cp && cp < 0x80 ? strchr(shorthand, (char)cp) : NULL;
        if (cp == UINT32_MAX)
            str_putz(s, "\xef\xbf\xbd"); /* U+FFFD */
        else if (at)
            str_put(s, (char[]){'\\', letters[at - shorthand]}, 2);
        else if (cp < 0x20)
            str_printf(s, "\\u%04x", (unsigned)cp);
        else
            str_put(s, bytes + i, len);
        i += len;
    }
}

/* The C library keeps its "C" locale as a constant: nothing is allocated, nothing to free. */
static locale_t c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double str_to_double(const char *text, char **end)
{
    return strtod_l(text, end, c_locale());
}

void *c_locale_enter(void)
{
    return (void *)uselocale(c_locale());
}

void c_locale_leave(void *before)
{
    uselocale((locale_t)before);
}
