/* test_room.c -- memory there is: fake trees of /proc and of control groups, and what models and
 * sessions make of them: weights that are mapped instead of packed, refusals before anything is
 * taken, caches that stop growing with nothing lost, contexts by the memory there is; and a real
 * limit of the process. */
/* In make test alone: it opens models some hundred times, for 13 s of a processor. */
#include "hook.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/machine/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "pith.h"
#include "run/session/session.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNDER_SANITIZER = 1 };
#else
enum { UNDER_SANITIZER = 0 };
#endif

/* ---------------------------------------------------------------- fake trees */

static char proc[128]; /* the tree; groups are mounted in it, too */

static void put(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *name, const char *fmt, ...)
{
    char path[512];
    va_list ap;
    snprintf(path, sizeof path, "%s/%s", proc, name);
    for (char *p = path + strlen(proc) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

/* A new empty tree: where groups are is found once for each. */
static void new_tree(void)
{
    static int n;
    snprintf(proc, sizeof proc, "/tmp/pith-room-%ld-%d", (long)getpid(), n++);
    mkdir(proc, 0700);
}

static void remove_trees(void)
{
    char command[128];
    unsetenv("PITH_PROCFS");
    snprintf(command, sizeof command, "rm -rf /tmp/pith-room-%ld-*", (long)getpid());
    if (system(command) != 0)
        printf("# cannot remove the trees\n");
}

static void machine(uint64_t total, uint64_t available)
{
    put("meminfo", "MemTotal:       %llu kB\nMemFree:        12 kB\nMemAvailable:   %llu kB\n",
        (unsigned long long)total / 1024, (unsigned long long)available / 1024);
}

static void look_there(void)
{
    setenv("PITH_PROCFS", proc, 1);
}

static struct memory_limits read_tree(void)
{
    struct memory_limits l;
    limits_read(&l, proc);
    return l;
}

#define MIB ((uint64_t)1 << 20)

/* ---------------------------------------------------------------- reading */

static void nothing_there(void)
{
    new_tree();
    struct memory_limits l = read_tree();
    CHECK(l.total == UINT64_MAX && l.available == UINT64_MAX && l.anonymous == UINT64_MAX);
    put("meminfo", "MemTotal: many kB\nMemAvailable:\n");
    l = read_tree();
    CHECK(l.total == UINT64_MAX && l.available == UINT64_MAX);
}

static void plain_machine(void)
{
    new_tree();
    machine(1000 * MIB, 600 * MIB);
    put("self/status", "Name: a\nVmSize:\t 900 kB\nRssAnon:\t    300 kB\nVmSwap:\t   20 kB\n");
    struct memory_limits l = read_tree();
    CHECK(l.total == 1000 * MIB && l.available == 600 * MIB && l.anonymous == 320 * 1024 &&
          !strcmp(l.by, "the machine"));
    put("sys/vm/overcommit_memory", "2\n");
    put("meminfo", "MemTotal: 1024000 kB\nMemAvailable: 614400 kB\nCommitLimit: 500000 "
                   "kB\nCommitted_AS: 450000 kB\n");
    l = read_tree();
    CHECK_MSG(l.available == 50000 * 1024 && strstr(l.by, "overcommit"), "%llu by %s",
              (unsigned long long)l.available, l.by);
    put("sys/vm/overcommit_memory", "0\n");
    CHECK(read_tree().available == 614400 * 1024);
}

static void mount_v2(const char *root)
{
    put("self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/root rw\n31 22 0:28 %s %s/cg rw,relatime shared:4 - cgroup2 "
        "cgroup2 rw\n",
        root, proc);
}

/* The tightest of our group and all above it, files' pages not counted. */
static void groups_of_version_2(void)
{
    new_tree();
    machine(1000 * MIB, 600 * MIB);
    put("self/cgroup", "0::/a/b c\n");
    mount_v2("/");
    put("cg/a/b c/memory.max", "max\n");
    put("cg/a/b c/memory.current", "%llu\n", 5 * (unsigned long long)MIB);
    put("cg/a/memory.max", "%llu\n", 300 * (unsigned long long)MIB);
    put("cg/a/memory.current", "%llu\n", 200 * (unsigned long long)MIB);
    put("cg/a/memory.stat", "anon 1\nfile 9\ninactive_file %llu\nactive_file %llu\n",
        30 * (unsigned long long)MIB, 20 * (unsigned long long)MIB);
    struct memory_limits l = read_tree();
    CHECK_MSG(l.available == 150 * MIB && l.total == 300 * MIB && !strcmp(l.by, "cgroup /a"),
              "%llu of %llu by %s", (unsigned long long)l.available, (unsigned long long)l.total,
              l.by);
    put("cg/a/b c/memory.high", "%llu\n", 45 * (unsigned long long)MIB);
    l = read_tree();
    CHECK_MSG(l.available == 40 * MIB && !strcmp(l.by, "cgroup /a/b c"), "%llu by %s",
              (unsigned long long)l.available, l.by);
    put("cg/a/b c/memory.current", "%llu\n", 90 * (unsigned long long)MIB); /* over the limit */
    CHECK(read_tree().available == 0);
    machine(1000 * MIB, 0);
    put("cg/a/b c/memory.current", "0\n");
    l = read_tree();
    CHECK(l.available == 0 && !strcmp(l.by, "the machine") && l.total == 45 * MIB);
}

/* A container whose own group is mounted: the names differ by what the mount does not show. */
static void groups_of_version_1(void)
{
    new_tree();
    machine(1000 * MIB, 600 * MIB);
    put("self/cgroup",
        "12:cpu,cpuacct:/docker/x\n4:memory:/docker/x/in\n1:name=memory:/no\n0::/\n");
    put("self/mountinfo",
        "30 22 0:27 / %s/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "31 22 0:28 /docker/x %s/my\\040memory rw,relatime master:1 - cgroup cgroup rw,memory\n",
        proc, proc);
    put("my memory/memory.limit_in_bytes", "%llu\n", 200 * (unsigned long long)MIB);
    put("my memory/memory.usage_in_bytes", "%llu\n", 150 * (unsigned long long)MIB);
    put("my memory/memory.stat", "inactive_file 1\ntotal_inactive_file %llu\ntotal_active_file 0\n",
        20 * (unsigned long long)MIB);
    put("my memory/in/memory.limit_in_bytes", "9223372036854771712\n");
    put("my memory/in/memory.usage_in_bytes", "7\n");
    struct memory_limits l = read_tree();
    CHECK_MSG(l.available == 70 * MIB && l.total == 200 * MIB && !strcmp(l.by, "cgroup /"),
              "%llu of %llu by %s", (unsigned long long)l.available, (unsigned long long)l.total,
              l.by);
}

/* Texts that are none, cut anywhere and with any byte changed: something is read, nothing is
 * written where it should not be. */
static void damaged_texts(void)
{
    struct rng r;
    rng_init(&r, 5);
    for (int i = 0; i < (test_scale() < 10 ? 60 : 600); i++) {
        char groups[] = "4:memory:/docker/x\n0::/a/b\n", mounts[512];
        new_tree();
        machine(1000 * MIB, 600 * MIB);
        snprintf(mounts, sizeof mounts,
                 "31 22 0:28 /docker %s/cg rw - cgroup cgroup rw,memory\n32 22 0:29 / %s/c\\0402 "
                 "rw - cgroup2 cgroup2 rw\n",
                 proc, proc);
        char *text = i % 2 ? groups : mounts;
        size_t n = strlen(text), at = rng_below(&r, (uint32_t)n);
        text[at] = (char)(i % 3 ? rng_below(&r, 256) : 0);
        put("self/cgroup", "%s", groups);
        put("self/mountinfo", "%s", mounts);
        put("cg/x/memory.limit_in_bytes", i % 5 ? "1000" : "-1");
        put("cg/x/memory.usage_in_bytes", i % 7 ? "500" : "");
        put("c 2/a/b/memory.max", i % 5 ? "99999999999999999999999" : "0x10");
        struct memory_limits l = read_tree();
        CHECK_MSG(l.available <= 600 * MIB && strlen(l.by) < sizeof l.by, "%d: %llu", i,
                  (unsigned long long)l.available);
    }
}

/* What is promised is not there any more, and what was taken and not touched neither. */
static void promises_count(void)
{
    struct mem_left a, b;
    new_tree();
    machine(640 * MIB, 600 * MIB);
    put("self/status", "RssAnon: 0 kB\nVmSwap: 0 kB\n");
    look_there();
    mem_left(&a);
    CHECK_MSG(a.bytes <= 590 * MIB && a.bytes > 580 * MIB, "%llu are left",
              (unsigned long long)a.bytes); /* a 64th is not for us */
    void *p = mem_reserve(100 * MIB);
    REQUIRE(p, "no addresses");
    mem_left(&b);
    CHECK_MSG(b.bytes == a.bytes - 100 * MIB, "%llu are left", (unsigned long long)b.bytes);
    CHECK(mem_commit(p, 30 * MIB, PITH_MEM_CACHE, NULL) == PITH_OK);
    mem_left(&b);
    CHECK_MSG(b.bytes == a.bytes - 100 * MIB, "committed: %llu are left",
              (unsigned long long)b.bytes);
    put("self/status", "RssAnon: %llu kB\n",
        (unsigned long long)(1000 * MIB)); /* touched: the machine knows of them */
    mem_left(&b);
    CHECK_MSG(b.bytes >= a.bytes - 70 * MIB, "touched: %llu are left", (unsigned long long)b.bytes);
    mem_decommit(p, 30 * MIB, PITH_MEM_CACHE);
    mem_release(p, 100 * MIB);
    mem_left(&b);
    CHECK(b.bytes >= a.bytes);
    struct pith_error err = {0};
    p = mem_reserve(1000 * MIB); /* addresses cost nothing */
    pith_status st = p ? mem_commit(p, 700 * MIB, PITH_MEM_CACHE, &err) : PITH_OK;
    CHECK_MSG(st == PITH_NOMEM && strstr(err.msg, "the machine"), "status %d, %s", (int)st,
              err.msg);
    CHECK(!mem_alloc(700 * MIB, PITH_MEM_META));
    mem_release(p, 1000 * MIB);
}

/* ---------------------------------------------------------------- models */

static const struct pith_synth_params shape = {.size = sizeof shape,
                                               .arch = "llama",
                                               .type = "q8_0",
                                               .n_layer = 4,
                                               .n_embd = 256,
                                               .n_head = 4,
                                               .n_head_kv = 4,
                                               .n_ff = 512,
                                               .n_vocab = 400,
                                               .n_ctx = 65536,
                                               .seed = 3};
enum { N_VOCAB = 400 };

static const char *model_path(void)
{
    struct pith_error err;
    const char *path = tmp_path("room.gguf");
    struct stat sb;
    if (stat(path, &sb) != 0)
        CHECK_MSG(pith_synth(path, &shape, &err) == PITH_OK, "%s", err.msg);
    return path;
}

static pith_model *open_with(pith_weights weights, int strict, struct pith_error *err)
{
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    p.n_threads = 1;
    p.n_batch = 64;
    p.weights = weights;
    p.strict = strict;
    return pith_model_open(model_path(), &p, err);
}

/* Logits after n tokens. */
static int feed(pith_session *s, int n, float *logits, struct pith_error *err)
{
    static int32_t tokens[4096];
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 7 + 3) % N_VOCAB;
    int64_t from = pith_length(s, 0);
    if (pith_feed(s, 0, tokens + from, (size_t)(n - from), err) != PITH_OK)
        return 0;
    memcpy(logits, pith_logits(s, 0), N_VOCAB * sizeof *logits);
    return 1;
}

static void run_model(pith_model *m, float *logits)
{
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    p.n_ctx = 64;
    pith_session *s = pith_session_open(m, &p, &err);
    CHECK_MSG(s && feed(s, 20, logits, &err), "%s", err.msg);
    pith_session_close(s);
}

static const char *note_of(pith_model *m)
{
    struct pith_model_info info = {.size = sizeof info};
    pith_model_get_info(m, &info, NULL);
    return info.note ? info.note : "";
}

/* Packed weights that do not fit are mapped, with a line, or refused. */
static void weights_that_do_not_fit(void)
{
    static float want[N_VOCAB], got[N_VOCAB];
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_memory_report memory = PITH_MEMORY_REPORT_INIT;
    new_tree();
    machine(100 * MIB, 100 * MIB);
    look_there();
    pith_model *m = open_with(PITH_WEIGHTS_PACKED, 1, &err);
    REQUIRE(m, "%s", err.msg);
    CHECK(!*note_of(m));
    pith_model_get_info(m, &info, NULL);
    run_model(m, want);
    pith_model_close(m);

    machine(100 * MIB,
            info.weight_bytes +
                4 * MIB); /* a 64th of all is not for us, and vocabulary and plan come before it */
    m = open_with(PITH_WEIGHTS_AUTO, 1, &err);
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);

    machine(100 * MIB, info.weight_bytes);
    for (int w = 0; w < 2; w++) {
        m = open_with(w ? PITH_WEIGHTS_PACKED : PITH_WEIGHTS_AUTO, 0, &err);
        REQUIRE(m, "%s", err.msg);
        CHECK_MSG(strstr(note_of(m), "packed weights need") && strstr(note_of(m), "the machine"),
                  "note \"%s\"", note_of(m));
        pith_memory(&memory);
        CHECK_MSG(memory.used[PITH_MEM_WEIGHTS] < MIB / 4, "%llu bytes of weights",
                  (unsigned long long)memory.used[PITH_MEM_WEIGHTS]);
        machine(100 * MIB, 100 * MIB);
        run_model(m, got);
        machine(100 * MIB, info.weight_bytes);
        CHECK(!memcmp(want, got, sizeof want));
        pith_model_close(m);
        m = open_with(w ? PITH_WEIGHTS_PACKED : PITH_WEIGHTS_AUTO, 1, &err);
        CHECK_MSG(!m && err.code == PITH_NOMEM && strstr(err.msg, "mapped"), "%s", err.msg);
        pith_model_close(m);
    }
    machine(info.weight_bytes / 2,
            info.weight_bytes / 2); /* mapped ones would be read from the disk again and again */
    m = open_with(PITH_WEIGHTS_AUTO, 0, &err);
    CHECK_MSG(!m && err.code == PITH_NOMEM && strstr(err.msg, "weights = mapped"), "%s", err.msg);
    m = open_with(PITH_WEIGHTS_MAPPED, 1, &err);
    CHECK_MSG(!m && err.code == PITH_NOMEM, "%s", err.msg);
    m = open_with(PITH_WEIGHTS_MAPPED, 0, &err);
    CHECK_MSG(m && strstr(note_of(m), "waits for the disk"), "%s", m ? note_of(m) : err.msg);
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
    check_nothing_held("weights");
}

