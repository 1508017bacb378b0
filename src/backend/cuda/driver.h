/* driver.h -- the functions of CUDA's driver library that are used here, as its binary interface
 * has them (libcuda.so.1, CUDA 11.4 and later). Nothing of CUDA's own headers is needed. */
#ifndef PITH_BACKEND_CUDA_DRIVER_H
#define PITH_BACKEND_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_ptr;
typedef unsigned long long cu_handle; /* of a piece of memory */
typedef struct cu_context_ *cu_context;
typedef struct cu_module_ *cu_module;
typedef struct cu_function_ *cu_function;
typedef struct cu_stream_ *cu_stream;
typedef struct cu_event_ *cu_event;
typedef struct cu_graph_ *cu_graph;
typedef struct cu_graph_exec_ *cu_graph_exec;

enum { /* results */
       CU_SUCCESS = 0,
       CU_OUT_OF_MEMORY = 2,
       CU_NO_DEVICE = 100,
       CU_INVALID_IMAGE = 200,
       CU_NO_BINARY = 209,
       CU_ECC_UNCORRECTABLE = 214,
       CU_NVLINK_UNCORRECTABLE = 220,
       CU_UNSUPPORTED_PTX = 222,
       CU_NOT_FOUND = 500,
       CU_NOT_READY = 600,
       CU_ILLEGAL_ADDRESS = 700,
       CU_LAUNCH_TIMEOUT = 702,
       CU_CONTEXT_IS_DESTROYED = 709,
       CU_ASSERT = 710,
       CU_HARDWARE_STACK = 714,
       CU_LAUNCH_FAILED = 719,
       CU_SYSTEM_NOT_READY = 802,
       CU_UNKNOWN = 999
};
enum { /* attributes of devices */
       CU_MULTIPROCESSORS = 16,
       CU_INTEGRATED = 18,
       CU_MAJOR = 75,
       CU_MINOR = 76,
       CU_SHARED = 97,   /* bytes of shared memory that a block can ask for */
       CU_RESERVES = 102 /* addresses, and puts memory behind them */
};
enum { CU_FUNCTION_SHARED = 8 }; /* attribute of a function: what its launches may ask for */
enum { /* maps of matrices, for copies of boxes (wgmma.c) */
       CU_MAP_16_BITS = 1,
       CU_MAP_SWIZZLE_128 = 3,
       CU_MAP_CACHE_256 = 3
};
struct cu_map { /* at a multiple of 64 */
    _Alignas(64) uint64_t v[16];
};
enum { CU_PINNED = 1, CU_ON_DEVICE = 1, CU_READ_WRITE = 3 };
struct cu_location {
    int type, id;
};
struct cu_memory_kind {
    int type, handles;
    struct cu_location where;
    void *metadata;
    uint64_t flags;
};
struct cu_memory_access {
    struct cu_location where;
    int flags;
};
enum {
    CU_EVENT_BLOCKING_SYNC = 1, /* the host sleeps while it waits for it */
    CU_EVENT_NO_TIMING = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_RELAXED = 2,
    CU_CTX_BLOCKING_SYNC = 4
};

