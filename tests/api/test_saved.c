/* test_saved.c -- saved sessions of every architecture of the list, changed under the right
 * checksums (saved.h): no change may end the process, leave a session that cannot go on, or one
 * that a failed load has changed. A case is a number: what is changed is drawn from it. */
#include "saved.h"

#include "base/rng.h"


static long n_tried, n_loaded;

static void saved_wrong(const struct saved *c, const char *what, const char *how)
{
    test_fail(__FILE__, __LINE__, "%s: %s: %s", c->arch, what, how);
}

static void draw(struct rng *r, uint8_t *changes, int n)
{
    for (int i = 0; i < n * SAVED_CHANGE; i++)
        changes[i] = (uint8_t)rng_below(r, 256);
    for (int i = 0; i < n; i++) /* half of them among the sequences */
        if (rng_below(r, 2))
            changes[i * SAVED_CHANGE] = 1;
}

static void one_arch(const char *arch, long n)
{
    struct saved c;
    struct rng r;
    if (!saved_open(&c, arch)) {
        test_fail(__FILE__, __LINE__, "%s: cannot be saved", arch);
        return;
    }
    saved_try(&c, NULL, 0);
    for (long i = 0; i < n && !test_bad; i++) {
        uint8_t changes[8 * SAVED_CHANGE];
        rng_init(&r, 1000003u * (uint64_t)i + 17);
        int n_changes = 1 + (int)rng_below(&r, i % 2 ? 8 : 2);
        draw(&r, changes, n_changes);
        long over = atomic_load(&hook.over);
        saved_try(&c, changes, (size_t)n_changes * SAVED_CHANGE);
        CHECK_MSG(atomic_load(&hook.over) == over, "%s, case %ld: too much memory", arch, i);
        CHECK_MSG(!test_bad, "%s, case %ld", arch, i);
    }
    n_tried += c.n_tried;
    n_loaded += c.n_loaded;
    saved_close(&c);
}

static void forged(void)
{
    const char *const *names = pith_arch_names();
    long n = test_scale() >= 100 ? 3000 : test_scale() >= 10 ? 200 : 60;
    for (int i = 0; names[i] && test_bad < 3; i++)
        if (test_scale() >= 10 || i % 5 == 0)
            one_arch(names[i], n);
    CHECK_MSG(n_loaded > n_tried / 10 && n_loaded < n_tried * 9 / 10, "of %ld %ld were loaded",
              n_tried, n_loaded);
    if (getenv("TEST_VERBOSE"))
        printf("  %ld tried, %ld loaded\n", n_tried, n_loaded);
    CHECK_MSG(!memory_held() && !atomic_load(&hook.blocks), "%" PRIu64 " bytes are still held",
              memory_held());
}

int main(void)
{
    hook_install();
    atomic_store(&hook.limit, (uint64_t)1 << 30);
    tmp_make();
    TEST(forged);
    return test_end();
}
