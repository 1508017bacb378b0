/* snapshot_load.c -- what snapshot.c wrote, back: a session, or one sequence of it.
 *
 * A load reads everything, checks everything and makes all the memory it will need; only then it
 * touches the session, and nothing can fail any more. Checksums find damage; values are checked
 * besides, for checksums can be forged.
 *
 * The pages of a file are read one at a time, into pages of the pool that are nobody's until the
 * checksum was right. Where the pool has no room for old and new at once the section is read to
 * memory instead.
 *
 * Files of version 4, which knew one position of a slot, are read as well: a sequence of theirs is
 * not axed. */
#define XXH_STATIC_LINKING_ONLY
#include "run/session/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/cursor.h"
#include "base/machine/file.h"
#include "base/mem.h"

enum { SAMPLER_MOST = 1 << 26 };    /* bytes of that section */
enum { PIPED_NOTE_MOST = 1 << 26 }; /* and of a note, where a file's end is not known */
static const char *const section_names[N_SECTIONS] = {"layout", "sequences", "pages", "recurrent",
                                                      "logits", "sampler",   "note"};

/* ---------------------------------------------------------------- in: checks */

struct image { /* one sequence as it lies in the bytes, which need not be aligned */
    struct seq_head h;
    int32_t torn[STEP_MAX_GROUPS];
    struct memory_head memory;
    const uint8_t *token, *slot, *axes, *table[STEP_MAX_GROUPS];
};

/* Entries of its table of a group. */
static int32_t image_length(const struct cache *c, int g, const struct image *m)
{
    return snapshot_group_length(c, g, m->h.n_tab, m->memory.n);
}

/* Where the bytes are: in memory, or in a file that is read piece by piece. */
struct source {
    const uint8_t *p; /* NULL: the file */
    int fd;
    uint64_t n;
    const uint8_t *pieces; /* instead of a file: bytes that are taken a few at a time */
};

struct load {
    struct pith_session *s;
    int32_t first, n_seq, seq; /* of the session; seq -1: all */
    const char *name;          /* for messages */
    struct source from;
    uint32_t version, n_sections;
    struct cursor at[N_SECTIONS];    /* but for the pages of a file: */
    uint64_t pages_from;             /* where that section begins */
    uint8_t *copy[N_SECTIONS];       /* of a file's sections */
    int stream;                      /* its pages go from the file to their places */
    struct image *image;             /* [n_seq] */
    uint64_t pages[STEP_MAX_GROUPS]; /* where they begin in their section's payload */
    int32_t n_pages[STEP_MAX_GROUPS];
    int32_t n_blocks; /* recurrent ones of all sequences */
    int32_t logits_of;
    const uint8_t *logits;
    int32_t lent[STEP_MAX_GROUPS];   /* pages of a group beyond the limit, until it is over */
    int32_t *taken[STEP_MAX_GROUPS]; /* places of a group's pages */
    int32_t *slots;                  /* that its sequences have in each of its pages */
    uint8_t *page;                   /* one of a file */
    int group, n_begun;               /* of a file's pages: groups whose number has been read */
    uint64_t from_at;                 /* where they are read; 0: not begun */
    int32_t n_taken[STEP_MAX_GROUPS]; /* of each group the first so many pages */
    int infinite;                     /* one of them has a number that is not finite */
    XXH3_state_t sum;
    struct sampler_state state;
    const uint8_t *accepted; /* NULL: the snapshot has no sampler */
};

static int32_t int_at(const uint8_t *p, int64_t i)
{
    int32_t v;
    memcpy(&v, p + i * 4, sizeof v);
    return v;
}

static pith_status damaged(const struct load *v, struct pith_error *err, const char *what)
{
    return error_set(err, PITH_FORMAT, "%s: %s; it is damaged or was cut off, nothing was loaded",
                     v->name, what);
}

static pith_status damaged_section(const struct load *v, int i, struct pith_error *err,
                                   const char *what)
{
    return error_set(err, PITH_FORMAT,
                     "%s: section \"%s\": %s; it is damaged or was cut off, nothing was loaded",
                     v->name, section_names[i], what);
}

static pith_status read_from(const struct load *v, uint64_t at, void *to, uint64_t n,
                             struct pith_error *err)
{
    if (!v->from.p && !v->from.pieces)
        return file_read_at(v->from.fd, v->name, to, n, at, err);
    memcpy(to, (v->from.p ? v->from.p : v->from.pieces) + at, n);
    return PITH_OK;
}

/* Bytes that section i of a file has at most, and MORE: of this session's sequences, of any
 * sampler. No memory is asked for what is longer. A note is its owner's. */
static uint64_t section_most(const struct pith_session *s, int i)
{
    enum { MORE = 1 << 20 };
    if (!s || i > 4)
        return i == NOTE ? UINT64_MAX / 2 : SAMPLER_MOST;
    const struct cache *c = &s->cache;
    uint64_t slots = (uint64_t)s->n_ctx *
                     (sizeof *c->seq->token + sizeof *c->seq->slot + sizeof(struct cache_axes)),
             tables = (uint64_t)c->n_groups * (uint64_t)c->cap_pages * sizeof **c->seq->pages,
             heads = sizeof(struct seq_head) + sizeof(struct memory_head) + sizeof c->seq->torn;
    uint64_t most[] = {
        sizeof(struct layout), (uint64_t)s->n_seq * (heads + slots + tables), UINT64_MAX / 2,
        (uint64_t)s->n_seq * 4 + (uint64_t)s->recurrent.n_blocks * (8 + s->recurrent.block_bytes),
        8 + (uint64_t)s->n_cols * sizeof(float)};
    return most[i] + MORE;
}

/* Section i is head and payload of so many bytes at `from`: has its checksum been read, it can be
 * parsed. Pages of a file are left there. */
