/* fingerprint.c -- what tells one model from another wherever its file lies: the bytes of its headers (keys and tensor table), its overrides
 * and samples of its data. A change of a few weights between the samples is not seen: state of such a model is its owner's business. */
#include <string.h>
#include <xxhash.h>
#include "run/model.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

uint64_t model_header_bytes(const struct gguf *g, int part)
{
    uint64_t least = gguf_part(g, part)->n;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->part == part && t->offset < least)
            least = t->offset;
    }
    return least;
}

static void mix(uint64_t h[2], const void *p, size_t n)
{
    XXH128_hash_t x = XXH3_128bits_withSeed(p, n, h[0] ^ (h[1] << 1 | h[1] >> 63));
    h[0] = x.low64;
    h[1] = x.high64;
}

void model_fingerprint(struct pith_model *m)
{
    uint64_t *h = m->fingerprint;
    h[0] = h[1] = 0;
    for (int p = 0; p < gguf_n_parts(m->gguf); p++) {
        const struct file_map *map = gguf_part(m->gguf, p);
        uint64_t begin = model_header_bytes(m->gguf, p), step = (map->n - begin) / SAMPLES;
        mix(h, map->p, begin);
        for (uint64_t i = 0, at = begin; i < SAMPLES; i++, at += step) {
            uint64_t n = map->n - at < SAMPLE_BYTES ? map->n - at : SAMPLE_BYTES;
            mix(h, map->p + at, n);
        }
    }
    for (const char *const *o = m->params.overrides; o && *o; o++)
        mix(h, *o, strlen(*o));
}
