/* test_store.c -- the prefix store: what it gives is what computing anew gives, bit for bit,
 * whatever was let go in between; prefixes are computed once; every page is accounted for; and a
 * session that wants pages gets those the store can spare. */
#include <unistd.h>
#include "check_pages.h"
#include "random.h"
#include "small_model.h"

enum { N_VOCAB = 64, N_CTX = 400, N_SEQ = 4 };

static pith_model *synth(const char *arch)
{
    struct pith_synth_params p = small_params(arch, N_VOCAB);
    return small_model(&p, 64, NULL);
}

static pith_session *open_session(pith_model *m, int32_t n_seq, int32_t n_ctx, int64_t n_tokens,
                                  int64_t pages)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx;
    sp.n_seq = n_seq;
    pith_session *s = pith_session_open(m, &sp, &err); /* only to know the size of a page */
    int64_t one = 0;
    for (int g = 0; s && g < s->cache.n_groups; g++)
        one += s->cache.group[g].page_bytes;
    pith_session_close(s);
    sp.n_tokens = n_tokens;
    sp.store_bytes = pages * one;
    s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

/* A heap holds what can go, each entry once, and none is older than the one above it. */
static void check_heaps(const struct store *t)
{
    for (int h = 0; h <= t->n_parts; h++) {
        const struct store_heap *p = &t->heap[h];
        int32_t n = 0;
        for (int32_t i = 0; i < t->cap; i++)
            n += t->entry[i].used && t->entry[i].spot[h] >= 0;
        CHECK_MSG(n == p->n, "heap %d: %d entries, %d say so", h, p->n, n);
        for (int32_t k = 0; k < p->n; k++) {
            const struct store_entry *e = &t->entry[p->v[k]], *up = &t->entry[p->v[(k - 1) / 2]];
            CHECK(e->used && e->spot[h] == k && !e->queued && (h || !e->n_children));
            CHECK(!k || (h ? up->used_window <= e->used_window : up->used <= e->used));
        }
    }
    for (int32_t i = 0; i < t->cap; i++) {
        int32_t n = 0;
        for (int32_t k = t->entry[i].used ? t->entry[i].child : -1; k >= 0; k = t->entry[k].elder)
            n += t->entry[k].parent == i;
        CHECK(!t->entry[i].used || n == t->entry[i].n_children);
        CHECK(!t->entry[i].used || t->entry[i].n_children || t->entry[i].queued ||
              t->entry[i].spot[0] >= 0);
    }
}

/* What the store holds is what it counts. */
static void check_store(const pith_session *s)
{
    uint64_t bytes = 0;
    check_pages(s, "store", "");
    check_heaps(&s->store);
    for (int g = 0; g < s->cache.n_groups; g++) {
        int32_t held = 0, idle = 0;
        for (int32_t i = 0; i < s->store.cap; i++) {
            int32_t page = s->store.entry[i].used ? s->store.entry[i].page[g] : -1;
            held += page >= 0;
            idle += page >= 0 && s->cache.group[g].refs[page] == 1;
        }
        CHECK(held == s->store.held[g]);
        CHECK_MSG(idle == s->cache.group[g].n_idle,
                  "group %d: %d pages are only the store's, %d "
                  "are counted",
                  g, idle, s->cache.group[g].n_idle);
        bytes += (uint64_t)held * (uint64_t)s->cache.group[g].page_bytes;
    }
    CHECK_MSG(bytes == s->store.bytes && bytes <= s->store.budget, "%llu bytes held, counted %llu",
              (unsigned long long)bytes, (unsigned long long)s->store.bytes);
}

/* ---------------------------------------------------------------- same bits */

