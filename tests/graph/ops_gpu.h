/* ops_gpu.h -- part of test_ops.c: what backends of GPUs say of nodes (backend/gpu/ops.c), without
 * one. */

static int gpu_knows(enum op op, const void *p)
{
    struct node x = {.cols = 64}, n = {.op = op, .n_src = 3, .src = {&x, &x, &x}, .p = p};
    struct op_impl impl;
    n.cols = 64;
    n.fmt = ACT_F32;
    return gpu_impl(&n, &impl);
}

/* No two activations are the same number to a kernel: one that nobody has written down there is
 * none. */
static void gpus_know_activations_by_number(void)
{
    static const struct gpu_places at;
    struct gpu_launch l;
    int by[64] = {0}, n = 0;
    for (int act = 0; act < GLU_N; act++) {
        struct glu_op p = {.act = (enum glu_act)act};
        struct call c = {.op = OP_GLU, .n_src = 2, .p = &p, .dst = {.cols = 64, .rows_mul = 1}};
        if (!gpu_knows(OP_GLU, &p))
            continue;
        gpu_launch(&c, &at, &l);
        n++;
        REQUIRE(l.kernel.spec[1] >= 0 && l.kernel.spec[1] < 64, "%d", l.kernel.spec[1]);
        int *other = &by[l.kernel.spec[1]];
        CHECK_MSG(!*other, "activation %d is run as %d", act, *other - 1);
        *other = act + 1;
    }
    CHECK_MSG(n >= 17, "%d activations have kernels", n);
    CHECK(!gpu_knows(OP_GLU, &(struct glu_op){.act = GLU_N}));
}

/* Kinds of an op that its kernel was not written for. */
static void gpus_refuse_what_they_do_not_know(void)
{
    struct topk_op topk = {.k = 2};
    struct pool_op pool = {0};
    struct linear_op linear = {.n_head = 1, .d_k = 64, .d_v = 64};
    struct adapt_op adapt = {.rank = 1};
    for (int i = 0; i <= 6; i++) {
        topk.gating = (enum moe_gating)i;
        pool.kind = (enum pool_kind)i;
        linear.rule = (enum scan_rule)i;
        adapt.kind = (enum adapt_kind)i;
        CHECK_MSG(gpu_knows(OP_TOPK, &topk) == (i <= MOE_SQRT_SOFTPLUS), "gating %d", i);
        CHECK_MSG(gpu_knows(OP_POOL, &pool) == (i <= POOL_LAST), "pool %d", i);
        CHECK_MSG(gpu_knows(OP_LINEAR, &linear) == (i <= SCAN_RANK1), "rule %d", i);
        CHECK_MSG(gpu_knows(OP_ADAPT, &adapt) == (i <= ADAPT_EXPERTS), "adapter %d", i);
    }
}

/* An op needs no kernel; but one that has been there does not go unseen. */
static void gpus_have_kernels_for_most_ops(void)
{
    enum { KERNELS = 58 };
    char without[400] = "";
    int n = 0;
    for (int op = 0; op < OP_COUNT; op++) {
        size_t at = strlen(without);
        n += gpu_has((enum op)op);
        if (!gpu_has((enum op)op))
            snprintf(without + at, sizeof without - at, " %s", op_infos[op]->name);
    }
    printf("# no kernel on GPUs:%s\n", without);
    CHECK_MSG(n == KERNELS, "%d ops have kernels, where %d had; without:%s", n, KERNELS, without);
}
