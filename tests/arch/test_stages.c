/* test_stages.c -- models opened in parts (pith_model_params.first_visit), the carry handed over
 * through memory of the host.
 *
 *   every architecture   cut before each visit, and in three: outputs have the bits of the whole
 *                        model, a prompt in pieces and token by token, on two threads, by the plain
 *                        C reference and on devices whose memory the host cannot touch; where no
 *                        cut can be, the error says which visits belong together
 *   a part               has its own weights, states and cache; tied embeddings in both
 *   beside tokens        embedding rows, trees, edits, snapshots, taps, adapters' files, the prefix
 *                        store
 *   refused              visits that are not there, rows without the carry, pooling */
#include "encoder.h"
#include "robust.h"

#include <math.h>

#include "run/session/session.h"

enum { N_ROWS = 22, N_VOCAB = 300, MOST = 4, WIDE = 8192 };

static struct tiny tiny_of(const char *arch, int experts)
{
    return tiny_with(arch, experts, 6, N_VOCAB);
}

static int32_t token(int i)
{
    return 3 + (i * 37 + i * i) % (N_VOCAB - 3);
}

/* ---------------------------------------------------------------- a chain of stages */

struct chain {
    pith_model *m[MOST];
    pith_session *s[MOST];
    struct pith_model_info info[MOST];
    int n;
};

struct way {
    const char *name, *far, *layers;
    int piece, n_threads, reference;
    const char *cache;
};