static void prompts(const char *arch, int32_t n_tokens, int64_t pages, int rounds)
{
    struct pith_error err;
    pith_model *m = synth(arch);
    pith_session *s = m ? open_session(m, N_SEQ, N_CTX, n_tokens, pages) : NULL,
                 *fresh = m ? open_session(m, 1, N_CTX, 0, 0) : NULL;
    int32_t token[N_CTX], n = 0, reused = 0, refused = 0;
    REQUIRE(s && fresh, "no session");
    memset(token, 0, sizeof token);
    for (int i = 0; i < rounds && !test_bad; i++) {
        int32_t seq = below(N_SEQ), common = below(4) ? below(N_CTX - 1) : 0;
        n = 1 + common + below(N_CTX - common - 1);
        for (int32_t k = common; k < n; k++) /* few different ones, so that ends meet again */
            token[k] = (k * 5 + below(40) / 39) % N_VOCAB;
        size_t kept = 0;
        int64_t held = pith_length(s, seq);
        pith_status st = pith_prefix(s, seq, token, (size_t)n, &kept, &err);
        check_store(s);
        if (st != PITH_OK) {
            CHECK_MSG(st == PITH_NOMEM && n_tokens, "%s: %s", arch, err.msg);
            CHECK(pith_truncate(s, below(N_SEQ), 0, &err) == PITH_OK);
            refused++;
            continue;
        }
        reused += (int64_t)kept > held;
        CHECK(pith_truncate(fresh, 0, 0, &err) == PITH_OK);
        CHECK(pith_feed(fresh, 0, token, (size_t)n, &err) == PITH_OK);
        CHECK_MSG(!memcmp(pith_logits(s, 0), pith_logits(fresh, 0), N_VOCAB * sizeof(float)),
                  "%s, round %d: %zu of %d tokens taken, logits differ", arch, i, kept, n);
        if (!below(5))
            CHECK(pith_truncate(s, seq, 0, &err) == PITH_OK);
        if (!below(9) && pith_remove(s, seq, 2, 5, &err) == PITH_OK)
            CHECK(pith_shift(s, seq, 5, -1, -3, &err) == PITH_OK);
        check_store(s);
    }
    printf("# %s, %lld pages: %d prompts, %d more than the sequence held, %d refused\n", arch,
           (long long)pages, rounds, reused, refused);
    CHECK(reused > 0);
    pith_session_close(s);
    pith_session_close(fresh);
    pith_model_close(m);
}

static void test_same_bits(void)
{
    int n = test_scale() >= 100 ? 3000 : test_scale() >= 10 ? 400 : 60;
    prompts("llama", 0, 100, n);
    prompts("llama", 0, 7, n);
    prompts("llama", 900, 9, n);
    prompts("gemma2", 0, 100, n);
    prompts("gemma2", 900, 10, n);
    prompts("gemma3", 0, 8, n); /* windows only */
    prompts("gemma3", 900, 30, n);
}

/* ---------------------------------------------------------------- computed once */

/* Many sequences with one prefix and an end of their own: the prefix is computed once, and all take
 * little more than one of them. */
static void test_shared_prefix(void)
{
    struct pith_error err;
    int32_t n_seq = test_scale() >= 10 ? 32 : 8, n = test_scale() >= 10 ? 8192 : 2048;
    enum { OWN = 16 };
    int32_t *token = calloc((size_t)n + OWN, sizeof *token);
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, n_seq, n + 64, 0, n / 64 + 1) : NULL;
    REQUIRE(s, "no session");
    const struct cache_group *g = &s->cache.group[0];
    int64_t computed = 0, one = 0, all = 0;
    for (int32_t i = 0; i < n; i++)
        token[i] = (i * 7 + i / 64) % N_VOCAB;
    for (int32_t q = 0; q < n_seq; q++) {
        size_t kept;
        for (int i = 0; i < OWN; i++)
            token[n + i] = (q * 3 + i) % N_VOCAB;
        CHECK_MSG(pith_prefix(s, q, token, (size_t)n + OWN, &kept, &err) == PITH_OK, "%s", err.msg);
        computed += n + OWN - (int64_t)kept;
        all = (g->n_made - g->n_free) * g->page_bytes;
        one = q ? one : all;
    }
    CHECK_MSG(computed <= n + 64 * n_seq, "%d tokens computed", (int)computed);
    CHECK_MSG(all * 10 <= one * 11, "%lld bytes, one sequence takes %lld", (long long)all,
              (long long)one);
    printf(
        "# %d sequences of %d tokens: %d computed; %lld bytes of pages, one of them %lld (%.3fx)\n",
        n_seq, n + OWN, (int)computed, (long long)all, (long long)one, (double)all / (double)one);
    check_store(s);
    pith_session_close(s);
    pith_model_close(m);
    free(token);
}

/* ---------------------------------------------------------------- work */

/* Sequences that together exceed the store: a page is offered once, whatever else there is, so a
 * token costs a few entries and not all of them; what was driven out comes back when its sequence
 * ends. */
