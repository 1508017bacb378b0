/* session.c -- see session.h. Opening: parameters -> cache layout -> graph -> plan -> memory. A
 * call of pith_step: check everything -> for each run of at most n_batch rows: sort by sequence,
 * take pages, fill the step, run the plan -> on failure every sequence goes back to where it was.
 */
#include "run/session/rows.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/machine/trace.h"
#include "graph/kv_page.h"
#include "graph/ops/attention.h"
#include "graph/ops/rope.h"

/* ---------------------------------------------------------------- open */

static int cache_type(const char *name, enum dtype *out, const char *which, struct pith_error *err)
{
    int t = name ? dtype_from_name(name) : DT_F16;
    if (t >= 0 && kv_type_known((enum dtype)t)) {
        *out = (enum dtype)t;
        return 1;
    }
    char known[128] = "";
    for (int i = 0; i < KV_N_TYPES; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 dtypes[kv_types[i]].name);
    error_set(err, PITH_UNSUPPORTED, "cache type %s = \"%.32s\"; known are %s", which, name, known);
    return 0;
}

/* What the head of a model that ranks looks at. Without a word of the file or the family: the first
 * row, or, where rows see no later ones, the last. */
static enum pool_kind pool_of_rank(const struct hparams *hp)
{
    switch (hp->rank_pool) {
    case PITH_POOL_MEAN:
        return POOL_MEAN;
    case PITH_POOL_CLS:
        return POOL_CLS;
    case PITH_POOL_LAST:
        return POOL_LAST;
    default:
        return hp->causal ? POOL_LAST : POOL_CLS;
    }
}

/* Which role its rows are for. */
static pith_status take_role(struct pith_session *s, const struct pith_session_params *p,
                             struct pith_error *err)
{
    static const enum role roles[] = {[PITH_ROLE_DECODER] = ROLE_DECODER,
                                      [PITH_ROLE_DRAFT] = ROLE_DRAFT,
                                      [PITH_ROLE_PROJECTOR] = ROLE_PROJECTOR};
    const struct arch_model *m = &s->model->arch;
    if (p->role < 0 || p->role > PITH_ROLE_PROJECTOR || p->role == PITH_ROLE_ENCODER)
        return error_set(err, PITH_RANGE,
                         "role is %d, wanted %d (decoder), %d (draft head) or %d (projector); an "
                         "encoder runs in its decoder's session (pith_encode)",
                         p->role, PITH_ROLE_DECODER, PITH_ROLE_DRAFT, PITH_ROLE_PROJECTOR);
    if (follow_check(s, p, err) != PITH_OK)
        return err->code;
    enum role role = roles[p->role];
    if (role == ROLE_DRAFT && !m->draft)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s has %d blocks that predict further on%s; open the model with "
                         "draft_heads",
                         s->model->info.arch, m->hp.n_nextn,
                         m->hp.n_nextn ? ", which are not loaded" : "");
    if (role == ROLE_PROJECTOR && !m->projector)
        return error_set(err, PITH_UNSUPPORTED, "%s: the file has no projector (mm.0.weight)",
                         arch_path(m));
    if (p->draft && (role != ROLE_DRAFT || p->draft < 0 || p->draft >= m->hp.n_nextn))
        return error_set(err, PITH_RANGE, "draft is %d, the session has draft heads 0..%d",
                         p->draft, role == ROLE_DRAFT ? m->hp.n_nextn - 1 : 0);
    if (role == ROLE_PROJECTOR && p->n_adapters)
        return error_set(err, PITH_UNSUPPORTED, "a session of a projector has no adapters");
    if (role != ROLE_DECODER && (p->store_bytes || p->store_dir))
        return error_set(err, PITH_UNSUPPORTED,
                         "a session of a %s has no prefix store: what it keeps is of vectors, and "
                         "stored pages are found by tokens",
                         role == ROLE_DRAFT ? "draft head" : "projector");
    if (role != ROLE_DECODER && p->pooling != PITH_POOL_FILE && p->pooling != PITH_POOL_NONE)
        return error_set(err, PITH_UNSUPPORTED, "a session of a %s does not pool",
                         role == ROLE_DRAFT ? "draft head" : "projector");
    s->draft = p->draft;
    s->arch = arch_view(m, role, p->draft);
    s->n_roles = s->arch->n_encoder_visits ? 2 : 1;
    s->causal = s->arch->hp.causal;
    return PITH_OK;
}

static pith_status take_pooling(struct pith_session *s, const struct pith_session_params *p,
                                struct pith_error *err)
{
    const struct pith_model *m = s->model;
    int pooling = p->pooling == PITH_POOL_FILE ? m->arch.hp.pooling : (int)p->pooling;
    if (!arch_ends(s->arch) && pooling != PITH_POOL_NONE && p->pooling != PITH_POOL_FILE)
        return error_set(err, PITH_UNSUPPORTED,
                         "pooling %d of a stage that ends before the last visit; wanted none",
                         pooling);
    if (s->arch->runs != ROLE_DECODER || !arch_ends(s->arch))
        pooling = PITH_POOL_NONE;
    if (pooling < PITH_POOL_NONE || pooling > PITH_POOL_RANK)
        return error_set(err, PITH_UNSUPPORTED, "pooling %d; known are none, mean, cls, last, rank",
                         pooling);
    s->pooled = pooling != PITH_POOL_NONE;
    s->ranks = pooling == PITH_POOL_RANK;
    if (s->ranks && !arch_n_labels(&m->arch))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: pooling rank, but the file has neither cls.weight nor "
                         "cls.output.weight: the model cannot rank",
                         arch_path(&m->arch));
    s->pool_kind = s->ranks                    ? pool_of_rank(&m->arch.hp)
                   : pooling == PITH_POOL_CLS  ? POOL_CLS
                   : pooling == PITH_POOL_LAST ? POOL_LAST
                                               : POOL_MEAN;
    return PITH_OK;
}

