/* gguf.c -- opening GGUF files: one pass over the header, the keys and the tensor table that checks
 * everything, so that no accessor can fail on the file's content later.
 *
 *     part (file)  "GGUF" | u32 version | u64 n_tensors | u64 n_keys               24 bytes
 *                  n_keys    x { str key | u32 type | value }
 *                  n_tensors x { str name | u32 n_dims | u64 dims[n_dims], fastest first
 *                                | u32 type | u64 offset }
 *                  padding to general.alignment (32 unless given)
 *                  data; tensor i lies at data + offset[i], a multiple of the alignment
 *     str          u64 length | bytes
 *     array        u32 item type | u64 n | items
 *
 * Names and strings stay where they are: slices point into the mapping. What is built is one struct
 * gguf_kv per key, one struct gguf_tensor per tensor and two hash maps, each grown only as items
 * are really read, so a file that claims 2^60 keys costs nothing.
 *
 * Invariants after open: key and tensor names are unique, non-empty UTF-8 without NUL; every value
 * lies inside its part; every tensor has 1..4 dims > 0, whole blocks, an aligned range inside its
 * part, and shares no byte with another; one byte order per set.
 *
 * Split sets: parts are parsed like any file; their tensors go into one table, the keys are those
 * of the first part (the others carry only split.*, which is checked).
 *
 * Byte order: a version that reads as 2 or 3 only when swapped marks a big-endian file. Its
 * metadata is fully supported. Its tensor data would have to be swapped by type, which is not done
 * here, so gguf_open refuses such a file when it has tensors; a listing shows them.
 *
 * Not here: values and overrides (gguf_value.c), what keys mean (arch, text), reading or packing
 * tensor data (run), formats before GGUF v2 (refused by name).
 *
 * Reference: https://github.com/ggml-org/ggml, docs, GGUF. Deviations: a tensor's name may have up
 * to 65,535 bytes (64 there); nested arrays are refused; tensors may come in any order and leave
 * gaps. */
#include "format/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/cursor.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/gguf_impl.h"

enum {
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 65536,
    KEY_MIN_BYTES = 8 + 1 + 4 + 1,            /* length, name, type, value */
    TENSOR_MIN_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, dim, type, offset */
    ITEMS_MAX = 1 << 30,                      /* indices are uint32 */
    SPLIT_SUFFIX_BYTES = sizeof "-00001-of-00002.gguf" - 1
};

#define DAMAGED   "the file is damaged: download it again or convert the model anew"
#define CUT_SHORT "the file is cut short or damaged: download it again"
#define NO_MEMORY "no memory for the file's metadata: free some memory"

/* ---------------------------------------------------------------- types */

/* Type ids of the format that no weights have or that are gone from it; for messages. */
static const struct {
    uint32_t id;
    const char *name;
} other_types[] = {
    {4, "q4_2 (retired)"},         {5, "q4_3 (retired)"},        {9, "q8_1 (no weight type)"},
    {15, "q8_K (no weight type)"}, {31, "q4_0_4_4 (retired)"},   {32, "q4_0_4_8 (retired)"},
    {33, "q4_0_8_8 (retired)"},    {36, "iq4_nl_4_4 (retired)"}, {37, "iq4_nl_4_8 (retired)"},
    {38, "iq4_nl_8_8 (retired)"},
};

static const char *other_type_name(uint32_t id)
{
    for (size_t i = 0; i < sizeof other_types / sizeof other_types[0]; i++) {
        if (other_types[i].id == id)
            return other_types[i].name;
    }
    return "unknown";
}

/* ---------------------------------------------------------------- reading */

struct reader { /* of one part */
    struct gguf *g;
    const char *path;
    struct cursor c;
    int part;
    int listing; /* big-endian tensors are welcome */
    struct pith_error *err;
    /* The object being read, for messages. */
    const char *kind;  /* "header", "key", "tensor" */
    int64_t index;     /* -1: there is only one */
    struct slice name; /* empty until it is known */
};

static void now_reading(struct reader *r, const char *kind, int64_t index, struct slice name)
{
    r->kind = kind;
    r->index = index;
    r->name = name;
}

/* How much of a name fits a message; error_set makes the bytes presentable. */
static int shown(struct slice name)
{
    return name.n < GGUF_SHOW_MAX ? (int)name.n : GGUF_SHOW_MAX;
}