static void test_too_small(void)
{
    enum { PAGES = 20, N_SEQS = 3, STEPS = 256 };
    struct pith_error err;
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, N_SEQS, (PAGES + 8) * 64, 0, 15) : NULL;
    int32_t token[PAGES * 64 + STEPS + 1], row[N_SEQS], seq[N_SEQS];
    REQUIRE(s, "no session");
    for (int32_t q = 0; q < N_SEQS; q++) {
        for (int32_t i = 0; i < PAGES * 64; i++)
            token[i] = (i * 7 + q * 13 + i / 64) % N_VOCAB;
        CHECK_MSG(pith_feed(s, q, token, PAGES * 64, &err) == PITH_OK, "%s", err.msg);
        check_store(s);
    }
    uint64_t before = s->store.work;
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = N_SEQS;
    b.token = row;
    b.seq = seq;
    for (int k = 0; k < STEPS; k++) {
        for (int32_t q = 0; q < N_SEQS; q++) {
            row[q] = 7 + k % 5;
            seq[q] = q;
        }
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        token[PAGES * 64 + k] = 7 + k % 5;
    }
    check_store(s);
    CHECK_MSG(s->store.work - before <= 4 * N_SEQS * STEPS / 64, "%llu entries looked at",
              (unsigned long long)(s->store.work - before));
    for (int32_t q = 0; q < N_SEQS; q++) {
        CHECK(pith_truncate(s, q, 0, &err) == PITH_OK);
        check_store(s);
    }
    size_t kept = 0; /* of the last to end as much as there is room for */
    token[PAGES * 64 + STEPS] = 1;
    CHECK(pith_reuse(s, 0, token, PAGES * 64 + STEPS + 1, &kept, &err) == PITH_OK);
    CHECK_MSG(kept == 15 * 64, "%zu tokens of the last to end", kept);
    check_store(s);
    pith_session_close(s);
    pith_model_close(m);
}

/* The work for a prompt does not grow with the number of entries; nor when pages of the store have
 * to go for it. */
static void test_big(void)
{
    enum { CAP = 3000, N = 130, MORE = 50 };
    struct pith_error err;
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, 2, 256, 0, CAP) : NULL;
    int32_t token[N];
    size_t kept;
    REQUIRE(s, "no session");
    uint64_t early = 0, late = 0, began = 0;
    for (int q = 0; q < CAP / 2 + 2 * MORE; q++) {
        for (int32_t i = 0; i < N; i++)
            token[i] = (5 + (q >> (i % 3 * 5) & 31) + i) % N_VOCAB;
        began = s->store.work;
        CHECK_MSG(pith_reuse(s, 0, token, N, &kept, &err) == PITH_OK &&
                      pith_feed(s, 0, token + kept, N - kept, &err) == PITH_OK,
                  "%s", err.msg);
        *(q < MORE ? &early : &late) += s->store.work - began;
        late = q < CAP / 2 + MORE ? 0 : late;
    }
    check_store(s);
    CHECK_MSG(s->store.free < 0 || s->store.held[0] > CAP / 2, "%d pages held", s->store.held[0]);
    CHECK_MSG(early && late <= 4 * early,
              "%llu entries looked at for the first %d prompts, %llu "
              "for the last",
              (unsigned long long)early, MORE, (unsigned long long)late);
    printf("# %d entries: %.1f looked at for each of the first prompts, %.1f for the last\n", CAP,
           (double)early / MORE, (double)late / MORE);
    pith_session_close(s);
    pith_model_close(m);
}

/* Rows of embeddings end what can be told by tokens; it is not looked at again for every token
 * behind them. */
