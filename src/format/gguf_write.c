/* gguf_write.c -- writing GGUF v3 files, little endian.
 *
 * Keys and tensors are declared first and kept encoded, in their order; the first byte of data, or
 * the close, writes the head in one go. From then on only data is taken, in the order of
 * declaration.
 *
 *     declared   keys: "key | type | value" ...      infos: "name | dims | type | offset" ...
 *     file       magic, version, counts | keys | infos | padding | data 0 | padding | data 1 | ...
 *
 * Offsets are known when a tensor is declared: sizes follow from type and shape. The writer is
 * sticky: the first failure is kept, everything later is ignored, and close reports it and leaves
 * no file. A file appears under its name only when it is whole: close checks that as many bytes
 * were put as were declared.
 *
 * Not here: split sets, big-endian output, other alignments than 32. */
#include "format/gguf.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "format/gguf_impl.h"

enum { ALIGNMENT = 32 };

struct gguf_writer {
    struct file_writer file;
    struct pith_error err; /* the first failure */
    struct arena names;    /* what the maps' keys point to */
    struct map key_names, tensor_names;
    struct str keys, infos; /* encoded */
    uint64_t n_keys;
    uint64_t *bytes; /* [n_tensors] of each tensor's data */
    uint64_t n_tensors, cap_tensors;
    uint64_t data; /* bytes of the data section declared so far, padded */
    int head_written;
    uint64_t current, put; /* tensor whose data comes next, and how much of it came */
};

struct gguf_writer *gguf_writer_open(const char *path, struct pith_error *err)
{
    error_clear(err);
    struct gguf_writer *w = mem_zalloc(sizeof *w, PITH_MEM_META);
    if (!w) {
        error_set(err, PITH_NOMEM, "%s: no memory to write a file: free some memory", path);
        return NULL;
    }
    if (file_writer_open(&w->file, path, err) != PITH_OK) {
        mem_free(w);
        return NULL;
    }
    arena_init(&w->names, PITH_MEM_META);
    map_init(&w->key_names, PITH_MEM_META);
    map_init(&w->tensor_names, PITH_MEM_META);
    str_init(&w->keys, PITH_MEM_META);
    str_init(&w->infos, PITH_MEM_META);
    return w;
}

/* ---------------------------------------------------------------- declaring */

static void put_int(struct str *s, uint64_t v, size_t bytes)
{
    char le[8];
    for (size_t i = 0; i < bytes; i++)
        le[i] = (char)(v >> 8 * i);
    str_put(s, le, bytes);
}

static void put_string(struct str *s, struct slice v)
{
    put_int(s, v.n, 8);
    str_put(s, v.p, v.n);
}

/* May something of this name be declared now? Fails the writer when not. kind: "key", "tensor". */
static int declare(struct gguf_writer *w, struct map *names, const char *kind, const char *name)
{
    size_t n = strlen(name);
    if (w->err.code != PITH_OK)
        return 0;
    if (w->head_written) {
        error_set(&w->err, PITH_STATE, "%s: %s '%.96s' comes after data: declare everything first",
                  w->file.path, kind, name);
        return 0;
    }
    if (n == 0 || n > GGUF_NAME_MAX || !utf8_valid(name, n)) {
        error_set(&w->err, PITH_RANGE, "%s: %s '%.96s': wanted a name of 1 to %d bytes of UTF-8",
                  w->file.path, kind, name, GGUF_NAME_MAX);
        return 0;
    }
    const char *copy = arena_strndup(&w->names, name, n);
    int added = copy ? map_put(names, (struct slice){copy, n}, 0) : -1;
    if (added < 0)
        error_set(&w->err, PITH_NOMEM, "%s: no memory for %s '%.96s': free some memory",
                  w->file.path, kind, name);
    if (added == 0)
        error_set(&w->err, PITH_STATE, "%s: %s '%.96s' is declared twice: declare it once",
                  w->file.path, kind, name);
    return added == 1;
}

