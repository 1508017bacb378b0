/* test_long.c -- contexts of millions of tokens, by counting: how a step of few rows is cut into
 * work, without the gigabytes it would read; and what becomes of its parts. */
#include "backend/cpu/cpu.h"
#include "base/machine/cpu.h"
#include "graph/ops/attention.h"
#include "graph/step.h"
#include "run/session/session.h"
#include "small_model.h"

enum { CTX = 1 << 21 };

/* Steps of `rows` sequences, of which the first holds n slots and each other `others`: units of the
 * first attention of the plan. */
static int64_t units_of(const struct pith_session *s, int n_threads, int32_t rows, int32_t n,
                        int32_t others, int32_t *parts)
{
    struct exec x = {.plan = &s->role[ROLE_DECODER].plan, .step = s->step, .n_nodes = 1};
    struct step *t = s->step;
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    t->T = t->N = t->R = t->n_tiles = rows;
    for (int32_t r = 0; r < rows; r++) {
        step_put_first(t)[r] = step_put_tile(t)[r] = step_put_seg(t)[r] = step_put_seq(t)[r] = r;
        step_put_lo(t, 0)[r] = 0;
        step_put_hi(t, 0)[r] = r ? others : n;
    }
    step_put_first(t)[rows] = rows;
    x.n_threads = n_threads;
    for (int32_t i = 0; i < p->n_calls; i++) {
        const struct call *c = &p->calls[i];
        if (c->op != OP_ATTN)
            continue;
        struct attn_split split = attn_split(c, &x);
        *parts = split.n_parts;
        CHECK_MSG((int64_t)rows * split.n_parts <= c->dst.cap_rows,
                  "%d parts of %d rows, room for %d", split.n_parts, rows, (int)c->dst.cap_rows);
        return c->impl.units(c, &x);
    }
    return -1;
}

/* However long the context: a decoding row is as many units as there are spans, for each head of K
 * and V. */
static void attention_over_millions(void)
{
    static const int32_t lengths[] = {1,      1024,          1025,    65536,   500000,
                                      524288, 524288 + 1024, 1000000, 1 << 20, CTX};
    struct pith_error err;
    struct pith_synth_params p = small_params("llama", 64);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    p.n_head_kv = 2;
    p.n_ctx = CTX;
    sp.n_ctx = CTX;
    sp.n_seq = 4;
    for (int32_t n_batch = 16; n_batch <= 512; n_batch += 496) {
        pith_model *m = small_model(&p, n_batch, NULL);
        pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s, "%s", m ? err.msg : "no model");
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int32_t rows = 1; rows <= 4; rows++) {
                int32_t parts = 0, spans = (lengths[i] + 1023) / 1024;
                int64_t n = units_of(s, 64, rows, lengths[i], lengths[i], &parts);
                CHECK_MSG(parts == spans && n == (int64_t)rows * 2 * spans,
                          "%d rows that see %d slots: %lld units in %d parts, wanted %d parts",
                          rows, lengths[i], (long long)n, parts, spans);
            }
        s->step->T = s->step->N = s->step->R = s->step->n_tiles = 0;
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* Sequences enough for all threads are units of their own, unless one is so much longer than the
 * others that a thread would have it alone while the rest wait. */
static void one_long_among_short(void)
{
    struct pith_error err;
    struct pith_synth_params p = small_params("llama", 64);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    p.n_head_kv = 2;
    p.n_ctx = sp.n_ctx = 1 << 17;
    sp.n_seq = 8;
    pith_model *m = small_model(&p, 512, NULL);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", m ? err.msg : "no model");
    for (int32_t rows = 4; rows <= 8; rows++) {
        int32_t parts = 0;
        CHECK(units_of(s, 2, rows, 1000, 90, &parts) == 2 * rows && parts == 1);
        CHECK(units_of(s, 2, rows, 8000, 8000, &parts) == 2 * rows && parts == 1);
        CHECK(units_of(s, 2, rows, 20000, 20000, &parts) == 2 * rows * 20 && parts == 20);
        CHECK(units_of(s, 1, rows, 20000, 20000, &parts) ==
                  (rows == 8 ? 2 * rows : 2 * rows * 20) &&
              parts == (rows == 8 ? 1 : 20));
        CHECK(units_of(s, 2, rows, 60000, 90, &parts) == 2 * rows * 59 && parts == 59);
        CHECK(units_of(s, 2, rows, 60000, 3000, &parts) == 2 * rows * 59 && parts == 59);
    }
    s->step->T = s->step->N = s->step->R = s->step->n_tiles = 0;
    pith_session_close(s);
    pith_model_close(m);
}

/* Units of the plan's first attention in a prompt's step of `rows` rows. */
static int64_t units_of_prompt(const struct pith_session *s, int n_threads, int32_t rows)
{
    struct exec x = {.plan = &s->role[ROLE_DECODER].plan,
                     .step = s->step,
                     .n_threads = n_threads,
                     .n_nodes = 1};
    struct step *t = s->step;
    t->T = rows;
    t->N = t->R = 1;
    t->n_tiles = 0;
    step_put_first(t)[0] = 0;
    step_put_first(t)[1] = rows;
    for (int32_t r = 0; r < rows; r++) {
        step_put_seg(t)[r] = 0;
        step_put_lo(t, 0)[r] = 0;
        step_put_hi(t, 0)[r] = r + 1;
        if (r % STEP_TILE == 0)
            step_put_tile(t)[t->n_tiles++] = r;
    }
    for (int32_t i = 0; i < x.plan->n_calls; i++)
        if (x.plan->calls[i].op == OP_ATTN)
            return x.plan->calls[i].impl.units(&x.plan->calls[i], &x);
    return -1;
}

