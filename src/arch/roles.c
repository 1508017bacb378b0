/* roles.c -- roles beside the decoder that have visits and states of their own: heads that predict
 * further on [DeepSeek-V3, arXiv:2412.19437, sec. 2.2] and projectors. Each sees the model as one
 * of its own (arch_view), so that families' functions build their graphs as they do any other:
 * visit 0 of draft head k is that of layer n_layer + k.
 *
 *   a draft head   x = eh_proj [RMS(embedding of the token), RMS(the vector of its row)]; a visit;
 *                  the norm (shared_head_norm, else layer_output_norm) and the output matrix of its
 *                  own, or the model's
 *   a projector    z = mm.2 gelu(mm.0 x + bias) + bias, x the vector of its row; one of the two
 *                  alone without gelu */
#include "arch/arch.h"

#include <string.h>

#define N(name_, field, ...) ROW(struct arch_nextn, name_, field, .layer = 1, __VA_ARGS__)
const struct tensor_spec arch_nextn_tensors[] = {
    N("nextn.eh_proj.weight", eh_proj, DIM(DIM_E, DIM_E2)),
    N("nextn.enorm.weight", enorm, DIM(DIM_E)),
    N("nextn.hnorm.weight", hnorm, DIM(DIM_E)),
    N("nextn.embed_tokens.weight", embed, DIM(DIM_V, DIM_E), .optional = 1),
    N("nextn.shared_head_head.weight", head, DIM(DIM_V, DIM_E), .optional = 1),
    N("nextn.shared_head_norm.weight", norm, DIM(DIM_E), .optional = 1),
    N("layer_output_norm.weight", out_norm, DIM(DIM_E), .optional = 1),
    {0}};
#undef N

/* ---------------------------------------------------------------- views */

static const struct tensor *projects(const struct arch_model *m)
{
    return m->io.mm_in ? m->io.mm_in : m->io.mm_out;
}

const struct arch_model *arch_view(const struct arch_model *m, enum role role, int32_t draft)
{
    if (role == ROLE_DRAFT)
        return m->draft && draft >= 0 && draft < m->hp.n_nextn ? &m->draft[draft] : NULL;
    return role == ROLE_PROJECTOR ? m->projector : m;
}

void arch_turn_states(struct arch_model *m)
{
    for (struct state *s = m->states; s < m->states + m->n_states; s++)
        if (s->rows != STATE_RECURRENT && !s->rope && !s->unturned)
            s->rope = m->rope[s->layer];
}

/* v sees n visits of m, from layer `first` on. */
static pith_status make_view(const struct arch_model *m, enum role role, int32_t first, int32_t n,
                             struct arch_model *v, struct pith_error *err)
{
    *v = *m;
    v->runs = role;
    v->stage = (struct arch_stage){0};
    v->hp.n_layer = m->hp.n_layer + m->hp.n_nextn;
    v->n_visits = n;
    v->n_encoder_visits = v->n_states = v->cap_states = 0;
    v->states = NULL;
    v->layer_of = arena_array(m->arena, (size_t)n + 1, sizeof *v->layer_of);
    v->state_of = arena_array(m->arena, (size_t)n + 1, sizeof *v->state_of);
    if (!v->layer_of || !v->state_of)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
    for (int32_t i = 0; i < n; i++)
        v->layer_of[i] = first + i;
    memset(v->state_of, -1, (size_t)n * sizeof *v->state_of);
    if (n && m->arch->states)
        m->arch->states(v);
    arch_turn_states(v);
    return PITH_OK;
}

pith_status arch_make_views(struct arch_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (m->drafts) {
        struct arch_model *draft =
            arena_array(m->arena, (size_t)m->hp.n_nextn + 1, sizeof *m->draft);
        if (!draft)
            return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
        for (int32_t k = 0; k < m->hp.n_nextn && st == PITH_OK; k++) {
            st = make_view(m, ROLE_DRAFT, m->hp.n_layer + k, 1, &draft[k], err);
            draft[k].head = &m->nextn[k];
        }
        m->draft = draft;
    }
    if (projects(m) && st == PITH_OK) {
        struct arch_model *v = arena_alloc(m->arena, sizeof *v);
        if (!v)
            return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
        st = make_view(m, ROLE_PROJECTOR, 0, 0, v, err);
        v->hp.causal = 0;
        v->hp.n_embd = (int32_t)tensor_k(projects(m));
        m->projector = v;
    }
    return st;
}

/* ---------------------------------------------------------------- graphs */

static node norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                 const char *name)
{
    struct nn_norm by = {.kind = NORM_RMS, .w = w, .eps = m->hp.norm_eps};
    return nn_norm(g, x, &by, name);
}

static node embedding(const struct arch_model *m, struct graph *g, const struct tensor *table)
{
    struct embed_op embed = {.scale = m->hp.embd_scale != 0 ? m->hp.embd_scale : 1,
                             .n_swapped = m->hp.n_swapped,
                             .from = m->hp.swap_from,
                             .to = m->hp.swap_to};
    return graph_embed(g, table, &embed);
}

static node tokens(const struct arch_model *m, struct graph *g)
{
    return embedding(m, g, m->io.tok_embd);
}

static void end_norm(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[0] = nn_norm(g, c->x[0],
                      &(struct nn_norm){.w = m->io.output_norm,
                                        .b = m->io.output_norm_b,
                                        .kind = m->io.output_norm_b ? NORM_LAYER : NORM_RMS,
                                        .eps = m->hp.norm_eps},
                      "output_norm");
}

static node tokens_and_vectors(const struct arch_model *m, struct graph *g)
{
    const struct arch_nextn *h = m->head;
    g->layer = arch_layer_of(m, 0);
    node e = embedding(m, g, h->embed ? h->embed : m->io.tok_embd);
    struct concat_in both = {.x = {norm(m, g, e, h->enorm, "enorm"),
                                   norm(m, g, graph_vector(g, "vector"), h->hnorm, "hnorm")},
                             .n = 2};
    return graph_matmul(g, h->eh_proj, NULL, graph_concat(g, &both, "both"), "eh_proj");
}

static void end_draft(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct arch_nextn *h = m->head;
    const struct tensor *w = h->norm ? h->norm : h->out_norm ? h->out_norm : m->io.output_norm;
    c->x[0] = norm(m, g, c->x[0], w, "output_norm");
}

static node vectors(const struct arch_model *m, struct graph *g)
{
    (void)m;
    return graph_vector(g, "vector");
}

static void end_projector(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct arch_io *io = &m->io;
    node x = c->x[0];
    if (io->mm_in)
        x = graph_matmul(g, io->mm_in, io->mm_in_b, x, "mm.0");
    if (io->mm_in && io->mm_out)
        x = graph_glu(g, x, NULL, GLU_GELU, "mm_act");
    if (io->mm_out)
        x = graph_matmul(g, io->mm_out, io->mm_out_b, x, "mm.2");
    c->x[0] = x;
}

const struct arch_role_row arch_roles[N_ROLES] = {
    [ROLE_DECODER] = {.rows = tokens, .end = end_norm, .dense = 1},
    [ROLE_ENCODER] = {.rows = tokens, .end = end_norm, .encodes = 1},
    [ROLE_DRAFT] = {.rows = tokens_and_vectors, .end = end_draft, .dense = 1},
    [ROLE_PROJECTOR] = {.rows = vectors, .end = end_projector},
};
