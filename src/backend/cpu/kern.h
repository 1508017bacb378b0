/* kern.h -- the CPU's kernel table. One template (vec_kernels.inl and attn_kernels.inl over
 * simd.h's logical 16-lane vector) is compiled once per instruction set; each object exports one
 * const table; overlays replace entries where an instruction changes the algorithm. Kernel objects
 * include only this file, simd.h and freestanding headers, and everything in them is static but the
 * table.
 *
 * The law (docs/numerics.md): every entry gives, for the same operands, the same bits at every
 * level. Order of operations per output element is fixed here; how elements are spread over lanes,
 * columns and threads is not part of it. Kernels return void and cannot fail. Aliasing: outputs may
 * be the same array as an input of the same shape where the op is element-wise; otherwise they are
 * disjoint.
 */
#ifndef PITH_CPU_KERN_H
#define PITH_CPU_KERN_H

#include <stddef.h>
#include <stdint.h>
#include "tensor/act.h"
#include "tensor/dtype_ids.h"

enum {
    KERN_PAGE = 64,
    KERN_SPAN = 1024
}; /* slots of a KV page; slots of an attention partial. Both are in the bits. */

/* Attention of n_rows query rows of one sequence with one kv head over slots [slot0, slot1) (within
 * one span, slot0 % 64 == 0).
 * q: row i, head h: q + i*q_ld + h*d_k, f32, already scaled. g query heads share the kv head. Page
 * p of the sequence begins at base + (int64)(pages[p] / 4) * page_bytes; K of this head at + k_off,
 * k_bytes long, V at + v_off, v_bytes long. Slot j of it lies in slot 16 * (pages[p] % 4) + j;
 * where that is not j, at most 16 are seen, and 48 slots of K behind the head can be read.
 * Numbers (f32 f16 bf16): K [d_k][64], V [64][d_v16] (d_v16 = d_v rounded up to 16, padding zero).
 * Block types (q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl; d a multiple of 32): K as four P16 panels of 16
 * slots (tensor/quant/packed.h), V as 64 rows of blocks as in a file.
 * latent: K and V are one: [64][row], a row being d_k elements as in a file (numbers: rounded up to
 * 16 elements, padding zero), its first d_v are V; v_off, v_bytes and v_type are those of K. Scores
 * are chains over the elements as numbers, whatever the type is.
 * Row i sees slots lo[i] <= s < hi[i]. For each page, in order, that a row sees a part of:
 *     s[j]  = numbers: fma chain over d = 0..d_k-1 of K[d][j] * q[d], from 0; block types:
 *           mm[k_type] of the panel with quant_a32(q)
 *             (then cap * tanh(s / cap) when cap > 0)
 *             (then, r = slot - at[i] being how far it lies behind the row's own:
 *             slopes: fma(slopes[h], -|r|, s); table: s + table[h][r + KERN_NEAR], r not beyond
 *             -KERN_NEAR .. KERN_FAR)
 *     pm = max of visible s, m1 = max(m, pm)  (a > b ? a : b); p[j] = exp(s[j] - m1), 0 where not
 *         visible
 *     ps = tree(+8,+4,+2,+1) of 16 lanes, each (p0 + p1) + (p2 + p3) over the page's four groups of
 *         16
 *     if m1 != m: c = exp(m - m1); l = fma(l, c, ps); o = o * c, else l = l + ps;   then o =
 *         fma(p[j], V[j], o) over visible j in order;
 *     an element of V blocks is d * w, of those with a minimum fma(d, w, m): d * w is exact
 * list: the only row sees the slots list[slot0] .. list[slot1 - 1], ascending, and no others; lo,
 * hi and at are not looked at, there are neither slopes nor table, and K has numbers or is latent.
 * Entry i of the list takes the place of slot i in all of the above: what lies together in a page
 * does not matter, what stands together in the list does. ratio > 1: as of the list of all slots
 * that have a row, ratio - 1, 2 ratio - 1, ..; latent.
 * tail: K of the page at slot tail_from + 64 i lies at tail + i (k_bytes + v_bytes), V behind it,
 * and `pages` is not looked at from there on; NULL: there is none.
 * m, l: [n_rows * g]; o: [n_rows * g][d_v16]. The call initialises them (m = -inf, l = 0, o = 0)
 * first. */
