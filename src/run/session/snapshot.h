/* snapshot.h -- between the files of snapshots: snapshot.c writes them and says what they are,
 * snapshot_load.c reads them. */
#ifndef PITH_RUN_SNAPSHOT_H
#define PITH_RUN_SNAPSHOT_H

#include "run/cache/cache_impl.h"
#include "run/sample/sample.h"
#include "run/session/session.h"

enum { VERSION = 6, VERSION_NO_NOTE = 5, VERSION_ONE_POSITION = 4 };
enum { N_SECTIONS = 7, MAGIC_BYTES = 8, HEAD = 24, SECTION_HEAD = 16, PAGES = 2, NOTE = 6 };
#define SNAPSHOT_MAGIC "pithsnap"

struct layout {
    uint64_t fingerprint[2], layers, block_bytes;
    uint32_t type_k, type_v, page, n_groups, n_seq, whole, numerics;
    uint32_t far; /* another set of RoPE than the first */
};
enum { HEAD_GROUPS = 8 }; /* of a sequence's own, whose `torn` is in its head; the others' follow */
struct seq_head {
    int32_t n, pure, edited, pending, n_tab;
    int32_t torn[HEAD_GROUPS], axed;
    uint64_t adapter[2]; /* what it was computed with */
};
struct memory_head {
    uint64_t hash[2];
    int32_t n, zero;
};
_Static_assert(sizeof(struct layout) == 64 && sizeof(struct seq_head) == 72 &&
                   sizeof(struct sampler_state) == 32 + 16 * SAMPLE_MAX_STEPS,
               "the format");

/* What the model and the session are, for those who go on from a snapshot. */
struct layout snapshot_layout(const struct pith_session *s, int32_t seq);
/* Groups whose `torn` comes after the head. */
static inline int32_t snapshot_more_groups(const struct cache *c)
{
    return c->n_own > HEAD_GROUPS ? c->n_own - HEAD_GROUPS : 0;
}
/* Entries of the page table of a group: n_tab of those of tokens. */
int32_t snapshot_group_length(const struct cache *c, int g, int32_t n_tab, int32_t n_memory);
/* Bytes, of pages in canonical form and blocks of recurrent state. */
uint64_t snapshot_longest_part(const struct pith_session *s);
pith_status snapshot_check_vocabulary(const struct pith_session *s,
                                      const struct pith_sampler *sampler, struct pith_error *err);
/* A hash of what a sequence holds, and where. */
uint64_t snapshot_state(const struct pith_session *s, int32_t seq);

#endif
