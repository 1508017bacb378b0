/* common.glsl -- what every shader has: memory by address, its arguments, the step, and functions
 * whose every operation is written out, as graph/ref_math.h defines them. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer F32 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer I32 { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer U32 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer U64 { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer U16 { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer U8 { uint8_t v[]; };

/* Row r of rows `ld` numbers apart. */
F32 row_of(uint64_t base, uint r, uint ld) { return F32(base + 4 * uint64_t(r) * ld); }
I32 ints_of(uint64_t base, uint r, uint ld) { return I32(base + 4 * uint64_t(r) * ld); }

/* struct vk_args of vulkan_impl.h. */
layout(push_constant, std430) uniform Args {
    uint64_t step, dst, a, b, w, bias, extra;
    uint rows, cols, ld, lda, ldb;
    uint p[13];
} arg;
#define ARG_F(i) uintBitsToFloat(arg.p[i])

layout(constant_id = 0) const int SPEC0 = 0;
layout(constant_id = 1) const int SPEC1 = 0;
layout(constant_id = 2) const int SPEC2 = 0;
layout(constant_id = 3) const int SPEC3 = 0;
layout(constant_id = 4) const int SPEC4 = 0;
layout(constant_id = 5) const int SPEC5 = 1;

/* ---------------------------------------------------------------- the step (graph/step.h) */

/* Places of its members, in ints: run.c holds them to the struct. */
const uint STEP_DATA = 236;
const int PAGE = 64, QUARTER = 16;

int step_at(uint i) { return I32(arg.step).v[i]; }
int step_T() { return step_at(0); }
int step_array(uint o, uint i) { return step_at(STEP_DATA + uint(step_at(o)) + i); }
int step_token(uint r) { return step_array(14, r); }
int step_seg(uint r) { return step_array(16, r); }
int step_pos(uint r) { return step_array(18, r); }
int step_out(uint r) { return step_array(20, r); }
int step_first(uint n) { return step_array(22, n); }
uint64_t step_embd_row(uint r, uint n) /* where it begins */
{
    return arg.step + 4ul * uint64_t(STEP_DATA + uint(step_at(28))) + 4ul * uint64_t(r) * n;
}
int step_state(uint n) { return step_array(30, n); }
int step_keep(uint r) { return step_array(32, r); }
int step_plus(uint r) { return step_array(38, r); }
int step_axis(uint r, uint axis) /* one of its four positions */
{
    return axis == 0 ? step_pos(r) : step_array(36, 3 * r + axis - 1);
}
int step_slot(uint g, uint r) { return step_array(40 + 2 * g, r); }
int step_lo(uint g, uint r) { return step_array(88 + 2 * g, r); }
int step_hi(uint g, uint r) { return step_array(136 + 2 * g, r); }
/* Page i of segment n: its place. */
int step_place(uint g, uint n, uint i)
{
    return step_array(184 + 2 * g, n * uint(step_at(9)) + i);
}

/* Rows of a value of this kind in this step. */
uint rows_of(uint kind)
{
    uint which = kind & 3, mul = kind >> 2;
    return which == 3 ? mul : uint(step_at(which)) * mul;
}

/* ---------------------------------------------------------------- functions */

float polynomial6(float x, float c0, float c1, float c2, float c3, float c4, float c5)
{
    return fma(fma(fma(fma(fma(c0, x, c1), x, c2), x, c3), x, c4), x, c5);
}
float polynomial5(float x, float c0, float c1, float c2, float c3, float c4)
{
    return fma(fma(fma(fma(c0, x, c1), x, c2), x, c3), x, c4);
}

float exact_exp(float x)
{
    precise float y = 88.0 < x ? 88.0 : x;
    /* Adding 1.5 2^23 and taking it away again rounds, too, unless a compiler sees through it. */
    precise float n = floor(fma(y, 1.44269504, 0.5));
    precise float r = fma(n, -0.693359375, y);
    r = fma(n, 2.12194440e-4, r);
    precise float p = fma(polynomial6(r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                                      4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
                          r * r, r) + 1.0;
    return y < -87.33 ? 0.0 : p * uintBitsToFloat(uint(int(n) + 127) << 23);
}

float exact_tanh(float x)
{
    precise float a = abs(x), z = x * x, e = exact_exp(a + a);
    precise float low = fma(polynomial5(z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
                                        1.33314422036e-1, -3.33332819422e-1) * z, x, x);
    precise float high = 1.0 - 2.0 / (e + 1.0);
    return a < 0.625 ? low : x < 0 ? -high : high;
}

/* ln of a positive number [Cephes logf]. */
float exact_log(float x)
{
    int e;
    precise float m = frexp(x, e);
    if (m < 0.70710678) {
        e -= 1;
        m = m + m;
    }
    m = m - 1.0;
    precise float z = m * m;
    precise float y = fma(polynomial5(m, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1,
                                      -1.2420140846e-1, 1.4249322787e-1), m, -1.6668057665e-1);
    y = fma(fma(fma(y, m, 2.0000714765e-1), m, -2.4999993993e-1), m, 3.3333331174e-1) * m * z;
    y = fma(float(e), -2.12194440e-4, y);
    y = fma(-0.5, z, y);
    return fma(float(e), 0.693359375, m + y);
}
