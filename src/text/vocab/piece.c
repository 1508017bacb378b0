/* piece.c -- from symbols to ids, and a cache in front of it.
 *
 * Text repeats its words. A piece of at most 16 bytes that gave at most 3 ids is kept in a table
 * with one entry for each hash, the larger the longer the text; a newer piece takes the place of an
 * older one:
 *
 *     first 8 bytes | last 8 bytes | length, number of ids | ids        32 bytes
 *
 * The two words overlap where the piece is shorter than 16 bytes and, with the length, still say
 * every byte. The cache lives as long as one tokenize call: nothing is shared between threads. */
#include "text/vocab/piece.h"

#include <string.h>

#include "base/mem.h"
#include "base/work.h"

#define KNOWN_BITS     14 /* at most: 512 KB, half of a second cache */
#define KNOWN_BYTES    16
#define KNOWN_IDS      3
#define BYTES_AN_ENTRY 8 /* of text: zeroing the table is a small part of the work */

struct known_piece {
    uint64_t first, last;
    uint8_t n, n_ids;
    int32_t ids[KNOWN_IDS];
};

void scratch_init(struct scratch *s, size_t n_bytes)
{
    memset(s, 0, sizeof *s);
    s->after = -1;
    str_init(&s->text, PITH_MEM_SCRATCH);
    str_init(&s->escaped, PITH_MEM_SCRATCH);
    while (s->known_bits < KNOWN_BITS && n_bytes >> s->known_bits > BYTES_AN_ENTRY)
        s->known_bits++;
    if (s->known_bits) /* without memory there is no cache, and the same ids */
        s->known = mem_array((size_t)1 << s->known_bits, sizeof *s->known, PITH_MEM_SCRATCH);
}

void scratch_deinit(struct scratch *s)
{
    merge_deinit(&s->merge);
    str_deinit(&s->text);
    str_deinit(&s->escaped);
    mem_free(s->known);
}

/* Fills the key of a piece of 1..KNOWN_BYTES bytes and returns its place in the table. */
static size_t place(const struct scratch *s, struct slice piece, struct known_piece *key)
{
    const char *p = piece.p, *end = piece.p + piece.n;
    uint32_t a, b;
    if (piece.n >= 8) {
        memcpy(&key->first, p, 8);
        memcpy(&key->last, end - 8, 8);
    } else if (piece.n >= 4) {
        memcpy(&a, p, 4);
        memcpy(&b, end - 4, 4);
        key->first = a;
        key->last = b;
    } else {
        key->first = (uint8_t)p[0] | (uint32_t)(uint8_t)p[piece.n / 2] << 8;
        key->last = (uint8_t)end[-1];
    }
    key->n = (uint8_t)piece.n;
    uint64_t h = (key->first ^ key->n) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29 ^ key->last) * 0xBF58476D1CE4E5B9u;
    return (size_t)(h >> (64 - s->known_bits));
}

int piece_known(const struct scratch *s, struct slice piece, struct ids *out)
{
    struct known_piece key;
    if (!s->known || piece.n == 0 || piece.n > KNOWN_BYTES)
        return 0;
    const struct known_piece *e = &s->known[place(s, piece, &key)];
    if (e->first != key.first || e->last != key.last || e->n != key.n)
        return 0;
    for (int i = 0; i < e->n_ids; i++)
        ids_put(out, e->ids[i]);
    return 1;
}

static void put_symbol(const struct vocab *v, int no_markers, struct slice s, uint32_t id,
                       struct ids *out)
{
    int32_t found = id < (uint32_t)v->n ? (int32_t)id : vocab_find(v, s);
    if (found >= 0 && no_markers && vocab_is_marker(v, found))
        vocab_put_spelled(v, s, out);
    else if (found >= 0)
        ids_put(out, found);
    else if (vocab_put_bytes(v, s, no_markers, out) && v->unknown_bytes)
        vocab_put_unknown(v, no_markers, out);
}

int piece_finish(const struct vocab *v, struct scratch *s, const char *text, merge_rank_fn rank,
                 const void *ctx, struct ids *out)
{
    struct merge *m = &s->merge;
    if (m->n == 0)
        return 1;
    const struct merge_sym *last = &m->sym[m->n - 1];
    struct slice piece = {text + m->sym[0].at, last->at + last->n - m->sym[0].at};
    if (piece_known(s, piece, out)) {
        m->n = 0;
        return 1;
    }
    if (!merge_run(m, text, rank, ctx))
        return 0;
    int32_t ids[KNOWN_IDS];
    struct ids few = {ids, KNOWN_IDS, 0};
    for (uint32_t i = 0; i != MERGE_NONE; i = m->sym[i].next) {
        const struct merge_sym *sym = &m->sym[i];
        struct slice bytes = {text + sym->at, sym->n};
        if (!work_tick(4))
            return 0;
        put_symbol(v, s->no_markers, bytes, sym->id, out);
        if (few.n <= KNOWN_IDS)
            put_symbol(v, s->no_markers, bytes, sym->id, &few);
    }
    if (s->known && piece.n <= KNOWN_BYTES && few.n <= KNOWN_IDS) {
        struct known_piece key = {.n_ids = (uint8_t)few.n};
        struct known_piece *e = &s->known[place(s, piece, &key)];
        memcpy(key.ids, ids, (size_t)few.n * sizeof *ids);
        *e = key;
    }
    m->n = 0;
    return 1;
}
