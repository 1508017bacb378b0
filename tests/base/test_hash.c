/* test_hash.c -- tables that input fills: keys chosen to collide under every hash that can be known
 * beforehand do not, by counting the entries looked at; and what is keyed shows in nothing that has
 * to be the same in another process. */
#include "test.h"

#include <inttypes.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"
#include "base/map.h"
#include "text/jinja/jinja_impl.h"

enum {
    N = 4096,
    BITS = 14,
    SPREAD = 16
}; /* keys; places of a table; of these, those that all keys lie in */

/* Steps to find each of N keys in a table of 2^BITS places, by the lower bits of their hashes. */
static uint64_t steps(const uint64_t *hash)
{
    static uint8_t taken[1 << BITS];
    uint64_t n = 0;
    memset(taken, 0, sizeof taken);
    for (int i = 0; i < N; i++) {
        uint64_t at = hash[i] & ((1 << BITS) - 1);
        for (n++; taken[at]; n++)
            at = (at + 1) & ((1 << BITS) - 1);
        taken[at] = 1;
    }
    return n;
}

static char text[N][16];
static uint64_t hash[N];

/* Texts whose unkeyed hashes lie in SPREAD places. */
static void colliding_texts(void)
{
    uint64_t x = 0x10000000;
    for (int i = 0; i < N; x++) {
        int n = snprintf(text[i], sizeof text[i], "%" PRIx64, x);
        hash[i] = XXH3_64bits(text[i], (size_t)n);
        i += (hash[i] & ((1 << BITS) - 1)) < SPREAD;
    }
}

static void map_of_colliding_texts(void)
{
    struct map m;
    colliding_texts();
    REQUIRE(steps(hash) > 100 * (uint64_t)N, "the texts do not collide: %" PRIu64 " steps",
            steps(hash));
    map_init(&m, PITH_MEM_SCRATCH);
    for (int i = 0; i < N; i++)
        CHECK(map_put(&m, slice_of(text[i]), (uint32_t)i) == 1);
    CHECK_MSG(map_steps(&m) < 6 * (uint64_t)N, "%" PRIu64 " entries looked at for %d keys",
              map_steps(&m), N);
    map_deinit(&m);
}

static void dict_of_colliding_texts(void)
{
    colliding_texts();
    for (int i = 0; i < N; i++) {
        struct jstr s = {text[i], strlen(text[i]), SIZE_MAX, NULL};
        CHECK(jv_hash(NULL, (struct jv){.t = J_STR, .u.s = &s}, &hash[i]));
    }
    CHECK_MSG(steps(hash) < 6 * (uint64_t)N, "%" PRIu64 " steps", steps(hash));
}

/* Numbers whose hashes by multiplication, h = x * K, h ^ h >> 29, lie in SPREAD places. */
static void dict_of_colliding_numbers(void)
{
    int64_t x = 1;
    static int64_t number[N];
    for (int i = 0; i < N; x++) {
        double f = (double)x;
        uint64_t h;
        memcpy(&h, &f, sizeof h);
        h = (1 ^ h) * 0x9e3779b97f4a7c15u;
        hash[i] = h ^ h >> 29;
        number[i] = x;
        i += (hash[i] & ((1 << BITS) - 1)) < SPREAD;
    }
    REQUIRE(steps(hash) > 100 * (uint64_t)N, "the numbers do not collide: %" PRIu64 " steps",
            steps(hash));
    for (int i = 0; i < N; i++)
        CHECK(jv_hash(NULL, (struct jv){.t = J_INT, .u.i = number[i]}, &hash[i]));
    CHECK_MSG(steps(hash) < 6 * (uint64_t)N, "%" PRIu64 " steps", steps(hash));
}

/* What a process started anew hashes to, by itself and by what it has in common with others. */
static uint64_t elsewhere(uint64_t (*fn)(void))
{
    uint64_t h = 0;
    int fd[2];
    if (pipe(fd) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        h = fn();
        _exit(write(fd[1], &h, sizeof h) != (ssize_t)sizeof h);
    }
    if (read(fd[0], &h, sizeof h) != (ssize_t)sizeof h)
        h = 0;
    close(fd[0]);
    close(fd[1]);
    waitpid(child, NULL, 0);
    return h;
}

static uint64_t keyed(void)
{
    return hash_bytes("a", 1);
}

static uint64_t numbered(void)
{
    return hash_number(hash_key(), 12345);
}

static uint64_t common(void)
{
    return slice_hash(SLICE("a"));
}

/* First: this process has not hashed anything yet, so a forked one draws for itself. */
static void processes_differ(void)
{
    uint64_t a = elsewhere(keyed), b = elsewhere(keyed), c = elsewhere(numbered),
             d = elsewhere(numbered);
    CHECK_MSG(a && b && a != b, "two processes hash alike: %" PRIx64, a);
    CHECK_MSG(c && d && c != d, "two processes hash numbers alike: %" PRIx64, c);
    CHECK(elsewhere(common) == common() && common() == XXH3_64bits("a", 1));
    CHECK(keyed() == keyed() && numbered() == numbered() &&
          hash_bytes(NULL, 0) == hash_bytes("", 0));
}

int main(void)
{
    TEST(processes_differ);
    TEST(map_of_colliding_texts);
    TEST(dict_of_colliding_texts);
    TEST(dict_of_colliding_numbers);
    return test_end();
}