static pith_status take_params(struct pith_session *s, const struct pith_session_params *p,
                               struct cache_params *cp, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    if (m->params.vocab_only)
        return error_set(
            err, PITH_STATE,
            "the model was opened with vocab_only; open it with its weights to run it");
    if (p->n_ctx < 0 || p->n_ctx > CONTEXT_MOST)
        return error_set(err, PITH_RANGE,
                         "n_ctx is %d, wanted 1..%d (0: as trained, or as memory allows)", p->n_ctx,
                         CONTEXT_MOST);
    if (p->n_seq < 0 || p->n_seq > 65536)
        return error_set(err, PITH_RANGE, "n_seq is %d, wanted 1..65536", p->n_seq);
    int most = pool_n_threads(m->pool);
    if (p->n_threads < 0 || p->n_threads > most || p->n_threads_prefill < 0 ||
        p->n_threads_prefill > most)
        return error_set(err, PITH_RANGE,
                         "n_threads is %d and n_threads_prefill %d, the model was opened with %d",
                         p->n_threads, p->n_threads_prefill, most);
    s->n_threads = p->n_threads ? p->n_threads : m->n_threads;
    s->n_threads_prefill = p->n_threads_prefill ? p->n_threads_prefill
                           : p->n_threads       ? p->n_threads
                                                : m->n_threads_prefill;
    if (m->arch.hp.n_positions && p->n_ctx > m->arch.hp.n_positions)
        return error_set(err, PITH_RANGE, "n_ctx is %d, the model has learned %d positions",
                         p->n_ctx, m->arch.hp.n_positions);
    s->n_ctx = p->n_ctx; /* room_choose */
    s->rope_ctx = p->n_ctx;
    s->n_seq = p->n_seq ? p->n_seq : p->follows ? p->follows->n_seq : 1;
    if (p->n_batch < 0 || p->n_batch > 65536)
        return error_set(err, PITH_RANGE, "n_batch is %d, wanted 0..65536", p->n_batch);
    s->n_batch = p->n_batch ? p->n_batch : m->params.n_batch;
    pith_status st = take_role(s, p, err);
    if (st != PITH_OK)
        return st;
    if (p->memory_bytes < 0)
        return error_set(err, PITH_RANGE,
                         "memory_bytes is %lld, wanted 0 (all that is left) or more",
                         (long long)p->memory_bytes);
    if (p->store_bytes < 0 || p->store_limit < 0)
        return error_set(err, PITH_RANGE,
                         "store_bytes is %lld and store_limit %lld, wanted 0 or more",
                         (long long)p->store_bytes, (long long)p->store_limit);
    if (p->n_lanes < 0 || p->n_lanes > SESSION_LANES)
        return error_set(err, PITH_RANGE, "n_lanes is %d, wanted 0..%d", p->n_lanes, SESSION_LANES);
    if (p->n_tokens < 0)
        return error_set(err, PITH_RANGE, "n_tokens is %lld, wanted at least 1",
                         (long long)p->n_tokens);
    st = take_pooling(s, p, err);
    if (st != PITH_OK)
        return st;
    *cp = (struct cache_params){.n_ctx = s->n_ctx,
                                .n_seq = s->n_seq,
                                .n_batch = s->n_batch,
                                .n_tokens = p->n_tokens,
                                .store_bytes = (uint64_t)p->store_bytes,
                                .store_context = p->store_dir && !p->store_bytes,
                                .n_nodes = m->n_nodes,
                                .pool = m->pool};
    if (!cache_type(p->cache_type_k, &cp->k_type, "K", err) ||
        !cache_type(p->cache_type_v, &cp->v_type, "V", err))
        return PITH_UNSUPPORTED;
    st = taps_take_params(s, p, err);
    return st == PITH_OK ? adapt_take_params(s, p, err) : st;
}

/* Rows of output one step can hold: by default as many as fit in 64 MiB, at least 64; all of a
 * stage that hands them on. */
static int32_t output_rows(const struct pith_session *s)
{
    int32_t n = arch_ends(s->arch) ? s->model->params.n_outputs : s->n_batch;
    if (!n) {
        int64_t fit = ((int64_t)64 << 20) / (s->n_cols * (int64_t)sizeof(float));
        n = fit > 64 ? (int32_t)(fit < s->n_batch ? fit : s->n_batch) : 64;
    }
    return n < s->n_batch ? n : s->n_batch;
}

enum { BEST = 64 }; /* logits that are told of each output */

/* The best logits, beside all of them: on a device whose memory the host cannot see, and that can
 * find them. */
static void add_best(const struct pith_model *m, struct graph *g)
{
    const struct device *d = g->logits ? m->devices[g->logits->device] : NULL;
    struct node *last = g->last;
    struct op_impl impl;
    if (!d || d->backend->map || g->logits->rows != ROWS_R)
        return;
    g->layer = -1;
    node best = graph_best(g, g->logits, BEST, "best");
    int can = best != NULL;
    for (struct node *n = last->next; n; n = n->next) {
        n->device = d->index;
        can = can && d->backend->impl(d, n, &impl);
    }
    if (can) {
        g->best = best;
        return;
    }
    last->next = NULL; /* without */
    g->last = last;
    error_clear(&g->err);
}

static pith_status build(struct pith_session *s, int at, enum role role, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    struct graph *g = &s->role[at].graph;
    struct arch_want want = {.role = role};
    int says = s->arch->runs == ROLE_DRAFT || (s->arch->runs == ROLE_DECODER && m->gives_logits);
    if (role == ROLE_DECODER)
        want = (struct arch_want){.role = s->arch->runs,
                                  .draft = s->draft,
                                  .pooled = s->pooled,
                                  .pool = s->pool_kind,
                                  .rank = s->ranks,
                                  .logits = says && !s->pooled};
    want.taps = s->tap;
    want.n_taps = s->n_taps;
    graph_init(g);
    g->n_layer = s->arch->hp.n_layer;
    g->states = s->states;
    g->n_states = s->n_states;
    g->n_embd = arch_row_cols(s->arch);
    g->n_ctx = s->rope_ctx;
    g->adapter_rank = s->adapter_rank;
    arch_build(s->arch, &want, g);
    pith_status st = graph_finish(g, err);
    if (st != PITH_OK)
        return st;
    st = model_place_nodes(m, g, err);
    if (role == ROLE_DECODER && st == PITH_OK)
        add_best(m, g);
    return st;
}

static pith_status build_large(struct pith_session *s, struct pith_error *err)
{
    return build(s, SESSION_LARGE, ROLE_DECODER, err);
}

static pith_status compile(struct pith_session *s, struct pith_error *err)
{
    struct pith_model *m = s->model;
    const struct graph *g = &s->role[ROLE_DECODER].graph;
    pith_status st = PITH_OK;
    for (int i = 0; i < s->n_roles && st == PITH_OK; i++)
        st = build(s, i, (enum role)i, err);
    if (st != PITH_OK)
        return st;
    s->n_cols = (int32_t)(g->logits ? g->logits : g->embd)->cols;
    s->cap_outputs = output_rows(s);
    struct plan_params pp = {.cap_T = s->n_batch,
                             .cap_R = s->cap_outputs,
                             .cap_N = s->n_seq < s->n_batch ? s->n_seq : s->n_batch,
                             .cap_spans = (s->n_ctx + ATTN_SPAN - 1) / ATTN_SPAN,
                             .unfused = m->params.observe,
                             .strict = m->params.strict,
                             .n_sets = s->n_sets};
    const struct plan_params large = pp;
    pthread_mutex_lock(&m->placing);
    s->generation = atomic_load(&m->generation);
    for (int i = 0; i < s->n_roles && st == PITH_OK; i++) {
        struct session_role *r = &s->role[i];
        st = plan_compile(&r->plan, &r->graph, m->devices, m->n_devices, &pp, err);
        pp.cap_T = s->cache.n_memory; /* of the encoder: one text */
        pp.cap_R = pp.cap_N = 1;
    }
    pthread_mutex_unlock(&m->placing);
    return st == PITH_OK ? upload_compile(s, &large, build_large, err) : st;
}

