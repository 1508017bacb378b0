/* gguf_image.h -- what the tests of the format room share: GGUF files made byte by byte, sample
 * files. */
#ifndef PITH_TESTS_GGUF_IMAGE_H
#define PITH_TESTS_GGUF_IMAGE_H

#include <math.h>

#include "base/rng.h"
#include "base/str.h"
#include "format/gguf.h"
#include "hook.h"

/* ---------------------------------------------------------------- files made by hand */

struct image {
    uint8_t *p;
    size_t n, cap;
    int big_endian;
};

static void put_bytes(struct image *im, const void *p, size_t n)
{
    if (im->n + n > im->cap) {
        im->cap = 2 * (im->n + n);
        im->p = realloc(im->p, im->cap);
    }
    if (n)
        memcpy(im->p + im->n, p, n);
    im->n += n;
}

static void put_int(struct image *im, uint64_t v, size_t bytes)
{
    uint8_t out[8];
    for (size_t i = 0; i < bytes; i++)
        out[im->big_endian ? bytes - 1 - i : i] = (uint8_t)(v >> 8 * i);
    put_bytes(im, out, bytes);
}

static void put_f32(struct image *im, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put_int(im, bits, 4);
}

static void put_f64(struct image *im, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    put_int(im, bits, 8);
}

static void put_text(struct image *im, const char *z)
{
    put_int(im, strlen(z), 8);
    put_bytes(im, z, strlen(z));
}

static void put_header(struct image *im, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    put_bytes(im, "GGUF", 4);
    put_int(im, version, 4);
    put_int(im, n_tensors, 8);
    put_int(im, n_keys, 8);
}

static void put_key(struct image *im, const char *key, uint32_t type)
{
    put_text(im, key);
    put_int(im, type, 4);
}

/* A key of a type with fixed size; bits go out in `bytes` bytes. */
static void put_num(struct image *im, const char *key, uint32_t type, uint64_t bits, size_t bytes)
{
    put_key(im, key, type);
    put_int(im, bits, bytes);
}

static void put_array(struct image *im, const char *key, uint32_t item, uint64_t n)
{
    put_key(im, key, GGUF_ARR);
    put_int(im, item, 4);
    put_int(im, n, 8);
}

static void put_info(struct image *im, const char *name, uint32_t n_dims, const uint64_t *dims,
                     uint32_t type, uint64_t offset)
{
    put_text(im, name);
    put_int(im, n_dims, 4);
    for (uint32_t i = 0; i < n_dims && i < 5; i++)
        put_int(im, dims[i], 8);
    put_int(im, type, 4);
    put_int(im, offset, 8);
}

static void pad_to(struct image *im, size_t alignment)
{
    while (im->n % alignment)
        put_int(im, 0, 1);
}

static void put_zeros(struct image *im, size_t n)
{
    while (n--)
        put_int(im, 0, 1);
}

/* Opens the bytes from a block of exactly their size, so that address checkers see every overrun.
 * */
static struct gguf *open_exact(const void *p, size_t n, int listing, void **block,
                               struct pith_error *err)
{
    *block = malloc(n ? n : 1);
    if (n)
        memcpy(*block, p, n);
    return listing ? gguf_open_listing_memory(*block, n, err) : gguf_open_memory(*block, n, err);
}

/* Reads everything an open file offers; the sum keeps the compiler honest. */
static uint64_t read_all(const struct gguf *g)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        struct gguf_strs it;
        struct slice s;
        struct str text;
        str_init(&text, PITH_MEM_META);
        gguf_value_text(g, kv, 8, &text);
        sum += text.n;
        str_deinit(&text);
        for (uint64_t j = 0; j < kv->n && j < 64; j++) {
            uint64_t u = 0;
            int64_t v = 0;
            double f = 0;
            int b = 0;
            sum += (uint64_t)(gguf_u64(g, kv, j, &u) + gguf_i64(g, kv, j, &v) +
                              gguf_f64(g, kv, j, &f) + gguf_bool(g, kv, j, &b));
        }
        for (gguf_strs_begin(&it, g, kv); gguf_strs_next(&it, &s);)
            sum += s.n ? (uint8_t)s.p[s.n - 1] : 0;
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = gguf_tensor_data(g, t);
        sum += (uint64_t)p[0] + p[t->bytes - 1];
    }
    return sum;
}

/* ---------------------------------------------------------------- temporary files */

static void save(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n)
        CHECK_MSG(0, "cannot write %s", path);
    if (f)
        fclose(f);
}

/* ---------------------------------------------------------------- sample files */

static const int64_t dims_a[] = {3, 64}, dims_b[] = {7}, dims_c[] = {2, 3, 4, 5},
                     dims_d[] = {1, 1, 33};