static void test_embedding_rows(void)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, 2, N_CTX, 0, 20) : NULL;
    REQUIRE(s && pith_model_get_info(m, &info, &err) == PITH_OK, "no session");
    float *embd = calloc((size_t)info.n_embd, sizeof *embd);
    int32_t token[256];
    size_t kept = 1;
    for (int i = 0; i < 256; i++)
        token[i] = i % N_VOCAB;
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 1;
    b.embd = embd;
    CHECK(pith_feed(s, 0, token, 70, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
    CHECK(pith_feed(s, 0, token + 71, 64, &err) == PITH_OK && s->store.held[0] == 1);
    uint64_t before = s->store.work;
    CHECK(pith_feed(s, 0, token + 71, 120, &err) == PITH_OK);
    CHECK_MSG(s->store.held[0] == 1 && s->store.work == before, "%d pages held, %llu looked at",
              s->store.held[0], (unsigned long long)(s->store.work - before));
    int32_t no_token[80];
    memcpy(no_token, token, sizeof no_token);
    no_token[70] = -1; /* what is held there is no token, and this is none */
    CHECK(pith_reuse(s, 0, no_token, 80, &kept, &err) == PITH_RANGE &&
          strstr(err.msg, "token 70 is -1") && pith_length(s, 0) == 255);
    CHECK(pith_truncate(s, 0, 70, &err) == PITH_OK && /* without the row it goes on */
          pith_feed(s, 0, token + 70, 122, &err) == PITH_OK && s->store.held[0] == 3);
    CHECK(pith_reuse(s, 1, token, 200, &kept, &err) == PITH_OK && kept == 192);
    check_store(s);
    free(embd);
    pith_session_close(s);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- recurrent layers */

/* Rewinds and extends prompts in a session with a store (of many entries, of few, and in a folder)
 * and compares with computing anew. What is computed is at most 64 tokens beyond what an earlier
 * prompt shares with it. */
static void recurrent_prompts(const char *name, pith_model *m, int32_t n_stored, const char *dir)
{
    enum { N = 200 };
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    sp.n_ctx = 256;
    pith_session *fresh = pith_session_open(m, &sp, &err);
    REQUIRE(fresh && pith_model_get_info(m, &info, &err) == PITH_OK, "%s: %s", name, err.msg);
    uint64_t one = fresh->recurrent.block_bytes;
    for (int g = 0; g < fresh->cache.n_groups; g++)
        one += (uint64_t)fresh->cache.group[g].page_bytes;
    sp.n_seq = 2;
    sp.store_bytes = (int64_t)one * n_stored;
    sp.store_dir = dir;
    int32_t token[N];
    size_t row = (size_t)info.n_vocab * sizeof(float), kept;
    for (int reopened = 0; reopened < 2; reopened++) {
        pith_session *s = pith_session_open(m, &sp, &err);
        REQUIRE(s, "%s: %s", name, err.msg);
        CHECK_MSG(s->recurrent.every == 64, "%s: a checkpoint every %d", name, s->recurrent.every);
        for (int i = 0; i < 5; i++) { /* whole; shorter; a tail of its own; longer; elsewhere */
            static const int32_t length[] = {150, 100, 190, 200, 180},
                                 shared[] = {0, 100, 140, 150, 130};
            for (int32_t k = 0; k < length[i]; k++)
                token[k] = (k * 7 + 3 + (k < shared[i] || !i ? 0 : i)) % info.n_vocab;
            CHECK_MSG(pith_prefix(s, i / 4, token, (size_t)length[i], &kept, &err) == PITH_OK,
                      "%s: %s", name, err.msg);
            CHECK(pith_truncate(fresh, 0, 0, &err) == PITH_OK &&
                  pith_feed(fresh, 0, token, (size_t)length[i], &err) == PITH_OK);
            int32_t most = shared[i] < length[i] ? shared[i] : length[i] - 1;
            CHECK_MSG((int32_t)kept > most - 64 || n_stored < 4, "%s, prompt %d: %zu of %d taken",
                      name, i, kept, most);
            CHECK_MSG((int32_t)kept >= 128 - 64 * (i == 1) || !reopened || !dir,
                      "%s, prompt %d after a restart: %zu taken", name, i, kept);
            CHECK_MSG(!memcmp(pith_logits(s, 0), pith_logits(fresh, 0), row),
                      "%s, prompt %d: %zu taken, logits differ", name, i, kept);
        }
        pith_session_close(s);
    }
    pith_session_close(fresh);
}

static void test_recurrent(void)
{
    static const char *const names[] = {"mamba", "mamba2", "rwkv7", "jamba", "granitehybrid"};
    char path[1024], dir[64];
    int n = 0;
    snprintf(dir, sizeof dir, "/tmp/pith-store-%d.dir", (int)getpid());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pith_error err;
        snprintf(path, sizeof path, "%s/golden/arch/%s.gguf", test_shared(), names[i]);
        pith_model *m = access(path, R_OK) ? NULL : pith_model_open(path, NULL, &err);
        if (!m)
            continue;
        recurrent_prompts(names[i], m, 100, NULL);
        recurrent_prompts(names[i], m, 2, NULL);
        recurrent_prompts(names[i], m, 100, dir);
        pith_model_close(m);
        n++;
    }
    snprintf(path, sizeof path, "rm -rf %s", dir);
    CHECK(system(path) == 0);
    if (!n)
        SKIP("golden/arch has no recurrent model");
    printf("# %d models\n", n);
}

/* ---------------------------------------------------------------- what is told, what is compared
 */

static void test_miss(void)
{
    struct pith_error err;
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    int32_t token[200];
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, 2, N_CTX, 0, 50) : NULL;
    REQUIRE(s, "no session");
    for (int i = 0; i < 200; i++)
        token[i] = i % N_VOCAB;
    g.tokens = token;
    g.n_tokens = 200;
    g.n_max = 1;
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK && r.n_kept == 0 && r.differs_at == -1);
    g.seq = 1; /* another sequence, while the first still runs */
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK && r.n_kept == 192 && r.differs_at == -1);
    g.seq = 0;
    token[140] = 9;
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK);
    char known[32] = {0}, given[32] = {0};
    int32_t was = 140 % N_VOCAB;
    pith_detokenize(m, &was, 1, PITH_RENDER_SPECIAL, known, sizeof known - 1, NULL);
    pith_detokenize(m, &token[140], 1, PITH_RENDER_SPECIAL, given, sizeof given - 1, NULL);
    CHECK_MSG(r.n_kept == 140 && r.differs_at == 140 && !strcmp(r.differs_known, known) &&
                  !strcmp(r.differs_given, given),
              "%d kept, differs at %d: \"%s\", known \"%s\"", r.n_kept, r.differs_at,
              r.differs_given, r.differs_known);
    CHECK(pith_keep(s, 0, &err) == PITH_OK && pith_truncate(s, 0, 0, &err) == PITH_OK);
    token[70] = 3; /* in the middle of the second page; the sequence holds nothing now */
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK);
    CHECK_MSG(r.n_kept == 64 && r.differs_at == 70, "%d kept, differs at %d", r.n_kept,
              r.differs_at);
    /* The hash is an index: entries of equal key and other tokens, or another parent, are not
     * taken. */
    struct store_miss miss;
    for (int32_t i = 0; i < s->store.cap; i++)
        s->store.entry[i].token[17] ^= 1;
    CHECK(store_match(&s->store, &s->cache, 0, token, 199, 0, &miss) == 0);
    pith_session_close(s);
    pith_model_close(m);
}

