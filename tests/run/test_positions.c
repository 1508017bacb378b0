/* test_positions.c -- rows that say more than their token: positions of their own, four each
 * (M-RoPE), a vector that is added to the token's embedding, or a span of rows that see each other.
 * The same bits however a prompt is cut into calls and steps, whatever else is in them, at every
 * level and on a far device; what they mean; what is refused; and that snapshots keep them. Edits:
 * test_seq.c. */
#include "base/rng.h"
#include "run/cache/cache_impl.h"
#include "run/session/session.h"
#include "run/session/snapshot.h"
#include "small_model.h"

#include <xxhash.h>

enum { V = 64, E = 64, N = 90, N_CTX = 160, LAST = 6 };

/* Text, an image of 6 x 7 rows, text, an image of one column, text. */
static struct {
    int32_t token[N], pos[4 * N];
    float embd[N * E];
} in;

static void make_input(void)
{
    struct rng r;
    rng_init(&r, 5);
    int32_t next = 0, t = 0;
    for (int i = 0; i < N; i++) {
        int grid = i >= 20 && i < 62 ? i - 20 : -1, column = i >= 70 && i < 80 ? i - 70 : -1;
        int32_t *p = in.pos + 4 * i;
        in.token[i] = grid >= 0 ? -1 : (int32_t)rng_below(&r, V);
        for (int k = 0; k < E; k++)
            in.embd[i * E + k] = rng_normal(&r);
        if (grid == 0 || column == 0)
            t = next;
        int32_t h = grid >= 0 ? grid / 7 : column, w = grid >= 0 ? grid % 7 : 0;
        int32_t here[4] = {t, t + h, t + w, grid >= 0 ? 2 : 0}, text[4] = {-1, 0, 0, 0};
        memcpy(p, grid >= 0 || column >= 0 ? here : text, sizeof here);
        int32_t most = h > w ? h : w;
        next = p[0] < 0 ? next + 1 : t + most + 1;
    }
}

static const struct kind {
    const char *arch;
    int axes;
} kinds[] = {{"qwen2vl", 4}, {"qwen3vl", 4}, {"qwen35", 4}, {"llama", 1}, {"gemma3", 1}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

struct way {
    const char *name, *cpu, *far;
    int32_t n_batch, chunk;
    int beside;
};

static pith_model *open_model(const char *arch, const struct way *w)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_embd = E;
    p.head_dim = 32;
    p.n_layer = 4;
    if (w->cpu)
        setenv("PITH_CPU", w->cpu, 1);
    if (w->far) {
        setenv("PITH_FAR_DEVICES", "1", 1);
        setenv("PITH_LAYER_DEVICES", w->far, 1);
    }
    pith_model *m = small_model(&p, w->n_batch, NULL);
    unsetenv("PITH_CPU");
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    return m;
}

static pith_session *open_session(pith_model *m, int32_t n_seq)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = n_seq;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

static pith_status step(pith_session *s, int32_t from, int32_t n, const int32_t *pos,
                        struct pith_error *err)
{
    struct pith_batch b = PITH_BATCH_INIT;
    static uint8_t want[N];
    for (int32_t i = 0; i < n; i++)
        want[i] = from + i >= N - LAST || i == n - 1;
    b.n = n;
    b.token = in.token + from;
    b.embd = in.embd + from * E;
    b.pos = pos ? pos + 4 * from : NULL;
    b.want = want;
    return pith_step(s, &b, err);
}

