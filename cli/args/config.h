/* config.h -- the configuration file: what flags would say, in lines.
 *
 *     # of every command that has such a flag
 *     threads = 4
 *     [serve]
 *     model = /srv/models/gemma.gguf
 *     allow-host = one.example
 *     allow-host = two.example
 *
 * A key is a flag's name without its dashes, or a positional argument's in small letters. A section
 * is a command; its lines go before those without a section. Blanks around keys and values do not
 * count; a value in double quotes keeps its own. What can be given several times takes several
 * lines. A line that is wrong or unknown anywhere in the file is refused, with its number: a typo
 * is never a default. */
#ifndef PITH_CLI_CONFIG_H
#define PITH_CLI_CONFIG_H

#include "cli/args/args.h"

struct config_line {
    const struct args_spec *section; /* NULL: for all commands */
    const char *key, *value;         /* in the file's text */
    int number;
};
struct config {
    const struct args_spec *const *commands; /* set by the caller, closed by NULL */
    char *path, *text;                       /* NULL: there is no file */
    struct config_line *lines;
    int n;
};

/* path NULL: $PITH_CONFIG, else the first of the usual places that has one; there may be none. 0: a
 * message went to stderr, and *c holds no lines. */
int config_open(struct config *c, const char *path);
void config_close(struct config *c);
/* Does the key stand for the flag or argument of this name? */
int config_names(const char *name, const char *key);
/* The k-th line for an argument of a command ("pith run"), NULL if there is none. */
const struct config_line *config_find(const struct config *c, const char *command, const char *name,
                                      int k);

#endif