/* pith_reuse takes what pith_prefix takes and computes nothing; what only the store holds counts as
 * free. */
static void test_reuse(void)
{
    enum { N = 200 };
    struct pith_error err;
    int32_t token[N];
    int64_t used = -1, total = -1, then;
    size_t kept = 99;
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, 2, N + 56, 0, 8) : NULL;
    REQUIRE(s, "no session");
    for (int32_t i = 0; i < N; i++)
        token[i] = (i * 5) % N_VOCAB;
    CHECK(pith_reuse(s, 0, token, N, &kept, &err) == PITH_OK && kept == 0 &&
          pith_length(s, 0) == 0);
    CHECK(pith_cache_use(s, &used, &total, &err) == PITH_OK && used == 0 && total >= N);
    CHECK(pith_feed(s, 0, token, N, &err) == PITH_OK);
    CHECK(pith_cache_use(s, &used, &total, &err) == PITH_OK && used == 256);
    CHECK(pith_reuse(s, 1, token, N, &kept, &err) == PITH_OK && kept == 192 &&
          pith_length(s, 1) == 192);
    CHECK(pith_cache_use(s, &then, &total, &err) == PITH_OK && then == used);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_truncate(s, 1, 0, &err) == PITH_OK);
    CHECK(pith_cache_use(s, &used, &total, &err) == PITH_OK && used == 0);
    int32_t known = 0, was = token[70];
    CHECK(pith_differs_at(s, NULL) == -1);
    token[70] = (was + 1) % N_VOCAB;
    CHECK(pith_reuse(s, 0, token, N, &kept, &err) == PITH_OK && kept == 64 &&
          pith_differs_at(s, &known) == 70 && known == was);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_differs_at(NULL, &known) == -1);
    token[5] = N_VOCAB;
    CHECK(pith_reuse(s, 1, token, N, &kept, &err) == PITH_RANGE &&
          pith_reuse(s, 2, token, 1, &kept, &err) == PITH_RANGE);
    CHECK(pith_reuse(NULL, 0, token, 1, NULL, NULL) == PITH_RANGE &&
          pith_cache_use(s, NULL, &total, NULL) == PITH_RANGE);
    pith_session_close(s);
    pith_model_close(m);
}

