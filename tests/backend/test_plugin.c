/* test_plugin.c -- the file of a GPU's kernels (backend/gpu/plugin.h): it is found where it may
 * lie, read whole or refused by name, and the CPU does not open it. No GPU is needed. */
#include "backend/gpu/plugin.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "hook.h"
#include "plugins.h"
#include "base/error.h"

#define BUILD "0123456789abcdef"

static char file[256]; /* tmp_dir/pith-toy.kernels */

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK_MSG(f && fwrite(p, 1, n, f) == n, "%s cannot be written", path);
    if (f)
        fclose(f);
}

/* A plug-in of two files as the build makes one. */
static void make(const char *path, const char *name, const char *build)
{
    char command[1200], part[2][160];
    for (int i = 0; i < 2; i++) {
        snprintf(part[i], sizeof part[i], "%s/%s.x.spv", tmp_dir, i ? "second" : "first");
        write_file(part[i], "kernels of a toy", i ? 16 : 7);
    }
    snprintf(command, sizeof command, "packaging/plugin.sh %s %s %s 12040 %s %s", path, name, build,
             part[0], part[1]);
    CHECK_MSG(system(command) == 0, "%s", command);
    unlink(part[0]);
    unlink(part[1]);
}

/* The status of opening it, and the error that says so. */
static pith_status status_of(const char *name, struct pith_error *err)
{
    struct plugin p;
    error_clear(err);
    pith_status st = plugin_open(name, BUILD, &p, err);
    CHECK_MSG(st == err->code && (st == PITH_OK) == (p.all != NULL), "status %d, code %d", (int)st,
              (int)err->code);
    plugin_close(&p);
    return st;
}

static void refused(const char *what, pith_status want, const char *says)
{
    struct pith_error err;
    pith_status st = status_of("toy", &err);
    CHECK_MSG(st == want && strstr(err.msg, says), "%s: status %d, wanted %d, \"%s\": %s", what,
              (int)st, (int)want, says, err.msg);
}

static void it_is_read(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct plugin p;
    make(file, "toy", BUILD);
    REQUIRE(plugin_open("toy", BUILD, &p, &err) == PITH_OK, "%s", err.msg);
    const struct plugin_file *a = plugin_find(&p, "first"), *b = plugin_find(&p, "second");
    CHECK(p.made == 12040 && p.n == 2 && !plugin_find(&p, "third"));
    REQUIRE(a && b, "a file is not found by its name");
    CHECK(a->n == 7 && !memcmp(a->p, "kernels", 7));
    CHECK(b->n == 16 && !memcmp(b->p, "kernels of a toy", 16));
    CHECK(((const char *)a->p - p.all) % 16 == 0 && ((const char *)b->p - p.all) % 16 == 0);
    plugin_close(&p);
}

/* Beside the program, in ../lib/pith, in PITH_PLUGINS: the first that is there. */
static void it_is_found(void)
{
    char name[24], own[512], lib[700], path[PLUGIN_PATH], want[3][1100];
    struct pith_error err = {PITH_OK, ""};
    snprintf(name, sizeof name, "toy%ld", (long)getpid());
    test_folder(own, sizeof own);
    char *real = realpath(own, NULL);
    REQUIRE(real, "%s", own);
    snprintf(want[0], sizeof want[0], "%s/pith-%s.kernels", real, name);
    *strrchr(real, '/') = 0;
    snprintf(lib, sizeof lib, "%s/lib", real);
    mkdir(lib, 0777);
    snprintf(lib, sizeof lib, "%s/lib/pith", real);
    mkdir(lib, 0777);
    snprintf(want[1], sizeof want[1], "%s/pith-%s.kernels", lib, name);
    snprintf(want[2], sizeof want[2], "%s/pith-%s.kernels", tmp_dir, name);
    for (int i = 0; i < 3; i++)
        make(want[i], name, BUILD);
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(plugin_path(name, path, &err) == PITH_OK && !strcmp(path, want[i]),
                  "found %s, wanted %s: %s", path, want[i], err.msg);
        unlink(want[i]);
    }
    rmdir(lib);
    for (int i = 0; i < 2; i++) {
        *strrchr(want[i], '/') = 0; /* the folders */
        set_env("PITH_PLUGINS", i ? tmp_dir : NULL);
        error_clear(&err);
        CHECK(plugin_path(name, path, &err) == PITH_MISSING);
        CHECK_MSG(strstr(err.msg, name) && strstr(err.msg, want[0]) && strstr(err.msg, lib) &&
                      strstr(err.msg, i ? tmp_dir : "PITH_PLUGINS names no folder"),
                  "%s", err.msg);
    }
    free(real);
}

