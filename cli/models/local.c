/* local.c -- see local.h. */
#include "cli/models/local.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

int local_dir(char *out, size_t cap)
{
    const char *own = getenv("PITH_MODELS"), *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int n = own && *own     ? snprintf(out, cap, "%s", own)
            : xdg && *xdg   ? snprintf(out, cap, "%s/pith/models", xdg)
            : home && *home ? snprintf(out, cap, "%s/.local/share/pith/models", home)
                            : -1;
    while (n > 1 && (size_t)n < cap && out[n - 1] == '/')
        out[--n] = 0;
    return n > 0 && (size_t)n < cap;
}

/* ---------------------------------------------------------------- reading folders */

static void own_file(struct walk *w, const char *path, const char *rel)
{
    char source[2048], whole[PATH_MAX];
    const char *file = whole;
    snprintf(whole, sizeof whole, "%.*s",
             (int)(strlen(rel) - (ends_with(rel, ".part") ? strlen(".part") : 0)), rel);
    ref_source(whole, source, sizeof source);
    for (int i = 0; i < 3 && !strncmp(source, "hf:", 3); i++)
        file = strchr(file, '/') + 1;
    local_add(w->s, w->tool, path, NULL, source, file);
}

static int by_name(const void *a, const void *b)
{
    const struct local_model *x = a, *y = b;
    int c = strcmp(x->tool, y->tool);
    c = c ? c : strcasecmp(x->name, y->name);
    return c ? c : strcmp(x->path, y->path);
}

int local_read(struct local *s)
{
    char dir[PATH_MAX];
    *s = (struct local){0};
    if (local_dir(dir, sizeof dir)) {
        struct walk w = {.s = s, .tool = "pith", .n_root = strlen(dir), .on_file = own_file};
        local_walk(&w, dir);
    }
    size_t n_own = s->n;
    local_read_tools(s);
    if (s->no_memory) {
        local_free(s);
        return cli_no_memory();
    }
    if (s->n) {
        qsort(s->v, n_own, sizeof *s->v, by_name);
        qsort(s->v + n_own, s->n - n_own, sizeof *s->v, by_name);
    }
    return CLI_OK;
}

void local_free(struct local *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->v[i].name);
        free(s->v[i].path);
        free(s->v[i].source);
        free(s->v[i].file);
    }
    free(s->v);
    *s = (struct local){0};
}

int local_is_whole(const struct local_model *m)
{
    return !m->is_part && m->n_there == m->n_parts;
}

/* ---------------------------------------------------------------- finding one */

int local_is_called(const struct local_model *m, const char *name)
{
    size_t n = strlen(m->name);
    return !strcmp(m->path, name) || !strcmp(m->source, name) ||
           (!strncmp(m->name, name, n) && (!name[n] || !strcasecmp(name + n, ".gguf")));
}

/* One of a repository's files, as it would be chosen from all there are. */
static const struct local_model *find_in_repo(const struct local *s, size_t from, size_t to,
                                              const struct model_ref *r)
{
    char source[300];
    ref_name(r, source, sizeof source);
    struct pick_file *files = calloc(to - from, sizeof *files);
    for (size_t i = from; files && i < to; i++) {
        const struct local_model *m = &s->v[i];
        int is_candidate = local_is_whole(m) && !strcasecmp(m->source, source);
        files[i - from].path = is_candidate ? m->file : "";
    }
    int got = files ? file_pick_quiet(r->want, files, to - from) : -1;
    free(files);
    return got >= 0 ? &s->v[from + (size_t)got] : NULL;
}

const struct local_model *local_find(const struct local *s, const struct model_ref *r,
                                     const char *name, int own, int *n)
{
    *n = 0;
    for (size_t from = 0, to; from < s->n; from = to) {
        for (to = from; to < s->n && !strcmp(s->v[to].tool, s->v[from].tool); to++)
            ;
        if (own && strcmp(s->v[from].tool, "pith"))
            break;
        const struct local_model *found = r->kind == REF_HF ? find_in_repo(s, from, to, r) : NULL;
        char called[2048], path[2048];
        ref_name(r, called, sizeof called);
        if (r->kind == REF_URL && ref_path(r, "", path, sizeof path))
            ref_source(path, called, sizeof called);
        *n = found != NULL;
        for (size_t i = from; i < to && r->kind != REF_HF; i++) {
            if (!local_is_called(&s->v[i], r->kind == REF_NONE ? name : called) ||
                (r->kind != REF_NONE && !own && !local_is_whole(&s->v[i])))
                continue;
            found = found ? found : &s->v[i];
            ++*n;
        }
        if (found)
            return found;
    }
    return NULL;
}

void local_prune(const char *path)
{
    char dir[PATH_MAX], root[PATH_MAX];
    if (!local_dir(root, sizeof root) || strlen(path) >= sizeof dir ||
        strncmp(path, root, strlen(root)))
        return;
    snprintf(dir, sizeof dir, "%s", path);
    for (char *slash; (slash = strrchr(dir, '/')) && (size_t)(slash - dir) > strlen(root);) {
        *slash = 0;
        if (rmdir(dir))
            break;
    }
}
