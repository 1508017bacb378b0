/* snapshot.c -- a session or one sequence as bytes. snapshot_load.c reads them.
 *
 *     magic[8] version u32 sections u32 | checksum u64
 *     section:  id u32, 0 u32, length u64 | payload | checksum u64 of all before     in order of
 *               id, each once, nothing behind the last
 *       1 layout     struct layout: what the model and the session have to be
 *       2 sequences  per sequence: struct seq_head, `torn` of cache groups from the ninth on,
 *                    tokens[n], slots[n] if edited, axes[n] if axed (cache.h), of models with an
 *                    encoder struct memory_head, per cache group table[]: which page, -1 none; of
 *                    n_tab pages, or those of the memory
 *       3 pages      per cache group: count u32, then its pages: per layer of the group K and V in
 *                    canonical form (kv_page.h)
 *       4 recurrent  per sequence: count u32, then so many times: positions u32, 0 u32, block
 *       5 logits     of the sequence's last token, of all sequences of the last output, if it is
 *                    of a last token: sequence i32 (-1: none), count u32, then as many floats
 *       6 sampler    nothing, or struct sampler_state (sample.h) and the tokens accepted as ids,
 *                    ~id if its grammar did not take it
 *       7 note       bytes of whoever saved; files without one are of version 5 and end before it
 *
 * Pages that sequences share are written once and shared again. Integers are little-endian,
 * checksums XXH3-64. A sampler is in it where the caller gives one. Edits that are still to be
 * carried out are saved as such. */
#define XXH_STATIC_LINKING_ONLY
#include "run/session/snapshot.h"

#include <string.h>
#include <xxhash.h>
#include "base/machine/file.h"
#include "base/mem.h"

struct layout snapshot_layout(const struct pith_session *s, int32_t seq)
{
    struct layout y = {.block_bytes = s->recurrent.block_bytes,
                       .page = STEP_PAGE,
                       .n_groups = (uint32_t)s->cache.n_groups,
                       .n_seq = seq < 0 ? (uint32_t)s->n_seq : 1,
                       .whole = seq < 0,
                       .numerics = session_numerics(s),
                       .far = (uint32_t)rope_is_far(&s->model->arch, s->rope_ctx)};
    session_fingerprint(s, y.fingerprint);
    for (int32_t i = 0; i < s->n_states; i++) {
        const struct state *kv = &s->states[i];
        const struct cache_group *g = kv->group < 0 ? NULL : &s->cache.group[kv->group];
        int32_t what[] = {kv->n_head_kv, kv->group,         g ? g->span : 0,   kv->d_k,
                          kv->d_v,       (int32_t)kv->rows, (int32_t)kv->range};
        y.layers = XXH3_64bits_withSeed(what, sizeof what, y.layers);
        if (g && !kv->fixed) {
            y.type_k = kv->k_type;
            y.type_v = kv->v_type;
        }
    }
    return y;
}

/* ---------------------------------------------------------------- out */

/* Of n bytes so far those in [from, until) go out: a piece. Others are only counted. */
struct out {
    struct file_writer *file; /* or memory: */
    uint8_t *buf;
    uint64_t cap, n, from, until;
    XXH3_state_t *sum; /* NULL: only counting */
    pith_status st;    /* of devices; what follows a failure is nothing */
    struct pith_error *err;
};

/* Whether n bytes go out now: those that the buffer has no room for begin the next piece. */
static int takes(struct out *o, uint64_t n)
{
    if (!o->sum || o->n < o->from || o->n >= o->until)
        return 0;
    if (!o->file && n > o->cap - (o->n - o->from))
        o->until = o->n;
    return o->n < o->until;
}

static void put(struct out *o, const void *p, uint64_t n)
{
    if (takes(o, n)) {
        XXH3_64bits_update(o->sum, p, n);
        if (o->file)
            file_writer_put(o->file, p, n);
        else if (n)
            memcpy(o->buf + (o->n - o->from), p, n);
    }
    o->n += n;
}

static void put_sum(struct out *o)
{
    uint64_t sum = 0;
    int now = takes(o, sizeof sum);
    if (now)
        sum = XXH3_64bits_digest(o->sum);
    put(o, &sum, sizeof sum);
    if (now)
        XXH3_64bits_reset(o->sum);
}

