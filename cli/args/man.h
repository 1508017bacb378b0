/* man.h -- the manual page, made from the tables of the commands. */
#ifndef PITH_CLI_MAN_H
#define PITH_CLI_MAN_H

#include "cli/cli.h"

/* In the man macros of troff: man -l, or install as pith.1. */
void man_print(const struct command *const *commands, int n, FILE *to);
/* At a terminal the page through 'man', where there is one; else its source. */
void man_show(const struct command *const *commands, int n);

#endif
