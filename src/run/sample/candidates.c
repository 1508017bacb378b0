/* candidates.c -- see candidates.h.
 *
 * Finding a place. Most distributions are peaked: the few candidates near the best hold nearly all
 * mass. So first the candidates above a threshold are gathered into a heap (blocks whose best is
 * below are not even read) and popped until the bound is reached. When they are too many, or the
 * bound lies behind them, a radix selection finds it: masses by the next digit of the key, the
 * digit where the bound falls, and again within that, until the candidates of one digit fit the
 * heap. Every pass is linear whatever the input.
 */
#include "run/sample/candidates.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/fmath.h"
#include "base/machine/pool.h"
#include "base/mem.h"
#include "backend/cpu/kern_logits.h"

#define PLACE_BEHIND_ALL ((uint64_t)UINT32_MAX << 32 | INT32_MAX)
enum { HEAP_MAX = 8192, DIGIT_BITS = 14, DIGITS = 1 << DIGIT_BITS };

/* Rounds so that the sum of n weights, each at most 1, fits 53 bits. */
static float quantum_rounder(int32_t n)
{
    float r = 0x1.8p-11f; /* its last bit, the quantum, is 2^-34 */
    for (int64_t fits = 1 << 19; fits < n; fits *= 2)
        r *= 2;
    return r;
}

/* ---------------------------------------------------------------- the list */

static int32_t n_blocks(const struct candidates *c)
{
    return (c->n + BLOCK - 1) / BLOCK;
}

/* The 64 logits of a block; the last one is filled up with what has no weight. Until the next call.
 */
static const float *block(struct candidates *c, int32_t b, int *n)
{
    int32_t from = b * BLOCK;
    *n = c->n - from < BLOCK ? c->n - from : BLOCK;
    if (*n == BLOCK && c->t == 0)
        return c->x + from;
    if (*n == BLOCK) {
        c->kern->scale(c->x + from, 1, c->shift, c->t, c->pad);
        return c->pad;
    }
    for (int i = 0; i < BLOCK; i++)
        c->pad[i] = i < *n ? c->x[from + i] : -FLT_MAX;
    if (c->t != 0)
        c->kern->scale(c->pad, 1, c->shift, c->t, c->pad);
    for (int i = *n; i < BLOCK; i++)
        c->pad[i] = -FLT_MAX;
    return c->pad;
}

float candidates_logit(struct candidates *c, int32_t at)
{
    int n;
    return block(c, at / BLOCK, &n)[at % BLOCK];
}

int candidates_init(struct candidates *c, int32_t n_vocab)
{
    size_t v = (size_t)n_vocab;
    *c = (struct candidates){
        .kern = kern_logits(),
        .quantum_rounder = quantum_rounder(n_vocab),
        .block_best = mem_array(v / BLOCK + 1, sizeof(float), PITH_MEM_SCRATCH),
        .own_x = mem_array(v, sizeof(float), PITH_MEM_SCRATCH),
        .own_id = mem_array(v, sizeof(int32_t), PITH_MEM_SCRATCH),
        .heap = mem_array(HEAP_MAX, sizeof(uint64_t), PITH_MEM_SCRATCH),
        .hist = mem_array(DIGITS, sizeof(double), PITH_MEM_SCRATCH),
        .chunk = mem_array(v / CANDIDATES_CHUNK + 1, sizeof(double), PITH_MEM_SCRATCH),
        .chunk_distance = mem_array(v / CANDIDATES_CHUNK + 1, sizeof(double), PITH_MEM_SCRATCH),
    };
    return c->block_best && c->chunk && c->chunk_distance && c->own_x && c->own_id && c->heap &&
           c->hist;
}

int64_t candidates_bytes(int32_t n_vocab)
{
    int64_t v = n_vocab;
    return 4 * (v / BLOCK + 1) + 8 * v + 8 * (HEAP_MAX + DIGITS) + 16 * (v / CANDIDATES_CHUNK + 1);
}

