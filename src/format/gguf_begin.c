/* gguf_begin.c -- what the first bytes of a GGUF file say, while the rest of it is on its way. The
 * keys come first (gguf.c has the layout); they are walked as they lie, without tables of them. */
#include <string.h>

#include "base/cursor.h"
#include "base/mem.h"
#include "format/gguf_impl.h"

/* 0: the value's size is none that a file can have. */
static int skip_values(struct cursor *c, uint32_t type, uint64_t n)
{
    uint64_t bytes;
    if (type == GGUF_STR) {
        for (uint64_t i = 0; i < n && !c->failed; i++)
            cursor_str(c, "string");
        return 1;
    }
    if (type >= GGUF_TYPE_COUNT || type == GGUF_ARR ||
        size_mul(n, gguf_type_bytes((enum gguf_type)type), &bytes))
        return 0;
    cursor_skip(c, bytes, "value");
    return 1;
}

int gguf_begins(const void *p, uint64_t n, const char *key, struct slice *out)
{
    struct cursor c;
    cursor_init(&c, p, n);
    const uint8_t *magic = cursor_bytes(&c, 4, "magic");
    uint32_t version = cursor_u32(&c, "version");
    if (magic && memcmp(magic, "GGUF", 4))
        return 0;
    if (version && (version & 0xffff) == 0) { /* as in gguf.c */
        version = __builtin_bswap32(version);
        c.big_endian = 1;
    }
    cursor_u64(&c, "number of tensors");
    uint64_t n_keys = cursor_u64(&c, "number of keys");
    if (!c.failed && version != 2 && version != 3)
        return 0;
    for (uint64_t i = 0; i < n_keys && !c.failed; i++) {
        struct slice name = cursor_str(&c, "name");
        uint32_t type = cursor_u32(&c, "value type");
        uint64_t items = 1;
        if (!c.failed && type == GGUF_STR && slice_eq_z(name, key)) {
            *out = cursor_str(&c, "value");
            return c.failed ? -1 : 1;
        }
        if (type == GGUF_ARR) {
            type = cursor_u32(&c, "item type");
            items = cursor_u64(&c, "number of items");
        }
        if (!c.failed && !skip_values(&c, type, items))
            return 0;
    }
    return c.failed ? -1 : 0;
}
