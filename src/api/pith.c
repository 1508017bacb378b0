/* pith.c -- the public functions: arguments are checked, then forwarded. */
#include <pthread.h>
#include <string.h>

#include "api/params.h"
#include "api/trial.h"
#include "arch/arch.h"
#include "base/machine/cpu.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "run/model/adapter.h"
#include "run/session/diffuse.h"
#include "run/session/session.h"
#include "run/session/stop.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#ifndef PITH_COMMIT
#define PITH_COMMIT "unknown"
#endif

const char *pith_version(void)
{
    return TEXT(PITH_VERSION_MAJOR) "." TEXT(PITH_VERSION_MINOR) "." TEXT(
        PITH_VERSION_PATCH) " (" PITH_COMMIT ")";
}

/* A place for the error where the caller gave none, so that inner code can rely on it. */
#define WITH_ERROR                                                                                 \
    struct pith_error local_error;                                                                 \
    err = err ? err : &local_error;                                                                \
    error_clear(err)

#define NEED(arg)                                                                                  \
    do {                                                                                           \
        if (!(arg))                                                                                \
            return error_set(err, PITH_RANGE, "%s: %s is NULL", __func__, #arg);                   \
    } while (0)

/* A session with no step under way. */
#define NEED_IDLE(s)                                                                               \
    do {                                                                                           \
        NEED(s);                                                                                   \
        if ((s)->n_flying)                                                                         \
            return error_set(err, PITH_STATE,                                                      \
                             "%s: %d steps are under way; end them first "                         \
                             "(pith_wait)",                                                        \
                             __func__, (s)->n_flying);                                             \
    } while (0)

/* ---------------------------------------------------------------- models */

int32_t pith_n_devices(void)
{
    return devices_count();
}

pith_status pith_device_get(int32_t i, struct pith_device_info *out, struct pith_error *err)
{
    WITH_ERROR;
    size_t size;
    struct pith_device_info info = PITH_DEVICE_INFO_INIT;
    pith_status st = params_size(out, &size, "device info", err);
    if (st == PITH_OK)
        st = device_info(i, &info, err);
    if (st == PITH_OK)
        params_give(out, size, &info, sizeof info);
    return st;
}

pith_model *pith_model_open(const char *path, const struct pith_model_params *params,
                            struct pith_error *err)
{
    WITH_ERROR;
    struct pith_model_params p = PITH_MODEL_PARAMS_INIT;
    if (!path) {
        error_set(err, PITH_RANGE, "pith_model_open: path is NULL");
        return NULL;
    }
    struct pith_session_params of = PITH_SESSION_PARAMS_INIT;
    if (params_take(&p, sizeof p, params, "model params", err) != PITH_OK ||
        params_take(&of, sizeof of, p.session, "session params", err) != PITH_OK)
        return NULL;
    of.follows = NULL; /* one of this model, which is not open */
    p.session = &of;
    for (;;) {
        pith_model *m = model_open(path, &p, session_fits, err);
        pith_status st = m ? trial_run(m, err) : PITH_OK;
        if (st == PITH_OK)
            return m;
        model_unref(m);
        if (st != PITH_DEVICE) /* else what has ended the device is left out now */
            return NULL;
        error_clear(err);
    }
}

void pith_model_close(pith_model *m)
{
    model_unref(m);
}

pith_status pith_model_get_info(const pith_model *m, struct pith_model_info *out,
                                struct pith_error *err)
{
    WITH_ERROR;
    NEED(m);
    NEED(out);
    size_t size;
    pith_status st = params_size(out, &size, "model info", err);
    if (st == PITH_OK) {
        struct pith_model_info info = m->info;
        info.memory_bytes = model_memory(m);
        params_give(out, size, &info, sizeof info);
    }
    return st;
}

int64_t pith_model_meta(const pith_model *m, const char *key, char *buf, size_t cap)
{
    const struct gguf_kv *kv = m && key ? gguf_find(m->gguf, key) : NULL;
    if (!kv)
        return -1;
    struct str s;
    str_init(&s, PITH_MEM_META);
    gguf_value_text(m->gguf, kv, -1, &s);
    int64_t n = s.failed ? -1 : (int64_t)s.n;
    if (n >= 0 && buf && cap) {
        size_t take = s.n < cap - 1 ? s.n : cap - 1;
        if (take)
            memcpy(buf, s.p, take);
        buf[take] = 0;
    }
    str_deinit(&s);
    return n;
}

enum { MAX_ARCHS = 256 };
static const char *names[MAX_ARCHS + 1];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void fill_names(void)
{
    for (int i = 0; arch_list[i] && i < MAX_ARCHS; i++)
        names[i] = arch_list[i]->name;
}

const char *const *pith_arch_names(void)
{
    pthread_once(&names_once, fill_names);
    return names;
}

/* ---------------------------------------------------------------- text */

int64_t pith_tokenize(const pith_model *m, const char *text, size_t n_bytes, int flags,
                      int32_t *ids, size_t cap, struct pith_error *err)
{
    WITH_ERROR;
    if (!m || (!text && n_bytes) || (!ids && cap)) {
        error_set(err, PITH_RANGE, "pith_tokenize: model, text or ids is NULL");
        return -1;
    }
    int64_t n = vocab_tokenize(m->vocab, text ? text : "", n_bytes, flags, ids, cap, err);
    work_explain(err);
    return n;
}

int64_t pith_detokenize(const pith_model *m, const int32_t *ids, size_t n, int flags, char *buf,
                        size_t cap, struct pith_error *err)
{
    WITH_ERROR;
    if (!m || (!ids && n) || (!buf && cap)) {
        error_set(err, PITH_RANGE, "pith_detokenize: model, ids or buf is NULL");
        return -1;
    }
    int64_t n_bytes = vocab_detokenize(m->vocab, ids, n, flags, buf, cap, err);
    work_explain(err);
    return n_bytes;
}

int pith_token_is_eog(const pith_model *m, int32_t id)
{
    return m && vocab_is_eog(m->vocab, id);
}

int32_t pith_token_bos(const pith_model *m)
{
    return m ? vocab_bos(m->vocab) : -1;
}

int32_t pith_token_eos(const pith_model *m)
{
    return m ? vocab_eos(m->vocab) : -1;
}

int32_t pith_token_of(const pith_model *m, pith_token_role role)
{
    return m ? vocab_role(m->vocab, role) : -1;
}

struct pith_stream {
    struct pith_model *model;
    struct vocab_stream s;
};

pith_stream *pith_stream_open(pith_model *m, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_stream *s = m ? mem_zalloc(sizeof *s, PITH_MEM_VOCAB) : NULL;
    if (!s) {
        error_set(err, m ? PITH_NOMEM : PITH_RANGE,
                  m ? "out of memory for a stream" : "pith_stream_open: model is NULL");
        return NULL;
    }
    s->model = model_ref(m);
    if (!vocab_stream_init(&s->s, m->vocab)) {
        error_set(err, PITH_NOMEM, "out of memory for a stream");
        pith_stream_close(s);
        return NULL;
    }
    return s;
}

void pith_stream_close(pith_stream *s)
{
    if (!s)
        return;
    vocab_stream_deinit(&s->s);
    model_unref(s->model);
    mem_free(s);
}

const char *pith_stream_put(pith_stream *s, int32_t id, size_t *n_bytes)
{
    struct slice text = s ? vocab_stream_put(&s->s, id) : (struct slice){"", 0};
    if (n_bytes)
        *n_bytes = text.n;
    return text.p ? text.p : "";
}

void pith_stream_continue(pith_stream *s)
{
    if (s)
        s->s.started = 1;
}

void pith_stream_show_control(pith_stream *s, int shown)
{
    if (s)
        s->s.shows = shown != 0;
}

int64_t pith_utf8(const char *text, size_t n_bytes, char *buf, size_t cap)
{
    size_t used = 0;
    for (size_t i = 0; text && i < n_bytes;) {
        uint32_t cp;
        int len = utf8_decode(text + i, n_bytes - i, &cp);
        const char *from = cp == UINT32_MAX ? "\xEF\xBF\xBD" : text + i;
        int n = cp == UINT32_MAX ? 3 : len;
        for (int k = 0; k < n; k++, used++)
            if (used < cap)
                buf[used] = from[k];
        i += (size_t)len;
    }
    return (int64_t)used;
}

/* A program's stopper is a struct stop under its public name. */
pith_stopper *pith_stopper_open(const char *const *strings, struct pith_error *err)
{
    WITH_ERROR;
    return (pith_stopper *)stop_new(strings, err);
}

void pith_stopper_close(pith_stopper *s)
{
    stop_free((struct stop *)s);
}

int pith_stopper_put(pith_stopper *s, const char *text, size_t n, struct pith_shown *out)
{
    size_t size;
    struct stop_text t = {{"", 0}, {"", 0}, -1};
    if (s && text)
        t = stop_push((struct stop *)s, text, n);
    else if (s)
        t.held = stop_flush((struct stop *)s);
    const struct pith_shown shown = {sizeof shown, t.held.p, t.held.n, t.fresh.n};
    if (out && params_size(out, &size, "shown", NULL) == PITH_OK)
        params_give(out, size, &shown, sizeof shown);
    return t.hit;
}

/* ---------------------------------------------------------------- sessions */

pith_session *pith_session_open(pith_model *m, const struct pith_session_params *params,
                                struct pith_error *err)
{
    WITH_ERROR;
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    if (!m) {
        error_set(err, PITH_RANGE, "pith_session_open: model is NULL");
        return NULL;
    }
    return params_take(&p, sizeof p, params, "session params", err) == PITH_OK
               ? session_open(m, &p, err)
               : NULL;
}

pith_status pith_plan_session(pith_model *m, const struct pith_session_params *params,
                              struct pith_session_plan *out, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT;
    size_t size;
    NEED(m);
    NEED(out);
    pith_status st = params_size(out, &size, "session plan", err);
    if (st == PITH_OK)
        st = params_take(&p, sizeof p, params, "session params", err);
    if (st == PITH_OK)
        st = session_plan(m, &p, &plan, err);
    if (st == PITH_OK)
        params_give(out, size, &plan, sizeof plan);
    return st;
}

void pith_session_close(pith_session *s)
{
    session_close(s);
}

pith_status pith_step(pith_session *s, const struct pith_batch *batch, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_batch b = PITH_BATCH_INIT;
    NEED_IDLE(s);
    NEED(batch);
    pith_status st = params_take(&b, sizeof b, batch, "batch", err);
    return st == PITH_OK ? roles_run(s, &b, session_step, err) : st;
}

pith_status pith_submit(pith_session *s, const struct pith_batch *batch, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_batch b = PITH_BATCH_INIT;
    NEED(s);
    NEED(batch);
    pith_status st = params_take(&b, sizeof b, batch, "batch", err);
    return st == PITH_OK ? roles_run(s, &b, session_submit, err) : st;
}

pith_status pith_wait(pith_session *s, struct pith_error *err)
{
    WITH_ERROR;
    NEED(s);
    return pipeline_wait(s, err);
}

int32_t pith_drawn(const pith_session *s, int32_t i)
{
    return s && i >= 0 && i < s->n_drawn ? s->drawn[i] : -1;
}

pith_status pith_accept(pith_session *s, int32_t seq, int32_t row, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_accept(s, seq, row, err);
}

pith_status pith_encode(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                        struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    if (n)
        NEED(tokens);
    return session_encode(s, seq, tokens, n, err);
}

int32_t pith_encoder_most(const pith_session *s)
{
    return s ? s->cache.n_memory : 0;
}

int32_t pith_encoded(const pith_session *s, int32_t seq)
{
    return s && seq >= 0 && seq < s->n_seq ? s->cache.seq[seq].n_memory : -1;
}

pith_status pith_feed(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                      struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(tokens);
    return session_feed(s, seq, tokens, n, err);
}

pith_status pith_prefix(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                        size_t *n_kept, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(tokens);
    return session_prefix(s, seq, tokens, n, n_kept, err);
}

pith_status pith_reuse(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                       size_t *n_kept, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(tokens);
    return session_reuse(s, seq, tokens, n, n_kept, err);
}

int64_t pith_differs_at(const pith_session *s, int32_t *known)
{
    if (known)
        *known = s ? s->miss.token : -1;
    return s ? s->miss.at : -1;
}

pith_status pith_salt(pith_session *s, int32_t seq, const void *salt, size_t n,
                      struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    if (n)
        NEED(salt);
    return session_salt(s, seq, salt, n, err);
}

pith_status pith_trust(pith_session *s, int32_t seq, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_trust(s, seq, err);
}

pith_adapter *pith_adapter_open(pith_model *m, const char *path, struct pith_error *err)
{
    WITH_ERROR;
    if (!m || !path) {
        error_set(err, PITH_RANGE, "pith_adapter_open: %s is NULL", m ? "path" : "m");
        return NULL;
    }
    return adapter_open(m, path, err);
}

void pith_adapter_close(pith_adapter *a)
{
    adapter_unref(a);
}

int32_t pith_adapter_rank(const pith_adapter *a)
{
    return a ? a->rank : 0;
}

/* The caller's array, whose elements are as long as it says. */
static pith_status take_uses(const char *who, const struct pith_adapter_use *uses, int32_t n,
                             struct pith_adapter_use use[ADAPTER_USES], struct pith_error *err)
{
    size_t size = 0;
    if (n && !uses)
        return error_set(err, PITH_RANGE, "%s: uses is NULL", who);
    pith_status st = n > 0 ? params_size(uses, &size, "adapter 0", err) : PITH_OK;
    if (st == PITH_OK && n > 0 && size % _Alignof(struct pith_adapter_use))
        st = error_set(err, PITH_RANGE, "adapter 0: size is %zu; start from PITH_ADAPTER_USE_INIT",
                       size);
    for (int32_t i = 0; i < n && n <= ADAPTER_USES && st == PITH_OK; i++) {
        const void *from = (const uint8_t *)uses + (size_t)i * size;
        use[i] = (struct pith_adapter_use)PITH_ADAPTER_USE_INIT;
        st = params_take(&use[i], sizeof *use, from, "adapter", err);
        if (st == PITH_OK && use[i].size != size)
            st = error_set(err, PITH_RANGE, "adapter %d: size is %zu, of the first one %zu", i,
                           use[i].size, size);
    }
    return st;
}

pith_status pith_adapt(pith_session *s, int32_t seq, const struct pith_adapter_use *uses, int32_t n,
                       struct pith_error *err)
{
    WITH_ERROR;
    struct pith_adapter_use use[ADAPTER_USES] = {{0}};
    NEED_IDLE(s);
    pith_status st = take_uses(__func__, uses, n, use, err);
    return st == PITH_OK ? session_adapt(s, seq, use, n, err) : st;
}

pith_status pith_adapt_slot(pith_session *s, int32_t slot, const struct pith_adapter_use *uses,
                            int32_t n, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_adapter_use use[ADAPTER_USES] = {{0}};
    NEED_IDLE(s);
    pith_status st = take_uses(__func__, uses, n, use, err);
    return st == PITH_OK ? session_adapt_slot(s, slot, use, n, err) : st;
}

pith_status pith_truncate(pith_session *s, int32_t seq, int64_t n, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_truncate(s, seq, n, err);
}

pith_status pith_remove(pith_session *s, int32_t seq, int64_t p0, int64_t p1,
                        struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_remove(s, seq, p0, p1, err);
}

pith_status pith_copy(pith_session *s, int32_t dst, int32_t src, int64_t p0, int64_t p1,
                      struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_copy(s, dst, src, p0, p1, err);
}

pith_status pith_keep(pith_session *s, int32_t seq, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_keep(s, seq, err);
}

pith_status pith_shift(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t delta,
                       struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_shift(s, seq, p0, p1, delta, err);
}

pith_status pith_divide(pith_session *s, int32_t seq, int64_t p0, int64_t p1, int64_t by,
                        struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    return session_divide(s, seq, p0, p1, by, err);
}

int64_t pith_position_min(const pith_session *s, int32_t seq)
{
    return s ? session_position(s, seq, 0) : -1;
}

int64_t pith_position_max(const pith_session *s, int32_t seq)
{
    return s ? session_position(s, seq, 1) : -1;
}

uint32_t pith_edits(const pith_session *s)
{
    return s ? session_edits(s) : 0;
}

void pith_trim(pith_session *s)
{
    if (s && !s->n_flying)
        cache_trim(&s->cache);
}

int64_t pith_tokens(const pith_session *s, int32_t seq, int32_t *ids, size_t cap)
{
    if (!s || seq < 0 || seq >= s->n_seq)
        return -1;
    const struct cache_seq *q = &s->cache.seq[seq];
    for (size_t i = 0; ids && i < cap && i < (size_t)q->n; i++)
        ids[i] = q->token[i];
    return q->n;
}

pith_status pith_save(pith_session *s, int32_t seq, const char *path, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(path);
    return session_save(s, seq, NULL, (struct session_note){0}, path, err);
}

pith_status pith_save_with(pith_session *s, int32_t seq, const pith_sampler *sampler,
                           const char *path, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(sampler);
    NEED(path);
    return session_save(s, seq, sampler, (struct session_note){0}, path, err);
}

pith_status pith_save_noted(pith_session *s, int32_t seq, const pith_sampler *sampler,
                            const void *note, size_t n_note, const char *path,
                            struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(path);
    if (n_note)
        NEED(note);
    return session_save(s, seq, sampler, (struct session_note){note, n_note}, path, err);
}

pith_status pith_saved_note(const char *path, void *buf, size_t cap, size_t *n,
                            struct pith_error *err)
{
    WITH_ERROR;
    NEED(path);
    NEED(n);
    return session_note(path, buf, cap, n, err);
}

pith_status pith_load_with(pith_session *s, int32_t seq, pith_sampler *sampler, const char *path,
                           struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(sampler);
    NEED(path);
    uint32_t fp = fp_enter();
    pith_status st = session_load(s, seq, sampler, path, err);
    fp_leave(fp);
    return st;
}

pith_status pith_load(pith_session *s, int32_t seq, const char *path, struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(path);
    return session_load(s, seq, NULL, path, err);
}

pith_status pith_save_memory(pith_session *s, int32_t seq, void *buf, size_t cap, size_t *n,
                             struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(n);
    return session_save_memory(s, seq, buf, cap, n, err);
}

pith_status pith_load_memory(pith_session *s, int32_t seq, const void *p, size_t n,
                             struct pith_error *err)
{
    WITH_ERROR;
    NEED_IDLE(s);
    NEED(p);
    return session_load_memory(s, seq, p, n, err);
}

static pith_status check_saving(const pith_session *s, const size_t *n, struct pith_error *err)
{
    NEED_IDLE(s);
    NEED(n);
    return PITH_OK;
}

pith_saver *pith_saver_open(pith_session *s, int32_t seq, size_t *n_bytes, struct pith_error *err)
{
    WITH_ERROR;
    return check_saving(s, n_bytes, err) == PITH_OK ? session_saver(s, seq, n_bytes, err) : NULL;
}

pith_status pith_saver_next(pith_saver *w, void *buf, size_t cap, size_t *n, struct pith_error *err)
{
    WITH_ERROR;
    NEED(w);
    NEED(buf);
    NEED(n);
    return session_saver_next(w, buf, cap, n, err);
}

void pith_saver_close(pith_saver *w)
{
    session_saver_free(w);
}

static pith_status check_loading(const pith_session *s, const void *p, struct pith_error *err)
{
    NEED_IDLE(s);
    NEED(p);
    return PITH_OK;
}

pith_loader *pith_loader_open(pith_session *s, int32_t seq, const void *p, size_t n,
                              struct pith_error *err)
{
    WITH_ERROR;
    return check_loading(s, p, err) == PITH_OK ? session_loader(s, seq, p, n, err) : NULL;
}

pith_status pith_loader_next(pith_loader *w, size_t most, int *done, struct pith_error *err)
{
    WITH_ERROR;
    NEED(w);
    NEED(done);
    return session_loader_next(w, most, done, err);
}

void pith_loader_close(pith_loader *w)
{
    session_loader_free(w);
}

int64_t pith_length(const pith_session *s, int32_t seq)
{
    return s && seq >= 0 && seq < s->n_seq ? s->cache.seq[seq].n : -1;
}

int32_t pith_n_ctx(const pith_session *s)
{
    return s ? s->n_ctx : 0;
}

pith_status pith_cache_use(const pith_session *s, int64_t *used, int64_t *total,
                           struct pith_error *err)
{
    WITH_ERROR;
    NEED(s);
    NEED(used);
    NEED(total);
    *used = *total = 0;
    store_cache_use(&s->cache, used, total);
    return PITH_OK;
}

void pith_session_memory(const pith_session *s, uint64_t *now, uint64_t *most)
{
    uint64_t n[2] = {0};
    if (s)
        session_memory(s, &n[0], &n[1]);
    if (now)
        *now = n[0];
    if (most)
        *most = n[1];
}

uint64_t pith_cache_bytes(const pith_session *s, int64_t n)
{
    return s && n > 0 ? session_cache_bytes(s, n) : 0;
}

int32_t pith_n_outputs(const pith_session *s)
{
    return s ? s->n_outputs : 0;
}

int32_t pith_max_outputs(const pith_session *s)
{
    return s ? s->cap_outputs : 0;
}

static const float *output(const pith_session *s, int32_t i)
{
    return i >= 0 && i < s->n_outputs ? s->output[i] : NULL;
}

const float *pith_logits(const pith_session *s, int32_t i)
{
    return s && s->role[ROLE_DECODER].plan.has_logits ? output(s, i) : NULL;
}

const float *pith_embedding(const pith_session *s, int32_t i)
{
    return s && s->role[ROLE_DECODER].plan.has_embd ? output(s, i) : NULL;
}

int64_t pith_tap_width(const pith_session *s, int32_t tap)
{
    return s && tap >= 0 && tap < s->n_taps ? s->role[s->tap[tap].role].plan.tap[tap].cols : 0;
}

const float *pith_tap(pith_session *s, int32_t tap, int32_t row, struct pith_error *err)
{
    WITH_ERROR;
    if (!s)
        error_set(err, PITH_RANGE, "pith_tap: s is NULL");
    return s ? session_tap(s, tap, row, err) : NULL;
}

void pith_cancel(pith_session *s)
{
    if (s)
        atomic_store(&s->cancel, 1);
}

void pith_cancel_reset(pith_session *s)
{
    if (s)
        atomic_store(&s->cancel, 0);
}

pith_status pith_session_observe(pith_session *s, pith_observe_fn fn, void *ctx,
                                 struct pith_error *err)
{
    WITH_ERROR;
    NEED(s);
    if (!s->model->params.observe)
        return error_set(err, PITH_STATE,
                         "the model was not opened with observe = 1; its plan is fused");
    s->run.observe = fn;
    s->run.observe_ctx = ctx;
    return PITH_OK;
}

pith_status pith_session_read_ahead(const pith_session *s, struct pith_read_ahead *out,
                                    struct pith_error *err)
{
    WITH_ERROR;
    NEED(s);
    NEED(out);
    struct pith_read_ahead all = PITH_READ_AHEAD_INIT;
    size_t size;
    pith_status st = params_size(out, &size, "read ahead", err);
    if (st != PITH_OK)
        return st;
    session_read_ahead(s, &all);
    params_give(out, size, &all, sizeof all);
    return PITH_OK;
}

int32_t pith_session_n_states(const pith_session *s)
{
    struct pith_session_state k;
    int32_t n = 0;
    while (s && session_state(s, n, &k))
        n++;
    return s ? n : -1;
}

pith_status pith_session_state_at(const pith_session *s, int32_t i, struct pith_session_state *out,
                                  struct pith_error *err)
{
    WITH_ERROR;
    NEED(s);
    NEED(out);
    struct pith_session_state k;
    size_t size;
    pith_status st = params_size(out, &size, "session state", err);
    if (st != PITH_OK)
        return st;
    if (i < 0 || !session_state(s, i, &k))
        return error_set(err, PITH_RANGE, "state %d of %d, wanted one from 0 on", i,
                         pith_session_n_states(s));
    params_give(out, size, &k, sizeof k);
    return PITH_OK;
}

int64_t pith_report(const pith_session *s, int json, char *buf, size_t cap)
{
    struct str text;
    if (!s)
        return -1;
    str_init(&text, PITH_MEM_META);
    session_report(s, json, &text);
    int64_t n = text.failed ? -1 : (int64_t)text.n;
    if (n >= 0 && buf && cap) {
        size_t take = text.n < cap - 1 ? text.n : cap - 1;
        memcpy(buf, text.p, take);
        buf[take] = 0;
    }
    str_deinit(&text);
    return n;
}

void pith_profile(pith_session *s, int on)
{
    if (s)
        s->run.profile = on;
}

pith_status pith_generate(pith_session *s, const struct pith_generate_params *params,
                          struct pith_generate_result *out, struct pith_error *err)
{
    WITH_ERROR;
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result result;
    size_t size = 0;
    NEED_IDLE(s);
    NEED(params);
    pith_status st = params_take(&p, sizeof p, params, "generate params", err);
    if (st == PITH_OK && out)
        st = params_size(out, &size, "generate result", err);
    if (st != PITH_OK)
        return st;
    st = session_generate(s, &p, &result, err);
    if (out)
        params_give(out, size, &result, sizeof result);
    return st;
}

/* ---------------------------------------------------------------- machine and tools */

const char *pith_isa(void)
{
    return cpu_level_used();
}

pith_status pith_machine_measure(int32_t n_threads, int32_t ms, struct pith_machine *out,
                                 struct pith_error *err)
{
    WITH_ERROR;
    NEED(out);
    if (n_threads < 0 || n_threads > THREADS_MAX || ms < 1 || ms > 60000)
        return error_set(err, PITH_RANGE, "measure: %d threads (0..%d) for %d ms (1..60000)",
                         n_threads, THREADS_MAX, ms);
    struct pith_machine m = {0};
    size_t size;
    pith_status st = params_size(out, &size, "machine", err);
    if (st == PITH_OK)
        st = machine_measure(n_threads, ms, &m, err);
    if (st == PITH_OK)
        params_give(out, size, &m, sizeof m);
    return st;
}

pith_status pith_device_measure(int32_t i, int32_t ms, struct pith_machine *out,
                                struct pith_error *err)
{
    WITH_ERROR;
    NEED(out);
    if (ms < 1 || ms > 60000)
        return error_set(err, PITH_RANGE, "measure: for %d ms (1..60000)", ms);
    struct pith_machine m = {0};
    size_t size;
    pith_status st = params_size(out, &size, "machine", err);
    if (st == PITH_OK)
        st = device_measure(i, ms, &m, err);
    if (st == PITH_OK)
        params_give(out, size, &m, sizeof m);
    return st;
}

pith_status pith_measure_threads(int32_t ms, struct pith_threads *out, struct pith_error *err)
{
    WITH_ERROR;
    NEED(out);
    if (ms < 0 || ms > 60000)
        return error_set(err, PITH_RANGE, "measure threads: for %d ms (0..60000)", ms);
    struct pith_threads t = {0};
    size_t size;
    pith_status st = params_size(out, &size, "threads", err);
    if (st == PITH_OK)
        st = machine_threads(ms, &t, err);
    if (st == PITH_OK)
        params_give(out, size, &t, sizeof t);
    return st;
}

pith_status pith_synth(const char *path, const struct pith_synth_params *params,
                       struct pith_error *err)
{
    WITH_ERROR;
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    NEED(path);
    pith_status st = params_take(&p, sizeof p, params, "synth params", err);
    return st == PITH_OK ? synth_write(path, &p, err) : st;
}

static pith_status take_fill(pith_session *s, const struct pith_fill_params *params,
                             struct pith_fill_params *p, struct pith_error *err)
{
    NEED_IDLE(s);
    NEED(params);
    pith_status st = params_take(p, sizeof *p, params, "fill params", err);
    if (st != PITH_OK)
        return st;
    NEED(p->tokens);
    NEED(p->sampler);
    return PITH_OK;
}

pith_fill *pith_fill_open(pith_session *s, const struct pith_fill_params *params,
                          struct pith_error *err)
{
    WITH_ERROR;
    struct pith_fill_params p = PITH_FILL_PARAMS_INIT;
    return take_fill(s, params, &p, err) == PITH_OK ? fill_new(s, &p, err) : NULL;
}

pith_status pith_fill_step(pith_fill *f, const int32_t **ids, int32_t *n, struct pith_error *err)
{
    WITH_ERROR;
    NEED(f);
    NEED(ids);
    NEED(n);
    return fill_step(f, ids, n, err);
}

int32_t pith_fill_left(const pith_fill *f)
{
    return f ? fill_left(f) : 0;
}

uint64_t pith_fill_bytes(const pith_fill *f)
{
    return f ? fill_bytes(f) : 0;
}

void pith_fill_close(pith_fill *f)
{
    fill_free(f);
}
