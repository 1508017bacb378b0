/* dot.glsl -- what products of codes have in common. A unit is the numbers of a weight that have
 * one scale: 32, or 16 of some types. DOT: four bytes at a time by the device's own instruction;
 * the same integers, so the same bits.
 *
 *     a rounded row   [columns] bytes, [columns / 32] scales: `lda` bytes from row to row, `ldb`
 *                     columns */
#define SHORT_UNIT                                                                                 \
    (TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q6_K || TYPE == T_IQ2_XS || TYPE == T_IQ2_S ||  \
     TYPE == T_IQ1_M || TYPE == T_NVFP4)
#define UNIT (SHORT_UNIT ? 2 : 4) /* in octets */

#ifdef DOT /* OpSDot of four bytes in a word: its last operand, 0, says so */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450) int dot4(uint a, uint b, spirv_literal int format);
int dp4a(uint a, uint b, int c) { return c + dot4(a, b, 0); }
#else
int dp4a(uint a, uint b, int c)
{
    [[unroll]] for (int i = 0; i < 32; i += 8)
        c += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return c;
}
#endif
int dot8(uvec2 a, uvec2 b, int c) { return dp4a(a.x, b.x, dp4a(a.y, b.y, c)); }
