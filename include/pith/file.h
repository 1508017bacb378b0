/* file.h -- looking into a GGUF file without loading it, and what a file of an architecture has. A
 * part of pith.h, which says what holds for all. */
#ifndef PITH_FILE_H
#define PITH_FILE_H

#include "pith/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- files (reading what a GGUF file
 * holds, without loading it) */

typedef struct pith_file pith_file;
struct pith_tensor_info {
    size_t size;
    const char *name; /* owned by the file */
    const char *type; /* "q4_K" */
    int n_dims;
    int64_t dims[4]; /* C order, slowest first */
    uint64_t offset; /* from the start of its part */
    uint64_t bytes;
    int part; /* index of the split part */
};
#define PITH_TENSOR_INFO_INIT PITH_SIZED(struct pith_tensor_info)
PITH_API pith_file *pith_file_open(const char *path, struct pith_error *err);
PITH_API void pith_file_close(pith_file *f);
PITH_API int64_t pith_file_n_keys(const pith_file *f);
PITH_API const char *pith_file_key(const pith_file *f, int64_t i);      /* NULL outside 0..n-1 */
PITH_API const char *pith_file_key_type(const pith_file *f, int64_t i); /* "u32", "arr<str>" */
/* Value as text (strings raw, arrays as JSON cut after max_items with "..."). Returns its full
 * length in bytes, as snprintf does, -1 if out of range. */
PITH_API int64_t pith_file_value(const pith_file *f, int64_t i, int64_t max_items, char *buf,
                                 size_t cap);
PITH_API int64_t pith_file_n_tensors(const pith_file *f);
PITH_API pith_status pith_file_tensor(const pith_file *f, int64_t i, struct pith_tensor_info *out);
/* What the file's mixture of weights is called (general.file_type: "Q4_K_M"), else the weight type
 * that holds most bytes ("q8_0"); NULL: it has no tensors. */
PITH_API const char *pith_file_type(const pith_file *f);
PITH_API int pith_file_gguf_version(const pith_file *f);
PITH_API int pith_file_n_parts(const pith_file *f);
/* Can this build run the file? PITH_OK, or why not, as pith_model_open would say it; an unknown
 * architecture is PITH_UNSUPPORTED, and the message names the nearest known one and what of the
 * file's tensors that has no place for. No weights are read. */
PITH_API pith_status pith_file_runs(const pith_file *f, struct pith_error *err);
/* The same of a file that is still on its way, as far as its first n bytes tell: PITH_OK, its
 * architecture is known, or it has none (as the later parts of a split one); PITH_UNSUPPORTED, it
 * is not, and the message names it; PITH_MISSING: more bytes would tell. */
PITH_API pith_status pith_file_begins(const void *p, size_t n, struct pith_error *err);

/* ---------------------------------------------------------------- architectures (what a file of
 * one has: the tables by which files are read and checked; pith_arch_names lists them) */

enum { PITH_ARCH_TEXT = 128 };
struct pith_arch_key {
    size_t size;
    char name[PITH_ARCH_TEXT];    /* "llama.block_count" */
    char old[PITH_ARCH_TEXT];     /* another name, in older files; "": none */
    char type[PITH_ARCH_TEXT];    /* "whole number", "number for all layers or one for each" */
    char wanted[PITH_ARCH_TEXT];  /* "1..1024", "none, linear, yarn"; "": any */
    char without[PITH_ARCH_TEXT]; /* what it is where a file has none: "10000", "told by others";
                                     "": a file has to have it */
    int needed;                   /* 1: it has to, */
    int sometimes;                /* but it is looked at in some models alone */
};
#define PITH_ARCH_KEY_INIT PITH_SIZED(struct pith_arch_key)
struct pith_arch_tensor {
    size_t size;
    char name[PITH_ARCH_TEXT];  /* "blk.N.attn_q.weight": N stands for the layer */
    char shape[PITH_ARCH_TEXT]; /* "Q, E", slowest first: pith_arch_size tells what these are */
    char use[PITH_ARCH_TEXT];   /* "product", "experts", "vector" */
    int needed;                 /* 1: a file has to have it, in every layer that uses it, */
    int sometimes;              /* but keys say whether a model, or a layer, uses it */
    int group; /* others of one number go together: a file has all or none; 0: it goes alone */
};
#define PITH_ARCH_TENSOR_INIT PITH_SIZED(struct pith_arch_tensor)
/* -1: there is no such architecture. */
PITH_API int64_t pith_arch_n_keys(const char *arch);
PITH_API int64_t pith_arch_n_tensors(const char *arch);
/* In the order in which they are read. PITH_UNSUPPORTED: no such architecture, PITH_RANGE: no such
 * row. */
PITH_API pith_status pith_arch_key_at(const char *arch, int64_t i, struct pith_arch_key *out,
                                      struct pith_error *err);
PITH_API pith_status pith_arch_tensor_at(const char *arch, int64_t i, struct pith_arch_tensor *out,
                                         struct pith_error *err);
/* Sizes that shapes name, in short and in words: "Q", "heads x size of a key". 0 <= i; NULL behind
 * the last. "own 1", "own 2" .. are of the family itself: the same of one family are as large. */
PITH_API const char *pith_arch_size(int64_t i, const char **words);

#ifdef __cplusplus
}
#endif
#endif