/* Fails with "PATH: OBJECT at byte AT: MESSAGE". */
PRINTF_LIKE(4, 5)
static pith_status bad(const struct reader *r, pith_status st, uint64_t at, const char *fmt, ...)
{
    char object[GGUF_SHOW_MAX + 64], msg[1024];
    va_list ap;
    if (r->index < 0)
        snprintf(object, sizeof object, "%s", r->kind);
    else if (r->name.n == 0)
        snprintf(object, sizeof object, "%s %" PRId64, r->kind, r->index);
    else
        snprintf(object, sizeof object, "%s %" PRId64 " '%.*s'", r->kind, r->index, shown(r->name),
                 r->name.p);
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return error_set(r->err, st, "%s: %s at byte %" PRIu64 ": %s", r->path, object, at, msg);
}

/* The cursor ran into the end of the file. */
static pith_status cut_short(const struct reader *r)
{
    return bad(r, PITH_FORMAT, r->c.failed_at,
               "wanted %" PRIu64 " bytes for its %s, found the end of the file at byte %" PRIu64
               "; " CUT_SHORT,
               r->c.wanted, r->c.what, r->c.n);
}

static pith_status no_memory(const struct reader *r)
{
    return bad(r, PITH_NOMEM, r->c.at, NO_MEMORY);
}

/* A key's or tensor's name. */
static pith_status read_name(struct reader *r, struct slice *out)
{
    uint64_t at = r->c.at;
    uint64_t n = cursor_u64(&r->c, "name's length");
    if (r->c.failed)
        return cut_short(r);
    if (n == 0 || n > GGUF_NAME_MAX)
        return bad(r, PITH_FORMAT, at,
                   "found a name of %" PRIu64 " bytes, wanted 1 to %d; " DAMAGED, n, GGUF_NAME_MAX);
    const char *p = (const char *)cursor_bytes(&r->c, n, "name");
    if (!p)
        return cut_short(r);
    *out = (struct slice){p, (size_t)n};
    r->name = *out;
    if (memchr(p, 0, (size_t)n) || !utf8_valid(p, (size_t)n))
        return bad(r, PITH_FORMAT, at + 8,
                   "found bytes that are not text, wanted a name in UTF-8 without NUL; " DAMAGED);
    return PITH_OK;
}

/* ---------------------------------------------------------------- keys */

static const struct gguf_kv *keys_find(const struct gguf_keys *k, struct slice name)
{
    uint32_t i;
    return map_get(&k->index, name, &i) ? &k->kv[i] : NULL;
}

static void keys_deinit(struct gguf_keys *k)
{
    mem_free(k->kv);
    map_deinit(&k->index);
    *k = (struct gguf_keys){0};
}

enum {
    MOST_ITEMS = 1 << 28
}; /* of an array: a thousand times what the largest vocabularies have */

/* Steps over n items of one type, checking what can be wrong inside them. */
static pith_status skip_items(struct reader *r, enum gguf_type type, uint64_t n)
{
    uint64_t at = r->c.at, left = r->c.n - at, bytes;
    uint32_t size = type == GGUF_STR ? 8 : gguf_type_bytes(type); /* a string has its length */
    if (size_mul(n, size, &bytes) || bytes > left)
        return bad(r, PITH_FORMAT, at,
                   "wanted %" PRIu64 " values of type %s, found the end of the file after %" PRIu64
                   " bytes; " CUT_SHORT,
                   n, gguf_type_name(type), left);
    if (n > MOST_ITEMS)
        return bad(r, PITH_FORMAT, at, "wanted %" PRIu64 " values of type %s, at most %d are read",
                   n, gguf_type_name(type), MOST_ITEMS);
    if (type == GGUF_STR) {
        for (uint64_t i = 0; i < n && !r->c.failed; i++)
            cursor_str(&r->c, "string");
        return r->c.failed ? cut_short(r) : PITH_OK;
    }
    const uint8_t *p = cursor_bytes(&r->c, bytes, "value");
    for (uint64_t i = 0; type == GGUF_BOOL && i < n; i++) {
        if (p[i] > 1)
            return bad(r, PITH_FORMAT, at + i, "found a bool of value %d, wanted 0 or 1; " DAMAGED,
                       p[i]);
    }
    return PITH_OK;
}

