#include "common.glsl"
#include "blocks.glsl"
#include "types.glsl"
/* tokens.comp -- numbers of tokens and of distances (TOKEN_NUMBER, NGRAM of graph/ops/move.c,
 * BIAS_TABLE of graph/ops/attention.c), a thread a column. */
layout(local_size_x = 64) in;

const int NUMBER = 0, NGRAM = 1, TABLE = 2, ENTRIES = 288;
#define OP   SPEC0
#define TYPE SPEC1

/* extra: p[0] pairs of a token and its number; p[1]: that of others. */
float number_of(uint r)
{
    U32 list = U32(arg.extra);
    float y = ARG_F(1);
    for (uint i = 0; step_token(r) >= 0 && i < arg.p[0]; i++)
        if (list.v[2 * i] == uint(step_token(r)))
            y = uintBitsToFloat(list.v[2 * i + 1]);
    return y;
}

/* p[3 ..]: size, heads, end, that of embedding rows. The token `back` rows before row r, plus 1;
 * 0: there is none. */
uint64_t before(uint r, int back)
{
    uint seg = uint(step_seg(r));
    int i = int(r) - back - step_first(seg);
    if (i < 0)
        return has_before(seg) ? uint64_t(F32(before_of(seg)).v[i + int(arg.p[3]) - 1]) : 0;
    int token = step_token(r - uint(back));
    return 1 + uint64_t(token < 0 ? arg.p[6] : uint(token));
}

/* bias: factors of tokens, then where each head's stretch begins, then how long it is. */
void ngram(uint r, uint head)
{
    uint size = arg.p[3], all = (size - 1) * arg.p[4];
    U64 factor = U64(arg.bias);
    uint64_t mix = (before(r, 0) - 1) * factor.v[0];
    bool over = false;
    for (uint k = 1; k <= head / arg.p[4] + 1; k++) {
        uint64_t t = before(r, int(k));
        over = over || t == 0 || t == uint64_t(arg.p[5]) + 1;
        mix ^= (over ? uint64_t(arg.p[5]) : t - 1) * factor.v[k];
    }
    ints_of(arg.dst, r, arg.ld).v[head] =
        int(mix % factor.v[size + all + head] + factor.v[size + head]);
    for (uint k = 0; head == 0 && is_kept(r) && k < size - 1; k++)
        F32(kept_of(r)).v[k] = float(before(r, int(size - 2 - k)));
}

/* extra: the row of w of each entry of a head. p[0]: heads. */
float entry_of(uint i)
{
    uint head = i / ENTRIES, row = U32(arg.extra).v[i % ENTRIES];
    decode8(TYPE, arg.w + uint64_t(row) * row_bytes(TYPE, arg.p[0]), head / 8, arg.p[0]);
    float x = 0;
    [[unroll]] for (int j = 0; j < 8; j++)
        x = head % 8 == j ? w8[j] : x;
    return x;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, n = rows_of(arg.rows);
    if (i >= arg.cols)
        return;
    for (uint r = gl_WorkGroupID.y; r < n; r += gl_NumWorkGroups.y) {
        if (OP == NGRAM)
            ngram(r, i);
        else
            row_of(arg.dst, r, arg.ld).v[i] = OP == NUMBER ? number_of(r) : entry_of(i);
    }
}
