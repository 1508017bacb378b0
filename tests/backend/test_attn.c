/* test_attn.c -- the attention kernels at every level of this machine: against vec_ref.h by memcmp,
 * tiles of rows against one row at a time, poisoned slots, span partials against a direct softmax
 * in double. */
#include "vec_ref.h"

#include <sys/mman.h>
#include <unistd.h>
#include "base/rng.h"
#include "graph/kv_page.h"
#include "test.h"

enum {
    MAX_ROWS = 70,
    MAX_G = 70,
    MAX_OUT = 1 << 19,
    MAX_PAGES = 40,
    POOL = 44,
    CACHE_BYTES = 1 << 24,
    MAX_Q = 1 << 19
};

static const struct kern *levels[CPU_N_LEVELS];
static int n_levels;

static uint8_t cache[CACHE_BYTES] __attribute__((aligned(64)));
static float q[MAX_Q];
static uint8_t scratch[1 << 22] __attribute__((aligned(64)));
static float out_m[MAX_ROWS * MAX_G], out_l[MAX_ROWS * MAX_G], out_o[MAX_OUT];
static float ref_m[MAX_ROWS * MAX_G], ref_l[MAX_ROWS * MAX_G], ref_o[MAX_OUT];
static int32_t lo[MAX_ROWS], hi[MAX_ROWS], pages[MAX_PAGES];

/* The job's K and V as the graph describes them: one layer of one kv head. */
static struct state layer_of(const struct attn_job *j)
{
    return (struct state){.n_head_kv = 1,
                          .d_k = j->d_k,
                          .d_v = j->d_v,
                          .k_type = j->k_type,
                          .v_type = j->v_type,
                          .k_off = j->k_off,
                          .v_off = j->v_off,
                          .k_head = j->k_bytes,
                          .v_head = j->v_bytes};
}

/* Numbers, or bytes 0xff (as a scale or a number: NaN), as K or V of a slot. */
static void put_row(const struct attn_job *j, int is_v, int slot, const float *x)
{
    int place = j->pages[slot / 64];
    uint8_t row[4096], *page = cache + place / 4 * j->page_bytes;
    struct state kv = layer_of(j);
    if (j->latent) {
        int64_t bytes = j->k_bytes / 64;
        uint8_t *to = page + j->k_off + (place % 4 * 16 + slot % 64) * bytes;
        memset(to, 0xff, (size_t)bytes); /* behind the row: NaN, which nobody looks at */
        if (x)
            dtypes[j->k_type].quant(x, to, j->d_k);
        return;
    }
    if (x)
        dtypes[is_v ? j->v_type : j->k_type].quant(x, row, is_v ? j->d_v : j->d_k);
    else
        memset(row, 0xff, sizeof row);
    (is_v ? kv_put_v : kv_put_k)(&kv, page, 0, (place % 4 * 16 + slot) % 64,
                                 row); /* behind a quarter come the others */
}

/* A random row with x[i] = f; i < 0: without. */
static void put_random(const struct attn_job *j, int is_v, int slot, struct rng *r, float size,
                       int i, float f)
{
    float x[1024];
    for (int d = 0; d < (is_v && !j->latent ? j->d_v : j->d_k); d++)
        x[d] = size * rng_normal(r);
    if (i >= 0)
        x[i] = f;
    put_row(j, is_v, slot, x);
}

static void put_slot(const struct attn_job *j, int slot, struct rng *r, float size, int poison)
{
    if (poison) {
        put_row(j, 0, slot, NULL);
        put_row(j, 1, slot, NULL);
        return;
    }
    put_random(j, 0, slot, r, size, -1, 0);
    put_random(j, 1, slot, r, 1, -1, 0);
}

/* Fills j and the cache behind it: a permuted page table, its last slots in a quarter of a page
 * when they can be, this head behind another one's bytes; slots [from, to) hold numbers, the rest
 * NaN. The caller has set the shapes, types and rows. */