enum { SLAB = 2 << 20, PAGE = 4096 };

/* Runs of a role's plan. */
static uint64_t n_runs(const struct pith_session *s, int role)
{
    return role == ROLE_DECODER ? (uint64_t)s->n_lanes : 1;
}

/* Bytes of buffers that are there from the beginning and are no blocks. */
static uint64_t fixed_bytes(const struct pith_session *s)
{
    uint64_t n = s->step_reserved * (uint64_t)s->n_lanes;
    for (int i = 0; i < SESSION_ROLES; i++)
        for (int d = 0; d < s->model->n_devices; d++)
            n += size_align(s->role[i].plan.act_bytes[d], PAGE) * n_runs(s, i);
    return n;
}

/* Of pools and outputs when they are full: what is committed ends with a slab. */
static uint64_t whole_slabs(const struct pith_session *s)
{
    uint64_t n = recurrent_limit(&s->recurrent) + size_align(s->kept_bytes, SLAB);
    for (int g = 0; g < s->cache.n_groups; g++)
        n += size_align(s->cache.group[g].reserved, SLAB);
    return n;
}

/* Of blocks that there will be for threads. */
static uint64_t scratch_bytes(const struct pith_session *s)
{
    uint64_t n = 0;
    for (int i = 0; i < SESSION_ROLES; i++) {
        const struct plan *p = &s->role[i].plan;
        for (int d = 0; d < s->model->n_devices; d++)
            if (p->act_bytes[d])
                n += s->model->devices[d]->backend->job_bytes(p, pool_n_threads(s->model->pool),
                                                              s->model->n_nodes) *
                     n_runs(s, i);
    }
    return n;
}

static void size_buffers(struct pith_session *s)
{
    int64_t bytes =
        step_bytes(s->n_batch, s->cap_outputs, s->role[ROLE_DECODER].plan.params.cap_N,
                   s->cache.cap_pages, s->cache.n_groups, (int32_t)arch_row_cols(s->arch));
    s->step_reserved = size_align((uint64_t)bytes, PAGE);
    s->kept_bytes = (uint64_t)s->cap_outputs * (uint64_t)s->n_cols * sizeof(float);
}

/* Of all files that weights are mapped from. */
static int pages_told(const struct pith_model *m)
{
    int all = !m->copy.map.p || file_map_tells(&m->copy.map);
    for (int i = 0; i < gguf_n_parts(m->gguf); i++)
        all = all && file_map_tells(gguf_part(m->gguf, i));
    return all;
}

/* Each device gets what is its own. */
static pith_status open_role(struct pith_session *s, struct session_role *r, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    struct job_params jp[MAX_DEVICES];
    int told = !m->params.no_read_ahead && pages_told(m);
    r->stats = mem_array((size_t)r->plan.n_calls, sizeof *r->stats, PITH_MEM_SCRATCH);
    if (!r->stats)
        return error_set(err, PITH_NOMEM, "out of memory for the counts of %d calls",
                         r->plan.n_calls);
    for (int d = 0; d < m->n_devices; d++) {
        jp[d] = (struct job_params){.step_bytes = (int64_t)s->step_reserved,
                                    .states = s->states,
                                    .n_states = s->n_states,
                                    .adapters = s->n_sets ? &s->adapters[r - s->role] : NULL,
                                    .experts_ahead = !m->params.no_read_ahead,
                                    .pages_told = told,
                                    .recordings = m->params.recordings,
                                    .record_prefill = m->params.record_prefill,
                                    .pool = m->pool,
                                    .n_nodes = m->n_nodes};
        for (int g = 0; g < s->cache.n_groups; g++)
            if (s->cache.group[g].device == d)
                jp[d].cache[g] = &s->cache.group[g].pages;
        if (s->recurrent.device_bytes[d])
            jp[d].blocks = &s->recurrent.blocks[d];
    }
    pith_status st = plan_open(&r->run, &r->plan, jp, err);
    for (uint64_t i = 1; i < n_runs(s, (int)(r - s->role)) && st == PITH_OK; i++)
        st = plan_open(&r->beside[i - 1], &r->plan, jp, err);
    return st == PITH_OK ? st : error_prefix(err, "a plan for %d rows", r->plan.params.cap_T);
}

/* The plan that brings weights; without memory for it, or where a device refuses, there is none. */
static pith_status open_large(struct pith_session *s, struct pith_error *err)
{
    struct pith_error why = {PITH_OK, ""};
    struct session_role *r = &s->role[SESSION_LARGE];
    if (!s->uploading.rows || open_role(s, r, &why) == PITH_OK)
        return PITH_OK;
    role_drop(r);
    return upload_refused(s, why.msg, err);
}

static pith_status open_roles(struct pith_session *s, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int i = 0; i < s->n_roles && st == PITH_OK; i++) {
        s->cache.run[i] = &s->role[i].run;
        st = open_role(s, &s->role[i], err);
    }
    return st == PITH_OK ? open_large(s, err) : st;
}

/* What is made of graphs; it moves as a whole. */
struct made {
    struct session_role role[SESSION_ROLES];
    uint32_t generation;
};

static struct made take_made(struct pith_session *s)
{
    struct made m = {.generation = s->generation};
    memcpy(m.role, s->role, sizeof m.role);
    memset(s->role, 0, sizeof s->role);
    return m;
}

static void drop_made(struct made *m)
{
    for (int i = 0; i < SESSION_ROLES; i++)
        role_drop(&m->role[i]);
}

/* Outputs that lie in what a step went by. */
static pith_status keep_all_outputs(struct pith_session *s, struct pith_error *err)
{
    for (int32_t i = 0; i < s->n_outputs; i++)
        if (!session_output(s, i, err))
            return err->code;
    s->last_outputs = s->n_outputs;
    return session_keep_outputs(s, err);
}

/* Weights lie elsewhere now: plans are made anew, and their counts begin anew. Where that fails the
 * old ones stay (jobs know a plan by its place in the session, to which it returns), and so do the
 * old placements. */
