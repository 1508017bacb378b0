/* tree.glsl -- sums over a workgroup of 64 threads in one order (ref_tree64), and the largest. */
shared float lane[64];

float tree_sum(float x)
{
    uint t = gl_LocalInvocationID.x;
    barrier();
    lane[t] = x;
    barrier();
    float v = 0;
    if (t < 16)
        v = (lane[t] + lane[16 + t]) + (lane[32 + t] + lane[48 + t]);
    barrier();
    lane[t] = v;
    for (uint h = 8; h > 0; h /= 2) {
        barrier();
        if (t < h)
            lane[t] = lane[t] + lane[t + h];
    }
    barrier();
    return lane[0];
}

float tree_max(float x)
{
    uint t = gl_LocalInvocationID.x;
    barrier();
    lane[t] = x;
    for (uint h = 32; h > 0; h /= 2) {
        barrier();
        if (t < h)
            lane[t] = lane[t + h] > lane[t] ? lane[t + h] : lane[t];
    }
    barrier();
    return lane[0];
}