static void make_cache(struct attn_job *j, struct rng *r, int from, int to, float size)
{
    j->k_bytes = kv_k_bytes(j->k_type, j->d_k);
    j->v_bytes = kv_v_bytes(j->v_type, j->d_v);
    j->k_off = 64 * (int64_t)rng_below(r, 3);
    j->v_off = j->k_off + j->k_bytes + 64 * (int64_t)rng_below(r, 3);
    if (j->latent) {
        j->k_bytes = j->v_bytes = kv_v_bytes(j->k_type, j->d_k); /* rows, as V has them */
        j->v_off = j->k_off;
    }
    j->page_bytes = j->v_off + j->v_bytes + 64 * (int64_t)rng_below(r, 3);
    j->scratch = scratch;
    memset(cache, 0, sizeof cache); /* the padding of V */
    int pool = (int)(CACHE_BYTES / j->page_bytes), n = (to + 63) / 64;
    pool = pool < POOL ? pool : POOL;
    for (int i = 0; i < n; i++)
        for (int ok = 0; !ok;) {
            pages[i] = (int32_t)rng_below(r, (uint32_t)pool);
            ok = 1;
            for (int k = 0; k < i; k++)
                ok &= pages[k] != pages[i];
        }
    for (int i = 0; i < n; i++)
        pages[i] = 4 * pages[i] + (i == n - 1 && to - 64 * i <= 16 ? (int)rng_below(r, 4) : 0);
    j->base = cache;
    j->pages = pages;
    for (int s = from / 64 * 64; s < n * 64; s++)
        put_slot(j, s, r, size, s < from || s >= to);
}

static void set_outputs(struct attn_job *j, float *m, float *l, float *o)
{
    j->m = m;
    j->l = l;
    j->o = o;
}

static void check_same(const struct attn_job *j, const char *what)
{
    int64_t n = (int64_t)j->n_rows * j->g, dv = (j->d_v + 15) / 16 * 16, i;
    i = differ(out_m, ref_m, n);
    CHECK_MSG(i < 0, "%s: m[%d] is %a, not %a", what, (int)i, (double)out_m[i < 0 ? 0 : i],
              (double)ref_m[i < 0 ? 0 : i]);
    i = differ(out_l, ref_l, n);
    CHECK_MSG(i < 0, "%s: l[%d] is %a, not %a", what, (int)i, (double)out_l[i < 0 ? 0 : i],
              (double)ref_l[i < 0 ? 0 : i]);
    i = differ(out_o, ref_o, n * dv);
    CHECK_MSG(i < 0, "%s: o[%d] is %a, not %a (g %d d_k %d d_v %d rows %d slots %d..%d)", what,
              (int)i, (double)out_o[i < 0 ? 0 : i], (double)ref_o[i < 0 ? 0 : i], j->g, j->d_k,
              j->d_v, j->n_rows, j->slot0, j->slot1);
}

/* The job at every level, with lines asked for into either cache, against the reference, which was
 * computed into ref_*. */
static void check_levels(struct attn_job *j, const char *what)
{
    for (int way = 0; way < 2 * n_levels; way++) {
        const int l = way / 2;
        struct kern k = *levels[l];
        char name[64];
        int64_t n = (int64_t)j->n_rows * j->g;
        snprintf(name, sizeof name, "%s %s", levels[l]->name, what);
        memset(out_m, 0x55, sizeof *out_m * (size_t)n);
        memset(out_l, 0x55, sizeof *out_l * (size_t)n);
        memset(out_o, 0x55, sizeof out_o);
        set_outputs(j, out_m, out_l, out_o);
        k.ahead_second = way % 2;
        k.attn(&k, j);
        check_same(j, name);
        for (int i = 0; i < 64; i++)
            CHECK(bits_of(out_o[n * ((j->d_v + 15) / 16 * 16) + i]) == 0x55555555u);
    }
}

