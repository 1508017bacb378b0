/* threads.c -- the flags about threads: counts found by measuring and kept in the cache folder, and
 * the priority of the process.
 *
 * The file CACHE/threads-HASH.json belongs to one machine (HASH: of pith_threads.machine, so that
 * machines may share a folder):
 *
 *     {"decode":2,"machine":"...","prefill":2,"sum":"16 hex digits","version":"0.1.0 (commit)"}
 *
 * sum is FNV-1a of the same object without it, keys sorted, no spaces. Whatever is not exactly
 * this, or of another version or machine, is measured again and replaced. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

enum { MEASURE_MS = 2000, THREADS_MAX = 1024 };

/* ---------------------------------------------------------------- cache folder */

int cli_cache_path(const char *name, char *out, size_t cap)
{
    const char *own = getenv("PITH_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = own && *own     ? snprintf(out, cap, "%s/%s", own, name)
            : xdg && *xdg   ? snprintf(out, cap, "%s/pith/%s", xdg, name)
            : home && *home ? snprintf(out, cap, "%s/.cache/pith/%s", home, name)
                            : -1;
    errno = ENOENT; /* of the folder, when there is none to be named */
    return n > 0 && (size_t)n < cap;
}

/* The folders on the way to path. Why the first that could not be made could not; ENOENT: all are
 * there. */
static int make_parents(const char *path, mode_t mode)
{
    char dir[PATH_MAX];
    int why = ENOENT;
    snprintf(dir, sizeof dir, "%s", path);
    for (char *p = dir + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(dir, mode) && errno != EEXIST && why == ENOENT)
            why = errno;
    }
    return why;
}

int cli_make_private(const char *dir)
{
    struct stat sb;
    int why = make_parents(dir, 0700);
    if (mkdir(dir, 0700) && errno != EEXIST) {
        errno = errno == ENOENT ? why : errno;
        return 0;
    }
    if (stat(dir, &sb))
        return 0;
    if (!S_ISDIR(sb.st_mode)) {
        errno = ENOTDIR;
        return 0;
    }
    return (sb.st_mode & 077) == 0 || chmod(dir, 0700) == 0;
}

/* Writes a file of the cache folder, making the folders on the way. 0: errno says why it could not.
 */
static int replace_file(const char *path, const char *text)
{
    int why = make_parents(path, 0777); /* one that failed makes the writing fail */
    errno = cli_replace_file(path, text);
    errno = errno == ENOENT ? why : errno;
    return errno == 0;
}

/* ---------------------------------------------------------------- measured counts */

static uint64_t fnv1a(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

/* The whole file's text for these counts; NULL: no memory. */
static char *record(const struct pith_threads *t)
{
    char sum[20];
    json_t *o =
        json_pack("{s:o, s:s, s:i, s:i}", "machine", cli_json_text(t->machine, strlen(t->machine)),
                  "version", pith_version(), "decode", t->n_decode, "prefill", t->n_prefill);
    char *plain = o ? json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS) : NULL, *whole = NULL;
    if (plain) {
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)fnv1a(plain));
        if (json_object_set_new(o, "sum", json_string(sum)) == 0)
            whole = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    }
    free(plain);
    json_decref(o);
    return whole;
}

/* Takes the counts from the file when it is whole, of this version and of this machine. */
static int recall(const char *path, struct pith_threads *t)
{
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    struct pith_threads found = *t;
    int ok = o && json_unpack(o, "{s:i, s:i}", "decode", &found.n_decode, "prefill",
                              &found.n_prefill) == 0;
    char *there = o ? json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS) : NULL, *wanted = record(&found);
    ok = ok && there && wanted && !strcmp(there, wanted) && found.n_decode >= 1 &&
         found.n_decode <= THREADS_MAX && found.n_prefill >= 1 && found.n_prefill <= THREADS_MAX;
    if (ok)
        *t = found;
    free(there);
    free(wanted);
    json_decref(o);
    return ok;
}

int cli_auto_threads(struct pith_threads *t, int chatty)
{
    char path[PATH_MAX], name[64];
    struct pith_error err = {0};
    if (pith_measure_threads(0, t, &err) != PITH_OK)
        return cli_fail(&err);
    snprintf(name, sizeof name, "threads-%016llx.json", (unsigned long long)fnv1a(t->machine));
    int has_path = cli_cache_path(name, path, sizeof path);
    if (has_path && recall(path, t))
        return CLI_OK;
    if (pith_measure_threads(MEASURE_MS, t, &err) != PITH_OK)
        return cli_fail(&err);
    char *text = record(t);
    if (!text)
        return cli_no_memory();
    if (!has_path || !replace_file(path, text))
        cli_say(CLI_OK, "note: measured thread counts cannot be kept in %s: %s",
                has_path ? path : "a cache folder (set PITH_CACHE)", strerror(errno));
    else if (chatty)
        cli_say(CLI_OK, "measured: %d threads to decode, %d for prefill; kept in %s", t->n_decode,
                t->n_prefill, path);
    free(text);
    return CLI_OK;
}

/* ---------------------------------------------------------------- priority */

/* Of this thread; the library's workers inherit it. What the system refuses is said, not fatal. */
static void set_priority(const char *level)
{
    static const struct {
        const char *name;
        int nice;
    } levels[] = {{"low", 10}, {"high", -10}, {"realtime", -20}};
    if (!strcmp(level, "realtime")) {
        struct sched_param sp = {.sched_priority = 1};
        if (sched_setscheduler(0, SCHED_RR, &sp) == 0)
            return;
        cli_say(CLI_OK, "note: priority realtime was refused (%s); trying high", strerror(errno));
        level = "high";
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!strcmp(levels[i].name, level) && setpriority(PRIO_PROCESS, 0, levels[i].nice) != 0)
            cli_say(CLI_OK, "note: priority %s was refused (%s); it stays as it is", level,
                    strerror(errno));
    }
}

int cli_threads(const struct thread_opts *o, int chatty, struct pith_model_params *params)
{
    struct pith_threads t = {.size = sizeof t};
    if (o->n_decode < 0 || o->n_prefill < 0) { /* auto */
        int code = cli_auto_threads(&t, chatty);
        if (code)
            return code;
    }
    params->n_threads = o->n_decode < 0 ? t.n_decode : (int32_t)o->n_decode;
    params->n_threads_prefill = o->n_prefill < 0 || (o->n_decode < 0 && o->n_prefill == 0)
                                    ? t.n_prefill
                                    : (int32_t)o->n_prefill;
    params->affinity = o->affinity;
    params->numa = o->numa && !strcmp(o->numa, "spread")    ? PITH_NUMA_SPREAD
                   : o->numa && !strcmp(o->numa, "isolate") ? PITH_NUMA_ISOLATE
                                                            : PITH_NUMA_OFF;
    if (o->priority)
        set_priority(o->priority);
    return CLI_OK;
}
