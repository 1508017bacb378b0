/* test_diffuse.c -- texts of models that fill in masks are those of a loop written down anew here,
 * which looks at all logits and sorts; for each measure, shape of blocks and number of steps, with
 * logits of the same place and of the one before. What ends a text, and what is refused. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "hook.h"
#include "small_model.h"

enum { N_VOCAB = 130, N_CTX = 128, MASK = 7, N_PROMPT = 9, TEXT = 4096 };

static const char *const with_mask[] = {"tokenizer.ggml.mask_token_id=int:7", NULL};
static int32_t prompt[N_PROMPT];

/* All logits are `times` what they were. */
static void scale_logits(const char *path, float times)
{
    struct pith_error err;
    struct gguf *g = gguf_open(path, &err);
    const struct gguf_tensor *t = g ? gguf_tensor_find(g, slice_of("output_norm.weight")) : NULL;
    FILE *f = t ? fopen(path, "r+b") : NULL;
    REQUIRE(f && t->type == DT_F32, "no output_norm.weight in %s", path);
    const uint8_t *data = gguf_tensor_data(g, t);
    CHECK(!fseek(f, data - gguf_part(g, 0)->p, SEEK_SET));
    for (uint64_t i = 0; i < t->bytes / sizeof(float); i++) {
        float v;
        memcpy(&v, data + i * sizeof v, sizeof v);
        v *= times;
        CHECK(fwrite(&v, sizeof v, 1, f) == 1);
    }
    CHECK(!fclose(f));
    gguf_close(g);
}

static float sharpness = 1;

static pith_model *model_with(const char *arch, const char *const *overrides, int32_t n_outputs)
{
    char path[64];
    struct pith_error err;
    struct pith_synth_params p = small_params(arch, N_VOCAB);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, "/tmp/pith-diffuse-%d.gguf", (int)getpid());
    p.seed = 11;
    mp.n_threads = 1;
    mp.n_batch = N_CTX;
    mp.n_outputs = n_outputs;
    mp.overrides = overrides;
    pith_status st = pith_synth(path, &p, &err);
    if (st == PITH_OK && sharpness != 1)
        scale_logits(path, sharpness);
    pith_model *m = st == PITH_OK ? pith_model_open(path, &mp, &err) : NULL;
    CHECK_MSG(m, "%s: %s", arch, err.msg);
    unlink(path);
    return m;
}

static pith_model *model(const char *arch, const char *const *overrides)
{
    return model_with(arch, overrides, N_CTX);
}

static pith_session *open_session(pith_model *m)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    sp.n_ctx = N_CTX;
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

/* ---------------------------------------------------------------- the loop, anew */

struct guess {
    int at, id;
    double sure;
};

static int by_sure(const void *a, const void *b)
{
    const struct guess *x = a, *y = b;
    return x->sure != y->sure ? (x->sure < y->sure ? 1 : -1) : x->at - y->at;
}

/* The best token that is no mask, and how sure of it. */
static struct guess guess(const float *row, int at, pith_surest how)
{
    struct guess g = {.at = at, .id = -1};
    double sum = 0, best = 0, next = 0, neg = 0;
    for (int i = 0; i < N_VOCAB; i++)
        sum += i == MASK ? 0 : exp((double)row[i]);
    for (int i = 0; i < N_VOCAB; i++) {
        double p = i == MASK ? 0 : exp((double)row[i]) / sum;
        neg += p > 0 ? p * log(p) : 0;
        if (p > best) {
            next = best;
            best = p;
            g.id = i;
        } else if (p > next) {
            next = p;
        }
    }
    g.sure = how == PITH_SUREST_MARGIN ? best - next : how == PITH_SUREST_ENTROPY ? neg : best;
    return g;
}

