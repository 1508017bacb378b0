/* error.c -- the one place where messages are made.
 *
 * Messages quote file names, tensor names and metadata, which are bytes that somebody else chose. A
 * pith_error promises one line of valid UTF-8, so every message is cleaned after formatting:
 * control bytes become '?', invalid UTF-8 becomes '?', and a message that does not fit is cut at a
 * character and ends in "...".
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *pith_status_text(pith_status st)
{
    switch (st) {
#define STATUS_TEXT(name, value, text)                                                             \
    case PITH_##name:                                                                              \
        return text;
        PITH_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

/* Makes msg[0..PITH_ERROR_MAX) a terminated line of valid UTF-8. full: the length the message would
 * have had in an endless buffer. */
static void tidy(char *msg, size_t full)
{
    static const char dots[] = "...";
    size_t n = strlen(msg);
    if (full > n) {
        size_t keep = PITH_ERROR_MAX - sizeof dots;
        n = utf8_complete(msg, n < keep ? n : keep);
        memcpy(msg + n, dots, sizeof dots);
        n += sizeof dots - 1;
    }
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(msg + i, n - i, &cp);
        if (cp == UINT32_MAX || cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            memset(msg + i, '?', (size_t)len);
        i += (size_t)len;
    }
}

pith_status error_set(struct pith_error *err, pith_status st, const char *fmt, ...)
{
    if (!err || err->code != PITH_OK || st == PITH_OK)
        return st;
    va_list ap;
    va_start(ap, fmt);
    int full = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (full < 0)
        full = snprintf(err->msg, sizeof err->msg, "%s", pith_status_text(st));
    tidy(err->msg, (size_t)full);
    err->code = st;
    return st;
}

pith_status error_prefix(struct pith_error *err, const char *fmt, ...)
{
    if (!err || err->code == PITH_OK)
        return PITH_INTERNAL;
    char prefix[PITH_ERROR_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err->code;
    /* The cause is worth more than the context: a prefix never takes more than half of the room. */
    size_t keep =
        utf8_complete(prefix, (size_t)n < PITH_ERROR_MAX / 2 ? (size_t)n : PITH_ERROR_MAX / 2);
    prefix[keep] = 0;
    char cause[PITH_ERROR_MAX];
    memcpy(cause, err->msg, sizeof cause);
    int full = snprintf(err->msg, sizeof err->msg, "%s: %s", prefix, cause);
    tidy(err->msg, full < 0 ? 0 : (size_t)full);
    return err->code;
}

void error_clear(struct pith_error *err)
{
    if (err) {
        err->code = PITH_OK;
        err->msg[0] = 0;
    }
}
