/* gguf_impl.h -- what the files of the GGUF reader and writer share; nobody else includes it. */
#ifndef PITH_FORMAT_GGUF_IMPL_H
#define PITH_FORMAT_GGUF_IMPL_H

#include "base/arena.h"
#include "base/map.h"
#include "format/gguf.h"

enum {
    GGUF_NAME_MAX = 65535, /* bytes of a key's or tensor's name */
    GGUF_SHOW_MAX = 96     /* bytes of it shown in a message */
};

struct gguf_extent { /* a file of the set, or the value of one override */
    struct file_map map;
    int big_endian;
};

struct gguf_keys {
    struct gguf_kv *kv;
    uint64_t n, cap;
    struct map index; /* name -> index in kv */
};

struct gguf {
    char *path;
    struct arena arena;          /* path, names and values of overrides */
    struct gguf_extent *extents; /* n_parts files, then the overrides */
    uint64_t n_extents, cap_extents;
    int n_parts;
    int mapped; /* 0: the bytes are the caller's (gguf_open_memory) */
    int version;
    struct gguf_keys keys; /* of the first part */
    struct gguf_tensor *tensors;
    uint64_t n_tensors, cap_tensors;
    struct map names; /* tensor name -> index in tensors */
};

/* Room for one more item in an array that doubles: the array, moved or not, or NULL (the old one
 * stays valid). */
void *gguf_grow(void *items, uint64_t n, uint64_t *cap, size_t item_bytes);
/* Adds an extent behind the others: its index, or -1 without memory. */
int gguf_add_extent(struct gguf *g, struct gguf_extent extent);
uint32_t gguf_type_bytes(enum gguf_type t); /* of one value; 0 when it varies (str, arr) */

#endif
