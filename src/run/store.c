/* store.c -- see store.h. */
#include "run/store.h"

#include <string.h>
#include <xxhash.h>
#include "base/hash.h"
#include "base/mem.h"
#include "run/cache_impl.h"
#include "run/store_disk.h"

/* ---------------------------------------------------------------- parts */

static int is_block(const struct cache *c, int part)
{
    return part == c->n_groups;
}

/* 1: not every page of a prefix needs this part. */
static int is_sparse(const struct cache *c, int part)
{
    return is_block(c, part) || c->group[part].window;
}

static uint64_t part_bytes(const struct store *t, const struct cache *c, int part)
{
    return is_block(c, part) ? t->recurrent->block_bytes : (uint64_t)c->group[part].page_bytes;
}

static void part_unref(const struct store *t, struct cache *c, int part, int32_t *page)
{
    if (is_block(c, part))
        recurrent_unref(t->recurrent, page);
    else
        page_unref(&c->group[part], page);
}

/* The sequence's page, or its checkpoint behind it, with one reference more; -1: it has none. */
static int32_t part_hold(const struct store *t, struct cache *c, int part, int32_t seq,
                         int32_t page)
{
    if (is_block(c, part))
        return recurrent_hold(t->recurrent, seq, (page + 1) * STEP_PAGE);
    int32_t held = c->seq[seq].pages[part][page];
    if (held >= 0)
        c->group[part].refs[held]++;
    return held;
}

/* One to be filled, -1: there is no room. */
static int32_t part_make(const struct store *t, struct cache *c, int part)
{
    if (is_block(c, part))
        return recurrent_block(t->recurrent);
    return pages_need(c, part, 0, 1, NULL) == PITH_OK ? page_take(&c->group[part], STEP_PAGE) : -1;
}

/* The first page whose part a row after `pages` pages needs. */
static int32_t first_seen(const struct cache *c, int part, int32_t pages)
{
    if (is_block(c, part))
        return pages - 1;
    int64_t slot = (int64_t)pages * STEP_PAGE - c->group[part].window + 1;
    return c->group[part].window && slot > 0 ? (int32_t)(slot / STEP_PAGE) : 0;
}

/* ---------------------------------------------------------------- opening */

pith_status store_init(struct store *t, struct cache *c, struct recurrent *r,
                       const struct store_params *p, struct pith_error *err)
{
    memset(t, 0, sizeof *t);
    t->spare = -1;
    if (!c->n_stored)
        return PITH_OK;
    t->recurrent = r;
    t->n_parts = c->n_groups + (r->n_blocks > 0);
    t->cap = c->n_stored;
    t->budget = p->budget;
    memcpy(t->root, p->root, sizeof t->root);
    for (t->mask = 15; t->mask < (uint32_t)t->cap; t->mask = t->mask * 2 + 1)
        ;
    t->entry = mem_array((size_t)t->cap, sizeof *t->entry, PITH_MEM_CACHE);
    t->bucket = mem_array((size_t)t->mask + 1, sizeof *t->bucket, PITH_MEM_CACHE);
    if (!t->entry || !t->bucket) {
        store_deinit(t);
        return error_set(err, PITH_NOMEM, "out of memory for a prefix store of %d pages", t->cap);
    }
    for (uint32_t i = 0; i <= t->mask; i++)
        t->bucket[i] = -1;
    for (int32_t i = 0; i < t->cap; i++)
        t->entry[i].next = i + 1 < t->cap ? i + 1 : -1;
    c->store = t;
    return p->dir ? store_disk_open(t, c, p, err) : PITH_OK;
}

void store_deinit(struct store *t) /* the pools go with the cache */
{
    store_disk_close(t->disk);
    mem_free(t->entry);
    mem_free(t->bucket);
    memset(t, 0, sizeof *t);
}

/* ---------------------------------------------------------------- finding */

struct key {
    uint64_t k[2];
};

/* The key of 64 tokens after the page with the key `parent`. */
static struct key key_after(const uint64_t *parent, const int32_t *token)
{
    struct {
        uint64_t parent[2];
        int32_t token[STEP_PAGE];
    } what;
    memcpy(what.parent, parent, sizeof what.parent);
    memcpy(what.token, token, sizeof what.token);
    XXH128_hash_t h = XXH3_128bits(&what, sizeof what);
    return (struct key){{h.low64, h.high64}};
}

