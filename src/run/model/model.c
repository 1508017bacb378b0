/* model.c -- opening a model: see model.h for the order. One failure path frees whatever was made
 * so far. */
#include "run/model/model.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

static pith_status check_params(struct pith_model_params *p, struct pith_error *err)
{
    p->n_batch = p->n_batch ? p->n_batch : 512;
    if (p->n_batch < 1 || p->n_batch > 65536)
        return error_set(err, PITH_RANGE, "n_batch is %d, wanted 1..65536", p->n_batch);
    if (p->n_outputs < 0 || p->n_outputs > p->n_batch)
        return error_set(err, PITH_RANGE, "n_outputs is %d, wanted 0..n_batch (%d)", p->n_outputs,
                         p->n_batch);
    if (p->weights < PITH_WEIGHTS_AUTO || p->weights > PITH_WEIGHTS_LATER)
        return error_set(err, PITH_RANGE, "weights is %d, wanted auto, mapped, packed or later",
                         (int)p->weights);
    return PITH_OK;
}

/* A string key of the file, NULL without it. */
static const char *text_key(struct pith_model *m, const char *key)
{
    struct slice text;
    const struct gguf_kv *kv = gguf_find(m->gguf, key);
    return kv && gguf_str(m->gguf, kv, &text) ? arena_strndup(&m->arena, text.p, text.n) : NULL;
}

/* Multiply-adds and bytes of one token in the matrices, and what there is in all. */
static void fill_info(struct pith_model *m)
{
    struct pith_model_info *in = &m->info;
    const struct hparams *hp = &m->arch.hp;
    in->size = sizeof *in;
    in->note = m->note.n ? m->note.p : NULL;
    in->name = text_key(m, "general.name");
    if (m->params.vocab_only) { /* nothing was asked of the architecture, which may be unknown */
        in->arch = text_key(m, "general.architecture");
        in->n_vocab = vocab_n(m->vocab);
        in->decoder_start = -1;
        return;
    }
    in->arch = m->arch.arch->name;
    in->type = gguf_file_type(m->gguf);
    in->n_vocab = hp->n_vocab;
    in->n_embd = hp->n_embd;
    in->n_embd_out = hp->n_embd_out ? hp->n_embd_out : hp->n_embd;
    in->n_layer = hp->n_layer;
    in->n_nextn = hp->n_nextn;
    in->n_embd_projector = m->arch.projector ? m->arch.projector->hp.n_embd : 0;
    in->n_head = hp->n_head[0];
    in->n_head_kv = hp->n_head_kv[0];
    in->n_ctx_train = hp->n_ctx_train;
    in->causal = hp->causal;
    in->pooling = hp->pooling;
    in->n_labels = arch_n_labels(&m->arch);
    in->n_visits = m->arch.n_visits;
    in->carry_in = (int32_t)m->arch.stage.in.cols;
    in->carry_out = (int32_t)m->arch.stage.out.cols;
    in->logits = m->gives_logits;
    in->encoder = m->arch.n_encoder_visits > 0;
    in->decoder_start = in->encoder ? m->arch.start_token : -1;
    for (int i = 0; i < gguf_n_parts(m->gguf); i++)
        in->file_bytes += gguf_part(m->gguf, i)->n;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        uint64_t n = 1, bytes = t->packed_bytes ? t->packed_bytes : t->bytes;
        if (t->whole) /* which counts */
            continue;
        for (int d = 0; d < t->n_dims; d++)
            n *= (uint64_t)t->dims[d];
        in->n_params += n;
        in->weight_bytes += bytes;
        if (t->use == TENSOR_EMBEDDING && !m->tied)
            continue;
        if (t->use == TENSOR_EXPERTS) { /* those used; of adapters one */
            uint64_t used = hp->n_expert_used > 0 ? (uint64_t)hp->n_expert_used : 1;
            uint64_t stack = (uint64_t)tensor_stack(t);
            used = used < stack ? used : stack;
            n = n / stack * used;
            bytes = bytes / stack * used;
        }
        if (t->layer >= hp->n_layer) /* a draft head's: no row of the decoder goes through it */
            continue;
        in->token_bytes += bytes;
        in->token_ops += t->n_dims > 1 ? 2 * n : 0;
        if (t->use == TENSOR_EMBEDDING || t->use == TENSOR_OUTPUT)
            in->output_ops = 2 * n;
    }
}

/* What the file's keys say. */
static pith_status open_keys(struct pith_model *m, const char *path, struct pith_error *err)
{
    pith_status st = PITH_OK;
    m->gguf = gguf_open(path, err);
    if (!m->gguf)
        return err->code;
    for (const char *const *o = m->params.overrides; o && *o; o++)
        TRY(gguf_override(m->gguf, *o, err));
    if (!m->params.vocab_only) {
        TRY(arch_open(&m->arch, m->gguf, &m->arena, err));
        TRY(arch_stage_take(&m->arch, m->params.first_visit, m->params.n_visits, err));
    }
    m->vocab = vocab_new(m->gguf, err);
    if (!m->vocab)
        return err->code;
    TRY(chat_templates_open(&m->chat, m->gguf, m->vocab, &m->arena, &m->note, err));
    m->gives_logits = !m->params.vocab_only && !m->arch.hp.embeds &&
                      m->arch.hp.pooling == PITH_POOL_NONE && arch_ends(&m->arch);
fail:
    return st;
}

