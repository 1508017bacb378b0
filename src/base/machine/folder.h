/* folder.h -- folders of files that can be made anew (caches), shared by any number of processes:
 * room is made by removing what was unused for longest, and nothing is touched whose name is not
 * exactly one of ours. */
#ifndef PITH_BASE_FOLDER_H
#define PITH_BASE_FOLDER_H

#include "base/error.h"

struct folder_room {
    int (*is_ours)(const char *name, size_t n); /* is this the whole name of such a file? */
    const char *mine;    /* a file that is neither counted nor removed; NULL: none */
    uint64_t limit;      /* bytes that the others may have */
    uint64_t free_after; /* bytes that have to be free in the file system afterwards; 0: any */
    int asks;            /* 1: nothing is removed, only `fits` is told */
    uint64_t sum;        /* out: bytes that the others have, temporary files of writers included */
    int fits; /* out: limit and free_after are kept; 0: they cannot be, and nothing was removed for
                 it that was seen to be in vain */
};
/* Removes the oldest of our regular files, by time of change, until the limit is kept; and
 * temporary files (struct file_writer) whose writers are no more. */
pith_status folder_tidy(const char *path, struct folder_room *r, struct pith_error *err);
/* 1: name[0, n) is so many lower-case hexadecimal digits and then the suffix; a '#' in it stands
 * for one or more decimal digits. */
int folder_name_fits(const char *name, size_t n, int n_hex, const char *suffix);

/* The file ".lock" in a folder, that whoever writes holds, so that limits are kept by all processes
 * together; it also keeps a count. */
int folder_lock_open(const char *path); /* -1: there is none, and nobody can be agreed with */
void folder_lock_close(int fd);
int folder_lock_take(int fd); /* 0: somebody holds it for longer than a second. fd -1, or no locks
                                 in this file system: 1 */
void folder_lock_give(int fd);
int folder_count_get(int fd, uint64_t *n); /* 0: nobody has counted yet */
void folder_count_set(int fd, uint64_t n);

#endif
