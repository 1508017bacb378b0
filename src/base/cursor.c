/* cursor.c -- every read of untrusted bytes goes through take(), which is the only function here
 * that moves.
 *
 * Invariant: at <= n. A failed cursor stays where it failed and gives zeros and empty slices, so a
 * parser may read a whole record and check `failed` once; loops over a count that was read must
 * check it each time round (a failed count is zero, a good one may be a lie).
 */
#include "base/cursor.h"

#include <string.h>

void cursor_init(struct cursor *c, const void *p, uint64_t n)
{
    static const uint8_t nothing[1];
    *c = (struct cursor){.p = p ? p : nothing, .n = p ? n : 0};
}

/* The next n bytes, NULL when fewer are left. */
static const uint8_t *take(struct cursor *c, uint64_t n, const char *what)
{
    if (c->failed)
        return NULL;
    if (n > c->n - c->at) {
        c->failed = 1;
        c->failed_at = c->at;
        c->wanted = n;
        c->what = what;
        return NULL;
    }
    const uint8_t *p = c->p + c->at;
    c->at += n;
    return p;
}

static uint64_t take_uint(struct cursor *c, unsigned n, const char *what)
{
    const uint8_t *p = take(c, n, what);
    uint64_t v = 0;
    for (unsigned i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << 8 * (c->big_endian ? n - 1 - i : i);
    return v;
}

uint8_t cursor_u8(struct cursor *c, const char *what)
{
    return (uint8_t)take_uint(c, 1, what);
}

uint16_t cursor_u16(struct cursor *c, const char *what)
{
    return (uint16_t)take_uint(c, 2, what);
}

uint32_t cursor_u32(struct cursor *c, const char *what)
{
    return (uint32_t)take_uint(c, 4, what);
}

uint64_t cursor_u64(struct cursor *c, const char *what)
{
    return take_uint(c, 8, what);
}

float cursor_f32(struct cursor *c, const char *what)
{
    uint32_t u = cursor_u32(c, what);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

double cursor_f64(struct cursor *c, const char *what)
{
    uint64_t u = cursor_u64(c, what);
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

const uint8_t *cursor_bytes(struct cursor *c, uint64_t n, const char *what)
{
    return take(c, n, what);
}

struct slice cursor_str(struct cursor *c, const char *what)
{
    uint64_t n = cursor_u64(c, what);
    const uint8_t *p = take(c, n, what);
    return p ? (struct slice){(const char *)p, (size_t)n} : (struct slice){"", 0};
}

void cursor_skip(struct cursor *c, uint64_t n, const char *what)
{
    take(c, n, what);
}