/* Where all packed weights do not fit and those that every token reads do, the experts alone are
 * used from the file. */
static void experts_that_do_not_fit(void)
{
    static float want[N_VOCAB], got[N_VOCAB];
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    struct pith_memory_report memory = PITH_MEMORY_REPORT_INIT;
    struct pith_synth_params many = shape;
    const char *path = tmp_path("experts.gguf");
    many.arch = "qwen3moe";
    many.n_expert = 16;
    many.n_expert_used = 2;
    p.n_threads = 1;
    p.n_batch = 64;
    new_tree();
    machine(400 * MIB, 400 * MIB);
    look_there();
    REQUIRE(pith_synth(path, &many, &err) == PITH_OK, "%s", err.msg);
    pith_model *m = pith_model_open(path, &p, &err);
    REQUIRE(m, "%s", err.msg);
    CHECK(!*note_of(m));
    pith_model_get_info(m, &info, NULL);
    uint64_t all = info.weight_bytes;
    run_model(m, want);
    pith_model_close(m);
    for (int fewer = 0; fewer < 2; fewer++) { /* and at last not even the others do */
        machine(400 * MIB, fewer ? 2 * MIB : all);
        m = pith_model_open(path, &p, &err);
        REQUIRE(m, "%s", err.msg);
        CHECK_MSG(strstr(note_of(m), fewer ? "they are used" : "the experts are used"),
                  "note \"%s\"", note_of(m));
        pith_memory(&memory);
        CHECK_MSG(fewer ? memory.used[PITH_MEM_WEIGHTS] < MIB / 4
                        : memory.used[PITH_MEM_WEIGHTS] > MIB &&
                              memory.used[PITH_MEM_WEIGHTS] < all / 2,
                  "%llu bytes of %llu", (unsigned long long)memory.used[PITH_MEM_WEIGHTS],
                  (unsigned long long)all);
        machine(400 * MIB, 400 * MIB);
        run_model(m, got);
        CHECK(!memcmp(want, got, sizeof want));
        pith_model_close(m);
    }
    unsetenv("PITH_PROCFS");
    check_nothing_held("experts");
}

