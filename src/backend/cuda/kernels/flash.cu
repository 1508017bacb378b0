/* flash.cu -- attention on tensor cores: what attn.cu computes, in numbers of 16 bits with f32
 * sums, for who has not asked for the same bits from batch to batch. Pages of f16 or bf16 are
 * multiplied as they are, those of blocks as f16.
 *
 * A block takes up to ROWS rows of one segment and one kv head: row i is query head i % g of that
 * head's group of g, of the segment's row i / g, so a group's heads share what is read of K and V.
 *
 *     many rows  a warp has 16 MT of them to itself; a tile of SLOTS slots is all warps'
 *     few rows   16 of them: a warp has tiles of its own, each fourth of them; what the warps have
 *                found is merged at the end
 *     9.0        of many: four warps multiply 64 of them together (below)
 *
 * In turns, a *team* being the threads that have a tile in common:
 *
 *     S = Q K             V is fetched meanwhile
 *     P = 2^(S - m), O = O 2^(m' - m) + P V      the next K is fetched meanwhile
 *
 *     q [ROWS][D]  rows of Q, scaled by a power of two each
 *     k [D][SLOTS] as pages have numbers; of blocks [SLOTS][D]
 *     v [SLOTS][D]
 *
 * Lines have a gap of 16 bytes behind them: eight lines begin in eight different groups of banks.
 * m is the largest score in units of log 2; P is 2^14 times what it should be, so that f16 loses
 * little of small weights.
 *
 * Rows of a block do not see each other's slots, but what is not finite in V makes not finite what
 * all rows of its block have there. A kernel for each size of heads, flash_TYPE_D and
 * flash_few_TYPE_D: d_k and d_v are D at most, zeros are put behind. spec: pages.cuh; [3]: cap,
 * slopes, table. p: as attn.cu; part i of a row is the i-th `ldb` slots of what its block sees, the
 * last part all that is left. */
#include "tensor.cuh"

/* A shape S tells how many warps (WARPS) and rows (ROWS) a block has, numbers of a key (D) and how
 * far apart they lie (LINE); what a block has in shared memory begins with Rows<S>. */
enum { NEAR = 144, CAP = 1, SLOPES = 2, TABLE = 4 };
#define LOG2_E  1.44269504f
#define LN_2    0.693147181f
#define UP      14.0f             /* weights are 2^UP times too large */
#define DOWN    0.00006103515625f /* 2^-UP */
#define FOREVER 0x7fffffff

template <class S> struct Rows {
    alignas(16) uint16_t q[S::ROWS * S::LINE]; /* scaled by a power of two each, */
    float down[S::ROWS];                      /* which this undoes */
    int lo[S::ROWS], hi[S::ROWS], own[S::ROWS];
    int range[S::WARPS][4];
};

/* Which rows a block has: `n` from `first` on of the segment whose first row is `row`, in groups of
 * g query heads. n 0: none. */
struct Block {
    uint32_t seg, row, first, n, g, head;
};
/* Slots that its rows see: from the least lo to the greatest hi; all of them see those from `late`
 * to `early`. */
struct Range {
    int lo, hi, late, early;
};

/* Where number d of row i lies among rows of Q. */
template <class S> FN uint32_t place_in_rows(uint32_t i, uint32_t d)
{
    if (S::SWIZZLED) /* 64 numbers of all rows are lines of 128 bytes; then the next 64 */
        return (d / 64 * S::ROWS + i) * 64 + ((d / 8 % 8) ^ (i % 8)) * 8 + d % 8;
    return i * S::LINE + d;
}

FN uint32_t thread_of() { return threadIdx.y * 32 + threadIdx.x; }
FN uint32_t head_of(const Block &b, uint32_t i) { return b.head * b.g + (b.first + i) % b.g; }

/* ---------------------------------------------------------------- rows */

/* Blocks of a segment from its last rows on, which see most. */
template <class S> FN Block block_of(const Args &arg)
{
    uint32_t u = blockIdx.x, n = (uint32_t)step_at(arg, 2), g = arg.p[10] / arg.p[3];
    for (uint32_t seg = 0; seg < n; seg++) {
        uint32_t row = (uint32_t)step_first(arg, seg);
        uint32_t all = ((uint32_t)step_first(arg, seg + 1) - row) * g;
        uint32_t blocks = (all + S::ROWS - 1) / S::ROWS;
        if (u < blocks) {
            uint32_t first = (blocks - 1 - u) * S::ROWS;
            return Block{seg, row, first, least(all - first, S::ROWS), g, blockIdx.y};
        }
        u -= blocks;
    }
    return Block{0, 0, 0, 0, 1, 0};
}

/* A warp takes one row after the other. */
template <int TYPE, class S> FN void load_rows(const Args &arg, const Block &b, Rows<S> &s)
{
    enum { D = S::D, EACH = (D + 31) / 32 };
    uint32_t l = threadIdx.x, d_k = arg.p[4], group = arg.p[0];
    for (uint32_t i = threadIdx.y; i < S::ROWS; i += S::WARPS) {
        bool some = i < b.n;
        uint32_t r = b.row + (some ? (b.first + i) / b.g : 0);
        const float *from = row_of(arg.a, r, arg.lda) + head_of(b, i) * d_k;
        float x[EACH], most = 0;
        UNROLL for (uint32_t c = 0; c < EACH; c++) {
            x[c] = some && l + 32 * c < d_k ? from[l + 32 * c] : 0;
            most = largest(most, fabsf(x[c]));
        }
        UNROLL for (int mask = 16; mask > 0; mask /= 2)
            most = largest(most, lane_xor(most, mask));
        Scale k = scale_of(TYPE, most);
        UNROLL for (uint32_t c = 0; c < EACH; c++)
            if (l + 32 * c < D)
                s.q[place_in_rows<S>(i, l + 32 * c)] = (uint16_t)pack<TYPE>(x[c] * k.up, 0);
        if (l == 0) {
            s.down[i] = k.down;
            s.lo[i] = some ? step_lo(arg, group, r) : 0;
            s.hi[i] = some ? step_hi(arg, group, r) : 0;
            s.own[i] = step_slot(arg, group, r);
        }
    }
}

