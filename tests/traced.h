/* traced.h -- traces as tests read them: the events of a file, in the order of their begins. */
#ifndef PITH_TESTS_TRACED_H
#define PITH_TESTS_TRACED_H

#include <jansson.h>
#include <string.h>

#include "pith.h"
#include "test.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no test program uses every helper */

enum { TRACED_MOST = 100000 };

struct traced {
    char track[32], kind[16], name[48];
    long pid, tid;
    double from, to;
    json_int_t step, phase, source, status; /* -1: not said */
};
static struct traced traced[TRACED_MOST];
static int n_traced;
static json_int_t traced_left_out;

static int by_begin(const void *a, const void *b)
{
    const struct traced *x = a, *y = b;
    return x->from != y->from ? (x->from < y->from ? -1 : 1) : (x->to > y->to ? -1 : x->to < y->to);
}

static json_int_t traced_arg(const json_t *e, const char *name)
{
    const json_t *v = json_object_get(json_object_get(e, "args"), name);
    return v ? json_integer_value(v) : -1;
}

static const char *traced_text(const json_t *e, const char *name)
{
    const char *v = json_string_value(json_object_get(e, name));
    return v ? v : "";
}

/* One event of the array; names of tracks come first. */
static void traced_take(const json_t *e, char track[][32])
{
    long pid = (long)json_integer_value(json_object_get(e, "pid"));
    const json_t *args = json_object_get(e, "args");
    if (!strcmp(traced_text(e, "ph"), "M")) {
        if (!strcmp(traced_text(e, "name"), "process_name") && pid < 64)
            snprintf(track[pid], 32, "%s", traced_text(args, "name"));
        else
            traced_left_out = json_integer_value(json_object_get(args, "events"));
        return;
    }
    const json_t *ts = json_object_get(e, "ts"), *dur = json_object_get(e, "dur");
    CHECK_MSG(!strcmp(traced_text(e, "ph"), "X") && json_is_number(ts) && json_is_number(dur) &&
                  json_number_value(ts) >= 0 && json_number_value(dur) >= 0 &&
                  *traced_text(e, "name"),
              "an event that is not complete");
    struct traced *t = &traced[n_traced < TRACED_MOST ? n_traced++ : TRACED_MOST - 1];
    *t = (struct traced){.pid = pid,
                         .tid = (long)json_integer_value(json_object_get(e, "tid")),
                         .from = json_number_value(ts),
                         .to = json_number_value(ts) + json_number_value(dur),
                         .step = traced_arg(e, "step"),
                         .phase = traced_arg(e, "phase"),
                         .source = traced_arg(e, "from"),
                         .status = traced_arg(e, "status")};
    snprintf(t->track, sizeof t->track, "%s", pid < 64 ? track[pid] : "");
    snprintf(t->kind, sizeof t->kind, "%s", traced_text(e, "cat"));
    snprintf(t->name, sizeof t->name, "%s", traced_text(e, "name"));
}

/* On each line an event lies within another one or beside it. Times have 3 digits. */
static void traced_nest(const char *what)
{
    int crossed = 0;
    for (int i = 0; i < n_traced; i++)
        for (int k = i + 1; k < n_traced && traced[k].from < traced[i].to; k++)
            crossed += traced[k].pid == traced[i].pid && traced[k].tid == traced[i].tid &&
                       traced[k].to > traced[i].to + 0.0015 &&
                       traced[k].from < traced[i].to - 0.0015;
    CHECK_MSG(!crossed, "%s: %d events cross others of their line", what, crossed);
}

/* Reads a file and checks what every trace keeps to. */
static void traced_read(const char *path, const char *what)
{
    static char track[64][32];
    json_error_t why;
    json_t *all = json_load_file(path, 0, &why);
    n_traced = 0;
    traced_left_out = -1;
    memset(track, 0, sizeof track);
    CHECK_MSG(all && json_is_array(all), "%s: %s", what, all ? "no array" : why.text);
    for (size_t i = 0; all && i < json_array_size(all); i++)
        traced_take(json_array_get(all, i), track);
    json_decref(all);
    qsort(traced, (size_t)n_traced, sizeof *traced, by_begin);
    traced_nest(what);
}

static int traced_count(const char *kind, const char *track)
{
    int n = 0;
    for (int i = 0; i < n_traced; i++)
        n += !strcmp(traced[i].kind, kind) && (!track || !strcmp(traced[i].track, track));
    return n;
}

/* How often a device was at a step while another one was at the step before it: by the order of
 * events alone. */
static int traced_overlaps(const char *first, const char *second)
{
    int n = 0;
    for (int i = 0; i < n_traced; i++)
        for (int k = 0; k < n_traced; k++) {
            const struct traced *a = &traced[i], *b = &traced[k];
            n += !strcmp(a->kind, "segment") && !strcmp(b->kind, "segment") &&
                 !strcmp(a->track, first) && !strcmp(b->track, second) && a->step == b->step + 1 &&
                 a->from < b->to && b->from < a->to;
        }
    return n;
}

#endif