/* A job of random shape whose reference costs at most about `ops` multiplications. */
static void random_job(struct attn_job *j, struct rng *r, double ops)
{
    static const int dims[] = {8, 16, 40, 64, 80, 96, 128, 192, 256, 512},
                     groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 64};
    memset(j, 0, sizeof *j);
    j->d_k = dims[rng_below(r, 10)];
    j->d_v = rng_below(r, 3) ? j->d_k : dims[rng_below(r, 10)];
    j->g = rng_below(r, 3) ? 1 << rng_below(r, 4) : groups[rng_below(r, 14)];
    j->n_rows = rng_below(r, 2) ? 1 : 1 + (int)rng_below(r, MAX_ROWS);
    j->k_type = kv_types[rng_below(r, j->d_k % 32 ? 3 : KV_N_TYPES)];
    j->v_type = kv_types[rng_below(r, j->d_v % 32 ? 3 : KV_N_TYPES)];
    j->cap = rng_below(r, 4) ? 0 : 20;
    int most = (int)(ops / ((double)j->n_rows * j->g * (j->d_k + j->d_v)));
    most = most < 100 ? 100 : most > 1024 ? 1024 : most;
    j->slot0 = (int)rng_below(r, 2) * (int)rng_below(r, 8) * 64;
    int span_end = (j->slot0 / KERN_SPAN + 1) * KERN_SPAN;
    j->slot1 = j->slot0 + 1 + (int)rng_below(r, (uint32_t)most);
    j->slot1 = j->slot1 < span_end ? j->slot1 : span_end;
    j->q_ld = (int64_t)j->g * j->d_k + rng_below(r, 2) * 24;
    while ((int64_t)j->n_rows * j->q_ld > MAX_Q ||
           (int64_t)j->n_rows * j->g * ((j->d_v + 15) / 16 * 16) + 64 > MAX_OUT ||
           (double)j->n_rows * j->g * (j->d_k + j->d_v) * (j->slot1 - j->slot0) > 2 * ops)
        j->n_rows > 1 ? j->n_rows-- : (j->g = j->g / 2);
    j->q = q;
    j->lo = lo;
    j->hi = hi;
}

enum { CAUSAL, WINDOW, ANYTHING, RANGES };

static void random_rows(struct attn_job *j, struct rng *r)
{
    int mode = (int)rng_below(r, RANGES), len = j->slot1 - j->slot0;
    int first = j->slot1 - (int)rng_below(r, (uint32_t)(len < 2 * j->n_rows ? len : 2 * j->n_rows)),
        window = 1 + (int)rng_below(r, 200);
    for (int i = 0; i < j->n_rows; i++) {
        hi[i] = mode == ANYTHING ? j->slot0 + (int)rng_below(r, (uint32_t)len + 70) : first + i;
        lo[i] = mode == CAUSAL   ? 0
                : mode == WINDOW ? (hi[i] > window ? hi[i] - window : 0)
                                 : (int)rng_below(r, (uint32_t)j->slot1 + 10);
        if (mode == ANYTHING && i && rng_below(r, 2)) {
            hi[i] = hi[i - 1];
            lo[i] = lo[i - 1];
        }
    }
}

static void random_queries(struct attn_job *j, struct rng *r)
{
    static const float sizes[] = {0.1f, 0.3f, 1, 4, 1e-20f};
    float size = sizes[rng_below(r, 5)];
    for (int64_t i = 0; i < (int64_t)j->n_rows * j->q_ld; i++)
        q[i] = size * rng_normal(r);
}

/* The union of what the rows see. */
static void seen(const struct attn_job *j, int *from, int *to)
{
    *from = j->slot1;
    *to = j->slot0;
    for (int i = 0; i < j->n_rows; i++) {
        int a = lo[i] > j->slot0 ? lo[i] : j->slot0, b = hi[i] < j->slot1 ? hi[i] : j->slot1;
        if (a < b) {
            *from = a < *from ? a : *from;
            *to = b > *to ? b : *to;
        }
    }
}

static void levels_equal_the_reference(void)
{
    struct rng r;
    rng_init(&r, 1);
    for (long round = 0; round < 40 * test_scale(); round++) {
        struct attn_job j;
        int from, to;
        random_job(&j, &r, 2e6);
        random_rows(&j, &r);
        random_queries(&j, &r);
        seen(&j, &from, &to);
        make_cache(&j, &r, j.slot0, j.slot1, 1);
        for (int s = j.slot0; s < j.slot1; s++)
            if (s < from || s >= to)
                put_slot(&j, s, &r, 1, 1);
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, "attn");
    }
}

/* ---- what distances add */

static float slopes[MAX_G], table[MAX_G * KERN_TABLE];
static int32_t at[MAX_ROWS];

