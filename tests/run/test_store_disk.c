/* test_store_disk.c -- the prefix store's folder: a process that is killed at any instant leaves a
 * folder that the next one can use, and what it takes from there has the bits of computing anew;
 * damaged, truncated and foreign files are found, told and removed; two processes share a folder;
 * one that cannot be made is refused; a full disk, a folder that cannot be written and a limit are
 * lines in the report. */
/* In make test alone: make check has test_store.c. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/machine/folder.h"
#include "run/session/session.h"
#include "run/cache/store_disk.h"
#include "small_model.h"

enum { N_VOCAB = 64, N_CTX = 512, N_SHARED = 256, PAGE = 64 };
static char model_path[2][64], folder[64];

static int recurrent; /* such models are not made, but golden ones */
static int head_dim;  /* 0: the least */
static int experts;   /* 1: four, two in use */
static int wide;      /* 1: enough columns for two devices */
static int layers;    /* 0: as it comes */

static void make_model(int which, const char *arch)
{
    char golden[512];
    struct pith_error err;
    struct pith_synth_params p = small_params(arch, N_VOCAB);
    snprintf(golden, sizeof golden, "%s/golden/arch/%s.gguf", test_shared(), arch);
    snprintf(model_path[which], sizeof *model_path, "/tmp/pith-disk-%d-%d.gguf", (int)getpid(),
             which);
    if (recurrent) {
        char *target = realpath(golden, NULL);
        CHECK(target && symlink(target, model_path[which]) == 0);
        free(target);
        return;
    }
    p.seed = (uint64_t)which + 1;
    p.head_dim = head_dim ? head_dim : p.head_dim;
    p.n_layer = layers ? layers : p.n_layer;
    p.n_expert = experts ? 4 : p.n_expert;
    p.n_expert_used = experts ? 2 : p.n_expert_used;
    if (wide) {
        p.n_embd = 256;
        p.n_ff = 1024;
    }
    CHECK_MSG(pith_synth(model_path[which], &p, &err) == PITH_OK, "%s", err.msg);
}

static pith_model *open_model(int which)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.n_batch = 64;
    pith_model *m = pith_model_open(model_path[which], &mp, &err);
    CHECK_MSG(m, "%s", err.msg);
    return m;
}

/* dir NULL: no store. */
static pith_session *open_session(pith_model *m, const char *dir, int64_t limit)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 2;
    sp.store_dir = dir;
    sp.store_limit = limit;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

/* What all share, then what is this one's own. */
static int32_t prompt(int32_t *token, int own)
{
    for (int32_t i = 0; i < N_SHARED; i++)
        token[i] = (i * 7 + i / 64) % N_VOCAB;
    for (int32_t i = 0; i < 100; i++)
        token[N_SHARED + i] = (i * 5 + own * 11 + 1) % N_VOCAB;
    return N_SHARED + 100;
}

/* Feeds a prompt and compares its logits with those of a session without a store. Returns how much
 * was there. */
static int32_t ask(pith_session *s, pith_session *fresh, int32_t seq, int own)
{
    struct pith_error err;
    int32_t token[N_CTX], n = prompt(token, own);
    size_t kept = 0;
    CHECK(pith_truncate(s, seq, 0, &err) == PITH_OK && pith_truncate(fresh, 0, 0, &err) == PITH_OK);
    CHECK_MSG(pith_prefix(s, seq, token, (size_t)n, &kept, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_feed(fresh, 0, token, (size_t)n, &err) == PITH_OK, "%s", err.msg);
    const float *a = pith_logits(s, 0), *b = pith_logits(fresh, 0);
    CHECK_MSG(a && b && !memcmp(a, b, N_VOCAB * sizeof(float)), "%zu taken, logits differ", kept);
    return (int32_t)kept;
}

static void report(const pith_session *s, char *text, size_t cap)
{
    int64_t n = pith_report(s, 0, text, cap);
    CHECK(n > 0);
}

/* ---------------------------------------------------------------- folders */

static void each_file(void (*fn)(const char *path))
{
    char path[400];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            fn(path);
    }
    if (d)
        closedir(d);
}

static int n_files, n_tmp, open_to_others;
static int64_t n_bytes;
static char one_file[400];
static void see(const char *path)
{
    struct stat sb;
    n_files++;
    n_tmp += strstr(path, ".tmp-") != NULL;
    int there = stat(path, &sb) == 0;
    n_bytes += there ? sb.st_size : 0;
    open_to_others += there && (sb.st_mode & 077);
    if (!one_file[0])
        snprintf(one_file, sizeof one_file, "%s", path);
}

static int look(void)
{
    n_files = n_tmp = open_to_others = 0;
    n_bytes = 0;
    one_file[0] = 0;
    each_file(see);
    return n_files;
}

static void remove_file(const char *path)
{
    CHECK(unlink(path) == 0);
}

static void begin(const char *arch)
{
    snprintf(folder, sizeof folder, "/tmp/pith-disk-%d.store", (int)getpid());
    make_model(0, arch);
    make_model(1, arch);
}

static void end(void)
{
    char lock[100];
    chmod(folder, 0700);
    each_file(remove_file);
    snprintf(lock, sizeof lock, "%s/.lock", folder);
    unlink(lock);
    CHECK(rmdir(folder) == 0);
    unlink(model_path[0]);
    unlink(model_path[1]);
}

/* ---------------------------------------------------------------- killed */

/* A process that serves a few prompts; tells on fd when the shared part is on disk; exits with what
 * went wrong. */
static int serve(int own, int shared_there, int fd)
{
    int before = test_bad;
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    if (!s || !fresh)
        return 2;
    int32_t kept = ask(s, fresh, 0, own);
    CHECK_MSG(!shared_there || kept >= N_SHARED, "%d of %d taken after a restart", kept, N_SHARED);
    while (store_disk_wait(s->store.disk))
        ;
    if (write(fd, "d", 1) != 1)
        return 3;
    for (int i = 1; i < 4; i++) {
        kept = ask(s, fresh, i % 2, own + i);
        CHECK_MSG(kept >= N_SHARED, "request %d: %d of %d taken", i, kept, N_SHARED);
    }
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    return test_bad != before;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Serves in a process of its own that is killed after so many microseconds (0: not). Returns its
 * status, and whether the shared part is on disk. The outcome does not depend on the instant: that
 * is what is tested. */
static int run_child(int own, int64_t kill_after, int *shared_there)
{
    int to_us[2], status = -1;
    char c;
    fflush(stdout);
    if (pipe(to_us))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        close(to_us[0]);
        status = serve(own, *shared_there, to_us[1]);
        fflush(stdout);
        _exit(status);
    }
    close(to_us[1]);
    if (kill_after) {
        usleep((useconds_t)kill_after);
        kill(pid, SIGKILL);
    }
    waitpid(pid, &status, 0);
    *shared_there |= read(to_us[0], &c, 1) == 1;
    close(to_us[0]);
    return status;
}