void candidates_deinit(struct candidates *c)
{
    mem_free(c->block_best);
    mem_free(c->own_x);
    mem_free(c->own_id);
    mem_free(c->heap);
    mem_free(c->hist);
    mem_free(c->chunk);
    mem_free(c->chunk_distance);
}

static int is_finite(float x)
{
    return fabsf(x) <= FLT_MAX; /* false for NaN */
}

static void set_best(struct candidates *c)
{
    c->total = 0;
    c->best = -FLT_MAX;
    for (int32_t b = 0; b < n_blocks(c); b++)
        c->best = c->block_best[b] > c->best ? c->block_best[b] : c->best;
}

/* A pass over all chunks of logits, in any order: `good` stays while fn returns 1 for each. With
 * fewer than MANY_CHUNKS calling others costs as much as they save. */
enum { CHUNK = CANDIDATES_CHUNK / BLOCK, MANY_CHUNKS = 24 };
typedef int chunk_fn(struct candidates *c, int32_t from, int32_t to); /* blocks */
struct pass {
    struct candidates *c;
    chunk_fn *fn;
    int32_t n;
    _Atomic(int32_t) next, left;
    _Atomic(int) good;
};

static int pass_chunk(struct candidates *c, chunk_fn *fn, int32_t i)
{
    int32_t from = i * CHUNK, to = from + CHUNK;
    return fn(c, from, to < n_blocks(c) ? to : n_blocks(c));
}

static int pass_work(void *ctx, int ith)
{
    struct pass *p = ctx;
    (void)ith;
    for (int32_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
        if (!pass_chunk(p->c, p->fn, i))
            atomic_store(&p->good, 0);
        if (atomic_fetch_sub(&p->left, 1) == 1)
            pool_ring(p->c->pool);
    }
    return atomic_load(&p->left) == 0;
}

/* Each chunk is of one thread, and so is what fn writes for it. */
static int go_over(struct candidates *c, chunk_fn *fn)
{
    int32_t n = (n_blocks(c) + CHUNK - 1) / CHUNK;
    struct pass p = {.c = c, .fn = fn, .n = n, .left = n, .good = 1};
    if (c->pool && n >= MANY_CHUNKS && pool_try_share(c->pool, c->n_threads, pass_work, &p))
        return atomic_load(&p.good);
    int good = 1;
    for (int32_t i = 0; i < n; i++)
        good &= pass_chunk(c, fn, i);
    return good;
}

static int set_chunk(struct candidates *c, int32_t from, int32_t to)
{
    int n;
    int32_t full = c->n / BLOCK < to ? c->n / BLOCK : to;
    int finite = c->kern->highest(c->x + from * BLOCK, full - from, c->block_best + from);
    if (full < to)
        finite &= c->kern->highest(block(c, full, &n), 1, c->block_best + full);
    return finite;
}

/* Block maxima and best. 0: not all logits are finite. */
static int set_blocks(struct candidates *c)
{
    int finite = go_over(c, set_chunk);
    set_best(c);
    return finite;
}

/* Drops what is not finite. */
static void drop_infinite(struct candidates *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        float x = c->x[i];
        c->own_id[n] = candidates_id(c, i);
        c->own_x[n] = x;
        n += is_finite(x);
    }
    c->x = c->own_x;
    c->id = c->own_id;
    c->n = n;
    set_blocks(c);
}

void candidates_fill(struct candidates *c, const float *logits, int32_t n_vocab)
{
    c->x = logits;
    c->id = NULL;
    c->n = n_vocab;
    c->t = 0;
    if (!set_blocks(c))
        drop_infinite(c);
}

void candidates_fill_some(struct candidates *c, const float *x, const int32_t *id, int32_t n)
{
    c->x = x;
    c->id = id;
    c->n = n;
    c->t = 0;
    if (!set_blocks(c))
        drop_infinite(c);
}

