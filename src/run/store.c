/* store.c -- see store.h. */
#include "run/store.h"

#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "run/cache_impl.h"

static uint64_t entry_bytes(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += (uint64_t)c->group[g].page_bytes;
    return n;
}

pith_status store_init(struct store *t, struct cache *c, uint64_t budget, uint64_t root,
                       struct pith_error *err)
{
    memset(t, 0, sizeof *t);
    uint64_t cap = entry_bytes(c) ? budget / entry_bytes(c) : 0;
    if (!cap)
        return PITH_OK;
    t->cap = (int32_t)(cap < INT32_MAX / 4 ? cap : INT32_MAX / 4);
    t->budget = budget;
    t->root = root;
    for (t->mask = 15; t->mask < (uint32_t)t->cap; t->mask = t->mask * 2 + 1)
        ;
    t->entry = mem_array((size_t)t->cap, sizeof *t->entry, PITH_MEM_CACHE);
    t->bucket = mem_array((size_t)t->mask + 1, sizeof *t->bucket, PITH_MEM_CACHE);
    if (!t->entry || !t->bucket) {
        store_deinit(t);
        return error_set(err, PITH_NOMEM, "out of memory for a prefix store of %llu pages",
                         (unsigned long long)cap);
    }
    for (uint32_t i = 0; i <= t->mask; i++)
        t->bucket[i] = -1;
    for (int32_t i = 0; i < t->cap; i++)
        t->entry[i].next = i + 1 < t->cap ? i + 1 : -1;
    c->store = t;
    return PITH_OK;
}

void store_deinit(struct store *t) /* the pools go with the cache */
{
    mem_free(t->entry);
    mem_free(t->bucket);
    memset(t, 0, sizeof *t);
}

/* ---------------------------------------------------------------- finding */

static uint64_t key_of(const struct store *t, int32_t parent, const int32_t *token)
{
    return XXH3_64bits_withSeed(token, STEP_PAGE * sizeof *token,
                                parent < 0 ? t->root : t->entry[parent].key);
}

/* The entry of 64 tokens after parent, -1: none. */
static int32_t find(const struct store *t, int32_t parent, const int32_t *token)
{
    uint64_t key = key_of(t, parent, token);
    int32_t i = t->bucket[key & t->mask];
    while (i >= 0 && (t->entry[i].key != key || t->entry[i].parent != parent ||
                      memcmp(t->entry[i].token, token, sizeof t->entry[i].token) != 0))
        i = t->entry[i].next;
    return i;
}

/* Entry i pages before `leaf`. */
static int32_t ancestor(const struct store *t, int32_t leaf, int32_t i)
{
    while (i-- > 0)
        leaf = t->entry[leaf].parent;
    return leaf;
}

/* The first page that a row after `pages` pages sees in a group. */
static int32_t first_seen(const struct cache_group *g, int32_t pages)
{
    int64_t slot = (int64_t)pages * STEP_PAGE - g->window + 1;
    return g->window && slot > 0 ? (int32_t)(slot / STEP_PAGE) : 0;
}

/* Does the chain that ends at `leaf` hold what a row after it sees in groups with a window? */
static int can_go_on(const struct store *t, const struct cache *c, int32_t leaf, int32_t pages)
{
    for (int g = 0; g < c->n_groups; g++)
        for (int32_t i = pages - 1; c->group[g].window && i >= first_seen(&c->group[g], pages); i--)
            if (t->entry[ancestor(t, leaf, pages - 1 - i)].page[g] < 0)
                return 0;
    return 1;
}

/* Where the tokens leave the tree: the known page after parent that has most in common with them. */
static void find_miss(const struct store *t, int32_t parent, const int32_t *token, int32_t n,
                      int32_t at, struct store_miss *miss)
{
    int32_t best = -1;
    for (int32_t i = 0; i < t->cap; i++) {
        const struct store_entry *e = &t->entry[i];
        int32_t same = 0, most = n - at < STEP_PAGE ? n - at : STEP_PAGE;
        if (!e->used || e->parent != parent)
            continue;
        while (same < most && e->token[same] == token[at + same])
            same++;
        if (same <= best || same == most)
            continue;
        best = same;
        *miss = (struct store_miss){.at = at + same, .token = e->token[same]};
    }
}

int32_t store_match(const struct store *t, const struct cache *c, const int32_t *token, int32_t n,
                    struct store_miss *miss)
{
    int32_t leaf = -1, pages = 0, found = 0;
    *miss = (struct store_miss){-1, -1};
    while (t->cap && (pages + 1) * STEP_PAGE <= n) {
        int32_t next = find(t, leaf, token + pages * STEP_PAGE);
        if (next < 0)
            break;
        leaf = next;
        if (can_go_on(t, c, leaf, ++pages))
            found = pages;
    }
    if (t->cap)
        find_miss(t, leaf, token, n, pages * STEP_PAGE, miss);
    return found * STEP_PAGE;
}