struct save {
    const struct pith_session *s;
    int32_t seq; /* -1: all */
    int32_t first, n_seq;
    int32_t *number[STEP_MAX_GROUPS]; /* of each place in the file, -1: not in it */
    int32_t *pages[STEP_MAX_GROUPS], n_pages[STEP_MAX_GROUPS];
    int32_t *slots[STEP_MAX_GROUPS]; /* of each page: so many are written, what is behind them is
                                        nobody's */
    uint8_t *page;
    const struct pith_sampler *sampler; /* NULL: none */
    struct sampler_state state;
    struct session_note note;
    int32_t logits_of, output; /* of the session: a sequence, -1: none, and its last output */
};

/* Entries of the page tables that matter: those up to the last page there is, and of an edited
 * sequence up to the last that some slot lies in, whether it is still there or not. */
static int32_t table_length(const struct cache *c, const struct cache_seq *q)
{
    int32_t n = q->pending ? c->cap_pages : (q->n + STEP_PAGE - 1) / STEP_PAGE, least = 0;
    int used = 0;
    for (int32_t i = 0; q->pending && i < q->n; i++)
        least = q->slot[i].src / STEP_PAGE < least ? least : q->slot[i].src / STEP_PAGE + 1;
    while (n > least && !used) {
        for (int g = 0; g < c->n_own; g++)
            used |= q->pages[g][n - 1] >= 0;
        n -= !used;
    }
    return n;
}

int32_t snapshot_group_length(const struct cache *c, int g, int32_t n_tab, int32_t n_memory)
{
    enum cache_of of = c->group[g].of;
    return of == CACHE_TOKENS   ? n_tab
           : of == CACHE_MEMORY ? (n_memory + STEP_PAGE - 1) / STEP_PAGE
                                : 0;
}

static void put_layout(struct out *o, const struct save *v)
{
    struct layout y = snapshot_layout(v->s, v->seq);
    put(o, &y, sizeof y);
}

static void put_sequences(struct out *o, const struct save *v)
{
    const struct cache *c = &v->s->cache;
    for (int32_t i = v->first; i < v->first + v->n_seq; i++) {
        const struct cache_seq *q = &c->seq[i];
        struct seq_head h = {q->n, q->pure, q->edited, q->pending, table_length(c, q),
                             {0},  q->axed, {0}};
        memcpy(h.torn, q->torn, sizeof h.torn);
        memcpy(h.adapter, q->adapter, sizeof h.adapter);
        put(o, &h, sizeof h);
        put(o, q->torn + HEAD_GROUPS, (uint64_t)snapshot_more_groups(c) * sizeof *q->torn);
        put(o, q->token, (uint64_t)q->n * sizeof *q->token);
        if (q->edited)
            put(o, q->slot, (uint64_t)q->n * sizeof *q->slot);
        if (q->axed)
            put(o, q->axes, (uint64_t)q->n * sizeof *q->axes);
        struct memory_head m = {{q->memory[0], q->memory[1]}, q->n_memory, 0};
        if (!q->n_memory)
            memset(&m, 0, sizeof m);
        if (c->n_memory)
            put(o, &m, sizeof m);
        for (int g = 0; g < c->n_groups; g++)
            for (int32_t k = 0; k < snapshot_group_length(c, g, h.n_tab, q->n_memory); k++) {
                int32_t place = q->pages[g][k];
                put(o, place < 0 ? &place : &v->number[g][place], sizeof place);
            }
    }
}

static void put_pages(struct out *o, const struct save *v)
{
    const struct cache *c = &v->s->cache;
    for (int g = 0; g < c->n_groups; g++) {
        put(o, &v->n_pages[g], sizeof v->n_pages[g]);
        for (int32_t i = 0; i < v->n_pages[g]; i++) {
            if (takes(o, page_canonical(c, g)) && o->st == PITH_OK)
                o->st = page_read(c, g, v->pages[g][i], v->slots[g][i], v->page, o->err);
            put(o, v->page, page_canonical(c, g));
        }
    }
}

