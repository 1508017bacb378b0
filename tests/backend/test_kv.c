/* test_kv.c -- pages of the cache in every type: rows and whole pages to canonical form and back
 * without loss, what may be written and what not, and the bytes a page takes. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include "base/fmath.h"
#include "base/machine/pool.h"
#include "base/rng.h"
#include "graph/kv_page.h"
#include "graph/ops/rope.h"
#include "test.h"

enum { HEADS = 3, MAX_D = 256, PAGE = 64 * HEADS * MAX_D * 8 + 4096 };

static uint8_t page[PAGE], copy[PAGE];
static uint8_t k[PAGE], v[PAGE], k2[PAGE], v2[PAGE];

/* A layer behind `off` bytes of another; the bytes it ends at. */
static int64_t make_layer(struct state *kv, enum dtype kt, enum dtype vt, int heads, int d_k,
                          int d_v, int64_t off)
{
    *kv = (struct state){.n_head_kv = heads, .d_k = d_k, .d_v = d_v, .k_type = kt, .v_type = vt};
    kv->k_head = kv_k_bytes(kt, d_k);
    kv->v_head = kv_v_bytes(vt, d_v);
    kv->k_off = off;
    kv->v_off = off + heads * kv->k_head;
    return kv->v_off + heads * kv->v_head;
}

static void random_bytes(struct rng *r, uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_below(r, 256);
}

/* Any bytes go in and come out; nothing beside the layer is touched; the page made of them is the
 * page they were read from. */
