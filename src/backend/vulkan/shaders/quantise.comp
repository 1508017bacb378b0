#include "common.glsl"
/* quantise.comp -- rows of numbers, rounded as dp4a.glsl reads them: a thread for each 32. */
layout(local_size_x = 64) in;

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (32 * i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        F32 x = F32(uint64_t(row_of(arg.a, r, arg.lda)) + 128 * uint64_t(i));
        uint64_t y = arg.dst + uint64_t(r) * arg.ld;
        float most = 0;
        for (int j = 0; j < 32; j++)
            most = abs(x.v[j]) > most ? abs(x.v[j]) : most;
        precise float d = most / 127, id = d > 0 ? 1.0 / d : 0;
        for (int j = 0; j < 8; j++) {
            uint word = 0;
            for (int b = 0; b < 4; b++) {
                precise float q = x.v[4 * j + b] * id;
                word |= uint(int(roundEven(q)) & 255) << (8 * b);
            }
            I32(y + 32 * uint64_t(i)).v[j] = int(word);
        }
        F32(y + arg.cols).v[i] = d;
    }
}
