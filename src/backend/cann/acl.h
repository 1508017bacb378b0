/* acl.h -- the functions of Ascend's CANN that are used here, as its public documentation has them:
 * of the runtime (libascendcl.so) and of the operator library (libopapi.so, which brings the
 * library that tensors and executors are of). Nothing of CANN's own headers is needed.
 *
 * An operator is two functions: the first is told tensors and gives the bytes of work space that it
 * wants and an executor, the second puts the executor into a stream and uses it up. */
#ifndef PITH_BACKEND_CANN_ACL_H
#define PITH_BACKEND_CANN_ACL_H

#include <stddef.h>
#include <stdint.h>

typedef int acl_error;
typedef void *acl_context, *acl_stream, *acl_event, *acl_recording;
typedef struct acl_tensor_ acl_tensor;
typedef struct acl_scalar_ acl_scalar;
typedef struct acl_executor_ acl_executor;

enum { /* results */
       ACL_OK = 0,
       ACL_AGAIN = 100002, /* aclInit was called before, by somebody else in the process */
       ACL_NO_ROOM = 200000,
       ACL_NO_MEMORY = 207001,
       ACL_FIRST_FAULT = 507000, /* of the device: nothing works there any more */
       ACL_LAST_FAULT = 507999
};
enum { /* types of numbers */
       ACL_FLOAT = 0,
       ACL_FLOAT16 = 1,
       ACL_INT32 = 3,
       ACL_INT64 = 9,
       ACL_BOOL = 12,
       ACL_BF16 = 27
};
enum {
    ACL_ND = 2,           /* the format of tensors: rows */
    ACL_HUGE_FIRST = 0,   /* memory in large pages where there are some */
    ACL_HBM = 1,          /* which memory is asked after */
    ACL_TO_DEVICE = 1,    /* copies */
    ACL_TO_HOST = 2,
    ACL_ON_DEVICE = 3,
    ACL_EVENT_SYNC = 1,
    ACL_CAPTURE_THREAD = 1, /* other threads may do what they like while this one captures */
    ACL_KEEP_TYPE = 0,    /* products of f32 in f32 */
    ACL_USE_FP16 = 2      /* products of f32 rounded to f16, sums in f32 */
};

/* X(member, name, parameters) */
#define ACL_FUNCTIONS(X)                                                                           \
    X(init, "aclInit", (const char *config))                                                       \
    X(device_count, "aclrtGetDeviceCount", (uint32_t * n))                                         \
    X(device_set, "aclrtSetDevice", (int32_t device))                                              \
    X(context_make, "aclrtCreateContext", (acl_context * c, int32_t device))                       \
    X(context_end, "aclrtDestroyContext", (acl_context c))                                         \
    X(context_set, "aclrtSetCurrentContext", (acl_context c))                                      \
    X(memory_left, "aclrtGetMemInfo", (int which, size_t *left, size_t *total))                    \
    X(alloc, "aclrtMalloc", (void **p, size_t n, int policy))                                      \
    X(free, "aclrtFree", (void *p))                                                                \
    X(host_alloc, "aclrtMallocHost", (void **p, size_t n))                                         \
    X(host_free, "aclrtFreeHost", (void *p))                                                       \
    X(copy, "aclrtMemcpyAsync",                                                                    \
      (void *to, size_t room, const void *from, size_t n, int kind, acl_stream s))                 \
    X(fill, "aclrtMemsetAsync", (void *to, size_t room, int32_t byte, size_t n, acl_stream s))     \
    X(stream_make, "aclrtCreateStream", (acl_stream * s))                                          \
    X(stream_end, "aclrtDestroyStream", (acl_stream s))                                            \
    X(stream_wait, "aclrtSynchronizeStream", (acl_stream s))                                       \
    X(event_make, "aclrtCreateEventExWithFlag", (acl_event * e, uint32_t flag))                    \
    X(event_end, "aclrtDestroyEvent", (acl_event e))                                               \
    X(event_record, "aclrtRecordEvent", (acl_event e, acl_stream s))                               \
    X(event_wait, "aclrtSynchronizeEvent", (acl_event e))

/* Of newer libraries: without them nothing is recorded. */
#define ACL_GRAPH_FUNCTIONS(X)                                                                     \
    X(capture_begin, "aclmdlRICaptureBegin", (acl_stream s, int mode))                             \
    X(capture_end, "aclmdlRICaptureEnd", (acl_stream s, acl_recording * r))                        \
    X(replay, "aclmdlRIExecuteAsync", (acl_recording r, acl_stream s))                             \
    X(recording_end, "aclmdlRIDestroy", (acl_recording r))

