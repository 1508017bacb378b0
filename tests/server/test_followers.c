/* test_followers.c -- choices that wait for another one's prompt: how far prompts are the same is
 * found once, not in each step. The file is compiled in, what it calls stands in below; the prompt
 * is made another one between two steps, so who compares anew comes to another end. And choices
 * that wait for pages of the prefix store's folder: they are read a piece in each step, for one of
 * them at a time. */
#define pith_reuse reuse_in_pieces
#include "server/schedule/compose.c"
#include "base/work.h"

#include <stdlib.h>

#include "test.h"

enum { N_TOKENS = 5000, N_SEQ = 4 };

/* ---------------------------------------------------------------- what stands in */

void branch_release(struct sched *s, struct branch *b)
{
    leave_sequence(s, b);
}

int slots_give_up(struct sched *s)
{
    (void)s;
    return 0;
}

void account_add(struct server *s, struct tenant *t, int64_t bytes)
{
    (void)s;
    (void)t;
    (void)bytes;
}

int account_has_room(const struct server *s, const struct tenant *t, int64_t bytes)
{
    (void)s;
    (void)t;
    (void)bytes;
    return 1;
}

void metrics_add(struct metrics *m, enum metric i, double x)
{
    (void)m;
    (void)i;
    (void)x;
}

const struct server_params *server_told(const struct server *s)
{
    static const struct server_params told;
    (void)s;
    return &told;
}

struct tenants *server_tenants(const struct server *s)
{
    (void)s;
    return NULL;
}

struct tenant *tenants_at(struct tenants *t, int i)
{
    static struct tenant one;
    (void)t;
    (void)i;
    return &one;
}

static int64_t now = 1; /* ns; a piece that is read takes one */

int64_t clock_now(void)
{
    return now;
}

/* Of each sequence: pieces that the folder has, and those that have been read; calls. */
static int in_folder[3], n_read[3], n_asked[3];

/* A piece is a page. */
pith_status reuse_in_pieces(pith_session *s, int32_t seq, const int32_t *tokens, size_t n,
                            size_t *n_kept, struct pith_error *err)
{
    (void)s;
    (void)tokens;
    (void)n;
    (void)err;
    for (n_asked[seq]++; n_read[seq] < in_folder[seq] && work_tick(WORK_LOOK); n_read[seq]++)
        now++;
    *n_kept = (size_t)n_read[seq] * PAGE;
    return PITH_OK;
}

/* ---------------------------------------------------------------- tests */

static int32_t tokens[3][N_TOKENS];
static struct agreed agreed[3][N_SEQ];
static struct request requests[3];
static struct branch branches[3], *sequences[N_SEQ];
static struct share share;
static struct sched sched = {.share = &share, .seq = sequences, .n_shares = 1, .n_seq = N_SEQ,
                             .parallel = N_SEQ, .steps = 1};

/* Request i with n tokens, its choice without a sequence. */
static struct branch *made(int i, int64_t n)
{
    for (int k = 0; k < N_TOKENS; k++)
        tokens[i][k] = k % 97;
    requests[i] = (struct request){.prompt = tokens[i], .n_prompt = n, .n = 1, .agreed = agreed[i],
                                   .number = ++sched.begun};
    branches[i] = (struct branch){.r = &requests[i], .share = &share, .token = tokens[i], .n = n,
                                  .seq = -1};
    memset(agreed[i], 0, sizeof agreed[i]);
    return &branches[i];
}

/* It has sequence q and is in its prompt, of which n tokens are there. */
static void leads(struct branch *b, int32_t q, int64_t n_fed)
{
    memset(sequences, 0, sizeof sequences);
    sequences[q] = b;
    b->seq = q;
    b->n_fed = n_fed;
}

static void prompts_are_compared_once(void)
{
    struct branch *b = made(0, N_TOKENS);
    leads(made(1, N_TOKENS), 2, 100);
    CHECK_MSG(follows_another(&sched, b), "the same prompt is not waited for");
    tokens[0][10] = -1;
    CHECK_MSG(follows_another(&sched, b), "the prompts are compared again");
    b->n_made = 1; /* what it has made since is not of the prompt */
    b->n = N_TOKENS;
    requests[0].n_prompt = N_TOKENS - 200;
    CHECK_MSG(follows_another(&sched, b), "a preempted choice does not wait");
    leads(made(2, N_TOKENS), 2, 100);
    CHECK_MSG(!follows_another(&sched, b), "another request in the sequence is not compared");
}