/* The same by a copy that is kept: it is not made of weights that stay mapped, and one that is
 * there fits where packed ones do not. */
static void copies_of_packed_weights(void)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    p.n_threads = 1;
    p.cache_dir = tmp_dir;
    new_tree();
    machine(100 * MIB, 2 * MIB);
    look_there();
    pith_model *m = pith_model_open(model_path(), &p, &err);
    REQUIRE(m, "%s", err.msg);
    CHECK_MSG(strstr(note_of(m), "packed weights need"), "note \"%s\"", note_of(m));
    pith_model_close(m);
    machine(100 * MIB, 100 * MIB);
    m = pith_model_open(model_path(), &p, &err);
    REQUIRE(m, "%s", err.msg);
    pith_model_get_info(m, &info, NULL);
    pith_model_close(m);
    machine(100 * MIB, 2 * MIB);
    p.strict = 1;
    m = pith_model_open(model_path(), &p, &err);
    CHECK_MSG(m && !*note_of(m), "%s", m ? note_of(m) : err.msg);
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
    check_nothing_held("copies");
}

/* ---------------------------------------------------------------- sessions */

/* Of a model whose positions take 4 layers x (K + V) x 256 elements of 2 bytes: 256 KiB a page of
 * 64. */
static void session_that_does_not_fit(void)
{
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    static float logits[N_VOCAB];
    int fits = 0;
    new_tree();
    machine(200 * MIB, 120 * MIB);
    look_there();
    pith_model *m = open_with(PITH_WEIGHTS_MAPPED, 0, &err);
    REQUIRE(m, "%s", err.msg);
    uint64_t before = memory_held();
    p.n_ctx = 65536; /* 256 MiB of cache, and a context more while it is edited */
    uint64_t asked = hook.asked_bytes;
    pith_session *s = pith_session_open(m, &p, &err);
    CHECK(!s && err.code == PITH_NOMEM);
    CHECK_MSG(strstr(err.msg, "MiB are left (limited by the machine)") &&
                  strstr(err.msg, "--ctx") && strstr(err.msg, "--cache-type-k"),
              "%s", err.msg);
    CHECK_MSG(hook.asked_bytes - asked < MIB && memory_held() == before,
              "%llu bytes were taken before the refusal, %llu are held",
              (unsigned long long)(hook.asked_bytes - asked),
              (unsigned long long)(memory_held() - before));
    const char *advice = strstr(err.msg, "one context of ");
    CHECK_MSG(advice && sscanf(advice, "one context of %d", &fits) == 1 && fits >= 256, "%s",
              err.msg);
    p.n_ctx = fits;
    s = pith_session_open(m, &p, &err);
    CHECK_MSG(s && feed(s, 100, logits, &err), "%d: %s", fits, err.msg);
    uint64_t now, most;
    pith_session_memory(s, &now, &most);
    CHECK_MSG(most <= 120 * MIB, "%llu bytes at most", (unsigned long long)most);
    pith_session *second =
        pith_session_open(m, &p, &err); /* what the first may take yet is not there for another */
    CHECK_MSG(!second && err.code == PITH_NOMEM, "a promise was given twice");
    pith_session_close(second);
    pith_session_close(s);
    p.n_ctx = 2 * fits;
    CHECK(!pith_session_open(m, &p, &err) && err.code == PITH_NOMEM);
    p.cache_type_k = p.cache_type_v = "q4_0"; /* a quarter of the bits */
    s = pith_session_open(m, &p, &err);
    CHECK_MSG(s && feed(s, 100, logits, &err), "q4_0, %d: %s", p.n_ctx, err.msg);
    pith_session_close(s);
    p.n_ctx = fits / 4;
    p.n_seq = 32;
    p.n_tokens = (int64_t)fits * 8;
    CHECK_MSG(!pith_session_open(m, &p, &err) && err.code == PITH_NOMEM, "many sequences");
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
    check_nothing_held("sessions");
}

