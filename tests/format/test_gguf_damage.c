/* test_gguf_damage.c -- what the GGUF reader must refuse, in time, with a message, without a leak:
 * files damaged in every way we know, cut at every byte, mutated at random, and allocations that
 * fail. */
#include "gguf_image.h"

/* ---------------------------------------------------------------- damage */

static void damaged_headers(void)
{
    static const struct {
        const char *what;
        uint32_t version;
        uint64_t n_tensors, n_keys;
        pith_status st;
        const char *words[4];
    } rows[] = {
        {"version 1", 1, 0, 0, PITH_UNSUPPORTED, {"version 1", "wanted 2 or 3", "at byte 4"}},
        {"version 0", 0, 0, 0, PITH_UNSUPPORTED, {"version 0", "wanted 2 or 3"}},
        {"version 4", 4, 0, 0, PITH_UNSUPPORTED, {"version 4", "newer"}},
        {"version 1 swapped", 0x01000000, 0, 0, PITH_UNSUPPORTED, {"version 1", "wanted 2 or 3"}},
        {"2^60 keys", 3, 0, 1ull << 60, PITH_FORMAT, {"1152921504606846976 keys", "64 bytes"}},
        {"2^64-1 keys", 3, 0, UINT64_MAX, PITH_FORMAT, {"18446744073709551615 keys"}},
        {"2^60 tensors", 3, 1ull << 60, 0, PITH_FORMAT, {"1152921504606846976 tensors"}},
        {"2^64-1 tensors", 3, UINT64_MAX, 0, PITH_FORMAT, {"18446744073709551615 tensors"}},
        {"5 keys in 64 bytes", 3, 0, 5, PITH_FORMAT, {"5 keys"}},
        {"4 keys and a tensor in 64 bytes", 3, 1, 4, PITH_FORMAT, {"4 keys"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image im = {0};
        put_header(&im, rows[i].version, rows[i].n_tensors, rows[i].n_keys);
        put_zeros(&im, 64);
        atomic_store(&hook.asked_bytes, 0);
        check_refused(rows[i].what, &im, 0, rows[i].st, rows[i].words);
        CHECK_MSG(atomic_load(&hook.asked_bytes) < 65536, "%s asked for %" PRIu64 " bytes",
                  rows[i].what, atomic_load(&hook.asked_bytes));
        free(im.p);
    }
    /* Counts that just fit a large file are believed only as far as it bears them out. */
    struct image im = {0};
    put_header(&im, 3, 0, 1000000);
    put_zeros(&im, 16000000);
    atomic_store(&hook.asked_bytes, 0);
    check_refused("a million keys of zeros", &im, 0, PITH_FORMAT,
                  WORDS("key 0", "name of 0 bytes"));
    CHECK_MSG(atomic_load(&hook.asked_bytes) < 65536, "asked for %" PRIu64 " bytes",
              atomic_load(&hook.asked_bytes));
    free(im.p);
    check_nothing_held(test_name);
}

static void damaged_keys(void)
{
    struct image im[24] = {0}, *m = im;
    char *name = malloc(65537);
    memset(name, 'n', 65536), name[65536] = 0;

    put_header(m, 3, 0, 1), put_num(m, name, GGUF_U8, 0, 1);
    check_refused("long name", m++, 0, PITH_FORMAT, WORDS("key 0", "65536 bytes"));
    put_header(m, 3, 0, 1), put_num(m, "", GGUF_U8, 0, 1), put_zeros(m, 16);
    check_refused("empty name", m++, 0, PITH_FORMAT, WORDS("key 0", "0 bytes"));
    put_header(m, 3, 0, 1), put_num(m, "a\xc0\xaf", GGUF_U8, 0, 1);
    check_refused("overlong name", m++, 0, PITH_FORMAT, WORDS("UTF-8", "at byte 32"));
    put_header(m, 3, 0, 1), put_int(m, 3, 8), put_bytes(m, "a\0b", 3), put_zeros(m, 8);
    check_refused("NUL in a name", m++, 0, PITH_FORMAT, WORDS("NUL"));
    put_header(m, 3, 0, 1), put_int(m, 1ull << 63, 8), put_zeros(m, 32);
    check_refused("name of 2^63 bytes", m++, 0, PITH_FORMAT, WORDS("9223372036854775808"));
    put_header(m, 3, 0, 2), put_num(m, "a.b", GGUF_U8, 0, 1), put_num(m, "a.b", GGUF_U16, 0, 2);
    check_refused("second key", m++, 0, PITH_FORMAT, WORDS("key 1 'a.b'", "second", "at byte 40"));
    put_header(m, 3, 0, 1), put_num(m, "a", 13, 0, 1);
    check_refused("value type", m++, 0, PITH_FORMAT,
                  WORDS("key 0 'a'", "value type 13", "0 (u8) to 12 (f64)"));
    put_header(m, 3, 0, 1), put_array(m, "a", 99, 0);
    check_refused("item type", m++, 0, PITH_FORMAT, WORDS("item type 99"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_ARR, 1), put_int(m, GGUF_U8, 4),
        put_int(m, 0, 8);
    check_refused("nested array", m++, 0, PITH_UNSUPPORTED,
                  WORDS("'a'", "array of arrays", "nested"));
    put_header(m, 3, 0, 1), put_num(m, "a", GGUF_BOOL, 2, 1);
    check_refused("bool 2", m++, 0, PITH_FORMAT, WORDS("'a'", "bool of value 2", "at byte 37"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_BOOL, 2), put_int(m, 0x0300, 2);
    check_refused("bools 0, 3", m++, 0, PITH_FORMAT, WORDS("bool of value 3", "at byte 50"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_U64, 1ull << 63), put_zeros(m, 64);
    check_refused("array of 2^63", m++, 0, PITH_FORMAT,
                  WORDS("9223372036854775808 values of type u64"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_U8, 1ull << 63), put_zeros(m, 64);
    check_refused("bytes of 2^63", m++, 0, PITH_FORMAT,
                  WORDS("9223372036854775808 values of type u8"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_STR, 1ull << 61), put_zeros(m, 64);
    check_refused("strings of 2^61", m++, 0, PITH_FORMAT,
                  WORDS("2305843009213693952 values of type str"));
    put_header(m, 3, 0, 1), put_array(m, "a", GGUF_STR, 4), put_zeros(m, 8),
        put_int(m, UINT64_MAX, 8), put_zeros(m, 64);
    check_refused("string of 2^64-1", m++, 0, PITH_FORMAT,
                  WORDS("18446744073709551615 bytes for its string"));
    put_header(m, 3, 0, 1), put_key(m, "a", GGUF_STR), put_int(m, 9, 8),
        put_bytes(m, "12345678", 8);
    check_refused("string too long by one", m++, 0, PITH_FORMAT,
                  WORDS("9 bytes for its string", "cut short"));
    while (m-- > im)
        free(m->p);
    free(name);
    check_nothing_held(test_name);
}

static void alignments(void)
{
    static const uint64_t good[] = {8, 16, 32, 64, 4096, 65536},
                          bad[] = {0, 1, 2, 4, 7, 24, 33, 131072, 0x80000000};
    static const uint64_t dims[] = {5};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct image im = {0};
        put_header(&im, 3, 0, 1), put_num(&im, "general.alignment", GGUF_U32, bad[i], 4);
        check_refused("alignment", &im, 0, PITH_FORMAT,
                      WORDS("'general.alignment'", "power of two from 8 to 65536", "at byte 53"));
        free(im.p);
    }
    struct image text = {0};
    put_header(&text, 3, 0, 1), put_key(&text, "general.alignment", GGUF_STR),
        put_text(&text, "32");
    check_refused("alignment as text", &text, 0, PITH_FORMAT, WORDS("type str", "integer"));
    free(text.p);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct image im = {0};
        struct pith_error err;
        put_header(&im, 3, 2, 1), put_num(&im, "general.alignment", GGUF_U32, good[i], 4);
        put_info(&im, "a", 1, dims, 0, 0),
            put_info(&im, "b", 1, dims, 0, good[i] < 20 ? 32 : good[i]);
        pad_to(&im, good[i]);
        put_int(&im, 11, 1), put_zeros(&im, (good[i] < 20 ? 32 : good[i]) - 1), put_int(&im, 22, 1),
            put_zeros(&im, 19);
        struct gguf *g = gguf_open_memory(im.p, im.n, &err);
        CHECK_MSG(g, "alignment %" PRIu64 ": %s", good[i], err.msg);
        if (g) {
            CHECK(*(const uint8_t *)gguf_tensor_data(g, gguf_tensor_at(g, 0)) == 11);
            CHECK(*(const uint8_t *)gguf_tensor_data(g, gguf_tensor_at(g, 1)) == 22);
        }
        gguf_close(g);
        free(im.p);
    }
    check_nothing_held(test_name);
}

/* One tensor "t" of these dims and type at this offset, in front of 256 bytes of data. */
static void check_tensor_refused(const char *what, uint32_t n_dims, const uint64_t *dims,
                                 uint32_t type, uint64_t offset, pith_status st,
                                 const char *const words[4])
{
    struct image im = {0};
    put_header(&im, 3, 1, 0), put_info(&im, "t", n_dims, dims, type, offset);
    pad_to(&im, 32), put_zeros(&im, 256);
    check_refused(what, &im, 0, st, words);
    free(im.p);
}

#define DIMS(...) ((const uint64_t[5]){__VA_ARGS__})

static void damaged_tensors(void)
{
    static const uint64_t dims[] = {16};
    check_tensor_refused("no dims", 0, DIMS(0), 0, 0, PITH_FORMAT,
                         WORDS("tensor 0 't'", "0 dimensions", "1 to 4"));
    check_tensor_refused("five dims", 5, DIMS(1, 1, 1, 1, 1), 0, 0, PITH_FORMAT,
                         WORDS("5 dimensions"));
    check_tensor_refused("2^32-1 dims", UINT32_MAX, DIMS(1), 0, 0, PITH_FORMAT,
                         WORDS("4294967295 dimensions"));
    check_tensor_refused("zero dim", 2, DIMS(4, 0), 0, 0, PITH_FORMAT, WORDS("dimension 1 = 0"));
    check_tensor_refused("dim 2^63", 1, DIMS(1ull << 63), 0, 0, PITH_FORMAT,
                         WORDS("9223372036854775808", "2^63"));
    check_tensor_refused("product 2^64", 2, DIMS(1ull << 32, 1ull << 32), 0, 0, PITH_FORMAT,
                         WORDS("4294967296", "2^63"));
    check_tensor_refused("size 2^64", 1, DIMS(1ull << 62), 0, 0, PITH_FORMAT, WORDS("2^64 bytes"));
    check_tensor_refused("2^61 bytes", 1, DIMS(1ull << 59), 0, 0, PITH_FORMAT,
                         WORDS("2305843009213693952", "end of the file"));
    check_tensor_refused("type 999", 1, DIMS(256), 999, 0, PITH_UNSUPPORTED,
                         WORDS("type id 999", "unknown"));
    check_tensor_refused("type 4", 1, DIMS(256), 4, 0, PITH_UNSUPPORTED,
                         WORDS("type id 4", "q4_2 (retired)"));
    check_tensor_refused("type 15", 1, DIMS(256), 15, 0, PITH_UNSUPPORTED,
                         WORDS("type id 15", "q8_K"));
    check_tensor_refused("half a block", 2, DIMS(16, 2), 8, 0, PITH_FORMAT,
                         WORDS("rows of 16", "multiple of 32", "q8_0"));
    check_tensor_refused("offset 8", 1, dims, 0, 8, PITH_FORMAT, WORDS("offset 8", "alignment 32"));
    check_tensor_refused("offset at the end", 1, dims, 0, 256, PITH_FORMAT,
                         WORDS("64 bytes of data", "byte 320", "cut short"));
    check_tensor_refused("offset 2^64-32", 1, dims, 0, UINT64_MAX - 31, PITH_FORMAT,
                         WORDS("64 bytes of data"));

    struct image im[8] = {0}, *m = im;
    put_header(m, 3, 2, 0), put_info(m, "t", 1, dims, 0, 0), put_info(m, "t", 1, dims, 0, 64);
    pad_to(m, 32), put_zeros(m, 256);
    check_refused("second tensor", m++, 0, PITH_FORMAT, WORDS("tensor 1 't'", "second"));
    put_header(m, 3, 2, 0), put_info(m, "a", 1, dims, 0, 0), put_info(m, "b", 1, dims, 0, 32);
    pad_to(m, 32), put_zeros(m, 256);
    check_refused("overlap", m++, 0, PITH_FORMAT,
                  WORDS("tensor 1 'b'", "inside that of tensor 'a'"));
    put_header(m, 3, 3, 0), put_info(m, "a", 1, dims, 0, 128), put_info(m, "b", 1, dims, 0, 0),
        put_info(m, "c", 1, dims, 0, 96);
    pad_to(m, 32), put_zeros(m, 256);
    check_refused("overlap out of order", m++, 0, PITH_FORMAT,
                  WORDS("tensor 0 'a'", "inside that of tensor 'c'"));
    put_header(m, 3, 1, 0), put_info(m, "bad\n\xff", 1, dims, 0, 0), put_zeros(m, 256);
    check_refused("tensor name", m++, 0, PITH_FORMAT, WORDS("tensor 0 'bad?", "UTF-8"));
    put_header(m, 3, 1, 0), put_info(m, "t", 1, DIMS(256), 31, 0), put_zeros(m, 256);
    check_refused("retired type in a listing", m++, 1, PITH_UNSUPPORTED,
                  WORDS("type id 31", "q4_0_4_4"));
    while (m-- > im)
        free(m->p);
    check_nothing_held(test_name);
}

/* Any order and gaps are fine; many tensors, so that the sort has work. */
static void tensors_in_any_order(void)
{
    enum { N = 300 };
    static const uint64_t dims[] = {8};
    struct image im = {0};
    struct pith_error err;
    put_header(&im, 3, N, 0);
    for (uint64_t i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", (int)i);
        put_info(&im, name, 1, dims, 0, 64 * (i * 7 % N));
    }
    pad_to(&im, 32), put_zeros(&im, 64 * N);
    struct gguf *g = gguf_open_memory(im.p, im.n, &err);
    CHECK_MSG(g, "%s", err.msg);
    CHECK(g && gguf_n_tensors(g) == N &&
          gguf_tensor_at(g, 1)->offset == gguf_tensor_at(g, 0)->offset + 7 * 64);
    gguf_close(g);
    free(im.p);
    check_nothing_held(test_name);
}

static void wrong_formats(void)
{
    static const struct {
        struct slice bytes;
        const char *word;
    } rows[] = {
        {SLICE("\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}                                            "
               "         "),
         "safetensors"},
        {SLICE("PK\3\4\0\0\0\0"), "zip archive"},
        {SLICE("\x80\x02}q\0."), "pickle"},
        {SLICE("\x80\x04\x95"), "pickle"},
        {SLICE("lmgg\0\0\0\0"), "(ggml)"},
        {SLICE("fmgg\1\0\0\0"), "(ggmf)"},
        {SLICE("tjgg\3\0\0\0"), "(ggjt)"},
        {SLICE("algg\1\0\0\0"), "adapter"},
        {SLICE("FUGG\0\0\0\3"), "reversed"},
        {SLICE("<!DOCTYPE html><html>"), "web page"},
        {SLICE("\xef\xbb\xbf \r\n<HTML lang=en>"), "web page"},
        {SLICE("{\"error\": 404}"), "JSON"},
        {SLICE("version https://git-lfs.github.com/spec/v1\noid"), "Git LFS"},
        {SLICE("\x1f\x8b\x08"), "gzip"},
        {SLICE("\x28\xb5\x2f\xfd"), "zstd"},
        {SLICE("\x89HDF\r\n"), "HDF5"},
        {SLICE("\1\2\3\4\5\6\7\x08\x09"), "bytes 01 02 03 04 05 06 07 08,"},
        {SLICE("GGU"), "bytes 47 47 55,"},
        {SLICE(""), "found bytes,"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct image im = {.p = (uint8_t *)(uintptr_t)rows[i].bytes.p, .n = rows[i].bytes.n};
        check_refused(rows[i].word, &im, 0, PITH_FORMAT,
                      WORDS("found ", rows[i].word, "wanted a GGUF file", "; "));
    }
    struct pith_error err;
    CHECK(gguf_open_memory(NULL, 5, &err) == NULL && err.code == PITH_FORMAT);
    CHECK(gguf_open(tmp_path("absent.gguf"), &err) == NULL && err.code == PITH_MISSING);
    CHECK(gguf_open(tmp_dir, &err) == NULL && strstr(err.msg, "directory"));
    CHECK(gguf_open(tmp_path("absent.gguf"), NULL) == NULL);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- truncation and mutation */

static uint8_t *sample_bytes(size_t *n)
{
    struct pith_error err;
    const char *path = tmp_path("bytes.gguf");
    struct gguf *g = sample(path, &err);
    if (!g)
        return NULL;
    *n = (size_t)gguf_part(g, 0)->n;
    uint8_t *p = malloc(*n);
    memcpy(p, gguf_part(g, 0)->p, *n);
    gguf_close(g);
    unlink(path);
    return p;
}

static void truncation(void)
{
    size_t n;
    uint8_t *p = sample_bytes(&n);
    REQUIRE(p, "no sample file");
    struct pith_error err;
    struct gguf *g = gguf_open_memory(p, n, &err);
    REQUIRE(g, "%s", err.msg);
    uint64_t ends[4], head = gguf_tensor_at(g, 0)->offset;
    for (uint64_t i = 0; i < 4; i++)
        ends[i] = gguf_tensor_at(g, i)->offset + gguf_tensor_at(g, i)->bytes;
    gguf_close(g);
    for (size_t cut = 0; cut <= n; cut++) {
        int boundary = cut <= head;
        for (int i = 0; i < 4; i++)
            boundary |= cut + 1 >= ends[i] && cut <= ends[i] + 1;
        if (!boundary)
            continue;
        void *block;
        g = open_exact(p, cut, 0, &block, &err);
        CHECK_MSG((g != NULL) == (cut >= ends[3]), "cut at %zu: %s", cut, g ? "opened" : err.msg);
        if (!g) {
            CHECK_MSG(err.code == PITH_FORMAT, "cut at %zu: %s", cut, err.msg);
            CHECK_MSG(cut < 4 || strstr(err.msg, "cut short"), "cut at %zu: %s", cut, err.msg);
        }
        gguf_close(g);
        free(block);
    }
    free(p);
    check_nothing_held(test_name);
}

static void mutate(struct rng *rng, uint8_t *p, size_t n)
{
    static const uint64_t nasty[] = {
        0,          1,         2,          9,          0x7f,       0xff,       0x7fffffff,
        0xffffffff, INT64_MAX, 1ull << 63, UINT64_MAX, 1ull << 61, 1ull << 60, 0x0300000000000000};
    for (uint32_t k = 1 + rng_below(rng, 4); k-- > 0;) {
        size_t at = rng_below(rng, (uint32_t)n), width = (size_t)1 << rng_below(rng, 4);
        uint64_t v = nasty[rng_below(rng, sizeof nasty / sizeof nasty[0])];
        if (rng_below(rng, 2))
            v = (uint64_t)p[at] + (rng_below(rng, 2) ? 1 : 255), width = 1;
        for (size_t i = 0; i < width && at + i < n; i++)
            p[at + i] = (uint8_t)(v >> 8 * i);
    }
}

static void mutations(void)
{
    size_t n;
    uint8_t *p = sample_bytes(&n);
    struct rng rng;
    long opened = 0, n_rounds = 2000 * test_scale();
    double slowest = 0;
    uint64_t sum = 0;
    REQUIRE(p, "no sample file");
    rng_init(&rng, 20240601);
    for (long round = 0; round < n_rounds && !test_bad; round++) {
        struct pith_error err;
        uint8_t *q = malloc(n);
        void *block;
        memcpy(q, p, n);
        mutate(&rng, q, rng_below(&rng, 8) ? 900 : n); /* mostly the head */
        double t0 = test_cpu_seconds();
        struct gguf *g = open_exact(q, n, (int)(round & 1), &block, &err);
        double t = test_cpu_seconds() - t0;
        slowest = t > slowest ? t : slowest;
        CHECK_MSG(g || (err.code != PITH_OK && err.msg[0]), "round %ld: no message", round);
        opened += g != NULL;
        if (g)
            sum += read_all(g);
        gguf_close(g);
        free(block);
        free(q);
    }
    CHECK_MSG(opened > n_rounds / 50 && opened < n_rounds, "%ld of %ld opened, sum %" PRIu64,
              opened, n_rounds, sum);
    CHECK_MSG(slowest < 0.1, "the slowest took %.3f s", slowest);
    free(p);
    check_nothing_held(test_name);
}

/* ---------------------------------------------------------------- failing allocations */

/* Runs `work` with the n-th allocation refused, for every n, until it succeeds. work: 1 done, 0
 * failed with *err filled. */
static void check_refusals(const char *what, int (*work)(struct pith_error *err))
{
    for (long n = 0;; n++) {
        struct pith_error err;
        hook_refuse(n, 0);
        int done = work(&err);
        int all_granted = !hook_grant();
        check_nothing_held(test_name);
        CHECK_MSG(done == all_granted, "%s: allocation %ld refused: %s", what, n,
                  done ? "nobody noticed" : err.msg);
        CHECK_MSG(done || err.code == PITH_NOMEM, "%s: allocation %ld refused: %s", what, n,
                  err.msg);
        if (done || test_bad)
            return;
        REQUIRE(n < 1000, "%s never succeeds", what);
    }
}

static const void *crowd;
static size_t n_crowd;

static int open_crowd(struct pith_error *err)
{
    struct gguf *g = gguf_open_memory(crowd, n_crowd, err);
    gguf_close(g);
    return g != NULL;
}

static int open_set(struct pith_error *err)
{
    struct gguf *g = gguf_open(part_name("few", 0), err);
    gguf_close(g);
    return g != NULL;
}

static int open_public(struct pith_error *err)
{
    pith_file *f = pith_file_open(part_name("few", 0), err);
    int ok = 1;
    if (f && pith_file_value(f, 0, -1, NULL, 0) < 0)
        ok = error_set(err, PITH_NOMEM, "value") == PITH_OK;
    pith_file_close(f);
    return f && ok;
}

static int override_some(struct pith_error *err)
{
    struct gguf *g = gguf_open_memory(crowd, n_crowd, err);
    int ok = g != NULL;
    for (int i = 0; i < 20 && ok; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "key.%d=str:%d", 2 * i, i);
        ok = gguf_override(g, spec, err) == PITH_OK;
    }
    gguf_close(g);
    return ok;
}

static int write_some(struct pith_error *err)
{
    struct gguf_writer *w = gguf_writer_open(tmp_path("few.gguf"), err);
    if (!w)
        return 0;
    write_sample(w);
    return gguf_writer_close(w, err) == PITH_OK;
}

static void refused_allocations(void)
{
    static const uint64_t dims[] = {8};
    struct image im = {0};
    char name[32];
    put_header(&im, 3, 40, 30);
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        put_num(&im, name, GGUF_U32, 1, 4);
    }
    for (uint64_t i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "t%d", (int)i);
        put_info(&im, name, 1, dims, 0, 32 * (39 - i));
    }
    pad_to(&im, 32), put_zeros(&im, 32 * 40);
    crowd = im.p, n_crowd = im.n;
    check_refusals("open", open_crowd);
    check_refusals("override", override_some);
    free(im.p);
    save_set("few");
    check_refusals("split set", open_set);
    check_refusals("pith_file", open_public);
    for (int i = 0; i < N_PARTS; i++)
        unlink(part_name("few", i));
    check_refusals("writer", write_some);
    unlink(tmp_path("few.gguf"));
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(damaged_headers);
    TEST(damaged_keys);
    TEST(alignments);
    TEST(damaged_tensors);
    TEST(tensors_in_any_order);
    TEST(wrong_formats);
    TEST(truncation);
    TEST(mutations);
    TEST(refused_allocations);
    return test_end();
}
