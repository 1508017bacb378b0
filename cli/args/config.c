/* config.c -- see config.h. */
#include "cli/args/config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/cli.h"

enum { PATH_BYTES = 4096 };

int config_names(const char *name, const char *key)
{
    return *name == '-' ? !strcmp(name + strspn(name, "-"), key) : !strcasecmp(name, key);
}

static const struct arg *find_row(const struct args_spec *spec, const char *key)
{
    const struct arg *a = spec->rows;
    while (a->name && !config_names(a->name, key))
        a++;
    return a->name ? a : NULL;
}

const struct config_line *config_find(const struct config *c, const char *command, const char *name,
                                      int k)
{
    const struct config_line *found = NULL;
    int n_own = 0, n_shared = 0;
    for (int i = 0; i < c->n; i++) {
        const struct config_line *l = &c->lines[i];
        if (!config_names(name, l->key) || (l->section && strcmp(l->section->command, command)))
            continue;
        if (l->section && !n_own)
            found = NULL; /* its own lines take the place of the shared ones */
        if (l->section ? n_own++ == k : !n_own && n_shared++ == k)
            found = l;
    }
    return found;
}

/* ---------------------------------------------------------------- lines */

static int bad(const struct config *c, int number, const char *what, const char *found,
               const char *near)
{
    fprintf(stderr, "pith: %s:%d: %s \"%.100s\"", c->path, number, what, found);
    if (near)
        fprintf(stderr, "; did you mean %s?", near);
    fputc('\n', stderr);
    return 0;
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *s)
{
    size_t n;
    s += strspn(s, " \t\r");
    for (n = strlen(s); n && strchr(" \t\r", s[n - 1]);)
        s[--n] = 0;
    return s;
}

static const struct args_spec *find_section(const struct config *c, const char *name)
{
    for (int i = 0; c->commands[i]; i++)
        if (!strcmp(strrchr(c->commands[i]->command, ' ') + 1, name))
            return c->commands[i];
    return NULL;
}

/* Is the key one of the section's, or of any command's? */
static int known(const struct config *c, const struct config_line *l)
{
    const char *names[256];
    int n = 0;
    for (int i = 0; c->commands[i]; i++) {
        if (l->section && c->commands[i] != l->section)
            continue;
        if (find_row(c->commands[i], l->key))
            return 1;
        for (const struct arg *a = c->commands[i]->rows; a->name && n < 255; a++)
            names[n++] = a->name + strspn(a->name, "-");
    }
    names[n] = NULL;
    return bad(c, l->number, "unknown key", l->key, args_nearest(l->key, names));
}

/* A line for one text that has another before it in its section would win or lose by chance. Of
 * those for several there may be many: they are not compared. */
static int is_new(const struct config *c, const struct config_line *l)
{
    const struct arg *a = NULL;
    for (int k = 0; !a && c->commands[k]; k++)
        a = !l->section || c->commands[k] == l->section ? find_row(c->commands[k], l->key) : NULL;
    for (int i = 0; a && a->type != ARG_TEXTS && i < c->n; i++) {
        const struct config_line *o = &c->lines[i];
        if (o->section == l->section && !strcmp(o->key, l->key))
            return bad(c, l->number, "a second line for", l->key, NULL);
    }
    return 1;
}

static int read_line(struct config *c, char *line, int number, const struct args_spec **section)
{
    struct config_line l = {.section = *section, .number = number};
    char *equals;
    line = trim(line);
    size_t n = strlen(line);
    if (!n || *line == '#' || *line == ';')
        return 1;
    if (*line == '[' && line[n - 1] == ']') {
        line[n - 1] = 0;
        *section = find_section(c, trim(line + 1));
        return *section ? 1 : bad(c, number, "there is no command", line + 1, NULL);
    }
    equals = strchr(line, '=');
    if (!equals) { /* the line is not shown: it may be a key */
        fprintf(stderr,
                "pith: %s:%d: found no \"=\" in the line, wanted key = value or [command]\n",
                c->path, number);
        return 0;
    }
    *equals = 0;
    char *value = trim(equals + 1);
    n = strlen(value);
    if (n >= 2 && *value == '"' && value[n - 1] == '"') {
        value[n - 1] = 0;
        value++;
    }
    l.key = trim(line);
    l.value = value;
    if (!known(c, &l) || !is_new(c, &l))
        return 0;
    c->lines[c->n++] = l;
    return 1;
}

static int read_lines(struct config *c)
{
    const struct args_spec *section = NULL;
    int n = 1;
    for (const char *p = c->text; *p; p++)
        n += *p == '\n';
    c->lines = calloc((size_t)n, sizeof *c->lines);
    if (!c->lines)
        return !cli_no_memory();
    n = 0;
    for (char *rest = c->text, *line; (line = strsep(&rest, "\n"));)
        if (!read_line(c, line, ++n, &section))
            return 0;
    return 1;
}

/* ---------------------------------------------------------------- the file */

/* The file of the usual places, in `path`. 0: there is none. */
static int usual(char *path)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    *path = 0;
    if (xdg && *xdg)
        snprintf(path, PATH_BYTES, "%s/pith/pith.conf", xdg);
    else if (home && *home)
        snprintf(path, PATH_BYTES, "%s/.config/pith/pith.conf", home);
    if (*path && !access(path, F_OK))
        return 1;
    strcpy(path, "/etc/pith/pith.conf");
    return !access(path, F_OK);
}

int config_open(struct config *c, const char *path)
{
    const char *variable = getenv("PITH_CONFIG");
    char place[PATH_BYTES];
    size_t n = 0;
    if (!path && variable && *variable)
        path = variable;
    if (!path && !usual(place))
        return 1;
    c->path = strdup(path ? path : place);
    if (!c->path)
        return !cli_no_memory();
    int ok = cli_read_file(c->path, &c->text, &n) == CLI_OK;
    if (ok && strlen(c->text) != n) {
        cli_say(CLI_INPUT, "%s holds a zero byte; wanted a text", c->path);
        ok = 0;
    }
    if (ok && read_lines(c))
        return 1;
    c->n = 0;
    return 0;
}

void config_close(struct config *c)
{
    free(c->path);
    free(c->text);
    free(c->lines);
    *c = (struct config){.commands = c->commands};
}
