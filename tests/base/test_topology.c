/* test_topology.c -- processors, nodes and places of threads: fake /sys trees, lists, and models
 * that run on them. */
#include "test.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/machine/topology.h"
#include "graph/ops/attention.h"
#include "graph/ops/moe.h"
#include "pith.h"
#include "run/cache/cache_impl.h"
#include "run/session/session.h"

static char folder[64];

static void put(const char *name, int n, const char *text)
{
    char path[512], file[256];
    snprintf(file, sizeof file, name, n);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    for (char *p = path + strlen(folder) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

/* A new empty tree; the old one stays until the end. */
static void new_tree(void)
{
    static int n;
    snprintf(folder, sizeof folder, "/tmp/pith-topology-%ld-%d", (long)getpid(), n++);
    mkdir(folder, 0700);
}

static void remove_trees(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf /tmp/pith-topology-%ld-*", (long)getpid());
    if (system(command) != 0)
        printf("# cannot remove the trees\n");
}

static cpu_set_t set_of(const char *list)
{
    cpu_set_t s;
    CHECK_MSG(cpulist_parse(list, &s), "\"%s\"", list);
    return s;
}

static struct topology read_tree(const char *mask, int cpu)
{
    struct topology t;
    cpu_set_t m = set_of(mask);
    topology_read(&t, folder, &m, cpu);
    return t;
}

static void lists(void)
{
    static const char *const bad[] = {
        "",      ",",    "1,",   "-1",     "1-",    "3-2", "a",
        "1 ",    "1,,2", "1024", "0-1024", "1-2-3", "0x1", "99999999999999999999",
        "1\n\n", " 1",   "+1",   "0-+1"};
    cpu_set_t s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!cpulist_parse(bad[i], &s), "\"%s\"", bad[i]);
    CHECK(cpulist_parse("0-3,8\n", &s) && CPU_COUNT(&s) == 5 && CPU_ISSET(8, &s));
    CHECK(cpulist_parse("1023", &s) && CPU_COUNT(&s) == 1 && CPU_ISSET(1023, &s));
    CHECK(cpulist_parse("5,5,4-5", &s) && CPU_COUNT(&s) == 2);
}

static void plain_machine(void)
{
    new_tree(); /* nothing there */
    struct topology t = read_tree("0-2,7", 7);
    CHECK(t.n == 4 && t.n_cores == 4 && t.n_fast == 4 && t.n_nodes == 1 && t.here == 0);
    CHECK(t.p[3].id == 7 && t.p[3].core == 7 && !t.p[3].slow && !t.p[3].sibling);
    put("devices/system/cpu/cpu%d/topology/thread_siblings_list", 0, "junk");
    put("devices/system/cpu/cpu%d/cpu_capacity", 0, "-5");
    put("devices/system/node/node%d/cpulist", 0, "0-99999");
    t = read_tree("0-2,7", 5);
    CHECK(t.n == 4 && t.n_cores == 4 && t.n_fast == 4 && t.n_nodes == 1);
}

/* Two nodes of two cores with two hyperthreads each: node 0 has 0,1,4,5; node 2 has 2,3,6,7. */
static void two_nodes(void)
{
    char text[16];
    new_tree();
    for (int i = 0; i < 8; i++) {
        snprintf(text, sizeof text, "%d,%d\n", i % 4, i % 4 + 4);
        put("devices/system/cpu/cpu%d/topology/thread_siblings_list", i, text);
        put("devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", i, i ? "3500000\n" : "3600000\n");
    }
    put("devices/system/node/node%d/cpulist", 0, "0-1,4-5\n");
    put("devices/system/node/node%d/cpulist", 2, "2-3,6-7\n");
    put("devices/system/node/node%d/cpulist", 3, "\n"); /* memory alone */
}

static void nodes_and_siblings(void)
{
    two_nodes();
    struct topology t = read_tree("0-7", 6);
    CHECK(t.n == 8 && t.n_cores == 4 && t.n_fast == 4 && t.n_nodes == 2 && t.here == 2);
    CHECK(t.p[6].core == 2 && t.p[6].sibling == 1 && t.p[6].node == 2 && !t.p[6].slow);
    CHECK(t.n_shared == 0);
    put("devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", 0, "0-2,4-6,64\n");
    t = read_tree("0-7", 6);
    CHECK(t.n_shared == 3); /* cores of ours */
    CHECK(t.cache_bytes == 0);
    put("devices/system/cpu/cpu%d/cache/index3/size", 0, "98304K\n");
    t = read_tree("0-7", 6);
    CHECK_MSG(t.cache_bytes == (uint64_t)192 << 20, "%llu bytes, %d cores", /* two of three cores */
              (unsigned long long)t.cache_bytes, t.n_cores);
    t = read_tree("4-5", 4); /* second hyperthreads alone are cores to us */
    CHECK(t.n == 2 && t.n_cores == 2 && t.n_nodes == 1 && t.here == 0);
    CHECK(t.p[0].core == 4 && t.p[0].sibling == 0);
    put("devices/system/node/online", 0, "0,2-3\n");
    t = read_tree("0-7", 6);
    CHECK(t.n_nodes == 2 && t.here == 2);
    put("devices/system/node/online", 0, "0\n"); /* what it does not name is not looked for */
    t = read_tree("0-7", 6);
    CHECK(t.n_nodes == 1 && t.here == 0);
}

static void hybrid(void)
{
    new_tree(); /* two fast cores with hyperthreads 0-3, four small ones 4-7, by clock */
    for (int i = 0; i < 8; i++) {
        put("devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", i, i < 4 ? "5800000" : "4300000");
        put("devices/system/cpu/cpu%d/topology/thread_siblings_list", i,
            i < 2   ? "0-1"
            : i < 4 ? "2-3"
                    : "4,9999");
    }
    struct topology t = read_tree("0-7", 0);
    CHECK(t.n_cores == 6 && t.n_fast == 2 && !t.p[3].slow && t.p[4].slow);
    t = read_tree("4-7", 4);
    CHECK(t.n_cores == 4 && t.n_fast == 4); /* alike */
    new_tree();                             /* by capacity; a clock is missing and does not count */
    for (int i = 0; i < 4; i++)
        put("devices/system/cpu/cpu%d/cpu_capacity", i, i < 2 ? "400\n" : "1024\n");
    put("devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", 3, "100");
    t = read_tree("0-3", 0);
    CHECK(t.n_fast == 2 && t.p[0].slow && !t.p[2].slow && !t.p[3].slow);
    new_tree(); /* by the kind of core */
    put("devices/cpu_atom/cpus", 0, "2-3\n");
    t = read_tree("0-3", 0);
    CHECK(t.n_fast == 2 && t.p[2].slow && !t.p[1].slow);
    t = read_tree("2-3", 2);
    CHECK(t.n_fast == 2);
}

/* "0 1 4 5": the single processors of the threads; "*": a thread has several. */
static const char *seats(const char *mask, int cpu, const char *affinity, int numa, int n)
{
    static char text[256];
    struct topology t = read_tree(mask, cpu);
    struct places *p = NULL;
    struct pith_error err = {PITH_OK, ""};
    size_t at = 0;
    if (places_new(&t, affinity, numa, n, &p, &err) != PITH_OK) {
        snprintf(text, sizeof text, "%.200s", err.msg);
        return text;
    }
    text[0] = 0;
    for (int i = 0; i < p->n; i++) {
        int only = -1;
        for (int c = 0; c < 64; c++)
            only = CPU_ISSET(c, &p->set[i]) ? (only < 0 ? c : 99) : only;
        at += (size_t)snprintf(text + at, sizeof text - at, only == 99 ? "%s*%d" : "%s%d",
                               i ? " " : "", only == 99 ? CPU_COUNT(&p->set[i]) : only);
    }
    mem_free(p);
    return text;
}

static void places(void)
{
    two_nodes();
    static const struct {
        const char *mask;
        int cpu;
        const char *affinity;
        int numa, n;
        const char *wanted;
    } rows[] = {
        {"0-7", 0, NULL, PITH_NUMA_OFF, 4, ""},
        {"0-7", 0, "none", PITH_NUMA_OFF, 4, ""},
        {"0-7", 0, "spread", PITH_NUMA_OFF, 9, "0 2 1 3 4 6 5 7 0"},
        {"0-7", 0, "compact", PITH_NUMA_OFF, 8, "0 1 4 5 2 3 6 7"},
        {"0-7", 0, "3,5-6", PITH_NUMA_OFF, 4, "3 5 6 3"},
        {"0-7", 0, "none", PITH_NUMA_SPREAD, 3, "*4 *4 *4"},
        {"0-7", 0, "compact", PITH_NUMA_SPREAD, 6, "0 2 1 3 4 6"},
        {"0-7", 0, "0,1,2", PITH_NUMA_SPREAD, 5, "0 2 1 2 0"},
        {"0-7", 7, "none", PITH_NUMA_ISOLATE, 2, "*4 *4"},
        {"0-7", 7, "spread", PITH_NUMA_ISOLATE, 5, "2 3 6 7 2"},
        {"0-1", 0, "none", PITH_NUMA_SPREAD, 2, ""}, /* one node is ours */
        {"0-1", 0, "none", PITH_NUMA_ISOLATE, 2, "*2 *2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *got =
            seats(rows[i].mask, rows[i].cpu, rows[i].affinity, rows[i].numa, rows[i].n);
        CHECK_MSG(!strcmp(got, rows[i].wanted), "row %zu: \"%s\", wanted \"%s\"", i, got,
                  rows[i].wanted);
    }
    CHECK(strstr(seats("0-7", 0, "tight", 0, 2), "affinity is \"tight\"; wanted none, spread"));
    CHECK(strstr(seats("0-7", 0, "", 0, 2), "affinity is \"\""));
    CHECK(strstr(seats("0-3", 0, "2-5", 0, 2), "names 2 processors this process may not use"));
    CHECK(strstr(seats("0-7", 0, "2", PITH_NUMA_ISOLATE, 2), "names no processor of node 0"));
}

static void where(void *ctx, int ith)
{
    ((int *)ctx)[ith] = sched_getcpu();
}

static void pool_at_places(void)
{
    cpu_set_t before, after;
    struct topology t;
    struct places *p = NULL;
    int cpu[5] = {-1, -1, -1, -1, -1};
    new_tree();
    topology_here(&t);
    CHECK(places_new(&t, "spread", PITH_NUMA_OFF, 4, &p, NULL) == PITH_OK);
    struct pool *pool = pool_new_at(5, p, NULL); /* the fifth thread is free */
    REQUIRE(pool && p->n == 4, "pool");
    sched_getaffinity(0, sizeof before, &before);
    pool_run(pool, 5, where, cpu);
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after)); /* the caller is given back */
    for (int i = 0; i < 4; i++)
        CHECK_MSG(CPU_ISSET((size_t)cpu[i], &p->set[i]), "thread %d ran on %d", i, cpu[i]);
    CHECK(pool_n_refused(pool) == 0);
    pool_free(pool);
    CPU_ZERO(&p->set[1]);
    CPU_SET(1023, &p->set[1]); /* not there */
    pool = pool_new_at(4, p, NULL);
    REQUIRE(pool, "pool");
    pool_run(pool, 4, where, cpu);
    CHECK(t.n > 1000 || pool_n_refused(pool) == 1);
    pool_free(pool);
    mem_free(p);
}

