/* gguf_value.c -- the values of a GGUF file that gguf.c has checked, and overrides.
 *
 * A value is never decoded ahead: struct gguf_kv knows type, count and place, and each call reads
 * the bytes asked for, in the byte order of their extent. Numbers are widened once (struct number),
 * then narrowed with a range check to what the caller wants.
 *
 * An override is an extent of its own behind the files of the set, holding its value as a file
 * would, so every accessor sees it without knowing. It replaces the entry of its key or adds one at
 * the end.
 *
 *     extents  [ part 0 | part 1 | ... | override 0 | override 1 | ... ]    gguf_kv.part: which
 */
#include "format/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cursor.h"
#include "base/str.h"
#include "base/utf8.h"
#include "format/gguf_impl.h"

/* A cursor at byte `at` of the part that holds a value. */
static struct cursor value_cursor(const struct gguf *g, const struct gguf_kv *kv, uint64_t at)
{
    const struct gguf_extent *part = &g->extents[kv->part];
    struct cursor c;
    cursor_init(&c, part->map.p, part->map.n);
    c.big_endian = part->big_endian;
    c.at = at;
    return c;
}

struct number {
    enum { NOT_A_NUMBER, UNSIGNED, SIGNED, REAL, BOOLEAN } kind;
    uint64_t u; /* UNSIGNED, BOOLEAN */
    int64_t i;  /* SIGNED */
    double f;   /* REAL */
};

static struct number number_at(const struct gguf *g, const struct gguf_kv *kv, uint64_t i)
{
    struct number v = {0};
    uint32_t bytes = kv ? gguf_type_bytes(kv->item) : 0;
    if (bytes == 0 || i >= kv->n)
        return v;
    struct cursor c = value_cursor(g, kv, kv->at + i * bytes);
    if (kv->item == GGUF_F32 || kv->item == GGUF_F64) {
        v.kind = REAL;
        v.f = bytes == 4 ? (double)cursor_f32(&c, "f32") : cursor_f64(&c, "f64");
        return v;
    }
    v.kind = kv->item == GGUF_BOOL ? BOOLEAN : UNSIGNED;
    v.u = bytes == 1   ? cursor_u8(&c, "u8")
          : bytes == 2 ? cursor_u16(&c, "u16")
          : bytes == 4 ? cursor_u32(&c, "u32")
                       : cursor_u64(&c, "u64");
    if (kv->item == GGUF_I8 || kv->item == GGUF_I16 || kv->item == GGUF_I32 ||
        kv->item == GGUF_I64) {
        unsigned above = 64 - 8 * bytes; /* bits to fill with the sign */
        v.kind = SIGNED;
        v.i = (int64_t)(v.u << above) >> above;
    }
    return v;
}

int gguf_u64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, uint64_t *out)
{
    struct number v = number_at(g, kv, i);
    if (v.kind == UNSIGNED)
        *out = v.u;
    else if (v.kind == SIGNED && v.i >= 0)
        *out = (uint64_t)v.i;
    else
        return 0;
    return 1;
}

int gguf_i64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, int64_t *out)
{
    struct number v = number_at(g, kv, i);
    if (v.kind == SIGNED)
        *out = v.i;
    else if (v.kind == UNSIGNED && v.u <= INT64_MAX)
        *out = (int64_t)v.u;
    else
        return 0;
    return 1;
}

int gguf_f64(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, double *out)
{
    struct number v = number_at(g, kv, i);
    if (v.kind == REAL)
        *out = v.f;
    else if (v.kind == UNSIGNED)
        *out = (double)v.u;
    else if (v.kind == SIGNED)
        *out = (double)v.i;
    else
        return 0;
    return 1;
}

int gguf_bool(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, int *out)
{
    struct number v = number_at(g, kv, i);
    if (v.kind != BOOLEAN)
        return 0;
    *out = (int)v.u;
    return 1;
}

int gguf_str(const struct gguf *g, const struct gguf_kv *kv, struct slice *out)
{
    if (!kv || kv->type != GGUF_STR)
        return 0;
    struct cursor c = value_cursor(g, kv, kv->at);
    *out = cursor_str(&c, "string");
    return 1;
}

void gguf_strs_begin(struct gguf_strs *it, const struct gguf *g, const struct gguf_kv *kv)
{
    *it = (struct gguf_strs){.g = g, .kv = kv, .at = kv ? kv->at : 0};
}

int gguf_strs_next(struct gguf_strs *it, struct slice *out)
{
    if (!it->kv || it->kv->type != GGUF_ARR || it->kv->item != GGUF_STR || it->i >= it->kv->n)
        return 0;
    struct cursor c = value_cursor(it->g, it->kv, it->at);
    *out = cursor_str(&c, "string");
    it->at = c.at;
    it->i++;
    return 1;
}

