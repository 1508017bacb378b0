/* stream.cu -- several residual streams in a row (STREAM_MIX, STREAM_GATES, STREAM_ATTEND of
 * graph/ops/stream.c), rows as points of a grid (IM2COL, GROUP_NORM of graph/ops/conv.c), what
 * adapters add to a product (ADAPT of graph/ops/adapt.c). The shaders of these names tell what is
 * in p. */
#include "common.cuh"

enum { MIX, GATES, ATTEND };

FN float mixed(const Args &arg, uint32_t r, uint32_t col)
{
    uint32_t n = arg.cols / arg.p[1], o = col / n, i = col % n;
    const float *x = row_of(arg.a, r, arg.lda), *k = row_of(arg.b, r, arg.ldb);
    float sum = arg.p[2] & 1 ? x[o * n + i] : 0;
    for (uint32_t s = 0; (arg.p[2] & 2) && s < arg.p[0]; s++)
        sum = fmaf(k[arg.p[3] + o * arg.p[4] + s * arg.p[5]], x[s * n + i], sum);
    if (!(arg.p[2] & 4))
        return sum;
    return fmaf(k[arg.p[6] + o] + arg_f(arg, 7), row_of(arg.extra, r, arg.p[8])[i], sum);
}

FN void divide(float *m, uint32_t n, uint32_t step, float eps)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum = sum + m[i * step];
    sum = sum + eps;
    for (uint32_t i = 0; i < n; i++)
        m[i * step] = m[i * step] / sum;
}