enum { KERN_NEAR = 144, KERN_FAR = 128, KERN_TABLE = 2 * KERN_NEAR }; /* as graph/ops/attention.h */

struct attn_job {
    const float *q;
    int64_t q_ld;
    int32_t n_rows, g, d_k, d_v;
    const int32_t *lo, *hi;
    const int32_t *at;   /* each row's own slot; for slopes and table */
    const float *slopes; /* [g], or NULL */
    const float *table;  /* [g][KERN_TABLE], or NULL */
    const int32_t *list; /* or NULL */
    const uint8_t *base;
    const int32_t *pages;
    const uint8_t *tail;
    int32_t tail_from;
    int64_t page_bytes, k_off, v_off, k_bytes, v_bytes;
    enum dtype k_type, v_type;
    int latent;
    int32_t every, ratio; /* slots that share a row in a page; tokens of a row, 0 is 1 */
    int32_t slot0, slot1;
    float cap;
    float *m, *l, *o;
    void *scratch; /* kern_attn_scratch bytes, 64-byte aligned */
};

/* Scores of a sparse indexer: n_head queries of one row with slots [a, b) of the page of K at `k`
 * (numbers, [d][64]), of which none beyond b rounded up to 16 is read.
 *     t[h] = fma chain over d of K[d][j] * q[h][d], from 0
 *     weights: s[j] = fma(w[h], t > 0 ? t : 0, s) over h in order, from 0
 *     NULL: s[j] = t of head 0; or, positive, s[j] = s + (t > 0 ? t : 0) over h in order, from 0
 * s[j] of other slots is -inf. */
struct index_job {
    const float *q; /* [n_head][d] */
    int32_t n_head, d;
    const float *weights; /* [n_head], or NULL: n_head is 1, or all count the same: */
    int positive;
    const uint8_t *k;
    enum dtype type;
    int64_t k_bytes;
    int a, b;
    float *s; /* [64] */
};

/* Linear attention: one row of a sequence and one head, whose state goes from `from` to
 * s [d_v][d_k] (the same array, or disjoint). s_i is that of `from` until it is set; t_i = s_i *
 * w_i, w a vector, or one number where per_key is 0; a sum over i is 16 interleaved fma chains by
 * element index and the tree of softmax. For each row of s (v = v[row]; y[row] is its result):
 *     GATED    s_i = fma(v, k_i, t_i);                                y = scale * (s . q)
 *     SHARED   as GATED, of the key fma(-k_i, w_i, k_i)
 *     BONUS    y = scale * sum of q_i * fma(v, a_i * k_i, s_i) over the old s; then s as GATED
 *     DELTA    u = beta * (v - t . k);  s_i = fma(u, k_i, t_i);       y = scale * (s . q)
 *     RANK1    u = s . a;  s_i = fma(v, k_i, fma(u, b_i, t_i));       y = scale * (s . q)
 * (sum of q_i * ..: fma(q_i, .., chain)) */
enum linear_rule { LINEAR_GATED, LINEAR_SHARED, LINEAR_BONUS, LINEAR_DELTA, LINEAR_RANK1 };
struct linear_row {
    enum linear_rule rule;
    int32_t d_k, d_v, per_key;
    float beta, scale;
    const float *q, *k, *w, *a, *b; /* [d_k] */
    const float *v, *from;          /* [d_v], [d_v][d_k] */
    float *s, *y;                   /* [d_v][d_k], [d_v] */
};

/* Convolution over time of n channels, each by itself: rows [first, end) of a segment of n_rows.
 *     y[r][c] = sum over k < width, in order, of w[c][k] * x[r - left + k step][c], an fma chain
 *               from 0, then + b[c] where there is b; w NULL: x[r - left][c], or 0
 * What comes before row 0 is row before[left + i] (i < 0), what comes after the last row is left
 * out; so is what comes before when that is NULL. */
enum { KERN_CONV_WIDTH = 64 }; /* at most */
struct conv_job {
    const float *x, *before, *w, *b;
    float *y; /* of row 0, as x */
    int64_t x_ld, before_ld, y_ld, n;
    int32_t width, left, step, n_rows, first, end;
};

