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

void local_walk(struct walk *w, const char *dir, int depth)
{
    enum { DEEPEST = 12 };
    DIR *d = depth < DEEPEST ? opendir(dir) : NULL;
    struct dirent *e;
    while (d && (e = readdir(d))) {
        struct stat sb;
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' || n >= (int)sizeof path || stat(path, &sb))
            continue;
        if (S_ISDIR(sb.st_mode))
            local_walk(w, path, depth + 1);
        else if (S_ISREG(sb.st_mode))
            w->on_file(w, path, path + w->n_root + 1);
    }
    if (d)
        closedir(d);
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
        struct walk w = {s, "pith", strlen(dir), own_file};
        local_walk(&w, dir, 0);
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
