/* test_seq_recurrent.c -- random calls over sequences of models with recurrent layers, compared
 * with sequences that are only ever fed from their beginning. A recurrence has no inverse: a
 * sequence can go back to nothing, to a checkpoint (every 64 positions and the ends of the latest
 * prompts), and it refuses to do without a part of what it has seen. A prompt costs at most 64
 * positions beyond what it has in common with the sequence. TEST_SEED chooses other scripts. */
#include <unistd.h>

#include "check_pages.h"
#include "random.h"

enum { N_SEQ = 3, N_CTX = 200, N_BATCH = 24, EVERY = 64, N_TOKENS = 40, PROMPTS = 7 };

static const struct kind {
    const char *name;
    int32_t stored; /* pages of the prefix store */
} kinds[] = {{"mamba", 0},          {"mamba2", 0},        {"rwkv7", 0},
             {"jamba", 0},          {"granitehybrid", 0}, {"mamba", 40},
             {"granitehybrid", 40}, {"rwkv7", 40},        {"jamba", 3}};

struct seq {
    int32_t n, token[N_CTX];
    int keep;       /* a prompt ended here, or it was copied or loaded */
    int32_t prompt; /* the latest such point before this one, -1: nobody knows */
    int32_t held;   /* of the tokens the naive sequence has been fed so many; another script's, or
                       others: 0 */
};

struct script {
    const struct kind *kind;
    pith_session *s, *naive;
    struct seq seq[N_SEQ];
    int32_t n_vocab;
    int64_t compared, refused, rewound;
};

/* The sequence goes back to n of its tokens. */
static void back_to(struct seq *q, int32_t n)
{
    if (n < q->n) {
        q->keep = 0;
        q->held = 0;
        q->prompt = q->prompt <= n ? q->prompt : -1;
    }
    q->n = n;
}

/* Is n one of the points that have to be there? */
static int is_point(const struct script *x, const struct seq *q, int32_t n)
{
    return n == 0 || n == q->n || n == q->prompt ||
           (n < q->n && n % EVERY == 0 && !x->kind->stored);
}

/* ---------------------------------------------------------------- feeding */

static void compare(struct script *x, int32_t i, const float *got, const float *want)
{
    x->compared++;
    CHECK_MSG(got && want && !memcmp(got, want, (size_t)x->n_vocab * sizeof *got),
              "%s: logits of sequence %d differ:%s", x->kind->name, i, test_calls);
}

/* Feeds the naive sequence what it has not; logits of the last token. */
static const float *naive_logits(struct script *x, int32_t i)
{
    struct pith_error err;
    struct seq *q = &x->seq[i];
    if (!q->held)
        CHECK(pith_truncate(x->naive, i, 0, &err) == PITH_OK);
    CHECK(pith_feed(x->naive, i, q->token + q->held, (size_t)(q->n - q->held), &err) == PITH_OK);
    q->held = q->n;
    return pith_logits(x->naive, 0);
}

static void fed(struct seq *q, int32_t rows)
{
    if (q->keep)
        q->prompt = q->n;
    q->keep = rows > 1;
}

/* Rows of one or more sequences in one call, mixed. */
static void add(struct script *x)
{
    int32_t token[N_SEQ * N_CTX], seq[N_SEQ * N_CTX], left[N_SEQ], rows[N_SEQ], n = 0, out = 0;
    uint8_t want[N_SEQ * N_CTX] = {0};
    struct pith_error err;
    for (int32_t i = 0; i < N_SEQ; i++) {
        int32_t room = N_CTX - x->seq[i].n;
        rows[i] = below(2) ? 0 : 1 + below(below(2) ? 3 : 80);
        left[i] = rows[i] = rows[i] < room ? rows[i] : room;
    }
    note(" add %d %d %d;", rows[0], rows[1], rows[2]);
    while (left[0] + left[1] + left[2]) {
        int32_t i = below(N_SEQ);
        if (!left[i])
            continue;
        token[n] = below(N_TOKENS);
        seq[n] = i;
        want[n++] = --left[i] == 0;
    }
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = n;
    b.token = token;
    b.seq = seq;
    b.want = want;
    if (!n)
        return;
    if (!below(6)) { /* first in vain: it changes nothing */
        note(" (cancelled)");
        pith_cancel(x->s);
        CHECK(pith_step(x->s, &b, &err) == PITH_CANCELLED);
        pith_cancel_reset(x->s);
        for (int32_t i = 0; i < N_SEQ; i++)
            if (rows[i])
                fed(&x->seq[i], 0);
        return;
    }
    CHECK_MSG(pith_step(x->s, &b, &err) == PITH_OK, "%s: %s:%s", x->kind->name, err.msg,
              test_calls);
    for (int32_t i = 0; i < N_SEQ; i++)
        if (rows[i])
            fed(&x->seq[i], rows[i]);
    for (int32_t k = 0; k < n && !test_bad; k++) {
        struct seq *q = &x->seq[seq[k]];
        q->token[q->n++] = token[k];
        if (want[k])
            compare(x, seq[k], pith_logits(x->s, out++), naive_logits(x, seq[k]));
    }
}

