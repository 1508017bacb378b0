/* mm_types.inl -- the block types, each with its instances for constant column counts
 * (mm_blocks.inl and one of its kinds come first).
 *
 * Up to `once` columns take all slices of a block at once; else slices are the outer loop, and the
 * chunk of the panel stays in the first-level cache for all of them. Which counts there are depends
 * on the kind, whose registers decide what is fast, and on how common a type is: code costs build
 * time and bytes. */

#define INSTANCE(name, nc, once, rows, ...)                                                        \
    NOINLINE void name##_##nc(const struct piece *p)                                               \
    {                                                                                              \
        enum { S = nc <= once ? SLICES : 1 };                                                      \
        for (int s = 0; s < SLICES; s += S)                                                        \
            rows(p, ##__VA_ARGS__, s, S, nc);                                                      \
    }
#define FEW(name, once, ...)                                                                       \
    INSTANCE(name, 1, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 2, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 3, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 4, once, __VA_ARGS__)
#define WALK(name, block, bytes, few, some, many, ...)                                             \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)             \
    {                                                                                              \
        static piece_fn *const fn[] = {0, name##_1, name##_2, name##_3, name##_4, __VA_ARGS__};    \
        walk_tile(fn, few, some, many, panel, n / (block), CHUNK_BYTES / (bytes), a, y);           \
    }
/* 1, 2, 4 and, where there are more, 8: the fewest bytes */
#define ONE_TWO_FOUR(name, once, ...)                                                              \
    INSTANCE(name, 1, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 2, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 4, once, __VA_ARGS__)
#define BY_TWO_TO_4(once, name, block, bytes, ...)                                                 \
    ONE_TWO_FOUR(name, once, __VA_ARGS__)                                                          \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)             \
    {                                                                                              \
        static piece_fn *const fn[] = {[1] = name##_1, [2] = name##_2, [4] = name##_4};            \
        walk_tile(fn, 2, 4, 4, panel, n / (block), CHUNK_BYTES / (bytes), a, y);                   \
    }
#define BY_TWO_TO_8(once, name, block, bytes, ...)                                                 \
    ONE_TWO_FOUR(name, once, __VA_ARGS__)                                                          \
    INSTANCE(name, 8, once, __VA_ARGS__)                                                           \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)             \
    {                                                                                              \
        static piece_fn *const fn[] = {[1] = name##_1, [2] = name##_2, [4] = name##_4,             \
                                       [8] = name##_8};                                            \
        walk_tile(fn, 2, 4, 8, panel, n / (block), CHUNK_BYTES / (bytes), a, y);                   \
    }
/* 1..4 */
#define UP_TO_4(once, name, block, bytes, ...)                                                     \
    FEW(name, once, __VA_ARGS__)                                                                   \
    WALK(name, block, bytes, 4, 4, 4, 0)
/* 1..4 and 8 */
#define UP_TO_4_AND_8(once, name, block, bytes, ...)                                               \
    FEW(name, once, __VA_ARGS__)                                                                   \
    INSTANCE(name, 8, once, __VA_ARGS__)                                                           \
    WALK(name, block, bytes, 4, 8, 8, [8] = name##_8)
/* 1..4 and 16 */
#define UP_TO_4_AND_16(once, name, block, bytes, ...)                                              \
    FEW(name, once, __VA_ARGS__)                                                                   \
    INSTANCE(name, 16, once, __VA_ARGS__)                                                          \
    WALK(name, block, bytes, 4, 16, 16, [16] = name##_16)
/* 1..4, 8 and 16 */
#define UP_TO_4_8_AND_16(once, name, block, bytes, ...)                                            \
    FEW(name, once, __VA_ARGS__)                                                                   \
    INSTANCE(name, 8, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 16, once, __VA_ARGS__)                                                          \
    WALK(name, block, bytes, 4, 8, 16, [8] = name##_8, [16] = name##_16)
/* 1..8 and 16 */
#define UP_TO_8_AND_16(once, name, block, bytes, ...)                                              \
    FEW(name, once, __VA_ARGS__)                                                                   \
    INSTANCE(name, 5, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 6, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 7, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 8, once, __VA_ARGS__)                                                           \
    INSTANCE(name, 16, once, __VA_ARGS__)                                                          \
    WALK(name, block, bytes, 8, 16, 16, name##_5, name##_6, name##_7, name##_8, [16] = name##_16)

/* Unless the kind has said otherwise. */
#ifndef TYPE
#ifdef SIXTEEN
#define TYPE(...)      UP_TO_8_AND_16(2, __VA_ARGS__)
#define RARE_TYPE(...) UP_TO_4_AND_16(2, __VA_ARGS__)
#else
#define TYPE(...)      UP_TO_4_AND_8(2, __VA_ARGS__)
#define RARE_TYPE(...) UP_TO_4(2, __VA_ARGS__)
#endif
#define BYTES_TYPE       TYPE
#define FIFTH_TYPE       TYPE
#define VALUE_TYPE       RARE_TYPE
#define FP4_TYPE         TYPE
#define NIBBLE_TYPE      TYPE
#define RARE_NIBBLE_TYPE RARE_TYPE
#define FEW_BITS_TYPE    RARE_TYPE
#define NVFP4_TYPE       RARE_TYPE
#endif

BYTES_TYPE(q8_0, 32, P16_Q8_0, mm32_rows, Q8_0)
NIBBLE_TYPE(q4_0, 32, P16_Q4_0, mm32_rows, Q4_0)
RARE_NIBBLE_TYPE(q4_1, 32, P16_Q4_1, mm32_rows, Q4_1)
FIFTH_TYPE(q5_0, 32, P16_Q5_0, mm32_rows, Q5_0)
RARE_TYPE(q5_1, 32, P16_Q5_1, mm32_rows, Q5_1)
VALUE_TYPE(iq4_nl, 32, P16_IQ4_NL, mm32_rows, IQ4_NL)
FP4_TYPE(mxfp4, 32, P16_MXFP4, mm32_rows, MXFP4)
RARE_TYPE(q2_K, 256, P16_Q2_K, mm256_rows, Q2_K)
RARE_TYPE(q3_K, 256, P16_Q3_K, mm256_rows, Q3_K)
NIBBLE_TYPE(q4_K, 256, P16_Q4_K, mm256_rows, Q4_K)
FIFTH_TYPE(q5_K, 256, P16_Q5_K, mm256_rows, Q5_K)
TYPE(q6_K, 256, P16_Q6_K, mm256_rows, Q6_K)
VALUE_TYPE(iq4_xs, 256, P16_IQ4_XS, mm256_rows, IQ4_XS)
RARE_TYPE(iq3_xxs, 256, P16_IQ3_XXS, mm256_rows, IQ3_XXS)
RARE_TYPE(iq3_s, 256, P16_IQ3_S, mm256_rows, IQ3_S)
RARE_TYPE(iq2, 256, P16_IQ2_S, mm256_rows, IQ2)
RARE_TYPE(iq1, 256, P16_IQ1_S, mm256_rows, IQ1)
NVFP4_TYPE(nvfp4, 64, P16_NVFP4, nvfp4_rows, NVFP4)
FEW_BITS_TYPE(q1_0, 128, P16_Q1_0, few32_rows, Q1_0)
FEW_BITS_TYPE(q2_0, 64, P16_Q2_0, few32_rows, Q2_0)
FEW_BITS_TYPE(tq, 256, P16_TQ2_0, few256_rows, TQ)

#define KERN_MM_BLOCKS                                                                             \
    [DT_Q8_0] = q8_0, [DT_Q4_0] = q4_0, [DT_Q4_1] = q4_1, [DT_Q5_0] = q5_0, [DT_Q5_1] = q5_1,      \
    [DT_IQ4_NL] = iq4_nl, [DT_MXFP4] = mxfp4, [DT_Q2_K] = q2_K, [DT_Q3_K] = q3_K,                  \
    [DT_Q4_K] = q4_K, [DT_Q5_K] = q5_K, [DT_Q6_K] = q6_K, [DT_IQ4_XS] = iq4_xs,  \
    [DT_IQ3_XXS] = iq3_xxs, [DT_IQ3_S] = iq3_s, [DT_IQ2_XXS] = iq2, [DT_IQ2_XS] = iq2,             \
    [DT_IQ2_S] = iq2, [DT_IQ1_S] = iq1, [DT_IQ1_M] = iq1, [DT_NVFP4] = nvfp4, [DT_Q1_0] = q1_0,    \
    [DT_Q2_0] = q2_0, [DT_TQ1_0] = tq, [DT_TQ2_0] = tq
