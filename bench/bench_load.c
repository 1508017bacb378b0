/* bench_load.c -- how fast a model starts and what is resident, for each residence of its weights.
 *
 *     bench_load MODEL [FOLDER [repeats]]
 *
 * mapped, packed, and packed with a copy kept in FOLDER (the first start with it writes the copy
 * and is not shown). Each start is a process of its own: seconds to open and until the first token
 * of a prompt of one, the same in GB/s of the model's file, processor time of opening on all
 * threads, and the most that was resident, beside the file's size. The best of the repeats; the
 * file should be in the page cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pith.h"

struct result {
    double open_s, cpu_s, token_s, peak_bytes, file_bytes;
};

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double peak_bytes(void)
{
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kb * 1024;
}

static int start(const char *path, pith_weights weights, const char *folder, struct result *r)
{
    struct pith_error err;
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    const int32_t token = 1;
    params.weights = weights;
    params.cache_dir = folder;
    sp.n_ctx = 512;
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    pith_model *m = pith_model_open(path, &params, &err);
    r->open_s = now(CLOCK_MONOTONIC) - began;
    r->cpu_s = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    if (!s || pith_feed(s, 0, &token, 1, &err) != PITH_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 0;
    }
    r->token_s = now(CLOCK_MONOTONIC) - began;
    r->peak_bytes = peak_bytes();
    pith_model_get_info(m, &info, NULL);
    r->file_bytes = (double)info.file_bytes;
    if (info.note)
        fprintf(stderr, "%s\n", info.note);
    return 1;
}

/* A start in a process of its own. */
static int one(const char *path, pith_weights weights, const char *folder, struct result *best)
{
    struct result r;
    int ends[2], ok;
    if (pipe(ends) != 0)
        return 0;
    pid_t pid = fork();
    if (pid == 0) {
        memset(&r, 0, sizeof r);
        ok = start(path, weights, folder, &r);
        _exit(!(ok && write(ends[1], &r, sizeof r) == sizeof r));
    }
    close(ends[1]);
    ok = pid > 0 && read(ends[0], &r, sizeof r) == sizeof r;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    if (ok && (best->token_s == 0 || r.token_s < best->token_s))
        *best = r;
    return ok;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : NULL, *folder = argc > 2 ? argv[2] : NULL;
    int repeats = argc > 3 ? atoi(argv[3]) : 3;
    if (!path) {
        fprintf(stderr, "usage: bench_load MODEL [FOLDER [repeats]]\n");
        return 1;
    }
    printf("weights  open s   GB/s  cpu s  token s   GB/s  peak MiB  of the file\n");
    for (int kind = 0; kind < (folder ? 3 : 2); kind++) {
        static const char *const names[] = {"mapped", "packed", "copy"};
        pith_weights weights = kind ? PITH_WEIGHTS_PACKED : PITH_WEIGHTS_MAPPED;
        struct result unseen = {0}, r = {0};
        int ok = kind < 2 || one(path, weights, folder, &unseen);
        for (int i = 0; ok && i < repeats; i++)
            ok = one(path, weights, kind < 2 ? NULL : folder, &r);
        if (!ok)
            return 1;
        printf("%-7s %7.3f %6.2f %6.3f %8.3f %6.2f %9.0f %12.2f\n", names[kind], r.open_s,
               r.file_bytes / r.open_s * 1e-9, r.cpu_s, r.token_s, r.file_bytes / r.token_s * 1e-9,
               r.peak_bytes / 1048576, r.peak_bytes / r.file_bytes);
    }
    return 0;
}
