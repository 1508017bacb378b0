/* folder.h -- folders of files that can be made anew (caches): room is made by removing what was unused for longest. */
#ifndef PITH_BASE_FOLDER_H
#define PITH_BASE_FOLDER_H

#include "base/error.h"

/* Of the regular files whose names end in `suffix`, but for `mine` (NULL: none), removes the oldest by time of change until the others have
 * at most `limit` bytes (*sum: what they have; more than limit when some could not be removed). Removes temporary files of writers
 * (struct file_writer) that are no more. */
pith_status folder_tidy(const char *path, const char *suffix, const char *mine, uint64_t limit,
                        uint64_t *sum, struct pith_error *err);

#endif
