/* plugin.c -- finding, reading and checking the file of a backend's kernels: see plugin.h. */
#include "backend/gpu/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/machine/file.h"
#include "base/mem.h"

enum { FIRST_LINE = 48, FILE_ALIGN = 16, FORMAT = 1, MOST_BYTES = 1 << 30 };

/* ---------------------------------------------------------------- where it is */

/* The folder of the file that this code is in: libpith.so, or a program. 0: nobody knows. */
static int own_folder(char out[PATH_MAX])
{
    Dl_info info;
    struct link_map *map = NULL;
    int found = dladdr1(pointer_of((uintptr_t)own_folder), &info, (void **)&map, RTLD_DL_LINKMAP);
    if (found && map && map->l_name && *map->l_name)
        found = realpath(map->l_name, out) != NULL;
    else /* the program; without /proc as it was called */
        found = realpath("/proc/self/exe", out) ||
                realpath(pointer_of(getauxval(AT_EXECFN)), out);
    char *slash = found ? strrchr(out, '/') : NULL;
    if (slash)
        *slash = 0;
    return slash != NULL;
}

static int is_in(const char *folder, const char *name, char path[PLUGIN_PATH])
{
    int n = snprintf(path, PLUGIN_PATH, "%s/pith-%s.kernels", folder, name);
    return n > 0 && n < PLUGIN_PATH && access(path, F_OK) == 0;
}

pith_status plugin_path(const char *name, char path[PLUGIN_PATH], struct pith_error *err)
{
    const char *given = env_get("PITH_PLUGINS");
    char own[PATH_MAX] = "", lib[PATH_MAX + 16] = "";
    if (own_folder(own)) {
        const char *up = strrchr(own, '/');
        snprintf(lib, sizeof lib, "%.*s/lib/pith", (int)(up ? up - own : 0), own);
        if (is_in(own, name, path) || is_in(lib, name, path))
            return PITH_OK;
    }
    if (given && is_in(given, name, path))
        return PITH_OK;
    return error_set(err, PITH_MISSING,
                     "there is no pith-%s.kernels in %.400s, none in %.400s, and %s%.400s", name,
                     *own ? own : "the program's folder", *lib ? lib : "its ../lib/pith",
                     given ? "none in PITH_PLUGINS=" : "PITH_PLUGINS names no folder",
                     given ? given : "");
}

/* ---------------------------------------------------------------- what is in it */

/* POSIX cksum: the uppermost bit first, and the length behind all. */
static uint32_t cksum(const char *p, uint64_t n)
{
    uint32_t table[256], c = 0;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i << 24;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] << 1 ^ (table[i] >> 31 ? 0x04c11db7u : 0);
    }
    for (uint64_t i = 0; i < n; i++)
        c = c << 8 ^ table[c >> 24 ^ (uint8_t)p[i]];
    for (; n; n >>= 8)
        c = c << 8 ^ table[c >> 24 ^ (n & 255)];
    return ~c;
}

/* The next word of a line, cut at its room; "" at the line's end. The text is terminated. */
static void word(const char **at, char out[PLUGIN_WORD])
{
    size_t n = strcspn(*at, " \n");
    snprintf(out, PLUGIN_WORD, "%.*s", (int)(n < PLUGIN_WORD ? n : PLUGIN_WORD - 1), *at);
    *at += n + ((*at)[n] == ' ');
}

static int number(const char **at, uint64_t *out)
{
    char text[PLUGIN_WORD], *end;
    word(at, text);
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end;
}

static int line_ends(const char **at)
{
    int yes = **at == '\n';
    *at += yes;
    return yes;
}

