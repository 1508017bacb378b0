/* pack.c -- rows of a matrix as files have them, brought into the panels that kernels read. */
#include "backend/cpu/cpu.h"

void cpu_pack_panel(const struct kern *kern, const struct tensor *t, const void *matrix, int64_t p,
                    void *out)
{
    const struct dtype_traits *tr = &dtypes[t->type];
    int64_t m = tensor_m(t), k = tensor_k(t), left = m - p * tr->pack_rows;
    uint64_t row = dtype_row_bytes(t->type, k);
    const uint8_t *first = (const uint8_t *)matrix + (uint64_t)(p * tr->pack_rows) * row;
    if (kern && kern->pack[t->type] && left >= tr->pack_rows) {
        kern->pack[t->type](first, (int64_t)row, k, out);
        return;
    }
    const void *rows[64];
    int n_rows = 0;
    for (; n_rows < tr->pack_rows && n_rows < left; n_rows++)
        rows[n_rows] = first + (uint64_t)n_rows * row;
    tr->pack(rows, n_rows, k, out);
}
