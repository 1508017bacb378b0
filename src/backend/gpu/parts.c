/* parts.c -- calls that are one launch in steps of few rows and several in those of many. A gated
 * product (MATMUL_GLU) of few rows makes rows of both matrices side by side (matmul, dp4a). Of many
 * it is the two products, which have kernels for that, and then what joins them: as it would be
 * without fusion, with a place of the job's own for the second product. */
#include "backend/gpu/gpu.h"

#include "graph/ops/product.h"

/* Up to so many rows have kernels that take them together. */
enum { FEW = 8 };

static int is_gated(const struct gpu_job *j, const struct call *c)
{
    return c->op == OP_MATMUL_GLU && c->dst.device == j->dev->index;
}

uint64_t gpu_beside_bytes(const struct gpu_job *j)
{
    const struct plan *p = j->p.plan;
    uint64_t most = 0;
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        uint64_t n = is_gated(j, c) && c->dst.cap_rows > FEW ? value_bytes(&c->dst) : 0;
        most = n > most ? n : most;
    }
    return most;
}

pith_status gpu_beside_make(struct gpu_job *j, struct pith_error *err)
{
    return buffer_alloc(j->dev, gpu_beside_bytes(j), PITH_MEM_SCRATCH, &j->beside, err);
}

int gpu_made_of(const struct gpu_job *j, const struct call *c, const struct gpu_key *k,
                struct call out[GPU_PARTS])
{
    if (!is_gated(j, c) || gpu_rows_of(&c->dst, k) <= FEW)
        return 0;
    struct call *gate = &out[0], *up = &out[1], *join = &out[2];
    *gate = *up = *join = *c;
    gate->op = up->op = OP_MATMUL;
    gate->p = up->p = NULL;
    gate->w2 = up->w2 = NULL;
    up->w = c->w2;
    up->w_data = c->w2_data;
    up->dst.offset = j->address(&j->beside) - j->at.act; /* as kernels count, modulo 2^64 */
    join->op = OP_GLU;
    join->w = join->w2 = NULL;
    join->n_src = 2;
    join->src[0] = c->dst;
    join->src[1] = up->dst;
    return GPU_PARTS;
}
