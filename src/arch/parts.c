/* parts.c -- see parts.h. */
#include "arch/parts.h"

#include <math.h>

struct nn_attention arch_attention(const struct arch_model *m, int32_t l, const struct arch_attn *w,
                                   int state_slot)
{
    const struct hparams *hp = &m->hp;
    return (struct nn_attention){.wqkv = w->wqkv,
                                 .wq = w->wq,
                                 .wk = w->wk,
                                 .wv = w->wv,
                                 .wo = w->wo,
                                 .bqkv = w->bqkv,
                                 .bq = w->bq,
                                 .bk = w->bk,
                                 .bv = w->bv,
                                 .bo = w->bo,
                                 .n_head = hp->n_head[l],
                                 .n_head_kv = hp->n_head_kv[l],
                                 .d_k = hp->d_k,
                                 .d_v = hp->d_v,
                                 .q_scale = 1.0f / sqrtf((float)hp->d_k),
                                 .rope = m->rope[l],
                                 .state = m->state_of[l][state_slot]};
}

pith_status arch_rotate_halves(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    const struct rope_set *set = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return set ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- Mamba-2 */

double arch_two_rows(const struct arch_model *m)
{
    return 2 * m->hp.n_embd;
}

double arch_heads_of_16(const struct arch_model *m)
{
    return 2 * m->hp.n_embd % 16 ? 1 : 2 * m->hp.n_embd / 16;
}

int64_t arch_ssm_dim(const struct arch_ssm_hp *h, int d)
{
    int64_t bc = 2 * (int64_t)h->groups * h->state;
    switch (d) {
    case D_SSM_INNER:
        return h->inner;
    case D_SSM_IN:
        return 2 * (int64_t)h->inner + bc + h->heads;
    case D_SSM_CHANNELS:
        return h->inner + bc;
    case D_SSM_CONV:
        return h->conv;
    case D_SSM_HEADS:
        return h->heads;
    case D_SSM_GROUP:
        return h->groups;
    default: /* D_SSM_PER_GROUP */
        return h->inner / h->groups;
    }
}

pith_status arch_ssm_check(const struct arch_model *m, const struct arch_ssm_hp *h,
                           struct pith_error *err)
{
    return h->inner % h->heads == 0 && h->heads % h->groups == 0
               ? PITH_OK
               : error_set(err, PITH_SHAPE,
                           "%s: %d channels over %d heads in %d groups: not whole heads and groups",
                           arch_path(m), h->inner, h->heads, h->groups);
}

struct nn_ssm arch_ssm(const struct arch_model *m, const struct arch_ssm_hp *h,
                       const struct arch_ssm *w, int32_t state)
{
    return (struct nn_ssm){.in = w->in,
                           .conv = w->conv,
                           .conv_b = w->conv_b,
                           .dt_b = w->dt_b,
                           .a = w->a,
                           .d = w->d,
                           .norm = w->norm,
                           .inner = h->inner,
                           .n_state = h->state,
                           .n_group = h->groups,
                           .n_dt = h->heads,
                           .n_conv = h->conv,
                           .state = state,
                           .mamba2 = 1,
                           .norm_eps = m->hp.norm_eps};
}

/* ---------------------------------------------------------------- residual streams */

int64_t arch_streams_dim(const struct arch_model *m, const struct arch_streams_hp *h, int d)
{
    int mixed = h->iterations > 0;
    switch (d) {
    case D_STREAMS:
        return (int64_t)h->n * m->hp.n_embd;
    case D_GATES:
        return (int64_t)h->n * (mixed ? 2 + h->n : 2);
    case D_PARTS:
        return mixed ? 3 : 2;
    default: /* D_N_STREAMS */
        return h->n;
    }
}

struct nn_streams arch_streams(const struct arch_model *m, const struct arch_streams_hp *h,
                               const struct arch_half *w)
{
    int mixed = h->iterations > 0;
    return (struct nn_streams){.fn = w->fn,
                               .scale = w->scale,
                               .base = w->base,
                               .n = h->n,
                               .iterations = h->iterations,
                               .eps = h->eps,
                               .magnitude = mixed ? 2 : h->magnitude,
                               .post_eps = mixed ? 0 : h->eps,
                               .norm_eps = m->hp.norm_eps};
}

node arch_streams_end(const struct arch_model *m, struct graph *g, const struct arch_streams_hp *h,
                      node x)
{
    struct nn_streams s = arch_streams(m, h, m->model);
    x = nn_streams_read(g, &s, x, "output_streams").input;
    return graph_rms_norm(g, x, m->io.output_norm, m->hp.n_embd, m->hp.norm_eps, "output_norm");
}

/* ---------------------------------------------------------------- rest */

enum glu_act arch_silu_within(float limit)
{
    return limit > 1e-6f ? GLU_SILU_MIN : GLU_SILU;
}

void arch_attention_states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, 0, arch_kv(&m->hp, l));
}