/* Rows of a group of n columns by one mean and one variance: y = (x - mean) * (1/sqrt(var + eps)).
 * Both sums go over the group's elements row by row, as those of layer_norm. */
struct group_job {
    const float *x;
    float *y;
    int64_t x_ld, y_ld, n_rows, n;
    float eps;
};

/* Gates of n residual streams, of one row's numbers x [n], [2n] or [(2 + n) n]: m = fma(x, scale of
 * its part, base); part 0: sigmoid(m) + eps, part 1: magnitude * sigmoid(m) + post_eps, part 2 a
 * matrix: each row its softmax (sum in 16 lanes and the tree) plus eps; then each column divided by
 * its sum plus eps, and `iterations` - 1 times rows and columns so. Those sums are chains in order,
 * from 0. */
enum { KERN_STREAMS = 16 }; /* at most */
struct gates_job {
    const float *x, *scale, *base;
    float *y;
    int32_t n, cols, iterations;
    float eps, magnitude, post_eps;
};

typedef void kern_mm_fn(const void *panel, int64_t n, const struct act_tile *a, float *y);
typedef void kern_mm_pair_fn(const void *const panel[2], int64_t n, const struct act_tile *a,
                             float *const y[2]);
typedef void kern_mm_many_fn(const void *panel, int64_t n, const struct act_tile *a, int n_tiles,
                             float *y);
typedef void kern_pack_fn(const uint8_t *rows, int64_t row_bytes, int64_t n, void *panel);

/* What a job's scratch holds, part by part, each 64-byte aligned; by its shape: d_k, d_v, types,
 * bytes of K and V, latent, how many query vectors it has at most and whether there is a list. */
enum kern_attn_part {
    KERN_ATTN_QUERIES, /* a tile of queries side by side; block types: all in A32, and one tile */
    KERN_ATTN_TURNED,  /* a page of a latent K by dimension */
    KERN_ATTN_NUMBERS, /* V of a page as numbers */
    KERN_ATTN_LISTED,  /* the slots of a list */
    KERN_ATTN_END
};
static inline int kern_attn_numbers(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}
static inline size_t kern_attn_at(const struct attn_job *j, int64_t n_vectors,
                                  enum kern_attn_part part)
{
    size_t page = KERN_PAGE * sizeof(float), at = 0;
    if (part > KERN_ATTN_QUERIES)
        at = j->latent || kern_attn_numbers(j->k_type)
                 ? (size_t)(ACT_TILE * j->d_k) * sizeof(float)
                 : (size_t)((n_vectors + ACT_TILE) * (j->d_k + j->d_k / 32 * 8));
    at = (at + 63) & ~(size_t)63;
    if (part > KERN_ATTN_TURNED && j->latent)
        at += (size_t)((j->d_k + 15) / 16 * 16) * page;
    if (part > KERN_ATTN_NUMBERS && !kern_attn_numbers(j->latent ? j->k_type : j->v_type))
        at += (size_t)((j->d_v + 15) / 16 * 16) * page;
    return at;
}
static inline size_t kern_attn_scratch(const struct attn_job *j, int64_t n_vectors, int listed)
{
    return kern_attn_at(j, n_vectors, KERN_ATTN_END) +
           (listed ? (size_t)(j->k_bytes + (j->latent ? 0 : j->v_bytes)) : 0);
}