static void expected(pith_session *s, int shift, pith_surest how, int n_text, int n_block,
                     int n_steps, int32_t *out)
{
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    int32_t x[N_CTX];
    uint8_t want[N_CTX];
    int n = N_PROMPT + n_text, n_blocks = (n_text + n_block - 1) / n_block;
    for (int i = 0; i < n; i++)
        x[i] = i < N_PROMPT ? prompt[i] : MASK;
    memset(want, 0, sizeof want);
    memset(want + N_PROMPT - 1, 1, (size_t)n_text + 1);
    b.n = n;
    b.token = x;
    b.want = want;
    for (int k = 0; k < n_blocks; k++) {
        int from = N_PROMPT + k * n_block, to = from + n_block < n ? from + n_block : n;
        int steps = n_steps * (k + 1) / n_blocks - n_steps * k / n_blocks, left = to - from;
        steps = steps < left ? steps : left;
        int each = left / steps, more = left % steps;
        for (int i = 0; i < steps; i++) {
            struct guess g[N_CTX];
            int n_masks = 0;
            CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
            for (int at = from; at < to; at++)
                if (x[at] == MASK)
                    g[n_masks++] = guess(pith_logits(s, at - shift - N_PROMPT + 1), at, how);
            qsort(g, (size_t)n_masks, sizeof *g, by_sure);
            for (int j = 0; j < each + (i < more); j++)
                x[g[j].at] = g[j].id;
        }
    }
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    memcpy(out, x + N_PROMPT, (size_t)n_text * sizeof *out);
}

static void text_of(pith_model *m, const int32_t *ids, int n, char *out)
{
    pith_stream *t = pith_stream_open(m, NULL);
    size_t at = 0, more;
    pith_stream_continue(t);
    for (int i = 0; i <= n; i++) {
        const char *piece = pith_stream_put(t, i < n ? ids[i] : -1, &more);
        memcpy(out + at, piece, more);
        at += more;
    }
    out[at] = 0;
    pith_stream_close(t);
}

/* ---------------------------------------------------------------- comparing */

static struct pith_generate_params params(char *text)
{
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    p.tokens = prompt;
    p.n_tokens = N_PROMPT;
    p.ignore_eog = 1;
    p.text = text;
    p.text_cap = TEXT;
    return p;
}

static void compare(const char *arch, const char *const *overrides, int shift)
{
    static const struct {
        pith_surest how;
        int n_text, n_block, n_steps;
    } c[] = {{PITH_SUREST_PROBABILITY, 24, 8, 24}, {PITH_SUREST_PROBABILITY, 24, 8, 3},
             {PITH_SUREST_PROBABILITY, 30, 8, 13}, {PITH_SUREST_MARGIN, 30, 8, 13},
             {PITH_SUREST_ENTROPY, 30, 8, 13},     {PITH_SUREST_PROBABILITY, 40, 40, 17},
             {PITH_SUREST_PROBABILITY, 1, 1, 1},   {PITH_SUREST_ENTROPY, 40, 64, 40}};
    pith_model *m = model(arch, overrides);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s, "no session");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct pith_error err;
        char got[TEXT], want[TEXT];
        int32_t ids[N_CTX];
        struct pith_generate_params p = params(got);
        struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
        expected(s, shift, c[i].how, c[i].n_text, c[i].n_block, c[i].n_steps, ids);
        text_of(m, ids, c[i].n_text, want);
        p.n_max = c[i].n_text;
        p.n_block = c[i].n_block;
        p.n_steps = c[i].n_steps;
        p.surest = c[i].how;
        CHECK_MSG(pith_generate(s, &p, &r, &err) == PITH_OK, "%s: %s", arch, err.msg);
        CHECK_MSG(!strcmp(got, want) && r.n_generated == c[i].n_text &&
                      r.stop == PITH_STOP_LENGTH && r.n_prompt == N_PROMPT,
                  "%s, case %zu: \"%s\", not \"%s\"", arch, i, got, want);
        CHECK(pith_length(s, 0) == 0);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static void test_same_place(void)
{
    static const char *const unshifted[] = {"tokenizer.ggml.mask_token_id=int:7",
                                            "diffusion.shift_logits=bool:false", NULL};
    compare("llada", with_mask, 0);
    compare("llada-moe", with_mask, 0);
    compare("dream", unshifted, 0);
}