/* A prompt that has a beginning in common with what the sequence holds. */
static void prefix(struct script *x, int32_t i)
{
    struct seq *q = &x->seq[i];
    struct pith_error err;
    int32_t token[N_CTX], n = 0, common = below(3) ? q->n - below(q->n / 2 + 1) : below(q->n + 1);
    size_t kept = 0;
    memcpy(token, q->token, sizeof token);
    for (n = common; n < N_CTX && (n == common || below(12)); n++)
        token[n] = (n < q->n ? q->token[n] : 0) + 1; /* another one */
    common = n > common ? common : n - 1;
    note(" prefix %d: %d of %d;", i, n, common);
    CHECK_MSG(pith_prefix(x->s, i, token, (size_t)n, &kept, &err) == PITH_OK, "%s: %s:%s",
              x->kind->name, err.msg, test_calls);
    CHECK_MSG((int32_t)kept > common - EVERY || x->kind->stored, "%s: %zu of %d taken:%s",
              x->kind->name, kept, common, test_calls);
    x->rewound += (int32_t)kept < q->n;
    back_to(q, (int32_t)kept < common ? (int32_t)kept : common);
    fed(q, n - (int32_t)kept);
    memcpy(q->token, token, sizeof token);
    q->n = n;
    compare(x, i, pith_logits(x->s, 0), naive_logits(x, i));
}

/* ---------------------------------------------------------------- going back, copies, files */

static void refuses(struct script *x, pith_status st, const struct pith_error *err)
{
    CHECK_MSG(st == PITH_STATE && strstr(err->msg, "recurrent"), "%s: %d, %s:%s", x->kind->name, st,
              st ? err->msg : "", test_calls);
    x->refused++;
}

static void truncate_one(struct script *x, int32_t i)
{
    struct seq *q = &x->seq[i];
    struct pith_error err;
    int32_t n = below(q->n + 1);
    n = below(3) ? n : below(2) ? n / EVERY * EVERY : q->prompt > 0 ? q->prompt : n;
    note(" truncate %d to %d of %d;", i, n, q->n);
    pith_status st = below(2) ? pith_truncate(x->s, i, n, &err) : pith_remove(x->s, i, n, -1, &err);
    if (st == PITH_OK) {
        x->rewound += n < q->n;
        back_to(q, n);
    } else {
        CHECK_MSG(!is_point(x, q, n), "%s: %s:%s", x->kind->name, err.msg, test_calls);
        refuses(x, st, &err);
    }
}

static void copy(struct script *x, int32_t i, int32_t to)
{
    struct seq *q = &x->seq[i], old = *q;
    struct pith_error err;
    int32_t n = below(2) ? q->n : below(q->n + 1);
    note(" copy %d to %d, %d of %d;", i, to, n, q->n);
    pith_status st = pith_copy(x->s, to, i, 0, n, &err);
    if (st) {
        CHECK_MSG(!is_point(x, q, n), "%s: %s:%s", x->kind->name, err.msg, test_calls);
        refuses(x, st, &err);
        return;
    }
    if (i == to) {
        back_to(q, n);
        return;
    }
    q->keep |= n == q->n;
    x->seq[to] = old;
    x->seq[to].keep = n > 0;
    x->seq[to].held = 0;
    x->seq[to].n = n;
    x->seq[to].prompt = n && old.prompt <= n ? old.prompt : -1;
}

