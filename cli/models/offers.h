/* offers.h -- the models that pith serve offers: those named on the command line, and those of a
 * folder. */
#ifndef PITH_CLI_OFFERS_H
#define PITH_CLI_OFFERS_H

#include "server/server.h"
#include "cli/args/args.h"

struct offer_file; /* which file a model is */
struct offers {
    struct server_model *v;       /* names and paths are its own */
    struct offer_file *files;     /* [n] */
    struct server_alias *aliases; /* names are its own */
    int n, n_aliases;
};
/* Names are those of the files, without ".gguf" and the number of a part; `name` (NULL: that) is
 * that of a single model. Aliases are those, the files' names, what the command line says, and what
 * the file calls itself. Two models of one name are refused. Returns an exit code. */
int offers_open(struct offers *o, const struct arg_texts *paths, const char *folder,
                const char *name);
/* A further name: NAME of the first model, MODEL=NAME of the one that is called so (its name, its
 * path, or another name of it). Refused where none is, or where another answers to NAME. Returns an
 * exit code. */
int offers_alias(struct offers *o, const char *text);
void offers_close(struct offers *o);
/* Three quarters of the machine's memory: what several models may take together where nothing else
 * is said. */
uint64_t offers_memory(void);

#endif