static void killed(const char *arch, int rounds)
{
    int there = 0, deaths = 0;
    uint64_t z = 1;
    begin(arch);
    int64_t began = now_us();
    CHECK(run_child(0, 0, &there) == 0 && there);
    int64_t whole = now_us() - began;
    for (int i = 0; i < rounds && !test_bad; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        if (i % 4 == 0) { /* now and then from nothing */
            each_file(remove_file);
            there = 0;
        }
        int status = run_child(4 * i, 1 + (int64_t)(z >> 33) % (whole + 1), &there);
        deaths += WIFSIGNALED(status);
        CHECK_MSG(WIFSIGNALED(status) || status == 0, "%s: round %d: status %d", arch, i, status);
        began = now_us();
        status = run_child(4 * i + 4, 0, &there);
        whole = now_us() - began;
        CHECK_MSG(status == 0, "%s: after kill %d: status %d", arch, i, status);
        look();
        CHECK_MSG(n_tmp == 0, "%d temporary files are left", n_tmp);
    }
    printf("# %s: %d processes, %d killed, %d files\n", arch, 2 * rounds, deaths, n_files);
    end();
}

static void test_killed(void)
{
    int n = test_scale() >= 100 ? 200 : test_scale() >= 10 ? 20 : 3;
    killed("llama", n);
    killed("gemma2", n);
}

static void test_killed_recurrent(void)
{
    char golden[512];
    snprintf(golden, sizeof golden, "%s/golden/arch/jamba.gguf", test_shared());
    if (access(golden, R_OK))
        SKIP("golden/arch/jamba.gguf is absent");
    recurrent = 1;
    killed("jamba", test_scale() >= 100 ? 50 : test_scale() >= 10 ? 5 : 1);
    killed("mamba", test_scale() >= 100 ? 50 : test_scale() >= 10 ? 5 : 1);
    recurrent = 0;
}

/* ---------------------------------------------------------------- damage */

