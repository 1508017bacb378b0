/* fuzz_saved.c -- saved sessions of every architecture of the list, changed under the right
 * checksums (saved.h).
 *
 *     input  arch u16, then changes of 6 bytes */
#include "saved.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    hook_install();
    tmp_make();
    atomic_store(&hook.limit, (uint64_t)1 << 30);
    return 0;
}

static void saved_wrong(const struct saved *c, const char *what, const char *how)
{
    fprintf(stderr, "finding: %s: %s: %s\n", c->arch, what, how);
    abort();
}

enum { N_ARCHS = 512, CHANGES = 24 };
static struct saved all[N_ARCHS]; /* each opened once */
static uint8_t state[N_ARCHS];    /* 0: not looked at yet, 1: open, 2: cannot be saved */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned n = 0;
    const char *const *names = pith_arch_names();
    while (names[n] && n < N_ARCHS)
        n++;
    if (size < 2)
        return 0;
    unsigned i = (unsigned)(data[0] | data[1] << 8) % n;
    if (!state[i])
        state[i] = saved_open(&all[i], names[i]) ? 1 : 2;
    size = size < 2 + CHANGES * SAVED_CHANGE ? size : 2 + CHANGES * SAVED_CHANGE;
    if (state[i] == 1)
        saved_try(&all[i], data + 2, size - 2);
    if (atomic_load(&hook.over))
        saved_wrong(&all[i], "memory", "more than 1 GiB asked for");
    return 0;
}
