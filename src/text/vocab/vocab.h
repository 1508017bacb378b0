/* vocab.h -- a model's vocabulary: text to ids and back. Read-only after vocab_new, any number of
 * threads. The model kinds are rows of a table (spm.c, bpe.c, ...); pre-tokenizers are rows of
 * patterns in pretok.def. */
#ifndef PITH_TEXT_VOCAB_H
#define PITH_TEXT_VOCAB_H

#include "base/str.h"
#include "format/gguf.h"
#include "text/spans.h"

enum vocab_kind {
    VOCAB_NONE,
    VOCAB_SPM,
    VOCAB_BPE,
    VOCAB_WPM,
    VOCAB_UGM,
    VOCAB_RWKV,
    VOCAB_PLAMO2
};
enum vocab_attr {
    VOCAB_NORMAL = 1,
    VOCAB_UNKNOWN = 2,
    VOCAB_CONTROL = 3,
    VOCAB_USER = 4,
    VOCAB_UNUSED = 5,
    VOCAB_BYTE = 6
}; /* GGUF token types */

struct vocab;
/* From the tokenizer.* keys. An unknown model or pre-tokenizer is PITH_UNSUPPORTED and lists the
 * known. A file without a vocabulary ("none" or no key) gives a VOCAB_NONE that has n_vocab = 0 and
 * refuses text. */
struct vocab *vocab_new(const struct gguf *g, struct pith_error *err);
void vocab_free(struct vocab *v);
int32_t vocab_n(const struct vocab *v);
/* Flags and returns as in pith.h: PITH_ADD_SPECIAL, PITH_PARSE_SPECIAL; number of ids in all, -1 on
 * error. */
int64_t vocab_tokenize(const struct vocab *v, const char *text, size_t n, int flags, int32_t *ids,
                       size_t cap, struct pith_error *err);
/* The same for a text of which some parts are values (jinja_render_marked): no token that is a
 * marker has a byte of theirs, whatever they spell. Markers are control and unknown tokens, and
 * those user-defined ones that look like one ("<tool_call>", "[INST]", but no white space and no
 * HTML). What spells a marker becomes smaller tokens, or bytes. Without such text in values the ids
 * are those of vocab_tokenize. */
int64_t vocab_tokenize_marked(const struct vocab *v, const char *text, size_t n, int flags,
                              const struct spans *values, int32_t *ids, size_t cap,
                              struct pith_error *err);
/* PITH_RENDER_SPECIAL, PITH_STRIP_SPECIAL. */
int64_t vocab_detokenize(const struct vocab *v, const int32_t *ids, size_t n, int flags, char *buf,
                         size_t cap, struct pith_error *err);
/* Bytes that one token adds in the middle of a text (not UTF-8 complete); control tokens give
 * nothing unless render. Returns length. */
size_t vocab_piece(const struct vocab *v, int32_t id, int render, char *buf, size_t cap);
int vocab_is_eog(const struct vocab *v, int32_t id);
int vocab_is_control(const struct vocab *v, int32_t id);
int32_t vocab_bos(const struct vocab *v); /* -1: none */
int32_t vocab_eos(const struct vocab *v);
int32_t vocab_role(const struct vocab *v, pith_token_role role); /* as pith_token_of */

/* Streaming: never splits a character (see pith_stream). */
struct vocab_stream {
    const struct vocab *v;
    struct str text; /* what became complete at the last put */
    char pending[64];
    size_t n_pending;
    int started; /* an SPM vocabulary's leading space is dropped at the start of a text only */
    int shows;   /* control tokens as their text */
};
/* Makes room for any token, so that vocab_stream_put allocates nothing. 0 without memory: text may
 * then be lost. */
int vocab_stream_init(struct vocab_stream *s, const struct vocab *v);
void vocab_stream_deinit(struct vocab_stream *s);
struct slice vocab_stream_put(struct vocab_stream *s, int32_t id); /* id -1 flushes */

#endif
