/* test_load.c -- where weights live: mapped, packed, and packed in a copy that an earlier start
 * kept. All give the same bits; whatever happens to the copy, its source, its folder or its writer,
 * a model opens, computes the same, and says what it found. */
#include "base/machine/folder.h"
#include "robust.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

static const struct tiny tinies[] = {
    {"llama", "q4_0", 64, 2, 32, 96, 72, 0, 0, 2, 1},
    {"llama", "q8_0", 64, 2, 32, 96, 75, 0, 1, 2, 1},
    {"qwen3", "q4_K", 256, 1, 8, 256, 40, 0, 1, 1, 1},
    {"llama", "q6_K", 256, 1, 8, 256, 40, 0, 0, 1, 1},
    {"qwen2", "f16", 48, 2, 16, 80, 70, 0, 0, 2, 1},
    {"gemma3", "bf16", 48, 2, 16, 80, 70, 0, 1, 2, 1},
    {"llama", "f32", 48, 2, 16, 80, 130, 0, 0, 2, 1},
    {"qwen3moe", "q5_1", 64, 2, 32, 96, 72, 4, 0, 2, 1},
    {"llama", "q3_K", 256, 1, 8, 256, 40, 0, 0, 1, 1},
    {"qwen2", "mxfp4", 64, 2, 32, 96, 72, 0, 0, 1, 1},
    {"qwen3moe", "f16", 48, 2, 16, 80, 70, 4, 0, 1, 1},
    {"llama", "iq4_xs", 256, 1, 8, 256, 40, 0, 1, 1, 1},
};
enum { N_TINIES = sizeof tinies / sizeof tinies[0], N_LOGITS = 256, N_TOKENS = 20 };

/* ---------------------------------------------------------------- one start */

struct start {
    struct pith_model_params params;
    pith_status st;
    int from_copy; /* the report says that the copy is mapped */
    char note[512];
    float logits[3 * N_LOGITS]; /* after a prefill and two tokens */
};

static struct start start_with(const char *dir)
{
    struct start s = {.params = PITH_MODEL_PARAMS_INIT};
    s.params.cache_dir = dir;
    s.params.n_threads = 2;
    return s;
}

static void run_tokens(struct start *s, pith_model *m)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    int32_t tokens[N_TOKENS];
    char report[8192];
    pith_session *session = pith_session_open(m, NULL, &err);
    if (!session) {
        s->st = err.code;
        return;
    }
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 7 + 3) % 40;
    pith_model_get_info(m, &info, NULL);
    snprintf(s->note, sizeof s->note, "%s", info.note ? info.note : "");
    for (int i = 0; i < 3 && s->st == PITH_OK; i++) {
        s->st = pith_feed(session, 0, i ? tokens + i : tokens, i ? 1 : N_TOKENS, &err);
        if (s->st == PITH_OK)
            memcpy(s->logits + i * N_LOGITS, pith_logits(session, 0),
                   (size_t)info.n_vocab * sizeof(float));
    }
    pith_report(session, 0, report, sizeof report);
    s->from_copy = strstr(report, "packed weights mapped from ") != NULL;
    pith_session_close(session);
}

static void start(struct start *s, const char *path)
{
    struct pith_error err;
    s->note[0] = 0;
    s->from_copy = 0;
    s->st = PITH_OK;
    pith_model *m = pith_model_open(path, &s->params, &err);
    if (m)
        run_tokens(s, m);
    else
        s->st = err.code;
    pith_model_close(m);
}

static int same_logits(const struct start *a, const struct start *b)
{
    return !memcmp(a->logits, b->logits, sizeof a->logits);
}

/* Starts with the temporary folder and checks what came of it: the logits of *want; the copy used
 * or not; `note` in what is said, "" for nothing. */
static void expect(const char *what, const char *path, const struct start *want, int from_copy,
                   const char *note)
{
    struct start s = start_with(tmp_dir);
    start(&s, path);
    CHECK_MSG(s.st == PITH_OK, "%s: status %d", what, (int)s.st);
    CHECK_MSG(same_logits(&s, want), "%s: other logits", what);
    CHECK_MSG(s.from_copy == from_copy, "%s: the copy was %sused", what, s.from_copy ? "" : "not ");
    CHECK_MSG(*note ? strstr(s.note, note) != NULL : !s.note[0], "%s: note \"%s\", wanted \"%s\"",
              what, s.note, note);
}