static size_t reused(pith_session *s, int32_t seq, const void *salt, size_t n_salt,
                     const int32_t *token, size_t n)
{
    struct pith_error err;
    size_t kept = 99;
    CHECK(pith_truncate(s, seq, 0, &err) == PITH_OK);
    CHECK_MSG(pith_salt(s, seq, salt, n_salt, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_prefix(s, seq, token, n, &kept, &err) == PITH_OK, "%s", err.msg);
    return kept;
}

/* Sequences of other salts find nothing of this one's, in memory and in a folder; and are told
 * nothing. */
static void test_salt(void)
{
    enum { N = 200 };
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    char dir[64], remove[100];
    int32_t token[N], known = -2;
    size_t kept;
    pith_model *m = synth("llama");
    snprintf(dir, sizeof dir, "/tmp/pith-salt-%d.dir", (int)getpid());
    sp.n_ctx = N_CTX;
    sp.n_seq = 3;
    sp.store_dir = dir;
    sp.store_bytes = 1 << 20;
    for (int32_t i = 0; i < N; i++)
        token[i] = (i * 5) % N_VOCAB;
    for (int round = 0; round < 2; round++) { /* the second time they are in the folder */
        pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s, "no session");
        size_t there = round ? 192 : 0;
        CHECK(reused(s, 0, "alice", 5, token, N) == there);
        CHECK(reused(s, 1, "bob", 3, token, N) == there && pith_differs_at(s, &known) == -1);
        CHECK(reused(s, 1, NULL, 0, token, N) == there);
        CHECK(reused(s, 2, "alice", 5, token, N) == 192);
        CHECK(reused(s, 2, "bob", 3, token, N) == 192);
        CHECK(reused(s, 2, "alic", 4, token, N) == there);
        token[70]++; /* no other salt's tokens are told */
        CHECK(reused(s, 2, "carol", 5, token, N) == there && pith_differs_at(s, &known) == -1);
        CHECK(reused(s, 2, "alice", 5, token, N) == (round ? 192 : 64) &&
              pith_differs_at(s, &known) == (round ? -1 : 70));
        token[70]--;
        /* A copy belongs to whom its source belongs to. */
        CHECK(reused(s, 0, "dave", 4, token, 100) == (round ? 64 : 0));
        CHECK(pith_truncate(s, 1, 0, &err) == PITH_OK &&
              pith_salt(s, 1, "eve", 3, &err) == PITH_OK);
        CHECK(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK);
        CHECK(pith_feed(s, 1, token + 100, 100, &err) == PITH_OK);
        CHECK(reused(s, 2, "eve", 3, token, N) == (round ? 192 : 0));
        CHECK(reused(s, 2, "dave", 4, token, N) == 192);
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_truncate(s, 1, 0, &err) == PITH_OK &&
              pith_salt(s, 1, "eve", 3, &err) == PITH_OK);
        CHECK(memcmp(s->cache.seq[0].salt, s->cache.seq[1].salt, sizeof s->cache.seq[0].salt) != 0);
        CHECK(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK); /* of nothing, too */
        CHECK(!memcmp(s->cache.seq[0].salt, s->cache.seq[1].salt, sizeof s->cache.seq[0].salt));
        check_store(s);
        CHECK(pith_salt(s, 2, "x", 1, &err) == PITH_STATE && strstr(err.msg, "200 positions"));
        CHECK(pith_salt(s, 3, "x", 1, &err) == PITH_RANGE && strstr(err.msg, "0..2"));
        CHECK(pith_salt(s, 0, NULL, 1, &err) == PITH_RANGE && strstr(err.msg, "salt is NULL"));
        CHECK(pith_truncate(s, 2, 0, &err) == PITH_OK &&
              pith_salt(s, 2, token, 4097, &err) == PITH_RANGE && strstr(err.msg, "0..4096"));
        CHECK(pith_salt(NULL, 0, "x", 1, NULL) == PITH_RANGE);
        CHECK(pith_prefix(s, 2, token, N, &kept, &err) == PITH_OK && kept == 192); /* dave still */
        pith_session_close(s);
    }
    snprintf(remove, sizeof remove, "rm -rf %s", dir);
    CHECK(system(remove) == 0);
    pith_model_close(m);
}

