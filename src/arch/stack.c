/* stack.c -- the graph of a role, whatever the family: embedding, visits, and what comes out. Only
 * here it is known which rows are asked for, how embeddings are pooled and how logits are made;
 * families say how the residual stream goes on (arch.h, struct arch_role). */
#include "arch/arch.h"

#include <float.h>
#include <math.h>

static node logits(const struct arch_model *m, struct graph *g, node x)
{
    const struct arch_io *io = &m->io;
    const struct tensor *own = m->head ? m->head->head : NULL;
    x = graph_matmul(g, own ? own : io->output ? io->output : io->tok_embd,
                     own ? NULL : io->output_b, x, "output");
    if (m->hp.logit_scale != 0 && m->hp.logit_scale != 1)
        x = graph_scale(g, x, m->hp.logit_scale, "logits_scale");
    if (m->hp.logit_softcap > 0)
        x = graph_softcap(g, x, m->hp.logit_softcap, "logits");
    struct unsaid_op never = {.first = m->hp.unsaid_first, .n = m->hp.n_unsaid};
    never.then = never.first + (m->hp.n_said ? 0 : never.n);
    never.value = m->hp.n_said ? -INFINITY : -FLT_MAX; /* no rows, or unwanted */
    return never.n ? graph_unsaid(g, x, &never, "logits_said") : x;
}

int32_t arch_n_labels(const struct arch_model *m)
{
    const struct tensor *last = m->io.rank ? m->io.rank : m->io.cls;
    return last ? (int32_t)tensor_m(last) : 0;
}

/* Scores of pooled rows: cls with its activation (and norm), then the labels. A model may have one
 * of the two. */
static node scores(const struct arch_model *m, struct graph *g, node x)
{
    const struct arch_io *io = &m->io;
    if (io->cls) {
        x = graph_matmul(g, io->cls, io->cls_b, x, "cls");
        x = graph_glu(g, x, NULL, m->hp.rank_gelu ? GLU_GELU : GLU_TANH, "cls_act");
        struct nn_norm norm = {.kind = NORM_LAYER, .w = io->cls_norm, .eps = m->hp.norm_eps};
        if (io->cls_norm)
            x = nn_norm(g, x, &norm, "cls_norm");
    }
    if (io->rank)
        x = graph_matmul(g, io->rank, io->rank_b, x, "cls_output");
    if (!m->hp.rank_softmax)
        return x;
    /* Routing to all labels: their numbers in order, and behind them their shares. */
    int32_t n = arch_n_labels(m);
    struct topk_in all = {.logits = x, .p = {.k = n, .gating = MOE_SOFTMAX, .scale = 1}};
    return graph_view(g, graph_topk(g, &all, "cls_shares"), n, n, "scores");
}

/* Those of the carry before visit i (TAP_END: at the end). */
static void take_taps(const struct arch_want *want, struct graph *g, int32_t i,
                      const struct carry *c)
{
    for (int32_t k = 0; k < want->n_taps; k++)
        if (want->taps[k].role == want->role && want->taps[k].visit == i)
            graph_tap(g, k, c->x[want->taps[k].value], want->taps[k].name);
}

/* 1: some tap is of what comes behind visit i, so all rows go through it. */
static int taps_behind(const struct arch_want *want, int32_t i)
{
    int32_t k = 0;
    while (k < want->n_taps && !(want->taps[k].role == want->role &&
                                 (want->taps[k].visit == TAP_END || want->taps[k].visit > i)))
        k++;
    return k < want->n_taps;
}

/* From here on only the rows that an output asks for. */
static void select_rows(struct graph *g, struct carry *c)
{
    for (int k = 0; k < CARRY_MAX && c->x[k]; k++)
        if (c->x[k]->rows == ROWS_T)
            c->x[k] = graph_select(g, c->x[k], "output_rows");
}

/* ---------------------------------------------------------------- cuts */

/* Value k of the carry crosses cuts: it is numbers of each row. A tie to rows of a state is not
 * (both lie on the same side, stage.c), nor is what belongs to no row. */
static int crosses(const struct carry *c, int k)
{
    return c->x[k] && c->x[k]->rows == ROWS_T && c->x[k]->cols > 0;
}

static void measure(const struct carry *c, struct graph *g, struct arch_cut *out)
{
    *out = (struct arch_cut){0};
    for (int k = 0; k < CARRY_MAX; k++) {
        if (!crosses(c, k))
            continue;
        if (c->x[k]->rows_mul != 1)
            graph_mismatch(g, c->x[k], "rows of a row in the carry", c->x[k]->rows_mul, 1);
        out->n[k] = c->x[k]->cols;
        out->cols += out->n[k];
    }
}