/* ---------------------------------------------------------------- the folder */

/* Files in the folder whose names hold `part`; the last one's path, and `remove` them. */
static int folder(const char *part, char *path, int remove)
{
    DIR *d = opendir(tmp_dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, part)) {
            char one[512];
            snprintf(one, sizeof one, "%s/%s", tmp_dir, e->d_name);
            if (path)
                strcpy(path, one);
            if (remove && unlink(one))
                rmdir(one);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

/* A model, its logits, and its copy in an otherwise empty folder; 0: not possible here. */
static int prepare(const struct tiny *t, char *path, struct start *want, char *copy)
{
    const char *p = tiny_write(t, 5);
    if (!p)
        return 0;
    strcpy(path, p);
    folder(".packed", NULL, 1);
    *want = start_with(NULL);
    start(want, path);
    expect("the first start", path, want, 0, "");
    return folder(".packed", copy, 0) == 1;
}

static int disk_is_full(void)
{
    struct statvfs fs;
    return statvfs(tmp_dir, &fs) || (fs.f_bavail - ((16 << 20) / fs.f_frsize)) < fs.f_blocks / 10;
}
#define NEED_ROOM                                                                                  \
    if (disk_is_full())                                                                            \
    SKIP("less than a tenth of the file system of %s is free", tmp_dir)

/* ---------------------------------------------------------------- tests */

static void same_bits(void)
{
    NEED_ROOM;
    for (int i = 0; i < N_TINIES; i++) {
        char path[256], copy[512];
        struct start want, mapped = start_with(NULL);
        REQUIRE(prepare(&tinies[i], path, &want, copy), "%s: no copy", tiny_name(&tinies[i]));
        expect(tiny_name(&tinies[i]), path, &want, 1, "");
        mapped.params.weights = PITH_WEIGHTS_MAPPED;
        mapped.params.cache_dir = tmp_dir; /* nothing is packed, nothing is kept */
        start(&mapped, path);
        CHECK_MSG(mapped.st == PITH_OK && same_logits(&mapped, &want) && !mapped.from_copy &&
                      !mapped.note[0],
                  "%s mapped", tiny_name(&tinies[i]));
        CHECK(folder(".packed", NULL, 0) == 1 && folder(".tmp-", NULL, 0) == 0);
    }
    check_nothing_held("all residences");
}

enum { STAMP = 64 }; /* in the head: time of change, inode, time of reading, u64 each */

static int checked(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    (void)fraction, (void)bytes;
    *(int *)ctx += !strcmp(stage, "check");
    return 1;
}

/* Was the copy read whole by this start, which uses it? */
static void reads_all(const char *what, const char *path, const struct start *want, int reads)
{
    struct start s = start_with(tmp_dir);
    int n = 0;
    s.params.progress = checked;
    s.params.progress_ctx = &n;
    start(&s, path);
    CHECK_MSG(s.st == PITH_OK && same_logits(&s, want) && s.from_copy && !s.note[0] && !n == !reads,
              "%s: status %d, %d steps of checking, note \"%s\"", what, (int)s.st, n, s.note);
}

/* A copy is read whole once; then no more until it is written to, copied, or a month is over.
 * Damage is found then. */
static void read_once(void)
{
    char path[256], copy[512], other[2200];
    struct start want;
    struct stat sb;
    uint64_t stamp[3];
    size_t n;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    reads_all("the first that uses it", path, &want, 1);
    for (int i = 0; i < 3; i++)
        reads_all("the next ones", path, &want, 0);
    uint8_t *p = file_bytes(copy, &n);
    REQUIRE(p && stat(copy, &sb) == 0, "the copy cannot be read");
    memcpy(stamp, p + STAMP, sizeof stamp);
    CHECK((int64_t)stamp[0] == (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec &&
          stamp[1] == (uint64_t)sb.st_ino && stamp[2] <= stamp[0]);
    CHECK(file_put(copy, p, n)); /* the same bytes, but who knows */
    reads_all("written to", path, &want, 1);
    reads_all("and read", path, &want, 0);
    snprintf(other, sizeof other, "cp -p %s %s.x && mv %s.x %s", copy, copy, copy, copy);
    CHECK(system(other) == 0);
    reads_all("copied with its times", path, &want, 1);
    CHECK(stat(copy, &sb) == 0);
    for (int future = 0; future < 2; future++) { /* read too long ago, or at no possible time */
        int fd = open(copy, O_RDWR);
        CHECK(fd >= 0 && pread(fd, stamp, sizeof stamp, STAMP) == (ssize_t)sizeof stamp);
        stamp[2] += future ? UINT64_C(1) << 60 : 0 - UINT64_C(31) * 86400 * 1000000000;
        struct timespec when = {.tv_sec = (time_t)(stamp[0] / 1000000000),
                                .tv_nsec = (long)(stamp[0] % 1000000000)};
        CHECK(pwrite(fd, stamp, sizeof stamp, STAMP) == (ssize_t)sizeof stamp &&
              futimens(fd, (const struct timespec[2]){when, when}) == 0 && close(fd) == 0);
        reads_all("a stamp that is not believed", path, &want, 1);
    }
    reads_all("in the end", path, &want, 0);
    free(p);
    check_nothing_held("stamps");
}

static int refuse(void *ctx, const char *what, double part, uint64_t bytes)
{
    (void)ctx, (void)what, (void)part, (void)bytes;
    return 0;
}

/* A start that is cancelled has driven no other model's copy out, also where it asked beforehand
 * whether its own could be kept. */
static void cancelled_start(void)
{
    char path[256], copy[512], ours[512];
    struct start want, s = start_with(tmp_dir);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy) && unlink(copy) == 0, "no copy");
    snprintf(ours, sizeof ours, "%s/0123456789abcdef.packed", tmp_dir);
    uint8_t *big = calloc(1, 3 << 20);
    CHECK(big && file_put(ours, big, 3 << 20));
    s.params.cache_limit = 4 << 20;
    s.params.weights = PITH_WEIGHTS_LATER;
    s.params.progress = refuse;
    start(&s, path);
    CHECK(s.st == PITH_CANCELLED && !access(ours, F_OK) && access(copy, F_OK));
    s.params.progress = NULL;
    start(&s, path);
    CHECK(s.st == PITH_OK && access(ours, F_OK) && !access(copy, F_OK));
    free(big);
}