FN int lower(int a, int b) { return b < a ? b : a; }
FN int higher(int a, int b) { return b > a ? b : a; }
FN int lane_int(int x, int mask) { return (int)lane_xor((uint32_t)x, mask); }
FN Range both_of(const Range &a, const Range &b)
{
    return Range{lower(a.lo, b.lo), higher(a.hi, b.hi), higher(a.late, b.late),
                 lower(a.early, b.early)};
}

template <class S> FN Range range_of(const Block &b, Rows<S> &s)
{
    uint32_t t = thread_of();
    Range r = {FOREVER, 0, 0, FOREVER};
    __syncthreads();
    if (t < b.n)
        r = s.lo[t] < s.hi[t] ? Range{s.lo[t], s.hi[t], s.lo[t], s.hi[t]} : Range{FOREVER, 0, 0, 0};
    UNROLL for (int mask = 16; mask > 0; mask /= 2)
        r = both_of(r, Range{lane_int(r.lo, mask), lane_int(r.hi, mask), lane_int(r.late, mask),
                             lane_int(r.early, mask)});
    if (threadIdx.x == 0) {
        int *to = s.range[threadIdx.y];
        to[0] = r.lo;
        to[1] = r.hi;
        to[2] = r.late;
        to[3] = r.early;
    }
    __syncthreads();
    UNROLL for (int w = 0; w < S::WARPS; w++)
        r = both_of(r, Range{s.range[w][0], s.range[w][1], s.range[w][2], s.range[w][3]});
    return r;
}

/* What of a block's range is this part's. */
FN Range part_of(const Args &arg, const Range &all)
{
    Range r = all;
    int parts = (int)arg.p[12], part = (int)blockIdx.z, n = (int)arg.ldb;
    if (all.lo >= all.hi)
        return Range{0, 0, 0, 0};
    int from = all.lo / n * n + part * n;
    if (part > 0)
        r.lo = higher(all.lo, from);
    if (part + 1 < parts)
        r.hi = lower(all.hi, from + n);
    return r.lo < r.hi ? r : Range{0, 0, 0, 0};
}

/* ---------------------------------------------------------------- scores */

FN float capped(float x, float cap)
{
    return cap - quotient(2 * cap, power_of_two(quotient(x, cap) * (2 * LOG2_E)) + 1);
}

/* Sixteen rows from `row` on by slots from p0 on, as a warp has them: cap, and what distances add;
 * scores become those of m, which is in units of log 2. */
template <class S, int NT>
FN void change_scores(const Args &arg, const Rows<S> &s, const Block &b, uint32_t row, int p0,
                      float (&x)[NT][4])
{
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        uint32_t mine = row + threadIdx.x / 4 + 8 * i, h = head_of(b, mine);
        const float *bias = f32_at(arg.bias);
        float down = s.down[mine], slope = arg.spec[3] & SLOPES ? bias[h] : 0;
        int from = p0 + (int)(2 * (threadIdx.x % 4)) - s.own[mine];
        UNROLL for (uint32_t e = 0; e < 2 * NT; e++) {
            float &y = x[e / 2][2 * i + e % 2];
            int r = from + (int)(e / 2 * 8 + e % 2);
            y = y * down;
            if (arg.spec[3] & CAP)
                y = capped(y, arg_f(arg, 11));
            if (arg.spec[3] & TABLE)
                y = y + bias[(int)h * 2 * NEAR + NEAR + bound(r, -NEAR, NEAR - 1)];
            y = fmaf(slope, -(float)(r < 0 ? -r : r), y) * LOG2_E;
        }
    }
}

/* Slots that a row does not see have no weight. */
template <class S, int NT>
FN void hide_scores(const Rows<S> &s, uint32_t row, int p0, float (&x)[NT][4])
{
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        uint32_t mine = row + threadIdx.x / 4 + 8 * i;
        int lo = s.lo[mine], hi = s.hi[mine], from = p0 + (int)(2 * (threadIdx.x % 4));
        UNROLL for (uint32_t e = 0; e < 2 * NT; e++) {
            int slot = from + (int)(e / 2 * 8 + e % 2);
            float &y = x[e / 2][2 * i + e % 2];
            y = slot >= lo && slot < hi ? y : none();
        }
    }
}
/* What makes a row's scores those of m. */
template <class S> FN float scale_of_scores(const Args &arg, const Rows<S> &s, uint32_t row)
{
    return arg.spec[3] ? 1.0f : s.down[row] * LOG2_E;
}

/* Of the four lanes that have a row. */
FN float most_of_four(float x)
{
    x = fmaxf(x, lane_xor(x, 1));
    return fmaxf(x, lane_xor(x, 2));
}
FN float sum_of_four(float x)
{
    x = x + lane_xor(x, 1);
    return x + lane_xor(x, 2);
}

/* ---------------------------------------------------------------- results */

/* What a row and head of the block has in this part; o: its first output. */
struct Result {
    float *m, *l, *o;
};
FN Result result_of(const Args &arg, const Block &b, uint32_t row)
{
    uint32_t n = arg.p[10], h = head_of(b, row), r = b.row + (b.first + row) / b.g;
    float *y = row_of(arg.dst, (uint64_t)r * arg.p[12] + blockIdx.z, arg.ld);
    return Result{y + h, y + n + h, y + 2 * n + h * (arg.cols / n - 2)};
}

FN void put_weight(const Result &y, float m, float l)
{
    *y.m = l == 0 ? none() : m * LN_2;
    *y.l = l * DOWN;
}

/* ---------------------------------------------------------------- K and V */

template <int SIZE, bool FEW_ROWS> struct Shape { /* flash.c has the same */
    enum { WARPS = 4, THREADS = 32 * WARPS };
    enum { D = SIZE, FEW = FEW_ROWS, TEAMS = FEW ? THREADS / 32 : 1, TEAM = THREADS / TEAMS };
    enum { MT = FEW || D > 128 ? 1 : 2, ROWS = FEW ? 16 : 16 * MT * WARPS, SWIZZLED = 0 };
    enum { SLOTS = FEW ? (D < 128 ? 32 : 16) : (D <= 96 ? 64 : 32), NT = SLOTS / 8 };
    enum { LINE = D + 8, K_LINE = SLOTS + 8, PIECES = SLOTS * D / 8 / TEAM };
};

