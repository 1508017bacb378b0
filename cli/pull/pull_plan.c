/* pull_plan.c -- from a reference to files with addresses, sizes and SHA-256, by asking the hub or
 * the registry what there is.
 *
 *     GET HUB/api/models/OWNER/REPO/revision/REV?blobs=true   {"sha": REV, "siblings":
 *         [{"rfilename", "size", "lfs": {"sha256", "size"}}]}
 *     GET HUB/OWNER/REPO/resolve/REV/FILE
 *     GET REGISTRY/v2/SPACE/NAME/manifests/TAG                {"layers": [{"mediaType", "digest",
 *         "size"}]}
 *     GET REGISTRY/v2/SPACE/NAME/blobs/DIGEST
 *
 * Answers are anybody's bytes: of every field the type and the range are checked, and a file's name
 * has to stay below its folder. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/pull/pull.h"

/* ---------------------------------------------------------------- what did not work */

/* Says what a status means that another try does not change. Returns an exit code. */
static int refused(const struct pull *p, const char *what, const struct http_answer *a)
{
    char said[300] = "";
    if (*a->message)
        snprintf(said, sizeof said, " (\"%s\")", a->message);
    switch (a->status) {
    case 401:
    case 403:
        if (p->ref->kind != REF_HF && !*p->token)
            return cli_say(CLI_INPUT, "%s: the server refuses it with status %ld%s", what,
                           a->status, said);
        if (!*p->token)
            return cli_say(CLI_INPUT,
                           "%s: the hub refuses it with status %ld%s: there is no such repository, "
                           "or it is private, or it wants its terms "
                           "accepted; check the name, or set HF_TOKEN to a token that may read it",
                           what, a->status, said);
        return cli_say(CLI_INPUT,
                       "%s: the hub refuses it with status %ld%s: the token (HF_TOKEN) does not "
                       "open it; are its terms accepted?",
                       what, a->status, said);
    case 404:
    case 410:
        return cli_say(CLI_INPUT, "%s: not found, status %ld%s; check the name", what, a->status,
                       said);
    default:
        return cli_say(CLI_INPUT, "%s: the server answers with status %ld%s", what, a->status,
                       said);
    }
}

static int is_passing(long status)
{
    return status == 408 || status == 429 ||
           (status >= 500 && status <= 599 && status != 501 && status != 505);
}

/* Waits before another try, longer each time or as long as the server asks. 0: no other try; *code
 * is set. */
static int wait_a_while(const struct pull *p, int *n, const char *what, const char *why,
                        double retry_after, int *code)
{
    enum { LONGEST = 300, MOST_DOUBLED = 5 };
    double wait = retry_after >= 0
                      ? retry_after
                      : p->o->backoff * (double)(1 << (*n < MOST_DOUBLED ? *n : MOST_DOUBLED));
    if (retry_after > LONGEST)
        *code =
            cli_say(CLI_SYSTEM, "%s: %s; it asks to come back in %.0f s", what, why, retry_after);
    else if (*n >= p->o->retries)
        *code = cli_say(CLI_SYSTEM, "%s: %s; tried %d times: try again later", what, why, *n + 1);
    if (*code)
        return 0;
    ++*n;
    cli_say(CLI_OK, "%s: %s; trying again in %.3g s (%d of %d)", what, why, wait, *n,
            (int)p->o->retries);
    struct timespec t = {(time_t)wait, (long)(1e9 * (wait - (double)(time_t)wait))};
    if (!interrupt_asked())
        nanosleep(&t, NULL); /* a signal ends it */
    *code = interrupt_asked() ? CLI_INTERRUPTED : CLI_OK;
    return !*code;
}

int pull_again(const struct pull *p, int *n, const char *what, enum http_end end,
               const struct http_answer *a, const char *why, int *code)
{
    char said[64];
    if (end == HTTP_STOPPED) {
        *code = cli_say(CLI_INTERRUPTED, "interrupted");
    } else if (end == HTTP_REFUSED) {
        *code = cli_say(CLI_SYSTEM, "%s: %s", what, why);
    } else if (end == HTTP_BROKEN) {
        return wait_a_while(p, n, what, why, -1, code);
    } else if (is_passing(a->status)) {
        snprintf(said, sizeof said, "the server answers with status %ld", a->status);
        return wait_a_while(p, n, what, said, a->retry_after, code);
    } else {
        *code = refused(p, what, a);
    }
    return 0;
}

/* ---------------------------------------------------------------- asking */

struct body {
    char *p;
    size_t n, cap;
    int is_too_large;
};

