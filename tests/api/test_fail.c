/* test_fail.c -- memory that is refused: the n-th allocation or commit fails, for every n, through
 * open, session, three tokens, text in and out, generation and close. Wanted is PITH_NOMEM with a
 * message, nothing held afterwards, and a library that goes on as if nothing had happened: the same
 * call again gives the same bits. And the decode loop, which must not allocate at all once it is
 * warm. */
#include "robust.h"

#if defined(__GLIBC__) && !UNDER_SANITIZER
#define COUNTS_MALLOC 1
#else
#define COUNTS_MALLOC 0
#endif

/* ---------------------------------------------------------------- every malloc of the process */

static atomic_long n_mallocs;

#if COUNTS_MALLOC
/* The C library's own, under the names that it keeps for those who replace them. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_calloc(n, each);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_realloc(p, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    *out = __libc_memalign(align, n);
    return *out ? 0 : ENOMEM;
}
#endif

/* ---------------------------------------------------------------- models */

static const struct tiny tinies[] = {
    {"llama", "q8_0", 32, 2, 16, 32, 300, 0, 0, 2, 1},
    {"qwen3moe", "q4_0", 32, 2, 16, 32, 300, 4, 0, 2, 1},
    {"gemma3", "f16", 32, 2, 16, 32, 300, 0, 1, 3, 1}, /* with a window */
    {"llama-embed", "f32", 32, 2, 16, 32, 300, 0, 0, 1, 1},
    {"mamba2", "f16", 32, 2, 16, 32, 300, 0, 0, 2, 1},
    {"granitehybrid", "q8_0", 32, 2, 16, 32, 300, 4, 1, 2, 1},
    {"rwkv7", "f32", 32, 2, 16, 32, 300, 0, 0, 2, 1},
};
enum { N_TINIES = sizeof tinies / sizeof tinies[0] };

/* ---------------------------------------------------------------- a life, call by call */

/* What came out of a life: equal for any two of the same model. */
struct life {
    float out[512];
    char text[256], piece[256], meta[64];
    int32_t ids[64], draws[3];
    int64_t n_ids, n_report;
    size_t n_piece, n_text;
    int64_t n_keys;
};

struct trial {
    const char *path, *what;
    int rest;   /* every call behind the refused one fails too: nothing is tried again */
    int failed; /* calls that did */
    int given_up;
    struct pith_error err;
};

/* Looks at how a call ended; 1: do it again. */
static int again(struct trial *t, const char *call, int ok)
{
    if (ok) {
        CHECK_MSG(t->err.code == PITH_OK, "%s, %s: went well but left error %d", t->what, call,
                  t->err.code);
        return 0;
    }
    CHECK_MSG(t->err.code == PITH_NOMEM, "%s, %s: error %d (%s), wanted %d", t->what, call,
              t->err.code, t->err.msg, PITH_NOMEM);
    CHECK_MSG(strlen(t->err.msg) > 8, "%s, %s: says \"%s\"", t->what, call, t->err.msg);
    CHECK_MSG(atomic_load(&hook.refused) > 0, "%s, %s: failed though nothing was refused: %s",
              t->what, call, t->err.msg);
    t->failed++;
    t->given_up = t->rest || t->failed > 1;
    return !t->given_up;
}

static int saves_in_pieces(pith_session *s, int32_t seq, void *to, size_t cap,
                           struct pith_error *err)
{
    size_t n = 0;
    pith_saver *w = pith_saver_open(s, seq, &n, err);
    int ok = w && pith_saver_next(w, to, cap, &n, err) == PITH_OK;
    pith_saver_close(w);
    return ok;
}

static int loads_in_pieces(pith_session *s, int32_t seq, const void *p, size_t n,
                           struct pith_error *err)
{
    int done = 0;
    pith_loader *w = pith_loader_open(s, seq, p, n, err);
    int ok = w && pith_loader_next(w, 1, &done, err) == PITH_OK;
    while (ok && !done)
        ok = pith_loader_next(w, n, &done, err) == PITH_OK;
    pith_loader_close(w);
    return ok;
}