/* The shortest decimal that reads back as v. */
static void put_real(struct str *out, double v, int is_f32, int json)
{
    char text[40];
    if (!isfinite(v)) { /* JSON has no word for these */
        str_putz(out, json ? "null" : isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    void *before = c_locale_enter();
    int most = is_f32 ? 9 : 17;
    for (int digits = is_f32 ? 6 : 15; digits <= most; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back = strtod(text, NULL);
        if (is_f32 ? (float)back == (float)v : back == v)
            break;
    }
    c_locale_leave(before);
    str_putz(out, text);
}

static void put_number(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, struct str *out)
{
    struct number v = number_at(g, kv, i);
    switch (v.kind) {
    case UNSIGNED:
        str_printf(out, "%" PRIu64, v.u);
        break;
    case SIGNED:
        str_printf(out, "%" PRId64, v.i);
        break;
    case REAL:
        put_real(out, v.f, kv->item == GGUF_F32, kv->type == GGUF_ARR);
        break;
    case BOOLEAN:
        str_putz(out, v.u ? "true" : "false");
        break;
    case NOT_A_NUMBER:
        break;
    }
}

void gguf_value_text(const struct gguf *g, const struct gguf_kv *kv, int64_t max_items,
                     struct str *out)
{
    struct gguf_strs it;
    struct slice s;
    if (kv->type == GGUF_STR && gguf_str(g, kv, &s)) {
        str_put(out, s.p, s.n);
        return;
    }
    if (kv->type != GGUF_ARR) {
        put_number(g, kv, 0, out);
        return;
    }
    uint64_t n = max_items >= 0 && kv->n > (uint64_t)max_items ? (uint64_t)max_items : kv->n;
    gguf_strs_begin(&it, g, kv);
    str_putc(out, '[');
    for (uint64_t i = 0; i < n && !out->failed; i++) {
        if (i)
            str_putz(out, ", ");
        if (gguf_strs_next(&it, &s))
            str_json(out, s.p, s.n);
        else
            put_number(g, kv, i, out);
    }
    if (n < kv->n)
        str_putz(out, n ? ", ..." : "...");
    str_putc(out, ']');
}

/* ---------------------------------------------------------------- overrides */

enum { OVERRIDE_FIXED = 8 }; /* bytes of a number; a string's length is as long */

static void put_le64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

/* Parses a value into out[8] (numbers) and *type; 0 when the text is not of that type. */
static int parse_value(const char *type_text, size_t n_type, const char *text,
                       uint8_t out[OVERRIDE_FIXED], enum gguf_type *type)
{
    struct slice t = {type_text, n_type};
    char *end = NULL;
    if (slice_eq_z(t, "int")) {
        *type = GGUF_I64;
        errno = 0;
        long long v = strtoll(text, &end, 10);
        put_le64(out, (uint64_t)v);
        return end != text && !*end && errno == 0;
    }
    if (slice_eq_z(t, "float")) {
        *type = GGUF_F64;
        double v = str_to_double(text, &end);
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        put_le64(out, bits);
        return end != text && !*end && isfinite(v);
    }
    if (slice_eq_z(t, "bool")) {
        *type = GGUF_BOOL;
        out[0] = strcmp(text, "true") == 0;
        return out[0] || strcmp(text, "false") == 0;
    }
    *type = GGUF_STR;
    put_le64(out, strlen(text));
    return slice_eq_z(t, "str");
}

/* Adds the value as an extent of its own and points kv at it. */
static int add_value(struct gguf *g, struct gguf_kv *kv, const uint8_t fixed[OVERRIDE_FIXED],
                     const char *text)
{
    size_t n = kv->type == GGUF_BOOL ? 1 : OVERRIDE_FIXED,
           n_text = kv->type == GGUF_STR ? strlen(text) : 0;
    uint8_t *p = arena_alloc(&g->arena, n + n_text);
    if (!p)
        return 0;
    memcpy(p, fixed, n);
    if (n_text)
        memcpy(p + n, text, n_text);
    kv->part = gguf_add_extent(g, (struct gguf_extent){.map = {.p = p, .n = n + n_text, .fd = -1}});
    return kv->part >= 0;
}

/* Replaces the entry of kv.key, or adds one with a copy of the name. 0 without memory. */
static int set_key(struct gguf *g, struct gguf_kv kv)
{
    struct gguf_keys *keys = &g->keys;
    uint32_t index;
    if (map_get(&keys->index, kv.key, &index)) {
        kv.key = keys->kv[index].key;
        keys->kv[index] = kv;
        return 1;
    }
    struct gguf_kv *moved = gguf_grow(keys->kv, keys->n, &keys->cap, sizeof *moved);
    if (!moved)
        return 0;
    keys->kv = moved;
    kv.key.p = arena_strndup(&g->arena, kv.key.p, kv.key.n);
    if (!kv.key.p || map_put(&keys->index, kv.key, (uint32_t)keys->n) != 1)
        return 0;
    keys->kv[keys->n++] = kv;
    return 1;
}

pith_status gguf_override(struct gguf *g, const char *spec, struct pith_error *err)
{
    const char *eq = strchr(spec, '='), *colon = eq ? strchr(eq, ':') : NULL;
    struct gguf_kv kv = {.n = 1};
    uint8_t fixed[OVERRIDE_FIXED] = {0};
    if (!colon || eq == spec || (size_t)(eq - spec) > GGUF_NAME_MAX ||
        !utf8_valid(spec, (size_t)(eq - spec)))
        return error_set(err, PITH_RANGE,
                         "override '%.96s': wanted key=type:value, for instance "
                         "tokenizer.ggml.add_bos_token=bool:false",
                         spec);
    if (!parse_value(eq + 1, (size_t)(colon - eq - 1), colon + 1, fixed, &kv.type))
        return error_set(err, PITH_RANGE,
                         "override '%.96s': the value does not fit its type; write int:DIGITS, "
                         "float:NUMBER, bool:true, bool:false or str:TEXT",
                         spec);
    kv.item = kv.type;
    kv.key = (struct slice){spec, (size_t)(eq - spec)};
    if (slice_eq_z(kv.key, "general.alignment") ||
        (kv.key.n > 6 && memcmp(kv.key.p, "split.", 6) == 0))
        return error_set(err, PITH_UNSUPPORTED,
                         "override '%.96s': this key says how the file is laid out and has been "
                         "used already; leave it as it is",
                         spec);
    if (!add_value(g, &kv, fixed, colon + 1) || !set_key(g, kv))
        return error_set(err, PITH_NOMEM, "override '%.96s': no memory: free some memory", spec);
    return PITH_OK;
}
