/* kth.glsl -- the k-th greatest of many things, byte by byte, from counts; a workgroup of 64
 * threads. Who includes it has defined THINGS, a struct that says which things there are, and has
 * the function key_of. */

/* The key of thing i. */
uint key_of(THINGS s, uint i);

/* The bits of a number, greater for greater numbers; of none they are the least but 0. */
uint ordered_bits(uint u)
{
    u = u == 0x80000000u ? 0 : u;
    return (u & 0x7fffffffu) > 0x7f800000u ? 1 : u >> 31 != 0 ? ~u : u | 0x80000000u;
}

shared uint count[256], found, rank;

/* The key of the k-th of n things; `rank` of its equals are among the k. */
uint find_kth(THINGS s, uint n, uint k)
{
    uint t = gl_LocalInvocationID.x, prefix = 0, mask = 0, wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint i = t; i < 256; i += 64)
            count[i] = 0;
        barrier();
        for (uint i = t; i < n; i += 64) {
            uint key = key_of(s, i);
            if ((key & mask) == prefix)
                atomicAdd(count[key >> shift & 255], 1);
        }
        barrier();
        if (t == 0) {
            uint above = 0;
            int at = 255;
            for (; at > 0 && above + count[at] < wanted; at--)
                above += count[at];
            found = uint(at);
            rank = wanted - above;
        }
        barrier();
        prefix |= found << shift;
        mask |= 255u << shift;
        wanted = rank;
        barrier();
    }
    return prefix;
}
