/* test_gguf.c -- the format room at work: values of every type, the writer, big-endian files, split
 * sets, overrides, the public functions, and the real files of the shared folder. */
#include <dirent.h>

#include "gguf_image.h"

/* ---------------------------------------------------------------- values */

static void put_every_type(struct image *im)
{
    put_header(im, 3, 0, 16);
    put_num(im, "u8", GGUF_U8, 200, 1);
    put_num(im, "i8", GGUF_I8, (uint64_t)-100, 1);
    put_num(im, "u16", GGUF_U16, 60000, 2);
    put_num(im, "i16", GGUF_I16, (uint64_t)-30000, 2);
    put_num(im, "u32", GGUF_U32, 4000000000u, 4);
    put_num(im, "i32", GGUF_I32, (uint64_t)-2000000000, 4);
    put_key(im, "f32", GGUF_F32), put_f32(im, 0.1f);
    put_num(im, "bool", GGUF_BOOL, 1, 1);
    put_key(im, "str", GGUF_STR), put_text(im, "h\xc3\xa9llo");
    put_num(im, "u64", GGUF_U64, UINT64_MAX, 8);
    put_num(im, "i64", GGUF_I64, (uint64_t)INT64_MIN, 8);
    put_key(im, "f64", GGUF_F64), put_f64(im, -1e300);
    put_array(im, "arr.i16", GGUF_I16, 3);
    for (int i = -1; i < 2; i++)
        put_int(im, (uint64_t)i, 2);
    put_array(im, "arr.str", GGUF_STR, 3), put_text(im, "a\"b"), put_text(im, ""),
        put_text(im, "\xff");
    put_array(im, "arr.bool", GGUF_BOOL, 2), put_int(im, 0, 1), put_int(im, 1, 1);
    put_array(im, "arr.none", GGUF_U64, 0);
}

static void check_text(const struct gguf *g, const char *key, int64_t max_items, const char *wanted)
{
    struct str text;
    str_init(&text, PITH_MEM_META);
    gguf_value_text(g, gguf_find(g, key), max_items, &text);
    CHECK_MSG(text.p && strcmp(text.p, wanted) == 0, "%s: %s, wanted %s", key,
              text.p ? text.p : "nothing", wanted);
    str_deinit(&text);
}

