/* bench_load.c -- how fast a model starts and what is resident, for each residence of its weights.
 *
 *     bench_load MODEL [FOLDER|- [repeats [tokens [cold]]]]
 *
 * mapped, packed, packed while the first prompt runs, and packed with a copy kept in FOLDER (the
 * first start with it writes the copy and is not shown; -: none). Each start is a process of its
 * own: seconds to open and until the first token of a prompt of so many (1), the same in GB/s of
 * the model's file, processor time of all threads until open and until the first token, and the
 * most that was resident, beside the file's size. The best of the repeats. The file should be in
 * the page cache; `cold` has it leave that before each start. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pith.h"

struct result {
    double open_s, cpu_s, token_s, token_cpu_s, peak_bytes, file_bytes;
};

enum { TOKENS_MAX = 8192 };
static int n_tokens = 1, cold;

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

/* Out of the page cache, as far as the system lets it. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static int start(const char *path, pith_weights weights, const char *folder, struct result *r)
{
    struct pith_error err;
    struct pith_model_params params = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t tokens[TOKENS_MAX];
    params.weights = weights;
    params.cache_dir = folder;
    sp.n_ctx = n_tokens + 64;
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = 1 + i * 31 % 256;
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    pith_model *m = pith_model_open(path, &params, &err);
    r->open_s = now(CLOCK_MONOTONIC) - began;
    r->cpu_s = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    if (!s || pith_feed(s, 0, tokens, n_tokens, &err) != PITH_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 0;
    }
    r->token_s = now(CLOCK_MONOTONIC) - began;
    r->token_cpu_s = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
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
    if (cold)
        forget(path);
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
    const char *path = argc > 1 ? argv[1] : NULL;
    const char *folder = argc > 2 && strcmp(argv[2], "-") ? argv[2] : NULL;
    int repeats = argc > 3 ? atoi(argv[3]) : 3;
    n_tokens = argc > 4 ? atoi(argv[4]) : 1;
    cold = argc > 5 && !strcmp(argv[5], "cold");
    if (!path || n_tokens < 1 || n_tokens > TOKENS_MAX || (argc > 5 && !cold)) {
        fprintf(stderr, "usage: bench_load MODEL [FOLDER|- [repeats [tokens [cold]]]], at most %d "
                        "tokens\n",
                TOKENS_MAX);
        return 1;
    }
    printf("weights  open s   GB/s  cpu s  token s   GB/s  cpu s  peak MiB  of the file\n");
    for (int kind = 0; kind < (folder ? 4 : 3); kind++) {
        static const char *const names[] = {"mapped", "packed", "later", "copy"};
        static const pith_weights weights[] = {PITH_WEIGHTS_MAPPED, PITH_WEIGHTS_PACKED,
                                               PITH_WEIGHTS_LATER, PITH_WEIGHTS_PACKED};
        struct result unseen = {0}, r = {0};
        int ok = kind < 3 || one(path, weights[kind], folder, &unseen);
        for (int i = 0; ok && i < repeats; i++)
            ok = one(path, weights[kind], kind < 3 ? NULL : folder, &r);
        if (!ok)
            return 1;
        printf("%-7s %7.3f %6.2f %6.3f %8.3f %6.2f %6.3f %9.0f %12.2f\n", names[kind], r.open_s,
               r.file_bytes / r.open_s * 1e-9, r.cpu_s, r.token_s, r.file_bytes / r.token_s * 1e-9,
               r.token_cpu_s, r.peak_bytes / 1048576, r.peak_bytes / r.file_bytes);
    }
    return 0;
}