static pith_status read_type(struct reader *r, const char *what, enum gguf_type *out)
{
    uint64_t at = r->c.at;
    uint32_t type = cursor_u32(&r->c, what);
    if (r->c.failed)
        return cut_short(r);
    if (type >= GGUF_TYPE_COUNT)
        return bad(r, PITH_FORMAT, at, "found %s %" PRIu32 ", wanted 0 (u8) to 12 (f64); " DAMAGED,
                   what, type);
    *out = (enum gguf_type)type;
    return PITH_OK;
}

static pith_status read_key(struct reader *r, struct gguf_keys *keys, uint64_t i)
{
    struct gguf_kv kv = {.n = 1, .part = r->part};
    pith_status st;
    uint64_t start = r->c.at;
    now_reading(r, "key", (int64_t)i, (struct slice){0});
    TRY(read_name(r, &kv.key));
    TRY(read_type(r, "value type", &kv.type));
    kv.item = kv.type;
    if (kv.type == GGUF_ARR) {
        uint64_t at = r->c.at;
        TRY(read_type(r, "item type", &kv.item));
        if (kv.item == GGUF_ARR)
            return bad(r, PITH_UNSUPPORTED, at,
                       "found an array of arrays, wanted one of numbers, bools or strings; nested "
                       "arrays are not supported: store a flat one");
        kv.n = cursor_u64(&r->c, "number of items");
        if (r->c.failed)
            return cut_short(r);
    }
    kv.at = r->c.at;
    TRY(skip_items(r, kv.item, kv.n));

    struct gguf_kv *moved = gguf_grow(keys->kv, keys->n, &keys->cap, sizeof *moved);
    if (!moved)
        return no_memory(r);
    keys->kv = moved;
    int added = map_put(&keys->index, kv.key, (uint32_t)keys->n);
    if (added < 0)
        return no_memory(r);
    if (!added)
        return bad(r, PITH_FORMAT, start,
                   "found a second key of this name, wanted every key once; " DAMAGED);
    keys->kv[keys->n++] = kv;
    return PITH_OK;
fail:
    return st;
}

/* A non-negative integer key; fallback when it is absent. *at is where it lies, for messages. */
static pith_status key_number(struct reader *r, const struct gguf_keys *keys, const char *name,
                              uint64_t fallback, uint64_t *out, uint64_t *at)
{
    const struct gguf_kv *kv = keys_find(keys, slice_of(name));
    *out = fallback;
    *at = kv ? kv->at : 0;
    if (!kv)
        return PITH_OK;
    now_reading(r, "key", kv - keys->kv, kv->key);
    if (kv->type == GGUF_ARR || !gguf_u64(r->g, kv, 0, out))
        return bad(r, PITH_FORMAT, kv->at,
                   "found a value of type %s that is no count, wanted an integer >= 0; " DAMAGED,
                   gguf_type_name(kv->type));
    return PITH_OK;
}

/* ---------------------------------------------------------------- tensors */

/* Dimensions, type and size; r->name is known. */
static pith_status read_shape(struct reader *r, struct gguf_tensor *t)
{
    uint64_t at = r->c.at, n = 1;
    uint32_t n_dims = cursor_u32(&r->c, "number of dimensions");
    if (r->c.failed)
        return cut_short(r);
    if (n_dims < 1 || n_dims > 4)
        return bad(r, PITH_FORMAT, at, "found %" PRIu32 " dimensions, wanted 1 to 4; " DAMAGED,
                   n_dims);
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++) {
        at = r->c.at;
        uint64_t dim = cursor_u64(&r->c, "dimension");
        if (r->c.failed)
            return cut_short(r);
        if (dim == 0 || size_mul(n, dim, &n) || n > INT64_MAX)
            return bad(r, PITH_FORMAT, at,
                       "found dimension %" PRIu32 " = %" PRIu64
                       ", wanted dimensions above 0 with a product below 2^63; " DAMAGED,
                       i, dim);
        t->dims[n_dims - 1 - i] = (int64_t)dim; /* the flip to C order */
    }
    at = r->c.at;
    t->type_id = cursor_u32(&r->c, "type");
    if (r->c.failed)
        return cut_short(r);

    int type = dtype_from_gguf(t->type_id);
    if (type < 0)
        return bad(r, PITH_UNSUPPORTED, at,
                   "found type id %" PRIu32
                   ", %s, wanted a weight type of GGUF; the file is damaged, "
                   "or made for another engine: quantize the model to q8_0 or q4_K, say",
                   t->type_id, other_type_name(t->type_id));
    const struct dtype_traits *traits = &dtypes[type];
    uint64_t row = (uint64_t)t->dims[n_dims - 1], block = (uint64_t)traits->block;
    t->type = (enum dtype)type;
    if (row % block)
        return bad(r, PITH_FORMAT, at,
                   "found rows of %" PRIu64 " elements, wanted a multiple of %" PRIu64
                   " for type %s; " DAMAGED,
                   row, block, traits->name);
    if (size_mul(n / block, (uint64_t)traits->block_bytes, &t->bytes))
        return bad(r, PITH_FORMAT, at,
                   "found %" PRIu64
                   " elements of type %s, wanted a size below 2^64 bytes; " DAMAGED,
                   n, traits->name);
    return PITH_OK;
}

