/* offers.c -- see offers.h. */
#include "cli/models/offers.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/local.h"
#include "cli/models/names.h"

struct offer_file {
    int there;
    dev_t dev;
    ino_t ino;
};

/* A further name of a model; "" is none. */
static int also(struct offers *o, int model, const char *name)
{
    if (!*name)
        return CLI_OK;
    struct server_alias *more = realloc(o->aliases, (size_t)(o->n_aliases + 1) * sizeof *more);
    char *own = strdup(name);
    if (more)
        o->aliases = more;
    if (!more || !own) {
        free(own);
        return cli_no_memory();
    }
    o->aliases[o->n_aliases++] = (struct server_alias){own, model, 0};
    return CLI_OK;
}

static int append(struct offers *o, const char *path, const char *name, const struct stat *sb)
{
    struct server_model *more = realloc(o->v, (size_t)(o->n + 1) * sizeof *more);
    struct offer_file *files = realloc(o->files, (size_t)(o->n + 1) * sizeof *files);
    char *own_path = strdup(path), *own_name = strdup(name);
    if (more)
        o->v = more;
    if (files)
        o->files = files;
    if (!more || !files || !own_path || !own_name) {
        free(own_path);
        free(own_name);
        return cli_no_memory();
    }
    int part, n_parts = 1;
    int64_t more_bytes = 0;
    size_t n_stem = file_stem(path, &part, &n_parts);
    local_count_parts(path, n_stem, n_stem ? n_parts : 1, &more_bytes);
    files[o->n] = (struct offer_file){sb->st_ino || sb->st_dev, sb->st_dev, sb->st_ino};
    o->v[o->n++] = (struct server_model){own_name, own_path, (uint64_t)(sb->st_size + more_bytes)};
    return CLI_OK;
}

/* The file at path as a model, or, where it is one already, its names as more names of that. asked:
 * what the command line calls it; name: what answers are to call it, NULL: as its file. Of those on
 * the command line the first has to be readable and the others there; what else is wrong with a
 * file is told when it is asked for. */
static int add(struct offers *o, const char *path, const char *asked, const char *name)
{
    struct stat sb = {0};
    char title[256] = "";
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    int part, n_parts, code = CLI_OK, i = 0, there = !stat(path, &sb);
    size_t n = file_stem(file, &part, &n_parts);
    char *stem = strndup(file, n ? n : strlen(file));
    if (!stem)
        return cli_no_memory();
    while (i < o->n && !(there && o->files[i].there && o->files[i].ino == sb.st_ino &&
                         o->files[i].dev == sb.st_dev))
        i++;
    if (i == o->n) {
        struct pith_error err = {0};
        pith_file *f = pith_file_open(path, &err);
        cli_file_text(f, "general.name", title, sizeof title);
        pith_file_close(f);
        if (!f && *asked && (!there || !o->n))
            code = cli_fail_file(path, &err);
        else
            code = append(o, path, name ? name : n || !strcmp(asked, path) ? stem : asked, &sb);
    }
    const char *const names[] = {stem, file, asked, title};
    for (int k = 0; k < 4 && !code; k++)
        code = also(o, i, names[k]);
    free(stem);
    return code;
}

static int is_first_part(const struct dirent *e)
{
    int part, n_parts;
    return e->d_name[0] != '.' && file_stem(e->d_name, &part, &n_parts) && part == 1;
}

static int add_folder(struct offers *o, const char *folder)
{
    struct dirent **files;
    int code = CLI_OK, n = scandir(folder, &files, is_first_part, alphasort);
    if (n < 0)
        return cli_say(CLI_INPUT, "--models %s: cannot read the folder: %s", folder,
                       strerror(errno));
    if (!n)
        code = cli_say(CLI_INPUT, "--models %s: found no file that ends in .gguf", folder);
    for (int i = 0; i < n; i++) {
        size_t cap = strlen(folder) + strlen(files[i]->d_name) + 2;
        char *path = code ? NULL : malloc(cap);
        if (path) {
            snprintf(path, cap, "%s/%s", folder, files[i]->d_name);
            code = add(o, path, "", NULL);
        } else if (!code) {
            code = cli_no_memory();
        }
        free(path);
        free(files[i]);
    }
    free(files);
    return code;
}