/* Draft heads are asked for: is there what they are made of? */
static pith_status take_drafts(struct pith_model *m, struct pith_error *err)
{
    const struct arch_model *a = &m->arch;
    if (!m->params.draft_heads)
        return PITH_OK;
    if (!a->hp.n_nextn)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s has no blocks that predict further on (nextn_predict_layers); open "
                         "it without draft_heads",
                         gguf_path(m->gguf));
    if (!a->arch->role[ROLE_DRAFT])
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: draft heads of %s cannot be run yet; open it without draft_heads",
                         gguf_path(m->gguf), a->arch->name);
    m->arch.drafts = 1;
    return PITH_OK;
}

static pith_status open_all(struct pith_model *m, const char *path, struct pith_error *err)
{
    pith_status st = PITH_OK;
    TRY(check_params(&m->params, err));
    TRY(open_keys(m, path, err));
    if (!m->params.vocab_only) {
        TRY(take_drafts(m, err));
        TRY(model_open_threads(m, err));
        TRY(model_open_devices(m, err));
        TRY(model_bind(m, err));
        TRY(arch_ready(&m->arch, err));
        TRY(model_keep_stage(m, err));
        TRY(model_place(m, err));
        model_spread_weights(m);
        TRY(pack_later_init(m, err));
        TRY(model_load(m, err));
    }
    fill_info(m);
    if (!m->params.vocab_only) {
        model_fingerprint(m);
        pack_later_start(m);
    }
fail:
    return st;
}

/* Of nothing yet; NULL: out of memory. */
static struct pith_model *model_new(const char *path, struct pith_error *err)
{
    struct pith_model *m = mem_zalloc(sizeof *m, PITH_MEM_META);
    if (!m) {
        error_set(err, PITH_NOMEM, "out of memory while opening %s", path);
        return NULL;
    }
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->placing, NULL);
    arena_init(&m->arena, PITH_MEM_META);
    str_init(&m->note, PITH_MEM_META);
    return m;
}

pith_status model_check(const char *path, struct pith_error *err)
{
    struct pith_error local;
    err = err ? err : &local;
    error_clear(err);
    struct pith_model *m = model_new(path, err);
    if (!m)
        return PITH_NOMEM;
    pith_status st = open_keys(m, path, err);
    if (st == PITH_OK)
        st = model_bind(m, err);
    if (st == PITH_OK)
        st = arch_ready(&m->arch, err);
    model_unref(m);
    return st;
}

struct pith_model *model_open(const char *path, const struct pith_model_params *params,
                              model_fits fits, struct pith_error *err)
{
    struct pith_error local;
    err = err ? err : &local;
    error_clear(err);
    struct pith_model *m = model_new(path, err);
    if (!m)
        return NULL;
    m->params = *params;
    m->fits = fits;
    uint32_t fp =
        fp_enter(); /* tables and scales are computed here: the host's rounding must not show */
    struct mem_account *before = mem_account_enter(&m->account);
    pith_status st = open_all(m, path, err);
    mem_account_leave(before);
    fp_leave(fp);
    if (st != PITH_OK) {
        model_unref(m);
        return NULL;
    }
    m->params.overrides = NULL; /* the caller's */
    m->params.cache_dir = NULL;
    m->params.affinity = NULL;
    m->params.devices = NULL;
    m->params.tensor_split = NULL;
    m->params.placements = NULL;
    m->params.session = NULL;
    return m;
}

uint64_t model_memory(const struct pith_model *m)
{
    uint64_t n = sizeof *m + atomic_load(&m->account.bytes);
    for (int d = 0; d < m->n_devices; d++)
        for (int32_t i = 0; i < m->weights[d].n; i++)
            n += size_align(m->weights[d].buffer[i].committed, 4096); /* whole pages */
    return n;
}

struct pith_model *model_ref(struct pith_model *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

void model_unref(struct pith_model *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) > 1)
        return;
    pack_later_stop(m);
    pool_free(m->pool);
    model_release_weights(m);
    for (int d = 0; d < m->n_devices; d++)
        m->devices[d]->backend->close(m->devices[d]);
    packed_file_deinit(&m->copy);
    str_deinit(&m->note);
    chat_templates_close(&m->chat);
    trie_free(atomic_load(&m->trie));
    vocab_free(m->vocab);
    gguf_close(m->gguf);
    arena_deinit(&m->arena);
    pthread_mutex_destroy(&m->placing);
    mem_free(m);
}

const struct trie *model_trie(struct pith_model *m, struct pith_error *err)
{
    struct trie *t = atomic_load(&m->trie), *made = NULL;
    struct mem_account *before = mem_account_enter(&m->account);
    if (!t)
        made = trie_new(m->vocab, err);
    mem_account_leave(before);
    if (made && atomic_compare_exchange_strong(&m->trie, &t, made))
        return made;
    trie_free(made); /* another thread was first */
    return t;
}