/* Names that are not exactly a copy's are somebody else's. */
static void foreign_files(void)
{
    static const char *const foreign[] = {
        "manual.packed",           "0123456789abcdef0.packed",    "0123456789abcde.packed",
        "0123456789abcdeF.packed", "0123456789abcdef.packed.old", "my.packed.tmp-1-2"};
    enum { N = sizeof foreign / sizeof *foreign };
    char path[256], copy[512], one[512], ours[512];
    struct start want, s = start_with(tmp_dir);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy) && unlink(copy) == 0, "no copy");
    snprintf(ours, sizeof ours, "%s/0123456789abcdef.packed", tmp_dir);
    uint8_t *big = calloc(1, 3 << 20);
    CHECK(big && file_put(ours, big, 3 << 20));
    for (int i = 0; i < N; i++) {
        snprintf(one, sizeof one, "%s/%s", tmp_dir, foreign[i]);
        CHECK(big && file_put(one, big, 3 << 20));
    }
    s.params.cache_limit = 4 << 20;
    start(&s, path);
    CHECK_MSG(s.st == PITH_OK && access(ours, F_OK) && !access(copy, F_OK), "note \"%s\"", s.note);
    for (int i = 0; i < N; i++) {
        snprintf(one, sizeof one, "%s/%s", tmp_dir, foreign[i]);
        CHECK_MSG(unlink(one) == 0, "%s", one);
    }
    free(big);
}

/* While another process writes a copy to the folder nobody else does, so that its limit holds; nor
 * is anything removed for it. */
static void locked_folder(void)
{
    char path[256], copy[512];
    struct start want;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy) && unlink(copy) == 0, "no copy");
    int lock = folder_lock_open(tmp_dir);
    REQUIRE(lock >= 0 && folder_lock_take(lock), "no lock");
    expect("a folder that is being written to", path, &want, 0, "another process is writing one");
    CHECK(folder(".packed", NULL, 0) == 0);
    folder_lock_close(lock);
    expect("afterwards", path, &want, 0, "");
    expect("and the next", path, &want, 1, "");
}