/* Slopes or a table for a job, and rows that stand where they see to, or anywhere. */
static void random_distances(struct attn_job *j, struct rng *r, int tables)
{
    int anywhere = rng_below(r, 2) == 0;
    for (int i = 0; i < j->n_rows; i++)
        at[i] = anywhere ? (int)rng_below(r, 4000) : hi[i] - 1;
    for (int i = 0; i < j->g; i++)
        slopes[i] = rng_normal(r) * 0.1f;
    for (int i = 0; i < j->g * KERN_TABLE; i++)
        table[i] = rng_normal(r);
    for (int h = 0; h < j->g; h++) /* all that is far is equally far */
        for (int i = 0; i < KERN_TABLE; i++) {
            float *t = table + h * KERN_TABLE;
            if (i < KERN_NEAR - KERN_FAR)
                t[i] = t[KERN_NEAR - KERN_FAR];
            if (i > KERN_NEAR + KERN_FAR)
                t[i] = t[KERN_NEAR + KERN_FAR];
        }
    j->at = at;
    j->slopes = tables ? NULL : slopes;
    j->table = tables ? table : NULL;
}

static void distances_equal_the_reference(void)
{
    struct rng r;
    rng_init(&r, 11);
    for (long round = 0; round < 20 * test_scale(); round++) {
        struct attn_job j;
        int from, to;
        random_job(&j, &r, 1e6);
        random_rows(&j, &r);
        random_queries(&j, &r);
        random_distances(&j, &r, round % 2);
        seen(&j, &from, &to);
        make_cache(&j, &r, j.slot0, j.slot1, 1);
        for (int s = j.slot0; s < j.slot1; s++)
            if (s < from || s >= to)
                put_slot(&j, s, &r, 1, 1);
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, round % 2 ? "table" : "slopes");
    }
}

/* The definition of ALiBi [arXiv:2108.12409, sec. 3] and a softmax in double. */
static void slopes_are_alibi(void)
{
    struct rng r;
    rng_init(&r, 12);
    struct attn_job j = {.n_rows = 1, .g = 4, .d_k = 16, .d_v = 16, .q_ld = 64, .slot1 = 300};
    j.q = q, j.lo = lo, j.hi = hi, j.at = at, j.slopes = slopes;
    lo[0] = 0, hi[0] = 300, at[0] = 299;
    random_queries(&j, &r);
    for (int h = 0; h < 4; h++)
        slopes[h] = ldexpf(1, -2 * (h + 1));
    make_cache(&j, &r, 0, 300, 1);
    for (int l = 0; l < n_levels; l++) {
        set_outputs(&j, out_m, out_l, out_o);
        levels[l]->attn(levels[l], &j);
        for (int h = 0; h < 4; h++) {
            double sum[16] = {0}, all = 0;
            for (int s = 0; s < 300; s++) {
                float k[1024], v[1024];
                double a = ldexp(1, -2 * (h + 1)) * (s - 299);
                vr_k_row(&j, s, k);
                vr_v_row(&j, s, v);
                for (int d = 0; d < 16; d++)
                    a += (double)q[h * 16 + d] * (double)k[d];
                all += exp(a);
                for (int d = 0; d < 16; d++)
                    sum[d] += exp(a) * (double)v[d];
            }
            for (int d = 0; d < 16; d++)
                CHECK(fabs((double)out_o[h * 16 + d] / (double)out_l[h] - sum[d] / all) < 3e-6);
        }
    }
}

/* ---- one row for K and V */

/* A latent job whose reference costs at most about `ops` multiplications. */
static void latent_job(struct attn_job *j, struct rng *r, double ops)
{
    static const int dims[][2] = {{576, 512}, {96, 64}, {40, 32}, {20, 12}, {24, 24},
                                  {320, 256}, {64, 32}, {33, 17}, {128, 96}};
    static const int groups[] = {1, 2, 3, 5, 8, 12, 13, 16, 24, 64};
    random_job(j, r, ops);
    int d = (int)rng_below(r, 9);
    j->latent = 1;
    j->d_k = dims[d][0];
    j->d_v = dims[d][1];
    j->g = groups[rng_below(r, 10)];
    j->k_type = j->v_type = kv_types[rng_below(r, j->d_k % 32 ? 3 : KV_N_TYPES)];
    j->q_ld = (int64_t)j->g * j->d_k + rng_below(r, 2) * 24;
    while (j->n_rows > 1 && ((int64_t)j->n_rows * j->q_ld > MAX_Q ||
                             (double)j->n_rows * j->g * (j->d_k + j->d_v) *
                                     (j->slot1 - j->slot0) > ops))
        j->n_rows--;
    while (j->slot1 - j->slot0 > 64 &&
           (double)j->g * (j->d_k + j->d_v) * (j->slot1 - j->slot0) > 2 * ops)
        j->slot1 -= 64;
}

