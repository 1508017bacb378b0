/* mm_sdot.inl -- one column with sdot, for mm_dotprod.c and the columns that mm_i8mm.c cannot pair.
 */

/* sum += the products of n groups (8 or 4) with the 4n bytes at x. The quad's number is a constant
 * of the instruction. */
INLINE void dot_one(vi *sum, const vi *q, const int8_t *x, const int n)
{
    UNROLL for (int g = 0; g < n; g += 4)
    {
        const int8x16_t four = vld1q_s8(x + 4 * g);
        sum[0] = vdotq_laneq_s32(sum[0], (int8x16_t)q[g], four, 0);
        sum[0] = vdotq_laneq_s32(sum[0], (int8x16_t)q[g + 1], four, 1);
        sum[0] = vdotq_laneq_s32(sum[0], (int8x16_t)q[g + 2], four, 2);
        sum[0] = vdotq_laneq_s32(sum[0], (int8x16_t)q[g + 3], four, 3);
    }
}