static uint8_t *contents(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *p = malloc(1 << 20);
    *n = f && p ? fread(p, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return p;
}

static void put_contents(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

/* Every bit of a page's file, in process; truncated at every length in steps; bytes behind it. */
static void test_damage(void)
{
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    ask(s, fresh, 0, 1);
    while (store_disk_wait(s->store.disk))
        ;
    struct store *t = &s->store;
    char path[400], text[8192];
    int32_t at = 0, page = 0;
    while (!t->entry[at].used)
        at++;
    struct store_entry *e = &t->entry[at];
    snprintf(path, sizeof path, "%s/%016llx%016llx-0.page", folder, (unsigned long long)e->key[0],
             (unsigned long long)e->key[1]);
    size_t n;
    uint8_t *whole = contents(path, &n);
    page = e->page[0];
    int found = 0, tried = 0;
    CHECK_MSG(n && n <= 16384, "%s has %zu bytes", path, n);
    CHECK(store_disk_read(t->disk, &s->cache, e, 0, page, 0));
    int step = test_scale() >= 10 ? 1 : 37;
    for (size_t bit = 0; bit < n * 8; bit += (size_t)step, tried++) {
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        put_contents(path, whole, n);
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        found += !store_disk_read(t->disk, &s->cache, e, 0, page, 0) && access(path, F_OK) != 0;
    }
    for (size_t k = 0; k <= n + 8; k += k < n - 8 ? 97 : 1) {
        if (k == n)
            continue;
        uint8_t *part = calloc(n + 9, 1);
        memcpy(part, whole, k < n ? k : n);
        put_contents(path, part, k);
        free(part);
        tried++;
        found += !store_disk_read(t->disk, &s->cache, e, 0, page, 0) && access(path, F_OK) != 0;
    }
    CHECK_MSG(found == tried, "%d of %d damages found", found, tried);
    put_contents(path, whole, n);
    CHECK(store_disk_read(t->disk, &s->cache, e, 0, page, 0));
    report(s, text, sizeof text);
    CHECK_MSG(strstr(text, "damaged (first: ") && strstr(text, "removed"), "%.400s", text);
    printf("# %d damages of a file of %zu bytes\n", tried, n);
    free(whole);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

static void cut_in_half(const char *path)
{
    struct stat sb;
    CHECK(stat(path, &sb) == 0 && truncate(path, sb.st_size / 2) == 0);
}

static void flip(const char *path)
{
    size_t n;
    uint8_t *p = contents(path, &n);
    p[n / 2] ^= 4;
    put_contents(path, p, n);
    free(p);
}

/* A folder of damaged files is as good as an empty one, and afterwards whole again. */
static void damaged_folder(const char *arch, void (*damage)(const char *path))
{
    char text[8192];
    begin(arch);
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    CHECK(ask(s, fresh, 0, 1) == 0);
    pith_session_close(s);
    each_file(damage);
    s = open_session(m, folder, 0);
    CHECK(ask(s, fresh, 0, 1) == 0);
    report(s, text, sizeof text);
    CHECK_MSG(strstr(text, "damaged (first: "), "%.400s", text);
    pith_session_close(s);
    s = open_session(m, folder, 0);
    int32_t kept = ask(s, fresh, 0, 1);
    CHECK_MSG(kept == 320, "%s: %d taken", arch, kept);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

static void test_damaged_folder(void)
{
    damaged_folder("llama", flip);
    damaged_folder("llama", cut_in_half);
    damaged_folder("gemma2", flip);
    damaged_folder("gemma3", cut_in_half);
}

/* ---------------------------------------------------------------- somebody else's making */

/* The page's checksum, as its bytes are. */
static void seal(uint8_t *p, size_t n)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(p, n - sizeof sum));
    memcpy(p + n - sizeof sum, &sum, sizeof sum);
}

/* Each byte of the head is another, under the right checksum. */
static void forge_heads(pith_session *s, const struct store_entry *e, int32_t page,
                        const char *path)
{
    enum { HEAD = 328 };
    size_t n;
    uint8_t *p = contents(path, &n);
    int found = 0;
    for (int i = 0; i < HEAD; i++) {
        p[i] ^= (uint8_t)(1 + i % 255);
        seal(p, n);
        put_contents(path, p, n);
        p[i] ^= (uint8_t)(1 + i % 255);
        found += !store_disk_read(s->store.disk, &s->cache, e, 0, page, 0) && access(path, F_OK);
    }
    CHECK_MSG(found == HEAD, "%d of %d forged heads found", found, HEAD);
    seal(p, n);
    put_contents(path, p, n);
    free(p);
}

/* Under a page's name is what is no file, or another one. */
static void forge_files(pith_session *s, const struct store_entry *e, int32_t page,
                        const char *path)
{
    size_t n;
    uint8_t *p = contents(path, &n);
    for (int i = 0; i < 4; i++) {
        CHECK(unlink(path) == 0);
        CHECK(i == 0   ? mkfifo(path, 0600) == 0
              : i == 1 ? mkdir(path, 0700) == 0
              : i == 2 ? symlink("/dev/zero", path) == 0
                       : symlink(path, path) == 0);
        CHECK_MSG(!store_disk_read(s->store.disk, &s->cache, e, 0, page, 0), "case %d", i);
        rmdir(path);
        unlink(path);
        put_contents(path, p, n);
    }
    free(p);
}

/* Numbers under the right checksum: finite ones of any bits are what they are; with others the file
 * is damaged. */
static void forge_numbers(pith_session *s, const char *path, int kind)
{
    struct pith_error err;
    char text[8192];
    int32_t token[N_CTX], n_ids = prompt(token, 1);
    size_t n, kept = 0;
    uint8_t *p = contents(path, &n);
    for (size_t i = 328; i < n - 16; i++)
        p[i] = kind == 0   ? 0xFF
               : kind == 1 ? 0x7C
                           : (uint8_t)(i * 2654435761u >> 13) & 0xFB; /* no exponent is full */
    seal(p, n);
    put_contents(path, p, n);
    free(p);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    pith_status st = pith_prefix(s, 0, token, (size_t)n_ids, &kept, &err);
    CHECK_MSG((kept >= PAGE) == (kind == 2) && (st == PITH_OK || err.msg[0]),
              "kind %d: %zu taken, status %d", kind, kept, (int)st);
    report(s, text, sizeof text);
    CHECK_MSG(!strstr(text, "a number is not finite") == (kind == 2), "kind %d: %.400s", kind,
              text);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
}

static void test_forged(void)
{
    static const char *const types[] = {"f16", "q8_0", "q4_0"};
    for (int i = 0; i < 9; i++) {
        struct pith_error err;
        struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
        head_dim = 32;
        begin(i / 3 == 2 ? "gemma2" : "llama");
        head_dim = 0;
        pith_model *m = open_model(0);
        sp.n_ctx = N_CTX;
        sp.n_seq = 2;
        sp.store_dir = folder;
        sp.cache_type_k = sp.cache_type_v = types[i % 3];
        pith_session *s = pith_session_open(m, &sp, &err);
        REQUIRE(s, "%s", err.msg);
        int32_t token[N_CTX], n_ids = prompt(token, 1), at = 0;
        CHECK(pith_feed(s, 0, token, (size_t)n_ids, &err) == PITH_OK &&
              pith_truncate(s, 0, 0, &err) == PITH_OK);
        while (store_disk_wait(s->store.disk))
            ;
        char path[400];
        while (!s->store.entry[at].used || s->store.entry[at].token[0] != token[0] ||
               s->store.entry[at].token[1] != token[1])
            at++;
        const struct store_entry *e = &s->store.entry[at];
        int32_t page = e->page[0];
        snprintf(path, sizeof path, "%s/%016llx%016llx-0.page", folder,
                 (unsigned long long)e->key[0], (unsigned long long)e->key[1]);
        if (i < 3)
            forge_heads(s, e, page, path), forge_files(s, e, page, path);
        pith_session_close(s);
        s = pith_session_open(m, &sp, &err);
        REQUIRE(s, "%s", err.msg);
        forge_numbers(s, path, i / 3);
        pith_session_close(s);
        pith_model_close(m);
        end();
    }
}

/* A folder that others have prepared: a lock that is another name of a file of ours, temporary
 * files that are pipes. Nothing is written through it, and nobody waits. */
static void test_prepared(void)
{
    for (int hard = 0; hard < 2; hard++) {
        char lock[100], own[100], pipe_path[160];
        size_t n;
        begin("llama");
        CHECK(mkdir(folder, 0700) == 0);
        snprintf(lock, sizeof lock, "%s/.lock", folder);
        snprintf(own, sizeof own, "%s.own", folder);
        snprintf(pipe_path, sizeof pipe_path, "%s/%032d-0.page.tmp-1-2", folder, 7);
        put_contents(own, (const uint8_t *)"a letter to my aunt, as it was", 30);
        CHECK(hard ? link(own, lock) == 0 : symlink(own, lock) == 0);
        CHECK(mkfifo(pipe_path, 0600) == 0);
        pith_model *m = open_model(0);
        pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
        REQUIRE(s && fresh, "no session");
        ask(s, fresh, 0, 1);
        pith_session_close(s);
        s = open_session(m, folder, 0);
        REQUIRE(s, "no session");
        CHECK(ask(s, fresh, 0, 1) == 320);
        pith_session_close(s);
        pith_session_close(fresh);
        pith_model_close(m);
        uint8_t *p = contents(own, &n);
        CHECK_MSG(n == 30 && !memcmp(p, "a letter to my aunt, as it was", 30), "%.30s",
                  (const char *)p);
        free(p);
        unlink(own);
        end();
    }
}

/* ---------------------------------------------------------------- other models, other processes */

static void test_other_model(void)
{
    begin("llama");
    pith_model *m = open_model(0), *other = open_model(1);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    CHECK(ask(s, fresh, 0, 1) == 0);
    pith_session_close(s);
    int of_one = look();
    pith_session *t = open_session(other, folder, 0), *t_fresh = open_session(other, NULL, 0);
    CHECK(ask(t, t_fresh, 0, 1) == 0); /* nothing of this one's */
    while (store_disk_wait(t->store.disk))
        ;
    CHECK_MSG(look() == 2 * of_one, "%d files, then %d", of_one, n_files);
    /* The other's file by the name of one of ours. */
    char from[400], to[400];
    snprintf(from, sizeof from, "%s/%016llx%016llx-0.page", folder,
             (unsigned long long)t->store.entry[0].key[0],
             (unsigned long long)t->store.entry[0].key[1]);
    pith_session_close(t);
    s = open_session(m, folder, 0);
    CHECK(ask(s, fresh, 0, 1) == 320);
    snprintf(to, sizeof to, "%s/%016llx%016llx-0.page", folder,
             (unsigned long long)s->store.entry[0].key[0],
             (unsigned long long)s->store.entry[0].key[1]);
    pith_session_close(s);
    CHECK(rename(from, to) == 0);
    s = open_session(m, folder, 0);
    char text[8192];
    CHECK(ask(s, fresh, 0, 1) < 320);
    report(s, text, sizeof text);
    CHECK_MSG(strstr(text, "another page or model"), "%.400s", text);
    pith_session_close(s);
    pith_session_close(t_fresh);
    pith_session_close(fresh);
    pith_model_close(m);
    pith_model_close(other);
    end();
}

/* Two sessions on one folder: each finds what the other wrote while both live. */
static void test_two(void)
{
    begin("gemma2");
    pith_model *m = open_model(0);
    pith_session *a = open_session(m, folder, 0), *b = open_session(m, folder, 0),
                 *fresh = open_session(m, NULL, 0);
    REQUIRE(a && b && fresh, "no session");
    CHECK(ask(a, fresh, 0, 1) == 0);
    while (store_disk_wait(a->store.disk))
        ;
    CHECK(ask(b, fresh, 0, 1) == 320 && ask(b, fresh, 0, 2) >= N_SHARED);
    while (store_disk_wait(b->store.disk))
        ;
    pith_session_close(a);
    a = open_session(m, folder, 0);
    CHECK(ask(a, fresh, 0, 2) == 320);
    each_file(remove_file); /* by a third one; what is used again is written again */
    CHECK(ask(a, fresh, 1, 2) == 320);
    pith_session_close(a);
    a = open_session(m, folder, 0);
    CHECK(ask(a, fresh, 0, 2) == 320);
    pith_session_close(a);
    pith_session_close(b);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

/* Pages of fourteen groups: layers of two kinds on seven devices. */
static void test_many_groups(void)
{
    char path[200];
    layers = 14;
    begin("gemma2");
    layers = 0;
    setenv("PITH_CPU_DEVICES", "7", 1);
    setenv("PITH_LAYER_DEVICES", "0,1,2,3,4,5,6", 1);
    pith_model *m = open_model(0);
    unsetenv("PITH_CPU_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    CHECK_MSG(s->cache.n_own == 14, "%d groups", (int)s->cache.n_own);
    CHECK(ask(s, fresh, 0, 1) == 0);
    CHECK(ask(s, fresh, 1, 1) == 320); /* from memory */
    snprintf(path, sizeof path, "%s/%016llx%016llx-13.page", folder,
             (unsigned long long)s->store.entry[0].key[0],
             (unsigned long long)s->store.entry[0].key[1]);
    pith_session_close(s);
    CHECK_MSG(access(path, R_OK) == 0, "no %s", path);
    s = open_session(m, folder, 0);
    REQUIRE(s, "no session");
    CHECK(ask(s, fresh, 0, 1) == 320);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

/* Two processes at once, again and again. */
static void test_two_processes(void)
{
    int n = test_scale() >= 100 ? 50 : test_scale() >= 10 ? 10 : 2;
    begin("llama");
    for (int i = 0; i < n && !test_bad; i++) {
        pid_t pid[2];
        fflush(stdout);
        for (int k = 0; k < 2; k++)
            if ((pid[k] = fork()) == 0)
                _exit(serve(i, 0, open("/dev/null", O_WRONLY)));
        for (int k = 0; k < 2; k++) {
            int status = -1;
            waitpid(pid[k], &status, 0);
            CHECK_MSG(status == 0, "round %d: status %d", i, status);
        }
        if (i % 2)
            each_file(remove_file);
    }
    end();
}

/* ---------------------------------------------------------------- work */

static long counted(const pith_session *s, const char *what)
{
    char text[16384], name[64];
    CHECK(pith_report(s, 1, text, sizeof text) > 0);
    snprintf(name, sizeof name, "\"%s\": ", what);
    const char *dir = strstr(text, "\"store_dir\""), *at = dir ? strstr(dir, name) : NULL;
    CHECK_MSG(at, "no %s in %.300s", what, dir ? dir : "");
    return at ? atol(at + strlen(name)) : -1;
}

/* A session whose store holds so many pages. */
static pith_session *open_small(pith_model *m, int pages, int64_t limit)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = 64 * 40;
    sp.n_seq = 2;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL; /* only to know a page's bytes */
    sp.store_bytes = s ? pages * s->cache.group[0].page_bytes : 0;
    pith_session_close(s);
    sp.store_dir = folder;
    sp.store_limit = limit;
    s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

/* Two sequences of 20 pages, and then some steps of one token each. */
static void run_two(pith_session *s, int own, int steps)
{
    struct pith_error err;
    int32_t token[64 * 20], row[2] = {0}, seq[2] = {0, 1};
    for (int q = 0; q < 2; q++) {
        for (int32_t i = 0; i < 64 * 20; i++)
            token[i] = (i * 7 + (q + own) * 13 + i / 64) % N_VOCAB;
        CHECK_MSG(pith_feed(s, q, token, 64 * 20, &err) == PITH_OK, "%s", err.msg);
    }
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 2;
    b.token = row;
    b.seq = seq;
    for (int k = 0; k < steps; k++) {
        row[0] = row[1] = k % 5;
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        if (k % 16 == 0) /* the writer keeps up */
            while (store_disk_wait(s->store.disk))
                ;
    }
    for (int q = 0; q < 2; q++)
        CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
    while (store_disk_wait(s->store.disk))
        ;
}

/* Sequences that together exceed the memory of the store: every page is written once, by this
 * session and the next ones. */
static void test_written_once(void)
{
    enum { STEPS = 256, PAGES = 2 * (20 + STEPS / 64) };
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_small(m, 60, 0);
    REQUIRE(s, "no session");
    run_two(s, 0, STEPS);
    CHECK_MSG(counted(s, "written") == PAGES && look() == PAGES, "%ld written, %d files, %d pages",
              counted(s, "written"), n_files, PAGES);
    pith_session_close(s);
    for (int again = 0; again < 2; again++) { /* a store of 15 pages, first from nothing */
        if (!again)
            each_file(remove_file);
        s = open_small(m, 15, 0);
        REQUIRE(s, "no session");
        run_two(s, 0, STEPS);
        long written = counted(s, "written");
        CHECK_MSG(written <= (again ? PAGES - look() : PAGES) && written + n_files >= PAGES / 2,
                  "round %d: %ld written, %d files", again, written, n_files);
        pith_session_close(s);
        if (!again) {
            s = open_small(m, 60, 0); /* writes those that could not wait */
            run_two(s, 0, STEPS);
            pith_session_close(s);
            CHECK_MSG(look() == PAGES, "%d files", n_files);
        }
    }
    pith_model_close(m);
    end();
}

/* What cannot be written is not tried for every page; and nobody who computes waits for it. */
static void test_backs_off(void)
{
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_small(m, 100, 100); /* no page is so small */
    REQUIRE(s, "no session");
    run_two(s, 0, 640);
    long failed = counted(s, "failed"), skipped = counted(s, "skipped");
    CHECK_MSG(failed > 0 && failed <= 8 && failed + skipped >= 60, "%ld failed, %ld skipped",
              failed, skipped);
    CHECK(counted(s, "written") == 0);
    pith_session_close(s);
    s = open_small(m, 10, 0);
    int lock = folder_lock_open(folder); /* somebody who never gives it back */
    REQUIRE(s && lock >= 0 && folder_lock_take(lock), "no lock");
    struct pith_error err;
    int32_t token[64 * 30];
    for (int32_t i = 0; i < 64 * 30; i++)
        token[i] = (i * 11 + i / 64) % N_VOCAB;
    CHECK_MSG(pith_feed(s, 0, token, 64 * 30, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    CHECK_MSG(counted(s, "written") == 0 && counted(s, "skipped") > 0, "%ld written, %ld skipped",
              counted(s, "written"), counted(s, "skipped"));
    folder_lock_close(lock);
    pith_session_close(s);
    pith_model_close(m);
    end();
}

/* The store's pages of the only group, and those that nobody else holds, are what is counted. */
static void check_counts(const pith_session *s)
{
    const struct cache_group *g = &s->cache.group[0];
    int32_t *n = calloc((size_t)g->n_made + 1, sizeof *n), held = 0, idle = 0;
    for (int32_t i = 0; i < s->store.cap; i++)
        if (s->store.entry[i].used)
            n[place_page(s->store.entry[i].page[0])]++;
    for (int32_t p = 0; p < g->n_made; p++) {
        held += n[p] > 0;
        idle += n[p] && g->refs[STEP_QUARTERS * p] == n[p];
    }
    CHECK_MSG(held == g->n_stored && idle == g->n_idle,
              "%d pages of the store, %d are counted; only its %d, counted %d", held, g->n_stored,
              idle, g->n_idle);
    free(n);
}

/* A page that waits in an orphan, and enters the tree when its sequence ends: it stays the store's
 * when the orphan goes. */
static void test_orphan(void)
{
    struct pith_error err;
    int32_t token[64 * 4];
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_small(m, 4, 0);
    int lock = folder_lock_open(folder), queued = 0;
    REQUIRE(s && lock >= 0, "no session");
    for (int q = 0; q < 2; q++) { /* what the second has drives out the first one's */
        for (int32_t i = 0; i < 64 * 4; i++)
            token[i] = (i * 7 + q * 13 + i / 64) % N_VOCAB;
        CHECK_MSG(pith_feed(s, q, token, q ? 64 * 4 : 64 * 2, &err) == PITH_OK, "%s", err.msg);
        while (store_disk_wait(s->store.disk))
            ;
    }
    CHECK(folder_lock_take(lock)); /* the writer comes as far as its file */
    CHECK_MSG(pith_feed(s, 0, token, 64, &err) == PITH_OK, "%s", err.msg);
    for (int32_t i = 0; i < s->store.cap; i++)
        queued += s->store.entry[i].queued && s->store.entry[i].parent == STORE_LOST;
    CHECK_MSG(queued == 1, "%d pages wait in orphans", queued);
    check_counts(s);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    check_counts(s);
    folder_lock_give(lock);
    while (store_disk_wait(s->store.disk))
        ;
    CHECK_MSG(pith_feed(s, 0, token, 64, &err) == PITH_OK, "%s", err.msg); /* the orphan goes */
    check_counts(s);
    folder_lock_close(lock);
    pith_session_close(s);
    pith_model_close(m);
    end();
}

/* A limit is one of the folder, whoever writes. */
static void test_limit_of_all(void)
{
    enum { LIMIT = 12 * 9000 };
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *a = open_small(m, 60, LIMIT), *b = open_small(m, 60, LIMIT);
    REQUIRE(a && b, "no session");
    for (int i = 0; i < 6; i++) {
        run_two(i % 2 ? a : b, i, 64);
        look();
        CHECK_MSG(n_files && n_bytes <= LIMIT, "round %d: %d files, %lld bytes", i, n_files,
                  (long long)n_bytes);
    }
    pith_session_close(a);
    pith_session_close(b);
    pid_t pid[2]; /* no thread runs now */
    fflush(stdout);
    for (int k = 0; k < 2; k++)
        if ((pid[k] = fork()) == 0) {
            pith_model *mine = open_model(0);
            a = open_small(mine, 60, LIMIT);
            for (int i = 0; a && i < 3; i++)
                run_two(a, 7 + 3 * k + i, 64);
            _exit(!a || test_bad);
        }
    for (int k = 0; k < 2; k++) {
        int status = -1;
        waitpid(pid[k], &status, 0);
        CHECK_MSG(status == 0, "status %d", status);
    }
    look();
    CHECK_MSG(n_files && n_bytes <= LIMIT, "%d files, %lld bytes", n_files, (long long)n_bytes);
    pith_model_close(m);
    end();
}

/* Names that are not exactly a page's are somebody else's, however full the folder is. */
static void test_foreign(void)
{
    static const char *const foreign[] = {"manual.page",
                                          "0123456789abcdef0123456789abcdef-0.page.bak",
                                          "0123456789abcdef0123456789abcde-0.page",
                                          "0123456789abcdef0123456789abcdefa-0.page",
                                          "0123456789ABCDEF0123456789abcdef-0.page",
                                          "0123456789abcdef0123456789abcdef-.page",
                                          "0123456789abcdef0123456789abcdef-x.page",
                                          "manual.page.tmp-1-2",
                                          "0123456789abcdef0123456789abcdef-0.page.tmp-1-",
                                          "0123456789abcdef0123456789abcdef-0.tmp-1-2.page",
                                          "0123456789abcdef0123456789abcdef-0.page.tmp-1-2-3"};
    static const char *const ours[] = {"0123456789abcdef0123456789abcdef-0.page",
                                       "0123456789abcdef0123456789abcdef-12.page",
                                       "0123456789abcdef0123456789abcdef-0.page.tmp-1-2"};
    enum { N = sizeof foreign / sizeof *foreign };
    char path[400];
    begin("llama");
    CHECK(mkdir(folder, 0700) == 0);
    for (size_t i = 0; i < N + 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i < N ? foreign[i] : ours[i - N]);
        put_contents(path, (const uint8_t *)"somebody's own text", 19);
    }
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 10);
    REQUIRE(s, "no session");
    pith_session_close(s);
    for (size_t i = 0; i < N + 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i < N ? foreign[i] : ours[i - N]);
        CHECK_MSG(!access(path, F_OK) == (i < N), "%s", path);
    }
    pith_model_close(m);
    end();
}

/* Others than the user see nothing of what is written, whatever the umask. */
static void test_private(void)
{
    struct stat sb;
    mode_t was = umask(0);
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    ask(s, fresh, 0, 1);
    pith_session_close(s);
    pith_session_close(fresh);
    umask(was);
    CHECK(stat(folder, &sb) == 0 && (sb.st_mode & 0777) == 0700);
    CHECK(look() > 0 && !open_to_others);
    pith_model_close(m);
    end();
}

/* A cancelled session reads nothing: what is in memory is all it takes, and the next step says that
 * it was cancelled. */
static void test_cancelled(void)
{
    struct pith_error err;
    int32_t token[N_CTX], n = prompt(token, 1);
    size_t kept = 99;
    begin("llama");
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    ask(s, fresh, 0, 1);
    pith_session_close(s);
    s = open_session(m, folder, 0);
    REQUIRE(s, "no session");
    pith_cancel(s);
    CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK && kept == 0);
    CHECK(counted(s, "read") == 0);
    CHECK(pith_prefix(s, 0, token, (size_t)n, &kept, &err) == PITH_CANCELLED);
    pith_cancel_reset(s);
    CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK && kept == 320);
    CHECK(counted(s, "read") == 5);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

static int so_often(void *ctx, const struct pith_work *w)
{
    int *left = ctx;
    (void)w;
    return (*left)-- > 0;
}

/* Pieces that the caller's work lets go on for: each call finds what those before it brought, and
 * the last one has what a single call has. */
static void in_pieces(const char *arch, int least)
{
    struct pith_error err;
    struct pith_work w = PITH_WORK_INIT;
    int32_t token[N_CTX], n = prompt(token, 1);
    int left = 0, calls = 0;
    size_t kept = 99, before = 0;
    long n_read = 0;
    begin(arch);
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    ask(s, fresh, 0, 1);
    pith_session_close(s);
    s = open_session(m, folder, 0);
    REQUIRE(s, "no session");
    s->store.piece = 1;
    w.go_on = so_often;
    w.ctx = &left;
    do {
        left = calls++ ? 1 : 0;
        CHECK(pith_work_begin(&w, &err) == PITH_OK);
        CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK && kept >= before);
        pith_work_end(&w);
        long now = counted(s, "read");
        CHECK_MSG(now - n_read <= (calls > 1) * (s->store.n_readers + s->store.n_parts),
                  "call %d of %s read %ld", calls, arch, now - n_read);
        CHECK(now > n_read || calls == 1 || !w.stop);
        before = kept;
        n_read = now;
    } while (w.stop && calls < 100);
    CHECK_MSG(kept == 320 && calls >= least, "%s: %zu tokens in %d calls", arch, kept, calls);
    uint64_t most = 2 * 320 / PAGE * (uint64_t)s->store.n_parts;
    CHECK_MSG(s->store.looks <= most, "%s: %d calls look for %llu files, wanted at most %llu", arch,
              calls, (unsigned long long)s->store.looks, (unsigned long long)most);
    CHECK(ask(s, fresh, 0, 1) >= 320);
    pith_session_close(s);
    s = open_session(m, folder, 0);
    REQUIRE(s, "no session");
    s->store.piece = 1; /* pieces in one call */
    CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK && kept == 320);
    CHECK_MSG(s->store.looks <= most / 2, "%s: a call looks for %llu files, wanted at most %llu",
              arch, (unsigned long long)s->store.looks, (unsigned long long)most / 2);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

static void test_in_pieces(void)
{
    in_pieces("llama", 6);
    in_pieces("gemma2", 6);
    in_pieces("jamba", 6);
    in_pieces("mamba2", 2); /* the state behind the last page is all it needs */
}

/* Between two pieces the folder gets more of the prompt, or loses what it had. */
static void test_other_folder(void)
{
    struct pith_error err;
    struct pith_work w = PITH_WORK_INIT;
    int32_t token[N_CTX], n = prompt(token, 1);
    size_t kept;
    begin("llama");
    pith_model *m = open_model(0);
    for (int more = 0; more < 2; more++) {
        int left = 1;
        pith_session *s = open_session(m, folder, 0);
        REQUIRE(s, "no session");
        CHECK(pith_feed(s, 0, token, more ? 3 * PAGE : (size_t)n, &err) == PITH_OK);
        pith_session_close(s);
        s = open_session(m, folder, 0);
        pith_session *other = open_session(m, folder, 0);
        REQUIRE(s && other, "no session");
        s->store.piece = 1;
        w.go_on = so_often;
        w.ctx = &left;
        CHECK(pith_work_begin(&w, &err) == PITH_OK);
        CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK);
        pith_work_end(&w);
        CHECK_MSG(w.stop && kept == PAGE, "%zu tokens", kept);
        if (more)
            CHECK(pith_feed(other, 0, token, (size_t)n, &err) == PITH_OK);
        pith_session_close(other);
        while (store_disk_wait(s->store.disk)) /* it marks what was read as used */
            ;
        if (!more)
            each_file(remove_file);
        CHECK(pith_reuse(s, 0, token, (size_t)n, &kept, &err) == PITH_OK);
        CHECK_MSG(kept == (more ? 5 : 1) * PAGE, "%zu tokens, the folder has %s", kept,
                  more ? "more" : "less");
        pith_session_close(s);
        each_file(remove_file);
    }
    pith_model_close(m);
    end();
}

/* All threads of the model read; one damaged page in the middle costs what comes after it. */
static void test_read_by_all(void)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    begin("gemma2");
    mp.n_threads = 4;
    mp.n_batch = 64;
    pith_model *m = pith_model_open(model_path[0], &mp, &err);
    pith_session *s = open_session(m, folder, 0), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh && s->store.n_readers == 4, "no session");
    ask(s, fresh, 0, 1);
    pith_session_close(s);
    for (int damaged = 0; damaged < 2; damaged++) {
        s = open_session(m, folder, 0);
        REQUIRE(s, "no session");
        int32_t kept = ask(s, fresh, 0, 1);
        CHECK_MSG(kept == (damaged ? 128 : 320), "%d taken", kept);
        struct store_entry *e = &s->store.entry[0];
        for (int32_t i = 0; i < s->store.cap; i++) /* the third page */
            if (s->store.entry[i].used && s->store.entry[i].token[0] == (128 * 7 + 2) % N_VOCAB)
                e = &s->store.entry[i];
        char path[400];
        snprintf(path, sizeof path, "%s/%016llx%016llx-%d.page", folder,
                 (unsigned long long)e->key[0], (unsigned long long)e->key[1],
                 s->cache.group[0].span ? 1 : 0);
        pith_session_close(s);
        if (!damaged)
            flip(path);
    }
    pith_session_close(fresh);
    pith_model_close(m);
    end();
}

