/* wgmma.c -- which products run by wgmma (kernels/wgmma.cu), and the maps of matrices that they
 * copy boxes by: products of 16 bits with many rows, neither of experts nor of heads, on devices of
 * compute capability 9.0 alone. The file of kernels has code for that generation or has it not. */
#include "backend/cuda/cuda_impl.h"

#include "base/unconst.h"

/* Rows of a weight's box, numbers of each row: 128 bytes. As wgmma.cu has them. ROWS_AT: where a
 * launch has the rows of x. */
enum { BOX_ROWS = 128, BOX_NUMBERS = 64, ROWS_AT = 5, NARROW = 128, WIDE = 256, HOPPER = 90 };

/* Stages, what aligns them, barriers. */
uint32_t cu_wgmma_shared(int tile)
{
    return (tile == WIDE ? 4u : 3u) * (uint32_t)(BOX_ROWS + tile) * 2 * BOX_NUMBERS + 1024 + 64;
}

void cu_wgmma_find(struct cu_gpu *v)
{
    cu_function f;
    v->has_wgmma = 0;
    if (v->arch < HOPPER || v->arch > HOPPER || !cu.map_make || v->shared < cu_wgmma_shared(WIDE) ||
        cu.device_attribute(&v->multiprocessors, CU_MULTIPROCESSORS, v->ordinal))
        return;
    for (int i = 0; i < v->n_modules; i++)
        v->has_wgmma |= cu.function(&f, v->module[i], "pith_wgmma_f16_128") == CU_SUCCESS;
}

int cu_wgmma_has(const struct device *d, enum op op, enum gpu_code as)
{
    return cu_of(d)->has_wgmma && op != OP_MOE_MATMUL && op != OP_HEAD_MATMUL &&
           (as == GPU_F16 || as == GPU_BF16) && !cu_left_out(cu_of(d), "wgmma");
}

/* Rounds of tiles over all multiprocessors, of which some have none in the last one. */
static int64_t rounds_of(const struct cu_gpu *v, const struct gpu_launch *l, int64_t rows, int tile)
{
    int64_t tiles = (int64_t)l->groups[0] * ((rows + tile - 1) / tile) * l->groups[2];
    int64_t n = v->multiprocessors > 0 ? v->multiprocessors : 1;
    return (tiles + n - 1) / n;
}

/* A wide tile is twice the work; narrow ones read a third more for the same, which is taken to cost
 * three tenths (a guess: no such device was there). */
static int tile_for(const struct cu_gpu *v, const struct gpu_launch *l, int64_t rows)
{
    int64_t wide = rounds_of(v, l, rows, WIDE), narrow = rounds_of(v, l, rows, NARROW);
    return 20 * wide <= 13 * narrow ? WIDE : NARROW;
}

/* A map's matrix begins at a multiple of 16 bytes: tensors do, but that is the loader's affair. A
 * recorded step has its bucket's rows, and x may have room for less: a map never tells of more. */
void cu_wgmma_use(const struct cu_gpu *v, const struct call *c, enum gpu_code as, int64_t rows,
                  struct gpu_launch *l)
{
    rows = rows < c->src[0].cap_rows ? rows : c->src[0].cap_rows;
    if (!cu_wgmma_has(&v->dev, c->op, as) || l->args.w % 16 || rows > UINT32_MAX)
        return;
    l->kernel.family = (enum gpu_family)CU_WGMMA;
    l->args.p[ROWS_AT] = (uint32_t)rows;
    l->kernel.spec[2] = tile_for(v, l, rows);
    l->groups[1] = gpu_row_groups((rows + l->kernel.spec[2] - 1) / l->kernel.spec[2]);
}

/* Numbers of 16 bits, [dim[2]][dim[1]][dim[0]], whose boxes are rows of the first of these with a
 * count of box[]. A stride is documented as a multiple of the one before it, at least its dimension
 * times as large. So several heads cannot lie in one row of x, which has more behind them, and the
 * kernel's second index of x is one alone. */
static cu_result make_map(uint64_t at, const uint64_t dim[3], const uint64_t stride[2],
                          const unsigned box[3], struct cu_map *out)
{
    static const unsigned each[3] = {1, 1, 1};
    return cu.map_make(out, CU_MAP_16_BITS, 3, pointer_of(at), dim, stride, box, each, 0,
                       CU_MAP_SWIZZLE_128, CU_MAP_CACHE_256, 0);
}

pith_status cu_wgmma_maps(struct cu_gpu *v, const struct gpu_launch *l, struct cu_map_args *out,
                          struct pith_error *err)
{
    uint64_t K = l->args.p[0], M = l->args.p[1], lda = l->args.lda;
    const uint64_t w[3] = {K, M, 1}, w_stride[2] = {2 * K, 2 * K * M};
    const uint64_t x[3] = {K, 1, l->args.p[ROWS_AT]}, x_stride[2] = {lda, lda};
    const unsigned w_box[3] = {BOX_NUMBERS, BOX_ROWS, 1};
    const unsigned x_box[3] = {BOX_NUMBERS, 1, (unsigned)l->kernel.spec[2]};
    cu_result r = make_map(l->args.w, w, w_stride, w_box, &out->w);
    if (r == CU_SUCCESS)
        r = make_map(l->args.a, x, x_stride, x_box, &out->x);
    return cu_check(v, r, "a map of a matrix", err);
}
