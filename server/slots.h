/* slots.h -- see slots.c. All of it on the scheduler's thread (sched_call). */
#ifndef PITH_SERVER_SLOTS_H
#define PITH_SERVER_SLOTS_H

#include "scheduler.h"

struct slot_info { /* of one that is busy: tokens of its prompt, those computed so far, found, made; most to make */
    int busy;
    int64_t n_prompt, n_fed, n_cached, n_made, n_max, n_kept; /* n_kept: tokens of the last choice that named this slot */
};
struct slots_look {
    struct sched *s;
    int n, most;
    struct slot_info *v; /* [most] */
};
void slots_look(void *look);

enum slot_what { SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE };
struct slot_job {
    struct sched *s;
    enum slot_what what;
    int slot, tenant; /* tenant: whose prefixes are looked at */
    const char *path;
    int64_t n; /* out: tokens */
    struct pith_error err;
};
void slot_work(void *job);

#endif