#define CALL(t, name, expr)                                                                        \
    do {                                                                                           \
        (t)->err.code = PITH_OK;                                                                   \
    } while (again(t, name, (expr)))
/* Ends the life when the call has failed for good. */
#define MUST(t, name, expr)                                                                        \
    do {                                                                                           \
        CALL(t, name, expr);                                                                       \
        if ((t)->given_up)                                                                         \
            goto end;                                                                              \
    } while (0)

static void live_text(struct trial *t, pith_model *m, struct life *l)
{
    static const char text[] = "w9 <s> \xe2\x96\x81w280 \xff!";
    pith_stream *stream = NULL;
    struct pith_error *err = &t->err;
    MUST(t, "tokenize",
         (l->n_ids = pith_tokenize(m, text, sizeof text - 1, 3, l->ids, 64, err)) >= 0);
    MUST(t, "detokenize",
         pith_detokenize(m, l->ids, (size_t)l->n_ids, PITH_RENDER_SPECIAL, l->text, sizeof l->text,
                         err) >= 0);
    MUST(t, "stream", (stream = pith_stream_open(m, err)) != NULL);
    for (int i = 0; i < 8; i++) { /* has no error: memory that is refused costs text, never more */
        size_t n;
        const char *p = pith_stream_put(stream, i < 7 ? 260 + i : -1, &n);
        for (size_t k = 0; k < n && l->n_piece < sizeof l->piece; k++)
            l->piece[l->n_piece++] = p[k];
    }
    if (pith_model_meta(m, "general.architecture", l->meta, sizeof l->meta) < 0 && !t->rest)
        pith_model_meta(m, "general.architecture", l->meta, sizeof l->meta);
end:
    pith_stream_close(stream);
}

static void live_decode(struct trial *t, pith_session *s, struct life *l)
{
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    struct pith_generate_params gp = PITH_GENERATE_PARAMS_INIT;
    static const char *const stops[] = {"never", "ever so", NULL};
    static const struct pith_logit_bias bias = {7, -1};
    static const int32_t breaker[] = {3, -1};
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    struct pith_error *err = &t->err;
    pith_sampler *sampler = NULL;
    sp.temperature = 1.5f;
    sp.top_k = 40;
    sp.top_p = 0.99f;
    sp.repeat_penalty = 1.1f;
    sp.dry_multiplier = 0.5f;
    sp.dry_breakers = breaker;
    sp.n_dry_breakers = 2;
    sp.logit_bias = &bias;
    sp.n_logit_bias = 1;
    sp.adaptive_target = 0.5f;
    sp.seed = 5;
    MUST(t, "sampler", (sampler = pith_sampler_open(300, &sp, err)) != NULL);
    for (int i = 0; i < 3; i++) {
        MUST(t, "sample",
             (l->draws[i] = pith_sample(sampler, pith_logits(s, 0))) >= 0 ||
                 pith_sampler_error(sampler, err) == PITH_OK);
        pith_sampler_accept(sampler, l->draws[i]);
        int64_t before = pith_length(s, 0);
        MUST(t, "step", pith_feed(s, 0, &l->draws[i], 1, err) == PITH_OK);
        CHECK_MSG(pith_length(s, 0) == before + 1, "%s: a failed step left something", t->what);
    }
    memcpy(l->out, pith_logits(s, 0), 300 * sizeof(float));
    gp.prompt = "w270 w271 w272";
    gp.stop = stops;
    gp.n_max = 5;
    gp.ignore_eog = 1;
    gp.text = l->text;
    gp.text_cap = sizeof l->text;
    memset(l->text, 0, sizeof l->text);
    MUST(t, "generate", pith_generate(s, &gp, &r, err) == PITH_OK);
    l->n_text = r.n_bytes;
    l->n_report = pith_report(s, 1, NULL, 0) > 0;
    if (!l->n_report && !t->rest)
        l->n_report = pith_report(s, 1, NULL, 0) > 0;
end:
    pith_sampler_close(sampler);
}

