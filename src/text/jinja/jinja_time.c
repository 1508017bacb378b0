/* jinja_time.c -- strftime_now: the moment given as ISO 8601, else the clock, through strftime in
 * the C locale. */
#include <stdio.h>
#include <time.h>

#include "text/jinja/jinja_impl.h"

/* "2026-11-21", "2026-11-21T10:11:12.345678", "... 10:11", with a zone that is ignored but kept for
 * %z. */
static int read_iso(struct slice s, struct tm *t, int *micro, char zone[8])
{
    char buf[64];
    int n = 0, end = 0;
    memset(t, 0, sizeof *t);
    *micro = 0;
    zone[0] = 0;
    if (s.n >= sizeof buf)
        return 0;
    memcpy(buf, s.p, s.n);
    buf[s.n] = 0;
    if (sscanf(buf, "%4d-%2d-%2d%n", &t->tm_year, &t->tm_mon, &t->tm_mday, &n) != 3)
        return 0;
    const char *at = buf + n;
    if (*at == 'T' || *at == ' ') {
        if (sscanf(at + 1, "%2d:%2d%n", &t->tm_hour, &t->tm_min, &end) != 2)
            return 0;
        at += 1 + end;
        if (sscanf(at, ":%2d%n", &t->tm_sec, &end) == 1)
            at += end;
        for (int place = 100000; *at == '.' || (*at >= '0' && *at <= '9'); at++) {
            if (*at != '.') {
                *micro += (*at - '0') * place;
                place /= 10;
            }
        }
        if (*at == 'Z' || *at == '+' || *at == '-')
            snprintf(zone, 8, "%.6s", *at == 'Z' ? "+0000" : at);
    }
    t->tm_year -= 1900;
    t->tm_mon -= 1;
    if (t->tm_mon < 0 || t->tm_mon > 11 || t->tm_mday < 1 || t->tm_mday > 31 || t->tm_hour > 23 ||
        t->tm_min > 59 || t->tm_sec > 60 || t->tm_hour < 0 || t->tm_min < 0 || t->tm_sec < 0)
        return 0;
    struct tm day = *t; /* the day of the week and of the year */
    day.tm_hour = 12;
    if (timegm(&day) == (time_t)-1 && day.tm_year != 69)
        return 0;
    t->tm_wday = day.tm_wday;
    t->tm_yday = day.tm_yday;
    return 1;
}

/* One conversion, "%-d": what Python adds to C is done here. */
static void convert(struct jbuild *b, const char *spec, const struct tm *t, int micro,
                    const char *zone)
{
    char buf[256];
    char c = spec[strlen(spec) - 1];
    if (c == 'f') {
        jb_printf(b, FROM_VALUE, "%06d", micro);
    } else if (c == 'z' || c == 'Z') {
        for (const char *z = zone; c == 'z' && *z; z++) {
            if (*z != ':')
                jb_put(b, z, 1);
        }
    } else {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        size_t n = strftime(buf, sizeof buf, spec, t);
#pragma GCC diagnostic pop
        jb_put(b, buf, n);
    }
}

struct jv time_format(struct jvm *vm, struct slice f)
{
    struct jbuild b = {.vm = vm};
    struct tm t;
    char zone[8] = "";
    int micro = 0;
    if (vm->now.n) {
        if (!read_iso(vm->now, &t, &micro, zone))
            return vm_fail(vm, "now is no ISO 8601 date and time: \"%.*s\"",
                           vm->now.n > 60 ? 60 : (int)vm->now.n, vm->now.p);
    } else {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        localtime_r(&now.tv_sec, &t);
        micro = (int)(now.tv_nsec / 1000);
    }
    for (size_t i = 0; i < f.n && !vm->failed;) {
        size_t from = i++;
        char spec[8] = "%";
        if (f.p[from] != '%') {
            jb_put(&b, f.p + from, 1);
            continue;
        }
        while (i < f.n && f.p[i] && strchr("-_0^#EO", f.p[i]) && i - from < 5)
            i++;
        if (i < f.n)
            i++;
        memcpy(spec, f.p + from, i - from);
        spec[i - from] = 0;
        if (i - from == 1 || (unsigned char)spec[i - from - 1] >= 0x80)
            jb_put(&b, f.p + from, i - from);
        else
            convert(&b, spec, &t, micro, zone);
    }
    return jb_value(&b);
}