/* What is wrong with the copy is said once, and the copy is made anew. */
static void repaired(const char *what, const char *path, const struct start *want, const char *note)
{
    expect(what, path, want, 0, note);
    expect("the start after it", path, want, 1, "");
}

static void flip(const char *copy, uint64_t at)
{
    size_t n;
    uint8_t *p = file_bytes(copy, &n);
    if (p && at < n) {
        p[at] ^= (uint8_t)(1 << at % 8);
        CHECK(file_put(copy, p, n));
    }
    free(p);
}

/* What lies under a copy's name and is no file is neither followed nor written to. */
static void copies_are_files(void)
{
    char path[256], copy[512], victim[300];
    struct start want, s = start_with(tmp_dir);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    snprintf(victim, sizeof victim, "%s/victim", tmp_dir);
    for (int pipe = 0; pipe < 2; pipe++) {
        CHECK(file_put(victim, (const uint8_t *)"mine", 4) && unlink(copy) == 0);
        CHECK((pipe ? mkfifo(copy, 0600) : symlink(victim, copy)) == 0);
        start(&s, path);
        CHECK_MSG(s.st == PITH_OK && strstr(s.note, pipe ? "pipe" : "a link"), "told: %s", s.note);
        size_t n = 0;
        uint8_t *is = file_bytes(victim, &n);
        CHECK_MSG(n == 4 && is && !memcmp(is, "mine", 4), "the file that is named has %zu bytes",
                  n);
        free(is);
        unlink(victim);
    }
    unlink(copy);
    check_nothing_held("no copies");
}

static void damaged_copy(void)
{
    static const struct {
        int at;
        const char *note;
    } flips[] = {
        {0, "is no packed copy"}, {8, "another version"}, {12, "another version"},
        {16, "is damaged"},       {24, "another length"}, {32, "cut short"},
        {40, "is damaged"},       {48, "is damaged"},     {60, "is damaged"},
        {127, "is damaged"},      {128, "is damaged"},    {190, "is damaged"},
        {199, "is damaged"},
    };
    static const int64_t cuts[] = {1,       127,           128, 1000,
                                   2 << 20, (2 << 20) + 1, -1,  -64}; /* negative: from the end */
    char path[256], copy[512], what[64];
    struct start want;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        snprintf(what, sizeof what, "byte %d turned", flips[i].at);
        flip(copy, (uint64_t)flips[i].at);
        repaired(what, path, &want, flips[i].note);
    }
    size_t n, now;
    uint8_t *good = file_bytes(copy, &n);
    REQUIRE(good && n > 4096, "the copy cannot be read");
    for (long i = 0; i < 4 + 4 * test_scale();
         i++) { /* anywhere in the data; its last byte first */
        uint64_t at = i ? (2u << 20) + (uint64_t)i * 7919 % (n - (2u << 20)) : n - 1;
        snprintf(what, sizeof what, "byte %llu turned", (unsigned long long)at);
        flip(copy, at);
        repaired(what, path, &want, "checksum of a matrix");
    }
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        size_t to = cuts[i] < 0 ? n - (size_t)-cuts[i] : (size_t)cuts[i];
        snprintf(what, sizeof what, "cut to %zu bytes", to);
        CHECK(file_put(copy, good, to));
        repaired(what, path, &want, "cut short");
    }
    CHECK(file_put(copy, good, 0));
    repaired("cut to nothing", path, &want, "is empty");
    uint8_t *made = file_bytes(copy, &now);
    for (int i = STAMP; made && i < STAMP + 24; i++) /* when and where they were read */
        made[i] = good[i];
    CHECK_MSG(made && now == n && !memcmp(made, good, n), "a copy made anew is not the first one");
    free(made);
    free(good);
    check_nothing_held("damaged copies");
}