/* Enough that many threads divide a matrix by columns, too. */
#define PIECE 1, 5, 9, 2, 7, 3, 3, 8, 4, 6, 1, 5, 9, 2, 7, 3, 3, 8, 4, 6
static const int32_t prompt[] = {PIECE, PIECE, PIECE, PIECE, PIECE};
enum { N_PROMPT = sizeof prompt / sizeof *prompt, N_VOCAB = 96 };

/* Logits behind the prompt and one decoded token; 0: it could not be run, with the message in err.
 */
static int logits_of(const char *path, const struct pith_model_params *mp, float *out, char *report,
                     size_t cap, struct pith_error *err)
{
    pith_model *m = pith_model_open(path, mp, err);
    pith_session *s = m ? pith_session_open(m, NULL, err) : NULL;
    int ok = s && pith_feed(s, 0, prompt, N_PROMPT, err) == PITH_OK &&
             pith_feed(s, 0, prompt, 1, err) == PITH_OK;
    if (ok)
        memcpy(out, pith_logits(s, 0), N_VOCAB * sizeof *out);
    if (ok)
        pith_report(s, 0, report, cap);
    pith_session_close(s);
    pith_model_close(m);
    return ok;
}

/* Whatever threads there are and wherever they and the weights lie, the bits are the same. */
static void model_on_nodes(const char *arch, const char *type)
{
    char path[128], report[8192];
    float want[N_VOCAB], got[N_VOCAB];
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    two_nodes();
    put("devices/system/node/node%d/cpulist", 0, "0\n");
    put("devices/system/node/node%d/cpulist", 2, "1-1023\n");
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    sp.arch = arch;
    sp.n_expert = strcmp(arch, "llama") ? 6 : 0;
    sp.n_expert_used = sp.n_expert / 2;
    sp.type = type;
    sp.n_embd = strcmp(type, "q4_K") ? 128 : 256;
    sp.n_ff = strcmp(type, "q4_K") ? 352 : 512;
    sp.n_vocab = N_VOCAB;
    REQUIRE(pith_synth(path, &sp, &err) == PITH_OK, "%s", err.msg);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    REQUIRE(logits_of(path, &mp, want, report, sizeof report, &err), "%s", err.msg);
    setenv("PITH_SYSFS", folder, 1);
    static const struct {
        int decode, prefill;
        pith_numa numa;
        const char *affinity;
    } rows[] = {
        {2, 2, PITH_NUMA_SPREAD, NULL},  {3, 5, PITH_NUMA_SPREAD, "spread"},
        {1, 4, PITH_NUMA_SPREAD, NULL},  {7, 2, PITH_NUMA_SPREAD, "compact"},
        {2, 0, PITH_NUMA_ISOLATE, NULL}, {4, 1, PITH_NUMA_OFF, "compact"},
        {0, 3, PITH_NUMA_OFF, "0"},      {19, 27, PITH_NUMA_SPREAD, "compact"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mp.n_threads = rows[i].decode;
        mp.n_threads_prefill = rows[i].prefill;
        mp.numa = rows[i].numa;
        mp.affinity = rows[i].affinity;
        memset(got, 0, sizeof got);
        CHECK_MSG(logits_of(path, &mp, got, report, sizeof report, &err), "%s %s, row %zu: %s",
                  arch, type, i, err.msg);
        CHECK_MSG(!memcmp(want, got, sizeof want), "%s %s, row %zu: other bits", arch, type, i);
        char counts[64];
        snprintf(counts, sizeof counts, "%d threads (prefill %d;", rows[i].decode,
                 rows[i].prefill ? rows[i].prefill : rows[i].decode);
        CHECK_MSG(!rows[i].decode || strstr(report, counts), "row %zu: %.60s", i, report);
    }
    unsetenv("PITH_SYSFS");
}

static void models_on_nodes(void)
{
    model_on_nodes("llama", "q8_0");
    model_on_nodes("llama", "q4_K");
    model_on_nodes("llama", "f16");
    model_on_nodes("llama", "bf16");
    model_on_nodes("qwen3moe", "q8_0");
}

/* Each part of a tile whose value has that format, side by side; returns the bytes. */
static size_t tile_parts(const struct act_tile *t, const struct value *v, uint8_t *out)
{
    const size_t n = (size_t)t->nc * (size_t)v->cols;
    const struct {
        const void *p;
        size_t bytes;
    } parts[] = {{t->q, n},
                 {t->d, v->fmt == ACT_A32 ? n / 8 : n / 32},
                 {t->s32, n / 8},
                 {t->s16, n / 8},
                 {t->h, n * 2}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].p) {
            memcpy(out + at, parts[i].p, parts[i].bytes);
            at += parts[i].bytes;
        }
    for (int i = 0; t->f && i < t->nc; i++, at += (size_t)v->cols * 4)
        memcpy(out + at, t->f + i * t->ld, (size_t)v->cols * 4);
    return at;
}

