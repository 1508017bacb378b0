#include "common.glsl"
#include "tree.glsl"
/* topk.comp -- the experts of a row and their weights (TOPK of graph/ops/moe.c), a workgroup a row.
 * p: experts, chosen, groups, groups used, of a choice's group, by best, least, scale. bias: added
 * for the choice; w: factors; extra: the experts of each token. */
layout(local_size_x = 64) in;

const int MOST = 1024, SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2, SQRT_SOFTPLUS = 3;
const float NONE = -1.0 / 0.0;
#define GATING SPEC0
#define NORM   ((SPEC1 & 1) != 0)
#define BIAS   ((SPEC1 & 2) != 0)
#define FACTOR ((SPEC1 & 4) != 0)
#define TABLE  ((SPEC1 & 8) != 0)

shared float p[MOST], by[MOST], best_value[64], group_score[64];
shared int id[64], best_id[64];

float gate(float r)
{
    return GATING == SIGMOID ? 1.0 / (1.0 + exact_exp(-r))
           : GATING == SQRT_SOFTPLUS
               ? sqrt(r > 20 ? r : exact_log(1 + exact_exp(r)))
               : r;
}

void softmax(uint n, F32 x)
{
    uint t = gl_LocalInvocationID.x;
    precise float most = NONE, sum = 0;
    for (uint i = t; i < n; i += 64)
        most = x.v[i] > most ? x.v[i] : most;
    most = tree_max(most);
    for (uint i = t; i < n; i += 64) {
        p[i] = exact_exp(x.v[i] - most);
        sum = sum + p[i];
    }
    precise float k = 1.0 / tree_sum(sum);
    for (uint i = t; i < n; i += 64)
        p[i] = p[i] * k;
}

/* Takes what is not of the best groups out of the choice. */
void limit_groups(uint n)
{
    uint t = gl_LocalInvocationID.x, groups = arg.p[2], size = n / groups;
    if (t < groups) {
        float a = NONE, b = NONE;
        for (uint i = t * size; i < (t + 1) * size; i++) {
            if (by[i] > a) {
                b = a;
                a = by[i];
            } else if (by[i] > b) {
                b = by[i];
            }
        }
        group_score[t] = arg.p[5] != 0 || size < 2 ? a : a + b;
    }
    barrier();
    uint better = 0;
    for (uint g = 0; t < groups && g < groups; g++)
        better += uint(group_score[g] > group_score[t] ||
                       (group_score[g] == group_score[t] && g < t));
    if (t < groups && better >= arg.p[3])
        for (uint i = t * size; i < (t + 1) * size; i++)
            by[i] = NONE;
    barrier();
}

/* The best that is left, ties to the lower id; it is left no more. */
int take_best(uint n, uint used)
{
    uint t = gl_LocalInvocationID.x;
    float v = 0;
    int at = -1;
    for (uint i = t; i < n; i += 64) {
        bool taken = false;
        for (uint j = 0; j < used; j++)
            taken = taken || id[j] == int(i);
        if (!taken && (at < 0 || by[i] > v)) {
            v = by[i];
            at = int(i);
        }
    }
    barrier();
    best_value[t] = v;
    best_id[t] = at;
    for (uint h = 32; h > 0; h /= 2) {
        barrier();
        if (t < h) {
            int a = best_id[t], b = best_id[t + h];
            float x = best_value[t], y = best_value[t + h];
            if (b >= 0 && (a < 0 || y > x || (!(x > y) && b < a))) {
                best_id[t] = b;
                best_value[t] = y;
            }
        }
    }
    barrier();
    return best_id[0];
}

/* The j-th expert of a token. */
int look_up(int token, uint j)
{
    int e = I32(arg.extra + 4 * uint64_t(token) * arg.p[1]).v[j];
    return e >= 0 && e < int(arg.p[0]) ? e : 0;
}

/* One thread: in ascending order, with their weights. */
void weigh(uint k, I32 out_id, F32 out_w)
{
    for (uint j = 0; j < k; j++) {
        int e = arg.p[4] > 1 ? id[j] / int(arg.p[4]) : id[j];
        uint at = j;
        for (; at > 0 && id[at - 1] > e; at--)
            id[at] = id[at - 1];
        id[at] = e;
    }
    precise float sum = 0, most = NONE;
    for (uint j = 0; j < k; j++)
        most = p[id[j]] > most ? p[id[j]] : most;
    for (uint j = 0; j < k; j++) {
        best_value[j] = GATING == SOFTMAX_CHOSEN ? exact_exp(p[id[j]] - most) : p[id[j]];
        sum = sum + best_value[j];
    }
    if (GATING == SOFTMAX_CHOSEN) {
        precise float unit = 1.0 / sum;
        sum = 0;
        for (uint j = 0; j < k; j++) {
            best_value[j] = best_value[j] * unit;
            sum = sum + best_value[j];
        }
    }
    sum = ARG_F(6) > sum ? ARG_F(6) : sum;
    for (uint j = 0; j < k; j++) {
        precise float w = (NORM ? best_value[j] / sum : best_value[j]) * ARG_F(7);
        out_id.v[j] = id[j];
        out_w.v[j] = FACTOR ? w * F32(arg.w).v[id[j]] : w;
    }
}

void main()
{
    uint t = gl_LocalInvocationID.x, n = arg.p[0], k = arg.p[1], rows = rows_of(arg.rows);
    for (uint r = gl_WorkGroupID.y; r < rows; r += gl_NumWorkGroups.y) {
        F32 x = row_of(arg.a, r, arg.lda);
        barrier();
        if (GATING == SOFTMAX)
            softmax(n, x);
        else
            for (uint i = t; i < n; i += 64)
                p[i] = gate(x.v[i]);
        for (uint i = t; i < n; i += 64)
            by[i] = BIAS ? p[i] + F32(arg.bias).v[i] : p[i];
        barrier();
        if (arg.p[2] > 1)
            limit_groups(n);
        int token = TABLE ? step_token((arg.rows & 3) == 1 ? uint(step_out(r)) : r) : -1;
        for (uint j = 0; j < k; j++) {
            int e = token >= 0 ? look_up(token, j) : take_best(n, j);
            barrier();
            if (t == 0)
                id[j] = e;
            barrier();
        }
        if (t == 0)
            weigh(k, ints_of(arg.dst, r, arg.ld),
                  F32(arg.dst + 4 * (uint64_t(r) * arg.ld + uint64_t(k))));
        barrier();
    }
}
