/* vec_ref.h -- the float-vector kernels of backend/cpu/kern.h once more, one element at a time,
 * from the text of the contract alone. Shares no code with the kernels; test_vec.c and test_attn.c
 * compare every level with it by memcmp (any NaN equals any NaN). */
#ifndef PITH_TESTS_VEC_REF_H
#define PITH_TESTS_VEC_REF_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/kern.h"
#include "base/machine/cpu.h"
#include "tensor/dtype.h"

#define VR __attribute__((unused)) static

VR uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

VR float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

VR int same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (a != a && b != b);
}

/* Index of the first difference, or -1. */
VR int64_t differ(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!same(a[i], b[i]))
            return i;
    return -1;
}

VR float vr_max(float a, float b)
{
    return a > b ? a : b;
}

VR float vr_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.0f)
        x = 88.0f;
    if (x < -87.33f)
        return 0;
    float t = fmaf(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return float_of(bits_of(p) + ((uint32_t)(int32_t)n << 23));
}

VR float vr_tanh(float x)
{
    float a = fabsf(x);
    if (a < 0.625f) {
        float z = x * x, p = fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
        p = fmaf(p, z, -5.37397155531e-2f);
        p = fmaf(p, z, 1.33314422036e-1f);
        p = fmaf(p, z, -3.33332819422e-1f);
        return fmaf(p * z, x, x);
    }
    float r = 1.0f - 2.0f / (vr_exp(a + a) + 1.0f);
    return x < 0 ? -r : r;
}

VR float vr_softcap(float x, float cap)
{
    return cap * vr_tanh(x / cap);
}

VR float vr_silu(float g)
{
    return g / (1.0f + vr_exp(-g));
}

VR float vr_gelu(float g)
{
    float x = fmaf(g * g, -0.071354816f, -1.5957691216f) * g;
    return g / (1.0f + vr_exp(x));
}

VR float vr_gelu_erf(float g)
{
    float x = fabsf(g) * 0.70710678f, t = 1.0f / fmaf(0.3275911f, x, 1.0f);
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    float erfc = p * t * vr_exp(-x * x);
    return 0.5f * g * (g < 0 ? erfc : 2.0f - erfc);
}

VR float vr_gelu_quick(float g)
{
    return g / (1.0f + vr_exp(g * -1.702f));
}

VR float vr_relu(float g)
{
    return g > 0 ? g : 0;
}

VR float vr_sigmoid(float x)
{
    return 1.0f / (1.0f + vr_exp(-x));
}

VR float vr_tree16(float *v)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            v[i] = v[i] + v[i + h];
    return v[0];
}

VR float vr_tree64(const float *c)
{
    float v[16];
    for (int i = 0; i < 16; i++)
        v[i] = (c[i] + c[i + 16]) + (c[i + 32] + c[i + 48]);
    return vr_tree16(v);
}

VR float vr_dot(const float *x, const float *y, int64_t n)
{
    float c[64] = {0};
    for (int64_t i = 0; i < n; i++)
        c[i % 64] = fmaf(x[i], y[i], c[i % 64]);
    return vr_tree64(c);
}

VR void vr_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    float s = 1.0f / sqrtf(vr_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = w ? x[i] * s * w[i] : x[i] * s;
}

VR void vr_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n,
                      float eps)
{
    float c[64] = {0};
    for (int64_t i = 0; i < n; i++)
        c[i % 64] = c[i % 64] + x[i];
    float mean = vr_tree64(c) / (float)n;
    memset(c, 0, sizeof c);
    for (int64_t i = 0; i < n; i++)
        c[i % 64] = fmaf(x[i] - mean, x[i] - mean, c[i % 64]);
    float s = 1.0f / sqrtf(vr_tree64(c) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float t = (x[i] - mean) * s;
        y[i] = w && b ? fmaf(t, w[i], b[i]) : w ? t * w[i] : b ? t + b[i] : t;
    }
}

VR void vr_rope(float *x, const float *c, const float *s, int n_rot, int neox)
{
    for (int i = 0; i < n_rot / 2; i++) {
        float *pa = neox ? &x[i] : &x[2 * i], *pb = neox ? &x[i + n_rot / 2] : &x[2 * i + 1];
        float a = *pa, b = *pb;
        *pa = fmaf(-b, s[i], a * c[i]);
        *pb = fmaf(b, c[i], a * s[i]);
    }
}

/* One block. */
VR void vr_hadamard(float *x, int b, float scale)
{
    for (int h = 1; h < b; h *= 2)
        for (int i = 0; i < b; i++)
            if (!(i & h)) {
                float p = x[i], q = x[i + h];
                x[i] = p + q;
                x[i + h] = p - q;
            }
    for (int i = 0; i < b; i++)
        x[i] = x[i] * scale;
}

/* Halves by arithmetic in double: exact products, rounding by the current mode (to nearest even).
 */