static void waiting_ends(void)
{
    struct branch *b = made(0, N_TOKENS), *o = made(1, N_TOKENS);
    leads(o, 0, N_TOKENS - 1);
    CHECK_MSG(follows_another(&sched, b), "its last token is not waited for");
    tokens[1][2000] = -1;
    memset(agreed, 0, sizeof agreed);
    CHECK_MSG(!follows_another(&sched, b), "pages that are there are waited for");
    o->n_fed = 1000;
    CHECK_MSG(follows_another(&sched, b), "pages to come are not waited for");
    CHECK_MSG(agreed[0][0].n == 2000, "%lld tokens are the same, wanted 2000",
              (long long)agreed[0][0].n);
    o->n_made = 1;
    CHECK_MSG(!follows_another(&sched, b), "a prompt that has ended is waited for");
    o->n_made = 0;
    requests[0].salt = strdup("another");
    memset(agreed, 0, sizeof agreed);
    CHECK_MSG(!follows_another(&sched, b), "another salt is waited for");
    free(requests[0].salt);
}

/* With no sequence left for its key it waits, whatever its prompt is. */
static void a_full_key_compares_nothing(void)
{
    struct branch *b = made(0, N_TOKENS);
    leads(made(1, N_TOKENS), 0, 100);
    share.n_held = N_SEQ;
    CHECK_MSG(admit(&sched, b) == NO_ROOM && !agreed[0][0].with, "prompts were compared");
    share.n_held = 1;
    sched.crowded = 1;
    CHECK_MSG(admit(&sched, b) == NO_ROOM && !agreed[0][0].with, "prompts were compared");
    sched.crowded = 0;
    CHECK_MSG(admit(&sched, b) == FOLLOWS, "it does not wait");
}

/* A step whose time is over, or lasts. */
static void next_step(int64_t read_until)
{
    sched.steps++;
    choose_reader(&sched);
    sched.n_pieces = 0;
    sched.read_until = read_until;
}

static void pages_are_read_in_turns(void)
{
    static struct hosted hosted;
    static struct tenant tenant;
    static struct share other;
    struct branch *b[3];
    memset(sequences, 0, sizeof sequences);
    sched.hosted = &hosted;
    share.n_held = sched.n_held = 0;
    other.served = -1;
    for (int i = 0; i < 3; i++) {
        b[i] = made(i, N_TOKENS);
        tokens[i][0] = -1 - i; /* nothing to follow another for */
        requests[i].tenant = &tenant;
    }
    b[2]->share = &other;
    in_folder[0] = 4;
    in_folder[1] = in_folder[2] = 2;
    next_step(0);
    for (int i = 0; i < 3; i++)
        CHECK_MSG(admit(&sched, b[i]) == FOLLOWS && b[i]->seq == i, "choice %d does not wait", i);
    CHECK_MSG(n_read[0] == 1 && !n_read[1] && !n_read[2], "pieces %d %d %d", n_read[0], n_read[1],
              n_read[2]);
    for (int k = 2; k < 4; k++) {
        next_step(0);
        for (int i = 0; i < 3; i++)
            CHECK(find_prefix(&sched, b[i]) == FOLLOWS && !b[i]->n_fed);
        CHECK_MSG(n_read[0] == k && n_asked[1] == 1 && n_asked[2] == 1, "piece %d: %d, calls %d %d",
                  k, n_read[0], n_asked[1], n_asked[2]);
        CHECK_MSG(b[0]->moved == sched.steps, "who follows it sees it stand still");
    }
    next_step(0);
    CHECK(find_prefix(&sched, b[0]) == ADMITTED && b[0]->n_fed == 4 * PAGE);
    CHECK(!b[0]->in_folder && !b[0]->reads);
    CHECK(find_prefix(&sched, b[1]) == FOLLOWS && n_asked[1] == 1);
    next_step(100); /* there is time for all of it */
    CHECK_MSG(sched.reader == b[2], "the key that was served least is not next");
    CHECK(find_prefix(&sched, b[1]) == FOLLOWS && n_asked[1] == 1);
    CHECK(find_prefix(&sched, b[2]) == ADMITTED && n_read[2] == 2 && n_asked[2] == 2);
    next_step(0);
    CHECK(find_prefix(&sched, b[1]) == FOLLOWS && n_read[1] == 1 && sched.reader == b[1]);
}

