/* books.c -- the code books of the IQ types (tensor/quant/iq.c), as kernels look them up: entries
 * of 16 bits, book after book. */
#include "backend/gpu/gpu.h"

#include <string.h>
#include "tensor/quant/iq_tables.h"

void gpu_books(uint16_t out[GPU_BOOKS])
{
#define BOOK(at, grid)                                                                             \
    _Static_assert((at) + sizeof(grid) / 2 <= GPU_BOOKS, "room for the code books");               \
    memcpy(out + (at), grid, sizeof(grid));
    BOOK(0, iq2_xxs_grid)
    BOOK(256, iq2_xs_grid)
    BOOK(768, iq2_s_grid)
    BOOK(1792, iq3_xxs_grid)
    BOOK(2048, iq3_s_grid)
    BOOK(2560, iq1_grid)
#undef BOOK
}