/* What would take something out of the middle, or move it. */
static void impossible(struct script *x, int32_t i)
{
    const struct seq *q = &x->seq[i];
    struct pith_error err;
    note(" impossible %d;", i);
    if (q->n < 3)
        return;
    refuses(x, pith_remove(x->s, i, 0, q->n - 1, &err), &err);
    refuses(x, pith_copy(x->s, (i + 1) % N_SEQ, i, 1, -1, &err), &err);
    refuses(x, pith_shift(x->s, i, 0, -1, 5, &err), &err);
    refuses(x, pith_divide(x->s, i, 0, -1, 2, &err), &err);
}

/* A sequence through memory into another one, or the whole session through it and back. */
static void save_and_load(struct script *x, int32_t i, int32_t to)
{
    struct pith_error err;
    size_t n = 0;
    int whole = !below(3);
    note(whole ? " save and load all;" : " save %d, load as %d;", i, to);
    CHECK(pith_save_memory(x->s, whole ? -1 : i, NULL, 0, &n, &err) == PITH_OK);
    uint8_t *p = malloc(n);
    CHECK(pith_save_memory(x->s, whole ? -1 : i, p, n, &n, &err) == PITH_OK);
    pith_status st = pith_load_memory(x->s, whole ? -1 : to, p, n, &err);
    free(p);
    CHECK_MSG(st == PITH_OK, "%s: %s:%s", x->kind->name, err.msg, test_calls);
    if (!whole && i != to) {
        x->seq[to] = x->seq[i];
        x->seq[to].held = 0;
    }
    for (int32_t q = 0; q < N_SEQ; q++)
        if (whole || q == to)
            x->seq[q].keep = x->seq[q].n > 0;
}

static void call(struct script *x)
{
    int32_t i = below(N_SEQ);
    switch (below(12)) {
    case 0:
    case 1:
        truncate_one(x, i);
        break;
    case 2:
        copy(x, i, below(N_SEQ));
        break;
    case 3:
    case 4:
        prefix(x, i);
        break;
    case 5:
        impossible(x, i);
        break;
    case 6:
        save_and_load(x, i, below(N_SEQ));
        break;
    default:
        add(x);
    }
    for (int32_t q = 0; q < N_SEQ; q++)
        CHECK_MSG(pith_length(x->s, q) == x->seq[q].n, "%s: sequence %d holds %d, wanted %d:%s",
                  x->kind->name, q, (int)pith_length(x->s, q), x->seq[q].n, test_calls);
    check_pages(x->s, x->kind->name, test_calls);
}

/* ---------------------------------------------------------------- all sequences at once */

enum { MANY = 64, CTX = 128 };

/* `per` rows of each sequence in one call: two of each, then two more of each, and so on. */
static pith_status feed_many(pith_session *s, int32_t per, struct pith_error *err)
{
    static int32_t token[4 * MANY], seq[4 * MANY];
    struct pith_batch b = PITH_BATCH_INIT;
    for (int32_t done = 0; done < per; done += 2)
        for (int32_t i = 0; i < MANY; i++)
            for (int32_t k = done; k < done + 2 && k < per; k++) {
                token[b.n] = 5 + b.n % 7;
                seq[b.n++] = i;
            }
    b.token = token;
    b.seq = seq;
    return pith_step(s, &b, err);
}

static void smallest_mamba(struct pith_synth_params *p, char *path, size_t cap)
{
    snprintf(path, cap, "/tmp/pith-mamba-%d.gguf", (int)getpid());
    p->arch = "mamba";
    p->n_embd = 16;
    p->n_layer = 1;
    p->n_vocab = 16;
}

/* Every sequence has as many checkpoints as it may, and passes one more within a call of several
 * steps: what they hold together has to be there at once. */
