/* turn.c -- one model, held open, that is measured a little at a time.
 *
 *     turn MODEL.gguf THREADS SEQUENCES DEPTH PREFILL STEPS
 *
 * Opens the model, puts DEPTH tokens into each sequence and writes "ready". Then for each line of
 * its input: PREFILL tokens of each sequence at once and STEPS steps of one token of each; the
 * nanoseconds of that, and those of processors, go to its output as a line, and the sequences are
 * as before. The line "roof" measures the machine instead: GB/s of reads, int8's and f32's Gop/s.
 * While it waits for a line nothing of it runs. turns.py runs two such programs by turns, versus.py
 * one of them beside the peer. It takes nothing but the public header, so it can be built in the
 * tree of an older commit, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pith.h"

enum { BATCH = 512 };

struct turn {
    pith_session *s;
    int32_t n_seqs, *token, *seq;
    struct pith_error err;
};

static void need(const struct turn *t, int ok)
{
    if (ok)
        return;
    fprintf(stderr, "turn: %s\n", t->err.msg);
    exit(1);
}

static void feed(struct turn *t, int32_t n)
{
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = n * t->n_seqs;
    b.token = t->token;
    b.seq = t->seq;
    for (int32_t i = 0; i < b.n; i++)
        t->seq[i] = i / n;
    need(t, pith_step(t->s, &b, &t->err) == PITH_OK);
}

static long long clock_now(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void take(struct turn *t, int32_t depth, int32_t prefill, int32_t steps)
{
    long long began = clock_now(CLOCK_MONOTONIC), worked = clock_now(CLOCK_PROCESS_CPUTIME_ID);
    if (prefill)
        feed(t, prefill);
    for (int32_t i = 0; i < steps; i++)
        feed(t, 1);
    printf("%lld %lld\n", clock_now(CLOCK_MONOTONIC) - began,
           clock_now(CLOCK_PROCESS_CPUTIME_ID) - worked);
    fflush(stdout);
    for (int32_t q = 0; q < t->n_seqs; q++)
        need(t, pith_truncate(t->s, q, depth, &t->err) == PITH_OK);
}

static void measure(struct turn *t, int32_t n_threads)
{
    enum { MS = 250 }; /* each, as pith bench */
    struct pith_machine roof = {.size = sizeof roof};
    need(t, pith_machine_measure(n_threads, MS, &roof, &t->err) == PITH_OK);
    printf("%.3f %.3f %.3f\n", roof.read_gbs, roof.int8_gops, roof.f32_gops);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct turn t = {0};
    char line[64];
    if (argc != 7) {
        fprintf(stderr, "usage: turn MODEL.gguf THREADS SEQUENCES DEPTH PREFILL STEPS\n");
        return 2;
    }
    int32_t n_threads = atoi(argv[2]), depth = atoi(argv[4]), prefill = atoi(argv[5]);
    int32_t steps = atoi(argv[6]), most = prefill > BATCH ? prefill : BATCH;
    t.n_seqs = atoi(argv[3]);
    if (n_threads < 1 || t.n_seqs < 1 || depth < 0 || prefill < 0 || steps < 0) {
        fprintf(stderr, "turn: a number is out of its range\n");
        return 2;
    }
    pith_model *m = pith_model_open(argv[1], NULL, &t.err);
    need(&t, m != NULL);
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    p.n_ctx = depth + prefill + steps;
    p.n_seq = t.n_seqs;
    p.n_threads = p.n_threads_prefill = n_threads;
    t.s = pith_session_open(m, &p, &t.err);
    need(&t, t.s != NULL);
    t.token = calloc((size_t)most * (size_t)t.n_seqs, sizeof *t.token);
    t.seq = calloc((size_t)most * (size_t)t.n_seqs, sizeof *t.seq);
    if (!t.token || !t.seq) {
        fprintf(stderr, "turn: out of memory for %d tokens\n", most * t.n_seqs);
        return 1;
    }
    for (int32_t i = 0; i < most * t.n_seqs; i++)
        t.token[i] = 10 + i % 1000;
    for (int32_t at = 0; at < depth; at += BATCH)
        feed(&t, depth - at < BATCH ? depth - at : BATCH);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "roof\n"))
            measure(&t, n_threads);
        else
            take(&t, depth, prefill, steps);
    }
    pith_session_close(t.s);
    pith_model_close(m);
    free(t.token);
    free(t.seq);
    return 0;
}