struct kern {
    const char *name;
    /* Attention of several query vectors asks for lines ahead into the second-level cache instead
     * of the first: speed alone. */
    int ahead_second;
    /* y[c*R + r], c < a->nc, r < R: R = 16 rows of a P16 panel or 64 rows of a P64 panel with all
     * columns of the tile, orders of docs/numerics.md. n = K elements. NULL where the type has no
     * packed layout. y is 64-byte aligned. */
    kern_mm_fn *mm[DT_COUNT];
    /* The same of two panels and a tile of one column, to y[0] and y[1]: two streams of weights are
     * read faster than one on some machines. NULL where nothing is gained. */
    kern_mm_pair_fn *pair[DT_COUNT];
    /* The same of a panel and n_tiles full tiles, those of tile t to y + t * 16 R: weights are
     * decoded once for all of them. NULL where nothing is gained. */
    kern_mm_many_fn *many[DT_COUNT];
    /* A whole panel (16 or 64 rows that follow each other in the file) of n elements a row, as
     * dtypes[].pack makes it. NULL: that one does. */
    kern_pack_fn *pack[DT_COUNT];
    /* Activation quantisers: contracts of tensor/act.h. */
    void (*quant_a32)(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c);
    void (*quant_a256)(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c);
    void (*to_bf16)(const float *x, int64_t n, uint16_t *h);
    /* y = (x * (1/sqrt(mean(x^2) + eps))) * w; w NULL: without. Sum of squares: 64 interleaved fma
     * chains by element index, then (0+16)+(32+48) pairs: chain i of 16 lanes combined (a0 + a1) +
     * (a2 + a3), then the tree +8, +4, +2, +1. Any n. */
    void (*rms_norm)(const float *x, const float *w, float *y, int64_t n, float eps);
    /* y = ((x - mean) * (1/sqrt(var + eps))) * w + b (fma); mean and var sums as above (x added;
     * fma of x - mean with itself), divided by (float)n; w, b NULL: without (times w, or plus b,
     * alone). */
    void (*layer_norm)(const float *x, const float *w, const float *b, float *y, int64_t n,
                       float eps);
    void (*add)(const float *x, const float *y, float *z, int64_t n);
    void (*mul)(const float *x, const float *y, float *z, int64_t n);
    void (*div)(const float *x, const float *y, float *z, int64_t n); /* x / y */
    void (*scale)(const float *x, float s, float b, float *y, int64_t n); /* y = fma(x, s, b) */
    void (*axpy)(float a, const float *x, float *y, int64_t n);           /* y = fma(a, x, y) */
    /* y[j] = fma(x[i], w[i * n + j], y[j]) for i = 0 .. k - 1 in order. */
    void (*mix)(const float *x, const float *w, int64_t k, int64_t n, float *y);
    /* Gated activations: z = act(g) * u; u NULL: z = act(g). Exact orders of gelu, gelu_erf and
     * tanh: below, with exp. */
    void (*silu)(const float *g, const float *u, float *z, int64_t n); /* g / (1 + exp(-g)) */
    void (*gelu)(
        const float *g, const float *u, float *z,
        int64_t n); /* tanh form: g / (1 + exp(-2 u')), u' = sqrt(2/pi) (g + 0.044715 g^3) */
    void (*gelu_erf)(const float *g, const float *u, float *z,
                     int64_t n); /* 0.5 g (1 + erf(g / sqrt 2)), absolute error < 1e-6 */
    void (*gelu_quick)(const float *g, const float *u, float *z,
                       int64_t n);                                     /* g / (1 + exp(-1.702 g)) */
    void (*relu)(const float *g, const float *u, float *z, int64_t n); /* g > 0 ? g : 0 */
    void (*relu2)(const float *g, const float *u, float *z, int64_t n); /* relu squared */
    void (*sigmoid)(const float *x, float *y, int64_t n);               /* 1 / (1 + exp(-x)) */
    void (*softcap)(const float *x, float cap, float *y, int64_t n);    /* cap * tanh(x / cap) */
    void (*exp)(const float *x, float *y, int64_t n);
    /* Below lo: lo, above hi: hi, NaN stays: y = lo > x ? lo : x, then hi < y ? hi : y. */
    void (*clamp)(const float *x, float lo, float hi, float *y, int64_t n);
    /* 0 < x: fma(c0 x, x, c2 x), else fma(c1, (exp(c3 < x ? c3 : x) - 1) - x, c2 x) */
    void (*xielu)(const float *x, const float c[4], float *y, int64_t n);
    /* Rotates one head in place: pairs (x[2i], x[2i+1]) (norm) or (x[i], x[i + n_rot/2]) (neox), i
     * < n_rot/2; a' = fma(-b, s, a * c), b' = fma(b, c, a * s) with a*c, a*s rounded first. */
    void (*rope_norm)(float *x, const float *cosv, const float *sinv, int n_rot);
    void (*rope_neox)(float *x, const float *cosv, const float *sinv, int n_rot);
    /* y = H x of each b of n numbers, b = 32, 64, 128 or 256: for h = 1, 2, .. b / 2 each pair
     * (x[i], x[i + h]), i without the bit h, becomes (x[i] + x[i + h], x[i] - x[i + h]); then times
     * scale. y may be x. */
    void (*hadamard)(const float *x, float *y, int64_t n, int b, float scale);
    /* z = fma(y - x, t, x) */
    void (*lerp)(const float *x, const float *y, const float *t, float *z, int64_t n);
    /* One more token of n channels to a pool, acc: m, l, o of n each (graph/ops/scan.h). */
    void (*pool)(float *acc, const float *x, const float *gate, const float *ape, int64_t n,
                 int first);
    /* One channel of a state space and one row: d = exp(dt * a[0]), or exp(dt * a[i]) when
     * per_state; h = fma(dt * x, b, h * d); returns c . h (16 interleaved fma chains, the tree). */
    float (*ssm)(float *h, const float *a, int per_state, float dt, float x, const float *b,
                 const float *c, int n);
    void (*linear)(const struct linear_row *j);
    void (*conv)(const struct conv_job *j);
    void (*group_norm)(const struct group_job *j);
    void (*gates)(const struct gates_job *j);
    void (*attn)(const struct kern *k,
                 const struct attn_job *j); /* k: whose mm and quant_a32 it calls */
    void (*index)(const struct index_job *j);
    /* Merge of span partials, left to right, into M, L, O of one head: x = max(M, m); a = exp(M -
     * x); b = exp(m - x); L = fma(L, a, l * b); O = fma(O, a, o * b). A partial with l = 0 is
     * skipped; the first one that is not is copied. */
    void (*attn_merge)(float *M, float *L, float *O, const float *m, const float *l, const float *o,
                       int d);
    /* Conversions for the cache and rows of weights. */
    void (*f32_to_f16)(const float *x, uint16_t *y, int64_t n);
    /* Dot product of two f32 vectors: 64 interleaved chains and the tree of rms_norm. */
    float (*dot)(const float *x, const float *y, int64_t n);
    /* out[i * ld + r] = y[i * n + r], i < columns, r < n: a finished tile to its rows, which are
     * too much for the caches, so they are not brought into these first. n and ld are multiples of
     * 16, out is 64-byte aligned. put_end: before anybody else reads what this thread has put. */
    void (*put_far)(const float *y, int columns, int64_t n, float *out, int64_t ld);
    void (*put_end)(void);
    /* Machine limits (pith bench): reads n bytes; runs n rounds of dot/fma instructions and returns
     * how many operations that was. */
    uint64_t (*roof_read)(const void *p, size_t n);
    double (*roof_int8)(int64_t rounds);
    double (*roof_f32)(int64_t rounds);
};

