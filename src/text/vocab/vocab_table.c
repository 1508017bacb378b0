/* vocab_table.c -- the tables of a vocabulary, as tokenizers make and read them: texts rewritten,
 * ids by text and by byte, sets of prefixes. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/vocab_impl.h"

pith_status vocab_nomem(struct pith_error *err)
{
    return error_set(err, PITH_NOMEM, "out of memory for the vocabulary or its text");
}

void vocab_rewrite(struct vocab *v, vocab_decode_fn decode)
{
    uint32_t to = 0; /* the blob only shrinks */
    for (int32_t id = 0; id < v->n; id++) {
        struct slice s = vocab_text(v, id);
        char *out = v->text + to;
        int raw = vocab_is_hidden(v, id) || vocab_type(v, id) == VOCAB_USER;
        int64_t n = decode(s, NULL);
        if (n < 0 || (raw && n != (int64_t)s.n))
            v->mark[id] |= TOKEN_APART;
        if (raw || n < 0) {
            memmove(out, s.p, s.n);
            n = (int64_t)s.n;
        } else {
            decode(s, out);
        }
        v->at[id] = to;
        to += (uint32_t)n;
    }
    v->at[v->n] = to;
}

pith_status vocab_prefixes(const struct vocab *v, int (*wanted)(const struct vocab *v, int32_t id),
                           struct prefix_set *set, struct pith_error *err)
{
    uint32_t n = 0;
    struct prefix_item *items = mem_array((size_t)v->n, sizeof *items, PITH_MEM_VOCAB);
    if (!items)
        return vocab_nomem(err);
    for (int32_t id = 0; id < v->n; id++) {
        if (!wanted(v, id))
            continue;
        items[n++] = (struct prefix_item){vocab_text(v, id), (uint32_t)id};
        if (vocab_text(v, id).n > VOCAB_TOKEN_MOST) {
            mem_free(items);
            return vocab_too_long(v, id, err);
        }
    }
    return prefix_init(set, items, n) ? PITH_OK : vocab_nomem(err);
}

pith_status vocab_too_long(const struct vocab *v, int32_t id, struct pith_error *err)
{
    return error_set(err, PITH_UNSUPPORTED,
                     "tokenizer.ggml.tokens: token %d has %zu bytes, wanted at most %d", id,
                     vocab_text(v, id).n, VOCAB_TOKEN_MOST);
}

pith_status vocab_index(struct vocab *v, struct pith_error *err)
{
    if (!map_reserve(&v->ids, (uint32_t)v->n))
        return vocab_nomem(err);
    for (int32_t id = 0; id < v->n; id++) {
        struct slice s = vocab_text(v, id);
        if (s.n == 0 || (v->mark[id] & TOKEN_APART))
            continue;
        int added = map_put(&v->ids, s, (uint32_t)id);
        if (added < 0)
            return vocab_nomem(err);
        if (!added)
            v->mark[id] |= TOKEN_APART;
    }
    for (int b = 0; b < 256; b++) {
        char text[8];
        v->byte_id[b] = vocab_find(v, vocab_byte_text((uint8_t)b, text));
    }
    return PITH_OK;
}

struct slice vocab_byte_text(uint8_t byte, char buf[8])
{
    static const char hex[] = "0123456789ABCDEF";
    memcpy(buf, "<0x00>", 7);
    buf[3] = hex[byte >> 4];
    buf[4] = hex[byte & 15];
    return (struct slice){buf, 6};
}

int vocab_put_bytes(const struct vocab *v, struct slice s, int no_markers, struct ids *out)
{
    int missing = 0;
    for (size_t i = 0; i < s.n; i++) {
        int32_t id = v->byte_id[(uint8_t)s.p[i]];
        if (id >= 0 && no_markers && vocab_is_marker(v, id))
            id = -1;
        if (id >= 0)
            ids_put(out, id);
        missing += id < 0;
    }
    return missing;
}

void vocab_put_unknown(const struct vocab *v, int no_markers, struct ids *out)
{
    int32_t id = v->unk;
    int turns =
        id >= 0 && ((v->mark[id] & TOKEN_EOG) || id == v->bos || id == v->eos || id == v->sep);
    if (id >= 0 && !(no_markers && turns))
        ids_put(out, id);
}

void vocab_put_spelled(const struct vocab *v, struct slice s, struct ids *out)
{
    uint32_t cp;
    for (size_t i = 0, n; i < s.n; i += n) {
        n = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        struct slice one = {s.p + i, n};
        int32_t id = n < s.n ? vocab_find(v, one) : -1;
        if (id >= 0 && !vocab_is_marker(v, id))
            ids_put(out, id);
        else if (vocab_put_bytes(v, one, 1, out) && v->unknown_bytes)
            vocab_put_unknown(v, 1, out);
    }
}

void vocab_escape(struct slice text, struct str *out)
{
    enum { AT_ONCE = 4096 };
    size_t from = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (i % AT_ONCE == 0)
            work_tick(AT_ONCE / 4); /* who encodes is told, too, that it may not go on */
        if (text.p[i] != ' ')
            continue;
        str_put(out, text.p + from, i - from);
        str_putz(out, U2581);
        from = i + 1;
    }
    str_put(out, text.p + from, text.n - from);
}