static int on_text(void *ctx, const struct http_answer *a, const char *p, size_t n)
{
    enum { MOST = 32 << 20 };
    struct body *b = ctx;
    (void)a;
    if (b->cap - b->n < n) {
        size_t cap = 2 * b->cap + n + 4096;
        cap = cap < MOST ? cap : MOST;
        char *more = cap - b->n >= n ? realloc(b->p, cap) : NULL;
        b->is_too_large = !more;
        if (!more)
            return 0;
        b->p = more;
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return 1;
}

/* The JSON object an address answers with, NULL with *code. */
static json_t *ask(struct pull *p, const char *url, const char *accept, int *code)
{
    struct body b = {0};
    struct http_answer a;
    char why[600];
    int n = 0;
    const struct http_request q = {.url = url,
                                   .accept = accept,
                                   .token = *p->token ? p->token : NULL,
                                   .origin = p->origin,
                                   .timeout = p->o->timeout,
                                   .on_data = on_text,
                                   .ctx = &b};
    for (;;) {
        enum http_end end = http_client_get(p->http, &q, &a, why, sizeof why);
        if (b.is_too_large)
            *code = cli_say(CLI_INPUT, "%s: %s answers with more than 32 MiB", p->name, url);
        else if (end == HTTP_DONE && a.status == 200)
            break;
        else if (pull_again(p, &n, p->name, end, &a, why, code)) {
            b.n = 0;
            continue;
        }
        free(b.p);
        return NULL;
    }
    json_t *root = json_loadb(b.p ? b.p : "", b.n, 0, NULL);
    free(b.p);
    if (!json_is_object(root)) {
        *code = cli_say(CLI_INPUT, "%s: wanted a JSON object from %s, found something else",
                        p->name, url);
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* ---------------------------------------------------------------- the hub */

/* First line of the file, without blanks around it; "" when there is none or it is no token. */
static void read_token(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "rb");
    if (!f || !fgets(out, (int)cap, f))
        *out = 0;
    if (f)
        fclose(f);
}

static void find_token(char *out, size_t cap)
{
    static const struct {
        const char *env, *under;
        int is_file;
    } places[] = {{"HF_TOKEN", "", 0},
                  {"HUGGING_FACE_HUB_TOKEN", "", 0},
                  {"HF_TOKEN_PATH", "", 1},
                  {"HF_HOME", "/token", 1},
                  {"XDG_CACHE_HOME", "/huggingface/token", 1},
                  {"HOME", "/.cache/huggingface/token", 1}};
    *out = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !*out; i++) {
        char path[PATH_MAX];
        const char *env = getenv(places[i].env);
        if (!env || !*env)
            continue;
        snprintf(path, sizeof path, "%s%s", env, places[i].under);
        if (places[i].is_file)
            read_token(path, out, cap);
        else if (strlen(env) < cap)
            memcpy(out, env, strlen(env) + 1);
        out[strcspn(out, " \t\r\n")] = 0;
        for (const char *c = out; *c; c++) {
            if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7F)
                *out = 0;
        }
    }
}

static int is_hex(const char *text, size_t n)
{
    return text && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

/* One of a repository's files, as the hub describes it. 0: not described as it should be. */
static int plan_hub_file(struct pull *p, const json_t *row, const char *hub, const char *repo,
                         const char *rev)
{
    struct pull_file *f = &p->files[p->n++];
    const char *name = json_string_value(json_object_get(row, "rfilename"));
    json_t *lfs = json_object_get(row, "lfs"), *size = json_object_get(lfs, "size");
    const char *sha256 = json_string_value(json_object_get(lfs, "sha256"));
    int n = snprintf(f->url, sizeof f->url, "%s/%s/resolve/%s/", hub, repo, rev);
    size = size ? size : json_object_get(row, "size");
    f->bytes =
        json_is_integer(size) && json_integer_value(size) >= 0 ? json_integer_value(size) : -1;
    snprintf(f->sha256, sizeof f->sha256, "%s", is_hex(sha256, 64) ? sha256 : "");
    for (const char *c = name; *c && n > 0 && n + 4 < (int)sizeof f->url; c++) {
        int plain = strchr("-._~/", *c) || (*c >= '0' && *c <= '9') ||
                    ((*c | 32) >= 'a' && (*c | 32) <= 'z');
        n += snprintf(f->url + n, sizeof f->url - (size_t)n, plain ? "%c" : "%%%02X",
                      (unsigned char)*c);
    }
    return ref_path(p->ref, name, f->path, sizeof f->path) && strlen(name) < 1000;
}

/* The rows of a model's parts after the chosen one, by their names. */
static int plan_parts(struct pull *p, const json_t *siblings, const char *first, const char *hub,
                      const char *repo, const char *rev)
{
    int part, n_parts;
    size_t n_stem = file_stem(first, &part, &n_parts);
    int is_set = part == 1 && n_parts > 1;
    if (n_parts > 1000)
        return cli_say(CLI_INPUT, "%s: %s is one of %d parts; at most 1000 are wanted", p->name,
                       first, n_parts);
    p->files = calloc((size_t)n_parts, sizeof *p->files);
    if (!p->files)
        return cli_no_memory();
    for (int k = 1; k <= (is_set ? n_parts : 1); k++) {
        char name[1024];
        size_t i;
        json_t *row, *found = NULL;
        snprintf(name, sizeof name, "%s", first);
        if (is_set)
            snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)n_stem, first, k, n_parts);
        json_array_foreach(siblings, i, row)
        {
            const char *called = json_string_value(json_object_get(row, "rfilename"));
            if (called && !strcmp(called, name))
                found = row;
        }
        if (!found)
            return cli_say(CLI_INPUT, "%s: the hub has no %s, part %d of %d", p->name, name, k,
                           n_parts);
        if (!plan_hub_file(p, found, hub, repo, rev))
            return cli_say(CLI_INPUT, "%s: the hub names a file \"%.200s\", which is no plain path",
                           p->name, name);
    }
    return CLI_OK;
}

