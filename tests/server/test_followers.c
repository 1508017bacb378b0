/* test_followers.c -- choices that wait for another one's prompt: how far prompts are the same is
 * found once, not in each step. The file is compiled in, what it calls stands in below; the prompt
 * is made another one between two steps, so who compares anew comes to another end. */
#include "server/schedule/compose.c"

#include <stdlib.h>

#include "test.h"

enum { N_TOKENS = 5000, N_SEQ = 4 };

/* ---------------------------------------------------------------- what stands in */

void branch_release(struct sched *s, struct branch *b)
{
    (void)s;
    (void)b;
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

int64_t clock_now(void)
{
    return 1;
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

int main(void)
{
    TEST(prompts_are_compared_once);
    TEST(waiting_ends);
    TEST(a_full_key_compares_nothing);
    return test_end();
}