static pith_status take_section(struct load *v, int i, uint64_t from, uint64_t length,
                                struct pith_error *err)
{
    uint64_t sum, n = SECTION_HEAD + length, most = section_most(v->s, i);
    const uint8_t *p = v->from.p ? v->from.p + from : NULL;
    if (length > most)
        return error_set(err, PITH_RANGE,
                         "%s: section \"%s\" has %llu bytes, wanted at most %llu of what is loaded "
                         "here; it is damaged or was saved by a larger session, nothing was loaded",
                         v->name, section_names[i], (unsigned long long)length,
                         (unsigned long long)most);
    if (!p && i == PAGES) {
        v->pages_from = from;
        cursor_init(&v->at[i], (const uint8_t *)"", length); /* only its length */
        return PITH_OK;
    }
    if (!p) {
        p = v->copy[i] = mem_alloc(n, PITH_MEM_SCRATCH);
        if (!p)
            return error_set(err, PITH_NOMEM, "out of memory for loading %s", v->name);
        pith_status st = read_from(v, from, v->copy[i], n, err);
        if (st != PITH_OK)
            return st;
    }
    pith_status st = read_from(v, from + n, &sum, sizeof sum, err);
    if (st != PITH_OK)
        return st;
    if (sum != XXH3_64bits(p, n))
        return damaged_section(v, i, err, "its checksum differs");
    cursor_init(&v->at[i], p + SECTION_HEAD, length);
    return PITH_OK;
}

static pith_status check_start(struct load *v, struct pith_error *err)
{
    uint8_t p[HEAD] = {0};
    uint32_t head[2];
    uint64_t sum, n = v->from.n < HEAD ? v->from.n : HEAD;
    pith_status st = read_from(v, 0, p, n, err);
    if (st != PITH_OK)
        return st;
    if (n < MAGIC_BYTES || memcmp(p, SNAPSHOT_MAGIC, MAGIC_BYTES))
        return error_set(err, PITH_FORMAT, "%s is no saved session (its first bytes differ)",
                         v->name);
    memcpy(head, p + MAGIC_BYTES, sizeof head);
    memcpy(&sum, p + HEAD - sizeof sum, sizeof sum);
    if (n < HEAD)
        return damaged(v, err, "the header is short");
    v->version = head[0];
    v->n_sections = head[1];
    if (head[0] > VERSION || head[0] < VERSION_ONE_POSITION)
        return error_set(err, PITH_UNSUPPORTED, "%s: format version %u, wanted %d to %d", v->name,
                         head[0], VERSION_ONE_POSITION, VERSION);
    if (sum != XXH3_64bits(p, HEAD - 8) || head[1] != (head[0] == VERSION ? N_SECTIONS : NOTE))
        return damaged(v, err, "the header's checksum differs");
    return PITH_OK;
}

/* first: the sections before that one are walked over. */
static pith_status split(struct load *v, int first, struct pith_error *err)
{
    pith_status st = check_start(v, err);
    uint64_t at = HEAD, length;
    for (int i = 0; i < (int)v->n_sections && st == PITH_OK; i++) {
        uint32_t id[2] = {0};
        uint64_t most = v->from.n - at;
        if (most < SECTION_HEAD + sizeof(uint64_t))
            return damaged_section(v, i, err, "it is not whole");
        uint8_t head[SECTION_HEAD];
        if ((st = read_from(v, at, head, sizeof head, err)) != PITH_OK)
            return st;
        memcpy(id, head, sizeof id);
        memcpy(&length, head + sizeof id, sizeof length);
        if (id[0] != (uint32_t)i + 1 || id[1] || length > most - SECTION_HEAD - sizeof(uint64_t))
            return damaged_section(v, i, err, "it is not whole");
        if (i >= first)
            st = take_section(v, i, at, length, err);
        at += SECTION_HEAD + length + sizeof(uint64_t);
    }
    if (st != PITH_OK)
        return st;
    return at == v->from.n ? PITH_OK : damaged(v, err, "bytes follow the last section");
}

static pith_status check_layout(struct load *v, struct pith_error *err)
{
    struct layout have, want = snapshot_layout(v->s, v->seq);
    const uint8_t *p = cursor_bytes(&v->at[0], sizeof have, "layout");
    if (!p || v->at[0].at != v->at[0].n)
        return damaged_section(v, 0, err, "its length is wrong");
    memcpy(&have, p, sizeof have);
    const char *field = NULL;
    if (memcmp(have.fingerprint, want.fingerprint, sizeof have.fingerprint))
        field = "model (or its overrides)";
    else if (have.type_k != want.type_k)
        field = "cache type of K";
    else if (have.type_v != want.type_v)
        field = "cache type of V";
    else if (have.far != want.far)
        field = "set of factors of RoPE, which goes by the context asked for";
    else if (have.layers != want.layers || have.n_groups != want.n_groups ||
             have.page != want.page || have.block_bytes != want.block_bytes)
        field = "layout of the cache (windows that fit the context, devices)";
    if (field)
        return error_set(err, PITH_STATE, "%s was saved with another %s; nothing was loaded",
                         v->name, field);
    if (have.numerics != want.numerics)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s was saved by a program of numerics version %u, this one has %u: what "
                         "it computed has other bits; compute it anew",
                         v->name, have.numerics, want.numerics);
    if (have.whole != want.whole || have.n_seq != (have.whole ? have.n_seq : 1))
        return error_set(err, PITH_STATE, "%s holds %s, asked for was %s", v->name,
                         have.whole ? "a whole session" : "one sequence",
                         want.whole ? "a whole session" : "one sequence");
    if (have.n_seq > want.n_seq)
        return error_set(err, PITH_RANGE, "%s holds %u sequences, the session has %u", v->name,
                         have.n_seq, want.n_seq);
    v->n_seq = (int32_t)have.n_seq;
    return PITH_OK;
}

/* Are the slots of an edited sequence ones that edits can make? Where no layer has pages they are
 * counted, and lie nowhere. */