/* X(member, name in the library, parameters) */
#define CU_FUNCTIONS(X)                                                                            \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(error_name, "cuGetErrorName", (cu_result r, const char **name))                              \
    X(device_count, "cuDeviceGetCount", (int *n))                                                  \
    X(device_get, "cuDeviceGet", (cu_device * d, int i))                                           \
    X(device_name, "cuDeviceGetName", (char *name, int cap, cu_device d))                          \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, cu_device d))                         \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int which, cu_device d))              \
    X(context_make, "cuCtxCreate_v2", (cu_context * c, unsigned flags, cu_device d))               \
    X(context_end, "cuCtxDestroy_v2", (cu_context c))                                              \
    X(context_set, "cuCtxSetCurrent", (cu_context c))                                              \
    X(memory_left, "cuMemGetInfo_v2", (size_t * left, size_t * total))                             \
    X(alloc, "cuMemAlloc_v2", (cu_ptr * p, size_t n))                                              \
    X(free, "cuMemFree_v2", (cu_ptr p))                                                            \
    X(host_alloc, "cuMemHostAlloc", (void **p, size_t n, unsigned flags))                          \
    X(host_free, "cuMemFreeHost", (void *p))                                                       \
    X(to_device, "cuMemcpyHtoDAsync_v2", (cu_ptr to, const void *from, size_t n, cu_stream s))     \
    X(to_host, "cuMemcpyDtoHAsync_v2", (void *to, cu_ptr from, size_t n, cu_stream s))             \
    X(copy, "cuMemcpyDtoDAsync_v2", (cu_ptr to, cu_ptr from, size_t n, cu_stream s))               \
    X(peer_can, "cuDeviceCanAccessPeer", (int *yes, cu_device d, cu_device peer))                  \
    X(peer_enable, "cuCtxEnablePeerAccess", (cu_context peer, unsigned flags))                     \
    X(copy_peer, "cuMemcpyPeerAsync",                                                              \
      (cu_ptr to, cu_context there, cu_ptr from, cu_context here, size_t n, cu_stream s))          \
    X(fill, "cuMemsetD8Async", (cu_ptr to, unsigned char byte, size_t n, cu_stream s))             \
    X(stream_make, "cuStreamCreate", (cu_stream * s, unsigned flags))                              \
    X(stream_end, "cuStreamDestroy_v2", (cu_stream s))                                             \
    X(stream_wait, "cuStreamSynchronize", (cu_stream s))                                           \
    X(stream_query, "cuStreamQuery", (cu_stream s))                                                \
    X(stream_after, "cuStreamWaitEvent", (cu_stream s, cu_event e, unsigned flags))                \
    X(event_make, "cuEventCreate", (cu_event * e, unsigned flags))                                 \
    X(event_end, "cuEventDestroy_v2", (cu_event e))                                                \
    X(event_record, "cuEventRecord", (cu_event e, cu_stream s))                                    \
    X(event_wait, "cuEventSynchronize", (cu_event e))                                              \
    X(event_query, "cuEventQuery", (cu_event e))                                                   \
    X(module_load, "cuModuleLoad", (cu_module * m, const char *file))                              \
    X(module_data, "cuModuleLoadData", (cu_module * m, const void *image))                         \
    X(module_end, "cuModuleUnload", (cu_module m))                                                 \
    X(function, "cuModuleGetFunction", (cu_function * f, cu_module m, const char *name))           \
    X(function_set, "cuFuncSetAttribute", (cu_function f, int which, int value))                   \
    X(launch, "cuLaunchKernel",                                                                    \
      (cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
       unsigned bz, unsigned shared, cu_stream s, void **params, void **extra))                    \
    X(capture_begin, "cuStreamBeginCapture_v2", (cu_stream s, int mode))                           \
    X(capture_end, "cuStreamEndCapture", (cu_stream s, cu_graph * g))                              \
    X(graph_make, "cuGraphInstantiateWithFlags",                                                   \
      (cu_graph_exec * e, cu_graph g, unsigned long long flags))                                   \
    X(graph_launch, "cuGraphLaunch", (cu_graph_exec e, cu_stream s))                               \
    X(graph_end, "cuGraphDestroy", (cu_graph g))                                                   \
    X(graph_exec_end, "cuGraphExecDestroy", (cu_graph_exec e))

/* All of them, or none is used (pool.c). */
#define CU_POOL_FUNCTIONS(X)                                                                       \
    X(granularity, "cuMemGetAllocationGranularity",                                                \
      (size_t * bytes, const struct cu_memory_kind *kind, int option))                             \
    X(address_reserve, "cuMemAddressReserve",                                                      \
      (cu_ptr * p, size_t n, size_t align, cu_ptr at, unsigned long long flags))                   \
    X(address_free, "cuMemAddressFree", (cu_ptr p, size_t n))                                      \
    X(piece_make, "cuMemCreate",                                                                   \
      (cu_handle * h, size_t n, const struct cu_memory_kind *kind, unsigned long long flags))      \
    X(piece_end, "cuMemRelease", (cu_handle h))                                                    \
    X(piece_map, "cuMemMap",                                                                       \
      (cu_ptr p, size_t n, size_t offset, cu_handle h, unsigned long long flags))                  \
    X(unmap, "cuMemUnmap", (cu_ptr p, size_t n))                                                   \
    X(access, "cuMemSetAccess",                                                                    \
      (cu_ptr p, size_t n, const struct cu_memory_access *who, size_t n_who))

/* All of them, or none is used: the context that CUDA's runtime has, and so NCCL (nccl.c). */
#define CU_PRIMARY_FUNCTIONS(X)                                                                    \
    X(primary_flags, "cuDevicePrimaryCtxSetFlags_v2", (cu_device d, unsigned flags))               \
    X(primary_take, "cuDevicePrimaryCtxRetain", (cu_context * c, cu_device d))                     \
    X(primary_end, "cuDevicePrimaryCtxRelease_v2", (cu_device d))

/* Or it is NULL: with CUDA 12.0 and later. */
#define CU_MAP_FUNCTIONS(X)                                                                        \
    X(map_make, "cuTensorMapEncodeTiled",                                                          \
      (struct cu_map * map, int type, unsigned rank, void *at, const uint64_t *dim,                \
       const uint64_t *stride, const unsigned *box, const unsigned *step, int interleave,          \
       int swizzle, int promotion, int fill))

struct cu_functions {
#define X(member, name, params) cu_result(*member) params;
    CU_FUNCTIONS(X)
    CU_POOL_FUNCTIONS(X)
    CU_PRIMARY_FUNCTIONS(X)
    CU_MAP_FUNCTIONS(X)
#undef X
};

#endif