/* The first line, and all that it tells of the rest. */
static pith_status check_whole(const char *all, uint64_t n, const char *path,
                               struct pith_error *err)
{
    const char *at = all;
    char kind[PLUGIN_WORD];
    uint64_t format, sum, bytes;
    word(&at, kind);
    if (strcmp(kind, "pith-kernels"))
        return error_set(err, PITH_FORMAT, "%.600s holds no kernels of pith", path);
    if (!number(&at, &format) || format != FORMAT)
        return error_set(err, PITH_UNSUPPORTED,
                         "%.600s is of a format that this program does not know; it knows %d", path,
                         FORMAT);
    if (!number(&at, &sum) || !number(&at, &bytes) || !line_ends(&at) || at - all != FIRST_LINE)
        return error_set(err, PITH_FORMAT, "%.600s is damaged in its first line", path);
    if (bytes != n - FIRST_LINE)
        return error_set(err, PITH_FORMAT,
                         "%.600s is damaged: it has %llu bytes behind its first line, wanted %llu",
                         path, (unsigned long long)(n - FIRST_LINE), (unsigned long long)bytes);
    uint32_t found = cksum(at, bytes);
    if (found != sum)
        return error_set(err, PITH_FORMAT,
                         "%.600s is damaged: the checksum is %u, wanted %llu", path, found,
                         (unsigned long long)sum);
    return PITH_OK;
}

static pith_status check_build(const char **at, const char *path, const char *name,
                               const char *build, int64_t *made, struct pith_error *err)
{
    char whose[PLUGIN_WORD], of[PLUGIN_WORD];
    uint64_t version;
    word(at, whose);
    word(at, of);
    if (!number(at, &version) || !line_ends(at))
        return error_set(err, PITH_FORMAT, "%.600s is damaged in its second line", path);
    if (strcmp(whose, name))
        return error_set(err, PITH_UNSUPPORTED, "%.600s has kernels for %s, wanted for %s", path,
                         whose, name);
    if (strcmp(of, build))
        return error_set(err, PITH_UNSUPPORTED,
                         "%.600s is of another build: its kernels are %s, this program's are %s",
                         path, of, build);
    *made = (int64_t)version;
    return PITH_OK;
}

/* The list of files, and where each is. */
static int list_files(struct plugin *p, const char *at, uint64_t n)
{
    while (*at && *at != '\n') {
        struct plugin_file *f = &p->file[p->n];
        if (p->n++ == PLUGIN_FILES)
            return 0;
        word(&at, f->name);
        if (!number(&at, &f->n) || !line_ends(&at))
            return 0;
    }
    uint64_t from = size_align((uint64_t)(at - p->all) + 1, FILE_ALIGN);
    for (struct plugin_file *f = p->file; f < p->file + p->n; f++) {
        if (from > n || f->n > n - from)
            return 0;
        f->p = p->all + from;
        from = size_align(from + f->n, FILE_ALIGN);
    }
    return 1;
}

static pith_status read_all(const char *path, struct plugin *p, uint64_t *n, struct pith_error *err)
{
    struct stat sb;
    struct pith_error why = {PITH_OK, ""};
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        return error_set(err, PITH_IO, "%.600s is no regular file", path);
    p->all = file_read_all(path, MOST_BYTES, n, PITH_MEM_META, NULL, &why);
    return p->all ? PITH_OK : error_set(err, why.code, "%s", why.msg);
}

pith_status plugin_open(const char *name, const char *build, struct plugin *out,
                        struct pith_error *err)
{
    char path[PLUGIN_PATH];
    const char *at;
    uint64_t n = 0;
    pith_status st;
    *out = (struct plugin){0};
    TRY(plugin_path(name, path, err));
    TRY(read_all(path, out, &n, err));
    TRY(check_whole(out->all, n, path, err));
    at = out->all + FIRST_LINE;
    TRY(check_build(&at, path, name, build, &out->made, err));
    if (!list_files(out, at, n))
        TRY(error_set(err, PITH_FORMAT, "%.600s is damaged in its list of kernels", path));
    return PITH_OK;
fail:
    plugin_close(out);
    return st;
}

void plugin_close(struct plugin *p)
{
    mem_free(p->all);
    *p = (struct plugin){0};
}

const struct plugin_file *plugin_find(const struct plugin *p, const char *name)
{
    for (const struct plugin_file *f = p->file; f < p->file + p->n; f++)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}