static int good_slots(const struct load *v, const struct image *m)
{
    const struct seq_head *h = &m->h;
    int64_t n_slots = v->s->cache.n_own ? (int64_t)h->n_tab * STEP_PAGE : h->n;
    int32_t before = 0;
    for (int32_t i = 0; i < h->n; i++) {
        int32_t pos = int_at(m->slot, 3 * (int64_t)i), src = int_at(m->slot, 3 * (int64_t)i + 1),
                delta = int_at(m->slot, 3 * (int64_t)i + 2);
        if (pos < before || pos >= POS_MAX || src < 0 || src >= n_slots ||
            delta < -POS_MAX || delta > POS_MAX || (!h->pending && (src != i || delta)))
            return 0;
        before = pos;
    }
    return 1;
}

static struct cache_axes image_axes(const struct image *m, int64_t i)
{
    struct cache_axes x;
    if (m->h.axed) {
        memcpy(&x, m->axes + i * (int64_t)sizeof x, sizeof x);
        return x;
    }
    int32_t pos = int_at(m->slot, 3 * i), delta = int_at(m->slot, 3 * i + 2);
    return (struct cache_axes){{pos, pos, 0}, {delta, delta, 0}};
}

/* The same of the positions beside the first. */
static int good_axes(const struct image *m)
{
    for (int32_t i = 0; i < m->h.n; i++) {
        struct cache_axes x = image_axes(m, i);
        for (int k = 0; k < STEP_AXES; k++)
            if (x.pos[k] < 0 || x.pos[k] >= POS_MAX || x.delta[k] < -POS_MAX ||
                x.delta[k] > POS_MAX || (!m->h.pending && x.delta[k]))
                return 0;
    }
    return 1;
}

static int32_t position(const struct image *m, int32_t slot)
{
    return m->h.edited ? int_at(m->slot, 3 * (int64_t)slot) : slot;
}

/* Of the row that comes after all. */
static int32_t next_position(const struct image *m)
{
    int32_t n = m->h.n, pos = n ? position(m, n - 1) : -1;
    if (!n || !m->h.axed)
        return pos + 1;
    struct cache_axes x = image_axes(m, n - 1);
    return cache_after((const int32_t[]){pos, x.pos[0], x.pos[1], x.pos[2]});
}

/* No page is beyond the file's; every slot that a row to come sees (those of cache_can_resume) has
 * one. */
static int good_tables(const struct load *v, const struct image *m)
{
    const struct cache *c = &v->s->cache;
    for (int g = c->n_own; g < c->n_groups; g++)
        for (int32_t k = 0; k < image_length(c, g, m); k++) {
            int32_t page = int_at(m->table[g], k);
            if (page < 0 || page >= v->n_pages[g])
                return 0;
        }
    for (int g = 0; g < c->n_own; g++) {
        int32_t i = m->h.n - 1;
        int64_t lo = i < 0 ? 0 : cache_first_seen(&c->group[g], next_position(m));
        for (int32_t k = 0; k < m->h.n_tab; k++) {
            int32_t page = int_at(m->table[g], k);
            if (page < -1 || page >= v->n_pages[g])
                return 0;
        }
        for (; i >= 0 && position(m, i) >= lo; i--) {
            int32_t src = m->h.edited ? int_at(m->slot, 3 * (int64_t)i + 1) : i;
            if (i < m->torn[g] || src / STEP_PAGE >= m->h.n_tab ||
                int_at(m->table[g], src / STEP_PAGE) < 0)
                return 0;
        }
    }
    return 1;
}

/* Does the head agree with itself? */
static int good_head(const struct image *m)
{
    const struct seq_head *h = &m->h;
    int32_t most_pages = h->pending ? INT32_MAX : h->n / STEP_PAGE + (h->n % STEP_PAGE != 0);
    int ok = h->n >= h->pending && h->n_tab >= 0 && h->n_tab <= most_pages && h->pure >= 0 &&
             h->pure <= h->n && !(h->edited & ~1) && !(h->pending & ~1) &&
             h->pending <= h->edited && !(h->axed & ~1) && h->axed <= h->edited;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        ok = ok && m->torn[g] >= 0 && m->torn[g] <= h->n;
    return ok;
}

/* Are its positions ones that this session's sequences can have? Where nothing can be moved or
 * taken out, nothing waits for that; where positions have to follow one another they do, from 0 on
 * if nothing could be moved. */
static int good_positions(const struct pith_session *s, const struct image *m)
{
    int fixed = !s->causal || s->pooled || s->recurrent.n_blocks;
    int follow = session_follows(s) != NULL;
    if (fixed && (m->h.pending || (follow && m->h.n && position(m, 0))))
        return 0;
    for (int32_t i = 1; follow && m->h.edited && !m->h.pending && i < m->h.n; i++)
        if (position(m, i) != position(m, i - 1) + 1)
            return 0;
    return 1;
}

static pith_status other_adapters(const struct load *v, const struct seq_head *h,
                                  const struct cache_seq *q, int32_t seq, struct pith_error *err)
{
    int had = h->adapter[0] || h->adapter[1], has = q->adapter[0] || q->adapter[1];
    return error_set(err, PITH_STATE, "%s holds a sequence that was computed %s sequence %d %s",
                     v->name,
                     !had  ? "without adapters, and"
                     : has ? "with other adapters or scales than"
                           : "with adapters, and",
                     (int)seq,
                     !had  ? "has some: take them off first (pith_adapt with n = 0)"
                     : has ? "has: set the same ones first (pith_adapt)"
                           : "has none: set the same ones first (pith_adapt)");
}