pith_status arch_cuts(const struct arch_model *m, const int32_t *visit, int n, struct arch_cut *out,
                      struct pith_error *err)
{
    const struct arch_role *role = arch_role(m, ROLE_DECODER);
    struct graph g;
    graph_init(&g);
    g.n_layer = m->hp.n_layer;
    g.n_embd = m->hp.n_embd;
    g.states = m->states;
    g.n_states = m->n_states;
    g.stack = role->stack;
    struct carry c = {{arch_roles[ROLE_DECODER].rows(m, &g)}};
    if (role->begin)
        role->begin(m, &g, &c);
    for (int32_t i = 0, k = 0; k < n; i++) {
        while (k < n && visit[k] == i)
            measure(&c, &g, &out[k++]);
        g.layer = arch_layer_of(m, i);
        if (k < n)
            role->visit(m, &g, i, &c);
    }
    pith_status st = graph_finish(&g, err);
    graph_deinit(&g);
    return st;
}

/* The carry of a stage that does not begin at 0, as the step brings it. */
static void take_carry(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct arch_cut *in = &m->stage.in;
    int64_t at = 0;
    g->layer = arch_layer_of(m, m->stage.first);
    node all = graph_vector(g, "carry");
    *c = (struct carry){{NULL}};
    for (int k = 0; k < CARRY_MAX; at += in->n[k++])
        if (in->n[k])
            c->x[k] = in->n[k] == in->cols ? all : graph_view(g, all, at, in->n[k], "carried");
}

/* The carry of every row as a result, in the order of outputs. */
static void hand_on(struct graph *g, const struct carry *c)
{
    struct concat_in all = {.n = 0};
    for (int k = 0; k < CARRY_MAX; k++)
        if (crosses(c, k))
            all.x[all.n++] = graph_select(g, c->x[k], "carried");
    g->embd = all.n == 1 ? all.x[0] : graph_concat(g, &all, "carry");
}

/* ---------------------------------------------------------------- the graph */

const struct arch_role *arch_role(const struct arch_model *m, enum role role)
{
    static const struct arch_role nothing;
    return m->arch->role[role] ? m->arch->role[role] : &nothing;
}

void arch_build(const struct arch_model *m, const struct arch_want *want, struct graph *g)
{
    const struct arch_role *role = arch_role(m, want->role);
    const struct arch_role_row *row = &arch_roles[want->role];
    int encodes = row->encodes, ends = encodes || arch_ends(m);
    int32_t first = encodes ? 0 : m->stage.first;
    int32_t end = encodes ? m->n_encoder_visits : arch_stage_end(m);
    struct carry c;
    g->stack = role->stack;
    if (first) {
        take_carry(m, g, &c);
    } else {
        c = (struct carry){{row->rows(m, g)}};
        if (role->begin)
            role->begin(m, g, &c);
    }
    int selects = ends && !want->pooled && !encodes, late = taps_behind(want, end - 1);
    for (int32_t i = first; i < end; i++) {
        g->layer = encodes ? i : arch_layer_of(m, i);
        g->tail = i == end - 1 && selects && !late;
        take_taps(want, g, i, &c);
        role->visit(m, g, i, &c);
    }
    if (!ends) {
        take_taps(want, g, end, &c);
        hand_on(g, &c);
        return;
    }
    g->layer = m->hp.n_layer;
    if (selects && !late) /* the last visit may have left all rows */
        select_rows(g, &c);
    g->tail = 0;
    take_taps(want, g, end, &c);
    (role->end ? role->end : row->end)(m, g, &c);
    take_taps(want, g, TAP_END, &c);
    if (encodes)
        return;
    if (selects && late)
        select_rows(g, &c);
    if (want->logits)
        g->logits = logits(m, g, c.x[0]);
    else
        g->embd = want->pooled ? graph_pool(g, c.x[0], want->pool, "pool") : c.x[0];
    if (!want->logits && !want->rank && row->dense && m->io.dense_2) {
        g->embd = graph_matmul(g, m->io.dense_2, m->io.dense_2_b, g->embd, "dense_2");
        if (m->io.dense_3)
            g->embd = graph_matmul(g, m->io.dense_3, NULL, g->embd, "dense_3");
    }
    if (want->rank)
        g->embd = scores(m, g, g->embd);
}
