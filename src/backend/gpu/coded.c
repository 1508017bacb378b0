/* coded.c -- products with rounded rows: rows of x are rounded to bytes and a scale for each 32
 * (quantise), and multiplied with the codes of weights in blocks (dp4a); or to the 16 bits that
 * weights have (halve). One piece of memory holds the rounded rows of one call after the other. */
#include "backend/gpu/gpu.h"

int64_t gpu_rows_of(const struct value *v, const struct gpu_key *k)
{
    return gpu_rows_in(v, k->T, k->R, k->N);
}

enum gpu_code gpu_code_of(const struct gpu_job *j, const struct call *c)
{
    int mine = j->code_of && c->dst.device == j->dev->index && op_has(c->op, OP_PRODUCT);
    return mine ? j->code_of(j->dev, c->w) : GPU_NONE;
}

/* From one rounded row to the next. */
static uint64_t coded_bytes(const struct value *v, enum gpu_code as)
{
    uint64_t n = (uint64_t)v->cols;
    return as == GPU_NONE    ? 0
           : as == GPU_BYTES ? (uint64_t)act_coded_bytes(v->cols)
                             : size_align(2 * n + 4, 16);
}

uint64_t gpu_codes_bytes(const struct gpu_job *j)
{
    const struct plan *p = j->p.plan;
    uint64_t most = 0;
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        const struct value *x = &c->src[0];
        uint64_t n = coded_bytes(x, gpu_code_of(j, c)) * (uint64_t)x->cap_rows;
        n = x->fmt == ACT_CODED ? 0 : n;
        most = n > most ? n : most;
    }
    return most;
}

pith_status gpu_codes_make(struct gpu_job *j, struct pith_error *err)
{
    return buffer_alloc(j->dev, gpu_codes_bytes(j), PITH_MEM_SCRATCH, &j->codes, err);
}

static int same_rows(const struct value *a, const struct value *b)
{
    return a->offset == b->offset && a->rows == b->rows && a->rows_mul == b->rows_mul &&
           a->cols == b->cols && a->ld == b->ld;
}

int gpu_round(struct gpu_job *j, const struct call *c, const struct gpu_key *k, enum gpu_code as,
              struct gpu_launch *l, struct gpu_launch *round)
{
    const struct value *x = &c->src[0];
    uint64_t bytes = coded_bytes(x, as);
    if (x->fmt == ACT_CODED) { /* they came so */
        l->kernel.family = GPU_dp4a;
        l->args.lda = (uint32_t)bytes;
        l->args.ldb = (uint32_t)x->cols;
        return 0;
    }
    int again = j->coded_as != as || !same_rows(&j->coded, x);
    *round = (struct gpu_launch){.kernel.family = GPU_quantise};
    round->args = (struct gpu_args){.step = l->args.step,
                                    .dst = j->address(&j->codes),
                                    .a = l->args.a,
                                    .rows = (uint32_t)x->rows | (uint32_t)x->rows_mul << 2,
                                    .cols = (uint32_t)x->cols,
                                    .ld = (uint32_t)bytes,
                                    .lda = l->args.lda};
    round->groups[0] = as == GPU_BYTES ? (uint32_t)((x->cols / 32 + 63) / 64) : 1;
    round->groups[1] = gpu_row_groups(gpu_rows_of(x, k));
    round->groups[2] = 1;
    if (as == GPU_BYTES)
        l->kernel.family = GPU_dp4a;
    l->args.a = round->args.dst;
    l->args.lda = round->args.ld;
    l->args.ldb = round->args.cols;
    j->coded = *x;
    j->coded_as = as;
    return again;
}
