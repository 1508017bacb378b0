/* packed_file.h -- a copy of a model's packed weights in a folder, so that the next start maps it
 * instead of packing again. */
#ifndef PITH_RUN_PACKED_FILE_H
#define PITH_RUN_PACKED_FILE_H

#include "base/machine/file.h"
#include "base/str.h"

struct pith_model;

struct packed_file {
    char path[4096];
    struct file_map map;      /* p NULL: nothing mapped */
    struct tensor **matrices; /* [n] those of the model that are packed, in order */
    int32_t n;
    uint8_t *head; /* what the file begins with, but for the checksums: see packed_file.c */
    uint64_t head_bytes, bytes; /* bytes: of the whole file */
};

/* Describes the copy of the placed matrices of m in the folder m->params.cache_dir. Fails for want
 * of memory, or a name too long. */
pith_status packed_file_init(struct packed_file *f, const struct pith_model *m,
                             struct pith_error *err);
void packed_file_deinit(struct packed_file *f); /* zeroed is allowed */
/* Maps it when it is there, is of this model as it is now, and every checksum is or was right
 * (looked at by all threads of m). A file that is there and cannot be used is told of in *note and
 * is no error; PITH_CANCELLED when the progress callback says so. */
pith_status packed_file_open(struct packed_file *f, const struct pith_model *m, struct str *note,
                             struct pith_error *err);
/* Of a packed matrix in the mapped file. */
uint64_t packed_file_offset(const struct packed_file *f, const struct tensor *t);
/* Could it be kept now? Nothing is removed for it. 0: *note says why not. */
int packed_file_fits(const struct packed_file *f, const struct pith_model *m, struct str *note);
/* Writes the packed matrices and puts the file in place; the copies that were not used for longest
 * go when the folder would hold more than its limit. What stands in the way is told in *note and is
 * no error; PITH_CANCELLED when the progress callback says so. */
pith_status packed_file_keep(struct packed_file *f, const struct pith_model *m, struct str *note,
                             struct pith_error *err);

#endif
