/* rope.c -- constants of rotated positions: frequencies by base, linear and YaRN scaling, and
 * divisors that a file brings. */
#include "arch/arch.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"

/* Dimension (of n_rot) whose wavelength makes `turns` full turns over the original context [YaRN,
 * arXiv:2309.00071, sec. 3.2]. */
static double yarn_dim(int n_rot, double ctx, double turns, double base)
{
    return n_rot * fmath_log(ctx / (turns * 6.283185307179586)) / (2 * fmath_log(base));
}

/* 1 + 0.1 m ln s: what YaRN makes of the attention's temperature, with multiplier m. */
static double yarn_magnitude(double m, double s)
{
    return s > 1 ? 1 + 0.1 * m * fmath_log(s) : 1;
}

static struct rope_set *one_set(struct arch_model *m, const struct rope_params *p)
{
    const struct hparams *hp = &m->hp;
    struct rope_set *set = arena_alloc(m->arena, sizeof *set);
    double *freq = arena_array(m->arena, (size_t)p->n_rot / 2 + 1, sizeof *freq);
    if (!set || !freq)
        return NULL;
    int yarn = p->scaled && hp->rope_scaling == ROPE_SCALE_YARN;
    int by_factor = yarn || (p->scaled && hp->rope_scaling == ROPE_SCALE_LINEAR);
    double scale = by_factor ? 1 / (double)hp->rope_factor : 1, low = 0, high = 0;
    *set = (struct rope_set){.n_rot = p->n_rot,
                             .neox = p->neox,
                             .freq = freq,
                             .mscale = p->scaled ? hp->rope_attn_factor : 1,
                             .axis = p->axis};
    if (yarn) {
        low = floor(yarn_dim(p->n_rot, hp->rope_ctx_orig, hp->yarn_beta_fast, p->base));
        high = ceil(yarn_dim(p->n_rot, hp->rope_ctx_orig, hp->yarn_beta_slow, p->base));
        low = low > 0 ? low : 0;
        high = high < p->n_rot - 1 ? high : p->n_rot - 1;
        /* yarn_attn_factor, where a file has it, is all of this magnitude and not one more. */
        set->mscale = (float)((double)hp->rope_attn_factor * yarn_magnitude(1, 1 / scale));
        if (hp->yarn_log != 0)
            set->mscale = (float)((double)set->mscale / yarn_magnitude(hp->yarn_log, 1 / scale));
    }
    for (int i = 0; i < p->n_rot / 2; i++) {
        double f =
            fmath_pow(p->base, -2.0 * i / p->n_rot) / (p->factors ? (double)p->factors[i] : 1.0);
        double ramp = 0; /* 1: keep the original frequency */
        if (yarn) {
            double t = (i - low) / (high - low > 0.001 ? high - low : 0.001);
            ramp = (1 - (t < 0 ? 0 : t > 1 ? 1 : t)) * hp->yarn_ext;
        }
        freq[i] = f * scale * (1 - ramp) + f * ramp;
    }
    return set;
}

const struct rope_set *rope_set_new(struct arch_model *m, const struct rope_params *p)
{
    struct rope_set *set = one_set(m, p);
    if (!set || !p->far)
        return set;
    struct rope_params far = *p;
    far.factors = p->far;
    set->longer = one_set(m, &far);
    set->n_ctx = m->hp.rope_ctx_orig;
    return set->longer ? set : NULL;
}

int32_t rope_near(const struct arch_model *m)
{
    int32_t n = m->hp.n_ctx_train;
    for (int32_t l = 0; m->rope && l < m->hp.n_layer; l++)
        if (m->rope[l] && m->rope[l]->longer && m->rope[l]->n_ctx < n)
            n = m->rope[l]->n_ctx;
    return n;
}

int rope_is_far(const struct arch_model *m, int32_t n_ctx)
{
    for (int32_t l = 0; m->rope && l < m->hp.n_layer; l++)
        if (rope_set_for(m->rope[l], n_ctx) != m->rope[l])
            return 1;
    return 0;
}

static pith_status factors_of(const struct arch_model *m, const struct tensor *t, const float **out,
                              struct pith_error *err)
{
    *out = t ? arch_floats(m, t) : NULL;
    if (t && !*out)
        return error_set(err, PITH_NOMEM, "out of memory for %s", t->name);
    for (int64_t i = 0; t && i < tensor_k(t); i++)
        if (!((*out)[i] > 0 && (*out)[i] < 1e31f))
            return error_set(err, PITH_RANGE, "%s divides pair %lld by %g, wanted > 0", t->name,
                             (long long)i, (double)(*out)[i]);
    return PITH_OK;
}

int rope_is_long(const struct arch_model *m)
{
    return m->hp.rope_scaling == ROPE_SCALE_LONG || arch_has(m, -1, "rope_factors_long.weight", 0);
}

pith_status rope_factors(const struct arch_model *m, struct rope_params *p, struct pith_error *err)
{
    if (!m->io.rope_short)
        return factors_of(m, m->io.rope_freqs, &p->factors, err);
    pith_status st = factors_of(m, m->io.rope_short, &p->factors, err);
    return st == PITH_OK ? factors_of(m, m->io.rope_long, &p->far, err) : st;
}

const uint8_t *rope_axis(const struct arch_model *m, int interleaved)
{
    const int32_t *n = m->hp.rope_sections;
    if (n[0] <= 0 || n[1] <= 0)
        return NULL;
    uint8_t *axis = arena_alloc(m->arena, (size_t)m->hp.n_rot / 2 + 1);
    if (axis && interleaved)
        rope_axis_interleaved(axis, m->hp.n_rot / 2, n);
    else if (axis)
        rope_axis_sections(axis, m->hp.n_rot / 2, n);
    return axis;
}
