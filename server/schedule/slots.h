/* slots.h -- see slots.c, whose functions are for the scheduler's thread (sched_call): they copy or
 * look, and are soon done. What was computed of a slot is much: it is copied in pieces, between
 * which others have their steps. */
#ifndef PITH_SERVER_SLOTS_H
#define PITH_SERVER_SLOTS_H

#include "server/json.h"
#include "server/hosted.h"
#include "server/schedule/scheduler.h"

struct slot_info {
    int busy; /* 2: with a choice of another key, of which nothing else is told */
    uint64_t task;  /* its number, from 0 on */
    char *settings; /* how its tokens are chosen: JSON, malloc; NULL: not told */
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

/* Tokens, and what was computed of their beginning (a snapshot), which may be missing. */
struct slot_text {
    int32_t *ids; /* [n], malloc */
    int64_t n;
    unsigned char *kept; /* [n_kept] bytes, malloc; NULL: none */
    size_t n_kept;
    struct tenant *tenant; /* whose account has these */
};
void slot_text_free(struct server *s, struct slot_text *t);

struct slot_job { /* of a slot that there is */
    struct sched *s;
    int slot;
    struct slot_text text; /* out of slot_copy, without ids: out of memory; into slot_load */
    int64_t n_loaded;      /* out of slot_load: tokens whose beginning is in the prefix store now */
    struct tenant *tenant; /* who asks */
    struct fault *fault;   /* of slot_load: it is damaged, or of another model */
    int waits;             /* out of slot_copy and slot_load: another slot is being copied */
    uint64_t copy;         /* out of them: number of a copy that goes on, 0: it is done */
};
void slot_copy(void *job);
void slot_copy_on(void *job);  /* text is whole, or has no more than ids, when copy is 0 */
void slot_load(void *job);     /* what cannot be taken in is left out, and computed again */
void slot_load_on(void *job);  /* n_loaded, or *fault, is there when copy is 0 */
void slot_copy_end(void *job); /* of either: nobody waits for it any more */
void slot_erase(void *job);    /* tells text.n alone */

#endif
