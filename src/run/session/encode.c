/* encode.c -- the encoder's part of a session: one text, whole, in a step of its own, which fills
 * the memory that the decoder's rows of a sequence see (run/cache/cache_memory.c). */
#include <string.h>
#include <xxhash.h>

#include "run/session/session.h"

static pith_status check_text(const struct pith_session *s, int32_t seq, const int32_t *tokens,
                              size_t n, struct pith_error *err)
{
    int32_t most = s->cache.n_memory, n_vocab = s->model->arch.hp.n_vocab;
    if (s->n_roles < 2)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s has no encoder beside its decoder; feed the tokens to the sequence",
                         s->model->info.arch);
    if (seq < 0 || seq >= s->n_seq)
        return error_set(err, PITH_RANGE, "sequence %d, the session has 0..%d", seq, s->n_seq - 1);
    if (s->cache.seq[seq].n)
        return error_set(err, PITH_STATE,
                         "sequence %d holds %d positions that have seen another text of the "
                         "encoder; truncate it to 0 first",
                         seq, s->cache.seq[seq].n);
    if (n > (size_t)most)
        return error_set(
            err, PITH_RANGE,
            "the encoder's text exceeds what it reads at once: n_prompt = %zu, at most "
            "%d (n_ctx = %d, n_batch = %d), n_over = %zu; shorten it or open the "
            "session with larger ones",
            n, most, s->n_ctx, s->n_batch, n - (size_t)most);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return error_set(err, PITH_RANGE, "token %zu is %d, the vocabulary has 0..%d", i,
                             tokens[i], n_vocab - 1);
    return PITH_OK;
}

/* A step of n rows that see each other: of the memory and of the encoder's own states. */
static void fill(struct pith_session *s, int32_t seq, const int32_t *tokens, int32_t n)
{
    struct step *t = s->step;
    const struct cache *c = &s->cache;
    t->T = n;
    t->N = 1;
    t->R = t->embd = t->n_tiles = 0;
    step_put_seq(t)[0] = seq;
    step_put_first(t)[0] = 0;
    step_put_first(t)[1] = n;
    step_put_state(t)[0] = -1;
    step_put_tree(t)[0] = 0;
    for (int32_t r = 0; r < n; r++) {
        step_put_token(t)[r] = tokens[r];
        step_put_plus(t)[r] = 0;
        step_put_seg(t)[r] = 0;
        step_place(t, r, r);
        step_put_keep(t)[r] = -1;
        step_put_adapter(t)[r] = session_set(s, seq);
        if (r % STEP_TILE == 0)
            step_put_tile(t)[t->n_tiles++] = r;
        for (int g = c->n_own; g < c->n_groups; g++) {
            step_put_slot(t, g)[r] = r;
            step_put_lo(t, g)[r] = 0;
            step_put_hi(t, g)[r] = n;
        }
    }
    for (int g = c->n_own; g < c->n_groups; g++)
        memcpy(step_put_pages(t, g, 0), c->fresh[g],
               (size_t)((n + STEP_PAGE - 1) / STEP_PAGE) * sizeof(int32_t));
}

static void hash_of(const int32_t *tokens, size_t n, uint64_t hash[2])
{
    XXH128_hash_t h = XXH3_128bits(tokens, n * sizeof *tokens);
    hash[0] = h.low64;
    hash[1] = h.high64;
}

int session_has_read(const struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n)
{
    const struct cache_seq *q = &s->cache.seq[seq];
    uint64_t hash[2];
    hash_of(tokens, n, hash);
    return n && (size_t)q->n_memory == n && !memcmp(hash, q->memory, sizeof hash);
}

pith_status session_encode(struct pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                           struct pith_error *err)
{
    struct session_role *r = &s->role[ROLE_ENCODER];
    pith_status st = session_ready(s, err);
    if (st == PITH_OK)
        st = check_text(s, seq, tokens, n, err);
    if (st != PITH_OK)
        return st;
    if (!n) {
        cache_memory_drop(&s->cache, seq);
        return PITH_OK;
    }
    st = cache_memory_take(&s->cache, seq, (int32_t)n, err);
    if (st != PITH_OK)
        return st;
    s->n_tried = s->n_tap_read = 0;
    fill(s, seq, tokens, (int32_t)n);
    s->run.stats = r->stats;
    s->run.n_threads = n > PREFILL_ROWS ? s->n_threads_prefill : s->n_threads;
    st = cache_flush(&s->cache, err);
    if (st == PITH_OK)
        st = plan_submit(&r->run, &s->run, err);
    uint64_t hash[2];
    hash_of(tokens, n, hash);
    s->n_tap_read = st == PITH_OK ? (int32_t)n : 0;
    cache_memory_end(&s->cache, seq, (int32_t)n, hash, st != PITH_OK);
    return st;
}