/* exp of every kernel: t = fma(x, log2 e, 1.5*2^23); n = t - 1.5*2^23; r = fma(n, -0.693359375, x),
 * r = fma(n, 2.12194440e-4, r); degree-6 polynomial (1.9875691500e-4, 1.3981999507e-3,
 * 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1), p = fma(p, r*r, r), p + 1;
 * the exponent is added as an integer. x < -87.33 gives +0; 88.0 < x is taken as 88.0; NaN gives
 * NaN.
 * Polynomials are Horner, highest coefficient first, one fma a step.
 * gelu: x = fma(g*g, -0.071354816, -1.5957691216) * g; g / (1 + exp(x)).
 * gelu_erf: x = |g| * 0.70710678; t = 1 / fma(0.3275911, x, 1); e = poly(t; 1.061405429,
 * -1.453152027, 1.421413741, -0.284496736, 0.254829592)
 * * t * exp(-x * x), from the left; (0.5 * g) * (g < 0 ? e : 2 - e).
 * tanh: |x| < 0.625: z = x*x; fma(poly(z; -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
 * 1.33314422036e-1, -3.33332819422e-1) * z, x, x), else 1 - 2 / (exp(2|x|) + 1) with the sign of x.
 */

const struct kern *
kern_table(int level); /* enum cpu_level; the table with every overlay up to that level */

#endif
