/* mm_lanes.inl -- what both vector widths of x86 share. */

/* Makes the value be computed here: gcc otherwise delays the additions and spills every product. */
#define PIN(v) __asm__("" : "+v"(v))
/* Keeps a result that nobody reads. */
#define USE(v) __asm__ volatile("" : : "v"(v))

/* Denormal inputs and results become zero from flush_begin to flush_end, which says whether that
 * went another way than the law's. */
typedef unsigned flush_state;
INLINE flush_state flush_begin(void)
{
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return saved;
}
INLINE int flush_end(flush_state saved)
{
    _mm_setcsr(saved);
    return 0;
}

/* Returns their sum. */
INLINE int32_t store_16_bytes(int8_t *q, __m128i bytes)
{
    const __m128i sum = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)),
                                     _mm_setzero_si128()); /* of bytes + 128, by eights */
    _mm_storeu_si128((void *)q, bytes);
    return _mm_cvtsi128_si32(sum) + _mm_extract_epi16(sum, 4) - 16 * 128;
}

/* 32 bytes as unsigned ones, 128 more than they are. */
INLINE void plus_128(void *out, const int8_t *x)
{
    _mm256_store_si256(
        out, _mm256_xor_si256(_mm256_loadu_si256((const void *)x), _mm256_set1_epi8(-128)));
}

/* out[0] and out[4]: -16 times the sums of the 16 bytes at x and of the 16 behind them. */
INLINE void minus_sums_of_16(int32_t out[8], const int8_t *x)
{
    const __m256i v =
        _mm256_xor_si256(_mm256_loadu_si256((const void *)x), _mm256_set1_epi8(-128));
    __m256i sum = _mm256_sad_epu8(v, _mm256_setzero_si256()); /* of bytes + 128, by eights */
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
    sum = _mm256_sub_epi32(_mm256_set1_epi32(16 * 16 * 128), _mm256_slli_epi32(sum, 4));
    _mm256_store_si256((void *)out, sum);
}