/* Where a tile's parts begin, whatever they are. */
static const void *tile_at(const struct act_tile *t)
{
    return t->q ? (const void *)t->q : t->h ? (const void *)t->h : (const void *)t->f;
}

/* A turn's value has a copy in each node, made once and the same bytes; other values are read where
 * they are. */
static void activations_of_nodes(void)
{
    enum { ROWS = 40, COLS = 512, TILES = 3, BYTES = 2 * ROWS * (COLS + 16) * 4 };
    static const enum act_kind fmts[] = {ACT_A32, ACT_A256, ACT_BF16, ACT_F32};
    static uint8_t memory[2 * BYTES], want[16 * COLS * 4], got[16 * COLS * 4];
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        const struct value v = {.fmt = fmts[f],
                                .rows = ROWS_T,
                                .rows_mul = 1,
                                .cols = COLS,
                                .ld = COLS + 16,
                                .cap_rows = ROWS};
        struct value other = v;
        other.offset = BYTES;
        struct call call = {.op = OP_MATMUL, .n_src = 1};
        call.src[0] = v;
        struct plan plan = {.calls = &call, .n_calls = 1};
        struct step step = {.T = ROWS};
        struct cpu_own own = {.copies = NULL};
        struct exec x = {.step = &step, .plan = &plan, .base[0] = memory, .own = &own};
        CHECK(copies_bytes(&plan, 1) == 0 && copies_bytes(&plan, 3) > 0);
        CHECK(copies_new(&plan, 1, &own.copies, NULL) == PITH_OK && !own.copies);
        REQUIRE(copies_new(&plan, 3, &own.copies, NULL) == PITH_OK && own.copies, "no copies");
        for (int turn = 0; turn < 3; turn++) {
            for (size_t i = 0; i < sizeof memory; i++)
                memory[i] = (uint8_t)(i * 7 + i / 251 + (size_t)turn);
            copies_turn(own.copies, &x, &call);
            for (int i = 0; i < TILES; i++) {
                struct act_tile there = value_tile(&x, &v, i);
                struct act_tile first = copies_tile(&x, &v, i, 1), last = first;
                size_t n = tile_parts(&there, &v, want);
                CHECK(tile_at(&first) != tile_at(&there) && tile_parts(&first, &v, got) == n);
                CHECK_MSG(!memcmp(want, got, n), "format %d, tile %d", (int)v.fmt, i);
                memory[(const uint8_t *)tile_at(&there) - memory] ^= 1;
                last = copies_tile(&x, &v, i, 4); /* the same node, one thread on */
                tile_parts(&last, &v, got);
                CHECK(tile_at(&last) == tile_at(&first) && !memcmp(want, got, n));
                last = copies_tile(&x, &v, i, 2); /* another node's is made now */
                CHECK(tile_at(&last) != tile_at(&first) && tile_at(&last) != tile_at(&there));
                last = copies_tile(&x, &other, i, 1);
                there = value_tile(&x, &other, i);
                CHECK(tile_at(&last) == tile_at(&there));
            }
        }
        copies_free(own.copies);
    }
}