static pith_status check_sequence(const struct load *v, struct image *m, struct cursor *c,
                                  struct pith_error *err)
{
    const struct pith_session *s = v->s;
    size_t more = (size_t)snapshot_more_groups(&s->cache) * sizeof *m->torn;
    const uint8_t *p = cursor_bytes(c, sizeof m->h + more, "head");
    if (!p)
        return damaged_section(v, 1, err, "it is short");
    memcpy(&m->h, p, sizeof m->h);
    memcpy(m->torn, m->h.torn, sizeof m->h.torn);
    memcpy(m->torn + HEAD_GROUPS, p + sizeof m->h, more);
    const struct seq_head *h = &m->h;
    if (!good_head(m) || (h->axed && (v->version == VERSION_ONE_POSITION || !s->cache.axes)))
        return damaged_section(v, 1, err, "a sequence is impossible");
    if (h->n > s->n_ctx || h->n_tab > s->cache.cap_pages)
        return error_set(err, PITH_RANGE, "%s holds %d positions, the session has n_ctx = %d",
                         v->name, h->n, s->n_ctx);
    const struct cache_seq *q = &s->cache.seq[v->first + (m - v->image)];
    m->token = cursor_bytes(c, (uint64_t)h->n * 4, "tokens");
    m->slot = cursor_bytes(c, h->edited ? (uint64_t)h->n * 12 : 0, "slots");
    m->axes = cursor_bytes(c, h->axed ? (uint64_t)h->n * sizeof(struct cache_axes) : 0, "axes");
    if (s->cache.n_memory && (p = cursor_bytes(c, sizeof m->memory, "memory")))
        memcpy(&m->memory, p, sizeof m->memory);
    if ((h->n || m->memory.n) && memcmp(h->adapter, q->adapter, sizeof h->adapter) != 0)
        return other_adapters(v, h, q, (int32_t)(v->first + (m - v->image)), err);
    if (m->memory.n < 0 || m->memory.zero || (s->cache.n_memory && h->n && !m->memory.n))
        return damaged_section(v, 1, err, "the memory of a sequence is impossible");
    if (m->memory.n > s->cache.n_memory)
        return error_set(err, PITH_RANGE,
                         "%s holds an encoder's text of %d tokens, the session reads %d at most",
                         v->name, m->memory.n, s->cache.n_memory);
    for (int g = 0; g < s->cache.n_groups; g++)
        m->table[g] = cursor_bytes(c, (uint64_t)image_length(&s->cache, g, m) * 4, "table");
    if (c->failed)
        return damaged_section(v, 1, err, "it is short");
    for (int32_t i = 0; i < h->n; i++)
        if (int_at(m->token, i) < -1 || int_at(m->token, i) >= s->model->arch.hp.n_vocab)
            return damaged_section(v, 1, err, "a token is not of the vocabulary");
    if ((h->edited && (!good_slots(v, m) || !good_positions(s, m))) || (h->axed && !good_axes(m)) ||
        !good_tables(v, m))
        return damaged_section(v, 1, err, "slots or pages of a sequence are impossible");
    return PITH_OK;
}

static pith_status infinite_page(const struct load *v, struct pith_error *err)
{
    return damaged_section(v, PAGES, err, "a number of K or V is not finite");
}

/* Of pages in memory; those of a file are looked at as they come. */
static pith_status check_numbers(const struct load *v, struct pith_error *err)
{
    const struct cache *c = &v->s->cache;
    for (int g = 0; g < c->n_groups && !v->stream; g++) {
        const uint8_t *p = v->at[PAGES].p + v->pages[g];
        for (int32_t i = 0; i < v->n_pages[g]; i++, p += page_canonical(c, g))
            if (!page_finite(c, g, p))
                return infinite_page(v, err);
    }
    return PITH_OK;
}

static pith_status check_pages(struct load *v, struct pith_error *err)
{
    uint64_t at = 0, n = v->at[PAGES].n;
    for (int g = 0; g < v->s->cache.n_groups; g++) {
        uint64_t one = page_canonical(&v->s->cache, g);
        uint32_t count = 0;
        if (n - at < sizeof count)
            return damaged_section(v, PAGES, err, "it is short");
        pith_status st =
            v->from.p ? PITH_OK
                      : read_from(v, v->pages_from + SECTION_HEAD + at, &count, sizeof count, err);
        if (st != PITH_OK)
            return st;
        if (v->from.p)
            memcpy(&count, v->at[PAGES].p + at, sizeof count);
        at += sizeof count;
        if (count > INT32_MAX / 2 || (one && count > (n - at) / one))
            return damaged_section(v, PAGES, err, "it is short");
        v->n_pages[g] = (int32_t)count;
        v->pages[g] = at;
        at += count * one;
    }
    return at == n ? PITH_OK : damaged_section(v, PAGES, err, "its length is wrong");
}

static pith_status check_rest(struct load *v, struct pith_error *err)
{
    const struct pith_session *s = v->s;
    struct cursor c = v->at[3];
    for (int32_t i = 0; s->recurrent.n_blocks && i < v->n_seq; i++) {
        uint32_t n = cursor_u32(&c, "count");
        int32_t last = 0;
        for (uint32_t k = 0; k < n && !c.failed; k++, v->n_blocks++) {
            int32_t at = (int32_t)cursor_u32(&c, "positions");
            cursor_skip(&c, 4, "zero");
            const uint8_t *block = cursor_bytes(&c, s->recurrent.block_bytes, "block");
            /* ascending; the present may be a checkpoint too */
            if (at < 1 || at < last || at > v->image[i].h.n)
                return damaged_section(v, 3, err, "its positions are impossible");
            if (block && !recurrent_finite(&s->recurrent, block))
                return damaged_section(v, 3, err, "a number is not finite");
            last = at;
        }
        if (last != v->image[i].h.n)
            return damaged_section(v, 3, err, "a sequence has no present state");
    }
    if (c.failed || c.at != c.n)
        return damaged_section(v, 3, err, "its length is wrong");
    c = v->at[4];
    v->logits_of = (int32_t)cursor_u32(&c, "sequence");
    uint32_t n = cursor_u32(&c, "count");
    v->logits = cursor_bytes(&c, (uint64_t)n * sizeof(float), "logits");
    if (c.failed || c.at != c.n || v->logits_of < -1 || v->logits_of >= v->n_seq ||
        n != (v->logits_of < 0 ? 0 : (uint32_t)s->n_cols))
        return damaged_section(v, 4, err, "its length is wrong");
    for (uint32_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, v->logits + i * sizeof x, sizeof x);
        if (!(x <= FLT_MAX)) /* -inf is what a token has that never comes */
            return damaged_section(v, 4, err, "a logit is no number or infinity");
    }
    return PITH_OK;
}

