/* find_model.c -- from what the command line says to a model's file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/local.h"
#ifdef WITH_PULL
#include "cli/pull/pull.h"
#endif

/* Several models of one name in one place: which is meant is not for us to say. */
static int say_several(const struct local *s, const char *name)
{
    cli_say(CLI_INPUT, "%s is the name of several models; give the path of one:", name);
    for (size_t i = 0; i < s->n; i++) {
        if (local_is_called(&s->v[i], name))
            cli_tell("  %s\n", s->v[i].path);
    }
    return CLI_INPUT;
}

static int fetch(const struct model_ref *r, const char *name, char **path)
{
#ifdef WITH_PULL
    cli_say(CLI_OK, "%s is not here yet: fetching it", name);
    return pull_model(r, NULL, path);
#else
    (void)r;
    (void)path;
    return cli_say(CLI_INPUT,
                   "%s is not here, and this program was built without downloads (PULL=0); fetch "
                   "the file by other means",
                   name);
#endif
}

/* The name of a model here that may be meant; NULL: none, or no memory. */
static const char *near_name(const struct local *s, const char *name)
{
    const char **names = calloc(s->n + 1, sizeof *names), *near = NULL;
    for (size_t i = 0; names && i < s->n; i++) {
        size_t n = strlen(s->v[i].name);
        names[i] = s->v[i].name;
        int same = !strncasecmp(name, names[i], n);
        if (!near && same && (!name[n] || !strcasecmp(name + n, ".gguf")))
            near = names[i];
    }
    near = near || !names ? near : args_nearest(name, names);
    free(names);
    return near;
}

/* *path is malloced, NULL when the name is to stay as it is. */
static int find(const char *name, char **path)
{
    struct stat sb;
    struct local s;
    struct model_ref r;
    int n;
    *path = NULL;
    if (!*name)
        return cli_say(CLI_USE, "the name of the model is empty; wanted a file, a name that 'pith "
                                "list' shows, or a reference as hf:OWNER/REPO");
    if (!strcmp(name, "-") || !stat(name, &sb) || errno != ENOENT)
        return CLI_OK;
    int code = ref_parse(name, &r);
    code = code ? code : local_read(&s);
    if (code)
        return code;
    const struct local_model *m = local_find(&s, &r, name, 0, &n);
    if (n > 1) {
        code = say_several(&s, name);
    } else if (m && !local_is_whole(m)) {
        code = cli_say(CLI_INPUT,
                       "%s is here in part alone; 'pith pull %s%s%s' goes on where it ended", name,
                       *m->source ? m->source : "...", strncmp(m->source, "hf:", 3) ? "" : ":",
                       strncmp(m->source, "hf:", 3) ? "" : m->file);
    } else if (m) {
        *path = strdup(m->path);
        code = *path ? CLI_OK : cli_no_memory();
    } else if (r.kind != REF_NONE) {
        code = fetch(&r, name, path);
    } else if (!strchr(name, '/')) {
        const char *near = near_name(&s, name);
        code = cli_say(CLI_INPUT,
                       "%s: no file and no model of this name; %s%s%s'pith list' shows the models "
                       "that are here, ollama:NAME and hf:OWNER/REPO fetch one",
                       name, near ? "did you mean " : "", near ? near : "", near ? "? " : "");
    }
    local_free(&s);
    return code;
}

int cli_model_path(const char **name)
{
    static struct kept {
        struct kept *next;
        char *path;
    } * all;
    char *path;
    int code = find(*name, &path);
    if (code || !path)
        return code;
    struct kept *k = malloc(sizeof *k);
    if (!k) {
        free(path);
        return cli_no_memory();
    }
    *k = (struct kept){all, path};
    all = k;
    *name = path;
    return CLI_OK;
}