/* A model of these parameters over two nodes, of which the second has all processors but the first;
 * NULL: a check has failed. */
static pith_model *open_on_two_nodes(const char *path, const struct pith_synth_params *sp)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    two_nodes();
    put("devices/system/node/node%d/cpulist", 0, "0\n");
    put("devices/system/node/node%d/cpulist", 2, "1-1023\n");
    CHECK_MSG(pith_synth(path, sp, &err) == PITH_OK, "%s", err.msg);
    setenv("PITH_SYSFS", folder, 1);
    mp.n_threads = 3;
    mp.numa = PITH_NUMA_SPREAD;
    pith_model *m = pith_model_open(path, &mp, &err);
    unsetenv("PITH_SYSFS");
    CHECK_MSG(m, "%s", err.msg);
    return m;
}

static int large_pages_exist(void)
{
    return access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
}

/* Is the memory at p told to have small pages? -1: the system does not say. */
static int has_small_pages(const void *p)
{
    char line[512];
    int in = 0, small = -1;
    if (!large_pages_exist())
        return -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && small < 0 && fgets(line, sizeof line, f)) {
        uintptr_t lo, hi;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &lo, &hi) == 2)
            in = lo <= (uintptr_t)p && (uintptr_t)p < hi;
        else if (in && !strncmp(line, "VmFlags:", 8))
            small = strstr(line, " nh") != NULL;
    }
    if (f)
        fclose(f);
    return small;
}