static pith_status check_sampler(struct load *v, struct pith_error *err)
{
    struct cursor c = v->at[5];
    const struct sampler_state *t = &v->state;
    if (!c.n)
        return PITH_OK;
    const uint8_t *p = cursor_bytes(&c, sizeof v->state, "state");
    if (p)
        memcpy(&v->state, p, sizeof v->state);
    v->accepted = cursor_bytes(&c, (uint64_t)t->n_accepted * sizeof(int32_t), "tokens");
    if (c.failed || c.at != c.n || t->n_steps > SAMPLE_MAX_STEPS)
        return damaged_section(v, 5, err, "its length is wrong");
    for (uint32_t i = 0; i < SAMPLE_MAX_STEPS; i++)
        if (!(t->steps[i][0] - t->steps[i][0] == 0) || !(t->steps[i][1] - t->steps[i][1] == 0))
            return damaged_section(v, 5, err, "a number is not finite");
    for (uint32_t i = 0; i < t->n_accepted; i++) {
        int32_t id = int_at(v->accepted, i);
        if ((id < 0 ? ~id : id) >= v->s->model->arch.hp.n_vocab)
            return damaged_section(v, 5, err, "a token is not in the vocabulary");
    }
    return PITH_OK;
}

/* Fills v->slots; returns the pages that the group's need at most. */
static int32_t count_slots(struct load *v, int g)
{
    int32_t whole = 0;
    memset(v->slots, 0, (size_t)v->n_pages[g] * sizeof *v->slots);
    const struct cache *c = &v->s->cache;
    for (int32_t i = 0; i < v->n_seq; i++) {
        const struct image *m = &v->image[i];
        int32_t all = c->group[g].of == CACHE_MEMORY ? m->memory.n : m->h.n;
        int pending = c->group[g].of == CACHE_TOKENS && m->h.pending;
        for (int32_t k = 0; k < image_length(c, g, m); k++) {
            int32_t number = int_at(m->table[g], k);
            int32_t n = pending ? STEP_PAGE : all - k * STEP_PAGE;
            if (number >= 0 && v->slots[number] < n)
                v->slots[number] = n;
        }
    }
    for (int32_t i = 0; i < v->n_pages[g]; i++)
        whole += v->slots[i] > STEP_QUARTER;
    return whole + (v->n_pages[g] - whole + STEP_QUARTERS - 1) / STEP_QUARTERS;
}

/* 1: the group's new pages can be taken while the old ones are there: what that is beyond the limit
 * is lent until the load is over. Short ends may come to lie beside old ones, each in a page of its
 * own afterwards: there has to be room for that, too. */
static int can_hold_both(struct load *v, int i)
{
    struct cache_group *g = &v->s->cache.group[i];
    int32_t need = count_slots(v, i);
    if (pages_replace(&v->s->cache, i, v->seq, v->n_pages[i], NULL) != PITH_OK)
        return 0;
    int32_t more = need - pages_available(g);
    if (more > g->n_spare - g->n_lent)
        return 0;
    v->lent[i] = more > 0 ? more : 0;
    g->n_lent += v->lent[i];
    return 1;
}

/* Pages of a file go to their places at once, with the session as it is, if there is room for them
 * beside what they replace; else they are read to memory first. */
static pith_status choose_way(struct load *v, struct pith_error *err)
{
    struct cache *c = &v->s->cache;
    pith_status st = PITH_OK;
    v->stream = !v->from.p;
    for (int g = 0; g < c->n_groups && v->stream; g++)
        v->stream = can_hold_both(v, g);
    for (int g = 0; g < c->n_groups && v->stream && st == PITH_OK; g++)
        st = pages_need(c, g, v->first, count_slots(v, g), err);
    if (v->from.p || st != PITH_OK)
        return st;
    if (v->stream) {
        v->page = mem_alloc(snapshot_longest_part(v->s) + 1, PITH_MEM_SCRATCH);
        return v->page ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for a page");
    }
    uint64_t n = SECTION_HEAD + v->at[PAGES].n, sum;
    uint8_t *p = v->copy[PAGES] = mem_alloc(n, PITH_MEM_SCRATCH);
    if (!p)
        return error_set(err, PITH_NOMEM, "out of memory for the pages of %s", v->name);
    if ((st = read_from(v, v->pages_from, p, n, err)) != PITH_OK ||
        (st = read_from(v, v->pages_from + n, &sum, sizeof sum, err)) != PITH_OK)
        return st;
    if (sum != XXH3_64bits(p, n))
        return damaged_section(v, PAGES, err, "its checksum differs");
    cursor_init(&v->at[PAGES], p + SECTION_HEAD, n - SECTION_HEAD);
    return PITH_OK;
}

/* Room for pages. */
static pith_status make_room(struct load *v, struct pith_error *err)
{
    struct pith_session *s = v->s;
    pith_status st = PITH_OK;
    int32_t most = 0;
    int64_t pages = 0;
    int ok = 1;
    for (int g = 0; g < s->cache.n_groups; g++) {
        most = v->n_pages[g] > most ? v->n_pages[g] : most;
        v->taken[g] = mem_array((size_t)v->n_pages[g] + 1, sizeof **v->taken, PITH_MEM_SCRATCH);
        ok &= v->taken[g] != NULL;
    }
    v->slots = mem_array((size_t)most + 1, sizeof *v->slots, PITH_MEM_SCRATCH);
    if (!ok || !v->slots)
        return error_set(err, PITH_NOMEM, "out of memory for loading");
    for (int g = 0; g < s->cache.n_groups && st == PITH_OK; g++) {
        int32_t need = count_slots(v, g), i = 0;
        while (i < v->n_pages[g] && v->slots[i])
            i++;
        st = i < v->n_pages[g] ? damaged_section(v, PAGES, err, "it has a page of no sequence")
                               : pages_replace(&s->cache, g, v->seq, need, err);
    }
    for (int g = 0; g < s->cache.n_groups; g++)
        pages += v->n_pages[g];
    if (st == PITH_OK && !cache_log_room(s->cache.log, pages, 0))
        st = error_set(err, PITH_NOMEM, "out of memory for loading");
    return st == PITH_OK ? choose_way(v, err) : st;
}

