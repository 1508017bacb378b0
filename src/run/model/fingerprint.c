/* fingerprint.c -- what tells one model from another wherever its file lies: the bytes of its
 * headers (keys and tensor table), its overrides and samples of its data. A change of a few weights
 * between the samples is not seen: state of such a model is its owner's business. */
#include <string.h>
#include <xxhash.h>
#include "run/model/model.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

enum { MOST_HEADER = 1 << 28 };

/* Where a part's tensor data begins; not more than nobody waits for. */
static uint64_t header_bytes(const struct gguf *g, int part)
{
    uint64_t n = gguf_part(g, part)->n, least = n < MOST_HEADER ? n : MOST_HEADER;
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

void files_fingerprint(const struct gguf *g, uint64_t h[2])
{
    h[0] = h[1] = 0;
    for (int p = 0; p < gguf_n_parts(g); p++) {
        const struct file_map *map = gguf_part(g, p);
        uint64_t begin = header_bytes(g, p), step = (map->n - begin) / SAMPLES;
        mix(h, map->p, begin);
        for (uint64_t i = 0, at = begin; i < SAMPLES; i++, at += step) {
            uint64_t n = map->n - at < SAMPLE_BYTES ? map->n - at : SAMPLE_BYTES;
            mix(h, map->p + at, n);
        }
    }
}

uint64_t files_headers(const struct gguf *g)
{
    uint64_t h = 0;
    for (int p = 0; p < gguf_n_parts(g); p++)
        h = XXH3_64bits_withSeed(gguf_part(g, p)->p, header_bytes(g, p), h);
    return h;
}

void model_fingerprint(struct pith_model *m)
{
    files_fingerprint(m->gguf, m->fingerprint);
    for (const char *const *o = m->params.overrides; o && *o; o++)
        mix(m->fingerprint, *o, strlen(*o));
    if (arch_is_part(&m->arch)) {
        const int32_t visits[] = {m->arch.stage.first, arch_stage_end(&m->arch)};
        mix(m->fingerprint, visits, sizeof visits);
    }
}
