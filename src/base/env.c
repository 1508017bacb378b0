/* env.c -- the only reader of the environment, so that one search of the sources lists every
 * variable. */
#include "base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

const char *env_get(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

pith_status env_int(const char *name, int64_t lo, int64_t hi, int64_t fallback, int64_t *out,
                    struct pith_error *err)
{
    const char *value = env_get(name);
    if (!value) {
        *out = fallback;
        return PITH_OK;
    }
    char *end;
    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (errno || *end || v < lo || v > hi)
        return error_set(err, PITH_RANGE,
                         "%s is \"%s\"; wanted a whole number from %" PRId64 " to %" PRId64, name,
                         value, lo, hi);
    *out = v;
    return PITH_OK;
}