/* Where tiles of a prompt are few for the threads, heads of K and V are divided into those of the
 * queries: as many as there are where tiles are full, fewer of short ones. One thread gains
 * nothing. */
static void prompts_on_many_threads(void)
{
    struct pith_error err;
    struct pith_synth_params p = small_params("llama", 64);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    p.n_embd = 64;
    p.n_head = 8;
    p.n_head_kv = 2;
    p.n_ctx = sp.n_ctx = 1024;
    pith_model *m = small_model(&p, 512, NULL);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", m ? err.msg : "no model");
    CHECK(units_of_prompt(s, 64, 512) == 32 * 2 * 4);
    CHECK(units_of_prompt(s, 64, 500) == 32 * 2 * 4);
    CHECK(units_of_prompt(s, 16, 512) == 32 * 2);
    CHECK(units_of_prompt(s, 17, 512) == 32 * 2 * 2);
    CHECK(units_of_prompt(s, 2, 48) == 3 * 2 * 2);
    CHECK(units_of_prompt(s, 2, 64) == 4 * 2);
    CHECK(units_of_prompt(s, 64, 8) == 2 * 2);
    CHECK(units_of_prompt(s, 64, 3) == 2);
    CHECK(units_of_prompt(s, 1, 17) == 2 * 2);
    CHECK(units_of_prompt(s, 1, 16) == 2);
    s->step->T = s->step->N = s->step->R = s->step->n_tiles = 0;
    pith_session_close(s);
    pith_model_close(m);
}

/* A row whose spans are units of their own, merged by who makes the last, has the bits of the same
 * row at the end of a prompt, where a unit merges its own. */
static void spans_merged_by_the_last(void)
{
    enum { N = 3000, V = 64, ROUNDS = 5 };
    static int32_t token[N];
    struct pith_error err;
    struct pith_synth_params p = small_params("llama", V);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    p.n_embd = 64;
    p.n_head = 8;
    p.n_head_kv = 2;
    p.n_ctx = sp.n_ctx = 4096;
    for (int i = 0; i < N; i++)
        token[i] = i * 7 % V;
    for (int32_t n_threads = 1; n_threads <= 4; n_threads += 3) {
        float want[V];
        int32_t parts = 0;
        pith_model *m = small_model_on(&p, 512, NULL, n_threads);
        pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s, "%s", m ? err.msg : "no model");
        REQUIRE(pith_feed(s, 0, token, N, &err) == PITH_OK, "%s", err.msg);
        memcpy(want, pith_logits(s, 0), sizeof want);
        for (int i = 0; i < ROUNDS; i++) {
            CHECK(pith_truncate(s, 0, N - 1, &err) == PITH_OK);
            REQUIRE(pith_feed(s, 0, token + N - 1, 1, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "%d threads, round %d",
                      n_threads, i);
        }
        CHECK(units_of(s, n_threads, 1, N, N, &parts) == 2 * 3 && parts == 3);
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* Logits that are more than the caches hold are put past them: each row's are those of the row
 * alone. */
static void logits_of_many_rows(void)
{
    enum { ROWS = 80, V = 65552, SOME = 7 }; /* the last panel of 64 rows is not full */
    static const char *const types[] = {"q8_0", "f16", "q8_0"};
    struct pith_error err;
    for (int i = 0; i < (cpu_has(CPU_AVX2) ? 3 : 2); i++) {
        if (i == 2) /* where several tiles go through a panel at once */
            setenv("PITH_CPU", "avx2", 1);
        struct pith_synth_params p = small_params("llama", 64);
        struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
        p.n_vocab = V;
        p.n_embd = 64;
        p.type = types[i];
        sp.n_seq = ROWS;
        sp.n_ctx = ROWS * 64;
        pith_model *m = small_model(&p, ROWS, NULL);
        pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s, "%s", m ? err.msg : "no model");
        int32_t token[ROWS], seq[ROWS];
        struct pith_batch b = PITH_BATCH_INIT;
        for (int r = 0; r < ROWS; r++)
            token[r] = r * 801 % V, seq[r] = r;
        b.n = ROWS, b.token = token, b.seq = seq;
        REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        float *all = malloc(sizeof(float) * V * SOME);
        for (int r = 0; r < SOME; r++)
            memcpy(all + (size_t)r * V, pith_logits(s, r * 13), sizeof(float) * V);
        for (int r = 0; r < SOME; r++) {
            b.n = 1, b.token = token + r * 13, b.seq = seq + r * 13;
            REQUIRE(pith_truncate(s, r * 13, 0, &err) == PITH_OK, "%s", err.msg);
            REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
            CHECK(!memcmp(all + (size_t)r * V, pith_logits(s, 0), sizeof(float) * V));
        }
        free(all);
        pith_session_close(s);
        pith_model_close(m);
    }
    unsetenv("PITH_CPU");
}

int main(void)
{
    TEST(attention_over_millions);
    TEST(one_long_among_short);
    TEST(prompts_on_many_threads);
    TEST(spans_merged_by_the_last);
    TEST(logits_of_many_rows);
    return test_end();
}
