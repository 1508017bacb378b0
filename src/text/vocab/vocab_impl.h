/* vocab_impl.h -- the inside of a vocabulary, shared by the files of src/text. */
#ifndef PITH_TEXT_VOCAB_IMPL_H
#define PITH_TEXT_VOCAB_IMPL_H

#include "base/map.h"
#include "text/vocab/prefix.h"
#include "text/vocab/vocab.h"

#define U2581 "\xE2\x96\x81" /* the sign that SentencePiece writes for a space */

/* The caller's array of ids: written while there is room, counted to the end. */
struct ids {
    int32_t *p;
    size_t cap;
    int64_t n;
};
static inline void ids_put(struct ids *out, int32_t id)
{
    if ((size_t)out->n < out->cap)
        out->p[out->n] = id;
    out->n++;
}

struct scratch; /* piece.h */

/* One kind of model: a row of models.def. */
struct vocab_model {
    const char *name; /* tokenizer.ggml.model */
    enum vocab_kind kind;
    int32_t bos, eos, unk, sep, pad; /* ids where the file does not say; -1: none */
    int add_bos, add_eos, add_sep, add_space_prefix, clean_spaces;
    /* Reads what the model needs beyond the tokens and fills v->ids (vocab_index). May change the
     * defaults above in v; the file's keys come after. */
    pith_status (*init)(struct vocab *v, const struct gguf *g, struct pith_error *err);
    void (*deinit)(struct vocab *v);
    /* Text without special tokens to ids. at_start: it follows the beginning or a special token. */
    pith_status (*encode)(const struct vocab *v, struct slice text, int at_start,
                          struct scratch *scratch, struct ids *out, struct pith_error *err);
};
/* Entries of the table of merges looked at when each of the *n is found once. */
uint64_t bpe_steps(const struct vocab *v, uint64_t *n);

#define VOCAB_MODEL(name) extern const struct vocab_model vocab_##name;
#include "text/vocab/models.def"
#undef VOCAB_MODEL

/* A token's type and marks, one byte. */
enum {
    TOKEN_TYPE = 7, /* enum vocab_attr */
    TOKEN_EOG = 8,
    TOKEN_STRIP_LEFT = 16, /* in a text it takes the white space before it */
    TOKEN_STRIP_RIGHT = 32,
    TOKEN_APART = 64,   /* no text outside special_split gives it: not in v->ids */
    TOKEN_MARKER = 128, /* means more than its text: no value gives it */
};

struct vocab {
    const struct vocab_model *model; /* NULL: no vocabulary */
    int32_t n;
    char *text;           /* of all tokens; token i is text[at[i] .. at[i + 1]) */
    uint32_t *at;         /* [n + 1] */
    size_t longest;       /* bytes of the longest one */
    float *score;         /* [n] */
    uint8_t *mark;        /* [n] type and marks */
    struct map ids;       /* token text -> id, no empty tokens; values >= n are the model's */
    int32_t byte_id[256]; /* token "<0x0A>" of byte 10, -1: none */
    int32_t bos, eos, unk, sep, pad, mask;
    int32_t fim[6]; /* fill in the middle: pre, suf, mid, pad, rep, sep */
    int add_bos, add_eos, add_sep, add_space_prefix, clean_spaces, merge_spaces;
    int unknown_bytes; /* text without a token becomes the unknown token, else it is left out */
    int escaped;       /* U+2581 stands for a space in normal tokens */
    struct prefix_set special; /* tokens that are matched in text before all else */
    int32_t *special_id; /* of the special tokens in the order of matching, which is their value */
    int n_user;          /* of them, those matched without PITH_PARSE_SPECIAL */
    void *impl;          /* of the model */
    void *over;          /* of one that is built on another */
};

static inline struct slice vocab_text(const struct vocab *v, int32_t id)
{
    return (struct slice){v->text + v->at[id], v->at[id + 1] - v->at[id]};
}
static inline enum vocab_attr vocab_type(const struct vocab *v, int32_t id)
{
    return (enum vocab_attr)(v->mark[id] & TOKEN_TYPE);
}
/* Control and unknown tokens: shown and matched only on request. */
static inline int vocab_is_hidden(const struct vocab *v, int32_t id)
{
    return vocab_type(v, id) == VOCAB_CONTROL || vocab_type(v, id) == VOCAB_UNKNOWN;
}
static inline int vocab_is_marker(const struct vocab *v, int32_t id)
{
    return (v->mark[id] & TOKEN_MARKER) != 0;
}
/* Value of a hexadecimal digit, -1: it is none. */
static inline int vocab_hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}
/* Id of a token by its text, -1: none. */
static inline int32_t vocab_find(const struct vocab *v, struct slice s)
{
    uint32_t id;
    return map_get(&v->ids, s, &id) && id < (uint32_t)v->n ? (int32_t)id : -1;
}
/* Bytes that a token's text stands for, to out (NULL: only counted), which may begin at or before
 * s; never more than s.n. -1: s is not written as such texts are. */
typedef int64_t (*vocab_decode_fn)(struct slice s, char *out);
/* Replaces the tokens' texts by what they stand for. Special tokens keep theirs, which is matched
 * as it stands. A token whose text is not what decode understands, or special and not itself, is
 * marked TOKEN_APART. Before the index is built. */
void vocab_rewrite(struct vocab *v, vocab_decode_fn decode);
/* The wanted tokens by their texts; value = id. */
pith_status vocab_prefixes(const struct vocab *v, int (*wanted)(const struct vocab *v, int32_t id),
                           struct prefix_set *set, struct pith_error *err);
/* Fills v->ids and v->byte_id from the tokens' texts; of equal texts the first counts. */
pith_status vocab_index(struct vocab *v, struct pith_error *err);
/* The tokens of a piece's characters, or of their bytes: its own token is a marker. */
void vocab_put_spelled(const struct vocab *v, struct slice s, struct ids *out);
/* The byte tokens of a piece of text that is no token; returns how many bytes have none.
 * no_markers, here and below: for text that may be a value's. */
int vocab_put_bytes(const struct vocab *v, struct slice s, int no_markers, struct ids *out);
/* The unknown token, if there is one. A file may name any token as such: one that begins, ends or
 * separates texts is put for no value. */
void vocab_put_unknown(const struct vocab *v, int no_markers, struct ids *out);
struct slice vocab_byte_text(uint8_t byte, char buf[8]); /* "<0x0A>", in buf */
void vocab_escape(struct slice text, struct str *out);   /* appends it with spaces as U+2581 */
pith_status vocab_nomem(struct pith_error *err);
/* Bytes of a token that is looked for at every place of a text: each may cost as much. Published
 * ones have less than a thousand. */
enum { VOCAB_TOKEN_MOST = 4096 };
pith_status vocab_too_long(const struct vocab *v, int32_t id, struct pith_error *err);

/* special.c: types and end marks by well-known texts, and matching in text. */
pith_status special_roles(struct vocab *v, const struct gguf *g, struct pith_error *err);
pith_status special_index(struct vocab *v, struct pith_error *err); /* texts and marks are final */
void special_deinit(struct vocab *v);
/* Calls text for stretches without special tokens and token for each special one, in order. */
struct special_sink {
    pith_status (*text)(void *ctx, struct slice s);
    void (*token)(void *ctx, int32_t id);
    void *ctx;
};
/* values: no marker has a byte of these parts of the text; NULL: markers may be anywhere. */
pith_status special_split(const struct vocab *v, struct slice text, int parse,
                          const struct spans *values, const struct special_sink *sink,
                          struct pith_error *err);

#endif