static pith_status read_tensor(struct reader *r, uint64_t i)
{
    struct gguf *g = r->g;
    struct gguf_tensor t = {.part = r->part};
    pith_status st;
    uint64_t start = r->c.at;
    now_reading(r, "tensor", (int64_t)i, (struct slice){0});
    TRY(read_name(r, &t.name));
    TRY(read_shape(r, &t));
    t.offset = cursor_u64(&r->c, "offset");
    if (r->c.failed)
        return cut_short(r);

    struct gguf_tensor *moved = gguf_grow(g->tensors, g->n_tensors, &g->cap_tensors, sizeof *moved);
    if (!moved)
        return no_memory(r);
    g->tensors = moved;
    int added = map_put(&g->names, t.name, (uint32_t)g->n_tensors);
    if (added < 0)
        return no_memory(r);
    if (!added)
        return bad(r, PITH_FORMAT, start,
                   "found a second tensor of this name, wanted every tensor once; " DAMAGED);
    g->tensors[g->n_tensors++] = t;
    return PITH_OK;
fail:
    return st;
}

/* Heap sort of tensor indices by offset: in place, n log n whatever the file says. */
static void sift(uint32_t *order, uint32_t n, uint32_t at, const struct gguf_tensor *t)
{
    uint32_t moving = order[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && t[order[child]].offset < t[order[child + 1]].offset)
            child++;
        if (t[moving].offset >= t[order[child]].offset)
            break;
        order[at] = order[child];
    }
    order[at] = moving;
}

static void sort_by_offset(uint32_t *order, uint32_t n, const struct gguf_tensor *t)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift(order, n, i, t);
    for (uint32_t end = n; end-- > 1;) {
        uint32_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sift(order, end, 0, t);
    }
}

/* Where tensor t's entry in the table begins: its name's length lies before its name. */
static uint64_t entry_at(const struct reader *r, const struct gguf_tensor *t)
{
    return (uint64_t)((const uint8_t *)t->name.p - r->c.p) - 8;
}

/* No two of the n tensors share a byte. Needed only when the table is not in file order. */
static pith_status check_overlap(struct reader *r, const struct gguf_tensor *t, uint32_t n)
{
    pith_status st = PITH_OK;
    uint32_t *order = mem_array(n, sizeof *order, PITH_MEM_META);
    if (!order)
        return no_memory(r);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    sort_by_offset(order, n, t);
    for (uint32_t i = 1; i < n && st == PITH_OK; i++) {
        const struct gguf_tensor *a = &t[order[i - 1]], *b = &t[order[i]];
        if (b->offset - a->offset < a->bytes) {
            now_reading(r, "tensor", order[i], b->name);
            st = bad(r, PITH_FORMAT, entry_at(r, b),
                     "found data at byte %" PRIu64 " inside that of tensor '%.*s' (%" PRIu64
                     " bytes from byte %" PRIu64 "), wanted ranges apart; " DAMAGED,
                     b->offset, shown(a->name), a->name.p, a->bytes, a->offset);
        }
    }
    mem_free(order);
    return st;
}

/* Turns offsets in the data section into offsets in the part, and checks them. The cursor stands
 * behind the tensor table. */