/* What a snapshot's file brought is its sequence's own: the store, and so other sequences, never
 * see it. */
static void test_loaded_is_not_published(void)
{
    struct pith_error err;
    pith_model *m = synth("llama");
    pith_session *s = m ? open_session(m, 2, N_CTX, 0, 16) : NULL,
                 *other = m ? open_session(m, 2, N_CTX, 0, 16) : NULL;
    REQUIRE(s && other, "no session");
    enum { N = 200 };
    int32_t token[N];
    size_t n = 0, kept = 1;
    for (int32_t i = 0; i < N; i++)
        token[i] = below(N_VOCAB);
    CHECK(pith_feed(s, 0, token, N - 64, &err) == PITH_OK);
    CHECK(pith_save_memory(s, 0, NULL, 0, &n, &err) == PITH_OK || n > 0);
    void *image = malloc(n);
    CHECK(pith_save_memory(s, 0, image, n, &n, &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(other, 0, image, n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_feed(other, 0, token + N - 64, 64, &err) == PITH_OK);
    CHECK(pith_prefix(other, 1, token, N, &kept, &err) == PITH_OK && kept == 0);
    CHECK(pith_prefix(s, 1, token, N, &kept, &err) == PITH_OK &&
          kept == 128); /* its own is shared */
    CHECK(pith_prefix(other, 0, token + 1, N - 1, &kept, &err) == PITH_OK && kept == 0);
    CHECK(pith_prefix(other, 1, token + 1, N - 1, &kept, &err) == PITH_OK &&
          kept == 192); /* computed since */
    check_store(other);
    free(image);
    pith_session_close(s);
    pith_session_close(other);
    pith_model_close(m);
}

/* pith_trust: then they do, and go on from it with the same bits; also with windows, and with
 * states of recurrent layers. */
static void trusted(const char *arch)
{
    struct pith_error err;
    enum { N = 200 };
    pith_model *m = synth(arch);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 2;
    sp.store_bytes = 4 << 20;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL,
                 *other = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s && other, "no session");
    int32_t token[N];
    size_t n = 0, kept = 1, own = 0;
    for (int32_t i = 0; i < N; i++)
        token[i] = below(N_VOCAB);
    CHECK(pith_feed(s, 0, token, N, &err) == PITH_OK);
    CHECK(pith_save_memory(s, 0, NULL, 0, &n, &err) == PITH_OK || n > 0);
    void *image = malloc(n);
    CHECK(pith_save_memory(s, 0, image, n, &n, &err) == PITH_OK);
    CHECK_MSG(pith_load_memory(other, 0, image, n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_trust(other, 0, &err) == PITH_OK && pith_truncate(other, 0, 0, &err) == PITH_OK);
    if (!other->recurrent.n_blocks) /* which counts pages alone */
        check_store(other);
    CHECK(pith_prefix(s, 1, token, N, &own, &err) == PITH_OK && own > 100);
    CHECK_MSG(pith_prefix(other, 1, token, N, &kept, &err) == PITH_OK && kept == own,
              "%s: %zu, not %zu", arch, kept, own);
    CHECK(!memcmp(pith_logits(s, 0), pith_logits(other, 0), N_VOCAB * sizeof(float)));
    CHECK(pith_trust(other, 1, &err) == PITH_OK); /* not loaded: nothing to do */
    CHECK(pith_trust(other, 2, &err) == PITH_RANGE && strstr(err.msg, "0..1"));
    CHECK(pith_trust(NULL, 0, &err) == PITH_RANGE);
    free(image);
    pith_session_close(s);
    pith_session_close(other);
    pith_model_close(m);
}

static void test_trusted(void)
{
    trusted("llama");
    trusted("gemma3");
    trusted("mamba");
}

int main(void)
{
    test_seed();
    TEST(test_same_bits);
    TEST(test_shared_prefix);
    TEST(test_too_small);
    TEST(test_big);
    TEST(test_embedding_rows);
    TEST(test_recurrent);
    TEST(test_miss);
    TEST(test_reuse);
    TEST(test_salt);
    TEST(test_loaded_is_not_published);
    TEST(test_trusted);
    return test_end();
}