static pith_status remake(struct pith_session *s, struct pith_error *err)
{
    pith_status st = cache_flush(&s->cache, err);
    if (st == PITH_OK)
        st = keep_all_outputs(s, err);
    if (st != PITH_OK)
        return st;
    struct made old = take_made(s);
    s->n_tapped = s->n_tap_read = 0;
    uint32_t fp = fp_enter();
    struct mem_account *before = mem_account_enter(&s->account);
    TRY(compile(s, err));
    TRY(open_roles(s, err));
fail:
    if (st != PITH_OK) {
        struct made fresh = take_made(s);
        drop_made(&fresh);
        memcpy(s->role, old.role, sizeof s->role);
        s->generation = old.generation;
    } else {
        drop_made(&old);
    }
    mem_account_leave(before);
    fp_leave(fp);
    return st;
}

static pith_status allocate(struct pith_session *s, struct pith_error *err)
{
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    pith_status st = open_roles(s, err);
    if (st != PITH_OK)
        return st;
    uint64_t steps = s->step_reserved * (uint64_t)s->n_lanes;
    s->lane[0].step = mem_reserve(steps);
    s->kept = mem_reserve(s->kept_bytes);
    s->seq_rows = mem_array((size_t)s->n_seq + 1, sizeof *s->seq_rows, PITH_MEM_SCRATCH);
    s->seq_last = mem_array((size_t)s->n_seq, sizeof *s->seq_last, PITH_MEM_SCRATCH);
    s->seq_tried = mem_zalloc((size_t)s->n_seq, PITH_MEM_SCRATCH);
    s->seq_read = mem_zalloc((size_t)s->n_seq, PITH_MEM_SCRATCH);
    s->seq_at = mem_array((size_t)s->n_seq, sizeof *s->seq_at, PITH_MEM_SCRATCH);
    s->last = mem_array((size_t)s->n_seq, sizeof *s->last, PITH_MEM_SCRATCH);
    size_t all_rows = (size_t)s->n_lanes * (size_t)s->n_batch;
    s->order = mem_array(all_rows, sizeof *s->order, PITH_MEM_SCRATCH);
    s->depth = mem_array((size_t)s->n_batch, sizeof *s->depth, PITH_MEM_SCRATCH);
    s->span = mem_array((size_t)s->n_batch, sizeof *s->span, PITH_MEM_SCRATCH);
    s->output = mem_array((size_t)s->cap_outputs, sizeof *s->output, PITH_MEM_SCRATCH);
    if (!s->lane[0].step || !s->kept || !s->seq_rows || !s->seq_last || !s->seq_at ||
        !s->seq_tried || !s->seq_read || !s->last || !s->order || !s->depth || !s->span ||
        !s->output)
        return error_set(err, PITH_NOMEM, "out of memory for a session of %d rows a step",
                         s->n_batch);
    session_forget_last(s, -1);
    st = mem_commit(s->lane[0].step, steps, PITH_MEM_SCRATCH, err);
    if (st != PITH_OK)
        return st;
    s->step_committed = steps;
    st = drawn_init(s, err);
    if (st == PITH_OK)
        st = pipeline_init(s, err);
    if (st != PITH_OK)
        return st;
    for (int i = 0; i < s->n_lanes; i++) {
        s->lane[i].step = (struct step *)(void *)((uint8_t *)s->lane[0].step +
                                                  s->step_reserved * (uint64_t)i);
        step_init(s->lane[i].step, s->n_batch, s->cap_outputs, p->params.cap_N,
                  s->cache.cap_pages, s->cache.n_groups, (int32_t)arch_row_cols(s->arch));
    }
    session_use_lane(s, 0);
    s->run.cancel = &s->cancel;
    s->run.stats = s->role[ROLE_DECODER].stats;
    return PITH_OK;
}

static uint64_t mix_text(const char *text, uint64_t seed)
{
    return XXH3_64bits_withSeed(text, strlen(text) + 1, seed);
}

/* What computes as only it does: who offers the device, what it is, and what it has no kernels for
 * or is told to do without. */
static uint64_t mix_device(const struct pith_model *m, int32_t device, uint64_t seed)
{
    const struct device *d = m->devices[device];
    const int32_t how[] = {d->reproducible, m->params.observe != 0};
    seed = mix_text(d->backend->name, seed);
    seed = mix_text(d->about, seed);
    seed = mix_text(d->lacks, seed);
    return XXH3_64bits_withSeed(how, sizeof how, seed);
}

/* Where and how weights are multiplied. All CPUs, however many there are and with whatever kernels,
 * have the same bits: what they do is not in it. A slice's name tells rows from columns and where
 * they begin and end. */
static uint64_t mix_products(const struct pith_session *s, uint64_t seed)
{
    const struct pith_model *m = s->model;
    for (int i = 0; i < s->n_roles; i++)
        for (const struct node *n = s->role[i].graph.first; n; n = n->next) {
            if (!n->w || m->devices[n->device]->kind == DEVICE_CPU)
                continue;
            seed = XXH3_64bits_withSeed(&n->op, sizeof n->op, seed);
            seed = mix_device(m, n->device, mix_text(n->w->name, seed));
        }
    return s->uploading.rows > 0 ? ~mix_device(m, s->uploading.device, seed) : seed;
}

/* What the bits of a page depend on beside its tokens, and what its place among the session's pages
 * means. The fingerprint samples the weights; a file edited in between shows by its time. */
static void store_root(const struct pith_session *s, uint64_t root[2])
{
    const int32_t version[] = {PITH_VERSION_MAJOR, PITH_VERSION_MINOR, PITH_VERSION_PATCH,
                               STEP_PAGE, (int32_t)session_numerics(s)};
    XXH128_hash_t h = {s->model->fingerprint[0], s->model->fingerprint[1]};
    uint64_t seed = XXH3_64bits_withSeed(version, sizeof version, s->recurrent.block_bytes);
    for (int p = 0; p < gguf_n_parts(s->model->gguf); p++) {
        const int64_t mtime = gguf_part(s->model->gguf, p)->mtime_ns;
        seed = XXH3_64bits_withSeed(&mtime, sizeof mtime, seed);
    }
    if (rope_is_far(&s->model->arch, s->rope_ctx))
        seed = ~seed;
    for (int32_t i = 0; i < s->n_states; i++) {
        const struct state *kv = &s->states[i];
        int32_t what[] = {kv->n_head_kv,
                          kv->group,
                          kv->span,
                          kv->d_k,
                          kv->d_v,
                          (int32_t)kv->rows,
                          kv->range,
                          kv->ratio,
                          (int32_t)kv->k_type,
                          (int32_t)kv->v_type};
        seed = XXH3_64bits_withSeed(what, sizeof what, seed);
        int32_t index = kv->device;
        const char *device = s->model->devices[index]->backend->name;
        if (!state_is(kv, STATE_PAGED)) /* blocks are those of device after device */
            seed = XXH3_64bits_withSeed(&index, sizeof index, seed);
        seed = XXH3_64bits_withSeed(device, strlen(device), seed);
    }
    h = XXH3_128bits_withSeed(&h, sizeof h, mix_products(s, seed));
    root[0] = h.low64;
    root[1] = h.high64;
}