static pith_status place_tensors(struct reader *r, struct gguf_tensor *t, uint64_t n,
                                 uint64_t alignment)
{
    uint64_t data = size_align(r->c.at, alignment), end = 0;
    int in_order = 1;
    for (uint64_t i = 0; i < n; i++) {
        now_reading(r, "tensor", (int64_t)i, t[i].name);
        if (t[i].offset % alignment)
            return bad(r, PITH_FORMAT, entry_at(r, &t[i]),
                       "found offset %" PRIu64 ", wanted a multiple of the alignment %" PRIu64
                       "; " DAMAGED,
                       t[i].offset, alignment);
        uint64_t last;
        if (size_add(t[i].offset, data, &t[i].offset) || size_add(t[i].offset, t[i].bytes, &last) ||
            last > r->c.n)
            return bad(r, PITH_FORMAT, entry_at(r, &t[i]),
                       "wanted %" PRIu64 " bytes of data from byte %" PRIu64
                       ", found the end of the file at byte %" PRIu64 "; " CUT_SHORT,
                       t[i].bytes, t[i].offset, r->c.n);
        in_order &= t[i].offset >= end;
        end = last;
    }
    return in_order ? PITH_OK : check_overlap(r, t, (uint32_t)n);
}

/* ---------------------------------------------------------------- header */

/* Other files that people open by mistake. Letters match in either case, for the sake of HTML. */
static const struct {
    const char *magic, *found, *todo;
} other_formats[] = {
    {"FUGG", "a GGUF file with its magic reversed", "download it again"},
    {"lmgg", "an old GGML model (ggml)", "convert the original model to GGUF"},
    {"fmgg", "an old GGML model (ggmf)", "convert the original model to GGUF"},
    {"tjgg", "an old GGML model (ggjt)", "convert the original model to GGUF"},
    {"algg", "an old GGML adapter (ggla)", "convert the original adapter to GGUF"},
    {"ggml", "an old GGML model (ggml)", "convert the original model to GGUF"},
    {"nsgg", "a saved session", "open the model's GGUF file"},
    {"qsgg", "a saved sequence", "open the model's GGUF file"},
    {"PK\3\4", "a zip archive (a PyTorch checkpoint?)", "convert the model to GGUF"},
    {"\200\2", "a Python pickle (a PyTorch checkpoint?)", "convert the model to GGUF"},
    {"\200\3", "a Python pickle (a PyTorch checkpoint?)", "convert the model to GGUF"},
    {"\200\4", "a Python pickle (a PyTorch checkpoint?)", "convert the model to GGUF"},
    {"\200\5", "a Python pickle (a PyTorch checkpoint?)", "convert the model to GGUF"},
    {"\211HDF", "an HDF5 file (a Keras checkpoint?)", "convert the model to GGUF"},
    {"\223NUMPY", "a NumPy array", "convert the model to GGUF"},
    {"\37\213", "a gzip archive", "decompress it"},
    {"\3757zXZ", "an xz archive", "decompress it"},
    {"\50\265\57\375", "a zstd archive", "decompress it"},
    {"7z\274\257", "a 7z archive", "decompress it"},
    {"version https://git-lfs", "a Git LFS pointer", "fetch the file with 'git lfs pull'"},
    {"<!doctype", "a web page", "download the file itself, not its page"},
    {"<html", "a web page", "download the file itself, not its page"},
    {"<?xml", "an XML page", "download the file itself, not its page"},
    {"{", "JSON text", "open the .gguf file itself"},
};

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int starts_with(struct slice s, const char *start)
{
    size_t i = 0;
    while (i < s.n && start[i] && lower(s.p[i]) == lower(start[i]))
        i++;
    return start[i] == 0;
}

static pith_status wrong_magic(const struct reader *r)
{
    static const char wanted[] = "wanted a GGUF file (first bytes 'GGUF')";
    struct slice s = {(const char *)r->c.p, r->c.n < 64 ? (size_t)r->c.n : 64};
    struct cursor c;
    cursor_init(&c, s.p, s.n);
    if (cursor_u64(&c, "") < r->c.n && cursor_u8(&c, "") == '{') /* length of a JSON header */
        return bad(r, PITH_FORMAT, 0, "found a safetensors file, %s; convert the model to GGUF",
                   wanted);
    if (starts_with(s, "\357\273\277")) /* byte order mark */
        s = (struct slice){s.p + 3, s.n - 3};
    while (s.n && (s.p[0] == ' ' || (s.p[0] >= '\t' && s.p[0] <= '\r')))
        s = (struct slice){s.p + 1, s.n - 1};
    for (size_t i = 0; i < sizeof other_formats / sizeof other_formats[0]; i++) {
        if (starts_with(s, other_formats[i].magic))
            return bad(r, PITH_FORMAT, 0, "found %s, %s; %s", other_formats[i].found, wanted,
                       other_formats[i].todo);
    }
    char bytes[32] = "";
    for (uint64_t i = 0, len = 0; i < r->c.n && i < 8; i++)
        len += (uint64_t)snprintf(bytes + len, sizeof bytes - len, " %02x", r->c.p[i]);
    return bad(r, PITH_FORMAT, 0, "found bytes%s, %s; give a model in GGUF", bytes, wanted);
}