static void pages_come_back(void)
{
    static const int dims[] = {32, 64, 96, 256, 8, 20, 41}; /* the last three: numbers only */
    struct device *d;
    struct pith_error err;
    struct rng r;
    rng_init(&r, 1);
    REQUIRE(backend_cpu.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
    for (int kt = 0; kt < KV_N_TYPES; kt++)
        for (int vt = 0; vt < KV_N_TYPES; vt++) {
            struct state kv;
            int heads = 1 + (int)rng_below(&r, HEADS);
            int d_k = dims[rng_below(&r, kv_has_blocks(kv_types[kt]) ? 4 : 7)];
            int d_v = dims[rng_below(&r, kv_has_blocks(kv_types[vt]) ? 4 : 7)];
            int64_t off = 64 * (int64_t)rng_below(&r, 4);
            int64_t end = make_layer(&kv, kv_types[kt], kv_types[vt], heads, d_k, d_v, off);
            int64_t nk = kv_canonical_k(&kv), nv = kv_canonical_v(&kv);
            const char *a = dtypes[kv.k_type].name, *b = dtypes[kv.v_type].name;
            CHECK(nk == heads * kv.k_head && nv <= heads * kv.v_head);
            random_bytes(&r, k, nk);
            random_bytes(&r, v, nv);
            memset(page, 0x5a, sizeof page);
            memset(page + off, 0, (size_t)(end - off));
            struct buffer of_page = {.device = d, .handle = page, .bytes = sizeof page};
            struct buffer of_copy = {.device = d, .handle = copy, .bytes = sizeof copy};
            struct place at = {&of_page, 0};
            CHECK(backend_cpu.page_write(at, &kv, 0, 64, k, v, &err) == PITH_OK);
            memset(k2, 0x33, sizeof k2), memset(v2, 0x33, sizeof v2);
            CHECK(backend_cpu.page_read(at, &kv, 0, 64, k2, v2, &err) == PITH_OK);
            CHECK_MSG(!memcmp(k, k2, (size_t)nk) && !memcmp(v, v2, (size_t)nv),
                      "K %s [%d], V %s [%d]: not what was written", a, d_k, b, d_v);
            CHECK(k2[nk] == 0x33 && v2[nv] == 0x33);
            memset(copy, 0x5a, sizeof copy);
            memset(copy + off, 0, (size_t)(end - off));
            at.buffer = &of_copy;
            CHECK(backend_cpu.page_write(at, &kv, 0, 64, k2, v2, &err) == PITH_OK);
            CHECK_MSG(!memcmp(page, copy, sizeof page), "K %s, V %s: not the same page", a, b);
            for (int64_t i = 0; i < PAGE; i++)
                if ((i < off || i >= end) && page[i] != 0x5a) {
                    CHECK_MSG(0, "K %s, V %s: byte %lld of [%lld, %lld) was written", a, b,
                              (long long)i, (long long)off, (long long)end);
                    break;
                }
        }
    backend_cpu.close(d);
}

/* A row goes where the canonical form has it, and no other row changes. */
static void rows_are_where_they_belong(void)
{
    struct rng r;
    rng_init(&r, 2);
    for (int t = 0; t < KV_N_TYPES; t++) {
        struct state kv;
        make_layer(&kv, kv_types[t], kv_types[t], HEADS, 64, 32, 0);
        int64_t k_row = kv_canonical_k(&kv) / (64 * HEADS),
                v_row = kv_canonical_v(&kv) / (64 * HEADS);
        memset(page, 0, sizeof page);
        random_bytes(&r, k, kv_canonical_k(&kv));
        random_bytes(&r, v, kv_canonical_v(&kv));
        kv_put_page(&kv, page, 0, 64, k, v);
        for (int i = 0; i < 20; i++) {
            int slot = (int)rng_below(&r, 64), head = (int)rng_below(&r, HEADS),
                at = slot * HEADS + head;
            random_bytes(&r, k + at * k_row, k_row);
            kv_put_k(&kv, page, head, slot, k + at * k_row);
            random_bytes(&r, v + at * v_row, v_row);
            kv_put_v(&kv, page, head, slot, v + at * v_row);
        }
        kv_get_page(&kv, page, 0, 64, k2, v2);
        CHECK_MSG(!memcmp(k, k2, (size_t)kv_canonical_k(&kv)) &&
                      !memcmp(v, v2, (size_t)kv_canonical_v(&kv)),
                  "%s", dtypes[kv_types[t]].name);
    }
}

/* Bytes of a slot are those of the type. */
static void a_page_takes_its_bytes(void)
{
    static const int bytes[KV_N_TYPES] = {128, 64, 64, 34, 24, 22, 20, 18, 18}; /* of 32 elements */
    for (int t = 0; t < KV_N_TYPES; t++) {
        CHECK(kv_k_bytes(kv_types[t], 128) == 64 * 4 * bytes[t]);
        CHECK(kv_v_bytes(kv_types[t], 128) == 64 * 4 * bytes[t]);
        CHECK(kv_type_known(kv_types[t]));
    }
    CHECK(kv_v_bytes(DT_F16, 41) == 64 * 48 * 2 && kv_k_bytes(DT_F16, 41) == 64 * 41 * 2);
    CHECK(!kv_type_known(DT_Q4_K) && !kv_type_known(DT_MXFP4) && !kv_type_known(DT_I8));
}

/* ---------------------------------------------------------------- slots gathered into a page, K
 * rotated */

enum { GATHER_D = 64, N_ROT = 48 };

static double freq[N_ROT / 2];
static uint8_t axis[N_ROT / 2];

/* The sums of numbers with the signs of the Hadamard matrix, each step of pairs rounded. */
static void mixed(float *x, int n, int b)
{
    for (int at = 0; at < n; at += b) {
        for (int h = 1; h < b; h *= 2)
            for (int i = 0; i < b; i++)
                if (!(i & h)) {
                    float p = x[at + i], q = x[at + i + h];
                    x[at + i] = p + q;
                    x[at + i + h] = p - q;
                }
        for (int i = 0; i < b; i++)
            x[at + i] *= 1 / sqrtf((float)b);
    }
}

/* What becomes of a row of K: to numbers, out of the Hadamard matrix, turned by delta positions,
 * into it again, rounded again. */
static void turned(const struct state *kv, const int32_t delta[4], uint8_t *row)
{
    float x[GATHER_D];
    int half = N_ROT / 2;
    if (!delta[0] && !delta[1] && !delta[2] && !delta[3])
        return;
    dtypes[kv->k_type].dequant(row, x, kv->d_k);
    if (kv->turn_k)
        mixed(x, kv->d_k, kv->turn_k);
    for (int i = 0; i < half; i++) {
        int a = kv->rope->neox ? i : 2 * i, b = kv->rope->neox ? i + half : 2 * i + 1;
        double sn, cs;
        fmath_sincos(delta[kv->rope->axis ? kv->rope->axis[i] : 0] * freq[i], &sn, &cs);
        float x0 = x[a], x1 = x[b], c = (float)cs, s = (float)sn;
        x[a] = fmaf(-x1, s, x0 * c);
        x[b] = fmaf(x1, c, x0 * s);
    }
    if (kv->turn_k)
        mixed(x, kv->d_k, kv->turn_k);
    dtypes[kv->k_type].quant(x, row, kv->d_k);
}

/* Pages 0 and 1 of random numbers; page 2 becomes a mixture of both. */
static void random_pages(const struct state *kv, struct rng *r, int64_t page_bytes)
{
    memset(page, 0, sizeof page);
    for (int i = 0; i < 2 * 64 * kv->n_head_kv; i++) {
        float x[GATHER_D];
        uint8_t row[GATHER_D * 4], *to = page + i % 2 * page_bytes;
        for (int d = 0; d < GATHER_D; d++)
            x[d] = rng_normal(r);
        dtypes[kv->k_type].quant(x, row, kv->d_k);
        kv_put_k(kv, to, i / 2 % kv->n_head_kv, i / 2 / kv->n_head_kv, row);
        dtypes[kv->v_type].quant(x, row, kv->d_v);
        kv_put_v(kv, to, i / 2 % kv->n_head_kv, i / 2 / kv->n_head_kv, row);
    }
}

static void check_gathered(const struct state *kv, const struct cache_op *m, int64_t page_bytes,
                           const char *level)
{
    for (int i = 0; i < 64 * kv->n_head_kv; i++) {
        int slot = i / kv->n_head_kv, head = i % kv->n_head_kv;
        uint8_t want[GATHER_D * 4] = {0}, got[GATHER_D * 4] = {0};
        int moved = slot < m->n && m->from[slot].page >= 0;
        const uint8_t *from = page + (moved ? m->from[slot].page : 0) * page_bytes,
                      *to = page + 2 * page_bytes;
        if (moved) {
            kv_get_k(kv, from, head, m->from[slot].slot, want);
            turned(kv, m->from[slot].delta, want);
        }
        kv_get_k(kv, to, head, slot, got);
        int same = !memcmp(want, got, sizeof want);
        memset(want, 0, sizeof want);
        if (moved)
            kv_get_v(kv, from, head, m->from[slot].slot, want);
        kv_get_v(kv, to, head, slot, got);
        CHECK_MSG(same && !memcmp(want, got, dtype_row_bytes(kv->v_type, kv->d_v)),
                  "%s, %s at level %s: head %d of slot %d", dtypes[kv->k_type].name,
                  kv->rope->neox ? "neox" : "norm", level, head, slot);
    }
}

/* Every type, both ways of pairing, at every level: deltas of both signs and none, slots from
 * nowhere. */
static void slots_are_gathered_and_turned(void)
{
    static const char *const levels[] = {"ref", "base", "avx2", "avx512", "neon"};
    struct rng r;
    struct pith_error err;
    struct pool *pool;
    rng_init(&r, 3);
    REQUIRE((pool = pool_new(2, &err)) != NULL, "%s", err.msg);
    for (int i = 0; i < N_ROT / 2; i++)
        freq[i] = 1.0 / (1 + i * i);
    rope_axis_sections(axis, N_ROT / 2, (const int32_t[]){5, 4, 3, 2});
    for (int t = 0; t < KV_N_TYPES * 2; t++) {
        static const int turns[] = {64, 32, 0};
        struct rope_set rope = {.n_rot = N_ROT,
                                .neox = t & 1,
                                .freq = freq,
                                .mscale = 1.3f,
                                .axis = t % 3 ? axis : NULL};
        struct state kv;
        struct plan plan = {0};
        struct cache_log log = {0};
        int64_t bytes =
            make_layer(&kv, kv_types[t / 2], kv_types[t / 2], HEADS, GATHER_D, GATHER_D, 0);
        struct buffer whole = {.handle = page, .bytes = sizeof page};
        struct slabs pages = {.unit = (uint64_t)bytes, .n = 1, .shift = 20, .slab = &whole};
        struct job_params jp = {
            .plan = &plan, .cache[0] = &pages, .states = &kv, .n_states = 1, .pool = pool};
        REQUIRE(cache_log_room(&log, 1, 50), "no memory");
        struct cache_op *op = cache_log_add(&log, CACHE_GATHER, 0, 2, 0, 50);
        kv.rope = &rope;
        kv.turn_k = kv_has_blocks(kv.k_type) ? turns[t % 3] : 0;
        random_pages(&kv, &r, bytes);
        for (int i = 0; i < op->n; i++) {
            op->from[i].page = (int32_t)rng_below(&r, 8) ? (int32_t)rng_below(&r, 2) : -1;
            op->from[i].slot = (int32_t)rng_below(&r, 64);
            for (int a = 0; a < 1 + STEP_AXES; a++)
                op->from[i].delta[a] =
                    (int32_t)rng_below(&r, 3) * ((int32_t)rng_below(&r, 2001) - 1000);
        }
        for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
            struct device *d;
            setenv("PITH_CPU", levels[l], 1);
            pith_status st = backend_cpu.open(0, 0, &d, &err);
            unsetenv("PITH_CPU");
            if (st != PITH_OK)
                continue; /* another machine's */
            struct job *job;
            uint32_t done = 0;
            whole.device = d;
            jp.act = &whole;
            REQUIRE(backend_cpu.prepare(d, &jp, &job, &err) == PITH_OK, "%s", err.msg);
            memset(page + 2 * bytes, 0, (size_t)bytes);
            CHECK(backend_cpu.cache_ops(job, &log, &done, &err) == PITH_OK && done == log.n);
            check_gathered(&kv, op, bytes, levels[l]);
            backend_cpu.finish(job);
            backend_cpu.close(d);
        }
        cache_log_deinit(&log);
    }
    pool_free(pool);
}