static void test_place_before(void)
{
    static const char *const shifted[] = {"tokenizer.ggml.mask_token_id=int:7",
                                          "diffusion.shift_logits=bool:true", NULL};
    compare("dream", with_mask, 1);
    compare("rnd1", with_mask, 1);
    compare("llada", shifted, 1);
}

/* ---------------------------------------------------------------- sampled, streamed, ended */

struct pieces {
    int n, most;
    size_t bytes;
};

static int on_text(void *ctx, const char *text, size_t n)
{
    struct pieces *w = ctx;
    (void)text;
    w->bytes += n;
    return ++w->n < w->most;
}

static void test_sampled(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s, "no session");
    char text[4][TEXT];
    for (int i = 0; i < 4; i++) { /* seeds 1 1 2, and what stays by chance */
        struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
        sp.temperature = i < 3 ? 1 : 0;
        sp.seed = i < 2 ? 1 : 2;
        pith_sampler *sampler = pith_sampler_open(N_VOCAB, &sp, &err);
        struct pith_generate_params p = params(text[i]);
        struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
        p.sampler = sampler;
        p.n_max = 32;
        p.surest = i < 3 ? PITH_SUREST_PROBABILITY : PITH_SUREST_RANDOM;
        CHECK_MSG(pith_generate(s, &p, &r, &err) == PITH_OK && r.n_generated == 32, "%s", err.msg);
        pith_sampler_close(sampler);
    }
    CHECK(!strcmp(text[0], text[1]) && strcmp(text[0], text[2]) && strcmp(text[2], text[3]));
    pith_session_close(s);
    pith_model_close(m);
}

static void test_ends(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s, "no session");
    char text[TEXT], cut[TEXT];
    struct pieces w = {.most = 1000};
    struct pith_generate_params p = params(text);
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    p.n_max = 48;
    p.n_block = 16;
    p.on_text = on_text;
    p.ctx = &w;
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && w.bytes == strlen(text) &&
          r.n_bytes == w.bytes);
    char third[8] = {0}; /* something that stands in it */
    memcpy(third, text + strlen(text) / 2, 4);
    const char *stop[] = {third, NULL};
    p.stop = stop;
    p.text = cut;
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.stop == PITH_STOP_STRING);
    char *at = strstr(text, third);
    CHECK(at && strlen(cut) == (size_t)(at - text) && !memcmp(cut, text, strlen(cut)));
    p.stop = NULL;
    w = (struct pieces){.most = 3};
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.stop == PITH_STOP_CALLBACK && w.n == 3);
    w.most = 1000;
    pith_cancel(s);
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.stop == PITH_STOP_CANCELLED &&
          r.n_generated == 0 && pith_length(s, 0) == 0);
    pith_cancel_reset(s);
    p.n_max = -2;
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.stop == PITH_STOP_CONTEXT &&
          r.n_generated == N_CTX - N_PROMPT);
    p.n_max = -1;
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.n_generated == N_CTX - N_PROMPT);
    pith_session_close(s);
    pith_model_close(m);
}

/* What the model writes most often as the end token: the text is what comes before it, and no block
 * behind that is computed. */
static void test_end_token(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask);
    pith_session *s = m ? open_session(m) : NULL;
    REQUIRE(s, "no session");
    int32_t ids[N_CTX];
    expected(s, 0, PITH_SUREST_PROBABILITY, 32, 8, 32, ids);
    pith_session_close(s);
    pith_model_close(m);
    int first = 0;
    for (; ids[first] != ids[20]; first++)
        ;
    char end[64], got[TEXT], want[TEXT];
    snprintf(end, sizeof end, "tokenizer.ggml.eos_token_id=int:%d", ids[20]);
    const char *const keys[] = {"tokenizer.ggml.mask_token_id=int:7", end, NULL};
    m = model("llada", keys);
    s = m ? open_session(m) : NULL;
    REQUIRE(s, "no session");
    struct pith_generate_params p = params(got);
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    p.ignore_eog = 0;
    p.n_max = 32;
    p.n_block = 8;
    text_of(m, ids, first, want);
    CHECK(pith_generate(s, &p, &r, &err) == PITH_OK && r.stop == PITH_STOP_EOG);
    CHECK_MSG(r.n_generated == first && !strcmp(got, want), "%d, not %d: \"%s\", not \"%s\"",
              r.n_generated, first, got, want);
    pith_session_close(s);
    pith_model_close(m);
}