static pith_status read_version(struct reader *r)
{
    uint64_t at = r->c.at;
    uint32_t version = cursor_u32(&r->c, "version");
    if (r->c.failed)
        return cut_short(r);
    if (version && (version & 0xffff) == 0) { /* versions are small: the bytes are swapped */
        version = __builtin_bswap32(version);
        r->c.big_endian = 1;
    }
    r->g->extents[r->part].big_endian = r->c.big_endian;
    if (version == 1)
        return bad(r, PITH_UNSUPPORTED, at,
                   "found GGUF version 1, wanted 2 or 3; convert the original model again");
    if (version != 2 && version != 3)
        return bad(r, PITH_UNSUPPORTED, at,
                   "found GGUF version %" PRIu32
                   ", wanted 2 or 3; the file is damaged or needs a newer engine",
                   version);
    if (r->part == 0)
        r->g->version = (int)version;
    else if (r->c.big_endian != r->g->extents[0].big_endian)
        return bad(r, PITH_FORMAT, at,
                   "found another byte order than in the first part, wanted one for the whole set; "
                   "download all parts from one place");
    return PITH_OK;
}

static pith_status read_header(struct reader *r, uint64_t *n_tensors, uint64_t *n_keys)
{
    pith_status st;
    now_reading(r, "header", -1, (struct slice){0});
    if (r->c.n < 4 || memcmp(r->c.p, "GGUF", 4) != 0)
        return wrong_magic(r);
    cursor_skip(&r->c, 4, "magic");
    TRY(read_version(r));
    uint64_t at = r->c.at;
    *n_tensors = cursor_u64(&r->c, "number of tensors");
    *n_keys = cursor_u64(&r->c, "number of keys");
    if (r->c.failed)
        return cut_short(r);
    /* No overflow: each count is first compared with what the file could hold. */
    uint64_t left = r->c.n - r->c.at;
    if (*n_keys > left / KEY_MIN_BYTES ||
        *n_tensors > (left - *n_keys * KEY_MIN_BYTES) / TENSOR_MIN_BYTES)
        return bad(r, PITH_FORMAT, at,
                   "found counts of %" PRIu64 " tensors and %" PRIu64
                   " keys, wanted no more than fit into the %" PRIu64
                   " bytes that follow; " CUT_SHORT,
                   *n_tensors, *n_keys, left);
    if (*n_keys > ITEMS_MAX || *n_tensors > ITEMS_MAX - r->g->n_tensors)
        return bad(r, PITH_UNSUPPORTED, at,
                   "found %" PRIu64 " tensors and %" PRIu64
                   " keys, wanted at most %d of each; " DAMAGED,
                   *n_tensors, *n_keys, ITEMS_MAX);
    if (r->c.big_endian && *n_tensors && !r->listing)
        return bad(r, PITH_UNSUPPORTED, at,
                   "found %" PRIu64
                   " tensors in big-endian byte order, wanted little-endian ones; convert the "
                   "file with gguf-convert-endian",
                   *n_tensors);
    return PITH_OK;
fail:
    return st;
}

