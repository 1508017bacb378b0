/* local.h -- the models on this machine: those in pith's own folder, and those other tools have in
 * theirs.
 *
 *     $PITH_MODELS, else $XDG_DATA_HOME/pith/models, else ~/.local/share/pith/models
 *         hf/OWNER/REPO/FILE.gguf            where a reference's files go (names.h); whoever puts a
 *             file anywhere below has a model there
 *         ollama/NAME/NAME-TAG.gguf
 *         https/HOST/PATH.gguf
 *             .gguf.part, .gguf.part.json    what is being fetched, and from where
 *
 * The files are the whole truth: there is no index. Folders of other tools are read and never
 * written. */
#ifndef PITH_CLI_LOCAL_H
#define PITH_CLI_LOCAL_H

#include <stddef.h>
#include <stdint.h>

#include "cli/models/names.h"

struct local_model {
    char *name;                    /* of its file, without .gguf; what it is called */
    char *path;                    /* the first part */
    char *source;                  /* "hf:owner/repo", "ollama:name:tag", "https://...", "" */
    char *file;                    /* in its source */
    const char *tool;              /* whose it is: "pith", "huggingface", ... */
    int n_parts, n_there, is_part; /* is_part: path is a .part that is not whole yet */
    int64_t bytes, modified;       /* of what is there; seconds since 1970 */
};
struct local {
    struct local_model *v;
    size_t n, cap;
    int no_memory;
};

/* pith's own folder. 0: it has no name (no HOME), or it is too long. */
int local_dir(char *out, size_t cap);
/* All models that are here; pith's own come first, each group by name. Returns an exit code. */
int local_read(struct local *s);
void local_free(struct local *s);
int local_is_whole(const struct local_model *m);
/* "name", "name.gguf", or what the list shows with its source or folder before it. */
int local_is_called(const struct local_model *m, const char *name);
/* How many parts of a split model are there behind its first one at path, whose stem is n_stem
 * long; *bytes of them. */
int local_count_parts(const char *path, size_t n_stem, int n_parts, int64_t *bytes);
/* The model a reference or name means, without asking anybody; NULL: none. Of several the first; *n
 * says how many there are in the same place. Only whole ones answer to a reference. own: only
 * pith's, whole or not. */
const struct local_model *local_find(const struct local *s, const struct model_ref *r,
                                     const char *name, int own, int *n);
/* Removes folders that are empty, from the one this file is in up to pith's own. */
void local_prune(const char *path);

/* ---------------------------------------------------------------- between local.c and
 * local_tools.c */

/* Calls on_file for each file of a folder and of those in it, without its first n_root + 1 bytes in
 * rel. A folder that links lead to more than once, or back to, is looked at once. */
struct walk {
    struct local *s;
    const char *tool;
    size_t n_root;
    void (*on_file)(struct walk *w, const char *path, const char *rel);
    struct walk_folder *seen; /* its own */
    size_t n_seen;
};
void local_walk(struct walk *w, const char *dir);
/* Takes a file as a model when its name says that it is one. name NULL: after its file. */
void local_add(struct local *s, const char *tool, const char *path, const char *name,
               const char *source, const char *file);
void local_read_tools(struct local *s);

#endif