/* ---------------------------------------------------------------- who computes */

struct how {
    const char *far, *cpus, *tensor_split; /* far devices; CPU devices; of columns over two
                                              far ones, of layers over two CPUs */
    int32_t gpu_layers, cpu_experts, reproducible, n_threads;
};

/* Positions of the first prompt that a session of a model opened so takes from the folder; all are
 * there afterwards. */
static int32_t taken_by(const struct how *h)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = h->n_threads ? h->n_threads : 1;
    mp.n_batch = 64;
    mp.gpu_layers = h->gpu_layers;
    mp.cpu_experts = h->cpu_experts;
    mp.reproducible = h->reproducible;
    mp.split = h->tensor_split && h->far ? PITH_SPLIT_TENSOR : mp.split;
    mp.tensor_split = h->tensor_split;
    if (h->far)
        setenv("PITH_FAR_DEVICES", h->far, 1);
    if (h->cpus)
        setenv("PITH_CPU_DEVICES", h->cpus, 1);
    pith_model *m = pith_model_open(model_path[0], &mp, &err);
    CHECK_MSG(m, "%s", err.msg);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_CPU_DEVICES");
    int32_t token[N_CTX], n = prompt(token, 1);
    size_t kept = 0;
    pith_session *s = open_session(m, folder, 0);
    if (s)
        CHECK_MSG(pith_prefix(s, 0, token, (size_t)n, &kept, &err) == PITH_OK, "%s", err.msg);
    pith_session_close(s); /* waits for the writer */
    pith_model_close(m);
    return (int32_t)kept;
}