/* How the host rounds its own sums chooses no token. Logits are so far apart that the best have all
 * of the probability, and masks are equally sure but for terms that vanish when they are rounded to
 * nearest. */
static void test_rounding(void)
{
    struct pith_error err;
    static const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    char text[2][TEXT];
    for (float times = 16; times <= 4096; times *= 4) {
        sharpness = times;
        pith_model *m = model("llada", with_mask);
        sharpness = 1;
        pith_session *s = m ? open_session(m) : NULL;
        REQUIRE(s, "no session");
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            struct pith_generate_params p = params(text[i > 0]);
            struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
            p.n_max = p.n_block = 40;
            p.n_steps = 13;
            p.surest = PITH_SUREST_ENTROPY;
            fesetround(modes[i]);
            pith_status st = pith_generate(s, &p, &r, &err);
            CHECK_MSG(fegetround() == modes[i], "the host's rounding is another");
            fesetround(FE_TONEAREST);
            CHECK_MSG(st == PITH_OK, "%s", err.msg);
            CHECK_MSG(!i || !strcmp(text[0], text[1]), "times %g, rounding %d: \"%s\", not \"%s\"",
                      (double)times, modes[i], text[1], text[0]);
        }
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- a step at a time */

static struct pith_fill_params fill_params(pith_sampler *sampler)
{
    struct pith_fill_params p = PITH_FILL_PARAMS_INIT;
    p.tokens = prompt;
    p.n_tokens = N_PROMPT;
    p.n_text = 30;
    p.n_block = 8;
    p.n_steps = 13;
    p.sampler = sampler;
    return p;
}

/* Two texts that take turns with one sequence are what each is alone; a step that is cancelled is
 * done again. */
static void test_steps(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask);
    pith_session *s = m ? open_session(m) : NULL;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *sampler = pith_sampler_open(N_VOCAB, &sp, &err);
    REQUIRE(s && sampler, "no session");
    struct pith_fill_params p = fill_params(sampler);
    int32_t want[2][N_CTX], got[2][N_CTX], n_got[2] = {0}, n_blocks[2] = {0};
    expected(s, 0, PITH_SUREST_PROBABILITY, 30, 8, 13, want[0]);
    expected(s, 0, PITH_SUREST_MARGIN, 17, 17, 5, want[1]);
    pith_fill *f[2] = {pith_fill_open(s, &p, &err)};
    p.surest = PITH_SUREST_MARGIN;
    p.n_text = p.n_block = 17;
    p.n_steps = 5;
    f[1] = pith_fill_open(s, &p, &err);
    REQUIRE(f[0] && f[1], "%s", err.msg);
    CHECK(pith_fill_left(f[0]) == 13 && pith_fill_left(f[1]) == 5 && pith_fill_bytes(f[0]) > 0);
    for (int turn = 0; pith_fill_left(f[0]) || pith_fill_left(f[1]); turn++) {
        int i = turn % 2, left = pith_fill_left(f[i]);
        const int32_t *ids = NULL;
        int32_t n = 0;
        if (!left)
            continue;
        pith_cancel(s);
        CHECK(pith_fill_step(f[i], &ids, &n, &err) == PITH_CANCELLED && !n &&
              pith_fill_left(f[i]) == left);
        pith_cancel_reset(s);
        CHECK_MSG(pith_fill_step(f[i], &ids, &n, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_fill_left(f[i]) == left - 1 && pith_length(s, 0) == 0);
        for (int32_t k = 0; k < n; k++)
            got[i][n_got[i]++] = ids[k];
        n_blocks[i] += n > 0;
    }
    CHECK(n_got[0] == 30 && n_blocks[0] == 4 && n_got[1] == 17 && n_blocks[1] == 1);
    CHECK(!memcmp(got[0], want[0], 30 * sizeof **want) &&
          !memcmp(got[1], want[1], 17 * sizeof **want));
    const int32_t *ids;
    int32_t n = 1;
    CHECK(pith_fill_step(f[0], &ids, &n, &err) == PITH_STATE && strstr(err.msg, "complete"));
    pith_fill_close(f[0]);
    pith_fill_close(f[1]);
    pith_fill_close(NULL);
    pith_sampler_close(sampler);
    pith_session_close(s);
    pith_model_close(m);
}

/* The n-th block that is asked for is refused, for every n: a text is not begun, or a step fails,
 * is done again and makes what it would have made. Nothing stays behind. */
static void test_steps_without_memory(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask);
    pith_session *s = m ? open_session(m) : NULL;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    int32_t want[N_CTX], got[N_CTX];
    REQUIRE(s, "no session");
    expected(s, 0, PITH_SUREST_PROBABILITY, 30, 8, 13, want);
    long n_refused = 1;
    for (long i = 0; n_refused; i++) {
        pith_sampler *sampler = pith_sampler_open(N_VOCAB, &sp, &err);
        struct pith_fill_params p = fill_params(sampler);
        long blocks = atomic_load(&hook.blocks);
        int n_got = 0, n_failed = 0;
        hook_refuse(i, 0);
        pith_fill *f = pith_fill_open(s, &p, &err);
        CHECK(f || err.code == PITH_NOMEM);
        CHECK(f || atomic_load(&hook.blocks) == blocks);
        while (f && pith_fill_left(f) && n_failed < 2) {
            const int32_t *ids;
            int32_t n;
            pith_status st = pith_fill_step(f, &ids, &n, &err);
            CHECK_MSG(st == PITH_OK || (st == PITH_NOMEM && !n), "%s", err.msg);
            n_failed += st != PITH_OK;
            for (int32_t k = 0; k < n; k++)
                got[n_got++] = ids[k];
        }
        n_refused = hook_grant();
        CHECK(n_failed <= n_refused);
        CHECK(!f || (n_got == 30 && !memcmp(got, want, 30 * sizeof *want)));
        pith_fill_close(f);
        pith_sampler_close(sampler);
    }
    pith_session_close(s);
    pith_model_close(m);
    check_nothing_held("texts");
}

