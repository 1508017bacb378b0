/* shim_amx.h -- the tiles of AMX in plain C, for src/backend/cpu/x86/mm_amx.inl where no processor
 * has them: shapes, loads with what lies outside of them zero, sums modulo 2^32. What a processor
 * would refuse ends the program. Included behind <immintrin.h>, whose intrinsics these are.
 *
 * Reference: Intel SDM vol. 2, LDTILECFG, TILELOADD, TDPBSSD, TILESTORED, TILERELEASE. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shim_tile {
    unsigned rows, bytes;
    uint8_t data[16][64];
};
static struct shim_tile shim_tiles[8]; /* all 0: not configured */

static void shim_need(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "shim_amx: a processor refuses this: %s\n", what);
    abort();
}

static struct shim_tile *shim_tile(int i)
{
    shim_need(i >= 0 && i < 8 && shim_tiles[i].rows && shim_tiles[i].bytes, "tile without shape");
    return &shim_tiles[i];
}

static inline void shim_loadconfig(const void *p)
{
    const uint8_t *shape = p;
    shim_need(shape[0] == 1 && shape[1] == 0, "palette");
    for (int i = 2; i < 16; i++)
        shim_need(!shape[i], "reserved bytes");
    for (int i = 0; i < 16; i++) {
        uint16_t bytes;
        memcpy(&bytes, shape + 16 + 2 * i, 2);
        shim_need(bytes <= 64 && shape[48 + i] <= 16 && !bytes == !shape[48 + i], "shape");
        shim_need(i < 8 || !bytes, "ninth tile");
        if (i < 8)
            shim_tiles[i] = (struct shim_tile){.rows = shape[48 + i], .bytes = bytes};
    }
}

static inline void shim_release(void)
{
    memset(shim_tiles, 0, sizeof shim_tiles);
}

static inline void shim_zero(int i)
{
    memset(shim_tile(i)->data, 0, sizeof shim_tiles[i].data);
}

static inline void shim_loadd(int i, const void *p, long stride)
{
    struct shim_tile *t = shim_tile(i);
    memset(t->data, 0, sizeof t->data);
    for (unsigned r = 0; r < t->rows; r++)
        memcpy(t->data[r], (const uint8_t *)p + (long)r * stride, t->bytes);
}

static inline void shim_stored(int i, void *p, long stride)
{
    const struct shim_tile *t = shim_tile(i);
    for (unsigned r = 0; r < t->rows; r++)
        memcpy((uint8_t *)p + (long)r * stride, t->data[r], t->bytes);
}

static inline void shim_dpbssd(int to, int left, int right)
{
    struct shim_tile *c = shim_tile(to);
    const struct shim_tile *a = shim_tile(left), *b = shim_tile(right);
    shim_need(to != left && to != right && left != right, "one tile twice");
    shim_need(c->rows == a->rows && c->bytes == b->bytes && a->bytes == 4 * b->rows &&
                  c->bytes % 4 == 0,
              "shapes that do not fit");
    for (unsigned m = 0; m < c->rows; m++)
        for (unsigned n = 0; n < c->bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, c->data[m] + 4 * n, 4);
            for (unsigned k = 0; k < a->bytes; k++)
                sum += (uint32_t)((int32_t)(int8_t)a->data[m][k] *
                                  (int32_t)(int8_t)b->data[k / 4][4 * n + k % 4]);
            memcpy(c->data[m] + 4 * n, &sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig shim_loadconfig
#define _tile_release    shim_release
#define _tile_zero       shim_zero
#define _tile_loadd      shim_loadd
#define _tile_stored     shim_stored
#define _tile_dpbssd     shim_dpbssd