#define HOW(...) (&(struct how){__VA_ARGS__})
#define FAR      .far = "1", .gpu_layers = 99

/* Pages are taken by who would compute the same bits: products elsewhere, kernels for any rows, or
 * other sums over columns make others. */
static void test_who_computes(void)
{
    if (getenv("PITH_LAYER_DEVICES"))
        SKIP("hardware: the devices of layers are told");
    experts = 1;
    begin("qwen3moe");
    experts = 0;
    CHECK(taken_by(HOW(FAR, .cpu_experts = -1)) == 0);
    CHECK(taken_by(HOW(FAR, .cpu_experts = -1)) == 320);
    CHECK_MSG(taken_by(HOW(FAR)) == 0, "experts elsewhere");
    CHECK(taken_by(HOW(FAR)) == 320);
    CHECK_MSG(taken_by(HOW(FAR, .reproducible = 1)) == 0, "kernels for any rows");
    CHECK(taken_by(HOW(FAR, .reproducible = 1)) == 320);
    end();
    wide = 1;
    begin("llama");
    wide = 0;
    CHECK(taken_by(HOW(.far = "2", .gpu_layers = 99, .tensor_split = "1,1")) == 0);
    CHECK(taken_by(HOW(.far = "2", .gpu_layers = 99, .tensor_split = "1,1")) == 320);
    CHECK_MSG(taken_by(HOW(.far = "2", .gpu_layers = 99, .tensor_split = "3,1")) == 0,
              "columns divided elsewhere");
    CHECK(taken_by(HOW(.n_threads = 1)) == 0);
    CHECK(taken_by(HOW(.n_threads = 2)) == 320);
    CHECK(taken_by(HOW(.reproducible = 1)) == 320);
    CHECK(taken_by(HOW(.far = "1", .gpu_layers = PITH_GPU_LAYERS_NONE)) == 320);
    CHECK(taken_by(HOW(.cpus = "2", .tensor_split = "0,1")) == 320);
    end();
}

