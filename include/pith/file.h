/* file.h -- looking into a GGUF file without loading it. A part of pith.h,
 * which says what holds for all. */
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

#ifdef __cplusplus
}
#endif
#endif
