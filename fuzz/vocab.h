/* vocab.h -- what the fuzzers of vocabularies share: text to ids must stay in range, and ids must
 * give the same text streamed as at once. */
#ifndef PITH_FUZZ_VOCAB_H
#define PITH_FUZZ_VOCAB_H

#include "fuzz.h"
#include "vocab_image.h"
#include "text/vocab/vocab_impl.h"

enum { VOCAB_MOST_IDS = 8192, VOCAB_MOST_OUT = 1 << 16 };

static inline void vocab_check_stream(const struct vocab *v, const int32_t *ids, size_t n)
{
    static char want[VOCAB_MOST_OUT];
    size_t n_want = 0, at = 0;
    struct vocab_stream s;
    for (size_t i = 0; i < n; i++) {
        char piece[256];
        size_t len = vocab_piece(v, ids[i], 0, piece, sizeof piece);
        if (len > sizeof piece || n_want + len > sizeof want)
            return;
        memcpy(want + n_want, piece, len);
        n_want += len;
    }
    vocab_stream_init(&s, v);
    s.started = 1; /* no leading space is dropped */
    for (size_t i = 0; i <= n; i++) {
        struct slice put = vocab_stream_put(&s, i < n ? ids[i] : -1);
        require(at + put.n <= n_want && memcmp(put.p, want + at, put.n) == 0);
        at += put.n;
    }
    require(at == n_want);
    vocab_stream_deinit(&s);
}

/* Text that is all a value has no control token; one that is a value in parts has ids. */
static inline void vocab_check_values(const struct vocab *v, const char *text, size_t n,
                                      int32_t *ids)
{
    struct spans whole = {0}, parts = {0};
    int ok = spans_put(&whole, 0, n);
    for (size_t i = 0; i < n; i += 11)
        ok = ok && spans_put(&parts, i, i + 5 < n ? i + 5 : n);
    require(ok && vocab_tokenize_marked(v, text, n, 3, &parts, ids, VOCAB_MOST_IDS, NULL) >= 0);
    int64_t k =
        vocab_tokenize_marked(v, text, n, PITH_PARSE_SPECIAL, &whole, ids, VOCAB_MOST_IDS, NULL);
    for (int64_t i = 0; n && i < k && i < VOCAB_MOST_IDS; i++)
        require(value_may_give(v, ids[i]));
    spans_deinit(&whole);
    spans_deinit(&parts);
}

static inline void vocab_use(const struct vocab *v, const char *text, size_t n)
{
    static int32_t ids[VOCAB_MOST_IDS];
    static char out[VOCAB_MOST_OUT];
    struct pith_error err;
    for (int flags = 0; flags < 4; flags++) {
        int64_t k = vocab_tokenize(v, text, n, flags, ids, VOCAB_MOST_IDS, &err);
        if (k < 0) {
            require(err.code != PITH_OK && err.msg[0]);
            return;
        }
        k = k < VOCAB_MOST_IDS ? k : VOCAB_MOST_IDS;
        for (int64_t i = 0; i < k; i++)
            require(ids[i] >= 0 && ids[i] < vocab_n(v));
        for (int f = 0; f < 4; f++)
            require(vocab_detokenize(v, ids, (size_t)k, f, out, VOCAB_MOST_OUT, &err) >= 0);
        vocab_check_stream(v, ids, (size_t)k);
    }
    vocab_check_values(v, text, n, ids);
}

#endif
