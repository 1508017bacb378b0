// hopper.h -- between host.cpp, which runs threads, and hopper.cpp, which knows what they wait for.
#ifndef PITH_TESTS_BACKEND_CUDA_HOPPER_H
#define PITH_TESTS_BACKEND_CUDA_HOPPER_H

#include <stddef.h>

void hopper_begin_block();
bool hopper_goes_on(int thread); /* what it waits for has come */
/* A thread fetches there: no products that the same lanes of its block's warps have not waited for
 * read it. */
void hopper_fetches(const void *to, size_t n);
bool hopper_copy_one(unsigned order); /* one of the copies under way; there is none: false */
const char *hopper_end_block(int n_threads); /* what is wrong; NULL: nothing */

/* host.cpp: this thread waits until hopper_goes_on; where shared memory's own addresses begin. */
void host_wait_for_barrier();
const void *host_window_base();

#endif
