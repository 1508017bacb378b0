/* cmd_rm.c -- pith rm: removes a model of pith's own folder, whole or not. What belongs to other
 * tools stays. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/models/local.h"

struct opts {
    const char *name;
    int yes;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "NAME", .required = 1, .typed = 1, ARG_FIELD(struct opts, name, ARG_TEXT),
     .help = "as 'pith list' shows it, a reference as 'pith pull' takes it, or the path"},
    {.name = "--yes", .alias = "-y", .typed = 1, ARG_FIELD(struct opts, yes, ARG_SWITCH),
     .help = "do not ask"},
    {0},
};
/* clang-format on */

/* Does somebody hold the lock of what is being fetched? */
static int is_being_pulled(const char *part)
{
    int fd = open(part, O_RDONLY | O_CLOEXEC);
    int busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return busy;
}

/* The file, what is there of a newer one, and the note about that. */
static int remove_file(const char *path)
{
    static const char *const ends[] = {"", ".part", ".part.json"};
    for (int i = 0; i < 3; i++) {
        char one[PATH_MAX];
        if (snprintf(one, sizeof one, "%s%s", path, ends[i]) >= (int)sizeof one)
            continue;
        if (unlink(one) && errno != ENOENT)
            return cli_say(CLI_SYSTEM, "%s: cannot remove: %s", one, strerror(errno));
    }
    return CLI_OK;
}

/* Is the folder that a file is really in, whatever links lead there, pith's or below it? */
static int is_inside(const char *path)
{
    char dir[PATH_MAX], root[PATH_MAX], real[PATH_MAX], real_root[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (!local_dir(root, sizeof root) || !realpath(dir, real) || !realpath(root, real_root))
        return 0;
    size_t n = strlen(real_root);
    return !strncmp(real, real_root, n) && (!real[n] || real[n] == '/');
}

static int check_file(const char *path)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s.part", path) < (int)sizeof part && is_being_pulled(part))
        return cli_say(CLI_SYSTEM, "%s is being fetched right now; end that first", path);
    return CLI_OK;
}

/* All parts, if nothing speaks against one of them. */
static int remove_model(const struct local_model *m)
{
    static int (*const passes[])(const char *) = {check_file, remove_file};
    char path[PATH_MAX];
    int part, n_parts, code = CLI_OK;
    snprintf(path, sizeof path, "%.*s", (int)(strlen(m->path) - (m->is_part ? strlen(".part") : 0)),
             m->path);
    if (!is_inside(path))
        return cli_say(CLI_INPUT, "%s lies outside pith's folder, by a link; remove it there",
                       path);
    size_t n_stem = file_stem(path, &part, &n_parts);
    for (int k = 0; k < 2; k++) { /* the first part, by which it is found, goes last */
        for (int i = n_parts; i >= 1 && !code; i--) {
            if (n_parts > 1)
                snprintf(path + n_stem, sizeof path - n_stem, "-%05d-of-%05d.gguf", i, n_parts);
            code = passes[k](path);
        }
    }
    local_prune(path);
    return code;
}

static int is_agreed(const struct local_model *m, int *code)
{
    char bytes[32], answer[16] = "";
    say_bytes(m->bytes, bytes, sizeof bytes);
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        *code = cli_say(CLI_USE, "%s (%s): nobody to ask; --yes removes it", m->path, bytes);
        return 0;
    }
    cli_tell("remove %s (%s)? [y/N] ", m->path, bytes);
    if (!fgets(answer, sizeof answer, stdin) || (*answer != 'y' && *answer != 'Y'))
        *code = cli_say(CLI_OK, "kept");
    return *answer == 'y' || *answer == 'Y';
}

/* A model that is meant and may not be removed, or none. */
static int say_why_not(const struct local *s, const struct model_ref *r, const char *name)
{
    int n;
    const struct local_model *m = local_find(s, r, name, 0, &n);
    if (m)
        return cli_say(CLI_INPUT, "%s belongs to %s, in whose folder it is; remove it there: %s",
                       name, m->tool, m->path);
    return cli_say(CLI_INPUT, "%s: no model of this name is here; 'pith list' shows those that are",
                   name);
}

/* Of pith's own, what the name means. Not as other commands take a repository: here nothing is
 * chosen for whoever asks, and what is not whole counts too. */
static const struct local_model *find(const struct local *s, const struct model_ref *r,
                                      const char *name, int *n)
{
    const struct local_model *m = NULL;
    char source[2048], quant[64];
    if (r->kind != REF_HF)
        return local_find(s, r, name, 1, n);
    ref_name(r, source, sizeof source);
    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct local_model *x = &s->v[i];
        file_quant(x->file, quant, sizeof quant);
        if (strcmp(x->tool, "pith") || strcasecmp(x->source, source) ||
            (*r->want && strcasecmp(quant, r->want) && strcmp(x->file, r->want)))
            continue;
        m = x;
        ++*n;
    }
    return m;
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct local s = {0};
    struct model_ref r;
    int n = 0, code = ref_parse(o->name, &r);
    code = code ? code : local_read(&s);
    if (code)
        return code;
    const struct local_model *m = find(&s, &r, o->name, &n);
    if (!m)
        code = say_why_not(&s, &r, o->name);
    else if (n > 1)
        code = cli_say(
            CLI_INPUT,
            "%s is the name of %d models; give the path of one ('pith list --json' has them)",
            o->name, n);
    else if (o->yes || is_agreed(m, &code))
        code = remove_model(m);
    local_free(&s);
    return code;
}

const struct command cmd_rm = {
    .name = "rm",
    .summary = "remove a pulled model",
    .args =
        {
            .command = "pith rm",
            .about = "Removes a model from pith's folder: all its parts, and what is there of one "
                     "that is not whole. Asks at a terminal. "
                     "Models in the folders of other tools are left alone.",
            .example = "  pith rm Qwen2.5-0.5B-Instruct-Q4_K_M\n"
                       "  pith rm hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:q8_0 --yes\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