static pith_status open_store(struct pith_session *s, const struct pith_session_params *p,
                              struct pith_error *err)
{
    struct store_params sp = {.budget = s->cache.store_bytes,
                              .dir = p->store_dir,
                              .disk_limit = (uint64_t)p->store_limit,
                              .pool = s->model->pool,
                              .cancel = &s->cancel};
    store_root(s, sp.root);
    return store_init(&s->store, &s->cache, &s->recurrent, &sp, err);
}

/* What is to be opened, but for sizes that memory decides. */
static pith_status take_states(struct pith_session *s, const struct pith_session_params *params,
                               struct cache_params *cp, struct pith_error *err)
{
    struct pith_model *m = s->model;
    pith_status st = take_params(s, params, cp, err);
    if (st != PITH_OK)
        return st;
    s->n_states = s->arch->n_states;
    s->states = mem_array((size_t)s->n_states + 1, sizeof *s->states, PITH_MEM_META);
    if (!s->states)
        return error_set(err, PITH_NOMEM, "out of memory while opening a session");
    uint64_t device_bytes[MAX_DEVICES];
    if (s->n_states)
        memcpy(s->states, s->arch->states, (size_t)s->n_states * sizeof *s->states);
    for (struct state *t = s->states; t < s->states + s->n_states; t++) {
        t->rope = rope_set_for(t->rope, s->rope_ctx);
        if (!t->fixed) {
            t->k_type = cp->k_type;
            t->v_type = cp->v_type;
        }
    }
    st = model_place_states(m, s->arch, s->states, err);
    if (st != PITH_OK)
        return st;
    if (params->n_tree_rows < 0)
        return error_set(err, PITH_RANGE, "n_tree_rows is %d, wanted 0 (no trees) or more",
                         params->n_tree_rows);
    s->n_tree_rows = tree_rows(s, params->n_tree_rows);
    uint64_t state_bytes = recurrent_layout(s->states, s->n_states, device_bytes);
    cp->store_folder = params->store_dir != NULL;
    if (s->causal && !s->pooled)
        cp->state_bytes = state_bytes;
    else
        cp->store_bytes = (uint64_t)(cp->store_context = 0);
    return PITH_OK;
}

/* The same with them, and the memory there was before. */
static pith_status prepare(struct pith_session *s, const struct pith_session_params *params,
                           struct cache_params *cp, struct mem_left *left, struct pith_error *err)
{
    pith_status st = take_states(s, params, cp, err);
    if (st != PITH_OK)
        return st;
    room_choose(s, cp, params->memory_bytes, left);
    cp->n_memory = room_memory(s, cp);
    return PITH_OK;
}

/* The plan that brings weights goes without being asked where there is no memory for it. */
static pith_status fit_large(struct pith_session *s, const struct cache_params *cp,
                             const struct mem_left *left, struct pith_error *err)
{
    struct session_role *r = &s->role[SESSION_LARGE];
    uint64_t all = fixed_bytes(s) + scratch_bytes(s) + s->kept_bytes + taps_bytes(s);
    uint64_t cache = room_cache(s, cp);
    if (!s->uploading.rows ||
        (room_fits_large(s, cp) && cache <= left->bytes && all <= left->bytes - cache))
        return PITH_OK;
    role_drop(r);
    return upload_refused(s, "there is no memory for it", err);
}

static pith_status open_all(struct pith_session *s, const struct pith_session_params *params,
                            struct pith_error *err)
{
    struct pith_model *m = s->model;
    struct cache_params cp;
    struct mem_left left;
    pith_status st;
    TRY(prepare(s, params, &cp, &left, err));
    TRY(cache_shape(&s->cache, s->states, s->n_states, m->devices, &cp, err));
    TRY(compile(s, err));
    TRY(pipeline_choose(s, params->n_lanes, err));
    size_buffers(s);
    room_lanes(s, &cp);
    TRY(fit_large(s, &cp, &left, err));
    TRY(room_check(s, &cp, fixed_bytes(s) + scratch_bytes(s) + s->kept_bytes + taps_bytes(s),
                   &left, err));
    TRY(cache_init(&s->cache, s->states, s->n_states, m->devices, &cp, err));
    TRY(recurrent_init(&s->recurrent, s->states, s->n_states, m->devices,
                       &(struct recurrent_params){.n_ctx = s->n_ctx,
                                                  .n_seq = s->n_seq,
                                                  .n_batch = s->n_batch,
                                                  .n_tree_rows = s->n_tree_rows,
                                                  .cache_limit = cache_limit(&s->cache),
                                                  .n_stored = s->cache.n_stored},
                       err));
    if (s->causal && !s->pooled)
        TRY(open_store(s, params, err));
    TRY(adapt_init(s, err));
    TRY(taps_init(s, err));
    TRY(allocate(s, err));
fail:
    return st;
}

struct pith_session *session_open(struct pith_model *m, const struct pith_session_params *params,
                                  struct pith_error *err)
{
    struct pith_session *s = mem_zalloc(sizeof *s, PITH_MEM_META);
    if (!s) {
        error_set(err, PITH_NOMEM, "out of memory while opening a session");
        return NULL;
    }
    s->model = model_ref(m);
    uint32_t fp = fp_enter(); /* constants of the graph are computed here */
    struct mem_account *before = mem_account_enter(&s->account);
    pith_status st = open_all(s, params, err);
    mem_account_leave(before);
    s->cache.account = &s->account;
    fp_leave(fp);
    if (st == PITH_OK) {
        follow_link(s, params->follows);
        return s;
    }
    session_close(s);
    return NULL;
}

pith_status session_plan(struct pith_model *m, const struct pith_session_params *params,
                         struct pith_session_plan *out, struct pith_error *err)
{
    struct cache_params cp;
    struct mem_left left;
    struct pith_session *s = mem_zalloc(sizeof *s, PITH_MEM_META);
    if (!s)
        return error_set(err, PITH_NOMEM, "out of memory while planning a session");
    s->model = model_ref(m);
    pith_status st = prepare(s, params, &cp, &left, err);
    if (st == PITH_OK) {
        out->n_ctx = cp.n_ctx;
        out->n_ctx_train = rope_near(&m->arch);
        out->n_tokens = cp.n_tokens;
        out->cache_bytes = room_cache(s, &cp);
        out->left_bytes = left.bytes;
        out->memory_bytes = left.total;
        snprintf(out->limited_by, sizeof out->limited_by, "%s", left.by);
    }
    session_close(s);
    return st;
}