static const uint64_t *key_of(const struct store *t, int32_t entry)
{
    return entry < 0 ? t->root : t->entry[entry].key;
}

/* Keys name files, so who knows the model can make tokens whose keys end alike; where they lie here cannot be known. */
static int32_t *bucket(const struct store *t, const uint64_t key[2])
{
    return &t->bucket[(uint32_t)hash_bytes(key, 2 * sizeof *key) & t->mask];
}

/* The entry of 64 tokens after parent, -1: none. */
static int32_t find(const struct store *t, int32_t parent, struct key key, const int32_t *token)
{
    int32_t i = *bucket(t, key.k);
    while (i >= 0 &&
           (memcmp(t->entry[i].key, key.k, sizeof key.k) != 0 || t->entry[i].parent != parent ||
            memcmp(t->entry[i].token, token, sizeof t->entry[i].token) != 0))
        i = t->entry[i].next;
    return i;
}

/* A walk along the tokens of a prompt. */
struct walk {
    int32_t leaf, known;      /* the last entry on the way, after so many pages */
    int32_t pages;            /* walked */
    int32_t run[STORE_PARTS]; /* the last so many pages are held */
    struct key key;
};

/* One page on, in memory or (disk) the folder; 0: a group without a window has no such page. */
static int walk_on(const struct store *t, const struct cache *c, struct walk *w,
                   const int32_t *token, int disk)
{
    w->key = key_after(w->key.k, token);
    int32_t e = w->known == w->pages ? find(t, w->leaf, w->key, token) : -1;
    if (e < 0 && !disk)
        return 0;
    for (int g = 0; g < t->n_parts; g++) {
        int held =
            (e >= 0 && t->entry[e].page[g] >= 0) || (disk && store_disk_has(t->disk, w->key.k, g));
        if (!held && !is_sparse(c, g))
            return 0;
        w->run[g] = held ? w->run[g] + 1 : 0;
    }
    w->pages++;
    if (e >= 0) {
        w->leaf = e;
        w->known = w->pages;
    }
    return 1;
}

