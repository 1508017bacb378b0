/* plugin.h -- the kernels of a backend, as a file beside the program: pith-NAME.kernels, which the
 * build makes (packaging/plugin.sh). It is data for a device's driver: nothing of it runs in this
 * process, so one file serves the program, both libraries and every libc. It is opened when a
 * device is.
 *
 *     pith-kernels 1 CKSUM BYTES   a line of 48 bytes; of all after it, as POSIX cksum has them
 *     NAME BUILD MADE              backend; a hash of the sources; the version of their compiler
 *     KERNELS BYTES                a line for each file of kernels; the last line is empty
 *     ..                           these files, each from a multiple of 16 bytes on */
#ifndef PITH_BACKEND_GPU_PLUGIN_H
#define PITH_BACKEND_GPU_PLUGIN_H

#include "base/error.h"

enum { PLUGIN_PATH = 4096, PLUGIN_FILES = 48, PLUGIN_WORD = 24 };

struct plugin_file {
    char name[PLUGIN_WORD];
    const void *p;
    uint64_t n;
};
struct plugin {
    char *all; /* the whole file, which the others are parts of */
    int64_t made;
    int n;
    struct plugin_file file[PLUGIN_FILES];
};

/* Where the file of a backend is: the first that is there of the folder of the program or library
 * that this is in, ../lib/pith from there, and the folder PITH_PLUGINS. PITH_MISSING names it and
 * the places. */
pith_status plugin_path(const char *name, char path[PLUGIN_PATH], struct pith_error *err);
/* Reads and checks it. PITH_FORMAT: it is damaged; PITH_UNSUPPORTED: it is another backend's or of
 * another build than `build`. */
pith_status plugin_open(const char *name, const char *build, struct plugin *out,
                        struct pith_error *err);
void plugin_close(struct plugin *p); /* zeroed is allowed */
const struct plugin_file *plugin_find(const struct plugin *p, const char *name); /* NULL: none */

#endif