/* Others take the memory while a cache grows: an error of the step, nothing is lost, and it goes on
 * when they have gone. */
static void cache_that_cannot_grow(void)
{
    enum { N = 1536 };
    static float want[N_VOCAB], got[N_VOCAB];
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    int n_short = 0;
    new_tree();
    machine(100 * MIB, 60 * MIB); /* so that the answer is good for few MiB */
    look_there();
    pith_model *m = open_with(PITH_WEIGHTS_MAPPED, 0, &err);
    REQUIRE(m, "%s", err.msg);
    p.n_ctx = 2048;
    pith_session *s = pith_session_open(m, &p, &err);
    REQUIRE(s && feed(s, N, want, &err), "%s", err.msg);
    pith_session_close(s);
    s = pith_session_open(m, &p, &err);
    REQUIRE(s && feed(s, 100, got, &err), "%s", err.msg);
    machine(100 * MIB, MIB);
    for (int n = 200; n <= N; n += 100) {
        int64_t had = pith_length(s, 0);
        if (feed(s, n, got, &err))
            continue;
        CHECK_MSG(err.code == PITH_NOMEM && strstr(err.msg, "the machine"), "%s", err.msg);
        CHECK(pith_length(s, 0) == had);
        n_short++;
    }
    CHECK_MSG(n_short, "the cache grew to %lld positions in 1 MiB", (long long)pith_length(s, 0));
    machine(100 * MIB, 60 * MIB);
    CHECK_MSG(feed(s, N, got, &err), "%s", err.msg);
    CHECK(!memcmp(want, got, sizeof want));
    pith_session_close(s);
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
    check_nothing_held("a cache that cannot grow");
}