static void check_every_type(const struct gguf *g)
{
    static const struct {
        const char *key;
        int is_u, is_i, is_f;
        uint64_t u;
        int64_t i;
        double f;
    } rows[] = {
        {"u8", 1, 1, 1, 200, 200, 200},
        {"i8", 0, 1, 1, 0, -100, -100},
        {"u16", 1, 1, 1, 60000, 60000, 60000},
        {"i16", 0, 1, 1, 0, -30000, -30000},
        {"u32", 1, 1, 1, 4000000000u, 4000000000, 4e9},
        {"i32", 0, 1, 1, 0, -2000000000, -2e9},
        {"f32", 0, 0, 1, 0, 0, 0.1f},
        {"bool", 0, 0, 0, 0, 0, 0},
        {"str", 0, 0, 0, 0, 0, 0},
        {"u64", 1, 0, 1, UINT64_MAX, 0, 18446744073709551616.0},
        {"i64", 0, 1, 1, 0, INT64_MIN, -9223372036854775808.0},
        {"f64", 0, 0, 1, 0, 0, -1e300},
        {"arr.none", 0, 0, 0, 0, 0, 0},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const struct gguf_kv *kv = gguf_find(g, rows[k].key);
        uint64_t u = 0;
        int64_t i = 0;
        double f = 0;
        REQUIRE(kv, "%s is missing", rows[k].key);
        CHECK_MSG(gguf_u64(g, kv, 0, &u) == rows[k].is_u && u == rows[k].u, "%s as u64",
                  rows[k].key);
        CHECK_MSG(gguf_i64(g, kv, 0, &i) == rows[k].is_i && i == rows[k].i, "%s as i64",
                  rows[k].key);
        CHECK_MSG(gguf_f64(g, kv, 0, &f) == rows[k].is_f && f == rows[k].f, "%s as f64",
                  rows[k].key);
        CHECK_MSG(!gguf_u64(g, kv, kv->n, &u), "%s has no item behind its last", rows[k].key);
    }
    int b = 0;
    int64_t i = 0;
    uint64_t u;
    struct slice s = {0};
    struct gguf_strs it;
    CHECK(gguf_bool(g, gguf_find(g, "bool"), 0, &b) && b == 1);
    CHECK(!gguf_bool(g, gguf_find(g, "u8"), 0, &b));
    CHECK(gguf_bool(g, gguf_find(g, "arr.bool"), 0, &b) && b == 0);
    CHECK(gguf_str(g, gguf_find(g, "str"), &s) && slice_eq_z(s, "h\xc3\xa9llo"));
    CHECK(!gguf_str(g, gguf_find(g, "arr.str"), &s));
    for (int k = 0; k < 3; k++)
        CHECK(gguf_i64(g, gguf_find(g, "arr.i16"), (uint64_t)k, &i) && i == k - 1);
    gguf_strs_begin(&it, g, gguf_find(g, "arr.str"));
    CHECK(gguf_strs_next(&it, &s) && slice_eq_z(s, "a\"b"));
    CHECK(gguf_strs_next(&it, &s) && s.n == 0);
    CHECK(gguf_strs_next(&it, &s) && slice_eq_z(s, "\xff"));
    CHECK(!gguf_strs_next(&it, &s));
    gguf_strs_begin(&it, g, gguf_find(g, "u8"));
    CHECK(!gguf_strs_next(&it, &s));
    CHECK(gguf_find(g, "absent") == NULL && !gguf_u64(g, NULL, 0, &u) && !gguf_str(g, NULL, &s));
    check_text(g, "u64", -1, "18446744073709551615");
    check_text(g, "i8", -1, "-100");
    check_text(g, "f32", -1, "0.1");
    check_text(g, "f64", -1, "-1e+300");
    check_text(g, "bool", -1, "true");
    check_text(g, "str", -1, "h\xc3\xa9llo");
    check_text(g, "arr.i16", -1, "[-1, 0, 1]");
    check_text(g, "arr.i16", 2, "[-1, 0, ...]");
    check_text(g, "arr.i16", 0, "[...]");
    check_text(g, "arr.str", 9, "[\"a\\\"b\", \"\", \"\xef\xbf\xbd\"]");
    check_text(g, "arr.bool", -1, "[false, true]");
    check_text(g, "arr.none", 0, "[]");
}

static void every_value_type(void)
{
    for (int big_endian = 0; big_endian < 2; big_endian++) {
        struct image im = {.big_endian = big_endian};
        struct pith_error err;
        void *block;
        put_every_type(&im);
        struct gguf *g = open_exact(im.p, im.n, 0, &block, &err);
        CHECK_MSG(g, "%s", err.msg);
        if (g) {
            CHECK(gguf_version(g) == 3 && gguf_n_parts(g) == 1 && gguf_n_kv(g) == 16 &&
                  gguf_n_tensors(g) == 0);
            CHECK(gguf_kv_at(g, 16) == NULL && gguf_tensor_at(g, 0) == NULL &&
                  gguf_part(g, 1) == NULL);
            check_every_type(g);
        }
        gguf_close(g);
        free(block);
        free(im.p);
    }
    CHECK(strcmp(gguf_type_name(GGUF_U32), "u32") == 0 &&
          strcmp(gguf_type_name(GGUF_TYPE_COUNT), "?") == 0);
    check_nothing_held(test_name);
}

