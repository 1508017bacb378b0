/* flash.c -- which attention runs on tensor cores (kernels/flash.cu): that over pages of 16 bits or
 * of blocks, for who has not asked for the same bits from steps of any size. K and V that are kept
 * as f32 are multiplied as f32 (kernels/attn.cu). Devices of compute capability 9.0 have a kernel
 * of their own for many rows, for heads of three sizes; no such device was there to run it. */
#include "backend/cuda/cuda_impl.h"

#include "graph/kv_page.h"
#include "graph/ops/attention.h"

/* Rows of a step beside one for each sequence, from which on they are many: a tile of K and V is
 * all warps'. Else each warp has its own. */
enum { MANY = 31 };
/* Parts of a row of a step of few rows are no shorter. */
enum { LEAST_PART = 256 };

/* LATENT: of latent rows, which have one size. */
enum { LATENT = 576, LATENT_V = 512, LATENT_ROWS = 64 };
static const int sizes[] = {64, 80, 96, 128, 192, 256};

/* WIDE: of many rows by four warps together, a page's slots at a time. HOPPER: what has that. */
enum { WIDE_ROWS = 128, WIDE_SLOTS = 64, WIDE_WARPS = 8, EIGHT_LINES = 1024, HOPPER = 90 };

/* As flash.cu has them: rows of a block, slots of a tile. */
static int tile_rows(int family, int size)
{
    switch (family) {
    case CU_FLASH_LATENT:
        return LATENT_ROWS;
    case CU_FLASH_FEW:
        return 16;
    case CU_FLASH_WIDE:
        return WIDE_ROWS;
    default:
        return size <= 128 ? 128 : 64;
    }
}

static int tile_slots(int size, int few)
{
    return few ? (size < 128 ? 32 : 16) : size <= 96 ? 64 : 32;
}

static uint32_t latent_shared(void)
{
    int halves = (LATENT_ROWS + 2 * 32) * (LATENT + 8) + LATENT_ROWS * (32 + 8);
    return (uint32_t)(2 * halves + (16 + 8) * LATENT_ROWS + 128);
}

/* Rows of Q and what is known of them, then two tiles each of K and V; all begin at eight lines. */
static uint32_t wide_shared(int size)
{
    int rows = WIDE_ROWS * (2 * size + 16) + 16 * WIDE_WARPS;
    rows = (rows + EIGHT_LINES - 1) / EIGHT_LINES * EIGHT_LINES;
    return (uint32_t)(EIGHT_LINES + rows + 4 * WIDE_SLOTS * 2 * size);
}

uint32_t cu_flash_shared(int family, int size)
{
    if (family == CU_FLASH_LATENT)
        return latent_shared();
    if (family == CU_FLASH_WIDE)
        return wide_shared(size);
    int few = family == CU_FLASH_FEW, rows = tile_rows(family, size);
    int slots = tile_slots(size, few), tiles = few ? 4 : 1;
    int halves = rows * (size + 8) + tiles * (slots * (size + 8) + size * (slots + 8));
    return (uint32_t)(2 * halves + 16 * rows + 64 + 128 * tiles);
}

/* Pages of it are tiles as they are, or by way of f16. */
static int has_tiles(const struct cu_gpu *v, const struct state *kv)
{
    enum dtype k_type = kv->k_type, v_type = kv_v_type(kv);
    if (k_type == DT_BF16 || v_type == DT_BF16)
        return k_type == v_type && v->arch >= 80;
    return k_type != DT_F32 && v_type != DT_F32;
}

/* V in K, or both apart. */
static int size_of(const struct state *kv)
{
    int64_t most = kv->d_k > kv_padded(kv->d_v) ? kv->d_k : kv_padded(kv->d_v);
    if (state_is(kv, STATE_V_IN_K))
        return !kv_has_blocks(kv->k_type) && most <= LATENT && kv->d_v <= LATENT_V ? LATENT : 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] >= most && kv_has_v(kv) && !state_is(kv, STATE_FLAT))
            return sizes[i];
    return 0;
}

static int family_of(int size, int few)
{
    return size == LATENT ? CU_FLASH_LATENT : few ? CU_FLASH_FEW : CU_FLASH;
}

int cu_flash_size(const struct device *d, const struct attn_op *p, int32_t n_states,
                  const struct state *kv, int few)
{
    const struct cu_gpu *v = cu_of(d);
    int size = size_of(kv);
    if (d->reproducible || n_states != 1 || p->list || kv->ratio > 1 || !has_tiles(v, kv) ||
        cu_left_out(v, "mma") || cu_left_out(v, "flash"))
        return 0;
    return cu_flash_shared(family_of(size, few), size) <= v->shared ? size : 0;
}

void cu_flash_find(struct cu_gpu *v)
{
    cu_function f;
    v->has_flash_wide = 0;
    if (v->arch < HOPPER || v->arch > HOPPER)
        return;
    for (int i = 0; i < v->n_modules; i++)
        v->has_flash_wide |= cu.function(&f, v->module[i], "pith_flash_wide_f16_64") == CU_SUCCESS;
}

int cu_flash_is_wide(const struct device *d, const struct attn_op *p, int32_t n_states,
                     const struct state *kv)
{
    const struct cu_gpu *v = cu_of(d);
    int size = cu_flash_size(d, p, n_states, kv, 0);
    return v->has_flash_wide && (size == 64 || size == 128 || size == 256) &&
           !kv_has_blocks(kv->k_type) && cu_flash_shared(CU_FLASH_WIDE, size) <= v->shared &&
           !cu_left_out(v, "wgmma") && !cu_left_out(v, "flash_wide");
}

/* Parts of a row, as many as there is room for: one for each span, and for few rows several of a
 * span; else one for all. *slots: of a part. */
static int32_t parts_of(const struct value *parts, const struct gpu_key *pick, int few,
                        int32_t *slots)
{
    int64_t room = parts->cap_rows / (pick->T > 0 ? pick->T : 1);
    int32_t n = pick->spans <= room ? pick->spans : 1;
    *slots = ATTN_SPAN;
    for (; few && n >= pick->spans && 2 * n <= room && *slots > LEAST_PART; *slots /= 2)
        n *= 2;
    return n;
}

void cu_flash_use(const struct device *d, const struct call *c, const struct gpu_key *k,
                  const struct gpu_key *pick, struct gpu_launch *l)
{
    const struct attn_op *p = c->p;
    int is_merge = c->op == OP_ATTN_MERGE, few = pick->T - pick->N < MANY;
    int32_t slots;
    int size = c->op == OP_ATTN || is_merge ? cu_flash_size(d, p, c->n_states, c->state[0], few)
                                            : 0;
    if (!size)
        return;
    int32_t n = parts_of(is_merge ? &c->src[0] : &c->dst, pick, few, &slots);
    if (is_merge) {
        l->args.p[2] = (uint32_t)n;
        return;
    }
    int family = !few && cu_flash_is_wide(d, p, c->n_states, c->state[0]) ? CU_FLASH_WIDE
                                                                         : family_of(size, few);
    int64_t heads = c->state[0]->n_head_kv, rows = tile_rows(family, size);
    l->kernel.family = (enum gpu_family)family;
    l->kernel.spec[4] = size;
    l->args.ldb = (uint32_t)slots;
    l->args.p[12] = (uint32_t)n;
    l->groups[0] = (uint32_t)(k->T * (p->n_head / heads) / rows + k->N);
    l->groups[1] = (uint32_t)heads;
    l->groups[2] = (uint32_t)n;
}
