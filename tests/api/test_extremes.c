/* test_extremes.c -- models whose keys are at the ends of what a file may say, with every tensor
 * that goes with them: each key of each architecture in turn is the least, the greatest and numbers
 * between, where that is a file of a few megabytes. Such a file binds, so what is asked of memory
 * and plans is what its keys claim. Wanted is an error that says why, or a model that runs; never a
 * crash, memory beyond a bound or a step of many seconds.
 *
 * Cases run in a child process, as those of test_damage.c do. TEST_ARCH=name: of this one alone. */
#include "findings.h"
#include "robust.h"

#include <float.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "arch/arch.h"

enum { FILE_MOST = 4 << 20, HANG_MAX = 120, SMALL_BATCH = 16 };
#define MEMORY_MAX  ((uint64_t)1 << 30)
#define SECONDS_MAX 20.0

static struct report { /* shared with the child */
    long at, n_cases, n_made, n_opened, n_ran;
    double worst_s;
    uint64_t worst_bytes;
    char worst[200], largest[200];
} * report;

/* ---------------------------------------------------------------- numbers to try */

enum { NUMBERS_MAX = 24 };

static int is_real(const struct key_spec *s)
{
    return s->kind == KEY_F32 || s->kind == KEY_LAYERS_F32;
}

static int has_numbers(const struct key_spec *s)
{
    return s->kind == KEY_I32 || s->kind == KEY_LAYERS || is_real(s) || s->kind == KEY_BOOL ||
           s->kind == KEY_FOUR;
}

static int numbers_of(const struct key_spec *s, double v[NUMBERS_MAX])
{
    static const double whole[] = {0,        1,    2,     3,       5,
                                   63,       64,   65,    256,     1000,
                                   1024,     4095, 65536, 1 << 20, INT32_MAX - 1,
                                   INT32_MAX},
                        real[] = {0, 1, -1, 1e-38, 1e-30, -1e-30, 0.5, 3, 1e9, -1e9, 1e30, -1e30};
    const double *from = is_real(s) ? real : whole;
    size_t n_from = is_real(s) ? sizeof real / sizeof *real : sizeof whole / sizeof *whole;
    double lo = s->lo, hi = s->hi;
    int n = 0, limited = lo != 0 || hi != 0;
    if (s->kind == KEY_BOOL) {
        v[0] = 0, v[1] = 1;
        return 2;
    }
    if (limited)
        v[n++] = lo, v[n++] = hi, v[n++] = is_real(s) ? (lo + hi) / 2 : hi - 1;
    for (size_t i = 0; i < n_from && n < NUMBERS_MAX; i++)
        if (!limited || (from[i] > lo && from[i] < hi))
            v[n++] = from[i];
    return n;
}

/* ---------------------------------------------------------------- one case */

static void use(const char *path, int i)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    mp.n_threads = 1;
    mp.n_batch = SMALL_BATCH;
    mp.weights = (pith_weights)(i % 3);
    pith_model *m = pith_model_open(path, &mp, &err);
    if (!m) {
        check_message("open", PITH_OK, &err);
        return;
    }
    report->n_opened++;
    pith_model_get_info(m, &info, NULL);
    pith_session *s = pith_session_open(m, NULL, &err);
    if (s) {
        int32_t v = info.n_vocab, ids[3] = {1 % v, v - 1, v / 2};
        pith_status st = pith_encoder_most(s) ? pith_encode(s, 0, ids, 3, &err) : PITH_OK;
        if (st != PITH_OK)
            check_message("encode", st, &err);
        st = pith_feed(s, 0, ids, 3, &err);
        if (st == PITH_OK && info.causal)
            st = pith_feed(s, 0, ids, 1, &err);
        if (st != PITH_OK)
            check_message("feed", st, &err);
        report->n_ran += st == PITH_OK;
    } else {
        check_message("session", PITH_OK, &err);
    }
    if (memory_held() > report->worst_bytes) {
        report->worst_bytes = memory_held();
        snprintf(report->largest, sizeof report->largest, "%s", findings->label);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static void one(const char *arch, const struct key_spec *s, double v, int layers, int experts,
                int i)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err;
    char key[128];
    const char *keys[] = {key, NULL};
    snprintf(key, sizeof key, "%s=%.17g", s->suffix, v);
    snprintf(findings->label, sizeof findings->label, "%s, %s, %d layers, %d experts", arch, key,
             layers, experts);
    p.arch = arch;
    p.type = i % 2 ? "f16" : "f32";
    p.n_layer = layers;
    p.n_embd = 32;
    p.n_head = 2;
    p.n_head_kv = 1;
    p.head_dim = 16;
    p.n_ff = 32;
    p.n_vocab = 24;
    p.n_ctx = 128;
    p.n_expert = experts;
    p.keys = keys;
    const char *path = tmp_path("extreme.gguf");
    double cpu = test_cpu_seconds();
    report->n_cases++;
    atomic_store(&hook.limit, 0);
    pith_status st = pith_synth(path, &p, &err);
    atomic_store(&hook.limit, MEMORY_MAX);
    if (st == PITH_OK) {
        report->n_made++;
        cpu = test_cpu_seconds();
        use(path, i);
    } else {
        check_message("synth", st, &err);
    }
    unlink(path);
    cpu = test_cpu_seconds() - cpu;
    if (cpu > report->worst_s) {
        report->worst_s = cpu;
        snprintf(report->worst, sizeof report->worst, "%s", findings->label);
    }
    if (cpu > SECONDS_MAX)
        bad("took %.1f s", cpu);
    if (atomic_load(&hook.blocks) || memory_held())
        bad("%ld blocks, %" PRIu64 " bytes are still held", atomic_load(&hook.blocks),
            memory_held());
    if (atomic_exchange(&hook.over, 0))
        bad("asked for more than %" PRIu64 " MiB", MEMORY_MAX >> 20);
}

