/* store.c -- see store.h. */
#include "run/cache/store.h"

#include <string.h>
#include <xxhash.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/work.h"
#include "base/machine/pool.h"
#include "run/cache/cache_impl.h"
#include "run/cache/store_disk.h"

/* ---------------------------------------------------------------- parts */

static int is_block(const struct cache *c, int part)
{
    return part == c->n_own;
}

/* 1: not every page of a prefix needs this part. */
static int is_sparse(const struct cache *c, int part)
{
    return is_block(c, part) || c->group[part].span;
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

/* The page becomes an entry's, or is that no longer. */
static void part_mark(struct cache *c, int part, int32_t page, int stored)
{
    if (!is_block(c, part))
        page_store(&c->group[part], page, stored);
}

/* The sequence's page, or its checkpoint behind it, with one reference more; -1: it has none. */
static int32_t part_hold(const struct store *t, struct cache *c, int part, int32_t seq,
                         int32_t page)
{
    if (is_block(c, part))
        return recurrent_hold(t->recurrent, seq, (page + 1) * STEP_PAGE);
    int32_t held = c->seq[seq].pages[part][page];
    if (held >= 0)
        page_ref(&c->group[part], held);
    return held;
}

/* One to be filled, -1: there is no room. */
static int32_t part_make(const struct store *t, struct cache *c, int part)
{
    if (is_block(c, part))
        return recurrent_block(t->recurrent);
    if (pages_need(c, part, -1, 1, NULL) != PITH_OK || pages_log(c, 1, NULL) != PITH_OK)
        return -1;
    return page_take(c, part, STEP_PAGE);
}

/* The first page whose part a row after `pages` pages needs. */
static int32_t first_seen(const struct cache *c, int part, int32_t pages)
{
    if (is_block(c, part))
        return pages - 1;
    int64_t slot = cache_first_seen(&c->group[part], (int64_t)pages * STEP_PAGE);
    return slot > 0 ? (int32_t)(slot / STEP_PAGE) : 0;
}

/* ---------------------------------------------------------------- opening */

static int32_t *int_array(int64_t n)
{
    return mem_array((size_t)n, sizeof(int32_t), PITH_MEM_CACHE);
}

static pith_status make_tables(struct store *t, const struct cache *c, int disk,
                               struct pith_error *err)
{
    int ok = 1;
    t->entry = mem_array((size_t)t->cap, sizeof *t->entry, PITH_MEM_CACHE);
    t->bucket = int_array((int64_t)t->mask + 1);
    for (int h = 0; h <= t->n_parts; h++)
        if (h == 0 || is_sparse(c, h - 1))
            ok &= (t->heap[h].v = int_array(t->cap)) != NULL;
    if (disk) {
        t->fetch =
            mem_array((size_t)c->cap_pages * (size_t)t->n_parts, sizeof *t->fetch, PITH_MEM_CACHE);
        t->chain = int_array(c->cap_pages);
        ok &= t->fetch && t->chain;
    }
    if (ok && t->entry && t->bucket)
        return PITH_OK;
    return error_set(err, PITH_NOMEM, "out of memory for a prefix store of %d pages", t->cap);
}

/* What it has parts of, how many entries, and who reads. */
static void shape(struct store *t, const struct cache *c, struct recurrent *r, struct pool *pool)
{
    enum { READERS = 8 };
    int n = pool ? pool_n_threads(pool) : 1;
    t->recurrent = r;
    t->n_parts = c->n_own + (r->n_blocks > 0);
    t->cap = c->n_stored;
    t->pool = pool;
    t->n_readers = n < 1 ? 1 : n < READERS ? n : READERS;
}

/* What is written goes through memory. A model that keeps nothing of its tokens wants no store. */
static pith_status holds_nothing(const struct cache *c, struct recurrent *r,
                                 const struct store_params *p, struct pith_error *err)
{
    struct store t = {0};
    uint64_t one = 0;
    shape(&t, c, r, p->pool);
    for (int part = 0; part < t.n_parts; part++)
        one += part_bytes(&t, c, part);
    if (!one)
        return PITH_OK;
    return error_set(err, PITH_RANGE,
                     "store_dir %s: store_bytes is %llu, and %d tokens take %llu; wanted at least "
                     "that, or 0 (as for one context)",
                     p->dir, (unsigned long long)p->budget, STEP_PAGE, (unsigned long long)one);
}

pith_status store_init(struct store *t, struct cache *c, struct recurrent *r,
                       const struct store_params *p, struct pith_error *err)
{
    memset(t, 0, sizeof *t);
    if (!c->n_stored)
        return p->dir ? holds_nothing(c, r, p, err) : PITH_OK;
    shape(t, c, r, p->pool);
    t->budget = p->budget;
    t->piece = 16 << 20;
    t->child = -1;
    t->cancel = p->cancel;
    memcpy(t->root, p->root, sizeof t->root);
    for (t->mask = 15; t->mask < (uint32_t)t->cap; t->mask = t->mask * 2 + 1)
        ;
    pith_status st = make_tables(t, c, p->dir != NULL, err);
    if (st != PITH_OK) {
        store_deinit(t);
        return st;
    }
    for (uint32_t i = 0; i <= t->mask; i++)
        t->bucket[i] = -1;
    for (int32_t i = 0; i < t->cap; i++)
        t->entry[i].next = i + 1 < t->cap ? i + 1 : -1;
    c->store = t;
    c->evict = store_evict;
    return p->dir ? store_disk_open(t, c, p, err) : PITH_OK;
}

uint64_t store_tables(const struct cache *c, struct recurrent *r, struct pool *pool, int folder)
{
    struct store t = {0};
    if (!c->n_stored)
        return 0;
    shape(&t, c, r, pool);
    uint64_t pages = (uint64_t)c->cap_pages, parts = (uint64_t)t.n_parts;
    uint64_t n = (uint64_t)t.cap * (sizeof *t.entry + /* at most two buckets an entry */
                                    (2 + STORE_HEAPS) * sizeof(int32_t));
    if (folder)
        n += pages * (parts * sizeof *t.fetch + sizeof *t.chain) + store_disk_bytes(&t, c);
    return n;
}

void store_deinit(struct store *t) /* the pools go with the cache */
{
    store_disk_close(t->disk);
    mem_free(t->entry);
    mem_free(t->bucket);
    for (int h = 0; h < STORE_HEAPS; h++)
        mem_free(t->heap[h].v);
    mem_free(t->fetch);
    mem_free(t->chain);
    memset(t, 0, sizeof *t);
}

/* ---------------------------------------------------------------- the order of use */

static uint64_t age(const struct store *t, int h, int32_t i)
{
    return h ? t->entry[i].used_window : t->entry[i].used;
}

static void heap_set(struct store *t, int h, int32_t at, int32_t i)
{
    t->heap[h].v[at] = i;
    t->entry[i].spot[h] = at;
}

/* Entry i goes from place `at`, where it may be wrong, to its own. */
static void heap_move(struct store *t, int h, int32_t at, int32_t i)
{
    struct store_heap *p = &t->heap[h];
    while (at && age(t, h, p->v[(at - 1) / 2]) > age(t, h, i)) {
        heap_set(t, h, at, p->v[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int32_t k; (k = 2 * at + 1) < p->n; at = k) {
        k += k + 1 < p->n && age(t, h, p->v[k + 1]) < age(t, h, p->v[k]);
        if (age(t, h, p->v[k]) >= age(t, h, i))
            break;
        heap_set(t, h, at, p->v[k]);
    }
    heap_set(t, h, at, i);
}

/* What can go: leaves, by themselves; parts that not everyone needs. Nothing that is the writer's.
 */
static int belongs(const struct cache *c, int h, const struct store_entry *e)
{
    if (!e->used || e->queued)
        return 0;
    if (h)
        return is_sparse(c, h - 1) && e->page[h - 1] >= 0;
    return !e->n_children && e->parent != STORE_LOST;
}

/* Puts the entry, of which something has changed, into the heaps it belongs to, at its places. */
static void sort_in(struct store *t, const struct cache *c, int32_t i)
{
    for (int h = 0; h <= t->n_parts; h++) {
        struct store_heap *p = &t->heap[h];
        int32_t at = t->entry[i].spot[h];
        if (belongs(c, h, &t->entry[i])) {
            heap_move(t, h, at < 0 ? p->n++ : at, i);
        } else if (at >= 0) {
            t->entry[i].spot[h] = -1;
            if (at < --p->n)
                heap_move(t, h, at, p->v[p->n]);
        }
    }
}

/* Somebody works with the entry: it stays. ROOT is allowed. */
static void pin(struct store *t, const struct cache *c, int32_t i, int by)
{
    if (i < 0)
        return;
    t->entry[i].n_children += by;
    sort_in(t, c, i);
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

/* What the first page of a sequence follows. */
static struct key root_of(const struct store *t, const struct cache_seq *q)
{
    const uint64_t what[6] = {t->root[0], t->root[1],    q->salt[0],
                              q->salt[1], q->adapter[0], q->adapter[1]};
    int adapted = q->adapter[0] != 0;
    struct key root = {{t->root[0], t->root[1]}};
    if (adapted || q->salt[0] || q->salt[1]) {
        XXH128_hash_t h = XXH3_128bits(what, adapted ? sizeof what : 4 * sizeof *what);
        root = (struct key){{h.low64, h.high64}};
    }
    if (q->n_memory) { /* what an encoder has read stands before every token */
        const uint64_t read[4] = {root.k[0], root.k[1], q->memory[0], q->memory[1]};
        XXH128_hash_t h = XXH3_128bits_withSeed(read, sizeof read, (uint64_t)q->n_memory);
        root = (struct key){{h.low64, h.high64}};
    }
    return root;
}

/* Keys name files, so who knows the model can make tokens whose keys end alike; where they lie here
 * cannot be known. */
static int32_t *bucket(const struct store *t, const uint64_t key[2])
{
    return &t->bucket[(uint32_t)hash_bytes(key, 2 * sizeof *key) & t->mask];
}

/* The entry of 64 tokens after parent, -1: none. */
static int32_t find(struct store *t, int32_t parent, const uint64_t *parent_key, struct key key,
                    const int32_t *token)
{
    int32_t i = *bucket(t, key.k);
    t->work++;
    for (; i >= 0; i = t->entry[i].next, t->work++) {
        const struct store_entry *e = &t->entry[i];
        if (!memcmp(e->key, key.k, sizeof key.k) && e->parent == parent &&
            !memcmp(e->parent_key, parent_key, sizeof e->parent_key) &&
            !memcmp(e->token, token, sizeof e->token))
            break;
    }
    return i;
}

/* A walk along the tokens of a prompt. */
struct walk {
    int32_t leaf, known;      /* the last entry on the way, after so many pages */
    int32_t pages;            /* walked */
    int32_t run[STORE_PARTS]; /* the last so many pages are held */
    struct key key, leaf_key; /* after the pages walked, and known */
};

static int in_folder(struct store *t, struct key key, int part)
{
    t->looks++;
    return store_disk_has(t->disk, key.k, part);
}

/* One page on, in memory or (disk) the folder; 0: a group without a window has no such page. */
static int walk_on(struct store *t, const struct cache *c, struct walk *w, const int32_t *token,
                   int disk)
{
    struct key before = w->key;
    w->key = key_after(before.k, token);
    int32_t e = w->known == w->pages ? find(t, w->leaf, before.k, w->key, token) : -1;
    if (e < 0 && !disk)
        return 0;
    for (int g = 0; g < t->n_parts; g++) {
        int held = (e >= 0 && t->entry[e].page[g] >= 0) || (disk && in_folder(t, w->key, g));
        if (!held && !is_sparse(c, g))
            return 0;
        w->run[g] = held ? w->run[g] + 1 : 0;
    }
    w->pages++;
    if (e >= 0) {
        w->leaf = e;
        w->leaf_key = w->key;
        w->known = w->pages;
    }
    return 1;
}

/* Pages up to where the sequence can take the tokens. */
static int32_t walk(struct store *t, const struct cache *c, int32_t seq, const int32_t *token,
                    int32_t n, int disk, struct walk *w)
{
    int32_t found = 0;
    *w = (struct walk){.leaf = STORE_ROOT};
    w->key = w->leaf_key = root_of(t, &c->seq[seq]);
    while ((w->pages + 1) * STEP_PAGE <= n &&
           walk_on(t, c, w, token + w->pages * STEP_PAGE, disk)) {
        int enough = 1;
        for (int g = 0; g < t->n_parts; g++)
            enough &= w->pages - w->run[g] <= first_seen(c, g, w->pages);
        found = enough ? w->pages : found;
    }
    return found;
}

/* Where the tokens leave the tree: of the pages known after the walk's last, of which the latest
 * are looked at, the one that has most in common with them. */
static void find_miss(struct store *t, const struct walk *w, const int32_t *token, int32_t n,
                      struct store_miss *miss)
{
    enum { LATEST = 64 };
    int32_t best = -1, at = w->pages * STEP_PAGE, most = n - at < STEP_PAGE ? n - at : STEP_PAGE;
    int32_t i = w->leaf < 0 ? t->child : t->entry[w->leaf].child;
    for (int k = 0; i >= 0 && k < LATEST; i = t->entry[i].elder, k++, t->work++) {
        const struct store_entry *e = &t->entry[i];
        int32_t same = 0;
        if (memcmp(e->parent_key, w->leaf_key.k, sizeof e->parent_key) != 0) /* of another salt */
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

static void release(struct store *t, struct cache *c, int32_t i, int windows_only)
{
    struct store_entry *e = &t->entry[i];
    for (int g = 0; g < t->n_parts; g++) {
        if (e->page[g] < 0 || (windows_only && !is_sparse(c, g)))
            continue;
        part_mark(c, g, e->page[g], 0);
        part_unref(t, c, g, &e->page[g]);
        t->bytes -= part_bytes(t, c, g);
        t->held[g]--;
    }
    sort_in(t, c, i);
}

/* The list of children that the entry is in. */
static int32_t *siblings(struct store *t, const struct store_entry *e)
{
    return e->parent < 0 ? &t->child : &t->entry[e->parent].child;
}

/* Takes an entry of the tree out of it. */
static void unlink_entry(struct store *t, struct cache *c, int32_t i)
{
    struct store_entry *e = &t->entry[i];
    int32_t *at = bucket(t, e->key);
    for (; *at != i; t->work++)
        at = &t->entry[*at].next;
    *at = e->next;
    *(e->younger < 0 ? siblings(t, e) : &t->entry[e->younger].elder) = e->elder;
    if (e->elder >= 0)
        t->entry[e->elder].younger = e->younger;
    pin(t, c, e->parent, -1);
}

static void forget(struct store *t, struct cache *c, int32_t i)
{
    struct store_entry *e = &t->entry[i];
    if (e->parent != STORE_LOST)
        unlink_entry(t, c, i);
    e->used = 0;
    release(t, c, i, 0);
    e->next = t->free;
    t->free = i;
}

/* The writer is done with an entry, or has it taken away. */
static void take_back(struct store *t, struct cache *c, int32_t i, int saved)
{
    t->entry[i].queued = 0;
    t->entry[i].saved |= (int8_t)saved;
    if (t->entry[i].parent == STORE_LOST)
        forget(t, c, i);
    else
        sort_in(t, c, i);
}

static void take_back_done(struct store *t, struct cache *c)
{
    for (int32_t i; t->disk && (i = store_disk_done(t->disk)) >= 0;)
        take_back(t, c, i, 1);
}

/* 1: the entry is not the writer's, so it can get pages; patient: it may take the time of a file.
 */
static int borrow(struct store *t, struct cache *c, int32_t i, int patient)
{
    if (t->entry[i].queued && store_disk_borrow(t->disk, i, patient))
        take_back(t, c, i, 0);
    else if (t->entry[i].queued)
        take_back_done(t, c);
    return !t->entry[i].queued;
}

/* 1: letting it go frees a page of the group; group -1: an entry. */
static int frees(const struct cache *c, const struct store_entry *e, int group)
{
    return group < 0 || (e->page[group] >= 0 && c->group[group].refs[e->page[group]] == 1);
}

/* Lets the least recently used go. What sequences hold is in use: it becomes the latest used, so it
 * is not looked at again soon. */
static int evict(struct store *t, struct cache *c, int group)
{
    int h = group >= 0 && c->group[group].span ? 1 + group : 0;
    uint64_t now = ++t->clock;
    if (group >= 0 && !c->group[group].n_idle)
        return 0;
    while (t->heap[h].n && age(t, h, t->heap[h].v[0]) < now) {
        int32_t i = t->heap[h].v[0];
        t->work++;
        if (frees(c, &t->entry[i], group)) {
            if (h)
                release(t, c, i, 1);
            else
                forget(t, c, i);
            return 1;
        }
        *(h ? &t->entry[i].used_window : &t->entry[i].used) = now;
        sort_in(t, c, i);
    }
    return 0;
}

/* What only waits to be written goes unwritten; what is just being written is waited for. */
int store_evict(struct store *t, struct cache *c, int group)
{
    take_back_done(t, c);
    while (!evict(t, c, group)) {
        if (!t->disk || (group >= 0 && !c->group[group].n_idle))
            return 0;
        int32_t i = store_disk_take_back(t->disk);
        if (i >= 0)
            take_back(t, c, i, 0);
        else if (!store_disk_wait(t->disk))
            return 0;
        take_back_done(t, c);
    }
    return 1;
}

/* ---------------------------------------------------------------- taking in */

/* An entry for 64 tokens after parent, -1: there is no room. In the tree, but for an orphan. */
static int32_t add(struct store *t, struct cache *c, int32_t parent, const uint64_t *parent_key,
                   struct key key, const int32_t *token)
{
    pin(t, c, parent, 1); /* stays as its child */
    if (t->free < 0 && !evict(t, c, -1)) {
        pin(t, c, parent, -1);
        return -1;
    }
    int32_t i = t->free;
    struct store_entry *e = &t->entry[i];
    t->free = e->next;
    *e = (struct store_entry){.used = t->clock,
                              .born = ++t->births,
                              .parent = parent,
                              .child = -1,
                              .elder = -1,
                              .younger = -1};
    memcpy(e->key, key.k, sizeof e->key);
    memcpy(e->parent_key, parent_key, sizeof e->parent_key);
    memcpy(e->token, token, sizeof e->token);
    memset(e->page, -1, sizeof e->page);
    memset(e->spot, -1, sizeof e->spot);
    if (parent == STORE_LOST)
        return i;
    int32_t *first = bucket(t, key.k);
    e->next = *first;
    *first = i;
    int32_t *list = siblings(t, e);
    e->elder = *list;
    if (*list >= 0)
        t->entry[*list].younger = i;
    *list = i;
    sort_in(t, c, i);
    return i;
}

/* The entry of 64 tokens after parent, -1: there is no room for it. */
static int32_t find_or_add(struct store *t, struct cache *c, int32_t parent,
                           const uint64_t *parent_key, struct key key, const int32_t *token,
                           int *known)
{
    int32_t i = find(t, parent, parent_key, key, token);
    *known = i >= 0;
    if (i < 0)
        return add(t, c, parent, parent_key, key, token);
    t->entry[i].used = t->clock;
    sort_in(t, c, i);
    return i;
}

/* The page of a group becomes the entry's; one reference is its. */
static void hold(struct store *t, struct cache *c, struct store_entry *e, int g, int32_t page)
{
    e->page[g] = page;
    part_mark(c, g, page, 1);
    t->bytes += part_bytes(t, c, g);
    t->held[g]++;
    if (is_sparse(c, g))
        e->used_window = t->clock;
}

/* Gives the entry to the writer, who marks its files as used and writes those that are not there.
 */
static void save(struct store *t, const struct cache *c, int32_t i)
{
    if (!t->disk || t->entry[i].queued)
        return;
    if (!store_disk_put(t->disk, i))
        t->entry[i].saved = 1; /* as far as it can be */
    else
        t->entry[i].queued = 1;
    sort_in(t, c, i);
}

/* Pages the entry has not yet and the sequence has. */
static void fill(struct store *t, struct cache *c, int32_t i, int32_t seq, int32_t page)
{
    struct store_entry *e = &t->entry[i];
    for (int g = 0; g < t->n_parts; g++) {
        int32_t held = e->page[g] < 0 ? part_hold(t, c, g, seq, page) : -1;
        if (held < 0)
            continue;
        if (!borrow(t, c, i, 0)) {
            part_unref(t, c, g, &held);
            continue;
        }
        hold(t, c, e, g, held);
        e->saved = 0;
    }
    if (!e->saved)
        save(t, c, i);
    sort_in(t, c, i);
}

static int is_alive(const struct store *t, const struct store_mark *m)
{
    return m->entry == STORE_ROOT ||
           (m->entry >= 0 && t->entry[m->entry].used && t->entry[m->entry].born == m->born);
}

static void mark_entry(const struct store *t, struct store_mark *m, int32_t i)
{
    m->entry = i;
    m->born = i < 0 ? 0 : t->entry[i].born;
    m->depth++;
}

/* Makes the mark that of the pages published: after the sequence was cut it is further up. */
static void find_mark(struct store *t, struct cache_seq *q)
{
    struct store_mark *m = &q->mark;
    struct key key = root_of(t, q);
    int32_t on = is_alive(t, m) ? m->entry : STORE_LOST;
    if (!q->published) {
        *m = (struct store_mark){.entry = STORE_ROOT};
        memcpy(m->key, key.k, sizeof m->key);
        return;
    }
    if (m->depth <= q->published) {
        m->entry = on;
        return;
    }
    for (int32_t k = m->depth; on >= 0 && k > q->published; k--)
        on = t->entry[on].parent;
    for (int32_t i = 0; i < q->published && on < 0; i++)
        key = key_after(key.k, q->token + i * STEP_PAGE);
    memcpy(m->key, on < 0 ? key.k : t->entry[on].key, sizeof m->key);
    m->depth = q->published - 1;
    mark_entry(t, m, on);
}

enum published { PAGE_IN, PAGE_NEVER, PAGE_LATER };

/* One page after the mark. NEVER: it cannot be told, or has no place. orphans: then it is written
 * at least; LATER: when the writer, who has all that could go, has given something back. */
static enum published publish_page(struct store *t, struct cache *c, int32_t seq, int orphans)
{
    struct cache_seq *q = &c->seq[seq];
    struct store_mark *m = &q->mark;
    int known;
    const int32_t *token = q->token + (int64_t)m->depth * STEP_PAGE;
    for (int k = 0; k < STEP_PAGE; k++)
        if (token[k] < 0) /* an embedding row: its number does not tell it */
            return PAGE_NEVER;
    struct key key = key_after(m->key, token);
    int32_t i =
        m->entry == STORE_LOST ? -1 : find_or_add(t, c, m->entry, m->key, key, token, &known);
    if (i < 0 && !(orphans && t->disk))
        return PAGE_NEVER;
    int32_t at = i >= 0 ? i : add(t, c, STORE_LOST, m->key, key, token);
    if (at < 0)
        return PAGE_LATER;
    fill(t, c, at, seq, m->depth);
    if (i < 0 && !t->entry[at].queued)
        forget(t, c, at);
    memcpy(m->key, key.k, sizeof m->key);
    mark_entry(t, m, i >= 0 ? i : STORE_LOST);
    return PAGE_IN;
}

static void publish(struct store *t, struct cache *c, int32_t seq, int32_t pages, int orphans)
{
    struct cache_seq *q = &c->seq[seq];
    take_back_done(t, c);
    t->clock++;
    find_mark(t, q);
    enum published was = q->mark.depth < q->published ? PAGE_NEVER : PAGE_IN;
    while (q->mark.depth < pages && was == PAGE_IN)
        was = publish_page(t, c, seq, orphans);
    q->published = was == PAGE_LATER ? q->mark.depth : pages;
}

void store_publish(struct store *t, struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t pages = q->pure / STEP_PAGE;
    if (t->cap && pages > q->published && !q->pending && !q->foreign)
        publish(t, c, seq, pages, 1);
    q->published = pages < q->published ? pages : q->published;
}

void store_end(struct store *t, struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t pages = q->pure / STEP_PAGE;
    if (!t->cap || !pages || q->pending || q->foreign ||
        (q->mark.depth >= pages && q->published && is_alive(t, &q->mark)))
        return;
    for (int32_t i = q->published; t->disk && i < pages; i++)
        store_disk_skip(t->disk); /* the writer has not come that far */
    q->published = 0;
    publish(t, c, seq, pages, 0);
}

/* ---------------------------------------------------------------- giving out */

struct fetching {
    struct store *t;
    struct cache *c;
    int32_t n;
    _Atomic(int32_t) next;
};

static void fetch_worker(void *ctx, int ith)
{
    struct fetching *f = ctx;
    struct store *t = f->t;
    for (int32_t i; !*t->cancel && (i = atomic_fetch_add(&f->next, 1)) < f->n;) {
        struct store_fetch *p = &t->fetch[i];
        p->ok = store_disk_read(t->disk, f->c, &t->entry[p->entry], p->part, p->page, ith);
    }
}

/* Parts that are brought at a time: some milliseconds, and something to do for each reader. */
static int32_t parts_at_once(const struct store *t, const struct cache *c)
{
    uint64_t most = 1;
    for (int g = 0; g < t->n_parts; g++)
        most = part_bytes(t, c, g) > most ? part_bytes(t, c, g) : most;
    int32_t n = (int32_t)(t->piece / most);
    return n > t->n_readers ? n : t->n_readers;
}

/* Entries for the pages that a sequence of p tokens needs, all of them pinned, and pages to be
 * filled, until there are enough of these. Returns how many entries; those from *fresh on are new.
 */
static int32_t plan_fetch(struct fetching *f, int32_t seq, const int32_t *token, int32_t pages,
                          int32_t enough, int32_t *fresh)
{
    struct store *t = f->t;
    struct key before = root_of(t, &f->c->seq[seq]);
    int32_t parent = STORE_ROOT, i = 0;
    *fresh = pages;
    for (int ok = 1; i < pages && ok && f->n < enough; i++, token += STEP_PAGE) {
        struct key key = key_after(before.k, token);
        int known;
        if ((parent = find_or_add(t, f->c, parent, before.k, key, token, &known)) < 0)
            break;
        struct store_entry *e = &t->entry[t->chain[i] = parent];
        if (!known) {
            e->saved = 1;
            *fresh = i < *fresh ? i : *fresh;
        }
        pin(t, f->c, parent, 1);
        for (int g = 0; g < t->n_parts && ok; g++) {
            if (e->page[g] >= 0 || i < first_seen(f->c, g, pages) || !borrow(t, f->c, parent, 1))
                continue;
            int32_t page = part_make(t, f->c, g);
            if ((ok = page >= 0))
                t->fetch[f->n++] = (struct store_fetch){.entry = parent, .part = g, .page = page};
        }
        before = key;
    }
    return i;
}

/* Brings the first parts that a sequence of p tokens needs from the folder to memory: all threads
 * read. 0: not all of them could be. */
static int fetch(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t p,
                 int32_t enough)
{
    struct fetching f = {.t = t, .c = c};
    int32_t fresh, n = plan_fetch(&f, seq, token, p / STEP_PAGE, enough, &fresh), n_ok = 0;
    t->clock++;
    if (cache_flush(c, NULL) != PITH_OK) /* fresh pages, before many threads write to them */
        atomic_store(&f.next, f.n);
    if (f.n && t->n_readers > 1)
        pool_run(t->pool, t->n_readers, fetch_worker, &f);
    else if (f.n)
        fetch_worker(&f, 0);
    for (int32_t i = 0; i < f.n; i++) {
        struct store_fetch *q = &t->fetch[i];
        n_ok += q->ok;
        if (q->ok)
            hold(t, c, &t->entry[q->entry], q->part, q->page);
        else
            part_unref(t, c, q->part, &q->page);
    }
    int32_t whole = 0; /* new ones behind one that misses a page serve nobody */
    for (int ok = 1; whole < n && ok; whole += ok)
        for (int g = 0; g < t->n_parts; g++)
            ok &= is_sparse(c, g) || t->entry[t->chain[whole]].page[g] >= 0;
    for (int32_t i = n - 1; i >= 0; i--) {
        pin(t, c, t->chain[i], -1);
        if (i >= fresh && i >= whole)
            forget(t, c, t->chain[i]);
        else if (!t->entry[t->chain[i]].saved)
            save(t, c, t->chain[i]);
    }
    return n_ok && n_ok == f.n;
}

/* The key after all full pages of a prompt. */
static struct key key_of(const struct store *t, const struct cache_seq *q, const int32_t *token,
                         int32_t n)
{
    struct key key = root_of(t, q);
    for (int32_t i = 0; (i + 1) * STEP_PAGE <= n; i++)
        key = key_after(key.k, token + i * STEP_PAGE);
    return key;
}

/* What the call before, which had to stop, has seen of the same prompt in the folder: 0 pages where
 * there was none. Keys can be made to be equal, so it may be wrong, but is never more than the
 * prompt has. */
static int32_t take_far(const struct store *t, struct cache_seq *q, const int32_t *token, int32_t n)
{
    struct store_far far = q->far;
    q->far = (struct store_far){0};
    if (!far.pages || memcmp(far.key, key_of(t, q, token, n).k, sizeof far.key) != 0)
        return 0;
    return far.pages < n / STEP_PAGE ? far.pages : n / STEP_PAGE;
}

static void keep_far(const struct store *t, struct cache_seq *q, const int32_t *token, int32_t n,
                     int32_t pages)
{
    q->far.pages = pages;
    memcpy(q->far.key, key_of(t, q, token, n).k, sizeof q->far.key);
}

/* Brings what is longer than `kept` from the folder to memory. A look for a file is a call of the
 * kernel, and files are as many as pages: they are looked for once, not for each piece that is
 * read; again where one could not be, and at the end of what an earlier call has seen. */
static void bring(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t n,
                  int32_t kept)
{
    enum { TRIES = 4 }; /* files may turn out to be damaged; then there is a shorter way, or none */
    struct walk w;
    int32_t enough = parts_at_once(t, c), left = 1 + n / STEP_PAGE * t->n_parts / enough,
            far = take_far(t, &c->seq[seq], token, n), looked = 0;
    for (int i = 0; i < TRIES && !*t->cancel; i += left-- <= 0) {
        int32_t near = walk(t, c, seq, token, n, 0, &w);
        if (!looked && (far <= near || far * STEP_PAGE <= kept)) {
            far = walk(t, c, seq, token, n, 1, &w);
            looked = 1;
        }
        if (far <= near || far * STEP_PAGE <= kept)
            break;
        if (!work_tick(WORK_LOOK)) {
            keep_far(t, &c->seq[seq], token, n, far);
            break;
        }
        t->clock++;
        if (!fetch(t, c, seq, token, far * STEP_PAGE, enough)) {
            i++;
            far = looked = 0;
        }
    }
}

int32_t store_match(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t n,
                    int32_t kept, struct store_miss *miss)
{
    struct walk w;
    int32_t found = 0;
    *miss = (struct store_miss){-1, -1};
    if (!t->cap)
        return 0;
    take_back_done(t, c);
    if (t->disk)
        bring(t, c, seq, token, n, kept);
    found = walk(t, c, seq, token, n, 0, &w);
    find_miss(t, &w, token, n, miss);
    return found * STEP_PAGE;
}

/* Marks the files of a chain of entries as used, the last page first; files that another process
 * has removed are written again. */
static void touch(struct store *t, const struct cache *c, int32_t leaf)
{
    for (; t->disk && leaf >= 0; leaf = t->entry[leaf].parent)
        save(t, c, leaf);
}

void store_take(struct store *t, struct cache *c, int32_t seq, const int32_t *token, int32_t p)
{
    struct cache_seq *q = &c->seq[seq];
    struct store_mark *m = &q->mark;
    struct key key = root_of(t, q);
    int32_t pages = p / STEP_PAGE;
    uint64_t now = ++t->clock;
    *m = (struct store_mark){.entry = STORE_ROOT};
    for (int32_t i = 0; i < pages; i++) {
        struct key before = key;
        key = key_after(before.k, token + i * STEP_PAGE);
        mark_entry(t, m, find(t, m->entry, before.k, key, token + i * STEP_PAGE));
        struct store_entry *e = &t->entry[m->entry];
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
            page_ref(&c->group[g], e->page[g]);
            q->pages[g][i] = e->page[g];
        }
        sort_in(t, c, m->entry);
    }
    memcpy(m->key, key.k, sizeof m->key);
    memcpy(q->token, token, (size_t)p * sizeof *token);
    touch(t, c, m->entry);
    q->n = q->floor = q->pure = p;
    q->published = pages;
    q->foreign = 0;
}

void store_cache_use(const struct cache *c, int64_t *used, int64_t *total)
{
    double most = -1;
    for (int g = 0; g < c->n_own; g++) {
        const struct cache_group *p = &c->group[g];
        int64_t n = p->n_pages - pages_available(p) - p->n_idle;
        if (p->n_pages && (double)n / p->n_pages > most) {
            most = (double)n / p->n_pages;
            *used = n * STEP_PAGE;
            *total = (int64_t)p->n_pages * STEP_PAGE;
        }
    }
}