static void live(struct trial *t, struct life *l)
{
    static const int32_t ids[] = {1, 261, 262, 263};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error *err = &t->err;
    static const char *const overrides[] = {"general.name=str:another", "pith.test=int:7", NULL};
    pith_file *file = NULL;
    pith_model *m = NULL;
    pith_session *s = NULL;
    memset(l, 0, sizeof *l);
    mp.n_threads = 2;
    mp.n_batch = 2; /* so that a prompt is several steps, and outputs are kept aside */
    mp.overrides = overrides;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.store_bytes = 1 << 20;
    MUST(t, "file", (file = pith_file_open(t->path, err)) != NULL);
    l->n_keys = pith_file_n_keys(file);
    MUST(t, "open", (m = pith_model_open(t->path, &mp, err)) != NULL);
    live_text(t, m, l);
    if (t->given_up)
        goto end;
    MUST(t, "session", (s = pith_session_open(m, &sp, err)) != NULL);
    pith_model_get_info(m, &info, NULL);
    if (info.causal) {
        static const uint8_t want[4] = {1, 0, 0, 1};
        struct pith_batch b = PITH_BATCH_INIT;
        b.n = 4;
        b.token = ids;
        b.want = want;
        MUST(t, "prefill", pith_step(s, &b, err) == PITH_OK);
        CHECK(pith_n_outputs(s) == 2 && pith_length(s, 0) == 4);
        if (pith_edits(s) & PITH_EDIT_SHIFT) {
            MUST(t, "copy", pith_copy(s, 1, 0, 0, 3, err) == PITH_OK);
            MUST(t, "remove", pith_remove(s, 1, 0, 1, err) == PITH_OK);
            MUST(t, "shift", pith_shift(s, 1, 0, -1, -1, err) == PITH_OK);
        } else { /* a recurrence goes back to what it was, and takes no part out */
            MUST(t, "copy", pith_copy(s, 1, 0, 0, -1, err) == PITH_OK);
            MUST(t, "truncate", pith_truncate(s, 1, 0, err) == PITH_OK);
            MUST(t, "prefill", pith_feed(s, 1, ids, 2, err) == PITH_OK);
        }
        MUST(t, "step after edits", pith_feed(s, 1, ids, 1, err) == PITH_OK);
        CHECK(pith_length(s, 1) == 3 && pith_position_max(s, 1) == 2);
        static uint8_t saved[1 << 20];
        size_t n_saved = 0;
        MUST(t, "save", pith_save_memory(s, 1, saved, sizeof saved, &n_saved, err) == PITH_OK);
        MUST(t, "load", pith_load_memory(s, 1, saved, n_saved, err) == PITH_OK);
        MUST(t, "load in pieces", loads_in_pieces(s, 1, saved, n_saved, err));
        MUST(t, "save in pieces", saves_in_pieces(s, 1, saved, sizeof saved, err));
        CHECK(pith_length(s, 1) == 3);
        MUST(t, "prefill again", pith_prefix(s, 0, ids, 4, NULL, err) == PITH_OK);
        live_decode(t, s, l);
    } else {
        MUST(t, "embedding", pith_feed(s, 0, ids, 2, err) == PITH_OK);
        memcpy(l->out, pith_embedding(s, 0), 32 * sizeof(float));
    }
end:
    pith_file_close(file);
    pith_session_close(s);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- the n-th fails, for every n */

static int same_life(const struct life *a, const struct life *b)
{
    return !memcmp(a->out, b->out, sizeof a->out) && !strcmp(a->text, b->text) &&
           a->n_text == b->n_text && !memcmp(a->ids, b->ids, sizeof a->ids) &&
           !memcmp(a->draws, b->draws, sizeof a->draws) && a->n_keys == b->n_keys &&
           !strcmp(a->meta, b->meta) && a->n_report == b->n_report;
}

/* At TEST_SCALE 1 every n of the first model, some of the others. */
static void every_nth(const struct tiny *tiny)
{
    long by = tiny == tinies || test_scale() >= 10 ? 1 : 5;
    static struct life want, got;
    struct trial t = {.path = tiny_write(tiny, 3), .what = "nothing refused"};
    char what[160];
    if (!t.path)
        return;
    hook_refuse(-1, 0);
    live(&t, &want);
    long n = atomic_load(&hook.asked);
    REQUIRE(!t.failed && n > 50, "%s: %ld allocations, %d calls failed", tiny_name(tiny), n,
            t.failed);
    check_nothing_held(tiny_name(tiny));
    for (int rest = 0; rest < 2; rest++)
        for (long i = rest * by / 2; i < n && test_bad < 5; i += by) {
            snprintf(what, sizeof what, "%s, allocation %ld of %ld%s", tiny_name(tiny), i, n,
                     rest ? " and all behind it" : "");
            t = (struct trial){.path = t.path, .what = what, .rest = rest};
            hook_refuse(i, rest);
            live(&t, &got);
            hook_refuse(-1, 0);
            CHECK_MSG(rest || t.failed < 2, "%s: the second try failed too", what);
            CHECK_MSG(rest || t.failed == 2 || same_life(&want, &got),
                      "%s: went on, but not as before", what);
            check_nothing_held(what);
        }
}

static void llama_survives(void)
{
    every_nth(&tinies[0]);
}

static void experts_survive(void)
{
    every_nth(&tinies[1]);
}

static void windows_survive(void)
{
    every_nth(&tinies[2]);
}

static void embeddings_survive(void)
{
    every_nth(&tinies[3]);
}

static void state_spaces_survive(void)
{
    every_nth(&tinies[4]);
}

static void hybrids_survive(void)
{
    every_nth(&tinies[5]);
}

static void rwkv_survives(void)
{
    every_nth(&tinies[6]);
}

/* ---------------------------------------------------------------- the decode loop */

struct counts {
    long hook, mallocs;
};

static struct counts counts_now(void)
{
    return (struct counts){atomic_load(&hook.asked), atomic_load(&n_mallocs)};
}

static void check_counts(const char *what, struct counts was)
{
    struct counts now = counts_now();
    CHECK_MSG(now.hook == was.hook, "%s: %ld allocations", what, now.hook - was.hook);
    CHECK_MSG(now.mallocs == was.mallocs, "%s: %ld mallocs that the hook does not see", what,
              now.mallocs - was.mallocs);
}

struct loop {
    pith_model *m;
    pith_session *s;
    pith_sampler *sampler;
    pith_stream *stream;
};

static int loop_open(struct loop *l, const struct tiny *tiny)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    const char *path = tiny_write(tiny, 3);
    mp.n_threads = 2;
    mp.n_batch = 32;
    sp.n_ctx = 512;
    sp.n_seq = 6;
    p.temperature = 2.0f;
    p.top_k = 100;
    p.top_p = 0.999f;
    p.min_p = 0.0001f;
    p.repeat_penalty = 1.05f;
    p.frequency_penalty = 0.01f;
    p.penalty_last_n = -1;
    *l = (struct loop){0};
    l->m = path ? pith_model_open(path, &mp, &err) : NULL;
    l->s = l->m ? pith_session_open(l->m, &sp, &err) : NULL;
    l->sampler = pith_sampler_open(300, &p, &err);
    l->stream = l->m ? pith_stream_open(l->m, &err) : NULL;
    CHECK_MSG(l->s && l->sampler && l->stream, "%s: %s", tiny_name(tiny), err.msg);
    return l->s && l->sampler && l->stream;
}

