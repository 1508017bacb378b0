/* pull_meter.c -- "NAME  41 % [########............] 1.2 of 2.9 GiB, 35.1 MiB/s, 0:52 left";
 * elsewhere than on a terminal a line for each tenth. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/pull/pull.h"

void meter_start(struct meter *m, const char *name, int64_t have, int64_t total)
{
    *m = (struct meter){.name = name,
                        .have = have,
                        .total = total,
                        .is_terminal = isatty(STDERR_FILENO),
                        .drawn = cli_seconds(),
                        .drawn_have = have};
    m->tenth = total > 0 ? (int)(10 * (double)have / (double)total) : 0;
}

static void draw(struct meter *m)
{
    enum { WIDTH = 20 };
    static const char bar[] = "########################################";
    char have[32], total[32], rate[32], text[200], brief[100];
    int64_t left = m->total - m->have;
    say_bytes(m->have, have, sizeof have);
    say_bytes(m->total, total, sizeof total);
    say_bytes((int64_t)m->rate, rate, sizeof rate);
    double f = m->total > 0 ? (double)m->have / (double)m->total : 0;
    int n = snprintf(text, sizeof text, "%-.24s ", m->name);
    if (m->total > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, "%3d %% [%-*.*s] %s of %s",
                      (int)(100 * f), WIDTH, (int)(WIDTH * f), bar, have, total);
    else
        n += snprintf(text + n, sizeof text - (size_t)n, "%s", have);
    if (m->rate > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %s/s", rate);
    if (m->rate > 1 && m->total > 0 && (double)left / m->rate < 1e6) {
        int s = (int)((double)left / m->rate + 0.5);
        if (s >= 3600)
            snprintf(text + n, sizeof text - (size_t)n, ", %d:%02d:%02d left", s / 3600,
                     s / 60 % 60, s % 60);
        else
            snprintf(text + n, sizeof text - (size_t)n, ", %d:%02d left", s / 60, s % 60);
    }
    if (m->total > 0)
        snprintf(brief, sizeof brief, "%d %% of %s", (int)(100 * f), total);
    else
        snprintf(brief, sizeof brief, "%s", have);
    cli_draw(text, brief);
    m->is_drawn = 1;
}

void meter_show(struct meter *m, int64_t have, int64_t total)
{
    double now = cli_seconds(), past = now - m->drawn;
    m->total = total;
    m->have = have;
    int tenth = total > 0 ? (int)(10 * (double)have / (double)total) : 0;
    int is_due = m->is_terminal ? past > 0.2 || !m->is_drawn : tenth > m->tenth;
    if (!is_due)
        return;
    /* The last seconds count, and the more the longer they were. */
    double rate = past > 0 ? (double)(have - m->drawn_have) / past : 0,
           weight = past > 3 ? 1 : past / 3;
    m->rate = m->rate > 0 ? m->rate + weight * (rate - m->rate) : rate;
    m->drawn = now;
    m->drawn_have = have;
    if (m->is_terminal) {
        draw(m);
    } else {
        char a[32], b[32], r[32];
        say_bytes(have, a, sizeof a);
        say_bytes(total, b, sizeof b);
        say_bytes((int64_t)m->rate, r, sizeof r);
        fprintf(stderr, "%s: %d %%, %s of %s, %s/s\n", m->name, 10 * tenth, a, b, r);
    }
    m->tenth = tenth;
}

void meter_clear(struct meter *m)
{
    if (m->is_drawn)
        fputs("\r\033[K", stderr);
    m->is_drawn = 0;
}
