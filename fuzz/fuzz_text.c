/* fuzz_text.c -- the first byte chooses a tiny vocabulary of one kind, the rest is text (vocab.h).
 */
#include "vocab.h"
#include "text/vocab/pretok.h"

/* The samples, and the byte vocabulary with every pre-tokenizer, opened when first asked for. */
static struct vocab *opened(int i)
{
    static struct vocab *open[256];
    struct pith_error err;
    if (!open[i]) {
        const char *pre = pretok_name(i - N_SAMPLES);
        struct keys k = pre ? sample_bpe(pre) : sample_keys(i % N_SAMPLES);
        open[i] = open_keys(&k, &err);
        require(open[i] != NULL);
    }
    return open[i];
}

static void run(const uint8_t *data, size_t size)
{
    vocab_use(opened(data[0]), (const char *)data + 1, size - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size <= 1 << 16)
        on_small_stack(run, data, size);
    return 0;
}