static void test_steps_refused(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask), *bare = model("llada", NULL),
               *causal = model("llama", with_mask);
    pith_session *s = m ? open_session(m) : NULL, *none = bare ? open_session(bare) : NULL,
                 *other = causal ? open_session(causal) : NULL;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *sampler = pith_sampler_open(N_VOCAB, &sp, &err),
                 *less = pith_sampler_open(N_VOCAB - 1, &sp, &err);
    REQUIRE(s && none && other && sampler && less, "no session");
    struct pith_fill_params p = fill_params(sampler);
#define NO_FILL(session, change, status, words)                                                    \
    p = fill_params(sampler);                                                                      \
    change;                                                                                        \
    CHECK_MSG(!pith_fill_open(session, &p, &err) && err.code == (status) &&                        \
                  strstr(err.msg, words),                                                          \
              "%s", err.msg)
    NO_FILL(none, , PITH_MISSING, "mask_token_id");
    NO_FILL(other, , PITH_STATE, "masks");
    NO_FILL(NULL, , PITH_RANGE, "NULL");
    NO_FILL(s, p.tokens = NULL, PITH_RANGE, "tokens");
    NO_FILL(s, p.n_tokens = 0, PITH_RANGE, "0 tokens");
    NO_FILL(s, p.n_text = 0, PITH_RANGE, "0 to make");
    NO_FILL(s, p.n_text = N_CTX, PITH_RANGE, "n_ctx = 128");
    NO_FILL(s, p.n_text = INT32_MAX, PITH_RANGE, "n_ctx = 128");
    NO_FILL(s, p.n_block = -1, PITH_RANGE, "n_block is -1");
    NO_FILL(s, p.n_steps = 3, PITH_RANGE, "3 steps for 4 blocks");
    NO_FILL(s, p.sampler = NULL, PITH_RANGE, "sampler");
    NO_FILL(s, p.sampler = less, PITH_RANGE, "129 tokens");
    NO_FILL(s, p.size = 1, PITH_RANGE, "fill params");
    const int32_t *ids;
    int32_t n;
    p = fill_params(sampler);
    p.seq = 1;
    pith_fill *f = pith_fill_open(s, &p, &err);
    CHECK(f && pith_fill_step(f, &ids, &n, &err) == PITH_RANGE && strstr(err.msg, "sequence 1"));
    CHECK(pith_fill_step(NULL, &ids, &n, &err) == PITH_RANGE &&
          pith_fill_step(f, NULL, &n, &err) == PITH_RANGE);
    pith_fill_close(f);
    pith_sampler_close(sampler);
    pith_sampler_close(less);
    pith_session_close(s);
    pith_session_close(none);
    pith_session_close(other);
    pith_model_close(m);
    pith_model_close(bare);
    pith_model_close(causal);
}

