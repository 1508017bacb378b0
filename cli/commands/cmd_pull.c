/* cmd_pull.c -- pith pull: fetches a model into pith's folder. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"
#include "cli/models/local.h"
#include "cli/pull/pull.h"

struct opts {
    const char *name;
    struct pull_opts pull;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "NAME", .required = 1, .typed = 1, ARG_FIELD(struct opts, name, ARG_TEXT),
     .help = "hf:OWNER/REPO[:QUANT or FILE], ollama:NAME[:TAG], or the https address of a .gguf "
         "file"},
    {.name = "--retries", ARG_FIELD(struct opts, pull.retries, ARG_INT), .lo = 0, .hi = 1000,
     .dflt = "6",
     .help = "tries after one that failed and may work the next time; one that brought a MiB "
         "starts the count anew; none while nobody there has answered"},
    {.name = "--backoff", .meta = "SECONDS", ARG_FIELD(struct opts, pull.backoff, ARG_REAL),
     .lo = 0, .hi = 60, .dflt = "1",
     .help = "wait before the first of them, then twice as long each time; or as the server asks"},
    {.name = "--stall", .meta = "SECONDS", ARG_FIELD(struct opts, pull.timeout, ARG_REAL),
     .lo = 0.1, .hi = 3600, .dflt = "60",
     .help = "a connection on which so long nothing comes is broken"},
    {.name = "--any", ARG_FIELD(struct opts, pull.any, ARG_SWITCH),
     .help = "fetch it even if this build does not run its architecture, which a file's first "
         "bytes tell"},
    {0},
};
/* clang-format on */

/* Has it the bytes that the server has? The hub's and Ollama's own files are called after their
 * SHA-256; of split ones the first part is looked at. */
static int is_same(const struct pull *p, const struct local_model *m, int *code)
{
    char real[PATH_MAX], sha256[65];
    if (!*p->files->sha256 || (realpath(m->path, real) && ends_with(real, p->files->sha256)))
        return 1;
    *code = pull_hash(m->path, p->files->bytes, sha256);
    return !*code && !strcmp(sha256, p->files->sha256);
}

/* Does another tool have the very file? Gigabytes are not fetched twice. *path (malloc) is NULL
 * when none does. */
static int find_elsewhere(const struct pull *p, char **path)
{
    struct local s;
    char source[2048];
    const char *file =
        p->ref->kind == REF_HF ? p->files->path + strlen("hf/") + strlen(p->ref->repo) + 1 : NULL;
    int64_t bytes = 0;
    int code = local_read(&s);
    if (code)
        return code;
    ref_name(p->ref, source, sizeof source);
    for (size_t i = 0; i < p->n; i++)
        bytes = p->files[i].bytes < 0 || bytes < 0 ? -1 : bytes + p->files[i].bytes;
    for (size_t i = 0; i < s.n && !*path && !code; i++) {
        const struct local_model *m = &s.v[i];
        if (!local_is_whole(m) || strcasecmp(m->source, source) || m->bytes != bytes ||
            (file && strcmp(m->file, file)))
            continue;
        if (!strcmp(m->tool, "pith"))
            break; /* its bytes will be compared */
        if (!is_same(p, m, &code))
            continue;
        cli_say(CLI_OK, "%s is here already, in the folder of %s", p->name, m->tool);
        *path = strdup(m->path);
        code = *path ? CLI_OK : cli_no_memory();
    }
    local_free(&s);
    return code;
}

/* All parts, and whether they are a model together. */
static int pull_files(struct pull *p, const char *dir, char **path)
{
    char first[PATH_MAX + 2048];
    struct pith_error err = {0};
    int code = CLI_OK;
    for (size_t i = 0; i < p->n && !code; i++) {
        int64_t after = 0;
        for (size_t k = i + 1; k < p->n; k++)
            after += p->files[k].bytes > 0 && p->files[k].bytes < INT64_MAX / 1024
                         ? p->files[k].bytes
                         : 0;
        code = pull_file(p, i, dir, after);
    }
    if (code)
        return code;
    snprintf(first, sizeof first, "%s/%s", dir, p->files->path);
    pith_file *f = p->n > 1 ? pith_file_open(first, &err) : NULL;
    pith_file_close(f);
    if (p->n > 1 && !f)
        return cli_say(CLI_INPUT, "%s: all parts are here, but: %s", p->name, err.msg);
    *path = strdup(first);
    return *path ? CLI_OK : cli_no_memory();
}

int pull_model(const struct model_ref *r, const struct pull_opts *o, char **path)
{
    static const struct pull_opts usual = {.retries = 6, .backoff = 1, .timeout = 60};
    char dir[PATH_MAX], why[256];
    struct pull *p = calloc(1, sizeof *p);
    int code = CLI_OK;
    *path = NULL;
    if (!http_library(why, sizeof why))
        code = cli_say(CLI_SYSTEM, "%s", why);
    else if (!local_dir(dir, sizeof dir))
        code = cli_say(CLI_SYSTEM, "there is no folder for models: set PITH_MODELS to one");
    else if (!p || !(p->http = http_client_open()))
        code = cli_no_memory();
    if (!code) {
        p->ref = r;
        p->o = o ? o : &usual;
        code = pull_plan(p);
    }
    if (!code)
        code = find_elsewhere(p, path);
    if (!code && !*path)
        code = pull_files(p, dir, path);
    if (p) {
        http_client_close(p->http);
        free(p->files);
    }
    free(p);
    return code;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct model_ref r;
    char *path = NULL;
    int code = ref_parse(o->name, &r);
    if (!code && r.kind == REF_NONE)
        code = cli_say(CLI_USE,
                       "%s: wanted hf:OWNER/REPO, ollama:NAME or the https address of a .gguf file",
                       o->name);
    if (!code)
        code = pull_model(&r, &o->pull, &path);
    if (!code)
        puts(path);
    free(path);
    return code;
}

const struct command cmd_pull = {
    .name = "pull",
    .summary = "fetch a model",
    .args =
        {
            .command = "pith pull",
            .about = "Fetches a model into pith's folder ($PITH_MODELS, else pith/models in "
                     "$XDG_DATA_HOME or ~/.local/share) and prints the "
                     "path of its file. Of a repository with several quantizations Q4_K_M is "
                     "taken, else Q8_0 or another usual one, unless "
                     "one is named. Split models come whole.\n\n"
                     "What was interrupted, by whatever, goes on where it ended when the same "
                     "command is given again. A file gets its name "
                     "only after its size, its SHA-256 and its header have been found right. Of a "
                     "model whose architecture this build does not run only the first bytes are "
                     "fetched.\n\n"
                     "HF_TOKEN, or the file that the hub's own tools keep it in, opens private "
                     "repositories; it is sent to the hub alone. "
                     "HF_ENDPOINT is another hub, PITH_OLLAMA_REGISTRY another registry.",
            .example =
                "  pith pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF\n"
                "  pith pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q8_0\n"
                "  pith pull ollama:qwen2.5:0.5b\n"
                "  pith run hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF       # fetches it the first time\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