static int check_names(const struct offers *o)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(o->v[i].name, o->v[k].name))
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
        if (!code)
            code = add(o, path, paths->v[i], name);
    }
    if (!code && folder)
        code = add_folder(o, folder);
    return code ? code : check_names(o);
}

/* How much of text is `name` and a "=" behind it; 0: it is not. */
static size_t begins(const char *text, const char *name)
{
    size_t n = strlen(name);
    return n && !strncmp(text, name, n) && text[n] == '=' ? n + 1 : 0;
}

/* "a, b and 3 more". */
static void list_names(const struct offers *o, char *out, size_t cap)
{
    size_t n = 0;
    int i = 0;
    for (out[0] = 0; i < o->n && n + strlen(o->v[i].name) + 32 < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", o->v[i].name);
    if (i < o->n)
        snprintf(out + n, cap - n, "%s%d more", i ? " and " : "", o->n - i);
}

/* The model that the text before a "=" means, by its name, its path or any other name of it; the
 * longest that one has counts, as names may hold a "=" themselves. *name is what is behind it. */
static int aliased(const struct offers *o, const char *text, int *model, const char **name)
{
    size_t most = 0, n;
    int two = -1;
    for (int i = 0; i < o->n; i++) {
        n = begins(text, o->v[i].name);
        n = n ? n : begins(text, o->v[i].path);
        *model = n > most ? i : *model;
        most = n > most ? n : most;
    }
    for (int i = 0; i < o->n_aliases; i++) {
        n = begins(text, o->aliases[i].name);
        if (n > most) {
            *model = o->aliases[i].model;
            two = -1;
            most = n;
        } else if (n && n == most && o->aliases[i].model != *model &&
                   !begins(text, o->v[*model].name)) {
            two = o->aliases[i].model;
        }
    }
    *name = text + most;
    if (two >= 0)
        return cli_say(CLI_USE, "--alias %s: %s and %s both answer to \"%.*s\"; say which", text,
                       o->v[*model].path, o->v[two].path, (int)most - 1, text);
    if (!most && strchr(text, '=')) {
        char offered[512];
        list_names(o, offered, sizeof offered);
        return cli_say(CLI_USE, "--alias %s: found no model called \"%.*s\"; offered: %s", text,
                       (int)strcspn(text, "="), text, offered);
    }
    return CLI_OK;
}

int offers_alias(struct offers *o, const char *text)
{
    const char *name;
    int model = 0, other = -1, code = aliased(o, text, &model, &name);
    if (code)
        return code;
    if (!*name)
        return cli_say(CLI_USE, "--alias %s: wanted NAME or MODEL=NAME", text);
    for (int i = 0; i < o->n; i++)
        other = i != model && !strcmp(o->v[i].name, name) ? i : other;
    for (int i = 0; i < o->n_aliases; i++)
        other = o->aliases[i].model != model && !strcmp(o->aliases[i].name, name)
                    ? o->aliases[i].model
                    : other;
    if (other >= 0)
        return cli_say(CLI_USE,
                       "--alias %s: %s answers to that name already; an alias is one model's", text,
                       o->v[other].path);
    code = also(o, model, name);
    if (!code)
        o->aliases[o->n_aliases - 1].told = 1;
    return code;
}

void offers_close(struct offers *o)
{
    for (int i = 0; i < o->n; i++) {
        free(o->v[i].name);
        free(o->v[i].path);
    }
    for (int i = 0; i < o->n_aliases; i++)
        free(o->aliases[i].name);
    free(o->v);
    free(o->files);
    free(o->aliases);
}

uint64_t offers_memory(void)
{
    uint64_t total;
    pith_memory_limits(&total, NULL);
    return total == UINT64_MAX ? 0 : total / 4 * 3;
}
