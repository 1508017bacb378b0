// header.cpp -- src/backend/cuda/driver.h beside CUDA's own header, where that is: the functions
// have as many parameters of the same sizes and kinds, numbers and structs are the same.
// test_nvcc.sh makes the list of functions, functions.inc: SAME(member, name).
#define __CUDA_API_VERSION_INTERNAL /* every version of a function by its own name */
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

#define _Alignas alignas
namespace ours {
#include "backend/cuda/driver.h"
}

/* A pointer, or a number of so many bytes. */
template <class A, class B>
constexpr bool is_like = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class F, class G> constexpr bool are_like = false;
template <class R, class S, class... A, class... B>
constexpr bool are_like<R (*)(A...), S (*)(B...)> = [] {
    if constexpr (sizeof...(A) == sizeof...(B))
        return is_like<R, S> && (is_like<A, B> && ...);
    return false;
}();

#define SAME(member, name)                                                                         \
    static_assert(are_like<decltype(ours::cu_functions::member), decltype(&::name)>, #name);
#include "functions.inc"

#define EQUAL(own, theirs) static_assert((int)ours::own == (int)::theirs, #theirs);
EQUAL(CU_SUCCESS, CUDA_SUCCESS)
EQUAL(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
EQUAL(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
EQUAL(CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE)
EQUAL(CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU)
EQUAL(CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE)
EQUAL(CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE)
EQUAL(CU_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
EQUAL(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND)
EQUAL(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS)
EQUAL(CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT)
EQUAL(CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED)
EQUAL(CU_ASSERT, CUDA_ERROR_ASSERT)
EQUAL(CU_HARDWARE_STACK, CUDA_ERROR_HARDWARE_STACK_ERROR)
EQUAL(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED)
EQUAL(CU_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY)
EQUAL(CU_UNKNOWN, CUDA_ERROR_UNKNOWN)
EQUAL(CU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
EQUAL(CU_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED)
EQUAL(CU_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
EQUAL(CU_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
EQUAL(CU_RESERVES, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
EQUAL(CU_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)
EQUAL(CU_ON_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
EQUAL(CU_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
EQUAL(CU_MAP_16_BITS, CU_TENSOR_MAP_DATA_TYPE_UINT16)
EQUAL(CU_MAP_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B)
EQUAL(CU_MAP_CACHE_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
EQUAL(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING)
EQUAL(CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
EQUAL(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
EQUAL(CU_CTX_BLOCKING_SYNC, CU_CTX_SCHED_BLOCKING_SYNC)

static_assert(sizeof(ours::cu_memory_kind) == sizeof(CUmemAllocationProp), "a kind of memory");
static_assert(offsetof(ours::cu_memory_kind, where) == offsetof(CUmemAllocationProp, location),
              "where memory is");
static_assert(offsetof(ours::cu_memory_kind, flags) == offsetof(CUmemAllocationProp, allocFlags),
              "flags of memory");
static_assert(sizeof(ours::cu_map) == sizeof(CUtensorMap), "a map");
static_assert(sizeof(ours::cu_memory_access) == sizeof(CUmemAccessDesc) &&
                  offsetof(ours::cu_memory_access, flags) == offsetof(CUmemAccessDesc, flags),
              "access to memory");
