/* bench_record.c -- what the host does for a decoded token on a GPU, with its commands recorded
 * once and replayed, and issued call by call: processor time of the thread that calls pith_step, so
 * that neither a device that is slow nor other programs count. A device that the processor plays
 * (lavapipe) has threads of its own, which do not count either.
 *
 *     bench_record [DEVICE [MODEL]]       default vulkan0 and a random llama of 24 layers;
 *                                         PITH_VULKAN_DEVICES=0 where lavapipe plays it,
 *                                         PITH_PLUGINS=build where the kernels are
 *
 * Both ways take turns, ROUNDS times; the least of each is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pith.h"

enum { WARM = 2, STEPS = 8, ROUNDS = 3, LAYERS = 24 };

static void need(pith_status st, const struct pith_error *err)
{
    if (st == PITH_OK)
        return;
    fprintf(stderr, "bench_record: %s\n", err->msg);
    exit(1);
}

static double thread_us(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static pith_status step(pith_session *s, int i, struct pith_error *err)
{
    struct pith_batch b = PITH_BATCH_INIT;
    const int32_t token = 7 * i % 500, seq = 0;
    const uint8_t want = 1;
    b.n = 1;
    b.token = &token;
    b.seq = &seq;
    b.want = &want;
    return pith_step(s, &b, err);
}

/* Microseconds of a token; recordings: what the report says of them. */
static double us_of(pith_model *m, const char *room, char *recordings, size_t cap)
{
    static char report[1 << 16];
    struct pith_error err = {0};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 256;
    sp.n_threads = 1;
    setenv("PITH_VULKAN_RECORDINGS", room, 1);
    setenv("PITH_CUDA_RECORDINGS", room, 1);
    pith_session *s = pith_session_open(m, &sp, &err);
    if (!s)
        need(err.code, &err);
    for (int i = 0; i < WARM; i++)
        need(step(s, i, &err), &err);
    double from = thread_us();
    for (int i = 0; i < STEPS; i++)
        need(step(s, WARM + i, &err), &err);
    double us = (thread_us() - from) / STEPS;
    pith_report(s, 1, report, sizeof report);
    const char *at = strstr(report, "\"recordings\": {");
    snprintf(recordings, cap, "%.*s", at ? (int)strcspn(at + 15, "}") : 4, at ? at + 15 : "none");
    pith_session_close(s);
    return us;
}

static void make_model(const char *path)
{
    struct pith_error err = {0};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = "llama";
    p.type = "q4_0";
    p.n_layer = LAYERS;
    p.n_embd = 256;
    p.n_head = 8;
    p.n_head_kv = 4;
    p.n_ff = 768;
    p.n_vocab = 1000;
    p.n_ctx = 1024;
    need(pith_synth(path, &p, &err), &err);
}

int main(int argc, char **argv)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    char own[64] = "", said[2][256];
    double best[2] = {1e30, 1e30};
    if (argc <= 2) {
        snprintf(own, sizeof own, "/tmp/bench_record-%ld.gguf", (long)getpid());
        make_model(own);
    }
    mp.devices = argc > 1 ? argv[1] : "vulkan0";
    mp.gpu_layers = PITH_GPU_LAYERS_ALL;
    pith_model *m = pith_model_open(*own ? own : argv[2], &mp, &err);
    if (*own)
        unlink(own);
    if (!m)
        need(err.code, &err);
    for (int r = 0; r < ROUNDS; r++)
        for (int way = 0; way < 2; way++) {
            double us = us_of(m, way ? "0" : "12", said[way], sizeof said[way]);
            best[way] = us < best[way] ? us : best[way];
        }
    printf("%s: %.1f us of the host for a token replayed (%s), %.1f issued call by call (%s): "
           "%.1f times\n",
           mp.devices, best[0], said[0], best[1], said[1], best[1] / best[0]);
    pith_model_close(m);
    return 0;
}