VR float vr_from_f16(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 0x3ff;
    double a = e == 31 ? (m ? (double)NAN : (double)INFINITY)
               : e     ? ldexp(1024 + m, e - 25)
                       : ldexp(m, -24);
    return (float)(h & 0x8000 ? -a : a);
}

VR uint16_t vr_to_f16(float f)
{
    uint16_t sign = (uint16_t)(bits_of(f) >> 16 & 0x8000);
    double a = fabs((double)f);
    if (f != f)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 65520)
        return (uint16_t)(sign | 0x7c00);
    int e = -13;
    if (a > 0)
        frexp(a, &e);
    e = e < -13 ? -13 : e;                      /* a < 2^e; the unit is 2^(e - 11) */
    double units = nearbyint(ldexp(a, 11 - e)); /* at most 2048 */
    return (uint16_t)(sign | (uint16_t)((e + 13) * 1024 + (int)units));
}

/* K and V of a slot through the job's layout, a row at a time. */
VR const uint8_t *vr_page(const struct attn_job *j, int slot)
{
    return j->base + j->pages[slot / 64] / 4 * j->page_bytes;
}

VR int vr_in_page(const struct attn_job *j, int slot)
{
    return j->pages[slot / 64] % 4 * 16 + slot % 64;
}

VR float vr_number(const uint8_t *p, enum dtype type, int64_t i)
{
    if (type == DT_F16)
        return vr_from_f16(((const uint16_t *)(const void *)p)[i]);
    if (type == DT_BF16)
        return float_of((uint32_t)((const uint16_t *)(const void *)p)[i] << 16);
    return ((const float *)(const void *)p)[i];
}

VR int vr_blocks(enum dtype type)
{
    return type != DT_F32 && type != DT_F16 && type != DT_BF16;
}

/* The first n elements of a latent row. */
VR void vr_latent_row(const struct attn_job *j, int slot, float *x, int n)
{
    const uint8_t *p = vr_page(j, slot) + j->k_off + vr_in_page(j, slot) * (j->k_bytes / 64);
    if (vr_blocks(j->k_type))
        dtypes[j->k_type].dequant(p, x, j->d_k);
    for (int d = 0; d < n && !vr_blocks(j->k_type); d++)
        x[d] = vr_number(p, j->k_type, d);
}

VR void vr_k_row(const struct attn_job *j, int slot, float *x)
{
    const uint8_t *p = vr_page(j, slot) + j->k_off;
    uint8_t row[4096];
    int in = vr_in_page(j, slot);
    if (j->latent) {
        vr_latent_row(j, slot, x, j->d_k);
        return;
    }
    if (vr_blocks(j->k_type)) {
        dtypes[j->k_type].unpack_row(p + in / 16 * (j->k_bytes / 4), in % 16, j->d_k, row);
        dtypes[j->k_type].dequant(row, x, j->d_k);
    }
    for (int d = 0; d < j->d_k && !vr_blocks(j->k_type); d++)
        x[d] = vr_number(p, j->k_type, d * 64 + in);
}

VR void vr_v_row(const struct attn_job *j, int slot, float *x)
{
    const uint8_t *p = vr_page(j, slot) + j->v_off + vr_in_page(j, slot) * (j->v_bytes / 64);
    int dv = (j->d_v + 15) / 16 * 16;
    if (j->latent) {
        vr_latent_row(j, slot, x, dv);
        return;
    }
    if (vr_blocks(j->v_type))
        dtypes[j->v_type].dequant(p, x, dv);
    for (int d = 0; d < dv && !vr_blocks(j->v_type); d++)
        x[d] = vr_number(p, j->v_type, d);
}

/* The score of a slot: of numbers one chain, of blocks the reference dot product with the quantised
 * query. */
VR float vr_score(const struct attn_job *j, const float *q, int slot)
{
    float x[1024], a = 0;
    if (vr_blocks(j->k_type) && !j->latent) {
        uint8_t row[4096];
        int8_t qq[1024];
        float d[32];
        int32_t s[32];
        struct act_tile t = {.nc = 1, .q = qq, .d = d, .s32 = s};
        int in = vr_in_page(j, slot);
        dtypes[j->k_type].unpack_row(vr_page(j, slot) + j->k_off + in / 16 * (j->k_bytes / 4),
                                     in % 16, j->d_k, row);
        act_quant_a32(q, j->d_k, qq, d, s, 1, 0);
        return dtypes[j->k_type].dot(row, &t, 0, j->d_k);
    }
    vr_k_row(j, slot, x);
    for (int i = 0; i < j->d_k; i++)
        a = fmaf(x[i], q[i], a);
    return a;
}

