/* fuzz_archs.c -- damaged models of every architecture of the list; what is done with one: model.h.
 *
 *     input  arch u16, shape u8, then changes of 4 bytes: place u16, how u8, value u8
 *
 * The input chooses an architecture, experts or none and the number of layers; pith_synth makes the
 * model, and the changes are made in it: in its keys and the list of its tensors mostly, where each
 * architecture has a table of its own. So no corpus has to be made anew when one is added. */
#include "model.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    open_file();
    return 0;
}

enum { N_ARCHS = 512, SHAPES = 4 };
static struct {
    uint8_t *p;
    size_t n;
} made[N_ARCHS][SHAPES];

static const char *arch_at(unsigned i)
{
    unsigned n = 0;
    const char *const *names = pith_arch_names();
    while (names[n] && n < N_ARCHS)
        n++;
    return names[i % n];
}

/* The file of a model, made once. */
static int model_of(unsigned arch, int shape)
{
    if (!made[arch][shape].p) {
        struct tiny t = {arch_at(arch), "f32", 32, 2, 16, 32, 24, shape & 1 ? 4 : 0, 0,
                         shape & 2 ? 4 : 2};
        const char *from = tiny_write(&t, 7);
        made[arch][shape].p = from ? file_bytes(from, &made[arch][shape].n) : NULL;
        if (from)
            unlink(from);
    }
    return made[arch][shape].p != NULL;
}

/* One change; the first half of the places is the first 1,024 bytes. */
static void change(uint8_t *p, size_t n, const uint8_t *c)
{
    size_t at = (size_t)(c[0] | c[1] << 8);
    at = at & 1 ? at / 2 % 1024 : at % 32768;
    if (at >= n)
        return;
    switch (c[2] % 4) {
    case 0:
        p[at] = c[3];
        break;
    case 1:
        p[at] ^= (uint8_t)(1u << c[3] % 8);
        break;
    case 2:
        p[at] = (uint8_t)(p[at] + (c[3] % 8) - 4);
        break;
    default: /* a number of four bytes */
        for (size_t i = 0; i < 4 && at + i < n; i++)
            p[at + i] = c[3] & 1 << i ? 0xff : 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    unsigned arch = (unsigned)(data[0] | data[1] << 8) % N_ARCHS;
    int shape = data[2] % SHAPES;
    if (!model_of(arch, shape))
        return 0;
    size_t n = made[arch][shape].n;
    uint8_t *p = malloc(n);
    if (!p)
        return 0;
    memcpy(p, made[arch][shape].p, n);
    for (size_t i = 3; i + 4 <= size && i < 3 + 16 * 4; i += 4)
        change(p, n, data + i);
    try_model(p, n, size);
    free(p);
    return 0;
}