/* No byte of it can change, and none can be missing. */
static void every_byte_counts(void)
{
    struct pith_error err;
    size_t n = 0;
    make(file, "toy", BUILD);
    char *all = test_read(file, &n);
    REQUIRE(all && n > 100, "%zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        all[i] ^= 1;
        write_file(file, all, n);
        CHECK_MSG(status_of("toy", &err) != PITH_OK && strstr(err.msg, file),
                  "byte %zu changed: %s", i, err.msg);
        all[i] ^= 1;
        write_file(file, all, i);
        CHECK_MSG(status_of("toy", &err) != PITH_OK && strstr(err.msg, file), "cut at %zu: %s", i,
                  err.msg);
    }
    write_file(file, all, n);
    CHECK_MSG(status_of("toy", &err) == PITH_OK, "%s", err.msg);
    FILE *f = fopen(file, "ab");
    fputc(0, f);
    fclose(f);
    refused("a byte too many", PITH_FORMAT, "is damaged: it has");
    free(all);
}

static void foreign_ones_are_named(void)
{
    make(file, "toy", "fedcba9876543210");
    refused("another build", PITH_UNSUPPORTED,
            "is of another build: its kernels are fedcba9876543210, this program's are " BUILD);
    make(file, "ball", BUILD);
    refused("another backend", PITH_UNSUPPORTED, "has kernels for ball, wanted for toy");
    write_file(file, "\177ELF\2\1\1", 7);
    refused("a library", PITH_FORMAT, "holds no kernels of pith");
    write_file(file, "pith-kernels 2 1", 16);
    refused("a later format", PITH_UNSUPPORTED, "it knows 1");
}

/* What a right checksum vouches for is looked at all the same. */
static void sealed(const char *what, const char *text)
{
    char command[700], body[160];
    snprintf(body, sizeof body, "%s/body", tmp_dir);
    write_file(body, text, strlen(text));
    snprintf(command, sizeof command,
             "bash -c 'read -r s n _ < <(cksum %s); "
             "{ printf \"pith-kernels 1 %%010u %%021u\\n\" $s $n; cat %s; } >%s'",
             body, body, file);
    CHECK_MSG(system(command) == 0, "%s", command);
    unlink(body);
    refused(what, PITH_FORMAT, "is damaged in its");
}

static void lists_are_not_trusted(void)
{
    char many[2000] = "toy " BUILD " 0\n";
    sealed("nothing", "");
    sealed("no numbers", "toy " BUILD " x\n\n");
    sealed("no second line", "toy");
    sealed("a file that is too long", "toy " BUILD " 0\na 17\n\n");
    sealed("one that wraps around", "toy " BUILD " 0\na 18446744073709551615\n\n");
    sealed("two that wrap around", "toy " BUILD " 0\na 9223372036854775807\nb 9223372036854775"
                                   "807\n\n");
    sealed("a negative one", "toy " BUILD " 0\na -1\n\n");
    sealed("no name", "toy " BUILD " 0\n 1\n\n");
    sealed("an open line", "toy " BUILD " 0\na 1");
    for (int i = 0; i <= PLUGIN_FILES; i++)
        strcat(many, "a 0\n");
    strcat(many, "\n");
    sealed("too many files", many);
}

