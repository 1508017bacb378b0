/* params.h -- structs that callers fill, or have filled, begin with their size, so that a program
 * compiled against an older header works with a newer library: what it did not know of is zero,
 * which means "default", and nothing is written behind what it has. */
#ifndef PITH_API_PARAMS_H
#define PITH_API_PARAMS_H

#include <string.h>

#include "base/error.h"

/* Copies *from (NULL: all defaults) into *to, which already holds its PITH_..._INIT. */
static inline pith_status params_take(void *to, size_t to_bytes, const void *from, const char *what,
                                      struct pith_error *err)
{
    if (!from)
        return PITH_OK;
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < sizeof size || size > 65536)
        return error_set(err, PITH_RANGE, "%s: size is %zu; start from the PITH_..._INIT macro",
                         what, size);
    memcpy(to, from, size < to_bytes ? size : to_bytes);
    return PITH_OK;
}

/* The size a caller's struct says it has, in *size; PITH_RANGE where it says none. */
static inline pith_status params_size(const void *out, size_t *size, const char *what,
                                      struct pith_error *err)
{
    memcpy(size, out, sizeof *size);
    if (*size < sizeof *size || *size > 65536)
        return error_set(err, PITH_RANGE, "%s: size is %zu; set it to the struct's before the call",
                         what, *size);
    return PITH_OK;
}

/* Fills *out, of `size` bytes, with what `from` holds: as much as both have, zero behind it. */
static inline void params_give(void *out, size_t size, const void *from, size_t from_bytes)
{
    memset(out, 0, size);
    memcpy(out, from, size < from_bytes ? size : from_bytes);
    memcpy(out, &size, sizeof size);
}

#endif
