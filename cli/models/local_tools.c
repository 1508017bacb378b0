/* local_tools.c -- where other tools keep their models. What is looked for is the layout of their
 * folders, each read by one function and one row of the table; what is not understood is passed
 * over. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/local.h"

/* models--OWNER--REPO/snapshots/REVISION/FILE; the file is a link to blobs/SHA256. */
static void hub_file(struct walk *w, const char *path, const char *rel)
{
    char owner[128], repo[128], source[300];
    int at = 0;
    const char *dashes = strncmp(rel, "models--", 8) ? NULL : strstr(rel + 8, "--");
    if (!dashes || !ends_with(path, ".gguf"))
        return;
    snprintf(owner, sizeof owner, "%.*s", (int)(dashes - rel - 8), rel + 8);
    if (sscanf(dashes + 2, "%127[^/]/snapshots/%*[^/]/%n", repo, &at) != 1 || !at)
        return;
    snprintf(source, sizeof source, "hf:%s/%s", owner, repo);
    for (size_t i = 0; i < w->s->n; i++) { /* one revision is enough */
        const struct local_model *m = &w->s->v[i];
        if (!strcmp(m->tool, w->tool) && !strcmp(m->source, source) &&
            !strcmp(m->file, dashes + 2 + at))
            return;
    }
    local_add(w->s, w->tool, path, NULL, source, dashes + 2 + at);
}

/* OWNER_REPO_FILE in one folder; where the owner ends cannot be told when there is a "_" in it. */
static void llama_cpp_file(struct walk *w, const char *path, const char *rel)
{
    char source[300] = "";
    const char *file = rel, *repo = strchr(rel, '_'), *last = repo ? strchr(repo + 1, '_') : NULL;
    if (!ends_with(path, ".gguf"))
        return;
    if (last && last - rel < 256) {
        snprintf(source, sizeof source, "hf:%.*s/%.*s", (int)(repo - rel), rel,
                 (int)(last - repo - 1), repo + 1);
        file = last + 1;
    }
    local_add(w->s, w->tool, path, NULL, source, file);
}

/* OWNER/REPO/FILE */
static void lm_studio_file(struct walk *w, const char *path, const char *rel)
{
    char owner[128], repo[128], source[300];
    int at = 0;
    if (ends_with(path, ".gguf") && sscanf(rel, "%127[^/]/%127[^/]/%n", owner, repo, &at) == 2 &&
        at) {
        snprintf(source, sizeof source, "hf:%s/%s", owner, repo);
        local_add(w->s, w->tool, path, NULL, source, rel + at);
    }
}

/* manifests/REGISTRY/SPACE/NAME/TAG lists layers by the digests that their files, blobs/sha256-HEX,
 * are called. */
static void ollama_file(struct walk *w, const char *path, const char *rel)
{
    char space[128], name[128], tag[128], called[400], blob[PATH_MAX];
    struct stat sb;
    if (sscanf(rel, "manifests/%*[^/]/%127[^/]/%127[^/]/%127[^/]", space, name, tag) != 3 ||
        stat(path, &sb) || sb.st_size > 1 << 20)
        return;
    json_t *root = json_load_file(path, 0, NULL), *layer;
    size_t i;
    json_array_foreach(json_object_get(root, "layers"), i, layer)
    {
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        if (!type || !digest || strcmp(type, "application/vnd.ollama.image.model") ||
            strncmp(digest, "sha256:", 7) || strlen(digest) != 71 ||
            strspn(digest + 7, "0123456789abcdef") != 64)
            continue;
        snprintf(blob, sizeof blob, "%.*s/blobs/sha256-%s", (int)w->n_root, path, digest + 7);
        int library = !strcmp(space, "library");
        snprintf(called, sizeof called, "ollama:%s%s%s:%s", library ? "" : space,
                 library ? "" : "/", name, tag);
        if (!stat(blob, &sb))
            local_add(w->s, w->tool, blob, called + strlen("ollama:"), called, tag);
        break;
    }
    json_decref(root);
}

/* Each folder: the value of a variable with `under` behind it, or `usual` below the home folder
 * ("/..." as it is). */
static const struct {
    const char *tool, *env, *under, *usual;
    void (*on_file)(struct walk *w, const char *path, const char *rel);
} places[] = {
    {"huggingface", "HF_HUB_CACHE", "", NULL, hub_file},
    {"huggingface", "HF_HOME", "/hub", NULL, hub_file},
    {"huggingface", "XDG_CACHE_HOME", "/huggingface/hub", ".cache/huggingface/hub", hub_file},
    {"llama.cpp", "LLAMA_CACHE", "", NULL, llama_cpp_file},
    {"llama.cpp", "XDG_CACHE_HOME", "/llama.cpp", ".cache/llama.cpp", llama_cpp_file},
    {"lmstudio", NULL, NULL, ".lmstudio/models", lm_studio_file},
    {"lmstudio", NULL, NULL, ".cache/lm-studio/models", lm_studio_file},
    {"ollama", "OLLAMA_MODELS", "", NULL, ollama_file},
    {"ollama", NULL, NULL, ".ollama/models", ollama_file},
    {"ollama", NULL, NULL, "/usr/share/ollama/.ollama/models", ollama_file},
};

void local_read_tools(struct local *s)
{
    enum { N = sizeof places / sizeof places[0] };
    struct stat seen[N]; /* a variable may name a folder that is looked at anyway */
    for (size_t i = 0, n_seen = 0, k; i < N; i++) {
        char dir[PATH_MAX];
        const char *env = places[i].env ? getenv(places[i].env) : NULL, *home = getenv("HOME"),
                   *usual = places[i].usual;
        int n = env && *env              ? snprintf(dir, sizeof dir, "%s%s", env, places[i].under)
                : usual && *usual == '/' ? snprintf(dir, sizeof dir, "%s", usual)
                : usual && home && *home ? snprintf(dir, sizeof dir, "%s/%s", home, usual)
                                         : -1;
        if (n <= 0 || n >= (int)sizeof dir)
            continue;
        if (stat(dir, &seen[n_seen]))
            continue;
        for (k = 0; seen[k].st_dev != seen[n_seen].st_dev || seen[k].st_ino != seen[n_seen].st_ino;
             k++)
            ;
        if (k < n_seen++)
            continue;
        struct walk w = {
            .s = s, .tool = places[i].tool, .n_root = (size_t)n, .on_file = places[i].on_file};
        local_walk(&w, dir);
    }
}
