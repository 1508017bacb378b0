/* store_disk.h -- the prefix store's folder: a file for each part of each entry.
 *
 *     <key, 32 hex digits>-<part>.page:   struct page_head | the page in canonical form
 *         (kv_page.h), or the block | XXH3-128 of all before
 *
 * A file's name is the hash of everything its bits depend on: model, cache types and layout, what
 * computes beside CPUs (the root), the salt, and all tokens up to the page's end. So files are
 * never changed, only made and removed, and what is there is not written again; any number of
 * processes share a folder, and it does not matter whose file stays. Files are written under
 * another name and renamed, without waiting for the disk: a process that is killed leaves whole
 * files and a temporary one, which the next one to open the folder removes; what a power cut tears
 * the checksum finds. A file that is not what its name says is counted, removed and computed anew.
 * Nothing here fails: what could not be done is a line in the report. After the k-th failure in a
 * row the next 2^k - 1 pages (1,023 at most) are not tried.
 *
 * One thread writes; the session only puts entries in its queue and takes them back, so no call
 * waits for a file but those that bring pages back (store_match), which all threads read and which
 * end when the session is cancelled, or between two pieces when the caller's work has to.
 *
 * Bytes are limited for all processes together: who writes holds the lock of the file ".lock" and
 * counts in it. Files unused for longest go. Using a prefix marks its files, the last page first,
 * so that its beginning stays longest. Only files with names as above are touched.
 *
 * A folder that is made is this user's alone (0700), and so is every file (0600), for prompts can
 * be read back from them.
 *
 * Not done: telling apart tokens whose 128-bit hashes are equal by design; a folder is as private
 * as its owner keeps it. */
#ifndef PITH_RUN_STORE_DISK_H
#define PITH_RUN_STORE_DISK_H

#include "run/cache/store.h"

struct str;
pith_status store_disk_open(struct store *t, const struct cache *c, const struct store_params *p,
                            struct pith_error *err);
/* Bytes it takes, of a store whose parts and readers are known. */
uint64_t store_disk_bytes(const struct store *t, const struct cache *c);
void store_disk_close(struct store_disk *d); /* writes what waits; NULL allowed */
/* Writes the entry's pages when there is time, or marks their files as used; 0: nobody does. */
int store_disk_put(struct store_disk *d, int32_t entry);
int32_t store_disk_done(struct store_disk *d); /* the next that this has been done for, -1: none */
int32_t store_disk_take_back(struct store_disk *d); /* the last that waits, -1: none */
/* Takes this one back, if it waits; patient: one that is just being written is done afterwards. */
int store_disk_borrow(struct store_disk *d, int32_t entry, int patient);
int store_disk_wait(struct store_disk *d);  /* until one more is done; 0: none waits */
void store_disk_skip(struct store_disk *d); /* a page could not wait: counted */
int store_disk_has(const struct store_disk *d, const uint64_t key[2], int part);
/* Fills a page with what the folder has for the entry; 0: it has nothing that can be used, and what
 * was damaged it has no longer. ith: of the store's readers. */
int store_disk_read(struct store_disk *d, struct cache *c, const struct store_entry *e, int part,
                    int32_t page, int ith);
void store_disk_report(struct store_disk *d, int json, struct str *out);

#endif