/* What is turned, and how many numbers together. */
static void blocks_are_turned(void)
{
    static const struct {
        enum state_rows rows;
        enum dtype k_type, v_type;
        int d_k, d_v, turn_k, turn_v;
    } cases[] = {
        {STATE_KV, DT_Q8_0, DT_Q4_0, 64, 128, 32, 32},
        {STATE_KV, DT_Q5_0, DT_F16, 96, 64, 32, 0},
        {STATE_KV, DT_BF16, DT_IQ4_NL, 192, 512, 0, 32},
        {STATE_KV, DT_F32, DT_F16, 64, 64, 0, 0},
        {STATE_CROSS, DT_Q5_1, DT_Q4_1, 64, 64, 32, 32},
        {STATE_LATENT, DT_Q8_0, DT_Q8_0, 576, 512, 0, 0},
        {STATE_INDEX, DT_Q8_0, DT_Q8_0, 128, 0, 0, 0},
        {STATE_RECURRENT, DT_Q8_0, DT_Q8_0, 64, 64, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct state s = {.rows = cases[i].rows,
                          .k_type = cases[i].k_type,
                          .v_type = cases[i].v_type,
                          .n_head_kv = 2,
                          .d_k = cases[i].d_k,
                          .d_v = cases[i].d_v,
                          .turn_k = -1,
                          .turn_v = -1};
        kv_choose_turn(&s);
        CHECK_MSG(s.turn_k == cases[i].turn_k && s.turn_v == cases[i].turn_v, "case %d: %d, %d",
                  (int)i, s.turn_k, s.turn_v);
    }
}

int main(void)
{
    TEST(blocks_are_turned);
    TEST(slots_are_gathered_and_turned);
    TEST(pages_come_back);
    TEST(rows_are_where_they_belong);
    TEST(a_page_takes_its_bytes);
    return test_end();
}