/* A small model file with keys of every kind the writer has and four tensors. seed: of the data. */
static void write_sample(struct gguf_writer *w)
{
    static const int32_t numbers[] = {-1, 0, 1};
    static const float scores[] = {0.5f, -0.25f};
    static const uint8_t flags[] = {0, 1, 7};
    static const struct slice words[] = {{"one", 3}, {"", 0}, {"tw\0o", 4}};
    uint8_t data[1024];
    gguf_writer_str(w, "general.architecture", slice_of("test"));
    gguf_writer_u32(w, "a.u32", 4000000000u);
    gguf_writer_u64(w, "a.u64", UINT64_MAX);
    gguf_writer_i32(w, "a.i32", -5);
    gguf_writer_f32(w, "a.f32", 1.5f);
    gguf_writer_bool(w, "a.bool", 7);
    gguf_writer_array(w, "arr.i32", GGUF_I32, numbers, 3);
    gguf_writer_array(w, "arr.f32", GGUF_F32, scores, 2);
    gguf_writer_array(w, "arr.bool", GGUF_BOOL, flags, 3);
    gguf_writer_array(w, "arr.none", GGUF_U16, NULL, 0);
    gguf_writer_strs(w, "arr.str", words, 3);
    gguf_writer_tensor(w, "a.weight", DT_Q8_0, 2, dims_a);
    gguf_writer_tensor(w, "b.weight", DT_F32, 1, dims_b);
    gguf_writer_tensor(w, "c.weight", DT_F16, 4, dims_c);
    gguf_writer_tensor(w, "d.weight", DT_I32, 3, dims_d);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    size_t total = 6 * 34 + 7 * 4 + 120 * 2 + 33 * 4;
    for (size_t at = 0, step = 1; at < total;
         at += step, step = step * 2 < total - at ? step * 2 : total - at)
        gguf_writer_data(w, data + at, step < total - at ? step : total - at);
}

static struct gguf *sample(const char *path, struct pith_error *err)
{
    struct gguf_writer *w = gguf_writer_open(path, err);
    if (!w)
        return NULL;
    write_sample(w);
    return gguf_writer_close(w, err) == PITH_OK ? gguf_open(path, err) : NULL;
}

enum { N_PARTS = 3 };

/* Writes part i of a set: two tensors each. count, no, total: as written into the keys; -1 leaves
 * the key out. */
static void save_part(const char *stem, int i, int no, int count, int total,
                      const char *first_tensor)
{
    static const uint64_t dims[] = {32};
    struct image im = {0};
    char path[512], name[32];
    put_header(&im, 3, 2, (i == 0) + (no >= 0) + (count >= 0) + (total >= 0));
    if (i == 0)
        put_key(&im, "general.architecture", GGUF_STR), put_text(&im, "test");
    if (no >= 0)
        put_num(&im, "split.no", GGUF_U16, (uint64_t)no, 2);
    if (count >= 0)
        put_num(&im, "split.count", GGUF_U16, (uint64_t)count, 2);
    if (total >= 0)
        put_num(&im, "split.tensors.count", GGUF_I32, (uint64_t)total, 4);
    put_info(&im, first_tensor, 1, dims, 0, 0);
    snprintf(name, sizeof name, "blk.%d.b", i);
    put_info(&im, name, 1, dims, 0, 128);
    pad_to(&im, 32);
    for (int j = 0; j < 64; j++)
        put_f32(&im, (float)(100 * i + j));
    snprintf(path, sizeof path, "%s/%s-%05d-of-%05d.gguf", tmp_dir, stem, i + 1, N_PARTS);
    save(path, im.p, im.n);
    free(im.p);
}

static void save_set(const char *stem)
{
    char name[32];
    for (int i = 0; i < N_PARTS; i++) {
        snprintf(name, sizeof name, "blk.%d.a", i);
        save_part(stem, i, i, N_PARTS, 2 * N_PARTS, name);
    }
}

static const char *part_name(const char *stem, int i)
{
    static char name[4][64];
    static int turn;
    char *p = name[turn++ & 3];
    snprintf(p, sizeof name[0], "%s-%05d-of-%05d.gguf", stem, i + 1, N_PARTS);
    return tmp_path(p);
}

/* ---------------------------------------------------------------- refusals */

/* The bytes fail to open with this status and a message that holds all the words. */
static void check_refused(const char *what, const struct image *im, int listing, pith_status st,
                          const char *const words[4])
{
    struct pith_error err;
    void *block;
    double t0 = test_cpu_seconds();
    struct gguf *g = open_exact(im->p, im->n, listing, &block, &err);
    double t = test_cpu_seconds() - t0;
    CHECK_MSG(!g, "%s: was opened", what);
    if (!g) {
        CHECK_MSG(err.code == st, "%s: status %d: %s", what, err.code, err.msg);
        for (int i = 0; i < 4 && words[i]; i++)
            CHECK_MSG(strstr(err.msg, words[i]), "%s: no '%s' in: %s", what, words[i], err.msg);
        CHECK_MSG(strstr(err.msg, "at byte ") && strstr(err.msg, "wanted "), "%s: %s", what,
                  err.msg);
        CHECK_MSG(t < 2, "%s took %.3f s", what,
                  t); /* a guard against quadratic work, not a figure */
    }
    gguf_close(g);
    free(block);
}

#define WORDS(...) ((const char *const[4]){__VA_ARGS__})

#endif
