/* store_disk.h -- the prefix store's folder: a file for each part of each entry.
 *
 *     <key, 32 hex digits>-<part>.page:   struct page_head | the page in canonical form (kv_page.h), or the block | XXH3-128 of all before
 *
 * A file's name is the hash of everything its bits depend on: model, cache types and layout (the root), and all tokens up to the page's
 * end. So files are never changed, only made and removed; any number of processes share a folder, and it does not
 * matter whose file stays. Files are written under another name and renamed, without waiting for the disk: a process that is killed leaves whole files
 * and a temporary one, which the next one to open the folder removes; what a power cut tears the checksum finds. A file that is not what
 * its name says is counted, removed and computed anew. Nothing here fails: what could not be done is a line in the report.
 *
 * One thread writes; the session only puts entries in its queue, so no call waits for a file but those that bring pages back (store_match)
 * and those that need memory which only the entries in the queue hold (store_disk_wait).
 *
 * Bytes are limited: files unused for longest go. Using a prefix marks its files, the last page first, so that its
 * beginning stays longest.
 *
 * Not done: telling apart tokens whose 128-bit hashes are equal by design; a folder is as private as its owner keeps it. */
#ifndef PITH_RUN_STORE_DISK_H
#define PITH_RUN_STORE_DISK_H

#include "run/store.h"

struct str;
pith_status store_disk_open(struct store *t, const struct cache *c, const struct store_params *p,
                            struct pith_error *err);
void store_disk_close(struct store_disk *d); /* writes what waits; NULL allowed */
/* Writes the entry's pages when there is time. */
void store_disk_put(struct store_disk *d, struct store_entry *e);
int store_disk_wait(struct store_disk *d); /* until one more is written; 0: none waits */
int store_disk_has(const struct store_disk *d, const uint64_t key[2], int part);
/* Fills a page with what the folder has for the entry; 0: it has nothing that can be used, and what was damaged it has no longer. */
int store_disk_read(struct store_disk *d, struct cache *c, const struct store_entry *e, int part,
                    int32_t page);
/* Marks the entry's files as used; 0: one of them is gone. */
int store_disk_touch(struct store_disk *d, const struct store_entry *e);
void store_disk_report(struct store_disk *d, int json, struct str *out);

#endif