void store_take(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t p)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t leaf = -1, pages = p / STEP_PAGE;
    uint64_t now = ++t->clock;
    for (int32_t i = 0; i < pages; i++) {
        struct store_entry *e = &t->entry[leaf = find(t, leaf, token + i * STEP_PAGE)];
        e->used = now;
        for (int g = 0; g < c->n_groups; g++) {
            if (i < first_seen(&c->group[g], pages) || e->page[g] < 0)
                continue;
            c->group[g].refs[e->page[g]]++;
            q->pages[g][i] = e->page[g];
            if (c->group[g].window)
                e->used_window = now;
        }
    }
    memcpy(q->token, token, (size_t)p * sizeof *token);
    q->n = q->floor = q->pure = p;
}

/* ---------------------------------------------------------------- letting go */

static void release(struct store *t, struct cache *c, struct store_entry *e, int windows_only)
{
    for (int g = 0; g < c->n_groups; g++) {
        if (e->page[g] < 0 || (windows_only && !c->group[g].window))
            continue;
        page_unref(&c->group[g], &e->page[g]);
        t->bytes -= (uint64_t)c->group[g].page_bytes;
        t->held[g]--;
    }
}

static void forget(struct store *t, struct cache *c, int32_t i)
{
    struct store_entry *e = &t->entry[i];
    int32_t *at = &t->bucket[e->key & t->mask];
    while (*at != i)
        at = &t->entry[*at].next;
    *at = e->next;
    release(t, c, e, 0);
    if (e->parent >= 0)
        t->entry[e->parent].n_children--;
    e->used = 0;
    e->next = t->free;
    t->free = i;
}

/* 1: letting it go frees a page of the group; group -1: no matter which, nor whether sequences use it. */
static int frees(const struct cache *c, const struct store_entry *e, int group, int windows_only)
{
    if (group < 0 && !windows_only)
        return 1;
    for (int g = 0; g < c->n_groups; g++)
        if (e->page[g] >= 0 && (!windows_only || c->group[g].window) &&
            (group < 0 || (g == group && c->group[g].refs[e->page[g]] == 1)))
            return 1;
    return 0;
}

/* Lets the least recently used go; spare: an entry that stays. */
static int evict(struct store *t, struct cache *c, int group, int32_t spare)
{
    int32_t victim = -1;
    int windows_only = 0;
    uint64_t oldest = UINT64_MAX;
    for (int32_t i = 0; i < t->cap; i++) {
        const struct store_entry *e = &t->entry[i];
        if (!e->used || i == spare)
            continue;
        if (e->used_window < oldest && frees(c, e, group, 1)) {
            victim = i;
            windows_only = 1;
            oldest = e->used_window;
        }
        if (!e->n_children && e->used < oldest && frees(c, e, group, 0)) {
            victim = i;
            windows_only = 0;
            oldest = e->used;
        }
    }
    if (victim < 0)
        return 0;
    if (windows_only)
        release(t, c, &t->entry[victim], 1);
    else
        forget(t, c, victim);
    return 1;
}

int store_evict(struct store *t, struct cache *c, int group)
{
    return evict(t, c, group, -1);
}

/* ---------------------------------------------------------------- taking in */

static int32_t add(struct store *t, struct cache *c, int32_t parent, const int32_t *token)
{
    while (t->free < 0)
        if (!evict(t, c, -1, parent))
            return -1;
    int32_t i = t->free;
    struct store_entry *e = &t->entry[i];
    t->free = e->next;
    e->parent = parent;
    e->n_children = 0;
    e->key = key_of(t, parent, token);
    memcpy(e->token, token, sizeof e->token);
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        e->page[g] = -1;
    e->next = t->bucket[e->key & t->mask];
    t->bucket[e->key & t->mask] = i;
    if (parent >= 0)
        t->entry[parent].n_children++;
    return i;
}

/* Pages the entry has not yet and the sequence has. */
static void fill(struct store *t, struct cache *c, struct store_entry *e, const struct cache_seq *q,
                 int32_t page)
{
    for (int g = 0; g < c->n_groups; g++) {
        if (e->page[g] >= 0 || q->pages[g][page] < 0)
            continue;
        e->page[g] = q->pages[g][page];
        c->group[g].refs[e->page[g]]++;
        t->bytes += (uint64_t)c->group[g].page_bytes;
        t->held[g]++;
        if (c->group[g].window)
            e->used_window = t->clock;
    }
}

void store_publish(struct store *t, struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t pages = q->pure / STEP_PAGE, parent = -1;
    if (!t->cap || pages <= q->published || q->pending) {
        q->published = pages < q->published ? pages : q->published;
        return;
    }
    t->clock++;
    for (int32_t i = 0; i < pages; i++) {
        const int32_t *token = q->token + i * STEP_PAGE;
        for (int k = 0; k < STEP_PAGE; k++)
            if (token[k] < 0) /* an embedding row: its number does not tell it */
                return;
        int32_t e = find(t, parent, token), known = e >= 0;
        if (!known && (e = add(t, c, parent, token)) < 0)
            return;
        t->entry[e].used = t->clock;
        if (!known || i >= q->published)
            fill(t, c, &t->entry[e], q, i);
        while (t->bytes > t->budget && evict(t, c, -1, e))
            ;
        parent = e;
    }
    q->published = pages;
}