/* Another model's copy under this one's name; something that is no file there. */
static void foreign_copy(void)
{
    char path[256], copy[512], path2[256], copy2[512];
    struct start want, want2;
    size_t n;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[1], path2, &want2, copy2), "no copy");
    uint8_t *other = file_bytes(copy2, &n);
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    CHECK(strcmp(copy, copy2) != 0 && file_put(copy, other, n));
    free(other);
    repaired("another model's copy", path, &want, "another length");
    CHECK(unlink(copy) == 0 && mkdir(copy, 0700) == 0);
    expect("a folder in its place", path, &want, 0, "is a directory");
    CHECK(rmdir(copy) == 0);
    expect("nothing in its place", path, &want, 0, "");
    expect("and then", path, &want, 1, "");
}

static void changed_source(void)
{
    char path[256], copy[512], moved[300];
    struct start want, changed = start_with(NULL);
    struct stat sb;
    size_t n;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    snprintf(moved, sizeof moved, "%s-moved", path);
    CHECK(rename(path, moved) == 0);
    expect("a moved source", moved, &want, 1, "");
    CHECK(rename(moved, path) == 0 && stat(path, &sb) == 0);
    uint8_t *p = file_bytes(path, &n);
    REQUIRE(p, "the model cannot be read");
    p[n - 100] ^= 1; /* in the last matrix */
    CHECK(file_put(path, p, n));
    struct timespec when[2] = {sb.st_mtim, sb.st_mtim};
    CHECK(utimensat(AT_FDCWD, path, when, 0) == 0); /* only its contents differ */
    start(&changed, path);
    CHECK(!same_logits(&changed, &want));
    repaired("a changed byte", path, &changed, "another state of the model");
    when[1].tv_sec += 10; /* only its time differs */
    CHECK(utimensat(AT_FDCWD, path, when, 0) == 0);
    repaired("another time", path, &changed, "another state of the model");
    CHECK(folder(".packed", NULL, 0) == 1);
    free(p);
}

static void no_folder(void)
{
    char path[256], copy[512];
    struct start want, s;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    const char *bad[] = {tmp_path("absent"), path, ""};
    for (int i = 0; i < 3; i++) {
        s = start_with(bad[i]);
        start(&s, path);
        CHECK_MSG(s.st == PITH_OK && same_logits(&s, &want) && strstr(s.note, "not kept"),
                  "folder \"%s\": status %d, note \"%s\"", bad[i], (int)s.st, s.note);
    }
}

static void folder_name_too_long(void)
{
    char path[256], copy[512];
    static char name[6000];
    struct start want, s = start_with(name);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    memset(name, 'a', sizeof name - 1);
    start(&s, path);
    CHECK_MSG(s.st == PITH_RANGE, "status %d", (int)s.st);
    check_nothing_held("a name too long");
}

static void unwritable_folder(void)
{
    char path[256], copy[512];
    struct start want;
    int status = -1;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    folder(".packed", NULL, 1);
    chmod(tmp_dir, 0555);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { /* root may write to every folder: as nobody */
        int before = test_bad;
        if (geteuid() == 0 && setuid(65534))
            _exit(2);
        expect("a folder that may not be written", path, &want, 0, "cannot create");
        fflush(stdout);
        _exit(test_bad != before);
    }
    waitpid(pid, &status, 0);
    chmod(tmp_dir, 0700);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        SKIP("cannot change the user");
    CHECK_MSG(status == 0, "status %d", status);
}