/* Others undo what was read, and take the sequence as well: in the end it goes on with what is
 * there. */
static void undone_reads_are_bounded(void)
{
    enum { MOST = 64 + 8 * N_TOKENS / PAGE, ENOUGH = 2 * MOST };
    static struct hosted hosted;
    static struct tenant tenant;
    struct branch *b = made(0, N_TOKENS);
    int n = 0;
    memset(sequences, 0, sizeof sequences);
    memset(n_read, 0, sizeof n_read);
    sched.hosted = &hosted;
    sched.reader = NULL;
    share.n_held = sched.n_held = 0;
    requests[0].tenant = &tenant;
    in_folder[0] = 2;
    for (next_step(0); n < ENOUGH && admit(&sched, b) == FOLLOWS; n++, next_step(0)) {
        CHECK_MSG(n_read[0] == 1 && sched.reader == b, "step %d: %d pieces", n, n_read[0]);
        preempt(&sched, b);
        CHECK(b->seq == -1 && !b->in_folder && !sched.reader);
        n_read[0] = 0;
    }
    CHECK_MSG(n == MOST && !n_read[0] && b->seq == 0 && !sched.reader, "%d pieces, wanted %d", n,
              MOST);
    preempt(&sched, b);
    CHECK_MSG(admit(&sched, b) == ADMITTED && !n_read[0], "it reads again");
    in_folder[0] = 0;
    preempt(&sched, b);
    CHECK_MSG(admit(&sched, b) == ADMITTED && !b->reads, "what it has read is not forgotten");
}

/* Two keys in a step before anybody knows how long a row takes: who reads the folder leaves rows to
 * the other. */
static void reading_leaves_rows(void)
{
    enum { N_BATCH = 64 };
    static struct hosted hosted;
    static struct tenant tenant;
    static struct share shares[2];
    static int32_t token[N_BATCH], row_seq[N_BATCH];
    static uint8_t want[N_BATCH];
    static struct part part[N_SEQ];
    struct sched s = {.hosted = &hosted, .share = shares, .n_shares = 2, .seq = sequences,
                      .n_seq = N_SEQ, .parallel = N_SEQ, .n_batch = N_BATCH, .max_outputs = N_SEQ,
                      .token = token, .row_seq = row_seq, .want = want, .part = part};
    memset(sequences, 0, sizeof sequences);
    memset(n_read, 0, sizeof n_read);
    in_folder[0] = 3;
    in_folder[1] = 0;
    for (int i = 0; i < 2; i++) {
        struct branch *b = shares[i].first = made(i, N_TOKENS);
        b->share = &shares[i];
        tokens[i][0] = -1 - i;
        requests[i].tenant = &tenant;
    }
    for (int k = 1; k <= 2; k++) {
        compose(&s);
        CHECK_MSG(n_read[0] == k && s.reader == &branches[0], "step %d: %d pieces", k, n_read[0]);
        CHECK_MSG(s.n_rows == CHUNK_MIN && s.n_parts == 1 && part[0].b == &branches[1],
                  "step %d: %d rows of %d choices", k, s.n_rows, s.n_parts);
    }
    compose(&s);
    CHECK_MSG(!s.reader && s.n_rows == CHUNK_MIN && part[0].b == &branches[0],
              "%d rows when all is read", s.n_rows);
}

int main(void)
{
    TEST(prompts_are_compared_once);
    TEST(waiting_ends);
    TEST(a_full_key_compares_nothing);
    TEST(pages_are_read_in_turns);
    TEST(undone_reads_are_bounded);
    TEST(reading_leaves_rows);
    return test_end();
}