/* Room for all else. */
static pith_status make_rest(struct load *v, struct pith_error *err)
{
    struct pith_session *s = v->s;
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < v->n_seq && st == PITH_OK; i++)
        st = cache_tokens(&s->cache, &s->cache.seq[v->first + i], v->image[i].h.n, err);
    for (int32_t i = 0; i < v->n_seq && st == PITH_OK; i++)
        if (v->image[i].h.edited)
            st = cache_edit_init(&s->cache, &s->cache.seq[v->first + i], err);
    if (st == PITH_OK)
        st = recurrent_reserve(&s->recurrent, v->seq, v->n_blocks, s->store.held[s->cache.n_own],
                               err);
    if (st == PITH_OK && v->logits_of >= 0)
        st = session_room_for_outputs(s, 1, err);
    return st;
}

/* Takes and fills the pages of all groups, from memory. */
static pith_status fill_pages(struct load *v, struct pith_error *err)
{
    struct cache *c = &v->s->cache;
    pith_status st = PITH_OK;
    for (int g = 0; g < c->n_groups; g++) {
        uint64_t bytes = page_canonical(c, g);
        count_slots(v, g);
        for (int32_t i = 0; i < v->n_pages[g]; i++) {
            v->taken[g][i] = page_take(c, g, v->slots[i]);
            if (st == PITH_OK)
                st = page_write(c, g, v->taken[g][i],
                                v->at[PAGES].p + v->pages[g] + (uint64_t)i * bytes, err);
        }
    }
    return st;
}

/* Of each group the first n pages. */
static void drop_pages(struct load *v, int32_t *n)
{
    struct cache *c = &v->s->cache;
    for (int g = 0; g < c->n_groups; g++)
        while (n[g])
            page_unref(&c->group[g], &v->taken[g][--n[g]]);
}

static pith_status stream_begin(struct load *v, struct pith_error *err)
{
    uint8_t head[SECTION_HEAD];
    pith_status st = read_from(v, v->pages_from, head, sizeof head, err);
    v->from_at = v->pages_from + SECTION_HEAD;
    XXH3_64bits_reset(&v->sum);
    XXH3_64bits_update(&v->sum, head, sizeof head);
    return st;
}

/* The next page of the group to its place. Others may have taken the room there was for it. */
static pith_status stream_page(struct load *v, struct pith_error *err)
{
    struct cache *c = &v->s->cache;
    int g = v->group;
    uint64_t bytes = page_canonical(c, g);
    int32_t *n = &v->n_taken[g], slots = v->slots[*n];
    pith_status st = PITH_OK;
    if (v->s->cancel)
        return error_set(err, PITH_CANCELLED, "%s: cancelled, nothing was loaded", v->name);
    if (v->from.pieces)
        st = pages_need(c, g, v->first, slots > STEP_QUARTER || !c->group[g].n_open, err);
    if (st == PITH_OK && v->from.pieces)
        st = pages_log(c, 1, err);
    if (st == PITH_OK)
        st = read_from(v, v->from_at, v->page, bytes, err);
    if (st != PITH_OK)
        return st;
    v->from_at += bytes;
    XXH3_64bits_update(&v->sum, v->page, bytes);
    v->infinite |= !page_finite(c, g, v->page);
    v->taken[g][*n] = page_take(c, g, slots);
    int32_t place = v->taken[g][(*n)++];
    return v->infinite ? PITH_OK : page_write(c, g, place, v->page, err);
}

/* Pages of so many bytes, one in memory at a time, from where the last call ended; *done: all are
 * there, and their checksum is right. On failure none is taken. */
static pith_status stream_pages(struct load *v, uint64_t most, int *done, struct pith_error *err)
{
    const struct cache *c = &v->s->cache;
    pith_status st = v->from_at ? PITH_OK : stream_begin(v, err);
    uint64_t want = 0, read = 0;
    *done = 0;
    for (; v->group < c->n_groups && st == PITH_OK; v->group++) {
        int g = v->group;
        if (v->n_begun == g) {
            v->n_begun++;
            XXH3_64bits_update(&v->sum, &v->n_pages[g], sizeof v->n_pages[g]);
            v->from_at += sizeof v->n_pages[g];
        }
        count_slots(v, g);
        for (; v->n_taken[g] < v->n_pages[g] && st == PITH_OK; read += page_canonical(c, g)) {
            if (read && read + page_canonical(c, g) > most)
                return PITH_OK;
            st = stream_page(v, err);
        }
    }
    if (st == PITH_OK)
        st = read_from(v, v->from_at, &want, sizeof want, err);
    if (st == PITH_OK && want != XXH3_64bits_digest(&v->sum))
        st = damaged_section(v, PAGES, err, "its checksum differs");
    if (st == PITH_OK && v->infinite)
        st = infinite_page(v, err);
    *done = st == PITH_OK;
    if (st != PITH_OK)
        drop_pages(v, v->n_taken);
    return st;
}

/* ---------------------------------------------------------------- in: nothing fails from here on
 * but a device */

static void load_group(struct load *v, int g)
{
    struct pith_session *s = v->s;
    struct cache_group *p = &s->cache.group[g];
    for (int32_t i = 0; i < v->n_seq; i++)
        for (int32_t k = 0; k < image_length(&s->cache, g, &v->image[i]); k++) {
            int32_t number = int_at(v->image[i].table[g], k);
            s->cache.seq[v->first + i].pages[g][k] = number < 0 ? -1 : v->taken[g][number];
            if (number >= 0)
                page_ref(p, v->taken[g][number]);
        }
    for (int32_t i = 0; i < v->n_pages[g]; i++) /* the loader's own reference */
        page_unref(p, &v->taken[g][i]);
}