static void put_recurrent(struct out *o, const struct save *v)
{
    const struct recurrent *r = &v->s->recurrent;
    for (int32_t i = v->first; r->n_blocks && i < v->first + v->n_seq; i++) {
        const struct recurrent_seq *q = &r->seq[i];
        uint32_t n = (uint32_t)q->n_at + (q->now >= 0);
        put(o, &n, sizeof n);
        for (uint32_t k = 0; k < n; k++) {
            int present = k == (uint32_t)q->n_at;
            int32_t head[2] = {present ? q->n : q->at[k].n, 0};
            int32_t block = present ? q->now : q->at[k].block;
            put(o, head, sizeof head);
            if (takes(o, r->block_bytes) && o->st == PITH_OK)
                o->st = recurrent_read(r, block, v->page, o->err);
            put(o, v->page, r->block_bytes);
        }
    }
}

static void put_logits(struct out *o, const struct save *v)
{
    const struct pith_session *s = v->s;
    int32_t q = v->logits_of < 0 ? -1 : v->logits_of - v->first;
    uint32_t n = q < 0 ? 0 : (uint32_t)s->n_cols;
    put(o, &q, sizeof q);
    put(o, &n, sizeof n);
    if (n)
        put(o, s->output[v->output], (uint64_t)n * sizeof(float));
}

static void put_sampler(struct out *o, const struct save *v)
{
    if (!v->sampler)
        return;
    put(o, &v->state, sizeof v->state);
    put(o, v->sampler->accepted, (uint64_t)v->state.n_accepted * sizeof *v->sampler->accepted);
}

static void put_note(struct out *o, const struct save *v)
{
    put(o, v->note.p, v->note.n);
}

static void put_all(struct out *o, const struct save *v)
{
    static void (*const sections[N_SECTIONS])(struct out *, const struct save *) = {
        put_layout, put_sequences, put_pages, put_recurrent, put_logits, put_sampler, put_note};
    const uint32_t n = v->note.n ? N_SECTIONS : NOTE;
    const uint32_t head[2] = {v->note.n ? VERSION : VERSION_NO_NOTE, n};
    put(o, SNAPSHOT_MAGIC, MAGIC_BYTES);
    put(o, head, sizeof head);
    put_sum(o);
    for (uint32_t i = 0; i < n; i++) {
        struct out count = {0};
        const uint32_t id[2] = {i + 1, 0};
        sections[i](&count, v);
        put(o, id, sizeof id);
        put(o, &count.n, sizeof count.n);
        sections[i](o, v);
        put_sum(o);
    }
}

uint64_t snapshot_longest_part(const struct pith_session *s)
{
    const struct cache *c = &s->cache;
    uint64_t most = s->recurrent.block_bytes;
    for (int g = 0; g < c->n_groups; g++)
        most = page_canonical(c, g) > most ? page_canonical(c, g) : most;
    return most;
}

/* The slots of pages that the sequence lies in. */
static void mark_slots(struct save *v, int g, const struct cache_seq *q)
{
    int own = v->s->cache.group[g].of == CACHE_TOKENS;
    int32_t n = own ? q->n : v->s->cache.group[g].of == CACHE_MEMORY ? q->n_memory : 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t src = own && q->pending ? q->slot[i].src : i, place = q->pages[g][src / STEP_PAGE];
        if (place >= 0 && v->slots[g][v->number[g][place]] <= src % STEP_PAGE)
            v->slots[g][v->number[g][place]] = src % STEP_PAGE + 1;
    }
}

/* Finds the logits that are saved, and has them read from their device. What a stage hands on is no
 * logits: some of its numbers are integers. */
static pith_status find_logits(struct save *v, struct pith_session *s, struct pith_error *err)
{
    int there = s->role[ROLE_DECODER].plan.has_logits;
    v->logits_of = -1;
    for (int32_t q = v->first; there && q < v->first + v->n_seq; q++) {
        int32_t i = session_last_output(s, q);
        if (i >= 0 && (v->seq >= 0 || i == s->n_outputs - 1)) {
            v->logits_of = q;
            v->output = i;
        }
    }
    return v->logits_of < 0 || session_output(s, v->output, err) ? PITH_OK
           : err                                                ? err->code
                                                                : PITH_DEVICE;
}