/* A child that starts with `params`; its exit status, or 1000 + the signal that ended it. */
static int child(const char *path, const struct start *want,
                 int (*progress)(void *, const char *, double, uint64_t), rlim_t most)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {most, most};
        signal(SIGXFSZ, SIG_IGN);
        if (most)
            setrlimit(RLIMIT_FSIZE, &limit);
        struct start s = start_with(tmp_dir);
        s.params.progress = progress;
        start(&s, path);
        _exit(s.st != PITH_OK                       ? 2
              : !same_logits(&s, want)              ? 3
              : most && !strstr(s.note, "not kept") ? 4
                                                    : 0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A full disk, as the limit on a file's size shows it: nothing is left behind. */
static void full_disk(void)
{
    char path[256], copy[512];
    struct start want;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    static const rlim_t most[] = {1, 100, 1 << 20, (2 << 20) + 100};
    for (int i = 0; i < 4; i++) {
        folder(".packed", NULL, 1);
        CHECK_MSG(child(path, &want, NULL, most[i]) == 0, "with at most %ld bytes", (long)most[i]);
        CHECK_MSG(folder(".packed", NULL, 0) == 0, "at most %ld bytes: something is left",
                  (long)most[i]);
    }
}

static int die_while_keeping(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    (void)ctx, (void)fraction, (void)bytes;
    if (!strcmp(stage, "keep"))
        kill(getpid(), SIGKILL);
    return 1;
}

static void killed_writer(void)
{
    char path[256], copy[512];
    struct start want;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    folder(".packed", NULL, 1);
    CHECK(child(path, &want, die_while_keeping, 0) == 1000 + SIGKILL);
    CHECK(folder(".tmp-", NULL, 0) == 1 && folder(".packed", NULL, 0) == 1);
    expect("after a killed writer", path, &want, 0, "");
    CHECK_MSG(folder(".tmp-", NULL, 0) == 0, "what it left is still there");
    expect("and then", path, &want, 1, "");
}

static int refuse_to_check(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    (void)ctx, (void)fraction, (void)bytes;
    return strcmp(stage, "check") != 0;
}

static int refuse_to_keep(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    (void)ctx, (void)fraction, (void)bytes;
    return strcmp(stage, "keep") != 0;
}

static void cancelled(void)
{
    char path[256], copy[512];
    struct start want, s = start_with(tmp_dir);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    s.params.progress = refuse_to_check;
    start(&s, path);
    CHECK(s.st == PITH_CANCELLED && folder(".packed", NULL, 0) == 1);
    check_nothing_held("a cancelled check");
    folder(".packed", NULL, 1);
    s.params.progress = refuse_to_keep;
    start(&s, path);
    CHECK(s.st == PITH_CANCELLED && folder(".packed", NULL, 0) == 0);
    check_nothing_held("a cancelled copy");
}

/* Several processes at once find nothing, write, and read what another has written; all finish, the
 * copy is whole. */
static void writers_at_once(void)
{
    enum { WRITERS = 6 };
    char path[256], copy[512];
    struct start want;
    NEED_ROOM;
    REQUIRE(prepare(&tinies[7], path, &want, copy), "no copy");
    for (long round = 0; round < 2 * test_scale(); round++) {
        folder(".packed", NULL, 1);
        fflush(stdout);
        pid_t pids[WRITERS];
        for (int i = 0; i < WRITERS; i++)
            if ((pids[i] = fork()) == 0)
                _exit(child(path, &want, NULL, 0));
        for (int i = 0, status; i < WRITERS; i++)
            CHECK_MSG(pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status) &&
                          !WEXITSTATUS(status),
                      "writer %d", i);
        CHECK(folder(".packed", NULL, 0) == 1 && folder(".tmp-", NULL, 0) == 0);
        expect("after them", path, &want, 1, "");
    }
}

/* The folder's limit: too small for one; enough for one, so that the one unused for longest goes.
 */
static void limit(void)
{
    char path[3][256], copy[3][512];
    struct start want[3], s = start_with(tmp_dir);
    struct stat sb;
    NEED_ROOM;
    for (int i = 0; i < 3; i++)
        REQUIRE(prepare(&tinies[i], path[i], &want[i], copy[i]) && stat(copy[i], &sb) == 0,
                "no copy");
    for (int i = 0; i < 2; i++)
        expect("beside it", path[i], &want[i], 0, "");
    for (int i = 0; i < 3; i++) { /* the first is the oldest */
        struct timespec when[2] = {{.tv_sec = 1000000 + i}, {.tv_sec = 1000000 + i}};
        CHECK(utimensat(AT_FDCWD, copy[i], when, 0) == 0);
    }
    expect("used again", path[0], &want[0], 1, ""); /* so the second is */
    REQUIRE(tiny_write(&tinies[3], 5), "no model");
    s.params.cache_limit = 7 << 20; /* three of a little over 2 MiB */
    start(&s, tiny_write(&tinies[3], 5));
    CHECK_MSG(s.st == PITH_OK && !s.note[0] && folder(".packed", NULL, 0) == 3,
              "%d copies, note \"%s\"", folder(".packed", NULL, 0), s.note);
    CHECK(access(copy[0], F_OK) == 0 && access(copy[1], F_OK) != 0 && access(copy[2], F_OK) == 0);
    s.params.cache_limit = 1 << 20;
    start(&s, path[1]);
    CHECK_MSG(s.st == PITH_OK && same_logits(&s, &want[1]) && strstr(s.note, "limit"),
              "note \"%s\"", s.note);
    CHECK_MSG(folder(".packed", NULL, 0) == 3, "a copy that does not fit drove others out");
}

