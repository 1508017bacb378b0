/* tensor.cuh -- what kernels for tensor cores have in common: rows that are rounded to 16 bits, and
 * a warp's instructions. */
#pragma once
#include "pages.cuh"

/* ---------------------------------------------------------------- numbers of 16 bits */

/* What a row is multiplied by before it is rounded, and what undoes that. f16 is scaled by a power
 * of two, so that the row's largest number has the exponent 14: nothing becomes infinite that was
 * not, and what is lost of small numbers is next to nothing beside the largest. */
struct Scale {
    float up, down;
};
FN Scale scale_of(int type, float most)
{
    int e = (int)(as_uint(most) >> 23) - 127;
    if (type != T_F16 || !(most > 0) || e == 128)
        return Scale{1, 1};
    e = bound(e, -112, 127);
    return Scale{as_float((uint32_t)(14 - e + 127) << 23),
                 as_float((uint32_t)(e - 14 + 127) << 23)};
}

/* Two numbers, rounded. */
template <int TYPE> FN uint32_t pack(float low, float high)
{
#if defined(__CUDACC__)
    if (TYPE == T_F16) {
        __half2 h = __floats2half2_rn(low, high);
        return reinterpret_cast<const uint32_t &>(h);
    }
#if __CUDA_ARCH__ >= 800
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
#else
    return to_bf16(low) | to_bf16(high) << 16;
#endif
#else
    return TYPE == T_F16 ? to_f16(low) | to_f16(high) << 16 : to_bf16(low) | to_bf16(high) << 16;
#endif
}