/* What a team has of K and V. */
template <class S> struct Tile {
    alignas(16) uint16_t k[S::D * S::K_LINE];
    alignas(16) uint16_t v[S::SLOTS][S::LINE];
};
template <class S> struct Tiles : Rows<S> {
    Tile<S> tile[S::TEAMS];
    float m[S::TEAMS][16], l[S::TEAMS][16]; /* few rows: of each warp */
};

/* A lane's sums: of rows l / 4 and l / 4 + 8 of MT times 16. k: what makes scores those of m. */
template <class S> struct Sums {
    float o[S::MT][S::D / 8][4];
    float m[S::MT][2], l[S::MT][2], k[S::MT][2];
};
template <class S> struct Scores {
    float s[S::MT][S::NT][4];
};

FN uint32_t first_row(int mt, bool few, uint32_t m)
{
    return few ? 0 : (threadIdx.y * mt + m) * 16;
}
/* The block's row that is number i, of two, of a lane's in its m-th sixteen. */
template <class S> FN uint32_t row_in(int m, int i)
{
    return first_row(S::MT, S::FEW, (uint32_t)m) + threadIdx.x / 4 + 8 * (uint32_t)i;
}
template <class S> FN uint32_t team_of() { return S::FEW ? threadIdx.y : 0; }
template <class S> FN uint32_t thread_in_team() { return S::FEW ? threadIdx.x : thread_of(); }
template <class S> FN void sync_team()
{
    if (S::FEW)
        warp_sync();
    else
        __syncthreads();
}

/* ---------------------------------------------------------------- tiles of K and V */