/* Numbers the pages in use. */
static pith_status save_init(struct save *v, struct pith_session *s, int32_t seq,
                             struct pith_error *err)
{
    const struct cache *c = &s->cache;
    *v = (struct save){.s = s, .seq = seq, .first = seq < 0 ? 0 : seq};
    v->n_seq = seq < 0 ? s->n_seq : 1;
    if (seq < -1 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d; -1 is all of it",
                         seq, s->n_seq - 1);
    pith_status st = find_logits(v, s, err);
    if (st != PITH_OK)
        return st;
    v->page = mem_alloc(snapshot_longest_part(s) + 1, PITH_MEM_SCRATCH);
    int ok = v->page != NULL;
    for (int g = 0; g < c->n_groups; g++) {
        size_t n = (size_t)c->group[g].n_made * STEP_QUARTERS;
        v->number[g] = mem_array(n + 1, sizeof **v->number, PITH_MEM_SCRATCH);
        v->pages[g] = mem_array(n + 1, sizeof **v->pages, PITH_MEM_SCRATCH);
        v->slots[g] = mem_array(n + 1, sizeof **v->slots, PITH_MEM_SCRATCH);
        ok = ok && v->number[g] && v->pages[g] && v->slots[g];
        for (size_t i = 0; ok && i < n; i++)
            v->number[g][i] = -1;
        for (int32_t i = v->first; ok && i < v->first + v->n_seq; i++) {
            int32_t n_tab = table_length(c, &c->seq[i]);
            for (int32_t k = 0; k < snapshot_group_length(c, g, n_tab, c->seq[i].n_memory); k++) {
                int32_t place = c->seq[i].pages[g][k];
                if (place < 0 || v->number[g][place] >= 0)
                    continue;
                v->pages[g][v->n_pages[g]] = place;
                v->number[g][place] = v->n_pages[g]++;
            }
            mark_slots(v, g, &c->seq[i]);
        }
    }
    return ok ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for saving a session");
}

static void save_deinit(struct save *v)
{
    mem_free(v->page);
    for (int g = 0; g < STEP_MAX_GROUPS; g++) {
        mem_free(v->number[g]);
        mem_free(v->pages[g]);
        mem_free(v->slots[g]);
    }
}

pith_status snapshot_check_vocabulary(const struct pith_session *s,
                                      const struct pith_sampler *sampler, struct pith_error *err)
{
    int32_t n = s->model->arch.hp.n_vocab;
    return sampler->n_vocab == n
               ? PITH_OK
               : error_set(err, PITH_RANGE, "the sampler is for %d tokens, the model has %d",
                           sampler->n_vocab, n);
}

static pith_status save_to(struct save *v, struct out *o, struct pith_error *err)
{
    XXH3_state_t sum;
    pith_status st = cache_flush(&v->s->cache, err);
    if (st != PITH_OK)
        return st;
    XXH3_64bits_reset(&sum);
    o->sum = &sum;
    o->err = err;
    put_all(o, v);
    return o->st;
}

pith_status session_save(struct pith_session *s, int32_t seq,
                         const struct pith_sampler *sampler, struct session_note note,
                         const char *path, struct pith_error *err)
{
    struct save v;
    struct file_writer file;
    pith_status st = save_init(&v, s, seq, err);
    v.sampler = sampler;
    v.note = note;
    if (st == PITH_OK && sampler)
        st = snapshot_check_vocabulary(s, sampler, err);
    if (st == PITH_OK && sampler)
        st = sampler_save(sampler, &v.state, err);
    if (st == PITH_OK)
        st = file_writer_open_private(&file, path, err);
    if (st == PITH_OK) {
        st = save_to(&v, &(struct out){.file = &file, .until = UINT64_MAX}, err);
        if (st == PITH_OK)
            st = file_writer_commit(&file, err);
        else
            file_writer_discard(&file);
    }
    save_deinit(&v);
    return st;
}

pith_status session_save_memory(struct pith_session *s, int32_t seq, void *buf, size_t cap,
                                size_t *n, struct pith_error *err)
{
    struct save v;
    struct out o = {.buf = buf, .cap = cap, .until = UINT64_MAX};
    pith_status st = save_init(&v, s, seq, err);
    if (st == PITH_OK)
        put_all(&o, &v);
    *n = o.n;
    if (st == PITH_OK && buf && o.n > cap)
        st = error_set(err, PITH_RANGE, "a snapshot of %llu bytes into %zu",
                       (unsigned long long)o.n, cap);
    if (st == PITH_OK && buf) {
        o.n = 0;
        st = save_to(&v, &o, err);
    }
    save_deinit(&v);
    return st;
}