/* ---------------------------------------------------------------- refused */

static void test_refused(void)
{
    struct pith_error err;
    pith_model *m = model("llada", with_mask), *bare = model("llada", NULL);
    pith_session *s = m ? open_session(m) : NULL, *none = bare ? open_session(bare) : NULL;
    pith_model *fewer = model_with("llada", with_mask, 16);
    pith_session *few = fewer ? open_session(fewer) : NULL;
    REQUIRE(s && none && few, "no session");
    char text[TEXT];
    struct pith_generate_params good = params(text), p = good, small = good;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    good.n_max = 32;
#define REFUSED(code, words)                                                                       \
    CHECK_MSG(pith_generate(s, &p, &r, &err) == (code) && strstr(err.msg, words), "%s", err.msg);  \
    p = good
    p = good;
    small.n_max = 32, small.n_block = 17;
    CHECK(pith_generate(few, &small, &r, &err) == PITH_RANGE && strstr(err.msg, "wanted 1..16"));
    p.n_block = -1;
    REFUSED(PITH_RANGE, "n_block is -1");
    p.n_block = 8, p.n_steps = 3;
    REFUSED(PITH_RANGE, "3 steps for 4 blocks");
    p.n_steps = -1;
    REFUSED(PITH_RANGE, "n_steps -1");
    p.surest = (pith_surest)9;
    REFUSED(PITH_RANGE, "surest 9");
    p.context_shift = 1;
    REFUSED(PITH_UNSUPPORTED, "");
    p.n_max = N_CTX - N_PROMPT + 1;
    REFUSED(PITH_RANGE, "n_ctx = 128");
    p.seq = 1;
    REFUSED(PITH_RANGE, "sequence 1");
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *sampler = pith_sampler_open(N_VOCAB, &sp, &err);
    pith_grammar *g = pith_grammar_open(m, PITH_GRAMMAR_JSON, NULL, 0, NULL, &err);
    CHECK(g && pith_sampler_grammar(sampler, g, &err) == PITH_OK);
    p.sampler = sampler;
    REFUSED(PITH_UNSUPPORTED, "no grammar");
    CHECK(pith_generate(none, &good, &r, &err) == PITH_MISSING &&
          strstr(err.msg, "mask_token_id") && pith_token_of(bare, PITH_TOKEN_MASK) == -1 &&
          pith_token_of(m, PITH_TOKEN_MASK) == MASK);
    pith_sampler_close(sampler);
    pith_grammar_close(g);
    pith_session_close(s);
    pith_session_close(none);
    pith_session_close(few);
    pith_model_close(fewer);
    pith_model_close(m);
    pith_model_close(bare);
}

int main(void)
{
    hook_install();
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 10 + 5 * i;
    TEST(test_same_place);
    TEST(test_place_before);
    TEST(test_sampled);
    TEST(test_ends);
    TEST(test_end_token);
    TEST(test_rounding);
    TEST(test_steps);
    TEST(test_steps_without_memory);
    TEST(test_steps_refused);
    TEST(test_refused);
    return test_end();
}
