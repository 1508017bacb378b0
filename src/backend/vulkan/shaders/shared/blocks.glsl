/* blocks.glsl -- recurrent state: a part of a block (graph/backend.h, state_before, state_kept).
 * arg: extra is the table of slabs; p[0 .. 2]: shift, bytes of a block, where the part begins. */
uint64_t block_at(int block)
{
    uint b = uint(block);
    return U64(arg.extra).v[b >> arg.p[0]] + uint64_t(b & ((1u << arg.p[0]) - 1)) * arg.p[1] +
           arg.p[2];
}
bool has_before(uint seg) { return step_state(seg) >= 0; }
uint64_t before_of(uint seg) { return block_at(step_state(seg)); }
bool is_kept(uint row) { return step_keep(row) >= 0; }
uint64_t kept_of(uint row) { return block_at(step_keep(row)); }

/* Numbers [at, at + n) of the state before a segment, where the scan goes on: the block of its last
 * row. */
F32 scan_from(uint seg, uint at, uint n)
{
    F32 h = F32(kept_of(uint(step_first(seg + 1)) - 1) + 4 * uint64_t(at));
    bool some = has_before(seg);
    F32 from = F32(some ? before_of(seg) + 4 * uint64_t(at) : arg.extra);
    for (uint j = 0; j < n; j++)
        h.v[j] = some ? from.v[j] : 0;
    return h;
}

/* Keeps them after row r of the segment that ends before row `end`. */
void scan_keep(uint r, uint end, F32 h, uint at, uint n)
{
    if (r + 1 == end || !is_kept(r))
        return;
    F32 to = F32(kept_of(r) + 4 * uint64_t(at));
    for (uint j = 0; j < n; j++)
        to.v[j] = h.v[j];
}

/* Tree over 16 chains. */
float tree16(float v[16])
{
    [[unroll]] for (int h = 8; h > 0; h /= 2)
        [[unroll]] for (int j = 0; j < h; j++)
            v[j] = v[j] + v[j + h];
    return v[0];
}
