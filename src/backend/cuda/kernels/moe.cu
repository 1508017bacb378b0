/* moe.cu -- the experts of a row and their weights (TOPK of graph/ops/moe.c), and rows grouped by
 * expert (MOE_SORT). */
#include "common.cuh"

enum { MOST = 1024, SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2, SQRT_SOFTPLUS = 3 };
enum { NORM = 1, BIAS = 2, FACTOR = 4, TABLE = 8 }; /* spec[1] */

struct Choice { /* a block's */
    float p[MOST], by[MOST], best_value[64], group_score[64];
    int id[64], best_id[64];
};

FN float gate(int gating, float r)
{
    return gating == SIGMOID ? 1.0f / (1.0f + exact_exp(-r))
           : gating == SQRT_SOFTPLUS
               ? sqrtf(r > 20 ? r : exact_log(1 + exact_exp(r)))
               : r;
}

FN void softmax(Choice &s, uint32_t n, const float *x)
{
    uint32_t t = threadIdx.x;
    float most = none(), sum = 0;
    for (uint32_t i = t; i < n; i += 64)
        most = x[i] > most ? x[i] : most;
    most = tree_max(most);
    for (uint32_t i = t; i < n; i += 64) {
        s.p[i] = exact_exp(x[i] - most);
        sum = sum + s.p[i];
    }
    float k = 1.0f / tree_sum(sum);
    for (uint32_t i = t; i < n; i += 64)
        s.p[i] = s.p[i] * k;
}

/* Takes what is not of the best groups out of the choice. */
FN void limit_groups(const Args &arg, Choice &s, uint32_t n)
{
    uint32_t t = threadIdx.x, groups = arg.p[2], size = n / groups, better = 0;
    if (t < groups) {
        float a = none(), b = none();
        for (uint32_t i = t * size; i < (t + 1) * size; i++) {
            if (s.by[i] > a) {
                b = a;
                a = s.by[i];
            } else if (s.by[i] > b) {
                b = s.by[i];
            }
        }
        s.group_score[t] = arg.p[5] || size < 2 ? a : a + b;
    }
    __syncthreads();
    for (uint32_t g = 0; t < groups && g < groups; g++)
        better += s.group_score[g] > s.group_score[t] ||
                  (s.group_score[g] == s.group_score[t] && g < t);
    if (t < groups && better >= arg.p[3])
        for (uint32_t i = t * size; i < (t + 1) * size; i++)
            s.by[i] = none();
    __syncthreads();
}

/* The best that is left, ties to the lower id; it is left no more. */
FN int take_best(Choice &s, uint32_t n, uint32_t used)
{
    uint32_t t = threadIdx.x;
    float v = 0;
    int at = -1;
    for (uint32_t i = t; i < n; i += 64) {
        bool taken = false;
        for (uint32_t j = 0; j < used; j++)
            taken = taken || s.id[j] == (int)i;
        if (!taken && (at < 0 || s.by[i] > v)) {
            v = s.by[i];
            at = (int)i;
        }
    }
    __syncthreads();
    s.best_value[t] = v;
    s.best_id[t] = at;
    for (uint32_t h = 32; h > 0; h /= 2) {
        __syncthreads();
        if (t < h) {
            int a = s.best_id[t], b = s.best_id[t + h];
            float x = s.best_value[t], y = s.best_value[t + h];
            if (b >= 0 && (a < 0 || y > x || (!(x > y) && b < a))) {
                s.best_id[t] = b;
                s.best_value[t] = y;
            }
        }
    }
    __syncthreads();
    return s.best_id[0];
}

/* The j-th expert of a token. */
FN int look_up(const Args &arg, int token, uint32_t j)
{
    int e = i32_at(arg.extra)[(uint64_t)token * arg.p[1] + j];
    return e >= 0 && e < (int)arg.p[0] ? e : 0;
}

