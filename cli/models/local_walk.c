/* local_walk.c -- folders, file by file, and what a file is on the list of models. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/local.h"

struct walk_folder {
    dev_t dev;
    ino_t ino;
};

/* 1: it has not been looked at before. */
static int is_new(struct walk *w, const struct stat *sb)
{
    for (size_t i = 0; i < w->n_seen; i++)
        if (w->seen[i].ino == sb->st_ino && w->seen[i].dev == sb->st_dev)
            return 0;
    if (w->n_seen % 256 == 0) {
        struct walk_folder *more = realloc(w->seen, (w->n_seen + 256) * sizeof *more);
        w->s->no_memory |= !more;
        if (!more)
            return 0;
        w->seen = more;
    }
    w->seen[w->n_seen++] = (struct walk_folder){sb->st_dev, sb->st_ino};
    return 1;
}

static void look_into(struct walk *w, const char *dir, int depth)
{
    enum { DEEPEST = 12 };
    struct stat sb;
    DIR *d = depth < DEEPEST && !stat(dir, &sb) && is_new(w, &sb) ? opendir(dir) : NULL;
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || n >= (int)sizeof path || stat(path, &sb))
            continue;
        if (S_ISDIR(sb.st_mode))
            look_into(w, path, depth + 1);
        else if (S_ISREG(sb.st_mode))
            w->on_file(w, path, path + w->n_root + 1);
    }
    if (d)
        closedir(d);
}

void local_walk(struct walk *w, const char *dir)
{
    look_into(w, dir, 0);
    free(w->seen);
    w->seen = NULL;
    w->n_seen = 0;
}

int local_count_parts(const char *first, size_t n_stem, int n_parts, int64_t *bytes)
{
    int n_there = 0;
    for (*bytes = 0; n_there + 1 < n_parts; n_there++) { /* they come one after the other */
        struct stat sb;
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%.*s-%05d-of-%05d.gguf", (int)n_stem, first,
                         n_there + 2, n_parts);
        if (n >= (int)sizeof path || stat(path, &sb) || !S_ISREG(sb.st_mode))
            break;
        *bytes += sb.st_size;
    }
    return n_there;
}

void local_add(struct local *s, const char *tool, const char *path, const char *name,
               const char *source, const char *file)
{
    struct stat sb;
    int part = 1, n_parts = 1;
    char whole[PATH_MAX];
    int is_part = ends_with(path, ".gguf.part");
    size_t n = strlen(path) - (is_part ? strlen(".part") : 0), n_stem = n;
    snprintf(whole, sizeof whole, "%.*s", (int)n, path);
    if (!name && !((n_stem = file_stem(whole, &part, &n_parts)) && part == 1))
        return;
    if (stat(path, &sb) || s->no_memory)
        return;
    if (s->n == s->cap) {
        size_t cap = 2 * s->cap + 16;
        struct local_model *v = realloc(s->v, cap * sizeof *v);
        s->no_memory = !v;
        if (!v)
            return;
        s->v = v;
        s->cap = cap;
    }
    while (!name && n_stem > 0 && whole[n_stem - 1] != '/')
        n_stem--;
    struct local_model *m = &s->v[s->n++];
    *m = (struct local_model){.tool = tool,
                              .n_parts = n_parts,
                              .n_there = !is_part,
                              .is_part = is_part,
                              .bytes = sb.st_size,
                              .modified = sb.st_mtime};
    m->path = strdup(path);
    m->name =
        name ? strdup(name) : strndup(whole + n_stem, file_stem(whole, &part, &n_parts) - n_stem);
    m->source = strdup(source);
    m->file = strdup(file);
    s->no_memory = !m->path || !m->name || !m->source || !m->file;
    if (!s->no_memory && !is_part) {
        int64_t more;
        m->n_there += local_count_parts(path, file_stem(whole, &part, &n_parts), n_parts, &more);
        m->bytes += more;
    }
}
