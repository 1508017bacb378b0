/* far.h -- the far device: a backend whose memory the host cannot touch, for tests. It shows
 * without any hardware whether everything outside of backends keeps to the rules that a real device
 * has: its memory can be read and written while one of its own calls runs, and at no other time
 * (elsewhere an access faults); it comes in slabs of 1 MiB at offsets of 256 bytes, and a kernel
 * sees no more of a weight than one of them at once; there is no way to map or import; copies that
 * were begun finish when somebody waits for them and in an order of their own, drawn from a seed;
 * work that was submitted runs then, or at once.
 *
 * Its kernels are the reference of every op, so its bits are the reference's.
 *
 *     PITH_FAR_DEVICES=n   offers n of them beside the CPU (by default none)
 *     PITH_FAR_DELAY=us    what is submitted takes so long for each row at least, one after the
 *                          other, while the host does something else (by default no time)
 *
 * It fails when it is told to: far_plan. What is counted are calls that can fail, over all far
 * devices; those that give back (release, finish) cannot. */
#ifndef PITH_BACKEND_FAR_FAR_H
#define PITH_BACKEND_FAR_FAR_H

#include "graph/backend.h"

enum { FAR_SLAB = 1 << 20, FAR_ALIGN = 256, FAR_BYTES = 256 << 20 };

extern const struct backend backend_far;

struct far_plan {
    uint64_t fail_at;   /* this call fails, counted from 1; 0: none */
    uint64_t vanish_at; /* with this call the device is lost; 0: with none */
    uint64_t seed;      /* of the order of copies */
    uint64_t bytes;     /* memory of devices that are opened from now on; 0: FAR_BYTES */
    void (*on_call)(uint64_t n); /* hears of each call, in the thread that makes it; NULL: nobody */
    const char *lacks;  /* the name of an op that they have no kernel for; NULL: none */
};
/* From now on; counts from 0 again. */
void far_plan(const struct far_plan *p);
uint64_t far_calls(void);                      /* since then */
int far_most_moves(void); /* copies of one device that were under way together since then */
uint64_t far_live(void);                       /* bytes of slabs in use, over all devices */
const void *far_touch(const struct buffer *b); /* where its first byte would be, for a test that
                                                  wants to see it fault */

#endif