static void loop_close(struct loop *l)
{
    pith_stream_close(l->stream);
    pith_sampler_close(l->sampler);
    pith_session_close(l->s);
    pith_model_close(l->m);
    check_nothing_held("decode loop");
}

/* n tokens by hand, as a program would. */
static size_t decode(struct loop *l, int n)
{
    struct pith_error err;
    size_t text = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        int32_t id = pith_sample(l->sampler, pith_logits(l->s, 0));
        pith_sampler_accept(l->sampler, id);
        pith_stream_put(l->stream, id, &bytes);
        text += bytes;
        if (pith_feed(l->s, 0, &id, 1, &err) != PITH_OK) {
            test_fail(__FILE__, __LINE__, "%s", err.msg);
            break;
        }
    }
    return text;
}

static void decode_is_quiet(void)
{
    static const int32_t prompt[] = {1, 261, 262, 263};
    for (int i = 0; i < 3; i++) {
        struct loop l;
        if (loop_open(&l, &tinies[i])) {
            CHECK(pith_feed(l.s, 0, prompt, 4, NULL) == PITH_OK);
            decode(&l, 8); /* warm */
            struct counts was = counts_now();
            size_t text = decode(&l, 100);
            check_counts(tiny_name(&tinies[i]), was);
            CHECK_MSG(text > 50, "%s: only %zu bytes of text", tiny_name(&tinies[i]), text);
        }
        loop_close(&l);
    }
}