/* Non-finite numbers and those whose shortest form is long. */
static void numbers_as_text(void)
{
    struct image im = {0};
    struct pith_error err;
    put_header(&im, 2, 0, 4);
    put_key(&im, "inf", GGUF_F32), put_f32(&im, -INFINITY);
    put_array(&im, "mixed", GGUF_F32, 3), put_f32(&im, 1.0f / 3), put_f32(&im, NAN),
        put_f32(&im, 1e-6f);
    put_key(&im, "third", GGUF_F64), put_f64(&im, 1.0 / 3);
    put_key(&im, "nan", GGUF_F64), put_f64(&im, NAN);
    struct gguf *g = gguf_open_memory(im.p, im.n, &err);
    REQUIRE(g, "%s", err.msg);
    CHECK(gguf_version(g) == 2);
    check_text(g, "inf", -1, "-inf");
    check_text(g, "nan", -1, "nan");
    check_text(g, "mixed", -1, "[0.33333334, null, 1e-06]");
    check_text(g, "third", -1, "0.3333333333333333");
    gguf_close(g);
    free(im.p);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- writer */

static void writer_round_trip(void)
{
    static const struct {
        const char *name;
        enum dtype type;
        int n_dims;
        const int64_t *dims;
        uint64_t bytes;
    } rows[] = {
        {"a.weight", DT_Q8_0, 2, dims_a, 204},
        {"b.weight", DT_F32, 1, dims_b, 28},
        {"c.weight", DT_F16, 4, dims_c, 240},
        {"d.weight", DT_I32, 3, dims_d, 132},
    };
    struct pith_error err;
    const char *path = tmp_path("sample.gguf");
    struct gguf *g = sample(path, &err);
    REQUIRE(g, "%s", err.msg);
    CHECK(strcmp(gguf_path(g), path) == 0 && gguf_version(g) == 3 && gguf_n_kv(g) == 11 &&
          gguf_n_tensors(g) == 4);
    check_text(g, "general.architecture", -1, "test");
    check_text(g, "a.u32", -1, "4000000000");
    check_text(g, "a.u64", -1, "18446744073709551615");
    check_text(g, "a.i32", -1, "-5");
    check_text(g, "a.f32", -1, "1.5");
    check_text(g, "a.bool", -1, "true");
    check_text(g, "arr.i32", -1, "[-1, 0, 1]");
    check_text(g, "arr.f32", -1, "[0.5, -0.25]");
    check_text(g, "arr.bool", -1, "[false, true, true]");
    check_text(g, "arr.none", -1, "[]");
    check_text(g, "arr.str", -1, "[\"one\", \"\", \"tw\\u0000o\"]");
    uint64_t at = 0, end = 0;
    for (uint64_t i = 0; i < 4; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = gguf_tensor_data(g, t);
        CHECK(slice_eq_z(t->name, rows[i].name) &&
              gguf_tensor_find(g, slice_of(rows[i].name)) == t);
        CHECK(t->type == rows[i].type && t->n_dims == rows[i].n_dims && t->bytes == rows[i].bytes &&
              t->part == 0);
        CHECK(memcmp(t->dims, rows[i].dims, (size_t)t->n_dims * sizeof t->dims[0]) == 0);
        CHECK(t->offset % 32 == 0 && t->offset >= end && t->offset < end + 32 + 4096);
        for (uint64_t j = 0; j < t->bytes; j++)
            CHECK(p[j] == (uint8_t)((at + j) * 7));
        at += t->bytes;
        end = t->offset + t->bytes;
    }
    CHECK(gguf_part(g, 0)->n == (end + 31) / 32 * 32);
    CHECK(gguf_tensor_find(g, slice_of("e.weight")) == NULL);
    gguf_close(g);

    struct gguf_writer *w = gguf_writer_open(path, &err); /* nothing declared at all */
    REQUIRE(w, "%s", err.msg);
    CHECK(gguf_writer_close(w, &err) == PITH_OK);
    g = gguf_open(path, &err);
    CHECK_MSG(g && gguf_n_kv(g) == 0 && gguf_n_tensors(g) == 0, "%s", err.msg);
    gguf_close(g);
    unlink(path);
    check_nothing_held(test_name);
}

static int fault; /* what write_wrongly does wrong */

static void write_wrongly(struct gguf_writer *w)
{
    static const int64_t zero[] = {4, 0}, ragged[] = {4, 33}, huge[] = {INT64_MAX, 32};
    static char data[512], long_name[65537];
    memset(long_name, 'x', sizeof long_name - 1);
    gguf_writer_u32(w, "k", 1);
    gguf_writer_tensor(w, "t", DT_F32, 1, dims_b);
    switch (fault) {
    case 0:
        gguf_writer_data(w, data, 27);
        return;
    case 1:
        gguf_writer_data(w, data, 29);
        return;
    case 2:
        return;
    case 3:
        gguf_writer_u32(w, "k", 2);
        break;
    case 4:
        gguf_writer_tensor(w, "t", DT_F32, 1, dims_b);
        break;
    case 5:
        gguf_writer_data(w, data, 1), gguf_writer_u32(w, "late", 2);
        break;
    case 6:
        gguf_writer_data(w, data, 1), gguf_writer_tensor(w, "late", DT_F32, 1, dims_b);
        break;
    case 7:
        gguf_writer_u32(w, "", 2);
        break;
    case 8:
        gguf_writer_u32(w, "\xff", 2);
        break;
    case 9:
        gguf_writer_u32(w, long_name, 2);
        break;
    case 10:
        gguf_writer_u32(w, "general.alignment", 64);
        break;
    case 11:
        gguf_writer_array(w, "nested", GGUF_ARR, data, 1);
        break;
    case 12:
        gguf_writer_array(w, "strings", GGUF_STR, data, 1);
        break;
    case 13:
        gguf_writer_tensor(w, "zero", DT_F32, 2, zero);
        break;
    case 14:
        gguf_writer_tensor(w, "ragged", DT_Q8_0, 2, ragged);
        break;
    case 15:
        gguf_writer_tensor(w, "huge", DT_F32, 2, huge);
        break;
    case 16:
        gguf_writer_tensor(w, "five", DT_F32, 5, dims_c);
        break;
    case 17:
        gguf_writer_tensor(w, "none", DT_COUNT, 1, dims_b);
        break;
    default:
        fault = -1;
        break;
    }
    gguf_writer_data(w, data, 28);
}

static void writer_refuses(void)
{
    struct pith_error err;
    const char *path = tmp_path("wrong.gguf");
    for (fault = 0;; fault++) {
        struct gguf_writer *w = gguf_writer_open(path, &err);
        REQUIRE(w, "%s", err.msg);
        int n = fault;
        write_wrongly(w);
        pith_status st = gguf_writer_close(w, &err);
        if (fault < 0) { /* the one without a fault */
            CHECK_MSG(st == PITH_OK && n == 18, "%d: %s", n, err.msg);
            break;
        }
        CHECK_MSG(st != PITH_OK && err.code == st && strstr(err.msg, path), "fault %d: %s", n,
                  err.msg);
        CHECK_MSG(access(path, F_OK) != 0, "fault %d left a file", n);
    }
    unlink(path);
    struct gguf_writer *w = gguf_writer_open(path, &err);
    REQUIRE(w, "%s", err.msg);
    write_sample(w);
    gguf_writer_discard(w);
    gguf_writer_discard(NULL);
    CHECK(access(path, F_OK) != 0);
    CHECK(gguf_writer_open(tmp_path("no/such/folder.gguf"), &err) == NULL && err.code != PITH_OK);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- big endian */

/* Every beginning of a file either tells the text of a key, or that more bytes would. */
static void beginnings(void)
{
    for (int big = 0; big < 2; big++) {
        struct image im = {.big_endian = big};
        struct slice text;
        put_header(&im, 3, 5, 4);
        put_array(&im, "words", GGUF_STR, 2), put_text(&im, "x"), put_text(&im, "general.name");
        put_num(&im, "general.alignment", GGUF_U32, 64, 4);
        put_array(&im, "numbers", GGUF_U8, 3), put_bytes(&im, "abc", 3);
        put_key(&im, "general.name", GGUF_STR), put_text(&im, "wings");
        for (size_t n = 0; n <= im.n; n++)
            CHECK_MSG(gguf_begins(im.p, n, "general.name", &text) == (n < im.n ? -1 : 1),
                      "%zu of %zu bytes", n, im.n);
        CHECK(text.n == 5 && !memcmp(text.p, "wings", 5));
        CHECK(gguf_begins(im.p, im.n, "words", &text) == 0); /* no text */
        CHECK(gguf_begins(im.p, im.n, "general.type", &text) == 0);
        CHECK(gguf_begins(im.p, im.n - 1, "general.type", &text) == -1);
        free(im.p);
    }
    struct slice text;
    struct image many = {0}, nested = {0}, old = {0};
    put_header(&many, 3, 0, 9);
    put_array(&many, "words", GGUF_STR, UINT64_MAX);
    CHECK(gguf_begins(many.p, many.n, "x", &text) == -1);
    put_header(&nested, 3, 0, 1);
    put_array(&nested, "lists", GGUF_ARR, 1);
    CHECK(gguf_begins(nested.p, nested.n, "x", &text) == 0);
    put_header(&old, 1, 0, 1);
    CHECK(gguf_begins(old.p, old.n, "x", &text) == 0);
    CHECK(gguf_begins("<html>", 6, "x", &text) == 0);
    free(many.p);
    free(nested.p);
    free(old.p);
}

static void big_endian_files(void)
{
    static const uint64_t dims[] = {4, 2};
    struct image im = {.big_endian = 1};
    struct pith_error err;
    put_header(&im, 3, 1, 2);
    put_num(&im, "general.alignment", GGUF_U32, 64, 4);
    put_array(&im, "words", GGUF_STR, 2), put_text(&im, "x"), put_text(&im, "y");
    put_info(&im, "t", 2, dims, 0, 0);
    pad_to(&im, 64);
    for (int i = 0; i < 8; i++)
        put_f32(&im, (float)i);
    check_refused("big-endian weights", &im, 0, PITH_UNSUPPORTED,
                  WORDS("1 tensors", "big-endian", "convert"));
    struct gguf *g = gguf_open_listing_memory(im.p, im.n, &err);
    CHECK_MSG(g, "%s", err.msg);
    if (g) {
        const struct gguf_tensor *t = gguf_tensor_at(g, 0);
        CHECK(t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 4 && t->bytes == 32 &&
              t->offset % 64 == 0);
        check_text(g, "words", -1, "[\"x\", \"y\"]");
    }
    gguf_close(g);
    free(im.p);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- split sets */

static void check_set_refused(const char *what, const char *path, const char *const words[4])
{
    struct pith_error err;
    struct gguf *g = gguf_open(path, &err);
    CHECK_MSG(!g, "%s: was opened", what);
    for (int i = 0; !g && i < 4 && words[i]; i++)
        CHECK_MSG(strstr(err.msg, words[i]), "%s: no '%s' in: %s", what, words[i], err.msg);
    gguf_close(g);
}

static void split_sets(void)
{
    struct pith_error err;
    save_set("set");
    struct gguf *g = gguf_open(part_name("set", 0), &err);
    REQUIRE(g, "%s", err.msg);
    CHECK(gguf_n_parts(g) == 3 && gguf_n_tensors(g) == 6 && gguf_n_kv(g) == 4);
    for (int i = 0; i < 6; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, (uint64_t)i);
        const float *p = gguf_tensor_data(g, t);
        CHECK(t->part == i / 2 && p[0] == (float)(i / 2 * 100 + i % 2 * 32));
        CHECK(gguf_part(g, t->part)->n >= t->offset + t->bytes);
    }
    CHECK(gguf_tensor_find(g, slice_of("blk.2.a")) == gguf_tensor_at(g, 4));
    void *bytes = malloc((size_t)gguf_part(g, 0)->n);
    size_t n = (size_t)gguf_part(g, 0)->n;
    memcpy(bytes, gguf_part(g, 0)->p, n);
    gguf_close(g);
    g = gguf_open_memory(bytes, n, &err);
    CHECK_MSG(!g && err.code == PITH_UNSUPPORTED && strstr(err.msg, "part 1 of 3"), "%s", err.msg);
    save(tmp_path("renamed.gguf"), bytes, n);
    free(bytes);
    check_set_refused("renamed", tmp_path("renamed.gguf"), WORDS("-00001-of-00003.gguf", "rename"));
    check_set_refused("second part", part_name("set", 1),
                      WORDS("part 2 of 3", part_name("set", 0)));

    save_part("set", 1, 1, N_PARTS, 6, "blk.0.a");
    check_set_refused("same tensor", part_name("set", 0),
                      WORDS(part_name("set", 1), "'blk.0.a'", "second"));
    save_part("set", 1, 2, N_PARTS, 6, "blk.1.a");
    check_set_refused("wrong number", part_name("set", 0),
                      WORDS(part_name("set", 1), "split.no 2", "wanted 1 and 3"));
    save_part("set", 1, 1, 4, 6, "blk.1.a");
    check_set_refused("wrong count", part_name("set", 0), WORDS("split.count 4", "wanted 1 and 3"));
    save_part("set", 1, 1, -1, 6, "blk.1.a");
    check_set_refused("no count", part_name("set", 0), WORDS("split.count -1"));
    save_part("set", 0, 0, N_PARTS, 7, "blk.0.a");
    save_part("set", 1, 1, N_PARTS, 7, "blk.1.a");
    check_set_refused("wrong total", part_name("set", 0),
                      WORDS("split.tensors.count", "6 tensors", "wanted 7"));
    save_part("set", 0, 0, N_PARTS, -1, "blk.0.a"); /* the total may be absent */
    g = gguf_open(part_name("set", 0), &err);
    CHECK_MSG(g, "%s", err.msg);
    gguf_close(g);
    save(part_name("set", 2), "GGUF\3\0\0\0", 8);
    check_set_refused("cut part", part_name("set", 0), WORDS(part_name("set", 2), "cut short"));
    struct image im = {.big_endian = 1};
    put_header(&im, 3, 0, 0);
    save(part_name("set", 2), im.p, im.n);
    free(im.p);
    check_set_refused("big-endian part", part_name("set", 0),
                      WORDS(part_name("set", 2), "byte order"));
    unlink(part_name("set", 2));
    check_set_refused("missing part", part_name("set", 0),
                      WORDS("part 3 of 3", part_name("set", 2)));
    for (int i = 0; i < 2; i++)
        unlink(part_name("set", i));
    unlink(tmp_path("renamed.gguf"));
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- overrides */

static void overrides(void)
{
    static const char *const bad[] = {
        "",
        "a.i32",
        "a.i32=5",
        "=int:5",
        "a.i32=int:",
        "a.i32=int:5x",
        "a.i32=int:99999999999999999999",
        "a.i32=float:abc",
        "a.i32=float:nan",
        "a.i32=bool:yes",
        "a.i32=u32:5",
        "\xff=int:5",
        "general.alignment=int:64",
        "split.count=int:2",
    };
    struct pith_error err;
    const char *path = tmp_path("sample.gguf");
    struct gguf *g = sample(path, &err);
    int64_t i = 0;
    uint64_t u = 0;
    double f = 0;
    int b = 1;
    struct slice s;
    REQUIRE(g, "%s", err.msg);
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        error_clear(&err);
        CHECK_MSG(gguf_override(g, bad[k], &err) != PITH_OK && err.code != PITH_OK && err.msg[0],
                  "%s was accepted", bad[k]);
    }
    CHECK(gguf_n_kv(g) == 11 && gguf_i64(g, gguf_find(g, "a.i32"), 0, &i) && i == -5);
    error_clear(&err);
    CHECK(gguf_override(g, "a.i32=int:-77", &err) == PITH_OK);
    CHECK(gguf_override(g, "a.u32=int:12", &err) == PITH_OK);
    CHECK(gguf_override(g, "a.f32=float:2.5", &err) == PITH_OK);
    CHECK(gguf_override(g, "a.bool=bool:false", &err) == PITH_OK);
    CHECK(gguf_override(g, "new.str=str:a=b:c", &err) == PITH_OK);
    CHECK(gguf_override(g, "new.str2=str:", &err) == PITH_OK);
    CHECK(gguf_override(g, "new.str2=str:again", &err) == PITH_OK);
    CHECK(gguf_n_kv(g) == 13 && gguf_n_parts(g) == 1);
    CHECK(gguf_i64(g, gguf_find(g, "a.i32"), 0, &i) && i == -77);
    CHECK(gguf_u64(g, gguf_find(g, "a.u32"), 0, &u) && u == 12);
    CHECK(gguf_f64(g, gguf_find(g, "a.f32"), 0, &f) && f == 2.5);
    CHECK(gguf_bool(g, gguf_find(g, "a.bool"), 0, &b) && b == 0);
    CHECK(gguf_str(g, gguf_find(g, "new.str"), &s) && slice_eq_z(s, "a=b:c"));
    CHECK(gguf_str(g, gguf_find(g, "new.str2"), &s) && slice_eq_z(s, "again"));
    CHECK(gguf_str(g, gguf_find(g, "general.architecture"), &s) && slice_eq_z(s, "test"));
    CHECK(gguf_part(g, 1) == NULL); /* the overrides are nobody's files */
    read_all(g);
    gguf_close(g);
    unlink(path);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- public functions */

static void public_files(void)
{
    struct pith_error err;
    const char *path = tmp_path("sample.gguf");
    struct gguf *g = sample(path, &err);
    REQUIRE(g, "%s", err.msg);
    gguf_close(g);
    pith_file *f = pith_file_open(path, &err);
    REQUIRE(f, "%s", err.msg);
    char buf[8];
    struct pith_tensor_info info = PITH_TENSOR_INFO_INIT;
    CHECK(pith_file_n_keys(f) == 11 && pith_file_n_tensors(f) == 4);
    CHECK(pith_file_gguf_version(f) == 3 && pith_file_n_parts(f) == 1);
    CHECK(!strcmp(pith_file_type(f), "f16"));
    CHECK(strcmp(pith_file_key(f, 0), "general.architecture") == 0 &&
          strcmp(pith_file_key_type(f, 0), "str") == 0);
    CHECK(strcmp(pith_file_key(f, 10), "arr.str") == 0 &&
          strcmp(pith_file_key_type(f, 10), "arr<str>") == 0);
    CHECK(!pith_file_key(f, -1) && !pith_file_key(f, 11) && !pith_file_key_type(f, 11));
    CHECK(pith_file_value(f, 1, -1, buf, sizeof buf) == 10 && strcmp(buf, "4000000") == 0);
    CHECK(pith_file_value(f, 0, -1, buf, 5) == 4 && strcmp(buf, "test") == 0);
    CHECK(pith_file_value(f, 0, -1, NULL, 0) == 4);
    CHECK(pith_file_value(f, 11, -1, buf, 5) == -1 && pith_file_value(f, -1, -1, buf, 5) == -1);
    CHECK(pith_file_tensor(f, 2, &info) == PITH_OK && strcmp(info.name, "c.weight") == 0 &&
          strcmp(info.type, "f16") == 0);
    CHECK(info.n_dims == 4 && memcmp(info.dims, dims_c, sizeof dims_c) == 0 && info.bytes == 240 &&
          info.part == 0);
    CHECK(pith_file_tensor(f, 4, &info) == PITH_RANGE &&
          pith_file_tensor(f, -1, &info) == PITH_RANGE);
    pith_file_close(f);
    pith_file_close(NULL);
    CHECK(pith_file_open(NULL, &err) == NULL && err.code != PITH_OK);
    CHECK(pith_file_open(tmp_path("absent.gguf"), &err) == NULL && err.code == PITH_MISSING);
    unlink(path);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- real files */

/* Does a value of the listing (Python's notation) say the same as item i? */
static int same_item(const struct gguf *g, const struct gguf_kv *kv, uint64_t i, const char *text)
{
    double f;
    int b;
    if (gguf_bool(g, kv, i, &b))
        return strcmp(text, b ? "True" : "False") == 0;
    return gguf_f64(g, kv, i, &f) &&
           (kv->item == GGUF_F32 ? (double)strtof(text, NULL) : strtod(text, NULL)) == f;
}

static int same_value(const struct gguf *g, const struct gguf_kv *kv, char *text)
{
    struct slice s;
    unsigned long long n;
    if (gguf_str(g, kv, &s))
        return slice_eq_z(s, text);
    if (kv->type != GGUF_ARR)
        return same_item(g, kv, 0, text);
    if (sscanf(text, "[%llu entries:", &n) == 1 && strstr(text, " entries:"))
        return kv->n == n;
    struct gguf_strs it;
    uint64_t i = 0;
    gguf_strs_begin(&it, g, kv);
    for (char *save = NULL, *word = strtok_r(text, "[], ", &save); word;
         word = strtok_r(NULL, "[], ", &save), i++) {
        if (kv->item == GGUF_STR ? !gguf_strs_next(&it, &s) || !slice_eq_z(s, word)
                                 : !same_item(g, kv, i, word))
            return 0;
    }
    return i == kv->n;
}

/* "NAME: TYPE 64 x 128", contiguous dimension first. */
static int same_tensor(const struct gguf_tensor *t, const char *line)
{
    char text[512];
    int n =
        snprintf(text, sizeof text, "%.*s: %s", (int)t->name.n, t->name.p, dtypes[t->type].name);
    for (int i = t->n_dims; i-- > 0;)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRId64,
                      i == t->n_dims - 1 ? " " : " x ", t->dims[i]);
    return strcmp(text, line) == 0;
}

/* Compares with the listing beside the file; 0 when there is none. */
static int check_listing(const char *path, const struct gguf *g)
{
    char name[1024], *line = NULL;
    size_t cap = 0;
    snprintf(name, sizeof name, "%.*s.txt", (int)(strlen(path) - 5), path);
    FILE *f = fopen(name, "r");
    if (!f)
        return 0;
    uint64_t n_keys = 0, n_tensors = 0;
    int section = 0;
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n')
            line[--n] = 0;
        if (n == 0 || line[0] == '#')
            continue;
        if (line[0] == '[') {
            section++;
            continue;
        }
        if (section == 2) {
            const struct gguf_tensor *t = gguf_tensor_at(g, n_tensors++);
            CHECK_MSG(t && same_tensor(t, line), "%s: tensor %s", path, line);
            continue;
        }
        char *type = strstr(line, " = "), *value = type ? strchr(type + 3, ' ') : NULL;
        const struct gguf_kv *kv = gguf_kv_at(g, n_keys++);
        if (!value || !kv) {
            CHECK_MSG(0, "%s: key %s", path, line);
            break;
        }
        *type = *value = 0;
        char type_name[32];
        snprintf(type_name, sizeof type_name, kv->type == GGUF_ARR ? "arr<%s>" : "%s",
                 gguf_type_name(kv->item));
        CHECK_MSG(slice_eq_z(kv->key, line) && strcmp(type + 3, type_name) == 0, "%s: key %s %s",
                  path, line, type + 3);
        CHECK_MSG(same_value(g, kv, value + 1), "%s: %s is not %s", path, line, value + 1);
    }
    CHECK_MSG(n_keys == gguf_n_kv(g) && n_tensors == gguf_n_tensors(g), "%s: counts", path);
    free(line);
    fclose(f);
    return 1;
}

static int n_opened, n_listed;

static void check_real_file(const char *path)
{
    struct pith_error err;
    struct gguf *g = gguf_open_listing(path, &err);
    CHECK_MSG(g, "%s", err.msg);
    if (!g)
        return;
    n_opened++;
    n_listed += check_listing(path, g);
    read_all(g);
    gguf_close(g);
    g = gguf_open(path, &err);
    CHECK_MSG(g, "%s", err.msg);
    gguf_close(g);
}

static void check_folder(const char *folder)
{
    char path[2048];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".gguf") == 0)
            check_real_file(path);
    }
    if (d)
        closedir(d);
}

