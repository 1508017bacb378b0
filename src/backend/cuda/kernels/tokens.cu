/* tokens.cu -- numbers of tokens and of distances (TOKEN_NUMBER, NGRAM of graph/ops/move.c,
 * BIAS_TABLE of graph/ops/attention.c), rows pooled (COMPRESS of graph/ops/scan.c). The shaders of
 * these names tell what is in p. */
#include "types.cuh"

enum { NUMBER, NGRAM, TABLE, ENTRIES = 288 };

FN float number_of(const Args &arg, uint32_t r)
{
    float y = arg_f(arg, 1);
    for (uint32_t i = 0; step_token(arg, r) >= 0 && i < arg.p[0]; i++)
        if (i32_at(arg.extra)[2 * i] == step_token(arg, r))
            y = f32_at(arg.extra)[2 * i + 1];
    return y;
}

/* The token `back` rows before row r, plus 1; 0: there is none. */
FN uint64_t before(const Args &arg, uint32_t r, uint32_t back)
{
    uint32_t seg = (uint32_t)step_seg(arg, r);
    int i = (int)r - (int)back - step_first(arg, seg);
    if (i < 0)
        return has_before(arg, seg)
                   ? (uint64_t)f32_at(before_of(arg, seg))[i + (int)arg.p[3] - 1]
                   : 0;
    int token = step_token(arg, r - back);
    return 1 + (uint64_t)(token < 0 ? arg.p[6] : (uint32_t)token);
}

FN void ngram(const Args &arg, uint32_t r, uint32_t head)
{
    uint32_t size = arg.p[3], all = (size - 1) * arg.p[4];
    uint64_t mix = (before(arg, r, 0) - 1) * u64(arg.bias), end = arg.p[5];
    bool over = false;
    for (uint32_t k = 1; k <= head / arg.p[4] + 1; k++) {
        uint64_t t = before(arg, r, k);
        over = over || t == 0 || t == end + 1;
        mix ^= (over ? end : t - 1) * u64(arg.bias + 8 * (uint64_t)k);
    }
    ints_of(arg.dst, r, arg.ld)[head] =
        (int32_t)(mix % u64(arg.bias + 8 * (uint64_t)(size + all + head)) +
                  u64(arg.bias + 8 * (uint64_t)(size + head)));
    for (uint32_t k = 0; head == 0 && is_kept(arg, r) && k < size - 1; k++)
        f32_at(kept_of(arg, r))[k] = (float)before(arg, r, size - 2 - k);
}

FN float entry_of(const Args &arg, uint32_t i)
{
    uint32_t head = i / ENTRIES, row = (uint32_t)i32_at(arg.extra)[i % ENTRIES];
    Eight w = decode8(arg.spec[1], arg.w + (uint64_t)row * row_bytes(arg.spec[1], arg.p[0]),
                      head / 8, arg.p[0], books_of(arg));
    float x = 0;
    UNROLL for (uint32_t j = 0; j < 8; j++)
        x = head % 8 == j ? w.v[j] : x;
    return x;
}

KERNEL(tokens, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        if (arg.spec[0] == NGRAM)
            ngram(arg, r, i);
        else
            row_of(arg.dst, r, arg.ld)[i] =
                arg.spec[0] == NUMBER ? number_of(arg, r) : entry_of(arg, i);
    }
}

/* ---------------------------------------------------------------- compress */

enum { BLOCK = 64 };

/* Column c of row r, which is place `at` of its pool, to the number at h of n. */
FN void add_row(const Args &arg, float *h, uint32_t n, uint32_t r, uint32_t c, uint32_t at,
                bool first)
{
    uint32_t width = arg.cols * (arg.p[4] ? 2 : 1);
    float x = row_of(arg.a, r, arg.lda)[c];
    float gate = arg.p[5] ? row_of(arg.b, r, arg.ldb)[c] : 0;
    float t = gate + (arg.p[6] ? f32_at(arg.w)[(uint64_t)at * width + c] : 0);
    if (first) {
        h[0] = t;
        h[n] = 1;
        h[2 * n] = x;
        return;
    }
    float m = h[0], most = m > t ? m : t, a = exact_exp(m - most), b = exact_exp(t - most);
    h[n] = fmaf(h[n], a, b);
    h[2 * n] = fmaf(h[2 * n], a, x * b);
    h[0] = most;
}

FN void copy(const Args &arg, float *to, const float *from, uint32_t n, bool some)
{
    for (uint32_t k = 0; k < (arg.p[4] ? 6 : 3); k++)
        to[k * n] = some ? from[k * n] : 0;
}

FN void scan(const Args &arg, uint32_t seg, uint32_t c)
{
    uint32_t c0 = c / BLOCK * BLOCK, n = least(BLOCK, arg.cols - c0);
    uint32_t end = (uint32_t)step_first(arg, seg + 1), from = 3 * c0 * (arg.p[4] ? 2 : 1) + c - c0;
    float *h = f32_at(kept_of(arg, end - 1)) + from;
    bool some = has_before(arg, seg), overlap = arg.p[4] != 0;
    copy(arg, h, some ? f32_at(before_of(arg, seg)) + from : h, n, some);
    for (uint32_t r = (uint32_t)step_first(arg, seg); r < end; r++) {
        uint32_t pos = (uint32_t)step_pos(arg, r), at = pos % arg.p[3];
        add_row(arg, h, n, r, overlap ? arg.cols + c : c, at, (overlap ? pos : at) == 0);
        if (overlap)
            add_row(arg, h + 3 * n, n, r, c, at, at == 0);
        float y = 0;
        if (at == arg.p[3] - 1) {
            y = h[2 * n] / h[n];
            for (uint32_t k = 0; overlap && k < 3; k++)
                h[k * n] = h[(3 + k) * n];
        }
        row_of(arg.dst, r, arg.ld)[c] = y;
        if (r + 1 != end && is_kept(arg, r))
            copy(arg, f32_at(kept_of(arg, r)) + from, h, n, true);
    }
}

KERNEL(compress, 64)
{
    uint32_t c = thread_x();
    if (c >= arg.cols)
        return;
    for (uint32_t seg = blockIdx.y; seg < (uint32_t)step_at(arg, 2); seg += gridDim.y)
        scan(arg, seg, c);
}