static void latent_equals_the_reference(void)
{
    struct rng r;
    rng_init(&r, 13);
    for (long round = 0; round < 26 * test_scale(); round++) {
        struct attn_job j;
        int from, to;
        latent_job(&j, &r, 1e6);
        random_rows(&j, &r);
        random_queries(&j, &r);
        if (round % 4 == 0)
            random_distances(&j, &r, round % 8 == 0);
        seen(&j, &from, &to);
        make_cache(&j, &r, j.slot0, j.slot1, 1);
        for (int s = j.slot0; s < j.slot1; s++)
            if (s < from || s >= to)
                put_slot(&j, s, &r, 1, 1);
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, "latent");
    }
}

/* ---- lists of slots */

static int32_t list[MAX_PAGES * 64];

/* Ascending slots below n: single ones, stretches and whole pages. */
static int random_list(struct rng *r, int n)
{
    int len = 0;
    for (int s = (int)rng_below(r, 100); s < n;) {
        int run = rng_below(r, 3) ? 1 : 1 + (int)rng_below(r, 150);
        for (int i = 0; i < run && s < n; i++)
            list[len++] = s++;
        s += (int)rng_below(r, 5);
        if (rng_below(r, 4) == 0)
            s = (s + 63) / 64 * 64;
    }
    return len;
}

static void lists_equal_the_reference(void)
{
    struct rng r;
    rng_init(&r, 14);
    for (long round = 0; round < 26 * test_scale(); round++) {
        struct attn_job j;
        if (round % 2)
            latent_job(&j, &r, 4e5);
        else
            random_job(&j, &r, 4e5);
        if (!j.latent)
            j.k_type = kv_types[rng_below(&r, 3)];
        int n = 1 + (int)rng_below(&r, 1500);
        j.n_rows = 1;
        random_queries(&j, &r);
        make_cache(&j, &r, 0, n, 1);
        int len = random_list(&r, n);
        if (round % 5 == 0) /* all of it */
            for (len = 0; len < n; len++)
                list[len] = len;
        uint8_t seen_slot[MAX_PAGES * 64] = {0};
        for (int i = 0; i < len; i++)
            seen_slot[list[i]] = 1;
        for (int s = 0; s < n; s++)
            if (!seen_slot[s])
                put_slot(&j, s, &r, 1, 1);
        j.list = list;
        j.slot0 = 0;
        j.slot1 = len < 300 ? len : 300;
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, "list");
        if (round % 5)
            continue;
        j.list = NULL; /* a list of all slots is no list */
        lo[0] = 0;
        hi[0] = n;
        vr_attn(&j);
        check_levels(&j, "all slots");
    }
}

/* ---- scores of an indexer */

static void index_scores_equal_the_reference(void)
{
    static float w[80], iq[80 * 160], want[64], got[64];
    static uint8_t k[64 * 160 * 4] __attribute__((aligned(64)));
    struct rng r;
    rng_init(&r, 15);
    for (long round = 0; round < 66 * test_scale(); round++) {
        struct index_job j = {.q = iq, .k = k, .type = kv_types[rng_below(&r, 3)]};
        j.d = 1 + (int)rng_below(&r, 130);
        j.weights = rng_below(&r, 4) ? w : NULL;
        j.n_head = j.weights ? 1 + (int)rng_below(&r, 70) : 1;
        j.k_bytes = kv_k_bytes(j.type, j.d);
        j.a = rng_below(&r, 2) ? 0 : (int)rng_below(&r, 64);
        j.b = j.a + 1 + (int)rng_below(&r, (uint32_t)(64 - j.a));
        for (int i = 0; i < j.n_head * j.d; i++)
            iq[i] = rng_normal(&r);
        for (int i = 0; i < j.n_head; i++)
            w[i] = rng_normal(&r);
        struct state kv = {
            .n_head_kv = 1, .d_k = j.d, .k_type = j.type, .k_head = j.k_bytes};
        for (int s = 0; s < 64; s++) {
            float x[160];
            uint8_t row[160 * 4];
            for (int d = 0; d < j.d; d++)
                x[d] = s < j.a || s >= j.b ? NAN : rng_normal(&r);
            if (rng_below(&r, 50) == 0)
                x[rng_below(&r, (uint32_t)j.d)] = rng_below(&r, 2) ? NAN : INFINITY;
            dtypes[j.type].quant(x, row, j.d);
            kv_put_k(&kv, k, 0, s, row);
        }
        j.s = want;
        vr_index(&j);
        j.s = got;
        for (int l = 0; l < n_levels; l++) {
            levels[l]->index(&j);
            int64_t i = differ(got, want, 64);
            CHECK_MSG(i < 0, "%s: score %d of %d heads, %d numbers: %a, not %a", levels[l]->name,
                      (int)i, j.n_head, j.d, (double)got[i < 0 ? 0 : i],
                      (double)want[i < 0 ? 0 : i]);
        }
    }
}

