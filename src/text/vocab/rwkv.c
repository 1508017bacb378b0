/* rwkv.c -- the RWKV "world" vocabulary: the longest token from the left, byte by byte.
 *
 * The file writes the tokens as Python does, "\n" and "\xE4"; they are turned back into bytes when
 * it is opened. Bytes that no token begins with become the unknown token, if there is one. */
#include "base/mem.h"
#include "base/work.h"
#include "text/vocab/piece.h"
#include "text/vocab/vocab_impl.h"

static int64_t unescape(struct slice s, char *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.n; i++, n++) {
        char c = s.p[i];
        if (c == '\\' && i + 1 < s.n) {
            c = s.p[++i];
            if (c == 'x' && i + 2 < s.n && vocab_hex(s.p[i + 1]) >= 0 &&
                vocab_hex(s.p[i + 2]) >= 0) {
                c = (char)(vocab_hex(s.p[i + 1]) << 4 | vocab_hex(s.p[i + 2]));
                i += 2;
            } else {
                c = c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
            }
        }
        if (out)
            out[n] = c;
    }
    return n;
}

static int wanted(const struct vocab *v, int32_t id)
{
    return !vocab_is_hidden(v, id);
}

static pith_status rwkv_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    (void)g;
    struct prefix_set *tokens = v->impl = mem_zalloc(sizeof *tokens, PITH_MEM_VOCAB);
    if (!tokens)
        return vocab_nomem(err);
    v->escaped = 0;
    vocab_rewrite(v, unescape);
    return vocab_prefixes(v, wanted, tokens, err);
}

static void rwkv_deinit(struct vocab *v)
{
    struct prefix_set *tokens = v->impl;
    if (tokens)
        prefix_deinit(tokens);
    mem_free(tokens);
}

static pith_status rwkv_encode(const struct vocab *v, struct slice text, int at_start,
                               struct scratch *s, struct ids *out, struct pith_error *err)
{
    (void)at_start;
    for (size_t i = 0; i < text.n;) {
        if (!work_tick(8))
            return error_set(err, PITH_CANCELLED, "cancelled");
        const struct prefix_item *item, *longest = NULL;
        struct prefix_walk w;
        prefix_begin(&w, v->impl, text.p + i, text.n - i);
        while ((item = prefix_next(&w)))
            longest = s->no_markers && vocab_is_marker(v, (int32_t)item->value) ? longest : item;
        prefix_tick(&w, text.p + i);
        if (longest)
            ids_put(out, (int32_t)longest->value);
        else
            vocab_put_unknown(v, s->no_markers, out);
        i += longest ? longest->s.n : 1;
    }
    return PITH_OK;
}

const struct vocab_model vocab_rwkv = {
    .name = "rwkv",
    .kind = VOCAB_RWKV,
    .bos = -1,
    .eos = -1,
    .unk = -1,
    .sep = -1,
    .pad = -1,
    .init = rwkv_init,
    .deinit = rwkv_deinit,
    .encode = rwkv_encode,
};
