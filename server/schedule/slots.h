/* slots.h -- see slots.c, whose functions are for the scheduler's thread (sched_call): they copy or
 * look, and are soon done. */
#ifndef PITH_SERVER_SLOTS_H
#define PITH_SERVER_SLOTS_H

#include "server/json.h"
#include "server/models/hosted.h"
#include "server/schedule/scheduler.h"

struct slot_info {
    int busy; /* 2: with a choice of another key, of which nothing else is told */
    int64_t n_prompt, n_fed, n_cached; /* of one that is busy: tokens, computed so far, found */
    int64_t n_made, n_max;             /* likewise, made and most to make */
    int64_t n_kept;                    /* tokens of the last choice that named this slot */
};
struct slots_look {
    struct sched *s;
    const struct tenant *of; /* of others only that they are busy is told; NULL: everything */
    int n, most;
    struct slot_info *v; /* [most] */
};
void slots_look(void *look);

struct slot_job { /* of a slot that there is */
    struct sched *s;
    int slot;
    int32_t *ids; /* out: [n], malloc; NULL: out of memory */
    int64_t n;    /* out: tokens */
};
void slot_copy(void *job);
void slot_erase(void *job); /* tells n alone */

/* slot_file.c, on any thread: the tokens as a file. 0: *f, and the file is what it was before.
 * *bytes: of the file. */
int slot_write(const struct hosted *m, const char *folder, const char *name, const int32_t *ids,
               int64_t n, int64_t *bytes, struct fault *f);
/* ids: malloc; at most a context of them. */
int slot_read(const struct hosted *m, const char *folder, const char *name, int32_t **ids,
              int64_t *n, int64_t *bytes, struct fault *f);

#endif
