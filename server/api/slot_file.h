/* slot_file.h -- the text of a slot as a file; on any thread. */
#ifndef PITH_SERVER_API_SLOT_FILE_H
#define PITH_SERVER_API_SLOT_FILE_H

#include "server/hosted.h"
#include "server/json.h"
#include "server/schedule/slots.h"

/* 0: *f, and the file is what it was before. *bytes: of the file. */
int slot_write(const struct hosted *m, const char *folder, const char *name,
               const struct slot_text *t, int64_t *bytes, struct fault *f);
/* *t, whose tenant is given: at most a context of ids; what was computed where the account has room
 * for it. */
int slot_read(const struct hosted *m, const char *folder, const char *name, struct slot_text *t,
              int64_t *bytes, struct fault *f);

#endif