static void unreadable(void)
{
    make(file, "toy", BUILD);
    chmod(file, 0);
    chmod(tmp_dir, 0755);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_bad = 0;
        if (geteuid() != 0 || seteuid(65534) == 0)
            refused("no permission", PITH_IO, "ermission");
        fflush(stdout);
        _exit(test_bad != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_MSG(status == 0, "the child ended with %d", status);
    unlink(file);
    CHECK(mkdir(file, 0777) == 0);
    refused("a folder", PITH_IO, "no regular file");
    rmdir(file);
    CHECK(mkfifo(file, 0666) == 0);
    refused("a pipe", PITH_IO, "no regular file");
    unlink(file);
    write_file(file, "", 0);
    refused("an empty file", PITH_FORMAT, "holds no kernels of pith");
}

/* Of no account afterwards, whatever allocation fails. */
static void memory_is_given_back(void)
{
    struct pith_error err;
    make(file, "toy", BUILD);
    for (long i = 0;; i++) {
        hook_refuse(i, 0);
        pith_status st = status_of("toy", &err);
        if (!hook_grant()) {
            CHECK_MSG(st == PITH_OK && i > 0, "%s", err.msg);
            break;
        }
        CHECK_MSG(st == PITH_NOMEM, "status %d: %s", (int)st, err.msg);
    }
    check_nothing_held("a plug-in");
}

static int opens(int watch)
{
    char event[4096];
    return read(watch, event, sizeof event) > 0;
}

/* A model on the CPU: no file of kernels is opened, none of the libraries that devices need. */
static void the_cpu_opens_nothing(void)
{
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    char model[200], line[512];
    int32_t token = 1;
    snprintf(model, sizeof model, "%s/model.gguf", tmp_dir);
    sp.arch = "llama";
    sp.n_layer = 1;
    sp.n_embd = 32;
    sp.n_head = 2;
    sp.n_vocab = 40;
    CHECK_MSG(pith_synth(model, &sp, &err) == PITH_OK, "%s", err.msg);
    char kernels[2][200];
    for (int i = 0; i < 2; i++) {
        snprintf(kernels[i], sizeof kernels[i], "%s/pith-%s.kernels", tmp_dir,
                 i ? "cuda" : "vulkan");
        make(kernels[i], i ? "cuda" : "vulkan", BUILD);
    }
    int watch = inotify_init1(IN_NONBLOCK);
    REQUIRE(watch >= 0, "no inotify");
    for (int i = 0; i < 2; i++)
        CHECK(inotify_add_watch(watch, kernels[i], IN_OPEN | IN_ACCESS) >= 0);
    mp.devices = "CPU";
    mp.n_threads = 1;
    pith_model *m = pith_model_open(model, &mp, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    CHECK_MSG(s && pith_feed(s, 0, &token, 1, &err) == PITH_OK, "%s", err.msg);
    pith_session_close(s);
    pith_model_close(m);
    CHECK_MSG(!opens(watch), "a plug-in was opened");
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        CHECK_MSG(!strstr(line, "libvulkan") && !strstr(line, "libcuda"), "%s", line);
    CHECK(maps != NULL);
    if (maps)
        fclose(maps);
    struct plugin p; /* and the watch sees what it is there to see */
    CHECK_MSG(plugin_open("cuda", BUILD, &p, &err) == PITH_OK && opens(watch), "%s", err.msg);
    plugin_close(&p);
    close(watch);
}

int main(void)
{
    hook_install();
    tmp_make();
    snprintf(file, sizeof file, "%s/pith-toy.kernels", tmp_dir);
    set_env("PITH_PLUGINS", tmp_dir);
    TEST(it_is_read);
    TEST(it_is_found);
    TEST(every_byte_counts);
    TEST(foreign_ones_are_named);
    TEST(lists_are_not_trusted);
    TEST(unreadable);
    TEST(memory_is_given_back);
    TEST(the_cpu_opens_nothing);
    return test_end();
}