/* Begins a key: where its value goes, or NULL when the writer has failed. */
static struct str *key_begin(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    if (!declare(w, &w->key_names, "key", key))
        return NULL;
    if (strcmp(key, "general.alignment") == 0) {
        error_set(&w->err, PITH_UNSUPPORTED,
                  "%s: key '%s' is the writer's own; leave it out, it aligns to %d", w->file.path,
                  key, ALIGNMENT);
        return NULL;
    }
    w->n_keys++;
    put_string(&w->keys, slice_of(key));
    put_int(&w->keys, type, 4);
    return &w->keys;
}

static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t bits)
{
    struct str *s = key_begin(w, key, type);
    if (s)
        put_int(s, bits, gguf_type_bytes(type));
}

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_U32, v);
}

void gguf_writer_u64(struct gguf_writer *w, const char *key, uint64_t v)
{
    put_key(w, key, GGUF_U64, v);
}

void gguf_writer_i32(struct gguf_writer *w, const char *key, int32_t v)
{
    put_key(w, key, GGUF_I32, (uint32_t)v);
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(w, key, GGUF_F32, bits);
}

void gguf_writer_bool(struct gguf_writer *w, const char *key, int v)
{
    put_key(w, key, GGUF_BOOL, v != 0);
}

void gguf_writer_str(struct gguf_writer *w, const char *key, struct slice v)
{
    struct str *s = key_begin(w, key, GGUF_STR);
    if (s)
        put_string(s, v);
}

/* One item of an array in this machine's byte order. */
static uint64_t load(const void *p, uint32_t bytes)
{
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (bytes) {
    case 1:
        return *(const uint8_t *)p;
    case 2:
        memcpy(&u16, p, sizeof u16);
        return u16;
    case 4:
        memcpy(&u32, p, sizeof u32);
        return u32;
    default:
        memcpy(&u64, p, sizeof u64);
        return u64;
    }
}

void gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type item,
                       const void *items, uint64_t n)
{
    uint32_t bytes = gguf_type_bytes(item);
    if (bytes == 0) {
        error_set(&w->err, PITH_RANGE, "%s: key '%.96s': array of %s, wanted numbers or bools",
                  w->file.path, key, gguf_type_name(item));
        return;
    }
    struct str *s = key_begin(w, key, GGUF_ARR);
    if (!s)
        return;
    put_int(s, item, 4);
    put_int(s, n, 8);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t v = load((const char *)items + i * bytes, bytes);
        put_int(s, item == GGUF_BOOL ? v != 0 : v, bytes);
    }
}

void gguf_writer_strs(struct gguf_writer *w, const char *key, const struct slice *items, uint64_t n)
{
    struct str *s = key_begin(w, key, GGUF_ARR);
    if (!s)
        return;
    put_int(s, GGUF_STR, 4);
    put_int(s, n, 8);
    for (uint64_t i = 0; i < n; i++)
        put_string(s, items[i]);
}

/* Bytes of a tensor, 0 when its type or shape is none. */
static uint64_t tensor_bytes(enum dtype type, int n_dims, const int64_t *dims)
{
    uint64_t n = 1, bytes;
    if ((unsigned)type >= DT_COUNT || n_dims < 1 || n_dims > 4)
        return 0;
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] <= 0 || size_mul(n, (uint64_t)dims[i], &n) || n > INT64_MAX)
            return 0;
    }
    const struct dtype_traits *t = &dtypes[type];
    if (dims[n_dims - 1] % t->block ||
        size_mul(n / (uint64_t)t->block, (uint64_t)t->block_bytes, &bytes))
        return 0;
    return bytes;
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                        const int64_t *dims)
{
    if (!declare(w, &w->tensor_names, "tensor", name))
        return;
    uint64_t bytes = tensor_bytes(type, n_dims, dims), end;
    if (bytes == 0 || size_add(w->data, bytes, &end) || end > INT64_MAX) {
        error_set(&w->err, PITH_SHAPE,
                  "%s: tensor '%.96s': wanted a known type and 1 to 4 dimensions above 0, the last "
                  "one whole "
                  "blocks, and less than 2^63 bytes in all",
                  w->file.path, name);
        return;
    }
    uint64_t *moved = gguf_grow(w->bytes, w->n_tensors, &w->cap_tensors, sizeof *moved);
    if (!moved) {
        error_set(&w->err, PITH_NOMEM, "%s: no memory for tensor '%.96s': free some memory",
                  w->file.path, name);
        return;
    }
    w->bytes = moved;
    w->bytes[w->n_tensors++] = bytes;
    put_string(&w->infos, slice_of(name));
    put_int(&w->infos, (uint64_t)n_dims, 4);
    for (int i = n_dims; i-- > 0;)
        put_int(&w->infos, (uint64_t)dims[i], 8); /* the file has the contiguous one first */
    put_int(&w->infos, dtypes[type].gguf_id, 4);
    put_int(&w->infos, w->data, 8);
    w->data = size_align(end, ALIGNMENT);
}

