/* offers.c -- see offers.h. */
#include "offers.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "local.h"
#include "names.h"

static char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    int part, n_parts;
    size_t n = file_stem(file, &part, &n_parts);
    return strndup(file, n ? n : strlen(file));
}

/* Takes path, and name unless NULL. */
static int add(struct offers *o, char *path, char *name)
{
    struct stat sb;
    struct server_model *more = realloc(o->v, (size_t)(o->n + 1) * sizeof *more);
    if (more)
        o->v = more;
    if (!more || !path) {
        free(path);
        free(name);
        return cli_no_memory();
    }
    int part, n_parts = 1;
    int64_t more_bytes = 0;
    size_t n_stem = file_stem(path, &part, &n_parts);
    int there = !stat(path, &sb);
    local_count_parts(path, n_stem, n_stem ? n_parts : 1, &more_bytes);
    o->v[o->n++] = (struct server_model){name, path, there ? (uint64_t)(sb.st_size + more_bytes) : 0};
    return CLI_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct server_model *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int add_folder(struct offers *o, const char *folder)
{
    int code = CLI_OK, first = o->n;
    DIR *d = opendir(folder);
    if (!d)
        return cli_say(CLI_INPUT, "--models %s: cannot read the folder: %s", folder,
                       strerror(errno));
    for (struct dirent *e; !code && (e = readdir(d));) {
        size_t cap = strlen(folder) + strlen(e->d_name) + 2;
        int part, n_parts;
        if (e->d_name[0] == '.' || !file_stem(e->d_name, &part, &n_parts) ||
            part > 1) /* the first part stands for all */
            continue;
        char *path = malloc(cap);
        if (path)
            snprintf(path, cap, "%s/%s", folder, e->d_name);
        code = add(o, path, name_of(e->d_name));
    }
    closedir(d);
    if (!code && o->n == first)
        code = cli_say(CLI_INPUT, "--models %s: found no file that ends in .gguf", folder);
    for (int i = first; !code && i < o->n; i++)
        code = o->v[i].name ? CLI_OK : cli_no_memory();
    if (!code)
        qsort(o->v + first, (size_t)(o->n - first), sizeof *o->v, by_name);
    return code;
}

static int check_names(const struct offers *o)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < i; k++)
            if (o->v[i].name && o->v[k].name && !strcmp(o->v[i].name, o->v[k].name))
                return cli_say(CLI_USE, "%s and %s are both called \"%s\"; rename one of the files",
                               o->v[k].path, o->v[i].path, o->v[i].name);
    return CLI_OK;
}

int offers_open(struct offers *o, const struct arg_texts *paths, const char *folder,
                const char *name)
{
    int code = CLI_OK, single = paths->n == 1 && !folder;
    if (!paths->n && !folder)
        return cli_say(CLI_USE, "MODEL is missing; name one or more, or a folder with --models");
    if (name && !single)
        return cli_say(CLI_USE, "--name is for a single model; several are called as their files");
    for (int i = 0; !code && i < paths->n; i++) {
        const char *path = paths->v[i];
        code = cli_model_path(&path);
        if (code)
            return code;
        char *own = !single ? name_of(path) : name ? strdup(name) : NULL;
        code = (single && !name) || own ? add(o, strdup(path), own) : cli_no_memory();
    }
    if (!code && folder)
        code = add_folder(o, folder);
    return code ? code : check_names(o);
}

void offers_close(struct offers *o)
{
    for (int i = 0; i < o->n; i++) {
        free((char *)(uintptr_t)o->v[i].name);
        free((char *)(uintptr_t)o->v[i].path);
    }
    free(o->v);
}

uint64_t offers_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes / 4 * 3 : 0;
}
