/* fuzz_tables.c -- any bytes as the file of a vocabulary: what opens reads a fixed text (vocab.h).
 */
#include "vocab.h"

static void run(const uint8_t *data, size_t size)
{
    static const char text[] =
        "hello the  world<|u|>they\n\n12 A\n\xFF <s>\xC3\xA9t\xE4\xBD\xA0 ab\xF0\x9F\x98\x80";
    struct image im = {(uint8_t *)(uintptr_t)data, size, size, 0};
    struct pith_error err;
    struct vocab *v = open_image(&im, &err);
    require(v || (err.code != PITH_OK && err.msg[0]));
    if (v && v->model)
        vocab_use(v, text, sizeof text - 1);
    vocab_free(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size <= 1 << 16)
        on_small_stack(run, data, size);
    return 0;
}