/* Pages of experts are small, so that each can be of the node whose threads read it, and are there
 * once the model is open, whoever packs later; other weights have the pages that they had. */
static void weights_on_nodes(void)
{
    char path[128];
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    snprintf(path, sizeof path, "%s/moe.gguf", folder);
    sp.arch = "qwen3moe";
    sp.n_expert = 6;
    sp.n_expert_used = 2;
    sp.type = "q8_0";
    sp.n_embd = 256;
    sp.n_vocab = N_VOCAB;
    pith_model *m = open_on_two_nodes(path, &sp);
    REQUIRE(m, "no model");
    int n_experts = 0, n_plain = 0;
    for (int32_t i = 0; i < m->n_tensors && m->n_nodes == 2; i++) {
        const struct placement *at = &m->tensors[i]->at[0];
        uint8_t *base = at->bytes && at->layout == LAYOUT_PANELS ? buffer_map(at->buffer) : NULL;
        int small = base ? has_small_pages(base + at->offset + at->bytes / 2) : -1;
        if (small < 0 || at->bytes < 1 << 14)
            continue;
        int experts = m->tensors[i]->use == TENSOR_EXPERTS;
        n_experts += experts;
        n_plain += !experts && !small;
        CHECK_MSG(!experts || small, "%s has large pages", m->tensors[i]->name);
    }
    if (m->n_nodes == 2 && large_pages_exist()) /* with one processor there is one node */
        CHECK_MSG(n_experts > 2 && n_plain > 0, "%d stacks of experts, %d matrices of large pages",
                  n_experts, n_plain);
    pith_model_close(m);
}