/* ---------------------------------------------------------------- memory that is planned */

static uint64_t cache_used(void)
{
    struct pith_memory_report r = PITH_MEMORY_REPORT_INIT;
    CHECK(pith_memory(&r) == PITH_OK);
    return r.used[PITH_MEM_CACHE];
}

/* Beside pages and the list of their changes: what a plan has, and what a session of it takes when
 * its sequence is full and has been edited. */
static void beside_pages(const char *dir, uint64_t *planned, uint64_t *taken)
{
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT;
    int32_t token[4096];
    mp.n_threads = 4;
    mp.n_batch = 512;
    pith_model *m = pith_model_open(model_path[0], &mp, &err);
    REQUIRE(m, "%s", err.msg);
    sp.n_ctx = 4096;
    sp.store_bytes = 16 << 20;
    sp.store_dir = dir;
    CHECK_MSG(pith_plan_session(m, &sp, &plan, &err) == PITH_OK, "%s", err.msg);
    uint64_t before = cache_used();
    pith_session *s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    for (int32_t i = 0; i < sp.n_ctx; i++)
        token[i] = i % N_VOCAB;
    CHECK(pith_feed(s, 0, token, 4096, &err) == PITH_OK);
    CHECK(pith_remove(s, 0, 10, 20, &err) == PITH_OK &&
          pith_feed(s, 0, token, 1, &err) == PITH_OK);
    *planned = (uint64_t)plan.cache_bytes - cache_limit(&s->cache);
    *taken = cache_used() - before - cache_bytes(&s->cache) -
             s->cache.log->cap * sizeof *s->cache.log->op;
    pith_session_close(s);
    pith_model_close(m);
}

