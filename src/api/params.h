/* params.h -- structs that callers fill begin with their size, so that a program compiled against
 * an older header works with a newer library: what it did not know of is zero, which means
 * "default". */
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

#endif