/* ---------------------------------------------------------------- all of them */

/* Cases from `from` on, every stride-th of them, `turn` being one; experts: with them. */
static void run_cases(const char *arch, long from, long stride, long turn)
{
    long i = 0;
    for (int experts = 0; experts <= 4; experts += 4)
        for (const struct key_spec *s = arch_find(arch)->keys; s->suffix; s++) {
            double v[NUMBERS_MAX];
            int n = has_numbers(s) ? numbers_of(s, v) : 0;
            for (int k = 0; k < n; k++, i++) {
                if (i < from || i % stride != turn)
                    continue;
                report->at = i;
                alarm(HANG_MAX);
                one(arch, s, v[k], 4, experts, (int)i);
            }
        }
    alarm(0);
}

static void one_arch(const char *arch, long stride, long turn)
{
    long n_failed = 0;
    for (long from = 0;;) {
        int status;
        report->at = from;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGXFSZ, SIG_IGN); /* a file that would be larger cannot be written */
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){FILE_MOST, FILE_MOST});
            run_cases(arch, from, stride, turn);
            exit(0);
        }
        REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid, "no child process");
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
        test_fail(__FILE__, __LINE__, "%s: %s %d", findings->label,
                  WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (++n_failed > 3)
            break;
        from = report->at + 1;
    }
    findings_tell();
}

static void extremes(void)
{
    const char *const *names = pith_arch_names(), *only = getenv("TEST_ARCH");
    long stride = test_scale() >= 100 ? 1 : test_scale() >= 10 ? 53 : 997;
    for (int i = 0; names[i] && test_bad < 5; i++)
        if (!only || !strcmp(only, names[i]))
            one_arch(names[i], stride, i * 89L % stride); /* those of one table try other keys */
    CHECK_MSG(report->n_ran > report->n_cases / 10, "of %ld cases %ld were made, %ld ran",
              report->n_cases, report->n_made, report->n_ran);
    if (getenv("TEST_VERBOSE"))
        printf("  %ld cases, %ld made, %ld opened, %ld ran; %.2f s for %s; %" PRIu64
               " KiB held for %s\n",
               report->n_cases, report->n_made, report->n_opened, report->n_ran, report->worst_s,
               report->worst, report->worst_bytes >> 10, report->largest);
}

/* Layers that are run again cost a plan, and no bytes of a file. */
static void many_visits(void)
{
    static const char *const loops[][2] = {{"nanbeige.num_loops=int:64", NULL},
                                           {"nanbeige.num_loops=int:2", NULL}};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {0};
    const char *path = tmp_path("loops.gguf");
    p.arch = "nanbeige";
    p.n_layer = 128;
    p.n_embd = 8;
    p.n_head = 1;
    p.head_dim = 2;
    p.n_ff = 2;
    p.n_vocab = 8;
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.n_threads = 1;
        mp.overrides = loops[i];
        uint64_t bytes = atomic_load(&hook.asked_bytes);
        pith_model *m = pith_model_open(path, &mp, &err);
        bytes = atomic_load(&hook.asked_bytes) - bytes;
        if (i)
            CHECK_MSG(m, "%s", err.msg);
        else
            CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, "8192 times in all") &&
                          bytes < 16 << 20,
                      "%s; %" PRIu64 " bytes asked for", err.msg, bytes);
        pith_model_close(m);
    }
    unlink(path);
}

/* What cannot be written is not computed. */
static void no_room(void)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {0};
    if (access("/dev/full", W_OK) != 0)
        SKIP("no /dev/full");
    p.type = "f16";
    p.arch = "llama";
    p.n_embd = 8192;
    p.n_ff = 32768;
    double cpu = test_cpu_seconds();
    pith_status st = pith_synth("/dev/full", &p, &err);
    cpu = test_cpu_seconds() - cpu;
    CHECK_MSG(st == PITH_IO && cpu < 5, "status %d, %.1f s; %s", (int)st, cpu, err.msg);
}

int main(void)
{
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED || !findings_make())
        return 1;
    hook_install();
    tmp_make();
    TEST(extremes);
    TEST(many_visits);
    TEST(no_room);
    return test_end();
}