/* Pages up to where the tokens can be taken. */
static int32_t walk(const struct store *t, const struct cache *c, const int32_t *token, int32_t n,
                    int disk, struct walk *w)
{
    int32_t found = 0;
    *w = (struct walk){.leaf = -1};
    memcpy(w->key.k, t->root, sizeof t->root);
    while ((w->pages + 1) * STEP_PAGE <= n &&
           walk_on(t, c, w, token + w->pages * STEP_PAGE, disk)) {
        int enough = 1;
        for (int g = 0; g < t->n_parts; g++)
            enough &= w->pages - w->run[g] <= first_seen(c, g, w->pages);
        found = enough ? w->pages : found;
    }
    return found;
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

/* ---------------------------------------------------------------- letting go */

static void release(struct store *t, struct cache *c, struct store_entry *e, int windows_only)
{
    for (int g = 0; g < t->n_parts; g++) {
        if (e->page[g] < 0 || (windows_only && !is_sparse(c, g)))
            continue;
        part_unref(t, c, g, &e->page[g]);
        t->bytes -= part_bytes(t, c, g);
        t->held[g]--;
    }
}

static void forget(struct store *t, struct cache *c, int32_t i)
{
    struct store_entry *e = &t->entry[i];
    int32_t *at = bucket(t, e->key);
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

/* 1: letting it go frees a page of the group; group -1: an entry. */
static int frees(const struct cache *c, const struct store_entry *e, int group, int windows_only)
{
    if (group < 0)
        return !windows_only;
    const struct cache_group *g = &c->group[group];
    return e->page[group] >= 0 && (!windows_only || g->window) && g->refs[e->page[group]] == 1;
}

static int32_t oldest(const struct store *t, const struct cache *c, int group, int *windows_only)
{
    int32_t victim = -1;
    uint64_t when = UINT64_MAX;
    for (int32_t i = 0; i < t->cap; i++) {
        const struct store_entry *e = &t->entry[i];
        if (!e->used || i == t->spare || e->saved == STORE_SAVING)
            continue;
        if (e->used_window < when && frees(c, e, group, 1)) {
            victim = i;
            *windows_only = 1;
            when = e->used_window;
        }
        if (!e->n_children && e->used < when && frees(c, e, group, 0)) {
            victim = i;
            *windows_only = 0;
            when = e->used;
        }
    }
    return victim;
}

/* Lets the least recently used go; what only waits to be written is waited for. */
int store_evict(struct store *t, struct cache *c, int group)
{
    int windows_only = 0;
    int32_t victim = oldest(t, c, group, &windows_only);
    while (victim < 0 && t->disk && store_disk_wait(t->disk))
        victim = oldest(t, c, group, &windows_only);
    if (victim < 0)
        return 0;
    if (windows_only)
        release(t, c, &t->entry[victim], 1);
    else
        forget(t, c, victim);
    return 1;
}

/* ---------------------------------------------------------------- taking in */

/* The entry of 64 tokens after parent, -1: there is no room for it. */
static int32_t find_or_add(struct store *t, struct cache *c, int32_t parent, const int32_t *token,
                           int32_t *known)
{
    struct key key = key_after(key_of(t, parent), token);
    int32_t i = find(t, parent, key, token), room = 1;
    *known = i >= 0;
    if (*known) {
        t->entry[i].used = t->clock;
        return i;
    }
    t->spare = parent;
    while (t->free < 0 && room)
        room = store_evict(t, c, -1);
    t->spare = -1;
    if (!room)
        return -1;
    i = t->free;
    struct store_entry *e = &t->entry[i];
    t->free = e->next;
    e->used = t->clock;
    e->parent = parent;
    e->n_children = 0;
    e->saved = STORE_UNSAVED;
    memcpy(e->key, key.k, sizeof e->key);
    memcpy(e->token, token, sizeof e->token);
    for (int g = 0; g < STORE_PARTS; g++)
        e->page[g] = -1;
    int32_t *first = bucket(t, key.k);
    e->next = *first;
    *first = i;
    if (parent >= 0)
        t->entry[parent].n_children++;
    return i;
}

/* The page of a group becomes the entry's; one reference is its. */
static void hold(struct store *t, const struct cache *c, struct store_entry *e, int g, int32_t page)
{
    e->page[g] = page;
    t->bytes += part_bytes(t, c, g);
    t->held[g]++;
    if (is_sparse(c, g))
        e->used_window = t->clock;
}

static void save(struct store *t, struct store_entry *e)
{
    if (!t->disk || e->saved != STORE_UNSAVED)
        return;
    e->saved = STORE_SAVING;
    store_disk_put(t->disk, e);
}

/* Pages the entry has not yet and the sequence has. */
static void fill(struct store *t, struct cache *c, struct store_entry *e, int32_t seq, int32_t page)
{
    for (int g = 0; g < t->n_parts && e->saved != STORE_SAVING; g++) {
        int32_t held = e->page[g] < 0 ? part_hold(t, c, g, seq, page) : -1;
        if (held < 0)
            continue;
        hold(t, c, e, g, held);
        e->saved = STORE_UNSAVED;
    }
    save(t, e);
}

void store_publish(struct store *t, struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t pages = q->pure / STEP_PAGE, parent = -1;
    if (!t->cap || pages <= q->published || q->pending || q->foreign) {
        q->published = pages < q->published ? pages : q->published;
        return;
    }
    t->clock++;
    for (int32_t i = 0, known; i < pages; i++) {
        const int32_t *token = q->token + i * STEP_PAGE;
        for (int k = 0; k < STEP_PAGE; k++)
            if (token[k] < 0) /* an embedding row: its number does not tell it */
                return;
        if ((parent = find_or_add(t, c, parent, token, &known)) < 0)
            return;
        if (!known || i >= q->published)
            fill(t, c, &t->entry[parent], seq, i);
    }
    q->published = pages;
}

/* ---------------------------------------------------------------- giving out */

static int fetch_page(struct store *t, struct cache *c, struct store_entry *e, int g)
{
    int32_t page = part_make(t, c, g);
    int ok = page >= 0 && store_disk_read(t->disk, c, e, g, page);
    if (ok)
        hold(t, c, e, g, page);
    else
        part_unref(t, c, g, &page);
    return ok;
}

/* Brings what a sequence of p tokens needs from the folder to memory, as far as it can. */
static void fetch(struct store *t, struct cache *c, const int32_t *token, int32_t p)
{
    int32_t parent = -1, pages = p / STEP_PAGE;
    t->clock++;
    for (int32_t i = 0, known, ok = 1; i < pages && ok; i++, token += STEP_PAGE) {
        if ((parent = find_or_add(t, c, parent, token, &known)) < 0)
            return;
        struct store_entry *e = &t->entry[t->spare = parent];
        if (!known)
            e->saved = STORE_SAVED;
        for (int g = 0; g < t->n_parts && ok; g++)
            if (e->page[g] < 0 && e->saved != STORE_SAVING && i >= first_seen(c, g, pages))
                ok = fetch_page(t, c, e, g);
    }
    t->spare = -1;
}

int32_t store_match(struct store *t, struct cache *c, const int32_t *token, int32_t n, int32_t kept,
                    struct store_miss *miss)
{
    enum { TRIES = 4 }; /* files may turn out to be damaged; then there is a shorter way, or none */
    struct walk w;
    int32_t found = 0;
    *miss = (struct store_miss){-1, -1};
    if (!t->cap)
        return 0;
    for (int i = 0; i < TRIES && t->disk; i++) {
        int32_t far = walk(t, c, token, n, 1, &w);
        if (far * STEP_PAGE <= kept || far == walk(t, c, token, n, 0, &w))
            break;
        fetch(t, c, token, far * STEP_PAGE);
    }
    found = walk(t, c, token, n, 0, &w);
    find_miss(t, w.leaf, token, n, w.pages * STEP_PAGE, miss);
    return found * STEP_PAGE;
}

/* Marks the files of a chain of entries as used; files that another process has removed are written again. */
static void touch(struct store *t, int32_t leaf)
{
    for (; t->disk && leaf >= 0; leaf = t->entry[leaf].parent) {
        struct store_entry *e = &t->entry[leaf];
        if (e->saved != STORE_SAVED || store_disk_touch(t->disk, e))
            continue;
        e->saved = STORE_UNSAVED;
        save(t, e);
    }
}

void store_take(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t p)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t leaf = -1, pages = p / STEP_PAGE;
    uint64_t now = ++t->clock;
    for (int32_t i = 0; i < pages; i++) {
        struct store_entry *e =
            &t->entry[leaf = find(t, leaf, key_after(key_of(t, leaf), token + i * STEP_PAGE),
                                  token + i * STEP_PAGE)];
        e->used = now;
        for (int g = 0; g < t->n_parts; g++) {
            if (e->page[g] < 0 || (i < first_seen(c, g, pages) && !is_block(c, g)))
                continue;
            if (is_sparse(c, g))
                e->used_window = now;
            if (is_block(c, g)) { /* earlier ones too: it may be rewound */
                recurrent_adopt(t->recurrent, seq, (i + 1) * STEP_PAGE, e->page[g]);
                continue;
            }
            c->group[g].refs[e->page[g]]++;
            q->pages[g][i] = e->page[g];
        }
    }
    memcpy(q->token, token, (size_t)p * sizeof *token);
    touch(t, leaf);
    q->n = q->floor = q->pure = p;
    q->foreign = 0;
}

void store_cache_use(const struct store *t, const struct cache *c, int64_t *used, int64_t *total)
{
    double most = -1;
    for (int g = 0; g < c->n_groups; g++) {
        const struct cache_group *p = &c->group[g];
        int64_t n = p->n_pages - pages_available(p);
        for (int32_t i = 0; i < t->cap; i++)
            if (t->entry[i].used && t->entry[i].page[g] >= 0)
                n -= p->refs[t->entry[i].page[g]] == 1;
        if (p->n_pages && (double)n / p->n_pages > most) {
            most = (double)n / p->n_pages;
            *used = n * STEP_PAGE;
            *total = (int64_t)p->n_pages * STEP_PAGE;
        }
    }
}