static void load_sequence(struct load *v, int32_t i)
{
    struct pith_session *s = v->s;
    const struct image *m = &v->image[i];
    struct cache_seq *q = &s->cache.seq[v->first + i];
    q->n = q->floor = m->h.n;
    q->pure = m->h.pure;
    q->published = 0;
    q->foreign = 1;
    q->edited = m->h.edited;
    q->axed = q->placed = m->h.axed;
    q->pending = m->h.pending;
    q->n_memory = m->memory.n;
    memcpy(q->memory, m->memory.hash, sizeof q->memory);
    memcpy(q->torn, m->torn, sizeof q->torn);
    memcpy(q->token, m->token, (size_t)q->n * sizeof *q->token);
    if (q->edited)
        memcpy(q->slot, m->slot, (size_t)q->n * sizeof *q->slot);
    for (int32_t k = 0; q->edited && q->axes && k < q->n; k++)
        q->axes[k] = image_axes(m, k);
}

static pith_status load_recurrent(struct load *v, struct pith_error *err)
{
    struct recurrent *r = &v->s->recurrent;
    struct cursor *c = &v->at[3];
    pith_status st = PITH_OK;
    for (int32_t i = 0; r->n_blocks && i < v->n_seq; i++) {
        uint32_t n = cursor_u32(c, "count");
        for (uint32_t k = 0; k < n; k++) {
            int32_t at = (int32_t)cursor_u32(c, "positions");
            cursor_skip(c, 4, "zero");
            int32_t block = recurrent_push(r, v->first + i, at, k + 1 == n);
            const uint8_t *p = cursor_bytes(c, r->block_bytes, "block");
            if (st == PITH_OK)
                st = recurrent_write(r, block, p, err);
        }
    }
    return st;
}

static void empty_sequences(struct load *v)
{
    struct pith_session *s = v->s;
    int32_t end = v->seq < 0 ? s->n_seq : v->first + 1;
    for (int32_t q = v->first; q < end; q++) {
        cache_cut(&s->cache, q, 0);
        recurrent_cut(&s->recurrent, q, 0);
        cache_memory_drop(&s->cache, q);
    }
}

/* A device that fails leaves what was to be loaded empty. */
static pith_status load_all(struct load *v, struct pith_error *err)
{
    struct pith_session *s = v->s;
    empty_sequences(v);
    pith_status st = v->stream ? PITH_OK : fill_pages(v, err);
    for (int g = 0; g < s->cache.n_groups; g++)
        load_group(v, g);
    for (int32_t i = 0; i < v->n_seq; i++)
        load_sequence(v, i);
    pith_status blocks = load_recurrent(v, st == PITH_OK ? err : NULL);
    st = st == PITH_OK ? blocks : st;
    s->n_outputs = s->last_outputs = s->n_tapped = 0;
    session_forget_last(s, -1);
    if (st != PITH_OK) {
        empty_sequences(v);
        return error_prefix(err, "%s: what was to be loaded is empty now", v->name);
    }
    if (v->logits_of >= 0) {
        memcpy(s->kept, v->logits, (size_t)s->n_cols * sizeof *s->kept);
        s->output[s->n_outputs++] = s->kept;
        int32_t q = v->first + v->logits_of;
        s->last[q] = (struct last_output){0, s->cache.seq[q].n};
    }
    return st;
}

static pith_status load_begin(struct load *v, struct pith_error *err)
{
    pith_status st = PITH_OK;
    v->first = v->seq < 0 ? 0 : v->seq;
    if (v->seq < -1 || v->seq >= v->s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d; -1 is all of it",
                         v->seq, v->s->n_seq - 1);
    TRY(follow_idle(v->s, err));
    TRY(split(v, 0, err));
    TRY(check_layout(v, err));
    TRY(check_pages(v, err));
    v->image = mem_array((size_t)v->n_seq + 1, sizeof *v->image, PITH_MEM_SCRATCH);
    if (!v->image)
        TRY(error_set(err, PITH_NOMEM, "out of memory for loading %d sequences", v->n_seq));
    for (int32_t i = 0; i < v->n_seq; i++)
        TRY(check_sequence(v, &v->image[i], &v->at[1], err));
    if (v->at[1].at != v->at[1].n)
        TRY(damaged_section(v, 1, err, "its length is wrong"));
    TRY(check_rest(v, err));
    TRY(check_sampler(v, err));
    TRY(make_room(v, err));
    TRY(check_numbers(v, err));
fail:
    return st;
}

/* With all pages of a file in their places. */
static pith_status load_end(struct load *v, struct pith_sampler *sampler, struct pith_error *err)
{
    pith_status st = make_rest(v, err);
    if (st == PITH_OK && sampler && v->accepted)
        st = sampler_restore(sampler, &v->state, v->accepted, err);
    if (st != PITH_OK && v->stream)
        drop_pages(v, v->n_taken);
    if (st == PITH_OK)
        st = load_all(v, err);
    if (st == PITH_OK)
        follow_cut(v->s, v->seq, 0);
    return st;
}

static void load_deinit(struct load *v)
{
    for (int g = 0; g < STEP_MAX_GROUPS; g++) {
        v->s->cache.group[g].n_lent -= v->lent[g];
        mem_free(v->taken[g]);
    }
    for (int i = 0; i < N_SECTIONS; i++)
        mem_free(v->copy[i]);
    mem_free(v->image);
    mem_free(v->slots);
    mem_free(v->page);
}

static pith_status load_from(struct pith_session *s, int32_t seq, const char *name,
                             struct source from, struct pith_sampler *sampler,
                             struct pith_error *err)
{
    struct load v = {.s = s, .seq = seq, .name = name, .from = from};
    int done = 0;
    pith_status st = sampler ? snapshot_check_vocabulary(s, sampler, err) : PITH_OK;
    if (st == PITH_OK)
        st = load_begin(&v, err);
    if (st == PITH_OK && v.stream)
        st = stream_pages(&v, UINT64_MAX, &done, err);
    if (st == PITH_OK)
        st = load_end(&v, sampler, err);
    load_deinit(&v);
    return st;
}

