/* pull.h -- fetching models: what pull_plan.c (which files), pull_file.c (one file), pull_meter.c
 * (how far) and cmd_pull.c share.
 *
 *     reference --plan--> files: address, size, SHA-256 --http--> NAME.part --checked, renamed-->
 *         NAME
 *
 * A file grows as NAME.part, locked by whoever writes it, with NAME.part.json beside it saying what
 * it is the beginning of; killed at any moment, the next pull goes on from there. NAME is there
 * only when its size, its SHA-256 (where the server tells one) and its header have been checked and
 * its bytes are on the disk. */
#ifndef PITH_CLI_PULL_H
#define PITH_CLI_PULL_H

#include <stddef.h>
#include <stdint.h>

#include "cli/pull/pull_http.h"
#include "cli/models/names.h"

struct pull_opts {
    int64_t retries; /* of what may work the next time */
    double backoff;  /* seconds before the first, then twice as long each time */
    double timeout;  /* seconds without a byte */
    int any;         /* of architectures that this build does not know, too */
};

/* Fetches what a reference means, unless it is here as its server has it. o NULL: the usual. *path
 * (malloc): the first file. Returns an exit code, the message is out. */
int pull_model(const struct model_ref *r, const struct pull_opts *o, char **path);

/* ---------------------------------------------------------------- which files (pull_plan.c) */

struct pull_file {
    char url[4096], path[2048]; /* path: below the models' folder */
    char sha256[65];            /* "": not known */
    int64_t bytes;              /* -1: not known */
};
struct pull {
    const struct pull_opts *o;
    const struct model_ref *ref;
    struct http_client *http;
    struct pull_file *files;
    size_t n;
    char name[2048];  /* of the reference, for messages */
    char origin[512]; /* the server that gets the token */
    char token[1024]; /* "": none */
};
/* Fills files, n, origin and token. Returns an exit code. */
int pull_plan(struct pull *p);

/* After an answer that is not what was wanted: 1 when another try may bring it, after having said
 * why and waited; else 0 with *code, the message is out. *n counts tries, `what` is what they are
 * for. */
int pull_again(const struct pull *p, int *n, const char *what, enum http_end end,
               const struct http_answer *a, const char *why, int *code);

/* ---------------------------------------------------------------- one file (pull_file.c) */

/* SHA-256 of a file's first bytes as text. Returns an exit code. */
int pull_hash(const char *path, int64_t bytes, char out[65]);
/* bytes_after: of the files that come after it. */
int pull_file(struct pull *p, size_t i, const char *dir, int64_t bytes_after);

/* ---------------------------------------------------------------- how far it is (pull_meter.c) */

struct meter {
    const char *name;
    int64_t have, total; /* total -1: not known */
    int is_terminal, is_drawn, tenth;
    double rate, drawn; /* bytes/s, lately; when */
    int64_t drawn_have;
};
void meter_start(struct meter *m, const char *name, int64_t have, int64_t total);
void meter_show(struct meter *m, int64_t have, int64_t total);
void meter_clear(struct meter *m); /* makes room for a message */

#endif
