/* gguf.h -- GGUF files (v2, v3, little and big endian; v1 refused by name): a checked, read-only
 * view of one file or a split set, and a writer. Specification: ggml's page on GGUF. Everything is
 * validated at open: afterwards no accessor can fail on the file's content. Dimensions are flipped
 * here, and nowhere else, to C order (slowest first). */
#ifndef PITH_FORMAT_GGUF_H
#define PITH_FORMAT_GGUF_H

#include "base/machine/file.h"
#include "base/str.h"
#include "tensor/dtype.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARR,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_kv {
    struct slice key;
    enum gguf_type type;
    enum gguf_type
        item; /* GGUF_ARR: type of its items (never GGUF_ARR: nested arrays are refused by name) */
    uint64_t n;  /* GGUF_ARR: items; else 1 */
    uint64_t at; /* offset of the value (first item) in its part */
    int part;
};

struct gguf_tensor {
    struct slice name;
    enum dtype type;
    uint32_t type_id; /* as in the file, for messages */
    int n_dims;       /* 1..4 */
    int64_t dims[4];  /* C order: dims[n_dims-1] is contiguous */
    uint64_t bytes;
    uint64_t offset; /* from the start of its part */
    int part;
};

struct gguf;
/* Opens path; a first part "name-00001-of-0000N.gguf" brings the others. Errors name offset,
 * object, found, wanted. */
struct gguf *gguf_open(const char *path, struct pith_error *err);
/* The same over bytes in memory (kept by the caller until gguf_close); for fuzzing. A split set is
 * PITH_UNSUPPORTED. */
struct gguf *gguf_open_memory(const void *p, uint64_t n, struct pith_error *err);
/* The same for looking only: accepts tensors in big-endian files too, which gguf_open refuses
 * because nobody swaps their data. */
struct gguf *gguf_open_listing(const char *path, struct pith_error *err);
struct gguf *gguf_open_listing_memory(const void *p, uint64_t n, struct pith_error *err);
void gguf_close(struct gguf *g);
/* What the beginning of a file says, while the rest of it is on its way: the text of a key. 1:
 * found, *out lies in p; 0: there is none, or this is no GGUF file of version 2 or 3; -1: more
 * bytes would tell. */
int gguf_begins(const void *p, uint64_t n, const char *key, struct slice *out);

int gguf_version(const struct gguf *g);
int gguf_n_parts(const struct gguf *g);
const struct file_map *gguf_part(const struct gguf *g, int part);
const char *gguf_path(const struct gguf *g);

uint64_t gguf_n_kv(const struct gguf *g);
const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i);
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL when absent */
/* Values. Integers of every width and sign are converted with a range check; 1 when it is there and
 * of a fitting type, else 0. */
int gguf_u64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, uint64_t *out);
int gguf_i64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, int64_t *out);
int gguf_f64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i,
             double *out); /* integers convert too */
int gguf_bool(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, int *out);
/* Item i of an array of strings by walking from a cursor: the iterator is O(1) per step. */
int gguf_str(const struct gguf *g, const struct gguf_kv *kv,
             struct slice *out); /* a scalar string */
struct gguf_strs {
    const struct gguf *g;
    const struct gguf_kv *kv;
    uint64_t i, at;
};
void gguf_strs_begin(struct gguf_strs *it, const struct gguf *g, const struct gguf_kv *kv);
int gguf_strs_next(struct gguf_strs *it, struct slice *out); /* 0 at the end */
const char *gguf_type_name(enum gguf_type t);                /* "u32" */
/* The value as text: strings raw, arrays as JSON with at most max_items items. */
void gguf_value_text(const struct gguf *g, const struct gguf_kv *kv, int64_t max_items,
                     struct str *out);

uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, struct slice name);
const void *gguf_tensor_data(const struct gguf *g, const struct gguf_tensor *t);
/* What its general.file_type means ("Q4_K_M"); of a file that does not say, the weight type that
 * holds most bytes ("q8_0"), NULL without tensors. */
const char *gguf_file_type(const struct gguf *g);

/* Overrides "key=type:value" replace or add a key before anyone reads it (type int, float, bool,
 * str). */
pith_status gguf_override(struct gguf *g, const char *spec, struct pith_error *err);

/* Writer: keys and tensors are declared first, then data is put in order. Sticky; one check at
 * gguf_writer_close, which renames the finished file into place, or removes it on failure. */
struct gguf_writer;
struct gguf_writer *gguf_writer_open(const char *path, struct pith_error *err);
void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_u64(struct gguf_writer *w, const char *key, uint64_t v); /* tests, as the next */
void gguf_writer_i32(struct gguf_writer *w, const char *key, int32_t v);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_bool(struct gguf_writer *w, const char *key, int v);
void gguf_writer_str(struct gguf_writer *w, const char *key, struct slice v);
void gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type item,
                       const void *items, uint64_t n); /* numbers, native order */
void gguf_writer_strs(struct gguf_writer *w, const char *key, const struct slice *items,
                      uint64_t n);
void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                        const int64_t *dims); /* C order */
void gguf_writer_data(struct gguf_writer *w, const void *p,
                      uint64_t n); /* of the tensors in order; padding is added between them */
/* 1: nothing more will be written (the disk is full, say); gguf_writer_close tells why. */
int gguf_writer_failed(const struct gguf_writer *w);
pith_status gguf_writer_close(struct gguf_writer *w, struct pith_error *err);
void gguf_writer_discard(struct gguf_writer *w);

#endif
