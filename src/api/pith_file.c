/* pith_file.c -- looking into a GGUF file without loading it: pith.h's view of format/gguf.h.
 *
 * The format room hands out slices of the mapping; C callers want terminated strings, so the names
 * are copied once, at open. Files are opened as listings: a big-endian model, with which this
 * engine cannot compute, can still be looked at. */
#include "api/params.h"
#include "pith.h"

#include <string.h>

#include "arch/arch.h"
#include "base/arena.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "run/model/model.h"

struct pith_file {
    struct gguf *gguf;
    struct arena arena;
    const char **keys, **key_types; /* [n_keys] */
    const char **tensors;           /* [n_tensors] */
};

/* 0 without memory. */
static int copy_names(struct pith_file *f)
{
    uint64_t n_keys = gguf_n_kv(f->gguf), n_tensors = gguf_n_tensors(f->gguf);
    f->keys = arena_array(&f->arena, (size_t)n_keys, sizeof *f->keys);
    f->key_types = arena_array(&f->arena, (size_t)n_keys, sizeof *f->key_types);
    f->tensors = arena_array(&f->arena, (size_t)n_tensors, sizeof *f->tensors);
    for (uint64_t i = 0; i < n_keys && arena_ok(&f->arena); i++) {
        const struct gguf_kv *kv = gguf_kv_at(f->gguf, i);
        f->keys[i] = arena_strndup(&f->arena, kv->key.p, kv->key.n);
        f->key_types[i] = kv->type == GGUF_ARR
                              ? arena_printf(&f->arena, "arr<%s>", gguf_type_name(kv->item))
                              : gguf_type_name(kv->type);
    }
    for (uint64_t i = 0; i < n_tensors && arena_ok(&f->arena); i++) {
        struct slice name = gguf_tensor_at(f->gguf, i)->name;
        f->tensors[i] = arena_strndup(&f->arena, name.p, name.n);
    }
    return arena_ok(&f->arena);
}

pith_file *pith_file_open(const char *path, struct pith_error *err)
{
    error_clear(err);
    if (!path) {
        error_set(err, PITH_RANGE, "no file name given");
        return NULL;
    }
    struct pith_file *f = mem_zalloc(sizeof *f, PITH_MEM_META);
    if (!f) {
        error_set(err, PITH_NOMEM, "%s: no memory to open the file: free some memory", path);
        return NULL;
    }
    arena_init(&f->arena, PITH_MEM_META);
    f->gguf = gguf_open_listing(path, err);
    if (f->gguf && copy_names(f))
        return f;
    error_set(err, PITH_NOMEM, "%s: no memory for the file's names: free some memory", path);
    pith_file_close(f);
    return NULL;
}

void pith_file_close(pith_file *f)
{
    if (!f)
        return;
    gguf_close(f->gguf);
    arena_deinit(&f->arena);
    mem_free(f);
}

int64_t pith_file_n_keys(const pith_file *f)
{
    return f ? (int64_t)gguf_n_kv(f->gguf) : 0;
}

const char *pith_file_key(const pith_file *f, int64_t i)
{
    return i >= 0 && i < pith_file_n_keys(f) ? f->keys[i] : NULL;
}

const char *pith_file_key_type(const pith_file *f, int64_t i)
{
    return i >= 0 && i < pith_file_n_keys(f) ? f->key_types[i] : NULL;
}

int64_t pith_file_value(const pith_file *f, int64_t i, int64_t max_items, char *buf, size_t cap)
{
    if (i < 0 || i >= pith_file_n_keys(f))
        return -1;
    struct str text;
    str_init(&text, PITH_MEM_META);
    gguf_value_text(f->gguf, gguf_kv_at(f->gguf, (uint64_t)i), max_items, &text);
    int64_t n = text.failed ? -1 : (int64_t)text.n;
    if (n >= 0 && buf && cap > 0) {
        size_t fits = text.n < cap ? text.n : cap - 1;
        if (fits)
            memcpy(buf, text.p, fits);
        buf[fits] = 0;
    }
    str_deinit(&text);
    return n;
}

int64_t pith_file_n_tensors(const pith_file *f)
{
    return f ? (int64_t)gguf_n_tensors(f->gguf) : 0;
}

pith_status pith_file_tensor(const pith_file *f, int64_t i, struct pith_tensor_info *out)
{
    if (!out || i < 0 || i >= pith_file_n_tensors(f))
        return PITH_RANGE;
    const struct gguf_tensor *t = gguf_tensor_at(f->gguf, (uint64_t)i);
    size_t size;
    pith_status st = params_size(out, &size, "tensor info", NULL);
    if (st != PITH_OK)
        return st;
    struct pith_tensor_info info = {
        .name = f->tensors[i],
        .type = dtypes[t->type].name,
        .n_dims = t->n_dims,
        .offset = t->offset,
        .bytes = t->bytes,
        .part = t->part,
    };
    memcpy(info.dims, t->dims, sizeof info.dims);
    params_give(out, size, &info, sizeof info);
    return PITH_OK;
}

const char *pith_file_type(const pith_file *f)
{
    return f ? gguf_file_type(f->gguf) : NULL;
}

int pith_file_gguf_version(const pith_file *f)
{
    return f ? gguf_version(f->gguf) : 0;
}

int pith_file_n_parts(const pith_file *f)
{
    return f ? gguf_n_parts(f->gguf) : 0;
}

pith_status pith_file_runs(const pith_file *f, struct pith_error *err)
{
    struct slice type;
    error_clear(err);
    if (!f)
        return error_set(err, PITH_RANGE, "no file given");
    const struct gguf_kv *kv = gguf_find(f->gguf, "general.type");
    if (kv && gguf_str(f->gguf, kv, &type) && slice_eq_z(type, "adapter"))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s is an adapter: it is added to a model, as with --lora",
                         gguf_path(f->gguf));
    return model_check(gguf_path(f->gguf), err);
}

pith_status pith_file_begins(const void *p, size_t n, struct pith_error *err)
{
    struct slice name = {0};
    error_clear(err);
    int found = gguf_begins(p, n, "general.architecture", &name);
    if (found < 0)
        return error_set(err, PITH_MISSING, "its architecture is not in its first %zu bytes", n);
    return found ? arch_known(name, err) : PITH_OK;
}
