/* env.h -- the only reader of the environment. Precedence everywhere: flag > PITH_ environment >
 * configuration file > default. */
#ifndef PITH_BASE_ENV_H
#define PITH_BASE_ENV_H

#include "base/error.h"

const char *env_get(const char *name); /* "PITH_CPU"; NULL when unset or empty */
/* Integer setting: *out = fallback when unset; PITH_RANGE naming the variable, the value and the
 * range otherwise. */
pith_status env_int(const char *name, int64_t lo, int64_t hi, int64_t fallback, int64_t *out,
                    struct pith_error *err);

#endif