/* A plan knows of a folder's buffers, and of what edits are written in. */
static void test_planned(void)
{
    enum { HEADS = 2048 }; /* of blocks of memory */
    uint64_t planned[2], taken[2];
    head_dim = 256;
    begin("llama");
    head_dim = 0;
    for (int dir = 0; dir < 2; dir++) {
        beside_pages(dir ? folder : NULL, &planned[dir], &taken[dir]);
        CHECK_MSG(planned[dir] + HEADS >= taken[dir], "%llu bytes planned, %llu taken%s",
                  (unsigned long long)planned[dir], (unsigned long long)taken[dir],
                  dir ? " with a folder" : "");
    }
    CHECK_MSG(taken[1] > taken[0] + (256 << 10), "a folder takes %llu bytes",
              (unsigned long long)(taken[1] - taken[0]));
    printf("# beside pages: %llu bytes planned, %llu taken; with a folder %llu and %llu\n",
           (unsigned long long)planned[0], (unsigned long long)taken[0],
           (unsigned long long)planned[1], (unsigned long long)taken[1]);
    end();
}

/* ---------------------------------------------------------------- a disk that is full, or not ours
 */

static void limited(const char *what, const char *dir, int64_t limit, const char *told)
{
    char text[8192];
    pith_model *m = open_model(0);
    pith_session *s = open_session(m, dir, limit), *fresh = open_session(m, NULL, 0);
    REQUIRE(s && fresh, "no session");
    ask(s, fresh, 0, 1);
    while (store_disk_wait(s->store.disk))
        ;
    CHECK_MSG(ask(s, fresh, 1, 1) == 320, "%s: memory does not serve", what);
    report(s, text, sizeof text);
    CHECK_MSG(strstr(text, told), "%s: %.400s", what, text);
    pith_report(s, 1, text, sizeof text);
    CHECK(strstr(text, "\"store_dir\": {\"path\": "));
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
}