/* X(member, name, parameters of the first function but its last two) */
#define ACL_OPERATORS(X)                                                                           \
    X(add_to, "aclnnInplaceAdd",                                                                   \
      (acl_tensor * self, const acl_tensor *other, const acl_scalar *alpha, OUT))                  \
    X(add, "aclnnAdd",                                                                             \
      (const acl_tensor *self, const acl_tensor *other, const acl_scalar *alpha, acl_tensor *out,  \
       OUT))                                                                                       \
    X(mul, "aclnnMul",                                                                             \
      (const acl_tensor *self, const acl_tensor *other, acl_tensor *out, OUT))                     \
    X(scale, "aclnnInplaceMuls", (acl_tensor * self, const acl_scalar *by, OUT))                   \
    X(silu, "aclnnSilu", (const acl_tensor *self, acl_tensor *out, OUT))                           \
    X(cos, "aclnnCos", (const acl_tensor *self, acl_tensor *out, OUT))                             \
    X(sin, "aclnnSin", (const acl_tensor *self, acl_tensor *out, OUT))                             \
    X(convert, "aclnnCast", (const acl_tensor *self, int type, acl_tensor *out, OUT))              \
    X(bring, "aclnnInplaceCopy", (acl_tensor * self, const acl_tensor *from, OUT))                 \
    X(put, "aclnnInplaceFillScalar", (acl_tensor * self, const acl_scalar *value, OUT))            \
    X(pick_rows, "aclnnIndexSelect",                                                               \
      (const acl_tensor *self, int64_t dim, const acl_tensor *index, acl_tensor *out, OUT))        \
    X(put_rows, "aclnnInplaceIndexCopy",                                                           \
      (acl_tensor * self, int64_t dim, const acl_tensor *index, const acl_tensor *from, OUT))      \
    X(rms_norm, "aclnnRmsNorm",                                                                    \
      (const acl_tensor *x, const acl_tensor *gamma, double eps, const acl_tensor *y,              \
       const acl_tensor *rstd, OUT))                                                               \
    X(rotate, "aclnnRotaryPositionEmbedding",                                                      \
      (const acl_tensor *x, const acl_tensor *cos, const acl_tensor *sin, int64_t mode,            \
       acl_tensor *out, OUT))                                                                      \
    X(matmul, "aclnnMatmul",                                                                       \
      (const acl_tensor *self, const acl_tensor *other, acl_tensor *out, int8_t cube, OUT))        \
    X(softmax, "aclnnSoftmax", (const acl_tensor *self, int64_t dim, acl_tensor *out, OUT))        \
    X(at_least, "aclnnGeTensor",                                                                   \
      (const acl_tensor *self, const acl_tensor *other, acl_tensor *out, OUT))                     \
    X(less, "aclnnLtTensor",                                                                       \
      (const acl_tensor *self, const acl_tensor *other, acl_tensor *out, OUT))                     \
    X(mask, "aclnnInplaceMaskedFillScalar",                                                        \
      (acl_tensor * self, const acl_tensor *mask, const acl_scalar *value, OUT))

#define OUT uint64_t *bytes, acl_executor **executor
struct acl_functions {
#define X(member, name, params) acl_error(*member) params;
    ACL_FUNCTIONS(X)
    ACL_GRAPH_FUNCTIONS(X)
#undef X
    const char *(*soc_name)(void);      /* aclrtGetSocName */
    const char *(*last_error)(void);    /* aclGetRecentErrMsg */
    acl_tensor *(*tensor_make)(const int64_t *dims, uint64_t n_dims, int type,
                               const int64_t *strides, int64_t offset, int format,
                               const int64_t *storage, uint64_t n_storage,
                               void *data); /* aclCreateTensor */
    acl_error (*tensor_end)(const acl_tensor *t);         /* aclDestroyTensor */
    acl_scalar *(*scalar_make)(void *value, int type);    /* aclCreateScalar */
    acl_error (*scalar_end)(const acl_scalar *s);         /* aclDestroyScalar */
    /* Of an executor that is not put into a stream; NULL: it cannot be let go of. */
    acl_error (*executor_keep)(acl_executor *e); /* aclSetAclOpExecutorRepeatable */
    acl_error (*executor_end)(acl_executor *e);  /* aclDestroyAclOpExecutor */
    struct {
#define X(member, name, params) acl_error(*member) params;
        ACL_OPERATORS(X)
#undef X
    } size;
    struct {
#define X(member, name, params)                                                                    \
    acl_error (*member)(void *space, uint64_t bytes, acl_executor *executor, acl_stream s);
        ACL_OPERATORS(X)
#undef X
    } run;
};
#undef OUT

#endif