/* Rows of sequence 1 among those of sequence 0, whose text they are not. */
static pith_status step_beside(pith_session *s, int32_t from, int32_t n, struct pith_error *err)
{
    static int32_t token[2 * N], seq[2 * N], pos[8 * N];
    static float embd[2 * N * E];
    static uint8_t want[2 * N];
    struct pith_batch b = {.size = sizeof b, .token = token, .embd = embd, .seq = seq};
    for (int32_t i = 0; i < n; i++)
        for (int q = 1; q >= 0; q--, b.n++) {
            int32_t from_row = q ? (from + i) / 2 : from + i;
            token[b.n] = in.token[from_row];
            seq[b.n] = q;
            memcpy(embd + (int64_t)b.n * E, in.embd + from_row * E, E * sizeof *embd);
            memcpy(pos + 4 * b.n, in.pos + 4 * from_row, 4 * sizeof *pos);
            pos[4 * b.n] = q ? -1 : pos[4 * b.n];
            want[b.n] = !q && (from + i >= N - LAST || i == n - 1);
        }
    b.pos = pos;
    b.want = want;
    return pith_step(s, &b, err);
}

/* All rows; logits of the last ones. */
static void run(const char *arch, const struct way *w, const int32_t *pos, float (*out)[V])
{
    struct pith_error err = {PITH_OK, ""};
    pith_model *m = open_model(arch, w);
    pith_session *s = open_session(m, 1 + w->beside);
    for (int32_t at = 0, n; s && at < N; at += n) {
        n = N - at < w->chunk ? N - at : w->chunk;
        pith_status st = w->beside ? step_beside(s, at, n, &err) : step(s, at, n, pos, &err);
        CHECK_MSG(st == PITH_OK, "%s, %s: %s", arch, w->name, err.msg);
        int32_t first = at > N - LAST ? at : N - LAST, skip = pith_n_outputs(s) - (at + n - first);
        for (int32_t r = first; st == PITH_OK && r < at + n; r++)
            memcpy(out[r - N + LAST], pith_logits(s, skip + r - first), sizeof *out);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static const struct way whole = {"whole", .n_batch = 128, .chunk = N};

static void test_same_bits(void)
{
    static const struct way ways[] = {
        {"steps of 7 rows", .n_batch = 7, .chunk = N},
        {"calls of 5 rows", .n_batch = 128, .chunk = 5},
        {"row by row", .n_batch = 128, .chunk = 1},
        {"beside another", .n_batch = 48, .chunk = 11, .beside = 1},
        {"level ref", .cpu = "ref", .n_batch = 128, .chunk = 33},
        {"level avx2", .cpu = "avx2", .n_batch = 128, .chunk = N},
        {"far device", .far = "1", .n_batch = 128, .chunk = 33},
        {"half far", .far = "0,1", .n_batch = 16, .chunk = N},
    };
    static float want[LAST][V], got[LAST][V], text[LAST][V];
    for (int k = 0; k < N_KINDS && !test_bad; k++) {
        run(kinds[k].arch, &whole, in.pos, want);
        run(kinds[k].arch, &whole, NULL, text);
        CHECK_MSG(memcmp(want, text, sizeof want) != 0, "%s: positions do not matter",
                  kinds[k].arch);
        for (size_t w = 0; w < sizeof ways / sizeof *ways && !test_bad; w++) {
            memset(got, 0, sizeof got);
            run(kinds[k].arch, &ways[w], in.pos, got);
            CHECK_MSG(!memcmp(want, got, sizeof want), "%s, %s: logits differ", kinds[k].arch,
                      ways[w].name);
        }
    }
}

/* Text whose positions are told is text; of models that go by one position the others do not
 * matter; of the others each does. */
static void test_meaning(void)
{
    static float want[LAST][V], got[LAST][V];
    static int32_t told[4 * N], other[4 * N];
    for (int k = 0; k < N_KINDS && !test_bad; k++) {
        const char *arch = kinds[k].arch;
        for (int i = 0; i < N; i++)
            for (int a = 0; a < 4; a++)
                told[4 * i + a] = a < 3 ? i : 0;
        run(arch, &whole, NULL, want);
        run(arch, &whole, told, got);
        CHECK_MSG(!memcmp(want, got, sizeof want), "%s: text is not text", arch);
        run(arch, &whole, in.pos, want);
        for (int a = 1; a < 3; a++) {
            memcpy(other, in.pos, sizeof other);
            for (int i = 20; i < 62; i++)
                other[4 * i + a] = in.pos[4 * i]; /* the image ends where it did */
            other[4 * 61 + a] = in.pos[4 * 61 + a];
            run(arch, &whole, other, got);
            int same = !memcmp(want, got, sizeof want);
            CHECK_MSG(same == (kinds[k].axes == 1), "%s: position %d %s", arch, a,
                      same ? "does not matter" : "matters");
        }
    }
}

/* The row after an image comes behind the farthest of its corner, wherever time stands. */
static void test_next(void)
{
    struct pith_error err;
    pith_model *m = open_model("qwen2vl", &whole);
    pith_session *s = open_session(m, 1);
    REQUIRE(s, "no session");
    CHECK_MSG(step(s, 0, 62, in.pos, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_position_max(s, 0) == 20 && pith_length(s, 0) == 62);
    CHECK_MSG(step(s, 62, 1, in.pos, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_position_max(s, 0) == 27);
    CHECK(pith_remove(s, 0, 20, 21, &err) == PITH_OK && pith_length(s, 0) == 21);
    CHECK(pith_shift(s, 0, 0, -1, 3, &err) == PITH_OK && pith_position_max(s, 0) == 30);
    pith_session_close(s);
    pith_model_close(m);
}

/* A token with a vector: with one of zeros it is the token, others matter, with the same bits on
 * every device. It is no prefix for anything. */
static void test_both(void)
{
    static const struct way ways[] = {
        {"whole", .n_batch = 128, .chunk = N},         {"steps of 7", .n_batch = 7, .chunk = N},
        {"ref", .cpu = "ref", .n_batch = 128, .chunk = N}, {"far", .far = "1", .n_batch = 16},
    };
    static float zero[10 * E], first[V];
    struct pith_error err;
    for (int w = 0; w < 4 && !test_bad; w++)
        for (int k = 0; k < N_KINDS && !test_bad; k++) {
            pith_model *m = open_model(kinds[k].arch, &ways[w]);
            pith_session *s = open_session(m, 2);
            uint8_t both[10] = {0, 0, 1, 1, 0, 1, 0, 0, 0, 1};
            int32_t token[10] = {1, 2, 3, 4, -1, 6, 7, 8, 9, 10}, ids[10];
            struct pith_batch b = {.size = sizeof b, .n = 10, .token = token, .embd = zero};
            REQUIRE(s, "no session");
            float want[V];
            CHECK(pith_step(s, &b, &err) == PITH_OK);
            memcpy(want, pith_logits(s, 0), sizeof want);
            b.both = both;
            CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
            CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "%s, %s: nothing was added",
                      kinds[k].arch, ways[w].name);
            CHECK(pith_tokens(s, 0, ids, 10) == 10);
            for (int i = 0; i < 10; i++)
                CHECK(ids[i] == (both[i] ? -1 : token[i]));
            b.embd = in.embd;
            CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
            CHECK_MSG(memcmp(want, pith_logits(s, 0), sizeof want) != 0, "%s: not added",
                      kinds[k].arch);
            if (w == 0 && k == 0)
                memcpy(first, pith_logits(s, 0), sizeof first);
            if (k == 0)
                CHECK_MSG(!memcmp(first, pith_logits(s, 0), sizeof first), "%s: logits differ",
                          ways[w].name);
            size_t kept = 9;
            token[4] = 5;
            CHECK(pith_reuse(s, 0, token, 10, &kept, &err) == PITH_OK);
            CHECK_MSG(kept <= 2, "%zu tokens are a prefix", kept);
            both[4] = 1; /* an embedding row already */
            token[4] = -1;
            CHECK(pith_step(s, &b, &err) == PITH_RANGE &&
                  strstr(err.msg, "row 4 is to be a token"));
            b.embd = NULL;
            token[4] = 5;
            CHECK(pith_step(s, &b, &err) == PITH_RANGE && strstr(err.msg, "no embedding row"));
            pith_session_close(s);
            pith_model_close(m);
        }
}

static void refused(pith_session *s, const int32_t pos[8], pith_status st, const char *say)
{
    struct pith_error err;
    struct pith_batch b = PITH_BATCH_INIT;
    int32_t token[2] = {1, 2};
    int64_t n = pith_length(s, 0);
    b.n = 2;
    b.token = token;
    b.pos = pos;
    pith_status got = pith_step(s, &b, &err);
    CHECK_MSG(got == st && strstr(err.msg, say), "%d, wanted %d \"%s\": %s", got, st, say,
              got ? err.msg : "");
    CHECK(pith_length(s, 0) == n);
}

static void test_refused(void)
{
    struct pith_error err;
    pith_model *m = open_model("qwen2vl", &whole), *t5 = open_model("bloom", &whole),
               *bert = open_model("modern-bert", &whole), *window = open_model("gemma3", &whole);
    pith_session *s = open_session(m, 1), *d = open_session(t5, 1), *both = open_session(bert, 1),
                 *w = open_session(window, 1);
    REQUIRE(s && d && both && w, "no session");
    CHECK(step(s, 0, 10, NULL, &err) == PITH_OK);
    refused(s, (int32_t[]){8, 8, 8, 0, -1, 0, 0, 0}, PITH_RANGE,
            "row 0 is at position 8 of sequence 0, behind the row before it, which is at 9");
    refused(s, (int32_t[]){12, 12, 12, 0, 11, 11, 11, 0}, PITH_RANGE,
            "row 1 is at position 11 of sequence 0, behind the row before it, which is at 12");
    refused(s, (int32_t[]){10, -2, 10, 0, -1, 0, 0, 0}, PITH_RANGE,
            "row 0 has -2 as position 1, wanted 0..1073741823");
    refused(s, (int32_t[]){10, 10, 10, 0, 11, 11, 11, 1 << 30}, PITH_RANGE,
            "row 1 has 1073741824 as position 3");
    refused(s, (int32_t[]){-7, 10, 10, 0, 11, 11, 11, 0}, PITH_RANGE, "row 0 has -7 as position 0");
    refused(s, (int32_t[]){(1 << 30) - 1, 10, 10, 0, -1, 0, 0, 0}, PITH_RANGE,
            "row 1 is at position 1073741824 of sequence 0, the last possible is 1073741823");
    refused(s, (int32_t[]){10, (1 << 30) - 1, 10, 0, -1, 0, 0, 0}, PITH_RANGE, "row 1 is at");
    CHECK(step(d, 0, 10, NULL, &err) == PITH_OK);
    refused(d, (int32_t[]){10, 10, 10, 0, 12, 12, 12, 0}, PITH_UNSUPPORTED,
            "row 1 is at position 12 of sequence 0, wanted 11, the next: attention");
    refused(both, (int32_t[]){1, 1, 1, 0, 2, 2, 2, 0}, PITH_UNSUPPORTED, "by their order");
    /* what a window has given up: behind 95 rows the next sees positions from 64 on */
    for (int i = 0; i < 95; i++)
        CHECK(pith_feed(w, 0, (int32_t[]){i % V}, 1, &err) == PITH_OK);
    int group = w->states[0].group;
    CHECK(w->cache.group[group].span == 32 && w->cache.seq[0].pages[group][0] >= 0);
    page_unref(&w->cache.group[group], &w->cache.seq[0].pages[group][0]);
    refused(w, (int32_t[]){94, 94, 94, 0, -1, 0, 0, 0}, PITH_STATE,
            "row 0 is at position 94 of sequence 0: layers with a window no longer hold what it "
            "sees; wanted 95 or more");
    CHECK(pith_feed(w, 0, (int32_t[]){1}, 1, &err) == PITH_OK);
    pith_session_close(s);
    pith_session_close(d);
    pith_session_close(both);
    pith_session_close(w);
    pith_model_close(m);
    pith_model_close(t5);
    pith_model_close(bert);
    pith_model_close(window);
}

/* ---------------------------------------------------------------- spans */

/* Of `in`: an image of 42 rows is span 7; rows 70 to 80, tokens, are spans 7 and 8. */
static int32_t span_at(int i)
{
    return i >= 20 && i < 62 ? 7 : i >= 70 && i < 76 ? 7 : i >= 76 && i < 80 ? 8 : 0;
}

static int32_t span_end(int i)
{
    int end = i + 1;
    while (span_at(i) && end < N && span_at(end) == span_at(i))
        end++;
    return end;
}

/* Logits of rows [from, from + n), as a batch of sequence 0; others of sequence 1 among them. */
static void step_spans(pith_session *s, int32_t from, int32_t n, int beside, float (*out)[V])
{
    static int32_t token[2 * N], seq[2 * N], span[2 * N], at[N];
    static float embd[2 * N * E];
    static uint8_t all[2 * N];
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = PITH_BATCH_INIT;
    memset(all, 1, sizeof all);
    for (int32_t i = 0; i < n; i++)
        for (int q = beside; q >= 0; q--, b.n++) {
            token[b.n] = q ? 9 : in.token[from + i];
            seq[b.n] = q;
            span[b.n] = q ? i % 3 : span_at(from + i);
            at[i] = b.n;
            memcpy(embd + (int64_t)b.n * E, in.embd + (from + i) * E, E * sizeof *embd);
        }
    b.token = token;
    b.seq = seq;
    b.span = span;
    b.embd = embd;
    b.want = all;
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    for (int32_t i = 0; i < n; i++)
        memcpy(out[from + i], pith_logits(s, at[i]), sizeof *out);
}

/* By definition: what each row sees, in every group. */
static void check_seen(const char *arch, const pith_session *s)
{
    const struct step *t = s->lane[0].step;
    for (int g = 0; g < s->cache.n_own; g++) {
        const struct cache_group *c = &s->cache.group[g];
        int window = c->range == RANGE_WINDOW, spans = window || strcmp(arch, "gemma4");
        for (int i = 0; i < N; i++)
            CHECK_MSG(step_hi(t, g)[i] == (spans ? span_end(i) : i + 1) &&
                          step_lo(t, g)[i] == (window && i >= c->span ? i - c->span + 1 : 0),
                      "%s: row %d of group %d sees %d .. %d", arch, i, g, step_lo(t, g)[i],
                      step_hi(t, g)[i]);
    }
}

/* What is kept of the tokens; and that rows before a span are those of no span, others are not. */
static void check_beside_plain(const char *arch, pith_session *s, float (*got)[V])
{
    static float plain[N][V];
    static uint8_t all[N];
    int32_t kept[N];
    struct pith_error err = {PITH_OK, ""};
    struct pith_batch b = PITH_BATCH_INIT;
    memset(all, 1, sizeof all);
    pith_tokens(s, 0, kept, N);
    for (int i = 0; i < N; i++)
        CHECK_MSG(kept[i] == (span_end(i) > i + 1 ? -1 : in.token[i]), "%s: row %d is kept as %d",
                  arch, i, kept[i]);
    b.n = N;
    b.token = in.token;
    b.embd = in.embd;
    b.want = all;
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    REQUIRE(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < N; i++)
        memcpy(plain[i], pith_logits(s, i), sizeof plain[i]);
    CHECK(!memcmp(got, plain, 20 * sizeof *got));
    CHECK(memcmp(got[20], plain[20], sizeof *got) != 0 &&
          memcmp(got[N - 1], plain[N - 1], sizeof *got) != 0);
}

/* Rows see what they are said to; the bits are the same alone and beside others, in one step and in
 * several, at every level and on a far device. */
static void test_spans(void)
{
    static const char *const archs[] = {"llama", "gemma3", "gemma4", "qwen2vl", "minicpm3"};
    static const struct way ways[] = {
        {"as it comes", NULL, NULL, 256, N, 0}, {"beside", NULL, NULL, 256, N, 1},
        {"in three", NULL, NULL, 256, 62, 0},   {"ref", "ref", NULL, 256, N, 0},
        {"avx2", "avx2", NULL, 256, 62, 1},     {"far", NULL, "0,1", 256, N, 0}};
    static float want[N][V], got[N][V];
    for (size_t k = 0; k < sizeof archs / sizeof *archs; k++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            pith_model *m = open_model(archs[k], &ways[w]);
            pith_session *s = open_session(m, 2);
            REQUIRE(s, "%s, %s", archs[k], ways[w].name);
            for (int32_t at = 0, n = ways[w].chunk; at < N; at += n, n = N - at)
                step_spans(s, at, n, ways[w].beside, w ? got : want);
            if (w) {
                CHECK_MSG(!memcmp(want, got, sizeof got), "%s, %s: other bits", archs[k],
                          ways[w].name);
            } else {
                check_seen(archs[k], s);
                check_beside_plain(archs[k], s, want);
            }
            pith_session_close(s);
            pith_model_close(m);
        }
}

static void span_step(const char *arch, int32_t n, int32_t span, int tree, pith_status st,
                      const char *says)
{
    struct pith_error err = {PITH_OK, ""};
    const struct way w = {"", NULL, NULL, 64, N, 0};
    static int32_t token[100], spans[100], parent[100];
    struct pith_batch b = PITH_BATCH_INIT;
    pith_model *m = open_model(arch, &w);
    pith_session *s = open_session(m, 1);
    REQUIRE(s, "%s", arch);
    for (int i = 0; i < n; i++) {
        token[i] = 5;
        spans[i] = span;
        parent[i] = i - 1;
    }
    b.n = n;
    b.token = token;
    b.span = spans;
    b.parent = tree ? parent : NULL;
    pith_status got = pith_step(s, &b, &err);
    CHECK_MSG(got == st && (!says || strstr(err.msg, says)), "%s: %d, \"%s\"", arch, got, err.msg);
    CHECK(pith_length(s, 0) == (got == PITH_OK ? n : 0));
    pith_session_close(s);
    pith_model_close(m);
}

static void test_spans_refused(void)
{
    span_step("llama", 64, 1, 0, PITH_OK, NULL);
    span_step("llama", 65, 1, 0, PITH_RANGE, "65 rows with spans");
    span_step("llama", 65, 0, 0, PITH_OK, NULL);
    span_step("llama", 3, -1, 0, PITH_RANGE, "span -1; wanted 0");
    span_step("llama", 3, 1, 1, PITH_RANGE, "and of a tree");
    span_step("mamba", 3, 1, 0, PITH_UNSUPPORTED, "recurrent layers");
    span_step("mamba", 3, 0, 0, PITH_OK, NULL);
    span_step("deepseek4", 3, 1, 0, PITH_UNSUPPORTED, "one row for several");
    span_step("dream", 3, 1, 0, PITH_UNSUPPORTED, "takes a sequence whole");
}

/* ---------------------------------------------------------------- snapshots */

static void seal_head(uint8_t *p)
{
    uint64_t sum = XXH3_64bits(p, 16);
    memcpy(p + 16, &sum, sizeof sum);
}

/* Section 2's payload, and its checksum anew. */
static uint8_t *sequences(uint8_t *p, uint64_t *length)
{
    uint8_t *at = p + 24;
    memcpy(length, at + 8, sizeof *length);
    at += 16 + *length + 8;
    memcpy(length, at + 8, sizeof *length);
    return at + 16;
}

static void seal_sequences(uint8_t *p)
{
    uint64_t n, sum;
    uint8_t *at = sequences(p, &n);
    sum = XXH3_64bits(at - 16, n + 16);
    memcpy(at + n, &sum, sizeof sum);
}

enum { HEAD_AXED = 4 * (5 + HEAD_GROUPS), HEAD_BYTES = HEAD_AXED + 4 + 16 };

static void same_after(pith_session *a, pith_session *b, const char *what)
{
    struct pith_error err;
    CHECK_MSG(step(a, 62, 20, in.pos, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(step(b, 62, 20, in.pos, &err) == PITH_OK, "%s: %s", what, err.msg);
    for (int32_t i = 0; i < pith_n_outputs(a) && !test_bad; i++)
        CHECK_MSG(!memcmp(pith_logits(a, i), pith_logits(b, i), V * sizeof(float)),
                  "%s: logits differ", what);
}

static void forged(pith_session *s, const uint8_t *p, size_t n, size_t at, int32_t value,
                   const char *what)
{
    struct pith_error err;
    uint64_t length;
    uint8_t *copy = malloc(n);
    memcpy(copy, p, n);
    memcpy(sequences(copy, &length) + at, &value, sizeof value);
    seal_sequences(copy);
    pith_status st = pith_load_memory(s, 0, copy, n, &err);
    CHECK_MSG(st == PITH_FORMAT && strstr(err.msg, "sequence"), "%s: %d %s", what, st,
              st ? err.msg : "");
    free(copy);
}

static void test_snapshot(void)
{
    static uint8_t p[1 << 20];
    struct pith_error err;
    pith_model *m = open_model("qwen2vl", &whole);
    pith_session *s = open_session(m, 1), *t = open_session(m, 1);
    size_t n = 0;
    REQUIRE(s && t, "no session");
    for (int edited = 0; edited < 2; edited++) { /* with edits to come, too */
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        CHECK_MSG(step(s, 0, 62, in.pos, &err) == PITH_OK, "%s", err.msg);
        if (edited) {
            CHECK(pith_remove(s, 0, 3, 9, &err) == PITH_OK);
            CHECK(pith_divide(s, 0, 12, -1, 2, &err) == PITH_OK);
        }
        CHECK(pith_save_memory(s, 0, p, sizeof p, &n, &err) == PITH_OK);
        CHECK_MSG(pith_load_memory(t, 0, p, n, &err) == PITH_OK, "%s", err.msg);
        same_after(s, t, edited ? "edited" : "as it was");
        size_t axes = HEAD_BYTES + 16 * (size_t)(edited ? 56 : 62);
        forged(t, p, n, HEAD_AXED, 2, "axed twice");
        forged(t, p, n, HEAD_AXED, 0, "axes that nobody has");
        forged(t, p, n, axes + 24 * 30, -1, "a position below 0");
        forged(t, p, n, axes + 24 * 30 + 8, 1 << 30, "a position too great");
        forged(t, p, n, axes + 24 * 30 + 16, edited ? INT32_MIN : 1, "a rotation");
    }
    p[8] = 4; /* files of which knew one position */
    seal_head(p);
    CHECK(pith_load_memory(t, 0, p, n, &err) == PITH_FORMAT);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    CHECK(step(s, 0, 20, NULL, &err) == PITH_OK && pith_remove(s, 0, 3, 5, &err) == PITH_OK);
    CHECK(pith_save_memory(s, 0, p, sizeof p, &n, &err) == PITH_OK && p[8] == 5);
    for (uint8_t version = 3; version < 8; version++) { /* one of 6 has a note */
        p[8] = version;
        seal_head(p);
        pith_status st = pith_load_memory(t, 0, p, n, &err);
        CHECK_MSG(st == (version == 4 || version == 5 ? PITH_OK
                         : version == 6               ? PITH_FORMAT
                                                      : PITH_UNSUPPORTED),
                  "version %d", version);
    }
    same_after(s, t, "an older file");
    pith_session_close(s);
    pith_session_close(t);
    pith_model_close(m);
}

int main(void)
{
    make_input();
    TEST(test_same_bits);
    TEST(test_meaning);
    TEST(test_next);
    TEST(test_both);
    TEST(test_spans);
    TEST(test_spans_refused);
    TEST(test_refused);
    TEST(test_snapshot);
    return test_end();
}