int32_t candidates_find(const struct candidates *c, int32_t id)
{
    int32_t lo = 0, hi = c->n;
    if (!c->id)
        return id >= 0 && id < c->n ? id : -1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (c->id[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c->n && c->id[lo] == id ? lo : -1;
}

float *candidates_edit(struct candidates *c)
{
    for (int32_t b = 0; b < n_blocks(c) && c->t != 0; b++) {
        int n;
        const float *x = block(c, b, &n);
        memcpy(c->own_x + b * BLOCK, x, (size_t)n * sizeof *x);
    }
    if (c->t == 0 && c->x != c->own_x)
        memcpy(c->own_x, c->x, (size_t)c->n * sizeof *c->own_x);
    c->x = c->own_x;
    c->t = 0;
    return c->own_x;
}

float candidates_finite(float x)
{
    return x > FLT_MAX ? FLT_MAX : x >= -FLT_MAX ? x : -FLT_MAX;
}

void candidates_changed(struct candidates *c, int32_t at)
{
    int n;
    int32_t b = at / BLOCK;
    c->kern->highest(block(c, b, &n), 1, &c->block_best[b]);
}

void candidates_settle(struct candidates *c)
{
    set_best(c);
}

void candidates_refresh(struct candidates *c)
{
    drop_infinite(c);
}

void candidates_scale(struct candidates *c, float shift, float t)
{
    if (c->t != 0)
        candidates_edit(c);
    c->shift = shift;
    c->t = t;
    for (int32_t b = 0; b < n_blocks(c); b++)
        c->block_best[b] = candidates_finite((c->block_best[b] - shift) / t);
    set_best(c);
}

/* ---------------------------------------------------------------- mass */

/* Adds the weights of the blocks from .. to - 1, as many as have some and lie together in one go.
 */
static void add_mass(struct candidates *c, int32_t from, int32_t to, double *total,
                     double *distance)
{
    enum { RUN = 16 };
    float scaled[RUN * BLOCK];
    int32_t full = c->n / BLOCK;
    for (int32_t b = from, end; b < to; b = end) {
        const float *x = c->x + b * BLOCK;
        int n;
        for (end = b; end < to && end < full && end < b + RUN &&
                      c->best - c->block_best[end] < ZERO_DISTANCE;
             end++)
            ;
        if (end > b && c->t != 0) {
            c->kern->scale(x, end - b, c->shift, c->t, scaled);
            x = scaled;
        } else if (end == b) {
            end = b + 1;
            if (b < full || c->best - c->block_best[b] >= ZERO_DISTANCE)
                continue;
            x = block(c, b, &n);
        }
        c->kern->mass(x, end - b, c->best, c->quantum_rounder, total, distance);
    }
}

static int chunk_mass(struct candidates *c, int32_t from, int32_t to)
{
    double total[8] = {0};
    add_mass(c, from, to, total, NULL);
    c->chunk[from / CHUNK] = sum_lanes(total);
    return 1;
}

static int chunk_mass_and_distance(struct candidates *c, int32_t from, int32_t to)
{
    double total[8] = {0}, distance[8] = {0};
    add_mass(c, from, to, total, distance);
    c->chunk[from / CHUNK] = sum_lanes(total);
    c->chunk_distance[from / CHUNK] = sum_lanes(distance);
    return 1;
}

static struct mass mass(struct candidates *c, chunk_fn *fn)
{
    double distance = 0;
    go_over(c, fn);
    c->total = 0;
    for (int32_t b = 0; b < n_blocks(c); b += CHUNK) {
        c->total += c->chunk[b / CHUNK];
        if (fn == chunk_mass_and_distance)
            distance += c->chunk_distance[b / CHUNK];
    }
    return (struct mass){c->total, distance / c->total};
}

struct mass candidates_mass(struct candidates *c)
{
    return mass(c, chunk_mass_and_distance);
}

double candidates_total(struct candidates *c)
{
    return c->total > 0 ? c->total : mass(c, chunk_mass).total;
}

int32_t candidates_draw(struct candidates *c, double u)
{
    double bound = u * candidates_total(c), sum = 0, here;
    float d[BLOCK], w[BLOCK];
    int32_t k = 0, b;
    int n, i = 0;
    while ((k + 1) * CHUNK < n_blocks(c) &&
           sum + c->chunk[k] <= bound) /* the bound may round up to the total */
        sum += c->chunk[k++];
    for (b = k * CHUNK; b + 1 < n_blocks(c); b++) {
        double total[8] = {0};
        add_mass(c, b, b + 1, total, NULL);
        here = sum_lanes(total);
        if (sum + here > bound)
            break;
        sum += here;
    }
    c->kern->weigh(block(c, b, &n), c->best, c->quantum_rounder, d, w);
    while (i < n - 1 && (sum += (double)w[i]) <= bound)
        i++;
    return b * BLOCK + i;
}

static double weight_of(struct candidates *c, int32_t at)
{
    float d[BLOCK], w[BLOCK];
    int n;
    c->kern->weigh(block(c, at / BLOCK, &n), c->best, c->quantum_rounder, d, w);
    return (double)w[at % BLOCK];
}

double candidates_sigma(struct candidates *c)
{
    double sum[8] = {0}, squares[8] = {0};
    for (int32_t b = 0; b < n_blocks(c); b++) {
        int n;
        const float *x = block(c, b, &n);
        if (n == BLOCK)
            c->kern->moments(x, c->best, sum, squares);
        for (int i = 0; i < n && n < BLOCK; i++) {
            double d = (double)c->best - (double)x[i];
            sum[i % 8] += d;
            squares[i % 8] += d * d;
        }
    }
    double mean = sum_lanes(sum) / c->n, variance = sum_lanes(squares) / c->n - mean * mean;
    return variance > 0 ? sqrt(variance) : 0;
}

/* ---------------------------------------------------------------- order */

/* Smaller for a higher logit; +0 and -0 alike. */
static inline uint32_t key_of_logit(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u ^ (uint32_t)(~((int32_t)u >> 31) & 0x7fffffff);
}

/* Smaller for a smaller y >= 0. */
static inline uint32_t key_of_distance(float y)
{
    uint32_t u;
    memcpy(&u, &y, sizeof u);
    return u;
}

static inline uint32_t key_of(struct order o, float best, float x)
{
    return o.by_distance ? key_of_distance(fabsf(best - x - o.centre)) : key_of_logit(x);
}

static void keys_of(struct order o, const struct kern_logits *kern, float best, const float *x,
                    uint32_t *key)
{
    if (o.by_distance) {
        for (int i = 0; i < BLOCK; i++)
            key[i] = key_of((struct order){1, o.centre}, best, x[i]);
    } else {
        kern->keys(x, key);
    }
}

/* No candidate of a block whose best is below has a key of at most `key`. */
static float floor_of(const struct candidates *c, struct order o, uint32_t key)
{
    float y;
    if (o.by_distance) {
        memcpy(&y, &key, sizeof y);
        y = c->best - o.centre - y;
        return y - 0x1p-20f * (fabsf(c->best) + c->best - y); /* whatever the roundings */
    }
    key ^= ~((int32_t)key >> 31) & 0x7fffffff;
    memcpy(&y, &key, sizeof y);
    return y;
}

/* Restores the heap h[0..n), smallest at the root, below i. */
static void sift(uint64_t *h, int32_t n, int32_t i)
{
    uint64_t moving = h[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && h[child + 1] < h[child];
        if (moving <= h[child])
            break;
        h[i] = h[child];
    }
    h[i] = moving;
}

static uint64_t pop(uint64_t *h, int32_t *n)
{
    uint64_t first = h[0];
    h[0] = h[--*n];
    sift(h, *n, 0);
    return first;
}

/* Heap of the places with lo <= key <= hi; -1 when they are too many. */
static int32_t gather(struct candidates *c, struct order o, uint32_t lo, uint32_t hi)
{
    int32_t found = 0;
    float floor = floor_of(c, o, hi);
    for (int32_t b = 0; b < n_blocks(c); b++) {
        uint32_t key[BLOCK];
        int n;
        if (c->block_best[b] < floor)
            continue;
        keys_of(o, c->kern, c->best, block(c, b, &n), key);
        uint32_t hits = 0;
        for (int i = 0; i < BLOCK; i++)
            hits |= key[i] - lo <= hi - lo;
        if (!hits) /* the usual case */
            continue;
        for (int i = 0; i < n; i++) {
            if (key[i] - lo > hi - lo)
                continue;
            if (found == HEAP_MAX)
                return -1;
            c->heap[found++] = (uint64_t)key[i] << 32 | (uint32_t)(b * BLOCK + i);
        }
    }
    for (int32_t i = found / 2; i-- > 0;)
        sift(c->heap, found, i);
    return found;
}

struct goal {
    int how;
    double bound, sum;
};

static int add(struct goal *g, double more)
{
    g->sum += more;
    return g->sum > g->bound || ((g->how & REACH) && g->sum == g->bound);
}

/* Pops the heap of n places until the goal is reached. 0: it is not. */
static int walk(struct candidates *c, int32_t n, struct goal *g, uint64_t *place)
{
    while (n > 0) {
        *place = pop(c->heap, &n);
        if (add(g, g->how & BY_WEIGHT ? weight_of(c, place_at(*place)) : 1))
            return 1;
    }
    return 0;
}

/* The k-th highest of the block maxima: at least k candidates reach it. */
static float threshold(struct candidates *c, int32_t k)
{
    int32_t n = 0, nb = n_blocks(c);
    if (k > nb)
        return -FLT_MAX;
    for (int32_t b = 0; b < nb; b++) { /* heap of the k best, the worst (largest key) at the root */
        uint64_t place = ~((uint64_t)key_of_logit(c->block_best[b]) << 32 | (uint32_t)b);
        if (n < k) {
            c->heap[n++] = place;
            for (int32_t i = n / 2; n == k && i-- > 0;)
                sift(c->heap, n, i);
        } else if (place > c->heap[0]) {
            c->heap[0] = place;
            sift(c->heap, n, 0);
        }
    }
    return c->block_best[(uint32_t)~c->heap[0]];
}

/* Masses of the candidates whose key begins with `prefix`, by the digit of `bits` bits at `shift`.
 */
static void histogram(struct candidates *c, struct order o, int by_weight, uint64_t prefix,
                      int shift, int bits)
{
    memset(c->hist, 0, DIGITS * sizeof *c->hist);
    for (int32_t b = 0; b < n_blocks(c); b++) {
        uint32_t key[BLOCK];
        float d[BLOCK], w[BLOCK];
        int n;
        const float *x = block(c, b, &n);
        if (by_weight && c->best - c->block_best[b] >= ZERO_DISTANCE)
            continue;
        keys_of(o, c->kern, c->best, x, key);
        if (by_weight)
            c->kern->weigh(x, c->best, c->quantum_rounder, d, w);
        for (int i = 0; i < n; i++) {
            if ((uint64_t)key[i] >> (shift + bits) == prefix)
                c->hist[key[i] >> shift & ((1u << bits) - 1)] += by_weight ? (double)w[i] : 1;
        }
    }
}

/* Among many of one key, whose order is the index. Their weights may differ where the key is a
 * distance; a block is weighed once. */
static uint64_t select_equal(struct candidates *c, struct order o, uint32_t wanted, struct goal *g)
{
    float floor = floor_of(c, o, wanted);
    for (int32_t b = 0; b < n_blocks(c); b++) {
        uint32_t key[BLOCK];
        float d[BLOCK], w[BLOCK];
        int n, weighed = !(g->how & BY_WEIGHT);
        if (c->block_best[b] < floor)
            continue;
        const float *x = block(c, b, &n);
        keys_of(o, c->kern, c->best, x, key);
        for (int i = 0; i < n; i++) {
            if (key[i] != wanted)
                continue;
            if (!weighed)
                c->kern->weigh(x, c->best, c->quantum_rounder, d, w);
            weighed = 1;
            if (add(g, g->how & BY_WEIGHT ? (double)w[i] : 1))
                return (uint64_t)wanted << 32 | (uint32_t)(b * BLOCK + i);
        }
    }
    return PLACE_BEHIND_ALL;
}

static uint64_t radix_select(struct candidates *c, struct order o, struct goal g)
{
    static const struct {
        int shift, bits;
    } digits[] = {{18, 14}, {4, 14}, {0, 4}};
    uint64_t prefix = 0, place;
    for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
        int shift = digits[i].shift, bits = digits[i].bits, digit = 0;
        histogram(c, o, g.how & BY_WEIGHT, prefix, shift, bits);
        while (!add(&g, c->hist[digit])) {
            if (++digit == 1 << bits)
                return PLACE_BEHIND_ALL; /* the bound is behind all */
        }
        g.sum -= c->hist[digit]; /* exact, as all these sums */
        prefix = prefix << bits | (uint64_t)digit;
        uint32_t lo = (uint32_t)(prefix << shift), hi = lo | (uint32_t)((1ull << shift) - 1);
        int32_t n = gather(c, o, lo, hi);
        if (n >= 0)
            return walk(c, n, &g, &place) ? place : PLACE_BEHIND_ALL;
    }
    return select_equal(c, o, (uint32_t)prefix, &g);
}

/* Key up to which the try-th head goes. */
static uint32_t head_key(struct candidates *c, struct order o, int how, double bound, int try)
{
    float distance = try ? 12 : 7; /* of logits from the best: 0.001 of its weight, then 6e-6 */
    if (o.by_distance)
        return key_of_distance(distance > 2 * o.centre ? distance - o.centre : o.centre);
    if (how & BY_WEIGHT)
        return key_of_logit(c->best - distance);
    return key_of_logit(threshold(c, bound < HEAP_MAX / 8 ? (int32_t)bound + 1 : HEAP_MAX / 8));
}

uint64_t candidates_place(struct candidates *c, struct order o, int how, double bound)
{
    uint64_t place;
    for (int try = 0, n = 0; try < 2 && n >= 0; try++) {
        struct goal g = {.how = how, .bound = bound};
        n = gather(c, o, 0, head_key(c, o, how, bound, try));
        if (n >= 0 && walk(c, n, &g, &place))
            return place;
    }
    return radix_select(c, o, (struct goal){.how = how, .bound = bound});
}

uint64_t candidates_place_of(const struct candidates *c, double bound)
{
    (void)c;
    float x = bound < (double)-FLT_MAX ? -FLT_MAX : (float)bound;
    if ((double)x < bound)
        x = nextafterf(x, INFINITY);
    return (uint64_t)key_of_logit(x) << 32 | INT32_MAX;
}

void candidates_keep(struct candidates *c, struct order o, uint64_t first, uint64_t last)
{
    int32_t kept = 0;
    float floor = floor_of(c, o, (uint32_t)(last >> 32));
    for (int32_t b = 0; b < n_blocks(c); b++) {
        uint32_t key[BLOCK];
        int n;
        if (c->block_best[b] < floor)
            continue;
        const float *x = block(c, b, &n);
        keys_of(o, c->kern, c->best, x, key);
        for (int i = 0; i < n; i++) {
            int32_t at = b * BLOCK + i;
            uint64_t place = (uint64_t)key[i] << 32 | (uint32_t)at;
            c->own_id[kept] = candidates_id(c, at); /* kept <= at */
            c->own_x[kept] = x[i];
            kept += place >= first && place <= last;
        }
    }
    c->x = c->own_x;
    c->t = 0;
    c->id = c->own_id;
    c->n = kept;
    set_blocks(c);
}

int32_t candidates_count(struct candidates *c, uint64_t last, uint64_t *last_there)
{
    int32_t found = 0;
    for (int32_t b = 0; b < n_blocks(c); b++) {
        int n;
        const float *x = block(c, b, &n);
        if ((uint64_t)key_of_logit(c->block_best[b]) << 32 > last)
            continue;
        for (int i = 0; i < n; i++) {
            uint64_t place = (uint64_t)key_of_logit(x[i]) << 32 | (uint32_t)(b * BLOCK + i);
            if (place > last)
                continue;
            *last_there = found++ && *last_there > place ? *last_there : place;
        }
    }
    return found;
}

uint64_t candidates_head(struct candidates *c, uint64_t from, int32_t *at, int32_t k)
{
    const struct order by_logit = {0};
    int32_t n = 0, before = from ? candidates_count(c, from - 1, &(uint64_t){0}) : 0;
    uint64_t end = candidates_place(c, by_logit, BY_COUNT | REACH, (double)before + k);
    for (int32_t b = 0; b < n_blocks(c); b++) {
        int n_here;
        const float *x = block(c, b, &n_here);
        if ((uint64_t)key_of_logit(c->block_best[b]) << 32 > (end | UINT32_MAX))
            continue;
        for (int i = 0; i < n_here && n < HEAP_MAX; i++) {
            uint64_t place = (uint64_t)key_of_logit(x[i]) << 32 | (uint32_t)(b * BLOCK + i);
            if (place >= from && place <= end)
                c->heap[n++] = place;
        }
    }
    for (int32_t i = n / 2; i-- > 0;)
        sift(c->heap, n, i);
    for (int32_t i = 0; i < k && n > 0; i++)
        at[i] = place_at(pop(c->heap, &n));
    return end + 1;
}

/* Block b of n logits with what is not finite replaced by the lowest, and its highest: itself where
 * nothing is to be replaced. */
static const float *finite_block(const struct kern_logits *kern, const float *logits, int32_t n,
                                 int32_t b, float *pad, float *highest)
{
    const float *x = logits + (size_t)b * BLOCK;
    int32_t here = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
    if (here == BLOCK && kern->highest(x, 1, highest))
        return x;
    for (int i = 0; i < BLOCK; i++)
        pad[i] = i < here && is_finite(x[i]) ? x[i] : -FLT_MAX;
    kern->highest(pad, 1, highest);
    return pad;
}

double logits_log_total(const float *logits, int32_t n_vocab)
{
    const struct kern_logits *kern = kern_logits();
    float best = -FLT_MAX, highest, pad[BLOCK], rounder = quantum_rounder(n_vocab);
    double total[8] = {0};
    int32_t n = (n_vocab + BLOCK - 1) / BLOCK, n_finite = 0;
    for (int32_t b = 0; b < n; b++) {
        finite_block(kern, logits, n_vocab, b, pad, &highest);
        best = highest > best ? highest : best;
    }
    for (int32_t i = 0; i < n_vocab && best == -FLT_MAX; i++)
        n_finite += is_finite(logits[i]);
    if (best == -FLT_MAX && !n_finite)
        return -INFINITY;
    for (int32_t b = 0; b < n; b++) {
        const float *x = finite_block(kern, logits, n_vocab, b, pad, &highest);
        if (best - highest < ZERO_DISTANCE)
            kern->mass(x, 1, best, rounder, total, NULL);
    }
    return (double)best + fmath_log(sum_lanes(total));
}

void candidates_add(struct candidates *c, int32_t id, double more)
{
    int32_t at = candidates_find(c, id);
    if (at < 0)
        return;
    float *x = candidates_edit(c);
    x[at] = candidates_finite((float)((double)x[at] + more));
    candidates_changed(c, at);
}
