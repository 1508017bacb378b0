/* trace.c -- see trace.h. Events are kept in blocks that are made as they fill, under one lock; the
 * oldest are written over when there are as many as there may be. */
#include "base/machine/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/machine/file.h"
#include "base/machine/pool.h"
#include "base/mem.h"
#include "base/str.h"

enum { BLOCK = 4096, TRACKS = 64 };

struct kept {
    char name[TRACE_NAME];
    const char *kind;
    uint16_t track; /* 0: the host */
    uint32_t line;
    int64_t began, ended;
    const char *arg[TRACE_ARGS];
    int64_t value[TRACE_ARGS];
};

_Atomic(int) trace_goes_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char path[4096];
    int64_t t0;
    uint64_t cap, n, lost; /* events: at most, so far, for which there was no memory */
    struct kept **block;   /* [blocks of cap] */
    char track[TRACKS][32];
    int n_tracks;
} t;
static _Atomic(uint32_t) n_lines, n_threads;
static _Thread_local uint32_t thread;

int64_t trace_clock(void)
{
    return clock_ns();
}

uint32_t trace_line(void)
{
    return atomic_fetch_add(&n_lines, 1) + 1;
}

/* The number of a track, which begins with its first event. Beyond the last all share that. */
static int track_of(const char *name)
{
    if (!name)
        return 0;
    for (int i = 0; i < t.n_tracks; i++)
        if (!strncmp(t.track[i], name, sizeof t.track[i] - 1))
            return i + 1;
    if (t.n_tracks < TRACKS)
        snprintf(t.track[t.n_tracks++], sizeof t.track[0], "%s", name);
    return t.n_tracks;
}

/* Where event n goes; NULL: no memory. */
static struct kept *place_of(uint64_t n)
{
    uint64_t at = n % t.cap;
    struct kept **b = &t.block[at / BLOCK];
    if (!*b)
        *b = mem_alloc(BLOCK * sizeof **b, PITH_MEM_META);
    return *b ? *b + at % BLOCK : NULL;
}

void trace_span(int64_t began, int64_t ended, const struct trace_event *e)
{
    if (!began)
        return;
    if (!thread)
        thread = atomic_fetch_add(&n_threads, 1) + 1;
    pthread_mutex_lock(&lock);
    struct kept *k = t.block && began >= t.t0 ? place_of(t.n) : NULL;
    if (k) {
        *k = (struct kept){.kind = e->kind,
                           .track = (uint16_t)track_of(e->track),
                           .line = e->track ? e->line : thread,
                           .began = began,
                           .ended = ended};
        snprintf(k->name, sizeof k->name, "%s", e->name);
        memcpy(k->arg, e->arg, sizeof k->arg);
        memcpy(k->value, e->value, sizeof k->value);
        t.n++;
    } else if (t.block) {
        t.lost++;
    }
    pthread_mutex_unlock(&lock);
}

void trace_end(int64_t began, const struct trace_event *e)
{
    if (began)
        trace_span(began, trace_clock(), e);
}

/* ---------------------------------------------------------------- begin and end */

static uint64_t n_blocks(void)
{
    return (t.cap + BLOCK - 1) / BLOCK;
}

pith_status trace_start(const char *path, int64_t n_events, struct pith_error *err)
{
    struct file_writer w;
    pith_status st = PITH_OK;
    if (n_events < 0 || n_events > TRACE_MOST)
        return error_set(err, PITH_RANGE, "a trace of %lld events, wanted 0 (%d) to %d",
                         (long long)n_events, TRACE_EVENTS, TRACE_MOST);
    pthread_mutex_lock(&lock);
    if (t.block)
        st = error_set(err, PITH_STATE, "%s: a trace goes on already, into %s", path, t.path);
    else if (strlen(path) >= sizeof t.path)
        st = error_set(err, PITH_RANGE, "the name of a trace's file has %zu bytes, at most %zu",
                       strlen(path), sizeof t.path - 1);
    if (st == PITH_OK)
        st = file_writer_open(&w, path, err); /* whether it can be written, before the work */
    if (st == PITH_OK) {
        file_writer_discard(&w);
        snprintf(t.path, sizeof t.path, "%s", path);
        t.cap = n_events ? (uint64_t)n_events : TRACE_EVENTS;
        t.n = t.lost = 0;
        t.n_tracks = 0;
        t.t0 = trace_clock();
        t.block = mem_array((size_t)n_blocks(), sizeof *t.block, PITH_MEM_META);
        if (!t.block)
            st = error_set(err, PITH_NOMEM, "out of memory for a trace");
    }
    atomic_store(&trace_goes_on, t.block != NULL);
    pthread_mutex_unlock(&lock);
    return st;
}

/* ---------------------------------------------------------------- writing */

static void put_text(struct str *s, const char *z)
{
    str_json(s, z, strlen(z));
}

/* Names of tracks and lines, as events of metadata. */
static void put_names(struct str *s)
{
    str_printf(s, "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"process_name\","
                  "\"args\":{\"name\":\"host\"}}");
    for (int i = 0; i < t.n_tracks; i++) {
        str_printf(s, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_name\","
                      "\"args\":{\"name\":",
                   i + 1);
        put_text(s, t.track[i]);
        str_putz(s, "}}");
    }
    uint64_t over = t.n > t.cap ? t.n - t.cap : 0;
    str_printf(s, ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"left_out\","
                  "\"args\":{\"events\":%llu}}",
               (unsigned long long)(over + t.lost));
}

static void put_event(struct str *s, const struct kept *k)
{
    int64_t from = k->began - t.t0, ns = k->ended - k->began;
    str_putz(s, ",\n{\"ph\":\"X\",\"name\":");
    put_text(s, k->name);
    str_putz(s, ",\"cat\":");
    put_text(s, k->kind);
    str_printf(s, ",\"pid\":%d,\"tid\":%u,\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"args\":{", k->track,
               k->line, (long long)(from / 1000), (int)(from % 1000), (long long)(ns / 1000),
               (int)(ns % 1000));
    for (int i = 0; i < TRACE_ARGS && k->arg[i]; i++)
        str_printf(s, "%s\"%s\":%lld", i ? "," : "", k->arg[i], (long long)k->value[i]);
    str_putz(s, "}}");
}

static pith_status write_all(struct pith_error *err)
{
    struct file_writer w;
    struct str s;
    str_init(&s, PITH_MEM_META);
    pith_status st = file_writer_open(&w, t.path, err);
    if (st != PITH_OK)
        return st;
    put_names(&s);
    for (uint64_t i = t.n > t.cap ? t.n - t.cap : 0; i < t.n && !s.failed; i++) {
        put_event(&s, place_of(i));
        if (s.n < 65536)
            continue;
        file_writer_put(&w, s.p, s.n);
        str_clear(&s);
    }
    str_putz(&s, "\n]\n");
    if (!s.failed)
        file_writer_put(&w, s.p, s.n);
    int failed = s.failed;
    str_deinit(&s);
    if (!failed)
        return file_writer_commit(&w, err);
    file_writer_discard(&w);
    return error_set(err, PITH_NOMEM, "%s: out of memory while writing the trace", t.path);
}

pith_status trace_stop(struct pith_error *err)
{
    pthread_mutex_lock(&lock);
    atomic_store(&trace_goes_on, 0);
    pith_status st = t.block ? write_all(err)
                             : error_set(err, PITH_STATE, "no trace goes on");
    for (uint64_t i = 0; t.block && i < n_blocks(); i++)
        mem_free(t.block[i]);
    mem_free(t.block);
    t.block = NULL;
    pthread_mutex_unlock(&lock);
    return st;
}