/* A tied embedding is the output matrix too, and held once; a copy that is mapped takes no memory
 * of ours but the vectors'. */
static void memory_plan(void)
{
    const struct tiny *t = &tinies[1];
    char path[256], copy[512];
    struct start want;
    struct pith_memory_report memory = PITH_MEMORY_REPORT_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    NEED_ROOM;
    REQUIRE(t->tied && prepare(t, path, &want, copy), "no copy");
    for (int mapped = 0; mapped < 2; mapped++) {
        struct start s = start_with(mapped ? tmp_dir : NULL);
        pith_model *m = pith_model_open(path, &s.params, &err);
        REQUIRE(m, "%s", err.msg);
        pith_model_get_info(m, &info, NULL);
        pith_memory(&memory);
        pith_model_close(m);
        uint64_t most = mapped ? 4096 : info.weight_bytes + 4096;
        CHECK_MSG(memory.used[PITH_MEM_WEIGHTS] <= most,
                  "%llu bytes of weights are held, at most %llu are needed",
                  (unsigned long long)memory.used[PITH_MEM_WEIGHTS], (unsigned long long)most);
    }
}

/* A number of kB in /proc/self/status. */
static long status_kb(const char *key)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            kb = strtol(line + strlen(key), NULL, 10);
    if (f)
        fclose(f);
    return kb;
}

/* Packing lets go of the source as it goes: at no time are both wholly resident. */
static void peak_memory(void)
{
    static const struct tiny large = {"llama", "q8_0", 512, 8, 64, 2048, 2000, 0, 1, 6, 1};
    struct stat sb;
    const char *path = UNDER_SANITIZER ? NULL : tiny_write(&large, 1);
    if (UNDER_SANITIZER)
        SKIP("a sanitizer's own memory is in the way");
    REQUIRE(path && !stat(path, &sb), "no model");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
        struct pith_error err;
        p.weights = PITH_WEIGHTS_PACKED;
        long before = status_kb("VmRSS:"), peak = 0;
        pith_model *m = pith_model_open(path, &p, &err);
        peak = status_kb("VmHWM:") - before;
        _exit(!m || before < 0
                  ? 2
                  : peak > sb.st_size / 1024 * 14 / 10 +
                               4096); /* 1.4, not 2: chunks are a part of so small a file */
    }
    int status = 0;
    CHECK_MSG(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
                  !WEXITSTATUS(status),
              "more than 1.4 times the file's %lld bytes were resident", (long long)sb.st_size);
}

/* The n-th allocation fails, for every n, with no copy there and with one. */
static void refused_memory(void)
{
    char path[256], copy[512];
    struct start want, s = start_with(tmp_dir);
    NEED_ROOM;
    REQUIRE(prepare(&tinies[0], path, &want, copy), "no copy");
    s.params.n_threads = 1;
    for (int there = 0; there < 2; there++)
        for (long n = 0, refused = 1; refused && n < 100000; n++) {
            if (!there)
                folder(".packed", NULL, 1);
            hook_refuse(n, 0);
            start(&s, path);
            refused = hook_grant();
            CHECK_MSG(s.st == PITH_OK ? same_logits(&s, &want) : s.st == PITH_NOMEM,
                      "allocation %ld: status %d", n, (int)s.st);
            check_nothing_held("refused memory");
        }
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(same_bits);
    TEST(copies_are_files);
    TEST(damaged_copy);
    TEST(foreign_copy);
    TEST(changed_source);
    TEST(no_folder);
    TEST(folder_name_too_long);
    TEST(unwritable_folder);
    TEST(full_disk);
    TEST(killed_writer);
    TEST(cancelled);
    TEST(writers_at_once);
    TEST(limit);
    TEST(read_once);
    TEST(foreign_files);
    TEST(cancelled_start);
    TEST(locked_folder);
    TEST(memory_plan);
    TEST(peak_memory);
    TEST(refused_memory);
    return test_end();
}