/* Positions that layers on GPUs have to leave room for where nobody asks for a context. */
enum { CONTEXT_AUTO = 4096 };

/* A context that nobody asks for, or positions over all sequences, are as large as memory allows
 * when the session is opened, which is then after its wishes; here they are what it should have at
 * least. */
static pith_status find_fit(struct pith_session *s, const struct pith_session_params *params,
                            int *fits, struct pith_error *err)
{
    struct cache_params cp;
    const struct pith_model *m = s->model;
    pith_status st;
    TRY(take_states(s, params, &cp, err));
    int chosen = !cp.n_ctx;
    int32_t train = rope_near(&m->arch), least = train < CONTEXT_AUTO ? train : CONTEXT_AUTO;
    if (chosen)
        s->n_ctx = cp.n_ctx = least > 0 ? least : 1;
    if (chosen && cp.n_tokens && cp.n_tokens < cp.n_ctx)
        s->n_ctx = cp.n_ctx = (int32_t)cp.n_tokens;
    cp.n_tokens = cp.n_tokens ? cp.n_tokens : cp.n_ctx;
    int64_t all = (int64_t)cp.n_ctx * cp.n_seq;
    cp.n_tokens = cp.n_tokens < all ? cp.n_tokens : all;
    cp.n_memory = room_memory(s, &cp);
    *fits = room_fits_devices(s, &cp, chosen);
    if (!*fits)
        return PITH_OK;
    TRY(cache_shape(&s->cache, s->states, s->n_states, m->devices, &cp, err));
    upload_expect(s);
    TRY(compile(s, err));
    TRY(pipeline_choose(s, params->n_lanes, err));
    size_buffers(s);
    *fits = room_fits_devices(s, &cp, 0) &&
            (!s->role[SESSION_LARGE].plan.n_uploads || room_fits_large(s, &cp));
fail:
    return st;
}

pith_status session_fits(struct pith_model *m, int *fits, struct pith_error *err)
{
    struct pith_session_params any = PITH_SESSION_PARAMS_INIT;
    struct pith_session *s = mem_zalloc(sizeof *s, PITH_MEM_META);
    if (!s)
        return error_set(err, PITH_NOMEM, "out of memory while planning a session");
    s->model = model_ref(m);
    pith_status st = find_fit(s, m->params.session ? m->params.session : &any, fits, err);
    session_close(s);
    return st;
}

void session_memory(const struct pith_session *s, uint64_t *now, uint64_t *most)
{
    uint64_t own = sizeof *s + atomic_load(&s->account.bytes) + fixed_bytes(s);
    *now = own + cache_bytes(&s->cache) + s->cache.tokens_committed +
           recurrent_bytes(&s->recurrent) + s->kept_committed;
    *most = own + cache_growth(&s->cache) + s->cache.tokens_reserved + whole_slabs(s);
}

void session_close(struct pith_session *s)
{
    if (!s)
        return;
    pipeline_stop(s);
    follow_unlink(s);
    for (int i = 0; i < SESSION_ROLES; i++)
        role_close_runs(&s->role[i]);
    mem_decommit(s->lane[0].step, s->step_committed, PITH_MEM_SCRATCH);
    mem_release(s->lane[0].step, s->step_reserved * (uint64_t)s->n_lanes);
    mem_decommit(s->kept, s->kept_committed, PITH_MEM_SCRATCH);
    mem_free(s->best);
    drawn_deinit(s);
    pipeline_deinit(s);
    taps_deinit(s);
    mem_release(s->kept, s->kept_bytes);
    mem_free(s->seq_rows);
    mem_free(s->seq_last);
    mem_free(s->seq_at);
    mem_free(s->seq_tried);
    mem_free(s->seq_read);
    mem_free(s->last);
    mem_free(s->order);
    mem_free(s->depth);
    mem_free(s->span);
    mem_free((void *)s->output);
    for (int i = 0; i < SESSION_ROLES; i++)
        role_drop(&s->role[i]);
    adapt_deinit(s);
    store_deinit(&s->store);
    cache_deinit(&s->cache);
    recurrent_deinit(&s->recurrent);
    mem_free(s->states);
    model_unref(s->model);
    mem_free(s);
}

/* ---------------------------------------------------------------- checking a batch */

pith_status session_over_context(const struct pith_session *s, uint64_t n, struct pith_error *err)
{
    return error_set(err, PITH_RANGE,
                     "prompt exceeds the context: n_prompt = %llu, n_ctx = %d, n_over = %llu; "
                     "shorten it or open the session with a larger context",
                     (unsigned long long)n, s->n_ctx, (unsigned long long)n - (uint64_t)s->n_ctx);
}

pith_status session_needs_memory(const struct pith_session *s, int32_t seq, struct pith_error *err)
{
    if (s->n_roles < 2 || s->cache.seq[seq].n_memory)
        return PITH_OK;
    return error_set(
        err, PITH_STATE,
        "sequence %d: the decoder of %s looks at what the encoder has read, and it has "
        "read nothing; give it its tokens first (pith_encode)",
        seq, s->model->info.arch);
}

/* Why rows of this model cannot be given positions other than the next; NULL: they can. */
const char *session_follows(const struct pith_session *s)
{
    if (!s->causal)
        return "rows of a non-causal model see each other by their order";
    if (s->cache.by_distance)
        return "attention of this model goes by distance";
    for (int32_t i = 0; i < s->n_states; i++)
        if (s->states[i].ratio > 1)
            return "layers keep one row for several tokens";
    return NULL;
}

/* Row i of sequence q is given four positions. */
static pith_status check_given(const struct pith_session *s, int32_t i, int32_t q,
                               const int32_t pos[1 + STEP_AXES], struct pith_error *err)
{
    const struct cache_seq *c = &s->cache.seq[q];
    const int32_t *at = s->seq_at[q];
    const char *why = session_follows(s);
    int text = cache_is_text(pos) || !s->cache.axes;
    for (int k = 0; k <= STEP_AXES; k++)
        if (pos[k] < 0 || pos[k] >= POS_MAX)
            return error_set(err, PITH_RANGE, "row %d has %d as position %d, wanted 0..%d", i,
                             pos[k], k, POS_MAX - 1);
    if (pos[0] < at[0])
        return error_set(err, PITH_RANGE,
                         "row %d is at position %d of sequence %d, behind the row before it, which "
                         "is at %d: positions cannot go back; wanted %d or more",
                         i, pos[0], q, at[0], at[0]);
    if (why && (pos[0] != at[1] || !text))
        return error_set(err, PITH_UNSUPPORTED,
                         "row %d is at position %d of sequence %d, wanted %d, the next: %s", i,
                         pos[0], q, at[1], why);
    if (pos[0] < at[1] && at[0] == (c->n ? cache_pos(c, c->n - 1) : 0) &&
        !cache_can_see(&s->cache, c, c->n, pos[0]))
        return error_set(err, PITH_STATE,
                         "row %d is at position %d of sequence %d: layers with a window no longer "
                         "hold what it sees; wanted %d or more",
                         i, pos[0], q, at[1]);
    return PITH_OK;
}

