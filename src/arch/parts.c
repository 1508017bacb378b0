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

node arch_rms(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
              int64_t width, const char *name)
{
    struct nn_norm norm = {.kind = NORM_RMS, .w = w, .width = width, .eps = m->hp.norm_eps};
    return nn_norm(g, x, &norm, name);
}

node arch_residual(const struct arch_model *m, struct graph *g, node y, node x, const char *name)
{
    float scale = m->hp.residual_scale;
    if (scale != 0 && scale != 1)
        y = graph_scale(g, y, scale, "residual_scale");
    return graph_add(g, y, x, name);
}

void arch_attention_states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, 0, arch_kv(&m->hp, l));
}

/* ---------------------------------------------------------------- feed-forward */

struct nn_ffn arch_ffn(const struct arch_ffn *w, struct glu_op act)
{
    return (struct nn_ffn){.gate = w->gate,
                           .up = w->up,
                           .down = w->down,
                           .act = act.act,
                           .act_c = {act.c[0], act.c[1], act.c[2], act.c[3]}};
}

struct nn_moe arch_moe(const struct arch_model *m, const struct arch_experts *w, struct glu_op act)
{
    const struct hparams *hp = &m->hp;
    return (struct nn_moe){.router = w->router,
                           .choice = w->choice,
                           .gate = w->gate,
                           .up = w->up,
                           .gate_up = w->gate_up,
                           .down = w->down,
                           .n_expert = hp->n_expert,
                           .k = hp->n_expert_used,
                           .gating = hp->expert_gating == 2   ? MOE_SIGMOID
                                     : hp->expert_gating == 3 ? MOE_SOFTMAX_CHOSEN
                                     : hp->expert_gating == 4 ? MOE_SQRT_SOFTPLUS
                                                              : MOE_SOFTMAX,
                           .norm = hp->expert_norm,
                           .least = 0x1p-14f,
                           .n_group = hp->n_expert_groups,
                           .n_group_used = hp->n_groups_used,
                           .scale = hp->expert_scale != 0 ? hp->expert_scale : 1,
                           .act = act.act,
                           .act_c = {act.c[0], act.c[1], act.c[2], act.c[3]}};
}

node arch_with_shared(struct graph *g, const struct nn_moe *moe, const struct nn_ffn *shared,
                      node x)
{
    node y = nn_moe(g, moe, x);
    return shared->up ? graph_add(g, y, nn_ffn(g, shared, x), "ffn_shared") : y;
}

struct glu_op arch_silu_within(float limit)
{
    return (struct glu_op){limit > 1e-6f ? GLU_SILU_MIN : GLU_SILU, {limit}};
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

/* ---------------------------------------------------------------- delta attention */

int64_t arch_kda_dim(const struct arch_model *m, const struct arch_kda_hp *h, int d, int32_t l)
{
    return d == D_KDA ? (int64_t)m->hp.n_head[l] * h->head : d == D_KDA_HEAD ? h->head : h->conv;
}

struct nn_kda arch_kda(const struct arch_model *m, int32_t l, const struct arch_kda_hp *h,
                       const struct arch_kda *w, int32_t state)
{
    return (struct nn_kda){.wq = w->wq,
                           .wk = w->wk,
                           .wv = w->wv,
                           .conv_q = w->conv_q,
                           .conv_k = w->conv_k,
                           .conv_v = w->conv_v,
                           .f_a = w->f_a,
                           .f_b = w->f_b,
                           .dt = w->dt,
                           .a = w->a,
                           .beta = w->beta,
                           .g_a = w->g_a,
                           .g_b = w->g_b,
                           .norm = w->norm,
                           .wo = w->wo,
                           .n_head = m->hp.n_head[l],
                           .d = h->head,
                           .conv = h->conv,
                           .state = state,
                           .eps = m->hp.norm_eps,
                           .unit_eps = m->hp.norm_eps,
                           .lowest = h->lowest,
                           .rate_sign = 1};
}

/* ---------------------------------------------------------------- RWKV */

int arch_is_qwen2(const struct arch_model *m)
{
    return m->arch->variant != NULL;
}

int arch_is_rwkv(const struct arch_model *m)
{
    return !arch_is_qwen2(m);
}

double arch_head_width(const struct arch_model *m)
{
    return m->hp.d_k;
}

double arch_half_head(const struct arch_model *m)
{
    return (m->hp.d_k + 1) / 2;
}

void arch_rwkv_states(struct arch_model *m, const struct arch_rwkv_hp *h)
{
    int64_t n = m->hp.n_embd;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, 0,
                   (struct state){.rows = STATE_RECURRENT,
                                  .n = {[RWKV_TIME] = n,
                                        [RWKV_CHANNEL] = arch_is_qwen2(m) ? 0 : n,
                                        [RWKV_MATRIX] = n * h->head}});
}

node arch_rwkv_norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                    const struct tensor *b, const char *name)
{
    enum norm_kind kind = arch_is_qwen2(m) ? NORM_RMS : NORM_LAYER;
    return nn_norm(g, x, &(struct nn_norm){kind, w, b, 0, m->hp.norm_eps}, name);
}

node arch_rwkv_before(const struct arch_model *m, struct graph *g, int32_t l, node x, int32_t part,
                      const char *name)
{
    struct conv_in in = {.x = x, .width = 2, .state = m->state_of[l][0], .part = part};
    return graph_conv(g, &in, name);
}

void arch_rwkv_begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    if (arch_is_rwkv(m))
        c->x[0] = arch_rwkv_norm(m, g, c->x[0], m->io.tok_norm, m->io.tok_norm_b, "embed_norm");
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
    return graph_rms_norm(g, x, m->io.output_norm, m->hp.norm_eps, "output_norm");
}