/* Prefill, batches over all sequences, reuse, rewinding, sharing: none of it allocates, at any
 * length. */
static void sessions_are_quiet(void)
{
    static int32_t ids[300], seqs[60];
    for (int i = 0; i < 300; i++)
        ids[i] = 259 + i * 7 % 41;
    for (int i = 0; i < 60; i++)
        seqs[i] = i % 6;
    for (int k = 0; k < 3; k++) {
        struct loop l;
        if (loop_open(&l, &tinies[k])) {
            struct pith_batch b = PITH_BATCH_INIT;
            struct counts was = {0};
            for (int round = 0; round < 3; round++) {
                if (round == 1)
                    was = counts_now();
                for (int i = 0; i < 6; i++) {
                    CHECK(pith_prefix(l.s, i, ids, (size_t)(100 + i), NULL, NULL) == PITH_OK);
                    CHECK(pith_prefix(l.s, i, ids, (size_t)(90 + i), NULL, NULL) == PITH_OK);
                }
                b.n = 60;
                b.token = ids;
                b.seq = seqs;
                CHECK(pith_step(l.s, &b, NULL) == PITH_OK && pith_n_outputs(l.s) == 6);
                CHECK(pith_prefix(l.s, 0, ids, 300, NULL, NULL) == PITH_OK);
                CHECK(pith_copy(l.s, 5, 0, 0, 300, NULL) == PITH_OK);
                CHECK(pith_feed(l.s, 5, ids, 70, NULL) == PITH_OK);
                CHECK(pith_truncate(l.s, 5, 369, NULL) == PITH_OK);
                for (int i = 0; i < 6; i++)
                    CHECK(pith_truncate(l.s, i, 0, NULL) == PITH_OK);
            }
            check_counts(tiny_name(&tinies[k]), was);
        }
        loop_close(&l);
    }
}

struct watch {
    int n;
    struct counts first, last;
};

static int watch_text(void *ctx, const char *text, size_t n)
{
    struct watch *w = ctx;
    (void)text, (void)n;
    w->last = counts_now();
    if (w->n++ == 2)
        w->first = w->last;
    return 1;
}

/* Inside pith_generate's loop, seen from its callback. */
static void generate_is_quiet(void)
{
    static const char *const stops[] = {"never to be seen", "nor this", NULL};
    for (int i = 0; i < 3; i++) {
        struct loop l;
        if (loop_open(&l, &tinies[i])) {
            struct watch w = {0};
            struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
            struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
            struct pith_error err;
            p.prompt = "w270";
            p.n_max = 100;
            p.ignore_eog = 1;
            p.stop = stops;
            p.sampler = l.sampler;
            p.on_text = watch_text;
            p.ctx = &w;
            CHECK_MSG(pith_generate(l.s, &p, &r, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(r.n_generated == 100 && w.n > 20, "%d tokens, %d pieces of text",
                      r.n_generated, w.n);
            CHECK_MSG(w.first.hook == w.last.hook && w.first.mallocs == w.last.mallocs,
                      "%s: %ld allocations, %ld mallocs inside the loop", tiny_name(&tinies[i]),
                      w.last.hook - w.first.hook, w.last.mallocs - w.first.mallocs);
        }
        loop_close(&l);
    }
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(llama_survives);
    TEST(experts_survive);
    TEST(windows_survive);
    TEST(embeddings_survive);
    TEST(state_spaces_survive);
    TEST(hybrids_survive);
    TEST(rwkv_survives);
    TEST(decode_is_quiet);
    TEST(sessions_are_quiet);
    TEST(generate_is_quiet);
    return test_end();
}
