#include "common.glsl"
#include "types.glsl"
/* embed.comp -- rows of a table as numbers (EMBED, VECTOR, GATHER of graph/ops/move.c), one
 * thread for eight of them. p: rows of the table, by, row, of_embd, scale; numbers of a row of the
 * table; tokens that are embedded as others, which `extra` lists. */
layout(local_size_x = 64) in;

const int BY_TOKEN = 0, BY_POSITION = 1, BY_ROW = 2, BY_VALUE = 3, BY_INTS = 4, EMBED = 5,
          VECTOR = 6;
#define TYPE SPEC0
#define BY   SPEC1

int table_row(uint r, uint part)
{
    int n = int(arg.p[0]), at = int(arg.p[2]);
    if (BY == EMBED || BY == BY_TOKEN)
        at = step_token(r) < 0 ? int(arg.p[3]) : step_token(r);
    if (BY == EMBED) {
        uint token = uint(at);
        for (uint i = 0; i < arg.p[6]; i++)
            if (U32(arg.extra).v[2 * i] == token)
                at = int(U32(arg.extra).v[2 * i + 1]);
    } else if (BY == BY_POSITION)
        at += step_pos(r);
    else if (BY == BY_INTS)
        at = ints_of(arg.a, r, arg.lda).v[part];
    else if (BY == BY_VALUE) {
        float v = row_of(arg.a, r, arg.lda).v[0];
        at = v > 0 ? v < float(n) ? int(v) : n - 1 : 0;
    }
    return clamp(at, 0, n - 1);
}

void main()
{
    uint width = arg.p[5], octets = (width + 7) / 8, u = gl_GlobalInvocationID.x;
    uint part = u / octets, k8 = u % octets, n = rows_of(arg.rows);
    if (part * width >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        F32 y = F32(arg.dst + 4 * (uint64_t(r) * arg.ld + uint64_t(part) * width));
        bool given = BY == VECTOR || (BY == EMBED && step_token(r) < 0);
        bool plus = BY == EMBED && !given && step_plus(r) != 0;
        if (given)
            plain(T_F32, step_embd_row(r, width), 8 * k8, width);
        else
            decode8(TYPE, arg.w + uint64_t(table_row(r, part)) * row_bytes(TYPE, width), k8, width);
        precise float z[8];
        for (uint i = 0; i < 8; i++)
            z[i] = given ? w8[i] : w8[i] * ARG_F(4);
        if (plus) {
            plain(T_F32, step_embd_row(r, width), 8 * k8, width);
            for (uint i = 0; i < 8; i++)
                z[i] = z[i] + w8[i];
        }
        for (uint i = 0; i < 8 && 8 * k8 + i < width; i++)
            y.v[8 * k8 + i] = z[i];
    }
}