static void bad_parameters(void)
{
    char path[128], report[64];
    float got[N_VOCAB];
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    sp.arch = "llama";
    snprintf(path, sizeof path, "%s/bad.gguf", folder);
    REQUIRE(pith_synth(path, &sp, NULL) == PITH_OK, "synth");
    static const struct {
        struct pith_model_params p;
        const char *env, *value, *says;
    } rows[] = {
        {{.n_threads = -1}, NULL, NULL, "n_threads is -1, wanted 1..1024"},
        {{.n_threads_prefill = 1025}, NULL, NULL, "n_threads_prefill is 1025, wanted 1..1024"},
        {{.numa = (pith_numa)3}, NULL, NULL, "numa is 3"},
        {{.affinity = "all"}, NULL, NULL, "affinity is \"all\""},
        {{.affinity = "1023"}, NULL, NULL, "may not use"},
        {{0}, "PITH_THREADS", "many", "PITH_THREADS is \"many\""},
        {{0}, "PITH_THREADS_PREFILL", "0", "PITH_THREADS_PREFILL is \"0\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pith_model_params p = rows[i].p;
        struct pith_error err = {PITH_OK, ""};
        p.size = sizeof p;
        if (rows[i].env)
            setenv(rows[i].env, rows[i].value, 1);
        CHECK(!logits_of(path, &p, got, report, sizeof report, &err));
        CHECK_MSG(err.code == PITH_RANGE && strstr(err.msg, rows[i].says), "row %zu: %s", i,
                  err.msg);
        if (rows[i].env)
            unsetenv(rows[i].env);
    }
    setenv("PITH_THREADS", "auto", 1); /* for programs */
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    pith_model *m = pith_model_open(path, &p, NULL);
    struct pith_session_params s = PITH_SESSION_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    CHECK(m);
    s.n_threads_prefill = 256;
    CHECK(m && !pith_session_open(m, &s, &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "n_threads_prefill 256"));
    pith_model_close(m);
    unsetenv("PITH_THREADS");
}

static void measured_counts(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_threads a = {.size = sizeof a}, b = {.size = sizeof b};
    CHECK(pith_measure_threads(-1, &a, &err) == PITH_RANGE && strstr(err.msg, "-1 ms"));
    CHECK(pith_measure_threads(60001, &a, NULL) == PITH_RANGE);
    CHECK(pith_measure_threads(0, NULL, NULL) == PITH_RANGE);
    a.size = 0;
    CHECK(pith_measure_threads(0, &a, NULL) == PITH_RANGE);
    a.size = sizeof a;
    REQUIRE(pith_measure_threads(0, &a, &err) == PITH_OK, "%s", err.msg);
    CHECK(a.n_decode >= 1 && a.n_prefill >= a.n_decode && a.n_prefill <= cores_usable());
    CHECK(a.decode_gbs == 0 && strlen(a.machine) > 20 && strlen(a.machine) < sizeof a.machine - 1);
    int64_t began = clock_ns();
    REQUIRE(pith_measure_threads(60, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(clock_ns() - began < 60 * INT64_C(1000000000)); /* it ends; how soon is the machine's */
    CHECK(b.n_decode >= 1 && b.n_decode <= cores_usable() && b.n_prefill <= cores_usable());
    CHECK(cores_usable() == 1 || (b.decode_gbs > 0 && b.prefill_gops > 0));
    CHECK(!strcmp(a.machine, b.machine));
    two_nodes();
    put("devices/system/node/node%d/cpulist", 0, "0\n");
    put("devices/system/node/node%d/cpulist", 1, "1-1023\n");
    setenv("PITH_SYSFS", folder, 1);
    REQUIRE(pith_measure_threads(0, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(cores_usable() == 1 || strcmp(a.machine, b.machine)); /* another machine */
    unsetenv("PITH_SYSFS");
}

static void memory_of_nodes(void)
{
    enum { BYTES = 1 << 20 };
    void *p = mem_reserve(BYTES);
    REQUIRE(p && mem_commit(p, BYTES, PITH_MEM_SCRATCH, NULL) == PITH_OK, "memory");
    CHECK(!memory_prefer_node(p, BYTES, 63)); /* no such node, or no such call: told, not fatal */
    if (access("/sys/devices/system/node/node0", F_OK) == 0 && !memory_prefer_node(p, BYTES, 0))
        printf("# mbind is refused here\n");
    memset(p, 1, BYTES);
    mem_decommit(p, BYTES, PITH_MEM_SCRATCH);
    mem_release(p, BYTES);
}

/* ---------------------------------------------------------------- K and V */

/* A node's share of an attention call is of the same heads whatever the step, and every unit is
 * done once. */
static void heads_of_nodes(void)
{
    static const int32_t heads[] = {1, 2, 3, 4, 8, 12}, tiles[] = {1, 2, 7}, parts[] = {1, 3};
    for (int nodes = 1; nodes <= 4; nodes++)
        for (int i = 0; i < 6 * 3 * 2; i++) {
            int32_t H = heads[i % 6], T = tiles[i / 6 % 3], P = parts[i / 18];
            struct attn_split split = {
                .n_tiles = T, .n_parts = P, .n_chunks = 1, .by_span = P > 1};
            int64_t n = (int64_t)H * T * P;
            uint8_t seen[12 * 7 * 3] = {0};
            for (int64_t u = 0; u < n; u++) {
                struct attn_unit unit = attn_unit_at(&split, H, nodes, u);
                int at = (unit.head * T + unit.tile) * P + unit.part;
                REQUIRE(unit.head >= 0 && unit.head < H && unit.tile < T && unit.part < P,
                        "unit %d of %d heads, %d tiles, %d parts", (int)u, H, T, P);
                CHECK(!seen[at]++);
                if (H % nodes == 0) /* whole heads to every node */
                    CHECK_MSG(attn_home(H, unit.head, nodes) == (int)(u * nodes / n),
                              "head %d of %d is read by node %d of %d", unit.head, H,
                              (int)(u * nodes / n), nodes);
            }
        }
}

/* Every panel of every expert is a unit once, a run is of one expert and node, and a node's share
 * of the units is its part of all experts where they can be divided evenly. */
static void experts_of_nodes(void)
{
    for (int nodes = 1; nodes <= 5; nodes++)
        for (int64_t A = 1; A <= 9; A += 4)
            for (int64_t P = 1; P <= 40; P += 3) {
                uint8_t seen[9 * 40] = {0};
                int64_t n = A * P, far = 0;
                for (int64_t u = 0, upto; u < n; u = upto) {
                    struct moe_run run = moe_run_at(A, P, nodes, u);
                    REQUIRE(run.i >= 0 && run.i < A && run.first >= 0 && run.first < run.end &&
                                run.end <= P,
                            "%d nodes, %d experts, %d panels: unit %d is of expert %d, [%d, %d)",
                            nodes, (int)A, (int)P, (int)u, (int)run.i, (int)run.first,
                            (int)run.end);
                    upto = u + run.end - run.first;
                    for (int64_t p = run.first; p < run.end; p++, u++) {
                        CHECK(!seen[run.i * P + p]++);
                        int64_t share = ((u + 1) * nodes - 1) / n; /* of [n k / nodes, ..) */
                        int64_t home = ((p + 1) * nodes - 1) / P;
                        far += share != home;
                    }
                }
                CHECK_MSG(P % nodes ? far <= A * nodes : far == 0,
                          "%d nodes, %d experts, %d panels: %d of another node", nodes, (int)A,
                          (int)P, (int)far);
                CHECK(memchr(seen, 0, (size_t)n) == NULL);
            }
}

enum { HEADS = 4, THREADS = 5 };

/* Memory pages of [p, p + bytes) that are backed. */
static size_t resident(void *p, size_t bytes, uint8_t *out)
{
    size_t n = 0;
    if (mincore(p, bytes, out) != 0)
        return 0;
    for (size_t i = 0; i < bytes / 4096; i++)
        n += out[i] &= 1;
    return n;
}

/* The memory of the heads is touched before it is used, each page by some thread; nothing else is.
 */
static void memory_of_heads(void)
{
    static uint8_t is[4096];
    struct state kv[2] = {{.n_head_kv = HEADS, .k_head = 8192, .v_head = 12288},
                          {.n_head_kv = 1, .k_head = 5000, .v_head = 5000}};
    struct cache c = {.states = kv, .n_states = 2, .n_nodes = 2, .n_groups = 1};
    struct cache_group *g = &c.group[0];
    kv[0].v_off = HEADS * kv[0].k_head;
    kv[1].k_off = kv[0].v_off + HEADS * kv[0].v_head;
    kv[1].v_off = kv[1].k_off + 5056;
    g->page_bytes = kv[1].v_off + 5056 + 32768; /* some that is nobody's */
    g->reserved = 8 << 20;
    struct device *d;
    REQUIRE(first_backend()->open(0, 0, &d, NULL) == PITH_OK, "no device");
    CHECK(slabs_init(&g->pages, d, (uint64_t)g->page_bytes, g->reserved / (uint64_t)g->page_bytes,
                     2 << 20, PITH_MEM_CACHE, NULL) == PITH_OK);
    uint8_t *base = buffer_map(&g->pages.slab[0]);
    c.pool = pool_new(THREADS, NULL);
    REQUIRE(base && c.pool, "no memory");
    mem_small_pages(base, g->reserved);
    uint64_t n_pages = (uint64_t)((4 << 20) / g->page_bytes);
    CHECK(slabs_grow(&g->pages, n_pages, NULL) == PITH_OK && slabs_bytes(&g->pages) == 4 << 20);
    CHECK(resident(base, 4 << 20, is) == 0);
    uint64_t from = 2 << 20, to = 4 << 20; /* as a slab is added */
    cache_touch(&c, 0, from, to);
    size_t n = resident(base, 4 << 20, is);
    for (uint64_t at = 0; at < to; at += 4096) {
        int64_t in = (int64_t)at % g->page_bytes;
        int owned = at >= from &&
                    (in < kv[1].k_off + 5000 || (in >= kv[1].v_off && in < kv[1].v_off + 5000));
        CHECK_MSG(is[at / 4096] == owned, "memory at %d, %d in its page: %s", (int)at, (int)in,
                  owned ? "not touched" : "touched");
    }
    CHECK(n > 300 && n < 512);
    int of_node[2] = {0};
    for (int h = 0; h < HEADS; h++)
        of_node[cache_home(&kv[0], h, 5, 2)]++;
    CHECK(of_node[0] == 2 && of_node[1] == 2 && cache_home(&kv[0], 0, 5, 2) == 0);
    CHECK(cache_home(&kv[1], 0, 4, 2) == 0 && cache_home(&kv[1], 0, 5, 2) == 1); /* in turns */
    slabs_deinit(&g->pages);
    d->backend->close(d);
    pool_free(c.pool);
}

/* A session over two nodes places its cache so. */
static void sessions_on_nodes(void)
{
    static uint8_t is[4096];
    char path[128];
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    snprintf(path, sizeof path, "%s/kv.gguf", folder);
    sp.arch = "llama";
    sp.n_embd = 128;
    sp.n_vocab = N_VOCAB;
    pith_model *m = open_on_two_nodes(path, &sp);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    if (m->n_nodes == 2) { /* with one processor there is one node */
        struct cache_group *g = &s->cache.group[0];
        CHECK(pith_feed(s, 0, prompt, N_PROMPT, &err) == PITH_OK);
        uint64_t bytes = slabs_bytes(&g->pages);
        size_t n = resident(buffer_map(&g->pages.slab[0]), bytes, is);
        CHECK_MSG(bytes >= 2 << 20 && n >= bytes / 4096 - 2, "%zu of %zu pages are touched", n,
                  (size_t)bytes / 4096);
    }
    pith_session_close(s);
    pith_model_close(m);
}

int main(void)
{
    unsetenv("PITH_THREADS");
    unsetenv("PITH_THREADS_PREFILL");
    TEST(lists);
    TEST(plain_machine);
    TEST(nodes_and_siblings);
    TEST(hybrid);
    TEST(places);
    TEST(pool_at_places);
    TEST(models_on_nodes);
    TEST(activations_of_nodes);
    TEST(weights_on_nodes);
    TEST(bad_parameters);
    TEST(measured_counts);
    TEST(memory_of_nodes);
    TEST(heads_of_nodes);
    TEST(experts_of_nodes);
    TEST(memory_of_heads);
    TEST(sessions_on_nodes);
    remove_trees();
    return test_end();
}