/* 2^x, to a part in 2^21; of minus infinity 0. */
FN float power_of_two(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

FN float quotient(float a, float b) /* to a few parts in 2^24; 0 of a large b */
{
#ifdef __CUDACC__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

/* ---------------------------------------------------------------- shared memory */

/* What a launch asks for beside a kernel's own. */
#ifdef __CUDACC__
extern __shared__ __align__(16) unsigned char shared_bytes[];
FN void *shared_memory() { return shared_bytes; }
#define ROLLED _Pragma("unroll 1")
#else
FN void *shared_memory() { return host_shared; }
#define ROLLED
#endif

/* Sixteen bytes at a multiple of them; two numbers at a multiple of eight bytes. */
FN void put_quad(void *to, const Quad &q)
{
#ifdef __CUDACC__
    *(uint4 *)to = make_uint4(q.v[0], q.v[1], q.v[2], q.v[3]);
#else
    memcpy(to, &q, sizeof q);
#endif
}
FN void put_two(float *to, float a, float b)
{
#ifdef __CUDACC__
    *(float2 *)to = make_float2(a, b);
#else
    to[0] = a;
    to[1] = b;
#endif
}

/* ---------------------------------------------------------------- a warp's instructions */

/* What the lane has whose number differs from this one's in the bits of `mask`. */
FN uint32_t lane_xor(uint32_t x, int mask)
{
#ifdef __CUDACC__
    return __shfl_xor_sync(0xffffffffu, x, mask);
#else
    return host_lane_xor(x, mask);
#endif
}
FN float lane_xor(float x, int mask) { return as_float(lane_xor(as_uint(x), mask)); }

/* Sixteen bytes on their way into shared memory; none: zeros. */
FN void fetch16(void *to, uint64_t from, bool some)
{
#if !defined(__CUDACC__)
    host_fetch(to, some ? (const void *)(uintptr_t)from : NULL, 16);
#elif __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(some ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)to = some ? *(const uint4 *)(uintptr_t)from : make_uint4(0, 0, 0, 0);
#endif
}
/* A word, at a multiple of four. */
FN void fetch4(uint32_t *to, uint64_t from)
{
#if !defined(__CUDACC__)
    host_fetch(to, (const void *)(uintptr_t)from, 4);
#elif __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
    *to = u32(from);
#endif
}
/* What a thread has fetched up to now is a stage. */
FN void end_stage()
{
#if !defined(__CUDACC__)
    host_end_stage();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* All of a thread's stages but the last N are there. */
template <int N> FN void wait_stages()
{
#if !defined(__CUDACC__)
    host_wait_stages(N);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Four matrices of 8 rows of 16 bytes: lane l says where row l % 8 of matrix l / 8 is, and gets
 * word l % 4 of row l / 4 of each; turned: numbers 2 (l % 4), + 1 of column l / 4. */
FN void matrices4(uint32_t (&r)[4], const uint16_t *row)
{
#ifdef __CUDACC__
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#else
    host_matrices4(r, row, false);
#endif
}
FN void turned4(uint32_t (&r)[4], const uint16_t *row)
{
#ifdef __CUDACC__
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#else
    host_matrices4(r, row, true);
#endif
}

/* c += a b: 16 rows of 16 numbers by 8 columns. a: rows l / 4 and + 8 with words l % 4, then the
 * same of numbers 8 and on; b: of column l / 4. c: row l / 4, columns 2 (l % 4), + 1; rows + 8. */
template <int TYPE>
FN void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if !defined(__CUDACC__)
    host_multiply(c, a, b0, b1, TYPE == T_BF16);
#elif __CUDA_ARCH__ >= 800
    if (TYPE == T_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else /* of bf16 such a device knows nothing: kernels.c does not ask it */
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* ---------------------------------------------------------------- products of four warps */

/* Compute capability 9.0 alone has them (wgmma): operands are in shared memory, in lines of 128
 * bytes, piece p (16 bytes) of line r at piece p ^ r % 8 (the swizzle of 128 bytes), so that no two
 * of eight lines' pieces share banks. */
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FOUR_WARPS

enum { EIGHT_LINES = 8 * 128 };

/* Its own addresses, which instructions take. */
FN uint32_t shared_address(const void *p)
{
#ifdef __CUDACC__
    return (uint32_t)__cvta_generic_to_shared(p);
#else
    return host_window(p);
#endif
}

FN void *eight_lines_of() /* the first place in it where eight lines can begin */
{
    unsigned char *p = (unsigned char *)shared_memory();
    return p + (EIGHT_LINES - shared_address(p) % EIGHT_LINES) % EIGHT_LINES;
}

/* A matrix in shared memory, sixteen numbers of each row, from there on: where it is, 1024 bytes
 * from eight rows to the next, swizzled by 128 bytes. */
FN uint64_t matrix(const uint16_t *p)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
           (uint64_t)(EIGHT_LINES >> 4) << 32 | (uint64_t)1 << 62;
}

/* One whose lines have 64 numbers of each of its rows: sixteen lines are sixteen numbers of a row.
 * `apart`: bytes from 64 rows to the next. */
FN uint64_t matrix_turned(const uint16_t *p, uint32_t apart)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(apart >> 4) << 16 |
           (uint64_t)(EIGHT_LINES >> 4) << 32 | (uint64_t)1 << 62;
}

/* What this thread has written to operands, or has fetched and waited for, is there for products of
 * who meets it afterwards. */
FN void operands_written()
{
#ifdef __CUDACC__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    host_operands_written();
#endif
}

/* Sums that were written before are there for products. */
FN void products_begin()
{
#ifdef __CUDACC__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    host_products_begin();
#endif
}
/* Those since the last end are one group. */
FN void products_end()
{
#ifdef __CUDACC__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    host_products_end();
#endif
}
/* All groups but the last N are done. */
template <int N> FN void products_wait()
{
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#else
    host_products_wait(N);
#endif
}

#define FOUR(i)    "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 1), FOUR(i + 2), FOUR(i + 3)
#define SUMS(i)    SIXTEEN(i), SIXTEEN(i + 4), SIXTEEN(i + 8), SIXTEEN(i + 12)
#define SUMS_TO_31                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31\n"
#define SUMS_TO_63                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,\n"            \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,\n"            \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63\n"
#define SUMS_TO_127                                                                                \
    SUMS_TO_63 ", "                                                                                \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,\n"            \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,\n"            \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110,\n"      \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125,\n"  \
    "%126, %127\n"

/* The compiler moves no sum across: it knows nothing of who writes them meanwhile. */
template <int N> FN void sums_stay([[maybe_unused]] float (&c)[N][4])
{
#ifdef __CUDACC__
    UNROLL for (int e = 0; e < 4 * N; e++)
        asm volatile("" : "+f"(c[e / 4][e % 4])::"memory");
#endif
}

/* Nor an operand in registers, which products read until they are waited for. */
template <int N> FN void operands_stay([[maybe_unused]] uint32_t (&a)[N][4])
{
#ifdef __CUDACC__
    UNROLL for (int e = 0; e < 4 * N; e++)
        asm volatile("" : "+r"(a[e / 4][e % 4])::"memory");
#endif
}

#endif