static void checkpoints_of_all_at_once(void)
{
    struct pith_error err;
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    char path[64];
    smallest_mamba(&p, path, sizeof path);
    mp.n_threads = 1;
    mp.n_batch = mp.n_outputs = 2 * MANY;
    sp.n_ctx = CTX;
    sp.n_seq = MANY;
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    pith_model *m = pith_model_open(path, &mp, &err);
    unlink(path);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    const struct recurrent *r = &s->recurrent;
    for (int32_t to = EVERY; to <= CTX - EVERY / 2; to += EVERY / 2) {
        for (int i = 0; i < PROMPTS; i++)
            CHECK(feed_many(s, 2, &err) == PITH_OK);
        while (pith_length(s, 0) < to - 3)
            CHECK(feed_many(s, 1, &err) == PITH_OK);
        CHECK_MSG(feed_many(s, 4, &err) == PITH_OK, "at %d: %s", to, err.msg);
        CHECK_MSG(r->n_made <= r->n_blocks && r->n_free >= 0 && r->n_free <= r->n_made,
                  "%d blocks made of %d, %d free", r->n_made, r->n_blocks, r->n_free);
    }
    CHECK(r->seq[0].n_at == r->cap);
    printf("# %d of %d blocks in use at most\n", r->n_made, r->n_blocks);
    CHECK(r->n_made > r->n_blocks - MANY); /* the limit is not much more than it takes */
    pith_session_close(s);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- calls that fail */

/* A sequence's checkpoints are all that may be, and a call would drive out the oldest: of one row,
 * of a prompt, or of one that passes further points. It fails before its step, or when the step is
 * on its way: what was there is there again. */
static void failed_call(const char *path, int32_t n, int submitted)
{
    enum { SHORT = 13 };
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct checkpoint before[32], *at;
    int32_t token[300], seq[300] = {0};
    mp.n_threads = 1;
    mp.n_batch = 300;
    sp.n_ctx = 512;
    sp.n_lanes = 2;
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    struct recurrent *r = &s->recurrent;
    struct pith_batch b = PITH_BATCH_INIT;
    for (int32_t i = 0; i < 300; i++)
        token[i] = (i * 7 + 3) % 16;
    for (int i = 0; i < SHORT; i++)
        CHECK_MSG(pith_feed(s, 0, token, 2, &err) == PITH_OK, "%s", err.msg);
    at = r->seq[0].at;
    int32_t n_at = r->seq[0].n_at;
    CHECK_MSG(n_at == r->cap && n_at <= 32 && r->seq[0].keep, "%d checkpoints of %d", n_at, r->cap);
    memcpy(before, at, (size_t)n_at * sizeof *at);
    b.n = n;
    b.token = token;
    b.seq = seq;
    pith_cancel(s);
    pith_status st = submitted ? pith_submit(s, &b, &err) : pith_step(s, &b, &err);
    CHECK(st == (submitted ? PITH_OK : PITH_CANCELLED));
    if (submitted) {
        CHECK(memcmp(before, at, sizeof *at)); /* the oldest had to go */
        CHECK(pith_wait(s, &err) == PITH_CANCELLED);
    }
    pith_cancel_reset(s);
    CHECK_MSG(r->seq[0].n_at == n_at && !memcmp(before, at, (size_t)n_at * sizeof *at) &&
                  r->seq[0].n == 2 * SHORT && r->seq[0].keep,
              "%d rows, %d: checkpoints are others", n, submitted);
    int32_t held = 1; /* the present, or as many as it and them */
    for (int i = 0; i < n_at; i++)
        held += before[i].block != r->seq[0].now;
    CHECK_MSG(r->n_made - r->n_free == held, "%d blocks are in use, wanted %d",
              r->n_made - r->n_free, held);
    CHECK_MSG(pith_truncate(s, 0, before[0].n, &err) == PITH_OK, "%d rows, %d: %s", n, submitted,
              err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

/* Every sequence loses several checkpoints in one call of many steps: they stay only as long as
 * blocks are not wanted for what is computed. */
static void lost_ones_make_way(const char *path)
{
    enum { SEQS = 8, ROWS = 300 };
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static int32_t token[SEQS * ROWS], seq[SEQS * ROWS];
    mp.n_threads = 1;
    mp.n_batch = 16;
    sp.n_ctx = 512;
    sp.n_seq = SEQS;
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    for (int i = 0; i < 13 * SEQS; i++)
        CHECK_MSG(pith_feed(s, i % SEQS, token, 2, &err) == PITH_OK, "%s", err.msg);
    struct pith_batch b = PITH_BATCH_INIT;
    for (int32_t i = 0; i < SEQS * ROWS; i++)
        seq[i] = i % SEQS;
    b.n = SEQS * ROWS;
    b.token = token;
    b.seq = seq;
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    const struct recurrent *r = &s->recurrent;
    CHECK_MSG(r->n_made == r->n_blocks, "%d blocks of %d are made: none had to be given up",
              r->n_made, r->n_blocks);
    for (int i = 0; i < SEQS; i++)
        CHECK(!r->seq[i].n_lost && r->seq[i].n_at == r->cap);
    pith_session_close(s);
    pith_model_close(m);
}

static void failed_calls_lose_nothing(void)
{
    struct pith_error err;
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    char path[64];
    smallest_mamba(&p, path, sizeof path);
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < 6; i++)
        failed_call(path, i / 2 == 0 ? 1 : i / 2 == 1 ? 5 : 300, i % 2);
    lost_ones_make_way(path);
    unlink(path);
}

/* ---------------------------------------------------------------- scripts */

static pith_session *open_session(pith_model *m, int32_t stored, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = N_SEQ;
    pith_session *s = pith_session_open(m, &sp, err);
    if (!s || !stored)
        return s;
    uint64_t one = s->recurrent.block_bytes;
    for (int g = 0; g < s->cache.n_groups; g++)
        one += (uint64_t)s->cache.group[g].page_bytes;
    pith_session_close(s);
    sp.store_bytes = (int64_t)one * stored;
    return pith_session_open(m, &sp, err);
}

static void run_scripts(struct script *x, int n_scripts)
{
    struct pith_error err;
    for (int i = 0; i < n_scripts && !test_bad; i++) {
        for (int n = 10 + below(25); n && !test_bad; n--)
            call(x);
        for (int32_t q = 0; q < N_SEQ; q++) {
            CHECK(pith_truncate(x->s, q, 0, &err) == PITH_OK);
            x->seq[q] = (struct seq){.prompt = -1};
        }
        test_calls[0] = 0; /* the next script meets the store as this one left it */
    }
}

static void test_scripts(void)
{
    int n_kinds = sizeof kinds / sizeof *kinds, found = 0;
    int n = test_scale() >= 100 ? 10000 : test_scale() >= 10 ? 1000 : 90;
    for (int i = 0; i < n_kinds && !test_bad; i++) {
        char path[1024];
        struct pith_error err;
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct script x = {.kind = &kinds[i]};
        snprintf(path, sizeof path, "%s/golden/arch/%s.gguf", test_shared(), kinds[i].name);
        mp.n_threads = 1;
        mp.n_batch = N_BATCH;
        pith_model *m = pith_model_open(path, &mp, &err);
        if (!m)
            continue;
        found++;
        x.s = open_session(m, kinds[i].stored, &err);
        x.naive = open_session(m, 0, &err);
        REQUIRE(x.s && x.naive, "%s: %s", kinds[i].name, err.msg);
        x.n_vocab = m->arch.hp.n_vocab;
        for (int32_t q = 0; q < N_SEQ; q++)
            x.seq[q].prompt = -1;
        CHECK(x.s->recurrent.every == EVERY);
        run_scripts(&x, (n + n_kinds - 1) / n_kinds);
        printf("# %s, %d pages stored: %lld rows compared, %lld calls refused, %lld went back\n",
               kinds[i].name, kinds[i].stored, (long long)x.compared, (long long)x.refused,
               (long long)x.rewound);
        CHECK(x.compared > 0 && x.refused > 0 && x.rewound > 0);
        pith_session_close(x.s);
        pith_session_close(x.naive);
        pith_model_close(m);
    }
    if (!found)
        SKIP("golden/arch has no recurrent model");
}

int main(void)
{
    test_seed();
    TEST(checkpoints_of_all_at_once);
    TEST(failed_calls_lose_nothing);
    TEST(test_scripts);
    return test_end();
}