/* Positions of rows, where the batch gives any. */
static pith_status check_positions(struct pith_session *s, const struct pith_batch *b,
                                   int32_t n_pos, struct pith_error *err)
{
    for (int32_t q = 0; q < s->n_seq; q++) {
        const struct cache_seq *c = &s->cache.seq[q];
        s->seq_at[q][0] = c->n ? cache_pos(c, c->n - 1) : 0;
        s->seq_at[q][1] = cache_next(c, c->n);
    }
    for (int32_t i = 0; i < b->n; i++) {
        int32_t q = seq_of(s, b, i), *at = s->seq_at[q];
        const int32_t *pos = given(b, i), text[1 + STEP_AXES] = {at[1], at[1], at[1], 0};
        pith_status st = pos ? check_given(s, i, q, pos, err) : PITH_OK;
        if (st != PITH_OK)
            return st;
        pos = pos ? pos : text;
        if (pos[0] >= n_pos)
            return error_set(err, PITH_RANGE,
                             "row %d is at position %d of sequence %d, the last possible is %d", i,
                             pos[0], q, n_pos - 1);
        at[0] = pos[0];
        at[1] = s->cache.axes ? cache_after(pos) : pos[0] + 1;
    }
    return PITH_OK;
}

/* The adapters that row i asks for. */
static pith_status check_adapter(const struct pith_session *s, const struct pith_batch *b,
                                 int32_t i, struct pith_error *err)
{
    int32_t slot = adapter_of(b, i);
    if (slot < PITH_ADAPTER_NONE || slot >= s->n_sets)
        return error_set(err, PITH_RANGE,
                         "row %d has the adapters of slot %d, the session has %d slots "
                         "(n_adapters); %d is what its sequence has, %d none",
                         i, slot, s->n_sets, PITH_ADAPTER_SEQUENCE, PITH_ADAPTER_NONE);
    if (slot >= 0 && s->slot_set[slot] == SLOT_EMPTY)
        return error_set(err, PITH_STATE,
                         "row %d has the adapters of slot %d, which is empty; fill it first "
                         "(pith_adapt_slot)",
                         i, slot);
    return PITH_OK;
}

/* What row i is. */
static pith_status check_row(const struct pith_session *s, const struct pith_batch *b, int32_t i,
                             struct pith_error *err)
{
    int32_t q = seq_of(s, b, i), n_vocab = s->model->arch.hp.n_vocab;
    if (q < 0 || q >= s->n_seq)
        return error_set(err, PITH_RANGE, "row %d is of sequence %d, the session has 0..%d", i, q,
                         s->n_seq - 1);
    if (check_adapter(s, b, i, err) != PITH_OK)
        return err->code;
    if (is_both(b, i) && (!b->embd || (!is_drawn(b, i) && (!b->token || b->token[i] < 0))))
        return error_set(err, PITH_RANGE,
                         "row %d is to be a token and an embedding row, and has no %s", i,
                         b->embd ? "token" : "embedding row");
    if (s->arch->runs == ROLE_DRAFT && !is_both(b, i))
        return error_set(err, PITH_RANGE,
                         "row %d of a draft head is %s; wanted a token with its vector (both)", i,
                         is_embd(b, i) ? "a vector alone" : "a token alone");
    if (s->arch->runs == ROLE_PROJECTOR && (is_both(b, i) || !is_embd(b, i)))
        return error_set(err, PITH_RANGE,
                         "row %d of a projector is a token; wanted a vector of %d (embd)", i,
                         s->arch->hp.n_embd);
    if (s->arch->stage.first && !b->embd)
        return error_set(err, PITH_RANGE,
                         "row %d has no vector: the model's first visit is %d; wanted the carry of "
                         "the visits before, %lld numbers (embd)",
                         i, s->arch->stage.first, (long long)arch_row_cols(s->arch));
    if (is_drawn(b, i) || is_embd(b, i))
        return PITH_OK;
    if (!b->token)
        return error_set(err, PITH_RANGE,
                         "row %d has no token: it is not drawn, and there are no tokens given", i);
    if (b->token[i] < 0 || b->token[i] >= n_vocab)
        return error_set(err, PITH_RANGE, "row %d is token %d, the vocabulary has 0..%d%s", i,
                         b->token[i], n_vocab - 1, b->embd ? ", and -1 is an embedding row" : "");
    return PITH_OK;
}

static pith_status check_batch(struct pith_session *s, const struct pith_batch *b,
                               struct pith_error *err)
{
    int32_t n_out = 0;
    if (b->n < 1 || (!b->token && !b->embd && !b->drawn))
        return error_set(err, PITH_RANGE,
                         "a batch of %d rows with %s; wanted at least one row, and tokens, "
                         "embedding rows, or both",
                         b->n,
                         b->token && b->embd ? "both tokens and embedding rows"
                         : b->token          ? "tokens"
                         : b->embd           ? "embedding rows"
                                             : "neither tokens nor embedding rows");
    memset(s->seq_rows, 0, (size_t)s->n_seq * sizeof *s->seq_rows);
    for (int32_t i = 0; i < b->n; i++) {
        pith_status st = check_row(s, b, i, err);
        if (st != PITH_OK)
            return st;
        s->seq_rows[seq_of(s, b, i)]++;
        s->seq_last[seq_of(s, b, i)] = i;
    }
    pith_status st = drawn_check(s, b, pipeline_outputs(s), err);
    if (st != PITH_OK)
        return st;
    for (int32_t i = 0; i < b->n && !s->pooled; i++)
        n_out += wanted(s, b, i) != 0;
    int32_t n_pos = s->model->arch.hp.n_positions ? s->model->arch.hp.n_positions : POS_MAX;
    for (int32_t q = 0; q < s->n_seq; q++) {
        if (s->seq_rows[q] && session_needs_memory(s, q, err) != PITH_OK)
            return PITH_STATE;
        n_out += s->pooled && s->seq_rows[q];
        int64_t over = (int64_t)s->cache.seq[q].n + s->seq_rows[q] - s->n_ctx;
        if (s->seq_rows[q] && over > 0)
            return session_over_context(s, (uint64_t)(over + s->n_ctx), err);
        if (!b->pos &&
            (int64_t)cache_next(&s->cache.seq[q], s->cache.seq[q].n) + s->seq_rows[q] > n_pos)
            return error_set(
                err, PITH_RANGE,
                "sequence %d is at position %d, the last possible is %d; shift it back", q,
                cache_next(&s->cache.seq[q], s->cache.seq[q].n) - 1, n_pos - 1);
        if (s->seq_rows[q] && (!s->causal || s->pooled) && s->cache.seq[q].n)
            return error_set(err, PITH_STATE,
                             "sequence %d holds %d positions; a %s takes a sequence whole: "
                             "truncate it to 0 first",
                             q, s->cache.seq[q].n,
                             s->causal ? "session that pools" : "non-causal model");
    }
    if ((!s->causal || s->pooled) && b->n > s->n_batch)
        return error_set(err, PITH_RANGE,
                         "%d rows in one step, at most n_batch = %d for a model that takes its "
                         "input whole; open it with a larger n_batch",
                         b->n, s->n_batch);
    if (n_out > s->cap_outputs)
        return error_set(err, PITH_RANGE,
                         "%d outputs asked for, at most %d in one call; ask in parts or open the "
                         "model with a larger n_outputs",
                         n_out, s->cap_outputs);
    st = session_check_spans(s, b, err);
    if (st == PITH_OK && b->pos)
        st = check_positions(s, b, n_pos, err);
    return st == PITH_OK && b->parent ? tree_check(s, b, err) : st;
}