/* ---------------------------------------------------------------- in, in pieces */

struct pith_loader {
    struct load v;
    uint64_t state; /* of the sequence, at first */
    int ended;
};

struct pith_loader *session_loader(struct pith_session *s, int32_t seq, const void *p, size_t n,
                                   struct pith_error *err)
{
    struct pith_loader *w = seq < 0 ? NULL : mem_zalloc(sizeof *w, PITH_MEM_SCRATCH);
    const char *why = seq < 0 ? "sequence %d: one sequence is loaded in pieces, 0 or above"
                              : "out of memory for loading sequence %d";
    if (!w) {
        error_set(err, seq < 0 ? PITH_RANGE : PITH_NOMEM, why, seq);
        return NULL;
    }
    w->v = (struct load){
        .s = s, .seq = seq, .name = "the snapshot", .from = {.fd = -1, .n = n, .pieces = p}};
    pith_status st = load_begin(&w->v, err);
    int fits = w->v.stream;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        fits &= !w->v.lent[g];
    if (st == PITH_OK && !fits)
        st = error_set(err, PITH_NOMEM, "sequence %d: no room for it in the cache beside what it "
                       "replaces; empty it first, or load it at once", seq);
    if (st != PITH_OK) {
        session_loader_free(w);
        return NULL;
    }
    w->state = snapshot_state(s, seq);
    return w;
}

pith_status session_loader_next(struct pith_loader *w, size_t most, int *done,
                                struct pith_error *err)
{
    struct load *v = &w->v;
    *done = 0;
    if (w->ended)
        return error_set(err, PITH_STATE, "sequence %d is no longer being loaded", v->seq);
    if (v->s->n_flying)
        return error_set(err, PITH_STATE, "sequence %d: %d steps are under way; end them first",
                         v->seq, v->s->n_flying);
    pith_status st = follow_idle(v->s, err);
    if (st != PITH_OK)
        return st;
    if (snapshot_state(v->s, v->seq) != w->state) {
        w->ended = 1;
        drop_pages(v, v->n_taken);
        return error_set(err, PITH_STATE, "sequence %d has changed since the loading began",
                         v->seq);
    }
    st = stream_pages(v, most, done, err);
    w->ended = st != PITH_OK || *done;
    if (*done)
        st = load_end(v, NULL, err);
    *done = *done && st == PITH_OK;
    return st;
}

void session_loader_free(struct pith_loader *w)
{
    if (w && !w->ended)
        drop_pages(&w->v, w->v.n_taken);
    if (w)
        load_deinit(&w->v);
    mem_free(w);
}

pith_status session_load_memory(struct pith_session *s, int32_t seq, const void *p, size_t n,
                                struct pith_error *err)
{
    return load_from(s, seq, "the snapshot", (struct source){.p = p, .fd = -1, .n = n}, NULL, err);
}

/* Bytes of a file with as many sequences and pages as the session can have. */
static uint64_t snapshot_most(const struct pith_session *s)
{
    const struct cache *c = &s->cache;
    uint64_t n = HEAD;
    for (int i = 0; i < N_SECTIONS; i++)
        n += SECTION_HEAD + sizeof n +
             (i == PAGES  ? 0
              : i == NOTE ? PIPED_NOTE_MOST
                          : section_most(s, i));
    for (int g = 0; g < c->n_groups; g++) {
        const struct cache_group *p = &c->group[g];
        n += sizeof(uint32_t) +
             (uint64_t)(p->n_pages + p->n_spare) * STEP_QUARTERS * page_canonical(c, g);
    }
    return n;
}

/* What is no file that can be read anywhere (a pipe, "-") is read whole first. */
static pith_status load_whole(struct pith_session *s, int32_t seq, struct pith_sampler *sampler,
                              const char *path, struct pith_error *err)
{
    uint64_t n;
    char *p = file_read_all(path, snapshot_most(s), &n, PITH_MEM_SCRATCH, &s->cancel, err);
    if (!p)
        return err->code;
    struct source from = {.p = (const uint8_t *)p, .fd = -1, .n = n};
    pith_status st = load_from(s, seq, path, from, sampler, err);
    mem_free(p);
    return st;
}

pith_status session_load(struct pith_session *s, int32_t seq, struct pith_sampler *sampler,
                         const char *path, struct pith_error *err)
{
    struct stat sb;
    int fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    pith_status st;
    if (fd >= 0 && fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode))
        st = load_from(s, seq, path, (struct source){.fd = fd, .n = (uint64_t)sb.st_size}, sampler,
                       err);
    else
        st = load_whole(s, seq, sampler, path, err);
    if (fd >= 0)
        close(fd);
    return st;
}

pith_status session_note(const char *path, void *buf, size_t cap, size_t *n, struct pith_error *err)
{
    struct stat sb;
    struct load v = {.name = path};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    pith_status st = PITH_OK;
    *n = 0;
    if (fd < 0 || fstat(fd, &sb) != 0)
        st = error_set(err, PITH_IO, "%s: cannot open: %s", path, strerror(errno));
    else if (!S_ISREG(sb.st_mode))
        st = error_set(err, PITH_IO, "%s is no regular file; wanted a saved session", path);
    if (st == PITH_OK) {
        v.from = (struct source){.fd = fd, .n = (uint64_t)sb.st_size};
        st = split(&v, NOTE, err);
    }
    if (st == PITH_OK) {
        *n = v.at[NOTE].n;
        if (buf && *n > cap)
            st = error_set(err, PITH_RANGE, "a note of %zu bytes into %zu", *n, cap);
        else if (buf && *n)
            memcpy(buf, v.at[NOTE].p, *n);
    }
    mem_free(v.copy[NOTE]);
    if (fd >= 0)
        close(fd);
    return st;
}