static void shared_files(void)
{
    static const char *const folders[] = {"golden/arch", "golden/quant", "vectors/models",
                                          "vectors/vocab"};
    char path[1024];
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", test_shared(), folders[i]);
        check_folder(path);
    }
    if (n_opened == 0)
        SKIP("no files under %s", test_shared());
    CHECK_MSG(n_listed > 100, "%d opened, %d with a listing", n_opened, n_listed);
    check_nothing_held(test_name);
}

static void default_model(void)
{
    struct pith_error err;
    const char *path = getenv("TEST_GGUF");
    if (!path)
        SKIP("no TEST_GGUF");
    double t0 = test_cpu_seconds();
    struct gguf *g = gguf_open(path, &err);
    double t = test_cpu_seconds() - t0;
    REQUIRE(g, "%s", err.msg);
    CHECK(gguf_n_kv(g) > 10 && gguf_n_tensors(g) > 10);
    read_all(g);
    gguf_close(g);
    CHECK_MSG(t < 1, "open took %.3f s", t);
    check_nothing_held(test_name);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(every_value_type);
    TEST(numbers_as_text);
    TEST(writer_round_trip);
    TEST(writer_refuses);
    TEST(beginnings);
    TEST(big_endian_files);
    TEST(split_sets);
    TEST(overrides);
    TEST(public_files);
    TEST(shared_files);
    TEST(default_model);
    return test_end();
}