/* ---------------------------------------------------------------- one step */

/* A step that brings weights; where one does not come the step is left to be run without. */
static pith_status run_large(struct pith_session *s, struct pith_error *err)
{
    struct session_role *r = &s->role[SESSION_LARGE];
    struct pith_error why = {PITH_OK, ""};
    s->run.stats = r->stats;
    pith_status st = plan_submit(&r->run, &s->run, &why);
    s->run.stats = s->role[ROLE_DECODER].stats;
    s->uploading.steps += st == PITH_OK;
    if (st != PITH_OK && r->run.upload_failed)
        return upload_failed(s, &why, err);
    return st == PITH_OK ? st : error_set(err, st, "%s", why.msg);
}

static pith_status run_rows(struct pith_session *s, const struct pith_batch *b, int32_t from,
                            int32_t n, struct pith_error *err)
{
    s->uploading.now = s->uploading.rows && n >= s->uploading.rows;
    pith_status st = session_make_rows(s, b, from, n, err);
    if (st != PITH_OK)
        return st;
    st = cache_flush(&s->cache, err);
    if (st == PITH_OK && s->uploading.now)
        st = run_large(s, err);
    if (st == PITH_OK && !s->uploading.now)
        st = plan_submit(&s->role[ROLE_DECODER].run, &s->run, err);
    if (st == PITH_OK)
        st = session_collect(s, err);
    if (st != PITH_OK) {
        recurrent_abort(&s->recurrent, s->step);
        return st;
    }
    session_commit_rows(s);
    session_mark_last(s);
    return PITH_OK;
}

/* What was on a lost device is gone; nothing can go on from there. */
static pith_status check_devices(const struct pith_session *s, struct pith_error *err)
{
    const struct pith_model *m = s->model;
    for (int d = 0; d < m->n_devices; d++)
        if (atomic_load(&m->devices[d]->lost))
            return error_set(err, PITH_DEVICE,
                             "%s was lost, and what sessions of this model held there; open the "
                             "model again",
                             m->devices[d]->name);
    return PITH_OK;
}

pith_status session_ready(struct pith_session *s, struct pith_error *err)
{
    pith_status st = check_devices(s, err);
    if (st == PITH_OK && s->generation != atomic_load(&s->model->generation))
        st = remake(s, err);
    return st;
}

static pith_status step(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    pith_status st = session_ready(s, err);
    if (st == PITH_OK)
        st = check_batch(s, b, err);
    if (st == PITH_OK)
        st = drawn_take(s, b, err);
    if (st != PITH_OK)
        return st;
    s->n_outputs = s->last_outputs = s->n_tapped = 0;
    tree_forget(s);
    session_forget_last(s, -1);
    s->reads_best = b->n <= s->n_batch && (s->wants_best || only_drawn(b));
    for (int32_t i = 0; i < b->n; i++)
        s->seq_tried[seq_of(s, b, i)] = (uint8_t)tree_has(b, i);
    for (int32_t i = 0; b->pos && i < b->n; i++) /* windows keep what they may see */
        s->cache.seq[seq_of(s, b, i)].placed |= given(b, i) != NULL;
    for (int32_t q = 0; q < s->n_seq; q++) {
        cache_begin(&s->cache, q);
        recurrent_begin(&s->recurrent, q, s->seq_rows[q]);
    }
    int large = s->uploading.rows && s->n_batch >= s->uploading.rows;
    int beside = s->n_lanes > 1 && b->n > s->n_batch && !b->parent && !large;
    s->uploading.now = 0;
    if (beside)
        st = pipeline_rows(s, b, err);
    for (int32_t at = 0; !beside && at < b->n && st == PITH_OK; at += s->n_batch) {
        if (at)
            st = session_keep_outputs(s, err);
        if (st == PITH_OK)
            st = run_rows(s, b, at, b->n - at < s->n_batch ? b->n - at : s->n_batch, err);
    }
    if (st != PITH_OK)
        s->n_outputs = s->n_tapped = 0;
    for (int32_t q = 0; q < s->n_seq; q++) {
        cache_end(&s->cache, q, st != PITH_OK);
        recurrent_end(&s->recurrent, q, st != PITH_OK);
        if (st == PITH_OK)
            store_publish(&s->store, &s->cache, q);
    }
    return st;
}

pith_status session_step(struct pith_session *s, const struct pith_batch *b, struct pith_error *err)
{
    int64_t began = trace_begin();
    pith_status st = step(s, b, err);
    trace_end(began, &(struct trace_event){.kind = "step",
                                           .name = "step",
                                           .arg = {"rows", "outputs", "status"},
                                           .value = {b->n, s->n_outputs, (int64_t)st}});
    return st;
}

pith_status session_submit(struct pith_session *s, const struct pith_batch *b,
                           struct pith_error *err)
{
    if (s->n_lanes < 2)
        return error_set(err, PITH_STATE,
                         "pith_submit: the session has one lane; open it with n_lanes 2");
    if (s->n_flying > 1)
        return error_set(err, PITH_STATE,
                         "pith_submit: %d steps are under way; end one first (pith_wait)",
                         s->n_flying);
    /* Plans can be made anew only where none runs. */
    pith_status st = s->n_flying ? check_devices(s, err) : session_ready(s, err);
    if (st == PITH_OK)
        st = check_batch(s, b, err);
    if (st == PITH_OK && b->n > s->n_batch)
        st = error_set(err, PITH_RANGE, "pith_submit: %d rows, at most n_batch = %d", b->n,
                       s->n_batch);
    return st == PITH_OK ? pipeline_submit(s, b, err) : st;
}