/* Nobody says how much: as trained where half of what is left has room for it, else the most that
 * has; with weights that are mapped beside it. */
static void default_context(void)
{
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT, next = PITH_SESSION_PLAN_INIT;
    struct pith_error err;
    new_tree();
    machine(4000 * MIB, 3000 * MIB);
    look_there();
    pith_model *m = open_with(PITH_WEIGHTS_MAPPED, 0, &err);
    REQUIRE(m, "%s", err.msg);
    CHECK_MSG(pith_plan_session(m, NULL, &plan, &err) == PITH_OK && plan.n_ctx == 65536 &&
                  plan.n_ctx_train == 65536 && plan.n_tokens == 65536,
              "%d, %s", plan.n_ctx, err.msg);
    CHECK(plan.memory_bytes == 4000 * MIB && plan.cache_bytes >= 512 * MIB &&
          !strcmp(plan.limited_by, "the machine"));
    machine(4000 * MIB, 400 * MIB);
    CHECK(pith_plan_session(m, NULL, &plan, &err) == PITH_OK);
    CHECK_MSG(plan.n_ctx < 65536 && plan.n_ctx % 256 == 0 &&
                  plan.cache_bytes <= plan.left_bytes / 2,
              "%d, %llu of %llu", plan.n_ctx, (unsigned long long)plan.cache_bytes,
              (unsigned long long)plan.left_bytes);
    p.n_ctx = plan.n_ctx + 256;
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK);
    CHECK_MSG(next.n_ctx == p.n_ctx && next.cache_bytes > plan.left_bytes / 2 - 2 * MIB,
              "%d would have fit, too", next.n_ctx);
    pith_session *s = pith_session_open(m, NULL, &err);
    CHECK_MSG(s && pith_n_ctx(s) == plan.n_ctx, "%d, planned %d", s ? pith_n_ctx(s) : 0,
              plan.n_ctx);
    pith_session_close(s);
    p.n_ctx = 0;
    p.n_seq = 64; /* the pool is that half */
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK);
    CHECK_MSG(next.n_tokens >= next.n_ctx && next.n_tokens < 64 * (int64_t)next.n_ctx &&
                  next.n_ctx <= plan.n_ctx && next.cache_bytes <= next.left_bytes / 2,
              "%lld positions of %d", (long long)next.n_tokens, next.n_ctx);
    p.n_ctx = 1024;
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK);
    CHECK_MSG(next.n_ctx == 1024 && next.n_tokens > 8 * 1024 && next.n_tokens < 64 * 1024 &&
                  next.cache_bytes <= next.left_bytes / 2,
              "%lld positions, %llu of %llu bytes", (long long)next.n_tokens,
              (unsigned long long)next.cache_bytes, (unsigned long long)next.left_bytes);
    p.n_tokens = 2000;
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK && next.n_tokens == 2000 &&
          next.n_ctx == 1024);
    p.n_ctx = 0;
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK && next.n_tokens == 2000 &&
          next.n_ctx == 2000);
    p.n_tokens = 0;
    p.memory_bytes = (int64_t)(40 * MIB); /* less than is left: the caller's own limit */
    CHECK(pith_plan_session(m, &p, &next, &err) == PITH_OK && next.cache_bytes <= 20 * MIB &&
          next.n_ctx < plan.n_ctx && next.left_bytes == 40 * MIB);
    CHECK(!strcmp(next.limited_by, "memory_bytes"));
    p.n_ctx = next.n_ctx;
    s = pith_session_open(m, &p, &err);
    CHECK_MSG(s, "%s", err.msg);
    pith_session_close(s);
    p.n_ctx = 40960;
    CHECK(!pith_session_open(m, &p, &err) && err.code == PITH_NOMEM &&
          strstr(err.msg, "memory_bytes"));
    p.memory_bytes = -1;
    CHECK(!pith_session_open(m, &p, &err) && err.code == PITH_RANGE);
    machine(4000 * MIB, 0); /* something is tried, and refused by what it needs */
    CHECK(pith_plan_session(m, NULL, &plan, &err) == PITH_OK && plan.n_ctx == 256);
    CHECK(!pith_session_open(m, NULL, &err) && err.code == PITH_NOMEM);
    plan.size = 3;
    CHECK(pith_plan_session(m, NULL, &plan, &err) == PITH_RANGE &&
          pith_plan_session(NULL, NULL, &plan, &err) == PITH_RANGE);
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
}