static int choose(struct pull *p, const json_t *root, const char *hub, const char *repo,
                  const char *rev)
{
    const json_t *siblings = json_object_get(root, "siblings");
    size_t n = json_array_size(siblings), i;
    struct pick_file *files = calloc(n + 1, sizeof *files);
    json_t *row;
    if (!files)
        return cli_no_memory();
    json_array_foreach(siblings, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "rfilename"));
        files[i].path = name && path_is_plain(name) ? name : "";
        files[i].bytes = json_integer_value(json_object_get(row, "size"));
    }
    int got = file_pick(p->name, p->ref->want, files, n);
    int code = got < 0 ? CLI_INPUT : plan_parts(p, siblings, files[got].path, hub, repo, rev);
    free(files);
    return code;
}

static int plan_hub(struct pull *p)
{
    const struct model_ref *r = p->ref;
    char hub[512], url[2048];
    int code = CLI_OK;
    ref_hub(hub, sizeof hub);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", hub, r->repo, r->rev);
    json_t *root = ask(p, url, "application/json", &code);
    if (!root)
        return code;
    const char *sha = json_string_value(json_object_get(root, "sha"));
    code = choose(p, root, hub, r->repo, is_hex(sha, 40) ? sha : r->rev);
    json_decref(root);
    return code;
}

/* ---------------------------------------------------------------- Ollama's registry, and plain
 * addresses */

static int plan_layers(struct pull *p, const json_t *root, const char *base)
{
    json_t *layer;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(root, "layers"), i, layer)
    {
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        const json_t *size = json_object_get(layer, "size");
        if (!type || strcmp(type, "application/vnd.ollama.image.model"))
            continue;
        if (!digest || strncmp(digest, "sha256:", 7) || !is_hex(digest + 7, 64) ||
            !json_is_integer(size) || json_integer_value(size) < 0)
            return cli_say(
                CLI_INPUT,
                "%s: the registry describes its model layer without a SHA-256 digest and a size",
                p->name);
        struct pull_file *f = p->files;
        snprintf(f->url, sizeof f->url, "%s/blobs/%s", base, digest);
        snprintf(f->sha256, sizeof f->sha256, "%s", digest + 7);
        f->bytes = json_integer_value(size);
        n++;
    }
    if (n != 1)
        return cli_say(CLI_INPUT,
                       "%s: found %d model layers in the registry's manifest, wanted one", p->name,
                       n);
    return CLI_OK;
}

/* One file, of which the path is known already. */
static int plan_one(struct pull *p)
{
    int part, n_parts;
    p->files = calloc(1, sizeof *p->files);
    if (!p->files)
        return cli_no_memory();
    p->n = 1;
    p->files->bytes = -1;
    snprintf(p->files->url, sizeof p->files->url, "%s", p->ref->url);
    if (!ref_path(p->ref, "", p->files->path, sizeof p->files->path))
        return cli_say(CLI_INPUT, "%s: the name is too long", p->name);
    if (file_stem(p->files->path, &part, &n_parts) && n_parts > 1)
        return cli_say(CLI_USE,
                       "%s is part %d of %d, and an address names one file; name the repository "
                       "(hf:OWNER/REPO), or a file that is whole",
                       p->name, part, n_parts);
    return CLI_OK;
}

static int plan_registry(struct pull *p)
{
    const struct model_ref *r = p->ref;
    char registry[512], base[1024], url[2048];
    int code = plan_one(p);
    if (code)
        return code;
    ref_registry(registry, sizeof registry);
    snprintf(base, sizeof base, "%s/v2/%s%s", registry, strchr(r->repo, '/') ? "" : "library/",
             r->repo);
    snprintf(url, sizeof url, "%s/manifests/%s", base, r->want);
    json_t *root = ask(p, url, "application/vnd.docker.distribution.manifest.v2+json", &code);
    if (root)
        code = plan_layers(p, root, base);
    json_decref(root);
    return code;
}

int pull_plan(struct pull *p)
{
    ref_name(p->ref, p->name, sizeof p->name);
    ref_hub(p->origin, sizeof p->origin);
    if (p->ref->kind == REF_HF ||
        (p->ref->kind == REF_URL && http_same_origin(p->ref->url, p->origin)))
        find_token(p->token, sizeof p->token);
    return p->ref->kind == REF_HF       ? plan_hub(p)
           : p->ref->kind == REF_OLLAMA ? plan_registry(p)
                                        : plan_one(p);
}
