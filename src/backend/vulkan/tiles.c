/* tiles.c -- which calls run kernels for many rows. Those keep to the order of the kernels for few,
 * so whichever runs, bits are the same, and what is worth it alone decides. */
#include "backend/vulkan/vulkan_impl.h"

#include "graph/ops.h"

/* As tiles.glsl has them: threads, bytes of shared memory (of the larger of both kernels), rows of
 * x in a tile, rows of x that a thread takes, lines of 32 threads. */
enum { THREADS = 256, SHARED = 31 << 10, WIDE = 32, NARROW = 16, PART_N = 8, LINES = 8 };
/* The kernels for few rows take up to this many of them together. */
enum { FEW = 8 };

static int tile_family(int family)
{
    return family == GPU_matmul     ? VK_TILE
           : family == GPU_dp4a     ? VK_DP4A_TILE
           : family == VK_DP4A_DOT  ? VK_DP4A_TILE_DOT
                                    : -1;
}

static void use_product(const struct vk_device *v, const struct call *c, const struct gpu_key *k,
                        struct gpu_launch *l)
{
    int family = tile_family((int)l->kernel.family);
    int64_t takers = l->kernel.spec[1] == 2 ? l->args.p[4] : 1; /* matrices that rows go to */
    int64_t rows = gpu_rows_of(&c->dst, k), cols = rows > NARROW * takers ? WIDE : NARROW;
    int64_t m = (family == VK_TILE ? 8 : 4) * LINES * PART_N / cols;
    uint64_t groups = ((uint64_t)tensor_m(c->w) + (uint64_t)m - 1) / (uint64_t)m;
    if (family < 0 || rows <= FEW * takers || groups > vk_groups(v))
        return;
    l->kernel.family = (enum gpu_family)family;
    l->kernel.spec[2] = (int32_t)cols;
    l->kernel.spec[3] = 0;
    l->groups[0] = (uint32_t)groups;
    l->groups[1] = gpu_row_groups((rows + cols - 1) / cols + takers - 1);
}

/* As attn_tile.comp has them: pairs of a row and a head in a tile, 64 columns of V at most. */
enum { PAIRS = 32, MOST_CHUNKS = 4 };

/* Worth it where the rows of a sequence fill half of a tile; decoding wants many workgroups. */
static void use_attention(const struct call *c, const struct gpu_key *k, struct gpu_launch *l)
{
    const struct attn_op *p = c->p;
    int64_t n_kv = c->state[0]->n_head_kv, heads = p->n_head / n_kv, pairs = k->T * heads;
    if (l->kernel.family != GPU_attn || l->kernel.spec[4] > MOST_CHUNKS || k->T < FEW * k->N ||
        2 * pairs < PAIRS * k->N)
        return;
    l->kernel.family = (enum gpu_family)VK_ATTN_TILE;
    l->groups[0] = (uint32_t)n_kv;
    l->groups[1] = gpu_row_groups(pairs / PAIRS + k->N);
}

int vk_has_tiles(const struct vk_device *v)
{
    return v->threads >= THREADS && v->shared >= SHARED;
}

void vk_use_tile(const struct vk_device *v, const struct call *c, const struct gpu_key *k,
                 struct gpu_launch *l)
{
    if (vk_left_out(v, "tile") || !vk_has_tiles(v))
        return;
    if (op_has(c->op, OP_PRODUCT))
        use_product(v, c, k, l);
    else if (c->op == OP_ATTN)
        use_attention(c, k, l);
}