/* A context that was chosen gives the bits of one that was asked for. */
static void context_changes_no_bits(void)
{
    static float want[N_VOCAB], got[N_VOCAB];
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    new_tree();
    machine(4000 * MIB, 400 * MIB);
    look_there();
    pith_model *m = open_with(PITH_WEIGHTS_AUTO, 0, &err);
    REQUIRE(m, "%s", err.msg);
    for (int i = 0; i < 3; i++) {
        p.n_ctx = i ? 0 : 300;
        machine(4000 * MIB, (i == 2 ? 2000 : 400) * MIB);
        pith_session *s = pith_session_open(m, &p, &err);
        REQUIRE(s && feed(s, 150, got, &err), "%s", err.msg);
        pith_session_close(s);
        memcpy(want, i ? want : got, sizeof want);
        CHECK_MSG(!memcmp(want, got, sizeof want), "%d", i);
    }
    pith_model_close(m);
    unsetenv("PITH_PROCFS");
}

/* ---------------------------------------------------------------- what is told */

static uint64_t resident(void)
{
    unsigned long kb = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * (uint64_t)1024;
}

/* Every byte that model and session take is told, and with every sequence full, edited and stored
 * no more than was said at the beginning. */
static void report_is_complete(void)
{
    enum { CTX = 640, SEQS = 3 };
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    struct pith_error err;
    static int32_t tokens[CTX];
    uint64_t before = memory_held(), now, most, most_later;
    pith_model *m = open_with(PITH_WEIGHTS_PACKED, 0, &err);
    REQUIRE(m, "%s", err.msg);
    pith_model_get_info(m, &info, NULL);
    CHECK_MSG(info.memory_bytes >= memory_held() - before - 256 &&
                  info.memory_bytes <= memory_held() - before,
              "%llu bytes are told, %llu held", (unsigned long long)info.memory_bytes,
              (unsigned long long)(memory_held() - before));
    before = memory_held();
    p.n_ctx = CTX;
    p.n_seq = SEQS;
    p.store_bytes = 4 << 20;
    pith_session *s = pith_session_open(m, &p, &err);
    REQUIRE(s, "%s", err.msg);
    pith_session_memory(s, &now, &most);
    CHECK_MSG(now >= memory_held() - before - 256 && now <= memory_held() - before,
              "%llu bytes are told, %llu held", (unsigned long long)now,
              (unsigned long long)(memory_held() - before));
    uint64_t rss = resident();
    for (int32_t q = 0; q < SEQS; q++) {
        for (int i = 0; i < CTX; i++)
            tokens[i] = (i * 7 + 3 + q) % N_VOCAB;
        REQUIRE(pith_feed(s, q, tokens, CTX, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_remove(s, q, 32, 96, &err) == PITH_OK &&
              pith_shift(s, q, 96, -1, -64, &err) == PITH_OK);
        CHECK_MSG(pith_feed(s, q, tokens, 64, &err) == PITH_OK, "%s", err.msg);
        pith_session_memory(s, &now, &most_later);
        uint64_t held = memory_held() - before;
        CHECK_MSG(now >= held - 256 && now <= held && now <= most && most_later == most,
                  "sequence %d: %llu bytes are told, %llu held, %llu then %llu at most", q,
                  (unsigned long long)now, (unsigned long long)held, (unsigned long long)most,
                  (unsigned long long)most_later);
    }
    rss = resident() - rss;
    CHECK_MSG(UNDER_SANITIZER || rss <= most + MIB,
              "%llu bytes became resident, %llu at most were told", (unsigned long long)rss,
              (unsigned long long)most);
    pith_session_close(s);
    pith_model_close(m);
    check_nothing_held("the report");
}

/* ---------------------------------------------------------------- pages of other systems */

enum { LARGEST_PAGE = 64 << 10 };
static long page_told; /* of a system that this one is taken for; 0: its own */

long sysconf(int name)
{
    static long (*own)(int);
    if (!own)
        *(void **)&own = dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE && page_told ? page_told : own(name);
}

static struct {
    uintptr_t at[64];
    int n;
} commits;

static void note_commit(const void *at, pith_purpose purpose)
{
    if (purpose == PITH_MEM_CACHE && commits.n < 64)
        commits.at[commits.n++] = (uintptr_t)at;
}

/* On a system with pages of 64 KiB what a session commits of its cache as it grows begins at a page
 * of a reservation, which the system lays at a page itself. */
static void large_pages(const char *path, int32_t n)
{
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    static int32_t tokens[40000];
    mp.n_threads = 1;
    pith_model *m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    p.n_ctx = n;
    commits.n = 0;
    page_told = LARGEST_PAGE; /* from now on; what has asked before knows the system's own */
    hook.commits = note_commit;
    pith_session *s = pith_session_open(m, &p, &err);
    REQUIRE(s, "%s", err.msg);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = i % 16;
    CHECK_MSG(pith_feed(s, 0, tokens, (size_t)n, &err) == PITH_OK, "%s", err.msg);
    hook.commits = NULL;
    page_told = 0;
    uintptr_t lazy = (uintptr_t)s->cache.tokens;
    int more = 0;
    for (int i = 0; i < commits.n; i++) {
        uintptr_t from = commits.at[i] - lazy < s->cache.tokens_reserved ? lazy : 0;
        more += commits.at[i] - from != 0 && from;
        CHECK_MSG((commits.at[i] - from) % LARGEST_PAGE == 0, "commit %d is at 0x%llx of %s", i,
                  (unsigned long long)(commits.at[i] - from), from ? "tokens" : "memory");
    }
    CHECK_MSG(commits.n > 1 && (more || s->recurrent.n_blocks), "%d commits", commits.n);
    pith_session_close(s);
    pith_model_close(m);
}

static void commits_of_whole_pages(void)
{
    static const char *const name[] = {"mamba", "jamba"};
    char golden[512];
    struct pith_synth_params p = shape;
    struct pith_error err;
    const char *path = tmp_path("long.gguf");
    p.n_ctx = 40000;
    CHECK_MSG(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    large_pages(path, 20000);
    for (int i = 0; i < 2; i++) {
        snprintf(golden, sizeof golden, "%s/golden/arch/%s.gguf", test_shared(), name[i]);
        if (access(golden, R_OK))
            SKIP("golden models are absent");
        large_pages(golden, 400);
    }
}

/* ---------------------------------------------------------------- a real limit */

static uint64_t own_size(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* In a child whose addresses are limited to what it has and some MiB more. 0, or what went wrong.
 */
static int under_limit(void)
{
    struct pith_synth_params big = shape;
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    static float logits[N_VOCAB];
    struct stat sb;
    const char *path = tmp_path("big.gguf");
    big.n_embd = 1024;
    big.n_head = big.n_head_kv = 16;
    big.n_ff = 4096;
    if (pith_synth(path, &big, &err) != PITH_OK || stat(path, &sb) != 0)
        return 1;
    uint64_t limit = own_size() + (uint64_t)sb.st_size +
                     48 * MIB; /* the file is mapped, and weights once more are too much */
    if (setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) != 0)
        return 2;
    mp.n_threads = 1;
    mp.n_batch = 64;
    pith_model *m = pith_model_open(path, &mp, &err);
    if (!m)
        return printf("# %s\n", err.msg), 3;
    if (!strstr(note_of(m), "RLIMIT_AS"))
        return printf("# note \"%s\"\n", note_of(m)), 4;
    p.n_ctx = 65536;
    if (pith_session_open(m, &p, &err) || err.code != PITH_NOMEM || !strstr(err.msg, "RLIMIT_AS"))
        return printf("# %s\n", err.msg), 5;
    pith_session *s = pith_session_open(m, NULL, &err);
    if (!s || !feed(s, 100, logits, &err))
        return printf("# %s\n", err.msg), 6;
    pith_session_close(s);
    pith_model_close(m);
    return 0;
}

static void address_limit(void)
{
    if (UNDER_SANITIZER)
        SKIP("a sanitizer wants addresses without end");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int code = under_limit();
        fflush(stdout);
        _exit(code);
    }
    int status = 0;
    CHECK_MSG(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                  !WEXITSTATUS(status),
              "status %x", (unsigned)status);
}

int main(void)
{
    hook_install();
    tmp_make();
    unsetenv("PITH_PROCFS");
    TEST(address_limit);
    TEST(nothing_there);
    TEST(plain_machine);
    TEST(groups_of_version_2);
    TEST(groups_of_version_1);
    TEST(damaged_texts);
    TEST(promises_count);
    TEST(weights_that_do_not_fit);
    TEST(experts_that_do_not_fit);
    TEST(copies_of_packed_weights);
    TEST(session_that_does_not_fit);
    TEST(cache_that_cannot_grow);
    TEST(default_context);
    TEST(context_changes_no_bits);
    TEST(report_is_complete);
    TEST(commits_of_whole_pages);
    remove_trees();
    return test_end();
}
