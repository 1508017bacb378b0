/* file.h -- files: whole-file mapping, positioned reads, atomic writing. Errors name the path and
 * say why. */
#ifndef PITH_BASE_FILE_H
#define PITH_BASE_FILE_H

#include <stdatomic.h>
#include <stdio.h>
#include "base/error.h"

struct file_map { /* a read-only private mapping of a whole file */
    const uint8_t *p;
    uint64_t n;
    int fd;
    int64_t mtime_ns;
    uint64_t inode;
};
/* Fails clearly on: missing, no permission, directory or other non-regular file, empty file. */
pith_status file_map_open(struct file_map *m, const char *path, struct pith_error *err);
void file_map_close(struct file_map *m);
void file_map_drop(const struct file_map *m, uint64_t off,
                   uint64_t n); /* lets whole pages inside the range go */
/* 1: the system tells which of its pages are in memory. Of files that this user could not write it
 * says that all are. */
int file_map_tells(const struct file_map *m);
void file_map_want(const struct file_map *m, uint64_t off,
                   uint64_t n); /* asks for the range's pages, without waiting for them */
/* Reads exactly n bytes at off; PITH_IO names path, offset and cause ("file ends at ..."). */
pith_status file_read_at(int fd, const char *path, void *buf, uint64_t n, uint64_t off,
                         struct pith_error *err);
/* Reads a small file (of /proc, /sys) into terminated text, cut at cap; 0 when it cannot or it is
 * empty. */
int file_read_small(const char *path, char *buf, size_t cap);
/* Whole small file into a terminated heap block (mem_free), at most max bytes. path "-" reads
 * stdin. Of a pipe it is what its writers write, until *stop (NULL: never); one that has no writer
 * is refused and not waited for. */
char *file_read_all(const char *path, uint64_t max, uint64_t *n, pith_purpose purpose,
                    const atomic_int *stop, struct pith_error *err);

/* Writes to "path.tmp-PID-N" and renames on commit; discard removes it. Sticky failure; commit
 * reports it. A link stays, its target is replaced. What is no regular file (a device, a pipe, also
 * /dev/stdout when that is a file) is written as it is; a folder is refused. */
struct file_writer {
    FILE *f;
    char path[4096], tmp[4128]; /* tmp "": path is written itself */
    uint64_t n;
    int failed_errno;
    int unsynced; /* set after open: commit does not wait for the disk; for files that their readers
                     check */
};
pith_status file_writer_open(struct file_writer *w, const char *path, struct pith_error *err);
/* The same; others than the owner may not read the file. */
pith_status file_writer_open_private(struct file_writer *w, const char *path,
                                     struct pith_error *err);
/* A file of the program's own, in a cache folder: a link, a pipe or what else stands there is an
 * error, and neither followed nor written to. private: nobody else may read it. */
pith_status file_writer_open_own(struct file_writer *w, const char *path, int private,
                                 struct pith_error *err);
void file_writer_put(struct file_writer *w, const void *p, uint64_t n);
pith_status file_writer_commit(struct file_writer *w, struct pith_error *err);
void file_writer_discard(struct file_writer *w);

#endif