/* In a child, which is nobody if it was the superuser, who may write anywhere. */
static void unwritable(void)
{
    int status = -1;
    chmod(folder, 0555);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int before = test_bad;
        if (geteuid() == 0 && setuid(65534))
            _exit(2);
        limited("a folder that cannot be written", folder, 0, "Permission denied");
        fflush(stdout);
        _exit(test_bad != before);
    }
    waitpid(pid, &status, 0);
    chmod(folder, 0755);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        printf("# cannot change the user: a folder that cannot be written was not tried\n");
    else
        CHECK_MSG(status == 0 && look() == 0, "status %d, %d files", status, n_files);
}

static void refused(const char *dir, const char *told)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    pith_model *m = open_model(0);
    sp.store_dir = dir;
    CHECK(m && !pith_session_open(m, &sp, &err));
    CHECK_MSG(err.code == PITH_MISSING && strstr(err.msg, dir) && strstr(err.msg, told), "%s",
              err.msg);
    pith_model_close(m);
}

/* A store in memory that holds no page has nothing to write: that is said, not ignored. */
static void too_small(void)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    char least[40];
    pith_model *m = open_model(0);
    sp.store_dir = folder;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    int64_t one = s->cache.group[0].page_bytes;
    pith_session_close(s);
    snprintf(least, sizeof least, "take %lld; wanted at least", (long long)one);
    sp.store_bytes = one - 1;
    s = pith_session_open(m, &sp, &err);
    CHECK_MSG(!s && err.code == PITH_RANGE && strstr(err.msg, folder) && strstr(err.msg, least),
              "%s", s ? "opened" : err.msg);
    pith_session_close(s);
    sp.store_bytes = one;
    s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s, "%s", err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_no_room(void)
{
    char missing[100];
    begin("llama");
    snprintf(missing, sizeof missing, "%s/no/such", folder);
    refused(missing, "cannot make it: No such file");
    refused(model_path[0], "cannot open it: Not a directory");
    too_small();
    limited("a limit below a page", folder, 100, "the limit is 100");
    CHECK(look() == 0);
    limited("a limit of three pages", folder, 3 * 6000, "pages written");
    CHECK_MSG(look() && n_bytes <= 3 * 6000, "%lld bytes", (long long)n_bytes);
    each_file(remove_file);
    /* As on a full disk: no file gets beyond 1,000 bytes. */
    struct rlimit was, low;
    getrlimit(RLIMIT_FSIZE, &was);
    low = was;
    low.rlim_cur = 1000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    pid_t pid = fork();
    if (pid == 0) {
        int before = test_bad;
        setrlimit(RLIMIT_FSIZE, &low);
        limited("a full disk", folder, 0, "failed (first: ");
        fflush(stdout);
        _exit(test_bad != before);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    signal(SIGXFSZ, handler);
    CHECK_MSG(status == 0 && look() == 0, "status %d, %d files", status, n_files);
    unwritable();
    limited("a folder of the kernel", "/proc/self", 0, "failed (first: ");
    end();
}

int main(void)
{
    TEST(test_killed); /* forks: before any thread is started */
    TEST(test_killed_recurrent);
    TEST(test_two_processes);
    TEST(test_limit_of_all);
    TEST(test_no_room);
    TEST(test_written_once);
    TEST(test_backs_off);
    TEST(test_orphan);
    TEST(test_foreign);
    TEST(test_private);
    TEST(test_cancelled);
    TEST(test_in_pieces);
    TEST(test_other_folder);
    TEST(test_read_by_all);
    TEST(test_damage);
    TEST(test_damaged_folder);
    TEST(test_forged);
    TEST(test_prepared);
    TEST(test_other_model);
    TEST(test_two);
    TEST(test_many_groups);
    TEST(test_who_computes);
    TEST(test_planned);
    return test_end();
}
