#include "common.glsl"
/* quantise.comp -- rows of numbers, rounded as dp4a.glsl reads them: a thread for each 32, as
 * tensor/act.h rounds them: what is not finite is not lost. */
layout(local_size_x = 64) in;

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (32 * i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        F32 x = F32(uint64_t(row_of(arg.a, r, arg.lda)) + 128 * uint64_t(i));
        uint64_t y = arg.dst + uint64_t(r) * arg.ld;
        uint top = 0;
        for (int j = 0; j < 32; j++)
            top = max(top, floatBitsToUint(x.v[j]) & 0x7fffffffu);
        bool none = top < 7u << 23; /* less than 2^-120 */
        precise float d = none ? 0 : uintBitsToFloat(top) / 127;
        precise float id = none ? 0 : 127 / uintBitsToFloat(top);
        for (int j = 0; j < 8; j++) {
            uint word = 0;
            for (int b = 0; b < 4; b++) {
                precise float q = x.v[4 * j + b] * id;
                q = q > -127 ? q : -127; /* what is no number, too */
                q = q < 127 ? q : 127;
                word |= uint(int(roundEven(q)) & 255) << (8 * b);
            }
            I32(y + 32 * uint64_t(i)).v[j] = int(word);
        }
        F32(y + arg.cols).v[i] = d;
    }
}