/* ---------------------------------------------------------------- out, in pieces */

struct pith_saver {
    struct pith_session *s;
    struct save v;
    uint64_t n, n_all, state; /* n: bytes of the pieces so far; state: of the sequence, at first */
    XXH3_state_t sum;
};

uint64_t snapshot_state(const struct pith_session *s, int32_t seq)
{
    const struct cache_seq *q = &s->cache.seq[seq];
    int32_t head[] = {q->n, q->edited, q->pending, q->axed, q->n_memory};
    uint64_t h = XXH3_64bits(head, sizeof head);
    h = XXH3_64bits_withSeed(q->token, (size_t)q->n * sizeof *q->token, h);
    if (q->edited)
        h = XXH3_64bits_withSeed(q->slot, (size_t)q->n * sizeof *q->slot, h);
    if (q->axed)
        h = XXH3_64bits_withSeed(q->axes, (size_t)q->n * sizeof *q->axes, h);
    for (int g = 0; g < s->cache.n_groups; g++)
        h = XXH3_64bits_withSeed(q->pages[g], (size_t)s->cache.cap_pages * sizeof **q->pages, h);
    const struct recurrent_seq *r = s->recurrent.n_blocks ? &s->recurrent.seq[seq] : NULL;
    for (int32_t i = 0; r && i <= r->n_at; i++) {
        int32_t at[] = {i < r->n_at ? r->at[i].n : r->n, i < r->n_at ? r->at[i].block : r->now};
        h = XXH3_64bits_withSeed(at, sizeof at, h);
    }
    return h;
}

struct pith_saver *session_saver(struct pith_session *s, int32_t seq, size_t *n,
                                 struct pith_error *err)
{
    struct out count = {.buf = NULL};
    struct pith_saver *w = seq < 0 ? NULL : mem_zalloc(sizeof *w, PITH_MEM_SCRATCH);
    if (!w) {
        error_set(err, seq < 0 ? PITH_RANGE : PITH_NOMEM,
                  seq < 0 ? "sequence %d: one sequence is saved in pieces, 0 or above"
                          : "out of memory for saving sequence %d",
                  seq);
        return NULL;
    }
    w->s = s;
    if (save_init(&w->v, s, seq, err) != PITH_OK) {
        session_saver_free(w);
        return NULL;
    }
    w->v.logits_of = -1; /* they are of the last step, and others will be */
    w->state = snapshot_state(s, seq);
    put_all(&count, &w->v);
    *n = w->n_all = count.n;
    XXH3_64bits_reset(&w->sum);
    return w;
}

pith_status session_saver_next(struct pith_saver *w, void *buf, size_t cap, size_t *n,
                               struct pith_error *err)
{
    struct out o = {.buf = buf, .cap = cap, .from = w->n, .until = UINT64_MAX};
    *n = 0;
    if (w->s->n_flying)
        return error_set(err, PITH_STATE,
                         "saving sequence %d: %d steps are under way; end them first (pith_wait)",
                         w->v.seq, w->s->n_flying);
    if (snapshot_state(w->s, w->v.seq) != w->state)
        return error_set(err, PITH_STATE,
                         "sequence %d has changed since it began to be saved; save it anew",
                         w->v.seq);
    pith_status st = cache_flush(&w->s->cache, err);
    if (st != PITH_OK)
        return st;
    o.sum = &w->sum;
    o.err = err;
    put_all(&o, &w->v);
    if (o.st != PITH_OK)
        return o.st;
    *n = (o.until < o.n ? o.until : o.n) - w->n;
    w->n += *n;
    if (!*n && w->n < w->n_all)
        return error_set(err, PITH_RANGE, "a piece of at most %zu bytes; what is next has more",
                         cap);
    return PITH_OK;
}

void session_saver_free(struct pith_saver *w)
{
    if (w)
        save_deinit(&w->v);
    mem_free(w);
}
