/* utf8.c -- UTF-8 by table 3-7 of the Unicode standard, well-formed byte sequences:
 *
 *     U+0000..U+007F      00..7F
 *     U+0080..U+07FF      C2..DF  80..BF
 *     U+0800..U+0FFF      E0      A0..BF  80..BF
 *     U+1000..U+CFFF      E1..EC  80..BF  80..BF
 *     U+D000..U+D7FF      ED      80..9F  80..BF
 *     U+E000..U+FFFF      EE..EF  80..BF  80..BF
 *     U+10000..U+3FFFF    F0      90..BF  80..BF  80..BF
 *     U+40000..U+FFFFF    F1..F3  80..BF  80..BF  80..BF
 *     U+100000..U+10FFFF  F4      80..8F  80..BF  80..BF
 *
 * The lead byte fixes the length and the range of the second byte; all later bytes are 80..BF.
 * Overlong forms, surrogates and values above U+10FFFF are exactly what the second-byte ranges
 * exclude, so no check of the decoded value is needed.
 */
#include "base/utf8.h"

#include <string.h>

/* Length of the sequence this byte leads, 0 when none; *lo..*hi is the range of the second byte. */
static int lead(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b < 0x80)
        return 1;
    if (b < 0xc2 || b > 0xf4)
        return 0;
    if (b < 0xe0)
        return 2;
    if (b == 0xe0)
        *lo = 0xa0;
    else if (b == 0xed)
        *hi = 0x9f;
    else if (b == 0xf0)
        *lo = 0x90;
    else if (b == 0xf4)
        *hi = 0x8f;
    return b < 0xf0 ? 3 : 4;
}

/* How many bytes at p[0..n) belong to one well-formed sequence, from its lead on; *len: how many it
 * needs. 0 when p[0] leads none. */
static int match(const uint8_t *p, size_t n, int *len)
{
    uint8_t lo, hi;
    *len = lead(p[0], &lo, &hi);
    if (*len == 0)
        return 0;
    int i = 1;
    while (i < *len && (size_t)i < n && p[i] >= lo && p[i] <= hi) {
        lo = 0x80;
        hi = 0xbf;
        i++;
    }
    return i;
}

int utf8_decode(const char *p, size_t n, uint32_t *cp)
{
    static const uint8_t lead_bits[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const uint8_t *b = (const uint8_t *)p;
    int len;
    if (match(b, n, &len) != len || len == 0) {
        *cp = UINT32_MAX;
        return 1;
    }
    uint32_t v = b[0] & lead_bits[len];
    for (int i = 1; i < len; i++)
        v = v << 6 | (b[i] & 0x3f);
    *cp = v;
    return len;
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return 0;
    static const uint8_t mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(mark[len] | cp);
    return len;
}

int utf8_valid(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        uint64_t eight;
        for (; n - i >= sizeof eight; i += sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (eight & 0x8080808080808080u)
                break;
        }
        if (i == n)
            break;
        i += (size_t)utf8_decode(p + i, n - i, &cp);
        if (cp == UINT32_MAX)
            return 0;
    }
    return 1;
}

size_t utf8_complete(const char *p, size_t n)
{
    const uint8_t *b = (const uint8_t *)p;
    /* Only a lead among the last three bytes can still wait for more. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        int len;
        int got = match(b + n - back, back, &len);
        if (got == 0)
            continue; /* a continuation byte, or one that is never valid */
        return (size_t)got == back && got < len ? n - back : n;
    }
    return n;
}