/* What f16 cannot hold is the most that it can. */
FN float held(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

/* Eight numbers of a row of blocks, as f16; none: zeros. */
FN void put_eight(uint16_t *to, int type, uint64_t row, uint32_t k8, bool some)
{
    Quad q = {{0, 0, 0, 0}};
    if (some) {
        Eight w = decode32(type, row, k8);
        UNROLL for (int i = 0; i < 4; i++)
            q.v[i] = pack<T_F16>(held(w.v[2 * i]), held(w.v[2 * i + 1]));
    }
    put_quad(to, q);
}

/* A tile's slots from p0 on; of those from `end` on nothing is read. */
template <class S, bool ROWS_K>
FN void fetch_k(const Args &arg, Tile<S> &to, const Block &b, int p0, int end)
{
    enum { D = S::D };
    uint32_t at, t = thread_in_team<S>(), n = (uint32_t)(end - p0), d_k = arg.p[4];
    uint64_t page = page_of(arg, b.seg, (uint32_t)p0, &at);
    if (ROWS_K) {
        ROLLED for (uint32_t i = t; i < S::SLOTS * D / 8; i += S::TEAM) {
            uint32_t j = i / (D / 8), o = i % (D / 8);
            put_eight(&to.k[j * S::LINE + 8 * o], k_type(arg), k_place(arg, page, b.head, at + j),
                      o, j < n && 8 * o < d_k);
        }
    } else {
        uint64_t from = k_place(arg, page, b.head, at);
        UNROLL for (uint32_t c = 0; c < S::PIECES; c++) {
            uint32_t i = t + S::TEAM * c, d = i / S::NT, j = i % S::NT * 8;
            fetch16(&to.k[d * S::K_LINE + j], from + 2 * (uint64_t)(PAGE * d + j),
                    d < d_k && j < n);
        }
    }
    end_stage();
}

/* The same of V, where nothing is read before slot `begin` either: those have no weight, and must
 * be finite. */
template <int TYPE, class S>
FN void fetch_v(const Args &arg, Tile<S> &to, const Block &b, int p0, int begin, int end)
{
    enum { D = S::D };
    uint32_t at, t = thread_in_team<S>(), d_v = arg.p[5], bytes = arg.p[9] / PAGE;
    uint64_t page = page_of(arg, b.seg, (uint32_t)p0, &at);
    uint64_t from = v_place(arg, page, b.head, at);
    if (v_type(arg) == TYPE) {
        UNROLL for (uint32_t c = 0; c < S::PIECES; c++) {
            uint32_t i = t + S::TEAM * c, j = i / (D / 8), o = i % (D / 8);
            int slot = p0 + (int)j;
            fetch16(&to.v[j][8 * o], from + (uint64_t)j * bytes + 16 * o,
                    slot >= begin && slot < end && 8 * o < d_v);
        }
    } else {
        ROLLED for (uint32_t i = t; i < S::SLOTS * D / 8; i += S::TEAM) {
            uint32_t j = i / (D / 8), o = i % (D / 8);
            int slot = p0 + (int)j;
            put_eight(&to.v[j][8 * o], v_type(arg), from + (uint64_t)j * bytes, o,
                      slot >= begin && slot < end && 8 * o < d_v);
        }
    }
    end_stage();
}

/* ---------------------------------------------------------------- a warp's part */

template <int TYPE, class S, bool ROWS_K>
FN void multiply_k(const Tiles<S> &s, const Tile<S> &at, Scores<S> &x)
{
    uint32_t l = threadIdx.x;
    UNROLL for (int i = 0; i < 4 * S::MT * S::NT; i++)
        x.s[i / (4 * S::NT)][i / 4 % S::NT][i % 4] = 0;
    UNROLL for (uint32_t d = 0; d < S::D; d += 16) {
        uint32_t a[S::MT][4], b[4];
        UNROLL for (uint32_t m = 0; m < S::MT; m++)
            matrices4(a[m], &s.q[place_in_rows<S>(first_row(S::MT, S::FEW, m) + l % 16,
                                                  d + l / 16 * 8)]);
        UNROLL for (uint32_t n = 0; n < S::NT; n += 2) {
            if (ROWS_K)
                matrices4(b, &at.k[((n + l / 16) * 8 + l % 8) * S::LINE + d + l / 8 % 2 * 8]);
            else
                turned4(b, &at.k[(d + l % 16) * S::K_LINE + n * 8 + l / 16 * 8]);
            UNROLL for (uint32_t m = 0; m < S::MT; m++) {
                multiply<TYPE>(x.s[m][n], a[m], b[0], b[1]);
                multiply<TYPE>(x.s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Scores become weights of what m is then. */
template <class S> FN void weigh(Sums<S> &sum, Scores<S> &x)
{
    UNROLL for (int m = 0; m < S::MT; m++)
        UNROLL for (int i = 0; i < 2; i++) {
            float most = none(), l = 0, k = sum.k[m][i];
            UNROLL for (int e = 0; e < 2 * S::NT; e++)
                most = fmaxf(most, x.s[m][e / 2][2 * i + e % 2]);
            most = fmaxf(sum.m[m][i], most_of_four(most) * k);
            float top = most == none() ? 0 : most, by = power_of_two(sum.m[m][i] - top);
            UNROLL for (int e = 0; e < 2 * S::NT; e++) {
                float &y = x.s[m][e / 2][2 * i + e % 2];
                y = power_of_two(fmaf(y, k, UP - top));
                l = l + y;
            }
            sum.m[m][i] = most;
            sum.l[m][i] = fmaf(sum.l[m][i], by, l);
            UNROLL for (int n = 0; n < S::D / 8; n++) {
                sum.o[m][n][2 * i] = sum.o[m][n][2 * i] * by;
                sum.o[m][n][2 * i + 1] = sum.o[m][n][2 * i + 1] * by;
            }
        }
}

/* A lane's weights of two tiles of scores are its part of sixteen slots. */
template <int TYPE, class S>
FN void multiply_v(const Tile<S> &at, const Scores<S> &x, Sums<S> &sum)
{
    uint32_t l = threadIdx.x;
    UNROLL for (uint32_t j = 0; j < S::NT / 2; j++) {
        uint32_t a[S::MT][4], b[4];
        UNROLL for (uint32_t m = 0; m < S::MT; m++)
            UNROLL for (uint32_t i = 0; i < 4; i++)
                a[m][i] = pack<TYPE>(x.s[m][2 * j + i / 2][i % 2 * 2],
                                     x.s[m][2 * j + i / 2][i % 2 * 2 + 1]);
        UNROLL for (uint32_t n = 0; n < S::D / 8; n += 2) {
            turned4(b, &at.v[16 * j + l % 16][8 * n + l / 16 * 8]);
            UNROLL for (uint32_t m = 0; m < S::MT; m++) {
                multiply<TYPE>(sum.o[m][n], a[m], b[0], b[1]);
                multiply<TYPE>(sum.o[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* ---------------------------------------------------------------- results */

template <class S> FN void write_rows(const Args &arg, const Block &b, const Sums<S> &sum)
{
    uint32_t padded = arg.cols / arg.p[10] - 2;
    UNROLL for (int m = 0; m < S::MT; m++)
        UNROLL for (int i = 0; i < 2; i++) {
            uint32_t row = row_in<S>(m, i);
            float l = sum_of_four(sum.l[m][i]);
            if (row >= b.n)
                continue;
            Result y = result_of(arg, b, row);
            if (threadIdx.x % 4 == 0)
                put_weight(y, sum.m[m][i], l);
            UNROLL for (uint32_t c = 0; c < S::D / 8; c++) {
                uint32_t d = 8 * c + 2 * (threadIdx.x % 4);
                if (d < padded)
                    put_two(y.o + d, sum.o[m][c][2 * i] * DOWN, sum.o[m][c][2 * i + 1] * DOWN);
            }
        }
}

/* Few rows: what the warps have found goes where tiles were, and a warp merges one row after the
 * other. */
template <class S> FN void merge_rows(const Args &arg, const Block &b, Tiles<S> &s, Sums<S> &sum)
{
    static_assert(sizeof s.tile >= S::WARPS * 16 * S::LINE * sizeof(float), "room for all sums");
    float *all = (float *)s.tile;
    uint32_t w = threadIdx.y, lane = threadIdx.x, padded = arg.cols / arg.p[10] - 2;
    __syncthreads();
    UNROLL for (int i = 0; i < 2; i++) {
        uint32_t row = row_in<S>(0, i);
        float l = sum_of_four(sum.l[0][i]);
        if (lane % 4 == 0) {
            s.m[w][row] = sum.m[0][i];
            s.l[w][row] = l;
        }
        UNROLL for (uint32_t c = 0; c < S::D / 8; c++)
            put_two(all + (w * 16 + row) * S::LINE + 8 * c + 2 * (lane % 4), sum.o[0][c][2 * i],
                    sum.o[0][c][2 * i + 1]);
    }
    __syncthreads();
    for (uint32_t row = w; row < b.n; row += S::WARPS) {
        Result y = result_of(arg, b, row);
        float top = none(), l = 0, by[S::WARPS];
        UNROLL for (int i = 0; i < S::WARPS; i++)
            top = fmaxf(top, s.m[i][row]);
        UNROLL for (int i = 0; i < S::WARPS; i++) {
            by[i] = s.m[i][row] == none() ? 0 : power_of_two(s.m[i][row] - top);
            l = fmaf(s.l[i][row], by[i], l);
        }
        if (lane == 0)
            put_weight(y, top, l);
        for (uint32_t d = 2 * lane; d < padded; d += 64) {
            float o[2] = {0, 0};
            UNROLL for (uint32_t i = 0; i < S::WARPS; i++)
                UNROLL for (uint32_t e = 0; e < 2; e++)
                    o[e] = fmaf(all[(i * 16 + row) * S::LINE + d + e], by[i], o[e]);
            put_two(y.o + d, o[0] * DOWN, o[1] * DOWN);
        }
    }
}

template <class S> FN void no_sums(const Args &arg, const Rows<S> &s, Sums<S> &sum)
{
    UNROLL for (int m = 0; m < S::MT; m++) {
        UNROLL for (int i = 0; i < S::D / 2; i++)
            sum.o[m][i / 4][i % 4] = 0;
        UNROLL for (int i = 0; i < 2; i++) {
            sum.m[m][i] = none();
            sum.l[m][i] = 0;
            sum.k[m][i] = scale_of_scores<S>(arg, s, row_in<S>(m, i));
        }
    }
}

/* ---------------------------------------------------------------- a block */

/* A team's first tile: those of a warp are each fourth, by slots, whatever the block sees. */
template <class S> FN int first_tile(const Range &r)
{
    uint32_t tile = (uint32_t)r.lo / S::SLOTS;
    return (int)((tile + (team_of<S>() - tile) % S::TEAMS) * S::SLOTS);
}

template <int TYPE, class S, bool ROWS_K> FN void flash(const Args &arg)
{
    enum { EVERY = S::SLOTS * S::TEAMS };
    Tiles<S> &s = *(Tiles<S> *)shared_memory();
    Tile<S> &tile = s.tile[team_of<S>()];
    Block b = block_of<S>(arg);
    Sums<S> sum;
    Scores<S> x;
    if (b.n == 0)
        return;
    Rows<S> &rows = s;
    load_rows<TYPE>(arg, b, rows);
    Range all = range_of(b, rows), mine = part_of(arg, all);
    no_sums<S>(arg, s, sum);
    int p0 = first_tile<S>(mine);
    if (p0 < mine.hi)
        fetch_k<S, ROWS_K>(arg, tile, b, p0, mine.hi);
    for (; p0 < mine.hi; p0 += EVERY) {
        wait_stages<0>();
        sync_team<S>(); /* K is there for all, and nobody reads V any more */
        fetch_v<TYPE, S>(arg, tile, b, p0, mine.lo, mine.hi);
        multiply_k<TYPE, S, ROWS_K>(s, tile, x);
        if (arg.spec[3]) {
            UNROLL for (uint32_t m = 0; m < S::MT; m++)
                change_scores(arg, rows, b, first_row(S::MT, S::FEW, m), p0, x.s[m]);
        }
        if (p0 < all.late || p0 + S::SLOTS > all.early) {
            UNROLL for (uint32_t m = 0; m < S::MT; m++)
                hide_scores(rows, first_row(S::MT, S::FEW, m), p0, x.s[m]);
        }
        wait_stages<0>();
        sync_team<S>(); /* V is there for all, and nobody reads K any more */
        if (p0 + EVERY < mine.hi)
            fetch_k<S, ROWS_K>(arg, tile, b, p0 + EVERY, mine.hi);
        weigh<S>(sum, x);
        multiply_v<TYPE, S>(tile, x, sum);
    }
    if constexpr (S::FEW)
        merge_rows<S>(arg, b, s, sum);
    else
        write_rows<S>(arg, b, sum);
}

template <int TYPE, int D, bool ROWS_K> FN void many(const Args &arg)
{
    flash<TYPE, Shape<D, false>, ROWS_K>(arg);
}
template <int TYPE, int D, bool ROWS_K> FN void few(const Args &arg)
{
    flash<TYPE, Shape<D, true>, ROWS_K>(arg);
}

#define SIZED(d)                                                                                   \
    KERNEL(flash_f16_##d, 128) { many<T_F16, d, false>(arg); }                                 \
    KERNEL(flash_bf16_##d, 128) { many<T_BF16, d, false>(arg); }                               \
    KERNEL(flash_rows_##d, 128) { many<T_F16, d, true>(arg); }                                 \
    KERNEL(flash_few_f16_##d, 128) { few<T_F16, d, false>(arg); }                              \
    KERNEL(flash_few_bf16_##d, 128) { few<T_BF16, d, false>(arg); }                            \
    KERNEL(flash_few_rows_##d, 128) { few<T_F16, d, true>(arg); }
SIZED(64)
SIZED(80)
SIZED(96)
SIZED(128)
SIZED(192)
SIZED(256)

/* ---------------------------------------------------------------- four warps together */

/* Many rows on devices of compute capability 9.0, whose tensor cores take operands from shared
 * memory by themselves (wgmma), over K of f16 or bf16: flash_wide_TYPE_D, for heads of 64, 128 and
 * 256 numbers. Four warps have 64 rows, a warp 16 of them, in the places of multiply: all but the
 * products is as above. A tile is a page's 64 slots. Threads fetch its pieces (cp.async) to where
 * products look for them, and not boxes of a map (TMA): a map is an argument of the launch, and
 * where pages lie is data. No such device was there: this has been compiled for one, and has run on
 * the host alone, which does what the instructions are documented to do (tests/backend/cuda).
 *
 *     S' = Q K'           of the next tile, goes on while
 *     P = 2^(S - m)       is made of this one, and the tile after it is fetched; then
 *     O = O 2^(m' - m) + P V
 *
 *     q [D / 64][ROWS][64]   k [2][D][64 slots]   v [2][D / 64][64 slots][64]
 *
 * Both K and V have numbers of one slot, or of one row of V, in neighbouring lines, where products
 * of the others have them side by side: their operands are turned. P is in registers. */
#ifdef FOUR_WARPS

template <int SIZE> struct WideShape { /* flash.c has the same */
    enum { WARPS = 8, THREADS = 32 * WARPS, D = SIZE, MT = 1, ROWS = 16 * WARPS, SLOTS = 64 };
    enum { NT = SLOTS / 8, LINE = D, SWIZZLED = 1, FEW = 0, TILE = SLOTS * D };
    enum { PIECES = TILE / 8 / THREADS, BLOCKS = D == 64 ? 2 : 1 };
};
template <class S> struct WideTiles : Rows<S> {
    alignas(1024) uint16_t k[2][S::TILE];
    alignas(1024) uint16_t v[2][S::TILE];
};

#define PRODUCT(shape, type, sums, operands, inputs, ...)                                          \
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                        \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type "\n{" sums "}, "      \
                 operands ";\n}"                                                                   \
                 : __VA_ARGS__                                                                     \
                 : inputs)
#define COMMA       ,
#define OF_MATRICES "l"(a) COMMA "l"(b)
#define OF_WORDS    "r"(a[0]) COMMA "r"(a[1]) COMMA "r"(a[2]) COMMA "r"(a[3]) COMMA "l"(b)

/* c += a b: 64 rows of 16 numbers by 64 slots. b: turned. */
template <int TYPE> FN void multiply_wide_k(float (&c)[8][4], uint64_t a, uint64_t b)
{
#ifdef __CUDACC__
    if constexpr (TYPE == T_F16)
        PRODUCT("m64n64k16", "f16", SUMS_TO_31, "%32, %33, p, 1, 1, 0, 1", OF_MATRICES, SIXTEEN(0),
                SIXTEEN(4));
    else
        PRODUCT("m64n64k16", "bf16", SUMS_TO_31, "%32, %33, p, 1, 1, 0, 1", OF_MATRICES, SIXTEEN(0),
                SIXTEEN(4));
#else
    host_multiply64(c[0], 64, a, b, TYPE == T_BF16, true);
#endif
}

/* c += a b: 64 rows of 16 slots, a warp's own as words of multiply, by D columns. b: turned. */
template <int TYPE, int D>
FN void multiply_wide_v(float (&c)[D / 8][4], const uint32_t (&a)[4], uint64_t b)
{
#if !defined(__CUDACC__)
    uint32_t all[4][4]; /* of the lanes that have these rows: all[x] of lane l ^ x */
    for (int x = 0; x < 4; x++)
        for (int i = 0; i < 4; i++)
            all[x][i] = x ? lane_xor(a[i], x) : a[i];
    host_multiply64_rows(c[0], D, all, b, TYPE == T_BF16);
#else
#define OF_V(n, sums, operands, ...)                                                               \
    if constexpr (TYPE == T_F16)                                                                   \
        PRODUCT("m64n" n "k16", "f16", sums, operands ", p, 1, 1, 1", OF_WORDS, __VA_ARGS__);      \
    else                                                                                           \
        PRODUCT("m64n" n "k16", "bf16", sums, operands ", p, 1, 1, 1", OF_WORDS, __VA_ARGS__)
    if constexpr (D == 64) {
        OF_V("64", SUMS_TO_31, "{%32, %33, %34, %35}, %36", SIXTEEN(0), SIXTEEN(4));
    } else if constexpr (D == 128) {
        OF_V("128", SUMS_TO_63, "{%64, %65, %66, %67}, %68", SUMS(0));
    } else {
        OF_V("256", SUMS_TO_127, "{%128, %129, %130, %131}, %132", SUMS(0), SUMS(16));
    }
#endif
}

/* A page's slots from p0 on, of which nothing is read from `end` on. */
template <class S>
FN void fetch_wide_k(const Args &arg, uint16_t *to, const Block &b, int p0, int end)
{
    uint32_t at, n = (uint32_t)(end - p0), d_k = arg.p[4];
    uint64_t page = page_of(arg, b.seg, (uint32_t)p0, &at), from = k_place(arg, page, b.head, at);
    UNROLL for (uint32_t c = 0; c < S::PIECES; c++) {
        uint32_t i = thread_of() + S::THREADS * c, d = i / 8, j = i % 8;
        fetch16(to + d * 64 + (j ^ d % 8) * 8, from + 2 * (uint64_t)(PAGE * d + 8 * j),
                d < d_k && 8 * j < n);
    }
}

/* The same of V, and nothing before slot `begin`: those have no weight, and must be finite. */
template <int TYPE, class S>
FN void fetch_wide_v(const Args &arg, uint16_t *to, const Block &b, int p0, int begin, int end)
{
    uint32_t at, d_v = arg.p[5], bytes = arg.p[9] / PAGE;
    uint64_t page = page_of(arg, b.seg, (uint32_t)p0, &at), from = v_place(arg, page, b.head, at);
    ROLLED for (uint32_t c = 0; c < S::PIECES; c++) {
        uint32_t i = thread_of() + S::THREADS * c, j = i / (S::D / 8), o = i % (S::D / 8);
        int slot = p0 + (int)j;
        bool some = slot >= begin && slot < end && 8 * o < d_v;
        uint16_t *piece = to + (o / 8 * S::SLOTS + j) * 64 + (o % 8 ^ j % 8) * 8;
        if (v_type(arg) == TYPE)
            fetch16(piece, from + (uint64_t)j * bytes + 16 * o, some);
        else
            put_eight(piece, v_type(arg), from + (uint64_t)j * bytes, o, some);
    }
}

/* Scores of a tile begin to be made: they are there after products_wait. */
template <int TYPE, class S>
FN void begin_scores(const WideTiles<S> &s, const uint16_t *k, Scores<S> &x)
{
    uint32_t rows = threadIdx.y / 4 * 64;
    UNROLL for (int i = 0; i < 4 * S::NT; i++)
        x.s[0][i / 4][i % 4] = 0;
    sums_stay(x.s[0]);
    products_begin();
    UNROLL for (uint32_t d = 0; d < S::D; d += 16)
        multiply_wide_k<TYPE>(x.s[0], matrix(&s.q[(d / 64 * S::ROWS + rows) * 64 + d % 64]),
                              matrix_turned(k + d * 64, EIGHT_LINES));
    products_end();
}

template <int TYPE, class S>
FN void multiply_wide(const uint16_t *v, const Scores<S> &x, Sums<S> &sum)
{
    uint32_t a[S::SLOTS / 16][4];
    UNROLL for (uint32_t j = 0; j < S::SLOTS / 16; j++)
        UNROLL for (uint32_t i = 0; i < 4; i++)
            a[j][i] = pack<TYPE>(x.s[0][2 * j + i / 2][i % 2 * 2],
                                 x.s[0][2 * j + i / 2][i % 2 * 2 + 1]);
    sums_stay(sum.o[0]);
    operands_stay(a);
    products_begin();
    UNROLL for (uint32_t j = 0; j < S::SLOTS / 16; j++)
        multiply_wide_v<TYPE, S::D>(sum.o[0], a[j],
                                    matrix_turned(v + j * 16 * 64, 2 * 64 * S::SLOTS));
    products_end();
    products_wait<0>();
    operands_stay(a);
    sums_stay(sum.o[0]);
}

template <int TYPE, class S> FN void wide(const Args &arg)
{
    WideTiles<S> &s = *(WideTiles<S> *)eight_lines_of();
    Block b = block_of<S>(arg);
    Sums<S> sum;
    Scores<S> x, next;
    if (b.n == 0)
        return;
    Rows<S> &rows = s;
    load_rows<TYPE>(arg, b, rows);
    Range all = range_of(b, rows), mine = part_of(arg, all);
    no_sums<S>(arg, rows, sum);
    int p0 = mine.lo / S::SLOTS * S::SLOTS;
    uint32_t stage = 0;
    if (p0 < mine.hi) {
        fetch_wide_k<S>(arg, s.k[0], b, p0, mine.hi);
        end_stage();
        wait_stages<0>();
        operands_written();
        __syncthreads(); /* rows of Q and the first of K are there for all */
        fetch_wide_v<TYPE, S>(arg, s.v[0], b, p0, mine.lo, mine.hi);
        if (p0 + S::SLOTS < mine.hi)
            fetch_wide_k<S>(arg, s.k[1], b, p0 + S::SLOTS, mine.hi);
        end_stage();
        begin_scores<TYPE, S>(s, s.k[0], x);
        products_wait<0>();
        sums_stay(x.s[0]);
    }
    for (; p0 < mine.hi; p0 += S::SLOTS, stage ^= 1) {
        int after = p0 + S::SLOTS;
        wait_stages<0>();
        operands_written();
        __syncthreads(); /* this V and the next K are there; nobody reads this K, the V before */
        if (after < mine.hi) {
            begin_scores<TYPE, S>(s, s.k[stage ^ 1], next);
            fetch_wide_v<TYPE, S>(arg, s.v[stage ^ 1], b, after, mine.lo, mine.hi);
            if (after + S::SLOTS < mine.hi)
                fetch_wide_k<S>(arg, s.k[stage], b, after + S::SLOTS, mine.hi);
            end_stage();
        }
        if (arg.spec[3])
            change_scores(arg, rows, b, first_row(1, false, 0), p0, x.s[0]);
        if (p0 < all.late || after > all.early)
            hide_scores(rows, first_row(1, false, 0), p0, x.s[0]);
        weigh<S>(sum, x);
        if (after < mine.hi) {
            products_wait<0>();
            sums_stay(next.s[0]);
        }
        multiply_wide<TYPE, S>(s.v[stage], x, sum);
        x = next;
    }
    write_rows<S>(arg, b, sum);
}

#define WIDE(d)                                                                                    \
    BOUND(flash_wide_f16_##d, 256)                                                                 \
    extern "C" __global__ void __launch_bounds__(256, WideShape<d>::BLOCKS)                        \
        pith_flash_wide_f16_##d(const __grid_constant__ Args arg)                                  \
    {                                                                                              \
        wide<T_F16, WideShape<d>>(arg);                                                            \
    }                                                                                              \
    BOUND(flash_wide_bf16_##d, 256)                                                                \
    extern "C" __global__ void __launch_bounds__(256, WideShape<d>::BLOCKS)                        \
        pith_flash_wide_bf16_##d(const __grid_constant__ Args arg)                                 \
    {                                                                                              \
        wide<T_BF16, WideShape<d>>(arg);                                                           \
    }
WIDE(64)
WIDE(128)
WIDE(256)
#endif

/* ---------------------------------------------------------------- latent rows */

/* V is the first numbers of K, so a slot is fetched once for both. flash_latent_TYPE, for d_k of
 * 576 and d_v of 512 at most: so many numbers of O are too many for a warp's registers. Two warps
 * have the same sixteen rows, each half of a tile's slots while scores are made, and then half of
 * V's columns.
 *
 *     q [64][D]         k [2][SLOTS][D]: a tile, and the next one, which is fetched meanwhile
 *     p [64][SLOTS]     weights, as the one warp tells them the other */
struct Latent {
    enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 64, D = 576, D_V = 512, SLOTS = 32 };
    enum { SWIZZLED = 0 };
    enum { LINE = D + 8, P_LINE = SLOTS + 8, NT = SLOTS / 2 / 8, OT = D_V / 2 / 8 };
};

struct LatentTiles : Rows<Latent> {
    alignas(16) uint16_t k[2][Latent::SLOTS][Latent::LINE];
    alignas(16) uint16_t p[Latent::ROWS][Latent::P_LINE];
    float of[2][Latent::ROWS]; /* what each half has of a row: the largest score, the sum */
};

/* A lane's: of rows l / 4 and l / 4 + 8. */
struct LatentSums {
    float o[Latent::OT][4], m[2], l[2], k[2];
};

FN uint32_t rows_at() { return threadIdx.y % 4 * 16; }
FN uint32_t half_of() { return threadIdx.y / 4; }

FN void fetch(const Args &arg, LatentTiles &s, uint32_t stage, const Block &b, int p0,
              const Range &r)
{
    enum { PIECES = Latent::D / 8, ALL = Latent::SLOTS * PIECES / Latent::THREADS };
    uint32_t at, t = thread_of(), d_k = arg.p[4], bytes = arg.p[8] / PAGE;
    uint64_t page = page_of(arg, b.seg, (uint32_t)p0, &at);
    uint64_t from = k_place(arg, page, b.head, at);
    UNROLL for (uint32_t c = 0; c < ALL; c++) {
        uint32_t i = t + Latent::THREADS * c, j = i / PIECES, o = i % PIECES;
        int slot = p0 + (int)j;
        fetch16(&s.k[stage][j][8 * o], from + (uint64_t)j * bytes + 16 * o,
                slot >= r.lo && slot < r.hi && 8 * o < d_k);
    }
}

template <int TYPE>
FN void multiply_k(const LatentTiles &s, uint32_t stage, float (&x)[Latent::NT][4])
{
    uint32_t l = threadIdx.x;
    UNROLL for (int i = 0; i < 4 * Latent::NT; i++)
        x[i / 4][i % 4] = 0;
    UNROLL for (uint32_t d = 0; d < Latent::D; d += 16) {
        uint32_t a[4], b[4];
        matrices4(a, &s.q[place_in_rows<Latent>(rows_at() + l % 16, d + l / 16 * 8)]);
        matrices4(b, &s.k[stage][half_of() * 16 + l / 16 * 8 + l % 8][d + l / 8 % 2 * 8]);
        multiply<TYPE>(x[0], a, b[0], b[1]);
        multiply<TYPE>(x[1], a, b[2], b[3]);
    }
}

/* The other half's largest scores count, too: weights go where both warps find them. */
template <int TYPE> FN void weigh(LatentTiles &s, LatentSums &sum, float (&x)[Latent::NT][4])
{
    uint32_t l = threadIdx.x;
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        float most = none();
        UNROLL for (uint32_t e = 0; e < 2 * Latent::NT; e++)
            most = fmaxf(most, x[e / 2][2 * i + e % 2]);
        most = most_of_four(most);
        if (l % 4 == 0)
            s.of[half_of()][rows_at() + l / 4 + 8 * i] = most;
    }
    __syncthreads();
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = rows_at() + l / 4 + 8 * i;
        float most = fmaxf(sum.m[i], fmaxf(s.of[0][row], s.of[1][row]) * sum.k[i]), all = 0;
        float top = most == none() ? 0 : most, by = power_of_two(sum.m[i] - top);
        UNROLL for (uint32_t n = 0; n < Latent::NT; n++) {
            float a = power_of_two(fmaf(x[n][2 * i], sum.k[i], UP - top));
            float b = power_of_two(fmaf(x[n][2 * i + 1], sum.k[i], UP - top));
            all = all + a + b;
            *(uint32_t *)&s.p[row][half_of() * 16 + 8 * n + 2 * (l % 4)] = pack<TYPE>(a, b);
        }
        sum.m[i] = most;
        sum.l[i] = fmaf(sum.l[i], by, all);
        UNROLL for (uint32_t n = 0; n < Latent::OT; n++) {
            sum.o[n][2 * i] = sum.o[n][2 * i] * by;
            sum.o[n][2 * i + 1] = sum.o[n][2 * i + 1] * by;
        }
    }
    __syncthreads();
}

template <int TYPE> FN void multiply_v(const LatentTiles &s, uint32_t stage, LatentSums &sum)
{
    uint32_t l = threadIdx.x, first = half_of() * (Latent::D_V / 2);
    UNROLL for (uint32_t j = 0; j < Latent::SLOTS; j += 16) {
        uint32_t a[4], b[4];
        matrices4(a, &s.p[rows_at() + l % 16][j + l / 16 * 8]);
        UNROLL for (uint32_t n = 0; n < Latent::OT; n += 2) {
            turned4(b, &s.k[stage][j + l % 16][first + 8 * n + l / 16 * 8]);
            multiply<TYPE>(sum.o[n], a, b[0], b[1]);
            multiply<TYPE>(sum.o[n + 1], a, b[2], b[3]);
        }
    }
}

FN void write_rows(const Args &arg, const Block &b, LatentTiles &s, const LatentSums &sum)
{
    uint32_t l = threadIdx.x, d_v = arg.p[5], padded = arg.cols / arg.p[10] - 2;
    __syncthreads();
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        float all = sum_of_four(sum.l[i]);
        if (l % 4 == 0)
            s.of[half_of()][rows_at() + l / 4 + 8 * i] = all;
    }
    __syncthreads();
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = rows_at() + l / 4 + 8 * i;
        if (row >= b.n)
            continue;
        Result y = result_of(arg, b, row);
        if (threadIdx.y < 4 && l % 4 == 0)
            put_weight(y, sum.m[i], s.of[0][row] + s.of[1][row]);
        UNROLL for (uint32_t n = 0; n < Latent::OT; n++) {
            uint32_t d = half_of() * (Latent::D_V / 2) + 8 * n + 2 * (l % 4);
            if (d < padded)
                put_two(y.o + d, d < d_v ? sum.o[n][2 * i] * DOWN : 0,
                        d + 1 < d_v ? sum.o[n][2 * i + 1] * DOWN : 0);
        }
    }
}

template <int TYPE> FN void latent(const Args &arg)
{
    LatentTiles &s = *(LatentTiles *)shared_memory();
    Rows<Latent> &rows = s;
    Block b = block_of<Latent>(arg);
    LatentSums sum;
    float x[Latent::NT][4];
    if (b.n == 0)
        return;
    load_rows<TYPE>(arg, b, rows);
    Range all = range_of(b, rows), mine = part_of(arg, all);
    UNROLL for (int i = 0; i < 4 * Latent::OT; i++)
        sum.o[i / 4][i % 4] = 0;
    UNROLL for (uint32_t i = 0; i < 2; i++) {
        sum.m[i] = none();
        sum.l[i] = 0;
        sum.k[i] = scale_of_scores(arg, rows, rows_at() + threadIdx.x / 4 + 8 * i);
    }
    int p0 = mine.lo / Latent::SLOTS * Latent::SLOTS;
    uint32_t stage = 0;
    if (p0 < mine.hi)
        fetch(arg, s, 0, b, p0, mine);
    for (; p0 < mine.hi; p0 += Latent::SLOTS, stage ^= 1) {
        int next = p0 + Latent::SLOTS, own = p0 + (int)half_of() * 16;
        end_stage();
        wait_stages<0>();
        __syncthreads(); /* the tile is there for all, and nobody reads the one before any more */
        if (next < mine.hi)
            fetch(arg, s, stage ^ 1, b, next, mine);
        multiply_k<TYPE>(s, stage, x);
        if (arg.spec[3])
            change_scores(arg, rows, b, rows_at(), own, x);
        if (p0 < all.late || next > all.early)
            hide_scores(rows, rows_at(), own, x);
        weigh<TYPE>(s, sum, x);
        multiply_v<TYPE>(s, stage, sum);
    }
    write_rows(arg, b, s, sum);
}

KERNEL(flash_latent_f16, 256) { latent<T_F16>(arg); }
KERNEL(flash_latent_bf16, 256) { latent<T_BF16>(arg); }
