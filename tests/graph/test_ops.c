/* test_ops.c -- ops against their definitions, written once more here, and every level of the
 * machine against the reference, by memcmp: widths with tails, heads that lie apart, infinities and
 * NaN. */
#include "op_bench.h"

#include "base/fmath.h"

static float in[1 << 17], want[1 << 18];

/* ---------------------------------------------------------------- RoPE */

struct rope_case {
    struct rope_set set;
    struct rope_op p;
    int32_t heads, of, from; /* heads of p.width within heads of `of` columns, from `from` on */
};

static node build_rope(struct graph *g, node x, void *ctx)
{
    const struct rope_case *r = ctx;
    node table = graph_rope_table(g, &r->set);
    if (r->of)
        x = graph_heads(g, x, &(struct heads_in){r->of, r->from, r->p.width}, "part");
    return graph_rope_part(g, x, table, &r->p, "rope");
}

static void rope_want(const struct rope_case *r, const struct rope_set *set, int T, int n)
{
    int width = r->p.width, of = r->of ? r->of : width, half = set->n_rot / 2;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < r->heads; h++) {
            float *z = want + (t * r->heads + h) * width;
            memcpy(z, in + t * n + h * of + r->from, (size_t)width * sizeof *z);
            for (int i = 0; i < half; i++) {
                double sn, cs;
                fmath_sincos(bench_pos[t] * set->freq[i], &sn, &cs);
                float s = (float)(sn * (double)set->mscale), c = (float)(cs * (double)set->mscale);
                float *a = z + r->p.first + (set->neox ? i : 2 * i);
                float *b = set->neox ? a + half : a + 1, a0 = *a, b0 = *b;
                s = r->p.inverse ? -s : s;
                *a = fmaf(-b0, s, a0 * c);
                *b = fmaf(b0, c, a0 * s);
            }
        }
}

static void rope_turns_a_part_of_each_head(void)
{
    static double freq[64];
    struct rng rng;
    rng_init(&rng, 5);
    for (int i = 0; i < 64; i++)
        freq[i] = 1 / (1 + 0.7 * i);
    for (int i = 0; i < BENCH_ROWS; i++)
        bench_pos[i] = 7 * i - 11;
    for (int n_rot = 2; n_rot <= 70; n_rot += n_rot < 36 ? 2 : 17 + n_rot % 2)
        for (int way = 0; way < 16; way++) {
            struct rope_case r = {
                .set = {.n_rot = n_rot & ~1, .neox = way & 1, .freq = freq, .mscale = 1.25f},
                .p = {.first = way & 2 ? 5 : 0, .inverse = (way & 4) != 0},
                .heads = 3};
            r.p.width = r.set.n_rot + r.p.first + (way & 2 ? 3 : 0);
            r.of = way & 8 ? r.p.width + 9 : 0;
            r.from = way & 8 ? 4 : 0;
            int T = 5, n = r.heads * (r.of ? r.of : r.p.width);
            bench_fill(&rng, in, T * n, way > 11);
            rope_want(&r, &r.set, T, n);
            bench_check((struct bench_case){build_rope, &r, in, T, n, 0, 0, 0, 0, ""}, want,
                        "rope");
        }
}

static void long_sequences_have_a_set_of_their_own(void)
{
    static double near[8] = {1, .5, .25, .1, .05, .02, .01, .001}, far[8] = {.9, .4, .2, .1};
    struct rng rng;
    rng_init(&rng, 6);
    struct rope_set longer = {.n_rot = 16, .neox = 1, .freq = far, .mscale = 1.5f};
    struct rope_case r = {
        .set =
            {.n_rot = 16, .neox = 1, .freq = near, .mscale = 1, .longer = &longer, .n_ctx = 4096},
        .p = {.width = 16},
        .heads = 2};
    bench_fill(&rng, in, 4 * 32, 0);
    rope_want(&r, &r.set, 4, 32);
    bench_check((struct bench_case){build_rope, &r, in, 4, 32, 4096, 0, 0, 0, ""}, want, "short");
    rope_want(&r, &longer, 4, 32);
    bench_check((struct bench_case){build_rope, &r, in, 4, 32, 4097, 0, 0, 0, ""}, want, "long");
}

/* The pair's axis picks one of four positions. Those of text: the same bits as without axes, but
 * for the fourth. */
static void axes_pick_a_position(void)
{
    uint8_t axis[24];
    double freq[24];
    const int32_t sections[4] = {3, 4, 2, 1}, mixed[4] = {4, 5, 6, 3};
    float z[48], plain[48], alone[48];
    for (int i = 0; i < 24; i++)
        freq[i] = 1.0 / (i + 1);
    struct rope_set set = {.n_rot = 48, .freq = freq, .mscale = 1, .axis = axis};
    struct rope_set without = {.n_rot = 48, .freq = freq, .mscale = 1};
    for (int way = 0; way < 2; way++) {
        if (way)
            rope_axis_interleaved(axis, 24, mixed);
        else
            rope_axis_sections(axis, 24, sections);
        for (int i = 0; i < 24; i++) {
            int at = i % 10, section = at < 3 ? 0 : at < 7 ? 1 : at < 9 ? 2 : 3;
            int j = i % 18, third = j % 3 == 0 && j < 12   ? 0
                                    : j % 3 == 1 && j < 15 ? 1
                                    : j % 3 == 2           ? 2
                                                           : 3;
            CHECK_MSG(axis[i] == (way ? third : section), "pair %d has axis %d", i, axis[i]);
        }
        const double pos[4] = {5, 900, 31, 77}, text[4] = {31, 31, 31, 0};
        ref_rope_angles4(&set, pos, 1, z);
        for (int i = 0; i < 24; i++) {
            ref_rope_angles(&without, pos[axis[i]], 1, alone);
            CHECK(z[i] == alone[i] && z[24 + i] == alone[24 + i]);
        }
        ref_rope_angles4(&set, text, 1, z);
        ref_rope_angles(&without, 31, 1, plain);
        for (int i = 0; i < 24; i++)
            CHECK(axis[i] < 3 ? z[i] == plain[i] && z[24 + i] == plain[24 + i]
                              : z[i] == 1 && z[24 + i] == 0);
    }
}

