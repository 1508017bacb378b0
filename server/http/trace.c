/* trace.c -- see trace.h. */
#include "server/http/trace.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* n digits, small letters alone, not all of them 0, and a dash or the end behind them. */
static int is_id(const char *p, size_t n)
{
    return strspn(p, "0123456789abcdef") == n && strspn(p, "0") < n && (!p[n] || p[n] == '-');
}

/* "00-TRACE-SPAN-FLAGS"; later versions may have more behind that. */
static int read_parent(struct trace *t, const char *p)
{
    enum { TRACE = 3, SPAN = 36, FLAGS = 53, END = 55 };
    size_t n = p ? strlen(p) : 0;
    if (n < END || strspn(p, "0123456789abcdef") != 2 || p[2] != '-' || !strncmp(p, "ff", 2) ||
        !is_id(p + TRACE, 32) || !is_id(p + SPAN, 16) || strspn(p + FLAGS, "0123456789abcdef") != 2)
        return 0;
    if (n > END && (!strncmp(p, "00", 2) || p[END] != '-'))
        return 0;
    memcpy(t->trace_id, p + TRACE, 32);
    memcpy(t->parent_id, p + SPAN, 16);
    memcpy(t->flags, p + FLAGS, 2);
    return 1;
}

static int is_state(const char *p)
{
    size_t n = strlen(p);
    for (size_t i = 0; i < n; i++)
        if ((p[i] < ' ' || p[i] > '~') && p[i] != '\t')
            return 0;
    return n > 0 && n < sizeof((struct trace *)0)->state && strchr(p, '=');
}

/* n random bytes as digits, not all 0. */
static void new_id(char *out, size_t n)
{
    unsigned char b[16] = {0};
    if (getrandom(b, n, 0) !=
        (ssize_t)n) { /* before the machine has any: unlike others is enough */
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t x = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uint64_t)now.tv_sec ^
                     (uint64_t)(uintptr_t)out;
        memcpy(b, &x, sizeof x);
    }
    b[n - 1] |= 1;
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

void trace_begin(struct trace *t, const char *traceparent, const char *tracestate)
{
    memset(t, 0, sizeof *t);
    new_id(t->span_id, 8);
    if (read_parent(t, traceparent)) {
        if (tracestate && is_state(tracestate))
            strcpy(t->state, tracestate);
        return;
    }
    new_id(t->trace_id, 16);
    strcpy(t->flags, "00");
}

void trace_parent(const struct trace *t, char out[56])
{
    snprintf(out, 56, "00-%s-%s-%s", t->trace_id, t->span_id, t->flags);
}
