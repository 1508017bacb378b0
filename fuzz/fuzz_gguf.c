/* fuzz_gguf.c -- any bytes as a GGUF file, and an override made of its tail: opened strictly and as
 * a listing; whatever opens is read to the end. */
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"

static volatile uint64_t sink; /* makes the compiler keep the reads */

static uint64_t read_value(const struct gguf *g, const struct gguf_kv *kv)
{
    struct gguf_strs it;
    struct slice s;
    struct str text;
    uint64_t u = 0, sum = 0;
    int64_t i = 0;
    double f = 0;
    int b = 0;
    str_init(&text, PITH_MEM_META);
    gguf_value_text(g, kv, 100, &text);
    sum += text.n;
    str_deinit(&text);
    if (kv->n) {
        gguf_u64(g, kv, kv->n - 1, &u);
        gguf_i64(g, kv, kv->n - 1, &i);
        gguf_f64(g, kv, kv->n - 1, &f);
        gguf_bool(g, kv, kv->n - 1, &b);
    }
    for (gguf_strs_begin(&it, g, kv); gguf_strs_next(&it, &s);)
        sum += s.n ? (uint8_t)s.p[s.n - 1] : 0;
    if (gguf_find(g, "general.name") == kv)
        sum++;
    return sum + u + (uint64_t)i + (uint64_t)b + (f > 0);
}

static void check(struct gguf *g, const struct pith_error *err, const char *spec)
{
    uint64_t sum = 0;
    if (!g) {
        if (err->code == PITH_OK || !err->msg[0])
            abort(); /* every refusal says why */
        return;
    }
    gguf_override(g, spec, NULL);
    for (uint64_t i = 0; i < gguf_n_kv(g); i++)
        sum += read_value(g, gguf_kv_at(g, i));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = gguf_tensor_data(g, t);
        sum += (uint64_t)p[0] + p[t->bytes - 1];
        if (gguf_tensor_find(g, t->name) != t || t->bytes == 0)
            abort();
    }
    sink = sum;
    gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pith_error err;
    char spec[65] = "";
    size_t n = size < 64 ? size : 64;
    memcpy(spec, data + size - n, n);
    check(gguf_open_memory(data, size, &err), &err, spec);
    check(gguf_open_listing_memory(data, size, &err), &err, spec);
    struct slice text = {0};
    if (gguf_begins(data, size, "general.architecture", &text) == 1 &&
        ((const uint8_t *)text.p < data || (const uint8_t *)text.p + text.n > data + size))
        abort();
    return 0;
}
