// checks.h -- what the accesses of kernels on the host are held to, as compute-sanitizer's tools
// hold those on a device: see checks.cpp. Kernels that are compiled without them (HOST_CHECKS) are
// faster, and are held to what they make and how they meet.
#ifndef PITH_TESTS_BACKEND_CUDA_CHECKS_H
#define PITH_TESTS_BACKEND_CUDA_CHECKS_H

#include <stddef.h>
#include <stdint.h>

/* host.cpp: the thread that runs; its own stack, and those of all. */
int host_thread();
bool host_is_own_stack(uint64_t at);
bool host_is_stack(uint64_t at);
/* The launch ends here, with a message that begins with the kernel's name. */
[[noreturn]] void host_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum host_kind { HOST_READ, HOST_WRITE, HOST_ATOMIC };

#ifdef HOST_CHECKS
void checks_launch(const void *shared, size_t n); /* begins; what it has asked for */
void checks_block();                              /* begins */
void checks_block_met();   /* its threads, which see each other's writes from here on */
void checks_warp_met(int); /* the lanes of a warp, likewise */
void checks_access(host_kind kind, const void *at, size_t n);
/* Bytes of shared memory that come by themselves: nobody may touch them meanwhile. */
void checks_fetch(const void *to, size_t n);
void checks_fetched(const void *to, size_t n);
/* The same of copies that barriers tell of, and of what four warps multiply: who comes after whom
 * is not looked at here, but that there is something, and nothing under way (hopper.cpp). */
void checks_copy(const void *to, size_t n);
void checks_copied(const void *to, size_t n);
void checks_operand(const void *from, size_t n);
/* What this thread has written by itself is there for what four warps multiply. */
void checks_given();
#else
static inline void checks_launch(const void *, size_t) {}
static inline void checks_block() {}
static inline void checks_block_met() {}
static inline void checks_warp_met(int) {}
static inline void checks_access(host_kind, const void *, size_t) {}
static inline void checks_fetch(const void *, size_t) {}
static inline void checks_fetched(const void *, size_t) {}
static inline void checks_copy(const void *, size_t) {}
static inline void checks_copied(const void *, size_t) {}
static inline void checks_operand(const void *, size_t) {}
static inline void checks_given() {}
#endif

#endif