static const struct way whole = {.name = "whole", .piece = N_ROWS, .n_threads = 1, .cache = "f32"};
static const struct way ways[] = {
    {.name = "in pieces", .piece = 7, .n_threads = 1, .cache = "f32"},
    {.name = "token by token, two threads", .piece = 1, .n_threads = 2, .cache = "f32"},
    {.name = "reference", .piece = 9, .n_threads = 1, .reference = 1, .cache = "f32"},
    {.name = "on a far device",
     .piece = 5,
     .n_threads = 1,
     .far = "1",
     .layers = "1,0,1",
     .cache = "f32"}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void close_chain(struct chain *c)
{
    for (int k = 0; k < c->n; k++) {
        pith_session_close(c->s[k]);
        pith_model_close(c->m[k]);
    }
    c->n = 0;
}

static const struct pith_session_params session_init = PITH_SESSION_PARAMS_INIT;

/* Stages that begin at 0 and at each of `cuts`. */
static pith_status open_chain(struct chain *c, const char *path, const struct way *w,
                              const int32_t *cuts, int n_cuts,
                              const struct pith_session_params *how, struct pith_error *err)
{
    *c = (struct chain){.n = 0};
    *err = (struct pith_error){PITH_OK, ""};
    if (w->far) {
        setenv("PITH_FAR_DEVICES", w->far, 1);
        setenv("PITH_LAYER_DEVICES", w->layers, 1);
    }
    for (int k = 0; k <= n_cuts && err->code == PITH_OK; k++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_session_params sp = how ? *how : session_init;
        mp.n_threads = w->n_threads;
        mp.reference = w->reference;
        mp.n_batch = 32;
        mp.first_visit = k ? cuts[k - 1] : 0;
        mp.n_visits = k < n_cuts ? cuts[k] - mp.first_visit : 0;
        sp.n_ctx = 64;
        sp.n_seq = 2;
        sp.cache_type_k = sp.cache_type_v = w->cache;
        c->m[k] = pith_model_open(path, &mp, err);
        c->s[k] = c->m[k] ? pith_session_open(c->m[k], &sp, err) : NULL;
        c->n = k + 1;
        c->info[k].size = sizeof c->info[k];
        if (c->m[k])
            pith_model_get_info(c->m[k], &c->info[k], NULL);
    }
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    for (int k = 0; k < c->n && err->code == PITH_OK; k++)
        for (int32_t q = 0; q < 2 && err->code == PITH_OK; q++)
            encoder_reads(c->s[k], q, err);
    if (err->code != PITH_OK)
        close_chain(c);
    return err->code;
}

/* Runs a batch through all stages; the last one has its outputs. */
static pith_status run_chain(const struct chain *c, const struct pith_batch *b,
                             struct pith_error *err)
{
    static float carry[N_ROWS * WIDE];
    struct pith_batch now = *b;
    for (int k = 0; k < c->n; k++) {
        pith_status st = pith_step(c->s[k], &now, err);
        int64_t cols = c->info[k].carry_out;
        if (st != PITH_OK || k == c->n - 1)
            return st;
        int ok = cols > 0 && cols <= WIDE && cols == c->info[k + 1].carry_in &&
                 pith_n_outputs(c->s[k]) == b->n && !pith_logits(c->s[k], 0);
        CHECK_MSG(ok, "stage %d gives %d rows of %lld numbers", k, pith_n_outputs(c->s[k]),
                  (long long)cols);
        if (!ok)
            return PITH_INTERNAL;
        for (int i = 0; i < b->n; i++)
            memcpy(carry + i * cols, pith_embedding(c->s[k], i), (size_t)cols * sizeof *carry);
        now.embd = carry;
    }
    return PITH_OK;
}

/* All rows in pieces, with output of each. Its width; 0 after a failed check. */
static int64_t run_rows(const struct chain *c, const struct way *w, float *out)
{
    static const uint8_t all[N_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const pith_session *last = c->s[c->n - 1];
    struct pith_error err = {PITH_OK, ""};
    int32_t ids[N_ROWS];
    int piece = c->info[0].causal ? w->piece : N_ROWS;
    int64_t cols = last->n_cols;
    for (int i = 0; i < N_ROWS; i++)
        ids[i] = token(i);
    for (int at = 0; at < N_ROWS; at += piece) {
        struct pith_batch b = PITH_BATCH_INIT;
        b.n = N_ROWS - at < piece ? N_ROWS - at : piece;
        b.token = ids + at;
        b.want = all;
        if (run_chain(c, &b, &err) != PITH_OK) {
            CHECK_MSG(0, "%s: %s", w->name, err.msg);
            return 0;
        }
        for (int i = 0; i < pith_n_outputs(last); i++) {
            const float *row = pith_logits(last, i);
            row = row ? row : pith_embedding(last, i);
            memcpy(out + (at + i) * cols, row, (size_t)cols * sizeof *out);
        }
    }
    return cols;
}

/* ---------------------------------------------------------------- every architecture */

static float want[N_ROWS * WIDE], got[N_ROWS * WIDE];

static int n_refused, n_run;

/* 1: the cut can be. */
static int check_cuts(const char *path, const struct tiny *t, const struct way *w,
                      const int32_t *cuts, int n)
{
    struct chain c;
    struct pith_error err;
    pith_status st = open_chain(&c, path, w, cuts, n, NULL, &err);
    if (st == PITH_UNSUPPORTED) {
        CHECK_MSG(strstr(err.msg, t->arch) && strstr(err.msg, "keep their rows together"), "%s",
                  err.msg);
        n_refused++;
        return 0;
    }
    CHECK_MSG(st == PITH_OK, "%s, cut at %d, %s: %s", t->arch, cuts[0], w->name, err.msg);
    if (st != PITH_OK)
        return 0;
    int64_t cols = run_rows(&c, w, got);
    CHECK_MSG(cols && !memcmp(want, got, (size_t)(N_ROWS * cols) * sizeof *want),
              "%s, %d experts, %d stages, cut at %d, %s: other bits", t->arch, t->n_expert, n + 1,
              cuts[0], w->name);
    close_chain(&c);
    n_run++;
    return 1;
}

static void stages_of(const struct tiny *t, const char *path)
{
    static int turn;
    struct chain c;
    struct pith_error err;
    int full = test_scale() >= 10, cut_somewhere = 0;
    if (open_chain(&c, path, &whole, NULL, 0, NULL, &err) != PITH_OK) {
        CHECK_MSG(0, "%s: %s", t->arch, err.msg);
        return;
    }
    int32_t n = c.info[0].n_visits;
    int64_t cols = run_rows(&c, &whole, want);
    REQUIRE(cols > 0 && cols <= WIDE && n >= 2, "%s: %d visits", t->arch, n);
    close_chain(&c);
    for (int32_t v = 1; v < n; v += full ? 1 : n / 3 + 1)
        for (int i = 0; i < (full ? N_WAYS : 1); i++)
            cut_somewhere |= check_cuts(path, t, &ways[full ? i : turn++ % N_WAYS], &v, 1);
    CHECK_MSG(cut_somewhere, "%s: it can be cut nowhere", t->arch);
    int32_t three[] = {1, n - 1};
    if (n > 2 && (full || turn % 2))
        check_cuts(path, t, &ways[turn++ % N_WAYS], three, 2);
}

static void every_architecture(void)
{
    int i = 0;
    for (const char *const *a = pith_arch_names(); *a; a++, i++)
        for (int experts = 0; experts < 2; experts++) {
            if (test_scale() < 10 && experts != i % 2)
                continue;
            struct tiny t = tiny_of(*a, experts);
            const char *path = tiny_write(&t, 7);
            if (path)
                stages_of(&t, path);
            if (path)
                unlink(path);
        }
    printf("      %d cuts, %d where visits keep rows together\n", n_run, n_refused);
}

/* ---------------------------------------------------------------- what a part has */

static const char *write_model(const char *arch, int tied)
{
    struct tiny t = tiny_of(arch, 0);
    t.tied = tied;
    return tiny_write(&t, 11);
}

/* Each weight is in one part; an embedding that is the output matrix too in both that read it. */
static void own_weights(void)
{
    static const int32_t cuts[] = {2, 5};
    for (int tied = 0; tied < 2; tied++) {
        const char *path = write_model("llama", tied);
        struct pith_error err;
        struct chain one, c;
        REQUIRE(path && open_chain(&one, path, &whole, NULL, 0, NULL, &err) == PITH_OK &&
                    open_chain(&c, path, &whole, cuts, 2, NULL, &err) == PITH_OK,
                "%s", err.msg);
        uint64_t n = 0, all = one.info[0].n_params + (tied ? N_VOCAB * 32 : 0);
        static const int32_t n_states[] = {2, 3, 1};
        for (int k = 0; k < 3; k++) {
            n += c.info[k].n_params;
            CHECK_MSG(c.s[k]->n_states == n_states[k] && c.info[k].n_visits == 6, "part %d has %d",
                      k, c.s[k]->n_states);
            CHECK(c.info[k].carry_in == (k ? 32 : 0) && c.info[k].carry_out == (k < 2 ? 32 : 0));
            CHECK(c.info[k].logits == (k == 2) && pith_max_outputs(c.s[k]) == 32);
        }
        CHECK_MSG(n == all, "the parts have %llu weights, wanted %llu", (unsigned long long)n,
                  (unsigned long long)all);
        close_chain(&c);
        close_chain(&one);
        unlink(path);
    }
}

/* ---------------------------------------------------------------- beside tokens */

static void same_logits(const struct chain *a, const struct chain *b, int n, const char *what)
{
    const pith_session *x = a->s[a->n - 1], *y = b->s[b->n - 1];
    CHECK_MSG(pith_n_outputs(x) == n && pith_n_outputs(y) == n, "%s: %d and %d outputs", what,
              pith_n_outputs(x), pith_n_outputs(y));
    for (int i = 0; i < n; i++)
        CHECK_MSG(pith_logits(x, i) && pith_logits(y, i) &&
                      !memcmp(pith_logits(x, i), pith_logits(y, i), N_VOCAB * sizeof(float)),
                  "%s: output %d has other bits", what, i);
}

static void both_run(const struct chain *a, const struct chain *b, const struct pith_batch *rows,
                     int n_out, const char *what)
{
    struct pith_error err = {PITH_OK, ""};
    CHECK_MSG(run_chain(a, rows, &err) == PITH_OK && run_chain(b, rows, &err) == PITH_OK, "%s: %s",
              what, err.msg);
    same_logits(a, b, n_out, what);
}

static uint8_t image[2][MOST][1 << 20];

static void edit_all(const struct chain *c, int which)
{
    struct pith_error err;
    size_t n;
    for (int k = 0; k < c->n; k++) {
        pith_status st = which == 0 ? pith_remove(c->s[k], 0, 2, 5, &err) : PITH_OK;
        if (which == 0 && st == PITH_OK)
            st = pith_shift(c->s[k], 0, 5, -1, -3, &err);
        if (which == 1) {
            st = pith_save_memory(c->s[k], 0, image[0][k], sizeof image[0][k], &n, &err);
            if (st == PITH_OK)
                st = pith_truncate(c->s[k], 0, 3, &err);
            if (st == PITH_OK)
                st = pith_load_memory(c->s[k], 0, image[0][k], n, &err);
            if (st == PITH_OK && c->n > 1) /* and not that of another stage */
                CHECK(pith_load_memory(c->s[(k + 1) % c->n], 1, image[0][k], n, &err) ==
                      PITH_STATE);
        }
        if (which == 2)
            st = pith_copy(c->s[k], 1, 0, 0, -1, &err);
        if (which == 3)
            st = pith_accept(c->s[k], 0, 3, &err);
        CHECK_MSG(st == PITH_OK, "edit %d of part %d: %s", which, k, err.msg);
    }
}

static void rows_and_edits(void)
{
    static const int32_t cuts[] = {1, 4}, ids[] = {9, -1, 44, 5, 77, 12, 31, 8, 100, 13};
    static const int32_t parent[] = {-1, 0, 0, 2, 1}, seq[] = {1, 0, 1, 0, 1};
    static const uint8_t both[] = {0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
                         all[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static float embd[10 * 32];
    const char *path = write_model("llama", 0);
    struct chain one, c;
    struct pith_error err;
    for (int i = 0; i < 10 * 32; i++)
        embd[i] = sinf((float)i);
    REQUIRE(path && open_chain(&one, path, &whole, NULL, 0, NULL, &err) == PITH_OK &&
                open_chain(&c, path, &whole, cuts, 2, NULL, &err) == PITH_OK,
            "%s", err.msg);
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 10;
    b.token = ids;
    b.embd = embd;
    b.both = both;
    both_run(&one, &c, &b, 1, "embedding rows among tokens");
    struct pith_batch next = PITH_BATCH_INIT;
    next.n = 5;
    next.token = ids + 2;
    next.want = all;
    for (int which = 0; which < 3; which++) {
        edit_all(&one, which);
        edit_all(&c, which);
        next.seq = which == 2 ? seq : NULL;
        both_run(&one, &c, &next, 5, "after an edit");
    }
    next.seq = NULL;
    next.parent = parent;
    both_run(&one, &c, &next, 5, "a tree");
    edit_all(&one, 3);
    edit_all(&c, 3);
    next.parent = NULL;
    both_run(&one, &c, &next, 5, "after a tree");
    for (int k = 0; k < 3; k++) {
        CHECK(pith_length(c.s[k], 0) == pith_length(one.s[0], 0));
        int32_t kept[64], as[64];
        int64_t n = pith_length(c.s[k], 0);
        CHECK(pith_tokens(c.s[k], 0, kept, 64) == n && pith_tokens(one.s[0], 0, as, 64) == n &&
              !memcmp(kept, as, (size_t)n * sizeof *as));
    }
    close_chain(&c);
    close_chain(&one);
    unlink(path);
}

/* What is handed on tells which slots were chosen, as integers: no logits, and no part of a file.
 */
static void choices_are_saved(void)
{
    static const char *const archs[] = {"deepseek32", "glm-dsa"};
    static const int32_t ids[] = {9, 3, 44, 5, 77, 12, 31, 8, 100, 13};
    for (int i = 0; i < 2; i++)
        for (int32_t cut = 1; cut < 6; cut++) {
            const char *path = write_model(archs[i], 0);
            struct pith_error err = {PITH_OK, ""};
            struct pith_batch b = PITH_BATCH_INIT;
            struct chain c;
            REQUIRE(path && open_chain(&c, path, &whole, &cut, 1, NULL, &err) == PITH_OK, "%s: %s",
                    archs[i], err.msg);
            b.n = 3;
            b.token = ids;
            CHECK_MSG(run_chain(&c, &b, &err) == PITH_OK, "%s: %s", archs[i], err.msg);
            edit_all(&c, 1);
            close_chain(&c);
            unlink(path);
        }
}

static void taps_and_prefixes(void)
{
    static const char *const taps[] = {"visit.3", NULL}, *const others[] = {"visit.2", NULL};
    static const int32_t cut = 3, ids[] = {9, 3, 44, 5, 77, 12, 31, 8, 100, 13};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    const char *path = write_model("qwen3", 0);
    struct chain one, c;
    struct pith_error err;
    size_t n_kept = 0;
    sp.taps = taps;
    REQUIRE(path && open_chain(&one, path, &whole, NULL, 0, &sp, &err) == PITH_OK &&
                open_chain(&c, path, &whole, &cut, 1, &sp, &err) == PITH_OK,
            "%s", err.msg);
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 10;
    b.token = ids;
    both_run(&one, &c, &b, 1, "with taps");
    for (int i = 0; i < 10; i++) {
        const float *x = pith_tap(one.s[0], 0, i, &err), *y = pith_tap(c.s[0], 0, i, &err),
                    *z = pith_tap(c.s[1], 0, i, &err);
        CHECK(x && y && z && !memcmp(x, y, 32 * sizeof *x) && !memcmp(x, z, 32 * sizeof *x));
    }
    for (int k = 0; k < 2; k++) /* what a caller feeds anew is the rest */
        CHECK_MSG(pith_reuse(c.s[k], 0, ids, 8, &n_kept, &err) == PITH_OK && n_kept == 7, "%s",
                  err.msg);
    sp.taps = others;
    sp.n_ctx = 32;
    pith_session *s = pith_session_open(c.m[1], &sp, &err);
    CHECK_MSG(!s && err.code == PITH_RANGE && strstr(err.msg, "visit.3 .. visit.6, end"), "%s",
              err.msg);
    sp.taps = (const char *const[]){"end", NULL};
    s = pith_session_open(c.m[0], &sp, &err);
    CHECK_MSG(!s && err.code == PITH_RANGE && strstr(err.msg, "visit.0 .. visit.3\0") &&
                  !strstr(err.msg, "visit.3, end"),
              "%s", err.msg);
    close_chain(&c);
    close_chain(&one);
    unlink(path);
}

/* An adapter of weights of both stages is opened in each, and adds what is of its own. */
static void adapters(void)
{
    static const char *const names[] = {"blk.0.ffn_up.weight", "blk.5.ffn_up.weight"};
    static const int32_t cut = 3, ids[] = {9, 3, 44, 5};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    const char *path = write_model("llama", 0), *lora = tmp_path("lora.gguf");
    struct chain one, c;
    struct pith_error err;
    char name[64];
    float x[2 * 32];
    struct gguf_writer *w = gguf_writer_open(lora, &err);
    REQUIRE(path && w, "%s", err.msg);
    gguf_writer_str(w, "general.type", slice_of("adapter"));
    gguf_writer_str(w, "adapter.type", slice_of("lora"));
    gguf_writer_str(w, "general.architecture", slice_of("llama"));
    for (int i = 0; i < 4; i++) {
        int64_t dims[2] = {i % 2 ? 32 : 2, i % 2 ? 2 : 32};
        snprintf(name, sizeof name, "%s.lora_%c", names[i / 2], i % 2 ? 'b' : 'a');
        gguf_writer_tensor(w, name, DT_F32, 2, dims);
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2 * 32; k++)
            x[k] = cosf((float)(i * 64 + k));
        gguf_writer_data(w, x, sizeof x);
    }
    REQUIRE(gguf_writer_close(w, &err) == PITH_OK, "%s", err.msg);
    sp.n_adapters = 1;
    REQUIRE(open_chain(&one, path, &whole, NULL, 0, &sp, &err) == PITH_OK &&
                open_chain(&c, path, &whole, &cut, 1, &sp, &err) == PITH_OK,
            "%s", err.msg);
    pith_adapter *a[3];
    pith_session *of[] = {one.s[0], c.s[0], c.s[1]};
    pith_model *m[] = {one.m[0], c.m[0], c.m[1]};
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 4;
    b.token = ids;
    both_run(&one, &c, &b, 1, "without");
    memcpy(want, pith_logits(one.s[0], 0), N_VOCAB * sizeof *want);
    for (int i = 0; i < 3; i++) {
        struct pith_adapter_use use = PITH_ADAPTER_USE_INIT;
        use.adapter = a[i] = pith_adapter_open(m[i], lora, &err);
        use.scale = 1;
        CHECK_MSG(a[i] && pith_adapt(of[i], 1, &use, 1, &err) == PITH_OK, "%s", err.msg);
    }
    b.seq = (const int32_t[]){1, 1, 1, 1};
    both_run(&one, &c, &b, 1, "with an adapter");
    CHECK(memcmp(want, pith_logits(one.s[0], 0), N_VOCAB * sizeof *want) != 0);
    for (int i = 0; i < 3; i++)
        pith_adapter_close(a[i]);
    close_chain(&c);
    close_chain(&one);
    unlink(path);
    unlink(lora);
}

/* ---------------------------------------------------------------- refused */

static void refused(void)
{
    static const int32_t bad[][2] = {{-1, 0}, {6, 0}, {0, 7}, {4, 3}, {2, -1}, {1, INT32_MAX}};
    static const int32_t cut = 3, ids[] = {9, 3, 44, 5};
    const char *path = write_model("llama", 0);
    struct pith_error err;
    struct chain c;
    REQUIRE(path, "no model");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.first_visit = bad[i][0];
        mp.n_visits = bad[i][1];
        pith_model *m = pith_model_open(path, &mp, &err);
        CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, "visits 0..5"), "%s", err.msg);
        pith_model_close(m);
    }
    REQUIRE(open_chain(&c, path, &whole, &cut, 1, NULL, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_feed(c.s[1], 0, ids, 4, &err) == PITH_RANGE && strstr(err.msg, "first visit is 3") &&
          strstr(err.msg, "32 numbers"));
    CHECK(pith_length(c.s[1], 0) == 0);
    CHECK(pith_feed(c.s[0], 0, ids, 4, &err) == PITH_OK && pith_n_outputs(c.s[0]) == 4);
    struct pith_generate_params gp = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result gr = {.size = sizeof gr};
    gp.n_max = 2;
    gp.prompt = "ab";
    CHECK_MSG(pith_generate(c.s[0], &gp, &gr, &err) == PITH_STATE && strlen(err.msg) > 8, "%s",
              err.msg);
    int32_t many[40] = {0};
    CHECK(pith_feed(c.s[0], 0, many, 40, &err) == PITH_RANGE && strstr(err.msg, "at most 32"));
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.pooling = PITH_POOL_MEAN;
    pith_session *s = pith_session_open(c.m[0], &sp, &err);
    CHECK_MSG(!s && err.code == PITH_UNSUPPORTED && strstr(err.msg, "ends before the last visit"),
              "%s", err.msg);
    close_chain(&c);
    unlink(path);
}

/* Memory that runs out at any call. */
static void memory_refused(void)
{
    static const int32_t cuts[] = {2, 4};
    const char *path = write_model("llama", 1);
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = PITH_BATCH_INIT;
    static const int32_t ids[] = {9, 3, 44, 5};
    b.n = 4;
    b.token = ids;
    REQUIRE(path, "no model");
    long n = 0, by = test_scale() >= 10 ? 1 : 61;
    for (long i = -1; i < n && test_bad < 5; i += i < 0 ? 1 : by) {
        struct chain c;
        hook_refuse(i, 0);
        pith_status st = open_chain(&c, path, &whole, cuts, 2, NULL, &err);
        if (st == PITH_OK)
            st = run_chain(&c, &b, &err);
        close_chain(&c);
        n = i < 0 ? atomic_load(&hook.asked) : n;
        hook_refuse(-1, 0);
        CHECK_MSG(st == PITH_NOMEM || st == PITH_OK, "allocation %ld: error %d, %s", i, st,
                  err.msg);
        check_nothing_held("stages");
    }
    CHECK(n > 100);
    unlink(path);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(every_architecture);
    TEST(own_weights);
    TEST(rows_and_edits);
    TEST(choices_are_saved);
    TEST(taps_and_prefixes);
    TEST(adapters);
    TEST(refused);
    TEST(memory_refused);
    return test_end();
}