/* Reads all of a mapped part: its keys into `keys`, its tensors into the set's table. */
static pith_status read_part(struct reader *r, struct gguf_keys *keys)
{
    struct gguf *g = r->g;
    uint64_t n_tensors = 0, n_keys = 0, alignment, at, first = g->n_tensors;
    pith_status st;
    TRY(read_header(r, &n_tensors, &n_keys));
    for (uint64_t i = 0; i < n_keys; i++)
        TRY(read_key(r, keys, i));
    TRY(key_number(r, keys, "general.alignment", ALIGNMENT_DEFAULT, &alignment, &at));
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return bad(r, PITH_FORMAT, at,
                   "found alignment %" PRIu64 ", wanted a power of two from %d to %d; " DAMAGED,
                   alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    for (uint64_t i = 0; i < n_tensors; i++)
        TRY(read_tensor(r, i));
    if (n_tensors)
        TRY(place_tensors(r, g->tensors + first, n_tensors, alignment));
    return PITH_OK;
fail:
    return st;
}

/* ---------------------------------------------------------------- sets */

static pith_status map_part(struct gguf *g, const char *path, struct pith_error *err)
{
    struct gguf_extent part = {0};
    pith_status st = file_map_open(&part.map, path, err);
    if (st != PITH_OK)
        return st;
    if (gguf_add_extent(g, part) < 0) {
        file_map_close(&part.map);
        return error_set(err, PITH_NOMEM, "%s: " NO_MEMORY, path);
    }
    g->n_parts++;
    return PITH_OK;
}

static void reader_init(struct reader *r, struct gguf *g, int part, const char *path, int listing,
                        struct pith_error *err)
{
    *r = (struct reader){.g = g, .path = path, .part = part, .listing = listing, .err = err};
    cursor_init(&r->c, g->extents[part].map.p, g->extents[part].map.n);
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The name of part i of n, counted from 0, given the path of part `known`; NULL when that is not
 * the name of a split part, or without memory. */
static char *part_path(struct gguf *g, const char *path, uint64_t known, uint64_t i, uint64_t n)
{
    char end[64];
    snprintf(end, sizeof end, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", known + 1, n);
    if (n > 99999 || !ends_with(path, end))
        return NULL;
    return arena_printf(&g->arena, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf",
                        (int)(strlen(path) - SPLIT_SUFFIX_BYTES), path, i + 1, n);
}

/* Maps and reads part i > 0 of n; its keys are looked at and dropped. */
static pith_status read_next_part(struct gguf *g, uint64_t i, uint64_t n, int listing,
                                  struct pith_error *err)
{
    struct reader r;
    struct gguf_keys keys = {0};
    uint64_t no, count, no_at, count_at;
    pith_status st;
    map_init(&keys.index, PITH_MEM_META);
    const char *path = part_path(g, g->path, 0, i, n);
    if (!path)
        return error_set(err, PITH_NOMEM, "%s: " NO_MEMORY, g->path);
    st = map_part(g, path, err);
    if (st != PITH_OK) {
        error_prefix(err, "part %" PRIu64 " of %" PRIu64 " must lie beside the first", i + 1, n);
        return st;
    }
    reader_init(&r, g, (int)i, path, listing, err);
    TRY(read_part(&r, &keys));
    TRY(key_number(&r, &keys, "split.no", UINT64_MAX, &no, &no_at));
    TRY(key_number(&r, &keys, "split.count", UINT64_MAX, &count, &count_at));
    if (no != i || count != n) {
        now_reading(&r, "split set", -1, (struct slice){0});
        st = bad(&r, PITH_FORMAT, no != i ? no_at : count_at,
                 "found split.no %" PRId64 " and split.count %" PRId64
                 " (-1: absent), wanted %" PRIu64 " and %" PRIu64
                 "; the part belongs to another model: download all parts from one place",
                 (int64_t)no, (int64_t)count, i, n);
    }
fail:
    keys_deinit(&keys);
    return st;
}

/* Reads the first part, which is mapped, and when it is one of several opens and reads the others.
 * */
static pith_status read_set(struct gguf *g, int listing, struct pith_error *err)
{
    struct reader r;
    uint64_t n, no, total, at, no_at, total_at;
    pith_status st;
    reader_init(&r, g, 0, g->path, listing, err);
    TRY(read_part(&r, &g->keys));
    TRY(key_number(&r, &g->keys, "split.no", 0, &no, &no_at));
    TRY(key_number(&r, &g->keys, "split.count", 1, &n, &at));
    if (n <= 1 && no == 0)
        return PITH_OK;
    now_reading(&r, "split set", -1, (struct slice){0});
    if (no != 0) {
        const char *first = part_path(g, g->path, no, 0, n);
        return bad(&r, PITH_UNSUPPORTED, no_at,
                   "found part %" PRIu64 " of %" PRIu64 ", wanted the first; open '%s'", no + 1, n,
                   first ? first : "...-00001-of-....gguf");
    }
    if (!g->mapped)
        return bad(&r, PITH_UNSUPPORTED, at,
                   "found part 1 of %" PRIu64
                   " in memory, wanted a single file; open the set by its path",
                   n);
    if (!part_path(g, g->path, 0, 0, n)) {
        if (!arena_ok(&g->arena))
            return no_memory(&r);
        return bad(&r, PITH_UNSUPPORTED, at,
                   "found part 1 of %" PRIu64
                   " under a name that does not end in -00001-of-%05" PRIu64
                   ".gguf, wanted names by which the other parts can be found; rename the parts",
                   n, n);
    }
    for (uint64_t i = 1; i < n; i++)
        TRY(read_next_part(g, i, n, listing, err));
    TRY(key_number(&r, &g->keys, "split.tensors.count", g->n_tensors, &total, &total_at));
    if (total != g->n_tensors)
        return bad(&r, PITH_FORMAT, total_at,
                   "found %" PRIu64 " tensors in the %" PRIu64 " parts, wanted %" PRIu64
                   "; download all parts from one place",
                   g->n_tensors, n, total);
    return PITH_OK;
fail:
    return st;
}

/* path: of a file when bytes is NULL. */
static struct gguf *open_any(const char *path, const void *bytes, uint64_t n, int listing,
                             struct pith_error *err)
{
    pith_status st;
    error_clear(err);
    struct gguf *g = mem_zalloc(sizeof *g, PITH_MEM_META);
    if (!g) {
        error_set(err, PITH_NOMEM, "%s: " NO_MEMORY, path);
        return NULL;
    }
    arena_init(&g->arena, PITH_MEM_META);
    map_init(&g->keys.index, PITH_MEM_META);
    map_init(&g->names, PITH_MEM_META);
    g->mapped = bytes == NULL;
    g->path = arena_strndup(&g->arena, path, strlen(path));
    if (bytes) {
        struct gguf_extent part = {.map = {.p = bytes, .n = n, .fd = -1}};
        g->n_parts = gguf_add_extent(g, part) == 0;
    } else if (g->path) {
        TRY(map_part(g, path, err));
    }
    if (!g->path || g->n_parts == 0)
        TRY(error_set(err, PITH_NOMEM, "%s: " NO_MEMORY, path));
    TRY(read_set(g, listing, err));
    return g;
fail:
    gguf_close(g);
    return NULL;
}

struct gguf *gguf_open(const char *path, struct pith_error *err)
{
    return open_any(path, NULL, 0, 0, err);
}

struct gguf *gguf_open_memory(const void *p, uint64_t n, struct pith_error *err)
{
    return open_any("(memory)", p ? p : "", p ? n : 0, 0, err);
}

struct gguf *gguf_open_listing(const char *path, struct pith_error *err)
{
    return open_any(path, NULL, 0, 1, err);
}

struct gguf *gguf_open_listing_memory(const void *p, uint64_t n, struct pith_error *err)
{
    return open_any("(memory)", p ? p : "", p ? n : 0, 1, err);
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (int i = 0; g->mapped && i < g->n_parts; i++)
        file_map_close(&g->extents[i].map);
    mem_free(g->extents);
    keys_deinit(&g->keys);
    mem_free(g->tensors);
    map_deinit(&g->names);
    arena_deinit(&g->arena);
    mem_free(g);
}

/* ---------------------------------------------------------------- looking */

int gguf_version(const struct gguf *g)
{
    return g->version;
}

int gguf_n_parts(const struct gguf *g)
{
    return g->n_parts;
}

const struct file_map *gguf_part(const struct gguf *g, int part)
{
    return part >= 0 && part < g->n_parts ? &g->extents[part].map : NULL;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint64_t gguf_n_kv(const struct gguf *g)
{
    return g->keys.n;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i)
{
    return i < g->keys.n ? &g->keys.kv[i] : NULL;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    return keys_find(&g->keys, slice_of(key));
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, struct slice name)
{
    uint32_t i;
    return map_get(&g->names, name, &i) ? &g->tensors[i] : NULL;
}

const void *gguf_tensor_data(const struct gguf *g, const struct gguf_tensor *t)
{
    return g->extents[t->part].map.p + t->offset;
}
