/* maps.h -- what the driver's stand-in makes of a matrix for copies of boxes
 * (cuTensorMapEncodeTiled in driver.cpp), and hopper.cpp copies by: 128 bytes, as a driver's own,
 * which nobody else reads. */
#ifndef PITH_TESTS_BACKEND_CUDA_MAPS_H
#define PITH_TESTS_BACKEND_CUDA_MAPS_H

#include <stdint.h>

enum { MAP_MAGIC = 0x70616d21, MAP_BYTES = 128, MAP_SWIZZLE_128 = 3 };
struct host_map {
    uint64_t at;      /* where the matrix is */
    uint64_t dim[3];  /* in numbers of 16 bits */
    uint64_t step[3]; /* bytes from one to the next of each dimension */
    uint32_t box[3];
    uint32_t magic, swizzle, unused;
    uint64_t rest[6];
};

#endif