/* ---------------------------------------------------------------- heads that lie apart */

struct heads_case {
    int32_t heads, of, from, width, op;
    const struct tensor *w;
};

static node build_heads(struct graph *g, node x, void *ctx)
{
    const struct heads_case *h = ctx;
    node part = graph_heads(g, x, &(struct heads_in){h->of, h->from, h->width}, "part");
    node rest = graph_heads(g, x, &(struct heads_in){h->of, 0, h->from}, "rest");
    switch (h->op) {
    case 0:
        return graph_rms_norm(g, part, NULL, h->width, 1e-5f, "norm");
    case 1:
        return graph_scale(g, part, 1, "copied");
    case 2: /* half of the width: two norms a head */
        return graph_rms_norm(g, part, NULL, h->width / 2, 1e-5f, "norm");
    case 3: /* the last two columns of the part, then of each head the others */
        return graph_concat(
            g,
            &(struct concat_in){
                .x = {graph_heads(g, part, &(struct heads_in){h->width, h->width - 2, 2}, "tail"),
                      rest},
                .n = 2,
                .n_head = h->heads},
            "concat");
    default: /* one head that all get */
        return graph_concat(g,
                            &(struct concat_in){.x = {part, graph_view(g, x, 1, 3, "shared")},
                                                .n = 2,
                                                .n_head = h->heads,
                                                .shared = 2},
                            "concat");
    }
}

static void norm_want(const float *x, float *z, int n)
{
    float c[64] = {0}, v[16];
    for (int i = 0; i < n; i++)
        c[i % 64] = fmaf(x[i], x[i], c[i % 64]);
    for (int i = 0; i < 16; i++)
        v[i] = (c[i] + c[i + 16]) + (c[i + 32] + c[i + 48]);
    for (int s = 8; s; s /= 2)
        for (int i = 0; i < s; i++)
            v[i] = v[i] + v[i + s];
    float k = 1.0f / sqrtf(v[0] / (float)n + 1e-5f);
    for (int i = 0; i < n; i++)
        z[i] = x[i] * k;
}

static void heads_apart_are_read_where_they_lie(void)
{
    struct rng rng;
    rng_init(&rng, 7);
    for (int width = 2; width < 80; width += width < 20 ? 2 : 14)
        for (int op = 0; op < 5; op++) {
            struct heads_case h = {.heads = 1 + width % 4, .width = width, .from = 3, .op = op};
            h.of = width + 3 + (op & 1);
            int T = 3, n = h.heads * h.of, at = 0;
            bench_fill(&rng, in, T * n, op == 1);
            for (int t = 0; t < T; t++)
                for (int k = 0; k < h.heads; k++) {
                    const float *x = in + t * n + k * h.of + h.from;
                    if (op == 0) {
                        norm_want(x, want + at, width);
                        at += width;
                    } else if (op == 2) {
                        norm_want(x, want + at, width / 2);
                        norm_want(x + width / 2, want + at + width / 2, width / 2);
                        at += width;
                    } else {
                        for (int i = op == 3 ? width - 2 : 0; i < width; i++)
                            want[at++] = x[i];
                        for (int i = 0; op > 2 && i < 3; i++)
                            want[at++] = op == 3 ? x[i - h.from] : in[t * n + 1 + i];
                    }
                }
            bench_check((struct bench_case){build_heads, &h, in, T, n, 0, 0, 0, 0, ""}, want,
                        "heads");
        }
}

static void parts_of_heads_have_to_be_inside(void)
{
    struct heads_case bad[] = {
        {2, 8, 4, 5, 1, NULL}, {2, 7, 1, 2, 1, NULL}, {2, 8, -1, 2, 1, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why =
            bench_refused((struct bench_case){build_heads, &bad[i], in, 1, 16, 0, 0, 0, 0, ""});
        CHECK_MSG(strstr(why, "part of a head"), "case %d: %s", (int)i, why);
    }
    static double freq[8];
    struct rope_case r = {
        .set = {.n_rot = 8, .freq = freq}, .p = {.width = 10, .first = 3}, .heads = 1};
    const char *why = bench_refused((struct bench_case){build_rope, &r, in, 1, 10, 0, 0, 0, 0, ""});
    CHECK_MSG(strstr(why, "rotated part is 11, wanted 10"), "%s", why);
}

int main(void)
{
    TEST(rope_turns_a_part_of_each_head);
    TEST(long_sequences_have_a_set_of_their_own);
    TEST(axes_pick_a_position);
    TEST(heads_apart_are_read_where_they_lie);
    TEST(parts_of_heads_have_to_be_inside);
    bench_reset();
    return test_end();
}