/* ---------------------------------------------------------------- data */

static void pad(struct gguf_writer *w)
{
    static const char zeros[ALIGNMENT];
    file_writer_put(&w->file, zeros, size_align(w->file.n, ALIGNMENT) - w->file.n);
}

static void write_head(struct gguf_writer *w)
{
    struct str head;
    w->head_written = 1;
    str_init(&head, PITH_MEM_META);
    str_putz(&head, "GGUF");
    put_int(&head, 3, 4);
    put_int(&head, w->n_tensors, 8);
    put_int(&head, w->n_keys, 8);
    if (head.failed || w->keys.failed || w->infos.failed) {
        error_set(&w->err, PITH_NOMEM, "%s: no memory for its keys and tensors: free some memory",
                  w->file.path);
    } else {
        file_writer_put(&w->file, head.p, head.n);
        file_writer_put(&w->file, w->keys.p, w->keys.n);
        file_writer_put(&w->file, w->infos.p, w->infos.n);
        pad(w);
    }
    str_deinit(&head);
}

int gguf_writer_failed(const struct gguf_writer *w)
{
    return w->err.code != PITH_OK || w->file.failed_errno;
}

void gguf_writer_data(struct gguf_writer *w, const void *p, uint64_t n)
{
    const char *from = p;
    if (w->err.code == PITH_OK && !w->head_written)
        write_head(w);
    while (n && w->err.code == PITH_OK) {
        if (w->current == w->n_tensors) {
            error_set(&w->err, PITH_STATE,
                      "%s: %" PRIu64 " bytes of data after those of the %" PRIu64
                      " declared tensors: put exactly what was declared",
                      w->file.path, n, w->n_tensors);
            return;
        }
        uint64_t left = w->bytes[w->current] - w->put, take = n < left ? n : left;
        file_writer_put(&w->file, from, take);
        from += take;
        n -= take;
        w->put += take;
        if (w->put == w->bytes[w->current]) {
            pad(w);
            w->put = 0;
            w->current++;
        }
    }
}

/* ---------------------------------------------------------------- the end */

/* The file is committed or discarded already. */
static void writer_free(struct gguf_writer *w)
{
    map_deinit(&w->key_names);
    map_deinit(&w->tensor_names);
    arena_deinit(&w->names);
    str_deinit(&w->keys);
    str_deinit(&w->infos);
    mem_free(w->bytes);
    mem_free(w);
}

pith_status gguf_writer_close(struct gguf_writer *w, struct pith_error *err)
{
    pith_status st;
    error_clear(err);
    if (w->err.code == PITH_OK && !w->head_written)
        write_head(w);
    if (!gguf_writer_failed(w) && w->current < w->n_tensors)
        error_set(&w->err, PITH_STATE,
                  "%s: %" PRIu64 " of %" PRIu64 " bytes of data for tensor %" PRIu64 " of %" PRIu64
                  ": put exactly what was declared",
                  w->file.path, w->put, w->bytes[w->current], w->current, w->n_tensors);
    if (w->err.code == PITH_OK) {
        st = file_writer_commit(&w->file, err);
    } else {
        file_writer_discard(&w->file);
        st = error_set(err, w->err.code, "%s", w->err.msg);
    }
    writer_free(w);
    return st;
}

void gguf_writer_discard(struct gguf_writer *w)
{
    if (!w)
        return;
    file_writer_discard(&w->file);
    writer_free(w);
}