/* A score and what the slot's distance adds. */
VR float vr_near(const struct attn_job *j, int row, int head, int slot, float s)
{
    if (j->slopes) {
        int r = slot - j->at[row];
        return fmaf(j->slopes[head], -(float)(r < 0 ? -r : r), s);
    }
    if (j->table) {
        int r = slot - j->at[row];
        r = r < -KERN_NEAR ? -KERN_NEAR : r > KERN_NEAR - 1 ? KERN_NEAR - 1 : r;
        return s + j->table[head * KERN_TABLE + r + KERN_NEAR];
    }
    return s;
}

/* The slot that stands at i. */
VR int vr_slot(const struct attn_job *j, int i)
{
    return j->list ? j->list[i] : i;
}

/* One query vector over [lo, hi) of a span, K and V row by row through the job's layout. */
VR void vr_attn_vector(const struct attn_job *j, int row, int head, float *m, float *l, float *o)
{
    const float *q = j->q + row * j->q_ld + head * j->d_k;
    int lo = j->list ? 0 : j->lo[row], hi = j->list ? j->slot1 : j->hi[row];
    int64_t dv = (j->d_v + 15) / 16 * 16;
    *m = -INFINITY;
    *l = 0;
    for (int d = 0; d < dv; d++)
        o[d] = 0;
    for (int p0 = j->slot0; p0 < j->slot1; p0 += 64) {
        float s[64], lane[16], v[1024];
        int seen = 0;
        for (int i = 0; i < 64; i++) {
            int slot = p0 + i;
            s[i] = -INFINITY;
            if (slot < lo || slot >= hi || slot >= j->slot1)
                continue;
            float a = vr_score(j, q, vr_slot(j, slot));
            s[i] = vr_near(j, row, head, slot, j->cap > 0 ? vr_softcap(a, j->cap) : a);
            seen = 1;
        }
        if (!seen)
            continue;
        for (int i = 0; i < 16; i++)
            lane[i] = vr_max(vr_max(s[i], s[i + 16]), vr_max(s[i + 32], s[i + 48]));
        for (int h = 8; h; h /= 2)
            for (int i = 0; i < h; i++)
                lane[i] = vr_max(lane[i], lane[i + h]);
        float m1 = vr_max(*m, lane[0]), c = 1;
        for (int i = 0; i < 64; i++)
            s[i] = vr_exp(s[i] - m1);
        if (m1 != *m) {
            c = vr_exp(*m - m1);
            *l = fmaf(*l, c, vr_tree64(s));
            for (int d = 0; d < dv; d++)
                o[d] = o[d] * c;
        } else {
            *l = *l + vr_tree64(s);
        }
        *m = m1;
        for (int i = 0; i < 64; i++) {
            int slot = p0 + i;
            if (slot < lo || slot >= hi || slot >= j->slot1)
                continue;
            vr_v_row(j, vr_slot(j, slot), v);
            for (int d = 0; d < dv; d++)
                o[d] = fmaf(s[i], v[d], o[d]);
        }
    }
}

VR void vr_attn(const struct attn_job *j)
{
    int64_t dv = (j->d_v + 15) / 16 * 16;
    for (int r = 0; r < j->n_rows; r++)
        for (int h = 0; h < j->g; h++) {
            int64_t i = (int64_t)r * j->g + h;
            vr_attn_vector(j, r, h, &j->m[i], &j->l[i], &j->o[i * dv]);
        }
}

VR void vr_index(const struct index_job *j)
{
    int64_t size = j->type == DT_F32 ? 4 : 2;
    for (int i = 0; i < 64; i++) {
        float s = 0;
        for (int h = 0; h < j->n_head; h++) {
            float t = 0;
            for (int d = 0; d < j->d; d++)
                t = fmaf(vr_number(j->k + d * 64 * size, j->type, i), j->q[h * j->d + d], t);
            s = j->weights ? fmaf(j->weights[h], t > 0 ? t : 0, s) : t;
        }
        j->s[i] = i >= j->a && i < j->b ? s : -INFINITY;
    }
}

VR void vr_attn_merge(float *M, float *L, float *O, const float *m, const float *l, const float *o,
                      int d)
{
    if (*l == 0)
        return;
    if (*L == 0) {
        *M = *m;
        *L = *l;
        memcpy(O, o, (size_t)d * 4);
        return;
    }
    float x = vr_max(*M, *m), a = vr_exp(*M - x), b = vr_exp(*m - x);
    *L = fmaf(*L, a, *l * b);
    for (int i = 0; i < d; i++)
        O[i] = fmaf(O[i], a, o[i] * b);
    *M = x;
}

/* The host's levels that have float-vector kernels of their own, best last; returns how many. */
VR int vr_levels(const struct kern *out[CPU_N_LEVELS])
{
    int n = 0;
    for (int l = CPU_BASE; l < CPU_N_LEVELS; l++) {
        if (!cpu_has((enum cpu_level)l))
            continue;
        const struct kern *k = kern_table(l);
        if (!n || k->rms_norm != out[n - 1]->rms_norm)
            out[n++] = k;
    }
    return n;
}

#endif