/* Every type of K with every type of V, one vector and a tile of rows. */
static void every_pair_of_types(void)
{
    static const int dims[] = {32, 64, 96, 128, 256}, groups[] = {1, 2, 3, 4, 8};
    struct rng r;
    rng_init(&r, 5);
    for (int pair = 0; pair < KV_N_TYPES * KV_N_TYPES * 2; pair++) {
        struct attn_job j = {.k_type = kv_types[pair / 2 % KV_N_TYPES],
                             .v_type = kv_types[pair / 2 / KV_N_TYPES],
                             .q = q,
                             .lo = lo,
                             .hi = hi};
        char what[64];
        j.d_k = dims[rng_below(&r, 5)];
        j.d_v = dims[rng_below(&r, 5)];
        j.g = groups[rng_below(&r, 5)];
        j.n_rows = pair % 2 ? 1 : 2 + (int)rng_below(&r, 5);
        j.q_ld = j.g * j.d_k;
        j.slot1 = 1 + (int)rng_below(&r, 150);
        random_rows(&j, &r);
        random_queries(&j, &r);
        make_cache(&j, &r, 0, j.slot1, 1);
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        snprintf(what, sizeof what, "K %s V %s", dtypes[j.k_type].name, dtypes[j.v_type].name);
        check_levels(&j, what);
    }
}

/* A page that ends where memory ends, K last or V last: nothing is read beyond it. Prefetches fault
 * nowhere. */
static void reads_end_with_the_page(void)
{
    static const int groups[] = {1, 2, 4, 6, 12};
    struct rng r;
    rng_init(&r, 6);
    size_t room = 1 << 20, page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED && !mprotect(p + room, page, PROT_NONE), "no guard page");
    for (int i = 0; i < KV_N_TYPES * 2 * 5; i++) {
        struct attn_job j = {
            .n_rows = 1, .d_k = 96, .d_v = 96, .slot1 = 64, .q = q, .lo = lo, .hi = hi};
        j.k_type = j.v_type = kv_types[i / 2 / 5];
        j.g = groups[i / 2 % 5];
        j.q_ld = j.g * j.d_k;
        lo[0] = 0;
        hi[0] = 64;
        random_queries(&j, &r);
        make_cache(&j, &r, 0, 64, 1);
        int64_t k_off = i % 2 ? 0 : j.v_bytes, v_off = i % 2 ? j.k_bytes : 0;
        uint8_t *to = p + room - j.k_bytes - j.v_bytes;
        const uint8_t *from = cache + pages[0] / 4 * j.page_bytes;
        memcpy(to + k_off, from + j.k_off, (size_t)j.k_bytes);
        memcpy(to + v_off, from + j.v_off, (size_t)j.v_bytes);
        j.base = to;
        j.k_off = k_off;
        j.v_off = v_off;
        pages[0] = 0;
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, dtypes[j.k_type].name);
    }
    munmap(p, room + page);
}