/* By one thread, in 16 chains. */
FN void softmax_of(float *m, uint32_t n)
{
    float most = none(), chain[16];
    for (int j = 0; j < 16; j++)
        chain[j] = 0;
    for (uint32_t i = 0; i < n; i++)
        most = m[i] > most ? m[i] : most;
    for (uint32_t i = 0; i < n; i++) {
        m[i] = exact_exp(m[i] - most);
        chain[i % 16] = chain[i % 16] + m[i];
    }
    for (int h = 8; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            chain[j] = chain[j] + chain[j + h];
    float k = 1.0f / chain[0];
    for (uint32_t i = 0; i < n; i++)
        m[i] = m[i] * k;
}

FN void sinkhorn(const Args &arg, float *m)
{
    uint32_t n = arg.p[0];
    float eps = arg_f(arg, 2);
    for (uint32_t s = 0; s < n; s++) {
        softmax_of(m + s * n, n);
        for (uint32_t d = 0; d < n; d++)
            m[s * n + d] = m[s * n + d] + eps;
    }
    for (uint32_t it = 0; it < arg.p[1]; it++) {
        for (uint32_t s = 0; s < n && it > 0; s++)
            divide(m + s * n, n, 1, eps);
        for (uint32_t d = 0; d < n; d++)
            divide(m + d, n, n, eps);
    }
}

FN void gates(const Args &arg, uint32_t r)
{
    uint32_t n = arg.p[0];
    const float *x = row_of(arg.a, r, arg.lda);
    float *z = row_of(arg.dst, r, arg.ld);
    for (uint32_t i = 0; i < arg.cols; i++) {
        int part = i < n ? 0 : i < 2 * n ? 1 : 2;
        float m = fmaf(x[i], f32_at(arg.w)[part], f32_at(arg.bias)[i]);
        float sigmoid = 1.0f / (1.0f + exact_exp(-m));
        z[i] = part == 0   ? sigmoid + arg_f(arg, 2)
               : part == 1 ? arg_f(arg, 3) * sigmoid + arg_f(arg, 4)
                           : m;
    }
    if (arg.cols > 2 * n)
        sinkhorn(arg, z + 2 * n);
}

FN void attend(const Args &arg, uint32_t r)
{
    __shared__ float share[1025];
    uint32_t n = arg.cols, kept = arg.p[0], t = threadIdx.x;
    const float *last = row_of(arg.a, r, arg.lda), *x = row_of(arg.b, r, arg.ldb);
    for (uint32_t s = 0; s <= kept; s++) {
        const float *v = s < kept ? x + (uint64_t)s * n : last;
        float sum = 0, sq = 0;
        for (uint32_t i = t; i < n; i += 64) {
            sum = fmaf(v[i], f32_at(arg.w)[i], sum);
            sq = fmaf(v[i], v[i], sq);
        }
        sum = tree_sum(sum);
        sq = tree_sum(sq);
        if (t == 0)
            share[s] = sum * (1.0f / sqrtf(sq / (float)n + arg_f(arg, 1)));
    }
    if (t == 0)
        softmax_of(share, kept + 1);
    __syncthreads();
    for (uint32_t i = t; i < n; i += 64) {
        float sum = 0;
        for (uint32_t s = 0; s < kept; s++)
            sum = fmaf(share[s], x[(uint64_t)s * n + i], sum);
        row_of(arg.dst, r, arg.ld)[i] = fmaf(share[kept], last[i], sum);
    }
    __syncthreads();
}

KERNEL(stream, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (arg.spec[0] == GATES) {
        for (uint32_t r = i; r < n; r += 64 * gridDim.x)
            gates(arg, r);
        return;
    }
    if (arg.spec[0] == MIX && i >= arg.cols)
        return;
    EACH_ROW(r, n) {
        if (arg.spec[0] == MIX)
            row_of(arg.dst, r, arg.ld)[i] = mixed(arg, r, i);
        else
            attend(arg, r);
    }
}

/* ---------------------------------------------------------------- grids */

FN float under(const Args &arg, uint32_t r, uint32_t col)
{
    int w = (int)arg.p[0], h = (int)arg.p[1], part = (int)col % (w * h);
    uint32_t seg = (uint32_t)step_seg(arg, r);
    int first = step_first(arg, seg), rows = step_first(arg, seg + 1) - first;
    int line = arg.p[4] ? (int)arg.p[4] : rows, own = (int)r - first;
    int x = own % line - (int)arg.p[2] + part % w, y = own / line - (int)arg.p[3] + part / w;
    int at = y * line + x;
    if (x < 0 || x >= line || y < 0 || at >= rows)
        return 0;
    return row_of(arg.a, (uint32_t)(first + at), arg.lda)[(int)col / (w * h)];
}

FN void group_norm(const Args &arg, uint32_t seg, uint32_t group)
{
    uint32_t per = (arg.cols + arg.p[0] - 1) / arg.p[0], col = group * per, t = threadIdx.x;
    uint32_t width = col >= arg.cols ? 0 : least(per, arg.cols - col);
    uint32_t first = (uint32_t)step_first(arg, seg);
    uint32_t n = ((uint32_t)step_first(arg, seg + 1) - first) * width;
    float sum = 0, sq = 0;
    for (uint32_t e = t; e < n; e += 64)
        sum = sum + row_of(arg.a, first + e / width, arg.lda)[col + e % width];
    float mean = tree_sum(sum) / (float)n;
    for (uint32_t e = t; e < n; e += 64) {
        float d = row_of(arg.a, first + e / width, arg.lda)[col + e % width] - mean;
        sq = fmaf(d, d, sq);
    }
    float k = 1.0f / sqrtf(tree_sum(sq) / (float)n + arg_f(arg, 1));
    for (uint32_t e = t; e < n; e += 64) {
        uint32_t r = first + e / width, i = col + e % width;
        row_of(arg.dst, r, arg.ld)[i] = (row_of(arg.a, r, arg.lda)[i] - mean) * k;
    }
}

KERNEL(grid, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (arg.spec[0]) {
        for (uint32_t s = blockIdx.y; s < (uint32_t)step_at(arg, 2); s += gridDim.y)
            group_norm(arg, s, blockIdx.x);
        return;
    }
    if (i >= arg.cols)
        return;
    EACH_ROW(r, n)
        row_of(arg.dst, r, arg.ld)[i] = under(arg, r, i);
}

/* ---------------------------------------------------------------- adapters */

enum { HEADS = 1, EXPERTS = 2, USES = 4, USE_BYTES = 24, MOST_RANK = 1024 };

/* The set of row r; -1: none. */
FN int set_of(const Args &arg, uint32_t r)
{
    uint32_t which = arg.rows & 3;
    r /= arg.rows >> 2;
    uint32_t row = which == 1   ? (uint32_t)step_out(arg, r)
                   : which == 2 ? (uint32_t)step_first(arg, r)
                                : r;
    return which == 3 ? -1 : step_array(arg, 34, row);
}

/* z of a head with one adapter: A and B of its matrix. */
FN void add(const Args &arg, const float *x, const float *a, const float *b, uint32_t rank,
            float scale, float *z)
{
    __shared__ float u[MOST_RANK];
    uint32_t t = threadIdx.x, K = arg.p[1], M = arg.p[2];
    __syncthreads();
    for (uint32_t i = t; i < rank; i += 64) {
        float sum = 0;
        for (uint32_t k = 0; k < K; k++)
            sum = fmaf(x[k], a[(uint64_t)k * rank + i], sum);
        u[i] = sum * scale;
    }
    __syncthreads();
    for (uint32_t m = t; m < M; m += 64)
        for (uint32_t i = 0; i < rank; i++)
            z[m] = fmaf(u[i], b[(uint64_t)i * M + m], z[m]);
}

FN void adapt(const Args &arg, uint32_t r)
{
    uint32_t heads = arg.spec[0] == HEADS ? arg.p[3] : 1, K = arg.p[1], M = arg.p[2], matrix = 0;
    const float *y = row_of(arg.a, r, arg.lda), *x = row_of(arg.b, r / arg.p[6], arg.ldb);
    float *z = row_of(arg.dst, r, arg.ld);
    int set = set_of(arg, r);
    for (uint32_t m = threadIdx.x; m < M; m += 64)
        for (uint32_t h = 0; h < heads; h++)
            z[h * M + m] = y[h * M + m];
    if (arg.spec[0] == EXPERTS)
        matrix = (uint32_t)ints_of(arg.extra, r / arg.p[8], arg.p[7])[r % arg.p[8]];
    uint64_t first = ((uint64_t)(set < 0 ? 0 : set) * arg.p[5] + arg.p[4]) * USES;
    for (uint32_t i = 0; set >= 0 && i < USES; i++) {
        uint64_t use = arg.w + (first + i) * USE_BYTES, a = u64(use), b = u64(use + 8);
        uint32_t rank = u32(use + 16);
        if (!a)
            break;
        for (uint32_t h = 0; h < heads; h++)
            add(arg, x + h * K, f32_at(a) + (uint64_t)(matrix + h) * K * rank,
                f32_at(b) + (uint64_t)(matrix + h) * rank * M, rank, as_float(u32(use + 20)),
                z + h * M);
    }
}

KERNEL(adapt, 64)
{
    uint32_t n = rows_of(arg, arg.rows);
    EACH_ROW(r, n)
        adapt(arg, r);
}
