/* merge.glsl -- partials of one softmax, from left to right (graph/ops/attention.c): thread t has
 * the outputs t, t + 64, .. of a head. */
const int MOST_CHUNKS = 16;
const float NONE = -1.0 / 0.0;

struct partial {
    float m, l, o[MOST_CHUNKS];
};

void merge_part(inout partial all, partial one, int chunks)
{
    if (one.l == 0)
        return;
    if (all.l == 0) {
        all = one;
        return;
    }
    precise float top = all.m > one.m ? all.m : one.m;
    precise float a = exact_exp(all.m - top), b = exact_exp(one.m - top);
    all.l = fma(all.l, a, one.l * b);
    for (int c = 0; c < chunks; c++)
        all.o[c] = fma(all.o[c], a, one.o[c] * b);
    all.m = top;
}

partial no_part(int chunks)
{
    partial p;
    p.m = NONE;
    p.l = 0;
    for (int c = 0; c < chunks; c++)
        p.o[c] = 0;
    return p;
}