/* Infinities and NaN inside what is seen, scores that overflow, K of denormals, V of -0. */
static void special_values_equal_the_reference(void)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, 1e-41f, -0.0f, 3e38f, 65504, 1e-7f};
    struct rng r;
    rng_init(&r, 2);
    for (long round = 0; round < 33 * test_scale(); round++) {
        struct attn_job j;
        random_job(&j, &r, 2e5);
        random_rows(&j, &r);
        random_queries(&j, &r);
        make_cache(&j, &r, j.slot0, j.slot1, 1);
        for (int i = 0; i < 6; i++) {
            int slot = j.slot0 + (int)rng_below(&r, (uint32_t)(j.slot1 - j.slot0));
            float f = special[rng_below(&r, 8)];
            int is_v = (int)rng_below(&r, 2);
            put_random(&j, is_v, slot, &r, 1, (int)rng_below(&r, (uint32_t)(is_v ? j.d_v : j.d_k)),
                       f);
        }
        if (rng_below(&r, 4) == 0)
            q[rng_below(&r, (uint32_t)j.d_k)] = special[rng_below(&r, 8)];
        if (rng_below(&r, 4) == 0)
            for (int s = j.slot0; s < j.slot1; s++) /* every score of row 0 is -inf when q[0] > 0 */
                put_random(&j, 0, s, &r, 1, 0, -INFINITY);
        if (rng_below(&r, 4) == 0)
            for (int s = j.slot0; s < j.slot0 + 64 && s < j.slot1;
                 s++) /* the maximum is NaN before it is a number again */
                put_random(&j, 0, s, &r, 1, 0, NAN);
        set_outputs(&j, ref_m, ref_l, ref_o);
        vr_attn(&j);
        check_levels(&j, "special");
    }
}

/* A tile of rows equals its rows one at a time, each with every slot it does not see poisoned. */
static void tiles_equal_single_rows(void)
{
    struct rng r;
    rng_init(&r, 3);
    for (long round = 0; round < 3 * test_scale(); round++) {
        struct attn_job j;
        random_job(&j, &r, 2e6);
        random_rows(&j, &r);
        random_queries(&j, &r);
        make_cache(&j, &r, j.slot0, j.slot1, 1);
        int64_t dv = (j.d_v + 15) / 16 * 16;
        set_outputs(&j, ref_m, ref_l, ref_o);
        levels[n_levels - 1]->attn(levels[n_levels - 1], &j);
        for (int i = 0; i < j.n_rows; i++) {
            struct attn_job one = j;
            one.n_rows = 1;
            one.q = q + i * j.q_ld;
            one.lo = lo + i;
            one.hi = hi + i;
            static uint8_t saved[CACHE_BYTES];
            if (i % 8 == 0) { /* the poison costs more than the row */
                memcpy(saved, cache, sizeof cache);
                for (int s = j.slot0; s < (j.slot1 + 63) / 64 * 64; s++)
                    if (s < lo[i] || s >= hi[i])
                        put_slot(&j, s, &r, 1, 1);
            }
            for (int l = 0; l < n_levels; l++) {
                set_outputs(&one, out_m, out_l, out_o);
                levels[l]->attn(levels[l], &one);
                CHECK_MSG(differ(out_m, ref_m + i * j.g, j.g) < 0 &&
                              differ(out_l, ref_l + i * j.g, j.g) < 0 &&
                              differ(out_o, ref_o + i * j.g * dv, j.g * dv) < 0,
                          "%s row %d of %d alone", levels[l]->name, i, j.n_rows);
            }
            if (i % 8 == 0)
                memcpy(cache, saved, sizeof cache);
        }
    }
}

/* Position up to 2500: partials of spans merged left to right, at every level the bits of the
 * reference, and near the softmax in double. */