/* One thread: in ascending order, with their weights. */
FN void weigh(const Args &arg, Choice &s, uint32_t k, int32_t *out_id, float *out_w)
{
    int gating = arg.spec[0], flags = arg.spec[1];
    float sum = 0, most = none(), floor_ = arg_f(arg, 6);
    for (uint32_t j = 0; j < k; j++) {
        int e = arg.p[4] > 1 ? s.id[j] / (int)arg.p[4] : s.id[j];
        uint32_t at = j;
        for (; at > 0 && s.id[at - 1] > e; at--)
            s.id[at] = s.id[at - 1];
        s.id[at] = e;
    }
    for (uint32_t j = 0; j < k; j++)
        most = s.p[s.id[j]] > most ? s.p[s.id[j]] : most;
    for (uint32_t j = 0; j < k; j++) {
        float p = s.p[s.id[j]];
        s.best_value[j] = gating == SOFTMAX_CHOSEN ? exact_exp(p - most) : p;
        sum = sum + s.best_value[j];
    }
    if (gating == SOFTMAX_CHOSEN) {
        float unit = 1.0f / sum;
        sum = 0;
        for (uint32_t j = 0; j < k; j++) {
            s.best_value[j] = s.best_value[j] * unit;
            sum = sum + s.best_value[j];
        }
    }
    sum = floor_ > sum ? floor_ : sum;
    for (uint32_t j = 0; j < k; j++) {
        float w = (flags & NORM ? s.best_value[j] / sum : s.best_value[j]) * arg_f(arg, 7);
        out_id[j] = s.id[j];
        out_w[j] = flags & FACTOR ? w * f32_at(arg.w)[s.id[j]] : w;
    }
}

/* A block a row. p: experts, chosen, groups, groups used, of a choice's group, by best, least,
 * scale. bias: added for the choice; w: factors. */
KERNEL(topk, 64)
{
    __shared__ Choice s;
    uint32_t t = threadIdx.x, n = arg.p[0], k = arg.p[1], all = rows_of(arg, arg.rows);
    EACH_ROW(r, all) {
        const float *x = row_of(arg.a, r, arg.lda);
        __syncthreads();
        if (arg.spec[0] == SOFTMAX)
            softmax(s, n, x);
        else
            for (uint32_t i = t; i < n; i += 64)
                s.p[i] = gate(arg.spec[0], x[i]);
        for (uint32_t i = t; i < n; i += 64)
            s.by[i] = arg.spec[1] & BIAS ? s.p[i] + f32_at(arg.bias)[i] : s.p[i];
        __syncthreads();
        if (arg.p[2] > 1)
            limit_groups(arg, s, n);
        int token = -1;
        if (arg.spec[1] & TABLE)
            token = step_token(arg, (arg.rows & 3) == 1 ? (uint32_t)step_out(arg, r) : r);
        for (uint32_t j = 0; j < k; j++) {
            int e = token >= 0 ? look_up(arg, token, j) : take_best(s, n, j);
            __syncthreads();
            if (t == 0)
                s.id[j] = e;
            __syncthreads();
        }
        if (t == 0)
            weigh(arg, s, k, ints_of(arg.dst, r, arg.ld), row_of(arg.dst, r, arg.ld) + k);
        __syncthreads();
    }
}

/* In one block: each thread looks through all rows for its experts. p: experts, experts of a row,
 * the first one's number in the routing. */
KERNEL(moe_sort, 64)
{
    __shared__ int count[MOST], start[MOST];
    uint32_t t = threadIdx.x, n = arg.p[0], k = arg.p[1], rows = rows_of(arg, arg.rows);
    int32_t *y = i32_at(arg.dst), first = (int32_t)arg.p[2];
    for (uint32_t e = t; e < n; e += 64) {
        int c = 0;
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t j = 0; j < k; j++)
                c += ints_of(arg.a, r, arg.lda)[j] == first + (int)e;
        count[e] = c;
    }
    __syncthreads();
    if (t == 0) {
        int at = 0, used = 0;
        for (uint32_t e = 0; e < n; e++) {
            start[e] = at;
            if (count[e] > 0) {
                y[1 + used] = (int)e;
                y[1 + n + (uint32_t)used++] = at;
            }
            at += count[e];
        }
        y[0] = used;
        y[1 + n + (uint32_t)used] = at;
    }
    __syncthreads();
    for (uint32_t e = t; e < n; e += 64) {
        uint32_t at = 2 + 2 * n + (uint32_t)start[e];
        for (uint32_t r = 0; count[e] > 0 && r < rows; r++)
            for (uint32_t j = 0; j < k; j++)
                if (ints_of(arg.a, r, arg.lda)[j] == first + (int)e)
                    y[at++] = (int)(r * k + j);
    }
}
