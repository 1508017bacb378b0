/* fuzz_text.c -- the first byte chooses: a tiny vocabulary of one kind and the rest as text, or the
 * rest as a vocabulary file and a fixed text. Whatever opens must give ids in range and the same
 * text streamed as at once. */
#include "vocab_image.h"
#include "text/pretok.h"
#include "text/vocab_impl.h"

#define MAX_IDS 8192
#define MAX_OUT (1 << 16)

static void require(int ok)
{
    if (!ok)
        abort();
}

static void check_stream(const struct vocab *v, const int32_t *ids, size_t n)
{
    static char want[MAX_OUT];
    size_t n_want = 0, at = 0;
    struct vocab_stream s;
    for (size_t i = 0; i < n; i++) {
        char piece[256];
        size_t len = vocab_piece(v, ids[i], 0, piece, sizeof piece);
        if (len > sizeof piece || n_want + len > sizeof want)
            return;
        memcpy(want + n_want, piece, len);
        n_want += len;
    }
    vocab_stream_init(&s, v);
    s.started = 1; /* no leading space is dropped */
    for (size_t i = 0; i <= n; i++) {
        struct slice put = vocab_stream_put(&s, i < n ? ids[i] : -1);
        require(at + put.n <= n_want && memcmp(put.p, want + at, put.n) == 0);
        at += put.n;
    }
    require(at == n_want);
    vocab_stream_deinit(&s);
}

static void use(const struct vocab *v, const char *text, size_t n)
{
    static int32_t ids[MAX_IDS];
    static char out[MAX_OUT];
    struct pith_error err;
    for (int flags = 0; flags < 4; flags++) {
        int64_t k = vocab_tokenize(v, text, n, flags, ids, MAX_IDS, &err);
        if (k < 0) {
            require(err.code != PITH_OK && err.msg[0]);
            return;
        }
        k = k < MAX_IDS ? k : MAX_IDS;
        for (int64_t i = 0; i < k; i++)
            require(ids[i] >= 0 && ids[i] < vocab_n(v));
        for (int f = 0; f < 4; f++)
            require(vocab_detokenize(v, ids, (size_t)k, f, out, MAX_OUT, &err) >= 0);
        check_stream(v, ids, (size_t)k);
    }
}

/* The samples, and the byte vocabulary with every pre-tokenizer, opened when first asked for. */
static struct vocab *opened(int i)
{
    static struct vocab *open[256];
    struct pith_error err;
    i %= 256;
    if (!open[i]) {
        const char *pre = pretok_name(i - N_SAMPLES);
        struct keys k = pre ? sample_bpe(pre) : sample_keys(i % N_SAMPLES);
        open[i] = open_keys(&k, &err);
        require(open[i] != NULL);
    }
    return open[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "hello the  world<|u|>they\n\n12 A\n\xFF <s>\xC3\xA9t\xE4\xBD\xA0 ab\xF0\x9F\x98\x80";
    if (size < 1 || size > 1 << 16)
        return 0;
    if (data[0] < 255 && !(size > 5 && memcmp(data + 1, "GGUF", 4) == 0)) {
        use(opened(data[0]), (const char *)data + 1, size - 1);
        return 0;
    }
    struct image im = {(uint8_t *)(uintptr_t)(data + 1), size - 1, size - 1, 0};
    struct pith_error err;
    struct vocab *v = open_image(&im, &err);
    require(v || (err.code != PITH_OK && err.msg[0]));
    if (v && v->model)
        use(v, text, sizeof text - 1);
    vocab_free(v);
    return 0;
}