static void spans_merge_to_the_softmax(void)
{
    struct rng r;
    rng_init(&r, 4);
    for (long round = 0; round < 3 * test_scale(); round++) {
        enum dtype type = kv_types[round % KV_N_TYPES];
        struct attn_job j = {
            .n_rows = 1, .lo = lo, .hi = hi, .q = q, .k_type = type, .v_type = type};
        j.g = 1 + (int)rng_below(&r, 4);
        j.d_k = j.d_v = vr_blocks(type) ? 32 << rng_below(&r, 3) : 8 << rng_below(&r, 5);
        j.q_ld = j.g * j.d_k;
        j.slot1 = 2500 - (int)rng_below(&r, round % 2 ? 2490 : 400);
        hi[0] = j.slot1;
        lo[0] = round % 3 ? 0 : (int)rng_below(&r, (uint32_t)j.slot1);
        for (int i = 0; i < j.g * j.d_k; i++)
            q[i] = rng_normal(&r) * 2 / sqrtf((float)j.d_k);
        int total = j.slot1, dv = (j.d_v + 15) / 16 * 16;
        make_cache(&j, &r, 0, total, 1);
        for (int l = -1; l < n_levels; l++) { /* -1: the reference */
            static float M[4], L[4], O[4 * 512];
            for (int i = 0; i < 4; i++)
                M[i] = -INFINITY, L[i] = 0;
            for (j.slot0 = 0; j.slot0 < total; j.slot0 += KERN_SPAN) {
                j.slot1 = j.slot0 + KERN_SPAN < total ? j.slot0 + KERN_SPAN : total;
                set_outputs(&j, out_m, out_l, out_o);
                l < 0 ? vr_attn(&j) : levels[l]->attn(levels[l], &j);
                for (int h = 0; h < j.g; h++)
                    (l < 0 ? vr_attn_merge : levels[l]->attn_merge)(
                        &M[h], &L[h], O + h * dv, out_m + h, out_l + h, out_o + h * dv, dv);
            }
            if (l < 0) {
                memcpy(ref_m, M, sizeof M), memcpy(ref_l, L, sizeof L), memcpy(ref_o, O, sizeof O);
                for (int h = 0; h < j.g; h++) {
                    static double sum[512];
                    double all = 0;
                    memset(sum, 0, sizeof sum);
                    for (int s = lo[0]; s < total; s++) {
                        float x[1024];
                        double a = 0;
                        vr_k_row(&j, s, x);
                        for (int d = 0; d < j.d_k; d++)
                            a += (double)q[h * j.d_k + d] * (double)x[d];
                        all += exp(a);
                        vr_v_row(&j, s, x);
                        for (int d = 0; d < j.d_v; d++)
                            sum[d] += exp(a) * (double)x[d];
                    }
                    for (int d = 0; d < j.d_v; d++) {
                        double got = (double)O[h * dv + d] / (double)L[h], want = sum[d] / all;
                        CHECK_MSG(fabs(got - want) <
                                      (vr_blocks(type) ? 2e-2
                                                       : 3e-6), /* blocks: the query is quantised */
                                  "attention is %g, the softmax %g", got, want);
                    }
                }
            } else {
                CHECK_MSG(differ(M, ref_m, j.g) < 0 && differ(L, ref_l, j.g) < 0 &&
                              differ(O, ref_o, j.g * dv) < 0,
                          "%s merged spans of %d slots", levels[l]->name, total);
            }
        }
    }
}

/* Merging skips partials that saw nothing, wherever they stand. */
static void empty_partials_are_skipped(void)
{
    for (int l = 0; l < n_levels; l++)
        for (int d = 1; d < 40; d++) {
            float M = -INFINITY, L = 0, O[48], o[48], m = 3, s = 2, none = -INFINITY, zero = 0;
            for (int i = 0; i < 48; i++)
                O[i] = 77, o[i] = (float)i;
            levels[l]->attn_merge(&M, &L, O, &none, &zero, o, d);
            CHECK(M == -INFINITY && L == 0 && O[0] == 77);
            levels[l]->attn_merge(&M, &L, O, &m, &s, o, d);
            CHECK(M == 3 && L == 2 && !memcmp(O, o, (size_t)d * 4) && O[d] == 77);
            levels[l]->attn_merge(&M, &L, O, &none, &zero, o, d);
            CHECK(M == 3 && L == 2 && !memcmp(O, o, (size_t)d * 4));
            levels[l]->attn_merge(&M, &L, O, &m, &s, o, d);
            CHECK(M == 3 && L == 4 && O[d - 1] == 2 * o[d - 1] && O[d] == 77);
        }
}

int main(void)
{
    for (int l = CPU_BASE; l < CPU_N_LEVELS;
         l++) { /* those that differ in vectors or in products of blocks */
        const struct kern *k = kern_table(l), *last = n_levels ? levels[n_levels - 1] : NULL;
        if (cpu_has((enum cpu_level)l) &&
            (!last || k->attn != last->attn || k->mm[DT_Q8_0] != last->mm[DT_Q8_0]))
            levels[n_levels++] = k;
    }
    TEST(levels_equal_the_reference);
    TEST(every_pair_of_types);
    TEST(distances_equal_the_reference);
    TEST(slopes_are_alibi);
    TEST(latent_equals_the_reference);
    TEST(lists_equal_the_reference);
    TEST(index_scores_equal_the_reference);
    TEST(reads_end_with_the_page);
    TEST(special_values_equal_the_reference);
    TEST(tiles_equal_single_rows);
    TEST(spans_merge_to_the_softmax);
    TEST(empty_partials_are_skipped);
    return test_end();
}
